from __future__ import annotations

import itertools
from collections.abc import Iterable

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Router
from ringlight.fabric.routing import (
    Rule,
    RuleBatch,
    RuleKey,
    forwarding_rules,
    rule_batches,
)
from ringlight.fabric.topology import (
    ElectricalGraph,
    Fabric,
    circuit_cross_connects,
    electrical_graph,
)
from tests.unit.fabrics import (
    as_networkx,
    circuits,
    make_fabric,
    nodes_of,
    six_gpu_fabric,
    walk,
)

Table = dict[RuleKey, int]

TRUNKS = st.lists(
    st.sampled_from(list(itertools.combinations(range(4), 2))),
    min_size=2,
    max_size=6,
    unique=False,
)


def lit_graph(fabric: Fabric, lit: list[tuple[Port, Port]]) -> ElectricalGraph:
    return electrical_graph(fabric, circuit_cross_connects(fabric, lit))


def as_rules(table: Table) -> list[Rule]:
    return [
        Rule(switch, ip, port, source) for (switch, ip, source), port in table.items()
    ]


def write(table: Table, batch: RuleBatch) -> Table:
    after = dict(table)
    after |= {rule.key: rule.out_port for rule in batch.put}
    for key in batch.delete:
        del after[key]
    return after


def check_no_astray(
    fabric: Fabric, graph: ElectricalGraph, table: Table
) -> set[tuple[str, str]]:
    """Walks every pair of GPUs: no loop (walk raises), no packet at another GPU. ARP likewise.
    Returns the pairs whose packets were delivered."""
    delivered: set[tuple[str, str, str]] = set()
    by_ip: dict[str, list[Rule]] = {}
    for rule in as_rules(table):
        by_ip.setdefault(rule.ip, []).append(rule)
    for source, destination in itertools.permutations(fabric.gpus, 2):
        ip = fabric.gpus[destination].ip
        for source_ip in (fabric.gpus[source].ip, ""):
            end = walk(by_ip.get(ip, []), graph, source, ip, source_ip)[-1]
            if end == destination:
                delivered.add((source, destination, source_ip))
            else:
                assert end not in fabric.gpus or end == source, (
                    f"{source} to {destination} came out at {end}"
                )
    return {(source, destination) for source, destination, ip in delivered if ip}


@st.composite
def rewirings(
    draw: st.DrawFn,
) -> tuple[Fabric, list[tuple[Port, Port]], list[tuple[Port, Port]]]:
    fabric = make_fabric(
        [[3, 2, 2, 3]],
        [0, 0, 0, 0],
        copper_gpus=[0, 3],
        trunks=draw(TRUNKS),
        optical_trunk_ports=1,
    )
    return (
        fabric,
        draw(circuits(fabric, trunks=True)),
        draw(circuits(fabric, trunks=True)),
    )


@settings(max_examples=120)
@given(rewirings(), st.data())
def test_no_packet_goes_astray_at_any_moment_of_a_change(
    change: tuple[Fabric, list[tuple[Port, Port]], list[tuple[Port, Port]]],
    data: st.DataObject,
) -> None:
    """Light off, rules batch by batch (each in any order), light on circuit by circuit."""
    fabric, before, after = change
    old_graph, new_graph = lit_graph(fabric, before), lit_graph(fabric, after)
    old, new = forwarding_rules(fabric, old_graph), forwarding_rules(fabric, new_graph)
    kept = {frozenset(c) for c in before} & {frozenset(c) for c in after}
    dark = lit_graph(fabric, [c for c in after if frozenset(c) in kept])

    table: Table = {rule.key: rule.out_port for rule in old}
    assert len(table) == len(old), "two rules for one address on one switch"
    check_no_astray(fabric, dark, table)
    through_kept_new = check_no_astray(fabric, dark, {r.key: r.out_port for r in new})
    for batch in rule_batches(fabric, old, new, new_graph):
        puts = [RuleBatch((rule,)) for rule in batch.put] + [
            RuleBatch((), (key,)) for key in batch.delete
        ]
        for one in data.draw(st.permutations(puts)):
            table = write(table, one)
            check_no_astray(fabric, dark, table)
    assert set(as_rules(table)) == new
    assert check_no_astray(fabric, dark, table) == through_kept_new
    lit = [c for c in after if frozenset(c) in kept]
    for circuit in data.draw(
        st.permutations([c for c in after if frozenset(c) not in kept])
    ):
        lit.append(circuit)
        check_no_astray(fabric, lit_graph(fabric, lit), table)
    known = as_networkx(new_graph)
    connected = {
        (a, b)
        for a, b in itertools.permutations(fabric.gpus, 2)
        if nx.has_path(known, a, b)
    }
    assert check_no_astray(fabric, new_graph, table) == connected


