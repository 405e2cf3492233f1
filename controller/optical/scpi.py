"""Polatis (HUBER+SUHNER) series 6000/7000 over SCPI: lines of text on TCP port 5025.

The upper half turns values into lines and lines into values, without I/O; the lower half is a client
that never mixes up replies (any trouble closes the connection) and never repeats a write.

A set command answers nothing by itself. It is sent with ``*opc?`` behind it, whose reply tells that the
switch is done and its mirrors stand, and is followed by ``:syst:err?``. Whether it did what it should is for
the base class to read back, behind these in the same message where that is soon enough. Pairs are removed by
ingress and egress, so a circuit that someone else moved meanwhile is not hit. ``conn:only`` is sent only
where everything else is to go anyway (REPLACE mode), because it changes light with one dark time instead of
two; ``disc:all`` and ``*rst`` are never sent.

Questions that belong together are one message (``a?;b?``, answered ``x;y``, as in IEEE 488.2) where the
switch has shown, when it was opened, that it answers so. Public clients of real switches send a command with
one question behind it, not more; so a switch that does not show it gets one question at a time.

A wavelength-selective switch (WSS) speaks the same with a third list, the channel of each pair: our own
extension (docs/optical-management.md), which only the emulated WSS knows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.controller.optical import readings
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.connection import Connection, ask_again
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    Indeterminate,
    OpticalError,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Entry
from ringlight.controller.optical.model import Capabilities, Identity, Snapshot
from ringlight.controller.optical.plan_run import Verb
from ringlight.fabric.crossconnect import CrossConnect

log = logging.getLogger(__name__)

#: Cross-connects per command. 128 pairs are a line of about 1 kB.
MAX_BATCH = 128
#: Ports per power query, the switch's own limit.
MAX_POWER_PORTS = 256
#: A reply longer than this is garbage; 4,096 pairs need 50 kB.
MAX_REPLY_BYTES = 1 << 20
#: Longest wait for the reply to a query, seconds.
REPLY_S = 5.0
#: Longest wait for two replies to one message of a switch that may not give them, seconds.
COMPOUND_S = 1.0

#: Asks for everything that a reading holds.
_STATE = (":oxc:swit:conn:stat?", ":oxc:swit:port:stat?")
_VERBS: Mapping[Verb, str] = {"remove": "sub", "add": "add", "replace": "only"}
_LIST = re.compile(r"\(@([\d,: ]*)\)")
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?::\s*(\d{1,6})\s*)?")
_REPLY = re.compile(r'(?:[^;"]|"[^"]*")+')
_ERROR = re.compile(r'\s*([+-]?\d+)\s*,\s*"(.*)"\s*')


# Lines and values


class LineBuffer:
    """Bytes in, lines out, holding at most ``limit`` bytes of an unfinished line."""

    def __init__(self, limit: int = MAX_REPLY_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that these bytes complete, without their ends. Raises ProtocolError."""
        self._bytes += data
        *lines, rest = self._bytes.split(b"\n")
        self._bytes = bytearray(rest)
        if len(rest) > self._limit:
            raise ProtocolError(f"a reply of more than {self._limit} bytes")
        try:
            return [bytes(line).decode("ascii").strip("\r") for line in lines]
        except UnicodeDecodeError:
            raise ProtocolError("a reply that is not ASCII", repr(data)) from None

    @property
    def empty(self) -> bool:
        return not self._bytes


def format_ports(ports: Iterable[int]) -> str:
    """Return ``(@1,2,3)``; ``(@)`` for no ports."""
    return f"(@{','.join(str(port) for port in ports)})"


def format_pairs(cross_connects: Iterable[CrossConnect]) -> str:
    """Return ``(@1,2),(@17,18)``: ingresses, then egresses, then wavelengths if there are any."""
    pairs = list(cross_connects)
    lists = [[xc.ingress for xc in pairs], [xc.egress for xc in pairs]]
    colours = [xc.wavelength for xc in pairs if xc.wavelength is not None]
    return ",".join(
        format_ports(ports) for ports in (*lists, *([colours] if colours else []))
    )


