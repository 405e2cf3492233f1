"""Tables of nccl-tests that others measured on their clusters.

Each time follows from the stated hardware by :mod:`ringlight.extensions.servers.model`, with one set of
constants for all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import mean, median
from typing import TYPE_CHECKING

from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)
from ringlight.extensions.judge.nccl_reasons import REASONS
from ringlight.extensions.judge.reading import STATED, read_table
from ringlight.extensions.servers.hardware import (
    GPUS,
    LARGEST_MTU_BYTES,
    LIBRARY,
    GpuCluster,
    Nic,
    Server,
)
from ringlight.extensions.servers.model import launched_s
from ringlight.extensions.servers.model import predict as predict_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CASES, _CLUSTERS = "nccl/cases.csv", "nccl/clusters.csv"
#: The smallest size that counts as large.
LARGE_BYTES = 128 << 20
#: Six rows of 128 MB are from here on.
NEARLY_LARGE_BYTES = 121 << 20
#: A published bus bandwidth below this part of the hardware's is flagged: the model's own reach is 15 %.
FLAG = 0.85

_TABLES = (
    *("gb10_2x1_200g_all_reduce", "gb10_2x1_200g_all_gather"),
    *("a100_3x8_4hdr_all_reduce", "a100_p4d_scaling_issue527_all_reduce"),
    *("azure_a100_8gpu_all_reduce", "azure_gb200_4gpu_ring_all_reduce"),
    *("azure_h200_8gpu_nvls_all_reduce", "h100_1x8_nvls_all_reduce"),
    *("h100_2x1_tree_4nic_all_reduce", "h100_2x4_ring_4nic200_all_reduce"),
    *("h100_2x8_8ndr_nvlstree_all_reduce", "h100_2x8_issue309b_all_reduce"),
    *("h100_2x8_default_issue290_all_reduce", "h100_2x8_ring_issue290_all_reduce"),
    *("h100_8x8_issue309_all_reduce", "h100_8x8_ndr_coreweave_all_reduce"),
    *("h20_1x8_mooncake3484_all_reduce", "h20_2x8_16ndr_issue1244_all_reduce"),
    *("h800_2x4_ring_crossnic0_all_reduce", "gb200_1rack_72_all_reduce"),
    *("gb200_2rack_144_all_reduce", "gb200_20rack_1440_all_reduce"),
    *("v100_8x8_ib100_issue78_all_reduce", "v100_8x8_ib100_issue78_alltoall"),
)

#: The largest difference at the largest size, per cent, by group; 15 of others. Of a small table only sizes up to
#: 64 KiB are known, which the limit of whole curves covers.
_LIMITS = {"ring": 8, "sums": 15, "racks": 25, "gather": 10, "small": 50}

#: The standing and the groups of tables, which no outcome decides.
_Stated = dict[str, dict[str, str]]


def cluster_of(stated: dict[str, str], servers: str) -> GpuCluster:
    """Return the cluster of a table. ``servers``: their number in this row, empty for the table's."""
    kind = "infiniband" if stated["nic_kind"] == "efa" else stated["nic_kind"]
    mtu_bytes = int(stated["mtu"] or LARGEST_MTU_BYTES)
    nic = Nic(float(stated["nic_gbitps"]) * 1e9, kind, mtu_bytes=mtu_bytes)
    gpu = GPUS[stated["gpu"]]
    server = Server(gpu, int(stated["gpus"]), (nic,) * int(stated["nics"]))
    return GpuCluster(server, int(servers or stated["servers"]))


def predict(read: ReadTable) -> list[Row]:
    """Return the time of each size of each table, microseconds."""
    clusters = {row["table"]: row for row in read(_CLUSTERS)}
    return [_predicted(clusters[case["table"]], case) for case in read(_CASES)]


