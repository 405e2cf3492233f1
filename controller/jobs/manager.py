"""Manage jobs: reserve GPUs, start workers, follow them, and clean up after them."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.job import (
    Job,
    JobDocument,
    JobEvents,
    JobOutput,
    JobState,
    OnLoss,
    Rank,
    enter_told,
    guest_of,
    linktest_targets,
    note_event,
    note_workers,
    progress,
)
from ringlight.controller.jobs.light_provider import Light, LightProvider
from ringlight.controller.jobs.losses import (
    go_on,
    goes_by_itself,
    lose,
    note_release,
    note_start,
    pending_losses,
)
from ringlight.controller.jobs.reservation import placed, planes_for, reserve
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.server_agent import AgentClient
from ringlight.controller.store import Store
from ringlight.fabric.gpu_choice import spares_for
from ringlight.fabric.planes.base import Misfit, Plane
from ringlight.fabric.planes.choice import lit_planes, plane_of
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.schedules import parse_collective, steps_named
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_JOBS = "jobs"
#: Stored jobs that cannot be used, each with the reason.
_ASIDE = "jobs_set_aside"
#: Port on which rank 0 of a job's guests may listen, as with torchrun.
MASTER_PORT = 29500
#: Longest time that starting a job's workers may take, seconds.
_START_S = 120.0
#: Longest wait for the workers of an ended job to go from GPUs that the next job has, seconds.
_VACATE_S = 60.0
#: Longest wait for the light of a job that lost a GPU to be cleared, seconds.
_CLEAR_S = 30.0
#: At most so many of a job's spares have a process that waits for them.
_WAITING = 8
#: Longest wait of the controller for the end of a worker, before it waits again, seconds.
_LISTEN_S = 0.5
#: A look at the workers of a job that goes on follows after so long, and its release, seconds.
_HASTE_S = 0.02
#: Longest wait of somebody who asks for a look at the workers, seconds.
_FRESH_S = 0.1
#: At most so many choices of spares are looked at.
_CHOICES = 1000


class JobManager:
    """Owner of the jobs of a fabric.

    A stored job is adopted: its workers continue, and the agent replays their events. ``switch_of``: returns
    the packet switch that each GPU is lit to now. ``reaches``: returns whether packets get from a GPU to all
    of some other GPUs and back. ``lights``: providers of jobs' light, by kind of plane. ``flow_sockets``:
    socket at which a worker requests light, by GPU with an O-NIC. ``workloads``: workloads that jobs may
    execute.
    """

    def __init__(
        self,
        fabric: Fabric,
        agent: AgentClient | None,
        store: Store,
        bus: EventBus,
        switch_of: Callable[[], Mapping[str, str | None]],
        *,
        workloads: WorkloadFiles,
        lights: Mapping[str, LightProvider[Any]] | None = None,
        flow_sockets: Mapping[str, str] | None = None,
        reaches: Callable[[str, Collection[str]], bool] = lambda _gpu, _others: True,
        busy_s: float = 0.1,
        idle_s: float = 2.0,
    ) -> None:
        self._fabric = fabric
        self._agent = agent
        self._store = store
        self._bus = bus
        self._switch_of = switch_of
        self._providers = lights or {}
        self._planes = {plane.name: plane for plane in lit_planes(fabric)}
        self._flow_sockets = flow_sockets or {}
        self._reaches = reaches
        self.workloads = workloads
        #: One submission at a time, so that two do not choose the same nodes.
        self._submitting = threading.Lock()
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._starting: set[str] = set()
        self._jobs: dict[str, Job] = {}
        self._aside: list[dict[str, Any]] = []
        #: Light of the jobs that are on a plane with light and have not been cleaned up.
        self._lights: dict[str, Light] = {}
        self._cursor = 0
        #: When the last look at the workers that is over began.
        self._looked_s = -math.inf
        #: GPUs that the agent starts no worker on.
        self._dead_gpus: frozenset[str] = frozenset()
        self._born = time.monotonic()
        self._agent_error: str | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._tasks: set[threading.Thread] = set()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._listener = threading.Thread(target=self._listen, name="ends", daemon=True)

    # Life

    def start(self) -> None:
        """Take over the jobs of an earlier run and follow all workers.

        A stored job that cannot be used is set aside. Raises ValueError on a file that is no JSON.
        """
        self._aside = list(self._store.read(_ASIDE) or ())
        aside = len(self._aside)
        for record in (self._store.read(_JOBS) or {"jobs": []})["jobs"]:
            try:
                self._take_over(record)
            except (ValueError, KeyError, TypeError, AttributeError, InvalidError) as error:
                self._set_aside(record, error)
        if len(self._aside) > aside:
            self._store.write(_ASIDE, self._aside)
            self._save()
        self._thread.start()
        self._listener.start()

    def _take_over(self, record: Mapping[str, Any]) -> None:
        """Adopt a stored job with its light.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidError if the record is not a job of
        this fabric.
        """
        job = Job.from_record(record)
        light: Light | None = None
        if job.plane is not None and not job.clean:
            plane = planes_for(self._fabric, job.gpus, job.plane)[0]
            light = self._planned(plane, job.gpus, job.spec, {})
        self._jobs[job.id] = job
        if not job.state.ended:
            log.info("adopting job %s", job.id)
        if light is not None:
            self._lights[job.id] = light
            if not job.state.ended and job.state is not JobState.PENDING:
                self._provider(plane).adopt(job.id, light)

    def _set_aside(self, record: Any, error: Exception) -> None:
        """Go on without a job that cannot be used; its record is kept."""
        name = record.get("id") if isinstance(record, Mapping) else None
        reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error)
        log.error("the stored job %s cannot be used and is set aside: %s", name, reason)
        self._aside.append({"job": name, "reason": reason, "record": record})

    @property
    def set_aside(self) -> list[str]:
        """A line for each stored job that cannot be used."""
        return [
            f"the stored job {record['job']} cannot be used ({record['reason']}); it is in {_ASIDE}.json"
            for record in self._aside
        ]

    def stop(self) -> None:
        """Stop following; the workers go on."""
        self._stop.set()
        self._wake.set()
        with self._changed:
            self._changed.notify_all()
        for thread in (self._thread, self._listener):
            if thread.ident is not None:
                thread.join(10.0)
        deadline = time.monotonic() + 2.0
        for task in list(self._tasks):
            task.join(max(0.0, deadline - time.monotonic()))

    @property
    def agent_error(self) -> str | None:
        """Reason for which the agent does not answer; None if it does."""
        return self._agent_error

    # Requests of users

    def submit(
        self,
        name: str,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        *,
        hold: bool,
        plane: str | None = None,
        on_loss: OnLoss = "fail",
        spares: Sequence[str] = (),
    ) -> JobDocument:
        """Reserve GPUs and start the workers. Return the job as a document.

        ``gpus_or_count``: GPU names in rank order, or their number, then on ``plane`` if one is named. The
        job is PENDING while an ended job's workers are still being removed from its GPUs. ``on_loss``:
        reaction to the death of a worker while the job runs (fail, swap, shrink). ``spares``: GPUs kept for
        that case. Raises InvalidError, ConflictError, UnavailableError.
        """
        agent = self._need_agent()
        with self._submitting:
            holders = self.holders()
            self._check_stepless(gpus_or_count, spec, on_loss)
            self._check_spares(() if isinstance(gpus_or_count, int) else gpus_or_count, spares, holders)
            if (graph := spec.get("graph")) is not None:
                self._check_graph(graph, gpus_or_count)
            placement = self.light_plan(gpus_or_count, spec, plane, holders | dict.fromkeys(spares, name))
            if placement is not None:
                self._check_lit(placement[0], spec, on_loss)
            for gpu in spares:
                if (gpu in self._fabric.onics) != (placement is not None):
                    raise InvalidError(f"spares: GPU {gpu} is not where the job runs")
            return self._submit(name, gpus_or_count, spec, hold, placement, agent, on_loss, spares)

    def _check_lit(self, plane: Plane, spec: Mapping[str, Any], on_loss: str) -> None:
        if guest_of(spec) is not None:
            raise InvalidError(
                f"{spec['workload']}: a program that asks nobody for light runs on packet switches and "
                f"circuits, not on {plane}"
            )
        if spec.get("graph") is not None and not plane.standing:
            raise InvalidError(f"workload graph: it runs on packet switches and circuits, not on {plane}")
        if on_loss != "fail" and not plane.survives:
            raise InvalidError(f"on_loss {on_loss}: a job on {plane} needs all its nodes; it can only fail")

    def _check_stepless(
        self, gpus_or_count: Sequence[str] | int, spec: Mapping[str, Any], on_loss: str
    ) -> None:
        collective = spec.get("collective", "ring")
        if spec.get("workload") != "train" or not parse_collective(collective).stepless:
            return
        ranks = () if isinstance(gpus_or_count, int) else gpus_or_count
        try:
            plane = plane_of(self._fabric, ranks, collective)
        except Misfit as error:
            raise InvalidError(f"collective {collective}: {error}") from None
        if on_loss != "fail":
            why = f"{plane} needs all its servers; on_loss must be fail"
            raise InvalidError(f"collective {collective}: {why}")

    def _check_graph(self, graph: str, gpus_or_count: Sequence[str] | int) -> None:
        try:
            ranks = self.workloads.document(graph)["ranks"]
        except NotFoundError as error:
            raise InvalidError(f"graph: {error}") from None
        if ranks != (size := gpus_or_count if isinstance(gpus_or_count, int) else len(gpus_or_count)):
            raise InvalidError(f"graph: it is for {ranks} ranks, and the job has {size}")

    def _check_spares(self, ranks: Sequence[str], spares: Sequence[str], holders: Mapping[str, str]) -> None:
        for index, gpu in enumerate(spares):
            if gpu not in self._fabric.gpus:
                raise InvalidError(f"spares: there is no GPU {gpu}")
            if gpu in ranks or gpu in spares[:index]:
                raise InvalidError(f"spares: GPU {gpu} is used twice")
            if gpu in holders:
                raise ConflictError(f"spares: GPU {gpu} is reserved by job {holders[gpu]}")

    def light_plan(
        self,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        name: str | None = None,
        holders: Mapping[str, str] | None = None,
    ) -> tuple[Plane, Light] | None:
        """Return the plane of such a job and the light that it would get there; None on packet switches.

        Everything that the light needs is checked, and nothing is changed. ``name``: name of the plane, if
        given. ``holders``: the job that has each taken GPU, if not as now. Raises InvalidError,
        ConflictError, UnavailableError.
        """
        holders = self.holders() if holders is None else holders
        refusals: list[ControllerError] = []
        for plane in planes_for(self._fabric, gpus_or_count, name):
            try:
                light = self._planned(plane, gpus_or_count, spec, holders)
            except (InvalidError, ConflictError) as refusal:
                refusals.append(refusal)
                continue
            self._provider(plane).check(light)
            return plane, light
        if refusals:
            # A conflict, which may pass, is reported before a refusal for ever.
            raise min(refusals, key=lambda refusal: not isinstance(refusal, ConflictError))
        return None

    def _planned(
        self,
        plane: Plane,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        holders: Mapping[str, str],
    ) -> Light:
        provider = self._provider(plane)
        light: Light = provider.plan(plane, placed(plane, gpus_or_count, holders, alone=provider.alone), spec)
        return light

    def _submit(
        self,
        name: str,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        hold: bool,
        placement: tuple[Plane, Light] | None,
        agent: AgentClient,
        on_loss: OnLoss,
        spares: Sequence[str],
    ) -> JobDocument:
        with self._lock:
            if placement is None:
                # A number of GPUs without a plane means those that packet switches join.
                out = {*self._dead_gpus, *spares} if isinstance(gpus_or_count, int) else ()
                joined = packets(self._fabric).nodes if isinstance(gpus_or_count, int) else self._fabric.gpus
                eligible = tuple(gpu for gpu in joined if gpu not in out)
                gpus = reserve(eligible, self._holders(), self._switch_of(), gpus_or_count)
            else:
                gpus = reserve(placement[1].nodes, self._holders(), {}, placement[1].nodes)
            job = Job(
                id=self._new_id(name),
                name=name,
                ranks=[Rank(rank, gpu) for rank, gpu in enumerate(gpus)],
                spec=dict(spec),
                hold=hold,
                t_submitted=time.monotonic(),
                on_loss=on_loss,
                spares=list(spares),
            )
            if placement is not None:
                light = self._lights[job.id] = placement[1]
                job.plane, job.switches = light.place, list(light.switches)
            self._jobs[job.id] = job
            self._keep(job)
            self._changed.notify_all()
            document = job.document()
        self._spawn(self._start_workers, job, agent)
        self._wake.set()
        return document

    def release(self, ids: Sequence[str], delay_s: float) -> list[JobDocument]:
        """Start these READY jobs together ``delay_s`` seconds from now, all or none. Return their documents.

        Raises NotFoundError, UnavailableError; ConflictError for a job that is not READY.
        """
        agent = self._need_agent()
        with self._lock:
            jobs = [self._job(job_id) for job_id in dict.fromkeys(ids)]
            for job in jobs:
                if job.state is not JobState.READY:
                    raise ConflictError(f"job {job.id} is {job.state.value}, not READY")
        start_s = time.monotonic() + delay_s
        agent.release([worker for job in jobs for worker in job.workers], start_s)
        with self._lock:
            for job in jobs:
                note_release(job, start_s)
                if job.state is JobState.READY:
                    self._enter(job, JobState.RUNNING)
            self._save()
            return [job.document() for job in jobs]

    def cancel(self, job_id: str) -> JobDocument:
        """Stop a job and free its GPUs, unless the job has ended. Return its document."""
        with self._lock:
            job = self._job(job_id)
            if not job.state.ended:
                self._end(job, JobState.CANCELLED)
            return job.document()

    def jobs(self) -> list[JobDocument]:
        with self._lock:
            return [job.document() for job in self._jobs.values()]

    def job(self, job_id: str) -> JobDocument:
        with self._lock:
            return self._job(job_id).document()

    def holders(self) -> dict[str, str]:
        """Return the job that has each taken GPU."""
        with self._lock:
            return self._holders()

    def light_counters(self) -> Mapping[str, Any]:
        """Return the counters of the O-NICs and WSSs, which only the machine that emulates them has."""
        return self._need_agent().onic_counters()

    def output(self, job_id: str, rank: int) -> JobOutput:
        """Return the output that a rank's command wrote. Raises NotFoundError, UnavailableError."""
        with self._lock:
            job = self._job(job_id)
            if guest_of(job.spec) is None or not 0 <= rank < len(job.ranks):
                raise NotFoundError(f"job {job_id} has no command at rank {rank}")
            worker = job.worker(rank)
        texts = self._need_agent().output(worker)
        return {"rank": rank, "stdout": texts["stdout"], "stderr": texts["stderr"]}

    def events(self, job_id: str, cursor: int, *, fresh: bool = False) -> JobEvents:
        """Return the worker events of a job after ``cursor``, and the next cursor.

        ``fresh``: first read the workers' state, waiting at most ``_FRESH_S`` seconds.
        """
        asked_s = time.monotonic()
        with self._changed:
            if fresh and not self._job(job_id).state.ended:
                self._wake.set()
                self._changed.wait_for(lambda: self._looked_s >= asked_s or self._stop.is_set(), _FRESH_S)
            events = self._job(job_id).events
            return {"cursor": len(events), "events": events[max(0, cursor) :]}

    def running(self, ids: Iterable[str] | None = None) -> list[Job]:
        """Return the jobs that hold GPUs and have not ended; only those in ``ids``, if given.

        Raises NotFoundError; ConflictError if a job in ``ids`` has ended.
        """
        with self._lock:
            chosen = [self._job(i) for i in ids] if ids is not None else list(self._jobs.values())
            for job in chosen:
                if ids is not None and job.state.ended:
                    raise ConflictError(f"job {job.id} has ended ({job.state.value})")
            return [job for job in chosen if not job.state.ended]

    # Internals

    def _need_agent(self) -> AgentClient:
        if self._agent is None:
            raise UnavailableError("the inventory names no server agent")
        return self._agent

    def _provider(self, plane: Plane) -> LightProvider[Any]:
        """Return the provider of a plane's light. Raises InvalidError if there is none."""
        if plane.kind not in self._providers:
            raise InvalidError(f"nobody lights {plane}")
        return self._providers[plane.kind]

    def _lit_by(self, job: Job) -> LightProvider[Any] | None:
        """Return the provider that lights a job that was accepted; None on packet switches."""
        return None if job.plane is None else self._provider(self._planes[job.plane])

    def _job(self, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id}")
        return job

    def _holders(self) -> dict[str, str]:
        going = [job for job in self._jobs.values() if not job.state.ended]
        return {gpu: job.id for job in going for gpu in (*job.gpus, *job.kept)}

    def _vacated(self, job: Job) -> bool:
        """Return whether no ended job has workers left on this job's GPUs, or light on the plane that this
        job has alone.
        """
        provider = self._lit_by(job)
        alone = provider is not None and provider.alone
        return not any(
            other.state.ended
            and not other.clean
            and (set(other.gpus) & set(job.gpus) or (alone and other.plane == job.plane))
            for other in self._jobs.values()
            if other is not job
        )

    def _new_id(self, name: str) -> str:
        number, job_id = 1, name
        while job_id in self._jobs:
            number += 1
            job_id = f"{name}-{number}"
        return job_id

    def _start_workers(self, job: Job, agent: AgentClient) -> None:
        with self._changed:
            vacated = self._changed.wait_for(
                lambda: job.state.ended or self._stop.is_set() or self._vacated(job), _VACATE_S
            )
            if job.state.ended or self._stop.is_set():
                return
            if not vacated:
                job.error = f"not started: its GPUs were not freed within {_VACATE_S:g} s"
                self._end(job, JobState.FAILED)
                return
            self._starting.add(job.id)
            self._enter(job, JobState.STARTING)
        self._launch(job, agent)

    def _launch(self, job: Job, agent: AgentClient) -> None:
        """Light for the job, then its workers; it fails if that cannot be. ``_starting`` must have it."""
        peers = [self._fabric.gpus[gpu].ip for gpu in job.gpus]
        graph = job.spec.get("graph")
        standing = job.plane is not None and self._planes[job.plane].standing
        workers = [
            {
                "job": job.id,
                "rank": r.rank,
                "gpu": r.gpu,
                "attempt": job.attempt,
                "checkpoint": job.on_loss != "fail",
                "graph": graph,
                "guest": guest_request(job),
                "spec": worker_spec(job, r.rank, peers, self._flow_sockets.get(r.gpu), standing=standing),
            }
            for r in job.ranks
        ]
        error: ControllerError | None = None
        try:
            if (provider := self._lit_by(job)) is not None:
                provider.light(job.id, self._lights[job.id])
            lit_s = time.monotonic()
            if graph is not None:
                agent.put_workload(graph, self.workloads.read(graph))
            if not job.state.ended:
                agent.start(workers, timeout_s=_START_S)
        except ControllerError as failure:
            error = failure
        finally:
            self._started(job)
        dead = frozenset[str]() if error is None or job.on_loss == "fail" else self._lost_gpus(agent)
        with self._lock:
            if error is None:
                job.started = True
                note_start(job, lit_s, time.monotonic())
                self._save()
                if job.plane is None and (spares := job.kept[:_WAITING]) and not job.losses:
                    self._spawn(self._start_spares, job, agent, spares)
            elif not job.state.ended and not self._stop.is_set():
                job.error = f"not started: {error}"
                for rank in job.ranks:
                    if rank.gpu in dead:
                        rank.state, rank.error = "gone", "its GPU is lost"
                if lose(job, dead, time.monotonic()):
                    self._enter(job, JobState.RECOVERING)
                    self._spawn(self._recover, job, agent)
                else:
                    self._end(job, JobState.FAILED)
        self._wake.set()

    def _start_spares(self, job: Job, agent: AgentClient, spares: Sequence[str]) -> None:
        """Have processes wait on spares. The job does without one that cannot be: its worker starts later."""
        for gpu in spares:
            try:
                if not job.state.ended:
                    agent.start_spares(job.id, [gpu])
            except ControllerError as error:
                log.warning("job %s: nothing waits on its spare: %s", job.id, error)
        if job.state.ended:
            # Its workers may have been removed before.
            self._remove_spares(job)

    def _remove_spares(self, job: Job) -> None:
        for gpu in job.spares[:_WAITING]:
            self._remove_worker(f"{job.id}-spare-{gpu}")

    def _lost_gpus(self, agent: AgentClient) -> frozenset[str]:
        """Return the GPUs that are lost by now; empty if the agent does not answer."""
        try:
            return frozenset(agent.workers(self._cursor)["lost_gpus"])
        except ControllerError:
            return frozenset()

    def _started(self, job: Job) -> None:
        """Note that starting the job has ended, in success or failure."""
        with self._changed:
            self._starting.discard(job.id)
            self._changed.notify_all()

    # A GPU was lost

    def _recover(self, job: Job, agent: AgentClient) -> None:
        """Stop the rest of a job that lost ranks, then restart it on other GPUs, from its newest state.

        May be repeated after a restart of the controller. Everything is repeated until the new ranks are
        recorded, then only the remaining steps.
        """
        with self._lock:
            if job.state.ended:
                return
            self._starting.add(job.id)
            lost = [loss.rank for loss in pending_losses(job)]
        try:
            self._until_done(f"workers of job {job.id}", lambda agent: agent.halt(job.id))
            stopped = time.monotonic()
            if lost:
                self._clear_light(job, _CLEAR_S)
            if lost and not self._stop.is_set():
                iteration = agent.choose_state(job.id, lost)
                with self._submitting:
                    gpus, placement = self._gpus_after(job, lost)
                    with self._lock:
                        go_on(job, gpus, iteration, stopped, time.monotonic())
                        if placement is not None:
                            self._lights[job.id], job.switches = placement[1], list(placement[1].switches)
                        self._save()
        except ControllerError as error:
            self._started(job)
            with self._lock:
                # A failure because this controller ends is left to the next controller.
                if not job.state.ended and not self._stop.is_set():
                    job.error = f"{job.losses[-1].reason}, and it cannot go on: {error}"
                    self._end(job, JobState.FAILED)
            return
        if self._stop.is_set() or job.state.ended:
            self._started(job)
            return
        self._launch(job, agent)

    def _gpus_after(
        self, job: Job, lost: Collection[int]
    ) -> tuple[Sequence[str], tuple[Plane, Light] | None]:
        """Return the job's GPUs in rank order after it lost these ranks, and their light.

        Raises ControllerError.
        """
        left = [rank.gpu for rank in job.ranks if rank.rank not in lost]
        with self._lock:
            other_holders = {gpu: holder for gpu, holder in self._holders().items() if holder != job.id}
            # Workers of an ended job may still be on its GPUs.
            busy = {
                gpu
                for other in self._jobs.values()
                if other.state.ended and not other.clean
                for gpu in other.gpus
            }
        if job.on_loss == "shrink":
            if len(left) < 2:
                raise ConflictError("one rank is too few")
            return left, self._plan_again(job, left, other_holders)
        gone = busy.union(other_holders, job.gpus, self._dead_gpus, (loss.gpu for loss in job.losses))
        pool = job.spares or plane_of(self._fabric, job.gpus).nodes
        spares = [gpu for gpu in pool if gpu not in gone]
        if job.plane is None:
            spares = [g for g in spares_for(left, spares, self._switch_of()) if self._reaches(g, left)]
        if len(spares) < len(lost):
            among = f" of {', '.join(job.spares)}" if job.spares else ""
            there = ", ".join(spares) or "none"
            raise ConflictError(f"spare GPUs needed: {len(lost)}; free and reachable{among}: {there}")
        refused: ControllerError | None = None
        for chosen in itertools.islice(itertools.permutations(spares, len(lost)), _CHOICES):
            instead = dict(zip(lost, chosen, strict=True))
            gpus = [instead.get(rank.rank, rank.gpu) for rank in job.ranks]
            try:
                return gpus, self._plan_again(job, gpus, other_holders)
            except ControllerError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    def _plan_again(
        self, job: Job, gpus: Sequence[str], other_holders: Mapping[str, str]
    ) -> tuple[Plane, Light] | None:
        """Return the job's light on these GPUs; None on packet switches.

        Raises ControllerError if its collective cannot run there.
        """
        try:
            steps_named(job.spec.get("collective", "ring"), len(gpus))
        except ValueError as error:
            raise InvalidError(str(error)) from error
        return None if job.plane is None else self.light_plan(gpus, job.spec, job.plane, other_holders)

    def _enter(self, job: Job, state: JobState) -> None:
        job.enter(state, time.monotonic())
        self._keep(job)

    def _keep(self, job: Job) -> None:
        """Keep the state on disk and tell it."""
        self._save()
        fields = {"name": job.name, "state": job.state.value, "error": job.error, "gpus": list(job.gpus)}
        self._bus.publish("job", job=job.id, **fields)

    def _end(self, job: Job, state: JobState) -> None:
        self._enter(job, state)
        self._spawn(self._remove_workers, job)

    def _remove_workers(self, job: Job) -> None:
        """Remove every worker of a job that has ended, its maps and light, then free its GPUs.

        Each is tried until it works.
        """
        with self._changed:
            self._changed.wait_for(lambda: job.id not in self._starting or self._stop.is_set(), _START_S)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(self._remove_worker, job.workers))
        if job.plane is None:
            self._remove_spares(job)
        self._clear_light(job)
        if job.on_loss != "fail":
            self._until_done(f"states of job {job.id}", lambda agent: agent.remove_states(job.id))
        if self._stop.is_set():
            return
        with self._changed:
            job.clean = True
            self._lights.pop(job.id, None)
            self._save()
            self._changed.notify_all()
        self._bus.publish("job_clean", job=job.id, gpus=list(job.gpus))

    def _clear_light(self, job: Job, timeout_s: float = math.inf) -> None:
        """Tried until it works. Raises UnavailableError after ``timeout_s``."""
        provider = self._lit_by(job)
        if provider is None:
            return
        light = self._lights[job.id]
        pause_s, deadline = 0.5, time.monotonic() + timeout_s
        while not self._stop.is_set() and (problems := provider.clear(job.id, light)):
            log.warning("light of job %s not cleared: %s", job.id, problems[0])
            if time.monotonic() + pause_s > deadline:
                raise UnavailableError(f"its light is not cleared after {timeout_s:g} s: {problems[0]}")
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, 10.0)

    def _remove_worker(self, worker: str) -> None:
        self._until_done(f"worker {worker}", lambda agent: agent.remove(worker))

    def _until_done(self, what: str, remove: Callable[[AgentClient], None]) -> None:
        """Have the agent remove something; tried until it works."""
        while self._agent is not None and not self._stop.is_set():
            try:
                remove(self._agent)
            except ControllerError as error:
                log.warning("%s not removed: %s", what, error)
                self._stop.wait(1.0)
            else:
                return

    def _save(self) -> None:
        self._store.write(_JOBS, {"jobs": [job.record() for job in self._jobs.values()]})

    def _spawn(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run in a thread of its own; what it raises is logged."""

        def run() -> None:
            try:
                work(*arguments)
            except ControllerError as error:
                log.error("%s", error)
            except Exception:
                log.exception("%s failed", work.__name__)
            finally:
                self._tasks.discard(threading.current_thread())

        task = threading.Thread(target=run, name=f"jobs-{work.__name__}", daemon=True)
        self._tasks.add(task)
        task.start()

    def _listen(self) -> None:
        """Look at the workers as soon as one has ended."""
        known = 0
        while self._agent is not None and not self._stop.is_set():
            with self._changed:
                if not self._busy():
                    self._changed.wait_for(lambda: self._busy() or self._stop.is_set())
                    continue
            try:
                ends = self._agent.ends(known, _LISTEN_S)
            except ControllerError:
                # That it does not answer is told by whoever looks.
                self._stop.wait(1.0)
                continue
            if ends != known:
                known = ends
                self._wake.set()

    def _busy(self) -> bool:
        """Return whether any job has workers, or may have some. The caller holds the lock."""
        return any(not (job.state.ended and job.clean) for job in self._jobs.values())

    def _run(self) -> None:
        if self._agent is None:
            return
        first = True
        period_s = 0.0
        while not self._stop.is_set():
            self._wake.wait(period_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            with self._lock:
                busy = self._busy()
                # An answer may be older than a start that ends while it is on its way.
                complete = {job.id for job in self._jobs.values() if job.started}
                hasty = any(job.state is JobState.RECOVERING and job.started for job in self._jobs.values())
            begun_s = time.monotonic()
            period_s = self._busy_s if busy else self._idle_s
            period_s = min(period_s, _HASTE_S) if hasty else period_s
            try:
                answer = self._agent.workers(self._cursor)
            except ControllerError as error:
                if self._agent_error is None:
                    self._bus.publish("agent", state="down", text=str(error))
                self._agent_error = str(error)
                continue
            if self._agent_error is not None:
                self._bus.publish("agent", state="up")
                self._agent_error = None
            try:
                self._digest(answer, complete, first)
            except Exception:
                # One odd answer must not end the watch over all jobs.
                log.exception("the agent's answer could not be used")
            first = False
            with self._changed:
                self._looked_s = begun_s
                self._changed.notify_all()

    def _digest(self, answer: Mapping[str, Any], complete: Collection[str], first: bool) -> None:
        """Take in one answer of the agent and move every job on.

        ``complete``: jobs whose workers had all been started when it was asked.
        """
        release: list[Job] = []
        with self._lock:
            self._cursor = answer["cursor"]
            self._dead_gpus = frozenset(answer["lost_gpus"])
            for event in answer["events"]:
                job = self._jobs.get(event["job"])
                if job is not None:
                    note_event(job, event)
            workers = {worker["id"]: worker for worker in answer["workers"]}
            for job in self._jobs.values():
                if first:
                    enter_told(job)
                    self._resume(job, workers)
                if job.state.ended:
                    continue
                note_workers(job, workers, complete=job.id in complete)
                state = progress(job, time.monotonic())
                if state is job.state:
                    continue
                if state is JobState.FAILED and self._agent and lose(job, self._dead_gpus, time.monotonic()):
                    self._enter(job, JobState.RECOVERING)
                    self._spawn(self._recover, job, self._agent)
                    continue
                if state.ended:
                    self._end(job, state)
                    continue
                self._enter(job, state)
                if state is JobState.READY and goes_by_itself(job):
                    release.append(job)
        for job in release:
            self._spawn(self.release, [job.id], _HASTE_S if job.losses else 0.05)

    def _resume(self, job: Job, workers: Mapping[str, Any]) -> None:
        """Finish what the earlier controller had begun, once after a restart."""
        if job.state.ended and not job.clean:
            self._spawn(self._remove_workers, job)
        elif job.state is JobState.READY and goes_by_itself(job):
            self._spawn(self.release, [job.id], 0.05)
        elif job.state is JobState.PENDING and self._agent is not None:
            if job.t_submitted < self._born:
                self._spawn(self._start_workers, job, self._agent)
        elif not job.state.ended and not job.started:
            if all(worker in workers for worker in job.workers) and not pending_losses(job):
                job.started = True
            elif job.state is JobState.RECOVERING and self._agent is not None:
                self._spawn(self._recover, job, self._agent)
            elif job.t_submitted < self._born:
                job.error = "the controller was restarted while the workers were being started"
                self._end(job, JobState.FAILED)


def guest_request(job: Job) -> dict[str, Any] | None:
    """Return the request for the guest that the agent runs next to each of a job's workers; None if the
    workers do the work themselves.
    """
    guest = guest_of(job.spec)
    if guest is None:
        return None
    settings = {key: value for key, value in guest.items() if key != "deadline_s"}
    return {
        "kind": job.spec["workload"],
        "settings": {**settings, "port": job.spec.get("port", MASTER_PORT)},
    }


def holder_port(port: int) -> int:
    """Return the port of the processes that hold NICs, next to the guest's port."""
    return port - 1 if port > 1 else port + 1


def worker_spec(
    job: Job, rank: int, peers: Sequence[str], flow_socket: str | None = None, *, standing: bool = False
) -> dict[str, Any]:
    """Return the settings of one worker: the job's settings, its rank, its peers' addresses, its O-NIC's
    socket.

    If light is ``standing``, the worker does not request light, but reports what it has begun to send.
    """
    spec = {"job": job.id, "rank": rank, "world_size": len(peers), "peers": list(peers), **job.spec}
    # A job that was stored has its ranks written as text.
    slower = {int(number): factor for number, factor in (spec.pop("slower", None) or {}).items()}
    if (guest := guest_of(job.spec)) is not None:
        del spec[spec["workload"]]
        # Its own connections are beside those of the guest.
        port = holder_port(spec.get("port", MASTER_PORT))
        spec |= {"workload": "hold", "port": port, "deadline_s": guest["deadline_s"]}
    if spec.pop("graph", None) is not None:
        spec["slower"] = slower.get(rank, 1.0)
    elif rank in slower:
        spec["compute_s"] = slower[rank] * spec["compute_s"]
    if job.iteration:
        spec["resume"] = job.iteration
    if standing:
        spec["posted"] = True
    elif flow_socket is not None:
        spec["onic"] = flow_socket
    linktest = job.spec.get("linktest")
    if linktest is not None:
        spec["linktest"] = {**linktest, "to": linktest_targets(job.spec, len(peers))[rank]}
    return spec
