"""A whole experiment: which runs a backend can make, where they go, and what comes of them."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringlight.experiments.analysis.prediction import Foretell
from ringlight.experiments.backends.protocol import (
    Backend,
    BackendError,
    Batch,
    BatchBackend,
    MachineGone,
    Made,
    RemoteBackend,
    Told,
    untold,
)
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.environment import describe_machine
from ringlight.experiments.record.events import Record, RunEnded, RunFailed
from ringlight.experiments.record.folder import RunFolder
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.version import code_version
from ringlight.experiments.runner.executor_kinds import lost
from ringlight.experiments.runner.larger import MOST
from ringlight.experiments.runner.progress import COMPUTED_EVERY_S, Notes, Reporter
from ringlight.experiments.runner.repeats import Repeats
from ringlight.experiments.runner.timeline import run_group
from ringlight.fabric.values import under

#: Least time between two lines of a sweep's progress, seconds.
_LINE_S = 5.0
#: The same while runs on other machines are under way.
_REMOTE_LINE_S = 20.0


@dataclass(frozen=True)
class Chosen:
    """The runs to make, and why each arm that is left out is: its backend refuses it."""

    plans: tuple[RunPlan, ...]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class Done:
    """Path of an experiment's run folder, and one line for everything in it that did not go as planned."""

    path: Path
    failures: tuple[str, ...]


def choose(
    experiment: Experiment,
    backend: Backend,
    arms: Collection[str] = (),
    points: Collection[str] = (),
) -> Chosen:
    """Return the runs of some arms, at some points of their sweeps; all by default.

    Raises ScenarioError for an unknown arm or point, for an arm that is named and refused, and if no run is
    left.
    """
    plans = experiment.plans_of(arms, points)
    refused: dict[str, str] = {}
    for plan in plans:
        if (
            plan.arm not in refused
            and (why := nothing_to_run(plan) or backend.refuses(plan)) is not None
        ):
            refused[plan.arm] = why
    left = tuple(plan for plan in plans if plan.arm not in refused)
    for arm, why in refused.items():
        if arm in arms or not left:
            reason = under(f"arms.{arm}", why) if len(experiment.arms) > 1 else why
            raise ScenarioError(f"{experiment.path}: {reason}")
    return Chosen(left, refused)


def nothing_to_run(plan: RunPlan) -> str | None:
    """Return why a run cannot be made of a plan that is only a fabric; None of any other plan."""
    if plan.jobs or plan.source is not None:
        return None
    return "jobs: missing, so nothing runs; give jobs or training, or build its fabric (ringlight up)"


def carry_out(
    experiment: Experiment,
    chosen: Chosen,
    backend: Backend,
    folder: RunFolder,
    reporter: Reporter,
    pool: AbstractContextManager[Executor] | None = None,
    ended: Collection[str] = (),
    foretell: Foretell | None = None,
) -> Done:
    """Make the runs that have not ``ended`` yet, with all records in the folder. Return the path and the
    failures.

    ``foretell``: simulates measured runs, for comparison. ``pool``: executor for the runs, each by itself, of
    a backend that needs no machine of its own.

    Raises BackendError, WriteError, TooFast. Nothing of a lab is left in any case.
    """
    plans: Sequence[RunPlan] = [plan for plan in chosen.plans if plan.name not in ended]
    facts = {
        "experiment": experiment.spec.name,
        "backend": backend.name,
        "label": backend.label,
        "code": code_version(),
        "arms": list(dict.fromkeys(plan.arm for plan in chosen.plans)),
        "not_run": dict(chosen.refused),
    }
    # What a resumed experiment rests on is what all of its runs do.
    backend.prepare(
        _settings(chosen.plans), folder.logs, reporter.say, folder.environment
    )
    folder.describe(
        **{**facts, **describe_machine(backend.label == "simulated"), **backend.facts()}
    )
    for arm, why in chosen.refused.items():
        reporter.say(f"arm {arm} is left out: {why}")
    # Virtual time is nobody's to take.
    repeats = Repeats(reporter, foretell) if backend.label == "measured" else None
    failures: list[str] = []
    batches: Sequence[Batch] = ()
    if isinstance(backend, BatchBackend):
        batches, plans = backend.batches(plans)
    if pool is not None:
        with pool as executor:
            failures += _spread(backend, [*batches, *plans], folder, reporter, executor)
    else:
        for batch in batches:
            made = _carry_out(backend, batch, reporter.computed)
            folder.write(made.records)
            failures += made.failures
        for setting in _settings(plans):
            group = [plan for plan in plans if plan.setting is setting]
            scale = experiment.scale
            judged = (
                scale is not None
                and setting.scale == scale.scale
                and len(scale.larger) < MOST
            )
            for outcome in run_group(
                backend,
                group,
                folder.write,
                reporter,
                repeats,
                chosen=judged and repeats is not None,
            ):
                failures += outcome.failures
                # Should the command be killed, its labs are on record as its runs are.
                folder.describe(**backend.facts())
    folder.describe(**backend.facts())
    return Done(folder.path, tuple(failures))


