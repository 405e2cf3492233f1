"""Commands that look into a lab: captures of what passes a port, and pictures of its fabric."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ringlight.experiments.cli import calls, options
from ringlight.experiments.cli.common import Interrupted, answer, echo, fail, say

if TYPE_CHECKING:
    from ringlight.fabric.parts import Port
    from ringlight.fabric.topology import Fabric

PANEL = "Interactive lab commands"
LabId = Annotated[
    str | None,
    typer.Option(
        "--lab", metavar="LAB", help="Lab id; default: the only lab that is up."
    ),
]


def capture(
    port: Annotated[
        str,
        typer.Argument(
            metavar="PORT",
            help="Port, such as tor0:1, ocs0:3 or g0:0; g0: the NIC of a GPU.",
        ),
    ],
    write: Annotated[
        Path | None,
        typer.Option("--write", "-w", help="Write a pcap file; default: print text."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", min=1, help="End after this many packets."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--time", "-t", min=0.1, max=86_400, help="End after this many seconds."
        ),
    ] = None,
    direction: Annotated[
        Literal["in", "out", "inout"],
        typer.Option(
            "--direction",
            help="Packets that come in (in), leave (out), or both (inout).",
        ),
    ] = "inout",
    lab_id: LabId = None,
    as_json: options.Json = False,
) -> None:
    """Capture the packets of a port, until Ctrl-C. On a WDM ring a packet's colour is its VLAN tag less 1.

    Examples:
        ringlight capture ocs0:1 -c 10
        ringlight capture ocs0:1 -w fibre.pcap -t 10
    """
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
        "by_colour": [
            {"channel": s.channel, "packets": s.packets, "bytes": s.bytes} for s in seen
        ],
    }

    def show(_: object) -> None:
        echo(f"{write}: {document['packets']} packets, {document['bytes']} bytes")
        if tap.tagged:
            for line in taps.described(seen):
                echo(f"  {line}")

    answer(document, as_json, show)


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
        Literal["mermaid", "dot", "graphml"],
        typer.Option("--format", "-f", help="Language of the picture."),
    ] = "mermaid",
    *,
    place: options.Place,
) -> None:
    """Print a fabric as Mermaid, DOT or GraphML: nodes, cables, and current circuits.

    Examples:
        ringlight examples copy disaggregation
        ringlight graph disaggregation.yaml -f mermaid
        ringlight graph -f dot
    """
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
    return where is not None and (
        Path(where).suffix in (".yaml", ".yml") or "/" in where
    )


def _fabric_of(
    where: str | None, place: options.Place
) -> tuple[Fabric, Iterable[tuple[Port, Port]]]:
    """A fabric and its lit circuits: those that a scenario begins with, or of a lab those of now."""
    from ringlight.fabric.keys import plugged

    if where is not None and is_scenario(where):
        fabric = plugged(place.setting(Path(where)).fabric)
        return fabric, fabric.circuits
    from ringlight.testbed.emulation.attached import attach

    lab = attach(where)
    calls.ask_controller_of(lab)
    return lab.fabric, _lit()


def _lit() -> list[tuple[Port, Port]]:
    from ringlight.fabric.parts import Port

    circuits = calls.get("/v1/circuits")["circuits"]
    return [
        (Port.parse(circuit["ends"][0]), Port.parse(circuit["ends"][1]))
        for circuit in circuits
    ]
