"""The command that looks into a lab: captures of what passes a port."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import Interrupted, answer, echo, fail, say

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
