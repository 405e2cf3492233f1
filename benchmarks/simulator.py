"""How fast the simulator is, and how close to what others compute.

Every part runs in a process of its own, so that it starts cold and its memory is its own. numba is used where
this Python has it; ``ring`` runs without it first. ``torus`` runs the same flows in SimGrid's Python binding
in between, where Debian's python3-simgrid is installed.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, apart

SIMGRID = ROOT / "tests" / "simgrid_flows.py"
DEBIAN_PYTHON = "/usr/bin/python3"


def ring() -> dict[str, Any]:
    """A 4,096-rank ring all-reduce of 64 MiB in 8,190 steps over one switch."""
    return {name: apart(_ring, name == "numba") for name in ("numpy", "numba")}


def torus(side: int = 64) -> dict[str, Any]:
    """A random permutation with sizes of 1 to 16 MiB on a side × side torus, ours and SimGrid's, in turn."""
    return apart(_torus, side)


def oddl(nodes: list[int] = [64, 1024, 4096]) -> dict[str, Any]:
    """One halving-doubling all-reduce of 64 MiB on a square grid, every flow asking its agents for light."""
    return {f"{count} nodes": apart(_oddl, count) for count in nodes}


PARTS = (ring, torus, oddl)


def _ring(numba: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    if not numba:
        sys.path[:] = [place for place in sys.path if not (Path(place) / "numba").exists()]
    from ringlight.fabric.schedules import ring as schedule
    from ringlight.fabric.trees import leaf_spine
    from ringlight.testbed.simulation.maxmin import has_numba
    from ringlight.testbed.simulation.networks import PacketNetwork
    from ringlight.testbed.simulation.phases import synchronous

    fabric = leaf_spine(1, 4096, 100e9).fabric()
    network = PacketNetwork(fabric, latency_s=1e-6)
    ranks = tuple(fabric.gpus)
    found = synchronous(network, ranks, schedule(4096), 64 * 2**20)
    cold_s = time.perf_counter() - begin
    begin = time.perf_counter()
    synchronous(network, ranks, schedule(4096), 64 * 2**20)
    return {
        "numba": has_numba(),
        "steps": len(found.step_s),
        "phases_computed": found.phases,
        "simulated_s": found.total_s,
        "closed_form_s": 2 * 4095 * (64 * 2**20 / 4096 * 8 / 100e9 + 1e-6),
        "cold_with_imports_and_fabric_s": cold_s,
        "warm_s": time.perf_counter() - begin,
    }


def _torus(side: int) -> dict[str, Any]:
    import numpy as np

    from ringlight.testbed.simulation.maxmin import drain, has_numba

    nodes = side * side
    random = np.random.default_rng(1)
    goals = random.permutation(nodes)
    fixed = np.flatnonzero(goals == np.arange(nodes))
    goals[fixed] = (fixed + 1) % nodes
    paths = []
    for a, b in enumerate(goals.tolist()):
        at, path = [a % side, a // side], []
        for axis, goal in enumerate((b % side, b // side)):
            while at[axis] != goal:
                way = 1 if (goal - at[axis]) % side <= side // 2 else -1
                path.append(4 * (at[1] * side + at[0]) + 2 * axis + (way < 0))
                at[axis] = (at[axis] + way) % side
        paths.append(path)
    capacity = np.full(4 * nodes, 12.5e9)
    sizes = np.round(random.uniform(1, 16, nodes) * 2**20)
    offsets = np.cumsum([0, *map(len, paths)])
    links = np.array([link for path in paths for link in path])

    def ours() -> tuple[float, Any]:
        begin = time.perf_counter()
        ends = drain(offsets, links, capacity, sizes)
        return time.perf_counter() - begin, ends

    first_s, ends = ours()
    result: dict[str, Any] = {
        "flows": nodes, "mean_hops": len(links) / nodes, "numba": has_numba(), "first_s": first_s,
    }  # fmt: skip
    case = {
        "capacity": capacity.tolist(), "paths": paths, "sizes": sizes.tolist(), "starts": [0.0] * nodes,
        "hosts": [[str(a), str(b)] for a, b in enumerate(goals.tolist())],
    }  # fmt: skip
    try:
        done = subprocess.run(
            [DEBIAN_PYTHON, str(SIMGRID)], input=json.dumps(case) + "\n", capture_output=True, text=True,
            timeout=1800, check=True,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        off = np.abs(ends - answer["ends"]) / np.array(answer["ends"])
        result |= {"simgrid_s": answer["seconds"], "largest_relative_difference": float(off.max())}
    except (OSError, subprocess.CalledProcessError) as error:
        result["simgrid_s"] = None
        result["simgrid_missing"] = str(error)
    result["warm_s"], _ = ours()
    if result["simgrid_s"]:
        result["simgrid_over_ours"] = result["simgrid_s"] / result["warm_s"]
    return result


def _oddl(nodes: int) -> dict[str, Any]:
    begin = time.perf_counter()
    import numpy as np

    from ringlight.fabric.planes.grid.wavelengths import wavelength_map
    from ringlight.fabric.schedules import halving_doubling
    from ringlight.fabric.schema import FabricSpec, build_fabric
    from ringlight.testbed.simulation.engine import Engine
    from ringlight.testbed.simulation.jobs import Job
    from ringlight.testbed.simulation.networks import GridNetwork
    from ringlight.testbed.simulation.onics import ControlNetwork, OnicPlane
    from tests.simulated_jobs import simulate

    side = math.isqrt(nodes)
    grid_spec = {"rows": side, "columns": side, "gpu": "gpu", "rate": "100 Gbit/s"}
    fabric = build_fabric(FabricSpec.model_validate({"grids": {"n": grid_spec}}))
    grid = fabric.grids["n"]
    engine = Engine()
    control = ControlNetwork(control_s=10e-6, handle_s=1e-6, jitter=0.2, seed=1)
    plane = OnicPlane(engine, fabric, wavelength_map(grid, grid.nodes), control)
    job = Job("oddl", grid.nodes, halving_doubling(nodes), 64 * 2**20)
    found = simulate(GridNetwork(fabric, grid), [job], gate=plane, engine=engine)["oddl"]
    waits = np.array(plane.waits_s)
    return {
        "nodes": nodes, "flows": len(waits), "failed": found.failed, "simulated_s": found.end_s,
        "ideal_s": 2 * (nodes - 1) / nodes * 64 * 2**20 * 8 / 100e9,
        "control": {"control_s": control.control_s, "handle_s": control.handle_s, "jitter": control.jitter},
        "set_up_p50_s": float(np.median(waits)), "set_up_p99_s": float(np.quantile(waits, 0.99)),
        "set_up_mean_s": float(waits.mean()), "messages_per_flow": sum(plane.messages.values()) / len(waits),
        "messages": dict(plane.messages), "receiver_overlaps": plane.overlaps, "all_idle": plane.idle(),
        "wall_s": time.perf_counter() - begin,
        
    }  # fmt: skip
