"""Sweeps one imperfection of a unit's light and finds the share of wrong answers.

All of it is ours: the paper leaves the physics to future work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.imperfect import (
    Imperfections,
    OnMeshes,
    as_network,
)
from ringlight.extensions.optinc.unit.network import IDEAL, Signals, wrong_among

WHOLE = Imperfections()


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of the values of ``seeds`` seeds."""

    minimum: float
    median: float
    maximum: float
    seeds: int


@dataclass(frozen=True)
class Physics:
    """A unit with ``meshes`` and ``signals`` as they are."""

    meshes: Imperfections = WHOLE
    signals: Signals = IDEAL

    @property
    def drawn(self) -> bool:
        """Return whether anything is random."""
        return bool(self.meshes.phase_sigma) or self.signals.drawn


def wrong_shares(
    on: OnMeshes,
    coding: Coding,
    index: NDArray[Any],
    physics: Physics,
    seeds: Sequence[int],
) -> Spread:
    """Return the share, 0 to 1, of the input combinations ``index`` that a unit answers wrongly.

    The spread is over ``seeds``: for each seed the unit has phases of its own, and noise. If nothing is
    random, the first seed stands for all. Raises ValueError if ``imperfect.as_network`` does.
    """
    return spread(
        [
            _share(on, coding, index, physics, seed)
            for seed in seeds[: None if physics.drawn else 1]
        ]
    )


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), float(median(values)), max(values), len(values))


def harmless(spreads: Sequence[tuple[float, Spread]]) -> float | None:
    """Return the hardest of the values up to which nothing is wrong with any seed.

    The values are given from the mildest on. The result has their unit, and is None if the mildest already
    does harm.
    """
    last = None
    for value, shares in spreads:
        if shares.maximum:
            break
        last = value
    return last


def _share(
    on: OnMeshes, coding: Coding, index: NDArray[Any], physics: Physics, seed: int
) -> float:
    random = np.random.default_rng(seed)
    network = as_network(on, physics.meshes, random)
    counted = wrong_among(
        network, coding, index, signals=physics.signals, random=random
    )
    return counted.wrong / counted.inputs
