"""Forwarding rules and flow tables, against a fake table that follows OpenFlow's own rules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_parser

from ringlight.controller.errors import ConflictError, NotFoundError
from ringlight.controller.openflow.encoding import COMMANDS, PROTOCOL, flow_mod
from ringlight.controller.openflow.errors import (
    NotConnectedError,
    OpenFlowError,
    SwitchRefusedError,
)
from ringlight.controller.openflow.messages import (
    FlowEntry,
    FlowMod,
    PortDescription,
    Rewrite,
    SwitchEvent,
    Wire,
)
from ringlight.controller.packets import flow_rules
from ringlight.controller.packets import forwarding as forwarding_module
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.fabric import routing
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.routing import Rule, forwarding_rules
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric, circuit_cross_connects, electrical_graph
from tests.unit.fabrics import walk


def make_fabric() -> Fabric:
    """Six GPUs, three packet switches in a triangle (two cables on one side), an optical switch for all."""
    gpus = [f"g{i}" for i in range(6)]
    links: list[dict[str, Any]] = [
        {"ends": [gpu, f"ocs0:{i + 1}"], "rate": "10 Gbit/s"}
        for i, gpu in enumerate(gpus)
    ]
    links += [
        {"ends": [f"tor{t}:{p}", f"ocs0:{6 + 4 * t + p}"], "rate": "10 Gbit/s"}
        for t in range(3)
        for p in (1, 2, 3, 4)
    ]
    links += [
        {"ends": [f"tor{a}:{5 + b}", f"tor{b}:{5 + a}"], "rate": "10 Gbit/s"}
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    links.append({"ends": ["tor0:8", "tor1:8"], "rate": "10 Gbit/s"})
    spec = {
        "servers": {"s0": {"gpus": dict.fromkeys(gpus, "tesla-m40")}},
        "packet_switches": {f"tor{t}": {"ports": 8} for t in range(3)},
        "optical_switches": {"ocs0": {"size": 18}},
        "links": links,
    }
    return build_fabric(FabricSpec.model_validate(spec))


FABRIC = make_fabric()
PORTS = [Port(f"tor{t}", p) for t in range(3) for p in (1, 2, 3, 4)]


def entry(
    priority: int,
    match: Mapping[str, int | str],
    out_ports: tuple[int, ...],
    cookie: int = 0,
    *,
    idle_s: int = 0,
    plain: bool = True,
) -> FlowEntry:
    """A flow of a fake table; on its wire are Python's words for match and ports."""
    wire = Wire(
        idle_s, 0, 0, repr(sorted(match.items())).encode(), repr(out_ports).encode()
    )
    return FlowEntry(
        priority, match, out_ports, cookie, 0, 0, 0, 0.0, plain and not idle_s, wire
    )


