"""The circuits of the phases of a job, and which of them stand. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringlight.extensions.sip_ml.allocation.dividing import Divider
from ringlight.extensions.sip_ml.divided.planes import Lightpath, Paths
from ringlight.extensions.sip_ml.phases import Phase


def phase_paths(divider: Divider, phase: Phase, gpu_of_rank: Sequence[int]) -> Paths:
    """Return the lightpaths of a phase, rank i on GPU number ``gpu_of_rank[i]``.

    Raises ValueError naming the rank that sends to more others than it can have light to.
    """
    place = {rank: index for index, rank in enumerate(phase.ranks)}
    demand = np.zeros((len(place), len(place)))
    for (source, destination), size in phase.demand.items():
        demand[place[source], place[destination]] += size
    paths = divider.division(demand).paths
    gpus = [gpu_of_rank[rank] for rank in phase.ranks]
    return {
        (gpus[source], gpus[destination]): own
        for (source, destination), own in paths.items()
    }


class ActiveCircuits:
    """The circuits that stand, as turns are set one after another: what a new turn takes and what it adds.

    A port of a GPU sends to one other and hears one other.
    """

    def __init__(self) -> None:
        self._to: dict[tuple[int, int], int] = {}
        self._from: dict[tuple[int, int], int] = {}

    def set(self, paths: Paths) -> bool:
        """Set these circuits and keep all that are not in their way.

        Return whether any circuit had to be moved.
        """
        moved = False
        for (source, destination), own in paths.items():
            for path in own:
                moved |= self._join(path.port, source, destination)
        return moved

    def _join(self, port: int, source: int, destination: int) -> bool:
        if self._to.get((source, port)) == destination:
            return False
        if (before := self._to.pop((source, port), None)) is not None:
            del self._from[before, port]
        if (other := self._from.pop((destination, port), None)) is not None:
            del self._to[other, port]
        self._to[source, port] = destination
        self._from[destination, port] = source
        return True

    @property
    def paths(self) -> Paths:
        """Return all circuits that are set."""
        lightpaths: dict[tuple[int, int], tuple[Lightpath, ...]] = {}
        for (source, port), destination in sorted(self._to.items()):
            pair = (source, destination)
            lightpaths[pair] = (*lightpaths.get(pair, ()), Lightpath(port))
        return lightpaths
