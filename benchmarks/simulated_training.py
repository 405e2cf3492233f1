"""How fast workloads of thousands of ranks are simulated, and how close to closed forms.

Every part runs in a process of its own, so that it starts cold and its memory is its own.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import apart

Paths = Literal["even", "hash"]
PER_LEAF, RATE_BPS, LATENCY_S = 32, 400e9, 1e-6
PLACED_RATES_BPS = (200e9, 1e12, 8e12)


def layers(text: Path, paths: Paths = "even") -> dict[str, Any]:
    """One iteration of a workload text, of SimAI say, on a leaf-spine fabric."""
    return apart(_layers, text, paths)


def mixtral(paths: Paths = "even") -> dict[str, Any]:
    """Mixtral 8x22B's shape on 1,024 GPUs, dp 2 · tp 8 · pp 8 · ep 8, 32 micro-batches."""
    return apart(_mixtral, paths)


def gpt3() -> dict[str, Any]:
    """GPT-3 175B's shape, tp 8 · pp 16 · dp 8, on ideal networks, against closed forms.

    ``servers``: tensor parallelism in servers of eight with links of their own, ``one_link``: all that a GPU
    does shares one.
    """
    return apart(_gpt3)


def placed(
    model: list[str] = ["resnet50", "transformer-big", "gpt2-medium"],
) -> dict[str, Any]:
    """Placed operators of models on 128 replicas of 8 GPUs, on ideal networks, beside data parallelism
    alone."""
    return {name: apart(_placed, name) for name in model}


PARTS = (mixtral, gpt3, placed, layers)


def _layers(text: Path, paths: Paths) -> dict[str, Any]:
    from ringlight.extensions.layer_text import reader as layer_text

    return _on_leaf_spine(layer_text.read(text), paths)


def _mixtral(paths: Paths) -> dict[str, Any]:
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.parallelism import generate
    from ringlight.extensions.models.settings import Parallel, Training
    from ringlight.workloads.devices import device_named

    training = Training(micro_batches=32, sequence=4096, sequence_parallel=True, zero=1)
    parallel = Parallel(dp=2, tp=8, pp=8, ep=8)
    return _on_leaf_spine(
        generate(
            model_named("mixtral-8x22b"), parallel, training, device_named("a100")
        ),
        paths,
    )


def _gpt3() -> dict[str, Any]:
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.layers import Transformer
    from ringlight.extensions.models.parallelism import generate
    from ringlight.extensions.models.settings import Parallel, Training
    from ringlight.testbed.simulation.networks import IdealNetwork
    from ringlight.testbed.simulation.workload import simulate_workload
    from ringlight.workloads.devices import device_named
    from tests.extensions.models import iteration_time as closed

    model, device = model_named("gpt3-175b"), device_named("a100")
    assert isinstance(model, Transformer)
    parallel, training = Parallel(dp=8, tp=8, pp=16), Training(micro_batches=32)
    workload = generate(model, parallel, training, device)
    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    found: dict[str, Any] = {"ranks": workload.ranks}
    for name, per_server in (("servers", 8), ("one_link", 0)):
        begin = time.perf_counter()
        network = IdealNetwork(
            gpus, RATE_BPS, per_server=per_server, server_bps=RATE_BPS
        )
        simulated = simulate_workload(
            network, gpus, workload, fidelity="classes"
        ).total_s
        ideal = closed.IdealNetwork(RATE_BPS / 8, shared=not per_server)
        formula = closed.iteration_time(
            model, parallel, training, device, ideal
        ).seconds
        found[name] = {
            "simulated_s": simulated, "closed_form_s": formula, "over_closed_form": simulated / formula - 1,
            "wall_s": time.perf_counter() - begin,
        }  # fmt: skip
    return found


def _placed(name: str) -> dict[str, Any]:
    from ringlight.extensions.models.catalogue import model_named
    from ringlight.extensions.models.placement import (
        AUTHORS,
        RING_WINDOW,
        placed_workload,
    )
    from ringlight.testbed.simulation.networks import IdealNetwork
    from ringlight.testbed.simulation.workload import simulate_workload
    from ringlight.workloads.devices import device_named

    model, device, authors = model_named(name), device_named("a100"), AUTHORS[name]
    begin = time.perf_counter()
    hybrid = placed_workload(
        model, authors.dp, authors.mp, authors.batch, RING_WINDOW, device
    )
    found: dict[str, Any] = {
        "ranks": hybrid.ranks, "operations": hybrid.operations, "programs": len(hybrid.programs),
        "generated_s": time.perf_counter() - begin,
    }  # fmt: skip
    gpus = [f"g{rank}" for rank in range(hybrid.ranks)]
    ranks = authors.dp * authors.mp
    workloads = {
        "whole": hybrid,
        "part": placed_workload(
            model,
            authors.dp,
            authors.mp,
            authors.batch,
            RING_WINDOW,
            device,
            takes="part",
        ),
        "data_parallel": placed_workload(
            model, ranks, 1, authors.batch, RING_WINDOW, device
        ),
    }
    for rate_bps in PLACED_RATES_BPS:
        network = IdealNetwork(gpus, rate_bps)
        for way, workload in workloads.items():
            begin = time.perf_counter()
            result = simulate_workload(network, gpus, workload, fidelity="classes")
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
        network,
        tuple(fabric.gpus)[: workload.ranks],
        workload,
        fidelity="classes",
        traffic=True,
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
