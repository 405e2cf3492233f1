"""Networks that optical fabrics are compared with: against formulas, other graph code and each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.sip_ml.allocation.one_shot import (
    circuits,
    hangs_together,
    one_shot,
)
from ringlight.extensions.sip_ml.simulation.zoo import (
    CircuitNetwork,
    RelayedGridNetwork,
    TorusNetwork,
    WavelengthRingNetwork,
    rotor_network,
)
from ringlight.extensions.sip_ml.wholes import hops
from ringlight.extensions.sip_ml.wholes.electrical import Ideal, Servers
from ringlight.extensions.sip_ml.wholes.interconnect import of_circuits, of_ring
from ringlight.extensions.sip_ml.wholes.rotor import Rotor
from ringlight.extensions.sip_ml.wholes.torus import Torus, TorusOfGpus
from ringlight.extensions.sip_ml.wholes.whole_grid import GridOfGpus
from ringlight.extensions.wrht import wdm
from ringlight.fabric.parts import Counts
from ringlight.fabric.planes.counts import of_fabric
from ringlight.fabric.schedules import strides
from ringlight.fabric.steps import IntArray, Step, frozen
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.testbed.simulation.maxmin import rates
from ringlight.testbed.simulation.networks import IdealNetwork, Network
from ringlight.testbed.simulation.passing import PARTS
from ringlight.testbed.simulation.workload import Fidelity, simulate_workload
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer

RATE = 800e9
MIB = 2**20


def names(gpus: int) -> tuple[str, ...]:
    return tuple(f"g{gpu}" for gpu in range(gpus))


def step_of(sources: IntArray, destinations: IntArray) -> Step:
    zero, one = np.zeros(len(sources)), np.ones(len(sources))
    return Step(
        frozen(sources), frozen(destinations), frozen(zero), frozen(one), "replace"
    )


def all_pairs(gpus: int) -> Step:
    return step_of(*np.nonzero(1 - np.eye(gpus, dtype=np.int64)))


def ring_step(gpus: int, by: int = 1) -> Step:
    return step_of(np.arange(gpus), (np.arange(gpus) + by) % gpus)


def got(network: Network, step: Step, gpus: int) -> np.ndarray:
    """Max-min rates of a step's transfers."""
    routes = network.routes(names(gpus), step)
    return rates(routes.offsets, routes.links, network.capacity_bps)


def random_ports(gpus: int, degree: int, seed: int) -> IntArray:
    """Permutations without a GPU that leads to itself: shifts, seen through a random order."""
    random = np.random.default_rng(seed)
    order = random.permutation(gpus)
    place = np.argsort(order)
    return np.stack(
        [order[(place + by) % gpus] for by in random.integers(1, gpus, degree)]
    )


# Ways over circuits.


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10_000), st.floats(0, 0.6))
def test_ways_over_circuits_are_the_shortest(
    gpus: int, degree: int, seed: int, dark: float
) -> None:
    ports = random_ports(gpus, degree, seed)
    ports[np.random.default_rng(seed).random(ports.shape) < dark] = -1
    lit = circuits(ports)
    graph = nx.from_numpy_array(lit > 0, create_using=nx.DiGraph)
    far = hops.hops_between(lit)
    known = dict(nx.all_pairs_shortest_path_length(graph))
    assert far.tolist() == [
        [known[a].get(b, -1) for b in range(gpus)] for a in range(gpus)
    ]
    step = all_pairs(gpus)
    reached = far[step.sources, step.destinations] > 0
    sources, destinations = step.sources[reached], step.destinations[reached]
    ways = hops.ways(far, hops.neighbours(lit), sources, destinations)
    for way, source, destination in zip(
        ways.T.tolist(), sources, destinations, strict=True
    ):
        passed = [gpu for gpu in way if gpu >= 0]
        assert passed == way[: len(passed)]
        assert (passed[0], passed[-1], len(passed) - 1) == (
            source,
            destination,
            far[source, destination],
        )
        assert all(lit[pair] for pair in itertools.pairwise(passed))


