"""The averager's sockets: a listener, and TCP connections to servers and to an averager above.

A connection wakes the process when what it waits for is there, not for every packet (SO_RCVLOWAT): at 100
Mbit/s a port brings 1,400 packets in a second, but 470 frames.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringlight.extensions.optinc.emulated.core import AveragerStream, Core

_TICK_S = 0.1
#: Connections besides two for each server, which may come back before its old one is seen to have ended.
_STRANGERS = 64
_STATUS_S = 1.0
_RETRY_S = 0.05
_CONNECT_S = 0.25
#: The most that a connection waits for before it wakes the process.
_MOST_AT_ONCE = 256 * 1024


class _Link:
    """A socket, what the selector watches it for, and its least number of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.events = 0
        self.least = 1
        self.can_write = True
        self.shut = False


class Server:
    """Runs a Core on sockets until :meth:`stop`.

    ``listener``: bound and listening; stays the caller's. ``above``: address of the averager above.
    ``status``: JSON file that is replaced once a second while anything happens, with ``facts`` in it.
    """

    def __init__(
        self,
        core: Core,
        listener: socket.socket,
        above: tuple[str, int] | None = None,
        status: Path | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._core, self._listener, self._above = core, listener, above
        self._status, self._facts = status, dict(facts or {})
        self._links: dict[int, _Link] = {}
        self._most = _STRANGERS + 2 * core.unit.coding.servers
        self._selector = selectors.DefaultSelector()
        self._next = 1
        self._next_call = 0.0
        self._stopped = False
        self._cpu_s, self._began = time.process_time(), time.monotonic()

    def stop(self) -> None:
        """Make ``run`` end within a tenth of a second; may be called in a signal handler."""
        self._stopped = True

    def run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, 0)
        self._write_status()
        ticked = status_s = time.monotonic()
        try:
            while not self._stopped:
                for key, events in self._selector.select(_TICK_S):
                    if key.data == 0:
                        self._accept()
                    else:
                        self._move(key.data, events)
                self._flush()
                now = time.monotonic()
                if now - ticked >= _TICK_S:
                    ticked = now
                    self._core.tick(now)
                    self._call_above(now)
                    self._flush()
                if now - status_s >= _STATUS_S:
                    status_s = now
                    self._write_status()
        finally:
            self._write_status()
            for link in self._links.values():
                link.socket.close()
            self._selector.close()

    def status(self) -> dict[str, Any]:
        """Return the content of the status file: ``facts``, counters, and processor seconds since ``run`` was
        made ready."""
        counts = self._core.counts
        latencies = sorted(counts.latencies_s)
        return self._facts | {
            "wall_s": time.monotonic() - self._began,
            "cpu_s": time.process_time() - self._cpu_s,
            "frames": counts.frames,
            "codes": counts.codes,
            "bytes_in": counts.bytes_in,
            "bytes_out": counts.bytes_out,
            "latency_s": {
                "median": statistics.median(latencies),
                "p99": latencies[int(len(latencies) * 0.99)],
                "max": latencies[-1],
            }
            if latencies
            else None,
            "sessions": counts.sessions,
            "resets": counts.resets,
            "errors": list(counts.errors),
            "checked": self._core.checked(),
        }

    def _write_status(self) -> None:
        if self._status is None:
            return
        draft = self._status.with_name(self._status.name + ".new")
        draft.write_text(json.dumps(self.status()) + "\n")
        os.replace(draft, self._status)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # Nobody else waits, the caller is gone, or no descriptor is left: then the next turn tries.
                return
            if len(self._links) >= self._most:
                connection.close()
                continue
            self._core.connected(self._add(connection), time.monotonic())

    def _add(self, connection: socket.socket) -> int:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key, self._next = self._next, self._next + 1
        self._links[key] = _Link(connection)
        return key

    def _call_above(self, now: float) -> None:
        if not self._core.calls_above or now < self._next_call:
            return
        assert self._above is not None
        self._next_call = now + _RETRY_S
        try:
            connection = socket.create_connection(self._above, _CONNECT_S)
        except OSError as error:
            self._core.not_connected_above(error.strerror or str(error))
            return
        self._core.connected_above(self._add(connection), time.monotonic())

    def _move(self, key: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._links[key].can_write = True
        if not events & selectors.EVENT_READ or key not in self._core.streams:
            return
        room = self._core.room(key)
        if not room:
            return
        try:
            count = self._links[key].socket.recv_into(room)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(key, error.strerror or str(error))
            return
        if count:
            self._core.received(key, count, time.monotonic())
        else:
            self._drop(key, "closed its connection")

    def _drop(self, key: int, reason: str) -> None:
        link = self._links.pop(key)
        if link.events:
            self._selector.unregister(link.socket)
        link.socket.close()
        if key in self._core.streams:
            self._core.lost(key, reason, time.monotonic())

    def _flush(self) -> None:
        """Send what can be sent, and watch for what is awaited."""
        for key in list(self._links):
            if key not in self._core.streams:
                self._drop(key, "")
                continue
            stream, link = self._core.streams[key], self._links[key]
            if self._send(key, stream, link):
                self._watch(key, stream, link)

    def _send(self, key: int, stream: AveragerStream, link: _Link) -> bool:
        """Send what is ready for a connection. Return whether the connection still exists."""
        try:
            while stream.outgoing and link.can_write:
                count = link.socket.send(stream.outgoing[0].data)
                self._core.sent(key, count, time.monotonic())
            if (
                stream.closing_since is not None
                and not stream.outgoing
                and not link.shut
            ):
                link.shut = True
                link.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            link.can_write = False
        except OSError as error:
            self._drop(key, error.strerror or str(error))
            return False
        return True

    def _watch(self, key: int, stream: AveragerStream, link: _Link) -> None:
        room = stream.closing_since is not None or len(stream.ring.room()) > 0
        events = (selectors.EVENT_READ if room else 0) | (
            0 if link.can_write else selectors.EVENT_WRITE
        )
        if events != link.events:
            if not link.events:
                self._selector.register(link.socket, events, key)
            elif not events:
                self._selector.unregister(link.socket)
            else:
                self._selector.modify(link.socket, events, key)
            link.events = events
        # Whoever closes is read to the end.
        least = (
            1
            if stream.closing_since is not None
            else min(stream.bytes_needed(), _MOST_AT_ONCE)
        )
        if least != link.least:
            link.least = least
            link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)
