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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringlight.fabric.kinds import collective_steps
from ringlight.fabric.steps import IntArray, Steps, WrittenSteps, check_ranks, frozen

FloatArray = npt.NDArray[np.float64]
#: Most bytes of one operation: below it, sums and floats are exact enough; a larger figure is a mistake.
TOO_MUCH = 1 << 50


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
        raise ValueError(f"operation {unknown[0]} ({name}) has no seconds; that needs a device")
    followers: list[list[int]] = [[] for _ in range(len(program))]
    counts: list[int] = []
    last: dict[int, int] = {}
    offsets, after = program.after_offsets.tolist(), program.after.tolist()
    for k, stream in enumerate(program.stream.tolist()):
        before = {*after[offsets[k] : offsets[k + 1]], *([last[stream]] if stream in last else ())}
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


class Handle(NamedTuple):
    """An operation of a program under construction."""

    number: int


#: The columns of a :class:`Program` up to its tag, of one operation.
_Row = tuple[int, int, int, float, float, int, int, int, int]
# Millions of them are written, and numpy takes three times as long for members of an enumeration.
_COMPUTE, _MEMORY, _COLLECTIVE = int(Kind.COMPUTE), int(Kind.MEMORY), int(Kind.COLLECTIVE)
_SEND, _RECEIVE = int(Kind.SEND), int(Kind.RECEIVE)


