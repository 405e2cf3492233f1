"""Measure the network between two hosts: largest packet, rate, round trip, and difference of the clocks.

One host answers for a while (:func:`start_answering`), the other one asks (:func:`measure`). The answering
host accepts only requests with the token, which the command draws.
"""

from __future__ import annotations

import errno
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from ringlight.extensions.hosts.cluster import Cluster, Host
from ringlight.extensions.hosts.parts.plan import VXLAN_BYTES, VXLAN_PORT
from ringlight.fabric.units import format_rate, format_time
from ringlight.testbed.lab import LabError

#: Bytes of IP and UDP headers, by family.
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
#: Bounds of the MTU that is looked for, bytes: what IPv4 must carry, and what the largest Ethernet frames do.
_LEAST, _MOST = 576, 9216
#: Seconds for which a host answers, and after which an unanswered datagram counts as lost.
_ANSWERING_S, _LOST_S = 20.0, 0.1
#: Seconds of a stream before it counts, and in which it counts.
_RISE_S, _COUNT_S = 0.1, 0.4
_PINGS, _TRIES = 20, 3
#: So often at most the ways between hosts are measured before a lab is refused.
PROBES = 3
#: Values of linux/in.h and linux/in6.h that the module socket does not have.
_MTU_DISCOVER = {
    socket.AF_INET: (socket.IPPROTO_IP, 10),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 23),
}
_PROBE = 3
#: SO_MAX_PACING_RATE of asm-generic/socket.h, bytes per second.
_MAX_PACING_RATE = 47
_TOKEN_BYTES = 16
_CLOCK = struct.Struct("=d")
_STREAM = struct.Struct("=Qd")


@dataclass(frozen=True)
class Needs:
    """Minimum that the network between a pair of hosts must give, and limits that it must keep.

    ``mtu_bytes``: bytes of an IP packet that arrives whole. ``rate_bps``: bit/s one way. ``round_trip_s`` and
    ``clock_s``: most seconds of a round trip, and between the clocks.
    """

    mtu_bytes: int = 1500 + VXLAN_BYTES
    rate_bps: float = 1e9
    round_trip_s: float = 2e-3
    clock_s: float = 1.0


@dataclass(frozen=True)
class Way:
    """Measured path from host ``a`` to host ``b``.

    ``clock_s``: seconds by which the clock of ``b`` is later. ``clock_error_s``: largest error of that
    figure.
    """

    a: str
    b: str
    mtu_bytes: int
    rate_bps: float
    round_trip_s: float
    clock_s: float
    clock_error_s: float


def misfits(way: Way, needs: Needs) -> Iterator[str]:
    """Yield why a path does not meet the needs, a line for each figure, with the pair."""
    yield from lasting_misfits(way, needs)
    pair = f"{way.a} to {way.b}"
    if way.rate_bps < needs.rate_bps:
        yield f"{pair}: {format_rate(way.rate_bps)}, and {format_rate(needs.rate_bps)} is needed (rate)"
    if way.round_trip_s > needs.round_trip_s:
        most = format_time(needs.round_trip_s)
        yield f"{pair}: a round trip takes {format_time(way.round_trip_s)}, and may take {most}"


def lasting_misfits(way: Way, needs: Needs) -> Iterator[str]:
    """Yield the lines of :func:`misfits` that a busy processor cannot explain."""
    pair = f"{way.a} to {way.b}"
    if way.mtu_bytes < needs.mtu_bytes:
        yield (
            f"{pair}: packets of {needs.mtu_bytes} bytes do not arrive whole, the largest that do have "
            f"{way.mtu_bytes} (MTU)"
        )
    if abs(way.clock_s) > needs.clock_s:
        off = f"{abs(way.clock_s):.3f} s {'ahead' if way.clock_s > 0 else 'behind'}"
        yield f"{pair}: the clock of {way.b} is {off}, and may be off by {format_time(needs.clock_s)}"


