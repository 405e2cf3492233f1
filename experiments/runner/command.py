"""Turns scenario files into finished run folders, and folders into rows, for commands and for Python."""

from __future__ import annotations

import filecmp
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.latency import as_simulated
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.result import (
    analyse,
    document,
    label_of,
    read_result,
)
from ringlight.experiments.analysis.rows import Row, as_csv, from_json
from ringlight.experiments.backends.protocol import Backend, RemoteBackend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, ScaleFor, parse
from ringlight.experiments.language.plan import ChosenScale
from ringlight.experiments.language.text import SCENARIO_BYTES, ScenarioError, read_text
from ringlight.experiments.papers import papers
from ringlight.experiments.record.folder import (
    RunFolder,
    chosen_scale,
    environment_of,
    experiment_of,
    read_port_rates,
)
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.version import code_version
from ringlight.experiments.record.writing import write_json, write_whole, writing
from ringlight.experiments.report.report import prepare, write_report
from ringlight.experiments.report.sections import names as sections_known
from ringlight.experiments.report.view import View, view_of
from ringlight.experiments.runner.executor_kinds import executor_of
from ringlight.experiments.runner.executors import beside, in_forks
from ringlight.experiments.runner.executors import processes as local
from ringlight.experiments.runner.experiment import Done, carry_out, choose, runs_in
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.larger import TooFast, at_scale, larger
from ringlight.experiments.runner.machine import scale_here
from ringlight.experiments.runner.page_kinds import page_kinds
from ringlight.experiments.runner.progress import Reporter
from ringlight.testbed.lab_programs import program_kinds

#: A result of more rows is written without indentation, which takes a quarter of the time and of the space.
_READABLE = 2000
#: A simulation of so many runs or more is spread over this machine's processors.
MANY = 24


def load_checked(
    scenario: Path,
    repeat: int | None = None,
    resume: Path | None = None,
    sets: Sequence[str] = (),
    *,
    scale_for: ScaleFor = scale_here,
    auto: bool = False,
    most_gpus: float = math.inf,
) -> Experiment:
    """Return the experiment of a scenario file, after a check that its metrics, report parts and paper model
    exist.

    ``repeat`` and ``sets``: number of repeats and values in place of the file's; else those of the run folder
    ``resume``. ``scale_for``: chooses the scale if the file leaves it to the machine, and with ``auto`` also
    if the file states no scale. ``most_gpus``: is passed to :func:`parse`. Raises ScenarioError.
    """
    before: Mapping[str, Any] = {}
    if resume is not None:
        before = environment_of(resume)
        repeat = before.get("repeat") if repeat is None else repeat
        sets = sets or before.get("sets") or ()
    chosen = None if resume is None else chosen_scale(before)
    return parse_checked(
        read_text(scenario, SCENARIO_BYTES),
        str(scenario),
        repeat,
        sets,
        scale_for=scale_for if chosen is None else lambda _: chosen,
        auto=auto or chosen is not None,
        most_gpus=most_gpus,
    )


def parse_checked(
    text: str,
    path: str,
    repeat: int | None = None,
    sets: Sequence[str] = (),
    *,
    scale_for: ScaleFor = scale_here,
    auto: bool = False,
    most_gpus: float = math.inf,
) -> Experiment:
    """Return the experiment of the text of a scenario file, as :func:`load_checked`.

    ``path``: name of the text in errors; paths in it are relative to its folder. Raises ScenarioError.
    """
    units = {name: experiment.unit for name, experiment in metrics().items()}
    experiment = parse(
        text,
        path,
        repeat=repeat,
        sets=sets,
        metrics=units,
        parts=sections_known,
        scale_for=scale_for,
        auto=auto,
        most_gpus=most_gpus,
    )
    model = experiment.spec.paper.model if experiment.spec.paper is not None else None
    if model is not None and model not in papers():
        raise ScenarioError(
            f"{path}: paper.model: there is no model {model}; there are {', '.join(papers())}"
        )
    return experiment


