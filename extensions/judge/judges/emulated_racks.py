"""Ratios of bus bandwidths on racks that are emulated in containers, beside those of measured tables.

An emulation is slower than reality by its scale, and its software has latencies of its own. So only ratios of
bandwidths are compared, and only those in which latency hardly counts, by the model of
:mod:`ringlight.extensions.servers.model` and before an outcome is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from statistics import mean

from ringlight.experiments.backends.protocol import Backend
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)
from ringlight.extensions.judge.judges.nccl import cluster_of
from ringlight.extensions.judge.rack_lab import Bandwidths, Rack, bandwidths, plan_of
from ringlight.extensions.judge.reading import STATED, table_reader
from ringlight.extensions.servers.hardware import GpuCluster
from ringlight.extensions.servers.model import bus_bandwidth_bps, predict
from ringlight.testbed.forkserver import forking
from ringlight.testbed.packages import check_packages
from ringlight.testbed.preloaded import lab_modules

_CASES, _CLUSTERS = "nccl/cases.csv", "nccl/clusters.csv"
#: Completely stated tables of a ring over two servers with rails, at most eight containers: there are two.
TABLES = ("h100_2x4_ring_4nic200_all_reduce", "h800_2x4_ring_crossnic0_all_reduce")
#: Latency may change a ratio by this part, by the model; beyond it no claim is made.
MOST_LATENCY = 0.05
#: The largest difference of a ratio, as either of two racks may be off by 5 %, the limit of a good emulation; and
#: of a link from its rate. Per cent.
REACH_PERCENT, LINK_PERCENT = 10.0, 10.0
#: A size at which bytes take all of the time.
_ENDLESS = 1 << 50
_LATENCY = "no claim, as latency counts"
_LINKS = "links"
_BETWEEN = "largest sizes, over {}"


def racks(read: ReadTable) -> list[Rack]:
    """Return the rack of each table, with the table's sizes."""
    clusters = {row["table"]: row for row in read(_CLUSTERS)}
    sizes: dict[str, list[int]] = {table: [] for table in TABLES}
    for case in read(_CASES):
        if case["table"] in sizes:
            sizes[case["table"]].append(int(case["size_bytes"]))
    return [
        Rack(table, cluster_of(clusters[table], ""), tuple(sorted(sizes[table])))
        for table in TABLES
    ]


def bytes_share(cluster: GpuCluster, size: int) -> float:
    """Return the part of a ring all-reduce's time that its bytes take, by the model."""
    seconds = [
        predict(cluster, each, "all-reduce", "ring").seconds
        for each in (size, _ENDLESS)
    ]
    return (size / seconds[0]) / (_ENDLESS / seconds[1])


@cache
def _pairs() -> Mapping[tuple[str, str], float]:
    """Return the ratios by table and case, with the factor by which latency changes each."""
    stated = racks(table_reader(STATED, (_CASES, _CLUSTERS)))
    first, *more = stated
    pairs = {}
    for rack in stated:
        *sizes, last = rack.sizes
        whole = bytes_share(rack.cluster, last)
        for size in sizes:
            pairs[rack.name, _case(size)] = bytes_share(rack.cluster, size) / whole
    whole = bytes_share(first.cluster, first.sizes[-1])
    for rack in more:
        share = bytes_share(rack.cluster, rack.sizes[-1])
        pairs[_BETWEEN.format(first.name), rack.name] = share / whole
    return pairs


def _case(size: int) -> str:
    return f"{size:,} B"


def ratios(
    stated: Sequence[Rack], bus: Mapping[str, Mapping[int, float]]
) -> Iterator[tuple[str, str, float]]:
    """Yield table, case and ratio: of each size over the largest, and between largest sizes of racks.

    ``bus``: bus bandwidth by rack and size, in any unit.
    """
    for rack in stated:
        *sizes, last = rack.sizes
        for size in sizes:
            yield rack.name, _case(size), bus[rack.name][size] / bus[rack.name][last]
    first, *more = stated
    whole = bus[first.name][first.sizes[-1]]
    for rack in more:
        between = _BETWEEN.format(first.name)
        yield between, rack.name, bus[rack.name][rack.sizes[-1]] / whole


def rows_of(stated: Sequence[Rack], results: Mapping[str, Bandwidths]) -> Iterator[Row]:
    """Yield a row for each ratio and for the slowest link of each rack."""
    bus = {name: result.bus_bps for name, result in results.items()}
    for table, case, ratio in ratios(stated, bus):
        yield Row(table, case, ratio, "ratio")
    for name, result in results.items():
        yield Row(_LINKS, name, result.links, "share")


def predict_on(backend: Backend, read: ReadTable, reporter: Reporter) -> list[Row]:
    """Return the ratios of all racks on a backend. Raises BackendError."""
    stated = racks(read)
    results = {rack.name: bandwidths(backend, rack, reporter) for rack in stated}
    return list(rows_of(stated, results))


