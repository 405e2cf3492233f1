"""Reads a trace's files into columns, these into programs; ranks share equal programs."""

from __future__ import annotations

import gc
import hashlib
import heapq
import json
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ringlight.extensions.chakra.attributes import (
    NAME_FIRST,
    WANTED,
    Ranks,
    attribute_of,
    collective_of,
    group_of,
    members_of,
    message_of,
    number_of,
    process_groups,
    tagged,
    whole,
    work_of,
)
from ringlight.extensions.chakra.names import files_of, groups_beside, name_of
from ringlight.extensions.chakra.schema import Metadata, Node, NodeType
from ringlight.fabric.steps import FloatArray, IntArray, frozen
from ringlight.fabric.text import parse_json
from ringlight.workloads.formats.files import printable, read_bytes, read_text
from ringlight.workloads.graph import Kind, Program, Workload
from ringlight.workloads.graph_writer import Book

#: Nodes of all different files of a trace together.
NODES_LIMIT = 10_000_000
RANKS_LIMIT = 1 << 17
_METADATA = int(NodeType.METADATA)
_MESSAGES = frozenset({int(NodeType.COMM_SEND), int(NodeType.COMM_RECV)})


class _Communicator(NamedTuple):
    """Ranks, or the dimensions of the network along which they are; ``number`` of those of the same ranks."""

    of: Ranks | tuple[bool, ...]
    number: int


Ids = npt.NDArray[np.uint64]


def read(
    path: Path,
    groups: Path | None = None,
    shape: Sequence[int] = (),
    notice: Callable[[str], None] = lambda line: None,
) -> Workload:
    """Return the trace of which ``path`` is a file, or which lies there (``names.files_of``).

    ``groups``: a file of process groups, ``{"1": [0, 1]}``; by default NAME.comm_group.json next to the
    trace, if it exists. ``shape``: ranks along each dimension of the network, the first varying fastest; only
    ``involved_dim`` that names some of them needs it. ``notice``: called with a line if no collective names a
    group of the file that lies next to the trace. Raises ValueError, in one line, also if none names a group
    of a file that was given.
    """
    files = files_of(path)
    if len(files) > RANKS_LIMIT:
        raise ValueError(
            f"{path}: it has {len(files)} ranks, {RANKS_LIMIT} are allowed"
        )
    if shape and math.prod(shape) != len(files):
        raise ValueError(
            f"{path}: it has {len(files)} ranks, not {' × '.join(map(str, shape))}"
        )
    source = groups or groups_beside(files)
    stated = {} if source is None else _groups_of(source, read_text(source), len(files))
    reader = _Reader(Book(), len(files), stated, tuple(shape))
    traces = [reader.trace(file) for file in files]
    if stated and not reader.named:
        unused = f"{source}: no collective of {path} names a group of this file (pg_name, comm_group)"
        if groups is not None:
            raise ValueError(unused)
        notice(unused)
    try:
        return reader.workload(name_of(files[0]), traces)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _groups_of(path: Path, text: str, ranks: int) -> dict[str, Ranks]:
    try:
        stated = parse_json(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = (
            f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        )
        raise ValueError(f"{path}{line}: this is no JSON") from None
    if not isinstance(stated, dict):
        raise ValueError(f"{path}: it must be groups by their names")
    return {
        name: members_of(f"{path}: group {printable(name)}", members, ranks)
        for name, members in stated.items()
    }


@dataclass
class _Trace:
    """One file as columns [operations], by the ids that it uses; equal for files of equal bytes."""

    ids: Ids
    kind: IntArray
    name: IntArray
    seconds: FloatArray
    flops: FloatArray
    bytes: IntArray
    what: IntArray  # collective of the book
    group: IntArray  # index into ``groups``
    own: IntArray  # the rank's end of a message, -1 if not stated
    peer: IntArray
    tag: IntArray
    lane: IntArray  # index into ``lanes``
    owner: IntArray  # [edges] whose
    after: IntArray  # [edges] index of what it comes after
    groups: list[_Communicator] = field(
        default_factory=list
    )  # of booleans: dimensions that take part
    lanes: list[str] = field(default_factory=list)


class _What(NamedTuple):
    """Operation of a node without its id, name, tag and predecessors; few in any trace are different."""

    kind: int = Kind.COMPUTE
    seconds: float = math.nan
    flops: float = 0.0
    bytes: int = 0
    what: int = -1
    group: int = -1
    own: int = -1
    peer: int = -1
    lane: int = 0


@dataclass
class _Columns:
    """A file under way."""

    ids: dict[int, None] = field(default_factory=dict)
    name: array[int] = field(default_factory=lambda: array("q"))
    does: array[int] = field(default_factory=lambda: array("q"))  # index into ``whats``
    tag: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    after: array[int] = field(default_factory=lambda: array("Q"))
    whats: list[_What] = field(default_factory=list)
    groups: dict[_Communicator, int] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)


