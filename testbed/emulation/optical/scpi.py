"""The SCPI dialect of Polatis 6000/7000 switches, from the device's side: bytes in, reply bytes out.

One :class:`ScpiSession` per client; no sockets and no clock. Supported, in long and short form and in any
case (LF or CR ends a message, ``;`` separates commands in it):

    *IDN? *OPC? *CLS *RST
    :OXC:SWITch:SIZE?
    :OXC:SWITch:CONNect:ADD (@1,2),(@17,18)    refuses a busy port; an existing pair is left untouched
    :OXC:SWITch:CONNect:ONLY (@1,2),(@17,18)   the whole set; pairs that stay are left untouched
    :OXC:SWITch:CONNect:SUB (@1),(@17)         or (@1),(@): whatever the ingress ports feed
    :OXC:SWITch:CONNect:STATe?                 (@1,2),(@17,18)
    :OXC:SWITch:CONNect:PORT? 1                "17", or "" when it is not connected
    :OXC:SWITch:DISConnect:ALL
    :OXC:SWITch:PORT:ENABle (@1:3)   :OXC:SWITch:PORT:DISable (@1:3)
    :OXC:SWITch:PORT:STATe? [(@1:3)]           (E,D,F): enabled, disabled, failed
    :PMON:POWer? (@17,18)                      (-1.7,-60.0) dBm, at most 256 ports; -60.0 is no light
    :SYSTem:ERRor[:NEXT]?   :SYSTem:ERRor:ALL?

A wavelength-selective switch takes and gives one list more, a channel (from 0) for each pair. This is our
own extension of the dialect, docs/optical-management.md:

    :OXC:SWITch:WAVelength?                    4; 0 on a switch that passes every colour alike
    :OXC:SWITch:CONNect:ADD (@1,1),(@6,7),(@1,2)      likewise ONLY and SUB; SUB (@1),(@) on all channels
    :OXC:SWITch:CONNect:STATe?                 (@1,1),(@6,7),(@1,2)
    :OXC:SWITch:CONNect:PORT? 1,2              port 1 on channel 2

When things answer. A command holds back the next one of the same client until the device has carried it
out (the profile's command time); so a query after it sees its effect, though perhaps not yet its light.
``*OPC?`` answers 1 when every command before it has been carried out and its light is tuned; it does not
wait for the far receiver to re-train. It answers after a refused command too: read the error queue.

Each client has its own error queue, so that ``*CLS`` by one does not hide another's errors. A command in
error changes nothing, and the commands after it in the message are still done.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ringlight.testbed.emulation.optical.commands import (
    Admin,
    Clear,
    Command,
    DeviceError,
    Fault,
    Pairs,
    Rewire,
    SetAdmin,
    Ticket,
    Wire,
)
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.monitors import power_dbm
from ringlight.testbed.emulation.optical.session import (
    VERSION,
    Conversation,
    ManagementProtocol,
    Switch,
    Work,
)

MAX_MESSAGE_BYTES = 1 << 16
MAX_PORTS = 8192
MAX_POWER_PORTS = 256
MAX_ERRORS = 32

ERRORS = {
    -101: "Invalid character",
    -104: "Data type error",
    -108: "Parameter not allowed",
    -109: "Missing parameter",
    -111: "Header separator error",
    -113: "Undefined header",
    -221: "Settings conflict",
    -222: "Data out of range",
    -223: "Too much data",
    -240: "Hardware error",
    -350: "Queue overflow",
    -363: "Input buffer overrun",
}
_FAULTS = {Fault.RANGE: -222, Fault.CONFLICT: -221, Fault.HARDWARE: -240}


class ScpiError(Exception):
    """An entry for the error queue."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(f"{ERRORS[code]}; {detail}" if detail else ERRORS[code])
        self.code = code

    def __str__(self) -> str:
        return f'{self.code},"{self.args[0]}"'


class _Unit(NamedTuple):
    """One command of a message. ``path`` is its header's keywords in short form, upper case."""

    path: tuple[str, ...]
    query: bool
    parameters: str


_OVERRUN = object()
_LINE = re.compile(rb"([\r\n])")
_HEADER = re.compile(r"(\*[A-Za-z]+|:?[A-Za-z]+(?::[A-Za-z]+)*)(\?)?")
_PORT_LIST = re.compile(r"\(@([^()@]*)\)")
_LISTS = re.compile(r"\s*\(@[^()]*\)(\s*,\s*\(@[^()]*\))*\s*")
_LIST = re.compile(r"\(@[^()]*\)")
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?::\s*(\d{1,6})\s*)?")