class FakeTables:
    """The plane's part that forwarding uses: tables that obey ADD and strict DELETE."""

    def __init__(self) -> None:
        self.tables: dict[int, list[FlowEntry]] = {1: [], 2: [], 3: []}
        self.sent: list[tuple[int, FlowMod | Rewrite]] = []
        self.tells_nothing = False
        self.down: set[int] = set()
        self.ports_said = plugged()
        self.deaf: set[int] = set()
        self.readings = 0
        self.subscribers: list[Callable[[SwitchEvent], None]] = []

    def subscribe(self, callback: Callable[[SwitchEvent], None]) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def ports(self, dpid: int, *, timeout_s: float) -> list[PortDescription]:
        return self.ports_said[dpid]

    def flows(self, dpid: int, *, timeout_s: float) -> list[FlowEntry]:
        if dpid in self.down:
            raise NotConnectedError(f"switch {dpid} is not connected")
        return list(self.tables[dpid])

    def monitor_flows(self, dpid: int, *, timeout_s: float) -> None:
        if dpid in self.down:
            raise NotConnectedError(f"switch {dpid} is not connected")
        if self.tells_nothing:
            raise SwitchRefusedError("OFPBRC_BAD_EXPERIMENTER", 0, "unsupported")

    def send_flows(
        self, dpid: int, mods: Sequence[FlowMod | Rewrite], *, timeout_s: float
    ) -> None:
        for mod in mods:
            self.sent.append((dpid, mod))
            if isinstance(mod, Rewrite):
                match = dict(ast.literal_eval(mod.wire.match.decode()))
                out_ports = ast.literal_eval(mod.wire.instructions.decode())
                mod = FlowMod(
                    mod.command,
                    mod.priority,
                    match,
                    out_ports,
                    mod.cookie,
                    mod.table_id,
                )
            kept = [
                e
                for e in self.tables[dpid]
                if (e.priority, dict(e.match)) != (mod.priority, dict(mod.match))
            ]
            if mod.command == "add":
                kept.append(entry(mod.priority, mod.match, mod.out_ports, mod.cookie))
            else:
                assert mod.command == "delete_strict"
            self.tables[dpid] = kept

    def flow_tables(
        self, dpids: Iterable[int], *, timeout_s: float
    ) -> tuple[dict[int, list[FlowEntry]], dict[int, OpenFlowError]]:
        self.readings += 1
        dpids = list(dpids)
        failed: dict[int, OpenFlowError] = {
            d: NotConnectedError("away") for d in dpids if d in self.down
        }
        return {
            d: self.flows(d, timeout_s=timeout_s) for d in dpids if d not in failed
        }, failed

    def send_all(
        self, mods: Mapping[int, Sequence[FlowMod | Rewrite]], *, timeout_s: float
    ) -> dict[int, OpenFlowError]:
        failed: dict[int, OpenFlowError] = {}
        for dpid, changes in mods.items():
            if dpid in self.deaf:
                continue
            try:
                self.send_flows(dpid, changes, timeout_s=timeout_s)
            except OpenFlowError as error:
                failed[dpid] = error
        return failed

    def rules(self) -> frozenset[Rule]:
        names = {s.dpid: name for name, s in FABRIC.packet_switches.items()}
        return frozenset().union(
            *(flow_rules.rules_of(names[d], t)[0] for d, t in self.tables.items())
        )


def light(places: Iterable[Port]) -> dict[str, Any]:
    """Cross-connects with GPU i on the i-th port."""
    pairs = [(Port(f"g{i}", 0), port) for i, port in enumerate(places)]
    return dict(circuit_cross_connects(FABRIC, pairs))


def wanted(cross_connects: dict[str, Any]) -> frozenset[Rule]:
    return forwarding_rules(FABRIC, electrical_graph(FABRIC, cross_connects))


placements = st.permutations(PORTS).map(lambda ports: ports[:6])


@settings(max_examples=60)
@given(st.lists(placements, min_size=1, max_size=3))
def test_any_sequence_of_moves_ends_in_the_right_tables_and_never_loops(
    sequence: list[list[Port]],
) -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    for places in sequence:
        after = light(places)
        graph = electrical_graph(FABRIC, after)
        plan = forwarding.plan(after)
        for step in plan.steps:
            for switch, mods in step.items():
                tables.send_flows(
                    FABRIC.packet_switches[switch].dpid, mods, timeout_s=1
                )
            for source in FABRIC.gpus:
                for gpu in FABRIC.gpus.values():
                    walk(tables.rules(), graph, source, gpu.ip, FABRIC.gpus[source].ip)
        assert tables.rules() == wanted(after)
        assert forwarding.verify(plan.rules) == {}
        tables.sent.clear()
        assert forwarding.reconcile(after) == {}
        assert tables.sent == [], "a right table was written again"
    for source in FABRIC.gpus:
        for gpu in FABRIC.gpus.values():
            if gpu.name != source:
                assert (
                    walk(tables.rules(), graph, source, gpu.ip, FABRIC.gpus[source].ip)[
                        -1
                    ]
                    == gpu.name
                )


