"""Polatis' RESTCONF: the driver and the emulated switch, against each other, a transcript and bad company."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    AuthFailed,
    Indeterminate,
    PartialApply,
    PermissionDenied,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    StaleRevision,
)
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.http.restconf import parse_error
from ringlight.extensions.polatis.emulation.xml_body import (
    MAX_DEPTH,
    XmlError,
    local_name,
    parse_xml,
)
from ringlight.extensions.polatis.polatis_restconf import (
    format_pairs,
    parse_identity,
    parse_pairs,
    parse_port_states,
    parse_powers,
)
from ringlight.fabric.crossconnect import CrossConnect as XC
from ringlight.fabric.crossconnect import Mode, PortState
from ringlight.fabric.optical_profiles import IDEAL, MEMS
from ringlight.testbed.emulation.optical.commands import NS, Admin, Rewire
from ringlight.testbed.emulation.optical.device import OpticalDevice
from ringlight.testbed.emulation.optical.session import Switch
from tests.drivers import converge
from tests.http_script import Asked, Script, answer
from tests.optical_model import ModelSwitch, Talk

USERS = {"ann": "sesame"}
TRANSCRIPT: Any = json.loads(
    (Path(__file__).parent / "data/polatis_restconf.json").read_text()
)
DATA = "/api/data/optical-switch:"
PAIRS = f"{DATA}cross-connects"
OPERATION = "/api/operations/optical-switch:port-set-state"
INVALID = "invalid-value"
SPACE = "http://www.polatis.com/yang/optical-switch"
#: What is no port's number.
BAD_PORTS = (0, -1, 65536, True, "1", 1.0, None, [])
JSON, XML = "application/yang-data+json", "application/yang-data+xml"


def driver_of(address: str, size: int = 16, **more: object) -> OpticalSwitchDriver:
    entry = {"driver": "polatis_restconf", "address": address, "settle_s": 0, **more}
    return make_driver("ocs0", entry, size)


class Polatis(Talk):
    """A client of the RESTCONF server."""

    def __init__(
        self, of: OpticalDevice | Switch, users: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            "polatis-restconf",
            of if isinstance(of, Switch) else Switch("ocs0", of, users or {}),
        )

    def status(
        self, method: str, target: str, body: object = None, **headers: str
    ) -> int:
        self.send(method, target, body, **headers)
        return self.hear()[0]

    def tag(self, target: str = PAIRS) -> str:
        self.send("GET", target)
        return self.hear()[1]["etag"]

    def pairs(self) -> dict[int, int]:
        return {wire.ingress: wire.egress for wire in self.device.cross_connects()}


@pytest.fixture
def device() -> OpticalDevice:
    made = OpticalDevice(16, IDEAL, seed=1)
    for port in range(1, 9):
        made.receive(port, True)
    return made


@pytest.fixture
def talk(device: OpticalDevice) -> Polatis:
    return Polatis(device)


# The transcript, both ways


def test_the_emulated_switch_answers_as_in_the_transcript(talk: Polatis) -> None:
    tags = {}
    for exchange in TRANSCRIPT["exchanges"]:
        asked, wanted = exchange["request"], exchange["response"]
        conditions = {
            name.replace("-", "_"): tags[asked[name]]
            for name in ("if-match", "if-none-match")
            if name in asked
        }
        talk.send(
            asked["method"],
            asked["target"],
            asked.get("body"),
            content_type=JSON,
            **conditions,
        )
        status, headers, body = talk.hear()
        assert status == wanted["status"]
        assert (json.loads(body) if body else None) == wanted.get("body")
        if status == 200:
            assert headers["content-type"] == JSON
            tags["pairs" if asked["target"] == PAIRS else "ports"] = headers["etag"]


def test_the_driver_asks_as_in_the_transcript() -> None:
    left = list(TRANSCRIPT["exchanges"])

    def reply(asked: Asked) -> bytes:
        exchange = left.pop(0)
        wanted, said = exchange["request"], exchange["response"]
        assert (asked.method, asked.target, asked.json()) == (
            wanted["method"],
            wanted["target"],
            wanted.get("body"),
        )
        for condition in ("if-match", "if-none-match"):
            named = asked.headers.get(condition)
            assert named == (f'"{wanted[condition]}"' if condition in wanted else None)
        if asked.body:
            assert asked.headers["content-type"] == JSON
        tag = "pairs" if asked.target == PAIRS else "ports"
        return answer(said["status"], said.get("body"), etag=f'"{tag}"')

    with Script(reply) as switch:
        driver = driver_of(f"127.0.0.1:{switch.port}")
        who = driver.open()
        assert (who.vendor, who.model, who.serial, who.version) == (
            "Polatis",
            "N-EMU-16x16-IDEAL",
            "ocs0",
            "6.0.0.0",
        )
        driver.apply(
            driver.plan([XC(1, 17), XC(2, 18)], snapshot=(seen := driver.snapshot())),
            seen=seen,
        )
        seen = driver.snapshot()
        driver.apply(driver.plan((), delete=[1], snapshot=seen), seen=seen)
        plan = driver.plan([XC(1, 18), XC(2, 17)], Mode.REPLACE)
        assert set(driver.apply(plan).snapshot.cross_connects) == {XC(1, 18), XC(2, 17)}
        driver.close()
    assert left == []


# The switch


def test_one_pair_is_put_moved_and_deleted(talk: Polatis) -> None:
    one = f"{PAIRS}/pair=1"
    assert (
        talk.status("PUT", one, {"optical-switch:pair": [{"ingress": 1, "egress": 17}]})
        == 201
    )
    assert (
        talk.status("PUT", one, {"optical-switch:pair": [{"ingress": 1, "egress": 18}]})
        == 204
    )
    assert talk.pairs() == {1: 18}
    assert talk.status("PATCH", one, {"pair": [{"egress": 19}]}) == 400, (
        "it does not say which"
    )
    assert talk.status("PATCH", one, {"pair": [{"ingress": 1, "egress": 19}]}) == 204
    assert talk.status("PUT", f"{one}/egress", {"optical-switch:egress": 20}) == 204
    assert talk.pairs() == {1: 20}
    talk.send("GET", f"{one}/egress")
    assert json.loads(talk.hear()[2]) == {"optical-switch:egress": 20}
    talk.send("GET", one)
    assert json.loads(talk.hear()[2]) == {
        "optical-switch:pair": [{"ingress": 1, "egress": 20}]
    }
    assert talk.status("DELETE", one) == 204
    assert talk.status("DELETE", one) == 404
    assert talk.status("GET", one) == 404
    assert talk.status("PATCH", one, {"pair": [{"ingress": 1, "egress": 19}]}) == 404
    assert talk.status("PUT", f"{one}/egress", {"egress": 19}) == 404


def test_the_collection_is_replaced_merged_added_to_and_emptied(talk: Polatis) -> None:
    def pairs(*ends: tuple[int, int]) -> dict[str, Any]:
        return {
            "optical-switch:cross-connects": {
                "pair": [{"ingress": a, "egress": b} for a, b in ends]
            }
        }

    assert talk.status("PUT", PAIRS, pairs((1, 17), (2, 18))) == 201
    assert talk.status("PATCH", PAIRS, pairs((1, 18), (2, 17))) == 204
    assert talk.pairs() == {1: 18, 2: 17}, "a swap is one change"
    talk.send("POST", PAIRS, {"optical-switch:pair": [{"ingress": 3, "egress": 19}]})
    status, headers, _ = talk.hear()
    assert (status, headers["location"]) == (201, f"{PAIRS}/pair=3")
    assert (
        talk.status(
            "POST", PAIRS, {"optical-switch:pair": [{"ingress": 3, "egress": 20}]}
        )
        == 409
    )
    assert talk.status("PUT", PAIRS, pairs((4, 20))) == 204
    assert talk.pairs() == {4: 20}
    assert talk.status("DELETE", PAIRS) == 204
    assert talk.status("DELETE", PAIRS) == 404
    assert talk.status("PUT", PAIRS, {"optical-switch:cross-connects": {}}) == 201
    assert talk.pairs() == {}


def test_xml_says_the_same(talk: Polatis) -> None:
    one = f"{PAIRS}/pair=1"
    body = f'<?xml version="1.0"?><pair xmlns="{SPACE}"><ingress>1</ingress><egress>17</egress></pair>'.encode()
    assert talk.status("PUT", one, body, content_type=XML) == 201
    assert (
        talk.status(
            "PUT", one, body.replace(b"17", b"18"), content_type="application/xml"
        )
        == 204
    )
    pair = "<pair><ingress>2</ingress><egress>19</egress></pair>"
    body = f'<cross-connects xmlns="{SPACE}">{pair}</cross-connects>'.encode()
    assert talk.status("PATCH", PAIRS, body, content_type=XML) == 204
    assert talk.pairs() == {1: 18, 2: 19}
    talk.send("GET", PAIRS, accept=XML)
    status, headers, told = talk.hear()
    assert (status, headers["content-type"]) == (200, XML)
    root = parse_xml(told)
    assert root.tag == f"{{{SPACE}}}cross-connects"
    assert [[leaf.text for leaf in pair] for pair in root] == [["1", "18"], ["2", "19"]]
    talk.send("GET", one, accept=f"text/html, {XML};q=0.9")
    assert (
        talk.hear()[2]
        == f'<pair xmlns="{SPACE}"><ingress>1</ingress><egress>18</egress></pair>'.encode()
    )
    talk.send("GET", "/api/data", accept=XML)
    assert [local_name(child) for child in parse_xml(talk.hear()[2])][:2] == [
        "product-information",
        "cross-connects",
    ]
    talk.send("GET", f"{PAIRS}/pair=9", accept=XML)
    status, headers, told = talk.hear()
    assert (status, local_name(parse_xml(told))) == (404, "errors")
    state = f'<input xmlns="{SPACE}"><port-disab>3</port-disab><port-disab>4</port-disab></input>'.encode()
    assert (
        talk.status(
            "POST",
            "/api/operations/optical-switch:port-set-state",
            state,
            content_type=XML,
        )
        == 204
    )
    assert [talk.device.admin(port) for port in (3, 4, 5)] == [
        Admin.DISABLED,
        Admin.DISABLED,
        Admin.ENABLED,
    ]
    assert (
        talk.status(
            "PUT",
            PAIRS,
            f'<cross-connects xmlns="{SPACE}"/>'.encode(),
            content_type=XML,
        )
        == 204
    )
    assert talk.pairs() == {}


@pytest.mark.parametrize(
    "document",
    [
        b'<!DOCTYPE a [<!ENTITY x "xxxxxxxxxx">]><pair>&x;</pair>',
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><pair/>',
        b"<pair>&x;</pair>",
        b"<pair>",
        b"",
        b"<pair/><pair/>",
        b"\xff\xfe<pair/>",
        b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1),
        b"<a>" + b"<b/>" * 70_000 + b"</a>",
        b"<a:b/>",
    ],
)
def test_xml_that_is_none_or_a_trap_is_refused(talk: Polatis, document: bytes) -> None:
    with pytest.raises(XmlError):
        parse_xml(document)
    assert talk.status("PUT", f"{PAIRS}/pair=1", document, content_type=XML) == 400
    assert talk.pairs() == {}


@pytest.mark.fuzz
@given(st.binary() | st.text("<>/&;!?[]ab \"'=").map(str.encode))
def test_any_bytes_are_xml_or_refused(data: bytes) -> None:
    with contextlib.suppress(XmlError):
        assert isinstance(parse_xml(data), Element)


def test_conditions_are_heeded(talk: Polatis) -> None:
    one = f"{PAIRS}/pair=1"
    body = {"optical-switch:pair": [{"ingress": 1, "egress": 17}]}
    empty = talk.tag()
    assert talk.status("GET", PAIRS, if_none_match=empty) == 304
    assert talk.status("PUT", one, body, if_match="*") == 412
    assert talk.status("PUT", one, body, if_none_match="*") == 201
    assert talk.status("PUT", one, body, if_none_match="*") == 412
    assert talk.status("GET", PAIRS, if_none_match=empty) == 200
    assert talk.status("GET", PAIRS, if_none_match="*") == 304
    assert talk.status("GET", PAIRS, if_match=empty) == 412
    change = {"optical-switch:cross-connects": {"pair": [{"ingress": 2, "egress": 18}]}}
    assert talk.status("PATCH", PAIRS, change, if_match=empty) == 412
    assert talk.status("PATCH", PAIRS, change, if_match=f'"x", {talk.tag()}') == 204
    assert talk.status("DELETE", one, if_match=empty) == 412
    assert talk.status("DELETE", one, if_match=talk.tag(one)) == 204
    talk.send("PUT", one, body)
    written = talk.hear()[1]["etag"]
    assert written == talk.tag(one)
    assert talk.pairs() == {1: 17, 2: 18}


def whole(rows: object) -> object:
    return {"cross-connects": {"pair": rows}}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "tag"),
    [
        ("GET", "nothing", None, 404, "unknown-element"),
        ("GET", "cross-connects/port=1", None, 404, "unknown-element"),
        ("GET", "cross-connects/pair=x", None, 404, INVALID),
        ("GET", "cross-connects/pair=1/weather", None, 404, "unknown-element"),
        ("GET", "cross-connects?depth=2", None, 400, INVALID),
        ("PUT", "opm-power", {}, 405, "operation-not-supported"),
        ("POST", "cross-connects/pair=1", {}, 405, "operation-not-supported"),
        ("PATCH", "port-config/port=1", {"port": [{"status": "FAILED"}]}, 400, INVALID),
        ("PUT", "cross-connects", b"", 400, "malformed-message"),
        ("PUT", "cross-connects", b"[" * 100_000, 400, "malformed-message"),
        ("PUT", "cross-connects", [], 400, INVALID),
        ("PUT", "cross-connects", {"cross-connects": []}, 400, INVALID),
        ("PUT", "cross-connects", whole({}), 400, INVALID),
        ("PUT", "cross-connects", {"cross-connects": {"pear": []}}, 400, "unknown-element"),
        ("PUT", "cross-connects", whole([{"ingress": "1", "egress": 17}]), 400, INVALID),
        ("PUT", "cross-connects", whole([{"ingress": True, "egress": 17}]), 400, INVALID),
        ("PUT", "cross-connects", whole([{"ingress": 1}]), 400, INVALID),
        ("PUT", "cross-connects", whole([{"ingress": 1, "egress": 2}]), 400, INVALID),
        ("PUT", "cross-connects", whole(2 * [{"ingress": 1, "egress": 17}]), 400, INVALID),
        ("PUT", "cross-connects/pair=2", {"pair": [{"ingress": 1, "egress": 17}]}, 400, INVALID),
        ("PUT", "cross-connects/pair=2", {"pair": [{"ingress": 2, "egress": 20}]}, 409, "in-use"),
        ("PUT", "cross-connects/pair=2", {"pair": [{"ingress": 2, "egress": 31}]}, 409, "in-use"),
        ("PUT", "cross-connects/pair=2", {"pair": [{"ingress": 2, "egress": 32}]}, 409, "resource-denied"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_a_reason(
    talk: Polatis, method: str, path: str, body: object, status: int, tag: str
) -> None:
    talk.device.fail(32)
    talk.status("POST", OPERATION, {"input": {"port-disab": [31]}})
    talk.status("PUT", f"{PAIRS}/pair=4", {"pair": [{"ingress": 4, "egress": 20}]})
    talk.send(method, f"{DATA}{path}", body)
    said, headers, told = talk.hear()
    (error,) = json.loads(told)["ietf-restconf:errors"]["error"]
    assert (said, error["error-tag"]) == (status, tag), error
    assert (said == 405) == ("allow" in headers)
    assert talk.pairs() == {4: 20}


def test_media_types(talk: Polatis) -> None:
    body = {"cross-connects": {}}
    assert (
        talk.status(
            "PUT", PAIRS, body, content_type="application/x-www-form-urlencoded"
        )
        == 415
    )
    assert (
        talk.status("PUT", PAIRS, body, content_type="application/json; charset=utf-8")
        == 201
    )
    assert talk.status("GET", PAIRS, accept="image/png") == 406
    assert talk.status("GET", PAIRS, accept="image/png, */*") == 200
    talk.send("OPTIONS", PAIRS)
    status, headers, _ = talk.hear()
    assert status == 200
    assert "PATCH" in headers["allow"]
    talk.send("HEAD", PAIRS)
    status, headers, told = talk.hear()
    assert (status, told) == (200, b"")


def test_ports_states_labels_and_powers(talk: Polatis, device: OpticalDevice) -> None:
    assert (
        talk.status(
            "PUT",
            f"{DATA}port-config/port=3/label",
            {"optical-switch:label": "rack & row"},
        )
        == 204
    )
    assert (
        talk.status(
            "PATCH",
            f"{DATA}port-config/port=4",
            {"port": [{"port-id": 4, "label": "b"}]},
        )
        == 204
    )
    talk.send("GET", f"{DATA}port-config/port=3", accept=XML)
    assert b"<label>rack &amp; row</label>" in talk.hear()[2]
    for label in ("\ud800", "two\r\n;lines", "x" * 64):
        assert (
            talk.status(
                "PUT",
                f"{DATA}port-config/port=3/label",
                {"optical-switch:label": label},
            )
            == 400
        )
    assert device.label(3) == "rack & row"
    before = talk.tag(f"{DATA}port-config")
    device.fail(5)
    assert talk.tag(f"{DATA}port-config") != before
    talk.send("GET", f"{DATA}port-config/port=5/status")
    assert json.loads(talk.hear()[2]) == {"optical-switch:status": "FAILED"}
    talk.send("GET", f"{DATA}opm-power/port=9")
    assert json.loads(talk.hear()[2]) == {
        "optical-switch:port": [{"port-id": 9, "power": "-60.00"}]
    }
    talk.send("GET", "/api/data/polatis-switch:system-alarms")
    alarms = json.loads(talk.hear()[2])["polatis-switch:system-alarms"]["alarm"]
    assert {
        "alarm-type": "FAILED",
        "alarm-message": "port 5: the port has failed",
    } in alarms
    assert (
        talk.status("POST", OPERATION, {"optical-switch:input": {"port-enab": [99]}})
        == 400
    )
    assert (
        talk.status("POST", OPERATION, {"optical-switch:input": {"port-enab": [5]}})
        == 409
    )
    assert (
        talk.status("POST", OPERATION, {"optical-switch:input": {"port-enab": 1}})
        == 400
    )
    assert talk.status("GET", OPERATION) == 405


def test_a_login_is_asked_for_where_there_are_users(device: OpticalDevice) -> None:
    talk = Polatis(device, USERS)
    talk.send("GET", PAIRS)
    status, headers, _ = talk.hear()
    assert status == 401
    assert headers["www-authenticate"].startswith("Basic")
    for text, wanted in (
        ("ann:sesame", 200),
        ("ann:", 401),
        ("bob:sesame", 401),
        ("", 401),
    ):
        token = base64.b64encode(text.encode()).decode()
        assert talk.status("GET", PAIRS, authorization=f"Basic {token}") == wanted
    assert talk.status("GET", PAIRS, authorization="Basic \N{SNOWMAN}") in (400, 401)


def test_writes_wait_for_each_other_and_keep_what_stands() -> None:
    device = OpticalDevice(16, MEMS)
    first, second = Polatis(device), Polatis(device)
    first.status("PUT", f"{PAIRS}/pair=9", {"pair": [{"ingress": 9, "egress": 25}]})
    lit = device.mirrors._lit[9, None]
    first.send("PUT", f"{PAIRS}/pair=1", {"pair": [{"ingress": 1, "egress": 17}]})
    second.send("PUT", f"{PAIRS}/pair=2", {"pair": [{"ingress": 2, "egress": 18}]})
    now_ns = first.now_ns
    answers = {first.session: b"", second.session: b""}
    while not all(answers.values()):
        device.advance(now_ns)
        for session in answers:
            answers[session] += session.advance(now_ns)
        now_ns = max(now_ns + 1, device.next_ns or 0)
        assert now_ns < NS
    assert all(said.startswith(b"HTTP/1.1 201 ") for said in answers.values())
    assert first.pairs() == {9: 25, 1: 17, 2: 18}
    assert device.mirrors._lit[9, None] is lit, "what stands is not touched"


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {}, optional={name.replace("_", "-"): one for name, one in fields.items()}
    )


# JSON can also write halves of surrogate pairs.
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
ENDS = st.integers(0, 34) | JUNK
ROW = optional(ingress=ENDS, egress=ENDS, port_id=ENDS, label=JUNK)
ROWS = st.lists(ROW, max_size=3) | JUNK
BODY = (
    st.fixed_dictionaries(
        {"optical-switch:cross-connects": st.fixed_dictionaries({"pair": ROWS}) | JUNK}
    )
    | st.fixed_dictionaries({"pair": ROWS})
    | st.fixed_dictionaries({"optical-switch:egress": ENDS})
    | st.fixed_dictionaries({"port": ROWS})
    | st.fixed_dictionaries(
        {
            "input": st.fixed_dictionaries(
                {}, optional={"port-enab": ROWS, "port-disab": JUNK}
            )
        }
    )
    | JUNK
)
PATHS = [
    "/api/data",
    PAIRS,
    f"{PAIRS}/pair=1",
    f"{PAIRS}/pair=2/egress",
    f"{DATA}port-config/port=3",
    "/x",
]
PATHS += [
    f"{DATA}opm-power",
    "/api/operations/optical-switch:port-set-state",
    f"{PAIRS}/pair",
    f"{PAIRS}/%20",
]


@pytest.mark.fuzz
@given(data=st.data())
def test_whatever_is_asked_is_answered_and_the_pairs_stay_a_matching(
    data: st.DataObject,
) -> None:
    talk = Polatis(OpticalDevice(16, IDEAL))
    for _ in range(data.draw(st.integers(1, 6))):
        method = data.draw(st.sampled_from(["GET", "PUT", "PATCH", "POST", "DELETE"]))
        before = talk.pairs()
        kind = data.draw(st.sampled_from([JSON, XML]))
        status = talk.status(
            method,
            data.draw(st.sampled_from(PATHS)),
            data.draw(BODY),
            content_type=kind,
        )
        assert status in (200, 201, 204, 400, 404, 405, 409)
        if status >= 400:
            assert talk.pairs() == before
        assert len(set(talk.pairs().values())) == len(talk.pairs())


# Someone else's client


def test_a_client_of_ours_has_no_part_in() -> None:
    with (
        ModelSwitch("polatis-restconf", users=USERS) as switch,
        httpx.Client(
            base_url=f"http://{switch.address}", auth=("ann", "sesame"), trust_env=False
        ) as client,
    ):
        xml = f'<pair xmlns="{SPACE}"><ingress>1</ingress><egress>{{}}</egress></pair>'
        kind = {"Content-Type": "application/yang-data+xml"}
        url = "/api/data/optical-switch:cross-connects/pair=1"
        assert client.put(url, content=xml.format(17), headers=kind).status_code == 201
        assert client.put(url, content=xml.format(18), headers=kind).status_code == 204
        assert switch.cross_connects() == {XC(1, 18)}
        assert client.put(
            "/api/data/optical-switch:cross-connects/pair=2",
            json={"optical-switch:pair": [{"ingress": 2, "egress": 17}]},
        ).is_success
        told = client.get(
            "/api/data/optical-switch:cross-connects", headers={"Accept": JSON}
        )
        assert told.json() == {
            "optical-switch:cross-connects": {
                "pair": [{"ingress": 1, "egress": 18}, {"ingress": 2, "egress": 17}]
            }
        }
        same = client.get(told.url, headers={"If-None-Match": told.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        assert client.delete(url).status_code == 204
        assert switch.cross_connects() == {XC(2, 17)}
        assert client.get(url, auth=("ann", "wrong")).status_code == 401


# The driver


@pytest.fixture
def switch() -> Iterator[ModelSwitch]:
    with ModelSwitch("polatis-restconf", users=USERS) as made:
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
    assert converge(driver, [XC(1, 18), XC(2, 19), XC(3, 20)]).writes == 1
    assert converge(driver, [XC(1, 19), XC(2, 18)]).writes == 3
    assert switch.cross_connects() == {XC(1, 19), XC(2, 18), XC(3, 20)}
    assert converge(driver, [XC(1, 18), XC(4, 19)], Mode.REPLACE).writes == 1
    assert switch.cross_connects() == {XC(1, 18), XC(4, 19)}


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


def between(driver: OpticalSwitchDriver, verb: str, act: Callable[[], object]) -> None:
    """Does something once, right before the driver's next write of that kind."""
    write = getattr(driver, f"_{verb}")

    def first(*given: object) -> None:
        setattr(driver, f"_{verb}", write)
        act()
        write(*given)

    setattr(driver, f"_{verb}", first)


