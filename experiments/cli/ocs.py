"""``ringlight ocs …``: the optical switches of a running controller, their light, and who changed it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ringlight.experiments.cli import ocs_faults
from ringlight.experiments.cli.calls import (
    DryRun,
    Json,
    Switch,
    arrow,
    call,
    get,
    list_of,
    write_plan,
)
from ringlight.experiments.cli.common import (
    Column,
    answer,
    echo,
    fail,
    listing,
    show_json,
    table,
)
from ringlight.experiments.cli.ocs_serve import serve

Mode = Annotated[
    str,
    typer.Option(
        help="safe: refuse busy ports; update: reuse them; replace: remove all other cross-connects."
    ),
]
Changes = Annotated[
    list[str],
    typer.Argument(
        metavar="SWITCH:INGRESS-EGRESS[@WAVELENGTH]…",
        help="Such as ocs0:1-21 ocs1:7-15@3; SWITCH:INGRESS- removes that ingress's cross-connect.",
    ),
]
Ports = Annotated[list[int], typer.Argument(metavar="PORT…", min=1)]

_CHANGE = re.compile(r"([^:]+):(\d+)-(?:(\d+)(?:@(\d+))?)?")

commands = typer.Typer(
    help="Optical switches: ports, cross-connects, alarms, changes, policies.",
    no_args_is_help=True,
)
commands.command()(serve)
commands.add_typer(ocs_faults.commands, name="fault")


# --- reading


@commands.command("list")
def list_switches(as_json: Json = False) -> None:
    """Optical switches and whether they answer.

    Examples:
        ringlight ocs list
    """
    keys = ("size", "driver", "reachable", "cross_connects", "alarms")
    list_of("/v1/optical-switches", as_json, ("switch", "name"), *keys)


@commands.command()
def show(switch: Switch, as_json: Json = False) -> None:
    """Cross-connects of an optical switch, read from it now.

    Examples:
        ringlight ocs show ocs0
    """
    cross_connects = get(f"/v1/optical-switches/{switch}/cross-connects")
    if as_json:
        show_json(
            {**get(f"/v1/optical-switches/{switch}"), "cross_connects": cross_connects}
        )
    else:
        listing(cross_connects, "ingress", "egress", "wavelength", "state", "name")


@commands.command()
def ports(switch: Switch, as_json: Json = False) -> None:
    """Ports of an optical switch: attached node, state, and the optical power measured now.

    Examples:
        ringlight ocs ports ocs0
    """
    enabled: Column = ("", lambda port: "" if port["enabled"] else "disabled")
    power: Column = (
        "dBm",
        lambda port: "" if port["power_dbm"] is None else f"{port['power_dbm']:.1f}",
    )
    xcs: Column = (
        "cross-connect",
        lambda port: ", ".join(map(arrow, port["cross_connects"])),
    )
    keys = ("port", "side", "faceplate", "plugged", "state")
    reply = get(f"/v1/optical-switches/{switch}/ports", power=True)
    answer(reply, as_json, lambda reply: listing(reply, *keys, power, enabled, xcs))


@commands.command()
def alarms(
    switch: Annotated[
        str, typer.Argument(metavar="[SWITCH]", help="Optical switch; default: all.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Active alarms.

    Examples:
        ringlight ocs alarms
        ringlight ocs alarms ocs0
    """
    reply = get(
        f"/v1/optical-switches/{switch}/alarms" if switch else "/v1/optical-alarms"
    )
    keys = (*(() if switch else ("switch",)), "kind", "port", "text")
    answer(
        reply,
        as_json,
        lambda reply: listing(reply, *keys) if reply else echo("no alarms"),
    )


