"""Jobs with a workload in a simulated lab."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.protocol import Backend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Iteration, JobState, Operations, Record
from ringlight.experiments.runner.experiment import run_alone
from ringlight.testbed.simulation.networks import PacketNetwork, scaled
from ringlight.testbed.simulation.workload import simulate_workload
from ringlight.workloads.graph import Collective
from ringlight.workloads.graph_writer import Book, Writer
from tests.simulated import records_of

SWITCH = """
name: four
description: Four GPUs on a packet switch.
scale: {time: 20, payload: 400}
fabric:
  servers: {s0: {gpus: {g0: gpu, g1: gpu, g2: gpu, g3: gpu}}}
  packet_switches: {tor0: {ports: 4}}
  links:
    - {ends: [g0, "tor0:1"], rate: 25 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 25 Gbit/s}
    - {ends: [g2, "tor0:3"], rate: 25 Gbit/s}
    - {ends: [g3, "tor0:4"], rate: 25 Gbit/s}
tcp: {headers: false}
jobs:
"""
#: Two stages of two replicas: gradients, and messages between stages.
STAGES = "{files: stages.rlw, iterations: 2}"
PATH = str(ROOT / "tests/data/four.yaml")


def experiment(jobs: str, more: str = "") -> Experiment:
    return parse(f"{SWITCH}  {jobs}\n{more}", PATH)


def simulated(plan: RunPlan, backend: Backend | None = None) -> list[Record]:
    records, failures = run_alone(backend or SimulationBackend(), plan)
    assert not failures
    return records


def of_kind(records: list[Record], kind: type) -> list[Record]:
    return [record for record in records if isinstance(record, kind)]


def test_a_workload_takes_as_long_in_a_lab_as_by_itself() -> None:
    (plan,) = experiment(f"llm: {{ranks: [g0, g2, g1, g3], workload: {STAGES}}}").plans
    records = simulated(plan)
    (job,) = plan.jobs
    assert job.workload is not None
    network = PacketNetwork(scaled(plan.setting.fabric, plan.setting.scale.rate))
    alone = simulate_workload(
        network, job.ranks, job.workload, iterations=2, operations=True
    )
    assert alone.records is not None
    for record in of_kind(records, Iteration):
        assert isinstance(record, Iteration)
        assert record.allreduce_end == pytest.approx(
            alone.end_s[record.i, record.rank], rel=1e-9
        )
        assert record.compute_start == pytest.approx(
            alone.begin_s[record.i, record.rank], rel=1e-9, abs=1e-12
        )
        assert 0 < record.compute_s < record.whole_s
    for record in of_kind(records, Operations):
        assert isinstance(record, Operations)
        ends = np.array(record.times_s)[:, 1] + record.begin
        assert ends == pytest.approx(
            alone.records[record.rank].end_s[record.i], rel=1e-9
        )
    states = [r.state for r in of_kind(records, JobState) if isinstance(r, JobState)]
    assert states == ["READY", "RUNNING", "SUCCEEDED"]


def test_a_straggler_holds_up_all_that_depends_on_it() -> None:
    plans = [
        experiment(f"llm: {{ranks: all, slower: {slower}, workload: {STAGES}}}").plans[
            0
        ]
        for slower in ("{}", "{3: 4}")
    ]
    plain, slow = (
        max(r.allreduce_end for r in simulated(plan) if isinstance(r, Iteration))
        for plan in plans
    )
    assert slow > 1.05 * plain


def test_a_workload_beside_a_training_loop_shares_the_network_with_it() -> None:
    alone = experiment(
        "a2a: {ranks: [g0, g1], workload: {collective: all-to-all, size: 100 MB, iterations: 3}}"
    )
    both = experiment(
        "a2a: {ranks: [g0, g1], workload: {collective: all-to-all, size: 100 MB, iterations: 3}}\n"
        "  red: {ranks: [g2, g3]}",
        "training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 2}",
    )
    ends = [
        max(
            r.allreduce_end
            for r in simulated(found.plans[0])
            if isinstance(r, Iteration) and r.job == "a2a"
        )
        for found in (alone, both)
    ]
    # On a switch they have no link in common.
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_what_cannot_be_simulated_is_refused_by_name() -> None:
    (plan,) = experiment(
        f"llm: {{ranks: all, workload: {STAGES}}}",
        "events: [{when: {at: 1 s}, do: cut, target: link g0 tor0:1}]",
    ).plans
    why = SimulationBackend().refuses(plan)
    assert why is not None
    assert "do: the simulation cannot cut while a workload runs" in why


def test_ranks_that_wait_for_each_other_fail_and_say_so() -> None:
    (plan,) = experiment(f"llm: {{ranks: all, workload: {STAGES}}}").plans
    book = Book()
    group = book.group(range(4))
    programs = []
    for first in (0, 1):
        writer = Writer(book)
        for slot in (first, 1 - first):
            writer.collective(
                f"call {slot}", Collective("all-reduce", "ring"), 4096, slot
            )
        programs.append(writer.done())
    crossed = book.workload(
        "crossed", programs, [0, 0, 1, 1], [[group, group]] * 4, [[] for _ in range(4)]
    )
    job = replace(plan.jobs[0], workload=crossed, may_fail=True)
    records, _ = run_alone(SimulationBackend(), replace(plan, jobs=(job,)))
    ended = [r for r in of_kind(records, JobState) if isinstance(r, JobState)][-1]
    assert ended.state == "FAILED"
    assert ended.reason is not None
    assert "crossed: nobody can go on: rank 0 in operation 0 (call 0" in ended.reason


def check_not_simulated_beside_wires(light: str, named: str, nodes: str) -> None:
    """Check that trainings on wires and on light are not simulated together."""
    text = SWITCH.replace("fabric:\n", f"fabric:\n  {light}\n")
    more = "training: {model: resnet50, compute: 1 ms, batch: 8, iterations: 2}"
    jobs = f"  red: {{ranks: [g0, g1]}}\n  blue: {{ranks: [{nodes}]}}\n"
    (plan,) = parse(f"{text}{jobs}{more}", PATH).plans
    why = SimulationBackend().refuses(plan)
    assert (
        why
        == f"jobs.red.ranks: g0 is not on {named}, beside which nothing is simulated"
    )


def check_as_long_beside_light(light: str) -> None:
    """Check that a workload takes as long beside light that it has nothing to do with."""
    job = f"  llm: {{ranks: [g0, g1, g2, g3], workload: {STAGES}}}\n"
    texts = (SWITCH + job, SWITCH.replace("fabric:\n", f"fabric:\n  {light}\n") + job)
    alone, beside = (parse(text, PATH) for text in texts)
    times = [
        [record.t for record in records_of(found) if isinstance(record, JobState)]
        for found in (alone, beside)
    ]
    assert times[0] == times[1]
    assert times[0][-1] > 0
