"""Small JSON documents that survive a crash: written whole, to a new file, then renamed."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

#: What is here is gone once the machine has crashed.
_VOLATILE = Path("/run")


class Store:
    """Documents by name in one directory (mode 0700, made if missing)."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        # It guards against a crash of the machine alone, and a disk takes milliseconds for it.
        self._sync = not directory.resolve().is_relative_to(_VOLATILE)
        self._lock = threading.Lock()

    def read(self, name: str) -> Any:
        """The document, or None when there is none. Raises ValueError naming a file that is not JSON."""
        path = self._path(name)
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: not JSON: {error}") from error

    def write(self, name: str, document: Any) -> None:
        """Replace the document; after a crash either the old or the new one is there."""
        path = self._path(name)
        temporary = path.with_suffix(".new")
        with self._lock:
            with open(temporary, "w") as file:
                file.write(json.dumps(document))
                if self._sync:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.json"