def checked_ways(
    probe: Callable[[], list[Way]], needs_of: Callable[[Way], Iterable[Needs]]
) -> tuple[list[Way], list[str]]:
    """Return the measured paths, and a line for each figure that misses the needs of its path.

    The paths are probed again, ``PROBES`` times at most, while only a rate or a round trip misses: other
    programs may have had the processors just then.
    """
    for _ in range(PROBES):
        ways = probe()
        pairs = [(way, needs) for way in ways for needs in needs_of(way)]
        lines = [line for pair in pairs for line in misfits(*pair)]
        if not lines or any(line for pair in pairs for line in lasting_misfits(*pair)):
            break
    return ways, lines


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield all pairs of ``count`` hosts, in rounds in which each host is in one pair at most (the circle
    method).
    """
    places: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        yield [
            (a, b)
            for a, b in zip(places[:half], reversed(places[half:]), strict=True)
            if a is not None and b is not None
        ]
        places = [places[0], places[-1], *places[1:-1]]


def probed(
    cluster: Cluster,
    among: Sequence[Host] | None = None,
    enough_bps: float | None = None,
) -> list[Way]:
    """Return the measured paths of every pair of hosts (of ``among``, if given), both ways.

    Pairs that have no host in common are measured at the same time. ``enough_bps``: streams send no faster,
    bit/s, which leaves processors and network to other programs. Raises LabError, one line naming the pair.
    """
    hosts = cluster.hosts if among is None else among
    results: list[Way] = []
    for pairs in rounds(len(hosts)):
        ways = [
            way
            for a, b in pairs
            for way in ((hosts[a], hosts[b]), (hosts[b], hosts[a]))
        ]
        # One way after the other, so that they do not share a link.
        for turn in (ways[::2], ways[1::2]):
            with ThreadPoolExecutor(max(1, len(turn))) as pool:
                results += pool.map(
                    lambda way: _asked(cluster, way[0], way[1], enough_bps), turn
                )
    return results


def _asked(cluster: Cluster, a: Host, b: Host, enough_bps: float | None) -> Way:
    token = secrets.token_bytes(_TOKEN_BYTES)
    (ports,) = cluster.ask(start_answering, b.ip, token, hosts=[b]).values()
    (figures,) = cluster.ask(
        measure, b.ip, ports, token, enough_bps, hosts=[a]
    ).values()
    if isinstance(figures, str):
        raise LabError(f"{a.name} to {b.name}: {figures}")
    return Way(a.name, b.name, **figures)


# -- on a host


def start_answering(ip: str, token: bytes) -> tuple[int, int]:
    """Answer datagrams and one stream for some seconds. Return the UDP port and the TCP port."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    try:
        # Where light goes on this host already, the port is the kernel's.
        datagrams.bind((ip, VXLAN_PORT))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            datagrams.close()
            raise
        datagrams.bind((ip, 0))
    listener = socket.create_server((ip, 0), family=family)
    until_s = time.monotonic() + _ANSWERING_S
    for answer, own in ((_answer_datagrams, datagrams), (_answer_stream, listener)):
        threading.Thread(target=answer, args=(own, token, until_s), daemon=True).start()
    return datagrams.getsockname()[1], listener.getsockname()[1]


def _answer_datagrams(own: socket.socket, token: bytes, until_s: float) -> None:
    """Answer with the time until the stream, which is last, has come, or no request came for long."""
    with own:
        while (left_s := until_s - time.monotonic()) > 0:
            own.settimeout(left_s)
            try:
                request, caller = own.recvfrom(_MOST)
            except TimeoutError:
                return
            if request.startswith(token):
                if request[len(token) :] == b"end":
                    return
                number = request[len(token) : len(token) + 4]
                with suppress(OSError):
                    own.sendto(number + _CLOCK.pack(time.time()), caller)


def _answer_stream(listener: socket.socket, token: bytes, until_s: float) -> None:
    with listener:
        while (left_s := until_s - time.monotonic()) > 0:
            listener.settimeout(left_s)
            # Who is no part of this may come and go.
            with suppress(OSError):
                stream, _ = listener.accept()
                with stream:
                    stream.settimeout(min(left_s, 5.0))
                    if stream.recv(len(token), socket.MSG_WAITALL) == token:
                        stream.sendall(_STREAM.pack(*_counted(stream)))
                        # The sender goes on until it has read the answer. Closing a stream that has bytes
                        # unread resets it, and the sender would meet the reset first.
                        with suppress(OSError):
                            while time.monotonic() < until_s and stream.recv(1 << 20):
                                pass
                        return


def _counted(stream: socket.socket) -> tuple[int, float]:
    """Return how many bytes a stream brings after its rise, and in how many seconds."""
    buffer, count = bytearray(1 << 20), 0
    begin_s = now_s = time.monotonic() + _RISE_S
    while now_s < begin_s + _COUNT_S:
        got = stream.recv_into(buffer)
        now_s = time.monotonic()
        if not got:
            break
        if now_s >= begin_s:
            count += got
    return count, now_s - begin_s


