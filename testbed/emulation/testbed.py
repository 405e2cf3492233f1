"""One lab as a whole: built in order, written to the inventory, and taken down in the reverse order."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import docker
import docker.errors
import requests
from pydantic import TypeAdapter

from ringlight import IMPORT_PATH
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.parts import OpticalSwitch
from ringlight.fabric.topology import Fabric
from ringlight.testbed import deaths, descriptors, forkserver, limits, services
from ringlight.testbed.deaths import Deaths
from ringlight.testbed.descriptors import too_few
from ringlight.testbed.devices import (
    NodeProcess,
    NodeProcesses,
    Site,
    device_kinds,
    plan_devices,
)
from ringlight.testbed.emulation import clean, openvswitch
from ringlight.testbed.emulation.agent.hosts import IdleHosts
from ringlight.testbed.emulation.agent.http import AgentServer, LabWorkers, make_app
from ringlight.testbed.emulation.agent.lightpaths import Lightpaths
from ringlight.testbed.emulation.agent.onics import Onics
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.docker_hosts import DockerHost, docker_reason
from ringlight.testbed.emulation.fault_courses import FaultCourses, Kept
from ringlight.testbed.emulation.faults import Faults, fault_routes
from ringlight.testbed.emulation.fixed_network import OPTICAL_DPID
from ringlight.testbed.emulation.kernel import namespaces
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.namespace_hosts import NamespaceHost
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.network_watch import NetworkWatch
from ringlight.testbed.emulation.onic.wiring import (
    control_ip,
    is_tagged,
    laser_ids,
    lasers_of_switch,
    onic_directory,
)
from ringlight.testbed.emulation.optical.far_light import light_plan
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.emulation.others import Others, others_routes
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.shared_lab import SharedLab
from ringlight.testbed.emulation.vswitchd import VswitchdWatch
from ringlight.testbed.emulation.worker_hosts import WorkerHost, WorkerPlace
from ringlight.testbed.forkserver import ForkServer
from ringlight.testbed.freezes import FreezeWatch, Watched
from ringlight.testbed.lab import Lab
from ringlight.testbed.lab_programs import LabProgram
from ringlight.testbed.preloaded import WORKER
from ringlight.testbed.process_start import SOCKET, Process, start_process
from ringlight.testbed.supervision import Life, Start, Supervisor

log = logging.getLogger(__name__)

Runtime = Literal["docker", "namespace"]
#: Longest wait for the optical switches, and then for the O-NICs' agents, to answer, seconds.
START_S = 30.0
#: Where every O-NIC's agent listens on the control network.
AGENT_PORT = 7900
#: Where an optical switch's protocol listens that has not been started before.
_ANY_PORT = "127.0.0.1:0"
#: The controller's name among supervised processes, and how long its orderly end may take, seconds.
CONTROLLER, CONTROLLER_END_S = "controller", 10.0
#: From so many processes on, a fork server starts them in less than they would take.
_WORTH_FORKING = 4
#: Who may use an emulated optical switch whose protocol has a login.
USER = "ringlight"


class TestbedError(RuntimeError):
    """The testbed cannot be built; one line."""


class Stopped(TestbedError):
    """Request to stop while the testbed was being built."""


@dataclass(frozen=True)
class KeptController:
    """Command of a lab's permanent controller. ``rest``: address of its REST API, ``host:port``.

    ``follow``: the controller ends with the testbed, however that ends.
    """

    command: tuple[str, ...]
    rest: str
    log: Path
    follow: bool = False

    @classmethod
    def read(cls, path: Path) -> KeptController:
        """Read a JSON file with these keys and return the settings. Raises OSError, ValueError."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``rest``."""
        host, _, port = self.rest.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Settings:
    """Settings of a testbed. ``command``: the worker's, see :class:`WorkerPlace`; None for the training
    worker.

    ``onic_faults``: the O-NICs' agents can be ordered to delay and lose control messages. ``onic_lease_s``:
    emulated seconds that a grant of light lasts unless it is renewed. ``programs``: of extensions, by
    name.
    ``keeps``: the controller's command, if the testbed starts the controller and keeps it running.
    ``devices``: names of extensions' devices. ``share``: what of the lab is here.
    """

    lab: Lab
    fabric: Fabric
    state: Path
    runtime: Runtime = "docker"
    emulation: Emulation = field(default_factory=Emulation)
    controller: ControllerAddress = field(
        default_factory=lambda: ControllerAddress("127.0.0.1", 6653)
    )
    programs: Mapping[str, LabProgram] = field(default_factory=dict)
    keeps: KeptController | None = None
    image: str | None = None
    command: tuple[str, ...] | None = None
    seed: int = 0
    onic_faults: bool = False
    onic_lease_s: float = 2.0
    devices: tuple[str, ...] = ()
    share: SharedLab = field(default_factory=SharedLab)


