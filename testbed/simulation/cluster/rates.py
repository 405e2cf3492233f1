"""How fast jobs go that share links: rates that hold until the next job comes, goes or is moved.

A job computes and sends in turn; at ideal speed it sends for a share ``f`` of the time, each GPU at its full
rate. A job's links are given as ``offsets`` [jobs + 1], ``links`` and ``weights``: how many GPUs' rates leave
over each of its links. ``capacity`` of a link is in GPUs' rates, too. All GPUs of a job send at one rate,
since a collective waits for its slowest flow, so what is shared max-min fairly is the jobs' rates (Bertsekas
and Gallager, Data Networks, 6.5.2).

Whether jobs send at the same moments is not in a trace. Two bounds hold the truth, and a model lies between:

- ``always``: everybody sends all the time, so that jobs always meet. A rate r makes the speed 1 / (1 - f + f
  / r).
- ``interleaved``: nobody sends while another needs the link, as far as the link has time for all.
- ``duty``: each job finds the others sending for their shares of the time, at independent moments (a mean
  field).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ringlight.fabric.clusters import Sharing
from ringlight.testbed.simulation.arrays import FloatArray, IntArray

#: Speeds of the mean field are found in so many rounds at the most, or when none changes by more than this.
ROUNDS, STILL = 60, 1e-6


def shared(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, caps: FloatArray
) -> FloatArray:
    """Max-min fair rate of each job, at most its cap.

    Rates rise together; a job's stops at its cap, or where one of its links is full. Each round stops at
    least one job, so rounds are bounded by their number. Jobs without links have their caps.
    """
    found, open_ = caps.copy(), np.diff(offsets) > 0
    owner = np.repeat(np.arange(len(caps)), np.diff(offsets))
    left = capacity.astype(np.float64)
    while open_.any():
        mine = open_[owner]
        load = np.bincount(links[mine], weights[mine], len(capacity))
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(load > 0, np.maximum(left, 0.0) / load, np.inf)
        lowest = float(level.min())
        stopped = open_ & (caps <= lowest)
        if stopped.any():
            found[stopped] = caps[stopped]
        else:
            # Sums that are equal but for rounding are full together.
            full = level <= lowest * (1 + 1e-12)
            stopped = np.zeros(len(caps), dtype=np.bool_)
            stopped[owner[mine & full[links]]] = True
            stopped &= open_
            found[stopped] = lowest
        gone = stopped[owner]
        left -= np.bincount(links[gone], (weights * found[owner])[gone], len(capacity))
        open_ &= ~stopped
    return found


def always(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds where everybody sends all the time."""
    rates = shared(offsets, links, weights, capacity, np.ones(len(shares)))
    return 1 / (1 - shares + shares / rates)


def alone(offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray) -> FloatArray:
    """Rate of each job as if it were the only one."""
    own = np.append(capacity[links] / weights, np.inf)
    empty = np.diff(offsets) == 0
    narrowest = np.minimum.reduceat(own, offsets[:-1]) if len(offsets) > 1 else np.zeros(0)
    return np.where(empty, 1.0, np.minimum(narrowest, 1.0))


def interleaved(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds where nobody sends while another needs the link: a link has to have time for all."""
    most = 1 / (1 - shares + shares / alone(offsets, links, weights, capacity))
    owner = np.repeat(np.arange(len(shares)), np.diff(offsets))
    return shared(offsets, links, weights * shares[owner], capacity, most)


def duty(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray, shares: FloatArray
) -> FloatArray:
    """Speeds in a mean field: to each job the others are sending for their share of the time, independently.

    What the others put on a link meanwhile is taken as its mean and as much more or less as it varies, and
    the rate as the geometric mean of those two: the arithmetic one is right where others come and go quickly
    beside a job's own sending, the harmonic one where they stay. One that a narrower link elsewhere holds
    back puts less on a link than its share of that.
    """
    owner = np.repeat(np.arange(len(shares)), np.diff(offsets))
    firsts = offsets[:-1][np.diff(offsets) > 0]
    some = np.diff(offsets) > 0
    room = capacity[links]
    rates = np.ones(len(shares))
    level = np.ones(len(links))
    for _ in range(ROUNDS):
        on = (shares / rates) / (1 - shares + shares / rates)
        weighs = weights * np.minimum(1.0, rates[owner] / level)
        mean = on[owner] * weighs
        varies = on[owner] * (1 - on[owner]) * weighs**2
        others = np.bincount(links, mean, len(capacity))[links] - mean
        spread = np.sqrt(np.maximum(np.bincount(links, varies, len(capacity))[links] - varies, 0.0))
        high = np.minimum(1.0, room / (weights + others + spread))
        low = np.minimum(1.0, room / (weights + np.maximum(others - spread, 0.0)))
        level = np.sqrt(high * low)
        new = rates.copy()
        new[some] = (np.minimum.reduceat(level, firsts) + rates[some]) / 2
        moved = float(np.abs(new - rates).max(initial=0.0))
        rates = new
        if moved < STILL:
            break
    return 1 / (1 - shares + shares / rates)


Speeds = Callable[[IntArray, IntArray, FloatArray, FloatArray, FloatArray], FloatArray]
SHARING: Mapping[Sharing, Speeds] = {"always": always, "interleaved": interleaved, "duty": duty}


def random_always(share: float, oversubscription: float) -> float:
    """Speed of jobs at random over a full cluster where everybody sends always: all bytes go over uplinks
    that are ``oversubscription`` times too slow."""
    return 1 / (1 - share + share * max(1.0, oversubscription))
