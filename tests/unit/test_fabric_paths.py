"""One function chooses among shortest paths; rules, simulator and model follow it."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.experiments.backends.emulation.linktest import trunk_tests
from ringlight.experiments.cli.show import show_check
from ringlight.experiments.language.expand import load
from ringlight.experiments.runner.check_document import check_document
from ringlight.fabric.building import build_fabric
from ringlight.fabric.cost import RingJob, all_reduce_time, predict, steps_time
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Hop, PacketView, Router, hashed, without_ports
from ringlight.fabric.routing import forwarding_rules
from ringlight.fabric.schedules import halving_doubling, ring
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric, PathChoice, electrical_graph
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.testbed.simulation.networks import PacketNetwork, without_link
from tests.unit.fabrics import as_networkx, make_fabric, nodes_of, walk

EXAMPLES = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


@st.composite
def multigraphs(draw: st.DrawFn) -> Fabric:
    """GPUs on up to five packet switches, with up to ten cables between any of them."""
    switches = draw(st.integers(2, 5))
    pairs = list(itertools.combinations(range(switches), 2))
    trunks = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=10))
    homes = draw(st.lists(st.integers(0, switches - 1), min_size=2, max_size=6))
    fabric = make_fabric([[0] * switches], [], copper_gpus=homes, trunks=trunks)
    return replace(fabric, paths=draw(st.sampled_from(["hash", "even"])))


def router_of(fabric: Fabric) -> Router:
    return Router(fabric, electrical_graph(fabric, {}))


def paths_of(fabric: Fabric) -> dict[tuple[str, str], tuple[Hop, ...]]:
    """The path of every pair that has one."""
    router = router_of(fabric)
    found = {}
    for pair in itertools.permutations(fabric.gpus, 2):
        if router.count(*pair):
            found[pair] = router.path(*pair)
    return found


@settings(max_examples=150)
@given(multigraphs())
def test_packets_arrive_once_over_the_shortest_path_that_was_chosen(
    fabric: Fabric,
) -> None:
    graph = electrical_graph(fabric, {})
    known = as_networkx(graph)
    rules = forwarding_rules(fabric, graph)
    assert len({rule.key for rule in rules}) == len(rules)
    chosen = paths_of(fabric)
    network = PacketNetwork(fabric)
    for source, destination in itertools.permutations(fabric.gpus, 2):
        a, b = fabric.gpus[source], fabric.gpus[destination]
        if not nx.has_path(known, source, destination):
            assert (source, destination) not in chosen
            continue
        path = chosen[source, destination]
        assert len(path) == nx.shortest_path_length(known, source, destination)
        assert len(set(nodes_of(path))) == len(path) + 1
        for hop in path:
            link = fabric.link_at[hop.out]
            assert link.other(hop.out) == hop.into
            assert hop.rate_bps == link.rate_bps
        # In the switches, packet by packet, and ARP; and in the simulator.
        ports = {r.switch: r.out_port for r in sorted(rules, key=lambda r: r.source) if r.ip == b.ip
                 and r.source in ("", a.ip)}  # fmt: skip
        assert [ports[hop.out.node] for hop in path[1:]] == [
            hop.out.number for hop in path[1:]
        ]
        assert walk(rules, graph, source, b.ip, a.ip) == nodes_of(path)
        assert walk(rules, graph, source, b.ip)[-1] == destination
        assert [network.key(link) for link in network.path(source, destination)] == [
            (hop.out, hop.into) for hop in path
        ]


@settings(max_examples=150)
@given(multigraphs(), st.data())
def test_under_hash_a_cut_link_moves_only_the_pairs_that_used_it(
    fabric: Fabric, data: st.DataObject
) -> None:
    fabric = replace(fabric, paths="hash")
    before = paths_of(fabric)
    trunks = [link for link in fabric.links if link.a.node not in fabric.gpus]
    cut = data.draw(st.sampled_from(trunks))
    after = paths_of(without_link(fabric, cut.a))
    for pair, path in before.items():
        if not {hop.out for hop in path} & {cut.a, cut.b}:
            assert after[pair] == path
    # A port that is down takes the link away as a cut one is.
    graph = electrical_graph(fabric, {})
    down = Router(fabric, without_ports(fabric, graph, {cut.b}))
    assert {pair: down.path(*pair) for pair in after} == after


@settings(max_examples=100)
@given(multigraphs())
def test_there_are_as_many_shortest_paths_as_networkx_finds(fabric: Fabric) -> None:
    graph = electrical_graph(fabric, {})
    router, known = Router(fabric, graph), as_networkx(graph)
    for source, destination in itertools.permutations(fabric.gpus, 2):
        expected = 0
        if nx.has_path(known, source, destination):
            for nodes in nx.all_shortest_paths(nx.DiGraph(known), source, destination):
                ways = 1
                for a, b in itertools.pairwise(nodes):
                    ways *= known.number_of_edges(a, b)
                expected += ways
        assert router.count(source, destination) == expected


def test_the_hash_is_what_it_was() -> None:
    """Measured figures rest on which cable a pair takes."""
    options = [Hop(Port("leaf0", n), Port(f"spine{n}", 1), 1e9) for n in range(1, 5)]
    taken = [
        hashed("10.82.0.2", f"10.82.0.{n}", options).out.number for n in range(3, 15)
    ]
    assert taken == [2, 3, 4, 4, 1, 1, 1, 3, 4, 2, 4, 1]
    assert [
        hashed("10.82.0.2", f"10.82.0.{n}", options[::-1]).out.number
        for n in range(3, 15)
    ] == taken


def test_the_hash_spreads_many_pairs_evenly() -> None:
    options = [Hop(Port("leaf0", n), Port(f"spine{n}", 1), 1e9) for n in range(4)]
    count = Counter(
        hashed(f"10.82.0.{a}", f"10.82.1.{b}", options).out
        for a in range(50)
        for b in range(50)
    )
    # 625 expected, standard deviation 22.
    assert all(530 < found < 720 for found in count.values())


def two_racks(cables: int, paths: PathChoice) -> Fabric:
    """Eight GPUs on each of two switches, with so many cables of 12.9 Gbit/s between."""
    links: list[dict[str, object]] = [
        {"ends": [f"g{i}", f"tor{i // 8}:{i % 8 + 1}"], "rate": "40 Gbit/s"}
        for i in range(16)
    ]
    links += [
        {"ends": [f"tor0:{9 + c}", f"tor1:{9 + c}"], "rate": "12.9 Gbit/s"}
        for c in range(cables)
    ]
    spec = {
        "servers": {f"s{i}": {"gpus": {f"g{i}": "titan-v"}} for i in range(16)},
        "packet_switches": {"tor0": {"ports": 10}, "tor1": {"ports": 10}},
        "links": links,
        "paths": paths,
    }
    return build_fabric(FabricSpec.model_validate(spec))


@pytest.mark.parametrize(
    "job", [[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15], list(range(16))]
)
def test_two_cables_carry_twice_what_one_does(job: list[int]) -> None:
    """Defect 3: a second cable was silently ignored."""
    jobs = [RingJob("a", tuple(f"g{i}" for i in job), 1e9)]
    one, two = (
        predict(PacketView(two_racks(n, "even"), {}), jobs)["a"] for n in (1, 2)
    )
    crossing = sum(a // 8 < b // 8 for a, b in itertools.pairwise([*job, job[0]]))
    # Eight flows cross each way, or one.
    assert one / two == pytest.approx(2 if crossing > 1 else 1)


def test_an_even_fat_tree_carries_collectives_without_two_flows_on_a_link() -> None:
    fabric = fat_tree(4, 10e9).fabric(paths="even")
    router = router_of(fabric)
    ranks = list(fabric.gpus)
    for steps in (ring(16), halving_doubling(16)):
        for step in steps:
            used = Counter(
                hop.out
                for a, b in zip(
                    step.sources.tolist(), step.destinations.tolist(), strict=True
                )
                for hop in router.path(ranks[a], ranks[b])
            )
            assert max(used.values()) == 1, (steps.name, used.most_common(1))
    # Any shift, of any even fat tree; and a leaf-spine fabric with two cables to each spine.
    for tree in (
        fat_tree(6, 1e9),
        fat_tree(4, 1e9, gpus_per_edge=4),
        leaf_spine(3, 8, 1e9, spines=2, cables=2),
        leaf_spine(3, 4, 1e9, spines=2, cables=2),
    ):
        fabric = tree.fabric(paths="even")
        router, ranks = router_of(fabric), list(fabric.gpus)
        n = len(ranks)
        for shift in range(1, n):
            load = Counter(
                hop.out
                for i in range(n)
                for hop in router.path(ranks[i], ranks[(i + shift) % n])
            )
            most = max(load[link.a] * NIC / link.rate_bps for link in fabric.links)
            assert most <= 1 + 1e-9, shift


NIC = 1e9


def test_a_fat_tree_is_that_of_the_paper() -> None:
    tree = fat_tree(4, 10e9)
    assert len(tree.gpus) == 16
    assert Counter(tree.switches.values()) == {4: 20}
    fabric = tree.fabric()
    router = router_of(fabric)
    assert [router.count("g0", other) for other in ("g1", "g2", "g4", "g15")] == [
        1,
        2,
        4,
        4,
    ]
    assert nodes_of(router.path("g0", "g3"))[2] in ("p0-a0", "p0-a1")
    graph = electrical_graph(fabric, {})
    for pod, i in itertools.product(range(4), range(2)):
        assert {f"c{2 * i}", f"c{2 * i + 1}"} < set(graph.heads(f"p{pod}-a{i}"))
    assert {link.rate_bps for link in tree.links} == {10e9}
    thin = fat_tree(4, 10e9, gpus_per_edge=3, oversubscription=3)
    assert {link.rate_bps for link in thin.links if link.a.node[0] == "p"} == {5e9}
    with pytest.raises(ValueError, match="k is 3; it must be an even number"):
        fat_tree(3, 1e9)


def test_a_leaf_spine_fabric_has_its_cables() -> None:
    tree = leaf_spine(3, 4, 10e9, spines=2, cables=2, oversubscription=2)
    assert tree.switches == {
        "leaf0": 8,
        "leaf1": 8,
        "leaf2": 8,
        "spine0": 6,
        "spine1": 6,
    }
    assert {link.rate_bps for link in tree.links if link.a.node[0] == "l"} == {5e9}
    assert router_of(tree.fabric()).count("g0", "g11") == 8


@pytest.mark.parametrize("paths", ["hash", "even"])
def test_a_link_test_fills_every_direction_of_every_link_once(
    paths: PathChoice,
) -> None:
    for tree in (fat_tree(4, 1e9), leaf_spine(3, 4, 1e9, spines=2, cables=2)):
        fabric = tree.fabric(paths=paths)
        router = router_of(fabric)
        batches, unmeasured = trunk_tests(fabric, router)
        measured = Counter(
            link for batch in batches for stream in batch for link in stream.links
        )
        between = {p for link in tree.links[len(tree.gpus) :] for p in (link.a, link.b)}
        assert measured == Counter(
            (f"{link.a} - {link.b}", f"{port.node} to {link.other(port).node}")
            for port in between - set(unmeasured)
            for link in [fabric.link_at[port]]
        )
        assert paths == "hash" or not unmeasured
        for batch in batches:
            pairs = [(stream.source, stream.destination) for stream in batch]
            senders, receivers = zip(*pairs, strict=True)
            assert len(set(senders)) == len(set(receivers)) == len(batch)
            links = Counter(
                frozenset((h.out, h.into))
                for pair in pairs
                for h in router.path(*pair)[1:-1]
            )
            assert set(links.values()) <= {1}


def test_a_comparisons_model_knows_the_links_between_switches() -> None:
    """It took a NIC's rate for all there is: check gave one time for one cable and for two."""
    ranks = [f"g{i}" for pair in zip(range(8), range(8, 16), strict=True) for i in pair]
    one, two = (
        steps_time(PacketView(two_racks(n, "even"), {}), ranks, ring(16), 1e9)
        for n in (1, 2)
    )
    assert one == pytest.approx(8 * 2 * 15 / 16 * 8e9 / 12.9e9)
    assert one / two == pytest.approx(2)
    alone = leaf_spine(1, 16, 40e9).fabric()
    for steps in (ring(16), halving_doubling(16)):
        assert steps_time(
            PacketView(alone, {}), list(alone.gpus), steps, 1e9
        ) == pytest.approx(all_reduce_time(steps, 1e9, 40e9))


def test_check_writes_short_forms_out_and_tells_of_several_paths(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = check_document(load(EXAMPLES / "fat_tree_4.yaml"))
    show_check(found)
    said = capsys.readouterr().out
    assert (
        "fabric.fat_tree: GPUs g0 … g15 at 25 Gbit/s; 20 packet switches p0-e0 … c3, 32 links "
        "between them at 25 Gbit/s"
    ) in said
    assert (
        "up to 4 equal paths between two GPUs; each pair takes one, dealt out evenly"
        in said
    )
    (tree,) = found["fabrics"].values()
    assert tree["equal_paths"] == 4
    assert {"ends": ["p0-e0:3", "p0-a0:1"], "rate_bps": 25e9, "queue_s": 1e-3} in tree[
        "links"
    ]