def parse_ports(text: str) -> tuple[int, ...]:
    """Return the ports of ``(@1,3:5)``. Raises ProtocolError."""
    whole = _LIST.fullmatch(text.strip())
    if whole is None:
        raise ProtocolError("not a port list", text)
    ports: list[int] = []
    for part in whole[1].split(",") if whole[1].strip() else ():
        if part.isdecimal() and len(part) <= 6:
            ports.append(int(part))
            continue
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ProtocolError("not a port list", text)
        first = int(match[1])
        last = int(match[2] or first)
        if not 0 <= last - first < 1 << 14:
            raise ProtocolError("not a port range", text)
        ports.extend(range(first, last + 1))
    return tuple(ports)


def parse_pairs(text: str, wavelengths: int = 0) -> tuple[CrossConnect, ...]:
    """Return the cross-connects of ``(@1,2),(@18,17)``; with wavelengths, of ``(@1,1),(@18,17),(@1,3)``.

    Raises ProtocolError.
    """
    pieces = text.strip().split("),(")
    if len(pieces) != (3 if wavelengths else 2):
        raise ProtocolError(f"not {'three' if wavelengths else 'two'} port lists", text)
    lists = [
        parse_ports(f"({piece.removeprefix('(').removesuffix(')')})")
        for piece in pieces
    ]
    if any(len(numbers) != len(lists[0]) for numbers in lists):
        raise ProtocolError("port lists of different lengths", text)
    return tuple(CrossConnect(*numbers) for numbers in zip(*lists, strict=True))


def _line(verb: Verb, batch: Sequence[CrossConnect]) -> str:
    return f":oxc:swit:conn:{_VERBS[verb]} {format_pairs(batch)}"


def _parse_items(text: str) -> list[str]:
    inner = text.strip()
    if not (inner.startswith("(") and inner.endswith(")")):
        raise ProtocolError("not a list in parentheses", text)
    return (
        [item.strip() for item in inner[1:-1].split(",")] if inner[1:-1].strip() else []
    )


def parse_port_states(text: str) -> tuple[str, ...]:
    """Return the letters of ``(E,D,F)``: enabled, disabled, failed. Raises ProtocolError."""
    letters = tuple(_parse_items(text))
    if any(letter not in ("E", "D", "F") for letter in letters):
        raise ProtocolError("not port states", text)
    return letters


def parse_powers(text: str) -> tuple[float, ...]:
    """Return the dBm of ``(-12.3,-40.1)``. Raises ProtocolError."""
    try:
        return tuple(float(item) for item in _parse_items(text))
    except ValueError:
        raise ProtocolError("not optical powers", text) from None


def split_replies(text: str, count: int) -> list[str]:
    """Return the replies to ``count`` questions of one message, ``1;0,"No error"``. Raises ProtocolError."""
    replies = _REPLY.findall(text)
    if ";".join(replies) != text or len(replies) != count:
        raise ProtocolError(f"not {count} replies", text)
    return replies


def parse_size(text: str) -> tuple[int, int]:
    """Return the ingress and egress counts of ``16,16``. Raises ProtocolError."""
    match = re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", text)
    if match is None:
        raise ProtocolError("not a switch size", text)
    return int(match[1]), int(match[2])


def parse_error(text: str) -> tuple[int, str]:
    """Return code and text of one entry of the error queue; code 0 means no error. Raises ProtocolError."""
    match = _ERROR.fullmatch(text)
    if match is None:
        raise ProtocolError("not an error queue entry", text)
    return int(match[1]), match[2]