def test_strangers_flows_stay_and_our_broken_ones_go() -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    after = light(PORTS[:6])
    forwarding.reconcile(after)
    foreign = FlowEntry(7, {"in_port": 1}, (2,), 99, 0, 0, 0, 0.0)
    stray = FlowEntry(1234, {"in_port": 3}, (2,), flow_rules.COOKIE, 0, 0, 0, 0.0)
    half = FlowEntry(
        flow_rules.PRIORITY,
        {"eth_type": 0x0800, "ipv4_dst": "10.99.0.1"},
        (2,),
        flow_rules.COOKIE,
        0,
        0,
        0,
        0.0,
    )
    ip = FABRIC.gpus["g0"].ip
    tables.tables[1] = [
        e
        for e in tables.tables[1]
        if dict(e.match) != {"eth_type": 0x0806, "arp_tpa": ip}
    ]
    tables.tables[1] += [foreign, stray, half]
    tables.sent.clear()
    assert forwarding.reconcile(after) == {}
    assert foreign in tables.tables[1]
    assert stray not in tables.tables[1]
    assert half not in tables.tables[1]
    assert tables.rules() == wanted(after)
    assert {dpid for dpid, _ in tables.sent} == {1}
    assert len(tables.sent) <= 5


def test_a_switch_that_is_away_is_named_and_the_others_are_served() -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    tables.down = {2}
    failed = forwarding.reconcile(light(PORTS[:6]))
    assert failed.keys() == {"tor1"}
    assert {r for r in wanted(light(PORTS[:6])) if r.switch != "tor1"} == tables.rules()
    tables.down = set()
    assert forwarding.reconcile(light(PORTS[:6])) == {}
    assert tables.rules() == wanted(light(PORTS[:6]))


def test_verify_names_what_is_wrong() -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    after = light(PORTS[:6])
    forwarding.reconcile(after)
    tables.tables[3] = [
        e for e in tables.tables[3] if e.match.get("ipv4_dst") != "10.82.0.2"
    ]
    assert "tor2: the rule 10.82.0.2" in forwarding.verify(wanted(after))["tor2"]
    tables.tables[3] = [e for e in tables.tables[3] if e.priority]
    forwarding.reconcile(after)
    assert flow_rules.has_table_miss(tables.tables[3])


@pytest.mark.parametrize("cookie", [0, flow_rules.COOKIE + 1])
def test_the_drop_rule_must_be_ours(cookie: int) -> None:
    assert not flow_rules.has_table_miss([FlowEntry(0, {}, (), cookie, 0, 0, 0, 0.0)])


def plugged(*down: Port) -> dict[int, list[PortDescription]]:
    """What the switches say of their ports."""
    return {
        switch.dpid: [
            PortDescription(
                n, f"{switch.name}-{n}", "", Port(switch.name, n) not in down
            )
            for n in range(1, switch.ports + 1)
        ]
        for switch in FABRIC.packet_switches.values()
    }


