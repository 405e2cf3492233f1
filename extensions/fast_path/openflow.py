"""OpenFlow 1.5 messages between the fast path and Open vSwitch, to and from bytes. No I/O.

One connection per bridge, to its own management socket. It requests a flow monitor (each change of the flow
table, with match and instructions), the groups, again after each change of a group (request forwarding), and
the ports. Sections are those of the OpenFlow Switch Specification 1.5.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

VERSION = 6
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
SET_CONFIG, PORT_STATUS, MULTIPART_REQUEST, MULTIPART_REPLY = 9, 12, 18, 19
BARRIER_REQUEST, BARRIER_REPLY, SET_ASYNC, REQUEST_FORWARD = 20, 21, 28, 32
GROUP_DESC, PORT_DESC, FLOW_MONITOR = 7, 13, 16

_HEADER = struct.Struct("!BBHI")
_MULTIPART = struct.Struct("!HH4x")
_UPDATE = struct.Struct("!HHBBHHH4xQ")
_GROUP = struct.Struct("!HBxIH6x")
_BUCKET = struct.Struct("!HHI")
_PORT = struct.Struct("!IH2x6s2x16sII")
_MORE = 1
_ANY = 0xFFFFFFFF
_ALL_TABLES = 0xFF
#: Events of a flow monitor (7.3.5.18).
_INITIAL, _ADDED, _REMOVED, _MODIFIED, _PAUSED, _RESUMED = 0, 1, 2, 3, 5, 6
#: INITIAL, ADD, REMOVED, MODIFY and INSTRUCTIONS.
_MONITOR_FLAGS = 0b11111
_PORT_REMOVED = 1
#: Reasons, as bits, for which this connection is told of missed packets, ports, ended flows, roles, tables
#: and groups (7.3.10, for a connection that may write).
_TOLD = ((1, 0), (3, 0b111), (5, 0), (7, 0), (9, 0), (11, 0b1))
#: A match of everything: type OXM, without fields.
_EVERYTHING = struct.pack("!HH4x", 1, 4)
_LONGEST_NAME = 16


class MalformedError(ValueError):
    """Open vSwitch said something that cannot be read."""


@dataclass(frozen=True)
class TableFlow:
    """One flow of a table. ``match`` and ``instructions`` are as Open vSwitch writes them, padding included;
    timeouts in seconds, 0 for none."""

    table: int
    priority: int
    match: bytes
    instructions: bytes
    idle_s: int = 0
    hard_s: int = 0

    @property
    def key(self) -> tuple[int, int, bytes]:
        """Return the key that distinguishes flows of one switch: table, priority and match."""
        return self.table, self.priority, self.match


@dataclass(frozen=True)
class Bucket:
    """One bucket of a group. ``watched``: whether it counts only while something is up."""

    weight: int
    actions: bytes
    watched: bool = False


@dataclass(frozen=True)
class Group:
    """``kind``: 0 all, 1 select, 2 indirect, 3 fast failover. ``chosen``: somebody chose how it selects."""

    number: int
    kind: int
    buckets: tuple[Bucket, ...]
    chosen: bool = False


@dataclass(frozen=True)
class PortDescription:
    """``config``: bits of OFPPC_*."""

    number: int
    name: str
    config: int


Kind = Literal[
    "echo",
    "error",
    "barrier",
    "flows",
    "groups",
    "ports",
    "ports gone",
    "group changed",
    "lost",
]
#: Messages that are taken as they are.
_PLAIN: Mapping[int, Kind] = {
    ERROR: "error",
    ECHO_REQUEST: "echo",
    BARRIER_REPLY: "barrier",
    REQUEST_FORWARD: "group changed",
}


@dataclass(frozen=True)
class Told:
    """One decoded message. ``kind`` decides which of the other fields are meaningful."""

    kind: Kind
    xid: int = 0
    body: bytes = b""
    put: tuple[TableFlow, ...] = ()
    removed: tuple[tuple[int, int, bytes], ...] = ()
    groups: tuple[Group, ...] = ()
    ports: tuple[PortDescription, ...] = ()
    more: bool = False


def _message(kind: int, xid: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(VERSION, kind, _HEADER.size + len(body), xid) + body


def _ask(kind: int, xid: int, body: bytes = b"") -> bytes:
    return _message(MULTIPART_REQUEST, xid, _MULTIPART.pack(kind, 0) + body)


def greeting() -> bytes:
    """Return the messages that open a connection. They offer this version only, and request notices about
    ports and groups."""
    versions = struct.pack("!HHI", 1, 8, 1 << VERSION)
    # Whoever wants no bytes of missed packets is told nothing at all by Open vSwitch.
    config = struct.pack("!HH", 0, 1)
    return (
        _message(HELLO, 0, versions)
        + _message(SET_CONFIG, 1, config)
        + _message(
            SET_ASYNC,
            2,
            b"".join(struct.pack("!HHI", kind, 8, bits) for kind, bits in _TOLD),
        )
    )


def questions(xid: int) -> bytes:
    """Return the requests for everything, which end with a barrier. All have the transaction number
    ``xid``."""
    monitor = (
        struct.pack("!IIIHBB", 1, _ANY, _ANY, _MONITOR_FLAGS, _ALL_TABLES, 0)
        + _EVERYTHING
    )
    return (
        _ask(PORT_DESC, xid, struct.pack("!I4x", _ANY))
        + ask_groups(xid)
        + _ask(FLOW_MONITOR, xid, monitor)
        + _message(BARRIER_REQUEST, xid)
    )


def ask_groups(xid: int) -> bytes:
    """Return the request for all groups."""
    return _ask(GROUP_DESC, xid, struct.pack("!I4x", 0xFFFFFFFC))


def echo(request: Told) -> bytes:
    """Return the reply to an echo request."""
    return _message(ECHO_REPLY, request.xid, request.body)


@dataclass
class Reader:
    """Cuts a stream of bytes into messages, and says what they tell. Raises MalformedError."""

    _bytes: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Told]:
        """Yield the messages that are complete after these bytes. Raises MalformedError."""
        self._bytes += data
        while len(self._bytes) >= _HEADER.size:
            _, kind, length, xid = _HEADER.unpack_from(self._bytes)
            if length < _HEADER.size:
                raise MalformedError(f"a message of {length} bytes")
            if len(self._bytes) < length:
                return
            body = bytes(self._bytes[_HEADER.size : length])
            del self._bytes[:length]
            try:
                message = _told(kind, xid, body)
            except (struct.error, IndexError) as error:
                raise MalformedError(f"message of type {kind}: {error}") from error
            if message is not None:
                yield message


def _told(kind: int, xid: int, body: bytes) -> Told | None:
    if (plain := _PLAIN.get(kind)) is not None:
        return Told(plain, xid, body)
    if kind == PORT_STATUS:
        gone = body[0] == _PORT_REMOVED
        return Told(
            "ports gone" if gone else "ports",
            xid,
            ports=tuple(_ports(body[8:])),
            more=True,
        )
    if kind == MULTIPART_REPLY:
        what, flags = _MULTIPART.unpack_from(body)
        return _answer(what, xid, body[_MULTIPART.size :], bool(flags & _MORE))
    return None


def _answer(what: int, xid: int, body: bytes, more: bool) -> Told | None:
    if what == FLOW_MONITOR:
        return _updates(xid, body)
    if what == GROUP_DESC:
        return Told("groups", xid, groups=tuple(_groups(body)), more=more)
    if what == PORT_DESC:
        return Told("ports", xid, ports=tuple(_ports(body)), more=more)
    return None


def _parts(body: bytes, what: str, least: int, place: int = 0) -> Iterator[bytes]:
    """Cut bytes into parts of at least so many, each of which has its length at a place in it."""
    offset = 0
    while offset < len(body):
        (length,) = struct.unpack_from("!H", body, offset + place)
        if length < least:
            raise MalformedError(f"{what} of {length} bytes")
        yield body[offset : offset + length]
        offset += length


def _updates(xid: int, body: bytes) -> Told:
    put: dict[tuple[int, int, bytes], TableFlow] = {}
    removed: dict[tuple[int, int, bytes], None] = {}
    for part in _parts(body, "a flow update", 8):
        (event,) = struct.unpack_from("!H", part, 2)
        if event in (_PAUSED, _RESUMED):
            return Told("lost", xid)
        if event in (_INITIAL, _ADDED, _REMOVED, _MODIFIED):
            _, _, table, _, idle, hard, priority, _ = _UPDATE.unpack_from(part)
            start = _UPDATE.size
            end = start + _padded(struct.unpack_from("!H", part, start + 2)[0])
            flow = TableFlow(table, priority, part[start:end], part[end:], idle, hard)
            if event == _REMOVED:
                put.pop(flow.key, None)
                removed[flow.key] = None
            else:
                put[flow.key] = flow
                removed.pop(flow.key, None)
    return Told("flows", xid, put=tuple(put.values()), removed=tuple(removed))


def _groups(body: bytes) -> Iterator[Group]:
    for part in _parts(body, "a group", _GROUP.size):
        length, kind, number, buckets = _GROUP.unpack_from(part)
        end = _GROUP.size + buckets
        yield Group(
            number, kind, tuple(_buckets(part[_GROUP.size : end])), chosen=length > end
        )


def _buckets(body: bytes) -> Iterator[Bucket]:
    for part in _parts(body, "a bucket", _BUCKET.size):
        _, actions, _ = _BUCKET.unpack_from(part)
        place = end = _BUCKET.size + actions
        weight, watched = 1, False
        while place < len(part):
            kind, size = struct.unpack_from("!HH", part, place)
            if kind == 0:
                (weight,) = struct.unpack_from("!H", part, place + 4)
            else:
                watched = (
                    watched or struct.unpack_from("!I", part, place + 4)[0] != _ANY
                )
            place += max(8, _padded(size))
        yield Bucket(weight, part[_BUCKET.size : end], watched)


def _ports(body: bytes) -> Iterator[PortDescription]:
    for part in _parts(body, "a port", _PORT.size, place=4):
        number, _, _, name, config, _ = _PORT.unpack_from(part)
        yield PortDescription(
            number,
            name[:_LONGEST_NAME].rstrip(b"\0").decode("utf-8", "replace"),
            config,
        )


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8
