"""``ringlight judge``: predictions of published tables, and their verdicts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import echo, fail, show_json, table

#: Judges that predict at the same time, at most.
PROCESSES = 2


def judge(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]…", help="Judges; default: all that need no root."
        ),
    ] = None,
    pages: Annotated[
        Path | None,
        typer.Option(
            "--pages",
            metavar="FOLDER",
            help="Also write the pages and their pictures to this folder.",
        ),
    ] = None,
    runs: options.RunsFolder = options.RUNS,
    as_json: options.Json = False,
) -> None:
    """Predict figures that others published, before their outcomes are read; report the differences.

    Exit code 1 if a claim of a judge does not hold. The predictions, with their SHA-256, and a page for each
    judge are in a new folder. Judges of emulations run only by name, and need root and Docker.

    Examples:
        ringlight judge
        ringlight judge astra_sim
        ringlight judge emulated_racks
    """
    from ringlight.experiments.record.folder import new_folder
    from ringlight.experiments.runner.progress import Reporter
    from ringlight.extensions.judge.contract import OUTSIDE
    from ringlight.extensions.judge.judging import all_judges, judge_all, summary
    from ringlight.extensions.judge.publishing import write_pages
    from ringlight.extensions.judge.reading import TableError

    known = all_judges()
    if unknown := [name for name in names or () if name not in known]:
        fail(f"there is no judge {unknown[0]}; there are {', '.join(known)}", 2)
    if pages is not None and not pages.is_dir():
        fail(f"--pages {pages}: there is no such folder", 2)
    chosen = [
        judge
        for name, judge in known.items()
        if (name in names if names else judge.by_default)
    ]
    folder = new_folder(runs, "judge")
    try:
        judged = judge_all(
            chosen,
            folder,
            Reporter(quiet=as_json).say,
            min(PROCESSES, os.cpu_count() or 1),
        )
    except TableError as error:
        fail(str(error))
    named = [name for name, judge in known.items() if not judge.by_default]
    for place in filter(None, (folder, pages)):
        write_pages(judged, place, None if names else named)
    if as_json:
        show_json(summary(judged, folder))
    else:
        claims = [
            (
                item.judge.name,
                claim.text,
                _cell(claim.measured, claim.unit),
                _cell(claim.limit, claim.unit),
                claim.verdict,
            )
            for item in judged
            for claim in item.judgement.claims
        ]
        table(("judge", "claim", "measured", "limit", "verdict"), claims)
        for item in judged:
            echo(f"{item.judge.name}: SHA-256 of the predictions {item.sha256}")
        echo(f"Pages: {folder}")
    if any(item.judgement.verdict == OUTSIDE for item in judged):
        raise typer.Exit(1)


def _cell(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}"


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.EXPERIMENTS)(judge)
