"""The circuit manager: what should be lit, and the change from what is lit now to that.

A change of light is made in this order: remove the light that goes, point the packet switches' rules
along the new paths (each behind a barrier, nearest to the destination first), then add the new light.
So no packet is ever sent the old way over new light, and what keeps its light is never touched. Where the
switches can remove and add in one write and are declared to be dark for longer than the rules take, they do
so, and the rules are written in that one dark time.

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

from controller.bus import EventBus
from controller.circuits.optical_site import OpticalSite, lit
from controller.errors import ConflictError, ControllerError, InvalidError, UnavailableError
from controller.optical.base import CrossConnectResult, Plan, Snapshot
from controller.optical.errors import NotAsPlanned, OpticalError, PortBusy, Rejected
from controller.packets.attachment import attachments
from controller.packets.forwarding import Forwarding, ForwardingPlan
from controller.store import Store
from fabric.crossconnect import CrossConnect, Mode
from fabric.topology import CrossConnects, Fabric, Port, circuit_cross_connects

log = logging.getLogger(__name__)

_INTENT = "intent"
#: Pause before a switch that did not do what it should is asked again, seconds.
_RETRY_S = 5.0
#: Declared darkness, seconds, from which on rules are written during it; they take a few milliseconds.
_ROOM_FOR_RULES_S = 0.02
#: Share of the declared darkness that passes first, as a command may start a little late.
_DARK_FOR_SURE = 0.2


_Mark = Callable[..., None]
#: What became of cross-connects, by switch.
_Results = dict[str, tuple[CrossConnectResult, ...]]


@dataclass(frozen=True)
class Target:
    """What one optical switch shall carry: ``wanted`` in ``mode``; nothing at the ``delete`` ingresses."""

    wanted: tuple[CrossConnect, ...] = ()
    mode: Mode = Mode.UPDATE
    delete: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """A change of light and what came of it.

    ``plans`` and ``results`` by optical switch; ``timeline``: phases in order, each
    ``{"t": CLOCK_MONOTONIC seconds, "phase": …}``. ``problems``: what did not work, one line each.
    """

    plans: Mapping[str, Plan]
    applied: bool = False
    results: Mapping[str, tuple[CrossConnectResult, ...]] = field(default_factory=dict)
    timeline: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


class CircuitManager:
    """Owns the light of a fabric. One change at a time; reads may come from any thread."""

    def __init__(
        self, fabric: Fabric, site: OpticalSite, forwarding: Forwarding, store: Store, bus: EventBus
    ) -> None:
        self._fabric = fabric
        self._site = site
        self._forwarding = forwarding
        self._store = store
        self._bus = bus
        self._changing = threading.RLock()
        self._unmet: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._ends: tuple[int, dict[Port, Port | None]] = (-1, {})
        #: What is on disk, once it has been read or written.
        self._intent: dict[str, frozenset[CrossConnect]] | None = None

    # Reading

    def cross_connects(self) -> dict[str, frozenset[CrossConnect]]:
        """What is lit now, as last read from the switches."""
        return self._site.cross_connects()

    def ends(self) -> Mapping[Port, Port | None]:
        """The electrical port lit to each packet-switch port (see :mod:`controller.attachment`)."""
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
        """What should be lit, by switch; None before the first start. Raises ValueError on a bad file."""
        if self._intent is None and (document := self._store.read(_INTENT)) is not None:
            self._intent = {
                name: frozenset(
                    CrossConnect(e["ingress"], e["egress"], e.get("wavelength"), e.get("name"))
                    for e in entries
                )
                for name, entries in document["cross_connects"].items()
            }
        return None if self._intent is None else dict(self._intent)

    def adopt(self) -> None:
        """At start: read every switch, keep what is right, light what is missing; then the rules.

        What should be lit is the saved intent or, on the first start, the fabric's own circuits. A
        cross-connect that nobody asked for is left alone unless it stands in the way.
        """
        with self._changing:
            intent = self.intent()
            if intent is None:
                intent = circuit_cross_connects(self._fabric, self._fabric.circuits)
                self._save(intent)
            self._unmet = set(self._fabric.optical_switches)
            # Rules for the light that is there come first: traffic may already run on it.
            for name in self._fabric.optical_switches:
                with contextlib.suppress(UnavailableError):
                    self._site.look(name)
            self._forwarding.reconcile(self.cross_connects())
            self.mend()

    def mend(self) -> None:
        """Bring every switch that does not carry its intent to it, as far as it can be reached."""
        with self._changing:
            for name in sorted(self._unmet):
                if self._site.holder(name) is not None:
                    # A conductor's, which changes its light all the time.
                    self._unmet.discard(name)
                    continue
                if time.monotonic() >= self._retry_at.get(name, 0.0):
                    self._mend(name)

    def forget_met(self, name: str) -> None:
        """The switch was away; what it carries must be compared with the intent again."""
        with self._changing:
            self._unmet.add(name)
            self._retry_at.pop(name, None)

    def _mend(self, name: str) -> None:
        wanted = (self.intent() or {}).get(name, frozenset())
        try:
            have = self._site.look(name)
            if wanted <= lit(have):
                self._unmet.discard(name)
                self._site.complain(name, None)
                return
            log.info("%s: lighting what is missing", name)
            change = self._change({name: Target(tuple(wanted), Mode.UPDATE)}, dry_run=False, save=False)
        except UnavailableError as error:
            self._retry_at[name] = time.monotonic() + 1.0
            log.debug("%s", error)
        except ControllerError as error:
            # The device says it cannot be done; trying again would not help.
            self._unmet.discard(name)
            self._site.complain(name, f"does not carry what it should: {error}")
        else:
            if change.problems:
                self._site.complain(name, f"does not carry what it should: {change.problems[0]}")

    # Changing

    def set_circuits(self, circuits: Iterable[tuple[Port, Port]], *, dry_run: bool = False) -> Change:
        """Make exactly these duplex circuits stand, over all optical switches.

        Raises InvalidError when they cannot all be made, UnavailableError when a switch cannot be read
        (nothing was changed).
        """
        try:
            wanted = circuit_cross_connects(self._fabric, circuits)
        except ValueError as error:
            raise InvalidError(str(error)) from error
        targets = {name: Target(tuple(group), Mode.REPLACE) for name, group in wanted.items()}
        return self.change(targets, dry_run=dry_run)

    def change(self, targets: Mapping[str, Target], *, dry_run: bool = False) -> Change:
        """Change some switches' cross-connects, with the rules in between. Raises as set_circuits,
        ConflictError when SAFE mode or another owner forbids it."""
        with self._changing:
            return self._change(targets, dry_run=dry_run, save=True)

    def _change(self, targets: Mapping[str, Target], *, dry_run: bool, save: bool) -> Change:
        timeline: list[Mapping[str, Any]] = []

        def mark(phase: str, **fields: Any) -> None:
            timeline.append({"t": time.monotonic(), "phase": phase, **fields})

        mark("start")
        before: dict[str, Snapshot] = {}
        plans: dict[str, Plan] = {}
        for name, target in targets.items():
            if (holder := self._site.holder(name)) is not None:
                raise ConflictError(f"optical switch {name} is kept for job {holder}")
            before[name] = self._site.look(name)
            plans[name] = self._plan(name, target, before[name])
        after = {**self.cross_connects(), **{n: p.keep | frozenset(p.add) for n, p in plans.items()}}
        mark("planned")
        if dry_run:
            return Change(plans, timeline=tuple(timeline))
        if save:
            self._save({**(self.intent() or {}), **{n: after[n] for n in plans}})
        # Light that no rule depends on changes without the packet switches being asked.
        rules = None if self._forwarding.stands(after) else self._forwarding.plan(after, as_read=True)
        problems: list[str] = [] if rules is None else list(rules.failed.values())
        removed: _Results = {}
        added: _Results = {}
        changing = {name: plan for name, plan in plans.items() if plan.remove or plan.add}
        if rules is None:
            mark("remove_light", cross_connects=sum(len(p.remove) for p in plans.values()))
            added = self._on_all(changing, lambda n, plan: self._apply(n, plan, before), problems)
            mark("light_added", cross_connects=sum(len(p.add) for p in plans.values()))
        elif window := self._common_darkness(changing):
            mark("remove_light", cross_connects=sum(len(p.remove) for p in plans.values()))
            with ThreadPoolExecutor(max_workers=1) as beside:
                writing = beside.submit(self._write_rules, rules, mark, *window)
                added = self._on_all(changing, lambda n, plan: self._apply(n, plan, before), problems)
                problems += writing.result()
            mark("light_added", cross_connects=sum(len(p.add) for p in plans.values()))
        else:
            removed, added = self._remove_then_add(plans, rules, before, mark, problems)

        seen = self.cross_connects()
        if all(after[name] == seen[name] for name in plans):
            if rules is not None and self._forwarding.verify(rules.wanted):
                # A switch that was away, or someone else who wrote: from what the tables have now.
                problems += self._forwarding.reconcile(seen).values()
        else:
            # Not everything came about: forward along the light there is.
            problems += self._forwarding.reconcile(seen).values()
        mark("verified")
        results = {n: _merge(removed.get(n, ()), added.get(n, ()), plans[n]) for n in plans}
        problems = list(dict.fromkeys(problems))
        for name in plans:
            if after[name] == seen[name]:
                self._unmet.discard(name)
                self._site.complain(name, None)
            else:
                self._unmet.add(name)
                self._retry_at[name] = time.monotonic() + _RETRY_S
        self._bus.publish(
            "circuits",
            added=sum(len(p.add) for p in plans.values()),
            removed=sum(len(p.remove) for p in plans.values()),
            kept=sum(len(p.keep) for p in plans.values()),
            timeline=timeline,
            problems=problems,
        )
        return Change(plans, True, results, tuple(timeline), tuple(problems))

    def _common_darkness(self, plans: Mapping[str, Plan]) -> tuple[float, float] | None:
        """When, in seconds from the commands, all that changes is surely dark, and when no longer.

        None when there is no such time, or not long enough for the rules, or a switch cannot remove and
        add in one write.
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
        """Write rules ``begin_s`` seconds from now; one line for each switch where that failed."""
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
        before: dict[str, Snapshot],
        mark: _Mark,
        problems: list[str],
    ) -> tuple[_Results, _Results]:
        """A change in two writes on each switch; what was removed and what was added."""
        dark = {name: plan for name, plan in plans.items() if plan.remove}
        bright = {name: plan for name, plan in plans.items() if plan.add}
        mark("remove_light", cross_connects=sum(len(p.remove) for p in dark.values()))
        removed = self._on_all(dark, lambda n, plan: self._apply(n, replace(plan, add=()), before), problems)
        mark("light_removed")
        problems += self._forwarding.write(rules).values()
        mark("rules_written", flow_changes=rules.changes)
        ready = {name: plan for name, plan in bright.items() if name not in dark or name in removed}
        added = self._on_all(
            ready, lambda n, plan: self._apply(n, replace(plan, remove=()), before), problems
        )
        mark("light_added", cross_connects=sum(len(p.add) for p in ready.values()))
        return removed, added

    def _plan(self, name: str, target: Target, snapshot: Snapshot) -> Plan:
        try:
            return self._site.driver(name).plan(
                target.wanted, target.mode, delete=target.delete, snapshot=snapshot
            )
        except PortBusy as error:
            raise ConflictError(f"optical switch {name}: {error}") from error
        except Rejected as error:
            raise InvalidError(f"optical switch {name}: {error}") from error
        except OpticalError as error:
            raise UnavailableError(f"optical switch {name}: {error}") from error

    def _apply(self, name: str, plan: Plan, seen: dict[str, Snapshot]) -> tuple[CrossConnectResult, ...]:
        """One half of a plan, on the condition that the switch is still as in ``seen``; updates that."""
        driver = self._site.driver(name)
        timing = driver.capabilities().timing
        patience_s = 10.0 + 4 * (timing.command.most_s + timing.dark.most_s)
        plan = replace(plan, base_revision=seen[name].revision)
        result = driver.apply(plan, timeout_s=patience_s, seen=seen[name])
        seen[name] = result.snapshot
        self._site.remember(name, result.snapshot)
        return result.results

    def _on_all(
        self,
        plans: Mapping[str, Plan],
        work: Callable[[str, Plan], tuple[CrossConnectResult, ...]],
        problems: list[str],
    ) -> dict[str, tuple[CrossConnectResult, ...]]:
        """The work on every switch at the same time; what failed goes to ``problems`` and is left out."""

        def one(name: str) -> tuple[CrossConnectResult, ...] | str:
            try:
                return work(name, plans[name])
            except OpticalError as error:
                if isinstance(error, NotAsPlanned) and error.result is not None:
                    self._site.remember(name, error.result.snapshot)
                else:
                    with contextlib.suppress(UnavailableError):
                        self._site.look(name)
                return f"optical switch {name}: {error}"

        if len(plans) <= 1:
            outcomes = [one(name) for name in plans]
        else:
            with ThreadPoolExecutor(max_workers=min(16, len(plans))) as pool:
                outcomes = list(pool.map(one, plans))
        done = {}
        for name, outcome in zip(plans, outcomes, strict=True):
            if isinstance(outcome, str):
                log.error("%s", outcome)
                problems.append(outcome)
            else:
                done[name] = outcome
        return done

    def _save(self, intent: CrossConnects) -> None:
        self._store.write(
            _INTENT,
            {
                "cross_connects": {
                    name: [
                        {
                            "ingress": xc.ingress,
                            "egress": xc.egress,
                            "wavelength": xc.wavelength,
                            "name": xc.name,
                        }
                        for xc in sorted(group)
                    ]
                    for name, group in intent.items()
                }
            },
        )
        self._intent = {name: frozenset(group) for name, group in intent.items()}


def _merge(
    removed: Iterable[CrossConnectResult], added: Iterable[CrossConnectResult], plan: Plan
) -> tuple[CrossConnectResult, ...]:
    """One entry per cross-connect of a change that was made as a removal and an addition.

    A new cross-connect was dark from when the light that used its ports before was removed.
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
