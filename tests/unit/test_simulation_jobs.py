from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.transfers import SEGMENTS_PER_CHUNK
from ringlight.fabric.algorithms import STEPS
from ringlight.fabric.cost import RingJob, byte_time, predict, ring_edge_bytes
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.placement import regroup
from ringlight.fabric.schedules import halving_doubling, ring, ring_of_bits
from ringlight.fabric.steps import Step, passes_on
from ringlight.fabric.topology import circuit_cross_connects
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Compute, GpuLost, Job, Loss, NetworkChange
from ringlight.testbed.simulation.maxmin import drain
from ringlight.testbed.simulation.networks import PacketNetwork, Routes, without_link
from ringlight.testbed.simulation.passing import PARTS
from ringlight.testbed.simulation.phases import Phases, StepCost, synchronous
from ringlight.testbed.simulation.simulation import Simulation
from tests.simulated_jobs import all_reduce_s, duration_s, iteration_s, simulate
from tests.unit.fabrics import six_gpu_fabric

RATE = 100e9
MIB = 2**20


def one_switch(
    ranks: int, latency_s: float = 0.0
) -> tuple[PacketNetwork, tuple[str, ...]]:
    fabric = leaf_spine(1, ranks, RATE).fabric()
    return PacketNetwork(fabric, latency_s=latency_s), tuple(fabric.gpus)


# Closed forms and published figures


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_collectives_take_what_their_formulas_say(name: str, n: int) -> None:
    """Thakur, Rabenseifner and Gropp, 2005: steps * latency + bytes on the slowest rank / rate."""
    network, ranks = one_switch(n, latency_s=3e-6)
    vector, depth = 8 * MIB, int(math.log2(n))
    ideal = 2 * (n - 1) / n * vector * 8 / RATE
    whole = vector * 8 / RATE
    expected = {
        "ring": 2 * (n - 1) * 3e-6 + ideal,
        "halving-doubling": 2 * depth * 3e-6 + ideal,
        "recursive-doubling": depth * (3e-6 + whole),
        "binary-tree": 2 * depth * (3e-6 + whole),
    }
    steps = STEPS[name](n)
    found = synchronous(network, ranks, steps, vector)
    assert found.total_s == pytest.approx(
        expected.get(name, steps.steps * 3e-6 + ideal), rel=1e-12
    )
    assert len(found.step_s) == steps.steps
    # Rank by rank it is the same in a schedule of exchanges. On a ring an eighth of a chunk is passed on
    # while the rest arrives, so that the latency is that of the first step.
    free = simulate(network, [Job("a", ranks, steps, vector)])["a"]
    if passes_on(steps):
        least_s = vector * byte_time(name, n, at_once=True) / RATE
        assert least_s <= free.end_s <= 1.35 * found.total_s
    else:
        expected_s = found.total_s if steps.step_by_step else 3e-6 + ideal
        assert free.end_s == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_tree_adds_and_hands_down_at_once(ranks: int) -> None:
    """By hand: a pipeline of eight parts. The root's link carries each part once for each of its log2 n
    children, so a part takes log2 n times an eighth of the vector there; and the last part comes as many
    times later as it has levels to pass, while the root still has the part before it.

    Of four ranks, in vectors: rank 1's part comes at once, rank 2's an eighth later, and at 2 the root has
    all. It hands down the seventh part until 2 1/8, the eighth until 2 3/8, and rank 2 that until 2 1/2.
    """
    network, gpus = one_switch(ranks)
    whole_s, depth = 8 * MIB * 8 / RATE, int(math.log2(ranks))
    took_s = simulate(network, [Job("a", gpus, STEPS["binary-tree"](ranks), 8 * MIB)])[
        "a"
    ].end_s
    assert took_s == pytest.approx(depth * (1 + depth / PARTS) * whole_s, rel=1e-9)


