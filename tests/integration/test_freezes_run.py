"""Runs in which something stands still or is taken away: a line, an event and a reason name it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.record.events import Record
from ringlight.experiments.record.lab_records import ProcessFrozen, SwitchDrifted
from ringlight.experiments.record.lines import read_records
from ringlight.testbed.deaths import FILE, DeathLog
from ringlight.testbed.emulation.scale import Emulation
from tests.integration.labs import running_testbed
from tests.integration.test_run import RunningCommand, running_command
from tests.unit.fabrics import six_gpu_fabric

pytestmark = pytest.mark.root

#: What is taken away is named within so long, three times that, seconds.
NAMED_S = 9.0
ARM = ("--arm", "fragmented", "--runtime", "namespace", "--set", "training.samples=512")


def _until(true: Callable[[], Any], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _events(runs: Path) -> Path:
    (found,) = runs.glob("*/events.jsonl")
    return found


def _released(run: RunningCommand, runs: Path) -> None:
    def is_so() -> bool:
        assert run.process.poll() is None, "\n".join(run.lines)
        return any(
            '"event":"released"' in path.read_text()
            for path in runs.glob("*/events.jsonl")
        )

    _until(is_so, "the jobs were not released", 120.0)


def _ended(run: RunningCommand, runs: Path) -> tuple[int, list[Record], dict[str, Any]]:
    code, _ = run.end()
    folder = _events(runs).parent
    fidelity = json.loads((folder / "result.json").read_text())["fidelity"]
    return code, read_records(folder / "events.jsonl"), fidelity


def test_a_frozen_controller_and_a_frozen_runner_are_named(tmp_path: Path) -> None:
    with running_command(tmp_path, *ARM) as run:
        _released(run, tmp_path)
        lab = run.lab()
        inventory = json.loads((lab.state_dir / "inventory.json").read_text())
        controller = inventory["processes"]["controller"]["pid"]
        os.kill(controller, signal.SIGSTOP)
        try:
            # While it stands still, though the command waits for an answer.
            run.wait_for("the controller stands still")
        finally:
            os.kill(controller, signal.SIGCONT)
        run.wait_for("the controller goes on")
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(1.8)
        run.process.send_signal(signal.SIGCONT)
        run.wait_for("the runner stands still")
        code, records, fidelity = _ended(run, tmp_path)
    assert code == 0, "\n".join(run.lines)
    assert {"controller", "runner"} <= {
        r.kind for r in records if isinstance(r, ProcessFrozen)
    }
    reasons = {
        r["kind"]: r for r in fidelity["reasons"] if r["code"] == "process_frozen"
    }
    assert reasons["controller"]["how"] == "stopped by a signal"
    assert reasons["runner"]["for_s"] > 1.0
    assert fidelity["verdict"] != "good"


def test_a_removed_state_directory_is_named_and_ends_the_run(tmp_path: Path) -> None:
    with running_command(tmp_path, *ARM) as run:
        _released(run, tmp_path)
        state = run.lab().state_dir
        shutil.rmtree(state)
        run.wait_for(f"the lab's state directory {state} was removed")
        code, _ = run.end()
    assert code == 1
    assert "Traceback" not in "\n".join(run.lines)


@pytest.mark.parametrize("change", ["bridge", "port", "removed"])
def test_what_is_taken_from_the_network_is_named(change: str) -> None:
    scale = Emulation(1.0, 400.0)
    with running_testbed(
        six_gpu_fabric(), runtime="namespace", emulation=scale
    ) as testbed:
        lab, log = testbed.settings.lab, DeathLog(testbed.settings.state / FILE)
        time.sleep(1.5)
        assert log.read() == []
        bridge, port = lab.bridge("tor0"), lab.interface("tor0", 5)
        command = {
            "bridge": ["ovs-vsctl", "--timeout=10", "del-br", bridge],
            "port": ["ip", "link", "set", port, "down"],
            "removed": ["ovs-vsctl", "--timeout=10", "del-port", bridge, port],
        }[change]
        subprocess.run(command, check=True, timeout=20)
        began = time.monotonic()
        found: list[Any] = []
        _until(lambda: found.extend(log.read()) or found, "it is not named", NAMED_S)  # type: ignore[func-returns-value]
        assert time.monotonic() - began < NAMED_S
        said = {(one.kind, one.name): one.how for one in found}
        if change == "bridge":
            assert said["bridge", "tor0"] == f"{bridge} was deleted"
        elif change == "port":
            assert said["port", "tor0:5"].startswith(f"{port}, to tor1:5, was set down")
            subprocess.run(["ip", "link", "set", port, "up"], check=True, timeout=20)
            _until(
                lambda: any(one.how is None for one in log.read()),
                "it is not back",
                NAMED_S,
            )
        else:
            assert (
                said["port", "tor0:5"]
                == f"{port}, to tor1:5, was removed from {bridge}"
            )


def test_a_deleted_bridge_is_an_event_a_line_and_a_reason_of_a_run(
    tmp_path: Path,
) -> None:
    with running_command(tmp_path, *ARM) as run:
        _released(run, tmp_path)
        bridge = run.lab().bridge("tor0")
        subprocess.run(
            ["ovs-vsctl", "--timeout=10", "del-br", bridge], check=True, timeout=20
        )
        began = time.monotonic()
        run.wait_for(f"bridge of tor0: {bridge} was deleted")
        assert time.monotonic() - began < NAMED_S
        run.process.terminate()
        run.end()
    assert any(
        isinstance(r, SwitchDrifted) and r.what == "bridge"
        for r in read_records(_events(tmp_path))
    )
