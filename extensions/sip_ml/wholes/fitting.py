"""Judge which runs fit an interconnect that is described as a whole, and its light."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ringlight.extensions.sip_ml.allocation.circuits import check_degree
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.allocation.phased import phase_paths
from ringlight.extensions.sip_ml.wholes.interconnect import (
    Division,
    Interconnect,
    PhaseLight,
)
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.fabric.algorithms import parse_collective, unstriped_steps
from ringlight.fabric.steps import sent_in_steps
from ringlight.fabric.topology import Fabric
from ringlight.fabric.units import format_time
from ringlight.workloads.graph import Workload
from ringlight.workloads.traffic import sent

if TYPE_CHECKING:
    from ringlight.experiments.language.draft import Draft
    from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
    from ringlight.fabric.planes.base import Plane

#: Ranks of a job up to which it is looked at whether circuits join all that send to each other.
MOST_JOINED = 1024
#: Between two decisions about light, emulated: each takes tens of milliseconds to write and read back.
LEAST_INTERVAL_S = 0.2
#: TCP's least time-out, in dark times: they are prolonged by what it takes to write and read back.
HELD = 2


def check_run(interconnect: Interconnect, run: Draft) -> None:
    """Check the jobs of a run that all are on an interconnect.

    One that is built for what jobs send has to know it, and each GPU's light is that of one job. Raises
    ValueError, ``key: what is wrong``.
    """
    if run.jobs and (why := interconnect.refuses_jobs) is not None:
        raise ValueError(f"{run.where}.interconnect.{why}")
    holder: dict[str, str] = {}
    for job in run.jobs:
        if interconnect.built == "once":
            _hold(run, job, holder)
        if interconnect.built:
            _check_built(run, job)
        if interconnect.built == "anew":
            _check_divided(run, job)
    for job in run.jobs:
        if interconnect.partners is not None and job.light == "once":
            _check_degree(run, job, interconnect.partners)


def _hold(run: Draft, job: JobPlan, holder: dict[str, str]) -> None:
    for gpu in job.ranks:
        if gpu in holder:
            raise ValueError(
                f"jobs.{job.name}.ranks: GPU {gpu} is one of job {holder[gpu]}'s, and {run.where} is "
                "built once for what all jobs send"
            )
        holder[gpu] = job.name


def _check_built(run: Draft, job: JobPlan) -> None:
    if not job.ranks:
        raise ValueError(
            f"jobs.{job.name}.gpus: {run.where} is built for what its GPUs send; give ranks"
        )
    if job.on_loss == "swap":
        plane = job.plane(run.fabric)
        raise ValueError(
            f"jobs.{job.name}: {plane} is built for its GPUs; none takes a lost one's place"
        )


def _check_divided(run: Draft, job: JobPlan) -> None:
    if job.workload is None:
        raise ValueError(
            f"jobs.{job.name}.workload: {run.where} divides its light for one; give it"
        )
    if len(run.jobs) > 1:
        raise ValueError(
            f"jobs: {len(run.jobs)} jobs, but {run.where} divides its light for one"
        )


def _check_degree(run: Draft, job: JobPlan, switches: int) -> None:
    """Check that each GPU has a circuit for every GPU to which it sends in the job. Raises ValueError."""
    if job.gpus > MOST_JOINED:
        return
    what = job.loop.collective if job.workload is None else job.workload
    if (problem := _beyond(what, job.ranks, job.gpus, switches)) is not None:
        raise ValueError(
            f"{run.where}.interconnect.switches: job {job.name}: {problem}"
        )


@lru_cache(maxsize=16)
def _beyond(
    what: str | Workload, ranks: tuple[str, ...], gpus: int, switches: int
) -> str | None:
    """Return which rank sends to more others than switches join it to; None if none does.

    ``what``: a collective or a workload; points of a sweep have most in common.
    """
    if isinstance(what, Workload):
        demand = sent(what)
    else:
        demand = sent_in_steps(unstriped_steps(parse_collective(what), gpus), 1.0)
    try:
        check_degree(demand, switches, ranks)
    except ValueError as error:
        return str(error).removeprefix("demand: ")
    return None


def check_phases(run: Draft, job: JobPlan, plane: Plane) -> None:
    """Check that light can be set for each phase of a job. Raises ValueError."""
    where = f"jobs.{job.name}.workload.light"
    if light_of_phases(plane.fabric) is None:
        on = (
            f"{run.where}.interconnect"
            if plane.light == "stands" and not plane.shared
            else str(plane)
        )
        raise ValueError(
            f"{where}: phases need optical circuit switches of their own whose dark time is known "
            f"(an interconnect of kind parallel-ocs with dark and without interval), not {on}"
        )
    if len(run.jobs) > 1:
        raise ValueError(
            f"{where}: {len(run.jobs)} jobs, and light follows the phases of one"
        )
    assert job.workload is not None
    if job.gpus > MOST_JOINED:
        return
    try:
        _check_each_phase(run.fabric, job.workload)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def light_of_phases(fabric: Fabric) -> PhaseLight | None:
    """Return the times of setting light for a phase; None if the fabric's light cannot be set so."""
    interconnect = fabric.parts.get("interconnect")
    return None if interconnect is None else interconnect.phases