def _settings(plans: Sequence[RunPlan]) -> list[Setting]:
    """Return the labs of some plans, in the order in which they are first needed."""
    return list({id(plan.setting): plan.setting for plan in plans}.values())


def run_alone(
    backend: Backend,
    plan: RunPlan,
    reporter: Reporter | None = None,
    repeats: Repeats | None = None,
) -> tuple[list[Record], tuple[str, ...]]:
    """Make one run by itself. Return its records and failures; a run that cannot be made is a record."""
    records: list[Record] = []
    try:
        (outcome,) = run_group(
            backend, [plan], records.extend, reporter or Reporter(quiet=True), repeats
        )
    except BackendError as error:
        return [RunFailed(t=0.0, run=plan.name, arm=plan.arm, reason=str(error))], (
            str(error),
        )
    return records, outcome.failures


def made_alone(backend: Backend, plan: RunPlan) -> tuple[list[Record], tuple[str, ...]]:
    """Make one run by itself, elsewhere if the backend is remote. Return its records and failures."""
    made = (
        backend.alone(plan)
        if isinstance(backend, RemoteBackend)
        else _carry_out(backend, plan, untold)
    )
    return made.records, made.failures


def _carry_out(backend: Backend, task: Any, report: Told) -> Made:
    """The same of a plan, or of all runs of a batch."""
    if isinstance(backend, RemoteBackend):
        return backend.make(task)
    if isinstance(task, RunPlan):
        return Made(*run_alone(backend, task))
    records = task.compute(report)
    return Made(
        records,
        tuple(record.reason for record in records if isinstance(record, RunFailed)),
    )


def run_elsewhere(backend: Backend, task: Any, code: str, notes: Notes) -> Made:
    """Carry out one task on a worker, which must have the code that the sweep began with. Return what was
    made.

    Raises BackendError if the code differs.
    """
    if code_version() != code:
        raise BackendError(
            f"{platform.node()} has other code of ringlight ({code_version()}) than the sweep ({code})"
        )
    try:
        return _carry_out(backend, task, notes.note)
    finally:
        notes.clear()


def _spread(
    backend: Backend,
    tasks: Sequence[Any],
    folder: RunFolder,
    reporter: Reporter,
    executor: Executor,
) -> Iterator[str]:
    """Run tasks on an executor; yields their failures.

    Each task's records are written at once, so that a killed sweep can go on.
    """
    began = last = time.monotonic()
    done, count = 0, sum(map(_runs_of, tasks))
    # Of a run on another machine nothing is heard before its end.
    quiet_s = _REMOTE_LINE_S if isinstance(backend, RemoteBackend) else COMPUTED_EVERY_S
    try:
        with TemporaryDirectory(
            prefix="ringlight-progress-", ignore_cleanup_errors=True
        ) as written:
            notes = Notes(Path(written))
            code = code_version()
            under_way = {
                executor.submit(run_elsewhere, backend, task, code, notes): task
                for task in tasks
            }
            while under_way:
                ended, _ = wait(under_way, COMPUTED_EVERY_S, FIRST_COMPLETED)
                for future in ended:
                    made, task = future.result(), under_way.pop(future)
                    folder.write(made.records)
                    yield from made.failures
                    done += _runs_of(task)
                    if isinstance(backend, RemoteBackend):
                        backend.take(task, made, folder)
                if isinstance(backend, RemoteBackend) and under_way:
                    backend.watch()
                now = time.monotonic()
                if now - last >= (_LINE_S if ended else quiet_s) or not under_way:
                    last = now
                    left_s = (now - began) / done * (count - done) if done else None
                    reporter.runs_done(done, count, _left(left_s, notes.read()))
    except (BrokenExecutor, BackendError, *lost()) as error:  # type: ignore[misc]  # as many as there are
        why = "a process that computed runs was killed; was there too little memory?"
        if isinstance(error, MachineGone):
            why = f"{error}."
        elif isinstance(error, BackendError):
            why = f"a worker was refused: {error}; give it the same."
        elif not isinstance(error, BrokenExecutor):
            why = f"runs that were under way were lost: {str(error) or 'nobody makes them any more'}."
        raise BackendError(f"{why} Go on with: --resume {folder.path}") from None


def _left(left_s: float | None, parts: Sequence[str]) -> str:
    """Return the rest of a line of progress; ``left_s``: seconds that other runs take, if that is known."""
    left = "" if left_s is None else f", about {left_s:.0f} s left"
    return left + (f"; {', '.join(parts)}" if parts else "")


def _runs_of(task: Any) -> int:
    return 1 if isinstance(task, RunPlan) else task.count


def runs_in(path: Path) -> set[str]:
    """Return the names of the complete runs of a folder. Raises ScenarioError."""
    return {
        record.run
        for record in read_records(path / "events.jsonl")
        if isinstance(record, RunEnded)
    }
