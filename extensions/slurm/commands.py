"""``ringlight slurm``: a Slurm cluster over a lab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli.calls import address, get
from ringlight.experiments.cli.common import echo, fail

slurm = typer.Typer(
    help="Slurm over a lab: light that follows its jobs, or jobs that follow light.",
    no_args_is_help=True,
)


@slurm.command()
def config(
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="NAME=MODE[:GPU,GPU]",
            help="Partition: lead if its jobs claim light, follow if light places them; may be repeated.",
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Folder of slurm.conf; default: as SLURM_CONF names it, or /etc/slurm."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=1,
            max=60000,
            help="TCP port of slurmctld; the nodes have the next ones.",
        ),
    ] = 17000,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Nodes of a job that leads light; default: ports of a packet switch.",
        ),
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Write it, and the files beside it, into the folder."
        ),
    ] = False,
) -> None:
    """Print a slurm.conf for the GPUs of the running lab.

    Examples:
        ringlight slurm config
        ringlight slurm config --partition train=lead --directory /etc/slurm --write
    """
    from ringlight.extensions.slurm import files
    from ringlight.extensions.slurm.partitions import most_of_document, parse_partitions
    from ringlight.extensions.slurm.site import Site, directory_of
    from ringlight.extensions.slurm.slurm_conf import ClusterSettings, slurm_conf

    fabric = get("/v1/fabric")
    gpus = tuple(gpu["name"] for gpu in fabric["gpus"])
    most = max_nodes or most_of_document(fabric)
    partitions = parse_partitions(partition or ["gpus=lead"], gpus, most)
    place = (directory or directory_of()).absolute()
    settings = ClusterSettings(place, gpus, partitions, port)
    if not write:
        echo(slurm_conf(settings), nl=False)
        return
    token = address["token"]
    if token:
        fail(
            "--write: the controller's token must be in a file that the prolog reads; name it in ringlight.json"
        )
    addresses = {gpu["name"]: gpu["ip"] for gpu in fabric["gpus"]}
    site = Site(_url(), partitions, addresses, cacert=address["cacert"] or None)
    files.write(settings, site)
    for name in files.names(settings):
        echo(place / name)


def _url() -> str:
    from ringlight.experiments.cli.calls import connection

    with connection() as api:
        return api.url


@slurm.command()
def prolog() -> None:
    """Claim the GPUs of a job before it starts; Slurm's controller calls this (PrologSlurmctld).

    Exit code 1 if they are refused: Slurm then requeues the job.

    Examples:
        ringlight slurm prolog
    """
    from ringlight.extensions.slurm.prolog import main

    raise typer.Exit(main())


@slurm.command()
def epilog() -> None:
    """Release the claim of a job that has ended; Slurm's controller calls this (EpilogSlurmctld).

    Examples:
        ringlight slurm epilog
    """
    from ringlight.extensions.slurm.epilog import main

    raise typer.Exit(main())


@slurm.command()
def spank(
    output: Annotated[
        Path | None,
        typer.Option(help="The compiled plug-in; default: beside slurm.conf."),
    ] = None,
) -> None:
    """Compile the plug-in by which tasks enter the network namespace of their GPU.

    Examples:
        ringlight slurm spank --output /etc/slurm/spank_ringlight.so
    """
    from ringlight.extensions.slurm.plugin import compile_plugin
    from ringlight.extensions.slurm.site import directory_of
    from ringlight.extensions.slurm.slurm_conf import SPANK

    echo(compile_plugin((output or directory_of() / SPANK).absolute()))


@slurm.command()
def node(
    gpu: Annotated[str, typer.Argument(metavar="GPU")],
) -> None:
    """Run the slurmd of a GPU in the foreground, whose tasks enter the GPU's network namespace.

    Examples:
        ringlight slurm node g0
    """
    from ringlight.experiments.cli.calls import call
    from ringlight.extensions.slurm.nodes import command, environment
    from ringlight.extensions.slurm.site import directory_of

    host = call("PUT", f"/v1/gpus/{gpu}/host")["host"]
    if host["kind"] != "idle":
        fail(f"GPU {gpu} has no idle host now: a job of Ringlight holds it")
    words = command(directory_of(), gpu)
    os.execvpe(words[0], words, environment(os.environ, gpu, host["namespace"]))


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(slurm, name="slurm", rich_help_panel="Slurm")