@settings(max_examples=80)
@given(st.data())
def test_moving_gpus_never_disturbs_the_others(data: st.DataObject) -> None:
    fabric = make_fabric(
        [[3, 3, 3]], [0] * 5, copper_gpus=[1], trunks=[(0, 1), (1, 2), (0, 2), (0, 1)]
    )
    before, after = data.draw(circuits(fabric)), data.draw(circuits(fabric))
    old_graph, new_graph = lit_graph(fabric, before), lit_graph(fabric, after)
    old, new = forwarding_rules(fabric, old_graph), forwarding_rules(fabric, new_graph)
    still = [c for c in after if c in before]
    unmoved = {a.node for a, _ in still} | {"g5"}
    addresses = {fabric.gpus[gpu].ip for gpu in unmoved}

    def concern(rules: Iterable[Rule]) -> set[Rule]:
        return {r for r in rules if r.ip in addresses and r.source in {"", *addresses}}

    assert concern(old) == concern(new)
    table: Table = {rule.key: rule.out_port for rule in old}
    for batch in rule_batches(fabric, old, new, new_graph):
        assert not concern(batch.put)
        table = write(table, batch)
        delivered = check_no_astray(fabric, lit_graph(fabric, still), table)
        assert set(itertools.permutations(unmoved, 2)) <= delivered


@settings(max_examples=60)
@given(rewirings())
def test_packets_take_shortest_paths(
    change: tuple[Fabric, list[tuple[Port, Port]], list[tuple[Port, Port]]],
) -> None:
    fabric, lit, _ = change
    graph = lit_graph(fabric, lit)
    rules = forwarding_rules(fabric, graph)
    router = Router(fabric, graph)
    for a, b in itertools.permutations(fabric.gpus, 2):
        if nx.has_path(as_networkx(graph), a, b):
            path = router.path(a, b)
            assert nodes_of(path) == walk(
                rules, graph, a, fabric.gpus[b].ip, fabric.gpus[a].ip
            )
            assert len(path) == nx.shortest_path_length(as_networkx(graph), a, b)
        else:
            with pytest.raises(ValueError, match=f"no path from {a} to {b}"):
                router.path(a, b)


def test_the_six_gpu_rules() -> None:
    fabric = six_gpu_fabric()
    rules = forwarding_rules(fabric, lit_graph(fabric, list(fabric.circuits)))
    assert len(rules) == 12
    assert Rule("tor0", fabric.gpus["g0"].ip, 1) in rules
    assert Rule("tor1", fabric.gpus["g0"].ip, 5) in rules


def test_no_change_is_no_batch() -> None:
    fabric = six_gpu_fabric()
    graph = lit_graph(fabric, list(fabric.circuits))
    rules = forwarding_rules(fabric, graph)
    assert rule_batches(fabric, rules, rules, graph) == []


def test_a_dark_gpu_is_forgotten_last() -> None:
    fabric = six_gpu_fabric()
    old = forwarding_rules(fabric, lit_graph(fabric, list(fabric.circuits)))
    graph = lit_graph(fabric, list(fabric.circuits[1:]))
    ip = fabric.gpus["g0"].ip
    batches = rule_batches(fabric, old, forwarding_rules(fabric, graph), graph)
    assert batches == [RuleBatch((), (("tor0", ip, ""), ("tor1", ip, "")))]
    with pytest.raises(ValueError, match="no path from g1 to g0: g0 is dark"):
        Router(fabric, graph).path("g1", "g0")


def test_a_loop_is_told_from_a_drop() -> None:
    fabric = six_gpu_fabric()
    graph = lit_graph(fabric, list(fabric.circuits))
    ip = fabric.gpus["g0"].ip
    assert walk([Rule("tor0", ip, 4)], graph, "g1", ip) == ["g1", "tor0"]
    with pytest.raises(
        ValueError, match=r"a packet from g1 to 10\.82\.0\.2 loops: g1 tor0 tor1 tor0"
    ):
        walk([Rule("tor0", ip, 5), Rule("tor1", ip, 5)], graph, "g1", ip)


def test_a_rule_may_use_any_of_parallel_circuits() -> None:
    fabric = make_fabric([[0, 0]], [], copper_gpus=[0, 1], trunks=[(0, 1), (0, 1)])
    graph = lit_graph(fabric, [])
    ip = fabric.gpus["g1"].ip
    for port in (2, 3):
        rules = [Rule("tor0", ip, port), Rule("tor1", ip, 1)]
        assert walk(rules, graph, "g0", ip) == ["g0", "tor0", "tor1", "g1"]


def test_a_rule_for_one_sender_stands_before_that_for_any() -> None:
    fabric = make_fabric([[0, 0]], [], copper_gpus=[0, 1], trunks=[(0, 1)])
    graph = lit_graph(fabric, [])
    ip, sender = fabric.gpus["g1"].ip, fabric.gpus["g0"].ip
    rules = [Rule("tor0", ip, 2), Rule("tor1", ip, 1), Rule("tor0", ip, 9, sender)]
    assert walk(rules, graph, "g0", ip) == ["g0", "tor0", "tor1", "g1"]
    assert walk(rules, graph, "g0", ip, sender) == ["g0", "tor0"]
