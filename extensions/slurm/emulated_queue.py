"""Slurm in front of an emulated lab: jobs are submitted with sbatch, and run when and where Slurm starts them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ringlight.experiments.backends.emulation.lab import EmulatedLab
from ringlight.experiments.backends.emulation.reference import References
from ringlight.experiments.backends.emulation.requests import job_request
from ringlight.experiments.backends.emulation.rest import ending_runs, lit_circuits
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.fabric_now import FabricNow
from ringlight.experiments.client import Api
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan
from ringlight.experiments.record.events import (
    GpusGranted,
    Iteration,
    JobState,
    Record,
    Reference,
    Released,
    WorkerDone,
    WorkerReady,
)
from ringlight.experiments.record.lines import record_of
from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.slurm.experiment_plan import slurm_of
from ringlight.extensions.slurm.experiment_records import (
    SlurmJob,
    SlurmLight,
    SlurmRule,
)
from ringlight.extensions.slurm.lab_cluster import LabCluster, LogEvent
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.process import obstacle
from ringlight.testbed.emulation.agent.files import parse_event, read_from
from ringlight.workloads.job_settings import JobSettings

#: Seconds between two looks at the jobs, and at the light.
LOOK_S, LIGHT_S = 0.05, 0.2
RULE = "Slurm's own"


@dataclass
class _Job:
    """A job that was submitted. ``read``: bytes of each rank's events that were read."""

    plan: JobPlan
    id: int
    submitted_s: float
    request: dict[str, Any]
    allocated_s: float | None = None
    by: str = ""
    nodes: tuple[str, ...] = ()
    switches: list[str] = field(default_factory=list)
    state: str = "PENDING"
    restarts: int = 0
    read: dict[int, int] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    failed: str | None = None
    over: bool = False


