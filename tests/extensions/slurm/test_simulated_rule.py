"""Slurm's rule of choice and start: what its source says, in small."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.slurm.simulated_rule import (
    NodeRequest,
    Running,
    backfilled,
    by_topology,
    in_turn,
    scheduling_of,
    without_topology,
)

NODES = tuple(f"g{n}" for n in range(6))
LEAVES = {"tor0": NODES[:3], "tor1": NODES[3:]}


def request(nodes: int, name: str = "job", **more: float) -> NodeRequest:
    return NodeRequest(name, nodes, 0.0, **more)  # type: ignore[arg-type]


def at(now_s: float = 0.0, leaves: dict[str, Sequence[str]] | None = None) -> object:
    return by_topology(NODES, leaves or LEAVES, lambda: now_s)


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        # The smallest row that suffices, not the first.
        ("012 45", 2, "45"),
        ("0 23 5", 2, "23"),
        # None suffices: the longest row is used up, then the rest by the same rule.
        ("0 23 5", 3, "0 23"),
        ("012345", 4, "0123"),
    ],
)
def test_without_a_topology_rows_of_neighbours_are_filled(
    free: str, count: int, chosen: str
) -> None:
    names = [f"g{n}" for n in free.replace(" ", "")]
    expected = tuple(f"g{n}" for n in chosen.replace(" ", ""))
    assert without_topology(NODES)(names, request(count)) == expected


@pytest.mark.parametrize(
    ("free", "count", "chosen"),
    [
        # The leaf with the least room that suffices.
        ("012 45", 2, "45"),
        ("12 345", 2, "12"),
        # A tie is the first leaf's.
        ("012345", 3, "012"),
        # Neither suffices: the leaf with more room first.
        ("2 45", 3, "2 45"),
        ("012345", 4, "0123"),
    ],
)
def test_with_a_topology_the_fullest_leaf_that_suffices_is_used(
    free: str, count: int, chosen: str
) -> None:
    names = [f"g{n}" for n in free.replace(" ", "")]
    expected = tuple(f"g{n}" for n in chosen.replace(" ", ""))
    choose = by_topology(NODES, LEAVES, lambda: 0.0)
    assert choose(names, request(count)) == expected


def test_a_job_that_names_its_switches_waits_for_them_and_no_longer() -> None:
    job = request(4, switches=1, switches_wait_s=30.0)
    early, late = (by_topology(NODES, LEAVES, lambda t=t: t) for t in (29.9, 30.0))
    assert early(NODES, job) is None
    assert late(NODES, job) == NODES[:4]
    # Light that brings four together ends the wait.
    lit = {"tor0": NODES[:4], "tor1": NODES[4:]}
    assert by_topology(NODES, lit, lambda: 0.0)(NODES, job) == NODES[:4]


def test_a_dark_node_is_nobodys() -> None:
    choose = by_topology(NODES, {"tor0": NODES[:3], "tor1": NODES[3:5]}, lambda: 0.0)
    assert choose(NODES, request(6)) is None


def test_the_main_scheduler_stops_at_the_first_without_room() -> None:
    queue = [request(2, "a"), request(5, "b"), request(1, "c")]
    started = list(in_turn(queue, NODES, without_topology(NODES)))
    assert [job.request.name for job in started] == ["a"]


def test_backfill_starts_what_delays_nobody() -> None:
    running = [Running(frozenset(NODES[:4]), 60.0)]
    queue = [
        # Has room when the running job's limit ends, on any nodes.
        request(4, "large", limit_s=100.0),
        # Ends before that.
        request(2, "short", limit_s=60.0),
    ]
    started = backfilled(queue, NODES, running, without_topology(NODES), 0.0)
    assert [(job.request.name, job.nodes) for job in started] == [
        ("short", ("g4", "g5"))
    ]
    late = [queue[0], request(3, "long", limit_s=61.0)]
    assert not list(backfilled(late, NODES, running, without_topology(NODES), 0.0))


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 90)), max_size=8),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90)), max_size=6),
)
def test_backfill_never_delays_the_first_in_the_queue(
    jobs: list[tuple[int, int]], busy: list[tuple[int, int]]
) -> None:
    ends = {NODES[node]: float(end) for node, end in busy}
    running = [Running(frozenset({node}), end) for node, end in ends.items()]
    queue = [request(n, f"j{k}", limit_s=float(s)) for k, (n, s) in enumerate(jobs)]
    choose = without_topology(NODES)
    started = list(backfilled(queue, NODES, running, choose, 0.0))
    nodes = [node for job in started for node in job.nodes]
    assert len(nodes) == len(set(nodes))
    assert not set(nodes) & ends.keys()
    if not queue or any(job.request is queue[0] for job in started):
        return

    def room_s(taken: dict[str, float]) -> float:
        free = sorted(taken.get(node, 0.0) for node in NODES)
        return free[queue[0].nodes - 1]

    after = ends | {n: job.request.limit_s for job in started for n in job.nodes}
    assert room_s(after) == room_s(ends)


def test_the_times_are_those_of_the_configuration() -> None:
    assert scheduling_of("").backfill_s == 30.0
    when = scheduling_of("sched_interval=2,bf_interval=5,defer")
    assert (when.full_s, when.backfill_s, when.delay_s) == (2.0, 5.0, 3.0)