@dataclass
class Writer:
    """A program under construction; every method returns the operation that it added."""

    book: Book
    rows: list[_Row] = field(default_factory=list)
    edges: list[tuple[int, ...]] = field(default_factory=list)

    def compute(
        self, name: str, *, seconds: float | None = None, flops: float = 0.0, stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:  # fmt: skip
        """Add a computation of ``seconds``, or of so many ``flops``. Return the operation."""
        known = np.nan if seconds is None else seconds
        return self._add((_COMPUTE, *self._named(stream, name), known, flops, 0, -1, -1, 0), after)

    def memory(
        self, name: str, size: int, *, stream: str = "main", after: Iterable[Handle | None] = ()
    ) -> Handle:
        """Add an operation that reads or writes ``size`` bytes of memory. Return the operation."""
        return self._add((_MEMORY, *self._named(stream, name), np.nan, 0.0, size, -1, -1, 0), after)

    def collective(
        self, name: str, what: Collective, size: int, slot: int, *, stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:  # fmt: skip
        """Add ``what`` over ``size`` bytes with the group in communicator slot ``slot``.

        Return the operation.
        """
        which = self.book.collective(what)
        row = (_COLLECTIVE, *self._named(stream, name), np.nan, 0.0, size, which, slot, 0)
        return self._add(row, after)

    def send(
        self, name: str, size: int, slot: int, tag: int = 0, *, stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:  # fmt: skip
        """Add a send of ``size`` bytes to the rank in peer slot ``slot``. Return the operation."""
        return self._add((_SEND, *self._named(stream, name), np.nan, 0.0, size, -1, slot, tag), after)

    def receive(
        self, name: str, size: int, slot: int, tag: int = 0, *, stream: str = "main",
        after: Iterable[Handle | None] = (),
    ) -> Handle:  # fmt: skip
        """Add a receive of ``size`` bytes from the rank in peer slot ``slot``. Return the operation."""
        return self._add((_RECEIVE, *self._named(stream, name), np.nan, 0.0, size, -1, slot, tag), after)

    def _named(self, stream: str, name: str) -> tuple[int, int]:
        return self.book.stream(stream), self.book.name(name)

    def _add(self, row: _Row, after: Iterable[Handle | None]) -> Handle:
        self.rows.append(row)
        self.edges.append(
            tuple({handle.number: None for handle in after if handle is not None}) if after else ()
        )
        return Handle(len(self.rows) - 1)

    def done(self) -> Program:
        """Return the program as arrays."""
        columns = list(zip(*self.rows, strict=True)) if self.rows else [()] * 9
        kind, stream, name, seconds, flops, size, collective, slot, tag = columns
        offsets = np.cumsum([0, *map(len, self.edges)])
        after = [edge for edges in self.edges for edge in edges]
        return Program(
            np.array(kind, dtype=np.int8), frozen(stream), frozen(name),
            np.array(seconds, dtype=np.float64), np.array(flops, dtype=np.float64),
            frozen(size), frozen(collective), frozen(slot), frozen(tag), frozen(offsets), frozen(after),
        )  # fmt: skip


class Book:
    """Names, streams, collectives and groups that the programs of one workload share while they are
    written.
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._collectives: dict[Collective, int] = {}
        self._groups: dict[tuple[int, ...], int] = {}

    def name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def stream(self, name: str) -> int:
        return self._streams.setdefault(name, len(self._streams))

    def collective(self, what: Collective) -> int:
        return self._collectives.setdefault(what, len(self._collectives))

    def group(self, ranks: Sequence[int]) -> int:
        """Return the number of the group of these ranks, in this order."""
        return self._groups.setdefault(tuple(ranks), len(self._groups))

    def workload(
        self, name: str, programs: Sequence[Program], program_of: npt.ArrayLike,
        communicators: npt.ArrayLike, peers: npt.ArrayLike,
    ) -> Workload:  # fmt: skip
        """Return the workload that was written, checked. Raises ValueError if :func:`check` does."""
        of = frozen(program_of)
        return check(
            Workload(
                name, len(of), tuple(programs), of, tuple(frozen(g) for g in self._groups),
                frozen(np.reshape(communicators, (len(of), -1))), frozen(np.reshape(peers, (len(of), -1))),
                tuple(self._collectives), tuple(self._names), tuple(self._streams) or ("main",),
            )
        )  # fmt: skip


def data_parallel_loop(ranks: int, compute_s: float, gradient_bytes: int, algorithm: str = "") -> Workload:
    """Return a workload: ranks compute for ``compute_s`` seconds, then all-reduce ``gradient_bytes``."""
    book = Book()
    writer = Writer(book)
    done = writer.compute("iteration", seconds=compute_s)
    groups = np.full((ranks, 1), -1)
    if ranks > 1:
        writer.collective(
            "dp gradients", Collective("all-reduce", algorithm), gradient_bytes, 0, after=[done]
        )
        groups[:] = book.group(range(ranks))
    none = np.empty((ranks, 0))
    return book.workload("data-parallel loop", [writer.done()], np.zeros(ranks), groups, none)


def check(workload: Workload) -> Workload:
    """Return the workload, if it can be run. Raises ValueError naming rank and operation.

    The check does not cover whether all ranks come to all of their operations: the run shows that.
    """
    for number, program in enumerate(workload.programs):
        _check_program(workload, number, program)
    members = [
        np.full(len(group), number) * workload.ranks + group for number, group in enumerate(workload.groups)
    ]
    member = np.concatenate([*members, np.zeros(0, dtype=np.int64)])
    calls: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number, program in enumerate(workload.programs):
        ranks = np.flatnonzero(workload.program_of == number)
        for slot in _slots(program, Kind.COLLECTIVE):
            groups = _filled(workload.communicators, ranks, slot)
            out = ranks[(groups < 0) | ~np.isin(groups * workload.ranks + ranks, member)]
            if len(out):
                raise ValueError(f"rank {out[0]}: it is in no group for communicator slot {slot}")
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
    slots = np.unique(program.slot[(program.kind == Kind.SEND) | (program.kind == Kind.RECEIVE)])
    known = (slots >= 0) & (slots < workload.peers.shape[1])
    # The last column is of slots that there are not.
    table = np.column_stack((workload.peers[ranks], np.full(len(ranks), -1)))
    peers = table[:, np.where(known, slots, -1)]
    wrong = (peers < 0) | (peers >= workload.ranks) | (peers == ranks[:, None])
    if wrong.any():
        k = int(wrong.any(axis=0).argmax())
        raise ValueError(f"rank {ranks[wrong[:, k].argmax()]}: it has no peer for slot {slots[k]}")


def _check_program(workload: Workload, number: int, program: Program) -> None:
    def name(k: int) -> str:
        return f"program {number}, operation {k} ({workload.names[int(program.name[k])]})"

    owner = np.repeat(np.arange(len(program)), np.diff(program.after_offsets))
    late = np.flatnonzero((program.after >= owner) | (program.after < 0))
    if len(late):
        k = int(owner[late[0]])
        raise ValueError(
            f"{name(k)}: it comes after operation {int(program.after[late[0]])}, which is no earlier one"
        )
    low = (program.bytes < 0) | ~(program.flops >= 0) | (program.seconds < 0)
    high = (program.bytes >= TOO_MUCH) | ~(program.flops < np.inf) | (program.seconds == np.inf)
    for bad, rule in ((low, "0 or more"), (high, f"finite, bytes below {TOO_MUCH}")):
        if bad.any():
            raise ValueError(f"{name(int(bad.argmax()))}: bytes, flops and seconds must be {rule}")


def _check_calls(workload: Workload, calls: dict[tuple[int, int], list[tuple[int, int, int]]]) -> None:
    """Check that all ranks of a group make the same calls on it, from one stream each."""
    made: dict[tuple[int, int], tuple[bytes, int]] = {}
    for (group, slot), callers in calls.items():
        missing = set(workload.groups[group].tolist()) - {rank for rank, _, _ in callers}
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
                content = np.stack((program.collective[mine], program.bytes[mine])).tobytes()
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
        if sizes is not None and (len(sizes) != ranks or any(len(row) != ranks for row in sizes)):
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
            which = [numbers.setdefault(size_runs, len(numbers)) for size_runs in sizes.values()]
            own, peers = np.array(ranks)[:, None], workload.peers[np.array(ranks)][:, slots]
            pair = (own, peers) if kind == Kind.SEND else (peers, own)
            columns = np.broadcast_arrays(*pair, tags, np.array(which, dtype=np.int64))
            tables.append(np.stack(columns, axis=-1).reshape(-1, 4))
    sent, received = (np.concatenate(tables)[np.lexsort(np.concatenate(tables).T[::-1])] for tables in ends)
    if np.array_equal(sent, received):
        return
    size_runs = list(numbers)
    outs, backs = ({(*end,): size_runs[k] for *end, k in rows.tolist()} for rows in (sent, received))
    for end in sorted(outs | backs):
        out, other = outs.get(end, b""), backs.get(end, b"")
        if out != other:
            source, destination, tag = end
            counts = [len(sizes) // np.dtype(np.int64).itemsize for sizes in (out, other)]
            detail = (
                f"{counts[0]} sends and {counts[1]} receives" if counts[0] != counts[1]
                else "their sizes differ"
            )  # fmt: skip
            raise ValueError(f"messages of tag {tag} from rank {source} to rank {destination}: {detail}")


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
                first.setdefault(peer, slot) for slot, peer in enumerate(workload.peers[rank].tolist())
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
    starts = np.flatnonzero(np.diff(slots, prepend=-1) | np.diff(tags, prepend=tags[:1] - 1))
    return {
        (int(slots[start]), int(tags[start])): sizes[start:end].tobytes()
        for start, end in pairwise([*starts.tolist(), len(sizes)])
    }
