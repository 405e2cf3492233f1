"""``ringlight ocs serve`` of a Calient switch, and clients that are not ours."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.served import WAIT_S, Lines, Served, any_port, serving


@pytest.fixture(scope="module")
def calient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("calient")
    with serving(
        folder,
        "--profile",
        "calient-s320",
        "--ports",
        "320",
        *any_port("calient-tl1", "calient-rest"),
    ) as one:
        yield one


def test_calient_tl1_line_by_line(calient: Served) -> None:
    with Lines(calient.addresses["calient-tl1"]) as telnet:
        telnet.until(b"agent> ")
        assert "COMPLD" in telnet.ask("ACT-USER::admin:1::pass;", b"agent> ")
        assert "COMPLD" in telnet.ask(
            "ENT-CRS::1.1.1,5.8.8:7::SYSTEM,1WAY;", b"agent> "
        )
        assert "AS=UMA,OS=RDY,OC=OK" in telnet.ask("RTRV-CRS:::8::ALL;", b"agent> ")
        assert "COMPLD" in telnet.ask(
            "ACT-CRS::1.1.1,5.8.8:7::1.1.1>5.8.8,SYSTEM;", b"agent> "
        )
        deadline = time.monotonic() + WAIT_S
        while "AS=IS,OS=IS,OC=OK" not in (
            told := telnet.ask("RTRV-CRS:::9::ALL;", b"agent> ")
        ):
            assert time.monotonic() < deadline, told
        assert "DENY" in telnet.ask("ENT-CRS::1.1.1,1.1.2:7::SYSTEM,1WAY;", b"agent> ")
        assert "COMPLD" in telnet.ask(
            "CANC-CRS::1.1.1,5.8.8:7::,SYSTEM,1.1.1>5.8.8;", b"agent> "
        )
        assert "COMPLD" in telnet.ask(
            "DLT-CRS::1.1.1,5.8.8:7::,SYSTEM,1.1.1>5.8.8;", b"agent> "
        )
        assert "SRCPORT" not in telnet.ask("RTRV-CRS:::9::ALL;", b"agent> ")


def test_calient_rest_item_by_item(calient: Served) -> None:
    with httpx.Client(
        base_url=calient.url("calient-rest"), trust_env=False, timeout=WAIT_S
    ) as http:
        wanted = [
            {"in": "1.2.1", "out": out, "group": "SYSTEM", "dir": "uni"}
            for out in ("1.2.2", "9.9.9")
        ]
        answer = http.post("/rest/crossconnects/?id=badd", json=wanted)
        assert answer.status_code == 200
        assert [entry["response"]["status"] for entry in answer.json()] == ["1", "0"]
        (circuit,) = http.get("/rest/crossconnects/?id=list").json()
        assert circuit["half1"]["conn"] == "1.2.1>1.2.2"
        answer = http.post(
            "/rest/crossconnects/?id=bdel", json=[{"conn": "1.2.1>1.2.2"}]
        )
        assert [entry["response"]["status"] for entry in answer.json()] == ["1"]
        assert http.get("/rest/crossconnects/?id=list").json() == []


def test_circuits_have_their_names_after_a_restart(tmp_path: Path) -> None:
    options = [
        "--profile",
        "calient-s320",
        "--ports",
        "16",
        "--state",
        f"{tmp_path}/state",
        *any_port("calient-tl1"),
    ]
    with (
        serving(tmp_path, *options) as first,
        Lines(first.addresses["calient-tl1"]) as telnet,
    ):
        telnet.until(b"agent> ")
        telnet.ask("ACT-USER::a:1::b;", b"agent> ")
        telnet.ask("ENT-CRS::1.1.1,1.1.2:2::LAB,2WAY,red;", b"agent> ")
        telnet.ask("ACT-CRS::1.1.1,1.1.2:3::1.1.1-1.1.2,LAB;", b"agent> ")
        assert "COMPLD" in telnet.ask(
            "ENT-CRS::1.1.3,1.1.4:4::LAB,1WAY,blue;", b"agent> "
        )
        first.end(signal.SIGKILL)
    with (
        serving(tmp_path, *options) as second,
        Lines(second.addresses["calient-tl1"]) as telnet,
    ):
        telnet.until(b"agent> ")
        telnet.ask("ACT-USER::a:1::b;", b"agent> ")
        told = telnet.ask("RTRV-CRS:::2::ALL;", b"agent> ")
        assert "GRPNAME=LAB,CONNNAME=red,CONNTYPE=2WAY,AS=IS" in told
        assert "GRPNAME=LAB,CONNNAME=blue,CONNTYPE=1WAY,AS=UMA,OS=RDY" in told
        assert told.count("SRCPORT") == 2
