"""Shared parts of rigs whose drivers speak HTTP."""

from __future__ import annotations

import re
from io import BufferedReader

from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.proxy import Proxy


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


class HttpRig(ScpiRig):
    """A protocol gives it its name and a product. Which requests add, and which only remove, is told by their
    methods or by what is in them."""

    addition = r"\APUT |\APATCH |id=b?add|\bmerge\b|\bcreate\b"
    removal = r"\ADELETE |id=b?del|\bdelete\b"
    proxy_of = HttpProxy
