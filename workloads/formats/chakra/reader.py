"""Chakra execution traces, schema 1.0: one file NAME.RANK.et for each rank, and back.

A file is a row of messages, each after its length as a varint: GlobalMetadata, then one Node for each
operation. ``docs/workloads-formats.md`` says how each field is read.
"""

from __future__ import annotations

import gc
import glob
import hashlib
import heapq
import json
import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from fabric.steps import IntArray, frozen
from workloads.formats.chakra.schema import Attribute, CommType, Metadata, Node, NodeType
from workloads.formats.files import TEXT_LIMIT, printable, read_bytes, read_text, write_bytes
from workloads.graph import Book, Collective, FloatArray, Kind, Program, Split, Workload
from workloads.packed import split_of

VERSION = "0.0.4"
#: Nodes of all different files of a trace together.
NODES_LIMIT = 10_000_000
RANKS_LIMIT = 1 << 17
_NAME = re.compile(r"(.+)\.(\d{1,9})\.et")
_READ = (
    *("is_cpu_op", "stream", "num_ops", "flops", "seconds", "tensor_size"),
    *("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name", "involved_dim"),
    *("size", "algorithm", "root", "kind", "split", "sizes", "communicator"),
)
#: An attribute as bytes begins with its name: this, the name's length, the name.
_NAME_FIRST = b"\n"
_WANTED = tuple(_NAME_FIRST + bytes([len(name)]) + name.encode() for name in _READ)
_TAG = _NAME_FIRST + b"\x08comm_tag"
_METADATA = int(NodeType.METADATA)
_MESSAGES = frozenset({int(NodeType.COMM_SEND), int(NodeType.COMM_RECV)})
_MICRO = 1e-6

_KINDS = {
    CommType.ALL_REDUCE: "all-reduce",
    CommType.REDUCE: "reduce",
    CommType.ALL_GATHER: "all-gather",
    CommType.BROADCAST: "broadcast",
    CommType.ALL_TO_ALL: "all-to-all",
    CommType.REDUCE_SCATTER: "reduce-scatter",
    CommType.REDUCE_SCATTER_BLOCK: "reduce-scatter",
}
_TYPES = {kind: number for number, kind in reversed(_KINDS.items())} | {"all-to-all-v": CommType.ALL_TO_ALL}
#: A barrier is an all-reduce of one element, as in NCCL.
_BARRIER_BYTES = 4

Ranks = tuple[int, ...]


class _Communicator(NamedTuple):
    """Ranks, or the dimensions of the network along which they are; ``number`` of those of the same ranks."""

    of: Ranks | tuple[bool, ...]
    number: int


Ids = npt.NDArray[np.uint64]


def files_of(path: Path) -> list[Path]:
    """The files of a trace by rank. ``path``: one of them, what they share (NAME), or their directory.

    Raises ValueError when there are none, one is missing, or a directory has those of several traces.
    """
    if os.path.isdir(path):
        try:
            found = [one for one in path.iterdir() if _NAME.fullmatch(one.name)]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        names = sorted({_NAME.fullmatch(one.name)[1] for one in found})  # type: ignore[index]
        if len(names) > 1:
            raise ValueError(f"{path}: it has the traces {', '.join(names[:5])}; name one of them")
    else:
        match = _NAME.fullmatch(path.name)
        name = match[1] if match else path.name
        found = [one for one in path.parent.glob(f"{glob.escape(name)}.*.et") if _is(one, name)]
    if not found:
        raise ValueError(f"{path}: there are no files NAME.RANK.et")
    by_rank = {int(_NAME.fullmatch(one.name)[2]): one for one in found}  # type: ignore[index]
    missing = next((rank for rank in range(len(found)) if rank not in by_rank), None)
    if missing is not None:
        sibling = found[0].with_name(f"{_NAME.fullmatch(found[0].name)[1]}.{missing}.et")  # type: ignore[index]
        raise ValueError(f"{sibling}: it is missing, there are {len(found)} files of its trace")
    return [by_rank[rank] for rank in range(len(found))]


