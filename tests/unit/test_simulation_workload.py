"""Workloads in virtual time: against closed forms and training jobs, and the two ways against each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.experiments.runner.command import load_checked
from ringlight.fabric.kinds import KINDS, collective_steps, matrix_bounds, vector_bytes
from ringlight.fabric.steps import frozen
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.calls import Calls
from ringlight.testbed.simulation.jobs import Compute, Job
from ringlight.testbed.simulation.lockstep import Classes
from ringlight.testbed.simulation.merged_steps import in_bytes, merged_steps
from ringlight.testbed.simulation.networks import IdealNetwork, PacketNetwork
from ringlight.testbed.simulation.phases import Phases, StepCost, synchronous
from ringlight.testbed.simulation.workload import Fidelity, simulate_workload
from ringlight.workloads.formats.timeline import Span
from ringlight.workloads.graph import Collective, Program, Split, Workload
from ringlight.workloads.graph_writer import Book, Writer
from tests.simulated import bundled
from tests.simulated_jobs import simulate

MIB = 2**20
RATE = 100e9
HOWS: tuple[Fidelity, ...] = ("exact", "classes")
ALL_REDUCE = Collective("all-reduce", "ring")


def names(ranks: int) -> tuple[str, ...]:
    return tuple(f"g{rank}" for rank in range(ranks))


def ideal(ranks: int, latency_s: float = 0.0) -> IdealNetwork:
    return IdealNetwork(names(ranks), RATE, latency_s=latency_s)


def no_peers(ranks: int) -> np.ndarray:
    return np.empty((ranks, 0))


def in_groups(book: Book, ranks: int, size: int) -> list[int]:
    """The group of each rank, when neighbours are together."""
    return [
        book.group(range(rank // size * size, rank // size * size + size))
        for rank in range(ranks)
    ]


def training(seconds: Sequence[float], algorithm: str, size: int) -> Workload:
    """Each rank computes for its seconds, then all of them all-reduce: the training loop of jobs."""
    book, programs = Book(), []
    which = list(dict.fromkeys(seconds))
    for each in which:
        writer = Writer(book)
        computed = writer.compute("forward and backward", seconds=each)
        writer.collective(
            "dp gradients",
            Collective("all-reduce", algorithm),
            size,
            0,
            after=[computed],
        )
        programs.append(writer.done())
    group, ranks = book.group(range(len(seconds))), len(seconds)
    of = [which.index(each) for each in seconds]
    return book.workload(
        "loop", programs, of, np.full((ranks, 1), group), no_peers(ranks)
    )


def one_collective(what: Collective, ranks: int, group: int, size: int) -> Workload:
    """One collective of each group of ``group`` neighbours."""
    book, writer = Book(), None
    writer = Writer(book)
    writer.collective("dp one", what, size, 0)
    groups = np.array(in_groups(book, ranks, group))[:, None]
    return book.workload(
        "one", [writer.done()], np.zeros(ranks), groups, no_peers(ranks)
    )


# Against training jobs


@pytest.mark.parametrize(
    "name", ["packet_switches", "disaggregation", "spare", "fat_tree_4"]
)
@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_the_training_loop_takes_what_it_takes_as_a_job(
    name: str, algorithm: str
) -> None:
    """On the fabrics of the bundled scenarios, all ranks alike and with one that is slower."""
    tried = False
    for plan in load_checked(bundled(name)).plans:
        ranks = plan.jobs[0].ranks
        if not plan.jobs[0].plane(plan.setting.fabric).shared or tried:
            continue
        tried = True
        network = PacketNetwork(plan.setting.fabric, latency_s=5e-6)
        cost = StepCost(3e-6, reduce_s_per_byte=1e-11)
        for slower in ({}, {1: 1.3}):
            job = Job(
                "loop", ranks, collective_steps("all-reduce", algorithm, len(ranks)), 30 * MIB,
                Compute(0.01, stragglers=slower), iterations=2, cost=cost,
            )  # fmt: skip
            wanted = simulate(network, [job])["loop"].iterations
            seconds = [0.01 * slower.get(rank, 1.0) for rank in range(len(ranks))]
            found = simulate_workload(
                network,
                ranks,
                training(seconds, algorithm, 30 * MIB),
                iterations=2,
                cost=cost,
            )
            for number, one in enumerate(wanted):
                assert found.begin_s[number] == pytest.approx(one.begin_s, rel=1e-9)
                assert found.end_s[number] == pytest.approx(one.end_s, rel=1e-9)
    assert tried


# Against closed forms


def test_the_published_eight_rank_ring() -> None:
    """ASTRA-sim's own analytical test: a ring of 8 ranks with 50 GB/s of 2^30 bytes and 500 ns, 10 ns at the
    end points, 1 MiB in 4 splits one after the other, memory of 50 GB/s that each added byte passes three
    times: 117,780 ns."""
    network = IdealNetwork(names(8), 50 * 2**30 * 8, latency_s=500e-9)
    cost = StepCost(set_up_s=10e-9, reduce_s_per_byte=3 / 50e9)
    for how in HOWS:
        found = simulate_workload(
            network,
            names(8),
            one_collective(ALL_REDUCE, 8, 8, MIB),
            fidelity=how,
            cost=cost,
            splits=4,
        )
        assert found.total_s == pytest.approx(117_780e-9, rel=1e-3)


EVERY = [
    (kind, algorithm) for kind, algorithms in KINDS.items() for algorithm in algorithms
]


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
@pytest.mark.parametrize("size", [8, 6])
def test_groups_of_a_class_alone_take_what_the_phases_say(
    kind: str, algorithm: str, size: int
) -> None:
    """Three groups at once over spines that are too slow for them, as one collective step by step."""
    fabric = leaf_spine(3, 8, RATE, spines=2, oversubscription=2.0).fabric()
    network, gpus = PacketNetwork(fabric, latency_s=2e-6), tuple(fabric.gpus)
    ranks = 3 * size
    gpus = tuple(gpus[rank % 3 * 8 + rank // 3] for rank in range(ranks))
    cost = StepCost(1e-6, reduce_s_per_byte=1e-11)
    workload = one_collective(Collective(kind, algorithm), ranks, size, 3 * MIB)
    found = simulate_workload(network, gpus, workload, fidelity="classes", cost=cost)
    steps = collective_steps(kind, algorithm, size)
    all_ = merged_steps([steps] * 3, list(workload.groups), ranks)
    wanted = synchronous(network, gpus, all_, vector_bytes(kind, size, 3 * MIB), cost)
    assert found.total_s == pytest.approx(wanted.total_s, rel=1e-12)
    assert len(found.end_s[0]) == 1
    exact = simulate_workload(network, gpus, workload, cost=cost)
    assert exact.link_bytes == pytest.approx(found.link_bytes)


def test_a_pipeline_takes_its_closed_form() -> None:
    """With m micro-batches on p stages, m + p - 1 of them one after the other, and the messages."""
    stages, micro_batches, seconds = 4, 6, 1e-3
    size = 125_000  # 10 us
    book, programs = Book(), []
    for stage in range(stages):
        writer = Writer(book)
        for m in range(micro_batches):
            come = (
                writer.receive("pp activation", size, 0, m, stream="from")
                if stage
                else None
            )
            done = writer.compute("forward", seconds=seconds, after=[come])
            if stage < stages - 1:
                writer.send("pp activation", size, 1, m, stream="to", after=[done])
        programs.append(writer.done())
    peers = [[stage - 1, (stage + 1) % stages] for stage in range(stages)]
    workload = book.workload(
        "pipeline", programs, range(stages), np.empty((stages, 0)), peers
    )
    wanted = (micro_batches + stages - 1) * seconds + (stages - 1) * (10e-6 + 2e-6)
    for how in HOWS:
        found = simulate_workload(
            ideal(stages, 2e-6), names(stages), workload, fidelity=how
        )
        assert found.total_s == pytest.approx(wanted, rel=1e-9)
        assert found.times.compute_s == pytest.approx(
            [micro_batches * seconds] * stages
        )
        # The last stage has nothing to do until the first micro-batch has come.
        assert found.times.idle_s[-1] == pytest.approx(
            (stages - 1) * seconds + (stages - 2) * 12e-6
        )


def test_what_is_exposed_and_what_overlaps() -> None:
    """Two buckets of 8 ms beside 10 ms and 4 ms of computing, and a memory operation."""
    book = Book()
    writer = Writer(book)
    size = int(8e-3 * RATE / 8)
    first = writer.compute("backward", seconds=10e-3)
    writer.collective(
        "dp bucket", ALL_REDUCE, size, 0, stream="gradients", after=[first]
    )
    second = writer.compute("backward", seconds=4e-3)
    writer.collective(
        "dp bucket", ALL_REDUCE, size, 0, stream="gradients", after=[second]
    )
    program = writer.done()
    group = book.group([0, 1])
    workload = book.workload(
        "overlap", [program], [0, 0], [[group], [group]], no_peers(2)
    )
    for how in HOWS:
        found = simulate_workload(
            ideal(2), names(2), workload, fidelity=how, iterations=2, operations=True
        )
        assert found.total_s == pytest.approx(52e-3)
        assert found.purposes == ("dp",)
        assert found.times.compute_s == pytest.approx(28e-3)
        assert found.times.overlapped_s[:, 0] == pytest.approx(8e-3)
        assert found.times.exposed_s[:, 0] == pytest.approx(24e-3)
        assert found.times.communication_s == pytest.approx(24e-3)
        assert found.times.idle_s == pytest.approx(0.0, abs=1e-12)
        spans = list(found.timeline([1]))
        assert [(s.thread, s.name, s.kind) for s in spans[:2]] == [
            ("main", "backward", "compute"), ("gradients", "dp bucket", "all-reduce"),
        ]  # fmt: skip
        wanted = Span(
            "rank 1",
            "gradients",
            "dp bucket",
            36e-3,
            44e-3,
            "all-reduce",
            {"bytes": size},
        )
        assert spans[5]._replace(begin_s=36e-3, end_s=44e-3) == wanted
        assert spans[5][3:5] == pytest.approx(wanted[3:5])


def test_flows_of_two_streams_share_the_links() -> None:
    book = Book()
    writer = Writer(book)
    writer.collective("dp a", ALL_REDUCE, 4 * MIB, 0, stream="a")
    writer.collective("tp b", ALL_REDUCE, 8 * MIB, 1, stream="b")
    program = writer.done()
    pair, group = in_groups(book, 4, 2), book.group(range(4))
    workload = book.workload(
        "two", [program], [0] * 4, [[p, group] for p in pair], no_peers(4)
    )
    sent = np.array([4 * MIB, 2 * 3 / 4 * 8 * MIB]) * 8 / RATE
    for how in HOWS:
        found = simulate_workload(
            ideal(4), names(4), workload, fidelity=how, operations=True
        )
        assert found.records is not None
        # Each gets half until the shorter one has ended.
        assert found.records[0].end_s[0] == pytest.approx(
            [2 * sent[0], sent.sum()], rel=1e-9
        )


# What is refused


def waiting(first_at_0: bool) -> Workload:
    """Both ranks send before they receive, or rank 0 does not."""
    book, programs = Book(), []
    for rank in (0, 1):
        writer = Writer(book)
        ways = [("pp send", writer.send), ("pp receive", writer.receive)]
        for name, method in ways if rank or not first_at_0 else reversed(ways):
            method(name, 64, 0)
        programs.append(writer.done())
    return book.workload("exchange", programs, [0, 1], np.empty((2, 0)), [[1], [0]])


@pytest.mark.parametrize("how", HOWS)
def test_who_waits_for_each_other_is_named(how: Fidelity) -> None:
    assert simulate_workload(
        ideal(2), names(2), waiting(True), fidelity=how
    ).total_s == pytest.approx(1024 / RATE)
    message = (
        r"exchange: nobody can go on: rank 0 in operation 0 \(pp send: message to rank 1 with tag 0\), "
        r"rank 1 in operation 0 \(pp send: message to rank 0 with tag 0\)"
    )
    with pytest.raises(ValueError, match=message):
        simulate_workload(ideal(2), names(2), waiting(False), fidelity=how)


def test_what_does_not_fit_is_named() -> None:
    workload = training([1e-3] * 4, "ring", MIB)
    with pytest.raises(ValueError, match="3 GPUs for the 4 ranks of loop"):
        simulate_workload(ideal(3), names(3), workload)
    with pytest.raises(ValueError, match="GPU g0 has two ranks of loop"):
        simulate_workload(ideal(4), ("g0", "g1", "g0", "g2"), workload)
    with pytest.raises(ValueError, match="iterations is 0; it must be at least 1"):
        simulate_workload(ideal(4), names(4), workload, iterations=0)
    with pytest.raises(ValueError, match="rank 3: there is no GPU x"):
        simulate_workload(ideal(4), ("g0", "g1", "g2", "x"), workload)
    book = Book()
    writer = Writer(book)
    writer.compute("forward", flops=1e9)
    untimed = book.workload("untimed", [writer.done()], [0], [[]], [[]])
    with pytest.raises(
        ValueError, match=r"operation 0 \(forward\) has no seconds; that needs a device"
    ):
        simulate_workload(ideal(1), names(1), untimed)
    with pytest.raises(ValueError, match=r"bin_s is 1e-12: .* are too many to keep"):
        simulate_workload(ideal(4), names(4), workload, traffic=True, bin_s=1e-12)
    with pytest.raises(ValueError, match="the operations' times were not recorded"):
        next(simulate_workload(ideal(4), names(4), workload).timeline())


# Classes


def test_ranks_whose_groups_differ_are_of_different_classes() -> None:
    """Ranks 0 to 3 are in a group of four, 4 and 5 in one of two; all run one program."""
    book = Book()
    writer = Writer(book)
    writer.collective("dp gradients", ALL_REDUCE, 8 * MIB, 0)
    program = writer.done()
    groups = [book.group(range(4))] * 4 + [book.group([4, 5])] * 2
    workload = book.workload(
        "two sizes", [program], [0] * 6, np.array(groups)[:, None], no_peers(6)
    )
    assert Classes(workload).of.tolist() == [0, 0, 0, 0, 1, 1]
    found = simulate_workload(ideal(6), names(6), workload, fidelity="classes")
    assert found.end_s[0] == pytest.approx(np.array([12, 8]) * MIB * 8 / RATE)
    assert found.row_of.tolist() == [0, 0, 0, 0, 1, 1]


def test_classes_are_told_apart_by_whom_they_talk_to() -> None:
    """A chain of one program, closed to a ring: one class. With another program in it each rank is one."""
    book = Book()
    writer, other = Writer(book), Writer(book)
    for one in (writer, other):
        one.send("pp on", 64, 0, stream="to")
        one.receive("pp on", 64, 1, stream="from")
    other.compute("more", seconds=1e-3)
    programs = [writer.done(), other.done()]
    peers = [[(rank + 1) % 4, (rank - 1) % 4] for rank in range(4)]
    alike = book.workload("ring", programs, [0] * 4, np.empty((4, 0)), peers)
    assert Classes(alike).of.tolist() == [0] * 4
    broken = book.workload("ring", programs, [0, 0, 1, 0], np.empty((4, 0)), peers)
    assert sorted(Classes(broken).of.tolist()) == [0, 1, 2, 3]
    for workload in (alike, broken):
        ends = [
            (
                found := simulate_workload(ideal(4), names(4), workload, fidelity=how)
            ).end_s[0][found.row_of]
            for how in HOWS
        ]
        assert ends[0] == pytest.approx(ends[1], rel=1e-12)


@st.composite
def programs_of(
    draw: st.DrawFn, book: Book, most: int, algorithms: Sequence[Collective]
) -> Program:
    """Computing and collectives on a main stream and one beside it, all of which some later ones wait for."""
    writer, done = Writer(book), None
    beside = []
    for _ in range(draw(st.integers(1, most))):
        what = draw(st.sampled_from(["compute", "main", "beside"]))
        if what == "compute":
            done = writer.compute(
                "some", seconds=draw(st.sampled_from([1e-4, 3e-4, 1e-3]))
            )
            continue
        size = 840 * draw(st.sampled_from([64, 1000, 5000]))
        slot = draw(st.sampled_from([0, 1])) if what == "main" else 2
        collective = draw(st.sampled_from(algorithms))
        stream = "main" if what == "main" else "beside"
        handle = writer.collective(
            f"{stream} c", collective, size, slot, stream=stream, after=[done]
        )
        beside += [handle] if what == "beside" else []
    writer.compute("last", seconds=1e-4, after=beside)
    return writer.done()


SYMMETRIC = (
    ALL_REDUCE, Collective("all-reduce", "halving-doubling"), Collective("all-gather", "ring"),
    Collective("reduce-scatter", "ring"), Collective("all-to-all", "direct"),
    Collective("all-to-all", "pairwise"),
)  # fmt: skip


@given(st.data(), st.sampled_from([2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_where_all_ranks_are_alike_both_ways_agree(
    data: st.DataObject, ranks: int
) -> None:
    book = Book()
    program = data.draw(programs_of(book, 6, SYMMETRIC))
    pairs, group = in_groups(book, ranks, 2), book.group(range(ranks))
    workload = book.workload(
        "alike",
        [program],
        [0] * ranks,
        [[p, group, group] for p in pairs],
        no_peers(ranks),
    )
    exact, classes = (
        simulate_workload(
            ideal(ranks),
            names(ranks),
            workload,
            fidelity=how,
            iterations=2,
            operations=True,
        )
        for how in HOWS
    )
    assert exact.records is not None
    assert classes.records is not None
    for record in exact.records:
        assert record.end_s == pytest.approx(classes.records[0].end_s, rel=1e-9)
    assert exact.link_bytes == pytest.approx(classes.link_bytes, rel=1e-9)
    for name in ("compute_s", "communication_s", "exposed_s", "overlapped_s"):
        of_all = getattr(exact.times, name)
        assert of_all == pytest.approx(
            np.broadcast_to(getattr(classes.times, name), of_all.shape), rel=1e-6
        )


# Traffic


@pytest.mark.parametrize("how", HOWS)
def test_traffic_over_time_adds_up_to_what_passed(how: Fidelity) -> None:
    fabric = leaf_spine(2, 4, RATE, spines=2).fabric()
    network, gpus = PacketNetwork(fabric), tuple(fabric.gpus)
    workload = training([1e-3] * 8, "ring", 8 * MIB)
    for bin_s in (None, 1e-4, 1.0):
        found = simulate_workload(
            network,
            gpus,
            workload,
            fidelity=how,
            iterations=2,
            traffic=True,
            bin_s=bin_s,
        )
        assert found.traffic is not None
        assert found.traffic.bytes.sum(axis=1) == pytest.approx(
            found.link_bytes, rel=1e-9
        )
        if bin_s == 1e-4:
            # Nothing passes while all compute, and each link is full afterwards.
            sent = [str(key[0]) for key in found.link_keys].index("g0:0")  # type: ignore[index]
            assert found.traffic.bytes[sent, :10] == pytest.approx(0.0)
            assert found.traffic.bytes[sent, 10] == pytest.approx(RATE / 8 * 1e-4)
    assert found.link_bytes.max() == pytest.approx(2 * 2 * 7 / 8 * 8 * MIB)


# Schedules of several groups


def test_transfers_of_one_step_between_two_ranks_are_one() -> None:
    """Two ranks have one neighbour on both sides."""
    steps = collective_steps("all-reduce", "bidirectional-ring", 2)
    assert [len(step) for step in steps] == [4, 4]
    both = merged_steps([steps] * 2, [frozen([0, 2]), frozen([3, 1])], 4)
    for step in both:
        transfers = np.stack(
            (step.sources, step.destinations, step.count), axis=1
        ).tolist()
        assert sorted(transfers) == [[0, 2, 2], [1, 3, 2], [2, 0, 2], [3, 1, 2]]


def test_unequal_parts_take_what_the_largest_takes() -> None:
    """An all-to-all-v: rank 0 sends most of it to rank 1."""
    sizes = ((0, 900_000, 100_000), (10_000, 0, 10_000), (5_000, 5_000, 5_000))
    what = Collective("all-to-all-v", "pairwise", sizes=sizes)
    assert (
        in_bytes(
            collective_steps("all-to-all-v", "pairwise", 3), matrix_bounds(sizes)
        ).chunks
        == 1_035_000
    )
    for how in HOWS:
        found = simulate_workload(
            ideal(3), names(3), one_collective(what, 3, 3, 0), fidelity=how
        )
        # Steps: to the next rank, then to the one after it. Rank 0 sends its second one beside the first, so
        # rank 1 has all of the first when rank 0 has sent everything, and then sends its own, 10 kB; in
        # lock-step nobody sends beside the first.
        last = 10_000 if how == "exact" else 0
        assert found.total_s == pytest.approx(8 * (900_000 + 100_000 + last) / RATE)
        assert found.link_bytes.reshape(3, 2)[:, 0].tolist() == [
            1_000_000,
            20_000,
            10_000,
        ]


def test_steps_that_are_alike_are_computed_once_for_all_groups() -> None:
    steps = collective_steps("all-reduce", "ring", 64)
    groups = [frozen(np.arange(64) * 16 + g) for g in range(16)]
    phases = Phases(ideal(1024), names(1024), merged_steps([steps] * 16, groups, 1024))
    assert [(run.steps, len(run.transfers.chunks)) for run in phases.runs] == [
        (63, 1024),
        (63, 1024),
    ]


# Ranks that are not alike


def stages(
    draw: st.DrawFn, ranks: int, number: int, algorithms: Sequence[Collective]
) -> Workload:
    """Stages with programs of their own: collectives in each, messages to the next, and some of all ranks."""
    book, each, programs = Book(), ranks // number, []
    shared = draw(
        st.lists(
            st.tuples(st.sampled_from(algorithms), st.sampled_from([64, 5000])),
            max_size=2,
        )
    )
    micro_batches = draw(st.integers(1, 3))
    for stage in range(number):
        writer, done = Writer(book), None
        for m in range(micro_batches):
            if stage:
                done = writer.receive("pp activation", MIB, 0, m, stream="from")
            for _ in range(draw(st.integers(0, 2))):
                done = writer.compute(
                    "some", seconds=draw(st.sampled_from([1e-4, 1e-3])), after=[done]
                )
                what, size = (
                    draw(st.sampled_from(algorithms)),
                    840 * draw(st.sampled_from([64, 5000])),
                )
                done = writer.collective(
                    "tp c", what, size, draw(st.sampled_from([0, 1])), after=[done]
                )
            if stage < number - 1:
                writer.send("pp activation", MIB, 1, m, stream="to", after=[done])
        for what, size in shared:
            writer.collective(
                "dp c", what, 840 * size, 2, stream="beside", after=[done]
            )
        programs.append(writer.done())
    groups = [
        [
            pair,
            book.group(range(rank // each * each, (rank // each + 1) * each)),
            book.group(range(ranks)),
        ]
        for rank, pair in enumerate(in_groups(book, ranks, 2))
    ]
    peers = [[(rank - each) % ranks, (rank + each) % ranks] for rank in range(ranks)]
    return book.workload("stages", programs, np.arange(ranks) // each, groups, peers)


@st.composite
def staged(draw: st.DrawFn, algorithms: Sequence[Collective]) -> Workload:
    return stages(draw, 8, draw(st.sampled_from([1, 2, 4])), algorithms)


@given(staged(SYMMETRIC))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_classes_differ_by_what_early_ranks_do_before_the_last_has_come(
    workload: Workload,
) -> None:
    """Within a class all are alike, so the one difference is that a group begins when its last rank has come.

    Early ones take from who is still busy, mostly, and get some of their own work done.
    """
    exact, classes = (
        simulate_workload(ideal(8), names(8), workload, fidelity=how).total_s
        for how in HOWS
    )
    assert 0.5 * exact <= classes <= 1.1 * exact


@given(
    staged(
        (*SYMMETRIC, Collective("all-reduce", "binary-tree"), Collective("broadcast"))
    ),
    st.permutations(range(8)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_both_ways_are_near_each_other_where_ranks_of_a_class_are_not_alike(
    workload: Workload, place: Sequence[int]
) -> None:
    """Trees, and spines that are shared unequally: a class waits for its slowest rank, too, and passes on no
    parts of chunks, as the ranks of a tree do."""
    fabric = leaf_spine(2, 4, RATE, spines=2, oversubscription=2.0).fabric()
    gpus = [list(fabric.gpus)[number] for number in place]
    exact, classes = (
        simulate_workload(PacketNetwork(fabric), gpus, workload, fidelity=how)
        for how in HOWS
    )
    assert 0.5 * exact.total_s <= classes.total_s <= 3.0 * exact.total_s
    assert exact.link_bytes == pytest.approx(classes.link_bytes, rel=1e-9)


def test_each_call_of_an_unequal_split_is_drawn_anew_and_alike_for_its_ranks() -> None:
    # Groups, calls and iterations differ; the same call is the same for all ranks of a group.
    own = Collective("all-to-all-v", split=Split(skew=1.0))
    calls = Calls(one_collective(own, 8, 8, 8192), 1)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    sent = [
        next(iter(calls.call(0, 8192, 8, key).steps)).count.tolist() for key in keys
    ]
    assert sent[0] == sent[-1]
    assert sent[0] not in sent[1:-1]
