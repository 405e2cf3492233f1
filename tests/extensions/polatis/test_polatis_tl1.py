"""Polatis over TL1: the driver on the emulated switch, and what the emulated switch says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ringlight.controller.optical.errors import (
    AuthFailed,
    PartialApply,
    ProtocolError,
    Refused,
)
from ringlight.controller.optical.model import Identity, PortStatus
from ringlight.controller.optical.readings import port_status
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.polatis.emulation.polatis_tl1 import PolatisTl1Session
from ringlight.extensions.polatis.polatis_tl1 import (
    parse_patches,
    parse_ports,
    parse_power,
)
from ringlight.extensions.tl1.tl1_session import ALARM_NS
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import Mode, PortState
from ringlight.fabric.optical_profiles import IDEAL, MEMS
from ringlight.testbed.emulation.optical.commands import NS
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import MAX_BACKLOG, Switch
from tests.drivers import converge
from tests.optical_model import ModelSwitch

USERS = {"ann": "s3cr:t"}
#: 26-11-23 08:45:20
NOW_NS = 1_795_423_520 * NS


# Rows


def test_rows_as_the_switch_writes_them() -> None:
    assert parse_patches(["1,17", " 2,18 "]) == (XC(1, 17), XC(2, 18))
    assert parse_ports(["5:OPEN", "6:-12.3"]) == {5: "OPEN", 6: "-12.3"}
    assert parse_power("-12.3") == -12.3
    assert parse_power("N/A") is None
    assert port_status("OPEN", True) == PortStatus(PortState.TUNED)
    assert port_status("CLOSED", True) == PortStatus(PortState.BLOCKED, enabled=False)
    assert port_status("JAMMED", False).state is PortState.UNKNOWN


@pytest.mark.parametrize(
    ("parse", "rows"),
    [
        (parse_patches, ["1"]),
        (parse_patches, ["1,17", "1,18"]),
        (parse_patches, ["1,17", "2,17"]),
        (parse_patches, ["   SID 26-11-23 08:45:20"]),
        (parse_ports, ["5"]),
        (parse_ports, ["5:OPEN", "5:CLOSED"]),
        (parse_power, "-12.3.4"),
    ],
)
def test_a_wrong_row_is_an_error(parse: object, rows: object) -> None:
    with pytest.raises(ProtocolError):
        parse(rows)  # type: ignore[operator]


# The emulated switch


class Wire:
    """A client that is logged in, and a clock that is turned by hand."""

    def __init__(self, size: int = 4, users: dict[str, str] | None = None) -> None:
        self.device = OpticalDevice(size, IDEAL)
        for port in range(1, size + 1):
            self.device.receive(port, True)
        self.session = PolatisTl1Session(
            Switch("ocs0", self.device, users or {}), NOW_NS
        )
        self.now_ns = 0

    def run(self) -> str:
        out = b""
        while True:
            self.device.advance(self.now_ns)
            out += self.session.advance(self.now_ns)
            due = self.device.next_ns
            if due is None or due > self.now_ns:
                return out.decode()

    def ask(self, text: str) -> list[str]:
        """The lines of what comes back, without those that say who and when."""
        self.session.feed(text.encode())
        return [
            line.strip()
            for line in self.run().splitlines()
            if line.strip() and "26-11-23" not in line
        ]


@pytest.fixture
def wire() -> Wire:
    made = Wire()
    assert made.ask("ACT-USER::ann:1::x;") == ["M  1 COMPLD", ";"]
    return made


def test_nothing_before_a_login() -> None:
    wire = Wire(users=USERS)
    denied = ["M  2 DENY", "PLNA", "/* Login not active */", ";"]
    assert wire.ask("RTRV-PATCH:::2:;") == denied
    for text in (
        "ACT-USER::ann:2::wrong;",
        "ACT-USER::bob:2::;",
        "ACT-USER:::2::;",
        "ACT-USER::ann:2;",
    ):
        assert wire.ask(text)[:2] == ["M  2 DENY", "PIUI"]
    assert wire.ask("RTRV-PATCH:::2:;") == denied
    assert wire.ask('ACT-USER::ann:2::"s3cr:t";') == ["M  2 COMPLD", ";"]
    assert wire.ask("RTRV-PATCH:::3:;") == ["M  3 COMPLD", ";"]
    assert not wire.session.over
    assert wire.ask("CANC-USER::ann:4:;RTRV-PATCH:::5:;") == ["M  4 COMPLD", ";"]
    assert wire.session.over


def test_patches(wire: Wire) -> None:
    assert wire.ask("ENT-PATCH::1&&3,5&&7:9:;RTRV-PATCH:::10:;") == [
        *("M  9 COMPLD", ";", "M  10 COMPLD", '"1,5"', '"2,6"', '"3,7"', ";"),
    ]
    assert wire.ask("rtrv-patch::1&6:1:;") == ["M  1 COMPLD", '"1,5"', '"2,6"', ";"]
    assert wire.ask("ENT-PATCH::1,8:1:;")[:3] == [
        "M  1 DENY",
        "SNVS",
        "/* port 1 is busy with 1->5 */",
    ]
    assert wire.ask("ENT-PATCH::4&9,8&7:1:;")[:2] == ["M  1 DENY", "IIAC"]
    for wrong in (
        "ENT-PATCH::1&2,5:1:;",
        "ENT-PATCH::1:1:;",
        "DLT-PATCH::x:1:;",
        "DLT-PATCH::9:1:;",
    ):
        assert wire.ask(wrong)[:2] == ["M  1 DENY", "IIAC"]
    assert wire.ask("DLT-PATCH::1&2:1:;RTRV-PATCH:::2:;")[2:] == [
        "M  2 COMPLD",
        '"3,7"',
        ";",
    ]
    assert wire.ask("DLT-PATCH::ALL:1:;RTRV-PATCH:::2:;")[2:] == ["M  2 COMPLD", ";"]


def test_what_cloudshell_sends(wire: Wire) -> None:
    """The bytes of QualiSystems' layer-one driver for Polatis: name in quotes, CR at the end, a port is both
    its ingress and its egress."""
    ask = wire.ask
    assert ask('RTRV-NETYPE:"ocs0"::2:;\r') == [
        "M  2 COMPLD",
        '"Polatis,N-EMU-4x4-IDEAL,OCS,6.0.0.0"',
        ";",
    ]
    assert ask('ENT-PATCH:"ocs0":1,6:3:;\r') == ["M  3 COMPLD", ";"]
    made = ask('ENT-PATCH:"ocs0":2,5:4:;\rENT-PATCH:"ocs0":3,7:5:;\r')
    assert made == ["M  4 COMPLD", ";", "M  5 COMPLD", ";"]
    # map_clear of port 1: what it sends and what it receives.
    assert ask('DLT-PATCH:"ocs0":1&5:6:;\r') == ["M  6 COMPLD", ";"]
    assert ask('RTRV-PATCH:"ocs0"::7:;\r') == ["M  7 COMPLD", '"3,7"', ";"]
    # Again: nothing is left to be removed. And by the egress alone.
    assert ask('DLT-PATCH:"ocs0":1&5:8:;\r') == ["M  8 COMPLD", ";"]
    assert ask('DLT-PATCH:"ocs0":7:9:;\rRTRV-PATCH:::10:;\r')[2:] == [
        "M  10 COMPLD",
        ";",
    ]


def test_a_carriage_return_ends_a_command(wire: Wire) -> None:
    ends = ("\r", ";\r", "\r\0", ";\r\n", ";\r\0\r\n")
    for text in [f"RTRV-PATCH:::2:{end}" for end in ends]:
        assert wire.ask(text) == ["M  2 COMPLD", ";"], text
    assert wire.ask("\r\r\n;\r") == []
    assert wire.ask("MAKE-TEA\r")[:2] == ["M  0 DENY", "ICNV"]
    # A line feed alone is a blank, as GR-831 has it.
    assert wire.ask("RTRV-PATCH::\n:3:;") == ["M  3 COMPLD", ";"]
    # Quotes that nobody has closed end with the line.
    assert wire.ask('RTRV-PATCH:"ocs0::4:\r')[:1] == ["M  0 COMPLD"]
    assert wire.ask("RTRV-PATCH:::5:;") == ["M  5 COMPLD", ";"]


def test_how_long_a_client_may_be_silent() -> None:
    wire = Wire(users=USERS)
    wire.ask("ACT-USER::ann:2::wrong;")
    assert not wire.session.established
    wire.ask('ACT-USER::ann:2::"s3cr:t";')
    assert wire.session.established
    assert not wire.session.keeps_time
    wire.ask("ED-EQPT::TIMEOUT:3:::ADMIN=60;")
    assert wire.session.keeps_time
    assert wire.session.idle_ns == 3600 * NS


def test_what_else_it_tells(wire: Wire) -> None:
    wire.device.fail(8)
    rows = {
        "RTRV-EQPT::SYSTEM:1:::PARAMETER=SIZE;": ['"SYSTEM:SIZE=4x4"'],
        "RTRV-NETYPE:::1:;": ['"Polatis,N-EMU-4x4-IDEAL,OCS,6.0.0.0"'],
        "RTRV-INV::OCS:1:;": ['"OCS:SN=ocs0"'],
        "RTRV-HDR:::1:;": [],
        "OPR-PORT-SHUTTER::2&3:1:;": [],
        "RTRV-PORT-SHUTTER::1&&3&8:1:;": [
            '"1:OPEN"',
            '"2:CLOSED"',
            '"3:CLOSED"',
            '"8:CLOSED"',
        ],
        "RLS-PORT-SHUTTER::2:1:;": [],
        "RTRV-PORT-SHUTTER::2:1:;": ['"2:OPEN"'],
        "RTRV-PORT-POWER::1&5:1:;": ['"1:0.0"', '"5:-60.0"'],
        "RTRV-PORT-PMON::5:1:;": ['"5:1550.0,0.0,4"'],
        'ED-PORT-LABEL::2:1:::LABEL="rack 3: in";': [],
        "RTRV-PORT-LABEL::2:1:;": ['"2:rack 3: in"'],
        "DLT-PORT-LABEL::2:1:;": [],
        "RTRV-PORT-LABEL::2&1:1:;": ['"2:"', '"1:"'],
    }
    for text, wanted in rows.items():
        assert wire.ask(text) == ["M  1 COMPLD", *wanted, ";"], text
    for text in ("RTRV-EQPT::FAN:1:::PARAMETER=SIZE;", "RTRV-PORT-SHUTTER::9:1:;"):
        assert wire.ask(text)[1] == "IIAC"
    assert wire.ask("RTRV-EQPT::SYSTEM:1:::SIZE;")[1] == "IIFM"
    assert wire.ask("MAKE-TEA:::1:;")[1] == "ICNV"
    assert wire.ask("!;")[:2] == ["M  0 DENY", "ICNV"]
    assert wire.ask("ED-PORT-LABEL::2:1:::LABEL=" + 70 * "x" + ";")[1] == "IDNV"


def test_light_that_is_lost_is_reported_and_its_return(wire: Wire) -> None:
    wire.now_ns += ALARM_NS
    wire.device.receive(4, False)
    assert "** 1 REPT ALM PORT" in wire.run(), (
        "what is lost right after the login is news"
    )
    wire.device.receive(4, True)
    wire.ask("ENT-PATCH::1,5:1:;")
    wire.now_ns += ALARM_NS
    assert "A  2 REPT ALM PORT" in wire.run()
    wire.device.receive(1, False)
    assert wire.run() == "", "too soon: it has looked just now"
    assert wire.session.next_ns == 3 * ALARM_NS
    wire.now_ns += ALARM_NS
    assert wire.run() == (
        "\r\n\n   ocs0 26-11-23 08:45:20\r\n** 3 REPT ALM PORT\r\n"
        '   "1:MJ,LOS,SA,11-23,08-45-20,,:\\"no light comes in\\""\r\n;'
        "\r\n\n   ocs0 26-11-23 08:45:20\r\n** 4 REPT ALM PORT\r\n"
        '   "5:MJ,LOS,SA,11-23,08-45-20,,:\\"no light from port 1\\""\r\n;'
    )
    wire.device.receive(1, True)
    wire.now_ns += ALARM_NS
    cleared = wire.ask("RTRV-HDR:::7:;")
    assert [line for line in cleared if line.startswith("A ")] == [
        f"A  {n} REPT ALM PORT" for n in (5, 6)
    ]
    assert any(line.startswith('"5:CL,LOS,SA,11-23,08-45-20') for line in cleared)
    wire.ask("OPR-ARC-EQPT::REPMGR:1::IND;")
    wire.device.receive(1, False)
    wire.now_ns += ALARM_NS
    assert wire.run() == ""


def test_a_silent_client_is_logged_out_if_it_wants_that(wire: Wire) -> None:
    wire.ask("ED-EQPT::TIMEOUT:1:::ADMIN=2;")
    wire.now_ns += 100 * NS
    wire.ask("RTRV-HDR:::1:;")
    wire.now_ns += 119 * NS
    assert wire.run() == ""
    assert wire.session.next_ns == 220 * NS
    assert not wire.session.over
    wire.now_ns += NS
    wire.run()
    assert wire.session.over
    assert Wire().ask("ACT-USER::a:1::b;ED-EQPT::TIMEOUT:2:::ADMIN=-1;")[3] == "IDNV"


def test_a_flood_of_commands_waits_in_the_socket(wire: Wire) -> None:
    wire.session.feed((MAX_BACKLOG + 1) * b"RTRV-HDR:::1:;")
    assert not wire.session.wants_bytes
    wire.run()
    assert wire.session.wants_bytes
    assert wire.session.idle


# The driver on it


@pytest.fixture
def served() -> Iterator[ModelSwitch]:
    with ModelSwitch("polatis-tl1", 8, MEMS, USERS) as made:
        yield made


def entry(
    served: ModelSwitch, password: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    monkeypatch.setenv("OCS0_PASSWORD", password)
    user = {"username": "ann", "password_env": "OCS0_PASSWORD"}
    return {
        "driver": "polatis-tl1",
        "address": served.address,
        "profile": MEMS.declared(),
        **user,
    }


def test_the_driver_moves_light(
    served: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver("ocs0", entry(served, "s3cr:t", monkeypatch), 8)
    try:
        assert driver.open() == Identity("Polatis", "N-EMU-8x8-MEMS", "ocs0", "6.0.0.0")
        converge(driver, [XC(1, 9), XC(2, 10), XC(3, 11)])
        served.heard.clear()
        converge(driver, [XC(2, 12), XC(3, 11)], Mode.REPLACE)
        words = [
            word.split(b":")
            for word in bytes(served.heard).split(b";")
            if b"PATCH" in word
        ]
        writes = [word[:3] for word in words if not word[0].startswith(b"RTRV")]
        assert writes == [[b"DLT-PATCH", b"", b"1&2"], [b"ENT-PATCH", b"", b"2,12"]]
        served.drop()
        assert set(driver.snapshot().cross_connects) == {XC(2, 12), XC(3, 11)}
        assert driver.set_port_enabled(12, False) == PortStatus(
            PortState.BLOCKED, enabled=False
        )
        served.device.receive(3, False)
        time.sleep(0.1)
        assert [(a.kind, a.port) for a in driver.alarms()] == [
            ("PORT_DISABLED", 12),
            ("LOS", 3),
        ]
        served.device.fail(16)
        with pytest.raises(Refused, match="port 16 has failed"):
            driver.set_port_enabled(16, True)
    finally:
        driver.close()
    deadline = time.monotonic() + 5
    while b"CANC-USER::ann:" not in served.heard:
        assert time.monotonic() < deadline, "it hung up without logging out"
        time.sleep(0.001)


@pytest.mark.parametrize(
    "more", [{}, {"bulk": True}, {"bulk": False}], ids=["polatis", "calient", "singly"]
)
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.REPLACE])
def test_a_denied_write_leaves_the_switch_as_it_was(
    more: dict[str, object], mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both dialects, whether what is denied removes, adds, or opens a port."""
    protocol = "calient-tl1" if more else "polatis-tl1"
    stand = {XC(1, 9), XC(2, 10), XC(3, 11)}
    with ModelSwitch(protocol, 8, IDEAL, USERS) as model:
        driver = make_driver(
            "ocs0", entry(model, "s3cr:t", monkeypatch) | {"driver": protocol} | more, 8
        )
        try:
            driver.open()
            converge(driver, stand)
            for wanted in (
                {XC(1, 10), XC(2, 9), XC(3, 11)},
                {*stand, XC(4, 12)},
                {*stand, XC(4, 12), XC(5, 13)},
            ):
                model.inject("deny", count=1)
                with pytest.raises(Refused) as caught:
                    converge(driver, wanted, mode)
                assert not isinstance(caught.value, PartialApply)
                assert (
                    model.cross_connects()
                    == stand
                    == set(driver.snapshot().cross_connects)
                )
            if driver.capabilities().port_admin:
                model.inject("deny", count=1)
                with pytest.raises(Refused):
                    driver.set_port_enabled(9, False)
                assert driver.snapshot().ports[9].enabled
            assert converge(driver, [XC(4, 12)]).deviations == ()
        finally:
            driver.close()


def test_a_user_whose_name_needs_quotes_logs_in_and_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ModelSwitch("polatis-tl1", 8, IDEAL, {"ann:b": "s3cr:t"}) as model:
        driver = make_driver(
            "ocs0", entry(model, "s3cr:t", monkeypatch) | {"username": "ann:b"}, 8
        )
        driver.open()
        driver.close()
        deadline = time.monotonic() + 5
        while b'CANC-USER::"ann:b":' not in model.heard:
            assert time.monotonic() < deadline, "it hung up without logging out"
            time.sleep(0.001)


def test_the_driver_with_a_wrong_password(
    served: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver("ocs0", entry(served, "wr0ng", monkeypatch), 8)
    with pytest.raises(AuthFailed):
        driver.open()
    driver.close()


def test_another_size_than_the_fabrics_is_an_error(
    served: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver("ocs0", entry(served, "s3cr:t", monkeypatch), 4)
    with pytest.raises(ProtocolError, match="8x8, the fabric says 4x4"):
        driver.open()
    driver.close()
