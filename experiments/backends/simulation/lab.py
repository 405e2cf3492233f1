"""One setting in virtual time. The clock begins at 0 with every run, so a run depends on no other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ringlight.controller.errors import ConflictError
from ringlight.controller.jobs.reservation import reserve
from ringlight.controller.onic.protocol import Finished, Times
from ringlight.experiments.analysis.prediction import declared_set_up_s
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.regrouping import (
    Change,
    change,
    light,
    plan_document,
    plan_regroup,
)
from ringlight.experiments.backends.simulation.traffic import Stillness, port_rates
from ringlight.experiments.backends.simulation.workloads import WorkloadRun, demand_of_jobs, how
from ringlight.experiments.language.plan import EventPlan, JobPlan, OnLoss, RunPlan, Setting
from ringlight.experiments.record.events import (
    ActionBegun,
    ActionEnded,
    Circuits,
    Flow,
    Iteration,
    JobRecovered,
    JobState,
    NetworkTried,
    OnicsSimulated,
    Record,
    Released,
    RingSetUps,
    WorkerLost,
)
from ringlight.fabric.averagers import averaging_of, scale_bytes, scale_steps
from ringlight.fabric.cost import RingJob
from ringlight.fabric.grid import choose_nodes, ways_for
from ringlight.fabric.interconnect import WavelengthRing, divided_anew, slowed
from ringlight.fabric.photonics import errors_of
from ringlight.fabric.rings import CLOCKWISE
from ringlight.fabric.schedules import parse_collective, steps_named
from ringlight.fabric.steps import Step, Steps, frozen, frozen_bool, without_steps
from ringlight.fabric.topology import Fabric, Grid, Port, WdmRing, canonical, electrical_graph
from ringlight.fabric.wdm import RingPlan, plan_ring, set_up_steps
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.interconnects import interconnect_network
from ringlight.testbed.simulation.jobs import Compute, GpuLost, Job, NetworkChange, Simulation
from ringlight.testbed.simulation.networks import (
    GridNetwork,
    Network,
    PacketNetwork,
    RingNetwork,
    scaled,
    without_link,
)
from ringlight.testbed.simulation.onics import ControlNetwork, OnicPlane
from ringlight.testbed.simulation.phases import StepCost, synchronous

T = TypeVar("T")
#: As the workers do, shorter times without a byte are not reported one by one, seconds.
STALL_S = 0.02
#: Seconds that a control message takes between two O-NICs' agents, and its receiver's time for it. Measured:
#: benchmarks/flow_setup.py, four agents on two processors, 0.35 ms from request to light, in which two
#: messages follow each other. It is the agents' own time and does not become longer with D.
CONTROL_S, HANDLE_S = 150e-6, 25e-6
#: Seconds from the loss of a GPU until its job goes on, where a file gives no ``recovery``: medians of four
#: runs each of scenarios/examples/spare.yaml in Docker on two processors (1.07 to 1.19 s, 0.70 to 0.92 s).
#: It is the software's own time, from the event to the start of the next iteration, and taken as the same
#: for every D.
RECOVERY_S: Mapping[OnLoss, float] = {"swap": 1.13, "shrink": 0.76}
#: Lease of a grant, seconds (times D): the testbed's.
LEASE_S = 2.0
#: What passes the links is kept, for stalls and port rates, up to so many GPUs.
MOST_TRACED = 64


def lit_steps(steps: Steps, plan: RingPlan) -> Steps:
    """The steps, with the wavelength and the direction that the plan gives each transfer."""
    emits = [[plan.transmit.get(a, {}).get(b) for b in plan.nodes] for a in plan.nodes]

    def make() -> Iterator[Step]:
        for step in steps:
            ends = zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
            chosen = [emits[source][destination] for source, destination in ends]
            wavelengths = frozen([emit.wavelength for emit in chosen if emit])
            clockwise = frozen_bool([emit.port == CLOCKWISE for emit in chosen if emit])
            yield replace(step, wavelengths=wavelengths, clockwise=clockwise)

    return Steps(steps.name, steps.world_size, steps.chunks, steps.steps, make)


def _only(entries: Mapping[str, T]) -> T | None:
    return next(iter(entries.values()), None)


class SimulatedLab:
    """Implements ``backends.protocol.Lab``. ``share``: payload's of a link's rate. ``count`` is told how
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
        self._circuits = canonical(plan.circuits)
        self._grid: Grid | None = _only(self._fabric.grids)
        self._ring: WdmRing | None = _only(self._fabric.rings)
        wired = self._grid is None and self._ring is None and self._fabric.interconnect is None
        traced = len(self._fabric.gpus) <= MOST_TRACED and wired
        self._engine = Engine(trace=traced, most_events=self._most_events)
        self._still = Stillness(self._engine) if traced else None
        self._plane: OnicPlane | None = None
        self._ranks: dict[str, tuple[str, ...]] = {}
        self._lost_gpus: set[str] = set()
        self._seen_losses: dict[str, int] = {}
        self._flows_of: dict[str, dict[int, int]] = {}
        #: Jobs whose bytes pass no packet switch, so that stalls cannot be seen there.
        self._averaged: set[str] = set()
        self._workloads: dict[str, WorkloadRun] = {}
        self._numbers = itertools.count(1)
        self._set_ups: list[dict[str, Any]] = []
        self._declared_s = 0.0
        if self._grid is not None:
            delay_s = CONTROL_S + plan.control.delay_s
            times = Times.dilated(LEASE_S, self._setting.scale.time)
            self._plane = OnicPlane(
                self._engine, self._fabric, {}, ControlNetwork(delay_s, HANDLE_S), times, self._flow_done
            )
        try:
            network = self._network()
            if any(job.workload is not None and how(job) == "exact" for job in plan.jobs):
                # They take the network's numbers of links for the engine's.
                for link, capacity in enumerate((network.capacity_bps / 8).tolist()):
                    self._engine.link(network.key(link), capacity)
            self._sim = Simulation(
                network,
                self._engine,
                gate=self._plane,
                progress=self._iteration_done,
                over=self._job_over,
                disturbed=bool(plan.events) or len(plan.jobs) > 1,
            )
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
                run = self._workloads[job.name] = WorkloadRun(
                    self._engine, self._sim.network, self._plan, job, ranks, self._cost(), self._note
                )
                if divided_anew(self._fabric.interconnect):
                    run.divide(self._fabric.interconnect, self._share if self._plan.costs.headers else 1.0)
            else:
                self._add(job, ranks)
        except ValueError as error:
            raise BackendError(f"{self._plan.title}: job {job.name}: {error}") from None
        self._ranks[job.name] = ranks
        ready_s = self.now_s() + (0.0 if job.start.at_once else job.start_up_s)
        ready = JobState(t=ready_s, run=self._plan.name, job=job.name, state="READY", gpus=[*ranks])
        if ready_s > self.now_s():
            self._engine.at(ready_s, lambda: self._note(ready))
        else:
            self._note(ready)
        return None

    def _cost(self) -> StepCost:
        add_bps = self._plan.costs.add_bps
        reduce_s = 0.0 if add_bps is None else 8 / add_bps
        if isinstance(self._fabric.interconnect, WavelengthRing):
            return StepCost(self._fabric.interconnect.dark_s, "changed-only", reduce_s)
        return StepCost(reduce_s_per_byte=reduce_s)

    def _add(self, job: JobPlan, ranks: tuple[str, ...]) -> None:
        """A job with a training loop. Raises ValueError."""
        averaged_s = None
        if parse_collective(job.loop.collective).averaged:
            steps, averaged_s = without_steps(job.loop.collective, len(ranks)), self._averaged_s(job, ranks)
            self._averaged.add(job.name)
        else:
            steps = steps_named(job.loop.collective, len(ranks))
        compute = Compute(job.loop.compute_s, stragglers=job.stragglers)
        made = Job(
            job.name,
            ranks,
            steps,
            job.loop.gradient_bytes,
            compute,
            job.iterations,
            self._cost(),
            job.loop.synchronised or averaged_s is not None,
            averaged_s=averaged_s,
        )
        if self._grid is not None and self._plane is not None:
            self._plane.assign(ways_for(self._grid, ranks, steps))
        if self._ring is not None:
            made = self._on_ring(made)
        self._sim.add(made)
        self._flows_of[job.name] = _sent(steps) if self._grid is not None else {}

    def _averaged_s(self, job: JobPlan, ranks: tuple[str, ...]) -> float:
        """Seconds of an all-reduce by averagers once all ranks have come to it: the scales of the blocks over
        packet switches as if nothing else were there, then the codes. Raises ValueError."""
        costs, size = self._plan.costs, job.loop.gradient_bytes
        steps = scale_steps(len(ranks))
        scales_s = synchronous(self._sim.network, ranks, steps, scale_bytes(size), self._cost()).total_s
        share = self._share if costs.headers else 1.0
        stream_s = averaging_of(self._fabric, ranks).stream_s(size, share, self._latency_s + costs.latency_s)
        return scales_s + stream_s

    def release(self, jobs: Sequence[str]) -> None:
        now_s, run = self.now_s(), self._plan.name
        self._note(Released(t=now_s, run=run, jobs=[*jobs], at=now_s))
        for name in jobs:
            gpus = [*self._ranks[name]]
            self._note(JobState(t=now_s, run=run, job=name, state="RUNNING", gpus=gpus))
            if name in self._workloads:
                self._engine.at(now_s, self._workloads[name].begin)
            else:
                self._sim.begin(name)

    def perform(self, event: EventPlan) -> None:
        fields = {"name": event.name, "do": event.do, "target": str(event.target or "")}
        self._note(ActionBegun(t=self.now_s(), run=self._plan.name, **fields))
        try:
            self._do(event)
        except ValueError as error:
            self._over(event, error=str(error))

    def next(self, until_s: float) -> Sequence[Record]:
        if not self._records:
            try:
                self._sim.run(until_s)
            except ValueError as error:
                raise BackendError(f"{self._plan.title}: {error}") from None
        if not self._records and until_s == math.inf:
            self._sim.give_up()
            for one in self._workloads.values():
                one.give_up()
        found, self._records = self._records, []
        return sorted(found, key=lambda record: record.t)

    def end(self) -> Sequence[Record]:
        if self._plane is not None:
            # The last flows are still being released, which takes two messages.
            self._sim.run(self.now_s() + 4 * (CONTROL_S + HANDLE_S + self._plan.control.delay_s))
        now_s, run = self.now_s(), self._plan.name
        if self._plane is not None:
            self._note(
                OnicsSimulated(
                    t=now_s,
                    run=run,
                    messages=dict(self._plane.messages),
                    flows=len(self._plane.waits_s),
                    receiver_overlaps=self._plane.overlaps,
                )
            )
        if self._ring is not None:
            ring = {"name": self._ring.name, "statistics": {"declared_s": self._declared_s}}
            self._note(RingSetUps(t=now_s, run=run, ring=ring, set_ups=self._set_ups))
        if self._engine.passed is not None:
            switches, gpus = self._fabric.packet_switches, self._fabric.gpus
            self._records += port_rates(self._engine, switches, gpus, run, now_s, self._share)
        if self._fabric.optical_switches and self._grid is None and self._ring is None:
            self._note(Circuits(t=now_s, run=run, circuits=[[a, b] for a, b in self._circuits]))
        for name, averager in self._fabric.averagers.items():
            if (errors := errors_of(averager)) is not None:
                self._note(
                    NetworkTried(
                        t=now_s,
                        run=run,
                        averager=name,
                        inputs=errors.inputs,
                        wrong=errors.wrong,
                        worst=errors.worst,
                    )
                )
        self._count(self._engine.events)
        found, self._records = self._records, []
        return found

    def close(self) -> None:
        return None

    # What the fabric is.

    def _tuned(self, plan: RunPlan) -> Fabric:
        """The fabric at the emulation's rates and tuning times."""
        onics = {
            name: replace(onic, tuning_s=plan.tuning_s.get(name, onic.tuning_s * self._setting.scale.time))
            for name, onic in self._rates.onics.items()
        }
        scale, interconnect = self._setting.scale, self._rates.interconnect
        if interconnect is not None:
            interconnect = slowed(interconnect, scale.time, scale.rate)
        return replace(self._rates, onics=onics, interconnect=interconnect)

    def _network(self) -> Network:
        """What transfers see of the fabric as it is lit and plugged now."""
        costs = self._plan.costs
        latency_s, share = self._latency_s + costs.latency_s, self._share if costs.headers else 1.0
        if self._fabric.interconnect is not None:
            gpus = tuple(self._fabric.gpus)
            return interconnect_network(
                self._fabric.interconnect,
                gpus,
                lambda: demand_of_jobs(self._plan.jobs, gpus),
                latency_s=latency_s,
                share=share,
            )
        if self._ring is not None:
            return RingNetwork(
                self._fabric, self._ring, segment_s=costs.segment_s, latency_s=latency_s, share=share
            )
        if self._grid is not None:
            return GridNetwork(self._fabric, self._grid, latency_s=latency_s, share=share)
        fabric = self._fabric
        for ends in self._cut:
            fabric = without_link(fabric, next(iter(ends)))
        # Light that leads to a fibre that is cut leads nowhere.
        whole = [c for c in self._circuits if all(Port.parse(end) in fabric.link_at for end in c)]
        return PacketNetwork(fabric, light(fabric, whole), latency_s=latency_s, share=share)

    def _place(self, job: JobPlan) -> tuple[str, ...]:
        """GPUs for a job, chosen as the controller does. Raises ConflictError when there are none now."""
        holders = {gpu: name for name in self._ranks for gpu in self._held(name)}
        if lost := next((gpu for gpu in job.ranks if gpu in self._lost_gpus), None):
            raise ConflictError(f"GPU {lost} is lost")
        holders |= dict.fromkeys(self._lost_gpus, "none")
        if not job.ranks and self._grid is not None:
            free = [node for node in self._grid.nodes if node not in holders]
            choose_nodes(self._grid, self._grid.nodes, job.gpus)
            try:
                return choose_nodes(self._grid, free, job.gpus)
            except ValueError as error:
                raise ConflictError(str(error)) from None
        return reserve(tuple(self._fabric.gpus), holders, self._switch_of(), job.ranks or job.gpus)

    def _held(self, name: str) -> tuple[str, ...]:
        """The GPUs that a job has now."""
        if name in self._workloads:
            return () if self._workloads[name].over else self._ranks[name]
        result = self._sim.results[name]
        if not math.isnan(result.end_s):
            return ()
        return result.losses[-1].ranks if result.losses else self._ranks[name]

    def _switch_of(self) -> dict[str, str | None]:
        """The packet switch that each GPU is lit to now."""
        graph = electrical_graph(self._fabric, light(self._fabric, self._circuits))
        switches = self._fabric.packet_switches
        return {
            gpu: next((head for _, head in graph.out_edges(gpu) if head in switches), None)
            for gpu in self._fabric.gpus
            if gpu in graph
        }

    def _on_ring(self, job: Job) -> Job:
        """Job in step, as light is set for all ranks at once; each change takes the declared set-up time."""
        assert self._ring is not None
        plan = plan_ring(self._fabric, self._ring, job.steps)
        self._declared_s = declared_set_up_s(self._setting)
        cost = replace(job.cost, set_up_s=self._declared_s, in_steps=tuple(set_up_steps(plan)))
        return replace(job, steps=lit_steps(job.steps, plan), synchronised=True, cost=cost)

    # What happens.

    def _note(self, record: Record) -> None:
        self._records.append(record)
        self._engine.pause()

    def _iteration_done(self, job: str, index: int, now_s: float) -> None:
        ranks = self._ranks[job]
        found = self._sim.results[job].iterations[-1]
        columns = (found.begin_s.tolist(), found.computed_s.tolist(), found.end_s.tolist())
        still = None if job in self._averaged else self._still
        for rank, (begin_s, computed_s, end_s) in enumerate(zip(*columns, strict=True)):
            stalls = still.stalls(ranks[rank], computed_s, end_s) if still is not None else []
            self._note(
                Iteration(
                    t=end_s,
                    run=self._plan.name,
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
            )
        if self._still is not None:
            self._still.forget(ranks, float(found.end_s.min()))
        if self._ring is not None:
            self._note_set_ups(job, index, float(found.computed_s.max()))

    def _note_set_ups(self, name: str, index: int, begin_s: float) -> None:
        job = self._sim.runs[name].job
        step_s = synchronous(self._sim.network, job.ranks, job.steps, job.vector_bytes, job.cost).step_s
        begins_s = (np.cumsum(step_s) - step_s).tolist()
        for number, changed in enumerate(job.cost.in_steps):
            if changed:
                self._set_ups.append(
                    {
                        "t": begin_s + begins_s[number],
                        "step": index * len(job.cost.in_steps) + number,
                        "total_s": self._declared_s,
                        "write_s": None,
                    }
                )

    def _job_over(self, job: str) -> None:
        failed = self._sim.results[job].failed
        state = "SUCCEEDED" if failed is None else "CANCELLED" if failed == _CANCELLED else "FAILED"
        gpus = [*self._ranks[job]]
        self._note(
            JobState(t=self.now_s(), run=self._plan.name, job=job, state=state, gpus=gpus, reason=failed)
        )

    def _flow_done(self, gpu: str, flow: Finished) -> None:
        self._records.append(
            Flow(
                t=flow.close_s,
                run=self._plan.name,
                gpu=gpu,
                flow=next(self._numbers),
                peer=str(flow.peer),
                port=flow.port,
                wavelength=flow.wavelength,
                waited=flow.waited,
                t_open=flow.opened_s,
                t_request=flow.request_s,
                t_grant=flow.grant_s,
                t_lit=flow.lit_s,
                t_close=flow.close_s,
                t_released=flow.released_s,
            )
        )

    # What is made to happen.

    def _over(
        self, event: EventPlan, result: Mapping[str, Any] | None = None, error: str | None = None
    ) -> None:
        self._note(
            ActionEnded(
                t=self.now_s(),
                run=self._plan.name,
                name=event.name,
                do=event.do,
                target=str(event.target or ""),
                result=result or {},
                error=error,
            )
        )

    def _do(self, event: EventPlan) -> None:
        target = event.target
        if event.do == "regroup":
            self._regroup(event)
        elif event.do == "circuits":
            self._move_light(event, change(self._fabric, self._profiles, self._circuits, event.circuits), {})
        elif event.do == "cancel":
            assert target is not None
            self._check_runs(target.names[0])
            self._sim.stop(target.names[0], _CANCELLED)
            self._over(event)
        elif event.do in ("cut", "restore"):
            assert target is not None
            ends = self._ends_of(target.kind, target.names)
            self._cut = self._cut | ends if event.do == "cut" else self._cut - ends
            self._replug()
            self._over(event)
        elif event.do == "lose" and target is not None and target.kind == "nic":
            self._cut |= self._ends_of("nic", target.names)
            self._replug()
            self._over(event)
        elif event.do == "lose" or (target is not None and target.kind == "worker"):
            self._lose(event)
        elif event.do == "kill":
            self._kill_switch(event)

    def _check_runs(self, job: str) -> None:
        """Raises ValueError, as an emulation says it."""
        if job not in self._ranks or not math.isnan(self._sim.results[job].end_s):
            raise ValueError(f"job {job} does not run")

    def _ends_of(self, kind: str, names: tuple[str, ...]) -> set[frozenset[Port]]:
        """The links that are meant, by their two ends."""
        links = {frozenset((link.a, link.b)) for link in self._fabric.links}
        if kind == "link":
            return {frozenset(Port.parse(name) for name in names)} & links
        return {ends for ends in links if any(port.node == names[0] for port in ends)}

    def _replug(self) -> None:
        """Links went or came; what has no way stands still until it has one."""
        self._sim.happen(NetworkChange(self.now_s(), self._network(), patient=True))

    def _kill_switch(self, event: EventPlan) -> None:
        """The light of an optical switch stays; through a packet switch nothing goes until it is back."""
        assert event.target is not None
        name = event.target.names[0]
        mine = self._ends_of("switch", (name,)) - self._cut if name in self._fabric.packet_switches else set()
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
        job_plan = next((self._plan.job(name) for name, ranks in self._ranks.items() if gpu in ranks), None)
        then = job_plan.on_loss if job_plan is not None else "fail"
        spare = self._spare(job_plan) if then == "swap" and job_plan is not None else None
        if then == "swap" and spare is None:
            then = "fail"
        assumed_s = RECOVERY_S.get(then) if job_plan is not None and job_plan.recovery_s is None else None
        recovery_s = assumed_s or (job_plan.recovery_s if job_plan is not None else None) or 0.0
        now_s, run = self.now_s(), self._plan.name
        before = dict(self._ranks)
        self._sim.happen(GpuLost(now_s, gpu, then, spare, recovery_s))
        for name, ranks in before.items():
            result = self._sim.results[name]
            if len(result.losses) <= self._seen_losses.get(name, 0):
                continue
            loss = result.losses[-1]
            self._seen_losses[name] = len(result.losses)
            self._ranks[name] = loss.ranks
            lost = WorkerLost(t=now_s, run=run, job=name, rank=ranks.index(gpu), gpu=gpu, reason="lost")
            self._note(lost)
            gpus, at = [*loss.ranks], loss.resumed_s
            recovered = JobRecovered(
                t=at, run=run, job=name, iteration=loss.iteration, gpus=gpus, at=at, assumed_s=assumed_s
            )
            self._engine.at(at, lambda record=recovered: self._note(record))  # type: ignore[misc]
        self._over(event)

    def _spare(self, job: JobPlan) -> str | None:
        """The GPU that takes a lost one's place: the first free one of the job's spares, or of all."""
        results = self._sim.results
        taken = {gpu for n, ranks in self._ranks.items() if math.isnan(results[n].end_s) for gpu in ranks}
        free = [gpu for gpu in job.spares or self._fabric.gpus if gpu not in taken | self._lost_gpus]
        return free[0] if free else None

    def _regroup(self, event: EventPlan) -> None:
        """Regroup the jobs that run or are to be released, starting from the circuits that are lit now."""
        jobs = [
            RingJob.all_reduce(
                job.name, self._ranks[job.name], float(job.loop.gradient_bytes), job.loop.compute_s
            )
            for job in self._plan.jobs
            if job.name in self._ranks
            and math.isnan(self._sim.results[job.name].end_s)
            and (not event.jobs or job.name in event.jobs)
        ]
        plan = plan_regroup(self._fabric, self._circuits, jobs)
        circuits = canonical([(str(a), str(b)) for a, b in plan.circuits])
        made = change(self._fabric, self._profiles, self._circuits, circuits)
        self._move_light(event, made, {"jobs": [job.name for job in jobs], "plan": plan_document(plan)})

    def _move_light(self, event: EventPlan, made: Change, document: Mapping[str, Any]) -> None:
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
            self._sim.happen(
                NetworkChange(self.now_s(), self._network(), made.dark_s, "light moved", patient)
            )

        self._engine.at(begin_s + made.command_s, moved)
        end_s = begin_s + made.command_s + made.dark_s
        self._engine.at(end_s, lambda: self._over(event, result))


#: Why a job that was cancelled has ended.
_CANCELLED = "cancelled"


def _sent(steps: Steps) -> dict[int, int]:
    """Transfers that each rank sends in an all-reduce."""
    found: dict[int, int] = {}
    for step in steps:
        for source in step.sources.tolist():
            found[source] = found.get(source, 0) + 1
    return found
