"""What TCP gives away where flows fill links: exchanges of 2 to 16 GPUs on one packet switch. Needs root.

Each GPU sends to others at once and receives from as many (an all-to-all in equal parts), with queues of few
and of many frames, over links that emulate ``RATE_BPS``. Its time is compared with that of a simulation in
which flows share links max-min fairly and nothing but headers takes of them. ``cold``: of the first exchange
of new connections; ``warm``: of all but the first two, whose shares are in ``fabric/full_load.py``.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness import need_root, ringlight, tell
from ringlight.fabric.frames import ETHERNET_BYTES, LARGEST_MTU_BYTES

#: Rate of each link as emulated, bits per second, and frames of a message.
RATE_BPS, MESSAGE_FRAMES = 20e6, 100
#: Exchanges of which the first are cold.
EXCHANGES, COLD = 5, 2
_FRAME_BYTES = LARGEST_MTU_BYTES + ETHERNET_BYTES


def scenario_of(degrees: list[int], queues: list[int]) -> str:
    """A scenario file with an arm for each number of flows and frames in a queue."""
    fabrics, arms = {}, {}
    for degree in degrees:
        for queue in queues:
            name = f"flows-{degree}-{queue}"
            gpus = [f"g{i}" for i in range(degree + 1)]
            queue_s = 8 * queue * _FRAME_BYTES / RATE_BPS
            fabrics[name] = {
                "servers": {
                    f"s{i}": {"gpus": {gpu: "gpu"}} for i, gpu in enumerate(gpus)
                },
                "packet_switches": {"tor": {"ports": len(gpus)}},
                "links": [
                    {
                        "ends": [gpu, f"tor:{i + 1}"],
                        "rate": "20 Mbit/s",
                        "queue": f"{1e3 * queue_s:.2f} ms",
                    }
                    for i, gpu in enumerate(gpus)
                ],
            }
            size = (degree + 1) * MESSAGE_FRAMES * LARGEST_MTU_BYTES // 4 * 4
            work = {
                "collective": "all-to-all",
                "size": f"{size} B",
                "iterations": EXCHANGES,
            }
            arms[name] = {
                "fabric": name,
                "jobs": {"job": {"ranks": gpus, "workload": work}},
            }
    return yaml.safe_dump(
        {
            "name": "full-load",
            "description": "Exchanges that fill links.",
            "tcp": {"congestion_control": "reno", "rto_min": "200 ms"},
            "link_test": {"duration": "800 ms"},
            "fabrics": fabrics,
            "arms": arms,
        },
        sort_keys=False,
    )


def exchanges_s(run: Path) -> dict[str, list[float]]:
    """Seconds of each exchange of a run folder, by arm."""
    ends: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    with (run / "events.jsonl").open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            if event["event"] == "iteration":
                ends[event["run"], event["i"]].append(
                    (event["compute_start"], event["allreduce_end"])
                )
    found: dict[str, list[float]] = defaultdict(list)
    for (name, _), times in sorted(ends.items()):
        found[name].append(
            max(end for _, end in times) - min(begin for begin, _ in times)
        )
    return found


def full_load(
    flows: list[int] = [1, 2, 4, 8, 15],
    queue: list[int] = [6, 20, 60],
    option: list[str] = [],
) -> dict[str, Any]:
    """``flows``: that each GPU sends at once; ``queue``: frames that each queue holds; ``option``: of
    ``ringlight run``."""
    need_root()
    with tempfile.TemporaryDirectory() as folder:
        file, runs = Path(folder, "full-load.yaml"), Path(folder, "runs")
        file.write_text(scenario_of(flows, queue), encoding="utf-8")
        emulated = json.loads(
            ringlight("run", str(file), "--runs", str(runs), "--json", *option)
        )
        simulated = json.loads(
            ringlight("simulate", str(file), "--runs", str(runs), "--json")
        )
        took, ideal = (
            exchanges_s(runs / found["run"]) for found in (emulated, simulated)
        )
    rows = []
    for name, times in took.items():
        degree, frames = map(int, name.split("-")[1:])
        least = statistics.fmean(ideal[name])
        row = {
            "flows": degree,
            "queue_frames": frames,
            "cold": round(least / times[0], 4),
            "warm": round(least / statistics.fmean(times[COLD:]), 4),
        }
        tell(json.dumps(row))
        rows.append(row)
    warm = {
        degree: round(
            statistics.median(row["warm"] for row in rows if row["flows"] == degree), 4
        )
        for degree in flows
    }
    return {"verdict": emulated["fidelity"]["verdict"], "rows": rows, "warm": warm}


PARTS = (full_load,)
