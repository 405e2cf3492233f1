"""Labs without a job: how soon they come up and go, and what they take meanwhile. Needs root.

``bringup``: 16 containers on one packet switch with shaped links. Bring-up: from nothing to 16 running
containers, each with its NIC, address, shaping in both directions and its port on the switch read back.
Tear-down: from there to nothing. Importing the program is not counted, as it is not for the peer.
Containernet's figures were measured on a machine of the same size.

``idle``: a lab of 64 GPUs in which nothing happens: the processor time of all of its processes, and of Open
vSwitch, which is that of all labs of the machine.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Literal

from benchmarks.harness import ROOT, lab_up, need_root, processor_s, show, spread
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.agent.worker_requests import WorkerRequest
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.settings import Settings
from ringlight.testbed.emulation.testbed import Testbed
from ringlight.testbed.lab import new_lab
from tests.integration.labs import NOBODY

CONTAINERNET = {"bring_up_s": 6.2, "tear_down_s": 2.3}
LIMIT = {"bring_up_s": 1.0, "tear_down_s": 0.4}
#: Of one processor.
IDLE_SHARE = 0.02
OPEN_VSWITCH = ("ovs-vswitchd", "ovsdb-server")


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


def idle(
    scenario: Path = ROOT / "scenarios" / "examples" / "sixty_four.yaml",
    runtime: Literal["docker", "namespace"] = "namespace",
    settle: float = 15.0,
    seconds: float = 30.0,
) -> dict[str, Any]:
    """``settle``: seconds after the lab is up that do not count; ``seconds``: of measuring."""
    with lab_up(scenario, runtime) as lab:
        time.sleep(settle)
        began, before = time.monotonic(), used_s(lab["lab"])
        time.sleep(seconds)
        passed, after = time.monotonic() - began, used_s(lab["lab"])
    shares: dict[str, float] = {}
    for pid, (name, now_s) in after.items():
        shares[name] = (
            shares.get(name, 0.0) + (now_s - before.get(pid, ("", 0.0))[1]) / passed
        )
    total = sum(shares.values())
    show(
        ("process", "share of a processor"),
        [(name, f"{share:.2%}") for name, share in shares.items()],
    )
    return {
        "scenario": scenario.name,
        "processes": len(after),
        "share_of_a_processor": {
            name: round(share, 4) for name, share in shares.items()
        },
        "all": round(total, 4),
        "limit": IDLE_SHARE,
        "missed": [f"{total:.1%} of a processor, not {IDLE_SHARE:.0%}"]
        if total > IDLE_SHARE
        else [],
    }


PARTS = (bringup, idle)


def used_s(lab: str) -> dict[int, tuple[str, float]]:
    """Name and processor time so far of each process of a lab, of their children, and of Open vSwitch."""
    words, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words[int(entry.name)] = (
                    (entry / "cmdline").read_text(errors="replace").split("\0")
                )
                status = (entry / "status").read_text()
            except OSError:
                # It has ended.
                continue
            parents[int(entry.name)] = int(status.partition("PPid:")[2].split()[0])
    found = {}
    for pid, command in words.items():
        name = Path(command[0]).name
        if "-m" in command:
            name = command[command.index("-m") + 1]
        if name in OPEN_VSWITCH or any(
            f"/{lab}/" in word for word in (*command, *words.get(parents[pid], ()))
        ):
            try:
                found[pid] = name, processor_s(pid)
            except OSError:
                continue
    return found


def once(
    containers: int, image: str | None, runtime: Literal["docker", "namespace"]
) -> dict[str, float]:
    links = [
        {"ends": [f"g{i}", f"tor0:{i + 1}"], "rate": "40 Gbit/s"}
        for i in range(containers)
    ]
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
        WorkerRequest(job="bench", rank=rank, gpu=name, spec=spec)
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
    return {
        "network_s": network - began,
        "bring_up_s": up - began,
        "tear_down_s": down - stopping,
    }