@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10_000))
def test_circuits_have_all_of_a_gpus_bandwidth_and_no_more(
    gpus: int, degree: int, seed: int
) -> None:
    lit = circuits(random_ports(gpus, degree, seed))
    network = CircuitNetwork(names(gpus), lit, RATE / degree)
    out = dict.fromkeys(names(gpus), 0.0)
    into = dict.fromkeys(names(gpus), 0.0)
    for link, capacity in enumerate(network.capacity_bps):
        _, a, b = network.key(link)  # type: ignore[misc]
        out[a] += capacity
        into[b] += capacity
    assert [*out.values(), *into.values()] == pytest.approx([RATE] * 2 * gpus)
    step = step_of(*np.nonzero(lit))
    assert got(network, step, gpus) == pytest.approx(RATE / degree * lit[lit > 0])


def test_where_several_ways_are_as_short_they_are_all_used() -> None:
    """From one GPU over each of four others to each of four more."""
    lit = np.zeros((9, 9), dtype=np.int64)
    lit[0, 1:5] = lit[1:5, 5:9] = 1
    network = CircuitNetwork(names(9), lit, 1e9, forward=True)
    step = step_of(np.zeros(4, dtype=np.int64), np.arange(5, 9))
    assert got(network, step, 9) == pytest.approx([1e9] * 4)


