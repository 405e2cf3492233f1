"""A workload from files of whatever format."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ringlight.extensions.chakra import reader as chakra
from ringlight.extensions.chakra.names import files_of, groups_beside
from ringlight.extensions.layer_text import reader as layer_text
from ringlight.workloads.formats import matrix
from ringlight.workloads.formats.files import read_bytes
from ringlight.workloads.graph import Workload
from ringlight.workloads.packed import MAGIC, unpack

_BEGINNING = 4096
_NUMBER = re.compile(r"\s*\d+\s*(,|$)")


class Options(NamedTuple):
    """Settings that a file may leave open: its ranks, its ranks of model parallelism, the shape of its
    network.

    ``groups``: a file of process groups. ``notice``: called with a line about what was read but not used.
    """

    ranks: int | None = None
    model_ranks: int | None = None
    shape: tuple[int, ...] = ()
    groups: Path | None = None
    notice: Callable[[str], None] = lambda line: None


class Format(NamedTuple):
    """``takes``: those of the options that mean something to it; ``ranks`` may be given to all."""

    name: str
    read: Callable[[Path, Options], Workload]
    takes: frozenset[str] = frozenset()


CHAKRA = Format(
    "Chakra trace",
    lambda path, options: chakra.read(path, options.groups, options.shape, options.notice),
    frozenset({"shape", "groups"}),
)
LAYERS = Format(
    "workload text",
    lambda path, options: layer_text.read(path, options.ranks, options.model_ranks),
    frozenset({"model_ranks"}),
)
MATRIX = Format("traffic matrix", lambda path, options: matrix.read(path))
PACKED = Format("packed workload", lambda path, options: _unpacked(path))


class _Found(NamedTuple):
    """Workload that some paths name: the format, one of its files, and options with the file of process
    groups.
    """

    format: Format
    path: Path
    options: Options


def read_any(paths: Sequence[Path], options: Options = Options()) -> Workload:
    """Return the workload in these files.

    A Chakra trace may be several files, with one of process groups among them. Raises ValueError, in one
    line, when no format fits, the files are not one workload, or an option is not for their format.
    """
    source = _found(paths, options)
    return source.format.read(source.path, source.options)


def files_read(paths: Sequence[Path], options: Options = Options()) -> list[Path]:
    """Return every file that :func:`read_any` reads for these, reading only their beginnings.

    Raises ValueError when no format fits, the files are not one workload, or an option is not for their
    format.
    """
    source = _found(paths, options)
    if source.format is not CHAKRA:
        return [source.path]
    files = files_of(source.path)
    groups = source.options.groups or groups_beside(files)
    return files if groups is None else [*files, groups]


def _found(paths: Sequence[Path], options: Options) -> _Found:
    if not paths:
        raise ValueError("there is no file to read")
    groups = [path for path in paths if path.suffix == ".json"]
    traces = [path for path in paths if path.suffix != ".json"]
    groups += [options.groups] if options.groups is not None else []
    if not traces or len(groups) > 1:
        raise ValueError(
            f"{groups[-1]}: a JSON file is one of process groups; name one, and the trace it is for"
        )
    kind = recognise(traces[0])
    if kind is not CHAKRA and len(paths) > 1:
        raise ValueError(f"{paths[1]}: {traces[0]} is a {kind.name}, which is one file")
    if len(traces) > 1:
        files = {path.resolve() for path in files_of(traces[0])}
        other = next((path for path in traces[1:] if path.resolve() not in files), None)
        if other is not None:
            raise ValueError(f"{other}: it is no file of the trace of {traces[0]}")
    options = options._replace(groups=groups[0] if groups else None)
    for name in ("model_ranks", "shape", "groups"):
        if getattr(options, name) and name not in kind.takes:
            raise ValueError(f"{traces[0]}: a {kind.name} has no use for {name.replace('_', ' ')}")
    return _Found(kind, traces[0], options)


def recognise(path: Path) -> Format:
    """Return the format of a file, by its content first and then by its name.

    Raises ValueError if no format fits.
    """
    if (
        os.path.isdir(path)
        or path.suffix == ".et"
        or next(path.parent.glob(f"{glob.escape(path.name)}.*.et"), None)
    ):
        return CHAKRA
    beginning = read_bytes(path, _BEGINNING)
    if beginning.startswith(MAGIC):
        return PACKED
    text = beginning.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith(("<algo", "<?xml")):
        raise ValueError(
            f"{path}: this is an algorithm (MSCCL), no workload; run it with ringlight bench SCENARIO "
            "--algorithm FILE, or in a scenario as workload: {collective: {file: FILE}}"
        )
    if layer_text.looks_like(text):
        return LAYERS
    if path.suffix == ".csv" or _is_numbers(text):
        return MATRIX
    raise ValueError(
        f"{path}: no format fits; there are Chakra traces (NAME.RANK.et), workload texts of ASTRA-sim and "
        "SimAI, traffic matrices (CSV) and packed workloads"
    )


def _is_numbers(text: str) -> bool:
    """Return whether the first line that is no remark begins with a number of a row."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return bool(_NUMBER.match(next(lines, "")))


def _unpacked(path: Path) -> Workload:
    try:
        return unpack(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