def test_rules_avoid_a_port_that_is_down_and_come_back() -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    after = light([PORTS[0], PORTS[1], PORTS[4], PORTS[5], PORTS[8], PORTS[9]])
    assert all(forwarding.learn_ports(name) == {} for name in FABRIC.packet_switches)
    forwarding.reconcile(after)
    usual = tables.rules()
    # g0 and g1 on tor0, g2 and g3 on tor1: two cables between them.
    pairs = [(a, b) for a in ("g0", "g1") for b in ("g2", "g3")]
    taken = {pair: forwarding.path(*pair, after)[1] for pair in pairs}
    assert {hop.choices for hop in taken.values()} == {2}
    assert {hop.out.number for hop in taken.values()} == {6, 8}
    lost = next(hop for hop in taken.values() if hop.out.number == 8)

    tables.ports_said = plugged(lost.into, PORTS[0])
    # A port to an optical switch may be down, too; it has nothing to take its place.
    assert forwarding.learn_ports("tor1") == {lost.into: False}
    assert forwarding.learn_ports("tor1") == {}
    assert forwarding.learn_ports("tor0") == {PORTS[0]: False}
    assert forwarding.reconcile(after) == {}
    assert forwarding.verify(tables.rules()) == {}
    assert {forwarding.path(*pair, after)[1].out for pair in pairs} == {Port("tor0", 6)}
    graph = forwarding.graph(after)
    for rule in tables.rules():
        assert Port(rule.switch, rule.out_port) in {
            edge.out for edge in graph.leaving[rule.switch]
        }

    tables.ports_said = plugged()
    assert forwarding.learn_ports("tor1") == {lost.into: True}
    assert forwarding.learn_ports("tor0") == {PORTS[0]: True}
    assert forwarding.down == frozenset()
    forwarding.reconcile(after)
    assert tables.rules() == usual


def test_a_path_is_what_the_tables_say_and_not_what_they_should() -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    after = light([PORTS[0], PORTS[1], PORTS[4], PORTS[5], PORTS[8], PORTS[9]])
    with pytest.raises(
        ConflictError,
        match="from g0 to g2 is dropped by tor0, which has no rule for it",
    ):
        forwarding.path("g0", "g2", after)
    forwarding.reconcile(after)
    hops = forwarding.path("g0", "g2", after)
    assert [str(hop.out.node) for hop in hops] == ["g0", "tor0", "tor1"]
    assert [str(port) for port in hops[0].through] == [
        "g0:0",
        "ocs0:1",
        "ocs0:7",
        "tor0:1",
    ]
    ip = FABRIC.gpus["g2"].ip
    for said, ports in (
        (r"comes out at tor0", {"tor0": 6, "tor1": 5}),
        (r"comes out at g1", {"tor0": 2}),
        (r"is lost behind tor0:4, which leads nowhere now", {"tor0": 4}),
    ):
        tables.tables = {1: [], 2: [], 3: []}
        for name, port in ports.items():
            tables.send_flows(
                FABRIC.packet_switches[name].dpid,
                flow_rules.put(Rule(name, ip, port)),
                timeout_s=1,
            )
        with pytest.raises(ConflictError, match=said):
            forwarding.path("g0", "g2", after)
    with pytest.raises(ConflictError, match="g0 is both ends"):
        forwarding.path("g0", "g0", after)
    with pytest.raises(NotFoundError, match="there is no GPU g9"):
        forwarding.path("g0", "g9", after)
    with pytest.raises(
        ConflictError, match="does not get away: nothing is lit to g0's NIC port"
    ):
        forwarding.path("g0", "g2", {})


@pytest.mark.parametrize(
    "mod",
    [
        *flow_rules.put(Rule("tor0", "10.0.0.3", 4)),
        *flow_rules.put(Rule("tor0", "10.0.0.3", 4, "10.0.0.9")),
        *flow_rules.forget("10.0.0.3"),
        flow_rules.TABLE_MISS,
        FlowMod(
            "modify",
            7,
            {"ipv4_dst": "10.0.0.0/255.0.0.0", "eth_type": 0x0800, "in_port": 3},
            (1, 2),
            5,
            3,
        ),
    ],
)
def test_a_flow_change_that_was_written_before_is_sent_with_a_number_of_its_own(
    mod: FlowMod,
) -> None:
    texts = []
    for xid in (1, 0xFFFF_FFFF, 1):
        message = flow_mod(mod)
        message.set_xid(xid)
        message.serialize()
        texts.append(message.buf)
        version, kind, length, told = ofproto_parser.header(message.buf)
        assert (length, told, message.xid) == (len(message.buf), xid, xid)
        sent = ofproto_parser.msg(
            PROTOCOL, version, kind, length, told, bytearray(message.buf)
        )
        match = {
            k: f"{v[0]}/{v[1]}" if isinstance(v, tuple) else v
            for k, v in sent.match.items()
        }
        assert match == dict(mod.match)
        assert sent.command == COMMANDS[mod.command]
        assert (sent.priority, sent.cookie, sent.table_id) == (
            mod.priority,
            mod.cookie,
            mod.table_id,
        )
        ports = [
            action.port
            for instruction in sent.instructions
            for action in instruction.actions
        ]
        assert tuple(ports) == mod.out_ports
    assert texts[0] == texts[2] != texts[1]


