"""Find the files of a trace: NAME.RANK.et, and NAME.comm_group.json with its process groups."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

_NAME = re.compile(r"(.+)\.(\d{1,9})\.et")


def files_of(path: Path) -> list[Path]:
    """Return the files of a trace by rank. ``path``: one of them, their common NAME, or their directory.

    Raises ValueError when there are none, one is missing, or a directory has those of several traces.
    """
    if os.path.isdir(path):
        try:
            files = [file for file in path.iterdir() if _NAME.fullmatch(file.name)]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        names = sorted({name_of(file) for file in files})
        if len(names) > 1:
            raise ValueError(
                f"{path}: it has the traces {', '.join(names[:5])}; name one of them"
            )
    else:
        match = _NAME.fullmatch(path.name)
        name = match[1] if match else path.name
        files = [
            file
            for file in path.parent.glob(f"{glob.escape(name)}.*.et")
            if _is(file, name)
        ]
    if not files:
        raise ValueError(f"{path}: there are no files NAME.RANK.et")
    by_rank = {int(_NAME.fullmatch(path.name)[2]): path for path in files}  # type: ignore[index]
    missing = next((rank for rank in range(len(files)) if rank not in by_rank), None)
    if missing is not None:
        sibling = files[0].with_name(f"{name_of(files[0])}.{missing}.et")
        raise ValueError(
            f"{sibling}: it is missing, there are {len(files)} files of its trace"
        )
    return [by_rank[rank] for rank in range(len(files))]


def others_beside(path: Path, ranks: int) -> list[Path]:
    """Return files that would be read with a trace of so many ranks at ``path``.

    The trace is the one that ``writer.write`` writes there.
    """
    files = [
        file
        for file in path.parent.glob(f"{glob.escape(path.name)}.*.et")
        if _is(file, path.name)
    ]
    return sorted(file for file in files if int(_NAME.fullmatch(file.name)[2]) >= ranks)  # type: ignore[index]


def groups_beside(files: Sequence[Path]) -> Path | None:
    """Return the file of process groups next to the files of a trace; None if there is none."""
    beside = files[0].with_name(f"{name_of(files[0])}.comm_group.json")
    return beside if beside.exists() else None


def name_of(file: Path) -> str:
    """Return the common part of the names of a trace's files."""
    return _NAME.fullmatch(file.name)[1]  # type: ignore[index]


def _is(path: Path, name: str) -> bool:
    match = _NAME.fullmatch(path.name)
    return match is not None and match[1] == name
