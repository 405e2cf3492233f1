"""``ringlight crosscheck``: an experiment both ways, or many that chance draws."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, fail
from ringlight.experiments.cli.emulated import emulation, refuse
from ringlight.experiments.cli.experiments import Latency, Mtu, simulation_of
from ringlight.experiments.runner.executor_kinds import remote_options


@options.with_groups
def crosscheck(
    context: typer.Context,
    scenario: Annotated[
        Path | None,
        typer.Argument(
            metavar="[SCENARIO]", help="Scenario file (YAML); none with --random."
        ),
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(
            "--random",
            metavar="N",
            min=1,
            max=1000,
            help="Blind test of N random experiments.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of --random.")] = 1,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Emulated run folder in which --random continues.",
        ),
    ] = None,
    arm: options.Arms = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            min=1,
            help="Number of iterations, in place of the scenario's.",
        ),
    ] = None,
    emulated: Annotated[
        Path | None,
        typer.Option(
            "--emulated",
            metavar="RUN",
            help="Run folder of an earlier run, in place of a new one.",
        ),
    ] = None,
    limit: Annotated[
        float,
        typer.Option("--limit", min=0, help="Largest difference allowed, per cent."),
    ] = 10.0,
    mtu: Mtu = None,
    latency: Latency = "0 s",
    *,
    lab: options.LabOptions,
    remote: options.Remote,
    runs: options.RunsFolder = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Run an experiment on the testbed and in virtual time; report the differences and their causes.

    Exit code 1 when an iteration or an all-reduce of any job differs by more than the limit. With --random
    all experiments are predicted, and the predictions' hash is printed, before the first is emulated.

    Examples:
        ringlight examples copy queue
        ringlight crosscheck queue.yaml
    """
    from ringlight.experiments.runner.command import load_checked
    from ringlight.experiments.runner.progress import Reporter
    from ringlight.extensions.crosscheck.blind import run_blind
    from ringlight.extensions.crosscheck.command import run_crosscheck, show

    if random is not None:
        refuse(
            context, ("scenario", "arm", "iterations", "emulated"), "not with --random"
        )
        with emulation(lab, context, remote) as backend:
            folder, document = run_blind(
                random,
                seed,
                backend,
                simulation_of(mtu, latency),
                runs,
                Reporter(),
                resume=resume,
                limit_percent=limit,
            )
        answer(document, as_json, lambda document: show(document, folder))
        if not document["within_limit"]:
            raise typer.Exit(1)
        return
    refuse(context, ("seed", "resume"), "only with --random")
    if scenario is None:
        fail("give a SCENARIO, or --random N", 2)

    if emulated is not None:
        names = ("arm", "iterations", "runtime", "rest", "openflow", *remote_options())
        refuse(context, names, "without effect on a run made before (--emulated)")
    with emulation(lab, context, remote) as backend:
        experiment = load_checked(scenario, scale_for=options.machine(lab), auto=True)
        folder, document = run_crosscheck(
            experiment,
            backend,
            simulation_of(mtu, latency),
            runs,
            Reporter(),
            arms=arm or (),
            iterations=iterations,
            emulated=emulated,
            limit_percent=limit,
        )
    answer(document, as_json, lambda document: show(document, folder))
    if not document["within_limit"]:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.EXPERIMENTS)(crosscheck)
