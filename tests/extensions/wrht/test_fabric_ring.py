"""Rings of wavelengths: as part of a scenario file, and what a collective sets on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.schedule import wrht
from ringlight.extensions.wrht.wdm import (
    RingPlan,
    cross_connects,
    on_ring,
    plan_ring,
    set_up_steps,
    wdm_ring,
)
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, Emit, check_matching
from ringlight.fabric.parts import OpticalSwitch, Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.steps import Steps, frozen
from ringlight.fabric.topology import Fabric, electrical_graph
from tests.unit.fabrics import COLLECTIVES as CORE

COLLECTIVES = (*CORE, "wrht", "wrht-2", "wrht-4", "wrht-2-exchange")


def ring_spec(**values: Any) -> dict[str, Any]:
    return {"nodes": 9, "gpu": "p100", "rate": "25 Gbit/s"} | values


def built(raw: dict[str, Any]) -> Fabric:
    return build_fabric(FabricSpec.model_validate(raw))


def test_a_ring_becomes_gpus_switches_and_fibres() -> None:
    fabric = built(
        {"rings": {"r": ring_spec(gpu="gpu", wavelengths=2, wss={"loss_db": 0})}}
    )
    alone, ring = wdm_ring("r", 9, 2, 25e9)
    assert fabric == alone
    assert fabric.parts["rings"] == {"r": ring}
    assert (fabric.gpus["r8"].ip, fabric.gpus["r8"].server) == ("10.82.0.10", "r-s8")
    assert fabric.optical_switches["r-w8"] == OpticalSwitch(
        "r-w8", 4, "scpi", "mrr", 2, 0
    )
    assert {onic.transmitters for onic in fabric.onics.values()} == {"array"}
    # The ring closes, and its node 0 is west of node 1.
    assert fabric.link_at[Port("r-w8", 2)].other(Port("r-w8", 2)) == Port("r-w0", 1)
    assert fabric.link_at[Port("r-w0", 2)].other(Port("r-w0", 2)) == Port("r-w1", 1)
    assert electrical_graph(fabric, {}).edges == ()


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"rings": {"r": ring_spec(nodes=1)}}, r"rings\.r\.nodes"),
        ({"rings": {"r": ring_spec(wavelengths=0)}}, r"rings\.r\.wavelengths"),
        (
            {"rings": {"r": ring_spec(wss={"profile": "mems"})}},
            r"rings\.r\.wss\.profile",
        ),
        ({"rings": {"r": ring_spec(tuning="1 ns")}}, r"rings\.r\.tuning"),
        ({"rings": {"r": ring_spec(reconfigure="never")}}, r"rings\.r\.reconfigure"),
        (
            {"rings": {"r": ring_spec(nodes=12), "r1": ring_spec(nodes=2)}},
            r"rings\.r1: r-s10 has GPU r10 too",
        ),
        (
            {"rings": {"r": ring_spec()}, "optical_switches": {"r-w0": {"size": 2}}},
            r"the name r-w0 is used by two nodes",
        ),
        (
            {
                "rings": {"r": ring_spec()},
                "packet_switches": {"tor0": {"ports": 1}},
                "links": [{"ends": ["r0:1", "tor0:1"], "rate": "1 Gbit/s"}],
            },
            r"links\[0\]: port r0:1 is already plugged in rings\.r",
        ),
    ],
)
def test_a_bad_ring_is_named(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        built(raw)


# Plans


def follow(
    fabric: Fabric,
    lit: Mapping[str, frozenset[CrossConnect]],
    start: Port,
    wavelength: int,
) -> list[Port]:
    """Every port that light of one colour leaves, the O-NIC's included, and the port where it ends."""
    passed = [start]
    at = fabric.link_at[start].other(start)
    while at.node not in fabric.gpus:
        switch = fabric.optical_switches[at.node]
        (out,) = [
            xc.egress
            for xc in lit[at.node]
            if (xc.ingress, xc.wavelength) == (at.number, wavelength)
        ]
        leaves = Port(at.node, out - switch.size)
        assert leaves not in passed
        passed.append(leaves)
        at = fabric.link_at[leaves].other(leaves)
    return [*passed, at]


