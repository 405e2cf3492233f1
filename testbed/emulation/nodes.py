"""Mininet nodes: containers and namespaces as hosts, Open vSwitch bridges and optical switches.

Mininet starts a shell behind a pseudo-terminal for each node and configures through it. Here no node has
one: settings are made by netlink (:mod:`testbed.emulation.kernel.netlink`) and bridges in one transaction, so
that bring-up does not grow by a handful of processes per node. ``node.cmd`` and ``node.popen`` still work.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from mininet.link import Intf, Link
from mininet.node import Host, Node, OVSSwitch
from pyroute2.iproute import IPRoute

from ringlight import IMPORT_PATH
from ringlight.fabric.parts import OURS
from ringlight.testbed.descriptors import too_few
from ringlight.testbed.emulation.docker_containers import CONFINED, exit_or_signal, remove_container
from ringlight.testbed.emulation.guests import Guest, GuestPlan
from ringlight.testbed.emulation.kernel import netlink
from ringlight.testbed.emulation.kernel.netns import HELD_GROUP
from ringlight.testbed.emulation.residents import Orders
from ringlight.testbed.forkserver import Process, pidfd_of, start_process
from ringlight.testbed.lab import (
    CONTAINER_LABEL,
    ENVIRONMENT,
    GPU_LABEL,
    JOB_LABEL,
    OVS_LABEL,
    RANK_LABEL,
    Lab,
)
from ringlight.testbed.priority import favour
from ringlight.testbed.supervision import ended

#: Neither a user of the machine nor of the image: a worker owns its own directory and nothing else.
WORKER_UID = 61000
MEMORY_BYTES = 512 << 20
PIDS = 128
#: Longest pause before a bridge tries its controller again, milliseconds.
RECONNECT_MS = 1000
STDERR_TAIL_BYTES = 4096
#: Longest wait until Docker knows how a container ended, seconds: where hundreds end, it is late.
OUTCOME_S = 30


class WorkerError(RuntimeError):
    """A worker could not be started; one line that says why."""


@dataclass(frozen=True)
class Outcome:
    """Result of a worker that has ended. ``exit_code``: None if a signal ended the worker."""

    exit_code: int | None
    signal: int | None
    oom: bool
    error: str | None
    stderr_tail: str


class ShellLess(Node):  # type: ignore[misc]
    """A node without a shell. ``namespace``: descriptor of its network namespace, None for the machine's."""

    namespace: int | None = None
    lab: Lab

    def link_group(self, _interface: str) -> int:
        """Return the kernel's interface group for one of the node's interfaces."""
        return self.lab.link_group

    @classmethod
    def checkSetup(cls) -> None:
        """Mininet looks for ifconfig and starts ovs-vsctl here; neither is needed."""

    def startShell(self, mnopts: str | None = None) -> None:
        """There is none."""

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        """Run one command, without a shell, in the node's namespace. Return what the command printed.

        Mininet's own calls of ifconfig are left out, because netlink does that work.
        """
        words = shlex.split(" ".join(str(word) for word in args))
        if not words or words[0] == "ifconfig":
            return ""

        def run() -> str:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=30,
                check=False,
            )
            return done.stdout

        return run() if self.namespace is None else netlink.in_namespace(self.namespace, run)


class Jack(Intf):  # type: ignore[misc]
    """One end of a cable. It is configured by whoever plugs it."""

    def config(self, **_params: Any) -> dict[str, Any]:
        return {}

    def delete(self) -> None:
        self.node.delIntf(self)
        self.link = None


class Cable(Link):  # type: ignore[misc]
    """A veth pair whose ends are born in the nodes' namespaces."""

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,
    ) -> None:
        with IPRoute() as root:
            netlink.create_veth(
                root,
                intfname1,
                intfname2,
                group=node1.link_group(intfname1),
                namespace=node1.namespace,
                peer_namespace=node2.namespace,
                peer_mac=addr2,
            )