def others_beside(path: Path, ranks: int) -> list[Path]:
    """Files that would be read with a trace of so many ranks which is written at ``path`` (:func:`write`)."""
    found = [one for one in path.parent.glob(f"{glob.escape(path.name)}.*.et") if _is(one, path.name)]
    return sorted(one for one in found if int(_NAME.fullmatch(one.name)[2]) >= ranks)  # type: ignore[index]


def groups_beside(files: Sequence[Path]) -> Path | None:
    """The file of process groups that lies beside the files of a trace, where there is one."""
    name = _NAME.fullmatch(files[0].name)[1]  # type: ignore[index]
    beside = files[0].with_name(f"{name}.comm_group.json")
    return beside if beside.exists() else None


def _is(path: Path, name: str) -> bool:
    match = _NAME.fullmatch(path.name)
    return match is not None and match[1] == name


def read(path: Path, groups: Path | None = None, shape: Sequence[int] = ()) -> Workload:
    """The trace of which ``path`` is a file, or which lies there (:func:`files_of`).

    ``groups``: a file of process groups, ``{"1": [0, 1]}``; by default NAME.comm_group.json beside the trace,
    where there is one. ``shape``: ranks along each dimension of the network, the first varying fastest; only
    ``involved_dim`` that names some of them needs it. Raises ValueError, in one line.
    """
    files = files_of(path)
    if len(files) > RANKS_LIMIT:
        raise ValueError(f"{path}: it has {len(files)} ranks, {RANKS_LIMIT} are allowed")
    if shape and math.prod(shape) != len(files):
        raise ValueError(f"{path}: it has {len(files)} ranks, not {' × '.join(map(str, shape))}")
    name = _NAME.fullmatch(files[0].name)[1]  # type: ignore[index]
    groups = groups or groups_beside(files)
    stated = {} if groups is None else _groups_of(groups, read_text(groups), len(files))
    reader = _Reader(Book(), len(files), stated, tuple(shape))
    traces = [reader.trace(file) for file in files]
    try:
        return reader.workload(name, traces)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _groups_of(path: Path, text: str, ranks: int) -> dict[str, Ranks]:
    try:
        said = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(f"{path}{line}: this is no JSON") from None
    if not isinstance(said, dict):
        raise ValueError(f"{path}: it must be groups by their names")
    return {
        name: _members(f"{path}: group {printable(name)}", members, ranks) for name, members in said.items()
    }


def _members(where: str, said: object, ranks: int) -> Ranks:
    """The ranks of a group; an empty list is all of them."""
    if not isinstance(said, list) or not all(type(rank) is int and 0 <= rank < ranks for rank in said):
        raise ValueError(f"{where}: it must be a list of ranks 0 to {ranks - 1}")
    if len(set(said)) != len(said):
        raise ValueError(f"{where}: it has a rank twice")
    return tuple(said) or tuple(range(ranks))


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
    own: IntArray  # the rank's end of a message, -1 where not stated
    peer: IntArray
    tag: IntArray
    lane: IntArray  # index into ``lanes``
    owner: IntArray  # [edges] whose
    after: IntArray  # [edges] index of what it comes after
    groups: list[_Communicator] = field(default_factory=list)  # of booleans: dimensions that take part
    lanes: list[str] = field(default_factory=list)


