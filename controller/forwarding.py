"""Keeps the packet switches' flow tables equal to what the lit fabric needs.

The tables are read from the switches each time, so whatever a restart, a reconnect or a stranger did to
them, the change written is the smallest that makes them right, and a right table is not touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller import flow_rules
from controller.openflow.errors import OpenFlowError
from controller.openflow.messages import FlowEntry, FlowMod
from controller.openflow.plane import OpenFlowPlane
from fabric.routing import Rule, forwarding_rules, rule_batches
from fabric.topology import CrossConnects, Fabric, electrical_graph

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForwardingPlan:
    """Flow changes by switch, in steps; each step must have taken effect before the next is sent.

    ``wanted``: the rules that shall be there afterwards. ``failed``: why a switch could not be read, by
    name; it is mended when it connects again.
    """

    wanted: frozenset[Rule]
    steps: tuple[Mapping[str, tuple[FlowMod, ...]], ...]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """How many flow changes there are."""
        return sum(len(mods) for step in self.steps for mods in step.values())


class Forwarding:
    """Reads, plans and writes the forwarding rules of a fabric's packet switches; one change at a time."""

    def __init__(self, fabric: Fabric, plane: OpenFlowPlane, *, timeout_s: float = 3.0) -> None:
        self._fabric = fabric
        self._plane = plane
        self._timeout_s = timeout_s
        self._lock = threading.RLock()

    def reconcile(self, cross_connects: CrossConnects) -> dict[str, str]:
        """Make every connected switch forward for these cross-connects; what failed, by switch name."""
        with self._lock:
            plan = self.plan(cross_connects)
            return {**plan.failed, **self.apply(plan)}

    def plan(self, cross_connects: CrossConnects) -> ForwardingPlan:
        """The smallest change from what the switches have now; nothing is written."""
        graph = electrical_graph(self._fabric, cross_connects)
        wanted = forwarding_rules(self._fabric, graph)
        tables, failed = self._read()
        have: set[Rule] = set()
        first: dict[str, tuple[FlowMod, ...]] = {}
        last: dict[str, list[FlowMod]] = {}
        for switch, entries in tables.items():
            rules, strays = flow_rules.rules_of(switch, entries)
            have |= rules
            if not flow_rules.has_table_miss(entries):
                first[switch] = (flow_rules.TABLE_MISS,)
            kept = {rule.ip for rule in wanted if rule.switch == switch and not rule.source}
            for ip in sorted(flow_rules.halves(entries) - kept):
                strays.extend(flow_rules.forget(ip))
            last[switch] = strays
        reachable = frozenset(rule for rule in wanted if rule.switch in tables)
        steps: list[Mapping[str, tuple[FlowMod, ...]]] = [first]
        for batch in rule_batches(self._fabric, frozenset(have), reachable, graph):
            by_switch: dict[str, list[FlowMod]] = {}
            for rule in batch.put:
                by_switch.setdefault(rule.switch, []).extend(flow_rules.put(rule))
            for switch, ip, source in batch.delete:
                by_switch.setdefault(switch, []).extend(flow_rules.forget(ip, source))
            steps.append({switch: tuple(mods) for switch, mods in by_switch.items()})
        steps.append({switch: tuple(mods) for switch, mods in last.items() if mods})
        return ForwardingPlan(wanted, tuple(step for step in steps if step), failed)

    def apply(self, plan: ForwardingPlan) -> dict[str, str]:
        """Write a plan step by step with barriers, then read back; what failed, by switch name."""
        with self._lock:
            if not plan.changes:
                return {}
            started = time.monotonic()
            failed = self.write(plan)
            failed = {**self.verify(plan.wanted), **failed}
            log.info("%d flow changes in %.1f ms", plan.changes, (time.monotonic() - started) * 1e3)
            return failed

    def write(self, plan: ForwardingPlan) -> dict[str, str]:
        """The writing half of :meth:`apply`, for where reading back can wait."""
        failed: dict[str, str] = {}
        with self._lock:
            for step in plan.steps:
                for switch, mods in step.items():
                    if switch in failed:
                        continue
                    try:
                        self._plane.send_flows(self._dpid(switch), mods, timeout_s=self._timeout_s)
                    except OpenFlowError as error:
                        log.error("%s: forwarding rules not written: %s", switch, error)
                        failed[switch] = str(error)
        return failed

    def verify(self, wanted: Iterable[Rule]) -> dict[str, str]:
        """Read every connected switch; what differs from these rules, in one line by switch name."""
        wanted = frozenset(wanted)
        tables, wrong = self._read()
        for switch, entries in tables.items():
            rules, _ = flow_rules.rules_of(switch, entries)
            target = {rule for rule in wanted if rule.switch == switch}
            if rules != target:
                rule = min(rules ^ target)
                what = "is missing" if rule in target else "should not be there"
                sender = f" from {rule.source}" if rule.source else ""
                wrong[switch] = f"{switch}: the rule {rule.ip}{sender} to port {rule.out_port} {what}"
            elif not flow_rules.has_table_miss(entries):
                wrong[switch] = f"{switch}: the rule that drops everything else is missing"
        for text in wrong.values():
            log.error("%s", text)
        return wrong

    def _dpid(self, switch: str) -> int:
        return self._fabric.packet_switches[switch].dpid

    def _read(self) -> tuple[dict[str, list[FlowEntry]], dict[str, str]]:
        tables: dict[str, list[FlowEntry]] = {}
        failed: dict[str, str] = {}
        for switch in self._fabric.packet_switches:
            try:
                tables[switch] = self._plane.flows(self._dpid(switch), timeout_s=self._timeout_s)
            except OpenFlowError as error:
                failed[switch] = f"{switch}: {error}"
        return tables, failed
