"""Compare the simulation of a run with its emulation, and explain the difference. Pure functions.

The verdict of a run uses this module. All times are seconds of the emulation.
Differences are those of the simulated figure from the emulated figure, in per cent of the emulated figure.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.analysis.carrying import MEASURED, REFERENCE, REFERENCE_PROCESSORS, left_by_tcp
from ringlight.experiments.analysis.metrics import LIGHT
from ringlight.experiments.analysis.metrics.regroup import dark_intervals, light_window
from ringlight.experiments.analysis.prediction import ideal_all_reduce_s, packet_view
from ringlight.experiments.record.events import Flow, Iteration, LinkRate, ProcessorLoad, RingSetUps
from ringlight.experiments.record.runs import JobRun, Run
from ringlight.fabric.frames import ETHERNET_BYTES
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Hop
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.steps import Steps

#: An iteration, and the all-reduce alone, may differ by so much, per cent. The all-reduce is what is
#: simulated: in an iteration it stands beside computing, which both sides merely wait for.
LIMIT_PERCENT = 10.0
JUDGED = ("iteration_s", "allreduce_s")
#: All figures that are compared, with what each is called.
FIGURES = {"allreduce_s": "all-reduce", "iteration_s": "iteration", "completion_s": "completion"}
#: Iterations closer than this, with all-reduces closer than that: nothing is called off.
AGREE_PERCENT, AGREE_ALL_REDUCE_PERCENT = 1.0, 5.0
#: Beyond how much, per cent, a figure is not that of the simulation: its reach (docs/simulation.md).
REACH_PERCENT = {"allreduce_s": 5.0, "iteration_s": 5.0, "completion_s": 5.0}
#: Segments sent again by a rank in an iteration from which on TCP is named as a cause.
MANY_RETRANSMITS = 0.5

Entry = dict[str, Any]


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
    return {"least": min(ratios), "median": statistics.median(ratios), "most": max(ratios)}


def mean_of(jobs: Sequence[JobRun], of: Callable[[Iteration], float]) -> float:
    """Return the mean of a time over all iterations of all ranks, seconds."""
    return statistics.fmean(of(it) for job in jobs for it in job.iterations)


def _pair(emulated: float, simulated: float) -> dict[str, float]:
    difference = 100 * (simulated / emulated - 1) if emulated > 0 else 0.0
    return {"emulated": emulated, "simulated": simulated, "difference_percent": difference}


def compared(ours: Sequence[Run], theirs: Run, job: str, known: Known) -> Entry:
    """Return a job's figures on both sides, the ``causes`` of differences, which side is ``off``, and
    ``why``.

    ``ours``: emulated repetitions of the run ``theirs``. The job must have succeeded and have iterations in
    all runs.
    """
    real, ideal = [run.jobs[job] for run in ours], [theirs.jobs[job]]
    completion = (statistics.fmean(run_job.jct_s or 0.0 for run_job in jobs) for jobs in (real, ideal))
    entry: Entry = {
        "iteration_s": _pair(*(mean_of(jobs, lambda it: it.whole_s) for jobs in (real, ideal))),
        "allreduce_s": _pair(*(mean_of(jobs, lambda it: it.all_reduce_s) for jobs in (real, ideal))),
        "completion_s": _pair(*completion),
        "causes": _causes(ours, theirs, job, known),
    }
    entry["off"] = which_is_off(entry)
    entry["why"] = reasons(entry)
    return entry


def series(job: JobRun) -> list[float]:
    """Return the seconds of each iteration of a job, on its slowest rank."""
    return [max(it.whole_s for it in ranks) for ranks in job.by_index]


def _causes(ours: Sequence[Run], theirs: Run, job: str, known: Known) -> dict[str, Any]:
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
    near = (link for link in known.links if link.fabric == fabric and _joins(link.direction, ends))
    held_up = link_range(near)
    if held_up is not None:
        share = known.payload_share * left_by_tcp(theirs.plan)
        links_s = mean_of(ideal, lambda it: it.all_reduce_s) * (share / held_up["median"] - 1)
    light = {"emulated": light_s(ours, job), "simulated": light_s([theirs], job)}
    set_up_s = (light["emulated"] or 0.0) - (light["simulated"] or 0.0) if None not in light.values() else 0.0
    busy = [load.busy for run in ours for load in run.of(ProcessorLoad) if load.t >= run.released]
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
        "retransmits_per_rank_and_iteration": again / sum(len(record.iterations) for record in real),
        "light_s": light,
        "light_by": "controller" if theirs.of(RingSetUps) else "agents" if theirs.of(Flow) else None,
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
            (min(it.compute_end for it in ranks), max(it.allreduce_end for it in ranks), name)
            for name, other in run.jobs.items()
            if name in sharing
            for ranks in other.by_index
        ]
        for it in run.jobs[job].iterations:
            count += 1
            there = [span for span in other_spans if span[0] < it.allreduce_end and span[1] > it.compute_end]
            moments = {it.compute_end, it.allreduce_end, *(moment for span in there for moment in span[:2])}
            inside = sorted(t for t in moments if it.compute_end <= t <= it.allreduce_end)
            for since, until in itertools.pairwise(inside):
                meeting = {name for begin, end, name in there if begin <= since and end >= until}
                most = _most_on_a_link(links, job, meeting)
                meetings["met_s"] += (until - since) * bool(meeting)
                meetings["lost_s"] += (until - since) * most / (most + 1)
    return {what: total / count for what, total in meetings.items()}


def _most_on_a_link(links: Mapping[str, set[Port]], job: str, other_jobs: Collection[str]) -> int:
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
    there_s = statistics.median(it.round_trip_s for record in real for it in record.iterations) / 2
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
    users = Counter(hop.out for way_group in ways.values() for way in way_group for hop in way)
    frame_bits = 8 * (setting.frames.mtu_bytes + ETHERNET_BYTES) * setting.scale.rate
    waits_s = (sum((users[hop.out] - 1) * frame_bits / hop.rate_bps for hop in way[1:]) for way in ways[job])
    once_s, steps = max(waits_s, default=0.0), steps_of[job]
    return once_s * steps.steps if steps.step_by_step else once_s


def _cold_s(jobs: Sequence[JobRun]) -> float:
    """Return the mean seconds of an all-reduce by which the first is longer than the others; 0 of fewer
    than three."""
    excesses = []
    for job in jobs:
        every = [statistics.fmean(it.all_reduce_s for it in ranks) for ranks in job.by_index]
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
        for source, count in zip(step.sources.tolist(), step.count.tolist(), strict=True):
            chunks[source] += count
    ideal_s = ideal_all_reduce_s(setting, plan, gpus)
    if not chunks or not ideal_s:
        return 0.0
    rate_bps = 8 * plan.loop.gradient_bytes * max(chunks.values()) / steps.chunks / ideal_s
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
        ends = {end for s in steps for end in zip(s.sources.tolist(), s.destinations.tolist(), strict=True)}
        gpus = run.jobs[name].gpus
        try:
            ways[name] = [router.path(gpus[source], gpus[destination]) for source, destination in ends]
        except ValueError:
            return {}
    return ways


def _links_taken(run: Run) -> dict[str, set[Port]]:
    """Return the links that each job's bytes take, by their port of departure; none if that is not known."""
    return {name: {hop.out for way in ways for hop in way} for name, ways in _ways(run).items()}


