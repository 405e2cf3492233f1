"""Measures the REST API's latency, and the start and end of a lab. Needs root.

It brings up the six GPUs of the bundled scenario with an optical switch that takes no time itself (profile
``ideal``), asks, lights, listens, and takes the lab down again.

Beside each figure stands its limit or a peer of the same run: the same question put to the optical switch
over SCPI, and a bare FastAPI application that answers the same text. Times are those of one client with one
connection, the standard library's, which adds little of its own (httpx adds 0.4 to 2 ms a call here).
``ratio``: the median over the peer's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import httpx
import yaml

from benchmarks.harness import (
    PATIENCE_S,
    ROOT,
    beside,
    lab_up,
    milliseconds,
    timed,
    until,
)
from tests.integration.controller_rig import free_port

SCENARIO = ROOT / "scenarios/disaggregation.yaml"
SWITCH = "ocs0"
#: Milliseconds: median and 99th percentile.
GET_MS, PUT_MS, EVENT_MS = (2.0, 10.0), (4.0, 15.0), 5.0
#: Seconds of `up`, of the command as a whole.
UP_S = 1.5
BARE = """
import sys, uvicorn
from fastapi import FastAPI, Response
app, text = FastAPI(), sys.stdin.read()
@app.get("/")
def root() -> Response:
    return Response(text, media_type="application/json")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