class OpenCable:
    """The end here of a link whose other end is elsewhere; as a cable, which has two."""

    def __init__(self, node: ShellLess, port: int, name: str) -> None:
        self.intf1 = self.intf2 = Jack(name, node=node, port=port, moveIntfFn=lambda *_: None)

    def delete(self) -> None:
        """Mininet is to forget it."""
        self.intf1.delete()


class PacketSwitch(ShellLess, OVSSwitch):  # type: ignore[misc]
    """An Open vSwitch bridge under OpenFlow 1.3 whose port numbers are the fabric's.

    Without a controller it forwards nothing (fail mode secure), unless it is to do without one
    (``controller``: none), and then learns and floods. ``qos``: the record that tells Open vSwitch
    to leave queueing to others; without it the shaping of a port would be removed as the port is added.
    ``carried``: a device forwards by its tables, which it reads with OpenFlow 1.5.
    """

    def __init__(
        self,
        name: str,
        *,
        lab: Lab,
        dpid: int,
        qos: str = "@noop",
        controller: str = OURS,
        carried: bool = False,
        **params: Any,
    ) -> None:
        # Others' applications may be older than ours.
        protocols = "OpenFlow13" if controller == OURS else "OpenFlow10,OpenFlow13"
        self.lab = lab
        self.controller = controller
        self.qos = qos
        self.commands: list[str] = []
        params.pop("listenPort", None)
        super().__init__(
            name,
            dpid=f"{dpid:x}",
            failMode="standalone" if controller == "none" else "secure",
            datapath="kernel" if has_kernel_datapath() else "user",
            protocols=f"{protocols},OpenFlow15" if carried else protocols,
            reconnectms=RECONNECT_MS,
            batch=True,
            **params,
        )

    @classmethod
    def isOldOVS(cls) -> bool:
        return False

    def bridgeOpts(self) -> str:
        return f"{super().bridgeOpts()} external_ids:{OVS_LABEL}={self.lab.id}"

    def intfOpts(self, intf: Jack) -> str:
        options = f"{super().intfOpts(intf)} mtu_request={netlink.MTU_BYTES}"
        return f"{options} -- set Port {intf} qos={self.qos}"

    def add_port_command(self, intf: Jack) -> list[str]:
        """Return the part of an ovs-vsctl command that adds a port."""
        return shlex.split(f"-- add-port {self} {intf}{self.intfOpts(intf)}")

    def take_commands(self) -> list[str]:
        """Return the words of one ovs-vsctl command that does what :meth:`start` has left to be done."""
        words = shlex.split(" ".join(self.commands))
        self.commands.clear()
        return words


@dataclass(frozen=True)
class ControllerAddress:
    """Address of the controller that bridges connect to; it need not listen yet."""

    host: str
    port: int
    name: str = "c0"
    protocol: str = "tcp"

    def IP(self) -> str:
        return self.host

    @classmethod
    def parse(cls, text: str) -> ControllerAddress:
        """Parse ``host:port`` or ``tcp:host:port``. Return the address."""
        host, _, port = text.removeprefix("tcp:").rpartition(":")
        return cls(host, int(port))

    @property
    def target(self) -> str:
        """Address as Open vSwitch writes it."""
        return f"{self.protocol}:{self.host}:{self.port}"


class DeviceNode(ShellLess):
    """The network namespace of a device that is a process; its port p is the interface ``p<p>`` in it."""

    def __init__(self, name: str, *, lab: Lab, netns: str, **params: Any) -> None:
        self.lab = lab
        self.netns = netns
        self.namespace = netlink.create_namespace(netns)
        super().__init__(name, **params)

    def terminate(self) -> None:
        """Forget the namespace; it ends when the device's process has."""
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
            netlink.delete_namespace(self.netns)
        super().terminate()


class IdleHost(DeviceNode):
    """The network namespace on a GPU's NIC while no worker holds the GPU; nothing runs in it by itself."""

    def __init__(self, name: str, *, gpu: str, **params: Any) -> None:
        self.gpu = gpu
        super().__init__(name, **params)


