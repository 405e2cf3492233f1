"""Fabrics as the simulator sees them: directed links with a capacity, and the links of each transfer.

The engine knows nothing else of a fabric. One class for each way in which a fabric finds its paths: packets
along the controller's rules, an ideal switch; extensions have others.

Every network may be given ``share``, the part of a link's rate that payload gets (headers take the rest),
and ``latency_s``, seconds that pass before the first byte of a transfer counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np

from ringlight.fabric.frames import ETHERNET_BYTES, IN_PACKET_BYTES
from ringlight.fabric.light import bit_errors, frame_errors
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.paths import Router
from ringlight.fabric.steps import Step
from ringlight.fabric.topology import (
    CrossConnects,
    Fabric,
    circuit_cross_connects,
    electrical_graph,
    path_dbm,
)
from ringlight.testbed.simulation.arrays import FloatArray, IntArray
from ringlight.testbed.simulation.tcp import reno_bps


@dataclass(frozen=True, eq=False)
class Routes:
    """The links of each transfer of a step: transfer k passes ``links[offsets[k]:offsets[k + 1]]``.

    ``latency_s`` [transfers]: seconds before the first byte of each counts. ``delay_s`` [transfers]: of these
    the delays of links, which a word that comes back takes, too; None if no link has any.
    """

    offsets: IntArray
    links: IntArray
    latency_s: FloatArray
    delay_s: FloatArray | None = None


class Network(Protocol):
    """Directed links, numbered from 0, with ``capacity_bps`` in bits per second of payload."""

    @property
    def capacity_bps(self) -> FloatArray: ...

    def key(self, link: int) -> Hashable:
        """Return the name of a link. Links of two networks with the same name are the same fibre."""
        ...

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        """Return the way of every transfer of the step. ``ranks``: GPU of each rank, ``number``: the step's.

        Raises ValueError naming a transfer that has no path or does not fit.
        """
        ...


class NetworkForCollectives:
    """Base class of networks whose light is set for one collective, so that no workload can be simulated
    there. ``name``: what messages call such a network."""

    name: ClassVar[str]


def _positive(name: str, capacity_bps: float) -> float:
    if not capacity_bps > 0:
        raise ValueError(
            f"link {name}: its capacity is {capacity_bps:g} bit/s; it must be above 0"
        )
    return capacity_bps


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"share is {share:g}; it must be above 0 and at most 1")


def capacity_of(name: str, rate_bps: float, share: float) -> float:
    """Return the part of a link's rate that payload gets, in bits per second.

    Raises ValueError naming the link, or the share, that is impossible.
    """
    _check_share(share)
    return _positive(name, rate_bps * share)


class Places:
    """GPUs of a network and where each stands in it. Raises ValueError naming one that is there twice."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = tuple(gpus)
        self._at = {gpu: index for index, gpu in enumerate(self.gpus)}
        if len(self._at) < len(self.gpus):
            twice = next(
                gpu for index, gpu in enumerate(self.gpus) if self._at[gpu] != index
            )
            raise ValueError(f"there are two GPUs {twice}")

    def ends(self, ranks: Sequence[str], step: Step) -> tuple[IntArray, IntArray]:
        """Return the places of each transfer's sender and receiver. Raises ValueError naming a GPU that is
        not there.
        """
        for rank, gpu in enumerate(ranks):
            if gpu not in self._at:
                raise ValueError(f"rank {rank}: there is no GPU {gpu}")
        places = np.array([self._at[gpu] for gpu in ranks], dtype=np.int64)
        return places[step.sources], places[step.destinations]


#: TCP leaves about so many seconds' worth of a connection below it in its own host (tcp_limit_output_bytes
#: and pacing aside, "TCP small queues" in the kernel's ip-sysctl.txt), which counts in its round trips.
OWN_QUEUE_S = 1e-3


