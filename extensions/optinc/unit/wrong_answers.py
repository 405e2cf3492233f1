"""Wrong answers of a unit, drawn at random: the errors that the paper reports of its trained networks.

Table II gives for networks of 16 bits and four servers which part of all inputs is answered right, and by
how much the others are off, as shares of the wrong ones. The paper injects them into training (Fig. 7a) and
does not say how. Here each answer is wrong by itself, with the same probability, which a network's errors
are not: the same input is always answered in the same way, and gradients do not use all inputs alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Errors:
    """``wrong``: part of all answers, 0..1. ``shares``: by how many codes such an answer is off, and which
    part of the wrong ones is; together 1.
    """

    wrong: float
    shares: Mapping[int, float]


def _row(accuracy_percent: float, shares_percent: Mapping[int, float]) -> Errors:
    return Errors(
        (100 - accuracy_percent) / 100,
        MappingProxyType(
            {error: share / 100 for error, share in shares_percent.items()}
        ),
    )


#: The paper's Table II by its approximated layers, 16 bits and N = 4; layers 4-6 have no errors. Shares are
#: the paper's; that both signs of its +-1, +-4 and +-1024 are equally frequent is assumed.
TABLE_II: Mapping[str, Errors] = MappingProxyType(
    {
        "4-7": _row(99.99986, {1: 45, -1: 45, -64: 10}),
        "4-8": _row(99.99999, {1024: 100}),
        "3-6": _row(99.98891, {1: 49.5, -1: 49.5, 1024: 0.45, -1024: 0.45, -4: 0.1}),
        "3-7": _row(99.99936, {4: 39.75, -4: 39.75, -16: 17, 12: 3.5}),
    }
)


def inject(
    codes: NDArray[Any], errors: Errors, bits: int, random: np.random.Generator
) -> NDArray[Any]:
    """Return a copy of ``codes``, 0 to 2^bits - 1, of which ``errors.wrong`` are off.

    A code that would leave that range is held at its end, because PAM4 symbols cannot represent other
    numbers.
    """
    wrong = np.flatnonzero(random.random(codes.size) < errors.wrong)
    off = random.choice(
        list(errors.shares), size=wrong.size, p=list(errors.shares.values())
    )
    damaged = codes.copy()
    damaged.flat[wrong] = np.clip(
        codes.flat[wrong].astype(np.int64) + off, 0, 2**bits - 1
    )
    return damaged
