"""``jobs: {trace: …}`` as a source of jobs: read, said, refused, and computed all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ringlight.experiments.language.job_sources import Files, Sourced
from ringlight.experiments.language.plan import EventPlan, RunPlan, Setting
from ringlight.experiments.language.text import at_key
from ringlight.extensions.cluster.language import (
    TraceSpec,
    jobs_of,
    planned,
    regroupings,
    trained,
)
from ringlight.extensions.cluster.plan import TracePlan, trace_of

#: Policies of a trace that an emulation has, the controller's own.
_EMULATED_POLICIES: Mapping[str, tuple[str, ...]] = {
    "queueing": ("first-come",),
    "placement": ("controller",),
    "light": ("none", "controller"),
}


class Traces:
    spec = TraceSpec

    def meant(self, written: Mapping[str, Any]) -> bool:
        return not written.keys().isdisjoint(("file", "generate"))

    def plan(
        self,
        spec: TraceSpec,
        setting: Setting,
        events: Sequence[EventPlan],
        files: Files,
    ) -> Sourced:
        plan = planned(spec, setting, events, files)
        if plan.trains is None:
            return Sourced(plan)
        with at_key("jobs.trace.trains"):
            jobs = trained(plan)
        return Sourced(plan, jobs, regroupings(plan, jobs))

    def document(self, plan: RunPlan) -> dict[str, Any]:
        """Return the jobs of a trace as the first run has them, and who decides about them."""
        trace = trace_of(plan)
        jobs = jobs_of(trace, trace.seed)
        return {
            "jobs": len(jobs),
            "largest_gpus": int(jobs.gpus.max()),
            "span_s": jobs.span_s,
            "load": jobs.load(trace.cluster.size),
            "changed": dict(jobs.counts),
            "policies": asdict(trace.policies),
        }

    def line(self, document: Mapping[str, Any]) -> str:
        policies, changed = document["policies"], document["changed"]
        counts = "".join(
            f", {why.replace('_', ' ')} {count:,}" for why, count in changed.items()
        )
        days, largest = document["span_s"] / 86_400, document["largest_gpus"]
        who = ", ".join(
            f"{key} {policies[key]}"
            for key in ("queueing", "placement", "light", "sharing")
        )
        return (
            f"trace: {document['jobs']:,} jobs of up to {largest} GPUs in {days:.1f} days, "
            f"load {document['load']:.2f}{counts}; {who}"
        )

    def refused(self, plan: RunPlan, *, simulated: bool) -> str | None:
        if simulated:
            return _not_replayed(plan)
        why = _only_replayed(trace_of(plan))
        return None if why is None else f"jobs.trace{why}"

    def batch(self, plan: RunPlan) -> Any:
        # Here, as a file is read much sooner than what replays it is imported.
        from ringlight.extensions.cluster.trace_runs import trace_run

        return trace_run(plan)


TRACES = Traces()


def _only_replayed(trace: TracePlan) -> str | None:
    """Return why a trace's jobs are not emulated, ``: reason`` or ``.key: reason``; None if they are."""
    if trace.trains is None:
        return ": weeks of a trace are only simulated"
    for key, known in _EMULATED_POLICIES.items():
        if (value := getattr(trace.policies, key)) not in known:
            return f".{key}: {value} is only simulated; emulated are {', '.join(known)}"
    if trace.faults is not None or trace.until_s is not None:
        return f".{'until' if trace.faults is None else 'faults'}: only simulated"
    return None


def _not_replayed(plan: RunPlan) -> str | None:
    """Return why a trace's run cannot be replayed, ``key: reason``; None if it can."""
    lost = {(loss.at_s, loss.gpu) for loss in trace_of(plan).lost}
    for event in plan.events:
        if event.do == "regroup" and event.when.granted is not None:
            # The policy's own.
            continue
        if event.target is None or (event.when.at_s, event.target.names[0]) not in lost:
            return (
                f"events.{event.name}: while a trace is replayed only GPUs are lost (do: lose, then: swap), "
                "at a time"
            )
    return None
