"""Cut a fabric for several hosts: the host of each node, and the fibres that cross.

A packet switch and the GPUs that the initial light joins to it stay together. An optical switch is on one
host, and all of its fibres reach it there. Of the divisions that leave each host about as many GPUs, the
search looks for one whose cut fibres have a small rate: from two starts, parts move and change places while
that helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import networkx as nx

from ringlight.fabric.parts import Link
from ringlight.fabric.topology import Fabric

#: Of each unit, by the other: rate of the fibres between two units, bit/s.
Near = list[dict[int, float]]


@dataclass(frozen=True)
class CutFibre:
    """A fibre between two hosts. ``number``: its own among those, from 1; ``hosts``: of its two ends."""

    number: int
    link: Link
    hosts: tuple[int, int]


@dataclass(frozen=True)
class Cut:
    """``hosts``: names of the nodes on each host, the controller's first; ``fibres``: those that cross."""

    hosts: tuple[tuple[str, ...], ...]
    fibres: tuple[CutFibre, ...]

    @property
    def crossing_bps(self) -> dict[tuple[int, int], float]:
        """Rate of the fibres between two hosts, one way, by the hosts' numbers from 0."""
        rate_bps: dict[tuple[int, int], float] = {}
        for fibre in self.fibres:
            a, b = sorted(fibre.hosts)
            rate_bps[a, b] = rate_bps.get((a, b), 0.0) + fibre.link.rate_bps
        return dict(sorted(rate_bps.items()))


def cut(fabric: Fabric, hosts: int) -> Cut:
    """Divide a fabric over so many hosts. Return the division; it is always the same for the same fabric.

    Raises ValueError if the fabric has fewer parts with GPUs that may be apart than there are hosts, or if
    what joins its GPUs is not plugged port by port.
    """
    if hosts < 1:
        raise ValueError(f"{hosts} hosts; at least 1 is needed")
    links = (*fabric.links, *fabric.cables)
    if not links:
        raise ValueError("nothing is plugged port by port, so there is no fibre to cut")
    units = _units(fabric)
    weights = [sum(name in fabric.gpus for name in unit) for unit in units]
    if (parts := sum(map(bool, weights))) < hosts:
        raise ValueError(
            f"{parts} of its parts have GPUs and may be apart, too few for {hosts} hosts"
        )
    unit_of = {name: number for number, unit in enumerate(units) for name in unit}
    near: Near = [{} for _ in units]
    for link in links:
        a, b = unit_of[link.a.node], unit_of[link.b.node]
        if a != b:
            near[a][b] = near[b][a] = near[a].get(b, 0.0) + link.rate_bps
    starts = (_in_order(weights, hosts), _heavy_first(weights, hosts))
    placed = [_settled(near, weights, hosts, start) for start in starts]
    place = min(placed, key=lambda place: _crossing(near, place))
    where = {name: place[number] for name, number in unit_of.items()}
    crossing = [link for link in links if where[link.a.node] != where[link.b.node]]
    return Cut(
        tuple(
            tuple(name for name in where if where[name] == host)
            for host in range(hosts)
        ),
        tuple(
            CutFibre(number, link, (where[link.a.node], where[link.b.node]))
            for number, link in enumerate(crossing, 1)
        ),
    )


def _units(fabric: Fabric) -> list[tuple[str, ...]]:
    """Return the groups of nodes that stay together, each node once, in the fabric's order.

    A GPU is with the first packet switch that it reaches by a cable or a lit circuit, else alone.
    """
    neighbours: nx.Graph[str] = nx.Graph()
    for link in fabric.links:
        neighbours.add_edge(link.a.node, link.b.node)
    for a, b in fabric.circuits:
        neighbours.add_edge(a.node, b.node)
    members: dict[str, list[str]] = {name: [name] for name in fabric.packet_switches}
    alone: list[tuple[str, ...]] = []
    for gpu in fabric.gpus:
        beside = neighbours.adj.get(gpu, {})
        switch = next((name for name in fabric.packet_switches if name in beside), None)
        if switch is None:
            alone.append((gpu,))
        else:
            members[switch].append(gpu)
    optical = [(name,) for name in (*fabric.devices, *fabric.optical_switches)]
    return [*map(tuple, members.values()), *alone, *optical]


