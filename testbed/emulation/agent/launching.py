"""One worker made ready and started: its place, its directory, its process and its NIC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringlight.containers.worker.resident import FIRST
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.checkpoints import (
    checkpoint_directory,
    make_directory,
)
from ringlight.testbed.emulation.agent.files import make_anew, make_worker_directory
from ringlight.testbed.emulation.agent.hosts import Failures as PlugFailures
from ringlight.testbed.emulation.agent.invitation import invite
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.worker_requests import (
    SpareRequest,
    WorkerRequest,
)
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.onic.wiring import onic_directory
from ringlight.testbed.emulation.residents import Orders
from ringlight.testbed.emulation.worker_hosts import WorkerError, WorkerPlace

Failures = (WorkerError, *PlugFailures)


class Launcher:
    """Starts workers.

    ``lightpaths``: hears of workers that post. ``directory``: that of the workers' directories; workloads are
    beside it. ``command``: what a worker runs; ``image``: the image of its container.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        lightpaths: Lightpaths,
        directory: Path,
        command: tuple[str, ...],
        image: str | None,
    ) -> None:
        self._fabric, self._network, self._lightpaths = fabric, network, lightpaths
        self._directory, self._command, self._image = directory, command, image
        self._workloads = directory.parent / "workloads"

    def place(self, request: WorkerRequest) -> WorkerPlace:
        """Return the place of a worker for which no resident waits."""
        name = request.worker
        if request.stays:
            return self.lodged(request, name, request.rank)
        return WorkerPlace(
            id=name,
            job=request.job,
            rank=request.rank,
            gpu=request.gpu,
            directory=self._directory / name,
            command=self._command,
            image=self._image,
            onic=self._onic_directory(request.gpu),
            checkpoint=checkpoint_directory(self._directory, request.job)
            if request.checkpoint
            else None,
            guest=request.guest,
        )

    def lodged(
        self, request: WorkerRequest | SpareRequest, name: str, rank: int
    ) -> WorkerPlace:
        """Return the place of a worker that stays, before its first attempt."""
        residence = self._directory / name
        return WorkerPlace(
            id=name,
            job=request.job,
            rank=rank,
            gpu=request.gpu,
            directory=residence / FIRST,
            command=self._command,
            image=self._image,
            checkpoint=checkpoint_directory(self._directory, request.job),
            residence=residence,
        )

    def lodge(self, worker: Worker) -> None:
        """Make what a worker that stays finds when it comes. Raises OSError."""
        place = worker.place
        assert place.residence is not None
        assert place.checkpoint is not None
        make_directory(place.checkpoint, worker.host.uid)
        make_anew(place.residence, 0o755)
        worker.host.orders = Orders(place.residence)

    def start(self, worker: Worker, request: WorkerRequest) -> str | None:
        """Start one worker and plug its NIC, or tell the resident that waits. Return why that failed."""
        place, spec, at_hand = worker.place, request.spec, worker.host.pidfd is not None
        try:
            if place.residence is not None and not at_hand:
                self.lodge(worker)
            if place.checkpoint is not None:
                make_directory(place.checkpoint, worker.host.uid)
                spec = spec | {"checkpoint": worker.host.checkpoint}
            spec = spec | self._keys_of_devices(request)
            if windows := self._network.under_way.windows_to(
                place.gpu, addresses(spec)
            ):
                spec = spec | {"windows_bytes": windows}
            graph = (
                None
                if request.graph is None
                else (self._workloads / request.graph).read_bytes()
            )
            make_worker_directory(place.directory, spec, worker.host.uid, graph)
            if at_hand:
                assert worker.host.orders is not None
                self._network.introduce(worker.host, self._neighbours(place, spec))
                worker.host.orders.run(place.directory.name)
                return None
            if spec.get("posted"):
                self._lightpaths.begin(place.gpu, place.directory, addresses(spec))
            worker.host.launch()
            self._network.plug(worker.host, self._neighbours(place, spec))
            if place.guest is not None:
                worker.host.guest = invite(
                    place.guest, worker.host, addresses(spec), self._image
                )
        except (AgentError, ValueError, *Failures) as error:
            return str(error)
        return None

    def _keys_of_devices(self, request: WorkerRequest) -> dict[str, Any]:
        """Return what devices tell a worker. Raises ValueError."""
        peers = [self._fabric.gpu_by_ip(ip) for ip in addresses(request.spec)]
        gpus = [gpu.name for gpu in peers if gpu is not None]
        return self._network.worker_keys(request.spec, gpus, request.rank)

    def _onic_directory(self, gpu: str) -> Path | None:
        onic = self._fabric.onics.get(gpu)
        return (
            None
            if onic is None or onic.standing
            else onic_directory(self._directory.parent, gpu)
        )

    def _neighbours(
        self, place: WorkerPlace, spec: dict[str, Any]
    ) -> list[tuple[str, str]]:
        gpus = [self._fabric.gpu_by_ip(ip) for ip in addresses(spec)]
        return [
            (gpu.ip, gpu.mac)
            for gpu in gpus
            if gpu is not None and gpu.name != place.gpu
        ]


def addresses(spec: dict[str, Any]) -> list[str]:
    """Return the IP addresses of a worker's peers; none if its spec lists none, which it reports itself."""
    peers = spec.get("peers")
    return peers if isinstance(peers, list) else []
