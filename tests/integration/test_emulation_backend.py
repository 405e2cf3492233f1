"""The emulation as a backend of experiments: what happens in its labs, and what it puts on record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import TypeVar

import pytest

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.emulation.lab import EmulatedLab
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import (
    ActionBegun,
    ActionEnded,
    Iteration,
    JobArrived,
    JobRecovered,
    JobState,
    Record,
    Reference,
    Released,
    WorkerDone,
    WorkerLost,
)
from ringlight.experiments.record.lab_records import (
    LinkRate,
    LinkRateDisturbed,
    PortRate,
    ProcessBack,
    ProcessEnded,
    ProcessorLoad,
    SwitchDrifted,
    SwitchMended,
)
from ringlight.experiments.record.light_records import Circuits
from ringlight.experiments.record.lines import line_of, record_of
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_group
from ringlight.fabric.parts import canonical
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import Lab
from tests.integration.controller_rig import free_port
from tests.integration.labs import traces

pytestmark = pytest.mark.root

AnyRecord = TypeVar("AnyRecord", bound=Record)
#: Four GPUs on two packet switches through an optical switch, with a thin link between them.
SWITCHED = """
name: switched
description: Four GPUs.
scale: {time: 1, payload: 400}
fabric:
  servers: {s0: {gpus: {g0: test, g1: test, g2: test, g3: test}}}
  packet_switches: {tor0: {ports: 3}, tor1: {ports: 3}}
  optical_switches: {ocs0: {size: 8, profile: mems}}
  links:
    - {ends: [g0, "ocs0:1"], rate: 40 Gbit/s}
    - {ends: [g1, "ocs0:2"], rate: 40 Gbit/s}
    - {ends: [g2, "ocs0:3"], rate: 40 Gbit/s}
    - {ends: [g3, "ocs0:4"], rate: 40 Gbit/s}
    - {ends: ["tor0:1", "ocs0:5"], rate: 40 Gbit/s}
    - {ends: ["tor0:2", "ocs0:6"], rate: 40 Gbit/s}
    - {ends: ["tor1:1", "ocs0:7"], rate: 40 Gbit/s}
    - {ends: ["tor1:2", "ocs0:8"], rate: 40 Gbit/s}
    - {ends: ["tor0:3", "tor1:3"], rate: 12.9 Gbit/s}
  circuits: [[g0, "tor0:1"], [g1, "tor0:2"], [g2, "tor1:1"], [g3, "tor1:2"]]
training: {model: resnet50, gradient: 40 MB, compute: 50 ms, batch: 8, iterations: 8}
tcp: {rto_min: 20 ms}
link_test: {duration: 300 ms}
arms:
  live:
    training.iterations: 16
    jobs: {red: {ranks: [g0, g2], beacon: 5 ms}, blue: {ranks: [g1, g3]}}
    events: [{when: {job: red, iteration: 1}, do: regroup}]
  queue:
    jobs:
      red: {ranks: [g0, g1]}
      blue: {ranks: [g1, g2], start: {at: 100 ms}}
      late: {gpus: 2, start: {after: blue}, slower: {1: 3}}
  ends:
    training.iterations: 500
    jobs: {red: {ranks: [g0, g1]}, blue: {ranks: [g2, g3], may_fail: true}}
    events:
      - {name: end, when: {job: red, iteration: 2}, do: cancel, target: job red}
      - {name: left, when: {after: end}, do: regroup}
      - {name: void, when: {ended: red}, do: regroup, jobs: [red]}
      - {name: hit, when: {after: void}, do: kill, target: worker blue 1}
  away:
    jobs: {red: {ranks: [g0, g1], training: {iterations: 80}}, late: {ranks: [g2, g3], start: {at: 1500 ms}}}
    events: [{when: {job: red, iteration: 2}, do: kill, target: controller, back_after: 2 s}]
  broken:
    training.iterations: 60
    jobs: {red: {ranks: [g0, g1]}}
    events:
      - {name: cut, when: {at: 300 ms}, do: cut, target: link tor0:3 tor1:3}
      - {name: whole, when: {after: cut}, do: restore, target: link tor0:3 tor1:3}
      - {name: ocs, when: {after: whole}, do: kill, target: switch ocs0, back_after: 500 ms}
      - {name: agent, when: {after: ocs}, do: kill, target: server agent, back_after: 500 ms}
      - {name: again, when: {after: agent}, do: cut, target: link tor0:3 tor1:3}
  swap:
    jobs: {red: {ranks: [g0, g2, g1], training: {iterations: 40}}}
    events: [{when: {job: red, iteration: 2}, do: lose, target: gpu g1, then: swap}]
  shrink:
    jobs: {red: {ranks: [g0, g2, g1], training: {iterations: 40}}}
    events: [{when: {job: red, iteration: 2}, do: lose, target: gpu g2, then: shrink}]
  nic:
    jobs: {red: {ranks: [g0, g2], training: {iterations: 40}}, blue: {ranks: [g1, g3]}}
    events:
      - {name: loss, when: {job: red, iteration: 1}, do: lose, target: nic g2}
      - {name: back, when: {at: 3 s}, do: restore, target: nic g2}
  circuits:
    jobs: {red: {ranks: [g0, g2], training: {iterations: 16}}}
    events:
      - name: moved
        when: {job: red, iteration: 3}
        do: circuits
        circuits: [[g0, "tor0:1"], [g2, "tor0:2"], [g1, "tor1:1"], [g3, "tor1:2"]]
  switch:
    jobs: {red: {ranks: [g0, g1], training: {iterations: 40}}}
    events: [{name: dead, when: {job: red, iteration: 3}, do: kill, target: switch tor0, back_after: 1 s}]
  whole:
    training.iterations: 3
    jobs: {red: {ranks: [g0, g2]}}
