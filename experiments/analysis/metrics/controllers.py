"""Packet switches whose tables another controller writes: when it had followed the light."""

from __future__ import annotations

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.metrics.regroup import (
    beacon_gaps,
    light_window,
    moves_light,
    stalls,
)
from ringlight.experiments.record.runs import Action


@metric("s", of="event")
def followed(context: Context, action: Action) -> float | None:
    """From the end of a change of circuits until packets of all jobs passed switches of other controllers.

    Return the seconds to the latest end of a silence of beacons, or of a stall of an all-reduce, that began
    before light had moved; 0 if all had ended by then. None without such switches, if no light moved under
    jobs, or if no job could notice.
    """
    run = context.run
    if not run.plan.setting.fabric.foreign_switches or not moves_light(context, action):
        return None
    begin, end = light_window(action)
    back = [gap["t_end"] for gap in beacon_gaps(run, action)]
    back += [last for _, last in stalls(run, begin, end)]
    sees = any(
        job.iterations or (job.plan.beacon_s and job.done) for job in run.jobs.values()
    )
    return max([0.0, *(t - end for t in back)]) if sees else None
