"""Listening, connecting to the peers, and parting from them.

A connection begins with a hello in both directions, which names the rank, the job and the channel: a pair of
ranks has a connection for each channel that they share. With an O-NIC nothing is sent: a hello would be
payload, so it would need light, and a ring's lightpaths lead only where the collective sends. There a peer is
known by its address, which is its GPU's, and a GPU works for one job at a time.

What is said is marked as words (``marks``) until a connection is made, and then at the end that sends no
payload. Where light stands (``posted`` in the spec), payload goes one way on every connection, so that all
words can be told from it: two ranks that send to each other have two.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import select
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ringlight.containers.worker.flows import Flows
from ringlight.containers.worker.marks import WORD_TOS, carry_payload
from ringlight.containers.worker.peer import PeerLost, read_notes
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.containers.worker.windows import keep_window

_HELLO = struct.Struct("!4s8sII")
_MAGIC = b"RLw2"
#: Asked for each direction of a connection. With the kernel's own sizing up to 32 MiB are under way where it
#: forwards, which then come from memory instead of the cache: a quarter slower (benchmarks/allreduce.py).
SOCKET_BUFFER_BYTES = 768 * 1024
#: Connections that may wait to be accepted; a rank may have several to each peer.
_BACKLOG = 128
_RETRY_S = 0.02
#: Shortest and longest attempt; between them, this share of the time since the first. Whoever is early sends
#: into a switch that has no rule for it yet, and the kernel would send again only after a second.
_SHORT_S, _ATTEMPT_S, _SHARE = 0.05, 1.0, 0.25
#: Added to the channel of a pair's second connection, which has the payload of the higher rank.
_DOWNWARDS = 1 << 21


class NoConnection(Exception):
    """The own address or a peer did not come up in time."""


class Line(NamedTuple):
    """A connection as one end sees it: to rank ``peer``, for what ``channel`` is for."""

    peer: int
    channel: int = 0


def one_way(rank: int, peer: int, channel: int, *, out: bool) -> Line:
    """Return which of the pair's two connections carries payload to ``peer``, or from it if ``out`` is
    false.
    """
    return Line(peer, channel if (peer > rank) == out else channel + _DOWNWARDS)


class Lines(NamedTuple):
    """Lines that a rank needs for the transfers of one channel: outgoing and incoming, by peer.

    The same line serves both directions unless the spec has ``posted``, which needs ``one_way`` lines.
    """

    out: dict[int, Line]
    into: dict[int, Line]

    @classmethod
    def of(
        cls,
        spec: WorkerSpec,
        to: Collection[int],
        from_: Collection[int],
        channel: int = 0,
    ) -> Lines:
        """Return the lines for payload ``to`` some ranks and ``from_`` others, on the connections that
        ``spec`` asks for.
        """
        if not spec.posted:
            return cls(
                {peer: Line(peer, channel) for peer in to},
                {peer: Line(peer, channel) for peer in from_},
            )
        return cls(
            {peer: one_way(spec.rank, peer, channel, out=True) for peer in to},
            {peer: one_way(spec.rank, peer, channel, out=False) for peer in from_},
        )

    def sending(self) -> dict[Line, bool]:
        """Return the lines, each with whether this rank sends payload on it."""
        return dict.fromkeys(self.into.values(), False) | dict.fromkeys(
            self.out.values(), True
        )


def tune(connection: socket.socket, peer_timeout_s: float) -> None:
    """No delay for small pieces, little under way, a kernel that gives a lost peer up only after us.

    What is said is marked as words.
    """
    milliseconds = int((peer_timeout_s + 2) * 1000)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(peer_timeout_s))
    )
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, WORD_TOS)


def listen(spec: WorkerSpec, deadline: float) -> socket.socket:
    """Return a socket that listens on the rank's own address only, once that address exists.

    Raises NoConnection at ``deadline`` (CLOCK_MONOTONIC, seconds).
    """
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((spec.address, spec.port))
            listener.listen(max(spec.world_size, _BACKLOG))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRNOTAVAIL or time.monotonic() >= deadline:
                where = f"{spec.address}:{spec.port} ({spec.interface})"
                raise NoConnection(
                    f"cannot listen on {where}: {error.strerror}"
                ) from error
            time.sleep(_RETRY_S)
        else:
            return listener


@contextlib.contextmanager
def onic(spec: WorkerSpec) -> Iterator[Flows | None]:
    """Yield the rank's O-NIC for the length of the ``with`` block; None if the rank has none."""
    if spec.onic is None:
        yield None
        return
    flows = Flows(Path(spec.onic))
    try:
        yield flows
    finally:
        flows.shut()


