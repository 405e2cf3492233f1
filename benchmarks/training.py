"""How fast workloads of thousands of ranks are simulated, and how close to closed forms. Prints JSON.

    python benchmarks/training.py [layers] [mixtral] [gpt3] [MODEL …] [--text FILE] [--paths even|hash]

Every part runs in a process of its own, so that it starts cold and its memory is its own. ``layers``
simulates a workload text, of SimAI say, named by ``--text``. MODEL is resnet50, transformer-big or
gpt2-medium: its operators are placed on 128 replicas of 8 GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PLACED = ("resnet50", "transformer-big", "gpt2-medium")
PARTS = ("layers", "mixtral", "gpt3", *PLACED)
PER_LEAF, RATE_BPS, LATENCY_S = 32, 400e9, 1e-6
PLACED_RATES_BPS = (200e9, 1e12, 8e12)


def layers(text: str, paths: str) -> dict[str, Any]:
    """One iteration of a workload text on a leaf-spine fabric."""
    from ringlight.workloads.formats import layer_text

    return _on_leaf_spine(layer_text.read(Path(text)), paths)


def mixtral(paths: str) -> dict[str, Any]:
    """Mixtral 8x22B's shape on 1,024 GPUs, dp 2 · tp 8 · pp 8 · ep 8, 32 micro-batches."""
    from ringlight.workloads.devices import device_named
    from ringlight.workloads.models import model_named
    from ringlight.workloads.parallelism import generate
    from ringlight.workloads.settings import Parallel, Training

    training = Training(micro_batches=32, sequence=4096, sequence_parallel=True, zero=1)
    parallel = Parallel(dp=2, tp=8, pp=8, ep=8)
    return _on_leaf_spine(
        generate(model_named("mixtral-8x22b"), parallel, training, device_named("a100")), paths
    )


def gpt3() -> dict[str, Any]:
    """GPT-3 175B's shape, tp 8 · pp 16 · dp 8, on ideal networks, against closed forms.

    ``servers``: tensor parallelism in servers of eight with links of their own, ``one_link``: all that a GPU
    does shares one.
    """
    from ringlight.testbed.simulation.networks import IdealNetwork
    from ringlight.testbed.simulation.workload import simulate_workload
    from ringlight.workloads.devices import device_named
    from ringlight.workloads.layers import Transformer
    from ringlight.workloads.models import model_named
    from ringlight.workloads.parallelism import generate
    from ringlight.workloads.settings import Parallel, Training
    from tests.unit import iteration_time as closed

    model, device = model_named("gpt3-175b"), device_named("a100")
    assert isinstance(model, Transformer)
    parallel, training = Parallel(dp=8, tp=8, pp=16), Training(micro_batches=32)
    workload = generate(model, parallel, training, device)
    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    found: dict[str, Any] = {"ranks": workload.ranks}
    for name, per_server in (("servers", 8), ("one_link", 0)):
        begin = time.perf_counter()
        network = IdealNetwork(gpus, RATE_BPS, per_server=per_server, server_bps=RATE_BPS)
        simulated = simulate_workload(network, gpus, workload, how="classes").total_s
        ideal = closed.IdealNetwork(RATE_BPS / 8, shared=not per_server)
        formula = closed.iteration_time(model, parallel, training, device, ideal).seconds
        found[name] = {
            "simulated_s": simulated, "closed_form_s": formula, "over_closed_form": simulated / formula - 1,
            "wall_s": time.perf_counter() - begin,
        }  # fmt: skip
    return found


