"""Time and quality of regrouping and prediction on large fabrics.

The limit is 2 s for 1,024 GPUs on 64 aggregation switches. GPUs start in random places. The lower bound looks
at every job alone, so where jobs do not fit side by side, or the GPUs of a job share few optical switches'
ports, no placement reaches it.
"""

from __future__ import annotations

import random
import time
from typing import Any

from ringlight.fabric.cost import RingJob, predict
from ringlight.fabric.paths import PacketView
from ringlight.fabric.placement import regroup
from ringlight.fabric.placement_problem import Circuit
from ringlight.fabric.topology import Fabric, circuit_cross_connects
from tests.unit.fabrics import gpu_ports, make_fabric, switch_ports

LIMIT_S = 2.0
MIXED, ODD = [4, 8, 16, 32, 64], [3, 5, 6, 12, 24, 40]
#: By name: GPUs, aggregation switches, optical switches, spare ports, sizes of jobs.
INSTANCES = {
    "one-switch-full": (1024, 64, 1, 0, MIXED),
    "one-switch-odd-sizes": (1024, 64, 1, 0, ODD),
    "one-switch-spare": (1024, 64, 1, 4, ODD),
    "four-planes-spare": (1024, 64, 4, 4, MIXED),
    "sixteen-planes": (1024, 64, 16, 0, MIXED),
    "few-big-jobs": (1024, 64, 1, 0, [64]),
    "small": (12, 2, 1, 0, [2, 4]),
    "medium": (24, 3, 1, 1, [3, 4, 5]),
}


def regrouping(seed: int = 1) -> dict[str, Any]:
    return {name: measure(*shape, seed) for name, shape in INSTANCES.items()}


PARTS = (regrouping,)


def measure(
    gpus: int, switches: int, planes: int, spare: int, sizes: list[int], seed: int
) -> dict[str, Any]:
    fabric, circuits, jobs = instance(gpus, switches, planes, spare, sizes, seed)
    start = time.perf_counter()
    result = regroup(fabric, circuits, jobs)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    predict(PacketView(fabric, circuit_cross_connects(fabric, result.circuits)), jobs)
    return {
        "gpus": gpus,
        "switches": switches,
        "planes": planes,
        "spare": spare,
        "sizes": sizes,
        "jobs": len(jobs),
        "seconds": round(seconds, 3),
        "limit_s": LIMIT_S,
        "predict_seconds": round(time.perf_counter() - start, 3),
        "crossing_bytes_before": result.crossing_bytes_before,
        "crossing_bytes_after": result.crossing_bytes_after,
        "crossing_bytes_lower_bound": result.crossing_bytes_bound,
        "moves": len(result.moved),
        "optimal": result.optimal,
    }


def instance(
    gpus: int, switches: int, planes: int, spare: int, sizes: list[int], seed: int
) -> tuple[Fabric, list[Circuit], list[RingJob]]:
    """GPUs dealt to ``planes`` optical switches; each of those reaches every aggregation switch.

    A last packet switch joins the aggregation switches by copper.

    ``spare``: GPU-facing ports per aggregation switch beyond gpus/switches, on plane 0 first. Sizes are
    drawn until no GPU is left that the smallest would fit; the GPUs of a job and its place are random.
    """
    rng = random.Random(seed)
    per_switch = gpus // switches // planes
    ports = [
        [per_switch + (spare + planes - 1 - o) // planes] * switches + [0]
        for o in range(planes)
    ]
    spine = [(switch, switches) for switch in range(switches)]
    fabric = make_fabric(
        ports, [gpu % planes for gpu in range(gpus)], trunks=spine, rate_bps=100e9
    )
    circuits = []
    for plane in fabric.optical_switches:
        places = switch_ports(fabric, plane)
        rng.shuffle(places)
        circuits += list(zip(gpu_ports(fabric, plane), places, strict=False))
    order = list(fabric.gpus)
    rng.shuffle(order)
    jobs: list[RingJob] = []
    while len(order) >= min(sizes):
        count = rng.choice([size for size in sizes if size <= len(order)])
        ranks, order = tuple(order[:count]), order[count:]
        jobs.append(
            RingJob.all_reduce(
                f"job{len(jobs)}", ranks, rng.choice([102.2e6, 553.4e6, 244.4e6]), 0.3
            )
        )
    return fabric, circuits, jobs
