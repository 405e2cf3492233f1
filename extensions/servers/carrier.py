"""Simulate servers that do a collective as NCCL does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ringlight.experiments.backends.simulation.carriers import Assumed, Carrier
from ringlight.experiments.language.plan import Setting
from ringlight.extensions.servers.fabric_key import KEY, stated
from ringlight.extensions.servers.servers_plane import ServersPlane
from ringlight.fabric.steps import Steps, without_steps
from ringlight.testbed.simulation.jobs import Job
from ringlight.testbed.simulation.networks import Network


@dataclass
class ServersCarrier(Carrier):
    plane: ServersPlane

    link_effects: ClassVar[bool] = False
    stalls: ClassVar[bool] = False
    traced: ClassVar[bool] = False

    @staticmethod
    def assumed(setting: Setting) -> Iterator[Assumed]:
        for cluster in setting.fabric.parts.get(KEY, {}).values():
            document = stated(cluster)
            rate, _, source = document.nvlink.partition(" (")
            yield "usable rate of a GPU's NVLink", rate, source.removesuffix(")")
            for nic in dict.fromkeys(document.nics):
                rate, _, source = nic.partition(" (")
                yield "usable rate of a NIC", rate, source.removesuffix(")")

    @staticmethod
    def cannot(do: str) -> str | None:
        if do in ("start", "cancel"):
            return None
        return f"the simulation cannot {do} where NCCL's collectives are computed"

    def steps(self, collective: str, ranks: int) -> Steps:
        return without_steps(collective, ranks)

    def put(self, job: Job, network: Network) -> Job:
        """Return the job with the time of its all-reduce, as if no other job used the servers' links."""
        scale = self.plan.setting.scale
        real = self.plane.predicted(round(job.vector_bytes * scale.payload))
        return replace(job, synchronised=True, stepless_s=real.seconds * scale.time)
