"""An experiment from the command line to the run folder, on a real lab; and what disturbances do."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ringlight.experiments.record.events import RunStarted
from ringlight.experiments.record.lab_records import LinkRate, LinkRateDisturbed
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import AGAIN
from ringlight.testbed.emulation.clean import clean, clean_objects
from ringlight.testbed.lab import CONTAINER_LABEL, GPU_LABEL, STATE_ROOT, Lab
from tests import forks
from tests.integration.controller_rig import free_port
from tests.integration.figures import Figures
from tests.integration.labs import traces, until

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
MINI = Path(__file__).parents[1] / "data" / "mini.yaml"
DEADLINE_S = 250.0
UP = r"lab (\w+) is up"


class RunningCommand:
    """``ringlight run`` (or ``demo``) as a process, its standard error collected while it runs."""

    def __init__(
        self, folder: Path, *arguments: str, scenario: Path = MINI, demo: bool = False
    ) -> None:
        # Its bundled experiment is the small one instead of one that takes minutes.
        program = (
            "tests.integration.small_demo" if demo else "ringlight.experiments.cli.app"
        )
        command = ["-m", program, *(["demo"] if demo else ["run", str(scenario)])]
        # Relative, as a user's: processes of the lab have working directories of their own.
        runs = os.path.relpath(folder, forks.ROOT)
        words = [sys.executable, *command, "--runs", runs, *arguments]
        errors, into = os.pipe()
        self.process, output = forks.running(
            words, {**os.environ, "NO_COLOR": "1"}, into
        )
        self.lines: list[str] = []
        self._output: list[str] = []
        self._readers = [
            threading.Thread(
                target=self._collect, args=(os.fdopen(errors), self.lines)
            ),
            threading.Thread(target=self._collect, args=(output, self._output)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _collect(stream: Iterator[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line that matches, once it is there."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            assert self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.05)
        raise AssertionError(f"no line {pattern!r} in:\n" + "\n".join(self.lines))

    def end(self) -> tuple[int, str]:
        """Exit code and standard output, once it has ended."""
        try:
            code: int | None = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            # It dies, and says what each of its threads was doing.
            self.process.send_signal(signal.SIGABRT)
            code = None
        for reader in self._readers:
            reader.join(10)
        assert code is not None, "it did not end:\n" + "\n".join(self.lines)
        return code, "\n".join(self._output)

    def lab(self) -> Lab:
        return Lab(self.wait_for(UP)[1])

    def labs(self) -> list[Lab]:
        """Those that have come up so far."""
        return [
            Lab(found[1]) for line in list(self.lines) if (found := re.search(UP, line))
        ]

    def stop(self) -> None:
        """For a test that failed: nothing may stay behind."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        for lab in self.labs():
            clean(lab.id)


def free_ports() -> list[str]:
    """Arguments that choose two ports nobody uses."""
    return [
        "--rest",
        f"127.0.0.1:{free_port()}",
        "--openflow",
        f"127.0.0.1:{free_port()}",
    ]


@contextmanager
def ending(command: RunningCommand) -> Iterator[RunningCommand]:
    try:
        yield command
    finally:
        command.stop()


@contextmanager
def running_command(
    folder: Path, *arguments: str, scenario: Path = MINI
) -> Iterator[RunningCommand]:
    """A run with ports of its own that prints its result."""
    with ending(
        RunningCommand(folder, "--json", *free_ports(), *arguments, scenario=scenario)
    ) as command:
        yield command


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCommand]:
    with running_command(tmp_path / "runs") as command:
        yield command


def assert_gone(lab: Lab) -> None:
    assert clean_objects(lab) == []
    assert not (STATE_ROOT / lab.id).exists()


