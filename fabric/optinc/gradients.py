"""The mean of gradients through a unit, in one place: what each of N ranks ends with.

A unit is here a function from the codes of its N servers, (N, values), to its answers, (values,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.fabric.optinc.averaging import Coding, goal, index_of
from ringlight.fabric.optinc.blocks import BLOCK, code_type, dequantise, exponents, merge, quantise, raised
from ringlight.fabric.optinc.network import Table

#: Codes (N, values) of type ``blocks.code_type`` to answers (values,) from 0 to 2^B - 1.
Unit = Callable[[NDArray[Any]], NDArray[Any]]


def exact(coding: Coding) -> Unit:
    """Return the unit that answers the exact mean without its decimals (Eq. 3)."""
    return lambda codes: goal(codes, coding)


def by_table(table: Table) -> Unit:
    """Return the unit that answers according to a network's table, right or wrong.

    Raises ValueError for a table whose signals come or leave in parts of a level.
    """
    coding = table.coding
    if (coding.arriving, coding.leaving) != (1, 1):
        raise ValueError(f"signals in parts of a level ({coding.arriving}, {coding.leaving}) are no codes")
    return lambda codes: table.answers[index_of(codes, coding)]


def mean_by(
    unit: Unit,
    gradients: Sequence[NDArray[np.float32]],
    bits: int,
    *,
    block: int = BLOCK,
) -> NDArray[np.float32]:
    """Return the mean of the ranks' gradients, float32 of one dimension and one length.

    Exponents are merged, values quantised, averaged by ``unit`` and turned back. Raises ValueError if the
    functions of ``blocks`` do.
    """
    ranks = len(gradients)
    shared = merge([exponents(own, block) for own in gradients])
    codes = np.stack(
        [quantise(own, shared, bits, block, raised(rank, ranks)) for rank, own in enumerate(gradients)]
    )
    return dequantise(unit(codes).astype(code_type(bits)), shared, bits, block)


def steps(shared: NDArray[np.int16], bits: int, size: int, block: int = BLOCK) -> NDArray[np.float32]:
    """Return for each of ``size`` values the step of its block, 2^(e - B + 1)."""
    of_blocks = np.ldexp(np.float32(1), shared.astype(np.int32) - bits + 1)
    return np.repeat(of_blocks, block)[:size]