def parse_ports(text: str) -> tuple[int, ...]:
    """Return the port numbers of one channel list, ``(@1,3:5)``. ``(@)`` is empty. Raises ScpiError."""
    whole = _PORT_LIST.fullmatch(text.strip())
    if whole is None:
        raise ScpiError(-104, f"{_quotable(text)} is not a port list such as (@1,2)")
    if not whole[1].strip():
        return ()
    ports: list[int] = []
    for part in whole[1].split(","):
        # Nearly all are so, and light waits for it.
        if part.isdecimal() and len(part) <= 6 and len(ports) < MAX_PORTS:
            ports.append(int(part))
            continue
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ScpiError(-104, f"{_quotable(part)} is not a port")
        first, last = int(match[1]), int(match[2] or match[1])
        step = 1 if first <= last else -1
        if len(ports) + abs(last - first) + 1 > MAX_PORTS:
            raise ScpiError(-223, f"more than {MAX_PORTS} ports")
        ports.extend(range(first, last + step, step))
    return tuple(ports)


def format_ports(ports: list[int]) -> str:
    return f"(@{','.join(map(str, ports))})"


def _quotable(text: str) -> str:
    """Text that can stand inside a quoted error message."""
    return text.strip()[:40].replace('"', "'")


def _split_lists(text: str) -> list[str]:
    """``(@1,2),(@3)`` to its lists; anything that is not lists and commas comes back as one piece."""
    if _LISTS.fullmatch(text):
        return _LIST.findall(text)
    return [text] if text.strip() else []


