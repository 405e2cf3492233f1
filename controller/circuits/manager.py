"""Manage circuits: keep the intended ones, and change the light to them.

A change of light is made in this order: packets that light which stays can carry are sent over that; the
light that goes is removed; the packet switches' rules are pointed along the new paths (each behind a barrier,
nearest to the destination first); the new light is added; last, packets take the paths that are then the
shortest. So no packet is ever sent the old way over new light, and what keeps its light is never touched nor
led into the dark. Where the switches can remove and add in one write and are declared to be dark for longer
than the rules take, they do so, and the rules are written in that one dark time.

A change is made on all of its switches or on none: where one does not do its part, all that was changed is
taken back, and what cannot be is named by switch and cross-connect.

What should be lit (the intent) is on disk before the first write, so a crash in between is mended by the
next start.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.drift import Drift, Mending, Policy, drift, mending
from ringlight.controller.circuits.intent import IntentDatabase, Pending
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.transaction import (
    Found,
    Leftover,
    achieved,
    leftovers,
    standing,
    taken_back,
)
from ringlight.controller.errors import ConflictError, InvalidError, UnavailableError
from ringlight.controller.optical.errors import NotAsPlanned, OpticalError, PortBusy, Rejected
from ringlight.controller.optical.model import CrossConnectResult, Plan, Snapshot
from ringlight.controller.packets.attachment import attachments
from ringlight.controller.packets.forwarding import Forwarding, ForwardingPlan, Stages
from ringlight.controller.packets.port_notifications import Followers
from ringlight.fabric.crossconnect import CrossConnect, Mode, plan_changes
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import CrossConnects, Fabric, circuit_cross_connects

log = logging.getLogger(__name__)

#: Longest time for one write to a switch, besides what the switch declares, seconds.
PATIENCE_S = 10.0
#: Pause before a switch that did not do what it should is asked again, seconds.
_RETRY_S = 5.0
#: Declared darkness, seconds, from which on rules are written during it; they take a few milliseconds.
_ROOM_FOR_RULES_S = 0.02
#: Share of the declared darkness that passes first, as a command may start a little late.
_DARK_FOR_SURE = 0.2
#: Names in the audit log for changes that no caller made.
RECONCILER, OUTSIDE = "reconciler", "outside"


_Mark = Callable[..., None]
#: Outcome for cross-connects, by switch.
_Results = dict[str, tuple[CrossConnectResult, ...]]


@dataclass(frozen=True)
class Target:
    """Light that one optical switch must carry: ``cross_connects`` in ``mode``; none at the ``delete``
    ingresses.
    """

    cross_connects: tuple[CrossConnect, ...] = ()
    mode: Mode = Mode.UPDATE
    delete: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """A change of light and what came of it.

    ``plans`` and ``results`` by optical switch; ``timeline``: phases in order, each
    ``{"t": CLOCK_MONOTONIC seconds, "phase": …}``. ``problems``: what did not work, one line each.
    ``undone``: a switch did not do its part, and all was taken back but what is ``left``.
    """

    plans: Mapping[str, Plan]
    applied: bool = False
    results: Mapping[str, tuple[CrossConnectResult, ...]] = field(default_factory=dict)
    timeline: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    undone: bool = False
    left: tuple[Leftover, ...] = ()

    @property
    def outcome(self) -> str:
        """Outcome in one or two words, for the audit log and counters."""
        if self.undone:
            return "partly undone" if self.left else "undone"
        return "problems" if self.problems else "done"


@dataclass
class _Made:
    """Outcome of carrying out plans.

    ``failed``: reason by switch for which its part failed. ``rules``: problems with packet switches.
    """

    results: _Results = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)


class CircuitManager:
    """Owner of the light of a fabric. One change at a time; reads may come from any thread.

    ``announce``: function that receives the GPUs that have moved, if packet switches are left to other
    controllers; it returns at once.
    """

    def __init__(
        self,
        fabric: Fabric,
        site: OpticalSite,
        forwarding: Forwarding,
        intents: IntentDatabase,
        bus: EventBus,
        announce: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._fabric = fabric
        self._site = site
        self._forwarding = forwarding
        self._intents = intents
        self._bus = bus
        self._changing = threading.RLock()
        self._retry_at: dict[str, float] = {}
        #: The difference that was last told of, by switch.
        self._drifts: dict[str, Drift] = {}
        self._ends: tuple[int, dict[Port, Port | None]] = (-1, {})
        self._followers = Followers(fabric, bus, announce)

    # Reading

    @property
    def revision(self) -> int:
        """Number of the present light, as last read: another one after every change."""
        return self._site.revision

    def cross_connects(self) -> dict[str, frozenset[CrossConnect]]:
        """Return the lit cross-connects by switch, as last read."""
        return self._site.cross_connects()

    def intended(self) -> dict[str, frozenset[CrossConnect]]:
        """Return the cross-connects that should be lit, by switch; empty before the first start."""
        return {name: frozenset(group) for name, group in (self._intents.intended() or {}).items()}

    def ends(self) -> Mapping[Port, Port | None]:
        """Return the electrical port lit to each packet-switch port, None if dark (see
        :func:`.attachments`).
        """
        revision = self._site.revision
        if self._ends[0] != revision:
            self._ends = (revision, attachments(self._fabric, self._site.cross_connects()))
        return self._ends[1]

    @contextlib.contextmanager
    def quiet(self, timeout_s: float = 0.0) -> Iterator[bool]:
        """Holds off changes meanwhile; yields whether that was possible within ``timeout_s``."""
        got = self._changing.acquire(timeout=timeout_s)
        try:
            yield got
        finally:
            if got:
                self._changing.release()

    # Intent

    def intent(self) -> dict[str, frozenset[CrossConnect]] | None:
        """Return the cross-connects that should be lit, by switch; None before the first start."""
        return self._intents.intended()

    def drift(self, name: str) -> Drift:
        """Return the difference between a switch, as last read, and what it should carry; empty if it was
        never read.
        """
        snapshot = self._site.view(name).snapshot
        if snapshot is None:
            return Drift()
        intended = (self._intents.intended() or {}).get(name, frozenset())
        return drift(intended, self._intents.unwanted(name), snapshot)

    def adopt(self) -> None:
        """Complete an interrupted change, keep what is right, light what is missing, then write the rules.
        Called at start.

        The intent is the saved one or, on the first start, the fabric's own circuits. Foreign cross-connects
        are left to the reconciler: some may belong to jobs that are adopted later.
        """
        with self._changing:
            known = self._intents.intended()
            circuits = circuit_cross_connects(self._fabric, self._fabric.circuits)
            missing = {
                name: circuits.get(name, frozenset())
                for name in self._fabric.optical_switches
                if name not in (known or {})
            }
            if missing:
                self._intents.save(missing)
            # Rules for the light that is there come first: traffic may already run on it.
            for name in self._fabric.optical_switches:
                with contextlib.suppress(UnavailableError):
                    self._site.look(name)
            self._forwarding.reconcile(self.cross_connects())
            if (pending := self._intents.pending()) is not None:
                self._finish(pending)
            for name, view in self._site.views().items():
                if view.reachable and self._intents.policy(name) in (Policy.MEND, Policy.REPAIR):
                    self._reconcile(name, Policy.MEND, at_start=True, tells=name not in missing)

    def reconcile(self, names: Iterable[str] | None = None) -> None:
        """Read these switches (None: all), and apply its policy to each that is not as it should be."""
        with self._changing:
            for name in sorted(self._fabric.optical_switches if names is None else names):
                with contextlib.suppress(UnavailableError):
                    self._site.look(name)
                    self._reconcile(name, self._intents.policy(name))

    def is_as_intended(self, name: str) -> bool:
        """Return whether a switch, as last read, needs no :meth:`reconcile` and its published drift is up to
        date.

        Also true of a switch that is kept for a job or cannot be reached.
        """
        view = self._site.view(name)
        if self._site.holder(name) is not None or not view.reachable:
            return True
        difference = self.drift(name)
        if not difference:
            return name not in self._drifts and view.complaint is None and not self._intents.unwanted(name)
        if difference != self._drifts.get(name):
            return False
        # Told; what is worth another attempt is tried again after a while.
        acts = self._intents.policy(name) in (Policy.MEND, Policy.REPAIR)
        return not acts or time.monotonic() < self._retry_at.get(name, 0.0)

    def settle(self, name: str, how: Policy, who: str) -> Drift:
        """Apply a policy once, now, to a switch's difference. Return the difference that remains.

        Raises NotFoundError, UnavailableError, ConflictError for a switch that is kept for a job.
        """
        with self._changing:
            self._site.driver(name)
            if (holder := self._site.holder(name)) is not None:
                raise ConflictError(f"optical switch {name} is kept for job {holder}")
            self._site.look(name)
            self._retry_at.pop(name, None)
            self._reconcile(name, how, who=who)
            return self.drift(name)

    def set_policy(self, name: str | None, policy: Policy | None, who: str) -> None:
        """Set the policy for changes that the controller did not make, on one switch or (None) on all
        switches without their own.

        A ``policy`` of None removes a switch's own. Raises NotFoundError, UnavailableError.
        """
        if name is not None:
            self._site.driver(name)
        with self._changing, self._intents.writing():
            self._intents.set_policy(name, policy)
            self._intents.note(who, "policy", name, policy=None if policy is None else policy.value)
            # Differences that were reported under the other policy are judged again.
            self._drifts.clear()
            self._retry_at.clear()

    def _reconcile(
        self, name: str, policy: Policy, *, who: str = RECONCILER, at_start: bool = False, tells: bool = True
    ) -> None:
        """Apply a policy to a switch's difference, as last read. The caller holds the lock.

        ``tells``: publish a difference as an event; false for light that was never set.
        """
        view = self._site.view(name)
        # A job's light changes all the time; its provider knows what should be lit. Of a switch that cannot
        # be read nothing is known: it is compared when it is back.
        if self._site.holder(name) is not None or view.snapshot is None or not view.reachable:
            return
        difference = self.drift(name)
        if at_start:
            difference = replace(
                difference, foreign=difference.foreign if difference.missing else frozenset()
            )
        if tells and difference and difference != self._drifts.get(name):
            self._tell(name, difference, policy)
        if not difference:
            self._settled(name)
        elif policy is Policy.ADOPT:
            self._take_as_intent(name, view.snapshot, difference, who)
        elif policy is Policy.ALARM:
            self._site.complain(name, f"is not as it should be: {difference}")
            self._site.remark(name, None)
        else:
            job = mending(difference, view.snapshot, exactly=policy is Policy.REPAIR)
            if job.plan and time.monotonic() >= self._retry_at.get(name, 0.0):
                self._mend(name, job, policy, view.snapshot, who)
            elif not job.plan:
                self._judge(name, job, None)

    def _tell(self, name: str, difference: Drift, policy: Policy) -> None:
        """Say once that a switch differs from what it should be."""
        self._drifts[name] = difference
        self._retry_at.pop(name, None)
        fields = {key: [str(xc) for xc in sorted(group)] for key, group in vars(difference).items() if group}
        log.warning("%s: %s", name, difference)
        self._bus.publish("drift", switch=name, policy=policy.value, text=str(difference), **fields)
        self._site.meters.drifts.labels(name, policy.value).inc()
        self._intents.try_note(OUTSIDE, "drift", name, "seen", policy=policy.value, **fields)

    def _settled(self, name: str) -> None:
        """Clear the alarms of a switch that carries what it should and nothing else."""
        if self._drifts.pop(name, None) is not None:
            self._bus.publish("drift_over", switch=name)
        self._retry_at.pop(name, None)
        self._site.complain(name, None)
        self._site.remark(name, None)
        if unwanted := self._intents.unwanted(name):
            with self._on_disk():
                self._intents.gone(name, unwanted)

    def _take_as_intent(self, name: str, now: Snapshot, difference: Drift, who: str) -> None:
        with self._on_disk():
            with self._intents.writing():
                self._intents.save({name: standing(now) - now.foreign})
                self._intents.note(who, "adopt", name, text=str(difference))
            self._settled(name)

    def _mend(self, name: str, job: Mending, policy: Policy, now: Snapshot, who: str) -> None:
        log.info("%s: %d to remove, %d to make", name, len(job.plan.remove), len(job.plan.add))
        timeline: list[Mapping[str, Any]] = []
        began = time.monotonic()
        made = self._carry_out({name: job.plan}, {name: now}, _marker(timeline))
        problem = made.failed.get(name) or next(iter(made.rules), None)
        outcome = "done" if problem is None else "failed"
        self._count(outcome, began)
        detail = _pairs_of(job.plan)
        self._intents.try_note(
            who, policy.value, name, outcome, **detail, **({"text": problem} if problem else {})
        )
        self._publish({name: job.plan}, timeline, [problem] if problem else [], outcome, who, made.results)
        self._retry_at.pop(name, None)
        self._judge(name, job, made.failed.get(name))

    def _judge(self, name: str, job: Mending, problem: str | None) -> None:
        """Say what is still not as it should be after an attempt to mend a switch."""
        difference = self.drift(name)
        if not difference:
            self._settled(name)
            return
        self._drifts[name] = difference
        if self._retry_at.get(name, 0.0) <= time.monotonic():
            self._retry_at[name] = time.monotonic() + _RETRY_S
        why = problem or next((f"{xc}: {reason}" for xc, reason in sorted(job.cannot.items())), None)
        lacking = difference.missing or difference.broken or difference.left
        self._site.complain(
            name, f"does not carry what it should: {why or difference}" if lacking or problem else None
        )
        self._site.remark(name, str(Drift(foreign=difference.foreign)) if difference.foreign else None)

    def _finish(self, pending: Pending) -> None:
        """End a change that a crash interrupted: complete it or, if that is impossible, undo it."""
        intended = self._intents.intended() or {}
        names = [name for name in pending.before if self._site.holder(name) is None]
        now = {name: view.snapshot for name, view in self._site.views().items() if view.reachable}
        jobs: dict[str, Mending] = {}
        for name in names:
            if (snapshot := now.get(name)) is not None:
                old = frozenset(pending.before[name]) - intended[name]
                difference = replace(drift(intended[name], old, snapshot), foreign=frozenset())
                jobs[name] = mending(difference, snapshot, exactly=False)
        cannot = [
            f"optical switch {n}: {x}: {why}" for n, job in jobs.items() for x, why in job.cannot.items()
        ]
        cannot += [f"optical switch {name} cannot be reached" for name in names if name not in jobs]
        if not cannot:
            seen = {name: snapshot for name, snapshot in now.items() if snapshot is not None}
            plans = {name: job.plan for name, job in jobs.items()}
            cannot = list(self._carry_out(plans, seen, _marker([])).failed.values())
        if not cannot:
            with self._on_disk(), self._intents.writing():
                self._intents.end()
                self._intents.note(RECONCILER, "finish", text=f"a change of {pending.who} that was cut short")
            return
        text = cannot[0]
        log.warning("a change of %s that was cut short cannot be finished: %s", pending.who, text)
        new = {name: intended[name] - frozenset(pending.before[name]) for name in names}
        with self._on_disk(), self._intents.writing():
            self._intents.take_back(new)
            self._intents.note(RECONCILER, "take back", outcome="undone", begun_by=pending.who, text=text)
        for name in jobs:
            self._reconcile(name, Policy.MEND, at_start=True)

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Yield around a database write after light has changed.

        A failing disk is logged and is not an error.
        """
        try:
            yield
        except UnavailableError as error:
            log.error("%s", error)

    # Changing

    def set_circuits(
        self, circuits: Iterable[tuple[Port, Port]], *, who: str, dry_run: bool = False
    ) -> Change:
        """Set exactly these duplex circuits, over all optical switches. Return the change.

        Raises InvalidError if the circuits cannot all be made, UnavailableError if a switch cannot be read
        (nothing was changed).
        """
        try:
            cross_connects = circuit_cross_connects(self._fabric, circuits)
        except ValueError as error:
            raise InvalidError(str(error)) from error
        targets = {name: Target(tuple(group), Mode.REPLACE) for name, group in cross_connects.items()}
        return self.change(targets, who=who, dry_run=dry_run)

    def change(
        self, targets: Mapping[str, Target], *, who: str, dry_run: bool = False, whole: bool = True
    ) -> Change:
        """Change some switches' cross-connects, with the rules in between. Return the change.

        With ``whole``, the change happens on all switches or on none. Otherwise what failed stays wanted, and
        is tried again. ``who``: name for the audit log. Raises InvalidError if the cross-connects cannot all
        be made, UnavailableError if a switch cannot be read, ConflictError if SAFE mode or another owner
        forbids the change, NotFoundError.
        """
        with self._changing:
            return self._change(targets, who, dry_run, whole)

    def _change(self, targets: Mapping[str, Target], who: str, dry_run: bool, whole: bool) -> Change:
        timeline: list[Mapping[str, Any]] = []
        mark = _marker(timeline)
        mark("start")
        before: dict[str, Snapshot] = {}
        plans: dict[str, Plan] = {}
        for name, target in targets.items():
            before[name] = self._site.look(name)
            # Asked afterwards: what a job has made since is then known to be a job's.
            if (holder := self._site.holder(name)) is not None:
                raise ConflictError(f"optical switch {name} is kept for job {holder}")
            plans[name] = self._plan(name, target, before[name])
        mark("planned")
        if dry_run:
            return Change(plans, timeline=tuple(timeline))
        old = self._intents.intended() or {}
        intended = {name: _with(old.get(name, frozenset()), target) for name, target in targets.items()}
        self._intents.begin(who, intended)
        made = self._carry_out(plans, before, mark, whole=whole)
        problems = [*made.failed.values(), *made.rules]
        undone, left = bool(made.failed) and whole, tuple[Leftover, ...]()
        if undone:
            mark("taking_back")
            left, more = self._take_back(plans, made.failed, mark)
            problems += [*map(str, left), *more]
        change = Change(
            plans, True, made.results, tuple(timeline), tuple(dict.fromkeys(problems)), undone, left
        )
        # That it is done may be forgotten in a crash of the machine: the next start finds it so.
        with self._on_disk(), self._intents.writing(lasting=undone):
            if undone:
                self._intents.take_back(_still_to_remove(left))
            else:
                self._intents.end()
            for name, plan in plans.items():
                if plan or change.problems:
                    text = {"text": change.problems[0]} if change.problems else {}
                    self._intents.note(who, "change", name, change.outcome, **_pairs_of(plan), **text)
        for name in plans:
            difference = self.drift(name)
            if name in made.failed and (difference or not self._site.view(name).reachable):
                # Ours, and told; a switch that is away is compared when it is back.
                self._drifts[name] = difference
                self._retry_at[name] = time.monotonic() + _RETRY_S
                self._site.complain(name, f"does not carry what it should: {made.failed[name]}")
            elif not difference:
                self._settled(name)
        self._count(change.outcome, timeline[0]["t"])
        self._publish(plans, timeline, change.problems, change.outcome, who, change.results)
        return change

    def _take_back(
        self, plans: Mapping[str, Plan], failed: Mapping[str, str], mark: _Mark
    ) -> tuple[tuple[Leftover, ...], list[str]]:
        """Restore the state before these plans.

        Return the cross-connects that differ, and the problems with the rules.
        """
        changed = {name: plan for name, plan in plans.items() if plan}
        seen = self._readings(changed)
        back = {name: taken_back(changed[name], now) for name, now in seen.items() if now is not None}
        made = self._carry_out(back, {n: s for n, s in seen.items() if s is not None}, mark)
        mark("taken_back")
        messages = {**failed, **made.failed}
        reasons = {name: text.removeprefix(f"optical switch {name}: ") for name, text in messages.items()}
        return leftovers(changed, self._readings(changed), reasons), made.rules

    def _readings(self, names: Iterable[str]) -> dict[str, Snapshot | None]:
        """Return the newest reading of each switch; None if the switch could not be read last."""
        views = self._site.views()
        return {name: views[name].snapshot if views[name].reachable else None for name in names}

    def _carry_out(
        self, plans: Mapping[str, Plan], before: Mapping[str, Snapshot], mark: _Mark, *, whole: bool = False
    ) -> _Made:
        """Apply these plans to their switches, with the rules between. Return the outcome.

        ``before``: the readings from which the plans were made. ``whole``: if any removal fails, nothing is
        added on any switch.
        """
        seen = dict(before)
        changing = {name: plan for name, plan in plans.items() if plan}
        light = self.cross_connects()
        kept = {**light, **{name: light[name] - set(plan.remove) for name, plan in changing.items()}}
        after = {**light, **{name: plan.keep | set(plan.add) for name, plan in plans.items()}}
        stages = self._forwarding.stages(light, kept, after)
        made = _Made()
        if stages.detour is not None:
            made.rules += self._forwarding.write(stages.detour).values()
            mark("detoured", flow_changes=stages.detour.changes)
        rules = stages.dark
        if rules is not None:
            made.rules += rules.failed.values()
        goes = sum(len(plan.remove) for plan in changing.values())
        comes = sum(len(plan.add) for plan in changing.values())
        window = None if rules is None else self._common_darkness(changing)
        if rules is None or window is not None:
            mark("remove_light", cross_connects=goes)
            if rules is None or window is None:
                self._on_all(changing, seen, made)
            else:
                with ThreadPoolExecutor(max_workers=1) as beside:
                    writing = beside.submit(self._write_rules, rules, mark, *window)
                    self._on_all(changing, seen, made)
                    made.rules += writing.result()
            mark("light_added", cross_connects=comes)
        else:
            self._remove_then_add(changing, rules, seen, mark, made, whole)
        self._excuse(changing, made)
        for message in made.failed.values():
            log.error("%s", message)
        self._verify_rules(stages, after, made)
        mark("verified")
        return made

    def _excuse(self, plans: Mapping[str, Plan], made: _Made) -> None:
        """Drop reported failures of switches whose readings show the wanted state."""
        for name, now in self._readings(plans).items():
            if now is not None and achieved(plans[name], now):
                if (message := made.failed.pop(name, None)) is not None:
                    log.warning("%s; yet it is as it should be", message)
            elif name not in made.failed:
                made.failed[name] = f"optical switch {name}: it does not carry what it was told to"

    def _verify_rules(self, stages: Stages, after: CrossConnects, made: _Made) -> None:
        """Point packets along the light there is, and read that back."""
        seen = self.cross_connects()
        if made.failed or any(after[name] != seen[name] for name in after):
            made.rules += self._forwarding.reconcile(seen).values()
            return
        if stages.last is not None:
            made.rules += self._forwarding.write(stages.last).values()
        wrote = any(stage is not None for stage in (stages.detour, stages.dark, stages.last))
        if wrote and self._forwarding.verify(stages.rules):
            # A switch that was away, or someone else who wrote: from what the tables have now.
            made.rules += self._forwarding.reconcile(seen).values()

    def _count(self, outcome: str, began: float) -> None:
        self._site.meters.changes.labels(outcome).inc()
        self._site.meters.change_s.observe(time.monotonic() - began)

    def _publish(
        self,
        plans: Mapping[str, Plan],
        timeline: Iterable[Any],
        problems: Iterable[str],
        outcome: str,
        who: str,
        results: Mapping[str, Iterable[CrossConnectResult]],
    ) -> None:
        dark = {
            (name, result.ingress, result.egress): (result.t_dark, result.t_lit)
            for name, group in results.items()
            for result in group
        }

        def described(name: str, xc: CrossConnect) -> dict[str, Any]:
            t_dark, t_lit = dark.get((name, xc.ingress, xc.egress), (None, None))
            ports = {"ingress": xc.ingress, "egress": xc.egress, "wavelength": xc.wavelength}
            return {**ports, "t_dark": t_dark, "t_lit": t_lit}

        self._bus.publish(
            "circuits",
            who=who,
            changes={
                name: {key: [described(name, xc) for xc in getattr(plan, key)] for key in ("remove", "add")}
                for name, plan in plans.items()
                if plan
            },
            added=sum(len(p.add) for p in plans.values()),
            removed=sum(len(p.remove) for p in plans.values()),
            kept=sum(len(p.keep) for p in plans.values()),
            timeline=list(timeline),
            problems=list(problems),
            outcome=outcome,
        )
        self.tell_followers()

    def tell_followers(self) -> None:
        """Say what the light has changed at packet switches that another controller looks after."""
        self._followers.tell(self.ends)

    def _common_darkness(self, plans: Mapping[str, Plan]) -> tuple[float, float] | None:
        """Return the interval in which everything that changes is certainly dark, in seconds after the
        commands.

        None if there is no such interval, it is too short for the rules, or a switch cannot remove and add in
        one write.
        """
        if not plans:
            return None
        begins, ends = [], []
        for name, plan in plans.items():
            driver = self._site.driver(name)
            if not driver.replaces_at_once(plan):
                return None
            timing = driver.capabilities().timing
            each_s = timing.per_cross_connect_s * len({xc.ingress for xc in (*plan.remove, *plan.add)})
            begins.append(timing.command.most_s + each_s)
            ends.append(timing.command.least_s + each_s + timing.dark.least_s)
        begin_s, end_s = max(begins), min(ends)
        if end_s - begin_s < _ROOM_FOR_RULES_S:
            return None
        return begin_s + (end_s - begin_s) * _DARK_FOR_SURE, end_s

    def _write_rules(self, rules: ForwardingPlan, mark: _Mark, begin_s: float, end_s: float) -> list[str]:
        """Write rules ``begin_s`` seconds from now. Return one line for each switch that failed."""
        began = time.monotonic()
        time.sleep(begin_s)
        failed = list(self._forwarding.write(rules).values())
        late_s = max(0.0, time.monotonic() - began - end_s)
        mark("rules_written", flow_changes=rules.changes, late_s=late_s)
        if late_s:
            log.warning("rules were written %.0f ms after new light could have come", late_s * 1e3)
        return failed

    def _remove_then_add(
        self,
        plans: Mapping[str, Plan],
        rules: ForwardingPlan,
        seen: dict[str, Snapshot],
        mark: _Mark,
        made: _Made,
        whole: bool,
    ) -> None:
        """Make a change in two writes on each switch. Nothing is added if the removal failed."""
        dark = {name: replace(plan, add=()) for name, plan in plans.items() if plan.remove}
        bright = {name: replace(plan, remove=()) for name, plan in plans.items() if plan.add}
        mark("remove_light", cross_connects=sum(len(p.remove) for p in dark.values()))
        self._on_all(dark, seen, made)
        mark("light_removed")
        made.rules += self._forwarding.write(rules).values()
        mark("rules_written", flow_changes=rules.changes)
        removed, made.results = made.results, {}
        self._excuse(dark, made)
        ready = {name: plan for name, plan in bright.items() if name not in made.failed}
        if whole and made.failed:
            ready = {}
        self._on_all(ready, seen, made)
        mark("light_added", cross_connects=sum(len(p.add) for p in ready.values()))
        made.results = {name: _merge(removed.get(name, ()), made.results.get(name, ())) for name in plans}

    def _plan(self, name: str, target: Target, snapshot: Snapshot) -> Plan:
        try:
            return self._site.driver(name).plan(
                target.cross_connects, target.mode, delete=target.delete, snapshot=snapshot
            )
        except PortBusy as error:
            raise ConflictError(f"optical switch {name}: {error}") from error
        except Rejected as error:
            raise InvalidError(f"optical switch {name}: {error}") from error
        except OpticalError as error:
            raise UnavailableError(f"optical switch {name}: {error}") from error

    def _apply(self, name: str, plan: Plan, seen: dict[str, Snapshot]) -> tuple[CrossConnectResult, ...]:
        """Apply half of a plan, if the switch is still as in ``seen``.

        Return the results and update ``seen``.
        """
        timing = self._site.driver(name).capabilities().timing
        patience_s = PATIENCE_S + 4 * (timing.command.most_s + timing.dark.most_s) + timing.settle_s
        plan = replace(plan, base_revision=seen[name].revision)
        result = self._site.apply(name, plan, timeout_s=patience_s, seen=seen[name])
        seen[name] = result.snapshot
        self._site.remember(name, result.snapshot)
        return result.results

    def _on_all(self, plans: Mapping[str, Plan], seen: dict[str, Snapshot], made: _Made) -> None:
        """Apply each plan, on every switch at the same time; results and failures go to ``made``."""

        def apply_one(name: str) -> tuple[tuple[CrossConnectResult, ...], str | None]:
            try:
                return self._apply(name, plans[name], seen), None
            except OpticalError as error:
                results: tuple[CrossConnectResult, ...] = ()
                if isinstance(error, NotAsPlanned) and error.result is not None:
                    self._site.remember(name, error.result.snapshot)
                    results = error.result.results
                else:
                    with contextlib.suppress(UnavailableError):
                        self._site.look(name)
                return results, f"optical switch {name}: {error}"

        if len(plans) <= 1:
            outcomes = [apply_one(name) for name in plans]
        else:
            with ThreadPoolExecutor(max_workers=min(16, len(plans))) as pool:
                outcomes = list(pool.map(apply_one, plans))
        for name, (results, failure) in zip(plans, outcomes, strict=True):
            made.results[name] = results
            if failure is not None:
                made.failed[name] = failure


