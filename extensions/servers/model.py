"""Times of collectives on a cluster: a pure function of hardware, algorithm, protocol and bytes.

A time is that of the schedule: the bytes that each link carries for each byte of the vector, at the link's
usable rate, and the latency of each step. Rates are those of :mod:`extensions.servers.hardware`, latencies
and factors of protocols those of :mod:`extensions.servers.library`. Rates of algorithms are bits of the
vector per second ("algorithm bandwidth"); sizes of vectors are those of nccl-tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ringlight.extensions.servers import library
from ringlight.extensions.servers.channels import (
    Channels,
    heads,
    nics_bps,
    nvls_speed_bps,
    plan,
)
from ringlight.extensions.servers.hardware import GpuCluster
from ringlight.extensions.servers.library import Algorithm, Protocol
from ringlight.extensions.servers.sums import filling
from ringlight.extensions.servers.trees import most_vectors

Kind = Literal["all-reduce", "all-gather", "all-to-all"]


@dataclass(frozen=True)
class Prediction:
    """A predicted time. ``algorithm``, ``protocol``: as chosen or forced; ``limit``: the slowest part."""

    seconds: float
    algorithm: str
    protocol: Protocol
    limit: str


def bus_bandwidth_bps(
    kind: Kind, ranks: int, vector_bytes: float, seconds: float
) -> float:
    """Return the bus bandwidth of a time, as nccl-tests has it, bits per second."""
    rounds = 2 if kind == "all-reduce" else 1
    return rounds * (ranks - 1) / ranks * 8 * vector_bytes / seconds


def predict(
    cluster: GpuCluster,
    vector_bytes: int,
    kind: Kind = "all-reduce",
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    *,
    nvls: bool = True,
) -> Prediction:
    """Return the time of a collective among all GPUs of a cluster.

    Without an algorithm or a protocol they are those that NCCL estimates to be fastest for the size. ``nvls``:
    false if sums in the NVLink switch are switched off (``NCCL_NVLS_ENABLE=0``). Raises ValueError for an
    algorithm that the hardware does not have, and a rate that no source states.
    """
    if cluster.ranks < 2:
        raise ValueError("a collective needs two GPUs")
    if kind == "all-to-all":
        return _all_to_all(cluster, vector_bytes)
    chosen = min(
        (
            way
            for way in _ways(cluster, kind, algorithm, protocol)
            if nvls or way[0] not in ("nvls", "nvls-tree")
        ),
        key=lambda way: _estimate(cluster, kind, way, vector_bytes),
        default=None,
    )
    if chosen is None:
        raise ValueError(_no_way(cluster, kind, algorithm, protocol))
    seconds = _seconds(cluster, kind, chosen, vector_bytes)
    _, limit = _limits(cluster, kind, chosen[0])
    return Prediction(seconds, *chosen, limit)


_Way = tuple[Algorithm, Protocol]


def _no_way(
    cluster: GpuCluster,
    kind: Kind,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
) -> str:
    """Return the reason why a cluster has no algorithm and protocol."""
    sums = algorithm in ("nvls", "nvls-tree", "sharp") and kind == "all-reduce"
    if sums and not nvls_speed_bps(cluster):
        server = f"{cluster.server.gpus} {cluster.server.gpu.name}"
        return f"{algorithm}: NCCL makes no sums in the switch of {server}"
    if sums and algorithm == "nvls" and cluster.servers > 1:
        return f"nvls is for a job on one server, this is on {cluster.servers}; take nvls-tree"
    if sums and algorithm != "nvls" and cluster.servers == 1:
        return f"{algorithm} is for a job on several servers, this is on one; take nvls"
    words = (algorithm or "algorithm", kind, protocol or "")
    return f"the cluster has no {' '.join(words).strip()}"


def _ways(
    cluster: GpuCluster,
    kind: Kind,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
) -> Iterator[_Way]:
    """Yield the algorithms and protocols that the hardware has, of those allowed."""
    for name, protocols in library.PROTOCOLS.items():
        if algorithm not in (None, name) or not _has(cluster, kind, name):
            continue
        if name == "sharp" and algorithm is None:
            # Switches of the network that sum are an option that has to be named.
            continue
        for each in protocols:
            if each == "ll128" and not cluster.server.gpu.links:
                continue
            if protocol in (None, each):
                yield name, each


def _has(cluster: GpuCluster, kind: Kind, algorithm: Algorithm) -> bool:
    if algorithm == "ring":
        return True
    if kind != "all-reduce":
        return False
    if algorithm == "tree":
        return True
    sums = nvls_speed_bps(cluster) > 0
    return sums and (algorithm == "nvls") == (cluster.servers == 1)


# Rates


def _limits(cluster: GpuCluster, kind: Kind, algorithm: Algorithm) -> tuple[float, str]:
    """Return the rate of an algorithm with the protocol for large messages, and its slowest link."""
    rates = dict(_links(cluster, kind, algorithm))
    slowest = min(rates, key=lambda link: rates[link])
    return rates[slowest], slowest


def _links(
    cluster: GpuCluster, kind: Kind, algorithm: Algorithm
) -> Iterator[tuple[str, float]]:
    """Yield the rate that each kind of link allows: its own over the vectors that it carries."""
    server, servers = cluster.server, cluster.servers
    if algorithm in ("ring", "tree"):
        channels = plan(cluster)
        inside, between = _carried(cluster, kind, algorithm)
        if server.gpus > 1:
            yield "NVLink", server.gpu.usable_bps / inside
    else:
        number = heads(cluster)
        rails = tuple(head % max(1, len(server.nics)) for head in range(number))
        channels = Channels(number, nvls_speed_bps(cluster), rails)
        between = 1.0 if algorithm == "sharp" else most_vectors(servers)
        yield "sums in the switch", _summed_bps(cluster)
    if servers > 1:
        yield "NICs", nics_bps(cluster, channels) / between


def _carried(
    cluster: GpuCluster, kind: Kind, algorithm: Algorithm
) -> tuple[float, float]:
    """Return the vectors that a GPU's NVLink and all NICs of a server carry in each direction."""
    ranks = cluster.ranks
    if algorithm == "ring":
        rounds = 2 if kind == "all-reduce" else 1
        return (around := rounds * (ranks - 1) / ranks), around
    # A chain passes the vector up and the result down; its ends do one of the two.
    inside = 1.0 if cluster.server.gpus == 2 else 2.0
    return inside, most_vectors(cluster.servers) if cluster.servers > 1 else 1.0


