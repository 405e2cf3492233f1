"""Common part of all TL1 dialects of the emulated switch: login, one command at a time, replies, reports.

A dialect is a subclass with a table of commands. A command holds back the next command of the same client
until it is answered. Before a login everything except ACT-USER is denied. If the switch has no users, any
name and password will do. After CANC-USER the connection ends.

Alarms: LOS of a port that had light when the client logged in or later, and a port that fails, are reported
to every client that is logged in (`REPT ALM`, GR-833's form; a real switch's text is not known). They are
reported again with `CL` when they are over.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from ringlight.extensions.tl1.tl1_grammar import (
    Command,
    CommandFramer,
    Reply,
    Report,
    Tl1Error,
    format_reply,
    format_report,
    parse_command,
    parse_values,
    unquoted,
)
from ringlight.fabric.crossconnect import PortState
from ringlight.testbed.emulation.optical.commands import NS, DeviceError, Fault, Ticket
from ringlight.testbed.emulation.optical.monitors import Alarm, alarms_of
from ringlight.testbed.emulation.optical.session import Conversation, Switch, Work

#: How often a client's view of the alarms is brought up to date while something happens.
ALARM_NS = NS // 20
#: Names of GR-831 for why a command is denied.
TEXTS = {
    "PLNA": "Login not active",
    "PIUI": "Invalid user or password",
    "ICNV": "Command not valid",
    "IDNV": "Data not valid",
    "IIAC": "Invalid access identifier",
    "IIFM": "Invalid payload format",
    "SNVS": "Not in valid state",
    "SROF": "Requested operation failed",
}
_FAULTS = {Fault.RANGE: "IIAC", Fault.CONFLICT: "SNVS", Fault.HARDWARE: "SROF"}


class Denial(Exception):
    """A command is denied, and nothing has changed."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code = code
        self.text = detail or TEXTS[code]


@dataclass(frozen=True)
class Answer:
    """Answer to a command: an outcome, rows without quotes, comments."""

    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    outcome: str = "COMPLD"


DONE = Answer()


@dataclass(frozen=True)
class Wait:
    """The answer is that it is done, once the device has done what ``ticket`` is for, and its light is tuned
    if ``light``."""

    ticket: Ticket
    light: bool = True


Handler = Callable[[Command, int], Answer | Wait]


