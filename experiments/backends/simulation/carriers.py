"""Simulate each kind of plane by a carrier, which hides from the lab what the fabric has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ringlight.controller.onic.protocol import Finished, Times
from ringlight.experiments.backends.simulation.regrouping import light
from ringlight.experiments.backends.simulation.workloads import WorkloadRun, demand_of_jobs
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import (
    Circuits,
    Flow,
    NetworkTried,
    OnicsSimulated,
    Record,
    RingSetUps,
)
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.averagers.averager_plane import AveragerPlane
from ringlight.fabric.planes.averagers.averaging import scale_bytes, scale_steps
from ringlight.fabric.planes.averagers.photonics import errors_of
from ringlight.fabric.planes.grid.grid_plane import GridPlane, grids
from ringlight.fabric.planes.grid.wavelengths import ways_for
from ringlight.fabric.planes.ring.ring import CLOCKWISE
from ringlight.fabric.planes.ring.ring_plane import RingPlane, rings
from ringlight.fabric.planes.ring.wdm import RingPlan, plan_ring, set_up_steps
from ringlight.fabric.planes.wholes.whole_plane import WholePlane
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.steps import Step, Steps, frozen, frozen_bool, without_steps
from ringlight.fabric.topology import Fabric, circuit_switches
from ringlight.fabric.units import format_time
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.interconnects import interconnect_network
from ringlight.testbed.simulation.jobs import Job, Simulation
from ringlight.testbed.simulation.networks import (
    GridNetwork,
    Network,
    PacketNetwork,
    RingNetwork,
    Segments,
)
from ringlight.testbed.simulation.onics import ControlNetwork, OnicPlane
from ringlight.testbed.simulation.phases import StepCost, synchronous

#: Seconds that a control message takes between two O-NICs' agents, and its receiver's time for it. Measured:
#: benchmarks/flow_setup.py, four agents on two processors, 0.35 ms from request to light, in which two
#: messages follow each other. It is the agents' own time and does not become longer with D.
CONTROL_S, HANDLE_S = 150e-6, 25e-6
#: Lease of a grant, seconds (times D): the testbed's.
LEASE_S = 2.0
#: What a simulation takes for granted: of what, the value, and why.
Assumed = tuple[str, str, str]


@dataclass
class Carrier:
    """Packets; other planes differ from them. One for each plane and run.

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
    gate: OnicPlane | None = field(default=None, init=False)

    #: Whether a rank that stands still is seen by what passes its port.
    stalls: ClassVar[bool] = True
    #: Whether what passes ports can be followed, for stalls and rates.
    traced: ClassVar[bool] = True

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        """Yield the assumptions of a simulation of such planes of a fabric."""
        for name in circuit_switches(setting.fabric):
            profile = setting.fabric.optical_switches[name].device.dilated(setting.scale.time)
            yield (
                f"dark time of {name}",
                f"{1000 * profile.dark_bounds_s()[1]:.1f} ms",
                f"typical of its profile, {profile.name}, the receiver's re-training included; before it the "
                f"command takes {1000 * profile.command_s:.1f} ms and "
                f"{1000 * profile.command_per_xc_s:.1f} ms for each ingress port",
            )

    #: Whether links that lose, delay or flap have a model on it.
    impaired: ClassVar[bool] = True

    @staticmethod
    def cannot(do: str) -> str | None:
        """Return why an action cannot be performed on such a plane; None if it can."""
        return None

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        """Return the network for transfers, from ``fabric`` as plugged now and ``circuits`` as lit now."""
        # Light that leads to a fibre that is cut leads nowhere.
        whole = [c for c in circuits if all(Port.parse(end) in fabric.link_at for end in c)]
        lossy = fabric.optics.modulation is not None
        lossy |= any(link.impairments.loses for link in fabric.links)
        setting = self.plan.setting
        time_out_s = setting.tcp.rto_min * setting.scale.time
        segments = Segments(setting.frames.mtu_bytes, time_out_s) if lossy else None
        return PacketNetwork(
            fabric, light(fabric, whole), latency_s=self.latency_s, share=self.share, segments=segments
        )

    def cost(self) -> StepCost:
        add_bps = self.plan.costs.add_bps
        return StepCost(reduce_s_per_byte=0.0 if add_bps is None else 8 / add_bps)

    def steps(self, collective: str, ranks: int) -> Steps:
        return steps_named(collective, ranks)

    def put(self, job: Job, network: Network) -> Job:
        """Return the job as it runs on this plane. Raises ValueError if it cannot run there."""
        return job

    def standing(self, job: JobPlan) -> bool:
        """Return whether light is neither asked for nor set anew while a workload runs."""
        return True

    def divide(self, run: WorkloadRun) -> None:
        """Divide light again, on planes that do so: for a workload's remaining traffic, or for each phase."""

    def asked(self, steps: Steps) -> Mapping[int, int]:
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


