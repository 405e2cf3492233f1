"""What a job with averagers trains: its pads, its exchange of scales, its reference in one process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.model import PARAMETERS
from ringlight.containers.worker.pads import Fractions
from ringlight.containers.worker.peer import PeerLost, ReduceFailed
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import BadSpec, WorkerSpec, parse_spec
from ringlight.extensions.optinc.averaged import summed_by
from ringlight.extensions.optinc.averager_place import AveragerPlace, place_in
from ringlight.extensions.optinc.exchange import Exchange
from ringlight.fabric.whole_numbers.blocks import BLOCK

PLACE = AveragerPlace("10.84.0.1:7070", 0, 4, 8)


def raw(**more: Any) -> dict[str, Any]:
    place = {"address": "10.84.0.1:7070", "port": 1, "ports": 4, "bits": 8}
    peers = [f"10.82.0.{i + 1}" for i in range(4)]
    job = {
        "job": "a",
        "rank": 1,
        "world_size": 4,
        "peers": peers,
        "collective": "optinc",
        "place": place,
    }
    return job | more


def test_a_spec_with_an_averager_is_read() -> None:
    assert place_in(parse_spec(raw())) == AveragerPlace("10.84.0.1:7070", 1, 4, 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"place": None}, "place: collective optinc needs an averager"),
        ({"collective": "ring"}, "place: collective ring has none"),
        ({"place": raw()["place"] | {"port": 4}}, "place: port 4 of 4 for 4 ranks"),
        ({"place": raw()["place"] | {"odd": 4}}, "unknown key place.odd"),
        (
            {"checkpoint": "/checkpoint"},
            "checkpoint: collective optinc keeps no state to go on from",
        ),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        parse_spec(raw(**change))


@settings(deadline=None, max_examples=20)
@given(
    first=st.integers(0, 3 * BLOCK),
    count=st.integers(0, 5 * BLOCK),
    iteration=st.integers(0, 1000),
    ranks=st.sampled_from([2, 4]),
    data=st.data(),
)
def test_each_wrong_element_of_a_whole_block_is_found_and_no_right_one(
    first: int, count: int, iteration: int, ranks: int, data: st.DataObject
) -> None:
    summed = summed_by(PLACE)
    pads = [Fractions(rank, ranks, first, count, summed) for rank in range(ranks)]
    # What is before a pad is the model's gradient, of zeros here.
    vectors = [np.zeros(first + count, np.float32) for _ in pads]
    for pad, vector in zip(pads, vectors, strict=True):
        pad.fill(vector[first:], iteration)
    found = summed(vectors)[first:]
    assert [pad.wrong(found, iteration) for pad in pads] == [None] * ranks
    checked = -(-first // BLOCK) * BLOCK - first
    if count > checked:
        at = data.draw(st.integers(checked, count - 1))
        found[at] += 1
        wrong = pads[0].wrong(found, iteration)
        assert wrong is not None
        assert (wrong.element, wrong.got) == (at, found[at])


def test_in_one_process_a_job_with_averagers_ends_otherwise_than_with_a_ring_and_always_alike() -> (
    None
):
    settings = {
        "gradient_bytes": 4 * (PARAMETERS + 5000),
        "iterations": 3,
        "learning_rate": 0.2,
    }
    spec = WorkerSpec("a", 0, 4, ("10.0.0.1",) * 4, **settings)  # type: ignore[arg-type]
    averaged = WorkerSpec(
        "a",
        0,
        4,
        ("10.0.0.1",) * 4,
        collective="optinc",
        place=asdict(PLACE),
        **settings,  # type: ignore[arg-type]
    )
    one, again, ring = map(train_in_one_process, (averaged, averaged, spec))
    assert one == again
    assert one["parameters_sha256"] != ring["parameters_sha256"]
    assert float(str(one["loss_last"])) == pytest.approx(
        float(str(ring["loss_last"])), abs=0.01
    )


@contextmanager
def mesh(ranks: int) -> Iterator[list[dict[int, socket.socket]]]:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(ranks)]
    with ExitStack() as stack:
        for a, b in combinations(range(ranks), 2):
            ends[a][b], ends[b][a] = map(stack.enter_context, socket.socketpair())
        yield ends


def exchanged(
    ends: list[dict[int, socket.socket]],
    rounds: list[list[list[bytes]]],
    absent: int | None = None,
) -> list[Any]:
    """What each rank got in each round, or its error; of a round, what each rank has for each."""
    got: list[Any] = [[] for _ in ends]

    def work(rank: int) -> None:
        exchange = Exchange(rank, ends[rank], 0.5)
        try:
            for messages in rounds:
                got[rank].append(exchange(messages[rank]))
        except (PeerLost, ReduceFailed) as error:
            got[rank] = error

    threads = [
        threading.Thread(target=work, args=(rank,))
        for rank in range(len(ends))
        if rank != absent
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return got


@settings(deadline=None, max_examples=10)
@given(
    st.lists(
        st.lists(st.integers(0, 700_000), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_all_ranks_get_their_messages_of_any_length(lengths: list[list[int]]) -> None:
    rounds = [
        [
            [bytes([1 + rank, 1 + to]) * length for to in range(3)]
            for rank, length in enumerate(of_ranks)
        ]
        for of_ranks in lengths
    ]
    with mesh(3) as ends:
        assert exchanged(ends, rounds) == [
            [[own[to] for own in one] for one in rounds] for to in range(3)
        ]


def test_whoever_is_silent_or_gone_is_named_by_all() -> None:
    with mesh(4) as ends:
        errors = exchanged(ends, [[[b"x"] * 4] * 4], absent=2)
        assert {
            (error.rank, str(error)) for rank, error in enumerate(errors) if rank != 2
        } == {(2, "rank 2: silent for 0.5 s while others tell their scales")}
    with mesh(4) as ends:
        for connection in ends[2].values():
            connection.close()
        errors = exchanged(ends, [[[b"x"] * 4] * 4], absent=2)
        assert {error.rank for rank, error in enumerate(errors) if rank != 2} == {2}
