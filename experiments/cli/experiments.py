"""Commands that make, check and read experiments."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, say, show_json
from ringlight.experiments.cli.emulated import emulation
from ringlight.experiments.cli.labs import with_programs
from ringlight.experiments.runner.executor_kinds import executor_kinds

if TYPE_CHECKING:
    from ringlight.experiments.backends.protocol import Backend
    from ringlight.experiments.backends.simulation.backend import SimulationBackend
    from ringlight.experiments.language.expand import Experiment
    from ringlight.experiments.language.plan import ChosenScale
    from ringlight.experiments.runner.experiment import Done

BUNDLED = Path(__file__).resolve().parents[2] / "scenarios" / "disaggregation.yaml"
Mtu = Annotated[
    int | None,
    typer.Option(
        "--mtu",
        min=576,
        max=65535,
        help="Bytes of a simulated packet; default: the emulation's.",
    ),
]
Latency = Annotated[
    str,
    typer.Option(
        "--latency",
        help="Latency to add to each simulated transfer's first byte, in emulated time, such as '2 us'.",
    ),
]


@options.with_groups
def demo(
    context: typer.Context,
    lab: options.LabOptions,
    repeat: options.Repeat = None,
    runs: options.RunsFolder = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Set up this machine if necessary, then run the bundled GPU-disaggregation experiment.

    Examples:
        ringlight demo
        ringlight demo --runtime namespace
    """
    from ringlight.testbed.setup import ensure_ready

    ensure_ready(say, runtime=lab.runtime)
    _run(
        BUNDLED,
        options.Runs(repeat=repeat),
        options.OpenLab(**vars(lab)),
        runs,
        as_json,
        context,
        {},
    )


@options.with_groups
def run(
    context: typer.Context,
    *,
    scenario: options.ResumedFile = None,
    which: options.Runs,
    lab: options.OpenLab,
    remote: options.Remote,
    runs: options.RunsFolder = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Run an experiment on the emulated testbed; leaves a run folder with result.json and report.html.

    Examples:
        ringlight examples copy disaggregation
        ringlight run disaggregation.yaml
        ringlight run disaggregation.yaml --arm live
    """
    _run(which.file(scenario), which, lab, runs, as_json, context, remote)


def _run(
    scenario: Path,
    which: options.Runs,
    lab: options.OpenLab,
    runs: Path,
    as_json: bool,
    context: typer.Context,
    remote: options.Remote,
) -> None:
    with emulation(lab, context, remote, lab.requested_programs) as backend:
        experiment = with_programs(which.load(scenario, options.machine(lab)), lab)
        lab.announce_pages()
        again = functools.partial(_again_at, experiment, lab)
        _carry_out(experiment, backend, which, runs, as_json, rescaled=again)


def _again_at(
    experiment: Experiment, lab: options.OpenLab, scale: ChosenScale
) -> Experiment:
    """The experiment at another chosen scale, with the programs that were asked for."""
    from ringlight.experiments.runner.larger import at_scale

    return with_programs(at_scale(experiment, scale), lab)


@options.with_groups
def simulate(
    *,
    scenario: options.ResumedFile = None,
    which: options.Runs,
    mtu: Mtu = None,
    latency: Latency = "0 s",
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            max=1024,
            help="Number of processes that compute a sweep's runs.",
        ),
    ] = None,
    executors: options.Executors,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            metavar="NAME:ADDRESS",
            help="Compute on an installed executor.",
        ),
    ] = None,
    runs: options.RunsFolder = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Simulate an experiment in virtual time: the same run folder and report, without root.

    Examples:
        ringlight examples copy queue
        ringlight simulate queue.yaml
        ringlight simulate queue.yaml --repeat 3
    """
    from ringlight.experiments.runner.machine import real_scale

    backend = simulation_of(mtu, latency)
    chosen = [f"{name}:{address}" for name, address in executors.items()]
    chosen += [] if executor is None else [executor]
    if len(chosen) > 1:
        named = ", ".join(f"--{name}" for name in (*executor_kinds(), "executor"))
        fail(f"{named}: give one of them", 2)
    experiment = which.load(which.file(scenario), real_scale)
    spread = {"processes": processes, "executor": chosen[0] if chosen else None}
    _carry_out(experiment, backend, which, runs, as_json, suffix="-simulated", **spread)


def _carry_out(
    experiment: Experiment,
    backend: Backend,
    which: options.Runs,
    runs: Path,
    as_json: bool,
    **more: Any,
) -> None:
    from ringlight.experiments.analysis.latency import latency_words
    from ringlight.experiments.runner.command import carry_out_experiment

    arms, points = which.arm or (), which.point or ()
    latency = (
        latency_words(experiment.plans, backend.facts())
        if backend.label == "simulated"
        else ""
    )
    early = None if as_json else functools.partial(_show_result, latency=latency)
    done, result = carry_out_experiment(
        experiment,
        backend,
        runs,
        arms=arms,
        points=points,
        resume=which.resume,
        watched=True,
        early=early,
        **more,
    )
    _show(result, done, as_json, latency)


def simulation_of(mtu: int | None, latency: str) -> SimulationBackend:
    """Return the backend that these options ask for. Exit with an error if the latency is wrong."""
    from ringlight.experiments.backends.simulation.backend import SimulationBackend
    from ringlight.fabric.units import parse_time

    try:
        return SimulationBackend(mtu, parse_time(latency))
    except ValueError as error:
        fail(f"--latency: {error}", 2)


@options.with_groups
def check(
    scenario: options.ScenarioFile,
    sets: options.Sets = None,
    devices: options.Devices = (),
    as_json: options.Json = False,
) -> None:
    """Check a scenario file and print its fabrics, jobs and predicted times; runs nothing and needs no root.

    Examples:
        ringlight examples copy queue
        ringlight check queue.yaml
    """
    from ringlight.experiments.backends.simulation.workloads import MOST_RANKS
    from ringlight.experiments.cli.show import show_check
    from ringlight.experiments.runner.check_document import check_document
    from ringlight.experiments.runner.command import load_checked
    from ringlight.experiments.runner.machine import scale_here

    # Points of larger jobs take long to read, and are not predicted.
    experiment = load_checked(
        scenario,
        sets=sets or (),
        scale_for=functools.partial(scale_here, devices=devices),
        most_gpus=MOST_RANKS,
    )
    answer(check_document(experiment), as_json, show_check)


def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    as_json: options.Json = False,
) -> None:
    """Compute result.json, plots and report.html of a run folder again.

    Examples:
        ringlight examples copy queue
        ringlight simulate queue.yaml --runs once
        ringlight report once/*
    """
    from ringlight.experiments.runner.command import finish
    from ringlight.experiments.runner.experiment import Done

    early = None if as_json else _show_result
    _show(finish(folder, watched=True, early=early), Done(folder, ()), as_json)


