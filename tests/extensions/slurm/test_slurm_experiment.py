"""Jobs of a trace through Slurm, simulated by its rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.backends.emulation.requests import only_simulated
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.runs import SUCCEEDED, Run, runs_of
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.slurm.experiment_plan import JobOptions
from ringlight.extensions.slurm.experiment_records import SlurmJob, SlurmRule
from ringlight.extensions.slurm.lab_cluster import _event
from ringlight.extensions.slurm.slurm_conf import PARAMETERS
from ringlight.extensions.slurm.task import spec_of

EXAMPLE = ROOT / "scenarios/examples/slurm.yaml"


def experiment(sets: Sequence[str] = ()) -> Experiment:
    return load(EXAMPLE, sets=sets)


def simulated(of: Experiment, arm: str) -> Run:
    (plan,) = of.plans_of([arm])
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    (run,) = runs_of(records, [plan])
    return run


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    of = experiment()
    return {plan.arm: simulated(of, plan.arm) for plan in of.plans}


def test_every_job_ends_and_no_node_has_two(runs: dict[str, Run]) -> None:
    for run in runs.values():
        jobs = run.of(SlurmJob)
        assert len(jobs) == len(run.jobs) == 12
        assert all(job.state == SUCCEEDED for job in run.jobs.values())
        for job in jobs:
            mine = run.jobs[job.job]
            assert mine.gpus == tuple(job.nodes)
            assert job.submitted <= job.allocated < job.freed
        for one, other in combinations(jobs, 2):
            together = one.allocated < other.freed and other.allocated < one.freed
            assert not (together and set(one.nodes) & set(other.nodes))


def test_light_is_where_each_mode_has_it(runs: dict[str, Run]) -> None:
    # What no leaf has room for spans both, unless light is moved.
    assert any(len(job.switches) > 1 for job in runs["tree"].of(SlurmJob))
    assert all(len(job.switches) == 1 for job in runs["lead"].of(SlurmJob))
    four = [job for job in runs["follow"].of(SlurmJob) if len(job.nodes) == 4]
    assert four
    assert all(job.switches == ["leaf0"] for job in four)
    for arm in ("flat", "tree"):
        assert runs[arm].circuits == runs[arm].circuits_before


def test_a_run_says_which_rule_decided(runs: dict[str, Run]) -> None:
    for run in runs.values():
        (rule,) = run.of(SlurmRule)
        assert rule.version is None
        assert rule.not_modelled
        assert rule.parameters == PARAMETERS


def test_a_run_is_the_same_each_time(runs: dict[str, Run]) -> None:
    again = simulated(experiment(), "lead")
    assert again.of(SlurmJob) == runs["lead"].of(SlurmJob)


def test_both_backends_can_have_every_arm() -> None:
    of = experiment()
    assert [SimulationBackend().refuses(plan) for plan in of.plans] == [None] * 4
    assert [only_simulated(plan) for plan in of.plans] == [None] * 4


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (["jobs.slurm.trace.queueing=backfill"], "trace.queueing: Slurm decides that"),
        (["jobs.slurm.mode=lead", "jobs.slurm.switches=1"], "switches: in mode lead"),
        (["jobs.slurm.mode=both"], "jobs.slurm.mode"),
        (["jobs.slurm.switches_wait=5 s"], "switches_wait: only with switches"),
        (["jobs.slurm.trace.file=none.csv"], "jobs.slurm.trace.file"),
    ],
)
def test_mistakes_are_one_line(sets: list[str], line: str) -> None:
    with pytest.raises(ScenarioError) as error:
        experiment(sets)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_options_of_sbatch() -> None:
    assert JobOptions(5).options == ["--time=5"]
    assert JobOptions(3, 1, 75.0).options == ["--time=3", "--switches=1@1:15"]


def test_the_log_of_slurmctld() -> None:
    lines = [
        "[2026-11-30T19:03:32.804] sched/backfill: _start_job: Started JobId=1 in gpus on g[0-2]",
        "[2026-11-30T19:03:45.597] sched: Allocate JobId=8 NodeList=g[0-1] #CPUs=2 Partition=gpus",
        "[2026-11-30T19:03:34.907] _job_complete: JobId=1 WEXITSTATUS 0",
        "[2026-11-30T19:03:34.907] _job_complete: JobId=1 done",
        "a line without a time",
    ]
    events = [event for line in lines for event in _event(line, 0.0)]
    assert [(e.what, e.id, e.nodes) for e in events] == [
        ("backfill", 1, "g[0-2]"),
        ("main", 8, "g[0-1]"),
        ("done", 1, ""),
    ]
    assert events[1].t - events[0].t == pytest.approx(12.793)


def test_the_orders_of_a_rank() -> None:
    job = {
        "settings": {"job": "j0", "seed": 7},
        "addresses": {"g0": "10.0.0.1", "g3": "10.0.0.4"},
    }
    assert spec_of(job, ["g3", "g0"], 1) == {
        "job": "j0",
        "seed": 7,
        "rank": 1,
        "world_size": 2,
        "peers": ["10.0.0.4", "10.0.0.1"],
    }