def measure(
    ip: str, ports: tuple[int, int], token: bytes, enough_bps: float | None = None
) -> Mapping[str, Any] | str:
    """Measure the path to a host that answers. Return the fields of :class:`Way`, or why it cannot be
    measured.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with ExitStack() as undo:
        own = undo.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        own.setsockopt(*_MTU_DISCOVER[family], _PROBE)
        own.connect((ip, ports[0]))
        undo.callback(_ended, own, token)
        times = [
            reply
            for number in range(_PINGS)
            if (reply := _ping(own, token, number)) is not None
        ]
        if not times:
            return f"no answer from {ip}, UDP port {ports[0]}; is it closed between the hosts?"
        best = min(times)
        mtu = _largest(own, token, _HEADERS[family])
        try:
            rate_bps = _rate_bps(ip, ports[1], token, enough_bps)
        except OSError as error:
            return f"no stream to {ip}, TCP port {ports[1]}: {error}"
    return {
        "mtu_bytes": mtu,
        "rate_bps": rate_bps,
        "round_trip_s": statistics.median(trip_s for trip_s, _ in times),
        # Of the quickest answer one knows best when it was given.
        "clock_s": best[1],
        "clock_error_s": best[0] / 2,
    }


def _ended(own: socket.socket, token: bytes) -> None:
    with suppress(OSError):
        own.send(token + b"end")


def _ping(
    own: socket.socket, token: bytes, number: int, size: int = 0
) -> tuple[float, float] | None:
    """Return the round trip of a datagram of ``size`` bytes, and how much later the other clock is, in
    seconds; None if lost.
    """
    payload = struct.pack("=I", number)
    sent_s, began = time.time(), time.monotonic()
    try:
        own.send((token + payload).ljust(size, b"\0"))
        while (left_s := began + _LOST_S - time.monotonic()) > 0:
            own.settimeout(left_s)
            answer = own.recv(64)
            trip_s = time.monotonic() - began
            if answer[:4] == payload:
                (clock_s,) = _CLOCK.unpack(answer[4:])
                return trip_s, clock_s - (sent_s + trip_s / 2)
    except OSError:
        # Too large for the first link (EMSGSIZE), lost, or nothing listens.
        return None
    return None


def _largest(own: socket.socket, token: bytes, headers: int) -> int:
    """Return the size in bytes of the largest IP packet that arrives with the don't-fragment bit."""
    numbers = iter(range(1 << 16, 1 << 31))

    def passes(mtu: int) -> bool:
        return any(
            _ping(own, token, next(numbers), mtu - headers) is not None
            for _ in range(_TRIES)
        )

    least, most = _LEAST, _MOST + 1
    # What networks usually have comes first.
    for usual in (9000, 1500):
        if least < usual < most:
            if passes(usual):
                least = usual
            else:
                most = usual
    while most - least > 1:
        middle = (least + most) // 2
        if passes(middle):
            least = middle
        else:
            most = middle
    return least


def _rate_bps(ip: str, port: int, token: bytes, enough_bps: float | None) -> float:
    """Return the rate of one TCP stream in bits per second, as its receiver counts. Raises OSError."""
    with socket.create_connection((ip, port), timeout=5.0) as stream:
        if enough_bps is not None:
            # A number of 32 bits; the largest is no bound.
            most = min(int(enough_bps / 8), (1 << 32) - 1)
            stream.setsockopt(
                socket.SOL_SOCKET, _MAX_PACING_RATE, struct.pack("=I", most)
            )
        stream.sendall(token)
        block, deadline = bytes(1 << 18), time.monotonic() + 10.0
        data = b""
        stream.setblocking(False)
        while len(data) < _STREAM.size:
            if time.monotonic() > deadline:
                raise TimeoutError("it takes too long")
            with suppress(BlockingIOError):
                if not (more := stream.recv(_STREAM.size - len(data))):
                    raise ConnectionError("it was closed")
                data += more
            if not data:
                with suppress(BlockingIOError):
                    stream.send(block)
            time.sleep(0.0002)
    count, seconds = _STREAM.unpack(data)
    return 8 * count / seconds if seconds > 0 else 0.0
