"""Calient's REST: the driver and the emulated switch, against each other, a transcript and bad company."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    AuthFailed,
    OpticalError,
    PartialApply,
    ProtocolError,
    ReadBackMismatch,
    Refused,
)
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.calient.calient_rest import (
    parse_circuits,
    parse_port_powers,
    parse_ports,
    parse_power,
    parse_statuses,
)
from ringlight.extensions.calient.emulation.calient_circuits import (
    CalientCircuits,
    CircuitError,
    port_name,
    port_number,
)
from ringlight.extensions.calient.emulation.calient_rest import COOKIE_S, Cookies
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import CrossConnectState, Mode
from ringlight.fabric.optical_profiles import IDEAL, MEMS
from ringlight.testbed.emulation.optical.commands import NS, Admin, Rewire
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.drivers import converge
from tests.http_script import Asked, Script, answer
from tests.optical_model import ModelSwitch, Talk

USERS = {"ann": "sesame"}
LOGIN = "Basic " + base64.b64encode(b"ann:sesame").decode()
LIST = "/rest/crossconnects/?id=list"
TRANSCRIPT: Any = json.loads(
    (Path(__file__).parent / "data/calient_rest.json").read_text()
)


def driver_of(address: str, size: int = 16, **more: object) -> OpticalSwitchDriver:
    return make_driver(
        "ocs0", {"driver": "calient_rest", "address": address, **more}, size
    )


@pytest.fixture
def device() -> OpticalDevice:
    made = OpticalDevice(16, IDEAL, seed=1)
    for port in range(1, 9):
        made.receive(port, True)
    return made


class Calient(Talk):
    """A client of Calient's REST."""

    def __init__(
        self, of: OpticalDevice | Switch, users: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            "calient-rest",
            of if isinstance(of, Switch) else Switch("ocs0", of, users or {}),
        )

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """The JSON of an answer with status 200."""
        self.send(method, target, body)
        status, _, told = self.hear()
        assert status == 200, told
        return json.loads(told)

    def add(self, source: int, destination: int, **more: object) -> str:
        """Status of one circuit that is to be made."""
        ends = {"in": port_name(source), "out": port_name(destination)}
        told = self.ask(
            "POST", "/rest/crossconnects/?id=add", {**ends, "nolight": True, **more}
        )
        return str(told["response"]["status"])

    def conns(self) -> dict[str, str]:
        """Administrative, operational state and capability of each circuit's first half."""
        rows = self.ask("GET", LIST)
        return {
            row["half1"]["conn"]: "/".join(
                row["half1"][key] for key in ("as", "os", "oc")
            )
            for row in rows
        }


@pytest.fixture
def talk(device: OpticalDevice) -> Calient:
    return Calient(device)


# The transcript, both ways


def test_the_emulated_switch_answers_as_in_the_transcript(talk: Calient) -> None:
    for exchange in TRANSCRIPT["exchanges"]:
        asked = exchange["request"]
        assert (
            talk.ask(asked["method"], asked["target"], asked.get("body"))
            == exchange["response"]["body"]
        )


def test_the_driver_asks_as_in_the_transcript() -> None:
    left = list(TRANSCRIPT["exchanges"])

    def reply(asked: Asked) -> bytes:
        exchange = left.pop(0)
        wanted = exchange["request"]
        assert (asked.method, asked.target, asked.json()) == (
            wanted["method"],
            wanted["target"],
            wanted.get("body"),
        )
        return answer(200, exchange["response"]["body"])

    with Script(reply) as switch:
        driver = driver_of(f"127.0.0.1:{switch.port}")
        who = driver.open()
        assert (who.vendor, who.model, who.serial, who.version) == (
            "Calient",
            "S16",
            "ocs0",
            "6.0-3",
        )
        converge(driver, [XC(1, 25), XC(2, 19)])
        result = converge(driver, (), delete=[1])
        assert set(result.snapshot.cross_connects) == {XC(2, 19)}
        driver.close()
    assert left == []


# The switch


