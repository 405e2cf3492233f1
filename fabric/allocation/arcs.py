"""Lightpaths of a ring of wavelengths for a demand: each pair's number, way round and colours.

The ring is that of :mod:`fabric.wdm`: two fibres, ``wavelengths`` colours in each, and two lightpaths of one
colour share no segment of a fibre. A plan gives each pair that has something to send some lightpaths, and its
``z`` is the least of lightpaths / demand over these pairs, demand as a share of the greatest entry. So z is
in lightpaths for the pair that sends most, and what :func:`allocate` makes great.

SiP-ML's program (Khani et al., SIGCOMM 2021, as its authors' simulator states it) bounds the load of every
segment, not the colours. Three solvers are held against each other:

- :func:`allocate` decides in milliseconds and gives colours while it fills;
- :func:`highs_ring` is the program by HiGHS, with the bound that it proved. Cut into as many rings as there
  are wavelengths, each of one, it gives colours, too;
- :func:`load_bound` is the program's optimum by bisection. For a given z the pairs' numbers are fixed, and
  only how many of them go clockwise is open. Of two ways, one inside the other, not both need be split
  between the fibres (Wilfong and Winkler, Ring routing and wavelength translation, SODA 1998), so a linear
  program decides it in which only the sum of all that go clockwise is whole.

Ours, because the paper's text does not state it: its rings are one with all their wavelengths, and a pair may
have lightpaths both ways round at once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from fabric.allocation.demand import FloatArray, check_demand
from fabric.steps import BoolArray, IntArray, Step, frozen, frozen_bool

#: Rounding of sums of demand: a ratio this close to a whole number is that number.
_ROUND = 1e-9
#: In segments that somebody must leave who then looks for another place: what one more costs on the longer
#: way, what one costs that somebody leaves who can do without, how much dearer each becomes with each move.
_DETOUR, _SPARE, _DEARER = 0.2, 0.02, 2.0
_NEVER = 1e9
#: Moves in search of room for one lightpath.
_MOVES = 100
#: Arcs of nodes that the bound looks at in whole lightpaths.
_ARCS = 64
#: A part of the ring that repeats is decided for the whole when it is this many times as long as the longest
#: of the shorter ways, so that there is room enough to lay these side by side.
_PART = 4


@dataclass(frozen=True, eq=False)
class ArcPlan:
    """Lightpaths on a ring of ``nodes`` with ``wavelengths`` colours in each direction.

    Arrays of shape [lightpaths], in order of source, destination, direction and colour: lightpath k goes from
    ``sources[k]`` to ``destinations[k]``, towards higher numbers where ``clockwise[k]``, on colour
    ``colours[k]`` of that direction's fibre. ``z``: see the module; ``bound``: no plan, coloured
    or not, has a greater z. Both are infinite when nobody sends.
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
        """Lightpaths of each pair [nodes, nodes], row = source."""
        flat = self.sources * self.nodes + self.destinations
        return np.bincount(flat, minlength=self.nodes**2).reshape(self.nodes, self.nodes)

    def step(self) -> Step:
        """The lightpaths as a step of :mod:`fabric.steps`, each with one chunk of its own."""
        chunks = np.arange(len(self.sources))
        return Step(
            self.sources, self.destinations, frozen(chunks), frozen(np.ones_like(chunks)), "replace",
            self.colours, self.clockwise,
        )  # fmt: skip


