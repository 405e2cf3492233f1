"""Bring-up and tear-down of 16 containers on one packet switch with shaped links. Needs root.

Bring-up: from nothing to 16 running containers, each with its NIC, address, shaping in both directions and
its port on the switch read back. Tear-down: from there to nothing. Importing the program is not counted, as
it is not for the peer. Containernet's figures were measured on a machine of the same size.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from typing import Any

from ringlight.fabric.schema import FabricSpec, build_fabric
from ringlight.testbed.emulation.agent.workers import WorkerRequest
from ringlight.testbed.emulation.network import Emulation
from ringlight.testbed.emulation.nodes import ControllerAddress
from ringlight.testbed.emulation.testbed import Settings, Testbed
from ringlight.testbed.lab import new_lab

CONTAINERNET = {"bring_up_s": 6.2, "tear_down_s": 2.3}
LIMIT = {"bring_up_s": 3.0, "tear_down_s": 1.5}


def one_switch(containers: int) -> dict[str, Any]:
    """A fabric of that many GPUs on one packet switch."""
    return {
        "servers": {"s0": {"gpus": {f"g{i}": "bench" for i in range(containers)}}},
        "packet_switches": {"tor0": {"ports": containers}},
        "links": [{"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": "40 Gbit/s"} for i in range(containers)],
    }


def once(containers: int, image: str | None, runtime: Any) -> dict[str, float]:
    fabric = build_fabric(FabricSpec.model_validate(one_switch(containers)))
    lab = new_lab()
    testbed = Testbed(
        Settings(
            lab=lab,
            fabric=fabric,
            state=lab.state_dir,
            runtime=runtime,
            emulation=Emulation(payload_scale=400),
            controller=ControllerAddress("127.0.0.1", 9),  # nobody is there
            image=image,
            command=("sleep", "1000"),
        )
    )
    peers = [gpu.ip for gpu in fabric.gpus.values()]
    wanted = [
        WorkerRequest(job="bench", rank=rank, gpu=name, spec={"peers": peers})
        for rank, name in enumerate(fabric.gpus)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--containers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--runtime", choices=["docker", "namespace"], default="docker")
    parser.add_argument("--image", help="image to use (default: the worker image)")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    runs = [once(chosen.containers, chosen.image, chosen.runtime) for _ in range(chosen.repeat)]
    median = {key: round(statistics.median(run[key] for run in runs), 3) for key in runs[0]}
    worst = {key: round(max(run[key] for run in runs), 3) for key in runs[0]}
    figures = {
        "benchmark": "bringup",
        "containers": chosen.containers,
        "runtime": chosen.runtime,
        "repeat": chosen.repeat,
        "median": median,
        "worst": worst,
        "limit": LIMIT,
        "containernet": CONTAINERNET,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
