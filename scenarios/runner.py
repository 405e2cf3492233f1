"""Runs a scenario: link test, every case fragmented and regrouped, variants, the live regroup.

Everything is asked of the controller through the REST API that a user has. The runner decides what to run
and writes down what happened; what it means is computed afterwards (``results``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.backends.emulation.linktest import LinkTest
from experiments.backends.emulation.processes import Addresses, LabProcesses, check_ready
from experiments.backends.emulation.reference import References
from experiments.backends.emulation.session import Session
from experiments.backends.protocol import BackendError
from experiments.record.environment import describe_environment
from experiments.runner.progress import Reporter
from fabric.topology import canonical
from scenarios.prediction import predict_completions
from scenarios.records import Kind
from scenarios.repeats import Repeats
from scenarios.runfolder import RunFolder, finish
from scenarios.schema import Scenario, Setting
from scenarios.watch import Watch

#: A run may take this many times its predicted time, and this many seconds more, before it is given up.
PATIENCE, PATIENCE_S = 3.0, 60.0


@dataclass(frozen=True)
class Options:
    """How to run: ``repeat`` runs of each case, ``folder`` for run folders."""

    runtime: str = "docker"
    repeat: int = 1
    folder: Path = Path("runs")
    addresses: Addresses = field(default_factory=Addresses)


@dataclass(frozen=True)
class Plan:
    """One run that is to be made; ``regroup`` is before the start, while training, or not at all."""

    name: str
    title: str
    kind: Kind
    case: str
    placement: str
    jobs: Mapping[str, tuple[str, ...]]
    repeat: int = 1
    variant: str | None = None


def run_scenario(scenario: Scenario, options: Options, reporter: Reporter) -> tuple[Path, dict[str, Any]]:
    """Run it all; the run folder and the object of result.json.

    Raises BackendError, ApiError, Unreachable or WriteError with one line. Whatever happens, nothing of
    the lab is left.
    """
    check_ready(options.runtime, options.addresses)
    with RunFolder(options.folder, scenario) as folder:
        folder.describe(**describe_environment(scenario, [scenario.fabric], options.runtime))
        reporter.say(f"{scenario.spec.name}: run folder {folder.path}")
        try:
            with LabProcesses(
                scenario.lab_setting,
                options.runtime,
                options.addresses,
                folder.logs,
                notice=reporter.say,
            ) as processes:
                reporter.say(
                    f"lab {processes.lab.id} is up: {len(scenario.fabric.packet_switches)} packet switches, "
                    f"{len(scenario.fabric.optical_switches)} optical switches, "
                    f"{len(scenario.fabric.gpus)} GPUs ({options.runtime}); "
                    f"REST at http://{options.addresses.rest}/docs"
                )
                folder.describe(lab=processes.lab.id, optical_profiles=optical_profiles(processes))
                _Runner(scenario, options, processes, folder, reporter).everything()
                folder.describe(controller_restarts=processes.restarts)
        finally:
            reporter.end_run()
    reporter.say("drawing the report")
    return folder.path, finish(folder.path)


def plans(scenario: Scenario, repeat: int) -> list[Plan]:
    """Every run that the scenario asks for, in order."""
    wanted = []
    for number in range(1, repeat + 1):
        for name, case in scenario.spec.cases.items():
            for placement in ("fragmented", "regrouped"):
                again = f" ({number} of {repeat})" if repeat > 1 else ""
                title = f"case {name}, {placement}{again}"
                wanted.append(
                    Plan(f"{name}-{placement}-{number}", title, "case", name, placement, case.jobs, number)
                )
    for name, variant in scenario.spec.variants.items():
        jobs = {**scenario.spec.cases[variant.case].jobs, **variant.jobs}
        title = f"variant {name} of case {variant.case}, fragmented"
        wanted.append(
            Plan(f"variant-{name}", title, "variant", variant.case, "fragmented", jobs, variant=name)
        )
    live = scenario.spec.live
    if live is not None:
        title = f"case {live.case}, regrouped while it trains"
        wanted.append(Plan("live", title, "live", live.case, "live", scenario.spec.cases[live.case].jobs))
    return wanted


def job_request(
    scenario: Setting, name: str, gpus: Sequence[str], *, beacon_s: float = 0.0
) -> dict[str, Any]:
    """What ``POST /v1/jobs`` is told to start a training job, held."""
    training = scenario.spec.training
    return {
        "name": name,
        "ranks": list(gpus),
        "hold": True,
        "workload": "train",
        "collective": training.collective,
        "gradient_bytes": scenario.gradient_bytes,
        "compute_s": scenario.compute_s,
        "iterations": scenario.iterations(len(gpus)),
        "batch": training.batch,
        "seed": training.seed,
        "learning_rate": training.learning_rate,
        "beacon_interval_s": beacon_s,
    }


def optical_profiles(processes: LabProcesses) -> dict[str, Any]:
    """Declared timing of each optical switch, as the controller shows it."""
    return {
        name: processes.inventory["optical_switches"][name].get("profile", {})
        for name in processes.setting.fabric.optical_switches
    }


class _Runner:
    def __init__(
        self,
        scenario: Scenario,
        options: Options,
        processes: LabProcesses,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self.scenario = scenario
        self.options = options
        self.processes = processes
        self.session = Session(processes)
        self.folder = folder
        self.reporter = reporter
        self.references = References()
        self.start = canonical((str(a), str(b)) for a, b in scenario.fabric.circuits)

    def everything(self) -> None:
        links = LinkTest(self.scenario.lab_setting, self.session, self.folder.record, self.reporter.say)
        links.measure(self.start)
        repeats = Repeats(self.folder, self.reporter, self.scenario.compute_s)
        for plan in plans(self.scenario, self.options.repeat):
            failures = self.one_run(plan)
            if not failures:
                again = partial(self._again, plan)
                failures = repeats.settle(plan.name, self.expected_s(plan), again)
            if failures:
                raise BackendError(f"{plan.title}: {failures[0]}")
            links.repeat()
        links.repeat(last=True)

    def _again(self, plan: Plan, name: str) -> list[str]:
        return self.one_run(replace(plan, name=name, title=f"{plan.title}, again"))

    def expected_s(self, plan: Plan) -> float | None:
        """What the model says that a run takes; it knows no regroup while jobs train."""
        if plan.placement == "live":
            return None
        circuits = self.session.lit_circuits()
        return max(predict_completions(self.scenario, circuits, plan.jobs).values())

    def one_run(self, plan: Plan) -> list[str]:
        """Make one run; one line for each job that failed."""
        totals = {name: self.scenario.iterations(len(gpus)) for name, gpus in plan.jobs.items()}
        self.reporter.start_run(plan.title, totals)
        self.session.set_circuits(self.start)
        self.folder.event(
            "run_started",
            run=plan.name,
            kind=plan.kind,
            case=plan.case,
            variant=plan.variant,
            placement=plan.placement,
            repeat=plan.repeat,
            jobs={name: list(gpus) for name, gpus in plan.jobs.items()},
            circuits=self.start,
        )
        live = self.scenario.spec.live
        beacon_s = live.beacon if live is not None and plan.kind == "live" else 0.0
        ids = {
            name: self.session.submit(job_request(self.scenario, name, gpus, beacon_s=beacon_s))
            for name, gpus in plan.jobs.items()
        }
        self.session.wait_ready(ids)
        if plan.placement == "regrouped":
            self.note_regroup(plan, self.session.regroup_now(ids.values()))
        at = self.session.release(ids.values())
        self.folder.event("released", run=plan.name, at=at)
        predicted = predict_completions(self.scenario, self.start, plan.jobs)
        regroup = _LiveRegroup(self, plan)
        watch = Watch(
            self.session,
            self.folder,
            self.reporter,
            plan.name,
            plan.jobs,
            ids,
            totals,
            at,
            max(predicted.values()) * PATIENCE + PATIENCE_S,
            regroup,
        )
        failures = watch.to_the_end()
        if not failures:
            regroup.check_done()
        self.folder.event("circuits", run=plan.name, circuits=self.session.ask(self.session.lit_circuits))
        if not failures:
            for name, gpus in plan.jobs.items():
                sha256 = self.references.hash_of(self.processes, job_request(self.scenario, name, gpus))
                self.folder.event("reference", run=plan.name, job=name, sha256=sha256)
            self.folder.event("run_ended", run=plan.name, t=watch.ended_at)
            done = ", ".join(f"{name} {end - at:.1f} s" for name, end in sorted(watch.ends.items()))
            self.reporter.end_run()
            self.reporter.say(f"  done: {done}")
        self.reporter.end_run()
        return failures

    def note_regroup(self, plan: Plan, regroup: dict[str, Any]) -> None:
        self.folder.event("regrouped", run=plan.name, regroup=regroup)
        moves = ", ".join(f"{m['gpu']} to {m['to']}" for m in regroup["plan"]["moves"]) or "nothing to move"
        self.reporter.say(f"  regrouped: {moves}")


class _LiveRegroup:
    """In the live run, asks for the regroup when the watched job is so far, and sees it done."""

    def __init__(self, runner: _Runner, plan: Plan) -> None:
        self._runner, self._plan = runner, plan
        self._live = runner.scenario.spec.live if plan.kind == "live" else None
        self._id: str | None = None
        self._regrouped = False

    def __call__(self, watch: Watch) -> None:
        runner, live = self._runner, self._live
        if live is None or self._regrouped:
            return
        if self._id is None:
            watched = runner.scenario.spec.cases[live.case].watched
            if watch.done(watched) >= live.after_iterations and watch.left:
                self._id = runner.session.begin_regroup(watch.left.values())
        if self._id is not None:
            found = runner.session.regroup_done(self._id)
            if found is not None:
                self._regrouped = True
                runner.note_regroup(self._plan, found)

    def check_done(self) -> None:
        """Raises BackendError where the jobs ended before it was asked for, or before it was done."""
        if self._live is None or self._regrouped:
            return
        if self._id is None:
            watched = self._runner.scenario.spec.cases[self._live.case].watched
            raise BackendError(
                f"{self._plan.title}: job {watched} had ended before the regroup after "
                f"{self._live.after_iterations} of its iterations (live.after_iterations) could be asked for"
            )
        raise BackendError(f"{self._plan.title}: {self._id} was not done when the jobs ended")