@dataclass
class AveragerCarrier(Carrier):
    plane: AveragerPlane

    impaired: ClassVar[bool] = False
    stalls: ClassVar[bool] = False

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        if setting.fabric.averagers:
            yield (
                "an averager's own time",
                "0 s",
                "it answers a frame when it has all of it; what an emulated one takes, its reports say. "
                "Scales go over the packet switches before the codes, as if nothing else were there",
            )

    @staticmethod
    def cannot(do: str) -> str | None:
        return None if do in ("start", "cancel") else f"the simulation cannot {do} where averagers work"

    def steps(self, collective: str, ranks: int) -> Steps:
        return without_steps(collective, ranks)

    def put(self, job: Job, network: Network) -> Job:
        """Return the job with the time of its averaging.

        Once all ranks are ready, the scales of the blocks go over packet switches without other traffic, then
        the codes.
        """
        size = int(job.vector_bytes)
        scales = synchronous(network, job.ranks, scale_steps(len(job.ranks)), scale_bytes(size), self.cost())
        stream_s = self.plane.averaging.stream_s(size, self.share, self.latency_s)
        return replace(job, synchronised=True, averaged_s=scales.total_s + stream_s)


@dataclass
class GridCarrier(Carrier):
    plane: GridPlane

    impaired: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        delay_s = CONTROL_S + self.plan.control.delay_s
        times = Times.dilated(LEASE_S, self.plan.setting.scale.time)
        self._numbers = itertools.count(1)
        self.gate = OnicPlane(
            self.engine, self.plane.fabric, {}, ControlNetwork(delay_s, HANDLE_S), times, self._flow_done
        )

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        for _ in grids(setting.fabric):
            yield (
                "a control message between two O-NICs' agents",
                f"{1e6 * CONTROL_S:g} + {1e6 * HANDLE_S:g} µs",
                "on its way, and to be handled, emulated time. Measured with four agents of the emulation "
                "that had nothing else to do; more agents share the same processors there and are slower",
            )

    @staticmethod
    def cannot(do: str) -> str | None:
        moved = do in ("regroup", "circuits")
        return "the light of a grid is its agents', not to be moved" if moved else None

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        return GridNetwork(fabric, self.plane.grid, latency_s=self.latency_s, share=self.share)

    def put(self, job: Job, network: Network) -> Job:
        assert self.gate is not None
        self.gate.assign(ways_for(self.plane.grid, job.ranks, job.steps))
        return job

    def asked(self, steps: Steps) -> Mapping[int, int]:
        """Return the number of requests for light of each rank, by rank: one for each transfer that the rank
        sends.
        """
        requests: dict[int, int] = {}
        for step in steps:
            for source in step.sources.tolist():
                requests[source] = requests.get(source, 0) + 1
        return requests

    def _flow_done(self, gpu: str, flow: Finished) -> None:
        self.keep(
            Flow(
                t=flow.close_s,
                run=self.plan.name,
                gpu=gpu,
                flow=next(self._numbers),
                peer=str(flow.peer),
                port=flow.port,
                wavelength=flow.wavelength,
                waited=flow.waited,
                t_open=flow.opened_s,
                t_request=flow.request_s,
                t_grant=flow.grant_s,
                t_lit=flow.lit_s,
                t_close=flow.close_s,
                t_released=flow.released_s,
            )
        )

    @property
    def after_s(self) -> float:
        """The last flows are still being released, which takes two messages."""
        return 4 * (CONTROL_S + HANDLE_S + self.plan.control.delay_s)

    def end(self, circuits: Sequence[tuple[str, str]]) -> None:
        assert self.gate is not None
        self.note(
            OnicsSimulated(
                t=self.engine.now_s,
                run=self.plan.name,
                messages=dict(self.gate.messages),
                flows=len(self.gate.waits_s),
                receiver_overlaps=self.gate.overlaps,
            )
        )


