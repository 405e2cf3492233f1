"""Acme's protocol from the switch's side: a request is a line, and each has one line as its reply.

    ID                  OK Acme P8 A0001 1.0 8            vendor, model, serial, version, size
    SHOW                OK 2 1-9 2-10* TMBB…              count, cross-connects (* while mirrors move), ports
    POWER 1 9           OK -1.2 -60.0                     dBm; -60.0 is no light
    CONNECT 1 9 2 10    OK                                pairs of free ports; all or none
    CLEAR 1 9           OK                                exactly these pairs; all or none
    ENABLE 3            OK                                DISABLE likewise; cross-connects stay

A port is T tuned, M moving, B without light, D disabled or F failed. What is refused has ``ERR`` and the
reason as its reply. A write is answered once it is carried out; its light may still be tuned.
"""

from ringlight.fabric.crossconnect import PortState
from ringlight.testbed.emulation.optical.commands import Admin, DeviceError, Rewire, SetAdmin
from ringlight.testbed.emulation.optical.monitors import power_dbm
from ringlight.testbed.emulation.optical.session import Conversation, ManagementProtocol, Switch, Work

MAX_LINE_BYTES = 1 << 16
_LETTERS = {PortState.TUNED: "T", PortState.TUNING: "M", PortState.FAILED: "F"}


class AcmeSession(Conversation[bytes]):
    """The conversation of one client."""

    def __init__(self, switch: Switch) -> None:
        super().__init__()
        self._device = switch.device
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.requests.extend(line.decode("ascii", "replace") for line in lines)
        self.over = len(self._rest) > MAX_LINE_BYTES

    def advance(self, now_ns: int) -> bytes:
        return b"".join(self._replies(now_ns))

    def _work(self, request: str, now_ns: int) -> Work[bytes]:
        word, *arguments = request.split() or [""]
        try:
            numbers = tuple(map(int, arguments))
            command = _command(word, numbers)
            if command is None:
                return f"OK {self._answer(word, numbers, now_ns)}\n".encode()
            ticket = self._device.submit(now_ns, command)
            while not ticket.done:
                now_ns = yield None
            if ticket.error is not None:
                raise ticket.error
        except ValueError:
            return b"ERR syntax\n"
        except DeviceError as error:
            return f"ERR {error}\n".encode()
        return b"OK\n"

    def _answer(self, word: str, ports: tuple[int, ...], now_ns: int) -> str:
        """Return the answer to a question. Raises ValueError, DeviceError."""
        device = self._device
        match word, ports:
            case "ID", ():
                return f"Acme P{device.size} A0001 1.0 {device.size}"
            case "SHOW", ():
                wires = device.cross_connects()
                moving = ["" if device.mirrors.is_tuned(wire, now_ns) else "*" for wire in wires]
                pairs = [f"{w.ingress}-{w.egress}{star}" for w, star in zip(wires, moving, strict=True)]
                letters = [self._letter(port, now_ns) for port in range(1, 2 * device.size + 1)]
                return " ".join([str(len(wires)), *pairs, "".join(letters)])
            case "POWER", (_, *_):
                return " ".join(f"{power_dbm(device, port, now_ns):.1f}" for port in ports)
        raise ValueError(word)

    def _letter(self, port: int, now_ns: int) -> str:
        if self._device.admin(port) is Admin.DISABLED:
            return "D"
        return _LETTERS.get(self._device.port_state(port, now_ns), "B")


def _command(word: str, numbers: tuple[int, ...]) -> Rewire | SetAdmin | None:
    """Return the device's command for a write, None for what is no write. Raises ValueError."""
    if word in ("CONNECT", "CLEAR"):
        pairs = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return Rewire(add=pairs) if word == "CONNECT" else Rewire(remove=pairs)
    if word in ("ENABLE", "DISABLE"):
        (port,) = numbers
        return SetAdmin((port,), word == "ENABLE")
    return None


PROTOCOL = ManagementProtocol(AcmeSession, 7070, "telnet {host} {port}")
