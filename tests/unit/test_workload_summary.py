"""What a workload comes to, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.summary import TrafficSummary, summary, traffic


def three_ranks() -> Workload:
    """Ranks 0 and 1 run one program, and all three reduce; rank 2 computes alone."""
    book = Book()
    every, pair = book.group([0, 1, 2]), book.group([0, 1])
    two, one = Writer(book), Writer(book)
    for writer in (two, one):
        writer.compute("forward", seconds=0.5)
        writer.memory("load", 64, stream="loads")
        writer.collective("dp gradients", Collective("all-reduce", "ring"), 999, 0)
    two.collective(
        "shuffle", Collective("all-to-all-v", sizes=((5, 8), (16, 1))), 24, 1
    )
    two.send("pp activations", 100, 0)
    two.receive("pp activations", 100, 0)
    two.compute("backward", flops=7.0)
    communicators, peers = [[every, pair], [every, pair], [every, -1]], [[1], [0], [-1]]
    return book.workload(
        "three", [two.done(), one.done()], [0, 0, 1], communicators, peers
    )


def test_bytes_by_purpose_are_what_ranks_send_to_others() -> None:
    assert traffic(three_ranks()) == {
        "pp": TrafficSummary(2, 200, 100.0),
        "dp": TrafficSummary(3, 2 * 2 * 999, 2 * 2 * 999 / 3),
        "all-to-all-v": TrafficSummary(2, 24, 16.0),
    }


def test_operations_groups_and_time_are_counted() -> None:
    found = summary(three_ranks())
    assert (found.ranks, found.programs, found.operations) == (3, 2, 17)
    assert found.kinds == {
        "compute": 5,
        "collective": 5,
        "send": 2,
        "receive": 2,
        "memory": 3,
    }
    assert found.collectives == {"all-reduce": 3, "all-to-all-v": 2}
    assert found.groups == {2: 1, 3: 1}
    assert found.flops == 14.0
    assert found.streams == ("main", "loads")
    assert np.isnan(found.seconds).all()


def test_a_workload_that_sends_nothing_has_no_traffic() -> None:
    book = Book()
    writer = Writer(book)
    writer.compute("forward", seconds=0.25)
    workload = book.workload("alone", [writer.done()], [0], [[]], [[]])
    assert traffic(workload) == {}
    assert summary(workload).seconds == pytest.approx([0.25])


def test_a_given_matrix_counts_by_its_rows() -> None:
    book = Book()
    group = book.group([2, 0, 1])
    writer = Writer(book)
    matrix = ((3, 8, 8), (1, 0, 1), (1, 1, 0))
    for _ in range(2):
        writer.collective(
            "ep dispatch", Collective("all-to-all-v", sizes=matrix), 19, 0
        )
    workload = book.workload(
        "given", [writer.done()], [0, 0, 0], [[group]] * 3, [[]] * 3
    )
    assert traffic(workload) == {"ep": TrafficSummary(6, 2 * 20, 2 * 16.0)}
