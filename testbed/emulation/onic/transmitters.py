"""The transmitters and the route table of an O-NIC as its agent uses them, on the lab's BPF maps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringlight.testbed.emulation.onic.tables import RouteTable, Transmitter
from ringlight.testbed.emulation.optical.lasers import Lasers

_NS = 1_000_000_000


class BpfLaser:
    """The tunable transmitters of one O-NIC, by port. Times are seconds of CLOCK_MONOTONIC."""

    def __init__(self, lasers: Lasers, ids: Sequence[int]) -> None:
        self._lasers = lasers
        self._ids = tuple(ids)

    @classmethod
    def open(cls, pin: Path, ids: Sequence[int]) -> BpfLaser:
        """Open the lab's map of lasers and return the transmitters with these numbers, by port. Raises
        EbpfError."""
        return cls(Lasers.open(pin), ids)

    def close(self) -> None:
        self._lasers.close()

    def tune(
        self, port: int, wavelength: int, ready_in_s: float, until_s: float
    ) -> float:
        """Tune to ``wavelength``, dark for ``ready_in_s`` seconds and then lit until ``until_s``. Return the
        time at which it is lit (CLOCK_MONOTONIC seconds).

        If ``ready_in_s`` is 0 and the laser already has that wavelength, only the end of the light changes.
        """
        now_ns = time.monotonic_ns()
        ready_ns = now_ns + round(ready_in_s * _NS)
        present = self._lasers.read(self._ids[port]) if ready_in_s == 0 else None
        if present and present.wavelength == wavelength and now_ns < present.until_ns:
            ready_ns = present.ready_ns
        self._lasers.tune(self._ids[port], wavelength, ready_ns, round(until_s * _NS))
        return ready_ns / _NS

    def dark(self, port: int) -> None:
        self._lasers.dark(self._ids[port])

    def read(self, port: int) -> int | None:
        """Return the wavelength that the kernel has for the port's laser, None if the laser is off or its
        time is over."""
        tuned = self._lasers.read(self._ids[port])
        return (
            tuned.wavelength if tuned and time.monotonic_ns() < tuned.until_ns else None
        )


class BpfRoutes:
    """The fibre port whose tunable laser leads to each peer, by IPv4 address."""

    def __init__(self, pins: Path) -> None:
        """Raises EbpfError."""
        self._table = RouteTable(pins)

    def close(self) -> None:
        self._table.close()

    def replace(self, routes: Mapping[str, int]) -> None:
        self._table.replace({ip: Transmitter(port) for ip, port in routes.items()})

    def read(self) -> dict[str, int]:
        return {ip: transmitter.port for ip, transmitter in self._table.read().items()}
