"""``ringlight workload``: what is in files of operations. Extensions add what makes and changes them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, listing, patience, say
from ringlight.workloads.formats.contract import Options, Setting
from ringlight.workloads.formats.reading import (
    kinds_of_files,
    settings,
    written_formats,
)

if TYPE_CHECKING:
    from ringlight.workloads.devices import Device
    from ringlight.workloads.graph import Workload

T = TypeVar("T")

#: A timeline of up to so many ranks has each of them; of more, one of those that do the same.
EXACT_RANKS = 64
#: Most ranks of a workload: a mistyped number must not fill the memory.
MOST_RANKS = 1 << 17

group = typer.Typer(
    help="Workloads: files of operations for each rank.", no_args_is_help=True
)

Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=1,
        max=MOST_RANKS,
        help="Number of ranks, if the files do not state it.",
    ),
]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format of OUT; default: the one of its suffix.",
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Device that computes, such as h100; default: FLOPs get no time.",
    ),
]
Efficiency = Annotated[
    float | None,
    typer.Option(
        "--efficiency",
        min=1e-6,
        max=1,
        help="Share of the device's peak that training reaches.",
    ),
]


def with_file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for the ranks and for each setting that files may leave open.

    The command gets them as ``read_options``. Its docstring's ``{files}`` and ``{formats}`` become those that
    there are to read and to write.
    """
    own = inspect.signature(command, eval_str=True).parameters
    added = [
        _option("ranks", Ranks),
        *(_option(each.name, _type_of(each)) for each in settings()),
    ]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in own.items()
        for parameter in (added if name == "read_options" else [each])
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        ranks = given.pop("ranks")
        values = {
            setting.name: _value(setting, given.pop(setting.name))
            for setting in settings()
        }
        command(**given, read_options=Options(ranks, values, notice=say))

    written = [f"{form.name} ({form.suffix})" for form in written_formats().values()]
    called.__doc__ = (command.__doc__ or "").format(
        files=kinds_of_files(), formats=" or ".join(written)
    )
    called.__annotations__ = {}
    called.__dict__["__signature__"] = inspect.Signature(parameters)
    return called


def _option(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _type_of(setting: Setting) -> Any:
    flag = f"--{setting.name.replace('_', '-')}"
    if setting.kind == "count":
        return Annotated[int | None, typer.Option(flag, min=1, help=setting.help)]
    if setting.kind == "file":
        return Annotated[
            Path | None, typer.Option(flag, metavar="FILE", help=setting.help)
        ]
    return Annotated[str | None, typer.Option(flag, metavar="AxBxC", help=setting.help)]


def _value(setting: Setting, given: Any) -> Any:
    if setting.kind != "sizes" or not given:
        return given
    try:
        sizes = tuple(int(size) for size in given.split("x"))
    except ValueError:
        sizes = (0,)
    if min(sizes) < 1:
        fail(
            f"--{setting.name.replace('_', '-')}: {given!r} should be whole numbers, such as 4x2",
            2,
        )
    return sizes


def show(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Files of one workload, or their common name."
        ),
    ],
    read_options: Options = Options(),
    matrix: Annotated[
        Path | None,
        typer.Option(
            "--matrix", metavar="OUT.csv", help="Write the traffic matrix (CSV)."
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto",
            metavar="OUT",
            help="Write a timeline, simulated, for ui.perfetto.dev.",
        ),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            "--rate",
            help="For the timeline: rate of each GPU's link to an ideal switch.",
        ),
    ] = "100 Gbit/s",
    device: DeviceName = None,
    efficiency: Efficiency = None,
    as_json: options.Json = False,
) -> None:
    """Summarise a workload: ranks, operations, bytes by purpose, groups, computation.

    Reads {files}.

    Examples:
        ringlight workload show shuffle.csv
        ringlight workload show shuffle.csv --matrix bytes.csv
    """
    workload = with_times(
        read_files(files, read_options), device_of(device, efficiency)
    )
    document = _document(workload)
    if matrix is not None:
        _write_matrix(workload, matrix)
        document["matrix"] = str(matrix)
    if perfetto is not None:
        document["perfetto"] = {
            "file": str(perfetto),
            "rate": rate,
            **_write_timeline(workload, perfetto, rate),
        }
    answer(
        document, as_json, lambda document: _show(document, files, read_options, device)
    )