def connect(
    spec: WorkerSpec, peer: int, deadline: float, channel: int = 0
) -> socket.socket:
    """Connect to ``peer`` and return the connection. Without an O-NIC the peer has answered.

    Raises PeerLost at ``deadline`` (CLOCK_MONOTONIC, seconds).
    """
    last = "no answer"
    began = time.monotonic()
    while (left := deadline - (now := time.monotonic())) > 0:
        attempt_s = min(left, _ATTEMPT_S, max(_SHORT_S, _SHARE * (now - began)))
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tune(connection, spec.peer_timeout_s)
            connection.settimeout(attempt_s)
            connection.bind((spec.address, 0))
            connection.connect((spec.peers[peer], spec.port))
            connection.settimeout(left)
            if spec.onic is not None:
                return connection
            connection.sendall(_hello(spec, channel))
            if _read_hello(connection, spec) == (peer, channel):
                _keep_window(connection, spec, peer)
                return connection
            last = "another job or rank answered"
        except OSError as error:
            last = error.strerror or str(error)
        connection.close()
        time.sleep(_RETRY_S)
    raise PeerLost(
        peer,
        f"no connection to {spec.peers[peer]}:{spec.port} in {spec.connect_timeout_s:g} s: {last}",
    )


def accept(
    listener: socket.socket, spec: WorkerSpec, deadline: float
) -> tuple[Line, socket.socket] | None:
    """Accept one connection. Return the peer's line and its connection.

    Returns None if no peer connected by ``deadline`` (CLOCK_MONOTONIC, seconds), or if a stranger did.
    """
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        connection, (address, _) = listener.accept()
    except TimeoutError:
        return None
    try:
        tune(connection, spec.peer_timeout_s)
        connection.settimeout(_ATTEMPT_S)
        if spec.onic is not None:
            line = Line(spec.peers.index(address)) if address in spec.peers else None
        elif (line := _read_hello(connection, spec)) is not None:
            connection.sendall(_hello(spec, line.channel))
            connection.settimeout(spec.peer_timeout_s)
            _keep_window(connection, spec, line.peer)
        if line is not None:
            return line, connection
    except OSError:
        # It is gone again.
        pass
    connection.close()
    return None


def connect_all(
    spec: WorkerSpec, lines: Mapping[Line, bool], listener: socket.socket
) -> dict[Line, socket.socket]:
    """Return a connection for each of ``lines``. The lower rank of a pair connects, and the higher one
    accepts.

    The value of a line is true if this rank sends payload on it. Raises PeerLost with the first peer that is
    missing after ``connect_timeout_s``.
    """
    deadline = time.monotonic() + spec.connect_timeout_s
    ordered = sorted(lines)
    connections = {
        line: connect(spec, line.peer, deadline, line.channel)
        for line in ordered
        if line.peer > spec.rank
    }
    lower = {line for line in ordered if line.peer < spec.rank}
    while waiting := lower - connections.keys():
        if time.monotonic() >= deadline:
            raise PeerLost(
                min(waiting).peer, f"it did not connect in {spec.connect_timeout_s:g} s"
            )
        accepted = accept(listener, spec, deadline)
        if accepted is not None:
            line, connection = accepted
            # A peer that came again has given its earlier connection up.
            if line in connections:
                connections[line].close()
            connections[line] = connection
    for line in ordered:
        if lines[line]:
            carry_payload(connections[line])
    return connections


def part(connections: Collection[tuple[int, socket.socket]], timeout_s: float) -> None:
    """Report that all is sent, and wait until the peers report it too, so that no last bytes are lost.

    ``connections``: each with its peer's rank. Raises PeerLost if a peer is silent for ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    for peer, connection in connections:
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise PeerLost(peer, error.strerror or str(error)) from error
    # Only now: on a ring, each might else wait for the next one to speak first.
    for peer, connection in connections:
        try:
            if _next_byte(connection, peer, timeout_s, deadline):
                raise PeerLost(peer, "it sent more than the schedule says")
        except OSError as error:
            raise PeerLost(peer, error.strerror or str(error)) from error


def _next_byte(
    connection: socket.socket, peer: int, timeout_s: float, deadline: float
) -> bytes:
    """Return one byte, or none if the peer has parted. Raises PeerLost at ``deadline``."""
    while select.select([connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            return connection.recv(1)
        except BlockingIOError:
            # select also reports an unread note that a burst was acknowledged.
            read_notes(connection)
    raise PeerLost(peer, f"it did not part in {timeout_s:g} s")


def describe(connections: Iterable[tuple[int, socket.socket]]) -> list[dict[str, int]]:
    """Return the peers with both ports of their connections, in order."""
    return [
        {
            "peer": peer,
            "local_port": c.getsockname()[1],
            "remote_port": c.getpeername()[1],
        }
        for peer, c in sorted(connections, key=lambda entry: entry[0])
    ]


def _keep_window(connection: socket.socket, spec: WorkerSpec, peer: int) -> None:
    if spec.windows_bytes:
        keep_window(connection, spec.windows_bytes[peer])


def _hello(spec: WorkerSpec, channel: int) -> bytes:
    return _HELLO.pack(
        _MAGIC, hashlib.sha256(spec.job.encode()).digest()[:8], spec.rank, channel
    )


def _read_hello(connection: socket.socket, spec: WorkerSpec) -> Line | None:
    data = b""
    while len(data) < _HELLO.size:
        more = connection.recv(_HELLO.size - len(data))
        if not more:
            return None
        data += more
    magic, job, rank, channel = _HELLO.unpack(data)
    expected = _HELLO.unpack(_hello(spec, channel))
    return (
        Line(rank, channel)
        if (magic, job) == expected[:2] and 0 <= rank < spec.world_size
        else None
    )