def _summed_bps(cluster: GpuCluster) -> float:
    """Return the rate of sums in a server's switch, by NCCL's model of them, bits of the vector per second.

    Each head has the sums of its part at its channel's rate, while it passes the results of the part before.
    """
    generation, ranks = cluster.server.gpu.generation, cluster.ranks
    number, speed = heads(cluster), nvls_speed_bps(cluster)
    bus = 2 * speed * library.NVLS_SHARE[generation] * (number - 1)
    return bus * ranks / (2 * (ranks - 1))


def _rate(cluster: GpuCluster, kind: Kind, way: _Way) -> float:
    """Return the rate of an algorithm with a protocol."""
    algorithm, protocol = way
    rate, _ = _limits(cluster, kind, algorithm)
    generation, servers = cluster.server.gpu.generation, cluster.servers
    if algorithm in ("nvls", "sharp"):
        return rate
    to_bus = _carried(cluster, kind, "ring")[0]
    if algorithm == "nvls-tree":
        most = library.nvls_tree_most_bps(generation, servers)
        return min(rate, heads(cluster) * most / to_bus)
    number, ll_most = plan(cluster).number, library.ll_most_bps(generation, servers)
    if algorithm == "ring":
        bus = rate * to_bus
        if protocol == "ll":
            bus = min(library.RING_LL * bus, ll_most)
        if protocol == "ll128":
            most = number * library.ring_ll128_most_bps(generation, servers)
            bus = min(library.RING_LL128 * bus, most)
        return bus / to_bus
    most = number * library.tree_most_bps(generation, servers, "simple")
    bus = min(2 * rate * library.TREE, most)
    if protocol == "ll":
        bus = min(library.TREE_LL * bus, ll_most)
    if protocol == "ll128":
        most = number * library.tree_most_bps(generation, servers, protocol)
        bus = min(library.TREE_LL128[servers > 1] * bus, most)
    if cluster.server.gpus == 1:
        bus *= library.ONE_GPU_TREE
    return bus / 2


# Latencies


def _latency(cluster: GpuCluster, kind: Kind, way: _Way) -> float:
    """Return the seconds of the steps of an algorithm without any bytes, as NCCL adds them up."""
    algorithm, protocol = way
    servers, gpus = cluster.servers, cluster.server.gpus
    base = library.BASE_S.get(way, 0.0)
    inside = library.STEP_S["nvlink", algorithm, protocol]
    # With one GPU a server nothing hides the network's latency: NCCL takes that of trees.
    exposed = "tree" if gpus == 1 and algorithm == "ring" else algorithm
    between = library.STEP_S.get(("net", exposed, protocol), 0.0)
    if algorithm == "nvls":
        return inside
    if algorithm == "sharp":
        return inside + (between if servers > 1 else 0.0)
    if algorithm == "nvls-tree":
        return inside + 2 * int(math.log2(servers)) * between
    if algorithm == "tree":
        hops = int(math.log2(servers))
        return base + 2 * ((gpus - 1) * inside + hops * between)
    if servers > 1:
        overhead = library.NET_OVERHEAD_S * (3 if protocol == "simple" else 1)
        inside = max(inside, overhead)
    rounds = 2 if kind == "all-reduce" else 1
    steps, crossing = rounds * (cluster.ranks - 1), rounds * (servers - 1)
    return base + (steps - crossing) * inside + crossing * between