def test_what_goes_both_ways_round_to_one_rank_has_one_share_of_a_link() -> None:
    """Two ranks' bidirectional ring sends both halves over one connection, so beside another job's two ranks
    it has half of the link between the switches, not two thirds."""
    fabric = leaf_spine(2, 2, RATE, oversubscription=2.0).fabric()
    a, b, c, d = fabric.gpus
    jobs = [
        Job("both", (a, c), STEPS["bidirectional-ring"](2), MIB),
        Job("one", (b, d), STEPS["recursive-doubling"](2), MIB),
    ]
    found = simulate(PacketNetwork(fabric), jobs)
    assert found["both"].end_s == pytest.approx(found["one"].end_s)
    assert found["both"].end_s == pytest.approx(2 * MIB * 8 / RATE)


class OwnLinks:
    """A network with a link of its own for what each rank sends, and rates in bits per second."""

    def __init__(self, rates_bps: Sequence[float]) -> None:
        self.capacity_bps = np.array(rates_bps)

    def key(self, link: int) -> int:
        return link

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        return Routes(np.arange(len(step) + 1), step.sources, np.zeros(len(step)))


class SlowReceiver:
    """One link of a byte a second from each of four ranks and one to each; to rank 3 it has half of that."""

    capacity_bps = np.array([8.0] * 7 + [4.0])

    def key(self, link: int) -> int:
        return link

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        links = np.stack((step.sources, 4 + step.destinations), axis=1).ravel()
        return Routes(np.arange(0, len(links) + 1, 2), links, np.zeros(len(step)))


def test_an_exchange_waits_until_both_have_received_and_not_until_all_is_sent() -> None:
    """By hand, halving and doubling of four bytes. Rank 2 sends two bytes to rank 3 until 4, but has its own
    at 2, and so has rank 0: they go on, and have done the second step at 4 and the third at 5. Rank 3 goes on
    with rank 1 at 4, as nobody sends to it before: until 6, and until 8 for the third step. Rank 1 has its
    part of that at 7, and begins the last step with 0; half of its link is rank 3's until 8, so that ends at
    9.5. Rank 2 sends rank 3 two bytes from 8 to 12.
    """
    job = Job("a", ("0", "1", "2", "3"), halving_doubling(4), 4.0)
    ends = simulate(SlowReceiver(), [job])["a"].iterations[0].end_s
    assert ends.tolist() == pytest.approx([9.5, 9.5, 12.0, 12.0])


def test_an_exchange_waits_until_its_partner_has_come() -> None:
    """By hand, two iterations of recursive doubling of four bytes. Ranks 0 and 2 are done with the first
    at 10: rank 2 sends rank 3 four bytes until 8, and rank 0 from 4 on, at half a link until 8. Rank 1 sends
    rank 3 from 8 to 16, and nobody takes a part of that link from it: rank 2 has its next four bytes for rank
    3 at 10, but rank 3 comes to the second iteration at 16.
    """
    job = Job(
        "a", ("0", "1", "2", "3"), STEPS["recursive-doubling"](4), 4.0, iterations=2
    )
    ends = simulate(SlowReceiver(), [job])["a"].iterations[0].end_s
    assert ends.tolist() == pytest.approx([10.0, 16.0, 10.0, 16.0])


def test_a_ring_passes_on_parts_where_links_change() -> None:
    """By hand: chunks of one byte; rank 0 sends half a byte a second until 2, rank 1 from then on, else each
    sends one. Rank 1 has sent its own chunk at 1, and passes on what comes from rank 0 as it comes: it has
    an eighth left at 2, which takes until 2.25, and its chunks of steps 3 and 4 two seconds each. By whole
    chunks it would begin with step 2 at 2 and end at 8.
    """
    job = Job("a", ("0", "1", "2"), ring(3), 3.0)
    change = NetworkChange(2.0, OwnLinks((8.0, 4.0, 8.0)))
    ends = simulate(OwnLinks((4.0, 8.0, 8.0)), [job], [change])["a"].iterations[0].end_s
    assert ends.tolist() == pytest.approx([5.0, 6.25, 6.25])


def test_parts_are_those_of_the_workers() -> None:
    assert PARTS == SEGMENTS_PER_CHUNK