class _What(NamedTuple):
    """What a node does, but for id, name, tag and what it comes after; few in any trace are different."""

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

    def __init__(self, book: Book, ranks: int, stated: Mapping[str, Ranks], shape: tuple[int, ...]) -> None:
        self._book = book
        self._ranks = ranks
        self._stated = stated
        self._shape = shape
        self._left = NODES_LIMIT
        self._seen: dict[bytes, _Trace] = {}
        self._world = tuple(range(ranks))

    def trace(self, path: Path) -> _Trace:
        """What one file says; of equal files only the first is read."""
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
                raise ValueError(f"{path}, byte {start}: this is no message of a Chakra trace") from None
            if len(ids) == self._left:
                raise ValueError(f"{path}, byte {start}: a trace may have {NODES_LIMIT} nodes")
            number = node.id
            if number in ids:
                raise ValueError(f"{path}, byte {start}: node {number}: there is another one of this id")
            ids[number] = None
            kind, tag = node.type, 0
            wanted = [raw for raw in node.attr if raw.startswith(_WANTED) or raw[:1] != _NAME_FIRST]
            try:
                if kind in _MESSAGES:
                    wanted, tag = _tagged(wanted)
                said = (kind, node.duration_micros, *wanted)
                does = known.get(said)
                if does is None:
                    columns.whats.append(self._what(node, wanted, columns, groups))
                    does = known[said] = len(columns.whats) - 1
                    if kind == _METADATA:
                        known.clear()  # the names of its groups may mean other ones from here on
            except (ValueError, OverflowError) as error:
                detail = "a number of it is too large" if isinstance(error, OverflowError) else error
                raise ValueError(f"{path}, byte {start}: node {number}: {detail}") from None
            columns.does.append(does)
            columns.tag.append(tag)
            columns.name.append(name_of(node.name))
            deps = node.data_deps[:]
            if others := node.ctrl_deps:
                deps += others[:]
            after.extend(deps)
            columns.counts.append(len(deps))
        if not ids:
            raise ValueError(f"{path}: it has no nodes")
        self._left -= len(ids)
        return self._trace(path, columns)

    def _what(self, node: Any, attributes: list[bytes], columns: _Columns, groups: dict[str, Ranks]) -> _What:
        said = dict(map(_attribute, attributes))
        found: dict[str, Any]
        kind, lane = node.type, ""
        match kind:
            case NodeType.COMM_SEND | NodeType.COMM_RECV:
                found = _message(kind == NodeType.COMM_SEND, said, self._ranks)
            case NodeType.COMP | NodeType.METADATA:
                if kind == _METADATA:
                    groups.update(_process_groups(node.inputs.values, self._ranks))
                found = dict(zip(("seconds", "flops"), _work(node.duration_micros, said), strict=True))
                lane = "cpu" if said.get("is_cpu_op") else "compute"
                if lane == "compute" and type(said.get("stream")) is int:
                    lane = f"stream {said['stream']}"
            case NodeType.COMM_COLL:
                key = _Communicator(self._group(said, groups), _whole(said, "communicator", 0))
                collective, size = _collective(said, self._count(key.of))
                what, group = (
                    self._book.collective(collective),
                    columns.groups.setdefault(key, len(columns.groups)),
                )
                found = {"kind": Kind.COLLECTIVE, "bytes": size, "what": what, "group": group}
            case NodeType.MEM_LOAD | NodeType.MEM_STORE:
                found, lane = {"kind": Kind.MEMORY, "bytes": _whole(said, "tensor_size", 0)}, "memory"
                if "seconds" in said:
                    found["seconds"] = _number(said, "seconds")
            case other:
                raise ValueError(f"{other} is no type of a node")
        if type(said.get("stream")) is str:
            lane = said["stream"]
        if found.get("bytes", 0) >= 1 << 62:
            raise OverflowError
        return _What(**found, lane=columns.lanes.setdefault(lane, len(columns.lanes)))

    def _group(self, said: Mapping[str, Any], groups: Mapping[str, Ranks]) -> Ranks | tuple[bool, ...]:
        """The group of a collective: its ranks, or the dimensions of the network along which it goes."""
        name = said.get("pg_name", "")
        if name in groups:
            return groups[name]
        if name not in ("", "0"):
            raise ValueError(f"nothing says which ranks pg_name {printable(str(name))} has")
        dims = said.get("involved_dim")
        if dims is None or (isinstance(dims, list) and all(dims)):
            return self._world
        if not isinstance(dims, list) or not all(type(one) is bool for one in dims):
            raise ValueError("involved_dim must be a list of booleans")
        if not self._shape:
            raise ValueError("its involved_dim names some dimensions of a network; say its shape")
        along = tuple(dims[: len(self._shape)]) + (False,) * (len(self._shape) - len(dims))
        if not any(along):
            raise ValueError("its involved_dim names no dimension")
        return along

    def _count(self, key: Ranks | tuple[bool, ...]) -> int:
        """How many ranks a group has."""
        if key and type(key[0]) is bool:
            return math.prod(n for n, taken in zip(self._shape, key, strict=True) if taken)
        return len(key)

    def _trace(self, path: Path, columns: _Columns) -> _Trace:
        """The columns as arrays, in an order in which each operation comes after earlier ones only."""
        ids = np.fromiter(columns.ids, dtype=np.uint64, count=len(columns.ids))
        wanted = np.frombuffer(columns.after, dtype=np.uint64)
        by_id = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids, wanted, sorter=by_id)
        found = by_id[np.minimum(at, len(ids) - 1)]
        owner = np.repeat(np.arange(len(ids)), np.frombuffer(columns.counts, dtype=np.int64))
        unknown = np.flatnonzero(ids[found] != wanted)
        if len(unknown):
            node, dep = ids[owner[unknown[0]]], wanted[unknown[0]]
            raise ValueError(f"{path}: node {node}: it depends on node {dep}, which is not there")
        order = np.arange(len(ids))
        if len(owner) and (found >= owner).any():
            order = _sorted(path, ids, owner, found)
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            owner, found = place[owner], place[found]

        does = np.frombuffer(columns.does, dtype=np.int64)[order]

        def column(name: str, kind: str = "i8") -> Any:
            return np.array([getattr(what, name) for what in columns.whats], dtype=kind)[does]

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
            after=found,
            groups=list(columns.groups),
            lanes=list(columns.lanes),
        )

    def workload(self, name: str, traces: Sequence[_Trace]) -> Workload:
        """All ranks together; those that do the same share a program."""
        ranks_of = [
            [_Communicator(self._ranks_of(key.of, rank), key.number) for key in trace.groups]
            for rank, trace in enumerate(traces)
        ]
        used = {ranks for groups in ranks_of for ranks, _ in groups}
        for ranks in self._stated.values():
            if ranks in used:
                self._book.group(ranks)  # in the file's order: unequal splits are drawn by a group's number
        slots = _Slots(self._ranks)
        communicators = []
        for rank, groups in enumerate(ranks_of):
            if missing := next((ranks for ranks, _ in groups if rank not in ranks), None):
                raise ValueError(
                    f"rank {rank} has a collective of a group in which it is not: that of {len(missing)} "
                    f"ranks from {missing[0]}"
                )
            communicators.append([(slots.of(one), self._book.group(one.of)) for one in groups])
        programs: dict[bytes, int] = {}
        made: list[Program] = []
        program_of, peers = [], []
        for rank, trace in enumerate(traces):
            program, mine = self._program(rank, trace, [slot for slot, _ in communicators[rank]])
            number = programs.setdefault(_digest(program), len(programs))
            if number == len(made):
                made.append(program)
            program_of.append(number)
            peers.append(mine)
        table = [dict(pairs) for pairs in communicators]
        return self._book.workload(
            name, made, program_of, _filled(table), _filled([dict(enumerate(p)) for p in peers])
        )

    def _ranks_of(self, key: Ranks | tuple[bool, ...], rank: int) -> Ranks:
        if not key or type(key[0]) is not bool:
            return key
        place, base, members = rank, 0, [0]
        stride = 1
        for extent, taken in zip(self._shape, key, strict=True):
            place, here = divmod(place, extent)
            if taken:
                members = [one + k * stride for k in range(extent) for one in members]
            else:
                base += here * stride
            stride *= extent
        return tuple(base + one for one in members)

    def _program(self, rank: int, trace: _Trace, slot_of_group: list[int]) -> tuple[Program, list[int]]:
        """The program of one rank, and its peers in the order of their slots."""
        message = (trace.kind == Kind.SEND) | (trace.kind == Kind.RECEIVE)
        elsewhere = np.flatnonzero(message & (trace.own >= 0) & (trace.own != rank))
        if len(elsewhere):
            k = int(elsewhere[0])
            raise ValueError(f"rank {rank}: node {trace.ids[k]}: its own end is rank {trace.own[k]}")
        used, first, which = np.unique(trace.peer[message], return_index=True, return_inverse=True)
        by_use = np.argsort(first)
        slot = np.full(len(trace.kind), -1)
        place = np.empty(len(used), dtype=np.int64)
        place[by_use] = np.arange(len(used))
        slot[message] = place[which]
        collective = trace.kind == Kind.COLLECTIVE
        slot[collective] = np.array(slot_of_group, dtype=np.int64)[trace.group[collective]]
        stream = self._streams(trace, slot)
        ends = np.unique(trace.owner * len(slot) + trace.after)
        owner, after = ends // len(slot), ends % len(slot)
        # What is earlier on the same stream has ended anyway.
        other = stream[owner] != stream[after]
        owner, after = owner[other], after[other]
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(slot)))))
        return Program(
            kind=trace.kind.astype(np.int8), stream=frozen(stream), name=frozen(trace.name),
            seconds=trace.seconds, flops=trace.flops,
            bytes=frozen(trace.bytes), collective=frozen(trace.what), slot=frozen(slot),
            tag=frozen(trace.tag), after_offsets=frozen(offsets), after=frozen(after),
        ), used[by_use].tolist()  # fmt: skip

    def _streams(self, trace: _Trace, slot: IntArray) -> IntArray:
        """The stream of each operation: its lane, or one of its own for each group, sender and receiver."""
        stream = np.empty(len(slot), dtype=np.int64)
        for lane, name in enumerate(trace.lanes):
            mine = np.flatnonzero(trace.lane == lane)
            if name:
                stream[mine] = self._book.stream(name)
                continue
            both = trace.kind[mine] * (int(slot.max()) + 1) + slot[mine]
            for one in np.unique(both).tolist():
                kind, at = divmod(one, int(slot.max()) + 1)
                words = {Kind.COLLECTIVE: "group", Kind.SEND: "send", Kind.RECEIVE: "receive"}
                stream[mine[both == one]] = self._book.stream(f"{words[Kind(kind)]} {at}")
        return stream


