"""The pulse of another part: whether it answers, and how far its clock is from this one's.

The first part asks each other one for its clock, again and again. Of the quickest answers one knows best when
they were given: a clock that was read within a round trip is known to half of it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ringlight.extensions.hosts.parts.door import ASK, CLOCK, END, TIME, client_tls
from ringlight.extensions.hosts.parts.plan import Parts, Place

log = logging.getLogger(__name__)

#: Between two questions, seconds; answers that are remembered; longest wait for one, seconds.
EVERY_S, REMEMBERED, ANSWER_S = 0.5, 120, 3.0
#: So long without an answer, a part counts as lost; and a part that hears nothing for so long ends by itself,
#: which is later: nobody may count on one that has ended, seconds.
LOST_S, LEASE_S = 10.0, 30.0
#: The same where the host says that nobody listens any more: its part has ended, seconds.
GONE_S = 1.5
#: Longest wait for an end that was asked for, seconds.
END_S = 20.0


class Pulse:
    """Asks in a thread of its own, from :meth:`start` on. ``on_lost``: called once, in that thread.

    ``offset_s``: how much later the other part's CLOCK_MONOTONIC is; ``error_s``: how wrong that may be.
    """

    def __init__(
        self, parts: Parts, place: Place, on_lost: Callable[[Place], None]
    ) -> None:
        self._parts, self.place, self._on_lost = parts, place, on_lost
        self._tls = None if parts.tls is None else client_tls(parts.tls)
        self._known: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)
        self._connection: socket.socket | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"pulse {place.host}", daemon=True
        )
        self.answered = threading.Event()
        self.lost = False

    @property
    def offset_s(self) -> float:
        """0 before the first answer."""
        return min(self._known)[1] if self._known else 0.0

    @property
    def error_s(self) -> float:
        """Infinite before the first answer."""
        return min(self._known)[0] / 2 if self._known else float("inf")

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def end(self) -> None:
        """Ask no more, and have the part end; it may be gone. Does not wait for it."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * ANSWER_S)
        with suppress(OSError):
            connection = self._connected()
            connection.sendall(END)

    def await_end(self, timeout_s: float) -> bool:
        """Return whether the part, after a request to end, has closed its door or cannot be reached."""
        connection, self._connection = self._connection, None
        if connection is None:
            return False
        with connection:
            try:
                connection.settimeout(max(0.1, timeout_s))
                return not connection.recv(1)
            except TimeoutError:
                return False
            except OSError:
                return True

    def _run(self) -> None:
        heard_s = time.monotonic()
        while not self._stop.wait(EVERY_S if self._known else 0.05):
            try:
                self._known.append(self._asked())
                self.answered.set()
                heard_s = time.monotonic()
            except OSError as error:
                self._hang_up()
                refused = isinstance(error, ConnectionRefusedError)
                if refused and not self._known:
                    # It is still to open its door, and the host answers.
                    heard_s = time.monotonic()
                bearable_s = GONE_S if refused else LOST_S
                if not self.lost and time.monotonic() - heard_s > bearable_s:
                    self.lost = True
                    log.error(
                        "host %s does not answer: %s",
                        self.place.host,
                        error or type(error).__name__,
                    )
                    self._on_lost(self.place)

    def _asked(self) -> tuple[float, float]:
        """Round trip of one question, and how much later the other clock is. Raises OSError."""
        connection = self._connected()
        sent_s = time.monotonic()
        connection.sendall(ASK)
        received = b""
        while len(received) < TIME.size:
            more = connection.recv(TIME.size - len(received))
            if not more:
                raise ConnectionResetError("it hung up")
            received += more
        trip_s = time.monotonic() - sent_s
        return trip_s, TIME.unpack(received)[0] - (sent_s + trip_s / 2)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            plain = socket.create_connection(
                (self.place.ip, self.place.door), timeout=ANSWER_S
            )
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = (
                plain if self._tls is None else self._tls.wrap_socket(plain)
            )
            self._connection.sendall(f"{self._parts.token} {CLOCK}\n".encode())
        return self._connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
