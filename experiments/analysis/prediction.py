"""Predict the times of the jobs of a run plan by analytic models, for comparison with the times they took.

Over packet switches, jobs with a ring all-reduce share links by the all-send model of ``fabric.cost``, which
bounds the time neither way. Other collectives, and those on light of their own, take their steps one after
another, each job as if alone. Collectives whose ranks pass on parts of chunks take as long as the busiest
link. The models know nothing of jobs that share links and are not all rings. All times are emulated seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringlight.experiments.language.plan import JobPlan, Loop, RunPlan, Setting
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.runs import Run
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.cost import Latencies, RingJob, RingModel
from ringlight.fabric.keys import plugged
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import NoPathError, PacketView
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.topology import CrossConnects, Fabric, circuit_cross_connects

Circuits = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Predicted:
    """``jct_s``: from the common start to the job's end. ``all_reduce_s``: of an all-reduce at the start.
    ``set_ups``: steps of an all-reduce that wait for light, whose time is in neither."""

    jct_s: float
    all_reduce_s: float
    set_ups: int = 0


@dataclass(frozen=True)
class Foretold:
    """The simulation of a run plan: its ``run``, or ``why_not``. ``payload_share``: the part of a link's rate
    that it takes for payload. ``computed``: records of the run as the source of its jobs computes them, if
    they have one."""

    run: Run | None
    why_not: str | None = None
    payload_share: float = 1.0
    computed: Sequence[Record] = ()

    @property
    def jct_s(self) -> dict[str, float]:
        """By job, seconds from its release to its end; of those that succeed."""
        jobs = {} if self.run is None else self.run.jobs
        return {name: job.jct_s for name, job in jobs.items() if job.jct_s is not None}

    @property
    def end_s(self) -> dict[str, float]:
        """By job, seconds from the release of the first jobs to its end."""
        if self.run is None:
            return {}
        ends = {name: job.end for name, job in self.run.jobs.items()}
        return {
            name: end - self.run.released
            for name, end in ends.items()
            if end is not None
        }


#: Gives what a simulation says of a run.
Foretell = Callable[[RunPlan], Foretold]
#: Seconds from when a job that comes later has its GPUs until its containers are ready. Measured: median of
#: eight runs of scenarios/examples/leaf_spine_arrival.yaml in Docker on two processors (0.67 to 0.97 s).
START_UP_S = 0.9
#: Parts of an iteration by which workers are simulated as ready later, and what of a time is no difference.
PHASES, _DECIDES = 4, 0.01
#: Jobs that end within this share of the time end together.
_AT_ONCE = 1e-12


def by_phase(plan: RunPlan, foretell: Foretell) -> dict[str, tuple[float, float]]:
    """Return least and greatest completion time, seconds, of jobs of a run in which some jobs come later, by
    name.

    It is unknown at which moment of another job's iteration a later job begins, and that may decide how long
    both take. So the run is simulated with workers that are ready immediately, and with workers that are
    ready after :data:`START_UP_S` and parts of the longest iteration more. Only jobs for which that decides
    more than 1 % are returned.
    """
    if plan.source is not None or all(job.start.at_once for job in plan.jobs):
        return {}
    first = foretell(_started(plan, 0.0))
    if first.run is None:
        return {}
    spans = (end - begin for job in first.run.jobs.values() for begin, end in job.spans)
    longest_s = max(spans, default=0.0)
    later = [
        foretell(_started(plan, START_UP_S + k / PHASES * longest_s))
        for k in range(PHASES)
    ]
    spans_by_job = {}
    for name in first.jct_s:
        times = [
            foretold.jct_s[name]
            for foretold in (first, *later)
            if name in foretold.jct_s
        ]
        if max(times) > (1 + _DECIDES) * min(times):
            spans_by_job[name] = min(times), max(times)
    return spans_by_job


def _started(plan: RunPlan, start_up_s: float) -> RunPlan:
    """Return the same run in which workers of jobs that come later take this long to be ready, seconds."""
    jobs = (
        job if job.start.at_once else replace(job, start_up_s=start_up_s)
        for job in plan.jobs
    )
    return replace(plan, jobs=tuple(jobs))


def modelled(plan: RunPlan) -> bool:
    """Return whether the models know all of a run.

    They do if its jobs train, begin together and are not disturbed, and those that share links are rings.
    """
    if plan.events or not _together(plan) or not all(job.ranks for job in plan.jobs):
        return False
    try:
        return not _unknown(
            packet_view(plan.setting.fabric, plan.circuits),
            [(job, job.ranks) for job in plan.jobs],
        )
    except NoPathError:
        # The models say so.
        return True


def _together(plan: RunPlan) -> bool:
    """Return whether all jobs train and begin together over links that are written out."""
    fabric = plan.setting.fabric
    return all(
        job.start.at_once
        and job.training is not None
        and job.plane(fabric).times.modelled
        for job in plan.jobs
    )


def nic_rate_bps(setting: Setting, gpu: str) -> float:
    """Return the emulated bits per second of a GPU's slowest NIC port, or as its plane has it."""
    return plane_of(setting.fabric, (gpu,)).times.rate_bps(gpu) / setting.scale.rate


