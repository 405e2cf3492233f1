"""A good placement of a large fabric's GPUs: rings cut, packed into switches, and refined."""

from __future__ import annotations

import itertools
import random

import numpy as np
import numpy.typing as npt

from ringlight.fabric.placement_problem import Problem, demand_of, fill, score_of
from ringlight.fabric.steps import IntArray

#: Up to so many switches all ways to swap their bins are tried.
FEW_SWITCHES = 5
#: Packing orders tried and best packings refined, by the heuristic.
PACKINGS = 6
REFINED = 2
ROTATIONS = 4
REFINE_PASSES = 8


def search(problem: Problem) -> IntArray:
    """Return the best of several refined packings and of the refined present placement."""
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
    packed = [
        _pack(problem, order, by_stay) for order in orders for by_stay in (False, True)
    ]
    packed.sort(key=lambda place: score_of(problem, place))
    starts = packed[:REFINED]
    starts.append(stay_of(problem))
    return min(
        (_refine(problem, place) for place in starts),
        key=lambda place: score_of(problem, place),
    )


def stay_of(problem: Problem) -> IntArray:
    """Return the present placement, with dark items put where there is room."""
    place = problem.home.copy()
    fill(problem, place)
    return place


def _pack(problem: Problem, order: list[int], by_stay: bool) -> IntArray:
    """Return a placement made ring by ring; ``by_stay`` prefers few moves to tight packing."""
    free = problem.capacity.copy()
    place = np.where(problem.group < 0, problem.home, -1)
    for job in order:
        ring = problem.rings[job][0]
        best: tuple[tuple[int, int], list[tuple[int, IntArray]]] | None = None
        for start in range(0, len(ring), max(1, len(ring) // ROTATIONS)):
            arcs = _cut(problem, np.roll(ring, -start), free.copy(), by_stay)
            moves = sum(
                int(np.count_nonzero(problem.home[arc] != s)) for s, arc in arcs
            )
            if best is None or (len(arcs), moves) < best[0]:
                best = (len(arcs), moves), arcs
            if len(arcs) == 1:
                break
        assert best is not None  # a ring has ranks
        for switch, arc in best[1]:
            place[arc] = switch
            free[:, switch] -= _ports_for(problem, arc)
    place = _relabel(problem, place)
    fill(problem, place)
    return place


def _ports_for(problem: Problem, items: IntArray) -> IntArray:
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


def _cut(
    problem: Problem, ring: IntArray, free: IntArray, by_stay: bool
) -> list[tuple[int, IntArray]]:
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


def _relabel(problem: Problem, place: IntArray) -> IntArray:
    """Return the same bins on other switches, so that the fewest ring items move (Hungarian method)."""
    count = len(problem.switches)
    loose = np.flatnonzero((problem.group >= 0) & (place >= 0))
    demand = demand_of(problem, loose, place[loose])
    stay = np.zeros((count, count))
    placed = loose[problem.home[loose] >= 0]
    np.add.at(stay, (place[placed], problem.home[placed]), 1)
    fits = np.all(demand[:, :, None] <= problem.capacity[:, None, :], axis=0)
    for ring, _ in problem.rings:
        # A bin that touches a GPU which cannot move must stay beside it.
        stuck = problem.group[ring] < 0
        beside = ring[(np.roll(stuck, 1) | np.roll(stuck, -1)) & ~stuck]
        pinned = place[beside]
        fits[pinned] = np.eye(count, dtype=bool)[pinned]
    label = matching(np.where(fits, -stay, 1.0 + len(problem.items)))
    moved = place.copy()
    moved[loose] = label[place[loose]]
    return moved


def matching(cost: npt.NDArray[np.float64]) -> IntArray:
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


def _refine(problem: Problem, start: IntArray) -> IntArray:
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
                crossing, moved = (
                    own * edges,
                    (switch != home[item]) - (now != home[item]),
                )
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
                        both <= rounding
                        and moved + (now != home[other]) - (switch != home[other]) < 0
                    ):
                        go(other, now)
                        go(item, switch)
                        improved = True
                        break
        if not improved:
            break
    return np.array(place[:-1], dtype=np.int64)
