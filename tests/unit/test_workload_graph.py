"""A workload's graph: what can be written, and what the check refuses."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest

from ringlight.workloads.graph import Collective, Kind, Workload, covered_s
from ringlight.workloads.graph_writer import Book, Writer

RING = Collective("all-reduce", "ring")


def two_ranks(
    size_at_1: int = 4096, tag_at_1: int = 0, size_sent: int = 64
) -> Workload:
    """Rank 0 sends to rank 1, then both reduce."""
    book = Book()
    group = book.group([0, 1])
    programs = []
    for rank in (0, 1):
        writer = Writer(book)
        forward = writer.compute("forward", seconds=1e-3)
        if rank == 0:
            message = writer.send("activations", size_sent, 0, after=[forward])
        else:
            message = writer.receive("activations", 64, 0, tag_at_1, stream="messages")
        size = 4096 if rank == 0 else size_at_1
        writer.collective(
            "gradients",
            RING,
            size,
            0,
            stream="gradients",
            after=[message, forward, None],
        )
        programs.append(writer.done())
    return book.workload("two", programs, [0, 1], [[group], [group]], [[1], [0]])


def test_a_workload_is_arrays() -> None:
    workload = two_ranks()
    program = workload.programs[1]
    assert workload.operations == 6
    assert program.kind.tolist() == [Kind.COMPUTE, Kind.RECEIVE, Kind.COLLECTIVE]
    assert [workload.streams[s] for s in program.stream.tolist()] == [
        "main",
        "messages",
        "gradients",
    ]
    assert program.after[
        program.after_offsets[2] : program.after_offsets[3]
    ].tolist() == [1, 0]


def test_ranks_that_call_differently_are_named() -> None:
    with pytest.raises(
        ValueError,
        match="rank 1: its 1 collectives on communicator slot 0 are not those",
    ):
        two_ranks(size_at_1=8192)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tag_at_1": 7}, "1 sends and 0 receives"),
        ({"size_sent": 68}, "their sizes differ"),
    ],
)
def test_a_message_without_its_other_end_is_named(
    changed: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"from rank 0 to rank 1: {message}"):
        two_ranks(**changed)


@pytest.mark.parametrize(
    ("received", "wrong"), [((64, 32), None), ((32, 64), "their sizes differ")]
)
def test_messages_through_two_slots_to_one_rank_have_one_order(
    received: tuple[int, ...], wrong: str | None
) -> None:
    book = Book()
    sender, receiver = Writer(book), Writer(book)
    for slot, size in enumerate((64, 32)):
        sender.send("activations", size, slot)
    for size in received:
        receiver.receive("activations", size, 0)
    with pytest.raises(ValueError, match=wrong) if wrong else nullcontext():
        book.workload(
            "two", [sender.done(), receiver.done()], [0, 1], [[], []], [[1, 1], [0, -1]]
        )


def test_of_ranks_that_are_alike_the_one_whose_peer_takes_nothing_is_named() -> None:
    book = Book()
    sender, receiver = Writer(book), Writer(book)
    sender.send("activations", 64, 0)
    receiver.receive("activations", 64, 0)
    programs = [sender.done(), receiver.done()]
    assert (
        book.workload(
            "four", programs, [0, 1, 0, 1], [[]] * 4, [[1], [0], [3], [2]]
        ).operations
        == 4
    )
    with pytest.raises(
        ValueError, match="from rank 2 to rank 1: 1 sends and 0 receives"
    ):
        book.workload("four", programs, [0, 1, 0, 1], [[]] * 4, [[1], [0], [1], [2]])


def one_rank(write: object) -> Workload:
    book = Book()
    writer = Writer(book)
    write(writer)  # type: ignore[operator]
    return book.workload("one", [writer.done()], [0], [[]], [[]])


def test_slots_that_nobody_fills_are_named() -> None:
    with pytest.raises(
        ValueError, match="rank 0: it is in no group for communicator slot 0"
    ):
        one_rank(lambda w: w.collective("gradients", RING, 64, 0))
    with pytest.raises(ValueError, match="rank 0: it has no peer for slot 2"):
        one_rank(lambda w: w.send("activations", 64, 2))


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"operation 0 \(load\): bytes, flops and seconds must be 0 or more",
    ):
        one_rank(lambda w: w.memory("load", -4))


@pytest.mark.parametrize("flops", [float("nan"), float("inf"), -1.0])
def test_flops_that_are_no_number_are_refused(flops: float) -> None:
    with pytest.raises(
        ValueError, match=r"operation 0 \(layer\): bytes, flops and seconds must be"
    ):
        one_rank(lambda w: w.compute("layer", flops=flops))


def test_more_bytes_than_anybody_means_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"operation 0 \(load\): bytes, flops and seconds must be finite, bytes",
    ):
        one_rank(lambda w: w.memory("load", 1 << 60))


def test_sizes_for_another_number_of_ranks_are_refused() -> None:
    book = Book()
    book.group([0])
    writer = Writer(book)
    writer.collective("tokens", Collective("all-to-all", sizes=((0, 4), (4, 0))), 4, 0)
    with pytest.raises(ValueError, match="its sizes are for 2 ranks, its group has 1"):
        book.workload("one", [writer.done()], [0], [[0]], [[]])


def test_time_that_is_covered_counts_once() -> None:
    assert covered_s(np.array([[1.0, 3.0], [5.0, 6.0], [0.0, 2.0], [5.5, 5.6]])) == 4.0
    assert covered_s(np.empty((0, 2))) == 0.0
