"""The roster of a lab's workers: who has which GPU, and who may have one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.worker_requests import (
    SpareRequest,
    WorkerRequest,
)
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.worker_hosts import WorkerHost, WorkerPlace


class Roster:
    """The workers that have not been removed, by id.

    ``place``: gives the place of a worker to be started; ``make_host``: makes the host for a place.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        place: Callable[[WorkerRequest], WorkerPlace],
        make_host: Callable[[WorkerPlace], WorkerHost],
    ) -> None:
        self._fabric, self._network, self._place, self._make_host = (
            fabric,
            network,
            place,
            make_host,
        )
        self.lock = threading.RLock()
        self._workers: dict[str, Worker] = {}
        self._lost: set[str] = set()
        #: Nobody is to get a GPU any more.
        self.closed = False

    def __iter__(self) -> Iterator[Worker]:
        with self.lock:
            return iter(list(self._workers.values()))

    def get(self, name: str) -> Worker | None:
        """Return the worker of this id, None if there is none."""
        with self.lock:
            return self._workers.get(name)

    def strike(self, worker: Worker) -> None:
        """Take a worker off the roster; its GPU is free."""
        with self.lock:
            self._workers.pop(worker.place.id, None)

    @property
    def lost(self) -> list[str]:
        """GPUs on which no worker may start, sorted."""
        with self.lock:
            return sorted(self._lost)

    def set_lost(self, gpu: str, lost: bool) -> None:
        """Start no worker on a GPU from now on, or do so again."""
        with self.lock:
            (self._lost.add if lost else self._lost.discard)(gpu)

    def reserve(self, chosen: list[WorkerRequest]) -> list[Worker]:
        """Check the requests and take their GPUs. Return the workers. Raises AgentError."""
        if not chosen:
            raise AgentError(422, "no workers are named")
        with self.lock:
            if self.closed:
                raise AgentError(503, "the testbed is stopping")
            places: dict[str, WorkerPlace] = {}
            residents: dict[str, Worker] = {}
            requests_of = {request.worker: request for request in chosen}
            taken = {w.place.gpu: w.place.id for w in self._workers.values()}
            for request in chosen:
                name = request.worker
                self._check(request.gpu, f"job {request.job} rank {request.rank}")
                if (there := self._at_hand(request)) is not None:
                    residents[name] = there
                    del taken[request.gpu]
                elif name in self._workers or name in places:
                    raise AgentError(409, f"there is a worker {name} already")
                if request.gpu in taken:
                    raise AgentError(
                        409,
                        f"GPU {request.gpu} is taken by worker {taken[request.gpu]}",
                    )
                taken[request.gpu] = name
                places[name] = self._place(request)
            for there in residents.values():
                del self._workers[there.place.id]
            workers = {}
            for name, place in places.items():
                host = (
                    residents[name].host
                    if name in residents
                    else self._make_host(place)
                )
                if name in residents:
                    residence = host.place.home
                    directory = residence / f"r{requests_of[name].attempt}"
                    host.place = replace(
                        place, residence=residence, directory=directory
                    )
                workers[name] = Worker(host)
            self._workers |= workers
            return list(workers.values())

    def reserve_spare(self, request: SpareRequest, place: WorkerPlace) -> Worker:
        """Take the GPU of a spare. Return the worker. Raises AgentError."""
        with self.lock:
            if self.closed:
                raise AgentError(503, "the testbed is stopping")
            places = {w.place.id: w.place.gpu for w in self._workers.values()}
            if request.worker in places or request.gpu in places.values():
                raise AgentError(409, f"GPU {request.gpu} is taken")
            self._check(request.gpu, f"spare of job {request.job}")
            worker = Worker(self._make_host(place))
            self._workers[request.worker] = worker
            return worker

    def in_the_way(self, chosen: list[WorkerRequest]) -> list[Worker]:
        """Return the ended workers of earlier attempts on the GPUs of those that are to start."""
        with self.lock:
            retried = {
                (request.job, request.gpu) for request in chosen if request.attempt
            }
            return [
                w
                for w in self._workers.values()
                if (w.place.job, w.place.gpu) in retried and w.state == "exited"
            ]

    def left_of(self, workers: list[Worker]) -> list[Worker]:
        """Return what is left of earlier attempts of these workers' jobs."""
        with self.lock:
            jobs, ids = {w.place.job for w in workers}, {w.place.id for w in workers}
            return [
                w
                for name, w in self._workers.items()
                if w.place.job in jobs
                and name not in ids
                and (
                    w.state == "exited" or (w.state == "waiting" and w.place.rank >= 0)
                )
            ]

    def _check(self, gpu: str, who: str) -> None:
        """Raises AgentError for a GPU on which nothing can start."""
        if gpu not in self._fabric.gpus:
            raise AgentError(422, f"{who}: there is no GPU {gpu}")
        if gpu in self._lost:
            raise AgentError(409, f"{who}: GPU {gpu} is lost")
        try:
            self._network.check_plugged(gpu)
        except NetworkError as error:
            raise AgentError(422, str(error)) from None

    def _at_hand(self, request: WorkerRequest) -> Worker | None:
        """Return the resident of the same job that waits on a GPU."""
        where = (request.job, request.gpu)
        candidates = (
            w for w in self._workers.values() if (w.place.job, w.place.gpu) == where
        )
        return next(
            (w for w in candidates if w.state == "waiting" and request.stays), None
        )
