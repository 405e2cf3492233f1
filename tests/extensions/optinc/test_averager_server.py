"""The averager's sockets, where they fail."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any

import pytest

from ringlight.extensions.optinc.emulated import server as server_module
from ringlight.extensions.optinc.emulated.core import Core, Unit
from ringlight.extensions.optinc.emulated.lookup import Lookup, LookupSample, evaluate
from ringlight.extensions.optinc.emulated.server import Server
from ringlight.extensions.optinc.unit.averaging import Coding

CODING = Coding(8, 4)


class Failing(socket.socket):
    """A listener whose first callers are gone, or find no file descriptor left."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = [errno.ECONNABORTED, errno.EMFILE]

    def accept(self) -> Any:
        if self.fails:
            number = self.fails.pop()
            raise OSError(number, os.strerror(number))
        return super().accept()


def test_a_caller_that_cannot_be_taken_does_not_end_the_averager() -> None:
    core = Core(
        Unit(CODING), Lookup(evaluate(None, CODING)), LookupSample(None, CODING, 1, 8)
    )
    with Failing() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = Server(core, listener)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), 5.0) as caller:
                caller.settimeout(5.0)
                # No averager says this first: it hangs up.
                caller.sendall(b"\xff" * 4096)
                try:
                    while caller.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
            assert not listener.fails
            assert thread.is_alive()
        finally:
            server.stop()
            thread.join(5.0)
    assert not thread.is_alive()


def test_callers_that_say_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_STRANGERS", 4)
    core = Core(
        Unit(CODING), Lookup(evaluate(None, CODING)), LookupSample(None, CODING, 1, 8)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(core, listener)
        thread = threading.Thread(target=server.run)
        thread.start()
        most = 4 + 2 * CODING.servers
        try:
            callers = [
                socket.create_connection(listener.getsockname(), 5.0)
                for _ in range(most + 1)
            ]
            assert callers[-1].recv(1) == b""
            callers[0].settimeout(0.2)
            with pytest.raises(TimeoutError):
                callers[0].recv(1)
            for caller in callers:
                caller.close()
        finally:
            server.stop()
            thread.join(5.0)
