"""The contract of a plane: what carries a job's bytes.

Language, models, metrics and backends ask the plane of a job (``fabric.planes.choice.plane_of``), never the
fabric, what it is made of. What only models ask is its :class:`PlaneTimes`, what only language and backends
ask of runs its :class:`PlaneFit`; planes that differ have one of their own. Everything here is pure. Seconds
and bits per second are those of the real fabric, unless a method is told by how much the emulation stretches
time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.cost import Latencies, byte_time
from ringlight.fabric.kinds import bus_factor
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.planes.streams import LinkTestStream
from ringlight.fabric.steps import Steps
from ringlight.fabric.topology import Fabric

#: Latency of a step of a ring between servers, over InfiniBand or RoCE, in NCCL's model of its protocol for
#: small messages (NVIDIA/nccl@01afd20 src/graph/tuning.cc, hwLat: network, ring, LL), seconds. Transfers
#: inside servers have the same here; that table has 0.47 µs over NVLink.
NETWORK_S = 2.7e-6


#: How the light of a plane comes.
Lighting = Literal["stands", "asked", "stepped"]


class Misfit(ValueError):
    """A job that a plane cannot carry. ``key``: what of the job is wrong: ranks, gpus or collective."""

    def __init__(self, key: str, why: object) -> None:
        super().__init__(str(why))
        self.key = key


@dataclass(frozen=True)
class PlaneTimes:
    """The times of a plane as models know them."""

    plane: Plane

    #: Whether there is a model of all-reduces.
    modelled: ClassVar[bool] = True
    #: Whether each pair of ranks has a lightpath of its own, and a transfer may take several side by side.
    lightpaths: ClassVar[bool] = False
    #: Seconds before a transfer's first byte counts, on real hardware, by default; 0 if light is asked for
    #: or set for transfers, as those set-ups are counted.
    latency_s: ClassVar[float] = 0.0

    def rate_bps(self, gpu: str) -> float:
        """Return the rate of a GPU's slowest port, bits per second."""
        onic = self.plane.fabric.onics.get(gpu)
        ports = range(1 if onic is None else onic.ports)
        return min(
            self.plane.fabric.link_at[Port(gpu, number)].rate_bps for number in ports
        )

    def ideal_s(
        self, ranks: Sequence[str], collective: str, vector_bytes: float
    ) -> float:
        """Return the seconds of an all-reduce at full rate and with no waiting.

        Every port, or every lightpath, has its full rate.
        """
        rate_bps = min(self.rate_bps(gpu) for gpu in ranks)
        at_once = self.plane.light == "stands"
        per_byte = byte_time(
            collective, len(ranks), lightpaths=self.lightpaths, at_once=at_once
        )
        return vector_bytes * per_byte / rate_bps

    def alone_s(
        self,
        ranks: Sequence[str],
        collective: str,
        vector_bytes: float,
        view: PacketView,
        latencies: Latencies = Latencies(),
    ) -> float:
        """Return the seconds of an all-reduce by the model, as if nothing else were there.

        Waits for light are left out, and each step has its latency. ``view``: the fabric with its light.
        Raises ValueError if there is no path.
        """
        steps = steps_named(collective, len(ranks)).steps if latencies.each_s else 0
        return self.ideal_s(ranks, collective, vector_bytes) + steps * latencies.each_s

    def payload_bytes(self, vector_bytes: int) -> float:
        """Return the bytes that a rank has to send of its vector."""
        return float(vector_bytes)

    def bus_factor(self, ranks: int, vector_bytes: int) -> float:
        """Return an all-reduce's bus bandwidth over algorithm bandwidth (``fabric.kinds.bus_factor``)."""
        return bus_factor("all-reduce", ranks)

    def set_ups(self, ranks: Sequence[str], collective: str) -> int:
        """Return the number of steps of an all-reduce that wait once for light."""
        return 0

    def wait_s(
        self, time: float, control_s: float, tuning_s: Mapping[str, float]
    ) -> float:
        """Return about what such a step waits, as declared, in emulated seconds.

        ``time``: emulated seconds in one of the fabric. ``control_s``: delay of each control message and
        ``tuning_s``: tuning time of lasers by GPU, both emulated.
        """
        return 0.0


@dataclass(frozen=True)
class PlaneFit:
    """Judges which runs fit a plane, and says what it adds to them."""

    plane: Plane

    #: Whether the plane has parts that can be cut, killed or moved one by one.
    parts: ClassVar[bool] = True
    #: Why a program that does not announce its traffic cannot run here; empty if it can.
    untold: ClassVar[str] = ""

    def check_run(self, run: Any) -> None:
        """Raise ValueError, ``key: what is wrong``, for a run whose jobs do not fit the plane together.

        ``run``: an ``experiments.language.draft.Draft`` with a job on the plane.
        """

    def check_size(self, ranks: int) -> None:
        """Raise ValueError for a number of ranks that the plane cannot have."""

    def check(self, ranks: Sequence[str], steps: Steps) -> None:
        """Raise ValueError for a collective with a transfer that has no way. No ``ranks``: any nodes."""

    def fitted(self, collective: str, ranks: int) -> str:
        """Return a collective's name, completed with what the plane decides if the name leaves it open."""
        return collective

    def only_simulated(self, plan: Any) -> str | None:
        """Return why a run with a job on the plane is not emulated, ``key: reason``; None if it can be.

        ``plan``: an ``experiments.language.plan.RunPlan``.
        """
        return None

    def patience_s(self, job: Any, time: float) -> float:
        """Return the longest wait until each partner of a rank of a job had light, emulated seconds.

        ``job``: an ``experiments.language.plan.JobPlan``. ``time``: emulated seconds in one of the fabric. 0
        if light stands, is asked for, or set between steps.
        """
        return 0.0

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Return what decides the result of a training, in addition to what the workers are given."""
        return {}

    @property
    def survives(self) -> bool:
        """Return whether a job can go on without a node that is lost."""
        return not self.plane.whole

    def place(self, count: int, free: Collection[str]) -> tuple[str, ...] | None:
        """Return free nodes for a job of so many ranks; None if any will do.

        Raises ValueError if none fit.
        """
        return None

    def streams(self) -> Iterator[list[LinkTestStream]]:
        """Yield batches of streams that fill each port of the plane once; those of a batch flow at once."""
        return iter(())


@dataclass(frozen=True)
class Plane:
    """``name``: what its fabric calls it; ``nodes``: the GPUs that it joins."""

    fabric: Fabric
    name: str
    nodes: tuple[str, ...]

    #: What users call it, and the key of requests and documents that name one.
    kind: ClassVar[str]
    #: Whether its light *stands*, so that ranks may send to any other at any time; is *asked* for, transfer by
    #: transfer; or is *stepped*, set between steps, so that all ranks move in step.
    light: ClassVar[Lighting]
    #: Whether its bytes take links that other jobs' packets take, too.
    shared: ClassVar[bool] = False
    #: Whether it sums what ranks send, so that they send each other no chunks.
    sums: ClassVar[bool] = False
    #: Whether a job needs all its nodes.
    whole: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def times(self) -> PlaneTimes:
        """Return the times that models know of it."""
        return PlaneTimes(self)

    @property
    def fit(self) -> PlaneFit:
        """Return the judge of what fits it."""
        return PlaneFit(self)
