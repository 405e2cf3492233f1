"""Elements of the vectors that a collective sums: float32 values, or others added in a way of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ITEM_BYTES = 4


@dataclass(frozen=True)
class Elements:
    """Kind of the elements of a vector.

    ``add(into, what)`` adds in place. ``together``: number of elements of one item, which are never added
    separately.
    """

    kind: np.dtype[Any]
    add: Callable[[npt.NDArray[Any], npt.NDArray[Any]], object]
    together: int = 1

    @property
    def item_bytes(self) -> int:
        return self.kind.itemsize * self.together


def _add(into: npt.NDArray[Any], what: npt.NDArray[Any]) -> None:
    np.add(into, what, out=into)


FLOATS = Elements(np.dtype(np.float32), _add)
