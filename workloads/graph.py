"""A workload: for each rank a graph of operations, as arrays.

Thousands of ranks mostly do the same: the ranks of one pipeline stage differ only in whom they talk to. So
ranks that are alike share one :class:`Program`, which names its partners by *slots*, and the workload says
which group and which rank each slot is for each rank. Nothing grows with ranks times operations.

An operation begins when all operations that it comes after have ended, and so have all earlier ones of its
stream: a stream runs its operations one at a time, in order. The operations of a program stand in an order in
which each depends on earlier ones only.

Collectives meet by order: the k-th collective of one rank on a communicator is the k-th of every rank of its
group. The k-th send from rank a to rank b with a tag meets the k-th receive at b from a with that tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringlight.fabric.kinds import collective_steps
from ringlight.fabric.steps import (
    FloatArray,
    IntArray,
    Steps,
    WrittenSteps,
    check_ranks,
    frozen,
)


class Kind(IntEnum):
    """Kind of an operation."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECEIVE = 3
    MEMORY = 4


@dataclass(frozen=True)
class Split:
    """Unequal division of what each rank sends in an all-to-all, as tokens over experts are.

    ``skew``: exponent of a Zipf law over the receivers, in an order drawn again by each sender for each
    operation and iteration; 0 divides equally. The same ``seed`` gives the same. ``same_order``: all senders
    have one order, so that some receivers are hot. Operations of one ``draw`` send the same tokens; ``back``:
    they go back to where they came from. ``workloads.splits`` makes bytes of it.
    """

    seed: int = 0
    skew: float = 0.0
    same_order: bool = False
    draw: int | None = None
    back: bool = False


class Collective(NamedTuple):
    """Kind and algorithm as ``fabric.kinds`` has them; ``root``: group rank of a broadcast.

    ``split``: of an all-to-all-v; ``sizes``: or the bytes that each group rank (row) sends to each (column).
    ``own``: a schedule of the user's, in place of an algorithm.
    """

    kind: str
    algorithm: str = ""
    root: int = 0
    split: Split | None = None
    sizes: tuple[tuple[int, ...], ...] | None = None
    own: WrittenSteps | None = None

    def steps(self, ranks: int) -> Steps:
        """Return the schedule for a group of so many ranks. Raises ValueError if there is none."""
        if self.own is None:
            return collective_steps(self.kind, self.algorithm, ranks, self.root)
        steps = self.own.steps()
        check_ranks(steps, ranks)
        return steps


@dataclass(frozen=True, eq=False)
class Program:
    """The operations of ranks that are alike, as arrays of shape [operations] (``after``: [edges]).

    ``seconds`` of a compute operation that states them, NaN if ``flops`` does (``timed`` turns these into
    seconds). ``bytes``: that a memory operation moves or a message has; of a collective the size as
    nccl-tests has it: the vector of an all-reduce or a broadcast, all that an all-gather leaves at each rank,
    all that a reduce-scatter takes from each rank, all that one rank sends in an all-to-all, its own part
    included. ``stream``, ``name`` (index into the workload's names). ``collective``: index into the
    workload's. ``slot``: of a collective its communicator, of a message its peer. ``tag``: of a message.
    Operation k comes after ``after[after_offsets[k]:after_offsets[k + 1]]``.
    """

    kind: npt.NDArray[np.int8]
    stream: IntArray
    name: IntArray
    seconds: FloatArray
    flops: FloatArray
    bytes: IntArray
    collective: IntArray
    slot: IntArray
    tag: IntArray
    after_offsets: IntArray
    after: IntArray

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Workload:
    """Operations of ``ranks`` ranks in one iteration.

    ``program_of`` [ranks]: index into ``programs``. ``groups``: ranks in the order of their group rank.
    ``communicators`` [ranks, communicator slots]: index into ``groups``, ``peers`` [ranks, peer slots]: a
    rank; -1 if a rank's program has no such slot. ``streams``: their names.
    """

    name: str
    ranks: int
    programs: tuple[Program, ...]
    program_of: IntArray
    groups: tuple[IntArray, ...]
    communicators: IntArray
    peers: IntArray
    collectives: tuple[Collective, ...]
    names: tuple[str, ...]
    streams: tuple[str, ...] = ("main",)

    @property
    def operations(self) -> int:
        """Number of operations of all ranks."""
        return int(sum(len(self.programs[p]) for p in self.program_of.tolist()))


def calls(program: Program) -> IntArray:
    """Return for each operation [operations] its number among the collectives of its communicator.

    It is how many collectives come before it there, and -1 for other operations. So ranks know the same
    collective by the same number, whatever else their programs hold.
    """
    numbers = np.full(len(program), -1, dtype=np.int64)
    collective = program.kind == Kind.COLLECTIVE
    for slot in np.unique(program.slot[collective]).tolist():
        mine = np.flatnonzero(collective & (program.slot == slot))
        numbers[mine] = np.arange(len(mine))
    return frozen(numbers)


class Dependencies(NamedTuple):
    """Dependencies of a program's operations: how many others each operation waits for (``counts``).

    ``followers``: the operations that wait for each; ``first``: the operations that wait for none.
    """

    counts: list[int]
    followers: list[tuple[int, ...]]
    first: list[int]


def dependencies(workload: Workload, program: Program) -> Dependencies:
    """Return the dependencies: those of a program, and on the operation before on the same stream.

    Raises ValueError naming an operation that computes or moves memory and has no seconds.
    """
    local = (program.kind == Kind.COMPUTE) | (program.kind == Kind.MEMORY)
    if (unknown := np.flatnonzero(~np.isfinite(program.seconds) & local)).size:
        name = workload.names[int(program.name[unknown[0]])]
        raise ValueError(
            f"operation {unknown[0]} ({name}) has no seconds; that needs a device"
        )
    followers: list[list[int]] = [[] for _ in range(len(program))]
    counts: list[int] = []
    last: dict[int, int] = {}
    offsets, after = program.after_offsets.tolist(), program.after.tolist()
    for k, stream in enumerate(program.stream.tolist()):
        before = {
            *after[offsets[k] : offsets[k + 1]],
            *([last[stream]] if stream in last else ()),
        }
        for earlier in before:
            followers[earlier].append(k)
        counts.append(len(before))
        last[stream] = k
    first = [k for k, count in enumerate(counts) if not count]
    return Dependencies(counts, [tuple(following) for following in followers], first)


def covered_s(times_s: FloatArray) -> float:
    """Return the seconds that at least one of the intervals ``times_s`` [intervals, 2] covers."""
    ordered = times_s[np.argsort(times_s[:, 0], kind="stable")]
    until = np.concatenate(([-np.inf], np.maximum.accumulate(ordered[:, 1])[:-1]))
    return (
        float(np.maximum(ordered[:, 1] - np.maximum(ordered[:, 0], until), 0.0).sum())
        if len(ordered)
        else 0.0
    )
