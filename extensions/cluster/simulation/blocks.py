"""Blocks of a torus, a grid or a ring: where a job of given sides fits, as RFold's ``firstfit`` does.

All orders of a job's sides are tried, in each all places in order, round the ends too where there are none
(shuoshuc/RFold). Jobs in blocks share no link, so they go at ideal speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringlight.extensions.cluster.clusters import Lattice

Cells = tuple[npt.NDArray[np.int64], ...]


class Blocks:
    """The free GPUs of a lattice."""

    def __init__(self, lattice: Lattice) -> None:
        self.free = np.ones(lattice.sides, dtype=np.bool_)
        self._round_ends = lattice.round_ends

    def find(self, orders: Sequence[Sequence[int]]) -> Cells | None:
        """Return the first block of free GPUs with the sides of one of ``orders``, tried in that order; None
        if there is none.
        """
        for order in orders:
            begins = self.free
            for axis, side in enumerate(order):
                width = 1
                while width < side:
                    step = min(width, side - width)
                    begins = begins & np.roll(begins, -step, axis)
                    width += step
            if not self._round_ends:
                begins = begins.copy()
                for axis, side in enumerate(order):
                    np.moveaxis(begins, axis, 0)[begins.shape[axis] - side + 1 :] = (
                        False
                    )
            if begins.any():
                first = np.unravel_index(int(begins.argmax()), begins.shape)
                spans = zip(first, order, self.free.shape, strict=True)
                return tuple(
                    np.ix_(*((np.arange(a, a + side)) % own for a, side, own in spans))
                )
        return None
