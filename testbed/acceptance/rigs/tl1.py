"""Rigs around the emulated switch where the driver speaks TL1."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from typing import ClassVar

from controller.optical.tl1 import (
    Command,
    CommandFramer,
    MessageFramer,
    Reply,
    Report,
    format_command,
    format_report,
    parse_command,
)
from testbed.acceptance.rigs.emulated import ScpiRig

WHEN = "26-11-23 08:45:20"
#: What comes between each command and its reply: a report with a first ``;`` that is not the end.
NOISE = format_report(Report("**", "77", "REPT ALM PORT", ("2:MJ,LOS,SA;",), ("not; yours",), "noise"), WHEN)


class Tl1Proxy:
    """Passes commands and replies, counts writes, misbehaves on demand; a report goes before every reply."""

    #: A write, whatever comes before it to prepare it.
    write: ClassVar[re.Pattern[str]]
    #: A reading that ``garble`` spoils.
    reading: ClassVar[str]

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.seen: list[str] = []
        self.lose: bool | None = None
        self.garble = False
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        for thread in self._threads:
            thread.join(5)

    def drop(self) -> None:
        with self._lock:
            for item in self._sockets:
                with contextlib.suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), name="proxy", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream, timeout=30) as switch:
            with self._lock:
                self._sockets |= {client, switch}
            commands, replies = CommandFramer(), MessageFramer()
            try:
                while data := client.recv(1 << 16):
                    for text in commands.feed(data):
                        if not self._pass(parse_command(text or ""), client, switch, replies):
                            return
            except OSError:
                pass
            finally:
                with self._lock:
                    self._sockets -= {client, switch}

    def _pass(
        self, command: Command, client: socket.socket, switch: socket.socket, replies: MessageFramer
    ) -> bool:
        write = self.write.fullmatch(command.verb) is not None
        lose, self.lose = (self.lose, None) if write else (None, self.lose)
        if write:
            self.seen.append(f"{command.verb} {command.aid}")
        if lose is False:
            return False
        switch.sendall(format_command(command))
        told, done = b"", False
        while not done:
            data = switch.recv(1 << 16)
            if not data:
                return False
            told += data
            done = any(
                isinstance(message, Reply) and message.ctag == command.ctag and not message.more
                for message in replies.feed(data)
            )
        if lose:
            time.sleep(0.02)
            return False
        if self.garble and command.verb == self.reading:
            client.sendall(told[: len(told) // 2])
            return False
        client.sendall(NOISE + told)
        return True


class PolatisProxy(Tl1Proxy):
    write = re.compile("(ENT|DLT)-PATCH|(OPR|RLS)-PORT-SHUTTER")
    reading = "RTRV-PATCH"


class CalientProxy(Tl1Proxy):
    # Both phases of making a circuit, and of ending one, count as one write: the last.
    write = re.compile("ACT-CRS|DLT-CRS|(ENT|DLT)-CRS-BULK")
    reading = "RTRV-CRS"


class PolatisTl1Rig(ScpiRig):
    recoveries = ("RESTORE",)
    protocol = "polatis-tl1"
    profile = "polatis-7000"
    proxy_of = PolatisProxy
    #: Of a port the dialect tells no more than whether its shutter is open.
    shows_failed = False


class CalientTl1Rig(ScpiRig):
    recoveries = ("REMOVE",)
    protocol = "calient-tl1"
    profile = "calient-s320"
    proxy_of = CalientProxy
