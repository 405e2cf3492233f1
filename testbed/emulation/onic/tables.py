"""The pinned BPF maps of one O-NIC: what its agent writes and what others read. Imports little."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from testbed.emulation.optical import ebpf

FIBRES = 2
#: Number of a port in the map of ports; fibres are 0 and 1.
HOST, CONTROL = 2, 3
U32 = struct.Struct("=I")
IDENTITY = struct.Struct("=I6s2x")
#: Fibre port and tag: of an array of transmitters the channel + 1, of a tunable laser 0.
_ROUTE = struct.Struct("=II")
_OF_FIBRES = ("light_tx_packets", "light_tx_bytes", "light_rx_packets", "light_rx_bytes", "misdirected")
_OF_GPU = ("control_tx_packets", "control_tx_bytes", "control_rx_packets", "control_rx_bytes", "unrouted")
_COUNTERS = struct.Struct(f"={len(_OF_FIBRES) * FIBRES + len(_OF_GPU)}Q")
SIZES = {
    "counters": (U32.size, _COUNTERS.size),
    "ports": (U32.size, U32.size),
    "identity": (U32.size, IDENTITY.size),
    "route_of_peer": (U32.size, _ROUTE.size),
}


@dataclass(frozen=True)
class Counters:
    """What one O-NIC has passed since it was made, in packets as the kernel carries them (up to 64 KiB).

    ``light_*`` and ``misdirected`` (light meant for another) are of its two fibre ports; ``control_*`` is
    the GPU's own traffic over the control network; ``unrouted`` is payload for a peer that no port leads to.
    """

    light_tx_packets: tuple[int, int]
    light_tx_bytes: tuple[int, int]
    light_rx_packets: tuple[int, int]
    light_rx_bytes: tuple[int, int]
    misdirected: tuple[int, int]
    control_tx_packets: int
    control_tx_bytes: int
    control_rx_packets: int
    control_rx_bytes: int
    unrouted: int


def open_map(pins: Path, name: str) -> ebpf.Map:
    """A pinned map of the O-NIC whose pins are in ``pins``. Raises EbpfError."""
    return ebpf.Map(name, ebpf.open_pinned(pins / name), *SIZES[name])


def read_counters(table: ebpf.Map) -> Counters:
    values = _COUNTERS.unpack(table.lookup(U32.pack(0)) or bytes(_COUNTERS.size))
    pairs = [values[i : i + FIBRES] for i in range(0, len(_OF_FIBRES) * FIBRES, FIBRES)]
    told: dict[str, Any] = dict(zip(_OF_FIBRES, pairs, strict=True))
    told |= zip(_OF_GPU, values[len(_OF_FIBRES) * FIBRES :], strict=True)
    return Counters(**told)


class Transmitter(NamedTuple):
    """A transmitter of an O-NIC: its fibre port, and its channel in an array; None for a tunable laser."""

    port: int
    wavelength: int | None = None


class RouteTable:
    """The transmitter that is used towards each peer, by IPv4 address."""

    def __init__(self, table: ebpf.Map) -> None:
        self._table = table

    @classmethod
    def open(cls, pins: Path) -> RouteTable:
        """Raises EbpfError."""
        return cls(open_map(pins, "route_of_peer"))

    def close(self) -> None:
        self._table.close()

    def replace(self, routes: Mapping[str, Transmitter]) -> None:
        """Makes these the whole table. A peer that keeps its transmitter is not touched."""
        wanted = {
            socket.inet_aton(ip): _ROUTE.pack(port, 0 if channel is None else channel + 1)
            for ip, (port, channel) in routes.items()
        }
        present = dict(self._table.items())
        for peer in present.keys() - wanted.keys():
            self._table.delete(peer)
        for peer, route in wanted.items():
            if present.get(peer) != route:
                self._table.update(peer, route)

    def read(self) -> dict[str, Transmitter]:
        found = {}
        for peer, route in self._table.items():
            port, tag = _ROUTE.unpack(route)
            found[socket.inet_ntoa(peer)] = Transmitter(port, tag - 1 if tag else None)
        return found
