"""The SCPI dialect of the emulated switch: bytes in, bytes out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.optical_profiles import IDEAL, MEMS, Profile
from ringlight.testbed.emulation.optical.commands import NS
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.scpi import (
    MAX_MESSAGE_BYTES,
    ScpiError,
    ScpiSession,
    parse_ports,
)
from ringlight.testbed.emulation.optical.session import MAX_BACKLOG

IDENTITY = "Polatis,N-EMU-8x8-IDEAL,ocs0,6.0.0.0"


class Wire:
    """A session and its device, with a clock that is turned by hand."""

    def __init__(self, profile: Profile = IDEAL, wavelengths: int = 0) -> None:
        self.device = OpticalDevice(8, profile, wavelengths=wavelengths)
        self.session = ScpiSession(self.device, IDENTITY)
        self.now_ns = 0

    def run(self) -> bytes:
        """Everything that is answered at the present moment."""
        out = b""
        while True:
            self.device.advance(self.now_ns)
            out += self.session.advance(self.now_ns)
            due = self.device.next_ns
            if due is None or due > self.now_ns:
                return out

    def ask(self, text: str) -> str:
        self.session.feed(text.encode() + b"\n")
        return self.run().decode()

    def errors(self) -> str:
        return self.ask(":syst:err:all?").strip()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\r\0", "\r\0\r\n"])
def test_any_line_end_ends_a_message_and_is_answered_once(wire: Wire, end: str) -> None:
    wire.session.feed(f"*idn?{end}".encode())
    assert wire.run().decode() == IDENTITY + "\n"
    # Byte by byte, too.
    for letter in f":oxc:swit:conn:stat?{end}*cls{end}".encode():
        wire.session.feed(bytes([letter]))
    assert wire.run() == b"(@),(@)\n"
    assert wire.errors() == '0,"No error"'


def test_identity_and_size(wire: Wire) -> None:
    assert wire.ask("*idn?") == IDENTITY + "\n"
    assert wire.ask(":oxc:swit:size?") == "8,8\n"


def test_connections_as_a_client_sees_them(wire: Wire) -> None:
    assert wire.ask(":oxc:swit:conn:stat?") == "(@),(@)\n"
    assert wire.ask(":oxc:swit:conn:add (@1,2,3),(@11,10,9)") == ""
    assert wire.ask(":oxc:swit:conn:stat?") == "(@1,2,3),(@11,10,9)\n"
    assert wire.ask(":oxc:swit:conn:port? 2") == '"10"\n'
    assert wire.ask(":oxc:swit:conn:port? 9") == '"3"\n'
    assert wire.ask(":oxc:swit:conn:port? 4") == '""\n'
    assert wire.ask(":oxc:swit:conn:sub (@1),(@11);*opc?") == "1\n"
    assert wire.ask(":oxc:swit:conn:sub (@2,4),(@);stat?") == "(@3),(@9)\n"
    assert (
        wire.ask(":oxc:swit:conn:only (@1:3),(@9:11);*opc?;stat?")
        == "1;(@1,2,3),(@9,10,11)\n"
    )
    assert wire.ask(":oxc:swit:disc:all;:oxc:swit:conn:stat?") == "(@),(@)\n"
    assert wire.errors() == '0,"No error"'


def test_rst_drops_everything(wire: Wire) -> None:
    assert wire.ask(":oxc:swit:conn:add (@1),(@9);*rst;stat?") == "(@),(@)\n"


def test_ports_are_disabled_and_enabled(wire: Wire) -> None:
    assert wire.ask(":oxc:swit:port:dis (@2,10);stat? (@1:3)") == "(E,D,E)\n"
    wire.device.fail(3)
    assert wire.ask(":oxc:swit:port:stat?") == "(E,D,F,E,E,E,E,E,E,D,E,E,E,E,E,E)\n"
    assert wire.ask(":oxc:swit:port:enab (@2,10);stat? (@2,10)") == "(E,E)\n"


def test_power_has_one_decimal_and_a_floor() -> None:
    wire = Wire(MEMS)
    wire.device.receive(1, light=True)
    wire.ask(":oxc:swit:conn:add (@1),(@9)")
    wire.now_ns = NS
    wire.run()
    wire.now_ns = 2 * NS
    lit, dark = wire.ask(":pmon:pow? (@9,10)").strip("()\n").split(",")
    assert dark == "-60.0"
    assert -2.0 <= float(lit) <= -1.4
    assert len(lit.split(".")[1]) == 1


@pytest.mark.parametrize(
    "text",
    [
        ":oxc:swit:conn:stat?",
        ":OXC:SWITCH:CONNECT:STATE?",
        "oxc:SwiTch:conn:STATE?",
        "  :oxc:swit:conn:stat?  \r",
        ":oxc:swit:size;:oxc:swit:conn:stat?",
        ":oxc:swit:size?;conn:stat?",
    ],
)
def test_spellings(wire: Wire, text: str) -> None:
    assert wire.ask(text).strip().split(";")[-1] == "(@),(@)"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (":oxc:swit:connect:stats?", -113),
        (":oxc:swit:swi?", -113),
        ("hello", -113),
        ("*xyz?", -113),
        ("*idn", -113),
        ("?", -113),
        ("\x01\x02", -101),
        (":oxc:swit:conn:add(@1),(@9)", -111),
        (":oxc:swit:conn:add", -109),
        (":oxc:swit:conn:add (@1)", -109),
        (":oxc:swit:conn:add (@1),(@9),(@2)", -108),
        (":oxc:swit:conn:add (@1,2),(@9)", -104),
        (":oxc:swit:conn:add (@x),(@9)", -104),
        (":oxc:swit:conn:add 1,9", -109),
        (":oxc:swit:conn:add (@1,),(@9,10)", -104),
        (":oxc:swit:conn:add (@1:999999),(@1:999999)", -223),
        (":oxc:swit:conn:add (@1),(@2)", -222),
        (":oxc:swit:conn:add (@1),(@17)", -222),
        (":oxc:swit:conn:add (@1,2),(@9,9)", -221),
        (":oxc:swit:conn:sub (@1),(@9)", -221),
        (":oxc:swit:conn:port?", -109),
        (":oxc:swit:conn:port? (@1)", -104),
        (":oxc:swit:conn:port? 17", -222),
        (":oxc:swit:disc:all (@1)", -108),
        (":oxc:swit:port:stat? (@17)", -222),
        (":oxc:swit:port:dis", -109),
        (":pmon:pow?", -109),
        (":pmon:pow? (@99)", -222),
    ],
)
def test_what_is_wrong_lands_in_the_error_queue(
    wire: Wire, text: str, code: int
) -> None:
    assert wire.ask(text) == ""
    first, _, rest = wire.errors().partition(",")
    assert int(first) == code
    assert rest.startswith('"')
    assert rest.endswith('"')
    assert rest.count('"') == 2
    assert wire.ask(":oxc:swit:conn:stat?") == "(@),(@)\n"
    assert wire.ask("*idn?") == IDENTITY + "\n"


def test_bytes_that_are_not_text(wire: Wire) -> None:
    wire.session.feed(b"\xff\xfe\x00:oxc\n")
    assert wire.run() == b""
    assert wire.errors().startswith("-101")


def test_a_refused_command_names_the_port_and_leaves_the_rest_of_the_message(
    wire: Wire,
) -> None:
    wire.ask(":oxc:swit:conn:add (@1),(@9)")
    assert (
        wire.ask(":oxc:swit:conn:add (@2),(@9);add (@3),(@10);*opc?;stat?")
        == "1;(@1,3),(@9,10)\n"
    )
    assert (
        wire.ask(":syst:err?") == '-221,"Settings conflict; port 9 is busy with 1->9"\n'
    )
    assert wire.ask(":system:error:next?") == '0,"No error"\n'


def test_the_error_queue_is_bounded_and_cleared(wire: Wire) -> None:
    for _ in range(50):
        wire.ask("nonsense")
    entries = wire.errors().split(",-")
    assert len(entries) == 32
    assert entries[-1].startswith("350")
    wire.ask("nonsense;*cls")
    assert wire.errors() == '0,"No error"'


def test_each_client_has_its_own_errors(wire: Wire) -> None:
    other = ScpiSession(wire.device, IDENTITY)
    wire.ask("nonsense")
    other.feed(b"*cls\n")
    other.advance(0)
    assert wire.errors().startswith("-113")


def test_a_message_too_long_is_dropped_whole(wire: Wire) -> None:
    half = b"*idn?;" * (MAX_MESSAGE_BYTES // 12)
    for _ in range(5):
        wire.session.feed(half)
        assert wire.run() == b""
    wire.session.feed(b"\n*idn?\n")
    assert wire.run().decode() == IDENTITY + "\n"
    assert wire.errors().startswith("-363")


def test_a_full_session_wants_no_more_bytes() -> None:
    wire = Wire(MEMS)
    wire.session.feed(b":oxc:swit:disc:all\n" * (MAX_BACKLOG + 2))
    wire.run()
    assert not wire.session.wants_bytes
    while not wire.session.idle:
        wire.now_ns += NS
        wire.run()
    assert wire.session.wants_bytes


def test_power_of_too_many_ports_is_refused(wire: Wire) -> None:
    wire.ask(f":pmon:pow? (@{','.join(['1'] * 257)})")
    assert wire.errors().startswith("-223")


def test_opc_answers_when_the_light_is_tuned_and_queries_when_the_command_is_done() -> (
    None
):
    wire = Wire(MEMS)
    assert wire.ask(":oxc:swit:conn:add (@1),(@9)\n:oxc:swit:conn:stat?\n*opc?") == ""
    done = wire.device.next_ns
    assert done is not None
    wire.now_ns = done - 1
    assert wire.run() == b""
    wire.now_ns = done
    assert wire.run() == b"(@1),(@9)\n"
    tuned = wire.session.next_ns
    assert tuned is not None
    assert (
        done + MEMS.dark_s * NS
        <= tuned
        <= done + (MEMS.dark_s + MEMS.dark_jitter_s) * NS
    )
    wire.now_ns = tuned - 1
    assert wire.run() == b""
    wire.now_ns = tuned
    assert wire.run() == b"1\n"
    assert wire.session.next_ns is None
    # Nothing is on its way any more: the next one answers at once.
    assert wire.ask("*opc?") == "1\n"


def test_a_client_waits_for_another_clients_command() -> None:
    wire = Wire(MEMS)
    other = ScpiSession(wire.device, IDENTITY)
    wire.ask(":oxc:swit:conn:add (@1),(@9)")
    other.feed(b":oxc:swit:conn:add (@2),(@9);*opc?;:syst:err?\n")
    other.advance(0)
    out = b""
    while (due := wire.device.next_ns) is not None:
        wire.now_ns = due
        wire.device.advance(due)
        wire.session.advance(due)
        out += other.advance(due)
    assert out.startswith(b'1;-221,"Settings conflict; port 9')
    assert wire.device.cross_connects() == ((1, 9, None),)


@pytest.mark.parametrize(
    ("text", "ports"),
    [("(@)", ()), ("(@ 3 )", (3,)), ("(@1:3,7)", (1, 2, 3, 7)), ("(@3:1)", (3, 2, 1))],
)
def test_port_lists(text: str, ports: tuple[int, ...]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.fuzz
@given(st.text(max_size=40))
def test_port_lists_never_crash(text: str) -> None:
    try:
        ports = parse_ports(text)
    except ScpiError:
        return
    assert all(isinstance(port, int) for port in ports)


numbers = st.integers(0, 18).map(str) | st.sampled_from(["1:3", "9:11", "x", ""])
lists = st.lists(numbers, max_size=3).map(lambda parts: f"(@{','.join(parts)})")
units = st.one_of(
    st.builds(
        "{} {},{}".format,
        st.sampled_from(
            [":oxc:swit:conn:add", ":OXC:SWITCH:CONN:SUB", ":oxc:swit:conn:only", "add"]
        ),
        lists,
        lists,
    ),
    st.builds(
        "{} {}".format,
        st.sampled_from([":oxc:swit:port:dis", ":pmon:pow?", "stat?"]),
        lists,
    ),
    st.sampled_from(
        [
            "*idn?",
            "*opc?",
            "*cls",
            "*rst",
            ":syst:err?",
            ":oxc:swit:conn:stat?",
            ":oxc:swit:disc:all",
            "",
        ]
    ),
    st.text(st.characters(max_codepoint=255, exclude_characters="\n"), max_size=12),
)
streams = st.lists(
    st.lists(units, min_size=1, max_size=4)
    .map(";".join)
    .map(lambda m: m.encode("latin-1") + b"\n"),
    max_size=8,
).map(b"".join)


@pytest.mark.fuzz
@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_how_the_stream_is_cut_makes_no_difference(
    stream: bytes, cuts: list[int]
) -> None:
    whole, cut = Wire(), Wire()
    whole.session.feed(stream)
    expected = whole.run()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    got = b""
    for start, end in itertools.pairwise(edges):
        cut.session.feed(stream[start:end])
        got += cut.run()
    assert got == expected
    assert cut.device.cross_connects() == whole.device.cross_connects()
    assert cut.errors() == whole.errors()


@pytest.mark.fuzz
@given(streams)
def test_whatever_is_sent_the_switch_holds_a_partial_matching(stream: bytes) -> None:
    wire = Wire()
    wire.session.feed(stream)
    wire.run()
    check_matching(CrossConnect(*one) for one in wire.device.cross_connects())
    # And it goes on answering, one line for one query.
    assert wire.ask("*idn?") == IDENTITY + "\n"


def test_a_wss_speaks_of_wavelengths() -> None:
    wss = Wire(wavelengths=4)
    assert wss.ask(":oxc:swit:wav?") == "4\n"
    assert wss.ask(":oxc:swit:conn:stat?") == "(@),(@),(@)\n"
    assert (
        wss.ask(":oxc:swit:conn:add (@1,1,2),(@10,11,10),(@0,1,1);stat?")
        == "(@1,1,2),(@10,11,10),(@0,1,1)\n"
    )
    assert (
        wss.ask(":oxc:swit:conn:port? 1,1;port? 10 , 1;port? 10,2") == '"11";"2";""\n'
    )
    assert (
        wss.ask(":oxc:swit:conn:sub (@1),(@10),(@0);stat?")
        == "(@1,2),(@11,10),(@1,1)\n"
    )
    assert wss.ask(":oxc:swit:conn:only (@3),(@10),(@3);stat?") == "(@3),(@10),(@3)\n"
    assert wss.errors() == '0,"No error"'
    assert wss.ask(":oxc:swit:conn:sub (@3),(@);stat?") == "(@),(@),(@)\n"


@pytest.mark.parametrize(
    ("wavelengths", "command", "error"),
    [
        (4, ":oxc:swit:conn:add (@1),(@10)", "-109,"),
        (4, ":oxc:swit:conn:add (@1),(@10),(@4)", "-222,"),
        (4, ":oxc:swit:conn:add (@1,2),(@10,11),(@1)", "-104,"),
        (4, ":oxc:swit:conn:add (@1),(@10),(@1),(@1)", "-108,"),
        (4, ":oxc:swit:conn:port? 1", "-109,"),
        (4, ":oxc:swit:conn:port? 1,4", "-222,"),
        (0, ":oxc:swit:conn:add (@1),(@10),(@1)", "-108,"),
        (0, ":oxc:swit:conn:port? 1,0", "-222,"),
    ],
)
def test_wavelengths_that_do_not_fit(
    wavelengths: int, command: str, error: str
) -> None:
    wss = Wire(wavelengths=wavelengths)
    assert wss.ask(command).strip() == ""
    assert wss.errors().startswith(error)
    assert wss.device.cross_connects() == ()
