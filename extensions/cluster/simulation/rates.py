"""Speeds of jobs that share links: rates that hold until the next job comes, goes or is moved.

A job computes and sends in turn; at ideal speed it sends for a share ``f`` of the time, each GPU at its full
rate. A job's links are given as ``offsets`` [jobs + 1], ``links`` and ``weights``: how many GPUs' rates leave
over each of its links. The ``capacity`` of a link is also in GPUs' rates. All GPUs of a job send at one rate,
since a collective waits for its slowest flow, so the jobs' rates are shared max-min fairly (Bertsekas and
Gallager, Data Networks, 6.5.2).

A trace does not show whether jobs send at the same moments. Two bounds hold the truth, and a model lies
between:

- ``always``: all jobs send all the time, so that they always meet. A rate r makes the speed 1 / (1 - f + f
  / r).
- ``interleaved``: no job sends while another needs the link, as far as the link has time for all.
- ``duty``: each job finds the others sending for their shares of the time, at independent moments (a mean
  field).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ringlight.extensions.cluster.clusters import Sharing
from ringlight.testbed.simulation.arrays import FloatArray, IntArray

#: Speeds of the mean field are found in so many rounds at the most, or when none changes by more than this.
#: Should they swing, they move half as far from some round on.
ROUNDS, STILL, SWINGS = 60, 1e-4, 20
#: Rates at which the mean field looks at links, as shares of a GPU's full one.
LEVELS = np.array([0.25, 0.5, 1.0])
#: Links of one job are mostly busy together, as others cross several of them, too: how likely one is busy
#: where another is calm, and how many more count, as links of large jobs go together. Chosen by comparison
#: with on-off simulations of links, fabrics, trees, and 32 switches of 64 GPUs.
MORE, FURTHER = 0.125, 4
#: Rates that differ by less are equal: a spread is the root of what rounding leaves of a difference.
EQUAL = 1 - 1e-6

#: Speeds that held before, 1 of jobs that are new; and how fast each job could go on each of its links, which
#: the mean field writes.
Last = tuple[FloatArray, FloatArray]


def rates_of(speed: FloatArray, shares: FloatArray) -> FloatArray:
    """Return the rates at which jobs have these speeds, as shares of the full rate."""
    return shares / (1 / speed - 1 + shares)


def shared(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    caps: FloatArray,
) -> FloatArray:
    """Return the max-min fair rate of each job, at most its cap.

    Rates rise together; a job's rate stops at its cap, or when one of its links is full. Each round stops at
    least one job, so rounds are bounded by the number of jobs. Jobs without links have their caps.
    """
    rates, open_ = caps.copy(), np.diff(offsets) > 0
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
            rates[stopped] = caps[stopped]
        else:
            # Sums that are equal except for rounding are full together.
            full = level <= lowest * (1 + 1e-12)
            stopped = np.zeros(len(caps), dtype=np.bool_)
            stopped[owner[mine & full[links]]] = True
            stopped &= open_
            rates[stopped] = lowest
        gone = stopped[owner]
        left -= np.bincount(links[gone], (weights * rates[owner])[gone], len(capacity))
        open_ &= ~stopped
    return rates


def always(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return the speeds if all jobs send all the time, as shares of ideal speed."""
    rates = shared(offsets, links, weights, capacity, np.ones(len(shares)))
    return 1 / (1 - shares + shares / rates)


def alone(
    offsets: IntArray, links: IntArray, weights: FloatArray, capacity: FloatArray
) -> FloatArray:
    """Return the rate of each job as if it were the only one, as a share of the full rate."""
    own = np.append(capacity[links] / weights, np.inf)
    empty = np.diff(offsets) == 0
    narrowest = (
        np.minimum.reduceat(own, offsets[:-1]) if len(offsets) > 1 else np.zeros(0)
    )
    return np.where(empty, 1.0, np.minimum(narrowest, 1.0))


