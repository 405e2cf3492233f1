"""``ringlight graph`` and ``ringlight import``: fabrics out to the formats of others, and in from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ringlight.experiments.cli import calls, options
from ringlight.experiments.cli.common import echo, fail, patience, say

if TYPE_CHECKING:
    from ringlight.experiments.language.plan import RunPlan
    from ringlight.extensions.interchange.draft import Defaults
    from ringlight.extensions.interchange.snapshot import Snapshot

#: GivenNames of ``exports.FORMS`` and of ``imports.READERS``, which load only in a command.
Written = Literal[
    "mermaid",
    "dot",
    "graphml",
    "infragraph",
    "infragraph-lit",
    "slurm-tree",
    "slurm-block",
    "slurm-yaml",
    "topograph",
]
Readable = Literal[
    "infragraph",
    "slurm-conf",
    "slurm-yaml",
    "topograph-model",
    "topograph-graph",
    "nccl",
    "nvidia-smi",
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", metavar="FILE", help="File to write; default: standard output."
    ),
]


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
        Written, typer.Option("--format", "-f", help="Format of the text.")
    ] = "mermaid",
    out: Out = None,
    *,
    place: options.Place,
) -> None:
    """Print a fabric with its current circuits: as a picture, or for Slurm, topograph and InfraGraph.

    Standard error names what the format does not carry.

    Examples:
        ringlight examples copy disaggregation
        ringlight graph disaggregation.yaml -f slurm-tree
        ringlight graph -f dot
    """
    from ringlight.extensions.interchange.exports import FORMS

    chosen = FORMS[form]
    try:
        exported = chosen.text(_lit(where, place))
        if chosen.validate is not None:
            with patience("the format's own library checks the text"):
                chosen.validate(exported.text)
    except ModuleNotFoundError as error:
        say(f"not validated: {error.name} is not installed")
    except ValueError as error:
        fail(str(error))
    _give(exported.text, out)
    if exported.lost:
        say(f"{form} does not carry: {'; '.join(exported.lost)}")


def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to import.")],
    form: Annotated[
        Readable | None,
        typer.Option("--format", "-f", help="Its format; default: as it looks."),
    ] = None,
    out: Out = None,
    rate: Annotated[
        str, typer.Option("--rate", help="Rate of a GPU's link where none is stated.")
    ] = "100 Gbit/s",
    uplink_rate: Annotated[
        str | None,
        typer.Option(
            "--uplink-rate",
            help="Rate of a link between switches; default: the sum of the GPUs' below.",
        ),
    ] = None,
    gpu: Annotated[
        str, typer.Option("--gpu", help="The GPUs' model where none is stated.")
    ] = "gpu",
    gpus: Annotated[
        int, typer.Option("--gpus-per-node", min=1, max=64, help="GPUs of a node.")
    ] = 1,
    servers: Annotated[
        int,
        typer.Option(
            "--servers", min=1, max=4096, help="Servers like a file's one server."
        ),
    ] = 2,
    topology: Annotated[
        str | None,
        typer.Option("--topology", help="Which of the topologies of a topology.yaml."),
    ] = None,
) -> None:
    """Write a scenario file with the fabric of a file of Slurm, topograph, InfraGraph, NCCL or nvidia-smi.

    Standard error lists the choices for parts that the file does not state, and the parts that were left out.

    Examples:
        ringlight examples copy disaggregation
        ringlight graph disaggregation.yaml -f slurm-tree --out topology.conf
        ringlight import topology.conf --rate '40 Gbit/s' --out cluster.yaml
    """
    from ringlight.extensions.interchange.draft import Defaults
    from ringlight.fabric.units import parse_rate

    try:
        defaults = Defaults(
            parse_rate(rate),
            None if uplink_rate is None else parse_rate(uplink_rate),
            gpu,
            gpus,
            servers,
            topology,
        )
    except ValueError as error:
        fail(str(error), 2)
    text, defaulted, dropped = _imported(file, form, defaults)
    _give(text, out)
    for what in defaulted:
        say(f"chosen: {what}")
    for what in dropped:
        say(f"left out: {what}")


def _imported(
    file: Path, form: str | None, defaults: Defaults
) -> tuple[str, list[str], list[str]]:
    """Return the scenario's text, what was defaulted and what was dropped."""
    from ringlight.experiments.language.text import read_text
    from ringlight.extensions.interchange.draft import scenario_text
    from ringlight.extensions.interchange.imports import (
        IMPORT_BYTES,
        READERS,
        format_of,
    )

    try:
        text = read_text(file, IMPORT_BYTES)
        with patience(f"reading {file}"):
            form = form or format_of(text, str(file))
            draft = READERS[form](text, str(file), defaults)
    except ValueError as error:
        fail(str(error), 2)
    try:
        with patience(f"writing the scenario of {file}"):
            scenario = scenario_text(draft, file.stem, f"{file.name} ({form})")
    except ValueError as error:
        fail(f"{file}: it makes no fabric here: {error}", 2)
    return scenario, draft.defaulted, draft.dropped


def _give(text: str, out: Path | None) -> None:
    """Print a text, or write it to a file and read it back."""
    from ringlight.workloads.formats.files import read_bytes, write_bytes

    if out is None:
        echo(text, nl=False)
        return
    try:
        write_bytes(out, text.encode())
        if read_bytes(out) != text.encode():
            fail(f"{out}: it does not read back as written")
    except ValueError as error:
        fail(str(error))
    say(f"{out}: written")


def _lit(where: str | None, place: options.Place) -> Snapshot:
    """Return a fabric with the circuits that a scenario begins with, or those of a lab now."""
    from ringlight.extensions.interchange.snapshot import Snapshot
    from ringlight.fabric.keys import plugged
    from ringlight.fabric.parts import Port

    if where is not None and options.is_scenario(where):
        runs = place.runs(Path(where))
        for note in _notes(runs):
            say(note)
        fabric = plugged(runs[0].setting.fabric)
        return Snapshot(Path(where).stem, fabric, fabric.circuits)
    from ringlight.testbed.emulation.attached import attach

    lab = attach(where)
    calls.ask_controller_of(lab)
    circuits = calls.get("/v1/circuits")["circuits"]
    one_way = [circuit for circuit in circuits if not circuit["duplex"]]
    if one_way:
        say(f"{len(one_way)} circuits are lit one way only, and left out")
    duplex = (circuit["ends"] for circuit in circuits if circuit["duplex"])
    pairs = tuple((Port.parse(a), Port.parse(b)) for a, b in duplex)
    return Snapshot(lab.lab.id, lab.fabric, pairs)


def _notes(runs: Iterable[RunPlan]) -> Iterator[str]:
    """Yield a line that names the arms of runs with one fabric, and one for each arm whose events at the start
    the fabric does not show."""
    events: dict[str, dict[str, None]] = {}
    for run in runs:
        at_start = (event.do for event in run.events if event.when.start)
        events.setdefault(run.arm, {}).update(dict.fromkeys(at_start))
    if len(events) > 1:
        yield (
            f"the arms {', '.join(events)} share this fabric, with the circuits that each begins with"
        )
    for arm, verbs in events.items():
        if verbs:
            yield f"not applied: events at the start of arm {arm} ({', '.join(verbs)})"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=options.EXPERIMENTS)(graph)
    app.command("import", rich_help_panel=options.EXPERIMENTS)(import_file)
