"""A ring of servers whose transceivers choose paths: planned, lit, and simulated past a loss."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import JobRecovered, JobState
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.divided.hop_ring import CLOCKWISE, COUNTER, HopRing
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath
from ringlight.extensions.sip_ml.simulation.hop_ring import HopRingNetwork
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric

RING = HopRing(6, 2, 20e9, 80e-6)
KEYS = {"gpus": 6, "gpu": "t", "rate": "20 Gbit/s", "reach": 2, "dark": "80 us"}
SCENARIO = """
name: hops
description: Servers in a ring.
scale: {time: 1, payload: 400}
fabric: {hop_ring: {gpus: 6, gpu: t, rate: 20 Gbit/s, reach: 2, dark: 80 us}}
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 4, collective: ring}
jobs: {red: {ranks: [g0, g1, g2, g3, g4, g5], recovery: 1 s}}
"""
LOST = "events: [{name: loss, when: {job: red, iteration: 2}, do: lose, target: gpu g2, then: shrink}]\n"


def fabric(**keys: object) -> Fabric:
    return build_fabric(FabricSpec.model_validate({"hop_ring": KEYS | keys}))


def follow(made: Fabric, pairs: Iterable[tuple[int, int]]) -> dict[str, str]:
    """Where light comes out that each pair's source sends, as the switches are set for all of them."""
    ports, problems = RING.choose(pairs)
    assert not problems
    setting = setting_of(
        made, {pair: (Lightpath(port),) for pair, port in ports.items()}
    )
    found = {}
    for (source, _), port in ports.items():
        at = Port(f"g{source}", port)
        while (at := made.link_at[at].other(at)).node in made.optical_switches:
            switch = made.optical_switches[at.node]
            (xc,) = (
                xc for xc in setting[at.node] if xc.ingress == switch.ingress(at.number)
            )
            at = Port(at.node, xc.egress - switch.size)
        found[f"g{source}:{port}"] = str(at)
    return found


def test_every_transceiver_has_a_fibre_to_the_next_servers_on_its_side() -> None:
    made = fabric()
    assert {switch.size for switch in made.optical_switches.values()} == {6}
    assert len(made.links) == 6 * 2 + 6 * 2
    assert {link.rate_bps for link in made.links} == {10e9}
    assert (plane_of(made, ("g0", "g1")).kind, made.agents) == ("interconnect", ())
    assert made.parts["interconnect"].counts(6).optical_ports == 24


@pytest.mark.parametrize(
    ("source", "destination", "port"),
    [
        (0, 1, CLOCKWISE),
        (0, 2, CLOCKWISE),
        (0, 3, None),
        (0, 4, COUNTER),
        (5, 0, CLOCKWISE),
        (2, 2, None),
    ],
)
def test_a_server_is_reached_by_the_shorter_way(
    source: int, destination: int, port: int | None
) -> None:
    assert RING.port(source, destination) == port


def test_light_comes_out_at_the_transceiver_that_faces_the_sender() -> None:
    ring = [(k, (k + 1) % 6) for k in range(6)]
    back = [(b, a) for a, b in ring]
    found = follow(fabric(), ring + back)
    assert found == {f"g{a}:0": f"g{b}:1" for a, b in ring} | {
        f"g{b}:1": f"g{a}:0" for a, b in ring
    }


def test_neighbours_of_a_lost_server_choose_the_paths_past_it() -> None:
    assert follow(fabric(), [(0, 1), (1, 3), (3, 4), (4, 5), (5, 0)])["g1:0"] == "g3:1"


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        ([(0, 3)], "g0 and g3 are more than 2 servers apart"),
        (
            [(0, 1), (0, 2)],
            "g0 has one path clockwise at a time, and sends to or hears g1 and g2",
        ),
        (
            [(0, 2), (1, 2)],
            "g2 has one path counter-clockwise at a time, and sends to or hears g0 and g1",
        ),
    ],
)
def test_a_transceiver_has_one_path_at_a_time(
    pairs: list[tuple[int, int]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        RING.check(pairs)


def test_who_sends_most_chooses_first_and_others_stay_dark() -> None:
    demand = np.zeros((6, 6))
    demand[0, 1], demand[0, 2], demand[3, 0], demand[4, 3] = 5, 9, 1, 2
    division = divider(fabric()).division(demand)
    assert dict(division.paths) == {
        (0, 2): (Lightpath(CLOCKWISE),),
        (4, 3): (Lightpath(COUNTER),),
    }
    assert division.counts.sum() == 2


@pytest.mark.parametrize(
    ("collective", "seconds"),
    [("ring", 2 * 5 / 6 * 8e9 / 10e9), ("bidirectional-ring", 5 / 6 * 8e9 / 10e9)],
)
def test_an_all_reduce_takes_its_bytes_over_a_transceivers_rate(
    collective: str, seconds: float
) -> None:
    network = HopRingNetwork(tuple(f"g{k}" for k in range(6)), RING)
    steps, total_s = steps_named(collective, 6), 0.0
    for number, step in enumerate(steps):
        routes = network.routes([f"g{k}" for k in range(6)], step, number)
        load = np.zeros(len(network.capacity_bps))
        for transfer in range(len(step)):
            links = routes.links[
                routes.offsets[transfer] : routes.offsets[transfer + 1]
            ]
            load[links] += 8e9 * step.count[transfer] / steps.chunks
        total_s += float((load / network.capacity_bps).max())
    assert total_s == pytest.approx(seconds)


def test_a_job_goes_on_past_a_lost_server() -> None:
    plan = parse(SCENARIO + LOST, "hops.yaml").plans[0]
    for backend in (SimulationBackend(), EmulationBackend()):
        assert backend.refuses(plan) is None
    records, _ = run_alone(SimulationBackend(), plan)
    (recovered,) = (record for record in records if isinstance(record, JobRecovered))
    assert recovered.gpus == ["g0", "g1", "g3", "g4", "g5"]
    assert [r.state for r in records if isinstance(r, JobState)][-1] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("collective: ring", "collective: halving-doubling"),
            "more than 2 servers apart|one path",
        ),
        (
            ("reach: 2", "reach: 6"),
            "fabric.hop_ring.reach: 6; of 6 servers it is at most 5",
        ),
        (
            ("[g0, g1, g2, g3, g4, g5]", "[g0, g3]"),
            "g0 and g3 are more than 2 servers apart",
        ),
        (("then: shrink", "then: swap"), "none takes a lost one's place"),
        (
            ("do: lose, target: gpu g2, then: shrink", "do: lose, target: nic g2"),
            "described as a whole",
        ),
    ],
)
def test_what_cannot_be_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        parse((SCENARIO + LOST).replace(*change), "hops.yaml")