def test_port_names() -> None:
    assert [port_name(port) for port in (1, 8, 9, 320)] == [
        "1.1.1",
        "1.1.8",
        "1.2.1",
        "1.40.8",
    ]
    for port in range(1, 321):
        assert port_number(port_name(port), 320) == port == port_number(str(port), 320)
    for wrong in (
        "",
        "0",
        "321",
        "1.41.1",
        "1.1.9",
        "2.1.1",
        "1.1",
        "x",
        "1.1.1.1",
        "01",
        "٣",
    ):
        with pytest.raises(CircuitError):
            port_number(wrong, 320)


def test_who_is_let_in(device: OpticalDevice) -> None:
    talk = Calient(device, USERS)
    wrong = base64.b64encode(b"ann:sesam").decode()
    for headers in (
        {},
        {"authorization": f"Basic {wrong}"},
        {"cookie": "SESSIONID=x"},
        {"authorization": "x"},
    ):
        talk.headers = headers
        talk.send("GET", LIST)
        status, told, _ = talk.hear()
        assert status == 401
        assert told["www-authenticate"].startswith("Basic")
    talk.headers = {"authorization": LOGIN}
    talk.send("GET", LIST)
    status, told, _ = talk.hear()
    assert status == 200
    cookie = told["set-cookie"].partition(";")[0]
    # Another connection of the same client.
    other = Calient(talk.switch)
    other.headers = {"cookie": f"theme=dark; {cookie}"}
    other.now_ns = COOKIE_S * NS
    other.ask("GET", LIST)
    other.now_ns += COOKIE_S * NS
    other.ask("GET", LIST)
    other.now_ns += COOKIE_S * NS + 1
    other.send("GET", LIST)
    assert other.hear()[0] == 401


def test_circuits_have_names_groups_and_two_ways(
    talk: Calient, device: OpticalDevice
) -> None:
    assert talk.add(1, 2, name="red", group="G") == "1"
    assert talk.add(3, 4, dir="bi", conn="1.1.3-1.1.4") == "1"
    assert [tuple(wire)[:2] for wire in device.cross_connects()] == [
        (1, 18),
        (3, 20),
        (4, 19),
    ]
    red, two = talk.ask("GET", LIST)
    assert (red["name"], red["group"], red["dir"]) == ("red", "G", "uni")
    assert "half2" not in red
    assert (two["dir"], two["half1"]["conn"], two["half2"]["conn"]) == (
        "bi",
        "1.1.3-1.1.4",
        "1.1.4-1.1.3",
    )
    detail = talk.ask("GET", "/rest/crossconnects/?id=detail&conn=1.1.4-1.1.3")
    assert detail == [two]
    assert (
        talk.ask("GET", "/rest/crossconnects/?id=detail&conn=9>9")["response"]["status"]
        == "0"
    )
    assert talk.ask(
        "DELETE", "/rest/crossconnects/?id=delete&conn=1.1.4-1.1.3&group=&name="
    ) == {"response": {"status": "1"}}
    assert list(talk.conns()) == ["1.1.1>1.1.2"]


@pytest.mark.parametrize(
    "item",
    [
        {"in": "1.1.1", "out": "1.1.3"},
        {"in": "1.1.3", "out": "1.1.2"},
        {"in": "1.1.3", "out": "1.9.1"},
        {"in": "1.1.3", "out": "1.1.5", "dir": "none"},
        {"in": "1.1.3", "out": "1.1.5", "conn": "1.1.3>1.1.6"},
        {"in": "1.1.3", "out": "1.1.6"},
        {"in": "1.1.3", "out": "1.1.5", "name": "x" * 81},
        {},
    ],
)
def test_a_bulk_request_does_a_part(
    talk: Calient, device: OpticalDevice, item: dict[str, str]
) -> None:
    assert talk.add(1, 2) == "1"
    device.fail(16 + 6)
    told = talk.ask(
        "POST",
        "/rest/crossconnects/?id=badd",
        [item, {"in": "7", "out": "8"}, {"in": "7", "out": "9"}],
    )
    assert [row["response"]["status"] for row in told] == ["0", "1", "0"]
    assert told[0]["response"]["description"] == "Invalid Connection"
    assert list(talk.conns()) == ["1.1.1>1.1.2", "1.1.7>1.1.8"]
    told = talk.ask(
        "POST",
        "/rest/crossconnects/?id=bdel",
        [{"conn": "7>8"}, {"conn": "7>8"}, {"conn": "x"}],
    )
    assert [row["response"]["status"] for row in told] == ["1", "0", "0"]


