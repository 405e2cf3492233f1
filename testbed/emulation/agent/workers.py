"""Workers of a lab: started, watched, and ended.

What is known of them is kept in memory and in their directories, and every question is answered from there: a
controller that was restarted asks from cursor 0 and hears everything again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import docker.errors
import requests

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.death_watch import DeathWatch
from ringlight.testbed.emulation.agent.departures import Departures
from ringlight.testbed.emulation.agent.files import write_whole
from ringlight.testbed.emulation.agent.hosts import IdleHosts, host_entries
from ringlight.testbed.emulation.agent.job_states import JobStates
from ringlight.testbed.emulation.agent.launching import Failures, Launcher
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.roster import Roster
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.worker_events import WorkerEvents
from ringlight.testbed.emulation.agent.worker_guests import WorkerGuests
from ringlight.testbed.emulation.agent.worker_requests import (
    SpareRequest,
    WorkerRequest,
)
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.emulation.worker_hosts import (
    Outcome,
    WorkerHost,
    WorkerPlace,
    describe,
)

log = logging.getLogger(__name__)

PARALLEL_STARTS = 8


class Workers:
    """Workers of one lab. All methods may be called from several threads.

    ``make_host``: makes the (not yet started) Mininet node for a place; it is what tells the runtimes apart.
    ``directory``: workers' directories are made in its ``workers``. ``lightpaths``: hears of those that post.
    ``idle``: hosts that give way to workers.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        make_host: Callable[[WorkerPlace], WorkerHost],
        directory: Path,
        lightpaths: Lightpaths,
        idle: IdleHosts,
        *,
        command: tuple[str, ...],
        image: str | None,
    ) -> None:
        self._fabric = fabric
        self._network = network
        self.workloads = directory / "workloads"
        self.states = JobStates(directory / "workers")
        self._lightpaths = lightpaths
        self._idle = idle
        self._launcher = Launcher(
            fabric, network, lightpaths, directory / "workers", command, image
        )
        self._roster = Roster(fabric, network, self._launcher.place, make_host)
        self._events = WorkerEvents()
        #: Ends so far, of whatever worker.
        self._ends = 0
        self._departures = Departures(self._remove)
        #: Held while a spare's process starts: until then it can neither be taken nor removed.
        self._spare_starts = threading.Lock()
        self._lock = self._roster.lock
        self._ended_one = threading.Condition(self._lock)
        self._pool = ThreadPoolExecutor(PARALLEL_STARTS, "workers")
        self._guests = WorkerGuests(
            directory / "workers", self._events, self._lock, self._wake
        )
        self._deaths = DeathWatch(self._watched)

    # -- starting

    def start_all(self, batch: Iterable[WorkerRequest]) -> list[dict[str, Any]]:
        """Start workers in parallel, all or none. Return the id, GPU and state of each. Raises AgentError
        naming the rank and the cause."""
        chosen = list(batch)
        self._departures.settle({request.gpu for request in chosen})
        self._remove(self._roster.in_the_way(chosen))
        with self._spare_starts:
            workers = self._roster.reserve(chosen)
        requests_by_worker = {request.worker: request for request in chosen}
        new = [worker for worker in workers if worker.host.pidfd is None]
        try:
            self._idle.leave([worker.place.gpu for worker in new])
            failures = [
                (worker, error)
                for worker, error in zip(
                    workers,
                    self._pool.map(
                        lambda w: self._launcher.start(
                            w, requests_by_worker[w.place.id]
                        ),
                        workers,
                    ),
                    strict=True,
                )
                if error is not None
            ]
            if not failures:
                try:
                    self._network.attach(w.place.gpu for w in new)
                except Failures as error:
                    failures = [(workers[0], str(error))]
            if failures:
                worker, reason = failures[0]
                place = worker.place
                raise AgentError(
                    500, f"job {place.job} rank {place.rank} on {place.gpu}: {reason}"
                )
        except BaseException:
            self._remove(workers)
            raise
        with self._lock:
            for worker in workers:
                if worker.state == "starting":
                    worker.state = "running"
        self._wake()
        if left := self._roster.left_of(workers):
            self._departures.later(left)
        return [
            {"id": w.place.id, "gpu": w.place.gpu, "state": w.state} for w in workers
        ]

    def start_spares(self, spares: Iterable[SpareRequest]) -> list[dict[str, Any]]:
        """Start the processes of spares, which wait to become workers. Return the description of each spare.
        Raises AgentError naming the GPU."""
        return [self._start_spare(request) for request in spares]

    def _start_spare(self, request: SpareRequest) -> dict[str, Any]:
        self._departures.settle({request.gpu})
        with self._spare_starts:
            place = self._launcher.lodged(request, request.worker, rank=-1)
            worker = self._roster.reserve_spare(request, place)
            try:
                self._idle.leave([request.gpu])
                self._launcher.lodge(worker)
                worker.host.launch()
                self._network.plug(worker.host)
                self._network.attach([request.gpu])
            except Failures as error:
                self._remove([worker])
                raise AgentError(
                    500, f"spare of job {request.job} on {request.gpu}: {error}"
                ) from None
            with self._lock:
                if worker.state == "starting":
                    worker.state = "waiting"
        self._wake()
        return {"id": request.worker, "gpu": request.gpu, "state": worker.state}

    def put_workload(self, digest: str, part: Path, actual_digest: str) -> None:
        """Keep a workload, the file ``part`` with SHA-256 ``actual_digest``, for workers to be started.

        The file is moved. Raises AgentError.
        """
        if actual_digest != digest:
            raise AgentError(422, f"workload {digest}: what was sent is another one")
        try:
            part.replace(self.workloads / digest)
        except OSError as error:
            raise AgentError(
                500, f"workload {digest}: {error.strerror or error}"
            ) from None

    # -- watching

    def _wake(self) -> None:
        self._deaths.wake()

    def _watched(self) -> dict[int, Callable[[], None]]:
        """Return what to do at the end of each process that lives."""
        with self._lock:
            ends: dict[int | None, Callable[[], None]] = {
                w.host.pidfd: partial(self._ended, w) for w in self._roster if w.lives
            }
            for worker in self._roster:
                guest = worker.host.guest
                if (
                    guest is not None
                    and worker.state != "removed"
                    and worker.guest_end is None
                ):
                    ends[guest.pidfd] = partial(self._guests.ended, worker)
        return {
            descriptor: act
            for descriptor, act in ends.items()
            if descriptor is not None
        }

    def _ended(self, worker: Worker) -> None:
        died = time.monotonic()
        with self._lock:
            if worker.state == "waiting":
                # No rank of a job ends with it.
                worker.state = "exited"
                log.warning("worker %s ended while it waited", worker.place.id)
            if worker.state != "running":
                return
        try:
            outcome = worker.host.outcome()
        except Exception as error:
            # As when it is removed meanwhile. Whatever it is, the deaths of others must be seen.
            log.exception("how worker %s ended cannot be told", worker.place.id)
            outcome = Outcome(None, None, False, f"internal error: {error}", "")
        with self._lock:
            if worker.state != "running":
                return
            self._events.read(worker)
            worker.outcome = outcome
            worker.state = "exited"
            ended = {k: v for k, v in asdict(outcome).items() if k != "stderr_tail"}
            self._events.note(worker, {"t": died, "event": "exited", **ended})
            self._ends += 1
            self._ended_one.notify_all()
        worker.exited.set()
        log.info("worker %s ended: %s", worker.place.id, describe(outcome))

    def output(self, name: str) -> dict[str, str]:
        """Return what the guest of a worker wrote, by stream, also for a worker that has been removed. Raises
        AgentError."""
        return self._guests.output(name, self._roster.get(name))

    def ends(self, known: int, wait_s: float) -> int:
        """Return how many workers have ended so far. Waits until the number differs from ``known``, or for
        ``wait_s`` seconds."""
        with self._ended_one:
            self._ended_one.wait_for(
                lambda: self._ends != known or self._roster.closed, wait_s
            )
            return self._ends

    def report(self, cursor: int) -> dict[str, Any]:
        """Return the state of every worker that has a rank, and the events from number ``cursor`` on."""
        with self._lock:
            for worker in self._roster:
                if worker.state == "running":
                    self._events.read(worker)
            return {
                "cursor": len(self._events),
                "workers": [w.document() for w in self._roster if w.place.rank >= 0],
                "events": self._events.since(cursor),
                "lost_gpus": self._roster.lost,
            }

    def workers(self) -> list[Worker]:
        """Return the workers that have not been removed."""
        return list(self._roster)

    def announce(self, gpus: Collection[str], *, forget: bool) -> list[str]:
        """Have the hosts at these GPUs' NICs announce their place on the network. Return the GPUs for which
        nothing was announced.

        ``forget``: first delete the flows of these GPUs at the switches of other controllers for which the
        fabric requires it. Raises AgentError.
        """
        if forget:
            try:
                self._network.delete_flows_of(gpus)
            except OpenVSwitchError as error:
                raise AgentError(503, str(error)) from None
        with self._lock:
            busy = {w.place.gpu: w.host for w in self._roster if w.lives}
        quiet = [
            gpu
            for gpu in gpus
            if gpu not in busy or not self._network.announce(busy[gpu])
        ]
        return self._idle.announce(quiet)

    def hosts(self, *, fill: bool) -> list[dict[str, Any]]:
        """Return an entry for each GPU with the host at its NIC (:func:`host_entries`).

        ``fill``: create idle hosts for GPUs without a host. Raises AgentError.
        """
        if fill:
            self._idle.fill(self._hosts)
        workers = [(worker.host, worker.lives) for worker in self.workers()]
        return host_entries(
            self._fabric, workers, self._idle.gpus(), self._network.lab.prefix
        )

    def set_lost(self, gpu: str, lost: bool) -> None:
        """Start no worker on a GPU from now on, or do so again."""
        self._roster.set_lost(gpu, lost)

    # -- states of jobs

    def halt(self, job: str) -> None:
        """End all workers of a job, so that it can go on: what stays waits, and ended ones are left as they
        are. Raises AgentError."""
        with self._lock:
            mine = [
                w for w in self._roster if w.place.job == job and w.state != "waiting"
            ]
            residents = [
                w for w in mine if w.host.orders is not None and w.state == "running"
            ]
        stopped = {
            w.place.id
            for w, done in zip(residents, self._pool.map(_stop, residents), strict=True)
            if done
        }
        with self._lock:
            for worker in residents:
                if worker.place.id in stopped and worker.state == "running":
                    self._events.read(worker)
                    worker.state = "waiting"
            active = [w for w in mine if w.state in ("starting", "running")]
        if errors := self._remove(active):
            raise AgentError(500, f"job {job}: {errors[0]}")

    def choose_state(self, job: str, without: Collection[int]) -> int:
        """Choose the state from which a job resumes, without the states of the ranks in ``without``. Return
        its iteration, 0 if there is none. Raises AgentError."""
        with self._lock:
            mine = [w for w in self._roster if w.place.job == job]
            there = [w.place.id for w in mine if w.state in ("starting", "running")]
        if there:
            raise AgentError(409, f"job {job}: worker {there[0]} has not been halted")
        return self.states.choose(job, without)

    def remove_states(self, job: str) -> None:
        """A job needs its states no more. Raises AgentError."""
        self.states.remove(job)

    # -- the rest of a worker's life

    def release(self, ids: Iterable[str], start_s: float) -> None:
        """Write each worker's ``go`` file. Raises AgentError when there is no such worker."""
        chosen = [self._get(name) for name in ids]
        for worker in chosen:
            write_whole(
                worker.place.directory / "go", json.dumps({"at": start_s}).encode()
            )
            with self._lock:
                begins = worker.host.guest is not None and not worker.begun
                worker.begun = worker.begun or begins
            if begins:
                threading.Thread(
                    target=self._guests.begin,
                    args=(worker, start_s),
                    name="guest",
                    daemon=True,
                ).start()

    def _get(self, name: str) -> Worker:
        worker = self._roster.get(name)
        if worker is None:
            raise AgentError(404, f"there is no worker {name}")
        return worker

    def remove(self, name: str) -> None:
        """End a worker and take its container and NIC away; its directory stays. Raises AgentError."""
        worker = self._get(name)
        if worker.place.rank < 0:
            with self._spare_starts:
                errors = self._remove([worker])
        else:
            errors = self._remove([worker])
        if errors:
            raise AgentError(500, f"worker {name}: {errors[0]}")

    def _remove(self, workers: list[Worker], *, unplug: bool = True) -> list[str]:
        """End workers in parallel; what went wrong. Their GPUs are free afterwards.

        With ``unplug`` false the bridges go altogether, meanwhile.
        """
        if not workers:
            return []
        with self._lock:
            for worker in workers:
                self._events.read(worker)
                worker.state = "removed"
        self._wake()
        errors = []
        for worker in workers:
            worker.host.kill()
        bridges = None if unplug else self._pool.submit(self._network.remove_bridges)
        try:
            if unplug:
                self._network.unplug(w.host for w in workers)
        except Failures as error:
            errors.append(str(error))
        errors += [e for e in self._pool.map(self._end, workers) if e is not None]
        try:
            if bridges is not None:
                bridges.result()
        except Failures as error:
            errors.append(str(error))
        with self._lock:
            for worker in workers:
                self._roster.strike(worker)
                self._lightpaths.end(worker.place.gpu)
                self._network.forget(worker.host)
        for reason in errors:
            log.error("removing workers: %s", reason)
        if unplug:
            self._idle.come_back(self._hosts)
        return errors

    def _hosts(self) -> list[WorkerHost]:
        return [worker.host for worker in self.workers()]

    def _end(self, worker: Worker) -> str | None:
        try:
            if worker.guest_end is None:
                self._guests.save_output(worker)
            worker.host.remove()
        except docker.errors.APIError as error:
            return f"{worker.place.id}: {error.explanation or error}"
        except (requests.RequestException, *Failures) as error:
            return f"{worker.place.id}: {error}"
        return None

    def close(self) -> list[str]:
        """End all workers and start no more. Return a line for each failure."""
        with self._lock:
            self._roster.closed = True
            self._deaths.stop()
            self._ended_one.notify_all()
        self._departures.settle()
        workers = self.workers()
        self._idle.close()
        errors = self._remove(workers, unplug=False) if workers else []
        for job in {worker.place.job for worker in workers}:
            try:
                self.remove_states(job)
            except AgentError as error:
                errors.append(str(error))
        self._deaths.close()
        self._pool.shutdown()
        return errors


def _stop(worker: Worker) -> bool:
    """Order a resident to end its attempt. Return whether the resident has ended the attempt."""
    assert worker.host.orders is not None
    try:
        worker.host.orders.stop()
    except OSError as error:
        log.warning("worker %s does not stop: %s", worker.place.id, error)
        return False
    return True