def _marker(timeline: list[Mapping[str, Any]]) -> _Mark:
    def mark(phase: str, **fields: Any) -> None:
        timeline.append({"t": time.monotonic(), "phase": phase, **fields})

    return mark


def _with(old: frozenset[CrossConnect], target: Target) -> frozenset[CrossConnect]:
    """Return the cross-connects that a switch should carry once this target is applied to the old ones."""
    left = {xc for xc in old if xc.ingress not in target.delete}
    mode = Mode.REPLACE if target.mode is Mode.REPLACE else Mode.UPDATE
    changes = plan_changes(left, target.cross_connects, mode)
    named = {xc: xc for xc in target.cross_connects}
    return frozenset(named.get(xc, xc) for xc in changes.keep | changes.add)


def _still_to_remove(left: Iterable[Leftover]) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects that an undone change may have left in place, by switch."""
    by_switch: dict[str, frozenset[CrossConnect]] = {}
    for leftover in left:
        if leftover.state is not Found.GONE:
            by_switch[leftover.switch] = by_switch.get(leftover.switch, frozenset()) | {
                leftover.cross_connect
            }
    return by_switch


def _pairs_of(plan: Plan) -> dict[str, list[str]]:
    """Return the cross-connects that a plan removes and adds, as texts for the audit log."""
    return {key: [str(xc) for xc in getattr(plan, key)] for key in ("remove", "add")}


def _merge(
    removed: Iterable[CrossConnectResult], added: Iterable[CrossConnectResult]
) -> tuple[CrossConnectResult, ...]:
    """Return one result per cross-connect of a change that was made as a removal and an addition.

    A new cross-connect was dark from the removal of the light that used its ports before.
    """
    removed, added = tuple(removed), tuple(added)
    dark_at: dict[int | None, float] = {}
    for r in removed:
        if r.t_dark is not None:
            for port in (r.ingress, r.egress):
                dark_at[port] = min(r.t_dark, dark_at.get(port, r.t_dark))
    results = {(r.ingress, r.egress): r for r in removed}
    for r in added:
        known = [dark_at[p] for p in (r.ingress, r.egress) if p in dark_at]
        if r.t_dark is None and known:
            r = replace(r, t_dark=min(known))
        results[r.ingress, r.egress] = r
    return tuple(results[key] for key in sorted(results, key=lambda k: (k[0], k[1] or 0)))