def test_two_phases(talk: Calient, device: OpticalDevice) -> None:
    talk.add(1, 2)
    target = "/rest/crossconnects/?id={}&conn=1.1.1>1.1.2"
    assert talk.ask("POST", target.format("deactivate"))["response"]["status"] == "1"
    assert device.cross_connects() == ()
    assert talk.conns() == {"1.1.1>1.1.2": "UMA/RDY/OK"}
    assert talk.add(1, 3) == "0", "it holds its ports"
    assert talk.ask("POST", target.format("deactivate"))["response"]["status"] == "0"
    assert talk.ask("POST", target.format("activate"))["response"]["status"] == "1"
    assert talk.conns() == {"1.1.1>1.1.2": "IS/IS/OK"}
    talk.ask("POST", "/rest/crossconnects/?id=deactivate", {"conn": "1.1.1>1.1.2"})
    assert (
        talk.ask("POST", "/rest/crossconnects/?id=deleteall")["response"]["status"]
        == "1"
    )
    assert talk.conns() == {}


def test_states_while_mirrors_move_and_without_light() -> None:
    device = OpticalDevice(16, MEMS)
    device.receive(1, True)
    talk = Calient(device)
    talk.add(1, 2)
    assert talk.conns() == {"1.1.1>1.1.2": "IS/RDY/OK"}
    talk.now_ns += NS
    assert talk.conns() == {"1.1.1>1.1.2": "IS/IS/OK"}
    talk.add(3, 4, nolight=False)
    talk.add(5, 6)
    talk.now_ns += NS
    assert talk.conns() == {
        "1.1.1>1.1.2": "IS/IS/OK",
        "1.1.3>1.1.4": "IS/OOS/FAIL",
        "1.1.5>1.1.6": "IS/IS/OK",
    }
    device.receive(3, True)
    assert talk.conns()["1.1.3>1.1.4"] == "IS/IS/OK"
    (row,) = [row for row in talk.ask("GET", LIST) if row["name"] == "1.1.5>1.1.6"]
    assert (row["half1"]["inp"], row["half1"]["loss"], row["half1"]["alarm"]) == (
        "NONE",
        "NONE",
        "LOS",
    )
    (row,) = [row for row in talk.ask("GET", LIST) if row["name"] == "1.1.1>1.1.2"]
    half = row["half1"]
    assert float(half["inp"]) - float(half["outp"]) == pytest.approx(
        float(half["loss"]), abs=0.011
    )


def test_light_of_another_protocol_is_a_circuit_too(
    talk: Calient, device: OpticalDevice
) -> None:
    talk.add(1, 2, dir="bi")
    device.submit(0, Rewire(((5, 22),)))
    device.advance(0)
    assert list(talk.conns()) == ["1.1.1-1.1.2", "1.1.5>1.1.6"]
    device.submit(0, Rewire(only=True))
    device.advance(0)
    assert talk.conns() == {}
    assert talk.add(1, 2) == "1"


@pytest.mark.parametrize("verb", ["badd", "bdel"])
def test_a_client_that_leaves_in_the_middle_leaves_nothing_half_done(verb: str) -> None:
    device = OpticalDevice(16, MEMS)
    ocs = Switch("ocs0", device)
    if verb == "bdel":
        Calient(ocs).add(1, 2)
    leaving = Calient(ocs)
    leaving.send(
        "POST",
        f"/rest/crossconnects/?id={verb}",
        [{"in": "1", "out": "2", "conn": "1>2"}],
    )
    assert leaving.session.advance(NS) == b""
    assert not leaving.session.idle
    device.advance(2 * NS)
    found = CalientCircuits.of(ocs).all()
    assert [circuit.active for circuit in found] == ([True] if verb == "badd" else [])


def test_a_circuit_that_the_device_refuses_at_its_turn_holds_nothing(
    talk: Calient, device: OpticalDevice
) -> None:
    talk.send("POST", "/rest/crossconnects/?id=add", {"in": "1", "out": "2"})
    assert talk.session.advance(0) == b""
    device.fail(18)
    assert json.loads(talk.hear()[2])["response"]["status"] == "0"
    assert talk.conns() == {}


