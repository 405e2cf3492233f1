"""What several machines would carry together, on paper: from what things cost on one.

``vxlan``: what a frame costs on a fibre between two hosts, and how many a second one processor carries; needs
root. ``scheduler``: what Dask's takes for each worker, task and question. ``controller``: what a lab's takes
for each packet switch; needs root. ``table``: D and S of one lab of 64, 256 and 1,024 GPUs over 1, 8 and 64
machines, what limits it, and how long an iteration takes then, by the simulation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from pyroute2.iproute import IPRoute

from benchmarks.harness import (
    lab_up,
    need_root,
    processor_s,
    processor_share,
    running,
    show,
    until,
)
from ringlight.experiments.analysis.carrying import MEASURED, REFERENCE
from ringlight.experiments.analysis.scaling import FULL, choose_scale
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import RunEnded
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.hosts.certificates import make_certificates
from ringlight.extensions.hosts.cluster import hosts_of
from ringlight.extensions.hosts.cut import cut
from ringlight.extensions.hosts.parts.plan import Tunnel
from ringlight.extensions.hosts.parts.tunnel import create_vxlan
from ringlight.fabric.frames import LARGEST_MTU_BYTES
from ringlight.testbed.emulation import calibration
from ringlight.testbed.emulation.clean import clean
from ringlight.testbed.emulation.kernel import addressing, namespaces, netlink
from ringlight.testbed.lab import Lab, new_lab
from tests.integration.controller_rig import free_port

#: Seconds of one processor that a VXLAN fibre adds to a frame, both hosts together: ``vxlan`` found 22.1 µs
#: with and 22.5 µs without on 2 processors of an AMD EPYC, 2026-11-26, and can tell 2 µs.
VXLAN_S = 2e-6
#: Seconds of one processor to start a worker in a container (docs/scale.md).
START_S = 0.3
#: GPUs of a packet switch, which are of one host; machines and their processors.
LEAF, MACHINES, SIZES = 8, ((1, 2), (1, 64), (8, 16), (64, 16)), (64, 256, 1024)

#: Tasks and questions that are counted, at least.
_TASKS = 512
#: So many workers in one process.
_WORKERS = """
import asyncio, sys
from distributed import Worker
async def main():
    address, count = sys.argv[1], int(sys.argv[2])
    more = dict(nthreads=1, resources={"HOST": 1}, dashboard=False)
    workers = [Worker(address, host=f"127.0.1.{n + 1}", name=f"h{n + 1}", **more) for n in range(count)]
    for worker in workers:
        await worker
    print("all are ready", flush=True)
    await asyncio.gather(*(worker.finished() for worker in workers))
