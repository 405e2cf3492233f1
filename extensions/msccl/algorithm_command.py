"""``ringlight workload algorithm``: an algorithm of ours as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail
from ringlight.experiments.cli.workload import group

#: Most ranks of a schedule that is written as text.
MOST_WRITTEN = 256


def algorithm(
    out: Annotated[
        Path, typer.Argument(metavar="OUT.xml", help="MSCCL file to write.")
    ],
    kind: Annotated[
        str, typer.Option("--kind", help="Kind of collective, such as all-gather.")
    ] = "all-reduce",
    name: Annotated[
        str,
        typer.Option("--algorithm", help="Its algorithm; default: the kind's first."),
    ] = "",
    ranks: Annotated[
        int, typer.Option("--ranks", min=1, max=MOST_WRITTEN, help="Number of ranks.")
    ] = 8,
    root: Annotated[
        int, typer.Option("--root", min=0, help="Root of a broadcast or a reduce.")
    ] = 0,
    as_json: options.Json = False,
) -> None:
    """Write an algorithm of a collective as an MSCCL file, to be changed and run, here or by MSCCL.

    Examples:
        ringlight workload algorithm bruck.xml --kind all-gather --algorithm bruck --ranks 8
    """
    from ringlight.extensions.msccl.reader import read_msccl
    from ringlight.extensions.msccl.writer import write_msccl
    from ringlight.fabric.kinds import collective_steps

    try:
        steps = collective_steps(kind, name, ranks, root)
        write_msccl(out, kind, steps, root)
        read_msccl(out)
    except ValueError as error:
        fail(str(error), 2)
    document = {
        "file": str(out),
        "kind": kind,
        "algorithm": steps.name,
        "ranks": ranks,
        "steps": steps.steps,
    }
    line = "{file}: {kind}, {algorithm}, {ranks} ranks, {steps} steps"
    answer(document, as_json, lambda document: echo(line.format(**document)))


def register(app: typer.Typer) -> None:
    """Add the command to those of workloads."""
    group.command()(algorithm)
