"""What a comparison of two fabrics could have shown at all: statistics of ratios, pure functions.

"No slower" says little where a run could not have shown a slowdown that matters. From how far single
iterations (or all-reduces) lie apart follows how small a slowdown would still have stood out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RatioInterval:
    """A ratio of two means with its confidence interval; ``half_width``: in units of the ratio.

    A ratio further than ``half_width`` from 1 would have been told from 1: it is the smallest slowdown that
    the measurement could have shown.
    """

    ratio: float
    half_width: float
    confidence: float

    @property
    def low(self) -> float:
        return self.ratio - self.half_width

    @property
    def high(self) -> float:
        return self.ratio + self.half_width


def ratio_interval(over: Sequence[float], under: Sequence[float], confidence: float = 0.95) -> RatioInterval:
    """Ratio of the means of two samples of positive numbers, with its interval.

    First-order error propagation, ``(s/r)^2 = (s_a/a)^2 / n_a + (s_b/b)^2 / n_b`` with the samples' standard
    deviations s_a, s_b, and Student's t with Welch's degrees of freedom. The samples' members are taken as
    independent: what differs from run to run, and not within one, is not in it. Raises ValueError for fewer
    than two members or a mean that is not above 0.
    """
    terms = []
    means = []
    for sample in (over, under):
        if len(sample) < 2:
            raise ValueError(f"a sample of {len(sample)}; a spread needs at least 2")
        mean = statistics.fmean(sample)
        if not mean > 0:
            raise ValueError(f"a mean of {mean:g}; a ratio needs means above 0")
        means.append(mean)
        terms.append((statistics.stdev(sample) / mean) ** 2 / len(sample))
    ratio = means[0] / means[1]
    variance = sum(terms)
    if variance == 0:
        return RatioInterval(ratio, 0.0, confidence)
    freedom = variance**2 / sum(t**2 / (len(s) - 1) for t, s in zip(terms, (over, under), strict=True))
    # Half a second's import, which only this needs.
    from scipy.special import stdtrit

    quantile = float(stdtrit(freedom, (1 + confidence) / 2))
    return RatioInterval(ratio, quantile * ratio * math.sqrt(variance), confidence)


@dataclass(frozen=True)
class SetUpLine:
    """An all-reduce's duration as a straight line over the set-up of a flow: ``free_s + waits * set_up_s``.

    ``free_s``: seconds if nothing had to be set up. ``waits``: set-ups that it waits for, one after another;
    the collective's steps if none is hidden behind anything else.
    """

    free_s: float
    waits: float

    def break_even_s(self, allowed_s: float) -> float:
        """The set-up at which the all-reduce takes ``allowed_s`` seconds; below 0 if always longer.

        Raises ValueError for a line that does not rise.
        """
        if not self.waits > 0:
            raise ValueError(f"the all-reduce waits for {self.waits:g} set-ups; there is no break-even")
        return (allowed_s - self.free_s) / self.waits


def set_up_line(points: Sequence[tuple[float, float]]) -> SetUpLine:
    """The least-squares line through (set-up, all-reduce) in seconds.

    Raises ValueError for points that have fewer than two different set-ups.
    """
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs points of at least two different set-ups")
    slope, intercept = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return SetUpLine(intercept, slope)
