"""Sockets of an O-NIC's agent: bound, accepted from, and removed with their files."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from ringlight.controller.onic.agent_settings import Address

MAX_CLIENTS = 64
_PEER_CREDENTIALS = struct.Struct("3i")


class Sockets:
    """All sockets that an agent has but those of its clients."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Return two sockets that are connected to each other."""
        ends = socket.socketpair()
        self._sockets += ends
        return ends

    def bind(
        self,
        family: socket.AddressFamily,
        kind: socket.SocketKind,
        where: Address | Path,
        mode: int = 0,
    ) -> socket.socket:
        """Return a bound socket. Raises OSError naming the address."""
        opened = socket.socket(
            family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._sockets.append(opened)
        try:
            if isinstance(where, Path):
                where.unlink(missing_ok=True)
                opened.bind(str(where))
                where.chmod(mode)
                opened.listen(MAX_CLIENTS)
            else:
                opened.bind(where)
        except OSError as error:
            raise OSError(error.errno, f"{where}: {error.strerror or error}") from error
        return opened

    def close(self) -> None:
        """Close all, and remove their files."""
        for opened in self._sockets:
            name = (
                opened.getsockname()
                if opened.family == socket.AF_UNIX and opened.fileno() >= 0
                else None
            )
            opened.close()
            if isinstance(name, str) and name:
                Path(name).unlink(missing_ok=True)
        self._sockets = []


def accepted(
    listener: socket.socket, present: int, counts: dict[str, int]
) -> socket.socket | None:
    """Return the connection of a new client beside ``present`` others; None if it is refused or gone.

    Refused clients are counted in ``counts``.
    """
    try:
        connection, _ = listener.accept()
    except OSError:
        # The client is gone already.
        return None
    if present >= MAX_CLIENTS:
        counts["refused_clients"] += 1
        connection.close()
        return None
    connection.setblocking(False)
    return connection


def from_here(connection: socket.socket) -> bool:
    """Return whether a client of a Unix socket shares this process's PID namespace, so is
    not in a container.
    """
    data = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size
    )
    pid, _, _ = _PEER_CREDENTIALS.unpack(data)
    try:
        return (
            os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
        )
    except OSError:
        return False
