"""Flows in virtual time: long ones share links as a fluid, short ones pass them packet by packet.

A flow of at most a window leaves as a burst of packets. Each packet is stored whole at each hop, served first
come, first served, and waits there for the packets of long flows as well. A longer flow gets max-min fair
rates (:mod:`ringlight.extensions.flows.sharing`); then its last packet passes the hops after the first. Its
window is larger than what is on the way (rate times round trip), and the difference stands in the queue of
the link that limits it (as of any fixed window: Bertsekas and Gallager, Data Networks, 6.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import count
from random import Random

import numpy as np

from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.flows.sharing import Fluid, Sharing
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.flows.ways import DirectedLinks, Way, Ways
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray

#: Default seed of the phases of long flows' packets.
SEED = 1


def completion_times_s(
    fabric: Fabric, flows: Sequence[SizedFlow], transport: Transport, seed: int = SEED
) -> FloatArray:
    """Return the seconds from the start of each flow until it is complete.

    ``seed``: of the phases of long flows' packets, where short flows meet them. Raises NoPathError for a pair
    of GPUs without a path.
    """
    return times_over(Ways(fabric, transport), flows, transport, seed)


def times_over(
    ways: DirectedLinks,
    flows: Sequence[SizedFlow],
    transport: Transport,
    seed: int = SEED,
) -> FloatArray:
    """Return the times of :func:`completion_times_s` over other links than those of a fabric."""
    return _Run(ways, flows, transport, seed).times_s()


@dataclass(eq=False)
class _Burst:
    """A short flow: packets that are on their way, and the time at which the last arrived so far."""

    number: int
    way: Way
    packets_left: int
    arrived_s: float = 0.0


class _Run:
    """The queue of events: flows' starts, the ends of long flows, and packets that reach a link."""

    def __init__(
        self,
        ways: DirectedLinks,
        flows: Sequence[SizedFlow],
        transport: Transport,
        seed: int,
    ) -> None:
        self._ways, self._flows, self._transport = ways, flows, transport
        self._window_bytes = transport.window_packets * transport.packet_bytes
        self._times_s = np.zeros(len(flows))
        self._sharing = Sharing(ways.bytes_per_s)
        links = len(ways.bytes_per_s)
        #: When a link has served the packets of short flows that reached it.
        self._free_s = [0.0] * links
        #: Packets that took each link's next links in turn.
        self._turn = [0] * links
        self._round_trips: dict[int, tuple[Way, float]] = {}
        #: Of long flows that joined others, the seconds until their first packet passed.
        self._waits_s: dict[int, float] = {}
        self._random = Random(seed)
        self._counter = count()
        self._queue: list[tuple[float, int, str, object, tuple[int, int]]] = []
        self._now_s = 0.0

    def times_s(self) -> FloatArray:
        for number, flow in enumerate(self._flows):
            self._push(flow.start_s, "start", number, (0, 0))
        while self._queue:
            self._now_s, _, kind, item, details = heappop(self._queue)
            if kind == "packet":
                assert isinstance(item, _Burst)
                self._pass(item, *details)
            elif kind == "start":
                assert isinstance(item, int)
                self._start(item)
            else:
                assert isinstance(item, Fluid)
                if item.version == details[0]:
                    self._end(item)
        return self._times_s

    def _push(
        self, at_s: float, kind: str, item: object, details: tuple[int, int]
    ) -> None:
        heappush(self._queue, (at_s, next(self._counter), kind, item, details))

    def _start(self, number: int) -> None:
        flow, transport = self._flows[number], self._transport
        way = self._ways.way(flow.source, flow.destination)
        packets = transport.packets(flow.size_bytes)
        if packets > transport.window_packets:
            self._start_fluid(number, way)
            return
        burst = _Burst(number, way, packets)
        (first,) = way.hops[0]
        for index in range(packets):
            last = index == packets - 1
            size = (
                transport.last_bytes(flow.size_bytes)
                if last
                else transport.packet_bytes
            )
            self._push(self._now_s, "packet", burst, (first, size))

    # Long flows.

    def _start_fluid(self, number: int, way: Way) -> None:
        flow, now_s = self._flows[number], self._now_s
        shares = way.shares | self._acknowledging(flow)
        bound, narrowest = self._sharing.bound(shares)
        wire_bytes = self._transport.wire_bytes(flow.size_bytes)
        fluid = Fluid(
            number,
            way.shares,
            shares,
            now_s,
            wire_bytes,
            self._window_bytes,
            bound,
            narrowest,
            now_s,
        )
        self._round_trips[number] = way, self._round_trip_s(way)
        # Any link that has long flows may become the one that limits this flow.
        ahead_s = {
            link: self._ahead_s(link)
            for link in way.shares
            if self._sharing.users(link)
        }
        self._expect(self._sharing.add(fluid))
        if fluid.shared and fluid.tightest in fluid.forward:
            self._waits_s[number] = ahead_s.get(fluid.tightest, 0.0)

    def _acknowledging(self, flow: SizedFlow) -> dict[int, float]:
        """Return the bytes of acknowledgements for each byte of a flow, by link."""
        part = self._transport.acknowledgement_bytes / self._transport.packet_bytes
        if not part:
            return {}
        back = self._ways.way(flow.destination, flow.source).shares
        return {link: share * part for link, share in back.items()}

    def _ahead_s(self, link: int) -> float:
        """Return the seconds that a link needs for the queues of its long flows.

        A queue that stands at an earlier link comes on to this one as soon as the link is full.
        """
        total = 0.0
        for fluid in self._sharing.users(link):
            if link not in fluid.forward:
                continue
            queued = self._queued_bytes(fluid)
            if link == fluid.first:
                queued = fluid.standing(link, queued, self._now_s)
            total += queued * fluid.forward[link]
        return total / self._ways.bytes_per_s[link]

    def _rounds_s(self, fluid: Fluid) -> float:
        """Return by how much a flow that joined others ends later than the fluid.

        Its windows wait in turn for the windows of the others. It begins with the queue that it found, and
        its last window, not a whole one, saves the rest of the others' share (negative).
        """
        wait_s = self._waits_s.pop(fluid.number, None)
        if wait_s is None or not fluid.shared or fluid.tightest not in fluid.forward:
            return 0.0
        transport, rate = self._transport, self._ways.bytes_per_s[fluid.tightest]
        share = fluid.shares[fluid.tightest]
        packets = transport.packets(self._flows[fluid.number].size_bytes)
        last_window = (packets - 1) % transport.window_packets + 1
        ratio = rate / (fluid.rate * share) - 1
        return wait_s - ratio * last_window * share * transport.packet_bytes / rate

    def _expect(self, flows: Sequence[Fluid]) -> None:
        """Enter the ends of long flows whose rates changed."""
        for fluid in flows:
            at_s = self._now_s + fluid.left_at(self._now_s) / fluid.rate
            self._push(at_s, "end", fluid, (fluid.version, 0))

    def _end(self, fluid: Fluid) -> None:
        flow = self._flows[fluid.number]
        way, _ = self._round_trips.pop(fluid.number)
        last_bytes = self._transport.last_bytes(flow.size_bytes)
        further_s = self._pass_s(way, last_bytes) - last_bytes / self._rate(way, 0)
        self._times_s[fluid.number] = (
            self._now_s
            - flow.start_s
            + further_s
            + self._back_s(way)
            + self._rounds_s(fluid)
        )
        self._scatter(fluid)
        self._expect(self._sharing.remove(fluid, self._now_s))

    def _scatter(self, ended: Fluid) -> None:
        """Move queues of the long flows that a flow met to their second full link.

        A packet that waits on the way leaves the second link idle, and what comes behind it queues there. So
        the queue there becomes as long as the longest wait so far.
        """
        packet_bytes, now_s = self._transport.packet_bytes, self._now_s
        longest: dict[Fluid, float] = {}
        #: Of each flow the load and the packets of its longest wait so far: with less of both it waits less.
        most: dict[Fluid, tuple[float, float]] = {}
        for link, share in ended.forward.items():
            users = self._sharing.users(link)
            # Of the first and the last link all passes, and its packets keep their order.
            if share == 1 or len(users) == 1:
                continue
            rate, load = self._ways.bytes_per_s[link], self._sharing.load[link]
            for fluid in users:
                part = fluid.forward.get(link, 1.0)
                if fluid is ended or part == 1:
                    continue
                met_s = now_s - max(fluid.start_s, ended.start_s)
                packets = met_s * fluid.bound * part / packet_bytes
                busy = load / rate - fluid.rate * part / rate
                before, met = most.get(fluid, (0.0, 0.0))
                if packets * busy > 1 and (busy > before or packets > met):
                    most[fluid] = busy, packets
                    wait = longest_wait(busy, packets)
                    longest[fluid] = max(wait, longest.get(fluid, 0.0))
        for fluid, wait in longest.items():
            if wait * packet_bytes > fluid.moved_at(now_s):
                fluid.advance(now_s)
                fluid.move(fluid.last, wait * packet_bytes)

    # Times of ways without other traffic.

    def _rate(self, way: Way, hop: int) -> float:
        return min(self._ways.bytes_per_s[link] for link in way.hops[hop])

    def _pass_s(self, way: Way, size: int) -> float:
        """Return the seconds of a packet on its way: serialisation and propagation at each hop."""
        return sum(
            size / self._rate(way, number)
            + max(self._ways.delay_s[link] for link in hop)
            for number, hop in enumerate(way.hops)
        )

    def _back_s(self, way: Way) -> float:
        """Return the seconds of an acknowledgement, over links as fast as those of the way; 0 if none."""
        size = self._transport.acknowledgement_bytes
        return self._pass_s(way, size) if size else 0.0

    def _round_trip_s(self, way: Way) -> float:
        return self._pass_s(way, self._transport.packet_bytes) + self._back_s(way)

    # Short flows.

    def _standing_bytes(self, link: int) -> float:
        """Return the bytes of long flows in the queue of a link: their windows less what is on the way."""
        return sum(
            [
                fluid.standing(link, self._queued_bytes(fluid), self._now_s)
                * fluid.forward[link]
                for fluid in self._sharing.users(link)
                if link in (fluid.first, fluid.moved_link)
            ]
        )

    def _queued_bytes(self, fluid: Fluid) -> float:
        """Return the bytes of a long flow that stand in queues: its window less what is on the way."""
        on_way_s = min(self._now_s - fluid.start_s, self._round_trips[fluid.number][1])
        queued = min(
            fluid.left_at(self._now_s), self._window_bytes - fluid.rate * on_way_s
        )
        return max(0.0, queued)

    def _wait_s(self, link: int) -> float:
        """Return the seconds that a packet waits for a packet of a long flow that a link is sending.

        Their phases are random: the link is busy with the probability that is its load, and then the rest of
        a packet is left, between none and all of it.
        """
        rate = self._ways.bytes_per_s[link]
        busy = self._sharing.load[link] / rate
        if busy < SAME_LOAD or self._random.random() >= busy:
            return 0.0
        return self._random.random() * self._transport.packet_bytes / rate

    def _pass(self, burst: _Burst, link: int, size: int) -> None:
        """Serve a packet that has reached a link, and send it to its next link, or to its receiver."""
        rate = self._ways.bytes_per_s[link]
        serve_s = size / rate
        start_s = max(self._now_s, self._free_s[link])
        busy = min(1.0, self._sharing.load[link] / rate)
        if busy > SAME_LOAD and start_s == self._now_s:
            start_s += self._standing_bytes(link) / rate + self._wait_s(link)
        # Packets of long flows come between those of a burst, except where all are queued at once.
        between_s = 0.0 if link in burst.way.hops[0] else busy * serve_s
        self._free_s[link] = start_s + serve_s + between_s
        at_s = start_s + serve_s + self._ways.delay_s[link]
        options = burst.way.after(link)
        if not options:
            self._arrive(burst, at_s)
        else:
            self._push(at_s, "packet", burst, (self._next(link, options), size))

    def _next(self, link: int, options: Sequence[int]) -> int:
        """Return the link that a packet takes after a link: the next links in turn."""
        turn = self._turn[link]
        self._turn[link] = turn + 1
        return options[turn % len(options)]

    def _arrive(self, burst: _Burst, at_s: float) -> None:
        burst.packets_left -= 1
        burst.arrived_s = max(burst.arrived_s, at_s)
        if not burst.packets_left:
            flow = self._flows[burst.number]
            back_s = (
                self._acknowledged_s(flow)
                if self._transport.acknowledgement_bytes
                else 0.0
            )
            self._times_s[burst.number] = burst.arrived_s - flow.start_s + back_s
            wire_bytes = self._transport.wire_bytes(flow.size_bytes)
            self._expect(
                self._sharing.displace(burst.way.shares, wire_bytes, self._now_s)
            )

    def _acknowledged_s(self, flow: SizedFlow) -> float:
        """Return the seconds of an acknowledgement on its way: it waits for no queue, only for one packet."""
        way, size = (
            self._ways.way(flow.destination, flow.source),
            self._transport.acknowledgement_bytes,
        )
        (link,) = way.hops[0]
        total_s = 0.0
        while True:
            total_s += (
                size / self._ways.bytes_per_s[link]
                + self._ways.delay_s[link]
                + self._wait_s(link)
            )
            options = way.after(link)
            if not options:
                return total_s
            link = self._next(link, options)


#: Share of a link's rate below which its load is rounding.
SAME_LOAD = 1e-6
#: Largest load that long waits are computed for.
MOST_LOAD = 0.95


def longest_wait(load: float, packets: float) -> float:
    """Return the longest wait of ``packets`` behind other packets, in times of one packet.

    ``load``: share of time in which a link sends others, which come at random (M/D/1): waits longer than x
    have the probability load exp(-d x), where load (exp(d) - 1) = d (Asmussen, Applied Probability and Queues,
    XIII.5).
    """
    load = min(load, MOST_LOAD)
    if packets * load <= 1:
        return 0.0
    return math.log(packets * load) / _decay(round(load, 3))


@cache
def _decay(load: float) -> float:
    """Return d of :func:`longest_wait`, for a load above 0 and below 1."""
    decay = 1.0
    for _ in range(ROUNDS):
        decay = math.log1p(decay / load)
    return decay


#: Rounds of the fixed point, which reach seven digits for loads up to 0.9.
ROUNDS = 100
