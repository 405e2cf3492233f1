"""``ringlight image``: images for jobs of containers."""

from __future__ import annotations

from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import echo, say


def image(
    name: Annotated[str, typer.Argument(help="Name of the image, such as my-mpi.")],
    packages: Annotated[
        list[str], typer.Argument(help="Debian packages, such as openmpi-bin.")
    ],
) -> None:
    """Make a Docker image of Debian packages, with Python and numpy, for jobs that run containers.

    Examples:
        ringlight image my-mpi openmpi-bin python3-mpi4py
    """
    from ringlight.containers.image_build import build_from_packages

    echo(f"Docker has image {build_from_packages(name, packages, say)}")


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.MACHINE)(image)
