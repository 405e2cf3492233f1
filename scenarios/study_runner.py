"""Simulates a study: its points spread over the processors, a line for each, a run folder at the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, TimeoutError, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from fabric.units import format_rate, format_size, format_time
from scenarios.progress import Reporter
from scenarios.runfolder import new_folder
from scenarios.schema import ScenarioError
from scenarios.study import Study, load_study, tasks
from scenarios.study_points import Crossover, Task, work
from scenarios.study_results import build_study
from scenarios.study_systems import SYSTEMS

#: A study that takes longer than this is given up, seconds.
DEADLINE_S = 3600.0
#: The file of a study's run folder with one line for each point and crossover.
POINTS = "points.jsonl"


def simulate_study(
    study: Study, parent: Path, reporter: Reporter, processes: int | None = None
) -> tuple[Path, dict[str, Any]]:
    """Run it all into a folder made below ``parent``; the folder and the object of result.json.

    ``processes``: how many at once, by default one for each processor; 1 computes here. Raises ScenarioError,
    one line, for a point that cannot be. Whatever happens, no process is left.
    """
    began = time.monotonic()
    folder = new_folder(parent, study, "-simulated")
    (folder / "scenario.yaml").write_text(study.text, encoding="utf-8")
    todo = tasks(study)
    count = min(processes or os.cpu_count() or 1, len(todo))
    environment: dict[str, Any] = {
        "run": folder.name,
        "runtime": "simulated",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "processes": count,
        "versions": {"numpy": np.__version__, "scipy": scipy.__version__},
    }
    _write_json(folder / "environment.json", environment)
    reporter.say(f"{study.spec.name}, simulated: {len(todo)} points on {count} processes, folder {folder}")
    done = 0
    try:
        with (folder / POINTS).open("w", encoding="utf-8") as file, _executor(count) as executor:
            for task, found in _computed(study, executor, todo):
                done += 1
                file.write(json.dumps(found, separators=(",", ":")) + "\n")
                reporter.say(f"{done:4}/{len(todo)}  {_line(task, found)}")
    finally:
        environment["duration_s"] = round(time.monotonic() - began, 3)
        environment["points_expected"], environment["points"] = len(todo), done
        _write_json(folder / "environment.json", environment)
    reporter.say("drawing the report")
    return folder, finish_study(folder)


@contextmanager
def _executor(processes: int) -> Iterator[Executor | None]:
    """Processes to compute in, none for one; what has not begun when this ends is never begun."""
    if processes == 1:
        yield None
        return
    # Not forked: the process that simulates may have threads of its own.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker)
    try:
        yield executor
    except BaseException:
        # Nobody wants what they are at.
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _begin_worker() -> None:
    """Ctrl-C is the parent's to handle; a worker ends with its parent, however that ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _computed(
    study: Study, executor: Executor | None, todo: Sequence[Task]
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Each task with what it found, in the order of their ends."""
    try:
        if executor is None:
            for task in todo:
                yield task, work(task)
            return
        futures = {executor.submit(work, task): task for task in todo}
        for future in as_completed(futures, timeout=DEADLINE_S):
            yield futures[future], future.result()
    except TimeoutError:
        raise ScenarioError(f"{study.path}: the study took more than {DEADLINE_S:g} s") from None
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
    return "in each step" if charge == "each step" else "for new circuits"


def read_points(folder: Path) -> list[dict[str, Any]]:
    """What the points of a run folder found. Raises ScenarioError naming the file and line."""
    path = folder / POINTS
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}; is {folder} a run folder?") from None
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError:
            raise ScenarioError(f"{path}: line {number} is not JSON") from None
    return found


def finish_study(folder: Path) -> dict[str, Any]:
    """Compute result.json, plots and report of a study's run folder; returns the result.

    May be repeated: all is made anew from the scenario, the environment and the points. Raises ScenarioError,
    one line naming the file, when one of these is missing or broken.
    """
    study = load_study(folder / "scenario.yaml")
    points = read_points(folder)
    try:
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{error.filename}: {error.strerror}; is {folder} a run folder?") from None
    result = build_study(study, points, environment)
    # Drawing is heavy to import and only needed here.
    from scenarios import study_plots, study_report

    drawn = study_plots.draw_all(study, result, folder / "plots")
    html = study_report.render(study, result, environment, drawn)
    (folder / "report.html").write_text(html, encoding="utf-8")
    _write_json(folder / "result.json", result)
    return result


def _write_json(path: Path, value: object) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)
