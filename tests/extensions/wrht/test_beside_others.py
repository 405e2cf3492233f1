"""Rings beside what else there is: the same tests as of other planes, and what only rings refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.network import RingNetwork
from ringlight.extensions.wrht.wdm import plan_ring
from ringlight.fabric.algorithms import parse_collective, steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.collectives import all_reduce, lendable
from ringlight.fabric.frames import choose_frames
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.onic.tables import Transmitter
from ringlight.testbed.emulation.onic.wiring import is_tagged
from ringlight.testbed.simulation.workload import simulate_workload
from tests.unit import (
    test_cli,
    test_experiment_report,
    test_lending,
    test_paper_pages,
    test_planes,
    test_prediction,
    test_ring_of_bits,
    test_simulated_workloads,
    test_simulation_workload,
)
from tests.unit.test_fabric_light import described
from tests.unit.test_language import light, refused

MINI = Path(__file__).parent / "data" / "mini_wrht.yaml"
CONTAINERS = (
    "fabric: {rings: {w: {nodes: 5, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}}\n"
)
FIT = "training.collective: wrht-2 of job red on fabric: "
RING = "rings: {r: {nodes: 5, gpu: x, rate: 1 Gbit/s, wavelengths: 1}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (light(RING, "red: {ranks: [r0, r1]}"), "jobs.red.ranks: 2 GPUs, but ring r carries one job"),
        (light(RING, "red: {gpus: 2}"), "jobs.red.gpus: 2 GPUs, but ring r carries one job"),
        (light(RING, "a: {ranks: all}, b: {ranks: all}"), "jobs.b.ranks: GPU r0 is used by job a"),
        (light(RING, collective="wrht-2"), f"{FIT}step 0: wavelength 1 does not fit"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_fit_its_fabric(text: str, said: str) -> None:
    assert refused("", text).startswith(said)


def test_a_plane_is_where_the_gpus_are() -> None:
    rings = {"r": {"nodes": 3, "wavelengths": 2, "gpu": "t", "rate": "1 Gbit/s"}}
    fabric = build_fabric(FabricSpec.model_validate({"rings": rings}))
    assert [plane_of(fabric, ranks).kind for ranks in ((), ("r0", "r1", "r2"))] == [
        "ring",
        "ring",
    ]


@pytest.mark.parametrize("ranks", ["ranks: [a, b, c]", "gpus: 3"])
@pytest.mark.parametrize("collective", ["ring", "recursive-doubling"])
def test_what_stands_beside_a_job_changes_nothing(ranks: str, collective: str) -> None:
    ring = "  rings: {r: {nodes: 4, wavelengths: 4, gpu: t, rate: 10 Gbit/s}}\n"
    test_planes.check_beside(ring, ranks, collective)


def test_trainings_on_wires_and_on_light_are_not_simulated_together() -> None:
    rings = "rings: {w: {nodes: 3, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}"
    test_simulated_workloads.check_not_simulated_beside_wires(
        rings, "ring w", "w0, w1, w2"
    )


def test_a_workload_takes_as_long_beside_light_that_it_has_nothing_to_do_with() -> None:
    rings = "rings: {w: {nodes: 5, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}"
    test_simulated_workloads.check_as_long_beside_light(rings)


def test_its_section_is_on_the_page(tmp_path: Path) -> None:
    test_experiment_report.check_sections(MINI, {"rings"}, {"allreduce"}, tmp_path)


def test_an_experiment_without_a_paper(tmp_path: Path) -> None:
    test_paper_pages.check_without_paper(str(MINI), tmp_path)


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_the_training_loop_takes_what_it_takes_as_a_job(algorithm: str) -> None:
    test_simulation_workload.test_the_training_loop_takes_what_it_takes_as_a_job(
        "wrht_9", algorithm
    )


def test_an_exchange_would_be_overwritten_too_soon() -> None:
    test_lending.test_an_exchange_would_be_overwritten_too_soon("wrht-2-exchange")


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_a_tree_may_lend_everything(n: int) -> None:
    assert all(lendable(all_reduce("wrht", n)))


def test_it_has_no_bits() -> None:
    with pytest.raises(
        ValueError, match="collective 'wrht-2-bits-8': wrht has no bits"
    ):
        parse_collective("wrht-2-bits-8")


def test_its_light_tells_its_own_colour() -> None:
    rings = {"r": {"nodes": 3, "wavelengths": 4, "gpu": "test", "rate": "25 Gbit/s"}}
    fabric = build_fabric(FabricSpec.model_validate({"rings": rings}))
    assert {name for name in fabric.optical_switches if is_tagged(fabric, name)} == {
        "r-w0",
        "r-w1",
        "r-w2",
    }


def test_a_workload_is_not_simulated_where_light_is_set_for_one_collective() -> None:
    fabric, ring = wdm.wdm_ring("n", 4, 4, 10e9)
    workload = test_simulation_workload.training([1e-3] * 4, "ring", 1 << 20)
    with pytest.raises(
        ValueError, match="a workload on a ring of wavelengths is not simulated"
    ):
        simulate_workload(RingNetwork(fabric, ring), ring.nodes, workload)


def test_light_without_a_packet_switch_needs_no_queue() -> None:
    ring = {"nodes": 3, "gpu": "x", "rate": "40 Mbit/s", "queue": "1 us"}
    assert (
        choose_frames(
            build_fabric(FabricSpec.model_validate({"rings": {"r": ring}})), 1, 400
        ).short
        == ()
    )


def test_a_ring_is_planned_and_simulated_only_as_far_as_its_light_reaches() -> None:
    # A lightpath over two segments of a ring of five passes three WSSs: 3 · 2 dB.
    ring = {
        "nodes": 5,
        "gpu": "x",
        "rate": "1 Gbit/s",
        "wss": {"loss_db": 2},
        "wavelengths": 2,
    }
    steps = steps_named("wrht-2", 5)
    for sensitivity_dbm, message in (
        (-6.0, None),
        (-5.9, "passes 3 WSSs and arrives with -6.00 dBm"),
    ):
        fabric = described(
            rings={"r": ring}, light={"sensitivity_dbm": sensitivity_dbm}
        )
        network = RingNetwork(fabric, fabric.parts["rings"]["r"])
        if message is None:
            plan_ring(fabric, fabric.parts["rings"]["r"], steps)
            for step in steps:
                network.routes(fabric.parts["rings"]["r"].nodes, step)
            continue
        with pytest.raises(ValueError, match=message):
            plan_ring(fabric, fabric.parts["rings"]["r"], steps)
        with pytest.raises(ValueError, match=message):
            [network.routes(fabric.parts["rings"]["r"].nodes, step) for step in steps]


def test_a_ring_is_dark_while_it_is_set(tmp_path: Path) -> None:
    simulated = pytest.importorskip("tests.extensions.page.test_view_page").simulated
    take = simulated("wrht_9_each_step.yaml", "wrht", tmp_path)
    (_, _, first, dark), *turns = take["lightpaths"]["turns"]
    assert not dark
    assert [(a, b) for a, b, _, _ in take["lightpaths"]["sets"][first][:2]] == [
        ("r0", "r1"),
        ("r2", "r1"),
    ]
    changes = list(zip(turns[:-1:2], turns[1::2], strict=True))
    assert all(one[3] and not two[3] and one[2] == two[2] for one, two in changes)
    assert len({round(lit[0] - dark[0], 4) for dark, lit in changes}) == 1


def test_a_container_is_refused_where_a_rank_does_not_reach_every_other() -> None:
    test_own_containers = pytest.importorskip(
        "tests.extensions.own_containers.test_own_containers"
    )
    test_own_containers.check_refused_where_a_rank_does_not_reach_every_other(
        CONTAINERS, "all", "on ring w light leads to the partners of one step"
    )


@pytest.mark.parametrize("jobs", ["PAIR", "TRAINED"])
def test_a_job_beside_a_ring_has_no_figures_of_its_light(jobs: str) -> None:
    test_own_containers = pytest.importorskip(
        "tests.extensions.own_containers.test_own_containers"
    )
    test_own_containers.check_no_figures_of_light(
        CONTAINERS, getattr(test_own_containers, jobs)
    )


def test_light_is_called_by_its_port_and_colour_and_a_job_makes_some() -> None:
    test_console_light = pytest.importorskip(
        "tests.extensions.console.test_console_light"
    )
    section = {
        "rings": {"r": {"nodes": 3, "wavelengths": 2, "gpu": "t", "rate": "1 Gbit/s"}}
    }
    test_console_light.check_light_is_called_by_its_port_and_colour_and_a_job_makes_some(
        section, "r0", "r1", Transmitter(1, 0), "r0:1 λ0 into r-w0:4", "r0,r1,r2"
    )


def test_light_is_waited_for_and_shared_with_nobody() -> None:
    ring = {"nodes": 4, "gpu": "x", "rate": "100 Gbit/s", "wavelengths": 2}
    test_prediction.check_light_is_waited_for({"rings": {"r": ring}})


def test_bits_are_refused_on_light_that_is_set_step_by_step() -> None:
    ring = {"nodes": 4, "gpu": "gpu", "rate": "1 Gbit/s", "wavelengths": 4}
    test_ring_of_bits.check_refused_on_light({"rings": {"r": ring}}, "r")


def test_bandwidths_are_not_measured_on_it(tmp_path: Path) -> None:
    pytest.importorskip("ringlight.extensions.bench")
    command = ["bench", str(MINI), "--simulate"]
    test_cli.test_wrong_input_is_one_line(
        command, 2, "it runs over packet switches", tmp_path
    )
