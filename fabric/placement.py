"""Regrouping: which aggregation switch each GPU's fibre should lead to.

An optical switch joins GPUs to the ports of aggregation switches. Jobs whose ring edges cross between
aggregation switches share the thin links there; moving GPUs' fibres inside the optical switch puts the
ranks of one job side by side. :func:`regroup` minimises the bytes that cross, then the fibres moved.

Small fabrics are solved exactly (an integer programme, HiGHS). Large ones by a stated heuristic: the
rings are cut into as few arcs as possible and packed into switches, biggest first, in several orders; the
packed bins are then given to the switches where most of their GPUs already are (Hungarian method); a
local search over moves and swaps, started from the best packings and from the present placement,
finishes. The result is never worse than the present placement.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.fabric.cost import RingJob, check_jobs
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_cross_connects, optical_neighbour

Circuit = tuple[Port, Port]
IntArray = npt.NDArray[np.int64]
Score = tuple[float, int]

#: Placements up to which each is tried: sooner done than the exact solver is imported.
FEW_PLACEMENTS = 256
#: Binary choices (movable GPUs of jobs times switches each can reach) up to which the exact solver is tried.
EXACT_CHOICES = 64
#: Branch-and-bound nodes per solve; a count, not a time, so that the answer does not depend on the machine.
EXACT_NODES = 2000
#: Up to so many switches all ways to swap their bins are tried.
FEW_SWITCHES = 5
#: Packing orders tried and best packings refined, by the heuristic.
PACKINGS = 6
REFINED = 2
ROTATIONS = 4
REFINE_PASSES = 8


@dataclass(frozen=True, order=True)
class Move:
    """The fibre of ``gpu`` goes from one aggregation-switch port to another; ``source`` None: it was dark."""

    gpu: str
    source: Port | None
    destination: Port


@dataclass(frozen=True)
class Regrouping:
    """A new set of circuits, and what it changes.

    ``circuits``: all circuits of the fabric afterwards. ``kept``: those of them that were lit before and
    stay untouched. ``crossing_bytes_*``: bytes per iteration over ring edges whose two GPUs are not on
    one aggregation switch, all listed jobs together (an edge of a dark GPU counts as crossing).
    ``crossing_bytes_bound``: no placement can have fewer. ``optimal``: both the crossing bytes and, for
    these, the number of moves are proven minimal (sums of bytes that differ by less than 1/10,000 of the
    lightest edge count as equal).
    """

    circuits: tuple[Circuit, ...]
    moved: tuple[Move, ...]
    kept: tuple[Circuit, ...]
    crossing_bytes_before: float
    crossing_bytes_after: float
    crossing_bytes_bound: float
    optimal: bool

    def document(self) -> dict[str, Any]:
        """Return the moves and their effect, as the controller's resource has them."""
        return {
            "moves": [
                {"gpu": m.gpu, "from": None if m.source is None else str(m.source), "to": str(m.destination)}
                for m in self.moved
            ],
            "crossing_bytes_before": self.crossing_bytes_before,
            "crossing_bytes_after": self.crossing_bytes_after,
            "fibres_moved": len(self.moved),
            "optimal": self.optimal,
        }


