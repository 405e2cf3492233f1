"""``ringlight workload make`` and ``widen``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ringlight.experiments.cli import options
from ringlight.experiments.cli.common import answer, echo, fail, listing, patience
from ringlight.experiments.cli.workload import (
    MOST_RANKS,
    DeviceName,
    Efficiency,
    Form,
    device_of,
    group,
    named,
    with_file_options,
    write_files,
)
from ringlight.extensions.models.widen_command import ranks_of, widen

#: Settings of a model, and the options that have other names.
_OPTIONS = {"algorithms": "algorithm", "bucket_bytes": "bucket", "split": "skew"}


def make(
    out: Annotated[
        Path | None,
        typer.Argument(
            metavar="OUT", help="NAME.rlw, or with another format's suffix."
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List models and devices; writes nothing.")
    ] = False,
    model: Annotated[
        str, typer.Option("--model", help="Model, such as gpt2-medium.")
    ] = "",
    dp: Annotated[int, ranks_of("data")] = 1,
    tp: Annotated[int, ranks_of("tensor")] = 1,
    pp: Annotated[int, ranks_of("pipeline")] = 1,
    ep: Annotated[int, ranks_of("expert")] = 1,
    sequence: Annotated[
        int, typer.Option(min=0, help="Tokens of a sample; 0: the model's own.")
    ] = 0,
    micro_batch: Annotated[
        int, typer.Option(min=1, help="Samples of a micro-batch.")
    ] = 1,
    micro_batches: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, help="Micro-batches of a replica per iteration."
        ),
    ] = 1,
    schedule: Annotated[
        str, typer.Option(help="Pipeline schedule: gpipe, 1f1b or interleaved.")
    ] = "1f1b",
    virtual_stages: Annotated[
        int, typer.Option(min=1, help="Chunks of a stage, for interleaved.")
    ] = 1,
    bucket: Annotated[
        str, typer.Option(help="Size of the buckets in which gradients are reduced.")
    ] = "25 MiB",
    zero: Annotated[int, typer.Option(min=0, max=3, help="Stage of ZeRO.")] = 0,
    sequence_parallel: Annotated[
        bool,
        typer.Option("--sequence-parallel", help="Sequence parallelism within tp."),
    ] = False,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="Recompute activations: blocks keep only their input."
        ),
    ] = False,
    skew: Annotated[
        float,
        typer.Option(
            min=0, max=16, help="Skew of tokens over experts: exponent of a Zipf law."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the skew.")] = 0,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="KIND=NAME",
            help="Algorithm of a kind of collective; may be repeated.",
        ),
    ] = None,
    device: DeviceName = None,
    efficiency: Efficiency = None,
    form: Form = "",
    as_json: options.Json = False,
) -> None:
    """Make one iteration of training a model, spread over dp x tp x pp x ep ranks, and write it to OUT.

    Examples:
        ringlight workload make --list
        ringlight workload make gpt2.rlw --model gpt2-medium --dp 2 --tp 2 --device a100
    """
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
    source, computes = (
        named("--model", model_named, model),
        device_of(device, efficiency),
    )
    try:
        training = Training(
            micro_batch,
            micro_batches,
            sequence,
            schedule,
            virtual_stages,
            bucket_bytes=named("--bucket", parse_size, bucket),
            zero=zero,
            recompute=recompute,
            sequence_parallel=sequence_parallel,
            split=Split(seed, skew),
            algorithms=_algorithms(algorithm or ()),
        )
        with patience(f"making {model} for {parallel.ranks} ranks"):
            workload = generate(source, parallel, training, computes)
    except ValueError as error:
        key, _, why = str(error).partition(": ")
        fail(
            f"--{_OPTIONS.get(key, key).replace('_', '-')}: {why}"
            if why
            else str(error),
            2,
        )
    write_files(workload, out, form, as_json)


def _algorithms(given: Sequence[str]) -> dict[str, str]:
    algorithms = dict(text.partition("=")[::2] for text in given)
    wrong = next((text for text in given if "=" not in text), None)
    if wrong is not None:
        fail(f"--algorithm: {wrong!r} should be KIND=NAME, such as all-reduce=ring", 2)
    return algorithms


def _models_and_devices() -> dict[str, Any]:
    from ringlight.extensions.models.catalogue import MODELS
    from ringlight.extensions.models.layers import forward_flops, parameters
    from ringlight.workloads.devices import DEVICES

    return {
        "models": [
            {
                "model": name,
                "parameters": parameters(model),
                "forward_flops": forward_flops(model),
                "sequence": getattr(model, "sequence", None),
                "source": model.source,
            }
            for name, model in MODELS.items()
        ],
        "devices": [
            {
                "device": name,
                "peak_flops": {
                    str(size): peak for size, peak in device.peak_flops.items()
                },
                "efficiency": device.efficiency,
                "memory_bytes_per_s": device.memory_bytes_per_s,
                "source": device.source,
            }
            for name, device in DEVICES.items()
        ],
    }


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
    """Add the commands to those of workloads."""
    group.command()(make)
    group.command()(with_file_options(widen))
