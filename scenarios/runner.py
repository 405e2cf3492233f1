"""Runs a scenario: link test, every case fragmented and regrouped, variants, the live regroup.

Everything is asked of the controller through the REST API that a user has. The runner decides what to run
and writes down what happened; what it means is computed afterwards (``results``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios.environment import ProcessorLoad, describe_environment
from scenarios.linktest import LinkTest
from scenarios.prediction import predict_completions
from scenarios.processes import Addresses, LabProcesses, RunError
from scenarios.progress import Reporter
from scenarios.records import Kind
from scenarios.runfolder import RunFolder, finish
from scenarios.schema import Scenario
from scenarios.session import ENDED, Session, canonical, rank_of

#: A run may take this many times its predicted time, and this many seconds more, before it is given up.
PATIENCE, PATIENCE_S = 3.0, 60.0
#: Seconds between two looks at running jobs; and between two readings of the processors' load.
POLL_S, LOAD_S = 0.2, 0.5


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

    Raises RunError, ApiError or Unreachable with one line. Whatever happens, nothing of the lab is left.
    """
    began = time.monotonic()
    with RunFolder(options.folder, scenario) as folder:
        environment = {"run": folder.name, **describe_environment(scenario, options.runtime)}
        folder.environment(environment)
        reporter.say(f"{scenario.spec.name}: run folder {folder.path}")
        try:
            with LabProcesses(
                scenario, options.runtime, options.addresses, folder.logs, notice=reporter.say
            ) as processes:
                reporter.say(
                    f"lab {processes.lab.id} is up: {len(scenario.fabric.packet_switches)} packet switches, "
                    f"{len(scenario.fabric.optical_switches)} optical switches, "
                    f"{len(scenario.fabric.gpus)} GPUs ({options.runtime}); "
                    f"REST at http://{options.addresses.rest}/docs"
                )
                environment |= {"lab": processes.lab.id, "optical_profiles": _profiles(processes)}
                runner = _Runner(scenario, options, processes, folder, reporter)
                runner.everything()
                environment["controller_restarts"] = processes.restarts
        except BaseException as error:
            folder.event("aborted", reason=str(error) or type(error).__name__)
            raise
        finally:
            reporter.end_run()
            environment["duration_s"] = round(time.monotonic() - began, 3)
            folder.environment(environment)
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
    scenario: Scenario, name: str, gpus: Sequence[str], *, beacon_s: float = 0.0
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