def carry_out_experiment(
    experiment: Experiment,
    backend: Backend,
    parent: Path,
    *,
    arms: Collection[str] = (),
    points: Collection[str] = (),
    resume: Path | None = None,
    suffix: str = "",
    processes: int | None = None,
    executor: str | Executor | None = None,
    reporter: Reporter | None = None,
    watched: bool = False,
    facts: Mapping[str, Any] | None = None,
    again: Sequence[str] = (),
    rescaled: Callable[[ChosenScale], Experiment] | None = None,
    many: float = MANY,
    early: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[Done, dict[str, Any]]:
    """Make an experiment's runs, then its result and report. Return the outcome with the folder, and
    result.json's object.

    ``executor``: an extension's that computes simulated runs, ``NAME:ADDRESS``, or an executor, which stays
    the caller's. ``resume``: an unfinished folder, in which finished runs stay. ``watched``: is passed to
    :func:`finish`. ``facts``: further facts for environment.json, which are there before the first run.
    ``again``: the command that resumes runs that come from no file of the user. ``early`` is called with the
    result before the report is drawn, which takes longer.

    If the machine does not carry the scale that was chosen for it, all runs are made again at a larger scale,
    in another folder. ``rescaled``: returns the experiment at that scale. ``many``: number of simulated runs from
    which on they are spread over this machine's processors. Raises ScenarioError, BackendError,
    WriteError and what the backend raises.
    """
    progress = reporter or Reporter()

    def once(
        experiment: Experiment, resume: Path | None
    ) -> tuple[Done, dict[str, Any]]:
        fitted = backend
        if isinstance(backend, SimulationBackend) and backend.mtu_bytes is None:
            # Fabrics that are compared have the same frames.
            fitted = replace(
                backend,
                mtu_bytes=min(
                    plan.setting.frames.mtu_bytes for plan in experiment.plans
                ),
            )
        chosen = choose(experiment, fitted, arms, points)
        spread = _pool(len(chosen.plans) >= many, fitted, processes, executor)
        fitted.check_ready()
        with ExitStack() as opened:
            # Before the run folder is made, so that an executor that cannot be had leaves none behind.
            pool = None if spread is None else nullcontext(opened.enter_context(spread))
            # What compares runs while they are made has simulated some of them by then.
            foretell = None if isinstance(fitted, SimulationBackend) else Foreteller()
            end = partial(
                finish, experiment=experiment, watched=watched, foretell=foretell
            )
            begin = None
            if pool is None and isinstance(fitted, SimulationBackend):
                begin = opened.enter_context(beside(prepare, end))
            ended: set[str] = set()
            if resume is not None:
                check_resumed(resume, experiment, fitted)
                ended = runs_in(resume)
                folder = RunFolder.again(resume)
                progress.say(
                    f"{experiment.spec.name}: going on in {resume}, {len(ended)} of its runs are there"
                )
            else:
                folder = RunFolder.new(
                    parent,
                    f"{experiment.spec.name}{suffix}",
                    experiment.text,
                    experiment.files,
                    experiment.directory,
                )
                progress.say(f"{experiment.spec.name}: run folder {folder.path}")
            chosen_by = [word for arm in arms for word in ("--arm", arm)]
            chosen_by += [word for point in points for word in ("--point", point)]
            with (
                folder,
                _resumable(folder, experiment, fitted, progress, chosen_by, again),
            ):
                repeat = max(plan.repeat for plan in experiment.plans)
                folder.describe(
                    repeat=repeat,
                    points=list(points),
                    sets=list(experiment.sets),
                    **(facts or {}),
                )
                if experiment.scale is not None:
                    folder.describe(
                        chosen_scale=experiment.scale.model_dump(mode="json")
                    )
                done = carry_out(
                    experiment, chosen, fitted, folder, progress, pool, ended, foretell
                )
            progress.say("drawing the report")
            if begin is None:
                return done, end(done.path, early=early)
            wait = begin(done.path)
            if early is not None:
                early(view_of_folder(done.path, experiment, foretell)[1])
            return done, wait()

    while True:
        try:
            return once(experiment, resume)
        except TooFast as found:
            assert experiment.scale is not None
            scale = larger(experiment.scale, str(found))
            progress.say(
                f"this machine is too slow for time {experiment.scale.time:g}: {found}"
            )
            progress.say(
                f"all runs are made again with time {scale.time:g}, in another folder"
            )
            experiment, resume = (
                (rescaled or partial(at_scale, experiment))(scale),
                None,
            )


@contextmanager
def _resumable(
    folder: RunFolder,
    experiment: Experiment,
    backend: Backend,
    reporter: Reporter,
    chosen_by: Sequence[str],
    again: Sequence[str],
) -> Iterator[None]:
    """Says how to go on with runs that somebody interrupts. ``chosen_by``: the options that chose them; what
    else was asked for is in the folder."""
    whole = False
    try:
        yield
    except Exception:
        raise
    except BaseException:
        # A command may run a scenario that is no file of the user's.
        with suppress(ScenarioError):
            whole = read_text(experiment.path) == experiment.text
        if (whole or again) and "backend" in folder.environment:
            verb = "simulate" if isinstance(backend, SimulationBackend) else "run"
            words = again or (verb, experiment.path, *chosen_by)
            options = shlex.join([*words, "--resume", str(folder.path)])
            reporter.say(
                f"runs that have ended are kept; go on with: ringlight {options}"
            )
        raise


def _pool(
    are_many: bool,
    backend: Backend,
    processes: int | None,
    executor: str | Executor | None,
) -> AbstractContextManager[Executor] | None:
    if not isinstance(backend, SimulationBackend):
        if processes is not None or executor is not None:
            raise ScenarioError(
                "only a simulation is spread over processes: a host emulates in one"
            )
        return (
            nullcontext(backend.executor())
            if isinstance(backend, RemoteBackend)
            else None
        )
    if processes is not None and executor is not None:
        raise ScenarioError("--processes, and other machines: give one of them")
    if isinstance(executor, str):
        return executor_of(executor)
    if executor is not None:
        return nullcontext(executor)
    return local(processes) if processes is not None or are_many else None


def check_resumed(path: Path, experiment: Experiment, backend: Backend) -> None:
    """Raises ScenarioError when a folder's runs are not those that would be made now."""
    environment = environment_of(path)
    if read_text(path / "scenario.yaml") != experiment.text:
        raise ScenarioError(
            f"{path}: it is of another scenario file than {experiment.path}"
        )
    for file in experiment.files:
        kept = path / file
        if not (
            kept.is_file()
            and filecmp.cmp(experiment.directory / file, kept, shallow=False)
        ):
            raise ScenarioError(
                f"{kept}: it is another file than {experiment.directory / file}"
            )
    for key, now, what in (
        ("backend", backend.name, "made by the {}"),
        ("code", code_version(), "computed by other code ({})"),
    ):
        if environment.get(key) != now:
            raise ScenarioError(
                f"{path}: its runs were {what.format(environment.get(key))}; begin anew"
            )
    if tuple(environment.get("sets") or ()) != experiment.sets:
        raise ScenarioError(
            f"{path}: its runs were made with another --set; begin anew"
        )
    facts = backend.facts()
    chosen = [
        ("latency_s", "--latency", "simulated"),
        ("payload_share", "--mtu", "simulated"),
    ]
    chosen += [(*kind.fact, "made") for kind in program_kinds().values()]
    for key, option, made in chosen:
        if environment.get(key) != facts.get(key):
            raise ScenarioError(
                f"{path}: its runs were {made} with another {option}; begin anew"
            )


def finish(
    path: Path,
    experiment: Experiment | None = None,
    *,
    watched: bool = False,
    foretell: Foreteller | None = None,
    early: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Compute result.json, rows.csv, plots and report of a run folder; returns the result.

    ``experiment``: the folder's, where it has been read; that takes longer than all else that is read here.
    ``watched``: whether a person may want to watch the runs, which extensions make pages for. ``foretell``:
    simulates the runs, for comparison with what was measured; it may know them. ``early``: as of
    :func:`carry_out_experiment`.
    May be repeated: everything is made anew from the scenario, environment and records. Raises ScenarioError,
    one line naming the file, when one of these is missing or broken, and WriteError.
    """
    with writing(path, f"make room, then: ringlight report {path}"):
        pages = [page.beside(path, watched) for page in page_kinds().values()]
        view, result = view_of_folder(path, experiment, foretell)
        if early is not None:
            early(result)
        view = replace(view, pages=pages)
        write_whole(path / "rows.csv", as_csv(view.rows))
        write_report(path, view, each=in_forks)
        write_json(
            path / "result.json", result, None if len(result["rows"]) > _READABLE else 2
        )
    return result


def view_of_folder(
    path: Path, experiment: Experiment | None = None, foretell: Foreteller | None = None
) -> tuple[View, dict[str, Any]]:
    """Return the data that a run folder's report is made from, and the object of its result.json. Nothing is
    written.

    Both follow from the scenario, environment, records and rates alone. Raises ScenarioError, one line naming
    the file, if one of these is missing or broken.
    """
    environment = environment_of(path)
    experiment = as_simulated(experiment or experiment_of(path), environment)
    records = read_records(path / "events.jsonl")
    rates = read_port_rates(path / "throughput.csv")
    latency_s = environment.get("latency_s", 0.0)
    label = label_of(environment)
    if label == "simulated":
        foretell = Foreteller(
            backend=SimulationBackend(environment.get("mtu_bytes"), latency_s)
        )
    analysis = analyse(
        experiment, records, label, rates, latency_s, foretell or Foreteller()
    )
    if network := environment.get("network"):
        analysis = replace(analysis, fidelity={**analysis.fidelity, "network": network})
    result = document(analysis, records, environment)
    return view_of(analysis, result, environment, rates, path), result


def joined(folders: Iterable[Path]) -> list[Row]:
    """Return the rows of many run folders; if there are several, a row's point also has its ``run``.

    Raises ScenarioError naming a folder without a result, or with a result of another version.
    """
    paths = list(folders)
    joined_rows: list[Row] = []
    for path in paths:
        rows = from_json(read_result(path))
        if len(paths) > 1:
            rows = [replace(row, point={"run": path.name, **row.point}) for row in rows]
        joined_rows += rows
    return joined_rows
