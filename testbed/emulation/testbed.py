"""One lab as a whole: built in order, written to the inventory, and taken down in the reverse order."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests

from ringlight.testbed import deaths, descriptors, forkserver, limits, services
from ringlight.testbed.descriptors import too_few
from ringlight.testbed.devices import Site, plan_devices
from ringlight.testbed.emulation import clean, openvswitch
from ringlight.testbed.emulation.agent.hosts import IdleHosts
from ringlight.testbed.emulation.agent.http import AgentServer, LabWorkers, make_app
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.onics import Onics
from ringlight.testbed.emulation.agent.refusals import AgentError
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.device_processes import DeviceProcesses
from ringlight.testbed.emulation.docker_hosts import DockerHost, docker_reason
from ringlight.testbed.emulation.fault_courses import FaultCourses, Kept
from ringlight.testbed.emulation.faults import Faults, fault_routes
from ringlight.testbed.emulation.kept_processes import (
    START_S,
    KeptProcesses,
)
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.namespace_hosts import NamespaceHost
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.network_watch import NetworkWatch
from ringlight.testbed.emulation.onic_processes import OnicProcesses, laser_pin
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.optical_processes import OpticalProcesses
from ringlight.testbed.emulation.others import Others, others_routes
from ringlight.testbed.emulation.settings import Runtime, Settings, TestbedError
from ringlight.testbed.emulation.vswitchd import VswitchdWatch
from ringlight.testbed.emulation.worker_hosts import WorkerHost, WorkerPlace
from ringlight.testbed.freezes import FreezeWatch, Watched
from ringlight.testbed.process_start import SOCKET
from ringlight.testbed.supervision import Supervisor, answers, last_line

log = logging.getLogger(__name__)

#: The controller's name among supervised processes, and how long its orderly end may take, seconds.
CONTROLLER, CONTROLLER_END_S = "controller", 10.0


#: Processes of a lab's fabric, by what they stand for.
ProcessGroup = OpticalProcesses | OnicProcesses | DeviceProcesses


class Testbed:
    """Owns every process and object of one lab. Raises TestbedError and the errors of what it builds.

    :meth:`ask_to_stop` may be called at any moment, also from a signal handler.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.inventory: dict[str, Any] = {}
        self.workers: Workers | None = None
        self.network: LabNetwork | None = None
        self.programs: dict[str, Supervisor] = {}
        self.controller: Supervisor | None = None
        self._inventory_lock = threading.Lock()
        self._share = settings.share
        self._undo = ExitStack()
        self.processes = KeptProcesses(settings, self._undo, self._on_restart)

    def ask_to_stop(self) -> None:
        self.processes.stopping.set()

    def start(self) -> None:
        """Build everything; when that fails, take down what was built and raise."""
        try:
            self._build()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Wait for a request to stop."""
        self.processes.stopping.wait()

    def stop(self) -> None:
        """Take everything down. Every part is tried; what fails is logged."""
        self.processes.stopping.set()
        if self.controller is not None:
            # First: it needs the others for an orderly end.
            self.controller.stop()
            self.controller = None
        # What is elsewhere is taken down meanwhile.
        self._share.end()
        self._undo.close()

    def _build(self) -> None:
        settings, lab = self.settings, self.settings.lab
        self._take_lab()
        limits.enlarge()
        descriptors.enlarge()
        if not services.open_vswitch_running():
            raise TestbedError(
                "Open vSwitch is not running or does not answer; run: ringlight doctor"
            )
        api, image = self._check_runtime()
        self.processes.go_on()
        forked = self.processes.open_fork_server()
        self._undo.callback(self._share.close)
        controller = self._share.open(
            self._site({}), settings.controller, self.processes.deaths, self.ask_to_stop
        )
        self._undo.enter_context(
            FreezeWatch(
                ("testbed", "testbed"), self._watched, self.processes.deaths.add
            )
        )
        # First, as a file that cannot be loaded ends it all.
        for name in settings.programs:
            self._launch_program(name)
        self.processes.go_on()
        self._launch_controller()
        if forked:
            # Not before: the controller imports most of what it needs by itself, beside all else.
            forkserver.prepare(self.processes.environment[SOCKET], forked)
        where = {
            name: ControllerAddress.parse(p.openflow)
            for name, p in settings.programs.items()
            if p.openflow is not None
        }
        optical = OpticalProcesses(settings, self.processes)
        network = LabNetwork(
            *(lab, settings.fabric, settings.emulation, controller, where),
            lambda bridges: plan_devices(settings.devices, self._site(bridges)),
            self._share,
        )
        self.network = network
        self._undo.callback(self._attempt, "the network", network.stop)
        network.build()
        self._undo.callback(shutil.rmtree, lab.bpf_dir, ignore_errors=True)
        if settings.fabric.agents:
            Lasers.create(laser_pin(settings), 2 * len(settings.fabric.gpus)).close()
        optical.launch()
        self.processes.go_on()
        network.start()
        if network.switches:
            self._undo.enter_context(
                VswitchdWatch(self.processes.deaths, network.open_vswitch_is_back)
            )
        self.processes.go_on()
        onics = OnicProcesses(settings, self.processes, network, self._undo)
        onics.launch()
        devices = DeviceProcesses(self.processes, network)
        devices.launch()
        groups = (optical, onics, devices)
        lightpaths = Lightpaths(settings.fabric, lab.bpf_dir)
        self._undo.callback(lightpaths.close)
        workers = self._make_workers(network, lightpaths, api, image)
        server = self._make_server(
            network, workers, lightpaths, self._kept(groups), onics.disturbable()
        )
        server.start()
        for group in groups:
            group.await_ready()
        self._await_controller()
        network.switch_controllers.hand_over()
        if settings.idle_hosts:
            self._fill_hosts(workers)
        self._undo.enter_context(
            NetworkWatch(network.states.astray, self.processes.deaths)
        )
        with self._inventory_lock:
            self.inventory = self._share.join(
                self._make_inventory(groups),
                time.monotonic() + START_S,
                self.processes.go_on,
            )
            self._write_inventory()

    def _take_lab(self) -> None:
        """Hold the lab's locks, and remove what earlier labs have left."""
        lab = self.settings.lab
        held, owned = lab.hold(), None
        try:
            owned = lab.own()
        finally:
            if owned is None:
                held.close()
        # From here on the lab's files are ours to remove, once the locks have been let go.
        self._undo.callback(self._remove_state)
        self._undo.enter_context(held)
        self._undo.enter_context(owned)
        self.settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("inventory.json", deaths.FILE):
            (self.settings.state / name).unlink(missing_ok=True)
        for line in [*clean.clean_stale(), *clean.clean_leftovers(lab)]:
            log.info("left by an earlier run and removed: %s", line)

    def _make_workers(
        self,
        network: LabNetwork,
        lightpaths: Lightpaths,
        api: docker.APIClient | None,
        image: str | None,
    ) -> Workers:
        settings = self.settings

        def make_host(place: WorkerPlace) -> WorkerHost:
            if api is None:
                return network.add_worker(
                    NamespaceHost, place, environment=self.processes.environment
                )
            return network.add_worker(DockerHost, place, api=api)

        workers = Workers(
            settings.fabric,
            network,
            make_host,
            settings.state,
            lightpaths,
            IdleHosts(settings.fabric, network),
            command=settings.command or worker_command(settings.runtime),
            image=image,
        )
        self.workers = workers
        self._undo.callback(workers.close)
        return workers

    def _make_server(
        self,
        network: LabNetwork,
        workers: Workers,
        lightpaths: Lightpaths,
        kept: Mapping[deaths.ProcessKind, Kept],
        manage: Mapping[str, Path] | None,
    ) -> AgentServer:
        """Return the server agent, not started yet. ``kept``, ``manage``: as of :class:`FaultCourses`."""
        settings, lab = self.settings, self.settings.lab
        about = {
            "lab": lab.id,
            "runtime": settings.runtime,
            "gpus": list(settings.fabric.gpus),
        }
        all_workers: LabWorkers = self._share.workers(workers)
        if all_workers is not workers:
            self._undo.callback(all_workers.close)
        app = make_app(
            all_workers, Onics(settings.fabric, lab.bpf_dir), lightpaths, about
        )
        for router in self._share.routers(workers, lambda: self.inventory):
            app.include_router(router)
        server = AgentServer(app, settings.state / "agent.sock")
        self._undo.callback(server.stop)
        courses = FaultCourses(settings.fabric, network, workers, server, kept, manage)
        faults = Faults(settings.fabric, network, courses, self._share)
        self._undo.callback(faults.close)
        app.include_router(fault_routes(faults))
        app.include_router(
            others_routes(
                Others(network.switch_controllers.handed_over(), self.programs).document
            )
        )
        return server

    def _fill_hosts(self, workers: Workers) -> None:
        """Give each GPU that is here an idle host."""
        try:
            workers.hosts(fill=True)
        except AgentError as error:
            raise TestbedError(str(error)) from None

    def _site(self, bridges: Mapping[str, int]) -> Site:
        settings = self.settings
        return Site(
            settings.lab,
            settings.state,
            bridges,
            settings.fabric,
            settings.emulation.rate_bps,
        )

    def _attempt(self, what: str, function: Callable[[], None]) -> None:
        try:
            function()
        except (NetworkError, openvswitch.OpenVSwitchError, OSError) as error:
            log.error("taking down %s: %s", what, error)

    def _check_runtime(self) -> tuple[docker.APIClient | None, str | None]:
        """Docker's client and the image, when workers are containers."""
        if self.settings.runtime == "namespace":
            return None, None
        try:
            api = docker.APIClient(
                base_url=f"unix://{services.DOCKER_SOCKET}",
                version="auto",
                timeout=60,
                max_pool_size=32,
            )
        except (docker.errors.DockerException, requests.RequestException) as error:
            silent = "Docker is not running or does not answer; run: ringlight doctor"
            raise TestbedError(too_few(error) or silent) from None
        self._undo.callback(api.close)
        image = self.settings.image
        if image is None:
            from ringlight.containers.image import image_tag

            image = image_tag()
        try:
            api.inspect_image(image)
        except docker.errors.ImageNotFound:
            raise TestbedError(
                f"there is no worker image {image}; run: ringlight setup"
            ) from None
        except (docker.errors.APIError, requests.RequestException) as error:
            raise TestbedError(f"Docker: {docker_reason(error)}") from None
        return api, image

    # -- programs of extensions, and the controller

    def _launch_program(self, name: str) -> None:
        """Start it, and wait until it runs."""
        program = self.settings.programs[name]
        ready = self.settings.state / f"{name}.json"
        kept = self.programs[name] = self.processes.by_kind[name] = Supervisor(
            "the process of",
            {name: partial(program.start, self.settings.lab, ready)},
            partial(self._program_is_back, name),
            lambda _: last_line(program.log),
            on_end=partial(self.processes.deaths.ended, name),
        )
        self._undo.callback(kept.stop)
        self.processes.await_ready(
            kept, name, ready.exists, program.log, time.monotonic() + START_S
        )

    def _program_is_back(self, name: str, _: str, pid: int, requested: bool) -> None:
        self.processes.deaths.back(name, name)
        self._on_restart("processes", name, pid, requested)

    def _launch_controller(self) -> None:
        """Start it, where it is ours to keep; it waits for the inventory."""
        if (keeps := self.settings.keeps) is None:
            return
        starts = {
            CONTROLLER: partial(
                self.processes.spawn, keeps.command, keeps.log, keeps.follow
            )
        }
        self.controller = self.processes.supervise(
            "controller",
            "the",
            starts,
            "processes",
            lambda _: last_line(keeps.log),
            CONTROLLER_END_S,
        )

    def _await_controller(self) -> None:
        """Wait until the controller listens at its port."""
        if (keeps := self.settings.keeps) is not None:
            assert self.controller is not None
            ready = partial(answers, keeps.address)
            self.processes.await_ready(
                self.controller,
                CONTROLLER,
                ready,
                keeps.log,
                time.monotonic() + START_S,
            )

    def _kept(self, groups: Iterable[ProcessGroup]) -> dict[deaths.ProcessKind, Kept]:
        """Return the supervised processes, and whether each serves its clients."""
        kept = {
            kind: processes
            for group in groups
            for kind, processes in group.kept().items()
        }
        if self.controller is not None and (keeps := self.settings.keeps) is not None:
            kept["controller"] = Kept(self.controller, lambda _: answers(keeps.address))
        return kept

    def _watched(self) -> list[Watched]:
        """Return all processes of the lab but this one, and those of services that work for it."""
        watched = self.processes.watched()
        for worker in self.workers.workers() if self.workers is not None else ():
            gpu, guest = worker.place.gpu, worker.host.guest
            if worker.lives and worker.host.pid:
                watched.append(Watched("worker on GPU", gpu, worker.host.pid, True))
            if guest is not None and guest.pid:
                watched.append(Watched("container on GPU", gpu, guest.pid, True))
        return watched

    # -- inventory and files

    def _on_restart(self, part: str, name: str, pid: int, requested: bool) -> None:
        """``restarts`` are those that nobody asked for."""
        with self._inventory_lock:
            if self.inventory:
                entry = self.inventory[part][name]
                entry |= {
                    "pid": pid,
                    "restarts": entry.get("restarts", 0) + (not requested),
                }
                self._write_inventory()

    def _make_inventory(self, groups: Iterable[ProcessGroup]) -> dict[str, Any]:
        lab, fabric = self.settings.lab, self.settings.fabric
        assert self.network is not None
        supervisors = [*self.programs.values()]
        supervisors += [] if self.controller is None else [self.controller]
        kept = {
            name: life for each in supervisors for name, life in each.lives().items()
        }
        processes = {name: {"pid": life.pid} for name, life in kept.items()}
        packet = {
            s.name: {"dpid": s.dpid, "bridge": lab.bridge(s.name)}
            for s in fabric.packet_switches.values()
            if self._share.is_here(s.name)
        }
        return {
            "lab": lab.id,
            "runtime": self.settings.runtime,
            "time_dilation": self.settings.emulation.time_dilation,
            "payload_scale": self.settings.emulation.payload_scale,
            "agent": f"unix:{self.settings.state / 'agent.sock'}",
            "packet_switches": packet,
            **self.network.of_devices(),
            **{
                part: entries
                for group in groups
                for part, entries in group.inventory().items()
            },
            **({"processes": processes} if processes else {}),
        }

    def _write_inventory(self) -> None:
        path = self.settings.state / "inventory.json"
        temporary = path.with_name(".inventory.json")
        temporary.write_text(
            json.dumps(self.inventory, indent=1) + "\n", encoding="utf-8"
        )
        temporary.replace(path)

    def _remove_state(self) -> None:
        """Remove our files; the directories too unless somebody else keeps files there."""
        state, lab = self.settings.state, self.settings.lab
        names = ["inventory.json", "agent.sock", "light.json", deaths.FILE]
        names += [
            f"{name}.{kind}"
            for name in self.settings.fabric.optical_switches
            for kind in ("ready", "log", "users", "password")
        ]
        for name in names:
            with suppress(OSError):
                (state / name).unlink()
        if state == lab.state_dir:
            for name in ("workers", "workloads"):
                shutil.rmtree(state / name, ignore_errors=True)
        # Where others, who are dead now, have left files, the locks stay: by them the next lab sees that all
        # of it is stale.
        locks = {"lock", "owner.lock"}
        if not lab.is_alive() and locks.issuperset(
            path.name for path in lab.state_dir.glob("*")
        ):
            for name in locks:
                (lab.state_dir / name).unlink(missing_ok=True)
        for directory in {state, lab.state_dir}:
            with suppress(OSError):
                directory.rmdir()


def worker_command(runtime: Runtime) -> tuple[str, ...]:
    """Return the command of the training worker, run by the image's Python in a container, else by this
    Python."""
    python = "python3" if runtime == "docker" else sys.executable
    return (python, "-m", "ringlight.containers.worker", "{job}")
