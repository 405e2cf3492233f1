"""Commands that look into a lab: captures, pictures of its fabric, and what its nodes are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ringlight.experiments.cli import calls, options
from ringlight.experiments.cli.common import Interrupted, answer, echo, fail, listing, say, show_json

if TYPE_CHECKING:
    from ringlight.experiments.client import Api
    from ringlight.fabric.parts import Port
    from ringlight.fabric.topology import Fabric
    from ringlight.testbed.emulation.attached import Attached

PANEL = "Hands in a lab"

LabId = Annotated[
    str | None, typer.Option("--lab", metavar="LAB", help="Lab id; default: the only lab that is up.")
]


def controller_of(lab: Attached) -> None:
    """The lab's own controller is asked, unless another was named."""
    if lab.rest is not None and calls.address["controller"] == options.REST:
        calls.is_at(lab.rest, lab.cacert)


# --- captures


def capture(
    port: Annotated[
        str,
        typer.Argument(metavar="PORT", help="Port, such as tor0:1, ocs0:3 or g0:0; g0: the NIC of a GPU."),
    ],
    write: Annotated[
        Path | None, typer.Option("--write", "-w", help="Write a pcap file; default: print text.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="End after this many packets.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--time", "-t", min=0.1, max=86_400, help="End after this many seconds.")
    ] = None,
    direction: Annotated[
        Literal["in", "out", "inout"],
        typer.Option("--direction", help="Packets that come in (in), leave (out), or both (inout)."),
    ] = "inout",
    lab_id: LabId = None,
    as_json: options.Json = False,
) -> None:
    """Capture what passes a port, until Ctrl-C. On a WDM ring a packet's colour is its VLAN tag less 1."""
    from ringlight.extensions.console import capture as taps
    from ringlight.testbed.emulation.attached import attach

    if as_json and write is None:
        fail("--json needs --write: packets as text go to standard output", 2)
    lab = attach(lab_id)
    tap = taps.tap_of(lab, port)
    if write is not None:
        # Last: an old file is emptied by it.
        taps.check_writable(write)
    command = taps.command(tap, direction, None if write is None else str(write), count)
    what = f"{port} ({tap.interface})"
    with taps.capturing(command, lab, what) as capturing:
        say(f"capturing at {what}; Ctrl-C ends it")
        try:
            if not capturing.ended(seconds):
                say(f"{seconds:g} s are over")
        except Interrupted as error:
            # As tcpdump: who is told to end has had what was wanted.
            if error.number not in (signal.SIGINT, signal.SIGTERM):
                raise
    if capturing.dropped is not None:
        say(f"{capturing.dropped}: the capture is not whole")
    if write is None:
        return
    seen = taps.read(write)
    document = {
        "port": port,
        "file": str(write),
        "packets": sum(interface.packets for interface in seen),
        "bytes": sum(interface.bytes for interface in seen),
        "by_colour": [{"channel": s.channel, "packets": s.packets, "bytes": s.bytes} for s in seen],
    }

    def show(_: object) -> None:
        echo(f"{write}: {document['packets']} packets, {document['bytes']} bytes")
        if tap.tagged:
            for line in taps.described(seen):
                echo(f"  {line}")

    answer(document, as_json, show)


# --- pictures


@options.with_groups
def graph(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[LAB|SCENARIO]",
            help="Lab id, or a scenario file, which needs no lab; without it, the only lab that is up.",
        ),
    ] = None,
    form: Annotated[
        Literal["mermaid", "dot", "graphml"], typer.Option("--format", "-f", help="Language of the picture.")
    ] = "mermaid",
    *,
    place: options.Place,
) -> None:
    """A fabric as Mermaid, DOT or GraphML: nodes, cables, and the circuits that are lit."""
    from ringlight.extensions.console import graphs

    forms: dict[str, Callable[[Any], str]] = {
        "mermaid": graphs.mermaid,
        "dot": graphs.dot,
        "graphml": graphs.graphml,
    }
    fabric, circuits = _fabric_of(where, place)
    echo(forms[form](graphs.plugged_graph(fabric, circuits)), nl=False)


