"""Manage jobs: reserve GPUs, start workers, follow them, and clean up after them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ConflictError, NotFoundError
from ringlight.controller.jobs.admission import check_place, check_request
from ringlight.controller.jobs.agent_watch import HASTE_S, AgentWatch
from ringlight.controller.jobs.background import Background
from ringlight.controller.jobs.cleanup import Cleanup
from ringlight.controller.jobs.job import (
    Job,
    JobDocument,
    JobEvents,
    JobOutput,
    JobState,
    OnLoss,
    Rank,
    guest_of,
    insert_announced,
    note_event,
    note_workers,
    progress,
)
from ringlight.controller.jobs.job_book import JobBook
from ringlight.controller.jobs.job_lights import JobLights
from ringlight.controller.jobs.launching import Launcher
from ringlight.controller.jobs.light_provider import Light, LightProvider
from ringlight.controller.jobs.losses import (
    goes_by_itself,
    lose,
    note_release,
    pending_losses,
)
from ringlight.controller.jobs.replacements import Replacements
from ringlight.controller.jobs.reservation import (
    JOB,
    Holder,
    Reservations,
    reserve,
)
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.server_agent import AgentClient, required_agent
from ringlight.controller.store import Store
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Longest wait of somebody who asks for a look at the workers, seconds.
_FRESH_S = 0.1


class JobManager:
    """Owner of the jobs of a fabric.

    A stored job is adopted: its workers continue, and the agent replays their events. ``switch_of``: returns
    the packet switch that each GPU is lit to now. ``reaches``: returns whether packets get from a GPU to all
    of some other GPUs and back. ``lights``: providers of jobs' light, by kind of plane. ``flow_sockets``:
    socket at which a worker requests light, by GPU with an O-NIC. ``workloads``: workloads that jobs may
    execute. ``reservations``: book of who has each GPU, into which the jobs go.
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
        reservations: Reservations,
        busy_s: float = 0.1,
        idle_s: float = 0.5,
    ) -> None:
        self._fabric = fabric
        self._agent = agent
        self.switches = switch_of
        self._reservations = reservations
        self.workloads = workloads
        self._born = time.monotonic()
        self._stop = threading.Event()
        self._background = Background()
        self._book = JobBook(store, bus)
        self._reservations.add(JOB, self._book.holders)
        self._lights = JobLights(fabric, lights or {})
        self._cleanup = Cleanup(
            agent, self._book, self._lights, bus, self._background, self._stop
        )
        self._watch = AgentWatch(
            agent,
            self._book,
            bus,
            self._digest,
            self._stop,
            busy_s=busy_s,
            idle_s=idle_s,
        )
        self._launcher = Launcher(
            fabric,
            self._book,
            self._lights,
            self._cleanup,
            Replacements(
                fabric,
                self._book,
                self._lights,
                switch_of,
                reaches,
                self._reservations,
            ),
            self._background,
            workloads,
            flow_sockets or {},
            self._reservations.choosing,
            self._watch.look_soon,
            self._stop,
        )

    # Life

    def start(self) -> None:
        """Take over the jobs of an earlier run and follow all workers.

        A stored job that cannot be used is set aside. Raises ValueError on a file that is no JSON.
        """
        self._book.load(self._take_over)
        self._watch.start()

    def _take_over(self, record: Mapping[str, Any]) -> None:
        """Adopt a stored job with its light.

        Raises ValueError, KeyError, TypeError, AttributeError or InvalidError if the record is not a job of
        this fabric.
        """
        job = Job.from_record(record)
        light = self._lights.stored(job)
        self._book.jobs[job.id] = job
        if not job.state.ended:
            log.info("adopting job %s", job.id)
        if light is not None:
            self._lights.take_over(job, light)

    @property
    def set_aside(self) -> list[str]:
        """A line for each stored job that cannot be used."""
        return self._book.set_aside

    def stop(self) -> None:
        """Stop following; the workers go on."""
        self._stop.set()
        self._watch.join(10.0)
        self._background.join(2.0)

    @property
    def agent_error(self) -> str | None:
        """Reason for which the agent does not answer; None if it does."""
        return self._watch.error

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
        agent = required_agent(self._agent)
        with self._reservations.choosing:
            holders = self._reservations.holders()
            check_request(
                self._fabric,
                self.workloads,
                gpus_or_count,
                spec,
                on_loss,
                spares,
                holders,
            )
            placement = self.light_plan(
                gpus_or_count,
                spec,
                plane,
                holders | dict.fromkeys(spares, Holder(JOB, name)),
            )
            check_place(self._fabric, placement and placement[0], spec, on_loss, spares)
            return self._submit(
                name,
                gpus_or_count,
                spec,
                hold,
                placement,
                agent,
                on_loss,
                spares,
                holders,
            )

    def light_plan(
        self,
        gpus_or_count: Sequence[str] | int,
        spec: Mapping[str, Any],
        name: str | None = None,
        holders: Mapping[str, Holder] | None = None,
    ) -> tuple[Plane, Light] | None:
        """Return the plane of such a job and the light that it would get there; None on packet switches.

        See :meth:`.JobLights.plan`. ``holders``: holder of each taken GPU, if not as now.
        """
        holders = self._reservations.holders() if holders is None else holders
        return self._lights.plan(gpus_or_count, spec, name, holders)

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
        holders: Mapping[str, Holder],
    ) -> JobDocument:
        taken_names = {holder.name for holder in holders.values()}
        with self._book.lock:
            if placement is None:
                # Without a plane a number means GPUs that packet switches join.
                counted = isinstance(gpus_or_count, int)
                gpus = reserve(
                    packets(self._fabric).nodes
                    if counted
                    else tuple(self._fabric.gpus),
                    holders,
                    self.switches(),
                    gpus_or_count,
                    out={*self._book.dead_gpus, *spares},
                )
            else:
                gpus = reserve(placement[1].nodes, holders, {}, placement[1].nodes)
            job = Job(
                id=self._book.new_id(name, taken_names),
                name=name,
                ranks=[Rank(rank, gpu) for rank, gpu in enumerate(gpus)],
                spec=dict(spec),
                hold=hold,
                t_submitted=time.monotonic(),
                on_loss=on_loss,
                spares=list(spares),
            )
            if placement is not None:
                self._lights.give(job, placement[1])
            self._book.jobs[job.id] = job
            self._book.keep(job)
            self._book.changed.notify_all()
            document = job.document()
        self._background.spawn(self._launcher.start, job, agent)
        self._watch.look_soon()
        return document

    def release(self, ids: Sequence[str], delay_s: float) -> list[JobDocument]:
        """Start these READY jobs together ``delay_s`` seconds from now, all or none. Return their documents.

        Raises NotFoundError, UnavailableError; ConflictError for a job that is not READY.
        """
        agent = required_agent(self._agent)
        with self._book.lock:
            jobs = [self._book.find(job_id) for job_id in dict.fromkeys(ids)]
            for job in jobs:
                if job.state is not JobState.READY:
                    raise ConflictError(f"job {job.id} is {job.state.value}, not READY")
        start_s = time.monotonic() + delay_s
        agent.release([worker for job in jobs for worker in job.workers], start_s)
        with self._book.lock:
            for job in jobs:
                note_release(job, start_s)
                if job.state is JobState.READY:
                    self._book.enter(job, JobState.RUNNING)
            self._book.save()
            return [job.document() for job in jobs]

    def cancel(self, job_id: str) -> JobDocument:
        """Stop a job and free its GPUs, unless the job has ended. Return its document."""
        with self._book.lock:
            job = self._book.find(job_id)
            if not job.state.ended:
                self._cleanup.end(job, JobState.CANCELLED)
            return job.document()

    def jobs(self) -> list[JobDocument]:
        with self._book.lock:
            return [job.document() for job in self._book.jobs.values()]

    def job(self, job_id: str) -> JobDocument:
        with self._book.lock:
            return self._book.find(job_id).document()

    def holders(self) -> dict[str, str]:
        """Return the job that has each taken GPU."""
        return self._book.holders()

    @property
    def lost_gpus(self) -> frozenset[str]:
        """The GPUs that a fault has taken, as the agent last reported."""
        return self._book.dead_gpus

    def light_counters(self) -> Mapping[str, Any]:
        """Return the counters of the O-NICs and WSSs, which only the machine that emulates them has."""
        return required_agent(self._agent).onic_counters()

    def output(self, job_id: str, rank: int) -> JobOutput:
        """Return the output that a rank's command wrote. Raises NotFoundError, UnavailableError."""
        with self._book.lock:
            job = self._book.find(job_id)
            if guest_of(job.spec) is None or not 0 <= rank < len(job.ranks):
                raise NotFoundError(f"job {job_id} has no command at rank {rank}")
            worker = job.worker(rank)
        texts = required_agent(self._agent).output(worker)
        return {"rank": rank, "stdout": texts["stdout"], "stderr": texts["stderr"]}

    def events(self, job_id: str, cursor: int, *, fresh: bool = False) -> JobEvents:
        """Return the worker events of a job after ``cursor``, and the next cursor.

        ``fresh``: first read the workers' state, waiting at most ``_FRESH_S`` seconds.
        """
        asked_s = time.monotonic()
        with self._book.changed:
            if fresh and not self._book.find(job_id).state.ended:
                self._watch.wait_for_look(asked_s, _FRESH_S)
            events = self._book.find(job_id).events
            return {"cursor": len(events), "events": events[max(0, cursor) :]}

    def running(self, ids: Iterable[str] | None = None) -> list[Job]:
        """Return the jobs that hold GPUs and have not ended; only those in ``ids``, if given.

        Raises NotFoundError; ConflictError if a job in ``ids`` has ended.
        """
        return self._book.running(ids)

    # Internals

    def _digest(
        self, answer: Mapping[str, Any], complete: Collection[str], first: bool
    ) -> None:
        """Take in one answer of the agent and move every job on.

        ``complete``: jobs whose workers had all been started when it was asked.
        """
        release: list[Job] = []
        with self._book.lock:
            self._book.cursor = answer["cursor"]
            self._book.take_lost(answer["lost_gpus"])
            for event in answer["events"]:
                job = self._book.jobs.get(event["job"])
                if job is not None:
                    note_event(job, event)
            workers = {worker["id"]: worker for worker in answer["workers"]}
            for job in self._book.jobs.values():
                if first:
                    insert_announced(job)
                    self._resume(job, workers)
                if job.state.ended:
                    continue
                note_workers(job, workers, complete=job.id in complete)
                state = progress(job, time.monotonic())
                if state is job.state:
                    continue
                dead = self._book.dead_gpus
                if (
                    state is JobState.FAILED
                    and self._agent
                    and lose(job, dead, time.monotonic())
                ):
                    self._book.enter(job, JobState.RECOVERING)
                    self._background.spawn(self._launcher.recover, job, self._agent)
                    continue
                if state.ended:
                    self._cleanup.end(job, state)
                    continue
                self._book.enter(job, state)
                if state is JobState.READY and goes_by_itself(job):
                    release.append(job)
        for job in release:
            self._background.spawn(
                self.release, [job.id], HASTE_S if job.losses else 0.05
            )

    def _resume(self, job: Job, workers: Mapping[str, Any]) -> None:
        """Finish what the earlier controller had begun, once after a restart."""
        if job.state.ended and not job.clean:
            self._cleanup.begin(job)
        elif job.state is JobState.READY and goes_by_itself(job):
            self._background.spawn(self.release, [job.id], 0.05)
        elif job.state is JobState.PENDING and self._agent is not None:
            if job.t_submitted < self._born:
                self._background.spawn(self._launcher.start, job, self._agent)
        elif not job.state.ended and not job.started:
            if all(worker in workers for worker in job.workers) and not pending_losses(
                job
            ):
                job.started = True
            elif job.state is JobState.RECOVERING and self._agent is not None:
                self._background.spawn(self._launcher.recover, job, self._agent)
            elif job.t_submitted < self._born:
                job.error = (
                    "the controller was restarted while the workers were being started"
                )
                self._cleanup.end(job, JobState.FAILED)
