"""A workload from files of whatever format."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from workloads.formats import chakra, layer_text, matrix
from workloads.formats.files import read_bytes
from workloads.graph import Workload
from workloads.packed import MAGIC, unpack

_BEGINNING = 4096
_NUMBERS = re.compile(r"\s*(#|\d+\s*(,|$))", re.MULTILINE)


class Options(NamedTuple):
    """What a file may leave open: its ranks, those of model parallelism, the shape of its network."""

    ranks: int | None = None
    model_ranks: int | None = None
    shape: tuple[int, ...] = ()


class Format(NamedTuple):
    """``read``: the first path, a file of process groups, options."""

    name: str
    read: Callable[[Path, Path | None, Options], Workload]


CHAKRA = Format("Chakra trace", lambda path, groups, said: chakra.read(path, groups, said.shape))
LAYERS = Format(
    "workload text", lambda path, groups, said: layer_text.read(path, said.ranks, said.model_ranks)
)
MATRIX = Format("traffic matrix", lambda path, groups, said: matrix.read(path))
PACKED = Format("packed workload", lambda path, groups, said: _unpacked(path))


def read_any(paths: Sequence[Path], options: Options = Options()) -> Workload:
    """The workload in these files; a Chakra trace may be several, with one of process groups among them.

    Raises ValueError, in one line, when no format fits, or the files are not one workload.
    """
    if not paths:
        raise ValueError("there is no file to read")
    groups = [path for path in paths if path.suffix == ".json"]
    others = [path for path in paths if path.suffix != ".json"]
    if not others or len(groups) > 1:
        raise ValueError(
            f"{groups[-1]}: a JSON file is one of process groups; name one, and the trace it is for"
        )
    found = recognise(others[0])
    if found is not CHAKRA and len(paths) > 1:
        raise ValueError(f"{paths[1]}: {others[0]} is a {found.name}, which is one file")
    if len(others) > 1:
        files = {path.resolve() for path in chakra.files_of(others[0])}
        other = next((path for path in others[1:] if path.resolve() not in files), None)
        if other is not None:
            raise ValueError(f"{other}: it is no file of the trace of {others[0]}")
    return found.read(others[0], groups[0] if groups else None, options)


def recognise(path: Path) -> Format:
    """The format of a file, by its content first and then by its name. Raises ValueError."""
    if (
        path.is_dir()
        or path.suffix == ".et"
        or next(path.parent.glob(f"{glob.escape(path.name)}.*.et"), None)
    ):
        return CHAKRA
    beginning = read_bytes(path, _BEGINNING)
    if beginning.startswith(MAGIC):
        return PACKED
    text = beginning.decode(errors="replace")
    if layer_text.looks_like(text):
        return LAYERS
    if path.suffix == ".csv" or _NUMBERS.match(text):
        return MATRIX
    raise ValueError(
        f"{path}: no format fits; there are Chakra traces (NAME.RANK.et), workload texts of ASTRA-sim and "
        "SimAI, traffic matrices (CSV) and packed workloads"
    )


def _unpacked(path: Path) -> Workload:
    try:
        return unpack(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