def test_circuits_say_what_does_not_fit() -> None:
    lit = circuits(np.array([[1, 2, 0, -1]]))
    with pytest.raises(
        ValueError, match=r"step 4: ranks 0 and 2 \(g0, g2\) have no circuit"
    ):
        CircuitNetwork(names(4), lit, RATE).routes(names(4), ring_step(4, 2), 4)
    forwarding = CircuitNetwork(
        names(4), lit, RATE, forward=True, hop_s=1e-6, latency_s=2e-6
    )
    with pytest.raises(
        ValueError, match=r"ranks 2 and 3 \(g2, g3\) have no way over circuits"
    ):
        forwarding.routes(names(4), ring_step(4))
    routes = forwarding.routes(names(4), step_of(np.array([0, 0]), np.array([1, 2])))
    assert routes.latency_s == pytest.approx([2e-6, 3e-6])
    with pytest.raises(ValueError, match="rank 1: there is no GPU g9"):
        forwarding.routes(("g0", "g9"), ring_step(2))
    dark = np.zeros((2, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="two GPUs g0"):
        CircuitNetwork(("g0", "g0"), dark, RATE)
    with pytest.raises(ValueError, match="link a circuit: its capacity is 0 bit/s"):
        CircuitNetwork(names(2), dark, 0.0)


# Torus.


def links_of_ways(shape: Torus, sources: IntArray, destinations: IntArray) -> IntArray:
    """[pairs]: links of the shortest way of each pair."""
    found = np.zeros(len(sources), dtype=np.int64)
    for side, stride in zip(shape.sides, shape.strides, strict=True):
        ahead = (destinations // stride - sources // stride) % side
        found += np.minimum(ahead, side - ahead)
    return found


@given(st.lists(st.integers(2, 6), min_size=1, max_size=3))
def test_a_torus_leads_everybody_the_short_way(sides: list[int]) -> None:
    shape = Torus(tuple(sides))
    network = TorusNetwork(names(shape.gpus), shape, RATE / shape.ports)
    assert network.capacity_bps.sum() == pytest.approx(shape.gpus * RATE)
    grid = np.indices(shape.sides).reshape(len(sides), -1).T
    step = all_pairs(shape.gpus)
    apart = np.abs(grid[step.sources] - grid[step.destinations])
    routes = network.routes(names(shape.gpus), step)
    length = np.minimum(apart, np.array(sides) - apart).sum(axis=1)
    assert np.diff(routes.offsets).tolist() == length.tolist()
    assert (
        links_of_ways(shape, step.sources, step.destinations).tolist()
        == length.tolist()
    )
    links = [network.key(link) for link in range(len(network.capacity_bps))]
    for transfer in range(0, len(step), 1 + len(step) // 200):
        way = [
            links[k]
            for k in routes.links[
                routes.offsets[transfer] : routes.offsets[transfer + 1]
            ]
        ]
        assert way[0][0] == f"g{step.sources[transfer]}"  # type: ignore[index]
        assert way[-1][1] == f"g{step.destinations[transfer]}"  # type: ignore[index]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(way))  # type: ignore[index]


def test_a_torus_is_a_torus() -> None:
    """Every link has another the other way, and the graph is networkx's periodic grid."""
    for sides in ((3, 4), (4, 2), (2, 2, 5), (7,)):
        shape = Torus(sides)
        ends = {
            (gpu, shape.neighbour(gpu, port))
            for gpu in range(shape.gpus)
            for port in range(shape.ports)
        }
        assert len(ends) == shape.gpus * shape.ports == 2 * shape.links
        number = {
            place: gpu
            for gpu, place in enumerate(
                itertools.product(*(range(side) for side in sides))
            )
        }
        known = nx.grid_graph(sides[::-1], periodic=True)
        known = nx.relabel_nodes(
            known, number if len(sides) > 1 else {k: k for k in range(sides[0])}
        )
        assert ends == {pair for a, b in known.edges for pair in ((a, b), (b, a))}


def test_rings_along_a_dimension_share_nothing() -> None:
    shape = Torus((4, 8))
    network = TorusNetwork(names(32), shape, 1e9, hop_s=1e-6)
    assert got(
        network, step_of(np.arange(32), (np.arange(32) + 8) % 32), 32
    ) == pytest.approx([1e9] * 32)
    # Two rows on, both ways round are as long; even rows go one way and odd ones the other.
    opposite = step_of(np.arange(32), (np.arange(32) + 16) % 32)
    assert got(network, opposite, 32) == pytest.approx([1e9] * 32)
    assert network.routes(names(32), opposite).latency_s == pytest.approx([1e-6] * 32)


def test_a_torus_says_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="a torus of 4 × 4 has no 15 GPUs"):
        TorusNetwork(names(15), Torus((4, 4)), RATE)


# One-shot graphs.


@given(st.integers(2, 64), st.integers(1, 8))
def test_strides_lead_through_all_ranks(size: int, count: int) -> None:
    found = strides(size, count)
    assert found[0] == 1
    assert len(set(found)) == len(found) <= count
    for stride in found:
        assert len({k * stride % size for k in range(size)}) == size


def test_strides_make_ways_short() -> None:
    """With d of them about d * n^(1 / d) hops; only the nearest would need about n / d."""
    for count, most in ((2, 64), (4, 24), (8, 16)):
        found = strides(1024, count)
        lit = circuits(
            np.stack([(np.arange(1024) + stride) % 1024 for stride in found])
        )
        assert hops.hops_between(lit)[0].max() <= most


@given(
    st.integers(2, 16),
    st.integers(1, 6),
    st.integers(0, 10_000),
    st.booleans(),
    st.floats(0, 1),
)
def test_a_one_shot_graph_joins_all_within_the_degree(
    gpus: int, degree: int, seed: int, grouped: bool, empty: float
) -> None:
    degree = min(degree, gpus - 1)
    random = np.random.default_rng(seed)
    demand = random.random((gpus, gpus)) * (random.random((gpus, gpus)) > empty)
    np.fill_diagonal(demand, 0.0)
    groups = np.array_split(random.permutation(gpus), 2) if grouped else []
    ports = one_shot(demand, degree, groups, float(random.random()))
    assert ports.shape == (degree, gpus)
    for row in ports:
        ends = row[row >= 0]
        assert len(set(ends.tolist())) == len(ends)
    lit = circuits(ports)
    assert not lit.diagonal().any()
    takes_part = demand.any(axis=0) | demand.any(axis=1)
    for group in groups:
        takes_part[group] |= len(group) > 1
    active = np.flatnonzero(takes_part) if takes_part.any() else np.arange(gpus)
    assert hangs_together(ports, active)
    assert max(lit.sum(axis=0).max(), lit.sum(axis=1).max()) <= degree
    network = CircuitNetwork(names(gpus), lit, RATE / degree, forward=True)
    if len(active) == gpus:
        assert (got(network, all_pairs(gpus), gpus) > 0).all()


def test_ports_go_to_rings_and_matchings_as_their_bytes_do() -> None:
    """Two all-reduces of eight, and each GPU sends as much to one of the other group."""
    demand = np.zeros((16, 16))
    demand[np.arange(16), (np.arange(16) + 8) % 16] = 300.0
    groups = [range(8), range(8, 16)]
    ports = one_shot(demand, 4, groups, 100.0)
    assert ports[0].tolist() == [
        *np.roll(np.arange(8), -1),
        *np.roll(np.arange(8, 16), -1),
    ]
    assert all(row.tolist() == ((np.arange(16) + 8) % 16).tolist() for row in ports[1:])
    ports = one_shot(demand, 4, groups, 300.0)
    assert ports[1].tolist() == [
        *np.roll(np.arange(8), -3),
        *np.roll(np.arange(8, 16), -3),
    ]
    assert ports[2].tolist() == ((np.arange(16) + 8) % 16).tolist()


def test_what_a_matching_serves_counts_half() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1], demand[0, 2], demand[1, 0], demand[2, 0] = 10.0, 6.0, 10.0, 6.0
    ports = one_shot(demand, 3)
    assert [row[0] for row in ports[:2]] == [1, 2]


def test_a_one_shot_graph_says_what_does_not_fit() -> None:
    zeros = np.zeros((4, 4))
    for demand, why in (
        (np.zeros((3, 4)), r"shape \[3 x 4\]"),
        (np.eye(4), "GPU 0 sends to itself"),
        (np.where(np.arange(4) == 2, -1.0, zeros), "demand: GPU 0 to GPU 2 is -1.0"),
    ):
        with pytest.raises(ValueError, match=why):
            one_shot(demand, 2)


# Rotors.


@given(st.integers(2, 20), st.integers(1, 5))
def test_a_cycle_has_room_for_every_matching_and_no_slot_more(
    gpus: int, ports: int
) -> None:
    rotor = Rotor(gpus, min(ports, gpus - 1), 25e9, 2e-4, 2e-5)
    assert (rotor.slots - 1) * rotor.ports < gpus - 1 <= rotor.slots * rotor.ports


@given(st.integers(2, 12), st.integers(1, 3), st.floats(0.0, 12.0), st.floats(0, 1))
def test_slot_by_slot_a_transfer_ends_within_a_cycle_of_the_fluid(
    gpus: int, ports: int, lights: float, phase: float
) -> None:
    rotor = Rotor(gpus, min(ports, gpus - 1), 25e9, 2e-4, 2e-5)
    begin_s, left = phase * rotor.cycle_s, lights * rotor.cycle_bytes
    size = left
    # Its pair is lit in the first slot of each cycle, after the dark time.
    for cycle in itertools.count():
        from_s = max(cycle * rotor.cycle_s + rotor.dark_s, begin_s)
        until_s = cycle * rotor.cycle_s + rotor.slot_s
        passed = max(until_s - from_s, 0.0) * rotor.port_bps / 8
        if passed >= left * (1 - 1e-9):
            break
        left -= passed
    real_s = from_s + left * 8 / rotor.port_bps - begin_s
    assert abs(real_s - size * 8 / rotor.direct_bps) <= rotor.cycle_s * (1 + 1e-6)


def light_of(rotor: Rotor, demand: np.ndarray) -> np.ndarray:
    """Bits per second on every light, each part of each pair's bytes followed over its own."""
    load = np.zeros(demand.shape)
    for a, b in itertools.permutations(range(rotor.gpus), 2):
        part = demand[a, b] / rotor.gpus
        load[a, b] += 2 * part
        for between in set(range(rotor.gpus)) - {a, b}:
            load[a, between] += part
            load[between, b] += part
    return load


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_whoever_sends_to_whom_the_indirect_rate_fits(gpus: int, seed: int) -> None:
    rotor = Rotor(gpus, 1, 25e9, 2e-4, 2e-5)
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.ones(6))
    demand = sum(share * np.eye(gpus)[random.permutation(gpus)] for share in shares)
    assert light_of(rotor, demand * rotor.indirect_bps).max() <= rotor.direct_bps * (
        1 + 1e-9
    )
    one = light_of(rotor, np.roll(np.eye(gpus), 1, axis=1) * rotor.indirect_bps)
    assert one[~np.eye(gpus, dtype=bool)] == pytest.approx(rotor.direct_bps)