@pytest.mark.parametrize(
    ("verb", "mode"), [("add", Mode.UPDATE), ("replace", Mode.REPLACE)]
)
def test_what_another_makes_at_the_last_moment_is_not_moved(
    switch: ModelSwitch, driver: OpticalSwitchDriver, verb: str, mode: Mode
) -> None:
    if mode is Mode.REPLACE:
        converge(driver, [XC(5, 21)])
    other = switch.cross_connects() | {XC(1, 19)}
    plan = driver.plan([XC(1, 18)], mode)

    def someone() -> None:
        with switch._lock:
            switch.device.submit(0, Rewire(((1, 19),)))
            switch.device.advance(time.monotonic_ns())

    between(driver, verb, someone)
    with pytest.raises(StaleRevision):
        driver.apply(plan)
    assert switch.cross_connects() == other


def test_after_a_removal_a_port_that_was_taken_makes_it_partial(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 17)])
    plan = driver.plan([XC(1, 18)])

    def someone() -> None:
        with switch._lock:
            switch.device.submit(0, Rewire(((2, 18),)))
            switch.device.advance(time.monotonic_ns())

    between(driver, "add", someone)
    with pytest.raises(PartialApply):
        driver.apply(plan)
    assert switch.cross_connects() == {XC(2, 18)}


