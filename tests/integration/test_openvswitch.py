"""Open vSwitch's daemons from outside: what is tuned in them, read off a daemon of the test's own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlight.testbed.emulation import openvswitch
from tests.integration.labs import until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A daemon of Open vSwitch that nobody has spoken to: its process and control socket."""
    server, tool = (
        shutil.which("ovsdb-server", path="/usr/sbin:/usr/bin"),
        shutil.which("ovsdb-tool"),
    )
    if server is None or tool is None:
        pytest.skip("Open vSwitch is not installed")
    schema = tmp_path / "schema"
    schema.write_text(json.dumps({"name": "empty", "tables": {}}))
    subprocess.run([tool, "create", tmp_path / "db", schema], check=True, timeout=10)
    control = tmp_path / "daemon.ctl"
    command = [server, f"--unixctl={control}", "-vconsole:off", f"{tmp_path}/db"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        try:
            until(control.is_socket, 10)
            yield process.pid, control
        finally:
            process.kill()


def page_faults(pid: int) -> int:
    # The name, in brackets, may hold spaces; minflt is the eighth field after it (proc(5)).
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])


def faults_per_request(control: Path, pid: int, requests: int = 10) -> float:
    """Pages that the kernel gives the daemon for a request, at most, for requests of 1 to 3 MB.

    They are made of blocks that come from the heap; where in it they lie differs from daemon to daemon.
    """
    worst = 0.0
    for blocks in (10, 15, 20, 25, 30):
        request = json.dumps(
            {"id": 0, "method": "version", "params": ["x" * 100_000] * blocks}
        ).encode()
        # The first of a length may well need new memory.
        for first in (True, False):
            before = page_faults(pid)
            for _ in range(1 if first else requests):
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(10)
                    connection.connect(str(control))
                    connection.sendall(request)
                    assert b"version" in connection.recv(4096)
        worst = max(worst, (page_faults(pid) - before) / requests)
    return worst


def test_memory_that_it_frees_is_kept(daemon: tuple[int, Path]) -> None:
    pid, control = daemon
    assert faults_per_request(control, pid) > 50
    assert openvswitch.keep_memory(control)
    assert faults_per_request(control, pid) < 10


def test_a_daemon_that_is_not_there_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert not openvswitch.keep_memory(tmp_path / "none.ctl")
    assert "Open vSwitch gives back its memory" in caplog.text
