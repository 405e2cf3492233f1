"""Rings beside grids, where those are installed."""

from __future__ import annotations

import pytest

from ringlight.controller.errors import InvalidError
from ringlight.controller.jobs.reservation import planes_for
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.buildable import check_fabric, check_names
from ringlight.testbed.emulation.onic.wiring import array_wavelengths, lasers_of_switch
from ringlight.testbed.lab import Lab
from tests.extensions.wrht.test_fabric_ring import built, ring_spec
from tests.extensions.wrht.test_ring_light import choose, ring_fabric
from tests.unit.fabrics import six_gpus
from tests.unit.test_language import light, refused

pytest.importorskip("ringlight.extensions.oddl")

GRID = {"rows": 2, "columns": 3, "gpu": "test", "rate": "100 Gbit/s"}


def test_a_job_that_says_no_place_has_two() -> None:
    grids = "grids: {n: {rows: 1, columns: 4, gpu: x, rate: 1 Gbit/s, wavelengths: 2}}"
    rings = "rings: {r: {nodes: 5, gpu: x, rate: 1 Gbit/s, wavelengths: 1}}"
    assert refused("", light(f"{grids}, {rings}")).startswith(
        "fabric: ring r and grid n"
    )


def test_a_ring_beside_a_grid_has_no_lasers_to_tune() -> None:
    ring = {"nodes": 3, "wavelengths": 4, "gpu": "test", "rate": "25 Gbit/s"}
    fabric = build_fabric(
        FabricSpec.model_validate({"grids": {"n": GRID}, "rings": {"r": ring}})
    )
    assert fabric.onics.keys() == {*fabric.parts["grids"]["n"].nodes, "r0", "r1", "r2"}
    assert fabric.agents == fabric.parts["grids"]["n"].nodes
    assert [array_wavelengths(fabric, gpu) for gpu in ("n0", "r0", "r2")] == [
        None,
        4,
        4,
    ]
    assert [
        lasers_of_switch(fabric, switch)
        for switch in fabric.parts["rings"]["r"].switches
    ] == [
        {},
        {},
        {},
    ]
    assert lasers_of_switch(fabric, "n-r0")
    check_fabric(fabric)
    check_names(Lab("test"), fabric)


def test_a_ring_may_stand_beside_the_rest() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "titan-v", "rate": "100 Gbit/s"}
    ring = ring_spec(nodes=3, wss={"profile": "ideal"}, queue="5 ms")
    fabric = built(six_gpus() | {"grids": {"n": grid}, "rings": {"r": ring}})
    assert list(fabric.gpus)[-7:] == ["n0", "n1", "n2", "n3", "r0", "r1", "r2"]
    assert len({gpu.ip for gpu in fabric.gpus.values()}) == 13
    assert {fabric.onics[name].transmitters for name in ("n0", "n3")} == {"tunable"}
    assert fabric.optical_switches["r-w2"].profile == "ideal"
    assert fabric.link_at[Port("r2", 1)].queue_s == pytest.approx(5e-3)


def test_other_jobs_are_not_meant_for_a_ring() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "titan-v", "rate": "100 Gbit/s"}
    fabric, _ = ring_fabric(4, grids={"n": grid})
    assert [plane.name for plane in planes_for(fabric, ["n0", "n1"], None)] == ["n"]
    assert [plane.name for plane in planes_for(fabric, 2, None)] == ["r", "n"]
    with pytest.raises(InvalidError, match="2 GPUs"):
        choose(fabric, {}, 2, "r")
    with pytest.raises(InvalidError, match="rank 0: GPU n0 is not on ring r"):
        choose(fabric, {}, ["n0", "n1", "n2", "n3"], "r")
    with pytest.raises(InvalidError, match="rank 1: GPU n1 is not on ring r"):
        choose(fabric, {}, ["r0", "n1"], "r")
