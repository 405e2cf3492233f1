"""Commands for end-to-end circuits: show them, set all of them, or change some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringlight.experiments.cli.calls import DryRun, Json, call, list_of, write_plan
from ringlight.experiments.cli.common import Column, answer, echo, fail


def _state(circuit: Mapping[str, Any]) -> str:
    """Return a circuit's directions, and whether its GPU is lost, as the text of a table cell."""
    ways = "both ways" if circuit["duplex"] else "one way"
    return f"{ways}, GPU lost" if circuit["lost"] else ways


CIRCUIT_COLUMNS: tuple[Column, ...] = (
    ("from", lambda circuit: circuit["ends"][0]),
    ("to", lambda circuit: circuit["ends"][1]),
    ("path of the light", lambda circuit: " ".join(circuit["path"])),
    ("", _state),
)

circuits = typer.Typer(
    help="End-to-end circuits over all optical switches.", no_args_is_help=True
)


@circuits.command("show")
def circuits_show(as_json: Json = False) -> None:
    """Show the current circuits.

    Examples:
        ringlight circuits show
    """
    list_of("/v1/circuits", as_json, *CIRCUIT_COLUMNS, of="circuits")


@circuits.command("set")
def circuits_set(
    pairs: Annotated[
        list[str], typer.Argument(metavar="A=B…", help="Such as g0=tor0:1 g1=tor0:2.")
    ],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set exactly these circuits, and update the forwarding rules.

    Examples:
        ringlight circuits set g0=tor0:1 g1=tor0:2 --dry-run
    """
    body = {"circuits": [_ends(text) for text in pairs], "dry_run": dry_run}
    answer(call("PUT", "/v1/circuits", body), as_json, _write_change)


@circuits.command("change")
def circuits_change(
    add: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A=B",
            help="Such as g0=tor1:2; g0=tor1 for g0's own or any free port of tor1.",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="A=B", help="Such as g0=tor0:1.")
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Add some circuits and remove others; the rest stays lit.

    Examples:
        ringlight circuits change --add g0=tor1 --dry-run
        ringlight circuits change --remove g0=tor0:1
    """
    if not (add or remove):
        fail("name a circuit with --add or --remove", 2)
    body = {
        "add": [_ends(text) for text in add or ()],
        "remove": [_ends(text) for text in remove or ()],
        "dry_run": dry_run,
    }
    answer(call("PATCH", "/v1/circuits", body), as_json, _write_change)


def _ends(text: str) -> list[str]:
    a, equals, b = text.partition("=")
    if not (a and equals and b):
        fail(f"{text!r} is not A=B, such as g0=tor0:1", 2)
    return [a, b]


def _write_change(reply: Any) -> None:
    for name, change in reply["optical_switches"].items():
        echo(name)
        write_plan(change)