def containers(lab: Lab, *labels: str) -> list[str]:
    filters = [
        f"--filter=label={label}" for label in (f"{CONTAINER_LABEL}={lab.id}", *labels)
    ]
    done = subprocess.run(
        ["docker", "ps", "-q", *filters],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.split()


@pytest.mark.labs
def test_an_experiment_end_to_end(running: RunningCommand, tmp_path: Path) -> None:
    lab = running.lab()
    code, output = running.end()
    assert code == 0, "\n".join(running.lines)
    printed = json.loads(output)
    (folder,) = (tmp_path / "runs").iterdir()
    assert printed == json.loads((folder / "result.json").read_text())
    assert (printed["schema"], printed["backend"], printed["complete"]) == (
        4,
        "emulation",
        True,
    )
    found = Figures(printed)
    found.assert_exact(3 * 2)
    for job in ("job red", "job blue"):
        assert found.number("regrouped", job, "jct") < found.number(
            "fragmented", job, "jct"
        )
        for arm in ("fragmented", "regrouped", "live"):
            assert found.of(arm, job, "connections_unchanged") is True
            assert found.number(arm, job, "loss_last") < found.number(
                arm, job, "loss_first"
            )
    assert found.number("regrouped", "job red", "jct_ratio") < 1
    assert found.of("live", "event 1", "fibres_moved") == 2
    assert found.number("live", "event 1", "blackout") > 0
    assert len(found.all("link_rate")) == 6
    assert printed["fidelity"]["verdict"] in ("good", "doubtful", "bad")
    for name in ("report.html", "rows.csv", "throughput.csv", "trace.json"):
        assert (folder / name).stat().st_size > 0
    (facts,) = json.loads((folder / "environment.json").read_text())["labs"]
    assert facts["lab"] == lab.id
    assert_gone(lab)


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGINT, "measuring the links"), (signal.SIGTERM, "Two jobs of two GPUs")],
)
def test_an_interrupted_command_leaves_nothing(
    running: RunningCommand, number: signal.Signals, moment: str
) -> None:
    lab = running.lab()
    running.wait_for(moment)
    running.process.send_signal(number)
    code, output = running.end()
    assert code == 128 + number
    assert output == ""
    assert running.lines[-1] == "ringlight: interrupted"
    assert_gone(lab)


@pytest.mark.labs
@pytest.mark.timeout(600)
def test_what_a_killed_command_leaves_is_a_folder_that_can_be_gone_on_in(
    tmp_path: Path,
) -> None:
    """Its lab ends by itself but for files, which the next lab removes; one beside notices nothing."""
    runs, two = (
        tmp_path / "runs",
        ("--runtime", "namespace", "--arm", "fragmented", "--arm", "regrouped"),
    )
    one = ("--runtime", "namespace", "--arm", "fragmented")
    with (
        running_command(tmp_path / "beside", *one) as other,
        running_command(runs, *two) as running,
    ):
        lab = running.lab()
        running.wait_for("Two jobs of two GPUs, regrouped$")
        running.process.kill()
        assert running.end()[0] == -signal.SIGKILL
        state = f"{lab.state_dir}: "
        until(
            lambda: all(left.startswith(state) for left in traces(lab)),
            60.0,
            lambda: str(traces(lab)),
        )
        code, output = other.end()
        assert code == 0, "\n".join(other.lines)
    Figures(json.loads(output)).assert_exact(2)
    (folder,) = runs.iterdir()
    assert not (folder / "result.json").exists()
    with running_command(runs, *two, "--resume", str(folder)) as running:
        code, output = running.end()
        assert code == 0, "\n".join(running.lines)
    assert_gone(lab)
    assert not [line for line in running.lines if line.endswith("Two jobs of two GPUs")]
    printed = json.loads(output)
    assert printed["complete"] is True
    Figures(printed).assert_exact(2 * 2)
    labs = json.loads((folder / "environment.json").read_text())["labs"]
    assert [known["lab"] == lab.id for known in labs] == [True, False]


