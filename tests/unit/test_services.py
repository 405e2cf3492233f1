"""The machine's services, and standing labs, where they do not do as they are told."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringlight.testbed import lab as lab_module
from ringlight.testbed import readiness, services, standing_labs
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.lab import ENVIRONMENT, Lab, LabError
from ringlight.testbed.services import ServiceError


@pytest.mark.parametrize(
    ("command", "said"),
    [(["sleep", "60"], "timed out after"), (["/no/such/command"], "No such file")],
)
def test_a_start_that_hangs_or_is_not_there_is_named(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "START_S", 0.2)
    with pytest.raises(
        ServiceError, match=f"the service could not be started: .*{said}"
    ):
        services._run(command, "the service")


def test_open_vswitch_that_does_not_come_up_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hangs = tmp_path / "ovs-ctl"
    hangs.write_text("#!/bin/sh\nexec sleep 60\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(services, "OVS_CTL", hangs)
    monkeypatch.setattr(services, "START_S", 0.2)
    with pytest.raises(
        ServiceError, match=r"Open vSwitch could not be started: .*timed out"
    ):
        services._start_ovs_by_hand()


def test_a_standing_labs_process_may_end_before_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_labs, "belongs_to", lambda lab, pid: True)
    told: list[str] = []
    gone = os.posix_spawnp("true", ["true"], os.environ)
    os.waitpid(gone, 0)
    standing_labs._end_stranger(Lab("test"), "controller", gone, told.append)
    assert told == []


def test_taken_ports_are_one_line_that_names_the_lab_that_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both ports at once, as who changes one meets the other; here a child of ours is lab ``abcd``."""
    listen = (
        "import socket, sys, time\n"
        "held = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]\n"
        "print(*(one.getsockname()[1] for one in held), flush=True)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(readiness, "STATE_ROOT", tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", listen],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, ENVIRONMENT: "abcd"},
    ) as child:
        try:
            assert child.stdout is not None
            rest, openflow = child.stdout.readline().split()
            wanted = {
                "--rest": f"127.0.0.1:{rest}",
                "--openflow": f"127.0.0.1:{openflow}",
            }
            with pytest.raises(LabError) as refused:
                readiness._check_free(wanted)
            both = (
                f"port {rest} (--rest) and port {openflow} (--openflow) cannot be used"
            )
            assert str(refused.value).startswith(both)
            assert "lab abcd has it, whose run or shell goes on" in str(refused.value)
            (tmp_path / "abcd").mkdir()
            (tmp_path / "abcd" / "standing.json").touch()
            with pytest.raises(
                LabError, match="lab abcd has it, which ends with: ringlight down abcd"
            ):
                readiness._check_free(wanted)
        finally:
            child.kill()
    readiness._check_free(wanted)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            {"openflow": "0.0.0.0:6653"},
            "--openflow 0.0.0.0:6653: not a loopback address",
        ),
        (
            {"rest": "0.0.0.0:8080"},
            "--rest 0.0.0.0:8080: not a loopback address; that needs a token",
        ),
        (
            {"rest": "0.0.0.0:8080", "token": "x" * 32},
            "give --tls-cert and --tls-key, or --rest-insecure",
        ),
        (
            {"tls": (Path("nowhere.pem"), Path("nowhere.key"))},
            "nowhere.pem: No such file",
        ),
    ],
)
def test_no_lab_is_open_to_more_than_was_stated(
    where: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "check_privileges", lambda: None)
    monkeypatch.setattr(readiness, "_check_services", lambda runtime: None)
    with pytest.raises(LabError, match=said):
        readiness.check_ready("docker", Addresses(**where), [Path(__file__)])


def test_where_no_controller_answers_the_command_that_helps_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (lab_module, standing_labs):
        monkeypatch.setattr(module, "STATE_ROOT", tmp_path)
    one = Lab("abcd")
    with one.hold():
        known = {"rest": "127.0.0.1:8080", "logs": "/var/log/x"}
        (one.state_dir / "standing.json").write_text(json.dumps(known))
        said = standing_labs.what_helps("127.0.0.1:8080")
        assert said == (
            "lab abcd is starting it again: try again in some seconds, or read /var/log/x/controller.log"
        )
        assert (
            standing_labs.what_helps("127.0.0.1:8081")
            == "start one with: ringlight up SCENARIO"
        )
        assert standing_labs.dead_labs() == []
    said = standing_labs.what_helps("127.0.0.1:8080")
    assert (
        said
        == "the testbed of lab abcd has ended; remove what is left with: ringlight down abcd"
    )
    assert standing_labs.dead_labs() == [one]


def test_what_only_root_can_do_is_told_with_a_command_that_does_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ringlight").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/x/cli/app.py", "up", "a b.yaml"])
    for name in [name for name in os.environ if name.startswith("RINGLIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(shutil, "which", {"sudo": "/usr/bin/sudo"}.get)
    # The program by its path: sudo's own search finds neither it nor the Python that it was made for.
    assert (
        services.root_needed("x")
        == f"root is needed to x; run: sudo {tmp_path}/bin/ringlight up 'a b.yaml'"
    )
    monkeypatch.setenv("RINGLIGHT_TOKEN", "secret")
    assert "sudo --preserve-env=RINGLIGHT_TOKEN " in services.root_needed("x")
    monkeypatch.setattr(shutil, "which", {}.get)
    inner = f"{tmp_path}/bin/ringlight up 'a b.yaml'"
    assert services.root_needed("x").endswith(f"run: su -c {shlex.quote(inner)}")
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert services.root_needed("x") == "root is needed to x; run this program as root"
