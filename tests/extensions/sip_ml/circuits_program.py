"""SiP-OCS's program as HiGHS solves it: what ``single_shot`` is held against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from ringlight.extensions.sip_ml.allocation.circuits import CircuitPlan, _Pairs


def highs_single_shot(
    demand: npt.ArrayLike, switches: int, time_limit_s: float, *, by_switch: bool = True
) -> CircuitPlan:
    """The integer program over permutations, by HiGHS: to compare ``single_shot`` with.

    One binary variable for each switch and pair, at most one per row and column of a switch, and z to be made
    great. Pairs without demand have no variable, for any partial matching can be completed to a permutation.
    As all switches are alike, it is slow. ``by_switch`` False: one whole number for each pair, at most Q per
    row and column, which has the same optimum (Kőnig).

    ``bound`` is what HiGHS proved within the time limit. If it found nothing by then, or something that does
    not hold, no pair gets a circuit and z is 0. Raises ValueError as ``single_shot``, but a GPU may have more
    partners than there are switches: z is then 0.
    """
    pairs = _Pairs.of(demand, switches)
    each = len(pairs.relative)
    if not each:
        return pairs.plan(np.zeros(0, dtype=np.int64), float("inf"))
    apart, room = (switches, 1) if by_switch else (1, switches)
    circuit = np.arange(apart * each)
    switch, pair = np.divmod(circuit, each)
    ports = apart * pairs.gpus
    z_column, z_rows = apart * each, 2 * ports + np.arange(each)
    rows = [
        switch * pairs.gpus + pairs.sources[pair],
        ports + switch * pairs.gpus + pairs.destinations[pair],
        2 * ports + pair,
        z_rows,
    ]
    columns = [circuit, circuit, circuit, np.full(each, z_column)]
    values = [np.ones(len(circuit))] * 3 + [-pairs.relative]
    height = 2 * ports + each
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(height, z_column + 1),
    ).tocsr()
    is_port = np.arange(height) < 2 * ports
    result = milp(
        np.append(np.zeros(len(circuit)), -1.0),
        integrality=np.append(np.ones(len(circuit)), 0.0),
        bounds=Bounds(
            0, np.append(np.full(len(circuit), float(room)), pairs.line_bound())
        ),
        constraints=LinearConstraint(
            matrix,
            np.where(is_port, -np.inf, 0.0),
            np.where(is_port, float(room), np.inf),
        ),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    proved = getattr(result, "mip_dual_bound", None)
    bound = (
        pairs.line_bound()
        if proved is None
        else min(-float(proved), pairs.line_bound())
    )
    counts = np.zeros(each, dtype=np.int64)
    if result.x is not None:
        lit = np.rint(result.x[:-1]).astype(np.int64)
        # HiGHS has been known to return an infeasible solution as optimal.
        if (matrix[: 2 * ports, :-1] @ lit).max() <= room:
            counts = lit.reshape(apart, each).sum(axis=0)
    return pairs.plan(counts, bound)
