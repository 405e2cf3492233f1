"""An emulated optical switch without kernel and root: one device, one management protocol, real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.optical_profiles import IDEAL, Profile
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.faulty_session import FaultySession
from ringlight.testbed.emulation.optical.session import Session, Switch, protocol_named
from ringlight.testbed.emulation.optical.switch_faults import (
    Faults,
    FaultSpec,
    Injected,
    Kind,
)
from tests.http_script import request

#: How often a session without a word from its client is asked what it has to say, seconds.
_TURN_S = 0.002


class ModelSwitch:
    """Serves ``protocol`` on a port of its own while it is entered. Faceplates 1..``lit`` receive light."""

    def __init__(
        self,
        protocol: str,
        size: int = 16,
        profile: Profile = IDEAL,
        users: Mapping[str, str] | None = None,
        lit: int = 8,
    ) -> None:
        self.device = OpticalDevice(size, profile, seed=1)
        for port in range(1, lit + 1):
            self.device.receive(port, True)
        self.switch = Switch("ocs0", self.device, users or {})
        self.protocol = protocol
        self.faults = Faults(self.device, [protocol])
        self._begin = protocol_named(protocol).session
        self._lock = threading.Lock()
        self._stop = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: All that clients have sent.
        self.heard = bytearray()
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ModelSwitch:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def cross_connects(self) -> set[CrossConnect]:
        with self._lock:
            return {
                CrossConnect(wire.ingress, wire.egress)
                for wire in self.device.cross_connects()
            }

    def inject(self, kind: str, **more: Any) -> Injected:
        """A fault; see `testbed.emulation.optical.switch_faults`."""
        with self._lock:
            return self.faults.add(time.monotonic_ns(), FaultSpec(Kind(kind), **more))[
                0
            ]

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            for fault in self.faults.all():
                self.faults.clear(time.monotonic_ns(), fault.id)

    def lit(self) -> set[CrossConnect]:
        """What really has light."""
        with self._lock:
            wires = [
                wire
                for wire in self.device.cross_connects()
                if not self.device.mirrors.is_ghost(wire)
            ]
            return {CrossConnect(wire.ingress, wire.egress) for wire in wires}

    def _accept(self) -> None:
        while not self._stop:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def drop(self) -> None:
        """Every connection ends; new ones can be made."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        session = FaultySession(self._begin(self.switch), self.protocol, self.faults)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(_TURN_S)
        with client, contextlib.suppress(OSError):
            while not self._stop:
                try:
                    data = client.recv(1 << 16)
                    if not data:
                        return
                except TimeoutError:
                    data = b""
                with self._lock:
                    self.heard += data
                    session.feed(data)
                    out = self._work(session)
                client.sendall(out)
                if session.over:
                    return

    def _work(self, session: Session) -> bytes:
        """What the session has to say now."""
        out = b""
        while True:
            now_ns = time.monotonic_ns()
            self.faults.advance(now_ns)
            self.device.advance(now_ns)
            out += session.advance(now_ns)
            times = (self.device.next_ns, self.faults.next_ns, session.next_ns)
            due = [at for at in times if at is not None]
            if not due or min(due) > time.monotonic_ns():
                return out


class Talk:
    """A web client that speaks to a session without sockets, at a time that passes only while it waits."""

    def __init__(self, protocol: str, switch: Switch) -> None:
        self.switch, self.device = switch, switch.device
        self.session = protocol_named(protocol).session(switch)
        self.now_ns = 0
        self.headers: dict[str, str] = {}

    def send(
        self, method: str, target: str, body: object = None, **headers: str
    ) -> None:
        """A request; ``body`` is JSON unless it is bytes."""
        self.session.feed(request(method, target, body, **self.headers, **headers))

    def hear(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (names in lower case) and body of the answer."""
        out = self.session.advance(self.now_ns)
        while not out:
            assert self.device.next_ns is not None, "no answer"
            self.now_ns = max(self.now_ns, self.device.next_ns)
            self.device.advance(self.now_ns)
            out = self.session.advance(self.now_ns)
        head, _, body = out.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = [line.split(": ", 1) for line in lines]
        return (
            int(first.split()[1]),
            {name.lower(): value for name, value in pairs},
            body,
        )
