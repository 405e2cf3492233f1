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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import docker.errors
import requests
from pydantic import BaseModel, ConfigDict, Field

from ringlight.containers.worker.holder import ENDED
from ringlight.containers.worker.resident import FIRST
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.agent.checkpoints import (
    checkpoint_directory,
    choose_state,
    chosen_state,
    make_directory,
    remove_directory,
    take_state,
)
from ringlight.testbed.emulation.agent.files import (
    make_anew,
    make_worker_directory,
    parse_event,
    read_from,
    write_whole,
)
from ringlight.testbed.emulation.agent.hosts import IdleHosts, host_entries
from ringlight.testbed.emulation.agent.invitation import invite
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.guests import Guest, GuestEnd, GuestPlan
from ringlight.testbed.emulation.kernel.netlink import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.nodes import (
    STDERR_TAIL_BYTES,
    WORKER_UID,
    Outcome,
    WorkerError,
    WorkerHost,
    WorkerPlace,
    describe,
    docker_reason,
)
from ringlight.testbed.emulation.onic.wiring import onic_directory
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.emulation.residents import Orders

log = logging.getLogger(__name__)

PARALLEL_STARTS = 8
MAX_LINE_BYTES = 1 << 20
Name = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")
Digest = Field(pattern=r"^[0-9a-f]{64}$")
Failures = (WorkerError, NetworkError, OpenVSwitchError, OSError, TimeoutError)
DockerFailures = (docker.errors.DockerException, requests.RequestException)
#: As of a shell: the command could not be started.
NOT_STARTED = 127
#: How long workers that their job goes on without stay, so that it does not wait for their removal, seconds.
LEAVE_S = 2.0
#: What a guest said, in its worker's directory.
STREAMS = ("stdout", "stderr")
#: From one look at the space of a guest to the next, seconds.
LOOK_S = 0.5
#: A job's state that goes to another machine, bytes at most.
STATE_BYTES = 96 << 20


class WorkerRequest(BaseModel):
    """One worker to start. ``spec`` is handed to it as it is, with the job's directory for ``checkpoint``.

    ``attempt``: how often the job had been started anew before; it makes another worker of the same rank.
    ``graph``: SHA-256 of the workload that it executes, which was put before. ``guest``: what runs beside
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
    guest: GuestPlan | None = None

    @property
    def worker(self) -> str:
        """The worker's id."""
        return f"{self.job}-{self.rank}" + (f"-r{self.attempt}" if self.attempt else "")

    @property
    def stays(self) -> bool:
        """Return whether the worker's process stays for later attempts, because nothing but the NIC ties it
        to its GPU."""
        return self.checkpoint and "onic" not in self.spec and not self.spec.get("posted")


class SpareRequest(BaseModel):
    """A spare's process to start for a job, where it waits to become one of the job's workers."""

    model_config = ConfigDict(extra="forbid")
    job: str = Name
    gpu: str

    @property
    def worker(self) -> str:
        """Its id until it has a rank."""
        return f"{self.job}-spare-{self.gpu}"