"""


class Found:
    """The records of one run."""

    def __init__(
        self, plan: RunPlan, records: tuple[Record, ...], failures: tuple[str, ...]
    ) -> None:
        self.plan, self.records, self.failures = plan, records, failures

    def of(self, kind: type[AnyRecord], **fields: object) -> list[AnyRecord]:
        return [
            record
            for record in self.records
            if type(record) is kind and fields.items() <= vars(record).items()
        ]

    def states(self, job: str) -> list[str]:
        return [record.state for record in self.of(JobState, job=job)]

    def at(self, job: str, state: str) -> float:
        return self.of(JobState, job=job, state=state)[0].t

    def exact(self, job: str) -> bool:
        """Whether all ranks and the reference ended with the same parameters."""
        (reference,) = self.of(Reference, job=job)
        return {done.parameters_sha256 for done in self.of(WorkerDone, job=job)} == {
            reference.sha256
        }


def backend_here() -> EmulationBackend:
    rest, openflow = free_port(), free_port()
    return EmulationBackend(
        "namespace", Addresses(f"127.0.0.1:{rest}", f"127.0.0.1:{openflow}")
    )


def runs_of(text: str) -> tuple[dict[str, Found], list[Record]]:
    """All runs of an experiment with one fabric, in one lab, and what is of no run. Nothing may be left."""
    plans = parse(text, "experiment.yaml").plans
    backend = backend_here()
    assert [backend.refuses(plan) for plan in plans] == [None] * len(plans)
    written: list[Record] = []
    found = {
        outcome.plan.name: Found(outcome.plan, outcome.records, outcome.failures)
        for outcome in run_group(backend, plans, written.extend, Reporter())
    }
    (facts,) = backend.facts()["labs"]
    assert facts["controller_restarts"] == 0
    assert traces(Lab(facts["lab"])) == []
    for record in written:
        assert record_of(json.loads(line_of(record))) == record
    return found, [record for record in written if not record.run]


@pytest.fixture(scope="module")
def switched() -> tuple[dict[str, Found], list[Record]]:
    return runs_of(SWITCHED)


@pytest.fixture(scope="module")
def runs(switched: tuple[dict[str, Found], list[Record]]) -> Mapping[str, Found]:
    return switched[0]


def test_its_links_are_measured_before_all_else(
    switched: tuple[dict[str, Found], list[Record]],
) -> None:
    _, records = switched
    measured = [record for record in records if isinstance(record, LinkRate)]
    assert len({(rate.link, rate.direction) for rate in measured}) == 6
    doubted = {rate.link for rate in measured if isinstance(rate, LinkRateDisturbed)}
    assert doubted <= {
        rate.link for rate in measured if not isinstance(rate, LinkRateDisturbed)
    }


def test_two_jobs_are_regrouped_while_they_train(runs: Mapping[str, Found]) -> None:
    found = runs["live"]
    (ended,) = found.of(ActionEnded)
    assert (ended.name, ended.do, ended.error) == ("1", "regroup", None)
    assert len(ended.result["plan"]["moves"]) == 2
    (lit,) = found.of(Circuits)
    assert {tuple(pair) for pair in lit.circuits} != set(found.plan.circuits)
    (released,) = found.of(Released)
    assert sorted(released.jobs) == ["blue", "red"]
    for job in ("red", "blue"):
        assert found.states(job) == ["READY", "RUNNING", "SUCCEEDED"]
        assert len(found.of(Iteration, job=job)) == 2 * 16
        assert found.exact(job)
    assert min(record.compute_start for record in found.of(Iteration)) >= released.at
    assert found.of(JobState, job="red", state="READY")[0].gpus == ["g0", "g2"]
    assert all(done.max_beacon_gap_s for done in found.of(WorkerDone, job="red"))
    assert {rate.switch for rate in found.of(PortRate)} == {"tor0", "tor1"}
    assert found.of(ProcessorLoad)


def test_a_job_waits_for_taken_gpus_and_one_is_placed_by_the_controller(
    runs: Mapping[str, Found],
) -> None:
    found = runs["queue"]
    jobs = ("red", "blue", "late")
    assert all(
        found.states(job)[-1] == "SUCCEEDED" and found.exact(job) for job in jobs
    )
    assert (
        found.of(JobArrived, job="blue")[0].t
        < found.at("red", "SUCCEEDED")
        < found.at("blue", "READY")
    )
    assert found.at("blue", "SUCCEEDED") < found.at("late", "READY")
    assert len(found.of(JobState, job="late", state="READY")[0].gpus) == 2
    assert len(found.of(Released)) == 3
    # A rank that computes three times as long holds up the other.
    computed = {
        rank: [it.compute_s for it in found.of(Iteration, job="late", rank=rank)]
        for rank in (0, 1)
    }
    assert median(computed[0]) < 0.15 <= min(computed[1])


def test_a_cancelled_job_and_one_that_lost_a_worker_are_results(
    runs: Mapping[str, Found],
) -> None:
    found = runs["ends"]
    assert found.states("red")[-1] == "CANCELLED"
    (failed,) = found.of(JobState, job="blue", state="FAILED")
    assert failed.reason == "rank 1 on GPU g3 was killed by SIGKILL"
    errors = {record.name: record.error for record in found.of(ActionEnded)}
    # What runs is the controller's to say: red had ended, of which nobody here had heard yet.
    assert errors == {
        "end": None,
        "left": None,
        "void": "job red does not run",
        "hit": None,
    }
    assert not found.of(Reference)
    assert found.failures == ("ends: events.void: job red does not run",)


def test_jobs_go_on_while_the_controller_is_away(runs: Mapping[str, Found]) -> None:
    found = runs["away"]
    assert not found.failures
    (ended,) = found.of(ActionEnded)
    t_done, t_back = ended.result["t_done"], ended.result["t_back"]
    assert t_back - t_done >= 2.0
    assert t_done < found.of(JobArrived, job="late")[0].t < t_back
    for job, iterations in (("red", 80), ("late", 8)):
        assert found.states(job)[-1] == "SUCCEEDED"
        assert found.exact(job)
        done = found.of(Iteration, job=job)
        assert len(done) == len({(r.rank, r.i) for r in done}) == 2 * iterations
    assert [
        record
        for record in found.of(Iteration, job="red")
        if t_done < record.t < t_back
    ]


def test_what_is_broken_in_a_run_is_whole_in_the_next(
    runs: Mapping[str, Found],
) -> None:
    found = runs["broken"]
    errors = {record.name: record.error for record in found.of(ActionEnded)}
    assert errors == dict.fromkeys(["cut", "whole", "ocs", "agent", "again"])
    assert found.of(ActionEnded, name="ocs")[0].result["t_back"]
    # It was killed on purpose: that is on record, and no fault of the lab's.
    deaths = {(record.name, record.planned) for record in found.of(ProcessEnded)}
    assert ("ocs0", True) in deaths
    assert all(planned for _, planned in deaths)
    assert {record.name for record in found.of(ProcessBack)} == {
        name for name, _ in deaths
    }
    assert runs["whole"].exact("red")


def stood_still(found: Found, job: str, since: float, until: float) -> bool:
    """Whether no iteration of a job ended between two moments, one did before and one afterwards."""
    ends = [record.allreduce_end for record in found.of(Iteration, job=job)]
    return (
        min(ends) < since
        and max(ends) > until
        and not [end for end in ends if since < end < until]
    )


def test_a_job_stands_still_without_its_nic_and_goes_on_with_it(
    runs: Mapping[str, Found],
) -> None:
    found = runs["nic"]
    (released,) = found.of(Released)
    loss, back = found.of(ActionEnded)
    assert (loss.error, back.error) == (None, None)
    # Times count from the common start, not from the call for it.
    assert found.of(ActionBegun, name="back")[0].t >= released.at + 3.0
    # What was on its way when the light went out may still end an iteration.
    assert stood_still(found, "red", loss.result["t_done"] + 0.3, back.result["t_back"])
    assert found.exact("red")
    assert found.exact("blue")


def test_circuits_are_set_while_a_job_trains(runs: Mapping[str, Found]) -> None:
    found = runs["circuits"]
    (ended,) = found.of(ActionEnded)
    assert ended.error is None
    (lit,) = found.of(Circuits)
    assert canonical(ended.result["circuits"]) == canonical(lit.circuits)
    assert found.exact("red")


def test_a_job_stands_still_while_its_packet_switch_is_dead(
    runs: Mapping[str, Found],
) -> None:
    """The switch died only once Open vSwitch had said that its controller was gone, up to 5 s later."""
    found = runs["switch"]
    (ended,) = found.of(ActionEnded)
    assert ended.error is None
    assert ended.result["t_done"] - ended.result["t_asked"] < 2.0
    assert ended.result["t_back"] - ended.result["t_done"] >= 1.0
    assert stood_still(found, "red", ended.result["t_done"], ended.result["t_back"])
    assert found.exact("red")


@pytest.mark.parametrize(
    ("run", "lost", "left"),
    [("swap", "g1", ["g0", "g2", "g3"]), ("shrink", "g2", ["g0", "g1"])],
)
def test_a_job_goes_on_without_a_gpu(
    runs: Mapping[str, Found], run: str, lost: str, left: list[str]
) -> None:
    found = runs[run]
    (loss,) = found.of(WorkerLost)
    (recovered,) = found.of(JobRecovered)
    assert (loss.gpu, recovered.gpus) == (lost, left)
    assert found.states("red") == [
        "READY",
        "RUNNING",
        "RECOVERING",
        "RUNNING",
        "SUCCEEDED",
    ]
    assert found.at("red", "RECOVERING") < recovered.at
    again = [it for it in found.of(Iteration) if it.compute_start >= recovered.at]
    assert {(it.rank, it.i) for it in again} == {
        (rank, i) for rank in range(len(left)) for i in range(recovered.iteration, 40)
    }
    assert found.exact("red")
    assert not found.failures


@contextmanager
def lab_of(text: str) -> Iterator[tuple[EmulatedLab, dict[str, RunPlan]]]:
    plans = {plan.name: plan for plan in parse(text, "experiment.yaml").plans}
    lab = backend_here().open(next(iter(plans.values())).setting, lambda _: None)
    try:
        yield lab, plans
    finally:
        lab.close()
        assert traces(lab.processes.lab) == []


def test_what_dies_unasked_is_told_and_a_lab_given_up_in_the_middle_leaves_nothing() -> (
    None
):
    with lab_of(SWITCHED) as (lab, plans):
        plan, processes = plans["away"], lab.processes
        lab.begin(plan)
        assert lab.submit(plan.job("red")) is None
        os.kill(processes.pids["controller"], signal.SIGKILL)
        os.kill(processes.inventory["optical_switches"]["ocs0"]["pid"], signal.SIGKILL)
        found: list[Record] = []
        deadline = lab.now_s() + 60
        dead = {("controller", "controller"), ("optical switch", "ocs0")}
        back: set[tuple[str, str]] = set()
        while back < dead or JobState not in {type(record) for record in found}:
            assert lab.now_s() < deadline
            found += lab.next(deadline)
            back = {
                (record.kind, record.name)
                for record in found
                if isinstance(record, ProcessBack)
            }
        ended = [record for record in found if isinstance(record, ProcessEnded)]
        assert {(record.kind, record.name) for record in ended} == dead
        assert {(record.how, record.planned) for record in ended} == {
            ("killed by SIGKILL", False)
        }
        # Neither of them takes light or rules with it; others may.
        assert SwitchDrifted not in {type(record) for record in found}
        bridge = processes.lab.bridge("tor0")
        subprocess.run(
            ["ovs-ofctl", "-O", "OpenFlow13", "del-flows", bridge],
            check=True,
            timeout=10,
        )
        while SwitchMended not in {type(record) for record in found}:
            assert lab.now_s() < deadline
            found += lab.next(deadline)
        told = next(record for record in found if isinstance(record, SwitchDrifted))
        assert (told.switch, told.what, told.planned) == ("tor0", "flow table", False)
        lab.perform(plan.events[0])
        lab.next(lab.now_s() + 0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 60
