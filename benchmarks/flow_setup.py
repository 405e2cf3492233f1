"""Measures the time from a flow's request to light over the number of agents. Needs no root.

Every agent is a process of its own on a loopback address with a dictionary for a laser; a worker that holds a
connection to every agent opens and closes flows through them, so the times include the worker's socket, both
agents and the kernel.

``idle``: one flow at a time in the whole fabric, between random O-NICs of one row or column of a square
grid. ``all_at_once``: every O-NIC opens one flow at the same moment, each to another receiver (a permutation
along the rows), as in a step of a collective. Bars at 64 agents: p50 <= 0.3 ms, all at once <= 6 ms; growing
less than linearly with the number of agents, messages per flow constant.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import milliseconds, running, tell
from ringlight.controller.onic.agent_settings import FLOW_SOCKET, MANAGE_SOCKET

PORT = 7900
TIMEOUT_S = 30.0
#: Of medians, at 64 agents: one flow at a time, and all at once.
IDLE_MS, AT_ONCE_MS = 0.3, 6.0


def flow_setup(
    sides: list[int] = [2, 4, 8], flows: int = 2000, rounds: int = 50, seed: int = 1
) -> dict[str, Any]:
    """``sides``: of the grids; ``flows``: one at a time; ``rounds``: of all at once."""
    results = []
    for side in sides:
        tell(f"{side * side} agents")
        results.append(measure(side, flows, rounds, seed))
    first, last = results[0], results[-1]
    growth = {
        "agents": last["agents"] / first["agents"],
        "idle_p50": round(last["idle"]["median_ms"] / first["idle"]["median_ms"], 3),
    }
    limit = {"idle": IDLE_MS, "all_at_once": AT_ONCE_MS}
    return {"limit_p50_ms": limit, "results": results, "growth": growth}


PARTS = (flow_setup,)


def measure(side: int, flows: int, rounds: int, seed: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="onic-") as directory,
        Fabric(side, Path(directory)) as fabric,
    ):
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
            "idle": milliseconds(alone)
            | {"messages_per_flow": (middle - before) / len(alone)},
            "all_at_once": milliseconds(together)
            | {"messages_per_flow": (after - middle) / len(together)},
        }


def address(index: int) -> str:
    """The loopback address of an agent."""
    return f"127.83.{index // 250}.{index % 250 + 1}"


def ip(index: int) -> str:
    """What the workers call the O-NIC's GPU."""
    return f"10.82.{index // 250}.{index % 250 + 1}"


class Fabric:
    """``side * side`` agents; entering starts them and hands each its wavelength map."""

    def __init__(self, side: int, directory: Path) -> None:
        self.side, self.count = side, side * side
        self.directory = directory
        self.flows: list[socket.socket] = []
        self.managers: list[socket.socket] = []
        self._stack = ExitStack()

    def __enter__(self) -> Fabric:
        began = time.perf_counter()
        homes = [self.directory / f"n{index}" for index in range(self.count)]
        for index, home in enumerate(homes):
            command = [
                sys.executable,
                "-m",
                "tests.null_onic",
                f"n{index}",
                str(home),
                address(index),
            ]
            self._stack.enter_context(running([*command, str(PORT)]))
        for home in homes:
            self.flows.append(self._connect(home / FLOW_SOCKET, socket.SOCK_SEQPACKET))
            self.managers.append(
                self._connect(home / MANAGE_SOCKET, socket.SOCK_STREAM)
            )
        self.start_s = time.perf_counter() - began
        for index in range(self.count):
            peers = {ip(peer): self._reach(index, peer) for peer in self.peers(index)}
            answer = self.ask(
                index,
                {"op": "set_map", "job": "benchmark", "version": 1, "peers": peers},
            )
            if not answer["ok"]:
                raise RuntimeError(answer["error"])
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self, path: Path, kind: socket.SocketKind) -> socket.socket:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            connection = socket.socket(socket.AF_UNIX, kind)
            connection.settimeout(TIMEOUT_S)
            try:
                connection.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{path}: no agent after {TIMEOUT_S:g} s"
                    ) from None
                time.sleep(0.01)
            else:
                return self._stack.enter_context(connection)

    def peers(self, index: int) -> list[int]:
        row, column = divmod(index, self.side)
        in_row = [row * self.side + c for c in range(self.side) if c != column]
        return in_row + [r * self.side + column for r in range(self.side) if r != row]

    def _reach(self, index: int, peer: int) -> dict[str, object]:
        (row, column), (peer_row, peer_column) = (
            divmod(index, self.side),
            divmod(peer, self.side),
        )
        port = 0 if row == peer_row else 1
        step = peer_column - column if port == 0 else peer_row - row
        return {
            "port": port,
            "wavelength": step % self.side,
            "agent": f"{address(peer)}:{PORT}",
        }

    def ask(self, index: int, request: dict[str, object]) -> dict[str, Any]:
        self.managers[index].sendall(json.dumps(request).encode() + b"\n")
        data = bytearray()
        while not data.endswith(b"\n"):
            data += self.managers[index].recv(1 << 16)
        answer: dict[str, Any] = json.loads(data)
        return answer

    def messages(self) -> int:
        """Control messages sent so far."""
        statuses = (self.ask(index, {"op": "status"}) for index in range(self.count))
        return sum(sum(status["counters"]["sent"].values()) for status in statuses)


def _expect(flow: socket.socket, what: str) -> None:
    answer = json.loads(flow.recv(4096))
    if what not in answer:
        raise RuntimeError(f"expected {what}, got {answer}")


def idle(fabric: Fabric, flows: int, rng: random.Random) -> list[float]:
    """Seconds from request to light, one flow at a time."""
    times = []
    for number in range(flows):
        source = rng.randrange(fabric.count)
        flow = fabric.flows[source]
        request = json.dumps(
            {"open": number, "peer": ip(rng.choice(fabric.peers(source)))}
        ).encode()
        start = time.perf_counter()
        flow.send(request)
        _expect(flow, "lit")
        times.append(time.perf_counter() - start)
        flow.send(json.dumps({"close": number}).encode())
        _expect(flow, "closed")
        # The release is confirmed behind the worker's back.
        time.sleep(0.0005)
    return times


def all_at_once(fabric: Fabric, rounds: int) -> list[float]:
    """Seconds from request to light, every O-NIC at once, a round after the other."""
    times = []
    with selectors.DefaultSelector() as selector:
        for index, flow in enumerate(fabric.flows):
            selector.register(flow, selectors.EVENT_READ, index)
        for number in range(rounds):
            began = {}
            for index, flow in enumerate(fabric.flows):
                row, column = divmod(index, fabric.side)
                peer = (
                    row * fabric.side
                    + (column + 1 + number % (fabric.side - 1)) % fabric.side
                )
                request = json.dumps({"open": f"r{number}", "peer": ip(peer)}).encode()
                began[index] = time.perf_counter()
                flow.send(request)
            while began:
                ready = selector.select(TIMEOUT_S)
                if not ready:
                    raise TimeoutError(
                        f"round {number}: {len(began)} flows without light"
                    )
                for key, _ in ready:
                    _expect(fabric.flows[key.data], "lit")
                    times.append(time.perf_counter() - began.pop(key.data))
            for flow in fabric.flows:
                flow.send(json.dumps({"close": f"r{number}"}).encode())
            for flow in fabric.flows:
                _expect(flow, "closed")
            time.sleep(0.002)
    return times
