"""Traces of jobs: when each arrives, how many GPUs it wants and how long it takes at ideal speed.

A trace is scaled to a cluster by :func:`fitted`, and what that drops or changes is counted by name;
:func:`resampled` draws another trace from one. What a job sends is not in a trace: :class:`Sending` is the
model of that, by size. :func:`generated` makes a trace of stated distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import FloatArray, IntArray

#: How a job's bytes go between its GPUs: ``uniform``, each GPU as much to every other of the job, as an
#: all-to-all or a ring in random order sends in the mean; ``ring``, once round in the order of switches, so
#: that one GPU's rate leaves each switch.
Pattern = Literal["uniform", "ring"]
Larger = Literal["drop", "cut"]
#: Most copies of a trace that are laid over each other: a mistyped load must not fill the memory.
MOST_COPIES = 64
DAY_S = 86_400.0
#: Most blocks of which a trace is drawn again: each takes a look at all jobs.
MOST_BLOCKS = 1000
#: How far copies are shifted against each other, as shares of the span: the golden ratio spreads any number
#: of them.
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class JobTrace:
    """Jobs by arrival. ``arrival_s`` begins at 0; ``duration_s`` at ideal speed; ``shapes``: sides of a job's
    block of a torus, none if the trace has no such. ``counts``: what was dropped or changed, by name."""

    arrival_s: FloatArray
    gpus: IntArray
    duration_s: FloatArray
    shapes: tuple[tuple[int, ...], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> JobTrace:
        """Return a trace without jobs."""
        return cls(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    @property
    def work(self) -> float:
        """GPU seconds of all jobs at ideal speed."""
        return float(self.gpus @ self.duration_s)

    def load(self, gpus: int) -> float:
        """Return the offered load of a cluster: GPU seconds that arrive over those that pass.

        Return 0 for a trace of no span.
        """
        return self.work / (gpus * self.span_s) if self.span_s else 0.0

    def picked(
        self, chosen: IntArray | npt.NDArray[np.bool_], **counts: int
    ) -> JobTrace:
        """Return some of the trace's jobs; ``counts`` are added to what is counted."""
        chosen = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return JobTrace(
            self.arrival_s[chosen],
            self.gpus[chosen],
            self.duration_s[chosen],
            tuple(self.shapes[i] for i in chosen.tolist()) if self.shapes else (),
            {**self.counts, **{name: n for name, n in counts.items() if n}},
        )

    def sorted(self) -> JobTrace:
        """Return the jobs by arrival, those that arrive together in their order; the first at 0."""
        ordered = self.picked(np.argsort(self.arrival_s, kind="stable"))
        first = ordered.arrival_s[0] if len(ordered) else 0.0
        return replace(ordered, arrival_s=ordered.arrival_s - first)


@dataclass(frozen=True)
class Fit:
    """Scaling of a trace, in this order.

    ``days``: no more than these of its beginning. ``sizes``: factor of all sizes, rounded up to whole GPUs.
    ``at_most``: of GPUs; larger jobs are dropped or cut; ``at_least``: smaller ones are dropped.
    ``shortest_s`` and ``longest_s``: jobs outside are dropped; ``first``: no more jobs than these. ``load``:
    offered load to reach, by copies of the trace shifted against each other and by leaving out jobs at
    random; None: as recorded. ``faster``: arrivals closer by this factor, which leaves durations as they are.
    ``block_s``: the trace, and each copy, is drawn again from blocks so long (:func:`resampled`).
    ``jitter_s``: each arrival moves by up to this much either way.
    """

    days: float | None = None
    sizes: float = 1.0
    at_most: int | None = None
    larger: Larger = "drop"
    at_least: int = 1
    shortest_s: float = 0.0
    longest_s: float = math.inf
    first: int | None = None
    load: float | None = None
    faster: float = 1.0
    jitter_s: float = 0.0
    block_s: float | None = None


