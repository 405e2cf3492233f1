"""Small JSON documents that survive a crash of the controller, each in a file of its own.

A file holds one version of its document a line, and its last whole line counts. A new version is appended:
to put another file in its place makes a file system write that out at once (ext4: 0.6 ms, and 10 ms at
times). That is done with the first version that a process writes, and where a file has grown long.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from io import FileIO
from pathlib import Path
from typing import Any

from ringlight.fabric.text import cleaned

#: Folder whose contents a crash of the machine deletes.
_VOLATILE = Path("/run")
#: Longest file that is appended to.
_MOST_BYTES = 1 << 20


class Store:
    """Documents by name in one directory (mode 0700, made if missing), which one process at a time writes."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        # It guards against a crash of the machine alone, and a disk takes milliseconds for it.
        self._sync = not directory.resolve().is_relative_to(_VOLATILE)
        self._lock = threading.Lock()
        #: Files that end with a whole line.
        self._files: dict[str, FileIO] = {}

    def read(self, name: str) -> Any:
        """Return the document; None if there is none. Raises ValueError naming a file that is not JSON."""
        path = self._path(name)
        try:
            whole, end, rest = path.read_bytes().rpartition(b"\n")
            # Without any end of a line it is a file that an older version wrote.
            return cleaned(json.loads(whole.rpartition(b"\n")[2] if end else rest))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from error

    def write(self, name: str, document: Any) -> None:
        """Replace the document; after a crash either the old or the new one is there."""
        line = json.dumps(document).encode() + b"\n"
        with self._lock:
            # Not there again where this fails: half a line may stand at the file's end.
            file = self._files.pop(name, None)
            if file is None or file.tell() + len(line) > _MOST_BYTES:
                if file is not None:
                    file.close()
                file = self._made_anew(self._path(name), line)
            else:
                self._put(file, line)
            self._files[name] = file

    def write_last(self, name: str, document: Any) -> None:
        """Replace a document that will not change again; its file does not stay open."""
        self.write(name, document)
        with self._lock:
            if (file := self._files.pop(name, None)) is not None:
                file.close()

    def remove(self, name: str) -> None:
        with self._lock:
            if (file := self._files.pop(name, None)) is not None:
                file.close()
            self._path(name).unlink(missing_ok=True)

    def names(self, begin: str) -> list[str]:
        """Return the names of the documents whose names begin with ``begin``, sorted."""
        return sorted(path.stem for path in self._directory.glob(f"{begin}*.json"))

    def close(self) -> None:
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()

    def _made_anew(self, path: Path, line: bytes) -> FileIO:
        temporary = path.with_suffix(".new")
        file = FileIO(temporary, "w")
        self._put(file, line)
        temporary.replace(path)
        return file

    def _put(self, file: FileIO, line: bytes) -> None:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, "no room for all of it", file.name)
        if self._sync:
            os.fsync(file.fileno())

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"
