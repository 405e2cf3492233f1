"""Figures of several values: percentiles, means with their 95 % interval, fairness. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from scipy.special import stdtrit


def percentile(values: Iterable[float], share: float) -> float:
    """Smallest value that is not exceeded by ``share`` (0..1) of the values; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def half_width(values: Sequence[float], confidence: float = 0.95) -> float | None:
    """Half the width of the confidence interval of the mean, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 where all are alike, 1/n where one has all. Raises ValueError for none."""
    squares = math.fsum(value**2 for value in values)
    if not squares:
        raise ValueError("fairness among nothing")
    return math.fsum(values) ** 2 / (len(values) * squares)
