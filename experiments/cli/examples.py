"""``ringlight examples``: the bundled scenario files, listed and copied."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, table

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
commands = typer.Typer(
    help="List the bundled scenario files, or copy one.", invoke_without_command=True
)


def listed() -> dict[str, str]:
    """Return the question that each bundled scenario file asks, by its path below ``scenarios``."""
    rows = re.findall(
        r"^\| `([^`]+\.yaml)` \| (.+) \|$",
        (SCENARIOS / "README.md").read_text(),
        re.MULTILINE,
    )
    return {name: question for name, question in rows if (SCENARIOS / name).exists()}


@commands.callback()
def examples(context: typer.Context, as_json: options.Json = False) -> None:
    """List the bundled scenario files.

    Examples:
        ringlight examples
    """
    if context.invoked_subcommand is None:
        answer(listed(), as_json, _show)


@commands.command()
def copy(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name as listed, with or without .yaml."),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to copy to.")
    ] = Path(),
) -> None:
    """Copy a scenario file, and the files that it names, to a folder.

    Examples:
        ringlight examples copy queue
        ringlight examples copy fat_tree_4 experiments
    """
    from ringlight.experiments.language.expand import load
    from ringlight.experiments.runner.machine import real_scale

    path = _named(name)
    experiment = load(path, scale_for=real_scale)
    targets = [(path, folder / path.name)]
    targets += [
        (experiment.directory / file, folder / file) for file in experiment.files
    ]
    for _, target in targets:
        if target.exists():
            fail(f"{target} exists already")
    for source, target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        echo(str(target))


def _named(name: str) -> Path:
    """Return the bundled file of a name. Exit with one line if there is none, or several."""
    known = listed()
    full = name if name.endswith(".yaml") else f"{name}.yaml"
    matches = [
        each for each in known if each == full or each.rpartition("/")[2] == full
    ]
    if len(matches) != 1:
        there = ", ".join(each.removesuffix(".yaml") for each in known)
        fail(f"there is no example {name}; there are {there}", 2)
    return SCENARIOS / matches[0]


def _show(document: dict[str, str]) -> None:
    table(
        ["example", "what it asks"],
        [[name.removesuffix(".yaml"), text] for name, text in document.items()],
    )


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.add_typer(commands, name="examples", rich_help_panel=options.EXPERIMENTS)