class EmulatedSlurm:
    """Implement ``backends.protocol.BuiltLab``, with a queue of its own. ``lab``: the lab of the GPUs."""

    real_time = own_queue = True

    def __init__(self, lab: EmulatedLab) -> None:
        self._lab = lab
        self._cluster: LabCluster | None = None
        self._references = References()

    # The contract.

    def now_s(self) -> float:
        return self._lab.now_s()

    def begin(self, plan: RunPlan) -> None:
        self._lab.begin(plan)
        self._plan, self._slurm = plan, slurm_of(plan)
        self._light = FabricNow(plan.setting.fabric, plan.circuits)
        self._jobs: dict[str, _Job] = {}
        self._records: list[Record] = []
        self._look_s = self._light_s = 0.0
        to = self._lab.processes.addresses
        self._api = Api(to.url, to.token, cacert=to.cacert, anywhere=to.tls is not None)
        with self._giving_up():
            if (line := obstacle()) is not None:
                raise SlurmError(line)
            for gpu in plan.setting.fabric.gpus:
                self._api.put(f"/v1/gpus/{gpu}/host", None)
            self._cluster = LabCluster(
                self._lab.processes,
                self._slurm.mode,
                len(plan.setting.fabric.gpus),
                self._lab.processes.logs,
            )
            self._cluster.start()
            self._note(
                SlurmRule,
                mode=self._slurm.mode,
                rule=RULE,
                parameters=self._slurm.parameters,
                version=self._cluster.version(),
            )
        self._see_light("the start")

    def submit(self, job: JobPlan) -> str | None:
        request = job_request(self._plan, job)
        known = JobSettings.__dataclass_fields__
        settings = {key: value for key, value in request.items() if key in known}
        gpus = self._plan.setting.fabric.gpus
        document = {
            "settings": {**settings, "job": job.name},
            "addresses": {name: gpu.ip for name, gpu in gpus.items()},
        }
        with self._giving_up():
            assert self._cluster is not None
            number = self._cluster.submit(
                job.name, job.gpus, self._slurm.request.options, document
            )
        self._jobs[job.name] = _Job(job, number, time.monotonic(), request)
        return None

    def release(self, jobs: Sequence[str]) -> None:
        """Do nothing: a job's ranks begin by themselves."""

    def perform(self, event: EventPlan) -> None:
        self._lab.perform(event)

    def next(self, until_s: float) -> Sequence[Record]:
        while True:
            with self._giving_up():
                self._look()
            look_s = min(until_s, time.monotonic() + LOOK_S)
            records = [*self._records, *self._lab.next(look_s)]
            self._records = []
            if records:
                return sorted(records, key=lambda record: record.t)
            if time.monotonic() >= until_s:
                return []

    def end(self) -> Sequence[Record]:
        with self._giving_up():
            self._look(fresh=True)
        self._stop()
        with ending_runs():
            for job in self._jobs.values():
                if job.state == "SUCCEEDED":
                    segments = [(job.plan.gpus, 0)]
                    outcome = self._references.outcome_of(
                        self._lab.processes.lab, job.request, segments
                    )
                    self._note(Reference, job=job.plan.name, **outcome)
        return [*self._records, *self._lab.end()]

    def close(self) -> None:
        self._stop()
        self._lab.close()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        """Turn an error of Slurm's into the end of the run, in which nothing of Slurm is left."""
        try:
            with ending_runs():
                yield
        except (SlurmError, OSError) as error:
            self._stop()
            raise BackendError(f"{self._plan.title}: {error}") from None
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
            self._api.close()

    # What happens.

    def _note(
        self, kind: type[Record], /, t: float | None = None, **fields: Any
    ) -> None:
        t_s = time.monotonic() if t is None else t
        self._records.append(kind(t=t_s, run=self._plan.name, **fields))

    def _look(self, *, fresh: bool = False) -> None:
        cluster = self._cluster
        if cluster is None:
            return
        cluster.check()
        for event in cluster.events():
            self._logged(event)
        for job in self._jobs.values():
            if job.allocated_s is not None and not job.over:
                self._read(job, cluster)
        if fresh or time.monotonic() >= self._light_s:
            self._light_s = time.monotonic() + LIGHT_S
            self._see_light("")

    def _see_light(self, why: str) -> None:
        """Take in the light as it is now, and note it if it is otherwise than before."""
        circuits = lit_circuits(self._api)
        if circuits != self._light.circuits or why:
            self._light.circuits = circuits
            self._note(SlurmLight, on=dict(self._light.switch_of()), why=why)

    def _logged(self, event: LogEvent) -> None:
        """Take in what slurmctld has logged of a job."""
        job = next((j for j in self._jobs.values() if j.id == event.id), None)
        if job is None:
            return
        if event.what in ("main", "backfill"):
            job.allocated_s, job.by = event.t, event.what
            job.nodes = tuple(expand(event.nodes))
            if job.restarts == 0:
                self._note(GpusGranted, t=event.t, job=job.plan.name)
        elif event.what == "requeued":
            job.restarts += 1
            job.allocated_s = job.failed = None
            # Its ranks begin anew, each with a file of its own.
            job.read, job.ready, job.done = {}, {}, set()
        elif event.what == "done" and job.allocated_s is not None and not job.over:
            assert self._cluster is not None
            self._read(job, self._cluster)
            self._end(job, event.t)

    def _end(self, job: _Job, freed_s: float) -> None:
        job.over = True
        name = job.plan.name
        complete = len(job.done) == len(job.nodes)
        job.state = "SUCCEEDED" if complete else "FAILED"
        reason = None if complete else job.failed or self._output(name)
        self._note(
            JobState,
            t=freed_s,
            job=name,
            state=job.state,
            gpus=list(job.nodes),
            reason=reason,
        )
        assert job.allocated_s is not None
        self._note(
            SlurmJob,
            t=freed_s,
            job=name,
            id=job.id,
            submitted=job.submitted_s,
            allocated=job.allocated_s,
            freed=freed_s,
            by=job.by,
            nodes=list(job.nodes),
            switches=job.switches,
            restarts=job.restarts,
            limit_s=60.0 * self._slurm.request.minutes,
        )

    def _output(self, name: str) -> str:
        """Return the first line of a job's output, which has the cause."""
        assert self._cluster is not None
        with suppress(OSError):
            text = (self._cluster.folder(name) / "output").read_text(errors="replace")
            return (text.strip().splitlines() or ["it wrote nothing"])[0]
        return "it has no output"

    def _read(self, job: _Job, cluster: LabCluster) -> None:
        """Take in what the ranks of a job have written."""
        for rank in range(len(job.nodes)):
            path = cluster.folder(job.plan.name) / str(job.restarts) / str(rank)
            try:
                data = read_from(path / "events.jsonl", job.read.get(rank, 0))
            except FileNotFoundError:
                continue
            whole = data.rfind(b"\n") + 1
            job.read[rank] = job.read.get(rank, 0) + whole
            for line in data[:whole].splitlines():
                if (event := parse_event(line)) is not None:
                    self._written(job, rank, event)

    def _written(self, job: _Job, rank: int, event: dict[str, Any]) -> None:
        name = job.plan.name
        if event["event"] == "failed":
            job.failed = job.failed or f"rank {rank}: {event.get('reason')}"
            return
        record = record_of({**event, "run": self._plan.name, "job": name, "rank": rank})
        if isinstance(record, WorkerReady):
            job.ready[rank] = record.t
            if len(job.ready) == len(job.nodes):
                self._begun(job, max(job.ready.values()))
        if isinstance(record, WorkerDone):
            job.done.add(rank)
        if isinstance(record, WorkerReady | WorkerDone | Iteration):
            self._records.append(record)

    def _begun(self, job: _Job, t: float) -> None:
        """Note that all ranks of a job are connected, and so begin."""
        on = self._light.switch_of()
        job.switches = sorted({str(on[node]) for node in job.nodes})
        about: dict[str, Any] = {"t": t, "job": job.plan.name, "gpus": list(job.nodes)}
        self._note(JobState, state="READY", **about)
        self._note(Released, t=t, jobs=[job.plan.name], at=t)
        self._note(JobState, state="RUNNING", **about)
