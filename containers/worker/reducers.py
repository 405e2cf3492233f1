"""All-reduces of workers that are not added up step by step, and their sums in one place without a network.

A rank compares the pad of every result with that, and the reference all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringlight.containers.worker.spec import WorkerSpec
from ringlight.fabric.algorithms import parse_collective
from ringlight.fabric.whole_numbers.means import Unit, mean_by
from ringlight.fabric.whole_numbers.sums import mean

Array = NDArray[np.float32]
#: What all ranks hold after an all-reduce, from the ranks' vectors in order of rank.
Summed = Callable[[Sequence[Array]], Array]


@dataclass
class Answers:
    """Number of answers that devices gave, and of answers that were not the mean of all ranks' numbers."""

    all: int = 0
    unlike: int = 0


class Reducer(Protocol):
    """Carries out a collective without steps on workers (``fabric.algorithms.Algorithm.worker``)."""

    def check(self, spec: WorkerSpec) -> None:
        """Raise BadSpec for a worker that it cannot serve."""

    def payload(self) -> Any:
        """Return the subclass of ``gradients.Gradients`` whose sums it makes."""

    def summed(self, spec: WorkerSpec, counted: Answers | None) -> Summed:
        """Return the function that sums the vectors of a job's ranks. Answers are added to ``counted``."""


def reducer_of(spec: WorkerSpec) -> Reducer | None:
    """Return what carries out the collective of a job; None if it goes by steps."""
    load = parse_collective(spec.collective).kind.worker
    if load is None:
        return None
    reducer: Reducer = load()
    return reducer


def summed_in(bits: int) -> Summed:
    """Return a function that computes ``ranks`` times the exact mean of codes of ``bits`` bits, like a ring
    of whole numbers.
    """

    def exact_mean(codes: NDArray[Any]) -> NDArray[Any]:
        return mean(codes.sum(axis=0, dtype=np.uint32), bits, len(codes))

    return lambda vectors: times_ranks(exact_mean, vectors, bits)


def summed_of(spec: WorkerSpec, counted: Answers | None = None) -> Summed | None:
    """Return the function that sums the vectors of a job's ranks; None if they are added as float32 values.
    Answers of devices are added to ``counted``.
    """
    if (reducer := reducer_of(spec)) is not None:
        return reducer.summed(spec, counted)
    bits = parse_collective(spec.collective).bits
    return None if bits is None else summed_in(bits)


def times_ranks(unit: Unit, vectors: Sequence[Array], bits: int) -> Array:
    """Return the mean of the vectors by way of a unit, times their number."""
    average = mean_by(unit, vectors, bits)
    return np.multiply(average, np.float32(len(vectors)), out=average)
