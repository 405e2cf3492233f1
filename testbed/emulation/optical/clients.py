"""Clients of an emulated optical switch: heard, answered, and dropped when they are silent too long."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ringlight.testbed.emulation.optical.faulty_session import FaultySession

log = logging.getLogger(__name__)

MAX_CLIENTS = 64
#: Silence after which one is dropped that was never answered or has not logged in, seconds.
HALF_OPEN_S = 60.0
#: A client that was answered gives way to a newcomer after so much silence, seconds.
YIELD_S = 10.0
#: A client that does not read its replies is dropped when this much waits for it.
MAX_UNREAD_BYTES = 1 << 22
#: A client that says no more gets replies for so long yet, seconds, and the dark time of a new cross-connect:
#: it may have gone, which cannot be told from here.
ENDED_S = 10.0


@dataclass
class Client:
    """``answered``: whether it has asked something and got an answer."""

    connection: socket.socket
    session: FaultySession
    unread: bytearray
    heard_s: float
    events: int = 0
    ended: bool = False
    spoke: bool = False
    answered: bool = False

    @property
    def half_open(self) -> bool:
        return not (self.answered and self.session.established)


class Clients:
    """The clients of a switch, by their connections.

    ``selector``: gets what is called when a client can be read or written. ``idle_timeout_s``: silence after
    which a client is dropped, seconds; ``dark_s``: longest dark time of a new cross-connect, seconds.
    """

    def __init__(
        self, selector: selectors.BaseSelector, idle_timeout_s: float, dark_s: float
    ) -> None:
        self._selector, self._idle_timeout_s, self._dark_s = (
            selector,
            idle_timeout_s,
            dark_s,
        )
        self._clients: dict[socket.socket, Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def next_times_ns(self) -> list[int]:
        """Return the times at which sessions have something to do, nanoseconds of CLOCK_MONOTONIC."""
        times = [client.session.next_ns for client in self._clients.values()]
        return [due_ns for due_ns in times if due_ns is not None]

    def expiries_s(self) -> list[float]:
        """Return the times at which clients will have been silent too long, seconds of CLOCK_MONOTONIC."""
        return [
            client.heard_s + self._patience_s(client)
            for client in self._clients.values()
        ]

    def advance(self, now_ns: int) -> None:
        """Have all sessions do what they can now."""
        for client in self._clients.values():
            reply = client.session.advance(now_ns)
            client.answered |= client.spoke and bool(reply)
            client.unread += reply

    def write(self) -> None:
        """Send what the connections take of the replies."""
        for client in self:
            self._write(client)

    def expire(self) -> None:
        """Drop whoever has been silent too long. What came while this process stood still is heard first."""
        for client in [client for client in self if self._has_expired(client)]:
            if client.events & selectors.EVENT_READ:
                self._read(client)
            if client.connection in self._clients and self._has_expired(client):
                log.info(
                    "a client was idle for %g s and is dropped",
                    self._patience_s(client),
                )
                self._drop(client)

    def close(self) -> None:
        """Drop all clients."""
        for client in self:
            self._drop(client)

    def accept(
        self, listener: socket.socket, session: Callable[[], FaultySession]
    ) -> None:
        """Take in whoever calls, with a new session, unless there are too many."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            log.warning("accept: %s", error)
            return
        if len(self._clients) >= MAX_CLIENTS and not self._make_room():
            log.warning(
                "%d clients, and none that is silent: a newcomer is turned away",
                len(self._clients),
            )
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(connection, session(), bytearray(), time.monotonic())
        self._clients[connection] = client
        self._listen_for(client, selectors.EVENT_READ)

    def _make_room(self) -> bool:
        """Drops whoever was silent longest, of those that are half open if there are any; whether somebody
        was."""
        clients = list(self._clients.values())
        silent = [client for client in clients if client.half_open]
        if not silent:
            since_s = time.monotonic() - YIELD_S
            silent = [
                client
                for client in clients
                if client.session.idle and client.heard_s <= since_s
            ]
        if not silent:
            return False
        log.warning(
            "%d clients: the one that was silent longest gives way to a newcomer",
            len(clients),
        )
        self._drop(min(silent, key=lambda client: client.heard_s))
        return True

    def _read(self, client: Client) -> None:
        try:
            data = client.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        client.heard_s = time.monotonic()
        if data:
            client.spoke = True
            client.session.feed(data)
        else:
            client.ended = True

    def _write(self, client: Client) -> None:
        if client.connection not in self._clients:
            return
        if client.unread:
            try:
                sent = client.connection.send(client.unread)
                del client.unread[:sent]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)
                return
        # A client that has said all it wants to say still gets its replies.
        if (
            client.session.over or (client.ended and client.session.idle)
        ) and not client.unread:
            self._drop(client)
            return
        if len(client.unread) > MAX_UNREAD_BYTES:
            log.warning("a client does not read its replies and is dropped")
            self._drop(client)
            return
        events = 0
        if client.session.wants_bytes and not client.ended and not client.session.over:
            events |= selectors.EVENT_READ
        if client.unread:
            events |= selectors.EVENT_WRITE
        self._listen_for(client, events)

    def _listen_for(self, client: Client, events: int) -> None:
        if events == client.events:
            return
        if not events:
            self._selector.unregister(client.connection)
        elif client.events:
            self._selector.modify(
                client.connection, events, partial(self._read, client)
            )
        else:
            self._selector.register(
                client.connection, events, partial(self._read, client)
            )
        client.events = events

    def _has_expired(self, client: Client) -> bool:
        return client.heard_s + self._patience_s(client) < time.monotonic()

    def _patience_s(self, client: Client) -> float:
        """Longest silence of a client."""
        limit_s = self._idle_timeout_s
        if client.ended:
            return min(limit_s, ENDED_S + self._dark_s)
        if client.half_open:
            return min(limit_s, HALF_OPEN_S)
        return math.inf if client.session.keeps_time else limit_s

    def _drop(self, client: Client) -> None:
        self._clients.pop(client.connection, None)
        self._listen_for(client, 0)
        client.connection.close()
