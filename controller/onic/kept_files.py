"""Files that an O-NIC's agent keeps over its lives: the number of its life, and its map."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ringlight.controller.onic.agent_settings import AgentError
from ringlight.controller.onic.wavelength_map import WavelengthMap, parse_map

MAP_FILE, EPOCH_FILE = "map.json", "epoch"


class MapFile:
    """File with the wavelength map of an O-NIC of so many ``ports``."""

    def __init__(self, directory: Path, ports: int) -> None:
        self._path, self._ports = directory / MAP_FILE, ports

    def read(self) -> WavelengthMap | None:
        """Return the stored map; None without a file. Raises ValueError or OSError naming the file."""
        try:
            return parse_map(json.loads(self._path.read_bytes()), self._ports)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from error

    def write(self, new_map: WavelengthMap) -> None:
        """Keep a map. Raises OSError."""
        _write_file(self._path, json.dumps(new_map.document()))

    def remove(self) -> None:
        """Keep no map. Raises OSError."""
        self._path.unlink(missing_ok=True)


def next_epoch(path: Path) -> tuple[int, bool]:
    """Return a number greater than in any earlier life, kept in ``path``, and whether this is the first life.

    The clock makes the number grow even if the file is lost, until the machine is rebooted. Raises
    AgentError.
    """
    try:
        before = int(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        before = None
    except ValueError as error:
        raise AgentError(f"{path}: {error}") from error
    epoch = max(time.monotonic_ns(), 0 if before is None else before + 1)
    _write_file(path, str(epoch))
    return epoch, before is None


def _write_file(path: Path, text: str) -> None:
    """Replaces a file in one go, so that a kill leaves the old or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
