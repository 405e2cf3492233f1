"""A unit's network as numbers: its outputs for every input there is, and how many of them are wrong.

Layer l computes h = ReLU(W h + b), the last one without ReLU; ReLU stands for the saturable absorber
(section III). The inputs are A_k, 0 to 4^g - 1, and the outputs levels of PAM4 symbols, of which a receiver
reads the nearest. Biases, of which the paper says nothing, need light that always shines; a network may
have none.

A unit's inputs have so few combinations that all of them are computed once, into a table, and that is also
the paper's "accuracy": the part of all combinations that are right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.averaging import (
    Coding,
    combination,
    goals,
    goals_of,
    to_answers,
    to_outputs,
)
from ringlight.extensions.optinc.unit.pam4 import LEVELS, nearest

FloatArray = NDArray[np.floating[Any]]
#: Combinations computed at once.
CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Network:
    """``weights``: for each layer a matrix (outputs, inputs); ``biases``: for each a vector (outputs,), or
    no biases.

    All of one type, float64 or float32, which is also that of the computing. Raises ValueError naming the
    layer (from 1) whose shape, type or values are not those of a network.
    """

    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...] | None = None

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("a network has at least one layer")
        if self.biases is not None and len(self.biases) != len(self.weights):
            raise ValueError(
                f"{len(self.biases)} biases for {len(self.weights)} layers"
            )
        before = self.weights[0].shape[-1]
        for number, weight in enumerate(self.weights, 1):
            if weight.ndim != 2 or weight.shape[1] != before:
                raise ValueError(
                    f"layer {number}: weights of shape {weight.shape}, but {before} values come in"
                )
            before = weight.shape[0]
            _check(weight, self.dtype, f"layer {number}: weights")
            if self.biases is not None:
                bias = self.biases[number - 1]
                if bias.shape != (before,):
                    raise ValueError(
                        f"layer {number}: biases of shape {bias.shape}, but {before} values go out"
                    )
                _check(bias, self.dtype, f"layer {number}: biases")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers that it computes with."""
        return self.weights[0].dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values before the first layer, and after each."""
        return (self.weights[0].shape[1], *(weight.shape[0] for weight in self.weights))


@dataclass(frozen=True)
class Signals:
    """Imperfections of the light that enters a unit and leaves it. The paper does not treat them.

    noise         of detectors: a Gaussian on each output, standard deviation in levels
    transmitters  a Gaussian on each symbol of each server, standard deviation in levels
    mismatch      by which part each server's amplitude is off for good, standard deviation
    scale         by which part all the light that enters is too bright
    """

    noise: float = 0.0
    transmitters: float = 0.0
    mismatch: float = 0.0
    scale: float = 0.0

    @property
    def drawn(self) -> bool:
        """Return whether anything is random."""
        return bool(self.noise or self.transmitters or self.mismatch)


IDEAL = Signals()


@dataclass(frozen=True, eq=False)
class Table:
    """Answers of a unit to each combination of inputs.

    answers  by index (``averaging.index_of``) the answer that receivers read, as ``averaging.goal`` has it;
    uint8 to uint32
    worst    the largest distance of an output from its goal, in levels (of the last output in its parts of
    a level); below 0.5 everything is right
    """

    coding: Coding
    answers: NDArray[Any]
    worst: float


@dataclass(frozen=True)
class Wrong:
    """Differences of a table from the exact mean.

    inputs   combinations compared
    wrong    combinations whose answer is not the goal
    by       for each difference (answer - goal) that is not 0, how many combinations have it
    worst    as in :class:`Table`
    """

    inputs: int
    wrong: int
    by: Mapping[int, int]
    worst: float


def forward(network: Network, inputs: FloatArray) -> FloatArray:
    """Return the outputs (n, M) for inputs A_k (n, K), before a receiver reads them."""
    values = inputs.astype(network.dtype, copy=False)
    last = len(network.weights) - 1
    for layer, weight in enumerate(network.weights):
        values = values @ weight.T
        if network.biases is not None:
            values += network.biases[layer]
        if layer < last:
            np.maximum(values, 0, out=values)
    return values


def compressed(network: Network) -> Network:
    """Return the same function with fewer units: without constant units and units that no other reads.

    A unit is constant if all its weights are 0; its constant goes into the next biases. Only zeros are left
    out and constants added up, so outputs differ by rounding alone: sums are taken in another order.
    """
    weights = list(network.weights)
    biases = None if network.biases is None else list(network.biases)
    for layer in range(len(weights) - 1):
        used = np.asarray(weights[layer].any(axis=1))
        if biases is not None:
            constant = np.maximum(biases[layer][~used], 0)
            biases[layer + 1] = (
                biases[layer + 1] + weights[layer + 1][:, ~used] @ constant
            )
        _keep(weights, biases, layer, used)
    for layer in reversed(range(len(weights) - 1)):
        _keep(weights, biases, layer, np.asarray(weights[layer + 1].any(axis=0)))
    return Network(tuple(weights), None if biases is None else tuple(biases))


def light(averages: NDArray[Any], coding: Coding) -> NDArray[np.float64]:
    """Return the inputs A_k of the network, from the whole numbers (..., K) of ``averaging.averages``."""
    return averages / np.array(coding.input_steps, np.float64)


def read(outputs: FloatArray, coding: Coding) -> NDArray[np.uint8]:
    """Return the levels (n, M) that receivers read from outputs (n, M); the last in parts of a level."""
    return nearest(outputs * _parts(coding), np.array(coding.output_levels))


def table_of(
    network: Network,
    coding: Coding,
    *,
    chunk: int = CHUNK,
    signals: Signals = IDEAL,
    random: np.random.Generator | None = None,
) -> Table:
    """Return the network's answer to every combination of inputs, computed ``chunk`` of them at a time.

    With ``signals`` that are drawn from ``random`` the table is what one receiver reads when each combination
    comes once. Raises ValueError when network and coding do not fit, and for random signals without a
    generator.
    """
    factors = _factors(coding, signals, random)
    answers = np.empty(
        coding.combinations,
        np.min_scalar_type(coding.leaving * LEVELS**coding.symbols - 1),
    )
    worst = 0.0
    for start in range(0, coding.combinations, chunk):
        end = min(start + chunk, coding.combinations)
        index = np.arange(start, end)
        answers[start:end], off = _answered(
            network, coding, index, signals, factors, random
        )
        worst = max(worst, off)
    return Table(coding, answers, worst)


def wrong_of(table: Table, *, chunk: int = 2**20) -> Wrong:
    """Return the differences of a table from the exact mean of every combination.

    Raises ValueError for a table of another size.
    """
    size = table.coding.combinations
    if table.answers.shape != (size,):
        raise ValueError(
            f"a table of {table.answers.size} answers, but there are {size} combinations"
        )
    pieces = ((start, min(start + chunk, size)) for start in range(0, size, chunk))
    differences = (
        table.answers[a:b].astype(np.int64) - goals(table.coding, a, b)
        for a, b in pieces
    )
    return _wrong(differences, table.worst)


def wrong_among(
    network: Network,
    coding: Coding,
    index: NDArray[Any],
    *,
    chunk: int = CHUNK,
    signals: Signals = IDEAL,
    random: np.random.Generator | None = None,
) -> Wrong:
    """Return the wrong answers to these combinations only (by index, repetitions allowed).

    They are counted as by :func:`table_of` and :func:`wrong_of`, for networks with too many combinations to
    compute them all again and again. A caller that draws a sample should report its size.
    """
    factors = _factors(coding, signals, random)
    differences, worst = [], 0.0
    for start in range(0, index.size, chunk):
        own = index[start : start + chunk]
        answers, off = _answered(network, coding, own, signals, factors, random)
        differences.append(answers - goals_of(own, coding))
        worst = max(worst, off)
    return _wrong(differences, worst)


def _answered(
    network: Network,
    coding: Coding,
    index: NDArray[Any],
    signals: Signals,
    factors: NDArray[np.float64] | None,
    random: np.random.Generator | None,
) -> tuple[NDArray[np.int64], float]:
    """Return answers to some combinations, and the largest distance of an output as in :class:`Table`."""
    ends = (coding.inputs, coding.symbols)
    if (network.sizes[0], network.sizes[-1]) != ends:
        raise ValueError(
            f"a network of {network.sizes[0]} inputs and {network.sizes[-1]} outputs; {ends} are needed"
        )
    outputs = forward(
        network, _entering(combination(index, coding), coding, signals, factors, random)
    )
    if signals.noise and random is not None:
        outputs = outputs + signals.noise * random.standard_normal(outputs.shape)
    exact = to_outputs(goals_of(index, coding), coding)
    worst = float(np.abs(outputs * _parts(coding) - exact).max(initial=0))
    return to_answers(read(outputs, coding), coding), worst


def _wrong(differences: Iterable[NDArray[np.int64]], worst: float) -> Wrong:
    inputs, by = 0, Counter[int]()
    for difference in differences:
        inputs += difference.size
        values, counts = np.unique(difference[difference != 0], return_counts=True)
        by.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return Wrong(inputs, by.total(), dict(sorted(by.items())), worst)


def _keep(
    weights: list[FloatArray],
    biases: list[FloatArray] | None,
    layer: int,
    used: NDArray[np.bool_],
) -> None:
    """Take all but the used units of a layer (from 0) out of the lists."""
    weights[layer], weights[layer + 1] = (
        weights[layer][used],
        weights[layer + 1][:, used],
    )
    if biases is not None:
        biases[layer] = biases[layer][used]


def _parts(coding: Coding) -> NDArray[np.float64]:
    """Return the steps in one level of each output."""
    return np.array([1] * (coding.symbols - 1) + [coding.leaving], np.float64)


def _factors(
    coding: Coding, signals: Signals, random: np.random.Generator | None
) -> NDArray[np.float64] | None:
    """Return the brightness of each server, once for all inputs; None if all are as they should be."""
    if signals.drawn and random is None:
        raise ValueError("noise and mismatch need a generator to draw them from")
    if not signals.mismatch or random is None:
        return None
    factors: NDArray[np.float64] = 1 + signals.mismatch * random.standard_normal(
        coding.servers
    )
    return factors


def _entering(
    whole: NDArray[np.int64],
    coding: Coding,
    signals: Signals,
    factors: NDArray[np.float64] | None,
    random: np.random.Generator | None,
) -> NDArray[np.float64]:
    """Return the inputs A_k (n, K) as they enter, of combinations (n, K) in whole numbers."""
    if factors is None:
        inputs = light(whole, coding)
    else:
        assert random is not None
        inputs = light(_parts_of_servers(whole, coding, random) @ factors, coding)
    inputs = inputs * (1 + signals.scale)
    if signals.transmitters and random is not None:
        # A group adds symbols that are worth 1, 4, 16 … levels; P adds the servers and divides by N.
        deviation = math.sqrt(
            sum(LEVELS ** (2 * place) for place in range(coding.group)) / coding.servers
        )
        inputs = inputs + signals.transmitters * deviation * random.standard_normal(
            inputs.shape
        )
    return inputs


def _parts_of_servers(
    whole: NDArray[np.int64], coding: Coding, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return the part of each server in each input, (n, K, N).

    It is one way of many that gives these sums, by chance.
    """
    most = (np.array(coding.input_values, np.int64) - 1) // coding.servers
    left, parts = whole, []
    for later in reversed(range(coding.servers)):
        lowest, highest = np.maximum(0, left - later * most), np.minimum(most, left)
        parts.append(random.integers(lowest, highest, endpoint=True))
        left = left - parts[-1]
    return random.permuted(np.stack(parts, axis=-1), axis=-1)


def _check(values: FloatArray, dtype: np.dtype[Any], what: str) -> None:
    if values.dtype != dtype or dtype not in (np.float64, np.float32):
        raise ValueError(
            f"{what} are {values.dtype}; a network is float64 or float32 throughout"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"{what} are not all finite")
