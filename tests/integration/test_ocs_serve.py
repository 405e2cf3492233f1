"""``ringlight ocs serve`` and clients that are not ours: sockets, lines and HTTP as other people write them.

No driver of ours is used here, and no root: the switch is what somebody else's controller finds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import httpx
import pytest

from ringlight.testbed.forkserver import Process
from tests import forks

WAIT_S = 30.0
USER, PASSWORD = "ann", "s3cr:t"
OPTICAL = "http://www.polatis.com/yang/optical-switch"


class Served:
    """A switch that runs. ``addresses``: host and port by protocol."""

    def __init__(self, process: Process, output: TextIO, errors: Path) -> None:
        self.process, self._errors = process, errors
        late = threading.Timer(WAIT_S, process.kill)
        late.start()
        said = ""
        while not said.endswith("\n}\n"):
            line = output.readline()
            assert line, f"it does not serve: {said} {self.errors}"
            said += line
        late.cancel()
        found = json.loads(said)
        self.addresses = {
            name: (where.rpartition(":")[0], int(where.rpartition(":")[2]))
            for name, where in found["addresses"].items()
        }

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def url(self, protocol: str) -> str:
        host, port = self.addresses[protocol]
        return f"http://{host}:{port}"

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


def command(*options: str) -> list[str]:
    return [*forks.COMMAND, "ocs", "serve", *options]


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Served]:
    errors = folder / "errors"
    process, output = forks.running(command(*options, "--json"), os.environ, errors)
    with output:
        try:
            yield Served(process, output, errors)
        finally:
            process.kill()
            process.wait(10)


def any_port(*protocols: str) -> list[str]:
    return [word for name in protocols for word in ("--serve", f"{name}=127.0.0.1:0")]


class Lines:
    """What scripts for telnet do: write, and read until some text has come."""

    def __init__(self, where: tuple[str, int]) -> None:
        self._socket = socket.create_connection(where, timeout=WAIT_S)
        self._seen = b""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, text: str) -> None:
        self._socket.sendall(text.encode())

    def until(self, text: bytes) -> str:
        while text not in self._seen:
            more = self._socket.recv(4096)
            assert more, f"it hung up after {self._seen!r}"
            self._seen += more
        end = self._seen.index(text) + len(text)
        said, self._seen = self._seen[:end], self._seen[end:]
        return said.decode()

    def ask(self, line: str, until: bytes) -> str:
        self.write(line)
        return self.until(until)

    def hung_up(self) -> bool:
        """Waits until it has."""
        while self._socket.recv(4096):
            pass
        return True


@pytest.fixture(scope="module")
def polatis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("polatis")
    (folder / "users").write_text(f"{USER}:{PASSWORD}\n")
    ports = any_port("scpi", "polatis-tl1", "polatis-restconf")
    with serving(
        folder, "--profile", "polatis-7000", "--ports", "16", "--users", f"{folder}/users", *ports
    ) as one:
        yield one


@pytest.fixture(scope="module")
def calient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("calient")
    with serving(folder, "--ports", "320", *any_port("calient-tl1", "calient-rest")) as one:
        yield one


def test_scpi_by_telnet(polatis: Served) -> None:
    with Lines(polatis.addresses["scpi"]) as telnet:
        assert re.fullmatch(r"Polatis,N-\w+-16x16-[\w-]+,\w+,[\d.]+\r?\n", telnet.ask("*idn?\r\n", b"\n"))
        assert telnet.ask(":oxc:swit:size?\r\n", b"\n").strip() == "16,16"
        telnet.write(":oxc:swit:disc:all\r\n")
        telnet.write(":oxc:swit:conn:add (@1,2,3),(@17,18,19)\r\n")
        assert telnet.ask(":oxc:swit:conn:stat?\r\n", b"\n").strip() == "(@1,2,3),(@17,18,19)"
        assert telnet.ask(":oxc:swit:conn:only (@1,2),(@18,17);stat?\r\n", b"\n").strip() == "(@1,2),(@18,17)"
        assert telnet.ask(":oxc:swit:conn:port? 2\r\n", b"\n").strip() == '"17"'
        telnet.write(":oxc:swit:conn:sub (@1),(@18)\r\n")
        assert telnet.ask(":oxc:swit:conn:stat?\r\n", b"\n").strip() == "(@2),(@17)"
        telnet.write(":oxc:swit:port:dis (@4)\r\n")
        assert telnet.ask(":oxc:swit:port:stat? (@3,4)\r\n", b"\n").strip() == "(E,D)"
        power = telnet.ask(":pmon:pow? (@1,17)\r\n", b"\n").strip()
        assert re.fullmatch(r"\((-?\d+\.\d+),(-?\d+\.\d+)\)", power)
        telnet.write(":oxc:swit:conn:add (@1),(@99)\r\n")
        assert telnet.ask(":syst:err?\r\n", b"\n").startswith("-222")
        telnet.write(":oxc:swit:disc:all;*cls\r\n")
        # As the telnet program sends the end of a line that has a CR already.
        telnet.write(":oxc:swit:conn:add (@7),(@23)\r\0\r\n")
        assert telnet.ask(":oxc:swit:conn:stat?\r\0\r\n", b"\n").strip() == "(@7),(@23)"
        telnet.write(":oxc:swit:disc:all\r\n")


def test_polatis_tl1_line_by_line(polatis: Served) -> None:
    with Lines(polatis.addresses["polatis-tl1"]) as telnet:
        assert "DENY" in telnet.ask("RTRV-PATCH:::122:;", b"\n;")
        assert "M  123 COMPLD" in telnet.ask(f'ACT-USER::{USER}:123::"{PASSWORD}";', b"\n;")
        assert "SYSTEM:SIZE=16x16" in telnet.ask("RTRV-EQPT::SYSTEM:123:::PARAMETER=SIZE;", b"\n;")
        assert "COMPLD" in telnet.ask("ENT-PATCH::5&6,21&22:123:;", b"\n;")
        assert '"5,21"' in telnet.ask("RTRV-PATCH:::123:;", b"\n;")
        assert '"5:OPEN"' in telnet.ask("RTRV-PORT-SHUTTER::5:123:;", b"\n;")
        assert "COMPLD" in telnet.ask("DLT-PATCH::5&6:123:;", b"\n;")
        assert "COMPLD" in telnet.ask("CANC-USER::ann:123:;", b"\n;")
        assert telnet.hung_up()


def test_restconf_with_xml_pair_by_pair(polatis: Served) -> None:
    body = f'<pair xmlns="{OPTICAL}"><ingress>7</ingress><egress>{{}}</egress></pair>'
    kind = {"Content-Type": "application/yang-data+xml", "Accept": "application/yang-data+xml"}
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
        assert answer.json() == {"optical-switch:cross-connects": {"pair": [{"ingress": 7, "egress": 24}]}}
        assert http.get(pairs, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
        assert http.delete(f"{pairs}/pair=7").status_code == 204
        assert http.get(f"{pairs}/pair=7").status_code == 404
        state = {"optical-switch:input": {"port-disab": [3]}}
        rpc = "/api/operations/optical-switch:port-set-state"
        assert (
            http.post(rpc, json=state, headers={"Content-Type": "application/yang-data+json"}).status_code
            == 204
        )


def test_calient_tl1_line_by_line(calient: Served) -> None:
    with Lines(calient.addresses["calient-tl1"]) as telnet:
        telnet.until(b"agent> ")
        assert "COMPLD" in telnet.ask("ACT-USER::admin:1::pass;", b"agent> ")
        assert "COMPLD" in telnet.ask("ENT-CRS::1.1.1,5.8.8:7::SYSTEM,1WAY;", b"agent> ")
        assert "AS=UMA,OS=RDY,OC=OK" in telnet.ask("RTRV-CRS:::8::ALL;", b"agent> ")
        assert "COMPLD" in telnet.ask("ACT-CRS::1.1.1,5.8.8:7::1.1.1>5.8.8,SYSTEM;", b"agent> ")
        deadline = time.monotonic() + WAIT_S
        while "AS=IS,OS=IS,OC=OK" not in (told := telnet.ask("RTRV-CRS:::9::ALL;", b"agent> ")):
            assert time.monotonic() < deadline, told
        assert "DENY" in telnet.ask("ENT-CRS::1.1.1,1.1.2:7::SYSTEM,1WAY;", b"agent> ")
        assert "COMPLD" in telnet.ask("CANC-CRS::1.1.1,5.8.8:7::,SYSTEM,1.1.1>5.8.8;", b"agent> ")
        assert "COMPLD" in telnet.ask("DLT-CRS::1.1.1,5.8.8:7::,SYSTEM,1.1.1>5.8.8;", b"agent> ")
        assert "SRCPORT" not in telnet.ask("RTRV-CRS:::9::ALL;", b"agent> ")


def test_calient_rest_item_by_item(calient: Served) -> None:
    with httpx.Client(base_url=calient.url("calient-rest"), trust_env=False, timeout=WAIT_S) as http:
        wanted = [{"in": "1.2.1", "out": out, "group": "SYSTEM", "dir": "uni"} for out in ("1.2.2", "9.9.9")]
        answer = http.post("/rest/crossconnects/?id=badd", json=wanted)
        assert answer.status_code == 200
        assert [entry["response"]["status"] for entry in answer.json()] == ["1", "0"]
        (circuit,) = http.get("/rest/crossconnects/?id=list").json()
        assert circuit["half1"]["conn"] == "1.2.1>1.2.2"
        answer = http.post("/rest/crossconnects/?id=bdel", json=[{"conn": "1.2.1>1.2.2"}])
        assert [entry["response"]["status"] for entry in answer.json()] == ["1"]
        assert http.get("/rest/crossconnects/?id=list").json() == []


def test_sonic_by_the_design_document(tmp_path: Path) -> None:
    """Section 9 of the document, with plain HTTP: 2 x 1,024 ports, and the factory loss of a path."""
    config = "/restconf/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
    states = "/restconf/data/sonic-ocs-states:sonic-ocs-states"
    options = ("--profile", "sonic-ocs", "--ports", "1024", "--state", f"{tmp_path}", *any_port("sonic-ocs"))
    pairs = [(1, 1), (2, 5), (1024, 32)]
    rows = [{"cross_connect_id": f"{a}A-{b}B", "a_side": f"{a}A", "b_side": f"{b}B"} for a, b in pairs]

    def connected(to: Served) -> httpx.Client:
        return httpx.Client(base_url=to.url("sonic-ocs"), trust_env=False, timeout=WAIT_S)

    with serving(tmp_path, *options) as switch, connected(switch) as http:
        told = {"sonic-ocs:OCS_CROSS_CONNECT": {"OCS_CROSS_CONNECT_LIST": rows}}
        assert http.patch(config, json=told).status_code == 204
        deadline = time.monotonic() + WAIT_S
        while True:
            (found,) = http.get(f"{states}/OCS_CROSS_CONNECT").json().values()
            sides = {one[f"{side}_side_status"] for one in found["OCS_CROSS_CONNECT_LIST"] for side in "ab"}
            if sides == {"tuned"}:
                break
            assert sides == {"tuning"} or time.monotonic() < deadline, sides
        (ports,) = http.get(f"{states}/OCS_PORT").json().values()
        assert len(ports["OCS_PORT_LIST"]) == 2048
        key = "OCS_FACTORY_INSERTION_LOSS/OCS_FACTORY_INSERTION_LOSS_LIST=1024A-32B,228.850,28.00"
        ((loss,),) = http.get(f"{states}/{key}").json().values()
        assert 1.5 < float(loss["loss_dB"]) < 1.9
    with serving(tmp_path, *options) as switch, connected(switch) as http:
        assert http.get(config).json() == told


def test_what_it_was_told_is_there_after_a_restart(tmp_path: Path) -> None:
    options = ["--profile", "polatis-6000", "--ports", "8", "--state", f"{tmp_path}/state", *any_port("scpi")]
    with serving(tmp_path, *options) as first, Lines(first.addresses["scpi"]) as telnet:
        telnet.write(":oxc:swit:port:dis (@5)\n:oxc:swit:conn:add (@1,2),(@10,9)\n")
        assert telnet.ask(":oxc:swit:conn:stat?\n", b"\n") == "(@1,2),(@10,9)\n"
        # As by a failure of power: it cannot say good-bye.
        first.end(signal.SIGKILL)
    # What a start did is what the next one finds.
    for recovery, kept in (("restore", True), ("remove", False), ("maintain", False)):
        again = serving(tmp_path, *options, "--recovery", recovery)
        with again as later, Lines(later.addresses["scpi"]) as telnet:
            standing = "(@1,2),(@10,9)\n" if kept else "(@),(@)\n"
            assert telnet.ask(":oxc:swit:conn:stat?\n", b"\n") == standing, recovery
            assert telnet.ask(":oxc:swit:port:stat? (@4,5)\n", b"\n") == "(E,D)\n"
            later.end(signal.SIGKILL)


def test_circuits_have_their_names_after_a_restart(tmp_path: Path) -> None:
    options = ["--ports", "16", "--state", f"{tmp_path}/state", *any_port("calient-tl1")]
    with serving(tmp_path, *options) as first, Lines(first.addresses["calient-tl1"]) as telnet:
        telnet.until(b"agent> ")
        telnet.ask("ACT-USER::a:1::b;", b"agent> ")
        telnet.ask("ENT-CRS::1.1.1,1.1.2:2::LAB,2WAY,red;", b"agent> ")
        telnet.ask("ACT-CRS::1.1.1,1.1.2:3::1.1.1-1.1.2,LAB;", b"agent> ")
        assert "COMPLD" in telnet.ask("ENT-CRS::1.1.3,1.1.4:4::LAB,1WAY,blue;", b"agent> ")
        first.end(signal.SIGKILL)
    with serving(tmp_path, *options) as second, Lines(second.addresses["calient-tl1"]) as telnet:
        telnet.until(b"agent> ")
        telnet.ask("ACT-USER::a:1::b;", b"agent> ")
        told = telnet.ask("RTRV-CRS:::2::ALL;", b"agent> ")
        assert "GRPNAME=LAB,CONNNAME=red,CONNTYPE=2WAY,AS=IS" in told
        assert "GRPNAME=LAB,CONNNAME=blue,CONNTYPE=1WAY,AS=UMA,OS=RDY" in told
        assert told.count("SRCPORT") == 2


def test_clients_say_what_a_restart_does_and_are_logged_out_when_silent(tmp_path: Path) -> None:
    options = ["--profile", "polatis-7000", "--ports", "8", "--state", f"{tmp_path}/state"]
    options += any_port("polatis-tl1", "polatis-restconf")
    where = "/api/data/polatis-switch:system-config"
    with serving(tmp_path, *options) as first, Lines(first.addresses["polatis-tl1"]) as telnet:
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "COMPLD" in telnet.ask("ENT-PATCH::1,9:2:;", b"\n;")
        assert "BOOT:MODE=RESTORE" in telnet.ask("RTRV-EQPT::BOOT:3:::PARAMETER=MODE;", b"\n;")
        assert "DENY" in telnet.ask("ED-EQPT::BOOT:4:::MODE=COLD;", b"\n;")
        assert "COMPLD" in telnet.ask("ED-EQPT::BOOT:5:::MODE=DARK;", b"\n;")
        with httpx.Client(base_url=first.url("polatis-restconf"), trust_env=False, timeout=WAIT_S) as http:
            told = {"polatis-switch:system-config": {"startup-mode": "MODE_VOLATILE"}}
            assert http.get(where).json() == told
            told["polatis-switch:system-config"]["startup-mode"] = "MODE_PRESERVE"
            assert http.patch(where, json=told).status_code == 204
            assert http.get(where).json() == told
            assert http.put(where, json={"polatis-switch:system-config": {}}).status_code == 400
            assert http.delete(where).status_code == 405
        assert "BOOT:MODE=RESTORE" in telnet.ask("RTRV-EQPT::BOOT:6:::PARAMETER=MODE;", b"\n;")
        assert "COMPLD" in telnet.ask("ED-EQPT::BOOT:7:::MODE=DARK;", b"\n;")
    again = serving(tmp_path, *options, "--idle-timeout", "3")
    with again as second, Lines(second.addresses["polatis-tl1"]) as telnet:
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "1,9" not in telnet.ask("RTRV-PATCH:::2:;", b"\n;")
        assert "BOOT:MODE=DARK" in telnet.ask("RTRV-EQPT::BOOT:3:::PARAMETER=MODE;", b"\n;")
        # A silent client is logged out, and Ctrl-C is a good end.
        assert telnet.hung_up()
        assert second.end(signal.SIGINT) == 0
        assert "Traceback" not in second.errors


def test_light_that_is_lost_and_returns_is_reported(tmp_path: Path) -> None:
    options = ["--profile", "polatis-7000", "--ports", "8", "--rest", "127.0.0.1:0", *any_port("polatis-tl1")]
    with serving(tmp_path, *options) as one, Lines(one.addresses["polatis-tl1"]) as telnet:
        telnet.ask("ACT-USER::a:1::b;", b"\n;")
        assert "COMPLD" in telnet.ask("ENT-PATCH::1,9:2:;", b"\n;")
        with httpx.Client(base_url=one.url("rest"), trust_env=False, timeout=WAIT_S) as http:
            dark = http.put("/v1/ports/1/light", json={"light": False})
            assert (dark.status_code, dark.json()["light"]) == (200, False)
            assert "LOS" in telnet.until(b"\n;")
            assert "LOS" in telnet.until(b"\n;")
            assert {alarm["port"] for alarm in http.get("/v1/alarms").json()} == {1, 9}
            assert http.put("/v1/ports/1/light", json={"light": True}).json()["light"] is True
            assert "CL" in telnet.until(b"\n;")
            assert http.put("/v1/ports/9/light", json={"light": True}).status_code == 409
            assert http.put("/v1/ports/17/light", json={"light": True}).status_code == 404
            assert http.put("/v1/ports/1/light", json={"light": 1}).status_code == 422
