"""Courses of faults: what of a lab each kind of fault breaks, and how that is mended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ringlight.fabric.control_faults import ControlFaults
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.agent.http import AgentServer
from ringlight.testbed.emulation.agent.worker import Worker
from ringlight.testbed.emulation.agent.workers import Workers
from ringlight.testbed.emulation.buildable import check_effect
from ringlight.testbed.emulation.fault_targets import (
    FaultRequest,
    FaultTarget,
    Kind,
    TargetError,
    listed,
)
from ringlight.testbed.emulation.kept_processes import Kept
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.onic.manage import emulate
from ringlight.testbed.emulation.worker_hosts import describe

#: Longest wait for a worker's death, and for a process to be back, seconds.
DEATH_S, BACK_S = 10.0, 30.0


@dataclass(frozen=True)
class FaultCourse:
    """Actions that begin and end a fault. Each returns once its effect has been observed.

    ``end`` is None if the fault is over once it has begun. Both raise NetworkError, OpenVSwitchError,
    SupervisionError, BuildError, OSError.
    """

    begin: Callable[[], None]
    end: Callable[[], None] | None


class FaultCourses:
    """Gives faults of one lab their courses. All methods may be called from several threads.

    ``kept``: the supervised processes of optical switches and of O-NICs' agents, where the lab has any.
    ``manage``: management sockets of the agents by GPU; None where they were not told to allow faults.
    ``closing``: set once the lab is taken down.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        workers: Workers,
        server: AgentServer,
        kept: Mapping[Kind, Kept],
        manage: Mapping[str, Path] | None,
    ) -> None:
        self._fabric = fabric
        self._network = network
        self._workers = workers
        self._server = server
        self._kept = kept
        self._manage = manage
        self.closing = threading.Event()
        self._control = ControlFaults()
        self._control_lock = threading.Lock()
        #: Ports that each fault holds down; two faults may hold the same one.
        self._dark: dict[str, frozenset[Port]] = {}
        self._dark_lock = threading.Lock()
        #: What links do to frames by a fault, in place of what the fabric says; as ``_control``, what was
        #: asked for last, whichever fault begins first.
        self._by_event: dict[Link, Effects] = {}
        self._effects_lock = threading.Lock()
        #: Held while what was asked for last is looked at or replaced.
        self._newest_lock = threading.Lock()

    def course_of(
        self, fault_id: str, target: FaultTarget, request: FaultRequest
    ) -> FaultCourse:
        """Return the course of a fault here. Raises TargetError for what cannot be broken now."""
        darken, lighten = (
            (lambda: self._darken(fault_id, target.ports)),
            (lambda: self._lighten(fault_id)),
        )
        match target.kind:
            case "link" if request.effects:
                return self._affected(target, request.effects)
            case "link" | "nic":
                return FaultCourse(darken, lighten)
            case "gpu":
                return self._lost_gpu(target.names[0], darken, lighten)
            case "worker":
                job, rank = target.names
                worker = self._worker(job, int(rank))
                return FaultCourse(lambda: self._kill(worker), None)
            case "packet switch":
                return self._dead_switch(target.names[0], darken, lighten)
            case "optical switch" if self._fabric.optical_switches[
                target.names[0]
            ].is_bridge:
                return self._silent_switch(target.names[0])
            case "control network":
                assert request.control is not None
                return self._disturbed(request.control)
            case "server agent":
                return FaultCourse(self._server.stop, self._server.start)
            case _:
                if (kept := self._kept.get(target.kind)) is None:
                    raise TargetError(409, f"{target.text}: it is not this testbed's")
                return self._dead_process(kept, target.names[0])

    def _darken(self, fault_id: str, ports: frozenset[Port]) -> None:
        with self._dark_lock:
            self._dark[fault_id] = ports
            self._network.states.hold_down(frozenset().union(*self._dark.values()))

    def _lighten(self, fault_id: str) -> None:
        with self._dark_lock:
            self._dark.pop(fault_id, None)
            self._network.states.hold_down(frozenset().union(*self._dark.values()))

    def _affected(self, target: FaultTarget, effects: Effects) -> FaultCourse:
        link = self._fabric.link_at[Port.parse(target.text.split()[1])]
        for key, effect in effects.items():
            try:
                check_effect(self._fabric, link, effect)
            except ValueError as error:
                raise TargetError(409, f"{key}.{error}") from None
        with self._newest_lock:
            self._by_event[link] = effects

        def begin() -> None:
            with self._effects_lock:
                self._network.affected.affect(link, self._by_event.get(link, {}))

        def end() -> None:
            with self._effects_lock:
                with self._newest_lock:
                    if self._by_event.get(link) is not effects:
                        return
                    del self._by_event[link]
                self._network.affected.affect(link, {})

        return FaultCourse(begin, end)

    def _lost_gpu(
        self, gpu: str, darken: Callable[[], None], lighten: Callable[[], None]
    ) -> FaultCourse:
        def begin() -> None:
            self._workers.set_lost(gpu, True)
            darken()
            for worker in self._workers.workers():
                if worker.place.gpu == gpu:
                    self._kill(worker)

        def end() -> None:
            lighten()
            self._workers.set_lost(gpu, False)

        return FaultCourse(begin, end)

    def _dead_switch(
        self, name: str, darken: Callable[[], None], lighten: Callable[[], None]
    ) -> FaultCourse:
        bridge, controller = (
            self._network.lab.bridge(name),
            self._network.switch_controllers.target_of(name),
        )
        if controller is None:
            # Its flow is Open vSwitch's own, which would not put it back.
            return FaultCourse(darken, lighten)

        def begin() -> None:
            # First the connection: a switch without power does not tell that its ports are down. It is not
            # awaited that Open vSwitch says so, which takes it up to 5 s: that no flow comes back is enough.
            openvswitch.cut_off(bridge)
            openvswitch.empty_tables(bridge)
            darken()

        def end() -> None:
            lighten()
            openvswitch.set_target(bridge, controller)

        return FaultCourse(begin, end)

    def _silent_switch(self, name: str) -> FaultCourse:
        bridge = self._network.lab.bridge(name)
        return FaultCourse(
            lambda: openvswitch.set_no_target(bridge),
            lambda: openvswitch.set_target(
                bridge, self._network.switch_controllers.ours.target
            ),
        )

    def _dead_process(self, kept: Kept, name: str) -> FaultCourse:
        supervisor = kept.supervisor
        what = f"{supervisor.kind} {name}"
        if not supervisor.lives()[name].runs:
            raise TargetError(409, f"{what} does not run just now; it is started again")

        def begin() -> None:
            supervisor.kill(name)
            self._until(
                lambda: not supervisor.lives()[name].runs,
                DEATH_S,
                f"{what} does not end",
            )

        def end() -> None:
            supervisor.let_start(name)
            self._until(
                lambda: supervisor.lives()[name].runs and kept.answers(name),
                BACK_S,
                f"{what} does not answer",
            )
            if kept is self._kept.get("agent") and self._manage is not None:
                # It has forgotten it.
                with self._control_lock:
                    self._disturb(name)

        return FaultCourse(begin, end)

    def _disturbed(self, control: ControlFaults) -> FaultCourse:
        manage = self._manage
        if manage is None:
            text = "the agents of this lab cannot be disturbed: its scenario has no event that does"
            raise TargetError(409, text)
        with self._newest_lock:
            self._control = control

        def disturb() -> None:
            lives = self._kept["agent"].supervisor.lives()
            for gpu in manage:
                # One that is away is told when it is back.
                if lives[gpu].runs:
                    self._disturb(gpu)

        def begin() -> None:
            with self._control_lock:
                disturb()

        def end() -> None:
            with self._control_lock:
                with self._newest_lock:
                    if self._control is not control:
                        return
                    self._control = ControlFaults()
                disturb()

        return FaultCourse(begin, end)

    def _disturb(self, gpu: str) -> None:
        assert self._manage is not None
        usual_s = self._network.emulation.seconds(self._fabric.onics[gpu].tuning_s)
        settings = {
            **asdict(self._control),
            "tuning_s": self._control.tuning_s.get(gpu, usual_s),
        }
        # Agents are seeded apart, or they would lose their messages in step.
        emulate(
            self._manage[gpu], {**settings, "seed": 1 + list(self._manage).index(gpu)}
        )

    def _until(
        self, condition: Callable[[], bool], timeout_s: float, complaint: str
    ) -> None:
        """Raises TimeoutError, also when the lab is taken down meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.closing.is_set():
                raise TimeoutError("the testbed is stopping")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{complaint} within {timeout_s:g} s")
            time.sleep(0.02)

    def _worker(self, job: str, rank: int) -> Worker:
        workers = self._workers.workers()
        # A job that goes on without a lost GPU has had others of the same rank before.
        mine = [
            worker
            for worker in workers
            if (worker.place.job, worker.place.rank) == (job, rank)
        ]
        alive = [worker for worker in mine if worker.outcome is None]
        if alive:
            return alive[-1]
        ended = [worker.outcome for worker in mine if worker.outcome is not None]
        if ended:
            raise TargetError(
                409, f"worker {job} {rank} has ended already: {describe(ended[-1])}"
            )
        there = listed(
            f"{w.place.job} {w.place.rank}" for w in workers if w.outcome is None
        )
        raise TargetError(404, f"there is no worker {job} {rank}; there are {there}")

    def _kill(self, worker: Worker) -> None:
        """Raises TimeoutError when it does not die."""

        def ended() -> bool:
            # One that is being started has no process yet, or not one that is watched.
            worker.host.kill()
            return worker.state not in ("starting", "running", "waiting")

        self._until(ended, DEATH_S, f"worker {worker.place.id} does not end")
