"""Workloads in virtual time: graphs of computation, collectives and messages over a network.

``exact`` follows every transfer of every rank, for up to some hundreds of ranks; ``classes`` takes ranks that
do the same as one, in lock-step, for thousands. What has one result in both ways is in this module.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ringlight.fabric.steps import IntArray
from ringlight.testbed.simulation.arrays import FloatArray
from ringlight.testbed.simulation.bundles import Bundles
from ringlight.testbed.simulation.calls import Calls
from ringlight.testbed.simulation.classwise import InClasses
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.lockstep import Classes
from ringlight.testbed.simulation.networks import Network, NetworkForCollectives
from ringlight.testbed.simulation.operations import Operations, Record, Times, plan_of
from ringlight.testbed.simulation.phases import StepCost
from ringlight.testbed.simulation.rankwise import RankByRank
from ringlight.testbed.simulation.traffic import (
    SimulatedTraffic,
    of_flows,
    of_stretches,
)
from ringlight.workloads.formats.timeline import Span
from ringlight.workloads.graph import Kind, Workload
from ringlight.workloads.summary import kind_named

Fidelity = Literal["exact", "classes"]
#: Intervals of the traffic over time when no width is given.
BINS = 100


@dataclass(frozen=True)
class WorkloadResult:
    """Outcome of a workload. Rows are its ranks, or its classes: ``row_of`` [ranks] maps ranks to rows.

    ``begin_s``, ``end_s`` [iterations, rows]. ``times``: with columns in the order of ``purposes``.
    ``link_bytes`` [links]: bytes that passed each link, ``link_keys``: names of the links. ``traffic`` and
    ``records`` (by row) only if they were requested.
    """

    workload: Workload
    fidelity: Fidelity
    row_of: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    purposes: tuple[str, ...]
    times: Times
    link_keys: tuple[Hashable, ...]
    link_bytes: FloatArray
    traffic: SimulatedTraffic | None = None
    records: tuple[Record, ...] | None = None

    @property
    def total_s(self) -> float:
        """Seconds until the last rank ended its last iteration."""
        return float(self.end_s.max())

    @property
    def iteration_s(self) -> FloatArray:
        """[iterations]: from the first rank's begin of each to the last one's end."""
        return np.asarray(self.end_s.max(axis=1) - self.begin_s.min(axis=1))

    def timeline(self, ranks: Sequence[int] | None = None) -> Iterator[Span]:
        """Yield the operations of some ranks, by default of the first rank of each row, for a timeline file.

        Each begins when it held its stream. Raises ValueError if the operations were not recorded.
        """
        if self.records is None:
            raise ValueError(
                "the operations' times were not recorded; ask for operations"
            )
        if ranks is None:
            ranks = np.unique(self.row_of, return_index=True)[1].tolist()
        workload = self.workload
        for rank in ranks:
            program, record = (
                workload.programs[workload.program_of[rank]],
                self.records[self.row_of[rank]],
            )
            fixed = [
                (
                    workload.streams[stream],
                    workload.names[name],
                    kind_named(workload, kind, which),
                    size,
                )
                for stream, name, kind, which, size in zip(
                    *(getattr(program, column).tolist() for column in _SHOWN),
                    strict=True,
                )
            ]
            for begins, ends in zip(
                record.begin_s.tolist(), record.end_s.tolist(), strict=True
            ):
                for (stream, name, kind, size), begin_s, end_s in zip(
                    fixed, begins, ends, strict=True
                ):
                    args = {"bytes": size} if size else {}
                    yield Span(f"rank {rank}", stream, name, begin_s, end_s, kind, args)


_SHOWN = ("stream", "name", "kind", "collective", "bytes")


def purpose(name: str) -> str:
    """Return the purpose of a communication: the first word of its name."""
    return name.partition(" ")[0]


def simulate_workload(
    network: Network,
    gpus: Sequence[str],
    workload: Workload,
    *,
    iterations: int = 1,
    fidelity: Fidelity = "exact",
    cost: StepCost | None = None,
    splits: int = 1,
    operations: bool = False,
    traffic: bool = False,
    bin_s: float | None = None,
) -> WorkloadResult:
    """Simulate ``iterations`` of the workload, with rank i on ``gpus[i]``, and return the outcome.

    A rank begins an iteration when all of its operations of the one before have ended. A message begins when
    both of its ends have come to it. ``cost``: of each step of a collective, and the setting up of each
    message. ``splits``: each collective is done in so many equal parts, one after the other. ``operations``:
    keep when each began and ended. ``traffic``: keep the bytes that passed each link over time, in intervals
    of ``bin_s`` seconds, or in 100 of them.

    Raises ValueError naming what does not fit: a GPU that is missing, an operation without seconds, a
    transfer without a way, a network that is not simulated here. If ranks wait for each other, it names them
    and their operations.
    """
    if bin_s is not None and not 0 < bin_s < np.inf:
        raise ValueError(f"bin_s is {bin_s}; it must be above 0")
    engine = Engine(trace=traffic and fidelity == "exact")
    run = Execution(
        engine,
        network,
        gpus,
        workload,
        iterations=iterations,
        fidelity=fidelity,
        cost=cost,
        splits=splits,
        operations=operations,
        traffic=traffic,
    )
    # As in jobs: millions of small objects live for a moment, and none of them in a cycle.
    collecting = gc.isenabled()
    gc.disable()
    try:
        run.begin()
        engine.run()
    finally:
        if collecting:
            gc.enable()
    if (why := run.standstill()) is not None:
        raise ValueError(why)
    return run.result(bin_s)


class Execution:
    """A workload on an engine that the caller runs, which may carry other flows too; nothing of it has begun.

    ``slower``: rank to the factor by which its computing takes longer. ``progress`` is called with a row (a
    rank, or a class) and an iteration at the end of each. ``disturbed``: others use its links. ``standing``:
    no light is asked for or set again meanwhile; otherwise a rank waits for all of a step before the next.
    Otherwise and for what is raised as :func:`simulate_workload`. The engine's links must have the network's
    numbers.
    """

    def __init__(
        self,
        engine: Engine,
        network: Network,
        gpus: Sequence[str],
        workload: Workload,
        *,
        iterations: int = 1,
        fidelity: Fidelity = "exact",
        cost: StepCost | None = None,
        splits: int = 1,
        operations: bool = False,
        traffic: bool = False,
        slower: Mapping[int, float] | None = None,
        progress: Callable[[int, int], None] | None = None,
        disturbed: bool = False,
        standing: bool = True,
    ) -> None:
        _check(network, gpus, workload, iterations, fidelity, splits)
        cost = cost or StepCost()
        if cost.in_steps:
            raise ValueError(
                "in_steps is of one schedule; a workload has collectives of several"
            )
        if slower and fidelity == "classes":
            raise ValueError("ranks in lock-step have no stragglers")
        self._engine, self._network, self._workload, self._fidelity = (
            engine,
            network,
            workload,
            fidelity,
        )
        self._purposes = tuple(dict.fromkeys(map(purpose, _communications(workload))))
        number = {name: k for k, name in enumerate(self._purposes)}
        of_name = [number.get(purpose(name), -1) for name in workload.names]
        plans = [plan_of(workload, program, of_name) for program in workload.programs]
        calls = Calls(workload, splits)
        self._carrier: RankByRank | InClasses
        self._moving: RankByRank | Bundles
        if fidelity == "exact":
            alike = len(workload.programs) == 1 and not slower and not disturbed
            self._carrier = self._moving = RankByRank(
                engine,
                network,
                gpus,
                workload,
                calls,
                cost,
                alike=alike,
                standing=standing,
            )
            self.row_of, self._firsts = (
                np.arange(workload.ranks),
                np.arange(workload.ranks),
            )
        else:
            classes = Classes(workload)
            self._carrier = InClasses(
                engine, network, gpus, workload, classes, calls, cost, trace=traffic
            )
            self._moving = self._carrier.bundles
            self.row_of = classes.of
            self._firsts = np.array([int(members[0]) for members in classes.members])
        of = workload.program_of[self._firsts].tolist()
        for rank, factor in (slower or {}).items():
            plan = plans[of[rank]]
            plans.append(
                plan._replace(local_s=[factor * seconds for seconds in plan.local_s])
            )
            of[rank] = len(plans) - 1
        self.operations = Operations(
            engine,
            plans,
            of,
            iterations,
            len(self._purposes),
            self._carrier.communicate,
            record=operations,
            progress=progress,
        )
        self._carrier.operations = self.operations

    def begin(self) -> None:
        """Begin the first iteration of all ranks now."""
        self.operations.begin()

    def remaining(self) -> FloatArray:
        """Return the bytes in progress that have yet to pass each of the network's links."""
        return self._moving.remaining()

    def moved(self) -> FloatArray:
        """Return the bytes that have passed each of the network's links; rank by rank those of flows that
        have begun.
        """
        return self._moving.moved()

    def set_capacity(self, capacity_bps: FloatArray) -> None:
        """Set the capacity of the network's links [links] from now on, bits per second; 0 is dark."""
        self._moving.set_capacity(capacity_bps / 8)

    @property
    def over(self) -> bool:
        """Return whether all ranks have ended."""
        return not self.operations.unfinished

    def standstill(self) -> str | None:
        """Return which ranks wait, and in which operations, when nothing happens any more; None if all have
        ended.
        """
        return (
            None
            if self.over
            else _standstill(self._workload, self.operations, self._firsts.tolist())
        )

    def result(self, bin_s: float | None = None) -> WorkloadResult:
        """Return the result once the run is over. Kept traffic is in intervals of ``bin_s`` seconds, or in
        100 of them.
        """
        run, network, carrier = self.operations, self._network, self._carrier
        end_s = float(run.end_s.max())
        links, width_s = len(network.capacity_bps), bin_s or max(end_s, 1e-300) / BINS
        traffic = None
        if isinstance(carrier, InClasses) and carrier.bundles.stretches is not None:
            traffic = of_stretches(carrier.bundles.stretches, links, width_s, end_s)
        elif isinstance(carrier, RankByRank) and self._engine.passed is not None:
            traffic = of_flows(self._engine.passed, links, width_s, end_s)
        return WorkloadResult(
            self._workload,
            self._fidelity,
            self.row_of,
            run.begin_s,
            run.end_s,
            self._purposes,
            run.times(),
            tuple(network.key(link) for link in range(links)),
            self.moved(),
            traffic,
            tuple(run.records) if run.records is not None else None,
        )


