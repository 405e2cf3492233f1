"""Completion times by size of flow."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringlight.experiments.record.writing import writing
from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.fabric.units import format_size, format_time
from ringlight.testbed.simulation.arrays import FloatArray

#: Sizes up to which each has a row of its own; more are put together by powers of ten.
MOST_SIZES = 24


@dataclass(frozen=True)
class SizeClass:
    """Flows of ``least_bytes`` to ``most_bytes``, and percentiles of their completion times in seconds."""

    least_bytes: int
    most_bytes: int
    flows: int
    median_s: float
    p90_s: float
    p99_s: float


def by_size(flows: Sequence[SizedFlow], times_s: FloatArray) -> list[SizeClass]:
    """Return the classes of flows, the smallest first: their sizes, or powers of ten of them."""
    sizes = np.array([flow.size_bytes for flow in flows])
    keys = sizes
    if len(np.unique(sizes)) > MOST_SIZES:
        keys = np.array([10 ** math.floor(math.log10(size)) for size in sizes.tolist()])
    classes = []
    for key in np.unique(keys):
        of_class = keys == key
        least, most = int(sizes[of_class].min()), int(sizes[of_class].max())
        percentiles = np.percentile(times_s[of_class], (50, 90, 99)).tolist()
        classes.append(SizeClass(least, most, int(of_class.sum()), *percentiles))
    return classes


def lines_of(classes: Sequence[SizeClass]) -> list[tuple[str, ...]]:
    """Return rows of a table: size, flows, median, 90 % and 99 %."""
    return [
        (
            format_size(item.least_bytes)
            if item.least_bytes == item.most_bytes
            else f"{format_size(item.least_bytes)} to {format_size(item.most_bytes)}",
            f"{item.flows:,}",
            *(format_time(value) for value in (item.median_s, item.p90_s, item.p99_s)),
        )
        for item in classes
    ]


def write_times(path: Path, flows: Sequence[SizedFlow], times_s: FloatArray) -> None:
    """Write each flow and its completion time, seconds, as CSV. Raises WriteError."""
    with writing(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("source", "destination", "bytes", "start_s", "completion_s"))
        for flow, time_s in zip(flows, times_s.tolist(), strict=True):
            writer.writerow(
                (
                    flow.source,
                    flow.destination,
                    flow.size_bytes,
                    repr(flow.start_s),
                    f"{time_s:.9g}",
                )
            )
