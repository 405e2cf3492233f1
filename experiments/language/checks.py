"""Checks what no schema sees: names of other entries, and whether jobs, events and fabric fit.

Every function raises ValueError, ``key: what is wrong``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from typing import Any

from ringlight.experiments.language.draft import Draft
from ringlight.experiments.language.event_checks import check_event, check_order
from ringlight.experiments.language.light_events import circuit_events
from ringlight.experiments.language.paths import check_known, nearest_of
from ringlight.experiments.language.plan import Guest, JobPlan
from ringlight.experiments.language.text import at_key
from ringlight.fabric.algorithms import parse_collective, unstriped_steps
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.topology import (
    circuit_cross_connects,
    electrical_graph,
    optical_neighbour,
)
from ringlight.workloads.following import followings

#: GPUs up to which paths are planned to see whether a job fits: beyond, that takes as long as running it.
MOST_PLANNED = 32


def check_run(run: Draft, looked_at: set[Any]) -> None:
    """One run. ``looked_at``: what was found to be right already: points of a sweep have most in common."""

    def once(key: Hashable, check: Callable[[], None]) -> None:
        if key not in looked_at:
            check()
            looked_at.add(key)

    fabric = run.fabric
    once(("fabric", run.where, run.key), lambda: _check_fabric(run))
    names = {job.name for job in run.jobs}
    placed = tuple(
        (job.name, job.ranks, job.gpus, job.start.at_once) for job in run.jobs
    )
    lights = any(event.do in circuit_events() for event in run.events)
    once(
        ("placement", run.where, run.key, placed, lights),
        lambda: _check_placement(run, lights),
    )
    for job in run.jobs:
        _check_job(run, job, names)
    for event in run.events:
        check_event(run, event, names)
    check_order(run)
    for job in run.jobs:
        if job.workload is not None:
            _check_workload(run, job)
            continue
        if job.guest is not None:
            _check_guest(run, job, job.guest)
            continue
        once(
            ("job", run.key, job.name, job.ranks, job.gpus, job.loop.collective),
            lambda job=job: _check_fits(run, job),  # type: ignore[misc]
        )
    if run.control != ControlFaults() and not fabric.agents:
        raise ValueError(f"control: {run.where} has no O-NICs with agents")
    planes = {job.name: job.plane(fabric) for job in run.jobs}
    for plane in {
        (plane.kind, plane.name): plane for plane in planes.values()
    }.values():
        plane.fit.check_run(run)
    for job in run.jobs:
        _check_losses(run, job, planes[job.name])
        if job.light != "once":
            followings()[job.light].check(run, job, planes[job.name])


def _check_losses(run: Draft, job: JobPlan, plane: Plane) -> None:
    """Check that a job can go on after a loss where it is to, and that what is to fail is there by itself.

    Raises ValueError.
    """
    if job.on_loss != "fail" and not plane.fit.survives:
        raise ValueError(
            f"jobs.{job.name}: a lost GPU of {plane} can only let the job fail"
        )
    for event in () if plane.fit.parts else run.events:
        lost = plane.fit.survives and event.capability.startswith("lose gpu")
        if event.do not in ("start", "cancel") and not lost:
            raise ValueError(
                f"events.{event.name}.do: {run.where} is described as a whole, without parts"
            )


def _check_fabric(run: Draft) -> None:
    planes = lit_planes(run.fabric)
    if len(planes) > 1:
        kinds = {f".{plane.kind}s" for plane in planes}
        where = run.where + (kinds.pop() if len(kinds) == 1 else "")
        raise ValueError(
            f"{where}: {planes[0]} and {planes[1]}; jobs run on one of them"
        )


def _check_placement(run: Draft, lights: bool) -> None:
    """Jobs of the beginning have GPUs of their own, and light where that needs circuits."""
    fabric = run.fabric
    lit_nodes = {port.node for circuit in fabric.circuits for port in circuit}
    holder: dict[str, str] = {}
    for job in run.jobs:
        where = f"jobs.{job.name}.{'ranks' if job.ranks else 'gpus'}"
        if job.gpus < 2:
            raise ValueError(
                f"{where}: {job.gpus} ranks; a job needs at least 2 to exchange gradients"
            )
        if job.gpus > len(fabric.gpus):
            raise ValueError(
                f"{where}: {job.gpus} ranks, but the fabric has {len(fabric.gpus)} GPUs"
            )
        mine: set[str] = set()
        for gpu in job.ranks:
            if gpu not in fabric.gpus:
                raise ValueError(
                    f"{where}: there is no GPU {gpu}{nearest_of(gpu, fabric.gpus)}"
                )
            if gpu in mine:
                raise ValueError(f"{where}: GPU {gpu} is used twice in this job")
            mine.add(gpu)
            if job.start.at_once:
                if gpu in holder:
                    raise ValueError(
                        f"{where}: GPU {gpu} is used by job {holder[gpu]} too"
                    )
                holder[gpu] = job.name
            if (
                not lights
                and gpu not in lit_nodes
                and optical_neighbour(fabric, Port(gpu, 0)) is not None
            ):
                raise ValueError(
                    f"{where}: GPU {gpu} has no circuit in {run.where}.circuits, so it is dark"
                )


def check_standing(plane: Plane) -> None:
    """Check that a graph of operations finds light that is set already. Raises ValueError."""
    if plane.light != "stands":
        raise ValueError(
            f"it runs over packet switches and circuits; {plane.name} is neither"
        )


def _plane(run: Draft, job: JobPlan) -> Plane:
    """Return the plane that carries a job's bytes. Raises ValueError for a job that nothing can carry."""
    try:
        return job.plane(run.fabric)
    except Misfit as misfit:
        where = f"jobs.{job.name}.{misfit.key}"
        if misfit.key == "collective":
            where = f"training.collective: {job.loop.collective} of job {job.name} on {run.where}"
        raise ValueError(f"{where}: {misfit}") from None