#: Every port that has a fibre to the optical switch.
PLUGGED = [*(Port(f"g{i}", 0) for i in range(6)), *PORTS]
pairings = st.permutations(PLUGGED).map(
    lambda ports: [
        (a, b) for a, b in zip(ports[::2], ports[1::2], strict=True) if a.node != b.node
    ][:8]
)


@settings(max_examples=60, deadline=None)
@given(pairings, pairings, st.sets(st.integers(0, 7)))
def test_while_light_changes_packets_that_kept_light_can_carry_are_never_lost(
    before: list[tuple[Port, Port]], after: list[tuple[Port, Port]], shared: set[int]
) -> None:
    """Circuits between switches too, so that kept light may be a way round. The light is dark between."""
    stays = [pair for index, pair in enumerate(before) if index in shared]
    used = {port for pair in stays for port in pair}
    after = [*stays, *(pair for pair in after if not used & set(pair))]
    sets = [
        dict(circuit_cross_connects(FABRIC, pairs)) for pairs in (before, stays, after)
    ]
    old, kept, new = sets
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    forwarding.reconcile(old)
    dark = electrical_graph(FABRIC, kept)
    ways = {
        (a, b)
        for a in FABRIC.gpus
        for b in FABRIC.gpus
        if a != b and walk(wanted(kept), dark, a, FABRIC.gpus[b].ip)[-1] == b
    }
    stages = forwarding.stages(old, kept, new)
    phases = [
        (stages.detour, old, kept),
        (stages.dark, kept, kept),
        (stages.last, new, new),
    ]
    for plan, during, then in phases:
        for step in () if plan is None else plan.steps:
            for switch, mods in step.items():
                tables.send_flows(
                    FABRIC.packet_switches[switch].dpid, mods, timeout_s=1
                )
                for a, b in ways:
                    for source in ("", FABRIC.gpus[a].ip):
                        path = walk(
                            tables.rules(),
                            electrical_graph(FABRIC, during),
                            a,
                            FABRIC.gpus[b].ip,
                            source,
                        )
                        assert path[-1] == b, (path, "while rules are written")
        for a, b in ways:
            for source in ("", FABRIC.gpus[a].ip):
                path = walk(
                    tables.rules(),
                    electrical_graph(FABRIC, then),
                    a,
                    FABRIC.gpus[b].ip,
                    source,
                )
                assert path[-1] == b, path
    assert tables.rules() == stages.rules == wanted(new)


def test_light_that_goes_back_and_forth_is_planned_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[frozenset[Rule]] = []
    batches = routing.rule_batches

    def rule_batches(
        fabric: Fabric, old: frozenset[Rule], new: frozenset[Rule], graph: Any
    ) -> Any:
        asked.append(new)
        return batches(fabric, old, new, graph)

    monkeypatch.setattr(forwarding_module, "rule_batches", rule_batches)
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    ways = [
        light([PORTS[0], PORTS[1], PORTS[4], PORTS[5], *more])
        for more in ((), (PORTS[8], PORTS[9]))
    ]
    found, planned = [], []
    for turn in range(6):
        assert not forwarding.reconcile(ways[turn % 2])
        found.append(tables.rules())
        planned.append(len(asked))
    assert found[0] == found[2] == found[4] != found[1] == found[3] == found[5]
    assert planned[3] == planned[5] < 4
