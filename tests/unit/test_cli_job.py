"""Following a job from the shell, against a server that answers as the controller does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from ringlight.containers.image import ROOT

RANK = {"rank": 0, "gpu": "g0", "state": "exited", "exit_code": 0, "error": None}
ITERATION = {
    "event": "iteration",
    "rank": 0,
    "i": 0,
    "compute_start": 1.0,
    "allreduce_end": 1.5,
    "loss": 2.25,
}
#: One of a workload, which trains nothing.
WORKLOADS = {key: value for key, value in ITERATION.items() if key != "loss"}


class Controller(BaseHTTPRequestHandler):
    """One job that is told of as running once, and then as its path says."""

    asked = 0
    iterations: ClassVar[list[object]] = [ITERATION]

    def do_GET(self) -> None:
        if "/events" in self.path:
            found: object = {
                "cursor": 1,
                "events": self.iterations if self.path.endswith("cursor=0") else [],
            }
        else:
            type(self).asked += 1
            end = self.path.rpartition("/")[2].upper()
            state = "RUNNING" if self.asked == 1 else end
            found = {"id": "red", "state": state, "error": None, "ranks": [RANK]}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Controller.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Controller) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("end", "code", "iteration", "loss"),
    [("succeeded", 0, ITERATION, ", loss 2.250"), ("failed", 1, WORKLOADS, "")],
)
def test_a_job_is_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    end: str,
    code: int,
    iteration: object,
    loss: str,
) -> None:
    monkeypatch.setattr(Controller, "iterations", [iteration])
    command = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "--controller",
        address,
        "job",
        "watch",
        end,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines() == [
        f"ringlight: iteration 1: 0.500 s{loss}",
        f"ringlight: {end}: RUNNING",
        f"ringlight: {end}: {end.upper()}",
    ]
    assert done.stdout.startswith(f"red: {end.upper()}\n")
    assert "g0" in done.stdout