class _Reader:
    """Reads the files of one trace into one book."""

    def __init__(
        self,
        book: Book,
        ranks: int,
        stated: Mapping[str, Ranks],
        shape: tuple[int, ...],
    ) -> None:
        self._book = book
        self._ranks = ranks
        self._stated = stated
        #: Whether a collective has named one of the stated groups.
        self.named = False
        self._shape = shape
        self._left = NODES_LIMIT
        self._seen: dict[bytes, _Trace] = {}
        self._world = tuple(range(ranks))

    def trace(self, path: Path) -> _Trace:
        """Return the trace of one file; of equal files only the first is parsed."""
        data = read_bytes(path)
        digest = hashlib.sha256(data).digest()
        if digest not in self._seen:
            with _no_collector():
                self._seen[digest] = self._parse(path, data)
        return self._seen[digest]

    def _parse(self, path: Path, data: bytes) -> _Trace:
        columns = _Columns()
        groups = dict(self._stated)
        known: dict[tuple[Any, ...], int] = {}
        ids, after, name_of = columns.ids, columns.after, self._book.name
        for start, message in _messages(path, data):
            try:
                if start == 0:
                    Metadata.FromString(message)
                    continue
                node = Node.FromString(message)
            except DecodeError:
                raise ValueError(
                    f"{path}, byte {start}: this is no message of a Chakra trace"
                ) from None
            if len(ids) == self._left:
                raise ValueError(
                    f"{path}, byte {start}: a trace may have {NODES_LIMIT} nodes"
                )
            number = node.id
            if number in ids:
                raise ValueError(
                    f"{path}, byte {start}: node {number}: there is another one of this id"
                )
            ids[number] = None
            kind, tag = node.type, 0
            attributes = [
                raw
                for raw in node.attr
                if raw.startswith(WANTED) or raw[:1] != NAME_FIRST
            ]
            try:
                if kind in _MESSAGES:
                    attributes, tag = tagged(attributes)
                key = (kind, node.duration_micros, *attributes)
                does = known.get(key)
                if does is None:
                    columns.whats.append(self._what(node, attributes, columns, groups))
                    does = known[key] = len(columns.whats) - 1
                    if kind == _METADATA:
                        known.clear()  # the names of its groups may mean other ones from here on
            except (ValueError, OverflowError) as error:
                detail = (
                    "a number of it is too large"
                    if isinstance(error, OverflowError)
                    else error
                )
                raise ValueError(
                    f"{path}, byte {start}: node {number}: {detail}"
                ) from None
            columns.does.append(does)
            columns.tag.append(tag)
            columns.name.append(name_of(node.name))
            deps = node.data_deps[:]
            if control_deps := node.ctrl_deps:
                deps += control_deps[:]
            after.extend(deps)
            columns.counts.append(len(deps))
        if not ids:
            raise ValueError(f"{path}: it has no nodes")
        self._left -= len(ids)
        return self._trace(path, columns)

    def _what(
        self,
        node: Any,
        attributes: list[bytes],
        columns: _Columns,
        groups: dict[str, Ranks],
    ) -> _What:
        values = dict(map(attribute_of, attributes))
        fields: dict[str, Any]
        kind, lane = node.type, ""
        match kind:
            case NodeType.COMM_SEND | NodeType.COMM_RECV:
                fields = message_of(kind == NodeType.COMM_SEND, values, self._ranks)
            case NodeType.COMP | NodeType.METADATA:
                if kind == _METADATA:
                    groups.update(process_groups(node.inputs.values, self._ranks))
                fields = dict(
                    zip(
                        ("seconds", "flops"),
                        work_of(node.duration_micros, values),
                        strict=True,
                    )
                )
                lane = "cpu" if values.get("is_cpu_op") else "compute"
                if lane == "compute" and type(values.get("stream")) is int:
                    lane = f"stream {values['stream']}"
            case NodeType.COMM_COLL:
                key = _Communicator(
                    self._group(values, groups), whole(values, "communicator", 0)
                )
                collective, size = collective_of(values, self._count(key.of))
                what, group = (
                    self._book.collective(collective),
                    columns.groups.setdefault(key, len(columns.groups)),
                )
                fields = {
                    "kind": Kind.COLLECTIVE,
                    "bytes": size,
                    "what": what,
                    "group": group,
                }
            case NodeType.MEM_LOAD | NodeType.MEM_STORE:
                fields, lane = (
                    {"kind": Kind.MEMORY, "bytes": whole(values, "tensor_size", 0)},
                    "memory",
                )
                if "seconds" in values:
                    fields["seconds"] = number_of(values, "seconds")
            case other:
                raise ValueError(f"{other} is no type of a node")
        if type(values.get("stream")) is str:
            lane = values["stream"]
        if fields.get("bytes", 0) >= 1 << 62:
            raise OverflowError
        return _What(**fields, lane=columns.lanes.setdefault(lane, len(columns.lanes)))

    def _group(
        self, values: Mapping[str, Any], groups: Mapping[str, Ranks]
    ) -> Ranks | tuple[bool, ...]:
        """Return the group of a collective: its ranks, or the network's dimensions along which it goes."""
        attribute, name = group_of(values)
        if name in groups:
            self.named |= name in self._stated
            return groups[name]
        if name not in ("", "0"):
            raise ValueError(
                f"nothing says which ranks {attribute} {printable(name)} has; give a file of process groups "
                "(--groups FILE, in a scenario groups)"
            )
        dims = values.get("involved_dim")
        if dims is None or (isinstance(dims, list) and all(dims)):
            return self._world
        if not isinstance(dims, list) or not all(type(flag) is bool for flag in dims):
            raise ValueError("involved_dim must be a list of booleans")
        if not self._shape:
            raise ValueError(
                "its involved_dim names some dimensions of a network; give its shape (--shape 4x2, in a "
                "scenario shape)"
            )
        along = tuple(dims[: len(self._shape)]) + (False,) * (
            len(self._shape) - len(dims)
        )
        if not any(along):
            raise ValueError("its involved_dim names no dimension")
        return along

    def _count(self, key: Ranks | tuple[bool, ...]) -> int:
        """Return how many ranks a group has."""
        if key and type(key[0]) is bool:
            return math.prod(
                n for n, taken in zip(self._shape, key, strict=True) if taken
            )
        return len(key)

    def _trace(self, path: Path, columns: _Columns) -> _Trace:
        """Return the columns as arrays, in an order in which each operation comes after earlier ones only."""
        ids = np.fromiter(columns.ids, dtype=np.uint64, count=len(columns.ids))
        targets = np.frombuffer(columns.after, dtype=np.uint64)
        by_id = np.argsort(ids, kind="stable")
        place_of_id = np.searchsorted(ids, targets, sorter=by_id)
        before = by_id[np.minimum(place_of_id, len(ids) - 1)]
        owner = np.repeat(
            np.arange(len(ids)), np.frombuffer(columns.counts, dtype=np.int64)
        )
        unknown = np.flatnonzero(ids[before] != targets)
        if len(unknown):
            node, dep = ids[owner[unknown[0]]], targets[unknown[0]]
            raise ValueError(
                f"{path}: node {node}: it depends on node {dep}, which is not there"
            )
        order = np.arange(len(ids))
        if len(owner) and (before >= owner).any():
            order = _sorted(path, ids, owner, before)
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            owner, before = place[owner], place[before]

        does = np.frombuffer(columns.does, dtype=np.int64)[order]

        def column(name: str, kind: str = "i8") -> Any:
            return np.array(
                [getattr(what, name) for what in columns.whats], dtype=kind
            )[does]

        return _Trace(
            ids=ids[order],
            kind=column("kind", "i1"),
            name=np.frombuffer(columns.name, dtype=np.int64)[order],
            seconds=column("seconds", "f8"),
            flops=column("flops", "f8"),
            bytes=column("bytes"),
            what=column("what"),
            group=column("group"),
            own=column("own"),
            peer=column("peer"),
            tag=np.frombuffer(columns.tag, dtype=np.int64)[order],
            lane=column("lane"),
            owner=owner,
            after=before,
            groups=list(columns.groups),
            lanes=list(columns.lanes),
        )

    def workload(self, name: str, traces: Sequence[_Trace]) -> Workload:
        """Return the workload of all ranks; ranks that do the same share a program.

        Raises ValueError for a collective of a group that does not contain its rank.
        """
        ranks_of = [
            [
                _Communicator(self._ranks_of(key.of, rank), key.number)
                for key in trace.groups
            ]
            for rank, trace in enumerate(traces)
        ]
        used = {ranks for groups in ranks_of for ranks, _ in groups}
        for ranks in self._stated.values():
            if ranks in used:
                self._book.group(
                    ranks
                )  # in the file's order: unequal splits are drawn by a group's number
        slots = _Slots(self._ranks)
        communicators = []
        for rank, groups in enumerate(ranks_of):
            if missing := next(
                (ranks for ranks, _ in groups if rank not in ranks), None
            ):
                raise ValueError(
                    f"rank {rank} has a collective of a group in which it is not: that of {len(missing)} "
                    f"ranks from {missing[0]}"
                )
            communicators.append(
                [(slots.of(group), self._book.group(group.of)) for group in groups]
            )
        programs: dict[bytes, int] = {}
        made: list[Program] = []
        program_of, peers = [], []
        for rank, trace in enumerate(traces):
            program, mine = self._program(
                rank, trace, [slot for slot, _ in communicators[rank]]
            )
            number = programs.setdefault(_digest(program), len(programs))
            if number == len(made):
                made.append(program)
            program_of.append(number)
            peers.append(mine)
        table = [dict(pairs) for pairs in communicators]
        return self._book.workload(
            name,
            made,
            program_of,
            _filled(table),
            _filled([dict(enumerate(p)) for p in peers]),
        )

    def _ranks_of(self, key: Ranks | tuple[bool, ...], rank: int) -> Ranks:
        if not key or type(key[0]) is not bool:
            return key
        place, base, members = rank, 0, [0]
        stride = 1
        for extent, taken in zip(self._shape, key, strict=True):
            place, here = divmod(place, extent)
            if taken:
                members = [
                    member + k * stride for k in range(extent) for member in members
                ]
            else:
                base += here * stride
            stride *= extent
        return tuple(base + member for member in members)

    def _program(
        self, rank: int, trace: _Trace, slot_of_group: list[int]
    ) -> tuple[Program, list[int]]:
        """Return the program of one rank, and its peers in the order of their slots."""
        message = (trace.kind == Kind.SEND) | (trace.kind == Kind.RECEIVE)
        elsewhere = np.flatnonzero(message & (trace.own >= 0) & (trace.own != rank))
        if len(elsewhere):
            k = int(elsewhere[0])
            raise ValueError(
                f"rank {rank}: node {trace.ids[k]}: its own end is rank {trace.own[k]}"
            )
        used, first, which = np.unique(
            trace.peer[message], return_index=True, return_inverse=True
        )
        by_use = np.argsort(first)
        slot = np.full(len(trace.kind), -1)
        place = np.empty(len(used), dtype=np.int64)
        place[by_use] = np.arange(len(used))
        slot[message] = place[which]
        collective = trace.kind == Kind.COLLECTIVE
        slot[collective] = np.array(slot_of_group, dtype=np.int64)[
            trace.group[collective]
        ]
        stream = self._streams(trace, slot)
        ends = np.unique(trace.owner * len(slot) + trace.after)
        owner, after = ends // len(slot), ends % len(slot)
        # What is earlier on the same stream has ended anyway.
        other = stream[owner] != stream[after]
        owner, after = owner[other], after[other]
        offsets = np.concatenate(
            ([0], np.cumsum(np.bincount(owner, minlength=len(slot))))
        )
        return Program(
            kind=trace.kind.astype(np.int8),
            stream=frozen(stream),
            name=frozen(trace.name),
            seconds=trace.seconds,
            flops=trace.flops,
            bytes=frozen(trace.bytes),
            collective=frozen(trace.what),
            slot=frozen(slot),
            tag=frozen(trace.tag),
            after_offsets=frozen(offsets),
            after=frozen(after),
        ), used[by_use].tolist()

    def _streams(self, trace: _Trace, slot: IntArray) -> IntArray:
        """Return the stream of each operation.

        It is the operation's lane, or one of its own for each group, sender and receiver.
        """
        stream = np.empty(len(slot), dtype=np.int64)
        for lane, name in enumerate(trace.lanes):
            mine = np.flatnonzero(trace.lane == lane)
            if name:
                stream[mine] = self._book.stream(name)
                continue
            both = trace.kind[mine] * (int(slot.max()) + 1) + slot[mine]
            for combined in np.unique(both).tolist():
                kind, number = divmod(combined, int(slot.max()) + 1)
                words = {
                    Kind.COLLECTIVE: "group",
                    Kind.SEND: "send",
                    Kind.RECEIVE: "receive",
                }
                stream[mine[both == combined]] = self._book.stream(
                    f"{words[Kind(kind)]} {number}"
                )
        return stream


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable garbage collection inside the block.

    Reading makes millions of objects and no circles: the search for circles takes a fifth of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _messages(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of each message of a file."""
    offset, end = 0, len(data)
    while offset < end:
        start, size, shift = offset, 0, 0
        while True:
            if offset == end or shift > 28:
                raise ValueError(
                    f"{path}, byte {start}: this is no length of a message"
                )
            byte = data[offset]
            offset += 1
            size |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if size > end - offset:
            raise ValueError(
                f"{path}, byte {start}: a message of {size} bytes, and {end - offset} are left"
            )
        yield start, data[offset : offset + size]
        offset += size


def _sorted(path: Path, ids: Ids, owner: IntArray, after: IntArray) -> IntArray:
    """Return an order in which each comes after what it depends on, else that of the file.

    Raises ValueError.
    """
    waits = np.bincount(owner, minlength=len(ids)).tolist()
    by_source = np.argsort(after, kind="stable")
    followers = owner[by_source].tolist()
    begin = np.searchsorted(after[by_source], np.arange(len(ids) + 1)).tolist()
    ready = [k for k, count in enumerate(waits) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for follower in followers[begin[k] : begin[k + 1]]:
            waits[follower] -= 1
            if waits[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(ids):
        stuck = next(k for k, count in enumerate(waits) if count > 0)
        raise ValueError(
            f"{path}: node {ids[stuck]}: it waits for itself, round a circle of dependencies"
        )
    return np.array(order, dtype=np.int64)


def _digest(program: Program) -> bytes:
    """Return a digest that is the same for equal programs."""
    made = hashlib.sha256()
    for column in vars(program).values():
        made.update(column.tobytes())
    return made.digest()


class _Slots:
    """A slot for each communicator: one for all its ranks, and no other of any of them has it."""

    def __init__(self, ranks: int) -> None:
        self._slots: dict[_Communicator, int] = {}
        self._taken: list[set[int]] = [set() for _ in range(ranks)]

    def of(self, communicator: _Communicator) -> int:
        if communicator not in self._slots:
            taken = set().union(*(self._taken[rank] for rank in communicator.of))
            slot = next(k for k in range(len(taken) + 1) if k not in taken)
            self._slots[communicator] = slot
            for rank in communicator.of:
                self._taken[rank].add(slot)
        return self._slots[communicator]


def _filled(rows: Sequence[Mapping[int, int]]) -> IntArray:
    """Return rows of slots as a table, -1 if a row has none."""
    width = max((max(row) + 1 for row in rows if row), default=0)
    table = np.full((len(rows), width), -1)
    for number, row in enumerate(rows):
        for slot, value in row.items():
            table[number, slot] = value
    return table
