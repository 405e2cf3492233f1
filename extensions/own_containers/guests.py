"""Containers of users' images in a GPU's network, beside the container that has the NIC.

As the containers of a pod share the network of its first one, a guest is created in the network of a
container that stands already, whose ``eth0`` is plugged in. So the NIC is there before the guest's first
instruction, and no image needs anything of ours in it.

A guest may do as little as a worker: no capabilities and no way to gain any, a read-only root file system, an
unprivileged user whatever its image says, bounded memory and processes. It can write to ``/job``, to ``/tmp``
and to what it was given by name.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import docker
import docker.errors
import docker.types
import requests
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ringlight.containers.image import OWN_IMAGE
from ringlight.testbed.emulation.docker_containers import (
    CONFINED,
    exit_or_signal,
    remove_container,
)
from ringlight.testbed.emulation.docker_hosts import DockerHost, docker_reason
from ringlight.testbed.emulation.guests import GuestEnd
from ringlight.testbed.emulation.worker_hosts import (
    WORKER_UID,
    WorkerError,
    WorkerHost,
    worker_environment,
)
from ringlight.testbed.lab import ENVIRONMENT, NIC

#: Processes and threads of a guest, its /tmp and /dev/shm, and what is kept of what it said, each stream.
PIDS = 1024
TMP_BYTES = 256 << 20
SHM_BYTES = 64 << 20
LOG_BYTES = 16 << 20
#: What a guest may keep in its /job: bytes, and files and directories.
HOME_BYTES, HOME_FILES = 4 << 30, 100_000
#: In front of output of which more was said than is kept.
CUT = b"[ringlight: at most the newest 16 MiB are kept; what was written before this may be cut off]\n"
#: In a worker's directory: what its guest sees as /job.
HOME = "home"
#: Longest wait for Docker to know of a death, seconds.
_WAIT_S = 10


@dataclass(frozen=True)
class Bind:
    """A file or directory of this machine and where a guest sees it; read-only unless ``write``."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    source: str
    target: str
    write: bool = False


