"""Sums in the NVLink switch of a server (NVLS), as NCCL runs them: in loops that pass several stages.

A kernel copies a part of the vector to buffers that the switch can sum, sums it and sends the results, and
copies them out (``src/device/all_reduce.h``). Different warps do this with successive parts. So the first part
passes all stages before the last stage has anything to do, which costs small vectors much of the rate.
"""

from __future__ import annotations

from ringlight.extensions.servers.channels import heads
from ringlight.extensions.servers.hardware import GpuCluster
from ringlight.extensions.servers.library import Algorithm

#: Stages: copy in, sum and send the result, copy out; between servers sum and send are stages of their own.
_STAGES = {"nvls": 3, "nvls-tree": 4, "sharp": 4}

_KIB = 1 << 10


def _channels(cluster: GpuCluster) -> int:
    """Return the number of kernels' blocks (``src/transport/nvls.cc``)."""
    if cluster.server.gpu.generation != "blackwell":
        return 16
    return 32 if cluster.servers == 2 else 24


def _most_chunk(cluster: GpuCluster, algorithm: Algorithm) -> int:
    """Return the bytes of the largest part of a head and a block (``ncclNvlsTuning``)."""
    servers, gpus = cluster.servers, cluster.server.gpus
    if algorithm == "nvls":
        return 128 * _KIB
    if cluster.server.gpu.generation != "blackwell":
        return (64 if servers >= 4 else 128) * _KIB
    if servers == 2 and gpus <= 4:
        return 256 * _KIB
    return (64 if servers == 2 and gpus >= 16 else 128) * _KIB


#: Parts get smaller below so many loops: of parts larger than the first, below the second, to the first
#: (``calcCollChunking``, ``src/enqueue.cc``).
_SMALLER: dict[str, tuple[tuple[int, int], ...]] = {
    "nvls": ((64 * _KIB, 64), (32 * _KIB, 8), (16 * _KIB, 2)),
    "nvls-tree": ((256 * _KIB, 32), (128 * _KIB, 16), (64 * _KIB, 4), (32 * _KIB, 1)),
}


def loop_bytes(cluster: GpuCluster, algorithm: Algorithm, vector_bytes: int) -> int:
    """Return the bytes of the vector in one loop of all heads and blocks."""
    at_once = _channels(cluster) * heads(cluster)
    chunk = _most_chunk(cluster, algorithm)
    rules = _SMALLER["nvls" if algorithm == "nvls" else "nvls-tree"]
    for smaller, loops in rules:
        if chunk > smaller and vector_bytes < loops * at_once * chunk:
            chunk = smaller
    return at_once * chunk


def filling(cluster: GpuCluster, algorithm: Algorithm, vector_bytes: int) -> float:
    """Return how much longer the stages take than the slowest alone, as a part of its time."""
    loop = min(loop_bytes(cluster, algorithm, vector_bytes), vector_bytes)
    return (_STAGES[algorithm] - 1) * loop / vector_bytes