def test_after_a_removal_a_circuit_that_another_made_there_is_not_moved(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    converge(driver, [XC(1, 17)])
    plan = driver.plan([XC(1, 18)])

    def someone() -> None:
        with switch._lock:
            switch.device.submit(0, Rewire(((1, 19),)))
            switch.device.advance(time.monotonic_ns())

    between(driver, "add", someone)
    with pytest.raises(PartialApply, match="taken by someone else meanwhile"):
        driver.apply(plan)
    assert switch.cross_connects() == {XC(1, 19)}, "a merge would have moved it"


def test_light_that_does_not_come_is_an_alarm(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    assert driver.alarms() == ()
    converge(driver, [XC(1, 18), XC(9, 19)])
    assert [(alarm.kind, alarm.port) for alarm in driver.alarms()] == [("LOS", 9)]


def test_ports_are_disabled_and_enabled(
    switch: ModelSwitch, driver: OpticalSwitchDriver
) -> None:
    assert driver.set_port_enabled(17, False).enabled is False
    assert switch.device.admin(17) is Admin.DISABLED
    assert driver.set_port_enabled(17, True).enabled is True
    switch.device.fail(18)
    with pytest.raises(Refused, match="failed"):
        driver.set_port_enabled(18, True)


def test_what_vanishes_after_a_while_is_noticed(
    switch: ModelSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCS_PASSWORD", "sesame")
    made = driver_of(
        switch.address, username="ann", password_env="OCS_PASSWORD", settle_s=0.5
    )
    made.open()

    def forget() -> None:
        with switch._lock:
            switch.device.mirrors._lit.clear()
            switch.device.mirrors._feeder.clear()

    timer = threading.Timer(0.2, forget)
    timer.start()
    with pytest.raises(ReadBackMismatch, match="1->18"):
        converge(made, [XC(1, 18)])
    timer.join()
    started = time.monotonic()
    assert converge(made, [XC(1, 18)]).deviations == ()
    assert time.monotonic() - started >= 0.5
    made.close()


@pytest.mark.parametrize("settle_s", ["soon", -1, 100, None, float("nan")])
def test_a_settle_time_that_is_none_names_the_switch_and_the_key(
    settle_s: object,
) -> None:
    with pytest.raises(ValueError, match="optical switch ocs0: settle_s: "):
        driver_of("127.0.0.1:1", settle_s=settle_s)


class Wrong:
    """A switch that gives some requests an answer of its own, and does nothing else about them."""

    def __init__(self, device: OpticalDevice) -> None:
        self.talk = Polatis(device)
        self.change: dict[tuple[str, str], bytes] = {}
        #: Method and target of every request.
        self.asked: list[tuple[str, str]] = []

    def reply(self, asked: Asked) -> bytes:
        self.asked.append((asked.method, asked.target))
        if changed := self.change.get((asked.method, asked.target.removeprefix(DATA))):
            return changed
        headers = {
            name.replace("-", "_"): value
            for name, value in asked.headers.items()
            if name in ("if-match", "if-none-match", "content-type", "accept")
        }
        self.talk.send(asked.method, asked.target, asked.body or None, **headers)
        status, said, body = self.talk.hear()
        return answer(
            status, body, **{name: said[name] for name in ("etag",) if name in said}
        )


@pytest.fixture
def wrong(device: OpticalDevice) -> Iterator[tuple[Wrong, OpticalSwitchDriver]]:
    made = Wrong(device)
    with Script(made.reply) as script:
        driver = driver_of(f"127.0.0.1:{script.port}")
        driver.open()
        yield made, driver
        driver.close()


@pytest.mark.parametrize("status", [200, 201, 204])
def test_a_status_of_success_is_not_success(
    wrong: tuple[Wrong, OpticalSwitchDriver], status: int
) -> None:
    switch, driver = wrong
    switch.change["PATCH", "cross-connects"] = answer(status)
    with pytest.raises(ReadBackMismatch):
        converge(driver, [XC(1, 18)])


@pytest.mark.parametrize(
    "said",
    [
        answer(404, {"ietf-restconf:errors": {}}),
        answer(204),
        answer(200, {}),
        answer(200, []),
        answer(200, {"optical-switch:cross-connects": None}),
        answer(200, {"optical-switch:cross-connects": {"pair": {}}}),
        answer(200, {"optical-switch:cross-connects": {"pair": [{"ingress": 1}]}}),
        answer(
            200,
            {"optical-switch:cross-connects": {"pair": [{"ingress": 1, "egress": 99}]}},
        ),
        answer(
            200,
            {
                "cross-connects": {
                    "pair": [{"ingress": 1, "egress": 17}, {"ingress": 2, "egress": 17}]
                }
            },
        ),
        answer(200, b"<cross-connects/>"),
        answer(304),
    ],
)
def test_a_reading_that_is_not_one_is_never_an_empty_switch(
    wrong: tuple[Wrong, OpticalSwitchDriver], said: bytes
) -> None:
    switch, driver = wrong
    converge(driver, [XC(1, 18)])
    switch.change["GET", "cross-connects"] = said
    with pytest.raises(ProtocolError):
        driver.snapshot()
    with pytest.raises(ProtocolError):
        converge(driver, [XC(3, 20)])
    switch.change.clear()
    assert set(driver.snapshot().cross_connects) == {XC(1, 18)}


def test_a_switch_of_another_size_or_without_meters_is_told(
    wrong: tuple[Wrong, OpticalSwitchDriver], device: OpticalDevice
) -> None:
    switch, driver = wrong
    switch.change["GET", "opm-power"] = answer(404, {})
    assert driver.power_dbm([1, 17]) == {1: None, 17: None}
    for model, complaint in (
        ("N-VST-512x512-LA1-DMHNV-701", "512x512"),
        ("N-VST-16xCC", "16xCC"),
    ):
        product = {"optical-switch:product-information": {"model-name": model}}
        switch.change["GET", "product-information"] = answer(200, product)
        with pytest.raises(
            ProtocolError, match=f"the switch is {complaint}, the fabric says 16x16"
        ):
            driver.open()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Refused),
        (401, AuthFailed),
        (403, PermissionDenied),
        (404, Refused),
        (408, Indeterminate),
        (409, Refused),
        (412, StaleRevision),
        (500, Indeterminate),
        (502, Indeterminate),
    ],
)
@pytest.mark.parametrize(
    "said", [{}, {"ietf-restconf:errors": {"error": [{"error-tag": "in-use"}]}}]
)
def test_what_each_status_of_a_write_means(
    wrong: tuple[Wrong, OpticalSwitchDriver],
    status: int,
    error: type[Exception],
    said: object,
) -> None:
    switch, driver = wrong
    switch.change["PATCH", "cross-connects"] = answer(status, said)
    with pytest.raises(error) as caught:
        driver.apply(driver.plan([XC(1, 18)]))
    assert type(caught.value) is error
    if said and error is Refused:
        assert "cross-connects: in-use: " in str(caught.value), "the switch's own word"


