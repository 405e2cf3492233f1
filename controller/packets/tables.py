"""Difference between a switch's flow table and the intended one, and its repair. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ringlight.controller.openflow.messages import FlowEntry, FlowMod, Rewrite
from ringlight.controller.packets import flow_rules
from ringlight.fabric.routing import Rule

#: Key of a flow on a switch: table, priority, and the match as the switch writes it.
Key = tuple[int, int, bytes]
_NAMED = 3


@dataclass(frozen=True)
class TableDrift:
    """Difference of a flow table, one line for each flow, and the changes that end it.

    ``foreign``: flows that neither the light nor a user of the REST API requires.
    """

    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    mods: tuple[FlowMod | Rewrite, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.mods)

    def __str__(self) -> str:
        parts = (
            (self.missing, "is missing", "are missing"),
            (self.changed, "was changed", "were changed"),
            (self.foreign, "was added by somebody else", "were added by somebody else"),
        )
        return "; ".join(
            _counted(lines, singular, many) for lines, singular, many in parts if lines
        )


def _counted(lines: tuple[str, ...], singular: str, many: str) -> str:
    named = ", ".join(lines[:_NAMED])
    more = ", …" if len(lines) > _NAMED else ""
    flows, verb = ("flow", singular) if len(lines) == 1 else ("flows", many)
    return f"{len(lines)} {flows} {verb} ({named}{more})"


def key_of(entry: FlowEntry) -> Key:
    return entry.table_id, entry.priority, entry.wire.match


def same(a: FlowEntry, b: FlowEntry) -> bool:
    """Return whether two flows with one key have the same action, timeouts and cookie."""
    return (a.cookie, a.wire) == (b.cookie, b.wire)


def table_drift(
    rules: Iterable[Rule], kept: Mapping[Key, FlowEntry], entries: Iterable[FlowEntry]
) -> TableDrift:
    """Return the difference of a switch's flows from its rules and the flows that users wrote (``kept``).

    A kept flow with a timeout may be missing. A kept flow in the place of a rule is ignored.
    """
    mods = [
        flow_rules.TABLE_MISS,
        *(mod for rule in rules for mod in flow_rules.put(rule)),
    ]
    ours = {(mod.priority, frozenset(mod.match.items())): mod for mod in mods}
    users = {
        key: flow
        for key, flow in kept.items()
        if flow.table_id != 0
        or (flow.priority, frozenset(flow.match.items())) not in ours
    }
    changed: list[FlowMod | Rewrite] = []
    foreign: list[Rewrite] = []
    seen_changed, seen_foreign = [], []
    for entry in entries:
        place = entry.priority, frozenset(entry.match.items())
        mod = ours.pop(place, None) if entry.table_id == 0 else None
        if mod is not None:
            if not (
                entry.plain
                and (entry.cookie, entry.out_ports) == (mod.cookie, mod.out_ports)
            ):
                changed.append(mod)
                seen_changed.append(described(entry))
        elif (flow := users.pop(key_of(entry), None)) is None:
            foreign.append(_rewrite("delete_strict", entry))
            seen_foreign.append(described(entry))
        elif not same(flow, entry):
            changed.append(_rewrite("add", flow))
            seen_changed.append(described(entry))
    gone = [flow for flow in users.values() if not may_run_out(flow)]
    lost = [*map(described, ours.values()), *map(described, gone)]
    mends: list[FlowMod | Rewrite] = [*foreign, *changed, *ours.values()]
    mends += [_rewrite("add", flow) for flow in gone]
    return TableDrift(
        tuple(lost), tuple(seen_changed), tuple(seen_foreign), tuple(mends)
    )


def may_run_out(flow: FlowEntry) -> bool:
    return bool(flow.wire.idle_s or flow.wire.hard_s)


def _rewrite(command: str, flow: FlowEntry) -> Rewrite:
    return Rewrite(command, flow.priority, flow.table_id, flow.cookie, flow.wire)  # type: ignore[arg-type]


def described(flow: FlowEntry | FlowMod) -> str:
    """Return a short description of a flow: priority, match, ports."""
    match = (
        " ".join(f"{key}={value}" for key, value in sorted(flow.match.items())) or "any"
    )
    out = ",".join(map(str, flow.out_ports)) or "no port"
    table = f"table {flow.table_id} " if flow.table_id else ""
    return f"{table}priority {flow.priority} {match} to {out}"
