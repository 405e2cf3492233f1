"""The model that the workers train: a small classifier of handwritten digits, in numpy.

One hidden layer, tanh, softmax cross-entropy, plain stochastic gradient descent. The data are the UCI
optical handwritten digits (see containers/data/README.md): 1,797 images of 8x8 pixels. Everything random
comes from numpy's legacy generator, whose streams of integers are frozen for all numpy versions, and all sums
from ``containers.worker.arithmetic``: a training ends with the same bits on every machine.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.arithmetic import (
    Doubles,
    exp,
    log,
    product,
    tanh,
    total,
)
from ringlight.containers.worker.pads import Fractions, Pad, WholeNumbers
from ringlight.containers.worker.reducers import Summed

Array = npt.NDArray[np.float32]

DATA = Path(__file__).resolve().parents[1] / "data" / "digits.csv.gz"
PIXELS, HIDDEN, CLASSES = 64, 32, 10
HELD_OUT = 297
#: Parameters: two weight matrices and two bias vectors.
PARAMETERS = PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES


@cache
def digits() -> tuple[Array, npt.NDArray[np.intp]]:
    """Return the images of the data set as (1797, 64) float32 in 0..1, and their labels 0..9, in a fixed
    mixed order.
    """
    text = gzip.decompress(DATA.read_bytes()).decode()
    table = np.array([line.split(",") for line in text.split()], dtype=np.float32)
    table = table[np.random.RandomState(0).permutation(len(table))]
    return np.ascontiguousarray(table[:, :PIXELS]) / np.float32(16), table[
        :, PIXELS
    ].astype(np.intp)


def training_set() -> tuple[Array, npt.NDArray[np.intp]]:
    images, labels = digits()
    return images[:-HELD_OUT], labels[:-HELD_OUT]


def held_out_set() -> tuple[Array, npt.NDArray[np.intp]]:
    images, labels = digits()
    return images[-HELD_OUT:], labels[-HELD_OUT:]


def initial_parameters(seed: int) -> Array:
    """Return the initial parameters as one vector of ``PARAMETERS`` float32. Weights are uniform with
    variance 1/fan-in, biases are zero.

    Normal weights would need the C library's logarithm.
    """
    random = np.random.RandomState(seed)
    parameters = np.zeros(PARAMETERS, dtype=np.float32)
    first, _, second, _ = layers(parameters)
    for weights in (first, second):
        weights[:] = (2 * random.random_sample(weights.shape) - 1) * math.sqrt(
            3 / len(weights)
        )
    return parameters


def layers(vector: Array) -> tuple[Array, Array, Array, Array]:
    """Return views of a parameter (or gradient) vector: weights and biases of both layers."""
    cuts = np.cumsum([PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
    first, first_bias, second, second_bias = np.split(vector[:PARAMETERS], cuts)
    return (
        first.reshape(PIXELS, HIDDEN),
        first_bias,
        second.reshape(HIDDEN, CLASSES),
        second_bias,
    )


def forward(parameters: Array, images: Array) -> tuple[Array, Doubles]:
    """Return hidden activations (n, 32) and log-probabilities (n, 10)."""
    first, first_bias, second, second_bias = layers(parameters)
    hidden = tanh((product(images, first) + first_bias).astype(np.float64)).astype(
        np.float32
    )
    scores = (product(hidden, second) + second_bias).astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    return hidden, scores - log(total(exp(scores).T))[:, np.newaxis]


def loss_of(parameters: Array, images: Array, labels: npt.NDArray[np.intp]) -> float:
    """Return the mean cross-entropy in nats."""
    _, log_probability = forward(parameters, images)
    return _mean_loss(log_probability, labels)


def accuracy_of(
    parameters: Array, images: Array, labels: npt.NDArray[np.intp]
) -> float:
    """Return the share of images that are classified correctly, 0..1."""
    _, log_probability = forward(parameters, images)
    return int((log_probability.argmax(axis=1) == labels).sum()) / len(labels)


def gradient(
    parameters: Array, images: Array, labels: npt.NDArray[np.intp], out: Array
) -> float:
    """Write the gradient of the mean loss of a batch to ``out[:PARAMETERS]``; returns that loss."""
    hidden, log_probability = forward(parameters, images)
    error = exp(log_probability).astype(np.float32)
    error[np.arange(len(labels)), labels] -= 1
    error /= np.float32(len(labels))
    _, _, second, _ = layers(parameters)
    first_gradient, first_bias_gradient, second_gradient, second_bias_gradient = layers(
        out
    )
    second_gradient[:] = product(hidden.T, error)
    second_bias_gradient[:] = total(error)
    back = product(error, second.T) * (1 - hidden * hidden)
    first_gradient[:] = product(images.T, back)
    first_bias_gradient[:] = total(back)
    return _mean_loss(log_probability, labels)


def _mean_loss(log_probability: Doubles, labels: npt.NDArray[np.intp]) -> float:
    return -float(total(log_probability[np.arange(len(labels)), labels])) / len(labels)


def fingerprint(parameters: Array) -> str:
    """Return the SHA-256 of the parameters as little-endian float32, in hexadecimal digits."""
    return hashlib.sha256(parameters.astype("<f4").tobytes()).hexdigest()


class Replica:
    """One rank's part of a synchronous data-parallel training.

    Its gradient buffer has ``gradient_bytes`` / 4 elements: the model's gradient, then a pad (``pads``),
    whose sum every rank checks. ``summed``: how the ranks' vectors are summed if sums are not exact.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        gradient_bytes: int,
        batch: int,
        seed: int,
        learning_rate: float,
        summed: Summed | None = None,
    ) -> None:
        self.rank, self.world_size, self.batch, self.seed = (
            rank,
            world_size,
            batch,
            seed,
        )
        self.rate = np.float32(learning_rate / world_size)
        self.parameters = initial_parameters(seed)
        self.buffer: Array = np.zeros(gradient_bytes // 4, dtype=np.float32)
        padding = len(self.buffer) - PARAMETERS
        self._pad: Pad = (
            WholeNumbers(rank, world_size, padding)
            if summed is None
            else Fractions(rank, world_size, PARAMETERS, padding, summed)
        )
        self._images, self._labels = training_set()
        self._epoch, self._order = -1, np.empty(0, dtype=np.intp)

    def compute(self, iteration: int) -> float:
        """Fill the buffer with this iteration's gradient and pad; returns the batch's mean loss."""
        chosen = self._batch(iteration)
        loss = gradient(
            self.parameters, self._images[chosen], self._labels[chosen], self.buffer
        )
        self._pad.fill(self.buffer[PARAMETERS:], iteration)
        return loss

    def update(self, iteration: int) -> None:
        """Apply the summed gradient in the buffer. Raises ArithmeticError when the pad's sum is wrong."""
        if (wrong := self._pad.wrong(self.buffer[PARAMETERS:], iteration)) is not None:
            raise ArithmeticError(
                f"iteration {iteration}: all-reduce gave {wrong.got}"
                f" instead of {wrong.expected} at pad element {wrong.element}"
            )
        self.parameters -= self.rate * self.buffer[:PARAMETERS]

    def loss(self) -> float:
        """Return the mean loss over the whole training set in nats, which is the same on every rank."""
        return loss_of(self.parameters, self._images, self._labels)

    def accuracy(self) -> float:
        """Return the share of the held-out images that are classified correctly, 0..1."""
        return accuracy_of(self.parameters, *held_out_set())

    def _batch(self, iteration: int) -> npt.NDArray[np.intp]:
        """Return the indices of the images of this rank's batch. The ranks share out one order per epoch, no
        image twice.
        """
        count = self.batch * self.world_size
        per_epoch = max(1, len(self._labels) // count)
        epoch, index = divmod(iteration, per_epoch)
        if epoch != self._epoch:
            random = np.random.RandomState([self.seed, epoch])
            self._epoch, self._order = epoch, random.permutation(len(self._labels))
        start = index * count + self.rank * self.batch
        return np.take(self._order, np.arange(start, start + self.batch), mode="wrap")
