"""``ringlight bench``: the table of nccl-tests, through an emulated or simulated fabric."""

from __future__ import annotations

from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import echo, fail, say, show_json, table
from ringlight.experiments.cli.emulated import emulation, refuse
from ringlight.experiments.runner.executor_kinds import remote_options

Kind = Annotated[
    str,
    typer.Option(
        "--collective",
        help="Kind of collective; default: that of a file, or all-reduce.",
    ),
]
Algorithm = Annotated[
    str,
    typer.Option(
        "--algorithm",
        metavar="NAME|FILE",
        help="Name, or its file; default: the kind's first.",
    ),
]
Ranks = Annotated[
    str,
    typer.Option(
        "--ranks",
        metavar="GPU,GPU,…",
        help="GPUs in rank order; default: those of the file's jobs, in their order, or all.",
    ),
]
Sizes = Annotated[
    str,
    typer.Option(
        "--sizes", metavar="FIRST..LAST", help="Range of sizes, such as 64KiB..256MiB."
    ),
]
Growth = Annotated[
    float, typer.Option("--factor", help="Factor from one size to the next.")
]
Calls = Annotated[
    int,
    typer.Option(
        "--calls",
        min=1,
        max=10_000,
        help="Timed calls of each size, after one warm-up call.",
    ),
]
Skew = Annotated[
    float,
    typer.Option(
        "--skew", min=0, max=16, help="For an all-to-all-v: exponent of a Zipf law."
    ),
]
Simulated = Annotated[
    bool,
    typer.Option("--simulate", help="Simulate in virtual time instead of emulating."),
]


@options.with_groups
def bench(
    scenario: options.ScenarioFile,
    place: options.Place,
    ranks: Ranks = "",
    collective: Kind = "",
    algorithm: Algorithm = "",
    sizes: Sizes = "64KiB..16MiB",
    factor: Growth = 2.0,
    calls: Calls = 5,
    skew: Skew = 0.0,
    simulate: Simulated = False,
    *,
    context: typer.Context,
    lab: options.LabOptions,
    remote: options.Remote,
    as_json: options.Json = False,
) -> None:
    """Time, algorithm and bus bandwidth of a collective over the scenario's fabric, size by size.

    Examples:
        ringlight examples copy fat_tree_4
        ringlight bench fat_tree_4.yaml --simulate
        ringlight bench fat_tree_4.yaml --collective all-gather --sizes 1MiB..64MiB
    """
    from contextlib import nullcontext
    from dataclasses import asdict

    from ringlight.experiments.analysis.latency import latency_words
    from ringlight.experiments.backends.simulation.backend import SimulationBackend
    from ringlight.experiments.runner.command import load_checked
    from ringlight.experiments.runner.experiment import made_alone
    from ringlight.experiments.runner.machine import real_scale
    from ringlight.extensions.bench import measuring as benching

    try:
        chosen = benching.parse_sizes(sizes, factor)
    except ValueError as error:
        fail(f"--sizes: {error}", 2)
    scale_for = real_scale if simulate else options.machine(lab)
    experiment = load_checked(
        scenario, sets=place.sets or (), scale_for=scale_for, auto=True
    )
    arms, points = ([name] if name else [] for name in (place.arm, place.point))
    first = experiment.plans_of(arms, points)[0]
    gpus = [word.strip() for word in ranks.split(",")] if ranks else None
    try:
        plan = benching.bench_plan(
            first, benching.what_of(collective, algorithm, skew), chosen, calls, gpus
        )
    except benching.RanksError as error:
        fail(f"--ranks: {error}", 2)
    except ValueError as error:
        # Without a kind it is an all-reduce, which has no fault.
        named = algorithm and (not collective or benching.is_file(algorithm))
        fail(f"{'--algorithm' if named else '--collective'}: {error}", 2)
    if simulate:
        refuse(context, remote_options(), "not with --simulate")
    with (
        nullcontext(SimulationBackend())
        if simulate
        else emulation(lab, context, remote) as backend
    ):
        if (why := backend.refuses(plan)) is not None:
            fail(f"{scenario}: {why}", 2)
        backend.check_ready()
        backend.prepare([plan.setting], None, say, {})
        records, failures = made_alone(backend, plan)
    if failures:
        fail(failures[0])
    measurements = list(benching.measured(plan, records, chosen, calls))
    checked, slow = benching.checked(records), benching.slow_links(records)
    if as_json:
        show_json(
            {
                "collective": plan.title,
                "algorithm": algorithm,
                "ranks": plan.jobs[0].gpus,
                "arm": first.arm,
                "point": first.point_name,
                "gpus": list(plan.jobs[0].ranks),
                "label": backend.label,
                "sizes": [asdict(row) for row in measurements],
                "results_checked": checked,
                "slow_links": [
                    [link.link, link.direction, link.set_bps, link.measured_bps]
                    for link in slow
                ],
            }
        )
    else:
        for line in benching.words_on(first, plan, experiment, whose=not ranks):
            echo(line)
        if simulate:
            echo(f"Latency of a transfer: {latency_words([plan], backend.facts())}")
        heads = ("size", "time", "algorithm bandwidth", "bus bandwidth", "result")
        table(heads, benching.lines_of(measurements, checked))
    for link in slow:
        say(benching.words_of(link))


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.EXPERIMENTS)(bench)