def test_the_published_eight_rank_ring() -> None:
    """ASTRA-sim's own analytical test: 8 ranks, 1 MiB in 4 splits, 50 GB/s of 2^30 bytes, 500 ns, 10 ns at
    the end points, memory of 50 GB/s that each added byte passes three times: 117,780 ns."""
    fabric = leaf_spine(1, 8, 50 * 2**30 * 8).fabric()
    network = PacketNetwork(fabric, latency_s=500e-9)
    cost = StepCost(set_up_s=10e-9, reduce_s_per_byte=3 / 50e9)
    part = synchronous(network, tuple(fabric.gpus), ring(8), MIB / 4, cost)
    assert part.phases == 2
    # The reference charges the additions 3 (N - 1) times per split, as here in the N - 1 reducing steps.
    assert 4 * part.total_s == pytest.approx(117_780e-9, rel=1e-3)


def test_the_published_ring_of_1024_ranks() -> None:
    """40.983 ms. Its settings are inferred: 1 GiB with the bandwidth and latency of the other figure."""
    fabric = leaf_spine(1, 1024, 50 * 2**30 * 8).fabric()
    network = PacketNetwork(fabric, latency_s=500e-9)
    found = synchronous(network, tuple(fabric.gpus), ring(1024), 2**30)
    assert found.total_s == pytest.approx(40.983e-3, rel=1e-3)
    assert found.phases <= 2


def test_alike_steps_are_computed_once() -> None:
    network, ranks = one_switch(256)
    assert synchronous(network, ranks, ring(256), MIB).phases == 2
    assert synchronous(network, ranks, halving_doubling(256), MIB).phases == 16


class OneLink:
    """A network of one link of 8 bit/s; what rank r sends comes onto it r seconds late."""

    capacity_bps = np.array([8.0])

    def key(self, link: int) -> str:
        return "the link"

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        return Routes(
            np.arange(len(step) + 1),
            np.zeros(len(step), dtype=np.int64),
            step.sources * 1.0,
        )


def test_transfers_that_share_a_link_and_begin_apart_take_no_straight_line() -> None:
    phases = Phases(OneLink(), ("a", "b"), ring(2))
    # Half of the vector each way: until 1 s one of them has the link for itself.
    assert phases.time(1.0).step_s.tolist() == [1.5, 1.5]
    assert phases.time(2.0).step_s.tolist() == [2.0, 2.0]
    assert phases.time(4.0).step_s.tolist() == [4.0, 4.0]


# The engine


@given(st.integers(0, 2**31))
@settings(max_examples=40)
def test_the_engine_and_the_batch_solver_agree(seed: int) -> None:
    random = np.random.default_rng(seed)
    flows, links = int(random.integers(1, 25)), int(random.integers(1, 12))
    paths = [
        random.choice(links, random.integers(1, min(links, 4) + 1), replace=False)
        for _ in range(flows)
    ]
    capacity = random.choice([1.0, 2.0, 5.0, 7.3], links)
    sizes, starts = (
        random.choice([1.0, 4.0, 9.9], flows),
        random.choice([0.0, 0.0, 1.0, 2.5], flows),
    )
    engine = Engine()
    number = [engine.link(k, float(capacity[k])) for k in range(links)]
    ends = np.full(flows, np.nan)

    def ended(k: int) -> None:
        ends[k] = engine.now_s

    for k, path in enumerate(paths):
        engine.start(
            [number[i] for i in path], sizes[k], lambda k=k: ended(k), starts[k]
        )  # type: ignore[misc]
    engine.run()
    offsets = np.cumsum([0, *map(len, paths)])
    assert ends == pytest.approx(
        drain(offsets, np.concatenate(paths), capacity, sizes, starts), rel=1e-9
    )


def test_a_dark_link_makes_flows_stand_and_harms_no_other() -> None:
    engine = Engine()
    dark, shared = engine.link("dark", 2.0), engine.link("shared", 2.0)
    ends: dict[str, float] = {}
    engine.start([dark, shared], 4.0, lambda: ends.__setitem__("dark", engine.now_s))
    engine.start([shared], 4.0, lambda: ends.__setitem__("other", engine.now_s))
    engine.at(1.0, lambda: engine.set_capacity(dark, 0.0))
    engine.at(3.5, lambda: engine.set_capacity(dark, 2.0))
    engine.run()
    # Together until 1 (one byte each), then the other alone at 2 (3 bytes: until 2.5).
    assert ends == {"other": pytest.approx(2.5), "dark": pytest.approx(5.0)}