@dataclass(frozen=True)
class Segments:
    """TCP's segments on links that lose frames: packets of ``mtu_bytes``, sent again after ``time_out_s``
    seconds at least.
    """

    mtu_bytes: int
    time_out_s: float

    def arrive(
        self, fabric: Fabric, passed: Iterable[Link], path: Sequence[Port]
    ) -> float:
        """Return the share of full frames that arrive over consecutive links of one path of light."""
        frame_bytes = self.mtu_bytes + ETHERNET_BYTES
        losses = [
            effect.frame_loss(frame_bytes)
            for link in passed
            for effect in link.effects.values()
        ]
        if len(path) > 2 and fabric.optics.modulation is not None:
            wrong = bit_errors(fabric.optics, path_dbm(fabric, path))
            losses.append(frame_errors(wrong, frame_bytes))
        return math.prod(1 - loss for loss in losses)

    def most_bps(self, loss: float, way_s: float) -> float:
        """Return the largest payload rate of one connection in bits per second.

        ``way_s``: seconds that its packets take. ``loss``: share of them that is lost.
        """
        rtt_s = 2 * way_s + OWN_QUEUE_S
        return reno_bps(
            loss, rtt_s, self.time_out_s + rtt_s, self.mtu_bytes - IN_PACKET_BYTES
        )


#: GPUs up to which it is looked at what each pair of them gets where frames are lost.
MOST_LOSSY = 128
#: Share of full frames that a link may lose for the formula to hold: of 7 % the emulation's Linux, with SACK,
#: made 1.7 times as much as it says.
MOST_LOSS = 0.02


class PacketNetwork:
    """Packets over GPUs' links, packet switches and the light of optical circuit switches.

    They take the paths of :class:`fabric.paths.Router`, as under the controller's rules. ``cross_connects``
    are by default those of the fabric's own circuits. ``segments``: used if links lose frames. What is lost
    is sent again, so a link that loses carries less by that share, and a pair of GPUs gets no more than TCP
    Reno does, as of a link of its own. A transfer over links that delay counts the most that they do: of many
    frames in order, some wait that long. Raises ValueError naming a link without capacity.
    """

    def __init__(
        self,
        fabric: Fabric,
        cross_connects: CrossConnects | None = None,
        *,
        latency_s: float = 0.0,
        share: float = 1.0,
        segments: Segments | None = None,
    ) -> None:
        _check_share(share)
        if cross_connects is None:
            cross_connects = circuit_cross_connects(fabric, fabric.circuits)
        self._latency_s = latency_s
        graph = electrical_graph(fabric, cross_connects)
        self._router = Router(fabric, graph)
        self._passed: list[tuple[Link, ...]] = []
        self._kept: list[float] = []
        self._pairs: dict[tuple[str, str], int] = {}
        self._delay_s: dict[int, float] = {}
        self._keys: list[tuple[Port, Port]] = []
        self._link: dict[Port, int] = {}
        self._ways: dict[tuple[str, str], list[int]] = {}
        capacity = []
        for edge in graph.edges:
            key = (edge.out, edge.into)
            passed = tuple(
                dict.fromkeys(
                    fabric.link_at[port] for port in edge.path if port in fabric.link_at
                )
            )
            self._passed.append(passed)
            if (delay_s := _delay_s(passed)) > 0:
                self._delay_s[len(self._keys)] = delay_s
            kept = (
                1.0 if segments is None else segments.arrive(fabric, passed, edge.path)
            )
            self._kept.append(kept)
            capacity.append(
                _positive(f"{key[0]} to {key[1]}", edge.rate_bps * share) * kept
            )
            self._link[key[0]] = len(self._keys)
            self._keys.append(key)
        if segments is not None and min(self._kept, default=1.0) < 1:
            capacity += self._limits(list(fabric.gpus), segments)
        self.capacity_bps: FloatArray = np.array(capacity, dtype=np.float64)

    def _limits(self, gpus: Sequence[str], segments: Segments) -> list[float]:
        """Return the rates in bits per second of the pairs of GPUs whose packets may be lost, and add a link
        for each pair.
        """
        rates_bps = []
        for source, destination in itertools.permutations(gpus, 2):
            try:
                way = self._way(source, destination)
            except ValueError:
                continue
            passed = [link for number in way for link in self._passed[number]]
            if loss := 1 - math.prod(self._kept[number] for number in way):
                self._pairs[source, destination] = len(self._keys)
                # Of the GPUs, but none of their ports.
                self._keys.append((Port(source, -1), Port(destination, -1)))
                rates_bps.append(segments.most_bps(loss, _delay_s(passed)))
        return rates_bps

    def key(self, link: int) -> Hashable:
        return self._keys[link]

    def over(self, ends: frozenset[Port]) -> list[int]:
        """Return the links that pass the fibre between two ports, one for each direction."""
        return [
            number
            for number, passed in enumerate(self._passed)
            if any(frozenset((link.a, link.b)) == ends for link in passed)
        ]

    def path(self, source: str, destination: str) -> list[int]:
        """Return the links from one GPU to another. Raises ValueError naming both if there is no way."""
        way = self._ways.get((source, destination))
        if way is None:
            way = self._way(source, destination)
            if (pair := self._pairs.get((source, destination))) is not None:
                way.append(pair)
            self._ways[source, destination] = way
        return way

    def _way(self, source: str, destination: str) -> list[int]:
        return [self._link[hop.out] for hop in self._router.path(source, destination)]

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        ways = [
            self.path(ranks[source], ranks[destination])
            for source, destination in zip(
                step.sources.tolist(), step.destinations.tolist(), strict=True
            )
        ]
        latency_s = np.full(len(step), self._latency_s)
        if not self._delay_s:
            return Routes(*_listed(ways), latency_s)
        delay_s = np.array(
            [sum(self._delay_s.get(link, 0.0) for link in way) for way in ways]
        )
        return Routes(*_listed(ways), latency_s + delay_s, delay_s)


