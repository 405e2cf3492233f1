"""``jobs: {slurm: …}``: jobs that come through Slurm, which decides when and where each of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ringlight.experiments.backends.protocol import BuiltLab
from ringlight.experiments.language.job_sources import Files, Sourced
from ringlight.experiments.language.plan import EventPlan, RunPlan, Setting
from ringlight.experiments.language.text import at_key
from ringlight.extensions.cluster.language import trained
from ringlight.extensions.slurm.experiment_plan import (
    MODES,
    SlurmPlan,
    SlurmSpec,
    plan_of,
    slurm_of,
)


class SlurmJobs:
    """Implement ``experiments.language.job_sources.JobSource``."""

    spec = SlurmSpec

    def meant(self, written: Mapping[str, Any]) -> bool:
        return "trace" in written

    def plan(
        self,
        spec: SlurmSpec,
        setting: Setting,
        events: Sequence[EventPlan],
        files: Files,
    ) -> Sourced:
        plan = plan_of(spec, setting, files)
        with at_key("jobs.slurm.trace.trains"):
            return Sourced(plan, trained(plan))

    def document(self, plan: RunPlan) -> dict[str, Any]:
        slurm = slurm_of(plan)
        return {
            "jobs": len(plan.jobs),
            "largest_gpus": max(job.gpus for job in plan.jobs),
            "span_s": max(job.start.at_s for job in plan.jobs),
            "request": asdict(slurm.request),
            "mode": slurm.mode,
        }

    def line(self, document: Mapping[str, Any]) -> str:
        return (
            f"slurm: {document['jobs']} jobs of up to {document['largest_gpus']} GPUs submitted within "
            f"{document['span_s']:.0f} s; {document['mode']}: {MODES[document['mode']]}"
        )

    def refused(self, plan: RunPlan, *, simulated: bool) -> str | None:
        for event in plan.events:
            if event.do != "circuits":
                return f"events.{event.name}.do: {event.do}: jobs in Slurm are none of the controller's"
        return None

    def batch(self, plan: RunPlan) -> None:
        """Return None: its jobs run in the lab, also in a simulation."""

    def lab(self, plan: RunPlan, lab: BuiltLab) -> BuiltLab:
        """Return the lab with Slurm in front of it: a real one, or its rule where time is virtual."""
        if lab.real_time:
            from ringlight.experiments.backends.emulation.lab import EmulatedLab
            from ringlight.extensions.slurm.emulated_queue import EmulatedSlurm

            assert isinstance(lab, EmulatedLab)
            return EmulatedSlurm(lab)
        from ringlight.extensions.slurm.simulated_queue import SimulatedSlurm

        return SimulatedSlurm(lab)


SLURM = SlurmJobs()

__all__ = ["SLURM", "SlurmJobs", "SlurmPlan"]
