"""The pinned BPF maps of one O-NIC: what its agent writes and what others read. Imports little."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ringlight.testbed.emulation.kernel import ebpf

#: Most fibre ports; their numbers come before those of the other ports.
FIBRES = 32
HOST, CONTROL, QUEUE = FIBRES, FIBRES + 1, FIBRES + 2
#: What its GPU's NIC is called in an O-NIC's namespace.
HOST_NAME = "host"
#: Most lightpaths of one pair of GPUs where light stands.
MOST_LIGHTPATHS = 64
U32 = struct.Struct("=I")
IDENTITY = struct.Struct("=I6s2x")
#: Fibre port and tag: of an array of transmitters the channel + 1, of a tunable laser 0.
_ROUTE = struct.Struct("=II")
_OF_GPU = (
    "control_tx_packets",
    "control_tx_bytes",
    "control_rx_packets",
    "control_rx_bytes",
    "unrouted",
)
_OF_FIBRE = (
    "light_tx_packets",
    "light_tx_bytes",
    "light_rx_packets",
    "light_rx_bytes",
    "misdirected",
)
_COUNTERS = struct.Struct(f"={len(_OF_GPU)}Q")
_FIBRE = struct.Struct(f"={len(_OF_FIBRE)}Q")
#: Whether it is lit, how many paths, whose turn; then the paths, each a fibre port and a tag.
_LIGHT = struct.Struct("=III")
_PATH = struct.Struct("=HH")
#: A lock, the first class of its queues; fresh, payload, words, held.
_PEER = struct.Struct("=4xI4Q")
_LIGHTPATH = struct.Struct("=4sHH")
_CARRIED = struct.Struct("=QQQ")
SIZES = {
    "counters": (U32.size, _COUNTERS.size),
    "fibres": (U32.size, _FIBRE.size),
    "ports": (U32.size, U32.size),
    "fibre_of_ifindex": (U32.size, U32.size),
    "identity": (U32.size, IDENTITY.size),
    "route_of_peer": (U32.size, _ROUTE.size),
    "lights": (U32.size, _LIGHT.size + MOST_LIGHTPATHS * _PATH.size),
    "peers": (U32.size, _PEER.size),
    "sent_on": (_LIGHTPATH.size, _CARRIED.size),
    "received_on": (_LIGHTPATH.size, _CARRIED.size),
}


@dataclass(frozen=True)
class Counters:
    """Counters of one O-NIC since it was created, in packets as the kernel carries them (up to 64 KiB).

    ``light_*`` and ``misdirected`` (light meant for another O-NIC) are by fibre port. ``control_*`` counts
    the GPU's own traffic over the control network. ``unrouted`` counts payload for a peer to which no light
    leads.
    """

    light_tx_packets: tuple[int, ...]
    light_tx_bytes: tuple[int, ...]
    light_rx_packets: tuple[int, ...]
    light_rx_bytes: tuple[int, ...]
    misdirected: tuple[int, ...]
    control_tx_packets: int
    control_tx_bytes: int
    control_rx_packets: int
    control_rx_bytes: int
    unrouted: int


def open_map(pins: Path, name: str) -> ebpf.Map:
    """Open a map of the O-NIC whose pins are in ``pins`` and return it. Raises EbpfError."""
    return ebpf.Map(name, ebpf.open_pinned(pins / name), *SIZES[name])


def read_counters(pins: Path, ports: int) -> Counters:
    """Return the counters of the O-NIC pinned in ``pins``, which has ``ports`` fibre ports. Raises
    EbpfError."""
    with closing(open_map(pins, "counters")) as table:
        of_gpu = _COUNTERS.unpack(table.lookup(U32.pack(0)) or bytes(_COUNTERS.size))
    with closing(open_map(pins, "fibres")) as table:
        fibres = [
            _FIBRE.unpack(table.lookup(U32.pack(port)) or bytes(_FIBRE.size))
            for port in range(ports)
        ]
    by_fibre: dict[str, Any] = dict(
        zip(_OF_FIBRE, zip(*fibres, strict=True), strict=True)
    )
    return Counters(**by_fibre, **dict(zip(_OF_GPU, of_gpu, strict=True)))


class Transmitter(NamedTuple):
    """A transmitter of an O-NIC: its fibre port, and its channel in an array; None for a tunable laser."""

    port: int
    wavelength: int | None = None


def _tag(channel: int | None) -> int:
    return 0 if channel is None else channel + 1


def _channel(tag: int) -> int | None:
    return tag - 1 if tag else None


class _Tables:
    """Maps of the O-NIC whose pins are in ``pins``, held open. Raises EbpfError."""

    NAMES: ClassVar[tuple[str, ...]]

    def __init__(self, pins: Path) -> None:
        self._maps: list[ebpf.Map] = []
        try:
            for name in self.NAMES:
                self._maps.append(open_map(pins, name))
        except ebpf.EbpfError:
            self.close()
            raise

    def close(self) -> None:
        for table in self._maps:
            table.close()


class RouteTable(_Tables):
    """The transmitter that is used towards each peer, by IPv4 address."""

    NAMES = ("route_of_peer",)

    def replace(self, routes: Mapping[str, Transmitter]) -> None:
        """Makes these the whole table. A peer that keeps its transmitter is not touched."""
        entries = {
            socket.inet_aton(ip): _ROUTE.pack(port, _tag(channel))
            for ip, (port, channel) in routes.items()
        }
        (table,) = self._maps
        present = dict(table.items())
        for peer in present.keys() - entries.keys():
            table.delete(peer)
        for peer, route in entries.items():
            if present.get(peer) != route:
                table.update(peer, route)

    def read(self) -> dict[str, Transmitter]:
        routes = {}
        for peer, route in self._maps[0].items():
            port, tag = _ROUTE.unpack(route)
            routes[socket.inet_ntoa(peer)] = Transmitter(port, _channel(tag))
        return routes


class PeerLight(NamedTuple):
    """The light towards a peer: its lightpaths, and whether they are lit or dark for a while."""

    lit: bool
    paths: tuple[Transmitter, ...] = ()


class LightTable(_Tables):
    """The standing light of one O-NIC towards each peer, by IPv4 address.

    What is sent to a peer that is not in it is dropped and counted as ``unrouted``; to one that is dark, or
    has no lightpath, it waits.
    """

    NAMES = ("lights",)

    def replace(self, lights: Mapping[str, PeerLight]) -> None:
        """Makes these the whole table, each peer's light at once. Raises ValueError, EbpfError."""
        entries = {
            socket.inet_aton(ip): _pack(ip, light) for ip, light in lights.items()
        }
        (table,) = self._maps
        for peer in set(table.keys()) - entries.keys():
            table.delete(peer)
        for peer, light in entries.items():
            table.update(peer, light)

    def read(self) -> dict[str, PeerLight]:
        lights = {}
        for peer, value in self._maps[0].items():
            is_lit, count, _ = _LIGHT.unpack_from(value)
            paths = [
                _PATH.unpack_from(value, _LIGHT.size + number * _PATH.size)
                for number in range(count)
            ]
            lights[socket.inet_ntoa(peer)] = PeerLight(
                bool(is_lit),
                tuple(Transmitter(port, _channel(tag)) for port, tag in paths),
            )
        return lights