"""


def rest(
    count: int = 200, runtime: Literal["docker", "namespace"] = "docker"
) -> dict[str, Any]:
    """``count``: calls of each kind."""
    document = yaml.safe_load(SCENARIO.read_text())
    document["fabric"]["optical_switches"][SWITCH]["profile"] = "ideal"
    up_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory, "ideal.yaml")
        scenario.write_text(yaml.safe_dump(document, sort_keys=False))
        with lab_up(scenario, runtime, up_s) as lab:
            found = calls(lab["url"], count, Path(lab["state"]))
    return {"runtime": runtime, **found, "up, s": {**up_s, "limit": UP_S}}


PARTS = (rest,)


class Scpi:
    """A connection to the optical switch's management port."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, line: str) -> str:
        self._socket.sendall(line.encode() + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n"):
            answer += self._socket.recv(1 << 16)
        return answer.decode().strip()

    def close(self) -> None:
        self._socket.close()


class Caller:
    """One connection to a REST API."""

    def __init__(self, url: str) -> None:
        address = httpx.URL(url)
        self._connection = http.client.HTTPConnection(
            address.host, address.port or 80, timeout=PATIENCE_S
        )
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The document of the answer. Ends the benchmark on a refusal."""
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(
            method, path, None if body is None else json.dumps(body), headers
        )
        with self._connection.getresponse() as answer:
            text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text) if text else None

    def close(self) -> None:
        self._connection.close()


class Listener:
    """Reads the event stream, on a thread of its own: ``(seen, event)``, CLOCK_MONOTONIC seconds."""

    def __init__(self, url: str) -> None:
        self.seen: list[tuple[float, dict[str, Any]]] = []
        self._client = httpx.Client(base_url=url, timeout=None, trust_env=False)
        self._ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        until(self._ready.is_set, "the event stream's beginning")

    def _listen(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            self._client.stream("GET", "/v1/events") as stream,
        ):
            for line in stream.iter_lines():
                self._ready.set()
                if line.startswith("data:"):
                    self.seen.append((time.monotonic(), json.loads(line[5:])))

    def wait(
        self, wanted: Callable[[dict[str, Any]], bool]
    ) -> tuple[float, dict[str, Any]]:
        """The first event of a kind."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for seen, event in list(self.seen):
                if wanted(event):
                    return seen, event
            time.sleep(0.001)
        raise SystemExit(f"an event did not come; the last: {self.seen[-3:]}")


def calls(url: str, count: int, state: Path) -> dict[str, Any]:
    """GET, PUT and the event stream."""
    inventory = json.loads((state / "inventory.json").read_text())
    path = f"/v1/optical-switches/{SWITCH}/cross-connects"
    address = inventory["optical_switches"][SWITCH]["address"]
    with closing(Scpi(address)) as scpi, closing(Caller(url)) as api:
        listener = Listener(url)
        size = int(scpi.ask(":oxc:swit:size?").split(",")[0])
        lit = api.call("GET", path)
        plugged = {
            p["port"]: p["plugged"]
            for p in api.call("GET", f"/v1/optical-switches/{SWITCH}/ports")
        }
        free = [
            p for p in range(2 * size, size, -1) if all(p != xc["egress"] for xc in lit)
        ]
        # A GPU's sending fibre between two ports of its packet switch: no rule depends on that.
        tor = plugged[free[0]].split(":")[0]
        moved = next(xc for xc in lit if plugged[xc["egress"]].split(":")[0] == tor)
        # A port of a packet switch that is not lit to two such: one way between switches, which rules mind.
        spare = next(
            p for p in range(size, 0, -1) if all(p != xc["ingress"] for xc in lit)
        )
        between, at = cycle((free[0], int(moved["egress"]))), int(moved["egress"])

        def elsewhere() -> int:
            nonlocal at
            at = next(between)
            return at

        def get(path: str) -> list[float]:
            return timed(lambda: api.call("GET", path), count, warm=4)

        def put(ingress: int, place: Callable[[], int]) -> list[float]:
            def once() -> None:
                egress = place()
                document = api.call("PUT", f"{path}/{ingress}", {"egress": egress})
                (added,) = (r for r in document["results"] if r["action"] == "add")
                assert (added["egress"], added["state"]) == (egress, "CONNECTED"), added

            return timed(once, count, warm=4)

        def put_by_scpi() -> None:
            old, new, ingress = at, elsewhere(), moved["ingress"]
            assert scpi.ask(f":oxc:swit:conn:sub (@{ingress}),(@{old});*opc?") == "1"
            assert scpi.ask(f":oxc:swit:conn:add (@{ingress}),(@{new});*opc?") == "1"
            assert scpi.ask(":syst:err?").startswith(("0", "+0")), "refused"
            assert f"{new}" in scpi.ask(":oxc:swit:conn:stat?")

        with bare(json.dumps(api.call("GET", "/v1/fabric"))) as other:
            bare_s = timed(lambda: other.call("GET", "/"), count, warm=4)
        scpi_s = timed(lambda: scpi.ask(":oxc:swit:conn:stat?"), count, warm=4)
        fabric_s, light_s = get("/v1/fabric"), get(path)
        flows_s = get("/v1/packet-switches/tor0/flows")
        put_s = put(moved["ingress"], elsewhere)
        time.sleep(0.2)
        changes = [(seen, e) for seen, e in listener.seen if e["event"] == "circuits"][
            -count:
        ]
        put_by_scpi_s = timed(put_by_scpi, count, warm=4)
        with_rules_s = put(spare, cycle(free[:2]).__next__)
        api.call("DELETE", f"{path}/{spare}")
    published = [seen - event["t"] for seen, event in changes]
    from_light = [seen - phase(event, "light_added") for seen, event in changes]
    return {
        "get /v1/fabric": beside(fabric_s, bare_s, GET_MS),
        "get cross-connects, asked of the switch": beside(light_s, scpi_s, GET_MS),
        "get flows, asked of the switch": milliseconds(flows_s),
        "put one cross-connect to light": beside(put_s, put_by_scpi_s, PUT_MS),
        "put one cross-connect to light, rules of packet switches too": {
            **milliseconds(with_rules_s),
            "limit_ms": PUT_MS,
        },
        "event on the stream, from publication": {
            **milliseconds(published),
            "limit_ms": EVENT_MS,
        },
        "event on the stream, from light": {
            **milliseconds(from_light),
            "limit_ms": EVENT_MS,
        },
        "peers": {
            "bare FastAPI, the same text": milliseconds(bare_s),
            "SCPI, the same question": milliseconds(scpi_s),
            "SCPI, the same change with its read-back": milliseconds(put_by_scpi_s),
        },
    }


def phase(event: dict[str, Any], name: str) -> float:
    return float(
        next(entry["t"] for entry in event["timeline"] if entry["phase"] == name)
    )


@contextlib.contextmanager
def bare(text: str) -> Iterator[Caller]:
    """A client of an application that does nothing but answer ``text``."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", BARE, str(port)], stdin=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(url, timeout=PATIENCE_S, trust_env=False).is_success
            return False

        until(answers, "the bare application's answer", pace_s=0.005)
        with closing(Caller(url)) as caller:
            yield caller
    finally:
        process.terminate()
        process.wait(10)