def allocate(
    demand: npt.ArrayLike, wavelengths: int, *, most_per_pair: int | None = None, partial: bool = False
) -> ArcPlan:
    """Lightpaths for a demand [nodes, nodes], row = source, in any unit; z is what a fast search reaches.

    First each pair gets on its shorter way what the load of the segments allows. Then, again and again, the
    pair with the least lightpaths / demand gets one more. If no colour is free for it, others must leave one:
    first those who stay above the least, else they look for another place in turn, for a limited number of
    moves. When that fails, and no colour is free on the longer way, z is found, and all colours that are
    still free are given in the same order.

    A demand that repeats round the ring is decided for one part of it.

    ``most_per_pair``: most lightpaths of one pair. ``partial``: some pair may go without any (z = 0). Raises
    ValueError as :func:`check_demand`, for ``most_per_pair`` out of range, and, unless ``partial``, naming
    a pair that no lightpath was found for.
    """
    matrix = check_demand(demand)
    most = _checked(wavelengths, most_per_pair)
    nodes = len(matrix)
    pairs = _pairs(matrix)
    part = _repeating(pairs, nodes)
    filling = _Filling(part, wavelengths, most)
    bound = np.inf
    if len(pairs.demand):
        bound = min(_cut_bound(pairs, matrix, wavelengths), float(most))
        filling.raise_least(bound)
    z = filling.least()
    if z == 0 and not partial:
        without = filling.counts.index(0)
        a, hops = int(part.sources[without]), int(part.hops[without])
        raise ValueError(
            f"demand: no lightpath found from {a} to {(a + hops) % nodes}: {wavelengths} wavelengths in each "
            f"direction for {len(pairs.demand)} pairs"
        )
    filling.give_what_is_left()
    return _plan(filling, nodes, z, bound)


class Decisions:
    """:func:`allocate` with a memory of the last ``kept`` plans: a demand that is a known one times a factor
    gets the same plan. Raises ValueError as that."""

    def __init__(self, wavelengths: int, *, most_per_pair: int | None = None, kept: int = 64) -> None:
        self._wavelengths = wavelengths
        self._most = _checked(wavelengths, most_per_pair) if most_per_pair is not None else None
        self._kept = kept
        self._plans: OrderedDict[tuple[int, bytes, bytes], ArcPlan] = OrderedDict()

    def decide(self, demand: npt.ArrayLike, *, partial: bool = False) -> ArcPlan:
        matrix = check_demand(demand)
        places = np.flatnonzero(matrix)
        shares = matrix.ravel()[places]
        # A factor leaves the shares alike but for their last bits.
        shares = np.round(shares / shares.max(initial=0.0), 12)
        known = (len(matrix), places.tobytes(), shares.tobytes())
        plan = self._plans.get(known)
        if plan is None or (plan.z == 0 and not partial):
            plan = allocate(matrix, self._wavelengths, most_per_pair=self._most, partial=partial)
        self._plans[known] = plan
        self._plans.move_to_end(known)
        while len(self._plans) > self._kept:
            self._plans.popitem(last=False)
        return plan


def _checked(wavelengths: int, most_per_pair: int | None) -> int:
    """Most lightpaths of a pair. Raises ValueError naming the number that does not fit."""
    if wavelengths < 1:
        raise ValueError(f"wavelengths: a ring needs at least 1, not {wavelengths}")
    most = 2 * wavelengths if most_per_pair is None else most_per_pair
    if not 1 <= most <= 2 * wavelengths:
        raise ValueError(
            f"most_per_pair: {most} does not fit; with {wavelengths} wavelengths in each direction a pair "
            f"has 1 to {2 * wavelengths} lightpaths"
        )
    return most


class _Pairs(NamedTuple):
    """Who sends to whom on ``nodes`` nodes, maybe a part of ``around``: arrays of shape [pairs], by source.

    ``hops``: clockwise, in all of the ring. ``demand``: as a share of the greatest.
    """

    nodes: int
    around: int
    sources: IntArray
    hops: IntArray
    demand: FloatArray

    def ways(self, clockwise: bool) -> tuple[IntArray, IntArray]:
        """(first segment, segments passed) of each pair's way in that direction, as ascending segments."""
        if clockwise:
            return self.sources, self.hops
        return (self.sources + self.hops) % self.nodes, self.around - self.hops


def _pairs(matrix: FloatArray) -> _Pairs:
    nodes = len(matrix)
    shares = matrix / max(float(matrix.max()), np.finfo(np.float64).tiny)
    sources, destinations = np.nonzero(shares)
    hops = (destinations - sources) % nodes
    order = np.lexsort((hops, sources))
    sources, hops = sources[order], hops[order]
    return _Pairs(nodes, nodes, sources, hops, shares[sources, (sources + hops) % nodes])


