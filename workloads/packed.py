"""A workload as bytes, and back: how a job's workload travels to the controller and the workers.

``RLW1`` and a zlib stream: the header's length (4 bytes, little-endian), the header (JSON: what has no length
of its own, and for each array its type and number of elements), the names, the arrays one after the other.
Nothing in it can name code, and nothing is allocated before its size was held against ``limit``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import WrittenSteps
from ringlight.fabric.text import parse_json
from ringlight.fabric.verify import checkable, verify
from ringlight.workloads.graph import Collective, Kind, Program, Split, Workload
from ringlight.workloads.graph_checks import check

MAGIC = b"RLW1"
#: Bytes of memory that a workload may take, unless told otherwise.
LIMIT = 1 << 30
HEADER_LIMIT = 8 << 20
RANKS_LIMIT = 1 << 17
#: Messages of all ranks together; more are no workload but a mistake, and matching them takes minutes.
MESSAGES_LIMIT = 20_000_000
_STORED = ("<i1", "<i2", "<i4", "<i8")
_COLUMNS = {
    field.name: "<f8" if field.name in ("seconds", "flops") else "<i8"
    for field in fields(Program)
}
_COLUMNS["kind"] = "<i1"
#: Where a collective in the header has its schedule, if that is the user's own.
_OWN = 5
#: What a Python string takes besides its text.
_STRING = 64
#: Types of the fields of a split, as JSON has them.
_OF_SPLITS: Mapping[str, tuple[type, ...]] = {
    "seed": (int,),
    "skew": (int, float),
    "same_order": (bool,),
    "draw": (int, type(None)),
    "back": (bool,),
}

Array = npt.NDArray[Any]


def pack(workload: Workload) -> bytes:
    """Return the workload as bytes, for :func:`unpack`.

    Raises ValueError for a name with a zero byte in it.
    """
    if bad := [name for name in workload.names if "\0" in name]:
        raise ValueError(
            f"{bad[0]!r}: the name of an operation must not contain a zero byte"
        )
    arrays = [_small(array) for array in _arrays(workload)]
    names = "\0".join(workload.names).encode()
    header = json.dumps(
        {
            "name": workload.name,
            "ranks": workload.ranks,
            "programs": len(workload.programs),
            "slots": [workload.communicators.shape[1], workload.peers.shape[1]],
            "streams": workload.streams,
            "collectives": [
                _collective_fields(collective) for collective in workload.collectives
            ],
            "names": [len(workload.names), len(names)],
            "arrays": [
                [array.dtype.str.replace("|", "<"), array.size] for array in arrays
            ],
        }
    ).encode()
    body = [
        struct.pack("<I", len(header)),
        header,
        names,
        *(array.tobytes() for array in arrays),
    ]
    return MAGIC + zlib.compress(b"".join(body))


def unpack(data: bytes, limit: int = LIMIT) -> Workload:
    """Return the workload in ``data`` of :func:`pack`, using at most about ``limit`` bytes of memory.

    Raises ValueError, in one line, when it is none, is larger, or cannot be run (:func:`check`).
    """
    if data[: len(MAGIC)] != MAGIC:
        raise ValueError("this is no packed workload")
    stream = _Stream(data[len(MAGIC) :], limit)
    (length,) = struct.unpack("<I", stream.read(4))
    if length > HEADER_LIMIT:
        raise ValueError(
            f"a packed workload: its header has {length} bytes, {HEADER_LIMIT} are allowed"
        )
    try:
        header = parse_json(stream.read(length))
        workload = _workload(header, stream, limit)
    except (KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"a packed workload: its header is damaged ({type(error).__name__})"
        ) from None
    except UnicodeDecodeError:
        raise ValueError("a packed workload: its text is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"a packed workload: its header is no JSON at {error.pos}"
        ) from None
    stream.end()
    _check_indices(workload)
    return check(workload)


def _arrays(workload: Workload) -> list[Array]:
    """Return all arrays of a workload in the order in which they are written."""
    lengths = np.array([len(group) for group in workload.groups], dtype=np.int64)
    members = np.concatenate([*workload.groups, np.zeros(0, dtype=np.int64)])
    arrays: list[Array] = [
        workload.program_of,
        lengths,
        members,
        workload.communicators,
        workload.peers,
    ]
    arrays += [
        np.array(collective.sizes, dtype=np.int64)
        for collective in workload.collectives
        if collective.sizes is not None
    ]
    arrays += [
        _transfers(collective.own)
        for collective in workload.collectives
        if collective.own is not None
    ]
    return arrays + [
        getattr(program, name) for program in workload.programs for name in _COLUMNS
    ]


def _small(array: Array) -> Array:
    """Return the values flattened, in the smallest type that holds them."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "f":
        return flat.astype("<f8", copy=False)
    low, high = (int(flat.min()), int(flat.max())) if flat.size else (0, 0)
    stored = next(
        t for t in _STORED if np.iinfo(t).min <= low and high <= np.iinfo(t).max
    )
    return flat.astype(stored, copy=False)


