"""``ringlight crosscheck``: makes what two runs are missing, compares them, writes page and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
import yaml

from experiments.backends.emulation.processes import check_ready
from experiments.cli.common import table
from experiments.language.text import ScenarioError, parse_yaml
from experiments.record.writing import write_json, write_whole, writing
from experiments.runner.progress import Reporter
from scenarios.comparison import Comparison, load, parse
from scenarios.crosscheck import JUDGED, Side, crosscheck
from scenarios.crosscheck_page import draw, render, title_of
from scenarios.records import SIMULATED, read_lines, read_object
from scenarios.runfolder import finish, new_folder
from scenarios.runner import Options
from scenarios.schema import Document, Scenario
from scenarios.simulated import SimulationOptions, simulate


class _Plain(yaml.SafeDumper):
    """Writes what is the same twice, so that no reader has to follow anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def trimmed(
    checked: Scenario | Comparison, fabrics: Iterable[str], iterations: int | None
) -> Scenario | Comparison:
    """The scenario with fewer iterations, or only some of its fabrics (and always the baseline).

    Of a comparison, troubles and the sweep are left out too. A live regroup is left out where the iterations
    are too few for it. Raises ScenarioError naming a fabric that it does not have.
    """
    raw = parse_yaml(checked.text, checked.path)
    wanted = list(fabrics)
    if isinstance(checked, Scenario):
        if wanted:
            raise ScenarioError(f"{checked.path}: it has one fabric, which has no name; leave --fabric out")
        live = checked.spec.live
        if iterations is not None and live is not None and live.after_iterations >= iterations:
            raw.pop("live")
    else:
        for name in wanted:
            if name not in checked.settings:
                there = ", ".join(checked.settings)
                raise ScenarioError(f"{checked.path}: there is no fabric {name}; there are {there}")
        if wanted:
            kept = {*wanted, checked.spec.baseline}
            if len(kept) == 1:
                kept.add(next(name for name in checked.settings if name not in kept))
            raw["fabrics"] = {name: fabric for name, fabric in raw["fabrics"].items() if name in kept}
            raw.pop("published", None)
        raw.pop("trouble", None)
        raw.pop("sweep", None)
    if iterations is not None:
        raw["training"].pop("samples", None)
        raw["training"]["iterations"] = iterations
    if raw == parse_yaml(checked.text, checked.path):
        return checked
    return parse(yaml.dump(raw, Dumper=_Plain, sort_keys=False, allow_unicode=True), checked.path)


def run_crosscheck(
    path: Path,
    options: Options,
    simulation: SimulationOptions,
    reporter: Reporter,
    *,
    fabrics: Iterable[str] = (),
    iterations: int | None = None,
    emulated: Path | None = None,
    limit_percent: float,
) -> tuple[Path, dict[str, Any]]:
    """Simulate, emulate unless there is a run, compare; the folder and the object of crosscheck.json.

    ``fabrics`` and ``iterations`` shorten a run that is yet to be made, so they go without ``emulated``.
    Raises ScenarioError for input that is wrong, BackendError and the like where the emulation did not work.
    """
    checked = load(path)
    if emulated is not None:
        checked = _scenario_of(emulated, checked, reporter)
    else:
        checked = trimmed(checked, fabrics, iterations)
        check_ready(options.runtime, options.addresses)
    simulated_folder, _ = simulate(checked, simulation, reporter)
    if emulated is None:
        emulated = _emulate(checked, options, reporter)
    else:
        # What an older version wrote is read by this one's rules.
        finish(emulated)
    return compare(checked, emulated, simulated_folder, options.folder, limit_percent)