class OpticalNode(DeviceNode):
    """An optical switch. ``held``: interfaces that are to stay down."""

    def __init__(self, name: str, **params: Any) -> None:
        self.held: set[str] = set()
        super().__init__(name, **params)

    def link_group(self, interface: str) -> int:
        return HELD_GROUP if interface in self.held else super().link_group(interface)


def has_kernel_datapath() -> bool:
    """Return whether Open vSwitch can forward in the kernel. Otherwise it forwards in its own process."""
    return Path("/sys/module/openvswitch").exists()


@dataclass(frozen=True)
class WorkerPlace:
    """Names, directory on this machine, and command of a worker process.

    In ``command`` the word ``{job}`` stands for the worker's directory as the worker sees it. ``onic``: the
    directory with the flow socket of its GPU's O-NIC, which a container sees as ``/onic``. ``checkpoint``:
    the directory for the states of its job, next to ``directory``. ``guest``: plan of the program that runs
    next to the worker, in the same network. ``residence``: home of a worker that stays, whose attempts use
    ``directory`` in turn.
    """

    id: str
    job: str
    rank: int
    gpu: str
    directory: Path
    command: tuple[str, ...]
    image: str | None = None
    onic: Path | None = None
    checkpoint: Path | None = None
    guest: GuestPlan | None = None
    residence: Path | None = None

    @property
    def home(self) -> Path:
        """The directory that its process sees as its own; the host is called as it is."""
        return self.residence or self.directory