asyncio.run(main())
"""

COLUMNS = (
    *("gpus", "machines", "processors", "D", "S", "limit"),
    *("links_gbps", "cut_gbps", "up_s", "iteration_s", "simulated_in_s"),
)


def vxlan(rounds: int = 3) -> dict[str, Any]:
    """Processor time of each frame of one stream between two network namespaces: over a veth pair, and over a
    VXLAN on a veth pair. The difference is what a cut fibre adds, with the link below it."""
    need_root()
    lab = new_lab()
    found: dict[str, list[float]] = {"veth pair": [], "VXLAN": []}
    with lab.hold():
        try:
            for _ in range(rounds):
                for name, built in (
                    ("veth pair", calibration._plain),
                    ("VXLAN", _tunnelled),
                ):
                    with built(lab) as ends:
                        found[name].append(calibration._cost(lab, ends).frame_s)
        finally:
            clean(lab.id)
    least = {name: min(each) for name, each in found.items()}
    added_s = least["VXLAN"] - least["veth pair"]
    show(
        ("way", "µs for each frame"),
        [(name, round(1e6 * each, 1)) for name, each in least.items()],
    )
    return {
        "frame_s": least,
        "added_s": added_s,
        "frames_per_processor": 1 / least["VXLAN"],
        "all": found,
    }


def scheduler(
    workers: str = "8,64", seconds: float = 20.0, rounds: int = 3
) -> list[dict[str, Any]]:
    """Processor time and memory of Dask's scheduler with so many workers, over TLS: while nothing happens,
    for a task that is pinned to a host as a part of a lab is, for a lab's question which hosts have a worker,
    and for each host that is asked something. Workers are in one process, each at an address of its own."""
    return _sizes(_scheduled, workers, seconds, rounds)


def controller(
    switches: str = "16,64,128", seconds: float = 20.0
) -> list[dict[str, Any]]:
    """Processor time and memory of the controller of a lab of so many packet switches in a ring, each with a
    GPU, in which nothing happens, and its processor time until the lab is up."""
    need_root()
    return _sizes(_controlled, switches, seconds)


def table(iterations: int = 3) -> list[dict[str, Any]]:
    """Jobs of eight GPUs, one on each of eight packet switches in a ring, 100 Gbit/s for each GPU, which the
    fast path carries. The costs are those of a Xeon with 2 processors that was measured."""
    rows = []
    for gpus in SIZES:
        plan = _plan(gpus, iterations)
        began = time.monotonic()
        records, _ = run_alone(SimulationBackend(), plan)
        (ended,) = [record for record in records if isinstance(record, RunEnded)]
        simulated_s = time.monotonic() - began
        # A machine has at least one packet switch.
        for machines, processors in (
            each for each in MACHINES if each[0] <= gpus // LEAF
        ):
            row = _row(plan, gpus, machines, processors)
            rows.append(
                {
                    **row,
                    "iteration_s": ended.t / iterations * row["D"],
                    "simulated_in_s": simulated_s,
                }
            )
    show(list(COLUMNS), [[_short(row[key]) for key in COLUMNS] for row in rows])
    return rows


PARTS = (vxlan, scheduler, controller, table)


def _sizes(
    measure: Callable[..., dict[str, Any]], sizes: str, *more: float
) -> list[dict[str, Any]]:
    """What is measured at each of some sizes, ``8,64``, as a table, too."""
    rows = [measure(int(size), *more) for size in sizes.split(",")]
    show(list(rows[0]), [[_short(value) for value in row.values()] for row in rows])
    return rows


def _scheduled(count: int, seconds: float, rounds: int) -> dict[str, Any]:
    import dask.config
    import distributed  # noqa: F401  # its defaults

    with TemporaryDirectory(prefix="ringlight-dask-") as name:
        folder = Path(name)
        config = make_certificates(folder / "certificates").parent
        environment = {**os.environ, "DASK_CONFIG": str(config)}
        address = f"tls://127.0.0.1:{free_port()}"
        command = [
            sys.executable,
            "-m",
            "distributed.cli.dask_scheduler",
            "--no-dashboard",
        ]
        command += ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
        workers = [sys.executable, "-c", _WORKERS, address, str(count)]
        found = dask.config.merge(
            dask.config.config, dask.config.collect([str(config)], env={})
        )
        with (
            dask.config.set(found),
            running(command, folder / "scheduler.log", environment) as process,
            running(workers, folder / "workers.log", environment),
        ):
            until(
                lambda: (folder / "workers.log").read_text().count("all are ready"),
                "workers",
            )
            with hosts_of(address) as cluster:
                hosts = cluster.hosts
                assert len(hosts) == count
                time.sleep(5.0)
                idle = processor_share(process.pid, seconds)

                def taken(call: Callable[[], object], times: int) -> float:
                    """Processor seconds of the scheduler for each of so many, without what it takes idle."""
                    began_s, before_s = time.monotonic(), processor_s(process.pid)
                    call()
                    took_s = (
                        processor_s(process.pid)
                        - before_s
                        - idle * (time.monotonic() - began_s)
                    )
                    return took_s / times

                def tasks() -> None:
                    for _ in range(rounds * _TASKS // count):
                        for future in [cluster.submit(abs, -1, host) for host in hosts]:
                            future.result()

                return {
                    "workers": count,
                    "idle, of a processor": idle,
                    "task_s": taken(tasks, rounds * _TASKS // count * count),
                    "question_s": taken(
                        lambda: [cluster.present() for _ in range(_TASKS)], _TASKS
                    ),
                    "asked_s": taken(
                        lambda: [cluster.ask(abs, -1) for _ in range(_TASKS // count)],
                        _TASKS // count * count,
                    ),
                    "memory_mib": _memory_mib(process.pid),
                }


def _controlled(count: int, seconds: float) -> dict[str, Any]:
    names, fabric = _ring(count, 1)
    scenario = {
        "name": "switches",
        "description": "Packet switches in a ring.",
        "scale": {"payload": 1000},
        "fabric": fabric,
        "training": {
            "model": "resnet50",
            "compute": "1 s",
            "batch": 1,
            "iterations": 1,
        },
        "jobs": {"j": {"ranks": [names[0][0], names[1][0]]}},
        "arms": {"all": {"title": "All"}},
    }
    with TemporaryDirectory(prefix="ringlight-switches-") as folder:
        file = Path(folder, "switches.yaml")
        file.write_text(yaml.safe_dump(scenario), encoding="utf-8")
        took_s: dict[str, float] = {}
        with lab_up(file, "namespace", took_s) as lab:
            pid = lab["pids"]["controller"]
            up_s = processor_s(pid)
            time.sleep(10.0)
            idle = processor_share(pid, seconds)
            memory_mib = _memory_mib(pid)
    return {
        "switches": count,
        "until it is up, processor_s": up_s,
        "up_s": took_s["all"],
        "idle, of a processor": idle,
        "memory_mib": memory_mib,
    }


def _memory_mib(pid: int) -> float:
    """What a process has of its own of resident memory, and its share of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return (
        next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    )


