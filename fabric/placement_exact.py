"""The best placement of a small fabric, with its proof: all are tried, or an integer programme is solved."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ringlight.fabric.placement_problem import (
    Problem,
    crossing_bytes_of,
    demand_of,
    fill,
    score_of,
)
from ringlight.fabric.steps import IntArray

#: Placements up to which each is tried: sooner done than the exact solver is imported.
FEW_PLACEMENTS = 256
#: Branch-and-bound nodes per solve; a count, not a time, so that the answer does not depend on the machine.
EXACT_NODES = 2000
#: Options of HiGHS.
_OPTIONS = {
    "output_flag": False,
    "mip_rel_gap": 0.0,
    "mip_max_nodes": EXACT_NODES,
    "threads": 1,
}


def try_all(problem: Problem, incumbent: IntArray) -> IntArray | None:
    """Return the best placement if there are few, ``incumbent`` among equals.

    Return None if there are many.
    """
    rings = np.concatenate([ring for ring, _ in problem.rings])
    items = rings[problem.group[rings] >= 0]
    reached = [
        np.flatnonzero(problem.capacity[group]).tolist()
        for group in problem.group[items]
    ]
    if math.prod(map(len, reached)) > FEW_PLACEMENTS:
        return None
    candidates = [incumbent]
    for switches in itertools.product(*reached):
        place = np.where(problem.group < 0, problem.home, -1)
        place[items] = switches
        if np.all(demand_of(problem, items, place[items]) <= problem.capacity):
            fill(problem, place)
            candidates.append(place)
    return min(candidates, key=lambda place: score_of(problem, place))


class _Programme:
    """Rows and columns of an integer programme, gathered one by one."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.integer: list[int] = []
        self.rows: list[list[tuple[int, float]]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def variable(self, upper: float, *, integer: bool) -> int:
        self.upper.append(upper)
        self.integer.append(int(integer))
        return len(self.upper) - 1

    def row(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        self.rows.append(list(terms))
        self.low.append(low)
        self.high.append(high)

    def solve(
        self, cost: dict[int, float]
    ) -> tuple[npt.NDArray[np.float64] | None, bool]:
        """Return the minimum over 0 <= x <= upper: (x or None, whether the minimum is proven)."""
        import highspy

        programme = highspy.HighsLp()
        programme.num_col_, programme.num_row_ = len(self.upper), len(self.low)
        programme.col_cost_ = [cost.get(k, 0.0) for k in range(len(self.upper))]
        programme.col_lower_ = [0.0] * len(self.upper)
        programme.col_upper_ = self.upper
        programme.integrality_ = [
            highspy.HighsVarType(int(integer)) for integer in self.integer
        ]
        programme.row_lower_, programme.row_upper_ = self.low, self.high
        matrix = programme.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = [0, *itertools.accumulate(map(len, self.rows))]
        matrix.index_ = [column for row in self.rows for column, _ in row]
        matrix.value_ = [value for row in self.rows for _, value in row]
        solver = highspy.Highs()
        for option, value in _OPTIONS.items():
            solver.setOptionValue(option, value)
        solver.passModel(programme)
        solver.run()
        if not solver.getSolution().value_valid:
            return None, False
        proven = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        return np.array(solver.getSolution().col_value), proven


def solve_exactly(
    problem: Problem, incumbent: IntArray, bound: float
) -> tuple[IntArray, bool]:
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
        terms = [
            (column, 1.0)
            for (i, switch), column in x.items()
            if switch == s and problem.group[i] == o
        ]
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
        if np.any(place[items] < 0) or np.any(
            demand_of(problem, items, place[items]) > problem.capacity
        ):
            return best, False
        fill(problem, place)
        return min(best, place, key=lambda place: score_of(problem, place)), proven

    best = incumbent
    proven = score_of(problem, best)[0] <= bound
    if not proven:
        best, proven = improve(best, crossing)
    least = crossing_bytes_of(problem, best) / problem.unit - constant
    programme.row(list(crossing.items()), -math.inf, least + 1e-4)
    best, fewest = improve(best, moves)
    return best, proven and fewest
