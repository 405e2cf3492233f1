"""A client of TL1 that is no driver of ours."""

from __future__ import annotations

import socket

from ringlight.extensions.tl1.tl1_grammar import MessageFramer, Reply, Report
from ringlight.testbed.rigs.emulated import PASSWORD, USER


class Client:
    """One connection, line by line; every wait has an end."""

    def __init__(
        self, address: str, user: str = USER, password: str = PASSWORD
    ) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._framer = MessageFramer()
        self._messages: list[Reply | Report] = []
        self.login = self.ask(f'ACT-USER::{user}:1::"{password}";')

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: str) -> Reply:
        self._socket.sendall(command.encode())
        while True:
            message = self.message()
            if isinstance(message, Reply):
                return message

    def message(self) -> Reply | Report | None:
        """The next one; None when the switch has hung up."""
        while not self._messages:
            data = self._socket.recv(1 << 16)
            if not data:
                return None
            self._messages += self._framer.feed(data)
        return self._messages.pop(0)

    def report(self) -> Report:
        """The next report."""
        while True:
            message = self.message()
            assert message is not None, "the switch hung up"
            if isinstance(message, Report):
                return message