def _short(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


@dataclass(frozen=True)
class _Crossing:
    """Frames of all hosts that go to others, a second at real rates and S = 1."""

    frames: float
    rate_bps: float


def _row(plan: Any, gpus: int, machines: int, processors: int) -> dict[str, Any]:
    costs, every = MEASURED.past_switches(), machines * processors
    chosen = choose_scale([plan], costs, every, REFERENCE, machines)
    wants, limit = dict(chosen.wants), chosen.limit
    crossing = _crossing(plan, machines)
    # All links of a cut may be full at once, both ways.
    wants["VXLAN"] = crossing.frames * VXLAN_S / chosen.payload / (FULL * every)
    time_scale = max(chosen.time, wants["VXLAN"])
    if wants["VXLAN"] > chosen.time:
        limit = "VXLAN"
    divided = time_scale * chosen.payload
    return {
        "gpus": gpus,
        "machines": machines,
        "processors": processors,
        "D": time_scale,
        "S": chosen.payload,
        "limit": limit,
        "links_gbps": gpus * 100 / divided,
        "cut_gbps": crossing.rate_bps / 1e9 / divided,
        "up_s": gpus * START_S / every,
        "wants": wants,
    }


def _crossing(plan: Any, machines: int) -> _Crossing:
    if machines == 1:
        return _Crossing(0.0, 0.0)
    divided = cut(plan.setting.fabric, machines)
    rate_bps = 2 * sum(fibre.link.rate_bps for fibre in divided.fibres)
    return _Crossing(rate_bps / 8 / LARGEST_MTU_BYTES, rate_bps)


def _ring(switches: int, gpus: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Names of GPUs by the packet switch that they are behind, and the fabric: the switches in a ring."""
    names = [
        [f"g{number}-{port}" for port in range(gpus)] for number in range(switches)
    ]
    links = [
        {"ends": [name, f"tor{number}:{port + 1}"], "rate": "100 Gbit/s"}
        for number, group in enumerate(names)
        for port, name in enumerate(group)
    ]
    links += [
        {
            "ends": [
                f"tor{number}:{gpus + 1}",
                f"tor{(number + 1) % switches}:{gpus + 2}",
            ],
            "rate": "400 Gbit/s",
        }
        for number in range(switches)
    ]
    return names, {
        "servers": {
            f"s{number}": {"gpus": dict.fromkeys(group, "a100")}
            for number, group in enumerate(names)
        },
        "packet_switches": {
            f"tor{number}": {"ports": gpus + 2} for number in range(switches)
        },
        "links": links,
    }


def _plan(gpus: int, iterations: int) -> Any:
    leaves = gpus // LEAF
    every, fabric = _ring(leaves, LEAF)
    groups = [every[first : first + LEAF] for first in range(0, leaves, LEAF)]
    jobs = {
        f"j{number}-{port}": {"ranks": [names[port] for names in group]}
        for number, group in enumerate(groups)
        for port in range(LEAF)
    }
    scenario = {
        "name": "on-paper",
        "description": "Jobs of eight GPUs on eight packet switches of a ring.",
        "fabric": fabric,
        "training": {
            "model": "resnet50", "compute": "40 ms", "batch": 16, "iterations": iterations,
            "gradient": "400 MB", "collective": "ring",
        },
        "tcp": {"rto_min": "10 ms"},
        "jobs": jobs,
        "arms": {"scattered": {"title": "Scattered"}},
    }  # fmt: skip
    (plan,) = parse(yaml.safe_dump(scenario), "on-paper.yaml").plans_of((), ())
    return plan


@contextmanager
def _tunnelled(lab: Lab) -> Iterator[tuple[int, int]]:
    with calibration._hosts(lab) as ends:
        with IPRoute() as here:
            netlink.create_veth(
                here, "below", "below", namespace=ends[0], peer_namespace=ends[1]
            )
        for number, end in enumerate(ends, 1):

            def inside(number: int = number) -> None:
                with IPRoute() as own:
                    index = netlink.set_up(own, "below")
                    own.link("set", index=index, mtu=LARGEST_MTU_BYTES + 100)
                    addressing.address(
                        own, index, f"10.79.0.{number}", 24, rto_min_s=0.02
                    )
                    tunnel = Tunnel(
                        77, f"10.79.0.{number}", f"10.79.0.{3 - number}", 14789
                    )
                    create_vxlan(own, "eth0", tunnel)

            namespaces.in_namespace(end, inside)
        calibration._set_up(ends)
        yield ends
