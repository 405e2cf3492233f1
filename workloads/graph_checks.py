"""Checks of a workload: whether it can be run, and which rank and operation it is that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ringlight.fabric.steps import IntArray
from ringlight.workloads.graph import Kind, Program, Workload

#: Most bytes of one operation: below it, sums and floats are exact enough; a larger figure is a mistake.
TOO_MUCH = 1 << 50


def check(workload: Workload) -> Workload:
    """Return the workload, if it can be run. Raises ValueError naming rank and operation.

    The check does not cover whether all ranks come to all of their operations: the run shows that.
    """
    for number, program in enumerate(workload.programs):
        _check_program(workload, number, program)
    members = [
        np.full(len(group), number) * workload.ranks + group
        for number, group in enumerate(workload.groups)
    ]
    member = np.concatenate([*members, np.zeros(0, dtype=np.int64)])
    calls: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, program in enumerate(workload.programs):
        ranks = np.flatnonzero(workload.program_of == number)
        for slot in _slots(program, Kind.COLLECTIVE):
            groups = _filled(workload.communicators, ranks, slot)
            out = ranks[
                (groups < 0) | ~np.isin(groups * workload.ranks + ranks, member)
            ]
            if len(out):
                raise ValueError(
                    f"rank {out[0]}: it is in no group for communicator slot {slot}"
                )
            for rank, group in zip(ranks.tolist(), groups.tolist(), strict=True):
                calls.setdefault((group, slot), []).append((rank, number, slot))
        _check_peers(workload, program, ranks)
    _check_calls(workload, calls)
    _check_messages(workload)
    return workload


def _slots(program: Program, kind: Kind) -> list[int]:
    return np.unique(program.slot[program.kind == kind]).tolist()  # type: ignore[no-any-return]


def _filled(slots: IntArray, ranks: IntArray, slot: int) -> IntArray:
    """Return the values of these ranks in a slot; -1 if there is no such slot."""
    return slots[ranks, slot] if 0 <= slot < slots.shape[1] else np.full(len(ranks), -1)


def _check_peers(workload: Workload, program: Program, ranks: IntArray) -> None:
    """Check that these ranks have another rank in every slot by which their program sends or receives."""
    slots = np.unique(
        program.slot[(program.kind == Kind.SEND) | (program.kind == Kind.RECEIVE)]
    )
    known = (slots >= 0) & (slots < workload.peers.shape[1])
    # The last column is of slots that there are not.
    table = np.column_stack((workload.peers[ranks], np.full(len(ranks), -1)))
    peers = table[:, np.where(known, slots, -1)]
    wrong = (peers < 0) | (peers >= workload.ranks) | (peers == ranks[:, None])
    if wrong.any():
        k = int(wrong.any(axis=0).argmax())
        raise ValueError(
            f"rank {ranks[wrong[:, k].argmax()]}: it has no peer for slot {slots[k]}"
        )


def _check_program(workload: Workload, number: int, program: Program) -> None:
    def name(k: int) -> str:
        return (
            f"program {number}, operation {k} ({workload.names[int(program.name[k])]})"
        )

    owner = np.repeat(np.arange(len(program)), np.diff(program.after_offsets))
    late = np.flatnonzero((program.after >= owner) | (program.after < 0))
    if len(late):
        k = int(owner[late[0]])
        raise ValueError(
            f"{name(k)}: it comes after operation {int(program.after[late[0]])}, which is no earlier one"
        )
    low = (program.bytes < 0) | ~(program.flops >= 0) | (program.seconds < 0)
    high = (
        (program.bytes >= TOO_MUCH)
        | ~(program.flops < np.inf)
        | (program.seconds == np.inf)
    )
    for bad, rule in ((low, "0 or more"), (high, f"finite, bytes below {TOO_MUCH}")):
        if bad.any():
            raise ValueError(
                f"{name(int(bad.argmax()))}: bytes, flops and seconds must be {rule}"
            )


def _check_calls(
    workload: Workload, calls: dict[tuple[int, int], list[tuple[int, int, int]]]
) -> None:
    """Check that all ranks of a group make the same calls on it, from one stream each."""
    made: dict[tuple[int, int], tuple[bytes, int]] = {}
    for (group, slot), callers in calls.items():
        missing = set(workload.groups[group].tolist()) - {
            rank for rank, _, _ in callers
        }
        if missing:
            raise ValueError(
                f"rank {min(missing)}: its group has collectives on communicator slot {slot}, and it has none"
            )
        _check_sizes(workload, group, slot, callers[0][1])
        first: bytes | None = None
        for rank, number, _ in callers:
            if (number, slot) not in made:
                program = workload.programs[number]
                mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
                if len(np.unique(program.stream[mine])) > 1:
                    raise ValueError(
                        f"rank {rank}: it calls communicator slot {slot} from more than one stream"
                    )
                content = np.stack(
                    (program.collective[mine], program.bytes[mine])
                ).tobytes()
                made[number, slot] = (content, int(mine.sum()))
            content, count = made[number, slot]
            first = content if first is None else first
            if content != first:
                raise ValueError(
                    f"rank {rank}: its {count} collectives on communicator slot {slot} are not those of rank "
                    f"{callers[0][0]}"
                )


def _check_sizes(workload: Workload, group: int, slot: int, number: int) -> None:
    """Check that a collective's bytes from rank to rank are for as many ranks as its group has."""
    program = workload.programs[number]
    mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
    ranks = len(workload.groups[group])
    for which in np.unique(program.collective[mine]).tolist():
        sizes = workload.collectives[which].sizes
        if sizes is not None and (
            len(sizes) != ranks or any(len(row) != ranks for row in sizes)
        ):
            raise ValueError(
                f"program {number}, communicator slot {slot}: its sizes are for {len(sizes)} ranks, its "
                f"group has {ranks}"
            )


