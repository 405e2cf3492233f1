"""Weights for a unit's network that are computed by formula: *designed, not trained*.

They prove that the paper's structures suffice for the exact mean, approximated layers included, and nothing
about whether training finds such weights. The paper trains its networks; these here are not in it.

**How the mean is read off.** The mean is sum over k of A_k b^(K-k) with b = 4^g, and the inputs are multiples
of 1/N. From the most significant input on, one hidden layer each: X_k = b f_(k-1) + A_k, e_k = floor(X_k),
f_k = X_k - e_k. What floor drops goes down to the next input, and a whole e_k may be up to 2b - 1. The
carries then go up, c_k = [e_k + c_(k+1) >= b], a hidden layer each (the first of them is known with e_K);
if layers are too few, one layer finds several, of which c_(k-1) is
[b e_(k-1) + e_k + c_(k+1) >= b^2] and so on. Digits of base b > 4 are split into PAM4 symbols in one more
layer. Hidden layers left over hand on what is known. Where each carry has a layer, no compared value reaches
2b, so that a step is more than 1 / (2 b N) of the largest of them, and not 1 / (4^M N) as of the whole mean.

A comparison X >= t, X on a grid of width w, is a step of two units, ReLU(u + 3/2) - ReLU(u + 1/2) with
u = 2 (X - t) / w: 0 up to a quarter of w above t - w, and 1 from a quarter of w below t. Towards the other
end it is 1 - (ReLU(-u - 1/2) - ReLU(-u - 3/2)), the same; the nearer end is taken, with smaller units.

**How an approximated layer holds it.** Such a layer is cut into squares of side s = min(outputs, inputs),
each Sigma U: a square has that form exactly if its rows are orthogonal to each other, and its rows of zero
take any row of U. A layer uses few of its units; the others are *dark*: their row is zero and their bias far
below 0, so that they give 0 even if imperfect meshes leak some light to them. What a dark unit's column holds
has no effect: there the rows are completed to orthogonal ones, as a contraction is completed to a unitary
matrix (Halmos, "Normal dilations and extensions of operators", 1950). n rows need at most n - 1 dark columns
in their square.

**Biases** (light that always shines, of which the paper says nothing) cannot be done without: a network
without biases has f(c A) = c f(A) for c > 0. With A_K alone alight and plain PAM4, the last symbol for
A_K = 3 is 3 and so its output at least 2.5, hence at least 2.5 / 3 for A_K = 1, and for A_K = 1 - 1/N at
least (1 - 1/N) 2.5 / 3: from N = 3 on more than 1/2, which is read as 1 and not as the goal, 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.approximation import squares
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.network import Network
from ringlight.extensions.optinc.unit.pam4 import LEVELS
from ringlight.extensions.optinc.unit.structure import Structure

Matrix = NDArray[np.float64]
#: A value as a linear form: a weight for each used unit of the last layer so far, and a constant last.
Form = NDArray[np.float64]
#: Bias of dark units: far below any value of a layer, the largest of which are some thousands.
DARK = -1e5


def designed(structure: Structure) -> Network:
    """Return the network of a structure with weights by formula, float64, exact for every input.

    Raises ValueError if the structure has too few layers, units or dark units, for an approximated layer that
    cannot be cut into squares, and for a coding whose last symbol leaves in other parts than the mean has (1,
    or N times those that arrive).
    """
    forms = _forms(structure)
    # used units are far apart, so that each square has few
    places = [np.arange(structure.sizes[0])]
    places += [
        np.arange(len(form)) * (size // len(form))
        for size, form in zip(structure.sizes[1:], forms, strict=True)
    ]
    weights, biases = [], []
    for layer, ((before, after), form) in enumerate(
        zip(pairwise(places), forms, strict=True), 1
    ):
        weight, bias = (
            np.zeros(structure.shapes[layer - 1]),
            np.full(structure.sizes[layer], DARK),
        )
        weight[np.ix_(after, before)] = form[:, :-1]
        bias[after] = form[:, -1]
        if layer in structure.approximated:
            _make_orthogonal(
                weight, np.setdiff1d(np.arange(weight.shape[1]), before), layer
            )
        weights.append(weight)
        biases.append(bias)
    return Network(tuple(weights), tuple(biases))


@dataclass(frozen=True)
class _Stairs:
    """Comparisons of one value, whose values are ``grid`` apart, with each of ``thresholds``."""

    value: Form
    grid: float
    thresholds: Sequence[int]


@dataclass(frozen=True)
class _Hidden:
    """The hidden layers so far, each a matrix (used units, used units before + 1), biases in the last
    column; ``sizes`` is how many units each may have.
    """

    sizes: tuple[int, ...]
    layers: list[Matrix] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.sizes) - len(self.layers)

    def add(
        self, kept: Sequence[Form], compared: Sequence[_Stairs] = ()
    ) -> tuple[list[Form], list[Matrix]]:
        """Add a layer that keeps values (>= 0) and compares others.

        Return both as forms of this layer's units: values, and for each comparison a matrix of a step for
        each threshold. Raises ValueError if the layer has too few units.
        """
        count = len(kept) + 2 * sum(len(stairs.thresholds) for stairs in compared)
        if count > self.sizes[len(self.layers)]:
            raise ValueError(
                f"layer {len(self.layers) + 1} has {self.sizes[len(self.layers)]} units, {count} are needed"
            )
        rows = list(kept)
        signs: list[float] = []
        for stairs in compared:
            for threshold in stairs.thresholds:
                # towards the nearer end: what is subtracted stays small
                side = 1.0 if 2 * threshold > stairs.thresholds[-1] else -1.0
                steep = 2 / stairs.grid * _plus(stairs.value, -threshold)
                rows += [side * _plus(steep, 1.5), side * _plus(steep, 0.5)]
                signs.append(side)
        self.layers.append(np.stack(rows))
        units = np.eye(count, count + 1)
        steps = units[len(kept) :: 2] - units[len(kept) + 1 :: 2]
        steps[np.array(signs) < 0, -1] += 1
        ends = np.cumsum([0, *(len(stairs.thresholds) for stairs in compared)])
        return list(units[: len(kept)]), [
            steps[start:end] for start, end in pairwise(ends)
        ]


def _forms(structure: Structure) -> list[Matrix]:
    """Return for each layer the used units' weights of the used units before, and biases as last column."""
    coding = structure.coding
    if coding.leaving not in (1, coding.servers * coding.arriving):
        raise ValueError(
            f"the last symbol leaves in {coding.leaving} parts: a designed network has 1 or "
            f"{coding.servers * coding.arriving}"
        )
    split = int(coding.group > 1)
    needed = coding.inputs + (coding.inputs > 2) + split
    hidden = _Hidden(structure.sizes[1:-1])
    if hidden.left < needed:
        raise ValueError(f"{hidden.left} hidden layers, {needed} are needed")
    values = _floors(hidden, coding)
    values = _carries(hidden, coding, values, hidden.left - split)
    if split:
        values = _symbols(hidden, coding, values)
    while hidden.left:
        values, _ = hidden.add(values)
    *symbols, last = values[: coding.symbols]
    return [*hidden.layers, np.stack([*symbols, sum(values[coding.symbols :], last)])]


