"""All-reduces by the tasks of a job of Slurm, with the transport of Ringlight's own workers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ringlight.containers.worker.assignment import partners
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.rendezvous import (
    Lines,
    NoConnection,
    connect_all,
    listen,
    part,
)
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.transport import Transport
from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.site import Site
from ringlight.fabric.collectives import all_reduce

#: Longest wait for the other tasks, seconds.
CONNECT_S = 30.0
#: First of the ports at which tasks listen; each job has one of the next thousand.
FIRST_PORT = 29600
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Task:
    """A task of a job step. ``addresses``: of all tasks in the fabric, by rank."""

    job: str
    rank: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class AllReduceTimes:
    """All-reduces of one task. ``times_s``: of each, seconds. ``exact``: every sum was right."""

    times_s: tuple[float, ...]
    exact: bool

    @property
    def median_s(self) -> float:
        """Return the median of their times, seconds."""
        return statistics.median(self.times_s)


def task_of(site: Site, environment: Mapping[str, str]) -> Task:
    """Return the task whose environment this is. Raises SlurmError outside a job step with a task for each node."""
    try:
        nodes = expand(environment["SLURM_STEP_NODELIST"])
        rank, count = int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"])
        job = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    except KeyError as error:
        raise SlurmError(f"{error.args[0]}: not set; start this with srun") from None
    if count != len(nodes):
        raise SlurmError(
            f"{count} tasks on {len(nodes)} nodes: start one for each node"
        )
    if unknown := [node for node in nodes if node not in site.addresses]:
        raise SlurmError(f"node {unknown[0]}: not a GPU of the lab")
    return Task(job, rank, tuple(site.addresses[node] for node in nodes))


def measure(
    task: Task, length_bytes: int, repeat: int, collective: str
) -> AllReduceTimes:
    """All-reduce a vector of ``length_bytes`` bytes of float32 values ``repeat`` times, and return the times.

    Raises SlurmError if a task is missing or the collective cannot be.
    """
    ranks = len(task.addresses)
    if ranks < 2:
        raise SlurmError("one task: an all-reduce has at least two")
    try:
        schedule = all_reduce(collective, ranks)
    except ValueError as error:
        raise SlurmError(str(error)) from None
    port = FIRST_PORT + int(task.job.partition(".")[0]) % 1000
    spec = WorkerSpec(
        job=f"slurm-{task.job}",
        rank=task.rank,
        world_size=ranks,
        peers=task.addresses,
        port=port,
        connect_timeout_s=CONNECT_S,
    )
    to, into = partners(schedule, task.rank)
    lines = Lines.of(spec, to, into)
    try:
        with ExitStack() as undo:
            listener = undo.enter_context(listen(spec, time.monotonic() + CONNECT_S))
            sockets = connect_all(spec, lines.sending(), listener)
            for connection in sockets.values():
                undo.callback(connection.close)
            by_rank = {line.peer: connection for line, connection in sockets.items()}
            length = max(1, length_bytes // _FLOAT_BYTES)
            transport = Transport(schedule, task.rank, by_rank, length)
            measured = _repeat(transport, task.rank, ranks, length, repeat)
            part(list(by_rank.items()), CONNECT_S)
    except (PeerLost, NoConnection, TimeoutError) as error:
        raise SlurmError(str(error)) from None
    return measured


def _repeat(
    transport: Transport, rank: int, ranks: int, length: int, repeat: int
) -> AllReduceTimes:
    """Return the times of all-reduces of vectors whose sum is known."""
    times_s: list[float] = []
    exact = True
    expected = np.float32(ranks * (ranks + 1) / 2)
    for _ in range(repeat):
        vector = np.full(length, rank + 1, np.float32)
        began = time.monotonic()
        transport.run(vector)
        times_s.append(time.monotonic() - began)
        exact = exact and bool((vector == expected).all())
    return AllReduceTimes(tuple(times_s), exact)
