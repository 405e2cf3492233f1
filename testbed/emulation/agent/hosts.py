"""The network namespace at each GPU: that of its worker, or of an idle host while no worker holds the GPU.

A GPU's NIC comes with its worker. To ping between jobs, a user gets an idle host instead: a network namespace
with that NIC and no running program. Idle hosts are made on request, never before. They are removed as soon as
a worker starts on their GPU, and come back when it has left.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any
from weakref import WeakSet

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.docker_hosts import DockerHost
from ringlight.testbed.emulation.kernel.build import BuildError
from ringlight.testbed.emulation.kernel.namespaces import NETNS_DIR
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.nodes import IdleHost
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.emulation.worker_hosts import WorkerHost

log = logging.getLogger(__name__)

#: Failures to plug a host: a link that affects frames builds its program when its GPU is plugged in.
Failures = (NetworkError, OpenVSwitchError, BuildError, OSError)


class IdleHosts:
    """The idle hosts of one lab. All methods may be called from several threads."""

    def __init__(self, fabric: Fabric, network: LabNetwork) -> None:
        self._fabric = fabric
        self._network = network
        self._hosts: dict[str, IdleHost] = {}
        #: Workers that know all GPUs.
        self._introduced: WeakSet[WorkerHost] = WeakSet()
        #: GPUs whose idle host has given way to a worker.
        self._away: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False

    def fill(self, workers: Callable[[], Collection[WorkerHost]]) -> None:
        """An idle host for each GPU that none of ``workers`` holds, and neighbours for all.

        ``workers`` is asked under the lock that :meth:`leave` takes: one that comes for its GPU later finds
        the idle host and removes it. Raises AgentError.
        """
        with self._lock:
            if self._closed:
                raise AgentError(503, "the testbed is stopping")
            busy = workers()
            self._add(set(self._fabric.gpus) - {host.gpu for host in busy})
            # A worker knows the peers of its job; an idle host that pings it wants an answer.
            for host in busy:
                known = host in self._introduced
                if not known and self._network.introduce(host, self._others(host.gpu)):
                    self._introduced.add(host)

    def come_back(self, workers: Callable[[], Collection[WorkerHost]]) -> None:
        """Restore the idle hosts that gave way to workers which are no more among ``workers``."""
        with self._lock:
            if self._closed or not self._away:
                return
            try:
                self._add(self._away - {host.gpu for host in workers()})
            except AgentError as error:
                log.error("%s", error)

    def _add(self, gpus: Collection[str]) -> None:
        """Add the idle hosts that lack at these GPUs. Raises AgentError. The caller holds the lock."""
        new = [
            gpu
            for gpu in self._fabric.gpus
            if gpu in gpus and gpu not in self._hosts and self._network.is_plugged(gpu)
        ]
        try:
            for gpu in new:
                self._hosts[gpu] = self._network.add_idle(gpu)
                self._network.plug(self._hosts[gpu], self._others(gpu))
            self._network.attach(new)
        except Failures as error:
            self._remove(new)
            raise AgentError(500, f"idle hosts: {error}") from None
        self._away -= self._hosts.keys()

    def _others(self, gpu: str) -> list[tuple[str, str]]:
        return [
            (other.ip, other.mac)
            for other in self._fabric.gpus.values()
            if other.name != gpu
        ]

    def leave(self, gpus: Collection[str]) -> None:
        """Give way to workers."""
        with self._lock:
            self._away |= self._hosts.keys() & set(gpus)
            self._remove(gpus)

    def gpus(self) -> frozenset[str]:
        """Return the GPUs that have an idle host now."""
        return frozenset(self._hosts)

    def announce(self, gpus: Collection[str]) -> list[str]:
        """Have the idle hosts of these GPUs announce their place on the network. Return the GPUs for which
        nothing was announced."""
        with self._lock:
            there = [
                gpu
                for gpu in gpus
                if gpu in self._hosts and self._network.announce(self._hosts[gpu])
            ]
        return [gpu for gpu in gpus if gpu not in there]

    def close(self) -> None:
        """Remove them, and make no more."""
        with self._lock:
            self._closed = True
            self._remove(list(self._hosts))

    def _remove(self, gpus: Iterable[str]) -> None:
        hosts = [self._hosts.pop(gpu) for gpu in gpus if gpu in self._hosts]
        if not hosts:
            return
        try:
            self._network.unplug(hosts)
        except Failures as error:
            log.error("removing idle hosts: %s", error)
        for host in hosts:
            try:
                host.terminate()
            except NetworkError as error:
                log.error("removing idle hosts: %s", error)
            self._network.forget(host)


def host_entries(
    fabric: Fabric,
    workers: Iterable[tuple[WorkerHost, bool]],
    idle: Collection[str],
    prefix: str,
) -> list[dict[str, Any]]:
    """Return each GPU's address and the path of the network namespace with its NIC, None if there is no such
    namespace.

    ``kind`` is ``worker`` (with its ``job``, ``rank`` and, in Docker, ``container``), ``idle`` or ``none``.
    ``workers`` has each worker and whether it runs. A worker that does not run has a job and no network.
    ``prefix`` is the first part of the lab's names.
    """
    holders = {host.gpu: (host, runs) for host, runs in workers}
    entries = []
    for gpu in fabric.gpus.values():
        entry: dict[str, Any] = {
            "gpu": gpu.name,
            "ip": gpu.ip,
            "kind": "none",
            "namespace": None,
        }
        if gpu.name in holders:
            host, runs = holders[gpu.name]
            place = host.place
            entry |= {"kind": "worker", "job": place.job, "rank": place.rank}
            if runs:
                entry["namespace"] = f"/proc/{host.pid}/ns/net"
                if isinstance(host, DockerHost):
                    # A guest shares the worker's network.
                    guest = host.guest is not None and host.guest.pidfd is not None
                    entry["container"] = (
                        f"{prefix}{place.home.name}{'.guest' if guest else ''}"
                    )
        elif gpu.name in idle:
            entry |= {"kind": "idle", "namespace": str(NETNS_DIR / (prefix + gpu.name))}
        entries.append(entry)
    return entries
