"""Calient over TL1: the driver on the emulated switch, and what the emulated switch says."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical import safe_reading
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import PartialApply, ProtocolError, Refused
from ringlight.controller.optical.model import Identity, PortStatus
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.calient.calient_circuits import Circuit, Half, parse_power
from ringlight.extensions.calient.calient_products import CALIENT_S320
from ringlight.extensions.calient.calient_tl1 import (
    bulk_outcome,
    parse_circuit,
    parse_port,
    parse_powers,
)
from ringlight.extensions.calient.emulation.calient_circuits import (
    CircuitError,
    port_number,
)
from ringlight.extensions.calient.emulation.calient_tl1 import (
    PAGE_ROWS,
    CalientTl1Session,
)
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import CrossConnectState, Mode, PortState
from ringlight.fabric.optical_profiles import IDEAL, MEMS, Profile
from ringlight.testbed.emulation.optical.commands import NS, Rewire, SetAdmin
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.drivers import converge
from tests.optical_model import ModelSwitch

SIZE = 16
NOW_NS = 1_795_423_520 * NS
CIRCUIT = (
    "2.3.6-3.2.5:SRCPORT=2.3.6,DSTPORT=3.2.5,GRPNAME=DSTRAUB,CONNNAME=2.3.6-3.2.5,CONNTYPE=2WAY,"
    "AS=UMA,OS=RDY,OC=OK,PS=UPR,AL=CL"
)
PORT = "1.1.1:WX,NONE,NONE:INAS=OOS-NP,INOS=OOS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,OUTOC=OK,OUTRS=NPR"
SUM = "1.1.1:ALIAS=NONE,INPWR=NONE,OUTPWR=-1.25,CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT,CONNNAME2=NONE"


# Rows


def test_recorded_rows() -> None:
    ends, state = ("2.3.6", "3.2.5"), CrossConnectState.INVALID
    halves = Half(*ends, state), Half(*ends[::-1], state)
    assert parse_circuit(CIRCUIT) == Circuit(
        "2.3.6-3.2.5", halves, "DSTRAUB", "2.3.6-3.2.5"
    )
    fine = CIRCUIT.replace("AS=UMA,OS=RDY", "AS=IS,OS=IS")
    for row, state in (
        (fine, CrossConnectState.CONNECTED),
        (fine.replace("OS=IS", "OS=RDY"), CrossConnectState.PENDING_CONNECTION),
        (fine.replace("OC=OK", "OC=FAIL"), CrossConnectState.FAILED),
    ):
        assert {half.state for half in parse_circuit(row).halves} == {state}
    assert parse_port(PORT) == (
        "1.1.1",
        PortStatus(PortState.BLOCKED),
        PortStatus(PortState.BLOCKED),
    )
    assert parse_port(PORT.replace("INAS=OOS-NP", "INAS=OOS-MA"))[1].enabled is False
    broken = PORT.replace("OUTOS=IS,OUTOC=OK", "OUTOS=OOS,OUTOC=FAIL")
    assert parse_port(broken)[2].state is PortState.FAILED
    assert parse_powers(SUM) == ("1.1.1", -math.inf, -1.25)
    assert bulk_outcome(["Save/Recall in progress"]) is None
    assert bulk_outcome(["Completed"]) == ""
    assert (
        bulk_outcome(["Recall Completed: 2 connections failed"])
        == "Recall Completed: 2 connections failed"
    )


@pytest.mark.parametrize(
    "row",
    [
        "",
        CIRCUIT.replace("CONNTYPE=2WAY", "CONNTYPE=3WAY"),
        CIRCUIT.replace("AS=UMA,", ""),
        CIRCUIT.replace("SRCPORT=2.3.6", "SRCPORT=x"),
        CIRCUIT[:50],
    ],
)
def test_a_wrong_circuit_is_an_error(row: str) -> None:
    with pytest.raises(ProtocolError):
        parse_circuit(row)


@pytest.mark.fuzz
@given(
    st.text()
    | st.sampled_from([CIRCUIT, PORT, SUM]).flatmap(
        lambda t: st.integers(0, 99).map(lambda n: t[:n])
    )
)
def test_any_row_is_parsed_or_refused(row: str) -> None:
    for parse in (
        parse_circuit,
        parse_port,
        parse_powers,
        parse_power,
        lambda text: bulk_outcome([text]),
    ):
        try:
            parse(row)  # type: ignore[operator]
        except ProtocolError:
            continue


# The emulated switch


class Wire:
    """A client that is logged in, and a clock that is turned by hand."""

    def __init__(self, size: int = SIZE) -> None:
        self.device = OpticalDevice(size, IDEAL)
        for port in range(1, size):
            self.device.receive(port, True)
        self.session = CalientTl1Session(Switch("S320", self.device), NOW_NS)
        self.ask("ACT-USER::ann:1::x;")

    def ask(self, text: str) -> list[str]:
        """The lines of what comes back, without those that say who and when."""
        self.session.feed(text.encode())
        out = b""
        while True:
            self.device.advance(0)
            out += self.session.advance(0)
            if self.device.next_ns is None:
                lines = [line.strip() for line in out.decode().splitlines()]
                return [
                    line
                    for line in lines
                    if line not in ("", ";", "agent>") and "26-11-23" not in line
                ]

    def circuits(self) -> list[str]:
        """Each with its states."""
        told = []
        for line in self.ask("RTRV-CRS:::::ALL;")[1:]:
            circuit = parse_circuit(line.strip('"'))
            told.append(
                f"{circuit.conn} {circuit.halves[0].state} {circuit.group} {circuit.name}"
            )
        return told


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_the_life_of_a_circuit(wire: Wire) -> None:
    assert wire.ask("ENT-CRS::1.1.1,1.2.1:7::LAB,1WAY,red;") == ["M  7 COMPLD"]
    assert wire.circuits() == ["1.1.1>1.2.1 INVALID LAB red"]
    assert wire.device.cross_connects() == ()
    assert wire.ask("ACT-CRS::1.1.1,1.2.1:7::1.1.1>1.2.1,LAB;") == ["M  7 COMPLD"]
    assert wire.circuits() == ["1.1.1>1.2.1 CONNECTED LAB red"]
    assert wire.device.cross_connects() == ((1, SIZE + 9, None),)
    assert wire.ask("ACT-CRS::1.1.1,1.2.1:7::1.1.1>1.2.1,LAB;")[:2] == [
        "M  7 DENY",
        "SNVS",
    ]
    assert wire.ask("CANC-CRS::1.1.1,1.2.1:7::,LAB,red;") == ["M  7 COMPLD"]
    assert wire.circuits() == ["1.1.1>1.2.1 INVALID LAB red"]
    assert wire.ask("DLT-CRS::1.1.1,1.2.1:7::,LAB,red;") == ["M  7 COMPLD"]
    assert wire.circuits() == []
    assert wire.ask("DLT-CRS::1.1.1,1.2.1:7::,LAB,red;") == [
        "M  7 DENY",
        "IIAC",
        "/* Invalid Connection */",
    ]


def test_as_other_clients_say_it(wire: Wire) -> None:
    """The same in the words of other public clients: plain numbers, no ctag, both ways, another order."""
    assert wire.ask("ent-crs::1,9:::,2WAY;ACT-CRS::::1.1.1-1.2.1;") == 2 * [
        "M  0 COMPLD"
    ]
    assert wire.circuits() == ["1.1.1-1.2.1 CONNECTED SYSTEM 1.1.1-1.2.1"]
    assert len(wire.ask("rtrv-crs:::3::,1.2.1-1.1.1;")) == 2
    assert len(wire.ask("RTRV-CRS::,:3;")) == 2
    assert wire.ask("rtrv-crs:::3::,1.2.1-1.1.2;")[0] == "M  3 DENY"
    assert wire.ask("dlt-crs:::4::1.1.1-1.2.1;RTRV-CRS:::::ALL;") == [
        "M  4 COMPLD",
        "M  0 COMPLD",
    ]
    for wrong in (
        "ENT-CRS::1:1::,1WAY;",
        "ENT-CRS::1,99:1::,1WAY;",
        "ENT-CRS::1,2:1::,3WAY;",
        "ACT-CRS:::1:;",
    ):
        assert wire.ask(wrong)[0] == "M  1 DENY"


def test_bulk(wire: Wire) -> None:
    assert wire.ask("RTRV-SAVERECALL;") == ["M  0 COMPLD"]
    assert wire.ask("ent-crs-bulk::1.1.1>1.2.1&1.1.2>1.2.2;RTRV-SAVERECALL;") == [
        *("M  0 COMPLD", "M  0 COMPLD", '"In progress"'),
    ]
    assert wire.ask("RTRV-SAVERECALL;")[1:] == ['"Completed"']
    wire.ask("ENT-CRS-BULK::1.1.1>1.2.3&1.1.3>1.2.3&1.1.9>1:1:;")
    assert wire.ask("RTRV-SAVERECALL;")[1:] == ['"2 of 3 connections failed"']
    assert [told.split()[0] for told in wire.circuits()] == [
        "1.1.1>1.2.1",
        "1.1.2>1.2.2",
        "1.1.3>1.2.3",
    ]
    wire.ask("DLT-CRS-BULK::1.1.2>1.2.2&1.1.3>1.2.3:1:;")
    assert wire.ask("RTRV-SAVERECALL;")[1:] == ['"Completed"']
    wire.ask("DLT-CRS-BULK::1.1.2>1.2.2:1:;")
    assert wire.ask("RTRV-SAVERECALL;")[1:] == ['"Failed"']
    assert wire.ask("DLT-CRS-BULK:::1:;")[0] == "M  1 DENY"
    assert wire.ask("DLT-CRS-ALL;") == ["M  0 COMPLD"]
    assert wire.circuits() == []


def test_ports_powers_and_what_it_is(wire: Wire) -> None:
    wire.ask("ENT-CRS::1,2:1::,1WAY;ACT-CRS::1,2:1::1.1.1>1.1.2;")
    wire.device.submit(0, SetAdmin((3,), False))
    wire.device.advance(0)
    wire.device.fail(SIZE + 3)
    assert wire.ask("RTRV-PORT::1.1.1&3:1:;")[1:] == [
        '"1.1.1:WX,NONE,NONE:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=OOS-NP,OUTOS=OOS,OUTOC=OK,OUTRS=NPR"',
        '"1.1.3:WX,NONE,NONE:INAS=OOS-MA,INOS=OOS,INOC=OK,INRS=NPR,OUTAS=OOS-AU,OUTOS=OOS,OUTOC=FAIL,OUTRS=NPR"',
    ]
    assert len(wire.ask("RTRV-PORT::0;")) == SIZE + 1
    assert wire.ask("RTRV-PORT-SUM::2:1:;")[1:] == [
        '"1.1.2:ALIAS=NONE,INPWR=0.00,OUTPWR=0.00,CONNNAME1=1.1.1>1.1.2,CONNSTATE1=ACT,CONNNAME2=NONE,'
        'CONNSTATE2=NONE"',
    ]
    dark = wire.ask("RTRV-PORT-SUM::1.2.8;")[1]
    assert "INPWR=NONE,OUTPWR=NONE,CONNNAME1=NONE" in dark
    assert wire.ask("RTRV-NE;")[1:] == [
        '"S320:SERIALNUMBER=S320,SWPACKAGE=6.0-3,STATUS=OK,CHASSISTYPE=S16,PLATFORM=VERSION2"',
    ]
    assert wire.ask("RTRV-NETYPE:::2:;")[1:] == ['"Calient,S16,OCS,6.0-3"']
    assert wire.ask("RTRV-PORT::1.1.9;")[0] == "M  0 DENY"


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        (CALIENT_S320, ["1.1.1", "1.1.8", "1.2.1", "2.1.1", "5.8.8"]),
        (MEMS, ["1.1.1", "1.1.8", "1.2.1", "1.9.1", "1.40.8"]),
        (replace(MEMS, port_names="number"), ["1", "8", "9", "65", "320"]),
    ],
    ids=["shelves", "modules", "numbers"],
)
def test_ports_are_named_as_the_profile_says(
    profile: Profile, names: list[str]
) -> None:
    ports = (1, 8, 9, 65, 320)
    with ModelSwitch("calient-tl1", 320, profile, lit=320) as model:
        entry = {"driver": "calient-tl1", "address": model.address, "username": "ann"}
        driver = make_driver("ocs0", entry, 320)
        try:
            driver.open()
            wanted = {XC(port, 320 + port) for port in ports}
            converge(driver, wanted, settle=False)
            assert model.cross_connects() == wanted
        finally:
            driver.close()
        circuits = "&".join(f"{name}>{name}" for name in names)
        assert f"ENT-CRS-BULK::{circuits}:".encode() in model.heard
    with pytest.raises(CircuitError):
        port_number("1.41.1" if profile is MEMS else "6.1.1", 320, profile.port_names)


def test_a_long_listing_has_pages() -> None:
    size = 2 * PAGE_ROWS + 1
    wire = Wire(size)
    wire.session.feed(b"RTRV-PORT::0:5:;")
    told = wire.session.advance(0).decode()
    assert told.count("M  5 COMPLD") == 3
    assert [told.count(f"\r\n{end}") for end in (">", ";")] == [2, 1]
    assert told.count("WX,NONE") == size
    assert told.endswith(";\r\nagent> ")


# The driver on it


@pytest.fixture
def model() -> Iterator[ModelSwitch]:
    with ModelSwitch("calient-tl1", SIZE, MEMS, lit=SIZE - 1) as made:
        yield made


@pytest.fixture(params=[True, False], ids=["bulk", "singly"])
def driver(
    request: pytest.FixtureRequest, model: ModelSwitch
) -> Iterator[OpticalSwitchDriver]:
    entry = {
        "driver": "calient-tl1",
        "address": model.address,
        "profile": MEMS.declared(),
    }
    made = make_driver("ocs0", entry | {"bulk": request.param, "username": "ann"}, SIZE)
    try:
        yield made
    finally:
        made.close()


def writes(model: ModelSwitch) -> list[str]:
    """Verbs of the commands that write, since the last call."""
    verbs = [word.split(b":")[0].decode() for word in bytes(model.heard).split(b";")]
    model.heard.clear()
    return [
        verb
        for verb in verbs
        if verb.endswith(("-CRS", "-BULK")) and not verb.startswith("RTRV")
    ]


def test_the_driver_moves_light(
    model: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    assert driver.open() == Identity("Calient", f"S{SIZE}", "ocs0", "6.0-3")
    converge(driver, [XC(1, SIZE + 9), XC(2, SIZE + 2)])
    assert model.cross_connects() == {XC(1, SIZE + 9), XC(2, SIZE + 2)}
    bulk = driver.capabilities().max_batch > 100
    assert writes(model) == (["ENT-CRS-BULK"] if bulk else 2 * ["ENT-CRS", "ACT-CRS"])
    converge(driver, [XC(2, SIZE + 3)])
    assert writes(model) == ["CANC-CRS", "DLT-CRS", "ENT-CRS", "ACT-CRS"]
    assert model.cross_connects() == {XC(1, SIZE + 9), XC(2, SIZE + 3)}
    converge(driver, (), Mode.REPLACE)
    assert writes(model) == (["DLT-CRS-BULK"] if bulk else 2 * ["CANC-CRS", "DLT-CRS"])
    assert model.cross_connects() == set()


def test_what_others_have_made(model: ModelSwitch, driver: OpticalSwitchDriver) -> None:
    model.device.submit(0, Rewire(((1, SIZE + 2),)))
    with_light = driver.open()
    assert with_light.vendor == "Calient"
    assert set(driver.snapshot().cross_connects) == {XC(1, SIZE + 2)}
    converge(driver, [XC(1, SIZE + 3)])
    assert model.cross_connects() == {XC(1, SIZE + 3)}


def test_a_circuit_without_light_is_made_anew(
    model: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    driver.open()
    with ModelClient(model) as other:
        other.ask("ENT-CRS::1,2:1::LAB,1WAY,red;")
        assert driver.snapshot().cross_connects == {
            XC(1, SIZE + 2): CrossConnectState.INVALID
        }
        converge(driver, [XC(1, SIZE + 2)])
        assert model.cross_connects() == {XC(1, SIZE + 2)}
        other.ask("ENT-CRS::3,4:1::LAB,2WAY,blue;ACT-CRS::3,4:2::1.1.3-1.1.4,LAB;")
    with pytest.raises(Refused, match=r"1\.1\.3-1\.1\.4 is a two-way circuit"):
        converge(driver, (), delete=[3])
    converge(driver, (), delete=[3, 4])
    assert model.cross_connects() == {XC(1, SIZE + 2)}


class ModelClient:
    """Another client of the emulated switch, in its words."""

    def __init__(self, model: ModelSwitch) -> None:
        self._socket = socket.create_connection(("127.0.0.1", model.port), timeout=5)
        self.ask("ACT-USER::bob:1::x;")

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, text: str) -> None:
        """Until every command has its reply."""
        self._socket.sendall(text.encode())
        told = b""
        while told.count(b"\r\n;") < text.count(";"):
            told += self._socket.recv(4096)
        assert b"DENY" not in told, told


def test_a_half_done_bulk_names_what_is_missing(
    model: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_reading, "FRESH_S", 60.0)
    entry = {
        "driver": "calient_tl1",
        "address": model.address,
        "username": "ann",
        "profile": MEMS.declared(),
    }
    driver = make_driver("ocs0", entry, SIZE)
    try:
        seen = driver.snapshot()
        plan = driver.plan([XC(1, SIZE + 2), XC(3, SIZE + 4)], snapshot=seen)
        model.device.fail(SIZE + 4)
        with pytest.raises(PartialApply, match="1 of 2 connections failed") as caught:
            driver.apply(plan, seen=seen)
        assert caught.value.result is not None
        # The other one is waited for, though the write as a whole was refused.
        assert [(r.ingress, r.egress) for r in caught.value.result.deviations] == [
            (3, SIZE + 4)
        ]
        assert driver.snapshot().ports[SIZE + 4].state is PortState.FAILED
    finally:
        driver.close()
