"""TL1 as text, and a client of it against switches that answer badly."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    PermissionDenied,
    ProtocolError,
    Refused,
    Unreachable,
)
from ringlight.controller.optical.inventory import Credentials
from ringlight.extensions.tl1.tl1_client import Tl1Client
from ringlight.extensions.tl1.tl1_grammar import (
    Command,
    CommandFramer,
    MessageFramer,
    Reply,
    Report,
    Tl1Error,
    format_command,
    format_numbers,
    format_reply,
    format_report,
    parse_command,
    parse_numbers,
    parse_values,
    quoted,
    unquoted,
)

WHEN = "26-11-23 08:45:20"
HEADER = b"\r\n\n   ocs0 26-11-23 08:45:20\r\n"
PASSWORD = "s3cr:t;x"

TEXT = st.text(
    st.characters(
        codec="ascii", min_codepoint=32, max_codepoint=126, exclude_characters='"\\'
    )
)
WORD = st.text(
    st.characters(codec="ascii", categories=("Lu", "Ll", "Nd")), min_size=1, max_size=6
)


def read(*data: bytes) -> list[Reply | Report]:
    framer = MessageFramer()
    return [message for piece in data for message in framer.feed(piece)]


# Messages


def test_a_recorded_login_of_a_calient_switch() -> None:
    recorded = (
        b"agent> ACT-USER::zpollock:1::hidden;\r\n\r\n\n   CALIENT01TS 16-10-31 15:01:34\r\nM  1 COMPLD\r\n"
        b'   "zpollock:zpollock,2"\r\n'
        b"   /* NOTICE This is a private computer system. Unauthorized access or use may lead to"
        b" prosecution.*/\r\n"
        b";\r\nagent> "
    )
    (reply,) = read(recorded)
    assert isinstance(reply, Reply)
    assert (reply.ctag, reply.outcome, reply.sid) == ("1", "COMPLD", "CALIENT01TS")
    assert reply.rows == ("zpollock:zpollock,2",)
    assert reply.comments[0].startswith("NOTICE This is a private")


def test_the_first_semicolon_is_not_the_end() -> None:
    told = (
        b"\r\n\n   ocs0 26-11-23 08:45:20\r\n** 17 REPT ALM PORT\r\n"
        b'   "5:MJ,LOS,SA,11-23,08-45-20,,:\\"no light; at all\\""\r\n;'
        b"\r\n\n   ocs0 26-11-23 08:45:20\r\nM  7 COMPLD\r\n"
        b'   "1.1.1>1.1.2:CONNNAME=a;b"\r\n>'
        b'\r\n\n   ocs0 26-11-23 08:45:20\r\nM  7 COMPLD\r\n   "2,18"\r\n;'
    )
    report, first, last = read(told)
    assert isinstance(report, Report)
    assert (report.severity, report.atag, report.verb) == ("**", "17", "REPT ALM PORT")
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert (first.rows, first.more) == (("1.1.1>1.1.2:CONNNAME=a;b",), True)
    assert (last.rows, last.more) == (("2,18",), False)


def test_a_denial_has_its_code_first() -> None:
    (reply,) = read(
        format_reply(Reply("9", "DENY", ("PLNA",), ("Login not active",)), WHEN)
    )
    assert isinstance(reply, Reply)
    assert reply.complaint == "PLNA Login not active"


@pytest.mark.fuzz
@given(
    st.lists(TEXT, max_size=5), st.lists(st.integers(1, 60), max_size=20), st.booleans()
)
def test_messages_come_out_however_the_bytes_are_cut(
    rows: list[str], cuts: list[int], more: bool
) -> None:
    reply = Reply("7", "COMPLD", tuple(rows), (), more, "ocs0")
    report = Report("*C", "1", "REPT ALM PORT", tuple(rows), (), "ocs0")
    data = format_report(report, WHEN) + b"\r\nagent> " + format_reply(reply, WHEN)
    framer, found = MessageFramer(), []
    while data:
        cut = cuts.pop() if cuts else len(data)
        found += framer.feed(data[:cut])
        data = data[cut:]
    assert found == [report, reply]
    assert framer.empty


@pytest.mark.fuzz
@given(st.lists(st.integers(1, 5), max_size=20))
def test_what_a_telnet_server_says_to_a_terminal_is_passed_over(
    cuts: list[int],
) -> None:
    terminal = b"\xff\xfb\x01\xff\xfd\x03\xff\xfa\x18\x01\n;\xff\xf0"
    data = terminal + HEADER + b'M  7 COM\xff\xf1PLD\r\0\n   "a"\r\n;'
    framer, found = MessageFramer(), []
    while data:
        cut = cuts.pop() if cuts else len(data)
        found += framer.feed(data[:cut])
        data = data[cut:]
    assert found == [Reply("7", "COMPLD", ("a",), sid="ocs0")]


@pytest.mark.fuzz
@given(
    st.binary()
    | st.from_regex(
        rb'(\r\n\n   ocs0 26-11-23 08:45:20\r\nM  1 COMPLD\r\n|"a"\r\n|;|>|/\*|"){0,9}'
    )
)
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    framer = MessageFramer(limit=200)
    try:
        for start in range(0, len(data), 7):
            framer.feed(data[start : start + 7])
    except Tl1Error:
        pass


@pytest.mark.parametrize(
    "body",
    [
        b'M  7 COMPLD\r\n   "1,17\r\n;',
        b"M  7 COMPLD\r\n   /* half\r\n;",
        b"M  7 PERHAPS\r\n;",
        b"nothing known\r\n;",
        b'M  7 COMPLD\r\n   "\xff"\r\n;',
        b"M  7 COMPLD\r\n" + 30 * b'"0123456789"\r\n',
    ],
)
def test_what_is_cut_off_or_unknown_is_refused(body: bytes) -> None:
    framer = MessageFramer(limit=300)
    with pytest.raises(Tl1Error):
        framer.feed(b"\r\n\n   ocs0 26-11-23 08:45:20\r\n" + body)


# Commands


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("ENT-PATCH::1&2,17&18:123:", Command("ENT-PATCH", "1&2,17&18", ("",), "123")),
        ("rtrv-patch:::9:", Command("RTRV-PATCH", "", ("",), "9")),
        ("RTRV-NE", Command("RTRV-NE", blocks=())),
        ("RTRV-CRS:::::ALL", Command("RTRV-CRS", blocks=("", "ALL"))),
        (
            "ENT-CRS::1.1.1,1.1.2:7::G,1WAY",
            Command("ENT-CRS", "1.1.1,1.1.2", ("", "G,1WAY"), "7"),
        ),
        (
            'ED-PORT-LABEL::2:1:::LABEL="a:b;c"',
            Command("ED-PORT-LABEL", "2", ("", "", 'LABEL="a:b;c"'), "1"),
        ),
    ],
)
def test_commands(text: str, command: Command) -> None:
    assert parse_command(text) == command
    assert CommandFramer().feed(f"{text};".encode()) == [text]


@pytest.mark.fuzz
@given(WORD, TEXT.map(quoted), st.lists(TEXT.map(quoted), min_size=1, max_size=4))
def test_commands_survive_the_way_there_and_back(
    ctag: str, aid: str, blocks: list[str]
) -> None:
    command = Command("ENT-X", aid, tuple(blocks), ctag)
    (text,) = CommandFramer().feed(format_command(command))
    assert text is not None
    assert parse_command(text) == command
    assert unquoted(quoted(ctag)) == ctag


@pytest.mark.parametrize("aid", ["1;DLT-PATCH::ALL:1:", "1:2", '"', "1\n", "é"])
def test_no_field_can_end_a_command(aid: str) -> None:
    with pytest.raises(Tl1Error):
        format_command(Command("ENT-PATCH", aid, ctag="1"))


def test_no_password_shows() -> None:
    assert PASSWORD not in repr(Command("ACT-USER", "ann", ("", quoted(PASSWORD)), "1"))
    with pytest.raises(Tl1Error) as caught:
        format_command(Command("ACT-USER", "ann", ("", PASSWORD), "1"))
    assert PASSWORD not in str(caught.value) + caught.value.raw


@pytest.mark.fuzz
@given(st.binary())
def test_any_bytes_are_commands_or_refused(data: bytes) -> None:
    for text in CommandFramer(limit=50).feed(data + b"\n;"):
        try:
            parse_command(text or "")
        except Tl1Error:
            continue


def test_a_command_that_is_too_long_is_one_refusal() -> None:
    framer = CommandFramer(limit=10)
    assert framer.feed(b"0123456789") == []
    assert framer.feed(b"0123456789;RTRV-NE;") == [None, "RTRV-NE"]


@pytest.mark.fuzz
@given(st.lists(st.integers(0, 999_999), max_size=30))
def test_numbers_survive_the_way_there_and_back(numbers: list[int]) -> None:
    assert list(parse_numbers(format_numbers(numbers))) == numbers


def test_lists_of_numbers() -> None:
    assert format_numbers([1, 2, 3, 5, 6, 9]) == "1&&3&5&6&9"
    assert parse_numbers("1&2&&5") == (1, 2, 3, 4, 5)
    for wrong in ("1&", "a", "5&&1", "1&&&2", "1&&99999", "-1"):
        with pytest.raises(Tl1Error):
            parse_numbers(wrong)
    assert parse_values('A=1,b="x,y"') == {"A": "1", "B": "x,y"}
    with pytest.raises(Tl1Error):
        parse_values("A")


@pytest.mark.fuzz
@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (parse_command, parse_numbers, parse_values):
        try:
            parse(text)
        except Tl1Error:
            continue


# The client


class Script:
    """A switch whose answer to each command is ``answer(command)``, bytes; None hangs up."""

    def __init__(self, answer: Callable[[Command], bytes | None]) -> None:
        self.commands: list[Command] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(
                threading.Thread(target=self._talk, args=(connection,), daemon=True)
            )
            self._threads[-1].start()

    def _talk(self, connection: socket.socket) -> None:
        framer = CommandFramer()
        with connection:
            try:
                while data := connection.recv(4096):
                    for text in framer.feed(data):
                        command = parse_command(text or "")
                        self.commands.append(command)
                        told = self._answer(command)
                        if told is None:
                            return
                        connection.sendall(told)
            except OSError:
                return

    def close(self) -> None:
        for one in (self._listener, *self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)


@contextmanager
def client_of(
    answer: Callable[[Command], bytes | None], credentials: Credentials | None = None
) -> Iterator[tuple[Script, Tl1Client]]:
    script = Script(answer)
    client = Tl1Client("ocs0", "127.0.0.1", script.port, credentials)
    try:
        yield script, client
    finally:
        client.close()
        script.close()


def reply(ctag: str, *rows: str, more: bool = False) -> bytes:
    return format_reply(Reply(ctag, "COMPLD", rows, more=more), WHEN)


def deny(ctag: str, code: str, text: str = "no", outcome: str = "DENY") -> bytes:
    return format_reply(Reply(ctag, outcome, (code,), (text,)), WHEN)


REPORT = format_report(Report("A", "3", "REPT EVT", ("x",)), WHEN)
QUESTION = Command("RTRV-PATCH")


def test_reports_and_late_replies_are_passed_over() -> None:
    def answer(command: Command) -> bytes:
        return (
            REPORT
            + reply("999", "9,99")
            + b"\r\nagent> IP 1\r\n<"
            + reply(command.ctag, "1,17")
            + REPORT
        )

    with client_of(answer) as (_, client):
        for _ in range(3):
            assert client.ask([QUESTION], Deadline(5)) == [("1,17",)]


def test_the_reply_to_a_command_that_was_given_up_is_passed_over() -> None:
    late: list[bytes] = []

    def answer(command: Command) -> bytes:
        if not late:
            late.append(deny(command.ctag, "SROF") + reply(command.ctag, "9,99"))
            return b""
        return late[0] + reply(command.ctag, "1,17")

    with client_of(answer) as (script, client):
        with pytest.raises(DeadlineExceeded):
            client.ask([QUESTION], Deadline(0.1))
        for _ in range(2):
            assert client.ask([QUESTION], Deadline(5)) == [("1,17",)]
        late.clear()
        with pytest.raises(Indeterminate):
            client.tell(Command("ENT-PATCH", "1,17"), Deadline(0.1))
        # What is denied late is not the command after it.
        client.tell(Command("ENT-PATCH", "2,18"), Deadline(5))
        assert len({command.ctag for command in script.commands}) == 5


@pytest.mark.parametrize("marks", [True, False], ids=["marked", "repeated"])
def test_a_page_that_comes_late_is_not_the_next_listing_s(marks: bool) -> None:
    before: list[str] = []

    def answer(command: Command) -> bytes:
        stray = b"".join(reply(ctag, "9,99", more=marks) for ctag in before)
        before.append(command.ctag)
        return (
            stray
            + reply(command.ctag, "1,17", more=True)
            + reply(command.ctag, more=True)
            + stray
            + (reply(command.ctag, "2,18"))
        )

    with client_of(answer) as (_, client):
        for _ in range(3):
            assert client.ask([QUESTION], Deadline(5)) == [("1,17", "2,18")]


@pytest.mark.parametrize("end", ["DENY", "PRTL", "", "nothing"])
def test_a_listing_that_breaks_off_between_pages_is_an_error(end: str) -> None:
    def answer(command: Command) -> bytes | None:
        first = reply(command.ctag, "1,17", more=True)
        return first + (
            deny(command.ctag, "SROF", outcome=end) if end in ("DENY", "PRTL") else b""
        )

    with client_of(answer) as (script, client):
        if end == "nothing":
            threading.Timer(0.1, script.close).start()
        with pytest.raises((ProtocolError, DeadlineExceeded, Unreachable)):
            client.ask([QUESTION], Deadline(0.5))


@pytest.mark.parametrize("marks", [True, False], ids=["marked", "repeated"])
def test_pages_are_put_together(marks: bool) -> None:
    def answer(command: Command) -> bytes:
        rows = ("1,17", "2,18", "3,19") if command.verb == "RTRV-PATCH" else ("a", "b")
        last = len(rows) - 1
        return b"".join(
            reply(command.ctag, row, more=marks and i < last)
            for i, row in enumerate(rows)
        )

    with client_of(answer) as (_, client):
        asked = [QUESTION, Command("RTRV-PORT")]
        assert client.ask(asked, Deadline(5), 2) == [
            ("1,17", "2,18", "3,19"),
            ("a", "b"),
        ]


def test_a_listing_that_stays_short_is_given_back_short() -> None:
    with client_of(lambda command: reply(command.ctag, "a")) as (_, client):
        started = time.monotonic()
        assert client.ask([QUESTION], Deadline(10), 2) == [("a",)]
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("outcome", ["DENY", "PRTL"])
def test_a_reading_that_is_denied_or_partial_is_an_error(outcome: str) -> None:
    with client_of(lambda command: deny(command.ctag, "SROF", outcome=outcome)) as (
        script,
        client,
    ):
        with pytest.raises(
            ProtocolError, match=f"denied: RTRV-PATCH: {outcome}: SROF no"
        ):
            client.ask([QUESTION], Deadline(5))
        assert len(script.commands) == 1


@pytest.mark.parametrize(
    "told",
    [b"\r\n\n   ocs0 26-11-23 08:45:20\r\nM  1 CO", b"\0\xff\n\r\n;;;", b"; ; ;"],
)
def test_garbage_is_no_answer(told: bytes) -> None:
    with client_of(lambda command: told) as (_, client):
        started = time.monotonic()
        with pytest.raises((ProtocolError, DeadlineExceeded)):
            client.ask([QUESTION], Deadline(0.3))
        assert time.monotonic() - started < 3


def test_a_write_is_refused_lost_or_done() -> None:
    def answer(command: Command) -> bytes | None:
        match command.aid:
            case "done":
                return reply(command.ctag)
            case "lost":
                return None
            case "late":
                return b""
            case "partly":
                return deny(command.ctag, "2,18", outcome="PRTL")
            case "may not":
                return deny(command.ctag, "PIUC")
        return deny(command.ctag, "SNVS", "port 1 is busy")

    def write(aid: str) -> None:
        client.tell(Command("ENT-PATCH", aid), Deadline(0.5))

    with client_of(answer) as (script, client):
        write("done")
        with pytest.raises(Refused, match="ENT-PATCH: DENY: SNVS port 1 is busy"):
            write("busy")
        with pytest.raises(Refused, match="PRTL"):
            write("partly")
        with pytest.raises(PermissionDenied, match="PIUC"):
            write("may not")
        for lost in ("lost", "late"):
            with pytest.raises(Indeterminate):
                write(lost)
        write("done")
        assert [c.aid for c in script.commands] == [
            "done",
            "busy",
            "partly",
            "may not",
            "lost",
            "late",
            "done",
        ]
        assert len({c.ctag for c in script.commands}) == 7
    with pytest.raises(Unreachable):
        write("nobody")


class Door:
    """A switch with a login, which forgets its clients when told to."""

    def __init__(self) -> None:
        self.inside = False
        self.logins = 0

    def answer(self, command: Command) -> bytes | None:
        if command.verb == "ACT-USER":
            self.inside = unquoted(command.blocks[1]) == PASSWORD
            self.logins += 1
            echo = f"agent> ACT-USER::ann:{command.ctag}::{command.blocks[1]};\r\n".encode()
            return echo + (
                reply(command.ctag)
                if self.inside
                else deny(command.ctag, "PIUI", PASSWORD)
            )
        return (
            reply(command.ctag, "1,17") if self.inside else deny(command.ctag, "PLNA")
        )


def test_who_is_logged_out_logs_in_again() -> None:
    door = Door()
    with client_of(door.answer, Credentials("ann", PASSWORD)) as (_, client):
        assert client.ask([QUESTION], Deadline(5)) == [("1,17",)]
        door.inside = False
        assert client.ask([QUESTION], Deadline(5)) == [("1,17",)]
        door.inside = False
        client.tell(Command("ENT-PATCH", "1,17"), Deadline(5))
        assert door.logins == 3


def test_a_wrong_password_is_told_apart_and_shown_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    door = Door()
    with client_of(door.answer, Credentials("ann", "wr0ng:;")) as (_, client):
        for call in (
            lambda: client.ask([QUESTION], Deadline(5)),
            lambda: client.tell(QUESTION, Deadline(5)),
        ):
            with pytest.raises(AuthFailed, match="denied the login of ann") as caught:
                call()
            assert "wr0ng" not in str(caught.value)
    assert "wr0ng" not in caplog.text
    assert door.logins == 2


def test_the_switch_says_that_one_is_in_already() -> None:
    def answer(command: Command) -> bytes:
        if command.verb == "ACT-USER":
            return deny(command.ctag, "SAIN", "Already logged in")
        return reply(command.ctag, "1,17")

    with client_of(answer, Credentials("ann", PASSWORD)) as (_, client):
        assert client.ask([QUESTION], Deadline(5)) == [("1,17",)]
