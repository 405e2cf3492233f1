"""Models an iteration's time if every job of a fabric sent all the time: the all-send model.

Each ring edge of each job is one flow through the directed links of the electrical graph; the flows
share the links max-min fairly, as long TCP flows with equal round-trip times nearly do, and go on doing
so: rates are the steady ones. It bounds nothing. Packet headers, slow start and the latency of the 2(n-1)
steps are left out, which makes it too quick; a job that computes leaves the others more than the model
gives them, which makes it too slow (a contiguous ring of four beside a ring of two: 24.6 s, where 20.0 s
were measured). Alone on its links, a job takes as long as the model says, plus what is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import Hop, PacketView
from ringlight.fabric.steps import Steps, passes_on
from ringlight.fabric.topology import Fabric

Link = TypeVar("Link")


@dataclass(frozen=True)
class RingJob:
    """Demand of a training job with a ring collective on the fabric.

    ``ranks``: GPU names in ring order; rank i sends to rank i + 1. ``bytes_per_edge``: bytes that each ring
    edge carries per iteration. ``compute_s``: seconds of an iteration in which nothing is sent.
    """

    name: str
    ranks: tuple[str, ...]
    bytes_per_edge: float
    compute_s: float = 0.0

    @classmethod
    def all_reduce(
        cls, name: str, ranks: Sequence[str], gradient_bytes: float, compute_s: float
    ) -> RingJob:
        """Return the job that computes for ``compute_s`` seconds, then all-reduces its gradient."""
        return cls(
            name, tuple(ranks), ring_edge_bytes(len(ranks), gradient_bytes), compute_s
        )

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(sender, receiver) of every ring edge; none for a job of one rank."""
        if len(self.ranks) < 2:
            return ()
        return tuple(itertools.pairwise((*self.ranks, self.ranks[0])))


def check_jobs(fabric: Fabric, jobs: Iterable[RingJob]) -> tuple[RingJob, ...]:
    """Return the jobs, if they can run at the same time on the fabric.

    Raises ValueError naming the job and GPU when a GPU does not exist or is used twice, when a job has no
    rank, when two jobs have one name, and when a quantity is negative or not finite.
    """
    checked = tuple(jobs)
    names: set[str] = set()
    user: dict[str, str] = {}
    for job in checked:
        if job.name in names:
            raise ValueError(f"two jobs are called {job.name}")
        names.add(job.name)
        if not job.ranks:
            raise ValueError(f"job {job.name} has no ranks")
        for what, amount in (
            ("bytes_per_edge", job.bytes_per_edge),
            ("compute_s", job.compute_s),
        ):
            if not (math.isfinite(amount) and amount >= 0):
                raise ValueError(
                    f"job {job.name}: {what} is {amount}; it must be 0 or more"
                )
        for rank, gpu in enumerate(job.ranks):
            if gpu not in fabric.gpus:
                raise ValueError(f"job {job.name} rank {rank}: there is no GPU {gpu}")
            if gpu in user:
                other = (
                    "twice by that job"
                    if user[gpu] == job.name
                    else f"by job {user[gpu]} too"
                )
                raise ValueError(
                    f"job {job.name} rank {rank}: GPU {gpu} is used {other}"
                )
            user[gpu] = job.name
    return checked


def ring_edge_bytes(world_size: int, vector_bytes: float) -> float:
    """Return the bytes that each ring edge carries in one all-reduce: ``2 (n-1)/n * vector_bytes``.

    Patarasuk and Yuan, 2009. Raises ValueError for a world size below 1.
    """
    if world_size < 1:
        raise ValueError(f"a ring needs at least one rank, not {world_size}")
    return 2 * (world_size - 1) / world_size * vector_bytes


def max_min_rates(
    flows: Sequence[Sequence[Link]], capacities: Mapping[Link, float]
) -> list[float]:
    """Return the max-min fair rate of every flow, by progressive filling.

    ``flows``: the directed links that each flow passes (one named twice is loaded twice). ``capacities``: of
    every link, in any one unit; the rates are in the same unit. All rates rise together; when a link is full
    the flows through it stop, the others go on (Bertsekas and Gallager, Data Networks, 6.5.2). Time
    O(bottlenecks * links).
    """
    through: dict[Link, list[int]] = {}
    for index, path in enumerate(flows):
        for link in path:
            through.setdefault(link, []).append(index)
    left = {link: capacities[link] for link in through}
    rising = {link: len(users) for link, users in through.items()}
    rates = [math.nan] * len(flows)
    while rising:
        shares = {link: left[link] / count for link, count in rising.items()}
        level = min(shares.values())
        # Links that are full at one level except for rounding are full together.
        full = [link for link, share in shares.items() if share <= level * (1 + 1e-12)]
        for index in {
            index
            for link in full
            for index in through[link]
            if math.isnan(rates[index])
        }:
            rates[index] = level
            for link in flows[index]:
                left[link] = max(0.0, left[link] - level)
                rising[link] -= 1
        rising = {link: count for link, count in rising.items() if count}
    return rates


