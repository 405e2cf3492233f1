"""Widens a workload to more replicas: what few ranks do, done by many.

The ranks stand on a grid [pp, dp, ep, tp], tensor parallelism varying fastest, as Megatron-LM numbers them
(Narayanan et al., SC 2021). Each replica of a wider workload does what a replica of the recording does, on a
batch as large; so the operations of a rank and their bytes stay, and only groups that cross replicas grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringlight.fabric.steps import IntArray, frozen
from ringlight.workloads.graph import Kind, Program, Workload, check

#: First words of what is communicated between replicas, in names of operations.
BETWEEN_REPLICAS = frozenset({"dp", "edp"})


@dataclass(frozen=True)
class Replicas:
    """Where the replicas of a workload are: rank r is of replica ``(r // stride) % count``."""

    count: int
    stride: int

    def of(self, ranks: IntArray) -> IntArray:
        """The replica of each rank."""
        return ranks // self.stride % self.count

    def widened(self, ranks: IntArray, copy: int, copies: int) -> IntArray:
        """The number that each rank's ``copy`` has among ``copies`` times as many replicas."""
        outer, inner = ranks // (self.stride * self.count), ranks % self.stride
        return (outer * self.count * copies + copy * self.count + self.of(ranks)) * self.stride + inner


def stated(ranks: int, tp: int, pp: int, ep: int) -> Replicas:
    """Replicas of ``ranks`` ranks on a grid of these sizes. Raises ValueError where they do not fit."""
    if ranks % (tp * pp * ep):
        raise ValueError(f"{ranks} ranks are no multiple of tp {tp} × pp {pp} × ep {ep}")
    return Replicas(ranks // (tp * pp * ep), ep * tp)


def found(workload: Workload) -> Replicas:
    """Replicas by the smallest groups whose operations are called dp or edp.

    Raises ValueError where there are none, or they do not stand on a grid.
    """
    named = [
        workload.groups[workload.communicators[rank, slot]]
        for rank, slot in _used(workload)
        if _between_replicas(workload, rank, slot)
    ]
    if not named:
        raise ValueError("no operation is called dp or edp; state tp, pp and ep of the recording")
    smallest = min(named, key=len)
    if len(smallest) < 2:
        raise ValueError("a single replica: nothing in the recording says what replicas send to each other")
    replicas = Replicas(len(smallest), int(smallest[1] - smallest[0]))
    if replicas.stride < 1 or workload.ranks % (replicas.count * replicas.stride):
        raise ValueError(f"the ranks {smallest.tolist()} of replicas stand on no grid of {workload.ranks}")
    return replicas


def widened(workload: Workload, dp: int, replicas: Replicas, sharded: Collection[str] = ()) -> Workload:
    """The workload with ``dp`` replicas, a multiple of those that it has.

    ``sharded``: names of computations and memory operations that replicas share out, as ZeRO's optimiser.
    Raises ValueError naming a group that crosses some replicas and not all, or a collective that is written
    for as many ranks as its group has now.
    """
    if dp < replicas.count or dp % replicas.count:
        raise ValueError(f"{dp} replicas are no multiple of the {replicas.count} of the recording")
    if replicas.count == 1 and dp > 1:
        raise ValueError("a single replica: nothing in the recording says what replicas send to each other")
    copies = dp // replicas.count
    _check_grid(workload, replicas)
    places = np.stack([replicas.widened(np.arange(workload.ranks), c, copies) for c in range(copies)])
    groups: list[IntArray] = []
    number = np.full((copies, len(workload.groups)), -1)
    for index, group in enumerate(workload.groups):
        crossing = _crosses(replicas, group)
        for copy in range(copies):
            number[copy, index] = len(groups) - (crossing and copy > 0)
            if not crossing:
                groups.append(frozen(places[copy, group]))
            elif copy == 0:
                groups.append(frozen(places[:, group].ravel()))
    programs = tuple(_shared_out(workload, program, sharded, copies) for program in workload.programs)
    ranks = workload.ranks * copies
    program_of = np.empty(ranks, dtype=np.int64)
    communicators = np.full((ranks, workload.communicators.shape[1]), -1)
    peers = np.full((ranks, workload.peers.shape[1]), -1)
    for copy in range(copies):
        program_of[places[copy]] = workload.program_of
        communicators[places[copy]] = _mapped(number[copy], workload.communicators)
        peers[places[copy]] = _mapped(places[copy], workload.peers)
    return check(
        replace(
            workload,
            name=f"{workload.name}, widened to dp {dp}",
            ranks=ranks,
            programs=programs,
            program_of=frozen(program_of),
            groups=tuple(groups),
            communicators=frozen(communicators),
            peers=frozen(peers),
        )
    )


def first_difference(one: Workload, other: Workload) -> str | None:
    """What first tells two workloads apart, in one line; None where all ranks do the same.

    Compared are each rank's operations in their order: kind, name, seconds, FLOPs, bytes, what they come
    after, the stream, and the ranks that they meet.
    """
    if one.ranks != other.ranks:
        return f"{one.ranks} ranks, and {other.ranks}"
    for rank in range(one.ranks):
        mine, theirs = list(_told(one, rank)), list(_told(other, rank))
        if len(mine) != len(theirs):
            return f"rank {rank}: {len(mine)} operations, and {len(theirs)}"
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            for field, ours, its in zip(_FIELDS, a, b, strict=True):
                if ours != its:
                    return f"rank {rank}, operation {number} ({a[1]}): {field} {ours}, and {its}"
    return None


_FIELDS = ("kind", "name", "stream", "seconds", "FLOPs", "bytes", "collective", "ranks", "tag", "after")


def _told(workload: Workload, rank: int) -> Iterator[tuple[Any, ...]]:
    """The operations of a rank, with what its slots stand for."""
    program = workload.programs[workload.program_of[rank]]
    for k in range(len(program)):
        kind, slot = Kind(program.kind[k]), int(program.slot[k])
        met: tuple[int, ...] = ()
        if kind is Kind.COLLECTIVE:
            met = tuple(workload.groups[workload.communicators[rank, slot]].tolist())
        elif kind in (Kind.SEND, Kind.RECEIVE):
            met = (int(workload.peers[rank, slot]),)
        seconds, which = float(program.seconds[k]), int(program.collective[k])
        yield (
            kind.name.lower(),
            workload.names[int(program.name[k])],
            workload.streams[int(program.stream[k])],
            None if math.isnan(seconds) else seconds,
            float(program.flops[k]),
            int(program.bytes[k]),
            workload.collectives[which] if which >= 0 else None,
            met,
            int(program.tag[k]),
            sorted(program.after[program.after_offsets[k] : program.after_offsets[k + 1]].tolist()),
        )


def _shared_out(workload: Workload, program: Program, sharded: Collection[str], copies: int) -> Program:
    alone = (program.kind == Kind.COMPUTE) | (program.kind == Kind.MEMORY)
    named = np.isin(program.name, [n for n, name in enumerate(workload.names) if name in sharded])
    parts = np.where(alone & named, copies, 1)
    return replace(
        program,
        seconds=program.seconds / parts,
        flops=program.flops / parts,
        bytes=frozen(-(-program.bytes // parts)),
    )


def _mapped(new: IntArray, old: IntArray) -> IntArray:
    """``new[old]``, where ``old`` is not -1."""
    return np.where(old < 0, -1, np.append(new, -1)[old])


def _crosses(replicas: Replicas, group: IntArray) -> bool:
    """Whether a group is of all replicas, not of one. Raises ValueError where it is of some."""
    met = len(np.unique(replicas.of(group)))
    if met not in (1, replicas.count):
        raise ValueError(
            f"the group {group.tolist()} is of {met} of {replicas.count} replicas: check tp, pp, ep"
        )
    return met > 1


def _check_grid(workload: Workload, replicas: Replicas) -> None:
    """Raises ValueError where what ranks send does not fit the replicas, or cannot grow with them."""
    own = replicas.of(np.arange(workload.ranks))
    crossing = (workload.peers >= 0) & (own[workload.peers] != own[:, None])
    if crossing.any():
        rank, slot = np.argwhere(crossing)[0].tolist()
        peer = int(workload.peers[rank, slot])
        raise ValueError(f"rank {rank} sends to or hears rank {peer} of another replica: check tp, pp, ep")
    for rank, slot in _used(workload):
        group = workload.groups[workload.communicators[rank, slot]]
        if not _crosses(replicas, group):
            if replicas.count > 1 and len(group) > 1 and _between_replicas(workload, rank, slot):
                raise ValueError(f"the ranks {group.tolist()} of dp are of one replica: check tp, pp, ep")
            continue
        program = workload.programs[workload.program_of[rank]]
        mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
        for k in np.flatnonzero(mine).tolist():
            what = workload.collectives[int(program.collective[k])]
            if what.sizes is not None or what.own is not None:
                name = workload.names[int(program.name[k])]
                raise ValueError(f"{name}: its {what.kind} is written for just the ranks of its group")


def _used(workload: Workload) -> Iterator[tuple[int, int]]:
    """A rank of each program and group, with each communicator slot that it uses."""
    seen: set[tuple[int, int, int]] = set()
    for rank, number in enumerate(workload.program_of.tolist()):
        program = workload.programs[number]
        for slot in np.unique(program.slot[program.kind == Kind.COLLECTIVE]).tolist():
            key = (number, slot, int(workload.communicators[rank, slot]))
            if key not in seen:
                seen.add(key)
                yield rank, slot


def _between_replicas(workload: Workload, rank: int, slot: int) -> bool:
    program = workload.programs[workload.program_of[rank]]
    mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
    return any(_purpose(workload.names, which) in BETWEEN_REPLICAS for which in np.unique(program.name[mine]))


def _purpose(names: Sequence[str], which: int) -> str:
    return names[which].partition(" ")[0]
