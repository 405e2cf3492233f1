"""What a fabric is built of, as counts; prices are for those who have them.

A transceiver is the end of a fibre at a GPU or a packet switch, whatever the number of its wavelengths; a
channel is one wavelength of it. Links of electrical fabrics are all counted as fibres with a transceiver at
both ends, which is an assumption: short ones may be copper. Cables without transceivers are stated apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ringlight.fabric.interconnect import (
    DemandRing,
    GridOfGpus,
    Ideal,
    Interconnect,
    OneShot,
    ParallelOcs,
    Servers,
    TorusOfGpus,
    WavelengthRing,
)
from ringlight.fabric.topology import Fabric, Link, is_electrical
from ringlight.fabric.zoo.torus import Torus


@dataclass(frozen=True)
class Counts:
    """Parts of a whole fabric of ``gpus`` GPUs, without averagers and their ports.

    ``nic_ports`` are the GPUs'. Ports of switches are those in use.
    """

    gpus: int
    nic_ports: int
    transceivers: int = 0
    channels: int = 0
    packet_switches: int = 0
    packet_ports: int = 0
    optical_switches: int = 0
    optical_ports: int = 0
    copper_cables: int = 0

    def per_gpu(self) -> dict[str, float]:
        """Counts by name, divided by the number of GPUs."""
        return {name: count / self.gpus for name, count in asdict(self).items() if name != "gpus"}


def of_fabric(fabric: Fabric) -> Counts:
    """Counts of a fabric: what its links are plugged into, or what its interconnect takes.

    An O-NIC with an array has a channel for every wavelength of the switch that its port is plugged into.
    """
    if fabric.interconnect is not None:
        return of_interconnect(fabric.interconnect, len(fabric.gpus))
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


def of_interconnect(one: Interconnect, gpus: int) -> Counts:
    """Parts of an interconnect that is described as a whole."""
    if isinstance(one, Ideal):
        return of_ideal(gpus)
    if isinstance(one, Servers):
        return of_servers(gpus, one.gpus_each)
    if isinstance(one, TorusOfGpus):
        return of_torus(one.torus)
    if isinstance(one, GridOfGpus):
        return of_grid(one.rows, one.columns, one.transceivers)
    if isinstance(one, DemandRing | WavelengthRing):
        return of_ring(gpus, one.wavelengths)
    if isinstance(one, ParallelOcs):
        return of_circuits(gpus, one.switches)
    return of_circuits(gpus, one.degree if isinstance(one, OneShot) else one.rotor.ports)


def of_ideal(gpus: int) -> Counts:
    """One packet switch with a port for every GPU."""
    return Counts(gpus, gpus, 2 * gpus, 2 * gpus, 1, gpus)


def of_servers(gpus: int, each: int) -> Counts:
    """A port of every GPU on a packet switch as above, and a copper cable to the switch of its server."""
    switches = gpus // each
    return Counts(gpus, 2 * gpus, 2 * gpus, 2 * gpus, 1 + switches, 2 * gpus, copper_cables=gpus)


def of_circuits(gpus: int, switches: int) -> Counts:
    """``switches`` optical switches in parallel with a port for every GPU: SiP-OCS, one-shot graphs, rotors.
    Each of a GPU's fibres has one wavelength."""
    ports = gpus * switches
    return Counts(gpus, ports, ports, ports, optical_switches=switches, optical_ports=ports)


def of_grid(rows: int, columns: int, transceivers: int = 2) -> Counts:
    """O-NICs on the WSS of their row and on that of their column; tunable ``transceivers``: one for each, or
    1 whose light both take."""
    gpus = rows * columns
    ours = transceivers * gpus
    return Counts(gpus, 2 * gpus, ours, ours, optical_switches=rows + columns, optical_ports=2 * gpus)


def of_ring(gpus: int, wavelengths: int) -> Counts:
    """A ring without switches: GPUs pick wavelengths by micro-rings (SiP-Ring).

    ``wavelengths``: in each of both directions, which have a fibre each.
    """
    ports = 2 * gpus
    return Counts(gpus, ports, ports, ports * wavelengths)


def of_torus(torus: Torus) -> Counts:
    """Fixed links are copper cables, those that are switched fibres with two ports of the one optical switch.
    Transceivers are only at fibres."""
    ports = 2 * torus.switched
    switches = int(ports > 0)
    return Counts(
        torus.gpus, torus.gpus * torus.ports, ports, ports, optical_switches=switches, optical_ports=ports,
        copper_cables=torus.links - torus.switched,
    )  # fmt: skip
