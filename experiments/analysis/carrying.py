"""Estimate the load of a plan's messages on the processors that emulate the plan, before anything runs.

A container per GPU sends real messages over TCP, and Open vSwitch forwards each frame in one program. So
small messages, or many of them, cost processor time that no link rate shows. The costs below are those of one
class of machine. They only show whether a plan is far from what the machine can carry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringlight.experiments.analysis.prediction import (
    nic_rate_bps,
    packet_view,
    predict_jobs,
)
from ringlight.experiments.language.plan import JobPlan, RunPlan
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.frames import IN_PACKET_BYTES
from ringlight.fabric.full_load import flows_both_ways, left
from ringlight.fabric.kinds import vector_bytes
from ringlight.fabric.paths import NoPathError
from ringlight.fabric.steps import FloatArray, IntArray, Steps
from ringlight.workloads.graph import Kind, Workload

#: Full frames that a receiver acknowledges together.
ACKED = 2
#: GPUs of a job up to which its messages are counted; more have never been emulated on one machine.
MOST_GPUS = 64
#: Transfers of a schedule up to which they are counted.
MOST_TRANSFERS = 1 << 20


@dataclass(frozen=True)
class Costs:
    """Seconds of one processor: of a ``message`` at its two ends, of a ``frame`` at its two ends, and of a
    frame that a packet switch forwards (``switched``), acknowledgements too; ``port``: what each port of all
    packet switches adds to that, as Open vSwitch looks at all of them whenever it wakes; ``carried``: of a
    frame that is carried past it, in the kernel. ``step``: seconds that a step of a schedule takes besides
    its bytes, however small they are. ``wake``: of one processor until the next of many ranks wakes whose
    timers go off together."""

    message: float
    frame: float
    switched: float
    step: float
    port: float = 0.0
    carried: float = 5e-6
    wake: float = 0.7e-3

    def past_switches(self) -> Costs:
        """Return the costs if a device carries frames in place of Open vSwitch."""
        return replace(self, switched=self.carried, port=0.0)


#: Measured by ``benchmarks/carrying.py`` on 2 processors of an Intel Xeon, Open vSwitch 3.1 with its netdev
#: datapath, frames of 9,000 bytes, 2026-11-23, beside other work: its seven cases took 0.89 to 1.32 times the
#: processor time that these say. The step is the fastest of 1,500 calls over one packet switch. ``wake``: 256
#: ranks on 2 processors of an AMD EPYC, on which a wake-up takes 0.72 of the time, woke 53 to 62 ms late
#: (99th percentile, 2026-11-27), and 64 ranks 7 to 10 ms, which is half as much each. With 0.6 ms, 15 of 256
#: links that were filled at once gave 88 to 93 % of their setting. Open vSwitch with 80 ports took all of a
#: processor for 8,300 frames a second, 2026-11-26.
MEASURED = Costs(
    message=420e-6, frame=134e-6, switched=24e-6, step=0.62e-3, port=1.2e-6
)
#: The machine of these costs.
REFERENCE_PROCESSORS = 2
REFERENCE = f"an Intel Xeon with {REFERENCE_PROCESSORS} processors"
#: Processors that a lab takes besides what its jobs send, and what each GPU adds, up to so many GPUs: workers
#: that wake, the controller, what is sampled, Open vSwitch. Measured on 2 processors of an AMD EPYC beside
#: other work, 2026-11-28, seven runs with Docker and Open vSwitch alone: arms of disaggregation (0.79 in
#: all), nine nodes around a ring of light (0.92), four O-NICs with agents (0.48), packet_switches (0.65,
#: 0.69), parallel_16 (1.01) and sixty_four (1.30).
LAB_PROCESSORS, LAB_GPUS = (0.45, 0.011), 64
#: Share of the processors' time; above it, timers and threads delay each other.
BUSY = 0.8
#: Share of an iteration's time that its steps may cost, bytes apart, before a warning.
LATE = 0.1


@dataclass(frozen=True)
class Traffic:
    """Messages that a job sends in an iteration.

    ``calls``, ``sizes``, ``switches`` [kinds of transfer]: how often a transfer occurs, its size in bytes,
    and the number of packet switches on its way. ``most_bytes``: bytes of the rank that sends most.
    ``steps``: number of steps that follow each other. ``seconds``: length of the iteration, of which
    ``compute_s`` is computing.
    """

    calls: FloatArray
    sizes: FloatArray
    switches: FloatArray
    most_bytes: float
    steps: float
    seconds: float
    compute_s: float

    @property
    def messages(self) -> float:
        """Number of messages in an iteration."""
        return float(self.calls.sum())

    @property
    def bytes(self) -> float:
        """Bytes that are sent in an iteration."""
        return float((self.calls * self.sizes).sum())

    def frames(self, mtu_bytes: int, payload: float = 1.0) -> tuple[float, float]:
        """Return (number of frames sent, how often a packet switch forwards a frame).

        The second number includes acknowledgements. Sizes are divided by ``payload``.
        """
        in_frames = np.maximum(
            1, np.ceil(self.sizes / payload / (mtu_bytes - IN_PACKET_BYTES))
        )
        sent = self.calls * in_frames
        return float(sent.sum()), float((sent * self.switches).sum()) * (1 + 1 / ACKED)


@dataclass(frozen=True)
class Demand:
    """Load of all jobs of a run together: rates per second, and the average message.

    ``processors``: processors that sending and forwarding keep busy, averaged over the run. ``lab``:
    processors that the lab itself keeps busy. ``late``: the part of an iteration's time that steps take in
    addition to their bytes, in the job with the largest part.
    """

    messages_per_s: float
    frames_per_s: float
    frames_per_message: float
    message_bytes: float
    processors: float
    late: float
    lab: float = 0.0

    @property
    def in_all(self) -> float:
        """Mean number of busy processors over the run."""
        return self.processors + self.lab

    def too_much(self, processors: int) -> bool:
        """Return whether this number of processors is too small, or steps are too short for any number of
        processors."""
        return self.in_all > BUSY * processors or self.late > LATE


def pairs(job: JobPlan, gpus: Sequence[str]) -> set[tuple[str, str]]:
    """Return the pairs (sender, receiver) of a job's GPUs that exchange data; all pairs for guests.

    ``gpus``: in rank order.
    """
    if job.guest is not None:
        return set(itertools.permutations(gpus, 2))
    # After a loss the job may have fewer.
    ranks = [
        both
        for _, sources, destinations, _ in _sends(replace(job, gpus=len(gpus)))
        for both in zip(sources.tolist(), destinations.tolist(), strict=True)
    ]
    return {(gpus[source], gpus[destination]) for source, destination in set(ranks)}


def demand_of(plan: RunPlan, costs: Costs = MEASURED) -> Demand | None:
    """Return the load of the jobs that run from the start; None if what they send is unknown.

    If all jobs come later and the controller places them, as many run together as there are GPUs for.
    """
    together = [job for job in plan.jobs if job.start.at_once] or list(plan.jobs)
    traffics = traffics_of(plan, together)
    jobs = [
        (traffic, *traffic.frames(plan.setting.frames.mtu_bytes))
        for traffic in traffics.values()
        if traffic.seconds
    ]
    gpus = sum(job.gpus for job in together if not job.ranks)
    at_once = min(1.0, len(plan.setting.fabric.gpus) / gpus) if gpus else 1.0
    messages = at_once * sum(job.messages / job.seconds for job, _, _ in jobs)
    if not messages:
        return None
    frames = at_once * sum(sent / job.seconds for job, sent, _ in jobs)
    each = at_once * sum(job.bytes / job.seconds for job, _, _ in jobs) / messages
    ports = ports_of(plan)
    processors = at_once * sum(
        (
            job.messages * costs.message
            + sent * costs.frame
            + switched * (costs.switched + ports * costs.port)
        )
        / job.seconds
        for job, sent, switched in jobs
    )
    late = max(job.steps * costs.step / job.seconds for job, _, _ in jobs)
    lab = LAB_PROCESSORS[0] + LAB_PROCESSORS[1] * min(
        LAB_GPUS, len(plan.setting.fabric.gpus)
    )
    return Demand(messages, frames, frames / messages, each, processors, late, lab)


def ports_of(plan: RunPlan) -> int:
    """Return how many ports all packet switches have together."""
    return sum(switch.ports for switch in plan.setting.fabric.packet_switches.values())


def traffics_of(plan: RunPlan, jobs: Sequence[JobPlan]) -> dict[str, Traffic]:
    """Return what each job sends in an iteration at the plan's scale, by name.

    Guests, jobs with averaged gradients and jobs of more than ``MOST_GPUS`` ranks are left out.
    """
    switches, iterations_s = _Switches(plan), _modelled_s(plan)
    traffics = {
        job.name: _traffic(plan, job, switches, iterations_s.get(job.name))
        for job in jobs
    }
    return {name: traffic for name, traffic in traffics.items() if traffic is not None}


def left_by_tcp(plan: RunPlan) -> float:
    """Return the share (0..1) of the payload's rate that TCP leaves, in the job with the smallest share.

    Return 1 if the simulation must not deduct what TCP leaves unused (``tcp.full_load`` is off).
    """
    if not plan.setting.tcp.full_load:
        return 1.0
    return min(
        (left(_flows(job)) for job in plan.jobs if job.guest is None), default=1.0
    )


def _flows(job: JobPlan) -> int:
    return flows_both_ways(
        (sources, destinations) for _, sources, destinations, _ in _sends(job)
    )


def _traffic(
    plan: RunPlan, job: JobPlan, switches: _Switches, iteration_s: float | None
) -> Traffic | None:
    fabric = plan.setting.fabric
    if job.guest is not None or job.gpus > MOST_GPUS or job.plane(fabric).sums:
        return None
    gpus = list(job.ranks or fabric.gpus)[: job.gpus]
    counted, steps, sent = 0, np.zeros(len(gpus)), np.zeros(len(gpus))
    kinds: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    for calls, sources, destinations, sizes in _sends(job):
        counted += len(sources)
        if counted > MOST_TRANSFERS:
            return None
        between = switches.between(gpus, sources, destinations)
        kinds.append((np.full(len(sources), calls), sizes, between))
        np.add.at(sent, sources, calls * sizes)
        steps[np.unique(destinations)] += calls
    none = [(np.zeros(0), np.zeros(0), np.zeros(0))]
    calls_of, sizes_of, switches_of = (
        np.concatenate(of) for of in zip(*(kinds or none), strict=True)
    )
    rate_bps = min(nic_rate_bps(plan.setting, gpu) for gpu in gpus)
    most_bytes, compute_s = float(sent.max(initial=0.0)), _compute_s(job)
    seconds = iteration_s or compute_s + 8 * most_bytes / rate_bps
    most_steps = float(steps.max(initial=0.0))
    return Traffic(
        calls_of, sizes_of, switches_of, most_bytes, most_steps, seconds, compute_s
    )


#: How often, sources, destinations and bytes of transfers.
_Sends = tuple[float, IntArray, IntArray, FloatArray]


def _sends(job: JobPlan) -> Iterator[_Sends]:
    """Yield the transfers of an iteration, by ranks of the job."""
    if job.training is not None:
        everyone = np.arange(job.gpus)
        yield from _of_steps(
            1,
            steps_named(job.loop.collective, job.gpus),
            job.loop.gradient_bytes,
            everyone,
        )
        return
    assert job.workload is not None
    yield from _of_collectives(job.workload)
    yield from _of_messages(job.workload)


def _of_steps(
    calls: float, steps: Steps, vector: float, ranks: IntArray
) -> Iterator[_Sends]:
    for step in steps:
        sizes = step.count.astype(np.float64) * (vector / steps.chunks)
        yield calls, ranks[step.sources], ranks[step.destinations], sizes


def _of_collectives(workload: Workload) -> Iterator[_Sends]:
    done = set()
    for rank, slots in enumerate(workload.communicators.tolist()):
        program = workload.programs[int(workload.program_of[rank])]
        for slot, group in enumerate(slots):
            if group < 0 or (group, slot) in done:
                continue
            done.add((group, slot))
            mine = (program.kind == Kind.COLLECTIVE) & (program.slot == slot)
            pairs = np.stack((program.collective[mine], program.bytes[mine]))
            sends, counts = np.unique(pairs, axis=1, return_counts=True)
            members = workload.groups[group]
            for (which, size), calls in zip(
                sends.T.tolist(), counts.tolist(), strict=True
            ):
                what = workload.collectives[which]
                vector = vector_bytes(what.kind, len(members), size)
                yield from _of_steps(calls, what.steps(len(members)), vector, members)


def _of_messages(workload: Workload) -> Iterator[_Sends]:
    for number, program in enumerate(workload.programs):
        sends = program.kind == Kind.SEND
        ranks = np.flatnonzero(workload.program_of == number)
        for slot, size in zip(
            program.slot[sends].tolist(), program.bytes[sends].tolist(), strict=True
        ):
            yield (
                1,
                ranks,
                workload.peers[ranks, slot],
                np.full(len(ranks), float(size)),
            )


class _Switches:
    """Number of packet switches on the way of a frame: 0 over light alone, or if there is no way."""

    def __init__(self, plan: RunPlan) -> None:
        fabric = plan.setting.fabric
        self._router = None
        if fabric.packet_switches:
            self._router = packet_view(fabric, plan.circuits).router
        # Only of pairs that send, as each takes its time to find.
        self._known: dict[tuple[str, str], int] = {}

    def between(
        self, gpus: Sequence[str], sources: IntArray, destinations: IntArray
    ) -> FloatArray:
        """Return the number of packet switches of each transfer between these GPUs of a job.

        ``sources``, ``destinations``: ranks [transfers].
        """
        pairs = zip(sources.tolist(), destinations.tolist(), strict=True)
        return np.array(
            [self._of(gpus[i], gpus[j]) for i, j in pairs], dtype=np.float64
        )

    def _of(self, source: str, destination: str) -> int:
        key = source, destination
        if key not in self._known:
            self._known[key] = self._count(source, destination)
        return self._known[key]

    def _count(self, source: str, destination: str) -> int:
        try:
            return (
                0
                if self._router is None
                else len(self._router.path(source, destination)) - 1
            )
        except NoPathError:
            return 0


def _compute_s(job: JobPlan) -> float:
    if job.training is not None:
        return job.loop.compute_s
    assert job.workload is not None
    return max(float(np.nansum(program.seconds)) for program in job.workload.programs)


def _modelled_s(plan: RunPlan) -> dict[str, float]:
    """Return the seconds of an iteration by the models, by job; without jobs that the models do not know.

    The models know jobs that share links.
    """
    known: Mapping[str, Sequence[str]] = {
        job.name: job.ranks for job in plan.jobs if job.start.at_once
    }
    if not all(known.values()):
        return {}
    try:
        predictions = predict_jobs(plan, known)
    except (KeyError, NoPathError):
        return {}
    return {
        name: of.jct_s / plan.job(name).iterations for name, of in predictions.items()
    }


def alike(lines: Iterable[tuple[str, str]], most: int = 4) -> Iterator[str]:
    """Yield ``who: text`` lines, one for all names that share a text.

    Of more than ``most`` names, a line has the first ones, the last one and the count.
    """
    of_text: dict[str, list[str]] = {}
    for who, text in lines:
        of_text.setdefault(text, []).append(who)
    for text, names in of_text.items():
        short = (
            names
            if len(names) <= most
            else [*names[: most - 2], "…", f"{names[-1]} ({len(names)})"]
        )
        yield f"{', '.join(short).replace(', …, ', ' … ')}: {text}"