def is_scenario(where: str | None) -> bool:
    """Return whether ``where`` names a scenario file and not a lab; False for None."""
    return where is not None and (Path(where).suffix in (".yaml", ".yml") or "/" in where)


def _fabric_of(where: str | None, place: options.Place) -> tuple[Fabric, Iterable[tuple[Port, Port]]]:
    """A fabric and its lit circuits: those that a scenario begins with, or of a lab those of now."""
    from ringlight.fabric.planes.divided.plugged import plugged

    if where is not None and is_scenario(where):
        fabric = plugged(place.setting(Path(where)).fabric)
        return fabric, fabric.circuits
    from ringlight.testbed.emulation.attached import attach

    lab = attach(where)
    controller_of(lab)
    return lab.fabric, _lit()


def _lit() -> list[tuple[Port, Port]]:
    from ringlight.fabric.parts import Port

    circuits = calls.get("/v1/circuits")["circuits"]
    return [(Port.parse(circuit["ends"][0]), Port.parse(circuit["ends"][1])) for circuit in circuits]


# --- what there is


def inspect(
    where: Annotated[
        str | None, typer.Argument(metavar="[LAB]", help="Lab id; default: the only lab that is up.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="List the labs that are up.")] = False,
    as_json: options.Json = False,
) -> None:
    """Nodes of a lab: kind, state and addresses."""
    from ringlight.testbed import services
    from ringlight.testbed.emulation.attached import attach, labs_up, of_lab
    from ringlight.testbed.lab import Lab

    if every:
        if os.geteuid() != 0:
            fail(services.root_needed("look into a lab"))
        labs = [_about(of_lab(Lab(name))) for name in labs_up()]
        answer(labs, as_json, lambda entries: listing(entries, "lab", "runtime", "scenario", "nodes", "rest"))
        return
    lab = attach(where)
    controller_of(lab)
    nodes = [*_nodes(lab)]
    if as_json:
        show_json({**_about(lab), "nodes": nodes})
    else:
        listing(nodes, "name", "kind", "state", "address", ("interfaces in", "namespace"))


def _about(lab: Attached) -> dict[str, Any]:
    about = {"lab": lab.lab.id, "runtime": lab.inventory["runtime"], "nodes": len(lab.nodes)}
    controller = lab.inventory.get("processes", {}).get("controller")
    return {**about, "scenario": lab.scenario, "rest": lab.rest, "controller": controller}


def _nodes(lab: Attached) -> Iterator[dict[str, Any]]:
    hosts = lab.hosts(fill=False)
    with _asking() as api:
        connected = {} if api is None else {s["name"]: s["connected"] for s in api.get("/v1/packet-switches")}
    switches = lab.fabric.packet_switches
    for name, kind in lab.nodes.items():
        if kind == "gpu":
            host = hosts[name]
            state = {"none": "free", "idle": "free, with an idle host"}.get(host["kind"])
            state = state or f"rank {host['rank']} of {host['job']}"
            if host["kind"] == "worker" and host["namespace"] is None:
                state += ", not running"
            where = host.get("container") or host["namespace"] or ""
            yield _node(name, kind, state, host["ip"], where.rpartition("/run/netns/")[2])
            continue
        address, alive = _process_of(lab, name)
        if alive is None:
            reached = connected.get(name)
            status = {True: "connected", False: "not connected", None: "controller does not say"}[reached]
            if name in switches and not switches[name].is_ours:
                status = f"left to {switches[name].controller}"
            yield _node(name, kind, status, address, "")
        else:
            yield _node(name, kind, "running" if alive else "not running", address, lab.lab.namespace(name))


def _node(name: str, kind: str, state: str, address: str, namespace: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "state": state, "address": address, "namespace": namespace}


def _process_of(lab: Attached, name: str) -> tuple[str, bool | None]:
    """A node's management address, and whether its process runs; None where it has none of its own."""
    inventory = lab.inventory
    if name in inventory["packet_switches"]:
        return f"bridge {inventory['packet_switches'][name]['bridge']}", None
    entry = inventory["optical_switches"].get(name) or inventory.get("averagers", {}).get(name)
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
    """Add these commands."""
    for command in (capture, graph, inspect):
        app.command(rich_help_panel=PANEL)(command)
