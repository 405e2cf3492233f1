"""The interconnect whose light is divided by demand: which job has it, and what it looks like.

For a job light is divided for what it sends in an iteration, before its workers start. Where the fabric says
so, a :class:`~controller.demand.loop.DemandLoop` then divides it again and again for what is still to be
sent. Workers neither ask for light nor know of it: their O-NICs hold what has none. While a job has the
interconnect, its switches are its loop's alone: nobody else changes or watches them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.lights import Lights
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.demand.light import DemandLight, by_name, choose, demand_of
from ringlight.controller.demand.loop import PATIENCE_S, DemandLoop, write_tables
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.server_agent import AgentClient
from ringlight.fabric.allocation.circuits import check_degree
from ringlight.fabric.allocation.demand import FloatArray, placed
from ringlight.fabric.allocation.dividing import divider
from ringlight.fabric.planes.divided.planes import Planes
from ringlight.fabric.planes.ring.ring import WdmRing
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)


class DemandSite:
    """Divides the light of ``fabric.divided`` for jobs, one at a time. Safe from any thread.

    ``agent``: counts what is sent, and keeps the O-NICs' tables. ``traffic``: bytes [ranks, ranks] that a
    graph sends in an iteration, by its SHA-256; raises NotFoundError. ``time_dilation``: emulated seconds in
    one of the fabric.
    """

    whole = True

    def __init__(
        self,
        fabric: Fabric,
        site: OpticalSite,
        agent: AgentClient | None,
        bus: EventBus,
        traffic: Callable[[str], FloatArray],
        time_dilation: float,
    ) -> None:
        self._fabric = fabric
        self._site = site
        self._agent = agent
        self._bus = bus
        self._traffic = traffic
        self._time_dilation = time_dilation
        self._lock = threading.RLock()
        self._stopped = False
        self._loops: dict[str, DemandLoop] = {}
        #: That of the last job, for what it measured.
        self._last: DemandLoop | None = None
        #: Why jobs were not taken over.
        self._lost: dict[str, str] = {}

    def stop(self) -> None:
        """Divide no more. Light and tables stay as they are."""
        with self._lock:
            self._stopped = True
            loops, self._loops = dict(self._loops), {}
        for loop in loops.values():
            loop.stop()
            loop.lights.close()

    # Planning

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: Mapping[str, Any],
        holders: Mapping[str, str],
        place: str | None = None,
    ) -> DemandLight | None:
        """What a job would get; None where no light is divided. Touches nothing.

        Raises as :func:`choose` and :func:`demand_of`, and InvalidError where light is divided once and a GPU
        has more partners than there are switches.
        """
        nodes = choose(self._fabric, wanted, holders, place)
        if nodes is None:
            return None
        divided, one = self._divided(), self._fabric.interconnect
        assert one is not None
        gpus = list(self._fabric.gpus)
        demand = demand_of(settings, len(nodes), self._traffic)
        demand = placed(demand, [gpus.index(node) for node in nodes], len(gpus))
        if one.built == "once":
            try:
                if one.partners is not None:
                    check_degree(demand, one.partners, gpus)
                one.check(map(tuple, np.argwhere(demand).tolist()))
            except ValueError as error:
                problem = str(error).removeprefix("demand: ")
                raise InvalidError(f"job on {divided.name}: {problem}") from error
        interval_s, dark_s = self._times()
        if settings.get("workload") == "linktest":
            # It measures lightpaths, not how often they are divided.
            interval_s = None
        return DemandLight(
            divided.name, nodes, divided.switches, demand, interval_s, dark_s
        )

    def check(self, light: DemandLight) -> None:
        """Ask every switch and the agent. Raises the first error."""
        for name in light.switches:
            self._site.look(name, timeout_s=3.0)
        self._need_agent().health()

    # A job's light

    def light(self, job_id: str, light: DemandLight) -> None:
        """Divide the light for what the job sends in an iteration, and then as the fabric says.

        Raises ControllerError; what was done until then stays until :meth:`clear`.
        """
        loop = self._loop(job_id, light)
        problem = loop.divide(light.demand, counted=False).problem
        if problem is not None:
            loop.lights.close()
            self._publish(job_id, light, "failed", error=problem)
            raise UnavailableError(f"{light.place}: {problem}")
        self._play(loop, at_once=False)
        self._publish(job_id, light, "lit")

    def adopt(self, job_id: str, light: DemandLight) -> None:
        """Take over a job that runs already. Its O-NICs may hold everything, and its light may be any:
        the first that is done is a whole division."""
        try:
            loop = self._loop(job_id, light)
        except ControllerError as error:
            log.error("job %s is not taken over: %s", job_id, error)
            with self._lock:
                self._lost[job_id] = f"{light.place}: job {job_id} is not taken over: {error}"
            self._publish(job_id, light, "failed", error=str(error))
            return
        self._play(loop, at_once=True)
        self._publish(job_id, light, "adopted")

    def clear(self, job_id: str, light: DemandLight) -> list[str]:
        """Take a job's tables and light away; what did not work, one line each. May be repeated."""
        with self._lock:
            loop = self._loops.pop(job_id, None)
            self._lost.pop(job_id, None)
        if loop is not None:
            loop.stop()
        if self._site.hold(job_id, light.switches) is not None:
            # The next job has the light already; then all this is done.
            return []
        problems: list[str] = []
        try:
            write_tables(self._need_agent(), light.place, {node: {} for node in light.nodes})
        except ControllerError as error:
            problems.append(str(error))
        problems += (self._lights(light) if loop is None else loop.lights).put_out()
        if not problems:
            self._site.release(job_id)
        state = "not cleared" if problems else "cleared"
        self._publish(job_id, light, state, error=problems[0] if problems else None)
        return problems

    def _loop(self, job_id: str, light: DemandLight) -> DemandLoop:
        """One with the switches for this job alone, not begun. Raises ControllerError."""
        loop = DemandLoop(job_id, light, self._fabric, self._lights(light), self._need_agent(), self._bus)
        # Last, so that nothing is held where there is no loop.
        if (other := self._site.hold(job_id, light.switches)) is not None:
            loop.lights.close()
            raise ConflictError(f"the light of {light.place} is that of job {other}")
        return loop

    def _lights(self, light: DemandLight) -> Lights:
        return Lights(self._site, light.switches, PATIENCE_S)

    def _play(self, loop: DemandLoop, *, at_once: bool) -> None:
        with self._lock:
            if self._stopped:
                loop.lights.close()
                return
            self._loops[loop.job] = self._last = loop
            loop.start(at_once=at_once)

    def _publish(self, job_id: str, light: DemandLight, state: str, **more: Any) -> None:
        self._bus.publish("interconnect", job=job_id, place=light.place, state=state, **more)

    def _need_agent(self) -> AgentClient:
        if self._agent is None:
            raise UnavailableError("the inventory names no server agent")
        return self._agent

    # Looking

    def plan_document(self, light: DemandLight) -> dict[str, Any]:
        """A plan as the REST API shows it."""
        counts = divider(self._fabric).counts(light.demand)
        names = list(self._fabric.gpus)
        return {
            "interconnect": light.place,
            "ranks": list(light.nodes),
            "switches": list(light.switches),
            "lightpaths": by_name(
                names, {(i, j): int(counts[i, j]) for i, j in np.argwhere(counts).tolist()}
            ),
        }

    def troubles(self) -> list[str]:
        """Why light is not as it should be, one line for each job."""
        with self._lock:
            loops, lost = list(self._loops.values()), list(self._lost.values())
        return lost + [f"{loop.light.place}: {loop.trouble}" for loop in loops if loop.trouble is not None]

    def document(self) -> dict[str, Any]:
        """The interconnect, whose light it is, and what dividing took. Raises NotFoundError.

        ``statistics`` are those of the last job, None before the first.
        """
        divided, (interval_s, dark_s) = self._divided(), self._times()
        with self._lock:
            loop = next(iter(self._loops.values()), None)
            last = self._last
        return {
            "name": divided.name,
            "gpus": list(divided.nodes),
            "switches": list(divided.switches),
            "mode": "once" if interval_s is None else "again",
            "interval_s": interval_s,
            "dark_s": dark_s,
            "job": None if loop is None else loop.job,
            "trouble": None if loop is None else loop.trouble,
            "lightpaths": {} if loop is None else loop.counts(),
            "statistics": None if last is None else last.statistics(),
        }

    def decisions(self) -> list[dict[str, Any]]:
        """The decisions of the last job, one by one. Raises NotFoundError where no light is divided."""
        self._divided()
        with self._lock:
            last = self._last
        return [] if last is None else last.decisions()

    def _times(self) -> tuple[float | None, float]:
        """How long a division holds, None for good, and how long all is dark before it; emulated seconds."""
        one = self._fabric.interconnect
        if one is None or one.division is None:
            return None, 0.0
        return one.division.interval_s * self._time_dilation, one.division.dark_s * self._time_dilation

    def _divided(self) -> Planes | WdmRing:
        if self._fabric.divided is None:
            raise NotFoundError("this fabric has no interconnect whose light is divided")
        return self._fabric.divided
