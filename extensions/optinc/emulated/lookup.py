"""Answers of an averager: its network evaluated on every input into a table, and the lookup in that table.

The live codes go through the table. For some frames, some codes also go through the network itself, and must
agree with the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.averaging import (
    Coding,
    averages,
    goal,
    goals,
    offsets,
    to_answers,
)
from ringlight.extensions.optinc.unit.network import (
    Network,
    Table,
    forward,
    light,
    read,
    table_of,
)
from ringlight.extensions.optinc.unit.pam4 import LEVELS
from ringlight.extensions.optinc.unit.weights import unpack

#: In place of a file of weights: the exact mean, by whole numbers, without a network.
EXACT = "exact"
#: Codes looked up at once: these and their indices stay in a processor's cache.
_AT_ONCE = 2**15
#: Combinations of the exact mean computed at once.
_CHUNK = 2**18


class Disagreement(Exception):
    """The network does not answer what its table says; one line."""


def load(weights: str) -> Network | None:
    """Return the network in an ``npz`` file of w1, b1, w2 …, None for EXACT.

    Raises ValueError naming the file if the file has another content, and OSError if the file cannot be read.
    """
    if weights == EXACT:
        return None
    path = Path(weights)
    try:
        return unpack(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def evaluate(network: Network | None, coding: Coding) -> Table:
    """Return the answer to every combination of inputs, the exact answers if there is no network."""
    if network is not None:
        return table_of(network, coding)
    size = coding.combinations
    answers = np.empty(
        size, np.min_scalar_type(coding.leaving * LEVELS**coding.symbols - 1)
    )
    for start in range(0, size, _CHUNK):
        end = min(start + _CHUNK, size)
        answers[start:end] = goals(coding, start, end)
    return Table(coding, answers, 0.0)


class Lookup:
    """A table, made for looking up frames of codes.

    The index of a combination is a sum over the servers (``averaging.offsets``). Up to 8 bits two servers'
    codes make one index into a table of 64 Ki sums, which saves half of the look-ups: 1.4 times as fast.
    """

    def __init__(self, table: Table) -> None:
        self.coding = table.coding
        self._answers = table.answers
        single = offsets(table.coding)
        kind = np.uint16 if table.coding.combinations <= 2**16 else np.uint32
        self._paired = single.size <= 2**8 and table.coding.servers % 2 == 0
        if self._paired:
            both = np.zeros((2**8, 2**8), kind)
            both[: single.size, : single.size] = single[:, None] + single[None, :]
            self._sums = both.ravel()
        else:
            self._sums = single.astype(kind)
        self._index = np.empty(_AT_ONCE, np.intp)
        self._pair = np.empty(_AT_ONCE, np.uint16)
        self._one, self._sum = np.empty(_AT_ONCE, kind), np.empty(_AT_ONCE, kind)

    def __call__(self, numbers: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The answers to the servers' numbers, each of one dimension, in range and of one length."""
        size = numbers[0].size
        answers = np.empty(size, self._answers.dtype)
        for start in range(0, size, _AT_ONCE):
            end = min(start + _AT_ONCE, size)
            self._piece([own[start:end] for own in numbers], answers[start:end])
        return answers

    def _piece(self, numbers: Sequence[NDArray[Any]], answers: NDArray[Any]) -> None:
        size = answers.size
        index, addend, total = self._index[:size], self._one[:size], self._sum[:size]
        if self._paired:
            pair = self._pair[:size]
            for first in range(0, len(numbers), 2):
                np.left_shift(numbers[first], 8, out=pair, dtype=np.uint16)
                np.bitwise_or(pair, numbers[first + 1], out=pair)
                index[:] = pair
                self._add(index, addend, total, first == 0)
        else:
            for rank, own in enumerate(numbers):
                index[:] = own
                self._add(index, addend, total, rank == 0)
        index[:] = total
        # Everything is in range: "wrap" only spares a copy that "raise" would make.
        self._answers.take(index, out=answers, mode="wrap")

    def _add(
        self,
        index: NDArray[Any],
        addend: NDArray[Any],
        total: NDArray[Any],
        first: bool,
    ) -> None:
        if first:
            self._sums.take(index, out=total, mode="wrap")
        else:
            self._sums.take(index, out=addend, mode="wrap")
            np.add(total, addend, out=total)


class LookupSample:
    """Compares some answers of the table with the network's own: of every ``every``-th frame ``codes`` in a
    row, from a place that moves on.
    """

    def __init__(
        self, network: Network | None, coding: Coding, every: int = 16, codes: int = 64
    ) -> None:
        self.network, self.coding, self.every, self.codes = (
            network,
            coding,
            every,
            codes,
        )
        self.frames = 0
        #: Answers compared.
        self.checked = 0

    def check(self, numbers: Sequence[NDArray[Any]], answers: NDArray[Any]) -> None:
        """Check a frame. Raises Disagreement."""
        self.frames += 1
        if (self.frames - 1) % self.every or not answers.size:
            return
        start = (self.frames // self.every * self.codes) % max(
            1, answers.size - self.codes + 1
        )
        some = np.stack([own[start : start + self.codes] for own in numbers])
        expected = self._compute(some)
        looked_up = answers[start : start + self.codes]
        if (wrong := np.flatnonzero(looked_up != expected)).size:
            place = int(wrong[0])
            raise Disagreement(
                f"code {start + place} of a frame: the table says {looked_up[place]}, "
                f"the network {expected[place]} for {some[:, place].tolist()}"
            )
        self.checked += looked_up.size

    def _compute(self, numbers: NDArray[Any]) -> NDArray[Any]:
        if self.network is None:
            return goal(numbers, self.coding)
        outputs = forward(
            self.network, light(averages(numbers, self.coding), self.coding)
        )
        return to_answers(read(outputs, self.coding), self.coding)
