"""SiP-ML's program of a ring of wavelengths, solved by HiGHS: what the search is held against.

:func:`highs_ring` is the program as it stands (Khani et al., SIGCOMM 2021, as its authors' simulator states
it), with the bound that HiGHS proved; cut into as many rings as there are wavelengths, each of one, it gives
colours, too. :func:`load_bound` is its optimum by bisection. For a given z the pairs' numbers are fixed, and
only how many of them go clockwise is open. Of two ways, one inside the other, not both need be split between
the fibres (Wilfong and Winkler, Ring routing and wavelength translation, SODA 1998), so a linear program
decides it in which only the sum of all that go clockwise is whole.

Nothing is decided with it: tests measure gaps against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from ringlight.extensions.sip_ml.allocation.arc_bounds import (
    ROUND,
    Pairs,
    cut_bound,
    lightpaths_for,
    pairs_of,
    shorter_way_level,
)  # fmt: skip
from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.fabric.steps import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class RingProgram:
    """What HiGHS found. ``counts`` [2, rings, nodes, nodes]: lightpaths clockwise and the other way round.

    ``z``: theirs; ``bound``: what HiGHS proved that no z exceeds.
    """

    counts: IntArray
    z: float
    bound: float


def greatest_level(
    demand: FloatArray, low: float, high: float, fits: Callable[[IntArray], bool]
) -> float:
    """The greatest z up to ``high`` whose numbers of lightpaths fit; ``low`` is known to."""
    first = np.floor(low * demand * (1 + ROUND)).astype(np.int64) + 1
    more = np.maximum(
        0, np.floor(high * demand * (1 + ROUND)).astype(np.int64) + 1 - first
    )
    along = np.arange(more.sum()) - np.repeat(more.cumsum() - more, more)
    steps = np.unique((np.repeat(first, more) + along) / np.repeat(demand, more))
    # Mostly the bound is reached.
    below, above = -1, len(steps)
    middle = above - 1
    while below + 1 < above:
        if fits(lightpaths_for(float(steps[middle]), demand)):
            below = middle
        else:
            above = middle
        middle = (below + above) // 2
    return float(steps[below]) if below >= 0 else low


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
    if rings < 1 or wavelengths % rings:
        raise ValueError(
            f"rings: {wavelengths} wavelengths are not divided among {rings} rings"
        )
    nodes, pairs = len(matrix), pairs_of(matrix)
    known, each = len(pairs.demand), wavelengths // rings
    if not known:
        return RingProgram(
            np.zeros((2, rings, nodes, nodes), dtype=np.int64), np.inf, np.inf
        )
    clockwise = (np.arange(nodes)[:, None] - pairs.sources) % nodes < pairs.hops
    blocks = [
        sparse.kron(sparse.eye(rings), side.astype(float))
        for side in (clockwise, ~clockwise)
    ]
    loads = sparse.hstack(
        [sparse.block_diag(blocks), sparse.coo_array((2 * rings * nodes, 1))]
    )
    of_pair = sparse.hstack([sparse.eye(known)] * (2 * rings))
    served = sparse.hstack([of_pair, -pairs.demand[:, None]])
    # Now and then HiGHS refuses what it found itself, because it is whole only to its tolerance. From rows of
    # another scale it finds something else.
    for scale in (np.ones(known), 1 / pairs.demand, np.full(known, 1000.0)):
        rows = sparse.diags_array(scale) @ served
        found = milp(
            np.append(np.zeros(2 * rings * known), -1.0),
            constraints=[
                LinearConstraint(loads, -np.inf, each),
                LinearConstraint(rows, 0.0, np.inf),
            ],
            bounds=Bounds(
                0.0, np.append(np.full(2 * rings * known, each), 2.0 * wavelengths)
            ),
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
    return RingProgram(
        counts, float((laid.sum(axis=(0, 1)) / pairs.demand).min()), bound
    )


def load_bound(
    demand: npt.ArrayLike, wavelengths: int, *, shorter_way: bool = False
) -> float:
    """The greatest z that the load of the segments allows, whatever the colours: the program's optimum.

    ``shorter_way``: when all go the shorter way (clockwise at a tie). Raises ValueError as
    :func:`check_demand`, RuntimeError with what HiGHS says where it fails.
    """
    matrix = check_demand(demand)
    pairs = pairs_of(matrix)
    if not len(pairs.demand):
        return np.inf
    low = shorter_way_level(pairs, wavelengths)
    if shorter_way:
        return low
    high = cut_bound(pairs, matrix, wavelengths)
    return greatest_level(
        pairs.demand, low, high, lambda numbers: _loads_fit(pairs, numbers, wavelengths)
    )


def _loads_fit(pairs: Pairs, numbers: IntArray, wavelengths: int) -> bool:
    """Whether some of each pair's lightpaths can go clockwise and the others not, with no load too great.

    Variables: of each pair the clockwise ones, loads of the segments of fibre 0 and of fibre 1, sum of the
    clockwise ones. The load of a segment differs from that before it by what starts and ends in between.
    """
    nodes, known = pairs.nodes, len(numbers)
    destinations = (pairs.sources + pairs.hops) % nodes
    across = (-pairs.sources) % nodes < pairs.hops
    places = np.concatenate(
        [destinations, pairs.sources, np.zeros(known, dtype=np.int64)]
    )
    columns = np.tile(np.arange(known), 3)

    def changes(of_segment_0: FloatArray) -> sparse.csr_array:
        # Segment 0 has none before it: its load is said as such.
        values = np.concatenate(
            [1.0 * (destinations > 0), -1.0 * (pairs.sources > 0), of_segment_0]
        )
        return sparse.csr_array((values, (places, columns)), (nodes, known))

    clockwise, counter = (
        changes(np.where(across, -1.0, 0.0)),
        changes(np.where(across, 0.0, 1.0)),
    )
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
        bounds=Bounds(
            0.0,
            np.concatenate([numbers, np.full(2 * nodes, wavelengths), [numbers.sum()]]),
        ),
        integrality=np.append(np.zeros(known + 2 * nodes), 1),
    )
    if found.status not in (0, 2):
        raise RuntimeError(f"HiGHS: {found.message}")
    return bool(found.status == 0)
