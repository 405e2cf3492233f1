"""``ringlight crosscheck``: make missing runs of two folders, compare them, write page and JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringlight.experiments.analysis.explanations import JUDGED
from ringlight.experiments.analysis.result import read_result
from ringlight.experiments.backends.protocol import Backend
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli.common import echo, table
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.text import ScenarioError, parse_yaml, plain_yaml
from ringlight.experiments.record.folder import experiment_of, new_folder, read_json
from ringlight.experiments.record.lab_records import LinkRate, LinkRateDisturbed
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.record.writing import write_json, write_whole, writing
from ringlight.experiments.runner.command import carry_out_experiment, finish
from ringlight.experiments.runner.experiment import choose
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.crosscheck.page import render, title_of
from ringlight.extensions.crosscheck.sides import Side, crosscheck

#: Sections that name arms; without them fewer arms are as sound.
_OF_ALL_ARMS = ("compare", "published", "break_even", "sweep")


#: Sections of a job that say how often it does the same.
_REPEATED = ("training", "workload")


def trimmed(
    experiment: Experiment, arms: Collection[str], iterations: int | None
) -> Experiment:
    """Return the experiment with some of its arms, or another number of iterations of every job.

    Raises ScenarioError, also for an event that then never comes.
    """
    raw = parse_yaml(experiment.text, experiment.path)
    for arm in arms:
        if arm not in experiment.arms:
            there = ", ".join(experiment.arms)
            raise ScenarioError(
                f"{experiment.path}: there is no arm {arm}; there are {there}"
            )
    # Without arms in the file there is one, which is all of it.
    if arms and raw.get("arms"):
        kept = list(arms)
        for arm in kept:
            kept += [
                like
                for like in [(raw["arms"][arm] or {}).get("like")]
                if like and like not in kept
            ]
        raw["arms"] = {name: arm for name, arm in raw["arms"].items() if name in kept}
    for key in _OF_ALL_ARMS if arms else ():
        raw.pop(key, None)
    for parameter in (raw.get("parameters") or {}).values() if arms else ():
        parameter.pop("fitted_to", None)
    if iterations is not None:
        jobs = (raw.get("jobs") or {}).values()
        for training in (
            raw.get("training"),
            *(job.get(key) for job in jobs for key in _REPEATED),
        ):
            if training:
                training.pop("samples", None)
                training["iterations"] = iterations
    if raw == parse_yaml(experiment.text, experiment.path):
        return experiment
    text = plain_yaml(raw)
    scale = experiment.scale
    scale_for = None if scale is None else lambda _: scale
    return parse(text, experiment.path, scale_for=scale_for, auto=scale is not None)


def run_crosscheck(
    experiment: Experiment,
    emulation: Backend,
    simulation: SimulationBackend,
    parent: Path,
    reporter: Reporter,
    *,
    arms: Collection[str] = (),
    iterations: int | None = None,
    emulated: Path | None = None,
    limit_percent: float,
) -> tuple[Path, dict[str, Any]]:
    """Simulate, emulate unless there is a run, compare. Return the folder and the object of crosscheck.json.

    ``arms`` and ``iterations`` shorten the runs that are still to be made, so they exclude ``emulated``.
    Raises ScenarioError for wrong input, BackendError and similar errors if the emulation failed.
    """
    if emulated is not None:
        experiment = _experiment_of(emulated, experiment, reporter)
    else:
        experiment = trimmed(experiment, arms, iterations)
    # Only what both can run is compared.
    refused = {
        **choose(experiment, simulation).refused,
        **choose(experiment, emulation).refused,
    }
    both = [arm for arm in experiment.arms if arm not in refused]
    if not both:
        raise ScenarioError(
            f"{experiment.path}: there is no arm that both the emulation and the simulation can run"
        )
    if emulated is None:
        # Before a simulation that may take its time.
        emulation.check_ready()

    def simulate(variant: Experiment) -> Path:
        flows = flow_by_flow(variant)
        done, _ = carry_out_experiment(
            flows, simulation, parent, arms=both, suffix="-simulated", reporter=reporter
        )
        return done.path

    simulated = simulate(experiment)
    if emulated is None:
        done, _ = carry_out_experiment(
            experiment, emulation, parent, arms=both, reporter=reporter
        )
        emulated = done.path
        ran = experiment_of(emulated)
        if ran.scale != experiment.scale:
            # The machine was too slow for the one that was chosen.
            experiment = replace(ran, path=experiment.path)
            simulated = simulate(experiment)
    else:
        finish(emulated)
    result = compared(emulated, simulated, limit_percent)
    return write(experiment, result, parent), result


def flow_by_flow(experiment: Experiment) -> Experiment:
    """Return the experiment with its jobs simulated flow by flow, if a source could compute them together.

    That would have no iterations.
    """
    return replace(
        experiment, plans=tuple(replace(plan, source=None) for plan in experiment.plans)
    )


def _experiment_of(run: Path, experiment: Experiment, reporter: Reporter) -> Experiment:
    """Return the experiment of an emulated run. Raises ScenarioError if the run is not of the requested
    experiment."""
    if read_json(run / "environment.json").get("backend") != "emulation":
        raise ScenarioError(
            f"{run}: this run was simulated; --emulated wants one that ran on a testbed"
        )
    ran = experiment_of(run)
    if ran.spec.name != experiment.spec.name:
        raise ScenarioError(
            f"{run}: a run of {ran.spec.name}, not of {experiment.spec.name}"
        )
    if ran.text != experiment.text:
        reporter.say(
            f"{run.name} was made from another version of {experiment.path}; that one is simulated"
        )
    return replace(ran, path=str(run / "scenario.yaml"))


def side(folder: Path) -> Side:
    """Return a finished run folder as a side of the comparison. Raises ScenarioError."""
    records = read_records(folder / "events.jsonl")
    links = [
        r
        for r in records
        if isinstance(r, LinkRate) and not isinstance(r, LinkRateDisturbed)
    ]
    runs, environment = (
        runs_of(records, experiment_of(folder).plans),
        read_json(folder / "environment.json"),
    )
    return Side(str(folder), runs, links, read_result(folder), environment)


def compared(emulated: Path, simulated: Path, limit_percent: float) -> dict[str, Any]:
    """Compare two run folders of an experiment. Return the object of ``crosscheck.json``.

    Raises ScenarioError if the folders have no finished run in common.
    """
    try:
        return crosscheck(side(emulated), side(simulated), limit_percent)
    except ValueError as error:
        raise ScenarioError(f"{emulated} and {simulated}: {error}") from None


def write(experiment: Experiment, result: Mapping[str, Any], parent: Path) -> Path:
    """Write crosscheck.json and crosscheck.html of a comparison. Return their folder."""
    folder = new_folder(parent, f"{experiment.spec.name}-crosscheck")
    with writing(folder):
        html = render(experiment, result, folder / "plots")
    write_whole(folder / "crosscheck.html", html)
    write_json(folder / "crosscheck.json", result)
    return folder


def show(result: Mapping[str, Any], folder: Path) -> None:
    """Print the result of a cross-check."""
    whats = dict(zip(JUDGED, ("iteration", "all-reduce"), strict=True))
    compared = ("emulated", "simulated", "difference")
    rows = [
        [title_of(e), e["job"], *(c for f in JUDGED for c in _cells(e[f])), e["off"]]
        for e in result["entries"]
    ]
    if "blind" in result:
        _show_spread(result["blind"]["kinds"], whats)
    table(
        [
            "run",
            "job",
            *(f"{what}, {c}" for what in whats.values() for c in compared),
            "off",
        ],
        rows,
        numeric=2,
    )
    worst = [(what, result["worst"][figure]) for figure, what in whats.items()]
    largest = ", ".join(
        f"of an {what} {extreme['difference_percent']:+.1f} % ({extreme['run']}, {extreme['job']})"
        for what, extreme in worst
    )
    words = "within" if result["within_limit"] else "NOT within"
    echo(
        f"Iterations and all-reduces are {words} {result['limit_percent']:g} %; largest difference {largest}."
    )
    if not result["emulated"]["complete"]:
        echo("The emulated run is not complete; what there is of it was compared.")
    for off in ("emulation", "simulation"):
        entries = [entry for entry in result["entries"] if entry["off"] == off]
        most = max(
            entries, key=lambda entry: abs(entry["causes"]["gap_s"]), default=None
        )
        if most is not None:
            echo(
                f"The {off} is off, most in {title_of(most)}, {most['job']}: {'; '.join(most['why'])}."
            )
    echo(f"Page: {(folder / 'crosscheck.html').resolve()}")


def _show_spread(kinds: Mapping[str, Any], whats: Mapping[str, str]) -> None:
    """Print how far predictions were off, by kind of fabric."""
    sizes = {"median": "median", "p95": "95 of 100"}
    rows = [
        [
            kind,
            figures["jobs"],
            *(
                f"{figures[figure][key]:.1f} %"
                for figure in (*whats, "trivial")
                for key in sizes
            ),
        ]
        for kind, figures in kinds.items()
    ]
    heads = (
        f"{what}, {words}"
        for what in (*whats.values(), "bytes over the NIC's rate")
        for words in sizes.values()
    )
    table(["fabric", "jobs", *heads], rows, numeric=1)


def _cells(figure: Mapping[str, float]) -> list[str]:
    times = [f"{1000 * figure[side]:.1f} ms" for side in ("emulated", "simulated")]
    return [*times, f"{figure['difference_percent']:+.1f} %"]
