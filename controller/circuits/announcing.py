"""Tell who listens what a change of light has changed, and count it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.meters import Meters
from ringlight.controller.optical.model import CrossConnectResult, Plan
from ringlight.fabric.crossconnect import CrossConnect


class Announcer:
    """``tell_followers``: says what the light has changed at packet switches of other controllers."""

    def __init__(
        self, bus: EventBus, meters: Meters, tell_followers: Callable[[], None]
    ) -> None:
        self._bus, self._meters, self._tell_followers = bus, meters, tell_followers

    def count(self, outcome: str, began: float) -> None:
        self._meters.changes.labels(outcome).inc()
        self._meters.change_s.observe(time.monotonic() - began)

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

        self._bus.publish(
            "circuits",
            who=who,
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
