"""Carries out the events of a run's timeline, each in a thread of its own: jobs are watched meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any, TypeVar

from ringlight.experiments.backends.emulation.rest import (
    Refusals,
    ending_runs,
    set_circuits,
)
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.client import Api, Unreachable
from ringlight.experiments.language.light_events import LightEvent, light_events
from ringlight.experiments.language.plan import EventPlan, RunPlan
from ringlight.experiments.record.events import ActionBegun, ActionEnded
from ringlight.fabric.control_faults import ControlFaults
from ringlight.testbed.faults import FaultClient, FaultError, FaultReport
from ringlight.testbed.processes import LabProcesses

#: Deadlines in seconds: an answer, a regroup, a fault that comes about or is over.
ANSWER_S, REGROUP_S, FAULT_S = 30.0, 60.0, 45.0
#: Between two looks at something that is awaited.
PAUSE_S = 0.03
#: At most so many events at once.
AT_ONCE = 32

Answer = TypeVar("Answer")


class Actions:
    """Carries out the events of one lab.

    ``ids``: the controller's names of the jobs that have not ended, by the plan's.
    """

    def __init__(self, processes: LabProcesses, api: Api, faults: FaultClient) -> None:
        self._processes, self._api, self._faults = processes, api, faults
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="event")
        self._under_way: set[Future[ActionEnded]] = set()
        self._plan: RunPlan | None = None
        self._broken = False
        #: Kinds and targets of events that may have moved light, to be undone before the next run.
        self._moved: list[tuple[LightEvent, Sequence[str]]] = []
        #: Whether the controller is killed on purpose just now.
        self._controller_away = False
        #: Set when the run is over, so that what was killed comes back at once, and when the lab is.
        self._hurry, self._stop = threading.Event(), threading.Event()

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def move_back(self) -> None:
        """Undo what events of extensions did to light in the run before. Raises BackendError."""
        while self._moved:
            kind, names = self._moved.pop()
            with ending_runs((ValueError,)):
                kind.undo(self._api, names)

    def begin(self, plan: RunPlan) -> None:
        """Have the O-NICs' agents do from now on as a run has it. Raises BackendError, FaultError."""
        self._plan = plan
        if plan.setting.onic_faults:
            self._disturb(plan.control)

    def perform(self, event: EventPlan, ids: Mapping[str, str]) -> ActionBegun:
        assert self._plan is not None
        begun = ActionBegun(
            t=time.monotonic(), run=self._plan.name, **event.record_fields
        )
        self._under_way.add(
            self._pool.submit(self._carry_out, event, self._plan.name, dict(ids))
        )
        return begun

    def over(self) -> list[ActionEnded]:
        """Return the ends of the actions that have ended since the last call."""
        done = {future for future in self._under_way if future.done()}
        self._under_way -= done
        return [future.result() for future in done]

    def settle(self, tend: Callable[[], None]) -> list[ActionEnded]:
        """End what is in progress after the run, and undo all faults. Return the ends of the actions.

        ``tend`` is called while actions end. Raises BackendError.
        """
        self._hurry.set()
        # Each has deadlines of its own.
        while wait(self._under_way, PAUSE_S).not_done:
            tend()
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

    # -- in the event's thread

    def _carry_out(
        self, event: EventPlan, run: str, ids: Mapping[str, str]
    ) -> ActionEnded:
        result: Mapping[str, Any] = {}
        error = None
        try:
            result = self._done(event, ids)
        except (BackendError, *Refusals) as failure:
            error = str(failure)
        return ActionEnded(
            t=time.monotonic(),
            run=run,
            result=result,
            error=error,
            **event.record_fields,
        )

    def _done(self, event: EventPlan, ids: Mapping[str, str]) -> Mapping[str, Any]:
        """Carry out an event, wait for its end, and return its result."""
        target = event.target
        match event.do, target and target.kind:
            case "regroup", _:
                return self._regroup([_known(ids, job) for job in event.jobs])
            case "circuits", _:
                self._ask(lambda: set_circuits(self._api, event.circuits))
                return {"circuits": [list(pair) for pair in event.circuits]}
            case do, _ if do in light_events():
                assert target is not None
                return self._move_light(light_events()[do], target.names)
            case "disturb", _:
                return asdict(self._disturb(event.control or ControlFaults()))
            case _ if event.effects:
                effects = {key: asdict(effect) for key, effect in event.effects.items()}  # type: ignore[call-overload]
                return asdict(self._fault(event.do, str(target), **effects))
            case "cancel", _:
                assert target is not None
                job_id = _known(ids, target.names[0])
                self._ask(lambda: self._api.delete(f"/v1/jobs/{job_id}"))
                return {}
            case "kill", "controller":
                self._controller_away = True
                try:
                    return asdict(self._fault("kill", "controller", event.back_after_s))
                finally:
                    self._controller_away = False
            case "kill", "worker":
                assert target is not None
                job, rank = target.names
                return asdict(self._fault("kill", f"worker {_known(ids, job)} {rank}"))
            case "restore", _:
                ended = self._ask(lambda: self._faults.restore(str(target)))
                return asdict(self._follow(self._report(ended), 0.0, "over"))
            case _:
                returns = (
                    event.back_after_s
                    if event.back_after_s or event.do == "kill"
                    else None
                )
                return asdict(self._fault(event.do, str(target), returns))

    def _regroup(self, ids: list[str]) -> Mapping[str, Any]:
        # Which jobs run, where none is named, is known there: here one may seem to that has just ended.
        body = {"jobs": ids or None, "dry_run": False}
        reply: dict[str, Any] = self._ask(lambda: self._api.post("/v1/regroup", body))
        deadline = time.monotonic() + REGROUP_S
        while reply["state"] in ("PLANNED", "APPLYING"):
            if time.monotonic() > deadline:
                raise BackendError(
                    f"{reply['id']} was not done after {REGROUP_S:.0f} s"
                )
            self._pause()
            path = f"/v1/regroup/{reply['id']}"
            reply = self._ask(lambda: self._api.get(path))  # noqa: B023
        if reply["state"] == "FAILED":
            raise BackendError(f"{reply['id']} failed: {reply.get('error')}")
        return reply

    def _move_light(self, kind: LightEvent, names: Sequence[str]) -> Mapping[str, Any]:
        # A move that fails may still have moved light.
        self._moved.append((kind, names))
        with ending_runs((ValueError,)):
            return self._ask(lambda: kind.move(self._api, names))

    # -- faults

    def _disturb(self, control: ControlFaults) -> FaultReport:
        assert self._plan is not None
        settings = {**asdict(control), "tuning_s": dict(self._plan.tuning_s)}
        return self._fault("disturb", "control network", control=settings)

    def _fault(
        self, do: str, target: str, back_after_s: float | None = None, **more: Any
    ) -> FaultReport:
        """A fault once it is in force, or over if it is to be back by itself."""
        self._broken = True
        reply = self._ask(
            lambda: self._faults.ask(do, target, back_after_s=back_after_s, **more)
        )
        until = ("over",) if back_after_s is not None else ("in force", "over")
        return self._follow(self._report(reply), back_after_s or 0.0, *until)

    def _report(self, fault: str) -> FaultReport:
        return self._ask(lambda: self._faults.fault(fault))

    def _follow(
        self, report: FaultReport, back_after_s: float, *until: str
    ) -> FaultReport:
        deadline = time.monotonic() + back_after_s + FAULT_S
        hurried = False
        while report.state not in until:
            if report.state == "failed":
                raise BackendError(str(report.error))
            if self._hurry.is_set() and not hurried:
                hurried = True
                self._restore(report)
            if time.monotonic() > deadline:
                raise BackendError(
                    f"{report.do} {report.target}: still {report.state} when it should be over"
                )
            self._pause()
            report = self._report(report.id)
        return report

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
        for report in self._ask(self._faults.faults):
            if report.state in ("asked", "in force"):
                self._follow(report, 0.0, "over")
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
                if time.monotonic() > deadline and not self._controller_away:
                    raise
            self._pause()

    def _pause(self) -> None:
        """Raises BackendError when the lab is taken down."""
        if self._stop.wait(PAUSE_S):
            raise BackendError("the lab is taken down")


def _known(ids: Mapping[str, str], job: str) -> str:
    if job not in ids:
        raise BackendError(f"job {job} does not run")
    return ids[job]
