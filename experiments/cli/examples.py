"""``ringlight examples``: the bundled scenario files, listed and copied."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, table
from ringlight.experiments.language.bundled import bundled, listed

commands = typer.Typer(
    help="List the bundled scenario files, or copy one.", invoke_without_command=True
)


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
    from ringlight.experiments.language.text import ScenarioError
    from ringlight.experiments.runner.machine import real_scale

    try:
        path = bundled(name)
    except ScenarioError as error:
        fail(str(error), 2)
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


def _show(document: dict[str, str]) -> None:
    table(
        ["example", "what it asks"],
        [[name.removesuffix(".yaml"), text] for name, text in document.items()],
    )


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.add_typer(commands, name="examples", rich_help_panel=options.EXPERIMENTS)