def _predicted(stated: dict[str, str], case: dict[str, str]) -> Row:
    cluster = cluster_of(stated, case["nodes"])
    if cluster.ranks != int(case["ranks"]):
        raise ValueError(f"{case['table']}: {cluster.ranks} GPUs, not {case['ranks']}")
    predicted = predict_time(
        cluster,
        int(case["size_bytes"]),
        case["collective"],  # type: ignore[arg-type]
        stated["algorithm"] or None,  # type: ignore[arg-type]
        nvls=stated["nvls"] != "off",
    )
    name = f"{_size_and_servers(case)} {predicted.algorithm} {predicted.protocol}"
    seconds = launched_s(predicted.seconds, int(stated["thread_gpus"] or 1))
    return Row(case["table"], name, 1e6 * seconds, "µs")


def _size_and_servers(row: dict[str, str]) -> str:
    """Return the start of a case: size, and number of servers if it varies within the table."""
    servers = f" servers: {row['nodes']}," if row.get("nodes") else ""
    return f"{int(row['size_bytes']):,} B,{servers}"


# Comparison


def compare(rows: Sequence[Row], read: ReadTable) -> Judgement:
    """Return all times beside the published ones, and the claims on groups of tables."""
    stated = {row["table"]: row for row in read_table(STATED / _CLUSTERS)}
    comparisons = tuple(_comparisons(rows, read, stated))
    return Judgement(comparisons, tuple(_claims(comparisons, stated)))


def _comparisons(
    rows: Sequence[Row], read: ReadTable, stated: _Stated
) -> Iterator[Comparison]:
    for table, group in groupby(rows, lambda row: row.table):
        published = read(f"nccl/{table}.csv")
        for row, outcome in zip(group, published, strict=True):
            if not row.case.startswith(_size_and_servers(outcome)):
                raise ValueError(f"{table}: {row.case} is not the published row")
            measured = _measured_us(outcome)
            note = stated[table]["standing"]
            if "negative" in stated[table]["groups"]:
                note = _flag(row.value / measured)
            yield Comparison(table, row.case, row.value, measured, "µs", None, note)


def _measured_us(outcome: dict[str, str]) -> float:
    """Return the published time, the mean of in place and out of place, microseconds."""
    names = ("time_out_of_place_us", "time_in_place_us", "time_in_place_derived_us")
    return mean(float(outcome[name]) for name in names if outcome.get(name))


def _flag(share: float) -> str:
    """Return what is said of a rate that is this part of the hardware's."""
    below = "flagged, below its hardware: " if share < FLAG else ""
    return f"{below}{share:.0%} of the rate"


def _claims(comparisons: Sequence[Comparison], stated: _Stated) -> Iterator[Claim]:
    def of(*groups: str) -> list[Comparison]:
        return [
            line
            for line in comparisons
            if set(groups) <= set(stated[line.table]["groups"].split())
        ]

    large = [line for line in of("ring") if _size(line) >= LARGE_BYTES]
    yield from _spread("rings of A100, H100 and H800 from 128 MiB on", large, 3, 8)
    nearly = [line for line in of("ring") if _size(line) >= NEARLY_LARGE_BYTES]
    yield from _spread("rings of A100, H100 and H800 from 122 MiB on", nearly, 3, 8)
    yield from _spread("whole curves of A100, H100 and H800", of("line"), 15, 50)
    yield from _spread(
        "whole curves of all tables with stated hardware", of("complete"), 15, 50
    )
    for table, group_lines in groupby(comparisons, lambda line: line.table):
        groups = stated[table]["groups"].split()
        if "negative" in groups:
            continue
        lines = list(group_lines)
        largest = max(map(_size, lines))
        error = max(
            abs(line.difference_percent) for line in lines if _size(line) == largest
        )
        limit = next((_LIMITS[group] for group in groups if group in _LIMITS), 15)
        claim = f"{table}, largest size ({largest:,} B)"
        yield Claim(claim, error if "complete" in groups else None, limit)
    yield Claim("all-to-all on a cluster that is set up well", None, 10)
    negative = {line.table for line in of("negative")}
    missed = negative - _flagged(of("negative"))
    yield Claim("misconfigured clusters without a flag", len(missed), 0, "tables")
    yield Claim(
        "sound clusters with a flag", len(_flagged(of("complete"))), 0, "tables"
    )