def interleaved(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return the speeds if no job sends while another needs the link, as shares of ideal speed.

    A link must have time for all jobs.
    """
    most = 1 / (1 - shares + shares / alone(offsets, links, weights, capacity))
    owner = np.repeat(np.arange(len(shares)), np.diff(offsets))
    return shared(offsets, links, weights * shares[owner], capacity, most)


def duty(
    offsets: IntArray,
    links: IntArray,
    weights: FloatArray,
    capacity: FloatArray,
    shares: FloatArray,
    last: Last | None = None,
) -> FloatArray:
    """Return the speeds in a mean field: to each job the others are sending for their share of the time,
    independently.

    At a rate r, a job's link also carries the load of every other job: r of each of its GPUs, or less if
    another link holds that job back. The load varies with the jobs that send. A link is taken as busy, with
    its mean load and one standard deviation more, or as calm, with one less, both for half of the time. The
    rate at which it is full is the geometric mean of both: the arithmetic one is right if others come and go
    quickly next to a job's own sending, the harmonic one if they stay. A job has the rate of its worst link,
    and if one link is calm, another is busy with the probability ``MORE``.

    With ``last`` the search begins where the last one ended, which is near if few jobs came or went.
    """
    lengths = np.diff(offsets)
    owner, some = np.repeat(np.arange(len(shares)), lengths), lengths > 0
    firsts, room = offsets[:-1][some], capacity[links]
    cells = (links[:, None] * len(LEVELS) + np.arange(len(LEVELS))).ravel()

    def of_others(puts: FloatArray) -> FloatArray:
        """Return the load of all other jobs on each job's link, as a number of GPUs' full rates."""
        sums = np.bincount(cells, puts.ravel(), len(capacity) * len(LEVELS))
        return sums.reshape(-1, len(LEVELS))[links] - puts

    def least(values: FloatArray) -> FloatArray:
        """Return the least share of each job's links; 1 without any."""
        lowest = np.ones(len(shares))
        lowest[some] = np.minimum.reduceat(values, firsts)
        return lowest

    speed, level = (np.ones(len(shares)), np.ones(len(links))) if last is None else last
    rates = rates_of(speed, shares)
    for number in range(ROUNDS):
        on = (shares / rates) / (1 - shares + shares / rates)
        narrowest = least(level)
        own = level <= narrowest[owner]
        second = least(np.where(own, 1.0, level))
        several = np.bincount(owner, own, len(shares)) > 1
        elsewhere = np.where(own & ~several[owner], second[owner], narrowest[owner])
        puts = weights[:, None] * np.minimum(elsewhere[:, None], LEVELS)
        mean = of_others(on[owner, None] * puts)
        spread = np.sqrt(
            np.maximum(of_others((on * (1 - on))[owner, None] * puts**2), 0.0)
        )
        mine = weights[:, None] * LEVELS
        busy = _full_at(mine + mean + spread, room)
        calm = _full_at(mine + np.maximum(mean - spread, 0.0), room)
        level = np.sqrt(busy * calm)
        worst, best = least(busy), least(calm)
        short = busy < best[owner] * EQUAL
        count = np.bincount(owner, short, len(shares))
        logs = np.bincount(
            owner, np.where(short, np.log(busy), 0.0), len(shares)
        ) / np.maximum(count, 1.0)
        quiet = (1 - MORE) ** np.clip(count - 1, 0, FURTHER)
        new = np.where(
            count > 0, np.sqrt(worst * best**quiet * np.exp((1 - quiet) * logs)), best
        )
        moved = float(np.abs(new - rates).max(initial=0.0))
        rates = new if number < SWINGS else (new + rates) / 2
        if moved < STILL:
            break
    if last is not None:
        last[1][:] = level
    return 1 / (1 - shares + shares / rates)


def _full_at(loads: FloatArray, room: FloatArray) -> FloatArray:
    """Return the rate at which each link is full. ``loads`` are known at ``LEVELS`` and taken as linear in
    between.
    """
    rows = np.arange(len(room))
    over = loads > room[:, None]
    after = np.argmax(over, 1)
    low = np.where(after, loads[rows, after - 1], 0.0)
    below = np.where(after, LEVELS[after - 1], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = below + (LEVELS[after] - below) * (room - low) / (
            loads[rows, after] - low
        )
    return np.where(over[:, -1], levels, 1.0)


class Speeds(Protocol):
    """Speeds of jobs whose links are given as this module has them."""

    def __call__(
        self,
        offsets: IntArray,
        links: IntArray,
        weights: FloatArray,
        capacity: FloatArray,
        shares: FloatArray,
        last: Last | None = None,
        /,
    ) -> FloatArray: ...


SHARING: Mapping[Sharing, Speeds] = {
    "always": always,
    "interleaved": interleaved,
    "duty": duty,
}
