"""What a job on a ring gets: light for every transfer of every step, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.errors import ConflictError, InvalidError
from controller.ring_light import RingLight, Setting, choose_ring, plan_light, steps_of_job
from fabric.crossconnect import check_matching
from fabric.schema import FabricSpec, build_fabric
from fabric.topology import Fabric, Port, WdmRing


def ring_fabric(nodes: int, wavelengths: int = 1, **more: Any) -> tuple[Fabric, WdmRing]:
    ring = {"nodes": nodes, "gpu": "p100", "rate": "25 Gbit/s", "wavelengths": wavelengths}
    fabric = build_fabric(FabricSpec.model_validate({"rings": {"r": ring}, **more}))
    return fabric, fabric.rings["r"]


def arrives(fabric: Fabric, setting: Setting, sender: str, port: int, wavelength: int) -> str:
    """The GPU at which light comes out."""
    at = fabric.link_at[Port(sender, port)].other(Port(sender, port))
    for _ in range(2 * len(fabric.gpus)):
        switch = fabric.optical_switches[at.node]
        [egress] = {
            xc.egress
            for xc in setting[at.node]
            if (xc.ingress, xc.wavelength) == (switch.ingress(at.number), wavelength)
        }
        out = Port(at.node, egress - switch.size)
        at = fabric.link_at[out].other(out)
        if at.node in fabric.gpus:
            return at.node
    raise AssertionError("the light runs in a loop")


def check(fabric: Fabric, light: RingLight) -> None:
    """Every pair of a step has light in it, and at its home."""
    for number, pairs in enumerate(light.score.steps):
        for sender, receiver in pairs:
            emit = light.transmit[sender][receiver]
            found = arrives(fabric, light.settings[number], sender, emit.port, emit.wavelength)
            assert found == receiver
    for (sender, receiver), home in light.score.homes.items():
        emit = light.transmit[sender][receiver]
        assert arrives(fabric, light.settings[home], sender, emit.port, emit.wavelength) == receiver
    assert {pair for pairs in light.score.steps for pair in pairs} == light.score.homes.keys()
    for setting in light.settings:
        for group in setting.values():
            check_matching(group)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 20), st.integers(1, 3), st.sampled_from(["ring", "wrht", "wrht-2", "binary-tree"]))
def test_every_transfer_of_every_step_has_its_light(nodes: int, wavelengths: int, name: str) -> None:
    fabric, ring = ring_fabric(nodes, wavelengths)
    try:
        light = plan_light(fabric, ring, steps_of_job(ring, {"collective": name}))
    except InvalidError:
        return
    check(fabric, light)


def test_a_ring_needs_no_set_up_and_wrht_one_for_each_step() -> None:
    fabric, ring = ring_fabric(9)
    light = plan_light(fabric, ring, steps_of_job(ring, {"collective": "ring"}))
    assert (len(light.settings), light.set_ups) == (16, 0)
    wrht = plan_light(fabric, ring, steps_of_job(ring, {"collective": "wrht"}))
    assert (len(wrht.settings), wrht.set_ups) == (4, 4)


def test_a_link_test_has_all_its_light_at_once() -> None:
    fabric, ring = ring_fabric(5, 2)
    test = {"workload": "linktest", "linktest": {"to": [1, 2, 3, 4, 0]}}
    light = plan_light(fabric, ring, steps_of_job(ring, test))
    check(fabric, light)
    assert len(light.score.steps) == 1
    assert {light.score.homes[pair] for pair in light.score.steps[0]} == {0}


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"collective": "wrht-2"}, "collective wrht-2 on ring r: step 0: wavelength 1 does not fit"),
        ({"collective": "halving-doubling"}, "no wavelength of 1 is free"),
        ({"collective": "moon"}, "collective moon on ring r: there is no collective 'moon'"),
        ({"collective": "ring", "gradient_bytes": 32}, "32 bytes are fewer elements than the 9 parts"),
        ({"workload": "linktest", "linktest": {"to": 9}}, "linktest.to: there is no rank 9"),
        ({"workload": "linktest", "linktest": {"to": 5}}, "no wavelength of 1 is free"),
        ({"workload": "linktest"}, "linktest.to: no rank sends anything"),
    ],
)
def test_what_a_ring_cannot_carry_is_refused(settings_: dict[str, Any], said: str) -> None:
    fabric, ring = ring_fabric(9)
    with pytest.raises(InvalidError, match=r"^[^\n]*$") as refused:
        plan_light(fabric, ring, steps_of_job(ring, settings_))
    assert said in str(refused.value)


NODES = ["r0", "r1", "r2", "r3"]


def test_a_job_uses_all_nodes_of_its_ring_in_order() -> None:
    fabric, ring = ring_fabric(4)
    rule = "a job on ring r uses all its 4 nodes in order, r0 to r3"
    for wanted in (4, NODES):
        assert choose_ring(fabric, {}, wanted, None) is ring
        assert choose_ring(fabric, {}, wanted, "r") is ring
        with pytest.raises(ConflictError, match="rank 2: GPU r2 is reserved by job red"):
            choose_ring(fabric, {"r2": "red"}, wanted, None)
    for few, what in (
        (3, "3 GPUs"),
        (NODES[:3], "3 ranks"),
        (["r1", "r0", "r2", "r3"], "rank 0 is r1"),
    ):
        with pytest.raises(InvalidError, match=f"{what}: {rule}"):
            choose_ring(fabric, {}, few, None)
    with pytest.raises(InvalidError, match="there is no ring q"):
        choose_ring(fabric, {}, 4, "q")
    with pytest.raises(InvalidError, match="not on both"):
        choose_ring(fabric, {}, 4, "r", "n")


def test_other_jobs_are_not_meant_for_a_ring() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "titan-v", "rate": "100 Gbit/s"}
    fabric, _ = ring_fabric(4, grids={"n": grid})
    assert choose_ring(fabric, {}, ["n0", "n1"], None) is None
    assert choose_ring(fabric, {}, 2, None) is None
    assert choose_ring(fabric, {}, 4, None, "n") is None
    with pytest.raises(InvalidError, match="rank 0 is n0"):
        choose_ring(fabric, {}, ["n0", "n1", "n2", "n3"], "r")
    with pytest.raises(InvalidError, match="rank 1 is n1"):
        choose_ring(fabric, {}, ["r0", "n1"], None)
