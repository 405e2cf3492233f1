"""The emulated optical switch under its web protocols: Calient's REST and Polatis' RESTCONF."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BufferedReader
from typing import Any, ClassVar

from ringlight.testbed.rigs.emulated import Proxy, ScpiRig

#: Which requests add, and which only remove, by their methods or by what is in them.
ADDITION = r"\APUT |\APATCH |id=b?add|\bmerge\b|\bcreate\b"
REMOVAL = r"\ADELETE |id=b?del|\bdelete\b"


class HttpProxy(Proxy):
    """Proxy between a web client and its switch."""

    WRITE = re.compile(rb"\A(POST|PUT|PATCH|DELETE) ")
    READ = re.compile(rb"\AGET \S*(cross-connects|crossconnects|OCS_CROSS_CONNECT)")

    def request(self, file: BufferedReader) -> bytes:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                return b""
            head += line
        length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
        return head + file.read(int(length[1]) if length else 0)

    def reply(self, file: BufferedReader, request: bytes) -> bytes:
        return self.request(file)


class CalientRestRig(ScpiRig):
    """Calient's REST, which shows neither failed nor disabled ports."""

    addition, removal = ADDITION, REMOVAL
    shows_failed = False
    recoveries = ("MAINTAIN",)
    protocol = "calient-rest"
    proxy_of = HttpProxy


class PolatisRestconfRig(ScpiRig):
    """Polatis' RESTCONF, of a switch that is known to keep what it has shown."""

    addition, removal = ADDITION, REMOVAL
    recoveries = ("REMOVE",)
    protocol = "polatis-restconf"
    proxy_of = HttpProxy
    more: ClassVar[Mapping[str, Any]] = {"settle_s": 0}


class SonicRestRig(ScpiRig):
    """SONiC's REST, whose models know no optical power."""

    addition, removal = ADDITION, REMOVAL
    recoveries = ("RESTORE",)
    shows_tuning = True
    protocol = "sonic-ocs"
    profile = "sonic-ocs"
    proxy_of = HttpProxy