def test_a_killed_worker_is_one_line_with_rank_and_reason_and_the_other_runs_go_on(
    tmp_path: Path,
) -> None:
    arms = ("--arm", "fragmented", "--arm", "live")
    with running_command(tmp_path / "runs", *arms) as running:
        lab = running.lab()
        (folder,) = (tmp_path / "runs").iterdir()
        wait_until_released(folder)
        (victim,) = containers(lab, f"{GPU_LABEL}=g2")
        subprocess.run(
            ["docker", "kill", victim], capture_output=True, check=True, timeout=30
        )
        code, output = running.end()
    assert code == 1
    told = "ringlight: Two jobs of two GPUs: job red failed: rank 1 on GPU g2 was killed by SIGKILL"
    assert running.lines[-1] == told
    assert_gone(lab)
    printed = json.loads(output)
    assert printed["complete"] is True
    found = Figures(printed)
    assert found.of("fragmented", "job red", "state") == "FAILED"
    found.assert_exact(3)


def wait_until_released(folder: Path) -> None:
    """Until the first job of a run folder is let go."""
    events = folder / "events.jsonl"
    until(lambda: '"event":"released"' in events.read_text(), 60.0, events.read_text)


def test_the_demo_names_its_report_and_a_killed_switch_makes_it_doubtful(
    tmp_path: Path,
) -> None:
    arguments = ("--runtime", "namespace", *free_ports())
    with ending(RunningCommand(tmp_path / "runs", *arguments, demo=True)) as running:
        lab = running.lab()
        (folder,) = (tmp_path / "runs").iterdir()
        wait_until_released(folder)
        inventory = json.loads((lab.state_dir / "inventory.json").read_text())
        os.kill(inventory["optical_switches"]["ocs0"]["pid"], signal.SIGKILL)
        code, output = running.end()
        assert code == 0, "\n".join(running.lines)
    assert (folder / "report.html").is_file()
    for said in (
        str(folder / "report.html"),
        "fragmented",
        "regrouped",
        "optical switch ocs0 died (killed by SIGKILL) and was started again",
    ):
        assert said in output
    fidelity = json.loads((folder / "result.json").read_text())["fidelity"]
    # A busy machine may have had a run made again; never the one with a fault.
    times = {
        run.removesuffix(AGAIN): times
        for run, times in fidelity["switches_restarted"].items()
    }
    assert times == {"fragmented": 1, "regrouped": 0, "live": 0}
    assert "fragmented" in fidelity["switches_restarted"]
    restarted = [
        reason
        for reason in fidelity["reasons"]
        if reason["code"] == "process_restarted"
    ]
    assert [(reason["run"], reason["name"]) for reason in restarted] == [
        ("fragmented", "ocs0")
    ]
    said = "optical switch ocs0 died (killed by SIGKILL), which no event asked for"
    assert any(line.endswith(said) for line in running.lines)
    assert_gone(lab)


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "runs"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "ringlight-test", str(disk)],
        check=True,
    )
    try:
        with running_command(disk, "--runtime", "namespace") as running:
            lab = running.lab()
            (events,) = disk.glob("*/events.jsonl")
            until(lambda: '"run_started"' in events.read_text(), DEADLINE_S)
            with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(512))
            code, output = running.end()
            assert (code, output) == (1, "")
            said = [line for line in running.lines if line.startswith("ringlight: ")]
            assert len(said) == 1
            assert re.search(
                r"(events\.jsonl|throughput\.csv): cannot be written: No space left on device$",
                said[0],
            )
        assert_gone(lab)
        (path,) = disk.glob("*/events.jsonl")
        assert path.read_text().endswith("\n")
        kinds = {type(record) for record in read_records(path)}
        assert RunStarted in kinds
        assert kinds & {LinkRate, LinkRateDisturbed}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.labs
def test_a_taken_port_is_one_line_before_anything_is_built(tmp_path: Path) -> None:
    labs = set(STATE_ROOT.iterdir()) if STATE_ROOT.is_dir() else set()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = RunningCommand(tmp_path, "--rest", f"127.0.0.1:{port}")
        code, _ = command.end()
    assert code == 1
    assert (
        f"port {port} (--rest) cannot be used: Address already in use"
        in command.lines[-1]
    )
    now = set(STATE_ROOT.iterdir()) if STATE_ROOT.is_dir() else set()
    assert not {path for path in now - labs if not any(path.iterdir())}
