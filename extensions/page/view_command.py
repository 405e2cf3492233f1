"""Command that shows the page of a lab or of run folders."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import echo, fail
from ringlight.extensions.page.page_files import VIEW


def view(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAB|RUN...]",
            help="Lab id, or run folders; without it, the only lab that is up.",
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen", metavar="HOST:PORT", help="Loopback address of a replay's page."
        ),
    ] = "127.0.0.1:0",
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write the page of run folders into one file, and end.",
        ),
    ] = None,
    arm: options.Arms = None,
) -> None:
    """Watch the circuits of a lab, or of run folders, in the browser; prints the address.

    Examples:
        ringlight examples copy queue
        ringlight simulate queue.yaml
        ringlight view runs/*
    """
    folders = [Path(name) for name in where or ()]
    missing = [folder for folder in folders if not folder.is_dir()]
    if folders and not missing:
        _replay(folders, listen, html, arm or ())
    elif len(folders) > 1 or (missing and (html is not None or arm)):
        fail(f"{missing[0]}: there is no such run folder", 2)
    elif html is not None or arm:
        fail(f"--{'arm' if html is None else 'html'}: of which run folder?", 2)
    else:
        _lab(where[0] if where else None)


def _replay(
    folders: list[Path], listen: str, html: Path | None, arms: Collection[str]
) -> None:
    from ringlight.controller.web.access import is_loopback
    from ringlight.extensions.page.recorded import Recorded
    from ringlight.extensions.page.serving import serve

    if html is not None:
        from ringlight.experiments.record.writing import write_whole
        from ringlight.extensions.page.single_file import single_file

        write_whole(html, single_file([Recorded(folder, arms) for folder in folders]))
        echo(f"{html}: {html.stat().st_size / 1e6:.1f} MB")
        return
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        fail(f"--listen {listen}: write HOST:PORT", 2)
    if not is_loopback(host):
        fail(
            f"--listen {listen}: not a loopback address; write a file with --html to show it elsewhere",
            2,
        )
    recordings = [Recorded(folder, arms) for folder in folders]
    try:
        serve(
            recordings, host, int(port), lambda address: echo(f"{address} until Ctrl-C")
        )
    except OSError as error:
        fail(f"--listen {listen}: {error.strerror}")


def _lab(name: str | None) -> None:
    """Print the address of a lab's page. ``name``: its id, None for the only lab that is up."""
    from ringlight.experiments.cli import calls
    from ringlight.testbed.emulation.attached import attach
    from ringlight.testbed.lab import Lab, LabError

    if name is not None:
        try:
            Lab(name)
        except LabError:
            # No lab is called so: a run folder was meant.
            fail(f"{name}: there is no such run folder", 2)
    lab = attach(name)
    calls.ask_controller_of(lab)
    with calls.connection() as api:
        api.get("/v1/health")
        echo(f"{api.url}{VIEW}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel=options.EXPERIMENTS)(view)