def fitted(trace: JobTrace, gpus: int, how: Fit, seed: int) -> JobTrace:
    """Return the trace scaled for a cluster of ``gpus``.

    Raises ValueError if nothing is left, for a load that more than ``MOST_COPIES`` copies would make, and for
    blocks of which there are more than ``MOST_BLOCKS``.
    """
    rng = np.random.default_rng([seed, 1])
    if how.days is not None:
        late = trace.arrival_s > how.days * 86_400
        trace = trace.picked(~late, after_days=int(late.sum()))
    none = trace.duration_s <= 0
    trace = trace.picked(~none, no_duration=int(none.sum()))
    if how.sizes != 1.0:
        trace = replace(
            trace,
            gpus=np.maximum(1, np.ceil(trace.gpus * how.sizes - 1e-9)).astype(np.int64),
        )
    most = gpus if how.at_most is None else min(gpus, how.at_most)
    large = trace.gpus > most
    if how.larger == "cut":
        counts = {"cut": int(large.sum())} if large.any() else {}
        trace = replace(
            trace, gpus=np.minimum(trace.gpus, most), counts={**trace.counts, **counts}
        )
    else:
        trace = trace.picked(~large, too_large=int(large.sum()))
    small = trace.gpus < how.at_least
    trace = trace.picked(~small, too_small=int(small.sum()))
    short, long = trace.duration_s < how.shortest_s, trace.duration_s > how.longest_s
    trace = trace.picked(
        ~(short | long), too_short=int(short.sum()), too_long=int(long.sum())
    )
    if how.first is not None:
        later = np.arange(len(trace)) >= how.first
        trace = trace.picked(~later, after_the_first=int(later.sum()))
    if not len(trace):
        reasons = ", ".join(
            f"{why.replace('_', ' ')} {count}" for why, count in trace.counts.items()
        )
        raise ValueError(f"no job of the trace is left for {gpus} GPUs ({reasons})")
    if how.faster != 1.0:
        trace = replace(trace, arrival_s=trace.arrival_s / how.faster)
    if how.block_s is not None:
        trace = _drawn_to(trace, gpus, how.load, how.block_s, rng)
    elif how.load is not None:
        trace = _loaded(trace, gpus, how.load, rng)
    if how.jitter_s:
        moved = np.maximum(
            trace.arrival_s + rng.uniform(-how.jitter_s, how.jitter_s, len(trace)), 0.0
        )
        trace = replace(trace, arrival_s=moved)
    return trace.sorted()


def _loaded(
    trace: JobTrace, gpus: int, load: float, rng: np.random.Generator
) -> JobTrace:
    """Return whole copies of the trace, each shifted round the span, and of the last a random part.

    Raises ValueError if no job is left.
    """
    span = trace.span_s
    whole, rest = divmod(_copies(trace, gpus, load), 1.0)
    parts = []
    for copy in range(int(whole) + (rest > 1e-12)):
        shifted = trace.arrival_s + span * (copy * GOLDEN % 1.0)
        part = replace(
            trace, arrival_s=np.where(shifted > span, shifted - span, shifted)
        )
        parts.append(
            part if copy < whole else part.picked(rng.random(len(part)) < rest)
        )
    kept = sum(map(len, parts))
    if not kept:
        raise ValueError(f"no job is left at a load of {load:g}")
    return _laid_over(
        parts, copied=max(0, kept - len(trace)), left_out=max(0, len(trace) - kept)
    )


def _copies(trace: JobTrace, gpus: int, load: float) -> float:
    """Return how many copies of a trace make a load. Raises ValueError for none, and for too many."""
    own = trace.load(gpus)
    if not own:
        raise ValueError("a trace whose jobs all arrive at once has no load")
    if (copies := load / own) >= MOST_COPIES + 1:
        raise ValueError(
            f"a load of {load:g} takes {copies // 1:g} copies of this trace; {MOST_COPIES} are allowed"
        )
    return copies


def _laid_over(parts: Sequence[JobTrace], **counts: int) -> JobTrace:
    """Return the jobs of several traces in one."""
    return JobTrace(
        np.concatenate([part.arrival_s for part in parts]),
        np.concatenate([part.gpus for part in parts]),
        np.concatenate([part.duration_s for part in parts]),
        tuple(shape for part in parts for shape in part.shapes),
        {**parts[0].counts, **{name: n for name, n in counts.items() if n}},
    )


def resampled(trace: JobTrace, block_s: float, rng: np.random.Generator) -> JobTrace:
    """Return another trace of the same length, drawn from blocks of this one.

    This is a circular block bootstrap (Politis and Romano, 1992). Jobs of a block keep their order, gaps,
    sizes and durations. Blocks follow each other. Each block is drawn from any day, with as much chance, and
    begins at the time of day at which it is put, so that nights stay nights (Politis, 2001); a trace of less
    than a day is drawn from anywhere. A block that reaches past the last whole day goes on with the first.
    Raises ValueError for more than ``MOST_BLOCKS`` blocks.
    """
    if not (span := trace.span_s):
        return trace
    days = math.ceil(span / DAY_S)
    round_s = days * DAY_S if span >= DAY_S else span
    block_s = min(block_s, round_s)
    if span > MOST_BLOCKS * block_s:
        raise ValueError(
            f"resample: blocks of {block_s:g} s are {math.ceil(span / block_s):,} in this trace; "
            f"{MOST_BLOCKS:,} are allowed"
        )
    parts = []
    for number in range(math.ceil(span / block_s)):
        begin = number * block_s
        first = (
            begin % DAY_S + DAY_S * rng.integers(days)
            if span >= DAY_S
            else rng.random() * span
        )
        inside = (trace.arrival_s - first) % round_s
        part = replace(trace, arrival_s=begin + inside)
        parts.append(part.picked((inside < block_s) & (part.arrival_s <= span)))
    return _laid_over(parts).sorted()


