"""Circuits through parallel optical switches: how many for each pair of GPUs, and where.

Each GPU has one fibre into and one out of each of Q switches. Light goes one way, so what a switch is set to
is a partial matching of sources to destinations. A pair has as many circuits as there are switches that join
it, and each circuit has the same rate.

A demand is a matrix [n, n], source by destination. The *relative* demand is the demand divided by its
greatest entry, and *z* is the least number of circuits per relative demand, over all pairs that have any.
No integer program is needed for the greatest z. Any matrix of whole numbers whose rows and columns sum to at
most Q is a sum of Q partial matchings (Kőnig, 1916), so only the ports of each GPU count.

Beyond z a plan is max-min fair among the pairs, by progressive filling (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2): all pairs rise together in circuits per demand; when a GPU has no ports left
for that, its pairs stop, and the others go on. If circuits could be divided, that would be the one plan
whose sorted ratios are lexicographically greatest. Circuits are whole, so pairs whose ratios are alike get
another circuit all at once or, if a GPU cannot give it to all of them, none: transfers of one step wait
for the slowest, and a circuit for one of seven equal pairs would be taken from others in vain. (The
lexicographic optimum over single pairs, a fair integral flow as of Frank and Murota, 2022, does just that.)
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.fabric.steps import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class CircuitPlan:
    """``counts`` [n, n]: circuits from source (row) to destination (column); the diagonal is 0.

    ``z``: least circuits per relative demand, infinite when no GPU has anything to send. ``bound``: what is
    proved that no plan with as many switches exceeds.
    """

    counts: IntArray
    z: float
    bound: float


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs that have a demand, as arrays, and the switches for them."""

    gpus: int
    sources: IntArray
    destinations: IntArray
    relative: FloatArray
    switches: int

    @classmethod
    def of(cls, demand: npt.ArrayLike, switches: int) -> _Pairs:
        matrix = check_demand(demand)
        if switches < 1:
            raise ValueError(f"switches: there must be at least 1, not {switches}")
        sources, destinations = np.nonzero(matrix)
        relative = matrix[sources, destinations]
        if len(relative):
            relative = relative / relative.max()
        return cls(len(matrix), sources, destinations, relative, switches)

    def sums(self, values: IntArray | FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the sums of a value of each pair, by source and by destination."""
        return (
            np.bincount(self.sources, values, self.gpus).astype(np.float64),
            np.bincount(self.destinations, values, self.gpus).astype(np.float64),
        )

    def partners(self) -> tuple[FloatArray, FloatArray]:
        """Return how many other GPUs each GPU sends to, and how many it receives from."""
        return self.sums(np.ones_like(self.sources))

    def check_degree(self, names: Sequence[str] | None = None) -> None:
        """Raise ValueError naming the GPU that has more partners than there are switches."""
        join = (
            "1 switch joins" if self.switches == 1 else f"{self.switches} switches join"
        )
        for degree, verb in zip(
            self.partners(), ("sends to", "receives from"), strict=True
        ):
            gpu = int(degree.argmax())
            if degree[gpu] > self.switches:
                raise ValueError(
                    f"demand: GPU {names[gpu] if names else gpu} {verb} {degree[gpu]:.0f} others, "
                    f"and {join} it to at most {self.switches}"
                )

    def line_bound(self) -> float:
        """Return an upper bound of z, a number of circuits.

        A GPU has at most Q circuits for all that it sends or receives.
        """
        if not len(self.relative):
            return float("inf")
        return self.switches / max(
            float(load.max()) for load in self.sums(self.relative)
        )

    def plan(self, counts: IntArray, bound: float) -> CircuitPlan:
        """Return the plan with these circuits of each pair. ``bound``: upper bound of z."""
        matrix = np.zeros((self.gpus, self.gpus), dtype=np.int64)
        matrix[self.sources, self.destinations] = counts
        z = float((counts / self.relative).min(initial=float("inf")))
        return CircuitPlan(matrix, z, bound)


def check_degree(
    demand: npt.ArrayLike, switches: int, names: Sequence[str] | None = None
) -> None:
    """Check that no GPU has more partners than there are switches.

    ``names``: names of the GPUs in messages; if None, their numbers. Raises ValueError for a demand that
    ``check_demand`` rejects, for fewer than 1 switch, and naming the GPU.
    """
    _Pairs.of(demand, switches).check_degree(names)


def single_shot(demand: npt.ArrayLike, switches: int) -> CircuitPlan:
    """Return the plan with the greatest z. The circuits that are then left are shared as the module says.

    First each pair gets the circuits that it needs for z. Then, again and again, the pairs that have the
    fewest circuits per demand get one more each. If a GPU has fewer free ports than such pairs, these pairs
    get none, then or later. Ports that are free at the end go one by one to the pair that waits longest for
    its bytes; no port stays dark that a pair with a demand could use. Pairs without demand get none.
    Demands that differ by at most 0.1 % count as equal, such as the demands of equal pieces that a few bytes
    do not divide into. If no demands differ so little, z is the greatest possible, exactly. Otherwise
    ``bound`` limits the distance from the greatest z. k times as many switches have at least k times the z,
    so a demand never takes longer over them. No plan can promise this of other numbers: three equal pairs
    have a third of a GPU's light each with 3 switches, and one of them a quarter with 4.
    Raises ValueError for a demand that ``check_demand`` rejects, for fewer than 1 switch, and naming the GPU
    that sends to or receives from more others than there are switches.
    """
    pairs = _Pairs.of(demand, switches)
    pairs.check_degree()
    return pairs.plan(*_fair(pairs))


def patient_shot(demand: npt.ArrayLike, switches: int) -> CircuitPlan:
    """Return a plan like ``single_shot``, for GPUs with more partners than switches.

    The least demands of such GPUs wait. The first circuit of each pair is given in the order of the demands,
    the greatest first (of equal ones that of the lowest source, then destination), if both GPUs have a free
    port. z is 0 if a pair waits, as it is for every plan. Raises ValueError for a demand that
    ``check_demand`` rejects, and for fewer than 1 switch.
    """
    pairs = _Pairs.of(demand, switches)
    sources, destinations = pairs.sources.tolist(), pairs.destinations.tolist()
    ports_out, ports_in = [switches] * pairs.gpus, [switches] * pairs.gpus
    joined = np.zeros(len(sources), dtype=np.bool_)
    for pair in np.argsort(-pairs.relative, kind="stable").tolist():
        i, j = sources[pair], destinations[pair]
        if ports_out[i] and ports_in[j]:
            ports_out[i] -= 1
            ports_in[j] -= 1
            joined[pair] = True
    counts = np.zeros(len(sources), dtype=np.int64)
    counts[joined], bound = _fair(
        replace(
            pairs,
            sources=pairs.sources[joined],
            destinations=pairs.destinations[joined],
            relative=pairs.relative[joined],
        )
    )
    return pairs.plan(counts, bound if joined.all() else 0.0)


#: Demands, and numbers of circuits per demand, are alike that differ by no more.
_ALIKE = 1e-3


def _fair(pairs: _Pairs) -> tuple[IntArray, float]:
    """Return the circuits of each pair as ``single_shot``, and an upper bound of z.

    No GPU may have more partners than ports.
    """
    if not len(pairs.relative):
        return np.zeros(0, dtype=np.int64), float("inf")
    alike = _alike(pairs.relative)
    most = float((alike / pairs.relative).max())
    pairs = replace(pairs, relative=alike)
    counts = _for_greatest_z(pairs)
    bound = float((counts / alike).min()) * most
    ratio = counts / alike
    ports_out, ports_in = (pairs.switches - load for load in pairs.sums(counts))
    while (least := float(ratio.min())) < float("inf"):
        poorest = np.flatnonzero(ratio <= least * (1 + _ALIKE))
        sources, destinations = pairs.sources[poorest], pairs.destinations[poorest]
        out, into = (
            np.bincount(sources, minlength=pairs.gpus),
            np.bincount(destinations, minlength=pairs.gpus),
        )
        stop = (out > ports_out)[sources] | (into > ports_in)[destinations]
        rise = poorest[~stop]
        counts[rise] += 1
        ratio[rise] = counts[rise] / alike[rise]
        ratio[poorest[stop]] = np.inf
        ports_out -= np.bincount(sources[~stop], minlength=pairs.gpus)
        ports_in -= np.bincount(destinations[~stop], minlength=pairs.gpus)
    _use_up(pairs, counts, ports_out, ports_in)
    return counts, bound


def _alike(relative: FloatArray) -> FloatArray:
    """Return the values rounded up in groups, from the greatest on.

    Values at most ``_ALIKE`` below the greatest of a group become that value.
    """
    values, which = np.unique(-relative, return_inverse=True)
    levels = -values
    first = 0
    while first < len(levels):
        last = int(np.searchsorted(values, -levels[first] * (1 - _ALIKE), side="right"))
        levels[first:last] = levels[first]
        first = last
    return levels[which]


def _for_greatest_z(pairs: _Pairs) -> IntArray:
    """Return the least circuits of each pair with which z is the greatest, at least one."""
    relative = pairs.relative

    def needed(z: float) -> IntArray:
        counts = np.maximum(np.ceil(z * relative).astype(np.int64), 1)
        counts -= (counts > 1) & ((counts - 1) / relative >= z)
        return counts + (counts / relative < z)

    def too_much(z: float) -> bool:
        return any(float(load.max()) > pairs.switches for load in pairs.sums(needed(z)))

    # z is a number of circuits over somebody's demand. Rounding up costs a GPU less than a port a partner.
    loads, partners = pairs.sums(relative), pairs.partners()
    most = pairs.line_bound()
    with np.errstate(divide="ignore", invalid="ignore"):
        rooms = [
            np.nanmin((pairs.switches - p) / load)
            for load, p in zip(loads, partners, strict=True)
        ]
    least = max(float(min(rooms)), 1.0) * (1 - 1e-9)
    each = np.unique(relative)
    first = np.maximum(np.ceil(least * each), 1)
    many = np.maximum(np.floor(most * (1 + 1e-9) * each) - first + 1, 0).astype(
        np.int64
    )
    number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    candidates = np.unique((np.repeat(first, many) + number) / np.repeat(each, many))
    fitting = bisect_left(candidates.tolist(), True, key=too_much)
    return needed(float(candidates[fitting - 1]) if fitting else least)


def _use_up(
    pairs: _Pairs, counts: IntArray, ports_out: FloatArray, ports_in: FloatArray
) -> None:
    """Add a circuit wherever both ports are free, to the pair with the most demand per circuit first."""
    free = np.flatnonzero(
        (ports_out[pairs.sources] > 0) & (ports_in[pairs.destinations] > 0)
    )
    waiting = [(counts[pair] / pairs.relative[pair], pair) for pair in free.tolist()]
    heapq.heapify(waiting)
    while waiting:
        _, pair = waiting[0]
        i, j = pairs.sources[pair], pairs.destinations[pair]
        if ports_out[i] and ports_in[j]:
            ports_out[i] -= 1
            ports_in[j] -= 1
            counts[pair] += 1
            heapq.heapreplace(waiting, (counts[pair] / pairs.relative[pair], pair))
        else:
            heapq.heappop(waiting)


def permutations(counts: IntArray, switches: int) -> IntArray:
    """Return the setting of each switch for a plan's counts.

    The result [Q, n] is the destination of each source, -1 if it is dark. Every pair is joined by exactly its
    count of switches, and each row is a partial matching. The free ports are first filled with dark circuits.
    A matrix with equal sums is then halved along Euler tours as long as the sum is even. If it is odd, one
    perfect matching is taken out; there always is one.
    """
    gpus = len(counts)
    free_out, free_in = (switches - counts.sum(axis=axis) for axis in (1, 0))
    everyone = np.arange(gpus)
    sources, destinations = np.nonzero(counts)
    times = counts[sources, destinations]
    starts = np.concatenate([np.repeat(sources, times), np.repeat(everyone, free_out)])
    # A dark circuit ends at the destination's number plus the number of GPUs.
    ends = np.concatenate(
        [np.repeat(destinations, times), np.repeat(everyone, free_in) + gpus]
    )
    table = ends[np.argsort(starts, kind="stable")].reshape(gpus, switches)
    chosen = np.array(_matchings(table))
    return np.where(chosen < gpus, chosen, -1)


def _matchings(table: IntArray) -> list[IntArray]:
    """Return the perfect matchings that a table [n, k] is made of.

    Row i has the k ends of the circuits of GPU i. Every destination is k times an end (modulo n).
    """
    gpus, degree = table.shape
    if degree == 1:
        return [table[:, 0]]
    if degree % 2:
        matched = _matching(table)
        return [table[matched], *_matchings(table[~matched].reshape(gpus, degree - 1))]
    first = _every_other(
        np.repeat(np.arange(gpus), degree), table.ravel() % gpus
    ).reshape(table.shape)
    halves = (table[half].reshape(gpus, degree // 2) for half in (first, ~first))
    return [matching for half in halves for matching in _matchings(half)]


def _matching(table: IntArray) -> BoolArray:
    """Return one circuit of each row, that together end at every destination (Alon, 2003).

    Each circuit is copied so often that a power of two, at least the number of circuits, is just not exceeded
    at a GPU; copies of a circuit to itself fill up what is missing. The copies are halved until one is left
    at each GPU, each time keeping the half with fewer circuits to oneself: there are too few to last.
    """
    gpus, degree = table.shape
    halvings = (table.size - 1).bit_length()
    copies, missing = divmod(2**halvings, degree)
    everyone = np.arange(gpus)
    sources = np.concatenate([np.repeat(everyone, degree), everyone])
    ends = np.concatenate([table.ravel() % gpus, everyone])
    times = np.concatenate([np.full(table.size, copies), np.full(gpus, missing)])
    for _ in range(halvings):
        odd = np.flatnonzero(times % 2)
        kept = _every_other(sources[odd], ends[odd])
        to_itself = odd >= table.size
        if np.count_nonzero(kept & to_itself) > np.count_nonzero(~kept & to_itself):
            kept = ~kept
        times //= 2
        times[odd[kept]] += 1
    chosen: BoolArray = times[: table.size].reshape(table.shape) == 1
    return chosen


def _every_other(sources: IntArray, ends: IntArray) -> BoolArray:
    """Return half of the circuits, so that each source and each end have half of theirs.

    Each source and each end has an even number of circuits. Circuits are paired at their source and at their
    end. Both pairings together make closed walks in which the two take turns; the half is every other circuit
    of each walk.
    """
    at_source, at_end = _paired(sources), _paired(ends)
    two_on = at_end[at_source]
    # The least circuit among those 0, 2, 4, … further on, in windows twice as long each time. When that
    # changes nothing, all of each walk has been seen, and its two halves differ in it.
    least = np.arange(len(sources))
    while True:
        of_both = np.minimum(least, least[two_on])
        if np.array_equal(of_both, least):
            break
        least, two_on = of_both, two_on[two_on]
    half: BoolArray = least < least[at_source]
    return half


def _paired(keys: IntArray) -> IntArray:
    """Return partners of the same key, each the other one's; each key occurs an even number of times."""
    order = np.argsort(keys, kind="stable")
    partner = np.empty_like(order)
    partner[order] = order[np.arange(len(keys)) ^ 1]
    return partner