def test_a_stopped_flow_frees_its_links_and_a_rerouted_one_goes_on() -> None:
    engine = Engine()
    a, b = engine.link("a", 2.0), engine.link("b", 1.0)
    ends: dict[str, float] = {}
    first = engine.start([a], 10.0, lambda: ends.__setitem__("first", engine.now_s))
    engine.start([a], 4.0, lambda: ends.__setitem__("second", engine.now_s))
    moved = engine.start([a], 8.0, lambda: ends.__setitem__("moved", engine.now_s))
    engine.at(1.5, lambda: engine.stop(first))
    engine.at(3.0, lambda: engine.reroute(moved, [b]))
    engine.run()
    # Thirds until 1.5 (1 byte each), halves until 3 (1.5 each): 2.5 have gone of each.
    assert ends == {"second": pytest.approx(3.75), "moved": pytest.approx(3.0 + 5.5)}
    assert engine.users(a) == engine.users(b) == 0
    with pytest.raises(ValueError, match=r"link 0: its capacity is -1"):
        engine.set_capacity(a, -1.0)
    with pytest.raises(ValueError, match="an event at 1"):
        engine.at(1.0, lambda: None)


# Jobs


def test_jobs_contend_as_the_model_says() -> None:
    """The disaggregation testbed: one job across the slow link, alone and beside another."""
    fabric = six_gpu_fabric()
    network = PacketNetwork(fabric)
    lit = circuit_cross_connects(fabric, fabric.circuits)
    gpus = {"a": ("g0", "g3", "g1", "g4"), "b": ("g2", "g5")}
    jobs = [
        Job(name, ranks, ring(len(ranks)), 10e6, iterations=4)
        for name, ranks in gpus.items()
    ]
    model = predict(
        PacketView(fabric, lit),
        [RingJob.all_reduce(n, r, 10e6, 0.0) for n, r in gpus.items()],
    )
    found = simulate(network, jobs)
    assert found["a"].failed is found["b"].failed is None
    # All communicate all the time; but ranks with a fast edge wait, so the link is not always full.
    assert iteration_s(found["b"]) <= model["b"] * 1.02
    alone = simulate(network, [jobs[0]])["a"]
    expected = predict(
        PacketView(fabric, lit), [RingJob.all_reduce("a", gpus["a"], 10e6, 0.0)]
    )["a"]
    assert iteration_s(alone) == pytest.approx(expected, rel=1e-9)


def test_compute_and_all_reduce_add_up() -> None:
    network, ranks = one_switch(4)
    job = Job("a", ranks, ring(4), 12.5e6, Compute(0.01), iterations=3)
    ideal = ring_edge_bytes(4, 12.5e6) * 8 / RATE
    for synchronised in (False, True):
        found = simulate(network, [replace(job, synchronised=synchronised)])["a"]
        assert [duration_s(i) for i in found.iterations] == pytest.approx(
            [0.01 + ideal] * 3
        )
        assert all_reduce_s(found.iterations[1]) == pytest.approx(ideal)
        assert found.end_s == pytest.approx(3 * (0.01 + ideal))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n", [3, 5, 8, 12])
def test_free_ranks_and_synchronised_ones(name: str, n: int) -> None:
    network, ranks = one_switch(n, latency_s=1e-6)
    cost = StepCost(2e-6, "each-step", 1e-11)
    factors = np.maximum(np.random.default_rng(5).normal(1.0, 0.3, n), 0.01)
    job = Job(
        "a",
        ranks,
        STEPS[name](n),
        MIB,
        Compute(1e-4, dict(enumerate(factors))),
        3,
        cost,
    )
    free = simulate(network, [job])["a"]
    together = simulate(network, [replace(job, synchronised=True)])["a"]
    assert free.failed is together.failed is None
    assert len(free.iterations) == len(together.iterations) == 3
    if name == "ring":
        # Its ranks share no link with each other, so nobody gains by waiting.
        assert free.end_s <= together.end_s * (1 + 1e-9)
    # With others a rank that is ahead takes part of the link of one that is late.
    assert 0.7 * together.end_s < free.end_s < 1.3 * together.end_s