def ideal_all_reduce_s(setting: Setting, job: JobPlan, gpus: Sequence[str]) -> float:
    """Return the seconds of an all-reduce with every NIC, or every lightpath, at its full rate and no
    waiting."""
    plane, loop = job.plane(setting.fabric, gpus), job.loop
    return (
        plane.times.ideal_s(gpus, loop.collective, loop.gradient_bytes)
        * setting.scale.rate
    )


def predict_jobs(
    plan: RunPlan, gpus: Mapping[str, Sequence[str]], view: PacketView | None = None
) -> dict[str, Predicted]:
    """Return predictions for the jobs in ``gpus`` (name: GPUs in rank order), started together, with no
    events.

    Jobs that share links with others are left out unless all of them are rings.

    ``view``: the plan's fabric with its light; None: as the plan begins. Raises ValueError if a job has no
    path.
    """
    fabric = plan.setting.fabric
    jobs = {name: plan.job(name) for name in gpus}
    if any(job.training is None for job in jobs.values()):
        # The models know of all-reduces alone.
        return {}
    planes = {name: job.plane(fabric, gpus[name]) for name, job in jobs.items()}
    if not all(plane.times.modelled for plane in planes.values()):
        return {}
    view = packet_view(fabric, plan.circuits) if view is None else view
    if all(
        planes[name].shared and job.loop.collective == "ring"
        for name, job in jobs.items()
    ):
        return _sharing(plan, jobs, gpus, view)
    unknown = _unknown(view, [(jobs[name], ranks) for name, ranks in gpus.items()])
    predictions = {}
    for name, job in jobs.items():
        if name in unknown:
            continue
        plane, loop = planes[name], job.loop
        all_reduce_s = alone_s(plan, plane, gpus[name], loop, view)
        jct_s = job.iterations * (_compute_s(job) + all_reduce_s)
        waits = plane.times.set_ups(gpus[name], loop.collective)
        predictions[name] = Predicted(jct_s, all_reduce_s, waits)
    return predictions


def _unknown(
    view: PacketView, jobs: Iterable[tuple[JobPlan, Sequence[str]]]
) -> set[str]:
    """Return the jobs whose bytes share a direction of a link over packet switches with another job's if not
    all are rings.

    ``jobs``: each with its GPUs in rank order. Raises NoPathError.
    """
    shared = [
        (job, ranks) for job, ranks in jobs if job.plane(view.fabric, ranks).shared
    ]
    if len(shared) < 2 or all(job.loop.collective == "ring" for job, _ in shared):
        return set()
    users: dict[Port, set[str]] = {}
    for job, ranks in shared:
        steps = steps_named(job.loop.collective, len(ranks))
        pairs = {
            pair
            for s in steps
            for pair in zip(s.sources.tolist(), s.destinations.tolist(), strict=True)
        }
        for source, destination in pairs:
            for hop in view.router.path(ranks[source], ranks[destination]):
                users.setdefault(hop.out, set()).add(job.name)
    return {name for names in users.values() if len(names) > 1 for name in names}


def cross_connects(fabric: Fabric, circuits: Circuits) -> CrossConnects:
    """Return the cross-connects, by optical switch, of circuits that are pairs of ports' names."""
    return circuit_cross_connects(
        fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    )


def packet_view(fabric: Fabric, circuits: Circuits) -> PacketView:
    """Return the fabric with the light of circuits that are pairs of ports' names."""
    return PacketView(fabric, cross_connects(fabric, circuits))


def _compute_s(job: JobPlan) -> float:
    return job.loop.compute_s * max(job.stragglers.values(), default=1.0)


def alone_s(
    plan: RunPlan, plane: Plane, gpus: Sequence[str], loop: Loop, view: PacketView
) -> float:
    """Return the emulated seconds that the model gives an all-reduce as if nothing else were there."""
    factor = plan.setting.scale.rate
    real = Latencies(plan.latency_s(plane) / factor, plan.setting.scale.time / factor)
    return (
        plane.times.alone_s(gpus, loop.collective, loop.gradient_bytes, view, real)
        * factor
    )


