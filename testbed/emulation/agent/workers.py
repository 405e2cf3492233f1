"""Workers of a lab: started, watched, and ended.

What is known of them is kept in memory and in their directories, and every question is answered from there: a
controller that was restarted asks from cursor 0 and hears everything again.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import docker.errors
import requests
from pydantic import BaseModel, ConfigDict, Field

from ringlight.containers.image import OWN_IMAGE
from ringlight.containers.worker.holder import ENDED
from ringlight.fabric.schedules import parse_collective
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.checkpoints import (
    checkpoint_directory,
    choose_state,
    make_directory,
    remove_directory,
)
from ringlight.testbed.emulation.agent.files import make_worker_directory, parse_event, read_from, write_whole
from ringlight.testbed.emulation.agent.hosts import IdleHosts, told
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.averager_processes import place_of
from ringlight.testbed.emulation.guests import Bind, GuestEnd, GuestPlan, network_environment
from ringlight.testbed.emulation.netlink import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.nodes import (
    STDERR_TAIL_BYTES,
    Outcome,
    WorkerError,
    WorkerHost,
    WorkerPlace,
    describe,
    docker_reason,
)
from ringlight.testbed.emulation.onic.wiring import onic_directory
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.lab import NIC

log = logging.getLogger(__name__)

PARALLEL_STARTS = 8
MAX_LINE_BYTES = 1 << 20
Name = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
Digest = Field(pattern=r"^[0-9a-f]{64}$")
Failures = (WorkerError, NetworkError, OpenVSwitchError, OSError, TimeoutError)
DockerFailures = (docker.errors.DockerException, requests.RequestException)
#: As of a shell: the command could not be started.
NOT_STARTED = 127
#: What a guest said, in its worker's directory.
STREAMS = ("stdout", "stderr")


class MountRequest(BaseModel):
    """A file or directory of this machine, and where the container sees it."""

    model_config = ConfigDict(extra="forbid")
    source: str
    target: str
    write: bool = False


class ContainerRequest(BaseModel):
    """A container to run beside the worker, in its network. ``port``: what rank 0 may listen on."""

    model_config = ConfigDict(extra="forbid")
    image: str
    command: list[str] | None = None
    environment: dict[str, str] = {}
    mounts: list[MountRequest] = []
    devices: list[str] = []
    memory_bytes: int = Field(default=1 << 30, gt=0)
    port: int = Field(default=29500, gt=0, lt=1 << 16)

    def plan(self, own_image: str | None) -> GuestPlan:
        """``own_image``: the worker's, which may be asked for by the name that does not change."""
        return GuestPlan(
            image=own_image if self.image == OWN_IMAGE and own_image is not None else self.image,
            command=None if self.command is None else tuple(self.command),
            environment=self.environment,
            mounts=tuple(Bind(mount.source, mount.target, mount.write) for mount in self.mounts),
            devices=tuple(self.devices),
            memory_bytes=self.memory_bytes,
        )


class WorkerRequest(BaseModel):
    """One worker to start. ``spec`` is handed to it as it is, with the job's directory for ``checkpoint``.

    ``attempt``: how often the job had been started anew before; it makes another worker of the same rank.
    ``graph``: SHA-256 of the workload that it executes, which was put before. ``container``: what runs beside
    it once it is released, and whose end is its own.
    """

    model_config = ConfigDict(extra="forbid")
    job: str = Name
    rank: int = Field(ge=0, lt=1 << 16)
    gpu: str
    spec: dict[str, Any]
    attempt: int = Field(default=0, ge=0)
    checkpoint: bool = False
    graph: Annotated[str, Digest] | None = None
    container: ContainerRequest | None = None

    @property
    def worker(self) -> str:
        """The worker's id."""
        return f"{self.job}-{self.rank}" + (f"-r{self.attempt}" if self.attempt else "")


