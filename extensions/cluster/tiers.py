"""Read the cluster that jobs share off a fabric of packet switches in tiers."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ringlight.extensions.cluster.clusters import Cluster, LitCluster
from ringlight.fabric.parts import Link, Port
from ringlight.fabric.topology import Fabric


def leaves_of(fabric: Fabric) -> dict[str, str]:
    """Return the packet switch that each GPU is plugged into, or lit to at first.

    Raises ValueError for a GPU that is joined to none.
    """
    far_end = {a: b for pair in fabric.circuits for a, b in (pair, pair[::-1])}
    leaf_of: dict[str, str] = {}
    for gpu in fabric.gpus:
        port = Port(gpu, 0)
        link = fabric.link_at.get(port)
        end = None if link is None else far_end.get(port, link.other(port))
        if end is None or end.node not in fabric.packet_switches:
            raise ValueError(f"GPU {gpu} is joined to no packet switch")
        leaf_of[gpu] = end.node
    return leaf_of


def cluster_of(fabric: Fabric) -> Cluster:
    """Return the cluster of a fabric of packet switches in tiers.

    GPUs are on the switch that they are plugged into, or lit to at first. Raises ValueError for a fabric
    without packet switches, for GPUs of unequal rates, and for a GPU that is joined to no switch.
    """
    if not fabric.packet_switches:
        raise ValueError(
            "a trace is replayed on tiers of packet switches; there are none"
        )
    leaf_of = leaves_of(fabric)
    rates = {fabric.link_at[Port(gpu, 0)].rate_bps for gpu in fabric.gpus}
    if len(rates) > 1:
        raise ValueError(
            "GPUs have links of several rates; a trace needs one rate for all"
        )
    rate = rates.pop()
    gpus = Counter(leaf_of.values())
    names = list(gpus)
    between = [
        (link.a.node, link.b.node, link.rate_bps / rate)
        for link in fabric.links
        if link.a.node in fabric.packet_switches
        and link.b.node in fabric.packet_switches
    ]
    tier = _tiers(names, between)
    parts, capacity, joined = _levels(names, tier, between)
    if not joined:
        return Cluster(tuple(gpus.values()), parts, capacity, tuple(names))
    return LitCluster(
        tuple(gpus.values()),
        parts,
        capacity,
        tuple(names),
        None,
        joined,
        *_circuits(
            fabric, rate, _part_of(dict(zip(names, joined, strict=True)), between)
        ),
    )


def _part_of(
    joined: Mapping[str, int], between: Sequence[tuple[str, str, float]]
) -> dict[str, int]:
    """Return the part that each packet switch is in. The parts of the leaves are known."""
    part_of = dict(joined)
    ends = [end for x, y, _ in between for end in ((x, y), (y, x))]
    while more := {b: part_of[a] for a, b in ends if a in part_of and b not in part_of}:
        part_of |= more
    return part_of


def _circuits(
    fabric: Fabric, rate: float, part: Mapping[str, int]
) -> tuple[int, float, tuple[int, ...]]:
    """Return the ports of each part on the optical switch, the rate of a circuit, and the lit circuits.

    The optical switch is the one that joins the parts. The rate is in GPUs' rates, and lit are the circuits
    of each pair at first. Raises ValueError for parts that are not alike or on several switches.
    """
    far_end = {a: b for pair in fabric.circuits for a, b in (pair, pair[::-1])}
    ports: dict[Port, Link] = {}
    for link in fabric.links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            free = far_end.get(here) is None or far_end[here].node in part
            if here.node in part and there.node in fabric.optical_switches and free:
                ports[here] = link
    on = {
        end.node for link in ports.values() for end in (link.a, link.b)
    } & fabric.optical_switches.keys()
    each = Counter(part[port.node] for port in ports)
    parts = max(part.values()) + 1
    if not ports or len(each) < parts:
        raise ValueError("there are switches that nothing joins to the others")
    if (
        len(on) > 1
        or len(set(each.values())) > 1
        or len({link.rate_bps for link in ports.values()}) > 1
    ):
        raise ValueError(
            "parts that light joins have equally many circuits, of one rate, on one optical switch"
        )
    if each[0] < parts - 1:
        raise ValueError(
            f"each of {parts} parts has {each[0]} circuits, too few to reach all others"
        )
    pairs = Counter(
        (min(part[a.node], part[b.node]), max(part[a.node], part[b.node]))
        for a, b in fabric.circuits
        if a in ports and b in ports
    )
    own_bps = next(iter(ports.values())).rate_bps
    return (
        each[0],
        own_bps / rate,
        tuple(pairs[pair] for pair in itertools.combinations(range(parts), 2)),
    )


def _tiers(
    leaves: Sequence[str], between: Sequence[tuple[str, str, float]]
) -> dict[str, int]:
    """Return the distance of each switch from the nearest that has GPUs."""
    beside: defaultdict[str, set[str]] = defaultdict(set)
    for a, b, _ in between:
        beside[a].add(b)
        beside[b].add(a)
    tier = dict.fromkeys(leaves, 0)
    last = list(leaves)
    while last:
        last = list(
            dict.fromkeys(b for a in last for b in sorted(beside[a]) if b not in tier)
        )
        tier |= dict.fromkeys(last, max(tier.values()) + 1)
    return tier


def _levels(
    leaves: Sequence[str],
    tier: Mapping[str, int],
    between: Sequence[tuple[str, str, float]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[float, ...], ...], tuple[int, ...]]:
    """Return the levels of parts, the capacity of each part, and the parts that no packet switch joins.

    A level's parts are joined by switches of the lowest tiers alone, as long as there are several. The parts
    that no packet switch joins are by leaf; none if all are joined.
    """
    found_parts, found_capacity = [], []
    apart: tuple[int, ...] = ()
    for level in range(max(tier.values(), default=0) + 1):
        root = {name: name for name, own in tier.items() if own <= level}

        def top(name: str, root: dict[str, str] = root) -> str:
            while root[name] != name:
                name = root[name]
            return name

        for a, b, _ in between:
            # Leaves that are joined to each other keep links of their own.
            if a in root and b in root and (level or tier[a] != tier[b]):
                root[max(top(a), top(b))] = min(top(a), top(b))
        parts = [top(leaf) for leaf in leaves]
        numbers = {part: number for number, part in enumerate(dict.fromkeys(parts))}
        if len(numbers) == 1:
            break
        rates = [0.0] * len(numbers)
        for a, b, rate in between:
            for here, there in ((a, b), (b, a)):
                if here in root and (there not in root or top(here) != top(there)):
                    rates[numbers[top(here)]] += rate
        if not any(rates):
            apart = tuple(numbers[part] for part in parts)
            break
        if not all(rates):
            raise ValueError("there are switches that nothing joins to the others")
        found_parts.append(tuple(numbers[part] for part in parts))
        found_capacity.append(tuple(rates))
    return tuple(found_parts), tuple(found_capacity), apart
