"""Orders to workers that stay from one attempt of their job to the next (``containers.worker.resident``)."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from ringlight.containers.worker.resident import DONE, ORDERS, RUN, STOP

#: Longest wait until a resident has come, and until it has done what it was told, seconds.
ANSWER_S = 20.0


class Orders:
    """The agent's end of a resident's orders: a socket in its ``directory``, which belongs to root.

    Methods raise OSError (TimeoutError, where the resident does not answer); one thread at a time may call.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / ORDERS
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(1)
        self._listener.settimeout(ANSWER_S)
        self._connection: socket.socket | None = None

    def run(self, name: str) -> None:
        """Start an attempt in the subdirectory ``name``, in the place of one that may be under way."""
        self._give(RUN + name)

    def stop(self) -> None:
        """End the attempt under way, if there is one."""
        self._give(STOP)

    def _give(self, order: str) -> None:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
            self._connection.settimeout(ANSWER_S)
        self._connection.send(order.encode())
        if self._connection.recv(16) != DONE:
            raise ConnectionResetError("the resident has ended")

    def close(self) -> None:
        for end in (self._connection, self._listener):
            if end is not None:
                with suppress(OSError):
                    end.close()