@dataclass(frozen=True)
class Latencies:
    """Seconds before a transfer's first byte counts: ``each_s`` of every one, and ``times`` the most that
    the links on its way delay frames by."""

    each_s: float = 0.0
    times: float = 0.0

    def by_port(self, view: PacketView) -> Mapping[Port, float]:
        """Return the delay of the links behind each port by which frames leave, in seconds.

        Return {} if no link delays.
        """
        fabric = view.fabric
        if not (self.times and fabric.has_link_effects):
            return {}
        delay_s = {}
        for edge in view.graph.edges:
            links = dict.fromkeys(
                fabric.link_at[port] for port in edge.path if port in fabric.link_at
            )
            delay_s[edge.out] = self.times * math.fsum(
                link.most_delay_s for link in links
            )
        return delay_s


def _latency_s(
    each_s: float, delays_s: Mapping[Port, float], path: Iterable[Hop]
) -> float:
    """Return the latency in seconds of a transfer that takes a path."""
    return (
        each_s + sum(delays_s.get(hop.out, 0.0) for hop in path) if delays_s else each_s
    )


#: Parts in which a ring's ranks pass on a chunk, as workers do.
PARTS = 8


class RingModel:
    """Jobs with a ring side by side on a fabric with its light, ``jobs`` by name. Their paths are found once.

    Raises ValueError naming the GPU when an edge has no path, and as :func:`check_jobs`.
    """

    def __init__(
        self,
        view: PacketView,
        jobs: Iterable[RingJob],
        latencies: Latencies = Latencies(),
    ) -> None:
        self.jobs = {job.name: job for job in check_jobs(view.fabric, jobs)}
        self._each_s, delays_s = latencies.each_s, latencies.by_port(view)
        self._paths: dict[str, list[list[Port]]] = {}
        self._delay_s: dict[str, list[float]] = {}
        self._capacities: dict[Port, float] = {}
        for name, job in self.jobs.items():
            paths = [view.router.path(*edge) for edge in job.edges]
            self._paths[name] = [[hop.out for hop in path] for path in paths]
            self._delay_s[name] = [_latency_s(0.0, delays_s, path) for path in paths]
            self._capacities |= {
                hop.out: hop.rate_bps for path in paths for hop in path
            }

    def groups(self) -> list[list[str]]:
        """Return names of jobs that share links, directly or through others, each group and all in order."""
        links = {
            name: set(itertools.chain.from_iterable(paths))
            for name, paths in self._paths.items()
        }
        users: dict[Port, list[str]] = {}
        for name, passed in links.items():
            for link in passed:
                users.setdefault(link, []).append(name)
        place = {name: number for number, name in enumerate(self.jobs)}
        left, groups = dict.fromkeys(self.jobs), []
        while left:
            group = [next(iter(left))]
            del left[group[0]]
            for name in group:
                for other in itertools.chain.from_iterable(
                    map(users.__getitem__, links[name])
                ):
                    if other in left:
                        del left[other]
                        group.append(other)
            groups.append(sorted(group, key=place.__getitem__))
        return groups

    def rates_bps(self, names: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """Return bits per second of every edge of these jobs while they send, and no others."""
        jobs = list(names)
        flows = [path for name in jobs for path in self._paths[name]]
        rates = iter(max_min_rates(flows, self._capacities))
        return {
            name: tuple(itertools.islice(rates, len(self._paths[name])))
            for name in jobs
        }

    def iteration_s(self, names: Iterable[str]) -> dict[str, float]:
        """Return seconds per iteration of these jobs while they run, and no others (:func:`predict`)."""
        return {
            name: self.jobs[name].compute_s
            + _ring_s(self.jobs[name], rates, self._each_s, self._delay_s[name])
            for name, rates in self.rates_bps(names).items()
        }


def predict(
    view: PacketView, jobs: Iterable[RingJob], latencies: Latencies = Latencies()
) -> dict[str, float]:
    """Return the seconds per iteration of every job, by name: compute, then its slowest ring edge.

    ``compute_s + max over edges of 8 * bytes_per_edge / rate``, with the rates of all jobs sending all the
    time, the edge's latency, and the way of its receiver's word back over links that delay. Or, if that is
    longer, the 2(n-1) hops of a chunk's first part over edges of the mean latency (:func:`_ring_s`). It bounds
    the time in neither direction if jobs share a link. Raises ValueError naming the GPU if an edge has no
    path, and for jobs that :func:`check_jobs` rejects.
    """
    model = RingModel(view, jobs, latencies)
    return model.iteration_s(model.jobs)


def _ring_s(
    job: RingJob, rates_bps: Sequence[float], each_s: float, delay_s: Sequence[float]
) -> float:
    """Return the seconds of a ring's 2(n-1) steps over edges of these rates and delays.

    The time is exact if all edges are equal. Ranks pass on parts of chunks. So an edge that is full all the
    time has its latency once, and if edges wait for each other each step takes a latency and a part of a
    chunk.
    """
    steps = 2 * (len(job.ranks) - 1)
    if not steps:
        return 0.0
    edge_s = [8 * job.bytes_per_edge / rate for rate in rates_bps]
    full_s = each_s + max(
        2 * wait_s + sent_s for wait_s, sent_s in zip(delay_s, edge_s, strict=True)
    )
    part_s = math.fsum(edge_s) / len(edge_s) / PARTS
    around_s = steps * (each_s + math.fsum(delay_s) / len(delay_s)) + part_s
    return max(full_s, around_s + (1 - 1 / PARTS) * max(edge_s) / steps + max(delay_s))


def steps_time(
    view: PacketView,
    ranks: Sequence[str],
    steps: Steps,
    vector_bytes: float,
    latencies: Latencies = Latencies(),
) -> float:
    """Return the least seconds of a collective over packet switches.

    ``ranks``: GPU of each rank. The time is the sum over the steps of the longest that a link needs for all
    that passes it in the step, ``8 * bytes / rate``, as steps follow each other. If ranks pass on parts of
    chunks (:func:`fabric.steps.passes_on`), steps overlap, and the time is the longest that a link needs for
    all steps. Packets take the paths of :class:`fabric.paths.Router`. Each step has the longest latency of
    its transfers. If transfers follow each other in parts, all steps together take at least their latencies
    and a part of a transfer each. Words come back over links that delay: to the senders of a step of
    exchanges before it, and to all at the end. Other costs of a step are left out. Raises ValueError if
    :meth:`fabric.paths.Router.path` does.
    """
    router, delays_s = view.router, latencies.by_port(view)
    chunk_bits = 8 * vector_bytes / steps.chunks
    at_once, total, heard_s, most_s, parts_s, back_s = (
        passes_on(steps),
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
    )
    chunks: dict[Hop, int] = {}
    for step in steps:
        if not at_once:
            chunks = {}
        wait_s = part_s = back_s = 0.0
        for source, destination, count in zip(
            step.sources.tolist(),
            step.destinations.tolist(),
            step.count.tolist(),
            strict=True,
        ):
            path = router.path(ranks[source], ranks[destination])
            wait_s = max(wait_s, _latency_s(latencies.each_s, delays_s, path))
            back_s = max(back_s, _latency_s(0.0, delays_s, path))
            for hop in path:
                chunks[hop] = chunks.get(hop, 0) + count
                part_s = max(part_s, chunk_bits * count / hop.rate_bps / PARTS)
        most_s = max(most_s, wait_s)
        parts_s += wait_s + part_s
        if not at_once:
            total += wait_s + (back_s if steps.step_by_step else 0.0)
            total += _longest_s(chunks, chunk_bits)
            heard_s = max(heard_s, total + back_s)
    if not at_once:
        return heard_s
    # Parts follow each other: a latency counts once, unless the way of the first part is longer.
    return max(_longest_s(chunks, chunk_bits) + most_s, parts_s) + back_s


def _longest_s(chunks: Mapping[Hop, int], chunk_bits: float) -> float:
    """Return the seconds of the hop that needs longest for its chunks."""
    return max(
        (chunk_bits * count / hop.rate_bps for hop, count in chunks.items()),
        default=0.0,
    )


def all_reduce_time(
    steps: Steps, vector_bytes: float, rate_bps: float, *, lightpaths: bool = False
) -> float:
    """Return the seconds of an all-reduce whose steps follow each other and cost nothing but their transfers.

    Sum over the steps of ``8 * (most bytes that a rank sends or receives in the step) / rate_bps``, each rank
    having one port of that rate in each direction. For halving-doubling at a power of two P that is ``2
    (P-1)/P * 8 vector_bytes / rate_bps``. ``lightpaths``: every pair of ranks has a wavelength of that rate
    for itself, so what counts is the most bytes from one rank to another.
    """
    n = steps.world_size
    chunk_s = 8 * vector_bytes / steps.chunks / rate_bps
    total = 0.0
    for step in steps:
        ends = (
            (step.sources * n + step.destinations,)
            if lightpaths
            else (step.sources, step.destinations)
        )
        most = max(
            (
                float(np.bincount(end, step.count).max(initial=0))
                for end in ends
                if len(end)
            ),
            default=0,
        )
        total += chunk_s * most
    return total


@lru_cache
def byte_time(
    collective: str, ranks: int, *, lightpaths: bool = False, at_once: bool = False
) -> float:
    """Return :func:`all_reduce_time`, in seconds, of one byte at one bit per second.

    ``at_once``: if ranks pass on parts of chunks, the time that a port needs for all steps together.
    """
    steps = steps_named(collective, ranks)
    if not (at_once and passes_on(steps)):
        return all_reduce_time(steps, 1.0, 1.0, lightpaths=lightpaths)
    sent, received = np.zeros(ranks), np.zeros(ranks)
    for step in steps:
        sent += np.bincount(step.sources, step.count, ranks)
        received += np.bincount(step.destinations, step.count, ranks)
    return 8 / steps.chunks * float(max(sent.max(), received.max()))