def _drawn_to(
    trace: JobTrace,
    gpus: int,
    load: float | None,
    block_s: float,
    rng: np.random.Generator,
) -> JobTrace:
    """Return a trace drawn from blocks, or for a load as many as reach it, laid over each other.

    Of the last trace a random part is taken. Raises ValueError if no job is left.
    """
    trace = trace.sorted()
    parts: list[JobTrace] = []
    if load is None:
        parts = [resampled(trace, block_s, rng)]
    else:
        # Some draws have no work; if none has any there is no end to them.
        most = 4 * (1 + math.ceil(_copies(trace, gpus, load)))
        left = load * gpus * trace.span_s
        while left > 0 and len(parts) < most:
            part = resampled(trace, block_s, rng)
            if part.work > left:
                part = part.picked(rng.random(len(part)) < left / part.work)
                left = 0.0
            left -= part.work
            parts.append(part)
    if not any(map(len, parts)):
        raise ValueError("no job is left in the blocks that were drawn")
    return _laid_over(parts, resampled=sum(map(len, parts)))


# What is made up.

Draw = Callable[[np.random.Generator, int, float], FloatArray]


def _exponential(rng: np.random.Generator, count: int, mean: float) -> FloatArray:
    return rng.exponential(mean, count)


def _constant(rng: np.random.Generator, count: int, mean: float) -> FloatArray:
    return np.full(count, mean)


def _lognormal(rng: np.random.Generator, count: int, mean: float) -> FloatArray:
    # A shape of 2 is near that of published traces, whose means are far above their medians.
    return rng.lognormal(math.log(mean) - 2.0, 2.0, count)


#: Distributions of positive figures with a given mean.
DISTRIBUTIONS: Mapping[str, Draw] = {
    "exponential": _exponential,
    "constant": _constant,
    "lognormal": _lognormal,
}


def generated(
    jobs: int,
    gap_s: float,
    duration_s: float,
    sizes: Mapping[int, float],
    seed: int,
    *,
    gaps: str = "exponential",
    durations: str = "exponential",
) -> JobTrace:
    """Return jobs whose gaps and durations have these means (seconds) and distributions.

    ``sizes``: weights of the numbers of GPUs. Exponential gaps are Poisson arrivals. Raises ValueError for
    what is not positive, or unknown.
    """
    for name, value in (("jobs", jobs), ("gap", gap_s), ("duration", duration_s)):
        if not value > 0:
            raise ValueError(f"{name}: {value:g}; it must be above 0")
    for name, kind in (("gaps", gaps), ("durations", durations)):
        if kind not in DISTRIBUTIONS:
            raise ValueError(f"{name}: no {kind}; there are {', '.join(DISTRIBUTIONS)}")
    if (
        not sizes
        or min(sizes) < 1
        or min(sizes.values()) < 0
        or not sum(sizes.values()) > 0
    ):
        raise ValueError("sizes: give GPUs with their weights, such as {1: 3, 8: 1}")
    rng = np.random.default_rng([seed, 2])
    arrivals = np.cumsum(DISTRIBUTIONS[gaps](rng, jobs, gap_s))
    weights = np.array(list(sizes.values()), dtype=np.float64)
    chosen = rng.choice(
        np.array(list(sizes), dtype=np.int64), jobs, p=weights / weights.sum()
    )
    return JobTrace(
        arrivals - arrivals[0], chosen, DISTRIBUTIONS[durations](rng, jobs, duration_s)
    )


# What a job sends.


@dataclass(frozen=True)
class Sending:
    """Traffic of jobs of up to ``gpus`` GPUs (None: all larger ones).

    ``share``: part of an iteration at ideal speed in which each GPU sends at its full rate. ``pattern``: of
    the sending.
    """

    gpus: int | None
    share: float
    pattern: Pattern = "uniform"


def shares_of(
    trace: JobTrace, classes: Sequence[Sending]
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Return each job's communicating share, 0 for one GPU, and whether its pattern is a ring.

    Raises ValueError for classes that are not in order, or leave sizes out.
    """
    ends = [math.inf if sending.gpus is None else sending.gpus for sending in classes]
    if not ends or ends != sorted(set(ends)) or ends[-1] != math.inf:
        raise ValueError(
            "classes of jobs go from small to large, and the last has no size"
        )
    for sending in classes:
        if not 0 <= sending.share < 1:
            raise ValueError(f"share: {sending.share:g}; it must be from 0 to below 1")
        if sending.pattern not in get_args(Pattern):
            raise ValueError(
                f"pattern: no {sending.pattern}; there are {', '.join(get_args(Pattern))}"
            )
    which = np.searchsorted(np.array(ends), trace.gpus)
    shares = np.array([sending.share for sending in classes])[which]
    rings = np.array([sending.pattern == "ring" for sending in classes])[which]
    return np.where(trace.gpus > 1, shares, 0.0), rings
