"""How much the phase of Slurm's clock decides of ``scenarios/examples/slurm.yaml``, simulated. Needs no root.

Slurm looks at its queue every second, counted from its own start. Each arm is simulated with all
submissions later by parts of that time, which the experiment does not choose.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.harness import ROOT, show
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.slurm.experiment_records import SlurmJob
from ringlight.extensions.slurm.simulated_rule import scheduling_of
from ringlight.extensions.slurm.slurm_conf import PARAMETERS

SCENARIO = ROOT / "scenarios/examples/slurm.yaml"
PERIOD_S = scheduling_of(PARAMETERS).backfill_s


def slurm_phase(phases: int = 10, faster: float = 0.0) -> dict[str, Any]:
    """``phases``: of the clock. ``faster``: arrivals closer by this factor; 0: as in the file."""
    sets = [f"jobs.slurm.trace.faster={faster}"] if faster else []
    found = {
        plan.arm: [_mean_s(plan, PERIOD_S * k / phases) for k in range(phases)]
        for plan in load(SCENARIO, sets=sets).plans
    }
    rows = {arm: (fmean(means), min(means), max(means)) for arm, means in found.items()}
    show(
        ("arm", "mean, s", "least", "most", "spread, %"),
        [
            (arm, *(f"{one:.2f}" for one in row), round(_spread(*row), 1))
            for arm, row in rows.items()
        ],
    )
    return {
        arm: {"mean_s": row[0], "spread_percent": _spread(*row)}
        for arm, row in rows.items()
    }


PARTS = (slurm_phase,)


def _spread(mean_s: float, least_s: float, most_s: float) -> float:
    return 100 * (most_s - least_s) / mean_s


def _mean_s(plan: RunPlan, later_s: float) -> float:
    """Return the mean time from submission to end if all jobs are submitted later, seconds."""
    jobs = (
        replace(job, start=replace(job.start, at_s=job.start.at_s + later_s))
        for job in plan.jobs
    )
    records, _ = run_alone(SimulationBackend(), replace(plan, jobs=tuple(jobs)))
    return fmean(
        record.freed - record.submitted
        for record in records
        if isinstance(record, SlurmJob)
    )
