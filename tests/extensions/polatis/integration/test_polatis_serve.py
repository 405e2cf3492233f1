"""``ringlight ocs serve`` of a Polatis switch, and clients that are not ours."""

from __future__ import annotations

import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.served import PASSWORD, USER, WAIT_S, Lines, Served, any_port, serving

OPTICAL = "http://www.polatis.com/yang/optical-switch"


@pytest.fixture(scope="module")
def polatis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("polatis")
    (folder / "users").write_text(f"{USER}:{PASSWORD}\n")
    ports = any_port("scpi", "polatis-tl1", "polatis-restconf")
    with serving(
        folder,
        "--profile",
        "polatis-7000",
        "--ports",
        "16",
        "--users",
        f"{folder}/users",
        *ports,
    ) as one:
        yield one


def test_polatis_tl1_line_by_line(polatis: Served) -> None:
    with Lines(polatis.addresses["polatis-tl1"]) as telnet:
        assert "DENY" in telnet.ask("RTRV-PATCH:::122:;", b"\n;")
        assert "M  123 COMPLD" in telnet.ask(
            f'ACT-USER::{USER}:123::"{PASSWORD}";', b"\n;"
        )
        assert "SYSTEM:SIZE=16x16" in telnet.ask(
            "RTRV-EQPT::SYSTEM:123:::PARAMETER=SIZE;", b"\n;"
        )
        assert "COMPLD" in telnet.ask("ENT-PATCH::5&6,21&22:123:;", b"\n;")
        assert '"5,21"' in telnet.ask("RTRV-PATCH:::123:;", b"\n;")
        assert '"5:OPEN"' in telnet.ask("RTRV-PORT-SHUTTER::5:123:;", b"\n;")
        assert "COMPLD" in telnet.ask("DLT-PATCH::5&6:123:;", b"\n;")
        assert "COMPLD" in telnet.ask("CANC-USER::ann:123:;", b"\n;")
        assert telnet.hung_up()


def test_restconf_with_xml_pair_by_pair(polatis: Served) -> None:
    body = f'<pair xmlns="{OPTICAL}"><ingress>7</ingress><egress>{{}}</egress></pair>'
    kind = {
        "Content-Type": "application/yang-data+xml",
        "Accept": "application/yang-data+xml",
    }
    pairs = "/api/data/optical-switch:cross-connects"
    with httpx.Client(
        base_url=polatis.url("polatis-restconf"),
        auth=(USER, PASSWORD),
        headers=kind,
        trust_env=False,
        timeout=WAIT_S,
    ) as http:
        assert http.get(pairs, auth=(USER, "wrong")).status_code == 401
        assert http.put(f"{pairs}/pair=7", content=body.format(23)).status_code == 201
        assert http.put(f"{pairs}/pair=7", content=body.format(24)).status_code == 204
        found = ElementTree.fromstring(http.get(f"{pairs}/pair=7").content)
        assert found.findtext(f".//{{{OPTICAL}}}egress") == "24"
        answer = http.get(pairs, headers={"Accept": "application/yang-data+json"})
        assert answer.json() == {
            "optical-switch:cross-connects": {"pair": [{"ingress": 7, "egress": 24}]}
        }
        assert (
            http.get(
                pairs, headers={"If-None-Match": answer.headers["ETag"]}
            ).status_code
            == 304
        )
        assert http.delete(f"{pairs}/pair=7").status_code == 204
        assert http.get(f"{pairs}/pair=7").status_code == 404
        state = {"optical-switch:input": {"port-disab": [3]}}
        rpc = "/api/operations/optical-switch:port-set-state"
        assert (
            http.post(
                rpc, json=state, headers={"Content-Type": "application/yang-data+json"}
            ).status_code
            == 204
        )


def test_clients_say_what_a_restart_does_and_are_logged_out_when_silent(
    tmp_path: Path,
) -> None:
    options = [
        "--profile",
        "polatis-7000",
        "--ports",
        "8",
        "--state",
        f"{tmp_path}/state",
    ]
    options += any_port("polatis-tl1", "polatis-restconf")
    where = "/api/data/polatis-switch:system-config"
    with (
        serving(tmp_path, *options) as first,
        Lines(first.addresses["polatis-tl1"]) as telnet,
    ):
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "COMPLD" in telnet.ask("ENT-PATCH::1,9:2:;", b"\n;")
        assert "BOOT:MODE=RESTORE" in telnet.ask(
            "RTRV-EQPT::BOOT:3:::PARAMETER=MODE;", b"\n;"
        )
        assert "DENY" in telnet.ask("ED-EQPT::BOOT:4:::MODE=COLD;", b"\n;")
        assert "COMPLD" in telnet.ask("ED-EQPT::BOOT:5:::MODE=DARK;", b"\n;")
        with httpx.Client(
            base_url=first.url("polatis-restconf"), trust_env=False, timeout=WAIT_S
        ) as http:
            told = {"polatis-switch:system-config": {"startup-mode": "MODE_VOLATILE"}}
            assert http.get(where).json() == told
            told["polatis-switch:system-config"]["startup-mode"] = "MODE_PRESERVE"
            assert http.patch(where, json=told).status_code == 204
            assert http.get(where).json() == told
            assert (
                http.put(where, json={"polatis-switch:system-config": {}}).status_code
                == 400
            )
            assert http.delete(where).status_code == 405
        assert "BOOT:MODE=RESTORE" in telnet.ask(
            "RTRV-EQPT::BOOT:6:::PARAMETER=MODE;", b"\n;"
        )
        assert "COMPLD" in telnet.ask("ED-EQPT::BOOT:7:::MODE=DARK;", b"\n;")
    again = serving(tmp_path, *options, "--idle-timeout", "3")
    with again as second, Lines(second.addresses["polatis-tl1"]) as telnet:
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "1,9" not in telnet.ask("RTRV-PATCH:::2:;", b"\n;")
        assert "BOOT:MODE=DARK" in telnet.ask(
            "RTRV-EQPT::BOOT:3:::PARAMETER=MODE;", b"\n;"
        )
        # A silent client is logged out, and Ctrl-C is a good end.
        assert telnet.hung_up()
        assert second.end(signal.SIGINT) == 0
        assert "Traceback" not in second.errors


def test_light_that_is_lost_and_returns_is_reported(tmp_path: Path) -> None:
    options = [
        "--profile",
        "polatis-7000",
        "--ports",
        "8",
        "--rest",
        "127.0.0.1:0",
        *any_port("polatis-tl1"),
    ]
    with (
        serving(tmp_path, *options) as one,
        Lines(one.addresses["polatis-tl1"]) as telnet,
    ):
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "COMPLD" in telnet.ask("ENT-PATCH::1,9:2:;", b"\n;")
        with httpx.Client(
            base_url=one.url("rest"), trust_env=False, timeout=WAIT_S
        ) as http:
            dark = http.put("/v1/ports/1/light", json={"light": False})
            assert (dark.status_code, dark.json()["light"]) == (200, False)
            assert "LOS" in telnet.until(b"\n;")
            assert "LOS" in telnet.until(b"\n;")
            assert {alarm["port"] for alarm in http.get("/v1/alarms").json()} == {1, 9}
            assert (
                http.put("/v1/ports/1/light", json={"light": True}).json()["light"]
                is True
            )
            assert "CL" in telnet.until(b"\n;")
            assert (
                http.put("/v1/ports/9/light", json={"light": True}).status_code == 409
            )
            assert (
                http.put("/v1/ports/17/light", json={"light": True}).status_code == 404
            )
            assert http.put("/v1/ports/1/light", json={"light": 1}).status_code == 422
