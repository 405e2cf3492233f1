"""Demands and their circuits as matrices: row is the source, column the destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringlight.fabric.steps import FloatArray, IntArray


def check_demand(demand: npt.ArrayLike) -> FloatArray:
    """Return the demand [n, n] in bytes (or any unit), as floats.

    Raises ValueError when it is not square or empty, and naming the GPU for an entry on the diagonal, the two
    GPUs for an entry that is negative or not finite.
    """
    matrix = np.asarray(demand, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        shape = " x ".join(map(str, matrix.shape))
        raise ValueError(
            f"demand: it has one row and one column for each GPU, not the shape [{shape}]"
        )
    wrong = np.argwhere(~(np.isfinite(matrix) & (matrix >= 0)))
    if len(wrong):
        i, j = wrong[0].tolist()
        raise ValueError(
            f"demand: GPU {i} to GPU {j} is {matrix[i, j]}; it must be 0 or more, and finite"
        )
    itself = np.flatnonzero(matrix.diagonal())
    if len(itself):
        raise ValueError(
            f"demand: GPU {itself[0]} sends to itself (the diagonal must be 0)"
        )
    return matrix


def placed(
    values: npt.NDArray[Any], gpu_of_rank: Sequence[int] | IntArray, gpus: int
) -> FloatArray:
    """Return the values [ranks, ranks] as [gpus, gpus], by numbers of all GPUs.

    Rank i is on GPU number ``gpu_of_rank[i]``.
    """
    demand, numbers = np.zeros((gpus, gpus)), np.asarray(gpu_of_rank, dtype=np.int64)
    demand[numbers[:, None], numbers] = values
    return demand