@dataclass
class Worker:
    """State of one worker. ``begun``: its guest was requested to start. ``guest_end``: how the guest ended.

    A ``waiting`` worker is a resident without an attempt: a spare, or a worker that was halted.
    """

    host: WorkerHost
    state: Literal["starting", "running", "waiting", "exited", "removed"] = "starting"
    outcome: Outcome | None = None
    begun: bool = False
    guest_end: GuestEnd | None = None
    overdrawn: str | None = None
    read_bytes: int = 0
    exited: threading.Event = field(default_factory=threading.Event)

    @property
    def place(self) -> WorkerPlace:
        return self.host.place

    @property
    def lives(self) -> bool:
        """Return whether the worker has a process that has not ended and must be watched."""
        return self.state in ("running", "waiting")

    def document(self) -> dict[str, Any]:
        place = self.place
        ended = self.outcome or Outcome(None, None, False, None, "")
        if self.guest_end is not None:
            # The worker only holds the NIC for its guest.
            end = self.guest_end
            tail = _tail(place.directory / "stderr.txt")
            ended = Outcome(end.exit_code, end.signal, end.oom, end.error, tail)
        document = {
            "id": place.id,
            "job": place.job,
            "rank": place.rank,
            "gpu": place.gpu,
            "state": self.state,
        }
        return document | asdict(ended)


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
        #: Ends so far, of whatever worker.
        self._ends = 0
        #: Workers that are removed a little later, each lot with its thread and what hurries it.
        self._leaving: list[tuple[list[Worker], threading.Event, threading.Thread]] = []
        #: Held while a spare's process starts: until then it can neither be taken nor removed.
        self._spare_starts = threading.Lock()
        self._lock = threading.RLock()
        self._ended_one = threading.Condition(self._lock)
        self._closed = False
        self._pool = ThreadPoolExecutor(PARALLEL_STARTS, "workers")
        self._wake_read, self._wake_write = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="deaths", daemon=True)
        self._watcher.start()

    # -- starting

    def start_all(self, batch: Iterable[WorkerRequest]) -> list[dict[str, Any]]:
        """Start workers in parallel, all or none. Return the id, GPU and state of each. Raises AgentError
        naming the rank and the cause."""
        chosen = list(batch)
        self._settle({request.gpu for request in chosen})
        self._remove(self._in_the_way(chosen))
        with self._spare_starts:
            workers = self._reserve(chosen)
        requests_by_worker = {request.worker: request for request in chosen}
        new = [worker for worker in workers if worker.host.pidfd is None]
        try:
            self._idle.leave([worker.place.gpu for worker in new])
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
                    self._network.attach(w.place.gpu for w in new)
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
        self._remove_later(workers)
        return [{"id": w.place.id, "gpu": w.place.gpu, "state": w.state} for w in workers]

    def start_spares(self, spares: Iterable[SpareRequest]) -> list[dict[str, Any]]:
        """Start the processes of spares, which wait to become workers. Return the description of each spare.
        Raises AgentError naming the GPU."""
        return [self._start_spare(request) for request in spares]

    def _start_spare(self, request: SpareRequest) -> dict[str, Any]:
        self._settle({request.gpu})
        with self._spare_starts:
            with self._lock:
                if self._closed:
                    raise AgentError(503, "the testbed is stopping")
                places = {w.place.id: w.place.gpu for w in self._workers.values()}
                if request.worker in places or request.gpu in places.values():
                    raise AgentError(409, f"GPU {request.gpu} is taken")
                self._check_gpu(request.gpu, f"spare of job {request.job}")
                worker = Worker(self._make_host(self._lodged(request, request.worker, rank=-1)))
                self._workers[request.worker] = worker
            try:
                self._idle.leave([request.gpu])
                self._lodge(worker)
                worker.host.launch()
                self._network.plug(worker.host)
                self._network.attach([request.gpu])
            except Failures as error:
                self._remove([worker])
                raise AgentError(500, f"spare of job {request.job} on {request.gpu}: {error}") from None
            with self._lock:
                if worker.state == "starting":
                    worker.state = "waiting"
        self._wake()
        return {"id": request.worker, "gpu": request.gpu, "state": worker.state}

    def _lodged(self, request: WorkerRequest | SpareRequest, name: str, rank: int) -> WorkerPlace:
        """The place of a worker that stays, before its first attempt."""
        residence = self._directory / name
        return WorkerPlace(
            id=name,
            job=request.job,
            rank=rank,
            gpu=request.gpu,
            directory=residence / FIRST,
            command=self._command,
            image=self._image,
            checkpoint=self._checkpoint(request.job),
            residence=residence,
        )

    def _lodge(self, worker: Worker) -> None:
        """Make what a worker that stays finds when it comes. Raises OSError."""
        place = worker.place
        assert place.residence is not None
        assert place.checkpoint is not None
        make_directory(place.checkpoint, worker.host.uid)
        make_anew(place.residence, 0o755)
        worker.host.orders = Orders(place.residence)

    def _check_gpu(self, gpu: str, who: str) -> None:
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
        """The resident of the same job that waits on a GPU."""
        where = (request.job, request.gpu)
        candidates = (w for w in self._workers.values() if (w.place.job, w.place.gpu) == where)
        return next((w for w in candidates if w.state == "waiting" and request.stays), None)

    def _in_the_way(self, chosen: list[WorkerRequest]) -> list[Worker]:
        """Ended workers of earlier attempts on the GPUs of those that are to start."""
        with self._lock:
            retried = {(request.job, request.gpu) for request in chosen if request.attempt}
            return [
                w for w in self._workers.values()
                if (w.place.job, w.place.gpu) in retried and w.state == "exited"
            ]  # fmt: skip

    def _remove_later(self, workers: list[Worker]) -> None:
        """Take away what is left of earlier attempts of these workers' jobs, in a while."""
        with self._lock:
            jobs, ids = {w.place.job for w in workers}, {w.place.id for w in workers}
            left = [
                w for name, w in self._workers.items()
                if w.place.job in jobs and name not in ids
                and (w.state == "exited" or (w.state == "waiting" and w.place.rank >= 0))
            ]  # fmt: skip
            if not left:
                return
            hurry = threading.Event()

            def leave() -> None:
                hurry.wait(LEAVE_S)
                self._remove(left)

            thread = threading.Thread(target=leave, name="leaving", daemon=True)
            self._leaving.append((left, hurry, thread))
            thread.start()

    def _settle(self, gpus: Collection[str] | None = None) -> None:
        """Have those that are about to leave these GPUs (None: any) do so now."""
        with self._lock:
            self._leaving = [removal for removal in self._leaving if removal[2].is_alive()]
            mine = [
                removal
                for removal in self._leaving
                if gpus is None or any(w.place.gpu in gpus for w in removal[0])
            ]
        for _, hurry, thread in mine:
            hurry.set()
            thread.join(30.0)

    def _reserve(self, chosen: list[WorkerRequest]) -> list[Worker]:
        """Check the requests and take their GPUs."""
        if not chosen:
            raise AgentError(422, "no workers are named")
        with self._lock:
            if self._closed:
                raise AgentError(503, "the testbed is stopping")
            places: dict[str, WorkerPlace] = {}
            residents: dict[str, Worker] = {}
            requests_of = {request.worker: request for request in chosen}
            taken = {w.place.gpu: w.place.id for w in self._workers.values()}
            for request in chosen:
                name = request.worker
                self._check_gpu(request.gpu, f"job {request.job} rank {request.rank}")
                if (there := self._at_hand(request)) is not None:
                    residents[name] = there
                    del taken[request.gpu]
                elif name in self._workers or name in places:
                    raise AgentError(409, f"there is a worker {name} already")
                if request.gpu in taken:
                    raise AgentError(409, f"GPU {request.gpu} is taken by worker {taken[request.gpu]}")
                taken[request.gpu] = name
                places[name] = self._place(request)
            for there in residents.values():
                del self._workers[there.place.id]
            workers = {}
            for name, place in places.items():
                host = residents[name].host if name in residents else self._make_host(place)
                if name in residents:
                    residence = host.place.home
                    directory = residence / f"r{requests_of[name].attempt}"
                    host.place = replace(place, residence=residence, directory=directory)
                workers[name] = Worker(host)
            self._workers |= workers
            return list(workers.values())

    def _place(self, request: WorkerRequest) -> WorkerPlace:
        """Return the place of a worker for which no resident waits."""
        name = request.worker
        if request.stays:
            return self._lodged(request, name, request.rank)
        return WorkerPlace(
            id=name,
            job=request.job,
            rank=request.rank,
            gpu=request.gpu,
            directory=self._directory / name,
            command=self._command,
            image=self._image,
            onic=self._onic_directory(request.gpu),
            checkpoint=self._checkpoint(request.job) if request.checkpoint else None,
            guest=request.guest,
        )

    def put_workload(self, digest: str, part: Path, actual_digest: str) -> None:
        """Keep a workload, the file ``part`` with SHA-256 ``actual_digest``, for workers to be started.

        The file is moved. Raises AgentError.
        """
        if actual_digest != digest:
            raise AgentError(422, f"workload {digest}: what was sent is another one")
        try:
            part.replace(self.workloads / digest)
        except OSError as error:
            raise AgentError(500, f"workload {digest}: {error.strerror or error}") from None

    def _start(self, worker: Worker, request: WorkerRequest) -> str | None:
        """Start one worker and plug its NIC, or tell the resident that waits; the reason when that fails."""
        place, spec, at_hand = worker.place, request.spec, worker.host.pidfd is not None
        try:
            if place.residence is not None and not at_hand:
                self._lodge(worker)
            if place.checkpoint is not None:
                make_directory(place.checkpoint, worker.host.uid)
                spec = spec | {"checkpoint": worker.host.checkpoint}
            spec = spec | self._keys_of_devices(request)
            if windows := self._network.windows_to(place.gpu, _addresses(spec)):
                spec = spec | {"windows_bytes": windows}
            graph = None if request.graph is None else (self.workloads / request.graph).read_bytes()
            make_worker_directory(place.directory, spec, worker.host.uid, graph)
            if at_hand:
                assert worker.host.orders is not None
                self._network.introduce(worker.host, self._neighbours(place, spec))
                worker.host.orders.run(place.directory.name)
                return None
            if spec.get("posted"):
                self._lightpaths.begin(place.gpu, place.directory, _addresses(spec))
            worker.host.launch()
            self._network.plug(worker.host, self._neighbours(place, spec))
            if place.guest is not None:
                worker.host.guest = invite(place.guest, worker.host, _addresses(spec), self._image)
        except (AgentError, ValueError, *Failures) as error:
            return str(error)
        return None

    def _keys_of_devices(self, request: WorkerRequest) -> dict[str, Any]:
        """Return what devices tell a worker. Raises ValueError."""
        peers = [self._fabric.gpu_by_ip(ip) for ip in _addresses(request.spec)]
        gpus = [gpu.name for gpu in peers if gpu is not None]
        return self._network.worker_keys(request.spec, gpus, request.rank)

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
                alive = {w.host.pidfd: w for w in self._workers.values() if w.lives}
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
            self._read_events(worker)
            worker.outcome = outcome
            worker.state = "exited"
            ended = {k: v for k, v in asdict(outcome).items() if k != "stderr_tail"}
            self._events.append(self._marked(worker, {"t": died, "event": "exited", **ended}))
            self._ends += 1
            self._ended_one.notify_all()
        worker.exited.set()
        log.info("worker %s ended: %s", worker.place.id, describe(outcome))

    # -- guests

    def _begin(self, worker: Worker, start_s: float) -> None:
        """Start a worker's guest at ``start_s``, in a thread of its own."""
        while (left := start_s - time.monotonic()) > 0:
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
        self._watch_home(worker, guest)

    def _watch_home(self, worker: Worker, guest: Guest) -> None:
        """End a guest that takes more space than it may."""
        while worker.guest_end is None and worker.state == "running":
            try:
                why = guest.overdrawn()
            except OSError as error:
                log.warning(
                    "the space that the guest of worker %s takes cannot be told: %s", worker.place.id, error
                )
                why = None
            if why is not None:
                with self._lock:
                    worker.overdrawn = why
                guest.kill()
                return
            time.sleep(LOOK_S)

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
            if worker.overdrawn is not None:
                # Nobody else has killed it.
                end = replace(end, exit_code=None, signal=None, error=worker.overdrawn)
            worker.guest_end = end
            self._events.append(self._marked(worker, {"event": "command_ended", **asdict(end)}))
        try:
            write_whole(worker.place.directory / ENDED, b"")
        except OSError as error:
            log.error("worker %s is not told that its command has ended: %s", worker.place.id, error.strerror)

    def _save_output(self, worker: Worker) -> None:
        """Write the output of a worker's guest into the worker's directory."""
        guest, directory = worker.host.guest, worker.place.directory
        if guest is None or not guest.made or (directory / "stdout.txt").exists():
            return
        try:
            for stream, text in guest.output().items():
                write_whole(directory / f"{stream}.txt", text)
        except (*DockerFailures, OSError) as error:
            log.warning("output of worker %s is lost: %s", worker.place.id, error)

    def output(self, name: str) -> dict[str, str]:
        """Return what the guest of a worker wrote, by stream, also for a worker that has been removed. Raises
        AgentError."""
        with self._lock:
            worker = self._workers.get(name)
        if worker is not None and worker.host.guest is not None and worker.guest_end is None:
            try:
                streams = worker.host.guest.output()
            except DockerFailures as error:
                raise AgentError(503, f"worker {name}: Docker: {docker_reason(error)}") from None
        else:
            try:
                streams = {
                    stream: read_from(self._directory / name / f"{stream}.txt", 0) for stream in STREAMS
                }
            except OSError as error:
                raise AgentError(404, f"worker {name}: no output of a command: {error.strerror}") from None
        return {stream: text.decode(errors="replace") for stream, text in streams.items()}

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

    def ends(self, known: int, wait_s: float) -> int:
        """Return how many workers have ended so far. Waits until the number differs from ``known``, or for
        ``wait_s`` seconds."""
        with self._ended_one:
            self._ended_one.wait_for(lambda: self._ends != known or self._closed, wait_s)
            return self._ends

    def report(self, cursor: int) -> dict[str, Any]:
        """Return the state of every worker that has a rank, and the events from number ``cursor`` on."""
        with self._lock:
            for worker in self._workers.values():
                if worker.state == "running":
                    self._read_events(worker)
            return {
                "cursor": len(self._events),
                "workers": [w.document() for w in self._workers.values() if w.place.rank >= 0],
                "events": self._events[cursor:],
                "lost_gpus": sorted(self._lost),
            }

    def workers(self) -> list[Worker]:
        """Return the workers that have not been removed."""
        with self._lock:
            return list(self._workers.values())

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
            busy = {w.place.gpu: w.host for w in self._workers.values() if w.lives}
        quiet = [gpu for gpu in gpus if gpu not in busy or not self._network.announce(busy[gpu])]
        return self._idle.announce(quiet)

    def hosts(self, *, fill: bool) -> list[dict[str, Any]]:
        """Return an entry for each GPU with the host at its NIC (:func:`host_entries`).

        ``fill``: create idle hosts for GPUs without a host. Raises AgentError.
        """
        if fill:
            self._idle.fill(lambda: [worker.host for worker in self.workers()])
        workers = [(worker.host, worker.lives) for worker in self.workers()]
        return host_entries(self._fabric, workers, self._idle.gpus(), self._network.lab.prefix)

    def set_lost(self, gpu: str, lost: bool) -> None:
        """Start no worker on a GPU from now on, or do so again."""
        with self._lock:
            (self._lost.add if lost else self._lost.discard)(gpu)

    # -- states of jobs

    def halt(self, job: str) -> None:
        """End all workers of a job, so that it can go on: what stays waits, and ended ones are left as they
        are. Raises AgentError."""
        with self._lock:
            mine = [w for w in self._workers.values() if w.place.job == job and w.state != "waiting"]
            residents = [w for w in mine if w.host.orders is not None and w.state == "running"]
        stopped = {
            w.place.id for w, done in zip(residents, self._pool.map(_stop, residents), strict=True) if done
        }
        with self._lock:
            for worker in residents:
                if worker.place.id in stopped and worker.state == "running":
                    self._read_events(worker)
                    worker.state = "waiting"
            active = [w for w in mine if w.state in ("starting", "running")]
        if errors := self._remove(active):
            raise AgentError(500, f"job {job}: {errors[0]}")

    def choose_state(self, job: str, without: Collection[int]) -> int:
        """Choose the state from which a job resumes, without the states of the ranks in ``without``. Return
        its iteration, 0 if there is none. Raises AgentError."""
        with self._lock:
            mine = [w for w in self._workers.values() if w.place.job == job]
            there = [w.place.id for w in mine if w.state in ("starting", "running")]
        if there:
            raise AgentError(409, f"job {job}: worker {there[0]} has not been halted")
        try:
            return choose_state(self._checkpoint(job), without)
        except OSError as error:
            raise AgentError(500, f"job {job}: its checkpoint: {error.strerror or error}") from None

    def state(self, job: str, iteration: int) -> bytes:
        """Return the content of the state from which a job resumes, for elsewhere. Raises AgentError."""
        try:
            return read_from(chosen_state(self._checkpoint(job), iteration), 0, STATE_BYTES)
        except OSError as error:
            raise AgentError(404, f"job {job}: its state: {error.strerror or error}") from None

    def take_state(self, job: str, iteration: int, data: bytes) -> None:
        """Take the content of such a state, from elsewhere. Raises AgentError."""
        try:
            take_state(self._checkpoint(job), iteration, data, WORKER_UID)
        except OSError as error:
            raise AgentError(500, f"job {job}: its state: {error.strerror or error}") from None

    def remove_states(self, job: str) -> None:
        """A job needs its states no more. Raises AgentError."""
        try:
            remove_directory(self._checkpoint(job))
        except OSError as error:
            raise AgentError(500, f"job {job}: its checkpoint: {error.strerror or error}") from None

    # -- the rest of a worker's life

    def release(self, ids: Iterable[str], start_s: float) -> None:
        """Write each worker's ``go`` file. Raises AgentError when there is no such worker."""
        chosen = [self._get(name) for name in ids]
        for worker in chosen:
            write_whole(worker.place.directory / "go", json.dumps({"at": start_s}).encode())
            with self._lock:
                begins = worker.host.guest is not None and not worker.begun
                worker.begun = worker.begun or begins
            if begins:
                threading.Thread(
                    target=self._begin, args=(worker, start_s), name="guest", daemon=True
                ).start()

    def _get(self, name: str) -> Worker:
        with self._lock:
            worker = self._workers.get(name)
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
        """End all workers and start no more. Return a line for each failure."""
        with self._lock:
            self._closed = True
            self._ended_one.notify_all()
        self._settle()
        workers = self.workers()
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


def _stop(worker: Worker) -> bool:
    """Order a resident to end its attempt. Return whether the resident has ended the attempt."""
    assert worker.host.orders is not None
    try:
        worker.host.orders.stop()
    except OSError as error:
        log.warning("worker %s does not stop: %s", worker.place.id, error)
        return False
    return True


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
