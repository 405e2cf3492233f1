"""A ring of servers whose transceivers choose one of several paths (InfiniteHBD, arXiv 2502.03885).

Each server has a transceiver that faces clockwise and one that faces the other way. From each, fibres lead
to the next ``reach`` servers on its side (the paper's K-hop ring), and it passes light over one of them at a
time, both ways. So ``reach`` - 1 servers in a row that are lost are bypassed by light. One GPU stands for a
server.

A server's two transceivers are emulated by one optical switch: faceplates 1 and 2 are the GPU's, then come
the fibres of the one that faces clockwise, nearest first, and those of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ringlight.extensions.sip_ml.divided.planes import Planes
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Counts, Gpu, Link, Onic, OpticalSwitch, Port
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import QUEUE_S

if TYPE_CHECKING:
    from ringlight.extensions.sip_ml.divided.planes import Paths

#: Ports of a GPU, by the way that its transceivers face.
CLOCKWISE, COUNTER = 0, 1


@dataclass(frozen=True)
class HopRing(Interconnect):
    """``gpus`` servers in a ring; ``gpu_bps``: of both transceivers together, ``dark_s``: seconds that
    choosing another path takes."""

    kind: ClassVar[str] = "hop-ring"
    survives: ClassVar[bool] = True
    for_demand: ClassVar[bool] = True

    gpus: int
    reach: int
    gpu_bps: float
    dark_s: float = 0.0

    @property
    def path_bps(self) -> float:
        return self.gpu_bps / 2

    def counts(self, gpus: int) -> Counts:
        """Return the parts of the ring.

        The transceivers are the switches; each has a port for every fibre.
        """
        return Counts(
            gpus, 2 * gpus, 2 * gpus, 2 * gpus, optical_ports=2 * self.reach * gpus
        )

    def port(self, source: int, destination: int) -> int | None:
        """Return the source's transceiver that reaches a destination by the shorter way, or None."""
        ahead = (destination - source) % self.gpus
        behind = self.gpus - ahead
        if 0 < ahead <= min(self.reach, behind):
            return CLOCKWISE
        return COUNTER if ahead and behind <= self.reach else None

    def choose(
        self, pairs: Iterable[tuple[int, int]]
    ) -> tuple[dict[tuple[int, int], int], list[str]]:
        """Return the source's transceiver of each pair that gets a path, and why other pairs get none.

        The first pair is served first.
        """
        ports: dict[tuple[int, int], int] = {}
        partner: dict[tuple[int, int], int] = {}
        problems = []
        for source, destination in pairs:
            port = self.port(source, destination)
            if port is None:
                problems.append(
                    f"g{source} and g{destination} are more than {self.reach} servers apart"
                )
                continue
            ends = {(source, port): destination, (destination, 1 - port): source}
            taken = [
                end for end, other in ends.items() if partner.get(end, other) != other
            ]
            if taken:
                gpu, facing = taken[0]
                both = f"g{partner[taken[0]]} and g{ends[taken[0]]}"
                way = "clockwise" if facing == CLOCKWISE else "counter-clockwise"
                problems.append(
                    f"g{gpu} has one path {way} at a time, and sends to or hears {both}"
                )
                continue
            partner |= ends
            ports[source, destination] = port
        return ports, problems

    def check(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Raise ValueError naming servers that are too far apart, or one that needs two paths on a side."""
        _, problems = self.choose(pairs)
        if problems:
            raise ValueError(problems[0])

    def fibre(self, port: int, hops: int) -> int:
        """Return the faceplate of the fibre from a transceiver to the server so many places further on."""
        return 2 + port * self.reach + hops


@dataclass(frozen=True)
class HopFibres(Planes):
    """The servers' switches, one each, in the order of ``nodes``."""

    ring: HopRing

    def passes(
        self, switches: Mapping[str, OpticalSwitch], paths: Paths
    ) -> dict[str, frozenset[CrossConnect]]:
        groups: dict[str, set[CrossConnect]] = {name: set() for name in self.switches}
        for (source, destination), own in paths.items():
            for path in own:
                ahead = (destination - source) % self.ring.gpus
                hops = ahead if path.port == CLOCKWISE else self.ring.gpus - ahead
                near, far = (
                    switches[self.switches[place]] for place in (source, destination)
                )
                out, into = (
                    self.ring.fibre(path.port, hops),
                    self.ring.fibre(1 - path.port, hops),
                )
                groups[near.name].add(
                    CrossConnect(near.ingress(path.port + 1), near.egress(out))
                )
                groups[far.name].add(
                    CrossConnect(far.ingress(into), far.egress(2 - path.port))
                )
        return {name: frozenset(group) for name, group in groups.items()}


def hop_ring_fabric(ring: HopRing, gpus: Sequence[Gpu]) -> Fabric:
    """Return the ring with switches t0, …, as it is plugged together."""
    names = tuple(f"t{index}" for index in range(ring.gpus))
    links = [
        Link(Port(gpu.name, port), Port(name, port + 1), ring.path_bps, QUEUE_S)
        for gpu, name in zip(gpus, names, strict=True)
        for port in (CLOCKWISE, COUNTER)
    ]
    for index, name in enumerate(names):
        for hops in range(1, ring.reach + 1):
            near = Port(name, ring.fibre(CLOCKWISE, hops))
            far = Port(names[(index + hops) % ring.gpus], ring.fibre(COUNTER, hops))
            links.append(Link(near, far, ring.path_bps, QUEUE_S))
    # The profile says what a switch does besides being dark: nothing, as in the simulator.
    switches = [
        OpticalSwitch(
            name, 2 + 2 * ring.reach, "scpi", "ideal", dark_s=ring.dark_s, duplex=False
        )
        for name in names
    ]
    nodes = tuple(gpu.name for gpu in gpus)
    return Fabric(
        gpus={gpu.name: gpu for gpu in gpus},
        packet_switches={},
        optical_switches={switch.name: switch for switch in switches},
        links=tuple(links),
        onics={node: Onic(node, 2, 0.0, "array", standing=True) for node in nodes},
        parts={
            "interconnect": ring,
            "divided": HopFibres(ring.kind, nodes, names, ring),
        },
    )
