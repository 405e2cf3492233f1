"""Known causes of the difference between a job's times in the emulation and in the simulation, in seconds."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.carrying import (
    MEASURED,
    REFERENCE_PROCESSORS,
    left_by_tcp,
)
from ringlight.experiments.analysis.metrics.regroup import dark_intervals, light_window
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s, packet_view
from ringlight.experiments.language.light_events import moving_events
from ringlight.experiments.record.events import Iteration
from ringlight.experiments.record.lab_records import LinkRate, ProcessorLoad
from ringlight.experiments.record.light_records import Flow, StepSetUps
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.frames import ETHERNET_BYTES
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Hop
from ringlight.fabric.steps import Steps


@dataclass(frozen=True)
class Known:
    """Facts of the emulation that bear on a difference.

    ``links``: link rates that the emulation measured. ``reasons``: reasons of the emulation's verdict on
    itself. ``payload_share``: share of a link's rate that the simulation takes for payload.
    """

    links: Sequence[LinkRate]
    reasons: Sequence[Mapping[str, Any]]
    payload_share: float


def link_range(links: Iterable[LinkRate]) -> dict[str, float] | None:
    """Return the least, median and greatest ratio of a measured link rate to its setting; None if none was
    measured."""
    ratios = [link.measured_bps / link.set_bps for link in links]
    if not ratios:
        return None
    return {
        "least": min(ratios),
        "median": statistics.median(ratios),
        "most": max(ratios),
    }


def mean_of(jobs: Sequence[JobRun], of: Callable[[Iteration], float]) -> float:
    """Return the mean of a time over all iterations of all ranks, seconds."""
    return statistics.fmean(of(it) for job in jobs for it in job.iterations)


def series(job: JobRun) -> list[float]:
    """Return the seconds of each iteration of a job, on its slowest rank."""
    return [max(it.whole_s for it in ranks) for ranks in job.by_index]


def causes_of(
    ours: Sequence[Run], theirs: Run, job: str, known: Known
) -> dict[str, Any]:
    """Return the known causes of the difference in a job's times, by name.

    Seconds of an iteration by which the emulation is longer: ``gap_s`` in total, ``timers_s`` because compute
    timers woke late (on the iteration's slowest rank, for which the others wait), ``links_s`` because links
    gave less payload than the simulation takes, ``set_up_s`` because light came later, ``rest_s`` for other
    reasons.

    Parts of the rest, seconds: ``queues_s``: time that the steps of a collective wait in queues beyond their
    own time, if another job fills the queues, by TCP's own round trips. ``turns_s``: time that frames of the
    job wait for frames of other jobs on shared links. ``cold_s``: time by which the first all-reduce is
    longer than others, beyond the same in the simulation. ``work_s``: time that ranks work at each step of
    exchanges. ``bursts_s``: time by which light passes frames sooner than at its rate, below 0. ``events_s``:
    delay of events, by iteration. ``meetings_s``: time that other jobs took of the job's links during its
    all-reduces, beyond the same in the simulation.

    ``between_s``: seconds of a completion time outside iterations, on both sides: before the first iteration,
    and after a loss. ``met_s``: seconds of an all-reduce in which another job that shares a link all-reduced,
    on both sides. ``never``: events that took place in the simulation alone. ``light_s``: seconds of an
    iteration in which a rank waits for light (on a ring, all ranks), or None if light stays. ``light_by``:
    whether the agents or the controller switch light. ``dark_in``: iterations, counted from 1, in whose
    all-reduces moved light was dark. ``verdict``: reasons of the emulation's verdict on itself about links,
    and about processors during the run. ``contended``: whether there were other jobs in the run. ``busy``:
    mean busy share of the processors during the run.
    """
    real, ideal = [run.jobs[job] for run in ours], [theirs.jobs[job]]
    gap_s = mean_of(real, lambda it: it.whole_s) - mean_of(ideal, lambda it: it.whole_s)
    timers_s = _slowest_compute_s(real) - _slowest_compute_s(ideal)
    ends, links_s = _ends(theirs, ideal[0]), 0.0
    fabric = theirs.plan.setting.name
    near = (
        link
        for link in known.links
        if link.fabric == fabric and _joins(link.direction, ends)
    )
    held_up = link_range(near)
    if held_up is not None:
        share = known.payload_share * left_by_tcp(theirs.plan)
        links_s = mean_of(ideal, lambda it: it.all_reduce_s) * (
            share / held_up["median"] - 1
        )
    light = {"emulated": light_s(ours, job), "simulated": light_s([theirs], job)}
    set_up_s = (
        (light["emulated"] or 0.0) - (light["simulated"] or 0.0)
        if None not in light.values()
        else 0.0
    )
    busy = [
        load.busy
        for run in ours
        for load in run.of(ProcessorLoad)
        if load.t >= run.released
    ]
    again = sum(done.retransmits for record in real for done in record.done.values())
    here, there = _meetings(ours, job), _meetings([theirs], job)
    return {
        "gap_s": gap_s,
        "timers_s": timers_s,
        "links_s": links_s,
        "set_up_s": set_up_s,
        "rest_s": gap_s - timers_s - links_s - set_up_s,
        "queues_s": _queues_s(theirs, job, real) if len(theirs.jobs) > 1 else 0.0,
        "turns_s": _turns_s(theirs, job) if len(theirs.jobs) > 1 else 0.0,
        "cold_s": _cold_s(real) - _cold_s(ideal),
        "work_s": _work_s(theirs, job),
        "bursts_s": _bursts_s(theirs, job),
        "events_s": statistics.fmean(map(_late_s, ours)) / len(real[0].by_index),
        "between_s": {"emulated": _between_s(real), "simulated": _between_s(ideal)},
        "never": _never(ours, theirs),
        "met_s": {"emulated": here["met_s"], "simulated": there["met_s"]},
        "meetings_s": here["lost_s"] - there["lost_s"],
        "retransmits_per_rank_and_iteration": again
        / sum(len(record.iterations) for record in real),
        "light_s": light,
        "light_by": "controller"
        if theirs.derived(StepSetUps)
        else "agents"
        if theirs.of(Flow)
        else None,
        "busy": statistics.fmean(busy) if busy else None,
        "contended": len(theirs.jobs) > 1,
        "light_moved": light_moved(theirs),
        "dark_in": _dark_in(ours, theirs, job),
        "verdict": _of_itself(known.reasons, {run.name for run in ours}, fabric, ends),
    }


def _between_s(jobs: Sequence[JobRun]) -> float:
    """Return the mean seconds of a job's completion time outside its iterations."""
    return statistics.fmean((job.jct_s or 0.0) - sum(series(job)) for job in jobs)


def _meetings(runs: Sequence[Run], job: str) -> dict[str, float]:
    """Seconds of an all-reduce with others on its links, mean: ``met_s`` all of them, ``lost_s`` what the
    others had of them if each link gave all of its jobs equal parts."""
    meetings, count = {"met_s": 0.0, "lost_s": 0.0}, 0
    sharing, links = _share_links(runs[0], job), _links_taken(runs[0])
    for run in runs:
        other_spans = [
            (
                min(it.compute_end for it in ranks),
                max(it.allreduce_end for it in ranks),
                name,
            )
            for name, other in run.jobs.items()
            if name in sharing
            for ranks in other.by_index
        ]
        for it in run.jobs[job].iterations:
            count += 1
            there = [
                span
                for span in other_spans
                if span[0] < it.allreduce_end and span[1] > it.compute_end
            ]
            moments = {
                it.compute_end,
                it.allreduce_end,
                *(moment for span in there for moment in span[:2]),
            }
            inside = sorted(
                t for t in moments if it.compute_end <= t <= it.allreduce_end
            )
            for since, until in itertools.pairwise(inside):
                meeting = {
                    name
                    for begin, end, name in there
                    if begin <= since and end >= until
                }
                most = _most_on_a_link(links, job, meeting)
                meetings["met_s"] += (until - since) * bool(meeting)
                meetings["lost_s"] += (until - since) * most / (most + 1)
    return {what: total / count for what, total in meetings.items()}


def _most_on_a_link(
    links: Mapping[str, set[Port]], job: str, other_jobs: Collection[str]
) -> int:
    """Return the largest number of the other jobs on one link of the job; all of them if links are not
    known."""
    if job not in links:
        return len(other_jobs)
    users = Counter(link for name in other_jobs for link in links[name] & links[job])
    return max(users.values(), default=0)


def _queues_s(run: Run, job: str, real: Sequence[JobRun]) -> float:
    """Return the seconds of an all-reduce that its steps wait in queues beyond their own time at a NIC's
    rate.

    Half of the round trip that TCP measured is one way. A step shorter than that does not fill the queue by
    itself, and the next step waits for it.
    """
    plan = run.plan.job(job)
    if plan.training is None or plan.plane(run.plan.setting.fabric, real[0].gpus).sums:
        return 0.0
    steps = steps_named(plan.loop.collective, len(real[0].gpus)).steps
    if not steps:
        return 0.0
    step_s = ideal_all_reduce_s(run.plan.setting, plan, real[0].gpus) / steps
    there_s = (
        statistics.median(
            it.round_trip_s for record in real for it in record.iterations
        )
        / 2
    )
    return steps * max(0.0, there_s - step_s)


def _turns_s(run: Run, job: str) -> float:
    """Seconds of an all-reduce in which frames wait for one of each other pair of GPUs on a link.

    A simulation shares a link without ever making a frame wait. A link gives pairs their turns a frame long,
    so the last frame of what a rank waits for comes later by so much, at each link behind the first: once
    where ranks pass on what they have, and in each step of a schedule of exchanges. 0 where the job's bytes
    take no packet switches.
    """
    setting, steps_of, ways = run.plan.setting, _steps_of(run), _ways(run)
    if job not in ways:
        return 0.0
    users = Counter(
        hop.out for way_group in ways.values() for way in way_group for hop in way
    )
    frame_bits = 8 * (setting.frames.mtu_bytes + ETHERNET_BYTES) * setting.scale.rate
    waits_s = (
        sum((users[hop.out] - 1) * frame_bits / hop.rate_bps for hop in way[1:])
        for way in ways[job]
    )
    once_s, steps = max(waits_s, default=0.0), steps_of[job]
    return once_s * steps.steps if steps.step_by_step else once_s


def _cold_s(jobs: Sequence[JobRun]) -> float:
    """Return the mean seconds of an all-reduce by which the first is longer than the others; 0 of fewer
    than three."""
    excesses = []
    for job in jobs:
        every = [
            statistics.fmean(it.all_reduce_s for it in ranks) for ranks in job.by_index
        ]
        longer_s = every[0] - statistics.fmean(every[1:]) if len(every) > 2 else 0.0
        excesses.append(longer_s / len(every))
    return statistics.fmean(excesses)


def _work_s(run: Run, job: str) -> float:
    """Seconds of an all-reduce in which ranks work at a step while no link does, in a schedule of exchanges.

    All begin a step together, and share the processors of the machine on which the cost of a message was
    measured. 0 where ranks pass on what they have.
    """
    steps = _steps_of(run).get(job)
    if steps is None or not steps.step_by_step:
        return 0.0
    return steps.steps * steps.world_size * MEASURED.message / REFERENCE_PROCESSORS


def _bursts_s(run: Run, job: str) -> float:
    """Seconds, below 0, by which light alone passes the steps of an all-reduce sooner than at its rate.

    A link that was idle lets a frame pass at once. 0 over packet switches, each of which takes as long to
    have the whole frame.
    """
    plan, setting, gpus = run.plan.job(job), run.plan.setting, run.jobs[job].gpus
    steps = _steps_of(run).get(job)
    if steps is None or plan.plane(setting.fabric, gpus).sums or job in _ways(run):
        return 0.0
    chunks = Counter[int]()
    for step in steps:
        for source, count in zip(
            step.sources.tolist(), step.count.tolist(), strict=True
        ):
            chunks[source] += count
    ideal_s = ideal_all_reduce_s(setting, plan, gpus)
    if not chunks or not ideal_s:
        return 0.0
    rate_bps = (
        8 * plan.loop.gradient_bytes * max(chunks.values()) / steps.chunks / ideal_s
    )
    frame_bits = 8 * (setting.frames.mtu_bytes + ETHERNET_BYTES)
    return -frame_bits / rate_bps * (steps.steps if steps.step_by_step else 1)


def _steps_of(run: Run) -> dict[str, Steps]:
    """Return the steps of each job's collective; none if a job has no training, or transfers in stripes."""
    if any(run.plan.job(name).training is None for name in run.jobs):
        return {}
    try:
        return {
            name: steps_named(run.plan.job(name).loop.collective, len(other.gpus))
            for name, other in run.jobs.items()
        }
    except ValueError:
        return {}


def _ways(run: Run) -> dict[str, list[tuple[Hop, ...]]]:
    """Links that each job's bytes take from rank to rank; none where they take no packet switches."""
    fabric = run.plan.setting.fabric
    router = packet_view(fabric, run.circuits_before).router
    ways: dict[str, list[tuple[Hop, ...]]] = {}
    for name, steps in _steps_of(run).items():
        ends = {
            end
            for s in steps
            for end in zip(s.sources.tolist(), s.destinations.tolist(), strict=True)
        }
        gpus = run.jobs[name].gpus
        try:
            ways[name] = [
                router.path(gpus[source], gpus[destination])
                for source, destination in ends
            ]
        except ValueError:
            return {}
    return ways


def _links_taken(run: Run) -> dict[str, set[Port]]:
    """Return the links that each job's bytes take, by their port of departure; none if that is not known."""
    return {
        name: {hop.out for way in ways for hop in way}
        for name, ways in _ways(run).items()
    }


def _share_links(run: Run, job: str) -> set[str]:
    """Return the other jobs whose bytes take links in the directions that this job's do; all if that is
    unknown."""
    if len(run.jobs) == 1:
        return set()
    links = _links_taken(run)
    return {
        name
        for name in run.jobs
        if name != job and (not links or links[name] & links[job])
    }


def _late_s(run: Run) -> float:
    """Return the total seconds by which events came after the iterations that they waited for."""
    late_s = 0.0
    for action in run.later:
        when = action.plan.when
        if (
            when.job is None
            or not when.iteration
            or len(run.jobs[when.job].by_index) < when.iteration
        ):
            continue
        ranks = run.jobs[when.job].by_index[when.iteration - 1]
        late_s += max(0.0, action.begun - max(it.allreduce_end for it in ranks))
    return late_s


def _never(ours: Sequence[Run], theirs: Run) -> list[str]:
    """Return the events of the simulation that did not take place in every emulated run."""
    there = set.intersection(
        *({action.plan.name for action in run.actions} for run in ours)
    )
    return [
        action.plan.name for action in theirs.actions if action.plan.name not in there
    ]


def _dark_in(ours: Sequence[Run], theirs: Run, job: str) -> dict[str, list[int]]:
    """Iterations, from 1 on, in whose all-reduces light was dark that an event moved, for 1 % of its time.

    A simulated switch says when light goes. An emulated one does not, but the command takes it as long.
    """
    iterations: dict[str, set[int]] = {"emulated": set(), "simulated": set()}
    for action in theirs.later:
        dark = [since for _, since, _ in dark_intervals(action.result)]
        if action.plan.do not in moving_events() or not dark:
            continue
        command_s = min(dark) - light_window(action)[0]
        for side, runs in (("emulated", ours), ("simulated", [theirs])):
            for run in runs:
                for same in (
                    later for later in run.later if later.plan.name == action.plan.name
                ):
                    begin, end = light_window(same)
                    gone, least_s = begin + command_s, 0.01 * (end - begin)
                    iterations[side] |= {
                        number
                        for number, ranks in enumerate(run.jobs[job].by_index, 1)
                        for it in ranks
                        if min(it.allreduce_end, end) - max(it.compute_end, gone)
                        > least_s
                    }
    return {side: sorted(numbers) for side, numbers in iterations.items()}


def light_moved(run: Run) -> bool:
    """Return whether circuits changed while jobs trained."""
    return any(action.plan.do in moving_events() for action in run.later)


def _ends(run: Run, job: JobRun) -> set[str]:
    """The nodes whose links hold the job up.

    Those are the packet switches where the job's ring crosses from one to another (before a live regroup, as
    that takes most of the time), else the job's GPUs.
    """
    circuits = run.circuits_before if light_moved(run) else run.circuits
    switch_of = {
        gpu.partition(":")[0]: port.partition(":")[0] for gpu, port in circuits
    }
    crosses = len({switch_of.get(gpu) for gpu in job.gpus}) > 1
    return set(switch_of.values()) if crosses else set(job.gpus)


def _joins(direction: str, ends: set[str]) -> bool:
    """Return whether the direction of a measured link (``A to B``) has one of the nodes at an end."""
    return bool(ends & set(direction.split(" to ")))


def _of_itself(
    of_all: Iterable[Mapping[str, Any]], runs: set[str], fabric: str, ends: set[str]
) -> list[Mapping[str, Any]]:
    """Return the reasons of a run's verdict on itself: links at some nodes of a fabric, and processors in
    some runs."""
    return [
        reason
        for reason in of_all
        if (
            reason["code"] == "link_rate"
            and reason.get("fabric", fabric) == fabric
            and _joins(reason["direction"], ends)
        )
        or (reason["code"] == "processors_busy" and reason["run"] in runs)
    ]


def _slowest_compute_s(jobs: Sequence[JobRun]) -> float:
    """Return the mean seconds over iterations that an iteration's slowest rank computes."""
    return statistics.fmean(
        max(it.compute_s for it in ranks) for job in jobs for ranks in job.by_index
    )


def light_s(runs: Sequence[Run], job: str) -> float | None:
    """Return the mean seconds of an iteration in which a rank waits for light; None if the job's light is not
    switched.

    With an agent's flows: from the worker's request to the light, summed over all flows of a rank. On a ring:
    from the end of a step to the light of the next step, summed over all changes of an all-reduce.
    """
    waits = list[float]()
    for run in runs:
        gpus = run.jobs[job].gpus
        lit_times = (
            (flow.t_lit, flow.t_open) for flow in run.of(Flow) if flow.gpu in gpus
        )
        waits += [
            (light - wish) / len(gpus) for light, wish in lit_times if light is not None
        ]
        waits += [
            change["total_s"]
            for note in run.derived(StepSetUps)
            for change in note.set_ups
        ]
    return (
        sum(waits) / sum(len(run.jobs[job].by_index) for run in runs) if waits else None
    )