def results(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders.")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Only this metric; may be repeated."),
    ] = None,
    arm: options.Arms = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet", metavar="FILE", help="Write a Parquet file (needs pandas)."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Join the rows of many run folders: as CSV on standard output, JSON, or a Parquet file.

    Examples:
        ringlight examples copy queue
        ringlight simulate queue.yaml
        ringlight results runs/* --metric jct
    """
    from ringlight.experiments.analysis.rows import as_csv
    from ringlight.experiments.runner.command import joined

    rows = [
        row
        for row in joined(folders)
        if (not metric or row.metric in metric) and (not arm or row.arm in arm)
    ]
    if parquet is not None:
        from ringlight.experiments.analysis.rows import write_parquet

        write_parquet(rows, parquet)
        echo(f"{len(rows)} rows: {parquet}")
    elif as_json:
        show_json([vars(row) for row in rows])
    else:
        echo(as_csv(rows), nl=False)


def _show_result(result: dict[str, Any], latency: str = "") -> None:
    """Print the result, while its report is drawn. ``latency``: what a simulation counted, in words."""
    from ringlight.experiments.cli.show import show_result

    if latency:
        echo(f"Latency of a transfer: {latency}")
    show_result(result)
    sys.stdout.flush()


def _show(result: dict[str, Any], done: Done, as_json: bool, latency: str = "") -> None:
    """Print what comes last: the result, where it is JSON, and where the report is."""
    report_path = (done.path / "report.html").resolve()
    if as_json:
        if latency:
            say(f"latency of a transfer: {latency}")
        say(f"report: {report_path}")
        show_json(result)
    else:
        echo(f"Report: {report_path}")
    if done.failures:
        for line in done.failures:
            say(line)
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (demo, run, simulate, check, report, results):
        app.command(rich_help_panel=options.EXPERIMENTS)(command)
