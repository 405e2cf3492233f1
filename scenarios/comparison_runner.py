"""Runs a comparison: for each fabric a lab, in it the job, then troubles and the sweep.

What is run is asked of the controller through the REST API that a user has; only disturbances and the
kernel's counters of the light are the lab's own (``disturbance``).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.backends.emulation import disturbance
from experiments.backends.emulation.linktest import LinkTest
from experiments.backends.emulation.processes import LabProcesses, check_ready
from experiments.backends.emulation.reference import References
from experiments.backends.emulation.session import Session
from experiments.backends.protocol import BackendError
from experiments.client import ApiError
from experiments.record.environment import describe_environment
from experiments.record.writing import writing
from experiments.runner.progress import Reporter
from scenarios.comparison import (
    CONTROLLER,
    Comparison,
    SweepSpec,
    TroubleSpec,
    job_settings,
    jobs_of,
    scaled,
)
from scenarios.records import Kind
from scenarios.repeats import Repeats
from scenarios.runfolder import RunFolder, finish
from scenarios.runner import PATIENCE, PATIENCE_S, Options, optical_profiles
from scenarios.schema import Setting
from scenarios.watch import Watch

#: Seconds between two readings of the O-NICs' flows.
FLOWS_S = 2.0
#: A worker waits so long for a peer or for light while something is made to go wrong, seconds.
TROUBLE_PATIENCE_S = 60.0
#: Likewise in an undisturbed run, besides the all-reduce.
USUAL_PATIENCE_S = 15.0
#: And so many times the all-reduce by the model: a rank may have nothing to do in most steps of a tree.
EXCHANGE_PATIENCE = 2
#: More than any trace has flows, and the most that REST takes: asks for the cursor alone.
END_OF_TRACE = 1 << 53


@dataclass(frozen=True)
class Plan:
    """One run of the job. ``request``: keys of ``POST /v1/jobs`` besides name and ranks; ``faults``: of the
    control network; ``point``: what a run of the sweep varies, real times (s) and sizes (bytes)."""

    name: str
    title: str
    kind: Kind
    request: Mapping[str, Any]
    repeat: int = 1
    variant: str | None = None
    trouble: TroubleSpec | None = None
    faults: Mapping[str, float] | None = None
    point: Mapping[str, float] | None = None


def run_comparison(
    comparison: Comparison, options: Options, reporter: Reporter
) -> tuple[Path, dict[str, Any]]:
    """Run it all; the run folder and the object of result.json.

    Raises BackendError, ApiError, Unreachable or WriteError with one line. Whatever happens, nothing of
    the labs is left.
    """
    settings = comparison.settings
    check_ready(options.runtime, options.addresses)
    with RunFolder(options.folder, comparison) as folder:
        fabrics = [setting.fabric for setting in settings.values()]
        environment = folder.environment
        environment |= describe_environment(comparison, fabrics, options.runtime)
        folder.describe(labs={}, optical_profiles={}, onic_timings={}, controller_restarts=0)
        reporter.say(f"{comparison.spec.name}: run folder {folder.path}")
        references = References()
        try:
            for name, setting in settings.items():
                logs = folder.logs / name
                with writing(logs):
                    logs.mkdir()
                with LabProcesses(
                    setting.lab_setting, options.runtime, options.addresses, logs, notice=reporter.say
                ) as processes:
                    reporter.say(f"lab {processes.lab.id} is up: {_described(comparison, name, options)}")
                    environment["labs"][name] = processes.lab.id
                    environment["optical_profiles"] |= optical_profiles(processes)
                    runner = _LabRunner(comparison, name, processes, folder, reporter, references)
                    environment["onic_timings"] |= runner.everything(plans(comparison, name, options.repeat))
                    environment["controller_restarts"] += processes.restarts
        finally:
            reporter.end_run()
    reporter.say("drawing the report")
    return folder.path, finish(folder.path)


def _described(comparison: Comparison, name: str, options: Options) -> str:
    fabric = comparison.settings[name].fabric
    parts = [
        f"{len(found)} {what}"
        for found, what in (
            (fabric.packet_switches, "packet switches"),
            (fabric.optical_switches, "optical switches"),
            (fabric.gpus, "GPUs"),
            (fabric.onics, "O-NICs"),
        )
        if found
    ]
    return f"{name}, {', '.join(parts)} ({options.runtime}); REST at http://{options.addresses.rest}/docs"


def plans(comparison: Comparison, fabric: str, repeat: int) -> list[Plan]:
    """Every run on one fabric, in order."""
    title = comparison.spec.fabrics[fabric].title
    usual = job_settings(comparison, fabric)
    usual["peer_timeout_s"] = _peer_timeout_s(comparison, fabric, usual["gradient_bytes"])
    found = [
        Plan(
            f"{fabric}-{number}",
            f"{title}{f' ({number} of {repeat})' if repeat > 1 else ''}",
            "fabric",
            usual,
            number,
        )
        for number in range(1, repeat + 1)
    ]
    for name, trouble in comparison.spec.trouble.items():
        if trouble.fabric == fabric:
            faults = {key: share for key, share in trouble.control.model_dump().items() if share}
            request = {**usual, "peer_timeout_s": max(TROUBLE_PATIENCE_S, usual["peer_timeout_s"])}
            if trouble.iterations is not None:
                request["iterations"] = trouble.iterations
            found.append(
                Plan(
                    f"trouble-{name}",
                    f"{title}: {trouble.title}",
                    "trouble",
                    request,
                    variant=name,
                    trouble=trouble,
                    faults=faults or None,
                )
            )
    if comparison.spec.sweep is not None:
        found += _sweep_plans(comparison, comparison.spec.sweep, fabric, usual)
    return found


def _peer_timeout_s(
    comparison: Comparison, fabric: str, gradient_bytes: float, set_up_s: float = 0.0
) -> float:
    """Emulated seconds that a worker waits for a peer; ``set_up_s``: of each step that waits for light."""
    return USUAL_PATIENCE_S + EXCHANGE_PATIENCE * comparison.all_reduce_s(fabric, gradient_bytes, set_up_s)


def _sweep_plans(
    comparison: Comparison, sweep: SweepSpec, fabric: str, usual: Mapping[str, Any]
) -> list[Plan]:
    if fabric == comparison.spec.baseline:
        points = [(0.0, 0.0, size) for size in sweep.gradient]
    elif fabric == sweep.fabric:
        points = [
            (delay, tuning, size)
            for size, tuning, delay in itertools.product(sweep.gradient, sweep.tuning, sweep.control_delay)
        ]
    else:
        return []
    scale = comparison.time_scale
    found = []
    for number, (delay_s, tuning_s, size) in enumerate(points, start=1):
        gradient_bytes = scaled(size, comparison)
        swept = fabric == sweep.fabric
        faults = {"control_delay_s": delay_s * scale, "tuning_s": tuning_s * scale} if swept else None
        wait_s = _peer_timeout_s(comparison, fabric, gradient_bytes, _allowance_s(faults))
        request = {
            **usual,
            "gradient_bytes": gradient_bytes,
            "compute_s": sweep.compute * scale,
            "iterations": sweep.iterations,
            "peer_timeout_s": max(TROUBLE_PATIENCE_S, wait_s),
        }
        found.append(
            Plan(
                f"sweep-{fabric}-{number}",
                f"sweep on {fabric}, point {number} of {len(points)}",
                "sweep",
                request,
                variant=str(number),
                faults=faults,
                point={"control_delay_s": delay_s, "tuning_s": tuning_s, "gradient_bytes": size},
            )
        )
    return found


class _LabRunner:
    """The runs in one lab."""

    def __init__(
        self,
        comparison: Comparison,
        fabric: str,
        processes: LabProcesses,
        folder: RunFolder,
        reporter: Reporter,
        references: References,
    ) -> None:
        self.comparison = comparison
        self.fabric = fabric
        self.setting = comparison.settings[fabric]
        self.ranks = comparison.ranks(fabric)
        self.processes = processes
        self.session = Session(processes)
        self.folder = folder
        self.reporter = reporter
        self.references = references

    @property
    def has_onics(self) -> bool:
        return bool(self.setting.fabric.onics)

    @property
    def has_agents(self) -> bool:
        """Whether every O-NIC has a control agent, as on a grid."""
        return bool(self.setting.fabric.grids)

    def everything(self, plans: list[Plan]) -> dict[str, Any]:
        """Make all runs; the declared timings of the O-NICs' agents, by fabric."""
        links = LinkTest(self.setting.lab_setting, self.session, self.folder.record, self.reporter.say)
        links.measure(())
        timings: dict[str, Any] = {}
        if self.has_agents:
            first = self.session.get(f"/v1/onics/{self.ranks[0]}")
            timings[self.fabric] = first["status"].get("timings", {})
        repeats = Repeats(self.folder, self.reporter, self.comparison.compute_s)
        for plan in plans:
            failures = self.one_run(plan)
            # What is made to go wrong, and the short exchanges of a sweep, say nothing by their timers.
            if not failures and plan.kind == "fabric":
                failures = repeats.settle(plan.name, self.expected_s(plan), partial(self._again, plan))
            if failures:
                raise BackendError(f"{plan.title}: {failures[0]}")
            links.repeat()
        links.repeat(last=True)
        return timings

    def _again(self, plan: Plan, name: str) -> list[str]:
        return self.one_run(replace(plan, name=name, title=f"{plan.title}, again"))

    def expected_s(self, plan: Plan) -> float:
        """What the model says that a run takes, its own delays included."""
        return self.comparison.expected_s(self.fabric, plan.request, _allowance_s(plan.faults))

    def one_run(self, plan: Plan) -> list[str]:
        """Make one run; one line for each job that failed."""
        jobs = self.comparison.jobs(self.fabric)
        total = dict.fromkeys(jobs, int(plan.request["iterations"]))
        self.reporter.start_run(plan.title, total)
        requests = jobs_of(self.comparison, self.fabric, {"hold": True, **plan.request})
        self.folder.event(
            "run_started",
            run=plan.name,
            kind=plan.kind,
            case=self.fabric,
            variant=plan.variant,
            repeat=plan.repeat,
            jobs={job: list(gpus) for job, gpus in jobs.items()},
            request=dict(plan.request),
            point=dict(plan.point) if plan.point else None,
        )
        if plan.faults:
            disturbance.emulate(self.processes, plan.faults)
        flows = FlowLog(self.session, self.folder, plan.name, self.setting)
        if self.has_onics:
            self._note_light(plan, "before")
        ids = {job: self.session.submit(request) for job, request in requests.items()}
        self.session.wait_ready(ids)
        if self.has_agents:
            self._note_grid(plan)
        at = self.session.release(ids.values())
        self.folder.event("released", run=plan.name, at=at)
        trouble = _Trouble(self, plan)

        def each_round(watch: Watch) -> None:
            trouble.look(watch)
            if not self.processes.controller_away:
                flows.look()

        watch = Watch(
            self.session,
            self.folder,
            self.reporter,
            plan.name,
            jobs,
            ids,
            total,
            at,
            self.expected_s(plan) * PATIENCE + PATIENCE_S,
            each_round,
        )
        failures = watch.to_the_end()
        if not failures:
            trouble.check_happened()
        if plan.faults:
            disturbance.emulate(self.processes, self._no_faults())
        flows.read()
        if self.has_onics:
            self._note_light(plan, "after")
        self._note_rings(plan)
        if not failures:
            for job, request in requests.items():
                sha256 = self.references.hash_of(self.processes, request)
                self.folder.event("reference", run=plan.name, job=job, sha256=sha256)
            self.folder.event("run_ended", run=plan.name, t=watch.ended_at)
            self.reporter.end_run()
            self.reporter.say(f"  done: {watch.ended_at - at:.1f} s")
        self.reporter.end_run()
        return failures

    def _no_faults(self) -> dict[str, float]:
        tuning_s = self.setting.fabric.onics[self.ranks[0]].tuning_s
        return {**disturbance.NO_FAULTS, "tuning_s": tuning_s * self.setting.time_scale}

    def _note_light(self, plan: Plan, moment: str) -> None:
        """The kernel's counters and the agents', before and after a run."""
        counters = disturbance.light_counters(self.processes)
        agents = {
            entry["gpu"]: {"epoch": entry["status"]["epoch"], "counters": entry["status"]["counters"]}
            for entry in self.session.get("/v1/onics")
            if entry.get("status")
        }
        self.folder.event("light", run=plan.name, moment=moment, kernel=counters, agents=agents)

    def _note_grid(self, plan: Plan) -> None:
        """The wavelengths that the arbiter has let through for the job."""
        for name in self.setting.fabric.grids:
            self.folder.event("grid", run=plan.name, grid=self.session.get(f"/v1/grids/{name}"))

    def _note_rings(self, plan: Plan) -> None:
        """How long the light between two steps took to set, as the controller counted."""
        for name in self.setting.fabric.rings:
            ring = self.session.get(f"/v1/rings/{name}")
            set_ups = self.session.get(f"/v1/rings/{name}/set-ups")
            self.folder.event("ring", run=plan.name, ring=ring, set_ups=set_ups)


