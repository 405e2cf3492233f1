"""GPUs that fail: which jobs are on failed units, and what replaces these.

A cluster's GPUs are in units that fail whole: servers, or larger slices of which one server takes all. A
job's GPUs on a switch are in the units that it fills most tightly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ringlight.extensions.cluster.clusters import Cluster
from ringlight.fabric.gpu_choice import fewest_parts

#: A unit: its switch, and its number there.
Unit = tuple[int, int]


class Units:
    """The units of a cluster and who is on them."""

    def __init__(self, cluster: Cluster, gpus: int) -> None:
        self._free: list[dict[int, int]] = [
            {
                number: min(gpus, own - number * gpus)
                for number in range(-(-own // gpus))
            }
            for own in cluster.gpus
        ]
        self.all: list[Unit] = [
            (leaf, number) for leaf, units in enumerate(self._free) for number in units
        ]
        self._down: dict[Unit, int] = defaultdict(int)
        self._idle: dict[Unit, int] = {}  # free GPUs of units that are down
        self._of: dict[int, dict[Unit, int]] = defaultdict(dict)
        self._on: dict[Unit, dict[int, int]] = defaultdict(dict)

    def take(self, job: int, placed: Mapping[int, int]) -> None:
        """Give a job GPUs of units that are up."""
        for leaf, count in placed.items():
            for number, taken in fewest_parts(self._free[leaf], count):
                unit = (leaf, number)
                self._free[leaf][number] -= taken
                self._of[job][unit] = self._of[job].get(unit, 0) + taken
                self._on[unit][job] = self._on[unit].get(job, 0) + taken

    def give(self, job: int) -> dict[int, int]:
        """Take all GPUs from a job. Return how many of them are up, by switch."""
        back: dict[int, int] = defaultdict(int)
        for unit in list(self._of.pop(job, {})):
            leaf, count = self._leave(unit, job)
            back[leaf] += count
        return back

    def _leave(self, unit: Unit, job: int) -> tuple[int, int]:
        """Take a job off a unit. Return the unit's switch, and how many GPUs become free there."""
        leaf, number = unit
        count = self._on[unit].pop(job)
        if self._down[unit]:
            self._idle[unit] += count
            return leaf, 0
        self._free[leaf][number] += count
        return leaf, count

    def fail(self, unit: Unit) -> tuple[int, dict[int, int]]:
        """Note one more failure of a unit. Return how many free GPUs are lost by it, and the GPUs of each job
        on the unit.

        Both are empty if the unit was down already.
        """
        self._down[unit] += 1
        if self._down[unit] > 1:
            return 0, {}
        leaf, number = unit
        self._idle[unit] = self._free[leaf].pop(number)
        return self._idle[unit], dict(self._on[unit])

    def mend(self, unit: Unit) -> int:
        """Note one repair of a unit. Return how many free GPUs it has if it is up now; -1 if it stays
        down.
        """
        self._down[unit] -= 1
        if self._down[unit]:
            return -1
        self._free[unit[0]][unit[1]] = self._idle.pop(unit)
        return self._free[unit[0]][unit[1]]

    def broken(self, job: int) -> dict[Unit, int]:
        """Return how many GPUs of a job are down, by unit."""
        return {
            unit: count
            for unit, count in self._of.get(job, {}).items()
            if self._down[unit]
        }

    def replace(self, job: int, unit: Unit, leaf: int) -> None:
        """Replace a job's GPUs on a unit that is down by spares on a switch."""
        count = self._of[job].pop(unit)
        self._leave(unit, job)
        self.take(job, {leaf: count})

    @property
    def jobs(self) -> Mapping[int, Mapping[Unit, int]]:
        """All jobs with their units."""
        return self._of
