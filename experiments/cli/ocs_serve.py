"""``ringlight ocs serve``: an emulated optical switch alone, for other people's controllers."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from ringlight.experiments.cli.common import echo, fail, say, show_json, table
from ringlight.experiments.cli.options import Json


def serve(
    profile: Annotated[
        str,
        typer.Option(
            help="A class of switches (mems, piezo or ideal) or a product; an unknown name lists all."
        ),
    ] = "mems",
    ports: Annotated[int, typer.Option(min=1, max=4096, help="Duplex ports.")] = 320,
    served: Annotated[
        list[str] | None,
        typer.Option(
            "--serve",
            metavar="PROTOCOL[=HOST:PORT]",
            help="Protocol to serve; may be repeated. Default: all of the profile, on loopback.",
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of lines user:password. Default: any name and password, on loopback only.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that keeps cross-connects and settings for the next start.",
        ),
    ] = None,
    recovery: Annotated[
        str | None,
        typer.Option(
            help="At a start, maintain, restore or remove the cross-connects in FOLDER. Default: a client's"
            " last choice, initially maintain.",
        ),
    ] = None,
    idle_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="Seconds of silence after which a client is dropped."
        ),
    ] = 300.0,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The switch's own REST API: its real state, and faults.",
        ),
    ] = None,
    rest_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with a token that every call of that API then needs.",
        ),
    ] = None,
    failed_port: Annotated[
        list[int] | None, typer.Option(help="A broken port; may be repeated.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name that the switch reports.")] = "ocs",
    seed: Annotated[int, typer.Option(help="Seed of losses and jitter.")] = 0,
    as_json: Json = False,
) -> None:
    """Run an emulated optical switch alone, until Ctrl-C: no testbed, no root, no packets.

    Examples:
        ringlight ocs serve --ports 320
        ringlight ocs serve --profile piezo --ports 8
    """
    from ringlight.controller.errors import StartError
    from ringlight.controller.web.access import read_tokens
    from ringlight.fabric.optical_drivers import protocols_of
    from ringlight.fabric.optical_profiles import profiles
    from ringlight.testbed.emulation.optical import alone
    from ringlight.testbed.emulation.optical.commands import Recovery
    from ringlight.testbed.emulation.optical.server import OpticalSwitchServer
    from ringlight.testbed.emulation.optical.switch_settings import Settings

    if not protocols_of(profile):
        known = ", ".join(name for name in profiles() if protocols_of(name))
        fail(f"--profile {profile}: there are {known}", 2)
    if recovery is not None and recovery not in {mode.value for mode in Recovery}:
        fail(
            f"--recovery {recovery}: there are {', '.join(mode.value for mode in Recovery)}",
            2,
        )
    try:
        settings = alone.checked(
            Settings(
                name,
                ports,
                profiles()[profile],
                serve=tuple(alone.read_served(text, profile) for text in served or []),
                users={} if users is None else alone.read_users(users),
                folder=state,
                recovery=None if recovery is None else Recovery(recovery),
                idle_timeout_s=idle_timeout,
                seed=seed,
                failed_ports=tuple(failed_port or ()),
                rest=None if rest is None else alone.read_address(rest),
                rest_tokens=None
                if rest_token_file is None
                else read_tokens(rest_token_file),
            )
        )
    except StartError as error:
        fail(f"--rest-token-file {error}", 2)
    except ValueError as error:
        fail(f"ocs serve: {error}", 2)
    except OSError as error:
        fail(f"--users {users}: {error.strerror}", 2)
    if not served and (
        absent := [p for p in protocols_of(profile) if not alone.is_installed(p)]
    ):
        say(f"not served, as their packages are not installed: {', '.join(absent)}")
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(message)s")
    try:
        server = OpticalSwitchServer(settings)
    except (OSError, ValueError) as error:
        fail(f"ocs serve: {_line(error)}{_other_port(error)}")
    server.stop_on_signals()
    where = server.addresses | (
        {} if server.rest_address is None else {"rest": server.rest_address}
    )
    _tell(
        where, profile, ports, next(iter(settings.users), ""), server.resumed, as_json
    )
    try:
        server.run()
    except OSError as error:
        fail(f"ocs serve: {_line(error)}")


def _tell(
    addresses: dict[str, str],
    profile: str,
    ports: int,
    user: str,
    resumed: bool,
    as_json: bool,
) -> None:
    """Print the addresses that are served, on standard output."""
    from ringlight.testbed.emulation.optical.alone import example

    if as_json:
        show_json(
            {
                "profile": profile,
                "ports": ports,
                "addresses": addresses,
                "pid": os.getpid(),
            }
        )
    else:
        light = "light as it was kept" if resumed else "all dark"
        echo(f"{profile} with {ports} ports, {light}; end it with Ctrl-C")
        rows = [
            [name, where, example(name, where, user)]
            for name, where in addresses.items()
        ]
        table(["protocol", "address", "try"], rows)
    # Whoever started this process waits for it.
    typer.get_text_stream("stdout").flush()


def _other_port(error: Exception) -> str:
    """Return a remedy to append to the error if the port is in use; "" for any other error."""
    if getattr(error, "errno", None) != errno.EADDRINUSE:
        return ""
    name, _, address = _line(error).partition(" at ")
    host = address.partition(": ")[0].rpartition(":")[0]
    option = f"--rest {host}:0" if name == "rest" else f"--serve {name}={host}:0"
    return f"; choose another, or let the system choose a free one: {option}"


def _line(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return (
        f"{error.filename}: {error.strerror}"
        if error.filename
        else str(error.strerror or error)
    )
