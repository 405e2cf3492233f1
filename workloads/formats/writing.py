"""A workload into files, which are read again before that counts as done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringlight.extensions.chakra.names import others_beside
from ringlight.extensions.chakra.reader import NODES_LIMIT
from ringlight.extensions.chakra.writer import write as write_chakra
from ringlight.workloads.formats.files import write_bytes
from ringlight.workloads.formats.reading import read_any
from ringlight.workloads.graph import Workload
from ringlight.workloads.packed import pack
from ringlight.workloads.summary import summary

#: Formats that hold all of a workload, with how their files end.
FORMATS = {"packed": ".rlw", "chakra": ".et"}


def write_any(workload: Workload, path: Path, form: str = "") -> list[Path]:
    """Write the workload in a format of ``FORMATS``, by default the one that the path's end names.

    Packed it is one file. As Chakra traces it is ``NAME.RANK.et`` for each rank, where ``path`` is
    ``NAME.et`` or ``NAME``, and a file of process groups. Return the files. Raises ValueError, in one line,
    also when what is read from them is not what was to be written.
    """
    if not form:
        form = next((name for name, end in FORMATS.items() if path.suffix == end), "")
    if form not in FORMATS:
        ends = " or ".join(FORMATS.values())
        raise ValueError(f"{path}: it should end with {ends}, or say its format: {', '.join(FORMATS)}")
    if form == "packed":
        data = pack(workload)
        write_bytes(path, data)
        if pack(read_any([path])) != data:
            raise ValueError(f"{path}: what was written is not what is read from it")
        return [path]
    path = path.with_suffix("") if path.suffix == FORMATS[form] else path
    files = _as_chakra(workload, path)
    _check_read(workload, read_any([files[0]]), path)
    return files


def _as_chakra(workload: Workload, path: Path) -> list[Path]:
    if workload.operations > NODES_LIMIT:
        raise ValueError(
            f"{path}: a Chakra trace may have {NODES_LIMIT} nodes, not {workload.operations}; "
            f"{FORMATS['packed']} files have no such limit"
        )
    stale = others_beside(path, workload.ranks)
    if stale:
        raise ValueError(f"{stale[0]}: it would be read with this trace; remove it, or write elsewhere")
    return write_chakra(workload, path)


def _check_read(workload: Workload, read: Workload, path: Path) -> None:
    """Raise ValueError if two workloads differ in their summaries."""
    written, reread = summary(workload), summary(read)
    for what in ("ranks", "operations", "kinds", "collectives"):
        if getattr(written, what) != getattr(reread, what):
            raise ValueError(f"{path}: what was written is not what is read from it: its {what} differ")
    sent, received = (
        {key: part.sent for key, part in digest.traffic.items()} for digest in (written, reread)
    )
    if sent != received:
        raise ValueError(f"{path}: what was written is not what is read from it: its bytes differ")
    times, again = (np.append(digest.seconds, digest.flops) for digest in (written, reread))
    if not np.allclose(times, again, rtol=1e-9, atol=0, equal_nan=True):
        raise ValueError(f"{path}: what was written is not what is read from it: its times differ")
