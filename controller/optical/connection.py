"""A TCP connection to a switch's management port on which every wait ends at a deadline.

It is made when it is needed and made anew after trouble, by whoever speaks a protocol on it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    DeadlineExceeded,
    OpticalError,
    Unreachable,
)

#: Longest wait for a connection, TLS included, seconds.
CONNECT_S = 3.0

Answer = TypeVar("Answer")


def ask_again(was_open: bool, question: Callable[[], Answer]) -> Answer:
    """Return the answer to a question.

    If the switch has dropped the connection that was open, the question is sent again, once, on a new
    connection. Never use this for a write. Raises Unreachable.
    """
    try:
        return question()
    except Unreachable:
        if not was_open:
            raise
        return question()


class Connection:
    """``tls``: how to check the switch's certificate; None for plain TCP. Not for several threads."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._tls = (host, port), tls
        #: ``host:port`` as it is written.
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def open(self, deadline: Deadline) -> bool:
        """Connect unless already connected. Return whether a connection was made.

        Raises Unreachable, DeadlineExceeded.
        """
        if self._socket is not None:
            return False
        limit = deadline.within(CONNECT_S)
        try:
            made = socket.create_connection(self._address, timeout=limit.check())
        except OSError as error:
            raise Unreachable(f"no connection to {self.authority}: {error}") from None
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                made.settimeout(limit.check())
                made = self._tls.wrap_socket(made, server_hostname=self._address[0])
        except (OSError, ValueError) as error:
            made.close()
            raise Unreachable(f"no TLS with {self.authority}: {error}") from None
        except OpticalError:
            made.close()
            raise
        self._socket = made
        return True

    def send(self, data: bytes, limit: Deadline, what: str) -> None:
        """Send all bytes. ``what``: the request, for errors. Raises DeadlineExceeded, Unreachable."""
        with self._by(limit, what) as connection:
            connection.sendall(data)

    def receive(self, limit: Deadline, what: str) -> bytes:
        """Return the bytes that arrive next; empty at the connection's end.

        Raises DeadlineExceeded, Unreachable.
        """
        with self._by(limit, what) as connection:
            return connection.recv(1 << 16)

    def is_quiet(self) -> bool:
        """Return whether the connection is open and nothing unexpected has arrived, neither bytes nor its
        end.
        """
        if self._socket is None:
            return False
        self._socket.settimeout(0.0)
        try:
            # A TLS socket cannot peek; what it would read here is the end, or what nobody asked for.
            self._socket.recv(
                1, 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_PEEK
            )
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    @contextmanager
    def _by(self, limit: Deadline, what: str) -> Iterator[socket.socket]:
        assert self._socket is not None
        try:
            self._socket.settimeout(limit.check())
            yield self._socket
        except TimeoutError:
            raise DeadlineExceeded(f"no reply to {what}") from None
        except OSError as error:
            raise Unreachable(f"connection lost: {error}") from None
