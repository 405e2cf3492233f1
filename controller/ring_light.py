"""What a job on a WDM ring gets: every node's transmit table and the settings of the WSSs. Pure.

A worker greets each peer it is joined to before the first step, in both directions, and a schedule may use
only one of them. So a job has more settings than its steps': in these everybody can greet everybody he is
joined to, as many at once as the wavelengths allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from controller.errors import InvalidError
from controller.onic.conductor import Pair, Score
from controller.reservation import reserve
from fabric.crossconnect import CrossConnect
from fabric.schedules import Step, Steps, frozen, frozen_bool, steps_named
from fabric.topology import Fabric, WdmRing
from fabric.wdm import Emit, RingPlan, cross_connects, plan_ring, segments, set_up_steps

#: Bytes of an element of the gradient.
_ITEM_BYTES = 4
#: O-NIC ports: port 0 sends clockwise, port 1 the other way.
_CLOCKWISE, _COUNTER = 0, 1

Setting = Mapping[str, frozenset[CrossConnect]]


@dataclass(frozen=True)
class RingLight:
    """``settings``: by WSS what it carries, complete: first one for each step, then those for greetings.

    ``transmit``: by node and peer the port and wavelength. ``set_ups``: how many steps of an iteration need
    the WSSs changed.
    """

    ring: str
    nodes: tuple[str, ...]
    transmit: Mapping[str, Mapping[str, Emit]]
    settings: tuple[Setting, ...]
    score: Score
    set_ups: int

    @property
    def switches(self) -> list[str]:
        """The WSSs of the ring."""
        return sorted(self.settings[0])

    @property
    def first(self) -> int:
        """The setting that stands when the workers start."""
        return len(self.score.steps)


def ring_of(fabric: Fabric, gpu: str) -> WdmRing | None:
    """The ring that a GPU is a node of."""
    return next((ring for ring in fabric.rings.values() if gpu in ring.nodes), None)


def choose_ring(
    fabric: Fabric,
    holders: Mapping[str, str],
    wanted: Sequence[str] | int,
    ring_name: str | None,
    grid_name: str | None = None,
) -> WdmRing | None:
    """The ring of a job; None for a job that is not meant for one.

    ``wanted``: GPU names by rank, or how many; a job uses all nodes of its ring, in order. ``holders``: the
    job that has each taken node. Raises InvalidError for what can never be, ConflictError for what cannot
    be now.
    """
    if ring_name is not None:
        if ring_name not in fabric.rings:
            raise InvalidError(f"there is no ring {ring_name}")
        if grid_name is not None:
            raise InvalidError(f"a job is on ring {ring_name} or on grid {grid_name}, not on both")
    if isinstance(wanted, int):
        if ring_name is None and (grid_name is not None or len(fabric.onics) < len(fabric.gpus)):
            return None
        rings = [fabric.rings[ring_name]] if ring_name is not None else list(fabric.rings.values())
        fitting = [ring for ring in rings if len(ring.nodes) == wanted]
        if not fitting and rings and (ring_name is not None or not fabric.grids):
            raise InvalidError(f"{wanted} GPUs: {_rule(rings[0])}")
        free = [ring for ring in fitting if not any(node in holders for node in ring.nodes)]
        if free or not fitting:
            return free[0] if free else None
        reserve(fitting[0].nodes, holders, {}, fitting[0].nodes)
        raise AssertionError("unreachable")
    rings = [ring for gpu in wanted if (ring := ring_of(fabric, gpu)) is not None]
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
    to = (settings.get("linktest") or {}).get("to")
    pairs = []
    for rank, target in enumerate(to if isinstance(to, list) else [to] * ranks):
        if target is None or target == rank:
            continue
        if not 0 <= target < ranks:
            raise InvalidError(f"linktest.to: there is no rank {target}")
        pairs.append((rank, target))
    if not pairs:
        raise InvalidError("linktest.to: no rank sends anything")
    sources, destinations = (frozen([pair[k] for pair in pairs]) for k in (0, 1))
    zeros = frozen(np.zeros(len(pairs)))
    step = Step(sources, destinations, zeros, frozen(np.ones(len(pairs))), "replace")
    return Steps("linktest", ranks, 1, 1, lambda: iter([step]))


def plan_light(fabric: Fabric, ring: WdmRing, steps: Steps) -> RingLight:
    """Everything that follows from what a job sends. Raises InvalidError naming what does not fit."""
    try:
        plan = plan_ring(fabric, ring, steps)
    except ValueError as error:
        raise InvalidError(f"{steps.name} on ring {ring.name}: {error}") from error
    if not any(step.pairs for step in plan.steps):
        raise InvalidError(f"{steps.name} on ring {ring.name}: nothing is sent")
    ways, rounds = _greetings(ring, plan)
    homes = {pair: len(plan.steps) + number for number, pairs in enumerate(rounds) for pair in pairs}
    transmit: dict[str, dict[str, Emit]] = {node: {} for node in ring.nodes}
    for (source, destination), emit in ways.items():
        transmit[source][destination] = emit
    index = {node: i for i, node in enumerate(ring.nodes)}
    settings = [step.cross_connects for step in plan.steps]
    settings += [cross_connects(ring, fabric, _step(index, pairs, ways)) for pairs in rounds]
    score = Score(tuple(step.pairs for step in plan.steps), homes)
    return RingLight(ring.name, ring.nodes, transmit, tuple(settings), score, sum(set_up_steps(plan)))


def _greetings(ring: WdmRing, plan: RingPlan) -> tuple[dict[Pair, Emit], list[list[Pair]]]:
    """How each pair that is joined is reached, both ways; and which pairs have light at once.

    First fit, so that all pairs of a one-step plan (a link test) have light at once. A way that no step
    uses is the shortest, on whatever wavelength fits first.
    """
    index = {node: i for i, node in enumerate(ring.nodes)}
    ways: dict[Pair, Emit] = {
        (source, peer): emit for source, peers in plan.transmit.items() for peer, emit in peers.items()
    }
    pairs = list(dict.fromkeys(pair for step in plan.steps for pair in sorted(step.pairs)))
    pairs += [(b, a) for a, b in pairs if (b, a) not in ways]
    rounds: list[list[Pair]] = []
    taken: list[set[tuple[int, int]]] = []

    def choices(pair: Pair) -> Iterator[tuple[Emit, set[tuple[int, int]]]]:
        source, destination = (index[node] for node in pair)
        if pair in ways:
            emits = [ways[pair]]
        else:
            nodes = len(ring.nodes)
            port = _CLOCKWISE if 2 * ((destination - source) % nodes) <= nodes else _COUNTER
            emits = [Emit(port, wavelength) for wavelength in range(ring.wavelengths)]
        for emit in emits:
            clockwise = frozen_bool([emit.port == _CLOCKWISE])
            ends = frozen([source]), frozen([destination])
            _, passed = segments(*ends, clockwise, len(ring.nodes))
            yield emit, {(segment, emit.wavelength) for segment in passed.tolist()}

    def place(pair: Pair) -> tuple[Emit, set[tuple[int, int]], int]:
        options = list(choices(pair))
        for number, busy in enumerate(taken):
            for emit, lanes in options:
                if not lanes & busy:
                    return emit, lanes, number
        return *options[0], len(rounds)

    for pair in pairs:
        emit, lanes, number = place(pair)
        if number == len(rounds):
            rounds.append([])
            taken.append(set())
        ways[pair] = emit
        rounds[number].append(pair)
        taken[number] |= lanes
    return ways, rounds


def _step(index: Mapping[str, int], pairs: Sequence[Pair], ways: Mapping[Pair, Emit]) -> Step:
    zeros = frozen(np.zeros(len(pairs)))
    return Step(
        frozen([index[source] for source, _ in pairs]),
        frozen([index[destination] for _, destination in pairs]),
        zeros,
        zeros,
        "replace",
        frozen([ways[pair].wavelength for pair in pairs]),
        frozen_bool([ways[pair].port == _CLOCKWISE for pair in pairs]),
    )