def parse_identity(text: str) -> Identity:
    """Return the identity in ``Polatis,N-OST-24x24-LA1-DMHNS,002414,6.5.2.18``. Raises ProtocolError."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 4:
        raise ProtocolError("not an identity", text)
    return Identity(*parts)


# The client


class ScpiClient:
    """Client with one connection. Not for several threads.

    ``compound``: the switch answers several questions in one message; see :meth:`try_compound`.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.compound = False
        self._connection = Connection(host, port)
        self._buffer = LineBuffer()

    def close(self) -> None:
        self._connection.close()

    def query(self, line: str, deadline: Deadline) -> str:
        """Return the one-line reply to a question. Raises Unreachable, DeadlineExceeded, ProtocolError."""
        return ask_again(
            self._connection.is_open, lambda: self._exchange(line, deadline)
        )

    def questions(self, lines: Sequence[str], deadline: Deadline) -> list[str]:
        """Return the replies to several questions, in one exchange if the switch supports it.

        Raises Unreachable, DeadlineExceeded, ProtocolError.
        """
        if not self.compound:
            return [self.query(line, deadline) for line in lines]
        reply = self.query(";".join(lines), deadline)
        try:
            return split_replies(reply, len(lines))
        except ProtocolError:
            self.close()
            raise

    def try_compound(self, line: str, reply: str, deadline: Deadline) -> None:
        """Ask twice in one message what was answered with ``reply`` before, to learn ``compound``.

        Raises what :meth:`errors` raises.
        """
        self.compound = False
        try:
            answer = self._exchange(
                f"{line};{line}", Deadline(min(COMPOUND_S, deadline.check()))
            )
            self.compound = answer == f"{reply};{reply}"
        except OpticalError as error:
            log.info("%s: one question at a time: %s", self.name, error)
        if not self.compound:
            # A second reply may still come, and an error may have been noted that is no later command's.
            self.close()
            self.errors(deadline)

    def command(
        self, line: str, deadline: Deadline, then: Sequence[str] = ()
    ) -> list[str]:
        """Send a set command and wait until the switch has completed it. Return the replies to ``then``.

        ``then``: questions appended to the same message; there are no replies if the switch accepts only one
        question at a time. Raises Refused with the switch's own error, Unreachable or DeadlineExceeded if
        nothing was sent, Indeterminate if the command was sent and its outcome is unknown.
        """
        self._connect(deadline)
        try:
            if self.compound:
                message = ";".join((line, "*opc?", ":syst:err?", *then))
                reply = self._exchange(message, deadline, whole=True)
                done, first, *answers = split_replies(reply, 2 + len(then))
            else:
                done, first, answers = (
                    self._exchange(f"{line};*opc?", deadline, whole=True),
                    None,
                    [],
                )
            if done.strip() != "1":
                raise ProtocolError("unexpected reply to *opc?", done)
            errors = self.errors(deadline, first)
        except OpticalError as error:
            self.close()
            raise Indeterminate(f"no end of {line.split()[0]} seen: {error}") from error
        if errors:
            raise Refused(f"{line[:80]}: {'; '.join(errors)}")
        return answers

    def errors(self, deadline: Deadline, first: str | None = None) -> list[str]:
        """Empty the switch's error queue. Return its entries. ``first``: the first entry, if already read.

        Raises Unreachable, DeadlineExceeded, ProtocolError.
        """
        entries: list[str] = []
        while len(entries) < 64:
            entry = (
                first if first is not None else self._exchange(":syst:err?", deadline)
            )
            code, text = parse_error(entry)
            first = None
            if code == 0:
                return entries
            entries.append(f"{code} {text}")
        raise ProtocolError("the error queue does not end", entries[-1])

    def _connect(self, deadline: Deadline) -> None:
        if self._connection.open(deadline):
            self._buffer = LineBuffer()

    def _exchange(self, line: str, deadline: Deadline, whole: bool = False) -> str:
        """Send a line, return the next. ``whole``: use all the time to the deadline."""
        self._connect(deadline)
        limit, what = deadline if whole else deadline.within(REPLY_S), line[:40]
        lines: list[str] = []
        try:
            self._connection.send(f"{line}\n".encode("ascii"), limit, what)
            while not lines:
                data = self._connection.receive(limit, what)
                if not data:
                    raise Unreachable("the switch closed the connection")
                lines = self._buffer.feed(data)
            if len(lines) > 1 or not self._buffer.empty:
                raise ProtocolError(f"more than one reply to {what}", str(lines[:3]))
        except OpticalError:
            # Later bytes on this connection would be taken for the reply to the next question.
            self.close()
            raise
        log.debug("%s: %.200s -> %.200s", self.name, line, lines[0])
        return lines[0]


