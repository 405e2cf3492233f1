"""Simulate each kind of plane by a carrier, which hides from the lab what the fabric has."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ringlight.controller.light.documents import LitPair
from ringlight.experiments.backends.simulation.regrouping import light
from ringlight.experiments.backends.simulation.workloads import Tell, WorkloadRun
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.light_records import Circuits
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.kinds import parts_of_planes
from ringlight.fabric.planes.packets import packets
from ringlight.fabric.steps import Steps, compact
from ringlight.fabric.topology import Fabric, circuit_switches
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Gate, Job
from ringlight.testbed.simulation.networks import (
    Network,
    PacketNetwork,
    Segments,
    scaled,
)
from ringlight.testbed.simulation.phases import Phases, StepCost
from ringlight.testbed.simulation.simulation import Simulation

#: What a simulation takes for granted: of what, the value, and why.
Assumed = tuple[str, str, str]


#: Since when, on the lab's clock, seconds; the lightpaths; and whether they are dark yet.
LightThen = tuple[float, list[LitPair], bool]


@dataclass(frozen=True)
class LitJob:
    """A job that had light on a plane. ``gpus``: in rank order, from ``begin`` on, seconds of the lab's
    clock."""

    plane: Any
    fabric: Fabric
    job: JobPlan
    gpus: Sequence[str]
    begin: float


class Medium(Protocol):
    """A network on which single all-reduces are computed, in any process.

    It is small data, made by :meth:`Carrier.medium`.
    """

    def weight(self, collective: str) -> int:
        """Return a number that grows with the time that a collective takes to compute."""

    def phases(
        self,
        collective: str,
        places: tuple[int, ...],
        latency_s: float,
        segment_s: float,
        share: float,
    ) -> Phases:
        """Return the phases of a collective of ranks at these places.

        Raises ValueError for a collective that does not fit.
        """


@dataclass(frozen=True)
class PacketMedium:
    """A fabric of packet switches, at emulated rates."""

    fabric: Fabric

    def weight(self, collective: str) -> int:
        return len(self.fabric.gpus)

    def phases(
        self,
        collective: str,
        places: tuple[int, ...],
        latency_s: float,
        segment_s: float,
        share: float,
    ) -> Phases:
        gpus = packets(self.fabric).nodes
        ranks = tuple(gpus[place] for place in places)
        network = PacketNetwork(self.fabric, latency_s=latency_s, share=share)
        return Phases(network, ranks, compact(steps_named(collective, len(ranks))))


@dataclass
class Carrier:
    """Packets; carriers of other planes differ from it (``carrier`` of their ``PlaneKind``). One for each plane
    and run.

    ``plane``: with emulated rates; ``share``: payload's of a link's rate; ``latency_s``: of each transfer;
    ``note``: takes a record, and pauses; ``keep``: takes one and does not.
    """

    plane: Any
    plan: RunPlan
    engine: Engine
    share: float
    latency_s: float
    note: Callable[[Record], None]
    keep: Callable[[Record], None]
    #: Who lets transfers begin, where light is asked for.
    gate: Gate | None = field(default=None, init=False)

    #: Whether a rank that stands still is seen by what passes its port.
    stalls: ClassVar[bool] = True
    #: Whether what passes ports can be followed, for stalls and rates.
    traced: ClassVar[bool] = True

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        """Yield the assumptions of a simulation of such planes of a fabric."""
        for name in circuit_switches(setting.fabric):
            profile = setting.fabric.optical_switches[name].device.dilated(
                setting.scale.time
            )
            yield (
                f"dark time of {name}",
                f"{1000 * profile.dark_bounds_s()[1]:.1f} ms",
                f"typical of its profile, {profile.name}, the receiver's re-training included; before it the "
                f"command takes {1000 * profile.command_s:.1f} ms and "
                f"{1000 * profile.command_per_xc_s:.1f} ms for each ingress port",
            )

    #: Whether what links do to frames besides their rate has a model on it.
    link_effects: ClassVar[bool] = True

    @staticmethod
    def cannot(do: str) -> str | None:
        """Return why an action cannot be performed on such a plane; None if it can."""
        return None

    @staticmethod
    def medium(
        plan: RunPlan, plane: Any
    ) -> tuple[Hashable, Callable[[], Medium], StepCost]:
        """Return what a run of a single all-reduce in step is computed on, and the costs of its steps.

        The first is the same for runs that share a medium, which is made by the second.
        """
        setting, add_bps = plan.setting, plan.costs.add_bps
        reduce_s = 0.0 if add_bps is None else 8 / add_bps
        # An electrical step has no light to set.
        cost = StepCost(reduce_s_per_byte=reduce_s)
        return (
            id(setting),
            lambda: PacketMedium(scaled(setting.fabric, setting.scale.rate)),
            cost,
        )

    @staticmethod
    def records(fabric: Fabric, **where: Any) -> Iterator[Record]:
        """Yield what any run leaves on record of such planes. ``where``: time and run of the records."""
        return iter(())

    @staticmethod
    def emulated(
        name: str, read: Callable[[str], Any], jobs: Mapping[str, JobPlan], **where: Any
    ) -> Iterator[Record]:
        """Yield what an emulated run leaves on record of the light of the plane ``name``.

        ``read``: returns what the REST API has at a path below the plane's; at ``/changes`` each change of
        its light in the last job. ``jobs``: the run's, by their numbers there. ``where``: time and run of the
        records.
        """
        return iter(())

    @staticmethod
    def emulated_at_release(
        name: str, read: Callable[[str], Any], **where: Any
    ) -> Iterator[Record]:
        """Yield what an emulated run leaves on record of the light of the plane ``name`` once its first jobs
        are released. The others: as of :meth:`emulated`.
        """
        return iter(())

    @staticmethod
    def light_over_time(
        recorded: LitJob, records: Sequence[Record]
    ) -> Iterator[LightThen]:
        """Yield the lightpaths of a job as they changed, by the records of its run; none for circuits."""
        return iter(())

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        """Return the network for transfers, from ``fabric`` as plugged now and ``circuits`` as lit now."""
        # Light that leads to a fibre that is cut leads nowhere.
        whole = [
            c for c in circuits if all(Port.parse(end) in fabric.link_at for end in c)
        ]
        lossy = fabric.optics.modulation is not None
        lossy |= any(
            effect.loses for link in fabric.links for effect in link.effects.values()
        )
        setting = self.plan.setting
        time_out_s = setting.tcp.rto_min * setting.scale.time
        segments = Segments(setting.frames.mtu_bytes, time_out_s) if lossy else None
        return PacketNetwork(
            fabric,
            light(fabric, whole),
            latency_s=self.latency_s,
            share=self.share,
            segments=segments,
        )

    def cost(self) -> StepCost:
        add_bps = self.plan.costs.add_bps
        return StepCost(reduce_s_per_byte=0.0 if add_bps is None else 8 / add_bps)

    def steps(self, collective: str, ranks: int) -> Steps:
        return steps_named(collective, ranks)

    def put(self, job: Job, network: Network) -> Job:
        """Return the job as it runs on this plane. Raises ValueError if it cannot run there."""
        return job

    def workload_run(
        self,
        job: JobPlan,
        gpus: Sequence[str],
        network: Network,
        tell: Tell,
        *,
        disturbed: bool,
    ) -> WorkloadRun:
        """Return the run of a job's workload on GPUs of this plane, with what its light does meanwhile.

        ``network``: as of :meth:`network`; the others as of :class:`WorkloadRun`. Raises ValueError.
        """
        return WorkloadRun(
            self.engine,
            network,
            job,
            gpus,
            self.cost(),
            tell,
            disturbed=disturbed,
            standing=True,
        )

    def requests(self, steps: Steps) -> Mapping[int, int]:
        """Return how often each rank requests light in an all-reduce, by rank; {} without requests."""
        return {}

    def iterated(self, sim: Simulation, job: str, index: int, begin_s: float) -> None:
        """An iteration of a job is over, whose all-reduce began at ``begin_s``."""

    @property
    def after_s(self) -> float:
        """Return the seconds for which something still happens after all jobs have ended."""
        return 0.0

    def end(self, circuits: Sequence[tuple[str, str]]) -> None:
        """Notes what a run leaves on record."""
        if circuit_switches(self.plane.fabric):
            pairs = [[a, b] for a, b in circuits]
            self.note(Circuits(t=self.engine.now_s, run=self.plan.name, circuits=pairs))


def carriers() -> Mapping[str, type[Carrier]]:
    """Return the carriers by kind of plane. Raises ExtensionError if one cannot be loaded."""
    return parts_of_planes("carrier")
