"""The emulated averager of OptINC: how fast, and what it costs. Needs root.

N clients in namespaces of their own, over veths without a rate, send codes that are ready and throw the
answers away; payload per port and second (1e6 bytes) from the first byte to the last answer, and the
averager's processor seconds over that time. All processes share the machine's processors.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import need_root, spread
from ringlight.extensions.optinc.unit import wire
from ringlight.extensions.optinc.unit.wire import (
    HEADER_BYTES,
    Form,
    FrameKind,
    Hello,
    Position,
)
from ringlight.testbed.emulation.kernel import namespaces
from tests.extensions.optinc.integration import averager_rig as rig

BITS = 8


def alone(
    servers: list[int] = [4, 8, 16], mebibytes: float = 64, rounds: int = 5
) -> dict[str, Any]:
    """The averager between clients that only send and receive ``mebibytes`` per port in each round."""
    need_root()
    return {
        f"N = {ports}": _alone(ports, int(mebibytes * 2**20), rounds)
        for ports in servers
    }


def _alone(servers: int, size: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        links = stack.enter_context(rig.links(servers, None))
        averager = stack.enter_context(_averager(directory, links, servers))
        clients = []
        for rank in range(servers):
            words = map(str, (rank, servers, size, rounds))
            command = [
                sys.executable,
                "-m",
                "benchmarks.optinc_averager",
                links.address(rank),
                *words,
            ]
            start = partial(
                subprocess.Popen, command, cwd=rig.ROOT, stdout=subprocess.PIPE
            )
            clients.append(namespaces.in_namespace(links.servers[rank], start))
            stack.callback(clients[-1].kill)
        spans = [
            list(map(json.loads, one.communicate(timeout=600)[0].splitlines()))
            for one in clients
        ]
        status = averager.stop()
    seconds = _seconds(spans)
    return {
        "MBps_per_port": spread(size / second / 1e6 for second in seconds),
        "averager_cpu_share": status["cpu_s"] / sum(seconds),
        "averager_cpu_s_per_MB_of_a_port": status["cpu_s"] / (size * rounds / 1e6),
        "latency_s": status["latency_s"],
        "errors": status["errors"],
    }


PARTS = (alone,)


def _seconds(spans: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Seconds of each round, from the first rank's begin to the last one's end."""
    return [
        max(end for _, end in turn) - min(begin for begin, _ in turn)
        for turn in zip(*spans, strict=True)
    ]


def _averager(directory: Path, links: rig.Links, servers: int) -> Any:
    words = (
        "--listen",
        f"0.0.0.0:{rig.PORT}",
        "--bits",
        str(BITS),
        "--servers",
        str(servers),
    )
    return rig.averaging(directory, "averager", links.averager, *words)


def client(address: str, rank: int, servers: int, size: int, rounds: int) -> None:
    """Send the same codes ``rounds`` times; print when each round began and ended."""
    frame = wire.FRAME
    codes = np.random.default_rng(rank).integers(0, 2**BITS, size, np.uint8)
    with socket.create_connection((address, rig.PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            wire.hello(Hello(rank, servers, Form(BITS), 1024, frame, Position(0, 0)))
        )
        connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
        into = memoryview(bytearray(2**20))
        for number in range(rounds + 1):
            # The first round is a word of one code, so that all begin together.
            part = codes if number else codes[:1]
            data = b"".join(
                wire.header(
                    FrameKind.CODES,
                    Position(number, i),
                    part[start : start + frame].size,
                )
                + part[start : start + frame].tobytes()
                for i, start in enumerate(range(0, part.size, frame))
            )
            began = time.monotonic()
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            left = len(data)
            while left:
                count = connection.recv_into(into[: min(left, len(into))])
                if not count:
                    raise SystemExit(f"rank {rank}: the averager closed the connection")
                left -= count
            sender.join()
            if number:
                print(json.dumps([began, time.monotonic()]))


if __name__ == "__main__":
    client(sys.argv[1], *map(int, sys.argv[2:]))
