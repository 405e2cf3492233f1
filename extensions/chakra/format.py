"""Traces as a format of workloads: which files are one, and how it is read and written."""

from __future__ import annotations

import glob
import os.path
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.extensions.chakra.names import files_of, groups_beside, others_beside
from ringlight.workloads.formats.contract import Format, Options, Setting

if TYPE_CHECKING:
    from ringlight.workloads.graph import Workload

SUFFIX = ".et"


def is_trace(path: Path, beginning: bytes) -> bool:
    """Return whether a path names a trace, or may be the file of a trace's process groups."""
    if os.path.isdir(path) or path.suffix in (SUFFIX, ".json"):
        return True
    return any(path.parent.glob(f"{glob.escape(path.name)}.*{SUFFIX}"))


def read(paths: Sequence[Path], options: Options) -> Workload:
    """Return the trace of some files, one of which may be that of its process groups."""
    from ringlight.extensions.chakra import reader

    trace, groups = _parts(paths, options)
    return reader.read(
        trace, groups, options.settings.get("shape") or (), options.notice
    )


def read_also(paths: Sequence[Path], options: Options) -> list[Path]:
    """Return all files of the trace that some files name, and that of its process groups."""
    trace, groups = _parts(paths, options)
    files = files_of(trace)
    groups = groups or groups_beside(files)
    return files if groups is None else [*files, groups]


def write(workload: Workload, path: Path) -> list[Path]:
    """Write NAME.RANK.et for each rank and a file of process groups; return the files.

    ``path``: NAME.et or NAME.
    """
    from ringlight.extensions.chakra import writer
    from ringlight.extensions.chakra.reader import NODES_LIMIT

    path = path.with_suffix("") if path.suffix == SUFFIX else path
    if workload.operations > NODES_LIMIT:
        raise ValueError(
            f"{path}: a Chakra trace may have {NODES_LIMIT} nodes, not {workload.operations}; "
            "packed files have no such limit"
        )
    stale = others_beside(path, workload.ranks)
    if stale:
        raise ValueError(
            f"{stale[0]}: it would be read with this trace; remove it, or write elsewhere"
        )
    return writer.write(workload, path)


def _parts(paths: Sequence[Path], options: Options) -> tuple[Path, Path | None]:
    """Return one file of the trace that some files are, and the file of its process groups."""
    groups = [path for path in paths if path.suffix == ".json"]
    traces = [path for path in paths if path.suffix != ".json"]
    stated = options.settings.get("groups")
    groups += [stated] if stated is not None else []
    if not traces or len(groups) > 1:
        raise ValueError(
            f"{groups[-1]}: a JSON file is one of process groups; name one, and the trace it is for"
        )
    if len(traces) > 1:
        files = {path.resolve() for path in files_of(traces[0])}
        other = next((path for path in traces[1:] if path.resolve() not in files), None)
        if other is not None:
            raise ValueError(f"{other}: it is no file of the trace of {traces[0]}")
    return traces[0], groups[0] if groups else None


CHAKRA = Format(
    name="chakra",
    title="Chakra trace",
    files="Chakra traces (NAME.RANK.et)",
    recognises=is_trace,
    read=read,
    read_also=read_also,
    settings=(
        Setting("groups", "file", "Process groups of a Chakra trace (JSON)."),
        Setting("shape", "sizes", "Shape of a Chakra trace's network, such as 4x2."),
    ),
    suffix=SUFFIX,
    write=write,
)