def _check_each_phase(fabric: Fabric, workload: Workload) -> None:
    plan, circuits = phases_of(workload), divider(fabric)
    for phase in plan.phases:
        try:
            phase_paths(circuits, phase, range(workload.ranks))
        except ValueError as error:
            what = str(error).removeprefix("demand: ")
            raise ValueError(f"a phase of ranks {_few(phase.ranks)}: {what}") from None


def _few(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown}, …" if len(ranks) > 8 else shown


# Emulated


def only_simulated(interconnect: Interconnect, plan: RunPlan) -> str | None:
    """Return why no controller can light a plan's jobs, ``key: reason``; None if one can."""
    if len(plan.jobs) > 1 and interconnect.built:
        return f"jobs: {len(plan.jobs)} jobs; the light of an interconnect is emulated for one"
    if interconnect.division is not None:
        return _too_fast(plan.setting, interconnect.division)
    if interconnect.phases is not None and any(
        job.light == "phases" for job in plan.jobs
    ):
        return _taken_for_lost(plan.setting, sum(interconnect.phases))
    return None


def _too_fast(setting: Setting, division: Division) -> str | None:
    """Return why a controller cannot divide light as often as planned, ``key: reason``; None if it can."""
    time = setting.scale.time
    if division.decision_s:
        return "fabric.interconnect.decision: the emulated controller decides in its own time; leave it out"
    if division.interval_s * time < LEAST_INTERVAL_S:
        return (
            f"fabric.interconnect.interval: {format_time(division.interval_s * time)} as emulated; a "
            f"controller divides light at most every {format_time(LEAST_INTERVAL_S)}; raise scale.time"
        )
    return _taken_for_lost(setting, division.dark_s)


def _taken_for_lost(setting: Setting, dark_s: float) -> str | None:
    """Return why TCP would treat frames held for ``dark_s`` as lost, ``key: reason``; None if not."""
    time = setting.scale.time
    if setting.tcp.rto_min < HELD * dark_s:
        return (
            f"tcp.rto_min: {format_time(setting.tcp.rto_min * time)} as emulated, and light is dark for "
            f"{format_time(dark_s * time)}: TCP would send again what is only held; give it at least "
            f"{HELD} times as long"
        )
    return None


def patience_s(interconnect: Interconnect, job: JobPlan, gpus: int) -> float:
    """Return the longest time until each partner of a rank of a job had light, seconds.

    ``gpus``: those of the interconnect.
    """
    if (
        job.light == "phases"
        and interconnect.phases is not None
        and job.workload is not None
    ):
        # Of an iteration, all turns one after another.
        return len(phases_of(job.workload).phases) * sum(interconnect.phases)
    if (division := interconnect.division) is None:
        return 0.0
    return gpus * (division.interval_s + division.dark_s)