class Testbed:
    """Owns every process and object of one lab. Raises TestbedError and the errors of what it builds.

    :meth:`ask_to_stop` may be called at any moment, also from a signal handler.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.inventory: dict[str, Any] = {}
        self.workers: Workers | None = None
        self.network: LabNetwork | None = None
        #: Of a fabric's parts that are processes, by their part of the inventory.
        self.supervisors: dict[str, Supervisor] = {}
        self.programs: dict[str, Supervisor] = {}
        self.controller: Supervisor | None = None
        self._deaths = Deaths(settings.state / deaths.FILE)
        #: All that are started again, by their kind.
        self._supervisors: dict[deaths.ProcessKind, Supervisor] = {}
        self._fork_server: ForkServer | None = None
        #: ``host:port`` of each management protocol and of the switch's own REST, by optical switch.
        self._addresses: dict[str, dict[str, str]] = {}
        #: Of the processes that it starts.
        self._environment = importing(settings.lab.environment())
        self._inventory_lock = threading.Lock()
        self._share = settings.share
        self._undo = ExitStack()
        self._stop = threading.Event()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped while it was being built")

    def start(self) -> None:
        """Build everything; when that fails, take down what was built and raise."""
        try:
            self._build()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Wait for a request to stop."""
        self._stop.wait()

    def stop(self) -> None:
        """Take everything down. Every part is tried; what fails is logged."""
        self._stop.set()
        if self.controller is not None:
            # First: it needs the others for an orderly end.
            self.controller.stop()
            self.controller = None
        # What is elsewhere is taken down meanwhile.
        self._share.end()
        self._undo.close()

    def _build(self) -> None:
        settings, lab = self.settings, self.settings.lab
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
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("inventory.json", deaths.FILE):
            (settings.state / name).unlink(missing_ok=True)
        for line in [*clean.clean_stale(), *clean.clean_leftovers(lab)]:
            log.info("left by an earlier run and removed: %s", line)
        limits.enlarge()
        descriptors.enlarge()
        if not services.open_vswitch_running():
            raise TestbedError(
                "Open vSwitch is not running or does not answer; run: ringlight doctor"
            )
        api, image = self._check_runtime()
        self._go_on()
        forked = self._open_fork_server()
        self._undo.callback(self._share.close)
        controller = self._share.open(
            self._site({}), settings.controller, self._deaths, self.ask_to_stop
        )
        self._undo.enter_context(
            FreezeWatch(("testbed", "testbed"), self._watched, self._deaths.add)
        )
        # First, as a file that cannot be loaded ends it all.
        for name in settings.programs:
            self._launch_program(name)
        self._go_on()
        self._launch_controller()
        if forked:
            # Not before: the controller imports most of what it needs by itself, beside all else.
            forkserver.prepare(self._environment[SOCKET], forked)
        where = {
            name: ControllerAddress.parse(p.openflow)
            for name, p in settings.programs.items()
        }
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
            Lasers.create(self._laser_pin, 2 * len(settings.fabric.gpus)).close()
        self._launch_optical()
        self._go_on()
        network.start()
        if network.switches:
            self._undo.enter_context(
                VswitchdWatch(self._deaths, network.open_vswitch_is_back)
            )
        self._go_on()
        self._launch_onics()
        self._launch_nodes(network.node_processes())

        def make_host(place: WorkerPlace) -> WorkerHost:
            if api is None:
                return network.add_worker(
                    NamespaceHost, place, environment=self._environment
                )
            return network.add_worker(DockerHost, place, api=api)

        lightpaths = Lightpaths(settings.fabric, lab.bpf_dir)
        self._undo.callback(lightpaths.close)
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
        courses = FaultCourses(
            settings.fabric,
            network,
            workers,
            server,
            self._kept(),
            self._disturbable(),
        )
        faults = Faults(settings.fabric, network, courses, self._share)
        self._undo.callback(faults.close)
        app.include_router(fault_routes(faults))
        app.include_router(
            others_routes(
                Others(network.switch_controllers.handed_over(), self.programs).document
            )
        )
        server.start()
        self._await_optical()
        self._await_onics()
        self._await_nodes()
        self._await_controller()
        network.switch_controllers.hand_over()
        self._undo.enter_context(NetworkWatch(network.states.astray, self._deaths))
        with self._inventory_lock:
            own, deadline_s = self._make_inventory(), time.monotonic() + START_S
            self.inventory = self._share.join(own, deadline_s, self._go_on)
            self._write_inventory()

    def _site(self, bridges: Mapping[str, int]) -> Site:
        settings = self.settings
        return Site(
            settings.lab,
            settings.state,
            bridges,
            settings.fabric,
            settings.emulation.rate_bps,
        )

    def _open_fork_server(self) -> list[str]:
        """Have the lab's processes forked, where that costs nothing or they are so many that it pays; the
        modules that the server should import for them."""
        fabric, emulation = self.settings.fabric, "ringlight.testbed.emulation"
        in_namespaces = (
            self.settings.runtime == "namespace" and self.settings.command is None
        )
        here = self._share.is_here
        optical = sum(
            s.has_datapath and here(s.name) for s in fabric.optical_switches.values()
        )
        kinds = (
            (optical, [f"{emulation}.optical.__main__"]),
            (len(fabric.agents), [f"{emulation}.onic.__main__"]),
            (
                len(fabric.devices),
                [name for kind in device_kinds().values() for name in kind.modules],
            ),
            (sum(map(here, fabric.gpus)) * in_namespaces, WORKER),
        )
        worth = sum(count for count, _ in kinds) >= _WORTH_FORKING
        if SOCKET not in self._environment and (worth or forkserver.can_fork_server()):
            server = ForkServer(
                self.settings.state / "forks.sock", [], self._environment
            )
            self._undo.callback(server.close)
            self._fork_server = server
            self._environment[SOCKET] = str(server.path)
        return [
            module for count, needed in kinds if worth and count for module in needed
        ]

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

    # -- programs of extensions

    def _launch_program(self, name: str) -> None:
        """Start it, and wait until it runs."""
        program = self.settings.programs[name]
        ready = self.settings.state / f"{name}.json"
        kept = self.programs[name] = self._supervisors[name] = Supervisor(
            "the process of",
            {name: partial(program.start, self.settings.lab, ready)},
            lambda *_: self._deaths.back(name, name),
            lambda _: last_line(program.log),
            on_end=partial(self._deaths.ended, name),
        )
        self._undo.callback(kept.stop)
        self._await(kept, name, ready.exists, program.log, time.monotonic() + START_S)

    # -- the controller

    def _launch_controller(self) -> None:
        """Start it, where it is ours to keep; it waits for the inventory."""
        if (keeps := self.settings.keeps) is None:
            return
        starts = {
            CONTROLLER: partial(self._spawn, keeps.command, keeps.log, keeps.follow)
        }
        self.controller = self._supervised(
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
            self._await(
                self.controller,
                CONTROLLER,
                ready,
                keeps.log,
                time.monotonic() + START_S,
            )

    # -- optical switches

    def _launch_optical(self) -> None:
        fabric = self.settings.fabric
        light_plan(fabric, self.settings.lab.bpf_dir).write(self._light_file)
        starts = {
            switch.name: partial(self._start_optical, index, switch)
            for index, switch in enumerate(fabric.optical_switches.values())
            if switch.has_datapath and self._share.is_here(switch.name)
        }
        for name in starts:
            self._make_user(name)
        self._keep("optical switch", "optical switch", starts, "optical_switches")

    def _start_optical(self, index: int, switch: OpticalSwitch) -> Process:
        """One optical switch. Started again it finds its light burning, and listens where it was."""
        settings, fabric = self.settings, self.settings.fabric
        ready = settings.state / f"{switch.name}.ready"
        ready.unlink(missing_ok=True)
        known = self._addresses.get(switch.name, {})
        protocol = protocol_of(switch)
        command = [
            *(sys.executable, "-m", "ringlight.testbed.emulation.optical"),
            *(
                "--name",
                switch.name,
                "--lab",
                settings.lab.id,
                "--size",
                str(switch.size),
            ),
            *(
                "--listen",
                known.get("scpi", _ANY_PORT),
                "--ready",
                str(ready),
                "--profile",
                switch.profile,
            ),
            *("--netns", settings.lab.namespace(switch.name)),
            *("--pins", str(settings.lab.bpf_dir / switch.name)),
            *("--time-dilation", str(settings.emulation.time_dilation)),
            *("--seed", str(settings.seed + index)),
            *("--light", str(self._light_file), "--rest", known.get("rest", _ANY_PORT)),
        ]
        if protocol != "scpi":
            command += ["--serve", f"{protocol}={known.get(protocol, _ANY_PORT)}"]
        if driver_kinds()[switch.driver].login:
            command += ["--users", str(self._user_file(switch.name, "users"))]
        if switch.loss_db is not None:
            command += ["--loss", str(switch.loss_db)]
        if switch.dark_s is not None:
            command += ["--dark", repr(switch.dark_s)]
        if switch.wavelengths is not None:
            command += ["--wavelengths", str(switch.wavelengths)]
            if is_tagged(fabric, switch.name):
                command.append("--tagged")
            else:
                command += ["--lasers", str(self._laser_pin)]
            for port, laser in lasers_of_switch(fabric, switch.name).items():
                command += ["--laser", f"{port}={laser}"]
        return self._spawn(command, self._optical_log(switch.name))

    def _user_file(self, name: str, kind: str) -> Path:
        """File of an optical switch: its own ``users``, or the ``password`` for its driver."""
        return self.settings.state / f"{name}.{kind}"

    def _make_user(self, name: str) -> None:
        """The one user of an optical switch whose protocol has a login; nobody but us may read who."""
        if not driver_kinds()[self.settings.fabric.optical_switches[name].driver].login:
            return
        password = secrets.token_hex(16)
        for kind, text in (
            ("users", f"{USER}:{password}\n"),
            ("password", f"{password}\n"),
        ):
            path = self._user_file(name, kind)
            path.unlink(missing_ok=True)
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
            ) as file:
                file.write(text)

    @property
    def _light_file(self) -> Path:
        return self.settings.state / "light.json"

    def _optical_log(self, name: str) -> Path:
        return self.settings.state / f"{name}.log"

    def _spawn(
        self, command: Sequence[str], log_file: Path, follow: bool = False
    ) -> Process:
        """A process of the lab; what it says is added to a file. ``follow``: it ends with this one."""
        number = signal.SIGTERM if follow else None
        with log_file.open("ab") as output:
            return start_process(
                command, self._environment, output, directory=Path("/"), follow=number
            )

    def _await(
        self,
        supervisor: Supervisor,
        name: str,
        ready: Callable[[], bool],
        log_file: Path,
        deadline: float,
    ) -> None:
        """Wait until a process that was just started is ready. Raises TestbedError if it died or is late."""
        while not ready():
            self._go_on()
            if supervisor.lives()[name].has_died:
                raise TestbedError(
                    f"{supervisor.kind} {name} did not start: {last_line(log_file)}"
                )
            if time.monotonic() > deadline:
                raise TestbedError(f"{supervisor.kind} {name} was not ready in time")
            time.sleep(0.01)

    def _await_optical(self) -> None:
        """Wait until every optical switch answers at its management port."""
        deadline = time.monotonic() + START_S
        for name in self._lives("optical_switches"):
            ready = self.settings.state / f"{name}.ready"
            self._await(
                self.supervisors["optical_switches"],
                name,
                ready.exists,
                self._optical_log(name),
                deadline,
            )
            document = json.loads(ready.read_text())
            self._addresses[name] = {**document["addresses"], "rest": document["rest"]}
            self._identify(name, self._addresses[name]["scpi"], deadline)

    def _identify(self, name: str, address: str, deadline: float) -> None:
        host, _, port = address.rpartition(":")
        try:
            left = max(0.1, deadline - time.monotonic())
            with socket.create_connection(
                (host, int(port)), timeout=left
            ) as connection:
                connection.sendall(b"*IDN?\n")
                if not connection.recv(1024):
                    raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        except OSError as error:
            raise TestbedError(
                f"optical switch {name} at {address}: {error.strerror or error}"
            ) from None

    # -- O-NICs

    @property
    def _laser_pin(self) -> Path:
        return self.settings.lab.bpf_dir / "lasers"

    def _launch_onics(self) -> None:
        fabric, state = self.settings.fabric, self.settings.state
        agents = _asked(fabric)
        if not agents:
            return
        if self.settings.runtime == "namespace":
            # Workers are users of this machine then, and pass through here to their flow sockets.
            for directory in {state, self.settings.lab.state_dir}:
                directory.chmod(0o711)
        self._undo.callback(shutil.rmtree, state / "onics", ignore_errors=True)
        for gpu in agents:
            onic_directory(state, gpu).mkdir(mode=0o755, parents=True)
        starts = {gpu: partial(self._start_agent, gpu) for gpu in fabric.agents}
        self._keep("O-NIC agent", "the agent of O-NIC", starts, "onics")

    def _start_agent(self, gpu: str) -> Process:
        """One agent in its O-NIC's namespace."""
        settings = self.settings
        assert self.network is not None
        node = self.network.places.onics[gpu]
        directory = onic_directory(settings.state, gpu)
        command = [
            *(
                sys.executable,
                "-S",
                "-m",
                "ringlight.testbed.emulation.onic",
                "--gpu",
                gpu,
            ),
            *(
                "--listen",
                f"{control_ip(node.gpu)}:{AGENT_PORT}",
                "--directory",
                str(directory),
            ),
            *("--pins", str(node.pins), "--lasers", str(self._laser_pin)),
            *("--laser-ids", ",".join(map(str, laser_ids(settings.fabric, gpu)))),
            *("--tuning", repr(settings.fabric.onics[gpu].tuning_s)),
            *("--lease", repr(settings.onic_lease_s)),
            *("--time-dilation", repr(settings.emulation.time_dilation)),
            *(["--allow-faults"] if settings.onic_faults else []),
        ]
        assert node.namespace is not None
        # A child inherits the namespace of the thread that forks it.
        return namespaces.in_namespace(
            node.namespace, partial(self._spawn, command, directory / "agent.log")
        )

    def _await_onics(self) -> None:
        """Wait until every agent answers on its management socket."""
        deadline = time.monotonic() + START_S
        for gpu in self.settings.fabric.agents:
            directory = onic_directory(self.settings.state, gpu)
            ready = partial(answers, directory / "manage.sock")
            self._await(
                self.supervisors["onics"], gpu, ready, directory / "agent.log", deadline
            )

    # -- devices of the fabric

    def _launch_nodes(self, groups: Sequence[NodeProcesses]) -> None:
        self._nodes = tuple(groups)
        for group in self._nodes:
            starts = {
                name: partial(self._start_node, name, process)
                for name, process in group.by_node.items()
            }
            self._keep(group.kind, group.kind, starts, group.part)

    def _start_node(self, name: str, process: NodeProcess) -> Process:
        assert self.network is not None
        # A child inherits the namespace of the thread that forks it.
        return namespaces.in_namespace(
            self.network.namespace(name),
            partial(self._spawn, process.command(), process.log),
        )

    def _await_nodes(self) -> None:
        """Wait until every process of a device answers."""
        for group in self._nodes:
            deadline = time.monotonic() + group.start_s
            for name, process in group.by_node.items():
                kept = self.supervisors[group.part]
                self._await(kept, name, process.answers, process.log, deadline)

    def _kept(self) -> dict[str, Kept]:
        """The supervised processes, and whether one serves its clients."""

        def manages(gpu: str) -> bool:
            return answers(onic_directory(self.settings.state, gpu) / "manage.sock")

        def optical(name: str) -> bool:
            protocol = protocol_of(self.settings.fabric.optical_switches[name])
            host, _, port = self._addresses[name][protocol].rpartition(":")
            return answers((host, int(port)))

        serves: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
            ("optical switch", "optical_switches", optical),
            ("agent", "onics", manages),
            *(
                (group.kind, group.part, partial(_node_answers, group))
                for group in self._nodes
            ),
        )
        there = self.supervisors
        kept = {
            kind: Kept(there[part], answers_)
            for kind, part, answers_ in serves
            if part in there
        }
        if self.controller is not None and (keeps := self.settings.keeps) is not None:
            kept["controller"] = Kept(self.controller, lambda _: answers(keeps.address))
        return kept

    def _disturbable(self) -> dict[str, Path] | None:
        if not self.settings.onic_faults:
            return None
        return {
            gpu: onic_directory(self.settings.state, gpu) / "manage.sock"
            for gpu in self.settings.fabric.agents
        }

    # -- inventory and files

    def _keep(
        self,
        kind: deaths.ProcessKind,
        called: str,
        starts: Mapping[str, Start],
        part: str,
    ) -> None:
        """Start processes, if any, and keep them running until the lab goes. ``part``: of the inventory."""
        if starts:
            kept = self.supervisors[part] = self._supervised(kind, called, starts, part)
            self._undo.callback(kept.stop)

    def _supervised(
        self,
        kind: deaths.ProcessKind,
        called: str,
        starts: Mapping[str, Start],
        part: str,
        *more: Any,
    ) -> Supervisor:
        """Processes that are started again; each end is noted. ``more``: arguments of ``Supervisor``."""

        def on_restart(name: str, pid: int, requested: bool) -> None:
            self._deaths.back(kind, name)
            self._on_restart(part, name, pid, requested)

        kept = Supervisor(
            called, starts, on_restart, *more, on_end=partial(self._deaths.ended, kind)
        )
        self._supervisors[kind] = kept
        return kept

    def _watched(self) -> list[Watched]:
        """All processes of the lab but this one, and those of the machine's services that work for it."""
        lives = [
            (kind, name, life)
            for kind, kept in [*self._supervisors.items()]
            for name, life in kept.lives().items()
        ]
        watched = [
            Watched(kind, name, life.pid, kind in self.programs)
            for kind, name, life in lives
            if life.runs
        ]
        if self._fork_server is not None:
            watched.append(Watched("fork server", "forks", self._fork_server.pid))
        for worker in self.workers.workers() if self.workers is not None else ():
            gpu, guest = worker.place.gpu, worker.host.guest
            if worker.lives and worker.host.pid:
                watched.append(Watched("worker on GPU", gpu, worker.host.pid, True))
            if guest is not None and guest.pid:
                watched.append(Watched("container on GPU", gpu, guest.pid, True))
        for name, pid in services.running_pids(
            docker=self.settings.runtime == "docker"
        ).items():
            watched.append(
                Watched(
                    "Open vSwitch" if name in services.OPEN_VSWITCH else "Docker",
                    name,
                    pid,
                )
            )
        return watched

    def _lives(self, part: str) -> Mapping[str, Life]:
        """Lives of the processes of a part of the inventory."""
        return self.supervisors[part].lives() if part in self.supervisors else {}

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

    def _make_inventory(self) -> dict[str, Any]:
        settings = self.settings
        lab, fabric = settings.lab, settings.fabric
        assert self.network is not None
        switches = self._lives("optical_switches")
        optical: dict[str, Any] = {}
        for index, switch in enumerate(fabric.optical_switches.values()):
            if not self._share.is_here(switch.name):
                continue
            # A switch that is elsewhere does not know that time passes slower here.
            dilation = 1.0 if switch.is_elsewhere else settings.emulation.time_dilation
            entry: dict[str, Any] = {
                "driver": switch.driver,
                "profile": switch.device.dilated(dilation).declared(),
                **(self._login(switch) if switch.has_datapath else {}),
                **switch.access,
            }
            if switch.has_datapath:
                entry |= {
                    "pid": switches[switch.name].pid,
                    "rest": self._addresses[switch.name]["rest"],
                }
            elif not switch.is_elsewhere:
                entry |= {
                    "dpid": OPTICAL_DPID + index,
                    "bridge": lab.bridge(switch.name),
                }
            if switch.wavelengths is not None:
                entry["wavelengths"] = switch.wavelengths
            optical[switch.name] = entry
        lives = self._lives("onics")
        onics: dict[str, dict[str, Any]] = {
            gpu: {
                "transmitters": onic.transmitters,
                **({"standing": True} if onic.standing else {}),
            }
            for gpu, onic in fabric.onics.items()
        }
        for gpu in _asked(fabric):
            onics[gpu] |= {
                "flow": self._flow_socket(gpu),
                "directory": str(onic_directory(settings.state, gpu)),
            }
        for gpu in fabric.agents:
            onics[gpu] |= {
                "manage": str(onic_directory(self.settings.state, gpu) / "manage.sock"),
                "control": f"{control_ip(fabric.gpus[gpu])}:{AGENT_PORT}",
                "laser_ids": list(laser_ids(fabric, gpu)),
                "pid": lives[gpu].pid,
            }
        working = {
            group.part: {
                name: {"pid": life.pid, **group.by_node[name].entry}
                for name, life in lives.items()
            }
            for group in self._nodes
            if (lives := self._lives(group.part))
        }
        kept = self.controller.lives() if self.controller else {}
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
            "optical_switches": optical,
            "onics": onics,
            **self.network.of_devices(),
            **working,
            **({"processes": processes} if processes else {}),
        }

    def _login(self, switch: OpticalSwitch) -> dict[str, Any]:
        """Return what the driver needs to get at an emulated optical switch."""
        kind = driver_kinds()[switch.driver]
        entry: dict[str, Any] = {
            "address": self._addresses[switch.name][protocol_of(switch)]
        }
        if kind.login:
            entry |= {
                "username": USER,
                "password_file": str(self._user_file(switch.name, "password")),
            }
        return entry | dict(kind.emulated)

    def _write_inventory(self) -> None:
        path = self.settings.state / "inventory.json"
        temporary = path.with_name(".inventory.json")
        temporary.write_text(
            json.dumps(self.inventory, indent=1) + "\n", encoding="utf-8"
        )
        temporary.replace(path)

    def _flow_socket(self, gpu: str) -> str:
        """The socket of the agent, or of a ring's controller, for flows, as the GPU's worker sees it."""
        if self.settings.runtime == "docker":
            return "/onic/flow.sock"
        return str(onic_directory(self.settings.state, gpu) / "flow.sock")

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


