"""A workload into files, which are read again before that counts as done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringlight.workloads.formats.reading import read_any, written_formats
from ringlight.workloads.graph import Workload
from ringlight.workloads.summary import summary


def write_any(workload: Workload, path: Path, name: str = "") -> list[Path]:
    """Write the workload in the format of a name, by default the one with whose suffix the path ends.

    Return the files. Raises ValueError, in one line, also when what is read from them is not what was to be
    written.
    """
    known = written_formats()
    if not name:
        name = next(
            (form.name for form in known.values() if path.suffix == form.suffix), ""
        )
    if name not in known:
        ends = " or ".join(form.suffix for form in known.values())
        raise ValueError(
            f"{path}: it should end with {ends}, or say its format: {', '.join(known)}"
        )
    write = known[name].write
    assert write is not None
    files = write(workload, path)
    # The others of its files are found beside it.
    _check_read(workload, read_any(files[:1]), path)
    return files


def _check_read(workload: Workload, read: Workload, path: Path) -> None:
    """Raise ValueError if two workloads differ in their summaries."""
    written, reread = summary(workload), summary(read)
    for what in ("ranks", "operations", "kinds", "collectives"):
        if getattr(written, what) != getattr(reread, what):
            raise ValueError(
                f"{path}: what was written is not what is read from it: its {what} differ"
            )
    sent, received = (
        {key: part.sent for key, part in digest.traffic.items()}
        for digest in (written, reread)
    )
    if sent != received:
        raise ValueError(
            f"{path}: what was written is not what is read from it: its bytes differ"
        )
    times, again = (
        np.append(digest.seconds, digest.flops) for digest in (written, reread)
    )
    if not np.allclose(times, again, rtol=1e-9, atol=0, equal_nan=True):
        raise ValueError(
            f"{path}: what was written is not what is read from it: its times differ"
        )
