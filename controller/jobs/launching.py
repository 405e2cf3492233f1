"""Start the workers of jobs, and start them again on other GPUs after a loss."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ringlight.controller.errors import ControllerError
from ringlight.controller.jobs.background import Background
from ringlight.controller.jobs.cleanup import START_S, WAITING, Cleanup
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.job_book import JobBook
from ringlight.controller.jobs.job_lights import JobLights
from ringlight.controller.jobs.losses import go_on, lose, note_start, pending_losses
from ringlight.controller.jobs.replacements import Replacements
from ringlight.controller.jobs.worker_settings import guest_request, worker_spec
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.server_agent import AgentClient
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Longest wait for the workers of an ended job to go from GPUs that the next job has, seconds.
_VACATE_S = 60.0
#: Longest wait for the light of a job that lost a GPU to be cleared, seconds.
_CLEAR_S = 30.0


class Launcher:
    """Brings jobs from PENDING or RECOVERING to their workers' start, or ends them.

    ``choosing``: held while GPUs are chosen. ``look_soon``: has the workers looked at without delay.
    ``stop``: set when the controller ends.
    """

    def __init__(
        self,
        fabric: Fabric,
        book: JobBook,
        lights: JobLights,
        cleanup: Cleanup,
        replacements: Replacements,
        background: Background,
        workloads: WorkloadFiles,
        flow_sockets: Mapping[str, str],
        choosing: threading.Lock,
        look_soon: Callable[[], None],
        stop: threading.Event,
    ) -> None:
        self._fabric, self._book, self._lights = fabric, book, lights
        self._cleanup, self._replacements, self._background = (
            cleanup,
            replacements,
            background,
        )
        self._workloads, self._flow_sockets = workloads, flow_sockets
        self._choosing, self._look_soon, self._stop = choosing, look_soon, stop

    def start(self, job: Job, agent: AgentClient) -> None:
        """Start a job's workers once its GPUs are free; it fails if that cannot be."""
        alone = self._lights.alone(job)
        with self._book.changed:
            vacated = self._book.changed.wait_for(
                lambda: (
                    job.state.ended
                    or self._stop.is_set()
                    or self._book.vacated(job, alone)
                ),
                _VACATE_S,
            )
            if job.state.ended or self._stop.is_set():
                return
            if not vacated:
                job.error = (
                    f"not started: its GPUs were not freed within {_VACATE_S:g} s"
                )
                self._cleanup.end(job, JobState.FAILED)
                return
            self._book.starting.add(job.id)
            self._book.enter(job, JobState.STARTING)
        self._launch(job, agent)

    def _launch(self, job: Job, agent: AgentClient) -> None:
        """Light for the job, then its workers; it fails if that cannot be. ``starting`` must have it."""
        peers = [self._fabric.gpus[gpu].ip for gpu in job.gpus]
        graph = job.spec.get("graph")
        standing = self._lights.standing(job)
        workers = [
            {
                "job": job.id,
                "rank": r.rank,
                "gpu": r.gpu,
                "attempt": job.attempt,
                "checkpoint": job.on_loss != "fail",
                "graph": graph,
                "guest": guest_request(job),
                "spec": worker_spec(
                    job, r.rank, peers, self._flow_sockets.get(r.gpu), standing=standing
                ),
            }
            for r in job.ranks
        ]
        error: ControllerError | None = None
        try:
            self._lights.light(job)
            lit_s = time.monotonic()
            if graph is not None:
                agent.put_workload(graph, self._workloads.read(graph))
            if not job.state.ended:
                agent.start(workers, timeout_s=START_S)
        except ControllerError as failure:
            error = failure
        finally:
            self._book.started(job)
        dead = (
            frozenset[str]()
            if error is None or job.on_loss == "fail"
            else self._lost_gpus(agent)
        )
        with self._book.lock:
            if error is None:
                job.started = True
                note_start(job, lit_s, time.monotonic())
                self._book.save()
                if (
                    job.plane is None
                    and (spares := job.kept[:WAITING])
                    and not job.losses
                ):
                    self._background.spawn(self._start_spares, job, agent, spares)
            elif not job.state.ended and not self._stop.is_set():
                job.error = f"not started: {error}"
                for rank in job.ranks:
                    if rank.gpu in dead:
                        rank.state, rank.error = "gone", "its GPU is lost"
                if lose(job, dead, time.monotonic()):
                    self._book.enter(job, JobState.RECOVERING)
                    self._background.spawn(self.recover, job, agent)
                else:
                    self._cleanup.end(job, JobState.FAILED)
        self._look_soon()

    def _start_spares(
        self, job: Job, agent: AgentClient, spares: Sequence[str]
    ) -> None:
        """Have processes wait on spares. The job does without one that cannot be: its worker starts later."""
        for gpu in spares:
            try:
                if not job.state.ended:
                    agent.start_spares(job.id, [gpu])
            except ControllerError as error:
                log.warning("job %s: nothing waits on its spare: %s", job.id, error)
        if job.state.ended:
            # Its workers may have been removed before.
            self._cleanup.remove_spares(job)

    def _lost_gpus(self, agent: AgentClient) -> frozenset[str]:
        """Return the GPUs that are lost by now; empty if the agent does not answer."""
        try:
            return frozenset(agent.workers(self._book.cursor)["lost_gpus"])
        except ControllerError:
            return frozenset()

    def recover(self, job: Job, agent: AgentClient) -> None:
        """Stop the rest of a job that lost ranks, then restart it on other GPUs, from its newest state.

        May be repeated after a restart of the controller. Everything is repeated until the new ranks are
        recorded, then only the remaining steps.
        """
        with self._book.lock:
            if job.state.ended:
                return
            self._book.starting.add(job.id)
            lost = [loss.rank for loss in pending_losses(job)]
        try:
            self._cleanup.until_done(
                f"workers of job {job.id}", lambda agent: agent.halt(job.id)
            )
            stopped = time.monotonic()
            if lost:
                self._lights.clear(job, self._stop, _CLEAR_S)
            if lost and not self._stop.is_set():
                iteration = agent.choose_state(job.id, lost)
                with self._choosing:
                    gpus, placement = self._replacements.gpus_after(job, lost)
                    with self._book.lock:
                        go_on(job, gpus, iteration, stopped, time.monotonic())
                        if placement is not None:
                            self._lights.give(job, placement[1])
                        self._book.save()
        except ControllerError as error:
            self._book.started(job)
            with self._book.lock:
                # A failure because this controller ends is left to the next controller.
                if not job.state.ended and not self._stop.is_set():
                    job.error = f"{job.losses[-1].reason}, and it cannot go on: {error}"
                    self._cleanup.end(job, JobState.FAILED)
            return
        if self._stop.is_set() or job.state.ended:
            self._book.started(job)
            return
        self._launch(job, agent)
