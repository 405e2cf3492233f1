"""Workers in Docker containers, as hosts of a lab."""

from __future__ import annotations

import os
from typing import Any

import docker
import docker.errors
import requests

from ringlight.testbed.descriptors import too_few
from ringlight.testbed.emulation.docker_containers import (
    CONFINED,
    exit_or_signal,
    remove_container,
)
from ringlight.testbed.emulation.kernel import namespaces, network_errors
from ringlight.testbed.emulation.worker_hosts import (
    STDERR_TAIL_BYTES,
    WORKER_UID,
    Outcome,
    WorkerError,
    WorkerHost,
    describe,
    worker_environment,
)
from ringlight.testbed.lab import (
    CONTAINER_LABEL,
    ENVIRONMENT,
    GPU_LABEL,
    JOB_LABEL,
    RANK_LABEL,
)

MEMORY_BYTES = 512 << 20
PIDS = 128
#: Longest wait until Docker knows how a container ended, seconds: where hundreds end, it is late.
OUTCOME_S = 30


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
            self.namespace = namespaces.open_namespace(pid)
            self._adopt(pid)
            if namespaces.is_own_namespace(self.namespace):
                raise WorkerError(f"{what}: Docker gave it the machine's own network")
        except (ProcessLookupError, network_errors.NetworkError):
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
            log_config={
                "type": "json-file",
                "config": {"max-size": "1m", "max-file": "1"},
            },
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
            code, number = exit_or_signal(
                int(self.api.wait(self.container, timeout=OUTCOME_S)["StatusCode"])
            )
            state = self.api.inspect_container(self.container)["State"]
            log = self.api.logs(self.container, stdout=False, stderr=True, tail=50)
        except docker.errors.APIError as error:
            return Outcome(None, None, False, f"Docker: {docker_reason(error)}", "")
        except (requests.RequestException, OSError) as error:
            return Outcome(
                None, None, False, f"Docker does not answer: {type(error).__name__}", ""
            )
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


def docker_reason(error: Exception) -> str:
    """Return one line that describes a Docker error."""
    if (lacking := too_few(error)) is not None:
        return lacking
    text = getattr(error, "explanation", None) or str(error)
    return (
        str(text).strip().splitlines()[0] if str(text).strip() else type(error).__name__
    )
