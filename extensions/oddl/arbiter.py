"""Grids: the slow stage of their two-stage reconfiguration, once per job, never per flow.

For a job the WSSs are set so that exactly the job's pairs in one row or column can reach each other, and
each O-NIC's agent is handed its wavelength map. After that the agents settle every flow between themselves:
training goes on whether or not a controller runs.

Several jobs may share a WSS, so the light goes through the circuit manager: what a job should have is on disk
before the first write and is lit again wherever it was lost. When a job ends its maps go first, then its
light, so that no laser is ever told to send where nothing leads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.controller.circuits.change import Target
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    UnavailableError,
)
from ringlight.controller.light.documents import LitPair, OnicDocument
from ringlight.controller.light.provider import LightContext, Provider
from ringlight.controller.light.traffic import steps_of_job
from ringlight.controller.onic.reach import Reach
from ringlight.extensions.oddl.agents import OnicSite, OnicView, entries_of
from ringlight.extensions.oddl.documents import GridPart, GridPlanned, wired
from ringlight.extensions.oddl.grid import Grid, sockets
from ringlight.extensions.oddl.grid_plane import GridPlane
from ringlight.extensions.oddl.wavelengths import cross_connects, wavelength_map
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.parts import OpticalSwitch
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.planes.choice import plane_of
from ringlight.fabric.steps import Pair, pairs_of
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Longest wait for another change of light, seconds.
_QUIET_S = 60.0
#: A cursor behind all flows of a timeline.
_LATEST = (1 << 62) - 1


@dataclass(frozen=True)
class GridPlan:
    """Plan of a job on grid ``place``. ``nodes`` are in rank order.

    ``maps``: the way in which each node reaches each peer in one hop. ``cross_connects``: cross-connects by
    WSS. ``ports``: ingresses and egresses of the job's nodes by WSS, all that are plugged, whether or not the
    job lights them.
    """

    place: str
    nodes: tuple[str, ...]
    maps: Mapping[str, Mapping[str, Reach]]
    cross_connects: Mapping[str, frozenset[CrossConnect]]
    ports: Mapping[str, frozenset[int]]

    @property
    def switches(self) -> list[str]:
        """WSSs that carry something for the job."""
        return sorted(self.cross_connects)


def plan_light(
    fabric: Fabric,
    grid: Grid,
    nodes: Sequence[str],
    pairs: Sequence[Pair] | None = None,
) -> GridPlan:
    """Return the plan that follows from a job's nodes and from the pairs that send to each other.

    Raises ValueError naming a node that the grid does not have or that is named twice. On a grid with few
    wavelengths, ValueError also names a pair that shares neither row nor column, a sender or receiver outside
    the job, or a WSS with too few wavelengths.
    """
    ways = wavelength_map(grid, nodes, pairs)
    ports: dict[str, set[int]] = {}
    for node in nodes:
        for port in sockets(grid, node):
            switch = fabric.optical_switches[port.node]
            ports.setdefault(switch.name, set()).update(
                (switch.ingress(port.number), switch.egress(port.number))
            )
    return GridPlan(
        grid.name,
        tuple(nodes),
        ways,
        cross_connects(grid, fabric, ways),
        {name: frozenset(group) for name, group in ports.items()},
    )


def plan_job(
    fabric: Fabric, grid: Grid, nodes: Sequence[str], settings: Mapping[str, Any]
) -> GridPlan:
    """Return the plan of a job, in which everything that its workers send takes one optical hop.

    ``settings``: the workers' settings (``workload``, ``collective``, ``linktest``). Raises InvalidError.
    """
    steps = steps_of_job(settings, len(nodes), f"grid {grid.name}")
    rank_of = {node: rank for rank, node in enumerate(nodes)}
    try:
        pairs = pairs_of(nodes, steps)
        plan = plan_light(fabric, grid, nodes, pairs)
        for a, b in pairs:
            if b not in plan.maps[a]:
                raise ValueError(
                    f"ranks {rank_of[a]} and {rank_of[b]} ({a}, {b}) share neither row nor column"
                )
    except ValueError as error:
        raise InvalidError(f"{steps.name} on grid {grid.name}: {error}") from error
    return plan


class GridProvider(Provider[GridPlan]):
    """The arbiter: sets and clears the light and the maps of jobs on grids.

    ``start`` begins to watch the agents: one that has lost its map while its job goes on gets it again.
    """

    kind = GridPlane.kind
    Own = GridPart
    Planned = GridPlanned

    #: Seconds between two looks at the agents.
    period_s = 3.0

    def __init__(self, context: LightContext) -> None:
        super().__init__(context)
        self._circuits = context.circuits
        self._onics = OnicSite(entries_of(context.onics), context.bus)
        #: Jobs whose maps should stand now; held while maps are written, so that none comes after its end.
        self._assigned: dict[str, GridPlan] = {}
        #: Position to which the timeline of each O-NIC's flows was read for :meth:`lightpaths`.
        self._cursors: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="arbiter", daemon=True)

    # Life

    def start(self) -> None:
        """Watch the agents, if there are any."""
        if self._onics.entries:
            self._thread.start()

    def stop(self) -> None:
        """Stop watching. Light and maps stay as they are."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self._onics.close()

    # A job's light and maps

    def plan(
        self, plane: GridPlane, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> GridPlan:
        return plan_job(self._fabric, plane.grid, nodes, settings)

    def _check_onics(self, light: GridPlan) -> None:
        for error in self._onics.look(light.nodes).values():
            raise error

    def _light(self, job_id: str, light: GridPlan) -> dict[str, float]:
        began = time.monotonic()
        for other_id, other in list(self._assigned.items()):
            for node in sorted(set(light.nodes) & set(other.nodes)):
                if other_id != job_id:
                    raise ConflictError(
                        f"grid {light.place}: node {node} is lit for job {other_id}"
                    )
        self._set_light(job_id, light)
        lit_s = time.monotonic()
        with self._lock:
            self._hand_maps(job_id, light, light.nodes)
            self._assigned[job_id] = light
        return {"light_s": lit_s - began, "maps_s": time.monotonic() - lit_s}

    def _adopt(self, job_id: str, light: GridPlan) -> None:
        """Record the job; the watch compares its maps and writes only the wrong ones."""
        with self._lock:
            self._assigned[job_id] = light

    def _clear(self, job_id: str, light: GridPlan) -> list[str]:
        with self._lock:
            self._assigned.pop(job_id, None)
            failed = self._onics.on_all(
                light.nodes, lambda gpu: self._clear_map(job_id, gpu)
            )
        # An agent that is away keeps no other job's light from going: without it nothing reaches anybody.
        return [str(error) for error in failed.values()] + self._clear_light(
            job_id, light
        )

    # Light

    def _set_light(self, job_id: str, plan: GridPlan) -> None:
        with self._circuits.quiet(_QUIET_S) as quiet:
            if not quiet:
                raise UnavailableError(_busy(plan))
            strays: dict[str, Target] = {}
            for name, ports in plan.ports.items():
                switch = self._fabric.optical_switches[name]
                intended = plan.cross_connects.get(name, frozenset())
                stand = self._site.look(name).cross_connects
                odd = {
                    xc for xc in stand if xc.ingress in ports or xc.egress in ports
                } - intended
                for xc in sorted(odd):
                    self._refuse_foreign(plan, switch, xc)
                if odd:
                    strays[name] = Target(
                        delete=tuple(sorted({xc.ingress for xc in odd}))
                    )
            if strays:
                log.info(
                    "grid %s: removing light that no job has on %s",
                    plan.place,
                    ", ".join(strays),
                )
                self._change(job_id, plan, strays)
            targets = {
                n: Target(tuple(group), Mode.UPDATE)
                for n, group in plan.cross_connects.items()
            }
            if targets:
                self._change(job_id, plan, targets)
            seen = self._site.cross_connects()
            for name, group in plan.cross_connects.items():
                for xc in sorted(group - seen[name]):
                    raise UnavailableError(f"optical switch {name}: {xc} is not lit")

    def _refuse_foreign(
        self, plan: GridPlan, switch: OpticalSwitch, xc: CrossConnect
    ) -> None:
        """Light from another job's node is not ours to take away."""
        if xc.ingress in plan.ports[switch.name]:
            return
        for job_id, other in list(self._assigned.items()):
            if xc.ingress in other.ports.get(switch.name, ()):
                raise ConflictError(
                    f"optical switch {switch.name}: {xc} comes from a node of job {job_id}"
                )

    def _clear_light(self, job_id: str, plan: GridPlan) -> list[str]:
        with self._circuits.quiet(_QUIET_S) as quiet:
            if not quiet:
                return [_busy(plan)]
            problems: list[str] = []
            targets: dict[str, Target] = {}
            for name, ports in plan.ports.items():
                try:
                    stand = set(self._site.look(name).cross_connects)
                except UnavailableError as error:
                    problems.append(str(error))
                    continue
                stand |= self._circuits.intended().get(name, frozenset())
                ours = {xc.ingress for xc in stand if xc.ingress in ports}
                if ours:
                    targets[name] = Target(delete=tuple(sorted(ours)))
            try:
                if targets:
                    self._change(job_id, plan, targets, whole=False)
            except ControllerError as error:
                problems.append(str(error))
            return problems

    def _change(
        self,
        job_id: str,
        plan: GridPlan,
        targets: Mapping[str, Target],
        *,
        whole: bool = True,
    ) -> None:
        change = self._circuits.change(targets, who=f"job {job_id}", whole=whole)
        if change.problems:
            raise UnavailableError(f"grid {plan.place}: {change.problems[0]}")

    # Maps

    def peers(self, plan: GridPlan, gpu: str) -> dict[str, dict[str, Any]]:
        """Return a node's map in the agent's form: port, wavelength and agent by the peer's IP address."""
        return {
            self._fabric.gpus[peer].ip: {
                "port": way.port,
                "wavelength": way.wavelength,
                "agent": self._onics.entry(peer).control,
            }
            for peer, way in plan.maps[gpu].items()
        }

    def _hand_maps(self, job_id: str, plan: GridPlan, gpus: Sequence[str]) -> None:
        def hand(gpu: str) -> None:
            node_map = self.peers(plan, gpu)
            status = self._onics.status(gpu)
            if _has_map(status, job_id, node_map):
                return
            held = status.get("job")
            if held is not None and held != job_id:
                # Left by a job whose end nobody here saw.
                self._onics.ask(gpu, "clear_map", job=held)
            version = int(status.get("map_version") or 0) + 1
            self._onics.ask(gpu, "set_map", job=job_id, version=version, peers=node_map)
            if not _has_map(self._onics.status(gpu), job_id, node_map):
                raise UnavailableError(
                    f"O-NIC agent of {gpu}: the map of job {job_id} did not read back"
                )

        for error in self._onics.on_all(gpus, hand).values():
            raise error

    def _clear_map(self, job_id: str, gpu: str) -> None:
        if self._onics.status(gpu).get("job") != job_id:
            return
        self._onics.ask(gpu, "clear_map", job=job_id)
        if self._onics.status(gpu).get("job") == job_id:
            raise UnavailableError(
                f"O-NIC agent of {gpu}: the map of job {job_id} is still there"
            )

    # Watching

    def _watch(self) -> None:
        while True:
            try:
                self._onics.look()
                self._repair()
            except Exception:
                # The watch must outlive whatever one round ran into.
                log.exception("a round of the arbiter failed")
            if self._stop.wait(self.period_s):
                return

    def _repair(self) -> None:
        """Give agents that answer, and lack the map of a job that goes on, that map again."""
        views = self._onics.views()
        for job_id, plan in list(self._assigned.items()):
            wrong = [
                gpu
                for gpu in plan.nodes
                if views[gpu].reachable
                and not _has_map(views[gpu].status, job_id, self.peers(plan, gpu))
            ]
            if not wrong or self._stop.is_set():
                continue
            with self._lock:
                if self._assigned.get(job_id) is not plan:
                    continue
                try:
                    self._hand_maps(job_id, plan, wrong)
                except ControllerError as error:
                    log.warning("job %s: %s", job_id, error)
                else:
                    self._publish(job_id, plan, "repaired", agents=wrong)

    # Looking

    def switches(self, plane: GridPlane) -> tuple[str, ...]:
        return (*plane.grid.row_switches, *plane.grid.column_switches)

    def _own(self, plane: GridPlane) -> GridPart:
        return GridPart(plane.grid.rows, plane.grid.columns)

    def plan_document(self, light: GridPlan) -> GridPlanned:
        return GridPlanned(
            light.place,
            self.kind,
            list(light.nodes),
            light.switches,
            {name: wired(light.cross_connects[name]) for name in light.switches},
            light.maps,
        )

    def lightpaths(self, plane: GridPlane, since: float) -> set[LitPair]:
        """Return the pairs that have light now, or had light after ``since`` (seconds of CLOCK_MONOTONIC).

        The agents of all nodes with a map are read. An agent that does not answer contributes no light.
        """
        lit_pairs: set[LitPair] = set()
        node_of_ip = {self._fabric.gpus[node].ip: node for node in plane.nodes}

        def look(gpu: str) -> None:
            ways = maps[gpu]
            trace = self._onics.ask(
                gpu, "trace", cursor=self._cursors.get(gpu, _LATEST)
            )
            self._cursors[gpu] = trace["cursor"]
            recent = (
                flow
                for flow in trace["flows"]
                if (flow["t_close"] or 0.0) > since and flow["t_lit"]
            )
            for flow in (*trace["lit"], *recent):
                peer = node_of_ip.get(flow["peer"], "")
                if peer in ways:
                    lit_pairs.add(LitPair(gpu, peer, ways[peer].wavelength, 1))

        plans = [
            plan for plan in list(self._assigned.values()) if plan.place == plane.name
        ]
        maps = {gpu: plan.maps[gpu] for plan in plans for gpu in plan.nodes}
        self._onics.on_all(list(maps), look)
        return lit_pairs

    def troubles(self) -> list[str]:
        errors = [
            view.error
            for view in self._onics.views().values()
            if view.error is not None
        ]
        return [*errors, *super().troubles()]

    def agents(self) -> dict[str, bool]:
        return {gpu: view.reachable for gpu, view in self._onics.views().items()}

    def flows(self, gpu: str, cursor: int) -> dict[str, Any]:
        return self._onics.ask(gpu, "trace", cursor=cursor, timeout_s=5.0)

    def onic(self, plane: GridPlane, gpu: str) -> OnicDocument:
        """Return one O-NIC with its agent's present status.

        Raises NotFoundError, UnavailableError if the agent does not answer, ConflictError if it refuses or
        has another protocol version.
        """
        return self._onic(plane, gpu, OnicView(None, self._onics.status(gpu)))

    def onics(self) -> list[OnicDocument]:
        """Return every O-NIC. For an agent that does not answer, ``error`` is the reason."""
        self._onics.look()
        views = self._onics.views()
        return [
            self._onic(plane_of(self._fabric, (gpu,)), gpu, view)
            for gpu, view in views.items()
        ]

    def _onic(self, plane: Plane, gpu: str, view: OnicView) -> OnicDocument:
        control = self._onics.entry(gpu).control
        return OnicDocument(
            gpu, plane.name, control, view.reachable, view.error, view.status or None
        )


def _busy(plan: GridPlan) -> str:
    return f"grid {plan.place}: another change of light takes over {_QUIET_S:g} s"


def _has_map(status: Mapping[str, Any], job_id: str, peers: Mapping[str, Any]) -> bool:
    """Return whether an agent's status shows this job's map."""
    return status.get("job") == job_id and status.get("peers") == peers