def predicted(read: ReadTable) -> list[Row]:
    """Return the ratios in containers. Needs root and Docker. Raises BackendError, LabError."""
    check_packages()
    reporter = Reporter()
    with forking(lab_modules()):
        # Other judges need no package of labs.
        from ringlight.experiments.backends.emulation.backend import EmulationBackend

        backend = EmulationBackend()
        backend.check_ready()
        backend.prepare([], None, reporter.say, {})
        return predict_on(backend, read, reporter)


def compare(rows: Sequence[Row], read: ReadTable) -> Judgement:
    """Return the emulated ratios beside the measured ones."""
    stated = racks(table_reader(STATED, (_CASES, _CLUSTERS)))
    measured = {rack.name: _measured_bps(rack, read) for rack in stated}
    published = {
        (table, case): ratio for table, case, ratio in ratios(stated, measured)
    }
    scales = {rack.name: _scale(rack) for rack in stated}
    comparisons = []
    for row in rows:
        if row.table == _LINKS:
            continue
        key = row.table, row.case
        clear = abs(1 - _pairs()[key]) <= MOST_LATENCY
        notes = (scales.get(row.table), None if clear else _LATENCY)
        comparisons.append(
            Comparison(
                *key,
                row.value,
                published[key],
                row.unit,
                REACH_PERCENT if clear else None,
                "; ".join(filter(None, notes)),
            )
        )
    links = [row.value for row in rows if row.table == _LINKS]
    slowest = 100 * max(0.0, 1 - min(links))
    claims = _claims(comparisons, sound=slowest <= LINK_PERCENT)
    link = Claim("emulated links below their rate", slowest, LINK_PERCENT)
    return Judgement(tuple(comparisons), (*claims, link))


def _scale(rack: Rack) -> str:
    """Return the scale of a rack's emulation in words."""
    scale = plan_of(rack).setting.scale
    return f"emulated {scale.time:,.0f} times slower, with payloads of 1/{scale.payload:,.0f}"


def _measured_bps(rack: Rack, read: ReadTable) -> dict[int, float]:
    """Return the published bus bandwidth by size, of the mean time in place and out of place."""
    result = {}
    for row in read(f"nccl/{rack.name}.csv"):
        names = ("time_out_of_place_us", "time_in_place_us")
        seconds = 1e-6 * mean(float(row[name]) for name in names)
        size, ranks = int(row["size_bytes"]), rack.cluster.ranks
        result[size] = bus_bandwidth_bps("all-reduce", ranks, size, seconds)
    return result


def _claims(comparisons: Iterable[Comparison], *, sound: bool) -> Iterator[Claim]:
    """Yield a claim for each table: of the ratios in which latency hardly counts, and of the others.

    ``sound``: whether the emulated links had their rates; else nothing can be said.
    """
    tables: dict[str, list[Comparison]] = {}
    for line in comparisons:
        tables.setdefault(line.table, []).append(line)
    for table, lines in tables.items():
        clear = [line for line in lines if line.reach_percent is not None]
        if clear:
            worst = max(abs(line.difference_percent) for line in clear)
            yield Claim(f"{table}: worst", worst if sound else None, REACH_PERCENT)
        if other := len(lines) - len(clear):
            text = f"{table}: {other} ratios that depend on latency"
            yield Claim(text, None, REACH_PERCENT)


JUDGE = Judge(
    name="emulated_racks",
    title="Ratios of bus bandwidths on two racks of eight GPUs, emulated in containers",
    source="NVIDIA/nccl-tests#252 and NVIDIA/nccl#1411, rows of `stated/nccl/hardware.csv`",
    inputs=(_CASES, _CLUSTERS),
    outcomes=tuple(f"nccl/{table}.csv" for table in TABLES),
    needs={
        "racks": "two servers of four GPUs. A GPU is a container; NVLink switches and four rails are packet "
        "switches (Open vSwitch). Four rings at once, one for each NIC. Links have their usable rates, divided "
        "by the scale",
        "ratios": "a size over the table's largest size shows whether the fabric loses rate with size. The largest "
        "sizes of the racks over each other show whether NICs (H100) or NVLink (H800) limit the rings",
        "latency": "the emulation has the latency of its own software, divided by the time scale, in place of that "
        f"of GPUs and NICs. A ratio that latency changes by more than {100 * MOST_LATENCY:g} %, by the model, is "
        "no claim",
        "load": "if links are more than 10 % below their rates, no ratio is judged. So it was in a run beside "
        "other programs (21 %)",
        "evidence": "tables were chosen by their stated hardware, and limits set before the first emulation; their "
        "author had seen the published figures. Two emulations differ in their last digits, and so in their hash",
    },
    predict=predicted,
    compare=compare,
    by_default=False,
)
