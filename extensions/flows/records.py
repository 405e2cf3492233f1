"""The record of flows that were simulated."""

from __future__ import annotations

from typing import ClassVar

from ringlight.experiments.record.events import JobsComputed


class FlowsCompleted(JobsComputed, event="flows_completed"):
    """All flows of a run were sent. ``times_s``: completion time of each flow in the order of the file,
    emulated seconds."""

    times_s: list[float]

    metric: ClassVar[str] = "flow_time_median"
    limits: ClassVar[tuple[str, ...]] = (
        "Nothing is lost, and no congestion control slows a flow: links are shared max-min fair.",
    )
