"""Simulate averagers: scales as packets, then the codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ringlight.experiments.backends.simulation.carriers import Assumed, Carrier
from ringlight.experiments.language.plan import Setting
from ringlight.experiments.record.events import Record
from ringlight.extensions.optinc.averager import averagers_in
from ringlight.extensions.optinc.averager_plane import AveragerPlane
from ringlight.extensions.optinc.averager_records import NetworkTried
from ringlight.extensions.optinc.averaging import scale_bytes, scale_steps
from ringlight.extensions.optinc.photonics import errors_of
from ringlight.fabric.steps import Steps, without_steps
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.networks import Network
from ringlight.testbed.simulation.phases import synchronous


@dataclass
class AveragerCarrier(Carrier):
    plane: AveragerPlane

    link_effects: ClassVar[bool] = False
    stalls: ClassVar[bool] = False

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        if setting.fabric.devices:
            yield (
                "an averager's own time",
                "0 s",
                "it answers a frame when it has all of it; what an emulated one takes, its reports say. "
                "Scales go over the packet switches before the codes, as if nothing else were there",
            )

    @staticmethod
    def cannot(do: str) -> str | None:
        return (
            None
            if do in ("start", "cancel")
            else f"the simulation cannot {do} where averagers work"
        )

    def steps(self, collective: str, ranks: int) -> Steps:
        return without_steps(collective, ranks)

    def put(self, job: Job, network: Network) -> Job:
        """Return the job with the time of its averaging.

        Once all ranks are ready, the scales of the blocks go over packet switches without other traffic, then
        the codes.
        """
        size = int(job.vector_bytes)
        scales = synchronous(
            network,
            job.ranks,
            scale_steps(len(job.ranks)),
            scale_bytes(size),
            self.cost(),
        )
        stream_s = self.plane.averaging.stream_s(size, self.share, self.latency_s)
        return replace(job, synchronised=True, stepless_s=scales.total_s + stream_s)

    @staticmethod
    def records(fabric: Fabric, **where: Any) -> Iterator[Record]:
        """Yield the results of the networks of a fabric's averagers."""
        for name, averager in averagers_in(fabric).items():
            if (errors := errors_of(averager)) is not None:
                yield NetworkTried(
                    averager=name,
                    inputs=errors.inputs,
                    wrong=errors.wrong,
                    worst=errors.worst,
                    **where,
                )