@pytest.mark.parametrize("key", ["name", "group"])
@pytest.mark.parametrize("text", ["a,b", "a:b", 'a"', "two\nlines", "x" * 81])
def test_a_name_that_would_spoil_a_row_of_tl1_is_refused(
    talk: Calient, key: str, text: str
) -> None:
    answer = talk.ask(
        "POST", "/rest/crossconnects/?id=add", {"in": "1", "out": "2", key: text}
    )
    assert answer["response"]["status"] == "0"
    assert talk.conns() == {}


@pytest.mark.parametrize("key", ["name", "group"])
def test_half_a_character_is_refused(talk: Calient, key: str) -> None:
    talk.send(
        "POST", "/rest/crossconnects/?id=add", {"in": "1", "out": "2", key: "\ud800"}
    )
    assert talk.hear()[0] == 400
    assert talk.conns() == {}


def test_ports_are_named_and_put_out_of_service(
    talk: Calient, device: OpticalDevice
) -> None:
    config = "/rest/ports/?id=config"
    wish = {"port": "1.1.1", "inalias": "rack 1", "outas": "OOS"}
    assert talk.ask("POST", config, wish)["response"]["status"] == "1"
    assert device.admin(17) is Admin.DISABLED
    first = talk.ask("GET", "/rest/ports/?id=summary")[0]
    assert (first["inalias"], first["outalias"]) == ("rack 1", "")
    assert talk.add(2, 1) == "0"
    for wrong in (
        {"port": "9.9.9"},
        {"port": "1", "inas": "MAYBE"},
        {"port": "1", "inalias": "x" * 99},
    ):
        assert talk.ask("POST", config, wrong)["response"]["status"] == "0"


def test_other_people_s_calls_are_answered_in_the_shape_that_they_read(
    talk: Calient,
) -> None:
    circuits, port = "/rest/crossconnects/", "/rest/ports/?id=detail&port="
    form = b"id=add&in=1.1.3&out=1.1.4&dir=uni&nolight=true"
    assert talk.ask("POST", circuits, form)["response"]["status"] == "1"
    assert talk.add(1, 2, dir="bi") == "1"
    assert (
        talk.ask("GET", f"{circuits}?id=detail&conn=1.1.1-1.1.2")[0]["half1"]["conn"]
        == "1.1.1-1.1.2"
    )
    both, one = talk.ask("GET", f"{port}1.1.1"), talk.ask("GET", f"{port}1.1.3")
    assert [
        (row["port"], row["incircuit"], row["outcircuit"]) for row in (*both, *one)
    ] == [
        ("1.1.1", "1.1.1-1.1.2", "1.1.1-1.1.2"),
        ("1.1.3", "1.1.3>1.1.4", ""),
    ]
    (into,) = talk.ask("GET", f"{port}1.1.4")
    assert (into["incircuit"], into["outcircuit"]) == ("", "1.1.3>1.1.4")
    (free,) = talk.ask("GET", f"{port}1.1.5")
    assert (free["incircuit"], free["outcircuit"], free["conn"]) == ("", "", "NONE")
    assert talk.ask("GET", f"{port}9.9.9")["response"]["status"] == "0"
    assert (
        talk.ask("GET", f"{circuits}?id=detail&conn=1.1.7-1.1.8")["response"]["status"]
        == "0"
    )
    assert (
        talk.ask("DELETE", f"{circuits}?conn=1.1.1-1.1.2")["response"]["status"] == "1"
    )
    assert (
        talk.ask("POST", f"{circuits}?id=deactivate", b"conn=1.1.3%3E1.1.4")[
            "response"
        ]["status"]
        == "1"
    )
    assert talk.conns() == {"1.1.3>1.1.4": "UMA/RDY/OK"}
    assert (
        talk.ask("DELETE", circuits, b"conn=1.1.3%3E1.1.4")["response"]["status"] == "1"
    )
    assert talk.conns() == {}


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("GET", "/", None, 404),
        ("DELETE", "/rest/crossconnects/", None, 400),
        ("POST", "/rest/crossconnects/", b"in=1.1.3&out=1.1.4", 400),
        ("POST", "/rest/crossconnects/?id=badd", b"in=1.1.3&out=1.1.4", 400),
        ("POST", "/rest/crossconnects/?id=add", b"in=1.1.3&out", 400),
        ("POST", "/rest/crossconnects/?id=add", b"&".join([b"in=1"] * 99), 400),
        ("GET", "/rest/nothing", None, 404),
        ("GET", "/rest/crossconnects/", None, 400),
        ("GET", "/rest/crossconnects/?id=badd", None, 405),
        ("POST", LIST, None, 405),
        ("POST", "/rest/crossconnects/?id=badd", None, 400),
        ("POST", "/rest/crossconnects/?id=badd", b"[", 400),
        ("POST", "/rest/crossconnects/?id=badd", b"[" * 100_000, 400),
        ("POST", "/rest/crossconnects/?id=badd", {}, 400),
        ("POST", "/rest/crossconnects/?id=badd", [1], 400),
        ("POST", "/rest/crossconnects/?id=badd", [{"in": 1, "out": 2}], 400),
        ("POST", "/rest/crossconnects/?id=badd", [{}] * 5000, 413),
        ("POST", "/rest/crossconnects/?id=bdel", [{"conn": []}], 400),
        ("POST", "/rest/crossconnects/?id=activate", [], 400),
        ("GET", "/rest/node/?id=summary&detail=WEATHER", None, 400),
    ],
)
def test_what_makes_no_sense_is_refused(
    talk: Calient, method: str, target: str, body: object, status: int
) -> None:
    talk.send(method, target, body)
    told = talk.hear()
    assert told[0] == status
    assert json.loads(told[2])["response"]["status"] == "0"
    assert talk.conns() == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
