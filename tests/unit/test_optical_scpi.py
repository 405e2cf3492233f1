"""The SCPI driver's lines, and its client against switches that answer badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import UnavailableError
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PartialApply,
    ProtocolError,
    ReadBackMismatch,
    Refused,
)
from ringlight.controller.optical.model import Bounds, Identity, Timing
from ringlight.controller.optical.registry import make_driver
from ringlight.controller.optical.scpi import (
    LineBuffer,
    ScpiClient,
    ScpiDriver,
    format_pairs,
    format_ports,
    parse_error,
    parse_identity,
    parse_pairs,
    parse_port_states,
    parse_ports,
    parse_powers,
    parse_size,
)
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import Mode
from tests.drivers import converge

# Lines


def test_lines_as_a_polatis_switch_writes_them() -> None:
    assert parse_identity("Polatis,N-OST-24x24-LA1-DMHNS,002414,6.5.2.18") == Identity(
        "Polatis", "N-OST-24x24-LA1-DMHNS", "002414", "6.5.2.18"
    )
    assert parse_size("16,16") == (16, 16)
    assert parse_pairs("(@1,2,3),(@19,18,22)") == (XC(1, 19), XC(2, 18), XC(3, 22))
    assert parse_pairs("(@),(@)") == ()
    assert parse_pairs("(@1,1),(@19,18),(@0,3)", 4) == (XC(1, 19, 0), XC(1, 18, 3))
    assert format_pairs([XC(1, 19, 0), XC(1, 18, 3)]) == "(@1,1),(@19,18),(@0,3)"
    assert parse_ports("(@1,3:5)") == (1, 3, 4, 5)
    assert parse_port_states("(D,E,F)") == ("D", "E", "F")
    assert parse_powers("(-12.3,-40.1)") == (-12.3, -40.1)
    assert parse_error('0,"No error"') == (0, "No error")
    assert parse_error('-222,"Data out of range; port 99"') == (
        -222,
        "Data out of range; port 99",
    )
    assert format_ports([]) == "(@)"


@pytest.mark.fuzz
@given(st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9999))))
def test_pairs_survive_the_way_there_and_back(pairs: list[tuple[int, int]]) -> None:
    wanted = tuple(XC(a, b) for a, b in pairs)
    assert parse_pairs(format_pairs(wanted)) == wanted


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_pairs, ""),
        (parse_pairs, "(@1,2),(@17"),
        (parse_pairs, "(@1,2),(@17)"),
        (parse_pairs, "(@1),(@17),(@2)"),
        (parse_ports, "(@1,,2)"),
        (parse_ports, "(@5:1)"),
        (parse_ports, "(@1:999999)"),
        (parse_port_states, "(E,X)"),
        (parse_port_states, "E,D"),
        (parse_powers, "(-12.3,low)"),
        (parse_size, "16x16"),
        (parse_error, "No error"),
        (parse_identity, "Polatis"),
    ],
)
def test_a_wrong_line_is_an_error_that_shows_it(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(text)
    assert caught.value.raw in text
    assert caught.value.raw or not text


@pytest.mark.fuzz
@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (
        parse_pairs,
        parse_ports,
        parse_port_states,
        parse_powers,
        parse_size,
        parse_error,
    ):
        try:
            parse(text)
        except ProtocolError:
            continue


@pytest.mark.fuzz
@given(
    st.lists(st.text(st.characters(codec="ascii", exclude_characters="\r\n"))),
    st.integers(1, 7),
)
def test_lines_come_out_however_the_bytes_are_cut(lines: list[str], step: int) -> None:
    data = "".join(f"{line}\r\n" for line in lines).encode()
    buffer = LineBuffer()
    out = [
        line
        for i in range(0, len(data), step)
        for line in buffer.feed(data[i : i + step])
    ]
    assert out == lines
    assert buffer.empty


def test_the_buffer_is_bounded_and_ascii() -> None:
    buffer = LineBuffer(limit=10)
    buffer.feed(b"0123456789")
    with pytest.raises(ProtocolError, match="more than 10 bytes"):
        buffer.feed(b"x")
    with pytest.raises(ProtocolError, match="not ASCII"):
        LineBuffer().feed(b"\xff\n")


# The client against a switch that follows a script


class Script:
    """Answers each line with what ``reply`` gives: text to send as it is, None to hang up."""

    def __init__(self, reply: Callable[[str], str | None]) -> None:
        self.reply = reply
        self.lines: list[str] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, connection.makefile("r") as lines:
                connection.settimeout(5)
                try:
                    for line in lines:
                        self.lines.append(line.strip())
                        answer = self.reply(line.strip())
                        if answer is None:
                            break
                        connection.sendall(answer.encode())
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


@contextmanager
def client(reply: Callable[[str], str | None]) -> Iterator[tuple[ScpiClient, Script]]:
    script = Script(reply)
    made = ScpiClient("ocs0", "127.0.0.1", script.port)
    try:
        yield made, script
    finally:
        made.close()
        script.close()


def test_a_question_is_asked_again_on_a_new_connection_and_a_command_is_not() -> None:
    calls = iter(["16,16\n", None, "8,8\n", None])
    with client(lambda line: next(calls)) as (scpi, script):
        assert scpi.query(":oxc:swit:size?", Deadline(2)) == "16,16"
        assert scpi.query(":oxc:swit:size?", Deadline(2)) == "8,8"
        assert script.connections == 2
        with pytest.raises(Indeterminate):
            scpi.command(":oxc:swit:conn:add (@1),(@17)", Deadline(2))
        assert script.lines[-1] == ":oxc:swit:conn:add (@1),(@17);*opc?"
        assert len(script.lines) == 4


def test_a_refusal_is_read_from_the_error_queue() -> None:
    queue = [
        '-221,"Settings conflict; port 1 is busy"',
        '-222,"Data out of range"',
        '0,"No error"',
    ]

    def reply(line: str) -> str:
        return "1\n" if line.endswith("*opc?") else queue.pop(0) + "\n"

    with client(reply) as (scpi, _):
        with pytest.raises(Refused, match=r"port 1 is busy; -222"):
            scpi.command(":oxc:swit:conn:add (@1),(@17)", Deadline(2))
        queue.append('0,"No error"')
        scpi.command(":oxc:swit:conn:add (@1),(@17)", Deadline(2))


@pytest.mark.parametrize(
    ("answer", "query_error"),
    [
        ("garbage", DeadlineExceeded),
        ("(@1)\n(@2)\n", ProtocolError),
        ("(@1)\n(@", ProtocolError),
    ],
)
def test_bad_replies_end_the_connection(
    answer: str, query_error: type[OpticalError]
) -> None:
    with client(lambda line: answer) as (scpi, script):
        with pytest.raises(query_error):
            scpi.query(":oxc:swit:conn:stat?", Deadline(0.2))
        with pytest.raises(Indeterminate):
            scpi.command(":oxc:swit:conn:add (@1),(@17)", Deadline(0.2))
        assert script.connections == 2 or query_error is DeadlineExceeded


def test_an_endless_error_queue_and_a_wrong_opc_are_indeterminate() -> None:
    for reply, complaint in (
        (lambda line: "1\n" if "opc" in line else '-1,"more"\n', "does not end"),
        (lambda line: "0\n", "opc"),
    ):
        with client(reply) as (scpi, script):
            for _ in range(2):
                with pytest.raises(Indeterminate, match=complaint):
                    scpi.command(":oxc:swit:conn:add (@1),(@17)", Deadline(2))
            assert script.connections == 2


def test_a_late_reply_ends_the_connection() -> None:
    started = time.monotonic()

    def slow(line: str) -> str:
        time.sleep(2)
        return "1\n"

    with client(slow) as (scpi, _):
        with pytest.raises(DeadlineExceeded):
            scpi.query("*idn?", Deadline(0.1))
        assert time.monotonic() - started < 1.5


class Simple:
    """A 4x4 switch. ``compound``: it answers all questions of a message; else only the first."""

    def __init__(self, compound: bool) -> None:
        self.compound = compound
        self.lit: dict[int, int] = {1: 5}
        self.errors: list[str] = []

    def reply(self, line: str) -> str:
        parts = line.split(";")
        replies = [answer for part in parts if (answer := self._one(part))]
        if not self.compound and len(replies) > 1:
            self.errors.append('-113,"Undefined header; one question at a time"')
            replies = replies[:1]
        return ";".join(replies) + "\n"

    def _one(self, part: str) -> str:
        if part == ":syst:err?":
            return self.errors.pop(0) if self.errors else '0,"No error"'
        if ":sub" in part:
            self.lit.clear()
        if ":add" in part:
            self.errors.append('-221,"Settings conflict; port 1 is busy"')
        return {
            "*idn?": "a,b,c,d",
            "*opc?": "1",
            ":oxc:swit:size?": "4,4",
            ":oxc:swit:port:stat?": "(E,E,E,E,E,E,E,E)",
            ":oxc:swit:conn:stat?": ",".join(
                f"(@{','.join(map(str, ports))})"
                for ports in (self.lit, self.lit.values())
            ),
        }.get(part, "")


@pytest.mark.parametrize("compound", [True, False])
def test_questions_are_one_message_only_where_the_switch_answers_so(
    compound: bool,
) -> None:
    switch = Simple(compound)
    script = Script(switch.reply)
    driver = driver_on(script)
    try:
        driver.open()
        script.lines.clear()
        plan = driver.plan((), delete=[1])
        driver.apply(plan, seen=driver.snapshot())
        reading, removal = (
            [":oxc:swit:conn:stat?", ":oxc:swit:port:stat?"],
            ":oxc:swit:conn:sub (@1),(@5);*opc?",
        )
        if compound:
            together = ";".join(reading)
            assert script.lines == [
                together,
                together,
                f"{removal};:syst:err?;{together}",
            ]
        else:
            assert script.lines == [*reading, *reading, removal, ":syst:err?", *reading]
        with pytest.raises(Refused, match="port 1 is busy"):
            converge(driver, [XC(1, 6)])
        assert switch.errors == []
    finally:
        driver.close()
        script.close()


def test_what_the_reading_in_the_message_of_a_write_says_counts() -> None:
    def reply(line: str) -> str:
        # It says that it is done, and did nothing.
        return switch.reply(line.replace(":sub", ":nothing"))

    switch = Simple(True)
    script = Script(reply)
    driver = driver_on(script)
    try:
        driver.open()
        with pytest.raises(ReadBackMismatch, match="1->5: still there"):
            converge(driver, (), delete=[1])
        assert script.lines[-1].startswith(":oxc:swit:conn:sub (@1),(@5);*opc?;")
    finally:
        driver.close()
        script.close()


@pytest.mark.parametrize(
    "told", ["", ";(@1),(@5)", ";(@1),(@5);(E)", ";(@1),(@5,6);(E,E,E,E,E,E,E,E)"]
)
def test_a_reading_that_cannot_be_understood_in_the_message_of_a_write_is_indeterminate(
    told: str,
) -> None:
    switch = Simple(True)
    script = Script(
        lambda line: f'1;0,"No error"{told}\n' if ":sub" in line else switch.reply(line)
    )
    driver = driver_on(script)
    try:
        driver.open()
        with pytest.raises(Indeterminate, match="outcome unknown"):
            converge(driver, (), delete=[1], timeout_s=0.5)
    finally:
        driver.close()
        script.close()


@pytest.mark.parametrize(
    ("profile", "then"),
    [
        ({"dark_s": 0.05}, ";:oxc:swit:conn:stat?;:oxc:swit:port:stat?"),
        ({"retrain_s": 0.05}, ""),
    ],
)
def test_mirrors_stand_when_it_answers_and_receivers_are_waited_for(
    profile: dict[str, float], then: str
) -> None:
    switch = Simple(True)
    switch.lit.clear()
    script = Script(switch.reply)
    driver = driver_on(script, profile=profile)
    try:
        driver.open()
        with pytest.raises(Refused):
            converge(driver, [XC(1, 6)])
        assert f":oxc:swit:conn:add (@1),(@6);*opc?;:syst:err?{then}" in script.lines
    finally:
        driver.close()
        script.close()


def test_a_message_with_too_few_replies_ends_the_connection() -> None:
    switch = Simple(True)
    script = Script(switch.reply)
    driver = driver_on(script)
    try:
        driver.open()
        switch.compound = False
        with pytest.raises(ProtocolError, match="not 2 replies"):
            driver.snapshot()
        with pytest.raises(Indeterminate):
            driver.set_port_enabled(1, False)
    finally:
        driver.close()
        script.close()


def driver_on(
    script: Script, size: int = 4, profile: Mapping[str, float] = {}
) -> ScpiDriver:
    entry = {
        "driver": "scpi",
        "address": f"127.0.0.1:{script.port}",
        "profile": profile,
    }
    driver = make_driver("ocs0", entry, size)
    assert isinstance(driver, ScpiDriver)
    return driver


def test_another_size_than_the_fabrics_is_an_error() -> None:
    replies = {"*idn?": "a,b,c,d\n", ":oxc:swit:size?": "16,16\n"}
    script = Script(lambda line: replies[line])
    driver = driver_on(script)
    try:
        with pytest.raises(ProtocolError, match="16x16, the fabric says 4x4"):
            driver.open()
    finally:
        driver.close()
        script.close()


@pytest.mark.parametrize(
    ("pairs", "states"),
    [
        ("(@1),(@", "(E,E,E,E,E,E,E,E)"),
        ("(@1),(@5)", "(E,E,E)"),
        ("(@1,2),(@5,5)", "(E,E,E,E,E,E,E,E)"),
        ("(@1),(@77)", "(E,E,E,E,E,E,E,E)"),
        ('-113,"Undefined header"', "(E,E,E,E,E,E,E,E)"),
    ],
)
def test_a_reading_that_cannot_be_is_never_an_empty_switch(
    pairs: str, states: str
) -> None:
    script = Script(lambda line: (states if "port" in line else pairs) + "\n")
    driver = driver_on(script)
    try:
        with pytest.raises(ProtocolError):
            driver.snapshot()
    finally:
        driver.close()
        script.close()


def test_a_half_refused_plan_names_what_is_missing() -> None:
    lit: dict[int, int] = {1: 5}
    errors: list[str] = []

    def reply(line: str) -> str:
        if "sub" in line:
            lit.clear()
        if "add" in line:
            errors.append('-240,"Hardware error"')
        if "*opc?" in line:
            return "1\n"
        if "err" in line:
            return (errors.pop() if errors else '0,"No error"') + "\n"
        if "port" in line:
            return "(E,E,E,E,E,E,E,E)\n"
        return f"(@{','.join(map(str, lit))}),(@{','.join(map(str, lit.values()))})\n"

    script = Script(reply)
    driver = driver_on(script)
    try:
        with pytest.raises(PartialApply, match="Hardware error") as caught:
            converge(driver, [XC(1, 6)])
        assert caught.value.result is not None
        assert [
            (r.ingress, r.egress, r.action) for r in caught.value.result.deviations
        ] == [(1, 6, "add")]
    finally:
        driver.close()
        script.close()


def test_a_replacement_is_one_line_that_names_the_whole_set() -> None:
    lit: dict[int, int] = {1: 5, 2: 6, 3: 7}
    lines: list[str] = []

    def reply(line: str) -> str:
        lines.append(line)
        if "only" in line:
            lit.update({2: 7, 3: 6})
        if "*opc?" in line:
            return "1\n"
        if "err" in line:
            return '0,"No error"\n'
        if "port" in line:
            return "(E,E,E,E,E,E,E,E)\n"
        return f"(@{','.join(map(str, lit))}),(@{','.join(map(str, lit.values()))})\n"

    script = Script(reply)
    driver = driver_on(script)
    try:
        converge(driver, [XC(1, 5), XC(2, 7), XC(3, 6)], Mode.REPLACE)
    finally:
        driver.close()
        script.close()
    assert [line for line in lines if "opc" in line] == [
        ":oxc:swit:conn:only (@1,2,3),(@5,7,6);*opc?"
    ]


def test_unreachable_names_the_address_and_the_switch_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    driver = ScpiDriver("ocs0", {"address": f"127.0.0.1:{port}"}, 4)
    with pytest.raises(
        UnavailableError,
        match=f"^optical switch ocs0: no connection to 127.0.0.1:{port}",
    ):
        OpticalSite({"ocs0": driver}, {}, EventBus()).look("ocs0")


def test_timing_from_an_inventory_profile() -> None:
    profile = {
        "command_s": 0.01,
        "command_per_xc_s": 0.001,
        "dark_min_s": 0.03,
        "dark_typ_s": 0.04,
    }
    timing = Timing.from_profile({**profile, "dark_max_s": 0.05, "name": "mems"})
    assert timing == Timing(Bounds(0.01, 0.01, 0.01), 0.001, Bounds(0.03, 0.04, 0.05))
    assert timing.lit_after_s(10) == pytest.approx(0.07)
    assert Timing.from_profile({}) == Timing()
    with pytest.raises(ValueError, match="address"):
        make_driver("ocs0", {"driver": "scpi", "address": "nowhere"}, 4)
