"""Two small models in numpy for ``benchmarks/optinc_training.py``.

A convolutional network recognises digits; a transformer predicts the next character of a text.

Parameters and gradients are one vector each, as an all-reduce has them. Gradients are written by hand; the
unit tests hold them against finite differences. Everything computes in the parameters' type: float32 where
it is trained.

The convolutional network: 3 x 3 kernels to 8, 16 and 32 maps, the second and third in steps of two pixels,
ReLU after each, and a matrix to 10 scores. The transformer is LLaMA's form made small: layers of attention
and of ReLU, each after a norm of the root mean square (Zhang and Sennrich, "Root Mean Square Layer
Normalization", 2019) and added to what went in, no biases; places are learnt.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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


class Model(Protocol):
    """What can be trained: parameters are a vector (size,)."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the parts of the parameter vector by name, in order."""

    def start(self, seed: int) -> npt.NDArray[np.float32]:
        """Parameters to begin with."""

    def log_probability(self, parameters: Array, inputs: npt.NDArray[Any]) -> Array:
        """Log probability of each answer in nats: (answers to give, possible answers)."""

    def gradient(self, parameters: Array, inputs: npt.NDArray[Any], answers: Whole) -> Array:
        """Gradient of the mean negative log probability of ``answers``: a vector (size,)."""


def size_of(model: Model) -> int:
    return sum(math.prod(shape) for shape in model.shapes.values())


def parts_of(vector: Array, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Views of a vector. Raises ValueError for one of another size."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    if vector.shape != (ends[-1],):
        raise ValueError(f"a vector of shape {vector.shape}, but there are {ends[-1]} parameters")
    cut = np.split(vector, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), cut, strict=True)}


def loss_and_accuracy(
    model: Model, parameters: Array, inputs: npt.NDArray[Any], answers: Whole
) -> tuple[float, float]:
    """The mean of -log probability, nats, and the share of answers of which none is more probable, 0..1."""
    found = model.log_probability(parameters, inputs)
    right = answers.reshape(-1)
    loss = -float(found[np.arange(right.size), right].mean(dtype=np.float64))
    return loss, float((found.argmax(axis=1) == right).mean())


class Momentum:
    """Descent with momentum: what is added is -``rate`` times the sum of gradients, each ``decay`` times less
    with every step.
    """

    def __init__(self, rate: float, decay: float) -> None:
        self._rate, self._decay = np.float32(rate), np.float32(decay)
        self._speed: Floats = np.zeros(1, np.float32)

    def __call__(self, mean: Floats, done: float) -> Floats:
        self._speed = self._decay * self._speed + mean
        return -self._rate * self._speed


class Adam:
    """Kingma and Ba, "Adam", 2015; the rate falls in a line to 0, as ``done`` goes from 0 to 1."""

    def __init__(self, rate: float, decays: tuple[float, float] = (0.9, 0.99), least: float = 1e-8) -> None:
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
        gradients = [model.gradient(parameters, *part) for part in zip(*parts, strict=True)]
        if not all(np.isfinite(own).all() for own in gradients):
            return None
        mean = exchange(gradients)[0] / np.float32(ranks)
        parameters = parameters + step(mean, iteration / iterations)
    return parameters


