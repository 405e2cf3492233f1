"""A change of light as data: what switches should carry, how it is carried out, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringlight.controller.circuits.transaction import Found, Leftover
from ringlight.controller.optical.model import CrossConnectResult, Plan
from ringlight.fabric.crossconnect import CrossConnect, Mode, plan_changes

#: Notes that a phase of a change begins, with more about it.
Mark = Callable[..., None]
#: Outcome for cross-connects, by switch.
Results = dict[str, tuple[CrossConnectResult, ...]]


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
    ``generation``: number of the light then, of all switches or of the one that was changed.
    """

    plans: Mapping[str, Plan]
    applied: bool = False
    results: Mapping[str, tuple[CrossConnectResult, ...]] = field(default_factory=dict)
    timeline: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    undone: bool = False
    left: tuple[Leftover, ...] = ()
    generation: int = 0

    @property
    def outcome(self) -> str:
        """Outcome in one or two words, for the audit log and counters."""
        if self.undone:
            return "partly undone" if self.left else "undone"
        return "problems" if self.problems else "done"


@dataclass
class Made:
    """Outcome of carrying out plans.

    ``failed``: reason by switch for which its part failed. ``rules``: problems with packet switches.
    """

    results: Results = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)


def marker(timeline: list[Mapping[str, Any]]) -> Mark:
    """Return a function that notes phases in ``timeline``."""

    def mark(phase: str, **fields: Any) -> None:
        timeline.append({"t": time.monotonic(), "phase": phase, **fields})

    return mark


def carried_after(
    old: frozenset[CrossConnect], target: Target
) -> frozenset[CrossConnect]:
    """Return the cross-connects that a switch should carry once this target is applied to the old ones."""
    left = {xc for xc in old if xc.ingress not in target.delete}
    mode = Mode.REPLACE if target.mode is Mode.REPLACE else Mode.UPDATE
    changes = plan_changes(left, target.cross_connects, mode)
    named = {xc: xc for xc in target.cross_connects}
    return frozenset(named.get(xc, xc) for xc in changes.keep | changes.add)


def still_to_remove(left: Iterable[Leftover]) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects that an undone change may have left in place, by switch."""
    by_switch: dict[str, frozenset[CrossConnect]] = {}
    for leftover in left:
        if leftover.state is not Found.GONE:
            by_switch[leftover.switch] = by_switch.get(leftover.switch, frozenset()) | {
                leftover.cross_connect
            }
    return by_switch


def pairs_of(plan: Plan) -> dict[str, list[str]]:
    """Return the cross-connects that a plan removes and adds, as texts for the audit log."""
    return {key: [str(xc) for xc in getattr(plan, key)] for key in ("remove", "add")}
