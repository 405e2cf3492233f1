"""Summarise a workload: operations, bytes by purpose, groups by size."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np

from ringlight.fabric.steps import FloatArray, IntArray
from ringlight.workloads.graph import Collective, Kind, Program, Workload

T = TypeVar("T")
#: What was called if that is no collective.
MESSAGE = "message"
#: First words of names that say what communication is for: kinds of parallelism, and parts of models.
PURPOSES = ("dp", "edp", "tp", "pp", "ep", "embedding", "tables", "mp")
#: Times its bytes that all ranks of a group together send at least, over the group's ranks less one.
SENT = {"all-reduce": 2}


class TrafficSummary(NamedTuple):
    """Traffic of one purpose: operations, bytes of all ranks, and bytes of the rank that sends most."""

    operations: int
    sent: int
    most: float


@dataclass(frozen=True)
class Summary:
    """``kinds`` and ``collectives``: operations of all ranks. ``traffic`` by purpose and by what was called,
    a kind of collective or "message". ``groups``: how many there are of each size.

    ``seconds`` [ranks]: of computation and memory, NaN if they are not known; ``flops`` of all ranks.
    """

    name: str
    ranks: int
    programs: int
    streams: tuple[str, ...]
    operations: int
    kinds: dict[str, int]
    collectives: dict[str, int]
    traffic: dict[tuple[str, str], TrafficSummary]
    groups: dict[int, int]
    flops: float
    seconds: FloatArray


def summary(workload: Workload) -> Summary:
    """Return everything that ``Summary`` has, without looking at ranks one by one."""
    ranks = np.bincount(workload.program_of, minlength=len(workload.programs))
    kinds: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    flops, seconds = 0.0, np.zeros(workload.ranks)
    for number, (program, count) in enumerate(
        zip(workload.programs, ranks.tolist(), strict=True)
    ):
        for kind in Kind:
            kinds[kind.name.lower()] += int((program.kind == kind).sum()) * count
        called = program.collective[program.kind == Kind.COLLECTIVE]
        for which, calls in zip(
            *(part.tolist() for part in np.unique(called, return_counts=True)),
            strict=True,
        ):
            collectives[workload.collectives[which].kind] += calls * count
        flops += float(program.flops.sum()) * count
        takes_time = np.isin(program.kind, (Kind.COMPUTE, Kind.MEMORY))
        seconds[workload.program_of == number] = program.seconds[takes_time].sum()
    return Summary(
        workload.name,
        workload.ranks,
        len(workload.programs),
        workload.streams,
        workload.operations,
        {kind: count for kind, count in kinds.items() if count},
        dict(collectives),
        _counted(workload, lambda part: (part.purpose, part.called)),
        dict(sorted(Counter(len(group) for group in workload.groups).items())),
        flops,
        seconds,
    )


def traffic(workload: Workload) -> dict[str, TrafficSummary]:
    """Return the traffic of the ranks by purpose.

    A collective counts as the least that any algorithm must send. An all-reduce of S bytes among n ranks: 2
    (n - 1) / n S by each; an all-gather, a reduce-scatter, an all-to-all (n - 1) / n S; a broadcast (n - 1) S
    by all. An unequal split counts as an equal one; sizes that are given count as they are. Purposes are
    those of ``PURPOSES``; where a name begins otherwise, the collective's kind and "message".
    """
    return _counted(workload, lambda part: part.purpose)


class _Part(NamedTuple):
    """Traffic of one purpose and program: bytes of each of its ``ranks``, and their exact total.

    ``called``: a kind of collective, or "message".
    """

    purpose: str
    called: str
    ranks: IntArray
    operations: int
    each: FloatArray
    total: Fraction


def _counted(workload: Workload, key: Callable[[_Part], T]) -> dict[T, TrafficSummary]:
    operations: Counter[T] = Counter()
    total: defaultdict[T, Fraction] = defaultdict(Fraction)
    each: defaultdict[T, FloatArray] = defaultdict(lambda: np.zeros(workload.ranks))
    for part in _parts(workload):
        name = key(part)
        operations[name] += part.operations
        total[name] += part.total
        each[name][part.ranks] += part.each
    return {
        name: TrafficSummary(
            operations[name], round(total[name]), float(each[name].max())
        )
        for name in operations
    }


def _parts(workload: Workload) -> Iterator[_Part]:
    purposes = np.array([_purpose(name) for name in workload.names], dtype=np.int64)
    for number, program in enumerate(workload.programs):
        ranks = np.flatnonzero(workload.program_of == number)
        for kind in (Kind.SEND, Kind.COLLECTIVE):
            mine = np.flatnonzero(program.kind == kind)
            if not len(mine):
                continue
            columns = (purposes[program.name], program.slot, program.collective)
            rows, where = np.unique(
                np.stack([c[mine] for c in columns]), axis=1, return_inverse=True
            )
            for k, (purpose, slot, which) in enumerate(rows.T.tolist()):
                chosen = mine[where.ravel() == k]
                size, calls = int(program.bytes[chosen].sum()), len(chosen) * len(ranks)
                if kind == Kind.SEND:
                    each, total = (
                        np.full(len(ranks), float(size)),
                        Fraction(size * len(ranks)),
                    )
                    name = PURPOSES[purpose] if purpose >= 0 else MESSAGE
                    yield _Part(name, MESSAGE, ranks, calls, each, total)
                    continue
                what = workload.collectives[which]
                groups = workload.communicators[ranks, slot]
                if what.sizes is None:
                    each, total = _divided(
                        workload, groups, size * SENT.get(what.kind, 1)
                    )
                else:
                    each = len(chosen) * _given(workload, what, ranks, groups)
                    total = Fraction(int(each.sum()))
                name = PURPOSES[purpose] if purpose >= 0 else what.kind
                yield _Part(name, what.kind, ranks, calls, each, total)


def _divided(
    workload: Workload, groups: IntArray, size: int
) -> tuple[FloatArray, Fraction]:
    """Return ``size`` (n - 1) / n by each rank, n being the ranks of its group."""
    n = np.array([len(group) for group in workload.groups])[groups]
    counted = zip(
        *(part.tolist() for part in np.unique(n, return_counts=True)), strict=True
    )
    return size * (n - 1) / n, sum(
        (Fraction(size * (ranks - 1) * c, ranks) for ranks, c in counted), Fraction()
    )


def _given(
    workload: Workload, what: Collective, ranks: IntArray, groups: IntArray
) -> FloatArray:
    """Return the bytes that each rank sends to others in an all-to-all-v with stated sizes."""
    between = np.array(what.sizes, dtype=np.float64)
    away = between.sum(axis=1) - np.diag(between)
    pairs = zip(ranks.tolist(), groups.tolist(), strict=True)
    return np.array(
        [away[workload.groups[group].tolist().index(rank)] for rank, group in pairs]
    )


def purposes(workload: Workload, program: Program) -> list[str]:
    """Return the purpose of each operation of a program: "compute", "memory", or as in :func:`traffic`."""
    of_name = [_purpose(name) for name in workload.names]
    columns = (
        program.kind.tolist(),
        program.name.tolist(),
        program.collective.tolist(),
    )
    names = []
    for kind, name, which in zip(*columns, strict=True):
        called = kind_named(workload, kind, which)
        if kind in (Kind.SEND, Kind.RECEIVE):
            called = MESSAGE
        local = kind in (Kind.COMPUTE, Kind.MEMORY)
        names.append(called if local or of_name[name] < 0 else PURPOSES[of_name[name]])
    return names


def kind_named(workload: Workload, kind: int, collective: int) -> str:
    """Return the kind of an operation: "compute", "send" and so on, or its collective's kind."""
    return (
        workload.collectives[collective].kind
        if kind == Kind.COLLECTIVE
        else Kind(kind).name.lower()
    )


def _purpose(name: str) -> int:
    """Return the index of the purpose that an operation's name begins with, -1 for none of them."""
    first = name.partition(" ")[0]
    return PURPOSES.index(first) if first in PURPOSES else -1