def regroup(
    fabric: Fabric,
    circuits_now: Iterable[Circuit],
    jobs: Iterable[RingJob],
    *,
    movable: Collection[str] | None = None,
) -> Regrouping:
    """Return the assignment of GPUs to aggregation switches with the fewest crossing bytes, then moves.

    ``circuits_now``: the duplex circuits that are lit, pairs of electrical ports. ``jobs``: the jobs to bring
    together. ``movable``: names of the GPUs whose fibres may be moved, all if None; give it to protect GPUs
    of running jobs that are not in ``jobs``. A movable GPU that no listed job uses may give its place away:
    it stays lit, and its move counts. Circuits that do not end at a GPU, and dark GPUs that no listed job
    uses, are left as they are. A GPU that stays on its aggregation switch keeps its port. A GPU that moves
    gets the lowest port that is free once all moved GPUs are unplugged, in the order of ``fabric.gpus``. The
    same arguments give the same answer. Raises ValueError naming the GPU, job, port or switch: if
    :func:`fabric.cost.check_jobs` or :func:`fabric.topology.circuit_cross_connects` does, when a job's GPU
    has no way to an aggregation switch, and when a dark GPU finds no free port or may not be moved.
    """
    circuits = tuple(circuits_now)
    problem = _problem(fabric, circuits, check_jobs(fabric, jobs), movable)
    place, optimal = _solve(problem)
    new_ports = _choose_ports(fabric, problem, place)
    moves = tuple(
        Move(gpu, problem.port_now.get(gpu), new_ports[gpu]) for gpu in fabric.gpus if gpu in new_ports
    )
    after = []
    for a, b in circuits:
        gpu = a.node if a.node in new_ports else b.node
        after.append((Port(gpu, 0), new_ports[gpu]) if gpu in new_ports else (a, b))
    after += [(Port(m.gpu, 0), m.destination) for m in moves if m.source is None]
    return Regrouping(
        circuits=tuple(after),
        moved=moves,
        kept=tuple(c for c in circuits if c[0].node not in new_ports and c[1].node not in new_ports),
        crossing_bytes_before=_crossing(problem, problem.home),
        crossing_bytes_after=_crossing(problem, place),
        crossing_bytes_bound=_crossing_bound(problem),
        optimal=optimal,
    )


@dataclass(frozen=True)
class _Problem:
    """The assignment problem in numbers. Items are GPUs; a placement is a switch index for every item.

    ``group``: index of the optical switch of an item that may move, -1 of one that may not. ``home``:
    switch now, -1 dark. ``rings``: items in ring order and bytes per edge. ``capacity[o, s]``: ports of
    switch s on optical switch o that are free when every movable item is unplugged.
    """

    switches: tuple[str, ...]
    items: tuple[str, ...]
    group: IntArray
    home: IntArray
    rings: tuple[tuple[IntArray, float], ...]
    capacity: IntArray
    free_ports: dict[tuple[int, int], list[Port]]
    port_now: dict[str, Port]

    @property
    def unit(self) -> float:
        """Bytes of the lightest ring edge that carries any."""
        return min((b for _, b in self.rings if b > 0), default=1.0)

    @property
    def idle(self) -> list[int]:
        """Items of no ring; all of them may move and are lit."""
        return list(range(sum(len(ring) for ring, _ in self.rings), len(self.items)))


