"""Define what a GPU's utilisation may mean: definitions, each a pure function of what GPUs did in a run.

A counter such as ``nvidia-smi``'s utilization.gpu is the share of time in which one or more kernels were
executing. Whether waiting for the network counts, then, depends on how the collective is made: a kernel that
spins until its peer's bytes have come is executing, a host that copies and calls a kernel to add is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """Activity of one GPU in a run; seconds, all of one clock.

    ``compute_s``: computing. ``exchange_s``: in the collective, waiting for others included. ``moving_s``: of
    these, while bytes moved at its port. ``full_rate_s``: what those bytes take at the port's full rate.
    ``overlapped_s``: how long the run would have been had every iteration's computing hidden behind its
    collective, or the other way round. ``total_s``: from the start of the job to its end. ``window_s``: of
    the longest run that this one is compared with.
    """

    compute_s: float
    exchange_s: float
    moving_s: float
    full_rate_s: float
    overlapped_s: float
    total_s: float
    window_s: float


@dataclass(frozen=True)
class Definition:
    """``title``: what counts as busy. ``why``: when a counter would count so. ``share`` (0..1) of a GPU."""

    title: str
    why: str
    share: Callable[[Activity], float]


DEFINITIONS: Mapping[str, Definition] = {
    "compute": Definition(
        "computing",
        "the collective runs no kernel on the GPU",
        lambda a: a.compute_s / a.total_s,
    ),
    "full_rate": Definition(
        "computing, and the collective's bytes at the port's full rate",
        "kernels copy and add what has come, and none waits",
        lambda a: (a.compute_s + a.full_rate_s) / a.total_s,
    ),
    "overlap": Definition(
        "computing, hidden behind the collective as far as it goes",
        "computing and the collective overlap perfectly",
        lambda a: a.compute_s / a.overlapped_s,
    ),
    "moving": Definition(
        "computing, and the collective while bytes move",
        "a kernel runs as long as its peer sends, however slowly",
        lambda a: (a.compute_s + a.moving_s) / a.total_s,
    ),
    "collective": Definition(
        "computing and the whole collective",
        "the collective's kernel spins until it has ended",
        lambda a: (a.compute_s + a.exchange_s) / a.total_s,
    ),
    "window": Definition(
        "computing, over the time of the longer run",
        "the average goes on after the shorter run has ended",
        lambda a: a.compute_s / a.window_s,
    ),
}


def mean_share(definition: Definition, gpus: Sequence[Activity]) -> float:
    """Return the utilisation (0..1) of some GPUs."""
    return math.fsum(definition.share(gpu) for gpu in gpus) / len(gpus)


def waiting_counted(before: float, after: float, gain: float) -> float:
    """Return the share of the time without computing that must count for utilisation to rise by ``gain``.

    ``before`` and ``after``: shares of time (0..1) spent computing. With w counted of the rest, utilisation
    is ``u + w (1 - u)``, and ``w = (after - gain before) / (gain (1 - before) - (1 - after))``. A gain from 1
    to ``after / before`` has a share from 1 to 0; another gain has none. Raises ValueError if every share
    gives that gain, or none does.
    """
    slope = gain * (1 - before) - (1 - after)
    if slope == 0:
        raise ValueError(f"a gain of {gain:g} says nothing of what counts")
    return (after - gain * before) / slope
