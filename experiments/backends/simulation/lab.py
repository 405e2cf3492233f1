"""One setting in virtual time. The clock begins at 0 with every run, so a run depends on no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.controller.errors import ConflictError
from ringlight.controller.jobs.reservation import JOB, Holder, reserve
from ringlight.experiments.backends.protocol import BackendError, TooLongError
from ringlight.experiments.backends.simulation.carriers import Carrier, carriers
from ringlight.experiments.backends.simulation.collectives import payload_part
from ringlight.experiments.backends.simulation.fabric_now import FabricNow, tuned
from ringlight.experiments.backends.simulation.light_moves import LightMoves
from ringlight.experiments.backends.simulation.losses import Losses
from ringlight.experiments.backends.simulation.passed_traffic import (
    Stillness,
    port_rates,
)
from ringlight.experiments.backends.simulation.regrouping import Change, change, plan_of
from ringlight.experiments.backends.simulation.varying_links import (
    VaryingLinks,
    down_time_out_s,
    moved_time_out_s,
)
from ringlight.experiments.backends.simulation.workloads import fidelity_of
from ringlight.experiments.language.light_events import light_events
from ringlight.experiments.language.plan import EventPlan, JobPlan, RunPlan, Setting
from ringlight.experiments.record.events import (
    ActionBegun,
    ActionEnded,
    Iteration,
    JobState,
    Record,
    Released,
)
from ringlight.fabric.cost import RingJob
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.parts import Port
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.steps import Steps
from ringlight.testbed.simulation.engine import Engine, TooManyEvents
from ringlight.testbed.simulation.jobs import Compute, Job, NetworkChange
from ringlight.testbed.simulation.networks import Network, scaled
from ringlight.testbed.simulation.simulation import Simulation

#: As the workers do, shorter times without a byte are not reported one by one, seconds.
STALL_S = 0.02
#: Why a job that was cancelled has ended.
_CANCELLED = "cancelled"
#: What passes the links is kept, for stalls and port rates, up to so many GPUs.
MOST_TRACED = 64


class SimulatedLab:
    """Implements ``backends.protocol.BuiltLab``. ``share``: payload's of a link's rate. ``count`` is told how
    many events each run took, and none may take more than ``most_events``."""

    real_time = own_queue = False

    def __init__(
        self,
        setting: Setting,
        share: float,
        latency_s: float,
        count: Callable[[int], None],
        most_events: float = math.inf,
    ) -> None:
        self._setting = setting
        self._share, self._latency_s = share, latency_s
        self._count, self._most_events = count, most_events
        self._profiles = {
            name: switch.device.dilated(setting.scale.time)
            for name, switch in setting.fabric.optical_switches.items()
        }
        self._rates = scaled(setting.fabric, setting.scale.rate)

    # The contract.

    def now_s(self) -> float:
        return self._engine.now_s

    def begin(self, plan: RunPlan) -> None:
        """Raises BackendError where a job has no way or no room on the fabric."""
        self._plan = plan
        self._records: list[Record] = []
        self._fabric = FabricNow(
            tuned(self._rates, plan, self._setting.scale), plan.circuits
        )
        #: Schedules, of which jobs that do the same have the same one.
        self._steps: dict[tuple[int, str, int], Steps] = {}
        fabric = self._fabric.whole
        first = plan.jobs[0].plane(fabric)
        traced = len(fabric.gpus) <= MOST_TRACED and carriers()[first.kind].traced
        self._engine = Engine(trace=traced, most_events=self._most_events)
        self._still = Stillness(self._engine) if traced else None
        self._carriers: dict[tuple[str, str], Carrier] = {}
        #: What the network is of: planes of all jobs are one, or all have their packets on the same links.
        self._carrier = self._carrier_of(first)
        self._ranks: dict[str, tuple[str, ...]] = {}
        self._flows_of: dict[str, Mapping[int, int]] = {}
        self._on: dict[str, Carrier] = {}
        self._moves = LightMoves()
        varying = any(
            effect.varies for link in fabric.links for effect in link.effects.values()
        )
        try:
            network = self._network()
            if any(
                job.workload is not None and fidelity_of(job) == "exact"
                for job in plan.jobs
            ):
                # They take the network's numbers of links for the engine's.
                for link, capacity in enumerate((network.capacity_bps / 8).tolist()):
                    self._engine.link(network.key(link), capacity)
            self._sim = Simulation(
                network,
                self._engine,
                gate=self._carrier.gate,
                progress=self._iteration_done,
                over=self._job_over,
                disturbed=bool(plan.events) or len(plan.jobs) > 1 or varying,
            )
            self._varying = VaryingLinks(self._setting, self._engine, self._sim)
            for fabric_link in fabric.links:
                self._varying.begin(fabric_link)
        except ValueError as error:
            raise BackendError(f"{plan.title}: {error}") from None
        self._losses = Losses(
            self._engine, self._sim, self._ranks, self._free, self._tell
        )

    def submit(self, job: JobPlan) -> str | None:
        try:
            ranks = self._place(job)
        except ConflictError as error:
            return str(error)
        except ValueError as error:
            raise BackendError(f"{self._plan.title}: job {job.name}: {error}") from None
        try:
            if job.workload is not None:
                run = self._carrier.workload_run(
                    job,
                    ranks,
                    self._sim.network,
                    self._tell,
                    disturbed=self._sim.disturbed,
                )
                self._sim.put(job.name, run)
            else:
                self._add(job, ranks)
        except ValueError as error:
            raise BackendError(f"{self._plan.title}: job {job.name}: {error}") from None
        self._ranks[job.name] = ranks
        ready: dict[str, Any] = {"job": job.name, "state": "READY", "gpus": [*ranks]}
        if job.start.at_once or not job.start_up_s:
            self._tell(JobState, **ready)
        else:
            self._engine.at(
                self.now_s() + job.start_up_s, lambda: self._tell(JobState, **ready)
            )
        return None

    def _carrier_of(self, plane: Plane) -> Carrier:
        key = (plane.kind, plane.name)
        if key not in self._carriers:
            self._carriers[key] = carriers()[plane.kind](
                plane,
                self._plan,
                self._engine,
                payload_part(self._plan, self._share),
                self._latency_s + self._plan.latency_s(plane),
                self._note,
                self._keep,
            )
        return self._carriers[key]

    def _add(self, job: JobPlan, ranks: tuple[str, ...]) -> None:
        """A job with a training loop. Raises ValueError."""
        carrier, loop = self._carrier_of(job.plane(self._fabric.whole, ranks)), job.loop
        key = id(carrier), loop.collective, len(ranks)
        if key not in self._steps:
            self._steps[key] = carrier.steps(loop.collective, len(ranks))
        steps = self._steps[key]
        made = Job(
            job.name,
            ranks,
            steps,
            loop.gradient_bytes,
            Compute(loop.compute_s, stragglers=job.stragglers),
            job.iterations,
            carrier.cost(),
            loop.synchronised,
        )
        self._sim.add(carrier.put(made, self._sim.network))
        self._on[job.name] = carrier
        self._flows_of[job.name] = carrier.requests(steps)

    def release(self, jobs: Sequence[str]) -> None:
        now_s = self.now_s()
        self._tell(Released, jobs=[*jobs], at=now_s)
        for name in jobs:
            self._tell(JobState, job=name, state="RUNNING", gpus=[*self._ranks[name]])
            self._sim.begin(name)
        self._varying.wake()

    def perform(self, event: EventPlan) -> None:
        self._tell(ActionBegun, **event.record_fields)
        try:
            self._do(event)
        except ValueError as error:
            self._over(event, error=str(error))
        self._varying.wake()

    def next(self, until_s: float) -> Sequence[Record]:
        if not self._records:
            try:
                self._sim.run(until_s)
            except TooManyEvents as error:
                raise TooLongError(f"{self._plan.title}: {error}") from None
            except ValueError as error:
                raise BackendError(f"{self._plan.title}: {error}") from None
        if not self._records and until_s == math.inf:
            self._sim.give_up()
        records, self._records = self._records, []
        return sorted(records, key=lambda record: record.t)

    def end(self) -> Sequence[Record]:
        if self._carrier.after_s:
            self._sim.run(self.now_s() + self._carrier.after_s)
        now_s, run = self.now_s(), self._plan.name
        if self._engine.passed is not None:
            switches, gpus = self._fabric.whole.packet_switches, self._fabric.whole.gpus
            self._records += port_rates(
                self._engine, switches, gpus, run, now_s, self._share
            )
        self._carrier.end(self._fabric.circuits)
        for carrier in carriers().values():
            self._records += carrier.records(self._fabric.whole, t=now_s, run=run)
        self._count(self._engine.events)
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        return None

    # What the fabric is.

    def _network(self) -> Network:
        """Return the network for transfers, from the fabric as it is lit and plugged now."""
        return self._carrier.network(self._fabric.plugged(), self._fabric.circuits)

    def _place(self, job: JobPlan) -> tuple[str, ...]:
        """GPUs for a job, chosen as the controller does. Raises ConflictError when there are none now."""
        holders, lost = self._holders(), self._losses.gpus
        if gone := next((gpu for gpu in job.ranks if gpu in lost), None):
            raise ConflictError(f"GPU {gone} is lost")
        plane = job.plane(self._fabric.whole)
        # What can never be is no conflict, which is over some day.
        if not job.ranks and plane.fit.place(job.gpus, plane.nodes) is not None:
            taken = {*holders, *lost}
            free = [node for node in plane.nodes if node not in taken]
            try:
                chosen = plane.fit.place(job.gpus, free)
            except ValueError as error:
                raise ConflictError(str(error)) from None
            assert chosen is not None
            return chosen
        switch_of, gpus = self._fabric.switch_of(), job.ranks or job.gpus
        return reserve(plane.nodes, holders, switch_of, gpus, out=lost)

    def _holders(self) -> dict[str, Holder]:
        """Return the job of each taken GPU."""
        jobs = ((Holder(JOB, name), self._held(name)) for name in self._ranks)
        return {gpu: job for job, gpus in jobs for gpu in gpus}

    def _held(self, name: str) -> tuple[str, ...]:
        """Return the GPUs that a job has now."""
        return () if self._sim.runs[name].over else self._ranks[name]

    # What happens.

    def _tell(
        self, kind: type[Record], /, t: float | None = None, **fields: Any
    ) -> None:
        self._note(
            kind(t=self.now_s() if t is None else t, run=self._plan.name, **fields)
        )

    def _note(self, record: Record) -> None:
        self._keep(record)
        self._engine.pause()

    def _keep(self, record: Record) -> None:
        self._records.append(record)

    def _iteration_done(self, job: str, index: int, now_s: float) -> None:
        ranks = self._ranks[job]
        iteration = self._sim.loop(job).result.iterations[-1]
        columns = (
            iteration.begin_s.tolist(),
            iteration.computed_s.tolist(),
            iteration.end_s.tolist(),
        )
        still = self._still if self._on[job].stalls else None
        for rank, (begin_s, computed_s, end_s) in enumerate(zip(*columns, strict=True)):
            stalls = (
                still.stalls(ranks[rank], computed_s, end_s)
                if still is not None
                else []
            )
            self._tell(
                Iteration,
                t=end_s,
                job=job,
                rank=rank,
                i=index,
                compute_start=begin_s,
                compute_end=computed_s,
                allreduce_end=end_s,
                max_stall_s=max((b - a for a, b in stalls), default=0.0),
                stalls=[[a, b] for a, b in stalls if b - a >= STALL_S],
                flows=self._flows_of[job].get(rank, 0),
            )
        if self._still is not None:
            self._still.forget(ranks, float(iteration.end_s.min()))
        self._carrier.iterated(self._sim, job, index, float(iteration.computed_s.max()))

    def _job_over(self, job: str) -> None:
        failed = self._sim.loop(job).result.failed
        state = {None: "SUCCEEDED", _CANCELLED: "CANCELLED"}.get(failed, "FAILED")
        gpus = [*self._ranks[job]]
        self._tell(JobState, job=job, state=state, gpus=gpus, reason=failed)

    # What is made to happen.

    def _over(
        self,
        event: EventPlan,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        self._tell(ActionEnded, **event.record_fields, result=result or {}, error=error)

    def _do(self, event: EventPlan) -> None:
        target = event.target
        match event.do, target and target.kind:
            case "regroup", _:
                self._regroup(event)
            case "circuits", _:
                self._move_light(event, self._relit(event.circuits), {})
            case do, _ if do in light_events():
                state = self._fabric, self._holders(), self._losses.gpus
                after = self._moves.circuits(event, *state)
                self._move_light(event, self._relit(after, apart=True), None)
            case "cancel", _:
                assert target is not None
                self._check_runs(target.names[0])
                self._sim.stop(target.names[0], _CANCELLED)
                self._over(event)
            case _ if event.effects:
                assert target is not None
                self._affect(target.names, event.effects)
                self._over(event)
            case "restore", "link" if (
                not self._fabric.ends_of("link", target.names if target else ())
                & self._fabric.cut
            ):
                assert target is not None
                self._affect(target.names, {})
                self._over(event)
            case ("cut", _) | ("restore", _) | ("lose", "nic"):
                assert target is not None
                ends = self._fabric.ends_of(target.kind, target.names)
                if event.do == "restore":
                    self._restore(ends)
                else:
                    self._fabric.cut |= ends
                    self._replug()
                self._over(event)
            case ("lose", _) | (_, "worker"):
                self._lose(event)
            case "kill", _:
                self._kill_switch(event)

    def _check_runs(self, job: str) -> None:
        """Raises ValueError, as an emulation says it."""
        if job not in self._ranks or self._sim.runs[job].over:
            raise ValueError(f"job {job} does not run")

    def _restore(self, ends: set[frozenset[Port]]) -> None:
        """Let links carry something again. TCP finds out by its time-outs."""
        self._fabric.cut -= ends
        links = self._fabric.links_between(ends)
        self._replug(down_time_out_s(self._setting, links) if links else None)

    def _replug(self, time_out_s: float | None = None) -> None:
        """Links went or came; what has no way stands still until it has one."""
        now_s, network = self.now_s(), self._network()
        self._change(NetworkChange(now_s, network, 0.0, True, time_out_s))

    def _change(self, change: NetworkChange) -> None:
        self._sim.happen(replace(change, cut=self._fabric.cut_words()))
        self._varying.settle()

    def _affect(self, names: Sequence[str], effects: Effects) -> None:
        """Set what a link does to frames from now on, besides or in place of what the fabric states."""
        ends = frozenset(Port.parse(name) for name in names)
        link = self._fabric.affect(ends, effects)
        self._varying.end(ends)
        self._replug()
        self._varying.begin(link)

    def _kill_switch(self, event: EventPlan) -> None:
        """The light of an optical switch stays; through a packet switch nothing goes until it is back."""
        assert event.target is not None
        name = event.target.names[0]
        mine = (
            self._fabric.ends_of("switch", (name,)) - self._fabric.cut
            if name in self._fabric.whole.packet_switches
            else set()
        )
        self._fabric.cut |= mine
        if mine:
            self._replug()

        def back() -> None:
            if mine:
                self._restore(mine)
            self._over(event)

        self._engine.at(self.now_s() + event.back_after_s, back)

    def _lose(self, event: EventPlan) -> None:
        assert event.target is not None
        gpu = event.target.names[0]
        if event.target.kind == "worker":
            job, rank = event.target.names
            self._check_runs(job)
            gpu = self._ranks[job][int(rank)]
        else:
            self._losses.gpus.add(gpu)
        names = [name for name, ranks in self._ranks.items() if gpu in ranks]
        lost_by = self._plan.job(names[0]) if names else None
        self._losses.lose(gpu, lost_by, self._carrier.plane.nodes)
        self._over(event)

    def _free(self, gpus: Collection[str]) -> list[str]:
        """Return those of some GPUs that no job has, and that are not lost."""
        taken = self._holders().keys() | self._losses.gpus
        return [gpu for gpu in gpus if gpu not in taken]

    def _regroup(self, event: EventPlan) -> None:
        """Regroup the jobs that run or are to be released, starting from the circuits that are lit now."""
        jobs = [
            RingJob.all_reduce(
                job.name,
                self._ranks[job.name],
                float(job.loop.gradient_bytes),
                job.loop.compute_s,
            )
            for job in self._plan.jobs
            if job.name in self._ranks
            and not self._sim.runs[job.name].over
            and (not event.jobs or job.name in event.jobs)
        ]
        circuits, document = plan_of(self._fabric.whole, self._fabric.circuits, jobs)
        self._move_light(event, self._relit(circuits), document)

    def _relit(
        self, circuits: Sequence[tuple[str, str]], apart: bool = False
    ) -> Change:
        """Return the change to these circuits. Raises ValueError."""
        now = self._fabric
        return change(now.whole, self._profiles, now.circuits, circuits, apart)

    def _move_light(
        self, event: EventPlan, made: Change, document: Mapping[str, Any] | None
    ) -> None:
        begin_s, result = self.now_s(), dict[str, Any]()
        if document is not None:
            result = {**document, **made.outcome(event.name, begin_s)}

        def moved() -> None:
            self._fabric.circuits = made.circuits
            patient = bool(self._fabric.cut)
            lit_links = self._fabric.links_at(self._profiles)
            time_out_s = moved_time_out_s(self._setting, lit_links)
            self._change(
                NetworkChange(
                    self.now_s(), self._network(), made.dark_s, patient, time_out_s
                )
            )

        self._engine.at(begin_s + made.command_s, moved)
        end_s = begin_s + made.command_s + made.dark_s
        self._engine.at(end_s, lambda: self._over(event, result))
