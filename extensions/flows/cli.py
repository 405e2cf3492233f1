"""``ringlight fct``: completion times of the flows of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import echo, fail, patience, show_json, table


@options.with_groups
def fct(
    scenario: options.ScenarioFile,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FLOWS", help="CSV file: source, destination, bytes, start_s."
        ),
    ],
    place: options.Place,
    paths: Annotated[
        Literal["spray", "pair"],
        typer.Option(
            "--paths",
            help="spray: a flow's packets take all shortest paths in turn; pair: the path of the pair.",
        ),
    ] = "spray",
    packet: Annotated[
        str, typer.Option("--packet", metavar="SIZE", help="Packet with its header.")
    ] = "1500 B",
    header: Annotated[
        str, typer.Option("--header", metavar="SIZE", help="Header of a packet.")
    ] = "64 B",
    window: Annotated[
        int,
        typer.Option(
            "--window", min=1, help="Packets without acknowledgement, at most."
        ),
    ] = 30,
    acknowledgement: Annotated[
        str,
        typer.Option(
            "--acknowledgement",
            metavar="SIZE",
            help="A flow is complete when its sender has the last one; 0 B: when its receiver has all bytes.",
        ),
    ] = "0 B",
    full_packets: Annotated[
        bool,
        typer.Option("--full-packets", help="Fill the last packet of a longer flow."),
    ] = False,
    nic_delay: Annotated[
        str,
        typer.Option("--nic-delay", metavar="TIME", help="Propagation on GPUs' links."),
    ] = "0 s",
    link_delay: Annotated[
        str,
        typer.Option(
            "--link-delay", metavar="TIME", help="Propagation between switches."
        ),
    ] = "0 s",
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, help="Seed of the phases of long flows' packets."
        ),
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write each flow's time as CSV."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Simulate the flows of a file over the scenario's fabric; completion times by size.

    Long flows share links as a fluid, short ones pass them packet by packet. On an interconnect of rotors
    packets go slot by slot.

    Examples:
        ringlight examples copy fat_tree_4
        ringlight examples copy flows
        ringlight fct flows.yaml flows.csv --arm half --link-delay 500ns --out times.csv
    """
    from dataclasses import asdict

    from ringlight.experiments.language.expand import load
    from ringlight.experiments.runner.machine import real_scale
    from ringlight.extensions.flows.flow_file import read_flows
    from ringlight.extensions.flows.runs import times_over_fabric_s
    from ringlight.extensions.flows.summary import by_size, lines_of, write_times
    from ringlight.extensions.flows.transport import Transport

    try:
        transport = Transport(
            _size("--packet", packet),
            _size("--header", header),
            window,
            full_packets,
            _size("--acknowledgement", acknowledgement),
            paths == "spray",
            _time("--nic-delay", nic_delay),
            _time("--link-delay", link_delay),
        )
    except ValueError as error:
        fail(str(error), 2)
    if out is not None:
        _check_out(out, file)
    experiment = load(scenario, sets=place.sets or (), scale_for=real_scale)
    fabric = experiment.one_setting(place.arm, place.point).fabric
    try:
        given = read_flows(file, fabric.gpus)
        with patience(f"simulating {len(given):,} flows"):
            times_s = times_over_fabric_s(fabric, given, transport, seed)
    except ValueError as error:
        fail(str(error), 2)
    classes = by_size(given, times_s)
    if out is not None:
        write_times(out, given, times_s)
    if as_json:
        document: dict[str, Any] = {
            "label": "simulated",
            "flows": len(given),
            "classes": [asdict(item) for item in classes],
        }
        show_json(document)
        return
    flows = "1 flow" if len(given) == 1 else f"{len(given):,} flows"
    echo(f"{flows}, completion times, simulated:")
    table(("size", "flows", "median", "90 %", "99 %"), lines_of(classes), 1)


def _check_out(out: Path, flows: Path) -> None:
    """Refuse a file for times that cannot be written, before the simulation."""
    from ringlight.experiments.record.writing import writing

    existed = out.exists()
    if existed and flows.exists() and out.samefile(flows):
        fail(f"{out}: it is the file of flows; name another with --out", 2)
    with writing(out), out.open("a"):
        pass
    if not existed:
        out.unlink()


def _size(option: str, text: str) -> int:
    from ringlight.fabric.units import parse_size

    try:
        return 0 if text in ("0", "0 B") else parse_size(text)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


def _time(option: str, text: str) -> float:
    from ringlight.fabric.units import parse_time

    try:
        return parse_time(text)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=options.EXPERIMENTS)(fct)
