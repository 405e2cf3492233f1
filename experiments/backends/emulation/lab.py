"""An emulated lab as an experiment uses it: jobs through the controller's REST API, as users have it.

What the workers, the controller, the agents and the processors say is looked up at intervals and handed on as
records; events of the timeline are carried out meanwhile (``actions``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import Any

from ringlight.experiments.backends.emulation.actions import Actions
from ringlight.experiments.backends.emulation.drifts import DriftLog
from ringlight.experiments.backends.emulation.flows import FlowLog
from ringlight.experiments.backends.emulation.linktest import LinkTest
from ringlight.experiments.backends.emulation.reference import References
from ringlight.experiments.backends.emulation.requests import job_request
from ringlight.experiments.backends.emulation.rest import (
    RELEASE_DELAY_S,
    ending_runs,
    lit_circuits,
    set_circuits,
)
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api, ApiError, Unreachable
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import (
    ENDED,
    Circuits,
    Divisions,
    GridLit,
    ImpairedLinks,
    JobRecovered,
    JobState,
    LightCounters,
    LightDecisions,
    LightTurns,
    LinkBytes,
    PortRate,
    ProcessBack,
    ProcessEnded,
    ProcessorLoad,
    Record,
    Reference,
    Released,
    RingSetUps,
    WorkerLost,
    record_of,
)
from ringlight.experiments.record.writing import writing
from ringlight.fabric.parts import Link
from ringlight.testbed import load
from ringlight.testbed.deaths import Death
from ringlight.testbed.devices import NodeLog, node_kinds
from ringlight.testbed.faults import FaultClient
from ringlight.testbed.processes import LabProcesses
from ringlight.workloads.packed import pack

#: Seconds between two looks at everything; at what somebody waits for; at the processors' load.
LOOK_S, GLANCE_S, LOAD_S = 0.2, 0.03, 0.5
#: Deadlines in seconds: the controller's answer when nobody killed it, a release that it refuses, the
#: end of cancelled jobs.
ANSWER_S, RELEASE_S, CANCEL_S = 15.0, 5.0, 30.0
#: How often a controller that ended by itself is put up with.
RESTARTS = 3
#: A run goes on so long without Open vSwitch, whose monitor starts it again after some of its ends, seconds.
WITHOUT_SWITCH_S = 5.0
#: By switch and port: bytes received and sent.
PortBytes = Mapping[tuple[str, int], tuple[int, int]]
#: Besides the ends: what is on record of a job's states.
_TOLD = ("READY", "RUNNING", "RECOVERING", *ENDED)


@dataclass
class _Job:
    """A submitted job. ``segments``: numbers of ranks, each from an iteration on. ``gpus``: as last told;
    ``lost_s``: when it last lost one."""

    plan: JobPlan
    id: str
    request: Mapping[str, Any]
    state: str = "PENDING"
    released: bool = False
    cursor: int = 0
    #: For a job of guests: the links' counters before its start, and the jobs that ran beside it.
    before: PortBytes = field(default_factory=dict)
    beside: set[str] = field(default_factory=set)
    segments: list[tuple[int, int]] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    lost_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def awaited(self) -> bool:
        """Return whether the run waits for the job's next state."""
        return not self.released and not self.ended

    def triggers(self, events: Iterable[EventPlan]) -> bool:
        """Return whether an event waits for an iteration of this job; False once the job has ended."""
        name = self.plan.name
        return not self.ended and any(event.when.job == name for event in events)


@dataclass
class _Run:
    plan: RunPlan
    flows: FlowLog
    nodes: list[NodeLog]
    drifts: DriftLog
    load: load.ProcessorLoad
    jobs: dict[str, _Job] = field(default_factory=dict)
    #: Jobs to release together, tried until then.
    releases: list[tuple[list[_Job], float]] = field(default_factory=list)
    #: Where the series goes on: from the first release.
    since_s: float | None = None
    next_look_s: float = 0.0
    next_load_s: float = 0.0
    #: When the controller last answered, or was away on purpose.
    heard_s: float = field(default_factory=time.monotonic)
    #: Processes that have ended and are not back: since when.
    away: dict[tuple[str, str], float] = field(default_factory=dict)
    #: Whether an event has killed the controller, and its process is not started again yet.
    killed: bool = False
    #: What links had done to frames before.
    impaired: list[dict[str, Any]] = field(default_factory=list)
    #: Submissions that nobody answered.
    unanswered: set[str] = field(default_factory=set)
    #: Names of the events that have been made to happen.
    performed: set[str] = field(default_factory=set)

    @property
    def ids(self) -> dict[str, str]:
        return {name: job.id for name, job in self.jobs.items() if not job.ended}

    @property
    def to_come(self) -> list[EventPlan]:
        return [event for event in self.plan.events if event.name not in self.performed]


