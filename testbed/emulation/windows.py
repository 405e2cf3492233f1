"""Bytes that a worker's connection may have in flight: as many as its path and half of the smallest queue
hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

from ringlight.fabric.frames import ETHERNET_BYTES, IN_PACKET_BYTES
from ringlight.fabric.parts import Link
from ringlight.fabric.paths import Hop, NoPathError, Router
from ringlight.fabric.topology import Fabric, electrical_graph
from ringlight.testbed.emulation.kernel import netlink, shaping

#: What may wait besides what the way takes: so many frames, and so many seconds at its rate, as workers and
#: the processes that pass frames on are late now and then.
WAITING_FRAMES, LATE_S = 8, 0.02
#: How many connections a queue is to hold.
SHARERS = 2


def window_bytes(
    rate_bps: float, round_trip_s: float, queue_bytes: float, mtu_bytes: int
) -> int:
    """Return bytes that a connection may have under way over links of ``rate_bps`` bits per second.

    ``round_trip_s``: delays of the links there and back, seconds. ``queue_bytes``: the smallest queue of a
    packet switch on the way, for ``SHARERS`` connections. What is under way beyond the first only waits;
    beyond the second it is lost.
    """
    waiting = max(WAITING_FRAMES * netlink.FRAME_BYTES, rate_bps / 8 * LATE_S)
    room = max(1, queue_bytes // (mtu_bytes + ETHERNET_BYTES))
    # With one frame under way a link is idle while that is acknowledged.
    frames = max(min(room, 2), room // SHARERS)
    held = frames * (mtu_bytes - IN_PACKET_BYTES)
    return math.ceil(rate_bps / 8 * round_trip_s + min(waiting, held))


class Windows:
    """Windows of connections between the GPUs of ``fabric``.

    ``rate_bps`` and ``seconds`` turn what is real into what is emulated; ``queue_s`` has emulated queues.
    A path over an optical switch is not known: such a GPU's connections fit the smallest queue of the fabric.
    """

    def __init__(
        self,
        fabric: Fabric,
        mtu_bytes: int,
        rate_bps: Callable[[float], float],
        seconds: Callable[[float], float],
        queue_s: Mapping[Link, float],
    ) -> None:
        self._fabric, self._mtu_bytes, self._rate_bps = fabric, mtu_bytes, rate_bps
        self._delay_s = {link: seconds(link.delay_s) for link in fabric.links}
        self._queues = {
            link: shaping.queue_bytes(rate_bps(link.rate_bps), s)
            for link, s in queue_s.items()
        }
        self._router = Router(fabric, electrical_graph(fabric, {}))
        self._by_traits = cache(self._of)

    def between(self, source: str, destination: str) -> int:
        """Return the window of a connection for what one GPU sends to another, bytes."""
        try:
            there = self._router.path(source, destination)
            back = self._router.path(destination, source)
        except NoPathError:
            return self._anywhere()
        queues = [
            self._queues[self._link(hop)] for hop in there if self._is_switch(hop)
        ]
        round_trip_s = sum(self._delay_s[self._link(hop)] for hop in (*there, *back))
        return self._by_traits(
            min(hop.rate_bps for hop in there), round_trip_s, min(queues)
        )

    def most(self) -> int:
        """Return a window that none is larger than, bytes."""
        rate_bps = max(link.rate_bps for link in self._fabric.links)
        return self._by_traits(
            rate_bps, 2 * sum(self._delay_s.values()), max(self._queues.values())
        )

    def _anywhere(self) -> int:
        switches = self._fabric.packet_switches
        queues = [
            queue
            for link, queue in self._queues.items()
            if link.a.node in switches or link.b.node in switches
        ]
        if not queues:
            # Over light alone a sender waits for its own queue, and nothing is lost.
            return self.most()
        rate_bps = max(link.rate_bps for link in self._fabric.links)
        return self._by_traits(rate_bps, 2 * max(self._delay_s.values()), min(queues))

    def _of(self, rate_bps: float, round_trip_s: float, queue_bytes: float) -> int:
        return window_bytes(
            self._rate_bps(rate_bps), round_trip_s, queue_bytes, self._mtu_bytes
        )

    def _is_switch(self, hop: Hop) -> bool:
        return hop.out.node in self._fabric.packet_switches

    def _link(self, hop: Hop) -> Link:
        return self._fabric.link_at[hop.out]
