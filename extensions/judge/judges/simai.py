"""SimAI's shares of bus bandwidth by size and number of GPUs.

The table names no GPU, NIC, algorithm or protocol, and does not define the whole of a share. Taken here:
servers of eight H100 with eight NICs of 400 Gbit/s, a ring with NCCL's protocol for large messages (an
all-to-all in ``ata``), and the line rate of the busy link as the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)
from ringlight.extensions.servers.hardware import GPUS, GpuCluster, Nic, Server
from ringlight.extensions.servers.model import bus_bandwidth_bps
from ringlight.extensions.servers.model import predict as predict_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CASES, _SHARES = "simai/cases.csv", "simai/busbw_ratio.csv"
#: Rows beyond look interpolated.
MOST_GPUS = 128
_SERVER = Server(GPUS["h100"], 8, (Nic(400e9),) * 8)
_REACH_PERCENT = 10


def predict(read: ReadTable) -> list[Row]:
    """Return the share of each table, size and number of GPUs, up to 128."""
    return [
        Row(case["table"], _case(case), _share(case), "share")
        for case in read(_CASES)
        if int(case["gpus"]) <= MOST_GPUS
    ]


def _case(case: dict[str, str]) -> str:
    return f"{case['gpus']} GPUs, {int(case['size_bytes']) >> 20} MiB"


def _share(case: dict[str, str]) -> float:
    cluster = GpuCluster(_SERVER, int(case["nodes"]))
    size, ranks = int(case["size_bytes"]), cluster.ranks
    line_bps = _SERVER.gpu.line_bps
    if case["table"] == "ata":
        predicted = predict_time(cluster, size, "all-to-all")
        if cluster.servers > 1:
            # The bus bandwidth that NICs at line rate leave each GPU.
            leaving = (ranks - _SERVER.gpus) / (ranks - 1)
            line_bps = _SERVER.nics[0].line_bps / leaving
        return (
            bus_bandwidth_bps("all-to-all", ranks, size, predicted.seconds) / line_bps
        )
    if case["table"] == "nic" and cluster.servers > 1:
        line_bps = sum(nic.line_bps for nic in _SERVER.nics)
    predicted = predict_time(cluster, size, "all-reduce", "ring", "simple")
    return bus_bandwidth_bps("all-reduce", ranks, size, predicted.seconds) / line_bps


def compare(rows: Sequence[Row], read: ReadTable) -> Judgement:
    """Return all shares beside the published ones."""
    shares = read(_SHARES)
    published = {
        (row["table"], _case(row)): float(row["share_of_bus_bandwidth"])
        for row in shares
    }
    comparisons = tuple(
        Comparison(
            row.table, row.case, row.value, published[row.table, row.case], row.unit
        )
        for row in rows
    )
    known = {(row.table, row.case) for row in rows}
    missing = sum(
        (row["table"], _case(row)) not in known
        for row in shares
        if int(row["gpus"]) <= MOST_GPUS
    )
    return Judgement(comparisons, tuple(_claims(comparisons, missing)))


def _claims(comparisons: Sequence[Comparison], missing: int) -> Iterator[Claim]:
    errors = [abs(line.difference_percent) for line in comparisons]
    yield Claim("shares of up to 128 GPUs: median", median(errors), _REACH_PERCENT)
    yield Claim("published shares without a prediction", missing, 0, "shares")


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """Return the shares by size, a chart for each table and a colour for each number of GPUs."""
    from ringlight.extensions.judge.pictures import shares

    def mebibytes(line: Comparison) -> float:
        return float(line.case.split(", ")[1].split()[0])

    def gpus(line: Comparison) -> str:
        return line.case.split(", ")[0]

    return shares(comparisons, mebibytes, gpus, ("size, MiB", "share"))


JUDGE = Judge(
    name="simai",
    title="Shares of bus bandwidth up to 128 GPUs",
    source="aliyun/SimAI @cef83f9ddd96, `astra-sim-alibabacloud/inputs/ratio/`",
    inputs=(_CASES,),
    outcomes=(_SHARES,),
    needs={
        "not stated": "GPU, NIC, algorithm, protocol and the whole of a share; "
        "eight H100 and eight NICs of 400 Gbit/s a server, rings, and line rates are taken",
        "latencies": "NCCL's own constants of its protocol for large messages, the same in all rows",
        "evidence": "the claim is on the median: single shares differ by up to four fifths, most below 256 MiB. "
        "33 rows of more GPUs, which look interpolated, are not predicted",
    },
    predict=predict,
    compare=compare,
    draw=draw,
    caption="Share of bus bandwidth by size: predicted as lines, published as dots.",
)