def _share_links(run: Run, job: str) -> set[str]:
    """Return the other jobs whose bytes take links in the directions that this job's do; all if that is
    unknown."""
    if len(run.jobs) == 1:
        return set()
    links = _links_taken(run)
    return {name for name in run.jobs if name != job and (not links or links[name] & links[job])}


def _late_s(run: Run) -> float:
    """Return the total seconds by which events came after the iterations that they waited for."""
    late_s = 0.0
    for action in run.later:
        when = action.plan.when
        if when.job is None or not when.iteration or len(run.jobs[when.job].by_index) < when.iteration:
            continue
        ranks = run.jobs[when.job].by_index[when.iteration - 1]
        late_s += max(0.0, action.begun - max(it.allreduce_end for it in ranks))
    return late_s


def _never(ours: Sequence[Run], theirs: Run) -> list[str]:
    """Return the events of the simulation that did not take place in every emulated run."""
    there = set.intersection(*({action.plan.name for action in run.actions} for run in ours))
    return [action.plan.name for action in theirs.actions if action.plan.name not in there]


def _dark_in(ours: Sequence[Run], theirs: Run, job: str) -> dict[str, list[int]]:
    """Iterations, from 1 on, in whose all-reduces light was dark that an event moved, for 1 % of its time.

    A simulated switch says when light goes. An emulated one does not, but the command takes it as long.
    """
    iterations: dict[str, set[int]] = {"emulated": set(), "simulated": set()}
    for action in theirs.later:
        dark = [since for _, since, _ in dark_intervals(action.result)]
        if action.plan.do not in LIGHT or not dark:
            continue
        command_s = min(dark) - light_window(action)[0]
        for side, runs in (("emulated", ours), ("simulated", [theirs])):
            for run in runs:
                for same in (later for later in run.later if later.plan.name == action.plan.name):
                    begin, end = light_window(same)
                    gone, least_s = begin + command_s, 0.01 * (end - begin)
                    iterations[side] |= {
                        number
                        for number, ranks in enumerate(run.jobs[job].by_index, 1)
                        for it in ranks
                        if min(it.allreduce_end, end) - max(it.compute_end, gone) > least_s
                    }
    return {side: sorted(numbers) for side, numbers in iterations.items()}


