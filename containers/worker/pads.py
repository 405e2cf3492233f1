"""Pads that fill a gradient buffer behind the model's gradient, and the check of their sum on every rank.

A pad is different on each rank and in each iteration, and known to all ranks, so each knows the sum.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ringlight.containers.worker.reducers import Summed
from ringlight.fabric.whole_numbers.blocks import BLOCK

Array = npt.NDArray[np.float32]
PAD_PERIOD = 251
#: Values after which a pad of fractions repeats: whole blocks.
FRACTIONS = 32 * BLOCK
#: Between the places of two neighbouring ranks: a prime, so no two of a job are near each other.
_APART = 1999


class Wrong(NamedTuple):
    """A sum that is not what it must be, at an element of the pad."""

    element: int
    got: float
    expected: float


class Pad(Protocol):
    def fill(self, out: Array, iteration: int) -> None:
        """Write this rank's pad."""

    def wrong(self, sums: Array, iteration: int) -> Wrong | None:
        """Return the first wrong element of the sum over all ranks; None if all are right."""


class WholeNumbers:
    """1 to 251 again and again, a little more on each rank and in each iteration.

    All partial sums are whole numbers below 2**24, so the sum is exact whatever the order.
    """

    def __init__(self, rank: int, ranks: int, count: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._pad = (np.arange(count) % PAD_PERIOD + 1).astype(np.float32)

    def fill(self, out: Array, iteration: int) -> None:
        np.add(self._pad, np.float32(self._rank + iteration % PAD_PERIOD), out=out)

    def wrong(self, sums: Array, iteration: int) -> Wrong | None:
        n = self._ranks
        offset = n * (n - 1) // 2 + n * (iteration % PAD_PERIOD)
        return _first(sums, self._pad * np.float32(n) + np.float32(offset), 0)


class Fractions:
    """Values evenly spread from -1 to 1, so that all codes of whole numbers occur.

    ``first``: the pad's first element in the buffer, where blocks begin at multiples of BLOCK. Iterations
    differ by whole blocks, so every full block has a scale and a sum that are known beforehand. The pad's
    part of the block that the model's gradient shares is not checked: its scale may be the gradient's.
    """

    def __init__(
        self, rank: int, ranks: int, first: int, count: int, summed: Summed
    ) -> None:
        self._rank, self._ranks, self._first, self._summed = rank, ranks, first, summed
        self._table = (
            2 * np.random.RandomState(20261123).random_sample(FRACTIONS) - 1
        ).astype(np.float32)
        #: Sum of element i of any buffer's full blocks in iteration 0.
        self._sums = summed(
            [self._part(rank, 0, FRACTIONS, 0) for rank in range(ranks)]
        )
        self._from = -(-first // BLOCK) * BLOCK
        self._to = max(self._from, (first + count) // BLOCK * BLOCK)

    def _part(self, rank: int, start: int, count: int, iteration: int) -> Array:
        """Return a rank's pad from element ``start`` of its buffer on."""
        place = start + rank * _APART + iteration * BLOCK
        pad: Array = np.resize(np.roll(self._table, -(place % FRACTIONS)), count)
        return pad

    def fill(self, out: Array, iteration: int) -> None:
        out[:] = self._part(self._rank, self._first, len(out), iteration)

    def wrong(self, sums: Array, iteration: int) -> Wrong | None:
        blocks = sums[self._from - self._first : self._to - self._first]
        place = (self._from + iteration * BLOCK) % FRACTIONS
        expected = np.resize(np.roll(self._sums, -place), len(blocks))
        wrong = _first(blocks, expected, self._from - self._first)
        end = self._first + len(sums)
        if wrong is None and end > self._to:
            own = [
                self._part(rank, self._to, end - self._to, iteration)
                for rank in range(self._ranks)
            ]
            wrong = _first(
                sums[self._to - self._first :],
                self._summed(own),
                self._to - self._first,
            )
        return wrong


def _first(actual: Array, expected: Array, offset: int) -> Wrong | None:
    if np.array_equal(actual, expected):
        return None
    index = int(np.flatnonzero(actual != expected)[0])
    return Wrong(offset + index, float(actual[index]), float(expected[index]))
