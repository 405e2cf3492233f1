"""``python -m ringlight.extensions.slurm.cluster``: a lab's Slurm cluster, each process of which is kept running.

Its files are in the lab's state. The lab's controller reads there which processes have ended, for its health.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from ringlight.extensions.slurm import files, nodes
from ringlight.extensions.slurm.partitions import (
    Partition,
    SlurmError,
    most_at_a_switch,
)
from ringlight.extensions.slurm.process import FOLDER, SlurmCluster, read_cluster
from ringlight.extensions.slurm.rest import call
from ringlight.extensions.slurm.scontrol import slurm
from ringlight.extensions.slurm.site import FOLLOWER_PATH, Site
from ringlight.extensions.slurm.slurm_conf import ClusterSettings
from ringlight.extensions.slurm.status import Status
from ringlight.extensions.slurm.steps import end_steps, end_tasks
from ringlight.testbed.lab import Lab
from ringlight.testbed.process_start import Process, importing, start_process
from ringlight.testbed.supervision import Start, Supervisor, answers, last_line

log = logging.getLogger(__name__)

#: Longest wait for a process to serve its clients, and for all nodes to register, seconds.
READY_S, NODES_S = 15.0, 60.0
#: So long processes have for an orderly end, seconds. Nothing of theirs is needed after the lab.
STOP_S = 0.2
_LOOK_S = 0.05
#: What ``sinfo`` calls nodes that are registered.
_REGISTERED = {"idle", "alloc", "mix", "comp", "drain", "drng", "plnd", "resv"}


class ClusterProcesses:
    """The processes of a cluster: munged, slurmctld, a slurmd for each GPU, and the follower of light.

    ``site``: the lab as its programs know it. ``stopping``: set when it is to end.
    """

    def __init__(
        self,
        lab: Lab,
        settings: ClusterSettings,
        site: Site,
        stopping: threading.Event,
    ) -> None:
        self._lab, self._settings, self._site = lab, settings, site
        self._stopping = stopping
        self._directory = settings.directory
        self._environment = importing(
            {**lab.environment(), "SLURM_CONF": f"{self._directory}/slurm.conf"}
        )
        self.status = Status(self._directory, starting="Slurm is starting")

    def run(self) -> None:
        """Start all processes, and keep them running until the cluster is to end. Raises SlurmError, OSError."""
        with ExitStack() as undo:
            undo.callback(end_steps, self._directory)
            munge = self._munge()
            self._keep(undo, {"munged": _munged(munge)})
            self._await("munged", partial(answers, munge))
            self._keep(undo, {"slurmctld": _slurmctld(self._directory)})
            self._await(
                "slurmctld", partial(answers, ("127.0.0.1", self._settings.port))
            )
            self._keep(undo, {"follower": _follower()})
            self._keep_nodes(undo)
            self._await_nodes()
            self._await_follower()
            self.status.change(starting=None)
            self._stopping.wait()
            # While Slurm can still tell those who wait for them.
            end_tasks(self._directory)

    def _munge(self) -> Path:
        """Make the folder of munged, with a key that only root reads. Return the path of its socket."""
        socket = self._settings.munge
        assert socket is not None
        socket.parent.mkdir(mode=0o755, exist_ok=True)
        key = socket.with_name("munge.key")
        if not key.exists():
            with open(
                os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(secrets.token_bytes(128))
        # What a killed one has left.
        socket.unlink(missing_ok=True)
        return socket

    def _start(
        self, name: str, command: list[str], more: Mapping[str, str] = {}
    ) -> Process:
        """Start a process that ends with this one, and return it."""
        with self._output(name).open("ab") as output:
            environment = {**self._environment, **more}
            return start_process(command, environment, output, follow=signal.SIGKILL)

    def _output(self, name: str) -> Path:
        """Return the file of a process's output."""
        return self._directory / f"{name.replace(' ', '-')}.out"

    def _keep_nodes(self, undo: ExitStack) -> None:
        """Start slurmd of each GPU, and keep them running until ``undo`` is closed."""
        starts: dict[str, Start] = {}
        for gpu in self._settings.nodes:
            path = nodes.NAMESPACES / self._lab.namespace(gpu)
            more = nodes.environment({}, gpu, str(path))
            command = nodes.command(self._directory, gpu)
            name = f"slurmd of {gpu}"
            starts[name] = partial(self._start, name, command, more)
        self._supervise(undo, starts)

    def _keep(self, undo: ExitStack, commands: Mapping[str, list[str]]) -> None:
        """Start processes, and keep them running until ``undo`` is closed."""
        starts = {
            name: partial(self._start, name, command)
            for name, command in commands.items()
        }
        self._supervise(undo, starts)

    def _supervise(self, undo: ExitStack, starts: Mapping[str, Start]) -> None:
        kept = Supervisor(
            "Slurm's",
            starts,
            lambda name, pid, _: self.status.runs(name, pid),
            lambda name: last_line(self._output(name)),
            STOP_S,
            on_end=lambda name, how, _: self.status.ended(name, how),
        )
        undo.callback(kept.stop)
        for name, life in kept.lives().items():
            self.status.runs(name, life.pid)

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not ready() and not self._stopping.is_set():
            if time.monotonic() > deadline:
                raise SlurmError(
                    f"{name} was not ready after {READY_S:g} s; its log is in {self._directory}"
                )
            self._stopping.wait(_LOOK_S)

    def _await_nodes(self) -> None:
        """Wait until Slurm has all nodes."""
        deadline = time.monotonic() + NODES_S
        while not self._stopping.is_set():
            if not (missing := self._missing()):
                return
            self.status.change(starting=f"Slurm waits for node {missing[0]}")
            if time.monotonic() > deadline:
                raise SlurmError(
                    f"node {missing[0]} did not register within {NODES_S:g} s"
                )
            self._stopping.wait(_LOOK_S)

    def _await_follower(self) -> None:
        """Wait until the follower has light and GPUs. Health names what hinders it."""
        self.status.change(starting="Slurm waits for its follower of light")
        deadline = time.monotonic() + READY_S
        while not self._stopping.is_set() and time.monotonic() < deadline:
            with suppress(SlurmError):
                report = call(self._site, "GET", FOLLOWER_PATH)
                if report["generation"] is not None or not self._settings.follows:
                    return
            self._stopping.wait(_LOOK_S)

    def _missing(self) -> list[str]:
        """Return the nodes that Slurm does not have yet."""
        words = ("sinfo", "-h", "-N", "-o", "%N %t")
        try:
            lines = slurm(*words, environment=self._environment).split("\n")
        except SlurmError:
            return list(self._settings.nodes)
        states = dict(line.split() for line in lines if line)
        return [
            node
            for node in self._settings.nodes
            if states.get(node, "").strip("*") not in _REGISTERED
        ]


