"""Time and quality of regrouping and prediction on large fabrics; prints one JSON object.

Run ``python benchmarks/regroup.py``. The limit is 2 s for 1,024 GPUs on 64 aggregation switches. GPUs start
in random places. The lower bound looks at every job alone, so where jobs do not fit side by side, or the
GPUs of a job share few optical switches' ports, no placement reaches it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from sys import path as import_path

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

from ringlight.fabric.cost import RingJob, predict
from ringlight.fabric.parts import (
    Gpu,
    Link,
    OpticalSwitch,
    PacketSwitch,
    Port,
)
from ringlight.fabric.placement import Circuit, regroup
from ringlight.fabric.topology import Fabric, circuit_cross_connects

LIMIT_S = 2.0


def instance(
    gpus: int, switches: int, planes: int, spare: int, sizes: list[int], seed: int
) -> tuple[Fabric, list[Circuit], list[RingJob]]:
    """GPUs dealt to ``planes`` optical switches; each of those reaches every aggregation switch.

    One spine packet switch joins the aggregation switches by copper.

    ``spare``: GPU-facing ports per aggregation switch beyond gpus/switches, on plane 0 first. Sizes are
    drawn until no GPU is left that the smallest would fit; the GPUs of a job and its place are random.
    """
    rng = random.Random(seed)
    per_switch = gpus // switches // planes
    nodes = {
        f"g{i}": Gpu(f"g{i}", f"s{i // 8}", "gpu", f"10.82.{i // 250}.{i % 250 + 1}", "") for i in range(gpus)
    }
    packet = {
        f"tor{i}": PacketSwitch(f"tor{i}", i + 1, per_switch * planes + spare + 1) for i in range(switches)
    }
    size = gpus // planes + switches * (per_switch + spare)
    optical = {f"ocs{i}": OpticalSwitch(f"ocs{i}", size, "scpi", "mems") for i in range(planes)}
    links: list[Link] = []
    places: dict[int, list[Port]] = {plane: [] for plane in range(planes)}
    next_port = [0] * planes

    def plug(port: Port, plane: int) -> None:
        next_port[plane] += 1
        links.append(Link(port, Port(f"ocs{plane}", next_port[plane]), 100e9, 0.0))

    for i in range(gpus):
        plug(Port(f"g{i}", 0), i % planes)
    for s in range(switches):
        for k in range(per_switch * planes + spare):
            port = Port(f"tor{s}", k + 1)
            plug(port, k % planes)
            places[k % planes].append(port)
    packet["spine0"] = PacketSwitch("spine0", switches + 1, switches)
    for s in range(switches):
        links.append(
            Link(Port(f"tor{s}", per_switch * planes + spare + 1), Port("spine0", s + 1), 400e9, 0.0)
        )
    circuits = []
    for plane in range(planes):
        rng.shuffle(places[plane])
        members = [i for i in range(gpus) if i % planes == plane]
        circuits += [(Port(f"g{i}", 0), places[plane][k]) for k, i in enumerate(members)]
    order = list(nodes)
    rng.shuffle(order)
    jobs: list[RingJob] = []
    while len(order) >= min(sizes):
        count = rng.choice([size for size in sizes if size <= len(order)])
        ranks, order = tuple(order[:count]), order[count:]
        jobs.append(
            RingJob.all_reduce(f"job{len(jobs)}", ranks, rng.choice([102.2e6, 553.4e6, 244.4e6]), 0.3)
        )
    return Fabric(nodes, packet, optical, tuple(links)), circuits, jobs


def measure(name: str, **shape: object) -> dict[str, object]:
    fabric, circuits, jobs = instance(**shape)  # type: ignore[arg-type]
    start = time.perf_counter()
    result = regroup(fabric, circuits, jobs)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    predict(fabric, circuit_cross_connects(fabric, result.circuits), jobs)
    predict_seconds = time.perf_counter() - start
    return {
        "instance": name,
        **shape,
        "jobs": len(jobs),
        "seconds": round(seconds, 3),
        "limit_s": LIMIT_S,
        "predict_seconds": round(predict_seconds, 3),
        "crossing_bytes_before": result.crossing_bytes_before,
        "crossing_bytes_after": result.crossing_bytes_after,
        "crossing_bytes_lower_bound": result.crossing_bytes_bound,
        "moves": len(result.moved),
        "optimal": result.optimal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    mixed = [4, 8, 16, 32, 64]
    results = [
        measure("one-switch-full", gpus=1024, switches=64, planes=1, spare=0, sizes=mixed, seed=seed),
        measure(
            "one-switch-odd-sizes",
            gpus=1024,
            switches=64,
            planes=1,
            spare=0,
            sizes=[3, 5, 6, 12, 24, 40],
            seed=seed,
        ),
        measure(
            "one-switch-spare",
            gpus=1024,
            switches=64,
            planes=1,
            spare=4,
            sizes=[3, 5, 6, 12, 24, 40],
            seed=seed,
        ),
        measure("four-planes-spare", gpus=1024, switches=64, planes=4, spare=4, sizes=mixed, seed=seed),
        measure("sixteen-planes", gpus=1024, switches=64, planes=16, spare=0, sizes=mixed, seed=seed),
        measure("few-big-jobs", gpus=1024, switches=64, planes=1, spare=0, sizes=[64], seed=seed),
        measure("small", gpus=12, switches=2, planes=1, spare=0, sizes=[2, 4], seed=seed),
        measure("medium", gpus=24, switches=3, planes=1, spare=1, sizes=[3, 4, 5], seed=seed),
    ]
    print(json.dumps({"benchmark": "regroup", "results": results}, indent=2))


if __name__ == "__main__":
    main()
