"""``ringlight workload``: what is in a file of operations, and making one from a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, listing, patience, say

if TYPE_CHECKING:
    from ringlight.extensions.models.widening import Grid
    from ringlight.workloads.devices import Device
    from ringlight.workloads.formats.reading import Options
    from ringlight.workloads.graph import Workload

T = TypeVar("T")

#: A timeline of up to so many ranks has each of them; of more, one of those that do the same.
EXACT_RANKS = 64
#: Settings of a model, and the options that have other names.
_OPTIONS = {"algorithms": "algorithm", "bucket_bytes": "bucket", "split": "skew"}
#: Ranks of one kind of parallelism, and of all together.
MOST_RANKS = 1 << 17

group = typer.Typer(help="Workloads: files of operations for each rank.", no_args_is_help=True)

Groups = Annotated[
    Path | None, typer.Option("--groups", metavar="FILE", help="Process groups of a Chakra trace (JSON).")
]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", min=1, max=MOST_RANKS, help="Ranks of a workload text that does not state them."),
]
ModelRanks = Annotated[
    int | None,
    typer.Option(
        "--model-ranks", min=1, help="Ranks of a model-parallel group, if the text does not state them."
    ),
]
Shape = Annotated[
    str, typer.Option("--shape", metavar="AxBxC", help="Shape of a Chakra trace's network, such as 4x2.")
]
Form = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="packed or chakra; default: by OUT's suffix, .rlw or .et."
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option("--device", help="Device that computes, such as h100; default: FLOPs get no time."),
]
Efficiency = Annotated[
    float | None,
    typer.Option("--efficiency", min=1e-6, max=1, help="Share of the device's peak that training reaches."),
]


#: Where sizes are those of what is read.
WIDER = " in the wider workload"


def _of(what: str, where: str = "") -> Any:
    return typer.Option(min=1, max=MOST_RANKS, help=f"Ranks of {what} parallelism{where}.")


@group.command()
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files, a trace's name or directory.")
    ],
    groups: Groups = None,
    ranks: Ranks = None,
    model_ranks: ModelRanks = None,
    shape: Shape = "",
    matrix: Annotated[
        Path | None, typer.Option("--matrix", metavar="OUT.csv", help="Write the traffic matrix (CSV).")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option("--perfetto", metavar="OUT", help="Write a timeline, simulated, for ui.perfetto.dev."),
    ] = None,
    rate: Annotated[
        str, typer.Option("--rate", help="For the timeline: rate of each GPU's link to an ideal switch.")
    ] = "100 Gbit/s",
    device: DeviceName = None,
    efficiency: Efficiency = None,
    as_json: options.Json = False,
) -> None:
    """Summarise a workload: ranks, operations, bytes by purpose, groups, computation.

    Reads Chakra traces, workload texts of ASTRA-sim and SimAI, traffic matrices (CSV) and packed workloads.
    """
    read_options = _options(groups, ranks, model_ranks, shape)
    workload = _timed(_read(files, read_options), _device(device, efficiency))
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
    answer(document, as_json, lambda document: _show(document, files, read_options, device))


@group.command()
def make(
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="NAME.rlw, or NAME.et for a trace.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List models and devices; writes nothing.")] = False,
    model: Annotated[str, typer.Option("--model", help="Model, such as gpt2-medium.")] = "",
    dp: Annotated[int, _of("data")] = 1,
    tp: Annotated[int, _of("tensor")] = 1,
    pp: Annotated[int, _of("pipeline")] = 1,
    ep: Annotated[int, _of("expert")] = 1,
    sequence: Annotated[int, typer.Option(min=0, help="Tokens of a sample; 0: the model's own.")] = 0,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples of a micro-batch.")] = 1,
    micro_batches: Annotated[
        int, typer.Option(min=1, max=10_000, help="Micro-batches of a replica per iteration.")
    ] = 1,
    schedule: Annotated[str, typer.Option(help="Pipeline schedule: gpipe, 1f1b or interleaved.")] = "1f1b",
    virtual_stages: Annotated[int, typer.Option(min=1, help="Chunks of a stage, for interleaved.")] = 1,
    bucket: Annotated[
        str, typer.Option(help="Size of the buckets in which gradients are reduced.")
    ] = "25 MiB",
    zero: Annotated[int, typer.Option(min=0, max=3, help="Stage of ZeRO.")] = 0,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Sequence parallelism within tp.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Recompute activations: blocks keep only their input.")
    ] = False,
    skew: Annotated[
        float, typer.Option(min=0, max=16, help="Skew of tokens over experts: exponent of a Zipf law.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the skew.")] = 0,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm", metavar="KIND=NAME", help="Algorithm of a kind of collective; may be repeated."
        ),
    ] = None,
    device: DeviceName = None,
    efficiency: Efficiency = None,
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Make one iteration of training a model, spread over dp x tp x pp x ep ranks, and write it to OUT."""
    if listed:
        answer(_models_and_devices(), as_json, _show_models_and_devices)
        return
    if out is None or not model:
        fail("give --model and OUT, or --list", 2)
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.parallelism import generate
    from ringlight.extensions.models.settings import Parallel, Training
    from ringlight.fabric.units import parse_size
    from ringlight.workloads.graph import Split

    parallel = Parallel(dp, tp, pp, ep)
    if parallel.ranks > MOST_RANKS:
        fail(f"--dp: {parallel.ranks} ranks; at most {MOST_RANKS}", 2)
    source, computes = _named("--model", model_named, model), _device(device, efficiency)
    try:
        training = Training(
            micro_batch, micro_batches, sequence, schedule, virtual_stages,
            bucket_bytes=_named("--bucket", parse_size, bucket), zero=zero, recompute=recompute,
            sequence_parallel=sequence_parallel, split=Split(seed, skew),
            algorithms=_algorithms(algorithm or ()),
        )  # fmt: skip
        with patience(f"making {model} for {parallel.ranks} ranks"):
            workload = generate(source, parallel, training, computes)
    except ValueError as error:
        key, _, why = str(error).partition(": ")
        fail(f"--{_OPTIONS.get(key, key).replace('_', '-')}: {why}" if why else str(error), 2)
    _written(workload, out, form, as_json)