class EmulatedLab:
    """``facts``: what is on record of this lab, with ``controller_restarts``, which are counted here."""

    real_time = True

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
        self._now: _Run | None = None
        #: Not from the begin of a run to its end: one that was broken off leaves a lab that nobody knows.
        self._known = True
        self._found: list[Record] = []

    def now_s(self) -> float:
        return time.monotonic()

    @property
    def _run(self) -> _Run:
        if self._now is None:
            raise BackendError("no run has begun")
        return self._now

    def begin(self, plan: RunPlan) -> None:
        self._known = False
        with ending_runs():
            self._links.repeat()
            if plan.circuits or lit_circuits(self._api):
                set_circuits(self._api, plan.circuits)
            self._actions.begin(plan)
            # An interconnect has ports and links only as it is plugged together.
            plan = replace(plan, setting=self.setting)
            flows = FlowLog(self._api, plan.name, self.setting.fabric)
            nodes = [kind.log(self.processes.inventory) for kind in node_kinds()]
            drifts = DriftLog(self._api, plan)
            self._now = _Run(plan, flows, nodes, drifts, load.ProcessorLoad(self.processes.lab.id))
            self._now.impaired = self._faults.impaired()
            self._light("before")

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
        run.jobs[job.name] = _Job(job, str(document["id"]), request)
        return None

    def _answered(self, name: str) -> dict[str, Any] | None:
        """The job that an earlier submission made, though nobody answered it."""
        if name not in self._run.unanswered:
            return None
        documents: Iterable[dict[str, Any]] = self._api.get("/v1/jobs")
        return next((job for job in documents if job["name"] == name and job["state"] not in ENDED), None)

    def release(self, jobs: Sequence[str]) -> None:
        run = self._run
        run.releases.append(([run.jobs[name] for name in jobs], time.monotonic() + RELEASE_S))
        self._look()

    def perform(self, event: EventPlan) -> None:
        self._run.performed.add(event.name)
        self._found.append(self._actions.perform(event, self._run.ids))

    def next(self, until_s: float) -> Sequence[Record]:
        while True:
            self._look()
            if self._found:
                return self._taken()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return []
            quiet_s = self._run.next_look_s - time.monotonic()
            time.sleep(max(0.0, min(GLANCE_S if self._awaits() else quiet_s, left_s)))

    def _taken(self) -> list[Record]:
        records, self._found = sorted(self._found, key=lambda record: record.t), []
        return records

    def end(self) -> Sequence[Record]:
        run = self._run
        with ending_runs():
            self._found += self._actions.settle(self._tend)
            self._cancel()
            run.next_look_s = 0.0
            self._look()
            self._found += run.flows.read()
            self._found += run.drifts.look(now=True)
            self._light("after")
            for name in self.setting.fabric.parts.get("rings", ()):
                # How long the light between two steps took to set, as the controller counted.
                ring, set_ups = self._moved(name)
                self._note(RingSetUps, ring={"name": name, **ring["own"]}, set_ups=set_ups)
            self._divisions()
            if links := since(self._faults.impaired(), run.impaired):
                self._note(ImpairedLinks, links=links)
            for log in run.nodes:
                self._found += log.records(t=time.monotonic(), run=run.plan.name)
            self._note(Circuits, circuits=[list(pair) for pair in lit_circuits(self._api)])
            if self.processes.parts is not None:
                self._facts.update(self.processes.parts.facts())
            for job in run.jobs.values():
                if job.state == "SUCCEEDED" and job.plan.training is not None:
                    lab, segments = self.processes.lab, job.segments
                    # What decides what it ends with: its request, and what its plane computes.
                    decisive = {**job.request, **job.plan.plane(self.setting.fabric).outcome}
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
        awaited = any(job.awaited or job.triggers(to_come) for job in self._run.jobs.values())
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
        self._found += [self._links.astray.record(death, name) for death in self.processes.astray()]

    def _busiest(self, own: Mapping[str, float]) -> dict[str, float]:
        """Shares of the processors' time: of the machine whose processors the lab itself keeps busiest."""
        parts = self.processes.parts
        loads = [own] if parts is None else [own, *parts.loads()]
        most = max(loads, key=lambda load: load["busy"] - load["others"])
        return {name: round(share, 4) for name, share in most.items()}

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
        self._found += self._actions.over()
        whole = now_s >= run.next_look_s
        if whole:
            run.next_look_s = now_s + LOOK_S
        if now_s >= run.next_load_s:
            run.next_load_s = now_s + LOAD_S
            self._note(ProcessorLoad, **self._busiest(asdict(run.load.shares())))
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
            self._found += run.flows.look()
            self._found += run.drifts.look()

    def _look_at(self, job: _Job) -> None:
        # The state first: what it says is then already in the events.
        document, known, segments = self._api.get(f"/v1/jobs/{job.id}"), job.state, job.segments
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
            self._keep_of_guests(job)
        job.state, job.gpus = state, gpus
        job.segments = job.segments or [(len(gpus), 0)]
        if state not in _TOLD:
            return
        t, reason = (document["t_ended"], document["error"]) if job.ended else (time.monotonic(), None)
        if state == "RECOVERING":
            t = job.lost_s or t
        self._tell_state(job, t, reason)

    def _tell_state(self, job: _Job, t: float, reason: str | None = None) -> None:
        self._note(JobState, t=t, job=job.plan.name, state=job.state, gpus=job.gpus, reason=reason)

    def _events(self, job: _Job, *, fresh: bool = False) -> bool:
        """Read the new events of a job. Return whether the controller has all events that were read of the
        job before.

        ``fresh``: the controller first reads from the workers.
        """
        answer = self._api.get(f"/v1/jobs/{job.id}/events", cursor=job.cursor, fresh=fresh)
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
                job.segments = goes_on(job.segments, len(event["ranks"]), event["iteration"])
                fields |= {"gpus": event["ranks"], "at": event["t"]}
            record = record_of(fields)
            if record is not None:
                self._found.append(record)
        return True

    def _let_go(self) -> None:
        """Release what is to be released; refused, it is tried again for a while."""
        run = self._run
        for release in list(run.releases):
            jobs, until_s = release
            documents = [self._api.get(f"/v1/jobs/{job.id}") for job in jobs]
            going = [document for document in documents if document["state"] not in ENDED]
            if any(document["t_released"] is None for document in going):
                for name in self.setting.fabric.parts.get("grids", ()):
                    self._note(GridLit, grid=self._api.get(f"/v1/planes/{name}"))
                self._count_before(jobs)
                body = {"jobs": [document["id"] for document in going], "delay_s": RELEASE_DELAY_S}
                try:
                    going = self._api.post("/v1/jobs/release", body)
                except ApiError as error:
                    # One may have failed in between.
                    if error.status != HTTPStatus.CONFLICT or time.monotonic() > until_s:
                        raise
                    continue
            run.releases.remove(release)
            for job in jobs:
                job.released = True
            if going:
                released_s = max(float(document["t_released"]) for document in going)
                run.since_s = run.since_s or time.monotonic()
                self._note(Released, jobs=[job.plan.name for job in jobs], at=released_s)

    def _count_before(self, jobs: Sequence[_Job]) -> None:
        """Read the byte counters of links before jobs of guests start."""
        run = self._run
        for job in jobs:
            if job.plan.guest is not None:
                job.before = self._port_bytes()
        running = [job for job in run.jobs.values() if (job.released or job in jobs) and not job.ended]
        for job in running:
            job.beside |= {other.plan.name for other in running if other is not job}

    def _port_bytes(self) -> PortBytes:
        counters: Iterable[dict[str, Any]] = self._api.get("/v1/port-bytes")
        return {
            (entry["switch"], entry["port"]): (entry["rx_bytes"], entry["tx_bytes"]) for entry in counters
        }

    def _keep_of_guests(self, job: _Job) -> None:
        """Record the bytes that links carried, and write the output of every rank's command to the logs."""
        after = self._port_bytes() if job.before else {}
        folder = self.processes.logs / "output" / self._run.plan.name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for rank in range(job.plan.gpus):
                try:
                    output = self._api.get(f"/v1/jobs/{job.id}/output/{rank}")
                except ApiError as error:
                    if error.status == HTTPStatus.NOT_FOUND:
                        # One that was never begun has said nothing.
                        continue
                    output = {"stdout": "", "stderr": f"ringlight: the output could not be read: {error}\n"}
                for stream in ("stdout", "stderr"):
                    path = folder / f"{job.plan.name}-{rank}.{stream}.txt"
                    path.write_text(output[stream], encoding="utf-8")
        if job.before:
            links = [
                entry for link in self.setting.fabric.links for entry in carried(link, job.before, after)
            ]
            self._note(LinkBytes, job=job.plan.name, links=links, beside=sorted(job.beside))

    def _samples(self) -> None:
        run = self._run
        if run.since_s is None:
            return
        for sample in self._api.get("/v1/series", since=run.since_s):
            self._found.append(PortRate(run=run.plan.name, **sample))
            run.since_s = max(run.since_s, sample["t"])

    # -- around a run

    def _light(self, moment: str) -> None:
        """The kernel's counters of the light and the agents', where there are O-NICs."""
        if not self.setting.fabric.onics:
            return
        kernel = self._faults.light_counters()
        agents = {
            entry["gpu"]: {"epoch": entry["status"]["epoch"], "counters": entry["status"]["counters"]}
            for entry in self._api.get("/v1/onics")
            if entry.get("status")
        }
        self._note(LightCounters, moment=moment, kernel=kernel, agents=agents)

    def _divisions(self) -> None:
        """Record how the controller divided the light of each job, if the job's light is divided."""
        fabric = self.setting.fabric
        for job in self._run.jobs.values():
            plane = job.plan.plane(fabric)
            if not plane.built:
                continue
            shown, made = self._moved(plane.name)
            last = shown["own"]["statistics"]
            if last is None or last["job"] != job.id:
                continue
            # The controller keeps only the last decisions.
            self._note(Divisions, job=job.plan.name, decisions=last["decisions"], dark_s=last["dark_total_s"])
            self._note(LightDecisions, job=job.plan.name, decisions=made)
            if job.plan.phases:
                self._note(LightTurns, job=job.plan.name, turns=[*_turns(made)])

    def _moved(self, plane: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return a plane as the controller shows it, and each change of its light in the last job."""
        return self._api.get(f"/v1/planes/{plane}"), self._api.get(f"/v1/planes/{plane}/changes")

    def _cancel(self) -> None:
        """Jobs that still go on have been given up; the next run needs their GPUs."""
        run = self._run
        for job_id in run.ids.values():
            self._api.delete(f"/v1/jobs/{job_id}")
        deadline = time.monotonic() + CANCEL_S
        while run.ids:
            if time.monotonic() > deadline:
                raise BackendError(f"job {', '.join(run.ids)} was not cancelled within {CANCEL_S:.0f} s")
            self._look()
            time.sleep(GLANCE_S)

    def _note(self, kind: type[Record], /, t: float | None = None, **fields: Any) -> None:
        t_s = time.monotonic() if t is None else t
        self._found.append(kind(t=t_s, run=self._run.plan.name, **fields))


def _turns(decisions: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the turns for which the controller set light while the job ran."""
    for decision in decisions:
        lit_s = decision["t"] + decision["decide_s"] + decision["hold_s"] + decision["dark_s"]
        for iteration, phase in decision["turns"]:
            yield {
                "iteration": iteration, "phase": phase, "set": decision["t"], "lit": lit_s,
                "moved": decision["changed"],
            }  # fmt: skip


#: What a run's event calls a process of each kind.
_TARGETS = {"optical switch": "switch {}", "O-NIC agent": "agent {}"}


def is_planned(plan: RunPlan, death: Death) -> bool:
    """Return whether a run has an event that kills this process."""
    words = {f"{death.kind} {death.name}", _TARGETS.get(death.kind, death.kind).format(death.name)}
    return any(event.do == "kill" and str(event.target) in words for event in plan.events)


def carried(link: Link, before: PortBytes, after: PortBytes) -> list[dict[str, Any]]:
    """Return the bytes in each direction of a link with a packet switch at an end, as the switch's port
    counted them.

    Of a link between two switches the sender counts. A switch that was restarted meanwhile is left out.
    """
    sent_bytes: dict[tuple[str, str], int] = {}
    for near in (link.a, link.b):
        key, far = (near.node, near.number), link.other(near)
        if key in before and key in after:
            received, sent = (now - then for now, then in zip(after[key], before[key], strict=True))
            if min(received, sent) < 0:
                continue
            sent_bytes[str(near), str(far)] = sent
            sent_bytes.setdefault((str(far), str(near)), received)
    return [{"from": a, "to": b, "bytes": count} for (a, b), count in sorted(sent_bytes.items())]


def since(now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what impaired links did to frames since ``before``, only for links that frames arrived at."""
    known = {(counters["from"], counters["to"]): counters for counters in before}
    changes = []
    for counters in now:
        then = known.get((counters["from"], counters["to"]), {})
        made = {
            key: value if isinstance(value, str) else value - then.get(key, 0)
            for key, value in counters.items()
        }
        if made["frames"]:
            changes.append(made)
    return changes


def goes_on(segments: Sequence[tuple[int, int]], ranks: int, first: int) -> list[tuple[int, int]]:
    """Return the numbers of ranks, each from an iteration on, of a job that resumes with ``ranks`` at
    ``first``.

    Iterations that the job did from ``first`` on before are done again.
    """
    kept = [segment for segment in segments if segment[1] < first]
    return kept if kept and kept[-1][0] == ranks else [*kept, (ranks, first)]