def convert(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="IN... OUT", help="Files to read, as for show, and then OUT."
        ),
    ],
    read_options: Options = Options(),
    device: DeviceName = None,
    efficiency: Efficiency = None,
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Read a workload and write it to OUT in another format: {formats}.

    Examples:
        ringlight workload convert shuffle.csv shuffle.rlw
    """
    if len(files) < 2:
        fail("give the files of a workload, and OUT", 2)
    *read, out = files
    workload = read_files(read, read_options)
    write_files(with_times(workload, device_of(device, efficiency)), out, form, as_json)


def named(option: str, make: Callable[[Any], T], value: Any) -> T:
    """Return what is made of an option's value. Raises UserError naming the option."""
    try:
        return make(value)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


def device_of(name: str | None, efficiency: float | None) -> Device | None:
    from dataclasses import replace

    from ringlight.workloads.devices import device_named

    if name is None:
        if efficiency is not None:
            fail("--efficiency: it is of a device; give --device", 2)
        return None
    device = named("--device", device_named, name)
    return device if efficiency is None else replace(device, efficiency=efficiency)


def with_times(workload: Workload, device: Device | None) -> Workload:
    from ringlight.workloads.devices import timed

    return workload if device is None else timed(workload, device)


def read_files(files: Sequence[Path], options: Options) -> Workload:
    from ringlight.fabric.units import format_size
    from ringlight.workloads.formats.reading import files_read, read_any

    try:
        size = sum(
            path.stat().st_size for path in files_read(files, options) if path.exists()
        )
        with patience(f"reading {files[0]}, {format_size(size)} in all"):
            return read_any(files, options)
    except ValueError as error:
        fail(str(error), 2)


def write_files(workload: Workload, out: Path, form: str, as_json: bool) -> None:
    """Write a workload, read it again, and say where it is."""
    from ringlight.workloads.formats.writing import write_any

    try:
        with patience(
            f"writing {workload.operations:,} operations to {out}, and reading them again"
        ):
            files = write_any(workload, out, form)
    except ValueError as error:
        fail(str(error), 2)
    document = {
        "name": workload.name,
        "ranks": workload.ranks,
        "operations": workload.operations,
        "files": [str(path) for path in files],
    }
    what = (
        f"{workload.name}: {workload.operations:,} operations of {workload.ranks} ranks"
    )
    where = (
        str(files[0])
        if len(files) == 1
        else f"{len(files)} files, {files[0]} and so on"
    )
    answer(
        document, as_json, lambda _: echo(f"{what}, in {where}; read again, the same.")
    )


def _document(workload: Workload) -> dict[str, Any]:
    """Return the summary of a workload as a JSON object; ``seconds`` is null if an operation states none."""
    from ringlight.workloads.summary import summary

    totals = summary(workload)
    least, most = float(totals.seconds.min()), float(totals.seconds.max())
    return {
        "name": totals.name,
        "ranks": totals.ranks,
        "programs": totals.programs,
        "operations": totals.operations,
        "streams": list(totals.streams),
        "kinds": totals.kinds,
        "collectives": totals.collectives,
        "traffic": [
            {
                "purpose": purpose,
                "called": called,
                "operations": part.operations,
                "sent_bytes": part.sent,
                "most_bytes": part.most,
            }
            for (purpose, called), part in totals.traffic.items()
        ],
        "groups": {str(size): count for size, count in totals.groups.items()},
        "flops": totals.flops,
        "seconds": None if math.isnan(least) else {"least": least, "most": most},
    }


