"""Manage circuits: keep the intended ones, and change the light to them.

A change is made on all of its switches or on none: where one does not do its part, all that was changed is
taken back, and what cannot be is named by switch and cross-connect.

What should be lit (the intent) is on disk before the first write, so a crash in between is mended by the
next start.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.altering import altered
from ringlight.controller.circuits.announcing import Announcer
from ringlight.controller.circuits.change import (
    Change,
    Mark,
    Target,
    carried_after,
    marker,
    pairs_of,
    still_to_remove,
)
from ringlight.controller.circuits.drift import Drift, Mending, Policy, drift, mending
from ringlight.controller.circuits.generation import History
from ringlight.controller.circuits.intent import IntentDatabase, Pending, on_disk
from ringlight.controller.circuits.light_writer import LightWriter
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.transaction import Leftover, leftovers, taken_back
from ringlight.controller.circuits.upkeep import RECONCILER, Upkeep
from ringlight.controller.errors import ConflictError, InvalidError, UnavailableError
from ringlight.controller.optical.errors import OpticalError, PortBusy, Rejected
from ringlight.controller.optical.model import Plan, Snapshot
from ringlight.controller.packets.attachment import attachments
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.port_notifications import Followers
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.parts import Port
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    circuit_switches,
)

log = logging.getLogger(__name__)


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
        self._changing = threading.RLock()
        self._ends: tuple[int, dict[Port, Port | None]] = (-1, {})
        self._followers = Followers(fabric, bus, announce)
        self._writer = LightWriter(site, forwarding)
        self._history = History()
        self._announcer = Announcer(
            bus, site, self._history, self.ends, self.tell_followers
        )
        self._upkeep = Upkeep(site, intents, bus, self._writer, self._announcer)

    # Reading

    @property
    def revision(self) -> int:
        """Number of the present light of every switch, as last read: another one after every change."""
        return self._site.revision

    def generation(self) -> int:
        """Return the number of the present circuits, as last read. It grows with every change."""
        return self._site.generation()

    def light(self) -> tuple[int, dict[str, frozenset[CrossConnect]]]:
        """Return the lit cross-connects by switch, as last read, after their generation."""
        return self._site.light()

    def cross_connects(self) -> dict[str, frozenset[CrossConnect]]:
        """Return the lit cross-connects by switch, as last read."""
        return self._site.cross_connects()

    def intended(self) -> dict[str, frozenset[CrossConnect]]:
        """Return the cross-connects that should be lit, by switch; empty before the first start."""
        return self._intents.intended() or {}

    def ends(self) -> Mapping[Port, Port | None]:
        """Return the electrical port lit to each packet-switch port, None if dark (see
        :func:`.attachments`).
        """
        revision, ends = self._site.revision, self._ends
        if ends[0] != revision:
            ends = revision, attachments(self._fabric, self._site.cross_connects())
            self._ends = ends
        return ends[1]

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

    def drift(self, name: str) -> Drift:
        """Return the difference between a switch, as last read, and what it should carry; empty if it was
        never read.
        """
        return self._upkeep.drift(name)

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
                if view.reachable and self._intents.policy(name) in (
                    Policy.MEND,
                    Policy.REPAIR,
                ):
                    self._upkeep.reconcile(
                        name, Policy.MEND, at_start=True, tells=name not in missing
                    )

    def reconcile(self, names: Iterable[str] | None = None) -> None:
        """Read these switches (None: all), and apply its policy to each that is not as it should be."""
        with self._changing:
            for name in sorted(
                self._fabric.optical_switches if names is None else names
            ):
                with contextlib.suppress(UnavailableError):
                    self._site.look(name)
                    self._upkeep.reconcile(name, self._intents.policy(name))

    def is_as_intended(self, name: str) -> bool:
        """Return whether a switch, as last read, needs no :meth:`reconcile` and its published drift is up to
        date.

        Also true of a switch that is kept for a job or cannot be reached.
        """
        return self._upkeep.is_as_intended(name)

    def settle(self, name: str, how: Policy, who: str) -> Drift:
        """Apply a policy once, now, to a switch's difference. Return the difference that remains.

        Raises NotFoundError, UnavailableError, ConflictError for a switch that is kept for a job.
        """
        with self._changing:
            self._site.driver(name)
            if (holder := self._site.holder(name)) is not None:
                raise ConflictError(f"optical switch {name} is kept for job {holder}")
            self._site.look(name)
            self._upkeep.retry_now(name)
            self._upkeep.reconcile(name, how, who=who)
            return self._upkeep.drift(name)

    def set_policy(self, name: str | None, policy: Policy | None, who: str) -> None:
        """Set the policy for changes that the controller did not make, on one switch or (None) on all
        switches without their own.

        A ``policy`` of None removes a switch's own. Raises NotFoundError, UnavailableError.
        """
        if name is not None:
            self._site.driver(name)
        with self._changing, self._intents.writing():
            self._intents.set_policy(name, policy)
            self._intents.note(
                who, "policy", name, policy=None if policy is None else policy.value
            )
            self._upkeep.judge_anew()

    def _finish(self, pending: Pending) -> None:
        """End a change that a crash interrupted: complete it or, if that is impossible, undo it."""
        intended = self._intents.intended() or {}
        names = [name for name in pending.before if self._site.holder(name) is None]
        now = {
            name: view.snapshot
            for name, view in self._site.views().items()
            if view.reachable
        }
        jobs: dict[str, Mending] = {}
        for name in names:
            if (snapshot := now.get(name)) is not None:
                old = frozenset(pending.before[name]) - intended[name]
                difference = replace(
                    drift(intended[name], old, snapshot), foreign=frozenset()
                )
                jobs[name] = mending(difference, snapshot, exactly=False)
        cannot = [
            f"optical switch {n}: {x}: {why}"
            for n, job in jobs.items()
            for x, why in job.cannot.items()
        ]
        cannot += [
            f"optical switch {name} cannot be reached"
            for name in names
            if name not in jobs
        ]
        if not cannot:
            seen = {
                name: snapshot for name, snapshot in now.items() if snapshot is not None
            }
            plans = {name: job.plan for name, job in jobs.items()}
            cannot = list(
                self._writer.carry_out(plans, seen, marker([])).failed.values()
            )
        if not cannot:
            with on_disk(), self._intents.writing():
                self._intents.end()
                self._intents.note(
                    RECONCILER,
                    "finish",
                    text=f"a change of {pending.who} that was cut short",
                )
            return
        text = cannot[0]
        log.warning(
            "a change of %s that was cut short cannot be finished: %s",
            pending.who,
            text,
        )
        new = {name: intended[name] - frozenset(pending.before[name]) for name in names}
        with on_disk(), self._intents.writing():
            self._intents.take_back(new)
            self._intents.note(
                RECONCILER,
                "take back",
                outcome="undone",
                begun_by=pending.who,
                text=text,
            )
        for name in jobs:
            self._upkeep.reconcile(name, Policy.MEND, at_start=True)

    # Changing

    def set_circuits(
        self,
        circuits: Iterable[tuple[Port, Port]],
        *,
        who: str,
        dry_run: bool = False,
        expect: int | None = None,
    ) -> Change:
        """Set exactly these duplex circuits, over all optical switches. Return the change.

        ``expect``: see :meth:`change`. Raises InvalidError if the circuits cannot all be made, ConflictError,
        UnavailableError if a switch cannot be read (nothing was changed).
        """
        try:
            cross_connects = circuit_cross_connects(self._fabric, circuits)
        except ValueError as error:
            raise InvalidError(str(error)) from error
        targets = {
            name: Target(tuple(group), Mode.REPLACE)
            for name, group in cross_connects.items()
        }
        return self.change(targets, who=who, dry_run=dry_run, expect=expect)

    def alter_circuits(
        self,
        add: Iterable[tuple[str, str]],
        remove: Iterable[tuple[str, str]],
        *,
        who: str,
        dry_run: bool = False,
        expect: int | None = None,
    ) -> Change:
        """Remove some duplex circuits and add others; the rest stays lit. Return the change.

        See :func:`.altered` for the ends, and :meth:`change` for ``expect`` and what is raised.
        """
        with self._changing:
            for name in circuit_switches(self._fabric):
                self._site.look(name)
            targets = altered(self._fabric, self.cross_connects(), add, remove)
            return self._change(targets, who, dry_run, True, expect, None)

    def change(
        self,
        targets: Mapping[str, Target],
        *,
        who: str,
        dry_run: bool = False,
        whole: bool = True,
        expect: int | None = None,
        of: str | None = None,
    ) -> Change:
        """Change some switches' cross-connects, with the rules in between. Return the change.

        With ``whole``, the change happens on all switches or on none. Otherwise what failed stays wanted, and
        is tried again. ``who``: name for the audit log. ``expect``: generation of the light of all switches,
        or of the one named ``of``, that the caller has read. Raises InvalidError if the cross-connects cannot
        all be made, UnavailableError if a switch cannot be read, ConflictError if SAFE mode or another owner
        forbids the change or the light is of another generation, NotFoundError.
        """
        with self._changing:
            return self._change(targets, who, dry_run, whole, expect, of)

    def _change(
        self,
        targets: Mapping[str, Target],
        who: str,
        dry_run: bool,
        whole: bool,
        expect: int | None,
        of: str | None,
    ) -> Change:
        timeline: list[Mapping[str, Any]] = []
        mark = marker(timeline)
        mark("start")
        before: dict[str, Snapshot] = {}
        plans: dict[str, Plan] = {}
        for name in targets:
            before[name] = self._site.look(name)
        if expect is not None:
            self._history.check(expect, self._site.generation(of), of)
        for name, target in targets.items():
            # Asked afterwards: what a job has made since is then known to be a job's.
            if (holder := self._site.holder(name)) is not None:
                raise ConflictError(f"optical switch {name} is kept for job {holder}")
            plans[name] = self._plan(name, target, before[name])
        mark("planned")
        if dry_run:
            generation = self._site.generation(of)
            return Change(plans, timeline=tuple(timeline), generation=generation)
        self._announcer.begin()
        old = self._intents.intended() or {}
        intended = {
            name: carried_after(old.get(name, frozenset()), target)
            for name, target in targets.items()
        }
        self._intents.begin(who, intended)
        made = self._writer.carry_out(plans, before, mark, whole=whole)
        problems = [*made.failed.values(), *made.rules]
        undone, left = bool(made.failed) and whole, tuple[Leftover, ...]()
        if undone:
            mark("taking_back")
            left, more = self._take_back(plans, made.failed, mark)
            problems += [*map(str, left), *more]
        change = Change(
            plans,
            True,
            made.results,
            tuple(timeline),
            tuple(dict.fromkeys(problems)),
            undone,
            left,
            self._site.generation(of),
        )
        # That it is done may be forgotten in a crash of the machine: the next start finds it so.
        with on_disk(), self._intents.writing(lasting=undone):
            if undone:
                self._intents.take_back(still_to_remove(left))
            else:
                self._intents.end()
            for name, plan in plans.items():
                if plan or change.problems:
                    text = {"text": change.problems[0]} if change.problems else {}
                    self._intents.note(
                        who, "change", name, change.outcome, **pairs_of(plan), **text
                    )
        for name in plans:
            self._upkeep.after_change(name, made.failed.get(name))
        self._announcer.count(change.outcome, timeline[0]["t"])
        self._announcer.publish(
            plans, timeline, change.problems, change.outcome, who, change.results
        )
        return change

    def _take_back(
        self, plans: Mapping[str, Plan], failed: Mapping[str, str], mark: Mark
    ) -> tuple[tuple[Leftover, ...], list[str]]:
        """Restore the state before these plans.

        Return the cross-connects that differ, and the problems with the rules.
        """
        changed = {name: plan for name, plan in plans.items() if plan}
        seen = self._writer.readings(changed)
        back = {
            name: taken_back(changed[name], now)
            for name, now in seen.items()
            if now is not None
        }
        made = self._writer.carry_out(
            back, {n: s for n, s in seen.items() if s is not None}, mark
        )
        mark("taken_back")
        messages = {**failed, **made.failed}
        reasons = {
            name: text.removeprefix(f"optical switch {name}: ")
            for name, text in messages.items()
        }
        return leftovers(changed, self._writer.readings(changed), reasons), made.rules

    def tell_followers(self) -> None:
        """Say what the light has changed at packet switches that another controller looks after."""
        self._followers.tell(self.ends)

    def _plan(self, name: str, target: Target, snapshot: Snapshot) -> Plan:
        try:
            return self._site.driver(name).plan(
                target.cross_connects,
                target.mode,
                delete=target.delete,
                snapshot=snapshot,
            )
        except PortBusy as error:
            raise ConflictError(f"optical switch {name}: {error}") from error
        except Rejected as error:
            raise InvalidError(f"optical switch {name}: {error}") from error
        except OpticalError as error:
            raise UnavailableError(f"optical switch {name}: {error}") from error
