"""Command that says which labs are up, and what the nodes of one are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ringlight.experiments.cli import calls, options
from ringlight.experiments.cli.common import answer, fail, listing, say, show_json

if TYPE_CHECKING:
    from ringlight.experiments.client import Api
    from ringlight.testbed.emulation.attached import Attached


def inspect(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAB]", help="Lab id; default: the only lab that is up."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="List the labs that are up.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Nodes of a lab: kind, state and addresses.

    Examples:
        ringlight inspect
        ringlight inspect --all
    """
    from ringlight.testbed import services
    from ringlight.testbed.emulation.attached import attach, labs_up, of_lab
    from ringlight.testbed.lab import Lab

    if every:
        if os.geteuid() != 0:
            fail(services.root_needed("look into a lab"))
        labs = [_about(of_lab(Lab(name))) for name in labs_up()]
        answer(
            labs,
            as_json,
            lambda entries: listing(
                entries, "lab", "runtime", "scenario", "nodes", "rest"
            ),
        )
        return
    lab = attach(where)
    calls.ask_controller_of(lab)
    nodes = [*_nodes(lab)]
    if as_json:
        show_json({**_about(lab), "nodes": nodes})
    else:
        listing(
            nodes, "name", "kind", "state", "address", ("interfaces in", "namespace")
        )


def _about(lab: Attached) -> dict[str, Any]:
    about = {
        "lab": lab.lab.id,
        "runtime": lab.inventory["runtime"],
        "nodes": len(lab.nodes),
    }
    controller = lab.inventory.get("processes", {}).get("controller")
    return {
        **about,
        "scenario": lab.scenario,
        "rest": lab.rest,
        "controller": controller,
    }


def _nodes(lab: Attached) -> Iterator[dict[str, Any]]:
    hosts = lab.hosts(fill=False)
    with _asking() as api:
        connected = (
            {}
            if api is None
            else {s["name"]: s["connected"] for s in api.get("/v1/packet-switches")}
        )
    switches = lab.fabric.packet_switches
    for name, kind in lab.nodes.items():
        if kind == "gpu":
            host = hosts[name]
            state = {"none": "free", "idle": "free, with an idle host"}.get(
                host["kind"]
            )
            state = state or f"rank {host['rank']} of {host['job']}"
            if host["kind"] == "worker" and host["namespace"] is None:
                state += ", not running"
            where = host.get("container") or host["namespace"] or ""
            yield _node(
                name, kind, state, host["ip"], where.rpartition("/run/netns/")[2]
            )
            continue
        address, alive = _process_of(lab, name)
        if alive is None:
            reached = connected.get(name)
            status = {
                True: "connected",
                False: "not connected",
                None: "controller does not say",
            }[reached]
            if name in switches and not switches[name].is_ours:
                status = f"left to {switches[name].controller}"
            yield _node(name, kind, status, address, "")
        else:
            yield _node(
                name,
                kind,
                "running" if alive else "not running",
                address,
                lab.lab.namespace(name),
            )


def _node(
    name: str, kind: str, state: str, address: str, namespace: str
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "state": state,
        "address": address,
        "namespace": namespace,
    }


def _process_of(lab: Attached, name: str) -> tuple[str, bool | None]:
    """A node's management address, and whether its process runs; None where it has none of its own."""
    inventory = lab.inventory
    if name in inventory["packet_switches"]:
        return f"bridge {inventory['packet_switches'][name]['bridge']}", None
    parts = [part for part in inventory.values() if isinstance(part, dict)]
    entry = next((part[name] for part in parts if name in part), None)
    if entry is None:
        entry = inventory["onics"][name.removeprefix("onic-")]
    address = entry.get("address") or entry.get("control") or ""
    if "bridge" in entry:
        return f"bridge {entry['bridge']}", None
    # An array of transmitters has no agent: what it does is in the kernel.
    return address, "pid" not in entry or Path("/proc", str(entry["pid"])).exists()


@contextmanager
def _asking() -> Iterator[Api | None]:
    """Yield the controller, or None if it does not answer."""
    from ringlight.experiments.client import Unreachable

    with calls.connection() as api:
        try:
            api.get("/v1/health")
        except Unreachable as error:
            say(str(error))
            yield None
            return
        yield api


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.MACHINE)(inspect)
