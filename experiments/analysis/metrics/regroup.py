"""Measure the cost of moving light under running jobs.

The blackout is the worst of three observations: the longest silence of UDP beacons between two ranks of which
at least one was moved; the longest time for which an optical switch reports a moved cross-connect dark. The
third is the longest time in which no byte of an all-reduce moved at some rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.experiments.analysis.metrics import Context, metric
from ringlight.experiments.analysis.statistics import median
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.runs import Action, JobRun, Run
from ringlight.fabric.parts import Port


def moved_gpus(regroup: Mapping[str, Any]) -> set[str]:
    """Return the names of the GPUs whose fibres a regroup moves."""
    return {
        Port.parse(move["gpu"]).node
        for move in (regroup.get("plan") or {}).get("moves", ())
    }


def relit_gpus(run: Run, action: Action) -> set[str]:
    """Return the names of GPUs at circuits that an event sets or removes, compared with those of the
    start."""
    if action.plan.do != "circuits":
        return set()
    before, after = (
        {frozenset(map(Port.parse, pair)) for pair in circuits}
        for circuits in (run.circuits_before, action.plan.circuits)
    )
    return {
        end.node for pair in before ^ after for end in pair
    } & run.plan.setting.fabric.gpus.keys()


def phases(regroup: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return (phase, time at which it was reached) of a regroup, in order; seconds on the lab's clock."""
    entries = (
        (entry["phase"], float(entry["t"])) for entry in regroup.get("timeline") or ()
    )
    return sorted(entries, key=lambda entry: entry[1])


def window(action: Action) -> tuple[float, float]:
    """Return begin and end of an event, seconds on the lab's clock; from the event's result if possible."""
    times = [t for _, t in phases(action.result)]
    if times:
        return min(times), max(times)
    begin, end = (action.result.get(name) for name in ("t_done", "t_back"))
    begin = action.begun if begin is None else float(begin)
    return begin, float(end or action.ended or begin)


def light_window(action: Action) -> tuple[float, float]:
    """Return the time of the command that removes light and of the end of a regroup, seconds on the lab's
    clock."""
    begin, end = window(action)
    return dict(phases(action.result)).get("remove_light", begin), end


