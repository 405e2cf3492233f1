"""Lightpaths of a ring of wavelengths for a demand: each pair's number, way round and colours.

The ring is that of :mod:`extensions.wrht.wdm`: two fibres, ``wavelengths`` colours in each, and two
lightpaths of one colour share no segment of a fibre. A plan gives each pair that has something to send some
lightpaths, and its ``z`` is the least of lightpaths / demand over these pairs, demand as a share of the
greatest entry. So z is in lightpaths for the pair that sends most, and what :func:`allocate` makes great.

SiP-ML's program (Khani et al., SIGCOMM 2021, as its authors' simulator states it) bounds the load of every
segment, not the colours. :func:`allocate` decides in milliseconds and gives colours while it fills; it is
held against the program itself, ``tests/extensions/sip_ml/ring_program.py``.

Ours, because the paper's text does not state it: its rings are one with all their wavelengths, and a pair may
have lightpaths both ways round at once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ringlight.extensions.sip_ml.allocation.arc_bounds import (
    ROUND,
    Pairs,
    cut_bound,
    lightpaths_for,
    pairs_of,
    shorter_way_level,
)
from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.fabric.steps import (
    BoolArray,
    FloatArray,
    IntArray,
    Step,
    frozen,
    frozen_bool,
)

#: In segments that somebody must leave who then looks for another place: what one more costs on the longer
#: way, what one costs that somebody leaves who can do without, how much dearer each becomes with each move.
_DETOUR, _SPARE, _DEARER = 0.2, 0.02, 2.0
_NEVER = 1e9
_K = TypeVar("_K")
_V = TypeVar("_V")

#: Moves in search of room for one lightpath.
_MOVES = 100
#: A part of the ring that repeats is decided for the whole when it is this many times as long as the longest
#: of the shorter ways, so that there is room enough to lay these side by side.
_PART = 4


@dataclass(frozen=True, eq=False)
class ArcPlan:
    """Lightpaths on a ring of ``nodes`` with ``wavelengths`` colours in each direction.

    Arrays of shape [lightpaths], in order of source, destination, direction and colour: lightpath k goes from
    ``sources[k]`` to ``destinations[k]``, towards higher numbers if ``clockwise[k]``, on colour
    ``colours[k]`` of that direction's fibre. ``z``: see the module; ``bound``: no plan, coloured
    or not, has a greater z. Both are infinite when no pair sends.
    """

    nodes: int
    wavelengths: int
    sources: IntArray
    destinations: IntArray
    clockwise: BoolArray
    colours: IntArray
    z: float
    bound: float

    def counts(self) -> IntArray:
        """Return the number of lightpaths of each pair [nodes, nodes], row = source."""
        flat = self.sources * self.nodes + self.destinations
        return np.bincount(flat, minlength=self.nodes**2).reshape(
            self.nodes, self.nodes
        )

    def step(self) -> Step:
        """Return the lightpaths as a step of :mod:`fabric.steps`, each with one chunk of its own."""
        chunks = np.arange(len(self.sources))
        return Step(
            self.sources,
            self.destinations,
            frozen(chunks),
            frozen(np.ones_like(chunks)),
            "replace",
            self.colours,
            self.clockwise,
        )


def allocate(demand: npt.ArrayLike, wavelengths: int) -> ArcPlan:
    """Return lightpaths for a demand [nodes, nodes], row = source, in any unit.

    The plan's z is the best that a fast search finds, and 0 if some pair gets no lightpath. First each pair
    gets on its shorter way what the load of the segments allows. Then, again and again, the pair with the
    least lightpaths / demand gets one more. If no colour is free for that pair, other pairs must give up a
    colour: first the pairs that stay above the least, else pairs that look for another place in turn, for a
    limited number of moves. When that fails, and no colour is free on the longer way, z is fixed, and all
    colours that are still free are given in the same order.
    A demand that repeats round the ring is decided for one part of it. Raises ValueError for a demand that
    :func:`check_demand` rejects.
    """
    matrix = check_demand(demand)
    nodes = len(matrix)
    pairs = pairs_of(matrix)
    filling = _Filling(_repeating(pairs, nodes), wavelengths)
    bound = np.inf
    if len(pairs.demand):
        bound = cut_bound(pairs, matrix, wavelengths)
        filling.raise_least(bound)
    z = filling.least()
    filling.give_what_is_left()
    return _plan(filling, nodes, z, bound)


class _Kept(OrderedDict[_K, _V]):
    """A memory of the last ``most`` results by what they were asked for."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: _K, value: _V) -> _V:
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value


