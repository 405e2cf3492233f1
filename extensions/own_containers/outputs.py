"""Read the output of users' containers, as a run folder keeps it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Files of a folder that are read at most, and what is read of each: bytes and lines at its end.
_MOST_FILES, _MOST_BYTES, _MOST_LINES = 64, 4096, 12
_NAME = re.compile(r"(?P<job>.+)-(?P<rank>\d+)\.(?P<stream>stdout|stderr)\.txt")
#: What no page shows: control characters, but for tabs and ends of lines.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Written:
    """Output of a rank of a job to a stream, in a run.

    ``path``: the file in the run folder. ``size``: its size in bytes. ``lines``: the lines at its end.
    """

    run: str
    job: str
    rank: int
    stream: str
    path: str
    size: int
    lines: Sequence[str]


def outputs(folder: Path) -> list[Written]:
    """Return output files by run, job and rank; empty streams are left out. Raises OSError."""
    files = []
    for root in sorted(folder.glob("logs/*/output")):
        for file in root.rglob("*.txt"):
            name = _NAME.fullmatch(file.name)
            if (
                name is not None
                and not file.is_symlink()
                and file.is_file()
                and file.stat().st_size
            ):
                run = str(file.parent.relative_to(root))
                files.append(
                    (run, name["job"], int(name["rank"]), name["stream"], file)
                )
    files.sort(key=lambda entry: (*entry[:3], entry[3] == "stderr"))
    return [
        Written(
            run,
            job,
            rank,
            stream,
            str(file.relative_to(folder)),
            file.stat().st_size,
            _end(file),
        )
        for run, job, rank, stream, file in files[:_MOST_FILES]
    ]


def _end(file: Path) -> list[str]:
    """Return the last lines of a file."""
    with file.open("rb") as opened:
        cut = max(0, os.fstat(opened.fileno()).st_size - _MOST_BYTES)
        opened.seek(cut)
        lines = opened.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    # The first line of a cut file is not whole.
    lines = lines[1:] if cut and len(lines) > 1 else lines
    return [
        _CONTROL.sub("\N{REPLACEMENT CHARACTER}", line) for line in lines[-_MOST_LINES:]
    ]