class Convolutional:
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

    def log_probability(self, parameters: Array, inputs: npt.NDArray[Any]) -> Array:
        return self._forward(parts_of(parameters, self.shapes), inputs)[0]

    def gradient(self, parameters: Array, inputs: npt.NDArray[Any], answers: Whole) -> Array:
        own = parts_of(parameters, self.shapes)
        found, maps, patches = self._forward(own, inputs)
        gradient = np.empty_like(parameters)
        out = parts_of(gradient, self.shapes)
        back = _error(found, answers)
        flat = maps[-1].reshape(len(inputs), -1)
        out["scores"][:], out["biases_4"][:] = flat.T @ back, back.sum(axis=0)
        back = (back @ own["scores"].T).reshape(maps[-1].shape)
        for layer in (3, 2, 1):
            back = back * (maps[layer] > 0)
            rows = back.reshape(-1, back.shape[-1])
            seen = patches[layer - 1].reshape(-1, patches[layer - 1].shape[-1])
            out[f"kernels_{layer}"][:], out[f"biases_{layer}"][:] = seen.T @ rows, rows.sum(axis=0)
            if layer > 1:
                back = _unpatched(back @ own[f"kernels_{layer}"].T, maps[layer - 1], self.steps[layer - 1])
        return gradient

    def _forward(
        self, own: Mapping[str, Array], images: npt.NDArray[Any]
    ) -> tuple[Array, list[Array], list[Array]]:
        """Log probabilities, the maps before each layer and after the last, the patches of each layer."""
        side = math.isqrt(images.shape[1])
        maps: list[Array] = [images.reshape(-1, side, side, 1).astype(own["scores"].dtype, copy=False)]
        patches: list[Array] = []
        for layer, step in enumerate(self.steps, 1):
            patches.append(_patches(maps[-1], step))
            sums = patches[-1] @ own[f"kernels_{layer}"] + own[f"biases_{layer}"]
            maps.append(np.maximum(sums, 0))
        scores = maps[-1].reshape(len(images), -1) @ own["scores"] + own["biases_4"]
        return _log_softmax(scores), maps, patches


