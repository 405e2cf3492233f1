"""Plug together a ring of nodes. Its light is computed in ``wdm``, which needs numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ringlight.fabric.light import Reconfigure
from ringlight.fabric.parts import (
    Link,
    Onic,
    OpticalSwitch,
    Plugged,
    Port,
    Wss,
    servers_of_one,
)


@dataclass(frozen=True)
class WdmRing:
    """Nodes around a ring with ``wavelengths`` channels in each direction; see ``extensions.wrht.wdm``.

    ``nodes``: GPU names in clockwise order; ``switches``: the WSS of each.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    wavelengths: int
    reconfigure: Reconfigure = "changed-only"


#: Faceplate ports of a node's WSS.
WEST, EAST, ADD_CLOCKWISE, ADD_COUNTER = 1, 2, 3, 4
#: Ports of a node's O-NIC, by the way that their light goes round.
CLOCKWISE, COUNTER = 0, 1


def make_ring(
    name: str, nodes: int, wavelengths: int, reconfigure: Reconfigure = "changed-only"
) -> WdmRing:
    """Return a ring of nodes <name>0… and their WSSs <name>-w0…"""
    return WdmRing(
        name,
        tuple(f"{name}{i}" for i in range(nodes)),
        tuple(f"{name}-w{i}" for i in range(nodes)),
        wavelengths,
        reconfigure,
    )


def plugged_ring(
    ring: WdmRing, model: str, rate_bps: float, queue_s: float, wss: Wss, first: int = 0
) -> Plugged:
    """Return the parts of a ring with GPUs of a model.

    ``first``: how many GPUs the fabric has before them.
    """
    gpus = servers_of_one(ring.name, ring.nodes, model, first)
    switches = [
        OpticalSwitch(
            name, 4, wss.driver, wss.profile, ring.wavelengths, wss.loss_db, wss.dark_s
        )
        for name in ring.switches
    ]
    onics = [Onic(node, 2, 0.0, "array") for node in ring.nodes]
    return Plugged(
        gpus,
        switches,
        onics,
        list(_links(ring.nodes, ring.switches, rate_bps, queue_s)),
    )


@lru_cache(maxsize=16)
def _links(
    nodes: tuple[str, ...], switches: tuple[str, ...], rate_bps: float, queue_s: float
) -> tuple[Link, ...]:
    """Return each node's two fibres to its WSS and the one to the next; ``rate_bps``: of one wavelength."""
    links: list[Link] = []
    for i, (node, switch) in enumerate(zip(nodes, switches, strict=True)):
        after = switches[(i + 1) % len(nodes)]
        links += [
            Link(Port(node, CLOCKWISE), Port(switch, ADD_CLOCKWISE), rate_bps, queue_s),
            Link(Port(node, COUNTER), Port(switch, ADD_COUNTER), rate_bps, queue_s),
            Link(Port(switch, EAST), Port(after, WEST), rate_bps, queue_s),
        ]
    return tuple(links)
