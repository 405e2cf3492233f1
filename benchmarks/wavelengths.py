"""How fast lightpaths of a ring are decided, and how near to the best.

``decisions``: 8, 32 and 1,024 GPUs; z beside the optimum when the load of the segments alone counts and all
go the shorter way, and beside the bound; ``cpu`` is the processor's time, which others spoil less.
``gaps``: z against HiGHS's best for the program that bounds the load only, 8 to 32 GPUs, with the bound that
HiGHS proved within the limit; so a gap holds what colours cost, too. ``gap_to_colour_bound`` does not: no
plan with colours exceeds that bound.
``colours``: the same against the program with colours, where HiGHS ends.

Demands: "dense" all to all, "skewed" the same with a long tail, "sparse" three of ten pairs, "job" neighbours
up to 6 away either way, "one way" neighbours up to 8 further on. Of 1,024 GPUs: "window" neighbours up to 16
away either way, all different, and a ring of data parallelism at distance 8; "few" three of ten of these
pairs; "replicas" 128 equal jobs of 8 and that ring.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import milliseconds, spread, timed
from ringlight.fabric.allocation.arcs import Decisions, allocate
from ringlight.fabric.planes.ring.wdm import check_wavelengths
from tests.colour_bound import colour_bound
from tests.ring_program import highs_ring, load_bound

Demand = npt.NDArray[np.float64]
SMALL = ("dense", "skewed", "sparse", "job", "one way")
LARGE = ("window", "few", "replicas")
#: Wavelengths in each direction by GPUs: enough that every pair of the densest demand has some.
WAVELENGTHS = {8: 40, 16: 80, 24: 160, 32: 160, 1024: 160}


def demand_of(kind: str, nodes: int, seed: int) -> Demand:
    random = np.random.default_rng(seed)
    here = np.arange(nodes)
    hops = (here - here[:, None]) % nodes
    near = np.minimum(hops, nodes - hops)
    matrix: npt.NDArray[Any] = random.uniform(0.05, 1.0, (nodes, nodes))
    if kind == "skewed":
        matrix = random.lognormal(0.0, 1.0, (nodes, nodes))
    elif kind == "sparse":
        matrix *= random.random((nodes, nodes)) < 0.3
    elif kind == "job":
        matrix *= near <= 6
    elif kind == "one way":
        matrix *= hops <= 8
    elif kind in ("window", "few"):
        matrix *= near <= 16
        if kind == "few":
            matrix *= random.random((nodes, nodes)) < 0.3
    elif kind == "replicas":
        job = random.uniform(0.05, 1.0, (8, 8)) * (random.random((8, 8)) < 0.6)
        matrix = np.kron(np.eye(nodes // 8), job)
    if kind in LARGE:
        matrix[here, (here + 8) % nodes] += 1.0
    np.fill_diagonal(matrix, 0.0)
    return matrix


def decisions(seeds: int = 2) -> dict[str, Any]:
    """``seeds``: demands of each kind."""
    rows = []
    for nodes, kinds in ((8, SMALL), (32, SMALL), (1024, LARGE)):
        for kind, seed in product(kinds, range(seeds)):
            demand, wavelengths = demand_of(kind, nodes, seed), WAVELENGTHS[nodes]
            plan = allocate(demand, wavelengths)
            check_wavelengths(plan.step(), nodes, wavelengths)
            shorter = load_bound(demand, wavelengths, shorter_way=True)
            known = Decisions(wavelengths)
            known.decide(demand)

            def decide(demand: Demand = demand, wavelengths: int = wavelengths) -> object:
                return allocate(demand, wavelengths)

            def decide_again(known: Decisions = known, demand: Demand = demand) -> object:
                return known.decide(demand)

            rows.append(
                {
                    "gpus": nodes, "wavelengths": wavelengths, "demand": kind, "seed": seed,
                    "pairs": int((demand > 0).sum()), "lightpaths": len(plan.sources), "z": plan.z,
                    "z_over_load_of_shorter_ways": plan.z / shorter if shorter else None,
                    "z_over_bound": plan.z / plan.bound,
                    "cpu": milliseconds(timed(decide, 5, clock=time.thread_time)),
                    "time": milliseconds(timed(decide, 5)),
                    "known": milliseconds(timed(decide_again, 5)),
                }
            )  # fmt: skip
    return {"rows": rows}


def gaps(seeds: int = 2, limit_s: float = 6.0) -> dict[str, Any]:
    """``limit_s``: seconds that HiGHS has for each of ``seeds`` demands of each kind."""
    rows = []
    for nodes, kind, seed in product((8, 16, 24, 32), SMALL, range(seeds)):
        demand, wavelengths = demand_of(kind, nodes, seed), WAVELENGTHS[nodes]
        found = highs_ring(demand, wavelengths, limit_s)
        optimum = load_bound(demand, wavelengths)
        plan = allocate(demand, wavelengths)
        rows.append(
            {
                "gpus": nodes, "demand": kind, "seed": seed,
                "z": plan.z, "highs_z": found.z, "highs_bound": found.bound,
                "proved": found.bound <= found.z * (1 + 1e-4),
                "load_optimum": optimum, "own_bound": plan.bound,
                "gap": 1 - plan.z / found.z if found.z else None,
                "gap_to_load_optimum": 1 - plan.z / optimum,
                "gap_to_colour_bound": 1 - plan.z / colour_bound(demand, wavelengths, least=plan.z),
            }
        )  # fmt: skip
    kinds = ("gap", "gap_to_load_optimum", "gap_to_colour_bound")
    return {kind: by_ways(rows, kind) for kind in kinds} | {"rows": rows}


def by_ways(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, float]]:
    """Spread of demands that go both ways round, and of those that go one way."""
    ways = {"both ways": False, "one way": True}
    return {
        name: spread(
            row[key] for row in rows if (row["demand"] == "one way") == one_way and row[key] is not None
        )
        for name, one_way in ways.items()
    }


def colours(seeds: int = 2, limit_s: float = 6.0) -> dict[str, Any]:
    """As ``gaps``, with colours."""
    rows: list[dict[str, Any]] = []
    cases = ((5, 4, "dense"), (6, 6, "sparse"), (8, 6, "sparse"), (8, 4, "one way"))
    for (nodes, wavelengths, kind), seed in product(cases, range(seeds)):
        demand = demand_of(kind, nodes, seed)
        if kind == "one way":
            demand *= (np.arange(nodes) - np.arange(nodes)[:, None]) % nodes <= 2
        found = highs_ring(demand, wavelengths, limit_s, rings=wavelengths)
        plan = allocate(demand, wavelengths)
        rows.append(
            {
                "gpus": nodes, "wavelengths": wavelengths, "demand": kind, "seed": seed,
                "z": plan.z, "highs_z": found.z, "highs_bound": found.bound,
                "load_optimum": load_bound(demand, wavelengths),
                "gap": 1 - plan.z / found.z if found.z else None,
            }
        )  # fmt: skip
    return {"gap": spread(row["gap"] for row in rows if row["gap"] is not None), "rows": rows}


PARTS = (decisions, gaps, colours)
