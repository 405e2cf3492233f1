"""TL1 as text: commands, replies and reports, to and from bytes. No I/O, no clock.

The driver and the emulated switch share this. So that one misreading does not pass on both sides, each is
held against conversations kept as text (`tests/data/optical`), byte for byte. The form is that of Telcordia
GR-831; of the switches' own habits only what public client code and recorded replies show:

    ENT-PATCH::1&2,17&18:7:;                     verb:target:what:ctag:blocks, ended by ``;``

    \\r\\n\\n   SID 26-11-23 08:45:20\\r\\n           who and when
    M  7 COMPLD\\r\\n                               ctag and outcome: COMPLD, PRTL or DENY
       "1,17"\\r\\n                                 rows in quotes; ``/* comments */``; of a DENY its code
    ;                                            ``>`` in its place: the next page follows

A report (autonomous message) has ``A``, ``*``, ``**`` or ``*C`` in the place of ``M`` and may stand anywhere
between replies, so replies are told apart by ctag. A ``;`` or ``>`` ends a message only at the start of a
line: names such as ``1.1.1>1.1.2``, prompts and echoed commands have some too. Whatever stands between
messages (prompts, echoes, acknowledgements ``IP 7`` / ``<``) is passed over, and so is what a telnet server
says to a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

#: A message longer than this is garbage: 4,096 ports of 100 bytes are 400 kB.
MAX_MESSAGE_BYTES = 1 << 20
#: A command longer than this is refused.
MAX_COMMAND_BYTES = 1 << 16
#: Most numbers in one list such as ``1&&320``.
MAX_NUMBERS = 8192

OUTCOMES = ("COMPLD", "PRTL", "DENY")
_HEADER = re.compile(
    r"(?:^|[\s<>])(?:(?P<sid>\"[^\"]*\"|[^\s\"<>;]+) +)?(?:\d\d)?\d\d-\d\d-\d\d \d\d:\d\d:\d\d\s*$"
)
#: Control sequences of telnet: an option with its number, a sub-negotiation, any other. _TELNET_PART: the
#: beginning of a sequence at the end of the received bytes.
_TELNET = re.compile(rb"\xff(?:[\xfb-\xfe].|\xfa.*?\xff\xf0|[\xf1-\xf9])|\0", re.DOTALL)
_TELNET_PART = re.compile(rb"\xff(?:[\xfb-\xfe]|\xfa(?:(?!\xff\xf0).)*)?\Z", re.DOTALL)
_REPLY = re.compile(r"M +(\S+) +([A-Z]+)\s*")
_REPORT = re.compile(r"(A|\*C|\*\*|\*) +(\S+) +(\S.*)")
_COMMENT = re.compile(r"/\*(.*)\*/", re.DOTALL)
_RANGE = re.compile(r"\s*(\d{1,6})\s*(?:&&\s*(\d{1,6})\s*)?")
_VERB = re.compile(r"[A-Z][A-Z0-9]*(?:-[A-Z0-9]+)*")
_CTAG = re.compile(r"[A-Za-z0-9]{0,6}")


class Tl1Error(ValueError):
    """Text or bytes that are no TL1. ``raw``: what it was about."""

    def __init__(self, message: str, raw: str = "") -> None:
        super().__init__(message)
        self.raw = raw


# Messages from the switch


@dataclass(frozen=True)
class Reply:
    """Page of the answer to the command ``ctag``.

    ``rows``: rows without their quotes; the first row of a DENY is its code. ``more``: another page follows.
    """

    ctag: str
    outcome: str
    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    more: bool = False
    sid: str = ""

    @property
    def complaint(self) -> str:
        """Code and text of a refusal, one line."""
        return " ".join((*self.rows, *self.comments)).strip() or self.outcome


@dataclass(frozen=True)
class Report:
    """Unsolicited message of the switch. ``severity``: ``A``, ``*``, ``**`` or ``*C``, rising."""

    severity: str
    atag: str
    verb: str
    rows: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()
    sid: str = ""


Message = Reply | Report


class MessageFramer:
    """Bytes from a switch in, messages out."""

    def __init__(self, limit: int = MAX_MESSAGE_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self._held = b""
        #: The message under way: its header, its identification, and its bytes so far.
        self._sid: str | None = None
        self._head: tuple[str, ...] | None = None
        self._lines: list[str] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that these bytes complete.

        Raises Tl1Error; the rest of the stream is unusable then.
        """
        self._bytes += self._said(data)
        messages: list[Message] = []
        while True:
            line = self._line()
            if line is None:
                break
            message = self._take(line)
            if message is not None:
                messages.append(message)
        if len(self._bytes) + len(self._held) + self._size > self._limit:
            raise Tl1Error(f"a message of more than {self._limit} bytes")
        return messages

    def _said(self, data: bytes) -> bytes:
        """Return the bytes without terminal control sequences."""
        if not self._held and b"\xff" not in data and b"\0" not in data:
            return data
        data = _TELNET.sub(b"", self._held + data)
        part = _TELNET_PART.search(data)
        self._held = part[0] if part else b""
        return data[: part.start()] if part else data

    def _line(self) -> str | None:
        """Return the next line, or the mark that ends a message and need not end its line; None if
        incomplete.
        """
        if self._head is not None:
            mark = re.match(rb"[ \t\r\n]*([;>])", self._bytes)
            if mark is not None:
                letter, end = mark[1].decode(), mark.end()
                del self._bytes[:end]
                return letter
        end = self._bytes.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 1]
        try:
            return line.decode("ascii").strip("\r")
        except UnicodeDecodeError:
            raise Tl1Error("a line that is not ASCII", repr(line[:80])) from None

    def _take(self, line: str) -> Message | None:
        text = line.strip()
        if self._sid is None:
            header = _HEADER.search(line)
            if header is not None:
                self._sid = (header["sid"] or "").strip('"')
            return None
        if self._head is None:
            if text:
                self._head = self._identified(text)
            return None
        if text not in (";", ">"):
            self._size += len(line)
            if text:
                self._lines.append(text)
            return None
        message = self._message(self._sid, self._head, text == ">")
        self._sid, self._head, self._lines, self._size = None, None, [], 0
        return message

    def _identified(self, text: str) -> tuple[str, ...]:
        for form in (_REPLY, _REPORT):
            match = form.fullmatch(text)
            if match is not None:
                return match.groups()
        raise Tl1Error("neither a reply nor a report", text)

    def _message(self, sid: str, head: tuple[str, ...], more: bool) -> Message:
        rows, comments = _body(self._lines)
        if len(head) == 3:
            return Report(*head, rows, comments, sid)
        ctag, outcome = head
        if outcome not in OUTCOMES:
            raise Tl1Error(f"a reply that is none of {', '.join(OUTCOMES)}", outcome)
        return Reply(ctag, outcome, rows, comments, more, sid)

    @property
    def empty(self) -> bool:
        """True if no message is in progress."""
        return self._sid is None


