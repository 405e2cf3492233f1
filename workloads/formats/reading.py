"""Workloads, and algorithms of collectives, from files of whatever format."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ringlight.fabric.extension import loaded
from ringlight.workloads.formats.contract import BEGINNING, Format, Options, Setting
from ringlight.workloads.formats.files import read_bytes, write_bytes

if TYPE_CHECKING:
    from ringlight.workloads.graph import Collective, Workload

_NUMBER = re.compile(r"\s*\d+\s*(,|$)")


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats, in the order in which a file is tried for them."""
    return (*loaded("formats"), PACKED, MATRIX)


@cache
def settings() -> tuple[Setting, ...]:
    """Return what files of any format may leave open, each name once."""
    return tuple(
        {
            setting.name: setting for form in formats() for setting in form.settings
        }.values()
    )


def written_formats() -> dict[str, Format]:
    """Return the formats that a workload can be written in, by name."""
    return {form.name: form for form in formats() if form.write is not None}


def read_any(paths: Sequence[Path], options: Options = Options()) -> Workload:
    """Return the workload in these files.

    Raises ValueError, in one line, when no format fits, the files are not one workload, or a setting is not
    for their format.
    """
    form = _format_of(paths, options)
    assert form.read is not None
    return form.read(paths, options)


def files_read(paths: Sequence[Path], options: Options = Options()) -> list[Path]:
    """Return every file that :func:`read_any` reads for these, reading only their beginnings.

    Raises ValueError as :func:`read_any`.
    """
    form = _format_of(paths, options)
    return list(paths) if form.read_also is None else form.read_also(paths, options)


def read_algorithm(path: Path) -> Collective:
    """Return the algorithm of a collective in a file.

    Raises ValueError, in one line, when no format of algorithms fits, or the algorithm is wrong.
    """
    form = _recognised(path)
    if form is None or form.algorithm is None:
        known = [form.files for form in formats() if form.algorithm is not None]
        there = (
            f"there are {_listed(known)}"
            if known
            else "no format of algorithms is installed"
        )
        raise ValueError(f"{path}: this is no algorithm; {there}")
    return form.algorithm(path)


def kinds_of_files() -> str:
    """Return which files there are to read, as a list in a sentence."""
    return _listed([form.files for form in formats() if form.read is not None])


def _format_of(paths: Sequence[Path], options: Options) -> Format:
    """Return the format of files that are one workload. Raises ValueError as :func:`read_any`."""
    if not paths:
        raise ValueError("there is no file to read")
    form = next(filter(None, map(_recognised, paths)), None)
    if form is None:
        raise ValueError(f"{paths[0]}: no format fits; there are {kinds_of_files()}")
    if form.read is None:
        raise ValueError(
            f"{paths[0]}: this is an algorithm ({form.title}), no workload; run it in a scenario as "
            "workload: {collective: {file: FILE}}"
        )
    if len(paths) > 1 and form.read_also is None:
        raise ValueError(f"{paths[1]}: {paths[0]} is a {form.title}, which is one file")
    taken = {setting.name for setting in form.settings}
    for name, value in options.settings.items():
        if value and name not in taken:
            raise ValueError(
                f"{paths[0]}: a {form.title} has no use for {name.replace('_', ' ')}"
            )
    return form


def _recognised(path: Path) -> Format | None:
    """Return the format of a path. Raises ValueError if there is no such file, and it names no others."""
    is_file = os.path.isfile(path)
    beginning = read_bytes(path, BEGINNING) if is_file else b""
    form = next((form for form in formats() if form.recognises(path, beginning)), None)
    if form is None and not is_file:
        read_bytes(path, 0)
    return form


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _is_matrix(path: Path, beginning: bytes) -> bool:
    """Return whether the first line that is no remark begins with a number of a row."""
    if path.suffix == ".csv":
        return os.path.exists(path)
    text = beginning.decode("utf-8-sig", errors="replace")
    lines = (
        line
        for line in text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    )
    return bool(_NUMBER.match(next(lines, "")))


def _matrix(paths: Sequence[Path], options: Options) -> Workload:
    from ringlight.workloads.formats import matrix

    return matrix.read(paths[0])


def _is_packed(path: Path, beginning: bytes) -> bool:
    from ringlight.workloads.packed import MAGIC

    return beginning.startswith(MAGIC)


def _unpacked(paths: Sequence[Path], options: Options) -> Workload:
    from ringlight.workloads.packed import unpack

    try:
        return unpack(read_bytes(paths[0]))
    except ValueError as error:
        raise ValueError(f"{paths[0]}: {error}") from None


def _write_packed(workload: Workload, path: Path) -> list[Path]:
    from ringlight.workloads.packed import pack

    data = pack(workload)
    write_bytes(path, data)
    if read_bytes(path) != data:
        raise ValueError(f"{path}: what was written is not what is read from it")
    return [path]


PACKED = Format(
    name="packed",
    title="packed workload",
    files="packed workloads",
    recognises=_is_packed,
    read=_unpacked,
    suffix=".rlw",
    write=_write_packed,
)
MATRIX = Format(
    name="matrix",
    title="traffic matrix",
    files="traffic matrices (CSV)",
    recognises=_is_matrix,
    read=_matrix,
)
