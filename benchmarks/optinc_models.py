"""Two small models in numpy for ``benchmarks/optinc_training.py``.

A convolutional network recognises digits; a transformer predicts the next character of a text.

Parameters and gradients are one vector each, as an all-reduce has them. Gradients come from the steps of a
computation, backwards (``Value``); the unit tests hold them against finite differences. Everything computes
in the parameters' type: float32 where it is trained.

The convolutional network: 3 x 3 kernels to 8, 16 and 32 maps, the second and third in steps of two pixels,
ReLU after each, and a matrix to 10 scores. The transformer is LLaMA's form made small: layers of attention
and of ReLU, each after a norm of the root mean square (Zhang and Sennrich, "Root Mean Square Layer
Normalization", 2019) and added to what went in, no biases; places are learnt.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.fabric.collectives import all_reduce, apply_schedule

Array = npt.NDArray[np.floating[Any]]
Whole = npt.NDArray[np.integer[Any]]
#: Added to a mean square, so that zeros can be divided.
LEAST = 1e-6
KERNEL = 3
#: What an iteration sees, and the answers to it.
Batch = tuple[npt.NDArray[Any], npt.NDArray[Any]]
Floats = npt.NDArray[np.float32]


class Value:
    """An array, and how the gradient by it becomes that by each of the values that it was computed from.

    ``constant``: nobody asks for the gradient by it, nor by what only comes from such.
    """

    def __init__(
        self,
        data: Array,
        *origins: tuple[Value, Callable[[Array], Array]],
        constant: bool = False,
    ) -> None:
        self.data, self.origins = (
            data,
            [origin for origin in origins if not origin[0].constant],
        )
        self.constant: bool = constant or bool(origins and not self.origins)
        self.gradient: Array | None = None

    def backward(self, gradient: Array) -> None:
        """Set the gradients by all values that this one was computed from."""
        order: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value not in order:
                for origin, _ in value.origins:
                    visit(origin)
                order[value] = None

        visit(self)
        self.gradient = gradient
        for value in reversed(order):
            for origin, back in value.origins:
                assert value.gradient is not None
                own = back(value.gradient)
                origin.gradient = (
                    own if origin.gradient is None else origin.gradient + own
                )


class Model(ABC):
    """What can be trained: parameters are a vector (size,)."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parts of the parameter vector by name, in order."""

    @abstractmethod
    def start(self, seed: int) -> npt.NDArray[np.float32]:
        """Parameters to begin with."""

    @abstractmethod
    def scores(self, own: Mapping[str, Value], inputs: npt.NDArray[Any]) -> Value:
        """Scores of each answer: (answers to give, possible answers)."""

    def log_probability(self, parameters: Array, inputs: npt.NDArray[Any]) -> Array:
        """Log probability of each answer in nats: (answers to give, possible answers)."""
        return _log_softmax(self.scores(self._leaves(parameters), inputs).data)

    def gradient(
        self, parameters: Array, inputs: npt.NDArray[Any], answers: Whole
    ) -> Array:
        """Gradient of the mean negative log probability of ``answers``: a vector (size,)."""
        own = self._leaves(parameters)
        scores = self.scores(own, inputs)
        scores.backward(_error(_log_softmax(scores.data), answers.reshape(-1)))
        gradient = np.empty_like(parameters)
        for name, part in parts_of(gradient, self.shapes).items():
            part[:] = own[name].gradient
        return gradient

    def _leaves(self, parameters: Array) -> dict[str, Value]:
        return {
            name: Value(part)
            for name, part in parts_of(parameters, self.shapes).items()
        }


def size_of(model: Model) -> int:
    return sum(math.prod(shape) for shape in model.shapes.values())


