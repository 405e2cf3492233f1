"""The emulated averager of OptINC: how fast, and what it costs. As root; prints JSON.

    python benchmarks/averager.py [alone] [servers] [--servers 4 8 16] [--rates 100 400] [--rounds 5]

``alone``: N = 4, 8, 16 clients in namespaces of their own, over veths without a rate, send codes that are
ready and throw the answers away; payload per port and second in ``MBps_per_port`` (1e6 bytes) from the first
byte to the last answer, and the averager's processor seconds over that time. ``lookup``: the table alone.
``servers``: four servers that quantise and turn back, over links of each rate (Mbit/s): time of a collective
over what its bytes need, bytes on the wire over payload at the port where they are most, the averager's share
of a processor, its latency from the last byte of a frame to the first of its answer.
All processes share the machine's processors.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from ringlight.fabric.optinc import wire
from ringlight.fabric.optinc.averaging import Coding
from ringlight.fabric.optinc.wire import HEADER_BYTES, Form, Hello, Kind, Position
from ringlight.testbed.emulation.averager.lookup import Lookup, evaluate
from tests.integration import averager_rig as rig

PARTS = ("alone", "servers")
BITS = 8


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
            frames = range(0, part.size, frame)
            data = b"".join(
                wire.header(Kind.CODES, Position(number, i), part[start : start + frame].size)
                + part[start : start + frame].tobytes()
                for i, start in enumerate(frames)
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


def measure_alone(servers: int, size: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        links = stack.enter_context(rig.links(servers, None))
        averager = stack.enter_context(averager_of(directory, links, servers))
        command = [sys.executable, __file__, "--client"]
        clients = [
            rig.popen(
                [*command, links.address(rank), *map(str, (rank, servers, size, rounds))],
                links.servers[rank],
                stdout=subprocess.PIPE,
            )
            for rank in range(servers)
        ]
        spans = []
        for process in clients:
            stack.callback(process.kill)
            out, _ = process.communicate(timeout=600)
            spans.append([json.loads(line) for line in out.splitlines()])
        status = averager.stop()
    seconds = [
        max(end for _, end in turn) - min(start for start, _ in turn) for turn in zip(*spans, strict=True)
    ]
    rates = [size / second / 1e6 for second in seconds]
    return {
        "servers": servers,
        "MBps_per_port": {"median": statistics.median(rates), "best": max(rates), "all": rates},
        "averager_cpu_share": status["cpu_s"] / sum(seconds),
        "averager_cpu_s_per_MB_of_a_port": status["cpu_s"] / (size * rounds / 1e6),
        "latency_s": status["latency_s"],
        "errors": status["errors"],
    }


def lookup(servers: int) -> dict[str, Any]:
    coding = Coding(BITS, servers)
    began = time.process_time()
    table = evaluate(None, coding)
    built = time.process_time() - began
    apply = Lookup(table)
    rng = np.random.default_rng(1)
    codes = [rng.integers(0, 2**BITS, wire.FRAME, np.uint8) for _ in range(servers)]
    seconds = []
    for _ in range(200):
        began = time.process_time()
        apply(codes)
        seconds.append(time.process_time() - began)
    return {
        "servers": servers,
        "combinations": coding.combinations,
        "table_cpu_s": built,
        "Mcodes_per_s": {
            "median": wire.FRAME / statistics.median(seconds) / 1e6,
            "best": wire.FRAME / min(seconds) / 1e6,
        },
    }


def servers_at(rate_bps: float, size: int, rounds: int) -> dict[str, Any]:
    ranks = 4
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        links = stack.enter_context(rig.links(ranks, rate_bps))
        averager = stack.enter_context(averager_of(directory, links, ranks))
        stack.enter_context(rig.hub_of(directory, ranks))
        plans = [
            rig.Plan(
                rank, ranks, ranks, links.address(rank), rig.PORT, str(directory / "hub"), (size,) * rounds
            )
            for rank in range(ranks)
        ]
        before = [links.bytes_of(rank) for rank in range(ranks)]
        answers = stack.enter_context(rig.serving(plans, links.servers)).answers(600)
        after = [links.bytes_of(rank) for rank in range(ranks)]
        status = averager.stop()
    failed = [answer["failed"] for answer in answers if "failed" in answer]
    if failed:
        raise SystemExit(f"{rate_bps:g} bit/s: {failed[0]}")
    turns = list(zip(*(answer["spans"] for answer in answers), strict=True))
    seconds = [max(end for _, end in turn) - min(start for start, _ in turn) for turn in turns]
    payload = size * rounds
    sent, received = (
        max((after[rank][way] - before[rank][way]) / payload for rank in range(ranks)) for way in (0, 1)
    )
    return {
        "rate_Mbps": rate_bps / 1e6,
        "values": size,
        "seconds": {"median": statistics.median(seconds), "all": seconds},
        "over_what_the_bytes_need": statistics.median(seconds) / (size * 8 / rate_bps),
        "wire_bytes_over_payload": {"sent": sent, "received": received},
        "scale_bytes_over_payload": answers[0]["moved"]["scale_bytes"] / payload,
        "averager_cpu_share": status["cpu_s"] / sum(seconds),
        "server_cpu_s": [answer["cpu_s"] for answer in answers],
        "latency_s": status["latency_s"],
        "right": all(
            answer["digests"] == [rig.digest(rig.expected(plans[0], number)) for number in range(rounds)]
            for answer in answers
        ),
    }


def averager_of(directory: Path, links: rig.Links, servers: int) -> Any:
    return rig.averaging(
        *(directory, "averager", links.averager, "--listen", f"0.0.0.0:{rig.PORT}"),
        *("--bits", str(BITS), "--servers", str(servers)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=PARTS, default=[])
    parser.add_argument(
        "--mebibytes", type=float, default=64, help="of payload per port in one round of alone"
    )
    parser.add_argument("--rates", type=float, nargs="*", default=[100, 400], help="Mbit/s")
    parser.add_argument("--servers", type=int, nargs="*", default=[4, 8, 16], help="N of alone")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    parts = chosen.parts or PARTS
    found: dict[str, Any] = {}
    if "alone" in parts:
        found["lookup"] = [lookup(servers) for servers in chosen.servers]
        size = int(chosen.mebibytes * 2**20)
        found["alone"] = [measure_alone(servers, size, chosen.rounds) for servers in chosen.servers]
    if "servers" in parts:
        found["servers"] = [servers_at(rate * 1e6, 8 * 2**20, chosen.rounds) for rate in chosen.rates]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
