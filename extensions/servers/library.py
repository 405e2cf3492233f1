"""NCCL's own constants: latencies of steps, factors of protocols, and how it chooses an algorithm by size.

All are of ``src/graph/tuning.cc`` and ``src/graph/search.cc`` of the version in
:data:`extensions.servers.hardware.LIBRARY`, which NCCL's authors set to predict times before it runs; none
comes from a table of measurements that Ringlight is compared with. There, latencies are in microseconds and
rates in GB/s; here, seconds and bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ringlight.extensions.servers.hardware import Generation

Algorithm = Literal["tree", "ring", "nvls", "nvls-tree", "sharp"]
Protocol = Literal["ll", "ll128", "simple"]
Medium = Literal["nvlink", "net"]

#: Algorithms with their protocols; sums in switches have no small-message protocol.
PROTOCOLS: Mapping[Algorithm, tuple[Protocol, ...]] = {
    "tree": ("ll", "ll128", "simple"),
    "ring": ("ll", "ll128", "simple"),
    "nvls": ("simple",),
    "nvls-tree": ("simple",),
    "sharp": ("simple",),
}

_US, _GBPS = 1e-6, 8e9

#: Seconds before the first step (``baseLatencies``); 0 for sums in switches.
BASE_S: Mapping[tuple[Algorithm, Protocol], float] = {
    ("tree", "ll"): 6.8 * _US,
    ("tree", "ll128"): 14.0 * _US,
    ("tree", "simple"): 8.4 * _US,
    ("ring", "ll"): 6.6 * _US,
    ("ring", "ll128"): 14.0 * _US,
    ("ring", "simple"): 8.4 * _US,
}

#: Seconds of a step over a medium (``hwLatencies``).
STEP_S: Mapping[tuple[Medium, Algorithm, Protocol], float] = {
    ("nvlink", "tree", "ll"): 0.6 * _US,
    ("nvlink", "tree", "ll128"): 1.25 * _US,
    ("nvlink", "tree", "simple"): 4.0 * _US,
    ("nvlink", "ring", "ll"): 0.6 * _US,
    ("nvlink", "ring", "ll128"): 1.9 * _US,
    ("nvlink", "ring", "simple"): 3.4 * _US,
    ("nvlink", "nvls", "simple"): 25 * _US,
    ("nvlink", "nvls-tree", "simple"): 25 * _US,
    ("nvlink", "sharp", "simple"): 25 * _US,
    ("net", "tree", "ll"): 5.0 * _US,
    ("net", "tree", "ll128"): 8.5 * _US,
    ("net", "tree", "simple"): 14.0 * _US,
    ("net", "ring", "ll"): 2.7 * _US,
    ("net", "ring", "ll128"): 4.0 * _US,
    ("net", "ring", "simple"): 14.0 * _US,
    ("net", "nvls-tree", "simple"): 20.9 * _US,
    ("net", "sharp", "simple"): 18 * _US,
}

#: Seconds that a network step costs the processor (``getNetOverhead``; ``simple`` takes three times that).
NET_OVERHEAD_S = 1.0 * _US

#: The factor on a ring's latency between servers from 64 bytes a rank and channel on ("plateau effect").
PLATEAU: Mapping[Generation, float] = {
    "volta": 1.9,
    "ampere": 1.4,
    "hopper": 1.4,
    "blackwell": 1.4,
}

#: The same for trees of 64 B, 128 B, … (``treeCorrectionFactor``): the part of the rate that they get.
TREE_CORRECTION: Mapping[Protocol, tuple[float, ...]] = {
    "ll": (
        *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
        *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0),
    ),
    "ll128": (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0),
    ),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}

#: The first size of trees without a correction, as a power of two times 64 bytes.
CORRECTED = 23

#: The same of trees of sums in switches, which are corrected on Blackwell with a processor of x86.
NVLS_TREE_CORRECTED = 24

#: The part of its rate that an NVLink has for sums in the switch (``nvlsEfficiency``).
NVLS_SHARE: Mapping[Generation, float] = {
    "volta": 0.0,
    "ampere": 0.0,
    "hopper": 0.85,
    "blackwell": 0.74,
}

#: The most GPUs that drive sums in a switch (``NCCL_MAX_NVLS_ARITY``, ``src/include/device.h``).
MOST_HEADS = 32

#: The most channels that a search plans, half of ``MAXCHANNELS``.
MOST_CHANNELS = 32

#: Rates of one channel that NCCL tries inside a server, and between servers (``speedArray…``), in GB/s.
_Speeds = tuple[tuple[float, ...], tuple[float, ...]]
_BEFORE_HOPPER: _Speeds = (
    (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    (
        *(48, 30, 28, 24, 20, 18, 15, 12, 10, 9),
        *(7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    ),
)
_HOPPER: _Speeds = (
    (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
)
_BLACKWELL: _Speeds = (
    (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    (96, 86, 80, 48, 45.1, 42, 40, *_HOPPER[1][4:]),
)
_SPEEDS: Mapping[Generation, _Speeds] = {
    "volta": _BEFORE_HOPPER,
    "ampere": _BEFORE_HOPPER,
    "hopper": _HOPPER,
    "blackwell": _BLACKWELL,
}


def speeds_bps(generation: Generation, *, inter: bool) -> tuple[float, ...]:
    """Return the rates of a channel that NCCL tries, fastest first."""
    return tuple(_GBPS * speed for speed in _SPEEDS[generation][inter])


#: Tables by generation, in each for 1, 2 and more servers.
_ByServers = Mapping[Generation, tuple[float, float, float]]

#: The most of protocol LL (``llMaxBws``); between servers that of Intel's processors.
_LL_MOST: _ByServers = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 39.0, 20.4),
    "hopper": (141.0, 39.0, 20.4),
    "blackwell": (282.0, 39.0, 20.4),
}

#: The most of one channel of a ring with LL128 (``perChMaxRingLL128Bws``).
_RING_LL128: _ByServers = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 36.7),
    "blackwell": (40.0, 40.0, 40.0),
}

#: The most of one channel of a tree with LL128 (``perChMaxTreeLL128Bws``).
_TREE_LL128: _ByServers = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}

#: The most of one channel of a tree (``perChMaxTreeBws``).
_TREE: _ByServers = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}

#: The most of one channel of a tree of sums in switches (``perChMaxNVLSTreeBws``).
_NVLS_TREE: _ByServers = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}


def _most(table: _ByServers, generation: Generation, servers: int) -> float:
    return _GBPS * table[generation][min(servers, 3) - 1]


def ll_most_bps(generation: Generation, servers: int) -> float:
    """Return the most bus bandwidth of protocol LL, all channels together."""
    return _most(_LL_MOST, generation, servers)


def ring_ll128_most_bps(generation: Generation, servers: int) -> float:
    """Return the most of a channel of a ring with protocol LL128."""
    return _most(_RING_LL128, generation, servers)


def tree_most_bps(generation: Generation, servers: int, protocol: Protocol) -> float:
    """Return the most of a channel of a tree."""
    table = _TREE_LL128 if protocol == "ll128" else _TREE
    return _most(table, generation, servers)


def nvls_tree_most_bps(generation: Generation, servers: int) -> float:
    """Return the most of a channel of a tree of sums in switches."""
    return _most(_NVLS_TREE, generation, servers)


#: Bytes of a ring's chunk with protocol ``simple``, the largest, and its slices: half of a buffer of 4 MiB
#: (``ALLREDUCE_CHUNKSTEPS``, ``ALLREDUCE_SLICESTEPS`` of ``src/include/collectives.h``).
CHUNK_BYTES, SLICES = 2 << 20, 2

#: The parts of its rate that a protocol leaves a ring, and a tree.
RING_LL, RING_LL128 = 1 / 2, 0.92
TREE, TREE_LL = 0.92, 1 / 3.8
#: Of a tree with LL128, in one server and between servers.
TREE_LL128 = (7 / 9, 120 / 128)
#: Of a tree whose GPU has all traffic of a server (``NCCL_TOPO_PATTERN_TREE``): one GPU a server.
ONE_GPU_TREE = 0.85

#: Seconds in which a thread of the host launches a collective on one GPU: 33.7 us for eight of a DGX A100 and
#: 4.2 us for each of four to seven, 8 to 128 bytes (``all_reduce_perf -g``, NVIDIA/nccl-tests#123). NCCL's own
#: latencies leave the launch out.
LAUNCH_S = 33.7 / 8 * _US
