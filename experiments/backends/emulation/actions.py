"""Carries out the events of a run's timeline, each in a thread of its own: jobs are watched meanwhile."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from experiments.backends.emulation.disturbance import ControlNetwork
from experiments.backends.emulation.processes import LabProcesses
from experiments.backends.emulation.session import REGROUP_S, Session
from experiments.backends.protocol import BackendError
from experiments.client import ApiError, Unreachable
from experiments.language.plan import ControlFaults, EventPlan
from experiments.record.events import ActionBegun, ActionEnded
from testbed.faults import FaultClient, FaultError, FaultReport

#: What an event may fail by; all else is a fault of the program.
Failures = (BackendError, ApiError, Unreachable, FaultError)
#: Deadlines in seconds: an answer, a fault that comes about or is over.
ANSWER_S, FAULT_S = 30.0, 45.0
#: Between two looks at something that is awaited.
PAUSE_S = 0.03
#: At most so many events at once.
AT_ONCE = 32

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _UnderWay:
    event: EventPlan
    run: str
    #: When it was over, and what came of it.
    future: Future[tuple[float, Mapping[str, Any], str | None]]


class Actions:
    """Those of one lab. ``restarts_asked``: how often each optical switch was killed on purpose."""

    def __init__(self, processes: LabProcesses, session: Session) -> None:
        self._processes, self._session, self._api = processes, session, session.api
        self._faults = FaultClient(processes.inventory["agent"])
        self.control = ControlNetwork(processes)
        self.restarts_asked: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="event")
        self._under_way: list[_UnderWay] = []
        self._broken = False
        #: Set when the run is over, so that what was killed comes back at once, and when the lab is.
        self._hurry, self._stop = threading.Event(), threading.Event()

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def begin(self, event: EventPlan, run: str, ids: Mapping[str, str]) -> ActionBegun:
        """``ids``: the controller's names of the jobs that have not ended, by theirs in the plan."""
        begun = ActionBegun(t=time.monotonic(), run=run, name=event.name, do=event.do, target=_text(event))
        if (switch := self._restarted_by(event)) is not None:
            self.restarts_asked[switch] += 1
        future = self._pool.submit(self._carry_out, event, dict(ids))
        self._under_way.append(_UnderWay(event, run, future))
        return begun

    def over(self) -> list[ActionEnded]:
        """The ends of those that are over since the last call."""
        done = [entry for entry in self._under_way if entry.future.done()]
        self._under_way = [entry for entry in self._under_way if entry not in done]
        return [_ended(entry) for entry in done]

    def settle(self, tend: Callable[[], None]) -> list[ActionEnded]:
        """The run is over: end what is under way and undo all that it broke. Raises BackendError.

        ``tend`` is called meanwhile.
        """
        self._hurry.set()
        # Only the server agent cannot be hurried: while it is gone nobody hears.
        patience_s = REGROUP_S + FAULT_S + max((e.event.back_after_s for e in self._under_way), default=0.0)
        deadline = time.monotonic() + patience_s
        late = {entry.future for entry in self._under_way}
        while late and time.monotonic() < deadline:
            _, late = wait(late, PAUSE_S)
            tend()
        if late:
            names = ", ".join(e.event.name for e in self._under_way if e.future in late)
            raise BackendError(f"event {names} is not over {patience_s:.0f} s after the run")
        ended = self.over()
        if self._broken:
            self._mend()
        self._hurry.clear()
        return ended

    def stop(self) -> None:
        """End all threads, whatever they are at."""
        self._hurry.set()
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)
        self._faults.close()

    # -- in the event's thread

    def _carry_out(
        self, event: EventPlan, ids: Mapping[str, str]
    ) -> tuple[float, Mapping[str, Any], str | None]:
        try:
            result, error = self._done(event, ids), None
        except Failures as failure:
            result, error = {}, str(failure)
            if (switch := self._restarted_by(event)) is not None:
                self.restarts_asked[switch] -= 1
        return time.monotonic(), result, error

    def _done(self, event: EventPlan, ids: Mapping[str, str]) -> Mapping[str, Any]:
        match event.do:
            case "regroup":
                return self._regroup([_known(ids, job) for job in event.jobs] or list(ids.values()))
            case "circuits":
                self._ask(lambda: self._session.set_circuits(event.circuits))
                return {"circuits": [list(pair) for pair in event.circuits]}
            case "disturb":
                faults = event.control or ControlFaults()
                self.control.tell(faults)
                return asdict(faults)
            case "cancel":
                assert event.target is not None
                job_id = _known(ids, event.target.names[0])
                self._ask(lambda: self._api.delete(f"/v1/jobs/{job_id}"))
                return {}
            case "kill" if event.target is not None and event.target.kind == "controller":
                return self._kill_controller(event.back_after_s)
            case _:
                return self._fault(event, ids)

    def _regroup(self, ids: list[str]) -> Mapping[str, Any]:
        deadline = time.monotonic() + REGROUP_S
        regroup_id = self._ask(lambda: self._session.begin_regroup(ids))
        while (found := self._ask(lambda: self._session.regroup_done(regroup_id))) is None:
            if time.monotonic() > deadline:
                raise BackendError(f"{regroup_id} was not done after {REGROUP_S:.0f} s")
            self._pause(PAUSE_S)
        return found

    def _kill_controller(self, absence_s: float) -> Mapping[str, Any]:
        self._processes.kill_controller()
        t_done = time.monotonic()
        self._hurry.wait(absence_s)
        if self._stop.is_set():
            raise BackendError("the lab is taken down")
        self._processes.let_controller_back()
        self._ask(lambda: self._api.get("/v1/health"))
        return {"t_done": t_done, "t_back": time.monotonic()}

    def _fault(self, event: EventPlan, ids: Mapping[str, str]) -> Mapping[str, Any]:
        target = event.target
        assert target is not None
        words = str(target)
        if target.kind == "worker":
            job, rank = target.names
            words = f"worker {_known(ids, job)} {rank}"
        returns = bool(event.back_after_s) or (event.do == "kill" and target.kind != "worker")
        back_after_s = event.back_after_s if returns else None
        # What is restored is over once it is back.
        returns |= event.do == "restore"
        self._broken = True
        if target.kind == "agent":
            self.control.leave_out(target.names[0])
        fault = self._ask(lambda: self._faults.ask(event.do, words, back_after_s=back_after_s))
        report = self._follow(fault, event.back_after_s, returns=returns)
        if target.kind == "agent":
            self.control.tell_again(target.names[0])
        return asdict(report)

    def _follow(self, fault: str, back_after_s: float, *, returns: bool) -> FaultReport:
        """A fault once it is in force, or over if it ``returns``."""
        deadline = time.monotonic() + back_after_s + FAULT_S
        hurried = False
        while True:
            report = self._ask(lambda: self._faults.fault(fault))
            if report.state == "failed":
                raise BackendError(str(report.error))
            if report.state == "over" or (report.state == "in force" and not returns):
                return report
            if self._hurry.is_set() and not hurried:
                hurried = True
                self._restore(report)
            if time.monotonic() > deadline:
                raise BackendError(
                    f"{report.do} {report.target}: still {report.state} when it should be over"
                )
            self._pause(PAUSE_S)

    def _restore(self, report: FaultReport) -> None:
        if report.target == "server agent":
            return
        try:
            self._ask(lambda: self._faults.restore(report.target))
        except FaultError as error:
            # It may just have come back by itself.
            if error.status != 409:
                raise

    def _mend(self) -> None:
        standing = [
            report for report in self._ask(self._faults.faults) if report.state in ("asked", "in force")
        ]
        for report in standing:
            self._restore(report)
            self._follow(report.id, 0.0, returns=True)
        self._processes.wait_healthy()
        self._broken = False

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        """``call()``, tried again while who is asked is away on purpose."""
        deadline = time.monotonic() + ANSWER_S
        while True:
            try:
                return call()
            except (Unreachable, FaultError) as error:
                if isinstance(error, FaultError) and error.status is not None:
                    raise
                if time.monotonic() > deadline and not self._processes.controller_away:
                    raise
            self._pause(PAUSE_S)

    def _pause(self, seconds: float) -> None:
        """Raises BackendError when the lab is taken down."""
        if self._stop.wait(seconds):
            raise BackendError("the lab is taken down")

    def _restarted_by(self, event: EventPlan) -> str | None:
        """The optical switch whose process the event ends, so that the testbed counts a restart."""
        target, switches = event.target, self._processes.setting.fabric.optical_switches
        if event.do != "kill" or target is None or target.kind != "switch":
            return None
        switch = switches.get(target.names[0])
        return None if switch is None or switch.driver == "openflow" else switch.name


def _known(ids: Mapping[str, str], job: str) -> str:
    if job not in ids:
        raise BackendError(f"job {job} does not run")
    return ids[job]


def _text(event: EventPlan) -> str:
    return str(event.target) if event.target is not None else ""


def _ended(entry: _UnderWay) -> ActionEnded:
    event = entry.event
    t, result, error = entry.future.result()
    return ActionEnded(
        t=t, run=entry.run, name=event.name, do=event.do, target=_text(event), result=result, error=error
    )
