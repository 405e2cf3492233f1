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
from typing import Any

from fastapi import APIRouter, BackgroundTasks, Body
from fastapi.responses import JSONResponse

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.fault_courses import FaultCourse, FaultCourses
from ringlight.testbed.emulation.fault_targets import (
    FaultRequest,
    FaultTarget,
    TargetError,
    find_target,
    read_request,
)
from ringlight.testbed.emulation.kernel.build import BuildError
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.network import LabNetwork
from ringlight.testbed.emulation.openvswitch import OpenVSwitchError
from ringlight.testbed.emulation.shared_lab import SharedLab
from ringlight.testbed.faults import FaultReport, State
from ringlight.testbed.supervision import SupervisionError

log = logging.getLogger(__name__)

#: Longest wait for what is under way as the lab ends, seconds.
CLOSE_S = 15.0
Failures = (
    NetworkError,
    OpenVSwitchError,
    SupervisionError,
    BuildError,
    OSError,
    TimeoutError,
)


@dataclass
class _Fault:
    id: str
    do: str
    target: FaultTarget
    back_after_s: float | None
    course: FaultCourse
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

    ``courses``: what can be broken in it. ``share``: what of the lab is here.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: LabNetwork,
        courses: FaultCourses,
        share: SharedLab = SharedLab(),
    ) -> None:
        self._fabric = fabric
        self._network = network
        self._courses = courses
        self._share = share
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count(1)

    # -- asking

    def ask(
        self, request: FaultRequest
    ) -> tuple[FaultReport, Callable[[], None] | None]:
        """Record a new fault, or end one. Return the fault's report and the function that starts the fault,
        None if nothing is left to start. Raises TargetError."""
        target = find_target(self._fabric, request)
        with self._lock:
            if self._courses.closing.is_set():
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
        counters = self._network.affected.counters()
        for theirs in self._share.counters():
            for name, counted in theirs.items():
                counters.setdefault(name, []).extend(counted)
        return counters

    def close(self) -> None:
        """Let what is under way come to its end, and mend nothing: the lab goes."""
        with self._lock:
            self._courses.closing.set()
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
            if self._courses.closing.is_set():
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
        if self._courses.closing.is_set():
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
        if fault.course.end is None or self._courses.closing.is_set():
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
    ) -> FaultCourse:
        """Return a fault's course, with what it is elsewhere. Raises TargetError."""
        here, pieces = self._share.pieces(target, request)
        courses = [self._courses.course_of(fault_id, target, request)] if here else []
        courses += [FaultCourse(*piece) for piece in pieces]
        ends = [course.end for course in courses if course.end is not None]

        def begin() -> None:
            for course in courses:
                course.begin()

        def end() -> None:
            for finish in ends:
                finish()

        return FaultCourse(begin, end if ends else None)


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