def _in_order(weights: Sequence[int], hosts: int) -> dict[int, int]:
    """Return the host of each unit with GPUs: neighbours in the fabric's order are together."""
    total, before = sum(weights), 0
    place = {}
    for unit, weight in enumerate(weights):
        if weight:
            place[unit] = hosts * (2 * before + weight) // (2 * total)
            before += weight
    return place


def _heavy_first(weights: Sequence[int], hosts: int) -> dict[int, int]:
    """Return the host of each unit with GPUs, with loads as even as possible.

    The heaviest unit is first, and each goes to the host with the least so far.
    """
    load = [0] * hosts
    place = {}
    for unit in sorted(
        (unit for unit, weight in enumerate(weights) if weight),
        key=lambda u: -weights[u],
    ):
        place[unit] = load.index(min(load))
        load[place[unit]] += weights[unit]
    return place


def _settled(
    near: Near, weights: Sequence[int], hosts: int, start: Mapping[int, int]
) -> dict[int, int]:
    """Return the host of every unit, once no move or exchange improves it.

    ``start``: hosts of the units with GPUs from which the search starts.
    """
    place = dict(start)
    load = [
        sum(weights[unit] for unit in place if place[unit] == host)
        for host in range(hosts)
    ]
    if not all(load):
        # Very uneven units may leave a host without any.
        place = _heavy_first(weights, hosts)
        load = [
            sum(weights[unit] for unit in place if place[unit] == host)
            for host in range(hosts)
        ]
    room = max(load)
    # Those that join most to what has its place come first.
    while left := [unit for unit in range(len(weights)) if unit not in place]:
        rates_bps = {
            (unit, host): _towards(near, place, unit, host)
            for unit in left
            for host in range(hosts)
        }
        unit, host = max(rates_bps, key=lambda key: rates_bps[key])
        place[unit] = host
    _improve(near, place, weights, load, room)
    return place


def _crossing(near: Near, place: Mapping[int, int]) -> float:
    """Return the rate of all fibres between hosts, bits per second."""
    return (
        sum(
            rate
            for unit in place
            for other, rate in near[unit].items()
            if place[other] != place[unit]
        )
        / 2
    )


def _towards(near: Near, place: Mapping[int, int], unit: int, host: int) -> float:
    """Return the rate of a unit's fibres to units on a host, bits per second."""
    return sum(rate for other, rate in near[unit].items() if place.get(other) == host)


def _improve(
    near: Near,
    place: dict[int, int],
    weights: Sequence[int],
    load: list[int],
    room: int,
) -> None:
    """Move single units and exchange pairs until neither makes less cross between hosts."""
    while (change := next(_better(near, place, weights, load, room), None)) is not None:
        for unit, host in change:
            load[place[unit]] -= weights[unit]
            load[host] += weights[unit]
            place[unit] = host


def _better(
    near: Near,
    place: Mapping[int, int],
    weights: Sequence[int],
    load: Sequence[int],
    room: int,
) -> Iterator[list[tuple[int, int]]]:
    gain = {
        (unit, host): _towards(near, place, unit, host)
        - _towards(near, place, unit, place[unit])
        for unit in place
        for host in range(len(load))
    }
    for (unit, host), gained in gain.items():
        # What one rates_bps would be lost in rounding: less than a bit a second is nothing.
        if (
            gained > 1
            and load[host] + weights[unit] <= room
            and load[place[unit]] > weights[unit]
        ):
            yield [(unit, host)]
    for a, b in combinations(place, 2):
        there, here = place[b], place[a]
        differ = weights[a] - weights[b]
        if there == here or load[there] + differ > room or load[here] - differ > room:
            continue
        if gain[a, there] + gain[b, here] - 2 * near[a].get(b, 0.0) > 1:
            yield [(a, there), (b, here)]
