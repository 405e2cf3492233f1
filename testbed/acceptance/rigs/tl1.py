"""Rigs around the emulated switch where the driver speaks TL1."""

from __future__ import annotations

import re
import socket
import time
from typing import ClassVar

from ringlight.controller.optical.tl1 import (
    Command,
    CommandFramer,
    MessageFramer,
    Reply,
    Report,
    format_command,
    format_report,
    parse_command,
)
from ringlight.testbed.acceptance.rigs.emulated import Proxy, ScpiRig

WHEN = "26-11-23 08:45:20"
#: What comes between each command and its reply: a report with a first ``;`` that is not the end.
NOISE = format_report(Report("**", "77", "REPT ALM PORT", ("2:MJ,LOS,SA;",), ("not; yours",), "noise"), WHEN)


class Tl1Proxy(Proxy):
    """Passes commands and replies, counts writes, misbehaves on demand; a report goes before every reply."""

    #: A write, whatever comes before it to prepare it.
    write: ClassVar[re.Pattern[str]]
    #: A reading that ``garble`` spoils.
    reading: ClassVar[str]

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream, timeout=30) as switch:
            with self._lock:
                self._sockets |= {client, switch}
            commands, replies = CommandFramer(), MessageFramer()
            try:
                while data := client.recv(1 << 16):
                    for text in commands.feed(data):
                        if not self._relay(parse_command(text or ""), client, switch, replies):
                            return
            except OSError:
                pass
            finally:
                with self._lock:
                    self._sockets -= {client, switch}

    def _relay(
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
    #: The dialect only tells whether a port's shutter is open.
    shows_failed = False


class CalientTl1Rig(ScpiRig):
    recoveries = ("REMOVE",)
    protocol = "calient-tl1"
    profile = "calient-s320"
    proxy_of = CalientProxy