def _body(lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return rows and comments. Raises Tl1Error if the text is cut off."""
    rows: list[str] = []
    comments: list[str] = []
    comment: list[str] | None = None
    for line in lines:
        if comment is not None or line.startswith("/*"):
            comment = [*(comment or ()), line]
            if line.endswith("*/"):
                whole = _COMMENT.fullmatch(" ".join(comment))
                comments.append(whole[1].strip() if whole else "")
                comment = None
        elif not line.startswith('"'):
            rows.append(line)
        elif len(line) > 1 and line.endswith('"'):
            rows.append(line[1:-1])
        else:
            raise Tl1Error("a row that does not end", line)
    if comment is not None:
        raise Tl1Error("a comment that does not end", comment[0])
    return tuple(rows), tuple(comments)


def _text(
    sid: str,
    when: str,
    head: str,
    rows: Iterable[str],
    comments: Iterable[str],
    end: str,
) -> bytes:
    lines = [f"   {sid} {when}", head, *[f"   {row}" for row in rows]]
    lines += [f"   /* {comment} */" for comment in comments]
    return ("\r\n\n" + "".join(f"{line}\r\n" for line in lines) + end).encode(
        "ascii", "replace"
    )


def format_reply(reply: Reply, when: str) -> bytes:
    """Return a reply as the switch sends it.

    ``when``: ``26-11-23 08:45:20``. Rows of a DENY have no quotes.
    """
    rows = reply.rows if reply.outcome == "DENY" else [f'"{row}"' for row in reply.rows]
    head = f"M  {reply.ctag or 0} {reply.outcome}"
    return _text(
        reply.sid, when, head, rows, reply.comments, ">" if reply.more else ";"
    )


def format_report(report: Report, when: str) -> bytes:
    """Return a report as the switch sends it. ``when``: ``26-11-23 08:45:20``."""
    head = f"{report.severity:<2} {report.atag} {report.verb}"
    return _text(
        report.sid,
        when,
        head,
        [f'"{row}"' for row in report.rows],
        report.comments,
        ";",
    )


# Commands


@dataclass(frozen=True)
class Command:
    """``verb`` in upper case, ``aid`` and ``blocks`` as they stand between the colons; ``blocks`` is what
    follows the ctag. ``repr`` shows no blocks, which of ACT-USER are the password."""

    verb: str
    aid: str = ""
    blocks: tuple[str, ...] = field(default=("",), repr=False)
    ctag: str = ""
    tid: str = ""


def format_command(command: Command) -> bytes:
    """Return ``ENT-PATCH::1,17:7:;``. Raises Tl1Error for text that would end a command or a field early."""
    fields = (command.verb, command.tid, command.aid, command.ctag, *command.blocks)
    text = ":".join(fields)
    whole = split_fields(text) == list(fields) and split_fields(text, ";") == [text]
    if not whole or text.count('"') % 2 or not text.isascii() or not text.isprintable():
        raise Tl1Error(f"a field of {command.verb} cannot be written in TL1")
    return f"{text};".encode()


def quoted(text: str) -> str:
    """Return a value, in quotes if TL1 requires them. Raises Tl1Error for text that cannot be a value."""
    if '"' in text or "\\" in text or not text.isascii() or not text.isprintable():
        raise Tl1Error("a value has characters that TL1 has no place for")
    return text if re.fullmatch(r"[A-Za-z0-9_.!#$%*+/?@^|~>-]+", text) else f'"{text}"'


def unquoted(text: str) -> str:
    """Return the value that :func:`quoted` wrote."""
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] == '"':
        return stripped[1:-1]
    return stripped


def split_fields(text: str, mark: str = ":") -> list[str]:
    """Return the parts of a text between marks that are not in quotes."""
    if '"' not in text:
        return text.split(mark)
    fields, inside = [""], False
    for letter in text:
        inside ^= letter == '"'
        if letter == mark and not inside:
            fields.append("")
        else:
            fields[-1] += letter
    return fields


def parse_command(text: str) -> Command:
    """Return the command in ``ENT-PATCH::1,17:7:``, without its ``;``. Raises Tl1Error."""
    verb, *rest = [part.strip() for part in split_fields(text)]
    verb = verb.upper()
    if not _VERB.fullmatch(verb):
        raise Tl1Error("not a command", text[:80])
    tid, aid, ctag = (*rest[:3], "", "", "")[:3]
    if not _CTAG.fullmatch(ctag):
        raise Tl1Error("not a ctag", ctag[:80])
    return Command(verb, aid, tuple(rest[3:]), ctag, tid)


class CommandFramer:
    """Bytes from a client in, commands without their end out. None stands for one that was too long."""

    def __init__(self, limit: int = MAX_COMMAND_BYTES) -> None:
        self._limit = limit
        self._bytes = bytearray()
        self._quoted = False
        self._overrun = False

    def feed(self, data: bytes) -> list[str | None]:
        """Return the commands that these bytes complete; None for a command that is too long.

        A CR ends a command as ``;`` does, for terminals that send CR alone; LF is a blank. Both end quotes.
        NUL, which telnet sends after a CR, is ignored.
        """
        commands: list[str | None] = []
        for piece in re.split(rb'([;"\r\n])', data.replace(b"\0", b"")):
            if piece == b'"':
                self._quoted = not self._quoted
            elif piece in (b"\r", b"\n"):
                self._quoted = False
            if piece == b"\r" or (piece == b";" and not self._quoted):
                whole = (
                    self._bytes.decode("ascii", "replace").replace("\n", " ").strip()
                )
                if self._overrun:
                    commands.append(None)
                elif whole:
                    commands.append(whole)
                self._bytes.clear()
                self._overrun = False
                continue
            if not self._overrun:
                self._bytes += piece
                if len(self._bytes) > self._limit:
                    self._overrun = True
                    self._bytes.clear()
        return commands


# Fields


def parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1&2&&5``; none for an empty text. Raises Tl1Error."""
    if not text.strip():
        return ()
    numbers: list[int] = []
    for part in re.split(r"(?<!&)&(?!&)", text):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise Tl1Error("not a list of numbers", text[:80])
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise Tl1Error("not a range", part)
        if len(numbers) + last - first + 1 > MAX_NUMBERS:
            raise Tl1Error(f"more than {MAX_NUMBERS} numbers", text[:80])
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def format_numbers(numbers: Sequence[int]) -> str:
    """Return ``1&2&&5``: runs of three and more numbers are ranges."""
    parts: list[str] = []
    start = 0
    while start < len(numbers):
        end = start
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        run = [str(number) for number in numbers[start : end + 1]]
        parts.append(f"{run[0]}&&{run[-1]}" if len(run) > 2 else "&".join(run))
        start = end + 1
    return "&".join(parts)


def parse_values(text: str) -> dict[str, str]:
    """Return the values by name of ``SRCPORT=1.1.1,AS=IS``. Raises Tl1Error."""
    values: dict[str, str] = {}
    for part in split_fields(text, ","):
        if not part.strip():
            continue
        name, separator, value = part.partition("=")
        if not separator or not name.strip():
            raise Tl1Error("not name=value", text[:80])
        values[name.strip().upper()] = unquoted(value)
    return values
