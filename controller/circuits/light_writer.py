"""Write plans to optical switches, and packet switches' rules in between.

A change of light is made in this order: packets that light which stays can carry are sent over that; the
light that goes is removed; the packet switches' rules are pointed along the new paths (each behind a barrier,
nearest to the destination first); the new light is added; last, packets take the paths that are then the
shortest. So no packet is ever sent the old way over new light, and what keeps its light is never touched nor
led into the dark. Where the switches can remove and add in one write and are declared to be dark for longer
than the rules take, they do so, and the rules are written in that one dark time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ringlight.controller.circuits.change import Made, Mark
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.transaction import achieved
from ringlight.controller.errors import UnavailableError
from ringlight.controller.optical.errors import NotAsPlanned, OpticalError
from ringlight.controller.optical.model import CrossConnectResult, Plan, Snapshot
from ringlight.controller.packets.forwarding import Forwarding, ForwardingPlan, Stages
from ringlight.fabric.topology import CrossConnects

log = logging.getLogger(__name__)

#: Longest time for one write to a switch, besides what the switch declares, seconds.
PATIENCE_S = 10.0
#: Declared darkness, seconds, from which on rules are written during it; they take a few milliseconds.
_ROOM_FOR_RULES_S = 0.02
#: Share of the declared darkness that passes first, as a command may start a little late.
_DARK_FOR_SURE = 0.2


class LightWriter:
    """Changes the light of a fabric. The caller makes one change at a time."""

    def __init__(self, site: OpticalSite, forwarding: Forwarding) -> None:
        self._site = site
        self._forwarding = forwarding

    def readings(self, names: Iterable[str]) -> dict[str, Snapshot | None]:
        """Return the newest reading of each switch; None if the switch could not be read last."""
        views = self._site.views()
        return {
            name: views[name].snapshot if views[name].reachable else None
            for name in names
        }

    def carry_out(
        self,
        plans: Mapping[str, Plan],
        before: Mapping[str, Snapshot],
        mark: Mark,
        *,
        whole: bool = False,
    ) -> Made:
        """Apply these plans to their switches, with the rules between. Return the outcome.

        ``before``: the readings from which the plans were made. ``whole``: if any removal fails, nothing is
        added on any switch.
        """
        seen = dict(before)
        changing = {name: plan for name, plan in plans.items() if plan}
        light = self._site.cross_connects()
        kept = {
            **light,
            **{name: light[name] - set(plan.remove) for name, plan in changing.items()},
        }
        after = {
            **light,
            **{name: plan.keep | set(plan.add) for name, plan in plans.items()},
        }
        stages = self._forwarding.stages(light, kept, after)
        made = Made()
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

    def _excuse(self, plans: Mapping[str, Plan], made: Made) -> None:
        """Drop reported failures of switches whose readings show the wanted state."""
        for name, now in self.readings(plans).items():
            if now is not None and achieved(plans[name], now):
                if (message := made.failed.pop(name, None)) is not None:
                    log.warning("%s; yet it is as it should be", message)
            elif name not in made.failed:
                made.failed[name] = (
                    f"optical switch {name}: it does not carry what it was told to"
                )

    def _verify_rules(self, stages: Stages, after: CrossConnects, made: Made) -> None:
        """Point packets along the light there is, and read that back."""
        seen = self._site.cross_connects()
        if made.failed or any(after[name] != seen[name] for name in after):
            made.rules += self._forwarding.reconcile(seen).values()
            return
        if stages.last is not None:
            made.rules += self._forwarding.write(stages.last).values()
        wrote = any(
            stage is not None for stage in (stages.detour, stages.dark, stages.last)
        )
        if wrote and self._forwarding.verify(stages.rules):
            # A switch that was away, or someone else who wrote: from what the tables have now.
            made.rules += self._forwarding.reconcile(seen).values()

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
            each_s = timing.per_cross_connect_s * len(
                {xc.ingress for xc in (*plan.remove, *plan.add)}
            )
            begins.append(timing.command.most_s + each_s)
            ends.append(timing.command.least_s + each_s + timing.dark.least_s)
        begin_s, end_s = max(begins), min(ends)
        if end_s - begin_s < _ROOM_FOR_RULES_S:
            return None
        return begin_s + (end_s - begin_s) * _DARK_FOR_SURE, end_s

    def _write_rules(
        self, rules: ForwardingPlan, mark: Mark, begin_s: float, end_s: float
    ) -> list[str]:
        """Write rules ``begin_s`` seconds from now. Return one line for each switch that failed."""
        began = time.monotonic()
        time.sleep(begin_s)
        failed = list(self._forwarding.write(rules).values())
        late_s = max(0.0, time.monotonic() - began - end_s)
        mark("rules_written", flow_changes=rules.changes, late_s=late_s)
        if late_s:
            log.warning(
                "rules were written %.0f ms after new light could have come",
                late_s * 1e3,
            )
        return failed

    def _remove_then_add(
        self,
        plans: Mapping[str, Plan],
        rules: ForwardingPlan,
        seen: dict[str, Snapshot],
        mark: Mark,
        made: Made,
        whole: bool,
    ) -> None:
        """Make a change in two writes on each switch. Nothing is added if the removal failed."""
        dark = {
            name: replace(plan, add=()) for name, plan in plans.items() if plan.remove
        }
        bright = {
            name: replace(plan, remove=()) for name, plan in plans.items() if plan.add
        }
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
        made.results = {
            name: _merge(removed.get(name, ()), made.results.get(name, ()))
            for name in plans
        }

    def _apply(
        self, name: str, plan: Plan, seen: dict[str, Snapshot]
    ) -> tuple[CrossConnectResult, ...]:
        """Apply half of a plan, if the switch is still as in ``seen``.

        Return the results and update ``seen``.
        """
        timing = self._site.driver(name).capabilities().timing
        patience_s = (
            PATIENCE_S
            + 4 * (timing.command.most_s + timing.dark.most_s)
            + timing.settle_s
        )
        plan = replace(plan, base_revision=seen[name].revision)
        result = self._site.apply(name, plan, timeout_s=patience_s, seen=seen[name])
        seen[name] = result.snapshot
        self._site.remember(name, result.snapshot)
        return result.results

    def _on_all(
        self, plans: Mapping[str, Plan], seen: dict[str, Snapshot], made: Made
    ) -> None:
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
    return tuple(
        results[key] for key in sorted(results, key=lambda k: (k[0], k[1] or 0))
    )
