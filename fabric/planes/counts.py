"""What a fabric is built of, as counts; prices are for those who have them."""

from __future__ import annotations

from ringlight.fabric.parts import Counts, Link
from ringlight.fabric.topology import Fabric, is_electrical


def of_fabric(fabric: Fabric) -> Counts:
    """Counts of a fabric: what its links are plugged into, or what its interconnect takes.

    An O-NIC with an array has a channel for every wavelength of the switch that its port is plugged into.
    """
    if fabric.interconnect is not None:
        return fabric.interconnect.counts(len(fabric.gpus))
    plugged = [(port, link) for link in (*fabric.links, *fabric.cables) for port in (link.a, link.b)]
    nodes = [port.node for port, _ in plugged]
    ours = [(port, link) for port, link in plugged if is_electrical(fabric, port)]
    return Counts(
        gpus=len(fabric.gpus),
        nic_ports=sum(node in fabric.gpus for node in nodes),
        transceivers=len(ours),
        channels=sum(_channels(fabric, port.node, link) for port, link in ours),
        packet_switches=len(fabric.packet_switches),
        packet_ports=sum(node in fabric.packet_switches for node in nodes),
        optical_switches=len(fabric.optical_switches),
        optical_ports=sum(node in fabric.optical_switches for node in nodes),
    )


def _channels(fabric: Fabric, node: str, link: Link) -> int:
    onic = fabric.onics.get(node)
    if onic is None or onic.transmitters == "tunable":
        return 1
    switch = next(p.node for p in (link.a, link.b) if p.node in fabric.optical_switches)
    return fabric.optical_switches[switch].wavelengths or 1
