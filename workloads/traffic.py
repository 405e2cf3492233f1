"""Compute the traffic between ranks: bytes of a workload by source and destination, in one iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringlight.fabric.collectives import chunk_bounds
from ringlight.fabric.kinds import matrix_bounds, vector_bytes
from ringlight.fabric.steps import FloatArray, IntArray, Steps, sent_in_steps
from ringlight.workloads.graph import Collective, Kind, Program, Workload
from ringlight.workloads.splits import ELEMENT_BYTES, split_bytes

#: Ranks of a matrix in whole bytes.
WHOLE_LIMIT = 4096


def traffic(workload: Workload) -> IntArray:
    """Return the bytes that each rank (row) sends to each (column) in one iteration: [ranks, ranks].

    Collectives send by their schedules, unequal all-to-alls as those of iteration 0. Raises ValueError for
    more than ``WHOLE_LIMIT`` ranks, and for an unknown kind or algorithm.
    """
    if workload.ranks > WHOLE_LIMIT:
        raise ValueError(f"a matrix may have {WHOLE_LIMIT} ranks, not {workload.ranks}")
    return np.rint(sent(workload)).astype(np.int64)


def sent(workload: Workload) -> FloatArray:
    """Return the bytes between ranks as :func:`traffic`, for any number of ranks, not rounded.

    Raises ValueError for an unknown kind or algorithm.
    """
    return _of_messages(workload) + _of_slots(workload, _slots(workload))


def delivered(workload: Workload, iterations: int) -> IntArray:
    """Return the bytes that workers send each other in all iterations: [ranks, ranks].

    Chunks are whole float32 values there. Raises ValueError for sizes that are no whole number of these, and
    for an unknown kind or algorithm.
    """
    total = iterations * _of_messages(workload)
    for iteration in range(iterations):
        total += _of_slots(workload, _slots(workload), iteration)
    return np.rint(total).astype(np.int64)


def delivered_in_steps(steps: Steps, size: int) -> IntArray:
    """Return the bytes between ranks of one collective over a vector of ``size`` bytes."""
    return np.rint(_between(steps, _bounds_in_whole(steps.chunks, size))).astype(
        np.int64
    )


def all_reduce_groups(workload: Workload) -> tuple[list[IntArray], float, FloatArray]:
    """Return the all-reduces that move the most bytes, by their groups, and the bytes of everything else.

    The groups share no rank: the all-reduces are those of one slot. The result is the groups, the most bytes
    that a rank sends in them in one iteration, and [ranks, ranks] the bytes of everything else. There are no
    groups if there is no all-reduce.
    """
    slots = _slots(workload)
    only = [slot for slot in slots if _only_all_reduces(workload, slot)]
    of_slot = {slot: _of_slots(workload, [slot]) for slot in only}
    most = max(only, key=lambda slot: float(of_slot[slot].sum()), default=None)
    rest = _of_messages(workload) + _of_slots(
        workload, [slot for slot in slots if slot != most]
    )
    if most is None:
        return [], 0.0, rest
    numbers = np.unique(workload.communicators[:, most])
    groups = [workload.groups[number] for number in numbers[numbers >= 0].tolist()]
    return groups, float(of_slot[most].sum(axis=1).max()), rest


def _slots(workload: Workload) -> list[int]:
    """Return communicator slots on which some rank has collectives."""
    slots = [
        program.slot[program.kind == Kind.COLLECTIVE] for program in workload.programs
    ]
    return np.unique(np.concatenate(slots)).tolist()  # type: ignore[no-any-return]


def _only_all_reduces(workload: Workload, slot: int) -> bool:
    return all(
        workload.collectives[which].kind == "all-reduce"
        for program in workload.programs
        for which in np.unique(
            program.collective[
                (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
            ]
        ).tolist()
    )


def _of_messages(workload: Workload) -> FloatArray:
    matrix = np.zeros((workload.ranks, workload.ranks))
    for number, program in enumerate(workload.programs):
        sends = program.kind == Kind.SEND
        # Ranks that are alike send the same to each slot.
        slots, which = np.unique(program.slot[sends], return_inverse=True)
        sizes = np.bincount(which, weights=program.bytes[sends], minlength=len(slots))
        ranks = np.flatnonzero(workload.program_of == number)[:, None]
        np.add.at(matrix, (ranks, workload.peers[ranks, slots]), sizes)
    return matrix


#: Bytes of a collective by ranks of its group, by number of the collective, ranks and size.
_Shares = dict[tuple[int, int, int], FloatArray]


def _of_slots(
    workload: Workload, slots: Sequence[int], iteration: int | None = None
) -> FloatArray:
    """Return the bytes of all collectives on these communicator slots in one iteration: [ranks, ranks].

    ``iteration``: its number; None for parts of bytes as they come, and unequal parts as in iteration 0.
    """
    matrix = np.zeros((workload.ranks, workload.ranks))
    shares: _Shares = {}
    for slot in slots:
        done = set()
        for rank, group in enumerate(workload.communicators[:, slot].tolist()):
            program = workload.programs[int(workload.program_of[rank])]
            if (
                group in done
                or not (
                    (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
                ).any()
            ):
                continue
            done.add(group)
            members = workload.groups[group]
            matrix[np.ix_(members, members)] += _collectives(
                workload, program, slot, group, shares, iteration
            )
    return matrix


def _collectives(
    workload: Workload,
    program: Program,
    slot: int,
    group: int,
    shares: _Shares,
    iteration: int | None,
) -> FloatArray:
    """Return the bytes of all collectives of one group on one communicator: [group ranks, group ranks]."""
    calls = np.flatnonzero((program.kind == Kind.COLLECTIVE) & (program.slot == slot))
    ranks = len(workload.groups[group])
    matrix = np.zeros((ranks, ranks))
    for which in np.unique(program.collective[calls]).tolist():
        what = workload.collectives[which]
        mine = calls[program.collective[calls] == which]
        if what.sizes is not None:
            matrix += len(mine) * _sent(what, ranks, matrix_bounds(what.sizes))
        elif what.split is not None and (what.split.skew or iteration is not None):
            for ordinal in np.searchsorted(calls, mine).tolist():
                size = int(program.bytes[calls[ordinal]])
                parts = split_bytes(
                    what.split, ranks, size, (group, ordinal, iteration or 0)
                )
                matrix += _sent(what, ranks, matrix_bounds(parts.tolist()))
        elif iteration is None:
            if (which, ranks, 1) not in shares:
                shares[which, ranks, 1] = _sent(what, ranks)
            matrix += shares[which, ranks, 1] * float(program.bytes[mine].sum())
        else:
            for size in program.bytes[mine].tolist():
                if (which, ranks, size) not in shares:
                    shares[which, ranks, size] = _sent(
                        what, ranks, _whole(what, ranks, size)
                    )
                matrix += shares[which, ranks, size]
    return matrix


def _whole(what: Collective, ranks: int, size: int) -> IntArray:
    chunks = what.steps(ranks).chunks
    return _bounds_in_whole(chunks, vector_bytes(what.kind, ranks, size))


def _bounds_in_whole(chunks: int, size: int) -> IntArray:
    """Return the bounds in bytes of the chunks of a vector of ``size`` bytes, in whole elements."""
    if size % ELEMENT_BYTES:
        raise ValueError(f"{size} bytes are no whole number of float32")
    ends = [end for _, end in chunk_bounds(size // ELEMENT_BYTES, chunks)]
    return ELEMENT_BYTES * np.array([0, *ends], dtype=np.int64)


def _sent(
    what: Collective, ranks: int, bounds: npt.NDArray[np.int64] | None = None
) -> FloatArray:
    """Return the bytes that a collective's schedule sends, [ranks, ranks]; without ``bounds``, of 1 byte."""
    steps = what.steps(ranks)
    if bounds is None:
        return sent_in_steps(steps, vector_bytes(what.kind, ranks, 1))
    return _between(steps, bounds)


def _between(steps: Steps, bounds: IntArray) -> FloatArray:
    matrix = np.zeros((steps.world_size, steps.world_size))
    for step in steps:
        size = bounds[step.first + step.count] - bounds[step.first]
        np.add.at(matrix, (step.sources, step.destinations), size)
    return matrix
