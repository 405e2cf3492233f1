"""The command as a user meets it: a process, its output, its exit code."""

from __future__ import annotations

import csv
import ctypes
import io
import json
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from ringlight.experiments.backends.emulation import lab_of_setting
from ringlight.experiments.cli import app as cli
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import LabError

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "scenarios" / "disaggregation.yaml"
CLONE_NEWUSER = 0x10000000
MINI = ROOT / "tests" / "data" / "mini.yaml"
AUTO = """
name: own
description: Two GPUs on one packet switch, at whatever scale the machine carries.
scale: auto
fabric: {leaf_spine: {leaves: 1, spines: 1, gpus_per_leaf: 2, gpu: x, rate: 25 Gbit/s, queue: 5 ms}}
training: {model: resnet50, gradient: 8 MB, compute: 50 ms, batch: 8, iterations: 3}
jobs: {red: {ranks: [g0, g1]}}
"""


def ringlight(
    *arguments: str,
    root: bool = True,
    stdout: IO[str] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end in a fork of this process: imports would take another two seconds.

    Without ``root`` as nobody, in a user namespace. ``stdout``: its.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as error:
        out = said if stdout is None else stdout
        process = multiprocessing.get_context("fork").Process(
            target=in_fork,
            args=(arguments, environment, root, out.fileno(), error.fileno()),
        )
        process.start()
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), 60)
        said.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(
            list(arguments), process.exitcode, said.read(), error.read()
        )


