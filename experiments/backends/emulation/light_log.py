"""Records of light around a run: counters, and what planes with light of their own leave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from ringlight.experiments.backends.simulation.carriers import Carrier, carriers
from ringlight.experiments.client import Api
from ringlight.experiments.language.plan import JobPlan
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.light_records import LightCounters
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.topology import Fabric
from ringlight.testbed.faults import FaultClient


class LightLog:
    """Reads what is on record of a run's light from the controller and the testbed.

    Methods raise Unreachable and FaultError.
    """

    def __init__(self, api: Api, faults: FaultClient, fabric: Fabric) -> None:
        self._api, self._faults, self._fabric = api, faults, fabric

    def counters(self, run: str, moment: str) -> list[Record]:
        """Return the kernel's counters of the light and the agents', where there are O-NICs."""
        if not self._fabric.onics:
            return []
        kernel = self._faults.light_counters()
        agents = {
            entry["gpu"]: {
                "epoch": entry["status"]["epoch"],
                "counters": entry["status"]["counters"],
            }
            for entry in self._api.get("/v1/onics")
            if entry.get("status")
        }
        t = time.monotonic()
        return [
            LightCounters(t=t, run=run, moment=moment, kernel=kernel, agents=agents)
        ]

    def released(self, run: str) -> list[Record]:
        """Return what is kept of planes that have light of their own once the first jobs are released."""
        records: list[Record] = []
        for plane in lit_planes(self._fabric):
            carrier = carriers().get(plane.kind, Carrier)
            read = partial(self._of_plane, plane.name)
            records += carrier.emulated_at_release(
                plane.name, read, t=time.monotonic(), run=run
            )
        return records

    def planes(self, run: str, jobs: Mapping[str, JobPlan]) -> list[Record]:
        """Return what the controller did with planes that have light of their own.

        ``jobs``: those of the run, by their ids.
        """
        records: list[Record] = []
        for plane in lit_planes(self._fabric):
            carrier = carriers().get(plane.kind, Carrier)
            read = partial(self._of_plane, plane.name)
            records += carrier.emulated(
                plane.name, read, jobs, t=time.monotonic(), run=run
            )
        return records

    def _of_plane(self, name: str, part: str) -> Any:
        return self._api.get(f"/v1/planes/{name}{part}")
