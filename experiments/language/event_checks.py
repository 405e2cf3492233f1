"""Check the events of a run: their moments, their targets, and the order in which they come."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from ringlight.experiments.language.draft import Draft
from ringlight.experiments.language.light_events import light_events
from ringlight.experiments.language.paths import check_known
from ringlight.experiments.language.plan import EventPlan, OnLoss
from ringlight.experiments.language.targets import TARGETS_OF
from ringlight.experiments.language.text import at_key
from ringlight.fabric.keys import device_words, link_keys
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric, circuit_cross_connects

#: Which events other keys belong to.
EVENTS_WITH: Mapping[str, str] = {
    "jobs": "regroup",
    "circuits": "circuits",
    "back_after_s": "kill",
    "then": "lose",
    "control": "disturb",
}


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


def check_event(run: Draft, event: EventPlan, jobs: set[str]) -> None:
    where, when, fabric = f"events.{event.name}", event.when, run.fabric
    for key in ("job", "granted", "started", "ended"):
        if (job := getattr(when, key)) is not None:
            check_known(f"{where}.when.{key}", "job", job, jobs)
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
        check_known(
            f"{where}.when.after",
            "event",
            when.after,
            [other.name for other in run.events],
        )
    for key, do in EVENTS_WITH.items():
        if getattr(event, key) and event.do != do:
            until = (
                "; end it with an event do: restore"
                if key == "back_after_s" and event.do in ("cut", "lose")
                else ""
            )
            raise ValueError(
                f"{where}.{key.removesuffix('_s')}: only do: {do} has this key{until}"
            )
    for job in event.jobs:
        check_known(f"{where}.jobs", "job", job, jobs)
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
    with at_key(where):
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
        check_known(where, what, target.names[0], names)
    if target.kind == "agent" and target.names[0] not in fabric.agents:
        raise ValueError(
            f"{where}: there is no GPU {target.names[0]} whose O-NIC has an agent"
        )
    if target.kind == "nic" and event.then is not None:
        raise ValueError(
            f"events.{event.name}.then: a job whose NIC is lost fails; only a GPU has then"
        )
    if event.do in light_events():
        with at_key(where):
            light_events()[event.do].check(fabric, target.names)
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
    with at_key(where):
        a = Port.parse(names[0])
        for cable in fabric.cables:
            if a in (cable.a, cable.b):
                kind = fabric.devices[cable.b.node]
                raise ValueError(
                    f"the link at {a} is a cable of {kind} {cable.b.node}, which stays as it is"
                )
        fabric.link_between(*names)


def check_order(run: Draft) -> None:
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
