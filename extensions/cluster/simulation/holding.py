"""Assignment of a cluster's GPUs to jobs: by switch alone, as blocks of a torus, by units that fail, or by
name.

All kinds know how many GPUs of each leaf are free (``free``). A job's place is chosen first, and taken
afterwards, since light may yet move the job.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ringlight.extensions.cluster.clusters import Cluster, Lattice, Policies
from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.extensions.cluster.simulation.blocks import Blocks, Cells
from ringlight.extensions.cluster.simulation.by_gpu import Gpus
from ringlight.extensions.cluster.simulation.failing import Units
from ringlight.extensions.cluster.simulation.placing import PLACEMENTS, Free, Placed


class Holding:
    """Assignment by switch alone: a job gets any of a switch's free GPUs."""

    def __init__(self, cluster: Cluster, policies: Policies, seed: int) -> None:
        self.cluster = cluster
        self.free = Free(cluster, np.random.default_rng([seed, 3]))
        self._place = PLACEMENTS[policies.placement]

    def fits(self, job: int, count: int) -> bool:
        """Return whether there is room for a job of ``count`` GPUs."""
        return count <= self.free.total

    def choose(self, job: int, count: int) -> Placed:
        """Return a place for a job that fits: how many of its GPUs are on which leaf."""
        return self._place(self.free, count)

    def take(self, job: int, placed: Placed) -> None:
        """Give a job its GPUs."""
        self.free.take(placed)

    def give(self, job: int, placed: Placed) -> None:
        """Take a job's GPUs from it."""
        self.free.give(placed)

    def loads(
        self, job: int, placed: Placed, once_round: bool
    ) -> list[tuple[int, float]]:
        """Return the links that a job shares, with how many GPUs' rates it puts on each while it sends."""
        return self.cluster.loads(placed, once_round)


class InBlocks(Holding):
    """A job has a block of a torus."""

    def __init__(
        self,
        cluster: Cluster,
        policies: Policies,
        seed: int,
        trace: JobTrace,
        lattice: Lattice,
    ) -> None:
        super().__init__(cluster, policies, seed)
        self._blocks, self._trace, self._lattice = Blocks(lattice), trace, lattice
        self._cells: dict[int, Cells] = {}
        self._found: Cells | None = None
        self._orders: dict[tuple[int, tuple[int, ...]], list[tuple[int, ...]]] = {}

    def fits(self, job: int, count: int) -> bool:
        if not super().fits(job, count):
            return False
        kind = (count, self._trace.shapes[job] if self._trace.shapes else ())
        if kind not in self._orders:
            self._orders[kind] = self._lattice.orders(*kind)
        self._found = self._blocks.find(self._orders[kind])
        return self._found is not None

    def choose(self, job: int, count: int) -> Placed:
        # A queue starts the job that it has last asked about.
        assert self._found is not None
        self._cells[job] = self._found
        return super().choose(job, count)

    def take(self, job: int, placed: Placed) -> None:
        super().take(job, placed)
        self._blocks.free[self._cells[job]] = False

    def give(self, job: int, placed: Placed) -> None:
        super().give(job, placed)
        self._blocks.free[self._cells.pop(job)] = True


class InSlices(Holding):
    """A job has whole cubes that light joins, wherever they are."""

    def __init__(
        self, cluster: Cluster, policies: Policies, seed: int, trace: JobTrace
    ) -> None:
        super().__init__(cluster, policies, seed)
        assert cluster.slices is not None
        self._slices, self._trace = cluster.slices(), trace
        self._leaf = {name: leaf for leaf, name in enumerate(cluster.names)}

    def _shape(self, job: int, count: int) -> Any:
        return self._slices.shape_for(
            count, self._trace.shapes[job] if self._trace.shapes else ()
        )

    def fits(self, job: int, count: int) -> bool:
        return self._slices.fits(self._shape(job, count))

    def choose(self, job: int, count: int) -> Placed:
        """Return the GPUs of a job by cube; what is left of its last cubes stays idle."""
        shape = self._shape(job, count)
        cubes = self._slices.chosen(shape)
        self._slices.take(str(job), shape, cubes)
        placed: Placed = {}
        for cube in cubes:
            leaf = self._leaf[cube]
            placed[leaf] = min(count, self.cluster.gpus[leaf])
            count -= placed[leaf]
        return {leaf: taken for leaf, taken in placed.items() if taken}

    def give(self, job: int, placed: Placed) -> None:
        super().give(job, placed)
        self._slices.give(str(job))


class InUnits(Holding):
    """A job's GPUs are in units that fail whole."""

    def __init__(
        self, cluster: Cluster, policies: Policies, seed: int, unit_gpus: int
    ) -> None:
        super().__init__(cluster, policies, seed)
        self.units = Units(cluster, unit_gpus)

    def take(self, job: int, placed: Placed) -> None:
        super().take(job, placed)
        self.units.take(job, placed)

    def give(self, job: int, placed: Placed) -> None:
        self.free.give(self.units.give(job))


class ByName(Holding):
    """Each GPU has a name, and the controller's own functions choose."""

    def __init__(
        self, cluster: Cluster, policies: Policies, seed: int, gpus: Gpus
    ) -> None:
        super().__init__(cluster, policies, seed)
        self.gpus = gpus

    def choose(self, job: int, count: int) -> Placed:
        return self.gpus.take(job, count)

    def give(self, job: int, placed: Placed) -> None:
        super().give(job, placed)
        self.gpus.give(job)

    def loads(
        self, job: int, placed: Placed, once_round: bool
    ) -> list[tuple[int, float]]:
        return self.gpus.loads(job, once_round)

    def count(self) -> None:
        """Count the free GPUs again once fibres have moved or GPUs are lost."""
        self.free.set(self.gpus.free())
