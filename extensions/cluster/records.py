"""Records of a trace that was replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar

from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import JobsComputed, Record
from ringlight.extensions.cluster.plan import trace_of


class TraceReplayed(JobsComputed, event="trace_replayed"):
    """A trace was replayed on a cluster. ``figures`` by name. ``dropped``: number of jobs that were left out or
    changed, by reason. ``curves``: values of distributions at equal steps of their share. ``course``: shares of
    all GPUs over time ``t``, and waiting jobs. ``classes``: jobs by size. ``leaves``: GPUs of each switch.
    ``seen``: at some moments, the GPUs of each job on each switch (job, switch, GPUs). ``jobs``: for emulated
    jobs, by name, the times of arrival, of getting GPUs, of beginning and of ending; None for a time that did
    not occur."""

    figures: Mapping[str, float | None]
    dropped: Mapping[str, int]
    curves: Mapping[str, list[float]]
    course: Mapping[str, list[float]]
    classes: list[Mapping[str, Any]]
    leaves: list[int]
    seen: list[list[Any]] = field(default_factory=list)
    jobs: Mapping[str, list[float | None]] = field(default_factory=dict)

    metric: ClassVar[str] = "completion_mean"
    limits: ClassVar[tuple[str, ...]] = (
        "A trace does not record how much jobs send, nor when: the file assumes it (<code>sends</code>).",
        "Durations are assumed to be at ideal speed. A job has one rate, that of its slowest flow.",
        "Links are shared max-min fair, and packets spread evenly over them: no TCP, no queues, no loss.",
        "A moved fibre costs its job the dark time, and nothing else.",
    )

    def held(self, plan: RunPlan, begin: float) -> dict[str, Any]:
        """Return the GPUs of each leaf that are held at some moments, with the number of jobs that hold them,
        and the course of the share of all GPUs."""
        names, held = trace_of(plan).cluster.names, []
        for t, jobs in self.seen:
            by_leaf: dict[str, list[int]] = {}
            for _, leaf, gpus in jobs:
                of = by_leaf.setdefault(names[leaf], [0, 0])
                of[0], of[1] = of[0] + gpus, of[1] + 1
            held.append({"t": t - begin, "held": by_leaf})
        course = {
            "t": [t - begin for t in self.course["t"]],
            "held": list(self.course["held"]),
        }
        return {
            "held": held,
            "course": course,
            "span": [0.0, max(course["t"], default=0.0)],
        }


def replay_in(records: Iterable[Record]) -> TraceReplayed | None:
    """Return the replay among records; None if there is none."""
    return next(
        (record for record in records if isinstance(record, TraceReplayed)), None
    )
