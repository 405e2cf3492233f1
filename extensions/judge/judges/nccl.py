"""Tables of nccl-tests that others measured on their clusters.

Each time follows from the stated hardware by :mod:`ringlight.extensions.servers.model`, with one set of
constants for all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import mean, median

from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)
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

_CASES, _CLUSTERS = "nccl/cases.csv", "nccl/clusters.csv"
#: Sizes that count as large. Six rows of 128 MB, just below 128 MiB, are among them.
LARGE_BYTES = 120 << 20
#: Sizes of whole curves.
CURVE_BYTES = 8 << 10, 8 << 30
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

#: The largest difference at the largest size, per cent, by group; 15 of others.
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
    size, servers = int(case["size_bytes"]), case["nodes"]
    predicted = predict_time(
        cluster,
        size,
        case["collective"],  # type: ignore[arg-type]
        stated["algorithm"] or None,  # type: ignore[arg-type]
    )
    where = f", servers: {servers}" if servers else ""
    name = f"{size:,} B{where}, {predicted.algorithm} {predicted.protocol}"
    seconds = launched_s(predicted.seconds, int(stated["thread_gpus"] or 1))
    return Row(case["table"], name, 1e6 * seconds, "µs")


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
    yield from _spread("rings of A100 and H100, 120 MiB and more", large, 3, 8)
    yield from _spread("whole curves of A100 and H100", _curve(of("line")), 15, 50)
    yield from _spread("whole curves of all", _curve(of("complete")), 15, 50)
    for table, group_lines in groupby(comparisons, lambda line: line.table):
        groups = stated[table]["groups"].split()
        if "negative" in groups:
            continue
        last = max(group_lines, key=_size)
        limit = next((_LIMITS[group] for group in groups if group in _LIMITS), 15)
        error = abs(last.difference_percent) if "complete" in groups else None
        yield Claim(f"{table}, largest size", error, limit)
    yield Claim("all-to-all on a cluster that is set up well", None, 10)
    negative = of("negative")
    missed = {line.table for line in negative} - {
        line.table
        for line in negative
        if _size(line) >= LARGE_BYTES and line.predicted < FLAG * line.published
    }
    yield Claim("misconfigured clusters without a flag", len(missed), 0, "tables")


def _size(line: Comparison) -> int:
    return int(line.case.split(" B")[0].replace(",", ""))


def _curve(lines: Iterable[Comparison]) -> list[Comparison]:
    first, last = CURVE_BYTES
    return [line for line in lines if first <= _size(line) <= last]


def _spread(
    text: str, lines: Iterable[Comparison], middle: float, worst: float
) -> Iterator[Claim]:
    errors = [abs(line.difference_percent) for line in lines]
    yield Claim(f"{text}: median", median(errors), middle)
    yield Claim(f"{text}: worst", max(errors), worst)


JUDGE = Judge(
    name="nccl",
    title="Collectives of NCCL on 24 clusters",
    source="issues and pages named in `stated/nccl/hardware.csv`",
    inputs=(_CASES, _CLUSTERS),
    outcomes=tuple(f"nccl/{table}.csv" for table in _TABLES),
    needs={
        "usable rates": f"NVLink as NCCL plans with it ({LIBRARY}), NICs 0.96 of the line rate by its maintainers",
        "latencies and protocols": "NCCL's own constants, of the same version for all tables",
        "rings": "channels striped over NICs, chunks passed on in slices",
        "trees": "double binary trees between servers, chains inside",
        "NVLS": "sums in the NVLink switch of up to 32 heads, trees between servers",
        "small messages": "4.2 µs of the host for each GPU that one thread launches on (NVIDIA/nccl-tests#123), "
        "if a table's command is known: Azure's script runs `-g 8`, and `-g 4` on GB200",
        "RoCE": "headers of each packet; 1,024 bytes a packet in the all-gather, which was run before MTU 9000",
        "evidence": "no constant was set to a published time. But some rules were added after the differences "
        "without them had been seen: the stages of NVLS, the launches, RoCE's headers, and 0.85 of the rate of "
        "trees with one GPU a server. Sources state them; the last makes its only table worse",
    },
    predict=predict,
    compare=compare,
)
