"""What a person sees when a service is not there, and the commands that leave a lab standing or end it.

A service is made to look stopped in a mount namespace of the command's own, where its socket is hidden;
the real one runs on for everybody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ringlight.testbed import limits
from ringlight.testbed.emulation.clean import any_alive, clean, clean_objects
from ringlight.testbed.lab import STATE_ROOT, Lab
from tests import forks
from tests.integration.test_run import MINI, ROOT, free_ports

pytestmark = pytest.mark.root

TWO_FABRICS = ROOT / "scenarios" / "examples" / "packet_switches.yaml"
HIDE = {
    "Open vSwitch": "mount -t tmpfs tmpfs /run/openvswitch",
    "Docker": "mount --bind /dev/null /run/docker.sock",
}


def ringlight(
    *arguments: str, hidden: str | None = None
) -> subprocess.CompletedProcess[str]:
    """A command as a user gives it; with one service's socket hidden from it."""
    environment = {"NO_COLOR": "1", "COLUMNS": "200"}
    if hidden is None:
        return forks.ringlight(*arguments, environment=environment, timeout_s=150)
    return subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            f'{HIDE[hidden]} && exec "$@"',
            "sh",
            *forks.COMMAND,
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to take note has ended."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except FileNotFoundError:
        return False


def labs() -> set[str]:
    return {path.name for path in STATE_ROOT.glob("*")}


@pytest.mark.labs
@pytest.mark.parametrize("service", HIDE)
def test_a_run_without_a_service_is_one_line_and_leaves_nothing(
    service: str, tmp_path: Path
) -> None:
    before = labs()
    done = ringlight(
        "run", str(MINI), "--runs", str(tmp_path), *free_ports(), hidden=service
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f"{service} is not running" in last
    assert "ringlight setup" in last
    assert "Traceback" not in done.stderr
    left, deadline = labs() - before, time.monotonic() + 20
    # Unit tests beside have labs, too, for a moment each.
    while left and time.monotonic() < deadline:
        time.sleep(0.2)
        left &= labs()
    assert not left


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
    up = ringlight(
        "up",
        str(TWO_FABRICS),
        "--arm",
        "slow",
        "--runtime",
        "namespace",
        "--json",
        *ports,
    )
    assert up.returncode == 0, up.stderr
    document = json.loads(up.stdout)
    lab = Lab(document["lab"])
    try:
        with urllib.request.urlopen(
            f"http://{document['rest']}/v1/packet-switches", timeout=10
        ) as answer:
            assert len(json.load(answer)) == 1
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


@pytest.mark.labs
def test_the_last_lab_leaves_the_machines_limits_as_they_were() -> None:
    """Those that Mininet raises for good, set to what they usually are."""
    if any_alive():
        pytest.skip("another lab lives, and keeps them")
    usual = {
        "net/core/netdev_max_backlog": "1000",
        "net/ipv4/tcp_wmem": "4096\t16384\t4194304",
    }
    files = {limits.SYSCTLS / name: value for name, value in usual.items()}
    before = {file: file.read_text() for file in files}
    scenario = (
        "up",
        str(ROOT / "scenarios/disaggregation.yaml"),
        "--arm",
        "a-fragmented",
    )
    try:
        for file, value in files.items():
            file.write_text(value)
        up = ringlight(*scenario, "--runtime", "namespace", "--json", *free_ports())
        assert up.returncode == 0, up.stderr
        shown = [file.read_text().strip() for file in files]
        down = ringlight("down", json.loads(up.stdout)["lab"])
        assert down.returncode == 0, down.stderr
        # While it lives one is raised; the other is that of the labs' own namespaces.
        assert shown == ["5000", usual["net/ipv4/tcp_wmem"]]
        assert {file: file.read_text().strip() for file in files} == files
    finally:
        for file, value in before.items():
            file.write_text(value)


@pytest.mark.labs
def test_the_controller_of_a_standing_lab_comes_back_and_a_dead_testbed_is_named() -> (
    None
):
    """SIGKILL ends the controller, whose light stays, and later the testbed, which nobody starts again."""
    ports = free_ports()
    scenario = str(ROOT / "scenarios/disaggregation.yaml")
    up = ringlight(
        "up",
        scenario,
        "--arm",
        "a-fragmented",
        "--runtime",
        "namespace",
        "--json",
        *ports,
    )
    assert up.returncode == 0, up.stderr
    document = json.loads(up.stdout)
    lab, at = Lab(document["lab"]), ("--controller", document["rest"])
    try:

        def ask(path: str) -> Any:
            with urllib.request.urlopen(
                f"http://{document['rest']}{path}", timeout=10
            ) as answer:
                return json.load(answer)

        circuits, flows = ask("/v1/circuits"), ask("/v1/packet-switches/tor0/flows")
        assert circuits["circuits"]
        assert ask("/v1/health")["restarts"] == 0
        os.kill(document["pids"]["controller"], signal.SIGKILL)
        done = ringlight(*at, "circuits", "show")
        # It may be back before the command asks, or while it waits for an answer.
        assert (
            done.returncode == 0 or f"lab {lab.id} is starting it again" in done.stderr
        )
        deadline = time.monotonic() + 60
        health: dict[str, Any] = {}
        while health.get("status") != "ok" and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                health = ask("/v1/health")
            time.sleep(0.1)
        assert (health["status"], health["restarts"]) == ("ok", 1), health
        now = ask("/v1/circuits")
        assert now["circuits"] == circuits["circuits"]
        assert now["generation"] > circuits["generation"]
        ages = {(f["priority"], str(f["match"])): f["duration_s"] for f in flows}
        now = {
            (f["priority"], str(f["match"])): f["duration_s"]
            for f in ask("/v1/packet-switches/tor0/flows")
        }
        assert ages.keys() == now.keys()
        assert all(now[flow] > age for flow, age in ages.items())
        inspected = json.loads(ringlight(*at, "inspect", lab.id, "--json").stdout)[
            "controller"
        ]
        assert (
            inspected["restarts"],
            inspected["pid"] != document["pids"]["controller"],
        ) == (1, True)
        log = Path(document["logs"], "testbed.log").read_text()
        assert (
            "the controller has ended (killed by SIGKILL); it is started again in 0.2 s"
            in log
        )

        # Both dead: whoever asks is told what helps.
        os.kill(document["pids"]["testbed"], signal.SIGKILL)
        os.kill(inspected["pid"], signal.SIGKILL)
        helps = f"the testbed of lab {lab.id} has ended; remove what is left with: ringlight down {lab.id}"
        assert ringlight(*at, "circuits", "show").stderr.strip().endswith(helps)
        assert ringlight("inspect", lab.id).stderr.strip().endswith(helps)
        down = ringlight("down", lab.id)
        assert down.returncode == 0, down.stderr
        assert clean_objects(lab) == []
        assert not lab.state_dir.exists()
    finally:
        clean(lab.id)
