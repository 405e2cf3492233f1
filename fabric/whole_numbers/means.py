"""The mean of ranks' vectors by way of whole numbers, in one place: what each of N ranks ends with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.fabric.whole_numbers.blocks import (
    BLOCK,
    code_type,
    dequantise,
    exponents,
    merge,
    quantise,
    raised,
)

#: Codes (N, values) of type ``blocks.code_type`` to answers (values,) from 0 to 2^B - 1.
Unit = Callable[[NDArray[Any]], NDArray[Any]]


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
        [
            quantise(own, shared, bits, block, raised(rank, ranks))
            for rank, own in enumerate(gradients)
        ]
    )
    return dequantise(unit(codes).astype(code_type(bits)), shared, bits, block)
