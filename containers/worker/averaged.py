"""Computes OptINC's averages, and sums of a ring of whole numbers, in one place without a network.

A rank compares the pad of every result with that, and the reference all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.containers.worker.spec import AveragerPlace, WorkerSpec
from ringlight.fabric.optinc.averaging import Coding, mean_of_means
from ringlight.fabric.optinc.gradients import Unit, exact, mean_by
from ringlight.fabric.optinc.sums import mean
from ringlight.fabric.schedules import parse_collective

Array = NDArray[np.float32]
#: What all ranks hold after an all-reduce, from the ranks' vectors in order of rank.
Summed = Callable[[Sequence[Array]], Array]


def unit_of(place: AveragerPlace, ranks: int) -> Unit:
    """Return the function that a job's averagers compute: the exact mean of all ranks (Eq. 3, and Eq. 8 for a
    cascade with decimals), or the mean of means for a cascade without decimals (Eq. 9).
    """
    if place.decimals or place.ports == ranks:
        return exact(Coding(place.bits, ranks))

    def means(codes: NDArray[Any]) -> NDArray[Any]:
        return mean_of_means(codes.reshape(-1, place.ports, codes.shape[1]), place.bits)

    return means


@dataclass
class Answers:
    """Number of the averagers' answers, and of answers that were not the mean of all ranks' numbers (Eq.
    8).
    """

    all: int = 0
    unlike: int = 0


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
                counted.unlike += int((answers != exact(Coding(place.bits, ranks))(codes)).sum())
            return answers

        return _times_ranks(watched, vectors, place.bits)

    return summed


def summed_in(bits: int) -> Summed:
    """Return a function that computes ``ranks`` times the exact mean of codes of ``bits`` bits, like a ring
    of whole numbers.
    """

    def exact_mean(codes: NDArray[Any]) -> NDArray[Any]:
        return mean(codes.sum(axis=0, dtype=np.uint32), bits, len(codes))

    return lambda vectors: _times_ranks(exact_mean, vectors, bits)


def summed_of(spec: WorkerSpec, counted: Answers | None = None) -> Summed | None:
    """Return the function that sums the vectors of a job's ranks; None if they are added as float32 values.
    The averagers' answers are added to ``counted``.
    """
    if spec.averager is not None:
        return summed_by(spec.averager, counted)
    bits = parse_collective(spec.collective).bits
    return None if bits is None else summed_in(bits)


def _times_ranks(unit: Unit, vectors: Sequence[Array], bits: int) -> Array:
    average = mean_by(unit, vectors, bits)
    return np.multiply(average, np.float32(len(vectors)), out=average)