def test_rotors_give_a_pair_its_part_and_the_wait() -> None:
    rotor = Rotor(9, 4, 25e9, 2e-4, 5e-5)
    straight = rotor_network(names(9), rotor, latency_s=1e-6, share=0.5)
    # Two slots of a cycle; each pair has one, less the dark time.
    assert got(straight, all_pairs(9), 9) == pytest.approx([25e9 * 0.75 / 2 * 0.5] * 72)
    assert straight.routes(names(9), ring_step(9)).latency_s == pytest.approx(
        [2e-4 + 1e-6] * 9
    )
    over = rotor_network(names(9), rotor, indirect=True)
    assert got(over, ring_step(9), 9) == pytest.approx([4.5 * 25e9 * 0.75 / 2] * 9)
    with pytest.raises(ValueError, match="a rotor fabric of 9 GPUs, and there are 8"):
        rotor_network(names(8), rotor)


# Grid with one node in between.


def test_a_node_of_the_senders_row_and_the_receivers_column_relays() -> None:
    network = RelayedGridNetwork(names(12), 4, 400e9, hop_s=1e-6, latency_s=1e-6)
    routes = network.routes(
        names(12), step_of(np.array([1, 1, 1]), np.array([3, 9, 11]))
    )
    ways = [
        [network.key(link) for link in routes.links[i:j]]
        for i, j in itertools.pairwise(routes.offsets)
    ]
    assert ways == [
        [("from", "g1", "row"), ("to", "g3", "row")],
        [("from", "g1", "column"), ("to", "g9", "column")],
        [
            ("from", "g1", "row"),
            ("to", "g3", "row"),
            ("from", "g3", "column"),
            ("to", "g11", "column"),
        ],
    ]
    assert routes.latency_s == pytest.approx([1e-6, 1e-6, 2e-6])
    assert (got(network, all_pairs(12), 12) > 0).all()
    with pytest.raises(ValueError, match="10 GPUs do not fill a grid of 4 columns"):
        RelayedGridNetwork(names(10), 4, 400e9)


