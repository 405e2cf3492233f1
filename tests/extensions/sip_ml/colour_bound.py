"""What no plan of a ring with colours exceeds, by linear programs: what colours cost beyond the load.

The program of :mod:`ring_program` bounds the load of every segment. But two lightpaths of
more than half the ring each never share a colour, so on small rings with traffic one way round no plan
reaches its optimum. Here each colour is given to sets of ways that share no segment, in parts. For a given z
the pairs' numbers are fixed, and a linear program says how many times they fit. It begins with few sets;
others that its prices ask for are found by a dynamic program, which also proves that there are no more.

Nothing is decided with it: tests measure gaps against it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import linprog

from ringlight.extensions.sip_ml.allocation.arc_bounds import Pairs, pairs_of
from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.fabric.steps import FloatArray, IntArray
from tests.extensions.sip_ml.ring_program import greatest_level, load_bound

#: A set of ways is worth a colour when it is by this share dearer than those that there are.
_DEARER = 1e-7


def colour_bound(
    demand: npt.ArrayLike, wavelengths: int, *, least: float = 0.0
) -> float:
    """The greatest z that parts of colours allow, at least ``least`` (the z of a plan, say).

    Raises ValueError as :func:`check_demand`, RuntimeError with what HiGHS says where it fails.
    """
    matrix = check_demand(demand)
    pairs = pairs_of(matrix)
    if not len(pairs.demand):
        return np.inf
    high = load_bound(matrix, wavelengths)
    if high <= least:
        return least
    colours = _Colours(pairs, wavelengths)
    return greatest_level(pairs.demand, least, high, colours.fit)


class _Colours:
    """Sets of ways that share no segment, as they were found: the pairs of each, and its fibre."""

    def __init__(self, pairs: Pairs, wavelengths: int) -> None:
        self._wavelengths = wavelengths
        known = len(pairs.demand)
        #: [2, nodes, nodes]: whose the way from that segment of that length is; ``known`` is nobody.
        self._pair = np.full((2, pairs.nodes, pairs.nodes), known)
        for fibre, clockwise in enumerate((True, False)):
            first, length = pairs.ways(clockwise)
            self._pair[fibre, first, length] = np.arange(known)
        self._sets: list[tuple[int, ...]] = [
            (pair,) for pair in (*range(known), *range(known))
        ]
        self._fibres = [0] * known + [1] * known

    def fit(self, numbers: IntArray) -> bool:
        """Whether so many lightpaths of each pair can be coloured in parts."""
        while True:
            times, prices = self._most_times(numbers)
            if times >= 1 - _DEARER:
                return True
            before, most = len(self._sets), 0.0
            for fibre in range(2):
                most += self._find(fibre, prices)
            # Whatever the colours: all that the pairs pay, and what the dearest set of either fibre can earn.
            if (
                self._wavelengths * most < (prices @ numbers) * (1 - _DEARER)
                or len(self._sets) == before
            ):
                return False

    def _most_times(self, numbers: IntArray) -> tuple[float, FloatArray]:
        """How many times the numbers fit with the sets that there are, and what a lightpath of each pair is
        worth."""
        known, sets = len(numbers), len(self._sets)
        columns = np.repeat(np.arange(sets), [len(own) for own in self._sets])
        rows = np.concatenate([np.array(own) for own in self._sets])
        covered = sparse.coo_array(
            (-np.ones(len(rows)), (rows, columns)), (known, sets)
        )
        of_fibre = sparse.coo_array(
            (np.ones(sets), (self._fibres, np.arange(sets))), (2, sets)
        )
        matrix = sparse.block_array(
            [[covered, numbers[:, None].astype(float)], [of_fibre, None]], format="csr"
        )
        found = linprog(
            np.append(np.zeros(sets), -1.0),
            A_ub=matrix,
            b_ub=np.append(np.zeros(known), [self._wavelengths] * 2),
            method="highs",
        )
        if found.status != 0:
            raise RuntimeError(f"HiGHS: {found.message}")
        prices: FloatArray = np.maximum(0.0, -found.ineqlin.marginals[:known])
        return -float(found.fun), prices

    def _find(self, fibre: int, prices: FloatArray) -> float:
        """The price of the dearest set of a fibre; adds it and others that begin elsewhere.

        What begins at a segment is a line from there: no other way of the set crosses its beginning.
        """
        pair = self._pair[fibre]
        nodes = len(pair)
        worth = np.append(prices, 0.0)[pair]
        starts = np.arange(nodes)
        #: [start of the line, place on it]: the most from there to the end, and the length of the way there.
        best, chosen = (
            np.zeros((nodes, nodes + 1)),
            np.zeros((nodes, nodes), dtype=np.int64),
        )
        for place in range(nodes - 1, -1, -1):
            # Length 0 is worth nothing, and one segment is left dark then.
            lengths = np.arange(nodes - place + 1) if place else np.arange(nodes)
            value = (
                worth[(starts + place) % nodes][:, lengths]
                + best[:, place + np.maximum(lengths, 1)]
            )
            chosen[:, place] = value.argmax(axis=1)
            best[:, place] = value.max(axis=1)
        found = set()
        for start in starts.tolist():
            place, own = 0, []
            while place < nodes:
                length = int(chosen[start, place])
                if length:
                    own.append(int(pair[(start + place) % nodes, length]))
                place += max(length, 1)
            found.add(tuple(sorted(own)))
        known = {
            own
            for own, its in zip(self._sets, self._fibres, strict=True)
            if its == fibre
        }
        new = sorted(found - known)
        self._sets += new
        self._fibres += [fibre] * len(new)
        return float(best[:, 0].max())
