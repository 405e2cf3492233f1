"""Widens a workload to more pipeline stages: a deeper model, whose stages do what recorded ones do.

The first and the last stage stay, and what is added is like the stages between them. A stage's program is cut
into turns, the passes of one micro-batch forward or backward, at what it sends and receives. The turns of a
stage of the deeper pipeline come in the order that its schedule has there (``pipeline``), so a recording must
show which one it follows.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ringlight.extensions.models.pipeline import Turn, schedule
from ringlight.fabric.steps import IntArray, frozen
from ringlight.workloads.graph import Kind, Program, Workload
from ringlight.workloads.graph_checks import check

#: Whether it is a pass forward, how many of these came before, its first operation, and the one behind it.
Cut = tuple[bool, int, int, int]
_NUMBERED = re.compile(r"\d+")


def deepened(workload: Workload, stages: int, target: int) -> Workload:
    """Return the workload with ``target`` pipeline stages in place of ``stages``, blocks of ranks in order.

    Raises ValueError for fewer stages, and naming what the recording does not show: no stage between the
    first and the last, stages between that differ, an order of turns that is no known schedule's.
    """
    if target == stages:
        return workload
    if target < stages:
        raise ValueError(
            f"pp: {target} stages are fewer than the {stages} of the recording"
        )
    if stages < 3:
        raise ValueError(
            f"pp: a recording of {stages} stages shows none between the first and the last; record 3 or more"
        )
    inner = workload.ranks // stages
    _check_alike(workload, stages, inner)
    name = _schedule(workload, stages, inner)
    recorded = [0, *[1] * (target - 2), stages - 1]
    programs: list[Program] = []
    program_of = np.empty(target * inner, dtype=np.int64)
    groups: dict[tuple[int, ...], int] = {}
    communicators = np.full((target * inner, workload.communicators.shape[1]), -1)
    peers = np.full((target * inner, workload.peers.shape[1]), -1)
    names = list(workload.names)
    own: dict[tuple[int, int], int] = {}
    for stage, like in enumerate(recorded):
        moved = stage - like
        for rank in range(inner):
            old, new = like * inner + rank, stage * inner + rank
            which = int(workload.program_of[old])
            if (stage, which) not in own:
                own[stage, which] = len(programs)
                turned = _reordered(
                    workload,
                    old,
                    stages,
                    inner,
                    schedule(name, target, _count(workload, old), 1)[stage],
                )
                programs.append(
                    _renamed(turned, names, moved * _blocks(workload, inner))
                )
            program_of[new] = own[stage, which]
            for slot, group in enumerate(workload.communicators[old].tolist()):
                if group >= 0:
                    ranks = _group(
                        workload.groups[group], like, stage, stages, target, inner
                    )
                    communicators[new, slot] = groups.setdefault(ranks, len(groups))
            for slot, peer in enumerate(workload.peers[old].tolist()):
                if peer >= 0:
                    peers[new, slot] = _peer(old, peer, stage, stages, target, inner)
    return check(
        replace(
            workload,
            name=f"{workload.name}, widened to pp {target}",
            ranks=target * inner,
            programs=tuple(programs),
            program_of=frozen(program_of),
            groups=tuple(frozen(ranks) for ranks in groups),
            communicators=frozen(communicators),
            peers=frozen(peers),
            names=tuple(names),
        )
    )


def _steps(workload: Workload, rank: int, inner: int) -> list[tuple[int, bool, bool]]:
    """Return messages of a rank in order: operation, whether it comes in, whether it is of a forward pass."""
    program = workload.programs[int(workload.program_of[rank])]
    steps = []
    for k in np.flatnonzero(
        (program.kind == Kind.SEND) | (program.kind == Kind.RECEIVE)
    ).tolist():
        peer = int(workload.peers[rank, int(program.slot[k])])
        way = (peer - rank) // inner
        if (peer - rank) % inner or way not in (1, -1):
            raise ValueError(
                f"pp: rank {rank} sends to or hears rank {peer}, which is not on the next stage"
            )
        comes = int(program.kind[k]) == Kind.RECEIVE
        steps.append((k, comes, (way < 0) == comes))
    return steps


def _turns(workload: Workload, rank: int, inner: int) -> list[Cut]:
    """Return the turns of a rank, in order.

    A turn begins where the rank receives and ends where it sends. The first stage receives nothing before a
    forward pass: all of these are as long as the first. The last sends nothing behind one, and need not be
    cut: its order does not depend on how many stages there are.
    """
    program = workload.programs[int(workload.program_of[rank])]
    messages = _steps(workload, rank, inner)
    starts: list[tuple[int, bool]] = []
    if rank < inner:
        sent = [k for k, comes, forward in messages if forward and not comes]
        if not sent:
            raise ValueError("pp: the first stage sends nothing on")
        starts += [(k - sent[0], True) for k in sent]
    starts += [(k, forward) for k, comes, forward in messages if comes]
    starts.sort()
    count = {True: 0, False: 0}
    turns = []
    for (start, forward), (end, _) in pairwise([*starts, (len(program), True)]):
        turns.append((forward, count[forward], start, end))
        count[forward] += 1
    if not turns or turns[0][2] != 0 or count[True] != count[False]:
        raise ValueError(
            f"pp: what rank {rank} does cannot be cut into passes forward and backward"
        )
    return turns


def _count(workload: Workload, rank: int) -> int:
    """Return the number of micro-batches: the forward passes of a stage."""
    program = workload.programs[int(workload.program_of[rank])]
    # As many messages of either kind, and half of them each way; the ends have one neighbour.
    slots = program.slot[np.isin(program.kind, (Kind.SEND, Kind.RECEIVE))]
    return len(slots) // (2 * len(np.unique(workload.peers[rank][slots])))


def _schedule(workload: Workload, stages: int, inner: int) -> str:
    """Return the schedule that the recorded stages follow."""
    names = {"gpipe", "1f1b"}
    for stage in range(stages - 1):
        turns = _turns(workload, stage * inner, inner)
        batches = sum(forward for forward, *_ in turns)
        for name in sorted(names):
            # A backward pass is named by how many came before: GPipe's take the last micro-batch first.
            order = [turn.forward for turn in schedule(name, stages, batches, 1)[stage]]
            if [forward for forward, *_ in turns] != order:
                names.discard(name)
    if not names:
        raise ValueError(
            "pp: the order of the passes is neither that of GPipe nor that of 1F1B"
        )
    # With one micro-batch both are one.
    return min(names)


def _reordered(
    workload: Workload, rank: int, stages: int, inner: int, order: list[Turn]
) -> Program:
    """Return the program of a rank, its passes in another order."""
    program = workload.programs[int(workload.program_of[rank])]
    if rank // inner == stages - 1:
        return program
    turns = _turns(workload, rank, inner)
    taken = {
        way: iter([turn for turn in turns if turn[0] == way]) for way in (True, False)
    }
    chosen = [next(taken[turn.forward]) for turn in order]
    old = np.concatenate([np.arange(start, end) for _, _, start, end in chosen])
    new = np.empty(len(old), dtype=np.int64)
    new[old] = np.arange(len(old))
    after = [
        new[program.after[program.after_offsets[k] : program.after_offsets[k + 1]]]
        for k in old.tolist()
    ]
    cut = np.repeat(
        [start for _, _, start, _ in turns], [end - start for _, _, start, end in turns]
    )
    owner = np.repeat(np.arange(len(program)), np.diff(program.after_offsets))
    if len(across := np.flatnonzero(cut[owner] != cut[program.after])):
        k = int(owner[across[0]])
        what = workload.names[int(program.name[k])]
        raise ValueError(
            f"pp: rank {rank}, operation {k} ({what}) comes after one of another pass"
        )
    columns = (
        "kind",
        "stream",
        "name",
        "seconds",
        "flops",
        "bytes",
        "collective",
        "slot",
        "tag",
    )
    moved = {column: getattr(program, column)[old] for column in columns}
    return replace(
        program,
        **moved,
        after_offsets=frozen(np.cumsum([0, *map(len, after)])),
        after=frozen(
            np.concatenate([*after, np.zeros(0, dtype=np.int64)]).astype(np.int64)
        ),
    )


def _check_alike(workload: Workload, stages: int, inner: int) -> None:
    """Raise ValueError if the stages between the first and the last differ."""
    for stage in range(2, stages - 1):
        first, other = (
            [_sizes(workload, place * inner + rank, inner) for rank in range(inner)]
            for place in (1, stage)
        )
        if first != other:
            raise ValueError(
                f"pp: stages 1 and {stage} differ, so it is not known what a further one does"
            )


def _sizes(workload: Workload, rank: int, inner: int) -> list[tuple[bool, int, bytes]]:
    """Return the operations of each pass of a rank, sorted, whichever pass comes first."""
    program = workload.programs[int(workload.program_of[rank])]
    seconds = np.nan_to_num(program.seconds, nan=-1.0)
    columns = np.stack(
        (program.kind, program.bytes, program.collective, program.flops, seconds)
    )
    turns = _turns(workload, rank, inner)
    return sorted(
        (forward, batch, columns[:, start:end].tobytes())
        for forward, batch, start, end in turns
    )


def _group(
    group: IntArray, like: int, stage: int, stages: int, deeper: int, inner: int
) -> tuple[int, ...]:
    """Return the ranks of a recorded group, as the group of ``stage``."""
    of = group // inner
    met = set(of.tolist())
    if met == {like}:
        return tuple((group + (stage - like) * inner).tolist())
    if met == {0, stages - 1}:
        return tuple(
            np.where(of == 0, group, group + (deeper - stages) * inner).tolist()
        )
    if met == set(range(stages)):
        rows = np.stack([group[of == place] - place * inner for place in range(stages)])
        if (rows == rows[0]).all():
            return tuple(
                (np.arange(deeper)[:, None] * inner + rows[0]).ravel().tolist()
            )
    raise ValueError(f"pp: the group {group.tolist()} is of some stages and not of all")


def _peer(
    rank: int, peer: int, stage: int, stages: int, deeper: int, inner: int
) -> int:
    way = (peer // inner - rank // inner) % stages
    if peer % inner != rank % inner or way not in (1, stages - 1):
        raise ValueError(
            f"pp: rank {rank} sends to or hears rank {peer}, which is not on the next stage"
        )
    return (stage + (1 if way == 1 else -1)) % deeper * inner + peer % inner


def _blocks(workload: Workload, inner: int) -> int:
    """Return how many blocks a stage has by the numbers in the names of its operations."""
    program = workload.programs[int(workload.program_of[inner])]
    names = (workload.names[which] for which in np.unique(program.name).tolist())
    return len({match[0] for name in names if (match := _NUMBERED.search(name))})


def _renamed(program: Program, names: list[str], more: int) -> Program:
    """Return a program whose blocks are numbered ``more`` on."""
    if not more:
        return program
    known = {name: number for number, name in enumerate(names)}
    new = np.arange(len(names))
    for which in np.unique(program.name).tolist():
        name = _NUMBERED.sub(
            lambda match: str(int(match[0]) + more), names[which], count=1
        )
        if name not in known:
            known[name] = len(names)
            names.append(name)
        new[which] = known[name]
    return replace(program, name=frozen(new[program.name]))