@commands.command()
def audit(
    switch: Annotated[
        str | None, typer.Option(help="Only changes of this switch.")
    ] = None,
    before: Annotated[
        int | None, typer.Option(min=0, help="Only entries older than this one.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest number of entries.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """Show who changed what, and when; the newest last.

    Examples:
        ringlight ocs audit
        ringlight ocs audit --switch ocs0 --limit 10
    """
    entries = get("/v1/optical-audit", switch=switch, before=before, limit=limit)[::-1]
    detail: Column = ("", _detail)
    keys = ("id", ("UTC", "at"), "who", "action", "switch", "outcome")
    answer(entries, as_json, lambda entries: listing(entries, *keys, detail))


def _detail(entry: Mapping[str, Any]) -> str:
    fields = {
        key: value for key, value in entry["detail"].items() if value not in ([], None)
    }
    return "; ".join(
        f"{key} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in fields.items()
    )


@commands.command()
def intent(switch: Switch, as_json: Json = False) -> None:
    """Show the cross-connects that an optical switch should carry, and the differences.

    Examples:
        ringlight ocs intent ocs0
    """
    answer(get(f"/v1/optical-switches/{switch}/intent"), as_json, _write_intent)


def _write_intent(reply: Mapping[str, Any]) -> None:
    differ = {arrow(xc): what for what, group in reply["drift"].items() for xc in group}
    rows = [
        [arrow(xc), xc["name"], differ.pop(arrow(xc), "")]
        for xc in reply["cross_connects"]
    ]
    table(
        ["cross-connect", "name", ""],
        [*rows, *([xc, "", what] for xc, what in differ.items())],
    )
    kept = (
        ""
        if reply["job"] is None
        else f"; kept for job {reply['job']}, whose light this does not show"
    )
    echo(f"policy: {reply['policy']}{kept}")


# --- changing


@commands.command()
def connect(
    switch: Switch,
    ingress: int,
    egress: int,
    wavelength: Annotated[
        int | None, typer.Option(min=0, help="Channel; only a WSS needs one.")
    ] = None,
    mode: Mode = "update",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Connect an ingress (1..N) to an egress (N+1..2N): one direction of light.

    Examples:
        ringlight ocs connect ocs0 3 24 --mode update --dry-run
    """
    body = {
        "egress": egress,
        "wavelength": wavelength,
        "mode": mode,
        "dry_run": dry_run,
    }
    path = f"/v1/optical-switches/{switch}/cross-connects/{ingress}"
    _change("PUT", path, body, as_json, _write_change)


@commands.command()
def disconnect(
    switch: Switch, ingress: int, dry_run: DryRun = False, as_json: Json = False
) -> None:
    """Remove the cross-connect of an ingress.

    Examples:
        ringlight ocs disconnect ocs0 3 --dry-run
    """
    path = f"/v1/optical-switches/{switch}/cross-connects/{ingress}"
    _change("DELETE", path, None, as_json, _write_change, dry_run=dry_run)


@commands.command()
def replace(
    switch: Switch,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="INGRESS-EGRESS…")
    ] = None,
    mode: Mode = "replace",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Set exactly these cross-connects (such as 1-21 7-15); none at all clears the switch.

    Examples:
        ringlight ocs replace ocs0 1-21 2-22 --dry-run
    """
    cross_connects = []
    for text in pairs or []:
        ingress, _, egress = text.partition("-")
        if not (ingress.isdigit() and egress.isdigit()):
            fail(f"{text!r} is not INGRESS-EGRESS, such as 1-21", 2)
        cross_connects.append({"ingress": int(ingress), "egress": int(egress)})
    body = {"mode": mode, "cross_connects": cross_connects, "dry_run": dry_run}
    path = f"/v1/optical-switches/{switch}/cross-connects"
    _change("PUT", path, body, as_json, _write_change)


@commands.command()
def plan(changes: Changes, mode: Mode = "update", as_json: Json = False) -> None:
    """Show what `apply` with the same words would do; change nothing.

    Examples:
        ringlight ocs plan ocs0:3-24 ocs0:9-
    """
    _apply(changes, mode, as_json, dry_run=True)


@commands.command()
def apply(changes: Changes, mode: Mode = "update", as_json: Json = False) -> None:
    """Change some optical switches, all or none of them, with the forwarding rules in between.

    Examples:
        ringlight ocs apply ocs0:3-24 ocs0:9- --mode update
    """
    _apply(changes, mode, as_json, dry_run=False)


def _apply(changes: list[str], mode: str, as_json: bool, *, dry_run: bool) -> None:
    targets: dict[str, dict[str, Any]] = {}
    for text in changes:
        match = _CHANGE.fullmatch(text)
        if match is None:
            fail(f"{text!r} is not SWITCH:INGRESS-EGRESS, such as ocs0:1-21", 2)
        switch, ingress, egress, colour = match.groups()
        target = targets.setdefault(
            switch, {"mode": mode, "cross_connects": [], "delete": []}
        )
        if egress is None:
            target["delete"].append(int(ingress))
        else:
            wavelength = None if colour is None else int(colour)
            entry = {
                "ingress": int(ingress),
                "egress": int(egress),
                "wavelength": wavelength,
            }
            target["cross_connects"].append(entry)

    def write(reply: Mapping[str, Any]) -> None:
        for name, change in reply["optical_switches"].items():
            echo(name)
            _write_change(change)

    body = {"optical_switches": targets, "dry_run": dry_run}
    _change("POST", "/v1/optical-changes", body, as_json, write)


def _change(
    method: str,
    path: str,
    body: Any,
    as_json: bool,
    write: Callable[[Any], None],
    **query: Any,
) -> None:
    """Ask for a change; where a part of it could not be taken back, say which."""
    from ringlight.experiments.client import ApiError

    try:
        answer(call(method, path, body, **query), as_json, write)
    except ApiError as error:
        reply = error.document if isinstance(error.document, dict) else {}
        if as_json and "undone" in reply:
            show_json(reply)
        elif reply.get("left"):
            listing(
                reply["left"], "switch", ("cross-connect", arrow), "found", "reason"
            )
        raise


def _write_change(change: Mapping[str, Any]) -> None:
    write_plan(change)
    for result in change["results"]:
        if result.get("reason"):
            echo(f"{arrow(result)}: {result['state']} ({result['reason']})")


@commands.command()
def enable(switch: Switch, ports: Ports, as_json: Json = False) -> None:
    """Enable ports of an optical switch.

    Examples:
        ringlight ocs enable ocs0 3
    """
    _set_ports(switch, ports, as_json, enabled=True)


@commands.command()
def disable(switch: Switch, ports: Ports, as_json: Json = False) -> None:
    """Disable ports of an optical switch; their cross-connects stay, without light.

    Examples:
        ringlight ocs disable ocs0 3 4
    """
    _set_ports(switch, ports, as_json, enabled=False)


def _set_ports(switch: str, ports: list[int], as_json: bool, *, enabled: bool) -> None:
    path = f"/v1/optical-switches/{switch}/ports"
    replies = [call("PUT", f"{path}/{port}", {"enabled": enabled}) for port in ports]
    answer(
        replies, as_json, lambda replies: listing(replies, "port", "state", "enabled")
    )


# --- changes that the controller did not make


@commands.command()
def policy(
    new: Annotated[
        str,
        typer.Argument(
            metavar="[POLICY]",
            help="mend: restore missing cross-connects, keep added ones; repair: restore the intended state;"
            " adopt: accept the present state; alarm: only report it; default (with --switch): the general policy.",
        ),
    ] = "",
    switch: Annotated[str, typer.Option(help="Only for this switch.")] = "",
    as_json: Json = False,
) -> None:
    """Set what happens to changes that the controller did not make; without POLICY, show it.

    Examples:
        ringlight ocs policy
        ringlight ocs policy alarm --switch ocs0
    """
    if new == "default" and not switch:
        fail("policy default: of which --switch?", 2)
    if new:
        path = (
            f"/v1/optical-switches/{switch}/policy" if switch else "/v1/optical-policy"
        )
        reply = call("PUT", path, {"policy": None if new == "default" else new})
    else:
        reply = get("/v1/optical-policy")

    def write(reply: Mapping[str, Any]) -> None:
        rows = [
            [name, policy, "its own" if name in reply["own"] else ""]
            for name, policy in reply["optical_switches"].items()
            if switch in ("", name)
        ]
        table(["switch", "policy", ""], rows)
        echo(f"all others: {reply['policy']}")

    answer(reply, as_json, write)


@commands.command()
def settle(
    switch: Switch,
    how: Annotated[str, typer.Argument(metavar="mend|repair|adopt")],
    as_json: Json = False,
) -> None:
    """Apply a policy once, now, to the differences on a switch.

    Examples:
        ringlight ocs settle ocs0 adopt
    """
    reply = call("POST", f"/v1/optical-switches/{switch}/settle", {"how": how})
    answer(reply, as_json, _write_intent)