def _collective_fields(collective: Collective) -> list[Any]:
    split = None if collective.split is None else asdict(collective.split)
    entry = [
        collective.kind,
        collective.algorithm,
        collective.root,
        split,
        None if collective.sizes is None else len(collective.sizes),
    ]
    if collective.own is None:
        return entry
    steps = [[op, len(rows)] for op, rows in collective.own.rows]
    return [
        *entry,
        [
            collective.own.name,
            collective.own.world_size,
            collective.own.chunks,
            collective.own.step_by_step,
            steps,
        ],
    ]


def _transfers(own: WrittenSteps) -> Array:
    """Return all transfers of a schedule, [transfers, 4]."""
    return np.array(
        [row for _, rows in own.rows for row in rows], dtype=np.int64
    ).reshape(-1, 4)


def _own(kind: str, root: int, entry: list[Any], transfers: Array) -> WrittenSteps:
    """Return a schedule of the user's, checked as one that was read from a file. Raises ValueError."""
    if len(entry) != len(WrittenSteps.__dataclass_fields__):
        raise ValueError(
            "a packed workload: a schedule is not described by what it should be"
        )
    name, world_size, chunks, step_by_step, steps = entry
    ends = np.cumsum([0, *(_count(length) for _, length in steps)])
    if transfers.size != 4 * ends[-1] or any(
        op not in ("reduce", "replace") for op, _ in steps
    ):
        raise ValueError(
            "a packed workload: the transfers of a schedule do not fit its steps"
        )
    rows = [tuple(row) for row in transfers.reshape(-1, 4).tolist()]
    of_steps = tuple(
        (op, tuple(rows[begin:end]))
        for (op, _), (begin, end) in zip(steps, pairwise(ends), strict=True)
    )
    own = WrittenSteps(
        str(name), _count(world_size), _count(chunks), bool(step_by_step), of_steps
    )
    checkable(kind, own.world_size, own.chunks)
    verify(kind, own.steps(), root)
    return own


def split_of(values: object) -> Split:
    """Return a split from its fields by their names. Raises ValueError for other fields, types or numbers."""
    if not isinstance(values, dict) or not set(values) <= {
        field.name for field in fields(Split)
    }:
        raise ValueError("the split of an all-to-all is damaged")
    for name, value in values.items():
        fits = type(value) in _OF_SPLITS[name] and (
            value is None or 0 <= value < 1 << 63
        )
        if not fits:
            raise ValueError(f"the split of an all-to-all: {name} is {value!r:.40}")
    return Split(**values)


class _Stream:
    """The unpacked bytes from front to back, never more of them than were asked for."""

    def __init__(self, data: bytes, limit: int) -> None:
        self._inflate = zlib.decompressobj()
        self._data = data
        self._left = limit

    def read(self, count: int) -> bytes:
        """Return the next ``count`` bytes.

        Raises ValueError when there are fewer, or more than are allowed.
        """
        if count > self._left:
            raise ValueError(
                f"a packed workload: it takes more than the {self._left} bytes that are left to it"
            )
        self._left -= count
        parts, missing = [], count
        while missing:
            try:
                part = self._inflate.decompress(self._data, missing)
            except zlib.error:
                raise ValueError("a packed workload: its data are damaged") from None
            self._data = self._inflate.unconsumed_tail
            if not part:
                raise ValueError("a packed workload: it ends early")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def end(self) -> None:
        """Raise ValueError when something is left over, or the check sum is wrong."""
        try:
            rest = self._inflate.decompress(self._data, 1)
        except zlib.error:
            raise ValueError("a packed workload: its data are damaged") from None
        if rest or not self._inflate.eof or self._inflate.unused_data:
            raise ValueError("a packed workload: its data do not end where they should")