def _problem(
    fabric: Fabric,
    circuits: tuple[Circuit, ...],
    jobs: tuple[RingJob, ...],
    movable: Collection[str] | None,
) -> _Problem:
    circuit_cross_connects(fabric, circuits)
    for name in sorted(movable or ()):
        if name not in fabric.gpus:
            raise ValueError(f"movable: there is no GPU {name}")
    far_end: dict[str, Port] = {}
    for a, b in circuits:
        for here, there in ((a, b), (b, a)):
            if here.node in fabric.gpus:
                far_end[here.node] = there
    switches = {name: index for index, name in enumerate(fabric.packet_switches)}
    groups = {name: index for index, name in enumerate(fabric.optical_switches)}

    in_job = [gpu for job in jobs for gpu in job.ranks]
    used = set(in_job)
    idle = [
        gpu
        for gpu in fabric.gpus
        if gpu not in used
        and gpu in far_end
        and far_end[gpu].node in switches
        and (movable is None or gpu in movable)
    ]
    job_of = {gpu: job.name for job in jobs for gpu in job.ranks}
    group: list[int] = []
    home: list[int] = []
    port_now: dict[str, Port] = {}
    for gpu in in_job:
        faceplate = optical_neighbour(fabric, Port(gpu, 0))
        if faceplate is None:
            link = fabric.link_at.get(Port(gpu, 0))
            end = None if link is None else link.other(Port(gpu, 0))
        else:
            end = far_end.get(gpu)
        where = f"GPU {gpu} of job {job_of[gpu]}"
        if end is not None and end.node not in switches:
            raise ValueError(f"{where} is joined to {end}, not to an aggregation switch")
        if faceplate is None and end is None:
            raise ValueError(f"{where} is plugged into nothing")
        may_move = faceplate is not None and (movable is None or gpu in movable)
        if end is None and not may_move:
            raise ValueError(f"{where} is dark and may not be moved")
        group.append(groups[faceplate.node] if may_move and faceplate is not None else -1)
        home.append(-1 if end is None else switches[end.node])
        if end is not None:
            port_now[gpu] = end
    for gpu in idle:
        faceplate = optical_neighbour(fabric, Port(gpu, 0))
        assert faceplate is not None  # it has a circuit
        group.append(groups[faceplate.node])
        home.append(switches[far_end[gpu].node])
        port_now[gpu] = far_end[gpu]

    items = (*in_job, *idle)
    leaving = {gpu for gpu, o in zip(items, group, strict=True) if o >= 0}
    taken = {port for c in circuits for port in c if c[0].node not in leaving and c[1].node not in leaving}
    free_ports: dict[tuple[int, int], list[Port]] = {}
    for port in sorted(fabric.link_at):
        faceplate = optical_neighbour(fabric, port) if port.node in switches else None
        if faceplate is not None and port not in taken:
            free_ports.setdefault((groups[faceplate.node], switches[port.node]), []).append(port)
    capacity = np.zeros((len(groups), len(switches)), dtype=np.int64)
    for where_, ports in free_ports.items():
        capacity[where_] = len(ports)
    for index, name in enumerate(groups):
        needed, there_are = group.count(index), int(capacity[index].sum())
        if needed > there_are:
            dark = next(g for g, o, h in zip(items, group, home, strict=True) if o == index and h < 0)
            raise ValueError(f"no free port for GPU {dark}: {name} reaches {there_are} for {needed} GPUs")

    rings = []
    first = 0
    for job in jobs:
        rings.append((np.arange(first, first + len(job.ranks)), job.bytes_per_edge))
        first += len(job.ranks)
    return _Problem(
        switches=tuple(switches),
        items=items,
        group=np.array(group, dtype=np.int64),
        home=np.array(home, dtype=np.int64),
        rings=tuple(rings),
        capacity=capacity,
        free_ports=free_ports,
        port_now=port_now,
    )


def _choose_ports(fabric: Fabric, problem: _Problem, place: IntArray) -> dict[str, Port]:
    """Return the new port of every item that changes its switch."""
    movers: dict[str, tuple[int, int]] = {}
    staying: set[Port] = set()
    for gpu, o, old, new in zip(problem.items, problem.group, problem.home, place, strict=True):
        if old != new:
            movers[gpu] = int(o), int(new)
        else:
            staying.add(problem.port_now[gpu])
    free = {where: iter(p for p in ports if p not in staying) for where, ports in problem.free_ports.items()}
    return {gpu: next(free[movers[gpu]]) for gpu in fabric.gpus if gpu in movers}


def _crossing_edges(ring: IntArray, place: IntArray) -> int:
    switches = place[ring]
    # An edge of a dark item (-1) crosses, even to another dark one.
    return 0 if len(ring) < 2 else int(np.count_nonzero((switches != np.roll(switches, -1)) | (switches < 0)))


def _crossing(problem: _Problem, place: IntArray) -> float:
    return math.fsum(b * _crossing_edges(ring, place) for ring, b in problem.rings)


def _comparable(problem: _Problem, crossing_bytes: float) -> float:
    """Return crossing bytes in units of the lightest edge, without digits in which equal sums may differ."""
    return round(crossing_bytes / problem.unit, 4)


