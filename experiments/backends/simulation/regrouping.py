"""Simulates a regroup: planned like the controller's, timed by the switches' profiles."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.fabric.cost import RingJob
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.optical_profiles import Profile
from ringlight.fabric.parts import Port, canonical
from ringlight.fabric.placement import regroup
from ringlight.fabric.topology import CrossConnects, Fabric, circuit_cross_connects

Circuits = Sequence[tuple[str, str]]


def light(fabric: Fabric, circuits: Circuits) -> CrossConnects:
    """Return the cross-connects of circuits, by optical switch."""
    return circuit_cross_connects(
        fabric, [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    )


@dataclass(frozen=True)
class Change:
    """Light that changes: seconds that its command takes, and that new light is dark after it.

    ``made``: (optical switch, ingress, egress) of every cross-connect that is new.
    """

    circuits: list[tuple[str, str]]
    command_s: float
    dark_s: float
    made: tuple[tuple[str, int, int], ...]

    def outcome(self, name: str, begin_s: float) -> dict[str, Any]:
        """Return the fields of the controller's resource of a change that an event made, from ``begin_s`` on."""
        dark_at, lit_at = (
            begin_s + self.command_s,
            begin_s + self.command_s + self.dark_s,
        )
        phases = (
            ("requested", begin_s),
            ("planned", begin_s),
            ("remove_light", begin_s),
            ("light_removed", dark_at),
            ("light_added", lit_at),
            ("ended", lit_at),
        )
        results: dict[str, list[dict[str, Any]]] = {}
        for switch, ingress, egress in self.made:
            entry = {
                "ingress": ingress,
                "egress": egress,
                "action": "add",
                "t_dark": dark_at,
                "t_lit": lit_at,
            }
            results.setdefault(switch, []).append(entry)
        return {
            "id": f"simulated-{name}",
            "state": "DONE",
            "dry_run": False,
            "problems": [],
            "error": None,
            "timeline": [{"t": t, "phase": phase} for phase, t in phases],
            "results": results,
        }


def plan_of(
    fabric: Fabric, circuits: Circuits, jobs: Sequence[RingJob]
) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Return the circuits that a regroup of jobs plans, and its fields of the controller's resource."""
    present = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    plan = regroup(fabric, present, jobs)
    after = canonical([(str(a), str(b)) for a, b in plan.circuits])
    document = {**plan.document(), "circuits": [list(pair) for pair in after]}
    return after, {"jobs": [job.name for job in jobs], "plan": document}


def change(
    fabric: Fabric,
    profiles: Mapping[str, Profile],
    before: Circuits,
    after: Circuits,
    apart: bool = False,
) -> Change:
    """Return the change from some circuits to others, with its times; all switches change together.

    ``apart``: each switch gets a command that removes circuits and then a command that adds others, as from a
    controller that leaves further circuits alone; else it gets one command for all its circuits.
    """
    old, new = light(fabric, before), light(fabric, after)
    command_s = dark_s = 0.0
    made: list[tuple[str, int, int]] = []
    for name in {**old, **new}:
        gone = set(old.get(name, ())) - set(new.get(name, ()))
        come = set(new.get(name, ())) - set(old.get(name, ()))
        if not gone and not come:
            continue
        profile = profiles[name]
        first, second = (
            (gone, come) if apart and gone and come else (gone | come, set())
        )
        command_s = max(command_s, _command_s(profile, first))
        dark_s = max(dark_s, _command_s(profile, second) + profile.dark_bounds_s()[1])
        made += [(name, xc.ingress, xc.egress) for xc in sorted(come)]
    return Change(canonical(after), command_s, dark_s, tuple(made))


def _command_s(profile: Profile, cross_connects: Collection[CrossConnect]) -> float:
    """Return the seconds of a command that touches cross-connects; 0 if there are none."""
    if not cross_connects:
        return 0.0
    touched = len({xc.ingress for xc in cross_connects})
    return profile.command_s + profile.command_per_xc_s * touched
