"""Runs flows in SimGrid, for comparison. Debian's own Python runs it: package python3-simgrid.

    /usr/bin/python3 tests/simgrid_flows.py < cases.jsonl > ends.jsonl

A case is one line, {"capacity": [...], "paths": [[link, …], …], "sizes": [...], "starts": [...]}; its answer
is a line {"ends": [...], "seconds": wall-clock time of the simulation}. Each case has a process of its own,
because SimGrid has one engine per process. Sharing is set to plain max-min: model CM02 without its window,
without acknowledgements' traffic and without latencies (it weighs shares by them). A case may state its
"precision"; without one it is SimGrid's own, which is coarser and faster. It may name each flow's "hosts",
[[from, to], …]; otherwise each flow has its own, for SimGrid knows only one way from one host to another.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import traceback
from typing import Any

OPTIONS = [
    "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0",
    "--log=root.thresh:critical",
]  # fmt: skip
PRECISION = ["surf/precision", "maxmin/precision"]


def solve(case: dict[str, Any]) -> dict[str, Any]:
    import simgrid

    begin = time.perf_counter()
    precision = case.get("precision")
    fine = (
        [] if precision is None else [f"--cfg={name}:{precision}" for name in PRECISION]
    )
    engine = simgrid.Engine(["flows", *OPTIONS, *fine])
    # Names as of 4.0 (Debian 13), and as they were (Debian 12, Ubuntu 24.04).
    new = hasattr(simgrid.NetZone, "add_netzone_full")
    zone = (
        engine.netzone_root.add_netzone_full("zone")
        if new
        else simgrid.NetZone.create_full_zone("zone")
    )
    add_link, add_host = (
        (zone.add_link, zone.add_host) if new else (zone.create_link, zone.create_host)
    )
    links = [
        simgrid.LinkInRoute(add_link(f"l{k}", capacity).seal())
        for k, capacity in enumerate(case["capacity"])
    ]
    ends: list[Any] = []

    @functools.cache
    def host(name: str) -> Any:
        return add_host(name, 1e9)

    for k, path in enumerate(case["paths"]):
        a, b = (
            host(name)
            for name in (case["hosts"][k] if "hosts" in case else (f"a{k}", f"b{k}"))
        )
        route = [links[link] for link in path]
        if new:
            zone.add_route(a, b, route, False)
        else:
            zone.add_route(a.netpoint, b.netpoint, None, None, route, False)
        ends.append((a, b))
    zone.seal()
    order = sorted(range(len(ends)), key=lambda k: case["starts"][k])
    comms: list[Any] = [None] * len(ends)

    def start() -> None:
        for k in order:
            if case["starts"][k] > simgrid.Engine.clock:
                simgrid.this_actor.sleep_until(case["starts"][k])
            # SimGrid takes whole bytes.
            comms[k] = simgrid.Comm.sendto_async(*ends[k], int(case["sizes"][k]))
        for comm in comms:
            comm.wait()

    simgrid.Actor.create("starter", ends[0][0], start)
    engine.run()
    found = [comm.finish_time for comm in comms]
    return {"ends": found, "seconds": time.perf_counter() - begin}


def in_a_process(line: str) -> str:
    """The answer to one case, from a child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(solve(json.loads(line)), pipe)
            os._exit(0)
        except BaseException:  # noqa: BLE001  a child must not go on in its parent's loop
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"SimGrid failed on a case, status {status}")
    return answer


def main() -> None:
    for line in sys.stdin:
        sys.stdout.write(in_a_process(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