def _score(problem: _Problem, place: IntArray) -> Score:
    """Return (crossing, moves): what is minimised, in this order."""
    moves = int(np.count_nonzero(place != problem.home))
    return _comparable(problem, _crossing(problem, place)), moves


def _crossing_bound(problem: _Problem) -> float:
    """Return the crossing bytes below which no placement can go, each job considered alone.

    A ring on k > 1 switches has at least k crossing edges, and k is at least the number of switches whose
    capacities together hold the job.
    """
    total = []
    for ring, b in problem.rings:
        groups = problem.group[ring]
        free = groups >= 0
        needs = np.bincount(groups[free], minlength=len(problem.capacity))
        room = np.sort(np.minimum(problem.capacity, needs[:, None]).sum(axis=0))[::-1]
        enough = int(np.searchsorted(np.cumsum(room), free.sum())) + 1 if free.any() else 0
        switches = max(enough, len(set(problem.home[ring][~free].tolist())))
        total.append(b * switches if switches > 1 else 0.0)
    return math.fsum(total)


def _solve(problem: _Problem) -> tuple[IntArray, bool]:
    """Return the best placement found, and whether it is proven optimal."""
    bound = _comparable(problem, _crossing_bound(problem))
    if not np.any(problem.home < 0) and _score(problem, problem.home)[0] <= bound:
        return problem.home.copy(), True
    place = _search(problem)
    if (best := _try_all(problem, place)) is not None:
        return best, True
    choices = sum(np.count_nonzero(problem.capacity[o]) for o in problem.group if o >= 0)
    weights = [b for _, b in problem.rings if b > 0]
    # Weights further apart than the solver's tolerance cannot be told apart, so nothing is proven.
    if choices > EXACT_CHOICES or (weights and max(weights) > 1e3 * min(weights)):
        return place, False
    return _solve_exactly(problem, place, bound)


# --- the heuristic ---------------------------------------------------------------------------------


def _search(problem: _Problem) -> IntArray:
    rng = random.Random(0)
    sizes = [len(ring) for ring, _ in problem.rings]
    weights = [b for _, b in problem.rings]
    jobs = range(len(sizes))
    orders = [
        sorted(jobs, key=lambda j: (-sizes[j], -weights[j], j)),
        sorted(jobs, key=lambda j: (-weights[j], -sizes[j], j)),
    ]
    while len(orders) * 2 < PACKINGS:
        noise = [rng.uniform(0.5, 1.0) for _ in jobs]
        orders.append(sorted(jobs, key=lambda j: (-sizes[j] * noise[j], j)))
    packed = [_pack(problem, order, by_stay) for order in orders for by_stay in (False, True)]
    packed.sort(key=lambda place: _score(problem, place))
    starts = packed[:REFINED]
    starts.append(_stay(problem))
    return min((_refine(problem, place) for place in starts), key=lambda place: _score(problem, place))


def _stay(problem: _Problem) -> IntArray:
    """Return the present placement, with dark items put where there is room."""
    place = problem.home.copy()
    _fill(problem, place)
    return place


def _demand(problem: _Problem, items: IntArray, switches: IntArray) -> IntArray:
    """Return the ports that the movable ones of these items need on these switches.

    The shape is that of ``capacity``.
    """
    demand = np.zeros_like(problem.capacity)
    loose = problem.group[items] >= 0
    np.add.at(demand, (problem.group[items][loose], switches[loose]), 1)
    return demand