def test_the_name_of_the_list_is_that_of_the_switch(
    wrong: tuple[Wrong, OpticalSwitchDriver],
) -> None:
    switch, driver = wrong
    converge(driver, [XC(1, 18)])
    switch.change["GET", "cross-connects"] = answer(
        200, one("cross-connects", "pairs", pair(1, 18))
    )
    driver.snapshot()
    switch.change.clear()
    seen = switch.asked
    seen.clear()
    converge(driver, [XC(2, 19)], delete=[1])
    assert ("DELETE", f"{PAIRS}/pairs=1") not in seen, (
        "the reading before it said pair again"
    )
    switch.change["GET", "cross-connects"] = answer(
        200, one("cross-connects", "pairs", pair(2, 19))
    )
    seen.clear()
    with pytest.raises(ReadBackMismatch):
        driver.apply(driver.plan((), delete=[2]))
    assert ("DELETE", f"{PAIRS}/pairs=2") in seen


def test_ports_are_asked_for_again_when_a_session_begins_and_a_port_is_set(
    wrong: tuple[Wrong, OpticalSwitchDriver],
) -> None:
    switch, driver = wrong
    # That nothing has changed is an answer only to whoever asks for it.
    for ask in (driver.open, lambda: driver.set_port_enabled(3, False)):
        switch.change.clear()
        driver.snapshot()
        switch.change["GET", "port-config"] = answer(304)
        assert driver.snapshot().ports.keys() == driver.capabilities().ports
        with pytest.raises((ProtocolError, Indeterminate), match="status 304"):
            ask()
        with pytest.raises(ProtocolError, match="status 304"):
            driver.snapshot()
    rows = [{"port-id": port, "status": "ENABLED"} for port in range(1, 31)]
    switch.change["GET", "port-config"] = answer(200, one("port-config", "port", *rows))
    with pytest.raises(
        ProtocolError, match=r"other ports than the fabric says: \[31, 32\]"
    ):
        driver.open()
    switch.change.clear()
    assert driver.snapshot().ports[3].enabled is False


