"""Tell who listens what a change of light has changed, and count it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.generation import (
    History,
    LightChanged,
    in_words,
    moved_gpus,
)
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.optical.model import CrossConnectResult, Plan
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port


class Announcer:
    """Publisher of changes of light, which it also notes in ``history`` and counts.

    ``ends``: returns the electrical port lit to each packet-switch port now. ``tell_followers``: says what
    the light has changed at packet switches of other controllers.
    """

    def __init__(
        self,
        bus: EventBus,
        site: OpticalSite,
        history: History,
        ends: Callable[[], Mapping[Port, Port | None]],
        tell_followers: Callable[[], None],
    ) -> None:
        self._bus, self._site, self._history = bus, site, history
        self._ends, self._tell_followers = ends, tell_followers
        self._before: Mapping[Port, Port | None] = {}

    def begin(self) -> None:
        """Remember the light before a change, whose caller holds off others."""
        self._before = dict(self._ends())

    def count(self, outcome: str, began: float) -> None:
        self._site.meters.changes.labels(outcome).inc()
        self._site.meters.change_s.observe(time.monotonic() - began)

    def publish(
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
            ports = {
                "ingress": xc.ingress,
                "egress": xc.egress,
                "wavelength": xc.wavelength,
            }
            return {**ports, "t_dark": t_dark, "t_lit": t_lit}

        generation = max(
            (self._site.generation(name) for name in plans),
            default=self._site.generation(),
        )
        moved = moved_gpus(self._before, self._ends())
        touched = {
            name: len(plan.add) + len(plan.remove)
            for name, plan in plans.items()
            if plan
        }
        if touched:
            text = in_words(moved, touched)
            change = LightChanged(generation, who, frozenset(touched), text)
            self._history.note(change)
        self._bus.publish(
            "circuits",
            who=who,
            generation=generation,
            gpus=moved,
            changes={
                name: {
                    key: [described(name, xc) for xc in getattr(plan, key)]
                    for key in ("remove", "add")
                }
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
        self._tell_followers()
