"""A killed agent's absence does not hold up the watch over the jobs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.backends.emulation import disturbance
from experiments.backends.protocol import BackendError
from scenarios import comparison_runner
from scenarios.comparison_runner import Plan, _Trouble
from testbed.lab import ENVIRONMENT, Lab


class Lookout:
    """A run with one agent, a process of its own, and the events that the run notes."""

    def __init__(self, state: Path) -> None:
        self.manage = state / "manage.sock"
        environment = {**os.environ, ENVIRONMENT: "zzzz"}
        self.agent = subprocess.Popen(["sleep", "60"], env=environment)
        place = {"manage": str(self.manage), "control": "", "pid": self.agent.pid}
        (state / "inventory.json").write_text(json.dumps({"onics": {"g0": place}}))
        self.noted: list[str] = []
        runner: Any = SimpleNamespace(
            comparison=SimpleNamespace(job="job"),
            processes=SimpleNamespace(state=state, lab=Lab("zzzz"), controller_away=False),
            folder=SimpleNamespace(event=lambda kind, **fields: self.noted.append(fields["happened"])),
            reporter=SimpleNamespace(say=lambda text: None),
        )
        spec: Any = SimpleNamespace(kill="g0", after_iterations=1)
        self.trouble = _Trouble(runner, Plan("run", "run", "trouble", {}, trouble=spec))
        self.watch: Any = SimpleNamespace(left={"job": "job"}, done=lambda job: 1)

    def answer_as(self, pid: int) -> threading.Thread:
        """One answer of an agent with this process id."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.manage))
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(json.dumps({"ok": True, "pid": pid}).encode() + b"\n")
            self.manage.unlink()

        thread = threading.Thread(target=serve)
        thread.start()
        return thread


@pytest.fixture
def lookout(tmp_path: Path) -> Any:
    found = Lookout(tmp_path)
    yield found
    found.agent.kill()
    found.agent.wait()


def test_jobs_are_watched_while_a_killed_agent_is_away(lookout: Lookout) -> None:
    began = time.monotonic()
    lookout.trouble.look(lookout.watch)
    assert lookout.agent.wait(5) == -9
    for _ in range(3):
        lookout.trouble.look(lookout.watch)
    assert time.monotonic() - began < 5, "the watch stood still until the agent was back"
    assert lookout.noted == ["killed"]
    for pid, noted in ((lookout.agent.pid, ["killed"]), (1, ["killed", "back"])):
        thread = lookout.answer_as(pid)
        lookout.trouble.look(lookout.watch)
        thread.join(5)
        assert lookout.noted == noted
    lookout.trouble.look(lookout.watch)
    lookout.trouble.check_happened()
    assert lookout.noted == ["killed", "back"]


def test_an_agent_that_does_not_come_back_ends_the_run(
    lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disturbance, "BACK_S", 0.05)
    lookout.trouble.look(lookout.watch)
    with pytest.raises(BackendError, match=r"no new agent of O-NIC g0 within 0 s: .*No such file"):
        lookout.trouble.check_happened()


def test_an_agent_that_hangs_is_only_glanced_at(lookout: Lookout) -> None:
    lookout.trouble.look(lookout.watch)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(lookout.manage))
        listener.listen()
        began = time.monotonic()
        lookout.trouble.look(lookout.watch)
        assert time.monotonic() - began < comparison_runner.disturbance.GLANCE_S * 10
    assert lookout.noted == ["killed"]