class WorkerHost(ShellLess):
    """A host that is one worker. Start it, then plug its NIC; ``pidfd`` becomes readable when it dies.

    ``uid``: the user that it runs as and that owns its directory.
    """

    uid = WORKER_UID

    def __init__(self, name: str, *, lab: Lab, place: WorkerPlace, **params: Any) -> None:
        self.lab = lab
        self.place = place
        self.pidfd: int | None = None
        self.guest: Guest | None = None
        #: Where it stays, who tells it what to run.
        self.orders: Orders | None = None
        super().__init__(name, **params)

    @property
    def gpu(self) -> str:
        """Name of the GPU whose NIC it is."""
        return self.place.gpu

    @property
    def checkpoint(self) -> str:
        """The directory for its job's states as the worker sees it."""
        raise NotImplementedError

    def launch(self) -> None:
        """Create and start it. Raises WorkerError."""
        raise NotImplementedError

    def outcome(self) -> Outcome:
        """Return how the worker ended. Call it once ``pidfd`` is readable."""
        raise NotImplementedError

    def remove(self) -> None:
        """End it if it runs, and remove all but its directory."""
        raise NotImplementedError

    def _found(self, pid: int) -> None:
        self.pid = pid
        favour()

    def kill(self) -> None:
        """SIGKILL to the worker's first process, and its guest's; no harm when it is gone."""
        if self.guest is not None:
            self.guest.kill()
        pidfd = self.pidfd
        if pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptors; the namespace ends with the last of them."""
        if self.orders is not None:
            self.orders.close()
        for descriptor in (self.namespace, self.pidfd):
            if descriptor is not None:
                os.close(descriptor)
        self.namespace = self.pidfd = None


class DockerHost(WorkerHost):
    """A worker in a Docker container without any network but what is plugged into it.

    No capabilities, no way to gain any, a read-only root file system, an unprivileged user, bounded memory
    and processes; its own directory at /job is the only place it can write to, and its job's at /checkpoint.

    Docker is told that there is no network at all: the container then has an empty network namespace made
    by the kernel, without Docker's own set-up of it, which takes half of the time of a start (measured for
    8 containers on two busy cores: 0.6 s instead of 1.4 s).
    """

    def __init__(self, name: str, *, api: docker.APIClient, **params: Any) -> None:
        self.api = api
        self.container: str | None = None
        super().__init__(name, **params)

    @property
    def checkpoint(self) -> str:
        return "/checkpoint"

    def launch(self) -> None:
        place = self.place
        what = f"container {self.lab.container(place.home.name)}"
        try:
            self._create()
            self.api.start(self.container)
            state = self.api.inspect_container(self.container)["State"]
        except docker.errors.ImageNotFound:
            raise WorkerError(f"{what}: there is no image {place.image}") from None
        except (docker.errors.APIError, docker.errors.DockerException) as error:
            raise WorkerError(f"{what}: {docker_reason(error)}") from None
        except (requests.RequestException, OSError) as error:
            why = too_few(error) or f"Docker does not answer: {type(error).__name__}"
            raise WorkerError(f"{what}: {why}") from None
        try:
            if not state["Pid"]:
                raise ProcessLookupError
            pid = int(state["Pid"])
            self.pidfd = os.pidfd_open(pid)
            self.namespace = netlink.open_namespace(pid)
            self._found(pid)
            if netlink.is_own_namespace(self.namespace):
                raise WorkerError(f"{what}: Docker gave it the machine's own network")
        except (ProcessLookupError, netlink.NetworkError):
            ended = self.outcome()
            raise WorkerError(f"{what} ended at once: {describe(ended)}") from None

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the containers of its rank."""
        place = self.place
        return {
            CONTAINER_LABEL: self.lab.id,
            GPU_LABEL: place.gpu,
            JOB_LABEL: place.job,
            RANK_LABEL: str(place.rank),
        }

    def _create(self) -> None:
        place, lab = self.place, self.lab
        binds = {str(place.home): {"bind": "/job", "mode": "rw"}}
        if place.onic is not None:
            binds[str(place.onic)] = {"bind": "/onic", "mode": "ro"}
        if place.checkpoint is not None:
            binds[str(place.checkpoint)] = {"bind": self.checkpoint, "mode": "rw"}
        limits = self.api.create_host_config(
            network_mode="none",
            ipc_mode="none",
            **CONFINED,
            mem_limit=MEMORY_BYTES,
            pids_limit=PIDS,
            binds=binds,
            log_config={"type": "json-file", "config": {"max-size": "1m", "max-file": "1"}},
        )
        self.container = self.api.create_container(
            place.image,
            [word.replace("{job}", "/job") for word in place.command],
            name=lab.container(place.home.name),
            hostname=place.gpu,
            user=f"{WORKER_UID}:{WORKER_UID}",
            environment={ENVIRONMENT: lab.id, **worker_environment()},
            labels=self.labels,
            network_disabled=True,
            stop_signal="SIGKILL",
            host_config=limits,
        )["Id"]

    def outcome(self) -> Outcome:
        """Wait for the exit status from Docker, which learns of a death a moment after the kernel. Return how
        the worker ended."""
        try:
            code, number = exit_or_signal(int(self.api.wait(self.container, timeout=OUTCOME_S)["StatusCode"]))
            state = self.api.inspect_container(self.container)["State"]
            log = self.api.logs(self.container, stdout=False, stderr=True, tail=50)
        except docker.errors.APIError as error:
            return Outcome(None, None, False, f"Docker: {docker_reason(error)}", "")
        except (requests.RequestException, OSError) as error:
            return Outcome(None, None, False, f"Docker does not answer: {type(error).__name__}", "")
        tail = log.decode(errors="replace")[-STDERR_TAIL_BYTES:]
        oom = bool(state["OOMKilled"])
        return Outcome(code, number, oom, state.get("Error") or None, tail)

    def remove(self) -> None:
        self.kill()
        if self.guest is not None:
            self.guest.remove()
        if self.container is not None:
            remove_container(self.api, self.container)
            self.container = None
        self.close()