def _repeating(pairs: _Pairs, nodes: int) -> _Pairs:
    """The pairs of the shortest part that the demand repeats round the ring, and that is long enough.

    A plan for the part, on a ring of its own, laid down again and again, shares no segment twice: lightpaths
    of one colour that follow each other in it do so in the ring.
    """
    longest = int(np.minimum(pairs.hops, nodes - pairs.hops).max(initial=1))
    for part in range(_PART * longest, nodes // 2 + 1):
        if nodes % part or len(pairs.hops) % (nodes // part):
            continue
        times = nodes // part
        hops, demand = pairs.hops.reshape(times, -1), pairs.demand.reshape(times, -1)
        sources = pairs.sources.reshape(times, -1) - part * np.arange(times)[:, None]
        if (hops == hops[0]).all() and (sources == sources[0]).all() and (demand == demand[0]).all():
            return _Pairs(part, nodes, sources[0], hops[0], demand[0])
    return pairs


#: (fibre, first, length): segments first … first + length - 1, round the ring, of fibre 0 (clockwise) or 1.
_Way = tuple[int, int, int]


class _Filling:
    """Colours of a ring while they are given away.

    ``owner`` [2, 2 * nodes, wavelengths]: whose each colour of each segment is. The segments are there twice,
    so that every way is one slice. Nobody's is pair number ``nobody``. ``free``: as bits of a whole number
    for each segment, which of its colours are nobody's.
    """

    def __init__(self, pairs: _Pairs, wavelengths: int, most: int) -> None:
        self.pairs, self.sources, self.hops = pairs, pairs.sources, pairs.hops
        self.nodes, self.wavelengths, self.most = pairs.nodes, wavelengths, most
        known = len(pairs.demand)
        self.nobody = known
        self.demand: list[float] = pairs.demand.tolist()
        self.counts = [0] * known
        self.ways = _ways(pairs)
        self.free = [[(1 << wavelengths) - 1] * self.nodes for _ in range(2)]
        self.owner = np.full((2, 2 * self.nodes, wavelengths), self.nobody, dtype=np.int32)
        #: Lightpaths / demand that each pair would have with one less.
        self.after = np.full(known + 1, -np.inf)
        #: What a segment of each costs that has to leave: who is short in this ring has a long way else.
        shorter = np.array([ways[0][2] for ways in self.ways], dtype=np.float64)
        self.dear = np.append(1 - shorter / self.nodes, 0.0)

    def level(self, pair: int) -> float:
        return self.counts[pair] / self.demand[pair]

    def least(self) -> float:
        return min(map(self.level, range(self.nobody)), default=np.inf)

    def raise_least(self, bound: float) -> None:
        """Gives lightpaths until the pair with the least lightpaths / demand cannot have one more."""
        shorter = _shorter_way_level(self.pairs, self.wavelengths)
        wanted = np.minimum(_numbers(shorter, self.pairs.demand), self.most).tolist()
        for pair in sorted(range(self.nobody), key=lambda pair: -self.ways[pair][0][2]):
            way = self.ways[pair][0]
            for _ in range(wanted[pair]):
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
            if count == self.most or level >= bound * (1 - _ROUND):
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
        """Gives every colour that is still free on a pair's whole way: in rounds, the least served first."""
        hungry = list(range(self.nobody))
        while hungry:
            hungry.sort(key=self.level)
            hungry = [pair for pair in hungry if self.counts[pair] < self.most and self._give(pair)]

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
        """A colour that is free on the whole way; best one that is taken just before and just after it."""
        fibre, first, length = way
        free = self.free[fibre]
        # From a negative place on, so that the end of the list is followed by its start.
        first -= self.nodes
        found = free[first]
        for segment in range(first + 1, first + length):
            found &= free[segment]
            if not found:
                return None
        if not found:
            return None
        before, behind = ~free[first - 1 + self.nodes], ~free[first + length]
        best = (found & before & behind) or (found & (before | behind)) or found
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
        """One lightpath more for the pair, so that nobody else falls to ``level``; who has more or less now.

        Those in the way leave; who would fall to ``level`` looks for another place, in turn. Each move makes
        the mover dearer to drive away, so that the search does not go round in a circle. Empty, and nothing
        changed, when it has not ended after so many moves.
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
        """Where the pair's lightpath drives away the least; None where its own are everywhere.

        ``pain`` [pairs + 1]: what a segment of each costs.
        """
        least, found = _NEVER, None
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
                least, found = float(cost[colour]) + detour, (way, colour)
        pain[pair] = own
        return found


def _ways(pairs: _Pairs) -> list[list[_Way]]:
    """The ways of each pair, the shorter one first; on a part of the ring only those no longer than it."""
    (cw, cw_length), (ccw, ccw_length) = pairs.ways(True), pairs.ways(False)
    rows = zip(cw.tolist(), cw_length.tolist(), ccw.tolist(), ccw_length.tolist(), strict=True)
    found = []
    for first, length, other, other_length in rows:
        clockwise, counter = (0, first, length), (1, other, other_length)
        both = [clockwise, counter] if length <= other_length else [counter, clockwise]
        found.append(both if both[1][2] <= pairs.nodes else both[:1])
    return found


def _numbers(level: float, demand: FloatArray) -> IntArray:
    """Lightpaths that each pair needs, so that all have at least ``level`` of them / demand."""
    return np.ceil(level * demand * (1 - _ROUND)).astype(np.int64)


def _cut_bound(pairs: _Pairs, matrix: FloatArray, wavelengths: int) -> float:
    """What no plan's z exceeds: all that leaves an arc of nodes does so over one of its two ends, hence on at
    most 2 * ``wavelengths`` lightpaths, each a whole one.

    Only the arcs that are narrowest for parts of lightpaths are looked at in whole ones.
    """
    nodes = len(matrix)
    total = np.zeros((nodes + 1, nodes + 1))
    matrix.cumsum(axis=0, out=total[1:, 1:])
    total.cumsum(axis=1, out=total)
    rows, columns, own = total[:, -1].copy(), total[-1].copy(), total.diagonal().copy()
    a, b = np.triu_indices(nodes + 1, 1)
    # What leaves nodes a … b - 1, and what leaves all the others.
    inside = own[b] + own[a] - total[a, b] - total[b, a]
    leave = np.concatenate([rows[b] - rows[a] - inside, columns[b] - columns[a] - inside])
    narrow = np.argpartition(leave, -_ARCS)[-_ARCS:] if len(leave) > _ARCS else np.arange(len(leave))
    others, arc = np.divmod(narrow, len(a))
    start, behind = a[arc, None], b[arc, None]
    destinations = (pairs.sources + pairs.hops) % nodes
    within = (pairs.sources >= start) & (pairs.sources < behind)
    reached = (destinations >= start) & (destinations < behind)
    leaving = np.where(others[:, None] == 0, within & ~reached, reached & ~within)
    concerned = leaving.any(axis=0)
    demand, leaving = pairs.demand[concerned], leaving[:, concerned].astype(np.float64)

    def fits(numbers: IntArray) -> bool:
        return bool((leaving @ numbers).max() <= 2 * wavelengths)

    return _greatest(fits, demand, 2 * wavelengths / float((leaving @ demand).max()))


def _shorter_way_level(pairs: _Pairs, wavelengths: int) -> float:
    """The greatest z that the load of the segments allows if all go the shorter way (clockwise at a tie)."""
    nodes, clockwise = pairs.nodes, 2 * pairs.hops <= pairs.around
    (cw, cw_length), (ccw, ccw_length) = pairs.ways(True), pairs.ways(False)
    # Either fibre is two turns and a place behind them long.
    first = np.where(clockwise, cw, ccw + 2 * nodes + 1)
    behind = first + np.where(clockwise, cw_length, ccw_length)
    size = 2 * (2 * nodes + 1)

    def load(weight: FloatArray) -> float:
        change = np.bincount(first, weight, size) - np.bincount(behind, weight, size)
        along = change.reshape(2, -1).cumsum(axis=1)
        return float((along[:, :nodes] + along[:, nodes : 2 * nodes]).max())

    def fits(numbers: IntArray) -> bool:
        return load(numbers.astype(np.float64)) <= wavelengths

    return _greatest(fits, pairs.demand, wavelengths / load(pairs.demand))


def _greatest(fits: Callable[[IntArray], bool], demand: FloatArray, high: float) -> float:
    """The greatest z up to ``high`` whose numbers of lightpaths fit."""
    # The greatest demand is 1, so the least z but 0 is 1: a lightpath for each.
    if not fits(np.ones(len(demand), dtype=np.int64)):
        return 0.0
    low, high = 1.0, max(1.0, high) * (1 + _ROUND)
    while high - low > _ROUND * high:
        middle = (low + high) / 2
        if fits(_numbers(middle, demand)):
            low = middle
        else:
            high = middle
    # The numbers reach a little more than what they were asked for.
    return float((_numbers(low, demand) / demand).min())


def _plan(filling: _Filling, nodes: int, z: float, bound: float) -> ArcPlan:
    """The plan of the whole ring, the part's laid down again and again."""
    part = filling.nodes
    taken = filling.owner[:, :part]
    fibre, segment, colour = np.nonzero(taken != filling.nobody)
    pair = taken[fibre, segment, colour]
    # A lightpath is found on its first segment.
    first = np.stack([ways for ways, _ in (filling.pairs.ways(True), filling.pairs.ways(False))])
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


@dataclass(frozen=True, eq=False)
class RingProgram:
    """What HiGHS found. ``counts`` [2, rings, nodes, nodes]: lightpaths clockwise and the other way round.

    ``z``: theirs; ``bound``: what HiGHS proved that no z exceeds.
    """

    counts: IntArray
    z: float
    bound: float


def highs_ring(
    demand: npt.ArrayLike, wavelengths: int, time_limit_s: float, *, rings: int = 1
) -> RingProgram:
    """SiP-ML's program: whole numbers of lightpaths so that no segment of a ring carries more than its share
    of the wavelengths, and z is greatest.

    ``rings``: how many the wavelengths are divided among; as many as there are wavelengths make each of them
    a colour. Raises ValueError as :func:`check_demand` and for wavelengths that the rings do not divide,
    and RuntimeError with what HiGHS says where it fails.
    """
    matrix = check_demand(demand)
    _checked(wavelengths, None)
    if rings < 1 or wavelengths % rings:
        raise ValueError(f"rings: {wavelengths} wavelengths are not divided among {rings} rings")
    nodes, pairs = len(matrix), _pairs(matrix)
    known, each = len(pairs.demand), wavelengths // rings
    if not known:
        return RingProgram(np.zeros((2, rings, nodes, nodes), dtype=np.int64), np.inf, np.inf)
    clockwise = (np.arange(nodes)[:, None] - pairs.sources) % nodes < pairs.hops
    blocks = [sparse.kron(sparse.eye(rings), side.astype(float)) for side in (clockwise, ~clockwise)]
    loads = sparse.hstack([sparse.block_diag(blocks), sparse.coo_array((2 * rings * nodes, 1))])
    of_pair = sparse.hstack([sparse.eye(known)] * (2 * rings))
    served = sparse.hstack([of_pair, -pairs.demand[:, None]])
    # Now and then HiGHS refuses what it found itself, because it is whole only to its tolerance. From rows of
    # another scale it finds something else.
    for scale in (np.ones(known), 1 / pairs.demand, np.full(known, 1000.0)):
        rows = sparse.diags_array(scale) @ served
        found = milp(
            np.append(np.zeros(2 * rings * known), -1.0),
            constraints=[LinearConstraint(loads, -np.inf, each), LinearConstraint(rows, 0.0, np.inf)],
            bounds=Bounds(0.0, np.append(np.full(2 * rings * known, each), 2.0 * wavelengths)),
            integrality=np.append(np.ones(2 * rings * known), 0),
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )
        if found.status in (0, 1):
            break
    else:
        raise RuntimeError(f"HiGHS: {found.message}")
    bound = 2.0 * wavelengths if found.mip_dual_bound is None else -found.mip_dual_bound
    laid = np.zeros((2, rings, known), dtype=np.int64)
    if found.x is not None:
        laid[:] = np.rint(found.x[:-1]).reshape(2, rings, known)
    counts = np.zeros((2, rings, nodes, nodes), dtype=np.int64)
    counts[:, :, pairs.sources, (pairs.sources + pairs.hops) % nodes] = laid
    return RingProgram(counts, float((laid.sum(axis=(0, 1)) / pairs.demand).min()), bound)


def load_bound(demand: npt.ArrayLike, wavelengths: int, *, shorter_way: bool = False) -> float:
    """The greatest z that the load of the segments allows, whatever the colours: the program's optimum.

    ``shorter_way``: when all go the shorter way (clockwise at a tie). Raises ValueError as
    :func:`check_demand`, RuntimeError with what HiGHS says where it fails.
    """
    matrix = check_demand(demand)
    _checked(wavelengths, None)
    pairs = _pairs(matrix)
    if not len(pairs.demand):
        return np.inf
    low = _shorter_way_level(pairs, wavelengths)
    if shorter_way:
        return low
    high = _cut_bound(pairs, matrix, wavelengths)
    first = np.floor(low * pairs.demand * (1 + _ROUND)).astype(np.int64) + 1
    more = np.maximum(0, np.floor(high * pairs.demand * (1 + _ROUND)).astype(np.int64) + 1 - first)
    along = np.arange(more.sum()) - np.repeat(more.cumsum() - more, more)
    steps = np.unique((np.repeat(first, more) + along) / np.repeat(pairs.demand, more))
    # Mostly the bound is reached.
    below, above = -1, len(steps)
    middle = above - 1
    while below + 1 < above:
        if _loads_fit(pairs, _numbers(float(steps[middle]), pairs.demand), wavelengths):
            below = middle
        else:
            above = middle
        middle = (below + above) // 2
    return float(steps[below]) if below >= 0 else low


def _loads_fit(pairs: _Pairs, numbers: IntArray, wavelengths: int) -> bool:
    """Whether some of each pair's lightpaths can go clockwise and the others not, with no load too great.

    Variables: of each pair the clockwise ones, loads of the segments of fibre 0 and of fibre 1, sum of the
    clockwise ones. The load of a segment differs from that before it by what starts and ends in between.
    """
    nodes, known = pairs.nodes, len(numbers)
    destinations = (pairs.sources + pairs.hops) % nodes
    across = (-pairs.sources) % nodes < pairs.hops
    places = np.concatenate([destinations, pairs.sources, np.zeros(known, dtype=np.int64)])
    columns = np.tile(np.arange(known), 3)

    def changes(of_segment_0: FloatArray) -> sparse.csr_array:
        # Segment 0 has none before it: its load is said as such.
        values = np.concatenate([1.0 * (destinations > 0), -1.0 * (pairs.sources > 0), of_segment_0])
        return sparse.csr_array((values, (places, columns)), (nodes, known))

    clockwise, counter = changes(np.where(across, -1.0, 0.0)), changes(np.where(across, 0.0, 1.0))
    along = sparse.eye_array(nodes) - sparse.eye_array(nodes, k=-1)
    rows = sparse.block_array(
        [
            [clockwise, along, None, None],
            [counter, None, along, None],
            [np.ones((1, known)), None, None, -np.ones((1, 1))],
        ],
        format="csr",
    )
    equals = np.concatenate([np.zeros(nodes), counter @ numbers, [0.0]])
    found = milp(
        np.zeros(known + 2 * nodes + 1),
        constraints=LinearConstraint(rows, equals, equals),
        bounds=Bounds(0.0, np.concatenate([numbers, np.full(2 * nodes, wavelengths), [numbers.sum()]])),
        integrality=np.append(np.zeros(known + 2 * nodes), 1),
    )
    if found.status not in (0, 2):
        raise RuntimeError(f"HiGHS: {found.message}")
    return bool(found.status == 0)