def test_synchronised_steps_one_by_one_take_as_long_as_at_once() -> None:
    network, ranks = one_switch(6, latency_s=1e-6)
    cost = StepCost(5e-6, "changed-only", 1e-12)
    job = Job(
        "a",
        ranks,
        STEPS["recursive-doubling"](6),
        MIB,
        Compute(1e-3),
        2,
        cost,
        synchronised=True,
    )
    at_once = simulate(network, [job])["a"]
    idle = replace(job, name="b", start_s=1.0, vector_bytes=0.0, iterations=1)
    # An event in the middle forbids the short cut for the iteration that it falls into.
    change = NetworkChange(0.5 * at_once.end_s, network)
    one_by_one = simulate(network, [job], [change])["a"]
    assert one_by_one.end_s == pytest.approx(at_once.end_s, rel=1e-9)
    with pytest.raises(ValueError, match="two jobs are called a"):
        simulate(network, [job, replace(idle, name="a")])


def test_a_straggler_delays() -> None:
    network, ranks = one_switch(4)
    job = Job("a", ranks, ring(4), 1e6, Compute(0.01, {2: 3.0}), 5)
    ideal = ring_edge_bytes(4, 1e6) * 8 / RATE
    assert duration_s(simulate(network, [job])["a"].iterations[0]) == pytest.approx(
        0.03 + ideal, rel=0.02
    )
    with pytest.raises(ValueError, match="no rank 4 to be a straggler"):
        simulate(network, [replace(job, compute=Compute(0.01, {4: 2.0}))])


# Events


def test_a_regroup_darkens_what_moves_and_speeds_up_the_job() -> None:
    fabric = six_gpu_fabric()
    lit = circuit_cross_connects(fabric, fabric.circuits)
    ranks = ("g0", "g3", "g1")
    plan = regroup(fabric, fabric.circuits, [RingJob("a", ranks, 1.0)], movable=None)
    network = PacketNetwork(fabric, lit)
    after = PacketNetwork(fabric, circuit_cross_connects(fabric, plan.circuits))
    job = Job("a", ranks, ring(3), 40e6, Compute(0.001), 20)
    before = iteration_s(simulate(network, [job])["a"])
    fast = iteration_s(simulate(after, [job])["a"])
    assert before > 2 * fast
    at_s = 5.5 * before
    found = simulate(network, [job], [NetworkChange(at_s, after, dark_s=0.05)])["a"]
    durations = [duration_s(i) for i in found.iterations]
    assert durations[3] == pytest.approx(before)
    assert durations[-1] == pytest.approx(fast)
    assert max(durations) == pytest.approx(0.05, rel=0.5)
    assert max(durations) > 0.05
    # TCP sends again after 20, then after 40 and 80 ms more; the acknowledgement takes 40.
    change = NetworkChange(at_s, after, dark_s=0.05, time_out_s=0.02)
    again = [duration_s(i) for i in simulate(network, [job], [change])["a"].iterations]
    assert max(again) == pytest.approx(max(durations) - 0.05 + 0.02 + 0.04 + 0.04)
    # Who does not move does not notice.
    still = Job("b", ("g2", "g4", "g5"), ring(3), 40e6, Compute(0.001), 5)
    moved = {move.gpu for move in plan.moved}
    assert "g2" in moved or simulate(network, [still])["b"].failed is None


def test_a_cut_link_fails_only_the_job_that_needs_it() -> None:
    fabric = leaf_spine(2, 4, RATE, oversubscription=2).fabric()
    network = PacketNetwork(fabric)
    across = Job("across", ("g0", "g4"), ring(2), 1e9, iterations=3)
    beside = Job("beside", ("g1", "g2"), ring(2), 1e9, iterations=3)
    cut = NetworkChange(0.1, PacketNetwork(without_link(fabric, Port("leaf0", 5))))
    found = simulate(network, [across, beside], [cut])
    assert found["across"].failed in ("no path from g0 to g4", "no path from g4 to g0")
    assert found["across"].end_s == pytest.approx(0.1)
    assert found["beside"].failed is None
    assert len(found["beside"].iterations) == 3


