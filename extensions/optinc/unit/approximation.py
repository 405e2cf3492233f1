"""Approximates matrices by Sigma U, with half the interferometers (section III, Fig. 4).

Sigma U can represent fewer matrices than U Sigma V^T.

A layer's matrix is cut along its longer side into squares W_s, one below the other or side by side. Each
becomes Sigma_a U_a with U_a = U V^T, the orthogonal matrix nearest to W_s = U Sigma V^T, and d_i the inner
product of the i-th rows of W_s and U_a: the d_i that minimise \\|W_s^i - d_i U_a^i\\|^2, for rows of U_a
have length 1. No d_i is negative. A square that already is diagonal times orthogonal stays what it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.network import Network
from ringlight.fabric.steps import FloatArray


def squares(weight: NDArray[Any]) -> NDArray[Any]:
    """Return the squares (count, s, s) of a matrix (outputs, inputs).

    They are in order from the top down or from left to right. Raises ValueError when the longer side is not a
    multiple of the shorter one.
    """
    outputs, inputs = weight.shape
    side, longer = sorted((outputs, inputs))
    if not side or longer % side:
        raise ValueError(
            f"a matrix of {outputs} x {inputs} cannot be cut into squares of {side} x {side}"
        )
    if outputs >= inputs:
        return weight.reshape(-1, side, side)
    return weight.reshape(side, -1, side).swapaxes(0, 1)


def joined(cut: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """Return the matrix of ``shape`` (outputs, inputs) whose squares these are."""
    return (
        cut.reshape(shape)
        if shape[0] >= shape[1]
        else cut.swapaxes(0, 1).reshape(shape)
    )


def factors(cut: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Return Sigma_a's diagonal (count, s) and U_a (count, s, s) of squares (count, s, s)."""
    wide = cut.astype(np.float64)
    left, _, right = np.linalg.svd(wide)
    orthogonal = left @ right
    return (wide * orthogonal).sum(axis=-1), orthogonal


def approximated(weight: NDArray[Any]) -> NDArray[Any]:
    """Return the matrix of the same shape and type that squares Sigma_a U_a make.

    Raises ValueError when the longer side is not a multiple of the shorter one.
    """
    scales, orthogonal = factors(squares(weight))
    return joined(scales[..., None] * orthogonal, weight.shape).astype(weight.dtype)


def check_layers(network: Network, layers: Collection[int]) -> None:
    """Raise ValueError naming a layer, numbered from 1, that the network does not have."""
    for layer in sorted(layers):
        if not 1 <= layer <= len(network.weights):
            raise ValueError(f"layer {layer}: the network has {len(network.weights)}")
