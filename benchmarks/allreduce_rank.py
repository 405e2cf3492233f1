"""One rank of ``benchmarks.allreduce``: obeys the words that come on standard input.

It runs in the Python environment of its back end, so it imports nothing of the other one's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def our_all_reduce(
    rank: int, ranks: int, port: int, vector: Any
) -> Callable[[], object]:
    from ringlight.containers.worker.assignment import partners
    from ringlight.containers.worker.rendezvous import Line, connect_all, listen
    from ringlight.containers.worker.spec import WorkerSpec
    from ringlight.containers.worker.transport import Transport
    from ringlight.fabric.collectives import all_reduce

    peers = tuple(f"127.0.0.{peer + 1}" for peer in range(ranks))
    spec = WorkerSpec("benchmark", rank, ranks, peers, port=port)
    schedule = all_reduce("ring", ranks)
    with listen(spec, time.monotonic() + 10) as listener:
        others = set().union(*partners(schedule, rank))
        lines = connect_all(spec, dict.fromkeys(map(Line, others), True), listener)
        connections = {line.peer: connection for line, connection in lines.items()}
    transport = Transport(schedule, rank, connections, len(vector))
    return lambda: transport.run(vector)


def gloo_all_reduce(
    rank: int, ranks: int, port: int, vector: Any
) -> Callable[[], object]:
    import torch
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    tensor = torch.from_numpy(vector)
    return lambda: distributed.all_reduce(tensor)


def main(backend: str, rank: int, ranks: int, port: int, length: int) -> None:
    pattern = (np.arange(length) % 251).astype(np.float32)
    expected = pattern * ranks + ranks * (ranks - 1) // 2
    vector = np.empty(length, dtype=np.float32)
    make = our_all_reduce if backend == "ringlight" else gloo_all_reduce
    all_reduce = make(rank, ranks, port, vector)
    for word in map(str.strip, sys.stdin):
        answer: dict[str, object] = {}
        if word == "prepare":
            np.add(pattern, np.float32(rank), out=vector)
        elif word == "check":
            answer = {"right": bool(np.array_equal(vector, expected))}
        else:
            cpu, start = time.process_time(), time.monotonic()
            report = all_reduce()
            answer = {
                "start": start,
                "end": time.monotonic(),
                "cpu_s": time.process_time() - cpu,
            }
            answer["bytes_lent"] = getattr(report, "bytes_lent", 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