def _delayed(cluster: GpuCluster, kind: Kind, way: _Way, vector_bytes: int) -> float:
    """Return the latency of an algorithm for a size, with NCCL's "plateau" of rings between servers."""
    seconds = _latency(cluster, kind, way)
    each = vector_bytes / (plan(cluster).number * cluster.ranks)
    plateau = way == ("ring", "simple") and kind == "all-reduce"
    if plateau and cluster.servers > 1 and each >= 64:
        seconds *= library.PLATEAU[cluster.server.gpu.generation]
    return seconds


# Times


def launched_s(seconds: float, gpus: int) -> float:
    """Return the seconds of a collective in a loop whose thread launches it on this number of GPUs.

    The thread launches the next one while the GPUs run, so the slower of both decides. nccl-tests loops like
    this (``BenchTime``, ``startColl``), and NCCL launches GPU by GPU (``doLaunches``, ``src/group.cc``).
    """
    return max(seconds, gpus * library.LAUNCH_S)


def _corrected(cluster: GpuCluster, kind: Kind, way: _Way, vector_bytes: int) -> float:
    """Return the rate for a size, with NCCL's correction of trees."""
    rate = _rate(cluster, kind, way)
    power = int(math.log2(max(1, vector_bytes >> 6)))
    gpu, until = cluster.server.gpu, 0
    if way[0] == "tree":
        until = library.CORRECTED
    elif way[0] == "nvls-tree" and gpu.generation == "blackwell" and not gpu.arm:
        until = library.NVLS_TREE_CORRECTED
    if power < until:
        rate *= library.TREE_CORRECTION[way[1]][power]
    return rate


def _estimate(cluster: GpuCluster, kind: Kind, way: _Way, vector_bytes: int) -> float:
    """Return the seconds by which NCCL chooses: latency and bytes in turn (``ncclTopoGetAlgoTime``)."""
    latency = _delayed(cluster, kind, way, vector_bytes)
    return latency + 8 * vector_bytes / _corrected(cluster, kind, way, vector_bytes)


def _seconds(cluster: GpuCluster, kind: Kind, way: _Way, vector_bytes: int) -> float:
    """Return the seconds of an algorithm, by its schedule."""
    if way == ("ring", "simple"):
        return _ring_s(cluster, kind, vector_bytes)
    if way[0] in ("nvls", "nvls-tree", "sharp"):
        flowing = 8 * vector_bytes / _rate(cluster, kind, way)
        staged = 1 + filling(cluster, way[0], vector_bytes)
        return _latency(cluster, kind, way) + staged * flowing
    return _estimate(cluster, kind, way, vector_bytes)


def _ring_s(cluster: GpuCluster, kind: Kind, vector_bytes: int) -> float:
    """Return the seconds of a ring that passes its chunks in slices.

    A rank passes the first slice of a chunk on while the second arrives. A step therefore takes as long as its
    chunk on the slowest link, or one slice and the latency on each link in turn, whichever is longer; only
    small chunks wait for the latency.
    """
    way: _Way = "ring", "simple"
    number = min(2 * plan(cluster).number, 2 * library.MOST_CHANNELS)
    each = vector_bytes / (number * cluster.ranks)
    rounds = max(1, math.ceil(each / library.CHUNK_BYTES))
    flowing = 8 * vector_bytes / _rate(cluster, kind, way)
    base = library.BASE_S[way]
    latency = _delayed(cluster, kind, way, vector_bytes) - base
    sliced = _slice_s(cluster, kind, vector_bytes) + rounds * latency
    return base + max(flowing, sliced)


def _slice_s(cluster: GpuCluster, kind: Kind, vector_bytes: int) -> float:
    """Return the seconds of one slice of each chunk on every link on its way round, latency left out."""
    rounds = 2 if kind == "all-reduce" else 1
    steps = rounds * (cluster.ranks - 1)
    crossing = rounds * (cluster.servers - 1)
    part = 8 * vector_bytes / cluster.ranks / library.SLICES
    seconds = 0.0
    if cluster.server.gpus > 1:
        seconds += (steps - crossing) * part / cluster.server.gpu.usable_bps
    if cluster.servers > 1:
        seconds += crossing * part / nics_bps(cluster, plan(cluster))
    return seconds


def _all_to_all(cluster: GpuCluster, vector_bytes: int) -> Prediction:
    """Return the time of an all-to-all: each rank sends each other one its part, all at once.

    Each GPU's parts for other servers take its NICs, all NICs the same number of bytes.
    """
    server, ranks = cluster.server, cluster.ranks
    bits = 8 * vector_bytes / ranks
    times = {"NVLink": 0.0}
    if server.gpus > 1:
        times["NVLink"] = bits * (server.gpus - 1) / server.gpu.usable_bps
    latency = library.STEP_S["nvlink", "ring", "simple"]
    if cluster.servers > 1:
        leaving = server.gpus * (ranks - server.gpus) * bits
        times["NICs"] = leaving / len(server.nics) / min(cluster.nic_bps)
        latency = library.STEP_S["net", "ring", "simple"]
    limit = max(times, key=lambda link: times[link])
    base = library.BASE_S["ring", "simple"]
    return Prediction(base + latency + times[limit], "pairwise", "simple", limit)
