"""Files in and out; what goes wrong with them is a ValueError of one line with the file's name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Bytes of a file of text; the largest that we know has 0.2 MB.
TEXT_LIMIT = 16 << 20


def read_bytes(path: Path, count: int = -1) -> bytes:
    """What is in a file, or its first ``count`` bytes. Raises ValueError."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """What is in a file of text. Raises ValueError when it is none, or has more than ``limit`` bytes."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if size > limit:
        raise ValueError(f"{path}: it has {size} bytes, {limit} are allowed")
    data = read_bytes(path)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: this is no text") from None


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and looks that it is there. Raises ValueError."""
    with replacing(path) as part:
        part.write_bytes(data)
        if part.stat().st_size != len(data):
            raise ValueError(f"{path}: it was not written whole")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write what then takes the place of ``path``. Of what was not written whole nothing is left.

    Raises ValueError when it cannot be written.
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
    """A piece of a file as one may print it within a line."""
    return repr(text[:length] + "…" if len(text) > length else text)