@dataclass
class Worker:
    """What is known of one worker. ``begun``: its guest was asked to start; ``guest_end``: how that ended."""

    host: WorkerHost
    state: Literal["starting", "running", "exited", "removed"] = "starting"
    outcome: Outcome | None = None
    begun: bool = False
    guest_end: GuestEnd | None = None
    read_bytes: int = 0
    exited: threading.Event = field(default_factory=threading.Event)

    @property
    def place(self) -> WorkerPlace:
        return self.host.place

    def told(self) -> dict[str, Any]:
        place = self.place
        ended = self.outcome or Outcome(None, None, False, None, "")
        if self.guest_end is not None:
            # The worker only holds the NIC for its guest.
            end = self.guest_end
            tail = _tail(place.directory / "stderr.txt")
            ended = Outcome(end.exit_code, end.signal, end.oom, end.error, tail)
        told = {"id": place.id, "job": place.job, "rank": place.rank, "gpu": place.gpu, "state": self.state}
        return told | asdict(ended)


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
        self._make_host = make_host
        self._directory = directory / "workers"
        self.workloads = directory / "workloads"
        self._lightpaths = lightpaths
        self._idle = idle
        self._command = command
        self._image = image
        self._workers: dict[str, Worker] = {}
        self._events: list[dict[str, Any]] = []
        self._lost: set[str] = set()
        self._lock = threading.RLock()
        self._closed = False
        self._pool = ThreadPoolExecutor(PARALLEL_STARTS, "workers")
        self._wake_read, self._wake_write = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="deaths", daemon=True)
        self._watcher.start()

    # -- starting

    def start_all(self, wanted: Iterable[WorkerRequest]) -> list[dict[str, Any]]:
        """Start workers in parallel, all or none. Raises AgentError naming the rank and the cause."""
        chosen = list(wanted)
        workers = self._reserve(chosen)
        requests_by_worker = {request.worker: request for request in chosen}
        try:
            self._idle.leave([worker.place.gpu for worker in workers])
            failures = [
                (worker, error)
                for worker, error in zip(
                    workers,
                    self._pool.map(lambda w: self._start(w, requests_by_worker[w.place.id]), workers),
                    strict=True,
                )
                if error is not None
            ]
            if not failures:
                try:
                    self._network.attach(w.place.gpu for w in workers)
                except Failures as error:
                    failures = [(workers[0], str(error))]
            if failures:
                worker, reason = failures[0]
                place = worker.place
                raise AgentError(500, f"job {place.job} rank {place.rank} on {place.gpu}: {reason}")
        except BaseException:
            self._remove(workers)
            raise
        with self._lock:
            for worker in workers:
                if worker.state == "starting":
                    worker.state = "running"
        self._wake()
        return [{"id": w.place.id, "gpu": w.place.gpu, "state": w.state} for w in workers]

    def _reserve(self, chosen: list[WorkerRequest]) -> list[Worker]:
        """Check the requests and take their GPUs."""
        if not chosen:
            raise AgentError(422, "no workers are named")
        with self._lock:
            if self._closed:
                raise AgentError(503, "the testbed is stopping")
            places: dict[str, WorkerPlace] = {}
            taken = {w.place.gpu: w.place.id for w in self._workers.values()}
            for request in chosen:
                name = request.worker
                if request.gpu not in self._fabric.gpus:
                    raise AgentError(
                        422, f"job {request.job} rank {request.rank}: there is no GPU {request.gpu}"
                    )
                if request.gpu in self._lost:
                    raise AgentError(409, f"job {request.job} rank {request.rank}: GPU {request.gpu} is lost")
                if name in self._workers or name in places:
                    raise AgentError(409, f"there is a worker {name} already")
                if request.gpu in taken:
                    raise AgentError(409, f"GPU {request.gpu} is taken by worker {taken[request.gpu]}")
                try:
                    self._network.check_plugged(request.gpu)
                except NetworkError as error:
                    raise AgentError(422, str(error)) from None
                taken[request.gpu] = name
                places[name] = WorkerPlace(
                    id=name,
                    job=request.job,
                    rank=request.rank,
                    gpu=request.gpu,
                    directory=self._directory / name,
                    command=self._command,
                    image=self._image,
                    onic=self._onic_directory(request.gpu),
                    checkpoint=self._checkpoint(request.job) if request.checkpoint else None,
                    guest=None if request.container is None else request.container.plan(self._image),
                )
            workers = {name: Worker(self._make_host(place)) for name, place in places.items()}
            self._workers |= workers
            return list(workers.values())

    def put_workload(self, digest: str, part: Path, found: str) -> None:
        """Keep a workload, the file ``part`` with SHA-256 ``found``, for workers to be started; it is moved.

        Raises AgentError.
        """
        if found != digest:
            raise AgentError(422, f"workload {digest}: what was sent is another one")
        try:
            part.replace(self.workloads / digest)
        except OSError as error:
            raise AgentError(500, f"workload {digest}: {error.strerror or error}") from None

    def _start(self, worker: Worker, request: WorkerRequest) -> str | None:
        """Start one worker and plug its NIC; the reason when that fails."""
        place, spec = worker.place, request.spec
        try:
            if place.checkpoint is not None:
                make_directory(place.checkpoint, worker.host.uid)
                spec = spec | {"checkpoint": worker.host.checkpoint}
            if parse_collective(str(spec.get("collective", "ring"))).averaged:
                spec = spec | {"averager": self._averager(request)}
            graph = None if request.graph is None else (self.workloads / request.graph).read_bytes()
            make_worker_directory(place.directory, spec, worker.host.uid, graph)
            if spec.get("posted"):
                self._lightpaths.begin(place.gpu, place.directory, _addresses(spec))
            worker.host.launch()
            self._network.plug(worker.host, self._neighbours(place, spec))
            if place.guest is not None and request.container is not None:
                addresses, port = _addresses(spec), request.container.port
                told = network_environment(place.rank, addresses, port, NIC)
                worker.host.invite(place.guest, {"RINGLIGHT_JOB": place.job, **told})
        except (AgentError, ValueError, *Failures) as error:
            return str(error)
        return None

    def _averager(self, request: WorkerRequest) -> dict[str, Any]:
        """Averager of a worker's gradients. Raises ValueError."""
        found = [self._fabric.gpu_by_ip(ip) for ip in _addresses(request.spec)]
        gpus = [gpu.name for gpu in found if gpu is not None]
        return place_of(self._fabric, gpus, request.rank, self._network.emulation.rate_bps)

    def _onic_directory(self, gpu: str) -> Path | None:
        onic = self._fabric.onics.get(gpu)
        return None if onic is None or onic.standing else onic_directory(self._directory.parent, gpu)

    def _checkpoint(self, job: str) -> Path:
        return checkpoint_directory(self._directory, job)

    def _neighbours(self, place: WorkerPlace, spec: dict[str, Any]) -> list[tuple[str, str]]:
        gpus = [self._fabric.gpu_by_ip(ip) for ip in _addresses(spec)]
        return [(gpu.ip, gpu.mac) for gpu in gpus if gpu is not None and gpu.name != place.gpu]

    # -- watching

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"!")

    def _watch(self) -> None:
        """Wait for deaths; the kernel tells of each at once."""
        while not self._closed:
            with self._lock:
                alive = {w.host.pidfd: w for w in self._workers.values() if w.state == "running"}
                guests = {
                    w.host.guest.pidfd: w
                    for w in self._workers.values()
                    if w.host.guest is not None and w.state != "removed" and w.guest_end is None
                }
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            for descriptor in (*alive, *guests):
                if descriptor is not None:
                    poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(1000):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif (worker := guests.get(descriptor)) is not None:
                    self._guest_ended(worker)
                elif (worker := alive.get(descriptor)) is not None:
                    self._ended(worker)

    def _ended(self, worker: Worker) -> None:
        died = time.monotonic()
        with self._lock:
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
            self._read_events(worker)
            worker.outcome = outcome
            worker.state = "exited"
            ended = {k: v for k, v in asdict(outcome).items() if k != "stderr_tail"}
            self._events.append(self._marked(worker, {"t": died, "event": "exited", **ended}))
        worker.exited.set()
        log.info("worker %s ended: %s", worker.place.id, describe(outcome))

    # -- guests

    def _begin(self, worker: Worker, at: float) -> None:
        """Start a worker's guest at ``at``, in a thread of its own."""
        while (left := at - time.monotonic()) > 0:
            if worker.state != "running":
                return
            time.sleep(min(left, 0.1))
        guest = worker.host.guest
        assert guest is not None
        try:
            started = guest.start()
        except DockerFailures as error:
            # Before the cause Docker names each program that it went through.
            cause = docker_reason(error).rpartition("unable to start container process: ")[2]
            why = GuestEnd(time.monotonic(), NOT_STARTED, None, False, cause)
            self._note_guest_end(worker, why)
            return
        if started is None:
            return
        with self._lock:
            self._events.append(self._marked(worker, {"t": started, "event": "command_started"}))
        if guest.pidfd is None:
            self._guest_ended(worker)
        self._wake()

    def _guest_ended(self, worker: Worker) -> None:
        guest = worker.host.guest
        assert guest is not None
        try:
            end = guest.end()
        except DockerFailures as error:
            end = GuestEnd(time.monotonic(), None, None, False, f"Docker: {docker_reason(error)}")
        except Exception as error:
            log.exception("how the command of worker %s ended cannot be told", worker.place.id)
            end = GuestEnd(time.monotonic(), None, None, False, f"internal error: {error}")
        self._note_guest_end(worker, end)

    def _note_guest_end(self, worker: Worker, end: GuestEnd) -> None:
        self._save_output(worker)
        with self._lock:
            if worker.guest_end is not None or worker.state == "removed":
                return
            worker.guest_end = end
            self._events.append(self._marked(worker, {"event": "command_ended", **asdict(end)}))
        try:
            write_whole(worker.place.directory / ENDED, b"")
        except OSError as error:
            log.error("worker %s is not told that its command has ended: %s", worker.place.id, error.strerror)

    def _save_output(self, worker: Worker) -> None:
        """What its guest said, into its directory."""
        guest, directory = worker.host.guest, worker.place.directory
        if guest is None or guest.id is None or (directory / "stdout.txt").exists():
            return
        try:
            for stream, said in guest.output().items():
                write_whole(directory / f"{stream}.txt", said)
        except (*DockerFailures, OSError) as error:
            log.warning("output of worker %s is lost: %s", worker.place.id, error)

    def output(self, name: str) -> dict[str, str]:
        """What the guest of a worker said, also of one that has been removed. Raises AgentError."""
        with self._lock:
            worker = self._workers.get(name)
        if worker is not None and worker.host.guest is not None and worker.guest_end is None:
            try:
                found = worker.host.guest.output()
            except DockerFailures as error:
                raise AgentError(503, f"worker {name}: Docker: {docker_reason(error)}") from None
        else:
            try:
                found = {stream: read_from(self._directory / name / f"{stream}.txt", 0) for stream in STREAMS}
            except OSError as error:
                raise AgentError(404, f"worker {name}: no output of a command: {error.strerror}") from None
        return {stream: said.decode(errors="replace") for stream, said in found.items()}

    def _marked(self, worker: Worker, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"job": worker.place.job, "worker": worker.place.id, "rank": worker.place.rank}

    def _read_events(self, worker: Worker) -> None:
        """Take up the whole lines that the worker has appended since the last time."""
        try:
            data = read_from(worker.place.directory / "events.jsonl", worker.read_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("events of worker %s cannot be read: %s", worker.place.id, error.strerror)
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_LINE_BYTES:
            whole = len(data)
        worker.read_bytes += whole
        for line in data[:whole].splitlines():
            event = parse_event(line)
            if event is None:
                log.warning("worker %s wrote a line that is no event: %.80r", worker.place.id, line)
            else:
                self._events.append(self._marked(worker, event))

    def report(self, cursor: int) -> dict[str, Any]:
        """State of every worker, and the events from number ``cursor`` on."""
        with self._lock:
            for worker in self._workers.values():
                if worker.state == "running":
                    self._read_events(worker)
            return {
                "cursor": len(self._events),
                "workers": [w.told() for w in self._workers.values()],
                "events": self._events[cursor:],
                "lost_gpus": sorted(self._lost),
            }

    def workers(self) -> list[Worker]:
        """Workers that have not been removed."""
        with self._lock:
            return list(self._workers.values())

    def announce(self, gpus: Collection[str], *, forget: bool) -> list[str]:
        """Have what is at these GPUs' NICs say on the network where it is; those that have nothing there.
        ``forget``: first, stated switches lose their flows to them. Raises AgentError."""
        if forget:
            try:
                self._network.delete_flows_of(gpus)
            except OpenVSwitchError as error:
                raise AgentError(503, str(error)) from None
        with self._lock:
            busy = {w.place.gpu: w.host for w in self._workers.values() if w.state == "running"}
        quiet = [gpu for gpu in gpus if gpu not in busy or not self._network.announce(busy[gpu])]
        return self._idle.announce(quiet)

    def hosts(self, *, fill: bool) -> list[dict[str, Any]]:
        """What is at each GPU's NIC (:func:`told`); ``fill``: with idle hosts. Raises AgentError."""
        if fill:
            self._idle.fill(lambda: [worker.host for worker in self.workers()])
        workers = [(worker.host, worker.state == "running") for worker in self.workers()]
        return told(self._fabric, workers, self._idle.gpus(), self._network.lab.prefix)

    def set_lost(self, gpu: str, lost: bool) -> None:
        """Start no worker on a GPU from now on, or do so again."""
        with self._lock:
            (self._lost.add if lost else self._lost.discard)(gpu)

    # -- states of jobs

    def choose_state(self, job: str, without: Collection[int]) -> int:
        """The iteration that a job goes on from, not by what the ranks ``without`` had. Raises AgentError."""
        with self._lock:
            there = [w.place.id for w in self._workers.values() if w.place.job == job]
        if there:
            raise AgentError(409, f"job {job}: worker {there[0]} has not been removed")
        try:
            return choose_state(self._checkpoint(job), without)
        except OSError as error:
            raise AgentError(500, f"job {job}: its checkpoint: {error.strerror or error}") from None

    def remove_states(self, job: str) -> None:
        """A job needs its states no more. Raises AgentError."""
        try:
            remove_directory(self._checkpoint(job))
        except OSError as error:
            raise AgentError(500, f"job {job}: its checkpoint: {error.strerror or error}") from None

    # -- the rest of a worker's life

    def release(self, ids: Iterable[str], at: float) -> None:
        """Write each worker's ``go`` file. Raises AgentError when there is no such worker."""
        chosen = [self._get(name) for name in ids]
        for worker in chosen:
            write_whole(worker.place.directory / "go", json.dumps({"at": at}).encode())
            with self._lock:
                begins = worker.host.guest is not None and not worker.begun
                worker.begun = worker.begun or begins
            if begins:
                threading.Thread(target=self._begin, args=(worker, at), name="guest", daemon=True).start()

    def _get(self, name: str) -> Worker:
        with self._lock:
            worker = self._workers.get(name)
        if worker is None:
            raise AgentError(404, f"there is no worker {name}")
        return worker

    def remove(self, name: str) -> None:
        """End a worker and take its container and NIC away; its directory stays. Raises AgentError."""
        errors = self._remove([self._get(name)])
        if errors:
            raise AgentError(500, f"worker {name}: {errors[0]}")

    def _remove(self, workers: list[Worker], *, unplug: bool = True) -> list[str]:
        """End workers in parallel; what went wrong. Their GPUs are free afterwards.

        With ``unplug`` false the bridges go altogether, meanwhile.
        """
        with self._lock:
            for worker in workers:
                self._read_events(worker)
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
                self._workers.pop(worker.place.id, None)
                self._lightpaths.end(worker.place.gpu)
                self._network.forget(worker.host)
        for reason in errors:
            log.error("removing workers: %s", reason)
        return errors

    def _end(self, worker: Worker) -> str | None:
        try:
            if worker.guest_end is None:
                self._save_output(worker)
            worker.host.remove()
        except docker.errors.APIError as error:
            return f"{worker.place.id}: {error.explanation or error}"
        except (requests.RequestException, *Failures) as error:
            return f"{worker.place.id}: {error}"
        return None

    def close(self) -> list[str]:
        """End all workers, and start no more; what went wrong."""
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
        self._idle.close()
        errors = self._remove(workers, unplug=False) if workers else []
        for job in {worker.place.job for worker in workers}:
            try:
                self.remove_states(job)
            except AgentError as error:
                errors.append(str(error))
        self._wake()
        self._watcher.join(10)
        self._pool.shutdown()
        os.close(self._wake_read)
        os.close(self._wake_write)
        return errors


def _tail(path: Path) -> str:
    """The end of what a guest said."""
    try:
        return read_from(path, max(0, path.lstat().st_size - STDERR_TAIL_BYTES)).decode(errors="replace")
    except OSError as error:
        return f"(no {path.name}: {error.strerror})"


def _addresses(spec: dict[str, Any]) -> list[str]:
    """IP addresses of a worker's peers; empty if its spec lists none, which the worker reports itself."""
    peers = spec.get("peers")
    return peers if isinstance(peers, list) else []
