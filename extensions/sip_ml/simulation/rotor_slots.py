"""Rotors slot by slot: transfers in packets, over one host in between where light is left (RotorLB).

After RotorNet (Mellette et al., SIGCOMM 2017, section 4: RotorLB) and its packet simulator
(TritonNetworking/opera-sim @c09861386c21, src/opera/rlbmodule.cpp). Racks of hosts have a port on each rotor
switch. A switch holds a matching of all racks for a slot; switches change one after the other, in equal
intervals, and a new matching begins a decision for the racks that it joins:

1. each host sends what it stores for hosts of the other rack, at most a part of its quota for each of them;
2. then its own packets for them, fairly;
3. in what is left of its quota it offers packets for other racks. A host of the other rack accepts as many as
   it can receive, and stores at most two parts of a quota for each destination.

Packets of a decision are spread over the slot. A host's quota is its part of a slot's light, in packets.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import numpy as np

from ringlight.testbed.simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class SlottedRotors:
    """``racks`` of ``hosts`` each with a port of ``port_bps`` on each of ``switches``.

    A matching stands for ``slot_s``, of which ``dark_s`` carry nothing. ``packet_bytes`` include
    ``header_bytes``. ``delay_s``: propagation between racks. ``seed``: of the order of the matchings.
    ``indirect``: over a host in between, too.
    """

    racks: int
    hosts: int
    switches: int
    port_bps: float
    slot_s: float
    dark_s: float
    packet_bytes: int = 1500
    header_bytes: int = 64
    delay_s: float = 0.0
    seed: int = 1
    indirect: bool = True

    @property
    def interval_s(self) -> float:
        """Return the seconds from one switch's new matching to that of the next switch."""
        return self.slot_s / self.switches

    @property
    def light_s(self) -> float:
        """Return the seconds of a slot in which packets pass."""
        return self.slot_s - self.dark_s

    @property
    def packet_s(self) -> float:
        return 8 * self.packet_bytes / self.port_bps

    @property
    def quota(self) -> int:
        """Return the packets that a host may send, or receive, in a slot."""
        return int(self.light_s / self.packet_s / self.hosts)

    @property
    def way_s(self) -> float:
        """Return the seconds of a packet from host to host: sent whole by the host, and by switches of racks
        with several hosts, and propagation.
        """
        return (3 if self.hosts > 1 else 1) * self.packet_s + self.delay_s

    def matchings(self) -> list[IntArray]:
        """Return by interval the rack that each rack is joined to [racks]; a rack of its own number is dark.

        In a cycle each pair of racks is joined once. The matchings are those of a round robin (circle
        method), in random order, with dark ones so that all switches have as many.
        """
        even = self.racks + self.racks % 2
        last = even - 1
        places = np.arange(last)
        matchings: list[IntArray] = []
        for turn in range(last):
            matching = np.arange(even)
            matching[:last] = (2 * turn - places) % last
            matching[last], matching[turn] = turn, last
            # With an odd number one rack in turn has no partner.
            alone = np.arange(self.racks)
            own = matching[: self.racks]
            matchings.append(np.where(own < self.racks, own, alone))
        while len(matchings) % self.switches:
            matchings.append(np.arange(self.racks))
        Random(self.seed).shuffle(matchings)
        return matchings


Key = TypeVar("Key")

#: Transfers' numbers, each with a number of packets.
Parts = list[tuple[int, int]]


class Queue:
    """Packets of transfers, first in, first out. ``packets``: how many."""

    __slots__ = ("_parts", "packets")

    def __init__(self) -> None:
        self.packets = 0
        self._parts: deque[tuple[int, int]] = deque()

    def put(self, transfer: int, packets: int) -> None:
        self._parts.append((transfer, packets))
        self.packets += packets

    def take(self, packets: int) -> Parts:
        """Remove the first packets, and return them."""
        if packets >= self.packets:
            taken, self._parts, self.packets = list(self._parts), deque(), 0
            return taken
        self.packets -= packets
        taken = []
        while packets > 0:
            transfer, there = self._parts.popleft()
            taken.append((transfer, min(there, packets)))
            if there > packets:
                self._parts.appendleft((transfer, there - packets))
            packets -= there
        return taken