@dataclass
class RingCarrier(Carrier):
    plane: RingPlane

    impaired: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._set_ups: list[dict[str, Any]] = []
        self._declared_s = 0.0

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        for plane in rings(setting.fabric):
            yield (
                "changing a ring's light between two steps",
                format_time(plane.declared_s(setting.scale.time)),
                "the command and dark times of the switches' profile, times D, in each step in which a "
                "switch changes; the controller's own time for it is left out",
            )

    @staticmethod
    def cannot(do: str) -> str | None:
        left = do in ("cancel", "start")
        return None if left else f"the simulation cannot {do} on a ring of wavelengths"

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        segment_s = self.plan.costs.segment_s
        return RingNetwork(
            fabric, self.plane.ring, segment_s=segment_s, latency_s=self.latency_s, share=self.share
        )

    def put(self, job: Job, network: Network) -> Job:
        """Return the job in step, as light is set for all ranks together. Each change takes the declared
        set-up time.
        """
        plan = plan_ring(self.plane.fabric, self.plane.ring, job.steps, job.ranks)
        self._declared_s = self.plane.declared_s(self.plan.setting.scale.time)
        cost = replace(job.cost, set_up_s=self._declared_s, in_steps=tuple(set_up_steps(plan)))
        return replace(job, steps=lit_steps(job.steps, plan, job.ranks), synchronised=True, cost=cost)

    def iterated(self, sim: Simulation, job: str, index: int, begin_s: float) -> None:
        made = sim.loop(job).job
        step_s = synchronous(sim.network, made.ranks, made.steps, made.vector_bytes, made.cost).step_s
        begins_s = (np.cumsum(step_s) - step_s).tolist()
        self._set_ups += [
            {
                "t": begin_s + begins_s[number],
                "step": index * len(made.cost.in_steps) + number,
                "total_s": self._declared_s,
                "write_s": None,
            }
            for number, changed in enumerate(made.cost.in_steps)
            if changed
        ]

    def end(self, circuits: Sequence[tuple[str, str]]) -> None:
        ring = {"name": self.plane.name, "statistics": {"declared_s": self._declared_s}}
        self.note(RingSetUps(t=self.engine.now_s, run=self.plan.name, ring=ring, set_ups=self._set_ups))


@dataclass
class WholeCarrier(Carrier):
    plane: WholePlane

    impaired: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        return iter(())

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        gpus = self.plane.nodes
        return interconnect_network(
            self.plane.interconnect,
            gpus,
            lambda: demand_of_jobs(self.plan.jobs, gpus),
            latency_s=self.latency_s,
            share=self.share,
            phases=any(job.phases for job in self.plan.jobs),
        )

    def cost(self) -> StepCost:
        base_cost, set_up_s = super().cost(), self.plane.interconnect.set_up_s
        return replace(base_cost, set_up_s=set_up_s, when="changed-only") if set_up_s else base_cost

    def standing(self, job: JobPlan) -> bool:
        interconnect = self.plane.interconnect
        return not (interconnect.asked or job.phases or self.plane.division is not None)

    def divide(self, run: WorkloadRun) -> None:
        if self.plane.division is not None:
            run.divide(self.plane.interconnect, self.plane.division, self.share)
        if run.phased:
            run.follow_phases(self.plane.fabric, self.plane.phases, self.share)


def networks_tried(fabric: Fabric, **where: Any) -> Iterator[NetworkTried]:
    """Yield the results of the networks of a fabric's averagers. ``where``: time and run of the records."""
    for name, averager in fabric.averagers.items():
        if (errors := errors_of(averager)) is not None:
            yield NetworkTried(
                averager=name, inputs=errors.inputs, wrong=errors.wrong, worst=errors.worst, **where
            )


#: By the kind of plane.
CARRIERS: Mapping[str, type[Carrier]] = {
    "averagers": AveragerCarrier,
    "grid": GridCarrier,
    "ring": RingCarrier,
    "packets": Carrier,
    "interconnect": WholeCarrier,
}


def lit_steps(steps: Steps, plan: RingPlan, ranks: Sequence[str]) -> Steps:
    """Return the steps, with the wavelength and the direction that the plan gives each transfer."""
    emits = [[plan.transmit.get(a, {}).get(b) for b in ranks] for a in ranks]

    def make() -> Iterator[Step]:
        for step in steps:
            ends = zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
            chosen = [emits[source][destination] for source, destination in ends]
            wavelengths = frozen([emit.wavelength for emit in chosen if emit])
            clockwise = frozen_bool([emit.port == CLOCKWISE for emit in chosen if emit])
            yield replace(step, wavelengths=wavelengths, clockwise=clockwise)

    return Steps(steps.name, steps.world_size, steps.chunks, steps.steps, make)
