"""The rule by which Slurm chooses nodes and starts jobs, as pure functions: first in, first out, and backfill.

It is Slurm 22.05's with ``select/cons_tres`` and ``sched/backfill``, for jobs that ask for whole nodes, all of
one priority. Function names in brackets are those of Slurm's source. Not modelled: ``Weight`` of nodes, more
than one level of switches above the leaves, preemption, reservations, arrays, and that ``sched/backfill`` lets
a job start between its own looks at the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import NamedTuple

#: Free nodes and a number of them → nodes of a job in the order of Slurm's node table; None if there is no room.
Choose = Callable[[Collection[str], "NodeRequest"], tuple[str, ...] | None]


@dataclass(frozen=True)
class NodeRequest:
    """A job's request. ``limit_s``: its time limit; ``submitted_s``: since when it waits. ``switches``: the most
    leaf switches that it spans before it has waited for ``switches_wait_s``; None if it names no number."""

    name: str
    nodes: int
    submitted_s: float
    limit_s: float = inf
    switches: int | None = None
    switches_wait_s: float = 300.0


class Running(NamedTuple):
    """Nodes in use, and when their job's time limit ends."""

    nodes: frozenset[str]
    until_s: float


class Started(NamedTuple):
    request: NodeRequest
    nodes: tuple[str, ...]


def without_topology(order: Sequence[str]) -> Choose:
    """Return the choice with ``topology/none``: the smallest row of neighbours that suffices (``_eval_nodes``).

    ``order``: all nodes, as slurm.conf lists them. If no row suffices, the longest is used up first.
    """

    def choose(free: Collection[str], request: NodeRequest) -> tuple[str, ...] | None:
        if len(free) < request.nodes:
            return None
        rows, chosen = _rows(order, free), list[str]()
        while (left := request.nodes - len(chosen)) > 0:
            enough = [row for row in rows if len(row) >= left]
            row = min(enough, key=len) if enough else max(rows, key=len)
            rows.remove(row)
            chosen += row[:left]
        return _in_order(order, chosen)

    return choose


def _rows(order: Sequence[str], free: Collection[str]) -> list[list[str]]:
    return [
        list(row) for is_free, row in groupby(order, lambda n: n in free) if is_free
    ]


def by_topology(
    order: Sequence[str],
    leaves: Mapping[str, Collection[str]],
    now_s: Callable[[], float],
) -> Choose:
    """Return the choice with ``topology/tree``: the fullest leaf switch that suffices (``_eval_nodes_topo``).

    ``leaves``: nodes of each leaf switch, in the order of topology.conf, all below one switch. If no leaf
    suffices, the emptiest is used up first, then the next by the same rule. A job that names a number of
    switches has no room while it would span more, until it has waited for its time.
    """

    def choose(free: Collection[str], request: NodeRequest) -> tuple[str, ...] | None:
        room = {
            leaf: [node for node in order if node in nodes and node in free]
            for leaf, nodes in leaves.items()
        }
        if sum(map(len, room.values())) < request.nodes:
            return None
        chosen: list[str] = []
        spanned = 0
        while (left := request.nodes - len(chosen)) > 0:
            leaf = _best_leaf(room, left)
            chosen += room.pop(leaf)[:left]
            spanned += 1
        waited_s = now_s() - request.submitted_s
        if (
            request.switches is not None
            and spanned > request.switches
            and waited_s < request.switches_wait_s
        ):
            return None
        return _in_order(order, chosen)

    return choose


def _best_leaf(room: Mapping[str, Sequence[str]], left: int) -> str:
    """Return the leaf to use next (``_topo_compare_switches``)."""
    enough = [leaf for leaf, nodes in room.items() if len(nodes) >= left]
    if enough:
        return min(enough, key=lambda leaf: len(room[leaf]))
    return max(room, key=lambda leaf: len(room[leaf]))


def _in_order(order: Sequence[str], chosen: Collection[str]) -> tuple[str, ...]:
    return tuple(node for node in order if node in chosen)


def in_turn(
    queue: Iterable[NodeRequest], free: Collection[str], choose: Choose
) -> Iterator[Started]:
    """Yield the jobs that the main scheduler starts (``schedule``): in order, up to the first without room."""
    left = set(free)
    for request in queue:
        nodes = choose(left, request)
        if nodes is None:
            return
        left -= set(nodes)
        yield Started(request, nodes)


def backfilled(
    queue: Iterable[NodeRequest],
    nodes: Collection[str],
    running: Iterable[Running],
    choose: Choose,
    now_s: float,
) -> Iterator[Started]:
    """Yield the jobs that backfill starts now (``_attempt_backfill``): those that delay no earlier job.

    Each job in turn is planned at the first moment at which its nodes are free for its whole time limit, if
    running jobs use all of theirs, and next to the jobs planned before it.
    """
    taken = [Planned(now_s, job.until_s, job.nodes) for job in running]
    for request in queue:
        planned = _first_moment(request, nodes, taken, choose, now_s)
        if planned is None:
            continue
        taken.append(planned)
        if planned.begin_s <= now_s:
            yield Started(request, tuple(n for n in nodes if n in planned.nodes))


class Planned(NamedTuple):
    """Nodes that have a job from one time to another."""

    begin_s: float
    until_s: float
    nodes: frozenset[str]


def _first_moment(
    request: NodeRequest,
    nodes: Collection[str],
    taken: Sequence[Planned],
    choose: Choose,
    now_s: float,
) -> Planned | None:
    for begin_s in sorted({now_s, *(job.until_s for job in taken)}):
        if begin_s == inf:
            break
        until_s = begin_s + request.limit_s
        busy = {
            node
            for job in taken
            if job.begin_s < until_s and job.until_s > begin_s
            for node in job.nodes
        }
        chosen = choose([node for node in nodes if node not in busy], request)
        if chosen is not None:
            return Planned(begin_s, until_s, frozenset(chosen))
    return None


@dataclass(frozen=True)
class Scheduling:
    """Times at which Slurm's controller looks at its queue, seconds of real time.

    ``tick_s``: period of its background thread (``_slurmctld_background``: ten sleeps of 0.1 s), which calls the
    main scheduler if a job was submitted or the topology changed, ``delay_s`` after its last call at the
    earliest (``batch_sched_delay``), and every ``full_s`` in any case (``sched_interval``). The end of a job is
    such a call, too, where all its nodes have ended it before slurmctld asks them to (``agent.c``).
    ``backfill_s``: ``bf_interval``.
    """

    tick_s: float = 1.0
    delay_s: float = 3.0
    full_s: float = 60.0
    backfill_s: float = 30.0


def scheduling_of(parameters: str) -> Scheduling:
    """Return the times that ``SchedulerParameters`` of a slurm.conf asks for; Slurm's defaults for others.

    Raises ValueError for a value that is no number.
    """
    values = dict(word.partition("=")[::2] for word in parameters.split(","))
    named = {
        "delay_s": "batch_sched_delay",
        "full_s": "sched_interval",
        "backfill_s": "bf_interval",
    }
    return Scheduling(
        **{key: float(values[name]) for key, name in named.items() if name in values}
    )