@dataclass(frozen=True)
class ContainerPlan:
    """Settings of a guest.

    ``command``: replaces the image's own command; None keeps that. ``devices``: paths of this machine's
    devices, which the guest sees under the same names. ``port``: TCP port on which rank 0 may listen.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    image: str
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Bind, ...] = ()
    devices: tuple[str, ...] = ()
    memory_bytes: Annotated[int, Field(gt=0)] = 1 << 30
    port: Annotated[int, Field(gt=0, lt=1 << 16)] = 29500


_PLAN = TypeAdapter(ContainerPlan)


class ContainerGuest:
    """One guest: :meth:`create`, then :meth:`start` once; ``pidfd`` becomes readable when it dies.

    ``beside``: id of the container whose network it shares. ``home``: directory of this machine that is its
    ``/job``. Methods raise docker.errors.DockerException and requests.RequestException.
    """

    def __init__(
        self,
        api: docker.APIClient,
        plan: ContainerPlan,
        *,
        name: str,
        beside: str,
        home: Path,
        uid: int,
        labels: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> None:
        self._api, self._plan, self._uid = api, plan, uid
        self._name, self._beside, self._home = name, beside, home
        self._labels, self._environment = dict(labels), dict(environment)
        self._lock = threading.Lock()
        self._killed = False
        self.id: str | None = None
        self.pidfd: int | None = None
        self.pid: int | None = None

    @property
    def made(self) -> bool:
        return self.id is not None

    def create(self) -> None:
        plan = self._plan
        # Mounts, not binds: Docker would make a directory of a source that is not there.
        mounts = [docker.types.Mount("/job", str(self._home), "bind")]
        mounts += [
            docker.types.Mount(m.target, m.source, "bind", read_only=not m.write)
            for m in plan.mounts
        ]
        limits = self._api.create_host_config(
            network_mode=f"container:{self._beside}",
            ipc_mode="private",
            shm_size=SHM_BYTES,
            **CONFINED,
            tmpfs={"/tmp": f"rw,nosuid,nodev,mode=1777,size={TMP_BYTES}"},
            mem_limit=plan.memory_bytes,
            memswap_limit=plan.memory_bytes,
            pids_limit=PIDS,
            mounts=mounts,
            ulimits=[
                docker.types.Ulimit(name="fsize", soft=HOME_BYTES, hard=HOME_BYTES)
            ],
            devices=[f"{path}:{path}:rw" for path in plan.devices],
            log_config={
                "type": "json-file",
                "config": {"max-size": str(2 * LOG_BYTES), "max-file": "2"},
            },
        )
        self.id = self._api.create_container(
            plan.image,
            None if plan.command is None else list(plan.command),
            name=self._name,
            user=f"{self._uid}:{self._uid}",
            environment={"HOME": "/job", **self._environment, **plan.environment},
            labels=self._labels,
            stop_signal="SIGKILL",
            host_config=limits,
        )["Id"]

    def start(self) -> float | None:
        """Start the guest. Return the time of its start, CLOCK_MONOTONIC seconds, or None if the guest was
        killed before and will never start."""
        with self._lock:
            if self._killed:
                return None
            self._api.start(self.id)
            state = self._api.inspect_container(self.id)["State"]
            if pid := int(state["Pid"]):
                with suppress(ProcessLookupError):
                    self.pidfd, self.pid = os.pidfd_open(pid), pid
            return _monotonic(state["StartedAt"])

    def end(self) -> GuestEnd:
        """Return how the guest ended. Call it after the guest has ended."""
        code, number = exit_or_signal(
            int(self._api.wait(self.id, timeout=_WAIT_S)["StatusCode"])
        )
        state = self._api.inspect_container(self.id)["State"]
        t = _monotonic(state["FinishedAt"])
        return GuestEnd(
            t, code, number, bool(state["OOMKilled"]), state.get("Error") or None
        )

    def output(self) -> dict[str, bytes]:
        """Return what the guest wrote to ``stdout`` and ``stderr``. Of long output only the end is returned,
        after :data:`CUT`."""
        # Docker drops the older of two files when it begins the next.
        log = self._api.inspect_container(self.id).get("LogPath") or ""
        dropped = bool(log) and Path(f"{log}.1").exists()
        streams = {}
        for stream in ("stdout", "stderr"):
            text = self._api.logs(
                self.id, stdout=stream == "stdout", stderr=stream == "stderr"
            )
            cut = len(text) > LOG_BYTES or (dropped and bool(text))
            streams[stream] = (CUT if cut else b"") + text[-LOG_BYTES:]
        return streams

    def overdrawn(self) -> str | None:
        """Return a line if the guest's /job holds more than allowed, else None. Raises OSError."""
        used = space_below(self._home, HOME_BYTES, HOME_FILES)
        if used is not None:
            return None
        return f"its /job has more than {HOME_BYTES >> 30} GiB, or more than {HOME_FILES} files"

    def kill(self) -> None:
        """SIGKILL to its first process, with which all others end; no harm when it is gone."""
        with self._lock:
            self._killed = True
            if self.pidfd is not None:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def remove(self) -> None:
        self.kill()
        if self.id is not None:
            remove_container(self._api, self.id)
            self.id = None
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def space_below(directory: Path, most_bytes: int, most_files: int) -> int | None:
    """Return the bytes on disk of an untrusted directory, None if there are more than ``most_bytes`` bytes or
    ``most_files`` files."""
    used, files, todo = 0, 0, [str(directory)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    files += 1
                    with suppress(FileNotFoundError):
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
                    if used > most_bytes or files > most_files:
                        return None
        except FileNotFoundError:
            # It is being removed meanwhile.
            continue
    return used


def refusal_of(plan: ContainerPlan) -> str | None:
    """Return the reason why a guest may not see a mount or device of this machine, ``key: reason``, or None
    if it may see all."""
    for mount in plan.mounts:
        source = Path(f"/{mount.source.lstrip('/')}")
        if not source.exists():
            return f"mounts: there is no {source}"
        if os.path.normpath(source) != str(source.resolve()):
            return f"mounts: {source} is a link, or below one; name {source.resolve()}, which it leads to"
    for device in plan.devices:
        path = Path(device)
        if not (path.is_char_device() or path.is_block_device() or path.is_dir()):
            return f"devices: there is no device {device}"
    return None


def _monotonic(stamp: str) -> float:
    """A time of Docker's as CLOCK_MONOTONIC seconds."""
    return time.monotonic() - (time.time() - datetime.fromisoformat(stamp).timestamp())


def network_environment(
    rank: int, addresses: Sequence[str], port: int, interface: str
) -> dict[str, str]:
    """Return the environment that launchers of distributed programs set for each rank, with the names that
    these programs read.

    The names are torchrun's, the variables for the interface of Gloo, NCCL and Open MPI, and Ringlight's own:
    ``RINGLIGHT_INTERFACE``, and ``RINGLIGHT_ADDRESSES`` with the addresses of all ranks in order, separated
    by commas.
    """
    interfaces = (
        "RINGLIGHT_INTERFACE",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "OMPI_MCA_btl_tcp_if_include",
        "OMPI_MCA_oob_tcp_if_include",
    )
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(port),
        "RINGLIGHT_ADDRESSES": ",".join(addresses),
        **dict.fromkeys(interfaces, interface),
    }


def invite(
    host: WorkerHost,
    settings: Mapping[str, Any],
    peers: Sequence[str],
    image: str | None,
) -> ContainerGuest:
    """Return a new container in the network of a worker, not started yet (``fabric.guests.GuestKind``).

    The constant name of the worker's own image stands for that image. Raises WorkerError.
    """
    try:
        plan = _PLAN.validate_python(settings)
    except ValidationError as error:
        raise WorkerError(f"container: {error.errors()[0]['msg']}") from None
    if not isinstance(host, DockerHost):
        raise WorkerError(
            f"image {plan.image}: it needs containers; start the lab with --runtime docker"
        )
    if image is not None and plan.image == OWN_IMAGE:
        plan = replace(plan, image=image)
    if (refusal := refusal_of(plan)) is not None:
        raise WorkerError(refusal)
    place, lab = host.place, host.lab
    home = place.directory / HOME
    network = network_environment(place.rank, peers, plan.port, NIC)
    own = {
        ENVIRONMENT: lab.id,
        **worker_environment(),
        "RINGLIGHT_JOB": place.job,
        **network,
    }
    assert host.container is not None
    guest = ContainerGuest(
        host.api,
        plan,
        name=lab.container(f"{place.id}.guest"),
        beside=host.container,
        home=home,
        uid=WORKER_UID,
        labels=host.labels,
        environment=own,
    )
    try:
        home.mkdir(mode=0o700)
        os.chown(home, WORKER_UID, WORKER_UID)
        guest.create()
    except docker.errors.ImageNotFound:
        raise WorkerError(f"there is no image {plan.image} on this machine") from None
    except (docker.errors.APIError, docker.errors.DockerException) as error:
        raise WorkerError(f"image {plan.image}: {docker_reason(error)}") from None
    except requests.RequestException as error:
        raise WorkerError(
            f"image {plan.image}: Docker does not answer: {type(error).__name__}"
        ) from None
    return guest
