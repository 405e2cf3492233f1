"""Which ring a job gets and what it sets there: transmit tables, and the WSSs for each step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ringlight.controller.errors import InvalidError
from ringlight.controller.jobs.job import linktest_targets
from ringlight.controller.jobs.reservation import reserve
from ringlight.fabric.planes.choice import candidates, plane_of
from ringlight.fabric.planes.ring.ring import WdmRing
from ringlight.fabric.planes.ring.ring_plane import RingPlane
from ringlight.fabric.planes.ring.wdm import RingPlan, plan_ring
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.steps import Step, Steps, frozen
from ringlight.fabric.topology import Fabric

#: Bytes of an element of the gradient.
_ITEM_BYTES = 4


def ring_of(fabric: Fabric, gpu: str) -> WdmRing | None:
    """The ring that a GPU is a node of."""
    plane = plane_of(fabric, (gpu,))
    return plane.ring if isinstance(plane, RingPlane) else None


def choose_ring(
    fabric: Fabric,
    holders: Mapping[str, str],
    wanted: Sequence[str] | int,
    ring_name: str | None = None,
) -> WdmRing | None:
    """The ring of a job; None for a job that is not meant for one.

    ``wanted``: GPU names by rank, or how many; a job uses all nodes of its ring, in order. ``holders``: the
    job that has each taken node. Raises InvalidError for what can never be, ConflictError for what cannot
    be now.
    """
    if ring_name is not None and ring_name not in fabric.rings:
        raise InvalidError(f"there is no ring {ring_name}")
    if isinstance(wanted, int):
        rings = [plane.ring for plane in candidates(fabric) if isinstance(plane, RingPlane)]
        if ring_name is not None:
            rings = [fabric.rings[ring_name]]
        if not rings:
            return None
        fitting = [ring for ring in rings if len(ring.nodes) == wanted]
        if not fitting:
            raise InvalidError(f"{wanted} GPUs: {_rule(rings[0])}")
        free = [ring for ring in fitting if not any(node in holders for node in ring.nodes)]
        ring = (free or fitting)[0]
        reserve(ring.nodes, holders, {}, ring.nodes)
        return ring
    rings = [found for gpu in wanted if (found := ring_of(fabric, gpu)) is not None]
    if not rings and ring_name is None:
        return None
    ring = rings[0] if ring_name is None else fabric.rings[ring_name]
    reserve(tuple(fabric.gpus), {}, {}, wanted)
    if tuple(wanted) != ring.nodes:
        rank = next((i for i, (a, b) in enumerate(zip(wanted, ring.nodes, strict=False)) if a != b), None)
        what = f"{len(wanted)} ranks" if rank is None else f"rank {rank} is {wanted[rank]}"
        raise InvalidError(f"{what}: {_rule(ring)}")
    reserve(ring.nodes, holders, {}, ring.nodes)
    return ring


def _rule(ring: WdmRing) -> str:
    nodes = ring.nodes
    return f"a job on ring {ring.name} uses all its {len(nodes)} nodes in order, {nodes[0]} to {nodes[-1]}"


def steps_of_job(ring: WdmRing, settings: Mapping[str, Any]) -> Steps:
    """What a job's workers send, step by step. Raises InvalidError.

    ``settings``: the workers' (``workload``, ``collective``, ``gradient_bytes``, ``linktest``).
    """
    ranks = len(ring.nodes)
    if settings.get("workload", "train") == "train":
        collective = settings.get("collective", "ring")
        try:
            steps = replace(steps_named(collective, ranks), name=f"collective {collective}")
        except ValueError as error:
            raise InvalidError(f"collective {collective} on ring {ring.name}: {error}") from error
        elements = settings.get("gradient_bytes")
        if elements is not None and elements // _ITEM_BYTES < steps.chunks:
            # A part without elements is never sent, so its step would never be over.
            raise InvalidError(
                f"gradient_bytes: {elements} bytes are fewer elements than the {steps.chunks} parts of "
                f"collective {collective}"
            )
        return steps
    targets = linktest_targets(settings, ranks)
    pairs = [(rank, target) for rank, target in enumerate(targets) if target is not None]
    if not pairs:
        raise InvalidError("linktest.to: no rank sends anything")
    sources, destinations = (frozen([pair[k] for pair in pairs]) for k in (0, 1))
    zeros = frozen(np.zeros(len(pairs)))
    step = Step(sources, destinations, zeros, frozen(np.ones(len(pairs))), "replace")
    return Steps("linktest", ranks, 1, 1, lambda: iter([step]))


def plan_light(fabric: Fabric, ring: WdmRing, steps: Steps) -> RingPlan:
    """Everything that follows from what a job sends. Raises InvalidError naming what does not fit."""
    try:
        plan = plan_ring(fabric, ring, steps)
    except ValueError as error:
        raise InvalidError(f"{steps.name} on ring {ring.name}: {error}") from error
    if not any(step.pairs for step in plan.steps):
        raise InvalidError(f"{steps.name} on ring {ring.name}: nothing is sent")
    return plan
