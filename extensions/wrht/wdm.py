"""A ring of nodes joined by two fibres, one for each direction, each with several wavelengths.

Segment i lies between node i and node i + 1. Its clockwise fibre carries light towards i + 1, the other
one towards i. A lightpath takes one wavelength on every segment it passes, so two that share a wavelength
must not share a segment of one fibre; what one node sends another in a step is one lightpath, whatever
transfers it is made of. Every node has one small WSS, which adds, drops or passes light by
its colour, and an O-NIC with two ports: port 0 sends clockwise and port 1 the other way, each on up to all
wavelengths at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringlight.extensions.wrht.ring import (
    ADD_CLOCKWISE,
    ADD_COUNTER,
    CLOCKWISE,
    COUNTER,
    EAST,
    WEST,
    WdmRing,
    make_ring,
    plugged_ring,
)
from ringlight.fabric import light
from ringlight.fabric.algorithms import parse_collective, unstriped_steps
from ringlight.fabric.crossconnect import CrossConnect, Emit, Mode, plan_changes
from ringlight.fabric.light import Optics, Reconfigure, received_dbm
from ringlight.fabric.parts import Wss
from ringlight.fabric.steps import (
    BoolArray,
    IntArray,
    Step,
    Steps,
    compact,
    frozen,
    frozen_bool,
)
from ringlight.fabric.topology import Fabric


def wdm_ring(
    name: str,
    nodes: int,
    wavelengths: int,
    rate_bps: float,
    *,
    optics: Optics | None = None,
    loss_db: float = 0.0,
) -> tuple[Fabric, WdmRing]:
    """Return a fabric of one ring, and the ring, without a scenario file. ``loss_db``: of each WSS."""
    ring = make_ring(name, nodes, wavelengths)
    made = plugged_ring(ring, "gpu", rate_bps, 0.02, Wss("scpi", "mrr", loss_db))
    fabric = Fabric(
        gpus={node.name: node for node in made.gpus},
        packet_switches={},
        optical_switches={switch.name: switch for switch in made.switches},
        links=tuple(made.links),
        onics={onic.gpu: onic for onic in made.onics},
        parts={"rings": {name: ring}},
        optics=optics or Optics(),
    )
    return fabric, ring


def hops(
    sources: IntArray, destinations: IntArray, clockwise: BoolArray, nodes: int
) -> IntArray:
    """Return the number of segments that each lightpath passes."""
    forward = (destinations - sources) % nodes
    return np.where(clockwise, forward, (-forward) % nodes)


def segments(
    sources: IntArray, destinations: IntArray, clockwise: BoolArray, nodes: int
) -> tuple[IntArray, IntArray]:
    """Return the directed segments that each lightpath passes, in the order passed.

    The result is (offsets [transfers + 1], directed segments). Directed segment 2i is segment i's clockwise
    fibre and 2i + 1 the other.
    """
    length = hops(sources, destinations, clockwise, nodes)
    offsets = np.concatenate(([0], np.cumsum(length)))
    along = np.arange(offsets[-1]) - np.repeat(offsets[:-1], length)
    cw = np.repeat(clockwise, length)
    start = np.repeat(sources, length)
    segment = np.where(cw, start + along, start - 1 - along) % nodes
    return offsets, 2 * segment + ~cw


def check_power(fabric: Fabric, ring: WdmRing, step: Step, number: int = 0) -> None:
    """Check that every lightpath of the step, whose directions are set, leaves its receiver enough power.

    A lightpath over s segments passes s + 1 WSSs and s + 2 fibres. Raises ValueError naming step, transfer,
    power and sensitivity.
    """
    if step.clockwise is None or len(step) == 0:
        return
    length = hops(step.sources, step.destinations, step.clockwise, len(ring.nodes))
    longest = int(length.argmax())
    passed, optics = int(length[longest]) + 1, fabric.optics
    # The WSSs of a ring are all of one kind.
    lost_db = fabric.optical_switches[ring.switches[0]].insertion_loss_db
    power_dbm = received_dbm(
        optics.launch_dbm, [lost_db] * passed + [optics.fibre_db] * (passed + 1)
    )
    if not optics.reads(power_dbm):
        a, b = (
            ring.nodes[int(ends[longest])] for ends in (step.sources, step.destinations)
        )
        raise ValueError(
            f"step {number}: light from {a} to {b} passes {passed} WSSs and arrives with {power_dbm:.2f} "
            f"dBm, less than the receiver's {optics.sensitivity_dbm:g} dBm"
        )


def check_wavelengths(
    step: Step, ring_nodes: int, wavelengths: int, number: int = 0
) -> None:
    """Check that no segment of a fibre carries one wavelength twice in the step.

    Raises ValueError naming step, segment, wavelength and both transfers; or a wavelength that the ring does
    not have, or a step without wavelengths.
    """
    if step.wavelengths is None or step.clockwise is None:
        raise ValueError(f"step {number}: its transfers have no wavelengths")
    if len(step) == 0:
        return
    low, high = int(step.wavelengths.min()), int(step.wavelengths.max())
    if low < 0 or high >= wavelengths:
        raise ValueError(
            f"step {number}: wavelength {high if high >= wavelengths else low} does not fit; "
            f"the ring has {wavelengths} in each direction"
        )
    offsets, passed = segments(
        step.sources, step.destinations, step.clockwise, ring_nodes
    )
    length = np.diff(offsets)
    lane = passed * wavelengths + np.repeat(step.wavelengths, length)
    order = np.argsort(lane, kind="stable")
    twice = np.flatnonzero(np.diff(lane[order]) == 0)
    if len(twice):
        owner = np.repeat(np.arange(len(step)), length)
        pair = _pairs(step, ring_nodes)[owner[order]]
        twice = twice[pair[twice] != pair[twice + 1]]
    if len(twice):
        a, b = (int(owner[order[twice[0] + k]]) for k in (0, 1))
        segment, direction = divmod(int(passed[order[twice[0]]]), 2)
        ends = (segment, (segment + 1) % ring_nodes)
        raise ValueError(
            f"step {number}: segment {ends[direction]}-{ends[1 - direction]} carries wavelength "
            f"{int(step.wavelengths[a])} twice, for {_named(step, a)} and {_named(step, b)}"
        )


def _pairs(step: Step, nodes: int) -> IntArray:
    """Return one number for the two ends of each transfer."""
    return step.sources * nodes + step.destinations


def _named(step: Step, k: int) -> str:
    return f"{int(step.sources[k])}->{int(step.destinations[k])}"


def assign(step: Step, nodes: int, wavelengths: int, number: int = 0) -> Step:
    """Return the step on the shortest way round, each lightpath on the lowest free wavelength.

    A tie goes clockwise. Lightpaths are served in order of their start, longest last among equals (first
    fit). Raises ValueError naming the step and transfer when the wavelengths do not suffice.
    """
    _, first_index, of_pair = np.unique(
        _pairs(step, nodes), return_index=True, return_inverse=True
    )
    if len(first_index) < len(step):
        alone = replace(
            step,
            sources=step.sources[first_index],
            destinations=step.destinations[first_index],
        )
        assigned = assign(alone, nodes, wavelengths, number)
        assert assigned.wavelengths is not None
        assert assigned.clockwise is not None
        return replace(
            step,
            wavelengths=frozen(assigned.wavelengths[of_pair]),
            clockwise=frozen_bool(assigned.clockwise[of_pair]),
        )
    forward = (step.destinations - step.sources) % nodes
    clockwise = 2 * forward <= nodes
    offsets, passed = segments(step.sources, step.destinations, clockwise, nodes)
    length = np.diff(offsets)
    if len(passed) and np.bincount(passed).max() == 1:
        chosen = np.zeros(len(step), dtype=np.int64)
    else:
        chosen = np.empty(len(step), dtype=np.int64)
        # Either fibre runs from node to node without end: where each wavelength's first lightpath began and
        # its last one ends.
        first = np.full((2, wavelengths), np.inf)
        end = np.full((2, wavelengths), -np.inf)
        begin = np.where(clockwise, step.sources, -step.sources)
        for k in np.lexsort((length, begin)).tolist():
            fibre, low, high = (
                int(clockwise[k]),
                int(begin[k]),
                int(begin[k] + length[k]),
            )
            free = (end[fibre] <= low) & (high - nodes <= first[fibre])
            lowest = int(free.argmax())
            if not free[lowest]:
                raise ValueError(
                    f"step {number}: no wavelength of {wavelengths} is free for {_named(step, k)}"
                )
            chosen[k] = lowest
            first[fibre, lowest] = min(first[fibre, lowest], low)
            end[fibre, lowest] = high
    return replace(step, wavelengths=frozen(chosen), clockwise=frozen_bool(clockwise))


def on_ring(steps: Steps, wavelengths: int) -> Steps:
    """Return a collective of any fabric on a ring of its ranks, with wavelengths by :func:`assign`.

    Raises ValueError while iterating if the wavelengths do not suffice.
    """

    def make() -> Iterator[Step]:
        last: Step | None = None
        made: Step | None = None
        before: tuple[IntArray, IntArray] | None = None
        done: Step | None = None
        for number, step in enumerate(steps):
            if step is last and made is not None:
                yield made
                continue
            # Steps that are alike share their arrays: one assignment serves them all.
            if (
                before is None
                or before[0] is not step.sources
                or before[1] is not step.destinations
            ):
                before = (step.sources, step.destinations)
                done = assign(step, steps.world_size, wavelengths, number)
            assert done is not None
            last, made = (
                step,
                replace(done, first=step.first, count=step.count, op=step.op),
            )
            yield made

    return replace(steps, make=make)


def places_of(nodes: Sequence[str], ranks: Sequence[str]) -> tuple[int, ...]:
    """Return the place of each rank among the nodes of a ring.

    Raises ValueError if the ranks are not these nodes.
    """
    place = {node: number for number, node in enumerate(nodes)}
    if sorted(ranks) != sorted(nodes):
        raise ValueError(
            f"its {len(ranks)} ranks are not the {len(nodes)} nodes of the ring"
        )
    return tuple(place[node] for node in ranks)


def at_places(steps: Steps, places: Sequence[int]) -> Steps:
    """Return the collective with each rank's place on the ring in place of its number [ranks].

    If they differ, wavelengths that were chosen for neighbours are left out.
    """
    if list(places) == list(range(steps.world_size)):
        return steps
    place_of_rank = np.array(places, dtype=np.int64)

    def make() -> Iterator[Step]:
        # Steps that are alike share their arrays afterwards, too.
        moved: dict[int, tuple[IntArray, IntArray]] = {}
        made: dict[int, tuple[Step, Step]] = {}
        for step in steps:
            if id(step) not in made:
                ends = [
                    moved.setdefault(id(ranks), (ranks, frozen(place_of_rank[ranks])))[
                        1
                    ]
                    for ranks in (step.sources, step.destinations)
                ]
                made[id(step)] = (
                    step,
                    Step(ends[0], ends[1], step.first, step.count, step.op),
                )
            yield made[id(step)][1]

    return replace(steps, make=make)


def stripes(wavelengths: int, used: int) -> int:
    """Return how many stripes every transfer of a step gets that uses ``used`` of the wavelengths.

    The number is a divisor of ``wavelengths``, so that steps with different numbers of stripes can cut the
    vector into equal parts.
    """
    return max(s for s in range(1, wavelengths // used + 1) if wavelengths % s == 0)


def striped(steps: Steps, wavelengths: int) -> Steps:
    """Return a collective on a ring, every step cut into the stripes that its wavelengths leave room for.

    Steps without wavelengths get theirs by :func:`assign`. Raises ValueError while iterating when they do not
    fit.
    """

    def make() -> Iterator[Step]:
        done: dict[int, tuple[Step, Step]] = {}
        for number, step in enumerate(steps):
            if id(step) not in done:
                # The step is kept, so that its identity stays its own.
                done[id(step)] = (
                    step,
                    _striped(step, steps.world_size, wavelengths, number),
                )
            yield done[id(step)][1]

    return Steps(
        f"{steps.name}, striped",
        steps.world_size,
        steps.chunks * wavelengths,
        steps.steps,
        make,
    )


def _striped(step: Step, nodes: int, wavelengths: int, number: int) -> Step:
    coloured = (
        step
        if step.wavelengths is not None
        else assign(step, nodes, wavelengths, number)
    )
    assert coloured.wavelengths is not None
    assert coloured.clockwise is not None
    used = int(coloured.wavelengths.max(initial=0)) + 1
    cut = stripes(wavelengths, used)
    part = step.count * (wavelengths // cut)
    each = np.arange(cut)[:, None]
    return Step(
        frozen(np.tile(step.sources, cut)),
        frozen(np.tile(step.destinations, cut)),
        frozen((step.first * wavelengths + each * part).ravel()),
        frozen(np.tile(part, cut)),
        step.op,
        frozen((coloured.wavelengths + each * used).ravel()),
        frozen_bool(np.tile(coloured.clockwise, cut)),
    )


def collective_on_ring(
    name: str, nodes: int, wavelengths: int, places: Sequence[int] = ()
) -> Steps:
    """Return the collective of that name between the nodes of a ring, with wavelengths.

    It is good for its time, not for its sums (:func:`compact`). ``places``: of each rank on the ring; if
    empty, rank i is node i. Raises ValueError for another name, and while iterating if the wavelengths do not
    suffice.
    """
    collective = parse_collective(name)
    made = compact(unstriped_steps(collective, nodes))
    steps = at_places(made, places) if places else made
    if collective.striped:
        return striped(steps, wavelengths)
    return (
        steps
        if collective.kind.coloured and steps is made
        else on_ring(steps, wavelengths)
    )


def reach(fabric: Fabric, ring: WdmRing) -> int | None:
    """Return the number of segments that light passes on the ring; None if nothing is lost on the way.

    A lightpath over s segments passes s + 1 WSSs and s + 2 fibres, and the WSSs are all of one kind.
    """
    optics, lost_db = (
        fabric.optics,
        fabric.optical_switches[ring.switches[0]].insertion_loss_db,
    )
    segment_db = lost_db + optics.fibre_db
    if segment_db == 0:
        return None
    budget_db = (
        optics.launch_dbm - optics.sensitivity_dbm - segment_db - optics.fibre_db
    )
    return light.reach(max(0.0, budget_db), segment_db)


def cross_connects(
    ring: WdmRing, fabric: Fabric, step: Step, number: int = 0
) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects that the WSSs need for the lightpaths of one step.

    They are by switch, for all switches of the ring. Ranks are the ring's nodes in order. Raises ValueError
    if :func:`check_wavelengths` does.
    """
    nodes = len(ring.nodes)
    check_wavelengths(step, nodes, ring.wavelengths, number)
    assert step.wavelengths is not None
    assert step.clockwise is not None
    groups: dict[str, set[CrossConnect]] = {name: set() for name in ring.switches}
    rows = zip(
        step.sources.tolist(),
        step.destinations.tolist(),
        step.wavelengths.tolist(),
        step.clockwise.tolist(),
        strict=True,
    )
    for source, destination, wavelength, clockwise in rows:
        add = ADD_CLOCKWISE if clockwise else ADD_COUNTER
        come, go, way = (WEST, EAST, 1) if clockwise else (EAST, WEST, -1)
        for place in _around(source, destination, way, nodes):
            name = ring.switches[place]
            switch = fabric.optical_switches[name]
            ingress = add if place == source else come
            egress = add if place == destination else go
            groups[name].add(
                CrossConnect(switch.ingress(ingress), switch.egress(egress), wavelength)
            )
    return {name: frozenset(group) for name, group in groups.items()}