def _check_workload(run: Draft, job: JobPlan) -> None:
    """Check that a job's graph can be executed on its GPUs. Raises ValueError."""
    where = f"jobs.{job.name}.workload"
    plane = _plane(run, job)
    with at_key(where):
        check_standing(plane)
    if job.on_loss != "fail":
        raise ValueError(
            f"{where}: it keeps no state to go on from, so a lost GPU can only let the job fail"
        )


def _check_guest(run: Draft, job: JobPlan, guest: Guest) -> None:
    """Check that any rank reaches any other at any time, as a guest may send so. Raises ValueError."""
    where, plane = f"jobs.{job.name}.{guest.key}", _plane(run, job)
    if plane.fit.untold:
        place = f"on {plane}" if plane.fit.parts else run.where
        reason = f"a {guest.noun} may send from any rank to any other at any time, and"
        raise ValueError(f"{where}: {reason} {place} {plane.fit.untold}")
    if job.on_loss != "fail":
        raise ValueError(
            f"{where}: it keeps no state to go on from, so a lost GPU can only let the job fail"
        )
    if job.ranks:
        _check_joined(run, job)


def _check_fits(run: Draft, job: JobPlan) -> None:
    """Check that a job's collective can be run on its GPUs. Raises ValueError."""
    where = f"jobs.{job.name}.{'ranks' if job.ranks else 'gpus'}"
    what = f"training.collective: {job.loop.collective} of job {job.name}"
    collective = parse_collective(job.loop.collective)
    plane = _plane(run, job)
    if plane.sums:
        _check_joined(run, job)
        return
    if collective.striped and not plane.times.lightpaths:
        raise ValueError(
            f"{what}: only a ring of wavelengths has several for one transfer"
        )
    with at_key(what):
        steps = unstriped_steps(collective, job.gpus)
    if collective.bits is not None and plane.light != "stands":
        raise ValueError(
            f"{what}: whole numbers go over packet switches and circuits; {plane.name} is neither"
        )
    with at_key(where):
        plane.fit.check_size(job.gpus)
    if not collective.striped:
        with at_key(f"{what} on {run.where}"):
            plane.fit.check(job.ranks, steps)
    if plane.shared and job.ranks:
        _check_joined(run, job)


def _check_joined(run: Draft, job: JobPlan) -> None:
    """Check that packets get from each rank of a job to the next, and so to all. Raises ValueError."""
    fabric = run.fabric
    for gpu in job.ranks:
        if Port(gpu, 0) not in fabric.link_at:
            raise ValueError(f"{run.where}.links: GPU {gpu} is not plugged in")
    if (
        any(event.do in circuit_events() for event in run.events)
        or len(fabric.gpus) > MOST_PLANNED
    ):
        return
    router = Router(
        fabric,
        electrical_graph(fabric, circuit_cross_connects(fabric, fabric.circuits)),
    )
    with at_key(f"{run.where}.links"):
        for a, b in itertools.pairwise((*job.ranks, job.ranks[0])):
            router.path(a, b)


def _check_job(run: Draft, job: JobPlan, names: set[str]) -> None:
    where = f"jobs.{job.name}"
    for other in job.start.after:
        check_known(f"{where}.start.after", "job", other, names)
    started = [
        event
        for event in run.events
        if event.do == "start" and event.target.names == (job.name,)  # type: ignore[union-attr]
    ]
    if job.start.by_event and not started:
        raise ValueError(f"{where}.start: no event starts it")
    if job.start_up_s and job.start.at_once:
        raise ValueError(
            f"{where}.start_up: only a job with start has this key; the others are released once all are ready"
        )
    for gpu in job.spares:
        check_known(f"{where}.spares", "GPU", gpu, run.fabric.gpus)
        if gpu in job.ranks:
            raise ValueError(f"{where}.spares: GPU {gpu} is one of its ranks")
    for rank in job.stragglers:
        if rank >= job.gpus:
            raise ValueError(
                f"{where}.slower: there is no rank {rank}; it has ranks 0 to {job.gpus - 1}"
            )
