"""Fabrics of packet switches in tiers: fat trees and leaf-spine fabrics, written out in full.

Pure functions from a few figures to GPUs, packet switches and links. A scenario's ``fat_tree`` and
``leaf_spine`` are short forms of what they give; the simulator builds large fabrics by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ringlight.fabric.parts import (
    Gpu,
    Link,
    PacketSwitch,
    Port,
)
from ringlight.fabric.topology import Fabric, PathChoice

#: Seconds that a link's queue holds by default.
QUEUE_S = 0.02


@dataclass(frozen=True)
class Tree:
    """A tiered fabric: names of GPUs in order, ports by packet switch, and links (the GPUs' first).
    ``circuits``: what is lit at first, if GPUs' fibres pass an optical switch."""

    gpus: tuple[str, ...]
    switches: dict[str, int]
    links: tuple[Link, ...]
    circuits: tuple[tuple[Port, Port], ...] = ()

    def fabric(self, model: str = "gpu", paths: PathChoice = "hash") -> Fabric:
        """Return the fabric of this tree alone, each GPU in a server of its own."""
        gpus = {gpu.name: gpu for gpu in self.numbered(model, 0)}
        switches = {
            name: PacketSwitch(name, i, n)
            for i, (name, n) in enumerate(self.switches.items(), 1)
        }
        return Fabric(gpus, switches, {}, self.links, paths=paths)

    def numbered(self, model: str, first: int) -> list[Gpu]:
        """Return the GPUs of the tree, with addresses from number ``first`` on; g3's server is s3."""
        return [
            Gpu.numbered(name, f"s{i}", model, first + i)
            for i, name in enumerate(self.gpus)
        ]

    def through(self, optical: str, spare_ports: int) -> Tree:
        """Return a copy of the tree whose GPUs reach their switches through an optical switch.

        It is lit as the GPUs were plugged. The ports of the optical switch are taken in order: first the
        GPUs', then those of the switches, each with ``spare_ports`` more, whose fibres are dark.
        """
        nics, uplinks = self.links[: len(self.gpus)], self.links[len(self.gpus) :]
        own: dict[str, list[Link]] = {}
        for link in nics:
            own.setdefault(link.b.node, []).append(link)
        switches, below = dict(self.switches), [(link.a, link) for link in nics]
        for name, links in own.items():
            spares = (Port(name, switches[name] + 1 + n) for n in range(spare_ports))
            below += [
                (port, links[0]) for port in (*(link.b for link in links), *spares)
            ]
            switches[name] += spare_ports
        fibres = [
            replace(like, a=port, b=Port(optical, n))
            for n, (port, like) in enumerate(below, 1)
        ]
        return Tree(
            self.gpus,
            switches,
            (*fibres, *uplinks),
            tuple((link.a, link.b) for link in nics),
        )

    def with_optical_core(self, optical: str) -> Tree:
        """Return a copy of a tree of two tiers with an optical switch in place of spines.

        The leaves' uplinks end at the optical switch. It is lit so that all pairs of leaves have as many
        circuits, or one more or fewer. Its ports are the uplinks' in their order.
        """
        nics, uplinks = self.links[: len(self.gpus)], self.links[len(self.gpus) :]
        fibres = tuple(
            replace(link, b=Port(optical, number))
            for number, link in enumerate(uplinks, 1)
        )
        free: dict[str, list[Port]] = {}
        for link in uplinks:
            free.setdefault(link.a.node, []).append(link.a)
        leaves: list[str | None] = [*free, *([None] if len(free) % 2 else [])]
        circuits = []
        # The circle method: in each round every leaf meets another, and after all rounds each has met all.
        for _ in range(max(map(len, free.values()), default=0)):
            half = len(leaves) // 2
            for a, b in zip(leaves[:half], leaves[: half - 1 : -1], strict=True):
                if a is not None and b is not None:
                    circuits.append((free[a].pop(0), free[b].pop(0)))
            leaves = [leaves[0], leaves[-1], *leaves[1:-1]]
        switches = {
            name: count for name, count in self.switches.items() if name in free
        }
        return Tree(self.gpus, switches, (*nics, *fibres), tuple(circuits))

    def with_uplinks(self, rate_bps: float) -> Tree:
        """Return a copy of the tree whose links between switches have another rate, bits per second."""
        return replace(
            self,
            links=tuple(
                replace(link, rate_bps=rate_bps)
                if link.a.node in self.switches
                else link
                for link in self.links
            ),
        )


def _linked(
    gpus: Sequence[str],
    switches: Iterable[str],
    nics: Iterable[tuple[str, str]],
    uplinks: Iterable[tuple[str, str]],
    rate_bps: float,
    uplink_bps: float,
    queue_s: float,
) -> Tree:
    """Return a tree whose switches' ports are taken one after the other, in the order of the links."""
    ports = dict.fromkeys(switches, 0)

    def port(node: str) -> Port:
        if node not in ports:
            return Port(node, 0)
        ports[node] += 1
        return Port(node, ports[node])

    links = [Link(port(a), port(b), rate_bps, queue_s) for a, b in nics]
    links += [Link(port(a), port(b), uplink_bps, queue_s) for a, b in uplinks]
    return Tree(tuple(gpus), ports, tuple(links))


def fat_tree(
    k: int,
    rate_bps: float,
    *,
    gpus_per_edge: int | None = None,
    uplinks: int | None = None,
    oversubscription: float = 1.0,
    queue_s: float = QUEUE_S,
) -> Tree:
    """Return a three-tier fat tree of switches with k ports (Al-Fares et al., SIGCOMM 2008).

    k pods p0, p1, …; in each k/2 edge switches p0-e0, … and ``uplinks`` aggregation switches p0-a0, … (k/2
    without it), each with k/2 core switches c0, … of its own. Edge switches have ``gpus_per_edge`` GPUs (k/2
    without it) of ``rate_bps`` bits per second each; GPUs are g0, g1, … pod by pod, edge switch by edge
    switch. Aggregation switch i of every pod is joined to cores i*k/2 to (i+1)*k/2 - 1. Every link between
    switches has the rate at which an edge switch's uplinks together are ``oversubscription`` times slower than
    its GPUs. Ports are taken in order: first those to GPUs (on an edge switch) or edge switches, then those
    upwards.
    Raises ValueError for an odd k.
    """
    if k % 2:
        raise ValueError(f"k is {k}; it must be an even number of ports")
    half = k // 2
    each = half if gpus_per_edge is None else gpus_per_edge
    up = half if uplinks is None else uplinks
    edges = [f"p{pod}-e{i}" for pod in range(k) for i in range(half)]
    gpus = [f"g{i}" for i in range(each * len(edges))]
    cores = [f"c{i}" for i in range(up * half)]
    aggregation = [f"p{pod}-a{i}" for pod in range(k) for i in range(up)]
    between = [
        (f"p{pod}-e{e}", f"p{pod}-a{a}")
        for pod in range(k)
        for e in range(half)
        for a in range(up)
    ]
    between += [
        (f"p{pod}-a{a}", cores[a * half + c])
        for pod in range(k)
        for a in range(up)
        for c in range(half)
    ]
    nics = [(gpu, edges[i // each]) for i, gpu in enumerate(gpus)]
    uplink_bps = each * rate_bps / (up * oversubscription)
    return _linked(
        gpus,
        [*edges, *aggregation, *cores],
        nics,
        between,
        rate_bps,
        uplink_bps,
        queue_s,
    )


def leaf_spine(
    leaves: int,
    gpus_per_leaf: int,
    rate_bps: float,
    *,
    spines: int = 1,
    cables: int = 1,
    oversubscription: float = 1.0,
    queue_s: float = QUEUE_S,
) -> Tree:
    """Return two tiers: every leaf switch is joined to every spine switch by ``cables`` links.

    Leaves are leaf0, …, spines spine0, …, GPUs g0, g1, … leaf by leaf, ``gpus_per_leaf`` of ``rate_bps`` bits
    per second on each. A leaf's uplinks together are ``oversubscription`` times slower than its GPUs. A
    single leaf has no spine. A leaf's first ports are its GPUs', then the cables of spine0, of spine1, …
    """
    names = [f"leaf{i}" for i in range(leaves)]
    tops = [f"spine{i}" for i in range(spines)] if leaves > 1 else []
    gpus = [f"g{i}" for i in range(leaves * gpus_per_leaf)]
    nics = [(gpu, names[i // gpus_per_leaf]) for i, gpu in enumerate(gpus)]
    uplinks = [(leaf, top) for leaf in names for top in tops for _ in range(cables)]
    uplink_bps = gpus_per_leaf * rate_bps / (spines * cables * oversubscription)
    return _linked(gpus, [*names, *tops], nics, uplinks, rate_bps, uplink_bps, queue_s)
