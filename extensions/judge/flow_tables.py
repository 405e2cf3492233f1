"""Tables of flow completion times of opera-sim: the flows, and predicted beside published times by size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.judge.contract import (
    Claim,
    Comparison,
    Judgement,
    ReadTable,
    Row,
)
from ringlight.testbed.simulation.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMETERS = "opera_sim/parameters.csv"
PERCENTILES = {"median": 50, "90 %": 90, "99 %": 99}
#: The published start of a flow, in milliseconds, has six significant digits.
_START_DIGITS = 1e-5


def parameters(read: ReadTable) -> dict[str, str]:
    """Return the stated parameters of the packet simulator."""
    return {row["parameter"]: row["value"] for row in read(PARAMETERS)}


def flows_of(rows: Iterable[dict[str, str]]) -> list[SizedFlow]:
    """Return the flows of a table; host n is GPU gn."""
    return [
        SizedFlow(
            f"g{row['src_host']}",
            f"g{row['dst_host']}",
            int(row["size_bytes"]),
            int(row["start_ns"]) * 1e-9,
        )
        for row in rows
    ]


def rows_of(table: str, flows: Sequence[SizedFlow], times_s: FloatArray) -> list[Row]:
    """Return the predictions; a case is a flow with its size and start."""
    return [
        Row(
            table,
            f"{flow.source} {flow.destination} {flow.size_bytes} {flow.start_s:.9f}",
            1000 * time_s,
            "ms",
        )
        for flow, time_s in zip(flows, times_s.tolist(), strict=True)
    ]


def compared(
    rows: Sequence[Row],
    outcomes: Iterable[dict[str, str]],
    percents: dict[str, float],
    above_bytes: int = 0,
) -> Judgement:
    """Return predicted beside published percentiles of each size, with a claim for each key of ``percents``.

    Each table of ``rows`` is a draw; predicted percentiles, and times of flows, are means over the draws.
    ``percents``: the largest difference in per cent of ``median``, ``90 %``, ``99 %``, and ``every``, each
    flow of at least 100 kB. Sizes up to ``above_bytes`` are listed without a claim.
    """
    published_rows = list(outcomes)
    draws = [
        _matched(list(group), published_rows)
        for _, group in groupby(rows, lambda row: row.table)
    ]
    sizes, _, published, missing = draws[0]
    predicted = np.mean([draw[1] for draw in draws], axis=0)
    comparisons = []
    for name, percentile in PERCENTILES.items():
        for size in np.unique(sizes):
            of_size = sizes == size
            ours = np.mean(
                [np.percentile(draw[1][of_size], percentile) for draw in draws]
            )
            theirs = np.percentile(published[of_size], percentile)
            case = f"{size:,} bytes, {of_size.sum():,} flows"
            reach = percents.get(name) if size > above_bytes else None
            comparisons.append(
                Comparison(name, case, float(ours), float(theirs), "ms", reach)
            )
    above = f" above {above_bytes:,} bytes" if above_bytes else ""
    claims = [
        Claim(
            f"{name} of each size{above}",
            max(
                abs(line.difference_percent)
                for line in comparisons
                if line.table == name and line.reach_percent is not None
            ),
            limit,
        )
        for name, limit in percents.items()
        if name in PERCENTILES
    ]
    if "every" in percents:
        apart = 100 * np.abs(predicted / published - 1)[sizes >= 100_000]
        claims.append(
            Claim(
                "every flow of at least 100 kB", float(apart.max()), percents["every"]
            )
        )
    claims.append(Claim("published flows without a prediction", missing, 0, "flows"))
    return Judgement(tuple(comparisons), tuple(claims))


def draw(comparisons: Sequence[Comparison]) -> Figure:
    """Return the percentiles of all sizes, published against predicted."""
    from ringlight.extensions.judge.pictures import scatter

    return scatter(comparisons, "ms")


def _matched(
    rows: Sequence[Row], outcomes: Iterable[dict[str, str]]
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Return size, predicted and published time in ms of each published flow, and how many have no match.

    A prediction matches one published flow. Raises ValueError if no flow has a match.
    """
    known: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        source, destination, size, start_s = row.case.split()
        known.setdefault((source, destination, size), []).append(
            (1000 * float(start_s), row.value)
        )
    matches, missing = [], 0
    for outcome in outcomes:
        key = (
            f"g{outcome['src_host']}",
            f"g{outcome['dst_host']}",
            outcome["size_bytes"],
        )
        start_ms = float(outcome["start_ms"])
        candidates = known.get(key, [])
        nearest = min(
            candidates, key=lambda match: abs(match[0] - start_ms), default=None
        )
        if nearest is None or abs(nearest[0] - start_ms) > _START_DIGITS * max(
            1.0, start_ms
        ):
            missing += 1
            continue
        candidates.remove(nearest)
        matches.append((int(key[2]), nearest[1], float(outcome["fct_ms"])))
    if not matches:
        raise ValueError("no published flow has a prediction")
    sizes, predicted, published = np.array(matches).T
    return sizes.astype(np.int64), predicted, published, missing