def _sharing(
    plan: RunPlan,
    jobs: Mapping[str, JobPlan],
    gpus: Mapping[str, Sequence[str]],
    view: PacketView,
) -> dict[str, Predicted]:
    """While a set of jobs runs, each iterates at the rate that the model gives for that set; when one ends,
    the others are predicted anew. Jobs that share a link may take less than this (they do not send all the
    time) or more (headers, losses)."""
    setting = plan.setting
    each_s = max(
        (
            plan.latency_s(job.plane(setting.fabric, gpus[name]))
            for name, job in jobs.items()
        ),
        default=0.0,
    )
    rings = [
        RingJob.all_reduce(
            name,
            gpus[name],
            job.loop.gradient_bytes * setting.scale.rate,
            _compute_s(job),
        )
        for name, job in jobs.items()
    ]
    model = RingModel(view, rings, Latencies(each_s, setting.scale.time))
    predictions: dict[str, Predicted] = {}
    # What happens to jobs of one group is nothing to others.
    for group in model.groups():
        first = pace = model.iteration_s(group)
        left = {name: float(jobs[name].iterations) for name in group}
        now_s = 0.0
        while left:
            step_s = min(count * pace[name] for name, count in left.items())
            now_s += step_s
            ended = [
                name
                for name, count in left.items()
                if count * pace[name] <= step_s * (1 + _AT_ONCE)
            ]
            for name in ended:
                predictions[name] = Predicted(
                    now_s, first[name] - _compute_s(jobs[name])
                )
            left = {
                name: count - step_s / pace[name]
                for name, count in left.items()
                if name not in ended
            }
            pace = model.iteration_s(left)
    return {name: predictions[name] for name in jobs}


def model_s(plan: RunPlan) -> dict[str, float]:
    """Return the seconds that the models give each job of a run of which they know all (:func:`modelled`).

    The waits for light are as long as declared. Raises ValueError if a job has no path.
    """
    predictions = predict_jobs(plan, {job.name: job.ranks for job in plan.jobs})
    return {
        job.name: predictions[job.name].jct_s
        + job.iterations * predictions[job.name].set_ups * light_wait_s(plan, job)
        for job in plan.jobs
    }


def expected_s(plan: RunPlan) -> dict[str, float]:
    """Return the seconds to wait from the release of a run's first jobs to the end of each job, by name.

    Jobs that all begin together follow the models, which know no light that changes. If jobs arrive, wait
    for GPUs or are placed by the controller, the time of every job is the sum of what each job takes alone,
    with the waits of the timeline, which is an overestimate. Never raises for a run that a testbed can have.
    """
    known = {job.name: job.ranks for job in plan.jobs if job.ranks}
    used = [gpu for ranks in known.values() for gpu in ranks]
    together = len(known) == len(plan.jobs) and len(used) == len(set(used))
    away_s = sum(job.recovery_s or 0.0 for job in plan.jobs) + sum(
        event.back_after_s for event in plan.events
    )
    if together and modelled(replace(plan, events=())):
        try:
            return {name: away_s + jct_s for name, jct_s in model_s(plan).items()}
        except NoPathError:
            # No light at the start, say, which an event brings.
            pass
    later_s = sum(job.start.at_s for job in plan.jobs) + sum(
        event.when.at_s or 0.0 for event in plan.events
    )
    total_s = away_s + later_s + sum(_most_s(plan, job) for job in plan.jobs)
    return {job.name: total_s for job in plan.jobs}


def _most_s(plan: RunPlan, job: JobPlan) -> float:
    """Return the longest time of a job without others, seconds: all its bytes cross the slowest link one
    by one."""
    if job.guest is not None:
        return job.guest.deadline_s
    if job.workload is not None:
        return job.iterations * longest_iteration_s(plan, job)
    if job.plane(plan.setting.fabric).sums:
        return job.iterations * (
            _compute_s(job) + ideal_all_reduce_s(plan.setting, job, job.ranks)
        )
    ranks = len(job.ranks) or job.gpus
    steps = steps_named(job.loop.collective, ranks)
    least_bps = slowest_bps(plan.setting)
    chunks = sum(float(step.count.sum()) for step in steps)
    all_reduce_s = 8 * job.loop.gradient_bytes / steps.chunks * chunks / least_bps
    waits_s = steps.steps * light_wait_s(plan, job)
    return job.iterations * (_compute_s(job) + all_reduce_s + waits_s)


def slowest_bps(setting: Setting) -> float:
    """Return the lowest emulated rate of all links as plugged, bits per second."""
    return (
        min(link.rate_bps for link in plugged(setting.fabric).links)
        / setting.scale.rate
    )


def longest_iteration_s(plan: RunPlan, job: JobPlan) -> float:
    """Return an upper bound on the time of a workload's iteration if nothing is wrong, in emulated seconds.

    The bound is far above any iteration: computations of all programs follow each other, and all bytes pass
    the slowest link.
    """
    assert job.workload is not None
    workload, setting = job.workload, plan.setting
    least_bps = slowest_bps(setting)
    counts = np.bincount(workload.program_of, minlength=len(workload.programs))
    sent = sum(
        2 * n * float(p.bytes.sum())
        for n, p in zip(counts, workload.programs, strict=True)
    )
    compute_s = sum(float(np.nansum(program.seconds)) for program in workload.programs)
    alongside = sum(other.gpus for other in plan.jobs) / job.gpus
    slower = max(job.stragglers.values(), default=1.0)
    return float(compute_s * slower + alongside * 8 * sent / least_bps)


def light_wait_s(plan: RunPlan, job: JobPlan) -> float:
    """Return roughly the seconds that a step of a job waits for light, as declared; 0 if no light has to
    be set up."""
    plane = job.plane(plan.setting.fabric)
    return plane.times.wait_s(
        plan.setting.scale.time, plan.control.delay_s, plan.tuning_s
    )