def in_fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    root: bool,
    out: int,
    error: int,
) -> None:
    """What ``python -m ringlight.experiments.cli.app`` does, without pytest's hold on output and logs."""
    os.dup2(out, 1)
    os.dup2(error, 2)
    sys.stdout, sys.stderr = (
        open(1, "w", closefd=False),  # noqa: SIM115
        open(2, "w", buffering=1, closefd=False),  # noqa: SIM115
    )
    logging.getLogger().handlers.clear()
    warnings.showwarning = lambda *found, **_: sys.stderr.write(
        warnings.formatwarning(*found[:4])
    )
    os.chdir(ROOT)
    os.environ.update(NO_COLOR="1", **environment)
    sys.argv = ["ringlight", *arguments]
    # As the command unshare does.
    if not root and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    cli.main()


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert not done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ringlight: ")
    return lines[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def loaded_by(code: str) -> set[str]:
    """Packages that a process has loaded after ``code``."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_json_is_alone_on_standard_output() -> None:
    """Libraries of C print past Python, and when they like: the solver HiGHS has a line of its own."""
    code = (
        "import ctypes, sys\n"
        "from ringlight.experiments.cli import app\n"
        "from ringlight.experiments.runner import command\n"
        "load = command.load_checked\n"
        "def prints(*words, **more):\n"
        "    ctypes.CDLL(None).printf(b'HighsMipSolverData\\n')\n"
        "    return load(*words, **more)\n"
        "command.load_checked = prints\n"
        "sys.argv = ['ringlight', 'check', 'scenarios/examples/queue.yaml', '--json']\n"
        "app.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["name"] == "queue"
    assert done.stderr == "HighsMipSolverData\n"


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, ringlight.experiments.cli.app as c\n"
        "c.add_commands()\n"
        "try: c.app(['--help'], standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'matplotlib', 'networkx', 'pydantic', 'httpx', 'highspy', 'docker', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - started < 5
    assert done.stderr.strip() == "[]"
    for command in (
        "demo",
        "run",
        "simulate",
        "doctor",
        "regroup",
        "ocs",
        "circuits",
        "job",
        "planes",
        "onics",
    ):
        assert command in done.stdout


def test_check_says_what_an_experiment_is() -> None:
    done = ringlight("check", str(BUNDLED), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (fabric,) = found["fabrics"].values()
    assert fabric["gpus"] == ["g0", "g1", "g2", "g3", "g4", "g5"]
    (point,) = found["arms"]["a-fragmented"]["points"]
    assert point["how"] == "model"
    assert point["jct_s"]["red"] > 0
    # The models know of no light that moves.
    assert [point["how"] for point in found["arms"]["live"]["points"]] == ["simulated"]
    assert found["arms"]["live"]["refused"] == {}
    assert (
        "sound. 6 runs of 6 arms on 1 fabric."
        in ringlight("check", str(BUNDLED)).stdout
    )


def test_check_says_which_arm_a_backend_refuses(tmp_path: Path) -> None:
    text = (ROOT / "scenarios/examples/dead_switch.yaml").read_text()
    path, runs = tmp_path / "dead.yaml", tmp_path / "runs"
    path.write_text(text.replace("target: switch ocs0", "target: controller"))
    found = json.loads(ringlight("check", str(path), "--json").stdout)
    assert found["arms"]["killed"]["refused"] == {
        "simulation": "events.death.do: the simulation cannot kill the controller"
    }
    said = ringlight("check", str(path)).stdout
    assert "the simulation cannot kill the controller" in said
    done = ringlight("simulate", str(path), "--arm", "killed", "--runs", str(runs))
    assert done.returncode == 2
    assert "arms.killed.events.death" in one_line(done)
    assert not runs.exists()


def test_a_bad_scenario_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    raw = yaml.safe_load(BUNDLED.read_text())
    raw["parameters"]["uplink_rate"]["value"] = "0 Gbit/s"
    path, runs = tmp_path / "bad.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    for command in ("check", "run", "simulate", "up"):
        place = [] if command in ("check", "up") else ["--runs", str(runs)]
        done = ringlight(command, str(path), *place)
        assert done.returncode == 2
        assert "bad.yaml: fabric.links[14].rate" in one_line(done)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["blub"], 2, "No such command 'blub'"),
        (["check", "nowhere.yaml"], 2, "nowhere.yaml: cannot be read"),
        (
            ["run", str(BUNDLED), "--runtime", "vm"],
            2,
            "'--runtime': 'vm' is not one of",
        ),
        (
            ["run", str(BUNDLED), "--arm", "torus"],
            2,
            "there is no arm torus; there are a-fragmented, ",
        ),
        (
            ["simulate", str(BUNDLED), "--arm", "torus"],
            2,
            "there is no arm torus; there are a-fragmented, ",
        ),
        (["simulate", str(BUNDLED), "--repeat", "0"], 2, "--repeat"),
        (["simulate", str(BUNDLED), "--latency", "soon"], 2, "--latency"),
        (["simulate", str(BUNDLED), "--latency", "-1 ms"], 2, "--latency"),
        (["simulate", str(BUNDLED), "--mtu", "10"], 2, "--mtu"),
        (
            ["simulate", str(BUNDLED), "--resume", "nowhere"],
            2,
            "nowhere: not a run folder",
        ),
        (
            ["up", "scenarios/examples/two_cables.yaml", "--arm", "torus"],
            2,
            "there is no arm torus",
        ),
        (
            ["up", "scenarios/examples/two_cables.yaml"],
            2,
            "name one by its arm with --arm: one, two",
        ),
        (["report", "nowhere"], 2, "nowhere: not a run folder"),
        (["results", "nowhere"], 2, "nowhere/result.json: cannot be read"),
        (
            ["simulate", str(BUNDLED), "--executor", "none"],
            2,
            "--executor: there is no executor 'none'",
        ),
        (
            ["simulate", str(BUNDLED), "--executor", "none:1", "--processes", "1"],
            2,
            "give one of them",
        ),
        (["ocs", "replace", "ocs0", "1:21"], 2, "'1:21' is not INGRESS-EGRESS"),
        (["ocs", "plan", "a:1"], 2, "'a:1' is not SWITCH:INGRESS-EGRESS"),
        (["ocs", "apply", "a:1-2@"], 2, "'a:1-2@' is not SWITCH:INGRESS-EGRESS"),
        (["ocs", "policy", "default"], 2, "of which --switch?"),
        (
            ["ocs", "fault", "add", "a", "foreign-writer", "--connects", "1"],
            2,
            "'1' is not INGRESS-EGRESS",
        ),
        (["circuits", "set", "g0"], 2, "'g0' is not A=B"),
        (
            ["job", "submit", "red", "--gpus", "2", "--compute", "3"],
            2,
            "'3' is not a time",
        ),
        (["job", "submit", "red"], 2, "either --ranks or --gpus"),
        (["onics", "--flows"], 2, "--flows needs a GPU"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], code: int, part: str, tmp_path: Path
) -> None:
    place = ["--runs", str(tmp_path)] if arguments[0] in ("run", "simulate") else []
    done = ringlight(*arguments, *place)
    assert done.returncode == code
    assert part in one_line(done)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["results", "report"])
def test_a_record_that_is_no_object_is_one_line(command: str, tmp_path: Path) -> None:
    for name in ("result.json", "environment.json"):
        (tmp_path / name).write_text("[]")
    done = ringlight(command, str(tmp_path))
    assert done.returncode == 2
    assert "json: it is no JSON object" in one_line(done)


def test_no_lab_is_built_that_nobody_could_drive(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        """
name: a
description: Two GPUs.
fabric:
  servers: {s0: {gpus: {g0: t, g1: t}}}
  packet_switches: {tor0: {ports: 2}}
  optical_switches: {ocs0: {size: 2, driver: own, address: '10.0.0.5:1'}}
  links: [{ends: [g0, "tor0:1"], rate: 4 Gbit/s}, {ends: [g1, "tor0:2"], rate: 4 Gbit/s}]
training: {model: resnet50, compute: 20 ms, batch: 4, iterations: 2}
jobs: {red: {ranks: all}}
"""
    )
    done = ringlight("up", str(tmp_path / "a.yaml"), root=False)
    assert done.returncode == 2
    assert "optical_switches.ocs0: driver: own" in one_line(done)


def test_a_lab_that_stands_is_built_at_the_addresses_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def made(_: object, runtime: str, addresses: Addresses, **how: Any) -> None:
        asked.extend((runtime, addresses, how["follow"]))
        raise LabError("enough")

    monkeypatch.setattr(lab_of_setting, "processes_of", made)
    monkeypatch.setenv("RINGLIGHT_TOKEN", "secret")
    cert, key = tmp_path / "cert", tmp_path / "key"
    where = ["127.0.0.1:1", "127.0.0.1:2"]
    options = ["--rest", where[0], "--openflow", where[1]]
    doors = [
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
        "--rest-insecure",
        "--openflow-insecure",
    ]
    words = [
        "up",
        str(BUNDLED),
        "--arm",
        "a-fragmented",
        "--runtime",
        "namespace",
        *options,
        *doors,
    ]
    cli.add_commands()
    with pytest.raises(LabError, match="enough"):
        cli.app(words, standalone_mode=False)
    insecure = frozenset({"rest", "openflow"})
    wanted = Addresses(*where, "secret", tls=(cert, key), insecure=insecure)
    assert asked == ["namespace", wanted, False]


def test_a_run_folder_in_json_in_rows_and_drawn_again(tmp_path: Path) -> None:
    """What a simulation leaves, and what is made of it later."""
    done = ringlight("simulate", str(MINI), "--runs", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (folder,) = tmp_path.iterdir()
    assert f"report: {folder}/report.html" in done.stderr
    assert result["complete"]
    assert result["fidelity"]["verdict"] == "simulated"
    assert {row["label"] for row in result["rows"]} <= {"simulated", "analytic"}
    assert json.loads((folder / "result.json").read_text()) == result
    again = ringlight("report", str(folder), "--json")
    assert json.loads(again.stdout) == result
    said = ringlight("report", str(folder)).stdout
    assert "Simulated: no number here was measured" in said
    assert "Nothing here was measured" in (folder / "report.html").read_text()
    rows = list(
        csv.DictReader(
            io.StringIO(ringlight("results", str(folder), "--metric", "jct").stdout)
        )
    )
    assert {row["metric"] for row in rows} == {"jct"}
    assert {(row["arm"], row["subject"]) for row in rows} >= {
        ("live", "job red"),
        ("regrouped", "job blue"),
    }
    found = json.loads(
        ringlight("results", str(folder), "--arm", "live", "--json").stdout
    )
    assert {row["arm"] for row in found} == {"live"}
    both = json.loads(
        ringlight(
            "results", str(folder), str(folder), "--metric", "jct", "--json"
        ).stdout
    )
    assert {row["point"]["run"] for row in both} == {folder.name}
    (folder / "result.json").write_text(json.dumps({**result, "schema": 3}))
    old = ringlight("results", str(folder))
    assert old.returncode == 2
    assert (
        f"its schema is 3, not 4; make it anew: ringlight report {folder}"
        in one_line(old)
    )
    (folder / "events.jsonl").write_text(
        '{"t": 1, "event": "ra\n' + (folder / "events.jsonl").read_text()
    )
    broken = ringlight("report", str(folder))
    assert broken.returncode == 2
    assert "events.jsonl: line 1 is not JSON" in one_line(broken)


def test_a_run_folder_whose_lines_are_nested_too_deep_is_named_in_one_line(
    tmp_path: Path,
) -> None:
    done = ringlight(
        "simulate", str(MINI), "--arm", "regrouped", "--runs", str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    deep = "[" * 200_000
    for name, said in (
        ("events.jsonl", "line 1 is nested too deep"),
        ("environment.json", "is nested too deep"),
    ):
        text = (folder / name).read_text()
        (folder / name).write_text(
            f"{deep}\n{text}" if name == "events.jsonl" else deep
        )
        broken = ringlight("report", str(folder))
        assert broken.returncode == 2
        assert f"{name}: " in one_line(broken)
        assert said in one_line(broken)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("closed", "code", "said"),
    [
        ("1", 1, "standard output is closed; to print nothing"),
        ("0", 0, ""),
        ("2", 0, ""),
    ],
)
def test_a_closed_standard_stream_is_no_traceback(
    closed: str, code: int, said: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "ringlight.experiments.cli.app",
        "check",
        str(MINI),
    ]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == bool(said)
    assert ("sound" in done.stdout) == (closed != "1")


def test_a_run_folder_alone_is_gone_on_with(tmp_path: Path) -> None:
    done = ringlight(
        "simulate", str(MINI), "--runs", str(tmp_path), "--arm", "regrouped"
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    done = ringlight("simulate", "--resume", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"]
    for command in ("run", "simulate"):
        lacking = ringlight(command)
        assert (
            lacking.returncode,
            "which SCENARIO? name a file, or a run folder" in one_line(lacking),
        ) == (
            2,
            True,
        )
    assert "nowhere: not a run folder" in one_line(
        ringlight("simulate", "--resume", "nowhere")
    )


def test_some_arms_alone_and_a_simulation_gone_on_with(tmp_path: Path) -> None:
    run = ("simulate", str(MINI), "--runs", str(tmp_path), "--json", "--repeat", "2")
    done = ringlight(*run, "--arm", "regrouped")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    first = {
        line
        for line in (folder / "events.jsonl").read_text().splitlines()
        if '"iteration"' in line
    }
    assert {row["arm"] for row in json.loads(done.stdout)["rows"] if row["arm"]} == {
        "regrouped"
    }
    done = ringlight(*run[:-2], "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"]
    assert {row["arm"] for row in result["rows"] if row["arm"]} == {
        "fragmented",
        "regrouped",
        "live",
    }
    # The repeats that were asked for are gone on with too, and what was there stays as it was.
    assert {row["repeat"] for row in result["rows"] if row["arm"] == "live"} == {
        None,
        1,
        2,
    }
    assert first <= set((folder / "events.jsonl").read_text().splitlines())
    assert list(tmp_path.iterdir()) == [folder]


def test_a_run_that_fails_is_told_in_a_line_and_with_exit_code_1(
    tmp_path: Path,
) -> None:
    text = MINI.read_text().replace("{job: red, iteration: 3}", "{at: 1000 s}")
    (tmp_path / "late.yaml").write_text(text)
    done = ringlight(
        "simulate",
        str(tmp_path / "late.yaml"),
        "--runs",
        str(tmp_path / "runs"),
        "--json",
    )
    assert done.returncode == 1
    assert not done.stdout or not json.loads(done.stdout)["complete"]
    assert "had ended before regroup (events.1) was due" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    for spread in ((), ("--processes", "2")):
        done = ringlight(
            "simulate", str(MINI), "--runs", str(tmp_path / "runs"), *spread
        )
        assert done.returncode == 2
        assert (
            one_line(done)
            == f"ringlight: {tmp_path}/runs: no run folder can be made there: Not a directory"
        )


@pytest.mark.parametrize(
    "command", [["switches"], ["topology", "--json"], ["job", "list"], ["events"]]
)
def test_no_controller_is_one_line_with_its_address(command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = ringlight(*command, RINGLIGHT_CONTROLLER=address)
    assert done.returncode == 1
    assert f"no controller answers at http://{address}" in one_line(done)


@pytest.mark.parametrize("command", ["run", "up"])
def test_without_root_that_is_said_before_anything_is_made(
    command: str, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    place = [] if command == "up" else ["--runs", str(runs)]
    done = ringlight(command, str(BUNDLED), *place, root=False)
    assert done.returncode == 1
    assert "root is needed to build networks" in one_line(done)
    assert list(runs.iterdir()) == []


def test_without_root_nobody_says_that_no_lab_is_up() -> None:
    """Another user cannot look into the folders of labs."""
    done = ringlight("down", root=False)
    assert done.returncode == 1
    assert "root is needed to end a lab" in one_line(done)


def test_the_suite_asks_for_no_root() -> None:
    done = ringlight("test", "--version", root=False)
    assert done.returncode == 0, done.stderr
    assert "root is needed" not in done.stderr
    assert "without root, tests that build networks are skipped" in done.stderr


def test_a_simulation_of_a_file_whose_scale_is_the_machines_to_choose_has_real_times(
    tmp_path: Path,
) -> None:
    """It answered in emulated seconds and rates, of a machine that it had not asked for."""
    file = tmp_path / "auto.yaml"
    file.write_text(AUTO)
    said = ringlight("simulate", str(file), "--runs", str(tmp_path), "--json")
    rows = json.loads(said.stdout)["rows"]
    (iteration,) = (
        row["value"]
        for row in rows
        if row["metric"] == "iteration" and row["repeat"] is None
    )
    # 8 MB over links of 25 Gbit/s, and what is computed.
    assert iteration == pytest.approx(0.05 + 8 * 8e6 / 25e9, rel=0.03)
    (run,) = tmp_path.glob("*-simulated")
    assert (
        json.loads((run / "environment.json").read_text())["chosen_scale"]["time"] == 1
    )
    assert "chosen for a machine" not in (run / "report.html").read_text()


def test_a_change_without_a_circuit_is_refused() -> None:
    done = ringlight("circuits", "change")
    assert done.returncode == 2
    assert "name a circuit with --add or --remove" in one_line(done)
