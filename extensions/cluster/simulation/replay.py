"""Replays a trace on a cluster in virtual time: rates hold between events and are found again when something
changed.

Jobs on one switch share no link and go at ideal speed, so only those on several are looked at when rates
change. Everything follows from the arguments; what is drawn is drawn from the seed.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringlight.extensions.cluster.clusters import Cluster, LitCluster, Policies, Sharing
from ringlight.extensions.cluster.job_traces import JobTrace
from ringlight.extensions.cluster.simulation.breaking import (
    ClusterFaults,
    Failing,
    Losing,
    Losses,
    Sound,
)
from ringlight.extensions.cluster.simulation.by_gpu import Gpus
from ringlight.extensions.cluster.simulation.crossing import Alternating, Crossing
from ringlight.extensions.cluster.simulation.holding import (
    ByName,
    Holding,
    InBlocks,
    InSlices,
    InUnits,
)
from ringlight.extensions.cluster.simulation.moving import (
    Controlled,
    Dividing,
    Moving,
    Still,
)
from ringlight.extensions.cluster.simulation.queueing import QUEUES
from ringlight.extensions.cluster.simulation.rates import SHARING, Speeds
from ringlight.extensions.cluster.simulation.running import Running
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.maxmin import has_numba

#: So many jobs, and above, are worth compiled loops, where numba is installed.
FEW_JOBS = 300
#: Events after which a long replay tells how far it is.
PROGRESS_EVERY = 2048


@dataclass(frozen=True)
class Replay:
    """Record of a replay.

    By job: ``start_s``, ``end_s`` (NaN: not before the end of the replay), ``dark_s`` in which the job waited
    for its light, and ``switches``, the most that it was on.

    Sums since the beginning at each of ``steps_s``, all in GPU seconds: ``held`` by jobs, of that
    ``scattered``, by jobs that were on more switches than they need, and ``done`` at ideal speed. ``waiting``
    jobs at these moments; ``stalled``: GPU seconds of jobs that stood still for a fault. ``hit``: how often a
    fault met a job; ``swapped``: GPUs that spares replaced; ``fibres``: those moved, in ``regroupings``
    changes. ``in_system``: integral of the jobs in the system over time, job seconds. ``solved``: how often
    rates were found, at ``events`` moments. ``seen``: at some moments, the GPUs that each job has on each
    switch.
    """

    start_s: FloatArray
    end_s: FloatArray
    dark_s: FloatArray
    switches: IntArray
    steps_s: FloatArray
    held: FloatArray
    scattered: FloatArray
    done: FloatArray
    waiting: IntArray
    stalled: FloatArray
    hit: int
    swapped: int
    in_system: float
    fibres: int
    regroupings: int
    solved: int
    events: int
    seen: tuple[tuple[float, tuple[tuple[int, int, int], ...]], ...] = ()


def _crossing(
    cluster: Cluster, sharing: Sharing, jobs: int, iteration_s: float
) -> Crossing:
    """Return the model of jobs that share links. Raises ValueError if jobs send in turn and the iteration
    time is unknown.
    """
    if sharing != "on-off":
        return Crossing(cluster.links, _speeds(sharing, jobs))
    if iteration_s <= 0:
        raise ValueError("sharing: on-off: how long an iteration lasts is not known")
    return Alternating(cluster.links, iteration_s)


def _speeds(sharing: Sharing, jobs: int) -> Speeds:
    if jobs >= FEW_JOBS and has_numba():
        from ringlight.extensions.cluster.simulation.rate_loops import LOOPS

        return LOOPS[sharing]
    return SHARING[sharing]


def _holding(
    cluster: Cluster,
    trace: JobTrace,
    policies: Policies,
    seed: int,
    faults: ClusterFaults | None,
    by_gpu: Gpus | None,
) -> Holding:
    """Return the assignment of GPUs to jobs that the policies need.

    Raises ValueError for policies that do not fit each other, the cluster or the trace.
    """
    if ("controller" in (policies.placement, policies.light)) != (by_gpu is not None):
        raise ValueError(
            "placement and light: the controller decides about both, GPU by GPU"
        )
    if by_gpu is not None:
        return ByName(cluster, policies, seed, by_gpu)
    if policies.placement == "blocks":
        if cluster.lattice is None:
            raise ValueError("placement: blocks need a torus, a grid or a ring")
        if faults is not None:
            raise ValueError(
                "faults: which GPUs of a block fail is not known; place by count"
            )
        return InBlocks(cluster, policies, seed, trace, cluster.lattice)
    if cluster.slices is not None:
        return InSlices(cluster, policies, seed, trace)
    if faults is not None:
        return InUnits(cluster, policies, seed, faults.policies.unit_gpus)
    return Holding(cluster, policies, seed)


def replay(
    cluster: Cluster,
    trace: JobTrace,
    shares: FloatArray,
    rings: npt.NDArray[np.bool_],
    policies: Policies,
    seed: int = 0,
    *,
    until_s: float = math.inf,
    see_s: Sequence[float] = (),
    faults: ClusterFaults | None = None,
    start_up_s: float | Sequence[float] = 0.0,
    by_gpu: Gpus | None = None,
    losses: Losses = Losses(),
    iteration_s: float = 0.0,
    progress: Callable[[float], None] | None = None,
) -> Replay:
    """Replay a trace and return its record. Jobs that have not ended at ``until_s`` are left as they are.

    ``shares`` and ``rings``: share of the time for which each job sends, and whether it sends round a ring
    (``job_traces.shares_of``). ``see_s``: moments at which the places of all jobs are kept.
    ``start_up_s``: seconds for which a job, each or all, has its GPUs before it begins. ``by_gpu``: the GPUs
    by name, if the controller's own functions decide, without which none is lost by name. ``iteration_s``:
    seconds of an iteration of all jobs at ideal speed, if they send in turn (``on-off``). ``progress`` is
    called now and then with the share that is done, of all arrivals and ends. Raises ValueError for a job
    that is larger than the cluster.
    """
    if len(trace) and int(trace.gpus.max()) > cluster.size:
        raise ValueError(
            f"a job wants {int(trace.gpus.max())} GPUs; the cluster has {cluster.size}"
        )
    holding = _holding(cluster, trace, policies, seed, faults, by_gpu)
    queue, free = QUEUES[policies.queueing](trace), holding.free
    crossing = _crossing(cluster, policies.sharing, len(trace), iteration_s)
    run = Running(
        cluster, trace, shares, rings, policies, holding, crossing, start_up_s
    )
    light: Still = Still()
    breaking: Sound = Sound()
    if isinstance(holding, ByName):
        breaking = Losing(run, holding, losses)
        if policies.light == "controller":
            light = Controlled(run, holding, policies.dark_s)
    elif policies.light not in ("none", "ideal"):
        light = Moving(run, policies)
        if isinstance(cluster, LitCluster):
            light = Dividing(run, cluster, policies)
    if faults is not None and isinstance(holding, InUnits):
        breaking = Failing(run, holding, queue, faults, light.began)
    breaks = deque(breaking.events())
    regroup_at = light.every_s
    arrivals: list[float] = [*trace.arrival_s.tolist(), math.inf]
    come = events = inside = 0
    sum_held = sum_scattered = sum_done = sum_stalled = in_system = 0.0
    sums = [array("d", [0.0]) for _ in range(6)]

    def add_up() -> None:
        now = (
            run.now,
            sum_held,
            sum_scattered,
            sum_done - run.repeated,
            len(queue),
            sum_stalled,
        )
        for figures, figure in zip(sums, now, strict=True):
            figures.append(figure)

    to_see = [*sorted(see_s), math.inf]
    seen: list[tuple[float, tuple[tuple[int, int, int], ...]]] = []
    waits = False
    while come < len(trace) or inside:
        broken_at = breaks[0][0] if breaks else math.inf
        soonest = crossing.soonest() if crossing.changed else crossing.until
        arrives, over = arrivals[come], run.when_over(soonest)
        then = min(arrives, over, broken_at)
        if waits and then > run.now:
            # All that happens at this moment has happened.
            waits = False
            while (
                job := queue.next(run.now, free.total, run.fits, run.promised)
            ) is not None:
                run.begin(job, light.arranged(job, holding.choose(job, run.gpus[job])))
                light.began(job)
            add_up()
        if not waits:
            if crossing.changed:
                crossing.settle(run.now)
            soonest = crossing.until
            over = run.when_over(soonest)
            then = min(arrives, over, broken_at)
        while to_see[len(seen)] < then < math.inf:
            where = tuple(
                (job, leaf, n)
                for job, leaves in run.placed.items()
                for leaf, n in leaves.items()
            )
            seen.append((to_see[len(seen)], where))
        if then == math.inf or then > until_s:
            break
        then = min(then, regroup_at)
        if took := then - run.now:
            sum_held += run.held * took
            sum_scattered += run.scattered * took
            sum_done += (run.held - run.stalled_gpus - crossing.loss) * took
            sum_stalled += run.stalled_gpus * took
            in_system += inside * took
            run.now = then
        events += 1
        if progress is not None and not events % PROGRESS_EVERY:
            progress((2 * come - inside) / (2 * len(trace)))
        if then == regroup_at:
            light.at_interval()
            regroup_at += light.every_s
            continue
        waits = True
        if broken_at <= then:
            _, happens = breaks.popleft()
            happens()
        elif over <= arrives:
            inside -= run.finish(run.over(soonest))
            if run.stalled:
                breaking.freed()
        else:
            queue.add(come)
            come += 1
            inside += 1
    add_up()
    steps, *integrals, stalled = (np.array(figures) for figures in sums)
    return Replay(
        start_s=run.start,
        end_s=run.end,
        dark_s=run.dark,
        switches=run.switches,
        steps_s=steps,
        held=integrals[0],
        scattered=integrals[1],
        done=integrals[2],
        waiting=integrals[3].astype(np.int64),
        stalled=stalled,
        hit=run.hit,
        swapped=run.swapped,
        in_system=in_system,
        fibres=run.fibres,
        regroupings=run.regroupings,
        solved=crossing.solved,
        events=events,
        seen=tuple(seen),
    )
