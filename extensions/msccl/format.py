"""MSCCL files as a format of algorithms of collectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.workloads.formats.contract import Format

if TYPE_CHECKING:
    from ringlight.workloads.graph import Collective


def is_algorithm(path: Path, beginning: bytes) -> bool:
    """Return whether a file is called as such a file, or its content begins as one."""
    text = beginning.decode("utf-8-sig", errors="replace").lstrip()
    return bool(text) and (path.suffix == ".xml" or text.startswith(("<algo", "<?xml")))


def read(path: Path) -> Collective:
    """Return the algorithm of a file. Raises ValueError, one line naming the file and its line."""
    from ringlight.extensions.msccl.reader import read_msccl

    algorithm = read_msccl(path)
    if algorithm.kind == "all-to-all-v":
        raise ValueError(
            f"{path}: the parts of an all-to-all-v differ, and an MSCCL file has equal chunks"
        )
    return algorithm.collective()


MSCCL = Format(
    name="msccl",
    title="MSCCL",
    files="MSCCL files (XML)",
    recognises=is_algorithm,
    algorithm=read,
)
