"""How fast ODDL's agents are simulated, each flow asking for its light.

Every size runs in a process of its own, so that it starts cold and its memory is its own. numba is used where
this Python has it.
"""

from __future__ import annotations

import math
import time
from typing import Any

from benchmarks.harness import apart


def oddl(nodes: list[int] = [64, 1024, 4096]) -> dict[str, Any]:
    """One halving-doubling all-reduce of 64 MiB on a square grid, every flow asking its agents for light."""
    return {f"{count} nodes": apart(_oddl, count) for count in nodes}


PARTS = (oddl,)


def _oddl(nodes: int) -> dict[str, Any]:
    begin = time.perf_counter()
    import numpy as np

    from ringlight.extensions.oddl.control_units import ControlNetwork, OnicPlane
    from ringlight.extensions.oddl.network import GridNetwork
    from ringlight.extensions.oddl.wavelengths import wavelength_map
    from ringlight.fabric.building import build_fabric
    from ringlight.fabric.schedules import halving_doubling
    from ringlight.fabric.schema import FabricSpec
    from ringlight.testbed.simulation.engine import Engine
    from ringlight.testbed.simulation.jobs import Job
    from tests.simulated_jobs import simulate

    side = math.isqrt(nodes)
    grid_spec = {"rows": side, "columns": side, "gpu": "gpu", "rate": "100 Gbit/s"}
    fabric = build_fabric(FabricSpec.model_validate({"grids": {"n": grid_spec}}))
    grid = fabric.parts["grids"]["n"]
    engine = Engine()
    control = ControlNetwork(control_s=10e-6, handle_s=1e-6, jitter=0.2, seed=1)
    plane = OnicPlane(engine, fabric, wavelength_map(grid, grid.nodes), control)
    job = Job("oddl", grid.nodes, halving_doubling(nodes), 64 * 2**20)
    found = simulate(GridNetwork(fabric, grid), [job], gate=plane, engine=engine)[
        "oddl"
    ]
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
