"""The controller as a whole: assemble its parts, start and stop them in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from typing_extensions import TypedDict, get_type_hints

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.claims import ClaimManager
from ringlight.controller.circuits.drift import Policy
from ringlight.controller.circuits.generation import EACH_START
from ringlight.controller.circuits.intent import IntentDatabase
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.planner import Planner
from ringlight.controller.circuits.reconciler import Reconciler
from ringlight.controller.circuits.regroup import RegroupManager
from ringlight.controller.errors import ControllerError, InvalidError, StartError
from ringlight.controller.inventory import Inventory
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import Reservations
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.light.provider import LightContext, Provider, providers
from ringlight.controller.openflow.errors import NotConnectedError
from ringlight.controller.openflow.plane import OpenFlowPlane
from ringlight.controller.optical.registry import make_driver
from ringlight.controller.packets.announcing import Announcer
from ringlight.controller.packets.forwarding import Forwarding
from ringlight.controller.packets.stats import Statistics
from ringlight.controller.packets.watching import TableView, TableWatch
from ringlight.controller.server_agent import AgentClient
from ringlight.controller.store import Store
from ringlight.fabric.extension import loaded
from ringlight.fabric.paths import Router
from ringlight.fabric.table_writers import programs
from ringlight.fabric.topology import Fabric, circuit_switches

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

#: Document that says how often the controller was started on its state directory.
_STARTS = "starts"


class ProgramProcess(TypedDict):
    """The process of a program of an extension. ``since``: CLOCK_MONOTONIC seconds of its last start;
    ``last_error``: how the one before ended."""

    alive: bool
    pid: int
    since: float
    restarts: int
    last_error: str | None


class OtherController(TypedDict):
    """Controller of a packet switch that is left to others, as Open vSwitch reports it.

    ``for_s``: seconds since it connected or disconnected; None if it never was connected.
    """

    controller: str
    connected: bool
    for_s: int | None
    last_error: str | None


class Others(TypedDict):
    """``programs`` that the lab runs, by name. ``controllers`` by packet switch; that one is not connected is
    no trouble, as it may come later."""

    programs: dict[str, ProgramProcess]
    controllers: dict[str, OtherController]


NO_OTHERS: Others = {"programs": {}, "controllers": {}}


class Health(TypedDict):
    """``reasons``: one line for each thing that is not as it should be. ``lost_gpus``: those that a fault has
    taken. ``restarts``: how often this lab's
    controller was started again; ``uptime_s``: since it was last."""

    status: Literal["ok", "degraded"]
    reasons: list[str]
    lab: str
    uptime_s: float
    restarts: int
    t: float
    packet_switches: dict[str, bool]
    flow_tables: dict[str, TableView]
    optical_switches: dict[str, bool]
    onics: dict[str, bool]
    lost_gpus: list[str]
    agent: bool
    controllers: dict[str, OtherController]


#: Names of the programs that labs may run. Each has a key of its own in the health, null where it does not
#: run.
PROGRAMS = tuple(programs().values())


def health_model() -> Any:
    """Return the form of the health's document with those keys, too."""
    keys = get_type_hints(Health) | dict.fromkeys(PROGRAMS, ProgramProcess | None)
    make: Any = TypedDict
    return make("Health", keys)


