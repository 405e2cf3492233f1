"""Simulates a study: its points spread over the processors, a line for each, a run folder at the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, TimeoutError, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import Any

from experiments.cli.common import UserError
from experiments.language.text import ScenarioError, read_text
from experiments.record.environment import describe_machine
from experiments.record.folder import new_folder, read_json
from experiments.record.writing import Lines, WriteError, write_json, write_whole
from experiments.runner.executors import processes as processes_of
from experiments.runner.progress import Reporter
from experiments.study.points import Crossover, Task, work
from experiments.study.results import build_study
from experiments.study.spec import Study, load_study, tasks
from experiments.study.systems import SYSTEMS
from fabric.units import format_rate, format_size, format_time

#: A study that takes longer than this is given up, seconds.
DEADLINE_S = 3600.0
#: The file of a study's run folder with one line for each point and crossover.
POINTS = "points.jsonl"


def simulate_study(
    study: Study, parent: Path, reporter: Reporter, processes: int | None = None
) -> tuple[Path, dict[str, Any]]:
    """Run it all into a folder made below ``parent``; the folder and the object of result.json.

    ``processes``: how many at once, by default one for each processor. Raises ScenarioError for a point
    that cannot be, UserError when a process is killed or all takes too long. Whatever happens, no
    process is left.
    """
    began = time.monotonic()
    folder = new_folder(parent, f"{study.spec.name}-simulated")
    write_whole(folder / "scenario.yaml", study.text)
    todo = tasks(study)
    count = min(processes or os.cpu_count() or 1, len(todo))
    environment = {"run": folder.name, **describe_machine("simulated"), "processes": count}
    write_json(folder / "environment.json", environment)
    reporter.say(f"{study.spec.name}, simulated: {len(todo)} points on {count} processes, folder {folder}")
    done = 0
    ended = False
    try:
        with closing(Lines(folder / POINTS)) as file, processes_of(count) as executor:
            for task, found in _computed(study, executor, todo):
                done += 1
                file.append(json.dumps(found, separators=(",", ":")) + "\n")
                reporter.say(f"{done:4}/{len(todo)}  {_line(task, found)}")
        ended = True
    finally:
        environment["duration_s"] = round(time.monotonic() - began, 3)
        environment["points_expected"], environment["points"] = len(todo), done
        try:
            write_json(folder / "environment.json", environment)
        except WriteError:
            # The error that ended the study is the one to be told.
            if ended:
                raise
    reporter.say("drawing the report")
    return folder, finish_study(folder)


def _computed(
    study: Study, executor: Executor, todo: Sequence[Task]
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Each task with what it found, in the order of their ends."""
    try:
        futures = {executor.submit(work, task): task for task in todo}
        for future in as_completed(futures, timeout=DEADLINE_S):
            yield futures[future], future.result()
    except TimeoutError:
        raise UserError(f"{study.path}: the study took more than {DEADLINE_S:g} s") from None
    except BrokenProcessPool:
        raise UserError(
            f"{study.path}: a process that computed points was killed; was there too little memory?"
        ) from None
    except ValueError as error:
        raise ScenarioError(f"{study.path}: {error}") from None


def _line(task: Task, found: dict[str, Any]) -> str:
    place = task.place
    where = f"{place.nodes} nodes"
    if SYSTEMS[task.system].medium == "optical":
        where += f", {place.wavelengths} λ of {format_rate(place.rate_bps)}"
        where += "" if place.reach is None else f", reach {place.reach}"
        where += "" if place.group is None else f", groups of {place.group}"
    else:
        where += f", trunks {place.oversubscription:g}:1"
    title = SYSTEMS[task.system].title
    if isinstance(task, Crossover):
        at = found["simulated_bytes"]
        faster = found["faster"]
        said = (
            f"as fast at {format_size(at)}"
            if at
            else f"{SYSTEMS[faster].title if faster else 'neither'} faster always"
        )
        return (
            f"{title} or {SYSTEMS[task.other].title}: {where}, set-up {format_time(task.set_up_s)} "
            f"{_charged(task.charge)}: {said}"
        )
    last = found["runs"][-1]
    return (
        f"{title}: {where}: {found['steps']} steps, {len(task.runs)} sizes and set-ups; "
        f"{format_size(last['bytes'])} in {format_time(last['total_s'])}"
    )


def _charged(charge: str) -> str:
    return "in each step" if charge == "each-step" else "only where light changes"


def finish_study(folder: Path) -> dict[str, Any]:
    """Compute result.json, plots and report of a study's run folder; returns the result.

    May be repeated: all is made anew from the environment and the points. Raises ScenarioError, one line
    naming the file, when one of these is missing or broken.
    """
    study = load_study(folder / "scenario.yaml")
    points = _read_points(folder / POINTS)
    environment = read_json(folder / "environment.json")
    result = build_study(study, points, environment)
    # Drawing is heavy to import and only needed here.
    from experiments.study import plots as study_plots
    from experiments.study import report as study_report

    drawn = study_plots.draw_all(study, result, folder / "plots")
    html = study_report.render(study, result, environment, drawn)
    write_whole(folder / "report.html", html)
    write_json(folder / "result.json", result)
    return result


def _read_points(path: Path) -> list[dict[str, Any]]:
    """The points of a study; a last line that a crash cut short is left out. Raises ScenarioError."""
    lines = read_text(path).splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            if number == len(lines):
                break
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
    return found