def _check(
    network: Network,
    gpus: Sequence[str],
    workload: Workload,
    iterations: int,
    fidelity: str,
    splits: int,
) -> None:
    if isinstance(network, NetworkForCollectives):
        raise ValueError(
            f"a workload on {network.name} is not simulated: its light is set for one collective"
        )
    if fidelity not in get_args(Fidelity):
        raise ValueError(
            f"fidelity is {fidelity!r}; there are {', '.join(get_args(Fidelity))}"
        )
    if len(gpus) != workload.ranks:
        raise ValueError(
            f"{len(gpus)} GPUs for the {workload.ranks} ranks of {workload.name}"
        )
    if len(set(gpus)) < len(gpus):
        twice = next(gpu for gpu in gpus if list(gpus).count(gpu) > 1)
        raise ValueError(f"GPU {twice} has two ranks of {workload.name}")
    for name, value in (("iterations", iterations), ("splits", splits)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def _communications(workload: Workload) -> Iterator[str]:
    """Return the names of the operations that communicate."""
    used = np.zeros(len(workload.names), dtype=np.bool_)
    for program in workload.programs:
        local = (program.kind == Kind.COMPUTE) | (program.kind == Kind.MEMORY)
        used[program.name[~local]] = True
    return (workload.names[k] for k in np.flatnonzero(used))


def _standstill(workload: Workload, run: Operations, firsts: Sequence[int]) -> str:
    """Return a message that names the ranks that wait, and their operations, when nothing happens any
    more.
    """
    waits = [
        f"rank {firsts[row]} in operation {operation} ({_described(workload, firsts[row], operation)})"
        for row in run.unfinished
        for operation in run.under_way[row]
    ]
    more = f" and {len(waits) - 4} more" if len(waits) > 4 else ""
    return f"{workload.name}: nobody can go on: {', '.join(waits[:4])}{more}"


def _described(workload: Workload, rank: int, operation: int) -> str:
    program = workload.programs[workload.program_of[rank]]
    name, slot = workload.names[program.name[operation]], int(program.slot[operation])
    if program.kind[operation] == Kind.COLLECTIVE:
        what = workload.collectives[program.collective[operation]]
        return f"{name}: {what.kind} of group {workload.communicators[rank, slot]}"
    way = "to" if program.kind[operation] == Kind.SEND else "from"
    return f"{name}: message {way} rank {workload.peers[rank, slot]} with tag {program.tag[operation]}"