def test_flows_of_a_cut_link_go_on_over_what_is_left() -> None:
    """One of two spines is cut off in the middle of an all-reduce between two leaves."""
    fabric = leaf_spine(2, 2, RATE, spines=2).fabric(paths="even")
    job = Job("a", ("g0", "g2", "g1", "g3"), ring(4), 1e9)
    whole_s = simulate(PacketNetwork(fabric), [job])["a"].end_s
    left = PacketNetwork(
        without_link(without_link(fabric, Port("leaf0", 3)), Port("leaf1", 3))
    )
    found = simulate(PacketNetwork(fabric), [job], [NetworkChange(whole_s / 2, left)])[
        "a"
    ]
    assert found.failed is None
    # Two flows each way share one cable for the second half.
    assert found.end_s == pytest.approx(1.5 * whole_s)


def test_a_lost_gpu_fails_its_job_and_no_other() -> None:
    network, ranks = one_switch(6)
    first = Job("first", ranks[:3], ring(3), 1e9, iterations=2)
    second = Job("second", ranks[3:], ring(3), 1e9, iterations=2)
    found = simulate(network, [first, second], [GpuLost(0.05, ranks[1])])
    assert found["first"].failed == f"GPU {ranks[1]} (rank 1) was lost"
    assert found["second"].failed is None
    assert simulate(network, [first], [GpuLost(0.05, ranks[5])])["first"].failed is None


@pytest.mark.parametrize("synchronised", [False, True])
@pytest.mark.parametrize("then", ["swap", "shrink"])
@given(
    share=st.floats(0, 5).filter(lambda share: 0.01 < share % 1 < 0.99),
    recovery_s=st.floats(0, 3),
)
@settings(max_examples=20)
def test_a_job_that_lost_a_gpu_begins_the_iteration_anew(
    synchronised: bool, then: Literal["swap", "shrink"], share: float, recovery_s: float
) -> None:
    network, gpus = one_switch(7)
    job = Job(
        "a",
        gpus[:3],
        ring(3),
        1e9,
        Compute(0.3),
        iterations=5,
        synchronised=synchronised,
    )
    other = Job("b", gpus[3:5], ring(2), 1e9, Compute(0.2), iterations=5)
    whole_s = simulate(network, [job])["a"].end_s / 5
    spare = gpus[5] if then == "swap" else None
    after = (gpus[0], gpus[5], gpus[2]) if then == "swap" else (gpus[0], gpus[2])
    smaller = replace(job, ranks=after, steps=ring(len(after)), iterations=1)
    after_s = simulate(network, [smaller])["a"].end_s
    lost_s = share * whole_s
    found = simulate(
        network, [job, other], [GpuLost(lost_s, gpus[1], then, spare, recovery_s)]
    )
    ended = found["a"]
    first = ended.losses[0].iteration
    assert first == int(share)
    assert ended.losses == [Loss(gpus[1], 1, first, after, lost_s, lost_s + recovery_s)]
    assert ended.failed is None
    assert [len(i.end_s) for i in ended.iterations] == [3] * first + [len(after)] * (
        5 - first
    )
    assert ended.end_s == pytest.approx(lost_s + recovery_s + (5 - first) * after_s)
    assert ended.iterations[first].begin_s == pytest.approx(lost_s + recovery_s)
    assert found["b"].end_s == pytest.approx(simulate(network, [other])["b"].end_s)


