"""Servers that do a collective as NCCL does: the time is that of :mod:`extensions.servers.model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ringlight.extensions.servers.fabric_key import KEY
from ringlight.extensions.servers.hardware import GpuCluster
from ringlight.extensions.servers.model import Prediction, predict
from ringlight.fabric.cost import Latencies
from ringlight.fabric.paths import PacketView
from ringlight.fabric.planes.base import Misfit, PlaneFit
from ringlight.fabric.planes.packets import PacketPlane, PacketTimes
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class ServersTimes(PacketTimes):
    """PlaneTimes of a collective that has no steps of ranks."""

    plane: ServersPlane

    def ideal_s(
        self, ranks: Sequence[str], collective: str, vector_bytes: float
    ) -> float:
        return self.plane.predicted(int(vector_bytes)).seconds

    def alone_s(
        self,
        ranks: Sequence[str],
        collective: str,
        vector_bytes: float,
        view: PacketView,
        latencies: Latencies = Latencies(),
    ) -> float:
        return self.plane.predicted(int(vector_bytes)).seconds


@dataclass(frozen=True)
class ServersFit(PlaneFit):
    """Refuses what only the model knows to be emulated."""

    plane: ServersPlane

    def only_simulated(self, plan: Any) -> str | None:
        return (
            "training.collective: collectives of NCCL are simulated only; channel-rings and "
            "double-binary-tree are emulated"
        )


@dataclass(frozen=True)
class ServersPlane(PacketPlane):
    """The servers of a job. ``algorithm``: forced by name, empty for NCCL's choice."""

    cluster: GpuCluster
    algorithm: str

    kind: ClassVar[str] = "gpu-servers"
    sums: ClassVar[bool] = True

    def __str__(self) -> str:
        return "servers with NVLink"

    @property
    def times(self) -> ServersTimes:
        return ServersTimes(self)

    @property
    def fit(self) -> ServersFit:
        return ServersFit(self)

    def predicted(self, vector_bytes: int) -> Prediction:
        """Return the time of an all-reduce, real seconds of real bytes. Raises ValueError."""
        forced: Any = self.algorithm or None
        return predict(self.cluster, vector_bytes, "all-reduce", forced)


def servers_plane(fabric: Fabric, ranks: Sequence[str], algorithm: str) -> ServersPlane:
    """Return the servers of a job on these GPUs, server by server. Raises Misfit."""
    clusters = fabric.parts.get(KEY, {})
    if not clusters:
        raise Misfit("collective", f"it needs a fabric with {KEY}")
    if not ranks:
        raise Misfit("gpus", "the time depends on the GPUs of a job; give ranks")
    (cluster,) = clusters.values()
    try:
        part = part_of(cluster, ranks)
        plane = ServersPlane(fabric, "", tuple(ranks), part, algorithm)
        plane.predicted(1)
    except ValueError as error:
        raise Misfit("collective", error) from None
    return plane


def part_of(cluster: GpuCluster, ranks: Sequence[str]) -> GpuCluster:
    """Return the servers of these GPUs, the same number of each. Raises ValueError for any other GPUs."""
    number_of = {f"g{number}": number for number in range(cluster.ranks)}
    if other := [rank for rank in ranks if rank not in number_of]:
        raise ValueError(f"GPU {other[0]} is in none of {KEY}")
    numbers = [number_of[rank] for rank in ranks]
    each = cluster.server.gpus
    servers = list(dict.fromkeys(number // each for number in numbers))
    gpus = len(numbers) // len(servers)
    runs = [numbers[start : start + gpus] for start in range(0, len(numbers), gpus)]
    if [{number // each for number in run} for run in runs] != [
        {server} for server in servers
    ]:
        raise ValueError(
            "its ranks must be as many GPUs of each of its servers, server by server"
        )
    faulty = dict(cluster.faulty)
    kept = tuple(
        (place, replace(faulty[server], gpus=gpus))
        for place, server in enumerate(servers)
        if server in faulty
    )
    return GpuCluster(replace(cluster.server, gpus=gpus), len(servers), kept)
