"""What OptINC's average does to a training, in one process.

Each row is a training for each seed, whose gradients are averaged in another way; beside it stands the ring
all-reduce of float32 from the same seeds. Differences are taken seed by seed; +- is the half width of the
mean's 95 % interval by Student's t. All models share out what an iteration sees over the ranks, so that it is
the same for every N.

``digits``       the model that the workers train (2,410 parameters, 1,500 images, 297 held out): 64 images an
                 iteration, plain descent at a rate of 0.5
``conv``         a convolutional network (7,178 parameters) on the same images: 64 an iteration, momentum of
                 0.9 at a rate of 0.02
``transformer``  which character comes next (32,352 parameters), on the reference of the language that Python
                 ships (``pydoc_data.topics``), its last tenth held out: 32 pieces of 32 characters an
                 iteration, Adam at a rate that falls from 0.01 to 0 in a line

Accuracy is of what is held out: one image is 0.34 points. The loss is of the images that are trained on, but
of the held-out text.

``plain``     what becomes of the decimals that the unit drops: with 8 bits in six ways (``WAYS``), else
              as the product does; ``bias`` is by how much of a step the mean gradient is off on average,
              zeros left out
``injected``  16 bits, N = 4: the errors of the paper's Table II, as often as there, and more often
``phases``    8 bits, N = 4: the trained network that comes with the program, and the designed one
              (*designed, not trained*), on meshes whose phases are off, a draw for each seed; the table of
              such a network answers every input of the training
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pydoc_data.topics import topics
from typing import Annotated, Any, Literal

# layers are small: threads would wait for each other more than they compute
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.harness import check_known, show
from benchmarks.optinc_models import (
    Adam,
    Batch,
    Convolutional,
    Model,
    Momentum,
    Transformer,
    loss_and_accuracy,
    trained_on,
)
from ringlight.containers.worker.model import PARAMETERS, held_out_set, training_set
from ringlight.containers.worker.reference import Exchange, train_in_one_process
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.experiments.analysis.statistics import half_width
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.designed import designed
from ringlight.extensions.optinc.unit.gradients import by_table, exact, steps
from ringlight.extensions.optinc.unit.imperfect import (
    Imperfections,
    OnMeshes,
    as_network,
    on_meshes,
)
from ringlight.extensions.optinc.unit.network import table_of
from ringlight.extensions.optinc.unit.structure import CASES
from ringlight.extensions.optinc.unit.weights import trained
from ringlight.extensions.optinc.unit.wrong_answers import TABLE_II, Errors, inject
from ringlight.fabric.whole_numbers.blocks import exponents, merge, quantise
from ringlight.fabric.whole_numbers.means import Unit, mean_by

IMAGES, RATE = 64, 0.5
RANKS, BITS = (4, 8, 16), (8, 16)
#: Bits with which the ways of averaging differ.
MANY_WAYS = 8
#: Parts of all answers that are wrong, besides the paper's.
WRONG = (0.01, 1.0)
SEQUENCES, PLACES = 32, 32
MOMENTUM, CONVOLUTIONAL_RATE = 0.9, 0.02
ADAM_RATE = 1e-2
#: Radians, by how the weights were found: the designed ones break at far smaller errors.
SIGMAS = {"trained": (1e-3, 1e-2, 3e-2, 1e-1), "designed": (1e-6, 1e-5, 1e-4, 1e-3)}
Floats = npt.NDArray[np.float32]


class Averaging:
    """What ranks hold after OptINC's average: N times the mean, as an all-reduce has it. It counts.

    ``way``: what receivers make of codes in place of what ``unit`` answers, one of WAYS; None: the product.
    """

    def __init__(self, unit: Unit, bits: int, way: Way | None = None) -> None:
        self.unit, self.bits, self.way = unit, bits, way
        self.answers = self.wrong = 0
        self.biases: list[float] = []

    @classmethod
    def of(
        cls, unit: Unit, bits: int, way: Way | None = None
    ) -> Callable[[int], Averaging]:
        """Make the averaging for a seed: the same for each."""
        return lambda seed: cls(unit, bits, way)

    def __call__(self, gradients: Sequence[Floats]) -> list[Floats]:
        ranks = len(gradients)
        shared = merge([exponents(own) for own in gradients])
        if self.way is None:
            mean = mean_by(self._answers, gradients, self.bits)
        else:
            codes = np.stack(
                [quantise(own, shared, self.bits) for own in gradients]
            ).astype(np.int64)
            off = self.way(codes) - 2.0 ** (self.bits - 1)
            mean = (off * steps(shared, self.bits, codes.shape[1])).astype(np.float32)
        off = mean - np.mean(gradients, axis=0, dtype=np.float64)
        # a block of zeros has no step
        live = np.any(gradients, axis=0)
        self.biases.append(
            float((off[live] / steps(shared, self.bits, mean.size)[live]).mean())
        )
        # the worker's rate is for sums; ranks are a power of two, so this rounds nothing
        return [mean * np.float32(ranks)] * ranks

    def _answers(self, codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found = self.unit(codes)
        self.answers += found.size
        self.wrong += int((found != exact(Coding(self.bits, len(codes)))(codes)).sum())
        return found


def _constant(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The floor, and what it drops on average."""
    ranks = len(codes)
    return np.asarray(codes.sum(axis=0) // ranks + (ranks - 1) / (2 * ranks))


def _constant_where_unequal(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The same, but nothing is added where all ranks sent one code, which only one who sees all can know."""
    ranks = len(codes)
    equal = (codes == codes[0]).all(axis=0)
    return np.asarray(
        codes.sum(axis=0) // ranks + np.where(equal, 0.0, (ranks - 1) / (2 * ranks))
    )


def _dithered(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The floor, where so many ranks as are drawn for a value, 0 to N - 1, raise their codes by a step:
    right on average. All ranks have to draw alike. Here the codes' checksum is the seed; ranks could send
    each other theirs together with their scales."""
    ranks, size = codes.shape
    drawn = np.random.default_rng(zlib.crc32(codes.tobytes())).integers(0, ranks, size)
    return np.asarray((codes.sum(axis=0) + drawn) // ranks)


def _exact(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The mean with all its decimals, which 8 bits cannot carry."""
    found: npt.NDArray[np.float64] = codes.mean(axis=0)
    return found


#: What receivers make of the codes that all ranks sent: the mean in steps.
Way = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]
#: Beside the product, which has the nearest whole number.
WAYS: dict[str, Way] = {
    "exact mean of the codes": _exact,
    "dithered": _dithered,
    "floor and a constant": _constant,
    "floor and a constant where codes differ": _constant_where_unequal,
    "floor": lambda codes: codes.sum(axis=0) // len(codes),
}


@dataclass(frozen=True)
class Outcome:
    """Result of one training: ``accuracy`` in percent, ``loss`` in nats; 0 and infinite if it diverged."""

    accuracy: float
    loss: float
    wrong: float | None = None
    bias: float | None = None


#: Ranks, seed, iterations and, where it is not the ring, the exchange, to accuracy (0..1) and loss.
Train = Callable[[int, int, int, Exchange | None], tuple[float, float]]


def train_digits(
    ranks: int, seed: int, iterations: int, exchange: Exchange | None
) -> tuple[float, float]:
    spec = WorkerSpec(
        "digits", 0, ranks, ("127.0.0.1",) * ranks, gradient_bytes=4 * PARAMETERS, iterations=iterations,
        batch=IMAGES // ranks, seed=seed, learning_rate=RATE,
    )  # fmt: skip
    ended: dict[str, Any] = train_in_one_process(spec, exchange=exchange)
    return ended["accuracy"], ended["loss_last"]


def train_convolutional(
    ranks: int, seed: int, iterations: int, exchange: Exchange | None
) -> tuple[float, float]:
    images, labels = training_set()

    def batch(iteration: int) -> Batch:
        """Every image once an epoch, but for what is left over."""
        epoch, index = divmod(iteration, len(labels) // IMAGES)
        order = np.random.default_rng([seed, epoch]).permutation(len(labels))
        chosen = order[index * IMAGES :][:IMAGES]
        return images[chosen], labels[chosen]

    model = Convolutional()
    step = Momentum(CONVOLUTIONAL_RATE, MOMENTUM)
    found = trained_on(
        model, model.start(seed), ranks, iterations, batch, step, exchange
    )
    return _measured(model, found, (images, labels), held_out_set())


def train_transformer(
    ranks: int, seed: int, iterations: int, exchange: Exchange | None
) -> tuple[float, float]:
    codes, characters = text()
    end = len(codes) * 9 // 10
    pieces = np.arange(PLACES + 1)
    random = np.random.default_rng(seed)

    def batch(iteration: int) -> Batch:
        starts = random.integers(0, end - PLACES, SEQUENCES)
        chosen = codes[starts[:, None] + pieces]
        return chosen[:, :-1], chosen[:, 1:]

    model = Transformer(characters, PLACES)
    found = trained_on(
        model, model.start(seed), ranks, iterations, batch, Adam(ADAM_RATE), exchange
    )
    last = codes[end:]
    held_out = np.stack(
        [last[at : at + PLACES + 1] for at in range(0, len(last) - PLACES, PLACES)]
    )
    both = held_out[:, :-1], held_out[:, 1:]
    return _measured(model, found, both, both)


@cache
def text() -> tuple[npt.NDArray[np.intp], int]:
    """Python's own reference of the language as whole numbers, topics in order of their names, and how many
    characters there are."""
    whole = np.array(
        [ord(character) for _, topic in sorted(topics.items()) for character in topic]
    )
    known, codes = np.unique(whole, return_inverse=True)
    return codes, len(known)


def text_sha256() -> str:
    return hashlib.sha256(
        "".join(topic for _, topic in sorted(topics.items())).encode()
    ).hexdigest()


def _measured(
    model: Model,
    parameters: Floats | None,
    of_loss: tuple[Any, Any],
    of_accuracy: tuple[Any, Any],
) -> tuple[float, float]:
    if parameters is None:
        return 0.0, math.inf
    loss, _ = loss_and_accuracy(model, parameters, *of_loss)
    _, accuracy = loss_and_accuracy(model, parameters, *of_accuracy)
    return accuracy, loss if math.isfinite(loss) else math.inf


#: By name, with iterations.
MODELS: dict[str, tuple[Train, int]] = {
    "digits": (train_digits, 1000),
    "conv": (train_convolutional, 600),
    "transformer": (train_transformer, 600),
}


@dataclass(frozen=True)
class Chosen:
    """What is compared."""

    ranks: Sequence[int] = RANKS
    bits: Sequence[int] = BITS
    wrong: Sequence[float] = WRONG
    weights: Sequence[str] = tuple(SIGMAS)


class Study:
    """Trainings of one model, the same seeds and iterations."""

    def __init__(
        self, train: Train, seeds: int, iterations: int, chosen: Chosen
    ) -> None:
        self.train, self.seeds, self.iterations, self.chosen = (
            train,
            range(seeds),
            iterations,
            chosen,
        )
        self._rings: dict[int, list[Outcome]] = {}

    def ring(self, ranks: int) -> list[Outcome]:
        if ranks not in self._rings:
            self._rings[ranks] = [self._train(ranks, seed) for seed in self.seeds]
        return self._rings[ranks]

    def averaged(
        self, ranks: int, averaging_of: Callable[[int], Averaging]
    ) -> list[Outcome]:
        """``averaging_of``: by seed."""
        return [self._train(ranks, seed, averaging_of(seed)) for seed in self.seeds]

    def row(
        self, ranks: int, outcomes: Sequence[Outcome], **names: Any
    ) -> dict[str, Any]:
        def mean(values: Sequence[float]) -> list[float | None]:
            # one that diverged leaves no interval
            return [
                statistics.fmean(values),
                half_width(values) if all(map(math.isfinite, values)) else None,
            ]

        pairs = list(zip(outcomes, self.ring(ranks), strict=True))
        found = {**names, "ranks": ranks}
        found["accuracy_percent"] = mean([own.accuracy for own in outcomes])
        found["loss_nats"] = mean([own.loss for own in outcomes])
        found["accuracy_over_ring_points"] = mean(
            [own.accuracy - ring.accuracy for own, ring in pairs]
        )
        found["of_seeds_points"] = [own.accuracy - ring.accuracy for own, ring in pairs]
        found["loss_over_ring_nats"] = mean(
            [own.loss - ring.loss for own, ring in pairs]
        )
        found["of_seeds_nats"] = [own.loss - ring.loss for own, ring in pairs]
        for name in ("wrong", "bias"):
            values = [
                value for own in outcomes if (value := getattr(own, name)) is not None
            ]
            found[name] = statistics.fmean(values) if values else None
        return found

    def _train(
        self, ranks: int, seed: int, averaging: Averaging | None = None
    ) -> Outcome:
        # a training that diverges is an outcome
        with np.errstate(over="ignore", invalid="ignore"):
            accuracy, loss = self.train(ranks, seed, self.iterations, averaging)
        wrong = bias = None
        if averaging is not None:
            wrong = averaging.wrong / averaging.answers if averaging.answers else None
            bias = statistics.fmean(averaging.biases)
        return Outcome(100 * accuracy, loss, wrong, bias)


def plain(study: Study) -> list[dict[str, Any]]:
    rows = []
    for ranks in study.chosen.ranks:
        rows.append(study.row(ranks, study.ring(ranks), what="ring, float32"))
        for bits in study.chosen.bits:
            unit = exact(Coding(bits, ranks))
            ways: dict[str, Way | None] = {
                "nearest": None,
                **(WAYS if bits == MANY_WAYS else {}),
            }
            for name, way in ways.items():
                outcomes = study.averaged(ranks, Averaging.of(unit, bits, way))
                rows.append(
                    study.row(ranks, outcomes, what=f"OptINC, {bits} bits, {name}")
                )
    return rows


def injected(study: Study) -> list[dict[str, Any]]:
    bits, ranks = 16, 4
    right = exact(Coding(bits, ranks))

    def wrong_in(errors: Errors) -> Callable[[int], Averaging]:
        def averaging(seed: int) -> Averaging:
            random = np.random.default_rng(seed)
            return Averaging(
                lambda codes: inject(right(codes), errors, bits, random), bits
            )

        return averaging

    rows = [
        study.row(
            ranks,
            study.averaged(ranks, Averaging.of(right, bits)),
            what="layers 4-6: none",
        )
    ]
    for layers, paper in TABLE_II.items():
        for part in (paper.wrong, *study.chosen.wrong):
            name = f"layers {layers}: " + (
                "as often as there" if part == paper.wrong else f"{part:.0%}"
            )
            outcomes = study.averaged(ranks, wrong_in(replace(paper, wrong=part)))
            rows.append(study.row(ranks, outcomes, what=name, drawn_wrong=part))
    return rows


def phases(study: Study) -> list[dict[str, Any]]:
    case = CASES["8bit_4"]
    ranks, bits = case.coding.servers, case.coding.bits
    networks = {"trained": trained("8bit_4")[0], "designed": designed(case)}

    def off_by(sigma: float, meshes: OnMeshes) -> Callable[[int], Averaging]:
        def averaging(seed: int) -> Averaging:
            network = as_network(
                meshes, Imperfections(phase_sigma=sigma), np.random.default_rng(seed)
            )
            return Averaging(by_table(table_of(network, case.coding)), bits)

        return averaging

    rows = []
    for name in study.chosen.weights:
        meshes = on_meshes(networks[name], case.approximated)
        for sigma in SIGMAS[name]:
            outcomes = study.averaged(ranks, off_by(sigma, meshes))
            what = f"{name}, phases off by {sigma:g} rad"
            rows.append(study.row(ranks, outcomes, what=what, phase_sigma_rad=sigma))
    return rows


def with_interval(pair: Sequence[float | None], form: str) -> str:
    """A mean and half its interval, if it has one."""
    mean, half = pair
    return format(mean, form) + (
        "" if half is None else f" ± {half:{form.lstrip('+')}}"
    )


def show_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of trainings."""

    def part(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    heads = (
        "averaged by",
        "N",
        "accuracy %",
        "over ring",
        "each seed",
        "loss",
        "over ring",
        "wrong %",
        "bias",
    )
    cells = [
        (
            row["what"],
            row["ranks"],
            with_interval(row["accuracy_percent"], ".2f"),
            with_interval(row["accuracy_over_ring_points"], "+.2f"),
            ", ".join(f"{points:+.2f}" for points in row["of_seeds_points"]),
            with_interval(row["loss_nats"], ".5f"),
            with_interval(row["loss_over_ring_nats"], "+.5f"),
            part(None if row["wrong"] is None else 100 * row["wrong"], ".5f"),
            part(row["bias"], "+.3f"),
        )
        for row in rows
    ]
    show(heads, cells)


STUDIES = {"plain": plain, "injected": injected, "phases": phases}


def optinc_training(
    parts: Annotated[list[str], typer.Argument()] = list(STUDIES),
    model: Literal["digits", "conv", "transformer"] = "digits",
    seeds: int = 3,
    iterations: int | None = None,
    ranks: list[int] = [*RANKS],
    bits: list[int] = [*BITS],
    wrong: list[float] = [*WRONG],
    weights: list[str] = list(SIGMAS),
) -> dict[str, Any]:
    """``seeds``: how many, from 0 on; ``iterations``: the model's, if not given; ``ranks`` and ``bits`` are
    of plain, ``wrong`` (parts of all answers) of injected, ``weights`` of phases; ``page``: write the ways
    of averaging of these files into it."""
    check_known("part", parts, STUDIES)
    check_known("--ranks", ranks, RANKS)
    check_known("--bits", bits, BITS)
    check_known("--weights", weights, SIGMAS)
    train, usual = MODELS[model]
    iterations = usual if iterations is None else iterations
    if seeds < 1 or iterations < 1:
        raise SystemExit("--seeds and --iterations are at least 1")
    if not all(0 <= part <= 1 for part in wrong):
        raise SystemExit("--wrong: parts of all answers are 0 to 1")
    study = Study(train, seeds, iterations, Chosen(ranks, bits, wrong, weights))
    found: dict[str, Any] = {"model": model, "seeds": seeds, "iterations": iterations}
    if model == "transformer":
        found["text_sha256"] = text_sha256()
    for name in parts:
        found[name] = STUDIES[name](study)
        show_rows(found[name])
    return found


PARTS = (optinc_training,)
