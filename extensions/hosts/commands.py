"""``ringlight hosts``: machines for labs, as workers of Dask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import Column, answer, echo, fail, listing, say
from ringlight.extensions.console.shell_commands import lines_of
from ringlight.extensions.hosts.options import Address, OverHosts

if TYPE_CHECKING:
    from ringlight.extensions.hosts.cluster import Cluster

hosts = typer.Typer(
    no_args_is_help=True,
    help="Several machines for labs: workers of Dask with the resource HOST.",
)


@hosts.command()
def certificates(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for them.")],
) -> None:
    """Make certificates for Dask's processes, for a trial of 30 days.

    Examples:
        ringlight hosts certificates certificates
    """
    from ringlight.extensions.hosts.certificates import make_certificates

    config = make_certificates(folder)
    echo(
        f"Copy {config.parent} to the same path on each host; Dask's processes and Ringlight find it by:"
    )
    echo(f"export DASK_CONFIG={config.parent}")


@hosts.command()
def check(
    dask: Address,
    runtime: options.Runtime = "docker",
    mtu: Annotated[
        int,
        typer.Option(
            "--mtu", min=576, max=9216, help="Bytes of a packet that must arrive whole."
        ),
    ] = 1550,
    rate: Annotated[
        str, typer.Option("--rate", help="Rate that one stream must reach.")
    ] = "1 Gbit/s",
    round_trip: Annotated[
        str, typer.Option("--round-trip", help="Longest round trip.")
    ] = "2 ms",
    clock: Annotated[
        str, typer.Option("--clock", help="Most that two clocks may be apart.")
    ] = "1 s",
    as_json: options.Json = False,
) -> None:
    """List the hosts, whether each can build a lab, and the network's rate and delay between each pair.

    Exit code 1 if a host is not ready, or if a pair of hosts misses a required value.

    Examples:
        ringlight hosts check --dask tls://HEAD:8786 --rate '1 Gbit/s'
    """
    from dataclasses import asdict

    from ringlight.extensions.hosts.cluster import hosts_of
    from ringlight.extensions.hosts.forks import fork_from_now_on
    from ringlight.extensions.hosts.probe import Needs, checked_ways, probed
    from ringlight.extensions.hosts.readiness import why_not_ready
    from ringlight.fabric.units import format_rate, format_time, parse_rate, parse_time

    try:
        needs = Needs(mtu, parse_rate(rate), parse_time(round_trip), parse_time(clock))
    except ValueError as error:
        fail(str(error), 2)
    with hosts_of(dask) as cluster:
        lacking = cluster.ask(why_not_ready, runtime)
        ways, misfits = checked_ways(lambda: probed(cluster), lambda _: [needs])
        # Not before, as it would take processors from the probe.
        cluster.ask(fork_from_now_on)
    problems = [
        f"host {name}: {why}" for name, why in lacking.items() if why is not None
    ]
    problems += misfits
    document = {
        "hosts": [
            {**asdict(host), "lacks": lacking[host.name]} for host in cluster.hosts
        ],
        "ways": [asdict(way) for way in ways],
        "problems": problems,
    }

    def show(document: dict[str, Any]) -> None:
        ready: Column = ("ready", lambda host: host["lacks"] is None)
        listing(
            document["hosts"],
            ("host", "name"),
            ("worker", "address"),
            ("labs at once", "labs"),
            ready,
        )
        rated: Column = ("rate", lambda way: format_rate(way["rate_bps"]))
        trip: Column = ("round trip", lambda way: format_time(way["round_trip_s"]))
        later: Column = (
            "clock later by",
            lambda way: (
                f"{1000 * way['clock_s']:.3f} ms ± {1000 * way['clock_error_s']:.3f} ms"
            ),
        )
        listing(
            document["ways"],
            ("from", "a"),
            ("to", "b"),
            ("MTU", "mtu_bytes"),
            rated,
            trip,
            later,
            numeric=2,
        )

    answer(document, as_json, show)
    for line in problems:
        say(line)
    if problems:
        raise typer.Exit(1)


@hosts.command()
def cut(
    scenario: options.ScenarioFile,
    count: Annotated[
        int,
        typer.Option("--hosts", metavar="N", min=1, max=1024, help="Number of hosts."),
    ],
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Print how the fabrics of a scenario file would be divided over N hosts; runs nothing.

    Examples:
        ringlight examples copy fat_tree_4
        ringlight hosts cut fat_tree_4.yaml --hosts 2
    """
    from ringlight.experiments.backends.simulation.workloads import MOST_RANKS
    from ringlight.experiments.runner.command import load_checked
    from ringlight.extensions.hosts.cuts import cuts_of, show_cuts

    # Points of larger jobs take long to read.
    experiment = load_checked(scenario, sets=sets or (), most_gpus=MOST_RANKS)
    answer(cuts_of(experiment, count), as_json, show_cuts)


