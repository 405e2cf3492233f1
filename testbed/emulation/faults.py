"""The fault service of a lab: causes faults, checks that they took effect, and ends them.

Every fault has a thread of its own, which breaks, waits and mends; so nobody who asks has to wait. What each
fault does is in docs/faults.md, for people; the client is :mod:`testbed.faults`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import APIRouter, BackgroundTasks, Body
from fastapi.responses import JSONResponse

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
    find_target,
    listed,
    read_request,
)
from ringlight.testbed.emulation.kernel.build import BuildError
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.onic.manage import emulate
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.emulation.shared_lab import SharedLab
from ringlight.testbed.emulation.worker_hosts import describe
from ringlight.testbed.faults import FaultReport, State
from ringlight.testbed.supervision import SupervisionError, Supervisor

log = logging.getLogger(__name__)

#: Longest wait for a worker's death, for a process to be back, and for what is under way as the lab ends,
#: seconds.
DEATH_S, BACK_S, CLOSE_S = 10.0, 30.0, 15.0
Failures = (
    NetworkError,
    OpenVSwitchError,
    SupervisionError,
    BuildError,
    OSError,
    TimeoutError,
)


@dataclass(frozen=True)
class Kept:
    """Processes that a supervisor keeps running; ``answers``: whether one serves its clients, by name."""

    supervisor: Supervisor
    answers: Callable[[str], bool]


@dataclass(frozen=True)
class _Course:
    """Actions that begin and end a fault. Each returns once its effect has been observed. Raises
    ``Failures``."""

    begin: Callable[[], None]
    end: Callable[[], None] | None


@dataclass
class _Fault:
    id: str
    do: str
    target: FaultTarget
    back_after_s: float | None
    course: _Course
    t_asked: float = field(default_factory=time.monotonic)
    t_done: float | None = None
    t_back: float | None = None
    error: str | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def state(self) -> State:
        if self.error is not None:
            return "failed"
        if self.t_done is None:
            return "asked"
        return (
            "over" if self.t_back is not None or self.course.end is None else "in force"
        )

    def report(self) -> FaultReport:
        times = (self.t_asked, self.t_done, self.t_back)
        return FaultReport(
            self.id,
            self.do,
            self.target.text,
            self.state,
            self.back_after_s,
            *times,
            self.error,
        )


class Faults:
    """The faults of one lab. All methods may be called from several threads.

    ``kept``: the supervised processes of optical switches and of O-NICs' agents, where the lab has any.
    ``manage``: management sockets of the agents by GPU; None where they were not told to allow faults.
    ``share``: what of the lab is here.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        workers: Workers,
        server: AgentServer,
        kept: Mapping[Kind, Kept],
        manage: Mapping[str, Path] | None,
        share: SharedLab = SharedLab(),
    ) -> None:
        self._share = share
        self._fabric = fabric
        self._network = network
        self._workers = workers
        self._server = server
        self._kept = kept
        self._manage = manage
        self._control = ControlFaults()
        self._control_lock = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._faults: list[_Fault] = []
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count(1)
        #: Ports that each fault holds down; two faults may hold the same one.
        self._dark: dict[str, frozenset[Port]] = {}
        self._dark_lock = threading.Lock()
        #: What links do to frames by a fault, in place of what the fabric says; as ``_control``, what was
        #: asked for last, whichever fault begins first.
        self._by_event: dict[Link, Effects] = {}
        self._effects_lock = threading.Lock()

    # -- asking

    def ask(
        self, request: FaultRequest
    ) -> tuple[FaultReport, Callable[[], None] | None]:
        """Record a new fault, or end one. Return the fault's report and the function that starts the fault,
        None if nothing is left to start. Raises TargetError."""
        target = find_target(self._fabric, request)
        with self._lock:
            if self._closed:
                raise TargetError(503, "the testbed is stopping")
            same = [
                f
                for f in reversed(self._faults)
                if f.target.text == target.text and _stands(f)
            ]
            if request.do == "cut" or request.effects:
                # A link that does something to frames can be cut, too.
                same = [fault for fault in same if fault.do == request.do]
            standing = next(
                (fault for fault in same if fault.do == "cut"),
                same[0] if same else None,
            )
            if request.do == "restore":
                if standing is None:
                    raise TargetError(409, f"{target.text}: no fault is in force")
                standing.over.set()
                return standing.report(), None
            if standing is not None and (request.do == "disturb" or request.effects):
                # Another of its kind takes its place.
                standing.over.set()
            elif standing is not None:
                raise TargetError(
                    409,
                    f"{target.text}: fault {standing.id} ({standing.do}) is in force",
                )
            fault_id = f"f{next(self._numbers)}"
            course = self._course_everywhere(fault_id, target, request)
            fault = _Fault(fault_id, request.do, target, request.back_after_s, course)
            self._faults.append(fault)
            return fault.report(), lambda: self._start(fault)

    def reports(self) -> list[FaultReport]:
        """Return a report of every fault so far, the oldest first."""
        with self._lock:
            return [fault.report() for fault in self._faults]

    def counters(self) -> Mapping[str, list[Mapping[str, Any]]]:
        """Return what the lab's devices have counted since it came up, by the name of a kind of counters."""
        counters = self._network.counters()
        for theirs in self._share.counters():
            for name, counted in theirs.items():
                counters.setdefault(name, []).extend(counted)
        return counters

    def close(self) -> None:
        """Let what is under way come to its end, and mend nothing: the lab goes."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for fault in self._faults:
                fault.over.set()
        deadline = time.monotonic() + CLOSE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.error("%s did not end within %g s", thread.name, CLOSE_S)

    # -- carrying out

    def _start(self, fault: _Fault) -> None:
        thread = threading.Thread(
            target=self._run, args=(fault,), name=f"fault {fault.id}", daemon=True
        )
        with self._lock:
            if self._closed:
                return
            self._threads = [other for other in self._threads if other.is_alive()] + [
                thread
            ]
            # Under the lock, so that close() joins none that has not been started.
            thread.start()

    def _run(self, fault: _Fault) -> None:
        what = f"{fault.do} {fault.target.text}"
        end = fault.course.end
        try:
            fault.course.begin()
        except Exception as error:
            why = _why(error)
            log.error(
                "fault %s: %s: %s",
                fault.id,
                what,
                why,
                exc_info=not isinstance(error, Failures),
            )
            self._mend(fault)
            fault.error = f"{what}: {why}"
            return
        fault.t_done = time.monotonic()
        log.warning("fault %s: %s", fault.id, what)
        if end is None:
            return
        fault.over.wait(fault.back_after_s)
        if self._closed:
            return
        try:
            end()
        except Exception as error:
            fault.error = f"{fault.target.text} is not back: {_why(error)}"
            log.error(
                "fault %s: %s",
                fault.id,
                fault.error,
                exc_info=not isinstance(error, Failures),
            )
            return
        fault.t_back = time.monotonic()
        log.warning("fault %s: %s is back", fault.id, fault.target.text)

    def _mend(self, fault: _Fault) -> None:
        """End a fault that was brought about only in part."""
        if fault.course.end is None or self._closed:
            return
        try:
            fault.course.end()
        except Exception as error:
            text, unforeseen = fault.target.text, not isinstance(error, Failures)
            log.error(
                "fault %s: %s is not back: %s",
                fault.id,
                text,
                _why(error),
                exc_info=unforeseen,
            )

    # -- what there is

    def _course_everywhere(
        self, fault_id: str, target: FaultTarget, request: FaultRequest
    ) -> _Course:
        """Return a fault's course, with what it is elsewhere. Raises TargetError."""
        here, pieces = self._share.pieces(target, request)
        courses = [self._course(fault_id, target, request)] if here else []
        courses += [_Course(*piece) for piece in pieces]
        ends = [course.end for course in courses if course.end is not None]

        def begin() -> None:
            for course in courses:
                course.begin()

        def end() -> None:
            for finish in ends:
                finish()

        return _Course(begin, end if ends else None)

    def _course(
        self, fault_id: str, target: FaultTarget, request: FaultRequest
    ) -> _Course:
        """Raises TargetError for what cannot be broken now."""
        darken, lighten = (
            (lambda: self._darken(fault_id, target.ports)),
            (lambda: self._lighten(fault_id)),
        )
        match target.kind:
            case "link" if request.effects:
                return self._affected(target, request.effects)
            case "link" | "nic":
                return _Course(darken, lighten)
            case "gpu":
                return self._lost_gpu(target.names[0], darken, lighten)
            case "worker":
                job, rank = target.names
                worker = self._worker(job, int(rank))
                return _Course(lambda: self._kill(worker), None)
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
                return _Course(self._server.stop, self._server.start)
            case _:
                if (kept := self._kept.get(target.kind)) is None:
                    raise TargetError(409, f"{target.text}: it is not this testbed's")
                return self._dead_process(kept, target.names[0])

    def _darken(self, fault_id: str, ports: frozenset[Port]) -> None:
        with self._dark_lock:
            self._dark[fault_id] = ports
            self._network.hold_down(frozenset().union(*self._dark.values()))

    def _lighten(self, fault_id: str) -> None:
        with self._dark_lock:
            self._dark.pop(fault_id, None)
            self._network.hold_down(frozenset().union(*self._dark.values()))

    def _affected(self, target: FaultTarget, effects: Effects) -> _Course:
        link = self._fabric.link_at[Port.parse(target.text.split()[1])]
        for key, effect in effects.items():
            try:
                check_effect(self._fabric, link, effect)
            except ValueError as error:
                raise TargetError(409, f"{key}.{error}") from None
        self._by_event[link] = effects

        def begin() -> None:
            with self._effects_lock:
                self._network.affect(link, self._by_event.get(link, {}))

        def end() -> None:
            with self._effects_lock:
                with self._lock:
                    if self._by_event.get(link) is not effects:
                        return
                    del self._by_event[link]
                self._network.affect(link, {})

        return _Course(begin, end)

    def _lost_gpu(
        self, gpu: str, darken: Callable[[], None], lighten: Callable[[], None]
    ) -> _Course:
        def begin() -> None:
            self._workers.set_lost(gpu, True)
            darken()
            for worker in self._workers.workers():
                if worker.place.gpu == gpu:
                    self._kill(worker)

        def end() -> None:
            lighten()
            self._workers.set_lost(gpu, False)

        return _Course(begin, end)

    def _dead_switch(
        self, name: str, darken: Callable[[], None], lighten: Callable[[], None]
    ) -> _Course:
        bridge, controller = (
            self._network.lab.bridge(name),
            self._network.target_of(name),
        )
        if controller is None:
            # Its flow is Open vSwitch's own, which would not put it back.
            return _Course(darken, lighten)

        def begin() -> None:
            # First the connection: a switch without power does not tell that its ports are down. It is not
            # awaited that Open vSwitch says so, which takes it up to 5 s: that no flow comes back is enough.
            openvswitch.cut_off(bridge)
            openvswitch.empty_tables(bridge)
            darken()

        def end() -> None:
            lighten()
            openvswitch.set_target(bridge, controller)

        return _Course(begin, end)

    def _silent_switch(self, name: str) -> _Course:
        bridge = self._network.lab.bridge(name)
        return _Course(
            lambda: openvswitch.set_no_target(bridge),
            lambda: openvswitch.set_target(bridge, self._network.target.target),
        )

    def _dead_process(self, kept: Kept, name: str) -> _Course:
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

        return _Course(begin, end)

    def _disturbed(self, control: ControlFaults) -> _Course:
        manage = self._manage
        if manage is None:
            text = "the agents of this lab cannot be disturbed: its scenario has no event that does"
            raise TargetError(409, text)
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
                with self._lock:
                    if self._control is not control:
                        return
                    self._control = ControlFaults()
                disturb()

        return _Course(begin, end)

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
            if self._closed:
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


def _why(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text if isinstance(error, Failures) else f"internal error: {text}"


def _stands(fault: _Fault) -> bool:
    return fault.state in ("asked", "in force")


def fault_routes(faults: Faults) -> APIRouter:
    """Return the routes ``/v1/faults`` and ``/v1/counters`` of a server agent."""
    router = APIRouter()

    @router.get("/v1/faults")
    def list_faults() -> dict[str, Any]:
        return {"faults": [asdict(report) for report in faults.reports()]}

    @router.get("/v1/counters")
    def counters() -> Any:
        return faults.counters()

    @router.post("/v1/faults")
    def ask(background: BackgroundTasks, body: Any = Body()) -> JSONResponse:
        try:
            report, start = faults.ask(read_request(body))
        except TargetError as error:
            return JSONResponse({"detail": str(error)}, status_code=error.status)
        if start is not None:
            # Once the answer is out: the server agent itself may be what goes.
            background.add_task(start)
        return JSONResponse(asdict(report), background=background)

    return router
