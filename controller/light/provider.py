"""Base of all providers of light: check, light, adopt, clear, and publish.

A provider lights the planes of one kind (``controller.jobs.light_provider``). If a job has its plane for
itself (``alone.Alone``), the plane's switches are reserved for it and set through their drivers, and a
*player* changes their light while the job runs; nothing else changes or watches them. At the job's end the
player ends, then the O-NICs' tables are removed, then the light, so that no O-NIC sends into the dark.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import ControllerError, NotFoundError
from ringlight.controller.jobs.light_provider import L
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.light.documents import (
    Lit,
    LitPair,
    OnicDocument,
    PlaneDocument,
    PlaneNode,
    PlaneOverview,
    PlaneSwitch,
    PlannedLight,
)
from ringlight.controller.onic.place import OnicPlace
from ringlight.controller.server_agent import AgentClient
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import lit_planes
from ringlight.fabric.planes.kinds import parts_of_planes
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Devices asked at the same time.
PARALLEL = 16


@dataclass(frozen=True)
class LightContext:
    """Parts that providers are made of.

    ``agent``: None if the inventory names no server agent. ``onics``: where each O-NIC is found, by GPU.
    ``time_dilation``: emulated seconds in one of the fabric. ``flow_sockets``: by GPU, where the controller
    serves the flows of O-NICs without an agent.
    """

    fabric: Fabric
    site: OpticalSite
    agent: AgentClient | None
    bus: EventBus
    circuits: CircuitManager
    onics: Mapping[str, OnicPlace]
    workloads: WorkloadFiles
    time_dilation: float
    flow_sockets: Mapping[str, Path]


class Provider(ABC, Generic[L]):
    """Base class that plans, sets and removes the light of jobs on planes of one kind. Safe from any thread.

    Subclasses are the ``provider`` of a ``PlaneKind``. ``Own``, ``Planned``, ``Change``: dataclasses of what
    REST tells of such a plane only, of planned light, and of each change of light.
    """

    kind: ClassVar[str]
    Own: ClassVar[type]
    Planned: ClassVar[type[PlannedLight]]
    Change: ClassVar[type | None] = None
    alone = False

    def __init__(self, context: LightContext) -> None:
        self._fabric = context.fabric
        self._site = context.site
        self._agent = context.agent
        self._bus = context.bus
        self._lock = threading.RLock()
        #: Reasons for which jobs were not taken over.
        self._lost: dict[str, str] = {}

    def start(self) -> None:
        """Begin to watch what has to be watched."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the background work. Light and the O-NICs' tables stay as they are."""

    # A job's light

    @abstractmethod
    def plan(
        self, plane: Any, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> L:
        """Return the light that a job on these nodes would get, without any effect. ``settings``: the
        workers' settings.

        Raises InvalidError for what can never be provided.
        """

    def check(self, light: L) -> None:
        """Check that every switch can be read, and that the O-NICs can be set.

        Raises the first ControllerError.
        """

        def look(name: str) -> None:
            self._site.look(name, timeout_s=3.0)

        for error in on_all(light.switches, look):
            raise error
        self._check_onics(light)

    def light(self, job_id: str, light: L) -> None:
        """Set the light, write the O-NICs' tables, and start the player if the light changes during the job.

        May be called again. Raises ControllerError; everything done until then stays until :meth:`clear`.
        """
        try:
            took = self._light(job_id, light)
        except ControllerError as error:
            self._publish(job_id, light, "failed", error=str(error))
            raise
        self._publish(job_id, light, "lit", **took)

    def adopt(self, job_id: str, light: L) -> None:
        """Take over a job that an earlier controller lit and that still runs. Never stops it."""
        try:
            self._adopt(job_id, light)
        except ControllerError as error:
            log.error("job %s is not taken over: %s", job_id, error)
            with self._lock:
                self._lost[job_id] = (
                    f"{light.place}: job {job_id} is not taken over: {error}"
                )
            self._publish(job_id, light, "failed", error=str(error))
        else:
            self._publish(job_id, light, "adopted")

    def clear(self, job_id: str, light: L) -> list[str]:
        """Remove the O-NICs' tables, then the light. Return one line for each failure.

        May be called again.
        """
        with self._lock:
            self._lost.pop(job_id, None)
        problems = self._clear(job_id, light)
        if problems is None:
            return []
        state = "not cleared" if problems else "cleared"
        self._publish(job_id, light, state, error=problems[0] if problems else None)
        return problems

    @abstractmethod
    def _check_onics(self, light: L) -> None:
        """Check that the O-NICs' agents answer. Raises the ControllerError of the first that does not."""

    @abstractmethod
    def _light(self, job_id: str, light: L) -> dict[str, float]:
        """Light a job. Return the duration of each part in seconds, for the parts that are reported."""

    @abstractmethod
    def _adopt(self, job_id: str, light: L) -> None:
        """Take over the light of a job that runs already. Raises ControllerError."""

    @abstractmethod
    def _clear(self, job_id: str, light: L) -> list[str] | None:
        """Remove a job's tables and light.

        Return one line for each failure; None if another job has the light already.
        """

    def _publish(self, job_id: str, light: L, state: str, **more: Any) -> None:
        self._bus.publish(
            "plane",
            job=job_id,
            plane=light.place,
            state=state,
            switches=list(light.switches),
            **more,
        )

    # Looking

    def troubles(self) -> list[str]:
        """Return the reasons for which light is not as it should be, one line for each job."""
        with self._lock:
            return list(self._lost.values())

    def overview(self, plane: Any, holders: Mapping[str, str]) -> PlaneOverview:
        """Return a summary of a plane. ``holders``: the job that has each taken GPU."""
        return PlaneOverview(**self._facts(plane, holders))

    def document(self, plane: Any, holders: Mapping[str, str]) -> PlaneDocument:
        """Return a plane with its nodes and what its switches carry, as last read.

        ``holders``: the job that has each taken GPU.
        """
        ports = self._ports(plane)
        node_at = {
            (port.node, port.number): node
            for node, own in ports.items()
            for port in own
        }
        views = self._site.views()
        nodes = [
            PlaneNode(
                node,
                self._fabric.gpus[node].ip,
                holders.get(node),
                [str(port) for port in own],
            )
            for node, own in ports.items()
        ]
        switches = []
        for name, carried in self._carried(plane).items():
            size = self._fabric.optical_switches[name].size
            lit_cross_connects = [
                Lit(
                    xc.ingress,
                    xc.egress,
                    xc.wavelength,
                    node_at.get((name, xc.ingress)),
                    node_at.get((name, xc.egress - size)),
                )
                for xc in sorted(carried)
            ]
            switches.append(
                PlaneSwitch(name, views[name].reachable, lit_cross_connects)
            )
        return PlaneDocument(
            **self._facts(plane, holders),
            nodes=nodes,
            switches=switches,
            own=self._own(plane),
        )

    def changes(self, plane: Any) -> Sequence[Any]:
        """Return the changes of a plane's light during its last job, one by one; empty for planes without
        changes.
        """
        return []

    @abstractmethod
    def lightpaths(self, plane: Any, since: float) -> Collection[LitPair]:
        """Return the pairs of GPUs that have light now.

        If light is requested for each flow, also pairs that had light after ``since`` (seconds of
        CLOCK_MONOTONIC).
        """

    @abstractmethod
    def plan_document(self, light: L) -> PlannedLight:
        """Return a plan as a document of the REST API."""

    @abstractmethod
    def switches(self, plane: Any) -> tuple[str, ...]:
        """Return the optical switches of a plane."""

    def onics(self) -> list[OnicDocument]:
        """Return the O-NICs of all planes. Agents, if there are any, are read now."""
        planes = [
            plane for plane in lit_planes(self._fabric) if plane.kind == self.kind
        ]
        return [self.onic(plane, node) for plane in planes for node in plane.nodes]

    @abstractmethod
    def onic(self, plane: Any, gpu: str) -> OnicDocument:
        """Return an O-NIC of a plane. Raises ControllerError if its agent does not answer."""

    def agents(self) -> Mapping[str, bool]:
        """Return whether the agent of each O-NIC that has one answered when it was last asked, by GPU."""
        return {}

    def flows(self, gpu: str, cursor: int) -> Mapping[str, Any]:
        """Return the timeline of an O-NIC's flows after a cursor (``OnicFlows``), as its agent answers.

        Raises NotFoundError for an O-NIC without an agent; ControllerError if its agent does not answer.
        """
        raise NotFoundError(f"the O-NIC of GPU {gpu} has no agent")

    @abstractmethod
    def _own(self, plane: Any) -> Any:
        """Return the part of the document that only planes of this kind have, an ``Own``."""

    def _ports(self, plane: Plane) -> dict[str, list[Port]]:
        """Return the switches' faceplate ports that each node is plugged into, in the order of its O-NIC's
        ports.
        """
        own = {
            node: [Port(node, n) for n in range(self._fabric.onics[node].ports)]
            for node in plane.nodes
        }
        return {
            node: [self._fabric.link_at[port].other(port) for port in ports]
            for node, ports in own.items()
        }

    def _carried(self, plane: Any) -> dict[str, frozenset[CrossConnect]]:
        """Return the cross-connects that each switch passes, as last read."""
        seen = self._site.cross_connects()
        return {name: seen[name] for name in self.switches(plane)}

    def _facts(self, plane: Plane, holders: Mapping[str, str]) -> dict[str, Any]:
        carried = self._carried(plane)
        first = next(iter(carried), None)
        return {
            "name": plane.name,
            "kind": plane.kind,
            "size": len(plane.nodes),
            "free": sum(node not in holders for node in plane.nodes),
            "jobs": sorted({holders[node] for node in plane.nodes if node in holders}),
            "wavelengths": None
            if first is None
            else self._fabric.optical_switches[first].wavelengths,
            "cross_connects": sum(map(len, carried.values())),
        }


def providers() -> list[type[Provider[Any]]]:
    """Return the providers of all kinds of planes. Raises ExtensionError if one cannot be loaded."""
    return list(parts_of_planes("provider").values())


def on_all(
    names: Collection[str],
    work: Callable[[str], None],
    pool: ThreadPoolExecutor | None = None,
) -> list[ControllerError]:
    """Run ``work`` for every name in parallel. Return the errors in the given order."""

    def attempt(name: str) -> ControllerError | None:
        try:
            work(name)
        except ControllerError as error:
            return error
        return None

    if pool is not None:
        return [error for error in pool.map(attempt, names) if error is not None]
    with ThreadPoolExecutor(min(PARALLEL, max(1, len(names)))) as own:
        return [error for error in own.map(attempt, names) if error is not None]
