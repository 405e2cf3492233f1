"""A sweep's runs come out the same wherever they are computed, and a sweep that was killed goes on."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import ringlight as rl
from ringlight.experiments.analysis.rows import Row, from_json, where
from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.lab import SimulatedLab
from ringlight.experiments.cli.common import Interrupted
from ringlight.experiments.language.expand import Experiment, load, parse
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Record, RunEnded, RunFailed
from ringlight.experiments.record.folder import RunFolder, read_json, read_port_rates
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.runner import command, experiment
from ringlight.experiments.runner.command import (
    carry_out_experiment,
    finish,
    load_checked,
)
from ringlight.experiments.runner.executor_kinds import executor_of
from ringlight.experiments.runner.executors import processes
from ringlight.experiments.runner.experiment import (
    carry_out,
    choose,
    run_alone,
    runs_in,
)
from ringlight.experiments.runner.progress import Reporter
from tests.simulated import SIX_GPUS, build
from tests.simulated import experiment as experiment_of

ROOT = Path(__file__).resolve().parents[2]
SWEPT = """
jobs: {red: {ranks: [g0, g3, g1, g4]}, blue: {ranks: [g2, g5]}}
sweep:
  training.gradient: [1 MB, 5 MB, 25 MB, 102 MB]
  training.compute: [1 ms, 10 ms, 100 ms]
  scale.payload: [1, 2]
"""


def swept(text: str = SWEPT) -> Experiment:
    return parse(
        SIX_GPUS.replace("scale: {time: 1, payload: 400}\n", "scale: {time: 1}\n")
        + text,
        "swept.yaml",
    )


def rows(
    experiment: Experiment, parent: Path, pool: AbstractContextManager[Executor] | None
) -> list[Row]:
    backend = SimulationBackend()
    with RunFolder.new(parent, experiment.spec.name, experiment.text) as folder:
        done = carry_out(
            experiment, choose(experiment, backend), backend, folder, Reporter(), pool
        )
    assert not done.failures
    return rows_of(experiment, done.path)


def rows_of(experiment: Experiment, path: Path) -> list[Row]:
    result = build(
        experiment,
        read_records(path / "events.jsonl"),
        read_json(path / "environment.json"),
    )
    assert result["complete"]
    return from_json(result)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The rows of the sweep from one process."""
    return rows(swept(), tmp_path_factory.mktemp("alone"), None)


def test_rows_are_the_same_in_one_process_and_in_two(
    tmp_path: Path, alone: list[Row]
) -> None:
    assert len({tuple(row.point.items()) for row in alone}) == 24
    assert rows(swept(), tmp_path / "two", processes(2)) == alone
    (folder,) = (tmp_path / "two").iterdir()
    # What the simulation rests on is told whoever computed it.
    assert read_json(folder / "environment.json")["assumptions"][0]["what"].startswith(
        "payload's share"
    )


def test_a_point_that_cannot_be_made_does_not_lose_the_others(tmp_path: Path) -> None:
    experiment = swept(
        """
jobs: {red: {ranks: [g0, g3]}}
events: [{when: {at: 2 s}, do: cut, target: link tor0:4 tor1:4}]
sweep: {training.iterations: [2, 40]}
"""
    )
    backend = SimulationBackend()
    with RunFolder.new(tmp_path, "swept", experiment.text) as folder:
        done = carry_out(
            experiment,
            choose(experiment, backend),
            backend,
            folder,
            Reporter(),
            processes(2),
        )
    records = read_records(done.path / "events.jsonl")
    (failed,) = [record for record in records if isinstance(record, RunFailed)]
    assert failed.run == "base-1"
    assert "had ended before cut link tor0:4 tor1:4" in failed.reason
    assert done.failures == (failed.reason,)
    assert [record.run for record in records if isinstance(record, RunEnded)] == [
        "base-2"
    ]
    assert not build(experiment, records, read_json(done.path / "environment.json"))[
        "complete"
    ]


class Dying(SimulationBackend):
    """Its process is killed, as for want of memory, when it opens a lab."""

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> SimulatedLab:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_killed_process_is_one_line_that_says_how_to_go_on(tmp_path: Path) -> None:
    experiment, backend = swept(), Dying()
    with (
        RunFolder.new(tmp_path, "swept", experiment.text) as folder,
        pytest.raises(
            BackendError, match=rf"^a process .* was killed; .* --resume {folder.path}$"
        ),
    ):
        carry_out(
            experiment,
            choose(experiment, backend),
            backend,
            folder,
            Reporter(),
            processes(1),
        )