class ScpiSession(Conversation[bytes]):
    """One client's conversation; a request is a message, or `_OVERRUN`."""

    def __init__(self, device: OpticalDevice, identity: str) -> None:
        super().__init__()
        self._device = device
        self._identity = identity
        self._buffer = bytearray()
        self._overrun = False
        self._path: tuple[str, ...] = ()
        #: Commands whose light is not tuned yet.
        self._tuning: list[Ticket] = []
        self._errors: deque[ScpiError] = deque()

    def feed(self, data: bytes) -> None:
        """Takes bytes as they come; how they are split makes no difference."""
        for piece in _LINE.split(data):
            if piece in (b"\r", b"\n"):
                # The LF of a CR LF ends no further message.
                if self._overrun or self._buffer:
                    self.requests.append(
                        _OVERRUN if self._overrun else bytes(self._buffer)
                    )
                self._overrun = False
                self._buffer.clear()
            elif not self._overrun:
                self._buffer += piece
                if len(self._buffer) > MAX_MESSAGE_BYTES:
                    self._overrun = True
                    self._buffer.clear()

    def advance(self, now_ns: int) -> bytes:
        """Do what can be done now, and return the bytes to send. May leave commands with the device: advance
        the device, then call again."""
        self._wake_ns = None
        return b"".join(self._replies(now_ns))

    def _work(self, message: bytes | object, now_ns: int) -> Work[bytes]:
        self._path = ()
        replies: list[str] = []
        for text in self._units(message):
            while text.upper() == "*OPC?" and now_ns < self._tuned_ns():
                now_ns = yield self._tuned_ns()
            try:
                done = self._do(self._parse(text), now_ns)
            except ScpiError as error:
                self._record(error)
                continue
            except DeviceError as error:
                self._record(_from_device(error))
                continue
            if isinstance(done, str):
                replies.append(done)
                continue
            while not done.done:
                now_ns = yield None
            if done.error is not None:
                self._record(_from_device(done.error))
            self._tuning = [
                ticket for ticket in (*self._tuning, done) if ticket.tuned_ns > now_ns
            ]
        return f"{';'.join(replies)}\n".encode() if replies else b""

    def _tuned_ns(self) -> int:
        """Time at which the light of every command so far is tuned."""
        return max((ticket.tuned_ns for ticket in self._tuning), default=0)

    def _units(self, message: bytes | object) -> list[str]:
        """The commands of a message."""
        if not isinstance(message, bytes):
            self._record(
                ScpiError(-363, f"a message is at most {MAX_MESSAGE_BYTES} bytes")
            )
            return []
        try:
            # What a telnet client makes of a CR is CR and NUL.
            text = message.replace(b"\0", b"").decode("ascii")
        except UnicodeDecodeError:
            self._record(ScpiError(-101))
            return []
        return [unit for unit in map(str.strip, text.split(";")) if unit]

    def _record(self, error: ScpiError) -> None:
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(error)
        else:
            self._errors[-1] = ScpiError(-350)

    def _parse(self, text: str) -> _Unit:
        match = _HEADER.match(text)
        if match is None:
            raise (
                ScpiError(-113, _quotable(text))
                if text.isprintable()
                else ScpiError(-101)
            )
        rest = text[match.end() :]
        if rest and not rest[0].isspace():
            raise ScpiError(-111, _quotable(text))
        header, query = match[1], match[2] is not None
        if header.startswith("*"):
            return _Unit((header.upper(),), query, rest.strip())
        words = tuple(header.upper().lstrip(":").split(":"))
        # A header without a leading colon continues the path of the command before it in the message.
        for path in (
            ((*self._path, *words), words) if not header.startswith(":") else (words,)
        ):
            known = _KNOWN.get((path, query))
            if known is not None:
                self._path = path[:-1]
                return _Unit(known, query, rest.strip())
        raise ScpiError(-113, _quotable(header))

    def _do(self, unit: _Unit, now_ns: int) -> str | Ticket:
        """The reply to a query, or what the device has to do."""
        if unit.path == ("*CLS",) and not unit.query:
            self._errors.clear()
            return Ticket(done=True)
        if unit.query and unit.path in _QUERIES:
            return _QUERIES[unit.path](self, unit.parameters, now_ns)
        if unit.query or unit.path not in _COMMANDS:
            raise ScpiError(-113, unit.path[0])
        command = _COMMANDS[unit.path](unit.parameters, self._device.wavelengths > 0)
        return self._device.submit(now_ns, command)

    # Queries

    def _connections(self, parameters: str, now_ns: int) -> str:
        wires = self._device.cross_connects()
        lists = [[wire.ingress for wire in wires], [wire.egress for wire in wires]]
        if self._device.wavelengths:
            lists.append([wire.wavelength or 0 for wire in wires])
        return ",".join(format_ports(ports) for ports in lists)

    def _peer(self, parameters: str, now_ns: int) -> str:
        text = parameters.strip()
        match = re.fullmatch(r"(\d{1,6})(?:\s*,\s*(\d{1,6}))?", text)
        if match is None:
            raise ScpiError(-104 if text else -109, _quotable(text))
        if self._device.wavelengths and match[2] is None:
            raise ScpiError(-109, "a wavelength is wanted: port,wavelength")
        peer = self._device.peer(
            int(match[1]), None if match[2] is None else int(match[2])
        )
        return f'"{"" if peer is None else peer}"'

    def _port_state(self, parameters: str, now_ns: int) -> str:
        ports = (
            parse_ports(parameters)
            if parameters
            else tuple(range(1, 2 * self._device.size + 1))
        )
        letters = {Admin.ENABLED: "E", Admin.DISABLED: "D", Admin.FAILED: "F"}
        return f"({','.join(letters[self._device.admin(port)] for port in ports)})"

    def _power(self, parameters: str, now_ns: int) -> str:
        if not parameters:
            raise ScpiError(-109)
        ports = parse_ports(parameters)
        if len(ports) > MAX_POWER_PORTS:
            raise ScpiError(-223, f"more than {MAX_POWER_PORTS} ports")
        return f"({','.join(f'{power_dbm(self._device, port, now_ns):.1f}' for port in ports)})"

    def _error(self, parameters: str, now_ns: int) -> str:
        return str(self._errors.popleft()) if self._errors else '0,"No error"'

    def _all_errors(self, parameters: str, now_ns: int) -> str:
        text = ",".join(map(str, self._errors)) or '0,"No error"'
        self._errors.clear()
        return text


def _from_device(error: DeviceError) -> ScpiError:
    return ScpiError(_FAULTS[error.fault], str(error))


# Commands

#: From a command's parameters, and whether the switch tells wavelengths apart.
Maker = Callable[[str, bool], Command]
_COUNT = {2: "two", 3: "three"}