PORT = st.sampled_from(["1", "1.1.2", "1.2.8", "17", ""]) | st.text(max_size=5)
WORDS = (
    "in",
    "out",
    "conn",
    "dir",
    "group",
    "name",
    "nolight",
    "port",
    "inas",
    "outalias",
)
ITEM = st.dictionaries(st.sampled_from(WORDS), PORT | JSON, max_size=5)
VERBS = (
    "list",
    "detail",
    "add",
    "badd",
    "bdel",
    "delete",
    "activate",
    "deactivate",
    "deleteall",
    "config",
)


@pytest.mark.fuzz
@given(data=st.data())
def test_whatever_is_asked_is_answered(data: st.DataObject) -> None:
    talk = Calient(OpticalDevice(16, IDEAL))
    for _ in range(data.draw(st.integers(1, 6))):
        path = data.draw(st.sampled_from(["crossconnects", "ports"]))
        target = f"/rest/{path}/?id={data.draw(st.sampled_from(VERBS))}"
        if data.draw(st.booleans()):
            target += f"&conn={data.draw(st.sampled_from(['1>1.1.2', '1.1.2-1', '%00', '>', '-']))}"
        body = data.draw(ITEM | st.lists(ITEM, max_size=4) | JSON)
        talk.send(data.draw(st.sampled_from(["GET", "POST", "DELETE"])), target, body)
        status, _, _ = talk.hear()
        assert status in (200, 400, 405)
    lit = {(wire.ingress, wire.egress) for wire in talk.device.cross_connects()}
    shown = {
        (wire.ingress, wire.egress)
        for circuit in CalientCircuits.of(talk.switch).all()
        if circuit.active
        for wire in circuit.wires(16)
    }
    assert shown == lit


# Someone else's client


def test_a_client_of_ours_has_no_part_in() -> None:
    with (
        ModelSwitch("calient-rest", users=USERS) as switch,
        httpx.Client(
            base_url=f"http://{switch.address}/rest/", trust_env=False
        ) as client,
    ):
        assert client.get("crossconnects/", params={"id": "list"}).status_code == 401
        assert client.get(
            "info/", params={"id": "restversion"}, auth=("ann", "sesame")
        ).json() == {"version": "1.0"}
        wanted = [
            {
                "in": "1.1.1",
                "out": "1.1.2",
                "group": "SYSTEM",
                "conn": "1.1.1-1.1.2",
                "dir": "bi",
            }
        ]
        made = client.post("crossconnects/", params={"id": "badd"}, json=wanted)
        assert [row["response"]["status"] for row in made.json()] == ["1"]
        assert switch.cross_connects() == {XC(1, 18), XC(2, 17)}
        (row,) = client.get("crossconnects?id=list").json()
        assert row["half2"]["as"] == "IS"
        gone = client.delete(
            "crossconnects/", params={"id": "delete", "conn": "1.1.1-1.1.2"}
        )
        assert gone.json() == {"response": {"status": "1"}}
        assert switch.cross_connects() == set()


