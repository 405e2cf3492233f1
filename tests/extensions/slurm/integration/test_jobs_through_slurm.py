"""Jobs of a trace through a real Slurm on the testbed, in small, in both modes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ringlight.containers.image import ROOT
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.text import parse_yaml
from ringlight.extensions.slurm.experiment_records import (
    SlurmJob,
    SlurmLight,
    SlurmRule,
)
from ringlight.extensions.slurm.process import obstacle
from ringlight.testbed.lab import STATE_ROOT
from tests.integration.test_examples import carried_out, nothing_is_made_once_more

__all__ = ["nothing_is_made_once_more"]
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]
EXAMPLE = ROOT / "scenarios/examples/slurm.yaml"
MODES = ("lead", "follow")


def _small() -> Experiment:
    """Six short jobs, one of them of four GPUs."""
    raw = parse_yaml(EXAMPLE.read_text(), str(EXAMPLE))
    raw["scale"] = {"time": 0.004, "payload": 100_000}
    raw["link_test"] = {"duration": "200 ms"}
    raw["jobs"]["slurm"]["trace"]["first"] = 6
    raw["arms"] = {mode: {"jobs.slurm.mode": mode} for mode in MODES}
    del raw["compare"]
    return parse(yaml.safe_dump(raw, sort_keys=False), str(EXAMPLE))


def test_jobs_of_a_trace_through_slurm(tmp_path: Path) -> None:
    experiment = _small()
    runs, figures = carried_out(experiment, tmp_path, "namespace", *MODES)
    for run in runs:
        jobs = run.of(SlurmJob)
        assert {job.job for job in jobs} == run.jobs.keys()
        for job in jobs:
            assert tuple(job.nodes) == run.jobs[job.job].gpus
            assert job.submitted <= job.allocated + 1
            assert job.allocated < job.freed
        (rule,) = run.of(SlurmRule)
        assert rule.version is not None
        assert rule.mode == run.plan.arm
        ratio = figures.number(run.plan.arm, "run", "slurm_completion_over_simulated")
        assert 1 / 3 < ratio < 3
    lead, follow = runs
    # Claims brought each job to one leaf, also that of four; without them Slurm saw three and three.
    assert all(len(job.switches) == 1 for job in lead.of(SlurmJob))
    assert len(lead.of(SlurmLight)) > 1
    four = next(job for job in follow.of(SlurmJob) if len(job.nodes) == 4)
    assert four.switches == ["leaf0", "leaf1"]
    assert len(follow.of(SlurmLight)) == 1
    (log,) = tmp_path.rglob("slurm-slurmctld.log")
    assert log.read_text().count("_job_complete: JobId=1 done") == len(MODES)
    (about,) = tmp_path.glob("*/environment.json")
    (lab,) = json.loads(about.read_text())["labs"]
    assert not (STATE_ROOT / lab["lab"]).exists()
