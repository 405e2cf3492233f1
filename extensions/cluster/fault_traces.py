"""Traces of servers that fail: which server is down from when to when, put onto a cluster of any size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringlight.fabric.steps import FloatArray, IntArray


@dataclass(frozen=True)
class FaultTrace:
    """``server``, and ``begin_s`` and ``end_s`` of each outage; of one server none overlap. ``servers``: how
    many there are, also those that never fail. ``span_s``: for how long was recorded."""

    server: IntArray
    begin_s: FloatArray
    end_s: FloatArray
    servers: int
    span_s: float

    @property
    def available(self) -> float:
        """Return the share of the servers' time in which they were up."""
        return 1 - float((self.end_s - self.begin_s).sum()) / (
            self.servers * self.span_s
        )


def outages(events: Iterable[tuple[float, str, bool]], servers: int) -> FaultTrace:
    """Return a trace from events: when (seconds, in order), which server, whether a fault begins or ends.

    A server is down while any of its faults lasts. A fault that has not ended at the last event ends there.
    Raises ValueError if more servers fail than there are, or a fault ends that never began.
    """
    numbers: dict[str, int] = {}
    depth: dict[int, int] = {}
    since: dict[int, float] = {}
    downs: list[tuple[int, float, float]] = []
    last = 0.0
    for event_s, name, begins in events:
        server = numbers.setdefault(name, len(numbers))
        last = max(last, event_s)
        depth[server] = depth.get(server, 0) + (1 if begins else -1)
        if depth[server] < 0:
            raise ValueError(f"server {name}: a fault ends that never began")
        if begins and depth[server] == 1:
            since[server] = event_s
        elif not depth[server]:
            downs.append((server, since.pop(server), event_s))
    downs += [(server, event_s, last) for server, event_s in since.items()]
    if len(numbers) > servers:
        raise ValueError(f"{len(numbers)} servers fail, and there are {servers}")
    columns = (
        np.array(sorted(downs, key=lambda outage: outage[1:]), dtype=np.float64)
        .reshape(-1, 3)
        .T
    )
    return FaultTrace(
        columns[0].astype(np.int64), columns[1], columns[2], servers, last
    )


def spread_over(trace: FaultTrace, servers: int, seed: int) -> FaultTrace:
    """Return the trace on a cluster of so many servers.

    Each server gets the record of one, drawn without repetition as far as the record goes. If a record is
    drawn a second time, it is shifted round the record's span.
    """
    rng = np.random.default_rng([seed, 4])
    parts = []
    for first in range(0, servers, trace.servers):
        count = min(trace.servers, servers - first)
        place = np.full(trace.servers, -1)
        place[rng.permutation(trace.servers)[:count]] = first + np.arange(count)
        shift = 0.0 if not first else float(rng.uniform(0, trace.span_s))
        mine = place[trace.server] >= 0
        begin = (trace.begin_s[mine] + shift) % trace.span_s
        end = np.minimum(begin + (trace.end_s - trace.begin_s)[mine], trace.span_s)
        parts.append((place[trace.server[mine]], begin, end))
    server, begin, end = (
        np.concatenate(columns) for columns in zip(*parts, strict=True)
    )
    order = np.argsort(begin, kind="stable")
    return FaultTrace(
        server[order].astype(np.int64), begin[order], end[order], servers, trace.span_s
    )


def whole_slices(trace: FaultTrace, each: int) -> tuple[FloatArray, FloatArray]:
    """Return how many slices of ``each`` servers in a row had no fault, and for which share of the time.

    The result is counts from 0 to all, and their shares. Servers that fill no slice are left out.
    """
    count = trace.servers // each
    kept = trace.server < count * each
    slices = trace.server[kept] // each
    times = np.concatenate([trace.begin_s[kept], trace.end_s[kept]])
    change = np.repeat([1, -1], kept.sum())
    order = np.argsort(times, kind="stable")
    shares = np.zeros(count + 1)
    down = [0] * count
    whole, last = count, 0.0
    columns = (times[order], np.tile(slices, 2)[order], change[order])
    for now_s, number, step in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        shares[whole] += now_s - last
        last = now_s
        before = down[number] == 0
        down[number] += step
        whole += (down[number] == 0) - before
    shares[whole] += max(trace.span_s - last, 0.0)
    return np.arange(count + 1, dtype=np.float64), shares / shares.sum()