def test_one_transceiver_serves_row_and_column() -> None:
    """So a GPU that sends along both halves what each gets, and alone on one line it has all."""
    both = step_of(np.array([1, 1]), np.array([3, 9]))
    apart = RelayedGridNetwork(names(12), 4, 200e9)
    one = RelayedGridNetwork(names(12), 4, 400e9, shared=True)
    assert got(apart, both, 12) == pytest.approx([200e9, 200e9])
    assert got(one, both, 12) == pytest.approx([200e9, 200e9])
    assert got(one, step_of(np.array([1]), np.array([3])), 12) == pytest.approx([400e9])
    routes = one.routes(names(12), step_of(np.array([1]), np.array([11])))
    assert [one.key(link) for link in routes.links] == [
        ("from", "g1", "line"), ("to", "g3", "line"), ("from", "g3", "line"), ("to", "g11", "line"),
    ]  # fmt: skip


# A ring of wavelengths whose light is set between steps.


def test_light_goes_the_short_way_and_shares_fibres() -> None:
    network = WavelengthRingNetwork(names(8), 100e9)
    routes = network.routes(
        names(8), step_of(np.array([0, 0, 6, 1, 2]), np.array([2, 6, 0, 5, 6]))
    )
    ways = [
        [network.key(link) for link in routes.links[i:j]]
        for i, j in itertools.pairwise(routes.offsets)
    ]
    assert ways == [
        [("g0", "g1"), ("g1", "g2")],
        [("g0", "g7"), ("g7", "g6")],
        [("g6", "g7"), ("g7", "g0")],
        # Half round: from an odd GPU against the clock, from an even one with it.
        [("g1", "g0"), ("g0", "g7"), ("g7", "g6"), ("g6", "g5")],
        [("g2", "g3"), ("g3", "g4"), ("g4", "g5"), ("g5", "g6")],
    ]
    found = got(network, step_of(np.array([0, 1, 2]), np.array([2, 2, 3])), 8)
    assert found == pytest.approx([50e9, 50e9, 100e9])