@given(
    at=st.integers(0, 15), rank=st.integers(0, 3), seed=st.integers(0, 99),
    then=st.sampled_from(["swap", "shrink"]),
)  # fmt: skip
@settings(max_examples=60)
def test_ranks_at_different_places_go_on_together(
    at: int, rank: int, seed: int, then: Literal["swap", "shrink"]
) -> None:
    """Where one rank that is left has ended an iteration, all go on after it; else all begin it anew."""
    network, gpus = PacketNetwork(six_gpu_fabric()), ("g0", "g3", "g1", "g4", "g2")
    factors = np.random.default_rng(seed).exponential(1.0, 4) * (1.0, 2.0, 1.0, 1.5)
    compute = Compute(0.3, dict(enumerate(factors)))
    job = Job("a", gpus[:4], ring(4), 1e9, compute, iterations=4)
    whole = simulate(network, [job])["a"]
    # Just after one of them has ended one of the iterations.
    lost_s = float(whole.iterations[at // 4].end_s[at % 4]) + 1e-6
    spare = gpus[4] if then == "swap" else None
    found = simulate(network, [job], [GpuLost(lost_s, gpus[rank], then, spare, 1.0)])[
        "a"
    ]
    if lost_s > whole.end_s:
        assert not found.losses
        return
    others = [r for r in range(4) if r != rank]
    first = max(
        sum(bool(i.end_s[r] <= lost_s) for i in whole.iterations) for r in others
    )
    assert [loss.iteration for loss in found.losses] == [first]
    assert len(found.iterations) == 4
    for before, i in enumerate(found.iterations):
        assert (i.begin_s <= i.computed_s).all()
        assert (i.computed_s <= i.end_s).all()
        if before < first:
            assert (i.begin_s == whole.iterations[before].begin_s).all()
            assert (i.end_s == np.minimum(whole.iterations[before].end_s, lost_s)).all()
        else:
            assert (i.begin_s >= lost_s + 1.0).all()


def test_gpus_are_lost_again_and_during_a_recovery() -> None:
    network, gpus = one_switch(6)
    job = Job("a", gpus[:3], ring(3), 1e9, Compute(1.0), iterations=6)
    whole_s = simulate(network, [job])["a"].end_s / 6
    events = [
        GpuLost(1.5 * whole_s, gpus[1], "swap", gpus[4], 10.0),
        GpuLost(1.5 * whole_s + 4.0, gpus[4], "swap", gpus[5], 10.0),
        GpuLost(1.5 * whole_s + 14.5, gpus[0], "shrink", None, 10.0),
    ]
    found = simulate(network, [job], events)["a"]
    assert [loss.iteration for loss in found.losses] == [1, 1, 1]
    assert [loss.rank for loss in found.losses] == [1, 1, 0]
    assert found.losses[-1].ranks == (gpus[5], gpus[2])
    assert found.iterations[1].begin_s == pytest.approx(1.5 * whole_s + 24.5)
    assert len(found.iterations) == 6
    assert found.failed is None


def test_a_job_that_has_not_begun_takes_the_spare_without_a_pause() -> None:
    network, gpus = one_switch(6)
    first = Job("first", gpus[:2], ring(2), 1e9, Compute(1.0))
    waits = Job("waits", gpus[2:4], ring(2), 1e9, Compute(1.0), start_s=3.0)
    later = Job("later", gpus[:2], ring(2), 1e9, Compute(1.0), start_s=9.0)
    events = [
        GpuLost(0.5, gpus[2], "swap", gpus[4], 5.0),
        GpuLost(4.0, gpus[1], "swap", gpus[5], 5.0),
    ]
    found = simulate(network, [first, waits, later], events)
    assert found["waits"].iterations[0].begin_s == pytest.approx(3.0)
    assert found["later"].iterations[0].begin_s == pytest.approx(9.0)
    assert not any(one.losses or one.failed for one in found.values())


def test_a_job_that_was_not_released_waits_on_with_its_spare() -> None:
    network, gpus = one_switch(4)
    sim = Simulation(network, disturbed=True)
    sim.add(Job("held", gpus[:2], ring(2), 1e9, Compute(1.0)))
    sim.happen(GpuLost(0.0, gpus[1], "swap", gpus[2], 5.0))
    sim.run(10.0)
    assert not sim.results["held"].iterations
    sim.begin("held")
    sim.run()
    assert sim.results["held"].iterations[0].begin_s == pytest.approx(10.0)
    assert sim.loops["held"].job.ranks == (gpus[0], gpus[2])


def test_a_job_that_cannot_go_on_says_why() -> None:
    network, gpus = one_switch(6)
    job = Job("a", gpus[:2], ring(2), 1e9, Compute(1.0), iterations=3)
    other = Job("b", gpus[2:4], ring(2), 1e9, Compute(1.0), iterations=3)

    def fails(*events: GpuLost, job: Job = job) -> str | None:
        found = simulate(network, [job, other], events)
        assert found["b"].failed is None
        return found["a"].failed

    lost = f"GPU {gpus[1]} (rank 1) was lost"
    assert (
        fails(GpuLost(1.5, gpus[1], "shrink"))
        == f"{lost}: one rank is too few to go on"
    )
    assert (
        fails(GpuLost(1.5, gpus[1], "swap", gpus[3]))
        == f"{lost}: its spare {gpus[3]} is taken by job b"
    )
    gone = fails(GpuLost(1.0, gpus[5]), GpuLost(1.5, gpus[1], "swap", gpus[5]))
    assert gone == f"{lost}: its spare {gpus[5]} was lost, too"
    assert fails(GpuLost(1.5, gpus[1], "swap", "x")) == "job a: there is no GPU x"
    slow = replace(
        job,
        ranks=(*gpus[:2], gpus[4]),
        steps=ring(3),
        cost=StepCost(1e-3, in_steps=(True,) * 4),
    )
    assert "a: " not in str(fails(GpuLost(1.5, gpus[4], "shrink"), job=slow))
    assert str(fails(GpuLost(1.5, gpus[4], "shrink"), job=slow)).startswith(
        f"GPU {gpus[4]} (rank 2) was lost: "
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"then": "swap"}, "GPU g lost: swap needs a spare"),
        (
            {"then": "shrink", "spare": "h"},
            "GPU g lost: shrink has no use for the spare h",
        ),
        ({"recovery_s": -1.0}, "GPU g lost: recovery_s is -1.0; it must be 0 or more"),
    ],
)
def test_losses_that_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpuLost(1.0, "g", **change)