def test_a_process_that_is_killed_before_it_has_work_is_the_same_line(
    tmp_path: Path,
) -> None:
    experiment, backend = swept(), SimulationBackend()
    with processes(1) as executor:
        with pytest.raises(BrokenExecutor):
            executor.submit(signal.raise_signal, signal.SIGKILL).result(30)
        with (
            RunFolder.new(tmp_path, "swept", experiment.text) as folder,
            pytest.raises(
                BackendError,
                match=rf"^a process .* was killed; .* --resume {folder.path}$",
            ),
        ):
            carry_out(
                experiment,
                choose(experiment, backend),
                backend,
                folder,
                Reporter(),
                nullcontext(executor),
            )


ONE_WORKER = """
import os, time
from ringlight.experiments.runner.executors import processes
with processes(1) as executor:
    print(executor.submit(os.getpid).result(), flush=True)
    time.sleep(120)
"""


def test_a_worker_ends_with_its_parent_however_that_ended() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ONE_WORKER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = Path("/proc", parent.stdout.readline().strip(), "stat")
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    until = time.monotonic() + 30
    with suppress(FileNotFoundError, ProcessLookupError):
        # One that nobody has waited for yet has ended, too.
        while worker.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.05)


def test_nobody_waits_for_work_that_nobody_wants() -> None:
    def given_up() -> None:
        with processes(1) as executor:
            asleep = executor.submit(time.sleep, 120)
            until = time.monotonic() + 30
            while not asleep.running():
                assert time.monotonic() < until
                time.sleep(0.05)
            raise KeyError

    began = time.monotonic()
    with pytest.raises(KeyError):
        given_up()
    assert time.monotonic() - began < 60


