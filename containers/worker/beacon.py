"""Small datagrams to the ring successor at a fixed pace: their gaps show when the light was out.

A beacon carries its number, so a gap on the wire (numbers missing) can be distinguished from a late sender,
and is timed by the kernel's receive stamp, so a late reader does not show either.
"""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time

from ringlight.containers.worker.spec import WorkerSpec

_BEACON = struct.Struct("!8sIQ")
_STAMP = struct.Struct("qq")
#: SO_TIMESTAMPNS; Python has no name for it.
_SO_TIMESTAMPNS = 35
#: Gaps longer than this are recorded, seconds.
LONG_GAP_S = 0.020


class Beacons:
    """Sends to rank + 1 and listens to rank - 1 from entering to leaving the ``with`` block.

    ``gaps``: one ``{"t_start","t_end","peer","lost"}`` per gap over 20 ms (arrival times,
    CLOCK_MONOTONIC seconds; ``lost`` beacons missing in between). ``max_gap_s``: the longest time between
    two arrivals, None before the second. Does nothing when ``beacon_interval_s`` is 0 or there is one rank.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.gaps: list[dict[str, float]] = []
        self.max_gap_s: float | None = None
        self._spec = spec
        self._peer = (spec.rank - 1) % spec.world_size
        self._last: tuple[int, float] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Beacons:
        if self._spec.beacon_interval_s > 0 and self._spec.world_size > 1:
            self._thread = threading.Thread(
                target=self._run, name="beacons", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def _run(self) -> None:
        spec = self._spec
        job = hashlib.sha256(spec.job.encode()).digest()[:8]
        successor = (spec.peers[(spec.rank + 1) % spec.world_size], spec.port)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as beacon_socket:
            beacon_socket.bind((spec.address, spec.port))
            beacon_socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            beacon_socket.setblocking(False)
            number = 0
            due = time.monotonic()
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due = max(due + spec.beacon_interval_s, time.monotonic())
                self._send(
                    beacon_socket, _BEACON.pack(job, spec.rank, number), successor
                )
                number += 1
                self._receive(beacon_socket, job)

    @staticmethod
    def _send(
        beacon_socket: socket.socket, data: bytes, successor: tuple[str, int]
    ) -> None:
        try:
            beacon_socket.sendto(data, successor)
        except OSError:
            # An unplugged fibre or a full queue: the successor counts the missing number.
            return

    def _receive(self, beacon_socket: socket.socket, job: bytes) -> None:
        while True:
            try:
                data, ancillary, _, _ = beacon_socket.recvmsg(
                    _BEACON.size, socket.CMSG_SPACE(_STAMP.size)
                )
            except OSError:
                return
            if len(data) != _BEACON.size:
                continue
            sender_job, rank, number = _BEACON.unpack(data)
            if (sender_job, rank) == (job, self._peer):
                self._note(number, _arrival(ancillary))

    def _note(self, number: int, arrived: float) -> None:
        if self._last is not None and number > self._last[0]:
            gap_s = arrived - self._last[1]
            self.max_gap_s = max(self.max_gap_s or 0.0, gap_s)
            if gap_s > LONG_GAP_S:
                self.gaps.append(
                    {
                        "t_start": self._last[1],
                        "t_end": arrived,
                        "peer": self._peer,
                        "lost": number - self._last[0] - 1,
                    }
                )
        self._last = (number, arrived)


def _arrival(ancillary: list[tuple[int, int, bytes]]) -> float:
    """Return the kernel's receive time in CLOCK_MONOTONIC seconds; the present time if the kernel gives
    none.
    """
    now = time.monotonic()
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(
            value
        ) == _STAMP.size:
            seconds, nanoseconds = _STAMP.unpack(value)
            age_s: float = time.time() - (seconds + nanoseconds * 1e-9)
            return now - max(0.0, age_s)
    return now
