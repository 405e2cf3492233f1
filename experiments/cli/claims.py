"""Commands for GPUs as resources, and for claims, by which GPUs belong together without a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ringlight.experiments.cli.calls import Json, call, get, list_of
from ringlight.experiments.cli.common import Column, answer, fail, listing

Name = Annotated[str, typer.Argument(metavar="CLAIM")]

claim = typer.Typer(
    help="GPUs that belong together without a job.", no_args_is_help=True
)

_GPU_COLUMNS: tuple[Column, ...] = (
    ("GPU", "name"),
    "state",
    ("owner", lambda gpu: gpu["job"] or gpu["claim"] or ""),
    ("attached to", lambda gpu: " ".join(gpu["attached"]) or "dark"),
    ("address", "ip"),
    ("host", lambda gpu: gpu["host"]["kind"] if gpu["host"] else ""),
    ("namespace", lambda gpu: (gpu["host"] or {}).get("namespace") or ""),
)
_CLAIM_COLUMNS: tuple[Column, ...] = (
    ("claim", "name"),
    "state",
    ("GPUs", lambda claim: " ".join(claim["gpus"])),
    (
        "attached to",
        lambda claim: " ".join(
            sorted({p for ports in claim["attached"].values() for p in ports})
        ),
    ),
    ("fibres moved", "fibres_moved"),
    ("reason", lambda claim: claim["reason"] or ""),
)


def gpus(
    host: Annotated[
        str, typer.Option(metavar="GPU", help="First make an idle host at this GPU.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the owner of each GPU, its attachment, and the network namespace at its NIC.

    Examples:
        ringlight gpus
        ringlight gpus --host g0
    """
    if host:
        call("PUT", f"/v1/gpus/{host}/host")
    list_of("/v1/gpus", as_json, *_GPU_COLUMNS)


@claim.command("list")
def claim_list(as_json: Json = False) -> None:
    """Show all claims. A job on packet switches is also a claim.

    Examples:
        ringlight claim list
    """
    list_of("/v1/claims", as_json, *_CLAIM_COLUMNS)


@claim.command("add")
def claim_add(
    name: Name,
    gpus: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GPU…]", help="GPUs in ring order."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="So many free GPUs, in place of names.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, max=20, help="Longest wait for the light, seconds.")
    ] = 20.0,
    as_json: Json = False,
) -> None:
    """Claim GPUs: circuits bring them together, and no other client gets them.

    Exit code 1 if the circuits cannot be moved.

    Examples:
        ringlight claim add slurm-42 g0 g3
        ringlight claim add slurm-43 --count 2
    """
    body: dict[str, Any] = {"name": name, "wait_s": wait}
    if gpus:
        body["gpus"] = gpus
    if count is not None:
        body["count"] = count
    if len(body) != 3:
        fail("give either GPUs or --count", 2)
    reply = call("POST", "/v1/claims", body)
    answer(reply, as_json, lambda claim: listing([claim], *_CLAIM_COLUMNS))
    if reply["state"] == "FAILED":
        raise typer.Exit(1)


@claim.command("release")
def claim_release(name: Name, as_json: Json = False) -> None:
    """Release a claim. Its circuits stay.

    Examples:
        ringlight claim release slurm-42
    """
    reply = call("DELETE", f"/v1/claims/{name}")
    answer(reply, as_json, lambda claim: listing([claim], *_CLAIM_COLUMNS))


@claim.command("show")
def claim_show(name: Name, as_json: Json = False) -> None:
    """Show one claim.

    Examples:
        ringlight claim show slurm-42
    """
    reply = get(f"/v1/claims/{name}")
    answer(reply, as_json, lambda claim: listing([claim], *_CLAIM_COLUMNS))
