"""The contract of a file format, be it the core's or an extension's.

What reads a file is imported when it is read: commands ask for formats and their settings as they start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ringlight.workloads.graph import Collective, Workload

#: Bytes of a file by which formats are told from each other.
BEGINNING = 4096


@dataclass(frozen=True)
class Setting:
    """Setting that a file may leave open: a key of a scenario, and an option of commands that read files.

    ``kind`` of its value: a whole number from 1, sizes (``4x2`` as an option), or a file.
    """

    name: str
    kind: Literal["count", "sizes", "file"]
    help: str


@dataclass(frozen=True)
class Options:
    """Number of ranks of some files and their ``settings``, by name: all that is said besides their names.

    ``notice``: called with a line about what was read but not used.
    """

    ranks: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notice: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Format:
    """A format of files, ``title`` in messages ("traffic matrix"); ``files`` says in a list which these are.

    ``recognises``: whether a path is of this format, given the beginning of its file, b"" if it is no file.
    A format has one of ``read``, which returns the workload in some files, and ``algorithm``, which returns
    the collective in one. ``read_also``: all files that are read where some are named; without it, one file
    is one workload. ``settings``: those that files of this format may leave open. ``write`` writes a workload
    and returns its files; their path ends with ``suffix`` unless ``name`` says the format. All of these raise
    ValueError, one line with the file's name.
    """

    name: str
    title: str
    files: str
    recognises: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path], Options], Workload] | None = None
    algorithm: Callable[[Path], Collective] | None = None
    read_also: Callable[[Sequence[Path], Options], list[Path]] | None = None
    settings: tuple[Setting, ...] = ()
    suffix: str = ""
    write: Callable[[Workload, Path], list[Path]] | None = None