class Tl1Session(Conversation[bytes]):
    """One client's conversation; a request is a command, or None for one that was too long. ``offset_ns``:
    the time of day is so much more than the ``now_ns`` that it is told (None: than CLOCK_MONOTONIC)."""

    #: Written before each command is read, as a terminal shows it.
    prompt: ClassVar[bytes] = b""
    #: Rows of a page; a longer answer comes in several.
    page_rows: ClassVar[int] = 1 << 16

    def __init__(self, switch: Switch, offset_ns: int | None = None) -> None:
        super().__init__()
        self.switch, self.device = switch, switch.device
        self.sid = (
            switch.name if re.fullmatch(r"[\w.-]+", switch.name, re.ASCII) else "OCS"
        )
        self._offset_ns = (
            time.time_ns() - time.monotonic_ns() if offset_ns is None else offset_ns
        )
        self._framer = CommandFramer()
        self._user: str | None = None
        self._greeted = False
        self._heard = True
        self._heard_ns = 0
        #: Silence after which the client is logged out, nanoseconds; None for never by itself.
        self.idle_ns: int | None = None
        #: Whether the client has chosen that.
        self.keeps_time = False
        #: Whether reports are held back.
        self.silent = False
        self._atag = 0
        self._looked_ns: int | None = None
        self._alarms: dict[tuple[int, str], Alarm] = {}
        self._handlers: Mapping[str, Handler] = {
            "ACT-USER": self._log_in,
            "CANC-USER": self._log_out,
            **self.commands(),
        }

    @abstractmethod
    def commands(self) -> Mapping[str, Handler]:
        """Return the function for each command of the dialect, by verb."""

    @abstractmethod
    def port_name(self, port: int) -> str:
        """Return the dialect's name of a port of the device."""

    # As the server wants it

    @property
    def established(self) -> bool:
        return self._user is not None

    def feed(self, data: bytes) -> None:
        self._heard = self._heard or bool(data)
        self.requests.extend(self._framer.feed(data))

    def advance(self, now_ns: int) -> bytes:
        self._wake_ns = None
        if self.over:
            return b""
        if self._heard:
            self._heard, self._heard_ns = False, now_ns
        out = b"" if self._greeted else self.prompt
        self._greeted = True
        out += self._reports(now_ns) + b"".join(self._replies(now_ns))
        self._give_up(now_ns)
        return out

    def interrupted(self, reply: bytes, now_ns: int) -> bytes:
        """Return the answer with an unsolicited report before it. The first ``;`` in the report is not its
        end."""
        self._atag += 1
        row = f'{self.sid}:LOG,TC,,:\\"nothing; a fault\\"'
        report = Report("A", str(self._atag), "REPT EVT EQPT", (row,), (), self.sid)
        return format_report(report, self.when(now_ns)) + reply

    def _give_up(self, now_ns: int) -> None:
        """Ends a session that has been silent for too long."""
        if self.idle_ns is not None and not self.over and self.idle:
            self.over = now_ns >= self._heard_ns + self.idle_ns
            self._wake(None if self.over else self._heard_ns + self.idle_ns)

    # Commands

    def _work(self, text: str | None, now_ns: int) -> Work[bytes]:
        ctag = ""
        try:
            if text is None:
                raise Denial("IDNV", "the command is too long")
            command = _parsed(text)
            ctag = command.ctag
            answer = self._do(command, now_ns)
            if isinstance(answer, Wait):
                ticket = answer.ticket
                while not ticket.done:
                    now_ns = yield None
                while (
                    answer.light and ticket.error is None and now_ns < ticket.tuned_ns
                ):
                    now_ns = yield ticket.tuned_ns
                answer = self._result(ticket)
        except Denial as denial:
            answer = self.denied(denial.code, denial.text)
        except DeviceError as error:
            answer = self.denied(_FAULTS[error.fault], str(error))
        except Tl1Error as error:
            answer = self.denied("IDNV", str(error))
        return self._reply(ctag, answer, now_ns)

    def _do(self, command: Command, now_ns: int) -> Answer | Wait:
        if self._user is None and command.verb != "ACT-USER":
            raise Denial("PLNA")
        handler = self._handlers.get(command.verb)
        if handler is None:
            raise Denial("ICNV", f"{command.verb}: {TEXTS['ICNV']}")
        return handler(command, now_ns)

    def _result(self, ticket: Ticket) -> Answer:
        if ticket.error is None:
            return DONE
        if ticket.partly:
            return Answer(
                (_FAULTS[ticket.error.fault],), (_plain(str(ticket.error)),), "PRTL"
            )
        raise ticket.error

    def denied(self, code: str, text: str) -> Answer:
        """Return the dialect's denial of a command."""
        return Answer((code,), (_plain(text),), "DENY")

    def _reply(self, ctag: str, answer: Answer, now_ns: int) -> bytes:
        when, out = self.when(now_ns), b""
        pages = range(0, max(1, len(answer.rows)), self.page_rows)
        for start in pages:
            rows = answer.rows[start : start + self.page_rows]
            more = start != pages[-1]
            comments = () if more else answer.comments
            out += format_reply(
                Reply(ctag, answer.outcome, rows, comments, more, self.sid), when
            )
        return out + self.prompt

    def when(self, now_ns: int) -> str:
        """Return date and time in the form used in messages."""
        return datetime.fromtimestamp((now_ns + self._offset_ns) / NS, UTC).strftime(
            "%y-%m-%d %H:%M:%S"
        )

    def _log_in(self, command: Command, now_ns: int) -> Answer:
        user = unquoted(command.aid)
        password = unquoted(command.blocks[1]) if len(command.blocks) > 1 else ""
        if not user or not self.switch.admits(user, password):
            raise Denial("PIUI")
        if self._user is None:
            self._user = user
            # What is wrong by now is no news.
            self._reports(now_ns)
        return self.greeting(user)

    def greeting(self, user: str) -> Answer:
        """Return the answer to a login."""
        return DONE

    def _log_out(self, command: Command, now_ns: int) -> Answer:
        self.over = True
        return DONE

    # Reports

    def _reports(self, now_ns: int) -> bytes:
        if self._user is None:
            return b""
        if self._looked_ns is not None and now_ns < self._looked_ns + ALARM_NS:
            self._wake(self._looked_ns + ALARM_NS)
            return b""
        first, self._looked_ns = self._looked_ns is None, now_ns
        alarms = {
            (alarm.port, alarm.kind): alarm for alarm in alarms_of(self.device, now_ns)
        }
        before, self._alarms = self._alarms, alarms
        egresses = (wire.egress for wire in self.device.cross_connects())
        if any(
            self.device.port_state(port, now_ns) is PortState.TUNING
            for port in egresses
        ):
            self._wake(now_ns + ALARM_NS)
        if first or self.silent:
            return b""
        raised = [
            self._alarm(alarm, now_ns, False)
            for key, alarm in alarms.items()
            if key not in before
        ]
        over = [
            self._alarm(alarm, now_ns, True)
            for key, alarm in before.items()
            if key not in alarms
        ]
        return b"".join((*raised, *over))

    def _alarm(self, alarm: Alarm, now_ns: int, over: bool) -> bytes:
        self._atag += 1
        when = self.when(now_ns)
        day, clock = when.split()
        level = "CL" if over else "MJ"
        place = self.port_name(alarm.port)
        happened = f"{level},{alarm.kind},SA,{day[3:]},{clock.replace(':', '-')}"
        row = f'{place}:{happened},,:\\"{_plain(alarm.reason)}\\"'
        report = Report(
            "A" if over else "**",
            str(self._atag),
            "REPT ALM PORT",
            (row,),
            (),
            self.sid,
        )
        return format_report(report, when)


def _parsed(text: str) -> Command:
    """Raises Denial."""
    try:
        return parse_command(text)
    except Tl1Error as error:
        raise Denial("ICNV", str(error)) from None


def values(command: Command) -> dict[str, str]:
    """Return the ``NAME=value`` pairs of the last block that is not empty. Raises Denial."""
    blocks = [block for block in command.blocks if block.strip()]
    try:
        return parse_values(blocks[-1]) if blocks else {}
    except Tl1Error:
        raise Denial("IIFM") from None


def _plain(text: str) -> str:
    """Text that can stand in a comment or in quotes."""
    return text.replace('"', "'").replace("*/", "* /").replace("\n", " ")[:200]