@dataclass(frozen=True)
class Transformer:
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
                fan_in = part.shape[1] if name in ("characters", "places") else len(part)
                if name.startswith(("told", "down")):
                    fan_in *= 2 * self.layers
                part[:] = random.standard_normal(part.shape) / math.sqrt(fan_in)
        return vector

    def log_probability(self, parameters: Array, inputs: npt.NDArray[Any]) -> Array:
        own = parts_of(parameters, self.shapes)
        values = own["characters"][inputs] + own["places"]
        for layer in range(self.layers):
            values = self._attend(own, layer, values)[0]
            values = self._think(own, layer, values)[0]
        last, _ = _norm(values, own["norm"])
        return _log_softmax(last.reshape(-1, self.width) @ own["scores"])

    def gradient(self, parameters: Array, inputs: npt.NDArray[Any], answers: Whole) -> Array:
        own = parts_of(parameters, self.shapes)
        gradient = np.empty_like(parameters)
        out = parts_of(gradient, self.shapes)
        values = own["characters"][inputs] + own["places"]
        saved = []
        for layer in range(self.layers):
            middle, attended = self._attend(own, layer, values)
            after, thought = self._think(own, layer, middle)
            saved.append((values, attended, middle, thought))
            values = after
        last, roots = _norm(values, own["norm"])
        flat = last.reshape(-1, self.width)
        error = _error(_log_softmax(flat @ own["scores"]), answers.reshape(-1))
        out["scores"][:] = flat.T @ error
        back, out["norm"][:] = _norm_back(
            (error @ own["scores"].T).reshape(values.shape), values, roots, own["norm"]
        )
        for layer in reversed(range(self.layers)):
            before, attended, middle, thought = saved[layer]
            back = self._think_back(own, out, layer, back, middle, thought)
            back = self._attend_back(own, out, layer, back, before, attended)
        out["places"][:] = back.sum(axis=0)
        which = np.zeros((inputs.size, self.characters), back.dtype)
        which[np.arange(inputs.size), inputs.reshape(-1)] = 1
        out["characters"][:] = which.T @ back.reshape(-1, self.width)
        return gradient

    def _attend(self, own: Mapping[str, Array], layer: int, values: Array) -> tuple[Array, tuple[Array, ...]]:
        normed, roots = _norm(values, own[f"norm_{layer}"])
        # (3, n, heads, places, width of a head)
        triple = (normed @ own[f"asked_{layer}"]).reshape(*values.shape[:2], 3, self.heads, -1)
        queries, keys, contents = triple.transpose(2, 0, 3, 1, 4)
        products = queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1])
        # nobody sees what comes later
        products[..., ~np.tri(self.places, dtype=bool)] = -np.inf
        weights = np.exp(products - products.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        joined = (weights @ contents).transpose(0, 2, 1, 3).reshape(values.shape)
        added = values + joined @ own[f"told_{layer}"]
        return added, (normed, roots, queries, keys, contents, weights, joined)

    def _attend_back(
        self,
        own: Mapping[str, Array],
        out: Mapping[str, Array],
        layer: int,
        back: Array,
        values: Array,
        saved: tuple[Array, ...],
    ) -> Array:
        normed, roots, queries, keys, contents, weights, joined = saved
        out[f"told_{layer}"][:] = _outer(joined, back)
        heads = (back @ own[f"told_{layer}"].T).reshape(*values.shape[:2], self.heads, -1)
        heads = heads.transpose(0, 2, 1, 3)
        of_weights = heads @ contents.swapaxes(-1, -2)
        products = weights * (of_weights - (of_weights * weights).sum(axis=-1, keepdims=True))
        products /= math.sqrt(queries.shape[-1])
        triple = np.stack(
            [products @ keys, products.swapaxes(-1, -2) @ queries, weights.swapaxes(-1, -2) @ heads]
        )
        flat = triple.transpose(1, 3, 0, 2, 4).reshape(*values.shape[:2], -1)
        out[f"asked_{layer}"][:] = _outer(normed, flat)
        through, out[f"norm_{layer}"][:] = _norm_back(
            flat @ own[f"asked_{layer}"].T, values, roots, own[f"norm_{layer}"]
        )
        return back + through

    def _think(self, own: Mapping[str, Array], layer: int, values: Array) -> tuple[Array, tuple[Array, ...]]:
        normed, roots = _norm(values, own[f"norm_{layer}_up"])
        lit = np.maximum(normed @ own[f"up_{layer}"], 0)
        return values + lit @ own[f"down_{layer}"], (normed, roots, lit)

    def _think_back(
        self,
        own: Mapping[str, Array],
        out: Mapping[str, Array],
        layer: int,
        back: Array,
        values: Array,
        saved: tuple[Array, ...],
    ) -> Array:
        normed, roots, lit = saved
        out[f"down_{layer}"][:] = _outer(lit, back)
        up = (back @ own[f"down_{layer}"].T) * (lit > 0)
        out[f"up_{layer}"][:] = _outer(normed, up)
        through, out[f"norm_{layer}_up"][:] = _norm_back(
            up @ own[f"up_{layer}"].T, values, roots, own[f"norm_{layer}_up"]
        )
        return back + through


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


def _norm(values: Array, gain: Array) -> tuple[Array, Array]:
    """Values over the root of their mean square, times ``gain``; and that root, (..., 1)."""
    roots: Array = np.sqrt((values * values).mean(axis=-1, keepdims=True) + LEAST)
    return values / roots * gain, roots


def _norm_back(back: Array, values: Array, roots: Array, gain: Array) -> tuple[Array, Array]:
    """Gradients by the values and by ``gain``."""
    ones, through = values / roots, back * gain
    by_values: Array = (through - ones * (through * ones).mean(axis=-1, keepdims=True)) / roots
    return by_values, (back * ones).reshape(-1, len(gain)).sum(axis=0)


def _outer(before: Array, back: Array) -> Array:
    """A matrix's gradient, from what it was multiplied with and the gradient of what came out."""
    product: Array = before.reshape(-1, before.shape[-1]).T @ back.reshape(-1, back.shape[-1])
    return product


def _patches(maps: Array, step: int) -> Array:
    """What each place's kernel sees of maps (n, side, side, c), zeros around: (n, side / step, side / step,
    9 c).
    """
    around = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
    side = maps.shape[1]
    seen = [
        around[:, row : row + side : step, column : column + side : step]
        for row in range(KERNEL)
        for column in range(KERNEL)
    ]
    return np.concatenate(seen, axis=-1)


def _unpatched(back: Array, maps: Array, step: int) -> Array:
    """The gradient by ``maps`` from that by their patches."""
    count, side, _, channels = maps.shape
    around = np.zeros((count, side + 2, side + 2, channels), back.dtype)
    for place, part in enumerate(np.split(back, KERNEL**2, axis=-1)):
        row, column = divmod(place, KERNEL)
        around[:, row : row + side : step, column : column + side : step] += part
    return around[:, 1:-1, 1:-1]
