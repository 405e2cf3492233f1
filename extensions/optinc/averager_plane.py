"""Averagers (OptINC): they sum; what else ranks tell each other goes as packets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ringlight.extensions.optinc.averaging import Averaging, averaging_of
from ringlight.fabric.cost import Latencies
from ringlight.fabric.paths import PacketView
from ringlight.fabric.planes.base import Misfit, PlaneFit
from ringlight.fabric.planes.packets import PacketPlane, PacketTimes
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class AveragerTimes(PacketTimes):
    """PlaneTimes of sums: a port carries each code once."""

    plane: AveragerPlane

    def ideal_s(
        self, ranks: Sequence[str], collective: str, vector_bytes: float
    ) -> float:
        return self.plane.averaging.ideal_s(int(vector_bytes))

    def payload_bytes(self, vector_bytes: int) -> float:
        return float(self.plane.averaging.code_bytes(vector_bytes))

    def bus_factor(self, ranks: int, vector_bytes: int) -> float:
        """Return payload over vector bytes."""
        return self.payload_bytes(vector_bytes) / vector_bytes

    def alone_s(
        self,
        ranks: Sequence[str],
        collective: str,
        vector_bytes: float,
        view: PacketView,
        latencies: Latencies = Latencies(),
    ) -> float:
        """Return the seconds of an all-reduce alone: an averager hands a frame on when it has all of it."""
        return self.plane.averaging.stream_s(
            int(vector_bytes), latency_s=latencies.each_s
        )


@dataclass(frozen=True)
class AveragerFit(PlaneFit):
    """Says what the means of averagers depend on."""

    plane: AveragerPlane

    @property
    def outcome(self) -> Mapping[str, Any]:
        own = self.plane.averaging.first[0]
        facts = {"ports": own.ports, "bits": own.bits, "decimals": own.decimals}
        # Where it is has no bearing on it.
        return {"place": {"address": "", "port": 0, **facts}}


@dataclass(frozen=True)
class AveragerPlane(PacketPlane):
    """The averagers of one job; its nodes are their servers, in the order of ports."""

    averaging: Averaging

    kind: ClassVar[str] = "averagers"
    sums: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"averager {self.name}"

    @property
    def times(self) -> AveragerTimes:
        return AveragerTimes(self)

    @property
    def fit(self) -> AveragerFit:
        return AveragerFit(self)


def averagers(fabric: Fabric, ranks: Sequence[str]) -> AveragerPlane:
    """Return the averagers of a job on these GPUs. Raises Misfit if there are none for exactly these GPUs."""
    if not ranks:
        raise Misfit("gpus", "which averager a job has depends on its GPUs; give ranks")
    try:
        averaging = averaging_of(fabric, ranks)
    except ValueError as error:
        raise Misfit("collective", error) from None
    return AveragerPlane(
        fabric,
        (averaging.above or averaging.first[0]).name,
        averaging.servers,
        averaging,
    )