@contextmanager
def _no_collector() -> Iterator[None]:
    """Reading makes millions of objects and no circles: looking for these takes a fifth of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _messages(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each message of a file begins, and its bytes."""
    at, end = 0, len(data)
    while at < end:
        start, size, shift = at, 0, 0
        while True:
            if at == end or shift > 28:
                raise ValueError(f"{path}, byte {start}: this is no length of a message")
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if size > end - at:
            raise ValueError(f"{path}, byte {start}: a message of {size} bytes, and {end - at} are left")
        yield start, data[at : at + size]
        at += size


def _tagged(attributes: list[bytes]) -> tuple[list[bytes], int]:
    """The other attributes of a message, and its tag, which may be another one for each."""
    tags = [raw for raw in attributes if raw.startswith(_TAG)]
    if not tags:
        return attributes, 0
    return [raw for raw in attributes if not raw.startswith(_TAG)], _whole(
        dict([_decoded(tags[-1])]), "comm_tag"
    )


def _decoded(raw: bytes) -> tuple[str, Any]:
    """Name and value of an attribute. Raises ValueError."""
    try:
        if not raw.startswith(_NAME_FIRST):
            raise ValueError("one of its attributes does not begin with its name")
        said = Attribute.FromString(raw)
    except DecodeError:
        raise ValueError("one of its attributes is damaged") from None
    which = said.WhichOneof("value") or ""
    value: Any = getattr(said, which, None)
    return said.name, list(value.values) if which.endswith("_list") else value


