"""``ringlight hosts``: machines for labs, as workers of Dask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import Column, answer, echo, fail, listing, say

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
    echo(f"Copy {config.parent} to the same path on each host; Dask's processes and Ringlight find it by:")
    echo(f"export DASK_CONFIG={config.parent}")


@hosts.command()
def check(
    dask: Annotated[
        str, typer.Option("--dask", metavar="ADDRESS", help="Dask's scheduler, such as tls://HOST:PORT.")
    ],
    runtime: options.Runtime = "docker",
    mtu: Annotated[
        int, typer.Option("--mtu", min=576, max=9216, help="Bytes of a packet that must arrive whole.")
    ] = 1550,
    rate: Annotated[str, typer.Option("--rate", help="Rate that one stream must reach.")] = "1 Gbit/s",
    round_trip: Annotated[str, typer.Option("--round-trip", help="Longest round trip.")] = "2 ms",
    clock: Annotated[str, typer.Option("--clock", help="Most that two clocks may be apart.")] = "1 s",
    as_json: options.Json = False,
) -> None:
    """Say which hosts there are, whether each can build a lab, and what the network between each two gives.

    Exit code 1 where a host is not ready, or a pair of hosts gives less than is asked for.
    """
    from dataclasses import asdict

    from ringlight.fabric.units import format_rate, format_time, parse_rate, parse_time
    from ringlight.testbed.hosts.cluster import hosts_of
    from ringlight.testbed.hosts.forks import fork_from_now_on
    from ringlight.testbed.hosts.probe import Needs, checked_ways, probed
    from ringlight.testbed.hosts.readiness import why_not_ready

    try:
        needs = Needs(mtu, parse_rate(rate), parse_time(round_trip), parse_time(clock))
    except ValueError as error:
        fail(str(error), 2)
    with hosts_of(dask) as cluster:
        lacking = cluster.ask(why_not_ready, runtime)
        ways, misfits = checked_ways(lambda: probed(cluster), lambda _: [needs])
        # Not before, as it would take processors from the probe.
        cluster.ask(fork_from_now_on)
    problems = [f"host {name}: {why}" for name, why in lacking.items() if why is not None]
    problems += misfits
    document = {
        "hosts": [{**asdict(host), "lacks": lacking[host.name]} for host in cluster.hosts],
        "ways": [asdict(way) for way in ways],
        "problems": problems,
    }

    def show(document: dict[str, Any]) -> None:
        ready: Column = ("ready", lambda host: host["lacks"] is None)
        listing(document["hosts"], ("host", "name"), ("worker", "address"), ("labs at once", "labs"), ready)
        rated: Column = ("rate", lambda way: format_rate(way["rate_bps"]))
        trip: Column = ("round trip", lambda way: format_time(way["round_trip_s"]))
        later: Column = (
            "clock later by",
            lambda way: f"{1000 * way['clock_s']:.3f} ms ± {1000 * way['clock_error_s']:.3f} ms",
        )
        listing(
            document["ways"], ("from", "a"), ("to", "b"), ("MTU", "mtu_bytes"), rated, trip, later, numeric=2
        )

    answer(document, as_json, show)
    for line in problems:
        say(line)
    if problems:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(hosts, name="hosts", rich_help_panel=options.MACHINE)
