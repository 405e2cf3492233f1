"""The arbiter: the slow stage of a grid's two-stage reconfiguration, once per job, never per flow.

For a job it chooses the nodes, has the WSSs set so that exactly the job's pairs in one row or column can
reach each other, and hands each O-NIC's agent its wavelength map. After that the agents settle every flow
between themselves: training goes on whether or not a controller runs.

The light goes through the circuit manager, so what a job should have is on disk before the first write and
is lit again wherever it was lost. When a job ends its maps go first, then its light, so that no laser is
ever told to send where nothing leads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.manager import CircuitManager, Target
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.grids.onics import OnicSite
from ringlight.controller.jobs.job import linktest_targets
from ringlight.controller.jobs.reservation import reserve
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.fabric.parts import OpticalSwitch
from ringlight.fabric.planes.choice import candidates, plane_of
from ringlight.fabric.planes.grid.grid import Grid, position, sockets
from ringlight.fabric.planes.grid.grid_plane import GridPlane
from ringlight.fabric.planes.grid.wavelengths import Reach, choose_nodes, cross_connects, wavelength_map
from ringlight.fabric.schedules import steps_named
from ringlight.fabric.steps import Pair, pairs_of
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

#: Longest wait for another change of light, seconds.
_QUIET_S = 60.0


@dataclass(frozen=True)
class GridPlan:
    """What a job on grid ``place`` gets. ``nodes`` in rank order.

    ``maps``: how each reaches each peer in one hop. ``cross_connects`` by WSS; ``ports``: ingresses and
    egresses of the job's nodes by WSS, all that are plugged, whether or not the job lights them.
    """

    place: str
    nodes: tuple[str, ...]
    maps: Mapping[str, Mapping[str, Reach]]
    cross_connects: Mapping[str, frozenset[CrossConnect]]
    ports: Mapping[str, frozenset[int]]

    @property
    def switches(self) -> list[str]:
        """The WSSs that carry something for the job."""
        return sorted(self.cross_connects)


def grid_of(fabric: Fabric, gpu: str) -> Grid | None:
    """The grid that a GPU is a node of."""
    plane = plane_of(fabric, (gpu,))
    return plane.grid if isinstance(plane, GridPlane) else None


def plan_light(
    fabric: Fabric, grid: Grid, nodes: Sequence[str], pairs: Sequence[Pair] | None = None
) -> GridPlan:
    """Everything that follows from a job's nodes and from who sends to whom.

    Raises ValueError as :func:`fabric.planes.grid.wavelengths.wavelength_map`.
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


def choose(
    fabric: Fabric, holders: Mapping[str, str], wanted: Sequence[str] | int, grid_name: str | None = None
) -> tuple[Grid, tuple[str, ...]] | None:
    """The grid and the nodes in rank order of a job; None for a job that is not meant for a grid.

    ``wanted``: GPU names by rank, or how many: then a rectangle of free nodes of ``grid_name``, or of the
    first grid that has one where every GPU of the fabric is on a grid. ``holders``: the job that has each
    taken node. Raises InvalidError for what can never be, ConflictError for what cannot be now.
    """
    if grid_name is not None and grid_name not in fabric.grids:
        raise InvalidError(f"there is no grid {grid_name}")
    if not isinstance(wanted, int):
        return _named(fabric, holders, wanted, grid_name)
    grids = [plane.grid for plane in candidates(fabric) if isinstance(plane, GridPlane)]
    if grid_name is not None:
        grids = [fabric.grids[grid_name]]
    if not grids:
        return None
    never: list[str] = []
    not_now: list[str] = []
    for grid in grids:
        try:
            choose_nodes(grid, grid.nodes, wanted)
        except ValueError as error:
            never.append(str(error))
            continue
        try:
            return grid, choose_nodes(grid, [node for node in grid.nodes if node not in holders], wanted)
        except ValueError as error:
            not_now.append(str(error))
    if not_now:
        raise ConflictError(not_now[0])
    raise InvalidError(never[0])


def _named(
    fabric: Fabric, holders: Mapping[str, str], wanted: Sequence[str], grid_name: str | None
) -> tuple[Grid, tuple[str, ...]] | None:
    nodes = reserve(tuple(fabric.gpus), holders, {}, wanted)
    grids = [grid_of(fabric, gpu) for gpu in nodes]
    first = grids[0]
    for rank, grid in enumerate(grids):
        if grid_name is not None and (grid is None or grid.name != grid_name):
            raise InvalidError(f"rank {rank}: GPU {nodes[rank]} is not on grid {grid_name}")
        if grid is not first:
            places = [f"on grid {g.name}" if g is not None else "on no grid" for g in (first, grid)]
            raise InvalidError(
                f"ranks 0 and {rank} ({nodes[0]}, {nodes[rank]}): {places[0]} and {places[1]}; "
                "a job stays on one grid"
            )
    return None if first is None else (first, nodes)


