"""The command as a user meets it: a process, its output, its exit code."""

from __future__ import annotations

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
from typing import IO

import pytest
import yaml

from scenarios import cli

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "scenarios" / "disaggregation.yaml"


def ringlight(
    *arguments: str, root: bool = True, stdout: IO[str] | int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The command, run to its end; without ``root`` as nobody, in a user namespace. ``stdout``: its."""
    if root and stdout == subprocess.PIPE:
        return forked(arguments, environment)
    return subprocess.run(
        [*([] if root else ["unshare", "--user"]), sys.executable, "-m", "scenarios.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def forked(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The command in a fork of this process, which has imported what takes another two seconds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = multiprocessing.get_context("fork").Process(
            target=in_fork, args=(arguments, environment, out.fileno(), error.fileno())
        )
        process.start()
        process.join(60)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), 60)
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out.read(), error.read())


def in_fork(arguments: Sequence[str], environment: Mapping[str, str], out: int, error: int) -> None:
    """What ``python -m scenarios.cli`` does, without pytest's hold on output, logs and warnings."""
    os.dup2(out, 1)
    os.dup2(error, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    logging.getLogger().handlers.clear()
    warnings.showwarning = lambda *found, **_: sys.stderr.write(warnings.formatwarning(*found[:4]))
    os.chdir(ROOT)
    os.environ.update(NO_COLOR="1", **environment)
    sys.argv = ["ringlight", *arguments]
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


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, scenarios.cli as c\n"
        "try: c.app(['--help'], standalone_mode=False)\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'matplotlib', 'networkx', 'pydantic', 'httpx', 'scipy', 'docker', 'fastapi'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert time.monotonic() - started < 5
    assert done.stderr.strip() == "[]"
    for command in (
        "demo",
        "run",
        "simulate",
        "crosscheck",
        "doctor",
        "regroup",
        "ocs",
        "circuits",
        "job",
        "grids",
        "onics",
    ):
        assert command in done.stdout


def test_check_says_what_a_scenario_is() -> None:
    done = ringlight("check", str(BUNDLED), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpus"] == ["g0", "g1", "g2", "g3", "g4", "g5"]
    assert found["predicted_completion_s"]["a"]["red"] > 0
    assert "sound" in ringlight("check", str(BUNDLED)).stdout


def test_a_bad_scenario_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    raw = yaml.safe_load(BUNDLED.read_text())
    raw["parameters"]["uplink_rate"]["value"] = "0 Gbit/s"
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    for command in ("check", "run", "up"):
        done = ringlight(command, str(path))
        assert done.returncode == 2
        assert "bad.yaml: fabric.links[14].rate" in one_line(done)
    assert not (ROOT / "runs").exists() or not list((ROOT / "runs").glob("*bad*"))


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["blub"], 2, "No such command 'blub'"),
        (["check", "nowhere.yaml"], 2, "nowhere.yaml: cannot be read"),
        (["run", str(BUNDLED), "--runtime", "vm"], 2, "--runtime: 'vm'"),
        (["report", "nowhere"], 2, "scenario.yaml"),
        (["ocs", "replace", "ocs0", "1:21"], 2, "'1:21' is not INGRESS-EGRESS"),
        (["circuits", "set", "g0"], 2, "'g0' is not A=B"),
        (["job", "submit", "red", "--gpus", "2", "--compute", "3"], 2, "'3' is not a time"),
        (["job", "submit", "red"], 2, "either --ranks or --gpus"),
        (["onics", "--flows"], 2, "--flows needs a GPU"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], code: int, part: str) -> None:
    done = ringlight(*arguments)
    assert done.returncode == code
    assert part in one_line(done)


@pytest.mark.parametrize("command", [["switches"], ["topology", "--json"], ["job", "list"], ["events"]])
def test_no_controller_is_one_line_with_its_address(command: list[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = ringlight(*command, RINGLIGHT_CONTROLLER=address)
    assert done.returncode == 1
    assert f"no controller answers at http://{address}" in one_line(done)


@pytest.mark.parametrize("command", ["run", "up", "crosscheck"])
def test_without_root_that_is_said_before_anything_is_made(command: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    place = [] if command == "up" else ["--runs", str(runs)]
    done = ringlight(command, str(BUNDLED), *place, root=False)
    assert done.returncode == 1
    assert "root is needed to build networks" in one_line(done)
    assert list(runs.iterdir()) == []


def test_the_suite_asks_for_no_root() -> None:
    done = ringlight("test", "--version", root=False)
    assert done.returncode == 0, done.stderr
    assert "root is needed" not in done.stderr
    assert "without root, tests that build networks are skipped" in done.stderr
