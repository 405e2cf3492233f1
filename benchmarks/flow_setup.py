"""Measures the time from a flow's request to light over the number of agents; prints one JSON object.

Run ``python benchmarks/flow_setup.py``. Every agent is a process of its own on a loopback address with a
dictionary for a laser; a worker that holds a connection to every agent opens and closes flows through them,
so the times include the worker's socket, both agents and the kernel. Needs no root.

``idle``: one flow at a time in the whole fabric, between random O-NICs of one row or column of a square
grid. ``all_at_once``: every O-NIC opens one flow at the same moment, each to another receiver (a permutation
along the rows), as in a step of a collective. Bar (idle): p50 <= 1 ms, growing less than linearly with the
number of agents, messages per flow constant.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ringlight.controller.onic.agent import FLOW_SOCKET, MANAGE_SOCKET, Agent, Settings
from tests.null_onic import NullLaser, NullRoutes

PORT = 7900
TIMEOUT_S = 30.0
LIMIT_MS = 1.0


def address(index: int) -> str:
    """The loopback address of an agent."""
    return f"127.83.{index // 250}.{index % 250 + 1}"


def ip(index: int) -> str:
    """What the workers call the O-NIC's GPU."""
    return f"10.82.{index // 250}.{index % 250 + 1}"


def serve(index: int, directory: Path) -> None:
    """One agent until SIGTERM, or until the benchmark is gone."""
    agent = Agent(Settings(f"n{index}", directory, (address(index), PORT)), NullLaser(), NullRoutes())
    signal.signal(signal.SIGTERM, lambda *_: agent.stop())
    agent.run()


class Fabric:
    """``side * side`` agents; entering starts them and hands each its wavelength map."""

    def __init__(self, side: int, directory: Path) -> None:
        self.side, self.count = side, side * side
        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        self.flows: list[socket.socket] = []
        self.managers: list[socket.socket] = []

    def __enter__(self) -> Fabric:
        began = time.perf_counter()
        for index in range(self.count):
            command = [sys.executable, __file__, "--agent", str(index), str(self.directory / f"n{index}")]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        for index in range(self.count):
            home = self.directory / f"n{index}"
            self.flows.append(_connect(home / FLOW_SOCKET, socket.SOCK_SEQPACKET))
            self.managers.append(_connect(home / MANAGE_SOCKET, socket.SOCK_STREAM))
        self.start_s = time.perf_counter() - began
        for index in range(self.count):
            peers = {ip(peer): self._reach(index, peer) for peer in self.peers(index)}
            answer = self.ask(index, {"op": "set_map", "job": "benchmark", "version": 1, "peers": peers})
            if not answer["ok"]:
                raise RuntimeError(answer["error"])
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for one in (*self.flows, *self.managers):
            one.close()

    def peers(self, index: int) -> list[int]:
        row, column = divmod(index, self.side)
        in_row = [row * self.side + c for c in range(self.side) if c != column]
        return in_row + [r * self.side + column for r in range(self.side) if r != row]

    def _reach(self, index: int, peer: int) -> dict[str, object]:
        (row, column), (peer_row, peer_column) = divmod(index, self.side), divmod(peer, self.side)
        port = 0 if row == peer_row else 1
        step = peer_column - column if port == 0 else peer_row - row
        return {"port": port, "wavelength": step % self.side, "agent": f"{address(peer)}:{PORT}"}

    def ask(self, index: int, request: dict[str, object]) -> dict[str, object]:
        self.managers[index].sendall(json.dumps(request).encode() + b"\n")
        data = bytearray()
        while not data.endswith(b"\n"):
            data += self.managers[index].recv(1 << 16)
        answer: dict[str, object] = json.loads(data)
        return answer

    def messages(self) -> int:
        """Control messages sent so far."""
        total = 0
        for index in range(self.count):
            total += sum(self.ask(index, {"op": "status"})["counters"]["sent"].values())  # type: ignore[index]
        return total


def _connect(path: Path, kind: socket.SocketKind) -> socket.socket:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        one = socket.socket(socket.AF_UNIX, kind)
        one.settimeout(TIMEOUT_S)
        try:
            one.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            one.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path}: no agent after {TIMEOUT_S:g} s") from None
            time.sleep(0.01)
        else:
            return one


