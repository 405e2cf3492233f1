"""A lab with a Slurm cluster, as ``up --slurm`` makes it, for tests and benchmarks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ringlight.extensions.interchange.hostlists import expand
from ringlight.testbed.lab import STATE_ROOT
from tests.integration.controller_rig import free_port

ROOT = Path(__file__).resolve().parents[3]
RINGLIGHT = [sys.executable, "-m", "ringlight.experiments.cli.app"]
SCENARIO = ROOT / "scenarios/disaggregation.yaml"
#: GPUs of the scenario, and the ports of their packet switches at the beginning.
HOME = {
    "g0": "tor0:1",
    "g1": "tor0:2",
    "g2": "tor0:3",
    "g3": "tor1:1",
    "g4": "tor1:2",
    "g5": "tor1:3",
}
#: Longest wait for anything, seconds.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class SlurmLab:
    """``api``: client of the controller. ``folder``: of slurm.conf."""

    api: httpx.Client
    name: str
    folder: Path

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the document of the answer, which must be none of an error."""
        answer = self.api.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()

    def slurm(self, *words: str) -> str:
        """Return what a command of Slurm prints. slurmctld drops some calls while it is reconfigured."""
        for _ in range(3):
            done = self._slurm(words)
            if "Zero Bytes" not in done.stderr:
                break
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def _slurm(self, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={**os.environ, "SLURM_CONF": f"{self.folder}/slurm.conf"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def light(self, circuits: Mapping[str, str]) -> int:
        """Light these circuits and no others, by GPU. Return the generation of the light."""
        body = {"circuits": [list(pair) for pair in circuits.items()]}
        return int(self.call("PUT", "/v1/circuits", body)["generation"])

    def leaves(self) -> dict[str, str]:
        """Return the nodes of each leaf of the topology that Slurm has, as hostlists."""
        text = self.slurm("scontrol", "--oneliner", "show", "topology")
        return dict(re.findall(r"SwitchName=(\S+) Level=0 .*Nodes=(\S+)", text))

    def states(self) -> dict[str, str]:
        """Return the state of each node, such as ``IDLE+DRAIN``."""
        text = self.slurm("scontrol", "--oneliner", "show", "nodes")
        return dict(re.findall(r"NodeName=(\S+) .* State=(\S+)", text))

    def reason(self, node: str) -> str:
        """Return why a node is drained."""
        words = ("--noheader", f"--nodes={node}", "--format=%E")
        return self.slurm("sinfo", *words).strip()

    def submit(self, command: str, *words: str) -> str:
        """Submit a batch job. Return its number."""
        options = ("--parsable", "--output=/dev/null", "--chdir=/tmp")
        return self.slurm("sbatch", *options, *words, "--wrap", command).strip()

    def job(self, number: str) -> tuple[str, list[str]]:
        """Return the state of a job and its nodes."""
        text = self.slurm("scontrol", "--oneliner", "show", "job", number)
        fields = dict(re.findall(r" (JobState|NodeList)=(\S+)", text))
        nodes = fields.get("NodeList", "(null)")
        return fields["JobState"], [] if nodes == "(null)" else expand(nodes)

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until all nodes are free."""
        self.slurm("scancel", "--user=root")
        self.until(lambda: not self.slurm("squeue", "--noheader").strip(), "no job")

    def fault(self, do: str, target: str, **more: Any) -> None:
        self.call("POST", "/v1/faults", {"do": do, "target": target, **more})

    def health(self) -> str:
        """Return the reasons of the health, a line each."""
        return "\n".join(self.call("GET", "/v1/health")["reasons"])

    def follower(self) -> dict[str, Any]:
        """Return what the follower reported last; empty if it has not."""
        try:
            answer = self.api.get("/v1/slurm/follower")
        except httpx.TransportError:
            return {}
        return dict(answer.json()) if answer.is_success else {}

    def pid(self, name: str) -> int:
        """Return the id of a process of the cluster: ``follower``, ``slurmctld``."""
        return int(json.loads((self.folder / "status.json").read_text())["pids"][name])

    @contextmanager
    def frozen_controller(self) -> Iterator[None]:
        """Ringlight's controller stands still in the block."""
        inventory = json.loads((self.folder.parent / "inventory.json").read_text())
        pid = inventory["processes"]["controller"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def until(
        self,
        true: Callable[[], object],
        what: str,
        timeout_s: float = PATIENCE_S,
        pace_s: float = 0.02,
    ) -> float:
        """Wait until it is true. Return how long it took, seconds."""
        began = time.monotonic()
        while not true():
            if time.monotonic() - began > timeout_s:
                try:
                    health = self.health()
                except httpx.TransportError as error:
                    health = f"no answer: {error}"
                raise AssertionError(
                    f"{what}: not within {timeout_s:g} s; health: {health}"
                )
            time.sleep(pace_s)
        return time.monotonic() - began


def free_ports(count: int) -> int:
    """Return the first of so many TCP ports in a row that are free."""
    while True:
        first = free_port()
        if first + count < 60000 and all(_is_free(first + n) for n in range(count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def down(name: str) -> None:
    """End a lab with the command of its users."""
    _ringlight("down", name)


@contextmanager
def slurm_lab(
    mode: str, *more: str, end: Callable[[str], object] = down
) -> Iterator[SlurmLab]:
    """A lab of the scenario with a cluster of six nodes, ended with the context.

    ``more``: options of ``up``. ``end``: ends a lab, by its id.
    """
    rest, openflow = (f"127.0.0.1:{free_port()}" for _ in range(2))
    words = ["--json", "--rest", rest, "--openflow", openflow, "--slurm", *more]
    words += ["--slurm-mode", mode, "--slurm-port", str(free_ports(7))]
    name = json.loads(_ringlight("up", str(SCENARIO), *words))["lab"]
    try:
        with httpx.Client(
            base_url=f"http://{rest}", timeout=20.0, trust_env=False
        ) as api:
            lab = SlurmLab(api, name, STATE_ROOT / name / "slurm")
            lab.until(lambda: _is_ready(lab), "six idle nodes")
            yield lab
    finally:
        end(name)


def _is_ready(lab: SlurmLab) -> bool:
    if not (lab.folder / "slurm.conf").exists():
        return False
    try:
        return list(lab.states().values()) == ["IDLE"] * 6 and bool(lab.follower())
    except AssertionError:
        # slurmctld does not answer yet.
        return False


def _ringlight(*words: str) -> str:
    done = subprocess.run(
        [*RINGLIGHT, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout
