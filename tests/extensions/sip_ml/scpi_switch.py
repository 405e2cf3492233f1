"""An emulated optical switch without packets: the device and its SCPI, served by a thread."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

from ringlight.fabric.parts import OpticalSwitch
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.scpi import ScpiSession

_TURN_S = 0.001


class ScpiSwitch:
    """Serves one client at a time at ``address``. ``wrote``: called when light has changed.

    While ``hung`` it takes connections and says nothing.
    :meth:`stop` and :meth:`start` are as if its process died and came back at its address: light stays.
    """

    def __init__(
        self, switch: OpticalSwitch, wrote: Callable[[str], None] = lambda _name: None
    ) -> None:
        self.name = switch.name
        self.device = OpticalDevice(
            switch.size, switch.device, wavelengths=switch.wavelengths or 0
        )
        self._identity = (
            f"Polatis,N-EMU-{switch.size}x{switch.size},{switch.name},6.0.0.0"
        )
        self._wrote = wrote
        self._address = ("127.0.0.1", 0)
        self.hung = False
        self.start()

    @property
    def address(self) -> str:
        return "{}:{}".format(*self._address)

    def start(self) -> None:
        self._listener = socket.create_server(self._address)
        self._listener.settimeout(0.02)
        self._address = self._listener.getsockname()[:2]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                with connection:
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        session = ScpiSession(self.device, self._identity)
        connection.settimeout(_TURN_S)
        while not self._ended.is_set():
            if self.hung:
                time.sleep(_TURN_S)
                continue
            try:
                if not (heard := connection.recv(4096)):
                    return
                session.feed(heard)
            except TimeoutError:
                pass
            answer = b""
            while True:
                now_ns = time.monotonic_ns()
                if self.device.advance(now_ns):
                    self._wrote(self.name)
                answer += session.advance(now_ns)
                due = self.device.next_ns
                if due is None or due > now_ns:
                    break
            if answer:
                connection.sendall(answer)
