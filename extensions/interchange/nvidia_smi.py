"""The matrix that ``nvidia-smi topo -m`` prints: GPUs and NICs of a server, and what is between them."""

from __future__ import annotations

import re

from ringlight.extensions.interchange.servers import ReportedServer
from ringlight.extensions.interchange.slurm_topology import TopologyFileError

#: What is between two devices, from near to far, as the legend explains it.
_WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_DEVICE = re.compile(r"GPU\d+|NIC\d+|mlx\d+_\d+")


def read_matrix(text: str, file: str) -> ReportedServer:
    """Return the server that a matrix describes; it has no rates. Raises TopologyFileError."""
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    start = next((n for n, line in enumerate(lines) if "GPU0" in line.split()), None)
    if start is None:
        raise TopologyFileError(f"{file}: there is no line of columns, from GPU0 on")
    columns = [word for word in lines[start].split() if _DEVICE.fullmatch(word)]
    rows: dict[str, tuple[int, list[str]]] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        if words and words[0] in columns:
            if words[0] in rows:
                raise TopologyFileError(
                    f"{file}: line {number}: {words[0]}: given twice"
                )
            rows[words[0]] = number, words[1 : len(columns) + 1]
    for name in columns:
        if name not in rows:
            raise TopologyFileError(f"{file}: {name}: it has a column and no line")
    gpus = [name for name in columns if name.startswith("GPU")]
    nics = [name for name in columns if name not in gpus]
    if not nics:
        raise TopologyFileError(
            f"{file}: line {start + 1}: there is no NIC beside GPUs"
        )
    steps = {}
    for gpu in gpus:
        number, cells = rows[gpu]
        where = f"{file}: line {number}: {gpu}"
        if len(cells) < len(columns):
            few = f"{len(cells)} cells for {len(columns)} columns"
            raise TopologyFileError(f"{where}: {few}")
        for name, cell in zip(columns, cells, strict=True):
            if name in nics:
                steps[gpu, name] = _steps(f"{where}, {name}", cell)
    models = dict.fromkeys(gpus, "")
    return ReportedServer(models, dict.fromkeys(nics), steps)


def _steps(where: str, cell: str) -> int:
    if cell not in _WAYS:
        what = f"{cell!r:.40} is none of {', '.join(_WAYS)}"
        raise TopologyFileError(f"{where}: {what}")
    return _WAYS.index(cell)