@hosts.command()
@options.with_groups
def up(
    scenario: options.ScenarioFile,
    dask: Address,
    place: options.Place,
    over: OverHosts,
    runtime: options.Runtime = "docker",
    devices: options.Devices = (),
    as_json: options.Json = False,
) -> None:
    """Build an experiment's fabric on hosts, start its controller and leave both running for REST use.

    Examples:
        ringlight examples copy fat_tree_4
        ringlight hosts up fat_tree_4.yaml --dask tls://HEAD:8786 --hosts 2
    """
    with _standing(scenario, dask, place, over, runtime, devices) as (
        cluster,
        facts,
        future,
    ):
        cluster.leave(future)
    there = (
        f"{', '.join(facts['hosts'])}; REST at {facts['url']}/docs of {facts['host']}"
    )
    ending = f"end it with: ringlight hosts down {facts['lab']} --dask {dask}"
    answer(
        facts, as_json, lambda _: echo(f"lab {facts['lab']} is up on {there}; {ending}")
    )


@hosts.command()
def down(
    dask: Address,
    lab: Annotated[
        str | None, typer.Argument(help="Lab id; default: every lab left up.")
    ] = None,
) -> None:
    """End labs that `hosts up` left running.

    Examples:
        ringlight hosts down --dask tls://HEAD:8786
    """
    from ringlight.extensions.hosts.cluster import hosts_of
    from ringlight.extensions.hosts.standing import end_standing_here

    with hosts_of(dask) as cluster:
        ended = [
            name
            for names in cluster.ask(end_standing_here, lab).values()
            for name in names
        ]
    if lab is not None and not ended:
        fail(f"lab {lab} does not stand on hosts of {dask}")
    echo(f"ended: {', '.join(ended)}" if ended else "no lab is up")


@hosts.command()
@options.with_groups
def shell(
    dask: Address,
    place: options.Place,
    over: OverHosts,
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAB|SCENARIO]",
            help="Lab id, or a scenario file whose lab is built first and removed at the end; without it, "
            "the only lab that is up on the hosts.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="File of commands, one a line; -: standard input."
        ),
    ] = None,
    runtime: options.Runtime = "docker",
    devices: options.Devices = (),
) -> None:
    """Mininet's prompt over a lab on hosts; commands go to the prompt of the first host.

    Examples:
        ringlight examples copy fat_tree_4
        ringlight hosts shell fat_tree_4.yaml --dask tls://HEAD:8786 --hosts 2
    """
    from ringlight.extensions.hosts.cluster import hosts_of
    from ringlight.extensions.hosts.distant import converse, lab_among

    lines = lines_of(file)
    if where is not None and options.is_scenario(where):
        with _standing(Path(where), dask, place, over, runtime, devices) as (
            cluster,
            lab,
            _,
        ):
            say(
                f"lab {lab['lab']} is up on {', '.join(lab['hosts'])} until this prompt ends"
            )
            code = converse(cluster, lab["host"], lab["lab"], lines)
    else:
        with hosts_of(dask) as cluster:
            host, lab_id = lab_among(cluster, where)
            code = converse(cluster, host, lab_id, lines)
    if code and lines is not None:
        raise typer.Exit(1)


@hosts.command()
def clean(dask: Address, as_json: options.Json = False) -> None:
    """Remove everything that Ringlight ever made on the hosts, and nothing else.

    Examples:
        ringlight hosts clean --dask tls://HEAD:8786
    """
    from ringlight.experiments.cli.machine import show_removed
    from ringlight.extensions.hosts.cluster import hosts_of
    from ringlight.testbed.emulation.clean import clean as clean_machine

    with hosts_of(dask) as cluster:
        by_host = cluster.ask(clean_machine)
    removed = [
        f"host {name}: {line}" for name, lines in by_host.items() for line in lines
    ]
    answer({"removed": removed}, as_json, show_removed)


@contextmanager
def _standing(
    scenario: Path,
    dask: str,
    place: options.Place,
    over: OverHosts,
    runtime: str,
    devices: Sequence[str],
) -> Iterator[tuple[Cluster, dict[str, Any], Any]]:
    """Build a lab on hosts that stays up. Yield the hosts' cluster, the lab's facts, and the lab's Dask
    future.

    The lab ends with its future. Raises UserError, ScenarioError, BackendError, LabError.
    """
    with over.backend_at(dask, runtime, devices) as backend:
        from ringlight.experiments.backends.emulation.lab_of_setting import cannot_drive
        from ringlight.experiments.runner.machine import scale_here
        from ringlight.extensions.hosts.standing import stand
        from ringlight.testbed.lab_programs import waiting

        setting = place.setting(
            scenario, partial(scale_here, devices=devices, measure=say)
        )
        fabric = setting.fabric
        why = cannot_drive(fabric)
        if why is None and (waits := waiting(fabric)) is not None:
            why = f"fabric.{waits}"
        if (why := why or backend.cannot_spread(fabric)) is not None:
            fail(f"{scenario}: {why}", 2)
        backend.check_ready()
        backend.prepare([setting], None, say, {})
        yield backend.cluster, *stand(backend, setting, str(scenario))


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(hosts, name="hosts", rich_help_panel=options.MACHINE)
