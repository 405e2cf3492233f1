"""An emulated lab as an experiment uses it: jobs through the controller's REST API, as users have it.

What the workers, the controller, the agents and the processors say is looked up at intervals and handed on as
records; events of the timeline are carried out meanwhile (``actions``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from ringlight.experiments.backends.emulation.actions import Actions
from ringlight.experiments.backends.emulation.drifts import DriftLog
from ringlight.experiments.backends.emulation.flows import FlowLog
from ringlight.experiments.backends.emulation.guest_log import GuestLog
from ringlight.experiments.backends.emulation.light_log import LightLog
from ringlight.experiments.backends.emulation.linktest import LinkTest
from ringlight.experiments.backends.emulation.load_log import LoadLog
from ringlight.experiments.backends.emulation.reference import References
from ringlight.experiments.backends.emulation.requests import job_request
from ringlight.experiments.backends.emulation.rest import (
    RELEASE_DELAY_S,
    ending_runs,
    lit_circuits,
    set_circuits,
)
from ringlight.experiments.backends.emulation.run_state import (
    LabJob,
    LabRun,
    goes_on,
    is_planned,
)
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api, ApiError, Unreachable
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import (
    ENDED,
    JobRecovered,
    JobState,
    Record,
    Reference,
    Released,
    WorkerLost,
)
from ringlight.experiments.record.lab_records import PortRate, ProcessBack, ProcessEnded
from ringlight.experiments.record.light_records import Circuits
from ringlight.experiments.record.lines import record_of
from ringlight.testbed.deaths import Death
from ringlight.testbed.devices import device_kinds
from ringlight.testbed.faults import FaultClient
from ringlight.testbed.processes import LabProcesses
from ringlight.workloads.packed import pack

#: Seconds between two looks at everything; at what somebody waits for.
LOOK_S, GLANCE_S = 0.2, 0.03
#: Deadlines in seconds: the controller's answer when nobody killed it, a release that it refuses, the
#: end of cancelled jobs.
ANSWER_S, RELEASE_S, CANCEL_S = 15.0, 5.0, 30.0
#: How often a controller that ended by itself is put up with.
RESTARTS = 3
#: A run goes on so long without Open vSwitch, whose monitor starts it again after some of its ends, seconds.
WITHOUT_SWITCH_S = 5.0
#: Besides the ends: what is on record of a job's states.
_TOLD = ("READY", "RUNNING", "RECOVERING", *ENDED)


class EmulatedLab:
    """``facts``: what is on record of this lab, with ``controller_restarts``, which are counted here."""

    real_time, own_queue = True, False

    def __init__(
        self,
        setting: Setting,
        processes: LabProcesses,
        api: Api,
        links: LinkTest,
        references: References,
        facts: dict[str, Any],
    ) -> None:
        self.setting, self.processes, self._api = setting, processes, api
        self._links, self._references, self._facts = links, references, facts
        self._faults = FaultClient(processes.inventory["agent"])
        self._actions = Actions(processes, api, self._faults)
        self._light = LightLog(api, self._faults, setting.fabric)
        self._guests = GuestLog(api, processes, setting.fabric)
        self._now: LabRun | None = None
        #: Not from the begin of a run to its end: one that was broken off leaves a lab that nobody knows.
        self._known = True
        self._records: list[Record] = []

    def now_s(self) -> float:
        return time.monotonic()

    @property
    def _run(self) -> LabRun:
        if self._now is None:
            raise BackendError("no run has begun")
        return self._now

    def begin(self, plan: RunPlan) -> None:
        self._known = False
        with ending_runs():
            self._actions.move_back()
            self._links.repeat()
            if plan.circuits or lit_circuits(self._api):
                set_circuits(self._api, plan.circuits)
            self._actions.begin(plan)
            # What is described as a whole has ports and links only as it is plugged together.
            plan = replace(plan, setting=self.setting)
            flows = FlowLog(self._api, plan.name, self.setting.fabric)
            logs = [
                kind.log(self.processes.inventory) for kind in device_kinds().values()
            ]
            devices = [log for log in logs if log is not None]
            drifts = DriftLog(self._api, plan)
            self._now = LabRun(
                plan, flows, devices, drifts, LoadLog(self.processes, plan.name)
            )
            self._records += self._light.counters(plan.name, "before")

    def submit(self, job: JobPlan) -> str | None:
        run = self._run
        request = job_request(run.plan, job)
        try:
            if job.workload is not None:
                self._api.send(f"/v1/workloads/{request['graph']}", pack(job.workload))
            document = self._answered(job.name) or self._api.post("/v1/jobs", request)
        except Unreachable as error:
            # It may have been killed while it answered; whether it is back is for the next look.
            run.unanswered.add(job.name)
            return str(error)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:
                return str(error)
            raise BackendError(f"job {job.name}: {error}") from None
        run.unanswered.discard(job.name)
        run.jobs[job.name] = LabJob(job, str(document["id"]), request)
        return None

    def _answered(self, name: str) -> dict[str, Any] | None:
        """The job that an earlier submission made, though nobody answered it."""
        if name not in self._run.unanswered:
            return None
        documents: Iterable[dict[str, Any]] = self._api.get("/v1/jobs")
        return next(
            (
                job
                for job in documents
                if job["name"] == name and job["state"] not in ENDED
            ),
            None,
        )

    def release(self, jobs: Sequence[str]) -> None:
        run = self._run
        run.releases.append(
            ([run.jobs[name] for name in jobs], time.monotonic() + RELEASE_S)
        )
        self._look()

    def perform(self, event: EventPlan) -> None:
        self._run.performed.add(event.name)
        self._records.append(self._actions.perform(event, self._run.ids))

    def next(self, until_s: float) -> Sequence[Record]:
        while True:
            self._look()
            if self._records:
                return self._taken()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            quiet_s = self._run.next_look_s - time.monotonic()
            time.sleep(max(0.0, min(GLANCE_S if self._awaits() else quiet_s, left_s)))

    def _taken(self) -> list[Record]:
        records, self._records = sorted(self._records, key=lambda record: record.t), []
        return records

    def end(self) -> Sequence[Record]:
        run = self._run
        with ending_runs():
            self._records += self._actions.settle(self._tend)
            self._cancel()
            run.next_look_s = 0.0
            self._look()
            self._records += run.flows.read()
            self._records += run.drifts.look(now=True)
            self._records += self._light.counters(run.plan.name, "after")
            self._records += self._light.planes(
                run.plan.name, {job.id: job.plan for job in run.jobs.values()}
            )
            for log in run.devices:
                self._records += log.records(t=time.monotonic(), run=run.plan.name)
            self._note(
                Circuits, circuits=[list(pair) for pair in lit_circuits(self._api)]
            )
            if self.processes.parts is not None:
                self._facts.update(self.processes.parts.facts())
            for job in run.jobs.values():
                if job.state == "SUCCEEDED" and job.plan.training is not None:
                    lab, segments = self.processes.lab, job.segments
                    # What decides what it ends with: its request, and what its plane computes.
                    decisive = {
                        **job.request,
                        **job.plan.plane(self.setting.fabric).fit.outcome,
                    }
                    outcome = self._references.outcome_of(lab, decisive, segments)
                    self._note(Reference, job=job.plan.name, **outcome)
        self._tend()
        self._now, self._known = None, True
        return self._taken()

    def measure_links_again(self) -> None:
        """Settle what is in doubt of links, between runs, though others may still have the processors."""
        with ending_runs():
            self._links.repeat(last=True)

    def close(self) -> None:
        with ExitStack() as undo:
            for end in (self.processes.stop, self._api.close, self._faults.close):
                undo.callback(end)
            self._actions.stop()
            # A run that was broken off has not taken what may say why.
            self._note_astray()
            for record in self._taken():
                self._links.emit(record)
            if self._known:
                with ending_runs():
                    self._links.repeat(last=True)

    # -- looking

    def _awaits(self) -> bool:
        to_come = self._run.to_come
        awaited = any(
            job.awaited or job.triggers(to_come) for job in self._run.jobs.values()
        )
        return awaited or bool(self._run.releases) or self._actions.busy

    def _tend(self) -> None:
        try:
            with ending_runs():
                self.processes.check()
        finally:
            self._note_astray()
            self._note_deaths(self.processes.ended())

    def _note_astray(self) -> None:
        name = "" if self._now is None else self._now.plan.name
        self._records += [
            self._links.astray.record(death, name) for death in self.processes.astray()
        ]

    def _note_deaths(self, deaths: Iterable[Death]) -> None:
        run = self._run
        for death in deaths:
            of_controller = death.kind == "controller"
            if death.how is not None:
                run.away[death.kind, death.name] = death.t
                planned = death.asked and is_planned(run.plan, death)
                fields = {"kind": death.kind, "name": death.name, "how": death.how}
                self._note(ProcessEnded, t=death.t, **fields, planned=planned)
                run.killed = run.killed or (of_controller and planned)
                if of_controller and not planned:
                    self._count_restart(death.how)
            elif of_controller:
                # Its process runs; it is back when it answers.
                run.killed = False
            else:
                self._note_back(death.kind, death.name, death.t)
        since = run.away.get(("Open vSwitch", "ovs-vswitchd"), math.inf)
        if time.monotonic() - since > WITHOUT_SWITCH_S:
            raise BackendError(
                "Open vSwitch has ended, without which no packet gets through a packet switch; start it "
                "again with: ringlight setup"
            )

    def _count_restart(self, how: str) -> None:
        """Raises BackendError when the controller has ended by itself too often."""
        self._facts["controller_restarts"] += 1
        if (ends := self._facts["controller_restarts"]) > RESTARTS:
            raise BackendError(f"the controller ended for the {ends}th time ({how})")

    def _note_back(self, kind: str, name: str, t: float) -> None:
        since = self._run.away.pop((kind, name), t)
        self._note(ProcessBack, t=t, kind=kind, name=name, away_s=t - since)

    def _see_controller_back(self) -> None:
        if ("controller", "controller") in self._run.away:
            self._api.get("/v1/health")
            self._run.drifts.anew()
            self._note_back("controller", "controller", time.monotonic())

    def _look(self) -> None:
        run, now_s = self._run, time.monotonic()
        self._tend()
        self._records += self._actions.over()
        whole = now_s >= run.next_look_s
        if whole:
            run.next_look_s = now_s + LOOK_S
        self._records += run.load.look()
        with ending_runs():
            try:
                if not run.killed:
                    # First, as what it tells may have waited for it.
                    self._see_controller_back()
                    self._ask_controller(whole)
                run.heard_s = now_s
            except Unreachable:
                if now_s - run.heard_s > ANSWER_S:
                    raise

    def _ask_controller(self, whole: bool) -> None:
        run = self._run
        for job in run.jobs.values():
            if not job.ended and (whole or job.awaited):
                self._look_at(job)
            elif job.triggers(run.to_come):
                # Light that moves a tenth of a second late meets other flows.
                self._events(job, fresh=True)
        self._let_go()
        if whole:
            self._samples()
            self._records += run.flows.look()
            self._records += run.drifts.look()

    def _look_at(self, job: LabJob) -> None:
        # The state first: what it says is then already in the events.
        document, known, segments = (
            self._api.get(f"/v1/jobs/{job.id}"),
            job.state,
            job.segments,
        )
        caught_up = self._events(job)
        state, gpus = document["state"], [rank["gpu"] for rank in document["ranks"]]
        # A recovery that the events tell of is newer, and may end in the state that was known before.
        if state == known or not caught_up or job.segments is not segments:
            return
        # A job that goes on after a loss is let go by the controller, and runs as of the event that says so.
        if state == "READY" and job.released:
            return
        if state in ENDED and job.plan.guest is not None:
            # Before its end counts as seen: should the controller go away meanwhile, all is asked again.
            self._records += self._guests.keep(job, self._run.plan.name)
        job.state, job.gpus = state, gpus
        job.segments = job.segments or [(len(gpus), 0)]
        if state not in _TOLD:
            return
        t, reason = (
            (document["t_ended"], document["error"])
            if job.ended
            else (time.monotonic(), None)
        )
        if state == "RECOVERING":
            t = job.lost_s or t
        self._tell_state(job, t, reason)

    def _tell_state(self, job: LabJob, t: float, reason: str | None = None) -> None:
        self._note(
            JobState,
            t=t,
            job=job.plan.name,
            state=job.state,
            gpus=job.gpus,
            reason=reason,
        )

    def _events(self, job: LabJob, *, fresh: bool = False) -> bool:
        """Read the new events of a job. Return whether the controller has all events that were read of the
        job before.

        ``fresh``: the controller first reads from the workers.
        """
        answer = self._api.get(
            f"/v1/jobs/{job.id}/events", cursor=job.cursor, fresh=fresh
        )
        if answer["cursor"] < job.cursor:
            # One that was started again is still catching up with the workers.
            return False
        job.cursor = answer["cursor"]
        for event in answer["events"]:
            fields = {**event, "run": self._run.plan.name, "job": job.plan.name}
            if event["event"] == WorkerLost.event:
                job.lost_s = event["t"]
            if event["event"] == JobRecovered.event:
                if job.state != "RECOVERING":
                    # The recovery took less time than there is between two looks.
                    job.state = "RECOVERING"
                    self._tell_state(job, job.lost_s or event["t"])
                job.state, job.gpus = "RUNNING", event["ranks"]
                self._tell_state(job, event["t"])
                job.segments = goes_on(
                    job.segments, len(event["ranks"]), event["iteration"]
                )
                fields |= {"gpus": event["ranks"], "at": event["t"]}
            record = record_of(fields)
            if record is not None:
                self._records.append(record)
        return True

    def _let_go(self) -> None:
        """Release what is to be released; refused, it is tried again for a while."""
        run = self._run
        for release in list(run.releases):
            jobs, until_s = release
            documents = [self._api.get(f"/v1/jobs/{job.id}") for job in jobs]
            going = [
                document for document in documents if document["state"] not in ENDED
            ]
            if any(document["t_released"] is None for document in going):
                self._records += self._light.released(run.plan.name)
                self._guests.count_before(jobs, run.jobs.values())
                body = {
                    "jobs": [document["id"] for document in going],
                    "delay_s": RELEASE_DELAY_S,
                }
                try:
                    going = self._api.post("/v1/jobs/release", body)
                except ApiError as error:
                    # One may have failed in between.
                    if (
                        error.status != HTTPStatus.CONFLICT
                        or time.monotonic() > until_s
                    ):
                        raise
                    continue
            run.releases.remove(release)
            for job in jobs:
                job.released = True
            if going:
                released_s = max(float(document["t_released"]) for document in going)
                run.since_s = run.since_s or time.monotonic()
                self._note(
                    Released, jobs=[job.plan.name for job in jobs], at=released_s
                )

    def _samples(self) -> None:
        run = self._run
        if run.since_s is None:
            return
        for sample in self._api.get("/v1/series", since=run.since_s):
            self._records.append(PortRate(run=run.plan.name, **sample))
            run.since_s = max(run.since_s, sample["t"])

    # -- around a run

    def _cancel(self) -> None:
        """Jobs that still go on have been given up; the next run needs their GPUs."""
        run = self._run
        for job_id in run.ids.values():
            self._api.delete(f"/v1/jobs/{job_id}")
        deadline = time.monotonic() + CANCEL_S
        while run.ids:
            if time.monotonic() > deadline:
                raise BackendError(
                    f"job {', '.join(run.ids)} was not cancelled within {CANCEL_S:.0f} s"
                )
            self._look()
            time.sleep(GLANCE_S)

    def _note(
        self, kind: type[Record], /, t: float | None = None, **fields: Any
    ) -> None:
        t_s = time.monotonic() if t is None else t
        self._records.append(kind(t=t_s, run=self._run.plan.name, **fields))
