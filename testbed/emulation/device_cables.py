"""Cables of a fabric's devices in a lab: each is a network of its own, with an address at either end.

What goes there is not a packet switch's: a GPU has its second NIC port for it, ``eth1`` of its worker.
"""

from __future__ import annotations

import ipaddress

from pyroute2.iproute import IPRoute

from ringlight.fabric.parts import Link, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.kernel import addressing, netlink, shaping

#: Addresses of all cables, four each; GPUs have 10.82 and O-NICs' agents 10.83.
NETWORK = ipaddress.ip_network("10.84.0.0/16")
PREFIX = 30


def address_of(fabric: Fabric, port: Port) -> str:
    """Return the IPv4 address at an end of a cable: the first of its network for the upper end, the second
    for the lower end. Raises ValueError if the port has no cable of a device."""
    for index, cable in enumerate(fabric.cables):
        if port in (cable.a, cable.b):
            return str(NETWORK[4 * index + (1 if port == cable.b else 2)])
    raise ValueError(f"{port} has no cable of a device")


def cables_at(fabric: Fabric, gpu: str) -> list[Link]:
    """Return the cable from a GPU's NIC to a device, or an empty list."""
    return [cable for cable in fabric.cables if cable.a.node == gpu]


def between(fabric: Fabric) -> list[Link]:
    """Return the cables from devices to the device above them."""
    return [cable for cable in fabric.cables if cable.a.node in fabric.devices]


def set_up(name: str, ip: str, shape: tuple[float, float, int]) -> None:
    """One end of a cable, in the thread's namespace. ``shape``: bit/s, seconds of the queue, and the bytes
    that it holds at least.

    TCP's time-out is the kernel's own: a scenario's may be longer than a device waits.
    """
    rate_bps, queue_s, least_bytes = shape
    with IPRoute() as here:
        index = netlink.index_of(name)
        shaping.shape(here, index, rate_bps, queue_s, least_queue_bytes=least_bytes)
        netlink.set_up(here, name)
        addressing.address(here, index, ip, PREFIX, rto_min_s=None)
