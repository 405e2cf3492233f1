"""One setting in virtual time. The clock begins at 0 with every run, so a run depends on no other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ringlight.controller.errors import ConflictError
from ringlight.controller.jobs.reservation import reserve
from ringlight.experiments.backends.protocol import BackendError, TooLongError
from ringlight.experiments.backends.simulation.carriers import Carrier, carriers
from ringlight.experiments.backends.simulation.collectives import payload_part
from ringlight.experiments.backends.simulation.passed_traffic import (
    Stillness,
    port_rates,
)
from ringlight.experiments.backends.simulation.regrouping import Change, change, light
from ringlight.experiments.backends.simulation.workloads import fidelity_of
from ringlight.experiments.language.plan import (
    EventPlan,
    JobPlan,
    OnLoss,
    RunPlan,
    Setting,
)
from ringlight.experiments.record.events import (
    ActionBegun,
    ActionEnded,
    Iteration,
    JobRecovered,
    JobState,
    Record,
    Released,
    WorkerLost,
)
from ringlight.fabric.cost import RingJob
from ringlight.fabric.keys import slowed_parts
from ringlight.fabric.link_effects import Effects, dilated
from ringlight.fabric.parts import Link, Port, canonical
from ringlight.fabric.placement import regroup
from ringlight.fabric.planes.base import Plane
from ringlight.fabric.steps import Steps
from ringlight.fabric.topology import Fabric, electrical_graph
from ringlight.testbed.simulation.engine import Engine, TooManyEvents
from ringlight.testbed.simulation.jobs import Compute, GpuLost, Job, NetworkChange
from ringlight.testbed.simulation.link_courses import LinkCourse, Passage
from ringlight.testbed.simulation.networks import (
    Network,
    PacketNetwork,
    scaled,
    without_link,
)
from ringlight.testbed.simulation.simulation import Simulation

#: As the workers do, shorter times without a byte are not reported one by one, seconds.
STALL_S = 0.02
#: Seconds from the loss of a GPU until its job goes on, where a file gives no ``recovery``: medians of twenty
#: losses each, eight with a spare that is only free (``benchmarks.swap``, Docker, two processors). It is the
#: software's own time, from the event to the start of the next iteration, and taken as the same for every D.
RECOVERY_S: Mapping[OnLoss, float] = {"swap": 0.42, "shrink": 0.14}
#: The same with a spare that the job names, whose worker waits for it.
NAMED_SPARE_S = 0.18
#: What passes the links is kept, for stalls and port rates, up to so many GPUs.
MOST_TRACED = 64
#: Round trip of a worker's connection that its own link holds up, seconds: it has at most 20 ms of that under
#: way. Of 80 emulated jobs beside moved light most had medians of 8 to 18 ms
#: (runs drawn from seed 20261129).
ROUND_TRIP_S = 0.015


class SimulatedLab:
    """Implements ``backends.protocol.BuiltLab``. ``share``: payload's of a link's rate. ``count`` is told how
    many events each run took, and none may take more than ``most_events``."""

    real_time = False

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
        self._fabric = self._tuned(plan)
        self._cut: set[frozenset[Port]] = set()
        #: What changes links by itself, by their ends.
        self._courses: dict[frozenset[Port], list[LinkCourse]] = {}
        self._circuits = canonical(plan.circuits)
        #: Schedules, of which jobs that do the same have the same one.
        self._steps: dict[tuple[int, str, int], Steps] = {}
        #: The switch of each GPU, on this fabric with these circuits.
        self._switches: tuple[Fabric, object, dict[str, str | None]] | None = None
        first = plan.jobs[0].plane(self._fabric)
        traced = len(self._fabric.gpus) <= MOST_TRACED and carriers()[first.kind].traced
        self._engine = Engine(trace=traced, most_events=self._most_events)
        self._still = Stillness(self._engine) if traced else None
        self._carriers: dict[tuple[str, str], Carrier] = {}
        #: What the network is of: planes of all jobs are one, or all have their packets on the same links.
        self._carrier = self._carrier_of(first)
        self._ranks: dict[str, tuple[str, ...]] = {}
        self._lost_gpus: set[str] = set()
        self._seen_losses: dict[str, int] = {}
        self._flows_of: dict[str, Mapping[int, int]] = {}
        self._on: dict[str, Carrier] = {}
        varying = any(
            effect.varies
            for link in self._fabric.links
            for effect in link.effects.values()
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
            for fabric_link in self._fabric.links:
                self._begin_courses(fabric_link)
        except ValueError as error:
            raise BackendError(f"{plan.title}: {error}") from None

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
        carrier, loop = self._carrier_of(job.plane(self._fabric, ranks)), job.loop
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
        self._flows_of[job.name] = carrier.asked(steps)

    def release(self, jobs: Sequence[str]) -> None:
        now_s = self.now_s()
        self._tell(Released, jobs=[*jobs], at=now_s)
        for name in jobs:
            self._tell(JobState, job=name, state="RUNNING", gpus=[*self._ranks[name]])
            self._sim.begin(name)
        self._wake()

    def perform(self, event: EventPlan) -> None:
        self._tell(ActionBegun, **event.told)
        try:
            self._do(event)
        except ValueError as error:
            self._over(event, error=str(error))
        self._wake()

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
            switches, gpus = self._fabric.packet_switches, self._fabric.gpus
            self._records += port_rates(
                self._engine, switches, gpus, run, now_s, self._share
            )
        self._carrier.end(self._circuits)
        for carrier in carriers().values():
            self._records += carrier.records(self._fabric, t=now_s, run=run)
        self._count(self._engine.events)
        records, self._records = self._records, []
        return records

    def close(self) -> None:
        return None

    # What the fabric is.

    def _tuned(self, plan: RunPlan) -> Fabric:
        """Return the fabric at the emulation's rates and tuning times."""
        onics = {
            name: replace(
                onic,
                tuning_s=plan.tuning_s.get(
                    name, onic.tuning_s * self._setting.scale.time
                ),
            )
            for name, onic in self._rates.onics.items()
        }
        scale = self._setting.scale
        parts = slowed_parts(self._rates, scale.time, scale.rate)
        links = tuple(
            replace(link, effects=dilated(link.effects, scale.time))
            if link.effects
            else link
            for link in self._rates.links
        )
        return replace(self._rates, onics=onics, parts=parts, links=links)

    def _network(self) -> Network:
        """Return the network for transfers, from the fabric as it is lit and plugged now."""
        fabric = self._fabric
        for ends in self._cut:
            fabric = without_link(fabric, next(iter(ends)))
        return self._carrier.network(fabric, self._circuits)

    def _place(self, job: JobPlan) -> tuple[str, ...]:
        """GPUs for a job, chosen as the controller does. Raises ConflictError when there are none now."""
        holders = {gpu: name for name in self._ranks for gpu in self._held(name)}
        if lost := next((gpu for gpu in job.ranks if gpu in self._lost_gpus), None):
            raise ConflictError(f"GPU {lost} is lost")
        holders |= dict.fromkeys(self._lost_gpus, "none")
        plane = job.plane(self._fabric)
        # What can never be is no conflict, which is over some day.
        if not job.ranks and plane.fit.place(job.gpus, plane.nodes) is not None:
            try:
                chosen = plane.fit.place(
                    job.gpus, [node for node in plane.nodes if node not in holders]
                )
            except ValueError as error:
                raise ConflictError(str(error)) from None
            assert chosen is not None
            return chosen
        return reserve(plane.nodes, holders, self._switch_of(), job.ranks or job.gpus)

    def _held(self, name: str) -> tuple[str, ...]:
        """Return the GPUs that a job has now."""
        return () if self._sim.runs[name].over else self._ranks[name]

    def _switch_of(self) -> dict[str, str | None]:
        """Return the packet switch that each GPU is lit to now, by GPU."""
        known = self._switches
        if known is None or known[0] is not self._fabric or known[1] != self._circuits:
            graph = electrical_graph(self._fabric, light(self._fabric, self._circuits))
            switches = self._fabric.packet_switches
            ports = {
                gpu: next((head for head in graph.heads(gpu) if head in switches), None)
                for gpu in self._fabric.gpus
            }
            known = self._switches = (self._fabric, self._circuits, ports)
        return known[2]

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
            times = {
                "compute_start": begin_s,
                "compute_end": computed_s,
                "allreduce_end": end_s,
            }
            times["max_stall_s"] = max((b - a for a, b in stalls), default=0.0)
            long = [[a, b] for a, b in stalls if b - a >= STALL_S]
            flows = self._flows_of[job].get(rank, 0)
            self._tell(
                Iteration,
                t=end_s,
                job=job,
                rank=rank,
                i=index,
                **times,
                stalls=long,
                flows=flows,
            )
        if self._still is not None:
            self._still.forget(ranks, float(iteration.end_s.min()))
        self._carrier.iterated(self._sim, job, index, float(iteration.computed_s.max()))

    def _job_over(self, job: str) -> None:
        failed = self._sim.loop(job).result.failed
        state = (
            "SUCCEEDED"
            if failed is None
            else "CANCELLED"
            if failed == _CANCELLED
            else "FAILED"
        )
        self._tell(
            JobState, job=job, state=state, gpus=[*self._ranks[job]], reason=failed
        )

    # What is made to happen.

    def _over(
        self,
        event: EventPlan,
        result: Mapping[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        self._tell(ActionEnded, **event.told, result=result or {}, error=error)

    def _do(self, event: EventPlan) -> None:
        target = event.target
        match event.do, target and target.kind:
            case "regroup", _:
                self._regroup(event)
            case "circuits", _:
                made = change(
                    self._fabric, self._profiles, self._circuits, event.circuits
                )
                self._move_light(event, made, {})
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
                not self._ends_of("link", target.names if target else ()) & self._cut
            ):
                assert target is not None
                self._affect(target.names, {})
                self._over(event)
            case ("cut", _) | ("restore", _) | ("lose", "nic"):
                assert target is not None
                ends = self._ends_of(target.kind, target.names)
                self._cut = (
                    self._cut - ends if event.do == "restore" else self._cut | ends
                )
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

    def _ends_of(self, kind: str, names: tuple[str, ...]) -> set[frozenset[Port]]:
        """The links that are meant, by their two ends."""
        links = {frozenset((link.a, link.b)) for link in self._fabric.links}
        if kind == "link":
            return {frozenset(Port.parse(name) for name in names)} & links
        return {ends for ends in links if any(port.node == names[0] for port in ends)}

    def _replug(self) -> None:
        """Links went or came; what has no way stands still until it has one."""
        self._change(NetworkChange(self.now_s(), self._network(), patient=True))

    def _change(self, change: NetworkChange) -> None:
        self._sim.happen(change)
        self._settle()

    def _settle(self) -> None:
        for course in itertools.chain.from_iterable(self._courses.values()):
            course.settle()

    def _wake(self) -> None:
        for course in itertools.chain.from_iterable(self._courses.values()):
            course.wake()

    def _affect(self, names: Sequence[str], effects: Effects) -> None:
        """Set what a link does to frames from now on, besides or in place of what the fabric states."""
        ends = frozenset(Port.parse(name) for name in names)
        own = next(
            link
            for link in self._tuned(self._plan).links
            if frozenset((link.a, link.b)) == ends
        )
        now = replace(own, effects={**own.effects, **effects})
        links = tuple(
            now if frozenset((link.a, link.b)) == ends else link
            for link in self._fabric.links
        )
        self._fabric = replace(self._fabric, links=links)
        for course in self._courses.pop(ends, ()):
            course.end()
        self._replug()
        self._begin_courses(now)

    def _begin_courses(self, link: Link) -> None:
        """Let a link change by itself from now on, where it does."""
        varying = [effect for effect in link.effects.values() if effect.varies]
        if not varying:
            return
        ends = frozenset((link.a, link.b))

        def passing() -> list[tuple[int, float]]:
            network = self._sim.network
            assert isinstance(network, PacketNetwork)
            local = network.over(ends)
            rates = (float(network.capacity_bps[number]) / 8 for number in local)
            return list(zip(self._sim.links(local), rates, strict=True))

        passage = Passage(self._engine, passing, self._time_out_s(link), self._settle)
        self._courses[ends] = [effect.course(passage) for effect in varying]

    def _time_out_s(self, link: Link) -> float:
        """TCP's time-out over a link, seconds of the emulation, as if the queue in front of it were full."""
        full_s = self._setting.tcp.rto_min + link.queue_s
        return 2 * link.delay_s + full_s * self._setting.scale.time

    def _moved_time_out_s(self, link: Link) -> float:
        """TCP's time-out over a link of an optical switch, seconds of the emulation.

        A GPU's own link is in front of it, so nothing else fills a queue there.
        """
        rto_min_s = self._setting.tcp.rto_min * self._setting.scale.time
        return rto_min_s + ROUND_TRIP_S + 2 * link.delay_s

    def _kill_switch(self, event: EventPlan) -> None:
        """The light of an optical switch stays; through a packet switch nothing goes until it is back."""
        assert event.target is not None
        name = event.target.names[0]
        mine = (
            self._ends_of("switch", (name,)) - self._cut
            if name in self._fabric.packet_switches
            else set()
        )
        self._cut |= mine
        if mine:
            self._replug()

        def back() -> None:
            self._cut -= mine
            if mine:
                self._replug()
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
            self._lost_gpus.add(gpu)
        job_plan = next(
            (
                self._plan.job(name)
                for name, ranks in self._ranks.items()
                if gpu in ranks
            ),
            None,
        )
        then = job_plan.on_loss if job_plan is not None else "fail"
        spare = (
            self._spare(job_plan) if then == "swap" and job_plan is not None else None
        )
        if then == "swap" and spare is None:
            then = "fail"
        assumed_s = None
        if job_plan is not None and job_plan.recovery_s is None:
            assumed_s = (
                NAMED_SPARE_S if spare in job_plan.spares else RECOVERY_S.get(then)
            )
        recovery_s = (
            assumed_s or (job_plan.recovery_s if job_plan is not None else None) or 0.0
        )
        before = dict(self._ranks)
        self._sim.happen(GpuLost(self.now_s(), gpu, then, spare, recovery_s))
        for name, ranks in before.items():
            result = self._sim.loop(name).result
            if len(result.losses) <= self._seen_losses.get(name, 0):
                continue
            loss = result.losses[-1]
            self._seen_losses[name] = len(result.losses)
            self._ranks[name] = loss.ranks
            self._tell(
                WorkerLost, job=name, rank=ranks.index(gpu), gpu=gpu, reason="lost"
            )
            resumed_s, fields = (
                loss.resumed_s,
                {"job": name, "iteration": loss.iteration, "gpus": [*loss.ranks]},
            )
            recovered = partial(
                self._tell,
                JobRecovered,
                t=resumed_s,
                at=resumed_s,
                assumed_s=assumed_s,
                **fields,
            )
            self._engine.at(resumed_s, recovered)
        self._over(event)

    def _spare(self, job: JobPlan) -> str | None:
        """Return the GPU that replaces a lost one: the first free one of the job's spares, or of all."""
        taken = {gpu for name in self._ranks for gpu in self._held(name)}
        free = [
            gpu
            for gpu in job.spares or self._carrier.plane.nodes
            if gpu not in taken | self._lost_gpus
        ]
        return free[0] if free else None

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
        now = [(Port.parse(a), Port.parse(b)) for a, b in self._circuits]
        plan = regroup(self._fabric, now, jobs)
        circuits = canonical([(str(a), str(b)) for a, b in plan.circuits])
        made = change(self._fabric, self._profiles, self._circuits, circuits)
        document = {**plan.document(), "circuits": [list(pair) for pair in circuits]}
        self._move_light(
            event, made, {"jobs": [job.name for job in jobs], "plan": document}
        )

    def _move_light(
        self, event: EventPlan, made: Change, document: Mapping[str, Any]
    ) -> None:
        begin_s = self.now_s()
        result = {
            "id": f"simulated-{event.name}",
            "state": "DONE",
            "dry_run": False,
            "problems": [],
            "error": None,
            **document,
            **made.timeline(begin_s),
        }

        def moved() -> None:
            self._circuits = made.circuits
            patient = bool(self._cut)
            lit_links = [
                link
                for link in self._fabric.links
                if {link.a.node, link.b.node} & {*self._profiles}
            ]
            time_out_s = max(
                (self._moved_time_out_s(link) for link in lit_links), default=None
            )
            self._change(
                NetworkChange(
                    self.now_s(), self._network(), made.dark_s, patient, time_out_s
                )
            )

        self._engine.at(begin_s + made.command_s, moved)
        end_s = begin_s + made.command_s + made.dark_s
        self._engine.at(end_s, lambda: self._over(event, result))


#: Why a job that was cancelled has ended.
_CANCELLED = "cancelled"