def _expect(one: socket.socket, what: str) -> None:
    answer = json.loads(one.recv(4096))
    if what not in answer:
        raise RuntimeError(f"expected {what}, got {answer}")


def idle(fabric: Fabric, flows: int, rng: random.Random) -> list[float]:
    """Seconds from request to light, one flow at a time."""
    times = []
    for number in range(flows):
        source = rng.randrange(fabric.count)
        one = fabric.flows[source]
        request = json.dumps({"open": number, "peer": ip(rng.choice(fabric.peers(source)))}).encode()
        start = time.perf_counter()
        one.send(request)
        _expect(one, "lit")
        times.append(time.perf_counter() - start)
        one.send(json.dumps({"close": number}).encode())
        _expect(one, "closed")
        # The release is confirmed behind the worker's back.
        time.sleep(0.0005)
    return times


def all_at_once(fabric: Fabric, rounds: int) -> list[float]:
    """Seconds from request to light, every O-NIC at once, a round after the other."""
    times = []
    with selectors.DefaultSelector() as selector:
        for index, one in enumerate(fabric.flows):
            selector.register(one, selectors.EVENT_READ, index)
        for number in range(rounds):
            began = {}
            for index, one in enumerate(fabric.flows):
                row, column = divmod(index, fabric.side)
                peer = row * fabric.side + (column + 1 + number % (fabric.side - 1)) % fabric.side
                request = json.dumps({"open": f"r{number}", "peer": ip(peer)}).encode()
                began[index] = time.perf_counter()
                one.send(request)
            while began:
                ready = selector.select(TIMEOUT_S)
                if not ready:
                    raise TimeoutError(f"round {number}: {len(began)} flows without light")
                for key, _ in ready:
                    _expect(fabric.flows[key.data], "lit")
                    times.append(time.perf_counter() - began.pop(key.data))
            for one in fabric.flows:
                one.send(json.dumps({"close": f"r{number}"}).encode())
            for one in fabric.flows:
                _expect(one, "closed")
            time.sleep(0.002)
    return times


def _summary(times: list[float], messages: float) -> dict[str, object]:
    cut = statistics.quantiles(times, n=100)
    return {
        "flows": len(times),
        "p50_ms": round(statistics.median(times) * 1e3, 4),
        "p90_ms": round(cut[89] * 1e3, 4),
        "p99_ms": round(cut[98] * 1e3, 4),
        "max_ms": round(max(times) * 1e3, 4),
        "messages_per_flow": round(messages, 3),
    }


def measure(side: int, flows: int, rounds: int, seed: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="onic-") as directory, Fabric(side, Path(directory)) as fabric:
        # Not counted: the first use of everything.
        idle(fabric, 2 * fabric.count, random.Random(seed))
        before = fabric.messages()
        alone = idle(fabric, flows, random.Random(seed + 1))
        middle = fabric.messages()
        together = all_at_once(fabric, rounds)
        after = fabric.messages()
        return {
            "agents": fabric.count,
            "start_s": round(fabric.start_s, 3),
            "idle": _summary(alone, (middle - before) / len(alone)),
            "all_at_once": _summary(together, (after - middle) / len(together)),
        }


def main() -> None:
    if sys.argv[1:2] == ["--agent"]:
        serve(int(sys.argv[2]), Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[2, 4, 8], help="sides of the grids")
    parser.add_argument("--flows", type=int, default=2000, help="flows one at a time")
    parser.add_argument("--rounds", type=int, default=50, help="rounds of all at once")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    results = [measure(side, given.flows, given.rounds, given.seed) for side in given.sides]
    first, last = results[0], results[-1]
    growth = last["idle"]["p50_ms"] / first["idle"]["p50_ms"]  # type: ignore[index]
    report = {
        "benchmark": "flow_setup",
        "cpus": os.cpu_count(),
        "limit_p50_ms": LIMIT_MS,
        "results": results,
        "growth": {"agents": last["agents"] / first["agents"], "idle_p50": round(growth, 3)},  # type: ignore[operator]
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
