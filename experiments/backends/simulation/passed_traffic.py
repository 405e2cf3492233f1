"""Measure the traffic of a simulation: idle times of each GPU, and the rates of each switch port."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from ringlight.experiments.record.lab_records import PortRate
from ringlight.fabric.parts import Port
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.link_flows import Passed

#: Seconds between two values of a port's rate; longer where a run has more than so many of them.
SERIES_STEP_S, MOST_STEPS = 0.1, 1000
Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals, as intervals in order that do not touch."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def idle_within(busy: Sequence[Interval], begin: float, end: float) -> list[Interval]:
    """Return the parts of ``begin`` to ``end`` outside all intervals of ``busy`` (in order, not touching)."""
    idle, idle_since = [], begin
    for start, stop in busy:
        if stop <= begin:
            continue
        if start >= end:
            break
        if start > idle_since:
            idle.append((idle_since, start))
        idle_since = max(idle_since, stop)
    if idle_since < end:
        idle.append((idle_since, end))
    return idle


def _ends(key: Hashable) -> tuple[Port, Port]:
    assert isinstance(key, tuple)
    tail, head = key
    return tail, head


class Stillness:
    """Intervals in which bytes moved at each GPU, either way, read from an engine's trace as it grows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read = 0
        self._moved: dict[str, list[Interval]] = defaultdict(list)

    def stalls(self, gpu: str, begin_s: float, end_s: float) -> list[Interval]:
        """Return the parts of ``begin_s`` to ``end_s`` in which nothing moved at a GPU."""
        passed = self._engine.passed or []
        for entry in passed[self._read :]:
            self._moved[_ends(self._engine.key(entry.links[0]))[0].node].append(
                (entry.begin_s, entry.end_s)
            )
            self._moved[_ends(self._engine.key(entry.links[-1]))[1].node].append(
                (entry.begin_s, entry.end_s)
            )
        self._read = len(passed)
        moved = self._moved[gpu] = merged(self._moved[gpu])
        return idle_within(moved, begin_s, end_s)

    def forget(self, gpus: Iterable[str], until_s: float) -> None:
        """Forget what ended before ``until_s``."""
        for gpu in gpus:
            self._moved[gpu] = [
                interval for interval in self._moved[gpu] if interval[1] >= until_s
            ]


def port_rates(
    engine: Engine,
    switches: Collection[str],
    gpus: Collection[str],
    run: str,
    end_s: float,
    share: float,
) -> list[PortRate]:
    """Return the rates at which each packet switch's ports received and sent, headers included, from 0 to
    ``end_s``.

    A row for each port and step. If light moved, ``gpu`` and ``peer`` are those with which most was exchanged
    in the step, or last. ``share``: payload's share of a link's rate.
    """
    step_s = max(SERIES_STEP_S, end_s / MOST_STEPS)
    steps = int(end_s / step_s) + 1
    carried: dict[int, list[float]] = defaultdict(lambda: [0.0] * steps)
    for passed in engine.passed or ():
        sizes = list(_sizes(passed, step_s, steps))
        for link in passed.links:
            series = carried[link]
            for k, size in sizes:
                series[k] += size
    idle = [0.0] * steps
    received: dict[tuple[Port, Port], list[float]] = defaultdict(lambda: idle)
    sent: dict[tuple[Port, Port], list[float]] = defaultdict(lambda: idle)
    for link, series in carried.items():
        tail, head = _ends(engine.key(link))
        if tail.node in switches:
            sent[tail, head] = series
        if head.node in switches:
            received[head, tail] = series
    wire = 8 / (step_s * share)
    peers_of: dict[Port, list[Port]] = defaultdict(list)
    for port, other in sorted({*received, *sent}):
        peers_of[port].append(other)
    rows = []
    for port, ends in peers_of.items():
        peers = _peers({end: (received[port, end], sent[port, end]) for end in ends})
        for k, peer in enumerate(peers):
            rows.append(
                PortRate(
                    t=k * step_s,
                    run=run,
                    switch=port.node,
                    port=port.number,
                    gpu=peer.node if peer.node in gpus else None,
                    peer=str(peer),
                    rx_bps=sum(received[port, end][k] for end in ends) * wire,
                    tx_bps=sum(sent[port, end][k] for end in ends) * wire,
                )
            )
    return sorted(rows, key=lambda row: row.t)


def _peers(
    carried: Mapping[Port, tuple[Sequence[float], Sequence[float]]],
) -> list[Port]:
    """With which other end a port exchanged most in each step, or else last; before the first, that one.

    ``carried``: by the other end what was received and sent in each step.
    """
    busy = [
        [rx + tx for rx, tx in zip(*both, strict=True)] for both in carried.values()
    ]
    busiest = [max(zip(step, carried, strict=True)) for step in zip(*busy, strict=True)]
    peer = next((end for most, end in busiest if most > 0), next(iter(carried)))
    peers = []
    for most, end in busiest:
        peer = end if most > 0 else peer
        peers.append(peer)
    return peers


def _sizes(passed: Passed, step_s: float, steps: int) -> Iterator[tuple[int, float]]:
    """Yield the bytes that passed during each step in which any did."""
    for k in range(
        int(passed.begin_s / step_s), min(math.floor(passed.end_s / step_s) + 1, steps)
    ):
        overlap = min(passed.end_s, (k + 1) * step_s) - max(passed.begin_s, k * step_s)
        yield k, max(0.0, overlap) * passed.rate
