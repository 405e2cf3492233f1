"""Rigs around the emulated switch for drivers that use TL1."""

from __future__ import annotations

import re
from io import BufferedReader

from ringlight.extensions.tl1.grammar import (
    CommandFramer,
    MessageFramer,
    Reply,
    Report,
    format_report,
    parse_command,
)
from ringlight.testbed.rigs.emulated import Proxy, ScpiRig

WHEN = "26-11-23 08:45:20"
#: What comes between each command and its reply: a report with a first ``;`` that is not the end.
NOISE = format_report(Report("**", "77", "REPT ALM PORT", ("2:MJ,LOS,SA;",), ("not; yours",), "noise"), WHEN)
#: Which commands add, and which only remove.
ADDITION, REMOVAL = "ENT-|ACT-", "DLT-|CANC-"


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
                if isinstance(message, Reply) and message.ctag == ctag and not message.more:
                    return NOISE + received
        return b""


class PolatisProxy(Tl1Proxy):
    WRITE = re.compile(rb"\A((ENT|DLT)-PATCH|(OPR|RLS)-PORT-SHUTTER):")
    READ = re.compile(rb"\ARTRV-PATCH:")


class CalientProxy(Tl1Proxy):
    # Both phases of making a circuit, and of ending one, count as one write: the last.
    WRITE = re.compile(rb"\A(ACT-CRS|DLT-CRS|(ENT|DLT)-CRS-BULK):")
    READ = re.compile(rb"\ARTRV-CRS:")


class PolatisTl1Rig(ScpiRig):
    addition, removal = ADDITION, REMOVAL
    recoveries = ("RESTORE",)
    protocol = "polatis-tl1"
    profile = "polatis-7000"
    proxy_of = PolatisProxy
    #: The dialect only tells whether a port's shutter is open.
    shows_failed = False


class CalientTl1Rig(ScpiRig):
    addition, removal = ADDITION, REMOVAL
    recoveries = ("REMOVE",)
    protocol = "calient-tl1"
    profile = "calient-s320"
    proxy_of = CalientProxy