def _allowance_s(faults: Mapping[str, float] | None) -> float:
    """Set-up time per step that a run's own delays bring, seconds."""
    faults = faults or {}
    return 2 * faults.get("control_delay_s", 0.0) + faults.get("tuning_s", 0.0)


class FlowLog:
    """Copies what the agents remember of their flows into the run folder. Nothing without agents."""

    def __init__(self, session: Session, folder: RunFolder, run: str, setting: Setting) -> None:
        self._session, self._folder, self._run = session, folder, run
        self._gpu_of = {gpu.ip: gpu.name for gpu in setting.fabric.gpus.values()}
        agents = [gpu for grid in setting.fabric.grids.values() for gpu in grid.nodes]
        self._cursors = dict.fromkeys(agents, END_OF_TRACE)
        self._next = 0.0
        # What an earlier run left is not this run's.
        for gpu in self._cursors:
            self._cursors[gpu] = self._ask(gpu)["cursor"]

    def look(self) -> None:
        """Read, if it is time again."""
        if time.monotonic() >= self._next:
            self.read()
            self._next = time.monotonic() + FLOWS_S

    def read(self) -> None:
        for gpu, cursor in self._cursors.items():
            try:
                answer = self._ask(gpu)
                if answer["cursor"] < cursor:
                    # A new agent in place of one that died: what that one did last is lost with it.
                    self._cursors[gpu] = 0
                    answer = self._ask(gpu)
            except ApiError:
                # Away for now; it is asked again.
                continue
            self._cursors[gpu] = answer["cursor"]
            for flow in answer["flows"]:
                times = {"t": flow["t_close"], "event": "flow", "run": self._run, "gpu": gpu}
                self._folder.copy({**times, **flow, "peer": self._gpu_of.get(flow["peer"], flow["peer"])})
            if answer.get("dropped"):
                self._folder.event("flows_lost", run=self._run, gpu=gpu, count=answer["dropped"])

    def _ask(self, gpu: str) -> dict[str, Any]:
        found: dict[str, Any] = self._session.get(f"/v1/onics/{gpu}/flows", cursor=self._cursors[gpu])
        return found