class Decisions:
    """:func:`allocate` with a memory of the last ``kept`` plans: a demand that is a known one times a factor
    gets the same plan. For who needs colours; numbers alone are :class:`Divisions`. Raises ValueError as
    :func:`allocate`."""

    def __init__(self, wavelengths: int, *, kept: int = 64) -> None:
        self._wavelengths = wavelengths
        self._plans: _Kept[tuple[int, bytes, bytes], ArcPlan] = _Kept(kept)

    def decide(self, demand: npt.ArrayLike) -> ArcPlan:
        matrix = check_demand(demand)
        places = np.flatnonzero(matrix)
        shares = matrix.ravel()[places]
        # A factor leaves the shares equal except for their last bits.
        shares = np.round(shares / shares.max(initial=0.0), 12)
        known = (len(matrix), places.tobytes(), shares.tobytes())
        plan = self._plans.get(known)
        return self._plans.keep(
            known, allocate(matrix, self._wavelengths) if plan is None else plan
        )


class Divisions:
    """The numbers of lightpaths of :func:`allocate` for the same pairs again and again, without matrices: on
    a large ring whose demand repeats that is a hundred times as fast.

    ``sources``, ``destinations`` [pairs]: no pair twice. Of the last ``kept`` demands the numbers are
    remembered.
    """

    def __init__(
        self,
        nodes: int,
        sources: IntArray,
        destinations: IntArray,
        wavelengths: int,
        *,
        kept: int = 64,
    ) -> None:
        self._nodes, self._wavelengths = nodes, wavelengths
        hops = (destinations - sources) % nodes
        self._order = np.lexsort((hops, sources))
        self._sources, self._hops = sources[self._order], hops[self._order]
        self._found: _Kept[tuple[bytes, bytes], IntArray] = _Kept(kept)

    def counts(self, demand: FloatArray) -> IntArray:
        """Return the number of lightpaths of each pair [pairs] for its demand [pairs], 0 or more.

        Some pairs may get none.
        """
        sorted_ = demand[self._order]
        sends = np.flatnonzero(sorted_)
        pairs = Pairs(
            self._nodes,
            self._nodes,
            self._sources[sends],
            self._hops[sends],
            sorted_[sends] / sorted_.max(initial=np.finfo(np.float64).tiny),
        )
        part = _repeating(pairs, self._nodes)
        key = (sends.tobytes(), np.round(part.demand, 12).tobytes())
        numbers = self._found.get(key)
        if numbers is None:
            numbers = self._filled(part)
        self._found.keep(key, numbers)
        counts = np.zeros(len(demand), dtype=np.int64)
        counts[self._order[sends]] = np.tile(numbers, self._nodes // part.nodes)
        return counts

    def _filled(self, part: Pairs) -> IntArray:
        filling = _Filling(part, self._wavelengths)
        if len(part.demand):
            # The bound of one part's arcs alone is no less than that of the whole ring.
            matrix = np.zeros((part.nodes, part.nodes))
            matrix[part.sources, (part.sources + part.hops) % part.nodes] = part.demand
            filling.raise_least(cut_bound(part, matrix, self._wavelengths))
        filling.give_what_is_left()
        return np.array(filling.counts, dtype=np.int64)


def _repeating(pairs: Pairs, nodes: int) -> Pairs:
    """Return the pairs of the shortest part that the demand repeats round the ring.

    The part must be long enough; if there is none, return all pairs. A plan for the part, on a ring of its
    own, laid down again and again, shares no segment twice: lightpaths of one colour that follow each other
    in it do so in the ring.
    """
    longest = int(np.minimum(pairs.hops, nodes - pairs.hops).max(initial=1))
    for part in range(_PART * longest, nodes // 2 + 1):
        if nodes % part or len(pairs.hops) % (nodes // part):
            continue
        times = nodes // part
        hops, demand = pairs.hops.reshape(times, -1), pairs.demand.reshape(times, -1)
        sources = pairs.sources.reshape(times, -1) - part * np.arange(times)[:, None]
        if (
            (hops == hops[0]).all()
            and (sources == sources[0]).all()
            and (demand == demand[0]).all()
        ):
            return Pairs(part, nodes, sources[0], hops[0], demand[0])
    return pairs


#: (fibre, first, length): segments first … first + length - 1, round the ring, of fibre 0 (clockwise) or 1.
_Way = tuple[int, int, int]


class _Filling:
    """Colours of a ring while they are given away.

    ``owner`` [2, 2 * nodes, wavelengths]: whose each colour of each segment is. The segments are there twice,
    so that every way is one slice. Nobody's is pair number ``nobody``. ``free``: as bits of a whole number
    for each segment, which of its colours are nobody's.
    """

    def __init__(self, pairs: Pairs, wavelengths: int) -> None:
        self.pairs, self.sources, self.hops = pairs, pairs.sources, pairs.hops
        self.nodes, self.wavelengths = pairs.nodes, wavelengths
        known = len(pairs.demand)
        self.nobody = known
        self.demand: list[float] = pairs.demand.tolist()
        self.counts = [0] * known
        self.ways = _ways(pairs)
        self.free = [[(1 << wavelengths) - 1] * self.nodes for _ in range(2)]
        self.owner = np.full(
            (2, 2 * self.nodes, wavelengths), self.nobody, dtype=np.int32
        )
        #: Lightpaths / demand that each pair would have with one less.
        self.after = np.full(known + 1, -np.inf)
        #: What a segment of each costs that has to leave: who is short in this ring has a long way else.
        shorter = np.array([ways[0][2] for ways in self.ways], dtype=np.float64)
        self.dear = np.append(1 - shorter / self.nodes, 0.0)

    def level(self, pair: int) -> float:
        """Return the number of lightpaths / demand of a pair."""
        return self.counts[pair] / self.demand[pair]

    def least(self) -> float:
        """Return the least number of lightpaths / demand of all pairs; infinity if there are none."""
        return min(map(self.level, range(self.nobody)), default=np.inf)

    def raise_least(self, bound: float) -> None:
        """Give lightpaths until the pair with the least lightpaths / demand cannot have one more."""
        shorter = shorter_way_level(self.pairs, self.wavelengths)
        needed = lightpaths_for(shorter, self.pairs.demand).tolist()
        for pair in sorted(range(self.nobody), key=lambda pair: -self.ways[pair][0][2]):
            way = self.ways[pair][0]
            for _ in range(needed[pair]):
                colour = self._colour(way)
                if colour is None:
                    break
                self._lay(pair, way, colour)
        # Least level first; of those that are alike the longest, for whom it is hardest to find room.
        queue = [self._entry(pair) for pair in range(self.nobody)]
        heapq.heapify(queue)
        while queue:
            level, _, pair, count = heapq.heappop(queue)
            if count != self.counts[pair]:
                continue
            if level >= bound * (1 - ROUND):
                return
            touched = self._make_room(pair, level)
            if not touched:
                # In a large ring the way round costs too much to be looked at, but it may be free.
                if not self._give(pair):
                    return
                touched = {pair}
            for other in touched:
                heapq.heappush(queue, self._entry(other))

    def give_what_is_left(self) -> None:
        """Give every colour that is still free on a pair's whole way: in rounds, the least served first."""
        hungry = list(range(self.nobody))
        while hungry:
            hungry.sort(key=self.level)
            hungry = [pair for pair in hungry if self._give(pair)]

    def _entry(self, pair: int) -> tuple[float, int, int, int]:
        count, ways = self.counts[pair], self.ways[pair]
        return count / self.demand[pair], -ways[0][2], pair, count

    def _give(self, pair: int) -> bool:
        for way in self.ways[pair]:
            colour = self._colour(way)
            if colour is not None:
                self._lay(pair, way, colour)
                return True
        return False

    def _colour(self, way: _Way) -> int | None:
        """Return a colour that is free on the whole way, or None.

        The best is one that is taken just before and just after the way.
        """
        fibre, first, length = way
        free = self.free[fibre]
        # From a negative place on, so that the end of the list is followed by its start.
        first -= self.nodes
        colours = free[first]
        for segment in range(first + 1, first + length):
            colours &= free[segment]
            if not colours:
                return None
        if not colours:
            return None
        before, behind = ~free[first - 1 + self.nodes], ~free[first + length]
        best = (colours & before & behind) or (colours & (before | behind)) or colours
        return (best & -best).bit_length() - 1

    def _lay(self, pair: int, way: _Way, colour: int) -> None:
        self._own(way, colour, pair)
        self.counts[pair] += 1
        self.after[pair] = (self.counts[pair] - 1) / self.demand[pair]

    def _remove(self, pair: int, way: _Way, colour: int) -> None:
        self._own(way, colour, self.nobody)
        self.counts[pair] -= 1
        self.after[pair] = (self.counts[pair] - 1) / self.demand[pair]

    def _own(self, way: _Way, colour: int, pair: int) -> None:
        fibre, first, length = way
        nodes, end = self.nodes, first + length
        free, bit = self.free[fibre], 1 << colour
        for segment in range(first - nodes, end - nodes):
            free[segment] ^= bit
        owner = self.owner[fibre, :, colour]
        owner[first:end] = pair
        if end <= nodes:
            owner[first + nodes : end + nodes] = pair
        else:
            owner[: end - nodes] = pair
            owner[first + nodes :] = pair

    def _make_room(self, pair: int, level: float) -> set[int]:
        """Give the pair one lightpath more, so that no other pair falls to ``level``.

        Return the pairs that have more or less lightpaths now. Lightpaths in the way leave; a pair that would
        fall to ``level`` looks for another place, in turn. Each move makes the mover dearer to drive away, so
        that the search does not go round in a circle. If it has not ended after so many moves, nothing is
        changed and the result is empty.
        """
        done: list[tuple[bool, int, _Way, int]] = []
        waiting = [pair]
        pain = np.where(self.after <= level, self.dear, _SPARE)
        pain[self.nobody] = 0.0
        for _ in range(_MOVES):
            if not waiting:
                break
            now = waiting.pop()
            way = self.ways[now][0]
            colour = self._colour(way)
            if colour is None:
                place = self._cheapest(now, pain)
                if place is None:
                    waiting.append(now)
                    break
                way, colour = place
                fibre, first, length = way
                inside = self.owner[fibre, first : first + length, colour]
                for other in dict.fromkeys(inside.tolist()):
                    if other != self.nobody:
                        its = self.ways[other][0]
                        if its[0] != fibre:
                            its = self.ways[other][1]
                        self._remove(other, its, colour)
                        done.append((False, other, its, colour))
                        if self.level(other) <= level:
                            waiting.append(other)
                        if self.after[other] <= level:
                            pain[other] = max(pain[other], self.dear[other])
            self._lay(now, way, colour)
            pain[now] += _DEARER
            done.append((True, now, way, colour))
        if waiting:
            for laid, other, way, colour in reversed(done):
                (self._remove if laid else self._lay)(other, way, colour)
            return set()
        return {other for _, other, _, _ in done}

    def _cheapest(self, pair: int, pain: FloatArray) -> tuple[_Way, int] | None:
        """Place where the pair's lightpath drives away the least; None if its own are everywhere.

        ``pain`` [pairs + 1]: what a segment of each costs.
        """
        least, cheapest = _NEVER, None
        own, pain[pair] = pain[pair], _NEVER
        shortest = self.ways[pair][0][2]
        for way in self.ways[pair]:
            fibre, first, length = way
            detour = _DETOUR * (length - shortest)
            if detour >= least:
                continue
            inside = self.owner[fibre, first : first + length]
            cost = np.add.reduce(pain.take(inside), axis=0)
            colour = int(cost.argmin())
            if cost[colour] + detour < least:
                least, cheapest = float(cost[colour]) + detour, (way, colour)
        pain[pair] = own
        return cheapest


def _ways(pairs: Pairs) -> list[list[_Way]]:
    """Return the ways of each pair, the shorter one first.

    On a part of the ring these are only ways no longer than the part.
    """
    (cw, cw_length), (ccw, ccw_length) = pairs.ways(True), pairs.ways(False)
    rows = zip(
        cw.tolist(), cw_length.tolist(), ccw.tolist(), ccw_length.tolist(), strict=True
    )
    pair_ways = []
    for first, length, other, other_length in rows:
        clockwise, counter = (0, first, length), (1, other, other_length)
        both = [clockwise, counter] if length <= other_length else [counter, clockwise]
        pair_ways.append(both if both[1][2] <= pairs.nodes else both[:1])
    return pair_ways


def _plan(filling: _Filling, nodes: int, z: float, bound: float) -> ArcPlan:
    """Return the plan of the whole ring, the part's laid down again and again."""
    part = filling.nodes
    taken = filling.owner[:, :part]
    fibre, segment, colour = np.nonzero(taken != filling.nobody)
    pair = taken[fibre, segment, colour]
    # A lightpath is found on its first segment.
    first = np.stack(
        [ways for ways, _ in (filling.pairs.ways(True), filling.pairs.ways(False))]
    )
    begins = segment == first[fibre, pair]
    pair, fibre, colour = pair[begins], fibre[begins], colour[begins]
    again = part * np.arange(nodes // part)[:, None]
    sources = filling.sources[pair] + again
    destinations = (sources + filling.hops[pair]) % nodes
    clockwise = np.broadcast_to(fibre == 0, sources.shape)
    colours = np.broadcast_to(colour, sources.shape)
    flat = [array.ravel() for array in (colours, ~clockwise, destinations, sources)]
    order = np.lexsort(flat)
    return ArcPlan(
        nodes,
        filling.wavelengths,
        frozen(flat[3][order]),
        frozen(flat[2][order]),
        frozen_bool(~flat[1][order]),
        frozen(flat[0][order]),
        z,
        bound,
    )
