"""Measures the REST API's latency, and the start and end of a lab. Needs root; prints JSON.

``python -m benchmarks.rest`` brings up the six GPUs of the bundled scenario with an optical switch that takes
no time itself (profile ``ideal``), asks, lights, listens, trains, and takes the lab down again.

Beside each figure stands its limit or a peer of the same run: the same question put to the optical switch
over SCPI, and a bare FastAPI application that answers the same text. Times are those of one client with one
connection, the standard library's, which adds little of its own (httpx adds 0.4 to 2 ms a call here).
``ratio``: the median over the peer's.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from ringlight.testbed.lab import STATE_ROOT

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = ROOT / "scenarios/disaggregation.yaml"
SWITCH = "ocs0"
#: Milliseconds: median and 99th percentile.
GET_MS, PUT_MS, EVENT_MS = (2.0, 10.0), (4.0, 20.0), 5.0
COMMAND = [sys.executable, "-m", "ringlight.experiments.cli.app"]
ANSWER_S = 60.0
BARE = """
import sys, uvicorn
from fastapi import FastAPI, Response
app, text = FastAPI(), sys.stdin.read()
@app.get("/")
def root() -> Response:
    return Response(text, media_type="application/json")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
"""


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50_ms": round(1e3 * statistics.median(ordered), 3), "p99_ms": round(1e3 * p99, 3)}


def timed(count: int, call: Callable[[int], object]) -> list[float]:
    """Seconds of each call, a few to warm up left out."""
    for number in range(4):
        call(number)
    spent = []
    for number in range(count):
        began = time.perf_counter()
        call(number)
        spent.append(time.perf_counter() - began)
    return spent


def against(seconds: list[float], peer: list[float], limit: tuple[float, float]) -> dict[str, Any]:
    ratio = statistics.median(seconds) / statistics.median(peer)
    return {**milliseconds(seconds), "limit_ms": list(limit), "ratio": round(ratio, 2)}


def json_of(answer: httpx.Response) -> Any:
    answer.raise_for_status()
    return answer.json()


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
        self._connection = http.client.HTTPConnection(address.host, address.port or 80, timeout=ANSWER_S)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The document of the answer. Ends the benchmark on a refusal."""
        headers = {} if body is None else {"content-type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
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
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        if not self._ready.wait(ANSWER_S):
            raise SystemExit("the event stream does not begin")

    def _listen(self) -> None:
        with contextlib.suppress(httpx.HTTPError), self._client.stream("GET", "/v1/events") as stream:
            for line in stream.iter_lines():
                self._ready.set()
                if line.startswith("data:"):
                    self.seen.append((time.monotonic(), json.loads(line[5:])))

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> tuple[float, dict[str, Any]]:
        """The first event of a kind."""
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for seen, event in list(self.seen):
                if wanted(event):
                    return seen, event
            time.sleep(0.001)
        raise SystemExit(f"an event did not come; the last: {self.seen[-3:]}")


def calls(url: str, count: int, state: Path) -> dict[str, Any]:
    """GET, PUT and the event stream."""
    inventory = json.loads((state / "inventory.json").read_text())
    scpi = Scpi(inventory["optical_switches"][SWITCH]["address"])
    api, listener = Caller(url), Listener(url)
    circuits = f"/v1/optical-switches/{SWITCH}/cross-connects"
    size = int(scpi.ask(":oxc:swit:size?").split(",")[0])
    lit = api.call("GET", circuits)
    plugged = {p["port"]: p["plugged"] for p in api.call("GET", f"/v1/optical-switches/{SWITCH}/ports")}
    free = [p for p in range(2 * size, size, -1) if all(p != xc["egress"] for xc in lit)]
    # A GPU's sending fibre between two ports of its packet switch: no rule depends on that.
    end = free[0]
    moved = next(xc for xc in lit if plugged[xc["egress"]].split(":")[0] == plugged[end].split(":")[0])
    # A port of a packet switch that is not lit to two such: one way between switches, which rules must mind.
    spare = next(p for p in range(size, 0, -1) if all(p != xc["ingress"] for xc in lit))

    def put(ingress: int, egresses: Sequence[int]) -> Callable[[int], None]:
        def once(number: int) -> None:
            document = api.call("PUT", f"{circuits}/{ingress}", {"egress": egresses[number % 2]})
            (added,) = (r for r in document["results"] if r["action"] == "add")
            assert (added["egress"], added["state"]) == (egresses[number % 2], "CONNECTED"), added

        return once

    def put_by_scpi(number: int) -> None:
        ingress, old, new = moved["ingress"], ends[(number + 1) % 2], ends[number % 2]
        assert scpi.ask(f":oxc:swit:conn:sub (@{ingress}),(@{old});*opc?") == "1"
        assert scpi.ask(f":oxc:swit:conn:add (@{ingress}),(@{new});*opc?") == "1"
        assert scpi.ask(":syst:err?").startswith(("0", "+0")), "refused"
        assert f"{new}" in scpi.ask(":oxc:swit:conn:stat?")

    ends = (end, moved["egress"])
    fabric_text = json.dumps(api.call("GET", "/v1/fabric"))
    with bare(fabric_text) as other:
        bare_s = timed(count, lambda _: other.call("GET", "/"))
    scpi_s = timed(count, lambda _: scpi.ask(":oxc:swit:conn:stat?"))
    fabric_s = timed(count, lambda _: api.call("GET", "/v1/fabric"))
    light_s = timed(count, lambda _: api.call("GET", circuits))
    flows_s = timed(count, lambda _: api.call("GET", "/v1/packet-switches/tor0/flows"))
    put_s = timed(count, put(moved["ingress"], ends))
    time.sleep(0.2)
    changes = [(seen, e) for seen, e in listener.seen if e["event"] == "circuits"][-count:]
    put_by_scpi_s = timed(count, put_by_scpi)
    with_rules_s = timed(count, put(spare, free[:2]))
    api.call("DELETE", f"{circuits}/{spare}")
    scpi.close()
    api.close()
    return {
        "get /v1/fabric": against(fabric_s, bare_s, GET_MS),
        "get cross-connects, asked of the switch": against(light_s, scpi_s, GET_MS),
        "get flows, asked of the switch": milliseconds(flows_s),
        "put one cross-connect to light": against(put_s, put_by_scpi_s, PUT_MS),
        "put one cross-connect to light, rules of packet switches too": milliseconds(with_rules_s),
        "event on the stream, from publication": {
            **milliseconds([seen - e["t"] for seen, e in changes]),
            "limit_ms": EVENT_MS,
        },
        "event on the stream, from light": {
            **milliseconds([seen - phase(e, "light_added") for seen, e in changes]),
            "limit_ms": EVENT_MS,
        },
        "peers": {
            "bare FastAPI, the same text": milliseconds(bare_s),
            "SCPI, the same question": milliseconds(scpi_s),
            "SCPI, the same change with its read-back": milliseconds(put_by_scpi_s),
        },
    }


def phase(event: dict[str, Any], name: str) -> float:
    return float(next(entry["t"] for entry in event["timeline"] if entry["phase"] == name))


@contextlib.contextmanager
def bare(text: str) -> Iterator[Caller]:
    """A client of an application that does nothing but answer ``text``."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", BARE, str(port)], stdin=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False) as client:
            until_answer(client, "/")
        with contextlib.closing(Caller(url)) as caller:
            yield caller
    finally:
        process.terminate()
        process.wait(10)


def until_answer(client: httpx.Client, path: str, wanted: Callable[[Any], bool] = lambda _: True) -> None:
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if wanted(json_of(client.get(path))):
                return
        time.sleep(0.005)
    raise SystemExit(f"{client.base_url}{path}: no good answer within {ANSWER_S:g} s")


def job(url: str) -> dict[str, Any]:
    """A job of six containers, from its submission to free GPUs, and a regroup of it."""
    api, listener = httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False), Listener(url)
    ranks = ["g0", "g3", "g1", "g4", "g2", "g5"]
    request = {
        "name": "bench",
        "ranks": ranks,
        "gradient_bytes": 400_000,
        "compute_s": 0.05,
        "iterations": 40,
    }
    began = time.monotonic()
    json_of(httpx_ok(api.post("/v1/jobs", json=request)))

    def told(state: str) -> float:
        return listener.wait(lambda e: e["event"] == "job" and e["state"] == state)[0]

    states = {state: told(state) - began for state in ("PENDING", "STARTING", "READY", "RUNNING")}
    asked = time.monotonic()
    regroup = json_of(api.post("/v1/regroup", json={}))["id"]
    done, _ = listener.wait(lambda e: e.get("regroup") == regroup and e["state"] in ("DONE", "FAILED"))
    ended = told("SUCCEEDED")
    clean, _ = listener.wait(lambda e: e["event"] == "job_clean")
    events = json_of(api.get("/v1/jobs/bench/events"))["events"]
    starts = [e["compute_start"] for e in events if e["event"] == "iteration" and e["i"] == 0]
    ends = [e["allreduce_end"] for e in events if e["event"] == "iteration"]
    return {
        **{f"submitted to {state}": round(s, 3) for state, s in states.items()},
        "submitted to first iteration": round(min(starts) - began, 3),
        "regroup asked to done": round(done - asked, 3),
        "last iteration to SUCCEEDED": round(ended - max(ends), 3),
        "SUCCEEDED to free GPUs": round(clean - ended, 3),
    }


def httpx_ok(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise SystemExit(answer.text)
    return answer


def command_s(words: Sequence[str], count: int = 3) -> float:
    """Median seconds of a command."""
    spent = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(words, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        spent.append(time.perf_counter() - began)
    return round(statistics.median(spent), 3)


def up(scenario: Path, rest: str, openflow: str, runtime: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The lab as ``up --json`` tells it, and the seconds of each phase, by the files that each leaves."""
    began = time.time()
    command = [*COMMAND, "up", str(scenario), "--json", "--runtime", runtime]
    command += ["--rest", rest, "--openflow", openflow]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ended = time.time()
    lab = json.loads(done.stdout)
    files = ("fabric.json", "inventory.json", "standing.json")
    moments = [began, *((STATE_ROOT / lab["lab"] / name).stat().st_mtime for name in files), ended]
    names = ("command and checks", "testbed", "controller healthy", "command's end")
    phases = {n: round(b - a, 3) for n, a, b in zip(names, moments, moments[1:], strict=False)}
    return lab, {**phases, "all": round(ended - began, 3)}


def controller_alone(lab: dict[str, Any], url: str) -> dict[str, float]:
    """The lab's controller ended and another started in its place, which is left running."""
    pid = lab["pids"]["controller"]
    command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    client = httpx.Client(base_url=url, timeout=ANSWER_S, trust_env=False)
    json_of(client.get("/v1/health"))
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}").exists() and time.monotonic() < began + ANSWER_S:
        time.sleep(0.001)
    ended = time.monotonic()
    with Path(lab["logs"], "controller.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "RINGLIGHT_LAB": lab["lab"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until_answer(client, "/v1/health")
        answered = time.monotonic()
        until_answer(client, "/v1/health", lambda health: health["status"] == "ok")
        healthy = time.monotonic()
    finally:
        process.terminate()
        process.wait(ANSWER_S)
    return {
        "stop": round(ended - began, 3),
        "start to first answer": round(answered - ended, 3),
        "start to healthy": round(healthy - ended, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="calls of each kind (%(default)s)")
    parser.add_argument("--rest", default="127.0.0.1:8080")
    parser.add_argument("--openflow", default="127.0.0.1:6653")
    parser.add_argument("--runtime", choices=["docker", "namespace"], default="docker")
    chosen = parser.parse_args()
    # As Ctrl-C: whoever ends it early leaves no lab behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    url = f"http://{chosen.rest}"
    document = yaml.safe_load(SCENARIO.read_text())
    document["fabric"]["optical_switches"][SWITCH]["profile"] = "ideal"
    found: dict[str, Any] = {"benchmark": "rest", "count": chosen.count, "runtime": chosen.runtime}
    with tempfile.TemporaryDirectory() as directory:
        scenario = Path(directory, "ideal.yaml")
        scenario.write_text(yaml.safe_dump(document, sort_keys=False))
        lab, phases = up(scenario, chosen.rest, chosen.openflow, chosen.runtime)
        try:
            found |= calls(url, chosen.count, STATE_ROOT / lab["lab"])
            found["job of six workers, s"] = job(url)
            ask = [*COMMAND, "--controller", chosen.rest, "topology", "--json"]
            found["commands without the launcher, s"] = {
                "ringlight --help": command_s([*COMMAND, "--help"]),
                "ringlight topology": command_s(ask),
            }
            found["controller alone, s"] = controller_alone(lab, url)
        finally:
            began = time.monotonic()
            subprocess.run([*COMMAND, "down", lab["lab"]], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            found["up, s"] = {**phases, "down": round(time.monotonic() - began, 3)}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