def _pack(problem: _Problem, order: list[int], by_stay: bool) -> IntArray:
    """Return a placement made ring by ring; ``by_stay`` prefers few moves to tight packing."""
    free = problem.capacity.copy()
    place = np.where(problem.group < 0, problem.home, -1)
    for job in order:
        ring = problem.rings[job][0]
        best: tuple[tuple[int, int], list[tuple[int, IntArray]]] | None = None
        for start in range(0, len(ring), max(1, len(ring) // ROTATIONS)):
            arcs = _cut(problem, np.roll(ring, -start), free.copy(), by_stay)
            moves = sum(int(np.count_nonzero(problem.home[arc] != s)) for s, arc in arcs)
            if best is None or (len(arcs), moves) < best[0]:
                best = (len(arcs), moves), arcs
            if len(arcs) == 1:
                break
        assert best is not None  # a ring has ranks
        for switch, arc in best[1]:
            place[arc] = switch
            free[:, switch] -= _ports_for(problem, arc)
    place = _relabel(problem, place)
    _fill(problem, place)
    return place


def _ports_for(problem: _Problem, items: IntArray) -> IntArray:
    """Return the ports of each optical switch that the movable items need, all on one switch."""
    groups = problem.group[items]
    return np.bincount(groups[groups >= 0], minlength=len(problem.capacity))


def _before(groups: IntArray) -> IntArray:
    """Return for each item how many earlier items of its group there are."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    counts = np.empty_like(order)
    counts[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return counts


def _cut(problem: _Problem, ring: IntArray, free: IntArray, by_stay: bool) -> list[tuple[int, IntArray]]:
    """Return arcs of the ring from its first item on, each as long as some switch can hold.

    Use ``free`` up.
    """
    arcs = []
    count = len(problem.switches)
    group_of, home = problem.group[ring], problem.home[ring]
    before = _before(group_of)
    cut_off = np.zeros(len(problem.capacity), dtype=np.int64)
    fixed = int(np.count_nonzero(group_of < 0))
    begin = 0
    while begin < len(ring):
        spare = free.sum(axis=0)
        # No arc can be longer than this, so the rest of the ring need not be looked at yet.
        length = min(len(ring) - begin, int(spare.max()) + fixed + 1)
        ahead = slice(begin, begin + length)
        groups = group_of[ahead]
        full = (before[ahead] - cut_off[groups])[:, None] >= free[groups]
        stays = home[ahead][:, None] == np.arange(count)
        if fixed:
            full = np.where(groups[:, None] < 0, ~stays, full)
        run = np.where(full.any(axis=0), full.argmax(axis=0), length)
        stay = (stays & (np.arange(length)[:, None] < run)).sum(axis=0)
        whole = run == len(ring) - begin
        if whole.any():
            first, second = (-stay, spare) if by_stay else (spare, -stay)
            key = (np.arange(count), second, first, ~whole)
        else:
            key = (np.arange(count), spare, -stay, -run)
        switch = int(np.lexsort(key)[0])
        arc = ring[begin : begin + run[switch]]
        begin += len(arc)
        arcs.append((switch, arc))
        used = _ports_for(problem, arc)
        cut_off += used
        free[:, switch] -= used
    return arcs


def _relabel(problem: _Problem, place: IntArray) -> IntArray:
    """Return the same bins on other switches, so that the fewest ring items move (Hungarian method)."""
    count = len(problem.switches)
    loose = np.flatnonzero((problem.group >= 0) & (place >= 0))
    demand = _demand(problem, loose, place[loose])
    stay = np.zeros((count, count))
    placed = loose[problem.home[loose] >= 0]
    np.add.at(stay, (place[placed], problem.home[placed]), 1)
    fits = np.all(demand[:, :, None] <= problem.capacity[:, None, :], axis=0)
    for ring, _ in problem.rings:
        # A bin that touches a GPU which cannot move must stay beside it.
        stuck = problem.group[ring] < 0
        beside = ring[(np.roll(stuck, 1) | np.roll(stuck, -1)) & ~stuck]
        pinned = np.unique(place[beside])
        fits[pinned] = np.eye(count, dtype=bool)[pinned]
    label = _matching(np.where(fits, -stay, 1.0 + len(problem.items)))
    moved = place.copy()
    moved[loose] = label[place[loose]]
    return moved


def _matching(cost: npt.NDArray[np.float64]) -> IntArray:
    """Return a column for each row of a square matrix, each column once, so that the sum is least."""
    rows = np.arange(len(cost))
    if len(rows) <= FEW_SWITCHES:
        ways = np.array(list(itertools.permutations(rows.tolist())), dtype=np.int64)
        best: IntArray = ways[cost[rows, ways].sum(axis=1).argmin()]
        return best
    # By successive shortest paths (Crouse, IEEE Trans. Aerospace and Electronic Systems 52(4), 2016), as
    # scipy's linear_sum_assignment, which chooses the same among equals. To import that takes longer than
    # the rest of a regrouping.
    count = len(rows)
    of_row, of_column = np.full(count, -1), np.full(count, -1)
    row_price, column_price = np.zeros(count), np.zeros(count)
    for first in rows.tolist():
        length, path = np.full(count, np.inf), np.full(count, -1)
        left, reached, ends = np.arange(count)[::-1].copy(), [first], []
        least, row = 0.0, first
        while True:
            step = least + cost[row, left] - row_price[row] - column_price[left]
            nearer = step < length[left]
            path[left[nearer]] = row
            length[left[nearer]] = step[nearer]
            least = float(length[left].min())
            nearest = np.flatnonzero(length[left] == least)
            unused = nearest[of_column[left[nearest]] < 0]
            chosen = unused[-1] if len(unused) else nearest[0]
            column = int(left[chosen])
            ends.append(column)
            left[chosen] = left[-1]
            left = left[:-1]
            if len(unused):
                break
            row = int(of_column[column])
            reached.append(row)
        row_price[first] += least
        reached_rows = np.array(reached[1:], dtype=np.int64)
        row_price[reached_rows] += least - length[of_row[reached_rows]]
        column_price[ends] -= least - length[ends]
        while column >= 0:
            row = int(path[column])
            of_column[column] = row
            of_row[row], column = column, (-1 if row == first else int(of_row[row]))
    return of_row


def _fill(problem: _Problem, place: IntArray) -> None:
    """Put items without a place (-1) where there is room: at home if possible, else on the first switch."""
    placed = np.flatnonzero(place >= 0)
    free = problem.capacity - _demand(problem, placed, place[placed])
    homeless = []
    for i in np.flatnonzero(place < 0):
        if problem.home[i] >= 0 and free[problem.group[i], problem.home[i]] > 0:
            free[problem.group[i], problem.home[i]] -= 1
            place[i] = problem.home[i]
        else:
            homeless.append(i)
    for i in homeless:
        switch = int(np.argmax(free[problem.group[i]] > 0))
        free[problem.group[i], switch] -= 1
        place[i] = switch


def _refine(problem: _Problem, start: IntArray) -> IntArray:
    """Move and swap single items while that lowers (crossing bytes, moves). Return the placement."""
    # Whoever has no neighbour is beside an item that is nowhere.
    nobody = len(problem.items)
    place: list[int] = [*start.tolist(), -1]
    home: list[int] = problem.home.tolist()
    group: list[int] = problem.group.tolist()
    left, right, weight = [nobody] * nobody, [nobody] * nobody, [0.0] * nobody
    for ring, b in problem.rings:
        if len(ring) > 1:
            for u, v in zip(ring.tolist(), np.roll(ring, -1).tolist(), strict=True):
                right[u], left[v], weight[u] = v, u, b
    free: list[list[int]] = problem.capacity.tolist()
    has_ports = (problem.capacity > 0).tolist()
    members: dict[tuple[int, int], list[int]] = {}
    for i, o in enumerate(group):
        if o >= 0:
            free[o][place[i]] -= 1
            members.setdefault((o, place[i]), []).append(i)
    rounding = 1e-9 * max((b for _, b in problem.rings), default=0.0)
    # When anything came to a switch or left it, and when an item was looked at: what did not lead to anything
    # between two switches does not until one of them changes.
    changed, looked, moves = [0] * len(problem.switches), [-1] * nobody, 0

    def go(item: int, switch: int) -> None:
        nonlocal moves
        moves += 1
        o, now = group[item], place[item]
        members[o, now].remove(item)
        free[o][now] += 1
        members.setdefault((o, switch), []).append(item)
        free[o][switch] -= 1
        place[item] = switch
        changed[now] = changed[switch] = moves

    for _ in range(REFINE_PASSES):
        improved = False
        for item, o in enumerate(group):
            if o < 0:
                continue
            seen, looked[item] = looked[item], moves
            before, after, own = left[item], right[item], weight[item]
            for switch in sorted({place[before], place[after], home[item]} - {-1}):
                now = place[item]
                if switch == now or not has_ports[o][switch]:
                    continue
                if changed[now] <= seen and changed[switch] <= seen:
                    continue
                # Edges that cross, and moved items, more than now.
                edges = (place[before] != switch) - (place[before] != now)
                edges += (place[after] != switch) - (place[after] != now)
                crossing, moved = own * edges, (switch != home[item]) - (now != home[item])
                if free[o][switch] > 0:
                    if crossing < -rounding or (crossing <= rounding and moved < 0):
                        go(item, switch)
                        improved = True
                    continue
                for other in members.get((o, switch), []):
                    p, q = place[left[other]], place[right[other]]
                    edges = (p != now) - (p != switch) + (q != now) - (q != switch)
                    both = crossing + weight[other] * edges
                    if before == other or after == other:
                        both += 2 * own * ((before == other) + (after == other))
                    if both < -rounding or (
                        both <= rounding and moved + (now != home[other]) - (switch != home[other]) < 0
                    ):
                        go(other, now)
                        go(item, switch)
                        improved = True
                        break
        if not improved:
            break
    return np.array(place[:-1], dtype=np.int64)


# --- exact solvers ----------------------------------------------------------------------------------


def _try_all(problem: _Problem, incumbent: IntArray) -> IntArray | None:
    """Return the best placement if there are few, ``incumbent`` among equals.

    Return None if there are many.
    """
    rings = np.concatenate([ring for ring, _ in problem.rings])
    items = rings[problem.group[rings] >= 0]
    reached = [np.flatnonzero(problem.capacity[group]).tolist() for group in problem.group[items]]
    if math.prod(map(len, reached)) > FEW_PLACEMENTS:
        return None
    candidates = [incumbent]
    for switches in itertools.product(*reached):
        place = np.where(problem.group < 0, problem.home, -1)
        place[items] = switches
        if np.all(_demand(problem, items, place[items]) <= problem.capacity):
            _fill(problem, place)
            candidates.append(place)
    return min(candidates, key=lambda place: _score(problem, place))


class _Programme:
    """Rows and columns of an integer programme, gathered one by one."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.integer: list[int] = []
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def variable(self, upper: float, *, integer: bool) -> int:
        self.upper.append(upper)
        self.integer.append(int(integer))
        return len(self.upper) - 1

    def row(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        self.entries += [(len(self.low), column, value) for column, value in terms]
        self.low.append(low)
        self.high.append(high)

    def solve(self, cost: dict[int, float]) -> tuple[npt.NDArray[np.float64] | None, bool]:
        """Return the minimum over 0 <= x <= upper: (x or None, whether the minimum is proven)."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        objective = np.zeros(len(self.upper))
        objective[list(cost)] = list(cost.values())
        rows, columns, values = zip(*self.entries, strict=True)
        shape = (len(self.low), len(self.upper))
        result = milp(
            objective,
            integrality=np.array(self.integer),
            bounds=Bounds(0, np.array(self.upper)),
            constraints=LinearConstraint(
                coo_array((values, (rows, columns)), shape=shape).tocsr(), self.low, self.high
            ),
            options={"mip_rel_gap": 0.0, "node_limit": EXACT_NODES},
        )
        return result.x, result.status == 0


def _solve_exactly(problem: _Problem, incumbent: IntArray, bound: float) -> tuple[IntArray, bool]:
    """Return the best placement, never worse than ``incumbent``, and whether that is proven.

    x[i, s]: ring item i goes to switch s. y[o, s]: idle items of optical switch o that stay on s (which of
    them is of no matter; the rest find room, for there are as many ports as items). w[e, s] >= x[u, s] - x[v,
    s]: the sum over s is 1 where edge e = (u, v) crosses and 0 where it does not.
    """
    programme = _Programme()
    x: dict[tuple[int, int], int] = {}
    y: dict[tuple[int, int], int] = {}
    ring_items = [i for ring, _ in problem.rings for i in ring.tolist()]
    for i in ring_items:
        if problem.group[i] >= 0:
            reach = np.flatnonzero(problem.capacity[problem.group[i]]).tolist()
            x |= {(i, s): programme.variable(1, integer=True) for s in reach}
            programme.row([(x[i, s], 1.0) for s in reach], 1, 1)
    if not x:
        return incumbent, True
    idle = Counter((int(problem.group[i]), int(problem.home[i])) for i in problem.idle)
    for where, count in sorted(idle.items()):
        y[where] = programme.variable(count, integer=True)
    for (o, s), room in np.ndenumerate(problem.capacity):
        terms = [(column, 1.0) for (i, switch), column in x.items() if switch == s and problem.group[i] == o]
        terms += [(y[o, s], 1.0)] if (o, s) in y else []
        if terms:
            programme.row(terms, 0, float(room))

    weights: Counter[tuple[int, int]] = Counter()
    edges: dict[tuple[int, int], float] = {}
    for ring, b in problem.rings:
        if len(ring) > 1 and b > 0:
            for u, v in zip(ring.tolist(), np.roll(ring, -1).tolist(), strict=True):
                pair = (min(u, v), max(u, v))
                weights[pair] += 1
                edges[pair] = b / problem.unit * weights[pair]
    crossing: dict[int, float] = {}
    constant = 0.0
    for (u, v), weight in edges.items():
        if problem.group[u] < 0:
            u, v = v, u
        if problem.group[u] < 0:
            constant += weight * (problem.home[u] != problem.home[v])
        elif problem.group[v] < 0:
            constant += weight
            beside = x.get((u, int(problem.home[v])))
            if beside is not None:
                crossing[beside] = crossing.get(beside, 0.0) - weight
        else:
            for s in range(len(problem.switches)):
                if (u, s) in x:
                    w = programme.variable(1, integer=False)
                    crossing[w] = weight
                    less = [(x[v, s], 1.0)] if (v, s) in x else []
                    programme.row([(w, 1.0), (x[u, s], -1.0), *less], 0, math.inf)
    moves = {x[i, h]: -1.0 for i in ring_items if (i, h := int(problem.home[i])) in x}
    moves |= dict.fromkeys(y.values(), -1.0)

    def improve(best: IntArray, cost: dict[int, float]) -> tuple[IntArray, bool]:
        """Return the better of ``best`` and the solver's placement, and whether the latter is proven minimal.

        HiGHS has been known to return an infeasible solution as optimal, so it is checked.
        """
        solution, proven = programme.solve(cost)
        if solution is None:
            return best, False
        place = np.where(problem.group < 0, problem.home, -1)
        for (i, s), column in x.items():
            if solution[column] > 0.5:
                place[i] = s
        items = np.array(ring_items)
        if np.any(place[items] < 0) or np.any(_demand(problem, items, place[items]) > problem.capacity):
            return best, False
        _fill(problem, place)
        return min(best, place, key=lambda place: _score(problem, place)), proven

    best = incumbent
    proven = _score(problem, best)[0] <= bound
    if not proven:
        best, proven = improve(best, crossing)
    least = _crossing(problem, best) / problem.unit - constant
    programme.row(list(crossing.items()), -math.inf, least + 1e-4)
    best, fewest = improve(best, moves)
    return best, proven and fewest
