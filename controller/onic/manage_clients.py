"""The controller and people at an O-NIC's manage.sock: JSON lines, each answered by one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringlight.controller.onic.sockets import accepted, from_here

MAX_LINE_BYTES = 1 << 20
#: A client of manage.sock that does not read its replies is dropped when this much waits for it.
MAX_UNREAD_BYTES = 1 << 24

Operation = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass
class _Manager:
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unread: bytearray = field(default_factory=bytearray)


class ManageClients:
    """Clients that are connected.

    ``operations``: function by the name of an operation, which takes the request and returns the answer.
    ``readers`` and ``writers``: function to call when a descriptor can be read, or written.
    """

    def __init__(
        self,
        gpu: str,
        operations: Mapping[str, Operation],
        readers: dict[int, Callable[[], None]],
        writers: dict[int, Callable[[], None]],
        counts: dict[str, int],
    ) -> None:
        self._gpu, self._operations = gpu, operations
        self._readers, self._writers, self._counts = readers, writers, counts
        self._managers: dict[int, _Manager] = {}

    def accept(self, listener: socket.socket) -> None:
        """Accept a client, unless it is in a container."""
        connection = accepted(listener, len(self._managers), self._counts)
        if connection is None:
            return
        if not from_here(connection):
            self._counts["refused_clients"] += 1
            connection.close()
            return
        descriptor = connection.fileno()
        manager = self._managers[descriptor] = _Manager(connection)
        self._readers[descriptor] = lambda: self._serve(manager, True)

    def drop_all(self) -> None:
        """End all connections."""
        for manager in list(self._managers.values()):
            self._drop_manager(manager)

    def _serve(self, manager: _Manager, readable: bool) -> None:
        try:
            if readable:
                data = manager.connection.recv(65536)
                if not data:
                    raise ConnectionError
                manager.received += data
                while b"\n" in manager.received:
                    line, _, rest = bytes(manager.received).partition(b"\n")
                    manager.received = bytearray(rest)
                    manager.unread += json.dumps(self.answer(line)).encode() + b"\n"
                if (
                    len(manager.received) > MAX_LINE_BYTES
                    or len(manager.unread) > MAX_UNREAD_BYTES
                ):
                    raise ConnectionError
            if manager.unread:
                del manager.unread[: manager.connection.send(manager.unread)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop_manager(manager)
            return
        if manager.unread:
            self._writers[manager.connection.fileno()] = lambda: self._serve(
                manager, False
            )
        else:
            self._writers.pop(manager.connection.fileno(), None)

    def _drop_manager(self, manager: _Manager) -> None:
        descriptor = manager.connection.fileno()
        del self._managers[descriptor], self._readers[descriptor]
        self._writers.pop(descriptor, None)
        manager.connection.close()

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the answer to one line of a client, also where the request is wrong."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("not a JSON object")
            operation = self._operations.get(str(request.get("op")))
            if operation is None:
                raise ValueError(f"there is no operation {request.get('op')!r}")
            return {"ok": True, **operation(request)}
        except (ValueError, RecursionError, OSError) as error:
            return {"ok": False, "error": f"O-NIC {self._gpu}: {error}"}