def check_light(fabric: Fabric, plan: RingPlan) -> None:
    """In every step each sender's light ends at its receiver, and nowhere two are on one wavelength."""
    for number, step in enumerate(plan.steps):
        assert set(step.cross_connects) == set(fabric.optical_switches)
        for group in step.cross_connects.values():
            check_matching(group)
        lanes = set()
        for sender, receiver in step.pairs:
            emit = plan.transmit[sender][receiver]
            *passed, end = follow(
                fabric, step.cross_connects, Port(sender, emit.port), emit.wavelength
            )
            assert end.node == receiver, (
                f"step {number}: light of {sender} to {receiver} ends at {end}"
            )
            for port in passed:
                assert (port, emit.wavelength) not in lanes, (
                    f"step {number}: {port} is lit twice"
                )
                lanes.add((port, emit.wavelength))


def fitting(name: str, nodes: int, wavelengths: int) -> tuple[Fabric, RingPlan] | None:
    fabric, ring = wdm_ring("r", nodes, wavelengths, 25e9)
    try:
        return fabric, plan_ring(fabric, ring, steps_named(name, nodes))
    except ValueError as error:
        if "does not fit" in str(error) or "is free" in str(error):
            return None
        raise


@settings(max_examples=60)
@given(st.sampled_from(COLLECTIVES), st.integers(2, 30), st.integers(1, 9))
def test_light_of_every_step_arrives_and_shares_nothing(
    name: str, nodes: int, wavelengths: int
) -> None:
    found = fitting(name, nodes, wavelengths)
    if found is not None:
        fabric, plan = found
        check_light(fabric, plan)
        steps = steps_named(name, nodes)
        assert [step.pairs for step in plan.steps] == [
            {
                (f"r{a}", f"r{b}")
                for a, b in zip(
                    step.sources.tolist(), step.destinations.tolist(), strict=True
                )
            }
            for step in steps
        ]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("nodes", range(2, 27))
def test_with_as_many_wavelengths_as_nodes_every_collective_fits(
    name: str, nodes: int
) -> None:
    assert fitting(name, nodes, nodes + 4) is not None


@pytest.mark.parametrize(
    ("name", "nodes", "least"),
    [("ring", 25, 1), ("binary-tree", 25, 1), ("hierarchical-ring", 9, 3), ("hierarchical-ring", 25, 5),
     ("wrht", 9, 1), ("wrht-2", 25, 2), ("wrht-4-exchange", 25, 4), ("halving-doubling", 8, 4)],
)  # fmt: skip
def test_how_many_wavelengths_a_collective_needs(
    name: str, nodes: int, least: int
) -> None:
    assert fitting(name, nodes, least) is not None
    assert least == 1 or fitting(name, nodes, least - 1) is None


def test_wrht_of_nine_nodes() -> None:
    fabric, ring = wdm_ring("r", 9, 1, 25e9)
    plan = plan_ring(fabric, ring, wrht(9))
    assert (plan.place, plan.nodes) == ("r", ring.nodes)
    assert plan.transmit["r0"] == {"r1": Emit(0, 0)}
    assert plan.transmit["r2"] == {"r1": Emit(1, 0)}
    # A representative: to the one above it, and back to its members.
    assert plan.transmit["r1"] == {"r4": Emit(0, 0), "r0": Emit(1, 0), "r2": Emit(0, 0)}
    assert plan.steps[1].pairs == {("r1", "r4"), ("r7", "r4")}
    assert set_up_steps(plan) == (True,) * 4


def test_what_does_not_clash_stays_lit() -> None:
    fabric, ring = wdm_ring("r", 6, 2, 25e9)
    plan = plan_ring(fabric, ring, steps_named("ring", 6))
    assert set_up_steps(plan) == (False,) * 10
    plan = plan_ring(fabric, ring, steps_named("hierarchical-ring", 6))
    assert set_up_steps(plan).count(True) < len(plan.steps)
    assert set_up_steps(replace(plan, steps=plan.steps[:1])) == (False,)
    assert set_up_steps(replace(plan, steps=())) == ()


@pytest.mark.parametrize("name", ["bidirectional-ring", "wrht", "binary-tree"])
def test_a_ring_that_reconfigures_in_each_step_carries_no_more_than_the_step_needs(
    name: str,
) -> None:
    fabric = built({"rings": {"r": ring_spec(reconfigure="each-step")}})
    steps = steps_named(name, 9)
    plan = plan_ring(fabric, fabric.parts["rings"]["r"], steps)
    check_light(fabric, plan)
    assert set_up_steps(plan) == (True,) * steps.steps
    coloured = steps if name == "wrht" else on_ring(steps, 1)
    for planned, step in zip(plan.steps, coloured, strict=True):
        assert planned.cross_connects == cross_connects(
            fabric.parts["rings"]["r"], fabric, step
        )


