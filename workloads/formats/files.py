"""Files in and out; what goes wrong with them is a ValueError of one line with the file's name."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Bytes of a file of text; the largest that we know has 0.2 MB. And of any file: a trace of 10,000,000 nodes.
TEXT_LIMIT, FILE_LIMIT = 16 << 20, 4 << 30


def read_bytes(
    path: Path, count: int = -1, limit: int = FILE_LIMIT, *, pipe: bool = False
) -> bytes:
    """Return the content of a file, or its first ``count`` bytes.

    Raises ValueError when it has more than ``limit`` bytes, or is neither a regular file nor, with ``pipe``,
    a pipe: a device never ends.
    """
    try:
        with path.open("rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(kind) or (pipe and stat.S_ISFIFO(kind))):
                raise ValueError(f"{path}: it is no regular file")
            if count >= 0:
                return file.read(count)
            size = os.fstat(file.fileno()).st_size
            # No more memory is asked for than is needed; of a pipe, and of what the kernel makes up, the
            # size is not known.
            data = b"" if size > limit else file.read((size or limit) + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if max(size, len(data)) > limit:
        has = f"it has {size} bytes" if size > limit else "it does not end"
        raise ValueError(f"{path}: {has}, {limit} are allowed")
    return data


def read_text(path: Path, limit: int = TEXT_LIMIT, *, pipe: bool = False) -> str:
    """Return a file's text, without a byte order mark.

    Raises ValueError as :func:`read_bytes`, and when it is no text.
    """
    data = read_bytes(path, limit=limit, pipe=pipe)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: this is no text") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and check that it is there. Raises ValueError."""
    with replacing(path) as part:
        part.write_bytes(data)
        if part.stat().st_size != len(data):
            raise ValueError(f"{path}: it was not written whole")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, whose file then takes the place of ``path``.

    A file that was not written whole is removed. Raises ValueError when it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink()


def printable(text: str, length: int = 60) -> str:
    """Return a piece of a file as one may print it within a line."""
    return repr(text[:length] + "…" if len(text) > length else text)
