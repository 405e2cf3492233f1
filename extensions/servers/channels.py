"""The channels of a cluster: how many rings or trees NCCL makes, on which NICs, and how fast each can be.

NCCL gives each channel the same part of the data. A channel enters and leaves a server by one NIC, so a slow
NIC slows its channels, and with them the collective. Only servers with one NVLink switch are planned here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from ringlight.extensions.servers import library
from ringlight.extensions.servers.hardware import GpuCluster

#: A search goes on to slower channels down to this part of the best so far (``src/graph/search.cc``).
_SLOWEST = 0.49


@dataclass(frozen=True)
class Channels:
    """Channels of a cluster. ``nics``: the NIC of each, empty in a single server; ``plan_bps``: of one, as
    planned by NCCL."""

    number: int
    plan_bps: float
    nics: tuple[int, ...] = ()


def _striped(rails: tuple[float, ...], speed: float, most: int) -> tuple[int, ...]:
    """Return the NICs of up to ``most`` channels of a rate, dealt out to NICs with room in turn."""
    room = [int(rail / speed + 1e-9) for rail in rails]
    if not any(room):
        return ()
    dealt = (nic for turn in count() for nic, left in enumerate(room) if turn < left)
    return tuple(next(dealt) for _ in range(min(most, sum(room))))


def plan(cluster: GpuCluster) -> Channels:
    """Return the channels of rings and trees, by NCCL's search (``ncclTopoCompute``).

    It takes the rate of a channel that gives the most of all channels together; between equals the fastest.
    Faults that come later do not change it.
    """
    server, inter = cluster.server, cluster.servers > 1
    # NCCL plans with the line rate (``ncclTopoAddNet``, ``src/graph/topo.cc``).
    healthy = tuple(nic.line_bps for nic in server.nics)
    total = server.gpu.usable_bps if server.gpus > 1 else sum(healthy)
    best = Channels(0, 0.0)
    for speed in library.speeds_bps(server.gpu.generation, inter=inter):
        if best.number and speed < _SLOWEST * best.plan_bps:
            break
        number = min(int(total / speed + 1e-9), library.MOST_CHANNELS)
        nics = _striped(healthy, speed, number) if inter else ()
        number = len(nics) if inter else number
        if number * speed > best.number * best.plan_bps + 1:
            best = Channels(number, speed, nics)
        if best.number * best.plan_bps >= total - 1:
            break
    if not best.number:
        raise ValueError("the links are too slow for any channel")
    return _doubled(best, cluster)


def _doubled(channels: Channels, cluster: GpuCluster) -> Channels:
    """Return twice the channels at half the rate if they are few and fast (``ncclTopoDupChannels``)."""
    new = cluster.server.gpu.generation in ("hopper", "blackwell")
    enough = new and channels.plan_bps < 50 * 8e9 and channels.number > 4
    if channels.plan_bps < 25 * 8e9 or enough:
        return channels
    number = min(2 * channels.number, library.MOST_CHANNELS)
    nics = (channels.nics * 2)[:number]
    parts = -(-number // channels.number)
    return Channels(number, channels.plan_bps / parts, nics)


def nics_bps(cluster: GpuCluster, channels: Channels) -> float:
    """Return the rate of all channels between servers: as many times the slowest one."""
    rails = cluster.nic_bps
    slowest = min(rails[nic] / channels.nics.count(nic) for nic in channels.nics)
    return channels.number * slowest


def heads(cluster: GpuCluster) -> int:
    """Return the number of GPUs of a server that drive sums in its switch."""
    return min(cluster.server.gpus, library.MOST_HEADS)


def nvls_speed_bps(cluster: GpuCluster) -> float:
    """Return the planned rate of each head's sums in the switch, 0 if there are none.

    A head's link carries its own sums twice and those of the other heads once (``ncclTopoSearchTryNvls``).
    """
    server = cluster.server
    generation, number = server.gpu.generation, heads(cluster)
    if not library.NVLS_SHARE[generation] or server.gpus < 2:
        return 0.0
    room = server.gpu.usable_bps / (number + 1)
    speeds = library.speeds_bps(generation, inter=cluster.servers > 1)
    return next((speed for speed in speeds if speed <= room), 0.0)
