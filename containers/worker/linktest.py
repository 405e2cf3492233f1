"""Measures a link: send to one rank for a while, count what comes from others."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ringlight.containers.worker.events import EventLog
from ringlight.containers.worker.marks import carry_payload
from ringlight.containers.worker.peer import PeerLost
from ringlight.containers.worker.posted import FILE, Posted, done_fields
from ringlight.containers.worker.release import wait_for_release
from ringlight.containers.worker.rendezvous import (
    accept,
    connect,
    describe,
    listen,
    onic,
)
from ringlight.containers.worker.spec import WorkerSpec

_BLOCK = 256 * 1024
#: Share of the time that is not counted, in which TCP finds its rate and the shaper's bucket empties.
_WARM_UP = 0.25


@dataclass
class _Incoming:
    peer: int
    bytes: int = 0
    counted_bytes: int = 0
    counted_from: float | None = None
    last: float = 0.0


def linktest(spec: WorkerSpec, directory: Path, events: EventLog) -> None:
    """Send to rank ``linktest.to`` for ``linktest.seconds``; report the rate of each incoming stream.

    An event ``linktest`` per incoming stream: bytes and seconds after a warm-up of a quarter of the time,
    and their rate (TCP payload, bit/s). Who sends to this rank is known at the release, when all ranks are
    ready. With an O-NIC the sender has light for the whole time; who does not get it in time sends less.
    Raises PeerLost, NoConnection, TimeoutError.
    """
    deadline = time.monotonic() + spec.connect_timeout_s
    incoming: dict[int, socket.socket] = {}
    stop = threading.Event()
    with listen(spec, deadline) as listener:
        # Accepting must go on while this rank connects and waits: the others wait for its answer.
        doorman = threading.Thread(
            target=_accept_all, args=(listener, spec, incoming, stop), daemon=True
        )
        doorman.start()
        outgoing: dict[int, socket.socket] = {}
        if spec.linktest.to is not None:
            outgoing[spec.linktest.to] = connect(spec, spec.linktest.to, deadline)
            carry_payload(outgoing[spec.linktest.to])
        events.write(
            "ready", local=spec.address, connections=describe(outgoing.items())
        )
        started = wait_for_release(
            directory / "go", outgoing.items(), spec.go_timeout_s
        )
        stop.set()
        doorman.join(timeout=5.0)
    events.write("started", at=started)
    with onic(spec) as flows, contextlib.ExitStack() as stack:
        if flows is not None:
            for peer in outgoing:
                light_by = time.monotonic() + spec.peer_timeout_s
                stack.enter_context(flows.light(spec.peers[peer], light_by))
        posted = Posted(directory / FILE, spec.world_size) if spec.posted else None
        sent, streams = _exchange(spec, outgoing, incoming, started, posted)
    for stream in streams:
        seconds = stream.last - (stream.counted_from or stream.last)
        events.write(
            "linktest",
            peer=stream.peer,
            bytes=stream.counted_bytes,
            seconds=seconds,
            rate_bps=stream.counted_bytes * 8 / seconds if seconds > 0 else None,
        )
    events.write(
        "done",
        bytes_sent=sent,
        bytes_received=sum(stream.bytes for stream in streams),
        connections=len(outgoing) + len(incoming),
        **done_fields(posted),
    )


def _accept_all(
    listener: socket.socket,
    spec: WorkerSpec,
    incoming: dict[int, socket.socket],
    stop: threading.Event,
) -> None:
    stopped = False
    while not stopped:
        # Once more after the stop: who has connected may not have been accepted yet.
        stopped = stop.is_set()
        while (accepted := accept(listener, spec, time.monotonic() + 0.02)) is not None:
            incoming[accepted[0].peer] = accepted[1]


def _exchange(
    spec: WorkerSpec,
    outgoing: dict[int, socket.socket],
    incoming: dict[int, socket.socket],
    started: float,
    posted: Posted | None,
) -> tuple[int, list[_Incoming]]:
    """Send and receive until the time is over and every incoming stream has ended. Return the bytes sent, and
    the streams.

    Bytes are posted once the socket has taken them: how many it will take is not known before.
    """
    block, into = memoryview(bytes(_BLOCK)), memoryview(bytearray(_BLOCK))
    end = started + spec.linktest.seconds
    warm = started + spec.linktest.seconds * _WARM_UP
    streams = [_Incoming(peer) for peer in incoming]
    sent = 0
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            incoming[stream.peer].setblocking(False)
            selector.register(incoming[stream.peer], selectors.EVENT_READ, stream)
        for peer, connection in outgoing.items():
            connection.setblocking(False)
            # A short queue in the socket, so that little is left to drain when the time is over.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _BLOCK)
            selector.register(connection, selectors.EVENT_WRITE, peer)
        while selector.get_map():
            ready = selector.select(spec.peer_timeout_s)
            if not ready:
                waiting = next(iter(selector.get_map().values())).data
                peer = waiting.peer if isinstance(waiting, _Incoming) else waiting
                raise PeerLost(peer, f"no byte moved for {spec.peer_timeout_s:g} s")
            for key, _ in ready:
                connection = key.fileobj  # type: ignore[assignment]
                stream = key.data
                peer = stream.peer if isinstance(stream, _Incoming) else stream
                try:
                    if isinstance(stream, _Incoming):
                        open_still = _receive(connection, stream, into, warm)
                    else:
                        open_still = time.monotonic() < end
                        if open_still:
                            count = connection.send(block)
                            sent += count
                            if posted is not None:
                                posted.add(peer, count)
                        else:
                            connection.shutdown(socket.SHUT_WR)
                except OSError as error:
                    raise PeerLost(peer, error.strerror or str(error)) from error
                if not open_still:
                    selector.unregister(connection)
    # The receiver closes last: its end of file says that all has arrived.
    for connection in incoming.values():
        connection.close()
    for peer, connection in outgoing.items():
        connection.settimeout(spec.peer_timeout_s)
        try:
            connection.recv(1)
        except OSError as error:
            raise PeerLost(peer, error.strerror or str(error)) from error
        connection.close()
    return sent, streams


def _receive(
    connection: socket.socket, stream: _Incoming, into: memoryview, warm: float
) -> bool:
    count = connection.recv_into(into)
    now = time.monotonic()
    if not count:
        return False
    stream.bytes += count
    if stream.counted_from is not None:
        stream.counted_bytes += count
        stream.last = now
    elif now >= warm:
        stream.counted_from = stream.last = now
    return True