# The driver


class ScpiDriver(OpticalSwitchDriver):
    """A dual-sided N x N switch: ingress 1..N, egress N+1..2N, from the inventory entry ``{"address":
    "host:port", "profile": {…}}``; ``"wavelengths": W`` for a WSS with W channels."""

    def __init__(
        self, name: str, keys: Mapping[str, Any], size: int, openflow: object = None
    ) -> None:
        entry = Entry(name, keys)
        self.wavelengths = int(keys.get("wavelengths") or 0)
        more = {
            "max_replace": MAX_BATCH,
            "port_admin": True,
            "wavelengths": self.wavelengths,
        }
        can = Capabilities.dual_sided(size, MAX_BATCH, entry.profile, **more)
        # `*opc?` is answered once the mirrors stand; only the receivers then have something to do.
        timing = replace(
            can.timing, after_answer_s=float(entry.profile.get("retrain_s", 0.0))
        )
        super().__init__(name, replace(can, timing=timing))
        self._client = ScpiClient(name, *entry.address())

    def _open(self, deadline: Deadline) -> Identity:
        identity = parse_identity(self._client.query("*idn?", deadline))
        size_text = self._client.query(":oxc:swit:size?", deadline)
        readings.check_size(parse_size(size_text), self.size)
        if self.wavelengths:
            # Asked only where it should know the answer: a real optical circuit switch does not.
            reported = self._client.query(":oxc:swit:wav?", deadline).strip()
            if reported != str(self.wavelengths):
                raise ProtocolError(
                    f"the switch tells {reported} wavelengths apart, the fabric says {self.wavelengths}"
                )
        self._client.try_compound(":oxc:swit:size?", size_text, deadline)
        return identity

    def _close(self) -> None:
        self._client.close()

    def _read(self, deadline: Deadline) -> Snapshot:
        return self._snapshot(*self._client.questions(_STATE, deadline))

    def _snapshot(self, pairs_text: str, states_text: str) -> Snapshot:
        pairs = parse_pairs(pairs_text, self.wavelengths)
        letters = parse_port_states(states_text)
        if len(letters) != 2 * self.size:
            raise ProtocolError(f"{len(letters)} port states for {2 * self.size} ports")
        if not self.wavelengths:
            readings.checked_pairs(pairs)
        return readings.snapshot(self.name, pairs, dict(enumerate(letters, start=1)))

    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.command(_line("remove", batch), deadline)

    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.command(_line("add", batch), deadline)

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        self._client.command(_line("replace", whole), deadline)

    def _write_and_read(
        self, verb: Verb, batch: Sequence[CrossConnect], deadline: Deadline
    ) -> Snapshot | None:
        answers = self._client.command(_line(verb, batch), deadline, then=_STATE)
        return self._snapshot(*answers) if answers else None

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        verb = "enab" if enabled else "dis"
        self._client.command(f":oxc:swit:port:{verb} {format_ports([port])}", deadline)

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
        by_port: dict[int, float | None] = {}
        for start in range(0, len(ports), MAX_POWER_PORTS):
            part = ports[start : start + MAX_POWER_PORTS]
            powers = parse_powers(
                self._client.query(f":pmon:pow? {format_ports(part)}", deadline)
            )
            if len(powers) != len(part):
                raise ProtocolError(f"{len(powers)} powers for {len(part)} ports")
            by_port.update(zip(part, powers, strict=True))
        return by_port