def placed(name: str) -> dict[str, Any]:
    """Placed operators of a model on 1,024 GPUs, on ideal networks, beside data parallelism alone."""
    from ringlight.testbed.simulation.networks import IdealNetwork
    from ringlight.testbed.simulation.workload import simulate_workload
    from ringlight.workloads.devices import device_named
    from ringlight.workloads.models import model_named
    from ringlight.workloads.placement import AUTHORS, RING_WINDOW, placed_workload

    model, device, authors = model_named(name), device_named("a100"), AUTHORS[name]
    begin = time.perf_counter()
    hybrid = placed_workload(model, authors.dp, authors.mp, authors.batch, RING_WINDOW, device)
    found: dict[str, Any] = {
        "ranks": hybrid.ranks, "operations": hybrid.operations, "programs": len(hybrid.programs),
        "generated_s": time.perf_counter() - begin,
    }  # fmt: skip
    gpus = [f"g{rank}" for rank in range(hybrid.ranks)]
    ranks = authors.dp * authors.mp
    workloads = {
        "whole": hybrid,
        "part": placed_workload(
            model, authors.dp, authors.mp, authors.batch, RING_WINDOW, device, takes="part"
        ),
        "data_parallel": placed_workload(model, ranks, 1, authors.batch, RING_WINDOW, device),
    }
    for rate_bps in PLACED_RATES_BPS:
        network = IdealNetwork(gpus, rate_bps)
        for way, workload in workloads.items():
            begin = time.perf_counter()
            result = simulate_workload(network, gpus, workload, how="classes")
            found[f"{way} at {rate_bps / 1e9:g} Gbit/s"] = {
                "iteration_s": result.total_s, "compute_s": float(result.times.compute_s.mean()),
                "wall_s": time.perf_counter() - begin,
            }  # fmt: skip
    return found


def _on_leaf_spine(workload: Any, paths: Any) -> dict[str, Any]:
    """Leaves of 32 GPUs with 400 Gbit/s each, under 32 spines."""
    from ringlight.fabric.trees import leaf_spine
    from ringlight.testbed.simulation.networks import PacketNetwork
    from ringlight.testbed.simulation.workload import simulate_workload

    begin = time.perf_counter()
    leaves = -(-workload.ranks // PER_LEAF)
    fabric = leaf_spine(leaves, PER_LEAF, RATE_BPS, spines=PER_LEAF).fabric(paths=paths)
    network = PacketNetwork(fabric, latency_s=LATENCY_S)
    built_s = time.perf_counter() - begin
    begin = time.perf_counter()
    found = simulate_workload(
        network, tuple(fabric.gpus)[: workload.ranks], workload, how="classes", traffic=True
    )
    assert found.traffic is not None
    exposed, beside = (
        dict(zip(found.purposes, seconds.mean(axis=0).tolist(), strict=True))
        for seconds in (found.times.exposed_s, found.times.overlapped_s)
    )
    return {
        "workload": workload.name, "ranks": workload.ranks, "operations": workload.operations,
        "classes": len(found.end_s[0]), "paths": paths, "links": len(found.link_bytes),
        "iteration_s": found.total_s, "compute_s": float(found.times.compute_s.mean()),
        "exposed_s": exposed, "overlapped_s": beside,
        "bytes": float(found.link_bytes.sum()), "traffic_bins": found.traffic.bytes.shape[1],
        "network_built_s": built_s, "simulating_s": time.perf_counter() - begin,
    }  # fmt: skip


def apart(part: str, *arguments: str) -> Any:
    """One part in a process of its own, with the time and memory that all of it took."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    }
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--inside", part, *arguments], capture_output=True, text=True,
        timeout=3600, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{part} failed:\n{done.stderr}")
    return json.loads(done.stdout) | {"whole_process_s": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", help=f"of {', '.join(PARTS)}; all that can run when none is named"
    )
    parser.add_argument("--text", help="a workload text for the part layers")
    parser.add_argument("--paths", choices=["even", "hash"], default="even", help="how paths are chosen")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "layers": layers, "mixtral": mixtral, "gpt3": gpt3,
            **{name: partial(placed, name) for name in PLACED},
        }  # fmt: skip
        found = answers[options.inside](*options.parts)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = {"processor_s": usage.ru_utime + usage.ru_stime, "memory_mib": usage.ru_maxrss / 1024}
        print(json.dumps(found | used))
        return
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        raise SystemExit(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    wanted = options.parts or [part for part in PARTS if part != "layers" or options.text]
    if "layers" in wanted and not options.text:
        raise SystemExit("layers needs --text FILE")
    arguments = {"layers": [options.text, options.paths], "mixtral": [options.paths]}
    result: dict[str, Any] = {
        "machine": {
            "python": platform.python_version(),
            "processors": os.cpu_count(),
            "load": os.getloadavg(),
        }
    }
    for part in wanted:
        result[part] = apart(part, *arguments.get(part, []))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