def _profiles(processes: LabProcesses) -> dict[str, Any]:
    """Declared timing of each optical switch, as the controller shows it."""
    return {
        name: processes.inventory["optical_switches"][name].get("profile", {})
        for name in processes.scenario.fabric.optical_switches
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
        self._references: dict[int, str] = {}
        self.start = canonical((str(a), str(b)) for a, b in scenario.fabric.circuits)

    def everything(self) -> None:
        LinkTest(self.scenario, self.session, self.folder, self.reporter).measure(self.start)
        for plan in plans(self.scenario, self.options.repeat):
            failures = self.one_run(plan)
            if failures:
                raise RunError(f"{plan.title}: {failures[0]}")

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
        watch = _Watch(self, plan, ids, totals, at)
        failures = watch.to_the_end()
        self.folder.event("circuits", run=plan.name, circuits=self.session.ask(self.session.lit_circuits))
        if not failures:
            for name, gpus in plan.jobs.items():
                self.folder.event("reference", run=plan.name, job=name, sha256=self.reference(name, gpus))
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

    def reference(self, name: str, gpus: Sequence[str]) -> str:
        """Hash of the parameters after the same training in one process, in the workers' own image."""
        key = len(gpus)
        if key not in self._references:
            self._references[key] = self._train_in_one_process(name, gpus)
        return self._references[key]

    def _train_in_one_process(self, name: str, gpus: Sequence[str]) -> str:
        request = job_request(self.scenario, name, gpus)
        keep = ("collective", "gradient_bytes", "iterations", "batch", "seed", "learning_rate")
        addresses = [self.scenario.fabric.gpus[gpu].ip for gpu in gpus]
        spec = {"job": name, "rank": 0, "world_size": len(gpus), "peers": addresses}
        spec |= {key: request[key] for key in keep}
        path = self.processes.state / f"reference-{len(gpus)}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        command = reference_command(path, self.options.runtime, self.processes.lab.id)
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                stdin=subprocess.DEVNULL,
                env=self.processes.lab.environment(),
                cwd=Path(__file__).resolve().parents[1],
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"the one-process reference of job {name} took more than 120 s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RunError(f"the one-process reference of job {name} failed: {last}")
        return str(json.loads(done.stdout)["parameters_sha256"])


def reference_command(spec: Path, runtime: str, lab: str) -> list[str]:
    """The command that trains in one process: in the worker image, or here without containers."""
    module = "containers.worker.reference"
    if runtime != "docker":
        return [sys.executable, "-m", module, str(spec)]
    from containers.image import image_tag

    return [
        *("docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--memory", "1g", "--label", f"ringlight.lab={lab}"),
        *("--mount", f"type=bind,source={spec},target=/spec.json,readonly", image_tag()),
        *("python3", "-m", module, "/spec.json"),
    ]


class _Watch:
    """Follows the jobs of one run: copies events and series, counts iterations, starts the live regroup."""

    def __init__(
        self, runner: _Runner, plan: Plan, ids: Mapping[str, str], totals: Mapping[str, int], at: float
    ) -> None:
        self.runner = runner
        self.plan = plan
        self.ids = ids
        self.totals = totals
        self.ends: dict[str, float] = {}
        self.ended_at = at
        self._cursor = dict.fromkeys(ids, 0)
        self._done = {name: [0] * len(plan.jobs[name]) for name in ids}
        self._since = at
        self._load = ProcessorLoad()
        self._next_load = at + LOAD_S
        self._regroup_id: str | None = None
        self._regrouped = False
        predicted = predict_completions(runner.scenario, runner.start, plan.jobs)
        self._patience_s = max(predicted.values()) * PATIENCE + PATIENCE_S
        self._deadline = at + self._patience_s

    def to_the_end(self) -> list[str]:
        """One line for each job that did not succeed. Raises RunError at the deadline."""
        runner = self.runner
        failures: list[str] = []
        left = dict(self.ids)
        while left:
            time.sleep(POLL_S)
            runner.processes.tend()
            for name, job_id in list(left.items()):
                # The state first: what it says is then already in the events.
                job = runner.session.get(f"/v1/jobs/{job_id}")
                self._copy_events(name, job_id)
                if job["state"] not in ENDED:
                    continue
                del left[name]
                if job["state"] != "SUCCEEDED":
                    failures.append(f"job {name} {job['state'].lower()}: {job['error']}")
                    runner.reporter.say(failures[-1], style="red")
                    runner.folder.event(
                        "job_failed", run=self.plan.name, failed_job=name, reason=job["error"]
                    )
            self._samples()
            self._processors()
            self._live(left)
            runner.reporter.advance({n: min(d) for n, d in self._done.items()}, self.totals)
            if left and time.monotonic() > self._deadline:
                raise RunError(f"job {', '.join(left)} had not ended after {self._patience_s:.0f} s")
        if self._regroup_id is not None and not self._regrouped and not failures:
            raise RunError(f"{self._regroup_id} was not done when the jobs ended")
        self.ended_at = max(self.ends.values(), default=time.monotonic())
        return failures

    def _copy_events(self, name: str, job_id: str) -> None:
        runner = self.runner
        cursor = self._cursor[name]
        answer = runner.session.get(f"/v1/jobs/{job_id}/events", cursor=cursor)
        if answer["cursor"] < cursor:
            # A controller that was started again is still catching up with the workers.
            return
        self._cursor[name] = answer["cursor"]
        for event in answer["events"]:
            rank = rank_of(event)
            runner.folder.copy({**event, "run": self.plan.name, "job": name, "rank": rank})
            if event["event"] == "iteration":
                self._done[name][rank] = max(self._done[name][rank], event["i"] + 1)
                self.ends[name] = max(self.ends.get(name, 0.0), event["allreduce_end"])

    def _samples(self) -> None:
        runner = self.runner
        samples = runner.session.get("/v1/series", since=self._since)
        entries = samples["samples"] if isinstance(samples, dict) else samples
        if entries:
            self._since = max(entry["t"] for entry in entries)
            runner.folder.samples(self.plan.name, entries)

    def _processors(self) -> None:
        now = time.monotonic()
        if now >= self._next_load:
            self._next_load = now + LOAD_S
            self.runner.folder.event("cpu", run=self.plan.name, busy=round(self._load.busy(), 4))

    def _live(self, left: Mapping[str, str]) -> None:
        runner, live = self.runner, self.runner.scenario.spec.live
        if self.plan.kind != "live" or live is None or self._regrouped:
            return
        if self._regroup_id is None:
            watched = runner.scenario.spec.cases[live.case].watched
            if min(self._done[watched]) >= live.after_iterations and left:
                self._regroup_id = runner.session.begin_regroup(left.values())
        if self._regroup_id is not None:
            found = runner.session.regroup_done(self._regroup_id)
            if found is not None:
                self._regrouped = True
                runner.note_regroup(self.plan, found)
