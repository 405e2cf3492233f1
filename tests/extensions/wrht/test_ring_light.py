"""Which ring a job gets, what it sends there, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ringlight.controller.errors import ConflictError, InvalidError
from ringlight.controller.jobs.reservation import JOB, Holder, placed, planes_for
from ringlight.extensions.wrht.provider import plan_light
from ringlight.extensions.wrht.ring import WdmRing
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from tests.extensions.wrht.test_fabric_ring import check_light


def ring_fabric(
    nodes: int, wavelengths: int = 1, **more: Any
) -> tuple[Fabric, WdmRing]:
    ring = {
        "nodes": nodes,
        "gpu": "p100",
        "rate": "25 Gbit/s",
        "wavelengths": wavelengths,
    }
    fabric = build_fabric(FabricSpec.model_validate({"rings": {"r": ring}, **more}))
    return fabric, fabric.parts["rings"]["r"]


def test_a_link_test_has_all_its_light_at_once() -> None:
    fabric, ring = ring_fabric(5, 2)
    test = {"workload": "linktest", "linktest": {"to": [1, 2, 3, 4, 0]}}
    plan = plan_light(fabric, ring, test)
    check_light(fabric, plan)
    assert [step.pairs for step in plan.steps] == [
        {(f"r{a}", f"r{(a + 1) % 5}") for a in range(5)}
    ]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"collective": "wrht-2"},
            "collective wrht-2 on ring r: step 0: wavelength 1 does not fit",
        ),
        ({"collective": "halving-doubling"}, "no wavelength of 1 is free"),
        (
            {"collective": "moon"},
            "collective moon on ring r: there is no collective 'moon'",
        ),
        (
            {"collective": "ring", "gradient_bytes": 32},
            "32 bytes are fewer elements than the 9 parts",
        ),
        ({"workload": "linktest", "linktest": {"to": 5}}, "no wavelength of 1 is free"),
        ({"workload": "linktest"}, "linktest on ring r: no rank sends anything"),
    ],
)
def test_what_a_ring_cannot_carry_is_refused(
    settings: dict[str, Any], said: str
) -> None:
    fabric, ring = ring_fabric(9)
    with pytest.raises(InvalidError, match=r"^[^\n]*$") as refused:
        plan_light(fabric, ring, settings)
    assert said in str(refused.value)


NODES = ["r0", "r1", "r2", "r3"]


def choose(
    fabric: Fabric, holders: dict[str, Holder], wanted: Any, name: str | None = None
) -> tuple[str, ...]:
    (plane,) = planes_for(fabric, wanted, name)
    return placed(plane, wanted, holders, alone=True)


def test_a_job_uses_all_nodes_of_its_ring() -> None:
    fabric, ring = ring_fabric(4)
    rule = "a job on ring r uses all its 4 nodes, r0 to r3"
    for wanted in (4, NODES):
        assert choose(fabric, {}, wanted) == ring.nodes
        assert choose(fabric, {}, wanted, "r") == ring.nodes
        with pytest.raises(
            ConflictError, match="the light of ring r is that of job red"
        ):
            choose(fabric, {"r2": Holder(JOB, "red")}, wanted)
    for few, what in (
        (3, "3 GPUs"),
        (NODES[:3], "3 ranks"),
    ):
        with pytest.raises(InvalidError, match=f"{what}: {rule}"):
            choose(fabric, {}, few)
    with pytest.raises(InvalidError, match="there is no plane q"):
        choose(fabric, {}, 4, "q")
    assert choose(fabric, {}, ["r1", "r0", "r2", "r3"]) == ("r1", "r0", "r2", "r3")


def test_light_leads_between_ranks_whatever_their_order() -> None:
    fabric, ring = ring_fabric(4, 2)
    plan = plan_light(fabric, ring, {"collective": "ring"}, ("r0", "r2", "r1", "r3"))
    check_light(fabric, plan)
    assert plan.steps[0].pairs == {
        ("r0", "r2"),
        ("r2", "r1"),
        ("r1", "r3"),
        ("r3", "r0"),
    }