def plan_job(fabric: Fabric, grid: Grid, nodes: Sequence[str], settings: Mapping[str, Any]) -> GridPlan:
    """The plan of a job, in which everything that its workers will send is one optical hop.

    ``settings``: the workers' (``workload``, ``collective``, ``linktest``). Raises InvalidError.
    """
    if settings.get("workload", "train") == "train":
        what = f"collective {settings.get('collective', 'ring')}"
    else:
        what = "linktest"
    rank_of = {node: rank for rank, node in enumerate(nodes)}
    try:
        pairs = _traffic(nodes, settings)
        plan = plan_light(fabric, grid, nodes, pairs)
        for a, b in pairs:
            if b not in plan.maps[a]:
                raise ValueError(
                    f"ranks {rank_of[a]} and {rank_of[b]} ({a}, {b}) share neither row nor column"
                )
    except ValueError as error:
        raise InvalidError(f"{what} on grid {grid.name}: {error}") from error
    return plan


def _traffic(nodes: Sequence[str], settings: Mapping[str, Any]) -> tuple[Pair, ...]:
    """Pairs that will send. Raises ValueError for a collective that does not exist or fit."""
    if settings.get("workload", "train") == "train":
        return pairs_of(nodes, steps_named(settings.get("collective", "ring"), len(nodes)))
    targets = linktest_targets(settings, len(nodes))
    return tuple((nodes[rank], nodes[to]) for rank, to in enumerate(targets) if to is not None)


def plan_document(plan: GridPlan) -> dict[str, Any]:
    """A plan as the REST API shows it."""
    return {
        "grid": plan.place,
        "ranks": list(plan.nodes),
        "switches": {name: [_pair(xc) for xc in sorted(plan.cross_connects[name])] for name in plan.switches},
        "maps": {
            node: {peer: {"port": r.port, "wavelength": r.wavelength} for peer, r in peers.items()}
            for node, peers in plan.maps.items()
        },
    }