def parts_of(vector: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Views of a vector. Raises ValueError for one of another size."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    if vector.shape != (ends[-1],):
        raise ValueError(
            f"a vector of shape {vector.shape}, but there are {ends[-1]} parameters"
        )
    cut = np.split(vector, ends[:-1])
    return {
        name: part.reshape(shape)
        for (name, shape), part in zip(shapes.items(), cut, strict=True)
    }


def loss_and_accuracy(
    model: Model, parameters: Array, inputs: npt.NDArray[Any], answers: Whole
) -> tuple[float, float]:
    """The mean of -log probability, nats, and the share of answers of which none is more probable, 0..1."""
    found = model.log_probability(parameters, inputs)
    right = answers.reshape(-1)
    loss = -float(found[np.arange(right.size), right].mean(dtype=np.float64))
    return loss, float((found.argmax(axis=1) == right).mean())


class Momentum:
    """Descent with momentum: what is added is -``rate`` times the sum of gradients, each ``decay`` times
    less with every step."""

    def __init__(self, rate: float, decay: float) -> None:
        self._rate, self._decay = np.float32(rate), np.float32(decay)
        self._speed: Floats = np.zeros(1, np.float32)

    def __call__(self, mean: Floats, done: float) -> Floats:
        self._speed = self._decay * self._speed + mean
        return -self._rate * self._speed


class Adam:
    """Kingma and Ba, "Adam", 2015; the rate falls in a line to 0, as ``done`` goes from 0 to 1."""

    def __init__(
        self,
        rate: float,
        decays: tuple[float, float] = (0.9, 0.99),
        least: float = 1e-8,
    ) -> None:
        self._rate, self._decays, self._least = rate, decays, np.float32(least)
        self._moments: list[Floats] = [np.zeros(1, np.float32)] * 2
        self._count = 0

    def __call__(self, mean: Floats, done: float) -> Floats:
        self._count += 1
        scaled = []
        for number, decay in enumerate(self._decays):
            now = np.float32(1 - decay) * mean ** (number + 1)
            self._moments[number] = np.float32(decay) * self._moments[number] + now
            scaled.append(self._moments[number] / np.float32(1 - decay**self._count))
        rate = np.float32(-self._rate * (1 - done))
        added: Floats = rate * scaled[0] / (np.sqrt(scaled[1]) + self._least)
        return added


def trained_on(
    model: Model,
    parameters: Floats,
    ranks: int,
    iterations: int,
    batch: Callable[[int], Batch],
    step: Callable[[Floats, float], Floats],
    exchange: Callable[[Sequence[Floats]], Sequence[Floats]] | None = None,
) -> Floats | None:
    """The trained parameters; None where gradients are no numbers any more.

    ``batch``: by iteration what all ranks see, of which each takes its part in order; ``exchange``: what
    ranks hold after an all-reduce, the sum of what they had, None is a ring; ``step``: from the mean gradient
    and the part of the training that is done, what is added to the parameters. Raises ValueError for a batch
    that cannot be shared out evenly.
    """
    exchange = exchange or partial(apply_schedule, all_reduce("ring", ranks))
    for iteration in range(iterations):
        parts = [np.split(whole, ranks) for whole in batch(iteration)]
        gradients = [
            model.gradient(parameters, *part) for part in zip(*parts, strict=True)
        ]
        if not all(np.isfinite(own).all() for own in gradients):
            return None
        mean = exchange(gradients)[0] / np.float32(ranks)
        parameters = parameters + step(mean, iteration / iterations)
    return parameters


class Convolutional(Model):
    """Images of 8 x 8 pixels, (n, 64), to one of ten digits."""

    shapes: Mapping[str, tuple[int, ...]] = {
        "kernels_1": (KERNEL**2, 8), "biases_1": (8,),
        "kernels_2": (8 * KERNEL**2, 16), "biases_2": (16,),
        "kernels_3": (16 * KERNEL**2, 32), "biases_3": (32,),
        "scores": (2 * 2 * 32, 10), "biases_4": (10,),
    }  # fmt: skip
    steps = (1, 2, 2)

    def start(self, seed: int) -> npt.NDArray[np.float32]:
        """Normal of variance 2/fan-in (He et al., 2015), biases zero."""
        random = np.random.default_rng(seed)
        vector = np.zeros(size_of(self), np.float32)
        for part in parts_of(vector, self.shapes).values():
            if part.ndim == 2:
                part[:] = random.standard_normal(part.shape) * math.sqrt(2 / len(part))
        return vector

    def scores(self, own: Mapping[str, Value], inputs: npt.NDArray[Any]) -> Value:
        side = math.isqrt(inputs.shape[1])
        images = inputs.reshape(-1, side, side, 1).astype(
            own["scores"].data.dtype, copy=False
        )
        maps = Value(images, constant=True)
        for layer, step in enumerate(self.steps, 1):
            patches = _patches(maps, step)
            maps = _relu(
                _biased(
                    _times(patches, own[f"kernels_{layer}"]), own[f"biases_{layer}"]
                )
            )
        return _biased(
            _times(_reshaped(maps, (len(inputs), -1)), own["scores"]), own["biases_4"]
        )


@dataclass(frozen=True)
class Transformer(Model):
    """Characters (n, places) to the next one after each, (n places, characters).

    ``width`` is a multiple of ``heads``.
    """

    characters: int
    places: int = 32
    width: int = 32
    heads: int = 4
    layers: int = 2

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        width = self.width
        found: dict[str, tuple[int, ...]] = {
            "characters": (self.characters, width),
            "places": (self.places, width),
        }
        for layer in range(self.layers):
            found |= {
                f"norm_{layer}": (width,), f"asked_{layer}": (width, 3 * width),
                f"told_{layer}": (width, width), f"norm_{layer}_up": (width,),
                f"up_{layer}": (width, 4 * width), f"down_{layer}": (4 * width, width),
            }  # fmt: skip
        return {**found, "norm": (width,), "scores": (width, self.characters)}

    def start(self, seed: int) -> npt.NDArray[np.float32]:
        """Matrices normal of variance 1/fan-in, those added to what went in less by 2 layers; norms one."""
        random = np.random.default_rng(seed)
        vector = np.ones(size_of(self), np.float32)
        for name, part in parts_of(vector, self.shapes).items():
            if part.ndim == 2:
                fan_in = (
                    part.shape[1] if name in ("characters", "places") else len(part)
                )
                if name.startswith(("told", "down")):
                    fan_in *= 2 * self.layers
                part[:] = random.standard_normal(part.shape) / math.sqrt(fan_in)
        return vector

    def scores(self, own: Mapping[str, Value], inputs: npt.NDArray[Any]) -> Value:
        values = _embedded(own["characters"], own["places"], inputs)
        for layer in range(self.layers):
            asked = _times(_normed(values, own[f"norm_{layer}"]), own[f"asked_{layer}"])
            values = _added(
                values, _times(_attention(asked, self.heads), own[f"told_{layer}"])
            )
            up = _relu(
                _times(_normed(values, own[f"norm_{layer}_up"]), own[f"up_{layer}"])
            )
            values = _added(values, _times(up, own[f"down_{layer}"]))
        return _times(
            _reshaped(_normed(values, own["norm"]), (-1, self.width)), own["scores"]
        )


# Steps of a computation


def _times(values: Value, matrix: Value) -> Value:
    """Values (..., k) times a matrix (k, m)."""

    def by_matrix(back: Array) -> Array:
        product: Array = values.data.reshape(
            -1, values.data.shape[-1]
        ).T @ back.reshape(-1, back.shape[-1])
        return product

    by_values = lambda back: back @ matrix.data.T  # noqa: E731
    return Value(values.data @ matrix.data, (values, by_values), (matrix, by_matrix))


def _biased(values: Value, biases: Value) -> Value:
    return Value(
        values.data + biases.data,
        (values, lambda back: back),
        (biases, lambda back: back.reshape(-1, back.shape[-1]).sum(axis=0)),
    )


def _added(values: Value, others: Value) -> Value:
    return Value(
        values.data + others.data,
        (values, lambda back: back),
        (others, lambda back: back),
    )


def _relu(values: Value) -> Value:
    found = np.maximum(values.data, 0)
    return Value(found, (values, lambda back: back * (found > 0)))


def _reshaped(values: Value, shape: tuple[int, ...]) -> Value:
    return Value(
        values.data.reshape(shape),
        (values, lambda back: back.reshape(values.data.shape)),
    )


def _normed(values: Value, gain: Value) -> Value:
    """Values over the root of their mean square, times ``gain``."""
    roots: Array = np.sqrt(
        (values.data * values.data).mean(axis=-1, keepdims=True) + LEAST
    )
    ones = values.data / roots

    def by_values(back: Array) -> Array:
        through = back * gain.data
        found: Array = (
            through - ones * (through * ones).mean(axis=-1, keepdims=True)
        ) / roots
        return found

    by_gain = lambda back: (back * ones).reshape(-1, back.shape[-1]).sum(axis=0)  # noqa: E731
    return Value(ones * gain.data, (values, by_values), (gain, by_gain))


def _embedded(characters: Value, places: Value, inputs: npt.NDArray[Any]) -> Value:
    def by_characters(back: Array) -> Array:
        which = np.zeros((inputs.size, len(characters.data)), back.dtype)
        which[np.arange(inputs.size), inputs.reshape(-1)] = 1
        product: Array = which.T @ back.reshape(-1, back.shape[-1])
        return product

    found = characters.data[inputs] + places.data
    return Value(
        found, (places, lambda back: back.sum(axis=0)), (characters, by_characters)
    )


def _attention(asked: Value, heads: int) -> Value:
    """Causal attention of ``heads``: from (n, places, 3 width), queries, keys and contents, to (n, places,
    width).
    """
    count, places, _ = asked.data.shape
    # (3, n, heads, places, width of a head)
    triple = asked.data.reshape(count, places, 3, heads, -1)
    queries, keys, contents = triple.transpose(2, 0, 3, 1, 4)
    products = queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1])
    # nobody sees what comes later
    products[..., ~np.tri(places, dtype=bool)] = -np.inf
    weights = np.exp(products - products.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)

    def by_asked(back: Array) -> Array:
        each = back.reshape(count, places, heads, -1).transpose(0, 2, 1, 3)
        of_weights = each @ contents.swapaxes(-1, -2)
        by_products = weights * (
            of_weights - (of_weights * weights).sum(axis=-1, keepdims=True)
        )
        by_products /= math.sqrt(queries.shape[-1])
        by_triple = np.stack(
            [
                by_products @ keys,
                by_products.swapaxes(-1, -2) @ queries,
                weights.swapaxes(-1, -2) @ each,
            ]
        )
        return by_triple.transpose(1, 3, 0, 2, 4).reshape(count, places, -1)

    joined = (weights @ contents).transpose(0, 2, 1, 3).reshape(count, places, -1)
    return Value(joined, (asked, by_asked))


def _patches(maps: Value, step: int) -> Value:
    """What each place's kernel sees of maps (n, side, side, c), zeros around: (n, side / step, side / step,
    9 c).
    """
    around = np.pad(maps.data, ((0, 0), (1, 1), (1, 1), (0, 0)))
    side = maps.data.shape[1]
    places = [divmod(place, KERNEL) for place in range(KERNEL**2)]

    def by_maps(back: Array) -> Array:
        gradient = np.zeros(around.shape, back.dtype)
        for (row, column), part in zip(
            places, np.split(back, KERNEL**2, axis=-1), strict=True
        ):
            gradient[:, row : row + side : step, column : column + side : step] += part
        return gradient[:, 1:-1, 1:-1]

    seen = [
        around[:, row : row + side : step, column : column + side : step]
        for row, column in places
    ]
    return Value(np.concatenate(seen, axis=-1), (maps, by_maps))


def _log_softmax(scores: Array) -> Array:
    scores = scores - scores.max(axis=1, keepdims=True)
    found: Array = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return found


def _error(log_probability: Array, answers: Whole) -> Array:
    """The gradient of the mean loss by the scores."""
    error = np.exp(log_probability)
    error[np.arange(len(answers)), answers] -= 1
    error /= len(answers)
    return error
