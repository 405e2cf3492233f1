"""Count the parts of which a fabric is built. Prices are left to the user."""

from __future__ import annotations

from ringlight.fabric.keys import fabric_keys
from ringlight.fabric.parts import Counts, Port
from ringlight.fabric.topology import Fabric, channels, is_electrical


def of_fabric(fabric: Fabric) -> Counts:
    """Return the counts of a fabric: of what its links are plugged into, or of what describes all of it.

    An O-NIC with an array has a channel for every wavelength of the switch that its port is plugged into.
    """
    for name in fabric.parts:
        key = fabric_keys().get(name)
        if key is not None and key.counts is not None:
            return key.counts(fabric)
    plugged = [
        (port, link)
        for link in (*fabric.links, *fabric.cables)
        for port in (link.a, link.b)
    ]
    nodes = [port.node for port, _ in plugged]
    ours = [(port, link) for port, link in plugged if is_electrical(fabric, port)]
    return Counts(
        gpus=len(fabric.gpus),
        nic_ports=sum(node in fabric.gpus for node in nodes),
        transceivers=len(ours),
        channels=sum(_channels(fabric, port) for port, _ in ours),
        packet_switches=len(fabric.packet_switches),
        packet_ports=sum(node in fabric.packet_switches for node in nodes),
        optical_switches=len(fabric.optical_switches),
        optical_ports=sum(node in fabric.optical_switches for node in nodes),
    )


def _channels(fabric: Fabric, port: Port) -> int:
    onic = fabric.onics.get(port.node)
    return (
        1
        if onic is None or onic.transmitters == "tunable"
        else channels(fabric, port) or 1
    )