def _asked(fabric: Fabric) -> tuple[str, ...]:
    """GPUs whose O-NICs somebody asks for light, at a socket in the O-NIC's directory."""
    return tuple(gpu for gpu, onic in fabric.onics.items() if not onic.standing)


def _node_answers(group: NodeProcesses, name: str) -> bool:
    return group.by_node[name].answers()


def protocol_of(switch: OpticalSwitch) -> str:
    """Return the protocol that an emulated optical switch serves for its driver."""
    protocol = driver_kinds()[switch.driver].protocol
    assert protocol is not None
    return protocol


def importing(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables by which a process imports this package first, then what the user's own path has."""
    own = environment.get("PYTHONPATH")
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join([str(IMPORT_PATH), *([own] if own else [])]),
    }


def worker_command(runtime: Runtime) -> tuple[str, ...]:
    """Return the command of the training worker, run by the image's Python in a container, else by this
    Python."""
    python = "python3" if runtime == "docker" else sys.executable
    return (python, "-m", "ringlight.containers.worker", "{job}")


def answers(address: Path | tuple[str, int]) -> bool:
    """Return whether a server listens on a Unix socket, or at an IP address and port."""
    inet = (
        socket.AF_INET6
        if ":" in str(address[0] if isinstance(address, tuple) else "")
        else socket.AF_INET
    )
    family = socket.AF_UNIX if isinstance(address, Path) else inet
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(address) if isinstance(address, Path) else address)
        except OSError:
            return False
    return True


def last_line(log_file: Path) -> str:
    """Return the last line that a process of the lab wrote, or a notice if it wrote none."""
    with suppress(OSError):
        lines = log_file.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "it said nothing"