def dark_intervals(regroup: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (cross-connect, dark from, lit again) of every cross-connect that was made.

    The times, in seconds, are those that the driver of the optical switch reports. Empty if nothing is
    reported.
    """
    return [
        (
            f"{switch} {entry['ingress']}→{entry['egress']}",
            entry["t_dark"],
            entry["t_lit"],
        )
        for switch, results in (regroup.get("results") or {}).items()
        for entry in results
        if entry.get("t_dark") is not None and entry.get("t_lit") is not None
    ]


def beacon_gaps(run: Run, action: Action) -> list[dict[str, Any]]:
    """Return the silences of beacons from or to a moved GPU while light moved, longest first."""
    moved, (begin, end) = (
        moved_gpus(action.result) | relit_gpus(run, action),
        light_window(action),
    )
    gaps = []
    for job in run.jobs.values():
        for rank, done in job.done.items():
            for gap in done.beacon_gaps or ():
                pair = (job.gpus[gap["peer"]], job.gpus[rank])
                if (
                    moved & set(pair)
                    and gap["t_end"] >= begin
                    and gap["t_start"] <= end
                ):
                    times = {"t_start": gap["t_start"], "t_end": gap["t_end"]}
                    gaps.append(
                        {"job": job.name, "from": pair[0], "to": pair[1], **times}
                    )
    return sorted(gaps, key=lambda gap: gap["t_start"] - gap["t_end"])


def moves_light(context: Context, action: Action) -> bool:
    """Return whether the event moved light while jobs ran."""
    return action.plan.do in moving_events() and action.begun > context.run.released


def stalls(run: Run, begin: float, end: float) -> list[tuple[float, float]]:
    """Return begin and end, seconds, of the stalls of all-reduces that were in progress between two
    moments."""
    every = (
        stall
        for job in run.jobs.values()
        for it in job.iterations
        for stall in it.stalls
    )
    return [(first, last) for first, last in every if last > begin and first < end]


_TOOK = {
    "reconfiguration": "From the request to change circuits to the end of the change",
    "away": "From the kill of a process until it is back",
}


@metric("s", of="event", makes=_TOOK)
def took(_: Context, action: Action) -> Mapping[str, float]:
    """Return the seconds that an event took, by metric; empty if the event failed or has not ended."""
    name = (
        "reconfiguration"
        if action.plan.do in moving_events()
        else "away"
        if action.plan.do == "kill"
        else ""
    )
    begin, end = window(action)
    return (
        {name: end - begin}
        if name and action.ended is not None and action.error is None
        else {}
    )


@metric("count", of="event")
def fibres_moved(_: Context, action: Action) -> int | None:
    """GPUs whose fibre was moved.

    Return the count; None if the event has no plan.
    """
    return len(action.result["plan"]["moves"]) if "plan" in action.result else None


@metric("s", of="event")
def light_off(_: Context, action: Action) -> float | None:
    """From the command to remove circuits until the new circuits are confirmed.

    Return seconds; None if one of these phases was not reached. The time is an upper bound of the dark time
    on the wire, except for the re-training of receivers.
    """
    reached = dict(phases(action.result))
    if "remove_light" not in reached or "light_added" not in reached:
        return None
    return reached["light_added"] - reached["remove_light"]


_BLACKOUT = {
    "beacon_gap": "Longest silence of beacons (short test packets) from or to a moved GPU while circuits moved; "
    "0 if below 20 ms",
    "wire_dark": "Longest time that an optical switch reports a moved cross-connect dark",
    "tcp_stall": "Longest time without a byte of an all-reduce at a rank while circuits moved",
    "blackout": "Longest of `beacon_gap`, `wire_dark` and `tcp_stall`",
}


@metric("s", of="event", makes=_BLACKOUT)
def blackout(context: Context, action: Action) -> Mapping[str, float]:
    """Return the effects of moving light on running jobs, seconds by metric, measured in three ways.

    The dark time of a wire is returned whether jobs ran or not.
    """
    run, seen = context.run, {}
    if dark := dark_intervals(action.result):
        seen["wire_dark"] = max(lit_s - off for _, off, lit_s in dark)
    if not moves_light(context, action):
        return seen
    begin, end = light_window(action)
    touched = (last - max(first, begin) for first, last in stalls(run, begin, end))
    if any(job.iterations for job in run.jobs.values()):
        seen["tcp_stall"] = max(touched, default=0.0)
    if any(job.plan.beacon_s and job.done for job in run.jobs.values()):
        gaps = beacon_gaps(run, action)
        seen["beacon_gap"] = (
            float(gaps[0]["t_end"] - gaps[0]["t_start"]) if gaps else 0.0
        )
    return seen | {"blackout": max(seen.values())} if seen else {}


@metric("s", of="event")
def tcp_stall_usual(context: Context, action: Action) -> float | None:
    """TCP stall in earlier iterations, without a change of circuits: median of their longest.

    Return seconds; 0 without earlier iterations, None if no light moved under training jobs.
    """
    if not moves_light(context, action) or not any(
        job.iterations for job in context.run.jobs.values()
    ):
        return None
    begin, _ = window(action)
    groups = (group for job in context.run.jobs.values() for group in job.by_index)
    before = (
        [it.max_stall_s for it in group if it.allreduce_end < begin] for group in groups
    )
    return median(max(longest) for longest in before if longest) or 0.0


@metric("s", of="event", known="analytic")
def dark_declared(context: Context, action: Action) -> float | None:
    """Longest time that the optical switches declare themselves dark.

    Return seconds; None if the event does not move light or there is no optical switch.
    """
    if action.plan.do not in moving_events():
        return None
    setting = context.run.plan.setting
    switches = setting.fabric.optical_switches.values()
    profiles = (switch.device.dilated(setting.scale.time) for switch in switches)
    return max((profile.dark_bounds_s()[2] for profile in profiles), default=None)


_PREDICTED = {
    "iteration_predicted_before": "Iteration time by the model with the circuits before the event",
    "iteration_predicted_after": "Iteration time by the model with the circuits after the event",
}


@metric("s", of="event job", known="analytic", makes=_PREDICTED)
def iteration_predicted(
    context: Context, action: Action, job: JobRun
) -> Mapping[str, float]:
    """Return iteration times predicted before and after the regroup, seconds by metric, with all jobs that
    had GPUs then.

    Empty unless light was moved exactly once: only then the light before and after is known.
    """
    run = context.run
    gpus = {
        name: other.gpus
        for name, other in run.jobs.items()
        if _has_gpus(other, action.begun)
    }
    once = (
        sum(other_action.plan.do in moving_events() for other_action in run.actions)
        == 1
    )
    if not moves_light(context, action) or not once or not all(gpus.values()):
        return {}
    times = {}
    for name, before in zip(_PREDICTED, (True, False), strict=True):
        if model := context.predict(gpus, before=before).get(job.name):
            times[name] = model.jct_s / job.plan.iterations
    return times


def _has_gpus(job: JobRun, t: float) -> bool:
    """Return whether a job had its GPUs at a moment."""
    return (job.granted is None or job.granted <= t) and (
        job.end is None or job.end > t
    )
