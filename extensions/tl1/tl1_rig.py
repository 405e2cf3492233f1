"""Shared parts of rigs whose drivers speak TL1."""

from __future__ import annotations

from io import BufferedReader

from ringlight.extensions.tl1.tl1_grammar import (
    CommandFramer,
    MessageFramer,
    Reply,
    Report,
    format_report,
    parse_command,
)
from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.proxy import Proxy

WHEN = "26-11-23 08:45:20"
#: What comes between each command and its reply: a report with a first ``;`` that is not the end.
NOISE = format_report(
    Report("**", "77", "REPT ALM PORT", ("2:MJ,LOS,SA;",), ("not; yours",), "noise"),
    WHEN,
)


class Tl1Proxy(Proxy):
    """Passes commands and replies; a report goes before every reply."""

    def request(self, file: BufferedReader) -> bytes:
        framer, command = CommandFramer(), b""
        while byte := file.read(1):
            command += byte
            if framer.feed(byte):
                return command
        return b""

    def reply(self, file: BufferedReader, request: bytes) -> bytes:
        framer, received = MessageFramer(), b""
        (text,) = CommandFramer().feed(request)
        ctag = parse_command(text or "").ctag
        while data := file.read1(1 << 16):
            received += data
            for message in framer.feed(data):
                if (
                    isinstance(message, Reply)
                    and message.ctag == ctag
                    and not message.more
                ):
                    return NOISE + received
        return b""


class Tl1Rig(ScpiRig):
    """A dialect gives it its protocol, a product and a proxy."""

    addition, removal = "ENT-|ACT-", "DLT-|CANC-"
