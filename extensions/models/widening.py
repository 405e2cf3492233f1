"""Widens a workload along its parallelism: what few ranks do, done by many.

The ranks stand on a grid [pp, dp, ep, tp], tensor parallelism varying fastest, as Megatron-LM numbers them
(Narayanan et al., SC 2021). Each replica of a wider workload does what a replica of the recording does, on a
batch as large; so the operations of a rank and their bytes stay, and only groups that cross replicas grow.

Tensor and expert parallelism divide the same model further. What of an operation they divide, no single
recording says; a second one, of another size, does: a figure of an operation is a + b/n over n ranks, by what
each rank has whole and its share of what is divided. More pipeline stages are ``deepening``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringlight.extensions.models.deepening import deepened
from ringlight.fabric.steps import IntArray, frozen
from ringlight.workloads.graph import Kind, Program, Workload
from ringlight.workloads.graph_checks import check

#: First words of what is communicated between replicas, in names of operations.
BETWEEN_REPLICAS = frozenset({"dp", "edp"})


@dataclass(frozen=True)
class Grid:
    """Sizes of the parallelism of a workload, whose ranks stand on a grid [pp, dp, ep, tp]."""

    pp: int = 1
    dp: int = 1
    ep: int = 1
    tp: int = 1

    def axis(self, name: str) -> Replicas:
        """Return the replicas along one kind of parallelism other than pp."""
        return Replicas(
            getattr(self, name), {"tp": 1, "ep": self.tp, "dp": self.tp * self.ep}[name]
        )

    def __str__(self) -> str:
        return f"pp {self.pp}, dp {self.dp}, ep {self.ep}, tp {self.tp}"


@dataclass(frozen=True)
class Replicas:
    """Places of the replicas of a workload: rank r is of replica ``(r // stride) % count``."""

    count: int
    stride: int

    def of(self, ranks: IntArray) -> IntArray:
        """Return the replica of each rank."""
        return ranks // self.stride % self.count

    def widened(self, ranks: IntArray, copy: int, copies: int) -> IntArray:
        """Return the number that each rank's ``copy`` has among ``copies`` times as many replicas."""
        outer, inner = ranks // (self.stride * self.count), ranks % self.stride
        return (
            outer * self.count * copies + copy * self.count + self.of(ranks)
        ) * self.stride + inner


def replicas_of(workload: Workload) -> Replicas:
    """Return the replicas by the smallest groups whose operations are called dp or edp.

    Raises ValueError if there are none, or they do not fit a grid.
    """
    named = [
        workload.groups[workload.communicators[rank, slot]]
        for rank, slot in _used(workload)
        if _between_replicas(workload, rank, slot)
    ]
    if not named:
        raise ValueError(
            "no operation is called dp or edp; state tp, pp and ep of the recording"
        )
    smallest = min(named, key=len)
    if len(smallest) < 2:
        raise ValueError(
            "a single replica: nothing in the recording says what replicas send to each other"
        )
    replicas = Replicas(len(smallest), int(smallest[1] - smallest[0]))
    if replicas.stride < 1 or workload.ranks % (replicas.count * replicas.stride):
        raise ValueError(
            f"the ranks {smallest.tolist()} of replicas stand on no grid of {workload.ranks}"
        )
    return replicas


def grid_of(workload: Workload) -> Grid:
    """Return the grid by the groups whose operations are called tp, ep, dp and edp; stages are the rest.

    Raises ValueError if there are none, or they do not fit a grid.
    """
    sizes: dict[str, int] = {}
    for rank, slot in _used(workload):
        group = workload.groups[workload.communicators[rank, slot]]
        for purpose in _purposes(workload, rank, slot) & {"tp", "ep", "dp", "edp"}:
            if sizes.setdefault(purpose, len(group)) != len(group):
                raise ValueError(
                    f"groups of {purpose} are of {sizes[purpose]} ranks and of {len(group)}"
                )
    if not sizes:
        raise ValueError(
            "no operation is called tp, ep, dp or edp; state the parallelism of the recording"
        )
    tp, ep = sizes.get("tp", 1), sizes.get("ep", 1)
    dp = sizes.get("edp", max(1, sizes.get("dp", 1) // ep))
    grid = Grid(workload.ranks // (tp * ep * dp), dp, ep, tp)
    return checked(workload, grid)


def checked(workload: Workload, grid: Grid) -> Grid:
    """Return the grid, if the named groups of the workload fit it. Raises ValueError if they do not."""
    if grid.pp * grid.dp * grid.ep * grid.tp != workload.ranks or not grid.pp:
        raise ValueError(f"{workload.ranks} ranks do not stand on a grid of {grid}")
    places = np.arange(workload.ranks).reshape(grid.pp, grid.dp, grid.ep, grid.tp)
    crossed = {"tp": (3,), "ep": (2,), "dp": (1, 2), "edp": (1,)}
    for rank, slot in _used(workload):
        group = set(workload.groups[workload.communicators[rank, slot]].tolist())
        for purpose in _purposes(workload, rank, slot) & crossed.keys():
            place = np.argwhere(places == rank)[0].tolist()
            where = tuple(
                slice(None) if axis in crossed[purpose] else place[axis]
                for axis in range(4)
            )
            if group != set(np.ravel(places[where]).tolist()):
                raise ValueError(
                    f"the group {sorted(group)} of {purpose} stands on no grid of {grid}"
                )
    return grid


def divided(
    workload: Workload,
    grid: Grid,
    beside: Workload,
    other: Grid,
    axis: str,
    target: int,
) -> Workload:
    """Return the workload with each rank's share of its operations as of ``target`` ranks along ``axis``.

    Its groups and ranks stay. ``beside``: a workload of the same training whose grid, ``other``, differs in
    that alone. Raises ValueError naming the first operation that is not the same in both.
    """
    here, there = getattr(grid, axis), getattr(other, axis)
    if here == there or replace(other, **{axis: here}) != grid:
        raise ValueError(
            f"a recording beside of {other} does not differ from one of {grid} in {axis} alone"
        )
    places = np.arange(workload.ranks).reshape(grid.pp, grid.dp, grid.ep, grid.tp)
    theirs = np.arange(beside.ranks).reshape(other.pp, other.dp, other.ep, other.tp)
    programs = list(workload.programs)
    for number, rank in zip(
        *np.unique(workload.program_of, return_index=True), strict=True
    ):
        place = np.argwhere(places == rank)[0]
        like = int(theirs[tuple(place % theirs.shape)])
        mine, its = list(_told(workload, int(rank))), list(_told(beside, like))
        if len(mine) != len(its):
            raise ValueError(
                f"{axis}: rank {rank} has {len(mine)} operations with {axis} {here}, "
                f"and {len(its)} with {there}"
            )
        for k, (here_row, there_row) in enumerate(zip(mine, its, strict=True)):
            for field, ours, other_s in zip(_FIELDS, here_row, there_row, strict=True):
                if field not in _SHARED and ours != other_s:
                    raise ValueError(
                        f"{axis}: rank {rank}, operation {k} ({here_row[1]}): "
                        f"{field} {ours} with {axis} {here}, and {other_s} with {there}"
                    )
        program, second = programs[number], beside.programs[beside.program_of[like]]
        share = there * (here - target) / (target * (there - here))
        new = {
            field: getattr(program, field)
            + (getattr(program, field) - getattr(second, field)) * share
            for field in ("seconds", "flops", "bytes")
        }
        for field, figures in new.items():
            if (figures < 0).any():
                k = int((figures < 0).argmax())
                raise ValueError(
                    f"{axis}: operation {k} ({mine[k][1]}): its {field} would be below 0 with {axis} {target}"
                )
        new["bytes"] = frozen(np.rint(new["bytes"]).astype(np.int64))
        programs[number] = replace(program, **new)
    return replace(workload, programs=tuple(programs))


def grown(
    workload: Workload,
    grid: Grid,
    target: Grid,
    besides: Sequence[Workload] = (),
    sharded: Collection[str] = (),
) -> Workload:
    """Return the workload of ``grid`` as one of ``target``.

    ``besides``: recordings of the same training of other sizes, each of which differs in one kind of
    parallelism; ``sharded`` as of :func:`widened`. Raises ValueError naming what the recordings do not show.
    """
    if target.tp != grid.tp and target.ep != grid.ep:
        raise ValueError(
            "tp and ep at once: widen the one, then the other, with recordings beside for each"
        )
    for axis in ("tp", "ep", "dp"):
        count = getattr(target, axis)
        if count == getattr(grid, axis):
            continue
        if count % getattr(grid, axis):
            raise ValueError(
                f"{axis}: {count} is no multiple of the {getattr(grid, axis)} of the recording"
            )
        grids = [(recording, grid_of(recording)) for recording in besides]
        fitting = [
            pair
            for pair in grids
            if replace(pair[1], **{axis: getattr(grid, axis)}) == grid != pair[1]
        ]
        if fitting:
            workload = divided(workload, grid, *fitting[0], axis, count)
        elif axis != "dp":
            raise ValueError(
                f"{axis}: one recording does not say what its ranks divide among them; "
                f"give one of {grid} but another {axis} beside it"
            )
        workload = widened(
            workload, count, grid.axis(axis), () if fitting else sharded, axis
        )
        grid = replace(grid, **{axis: count})
    return deepened(workload, grid.pp, target.pp)


#: What of an operation may depend on how many ranks share it, or is otherwise told of ranks.
_SHARED = frozenset({"seconds", "FLOPs", "bytes", "ranks"})


def widened(
    workload: Workload,
    target: int,
    replicas: Replicas,
    sharded: Collection[str] = (),
    axis: str = "dp",
) -> Workload:
    """Return the workload with ``target`` replicas, a multiple of those that it has.

    ``sharded``: names of computations and memory operations that replicas share out, as ZeRO's optimiser.
    ``axis``: what makes them; those of tp and ep are ranks that divide a model. Raises ValueError naming a
    group that crosses some replicas and not all, or a collective that is written for as many ranks as its
    group has now.
    """
    dp, what = target, _WORDS[axis]
    if dp < replicas.count or dp % replicas.count:
        raise ValueError(
            f"{dp} {what} are no multiple of the {replicas.count} of the recording"
        )
    if replicas.count == 1 and dp > 1:
        raise ValueError(
            f"a single {what[:-1]}: nothing in the recording says what {what} send to each other"
        )
    copies = dp // replicas.count
    _check_grid(workload, replicas, axis)
    places = np.stack(
        [replicas.widened(np.arange(workload.ranks), c, copies) for c in range(copies)]
    )
    groups: list[IntArray] = []
    number = np.full((copies, len(workload.groups)), -1)
    for index, group in enumerate(workload.groups):
        crossing = _crosses(replicas, group)
        for copy in range(copies):
            number[copy, index] = len(groups) - (crossing and copy > 0)
            if not crossing:
                groups.append(frozen(places[copy, group]))
            elif copy == 0:
                met = places[:, group].ravel()
                groups.append(
                    frozen(np.sort(met) if (np.diff(group) > 0).all() else met)
                )
    programs = tuple(
        _shared_out(workload, program, sharded, copies) for program in workload.programs
    )
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
            name=f"{workload.name}, widened to {axis} {dp}",
            ranks=ranks,
            programs=programs,
            program_of=frozen(program_of),
            groups=tuple(groups),
            communicators=frozen(communicators),
            peers=frozen(peers),
        )
    )


def first_difference(workload: Workload, other: Workload) -> str | None:
    """Return the first difference of two workloads, in one line; None if all ranks do the same.

    Compared are each rank's operations in their order: kind, name, seconds, FLOPs, bytes, the operations
    before them, the stream, and the ranks that they meet.
    """
    if workload.ranks != other.ranks:
        return f"{workload.ranks} ranks, and {other.ranks}"
    for rank in range(workload.ranks):
        mine, theirs = list(_told(workload, rank)), list(_told(other, rank))
        if len(mine) != len(theirs):
            return f"rank {rank}: {len(mine)} operations, and {len(theirs)}"
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            for field, ours, its in zip(_FIELDS, a, b, strict=True):
                if ours != its:
                    return f"rank {rank}, operation {number} ({a[1]}): {field} {ours}, and {its}"
    return None


_FIELDS = (
    "kind",
    "name",
    "stream",
    "seconds",
    "FLOPs",
    "bytes",
    "collective",
    "ranks",
    "tag",
    "after",
)


def _told(workload: Workload, rank: int) -> Iterator[tuple[Any, ...]]:
    """Yield the operations of a rank as ``_FIELDS``, slots replaced by the ranks that they stand for."""
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
            sorted(
                program.after[
                    program.after_offsets[k] : program.after_offsets[k + 1]
                ].tolist()
            ),
        )


def _shared_out(
    workload: Workload, program: Program, sharded: Collection[str], copies: int
) -> Program:
    alone = (program.kind == Kind.COMPUTE) | (program.kind == Kind.MEMORY)
    named = np.isin(
        program.name, [n for n, name in enumerate(workload.names) if name in sharded]
    )
    parts = np.where(alone & named, copies, 1)
    return replace(
        program,
        seconds=program.seconds / parts,
        flops=program.flops / parts,
        bytes=frozen(-(-program.bytes // parts)),
    )


def _mapped(new: IntArray, old: IntArray) -> IntArray:
    """Return ``new[old]``, and -1 where ``old`` is -1."""
    return np.where(old < 0, -1, np.append(new, -1)[old])


def _crosses(replicas: Replicas, group: IntArray) -> bool:
    """Return whether a group spans all replicas rather than one. Raises ValueError if it spans some."""
    met = len(np.unique(replicas.of(group)))
    if met not in (1, replicas.count):
        raise ValueError(
            f"the group {group.tolist()} is of {met} of {replicas.count} replicas: check tp, pp, ep"
        )
    return met > 1


#: What the ranks along an axis are called.
_WORDS = {
    "dp": "replicas",
    "tp": "tensor-parallel ranks",
    "ep": "expert-parallel ranks",
}


def _check_grid(workload: Workload, replicas: Replicas, axis: str) -> None:
    """Raise ValueError if traffic does not fit the replicas, or cannot grow with them."""
    own = replicas.of(np.arange(workload.ranks))
    crossing = (workload.peers >= 0) & (own[workload.peers] != own[:, None])
    if crossing.any():
        rank, slot = np.argwhere(crossing)[0].tolist()
        peer = int(workload.peers[rank, slot])
        raise ValueError(
            f"rank {rank} sends to or hears rank {peer} of another replica: check tp, pp, ep"
        )
    for rank, slot in _used(workload):
        group = workload.groups[workload.communicators[rank, slot]]
        if not _crosses(replicas, group):
            if (
                axis == "dp"
                and replicas.count > 1
                and len(group) > 1
                and _between_replicas(workload, rank, slot)
            ):
                raise ValueError(
                    f"the ranks {group.tolist()} of dp are of one replica: check tp, pp, ep"
                )
            continue
        program = workload.programs[workload.program_of[rank]]
        mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
        for k in np.flatnonzero(mine).tolist():
            what = workload.collectives[int(program.collective[k])]
            if what.sizes is not None or what.own is not None:
                name = workload.names[int(program.name[k])]
                raise ValueError(
                    f"{name}: its {what.kind} is written for just the ranks of its group"
                )


def _used(workload: Workload) -> Iterator[tuple[int, int]]:
    """Yield a rank of each program and group, with each communicator slot that it uses."""
    seen: set[tuple[int, int, int]] = set()
    for rank, number in enumerate(workload.program_of.tolist()):
        program = workload.programs[number]
        for slot in np.unique(program.slot[program.kind == Kind.COLLECTIVE]).tolist():
            key = (number, slot, int(workload.communicators[rank, slot]))
            if key not in seen:
                seen.add(key)
                yield rank, slot


def _between_replicas(workload: Workload, rank: int, slot: int) -> bool:
    return bool(_purposes(workload, rank, slot) & BETWEEN_REPLICAS)


def _purposes(workload: Workload, rank: int, slot: int) -> set[str]:
    """Return the first words of the names of what a rank does on a communicator."""
    program = workload.programs[workload.program_of[rank]]
    mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
    return {
        workload.names[which].partition(" ")[0]
        for which in np.unique(program.name[mine]).tolist()
    }