class NamespaceHost(WorkerHost, Host):  # type: ignore[misc]
    """A worker as a process in a network namespace of its own, for machines without Docker.

    It has no capabilities and cannot gain any, and runs as an unprivileged user where that user can read
    the program, else as root without the powers of root (it may then still write to files of root). Unlike
    a container it sees the machine's file system and processes.
    """

    def __init__(self, name: str, *, environment: Mapping[str, str], **params: Any) -> None:
        self.environment = environment
        self.process: Process | None = None
        self._reap = threading.Lock()
        self.netns: str | None = None
        self.uid = WORKER_UID if program_is_readable() else 0
        super().__init__(name, **params)

    @property
    def checkpoint(self) -> str:
        """Path of its checkpoint from its own directory: the worker may not pass through the lab's."""
        return f"../{self.place.checkpoint.name}" if self.place.checkpoint is not None else ""

    def launch(self) -> None:
        place = self.place
        self.netns = self.lab.namespace(place.home.name)
        try:
            netlink.delete_namespace(self.netns)
            descriptor = netlink.create_namespace(self.netns)
        except netlink.NetworkError as error:
            raise WorkerError(f"worker {place.id}: {error}") from None
        command = [word.replace("{job}", ".") for word in place.command]
        environment = {**self.environment, **worker_environment()}

        def start() -> Process:
            # Its namespace is that of the thread that starts it.
            with (place.home / "stderr.txt").open("wb") as errors, open(os.devnull, "wb") as nowhere:
                return start_process(
                    command, environment, nowhere, errors=errors, directory=place.home, user=self.uid
                )

        try:
            self.process = netlink.in_namespace(descriptor, start)
            # Not asked for by its number: it may have ended, or not be there yet.
            self.pidfd, self.namespace = pidfd_of(self.process), os.dup(descriptor)
            self._found(self.process.pid)
        except (OSError, netlink.NetworkError) as error:
            raise WorkerError(f"worker {place.id}: {error}") from None
        finally:
            os.close(descriptor)

    def outcome(self) -> Outcome:
        assert self.process is not None
        with self._reap:
            try:
                code = self.process.wait(5)
            except subprocess.TimeoutExpired:
                return Outcome(None, None, False, "the process does not end", "")
        try:
            tail = (self.place.home / "stderr.txt").read_text(errors="replace")[-STDERR_TAIL_BYTES:]
        except OSError as error:
            tail = f"(no stderr: {error.strerror})"
        return Outcome(None if code < 0 else code, -code if code < 0 else None, False, None, tail)

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            # The worker leads a session of its own: whatever it started ends with it.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            # Where it was forked, it may not have come to lead one yet.
            self.process.kill()
            with self._reap:
                self.process.wait(5)
        self.close()
        if self.netns is not None:
            netlink.delete_namespace(self.netns)


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker: one thread for numerics, and no attempt to write compiled files."""
    return {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@cache
def program_is_readable() -> bool:
    """Return whether any user may run this Python and read this source tree."""
    return readable_by_others(Path(sys.executable)) and readable_by_others(IMPORT_PATH)


def readable_by_others(path: Path) -> bool:
    """Return whether any user may read ``path`` and traverse every directory on the way, following links."""
    real = path.resolve()
    if not real.stat().st_mode & 0o004:
        return False
    ways = [*path.absolute().parents, *real.parents]
    return all(parent.stat().st_mode & 0o001 for parent in ways)


def docker_reason(error: Exception) -> str:
    """Return one line that describes a Docker error."""
    if (lacking := too_few(error)) is not None:
        return lacking
    text = getattr(error, "explanation", None) or str(error)
    return str(text).strip().splitlines()[0] if str(text).strip() else type(error).__name__


def describe(outcome: Outcome | Mapping[str, Any]) -> str:
    """Return how a worker ended, in a few words, with the last line that it wrote."""
    came = outcome if isinstance(outcome, Outcome) else Outcome(**outcome)
    if came.error:
        how = came.error
    elif came.oom:
        how = "it ran out of memory"
    elif came.signal is not None:
        how = ended(-came.signal)
    else:
        how = f"exit code {came.exit_code}"
    lines = came.stderr_tail.strip().splitlines()
    return f"{how}; it said: {lines[-1]}" if lines else how
