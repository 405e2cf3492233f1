"""Schedules of one optical switch that is set again and again until a demand is carried.

A configuration is a partial matching, [n] destinations by source, -1 where it is dark, and how long it
stands. While the switch goes from one to the next it is dark, so few configurations that stand long lose
little to the dark time, and many short ones little to pairs that have nothing left to send.

Demand is counted in whole units, so that what is left of it can come to exactly 0. Whole numbers below 2^53
in sum (bytes) stay what they are; others are rounded up to a power of two that is at most 2^-51 of what the
busiest GPU sends or receives.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ringlight.fabric.allocation.circuits import permutations
from ringlight.fabric.allocation.demand import check_demand
from ringlight.fabric.steps import BoolArray, IntArray

#: A configuration and its share of the time, or its seconds.
Configuration = tuple[IntArray, float]


def birkhoff(demand: npt.ArrayLike) -> list[Configuration]:
    """Configurations and their shares of the time (sum 1) that carry the demand with no time lost.

    The demand is filled up until each GPU sends and receives as much as the busiest one; such a matrix is a
    sum of weighted permutations (Birkhoff, 1946; von Neumann, 1953). Of those that can come next, the one
    that may stand longest does, so that there are few. In the time that the busiest GPU needs, each pair is
    joined for at least as long as its demand needs; a pair without demand never is. A demand of zeros has no
    configurations. Raises ValueError as ``check_demand``.
    """
    wanted, _ = _whole(demand)
    left = _filled(wanted)
    total = int(left[0].sum())
    found: list[tuple[IntArray, int]] = []
    while left.any():
        chosen = _longest(left)
        found.append((np.where(_at(wanted, chosen) > 0, chosen, -1), _serve(left, chosen)))
    return [(configuration, units / total) for configuration, units in found]


def solstice(demand: npt.ArrayLike, rate_bps: float, dark_s: float) -> list[Configuration]:
    """Configurations and seconds that carry the whole demand (bytes), knowing the dark time before each.

    After Solstice (Liu et al., CoNEXT 2015): the demand is filled up to equal sums and cut into slices, each
    a permutation of pairs that all have at least a threshold left, a power of two. When there is no such
    permutation, the threshold is halved. There, a packet switch carries what is left over; here there is
    none. So before each halving the schedule is also ended in two ways: with what is left in as few
    configurations as can hold it, or with pairs that have about as much left in one configuration. The
    schedule that is over first is taken. Slices shorter than the dark time are not tried.

    Raises ValueError as ``check_demand``, for a rate that is not above 0 and a dark time below 0.
    """
    if not (math.isfinite(rate_bps) and rate_bps > 0):
        raise ValueError(f"rate_bps: the rate of a circuit must be above 0, not {rate_bps}")
    if not (math.isfinite(dark_s) and dark_s >= 0):
        raise ValueError(f"dark_s: the dark time must be 0 or more, not {dark_s}")
    wanted, units_per_byte = _whole(demand)
    per_s = units_per_byte * rate_bps / 8
    left = _filled(wanted)
    slices: list[Configuration] = []
    ended: list[list[Configuration]] = []
    threshold = 1 << max(int(left.max()).bit_length() - 1, 0)
    while wanted.any() and threshold and threshold / per_s >= dark_s:
        chosen = _perfect(left >= threshold)
        if chosen is None:
            ended += [slices + end for end in _ends(wanted, per_s)]
            threshold //= 2
            continue
        useful = np.where(_at(wanted, chosen) > 0, chosen, -1)
        most = int(_at(wanted, chosen).max())
        units = _serve(left, chosen)
        if most:
            _serve(wanted, chosen, units)
            slices.append((useful, min(units, most) / per_s))
    ended += [slices + end for end in _ends(wanted, per_s)]
    return min(ended, key=lambda schedule: total_s(schedule, dark_s))


def total_s(schedule: Sequence[Configuration], dark_s: float) -> float:
    """How long configurations with their seconds take, each with the dark time before it."""
    return math.fsum(seconds for _, seconds in schedule) + dark_s * len(schedule)


def _whole(demand: npt.ArrayLike) -> tuple[IntArray, float]:
    """The demand in whole units, and how many of them there are to one unit of the demand."""
    matrix = check_demand(demand)
    busiest = float(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))
    scale = 1.0
    if busiest >= 2**53 or np.any(matrix != np.floor(matrix)):
        scale = math.ldexp(1.0, min(52 - math.frexp(busiest)[1], 1023))
    return np.ceil(matrix * scale).astype(np.int64), scale


def _filled(wanted: IntArray) -> IntArray:
    """Raise ``wanted`` until each row and column has the same sum: that of the busiest GPU.

    Pairs that have a demand are filled up first, so that few others get any.
    """
    filled = wanted.copy()
    out, into = wanted.sum(axis=1), wanted.sum(axis=0)
    busiest = max(int(out.max()), int(into.max()))
    room_out, room_in = (busiest - out).tolist(), (busiest - into).tolist()

    def fill(i: int, j: int) -> None:
        more = min(room_out[i], room_in[j])
        filled[i, j] += more
        room_out[i] -= more
        room_in[j] -= more

    for i, j in zip(*(ends.tolist() for ends in np.nonzero(wanted)), strict=True):
        fill(i, j)
    i = j = 0
    while i < len(room_out) and j < len(room_in):
        fill(i, j)
        i, j = i + (not room_out[i]), j + (not room_in[j])
    return filled


def _at(matrix: IntArray, chosen: IntArray) -> IntArray:
    values: IntArray = matrix[np.arange(len(chosen)), chosen]
    return values


def _serve(left: IntArray, chosen: IntArray, units: int | None = None) -> int:
    """Take ``units``, or what there is, from each chosen pair; None: the least that any of them has."""
    there = _at(left, chosen)
    units = int(there.min()) if units is None else units
    left[np.arange(len(chosen)), chosen] = np.maximum(there - units, 0)
    return units


def _perfect(allowed: BoolArray) -> IntArray | None:
    """Allowed destinations, all different, one for each source; None when there is no such permutation."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    partner = maximum_bipartite_matching(csr_array(allowed), perm_type="column")
    return None if (partner < 0).any() else partner.astype(np.int64)


