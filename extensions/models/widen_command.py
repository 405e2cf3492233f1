"""``ringlight workload widen``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import fail
from ringlight.experiments.cli.workload import MOST_RANKS, Form, read_files, write_files
from ringlight.workloads.formats.contract import Options

if TYPE_CHECKING:
    from ringlight.extensions.models.widening import Grid
    from ringlight.workloads.graph import Workload

#: Where sizes are those of what is read.
WIDER = " in the wider workload"


def ranks_of(what: str, where: str = "") -> Any:
    """Return the option for the ranks of one kind of parallelism."""
    return typer.Option(
        min=1, max=MOST_RANKS, help=f"Ranks of {what} parallelism{where}."
    )


def widen(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN... OUT", help="Files to read, as for show, and then OUT."
        ),
    ],
    dp: Annotated[int | None, ranks_of("data", WIDER)] = None,
    tp: Annotated[int | None, ranks_of("tensor", WIDER)] = None,
    pp: Annotated[int | None, ranks_of("pipeline", WIDER)] = None,
    ep: Annotated[int | None, ranks_of("expert", WIDER)] = None,
    recorded_as: Annotated[
        str,
        typer.Option(
            "--recorded",
            metavar="tp=N,...",
            help="Parallelism of the recording, if the names of its operations do not show it.",
        ),
    ] = "",
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside",
            metavar="FILE",
            help="Recording with another tp or ep, to show the operations that ranks divide; may be repeated.",
        ),
    ] = None,
    sharded: Annotated[
        list[str] | None,
        typer.Option(
            "--sharded",
            metavar="NAME",
            help="Computation or memory operation that replicas divide among them, as with ZeRO; may be repeated.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FILE",
            help="Workload of the larger size: name the first difference.",
        ),
    ] = None,
    read_options: Options = Options(),
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Widen a workload of few ranks to more along its parallelism; write it to OUT.

    Each further replica (--dp) has a batch of the same size, and each further stage (--pp) as many layers.
    More tensor- or expert-parallel ranks divide the same model; a recording --beside shows the divided
    operations. Other degrees stay the same. Groups are found by operations called dp, edp, tp and ep.

    Examples:
        ringlight workload make small.rlw --model gpt2-medium --dp 2 --device a100
        ringlight workload widen small.rlw wide.rlw --dp 16
    """
    if len(files) < 2:
        fail("give the files of a workload, and OUT", 2)
    from ringlight.extensions.models.widening import (
        first_difference,
        grown,
        replicas_of,
        widened,
    )

    *read, out = files
    recorded, besides = (
        read_files(read, read_options),
        [read_files([file], read_options) for file in beside or ()],
    )
    given = {
        name: size
        for name, size in (("dp", dp), ("tp", tp), ("pp", pp), ("ep", ep))
        if size
    }
    if not given:
        fail("state what to widen to: --dp, --tp, --pp or --ep", 2)
    try:
        if set(given) == {"dp"} and not recorded_as and not besides:
            replicas = replicas_of(recorded)
            _check_most(recorded.ranks // replicas.count * given["dp"])
            wide = widened(recorded, given["dp"], replicas, sharded or ())
        else:
            grid, target = _grids(recorded, recorded_as, given)
            _check_most(target.pp * target.dp * target.ep * target.tp)
            wide = grown(recorded, grid, target, besides, sharded or ())
    except ValueError as error:
        fail(f"{read[0]}: {error}", 2)
    if unknown := [name for name in sharded or () if name not in recorded.names]:
        fail(f"--sharded: no operation is called {unknown[0]!r}", 2)
    if against is not None and (
        difference := first_difference(wide, read_files([against], read_options))
    ):
        fail(f"{against} differs: {difference}")
    write_files(wide, out, form, as_json)


def _check_most(ranks: int) -> None:
    if ranks > MOST_RANKS:
        fail(f"{ranks} ranks; at most {MOST_RANKS}", 2)


def _grids(
    recorded: Workload, recorded_as: str, given: Mapping[str, int]
) -> tuple[Grid, Grid]:
    """Return the grid of a recording, and the grid to widen it to."""
    from ringlight.extensions.models.widening import Grid, checked, grid_of

    try:
        sizes = {
            name: int(size)
            for name, _, size in (
                text.partition("=") for text in recorded_as.split(",") if text
            )
        }
        stated = Grid(**sizes)
    except (TypeError, ValueError):
        fail(f"--recorded: {recorded_as!r} should be sizes, such as tp=2,pp=2", 2)
    if min(stated.pp, stated.dp, stated.ep, stated.tp) < 1:
        fail(f"--recorded: {recorded_as!r} should be sizes of 1 or more", 2)
    try:
        grid = grid_of(recorded) if not sizes else stated
    except ValueError:
        sizes = {name: size for name, size in given.items() if name != "dp"}
        if not sizes or "dp" not in given:
            raise
        grid = Grid(**sizes)
    if "dp" not in sizes and sizes:
        grid = replace(grid, dp=max(1, recorded.ranks // (grid.pp * grid.ep * grid.tp)))
    return checked(recorded, grid), replace(grid, **given)
