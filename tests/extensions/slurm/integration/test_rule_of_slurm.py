"""The simulated rule chooses the nodes that a real Slurm chooses; no lab, and no job is started."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.slurm.lab_cluster import free_ports
from ringlight.extensions.slurm.partitions import Mode, Partition
from ringlight.extensions.slurm.process import obstacle
from ringlight.extensions.slurm.simulated_rule import (
    Choose,
    NodeRequest,
    by_topology,
    without_topology,
)
from ringlight.extensions.slurm.slurm_conf import ClusterSettings, slurm_conf

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(180),
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]
NODES = tuple(f"g{n}" for n in range(6))
LEAVES = {"tor0": ("g0", "g1", "g2", "g3"), "tor1": ("g4", "g5")}
TREE = """\
SwitchName=tor0 Nodes=g[0-3]
SwitchName=tor1 Nodes=g[4-5]
SwitchName=core Switches=tor[0-1]
"""
#: Longest wait for the nodes, seconds.
READY_S = 60.0


class _Slurm:
    def __init__(self, directory: Path) -> None:
        self._environment = {**os.environ, "SLURM_CONF": f"{directory}/slurm.conf"}

    def call(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env=self._environment,
            check=False,
            timeout=30,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout + done.stderr

    def choose(self, free: Sequence[str], count: int) -> tuple[str, ...]:
        """Return the nodes that Slurm gives a job now, if only some are free."""
        out = [node for node in NODES if node not in free]
        if out:
            self._allocated(f"-N{len(out)}", f"-w{','.join(out)}")
        number = self._allocated(f"-N{count}")
        nodes = tuple(
            expand(self.call("squeue", "-h", "-j", number, "-o", "%N").strip())
        )
        self.call("scancel", "--me")
        _until(lambda: self.call("sinfo", "-h", "-o", "%t %D").strip() == "idle 6")
        return nodes

    def _allocated(self, *words: str) -> str:
        """Return the id of a job without tasks, to which Slurm has given nodes."""
        answer = self.call("salloc", "--no-shell", *words)
        found = re.search(r"Granted job allocation (\d+)", answer)
        assert found is not None, answer
        return found[1]


@contextmanager
def _running(directory: Path, mode: Mode) -> Iterator[_Slurm]:
    munge = directory / "munge"
    munge.mkdir(mode=0o755)
    (directory / "state").mkdir()
    key = munge / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    socket = munge / "munge.socket"
    port = free_ports(len(NODES) + 1)
    settings = ClusterSettings(
        directory, NODES, (Partition("gpus", mode, NODES),), port, socket
    )
    # No task starts, so none needs the plug-in.
    text = slurm_conf(settings).replace("PlugStackConfig", "#PlugStackConfig")
    (directory / "slurm.conf").write_text(text)
    if mode == "follow":
        (directory / "topology.conf").write_text(TREE)
    files = {
        "key": key,
        "pid": munge / "pid",
        "log": munge / "log",
        "seed": munge / "seed",
    }
    munged = [f"--{name}-file={path}" for name, path in files.items()]
    conf = f"{directory}/slurm.conf"
    commands = [
        ["/usr/sbin/munged", "--foreground", "--force", f"--socket={socket}", *munged],
        ["/usr/sbin/slurmctld", "-D", "-i", "-f", conf],
        *(["/usr/sbin/slurmd", "-D", "-N", node, "-f", conf] for node in NODES),
    ]
    with ExitStack() as undo, (directory / "output").open("wb") as output:
        for command in commands:
            process = subprocess.Popen(command, stdout=output, stderr=output)
            undo.callback(process.wait, 20)
            undo.callback(process.kill)
            if command[0].endswith("munged"):
                _until(socket.exists)
        slurm = _Slurm(directory)
        _until(lambda: slurm.call("sinfo", "-h", "-o", "%t %D").strip() == "idle 6")
        yield slurm


def _until(done: object) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            if callable(done) and done():
                return
        except AssertionError:
            pass
        time.sleep(0.1)
    pytest.fail("Slurm is not ready")


@pytest.mark.parametrize("mode", ["stand", "follow"])
def test_the_rule_chooses_as_slurm_does(tmp_path: Path, mode: Mode) -> None:
    choose: Choose = (
        without_topology(NODES)
        if mode == "stand"
        else by_topology(NODES, LEAVES, lambda: 0.0)
    )
    draw = random.Random(7)
    with _running(tmp_path, mode) as slurm:
        for _ in range(25):
            free = sorted(draw.sample(NODES, draw.randint(1, 6)))
            count = draw.randint(1, len(free))
            mine = choose(free, NodeRequest("job", count, 0.0))
            assert slurm.choose(free, count) == mine, (free, count)
