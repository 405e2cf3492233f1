"""Measures how fast the networks for comparison are built and simulated.

All networks have one bandwidth per GPU. The workload is that of placed pieces of a model: every GPU computes,
sends 1 MiB to the next one, and groups at distance 8 all-reduce 100 MB by a ring; on the one-shot graph by
coprime rings too. Each row: seconds to build, to simulate one iteration in classes (with the ways that it
needs), virtual milliseconds of the iteration, and what the fabric is built of per GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import most_memory_mib, tell
from ringlight.fabric.allocation.one_shot import circuits, one_shot
from ringlight.fabric.parts import Counts
from ringlight.fabric.planes.counts import of_fabric
from ringlight.fabric.planes.grid.whole_grid import GridOfGpus
from ringlight.fabric.planes.wholes.electrical import Ideal
from ringlight.fabric.planes.wholes.interconnect import of_circuits
from ringlight.fabric.planes.wholes.rotor import Rotor
from ringlight.fabric.planes.wholes.torus import Torus, TorusOfGpus
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.testbed.simulation.networks import IdealNetwork, Network, PacketNetwork
from ringlight.testbed.simulation.workload import simulate_workload
from ringlight.testbed.simulation.zoo import CircuitNetwork, RelayedGridNetwork, TorusNetwork, rotor_network
from ringlight.workloads.graph import Book, Collective, Workload, Writer

RATE_BPS = 800e9
DEGREE = 4
MESSAGE, GRADIENT = 2**20, 100_000_000


def networks(gpus: int = 1024) -> dict[str, Any]:
    """``gpus``: a square number that 64 divides."""
    if math.isqrt(gpus) ** 2 != gpus or gpus % 64 or gpus < 256:
        raise SystemExit(f"--gpus {gpus}: it must be a square number that 64 divides, at least 256")
    rows = {}
    for name, (make, built_of, algorithm) in zoo(gpus).items():
        tell(name)
        begin = time.perf_counter()
        network = make()
        built = time.perf_counter()
        names = [f"g{gpu}" for gpu in range(gpus)]
        found = simulate_workload(network, names, workload(gpus, algorithm), fidelity="classes")
        rows[name] = {
            "build_s": round(built - begin, 3),
            "simulate_s": round(time.perf_counter() - built, 3),
            "iteration_ms": round(found.total_s * 1e3, 3),
            "links": len(network.capacity_bps),
            "per_gpu": {what: round(count, 3) for what, count in built_of.per_gpu().items() if count},
        }
    return {"gpus": gpus, "networks": rows, "most_memory_mib": most_memory_mib()}


PARTS = (networks,)


def workload(ranks: int, algorithm: str) -> Workload:
    """1 ms of computing, a message to the next rank, then all-reduces at distance 8."""
    book = Book()
    groups = [book.group(range(k, ranks, 8)) for k in range(8)]
    writer = Writer(book)
    computed = writer.compute("forward", seconds=1e-3)
    sent = writer.send("activations", MESSAGE, 0, after=[computed], stream="out")
    received = writer.receive("activations", MESSAGE, 1, stream="in")
    all_reduce = Collective("all-reduce", algorithm)
    writer.collective("gradients", all_reduce, GRADIENT, 0, after=[sent, received])
    peers = [[(rank + 1) % ranks, (rank - 1) % ranks] for rank in range(ranks)]
    communicators = [[groups[rank % 8]] for rank in range(ranks)]
    return book.workload("small", [writer.done()], [0] * ranks, communicators, peers)


def built_once(gpus: tuple[str, ...]) -> CircuitNetwork:
    """The one-shot graph for this workload."""
    n = len(gpus)
    demand = np.zeros((n, n))
    demand[np.arange(n), (np.arange(n) + 1) % n] = MESSAGE
    ports = one_shot(demand, DEGREE, [np.arange(k, n, 8) for k in range(8)], 2 * GRADIENT)
    return CircuitNetwork(gpus, circuits(ports), RATE_BPS / DEGREE, forward=True)


def switched(gpus: tuple[str, ...]) -> CircuitNetwork:
    """Three circuits of each GPU to the eighth from here and one to the next."""
    n = len(gpus)
    lit = circuits(np.stack([(np.arange(n) + by) % n for by in (1, 8, 8, 8)]))
    return CircuitNetwork(gpus, lit, RATE_BPS / DEGREE)


def zoo(n: int) -> dict[str, tuple[Callable[[], Network], Counts, str]]:
    """For each network: how to make it, its parts, and its all-reduce algorithm."""
    gpus = tuple(f"g{gpu}" for gpu in range(n))
    side = math.isqrt(n)
    # With eight in a row, groups at distance 8 are columns.
    shape = Torus((n // 64, 8, 8))
    rotor = Rotor(n, DEGREE, RATE_BPS / DEGREE, slot_s=2e-4, dark_s=2e-5)
    trees: dict[str, Fabric] = {
        f"leaf-spine {by}:1": leaf_spine(side, n // side, RATE_BPS, spines=side, oversubscription=by).fabric()
        for by in (1, 4)
    }
    k = round((4 * n) ** (1 / 3))
    if k**3 == 4 * n:
        trees["fat tree 1:1"] = fat_tree(k, RATE_BPS).fabric()
    of_degree = of_circuits(n, DEGREE)

    def packets(fabric: Fabric) -> Callable[[], Network]:
        return lambda: PacketNetwork(fabric)

    return {
        "ideal": (lambda: IdealNetwork(gpus, RATE_BPS), Ideal(RATE_BPS).counts(n), "ring"),
        **{name: (packets(fabric), of_fabric(fabric), "ring") for name, fabric in trees.items()},
        "circuits": (lambda: switched(gpus), of_degree, "ring"),
        "one-shot graph": (lambda: built_once(gpus), of_degree, "ring"),
        "one-shot graph, coprime rings": (lambda: built_once(gpus), of_degree, "coprime-rings-3"),
        "torus": (
            lambda: TorusNetwork(gpus, shape, RATE_BPS / shape.ports),
            TorusOfGpus(shape, RATE_BPS).counts(n), "ring",
        ),
        "grid": (
            lambda: RelayedGridNetwork(gpus, side, RATE_BPS / 2),
            GridOfGpus(side, n // side, RATE_BPS, 2).counts(n), "ring",
        ),
        "rotor, straight": (lambda: rotor_network(gpus, rotor), of_degree, "ring"),
        "rotor, indirectly": (lambda: rotor_network(gpus, rotor, indirect=True), of_degree, "ring"),
    }  # fmt: skip
