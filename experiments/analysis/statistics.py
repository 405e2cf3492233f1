"""Figures of several values: percentiles, means with their 95 % interval, fairness. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeGuard

import numpy as np

from ringlight.experiments.analysis.rows import Row, Value, key_of


def median(values: Iterable[float]) -> float | None:
    """Return the median of the values, in their unit; None if there are none."""
    listed = list(values)
    return statistics.median(listed) if listed else None


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0..1) of the values do not exceed; 0 without
    values."""
    ordered = sorted(values)
    # A share of 0.99 of 100 values is the 99th: the subtraction undoes the product's rounding.
    rank = math.ceil(share * len(ordered) - 1e-9)
    return ordered[max(rank, 1) - 1] if ordered else 0.0


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % confidence interval of the mean, by Student's t; None for fewer
    than two."""
    if len(values) < 2:
        return None
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return student_t(len(values) - 1) * spread


@cache
def student_t(freedom: float) -> float:
    """Return the 0.975 quantile of Student's t distribution, for ``freedom`` >= 1 degrees of freedom.

    As t = sqrt(freedom) tan(angle), the angle's density is proportional to cos(angle)^(freedom - 1). Its
    integral is Gauss and Legendre's with 64 nodes, and the quantile is found by Newton's method.
    """
    # A few milliseconds, and few experiments are repeated.
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(64)
    power = freedom - 1
    # Beta(1/2, freedom/2) / 2 is the integral up to a right angle.
    log_whole = math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    sought = 0.95 * math.sqrt(math.pi) / 2 * math.exp(log_whole)
    # The integral is concave, so that no step passes the root.
    angle = step = sought
    while step > 1e-14 * angle:
        density = np.cos(angle * (nodes + 1) / 2) ** power
        step = (sought - angle / 2 * float(weights @ density)) / math.cos(
            angle
        ) ** power
        angle += step
    return math.sqrt(freedom) * math.tan(angle)


def jain(values: Sequence[float]) -> float:
    """Return Jain's fairness index, a ratio: 1 if all are equal, 1/n if one has all.

    Raises ValueError if no value differs from 0.
    """
    squares = math.fsum(value**2 for value in values)
    if not squares:
        raise ValueError("fairness among nothing")
    return math.fsum(values) ** 2 / (len(values) * squares)


def over_repeats(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of single runs, and for each figure a row that stands for all repeats.

    Of numbers this row has the mean, with the 95 % interval as its spread; of truths whether all are true. Of
    words it has the word that they have in common. If there was one run, its row alone is returned, as that
    of all repeats.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (row.arm, key_of(row.point), row.subject, row.metric, row.label)
        groups.setdefault(key, []).append(row)
    return [
        row
        for group in groups.values()
        for row in (*(group if len(group) > 1 else ()), *_whole(group))
    ]


def _whole(group: Sequence[Row]) -> list[Row]:
    values, whole = [row.value for row in group], replace(group[0], repeat=None)
    numbers = [value for value in values if is_number(value)]
    if len(group) > 1 and len(numbers) == len(values):
        return [
            replace(whole, value=statistics.fmean(numbers), spread=half_width(numbers))
        ]
    if all(isinstance(value, bool) for value in values):
        return [replace(whole, value=all(values))]
    return [whole] if len(set(values)) == 1 else []


def is_number(value: Value) -> TypeGuard[float]:
    """Return whether a value is a number; a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