def _show(
    document: Mapping[str, Any],
    files: Sequence[Path],
    options: Options,
    device: str | None,
) -> None:
    from ringlight.fabric.units import format_size, format_time

    programs = {
        1: "all do the same",
        document["ranks"]: "each has a program of its own",
    }
    alike = programs.get(
        document["programs"], f"{document['programs']:,} different programs"
    )
    echo(
        f"{document['name']}: {document['ranks']:,} ranks, {alike}; {document['operations']:,} operations."
    )
    kinds = [f"{count:,} {kind}" for kind, count in document["kinds"].items()]
    echo(f"Operations: {', '.join(kinds)}.")
    echo(
        f"Streams: {', '.join(stream or 'unnamed' for stream in document['streams'])}."
    )
    groups = [
        f"{count:,} of {size} ranks" for size, count in document["groups"].items()
    ]
    echo(f"Groups: {', '.join(groups) or 'none'}.")
    flops = (
        f"{document['flops']:.4g} FLOPs of all ranks"
        if document["flops"]
        else "no FLOPs stated"
    )
    seconds = document["seconds"]
    if seconds is None:
        echo(f"Computation: {flops}; not all of it has a time: give --device.")
    else:
        least, most = format_time(seconds["least"]), format_time(seconds["most"])
        echo(
            f"Computation: {flops}; {least if least == most else f'{least} to {most}'} of each rank."
        )
    if document["traffic"]:
        listing(
            document["traffic"],
            (
                "purpose",
                lambda part: (
                    part["purpose"] if part["purpose"] != part["called"] else "-"
                ),
            ),
            ("called", "called"),
            ("operations", lambda part: f"{part['operations']:,}"),
            ("sent by all ranks", lambda part: format_size(part["sent_bytes"])),
            ("most by one", lambda part: format_size(part["most_bytes"])),
            numeric=2,
        )
    if "matrix" in document:
        echo(f"What each rank sends to each: {document['matrix']}")
    if "perfetto" in document:
        drawn = document["perfetto"]
        echo(
            f"Timeline: {drawn['file']}, {drawn['spans']:,} operations of {drawn['ranks']} ranks in "
            f"{format_time(drawn['seconds'])}; simulated, with a link of {drawn['rate']} from each GPU to an "
            "ideal switch."
        )
    echo(
        f"To run it, in a scenario beside it: {_job(document, files, options, device)}"
    )
    echo("Then: ringlight simulate SCENARIO")


def _job(
    document: Mapping[str, Any],
    files: Sequence[Path],
    options: Options,
    device: str | None,
) -> str:
    """Return the section of a scenario next to the files that executes them."""
    names = [path.name for path in files]
    keys = {
        "files": names[0] if len(names) == 1 else f"[{', '.join(names)}]",
        **{name: _in_yaml(value) for name, value in options.settings.items()},
        "device": device or (None if document["seconds"] else "DEVICE"),
    }
    inner = ", ".join(
        f"{key}: {value}" for key, value in keys.items() if value is not None
    )
    return f"jobs: {{train: {{gpus: {document['ranks']}, workload: {{{inner}}}}}}}"


def _in_yaml(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _write_matrix(workload: Workload, path: Path) -> None:
    from ringlight.workloads.formats import matrix

    try:
        with patience(f"adding up what {workload.ranks} ranks send to each other"):
            matrix.write(workload, path)
    except ValueError as error:
        fail(f"--matrix: {error}", 2)


def _write_timeline(workload: Workload, path: Path, rate: str) -> dict[str, Any]:
    """Simulates an iteration and writes its timeline; how many operations, of how many ranks, how long."""
    from ringlight.fabric.units import parse_rate
    from ringlight.testbed.simulation.networks import IdealNetwork
    from ringlight.testbed.simulation.workload import simulate_workload
    from ringlight.workloads.formats import timeline

    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    rate_bps = named("--rate", parse_rate, rate)
    exact = workload.ranks <= EXACT_RANKS
    try:
        with patience(f"simulating {workload.operations:,} operations"):
            result = simulate_workload(
                IdealNetwork(gpus, rate_bps),
                gpus,
                workload,
                fidelity="exact" if exact else "classes",
                operations=True,
            )
            count = timeline.write(path, result.timeline())
    except ValueError as error:
        fail(f"--perfetto: {error}", 2)
    return {
        "spans": count,
        "ranks": len(set(result.row_of.tolist())),
        "seconds": result.total_s,
    }


def register(app: typer.Typer) -> None:
    """Add these commands. Raises ExtensionError if a format cannot be used."""
    for command in (show, convert):
        group.command()(with_file_options(command))
    app.add_typer(group, name="workload", rich_help_panel=options.EXPERIMENTS)
