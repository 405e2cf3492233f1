"""The prompt in real labs: the session of docs/shell.md as it prints, hosts that give way to workers, captures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ringlight.containers.image import ROOT
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.lab import Lab
from tests.forks import ringlight as run
from tests.integration.controller_rig import FABRIC, free_port
from tests.integration.labs import agent_client, running_testbed, traces

pytestmark = pytest.mark.root

PROMPT = "ringlight> "
SESSION = ROOT / "tests/extensions/console/session.txt"
#: What is another one each time: milliseconds, what a transfer reached, a lab's id, and versions of others.
CHANGES = (
    (r"time=\S+ ms", "time=T ms"),
    (r"time \d+ms", "time T ms"),
    (r"mdev = \S+ ms", "mdev = T ms"),
    (r"[\d.]+ Mbit/s received, [\d.]+ Mbit/s sent; as real, [\d.]+ Gbit/s", "RATES"),
    (r"\brl[a-z0-9]{3,4}-", "rlLAB-"),
    (r"eth0@if\d+", "eth0@ifN"),
    (r"\(Open vSwitch\) \S+", "(Open vSwitch) V"),
)


def without_what_changes(text: str) -> list[str]:
    for pattern, instead in CHANGES:
        text = re.sub(pattern, instead, text)
    lines = [line.rstrip() for line in text.splitlines()]
    # The shell's word on what is left running comes or not, as in Mininet. "ip" may look up the number of a
    # namespace of another test's lab that is only half made.
    by_chance = r"\[\d+\] \d+|Error: Peer netns reference is invalid\."
    return [line for line in lines if not re.fullmatch(by_chance, line)]


def test_the_session_prints_the_same_again(tmp_path: Path) -> None:
    """``test_session_page`` compares docs/shell.md with the session."""
    said = SESSION.read_text(encoding="utf-8")
    commands = [
        line.removeprefix(PROMPT)
        for line in said.splitlines()
        if line.startswith(PROMPT)
    ]
    assert len(commands) == 30
    file = tmp_path / "session.txt"
    file.write_text("".join(f"{command}\n" for command in commands))
    addresses = [
        "--rest",
        f"127.0.0.1:{free_port()}",
        "--openflow",
        f"127.0.0.1:{free_port()}",
    ]
    done = run(
        "shell",
        "scenarios/disaggregation.yaml",
        "--arm",
        "a-fragmented",
        "--file",
        str(file),
        *addresses,
    )
    assert done.returncode == 0, done.stderr
    assert without_what_changes(done.stdout) == without_what_changes(said)
    lab = re.search(r"lab (\w+) is up", done.stderr)
    assert lab
    assert traces(Lab(lab[1])) == []
    received = re.search(r"([\d.]+) Mbit/s received", done.stdout)
    assert received
    # 100 Mbit/s as emulated; a busy machine does not reach that.
    assert 10 < float(received[1]) < 110


@pytest.fixture
def lab() -> Iterator[emulated.Testbed]:
    """Four GPUs as namespaces; nobody programs its switches."""
    command = (sys.executable, "-S", "-c", "import time; time.sleep(600)", "{job}")
    fabric = build_fabric(FabricSpec.model_validate(FABRIC))
    with running_testbed(fabric, runtime="namespace", command=command) as made:
        file = made.settings.state / "fabric.json"
        file.write_text(json.dumps(FABRIC))
        try:
            yield made
        finally:
            file.unlink()


def kinds(client: httpx.Client, method: str = "GET") -> list[str]:
    return [
        host["kind"]
        for host in client.request(method, "/v1/hosts").raise_for_status().json()
    ]


def test_idle_hosts_give_way_to_workers_and_what_is_wrong_is_one_line(
    lab: emulated.Testbed,
) -> None:
    name = lab.settings.lab.id
    with agent_client(lab) as client:
        assert kinds(client) == ["none"] * 4
        done = run(
            "exec", "--lab", name, "g0", "--", "ip", "-br", "-4", "addr", "show", "eth0"
        )
        assert (done.returncode, done.stdout.split()[2]) == (0, "10.82.0.2/16"), (
            done.stderr
        )
        assert kinds(client) == ["idle"] * 4

        request = {
            "job": "red",
            "rank": 0,
            "gpu": "g1",
            "spec": {"peers": ["10.82.0.3"]},
        }
        client.post("/v1/workers", json=request).raise_for_status()
        assert kinds(client) == ["idle", "worker", "idle", "idle"]
        assert not Path("/run/netns", lab.settings.lab.namespace("g1")).exists()
        seen = run(
            "exec",
            "--lab",
            name,
            "g1",
            "--",
            "sh",
            "-c",
            "ip -4 -br addr show eth0; exit 7",
        )
        assert (seen.returncode, seen.stdout.split()[2]) == (7, "10.82.0.3/16")
        assert kinds(client, "POST") == ["idle", "worker", "idle", "idle"]

        client.delete("/v1/workers/red-0").raise_for_status()
        # The idle host that gave way is back.
        assert kinds(client) == ["idle"] * 4
    for words, said in (
        (
            ["exec", "--lab", name, "g9", "--", "ls"],
            "there is no node g9; there is g0, g1,",
        ),
        (
            ["capture", "--lab", name, "ocs0:99"],
            "nothing is plugged into ocs0:99; of ocs0 there is ocs0:1",
        ),
        (
            ["ping", "--lab", name, "g0", "tor0"],
            "there is no GPU tor0; there is g0, g1, g2, g3",
        ),
    ):
        done = run(*words)
        assert done.returncode != 0
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
