"""Limits of the bytes that workers have in flight, so that few wait in queues."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ringlight.fabric.frames import IN_PACKET_BYTES
from ringlight.fabric.parts import Link
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.kernel import netlink, shaping
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.windows import LATE_S, WAITING_FRAMES, Windows


class UnderWay:
    """Limits of the bytes in flight of a lab's workers. ``mtu_bytes``: of their IP packets. ``queue_s``: seconds
    of the queue of each link, as emulated.

    ``window_bytes``: of routes of workers; None if workers set it or nobody does.
    """

    def __init__(
        self,
        fabric: Fabric,
        emulation: Emulation,
        mtu_bytes: int,
        queue_s: Mapping[Link, float],
    ) -> None:
        self._fabric, self._emulation = fabric, emulation
        self._mtu_bytes, self._queue_s = mtu_bytes, queue_s
        self._windows = None
        if emulation.bounded and fabric.links and not fabric.onics:
            self._windows = Windows(
                fabric, mtu_bytes, emulation.rate_bps, emulation.seconds, queue_s
            )
        self.window_bytes = self._most_under_way()

    def _most_under_way(self) -> int | None:
        """Window that routes of workers give a connection, bytes; None where workers set it or nobody does.

        Light that is asked for carries one connection; there half a queue stays, as 112 kB had TCP wait for
        time-outs (an all-reduce took 3.5 times as long).
        """
        rates = [
            (self._emulation.rate_bps(link.rate_bps), queue_s)
            for link, queue_s in self._queue_s.items()
        ]
        if not (self._emulation.bounded and rates) or self._windows is not None:
            return None
        late = math.ceil(max(rate_bps for rate_bps, _ in rates) / 8 * LATE_S)
        half = min(shaping.queue_bytes(*link) // 2 for link in rates)
        return max(half, late, WAITING_FRAMES * netlink.FRAME_BYTES)

    def first_segments(self) -> int | None:
        """Return the segments that a new connection may have under way at once; None for the kernel's own.

        The fabrics that are emulated have no slow start, and windows keep what is under way within queues.
        Over links that delay it shows: an iteration over 128 ms there and back took 150 ms longer at first.
        """
        delayed = any(link.delay_s for link in self._fabric.links)
        if self._windows is None or not delayed:
            return None
        return math.ceil(self._windows.most() / (self._mtu_bytes - IN_PACKET_BYTES))

    def windows_to(self, gpu: str, ips: Iterable[str]) -> list[int]:
        """Return the windows of a worker's connections for what comes from GPUs at these addresses, bytes.

        None at all where they are not bounded.

        What is under way beyond what the way itself takes only waits in queues: a binary tree over packet
        switches took 1.14 of its simulated time with half a queue, 1.03 so. A worker keeps to them by itself:
        Linux forgets the window of a route once it has seen a full segment (since 6.10: tcp_measure_rcv_mss
        sets the clamp anew). With 250 kB under way and a queue of 40 kB each rank sent some fifteen segments
        again in an all-reduce.
        """
        if self._windows is None:
            return []
        peers = [self._fabric.gpu_by_ip(ip) for ip in ips]
        return [
            0
            if other is None or other.name == gpu
            else self._windows.between(other.name, gpu)
            for other in peers
        ]
