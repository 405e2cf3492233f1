"""A graph of degree d that is built once for a job: rings for its all-reduces, matchings for the rest.

After TopoOpt (Wang et al., NSDI 2023). GPUs forward for each other. Circuits here are directed, so a matching
is a partial permutation. Assumptions of our own: all-reduces are of groups without a common GPU, their rings
and the matchings divide the ports as their bytes do, and if the whole would not hang together the last
port of every GPU makes one ring of all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringlight.extensions.sip_ml.allocation.demand import check_demand
from ringlight.fabric.schedules import strides
from ringlight.fabric.steps import IntArray


def one_shot(
    demand: npt.ArrayLike,
    degree: int,
    groups: Sequence[IntArray] = (),
    group_bytes: float = 0.0,
) -> IntArray:
    """Return the GPU [degree, n] to which each port of each GPU leads, -1 if the port is dark.

    No port leads two GPUs to the same one. ``demand`` [n, n]: bytes from each GPU (row) to each other outside
    of the all-reduces. ``groups``: GPUs of each all-reduce, ``group_bytes``: bytes that each of them sends in
    it. The first ports are for rings by :func:`fabric.schedules.strides`, again from the first if there are
    too few. If there are two ports, rings and matchings that have bytes get at least one port each. All ring
    ports carry a ``coprime-rings`` all-reduce, only the first a ``ring``. Each other port is a matching of
    the most bytes. The bytes that it serves then count half, as in TopoOpt, so that other pairs get their
    turn. A GPU that neither sends nor receives has no circuits.
    The degree is from 1 to n - 1, and no GPU is in two groups. Raises ValueError for a demand that
    :func:`check_demand` rejects.
    """
    left = check_demand(demand).copy()
    n = len(left)
    members = [group for group in groups if len(group) > 1]
    table = np.full((degree, n), -1, dtype=np.int64)
    rings = _ring_ports(degree, group_bytes * sum(map(len, members)), float(left.sum()))
    for ranks in members:
        for port, stride in zip(
            range(rings), itertools.cycle(strides(len(ranks), rings)), strict=False
        ):
            table[port, ranks] = np.roll(ranks, -stride)
    for port in range(rings, degree):
        table[port] = _matching(left)
        served = np.flatnonzero(table[port] >= 0)
        left[served, table[port, served]] /= 2
    takes_part = np.flatnonzero(left.sum(axis=0) + left.sum(axis=1))
    active = np.unique(np.concatenate([takes_part, *members]))
    if not len(active):
        active = np.arange(n)
    if not hangs_together(table, active):
        table[-1, active] = np.roll(active, -1)
    return table


def circuits(ports: IntArray) -> IntArray:
    """Return the number of circuits [n, n] from each GPU to each other.

    ``ports`` are as :func:`one_shot` returns them.
    """
    n = ports.shape[1]
    port, source = np.nonzero(ports >= 0)
    counts = np.bincount(source * n + ports[port, source], minlength=n * n)
    return counts.reshape(n, n).astype(np.int64)


def hangs_together(ports: IntArray, among: IntArray | None = None) -> bool:
    """Return whether every GPU (or each of those ``among``) can reach every other, over other GPUs."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    of = connected_components(csr_array(circuits(ports)), connection="strong")[1]
    return len(np.unique(of if among is None else of[among])) == 1


def _ring_ports(degree: int, in_rings: float, other_bytes: float) -> int:
    if not in_rings:
        return 0
    share = round(degree * in_rings / (in_rings + other_bytes))
    return min(max(share, 1), max(degree - (other_bytes > 0), 1))


def _matching(left: npt.NDArray[np.float64]) -> IntArray:
    """Return the GPU to which each GPU is joined, [n], -1 for none, so that the most bytes are served."""
    from scipy.optimize import linear_sum_assignment

    source, destination = linear_sum_assignment(left, maximize=True)
    return np.where(left[source, destination] > 0, destination, -1).astype(np.int64)
