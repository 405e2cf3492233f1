"""A Slurm cluster beside a lab that an experiment has built, for the length of a run."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from shutil import rmtree

from ringlight import IMPORT_PATH
from ringlight.extensions.slurm.partitions import Mode, SlurmError
from ringlight.extensions.slurm.process import FOLDER, PARTITION, SlurmCluster
from ringlight.extensions.slurm.scontrol import slurm
from ringlight.extensions.slurm.slurm_conf import PORT
from ringlight.extensions.slurm.status import read_status
from ringlight.extensions.slurm.steps import end_steps
from ringlight.extensions.slurm.task import SCRIPT
from ringlight.testbed.process_start import Process, end_process
from ringlight.testbed.processes import LabProcesses

#: Longest wait for the cluster to be ready, and for its end, seconds.
READY_S, END_S = 90.0, 20.0
_LOOK_S = 0.05
#: Slurm's ports are below it, where the kernel gives none to clients.
LAST_PORT = 32_000
_LINE = re.compile(r"\[([0-9T:.-]+)\] (.*)")
#: What slurmctld logs of a job, by what it means.
_EVENTS = {
    "main": re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)"),
    "backfill": re.compile(
        r"sched/backfill: _start_job: Started JobId=(\d+) in \S+ on (\S+)"
    ),
    "requeued": re.compile(r"_?(?:job_)?requeue: .*JobId=(\d+)()"),
    "done": re.compile(r"_job_complete: JobId=(\d+) done()"),
}


@dataclass(frozen=True)
class LogEvent:
    """A line of slurmctld about a job. ``t``: CLOCK_MONOTONIC seconds. ``what``: main or backfill, which started
    it, requeued or done. ``nodes``: a hostlist, "" if the line has none."""

    t: float
    what: str
    id: int
    nodes: str


class LabCluster:
    """Slurm on the GPUs of a lab. ``nodes``: their number. ``logs``: folder for its logs, which stay."""

    def __init__(
        self, processes: LabProcesses, mode: Mode, nodes: int, logs: Path
    ) -> None:
        self._lab, self._logs, self._nodes = processes.lab, logs, nodes
        self._addresses = processes.addresses
        self.directory = self._lab.state_dir / FOLDER
        self._mode = mode
        self._process: Process | None = None
        self._read_bytes = 0
        self.environment = {
            **os.environ,
            "SLURM_CONF": f"{self.directory}/slurm.conf",
            "PYTHONPATH": str(IMPORT_PATH),
            "RINGLIGHT_PYTHON": sys.executable,
        }

    def start(self) -> None:
        """Start the cluster, and return when all nodes are idle. Raises SlurmError, OSError."""
        token = self._addresses.token
        token_file = self._lab.state_dir / "slurm.token"
        if token:
            with open(token_file, "w", opener=_for_root, encoding="utf-8") as file:
                file.write(token)
        plan = SlurmCluster(
            mode=self._mode,
            port=free_ports(self._nodes + 1),
            partition=PARTITION,
            controller=self._addresses.url,
            cacert=self._addresses.cacert,
            token_file=str(token_file) if token else None,
            log=self._logs / "slurm.log",
        )
        plan.write(self._lab.state_dir / f"{FOLDER}-plan.json")
        self._process = plan.start(self._lab, self._lab.state_dir / "slurm.ready")
        deadline = time.monotonic() + READY_S
        while (wait := self._awaited()) is not None:
            if (code := self._process.poll()) is not None:
                raise SlurmError(f"Slurm ended with code {code}; see {plan.log}")
            if time.monotonic() > deadline:
                raise SlurmError(f"{wait}, still after {READY_S:.0f} s; see {plan.log}")
            time.sleep(_LOOK_S)

    def _awaited(self) -> str | None:
        with suppress(OSError, ValueError):
            status = read_status(self._lab)
            return "Slurm is starting" if status is None else status["starting"]
        return "Slurm is starting"

    def check(self) -> None:
        """Raise SlurmError if the cluster has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise SlurmError(f"Slurm ended with code {code}; see {self._logs}")

    def stop(self) -> None:
        """End the cluster with all of its jobs, and remove its files but the logs. May be called again."""
        if self._process is not None:
            end_process(self._process, END_S)
            self._process = None
        # A cluster that was killed has not ended its steps.
        end_steps(self.directory)
        for log in self.directory.glob("*.log"):
            target = self._logs / f"slurm-{log.name}"
            with suppress(OSError), target.open("ab") as file:
                file.write(log.read_bytes())
        rmtree(self.directory, ignore_errors=True)

    def version(self) -> str:
        """Return Slurm's version. Raises SlurmError."""
        return slurm("sinfo", "--version", environment=self.environment).split()[-1]

    def submit(
        self,
        name: str,
        nodes: int,
        options: Sequence[str],
        document: Mapping[str, object],
    ) -> int:
        """Submit a job of a task a node, and return its id. ``document``: of ``job.json``. Raises SlurmError."""
        folder = self.folder(name)
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps(document), encoding="utf-8")
        script = folder / "script"
        script.write_text(SCRIPT, encoding="utf-8")
        words = [f"--job-name={name}", f"--nodes={nodes}", "--ntasks-per-node=1"]
        words += [f"--output={folder}/output", f"--chdir={folder}", *options]
        environment = {**self.environment, "RINGLIGHT_JOB": str(folder)}
        words = ["sbatch", "--parsable", *words, str(script)]
        return int(slurm(*words, environment=environment).split(";")[0])

    def folder(self, name: str) -> Path:
        """Return the folder of a job."""
        return self.directory / "jobs" / name

    def events(self) -> Iterator[LogEvent]:
        """Yield what slurmctld has logged about jobs since the last call."""
        with (
            suppress(FileNotFoundError),
            (self.directory / "slurmctld.log").open("rb") as file,
        ):
            file.seek(self._read_bytes)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            self._read_bytes += whole
            offset_s = time.time() - time.monotonic()
            for line in data[:whole].decode(errors="replace").splitlines():
                yield from _event(line, offset_s)


def _event(line: str, offset_s: float) -> Iterator[LogEvent]:
    if (stamped := _LINE.match(line)) is None:
        return
    for what, pattern in _EVENTS.items():
        if (words := pattern.match(stamped[2])) is not None:
            t = datetime.fromisoformat(stamped[1]).timestamp() - offset_s
            yield LogEvent(t, what, int(words[1]), words[2])


def free_ports(count: int) -> int:
    """Return the first of so many TCP ports in a row on which nobody listens. Raises SlurmError."""
    for first in range(PORT, LAST_PORT, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                place = stack.enter_context(socket.socket())
                place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                place.bind(("127.0.0.1", port))
            return first
    raise SlurmError(f"no {count} free ports in a row from {PORT} on")


def _for_root(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