def light_moved(run: Run) -> bool:
    """Return whether circuits changed while jobs trained."""
    return any(action.plan.do in LIGHT for action in run.later)


def _ends(run: Run, job: JobRun) -> set[str]:
    """The nodes whose links hold the job up.

    Those are the packet switches where the job's ring crosses from one to another (before a live regroup, as
    that takes most of the time), else the job's GPUs.
    """
    circuits = run.circuits_before if light_moved(run) else run.circuits
    switch_of = {gpu.partition(":")[0]: port.partition(":")[0] for gpu, port in circuits}
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
    return statistics.fmean(max(it.compute_s for it in ranks) for job in jobs for ranks in job.by_index)


def light_s(runs: Sequence[Run], job: str) -> float | None:
    """Return the mean seconds of an iteration in which a rank waits for light; None if the job's light is not
    switched.

    With an agent's flows: from the worker's request to the light, summed over all flows of a rank. On a ring:
    from the end of a step to the light of the next step, summed over all changes of an all-reduce.
    """
    waits = list[float]()
    for run in runs:
        gpus = run.jobs[job].gpus
        lit_times = ((flow.t_lit, flow.t_open) for flow in run.of(Flow) if flow.gpu in gpus)
        waits += [(light - wish) / len(gpus) for light, wish in lit_times if light is not None]
        waits += [change["total_s"] for note in run.of(RingSetUps) for change in note.set_ups]
    return sum(waits) / sum(len(run.jobs[job].by_index) for run in runs) if waits else None


def which_is_off(entry: Mapping[str, Any]) -> str:
    """Return ``neither``, ``emulation`` or ``simulation``: the side with the greater part of the difference.

    The emulation's part: links and timers below the scenario's settings, and the time of kernel, software
    switches, workers and agents, which share this machine's processors and stand for hardware. The
    simulation's part: TCP and the controller, which the scenario has and the simulation leaves out. An
    emulation whose own verdict blames links or processors is off.
    """
    near = zip(JUDGED, (AGREE_PERCENT, AGREE_ALL_REDUCE_PERCENT), strict=True)
    if all(abs(entry[figure]["difference_percent"]) < most for figure, most in near):
        return "neither"
    causes = entry["causes"]
    of_simulation = {
        "rest_s": causes["rest_s"] < 0 or _names_what_is_left_out(causes),
        "set_up_s": causes["light_by"] == "controller",
    }
    simulations = sum(causes[part] for part, its in of_simulation.items() if its)
    emulations = sum(causes[part] for part, its in of_simulation.items() if not its)
    emulations += causes["timers_s"] + causes["links_s"]
    return "emulation" if causes["verdict"] or abs(emulations) > abs(simulations) else "simulation"


def _names_what_is_left_out(causes: Mapping[str, Any]) -> bool:
    """Return whether TCP or the controller contributed to a difference that is not explained otherwise."""
    return bool(causes["retransmits_per_rank_and_iteration"] >= MANY_RETRANSMITS or causes["light_moved"])


def reasons(entry: Mapping[str, Any]) -> list[str]:
    """Return the reasons for the difference, as far as the runs show them.

    The reasons are sentences without a full stop, the weightiest first.
    """
    if entry["off"] == "neither":
        return ["they agree"]
    causes = entry["causes"]
    whats = {
        "timers_s": "compute timers that woke late",
        "links_s": "links that carried less payload than the simulation takes (acknowledgements)",
        "set_up_s": _waited(causes),
        "rest_s": _rest(causes),
    }
    weighty = [part for part in whats if abs(causes[part]) >= 0.05 * abs(causes["gap_s"])]
    weighty.sort(key=lambda part: -abs(causes[part]))
    sentences = [f"{signed(1000 * causes[part])} ms from {whats[part]}" for part in weighty]
    return [
        *sentences,
        *(f"the emulation says of itself: {reason['text']}" for reason in causes["verdict"][:2]),
    ]


def signed(value: float) -> str:
    """Return a number as text with its sign, one decimal and a proper minus."""
    return f"{value:+.1f}".replace("-", "−")


def _waited(causes: Mapping[str, Any]) -> str:
    """Return a phrase on how long ranks waited for light."""
    emulated_s, simulated_s = (causes["light_s"][side] or 0.0 for side in ("emulated", "simulated"))
    by = " (the controller's own time is not)" if causes["light_by"] == "controller" else ""
    return (
        f"light that was longer in coming: {1000 * emulated_s:.1f} ms of an iteration are spent "
        f"waiting for it, simulated {1000 * simulated_s:.1f} ms{by}"
    )


def _rest(causes: Mapping[str, Any]) -> str:
    """Explain the rest of a difference that neither timers nor links cause."""
    if causes["rest_s"] < 0:
        if causes["contended"]:
            return _met(causes)
        return "what the simulation makes wait and the emulation does not"
    again = causes["retransmits_per_rank_and_iteration"]
    parts = []
    if again >= MANY_RETRANSMITS:
        parts.append(
            f"TCP ({again:.1f} segments sent again by each rank in an iteration): pauses after a loss, and "
            "rates about the fair share, of which the lowest sets the pace of a collective"
        )
    if causes["light_moved"]:
        parts.append("the controller's own time and TCP's recovery when light is moved")
    if not parts:
        busy = "" if causes["busy"] is None else f" (processors {100 * causes['busy']:.0f} % busy on average)"
        parts.append(f"kernel, software switches and workers, whose time is not simulated{busy}")
    return " and ".join(parts)


def _met(causes: Mapping[str, Any]) -> str:
    """Return a phrase on how long a job's all-reduces met those of other jobs."""
    emulated_s, simulated_s = (causes["met_s"][side] for side in ("emulated", "simulated"))
    return (
        "what is neither a timer nor a link: jobs that share links all-reduced during "
        f"{1000 * emulated_s:.0f} ms of an all-reduce, simulated {1000 * simulated_s:.0f} ms"
    )


def _iterations(numbers: Sequence[int] | None) -> str:
    return f"iteration {' and '.join(map(str, numbers))}" if numbers else "no iteration"


def _pauses(entry: Mapping[str, Any]) -> str | None:
    """The pauses between iterations, if a completion time is beyond reach and most of its difference is
    theirs."""
    completion, between = entry["completion_s"], entry["causes"].get("between_s")
    if between is None or abs(completion["difference_percent"]) <= REACH_PERCENT["completion_s"]:
        return None
    whole_s = completion["emulated"] - completion["simulated"]
    pauses_s = between["emulated"] - between["simulated"]
    if abs(pauses_s) < abs(whole_s) / 2 or pauses_s * whole_s < 0:
        return None
    return (
        f"pauses between iterations, as after a loss: {between['emulated']:.3g} s, "
        f"simulated {between['simulated']:.3g} s"
    )


def cause_of(entry: Mapping[str, Any]) -> str | None:
    """Return the cause of half of the difference, in words; None if the run itself shows no such cause.

    Late timers, slow links, late light and late events are measured. So are waits in queues that another job
    fills, segments that TCP sent again, all-reduces during which light moved, and a run's verdict against
    itself. Waits for turns follow from the run's plan. That kernel and workers take time is known, but not
    how much.
    """
    causes = entry["causes"]
    gap_s = causes["gap_s"]
    if causes["verdict"]:
        return str(causes["verdict"][0].get("text", causes["verdict"][0]["code"]))
    if never := causes.get("never"):
        return f"what did not come about: {', '.join(never)}"
    if pauses := _pauses(entry):
        return pauses
    if causes.get("events_s", 0.0) >= abs(gap_s) / 2:
        return f"an event that came late ({1000 * causes['events_s']:.0f} ms by iteration)"
    emulated, simulated = (causes.get("dark_in", {}).get(side) for side in ("emulated", "simulated"))
    if emulated != simulated:
        return (
            f"moved light, which met the all-reduce of {_iterations(emulated)}, "
            f"and of {_iterations(simulated)} in the simulation"
        )
    parts = {
        "late timers": causes["timers_s"],
        "slow links": causes["links_s"],
        "late light": causes["set_up_s"],
    }
    # A wait in queues is one for turns, too: the larger counts.
    queues_s, turns_s = causes.get("queues_s", 0.0), causes.get("turns_s", 0.0)
    if queues_s >= turns_s:
        parts["steps that wait in queues which another job fills"] = queues_s
    else:
        parts["frames that wait for their turns on shared links"] = turns_s
    parts["all-reduces that met those of other jobs for another time"] = causes.get("meetings_s", 0.0)
    parts[f"the work of all ranks at each step, by costs measured on {REFERENCE}"] = causes.get("work_s", 0.0)
    parts["connections that are cold in the first all-reduce"] = causes.get("cold_s", 0.0)
    parts["frames that a link passes at once after a pause"] = causes.get("bursts_s", 0.0)
    # An event that comes late may be a loss or a gain.
    parts["an event that came late"] = math.copysign(causes.get("events_s", 0.0), gap_s)
    helping = {name: part for name, part in parts.items() if part * gap_s > 0}
    if abs(sum(helping.values())) >= abs(gap_s) / 2 <= abs(sum(parts.values())):
        largest = sorted(helping, key=lambda name: -abs(helping[name]))[:2]
        return " and ".join(f"{name} ({1000 * abs(helping[name]):.0f} ms)" for name in largest)
    again = causes["retransmits_per_rank_and_iteration"]
    if again >= MANY_RETRANSMITS:
        return f"{again:.1f} segments that TCP sent again, by each rank in an iteration"
    return None
