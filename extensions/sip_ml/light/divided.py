"""Interconnects whose light is divided by demand, for one job at a time.

For a job light is divided for what it sends in an iteration, before its workers start. Where the fabric says
so, a :class:`~sip_ml.light.dividing.DemandLoop` then divides it again and again for what is still to be
sent. Workers neither ask for light nor know of it: their O-NICs hold what has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringlight.controller.errors import InvalidError, UnavailableError
from ringlight.controller.light.alone import Alone
from ringlight.controller.light.documents import LitPair, OnicDocument
from ringlight.controller.light.provider import LightContext
from ringlight.controller.light.switches import Lights
from ringlight.controller.light.traffic import steps_of_job
from ringlight.controller.server_agent import required_agent
from ringlight.extensions.sip_ml.allocation.circuits import check_degree
from ringlight.extensions.sip_ml.allocation.demand import placed
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.allocation.phased import phase_paths
from ringlight.extensions.sip_ml.light.demand import DividedLight, Phased, by_name
from ringlight.extensions.sip_ml.light.dividing import (
    GUARD_S,
    PATIENCE_S,
    DemandLoop,
    write_tables,
)
from ringlight.extensions.sip_ml.light.documents import (
    Decision,
    DividedPart,
    DividedPlanned,
)
from ringlight.extensions.sip_ml.light.following_phases import PhaseLoop, first_paths
from ringlight.extensions.sip_ml.wholes.whole_plane import WholePlane
from ringlight.extensions.sip_ml.workload_phases import phases_of
from ringlight.fabric.steps import FloatArray, sent_in_steps
from ringlight.workloads.traffic import sent


class DividedProvider(Alone[DividedLight, DemandLoop]):
    """The server agent counts what is sent, and keeps the O-NICs' tables."""

    kind = WholePlane.kind
    Own = DividedPart
    Planned = DividedPlanned
    Change = Decision

    def __init__(self, context: LightContext) -> None:
        super().__init__(context)
        self.patience_s = PATIENCE_S
        #: Returns a workload by its SHA-256.
        self._workload = context.workloads.workload
        #: Emulated seconds in one of the fabric.
        self._time_dilation = context.time_dilation

    # A job's light

    def plan(
        self, plane: WholePlane, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> DividedLight:
        """Return the light that a job on these nodes would get, without any effect. ``settings``: the
        workers' settings.

        Raises InvalidError, also if light is divided only once and some GPUs of the job cannot have light to
        all their receivers at the same time.
        """
        gpus = list(self._fabric.gpus)
        demand = self.demand_of(settings, len(nodes), plane)
        demand = placed(demand, [gpus.index(node) for node in nodes], len(gpus))
        phased = (
            self._phased(plane, nodes, settings)
            if settings.get("light") == "phases"
            else None
        )
        if plane.interconnect.built == "once" and phased is None:
            try:
                if plane.interconnect.partners is not None:
                    check_degree(demand, plane.interconnect.partners, gpus)
                plane.interconnect.check(
                    (i, j) for i, j in np.argwhere(demand).tolist()
                )
            except ValueError as error:
                problem = str(error).removeprefix("demand: ")
                raise InvalidError(f"job on {plane}: {problem}") from error
        interval_s, dark_s = self._times(plane)
        if settings.get("workload") == "linktest":
            # It measures lightpaths, not how often they are divided.
            interval_s = None
        return DividedLight(
            plane.name, nodes, self.switches(plane), demand, interval_s, dark_s, phased
        )

    def _phased(
        self, plane: WholePlane, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> Phased:
        """Return the plan of light that follows the job's phases.

        Raises InvalidError if that is impossible.
        """
        if plane.interconnect.phases is None:
            raise InvalidError(f"light phases: {plane} is not set circuit by circuit")
        gpus = list(self._fabric.gpus)
        numbers, circuits = [gpus.index(node) for node in nodes], divider(self._fabric)
        workload = self._workload(settings["graph"])
        try:
            plan = phases_of(workload)
        except ValueError as error:
            raise InvalidError(f"workload {settings['graph']}: {error}") from None
        try:
            paths = tuple(
                phase_paths(circuits, phase, numbers) for phase in plan.phases
            )
        except ValueError as error:
            raise InvalidError(f"light phases on {plane}: {error}") from error
        guard_s = max(GUARD_S, plane.interconnect.phases.guard_s * self._time_dilation)
        return Phased(plan, paths, settings["iterations"], guard_s)

    def demand_of(
        self, settings: Mapping[str, Any], ranks: int, where: object
    ) -> FloatArray:
        """Return the bytes [ranks, ranks] that a job sends in an iteration, row = sender; 1 for a link test's
        pairs.

        ``settings``: the workers' settings (``workload``, ``collective``, ``gradient_bytes``, ``graph``,
        ``linktest``). Raises InvalidError.
        """
        workload = settings.get("workload", "train")
        if workload == "graph":
            traffic: FloatArray = sent(self._workload(settings["graph"]))
            if len(traffic) != ranks:
                raise InvalidError(
                    f"graph: it is for {len(traffic)} ranks, and the job has {ranks}"
                )
            return traffic
        vector_bytes = (
            settings.get("gradient_bytes", 1.0) if workload == "train" else 1.0
        )
        return sent_in_steps(steps_of_job(settings, ranks, where), vector_bytes)

    def _begin(
        self, job_id: str, light: DividedLight, lights: Lights
    ) -> tuple[DemandLoop, dict[str, float]]:
        loop = self._loop(job_id, light, lights, resumed=False)
        if (problem := loop.first().problem) is not None:
            raise UnavailableError(f"{light.place}: {problem}")
        return loop, {}

    def _resume(self, job_id: str, light: DividedLight, lights: Lights) -> DemandLoop:
        """Return the running loop of a job that another controller started.

        The O-NICs may hold everything and the light is unknown, so light is divided at once.
        """
        return self._loop(job_id, light, lights, resumed=True)

    def _forget(self, light: DividedLight) -> None:
        write_tables(
            required_agent(self._agent), light.place, {node: {} for node in light.nodes}
        )

    def _loop(
        self, job_id: str, light: DividedLight, lights: Lights, *, resumed: bool
    ) -> DemandLoop:
        agent = required_agent(self._agent)
        kind = DemandLoop if light.phased is None else PhaseLoop
        return kind(
            job_id, light, self._fabric, lights, agent, self._bus, resumed=resumed
        )

    # Looking

    def switches(self, plane: WholePlane) -> tuple[str, ...]:
        divided = plane.fabric.parts["divided"]
        return () if divided is None else divided.switches

    def plan_document(self, light: DividedLight) -> DividedPlanned:
        if light.phased is not None:
            pairs = {pair: len(own) for pair, own in first_paths(light.phased).items()}
        else:
            counts = divider(self._fabric).counts(light.demand)
            pairs = {(i, j): int(counts[i, j]) for i, j in np.argwhere(counts).tolist()}
        return DividedPlanned(
            light.place,
            self.kind,
            list(light.nodes),
            list(light.switches),
            by_name(list(self._fabric.gpus), pairs),
        )

    def lightpaths(self, plane: WholePlane, since: float) -> list[LitPair]:
        loop = self._playing.get(plane.name)
        counts = {} if loop is None else loop.counts()
        return [
            LitPair(gpu, peer, None, count)
            for gpu, peers in counts.items()
            for peer, count in peers.items()
        ]

    def onic(self, plane: WholePlane, gpu: str) -> OnicDocument:
        return OnicDocument(gpu, plane.name)

    def _own(self, plane: WholePlane) -> DividedPart:
        loop, last = self._playing.get(plane.name), self._last.get(plane.name)
        interval_s, dark_s = self._times(plane)
        following = loop is not None and loop.light.phased is not None
        return DividedPart(
            mode="phases" if following else "once" if interval_s is None else "again",
            interval_s=interval_s,
            dark_s=dark_s,
            job=None if loop is None else loop.job,
            trouble=None if loop is None else loop.trouble,
            lightpaths={} if loop is None else loop.counts(),
            statistics=None if last is None else last.statistics(),
        )

    def _times(self, plane: WholePlane) -> tuple[float | None, float]:
        """Return the time between divisions (None if light is divided once) and the dark time before each, in
        emulated seconds.
        """
        interconnect, time = plane.interconnect, self._time_dilation
        if interconnect.phases is not None:
            return None, interconnect.phases.dark_s * time
        if interconnect.division is None:
            return None, 0.0
        return (
            interconnect.division.interval_s * time,
            interconnect.division.dark_s * time,
        )
