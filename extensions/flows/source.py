"""``jobs: {flows: …}`` as a source of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringlight.experiments.language.job_sources import Files, Sourced
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, Setting
from ringlight.experiments.language.workloads import emulated
from ringlight.extensions.flows.language import FlowsSpec
from ringlight.extensions.flows.plan import JOB, FlowsPlan, flows_of
from ringlight.extensions.flows.rotors import slotted_rotors
from ringlight.extensions.flows.workload import gpus_of, workload_of
from ringlight.fabric.units import format_size

#: Most flows that workers send.
MOST_EMULATED = 256


class FlowJobs:
    """Flows of a file: computed together in a simulation, and one job of workers in an emulation."""

    spec = FlowsSpec

    def meant(self, written: Mapping[str, Any]) -> bool:
        """Return whether a section names a file of flows."""
        return "file" in written

    def plan(
        self,
        spec: FlowsSpec,
        setting: Setting,
        events: Sequence[EventPlan],
        files: Files,
    ) -> Sourced:
        """Return the flows of a run, and the job that sends them. Raises ValueError."""
        if events:
            raise ValueError(
                f"events.{events[0].name}: nothing is made to happen while flows of a file are sent"
            )
        plan = spec.plan(setting, files)
        slotted_rotors(setting.fabric, plan.transport)
        few = len(plan.flows) <= MOST_EMULATED
        if not few or "interconnect" in setting.fabric.parts:
            return Sourced(plan)
        return Sourced(plan, (_job(plan, setting),))

    def document(self, plan: RunPlan) -> dict[str, Any]:
        """Return the number of flows, their bytes, and the seconds from the first to the last start."""
        flows = flows_of(plan).flows
        starts_s = [flow.start_s for flow in flows]
        return {
            "flows": len(flows),
            "bytes": sum(flow.size_bytes for flow in flows),
            "span_s": max(starts_s) - min(starts_s),
        }

    def line(self, document: Mapping[str, Any]) -> str:
        """Return the document as a line."""
        size, span_s = format_size(document["bytes"]), document["span_s"]
        return f"{document['flows']:,} flows of {size} in all, which start within {span_s:.3g} s"

    def refused(self, plan: RunPlan, *, simulated: bool) -> str | None:
        """Return why workers cannot send the flows; None if they can."""
        if simulated:
            return None
        if "interconnect" in plan.setting.fabric.parts:
            return "jobs.flows: over rotors they are only simulated"
        count = len(flows_of(plan).flows)
        if count > MOST_EMULATED:
            return (
                f"jobs.flows.file: {count:,} flows; workers send up to {MOST_EMULATED}"
            )
        return None

    def batch(self, plan: RunPlan) -> Any:
        """Return the run as data."""
        from ringlight.extensions.flows.runs import flows_run

        return flows_run(plan)


def _job(plan: FlowsPlan, setting: Setting) -> JobPlan:
    gpus = gpus_of(plan.flows, setting.fabric.gpus)
    workload = emulated(workload_of(plan.flows, gpus), setting.scale)
    return JobPlan(JOB, "Flows", gpus, len(gpus), iterations=1, workload=workload)


FLOWS = FlowJobs()
