"""The matrix that ``nvidia-smi topo -m`` prints: GPUs and NICs of a server, and what is between them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ringlight.extensions.interchange.servers import ReportedServer
from ringlight.extensions.interchange.slurm_topology import TopologyFileError

#: What is between two devices, with its distance from near to far, as the legend explains it. Drivers before
#: 390 print SOC for SYS.
_WAYS = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4, "SOC": 4}
#: Codes that underline the first line; texts copied to issues and logs often have lost the escape character.
_ESCAPES = re.compile(r"(?:\x1b|\^\[|\ufffd)?\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+")
#: A column of a GPU or NIC. Drivers before 470 print NICs by name, such as mlx5_0, later ones as NIC0.
_DEVICE = re.compile(r"GPU\d+|NIC\d+|[a-z][a-z0-9]*_[a-z0-9_]+")
_MOST_DEVICES = 1024
_LEGEND = re.compile(r"\s*(NIC\d+): (\S+)\s*")


def has_matrix(text: str) -> bool:
    """Return whether a text has the first line of a matrix."""
    return any(_columns(line) for line in _lines(text))


def read_matrix(text: str, file: str) -> ReportedServer:
    """Return the server that a matrix describes; it has no rates. Raises TopologyFileError."""
    lines = _lines(text)
    start = next((n for n, line in enumerate(lines) if _columns(line)), None)
    if start is None:
        raise TopologyFileError(f"{file}: there is no line of columns, such as GPU0")
    columns = _columns(lines[start])
    where = f"{file}: line {start + 1}"
    if len(columns) > _MOST_DEVICES:
        raise TopologyFileError(f"{where}: more than {_MOST_DEVICES} GPUs and NICs")
    if len(set(columns)) < len(columns):
        raise TopologyFileError(f"{where}: a GPU or NIC has two columns")
    rows = _rows(file, columns, lines, start + 1)
    gpus = [name for name in columns if _GPU.fullmatch(name)]
    legend = (match for match in map(_LEGEND.fullmatch, lines) if match)
    named = {match[1]: match[2] for match in legend}
    nics = {name: named.get(name, name) for name in columns if name not in gpus}
    if len(set(nics.values())) < len(nics):
        raise TopologyFileError(f"{file}: NIC Legend: two NICs have one name")
    steps = {}
    for gpu in gpus:
        if gpu not in rows:
            raise TopologyFileError(f"{file}: {gpu}: it has a column and no line")
        number, cells = rows[gpu]
        where = f"{file}: line {number}: {gpu}"
        if len(cells) < len(columns):
            few = f"{len(cells)} cells for {len(columns)} columns"
            raise TopologyFileError(f"{where}: {few}")
        for name, cell in zip(columns, cells, strict=True):
            if name in nics:
                steps[gpu, nics[name]] = _steps(f"{where}, {name}", cell)
    return ReportedServer(dict.fromkeys(gpus, ""), dict.fromkeys(nics.values()), steps)


def _lines(text: str) -> list[str]:
    return _ESCAPES.sub("", text).splitlines()


def _columns(line: str) -> list[str]:
    """Return the devices of a matrix's first line; none for another line."""
    words = line.split()
    end = words.index("CPU") if "CPU" in words else len(words)
    devices = words[:end]
    if not devices or not _GPU.fullmatch(devices[0]) or len(words) < 2:
        return []
    return devices if all(map(_DEVICE.fullmatch, devices)) else []


def _rows(
    file: str, columns: Sequence[str], lines: Sequence[str], start: int
) -> dict[str, tuple[int, list[str]]]:
    """Return the number and the cells of each device's line. Raises TopologyFileError."""
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start:], start + 1):
        words = line.split()
        if not words or words[0] not in columns or words[0].endswith(":"):
            continue
        # Scripts print a matrix for each mode of nvidia-smi topo, one after the other.
        if _columns(line):
            break
        if words[0] in rows:
            raise TopologyFileError(f"{file}: line {number}: {words[0]}: given twice")
        rows[words[0]] = number, words[1 : len(columns) + 1]
    return rows


def _steps(where: str, cell: str) -> int:
    if cell not in _WAYS:
        what = f"{cell!r:.40} is none of {', '.join(_WAYS)}"
        raise TopologyFileError(f"{where}: {what}")
    return _WAYS[cell]