@settings(max_examples=50)
@given(st.sampled_from(COLLECTIVES), st.integers(2, 16), st.integers(1, 6))
def test_targets_are_what_is_left_after_many_rounds(
    name: str, nodes: int, wavelengths: int
) -> None:
    """Each WSS written apart as {(ingress, wavelength): egress}, and only what a step needs set."""
    found = fitting(name, nodes, wavelengths)
    if found is None:
        return
    fabric, plan = found
    ring = fabric.parts["rings"]["r"]
    for switch in ring.switches:
        held: dict[tuple[int, int | None], int] = {}
        for turn in range(3):
            for number, step in enumerate(on_ring_or_own(name, nodes, wavelengths)):
                for xc in cross_connects(ring, fabric, step)[switch]:
                    rivals = [
                        k
                        for k, out in held.items()
                        if out == xc.egress and k[1] == xc.wavelength
                    ]
                    for key in rivals:
                        del held[key]
                    held[xc.ingress, xc.wavelength] = xc.egress
                if turn:
                    now = {
                        CrossConnect(i, out, colour)
                        for (i, colour), out in held.items()
                    }
                    assert now == plan.steps[number].cross_connects[switch]


def on_ring_or_own(name: str, nodes: int, wavelengths: int) -> Steps:
    steps = steps_named(name, nodes)
    coloured = name.startswith("wrht")
    return steps if coloured else on_ring(steps, wavelengths)


def test_a_plan_that_is_wrong_is_noticed() -> None:
    fabric, ring = wdm_ring("r", 9, 2, 25e9)
    plan = plan_ring(fabric, ring, wrht(9, 2))
    check_light(fabric, plan)
    for sender, ways in plan.transmit.items():
        for receiver, emit in ways.items():
            for wrong in (
                Emit(1 - emit.port, emit.wavelength),
                Emit(emit.port, 1 - emit.wavelength),
            ):
                transmit = {**plan.transmit, sender: {**ways, receiver: wrong}}
                with pytest.raises((AssertionError, ValueError)):
                    check_light(fabric, replace(plan, transmit=transmit))
    for number, step in enumerate(wrht(9, 2)):
        for switch, needed in cross_connects(ring, fabric, step).items():
            lit = plan.steps[number].cross_connects
            for xc in needed:
                spoilt = replace(
                    plan.steps[number],
                    cross_connects={**lit, switch: lit[switch] - {xc}},
                )
                steps = (*plan.steps[:number], spoilt, *plan.steps[number + 1 :])
                with pytest.raises((AssertionError, ValueError)):
                    check_light(fabric, replace(plan, steps=steps))


@pytest.mark.parametrize(
    ("steps", "wavelengths", "named"),
    [
        (steps_named("ring", 8), 1, "ring: a schedule of 8 ranks; ring r has 9 nodes"),
        (steps_named("wrht-2", 9), 1, "step 0: wavelength 1 does not fit; the ring has 1 in each direction"),
        (steps_named("hierarchical-ring", 9), 2, "step 2: no wavelength of 2 is free for 2->5"),
        (wdm.striped(steps_named("ring", 9), 2), 2,
         "ring, striped: step 0: r0 would send to r1 from port 0 on wavelength 1, elsewhere from port 0"),
    ],
)  # fmt: skip
def test_a_collective_that_does_not_fit_is_refused(
    steps: Steps, wavelengths: int, named: str
) -> None:
    fabric, ring = wdm_ring("r", 9, wavelengths, 25e9)
    with pytest.raises(ValueError, match=named):
        plan_ring(fabric, ring, steps)


def test_a_step_that_does_not_fit_the_others_is_refused() -> None:
    fabric, ring = wdm_ring("r", 9, 2, 25e9)
    made = list(wrht(9))
    for wavelength, named in (
        (
            1,
            r"step 2: r0 would send to r1 .* wavelength 1, elsewhere .* wavelength 0; each pair",
        ),
        (2, "step 2: wavelength 2 does not fit; the ring has 2"),
    ):
        made[2] = replace(
            made[0], wavelengths=frozen(np.full(len(made[0]), wavelength))
        )
        with pytest.raises(ValueError, match=named):
            plan_ring(fabric, ring, replace(wrht(9), make=lambda: iter(made)))
