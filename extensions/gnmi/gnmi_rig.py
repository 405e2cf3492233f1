"""Shared parts of rigs whose drivers speak gNMI: a proxy that reads HTTP/2 and spoils single calls."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from ringlight.testbed.rigs.emulated import ScpiRig
from ringlight.testbed.rigs.proxy import Proxy

_PREFACE_BYTES, _HEAD_BYTES = 24, 9


class Frames:
    """Bytes to the frames of HTTP/2, each with its bytes. ``skip``: bytes before the first."""

    def __init__(self, skip: int = 0) -> None:
        self._skip = skip
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, bytes]]:
        from hyperframe.frame import Frame

        self._bytes += data
        while len(self._bytes) >= self._skip + _HEAD_BYTES:
            frame, length = Frame.parse_frame_header(
                memoryview(bytes(self._bytes[self._skip : self._skip + _HEAD_BYTES]))
            )
            whole = self._skip + _HEAD_BYTES + length
            if len(self._bytes) < whole:
                return
            raw = bytes(self._bytes[:whole])
            frame.parse_body(memoryview(raw[self._skip + _HEAD_BYTES :]))
            del self._bytes[:whole]
            self._skip = 0
            yield frame, raw


def summary_of(request: bytes) -> str:
    """Summarise a Set request and return the text, such as "delete 2, replace 1". ``request`` begins with
    gRPC's five bytes.
    """
    from pygnmi.spec.v080 import gnmi_pb2 as gnmi

    message = gnmi.SetRequest.FromString(request[5:])
    parts = {
        "delete": message.delete,
        "replace": message.replace,
        "add": message.update,
    }
    return ", ".join(f"{verb} {len(some)}" for verb, some in parts.items() if some)


class GnmiProxy(Proxy):
    """Passes frames, counts Sets, and ends a connection before a Set has come or instead of its answer."""

    def _serve(self, client: socket.socket) -> None:
        methods: dict[int, str] = {}
        lost: set[int] = set()
        with self._with_switch(client) as switch:

            def back() -> None:
                with contextlib.suppress(OSError):
                    self._answers(switch, client, methods, lost)
                self._cut(client, switch)

            answers = threading.Thread(target=back, name="proxy", daemon=True)
            answers.start()
            try:
                self._calls(client, switch, methods, lost)
            finally:
                self._cut(client, switch)
                answers.join(5)

    @staticmethod
    def _cut(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _calls(
        self,
        client: socket.socket,
        switch: socket.socket,
        methods: dict[int, str],
        lost: set[int],
    ) -> None:
        from hpack import Decoder
        from hyperframe.frame import DataFrame, HeadersFrame

        frames, decoder = Frames(_PREFACE_BYTES), Decoder()
        requests: dict[int, bytes] = {}
        while data := client.recv(1 << 16):
            for frame, raw in frames.feed(data):
                number = frame.stream_id
                if isinstance(frame, HeadersFrame):
                    assert "END_HEADERS" in frame.flags, (
                        "headers in several frames are not read here"
                    )
                    headers = {
                        str(name): str(value)
                        for name, value in decoder.decode(frame.data)
                    }
                    methods[number] = headers.get(":path", "").rpartition("/")[2]
                elif isinstance(frame, DataFrame) and methods.get(number) == "Set":
                    requests[number] = requests.get(number, b"") + frame.data
                    # A request without its last frame has no effect.
                    if "END_STREAM" in frame.flags:
                        self.seen.append(summary_of(requests.pop(number)))
                        lose, self.lose = self.lose, None
                        if lose is False:
                            return
                        if lose:
                            lost.add(number)
                switch.sendall(raw)

    def _answers(
        self,
        switch: socket.socket,
        client: socket.socket,
        methods: dict[int, str],
        lost: set[int],
    ) -> None:
        from hyperframe.frame import DataFrame

        frames = Frames()
        while data := switch.recv(1 << 16):
            for frame, raw in frames.feed(data):
                if frame.stream_id in lost:
                    if "END_STREAM" in frame.flags:
                        time.sleep(0.02)
                        return
                elif (
                    self.garble
                    and isinstance(frame, DataFrame)
                    and methods.get(frame.stream_id) == "Get"
                ):
                    client.sendall(raw[: len(raw) // 2])
                    return
                else:
                    client.sendall(raw)


class GnmiRig(ScpiRig):
    """A model gives it its protocol and a product."""

    addition, removal = r"\Aadd ", r"\bdelete\b"
    recoveries = ("RESTORE",)
    shows_tuning = True
    proxy_of = GnmiProxy

    @classmethod
    def missing(cls) -> str:
        installed = all(
            importlib.util.find_spec(package) for package in ("pygnmi", "h2")
        )
        return (
            ""
            if installed
            else "the extra gnmi is not installed: pip install 'ringlight[gnmi]'"
        )