def test_from_python_with_repeats(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(swept("jobs: {red: {ranks: [g0, g1]}}\n").text)
    results = rl.load(file).simulate(repeat=2, runs=tmp_path / "runs", quiet=True)
    assert not results.failures
    jct = where(results.rows, subject="job red", metric="jct")
    assert [row.repeat for row in jct] == [1, 2, None]
    # Drawn anew, it still has both.
    assert finish(results.path)["complete"]
    emulation = EmulationBackend()
    with pytest.raises(ScenarioError, match="only a simulation is spread"):
        carry_out_experiment(
            load_checked(file), emulation, tmp_path / "runs", processes=2
        )


def test_wrong_executors_are_one_line() -> None:
    with (
        pytest.raises(
            ScenarioError, match="--executor: there is no executor 'nowhere'"
        ),
        executor_of("nowhere:tcp://127.0.0.1:1"),
    ):
        pass


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_killed_sweep_goes_on_where_it_was(
    tmp_path: Path, share: float, alone: list[Row], long: bool
) -> None:
    """SIGKILL of everything when about so much is done; nothing is computed twice afterwards."""
    if share < 0.5 and not long:
        pytest.skip("killed early; --long does")
    file = tmp_path / "swept.yaml"
    whole = swept()
    file.write_text(whole.text)
    words = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "simulate",
        str(file),
        "--processes",
        "2",
    ]
    words += ["--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: ended_in(tmp_path / "runs") >= share * 24, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    (folder,) = (tmp_path / "runs").iterdir()
    before = runs_in(folder)
    done = subprocess.run(
        [*words, "--resume", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of its runs are there" in done.stderr
    ends = [
        r.run for r in read_records(folder / "events.jsonl") if isinstance(r, RunEnded)
    ]
    assert sorted(ends) == sorted(plan.name for plan in whole.plans)
    assert rows_of(whole, folder) == alone


def test_who_interrupts_is_told_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "swept.yaml"
    file.write_text(swept().text)

    def interrupted(*_: object, **more: object) -> None:
        raise Interrupted(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(experiment, "run_group", interrupted)
        with pytest.raises(Interrupted):
            command.carry_out_experiment(
                load(file),
                SimulationBackend(),
                tmp_path / "runs",
                arms=["base"],
                points=["base-2"],
            )
    said = capsys.readouterr().err.splitlines()[-1]
    _, _, words = said.partition("go on with: ringlight ")
    assert words.startswith(
        f"simulate {file} --arm base --point base-2 --resume {tmp_path}/runs/"
    )
    # What it says does it.
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ringlight.experiments.cli.app",
            *shlex.split(words),
            "--json",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"]
    assert len(result["points"]) == 1


def test_what_is_there_of_a_run_that_did_not_end_is_made_anew(tmp_path: Path) -> None:
    experiment = swept("jobs: {red: {ranks: [g0, g1]}}\nrepeat: 2\n")
    first, second = (
        run_alone(SimulationBackend(), plan)[0] for plan in experiment.plans
    )
    rates = [
        PortRate(
            t=0.1,
            run=plan.name,
            switch="tor0",
            port=1,
            gpu="g0",
            peer=None,
            rx_bps=1.0,
            tx_bps=2.0,
        )
        for plan in experiment.plans
    ]
    with RunFolder.new(tmp_path, "swept", experiment.text) as folder:
        folder.describe(backend="simulation")
        folder.write([*first, *rates, *second[: len(second) // 2]])
    with RunFolder.again(folder.path) as again:
        assert again.environment["backend"] == "simulation"
    assert read_records(folder.path / "events.jsonl") == [
        r for r in first if not isinstance(r, PortRate)
    ]
    left = [r for r in (*first, *rates[:1]) if isinstance(r, PortRate)]
    assert read_port_rates(folder.path / "throughput.csv") == left


def ended_in(runs: Path) -> int:
    """How many runs of the only folder, if it is there, have ended."""
    return sum(
        path.read_text().count('"event":"run_ended"')
        for path in runs.glob("*/events.jsonl")
    )


def wait_for(
    holds: Callable[[], bool],
    process: subprocess.Popen[bytes],
    deadline_s: float = 60.0,
) -> None:
    until = time.monotonic() + deadline_s
    while not holds() and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)


class OnRecord(EmulationBackend):
    """Its labs are virtual, and on record as those that are emulated."""

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> Any:
        self._labs.append({"fabric": setting.name, "lab": f"l{len(self._labs)}"})
        return SimulationBackend().open(setting, emit)


def test_a_measured_run_that_is_gone_on_with_keeps_its_earlier_labs(
    tmp_path: Path,
) -> None:
    experiment = experiment_of("arms: {first: {}, second: {scale.payload: 2}}\n")
    seen: list[Any] = []

    class GoneOn(OnRecord):
        def open(self, setting: Setting, emit: Callable[[Record], None]) -> Any:
            seen.append(read_json(folder.path / "environment.json")["labs"])
            return super().open(setting, emit)

    with RunFolder.new(tmp_path, "e", experiment.text) as folder:
        backend = OnRecord("namespace")
        carry_out(
            experiment,
            choose(experiment, backend, ["first"]),
            backend,
            folder,
            Reporter(quiet=True),
        )
    with RunFolder.again(folder.path) as folder:
        backend = GoneOn("namespace")
        ended = runs_in(folder.path)
        carry_out(
            experiment,
            choose(experiment, backend),
            backend,
            folder,
            Reporter(quiet=True),
            ended=ended,
        )
    labs = [lab["lab"] for lab in read_json(folder.path / "environment.json")["labs"]]
    assert labs == ["l0", "l1"]
    # Nor are they gone for a while, in which the command may be killed.
    assert [[lab["lab"] for lab in labs] for labs in seen] == [["l0"]]


def test_a_folder_of_other_code_or_another_file_is_not_gone_on_with(
    tmp_path: Path,
) -> None:
    experiment = swept("jobs: {red: {ranks: [g0, g1]}}\n")
    file = tmp_path / "swept.yaml"
    file.write_text(experiment.text)
    rows(experiment, tmp_path / "runs", None)
    (folder,) = (tmp_path / "runs").iterdir()
    command = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "simulate",
        str(file),
        "--resume",
        str(folder),
    ]
    file.write_text(experiment.text + "# changed\n")
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "it is of another scenario file" in said.stderr
    file.write_text(experiment.text)
    environment = (folder / "environment.json").read_text()
    (folder / "environment.json").write_text(
        environment.replace('"code": "', '"code": "x')
    )
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert said.returncode == 2
    assert "computed by other code" in said.stderr