_attribute = lru_cache(1 << 12)(_decoded)


def _message(sends: bool, said: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """A message; ``comm_src`` of a sender and ``comm_dst`` of a receiver may be left out."""
    ends = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
    peer = _whole(said, ends[1])
    if peer >= ranks:
        raise ValueError(f"{ends[1]} {peer} is none of the {ranks} ranks")
    return {
        "kind": Kind.SEND if sends else Kind.RECEIVE,
        "bytes": _whole(said, "comm_size"),
        "own": _whole(said, ends[0], -1),
        "peer": peer,
    }


def _whole(said: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """An attribute that is a number of something."""
    value = said.get(name, default)
    if type(value) is not int or (value < 0 and value != default):
        raise ValueError(f"it has no {name}" if value is None else f"{name} is {value!r:.40}")
    return value


def _number(said: Mapping[str, Any], name: str) -> float:
    value = said[name]
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r:.40}")
    return float(value)


def _work(micros: int, said: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds and FLOPs of a computation; NaN seconds where only FLOPs are known."""
    flops = (
        _number(said, "flops") if "flops" in said else _number(said, "num_ops") if "num_ops" in said else None
    )
    if "seconds" in said:
        return _number(said, "seconds"), flops or 0.0
    if micros or flops is None:
        return micros * _MICRO, flops or 0.0
    return math.nan, flops


def _collective(said: Mapping[str, Any], ranks: int) -> tuple[Collective, int]:
    """A collective over a group of ``ranks``, and its size as the graph has it."""
    number = _whole(said, "comm_type")
    if number == CommType.BARRIER:
        return Collective("all-reduce"), _BARRIER_BYTES
    if number not in _KINDS:
        names = {one.value: one.name for one in CommType}
        raise ValueError(f"comm_type {number} ({names.get(number, 'unknown')}) is none that we have")
    kind = _KINDS[CommType(number)]
    size = _whole(said, "comm_size")
    if kind == "all-gather":
        size *= ranks  # the trace has what each rank puts in
    if "size" in said:
        size = _whole(said, "size")
    split = _split(said["split"]) if "split" in said else None
    root = _whole(said, "root", 0)
    if root >= ranks:
        raise ValueError(f"root {root} is none of the {ranks} ranks of its group")
    algorithm, kind = said.get("algorithm", ""), said.get("kind", kind)
    if not isinstance(algorithm, str) or not isinstance(kind, str):
        raise ValueError("kind and algorithm must be text")
    return Collective(kind, algorithm, root, split, _matrix(said.get("sizes"), ranks)), size


def _split(said: object) -> Split:
    if not isinstance(said, str):
        raise ValueError("split is no text")
    try:
        return split_of(json.loads(said))
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("split is no JSON") from None


def _matrix(said: Any, ranks: int) -> tuple[tuple[int, ...], ...] | None:
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != ranks * ranks or min(said) < 0:
        raise ValueError(f"sizes are not those of {ranks} ranks")
    return tuple(tuple(map(int, said[k : k + ranks])) for k in range(0, len(said), ranks))


def _process_groups(text: str, ranks: int) -> dict[str, Ranks]:
    """The process groups that PyTorch lists in a metadata node: a list with a JSON list as text in it."""
    begin, end = text.find("[{"), text.rfind("}]")
    if begin < 0 or end < begin:
        return {}
    if len(text) > TEXT_LIMIT:
        raise ValueError(f"its process groups have {len(text)} bytes, {TEXT_LIMIT} are allowed")
    try:
        listed = json.loads(text[begin : end + 2])
        return {
            str(one["pg_name"]): _members(
                f"process group {printable(str(one['pg_name']))}", one["ranks"], ranks
            )
            for one in listed
        }
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
        raise ValueError("its process groups are damaged") from None


def _sorted(path: Path, ids: Ids, owner: IntArray, after: IntArray) -> IntArray:
    """An order in which each comes after what it depends on, else that of the file. Raises ValueError."""
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
        raise ValueError(f"{path}: node {ids[stuck]}: it waits for itself, round a circle of dependencies")
    return np.array(order, dtype=np.int64)


def _digest(program: Program) -> bytes:
    """What programs have in common that are the same."""
    made = hashlib.sha256()
    for column in vars(program).values():
        made.update(column.tobytes())
    return made.digest()


class _Slots:
    """A slot for each communicator: one for all its ranks, and no other of any of them has it."""

    def __init__(self, ranks: int) -> None:
        self._slots: dict[_Communicator, int] = {}
        self._taken: list[set[int]] = [set() for _ in range(ranks)]

    def of(self, one: _Communicator) -> int:
        if one not in self._slots:
            taken = set().union(*(self._taken[rank] for rank in one.of))
            slot = next(k for k in range(len(taken) + 1) if k not in taken)
            self._slots[one] = slot
            for rank in one.of:
                self._taken[rank].add(slot)
        return self._slots[one]


def _filled(rows: Sequence[Mapping[int, int]]) -> IntArray:
    """Rows of slots as a table, -1 where a row has none."""
    width = max((max(row) + 1 for row in rows if row), default=0)
    table = np.full((len(rows), width), -1)
    for number, row in enumerate(rows):
        for slot, value in row.items():
            table[number, slot] = value
    return table


def write(workload: Workload, path: Path) -> list[Path]:
    """Writes PATH.RANK.et for each rank, and PATH.comm_group.json unless the world is the only group.

    Returns the files. What Chakra has no field for (exact seconds, the algorithm, the stream) stands in
    attributes of our own, so that :func:`read` gives the same again; others pass over them. Raises
    ValueError.
    """
    names = {number: str(number + 1) for number in range(len(workload.groups))}
    if len(names) == 1 and workload.groups[0].tolist() == list(range(workload.ranks)):
        names[0] = ""
    written = []
    for rank in range(workload.ranks):
        parts = [delimited(Metadata(version=VERSION))]
        parts += [delimited(node) for node in _nodes(workload, rank, names)]
        written.append(path.with_name(f"{path.name}.{rank}.et"))
        write_bytes(written[-1], b"".join(parts))
    stated = {names[number]: group.tolist() for number, group in enumerate(workload.groups) if names[number]}
    if stated:
        written.append(path.with_name(f"{path.name}.comm_group.json"))
        write_bytes(written[-1], json.dumps(stated).encode() + b"\n")
    return written


def delimited(message: Any) -> bytes:
    """A message after its length, as it stands in a file."""
    data: bytes = message.SerializeToString()
    size, prefix = len(data), bytearray()
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    return bytes((*prefix, size)) + data


def _nodes(workload: Workload, rank: int, names: Mapping[int, str]) -> Iterator[Any]:
    program = workload.programs[int(workload.program_of[rank])]
    last: dict[int, int] = {}
    for k in range(len(program)):
        stream = int(program.stream[k])
        after = set(program.after[program.after_offsets[k] : program.after_offsets[k + 1]].tolist())
        node = Node(id=k, name=workload.names[int(program.name[k])])
        # Chakra has no streams: that one operation runs at a time on each is a dependency there.
        node.data_deps.extend(sorted(after | ({last[stream]} if stream in last else set())))
        last[stream] = k
        attributes = [("is_cpu_op", "bool_val", False), ("stream", "string_val", workload.streams[stream])]
        attributes += _what(workload, program, rank, k, node, names)
        for name, which, value in attributes:
            node.attr.append(encoded(name, which, value))
        yield node


def encoded(name: str, which: str, value: Any) -> bytes:
    """An attribute; ``which``: the field of its value. Raises ValueError when that does not take it."""
    said = Attribute(name=name)
    try:
        if which.endswith("_list"):
            getattr(said, which).values.extend(value)
        else:
            setattr(said, which, value)
    except ValueError:
        raise ValueError(f"{name} {value!r:.40} does not fit a Chakra trace") from None
    data: bytes = said.SerializeToString()
    return data


def _what(
    workload: Workload, program: Program, rank: int, k: int, node: Any, names: Mapping[int, str]
) -> Iterable[tuple[str, str, Any]]:
    """Sets a node's type, and what its attributes are."""
    kind, size, slot = Kind(int(program.kind[k])), int(program.bytes[k]), int(program.slot[k])
    if kind is Kind.COMPUTE:
        node.type = NodeType.COMP
        return _computation(float(program.seconds[k]), float(program.flops[k]), node)
    if kind is Kind.MEMORY:
        node.type = NodeType.MEM_LOAD
        seconds = float(program.seconds[k])
        exact = [] if math.isnan(seconds) else [("seconds", "double_val", seconds)]
        return [("tensor_size", "uint64_val", size), *exact]
    if kind is Kind.COLLECTIVE:
        node.type = NodeType.COMM_COLL
        group = int(workload.communicators[rank, slot])
        what = workload.collectives[int(program.collective[k])]
        said: list[tuple[str, str, Any]] = []
        if names[group]:
            said.append(("pg_name", "string_val", names[group]))
        # Groups have names in a trace, and not what else the same ranks have beside it.
        if number := workload.communicators[rank, :slot].tolist().count(group):
            said.append(("communicator", "int32_val", number))
        return said + _communication(what, size, len(workload.groups[group]))
    node.type = NodeType.COMM_SEND if kind is Kind.SEND else NodeType.COMM_RECV
    peer = int(workload.peers[rank, slot])
    ends = (rank, peer) if kind is Kind.SEND else (peer, rank)
    return [
        ("comm_src", "int32_val", ends[0]),
        ("comm_dst", "int32_val", ends[1]),
        ("comm_tag", "int32_val", int(program.tag[k])),
        ("comm_size", "int64_val", size),
    ]


def _computation(seconds: float, flops: float, node: Any) -> list[tuple[str, str, Any]]:
    said: list[tuple[str, str, Any]] = []
    if not math.isnan(seconds):
        node.duration_micros = round(seconds / _MICRO)
        if not node.duration_micros or node.duration_micros * _MICRO != seconds:
            said.append(("seconds", "double_val", seconds))
    if flops or math.isnan(seconds):
        said.append(("num_ops", "int64_val", min(round(flops), (1 << 63) - 1)))
        if float(said[-1][2]) != flops:
            said.append(("flops", "double_val", flops))
    return said


def _communication(what: Collective, size: int, ranks: int) -> list[tuple[str, str, Any]]:
    if what.kind not in _TYPES:
        raise ValueError(f"a Chakra trace has no collective {what.kind}")
    part = -(-size // ranks) if what.kind == "all-gather" else size
    said: list[tuple[str, str, Any]] = [
        ("comm_type", "int64_val", int(_TYPES[what.kind])),
        ("comm_size", "int64_val", part),
    ]
    if what.kind == "all-gather" and part * ranks != size:
        said.append(("size", "int64_val", size))
    if what.kind != _KINDS[_TYPES[what.kind]]:
        said.append(("kind", "string_val", what.kind))
    if what.algorithm:
        said.append(("algorithm", "string_val", what.algorithm))
    if what.root:
        said.append(("root", "int32_val", what.root))
    if what.split is not None:
        said.append(("split", "string_val", json.dumps(asdict(what.split))))
    if what.sizes is not None:
        said.append(("sizes", "int64_list", [size for row in what.sizes for size in row]))
    return said
