"""Compute the inputs that a unit gets from P, and the mean that it should answer, in whole numbers.

P adds, for each of the K inputs of the network, a group of g = ceil(M / K) neighbouring symbols of all N
servers: A_k = (1/N) sum over servers of the group's value, 0 to 4^g - 1 in steps of 1/N (section III,
"preprocessing"). The sum is linear, so the carries from one group to the next are still in it. Here inputs
are kept as whole numbers N A_k; there are (N (4^g - 1) + 1)^K combinations of them. Only M that K divides
are taken, as in all of the paper's cases.

The goal is G* = floor(sum of G_n / N) (Eq. 3; Q drops decimals).

**Two levels** (section III, cascade): N units of N servers, and one unit that averages what these answer.
With Eq. 9 each level drops its decimals. With Eq. 10 the first level leaves its decimal d = 0, 1/N ..
(N-1)/N on the last PAM4 symbol, which then has 4 N levels (16 for N = 4) and which the second level must
not read as PAM4. Because Q(a) + d = a, that is Eq. 8, the mean of all N^2. A :class:`Coding` has both:
into how many parts a level of the last symbol is divided as it arrives, and as it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.pam4 import (
    LEVELS,
    symbol_count,
    to_codes,
    to_symbols,
)
from ringlight.fabric.steps import IntArray


@dataclass(frozen=True)
class Coding:
    """Meaning of a unit's inputs and outputs.

    bits      B of the numbers
    servers   N, signals that it averages
    inputs    K of the network; the paper has 4
    arriving  parts of a level of the last symbol that arrives: 1 is plain PAM4
    leaving   the same of the last symbol that leaves

    A signal's number counts parts: 0 .. arriving 2^B - 1, and an answer's 0 .. leaving 2^B - 1.
    Raises ValueError for what cannot be.
    """

    bits: int
    servers: int
    inputs: int = 4
    arriving: int = 1
    leaving: int = 1

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 16:
            raise ValueError(f"{self.bits} bits: 2 to 16 are possible")
        for name in ("servers", "inputs", "arriving", "leaving"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1")
        if self.symbols % self.inputs:
            raise ValueError(
                f"{self.symbols} PAM4 symbols ({self.bits} bits) make no groups for {self.inputs} inputs"
            )
        if LEVELS * self.leaving > 256:
            raise ValueError(
                f"leaving is {self.leaving}: at most 64, for a level fits in a byte"
            )

    @property
    def symbols(self) -> int:
        """M, PAM4 symbols of a number; outputs of the network."""
        return symbol_count(self.bits)

    @property
    def group(self) -> int:
        """g = M / K, symbols that one input takes."""
        return self.symbols // self.inputs

    @property
    def input_values(self) -> tuple[int, ...]:
        """Return how many values each input can have, the most significant input first."""
        plain = self.servers * (LEVELS**self.group - 1) + 1
        last = self.servers * (self.arriving * LEVELS**self.group - 1) + 1
        return (*(plain,) * (self.inputs - 1), last)

    @property
    def combinations(self) -> int:
        """Return how many combinations of inputs there are: the rows of a table."""
        count = 1
        for values in self.input_values:
            count *= values
        return count

    @property
    def output_levels(self) -> tuple[int, ...]:
        """Levels of each of the M outputs, the most significant first, in steps of a level or, last, of a
        part of one.
        """
        return (*(LEVELS,) * (self.symbols - 1), LEVELS * self.leaving)

    @property
    def input_steps(self) -> tuple[int, ...]:
        """For each input, by what to divide its whole number for the light that enters the network: N, and N
        parts last.
        """
        return (*(self.servers,) * (self.inputs - 1), self.servers * self.arriving)


def groups(numbers: NDArray[Any], coding: Coding) -> IntArray:
    """Return the amounts that one signal's numbers add to each N A_k (the last in parts): shape (..., K)."""
    weights = _weights(coding)
    high = numbers.astype(np.int64)[..., None] // weights
    high[..., 1:-1] %= LEVELS**coding.group
    if coding.inputs > 1:
        high[..., -1] %= coding.arriving * LEVELS**coding.group
    return high


def averages(numbers: NDArray[Any], coding: Coding) -> IntArray:
    """Return the inputs N A_k, shape (..., K), from the signals' numbers (N, ...): this is P.

    The last input is in parts of 1 / arriving. Raises ValueError for another number of signals than the unit
    has, or a number out of range.
    """
    _check(numbers, coding)
    inputs: IntArray = groups(numbers, coding).sum(axis=0)
    return inputs