class Arbiter:
    """Sets and clears the light and the maps of jobs on grids. Safe from any thread.

    ``start`` begins to watch the agents: one that has lost its map while its job goes on gets it again.
    """

    whole = False

    def __init__(
        self,
        fabric: Fabric,
        circuits: CircuitManager,
        site: OpticalSite,
        onics: OnicSite,
        bus: EventBus,
        *,
        period_s: float = 3.0,
    ) -> None:
        self._fabric = fabric
        self._circuits = circuits
        self._site = site
        self._onics = onics
        self._bus = bus
        self._period_s = period_s
        #: Jobs whose maps should stand now; held while maps are written, so that none comes after its end.
        self._assigned: dict[str, GridPlan] = {}
        self._lock = threading.RLock()
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

    # Planning

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: Mapping[str, Any],
        holders: Mapping[str, str],
        place: str | None = None,
    ) -> GridPlan | None:
        """What a job would get; None for one that is not meant for a grid. Touches nothing.

        Raises as :func:`choose` and :func:`plan_job`.
        """
        chosen = choose(self._fabric, holders, wanted, place)
        return None if chosen is None else plan_job(self._fabric, *chosen, settings)

    def check(self, plan: GridPlan) -> None:
        """Ask every agent and every WSS of a plan. Raises the first error: UnavailableError, ConflictError
        for an agent of another protocol version."""
        for error in self._onics.look(plan.nodes).values():
            raise error

        def look(name: str) -> None:
            self._site.look(name, timeout_s=3.0)

        for error in self._onics.on_all(plan.switches, look).values():
            raise error

    # A job's light and maps

    def light(self, job_id: str, plan: GridPlan) -> None:
        """Set the WSSs, then hand each agent its map; all is read back. May be repeated.

        Raises ControllerError; what was done until then stays until :meth:`clear`.
        """
        began = time.monotonic()
        for other_id, other in list(self._assigned.items()):
            for node in sorted(set(plan.nodes) & set(other.nodes)):
                if other_id != job_id:
                    raise ConflictError(f"grid {plan.place}: node {node} is lit for job {other_id}")
        try:
            self._set_light(job_id, plan)
            lit = time.monotonic()
            with self._lock:
                self._hand_maps(job_id, plan, plan.nodes)
                self._assigned[job_id] = plan
        except ControllerError as error:
            self._publish(job_id, plan, "failed", error=str(error))
            raise
        self._publish(job_id, plan, "lit", light_s=lit - began, maps_s=time.monotonic() - lit)

    def adopt(self, job_id: str, plan: GridPlan) -> None:
        """Take over a job that runs already; the watch compares its maps and writes only what is wrong."""
        with self._lock:
            self._assigned[job_id] = plan

    def clear(self, job_id: str, plan: GridPlan) -> list[str]:
        """Take a job's maps away, then its light; what did not work, in one line each. May be repeated."""
        with self._lock:
            self._assigned.pop(job_id, None)
            failed = self._onics.on_all(plan.nodes, lambda gpu: self._clear_map(job_id, gpu))
        problems = [str(error) for error in failed.values()]
        # An agent that is away keeps no other job's light from going: without it nothing reaches anybody.
        problems += self._clear_light(job_id, plan)
        state = "not cleared" if problems else "cleared"
        self._publish(job_id, plan, state, error=problems[0] if problems else None)
        return problems

    def _publish(self, job_id: str, plan: GridPlan, state: str, **more: Any) -> None:
        count = sum(len(group) for group in plan.cross_connects.values())
        self._bus.publish(
            "arbiter",
            job=job_id,
            grid=plan.place,
            state=state,
            nodes=list(plan.nodes),
            switches=plan.switches,
            cross_connects=count,
            **more,
        )

    # Light

    def _set_light(self, job_id: str, plan: GridPlan) -> None:
        with self._circuits.quiet(_QUIET_S) as quiet:
            if not quiet:
                raise UnavailableError(_busy(plan))
            strays: dict[str, Target] = {}
            for name, ports in plan.ports.items():
                switch = self._fabric.optical_switches[name]
                wanted = plan.cross_connects.get(name, frozenset())
                stand = self._site.look(name).cross_connects
                odd = {xc for xc in stand if xc.ingress in ports or xc.egress in ports} - wanted
                for xc in sorted(odd):
                    self._refuse_foreign(plan, switch, xc)
                if odd:
                    strays[name] = Target(delete=tuple(sorted({xc.ingress for xc in odd})))
            if strays:
                log.info("grid %s: removing light that no job has on %s", plan.place, ", ".join(strays))
                self._change(job_id, plan, strays)
            targets = {n: Target(tuple(group), Mode.UPDATE) for n, group in plan.cross_connects.items()}
            if targets:
                self._change(job_id, plan, targets)
            seen = self._site.cross_connects()
            for name, group in plan.cross_connects.items():
                for xc in sorted(group - seen[name]):
                    raise UnavailableError(f"optical switch {name}: {xc} is not lit")

    def _refuse_foreign(self, plan: GridPlan, switch: OpticalSwitch, xc: CrossConnect) -> None:
        """Light from another job's node is not ours to take away."""
        if xc.ingress in plan.ports[switch.name]:
            return
        for job_id, other in list(self._assigned.items()):
            if xc.ingress in other.ports.get(switch.name, ()):
                raise ConflictError(f"optical switch {switch.name}: {xc} comes from a node of job {job_id}")

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
                stand |= (self._circuits.intent() or {}).get(name, frozenset())
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
        self, job_id: str, plan: GridPlan, targets: Mapping[str, Target], *, whole: bool = True
    ) -> None:
        change = self._circuits.change(targets, who=f"job {job_id}", whole=whole)
        if change.problems:
            raise UnavailableError(f"grid {plan.place}: {change.problems[0]}")

    # Maps

    def peers(self, plan: GridPlan, gpu: str) -> dict[str, dict[str, Any]]:
        """A node's map as its agent takes it: by peer's IP address the port, the wavelength, the agent."""
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
            wanted = self.peers(plan, gpu)
            status = self._onics.status(gpu)
            if _has_map(status, job_id, wanted):
                return
            held = status.get("job")
            if held is not None and held != job_id:
                # Left by a job whose end nobody here saw.
                self._onics.ask(gpu, "clear_map", job=held)
            version = int(status.get("map_version") or 0) + 1
            self._onics.ask(gpu, "set_map", job=job_id, version=version, peers=wanted)
            if not _has_map(self._onics.status(gpu), job_id, wanted):
                raise UnavailableError(f"O-NIC agent of {gpu}: the map of job {job_id} did not read back")

        for error in self._onics.on_all(gpus, hand).values():
            raise error

    def _clear_map(self, job_id: str, gpu: str) -> None:
        if self._onics.status(gpu).get("job") != job_id:
            return
        self._onics.ask(gpu, "clear_map", job=job_id)
        if self._onics.status(gpu).get("job") == job_id:
            raise UnavailableError(f"O-NIC agent of {gpu}: the map of job {job_id} is still there")

    # Watching

    def _watch(self) -> None:
        while True:
            try:
                self._onics.look()
                self._repair()
            except Exception:
                # The watch must outlive whatever one round ran into.
                log.exception("a round of the arbiter failed")
            if self._stop.wait(self._period_s):
                return

    def _repair(self) -> None:
        """Give agents that answer, and lack the map of a job that goes on, that map again."""
        views = self._onics.views()
        for job_id, plan in list(self._assigned.items()):
            wrong = [
                gpu
                for gpu in plan.nodes
                if views[gpu].reachable and not _has_map(views[gpu].status, job_id, self.peers(plan, gpu))
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

    def grids(self, holders: Mapping[str, str]) -> list[dict[str, Any]]:
        """Every grid in short."""
        return [self._overview(grid, holders) for grid in self._fabric.grids.values()]

    def grid(self, name: str, holders: Mapping[str, str]) -> dict[str, Any]:
        """A grid with its nodes and what its WSSs carry, as last read. Raises NotFoundError."""
        if name not in self._fabric.grids:
            raise NotFoundError(f"there is no grid {name}")
        grid = self._fabric.grids[name]
        at: dict[tuple[str, int], str] = {}
        nodes = []
        for index, node in enumerate(grid.nodes):
            ports = sockets(grid, node)
            at |= {(port.node, port.number): node for port in ports}
            row, column = divmod(index, grid.columns)
            nodes.append(
                {
                    "gpu": node,
                    "row": row,
                    "column": column,
                    "ip": self._fabric.gpus[node].ip,
                    "job": holders.get(node),
                    "ports": [str(port) for port in ports],
                }
            )
        lit = self._site.cross_connects()
        views = self._site.views()
        names = (*grid.row_switches, *grid.column_switches)
        return {
            **self._overview(grid, holders),
            "nodes": nodes,
            "switches": [
                {
                    "name": switch,
                    "kind": "row" if switch in grid.row_switches else "column",
                    "reachable": views[switch].reachable,
                    "lit": [
                        {**_pair(xc), **_ends(at, self._fabric.optical_switches[switch], xc)}
                        for xc in sorted(lit[switch])
                    ],
                }
                for switch in names
            ],
        }

    def _overview(self, grid: Grid, holders: Mapping[str, str]) -> dict[str, Any]:
        lit = self._site.cross_connects()
        names = (*grid.row_switches, *grid.column_switches)
        return {
            "name": grid.name,
            "rows": grid.rows,
            "columns": grid.columns,
            "wavelengths": grid.wavelengths,
            "free": sum(node not in holders for node in grid.nodes),
            "jobs": sorted({holders[node] for node in grid.nodes if node in holders}),
            "cross_connects": sum(len(lit[name]) for name in names),
        }

    def onic(self, gpu: str) -> dict[str, Any]:
        """One O-NIC with what its agent says now. Raises as :meth:`OnicSite.status`."""
        status = self._onics.status(gpu)
        return {**self._place(gpu), "reachable": True, "error": None, "status": status}

    def onics(self) -> list[dict[str, Any]]:
        """Every O-NIC; agents that do not answer have the reason in ``error``."""
        self._onics.look()
        return [
            {
                **self._place(gpu),
                "reachable": view.reachable,
                "error": view.error,
                "status": view.status or None,
            }
            for gpu, view in self._onics.views().items()
        ]

    def _place(self, gpu: str) -> dict[str, Any]:
        grid = grid_of(self._fabric, gpu)
        entry = self._onics.entry(gpu)
        place: dict[str, Any] = {"gpu": gpu, "grid": None, "control": entry.control}
        if grid is not None:
            row, column = position(grid, gpu)
            place |= {"grid": grid.name, "row": row, "column": column}
        return place


def _busy(plan: GridPlan) -> str:
    return f"grid {plan.place}: another change of light takes over {_QUIET_S:g} s"


def _has_map(status: Mapping[str, Any], job_id: str, peers: Mapping[str, Any]) -> bool:
    """Whether an agent's status shows this job's map."""
    return status.get("job") == job_id and status.get("peers") == peers


def _ends(at: Mapping[tuple[str, int], str], switch: OpticalSwitch, xc: CrossConnect) -> dict[str, Any]:
    return {
        "from": at.get((switch.name, xc.ingress)),
        "to": at.get((switch.name, xc.egress - switch.size)),
    }


def _pair(xc: CrossConnect) -> dict[str, Any]:
    return {"ingress": xc.ingress, "egress": xc.egress, "wavelength": xc.wavelength}