def test_closed_it_has_no_connection_and_opened_again_it_has_one(
    switch: ModelSwitch,
) -> None:
    made = driver_of(switch.address)
    for _ in range(2):
        with pytest.raises(AuthFailed):
            made.open()
        made.close()
        deadline = time.monotonic() + 5
        while (
            any(client.fileno() >= 0 for client in switch._clients)
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        assert [
            client.fileno() for client in switch._clients if client.fileno() >= 0
        ] == []


def test_powers_that_cannot_be_read_are_an_error(
    wrong: tuple[Wrong, OpticalSwitchDriver],
) -> None:
    switch, driver = wrong
    for status in (204, 403, 500):
        switch.change["GET", "opm-power"] = answer(
            status, one("opm-power", "port") if status != 204 else None
        )
        with pytest.raises(PermissionDenied if status == 403 else ProtocolError):
            driver.power_dbm([1])
    switch.change["GET", "opm-power"] = answer(
        200, one("opm-power", "port", {"port-id": 2, "power": "-3.00"})
    )
    assert driver.power_dbm([1, 2]) == {1: None, 2: -3.0}


# The driver's parsers


def test_what_other_revisions_say_is_understood() -> None:
    assert parse_pairs(
        {"cross-connects": {"pairs": [{"ingress": 1, "egress": 17}]}}
    ) == (
        "pairs",
        (XC(1, 17),),
    )
    assert parse_pairs({"optical-switch:cross-connects": {}}) == ("pair", ())
    assert json.loads(format_pairs("pairs", [XC(1, 17)])) == {
        "optical-switch:cross-connects": {"pairs": [{"ingress": 1, "egress": 17}]}
    }
    rows = [{"port-id": 1, "power": "-12.30"}, {"port-id": 2, "power": -40}]
    assert parse_powers({"optical-switch:opm-power": {"port": rows}}) == {
        1: -12.3,
        2: -40.0,
    }
    assert parse_port_states(
        {"port-config": {"port": [{"port-id": 1, "status": "UNSUPPORTED"}]}}
    ) == {1: "UNSUPPORTED"}


def one(container: str, entry: str, *rows: object) -> dict[str, Any]:
    return {f"optical-switch:{container}": {entry: list(rows)}}


def pair(ingress: object, egress: object = 17) -> dict[str, object]:
    return {"ingress": ingress, "egress": egress}


@pytest.mark.parametrize(
    ("parse", "value", "complaint"),
    [
        *(
            (
                parse_pairs,
                one("cross-connects", "pair", pair(port)),
                "ingress: not a port",
            )
            for port in BAD_PORTS
        ),
        *(
            (
                parse_pairs,
                one("cross-connects", "pair", pair(1, port)),
                "egress: not a port",
            )
            for port in BAD_PORTS
        ),
        (
            parse_pairs,
            one("cross-connects", "pair", pair(1), pair(1, 18)),
            "a port is connected twice",
        ),
        (
            parse_pairs,
            one("cross-connects", "pair", pair(1), pair(2)),
            "a port is connected twice",
        ),
        (
            parse_pairs,
            one("cross-connects", "pair", pair(1), "x"),
            "pair: not a list of objects",
        ),
        (
            parse_pairs,
            {"optical-switch:port-config": {}},
            "an answer without cross-connects",
        ),
        (parse_pairs, [], "an answer without cross-connects"),
        (parse_pairs, {"cross-connects": []}, "not a container of pair"),
        *(
            (
                parse_port_states,
                one("port-config", "port", {"port-id": 1, "status": status}),
                "not a port's status",
            )
            for status in ("", "enabled", "BROKEN", None, 1, ["ENABLED"])
        ),
        (
            parse_port_states,
            one("port-config", "port", {"status": "ENABLED"}),
            "port-id: not a port",
        ),
        (
            parse_port_states,
            one("port-config", "port", *2 * [{"port-id": 1, "status": "ENABLED"}]),
            "a port is listed twice",
        ),
        *(
            (
                parse_powers,
                one("opm-power", "port", {"port-id": 1, "power": power}),
                "not an optical power",
            )
            for power in (
                None,
                True,
                "",
                "dark",
                "nan",
                "-inf",
                "-200",
                100,
                1e400,
                [],
                {},
            )
        ),
        (
            parse_powers,
            one("opm-power", "port", {"port-id": 0, "power": "1.0"}),
            "port-id: not a port",
        ),
        (parse_identity, {"product-information": []}, "not a product's description"),
        (parse_identity, {}, "an answer without product-information"),
    ],
)
def test_what_no_switch_says_is_refused_with_what_is_wrong(
    parse: Callable[[object], object], value: object, complaint: str
) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        parse(value)


def test_what_is_at_the_edge_is_understood() -> None:
    assert parse_pairs(one("cross-connects", "pair", pair(1, 65535)))[1] == (
        XC(1, 65535),
    )
    rows = [{"port-id": 1, "power": "-199.99"}, {"port-id": 2, "power": 99.9}]
    assert parse_powers(one("opm-power", "port", *rows)) == {1: -199.99, 2: 99.9}
    assert (
        parse_error(b'{"ietf-restconf:errors": {"error": [{"error-tag": "in-use"}]}}')
        == "in-use: "
    )
    assert parse_error(b"nothing") == ""


def test_a_port_is_what_its_status_and_its_cross_connect_say(
    wrong: tuple[Wrong, OpticalSwitchDriver],
) -> None:
    switch, driver = wrong
    converge(driver, [XC(1, 18), XC(2, 19), XC(3, 20), XC(4, 21)])
    statuses = {
        1: "ENABLED",
        2: "DISABLED",
        3: "FAILED",
        4: "UNSUPPORTED",
        5: "ENABLED",
        6: "DISABLED",
    }
    statuses |= {7: "FAILED", 8: "UNSUPPORTED"}
    rows = [
        {"port-id": port, "status": statuses.get(port, "ENABLED")}
        for port in range(1, 33)
    ]
    switch.change["GET", "port-config"] = answer(200, one("port-config", "port", *rows))
    ports = driver.snapshot().ports
    assert {port: (ports[port].state, ports[port].enabled) for port in statuses} == {
        1: (PortState.TUNED, True),
        2: (PortState.BLOCKED, False),
        3: (PortState.FAILED, True),
        4: (PortState.TUNED, True),
        5: (PortState.BLOCKED, True),
        6: (PortState.BLOCKED, False),
        7: (PortState.FAILED, True),
        8: (PortState.BLOCKED, True),
    }


def test_what_pairs_were_seen_to_do_is_waited_for_unless_it_is_said_otherwise() -> None:
    entry = {"driver": "polatis-restconf", "address": "127.0.0.1:1"}
    assert make_driver("ocs0", entry, 16).capabilities().timing.settle_s > 5.0
    assert (
        make_driver("ocs0", {**entry, "settle_s": 60}, 16)
        .capabilities()
        .timing.settle_s
        == 60.0
    )


@pytest.mark.fuzz
@given(
    st.sampled_from(
        ["cross-connects", "port-config", "opm-power", "product-information"]
    ).flatmap(
        lambda name: st.fixed_dictionaries(
            {
                name: st.dictionaries(
                    st.sampled_from(["pair", "port"]),
                    st.lists(
                        st.dictionaries(
                            st.sampled_from(
                                ["ingress", "egress", "port-id", "power", "status"]
                            ),
                            ENDS,
                        ),
                        max_size=3,
                    )
                    | JUNK,
                )
                | JUNK
            }
        )
    )
    | JUNK
)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    for parse in (parse_pairs, parse_port_states, parse_powers, parse_identity):
        with contextlib.suppress(ProtocolError):
            parse(value)
    assert isinstance(parse_error(json.dumps(value).encode()), str)
