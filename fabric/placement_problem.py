"""The assignment problem of a regrouping in numbers: who may go where, and what a placement costs."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ringlight.fabric.cost import RingJob
from ringlight.fabric.parts import Port
from ringlight.fabric.steps import IntArray
from ringlight.fabric.topology import Fabric, circuit_cross_connects, optical_neighbour

Circuit = tuple[Port, Port]
Score = tuple[float, int]


@dataclass(frozen=True)
class Problem:
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


def problem_of(
    fabric: Fabric,
    circuits: tuple[Circuit, ...],
    jobs: tuple[RingJob, ...],
    movable: Collection[str] | None,
) -> Problem:
    """Return the problem of bringing ``jobs`` together, the GPUs of jobs first, then idle ones that may move.

    Raises ValueError naming the GPU, port or switch; see :func:`fabric.placement.regroup`.
    """
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
            raise ValueError(
                f"{where} is joined to {end}, not to an aggregation switch"
            )
        if faceplate is None and end is None:
            raise ValueError(f"{where} is plugged into nothing")
        may_move = faceplate is not None and (movable is None or gpu in movable)
        if end is None and not may_move:
            raise ValueError(f"{where} is dark and may not be moved")
        group.append(
            groups[faceplate.node] if may_move and faceplate is not None else -1
        )
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
    taken = {
        port
        for c in circuits
        for port in c
        if c[0].node not in leaving and c[1].node not in leaving
    }
    free_ports: dict[tuple[int, int], list[Port]] = {}
    for port in sorted(fabric.link_at):
        faceplate = optical_neighbour(fabric, port) if port.node in switches else None
        if faceplate is not None and port not in taken:
            free_ports.setdefault(
                (groups[faceplate.node], switches[port.node]), []
            ).append(port)
    capacity = np.zeros((len(groups), len(switches)), dtype=np.int64)
    for where_, ports in free_ports.items():
        capacity[where_] = len(ports)
    for index, name in enumerate(groups):
        needed, there_are = group.count(index), int(capacity[index].sum())
        if needed > there_are:
            dark = next(
                g
                for g, o, h in zip(items, group, home, strict=True)
                if o == index and h < 0
            )
            raise ValueError(
                f"no free port for GPU {dark}: {name} reaches {there_are} for {needed} GPUs"
            )

    rings = []
    first = 0
    for job in jobs:
        rings.append((np.arange(first, first + len(job.ranks)), job.bytes_per_edge))
        first += len(job.ranks)
    return Problem(
        switches=tuple(switches),
        items=items,
        group=np.array(group, dtype=np.int64),
        home=np.array(home, dtype=np.int64),
        rings=tuple(rings),
        capacity=capacity,
        free_ports=free_ports,
        port_now=port_now,
    )


def _crossing_edges(ring: IntArray, place: IntArray) -> int:
    switches = place[ring]
    # An edge of a dark item (-1) crosses, even to another dark one.
    return (
        0
        if len(ring) < 2
        else int(np.count_nonzero((switches != np.roll(switches, -1)) | (switches < 0)))
    )


def crossing_bytes_of(problem: Problem, place: IntArray) -> float:
    return math.fsum(b * _crossing_edges(ring, place) for ring, b in problem.rings)


def comparable(problem: Problem, crossing_bytes: float) -> float:
    """Return crossing bytes in units of the lightest edge, without digits in which equal sums may differ."""
    return round(crossing_bytes / problem.unit, 4)


def score_of(problem: Problem, place: IntArray) -> Score:
    """Return (crossing, moves): what is minimised, in this order."""
    moves = int(np.count_nonzero(place != problem.home))
    return comparable(problem, crossing_bytes_of(problem, place)), moves


def crossing_bound(problem: Problem) -> float:
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
        enough = (
            int(np.searchsorted(np.cumsum(room), free.sum())) + 1 if free.any() else 0
        )
        switches = max(enough, len(set(problem.home[ring][~free].tolist())))
        total.append(b * switches if switches > 1 else 0.0)
    return math.fsum(total)


def demand_of(problem: Problem, items: IntArray, switches: IntArray) -> IntArray:
    """Return the ports that the movable ones of these items need on these switches.

    The shape is that of ``capacity``.
    """
    demand = np.zeros_like(problem.capacity)
    loose = problem.group[items] >= 0
    np.add.at(demand, (problem.group[items][loose], switches[loose]), 1)
    return demand


def fill(problem: Problem, place: IntArray) -> None:
    """Put items without a place (-1) where there is room: at home if possible, else on the first switch."""
    placed = np.flatnonzero(place >= 0)
    free = problem.capacity - demand_of(problem, placed, place[placed])
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