def _pack(ip: str, light: PeerLight) -> bytes:
    if len(light.paths) > MOST_LIGHTPATHS:
        raise ValueError(
            f"{ip} has {len(light.paths)} lightpaths, at most {MOST_LIGHTPATHS}"
        )
    paths = b"".join(_PATH.pack(port, _tag(channel)) for port, channel in light.paths)
    head = _LIGHT.pack(light.lit, len(light.paths), 0)
    return head + paths.ljust(MOST_LIGHTPATHS * _PATH.size, b"\0")


class PeerCount(NamedTuple):
    """Counters of an O-NIC with permanent light for one peer, since the O-NIC was created.

    ``fresh``: bytes of TCP payload that have left as light for the first time; ``resent``: again. ``words``:
    bytes of payload marked as words, which took the control network. ``held``: how often a packet was sent
    round in the dark.
    """

    fresh: int
    resent: int
    words: int
    held: int


class PathCount(NamedTuple):
    """Counters of one lightpath: packets, their bytes, and bytes of TCP payload in them."""

    packets: int
    bytes: int
    payload: int


#: The other's IPv4 address, the port of this O-NIC, and the wavelength; None through an OCS.
LightpathKey = tuple[str, int, int | None]


class TrafficTable(_Tables):
    """Counters of one O-NIC with permanent light, sent and received, by peer and by lightpath."""

    NAMES = ("peers", "sent_on", "received_on")

    def peers(self) -> dict[str, PeerCount]:
        """Return the counters of each peer by IP address, also of peers to which nothing was ever sent."""
        counts = {}
        for peer, value in self._maps[0].items():
            _, fresh, payload, words, held = _PEER.unpack(value)
            counts[socket.inet_ntoa(peer)] = PeerCount(
                fresh, max(0, payload - fresh), words, held
            )
        return counts

    def sent_on(self) -> dict[LightpathKey, PathCount]:
        """Return the counters of what was sent on each lightpath that was ever used."""
        return _carried(self._maps[1])

    def received_on(self) -> dict[LightpathKey, PathCount]:
        return _carried(self._maps[2])


def _carried(table: ebpf.Map) -> dict[LightpathKey, PathCount]:
    counts: dict[LightpathKey, PathCount] = {}
    for key, value in table.items():
        peer, port, tag = _LIGHTPATH.unpack(key)
        counts[socket.inet_ntoa(peer), port, _channel(tag)] = PathCount(
            *_CARRIED.unpack(value)
        )
    return counts


@dataclass(frozen=True)
class PeerTraffic:
    """See :class:`TrafficTable`."""

    peers: Mapping[str, PeerCount]
    sent_on: Mapping[LightpathKey, PathCount]
    received_on: Mapping[LightpathKey, PathCount]


def read_traffic(pins: Path) -> PeerTraffic:
    """Return what the O-NIC pinned in ``pins`` has sent and received. Raises EbpfError."""
    with closing(TrafficTable(pins)) as table:
        return PeerTraffic(table.peers(), table.sent_on(), table.received_on())


def name_peers(table: ebpf.Map, first: Mapping[str, int]) -> None:
    """Tell the O-NIC of each peer the class of its first queue. Raises EbpfError."""
    for ip, number in first.items():
        table.update(socket.inet_aton(ip), _PEER.pack(number, 0, 0, 0, 0))
