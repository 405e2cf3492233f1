"""Bytes that passed each link over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.bundles import Stretch
from ringlight.testbed.simulation.link_flows import Passed

#: More numbers than this are no overview any more; 1.6 GB.
MOST = 200_000_000


@dataclass(frozen=True)
class SimulatedTraffic:
    """``bytes`` [links, bins] that passed each link in each interval of ``bin_s`` seconds, from 0 on."""

    bin_s: float
    bytes: FloatArray


def binned(
    rows: IntArray,
    begin_s: FloatArray,
    end_s: FloatArray,
    amount: FloatArray,
    shape: tuple[int, int],
    bin_s: float,
) -> FloatArray:
    """Return [rows, bins]: amounts that came evenly from each begin to its end, by row and interval of
    ``bin_s`` seconds.
    """
    bins = shape[1]
    first = np.clip((begin_s / bin_s).astype(np.int64), 0, bins - 1)
    last = np.clip((end_s / bin_s).astype(np.int64), first, bins - 1)
    whole = first == last
    totals = np.zeros(shape)
    np.add.at(totals, (rows[whole], first[whole]), amount[whole])
    some = ~whole
    rows, first, last = rows[some], first[some], last[some]
    begin_s, end_s = begin_s[some], end_s[some]
    rate = amount[some] / (end_s - begin_s)
    np.add.at(totals, (rows, first), rate * ((first + 1) * bin_s - begin_s))
    np.add.at(totals, (rows, last), rate * (end_s - last * bin_s))
    # In between the rate is full: it begins after the first bin and ends with the last.
    steady = np.zeros((shape[0], bins + 1))
    np.add.at(steady, (rows, first + 1), rate * bin_s)
    np.add.at(steady, (rows, last), -rate * bin_s)
    between = np.cumsum(steady[:, :-1], axis=1)
    # What is left of a sum that is zero except for rounding would look like traffic.
    between[
        np.abs(between) < 1e-12 * max(float(np.abs(between).max(initial=0.0)), 1e-300)
    ] = 0.0
    return np.asarray(totals + between)


def of_flows(
    passed: Sequence[Passed], links: int, bin_s: float, end_s: float
) -> SimulatedTraffic:
    """Return the bytes of the flows that an engine traced, by link and interval.

    Raises ValueError for more intervals than can be kept.
    """
    bins = _bins(links, bin_s, end_s)
    times = np.array(
        [(entry.begin_s, entry.end_s, entry.rate) for entry in passed]
    ).reshape(-1, 3)
    lengths = [len(entry.links) for entry in passed]
    rows = np.fromiter(
        (link for entry in passed for link in entry.links), np.int64, sum(lengths)
    )
    begin, end, rate = np.repeat(times, lengths, axis=0).T
    return SimulatedTraffic(
        bin_s, binned(rows, begin, end, rate * (end - begin), (links, bins), bin_s)
    )


def of_stretches(
    stretches: Sequence[Stretch], links: int, bin_s: float, end_s: float
) -> SimulatedTraffic:
    """Return the bytes of the stretches that bundles traced, by link and interval.

    Raises ValueError for more intervals than can be kept.
    """
    bins = _bins(links, bin_s, end_s)
    loads = {id(stretch.load): stretch.load for stretch in stretches}
    number = {key: k for k, key in enumerate(loads)}
    rows = np.array([number[id(stretch.load)] for stretch in stretches], dtype=np.int64)
    times = np.array(
        [(stretch.begin_s, stretch.end_s, stretch.moved) for stretch in stretches]
    ).reshape(-1, 3)
    begin, end, amount = times.T
    chunks = binned(rows, begin, end, amount, (len(loads), bins), bin_s)
    totals = np.zeros((links, bins))
    for load, moved in zip(loads.values(), chunks, strict=True):
        per_link = load.per_link(links)
        used, when = np.flatnonzero(per_link), np.flatnonzero(moved)
        totals[np.ix_(used, when)] += np.outer(per_link[used], moved[when])
    return SimulatedTraffic(bin_s, totals)


def _bins(links: int, bin_s: float, end_s: float) -> int:
    bins = max(1, math.ceil(end_s / bin_s * (1 - 1e-12)))
    if bins * links > MOST:
        raise ValueError(
            f"bin_s is {bin_s:g}: {bins} intervals of {links} links are too many to keep"
        )
    return bins
