"""Slurm in front of a simulated lab: its rule in virtual time, and nothing of its processes."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringlight.controller.circuits.planner import UNKNOWN_BYTES
from ringlight.experiments.backends.protocol import BackendError, BuiltLab
from ringlight.experiments.backends.simulation.fabric_now import FabricNow
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, When
from ringlight.experiments.record.events import (
    ENDED,
    ActionBegun,
    ActionEnded,
    GpusGranted,
    JobState,
    Record,
)
from ringlight.extensions.slurm.experiment_plan import slurm_of
from ringlight.extensions.slurm.experiment_records import (
    SlurmJob,
    SlurmLight,
    SlurmRule,
)
from ringlight.extensions.slurm.simulated_rule import (
    Choose,
    NodeRequest,
    Running,
    Started,
    backfilled,
    by_topology,
    in_turn,
    scheduling_of,
    without_topology,
)
from ringlight.fabric.cost import RingJob
from ringlight.fabric.parts import Port, canonical
from ringlight.fabric.placement import regroup

RULE = (
    "first in, first out, and backfill by time limits; nodes by select/cons_tres, in mode follow by "
    "topology/tree's best fit over leaf switches"
)
NOT_MODELLED = [
    "The phase of the scheduler's clock, which counts from the start of slurmctld; here it counts from the run's.",
    "That the end of a job sometimes calls the scheduler at once: here the next pass sees the free nodes.",
    "Differences between jobs in the time from nodes to first iteration, and from the last to free nodes.",
    "Backfill's resolution of time (bf_resolution), jobs that are refused, requeued or killed at their limit.",
    "A claim that the controller refuses: the run ends.",
]
_CLAIM = "claim-"


@dataclass(frozen=True)
class _Job:
    """A job that has nodes."""

    plan: JobPlan
    started: Started
    allocated_s: float
    by: str


class SimulatedSlurm:
    """Implement ``backends.protocol.BuiltLab``, with a queue of its own. ``lab``: simulates what jobs do."""

    real_time, own_queue = False, True

    def __init__(self, lab: BuiltLab) -> None:
        self._lab = lab

    # The contract.

    def now_s(self) -> float:
        return self._lab.now_s()

    def begin(self, plan: RunPlan) -> None:
        self._lab.begin(plan)
        self._plan, self._slurm = plan, slurm_of(plan)
        fabric = plan.setting.fabric
        self._nodes = tuple(fabric.gpus)
        self._light = FabricNow(fabric, plan.circuits)
        self._when = scheduling_of(self._slurm.parameters)
        self._records: list[Record] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ids: dict[str, int] = {}
        self._queue: dict[str, NodeRequest] = {}
        self._held: dict[str, _Job] = {}
        self._spanned: dict[str, list[str]] = {}
        self._claims: list[str] = []
        self._asked, self._ticks, self._called_s = False, False, -math.inf
        self._note(
            SlurmRule,
            mode=self._slurm.mode,
            rule=RULE,
            parameters=self._slurm.parameters,
            not_modelled=NOT_MODELLED,
        )
        self._note_light("the start")

    def submit(self, job: JobPlan) -> str | None:
        if job.gpus > len(self._nodes):
            raise BackendError(
                f"{self._plan.title}: job {job.name} asks for {job.gpus} nodes of {len(self._nodes)}"
            )
        options = self._slurm.request
        self._ids[job.name] = len(self._ids) + 1
        self._queue[job.name] = NodeRequest(
            job.name,
            job.gpus,
            self.now_s(),
            60.0 * options.minutes,
            options.switches,
            options.switches_wait_s,
        )
        self._ask()
        return None

    def release(self, jobs: Sequence[str]) -> None:
        self._lab.release(jobs)

    def perform(self, event: EventPlan) -> None:
        self._lab.perform(event)

    def next(self, until_s: float) -> Sequence[Record]:
        while True:
            due_s = min(until_s, self._due[0][0] if self._due else math.inf)
            records = [] if self._records else self._lab.next(due_s)
            for record in records:
                self._take(record)
            while self._due and self._due[0][0] <= self.now_s():
                heapq.heappop(self._due)[2]()
            if self._records:
                taken, self._records = self._records, []
                return sorted(taken, key=lambda record: record.t)
            if self.now_s() >= until_s or (not records and due_s == math.inf):
                return []

    def end(self) -> Sequence[Record]:
        return [*self._records, *self._lab.end()]

    def close(self) -> None:
        self._lab.close()

    # What happens.

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_s() + seconds, next(self._numbers), do))

    def _note(self, kind: type[Record], /, **fields: Any) -> None:
        self._records.append(kind(t=self.now_s(), run=self._plan.name, **fields))

    def _note_light(self, why: str) -> None:
        self._note(SlurmLight, on=dict(self._light.switch_of()), why=why)

    def _take(self, record: Record) -> None:
        if isinstance(record, ActionBegun | ActionEnded):
            if record.name.startswith(_CLAIM):
                if isinstance(record, ActionEnded):
                    self._claimed(record.name.removeprefix(_CLAIM), record.error)
                return
            if isinstance(record, ActionEnded) and record.error is None:
                self._follow(record)
        self._records.append(record)
        if isinstance(record, JobState) and record.state in ENDED:
            job = record.job
            self._note_end(job)
            self._after(self._slurm.ending_s, lambda: self._freed(job))

    def _follow(self, record: ActionEnded) -> None:
        """Take in light that an event moved; Slurm is told, and looks at its queue."""
        event = next(event for event in self._plan.events if event.name == record.name)
        plan = record.result.get("plan")
        if event.do == "circuits" or plan is not None:
            moved = event.circuits if plan is None else plan["circuits"]
            self._light.circuits = canonical((a, b) for a, b in moved)
            self._note_light(f"event {event.name}")
            self._ask()

    # The scheduler.

    def _ask(self) -> None:
        """Ask for the main scheduler, which the next tick calls."""
        self._asked = True
        self._keep_ticking()

    def _keep_ticking(self) -> None:
        if self._queue and not self._ticks:
            self._ticks = True
            tick_s = self._when.tick_s
            passed = self.now_s() / tick_s
            self._after((math.floor(passed + 1e-9) + 1 - passed) * tick_s, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        now_s, when = self.now_s(), self._when
        # Both threads begin with slurmctld; where they come together, backfill was first.
        if _comes(now_s, when.backfill_s, when.tick_s):
            self._backfill()
        called = self._asked and now_s - self._called_s >= when.delay_s - 1e-9
        if called or _comes(now_s, when.full_s, when.tick_s):
            self._asked, self._called_s = False, now_s
            self._schedule()
        self._keep_ticking()

    def _free(self) -> list[str]:
        busy = {node for job in self._held.values() for node in job.started.nodes}
        return [node for node in self._nodes if node not in busy]

    def _choose(self) -> Choose:
        mode = self._slurm.mode
        if mode == "lead":
            return without_topology(self._nodes)
        if mode == "stand":
            leaves = {"all": self._nodes}
        else:
            on = self._light.switch_of()
            leaves = {
                switch: tuple(node for node in self._nodes if on[node] == switch)
                for switch in self._plan.setting.fabric.packet_switches
            }
        return by_topology(self._nodes, leaves, self.now_s)

    def _schedule(self) -> None:
        """Do what the main scheduler does."""
        queue = list(self._queue.values())
        for started in in_turn(queue, self._free(), self._choose()):
            self._start(started, "main")

    def _backfill(self) -> None:
        running = [
            Running(
                frozenset(job.started.nodes),
                job.allocated_s + job.started.request.limit_s,
            )
            for job in self._held.values()
        ]
        queue = list(self._queue.values())
        for started in backfilled(
            queue, self._nodes, running, self._choose(), self.now_s()
        ):
            self._start(started, "backfill")

    # A job.

    def _start(self, started: Started, by: str) -> None:
        name = started.request.name
        del self._queue[name]
        self._held[name] = _Job(self._plan.job(name), started, self.now_s(), by)
        self._note(GpusGranted, job=name)
        if self._slurm.mode == "lead":
            self._after(self._slurm.claiming_s, lambda: self._claim(name))
        else:
            self._launch(name)

    def _claim(self, name: str) -> None:
        """Have light bring a job's GPUs together; one claim at a time."""
        self._claims.append(name)
        if len(self._claims) == 1:
            self._move(name)

    def _move(self, name: str) -> None:
        fabric, nodes = self._plan.setting.fabric, self._held[name].started.nodes
        now = [(Port.parse(a), Port.parse(b)) for a, b in self._light.circuits]
        ring = RingJob.all_reduce(name, nodes, float(UNKNOWN_BYTES), 0.0)
        plan = regroup(fabric, now, [ring], movable=[*self._free(), *nodes])
        if not plan.moved:
            self._claimed(name, None)
            return
        self._light.circuits = canonical((str(a), str(b)) for a, b in plan.circuits)
        self._lab.perform(
            EventPlan(
                f"{_CLAIM}{name}",
                When(),
                "circuits",
                circuits=tuple(self._light.circuits),
            )
        )
        self._note_light(f"claim of {name}")

    def _claimed(self, name: str, error: str | None) -> None:
        if error is not None:
            raise BackendError(f"{self._plan.title}: claim of job {name}: {error}")
        self._claims.remove(name)
        self._launch(name)
        if self._claims:
            self._move(self._claims[0])

    def _launch(self, name: str) -> None:
        job = self._held[name]
        on = self._light.switch_of()
        self._spanned[name] = sorted({str(on[node]) for node in job.started.nodes})
        placed = replace(
            job.plan, ranks=job.started.nodes, start_up_s=self._slurm.launch_s
        )
        if (why := self._lab.submit(placed)) is not None:
            raise BackendError(f"{self._plan.title}: job {name}: {why}")

    def _freed(self, name: str) -> None:
        del self._held[name]
        self._ask()

    def _note_end(self, name: str) -> None:
        job = self._held[name]
        request = job.started.request
        self._note(
            SlurmJob,
            job=name,
            id=self._ids[name],
            submitted=request.submitted_s,
            allocated=job.allocated_s,
            freed=self.now_s() + self._slurm.ending_s,
            by=job.by,
            nodes=list(job.started.nodes),
            switches=self._spanned[name],
            limit_s=request.limit_s,
        )


def _comes(now_s: float, every_s: float, tick_s: float) -> bool:
    """Return whether a multiple of a period lies within the tick that ends now."""
    return math.floor(now_s / every_s + 1e-9) > math.floor(
        (now_s - tick_s) / every_s + 1e-9
    )
