"""Arithmetic whose result does not depend on the machine, bit by bit.

IEEE 754 says how +, -, *, / and the square root round, and numpy applies each to one element at a time. All
else differs between machines: the order in which BLAS and numpy's reductions add (threads, width of the CPU's
vectors, version), products fused with sums, the last bits of exp, log and tanh. So nothing of that is used
here: sums are added in an order that their length alone decides, and exp and log are series.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

LN2 = 0.6931471805599453
#: Rows of a product that are computed at once: their terms stay in the CPU's cache.
_ROWS = 128
#: Taylor series of exp, highest power first: 5e-16 of the value for what is left after powers of two.
_EXP = [1 / math.factorial(n) for n in reversed(range(14))]
#: atanh(z)/z = 1 + z²/3 + z⁴/5 + …, highest power first: 1e-16 for |z| <= 1/3.
_ATANH = [1 / (2 * n + 1) for n in reversed(range(16))]


def total(parts: Array) -> Array:
    """Return the sum over the first axis, which has at least one element. Halves are added to each other
    until one element is left.
    """
    while (count := len(parts)) > 1:
        half = count // 2
        sums = parts[:half] + parts[half : 2 * half]
        if count % 2:
            sums[0] += parts[-1]
        parts = sums
    first: Array = parts[0]
    return first


def product(left: Array, right: Array) -> Array:
    """Return the matrix product of shapes (n, k) and (k, m). Its sums over k are added in the order of
    ``total``.
    """
    result: Array = np.concatenate(
        [
            total(
                np.ascontiguousarray(left[row : row + _ROWS].T)[:, :, np.newaxis]
                * right[:, np.newaxis, :]
            )
            for row in range(0, len(left), _ROWS)
        ]
    )
    return result


def exp(x: Doubles) -> Doubles:
    """Return e to the power of each element, to within 1e-13 of the result if the result is a normal
    number.
    """
    power = np.rint(x / LN2)
    powers: Doubles = np.ldexp(
        _polynomial(_EXP, x - power * LN2), power.astype(np.intc)
    )
    return powers


def log(x: Doubles) -> Doubles:
    """Return the natural logarithm of each element. Elements are positive. The error is at most 1e-15, or
    1e-15 of the result if that is larger than 1.
    """
    mantissa, exponent = np.frexp(x)
    z = (mantissa - 1) / (mantissa + 1)
    logarithms: Doubles = exponent * LN2 + 2 * z * _polynomial(_ATANH, z * z)
    return logarithms


def tanh(x: Doubles) -> Doubles:
    """Return the hyperbolic tangent of each element, to within 1e-15."""
    tangents: Doubles = 1 - 2 / (exp(2 * x) + 1)
    return tangents


def _polynomial(coefficients: list[float], x: Doubles) -> Doubles:
    value: Doubles = np.full(x.shape, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value
