"""Call a running controller and print its replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli.common import (
    Column,
    answer,
    echo,
    listing,
    patience,
    table,
)
from ringlight.experiments.cli.options import REST

if TYPE_CHECKING:
    from ringlight.experiments.client import Api
    from ringlight.testbed.emulation.attached import Attached

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan; change nothing.")
]
Switch = Annotated[str, typer.Argument(metavar="SWITCH")]

#: Which controller is meant, as the options before the command say.
address = {"controller": REST, "token": "", "cacert": ""}


def connection() -> Api:
    from ringlight.experiments.client import Api

    # The certificate of a lab on this machine is known itself: it need not name this host.
    own = address.get("own")
    return Api(
        address["controller"],
        address["token"] or None,
        cacert=own or address["cacert"] or None,
        anywhere=own is not None,
    )


def is_at(rest: str, cacert: str | None) -> None:
    """Address the controller at ``rest``, of a lab on this machine, from now on.

    ``cacert``: its certificate, None without TLS.
    """
    address["controller"] = rest
    if cacert is not None:
        address["own"] = cacert


def ask_controller_of(lab: Attached) -> None:
    """Address the own controller of a lab from now on, unless another was named."""
    if lab.rest is not None and address["controller"] == REST:
        is_at(lab.rest, lab.cacert)


def call(method: str, path: str, body: Any = None, **query: Any) -> Any:
    with (
        connection() as api,
        patience(f"waiting for the controller at {address['controller']}"),
    ):
        return api.call(method, path, body, query)


def get(path: str, **query: Any) -> Any:
    return call("GET", path, **query)


def list_of(path: str, as_json: bool, *columns: Column, of: str | None = None) -> None:
    """GET a list and print it as a table, or as JSON. ``of``: key of the list in the reply, if the reply is
    an object.
    """
    answer(
        get(path), as_json, lambda reply: listing(reply[of] if of else reply, *columns)
    )


def arrow(xc: Mapping[str, Any] | None) -> str:
    """Return a cross-connect as the text of a table cell; "" for None."""
    if xc is None:
        return ""
    colour = "" if xc.get("wavelength") is None else f" λ{xc['wavelength']}"
    return f"{xc['ingress']} → {xc['egress']}{colour}"


def write_plan(change: Mapping[str, Any]) -> None:
    """Print the change of one switch: the cross-connects that it removes, adds and keeps."""
    rows = [
        [what, arrow(xc)]
        for what in ("remove", "add", "keep")
        for xc in change["plan"][what]
    ]
    table(["", "cross-connect"], rows)
    echo("done" if change["applied"] else "nothing was changed (dry run)")