# The driver


@pytest.fixture
def switch() -> Iterator[ModelSwitch]:
    with ModelSwitch("calient-rest", users=USERS) as made:
        yield made


@pytest.fixture
def driver(
    switch: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpticalSwitchDriver]:
    monkeypatch.setenv("OCS_PASSWORD", "sesame")
    made = driver_of(switch.address, username="ann", password_env="OCS_PASSWORD")
    made.open()
    yield made
    made.close()


def test_the_driver_moves_circuits(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 18), XC(2, 19), XC(3, 20)])
    converge(driver, [XC(1, 19), XC(2, 18)])
    assert switch.cross_connects() == {XC(1, 19), XC(2, 18), XC(3, 20)}
    converge(driver, (), Mode.REPLACE)
    assert switch.cross_connects() == set()


def test_a_session_that_the_switch_has_forgotten_is_begun_anew(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    switch.switch.shared(Cookies)._heard.clear()
    plan = driver.plan([XC(1, 18)])
    switch.switch.shared(Cookies)._heard.clear()
    assert driver.apply(plan, seen=driver.snapshot()).deviations == ()
    assert switch.cross_connects() == {XC(1, 18)}


def test_a_wrong_password_is_told_apart_and_shown_nowhere(
    switch: ModelSwitch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OCS_PASSWORD", "open-up")
    made = driver_of(switch.address, username="ann", password_env="OCS_PASSWORD")
    with pytest.raises(AuthFailed) as caught:
        made.open()
    shown = f"{caught.value!r} {caplog.text} {made!r}"
    for secret in ("open-up", base64.b64encode(b"ann:open-up").decode()):
        assert secret not in shown
    made.close()


def test_half_of_a_two_way_circuit_is_not_removed(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    Calient(replace(switch.switch, users={})).add(1, 2, dir="bi")
    both = {XC(1, 18), XC(2, 17)}
    assert set(driver.snapshot().cross_connects) == both
    with pytest.raises(Refused, match="two-way"):
        converge(driver, (), delete=[1])
    assert switch.cross_connects() == both
    converge(driver, (), delete=[1, 2])
    assert switch.cross_connects() == set()


def test_a_reserved_circuit_is_made_anew(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    talk = Calient(replace(switch.switch, users={}))
    talk.add(1, 2)
    talk.ask("POST", "/rest/crossconnects/?id=deactivate&conn=1>2")
    assert driver.snapshot().cross_connects == {XC(1, 18): CrossConnectState.INVALID}
    converge(driver, [XC(1, 18)])
    assert switch.cross_connects() == {XC(1, 18)}


def test_without_light_nothing_is_measured(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 18), XC(9, 19)])
    assert driver.power_dbm([1, 18, 9, 19, 20]) == {
        1: 0.0,
        18: 0.0,
        9: None,
        19: None,
        20: None,
    }
    assert [(alarm.kind, alarm.port) for alarm in driver.alarms()] == [("LOS", 9)]


class Wrong:
    """A real switch whose answers to one kind of request are changed on the way."""

    def __init__(self, device: OpticalDevice) -> None:
        self.talk = Calient(device)
        self.change: dict[str, Any] = {}

    def reply(self, asked: Asked) -> bytes:
        verb = asked.target.partition("id=")[2]
        told = self.talk.ask(asked.method, asked.target, asked.json())
        if verb in self.change:
            changed = self.change[verb](asked.json(), told)
            return changed if isinstance(changed, bytes) else answer(200, changed)
        return answer(200, told)


@pytest.fixture
def wrong(device: OpticalDevice) -> Iterator[tuple[Wrong, OpticalSwitchDriver]]:
    made = Wrong(device)
    with Script(made.reply) as script:
        driver = driver_of(f"127.0.0.1:{script.port}")
        driver.open()
        yield made, driver
        driver.close()


def test_status_200_is_not_success(
    wrong: tuple[Wrong, OpticalSwitchDriver], device: OpticalDevice
) -> None:
    _, driver = wrong
    device.fail(18)
    with pytest.raises(Refused, match=r"1\.1\.1>1\.1\.2: Invalid Connection"):
        converge(driver, [XC(1, 18)])
    with pytest.raises(PartialApply) as caught:
        converge(driver, [XC(1, 18), XC(3, 20)])
    assert caught.value.result is not None
    assert {(r.ingress, bool(r.reason)) for r in caught.value.result.results} == {
        (1, True),
        (3, False),
    }


def test_neither_is_the_status_of_each(
    wrong: tuple[Wrong, OpticalSwitchDriver], device: OpticalDevice
) -> None:
    switch, driver = wrong
    device.fail(18)
    switch.change["badd"] = lambda asked, told: [
        {"response": {"status": "1"}} for _ in asked
    ]
    with pytest.raises(ReadBackMismatch):
        converge(driver, [XC(1, 18)])


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {"crossconnects": []},
        None,
        "",
        [[]],
        [{}],
        [{"half1": {"conn": "1.1.1>1.1.2"}}],
        [{"half1": {"conn": "1.1.1>1.9.9", "as": "IS", "os": "IS", "oc": "OK"}}],
        2 * [{"half1": {"conn": "1.1.1>1.1.2", "as": "IS", "os": "IS", "oc": "OK"}}],
        answer(200, b""),
        answer(500, []),
        answer(204),
    ],
)
def test_a_reading_that_is_not_one_is_never_an_empty_switch(
    wrong: tuple[Wrong, OpticalSwitchDriver], rows: Any
) -> None:
    switch, driver = wrong
    converge(driver, [XC(1, 18)])
    switch.change["list"] = lambda asked, told: rows
    with pytest.raises(ProtocolError):
        driver.snapshot()
    with pytest.raises(ProtocolError):
        converge(driver, [XC(3, 20)])
    switch.change.clear()
    assert set(driver.snapshot().cross_connects) == {XC(1, 18)}


