"""Simulates whole phases of collectives ("bundles") that share the network, for thousands of ranks.

A bundle is everything that the groups of a class send in one phase: in consecutive steps with equal
transfers. Alone in the network it takes exactly as long as ``phases`` computes. Together with others, all
flows of all bundles in progress get max-min fair rates, as if each lasted as long as its bundle, and a bundle
is slowed down as much as its slowest flow. The rates depend only on the bundles in progress and the links'
capacities, so they are computed once for each set of bundles until a capacity changes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.maxmin import rates
from ringlight.testbed.simulation.phases import Transfers


class Load:
    """Load of a kind of bundle on the network: the transfers of its phase.

    ``once``: it is not likely to occur again. ``moved``: bytes per chunk that have passed.
    """

    def __init__(
        self, number: int, transfers: Transfers, *, once: bool = False
    ) -> None:
        self.number, self.transfers, self.once = number, transfers, once
        self.latency_s = (
            float(transfers.routes.latency_s.min(initial=np.inf))
            if len(transfers.chunks)
            else 0.0
        )
        self.moved = 0.0

    @functools.cached_property
    def links(self) -> int:
        """The links that it uses, as bits."""
        bits = np.zeros(
            int(self.transfers.routes.links.max(initial=0)) + 1, dtype=np.uint8
        )
        bits[self.transfers.routes.links] = 1
        return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")

    @functools.cached_property
    def own(self) -> IntArray | None:
        """The link of each flow if each passes one link that no other flow passes, such as circuits; else
        None.
        """
        routes = self.transfers.routes
        flows = len(routes.offsets) - 1
        alone = len(routes.links) == flows > 0 and np.bincount(routes.links).max() == 1
        return routes.links if alone else None

    @functools.cached_property
    def alone_s(self) -> float:
        """Seconds of the slowest flow for a chunk of one byte, if all began alone and none ended."""
        return self.slowest_s(rates_together([self])[0])

    def slowest_s(self, rate: FloatArray) -> float:
        """Return the seconds of the slowest flow for a chunk of one byte at these rates [transfers] in bytes
        per second.
        """
        return float((self.transfers.chunks / rate).max())

    def per_link(self, links: int) -> FloatArray:
        """Return the number of chunks that pass each link, [links]."""
        routes = self.transfers.routes
        chunks = np.repeat(self.transfers.chunks, np.diff(routes.offsets))
        return np.bincount(routes.links, chunks, minlength=links).astype(np.float64)


class Stretch(NamedTuple):
    """Interval from ``begin_s`` to ``end_s`` in which chunks of a load passed ``moved`` bytes at one rate."""

    load: Load
    begin_s: float
    end_s: float
    moved: float


class _Bundle:
    """Bundle in progress. ``left``: remaining part of it (from 1 to 0) at time ``since_s``."""

    __slots__ = (
        "alone_s",
        "done",
        "fixed_s",
        "left",
        "load",
        "moves",
        "since_s",
        "slower",
        "version",
    )

    def __init__(
        self,
        load: Load,
        fixed_s: float,
        alone_s: float,
        moves: float,
        now_s: float,
        done: Callable[[], None],
    ) -> None:
        self.load, self.fixed_s, self.alone_s, self.moves, self.done = (
            load,
            fixed_s,
            alone_s,
            moves,
            done,
        )
        self.left, self.since_s, self.slower, self.version = 1.0, now_s, 0.0, 0

    @property
    def whole_s(self) -> float:
        """Seconds of all of it at the present rates."""
        return self.fixed_s + (self.alone_s * self.slower if self.alone_s else 0.0)


class Bundles:
    """The bundles in progress on a network of ``links`` links.

    ``stretches`` is kept only when ``trace`` is asked for.
    """

    def __init__(self, engine: Engine, links: int, *, trace: bool = False) -> None:
        self.stretches: list[Stretch] | None = [] if trace else None
        #: Sets of bundles whose rates have been found.
        self.solved = 0
        self._engine = engine
        self._loads: dict[int, Load] = {}
        self._number = itertools.count()
        self._moved = np.zeros(links)
        self._under_way: dict[_Bundle, None] = {}
        self._slower: dict[tuple[int, ...], dict[int, float]] = {}
        self._changed = False
        self._capacity: FloatArray | None = None

    def load(self, transfers: Transfers, *, once: bool = False) -> Load:
        """Return a new kind of bundle. ``once``: it is not kept when no bundle of it is in progress."""
        return Load(next(self._number), transfers, once=once)

    def moved(self) -> FloatArray:
        """Return the bytes that have passed each link, [links]."""
        kept = (
            load.moved * load.per_link(len(self._moved))
            for load in self._loads.values()
            if load.moved
        )
        return sum(kept, start=self._moved.copy())

    def remaining(self) -> FloatArray:
        """Return the bytes of the bundles in progress that have yet to pass each link, [links]."""
        bytes_left = np.zeros(len(self._moved))
        for bundle in self._under_way:
            self._count(bundle)
            left, own = bundle.left * bundle.moves, bundle.load.own
            if own is None:
                bytes_left += left * bundle.load.per_link(len(bytes_left))
            else:
                bytes_left[own] += left * bundle.load.transfers.chunks
        return bytes_left

    def set_capacity(self, capacity: FloatArray) -> None:
        """Set the capacity of all links [links] from now on, bytes per second; 0 is dark."""
        self._capacity = capacity
        self._slower.clear()
        self._change()

    def start(
        self,
        load: Load,
        chunk_bytes: float,
        steps: int,
        set_up_s: float,
        reduce_s: float,
        done: Callable[[], None],
    ) -> None:
        """``steps`` steps of a load; ``set_up_s`` and ``reduce_s`` of all of them together.

        Its fixed seconds come where they belong when it is one step, and spread over it when it is several;
        but these are one by one where light is dark now and then, as only bytes stand still in the dark.
        """
        if steps > 1 and self._capacity is None:
            fixed_s = set_up_s + reduce_s + steps * load.latency_s
            self._enter(load, chunk_bytes, steps, fixed_s, done)
            return
        engine = self._engine
        before_s, behind_s = set_up_s / steps + load.latency_s, reduce_s / steps

        def one_of(left: int) -> None:
            then = done if left == 1 else lambda: one_of(left - 1)
            added = (
                (lambda: engine.at(engine.now_s + behind_s, then)) if behind_s else then
            )
            if before_s:
                engine.at(
                    engine.now_s + before_s,
                    lambda: self._enter(load, chunk_bytes, 1, 0.0, added),
                )
            else:
                self._enter(load, chunk_bytes, 1, 0.0, added)

        one_of(steps)

    def _enter(
        self,
        load: Load,
        chunk_bytes: float,
        steps: int,
        fixed_s: float,
        done: Callable[[], None],
    ) -> None:
        alone_s = steps * max(load.transfers(chunk_bytes) - load.latency_s, 0.0)
        if len(load.transfers.chunks) == 0 or alone_s + fixed_s == 0:
            self._engine.at(self._engine.now_s + fixed_s, done)
            return
        bundle = _Bundle(
            load, fixed_s, alone_s, steps * chunk_bytes, self._engine.now_s, done
        )
        self._under_way[bundle] = None
        self._change()

    def _change(self) -> None:
        if not self._changed:
            self._changed = True
            self._engine.settle(self._share)

    def _share(self) -> None:
        """New rates after what came and went in this instant."""
        self._changed = False
        for together in self._sharing():
            if len(together) == 1 and self._capacity is None:
                self._set(together[0], 1.0)
                continue
            slower = self._solved(together)
            for bundle in together:
                self._set(bundle, slower[bundle.load.number])

    def _sharing(self) -> list[list[_Bundle]]:
        """Return the bundles in progress, grouped by shared links, direct or through others."""
        parts: list[tuple[int, list[_Bundle]]] = []
        used = 0
        for bundle in self._under_way:
            links, members, apart = bundle.load.links, [bundle], []
            # On circuits hardly anybody shares, and to ask all parts takes longer than all else.
            if not links & used:
                used |= links
                parts.append((links, members))
                continue
            used |= links
            for part in parts:
                if part[0] & links:
                    links |= part[0]
                    members = part[1] + members
                else:
                    apart.append(part)
            parts = [*apart, (links, members)]
        return [members for _, members in parts]

    def _solved(self, together: Sequence[_Bundle]) -> dict[int, float]:
        """Return by load number the factor by which the load's slowest flow is slower among all these than
        alone.
        """
        by_number = {bundle.load.number: bundle.load for bundle in together}
        numbers = tuple(sorted(bundle.load.number for bundle in together))
        slower = self._slower.get(numbers)
        if slower is None:
            self.solved += 1
            loads = [by_number[number] for number in numbers]
            slower = dict.fromkeys(numbers, math.inf)
            lit_loads = [load for load in loads if self._lit(load)]
            if lit_loads:
                rates_of = rates_together(lit_loads, self._capacity)
                slower |= {
                    load.number: load.slowest_s(rate) / load.alone_s
                    for load, rate in zip(lit_loads, rates_of, strict=True)
                }
            if not any(load.once for load in loads):
                self._slower[numbers] = slower
        return slower

    def _lit(self, load: Load) -> bool:
        return self._capacity is None or bool(
            self._capacity[load.transfers.routes.links].all()
        )

    def _set(self, bundle: _Bundle, slower: float) -> None:
        if bundle.slower == slower:
            return
        self._count(bundle)
        bundle.slower = slower
        bundle.version += 1
        if bundle.whole_s == math.inf:
            return
        version = bundle.version
        then_s = self._engine.now_s + bundle.left * bundle.whole_s
        self._engine.at(then_s, lambda: self._over(bundle, version))

    def _count(self, bundle: _Bundle) -> None:
        """Count the progress of the bundle since its present rate began."""
        now_s = self._engine.now_s
        if bundle.slower and now_s > bundle.since_s:
            passed = min((now_s - bundle.since_s) / bundle.whole_s, bundle.left)
            if self.stretches is not None:
                self.stretches.append(
                    Stretch(bundle.load, bundle.since_s, now_s, passed * bundle.moves)
                )
            bundle.left -= passed
        bundle.since_s = now_s

    def _over(self, bundle: _Bundle, version: int) -> None:
        if bundle.version != version:
            return
        self._count(bundle)
        load = bundle.load
        if load.once:
            self._moved += bundle.moves * load.per_link(len(self._moved))
        else:
            load.moved += bundle.moves
            self._loads[load.number] = load
        del self._under_way[bundle]
        self._change()
        bundle.done()


def rates_together(
    loads: Sequence[Load], capacity: FloatArray | None = None
) -> list[FloatArray]:
    """Return the rates of the flows of each load in bytes per second when all loads are in progress on one
    network.

    ``capacity``: present capacity of its links in bytes per second, if it differs from the network's own.
    """
    if capacity is None:
        capacity = loads[0].transfers.capacity
    if len(loads) == 1 and (own := loads[0].own) is not None:
        return [capacity[own].astype(np.float64)]
    routes = [load.transfers.routes for load in loads]
    links: IntArray = np.concatenate([route.links for route in routes])
    lengths = np.concatenate([np.diff(route.offsets) for route in routes])
    flow_rates = rates(np.concatenate(([0], np.cumsum(lengths))), links, capacity)
    return np.split(
        flow_rates, np.cumsum([len(route.offsets) - 1 for route in routes])[:-1]
    )
