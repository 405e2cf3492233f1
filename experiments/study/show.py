"""What ``check``, ``simulate`` and ``report`` print of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from experiments.cli.common import show_json, table
from experiments.study.points import Point
from experiments.study.spec import Study, tasks
from experiments.study.systems import SYSTEMS
from experiments.study.verdict import wins_up_to
from fabric.units import format_rate, format_size, format_time


def show_check(study: Study, as_json: bool) -> None:
    """What a sound study describes."""
    todo = tasks(study)
    points = [task for task in todo if isinstance(task, Point)]
    runs = sum(len(point.runs) for point in points)
    sweeps = study.sweeps
    if as_json:
        show_json(
            {
                "name": study.spec.name,
                "kind": "study",
                "systems": list(sweeps.systems),
                "points": len(points),
                "all_reduces": runs,
                "crossovers": len(todo) - len(points),
            }
        )
        return
    base = sweeps.base
    typer.echo(
        f"{study.path}: sound. A study of {len(sweeps.systems)} all-reduces at {len(points)} points, "
        f"{runs:,} runs and {len(todo) - len(points)} crossovers, about {base.nodes:,} nodes with "
        f"{base.wavelengths} wavelengths of {format_rate(base.rate)}. It is only simulated: ringlight "
        f"simulate {study.path}"
    )
    place = study.base
    rows = []
    for name in sweeps.systems:
        form = SYSTEMS[name].closed(study.place(name, place))
        rows.append([name, SYSTEMS[name].title, form.steps, f"{form.vectors:.4g}"])
    table(["system", "", "steps, by formula", "gradients through the narrowest link"], rows, numeric=2)


def show_study(result: Mapping[str, Any]) -> None:
    """Times at the base for every gradient, where WRHT stops winning, and the verdict."""
    settings = result["settings"]
    gradients = list(settings["gradients_bytes"])
    typer.echo(
        f"{settings['nodes']:,} nodes, {settings['wavelengths']} wavelengths of "
        f"{format_rate(settings['rate_bps'])}, set-up {format_time(settings['set_up_s'])}. Time of an "
        "all-reduce, simulated, with the set-up in each step and only for new circuits:"
    )
    pairs = {
        (pair["other"], pair["charge"]): pair
        for pair in result["crossovers"]["systems"]
        if pair["system"] == "wrht"
    }
    rows = []
    for name, system in result["systems"].items():
        cells = [system["title"], system["steps"]]
        for model in gradients:
            times = [result["models"][charge][model].get(name) for charge in result["models"]]
            said = [format_time(found["total_s"]) if found else "?" for found in times]
            cells.append(said[0] if system["medium"] == "electrical" else " / ".join(said))
        cells.append(" / ".join(_up_to(pairs[key]) for key in pairs if key[0] == name))
        rows.append(cells)
    table(["system", "steps", *gradients, "WRHT faster up to"], rows, numeric=1)
    for found in result["verdict"]:
        typer.echo(f"{found['kind'].capitalize()}: {found['text']}")
    agreement = result["agreement"]
    typer.echo(
        f"Simulated and analytic times differ by {agreement['largest_relative_difference']:.1e} at most, "
        f"over {agreement['runs_compared']:,} runs."
    )
    if not result["complete"]:
        typer.echo("This study is not complete.")


def _up_to(pair: Mapping[str, Any]) -> str:
    size = wins_up_to(pair)
    if size is None:
        return "?"
    return "never" if size == 0 else ("always" if size == float("inf") else format_size(size))