@group.command()
def convert(
    files: Annotated[
        list[Path], typer.Argument(metavar="IN... OUT", help="As show reads them; and where to.")
    ],
    groups: Groups = None,
    ranks: Ranks = None,
    model_ranks: ModelRanks = None,
    shape: Shape = "",
    device: DeviceName = None,
    efficiency: Efficiency = None,
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Read a workload and write it to OUT in another format: packed (.rlw) or Chakra traces (.et)."""
    if len(files) < 2:
        fail("give the files of a workload, and OUT", 2)
    *read, out = files
    workload = _read(read, _options(groups, ranks, model_ranks, shape))
    _written(_timed(workload, _device(device, efficiency)), out, form, as_json)


#: Most ranks of a schedule that is written as text.
MOST_WRITTEN = 256


@group.command()
def algorithm(
    out: Annotated[Path, typer.Argument(metavar="OUT.xml", help="MSCCL file to write.")],
    kind: Annotated[
        str, typer.Option("--kind", help="Kind of collective, such as all-gather.")
    ] = "all-reduce",
    name: Annotated[str, typer.Option("--algorithm", help="Its algorithm; default: the kind's first.")] = "",
    ranks: Annotated[int, typer.Option("--ranks", min=1, max=MOST_WRITTEN, help="Number of ranks.")] = 8,
    root: Annotated[int, typer.Option("--root", min=0, help="Root of a broadcast or a reduce.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Write an algorithm of a collective as an MSCCL file, to be changed and run, here or by MSCCL."""
    from ringlight.extensions.msccl.reader import read_msccl
    from ringlight.extensions.msccl.writer import write_msccl
    from ringlight.fabric.kinds import collective_steps

    try:
        steps = collective_steps(kind, name, ranks, root)
        write_msccl(out, kind, steps, root)
        read_msccl(out)
    except ValueError as error:
        fail(str(error), 2)
    document = {"file": str(out), "kind": kind, "algorithm": steps.name, "ranks": ranks, "steps": steps.steps}
    line = "{file}: {kind}, {algorithm}, {ranks} ranks, {steps} steps"
    answer(document, as_json, lambda document: echo(line.format(**document)))


@group.command()
def widen(
    files: Annotated[
        list[Path], typer.Argument(metavar="IN... OUT", help="As show reads them; and where to.")
    ],
    dp: Annotated[int | None, _of("data", WIDER)] = None,
    tp: Annotated[int | None, _of("tensor", WIDER)] = None,
    pp: Annotated[int | None, _of("pipeline", WIDER)] = None,
    ep: Annotated[int | None, _of("expert", WIDER)] = None,
    recorded_as: Annotated[
        str,
        typer.Option(
            "--recorded",
            metavar="tp=N,...",
            help="Parallelism of the recording, where its operations are not called by it.",
        ),
    ] = "",
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside",
            metavar="FILE",
            help="Recording of another tp or ep, which shows what its ranks divide; may be repeated.",
        ),
    ] = None,
    sharded: Annotated[
        list[str] | None,
        typer.Option(
            "--sharded",
            metavar="NAME",
            help="Computation or memory operation that replicas share out, as ZeRO's; may be repeated.",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="FILE", help="Workload of the larger size: name the first difference."
        ),
    ] = None,
    groups: Groups = None,
    ranks: Ranks = None,
    model_ranks: ModelRanks = None,
    shape: Shape = "",
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Widen a workload of few ranks to more along its parallelism; write it to OUT.

    More replicas (--dp) have a batch as large each, more stages (--pp) as many layers each; more tensor-
    or expert-parallel ranks divide the same model, and a recording --beside shows what of it. What is not
    given stays. Groups are found by operations called dp, edp, tp and ep.
    """
    if len(files) < 2:
        fail("give the files of a workload, and OUT", 2)
    from ringlight.extensions.models.widening import first_difference, found, grown, widened

    *read, out = files
    read_options = _options(groups, ranks, model_ranks, shape)
    recorded, besides = _read(read, read_options), [_read([file], read_options) for file in beside or ()]
    given = {name: size for name, size in (("dp", dp), ("tp", tp), ("pp", pp), ("ep", ep)) if size}
    if not given:
        fail("state what to widen to: --dp, --tp, --pp or --ep", 2)
    try:
        if set(given) == {"dp"} and not recorded_as and not besides:
            replicas = found(recorded)
            _check_most(recorded.ranks // replicas.count * given["dp"])
            wide = widened(recorded, given["dp"], replicas, sharded or ())
        else:
            grid, target = _grids(recorded, recorded_as, given)
            _check_most(target.pp * target.dp * target.ep * target.tp)
            wide = grown(recorded, grid, target, besides, sharded or ())
    except ValueError as error:
        fail(f"{read[0]}: {error}", 2)
    if unknown := [name for name in sharded or () if name not in recorded.names]:
        fail(f"--sharded: no operation is called {unknown[0]!r}", 2)
    if against is not None and (difference := first_difference(wide, _read([against], read_options))):
        fail(f"{against} differs: {difference}")
    _written(wide, out, form, as_json)


def _check_most(ranks: int) -> None:
    if ranks > MOST_RANKS:
        fail(f"{ranks} ranks; at most {MOST_RANKS}", 2)


def _grids(recorded: Workload, recorded_as: str, given: Mapping[str, int]) -> tuple[Grid, Grid]:
    """Return the grid of a recording, and the grid to widen it to."""
    from ringlight.extensions.models.widening import Grid, checked, grid_of

    try:
        sizes = {
            name: int(size)
            for name, _, size in (text.partition("=") for text in recorded_as.split(",") if text)
        }
        stated = Grid(**sizes)
    except (TypeError, ValueError):
        fail(f"--recorded: {recorded_as!r} should be sizes, such as tp=2,pp=2", 2)
    if min(stated.pp, stated.dp, stated.ep, stated.tp) < 1:
        fail(f"--recorded: {recorded_as!r} should be sizes of 1 or more", 2)
    try:
        grid = grid_of(recorded) if not sizes else stated
    except ValueError:
        sizes = {name: size for name, size in given.items() if name != "dp"}
        if not sizes or "dp" not in given:
            raise
        grid = Grid(**sizes)
    if "dp" not in sizes and sizes:
        grid = replace(grid, dp=max(1, recorded.ranks // (grid.pp * grid.ep * grid.tp)))
    return checked(recorded, grid), replace(grid, **given)


def _named(option: str, make: Callable[[Any], T], value: Any) -> T:
    """Raises UserError naming the option."""
    try:
        return make(value)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


def _options(groups: Path | None, ranks: int | None, model_ranks: int | None, shape: str) -> Options:
    from ringlight.workloads.formats.reading import Options

    try:
        sides = tuple(int(side) for side in shape.split("x")) if shape else ()
    except ValueError:
        sides = (0,)
    if not all(side > 0 for side in sides):
        fail(f"--shape: {shape!r} should be whole numbers, such as 4x2", 2)
    return Options(ranks, model_ranks, sides, groups, notice=say)


def _algorithms(given: Sequence[str]) -> dict[str, str]:
    algorithms = dict(text.partition("=")[::2] for text in given)
    wrong = next((text for text in given if "=" not in text), None)
    if wrong is not None:
        fail(f"--algorithm: {wrong!r} should be KIND=NAME, such as all-reduce=ring", 2)
    return algorithms


def _device(name: str | None, efficiency: float | None) -> Device | None:
    from dataclasses import replace

    from ringlight.workloads.devices import device_named

    if name is None:
        if efficiency is not None:
            fail("--efficiency: it is of a device; give --device", 2)
        return None
    device = _named("--device", device_named, name)
    return device if efficiency is None else replace(device, efficiency=efficiency)


def _timed(workload: Workload, device: Device | None) -> Workload:
    from ringlight.workloads.devices import timed

    return workload if device is None else timed(workload, device)


def _read(files: Sequence[Path], options: Options) -> Workload:
    from ringlight.fabric.units import format_size
    from ringlight.workloads.formats.reading import files_read, read_any

    try:
        size = sum(path.stat().st_size for path in files_read(files, options) if path.exists())
        with patience(f"reading {files[0]}, {format_size(size)} in all"):
            return read_any(files, options)
    except ValueError as error:
        fail(str(error), 2)


def _written(workload: Workload, out: Path, form: str, as_json: bool) -> None:
    """Write a workload, read it again, and say where it is."""
    from ringlight.workloads.formats.writing import write_any

    try:
        with patience(f"writing {workload.operations:,} operations to {out}, and reading them again"):
            files = write_any(workload, out, form)
    except ValueError as error:
        fail(str(error), 2)
    document = {
        "name": workload.name, "ranks": workload.ranks, "operations": workload.operations,
        "files": [str(path) for path in files],
    }  # fmt: skip
    what = f"{workload.name}: {workload.operations:,} operations of {workload.ranks} ranks"
    where = str(files[0]) if len(files) == 1 else f"{len(files)} files, {files[0]} and so on"
    answer(document, as_json, lambda _: echo(f"{what}, in {where}; read again, the same."))


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
                "purpose": purpose, "called": called, "operations": part.operations,
                "sent_bytes": part.sent, "most_bytes": part.most,
            }
            for (purpose, called), part in totals.traffic.items()
        ],
        "groups": {str(size): count for size, count in totals.groups.items()},
        "flops": totals.flops,
        "seconds": None if math.isnan(least) else {"least": least, "most": most},
    }  # fmt: skip


def _show(document: Mapping[str, Any], files: Sequence[Path], options: Options, device: str | None) -> None:
    from ringlight.fabric.units import format_size, format_time

    programs = {1: "all do the same", document["ranks"]: "each has a program of its own"}
    alike = programs.get(document["programs"], f"{document['programs']:,} different programs")
    echo(f"{document['name']}: {document['ranks']:,} ranks, {alike}; {document['operations']:,} operations.")
    kinds = [f"{count:,} {kind}" for kind, count in document["kinds"].items()]
    echo(f"Operations: {', '.join(kinds)}.")
    echo(f"Streams: {', '.join(stream or 'unnamed' for stream in document['streams'])}.")
    groups = [f"{count:,} of {size} ranks" for size, count in document["groups"].items()]
    echo(f"Groups: {', '.join(groups) or 'none'}.")
    flops = f"{document['flops']:.4g} FLOPs of all ranks" if document["flops"] else "no FLOPs stated"
    seconds = document["seconds"]
    if seconds is None:
        echo(f"Computation: {flops}; not all of it has a time: give --device.")
    else:
        least, most = format_time(seconds["least"]), format_time(seconds["most"])
        echo(f"Computation: {flops}; {least if least == most else f'{least} to {most}'} of each rank.")
    if document["traffic"]:
        listing(
            document["traffic"],
            ("purpose", lambda part: part["purpose"] if part["purpose"] != part["called"] else "-"),
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
    echo(f"To run it, in a scenario beside it: {_job(document, files, options, device)}")
    echo("Then: ringlight simulate SCENARIO")


def _job(document: Mapping[str, Any], files: Sequence[Path], options: Options, device: str | None) -> str:
    """Return the section of a scenario next to the files that executes them."""
    names = [path.name for path in files]
    keys = {
        "files": names[0] if len(names) == 1 else f"[{', '.join(names)}]",
        "groups": options.groups.name if options.groups else None,
        "model_ranks": options.model_ranks,
        "shape": list(options.shape) or None,
        "device": device or (None if document["seconds"] else "DEVICE"),
    }
    inner = ", ".join(f"{key}: {value}" for key, value in keys.items() if value is not None)
    return f"jobs: {{train: {{gpus: {document['ranks']}, workload: {{{inner}}}}}}}"


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
    rate_bps = _named("--rate", parse_rate, rate)
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
    return {"spans": count, "ranks": len(set(result.row_of.tolist())), "seconds": result.total_s}


def _models_and_devices() -> dict[str, Any]:
    from ringlight.extensions.models.catalogue import MODELS
    from ringlight.extensions.models.layers import forward_flops, parameters
    from ringlight.workloads.devices import DEVICES

    return {
        "models": [
            {
                "model": name, "parameters": parameters(model), "forward_flops": forward_flops(model),
                "sequence": getattr(model, "sequence", None), "source": model.source,
            }
            for name, model in MODELS.items()
        ],
        "devices": [
            {
                "device": name, "peak_flops": {str(size): peak for size, peak in device.peak_flops.items()},
                "efficiency": device.efficiency, "memory_bytes_per_s": device.memory_bytes_per_s,
                "source": device.source,
            }
            for name, device in DEVICES.items()
        ],
    }  # fmt: skip


def _show_models_and_devices(document: Mapping[str, Any]) -> None:
    listing(
        document["models"],
        "model",
        ("parameters", lambda model: f"{model['parameters']:,}"),
        ("tokens", lambda model: f"{model['sequence']:,}" if model["sequence"] else ""),
        "source",
    )
    echo()
    listing(
        document["devices"],
        "device",
        ("FLOP/s by bytes of an element", lambda device: _peaks(device["peak_flops"])),
        "efficiency",
        ("memory", lambda device: f"{device['memory_bytes_per_s'] / 1e9:,.0f} GB/s"),
        "source",
    )


def _peaks(by_size: Mapping[str, float]) -> str:
    return ", ".join(f"{size}: {peak / 1e12:g} T" for size, peak in by_size.items())


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(group, name="workload", rich_help_panel=options.EXPERIMENTS)