def _workload(header: dict[str, Any], stream: _Stream, limit: int) -> Workload:
    ranks, programs = _count(header["ranks"]), _count(header["programs"])
    listed = [(str(kind), _count(size)) for kind, size in header["arrays"]]
    if ranks > RANKS_LIMIT:
        raise ValueError(
            f"a packed workload: it has {ranks} ranks, {RANKS_LIMIT} are allowed"
        )
    sized = [entry for entry in header["collectives"] if entry[4] is not None]
    owned = [entry for entry in header["collectives"] if len(entry) > _OWN]
    names, text = map(_count, header["names"])
    needed = 8 * sum(size for _, size in listed) + names * _STRING + text
    if needed > limit:
        raise ValueError(
            f"a packed workload: it takes {needed} bytes of memory, {limit} are allowed"
        )
    if len(listed) != 5 + len(sized) + len(owned) + programs * len(_COLUMNS):
        raise ValueError(
            f"a packed workload: {len(listed)} arrays are not those of {programs} programs"
        )
    words = _names(stream.read(text), names)

    todo = iter(listed)

    def array(kind: str = "<i8") -> Array:
        stored, size = next(todo)
        if stored not in (("<f8",) if kind == "<f8" else _STORED):
            raise ValueError(f"a packed workload: {stored!r} is no type of its arrays")
        raw = stream.read(size * int(stored[2:]))
        values = np.frombuffer(raw, dtype=stored).astype(kind)
        if kind == "<i1" and stored != "<i1":
            raise ValueError("a packed workload: kinds of operations are out of range")
        values.flags.writeable = False
        return values

    program_of, lengths, members, communicators, peers = (array() for _ in range(5))
    if (
        len(program_of) != ranks
        or (lengths < 0).any()
        or int(lengths.sum()) != len(members)
    ):
        raise ValueError("a packed workload: its ranks or groups do not fit the arrays")
    width = [_count(entry) for entry in header["slots"]]
    collectives = []
    for entry in header["collectives"]:
        sizes = None if entry[4] is None else _matrix(array(), _count(entry[4]))
        split = None if entry[3] is None else split_of(entry[3])
        collectives.append(
            Collective(str(entry[0]), str(entry[1]), int(entry[2]), split, sizes)
        )
    for number, entry in enumerate(header["collectives"]):
        if len(entry) > _OWN:
            kind, root = collectives[number].kind, collectives[number].root
            collectives[number] = collectives[number]._replace(
                own=_own(kind, root, entry[_OWN], array())
            )
    return Workload(
        str(header["name"]),
        ranks,
        tuple(
            Program(**{name: array(kind) for name, kind in _COLUMNS.items()})
            for _ in range(programs)
        ),
        program_of,
        tuple(np.split(members, np.cumsum(lengths)[:-1])) if len(lengths) else (),
        communicators.reshape(ranks, width[0]),
        peers.reshape(ranks, width[1]),
        tuple(collectives),
        words,
        tuple(str(entry) for entry in header["streams"]),
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0 or value > 1 << 40:
        raise ValueError(f"a packed workload: {value!r:.40} is no number of anything")
    return value


def _names(text: bytes, count: int) -> tuple[str, ...]:
    if count != (text.count(b"\0") + 1 if count or text else 0):
        raise ValueError(f"a packed workload: its names are not {count}")
    return tuple(text.decode().split("\0")) if count else ()


def _matrix(values: Array, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the bytes that each of ``size`` ranks sends to each."""
    if (values < 0).any():
        raise ValueError("a packed workload: bytes from rank to rank are below 0")
    return tuple(tuple(row) for row in values.reshape(size, size).tolist())


def _check_indices(workload: Workload) -> None:
    """Check that every number that names a place in another list names one.

    ``check`` takes that for granted.
    """
    ranks = workload.ranks

    def within(what: str, values: Array, low: int, end: int) -> None:
        if values.size and not (low <= values.min() and values.max() < end):
            raise ValueError(f"a packed workload: {what} is out of range")

    if not workload.streams:
        raise ValueError("a packed workload: it has no streams")
    within("a rank's program", workload.program_of, 0, len(workload.programs))
    within("a communicator", workload.communicators, -1, len(workload.groups))
    within("a peer", workload.peers, -1, ranks)
    for group in workload.groups:
        within("a rank of a group", group, 0, ranks)
        if len(np.unique(group)) != len(group):
            raise ValueError("a packed workload: a group has a rank twice")
    messages = np.zeros(len(workload.programs), dtype=np.int64)
    for number, program in enumerate(workload.programs):
        _check_columns(number, program)
        within("the kind of an operation", program.kind, 0, len(Kind))
        within("a stream", program.stream, 0, len(workload.streams))
        within("a name", program.name, 0, len(workload.names))
        collective, message = (
            program.kind == Kind.COLLECTIVE,
            np.isin(program.kind, (Kind.SEND, Kind.RECEIVE)),
        )
        within(
            "a collective", program.collective[collective], 0, len(workload.collectives)
        )
        messages[number] = message.sum()
    if messages[workload.program_of].sum() > MESSAGES_LIMIT:
        raise ValueError(
            f"a packed workload: it has more than {MESSAGES_LIMIT} messages"
        )


def _check_columns(number: int, program: Program) -> None:
    lengths = {
        len(getattr(program, name))
        for name in _COLUMNS
        if name not in ("after", "after_offsets")
    }
    offsets = program.after_offsets
    if lengths != {len(program)} or len(offsets) != len(program) + 1:
        raise ValueError(
            f"a packed workload: the columns of program {number} are not of one length"
        )
    if (
        offsets[0] != 0
        or offsets[-1] != len(program.after)
        or (np.diff(offsets) < 0).any()
    ):
        raise ValueError(
            f"a packed workload: the dependencies of program {number} are damaged"
        )