class _Trouble:
    """Makes happen what a run's trouble says, and notes when."""

    def __init__(self, runner: _LabRunner, plan: Plan) -> None:
        self._runner, self._plan = runner, plan
        self._spec = plan.trouble
        self._killed = False
        self._away = False
        #: The process of the agent that was killed and is not replaced yet, and when to give up.
        self._replaced: tuple[int, float] | None = None

    def look(self, watch: Watch) -> None:
        spec, processes = self._spec, self._runner.processes
        if spec is None or spec.kill is None:
            return
        self._look_for_agent(spec.kill)
        if self._away and not processes.controller_away:
            self._away = False
            self._note("back", what=CONTROLLER)
        if self._killed or not watch.left or watch.done(self._runner.comparison.job) < spec.after_iterations:
            return
        self._killed = True
        if spec.kill == CONTROLLER:
            processes.kill_controller(spec.absence)
            self._away = True
            self._note("killed", what=CONTROLLER, absence_s=spec.absence)
            self._runner.reporter.say(f"  controller killed; away for {spec.absence:g} s")
            return
        pid = disturbance.kill_agent(processes, spec.kill)
        self._note("killed", what=f"agent of {spec.kill}")
        self._runner.reporter.say(f"  agent of {spec.kill} killed")
        self._replaced = (pid, time.monotonic() + disturbance.BACK_S)

    def _look_for_agent(self, gpu: str) -> None:
        """Note it once the killed agent's successor answers. Raises BackendError when that takes too long."""
        if self._replaced is None:
            return
        pid, deadline = self._replaced
        reason = disturbance.why_no_other_agent(self._runner.processes, gpu, pid)
        if reason is None:
            self._replaced = None
            if self._plan.faults:
                disturbance.emulate_one(self._runner.processes, gpu, self._plan.faults)
            self._note("back", what=f"agent of {gpu}")
        elif time.monotonic() > deadline:
            raise BackendError(f"no new agent of O-NIC {gpu} within {disturbance.BACK_S:.0f} s: {reason}")

    def check_happened(self) -> None:
        """Once the run is over: wait for a killed agent, which the next run needs.

        Raises BackendError when the run was over before the trouble came.
        """
        if self._spec is None or self._spec.kill is None:
            return
        if not self._killed:
            raise BackendError(
                f"{self._plan.title}: the job had ended before {self._spec.kill} could be killed"
            )
        while self._replaced is not None:
            self._look_for_agent(self._spec.kill)
            time.sleep(0.02)

    def _note(self, what_happened: str, **fields: Any) -> None:
        self._runner.folder.event("trouble", run=self._plan.name, happened=what_happened, **fields)