def _check_messages(workload: Workload) -> None:
    """Check that every send has its receive, of the same size."""
    numbers: dict[bytes, int] = {}
    # Rows of source, destination, tag and which sizes.
    none = np.empty((0, 4), dtype=np.int64)
    ends: tuple[list[IntArray], list[IntArray]] = ([none], [none])
    # Ranks that are alike share what they send to each slot: it is gathered once for all of them.
    for (number, alike), ranks in _alike(workload).items():
        for tables, kind in zip(ends, (Kind.SEND, Kind.RECEIVE), strict=True):
            sizes = _sizes(workload.programs[number], kind, alike)
            slots, tags = np.array(list(sizes), dtype=np.int64).reshape(-1, 2).T
            which = [
                numbers.setdefault(size_runs, len(numbers))
                for size_runs in sizes.values()
            ]
            own, peers = (
                np.array(ranks)[:, None],
                workload.peers[np.array(ranks)][:, slots],
            )
            pair = (own, peers) if kind == Kind.SEND else (peers, own)
            columns = np.broadcast_arrays(*pair, tags, np.array(which, dtype=np.int64))
            tables.append(np.stack(columns, axis=-1).reshape(-1, 4))
    sent, received = (
        np.concatenate(tables)[np.lexsort(np.concatenate(tables).T[::-1])]
        for tables in ends
    )
    if np.array_equal(sent, received):
        return
    size_runs = list(numbers)
    outs, backs = (
        {(*end,): size_runs[k] for *end, k in rows.tolist()}
        for rows in (sent, received)
    )
    for end in sorted(outs | backs):
        out, other = outs.get(end, b""), backs.get(end, b"")
        if out != other:
            source, destination, tag = end
            counts = [
                len(sizes) // np.dtype(np.int64).itemsize for sizes in (out, other)
            ]
            detail = (
                f"{counts[0]} sends and {counts[1]} receives"
                if counts[0] != counts[1]
                else "their sizes differ"
            )
            raise ValueError(
                f"messages of tag {tag} from rank {source} to rank {destination}: {detail}"
            )


def _alike(workload: Workload) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """Return ranks by their program and by which of their slots have one peer.

    Two slots with one peer count as one, as what goes from one rank to another has one order.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    apart = tuple(range(workload.peers.shape[1]))
    doubled = (np.diff(np.sort(workload.peers, axis=1), axis=1) == 0).any(axis=1)
    for rank, number in enumerate(workload.program_of.tolist()):
        alike = apart
        if doubled[rank]:
            first: dict[int, int] = {}
            alike = tuple(
                first.setdefault(peer, slot)
                for slot, peer in enumerate(workload.peers[rank].tolist())
            )
        groups.setdefault((number, alike), []).append(rank)
    return groups


#: By slot and tag, the sizes of messages in the order of the program: int64, as bytes, which compare fast.
_Sizes = dict[tuple[int, int], bytes]


def _sizes(program: Program, kind: Kind, alike: Sequence[int]) -> _Sizes:
    """Return bytes of a program's messages of a kind by slot and tag.

    ``alike``: which slot each slot counts as.
    """
    mine = np.flatnonzero(program.kind == kind)
    slots, tags = np.array(alike, dtype=np.int64)[program.slot[mine]], program.tag[mine]
    order = np.lexsort((tags, slots))  # which is stable
    slots, tags, sizes = slots[order], tags[order], program.bytes[mine][order]
    starts = np.flatnonzero(
        np.diff(slots, prepend=-1) | np.diff(tags, prepend=tags[:1] - 1)
    )
    return {
        (int(slots[start]), int(tags[start])): sizes[start:end].tobytes()
        for start, end in pairwise([*starts.tolist(), len(sizes)])
    }
