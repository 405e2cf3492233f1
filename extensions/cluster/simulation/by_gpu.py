"""A cluster GPU by GPU, run as the controller runs it: its own functions choose GPUs and spares, and regroup.

Other policies know how many GPUs of a switch a job has. Here each has a name, as in an emulation: which
switch it is lit to changes when its fibre moves, and a job's ring goes through its GPUs in the order of its
ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ringlight.extensions.cluster.clusters import Cluster
from ringlight.extensions.cluster.simulation.placing import Placed
from ringlight.extensions.cluster.tiers import leaves_of
from ringlight.fabric.cost import RingJob
from ringlight.fabric.gpu_choice import gpus_together, spares_for
from ringlight.fabric.placement import regroup
from ringlight.fabric.topology import Fabric


class Gpus:
    """GPUs by name: the job that has each, and the switch that its light leads to.

    ``edge_bytes``: bytes that each job sends to the next rank in an iteration.
    """

    def __init__(
        self, fabric: Fabric, cluster: Cluster, edge_bytes: Sequence[float]
    ) -> None:
        self._fabric, self._cluster, self._edge_bytes = fabric, cluster, edge_bytes
        self._circuits = fabric.circuits
        self._leaf = {name: number for number, name in enumerate(cluster.names)}
        self._switch_of: dict[str, str] = leaves_of(fabric)
        self._ranks: dict[int, list[str]] = {}
        self._lost: set[str] = set()

    def take(self, job: int, count: int) -> Placed:
        """Give a job ``count`` GPUs as the controller chooses them, and return how many are on which leaf.
        There are enough.
        """
        self._ranks[job] = list(gpus_together(self._free(), self._switch_of, count))
        return self.placed(job)

    def give(self, job: int) -> None:
        """Take all GPUs from a job."""
        del self._ranks[job]

    def placed(self, job: int) -> Placed:
        """Return how many of a job's GPUs are on which leaf."""
        return dict(
            Counter(self._leaf[self._switch_of[gpu]] for gpu in self._ranks[job])
        )

    def free(self) -> list[int]:
        """Return the number of free GPUs of each leaf."""
        counts = Counter(self._leaf[self._switch_of[gpu]] for gpu in self._free())
        return [counts[leaf] for leaf in range(len(self._leaf))]

    def loads(self, job: int, once_round: bool = True) -> list[tuple[int, float]]:
        """Return the links that a job shares, with how many GPUs' rates it puts on each while it sends.

        For a ring, the ranks' order counts. Otherwise the loads are those of
        :meth:`extensions.cluster.clusters.Cluster.loads`.
        """
        if not once_round:
            return self._cluster.loads(self.placed(job), once_round)
        return self._cluster.ring_loads(
            [self._leaf[self._switch_of[gpu]] for gpu in self._ranks[job]]
        )

    def lose(self, gpu: str) -> int | None:
        """Remove a GPU that is lost. Return the job that has it; None if it was free."""
        self._lost.add(gpu)
        return next((job for job, ranks in self._ranks.items() if gpu in ranks), None)

    def replace(self, job: int) -> int:
        """Replace a job's lost GPUs by spares, as the controller chooses them. Return how many, 0 if there
        are too few for all.
        """
        ranks = self._ranks[job]
        left = [gpu for gpu in ranks if gpu not in self._lost]
        spares = spares_for(left, self._free(), self._switch_of)[
            : len(ranks) - len(left)
        ]
        if len(left) + len(spares) < len(ranks):
            return 0
        instead = iter(spares)
        self._ranks[job] = [
            next(instead) if gpu in self._lost else gpu for gpu in ranks
        ]
        return len(spares)

    def regroup(self) -> tuple[Mapping[int, Placed], int]:
        """Move fibres as the controller does for all jobs.

        Return the new places of the jobs of which a GPU moved, and how many GPUs moved.
        """
        rings = [
            RingJob(str(job), tuple(on), self._edge_bytes[job])
            for job, on in self._ranks.items()
        ]
        movable = self._fabric.packet_gpus
        plan = regroup(self._fabric, self._circuits, rings, movable=movable)
        self._circuits = plan.circuits
        self._switch_of |= {move.gpu: move.destination.node for move in plan.moved}
        moved = {move.gpu for move in plan.moved}
        touched = [
            job for job, ranks in self._ranks.items() if not moved.isdisjoint(ranks)
        ]
        return {job: self.placed(job) for job in touched}, len(plan.moved)

    def _free(self) -> list[str]:
        taken = self._lost.union(*self._ranks.values())
        return [gpu for gpu in self._fabric.gpus if gpu not in taken]