class Controller:
    """Everything between the REST API and the devices. ``plane`` is started by the caller and stopped here.

    ``policy``: from now on of all optical switches that have none of their own; None: as it was.
    Raises StartError when the inventory or the state directory cannot be used.
    """

    def __init__(
        self,
        fabric: Fabric,
        inventory: Inventory,
        state: Path,
        plane: OpenFlowPlane,
        policy: Policy | None = None,
    ) -> None:
        self.fabric = fabric
        self.inventory = inventory
        self.plane = plane
        self.bus = EventBus()
        self.store = store = Store(state / "controller")
        try:
            drivers = {
                name: make_driver(
                    name, inventory.optical_switches[name], switch.size, plane
                )
                for name, switch in fabric.optical_switches.items()
            }
        except ValueError as error:
            raise StartError(str(error)) from error
        self.intents = IntentDatabase(state / "controller" / "circuits.sqlite")
        if policy is not None:
            self.intents.set_policy(None, policy)
        #: Number of times that the controller with this state has been restarted.
        self.restarts = self._count_start()
        self.site = OpticalSite(
            drivers,
            inventory.optical_switches,
            self.bus,
            self.intents.try_note,
            anew=self.restarts == 0,
            first_generation=self.restarts * EACH_START,
            counted=circuit_switches(fabric),
        )
        self.forwarding = Forwarding(fabric, plane)
        self.agent = agent = AgentClient(inventory.agent) if inventory.agent else None
        self.announcer = Announcer(agent, self.bus)
        self.circuits = CircuitManager(
            fabric,
            self.site,
            self.forwarding,
            self.intents,
            self.bus,
            self.announcer.announce,
        )
        workloads = WorkloadFiles(state / "controller" / "workloads")
        context = LightContext(
            fabric,
            self.site,
            agent,
            self.bus,
            self.circuits,
            {gpu: inventory.onics[gpu] for gpu in fabric.onics},
            workloads,
            inventory.time_dilation,
            inventory.flow_sockets(),
        )
        #: Providers of light, by the kind of their planes.
        self.lights: dict[str, Provider[Any]] = {
            provider.kind: provider(context) for provider in providers()
        }
        self.reservations = Reservations()
        self.jobs = JobManager(
            fabric,
            agent,
            store,
            self.bus,
            self._switch_of,
            workloads=workloads,
            lights=self.lights,
            reaches=self._reaches,
            reservations=self.reservations,
            flow_sockets={
                gpu: place.flow
                for gpu, place in inventory.onics.items()
                if place.flow is not None
            },
        )
        #: Real bits per second for each that the emulation carries.
        self.scale = inventory.time_dilation * inventory.payload_scale
        planner = Planner(fabric, self.circuits)
        of_all = (
            fabric,
            self.circuits,
            planner,
            self.jobs,
            self.bus,
            store,
            self.reservations,
        )
        self.regroups = RegroupManager(*of_all, rate_divisor=self.scale)
        self.claims = ClaimManager(*of_all)
        self.tables = TableWatch(fabric, plane, self.forwarding, store, self.bus)
        self.reconciler = Reconciler(
            fabric,
            plane,
            self.site,
            self.circuits,
            self.forwarding,
            self.tables,
            self.bus,
        )
        self.statistics = Statistics(fabric, plane, self.circuits.ends)
        #: Lines of health about what is none of the controller's own parts, None where all is well.
        self.complaints: list[Callable[[], str | None]] = [lambda: plane.complaint]
        self.started_at = time.monotonic()
        #: Called with the application that answers REST calls, when it is made.
        self.app_parts: list[Callable[[FastAPI], None]] = []
        #: Called at the end of :meth:`start`, and at the beginning of :meth:`stop`.
        self.on_start: list[Callable[[], None]] = []
        self.on_stop: list[Callable[[], None]] = []
        for add_to in loaded("controller"):
            add_to(self)

    def start(self, switches_timeout_s: float) -> None:
        """Wait for the switches, take over what they carry, follow the jobs.

        A switch that does not come in time is reported and taken over when it comes.
        """
        dpids = [
            switch.dpid
            for switch in self.fabric.packet_switches.values()
            if switch.is_ours
        ]
        dpids += [
            int(entry["dpid"])
            for entry in self.inventory.optical_switches.values()
            if "dpid" in entry
        ]
        try:
            self.plane.wait_for(dpids, switches_timeout_s)
        except NotConnectedError as error:
            log.warning("%s; going on without", error)
        try:
            self.circuits.adopt()
            self.regroups.take_over()
            self.claims.take_over()
            self.circuits.tell_followers()
            self.jobs.start()
            self.claims.start()
        except (ValueError, KeyError, TypeError, InvalidError) as error:
            raise StartError(f"the saved state cannot be used: {error}") from error
        for provider in self.lights.values():
            provider.start()
        self.reconciler.start()
        self.statistics.start()
        for begin in self.on_start:
            begin()
        self.bus.publish("controller", state="up", lab=self.inventory.lab)

    def _count_start(self) -> int:
        try:
            before = int(self.store.read(_STARTS) or 0)
            self.store.write(_STARTS, before + 1)
        except (OSError, ValueError, TypeError) as error:
            raise StartError(f"the state directory cannot be used: {error}") from error
        return before

    def stop(self) -> None:
        """End every thread and session. Rules, light and workers stay as they are."""
        self.bus.publish("controller", state="stopping")
        for end in self.on_stop:
            end()
        self.regroups.stop()
        self.claims.stop()
        self.announcer.stop()
        self.statistics.stop()
        self.jobs.stop()
        for provider in self.lights.values():
            provider.stop()
        if self.agent is not None:
            self.agent.close()
        self.reconciler.stop()
        self.site.close()
        self.plane.stop()
        self.bus.close()
        self.store.close()
        self.intents.close()

    def health(self, foreign: Others = NO_OTHERS) -> Health:
        """Return the controller's health: "ok", or "degraded" with the reasons. No device is read.

        ``foreign``: the result of :meth:`others`.
        """
        connected = self.plane.connected()
        packet = {
            name: s.dpid in connected
            for name, s in self.fabric.packet_switches.items()
            if s.is_ours
        }
        views = self.site.views()
        reasons = [
            f"packet switch {name} is not connected"
            for name, up in packet.items()
            if not up
        ]
        reasons += [
            f"a second switch, at {address}, claims datapath id {dpid}; it was refused"
            for dpid, address in self.plane.refused().items()
        ]
        reasons += [
            f"optical switch {n}: {v.error}"
            for n, v in views.items()
            if v.error is not None
        ]
        reasons += [
            f"optical switch {n} {v.complaint}"
            for n, v in views.items()
            if v.complaint is not None
        ]
        tables = self.tables.views()
        reasons += [
            f"packet switch {name}: {view.drift}"
            for name, view in tables.items()
            if view.drift is not None and packet[name]
        ]
        links = {self.fabric.link_at[port] for port in self.forwarding.down}
        reasons += sorted(
            f"the link from {link.a} to {link.b} is down" for link in links
        )
        reasons += [
            trouble
            for provider in self.lights.values()
            for trouble in provider.troubles()
        ]
        reasons += [f"GPU {gpu} is lost" for gpu in sorted(self.jobs.lost_gpus)]
        reasons += [
            *self.jobs.set_aside,
            *self.regroups.set_aside,
            *self.claims.set_aside,
        ]
        if self.jobs.agent_error is not None:
            reasons.append(self.jobs.agent_error)
        reasons += [
            line for complaint in self.complaints if (line := complaint()) is not None
        ]
        reasons += [
            f"the process of {name} has ended ({process['last_error']})"
            for name, process in foreign["programs"].items()
            if not process["alive"]
        ]
        health: Health = {
            "status": "degraded" if reasons else "ok",
            "reasons": reasons,
            "lab": self.inventory.lab,
            "uptime_s": time.monotonic() - self.started_at,
            "restarts": self.restarts,
            "t": time.monotonic(),
            "packet_switches": packet,
            "flow_tables": tables,
            "optical_switches": {name: view.reachable for name, view in views.items()},
            "onics": {
                gpu: up
                for light in self.lights.values()
                for gpu, up in light.agents().items()
            },
            "lost_gpus": sorted(self.jobs.lost_gpus),
            "agent": self.jobs.agent_error is None,
            "controllers": foreign["controllers"],
        }
        programs = {name: foreign["programs"].get(name) for name in PROGRAMS}
        return cast(Health, {**health, **programs})

    @property
    def has_others(self) -> bool:
        """True if packet switches are left to other controllers, of which the testbed's agent knows."""
        return self.agent is not None and bool(self.fabric.foreign_switches)

    def foreign(self) -> Others:
        """Return the processes of programs, and the controllers of the switches that are left to others.

        The testbed's agent is read now. Empty if it does not answer; its own status reports that.
        """
        if self.agent is None:
            return NO_OTHERS
        try:
            return {**NO_OTHERS, **self.agent.foreign()}  # type: ignore[typeddict-item]
        except ControllerError as error:
            log.warning("who writes the switches of others is not known: %s", error)
            return NO_OTHERS

    def _reaches(self, gpu: str, other_gpus: Collection[str]) -> bool:
        """Return whether packets get from a GPU to all of the others and back, with the present light and
        links.
        """
        router = Router(
            self.fabric, self.forwarding.graph(self.circuits.cross_connects())
        )
        try:
            for other in other_gpus:
                router.path(gpu, other), router.path(other, gpu)
        except ValueError:
            return False
        return True

    def _switch_of(self) -> Mapping[str, str | None]:
        """Return the packet switch that each lit GPU is on."""
        return {
            end.node: port.node
            for port, end in self.circuits.ends().items()
            if end is not None and end.node in self.fabric.gpus
        }