@dataclass
class _Decision:
    """Packets that the hosts of a rack send to the hosts of the other rack.

    ``stored`` and ``own``: by host and receiver. ``accepted``: by host and destination in another rack, the
    hosts in between with the packets that they accept. ``can_send`` and ``can_receive``: the rest of the
    quotas of hosts that use theirs.
    """

    rack: int
    other: int
    stored: dict[tuple[int, int], int] = field(default_factory=dict)
    own: dict[tuple[int, int], int] = field(default_factory=dict)
    accepted: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    can_send: dict[int, int] = field(default_factory=dict)
    can_receive: dict[int, int] = field(default_factory=dict)


class RotorRun:
    """The queues of all hosts. ``sources`` and ``destinations``: hosts of transfers, numbered rack by rack.

    Raises ValueError for a transfer within a rack.
    """

    def __init__(
        self,
        rotors: SlottedRotors,
        sources: Sequence[int],
        destinations: Sequence[int],
        sizes_bytes: Sequence[int],
        starts_s: Sequence[float],
    ) -> None:
        self._rotors, self._starts_s = rotors, starts_s
        self._sources, self._destinations = sources, destinations
        payload = rotors.packet_bytes - rotors.header_bytes
        for number, ends in enumerate(zip(sources, destinations, strict=True)):
            if self._rack(ends[0]) == self._rack(ends[1]):
                raise ValueError(f"transfer {number} stays in its rack")
        self._quota = rotors.quota
        self._left = [math.ceil(size / payload) for size in sizes_bytes]
        self._unfinished = len(self._left)
        self._ends_s = np.full(len(self._left), np.nan)
        #: Own packets by host and destination, and by rack the hosts that have some.
        self._own: dict[int, dict[int, Queue]] = {}
        self._senders: list[dict[int, None]] = [{} for _ in range(rotors.racks)]
        #: Stored packets by rack, rack of the destination, and host and destination.
        self._stored: dict[tuple[int, int], dict[tuple[int, int], Queue]] = {}
        #: Packets on their way to a host in between, by the interval in which they are there.
        self._coming: dict[int, list[tuple[int, int, int, int]]] = {}

    def times_s(self) -> FloatArray:
        """Return the seconds of each transfer, from its start until its last packet is received."""
        rotors = self._rotors
        matchings = [matching.tolist() for matching in rotors.matchings()]
        order = deque(sorted(range(len(self._left)), key=self._starts_s.__getitem__))
        interval = 0
        while self._unfinished:
            if order and not (self._own or self._stored or self._coming):
                begin_s = self._starts_s[order[0]]
                interval = max(interval, math.floor(begin_s / rotors.interval_s))
            now_s = interval * rotors.interval_s
            for host, destination, transfer, packets in self._coming.pop(interval, ()):
                self._store(host, destination, transfer, packets)
            while order and self._starts_s[order[0]] <= now_s:
                self._begin(order.popleft())
            self._decide(matchings[interval % len(matchings)], interval)
            interval += 1
        times_s: FloatArray = self._ends_s - np.asarray(self._starts_s)
        return times_s

    def _rack(self, host: int) -> int:
        return host // self._rotors.hosts

    def _begin(self, transfer: int) -> None:
        source, destination = self._sources[transfer], self._destinations[transfer]
        queues = self._own.setdefault(source, {})
        queues.setdefault(destination, Queue()).put(transfer, self._left[transfer])
        self._senders[self._rack(source)][source] = None

    def _store(self, host: int, destination: int, transfer: int, packets: int) -> None:
        racks = self._rack(host), self._rack(destination)
        queues = self._stored.setdefault(racks, {})
        queue = queues.get((host, destination))
        if queue is None:
            queue = queues[host, destination] = Queue()
        queue.put(transfer, packets)

    def _decide(self, matching: Sequence[int], interval: int) -> None:
        """Let all pairs of racks that a new matching joins decide, and send."""
        decisions = []
        for rack, other in enumerate(matching):
            if rack == other:
                continue
            if self._senders[rack]:
                decisions.append(self._first(rack, other))
            elif (rack, other) in self._stored:
                self._send_stored((rack, other), interval)
        for decision in decisions:
            if self._rotors.indirect:
                self._accept(decision)
        for decision in decisions:
            self._send(decision, interval)

    def _send_stored(self, racks: tuple[int, int], interval: int) -> None:
        """Send what the hosts of a rack store for those of the other rack, and nothing else."""
        queues = self._stored[racks]
        part = self._quota // self._rotors.hosts
        for key, queue in list(queues.items()):
            self._deliver(queue.take(part), interval)
            if not queue.packets:
                del queues[key]
        if not queues:
            del self._stored[racks]

    def _first(self, rack: int, other: int) -> _Decision:
        """Return what hosts send of packets that they store, and of their own, for hosts of the other rack."""
        decision = _Decision(rack, other)
        quota, hosts = self._quota, self._rotors.hosts
        can_send, can_receive = decision.can_send, decision.can_receive
        for (host, to), queue in self._stored.get((rack, other), {}).items():
            packets = min(queue.packets, quota // hosts)
            decision.stored[host, to] = packets
            can_send[host] = can_send.get(host, quota) - packets
            can_receive[to] = can_receive.get(to, quota) - packets
        sought: dict[int, dict[int, int]] = {}
        for host in self._senders[rack]:
            wants = {
                to: queue.packets
                for to, queue in self._own[host].items()
                if to // hosts == other
            }
            for to, packets in fair(wants, can_send.get(host, quota)).items():
                sought.setdefault(to, {})[host] = packets
        for to, wants in sought.items():
            for host, packets in fair(wants, can_receive.get(to, quota)).items():
                if packets > 0:
                    decision.own[host, to] = packets
                    can_send[host] = can_send.get(host, quota) - packets
                    can_receive[to] = can_receive.get(to, quota) - packets
        return decision

    def _accept(self, decision: _Decision) -> None:
        """Add the packets for other racks that hosts of the other rack accept."""
        quota, hosts, other = self._quota, self._rotors.hosts, decision.other
        offered: dict[tuple[int, int], int] = {}
        for host in self._senders[decision.rack]:
            left = decision.can_send.get(host, quota)
            if left <= 0:
                continue
            wants = {
                destination: queue.packets
                for destination, queue in self._own[host].items()
                if destination // hosts != other
            }
            for destination, packets in fair(wants, left).items():
                if packets > 0:
                    offered[host, destination] = packets
        if not offered:
            return
        most_stored = 2 * (quota // hosts)
        rooms = {
            destination: self._stored.get((other, destination // hosts), {})
            for _, destination in offered
        }
        for between in range(other * hosts, (other + 1) * hosts):
            own = self._own.get(between, {})
            sought: dict[tuple[int, int], int] = {}
            for key, packets in offered.items():
                destination = key[1]
                room = most_stored
                if stored := rooms[destination].get((between, destination)):
                    room -= stored.packets
                if destination in own:
                    room -= own[destination].packets
                if room > 0:
                    sought[key] = min(packets, room)
            can_receive = decision.can_receive.get(between, quota)
            for key, packets in fair(sought, can_receive).items():
                if packets > 0:
                    decision.accepted.setdefault(key, []).append((between, packets))

    def _send(self, decision: _Decision, interval: int) -> None:
        """Send packets; where several hosts accepted the same, the sender's quota is the limit of all."""
        if not decision.own and not decision.accepted:
            if decision.stored:
                self._send_stored((decision.rack, decision.other), interval)
            return
        totals: dict[int, int] = {}
        relayed = {
            (host, destination): min(
                sum([packets for _, packets in parts]),
                self._own[host][destination].packets,
            )
            for (host, destination), parts in decision.accepted.items()
        }
        for sent in (decision.stored, decision.own, relayed):
            for (host, _), packets in sent.items():
                totals[host] = totals.get(host, 0) + packets
        paces = {host: min(1.0, self._quota / total) for host, total in totals.items()}
        queues = self._stored.get((decision.rack, decision.other), {})
        for key, packets in decision.stored.items():
            taken = queues[key].take(math.ceil(packets * paces[key[0]]))
            if not queues[key].packets:
                del queues[key]
            self._deliver(taken, interval)
        if decision.stored and not queues:
            del self._stored[decision.rack, decision.other]
        for (host, to), packets in decision.own.items():
            part = math.ceil(packets * paces[host])
            self._deliver(self._take_own(host, to, part), interval)
        for key, parts in decision.accepted.items():
            self._relay(key, parts, math.ceil(relayed[key] * paces[key[0]]), interval)

    def _relay(
        self,
        key: tuple[int, int],
        parts: Sequence[tuple[int, int]],
        packets: int,
        interval: int,
    ) -> None:
        """Send so many packets to the hosts in between that accepted them: each gets a packet in turn."""
        host, destination = key
        taken = self._take_own(host, destination, packets)
        # Spread evenly over the time that all would take, they arrive in the mean in the middle of theirs.
        share = packets / max(packets, sum([accepted for _, accepted in parts]))
        mean_s = self._rotors.light_s * share / 2 + self._rotors.way_s
        there = interval + max(1, math.ceil(mean_s / self._rotors.interval_s))
        coming = self._coming.setdefault(there, [])
        each = spread(packets, [accepted for _, accepted in parts])
        if len(taken) == 1:
            transfer = taken[0][0]
            coming += [
                (between, destination, transfer, part)
                for (between, _), part in zip(parts, each, strict=True)
                if part
            ]
            return
        queue = Queue()
        for transfer, number in taken:
            queue.put(transfer, number)
        for (between, _), part in zip(parts, each, strict=True):
            for transfer, number in queue.take(part):
                coming.append((between, destination, transfer, number))

    def _take_own(self, host: int, destination: int, packets: int) -> Parts:
        queues = self._own[host]
        taken = queues[destination].take(packets)
        if not queues[destination].packets:
            del queues[destination]
        if not queues:
            del self._own[host]
            del self._senders[self._rack(host)][host]
        return taken

    def _deliver(self, taken: Parts, interval: int) -> None:
        """Count packets as received, which a slot spreads evenly."""
        left, sent = self._left, 0
        for transfer, packets in taken:
            sent += packets
            left[transfer] -= packets
            if not left[transfer]:
                rotors = self._rotors
                self._unfinished -= 1
                total = sum([number for _, number in taken])
                after_s = rotors.light_s * (sent - 1) / total + rotors.way_s
                self._ends_s[transfer] = interval * rotors.interval_s + after_s


def fair(wants: dict[Key, int], capacity: int) -> dict[Key, int]:
    """Return whole numbers of packets, max-min fair: at most what each wants, together at most capacity."""
    if sum(wants.values()) <= capacity:
        return wants
    given = {}
    left = max(0, capacity)
    by_want = sorted(wants, key=wants.__getitem__)
    for place, key in enumerate(by_want):
        given[key] = min(wants[key], left // (len(by_want) - place))
        left -= given[key]
    return given


def spread(packets: int, parts: Sequence[int]) -> list[int]:
    """Return packets divided in proportion to ``parts``; the first parts get the remainder."""
    total = sum(parts)
    each = [packets * part // total for part in parts]
    for place in range(packets - sum(each)):
        each[place] += 1
    return each
