"""Times that ASTRA-sim's analytical network expects in its own tests."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judge,
    Judgement,
    ReadTable,
    Row,
)

_CASES = "astra_sim/analytical_cases.csv"
_EXPECTED = "astra_sim/analytical_expected.csv"
_REACH_PERCENT = 0.1
#: ASTRA-sim's GB is 2^30 bytes.
GIB = 1 << 30


def predict(read: ReadTable) -> list[Row]:
    """Return the time of each case, nanoseconds."""
    return [
        Row("analytical", case["case"], _send_ns(case), "ns")
        for case in read(_CASES)
        if case["operation"] == "send"
    ]


def _send_ns(case: dict[str, str]) -> float:
    """Return the time of one message: stored whole at each hop if the backend knows congestion."""
    shape = [int(size) for size in case["npus"].split("x")]
    rates = [float(rate) * GIB for rate in case["bandwidth_GiBps"].split("/")]
    latencies = [float(latency) for latency in case["latency_ns"].split("/")]
    kinds = case["topology"].split(" x ")
    stride = 1
    for size, rate, latency, kind in zip(shape, rates, latencies, kinds, strict=True):
        a, b = (
            int(case[f"{end}_npu"]) // stride % size
            for end in ("source", "destination")
        )
        stride *= size
        if a != b:
            hops = _hops(kind, a, b, size)
            stored = hops if case["backend"] == "congestion aware" else 1
            return stored * 1e9 * float(case["size_bytes"]) / rate + hops * latency
    return 0.0


def _hops(kind: str, a: int, b: int, size: int) -> int:
    """Return the links of the path from ``a`` to ``b``."""
    if kind == "Ring":
        return min((a - b) % size, (b - a) % size)
    return 2 if kind == "Switch" else 1


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
    title="Eleven times that ASTRA-sim's analytical network expects",
    source="astra-sim/astra-network-analytical @599a0473a9a7, tests",
    inputs=(_CASES,),
    outcomes=(_EXPECTED,),
    needs={
        "congestion aware": "each hop stores the whole message before it forwards it",
        "congestion unaware": "hops forward at once: bytes over rate, and the latency of each hop",
    },
    predict=predict,
    compare=compare,
)
