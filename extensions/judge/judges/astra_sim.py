"""Times that ASTRA-sim's analytical networks expect in their own tests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.flows.simulation import times_over
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.flows.ways import Way
from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)
from ringlight.fabric.algorithms import steps_named

_CASES = "astra_sim/analytical_cases.csv"
_EXPECTED = "astra_sim/analytical_expected.csv"
_REACH_PERCENT = 0.1
#: ASTRA-sim's GB/s of a link are 2^30 bytes per second, those of its memory 10^9.
_GIB, _GB = 1 << 30, 1e9
#: Passes over memory for a sum: write, read, read (astra-sim/system/PacketBundle.cc).
_MEMORY_PASSES = 3
Case = Mapping[str, str]


def predict(read: ReadTable) -> list[Row]:
    """Return the time of each case, nanoseconds."""
    return [
        Row("times", case["case"], 1e9 * _PREDICTIONS[case["backend"]](case), "ns")
        for case in read(_CASES)
    ]


class _Links:
    """The links of a topology of NPUs: to the next NPUs of a ring, to all others, or over a switch."""

    def __init__(self, case: Case) -> None:
        self._kind, self.npus = case["topology"], int(case["npus"])
        self._number: dict[tuple[int, int], int] = {}
        self.bytes_per_s: list[float] = []
        self.delay_s: list[float] = []
        for a, b in itertools.product(range(self.npus + 1), repeat=2):
            self._number[a, b] = len(self.bytes_per_s)
            self.bytes_per_s.append(float(case["bandwidth_GiBps"]) * _GIB)
            self.delay_s.append(1e-9 * float(case["latency_ns"]))

    def way(self, source: str, destination: str) -> Way:
        """Return the way; half round a ring it is clockwise (Ring.cpp)."""
        nodes = _nodes(self._kind, int(source), int(destination), self.npus)
        links = [self._number[pair] for pair in itertools.pairwise(nodes)]
        return Way(
            tuple({link: 1.0} for link in links),
            {link: (after,) for link, after in itertools.pairwise(links)},
        )


def _nodes(kind: str, source: int, destination: int, npus: int) -> list[int]:
    """Return the nodes of a way; number ``npus`` is a switch."""
    if kind == "Ring":
        ahead = (destination - source) % npus
        step, hops = (1, ahead) if ahead <= npus - ahead else (-1, npus - ahead)
        return [(source + step * hop) % npus for hop in range(hops + 1)]
    return [source, npus, destination] if kind == "Switch" else [source, destination]


def _aware_s(case: Case) -> float:
    """Return the seconds until all messages have passed: each link takes one whole message after the other."""
    links = _Links(case)
    size = int(case["size_bytes"])
    pairs = [(case["source_npu"], case["destination_npu"])]
    if case["source_npu"] == "all":
        pairs = list(itertools.permutations(map(str, range(links.npus)), 2))
    message = Transport(
        packet_bytes=size, header_bytes=0, window_packets=1, spray=False
    )
    flows = [SizedFlow(source, destination, size, 0.0) for source, destination in pairs]
    return float(times_over(links, flows, message).max())


def _unaware_s(case: Case) -> float:
    """Return the seconds of a message: bytes over rate once, and the latency of each hop."""
    shape = [int(size) for size in case["npus"].split("x")]
    rates = [float(rate) * _GIB for rate in case["bandwidth_GiBps"].split("/")]
    latencies = [float(latency) for latency in case["latency_ns"].split("/")]
    source, destination = int(case["source_npu"]), int(case["destination_npu"])
    for kind, size, rate, latency in zip(
        case["topology"].split(" x "), shape, rates, latencies, strict=True
    ):
        hops = len(_nodes(kind, source % size, destination % size, size)) - 1
        if source % size != destination % size:
            return int(case["size_bytes"]) / rate + hops * 1e-9 * latency
        source, destination = source // size, destination // size
    return 0.0


def _system_s(case: Case) -> float:
    """Return the seconds of an all-reduce whose splits follow each other.

    In each step a part is sent to the next NPU. A delay of the endpoint comes before the first step and after
    each, and passes over memory after each of the steps that sum, the first half.
    """
    operation = case["operation"]
    splits, delay_ns, memory_gbps = (
        float(_after(pattern, operation))
        for pattern in (r"(\d+) splits", r"endpoint delay (\d+)", r"local-mem-bw (\d+)")
    )
    npus = int(case["npus"])
    schedule = steps_named("ring", npus)
    sums = sum(step.op == "reduce" for step in schedule.make())
    part = int(case["size_bytes"]) / splits / npus
    sent_s = part / (float(case["bandwidth_GiBps"]) * _GIB) + 1e-9 * float(
        case["latency_ns"]
    )
    sums_s = sums * _MEMORY_PASSES * part / (memory_gbps * _GB)
    return splits * (
        schedule.steps * sent_s + (schedule.steps + 1) * 1e-9 * delay_ns + sums_s
    )


def _after(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"{text!r} states no {pattern}")
    return match[1]


_PREDICTIONS: Mapping[str, Callable[[Case], float]] = {
    "congestion aware": _aware_s,
    "congestion unaware": _unaware_s,
    "astra-sim with congestion aware": _system_s,
}


def compare(rows: Sequence[Row], read: ReadTable) -> Judgement:
    """Return all times beside the expected times."""
    expected = {row["case"]: float(row["expected_ns"]) for row in read(_EXPECTED)}
    comparisons = tuple(
        Comparison(
            row.table, row.case, row.value, expected[row.case], row.unit, _REACH_PERCENT
        )
        for row in rows
    )
    worst = max(abs(line.difference_percent) for line in comparisons)
    missing = len(expected) - len(rows)
    return Judgement(
        comparisons,
        (
            Claim("every predicted time", worst, _REACH_PERCENT),
            Claim("expected times without a prediction", missing, 0, "cases"),
        ),
    )


JUDGE = Judge(
    name="astra_sim",
    title="Eleven times that ASTRA-sim's analytical networks expect",
    source="astra-sim/astra-network-analytical @599a0473a9a7 and astra-sim/astra-sim @518bd513ae11, their tests",
    inputs=(_CASES,),
    outcomes=(_EXPECTED,),
    needs={
        "aware (4 cases)": "store and forward: a hop stores the whole message before it sends it on, and a link "
        "sends one message after the other",
        "unaware (6 cases)": "no store and forward: bytes over rate once, and the latency of each hop; messages "
        "do not share links",
        "system (1 case)": "one hop a step, with either. Splits one after the other, a delay of the endpoint, and "
        "three passes over memory for a sum",
    },
    predict=predict,
    compare=compare,
)
