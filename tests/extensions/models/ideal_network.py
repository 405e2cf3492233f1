"""Runs a workload where operations wait for nothing but what they depend on: as closed forms have it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from ringlight.workloads.graph import Kind, Workload
from tests.extensions.models.iteration_time import IdealNetwork


def ideal_run(
    workload: Workload, network: IdealNetwork, ranks: Sequence[int] | None = None
) -> list[list[float]]:
    """Seconds at which each operation of each of ``ranks`` ends; ``ranks`` stand for those that are alike.

    Raises AssertionError naming the first operations that never end.
    """
    ranks = range(workload.ranks) if ranks is None else ranks
    chosen = set(ranks)
    tables = {
        rank: {name: getattr(workload.programs[p], name).tolist() for name in _COLUMNS}
        for rank, p in ((r, int(workload.program_of[r])) for r in ranks)
    }
    end = {rank: [np.nan] * len(tables[rank]["kind"]) for rank in ranks}
    queues: dict[int, list[list[int]]] = {}
    for rank in ranks:
        queues[rank] = [[] for _ in workload.streams]
        for k, stream in enumerate(tables[rank]["stream"]):
            queues[rank][stream].append(k)
        for queue in queues[rank]:
            queue.reverse()
    free = {rank: [0.0] * len(workload.streams) for rank in ranks}
    calls: defaultdict[tuple[int, int, int], list[tuple[int, int, float]]] = (
        defaultdict(list)
    )
    called: defaultdict[tuple[int, int], int] = defaultdict(int)
    messages: defaultdict[tuple[int, int, int], list[float]] = defaultdict(list)
    waiting: set[tuple[int, int]] = (
        set()
    )  # heads of streams that have called a collective
    todo = list(ranks)

    def ended(rank: int, k: int, at: float) -> None:
        stream = tables[rank]["stream"][k]
        end[rank][k] = free[rank][stream] = at
        queues[rank][stream].pop()
        todo.append(rank)

    while todo:
        rank = todo.pop()
        t = tables[rank]
        for stream, queue in enumerate(queues[rank]):
            while queue:
                k = queue[-1]
                after = t["after"][t["after_offsets"][k] : t["after_offsets"][k + 1]]
                start = max([free[rank][stream], *(end[rank][j] for j in after)])
                if any(np.isnan(end[rank][j]) for j in after) or (rank, k) in waiting:
                    break
                size, slot, kind = t["bytes"][k], t["slot"][k], t["kind"][k]
                if kind == Kind.SEND:
                    peer = int(workload.peers[rank, slot])
                    arrival = start + network.message_s(size)
                    messages[rank, peer, t["tag"][k]].append(arrival)
                    ended(rank, k, arrival)
                    if peer in chosen:
                        todo.append(peer)
                elif kind == Kind.RECEIVE:
                    queued = messages[
                        int(workload.peers[rank, slot]), rank, t["tag"][k]
                    ]
                    if not queued:
                        break
                    ended(rank, k, max(start, queued.pop(0)))
                elif kind == Kind.COLLECTIVE:
                    group = int(workload.communicators[rank, slot])
                    members = workload.groups[group]
                    key = (group, slot, called[rank, slot])
                    called[rank, slot] += 1
                    calls[key].append((rank, k, start))
                    waiting.add((rank, k))
                    if len(calls[key]) == len(chosen.intersection(members.tolist())):
                        what = workload.collectives[t["collective"][k]].kind
                        halves = 2 if what == "all-reduce" else 1
                        at = max(s for _, _, s in calls[key]) + halves * network.half_s(
                            size, len(members)
                        )
                        for other, j, _ in calls.pop(key):
                            waiting.discard((other, j))
                            ended(other, j, at)
                    break
                else:
                    ended(rank, k, start + t["seconds"][k])
    stuck = [
        f"rank {rank}: {workload.names[tables[rank]['name'][queue[-1]]]}"
        for rank in ranks
        for queue in queues[rank]
        if queue
    ]
    assert not stuck, "; ".join(stuck)
    return [end[rank] for rank in ranks]


_COLUMNS = (
    "kind",
    "stream",
    "name",
    "seconds",
    "bytes",
    "collective",
    "slot",
    "tag",
    "after_offsets",
    "after",
)