def _longest(left: IntArray) -> IntArray:
    """The permutation whose least entry is greatest, of a matrix with equal sums."""
    values = np.unique(left[left > 0])
    found: dict[int, IntArray] = {}

    def too_much(value: int) -> bool:
        chosen = _perfect(left >= value)
        if chosen is not None:
            found[value] = chosen
        return chosen is None

    bisect_left(values.tolist(), True, key=too_much)
    return found[max(found)]


def _ends(wanted: IntArray, per_s: float) -> Iterator[list[Configuration]]:
    """What is wanted, each pair at once in one configuration, which stands until its last pair is done.

    First in as few configurations as the most partners of a GPU, then by size: from the greatest on, each
    pair goes into the first configuration in which both of its ends are free.
    """
    partners = wanted > 0
    fewest = max(int(partners.sum(axis=0).max()), int(partners.sum(axis=1).max()))
    few = permutations(partners, fewest) if fewest else ()
    yield [(chosen, float(_at(wanted, chosen)[chosen >= 0].max()) / per_s) for chosen in few]

    by_size: list[Configuration] = []
    taken_out: list[set[int]] = [set() for _ in wanted]
    taken_in: list[set[int]] = [set() for _ in wanted]
    sources, destinations = np.nonzero(wanted)
    greatest_first = np.argsort(-wanted[sources, destinations], kind="stable")
    for i, j in zip(sources[greatest_first].tolist(), destinations[greatest_first].tolist(), strict=True):
        busy = taken_out[i] | taken_in[j]
        place = next(k for k in range(len(busy) + 1) if k not in busy)
        if place == len(by_size):
            by_size.append((np.full(len(wanted), -1), int(wanted[i, j]) / per_s))
        by_size[place][0][i] = j
        taken_out[i].add(place)
        taken_in[j].add(place)
    yield by_size
