"""Blocks of a torus: where a job of given sides fits, as shuoshuc/RFold's ``firstfit`` finds it.

All orders of a job's sides are tried, in each all places in order, round the ends of the torus too. Jobs in
blocks share no link, so they go at ideal speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Cells = tuple[npt.NDArray[np.int64], ...]


class Torus:
    """The free GPUs of a torus."""

    def __init__(self, sides: Sequence[int]) -> None:
        self.free = np.ones(tuple(sides), dtype=np.bool_)

    def find(self, sides: Sequence[int]) -> Cells | None:
        """The first block of free GPUs with these sides in some order; None where there is none."""
        if len(sides) != self.free.ndim:
            return None
        for order in dict.fromkeys(itertools.permutations(sides)):
            if any(side > own for side, own in zip(order, self.free.shape, strict=True)):
                continue
            begins = self.free
            for axis, side in enumerate(order):
                begins = np.logical_and.reduce([np.roll(begins, -step, axis) for step in range(side)])
            if begins.any():
                first = np.unravel_index(int(begins.argmax()), begins.shape)
                spans = zip(first, order, self.free.shape, strict=True)
                return tuple(np.ix_(*((np.arange(a, a + side)) % own for a, side, own in spans)))
        return None