def _pairs(parameters: str, coloured: bool) -> Pairs:
    """The pairs of ``(@1,2),(@17,18)``; ``coloured``: with a third list, of their wavelengths."""
    if not parameters:
        raise ScpiError(-109)
    lists = _split_lists(parameters)
    syntax = (
        "(@ingress),(@egress),(@wavelength)" if coloured else "(@ingress),(@egress)"
    )
    count = 3 if coloured else 2
    if len(lists) != count:
        raise ScpiError(
            -109 if len(lists) < count else -108,
            f"{_COUNT[count]} port lists are wanted: {syntax}",
        )
    ports = [parse_ports(text) for text in lists]
    if any(len(group) != len(ports[0]) for group in ports):
        kinds = zip(
            (len(group) for group in ports),
            ("ingress", "egress", "wavelength"),
            strict=False,
        )
        raise ScpiError(
            -104, f"{' and '.join(f'{n} {kind}' for n, kind in kinds)} ports"
        )
    return tuple(Wire(*pair) for pair in zip(*ports, strict=True))


def _subtract(parameters: str, coloured: bool) -> Command:
    lists = _split_lists(parameters)
    if len(lists) == 2 and not parse_ports(lists[1]):
        return Clear(parse_ports(lists[0]), ingress=True)
    return Rewire(remove=_pairs(parameters, coloured))


def _set_admin(enabled: bool) -> Maker:
    def make(parameters: str, _coloured: bool) -> Command:
        if not parameters:
            raise ScpiError(-109)
        return SetAdmin(parse_ports(parameters), enabled)

    return make


def _no_parameters(command: Command) -> Maker:
    def make(parameters: str, _coloured: bool) -> Command:
        if parameters:
            raise ScpiError(-108, _quotable(parameters))
        return command

    return make


_QUERIES: dict[tuple[str, ...], Callable[[ScpiSession, str, int], str]] = {
    ("*IDN",): lambda session, *_: session._identity,
    ("*OPC",): lambda *_: "1",
    ("OXC", "SWITch", "SIZE"): lambda session, *_: (
        f"{session._device.size},{session._device.size}"
    ),
    ("OXC", "SWITch", "WAVelength"): lambda session, *_: str(
        session._device.wavelengths
    ),
    ("OXC", "SWITch", "CONNect", "STATe"): ScpiSession._connections,
    ("OXC", "SWITch", "CONNect", "PORT"): ScpiSession._peer,
    ("OXC", "SWITch", "PORT", "STATe"): ScpiSession._port_state,
    ("PMON", "POWer"): ScpiSession._power,
    ("SYSTem", "ERRor"): ScpiSession._error,
    ("SYSTem", "ERRor", "NEXT"): ScpiSession._error,
    ("SYSTem", "ERRor", "ALL"): ScpiSession._all_errors,
}
_COMMANDS: dict[tuple[str, ...], Maker] = {
    ("*RST",): _no_parameters(Rewire(only=True)),
    ("OXC", "SWITch", "CONNect", "ADD"): lambda parameters, coloured: Rewire(
        _pairs(parameters, coloured)
    ),
    ("OXC", "SWITch", "CONNect", "ONLY"): lambda parameters, coloured: Rewire(
        _pairs(parameters, coloured), only=True
    ),
    ("OXC", "SWITch", "CONNect", "SUB"): _subtract,
    ("OXC", "SWITch", "DISConnect", "ALL"): _no_parameters(Rewire(only=True)),
    ("OXC", "SWITch", "PORT", "ENABle"): _set_admin(True),
    ("OXC", "SWITch", "PORT", "DISable"): _set_admin(False),
}


def _spellings(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every mix of long and short keywords of a header, in upper case."""
    spellings: list[tuple[str, ...]] = [()]
    for word in path:
        short = "".join(letter for letter in word if not letter.islower())
        spellings = [
            (*head, form)
            for head in spellings
            for form in dict.fromkeys((word.upper(), short))
        ]
    return spellings


_KNOWN: dict[tuple[tuple[str, ...], bool], tuple[str, ...]] = {
    (spelling, query): path
    for table, query in ((_QUERIES, True), (_COMMANDS, False))
    for path in table
    for spelling in _spellings(path)
}


def _session(switch: Switch) -> ScpiSession:
    return ScpiSession(switch.device, f"Polatis,{switch.model},{switch.name},{VERSION}")


PROTOCOL = ManagementProtocol(
    _session, 5025, r"printf '*idn?\n:oxc:swit:conn:stat?\n' | nc -N {host} {port}"
)
