"""``ringlight slices``: slices of a running lab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringlight.experiments.cli.calls import Json, call, get, list_of
from ringlight.experiments.cli.common import Column, answer, listing, table
from ringlight.experiments.cli.rest import PANEL

Name = Annotated[str, typer.Argument(metavar="SLICE")]
Wait = Annotated[
    float, typer.Option(min=0, max=20, help="Longest wait for the light, seconds.")
]

slices = typer.Typer(
    help="Slices: cubes of GPUs that light joins into tori.", no_args_is_help=True
)


def _ready(document: Mapping[str, Any]) -> Mapping[str, Any]:
    condition: Mapping[str, Any] = document["status"]["conditions"][0]
    return condition


_COLUMNS: tuple[Column, ...] = (
    ("slice", lambda document: document["metadata"]["name"]),
    ("type", lambda document: document["spec"]["type"]),
    ("topology", lambda document: document["spec"]["topology"]),
    ("partitions", lambda document: " ".join(document["spec"]["partitionIds"])),
    ("ready", lambda document: _ready(document)["status"]),
    ("reason", lambda document: _ready(document)["reason"]),
    ("message", lambda document: _ready(document)["message"]),
)


def _show(reply: Mapping[str, Any], as_json: bool) -> None:
    answer(reply, as_json, lambda document: listing([document], *_COLUMNS))


@slices.command("list")
def slice_list(as_json: Json = False) -> None:
    """Show all slices, and those that could not be made.

    Examples:
        ringlight slices list
    """
    list_of("/v1/slices", as_json, *_COLUMNS, of="items")


@slices.command("show")
def slice_show(name: Name, as_json: Json = False) -> None:
    """Show one slice.

    Examples:
        ringlight slices show red
    """
    _show(get(f"/v1/slices/{name}"), as_json)


@slices.command("gpus")
def slice_gpus(name: Name, as_json: Json = False) -> None:
    """Show the GPUs of a slice, by cube, and in the order of a ring through its torus.

    Examples:
        ringlight slices gpus red
    """

    def write(reply: Mapping[str, Any]) -> None:
        rows = [[cube, " ".join(gpus)] for cube, gpus in reply["gpus"].items()]
        table(["partition", "GPUs"], [*rows, ["ring", " ".join(reply["ring"])]])

    answer(get(f"/v1/slices/{name}/gpus"), as_json, write)


@slices.command("create")
def slice_create(
    name: Name,
    topology: Annotated[str, typer.Argument(help="Sides in GPUs, such as 4x4x8.")],
    partitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CUBE…]", help="By default the first free cubes."),
    ] = None,
    twisted: Annotated[
        bool, typer.Option("--twisted", help="A twisted torus; sides n and 2n.")
    ] = False,
    wait: Wait = 20.0,
    as_json: Json = False,
) -> None:
    """Join cubes into a torus by light.

    Exit code 1 if there is no such slice, or the circuits cannot be set.

    Examples:
        ringlight slices create red 2x2x4
        ringlight slices create blue 2x2x4 c4 c6 --twisted
    """
    fabric = get("/v1/fabric")
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {
            "type": fabric["gpus"][0]["model"],
            "topology": topology,
            "partitionIds": partitions or [],
        },
    }
    if twisted:
        body["metadata"]["annotations"] = {"ringlight/twisted": "true"}
    reply = call("POST", "/v1/slices", body, wait_s=wait)
    _show(reply, as_json)
    if _ready(reply)["reason"] in ("SliceCreationFailed", "FAILED"):
        raise typer.Exit(1)


@slices.command("swap")
def slice_swap(
    name: Name,
    partition: Annotated[str, typer.Argument(metavar="CUBE")],
    spare: Annotated[
        str | None,
        typer.Argument(metavar="[SPARE]", help="By default the first free cube."),
    ] = None,
    wait: Wait = 20.0,
    as_json: Json = False,
) -> None:
    """Put a spare cube in the place of one, by moving its light. Other slices are not touched.

    Exit code 1 if the circuits cannot be moved.

    Examples:
        ringlight slices swap red c0
        ringlight slices swap red c0 c4
    """
    body = {"partition": partition, "spare": spare}
    reply = call("POST", f"/v1/slices/{name}/swap", body, wait_s=wait)
    _show(reply, as_json)
    if partition in reply["spec"]["partitionIds"]:
        raise typer.Exit(1)


@slices.command("delete")
def slice_delete(name: Name, wait: Wait = 20.0, as_json: Json = False) -> None:
    """End a slice: its circuits are removed, and its cubes are free.

    Examples:
        ringlight slices delete red
    """
    _show(call("DELETE", f"/v1/slices/{name}", wait_s=wait), as_json)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(slices, name="slices", rich_help_panel=PANEL)
