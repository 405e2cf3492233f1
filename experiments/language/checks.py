"""Checks what no schema sees: names of other entries, and whether jobs, events and fabric fit.

Every function raises ValueError, ``key: what is wrong``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.experiments.language.paths import like
from ringlight.experiments.language.plan import EventPlan, Guest, JobPlan, OnLoss
from ringlight.experiments.language.spec import (
    FileSpec,
    PublishedSpec,
    SweepSpec,
    references,
)
from ringlight.experiments.language.text import at
from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.keys import device_words, link_keys
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.schedules import parse_collective, unstriped_steps
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    electrical_graph,
    optical_neighbour,
)
from ringlight.workloads.following import followings

#: What each event is done to: the kinds of target, the first in an example.
TARGETS_OF: Mapping[str, tuple[str, ...]] = {
    "kill": (
        "controller",
        "switch",
        "agent",
        *device_words(),
        "server agent",
        "worker",
    ),
    "cut": ("link",),
    **{keys.do: ("link",) for keys in link_keys()},
    "restore": ("link", "gpu", "nic"),
    "lose": ("gpu", "nic"),
    "cancel": ("job",),
    "start": ("job",),
}
#: GPUs up to which paths are planned to see whether a job fits: beyond, that takes as long as running it.
MOST_PLANNED = 32
#: Which events other keys belong to.
EVENTS_WITH: Mapping[str, str] = {
    "jobs": "regroup",
    "circuits": "circuits",
    "back_after_s": "kill",
    "then": "lose",
    "control": "disturb",
}


@dataclass(frozen=True)
class Draft:
    """A run before it is checked. ``where``: the key of its fabric; ``key``: what tells that from others."""

    where: str
    key: str
    fabric: Fabric
    jobs: tuple[JobPlan, ...]
    events: tuple[EventPlan, ...]
    control: ControlFaults


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
    lights = any(event.do == "circuits" for event in run.events)
    once(
        ("placement", run.where, run.key, placed, lights),
        lambda: _check_placement(run, lights),
    )
    for job in run.jobs:
        _check_job(run, job, names)
    for event in run.events:
        _check_event(run, event, names)
    _check_order(run)
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
                    f"{where}: there is no GPU {gpu}{_nearest(gpu, fabric.gpus)}"
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
    with at(where):
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
    with at(what):
        steps = unstriped_steps(collective, job.gpus)
    if collective.bits is not None and plane.light != "stands":
        raise ValueError(
            f"{what}: whole numbers go over packet switches and circuits; {plane.name} is neither"
        )
    with at(where):
        plane.fit.check_size(job.gpus)
    if not collective.striped:
        with at(f"{what} on {run.where}"):
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
        any(event.do == "circuits" for event in run.events)
        or len(fabric.gpus) > MOST_PLANNED
    ):
        return
    router = Router(
        fabric,
        electrical_graph(fabric, circuit_cross_connects(fabric, fabric.circuits)),
    )
    with at(f"{run.where}.links"):
        for a, b in itertools.pairwise((*job.ranks, job.ranks[0])):
            router.path(a, b)


def _check_job(run: Draft, job: JobPlan, names: set[str]) -> None:
    where = f"jobs.{job.name}"
    for other in job.start.after:
        _known(f"{where}.start.after", "job", other, names)
    started = [
        event
        for event in run.events
        if event.do == "start" and event.target.names == (job.name,)  # type: ignore[union-attr]
    ]
    if job.start.by_event and not started:
        raise ValueError(f"{where}.start: no event starts it")
    for gpu in job.spares:
        _known(f"{where}.spares", "GPU", gpu, run.fabric.gpus)
        if gpu in job.ranks:
            raise ValueError(f"{where}.spares: GPU {gpu} is one of its ranks")
    for rank in job.stragglers:
        if rank >= job.gpus:
            raise ValueError(
                f"{where}.slower: there is no rank {rank}; it has ranks 0 to {job.gpus - 1}"
            )


def loss_rule(
    job: str,
    ranks: Sequence[str],
    spares: Sequence[str],
    held: Collection[str],
    events: Iterable[EventPlan],
) -> OnLoss:
    """Return what a job does when a GPU is lost, from the events that lose a GPU that the job has or may get.

    "fail" if there is no such event. ``held``: GPUs of all jobs' ranks. Raises ValueError if two events
    differ.
    """
    rule: tuple[str, OnLoss] | None = None
    for event in events:
        if (
            event.do != "lose"
            or event.then is None
            or event.target is None
            or event.target.kind != "gpu"
        ):
            continue
        gpu = event.target.names[0]
        swapped = (
            rule is not None and rule[1] == "swap" and not spares and gpu not in held
        )
        if not (swapped or not ranks or gpu in (*ranks, *spares)):
            continue
        if rule is not None and rule[1] != event.then:
            raise ValueError(
                f"events.{event.name}.then: {event.then}, but event {rule[0]} says {rule[1]} of job {job}"
            )
        rule = (event.name, event.then)
    return rule[1] if rule is not None else "fail"


def _check_event(run: Draft, event: EventPlan, jobs: set[str]) -> None:
    where, when, fabric = f"events.{event.name}", event.when, run.fabric
    for key in ("job", "granted", "started", "ended"):
        if (job := getattr(when, key)) is not None:
            _known(f"{where}.when.{key}", "job", job, jobs)
    if when.iteration is not None:
        other = next(job for job in run.jobs if job.name == when.job)
        total = other.iterations
        if other.guest is not None:
            raise ValueError(
                f"{where}.when.iteration: job {when.job} runs {other.guest.noun}s, which tell of no "
                "iterations; use at, started or ended"
            )
        if when.iteration >= total:
            raise ValueError(
                f"{where}.when.iteration: {when.iteration}, but job {when.job} does only {total}"
            )
    if when.after is not None:
        _known(
            f"{where}.when.after",
            "event",
            when.after,
            [other.name for other in run.events],
        )
    for key, do in EVENTS_WITH.items():
        if getattr(event, key) and event.do != do:
            raise ValueError(
                f"{where}.{key.removesuffix('_s')}: only do: {do} has this key"
            )
    for job in event.jobs:
        _known(f"{where}.jobs", "job", job, jobs)
    if event.do == "disturb":
        if event.control is None:
            raise ValueError(f"{where}.control: missing")
        if not fabric.agents:
            raise ValueError(f"{where}.do: {run.where} has no O-NICs with agents")
    for keys in link_keys():
        if keys.key in event.effects and event.do != keys.do:
            raise ValueError(f"{where}.{keys.key}: only do: {keys.do} has this key")
        if keys.key not in event.effects and event.do == keys.do:
            *most, last = keys.spec.model_fields
            raise ValueError(
                f"{where}.{keys.key}: missing; give {', '.join(most)} or {last}"
            )
    if event.do == "circuits":
        _check_circuits(run, event)
    if event.do == "regroup":
        _check_regroup(run, event)
    _check_target(run, event)


def _check_circuits(run: Draft, event: EventPlan) -> None:
    where = f"events.{event.name}.circuits"
    if not event.circuits:
        raise ValueError(f"{where}: missing")
    with at(where):
        ends = [(Port.parse(a), Port.parse(b)) for a, b in event.circuits]
        for port in itertools.chain.from_iterable(ends):
            if port not in run.fabric.link_at:
                raise ValueError(f"there is no port {port} that is plugged in")
        circuit_cross_connects(run.fabric, ends)


def _check_regroup(run: Draft, event: EventPlan) -> None:
    where = f"events.{event.name}"
    if all(
        switch.wavelengths is not None
        for switch in run.fabric.optical_switches.values()
    ):
        raise ValueError(
            f"{where}.do: {run.where} has no optical circuit switch that could move light"
        )
    for job in run.jobs:
        if job.guest is not None:
            # Taken for a ring: see the controller's regrouping.
            continue
        what = "a workload" if job.training is None else job.training.collective
        if what != "ring" and (not event.jobs or job.name in event.jobs):
            raise ValueError(
                f"{where}.do: regrouping is planned for rings, but job {job.name} is {what}"
            )


def _check_target(run: Draft, event: EventPlan) -> None:
    where, target, fabric = f"events.{event.name}.target", event.target, run.fabric
    kinds = TARGETS_OF.get(event.do, ())
    if target is None:
        if kinds:
            raise ValueError(f"{where}: missing; {event.do} what? {', '.join(kinds)}")
        return
    if target.kind not in kinds:
        allowed = f"; it has {', '.join(kinds)}" if kinds else ""
        raise ValueError(f"{where}: {event.do} has no target {target.kind}{allowed}")
    jobs = {job.name: job for job in run.jobs}
    there: dict[str, tuple[str, Collection[str]]] = {
        "switch": ("switch", [*fabric.packet_switches, *fabric.optical_switches]),
        **{
            kind: (kind, [name for name, its in fabric.devices.items() if its == kind])
            for kind in device_words()
        },
        **dict.fromkeys(("gpu", "nic"), ("GPU", fabric.gpus)),
        **dict.fromkeys(("job", "worker"), ("job", jobs)),
    }
    if target.kind in there:
        what, names = there[target.kind]
        _known(where, what, target.names[0], names)
    if target.kind == "agent" and target.names[0] not in fabric.agents:
        raise ValueError(
            f"{where}: there is no GPU {target.names[0]} whose O-NIC has an agent"
        )
    if target.kind == "nic" and event.then is not None:
        raise ValueError(
            f"events.{event.name}.then: a job whose NIC is lost fails; only a GPU has then"
        )
    if target.kind == "link":
        _check_link(where, fabric, target.names)
    if target.kind in ("job", "worker"):
        job = jobs[target.names[0]]
        if event.do == "start" and not job.start.by_event:
            raise ValueError(
                f"{where}: job {job.name} starts by itself; only one with start: event does not"
            )
        if target.kind == "worker" and not (
            target.names[1].isdigit() and int(target.names[1]) < job.gpus
        ):
            raise ValueError(
                f"{where}: job {job.name} has ranks 0 to {job.gpus - 1}, no {target.names[1]}"
            )


def _check_link(where: str, fabric: Fabric, names: Sequence[str]) -> None:
    with at(where):
        a = Port.parse(names[0])
        for cable in fabric.cables:
            if a in (cable.a, cable.b):
                kind = fabric.devices[cable.b.node]
                raise ValueError(
                    f"the link at {a} is a cable of {kind} {cable.b.node}, which stays as it is"
                )
        fabric.link_between(*names)


def _check_order(run: Draft) -> None:
    """No job and no event waits for itself."""
    needs: dict[str, set[str]] = {}
    for job in run.jobs:
        needs[f"job {job.name}"] = {f"job {other}" for other in job.start.after}
        if job.start.by_event:
            needs[f"job {job.name}"] |= {
                f"event {event.name}"
                for event in run.events
                if event.do == "start"
                and event.target is not None
                and event.target.names == (job.name,)
            }
    for event in run.events:
        when = event.when
        waits = {
            f"job {job}"
            for job in (when.job, when.granted, when.started, when.ended)
            if job is not None
        }
        needs[f"event {event.name}"] = waits | (
            {f"event {when.after}"} if when.after is not None else set()
        )
    circle = circle_in(needs)
    if circle:
        kind, _, name = circle[0].partition(" ")
        where = f"jobs.{name}.start" if kind == "job" else f"events.{name}.when"
        raise ValueError(
            f"{where}: circular: {' waits for '.join((*circle, circle[0]))}"
        )


def circle_in(needs: Mapping[str, Collection[str]]) -> list[str]:
    """Return things that wait for each other in a circle, in order; [] if there is no circle."""
    done: set[str] = set()
    for first in needs:
        trail: list[str] = []
        pending: list[tuple[str, bool]] = [(first, True)]
        while pending:
            name, enters = pending.pop()
            if not enters:
                trail.pop()
                done.add(name)
            elif name in trail:
                return trail[trail.index(name) :]
            elif name not in done:
                trail.append(name)
                pending.append((name, False))
                pending += [(other, True) for other in sorted(needs.get(name, ()))]
    return []


def check_file(
    spec: FileSpec,
    arms: Sequence[str],
    jobs: Mapping[str, Collection[str]],
    metrics: Mapping[str, str] | None,
    parts: Callable[[], Collection[str]] | None,
) -> None:
    """Check the parts of a file that are the same for all runs. Raises ValueError, ``key: what is wrong``.

    ``jobs``: by arm. ``metrics``: of results, with their units, None if unknown. ``parts``: returns those of
    a report, None if unknown.
    """
    known: dict[str, Collection[str]] = {
        "arm": arms,
        "swept path": [path for sweep in spec.sweep for path in sweep.over],
    }
    if metrics is not None:
        if spec.search is not None:
            _known("search.metric", "metric", spec.search.metric, metrics)
            metrics = {**metrics, spec.search.made[0]: metrics[spec.search.metric]}
        known["metric"] = metrics
    for where, what, name in references(spec):
        if what in known:
            _known(where, what, name, known[what])
    for index, compare in enumerate(spec.compare):
        for arm in (
            () if compare.job is None else (compare.baseline, *(compare.arms or ()))
        ):
            if compare.job not in jobs[arm]:
                raise ValueError(
                    f"compare[{index}].job: arm {arm} has no job {compare.job}"
                )
    if spec.published and spec.paper is None:
        raise ValueError("published: of which paper? The section paper is missing")
    for index, figure in enumerate(spec.published):
        where = f"published[{index}]"
        if figure.job is not None and figure.job not in jobs[figure.arm]:
            raise ValueError(f"{where}.job: arm {figure.arm} has no job {figure.job}")
        unit = "1" if figure.over is not None else (metrics or {}).get(figure.metric)
        for key, stated in (
            ("value", figure.value),
            *(("range", bound) for bound in figure.range or ()),
        ):
            # A share may be written in per cent.
            if stated is not None and unit not in (
                None,
                {"%": "1"}.get(stated.unit, stated.unit),
                stated.unit,
            ):
                raise ValueError(
                    f"{where}.{key}: {figure.metric} is in {unit}, this in {stated.unit}"
                )
        _check_means(where, figure, spec)
        # One from which a parameter was derived cannot be a prediction, an identity or a range.
        for name in (
            spec.fitted_by(figure) if figure.standing not in (None, "free") else ()
        ):
            raise ValueError(
                f"{where}.standing: it is fitted, as parameters.{name}.fitted_to names it"
            )
    published = [f"{figure.arm}.{figure.metric}" for figure in spec.published]
    for name, parameter in spec.parameters.items():
        for key in parameter.fitted_to:
            if key not in published:
                near = like(key, published)
                raise ValueError(
                    f"parameters.{name}.fitted_to: there is no published figure {key}"
                    f"{f'; the nearest is {near}' if near else ''}"
                )
    for index, sweep in enumerate(spec.sweep):
        if sweep.metrics and sweep.title is None:
            raise ValueError(
                f"sweep[{index}].metrics: they are of pictures, which only one with a title has"
            )
    if spec.paper is not None and spec.paper.says and parts is not None:
        there = parts()
        for part in spec.paper.says:
            if part not in there:
                reason = f"the page has no such part; there are {', '.join(there)}"
                raise ValueError(f"paper.says.{part}: {reason}")


def _check_means(where: str, figure: PublishedSpec, spec: FileSpec) -> None:
    """The points that a published figure is a mean over."""
    if figure.over_at and figure.over is None:
        raise ValueError(f"{where}.over_at: it goes with over, which is missing")
    if figure.over_at and not figure.at:
        raise ValueError(f"{where}.over_at: it goes with at, which is missing")
    counts = {len(values) for values in (*figure.at.values(), *figure.over_at.values())}
    if len(counts) > 1:
        raise ValueError(
            f"{where}.at: its lists are of different lengths; each place is one point"
        )
    if figure.at and figure.over is None:
        for place in zip(*figure.at.values(), strict=True):
            point = dict(zip(figure.at, place, strict=True))
            if not any(_has_point(sweep, figure.arm, point) for sweep in spec.sweep):
                point_text = ", ".join(
                    f"{path} {value}" for path, value in point.items()
                )
                raise ValueError(
                    f"{where}.at: arm {figure.arm} is at no point of a sweep with {point_text}"
                )


def _has_point(sweep: SweepSpec, arm: str, point: Mapping[str, Any]) -> bool:
    """Return whether a sweep takes an arm to exactly this point."""
    mine = sweep.arms is None or arm in sweep.arms
    return (
        mine
        and point.keys() == sweep.over.keys()
        and all(v in sweep.over[k] for k, v in point.items())
    )


def _known(where: str, what: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise ValueError(f"{where}: there is no {what} {name}{_nearest(name, names)}")


def _nearest(name: str, names: Iterable[str]) -> str:
    near = like(name, names)
    return f"; the nearest is {near}" if near else ""
