"""Keep the packet switches' flow tables equal to the needs of the lit fabric, around dead links.

Whatever a restart, a reconnect or a stranger did to the tables, the change written is the smallest that makes
them right, and a right table is not touched. A change of light may plan from what was last read back; then
the tables are read after it, and mended where that did not hold.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ringlight.controller.errors import ConflictError, NotFoundError
from ringlight.controller.openflow.messages import FlowEntry, FlowMod
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.packets import flow_rules
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router, without_ports
from ringlight.fabric.routing import Rule, forwarding_rules, out_port, rule_batches
from ringlight.fabric.topology import (
    CrossConnects,
    Edge,
    ElectricalGraph,
    Fabric,
    electrical_graph,
)

log = logging.getLogger(__name__)

#: Flow changes by switch, in steps.
_Steps = tuple[Mapping[str, tuple[FlowMod, ...]], ...]


@dataclass(frozen=True)
class ForwardingPlan:
    """Flow changes by switch, in steps; each step must have taken effect before the next is sent.

    ``rules``: those afterwards. ``failed``: reason by switch name for which a switch could not be read; the
    switch is repaired when it connects again.
    """

    rules: frozenset[Rule]
    steps: _Steps
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        """Number of flow changes."""
        return sum(len(mods) for step in self.steps for mods in step.values())


@dataclass(frozen=True)
class Stages:
    """The rules of a change of light, in the order in which they are written. None: nothing to write.

    ``detour``, while all light is still as before: packets that can reach their destination over light that
    stays take that. ``dark``, after the old light has gone and before the new comes: all others.
    ``last``, once the new light is there: the shortest paths. ``rules``: those at the end.
    """

    detour: ForwardingPlan | None
    dark: ForwardingPlan | None
    last: ForwardingPlan | None
    rules: frozenset[Rule]


@dataclass(frozen=True)
class PathHop:
    """Link on a packet's way.

    ``through``: every port that the packet passes, including optical ports. ``choices``: number of links on
    shortest paths from which the switch before this link could choose (1 for a GPU).
    """

    out: Port
    into: Port
    rate_bps: float
    through: tuple[Port, ...]
    choices: int


def _path_hop(edge: Edge, choices: int) -> PathHop:
    return PathHop(edge.out, edge.into, edge.rate_bps, edge.path, choices)


#: A state of light, and the ports that are down.
_State = tuple[frozenset[tuple[str, frozenset[CrossConnect]]], frozenset[Port]]
_KEPT_STATES = 16


class Forwarding:
    """Reader, planner and writer of the forwarding rules of a fabric's packet switches; one change at a time.

    Switches whose tables belong to another controller are never read or changed.
    """

    def __init__(
        self, fabric: Fabric, plane: OpenFlowPlane, *, timeout_s: float = 3.0
    ) -> None:
        self._fabric = fabric
        self._ours = fabric.packet_switches.keys() - set(fabric.foreign_switches)
        self._plane = plane
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._down: frozenset[Port] = frozenset()
        #: The rules that all tables had when last read, None when that is not known.
        self._stands: frozenset[Rule] | None = None
        #: Rules of the states of light that came last, the newest at the end, and what leads from some rules
        #: to others over some light: jobs go back and forth.
        self._rules: dict[_State, frozenset[Rule]] = {}
        self._kept_steps: dict[
            tuple[frozenset[Rule], frozenset[Rule], _State], _Steps
        ] = {}

    @property
    def down(self) -> frozenset[Port]:
        """Ports to other packet switches that their own switch calls down."""
        return self._down

    def is_between_switches(self, port: Port) -> bool:
        """Return whether a packet switch's port is plugged into something else than a GPU, so that its link
        may have a substitute.
        """
        link = self._fabric.link_at.get(port)
        return link is not None and link.other(port).node not in self._fabric.gpus

    def learn_ports(self, switch: str) -> dict[Port, bool]:
        """Read the state of a switch's ports to other nodes. Return the ports whose state has changed, and
        whether each is up.

        Raises OpenFlowError.
        """
        ports = self._plane.ports(self._dpid(switch), timeout_s=self._timeout_s)
        up = {Port(switch, port.number) for port in ports if port.up}
        plugged = {port for port in self._fabric.link_at if port.node == switch}
        with self._lock:
            known = {port for port in self._down if port.node == switch}
            down = {port for port in plugged - up if self.is_between_switches(port)}
            self._down = self._down - known | down
        return {port: port not in down for port in known ^ down}

    def graph(
        self, cross_connects: CrossConnects, down: frozenset[Port] | None = None
    ) -> ElectricalGraph:
        """Return the network that packets see with this light.

        Links that are down are left out (default: the links that are known to be down now).
        """
        graph = electrical_graph(self._fabric, cross_connects)
        down = self._down if down is None else down
        return without_ports(self._fabric, graph, down) if down else graph

    def path(
        self, source: str, destination: str, cross_connects: CrossConnects
    ) -> list[PathHop]:
        """Return the links that a packet from one GPU to another takes now, by the present flow tables.

        The switches on its way are read one after the other. Raises NotFoundError for an unknown GPU,
        ConflictError naming the place if the packet ends up elsewhere, OpenFlowError.
        """
        fabric = self._fabric
        for gpu in (source, destination):
            if gpu not in fabric.gpus:
                raise NotFoundError(f"there is no GPU {gpu}")
        if source == destination:
            raise ConflictError(f"{source} is both ends")
        graph = self.graph(cross_connects)
        router = Router(fabric, graph)
        edge_of = {edge.out: edge for edge in graph.edges}
        leaving = next((port for port in edge_of if port.node == source), None)
        where = f"a packet from {source} to {destination}"
        if leaving is None:
            raise ConflictError(
                f"{where} does not get away: nothing is lit to {source}'s NIC port"
            )
        hops = [_path_hop(edge_of[leaving], 1)]
        while (node := hops[-1].into.node) != destination:
            if node in fabric.gpus or node in {hop.out.node for hop in hops}:
                raise ConflictError(f"{where} comes out at {node}")
            if node not in self._ours:
                whose = fabric.packet_switches[node].controller
                raise ConflictError(
                    f"{where} reaches {node}, whose tables are left to {whose}"
                )
            rules, _ = flow_rules.rules_of(
                node, self._plane.flows(self._dpid(node), timeout_s=self._timeout_s)
            )
            table = {
                rule.key: rule.out_port
                for rule in rules
                if rule.out_port != flow_rules.NO_PORT
            }
            port = out_port(
                table, node, fabric.gpus[destination].ip, fabric.gpus[source].ip
            )
            if port is None:
                raise ConflictError(
                    f"{where} is dropped by {node}, which has no rule for it"
                )
            leaving = Port(node, port)
            if leaving not in edge_of:
                raise ConflictError(
                    f"{where} is lost behind {leaving}, which leads nowhere now"
                )
            hops.append(
                _path_hop(edge_of[leaving], len(router.options(node, destination)))
            )
        return hops

    def reconcile(self, cross_connects: CrossConnects) -> dict[str, str]:
        """Make every connected switch forward for these cross-connects.

        Return the failures by switch name.
        """
        with self._lock:
            plan = self.plan(cross_connects)
            return {**plan.failed, **self.apply(plan)}

    def plan(
        self, cross_connects: CrossConnects, *, as_read: bool = False
    ) -> ForwardingPlan:
        """Return the smallest change from what the switches have now, without writing it.

        ``as_read``: if all tables were right when last read, start from that reading; the caller must
        :meth:`verify` afterwards, and :meth:`reconcile` if someone else has written meanwhile.
        """
        needed = self.rules_of(cross_connects)
        if as_read and self._stands is not None:
            return ForwardingPlan(
                needed, self._steps(self._stands, needed, cross_connects)
            )
        tables, failed = self._read()
        have: set[Rule] = set()
        first: dict[str, tuple[FlowMod, ...]] = {}
        last: dict[str, list[FlowMod]] = {}
        for switch, entries in tables.items():
            rules, strays = flow_rules.rules_of(switch, entries)
            have |= rules
            if not flow_rules.has_table_miss(entries):
                first[switch] = (flow_rules.TABLE_MISS,)
            kept = {
                rule.ip for rule in needed if rule.switch == switch and not rule.source
            }
            for ip in sorted(flow_rules.halves(entries) - kept):
                strays.extend(flow_rules.forget(ip))
            last[switch] = strays
        reachable = frozenset(rule for rule in needed if rule.switch in tables)
        mods = [
            first,
            *self._steps(frozenset(have), reachable, cross_connects),
            {name: tuple(m) for name, m in last.items() if m},
        ]
        steps = tuple(step for step in mods if step)
        self._stands = None if steps or failed else needed
        return ForwardingPlan(needed, steps, failed)

    def stages(
        self, before: CrossConnects, kept: CrossConnects, after: CrossConnects
    ) -> Stages:
        """Return the plans for a change from ``before`` to ``after``, of which ``kept`` is never dark.

        No packet that can reach its destination over kept light is sent into the dark during the change, and
        none takes an old path over new light. If no kept path changes, everything is written in the dark, as
        planned by :meth:`plan`. The caller must :meth:`verify` afterwards.
        """
        with self._lock:
            now, stay, then = (self.rules_of(light) for light in (before, kept, after))
            first, between = _over(stay, now), _over(stay, then)
            if first == now and between == then:
                # Light that no rule depends on changes without the packet switches being asked.
                plan = None if self._stands == then else self.plan(after, as_read=True)
                return Stages(None, plan, None, then)
            if self._stands is None:
                self.reconcile(before)
            if self._stands is None:
                # A switch cannot be read; it is mended when it connects again.
                return Stages(None, self.plan(after), None, then)
            legs = (
                (self._stands, first, kept),
                (first, between, after),
                (between, then, after),
            )
            detour, dark, last = (
                ForwardingPlan(needed, self._steps(have, needed, light))
                if have != needed
                else None
                for have, needed, light in legs
            )
            return Stages(detour, dark, last, then)

    def _steps(
        self,
        have: frozenset[Rule],
        needed: frozenset[Rule],
        cross_connects: CrossConnects,
    ) -> _Steps:
        key = have, needed, _state(cross_connects, self._down)
        steps = self._kept_steps.get(key)
        if steps is None:
            steps = self._new_steps(have, needed, self.graph(cross_connects, key[2][1]))
            kept = list(self._kept_steps.items())[1 - _KEPT_STATES :]
            self._kept_steps = {**dict(kept), key: steps}
        return steps

    def _new_steps(
        self, have: frozenset[Rule], needed: frozenset[Rule], graph: ElectricalGraph
    ) -> _Steps:
        steps = []
        for batch in rule_batches(self._fabric, have, needed, graph):
            by_switch: dict[str, list[FlowMod]] = {}
            for rule in batch.put:
                by_switch.setdefault(rule.switch, []).extend(flow_rules.put(rule))
            for switch, ip, source in batch.delete:
                by_switch.setdefault(switch, []).extend(flow_rules.forget(ip, source))
            steps.append({switch: tuple(mods) for switch, mods in by_switch.items()})
        return tuple(steps)

    def apply(self, plan: ForwardingPlan) -> dict[str, str]:
        """Write a plan step by step with barriers, then read back. Return the failures by switch name."""
        with self._lock:
            if not plan.changes:
                return {}
            started = time.monotonic()
            failed = self.write(plan)
            failed = {**self.verify(plan.rules), **failed}
            log.info(
                "%d flow changes in %.1f ms",
                plan.changes,
                (time.monotonic() - started) * 1e3,
            )
            return failed

    def write(self, plan: ForwardingPlan) -> dict[str, str]:
        """Write a plan as :meth:`apply` does, without reading back. Return the failures by switch name."""
        failed: dict[str, str] = {}
        with self._lock:
            self._stands = None
            for step in plan.steps:
                names = {
                    self._dpid(switch): switch
                    for switch in step
                    if switch not in failed
                }
                mods = {dpid: step[switch] for dpid, switch in names.items()}
                for dpid, error in self._plane.send_all(
                    mods, timeout_s=self._timeout_s
                ).items():
                    log.error(
                        "%s: forwarding rules not written: %s", names[dpid], error
                    )
                    failed[names[dpid]] = str(error)
        return failed

    def verify(self, needed: Iterable[Rule]) -> dict[str, str]:
        """Read every connected switch.

        Return one line by switch name for each that differs from these rules.
        """
        needed = frozenset(needed)
        tables, wrong = self._read()
        for switch, entries in tables.items():
            rules, _ = flow_rules.rules_of(switch, entries)
            target = {rule for rule in needed if rule.switch == switch}
            if rules != target:
                rule = min(rules ^ target)
                what = "is missing" if rule in target else "should not be there"
                sender = f" from {rule.source}" if rule.source else ""
                wrong[switch] = (
                    f"{switch}: the rule {rule.ip}{sender} to port {rule.out_port} {what}"
                )
            elif not flow_rules.has_table_miss(entries):
                wrong[switch] = (
                    f"{switch}: the rule that drops everything else is missing"
                )
        for text in wrong.values():
            log.error("%s", text)
        self._stands = None if wrong else needed
        return wrong

    def distrust(self) -> None:
        """Discard the last reading of the flow tables, because another client has written them."""
        with self._lock:
            self._stands = None

    def stands(self, cross_connects: CrossConnects) -> bool:
        """Return whether these cross-connects need exactly the rules that were last read back from every
        switch.
        """
        return self._stands is not None and self._stands == self.rules_of(
            cross_connects
        )

    def rules_of(self, cross_connects: CrossConnects) -> frozenset[Rule]:
        """Return the rules that these cross-connects need, on all switches of this controller."""
        state = _state(cross_connects, self._down)
        rules = self._rules.get(state)
        if rules is None:
            graph = self.graph(cross_connects, state[1])
            rules = frozenset(
                r
                for r in forwarding_rules(self._fabric, graph)
                if r.switch in self._ours
            )
            kept = list(self._rules.items())[1 - _KEPT_STATES :]
            self._rules = {**dict(kept), state: rules}
        return rules

    def _dpid(self, switch: str) -> int:
        return self._fabric.packet_switches[switch].dpid

    def _read(self) -> tuple[dict[str, list[FlowEntry]], dict[str, str]]:
        names = {self._dpid(switch): switch for switch in self._ours}
        tables, failed = self._plane.flow_tables(names, timeout_s=self._timeout_s)
        return (
            {names[dpid]: entries for dpid, entries in tables.items()},
            {names[dpid]: f"{names[dpid]}: {error}" for dpid, error in failed.items()},
        )


def _state(cross_connects: CrossConnects, down: frozenset[Port]) -> _State:
    return frozenset(
        (name, frozenset(group)) for name, group in cross_connects.items()
    ), down


def _over(stay: frozenset[Rule], other: frozenset[Rule]) -> frozenset[Rule]:
    """Return the rules of kept light for addresses that they reach, and the rules of other light for the
    rest.

    The result has no loops: if kept light leads from a switch to an address, it does so all the way. Senders
    that are dark themselves have no rules in ``stay``. Their rules of other light are used if both lead
    equally far, which is the case if the rules for any sender agree.
    """
    led = {(rule.switch, rule.ip) for rule in stay}
    reached_ips = {rule.ip for rule in stay}
    any_sender = {
        rule for rule in other if not rule.source and (rule.switch, rule.ip) in led
    }
    differ = {
        rule.ip for rule in any_sender ^ {rule for rule in stay if not rule.source}
    }
    more = (
        rule
        for rule in other
        if (rule.switch, rule.ip) not in led
        or (rule.source and rule.source not in reached_ips and rule.ip not in differ)
    )
    return stay.union(more)