def _around(source: int, destination: int, way: int, nodes: int) -> Sequence[int]:
    length = (destination - source) * way % nodes
    return [(source + way * k) % nodes for k in range(length + 1)]


@dataclass(frozen=True)
class RingStep:
    """One step of a collective: who sends to whom, and what must be lit meanwhile.

    ``pairs``: (sender, receiver), GPU names. ``cross_connects``: all that every WSS of the ring shall pass
    in this step; if only what changes is set, also what it still passes from former steps because nothing
    of this one stands against it.
    """

    pairs: frozenset[tuple[str, str]]
    cross_connects: Mapping[str, frozenset[CrossConnect]]


@dataclass(frozen=True)
class RingPlan:
    """Settings of a job on ring ``place``: once the transmitters, then the WSSs step by step, round and
    round.

    ``transmit``: for every node how it sends to each peer that it ever sends to. ``switches``: the WSSs.
    ``reconfigure``: the ring's.
    """

    place: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    transmit: Mapping[str, Mapping[str, Emit]]
    steps: tuple[RingStep, ...]
    reconfigure: Reconfigure = "changed-only"


def plan_ring(
    fabric: Fabric, ring: WdmRing, steps: Steps, ranks: Sequence[str] = ()
) -> RingPlan:
    """Return the plan for a collective among all nodes of the ring.

    ``ranks``: nodes in rank order; if empty, rank i is node i. Steps without wavelengths get them from
    :func:`assign`. Raises ValueError for another number of ranks, for wavelengths that do not fit, and naming
    the pair that would send on two wavelengths.
    """
    nodes = ring.nodes
    if steps.world_size != len(nodes):
        raise ValueError(
            f"{steps.name}: a schedule of {steps.world_size} ranks; ring {ring.name} has {len(nodes)} nodes"
        )
    if ranks:
        steps = at_places(steps, places_of(nodes, ranks))
    transmit: dict[str, dict[str, Emit]] = {node: {} for node in nodes}
    pairs = []
    needed = []
    for number, step in enumerate(steps):
        if step.wavelengths is None:
            step = assign(step, len(nodes), ring.wavelengths, number)
        check_power(fabric, ring, step, number)
        needed.append(cross_connects(ring, fabric, step, number))
        assert step.wavelengths is not None
        assert step.clockwise is not None
        now = set()
        rows = zip(
            step.sources.tolist(),
            step.destinations.tolist(),
            step.wavelengths.tolist(),
            step.clockwise.tolist(),
            strict=True,
        )
        for source, destination, wavelength, clockwise in rows:
            sender, receiver = nodes[source], nodes[destination]
            emit = Emit(CLOCKWISE if clockwise else COUNTER, wavelength)
            before = transmit[sender].setdefault(receiver, emit)
            if before != emit:
                raise ValueError(
                    f"{steps.name}: step {number}: {sender} would send to {receiver} from port {emit.port} "
                    f"on wavelength {emit.wavelength}, elsewhere from port {before.port} on wavelength "
                    f"{before.wavelength}; each pair has one way for the whole job"
                )
            now.add((sender, receiver))
        pairs.append(frozenset(now))
    by_switch = {switch: [step[switch] for step in needed] for switch in ring.switches}
    if ring.reconfigure == "changed-only":
        by_switch = {switch: _retained(own) for switch, own in by_switch.items()}
    return RingPlan(
        ring.name,
        nodes,
        ring.switches,
        transmit,
        tuple(
            RingStep(
                now, {switch: by_switch[switch][number] for switch in ring.switches}
            )
            for number, now in enumerate(pairs)
        ),
        ring.reconfigure,
    )


def _retained(
    needed: Sequence[frozenset[CrossConnect]],
) -> list[frozenset[CrossConnect]]:
    """Return the cross-connects of one WSS in each step: those needed, and those of before that do not clash.

    After the last step comes the first. So the first round only finds out with what the first step starts.
    """
    held: frozenset[CrossConnect] = frozenset()
    rounds = []
    for group in [*needed, *needed]:
        changes = plan_changes(held, group, Mode.UPDATE)
        held = changes.keep | changes.add
        rounds.append(held)
    return rounds[len(needed) :]


def set_up_steps(plan: RingPlan) -> tuple[bool, ...]:
    """Return for each step whether light is set before it; the first step follows the last."""
    return tuple(
        plan.reconfigure == "each-step"
        or step.cross_connects != plan.steps[number - 1].cross_connects
        for number, step in enumerate(plan.steps)
    )
