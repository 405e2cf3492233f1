"""Judge what a comparison of two fabrics could have shown at all: statistics of ratios, pure functions.

"No slower" means little if a run could not have shown a slowdown that matters. From how far single iterations
(or all-reduces) lie apart follows how small a slowdown would still have stood out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ringlight.experiments.analysis.statistics import student_t


def smallest_slowdown(over: Sequence[float], under: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of the ratio of two samples' means.

    A ratio further than that from 1 would have been distinguished from 1, so it is the smallest slowdown that
    the measurement could have shown. First-order error propagation, ``(s/r)^2 = (s_a/a)^2 / n_a + (s_b/b)^2 /
    n_b`` with the samples' standard deviations s_a, s_b, and Student's t with Welch's degrees of freedom.
    Each sample has two members or more, all positive and taken as independent: what differs from run to run,
    and not within one, is not in it.
    """
    means = [statistics.fmean(sample) for sample in (over, under)]
    terms = [
        (statistics.stdev(sample) / mean) ** 2 / len(sample)
        for sample, mean in zip((over, under), means, strict=True)
    ]
    variance = sum(terms)
    if variance == 0:
        return 0.0
    freedom = variance**2 / sum(
        t**2 / (len(s) - 1) for t, s in zip(terms, (over, under), strict=True)
    )
    return student_t(freedom) * (means[0] / means[1]) * math.sqrt(variance)


@dataclass(frozen=True)
class SetUpLine:
    """An all-reduce's duration as a straight line over the set-up of a flow: ``free_s + waits * set_up_s``.

    ``free_s``: seconds if nothing had to be set up. ``waits``: set-ups that it waits for, one after another;
    the collective's steps if none is hidden behind anything else.
    """

    free_s: float
    waits: float

    def break_even_s(self, allowed_s: float) -> float:
        """Return the set-up at which the all-reduce takes ``allowed_s``, both in seconds.

        The line must rise. The set-up is below 0 if the all-reduce always takes longer.
        """
        return (allowed_s - self.free_s) / self.waits


def set_up_line(points: Sequence[tuple[float, float]]) -> SetUpLine:
    """Return the least-squares line through (set-up, all-reduce) in seconds.

    ``points`` have two different set-ups or more.
    """
    slope, intercept = statistics.linear_regression(
        [x for x, _ in points], [y for _, y in points]
    )
    return SetUpLine(intercept, slope)
