"""Forwarding rules and flow tables, against a fake table that follows OpenFlow's own rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller import flow_rules
from controller.forwarding import Forwarding
from controller.openflow.errors import NotConnectedError
from controller.openflow.messages import FlowEntry, FlowMod
from fabric.routing import Rule, forwarding_rules, walk
from fabric.schema import FabricSpec, build_fabric
from fabric.topology import Fabric, Port, circuit_cross_connects, electrical_graph


def make_fabric() -> Fabric:
    """Six GPUs, three packet switches in a triangle (two cables on one side), an optical switch for all."""
    gpus = [f"g{i}" for i in range(6)]
    links: list[dict[str, Any]] = [
        {"ends": [gpu, f"ocs0:{i + 1}"], "rate": "10 Gbit/s"} for i, gpu in enumerate(gpus)
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


class FakeTables:
    """The plane's part that forwarding uses: tables that obey ADD and strict DELETE."""

    def __init__(self) -> None:
        self.tables: dict[int, list[FlowEntry]] = {1: [], 2: [], 3: []}
        self.sent: list[tuple[int, FlowMod]] = []
        self.down: set[int] = set()

    def flows(self, dpid: int, *, timeout_s: float) -> list[FlowEntry]:
        if dpid in self.down:
            raise NotConnectedError(f"switch {dpid} is not connected")
        return list(self.tables[dpid])

    def send_flows(self, dpid: int, mods: Sequence[FlowMod], *, timeout_s: float) -> None:
        for mod in mods:
            self.sent.append((dpid, mod))
            kept = [
                e for e in self.tables[dpid] if (e.priority, dict(e.match)) != (mod.priority, dict(mod.match))
            ]
            if mod.command == "add":
                kept.append(FlowEntry(mod.priority, mod.match, mod.out_ports, mod.cookie, 0, 0, 0, 0.0))
            else:
                assert mod.command == "delete_strict"
            self.tables[dpid] = kept

    def rules(self) -> frozenset[Rule]:
        names = {s.dpid: name for name, s in FABRIC.packet_switches.items()}
        return frozenset().union(*(flow_rules.rules_of(names[d], t)[0] for d, t in self.tables.items()))


def light(places: Iterable[Port]) -> dict[str, Any]:
    """Cross-connects with GPU i on the i-th port."""
    pairs = [(Port(f"g{i}", 0), port) for i, port in enumerate(places)]
    return dict(circuit_cross_connects(FABRIC, pairs))


def wanted(cross_connects: dict[str, Any]) -> frozenset[Rule]:
    return forwarding_rules(FABRIC, electrical_graph(FABRIC, cross_connects))


placements = st.permutations(PORTS).map(lambda ports: ports[:6])


@settings(max_examples=60, deadline=None)
@given(st.lists(placements, min_size=1, max_size=3))
def test_any_sequence_of_moves_ends_in_the_right_tables_and_never_loops(sequence: list[list[Port]]) -> None:
    tables = FakeTables()
    forwarding = Forwarding(FABRIC, tables)  # type: ignore[arg-type]
    for places in sequence:
        after = light(places)
        graph = electrical_graph(FABRIC, after)
        plan = forwarding.plan(after)
        for step in plan.steps:
            for switch, mods in step.items():
                tables.send_flows(FABRIC.packet_switches[switch].dpid, mods, timeout_s=1)
            for source in FABRIC.gpus:
                for gpu in FABRIC.gpus.values():
                    walk(tables.rules(), graph, source, gpu.ip, FABRIC.gpus[source].ip)
        assert tables.rules() == wanted(after)
        assert forwarding.verify(plan.wanted) == {}
        tables.sent.clear()
        assert forwarding.reconcile(after) == {}
        assert tables.sent == [], "a right table was written again"
    for source in FABRIC.gpus:
        for gpu in FABRIC.gpus.values():
            if gpu.name != source:
                assert walk(tables.rules(), graph, source, gpu.ip, FABRIC.gpus[source].ip)[-1] == gpu.name


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
    tables.tables[1] = [e for e in tables.tables[1] if dict(e.match) != {"eth_type": 0x0806, "arp_tpa": ip}]
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
    tables.tables[3] = [e for e in tables.tables[3] if e.match.get("ipv4_dst") != "10.82.0.2"]
    assert "tor2: the rule 10.82.0.2" in forwarding.verify(wanted(after))["tor2"]
    tables.tables[3] = [e for e in tables.tables[3] if e.priority]
    forwarding.reconcile(after)
    assert flow_rules.has_table_miss(tables.tables[3])


@pytest.mark.parametrize("cookie", [0, flow_rules.COOKIE + 1])
def test_the_drop_rule_must_be_ours(cookie: int) -> None:
    assert not flow_rules.has_table_miss([FlowEntry(0, {}, (), cookie, 0, 0, 0, 0.0)])
