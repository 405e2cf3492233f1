"""Parts of a schedule: steps of arrays, and when a rank may go on to the next.

A ring of 4,096 ranks has 33 million transfers, too many to list. So a schedule yields one step at a time, and
a step holds its transfers as arrays. numpy is the only import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

#: What a receiver does with a chunk: add it to what is there, or put it in its place.
Op = Literal["reduce", "replace"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Step:
    """The transfers of one step, as arrays of shape [transfers].

    Transfer k takes chunks ``first[k]`` to ``first[k] + count[k] - 1`` from rank ``sources[k]`` to
    ``destinations[k]``; ``op`` is that of all. On a ring of wavelengths ``wavelengths`` is each one's
    channel and ``clockwise`` its direction (towards rank + 1); both are None elsewhere.
    """

    sources: IntArray
    destinations: IntArray
    first: IntArray
    count: IntArray
    op: Op
    wavelengths: IntArray | None = None
    clockwise: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True)
class Steps:
    """A collective of ``world_size`` ranks over a vector of ``chunks`` parts in ``steps`` steps.

    The parts are equal unless who runs it says otherwise. Iterating makes the steps again, one at a time.
    ``step_by_step``: a rank sends nothing of a step before it has received all of the earlier ones, as an
    exchange with one partner after another does (MPI_Sendrecv); otherwise it passes on at once what it has
    received.
    """

    name: str
    world_size: int
    chunks: int
    steps: int
    make: Callable[[], Iterator[Step]]
    step_by_step: bool = False

    def __iter__(self) -> Iterator[Step]:
        return self.make()


def passes_on(steps: Steps) -> bool:
    """Return whether ranks gain time by passing on parts of chunks before they have the whole of a step.

    They gain none in a schedule of exchanges, nor if each rank has as much for the same rank in every step,
    as on a ring: there whole chunks arrive no later.
    """
    if steps.step_by_step:
        return False
    first = None
    for step in steps:
        first = first or step
        ends = (step.sources, step.destinations, step.count)
        if not all(
            map(np.array_equal, ends, (first.sources, first.destinations, first.count))
        ):
            return True
    return first is not None and any(
        len(np.unique(ends)) < len(ends) for ends in (first.sources, first.destinations)
    )


def streams(steps: Steps) -> bool:
    """Return whether each rank sends to the same rank in every step, and passes on what it received.

    In each step after the first a rank sends what it received in the step before, as on a ring.
    """
    if steps.step_by_step:
        return False
    before: Step | None = None
    for step in steps:
        if before is None:
            order = np.argsort(step.destinations)
            if not np.array_equal(step.destinations[order], np.unique(step.sources)):
                return False
            ahead = order[
                np.searchsorted(step.destinations, step.sources, sorter=order)
            ]
        else:
            same = (step.sources, step.destinations, step.count)
            if not all(
                map(
                    np.array_equal,
                    same,
                    (before.sources, before.destinations, before.count),
                )
            ):
                return False
            if not np.array_equal(step.first, before.first[ahead]):
                return False
        before = step
    return before is not None and len(np.unique(before.sources)) == len(before)


#: Source, destination, first chunk and count of a transfer.
Row = tuple[int, int, int, int]


@dataclass(frozen=True)
class WrittenSteps:
    """A schedule with every transfer written out, as plain data that can be compared and kept: one that no
    name stands for. ``rows``: the operation and the transfers of each step."""

    name: str
    world_size: int
    chunks: int
    step_by_step: bool
    rows: tuple[tuple[Op, tuple[Row, ...]], ...]

    @classmethod
    def of(cls, steps: Steps) -> WrittenSteps:
        rows = tuple(
            (
                step.op,
                tuple(
                    zip(*(column.tolist() for column in _columns(step)), strict=True)
                ),
            )
            for step in steps
        )
        return cls(steps.name, steps.world_size, steps.chunks, steps.step_by_step, rows)

    def __hash__(self) -> int:
        # Thousands of transfers; a look-up mostly has the same object.
        return hash((self.name, self.world_size, self.chunks, len(self.rows)))

    def steps(self) -> Steps:
        """Return the schedule itself."""
        made = []
        for op, rows in self.rows:
            sources, destinations, first, count = map(
                frozen, np.reshape(rows, (-1, 4)).T
            )
            made.append(Step(sources, destinations, first, count, op))
        return Steps(
            self.name,
            self.world_size,
            self.chunks,
            len(made),
            lambda: iter(made),
            self.step_by_step,
        )


def _columns(step: Step) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    return step.sources, step.destinations, step.first, step.count


def without_steps(name: str, world_size: int) -> Steps:
    """Return a collective in which no rank sends anything to another."""
    return Steps(name, world_size, 1, 0, lambda: iter(()))


def frozen(values: npt.ArrayLike) -> IntArray:
    """Return a read-only array of 64-bit integers."""
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array


def frozen_bool(values: npt.ArrayLike) -> BoolArray:
    """Return a read-only array of booleans."""
    array = np.array(values, dtype=np.bool_)
    array.flags.writeable = False
    return array


def check_ranks(steps: Steps, ranks: int) -> None:
    """Raise ValueError when the schedule is not one for ``ranks`` ranks, or below 1."""
    if steps.world_size != ranks:
        raise ValueError(
            f"{steps.name}: a schedule of {steps.world_size} ranks for {ranks} ranks"
        )


#: A sender and a receiver.
Pair = tuple[str, str]


def pairs_of(ranks: Sequence[str], steps: Steps) -> tuple[Pair, ...]:
    """Return the pairs that send in a collective, each once, in order of first use. ``ranks``: nodes by rank.

    Raises ValueError for a world size that differs.
    """
    if len(ranks) != steps.world_size:
        raise ValueError(
            f"{len(ranks)} nodes for a schedule of {steps.world_size} ranks"
        )
    pairs: dict[Pair, None] = {}
    for step in steps:
        for source, destination in zip(
            step.sources.tolist(), step.destinations.tolist(), strict=True
        ):
            pairs[ranks[source], ranks[destination]] = None
    return tuple(pairs)


def compact(steps: Steps) -> Steps:
    """Return the same collective with equal steps made one object: good for its time, not for its sums.

    Steps are equal when the same arrays travel the same way; their chunks are those of the first.
    """
    known: dict[object, Step] = {}
    order = []
    for step in steps:
        arrays = (
            step.sources,
            step.destinations,
            step.count,
            step.wavelengths,
            step.clockwise,
        )
        order.append(known.setdefault((*map(id, arrays), step.op), step))
    return replace(steps, make=lambda: iter(order))


def sent_in_steps(steps: Steps, vector_bytes: float) -> FloatArray:
    """Return the bytes [ranks, ranks] that each rank (row) sends to each other in a collective.

    ``vector_bytes``: of the vector of the collective.
    """
    sent_bytes = np.zeros((steps.world_size, steps.world_size))
    for step in steps:
        np.add.at(
            sent_bytes,
            (step.sources, step.destinations),
            step.count * vector_bytes / steps.chunks,
        )
    return sent_bytes
