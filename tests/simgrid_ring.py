"""Run one ring all-reduce in SimGrid, for comparison, by messages between actors.

    /usr/bin/python3 tests/simgrid_ring.py < ring.json

``{"capacity": [bytes per second by link], "paths": [[link, …] by rank], "size": bytes of a chunk}``;
the answer is ``{"end_s": simulated, "seconds": wall-clock time of the simulation}``. Options as in
``simgrid_flows.py``.
"""

from __future__ import annotations

import json
import sys
import time

import simgrid

OPTIONS = [
    "--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0",
    "--log=root.thresh:critical",
]  # fmt: skip


def rank(number: int, ranks: int, size: int) -> None:
    """Send a chunk to the next rank in every step, and from the second on what came in the step before."""
    came, out = (
        simgrid.Mailbox.by_name(str(one)) for one in (number, (number + 1) % ranks)
    )
    sent = []
    for _ in range(2 * (ranks - 1)):
        sent.append(out.put_async(b"", size))
        came.get()
    for message in sent:
        message.wait()


def main() -> None:
    case = json.load(sys.stdin)
    engine = simgrid.Engine(["ring", *OPTIONS])
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
    ranks = len(case["paths"])
    hosts = [add_host(f"h{k}", 1e9) for k in range(ranks)]
    for k, path in enumerate(case["paths"]):
        a, b, route = hosts[k], hosts[(k + 1) % ranks], [links[link] for link in path]
        if new:
            zone.add_route(a, b, route, False)
        else:
            zone.add_route(a.netpoint, b.netpoint, None, None, route, False)
    zone.seal()
    for k, host in enumerate(hosts):
        simgrid.Actor.create(f"r{k}", host, rank, k, ranks, int(case["size"]))
    begin = time.perf_counter()
    engine.run()
    print(json.dumps({"end_s": engine.clock, "seconds": time.perf_counter() - begin}))  # noqa: T201


if __name__ == "__main__":
    main()