def test_another_size_is_told() -> None:
    with (
        ModelSwitch("calient-rest", size=8) as switch,
        contextlib.closing(driver_of(switch.address)) as driver,
        pytest.raises(ProtocolError, match="8 ports, the fabric says 16"),
    ):
        driver.open()


# The driver's parsers


def test_what_other_switches_might_say_is_understood() -> None:
    assert parse_ports([{"port": 10}, {"port": "9"}]) == ("9", "10")
    assert parse_port_powers(
        [{"port": 1, "power": -1.5}, {"port": 2, "power": "NONE/-2"}, {"port": 3}]
    ) == {
        "1": (-1.5, None),
        "2": (-math.inf, -2.0),
        "3": (None, None),
    }
    assert parse_statuses(
        [{"response": {"status": 0, "text": "no"}}, {"response": {"status": "ok"}}], 2
    ) == (
        "no",
        "",
    )
    half = {
        "conn": "1-2",
        "inp": "-1.00",
        "outp": "",
        "as": "IS-NR",
        "os": "IS",
        "oc": "OK",
    }
    (circuit,) = parse_circuits(
        [{"half1": half, "half2": {**half, "conn": "2-1", "oc": "FAIL"}, "dir": "bi"}]
    )
    there, back = circuit.halves
    assert (there.source, there.destination, there.state) == (
        "1",
        "2",
        CrossConnectState.CONNECTED,
    )
    assert back == replace(
        there, source="2", destination="1", state=CrossConnectState.FAILED
    )
    assert (there.received, there.sent) == (-1.0, None)


@pytest.mark.fuzz
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["half1", "half2", "dir", "port", "power", "response"]),
            JSON
            | st.dictionaries(
                st.sampled_from(["conn", "as", "os", "oc", "inp", "status"]),
                JSON | PORT,
            ),
        ),
        max_size=3,
    )
    | JSON
)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    for parse in (
        parse_circuits,
        parse_ports,
        parse_port_powers,
        lambda v: parse_statuses(v, 2),
    ):
        with contextlib.suppress(ProtocolError):
            parse(value)


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "-1e9", "low", "1,2,3"])
def test_a_power_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse_port_powers([{"port": "1", "power": text}])
    with pytest.raises(OpticalError):
        parse_power(text)
