"""Bring-up and tear-down of 16 containers on one packet switch with shaped links. Needs root.

Bring-up: from nothing to 16 running containers, each with its NIC, address, shaping in both directions and
its port on the switch read back. Tear-down: from there to nothing. Importing the program is not counted, as
it is not for the peer. Containernet's figures were measured on a machine of the same size.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

from benchmarks.harness import need_root, spread
from ringlight.fabric.schema import FabricSpec, build_fabric
from ringlight.testbed.emulation.agent.workers import WorkerRequest
from ringlight.testbed.emulation.network import Emulation
from ringlight.testbed.emulation.testbed import Settings, Testbed
from ringlight.testbed.lab import new_lab
from tests.integration.labs import NOBODY

CONTAINERNET = {"bring_up_s": 6.2, "tear_down_s": 2.3}
LIMIT = {"bring_up_s": 3.0, "tear_down_s": 1.5}


def bringup(
    containers: int = 16,
    repeat: int = 5,
    runtime: Literal["docker", "namespace"] = "docker",
    image: str | None = None,
) -> dict[str, Any]:
    """``image``: instead of the worker image."""
    need_root()
    logging.basicConfig(level=logging.WARNING)
    runs = [once(containers, image, runtime) for _ in range(repeat)]
    return {
        "containers": containers,
        "runtime": runtime,
        **{key: spread(run[key] for run in runs) for key in runs[0]},
        "limit": LIMIT,
        "containernet": CONTAINERNET,
    }


PARTS = (bringup,)


def once(containers: int, image: str | None, runtime: Literal["docker", "namespace"]) -> dict[str, float]:
    links = [{"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": "40 Gbit/s"} for i in range(containers)]
    one_switch = {
        "servers": {"s0": {"gpus": {f"g{i}": "bench" for i in range(containers)}}},
        "packet_switches": {"tor0": {"ports": containers}},
        "links": links,
    }
    fabric = build_fabric(FabricSpec.model_validate(one_switch))
    lab = new_lab()
    testbed = Testbed(
        Settings(
            lab=lab, fabric=fabric, state=lab.state_dir, runtime=runtime, controller=NOBODY,
            emulation=Emulation(payload_scale=400), image=image, command=("sleep", "1000"),
        )
    )  # fmt: skip
    spec = {"peers": [gpu.ip for gpu in fabric.gpus.values()]}
    wanted = [
        WorkerRequest(job="bench", rank=rank, gpu=name, spec=spec) for rank, name in enumerate(fabric.gpus)
    ]
    began = time.perf_counter()
    testbed.start()
    try:
        network = time.perf_counter()
        assert testbed.workers is not None
        testbed.workers.start_all(wanted)
        up = time.perf_counter()
    finally:
        stopping = time.perf_counter()
        testbed.stop()
    down = time.perf_counter()
    return {"network_s": network - began, "bring_up_s": up - began, "tear_down_s": down - stopping}
