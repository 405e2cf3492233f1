"""Interconnects beside what else there is: the same tests as of other planes, and what only they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringlight.experiments.record.events import Iteration
from ringlight.extensions.sip_ml.simulation.zoo import WavelengthRingNetwork
from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.network import RingNetwork
from ringlight.fabric.algorithms import steps_named
from ringlight.testbed.emulation.onic.tables import Transmitter
from ringlight.testbed.simulation.phases import Phases, StepCost
from tests.extensions.sip_ml.test_interconnect import KINDS, experiment
from tests.simulated import records_of

PLANES = "fabric: {interconnect: {kind: parallel-ocs, gpus: 4, gpu: a100, rate: 4 Gbit/s, switches: 2}}\n"


def test_a_container_is_refused_where_a_rank_does_not_reach_every_other() -> None:
    test_own_containers = pytest.importorskip(
        "tests.extensions.own_containers.test_own_containers"
    )
    test_own_containers.check_refused_where_a_rank_does_not_reach_every_other(
        PLANES, "all", "fabric is lit for what jobs say that they send"
    )


def test_light_is_called_by_its_port_and_a_job_makes_some() -> None:
    test_console_light = pytest.importorskip(
        "tests.extensions.console.test_console_light"
    )
    section = {
        "interconnect": {
            "kind": "parallel-ocs",
            "gpus": 3,
            "gpu": "a100",
            "rate": "2 Gbit/s",
            "switches": 2,
        }
    }
    test_console_light.check_light_is_called_by_its_port_and_colour_and_a_job_makes_some(
        section, "g1", "g2", Transmitter(1), "g1:1 into q1:2", "g1,g2"
    )


def test_light_goes_past_a_lost_server(tmp_path: Path) -> None:
    simulated = pytest.importorskip("tests.extensions.page.test_view_page").simulated
    take = simulated("examples/hop_ring.yaml", "bypassed", tmp_path)
    sets, turns = take["lightpaths"]["sets"], take["lightpaths"]["turns"]
    first, second, last = (
        [(a, b) for a, b, _, _ in sets[place]] for _, _, place, _ in turns
    )
    ring = [f"g{i}" for i in range(6)]
    assert first == [(a, b) for a, b in zip(ring, [*ring[1:], "g0"], strict=True)]
    assert ("g1", "g3") in second
    assert not any("g2" in pair for pair in second)
    assert last == []
    (back,) = (event["t"] for event in take["events"] if event["event"] == "recovered")
    assert turns[1][0] == pytest.approx(back)


def test_light_of_a_ring_described_as_a_whole_is_dark_where_circuits_change() -> None:
    """Circuits of WRHT are others in its second step."""
    job = "{ranks: all, workload: {collective: all-reduce, algorithm: wrht-8, size: 64 MB}}"
    records = records_of(experiment(KINDS["wavelength-ring"], job))
    found = [record.whole_s for record in records if isinstance(record, Iteration)]
    # Eight in one group: four on one side of the middle, whose last fibre has them all, there and back.
    step_s = 4 * 64e6 * 8 / 200e9
    assert max(found) == pytest.approx(2 * (step_s + 25e-6), rel=1e-6)


@pytest.mark.parametrize(
    ("nodes", "wavelengths"), [(27, 1), (25, 2), (125, 2), (81, 4), (729, 4)]
)
def test_a_ring_shared_fairly_is_exact_for_full_groups_of_wrht(
    nodes: int, wavelengths: int
) -> None:
    """Against the ring where each lightpath has a wavelength of its own."""
    fabric, ring = wdm.wdm_ring("n", nodes, wavelengths, 10e9)
    steps = wdm.collective_on_ring(f"wrht-{wavelengths}", nodes, wavelengths)
    cost = StepCost(25e-6, "changed-only")
    exact = Phases(RingNetwork(fabric, ring), ring.nodes, steps).time(1e8, cost)
    shared = WavelengthRingNetwork(ring.nodes, wavelengths * 10e9)
    fluid = Phases(shared, ring.nodes, steps_named(f"wrht-{wavelengths}", nodes)).time(
        1e8, cost
    )
    assert fluid.total_s == pytest.approx(exact.total_s, rel=1e-9)