def _delay_s(passed: Iterable[Link]) -> float:
    return math.fsum(link.most_delay_s for link in passed)


def _listed(ways: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    offsets = np.cumsum([0, *(len(way) for way in ways)], dtype=np.int64)
    return offsets, np.fromiter(
        itertools.chain.from_iterable(ways), np.int64, int(offsets[-1])
    )


class IdealNetwork:
    """Ideal switch that delays nothing, with a link of ``rate_bps`` to and from each GPU.

    With ``per_server`` the first so many GPUs are one server, and so on; each has a second link, of
    ``server_bps``, to such a switch in its server, which transfers within the server take. Raises ValueError
    for a rate that is not above 0.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        rate_bps: float,
        *,
        per_server: int = 0,
        server_bps: float = 0.0,
        latency_s: float = 0.0,
        share: float = 1.0,
    ) -> None:
        self._places, self._latency_s, self._per_server = (
            Places(gpus),
            latency_s,
            per_server,
        )
        rates = [capacity_of("of a GPU", rate_bps, share)]
        rates += [capacity_of("in a server", server_bps, share)] if per_server else []
        #: Two links, out and in, of each GPU to the network; then of each to its server.
        self.capacity_bps: FloatArray = np.repeat(np.array(rates), 2 * len(gpus))

    def key(self, link: int) -> Hashable:
        gpus = self._places.gpus
        gpu, into = divmod(link, 2)
        server, gpu = divmod(gpu, len(gpus))
        return (
            ("to" if into else "from") + (" in server" if server else ""),
            gpus[gpu],
        )

    def routes(self, ranks: Sequence[str], step: Step, number: int = 0) -> Routes:
        source, destination = self._places.ends(ranks, step)
        links = np.stack((2 * source, 2 * destination + 1), axis=1)
        if self._per_server:
            within = source // self._per_server == destination // self._per_server
            links[within] += 2 * len(self._places.gpus)
        return Routes(
            2 * np.arange(len(step) + 1),
            links.ravel(),
            np.full(len(step), self._latency_s),
        )


def without_link(fabric: Fabric, port: Port) -> Fabric:
    """Return the fabric with one fibre cut. Raises ValueError if nothing is plugged into the port."""
    link = fabric.link_at.get(port)
    if link is None:
        raise ValueError(f"nothing is plugged into {port}")
    left = tuple(other for other in fabric.links if other is not link)
    return replace(fabric, links=left)


def scaled(fabric: Fabric, factor: float) -> Fabric:
    """Return the fabric with every rate divided by ``factor``, as the emulation runs it (D * S)."""

    def slower(links: Iterable[Link]) -> tuple[Link, ...]:
        return tuple(replace(link, rate_bps=link.rate_bps / factor) for link in links)

    return replace(fabric, links=slower(fabric.links), cables=slower(fabric.cables))
