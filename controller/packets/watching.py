"""Watch the flow tables of the packet switches: report changes by others and undo them.

A switch says itself when somebody else writes its flows; one that cannot is read in every round. What should
be there are the rules that the light needs, and the flows that were written over REST, which are on disk.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.openflow.errors import NotConnectedError, OpenFlowError
from ringlight.controller.openflow.messages import FlowEntry, Wire
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.packets import flow_rules
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.tables import (
    Key,
    TableDrift,
    key_of,
    may_run_out,
    same,
    table_drift,
)
from ringlight.controller.store import Store
from ringlight.fabric.topology import CrossConnects, Fabric

log = logging.getLogger(__name__)

_FILE = "flows"
#: Pause between two mends of one switch, and before one that did not help is tried again, seconds: somebody
#: who writes again and again must not keep the controller busy.
_PAUSE_S, _RETRY_S = 0.5, 5.0
_ANSWER_S = 3.0
#: Flows that an event names of each kind.
_NAMED = 20


@dataclass(frozen=True)
class TableView:
    """State of a switch's flow table.

    ``drift``: present difference, one line. ``drifts``: number of differences found. ``mends``: number of
    repairs. ``last``: last difference.
    """

    drift: str | None = None
    drifts: int = 0
    mends: int = 0
    last: str | None = None


class TableWatch:
    """Comparison of the packet switches' tables with the intended ones, for tables that were written.

    :meth:`look` compares, while no change of light is in progress. The other methods may be called from any
    thread.
    """

    def __init__(
        self,
        fabric: Fabric,
        plane: OpenFlowPlane,
        forwarding: Forwarding,
        store: Store,
        bus: EventBus,
    ) -> None:
        self._dpids = {
            s.name: s.dpid for s in fabric.packet_switches.values() if s.is_ours
        }
        self._names = {dpid: name for name, dpid in self._dpids.items()}
        self._plane = plane
        self._forwarding = forwarding
        self._store = store
        self._bus = bus
        #: Held while a table is compared or a user writes.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._touched = set(self._dpids)
        #: True if a connected switch reports writes of others by itself; absent: not yet requested.
        self._tells: dict[str, bool] = {}
        self._not_before: dict[str, float] = {}
        self._reported: dict[str, TableDrift] = {}
        self._views = {name: TableView() for name in self._dpids}
        self._kept: dict[str, dict[Key, FlowEntry]] = _read(store.read(_FILE) or {})

    def views(self) -> dict[str, TableView]:
        """Return the last view of each packet switch's flow table, for switches of this controller."""
        with self._lock:
            return dict(self._views)

    def connected(self, name: str) -> None:
        """Record that a switch has connected, so that its reports must be requested again."""
        with self._lock:
            self._tells.pop(name, None)
        self.touch(name)

    def touch(self, name: str) -> bool:
        """Record that a switch's table may have changed. Return whether that is new."""
        with self._lock:
            new = name in self._dpids and name not in self._touched
            self._touched |= {name} & self._dpids.keys()
            return new

    @contextlib.contextmanager
    def written_by_user(self, dpid: int) -> Iterator[None]:
        """Yield around a write to a switch that a user requested over REST, and keep its
        flows from then on.
        """
        name = self._names.get(dpid)
        if name is None:
            yield
            return
        with self._writing:
            before = self._table(name)
            try:
                yield
            finally:
                self._forwarding.distrust()
                after = self._table(name)
                if before is not None and after is not None:
                    self._keep(name, before, after)
                self.touch(name)

    def look(self, light: CrossConnects) -> None:
        """Compare what was touched with what this light needs, and mend it."""
        now = time.monotonic()
        with self._lock:
            polled = {name for name, tells in self._tells.items() if not tells}
            names = {
                n for n in self._touched | polled if now >= self._not_before.get(n, 0.0)
            }
            self._touched -= names
        if not names:
            return
        for name in sorted(names - self._tells.keys()):
            self._ask_to_tell(name)
        with self._writing:
            drifts = self._compare(names, light)
            for name, difference in drifts.items():
                self._tell(name, difference)
            if wrong := {
                name: difference for name, difference in drifts.items() if difference
            }:
                self._mend(wrong, light)

    def _ask_to_tell(self, name: str) -> None:
        tells = True
        try:
            self._plane.monitor_flows(self._dpids[name], timeout_s=_ANSWER_S)
        except NotConnectedError:
            # It is asked when it has connected.
            return
        except OpenFlowError as error:
            log.info(
                "%s does not say when others write its flows, and is read instead: %s",
                name,
                error,
            )
            tells = False
        with self._lock:
            self._tells[name] = tells

    def _compare(
        self, names: Iterable[str], light: CrossConnects
    ) -> dict[str, TableDrift]:
        needed = self._forwarding.rules_of(light)
        tables, failed = self._plane.flow_tables(
            [self._dpids[name] for name in names], timeout_s=_ANSWER_S
        )
        for dpid, error in failed.items():
            # One that is away is looked at when it has connected.
            if not isinstance(error, NotConnectedError):
                self._again(self._names[dpid], _RETRY_S)
        differences = {}
        for dpid, entries in tables.items():
            name = self._names[dpid]
            rules = [rule for rule in needed if rule.switch == name]
            differences[name] = table_drift(rules, self._kept.get(name, {}), entries)
            self._forget_run_out(name, entries)
        return differences

    def _tell(self, name: str, difference: TableDrift) -> None:
        """Say once that a table differs."""
        if not difference:
            self._reported.pop(name, None)
            self._see(name, drift=None)
            return
        if difference == self._reported.get(name):
            return
        self._reported[name] = difference
        text = str(difference)
        self._see(name, drift=text, last=text, drifts=self._views[name].drifts + 1)
        log.warning("%s: %s", name, text)
        lines = {
            key: list(getattr(difference, key))[:_NAMED]
            for key in ("missing", "changed", "foreign")
        }
        self._bus.publish("flow_drift", switch=name, text=text, **lines)

    def _mend(
        self, differences: Mapping[str, TableDrift], light: CrossConnects
    ) -> None:
        began = time.monotonic()
        self._forwarding.distrust()
        refused = self._plane.send_all(
            {self._dpids[name]: state.mods for name, state in differences.items()},
            timeout_s=_ANSWER_S,
        )
        after = self._compare(differences, light)
        for name, state in differences.items():
            left = after.get(name)
            problem = refused.get(self._dpids[name])
            if left is not None and not left:
                self._reported.pop(name, None)
                self._see(name, drift=None, mends=self._views[name].mends + 1)
                self._not_before[name] = time.monotonic() + _PAUSE_S
                log.info(
                    "%s: %d flow changes put its table right", name, len(state.mods)
                )
            else:
                reason = f": {problem}" if problem else ""
                text = "its flow table cannot be read" if left is None else str(left)
                self._see(name, drift=f"{text}{reason}")
                self._again(name, _RETRY_S if problem else _PAUSE_S)
            self._bus.publish(
                "flows_mended",
                switch=name,
                changes=len(state.mods),
                seconds=time.monotonic() - began,
                problem=self._views[name].drift,
            )

    def _again(self, name: str, pause_s: float) -> None:
        """Look at a switch again after a while."""
        self._not_before[name] = time.monotonic() + pause_s
        self.touch(name)

    def _see(self, name: str, **news: Any) -> None:
        with self._lock:
            self._views[name] = replace(self._views[name], **news)

    # -- flows of users

    def _table(self, name: str) -> dict[Key, FlowEntry] | None:
        """Return a switch's flows that are not this controller's; None if the switch does not answer."""
        try:
            entries = self._plane.flows(self._dpids[name], timeout_s=_ANSWER_S)
        except OpenFlowError as error:
            log.warning("%s: its flow table cannot be read: %s", name, error)
            return None
        return {
            key_of(entry): entry
            for entry in entries
            if entry.cookie != flow_rules.COOKIE
        }

    def _keep(
        self, name: str, before: Mapping[Key, FlowEntry], after: Mapping[Key, FlowEntry]
    ) -> None:
        """Keep the flows that a user's write has added.

        Flows that were present before and belong to nobody do not become a user's by another user's write.
        """
        kept = self._kept.get(name, {})
        strange = {key: flow for key, flow in before.items() if key not in kept}
        self._set(
            name,
            {
                key: flow
                for key, flow in after.items()
                if key not in strange or not same(strange[key], flow)
            },
        )

    def _forget_run_out(self, name: str, entries: Iterable[FlowEntry]) -> None:
        kept = self._kept.get(name, {})
        if any(map(may_run_out, kept.values())):
            there = {key_of(entry) for entry in entries}
            self._set(
                name,
                {
                    key: f
                    for key, f in kept.items()
                    if key in there or not may_run_out(f)
                },
            )

    def _set(self, name: str, kept: dict[Key, FlowEntry]) -> None:
        # Counters are not kept.
        kept = {
            key: replace(flow, packets=0, bytes=0, duration_s=0.0)
            for key, flow in kept.items()
        }
        if kept == self._kept.get(name, {}):
            return
        self._kept[name] = kept
        document = {
            switch: list(map(_document, flows.values()))
            for switch, flows in self._kept.items()
        }
        try:
            self._store.write(_FILE, document)
        except OSError as error:
            log.error(
                "flows that were written over REST are not kept over a restart: %s",
                error,
            )


def _document(flow: FlowEntry) -> dict[str, Any]:
    wire = {
        **asdict(flow.wire),
        "match": flow.wire.match.hex(),
        "instructions": flow.wire.instructions.hex(),
    }
    return {**vars(flow), "match": dict(flow.match), "wire": wire}


def _read(document: Mapping[str, Any]) -> dict[str, dict[Key, FlowEntry]]:
    by_switch: dict[str, dict[Key, FlowEntry]] = {}
    for name, flows in document.items():
        for entry in flows:
            wire = {
                **entry["wire"],
                "match": bytes.fromhex(entry["wire"]["match"]),
                "instructions": bytes.fromhex(entry["wire"]["instructions"]),
            }
            flow = FlowEntry(
                **{
                    **entry,
                    "out_ports": tuple(entry["out_ports"]),
                    "wire": Wire(**wire),
                }
            )
            by_switch.setdefault(name, {})[key_of(flow)] = flow
    return by_switch
