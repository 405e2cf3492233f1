"""The WDM rings: which jobs have their light, and what they look like.

For a job the whole ring is set: every WSS carries what the first step needs, every node gets its transmit
table, and a conductor (:mod:`controller.rings.conductor`) opens the nodes' flow sockets and steps the light
through the collective. When the job ends, the sockets go first, then the tables, then the light, so that
nobody sends where nothing leads.

While a job has a ring, its WSSs are the conductor's alone: nobody else changes or watches them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.lights import Lights
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import ConflictError, ControllerError, NotFoundError, UnavailableError
from ringlight.controller.rings.conductor import RingConductor
from ringlight.controller.rings.light import choose_ring, plan_light, ring_of, steps_of_job
from ringlight.controller.server_agent import AgentClient
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.planes.ring.ring import WdmRing
from ringlight.fabric.planes.ring.wdm import RingPlan, set_up_steps
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_PARALLEL = 16


class RingSite:
    """Sets and clears the light of jobs on rings. Safe from any thread.

    ``agent``: keeps the nodes' transmit tables. ``sockets``: where each node's flow socket is to be, by GPU.
    """

    whole = True

    def __init__(
        self,
        fabric: Fabric,
        site: OpticalSite,
        agent: AgentClient | None,
        sockets: Mapping[str, Path],
        bus: EventBus,
    ) -> None:
        self._fabric = fabric
        self._site = site
        self._agent = agent
        self._sockets = sockets
        self._bus = bus
        self._lock = threading.RLock()
        self._playing: dict[str, RingConductor] = {}
        #: The last conductor of each ring, for what it measured.
        self._last: dict[str, RingConductor] = {}
        #: Why jobs were not taken over.
        self._lost: dict[str, str] = {}

    def stop(self) -> None:
        """End the conductors. Light and tables stay as they are; workers try until the next one comes."""
        with self._lock:
            playing, self._playing = dict(self._playing), {}
        for conductor in playing.values():
            conductor.stop()
            conductor.lights.close()

    # Planning

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: Mapping[str, Any],
        holders: Mapping[str, str],
        place: str | None = None,
    ) -> RingPlan | None:
        """What a job would get; None for one that is not meant for a ring. Touches nothing.

        Raises as :func:`choose_ring`, :func:`steps_of_job`, :func:`plan_light`.
        """
        chosen = choose_ring(self._fabric, holders, wanted, place)
        if chosen is None:
            return None
        return plan_light(self._fabric, chosen, steps_of_job(chosen, settings))

    def check(self, plan: RingPlan) -> None:
        """Ask every WSS and the agent. Raises the first error."""

        def look(name: str) -> None:
            self._site.look(name, timeout_s=3.0)

        for error in _on_all(plan.switches, look):
            raise error
        self._need_agent().health()

    # A job's light

    def light(self, job_id: str, plan: RingPlan) -> None:
        """Set the light of the beginning and the transmit tables, then open the flow sockets.

        Raises ControllerError; what was done until then stays until :meth:`clear`.
        """
        with self._lights(job_id, plan) as lights:
            began = time.monotonic()
            _, problems = lights.set(plan.steps[0].cross_connects, exactly=True)
            if problems:
                raise UnavailableError(f"ring {plan.place}: {problems[0]}")
            lit = time.monotonic()
            self._write_tables(plan.place, self._tables(plan))
            tables = time.monotonic()
            self._play(job_id, plan, lights, resumed=False)
        self._publish(job_id, plan.place, "lit", light_s=lit - began, tables_s=tables - lit)

    def adopt(self, job_id: str, plan: RingPlan) -> None:
        """Take over a job that runs already: its light and tables stand, its workers come back."""
        try:
            with self._lights(job_id, plan) as lights:
                self._play(job_id, plan, lights, resumed=True)
        except ControllerError as error:
            log.error("job %s is not taken over: %s", job_id, error)
            with self._lock:
                self._lost[job_id] = f"job {job_id} is not taken over: {error}"
        else:
            self._publish(job_id, plan.place, "adopted")

    def clear(self, job_id: str, plan: RingPlan) -> list[str]:
        """Take a job's sockets, tables and light away; what did not work, one line each. May be repeated."""
        with self._lock:
            conductor = self._playing.pop(job_id, None)
            self._lost.pop(job_id, None)
        if conductor is not None:
            conductor.stop()
        if self._site.hold(job_id, plan.switches) is not None:
            # The next job has the ring already; then all this is done.
            return []
        problems: list[str] = []
        try:
            self._write_tables(plan.place, {node: {} for node in plan.nodes})
        except ControllerError as error:
            problems.append(str(error))
        problems += (Lights(self._site, plan.switches) if conductor is None else conductor.lights).put_out()
        if not problems:
            self._site.release(job_id)
        state = "not cleared" if problems else "cleared"
        self._publish(job_id, plan.place, state, error=problems[0] if problems else None)
        return problems

    @contextlib.contextmanager
    def _lights(self, job_id: str, plan: RingPlan) -> Iterator[Lights]:
        """The ring's WSSs, for this job alone. Trouble is told, and then they are closed."""
        try:
            lights = Lights(self._site, plan.switches)
            try:
                # Nothing is held before, so that no error leaves it so.
                if (other := self._site.hold(job_id, plan.switches)) is not None:
                    raise ConflictError(f"ring {plan.place} is lit for job {other}")
                yield lights
            except BaseException:
                lights.close()
                raise
        except ControllerError as error:
            self._publish(job_id, plan.place, "failed", error=str(error))
            raise

    def _play(self, job_id: str, plan: RingPlan, lights: Lights, *, resumed: bool) -> None:
        sockets = {node: self._sockets[node] for node in plan.nodes}
        ips = {node: self._fabric.gpus[node].ip for node in plan.nodes}
        try:
            conductor = RingConductor(job_id, plan, lights, sockets, ips, self._bus, resumed=resumed)
        except OSError as error:
            raise UnavailableError(f"ring {plan.place}: flow socket {error.strerror or error}") from error
        with self._lock:
            self._playing[job_id] = self._last[plan.place] = conductor
        conductor.start()

    def _publish(self, job_id: str, ring: str, state: str, **more: Any) -> None:
        self._bus.publish("ring", job=job_id, ring=ring, state=state, **more)

    # Transmit tables

    def _tables(self, plan: RingPlan) -> dict[str, dict[str, Any]]:
        return {
            node: {
                self._fabric.gpus[peer].ip: {"port": emit.port, "wavelength": emit.wavelength}
                for peer, emit in peers.items()
            }
            for node, peers in plan.transmit.items()
        }

    def _write_tables(self, ring: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises ControllerError naming the first O-NIC that has not what it should."""
        agent = self._need_agent()

        def write(node: str) -> None:
            if agent.set_transmit(node, tables[node]) != tables[node]:
                raise UnavailableError(f"ring {ring}: the transmit table of {node} did not read back")

        for error in _on_all(list(tables), write):
            raise error

    def _need_agent(self) -> AgentClient:
        if self._agent is None:
            raise UnavailableError("the inventory names no server agent")
        return self._agent

    # Looking

    def troubles(self) -> list[str]:
        """Why light is not as it should be, one line for each ring."""
        with self._lock:
            playing, lost = list(self._playing.values()), list(self._lost.values())
        return lost + [f"ring {c.plan.place}: {c.trouble}" for c in playing if c.trouble is not None]

    def rings(self, holders: Mapping[str, str]) -> list[dict[str, Any]]:
        """Every ring in short."""
        return [self._overview(ring, holders) for ring in self._fabric.rings.values()]

    def ring(self, name: str, holders: Mapping[str, str]) -> dict[str, Any]:
        """A ring with its nodes, where its job is, and what setting light took. Raises NotFoundError.

        ``statistics`` are those of the last job; ``lit``: what each WSS carries, as last read.
        """
        ring = self._ring(name)
        playing = self._conductor(name)
        last = self._last.get(name)
        seen = self._site.cross_connects()
        return {
            **self._overview(ring, holders),
            "nodes": [
                {"gpu": node, "ip": self._fabric.gpus[node].ip, "switch": switch, "job": holders.get(node)}
                for node, switch in zip(ring.nodes, ring.switches, strict=True)
            ],
            "playing": None if playing is None else playing.document(),
            "statistics": None if last is None else last.statistics(),
            "lit": {
                switch: [
                    _pair(xc) for xc in sorted(playing.lights.carries(switch) if playing else seen[switch])
                ]
                for switch in ring.switches
            },
        }

    def set_ups(self, name: str) -> list[dict[str, Any]]:
        """The changes of light of a ring's last job, one by one. Raises NotFoundError."""
        self._ring(name)
        last = self._last.get(name)
        return [] if last is None else last.set_ups()

    def onics(self) -> list[dict[str, Any]]:
        """The O-NICs of rings, which have no agents."""
        return [self.onic(node) for ring in self._fabric.rings.values() for node in ring.nodes]

    def onic(self, gpu: str) -> dict[str, Any]:
        """Raises NotFoundError for a GPU that is on no ring."""
        ring = ring_of(self._fabric, gpu)
        if ring is None:
            raise NotFoundError(f"GPU {gpu} is on no ring")
        playing = self._conductor(ring.name)
        return {
            "gpu": gpu,
            "ring": ring.name,
            "grid": None,
            "transmitters": "array",
            "control": None,
            "transmit": {} if playing is None else self._tables(playing.plan)[gpu],
        }

    def _conductor(self, ring: str) -> RingConductor | None:
        with self._lock:
            return next((c for c in self._playing.values() if c.plan.place == ring), None)

    def _overview(self, ring: WdmRing, holders: Mapping[str, str]) -> dict[str, Any]:
        playing = self._conductor(ring.name)
        return {
            "name": ring.name,
            "size": len(ring.nodes),
            "wavelengths": ring.wavelengths,
            "job": next((holders[node] for node in ring.nodes if node in holders), None),
            "step": None if playing is None else playing.document()["step"],
        }

    def _ring(self, name: str) -> WdmRing:
        if name not in self._fabric.rings:
            raise NotFoundError(f"there is no ring {name}")
        return self._fabric.rings[name]


def ring_document(plan: RingPlan) -> dict[str, Any]:
    """A plan as the REST API shows it. ``set_ups``: changes of light in an iteration."""
    return {
        "ring": plan.place,
        "ranks": list(plan.nodes),
        "switches": list(plan.switches),
        "steps": len(plan.steps),
        "set_ups": sum(set_up_steps(plan)),
        "transmit": {
            node: {peer: {"port": e.port, "wavelength": e.wavelength} for peer, e in peers.items()}
            for node, peers in plan.transmit.items()
        },
    }


def _on_all(names: Sequence[str], work: Callable[[str], None]) -> list[ControllerError]:
    """The work for every name, many at a time; the errors in the order given."""

    def one(name: str) -> ControllerError | None:
        try:
            work(name)
        except ControllerError as error:
            return error
        return None

    with ThreadPoolExecutor(min(_PARALLEL, max(1, len(names)))) as pool:
        return [error for error in pool.map(one, names) if error is not None]


def _pair(xc: CrossConnect) -> dict[str, Any]:
    return {"ingress": xc.ingress, "egress": xc.egress, "wavelength": xc.wavelength}