def goal(numbers: NDArray[Any], coding: Coding) -> IntArray:
    """Return the exact answer to the signals' numbers (N, ...): floor of their mean (Eq. 3).

    The answer is in parts of the leaving symbol. Raises ValueError for another number of signals than the
    unit has, or a number out of range.
    """
    _check(numbers, coding)
    return _answer(numbers.sum(axis=0, dtype=np.int64), coding)


def goals(coding: Coding, start: int = 0, end: int | None = None) -> IntArray:
    """Return the exact answers to the input combinations from ``start`` to before ``end``.

    By default these are all combinations.
    """
    return goals_of(
        np.arange(start, coding.combinations if end is None else end), coding
    )


def goals_of(index: NDArray[Any], coding: Coding) -> IntArray:
    """Return the exact answer to each input combination by its index."""
    return _answer(combination(index, coding) @ _weights(coding), coding)


def offsets(coding: Coding) -> NDArray[np.uint32]:
    """Return for each number of a signal what it adds to the index of the input combination.

    The index is a number of mixed radix with the inputs as digits, the last one the least. It is linear in
    the inputs, and these in the signals: the index of a row of signals is ``offsets[a] + offsets[b] + ...``,
    one look-up each.
    """
    numbers = np.arange(coding.arriving * 2**coding.bits)
    return (groups(numbers, coding) @ _places(coding)).astype(np.uint32)


def index_of(numbers: NDArray[Any], coding: Coding) -> NDArray[np.uint32]:
    """Return the index of the input combination of the signals' numbers (N, ...).

    Raises ValueError for another number of signals than the unit has, or a number out of range.
    """
    _check(numbers, coding)
    index: NDArray[np.uint32] = offsets(coding)[numbers].sum(axis=0, dtype=np.uint32)
    return index


def combination(index: NDArray[Any], coding: Coding) -> IntArray:
    """Return the inputs (..., K), as :func:`averages` has them, of combinations by their index."""
    inputs: IntArray = (
        index.astype(np.int64)[..., None]
        // _places(coding)
        % np.array(coding.input_values)
    )
    return inputs


def to_outputs(answers: NDArray[Any], coding: Coding) -> NDArray[np.uint8]:
    """Return the M output levels of answers, shape (..., M); the last in parts of 1 / leaving."""
    whole, parts = np.divmod(answers, coding.leaving)
    symbols = to_symbols(whole, coding.symbols).astype(np.int64)
    symbols[..., -1] = symbols[..., -1] * coding.leaving + parts
    return symbols.astype(np.uint8)


def to_answers(outputs: NDArray[Any], coding: Coding) -> IntArray:
    """Return the answers that M output levels (..., M) encode, as :func:`goal` has them."""
    above = to_codes(outputs[..., :-1]).astype(np.int64)
    answers: IntArray = above * (LEVELS * coding.leaving) + outputs[..., -1]
    return answers


def mean_of_means(numbers: NDArray[Any], bits: int) -> IntArray:
    """Return floor of the mean of floors (Eq. 9), shape (...), of numbers (N units, N servers, ...)."""
    units, servers = numbers.shape[:2]
    level_1 = np.stack([goal(own, Coding(bits, servers)) for own in numbers])
    return goal(level_1, Coding(bits, units))


def _weights(coding: Coding) -> IntArray:
    """Return the worth of one step of each input in a signal's number."""
    of_groups = LEVELS ** (coding.group * np.arange(coding.inputs - 1, -1, -1))
    return np.where(
        np.arange(coding.inputs) < coding.inputs - 1,
        of_groups * coding.arriving,
        of_groups,
    )


def _places(coding: Coding) -> IntArray:
    """Return the worth of one step of each input in the index."""
    later = np.cumprod((1, *coding.input_values[:0:-1]))
    return later[::-1].astype(np.int64)


def _answer(total: NDArray[Any], coding: Coding) -> IntArray:
    answer: IntArray = total * coding.leaving // (coding.servers * coding.arriving)
    return answer


def _check(numbers: NDArray[Any], coding: Coding) -> None:
    if numbers.shape[0] != coding.servers:
        raise ValueError(
            f"{numbers.shape[0]} signals, but the unit has {coding.servers} servers"
        )
    most = coding.arriving * 2**coding.bits - 1
    if numbers.size and (int(numbers.max()) > most or int(numbers.min()) < 0):
        raise ValueError(
            f"numbers from {numbers.min()} to {numbers.max()}: {coding.bits} bits are 0 to {most}"
        )