# What they are built of.


def test_counts_are_those_of_fabrics_that_are_written_out() -> None:
    star = of_fabric(leaf_spine(1, 8, 1e9).fabric())
    assert star == Ideal(1e9).counts(8)
    tree = of_fabric(fat_tree(4, 1e9).fabric())
    assert (tree.nic_ports, tree.packet_switches, tree.packet_ports) == (16, 20, 80)
    assert tree.transceivers == tree.nic_ports + tree.packet_ports
    grid = GridOfGpus(2, 3, 1e9, 2).counts(6)
    assert grid == Counts(6, 12, 12, 12, optical_switches=5, optical_ports=12)
    ring, ours = of_fabric(wdm.wdm_ring("n", 9, 4, 40e9)[0]), of_ring(9, 4)
    assert (ring.nic_ports, ring.transceivers, ring.channels) == (18, 18, 72)
    assert (ours.nic_ports, ours.transceivers, ours.channels) == (18, 18, 72)


def test_counts_of_circuits_and_tori() -> None:
    ocs = of_circuits(1024, 20)
    assert ocs.per_gpu() == {
        "nic_ports": 20, "transceivers": 20, "channels": 20, "packet_switches": 0, "packet_ports": 0,
        "optical_switches": 20 / 1024, "optical_ports": 20, "copper_cables": 0,
    }  # fmt: skip
    # A block of 4 x 4 x 4: 96 of the 192 ends of its links lead out of it (Jouppi et al., 2023).
    servers = Servers(8, 1e9, 1e9).counts(1024)
    assert (servers.packet_switches, servers.packet_ports, servers.copper_cables) == (
        129,
        2048,
        1024,
    )
    block = TorusOfGpus(Torus((4, 4, 4)), 1e9).counts(64)
    assert (block.optical_ports, block.optical_switches, block.copper_cables) == (
        96,
        1,
        192 - 48,
    )
    ring = TorusOfGpus(Torus((8,)), 1e9).counts(8)
    assert (ring.nic_ports, ring.optical_ports, ring.copper_cables) == (16, 2, 7)
    assert TorusOfGpus(Torus((2, 2)), 1e9).counts(4).optical_switches == 0
    assert TorusOfGpus(Torus((2, 4)), 1e9).counts(8).optical_ports == 4
    assert all(value >= 0 for value in asdict(block).values())


# Workloads on all of them.


def one_shot_of(gpus: int) -> CircuitNetwork:
    demand = np.zeros((gpus, gpus))
    demand[np.arange(gpus), (np.arange(gpus) + 1) % gpus] = 1.0
    ports = one_shot(demand, 4, [np.arange(k, gpus, 8) for k in range(8)], 1.0)
    return CircuitNetwork(names(gpus), circuits(ports), RATE / 4, forward=True)


def straight_circuits(gpus: int) -> CircuitNetwork:
    """Two to the next GPU, one to the eighth from here, one to the one before."""
    lit = circuits(np.stack([(np.arange(gpus) + by) % gpus for by in (1, 1, 8, -1)]))
    return CircuitNetwork(names(gpus), lit, RATE / 4)


def rotor_of(gpus: int) -> Rotor:
    return Rotor(gpus, 4, RATE / 4, 2e-5, 2e-6)


def torus_of(gpus: int) -> TorusNetwork:
    shape = rows_of_eight(gpus)
    return TorusNetwork(names(gpus), shape, RATE / shape.ports)