def test_light_that_never_comes_back_is_told() -> None:
    fabric = six_gpu_fabric()
    moved = ((Port("g0", 0), Port("tor0", 4)), *fabric.circuits[1:])
    other = PacketNetwork(fabric, circuit_cross_connects(fabric, moved))
    job = Job("a", ("g0", "g1"), ring(2), 1e9, iterations=2)
    found = simulate(
        PacketNetwork(fabric), [job], [NetworkChange(0.01, other, dark_s=math.inf)]
    )["a"]
    assert found.failed == "it stands still: its light never comes back"
    assert (
        simulate(
            PacketNetwork(fabric), [job], [NetworkChange(0.01, other, dark_s=1.0)]
        )["a"].failed
        is None
    )


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": ring(3)}, "job a: ring: a schedule of 3 ranks for 4 ranks"),
        ({"ranks": ("g0", "g1", "g2", "g2")}, "job a: GPU g2 is used twice"),
        ({"ranks": ("g0", "g1", "g2", "x")}, "job a: there is no GPU x"),
        ({"iterations": 0}, "job a: 0 iterations"),
        ({"vector_bytes": -1.0}, "job a: a vector of -1.0 bytes"),
        ({"start_s": math.nan}, "job a: start_s is nan"),
    ],
)
def test_a_wrong_job_is_named(change: dict[str, object], message: str) -> None:
    network, ranks = one_switch(4)
    job = Job("a", ranks, ring(4), 1e6)
    for synchronised in (False, True):
        with pytest.raises(ValueError, match=message):
            simulate(network, [replace(job, synchronised=synchronised, **change)])  # type: ignore[arg-type]


def test_too_many_transfers_ask_for_synchronised_steps() -> None:
    network, ranks = one_switch(2300)
    with pytest.raises(ValueError, match="job a: more than 5000000 transfers"):
        simulate(network, [Job("a", ranks, ring_of_bits(2300, 8), 1e6)])


@pytest.mark.parametrize(
    "bad",
    [{"mean_s": -1.0}, {"mean_s": math.inf}, {"mean_s": 1.0, "stragglers": {0: 0.0}}],
)
def test_wrong_computing_times_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="compute: "):
        Compute(**bad)  # type: ignore[arg-type]