def _scenario_of(run: Path, checked: Scenario | Comparison, reporter: Reporter) -> Scenario | Comparison:
    """The scenario of an emulated run. Raises ScenarioError when it is no run of the scenario asked for."""
    if read_object(run / "environment.json").get("runtime") == SIMULATED:
        raise ScenarioError(f"{run}: this run was simulated; --emulated wants one that ran on a testbed")
    found = load(run / "scenario.yaml")
    if found.spec.name != checked.spec.name or type(found) is not type(checked):
        raise ScenarioError(f"{run}: a run of scenario {found.spec.name}, not of {checked.spec.name}")
    if found.text != checked.text:
        reporter.say(f"{run.name} was made from another version of {checked.path}; that one is simulated")
    return replace(found, path=str(run / "scenario.yaml"))


def _emulate(checked: Scenario | Comparison, options: Options, reporter: Reporter) -> Path:
    if isinstance(checked, Comparison):
        from scenarios.comparison_runner import run_comparison

        return run_comparison(checked, options, reporter)[0]
    from scenarios.runner import run_scenario

    return run_scenario(checked, options, reporter)[0]


def _side(folder: Path) -> Side:
    result, environment = (read_object(folder / name) for name in ("result.json", "environment.json"))
    return Side(str(folder), read_lines(folder / "events.jsonl"), result, environment)


def compare(
    document: Document, emulated: Path, simulated: Path, parent: Path, limit_percent: float
) -> tuple[Path, dict[str, Any]]:
    """Compare two run folders of a scenario; a folder with crosscheck.json and crosscheck.html.

    Raises ScenarioError when they have nothing in common.
    """
    try:
        found = crosscheck(_side(emulated), _side(simulated), limit_percent)
    except ValueError as error:
        raise ScenarioError(f"{emulated} and {simulated}: {error}") from None
    folder = new_folder(parent, document, "-crosscheck")
    with writing(folder):
        html = render(document, found, draw(found, folder / "plots"))
    write_whole(folder / "crosscheck.html", html)
    write_json(folder / "crosscheck.json", found)
    return folder, found


def show(found: Mapping[str, Any], folder: Path) -> None:
    """Print what was found."""
    rows = []
    for entry in found["entries"]:
        iteration, exchange = entry["iteration_s"], entry["allreduce_s"]
        rows.append(
            [
                title_of(entry),
                entry["job"],
                f"{1000 * iteration['emulated']:.1f} ms",
                f"{1000 * iteration['simulated']:.1f} ms",
                f"{iteration['difference_percent']:+.1f} %",
                f"{1000 * exchange['emulated']:.1f} ms",
                f"{1000 * exchange['simulated']:.1f} ms",
                f"{exchange['difference_percent']:+.1f} %",
                entry["off"],
            ]
        )
    compared = ["emulated", "simulated", "difference"]
    head = ["run", "job", *(f"{what}, {c}" for what in ("iteration", "all-reduce") for c in compared), "off"]
    table(head, rows, numeric=2)
    worst = found["worst"]
    said = "within" if found["within_limit"] else "NOT within"
    largest = ", ".join(
        f"of {what} {worst[figure]['difference_percent']:+.1f} % "
        f"({worst[figure]['run']}, {worst[figure]['job']})"
        for figure, what in zip(JUDGED, ("an iteration", "an all-reduce"), strict=True)
    )
    typer.echo(
        f"Iterations and all-reduces are {said} {found['limit_percent']:g} %; largest difference {largest}."
    )
    if not found["emulated"]["complete"]:
        typer.echo("The emulated run is not complete; what there is of it was compared.")
    causes: dict[str, Mapping[str, Any]] = {}
    for entry in found["entries"]:
        if entry["off"] != "neither":
            causes.setdefault(entry["off"], entry)
            if abs(entry["causes"]["gap_s"]) > abs(causes[entry["off"]]["causes"]["gap_s"]):
                causes[entry["off"]] = entry
    for off, entry in causes.items():
        typer.echo(f"The {off} is off, most in {title_of(entry)}, {entry['job']}: {'; '.join(entry['why'])}.")
    typer.echo(f"Page: {(folder / 'crosscheck.html').resolve()}")