def rows_of_eight(gpus: int) -> Torus:
    return Torus((gpus // 8, 8))


#: All of one bandwidth per GPU: the network; what the next rank and what the eighth from here get of it, and
#: how long transfers wait.
ZOO: dict[str, tuple[Callable[[int], Network], Callable[[int], tuple[float, float, float]]]] = {
    "ideal": (lambda n: IdealNetwork(names(n), RATE), lambda n: (RATE, RATE, 0.0)),
    "circuits": (straight_circuits, lambda n: (RATE / 2, RATE / 4, 0.0)),
    "one-shot": (one_shot_of, lambda n: (RATE / 2, RATE / (2 if n == 16 else 4), 0.0)),
    "torus": (torus_of, lambda n: (*[RATE / rows_of_eight(n).ports] * 2, 0.0)),
    "grid": (
        lambda n: RelayedGridNetwork(names(n), math.isqrt(n), RATE / 2), lambda n: (RATE / 2, RATE / 2, 0.0)
    ),
    "rotor": (
        lambda n: rotor_network(names(n), rotor_of(n)),
        lambda n: (rotor_of(n).direct_bps, rotor_of(n).direct_bps, rotor_of(n).cycle_s / 2),
    ),
    "rotor, indirectly": (
        lambda n: rotor_network(names(n), rotor_of(n), indirect=True),
        lambda n: (rotor_of(n).indirect_bps, rotor_of(n).indirect_bps, rotor_of(n).cycle_s / 2),
    ),
}  # fmt: skip


def small(ranks: int) -> Workload:
    """A message to the next rank, then groups at distance 8 all-reduce."""
    book = Book()
    groups = [book.group(range(k, ranks, 8)) for k in range(8)]
    writer = Writer(book)
    computed = writer.compute("forward", seconds=1e-3)
    sent = writer.send("activations", MIB, 0, after=[computed], stream="out")
    received = writer.receive("activations", MIB, 1, stream="in")
    writer.collective(
        "gradients",
        Collective("all-reduce", "ring"),
        4 * MIB,
        0,
        after=[sent, received],
    )
    peers = [[(rank + 1) % ranks, (rank - 1) % ranks] for rank in range(ranks)]
    communicators = [[groups[rank % 8]] for rank in range(ranks)]
    return book.workload("small", [writer.done()], [0] * ranks, communicators, peers)


@pytest.mark.parametrize(
    ("ranks", "how"), [(16, "exact"), (16, "classes"), (1024, "classes")]
)
@pytest.mark.parametrize("name", ZOO)
def test_a_workload_takes_as_long_as_its_links_say(
    name: str, ranks: int, how: Fidelity
) -> None:
    make, known = ZOO[name]
    found = simulate_workload(make(ranks), names(ranks), small(ranks), fidelity=how)
    next_bps, eighth_bps, wait_s = known(ranks)
    steps, size = 2 * (ranks // 8 - 1), 8 * 4 * MIB / (ranks // 8)
    sent_s = size / eighth_bps
    # Part by part a rank waits for its next transfer while the rest of the last one arrives.
    pace_s = (
        sent_s + wait_s if how == "classes" else max(sent_s, wait_s + sent_s / PARTS)
    )
    ring_s = wait_s + (steps - 1) * pace_s + sent_s
    expected_s = 1e-3 + 8 * MIB / next_bps + wait_s + ring_s
    assert found.total_s == pytest.approx(expected_s, rel=1e-9)


def test_coprime_rings_use_all_ring_ports_of_a_one_shot_graph() -> None:
    """Two of its four ports, with half of the vector each."""
    book = Book()
    writer = Writer(book)
    writer.collective(
        "gradients", Collective("all-reduce", "coprime-rings-2"), 4 * MIB, 0
    )
    groups = [[book.group(range(rank % 8, 64, 8))] for rank in range(64)]
    workload = book.workload(
        "one", [writer.done()], [0] * 64, groups, np.empty((64, 0))
    )
    found = simulate_workload(one_shot_of(64), names(64), workload)
    assert found.total_s == pytest.approx(2 * 7 / 8 * 4 * MIB * 8 / (RATE / 2))


@pytest.mark.parametrize("how", ["exact", "classes"])
def test_every_byte_passes_as_many_links_as_its_way_has(how: Fidelity) -> None:
    network = torus_of(64)
    found = simulate_workload(network, names(64), small(64), fidelity=how)
    shape = rows_of_eight(64)
    message, ring = ring_step(64), ring_step(64, 8)
    each = 2 * 7 / 8 * 4 * MIB
    expected = MIB * links_of_ways(shape, message.sources, message.destinations).sum()
    expected += each * links_of_ways(shape, ring.sources, ring.destinations).sum()
    assert found.link_bytes.sum() == pytest.approx(expected)