def _munged(socket: Path) -> list[str]:
    files_of = {
        name: socket.with_name(f"munge.{name}")
        for name in ("key", "pid", "log", "seed")
    }
    options = [f"--{name}-file={path}" for name, path in files_of.items()]
    return ["/usr/sbin/munged", "--foreground", f"--socket={socket}", *options]


def _slurmctld(directory: Path) -> list[str]:
    return ["/usr/sbin/slurmctld", "-D", "-i", "-f", f"{directory}/slurm.conf"]


def _follower() -> list[str]:
    return [sys.executable, "-m", "ringlight.experiments.cli.app", "slurm", "follow"]


def settings_of(lab: Lab, plan: SlurmCluster) -> tuple[ClusterSettings, Site]:
    """Return the settings of a lab's cluster, and what its programs know. Raises SlurmError, ValueError."""
    from ringlight.testbed.emulation.__main__ import load_fabric

    fabric = load_fabric(lab.state_dir / "fabric.json")
    gpus = tuple(fabric.packet_gpus)
    links = [(link.a.node, link.b.node) for link in fabric.links]
    most = most_at_a_switch(
        fabric.packet_switches, gpus, fabric.optical_switches, links
    )
    limit = most if plan.mode == "lead" else None
    partitions = (Partition(plan.partition, plan.mode, gpus, limit),)
    directory = lab.state_dir / FOLDER
    munge = directory / "munge" / "munge.socket"
    settings = ClusterSettings(
        directory, gpus, partitions, plan.port, munge, lab=lab.id
    )
    addresses = {name: fabric.gpus[name].ip for name in gpus}
    return settings, Site(
        plan.controller,
        partitions,
        addresses,
        plan.token_file,
        plan.cacert,
        own_certificate=plan.cacert is not None,
    )


def main() -> int:
    """Run the cluster of a lab until SIGTERM. Return the exit code."""
    lab, plan, ready = Lab(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s slurm %(levelname)s %(message)s"
    )
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        settings, site = settings_of(lab, read_cluster(plan))
        settings.directory.mkdir(mode=0o755, exist_ok=True)
        # Users without root read slurm.conf and reach munged; the lab's other files are root's.
        lab.state_dir.chmod(0o711)
        cluster = ClusterProcesses(lab, settings, site, stopping)
        ready.touch()
        try:
            files.write(settings, site)
            cluster.run()
        except (SlurmError, OSError) as error:
            # For the lab's health.
            cluster.status.change(f"Slurm: {error}")
            raise
    except (SlurmError, OSError, ValueError) as error:
        sys.stderr.write(f"slurm: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
