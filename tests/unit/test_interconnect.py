"""Fabrics that are described as wholes: what they refuse, and how long a job takes on them."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.backends.emulation.requests import only_simulated
from experiments.backends.simulation.backend import SimulationBackend
from experiments.language.expand import Experiment, parse
from experiments.language.text import ScenarioError
from experiments.record.events import Divisions, Iteration, Record
from experiments.runner.experiment import one_alone
from fabric.interconnect import DemandRing, Ideal, OneShot, ParallelOcs, Rotors, TorusOfGpus, slowed
from fabric.schedules import steps_named
from fabric.zoo.rotor import Rotor
from fabric.zoo.torus import Torus
from testbed.simulation.interconnects import (
    Demand,
    RingDivision,
    demand_of_steps,
    demand_of_workload,
    interconnect_network,
    together,
)
from testbed.simulation.zoo import CircuitNetwork
from workloads.graph import Book, Collective, Workload, Writer

GPUS = "gpus: 8, gpu: a100, rate: 400 Gbit/s"
KINDS = {
    "ideal": f"{{kind: ideal, {GPUS}}}",
    "parallel-ocs": f"{{kind: parallel-ocs, {GPUS}, switches: 8}}",
    "demand-ring": f"{{kind: demand-ring, {GPUS}, wavelength: 25 Gbit/s, interval: 100 us, dark: 20 us}}",
    "torus": f"{{kind: torus, {GPUS}, sides: [2, 4]}}",
    "one-shot": f"{{kind: one-shot, {GPUS}, degree: 4}}",
    "rotor": f"{{kind: rotor, {GPUS}, ports: 4, slot: 20 us, dark: 2 us}}",
}
RING = "{collective: all-reduce, algorithm: ring, size: 64 MB, iterations: 2}"
ALL = f"{{ranks: all, workload: {RING}}}"
LOOP = "training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 1}\n"


def experiment(
    interconnect: str, job: str = f"{{ranks: all, workload: {RING}}}", more: str = ""
) -> Experiment:
    return parse(
        f"name: whole\ndescription: Eight GPUs.\nfabric:\n  interconnect: {interconnect}\n"
        f"tcp: {{headers: false}}\njobs:\n  red: {job}\n{more}",
        "whole.yaml",
    )


def refusal(interconnect: str, job: str = ALL, more: str = "") -> str:
    with pytest.raises(ScenarioError) as caught:
        experiment(interconnect, job, more)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("whole.yaml: ")


def records_of(made: Experiment) -> list[Record]:
    (plan,) = made.plans
    records, failures = one_alone(SimulationBackend(), plan)
    assert not failures
    return records


def iteration_s(made: Experiment) -> float:
    found = [record.whole_s for record in records_of(made) if isinstance(record, Iteration)]
    return sum(found) / len(found)


#: 2 (n - 1) / n of 64 MB at 400 Gbit/s.
AT_FULL_RATE_S = 2 * 7 / 8 * 64e6 * 8 / 400e9


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("ideal", 1.0),
        # All eight circuits of a GPU lead to the next of the ring.
        ("parallel-ocs", 1.0),
        # One of the torus's three links of each GPU, where next ranks are neighbours; else they share.
        ("torus", 3.0),
        ("one-shot", 4.0),
    ],
)
def test_a_ring_takes_what_its_links_give(kind: str, times: float) -> None:
    found_s = iteration_s(experiment(KINDS[kind]))
    assert found_s >= AT_FULL_RATE_S * (1 - 1e-9)
    assert found_s == pytest.approx(times * AT_FULL_RATE_S, rel=1e-6) or kind == "torus"
    assert found_s <= 2 * times * AT_FULL_RATE_S


def test_a_ring_on_a_divided_ring_has_half_of_the_wavelengths_and_dark_times() -> None:
    """Next ranks are next nodes: all 8 colours of one direction. Dark for 20 us before 100 us of light."""
    records = records_of(experiment(KINDS["demand-ring"]))
    found_s = max(record.whole_s for record in records if isinstance(record, Iteration))
    (divided,) = [record for record in records if isinstance(record, Divisions)]
    assert divided.decisions > 3
    assert divided.dark_s == pytest.approx(divided.decisions * 20e-6)
    lit_s = 2 * AT_FULL_RATE_S
    assert lit_s < found_s < lit_s * 1.2 + 120e-6


@pytest.mark.parametrize("kind", ["ideal", "torus", "rotor"])
def test_the_controller_may_place_a_job_where_nothing_is_built_for_it(kind: str) -> None:
    assert iteration_s(experiment(KINDS[kind], f"{{gpus: 4, workload: {RING}}}")) > 0


def test_who_takes_no_part_costs_no_circuits() -> None:
    job = "{ranks: [g0, g2, g4, g6], workload: " + RING + "}"
    four = KINDS["one-shot"].replace("gpus: 8", "gpus: 4").replace("degree: 4", "degree: 3")
    alone = iteration_s(experiment(four, "{ranks: all, workload: " + RING + "}"))
    beside = iteration_s(experiment(KINDS["one-shot"].replace("degree: 4", "degree: 3"), job))
    assert beside == pytest.approx(alone)


def test_light_for_less_than_a_byte() -> None:
    small = "{collective: all-reduce, algorithm: ring, size: 4 B, iterations: 1}"
    for kind in ("parallel-ocs", "demand-ring"):
        assert iteration_s(experiment(KINDS[kind], f"{{ranks: all, workload: {small}}}")) > 0


def test_an_arm_sets_a_key_that_was_left_out() -> None:
    arms = "arms: {a: {}, b: {fabric.interconnect.hop: 1 us}}"
    a, b = experiment(KINDS["torus"], more=arms).plans
    assert a.setting.fabric.interconnect != b.setting.fabric.interconnect


def test_two_jobs_are_built_for_together() -> None:
    job = (
        "{ranks: [g0, g1, g2, g3], workload: "
        + RING
        + "}\n  blue: {ranks: [g4, g5, g6, g7], workload: "
        + RING
        + "}"
    )
    for kind in ("parallel-ocs", "one-shot", "ideal"):
        assert iteration_s(experiment(KINDS[kind], job)) > 0


@pytest.mark.parametrize("kind", ["ideal", "parallel-ocs", "torus", "one-shot", "rotor"])
def test_training_loops_run_on_them_too(kind: str) -> None:
    assert iteration_s(experiment(KINDS[kind], "{ranks: all}", LOOP)) > 1e-3


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_testbed_is_not_built_of_one(kind: str) -> None:
    (plan,) = experiment(KINDS[kind]).plans
    assert only_simulated(plan) == (
        "fabric.interconnect: it is described as a whole, and a testbed is built port by port"
    )


@pytest.mark.parametrize(
    ("interconnect", "said"),
    [
        ("{kind: star}", "fabric.interconnect"),
        (
            f"{{kind: torus, {GPUS}, sides: [3, 3]}}",
            "fabric.interconnect.sides: (3, 3) are 9 GPUs, and there are 8",
        ),
        (f"{{kind: torus, {GPUS}, sides: [8], block: [3]}}", "fabric.interconnect.block"),
        (
            f"{{kind: one-shot, {GPUS}, degree: 8}}",
            "fabric.interconnect.degree: 8; 8 GPUs can have one of 1 to 7",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 150 Gbit/s, interval: 1 ms, dark: 0 s}}",
            "fabric.interconnect.rate: 2.66667 wavelengths do not divide into two directions",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 25 Gbit/s, interval: 10 us, dark: 20 us}}",
            "fabric.interconnect.interval: 1e-05 s is shorter than the dark time of 2e-05 s, or 0",
        ),
        (
            f"{{kind: rotor, {GPUS}, ports: 4, slot: 1 us, dark: 2 us}}",
            "fabric.interconnect.dark: 2e-06 s; it must be below the slot of 1e-06 s",
        ),
        (
            f"{{kind: demand-ring, {GPUS}, wavelength: 1 bit/s, interval: 1 ms, dark: 0 s}}",
            "fabric.interconnect.wavelength: 2e+11 in each direction; at most 4096",
        ),
        (f"{{kind: ideal, {GPUS}, degree: 3}}", "fabric.interconnect"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(interconnect: str, said: str) -> None:
    assert refusal(interconnect).startswith(said)


def test_an_interconnect_is_all_of_a_fabric() -> None:
    text = KINDS["ideal"] + "\n  servers: {s0: {gpus: {x0: gpu}}}"
    assert refusal(text) == "fabric: servers: interconnect is all of a fabric, and has no such thing"


def test_jobs_that_it_cannot_have_are_refused() -> None:
    ring = KINDS["demand-ring"]
    assert refusal(ring, "{ranks: all}", LOOP).startswith("jobs.red: fabric divides its light for workloads")
    assert refusal(ring, f"{{gpus: 8, workload: {RING}}}").startswith("jobs.red.gpus: fabric is built for")
    two = f"{{ranks: [g0, g1], workload: {RING}}}\n  blue: {{ranks: [g2, g3], workload: {RING}}}"
    assert refusal(ring, two).startswith("jobs: 2 jobs, but fabric divides its light for one")
    events = "events: [{name: gone, when: start, do: lose, target: gpu g0}]"
    assert refusal(KINDS["ideal"], more=events).startswith("events.gone.do: fabric has no parts")


def grouped(size: int) -> Workload:
    """Two all-reduces of four ranks, and a message from rank 0 to rank 4."""
    book = Book()
    programs = []
    for rank in range(8):
        writer = Writer(book)
        writer.collective("dp", Collective("all-reduce", "ring"), size, 0)
        if rank == 0:
            writer.send("m", 1000, 0)
        if rank == 4:
            writer.receive("m", 1000, 0)
        programs.append(writer.done())
    for first in (0, 4):
        book.group(range(first, first + 4))
    peers = [[4], [-1], [-1], [-1], [0], [-1], [-1], [-1]]
    return book.workload("two", programs, range(8), [[rank // 4] for rank in range(8)], peers)


def test_the_demand_of_a_workload_is_what_it_sends() -> None:
    at = np.array([7, 6, 5, 4, 3, 2, 1, 0])
    found = demand_of_workload(grouped(4000), at, 8)
    assert found.total[7, 3] == found.rest[7, 3] == found.rest.sum() == 1000
    assert [sorted(group.tolist()) for group in found.groups] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert found.group_bytes == 2 * 3 * 1000
    assert found.total.sum() == 8 * 6000 + 1000
    assert found.total[7, 6] == 6000
    both = together([found, demand_of_steps(steps_named("ring", 4), 400.0, np.array([0, 2, 4, 6]), 8)], 8)
    assert both.total[0, 2] == 600
    assert both.group_bytes == 6000


def test_light_goes_to_whom_something_is_left_for() -> None:
    ring = DemandRing(4, 25e9, 1e-4, 2e-5)
    demand = np.zeros((8, 8))
    demand[0, 1], demand[2, 3], demand[5, 4] = 3.0, 1.0, 2.0
    network = interconnect_network(ring, [f"g{k}" for k in range(8)], lambda: Demand(demand, demand))
    assert isinstance(network, CircuitNetwork)
    division = RingDivision(ring, network)
    left = np.zeros(3)
    left[network.pairs.tolist().index([0, 1])] = 1e6
    given = division(left)
    assert given.max() == given[network.pairs.tolist().index([0, 1])] >= 4 * 25e9
    assert np.count_nonzero(given) == 1


def test_slowed_is_as_the_emulation_would_run_it() -> None:
    torus = TorusOfGpus(Torus((2, 4)), 100.0, 1e-6)
    assert slowed(torus, 2, 10) == TorusOfGpus(Torus((2, 4)), 10.0, 2e-6)
    assert slowed(Ideal(100.0), 2, 10) == Ideal(10.0)
    assert slowed(OneShot(2, 100.0), 2, 10) == OneShot(2, 10.0)
    assert slowed(ParallelOcs(4, 100.0), 2, 10).gpu_bps == 10.0
    assert slowed(DemandRing(4, 50.0, 1.0, 0.5), 2, 10) == DemandRing(4, 5.0, 2.0, 1.0)
    rotor = slowed(Rotors(Rotor(8, 2, 100.0, 1.0, 0.1)), 2, 10)
    assert rotor == Rotors(Rotor(8, 2, 10.0, 2.0, 0.2))