def _flagged(lines: Iterable[Comparison]) -> set[str]:
    """Return the tables in which a large size is slower than its hardware, by the model."""
    return {
        line.table
        for line in lines
        if _size(line) >= LARGE_BYTES and line.predicted < FLAG * line.published
    }


def _size(line: Comparison) -> int:
    return int(line.case.split(" B")[0].replace(",", ""))


def _spread(
    text: str, lines: Sequence[Comparison], middle: float, worst: float
) -> Iterator[Claim]:
    errors = [abs(line.difference_percent) for line in lines]
    counted = f"{text}, {len(lines)} rows"
    yield Claim(f"{counted}: median", median(errors), middle)
    yield Claim(f"{counted}: worst", max(errors), worst)


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """Return a small chart for each table: times by size, or by servers if they vary."""
    from ringlight.extensions.judge.pictures import curves

    by_servers = "servers: "

    def named(line: Comparison) -> Comparison:
        name = line.table.removesuffix("_all_reduce")
        axis = ", by servers" if by_servers in line.case else ""
        return replace(line, table=name + axis)

    def bytes_or_servers(line: Comparison) -> float:
        _, key, servers = line.case.partition(by_servers)
        return float(servers.split(",")[0]) if key else _size(line)

    return curves(
        [*map(named, comparisons)], bytes_or_servers, "size, bytes", "time, µs"
    )


JUDGE = Judge(
    name="nccl",
    title="24 tables of NCCL's collectives",
    source="issues and pages named in `stated/nccl/hardware.csv`",
    inputs=(_CASES, _CLUSTERS),
    outcomes=tuple(f"nccl/{table}.csv" for table in _TABLES),
    needs={
        "usable rates": f"NVLink as NCCL plans with it ({LIBRARY}), NICs 0.96 of the line rate by its maintainers",
        "latencies and protocols": "NCCL's own constants, of the same version for all tables",
        "rings": "channels striped over NICs, chunks passed on in slices",
        "trees": "double binary trees between servers, chains inside",
        "NVLS": "sums in the NVLink switch of up to 32 heads, trees between servers. The script of the 20 racks "
        "switches them off (`NCCL_NVLS_ENABLE=0`, coreweave/nccl-tests @5ceab10); those of fewer racks were run "
        "two months before, with them",
        "small messages": "4.2 µs of the host for each GPU that one thread launches on, if a table's command is "
        "known: Azure's script runs `-g 8`, and `-g 4` on GB200. The time is of a DGX A100 "
        "(NVIDIA/nccl-tests#123); that launches cause it is our reading",
        "RoCE": "headers of each packet; 1,024 bytes a packet in the all-gather, which was run before MTU 9000",
        "evidence": "no constant was set to a published time. But some rules were added after the differences "
        "without them had been seen: the stages of NVLS, the launches, RoCE's headers, and the 20 racks without "
        "NVLS. Another is 0.85 of the rate of trees with one GPU a server, which makes its only table worse. "
        "Sources state them, except that launches cause the small times: without this rule the median of all "
        "whole curves would be outside",
        "large": "from 128 MiB on. The six rows of the table with 3×8 A100 (122 to 127 MiB) are just below, and "
        "have a claim with them",
        "limit of 50 % of `gb10_2x1_200g_all_reduce`": "that of whole curves, as only sizes up to 64 KiB are known",
        "flags": f"sizes from 128 MiB on that take longer than the predicted time over {FLAG}",
    },
    predict=predict,
    compare=compare,
    reasons=REASONS,
    draw=draw,
    caption="Time by size: predicted as a line, published as dots. A chart for each table, of all-reduces "
    "if nothing else is named.",
)
