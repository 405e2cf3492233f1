"""The mean of gradients through a unit, in one place: what each of N ranks ends with.

A unit is here a function from the codes of its N servers, (N, values), to its answers, (values,).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.averaging import Coding, goal, index_of
from ringlight.extensions.optinc.unit.network import Table
from ringlight.fabric.whole_numbers.blocks import BLOCK
from ringlight.fabric.whole_numbers.means import Unit


def exact(coding: Coding) -> Unit:
    """Return the unit that answers the exact mean without its decimals (Eq. 3)."""
    return lambda codes: goal(codes, coding)


def by_table(table: Table) -> Unit:
    """Return the unit that answers according to a network's table, right or wrong.

    Raises ValueError for a table whose signals come or leave in parts of a level.
    """
    coding = table.coding
    if (coding.arriving, coding.leaving) != (1, 1):
        raise ValueError(
            f"signals in parts of a level ({coding.arriving}, {coding.leaving}) are no codes"
        )
    return lambda codes: table.answers[index_of(codes, coding)]


def steps(
    shared: NDArray[np.int16], bits: int, size: int, block: int = BLOCK
) -> NDArray[np.float32]:
    """Return for each of ``size`` values the step of its block, 2^(e - B + 1)."""
    of_blocks = np.ldexp(np.float32(1), shared.astype(np.int32) - bits + 1)
    return np.repeat(of_blocks, block)[:size]
