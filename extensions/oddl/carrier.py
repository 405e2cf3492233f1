"""Simulate grids: O-NICs' agents ask for light, transfer by transfer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ringlight.controller.onic.effects import Finished
from ringlight.controller.onic.lease_times import Times
from ringlight.experiments.backends.simulation.carriers import Assumed, Carrier
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.light_records import Flow, OnicsSimulated
from ringlight.extensions.oddl.control_units import ControlNetwork, OnicPlane
from ringlight.extensions.oddl.grid_plane import GridPlane, grids
from ringlight.extensions.oddl.network import GridNetwork
from ringlight.extensions.oddl.records import GridLit
from ringlight.extensions.oddl.wavelengths import ways_for
from ringlight.fabric.steps import Steps
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.networks import Network

#: Seconds that a control message takes between two O-NICs' agents, and its receiver's time for it. Measured:
#: benchmarks/flow_setup.py, four agents on two processors, 0.35 ms from request to light, in which two
#: messages follow each other. It is the agents' own time and does not become longer with D.
CONTROL_S, HANDLE_S = 150e-6, 25e-6
#: Lease of a grant, seconds (times D): the testbed's.
LEASE_S = 2.0


@dataclass
class GridCarrier(Carrier):
    plane: GridPlane

    link_effects: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        delay_s = CONTROL_S + self.plan.control.delay_s
        times = Times.dilated(LEASE_S, self.plan.setting.scale.time)
        self._numbers = itertools.count(1)
        self.gate = self._units = OnicPlane(
            self.engine,
            self.plane.fabric,
            {},
            ControlNetwork(delay_s, HANDLE_S),
            times,
            self._flow_done,
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
    def emulated_at_release(
        name: str, read: Callable[[str], Any], **where: Any
    ) -> Iterator[Record]:
        yield GridLit(grid=read(""), **where)

    @staticmethod
    def cannot(do: str) -> str | None:
        moved = do in ("regroup", "circuits")
        return "the light of a grid is its agents', not to be moved" if moved else None

    def network(self, fabric: Fabric, circuits: Sequence[tuple[str, str]]) -> Network:
        return GridNetwork(
            fabric, self.plane.grid, latency_s=self.latency_s, share=self.share
        )

    def put(self, job: Job, network: Network) -> Job:
        self._units.assign(ways_for(self.plane.grid, job.ranks, job.steps))
        return job

    def requests(self, steps: Steps) -> Mapping[int, int]:
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
        self.note(
            OnicsSimulated(
                t=self.engine.now_s,
                run=self.plan.name,
                messages=dict(self._units.messages),
                flows=len(self._units.waits_s),
                receiver_overlaps=self._units.overlaps,
            )
        )
