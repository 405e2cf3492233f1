"""``ringlight hosts``: machines for labs, as workers of Dask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options

hosts = typer.Typer(
    no_args_is_help=True, help="Several machines for labs: workers of Dask with the resource HOST."
)


@hosts.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for them.")],
) -> None:
    """Make certificates for Dask's processes, for a trial of 30 days."""
    from ringlight.testbed.hosts.certificates import make_certificates

    config = make_certificates(folder)
    typer.echo(
        f"Copy {config.parent} to the same path on each host; Dask's processes and Ringlight find it by:"
    )
    typer.echo(f"export DASK_CONFIG={config.parent}")


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(hosts, name="hosts", rich_help_panel=options.MACHINE)
