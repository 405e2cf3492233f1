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

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringlight.fabric.cost import RingJob, check_jobs
from ringlight.fabric.parts import Port
from ringlight.fabric.placement_exact import solve_exactly, try_all
from ringlight.fabric.placement_heuristic import search
from ringlight.fabric.placement_problem import (
    Circuit,
    Problem,
    comparable,
    crossing_bound,
    crossing_bytes_of,
    problem_of,
    score_of,
)
from ringlight.fabric.steps import IntArray
from ringlight.fabric.topology import Fabric

#: Binary choices (movable GPUs of jobs times switches each can reach) up to which the exact solver is tried.
EXACT_CHOICES = 64


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
                {
                    "gpu": m.gpu,
                    "from": None if m.source is None else str(m.source),
                    "to": str(m.destination),
                }
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
    problem = problem_of(fabric, circuits, check_jobs(fabric, jobs), movable)
    place, optimal = _solve(problem)
    new_ports = _choose_ports(fabric, problem, place)
    moves = tuple(
        Move(gpu, problem.port_now.get(gpu), new_ports[gpu])
        for gpu in fabric.gpus
        if gpu in new_ports
    )
    after = []
    for a, b in circuits:
        gpu = a.node if a.node in new_ports else b.node
        after.append((Port(gpu, 0), new_ports[gpu]) if gpu in new_ports else (a, b))
    after += [(Port(m.gpu, 0), m.destination) for m in moves if m.source is None]
    return Regrouping(
        circuits=tuple(after),
        moved=moves,
        kept=tuple(
            c
            for c in circuits
            if c[0].node not in new_ports and c[1].node not in new_ports
        ),
        crossing_bytes_before=crossing_bytes_of(problem, problem.home),
        crossing_bytes_after=crossing_bytes_of(problem, place),
        crossing_bytes_bound=crossing_bound(problem),
        optimal=optimal,
    )


def _choose_ports(fabric: Fabric, problem: Problem, place: IntArray) -> dict[str, Port]:
    """Return the new port of every item that changes its switch."""
    movers: dict[str, tuple[int, int]] = {}
    staying: set[Port] = set()
    for gpu, o, old, new in zip(
        problem.items, problem.group, problem.home, place, strict=True
    ):
        if old != new:
            movers[gpu] = int(o), int(new)
        else:
            staying.add(problem.port_now[gpu])
    free = {
        where: iter(p for p in ports if p not in staying)
        for where, ports in problem.free_ports.items()
    }
    return {gpu: next(free[movers[gpu]]) for gpu in fabric.gpus if gpu in movers}


def _solve(problem: Problem) -> tuple[IntArray, bool]:
    """Return the best placement found, and whether it is proven optimal."""
    bound = comparable(problem, crossing_bound(problem))
    if not np.any(problem.home < 0) and score_of(problem, problem.home)[0] <= bound:
        return problem.home.copy(), True
    place = search(problem)
    if (best := try_all(problem, place)) is not None:
        return best, True
    choices = sum(
        np.count_nonzero(problem.capacity[o]) for o in problem.group if o >= 0
    )
    weights = [b for _, b in problem.rings if b > 0]
    # Weights further apart than the solver's tolerance cannot be told apart, so nothing is proven.
    if choices > EXACT_CHOICES or (weights and max(weights) > 1e3 * min(weights)):
        return place, False
    return solve_exactly(problem, place, bound)
