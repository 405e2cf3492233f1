"""Computes OptINC's averages in one place without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.containers.worker.reducers import Answers, Summed, times_ranks
from ringlight.extensions.optinc.averager_place import AveragerPlace
from ringlight.extensions.optinc.unit.averaging import Coding, mean_of_means
from ringlight.extensions.optinc.unit.gradients import exact
from ringlight.fabric.whole_numbers.means import Unit

Array = NDArray[np.float32]


def unit_of(place: AveragerPlace, ranks: int) -> Unit:
    """Return the function that a job's averagers compute: the exact mean of all ranks (Eq. 3, and Eq. 8 for a
    cascade with decimals), or the mean of means for a cascade without decimals (Eq. 9).
    """
    if place.decimals or place.ports == ranks:
        return exact(Coding(place.bits, ranks))

    def means(codes: NDArray[Any]) -> NDArray[Any]:
        return mean_of_means(codes.reshape(-1, place.ports, codes.shape[1]), place.bits)

    return means


def summed_by(place: AveragerPlace, counted: Answers | None = None) -> Summed:
    """Return a function that computes ``ranks`` times the mean by the averagers at ``place``, like an
    all-reduce of sums. Answers are added to ``counted``.
    """

    def summed(vectors: Sequence[Array]) -> Array:
        ranks = len(vectors)
        unit = unit_of(place, ranks)

        def watched(codes: NDArray[Any]) -> NDArray[Any]:
            answers = unit(codes)
            if counted is not None:
                counted.all += answers.size
                counted.unlike += int(
                    (answers != exact(Coding(place.bits, ranks))(codes)).sum()
                )
            return answers

        return times_ranks(watched, vectors, place.bits)

    return summed
