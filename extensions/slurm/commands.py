"""``ringlight slurm``: a Slurm cluster over a lab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli.calls import Json, address, get
from ringlight.experiments.cli.common import Column, answer, echo, fail, listing

slurm = typer.Typer(
    help="Slurm over a lab: light that follows its jobs, or jobs that follow light.",
    no_args_is_help=True,
)

_FOLLOWER: tuple[Column, ...] = (
    ("generation of light", "generation"),
    ("drained", lambda state: " ".join(state["drained"])),
    ("problem", lambda state: state["problem"] or ""),
    ("silent for", lambda state: f"{state['silent_s']:.1f} s"),
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
    # The prolog starts elsewhere.
    cacert = str(Path(address["cacert"]).absolute()) if address["cacert"] else None
    site = Site(_url(), partitions, addresses, cacert=cacert)
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


@slurm.command()
def follow(
    directory: Annotated[
        Path | None,
        typer.Option(
            help="Folder of slurm.conf; default: as SLURM_CONF names it, or /etc/slurm."
        ),
    ] = None,
) -> None:
    """Have Slurm follow the lab's light, and drain the nodes of lost GPUs; runs until it is interrupted.

    Examples:
        ringlight slurm follow
    """
    from ringlight.experiments.cli.common import say
    from ringlight.extensions.slurm.follow import Follower
    from ringlight.extensions.slurm.site import directory_of, read_site

    place = (directory or directory_of()).absolute()
    os.environ["SLURM_CONF"] = f"{place}/slurm.conf"
    with Follower(read_site(place), place, say) as follower:
        follower.run()


@slurm.command()
def env(
    lab: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAB]", help="Lab id; default: the only one with Slurm."
        ),
    ] = None,
) -> None:
    """Print the exports by which srun, sbatch and squeue use the cluster of a lab.

    Examples:
        ringlight slurm env
    """
    from ringlight.extensions.slurm.process import FOLDER
    from ringlight.testbed.lab import STATE_ROOT

    folders = sorted(
        path.parent
        for path in STATE_ROOT.glob(f"*/{FOLDER}")
        if lab in (None, path.parent.name)
    )
    if not folders:
        whose = f"lab {lab} has no" if lab else "no lab has a"
        fail(f"{whose} Slurm cluster; bring one up with: ringlight up SCENARIO --slurm")
    if len(folders) > 1:
        fail(
            f"which lab? name one of {', '.join(folder.name for folder in folders)}", 2
        )
    echo(f"export SLURM_CONF={folders[0] / FOLDER / 'slurm.conf'}")


@slurm.command()
def allreduce(
    length: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="Length of the vector, such as 4MB; the scale of the lab leaves it as it is.",
        ),
    ] = "4MB",
    repeat: Annotated[
        int, typer.Option(min=1, max=100_000, help="Number of all-reduces.")
    ] = 10,
    collective: Annotated[str, typer.Option(help="Name of the collective.")] = "ring",
    as_json: Json = False,
) -> None:
    """All-reduce with the other tasks of this job step (srun -N4 ringlight …); the first task prints the times.

    Examples:
        ringlight slurm allreduce --bytes 4MB --repeat 10
    """
    import dataclasses

    from ringlight.extensions.slurm.allreduce import measure, task_of
    from ringlight.extensions.slurm.site import directory_of, read_site
    from ringlight.fabric.units import format_time, parse_size

    try:
        size = parse_size(length)
    except ValueError as error:
        fail(f"--bytes: {error}", 2)
    task = task_of(read_site(directory_of()), os.environ)
    measured = measure(task, size, repeat, collective)
    if not measured.exact:
        fail(f"task {task.rank}: a sum was wrong")
    if task.rank:
        return
    document = {
        "addresses": task.addresses,
        **dataclasses.asdict(measured),
        "median_s": measured.median_s,
    }

    def write(_: object) -> None:
        listing(
            [
                {"all-reduce": k + 1, "time": format_time(t)}
                for k, t in enumerate(measured.times_s)
            ],
            "all-reduce",
            "time",
        )
        echo(f"median {format_time(measured.median_s)}, every sum exact")

    answer(document, as_json, write)


@slurm.command()
def follower(as_json: Json = False) -> None:
    """Show the state of the follower: the light that Slurm has, and the nodes of lost GPUs.

    Examples:
        ringlight slurm follower
    """
    reply = get("/v1/slurm/follower")
    answer(reply, as_json, lambda state: listing([state], *_FOLLOWER))


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(slurm, name="slurm", rich_help_panel="Slurm")
