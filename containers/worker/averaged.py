"""What a job with averagers must end with, computed in one place: OptINC's numbers without any network.

A rank compares the pad of every result with that, and the reference all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from containers.worker.spec import AveragerPlace
from fabric.optinc.averaging import Coding, mean_of_means
from fabric.optinc.gradients import Unit, exact, mean_by

Array = NDArray[np.float32]
#: What all ranks hold after an all-reduce, from the ranks' vectors in order of rank.
Summed = Callable[[Sequence[Array]], Array]


def unit_of(place: AveragerPlace, ranks: int) -> Unit:
    """What the averagers of a job answer: the exact mean of all (Eq. 3, and Eq. 8 of a cascade with
    decimals), or of a cascade without decimals the mean of means (Eq. 9).
    """
    if place.decimals or place.ports == ranks:
        return exact(Coding(place.bits, ranks))

    def means(codes: NDArray[Any]) -> NDArray[Any]:
        return mean_of_means(codes.reshape(-1, place.ports, codes.shape[1]), place.bits)

    return means


def summed_by(place: AveragerPlace) -> Summed:
    """``ranks`` times the mean by the averagers at ``place``, as an all-reduce of sums has it."""

    def summed(vectors: Sequence[Array]) -> Array:
        ranks = len(vectors)
        mean = mean_by(unit_of(place, ranks), vectors, place.bits)
        return np.multiply(mean, np.float32(ranks), out=mean)

    return summed
