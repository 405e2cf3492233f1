"""What a person sees when a service is not there, and the commands that leave a lab standing or end it.

A service is made to look stopped in a mount namespace of the command's own, where its socket is hidden;
the real one runs on for everybody else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ringlight.testbed.emulation.clean import clean, clean_objects
from ringlight.testbed.lab import STATE_ROOT, Lab
from tests.integration.test_run import MINI, ROOT, free_ports

pytestmark = pytest.mark.root

TWO_FABRICS = MINI.with_name("mini_oddl.yaml")
HIDE = {
    "Open vSwitch": "mount -t tmpfs tmpfs /run/openvswitch",
    "Docker": "mount --bind /dev/null /run/docker.sock",
}


def ringlight(*arguments: str, hidden: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a user gives it; with one service's socket hidden from it."""
    command = [sys.executable, "-m", "ringlight.experiments.cli.app", *arguments]
    if hidden is not None:
        command = ["unshare", "--mount", "sh", "-c", f'{HIDE[hidden]} && exec "$@"', "sh", *command]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to take note has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def labs() -> set[str]:
    return {path.name for path in STATE_ROOT.glob("*")}


@pytest.mark.alone
@pytest.mark.parametrize("service", HIDE)
def test_a_run_without_a_service_is_one_line_and_leaves_nothing(service: str, tmp_path: Path) -> None:
    before = labs()
    done = ringlight("run", str(MINI), "--runs", str(tmp_path), *free_ports(), hidden=service)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"{service} is not running" in last
    assert "ringlight setup" in last
    assert "Traceback" not in done.stderr
    assert labs() <= before


@pytest.mark.parametrize("service", HIDE)
def test_the_doctor_names_a_stopped_service_and_what_mends_it(service: str) -> None:
    done = ringlight("doctor", "--json", hidden=service)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert not checks[f"{service} runs"]["ok"]
    assert checks[f"{service} runs"]["mend"]
    others = {"Open vSwitch", "Docker"} - {service}
    assert all(checks[f"{other} runs"]["ok"] for other in others)


def test_a_lab_stands_until_it_is_taken_down() -> None:
    up = ringlight("up", str(TWO_FABRICS), "--runtime", "namespace", *free_ports())
    assert up.returncode == 2
    said = f"ringlight: {TWO_FABRICS}: it has several fabrics; name one by its arm with --arm: "
    assert up.stderr.strip().splitlines()[-1].startswith(said)
    ports = free_ports()
    up = ringlight("up", str(TWO_FABRICS), "--arm", "oddl", "--runtime", "namespace", "--json", *ports)
    assert up.returncode == 0, up.stderr
    document = json.loads(up.stdout)
    lab = Lab(document["lab"])
    try:
        with urllib.request.urlopen(f"http://{document['rest']}/v1/onics", timeout=10) as answer:
            assert len(json.load(answer)) == 4
        assert all(alive(pid) for pid in document["pids"].values())
        down = ringlight("down", lab.id)
        assert down.returncode == 0, down.stderr
        assert lab.id in down.stdout
        assert not any(alive(pid) for pid in document["pids"].values())
        assert clean_objects(lab) == []
        assert not lab.state_dir.exists()
        again = ringlight("down", lab.id)
        assert again.returncode != 0
        assert f"lab {lab.id} is not up" in again.stderr
    finally:
        clean(lab.id)
