"""Slurm's own times on this machine, by which ``scenarios/examples/slurm.yaml`` is simulated. Needs root.

Jobs of that scenario's fabric come one at a time, so that none waits for another and none shares a link, and
train for a moment. They are none of the scenario's jobs. Of each: from its nodes until its ranks are connected
(``launch``), and from its last iteration until its nodes are free (``ending``). In mode lead a claim comes
first; what its launch takes longer, where no light moves, is ``claiming``.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import yaml

from benchmarks.harness import ROOT, milliseconds, need_root, show, tell
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import Iteration, Record, Released
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_group
from ringlight.extensions.slurm.experiment_records import SlurmJob

SCENARIO = ROOT / "scenarios/examples/slurm.yaml"
MODES = ("stand", "lead")
#: Between two submissions, seconds: a job has ended before the next comes.
GAP_S = 6.0


def slurm_start(jobs: int = 8) -> dict[str, Any]:
    """``jobs``: in each mode, one after the other."""
    need_root()
    backend, records = EmulationBackend("namespace"), list[Record]()
    plans = _plans(jobs)
    backend.prepare([plans[0].setting], None, tell, {})
    for outcome in run_group(backend, plans, records.extend, Reporter()):
        tell(f"{outcome.plan.title} done")
    found = {
        plan.arm: _of_jobs([record for record in records if record.run == plan.name])
        for plan in plans
    }
    launch, ending = found["stand"]
    claiming = statistics.median(found["lead"][0]) - statistics.median(launch)
    rows = {"launch": launch, "ending": ending, "launch, lead": found["lead"][0]}
    show(
        ("what", "median, ms", "longest, ms"),
        [
            (name, round(1e3 * statistics.median(times)), round(1e3 * max(times)))
            for name, times in rows.items()
        ],
    )
    return {
        **{name: milliseconds(times) for name, times in rows.items()},
        "claiming_ms": round(1e3 * claiming, 1),
    }


PARTS = (slurm_start,)


def _plans(jobs: int) -> tuple[RunPlan, ...]:
    """Return a plan for each mode, all for one lab."""
    raw = yaml.safe_load(SCENARIO.read_text(encoding="utf-8"))
    slurm, scale = raw["jobs"]["slurm"], raw["scale"]["time"]
    slurm["trace"] = {
        **{key: slurm["trace"][key] for key in ("sends", "trains")},
        "generate": {
            "jobs": jobs,
            "gap": f"{GAP_S / scale} s",
            "gaps": "constant",
            "duration": f"{1 / scale} s",
            "durations": "constant",
            # Three are on one leaf in any mode.
            "sizes": {2: 1, 3: 1},
        },
    }
    raw["arms"] = {mode: {"jobs.slurm.mode": mode} for mode in MODES}
    del raw["compare"]
    return parse(yaml.safe_dump(raw), str(SCENARIO)).plans


def _of_jobs(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Return launch and ending of each job, seconds."""
    done = [record for record in records if isinstance(record, SlurmJob)]
    return (
        [_released(records, job.job) - job.allocated for job in done],
        [job.freed - _last(records, job.job) for job in done],
    )


def _released(records: Sequence[Record], job: str) -> float:
    return next(r.at for r in records if isinstance(r, Released) and job in r.jobs)


def _last(records: Sequence[Record], job: str) -> float:
    return max(
        r.allreduce_end for r in records if isinstance(r, Iteration) and r.job == job
    )
