"""``ringlight ocs fault …``: faults of emulated optical switches, while they run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringlight.experiments.cli.calls import Json, address, call
from ringlight.experiments.cli.common import answer, echo, fail, listing, patience

Where = Annotated[
    str,
    typer.Argument(
        metavar="SWITCH",
        help="Name of the switch in the controller's lab; or HOST:PORT, an emulated switch's own REST API.",
    ),
]

commands = typer.Typer(
    help="Faults of emulated optical switches, injected while they run.",
    no_args_is_help=True,
)


def _call(where: str, method: str, path: str = "", body: Any = None) -> Any:
    if ":" not in where:
        return call(method, f"/v1/optical-switches/{where}/faults{path}", body)
    from ringlight.experiments.client import Api

    with (
        Api(where, address["token"] or None, "emulated switch") as switch,
        patience(f"waiting for {where}"),
    ):
        return switch.call(method, f"/v1/faults{path}", body)


def _detail(fault: Mapping[str, Any]) -> str:
    keys = ("protocol", "seconds", "port", "ingress", "egress", "wavelength")
    return ", ".join(
        f"{key} {fault[key]:g}" if key == "seconds" else f"{key} {fault[key]}"
        for key in keys
        if fault[key] is not None
    )


def _write(faults: list[Mapping[str, Any]]) -> None:
    if not faults:
        echo("no faults")
        return
    left = (
        "left",
        lambda fault: "until cleared" if fault["left"] is None else fault["left"],
    )
    listing(faults, "id", "kind", "probability", "hits", left, ("", _detail))


@commands.command("list")
def list_faults(switch: Where, as_json: Json = False) -> None:
    """List faults in force, and how often each has acted.

    Examples:
        ringlight ocs fault list ocs0
    """
    answer(_call(switch, "GET"), as_json, _write)


@commands.command()
def add(
    switch: Where,
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="deny, half, lose-reply, drop, slow, never-tunes, ghost, vanish, foreign-writer, autonomous,"
            " garbage, truncate, slow-drip, late or port-failed.",
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option(
            min=1, help="Largest number of times; default: until it is cleared."
        ),
    ] = None,
    probability: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Probability that it acts, each time that it could."
        ),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random choices.")] = 0,
    protocol: Annotated[
        str | None,
        typer.Option(help="Only for clients of this protocol, such as scpi."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Time, for lose-reply, slow, vanish, slow-drip and late."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, help="The port that fails.")
    ] = None,
    connects: Annotated[
        str | None,
        typer.Option(
            metavar="INGRESS-EGRESS[@WAVELENGTH]",
            help="What a foreign writer connects; default: random.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Inject a fault; it is in force when this ends.

    Examples:
        ringlight ocs fault add ocs0 vanish --count 1
        ringlight ocs fault add ocs0 slow --seconds 0.5 --protocol scpi
    """
    body: dict[str, Any] = {
        "kind": kind,
        "count": count,
        "probability": probability,
        "seed": seed,
        "protocol": protocol,
        "seconds": seconds,
        "port": port,
    }
    if connects is not None:
        match = re.fullmatch(r"(\d+)-(\d+)(?:@(\d+))?", connects)
        if match is None:
            fail(f"{connects!r} is not INGRESS-EGRESS, such as 1-21", 2)
        keys = ("ingress", "egress", "wavelength")
        body |= {
            key: int(text)
            for key, text in zip(keys, match.groups(), strict=True)
            if text is not None
        }
    answer(_call(switch, "POST", "", body), as_json, lambda reply: _write([reply]))


@commands.command()
def clear(
    switch: Where,
    fault: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]", help="Number of the fault; default: all of them."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """End a fault and repair its effects.

    Examples:
        ringlight ocs fault clear ocs0
        ringlight ocs fault clear ocs0 1
    """
    reply = _call(switch, "DELETE", "" if fault is None else f"/{fault}")

    def write(reply: Mapping[str, Any]) -> None:
        echo(f"cleared: {', '.join(map(str, reply['cleared'])) or 'there were none'}")

    answer(reply, as_json, write)
