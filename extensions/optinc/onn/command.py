"""``python -m ringlight.extensions.optinc.onn``: ``train`` a network, or ``check`` it on all inputs."""

from __future__ import annotations

import hashlib
import os
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from ringlight.experiments.record.writing import WriteError, write_whole, writing
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.optinc.unit.network import Wrong, table_of, wrong_of
from ringlight.extensions.optinc.unit.structure import CASES, Structure
from ringlight.extensions.optinc.unit.weights import Note, note_of, pack, unpack
from ringlight.fabric.text import visible

#: Epochs after which scenario 1 is exact with each of the seeds in docs/optinc-network.md.
EPOCHS = {"exact": 140, "retraction": 140, "projection": 250}

app = typer.Typer(
    help="Train the optical neural network of an OptINC unit, and check it on every input there is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def train(
    out: Annotated[
        Path,
        typer.Option(help="Where the weights go (.npz); a note (.json) comes beside."),
    ],
    scenario: Annotated[
        int, typer.Option(min=1, max=len(CASES), help="Row of the paper's Table I.")
    ] = 1,
    method: Annotated[
        Literal["exact", "retraction", "projection"],
        typer.Option(
            help="Sigma U at each step, almost, or by the paper's projection now and then."
        ),
    ] = "exact",
    seed: Annotated[int, typer.Option(min=0, help="Of weights and order.")] = 0,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Passes over all inputs; 140, with projection 250."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(min=0, help="E1 of Eq. 7: epochs of its first stage; all."),
    ] = None,
    symbol_weights: Annotated[
        str | None,
        typer.Option(
            help="W_T of Eq. 7, one number for each symbol, with commas; all 1."
        ),
    ] = None,
    second: Annotated[
        Literal["light", "received"],
        typer.Option(
            help="G in the second stage: of the outputs as they are, or as received."
        ),
    ] = "light",
    biases: Annotated[
        Literal["all", "first"],
        typer.Option(help="Layers with light that always shines."),
    ] = "all",
    batch: Annotated[int, typer.Option(min=1, help="Inputs in a step.")] = 512,
    rate: Annotated[
        float, typer.Option(min=0, help="Largest learning rate of the cycle.")
    ] = 6e-3,
    project_every: Annotated[
        int, typer.Option(min=1, help="Steps between two projections.")
    ] = 28,
    start: Annotated[
        Literal["spread", "grid"],
        typer.Option(
            help="First layer: all inputs for each unit, or one, its values as kinks."
        ),
    ] = "spread",
    spared: Annotated[
        float,
        typer.Option(
            min=0, help="Levels that an output may be off, as the training goes on."
        ),
    ] = 0.0,
    threads: Annotated[
        int, typer.Option(min=1, help="Of torch; two are slow on a busy machine.")
    ] = 1,
) -> None:
    """Train a network, check every input, write weights and note. Exit code 1 where an answer is wrong."""
    if out.suffix != ".npz":
        _stop(f"{out}: weights are a .npz")
    if not out.parent.is_dir():
        _stop(f"{out.parent}: no such folder")
    name, structure = list(CASES.items())[scenario - 1]
    weights = _weights(symbol_weights, structure.coding.symbols)
    try:
        import torch
    except ModuleNotFoundError as error:
        _stop(
            f"{error.name} is needed to train, and is not installed: pip install 'ringlight[onn]'"
        )
    from ringlight.extensions.optinc.onn.training import Recipe
    from ringlight.extensions.optinc.onn.training import train as trained

    torch.set_num_threads(threads)
    passes = epochs or EPOCHS[method]
    stage = passes if first is None else first
    recipe = Recipe(
        method,
        seed,
        passes,
        stage,
        weights,
        second,
        biases,
        batch,
        rate,
        project_every,
        start,
        spared,
    )
    reporter = Reporter()
    reporter.start_run(
        f"scenario {scenario} ({name}), {method}, seed {seed}", {"epoch": passes}
    )
    began, processor = time.monotonic(), _processor_s()

    def report(epoch: int, loss: float) -> None:
        reporter.advance(lambda: {"epoch": epoch})
        if epoch % max(1, passes // 10) == 0 or epoch == passes:
            reporter.say(
                f"  epoch {epoch}: loss {loss:.5f}{'' if epoch <= stage else ' (second stage)'}"
            )

    try:
        network = trained(structure, recipe, report)
    except ValueError as error:
        _stop(str(error))
    finally:
        reporter.end_run()
    wall_s, processor_s = time.monotonic() - began, _processor_s() - processor
    errors = wrong_of(table_of(network, structure.coding))
    file = pack(network)
    note = Note(
        case=name,
        method=method,
        seed=seed,
        command=shlex.join(
            ["python", "-m", "ringlight.extensions.optinc.onn", *sys.argv[1:]]
        ),
        torch=str(torch.__version__),
        inputs=errors.inputs,
        wrong=errors.wrong,
        worst=round(errors.worst, 4),
        wall_s=round(wall_s, 1),
        processor_s=round(processor_s, 1),
        sha256=hashlib.sha256(file).hexdigest(),
    )
    try:
        with writing(out):
            temporary = out.with_suffix(".part")
            temporary.write_bytes(file)
            os.replace(temporary, out)
        write_whole(out.with_suffix(".json"), note.to_json())
    except WriteError as error:
        _stop(str(error))
    _tell(errors, f"{wall_s:.0f} s, {processor_s:.0f} s of processors")


@app.command()
def check(
    weights: Annotated[
        Path, typer.Argument(help="The .npz; its note (.json) is beside it.")
    ],
) -> None:
    """Evaluate trained weights on every input, without torch. Exit code 1 where an answer is wrong."""
    try:
        file = weights.read_bytes()
        note = note_of(file, weights.with_suffix(".json").read_bytes())
        errors = wrong_of(table_of(unpack(file), _structure(note.case).coding))
    except OSError as error:
        _stop(f"{error.filename}: {error.strerror}")
    except ValueError as error:
        _stop(f"{weights}: {error}")
    _tell(errors, f"{note.method}, seed {note.seed}")


def _structure(case: str) -> Structure:
    if case not in CASES:
        raise ValueError(f"case {case}; there are {', '.join(CASES)}")
    return CASES[case]


def _weights(text: str | None, symbols: int) -> tuple[float, ...]:
    try:
        weights = (
            (1.0,) * symbols
            if text is None
            else tuple(float(part) for part in text.split(","))
        )
    except ValueError:
        _stop(f"--symbol-weights {text}: numbers with commas between them")
    if len(weights) != symbols:
        _stop(
            f"--symbol-weights {text}: {len(weights)} numbers, and there are {symbols} symbols"
        )
    return weights


def _tell(errors: Wrong, how: str) -> None:
    right = errors.inputs - errors.wrong
    typer.echo(
        f"{right} of {errors.inputs} inputs right, worst output {errors.worst:.3f} of a level off; {how}"
    )
    if errors.wrong:
        raise typer.Exit(1)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _stop(text: str) -> NoReturn:
    typer.echo(f"onn: {visible(text)}", err=True)
    raise typer.Exit(1)
