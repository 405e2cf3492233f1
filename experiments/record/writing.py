"""Files that are written so that a full disk is one line, and what was written before stays readable."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: What the operating system says when there is no room left, on the disk or of the user's share of it.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class WriteError(RuntimeError):
    """A file cannot be written; one line with its name and the reason."""


@contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Yield to the block, and turn an operating system's error in it into a WriteError naming a file.

    ``path``: the file if the error names none. ``remedy``: text to append to the line, also to that of a
    WriteError inside.
    """
    try:
        yield
    except (OSError, WriteError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{error.filename or path}: cannot be written: {error.strerror or error}"
        raise WriteError(f"{reason}; {remedy}" if remedy else reason) from None


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises WriteError."""
    temporary = path.with_suffix(".new")
    with writing(path):
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    """Write JSON like :func:`write_whole`. ``indent``: None for long data. Raises WriteError."""
    write_whole(path, json.dumps(value, indent=indent) + "\n")


class Lines:
    """A text file that only ever holds whole pieces: one that does not fit is taken back.

    Every piece is in the file when :meth:`append` returns; what is there stays. Raises WriteError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = os.fstat(self._file).st_size

    def append(self, text: str) -> None:
        left = memoryview(text.encode())
        size = self._size + len(left)
        with writing(self._path):
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
                raise
        self._size = size

    def close(self) -> None:
        os.close(self._file)