def _floors(hidden: _Hidden, coding: Coding) -> list[Form]:
    """Add the layers of floor and return the numbers e_k, the last one without its carry.

    If decimals leave, f_K is last.
    """
    inputs, base = coding.inputs, LEVELS**coding.group
    waiting = list(np.eye(inputs, inputs + 1))
    numbers: list[Form] = []
    part = np.zeros(inputs + 1)
    for k, (values, parts) in enumerate(
        zip(coding.input_values, coding.input_steps, strict=True)
    ):
        x = base * part + waiting[0]
        # the largest X_k in parts: that of A_k, and b times the largest f before it, 1 - 1/N
        largest = values - 1 + (base * (parts - parts // coding.servers) if k else 0)
        stairs = _Stairs(x, 1 / parts, range(1, largest // parts + 1))
        goes_down = [x] if k < inputs - 1 or coding.leaving > 1 else []
        kept, (steps,) = hidden.add([*numbers, *waiting[1:], *goes_down], [stairs])
        numbers, waiting, goes_down = kept[:k], kept[k : inputs - 1], kept[inputs - 1 :]
        numbers.append(steps.sum(axis=0))
        if goes_down:
            part = goes_down[0] - numbers[-1]
    if inputs > 1 and len(steps) >= base:
        numbers[-1] = numbers[-1] - base * steps[base - 1]
        numbers[-2] = numbers[-2] + steps[base - 1]
    return [*numbers, part] if coding.leaving > 1 else numbers


def _carries(
    hidden: _Hidden, coding: Coding, values: list[Form], layers: int
) -> list[Form]:
    """Add the layers of the carries, at most so many, and return digits of base b from whole numbers.

    Other values are returned as they are.
    """
    base = LEVELS**coding.group
    too_large = np.arange(coding.inputs - 2, 0, -1)
    for batch in (
        np.array_split(too_large, min(layers, len(too_large))) if len(too_large) else ()
    ):
        sums = []
        for place in range(1, len(batch) + 1):
            together = sum(base**i * values[k] for i, k in enumerate(batch[:place]))
            sums.append(_Stairs(np.asarray(together), 1.0, (base**place,)))
        values, carries = hidden.add(values, sums)
        for k, (carry,) in zip(batch, carries, strict=True):
            values[k] = values[k] - base * carry
            values[k - 1] = values[k - 1] + carry
    return values


def _symbols(hidden: _Hidden, coding: Coding, values: list[Form]) -> list[Form]:
    """Add the layer of the symbols and return PAM4 symbols from digits of base b.

    Other values are returned as they are.
    """
    thresholds = range(LEVELS, LEVELS**coding.group, LEVELS)
    values, steps_of = hidden.add(
        values, [_Stairs(value, 1.0, thresholds) for value in values[: coding.inputs]]
    )
    symbols: list[Form] = []
    for value, steps in zip(values, steps_of, strict=False):
        # floor(value / 4^i) is the sum of the steps at multiples of 4^i
        every = [LEVELS**i for i in range(coding.group - 1)]
        quotients = [steps[i - 1 :: i].sum(axis=0) for i in reversed(every)]
        symbols += [
            low - LEVELS * high
            for high, low in pairwise([np.zeros_like(value), *quotients, value])
        ]
    return [*symbols, *values[coding.inputs :]]


def _plus(form: Form, constant: float) -> Form:
    result = form.copy()
    result[-1] += constant
    return result


def _make_orthogonal(weight: Matrix, dark: NDArray[np.int64], layer: int) -> None:
    """Fill columns of dark units, so that each square's rows are orthogonal to each other.

    Raises ValueError if a square has too few of them, or :func:`squares` does.
    """
    side, wide = min(weight.shape), weight.shape[1] > weight.shape[0]
    # the squares are views: what is written to them is the layer's
    for number, square in enumerate(squares(weight)):
        rows = np.flatnonzero(square.any(axis=1))
        if not rows.size:
            continue
        lengths = np.linalg.norm(square[rows], axis=1, keepdims=True)
        ones = square[rows] / lengths
        # the completed rows' products are to be the largest eigenvalue times 1: what is missing to that
        eigenvalues, axes = np.linalg.eigh(ones @ ones.T)
        lacking = eigenvalues[-1] - eigenvalues
        some = lacking > 1e-12 * eigenvalues[-1]
        left = number * side if wide else 0
        free = dark[(dark >= left) & (dark < left + side)] - left
        if some.sum() > len(free):
            raise ValueError(
                f"layer {layer}: {some.sum()} dark units are needed in a square of {side}, "
                f"{len(free)} are there"
            )
        square[np.ix_(rows, free[: some.sum()])] = (
            lengths * axes[:, some] * np.sqrt(lacking[some])
        )
