"""The emulated averager of OptINC: how fast, and what it costs. Needs root.

``lookup``: the table alone. ``alone``: N clients in namespaces of their own, over veths without a rate, send
codes that are ready and throw the answers away; payload per port and second (1e6 bytes) from the first byte
to the last answer, and the averager's processor seconds over that time. ``servers``: four servers that
quantise and turn back, over links of each rate (Mbit/s): time of a collective over what its bytes need,
bytes on the wire over payload at the port where they are most, the averager's share of a processor, its
latency from the last byte of a frame to the first of its answer. All processes share the machine's
processors.
"""

from __future__ import annotations

import json
import socket
import statistics
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

from benchmarks.harness import need_root, spread, timed
from ringlight.fabric.optinc import wire
from ringlight.fabric.optinc.averaging import Coding
from ringlight.fabric.optinc.wire import HEADER_BYTES, Form, FrameKind, Hello, Position
from ringlight.testbed.emulation import netlink
from ringlight.testbed.emulation.averager.lookup import Lookup, evaluate
from tests.integration import averager_rig as rig

BITS, RANKS = 8, 4


def lookup(servers: list[int] = [4, 8, 16]) -> dict[str, Any]:
    """Processor time of the table, and how many codes it answers in a second of it."""
    return {f"N = {ports}": _lookup(Coding(BITS, ports)) for ports in servers}


def _lookup(coding: Coding) -> dict[str, Any]:
    began = time.process_time()
    table = evaluate(None, coding)
    built_s = time.process_time() - began
    apply, rng = Lookup(table), np.random.default_rng(1)
    codes = [rng.integers(0, 2**BITS, wire.FRAME, np.uint8) for _ in range(coding.servers)]
    seconds = timed(lambda: apply(codes), 200, clock=time.process_time)
    rates = spread(wire.FRAME / second / 1e6 for second in seconds)
    return {"combinations": coding.combinations, "table_cpu_s": built_s, "Mcodes_per_s": rates}


def alone(servers: list[int] = [4, 8, 16], mebibytes: float = 64, rounds: int = 5) -> dict[str, Any]:
    """The averager between clients that only send and receive ``mebibytes`` per port in each round."""
    need_root()
    return {f"N = {ports}": _alone(ports, int(mebibytes * 2**20), rounds) for ports in servers}


def _alone(servers: int, size: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        links = stack.enter_context(rig.links(servers, None))
        averager = stack.enter_context(_averager(directory, links, servers))
        clients = []
        for rank in range(servers):
            words = map(str, (rank, servers, size, rounds))
            command = [sys.executable, "-m", "benchmarks.averager", links.address(rank), *words]
            start = partial(subprocess.Popen, command, cwd=rig.ROOT, stdout=subprocess.PIPE)
            clients.append(netlink.in_namespace(links.servers[rank], start))
            stack.callback(clients[-1].kill)
        spans = [list(map(json.loads, one.communicate(timeout=600)[0].splitlines())) for one in clients]
        status = averager.stop()
    seconds = _seconds(spans)
    return {
        "MBps_per_port": spread(size / second / 1e6 for second in seconds),
        "averager_cpu_share": status["cpu_s"] / sum(seconds),
        "averager_cpu_s_per_MB_of_a_port": status["cpu_s"] / (size * rounds / 1e6),
        "latency_s": status["latency_s"],
        "errors": status["errors"],
    }


def servers(rates: list[float] = [100, 400], rounds: int = 5) -> dict[str, Any]:
    """Four servers with links of each rate, Mbit/s, and collectives of 8 MiB."""
    need_root()
    return {f"{rate:g} Mbit/s": _servers(rate * 1e6, 8 * 2**20, rounds) for rate in rates}


def _servers(rate_bps: float, size: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        links = stack.enter_context(rig.links(RANKS, rate_bps))
        averager = stack.enter_context(_averager(directory, links, RANKS))
        stack.enter_context(rig.hub_of(directory, RANKS))
        sizes, hub = (size,) * rounds, str(directory / "hub")
        plans = [
            rig.Plan(rank, RANKS, RANKS, links.address(rank), rig.PORT, hub, sizes) for rank in range(RANKS)
        ]
        before = [links.bytes_of(rank) for rank in range(RANKS)]
        answers = stack.enter_context(rig.serving(plans, links.servers)).answers(600)
        after = [links.bytes_of(rank) for rank in range(RANKS)]
        status = averager.stop()
    if failed := [answer["failed"] for answer in answers if "failed" in answer]:
        raise SystemExit(f"{rate_bps:g} bit/s: {failed[0]}")
    seconds, payload = _seconds([answer["spans"] for answer in answers]), size * rounds
    moved = np.subtract(after, before).max(axis=0) / payload
    wanted = [rig.digest(rig.expected(plans[0], number)) for number in range(rounds)]
    return {
        "values": size,
        "seconds": spread(seconds),
        "over_what_the_bytes_need": statistics.median(seconds) / (size * 8 / rate_bps),
        "wire_bytes_over_payload": dict(zip(("sent", "received"), moved.tolist(), strict=True)),
        "scale_bytes_over_payload": answers[0]["moved"]["scale_bytes"] / payload,
        "averager_cpu_share": status["cpu_s"] / sum(seconds),
        "server_cpu_s": [answer["cpu_s"] for answer in answers],
        "latency_s": status["latency_s"],
        "right": all(answer["digests"] == wanted for answer in answers),
    }


PARTS = (lookup, alone, servers)


def _seconds(spans: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Seconds of each round, from the first rank's begin to the last one's end."""
    return [
        max(end for _, end in turn) - min(begin for begin, _ in turn) for turn in zip(*spans, strict=True)
    ]


def _averager(directory: Path, links: rig.Links, servers: int) -> Any:
    words = ("--listen", f"0.0.0.0:{rig.PORT}", "--bits", str(BITS), "--servers", str(servers))
    return rig.averaging(directory, "averager", links.averager, *words)


def client(address: str, rank: int, servers: int, size: int, rounds: int) -> None:
    """Send the same codes ``rounds`` times; print when each round began and ended."""
    frame = wire.FRAME
    codes = np.random.default_rng(rank).integers(0, 2**BITS, size, np.uint8)
    with socket.create_connection((address, rig.PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(wire.hello(Hello(rank, servers, Form(BITS), 1024, frame, Position(0, 0))))
        connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
        into = memoryview(bytearray(2**20))
        for number in range(rounds + 1):
            # The first round is a word of one code, so that all begin together.
            part = codes if number else codes[:1]
            data = b"".join(
                wire.header(FrameKind.CODES, Position(number, i), part[start : start + frame].size)
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
