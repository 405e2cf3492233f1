"""Counters of the light of O-NICs, read from the pinned maps of its O-NICs and WSSs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringlight.fabric.parts import OpticalSwitch, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.onic.tables import (
    LightpathKey,
    PathCount,
    read_counters,
    read_traffic,
)
from ringlight.testbed.emulation.optical.datapath import Datapath

#: What a WSS counts, summed over its ports. The first two stay 0 in every correct run.
OF_SWITCH = (
    "collisions",
    "receiver_overlaps",
    "dark_drops",
    "unset_drops",
    "blocked_drops",
    "unplugged_drops",
    "dim_drops",
    "error_drops",
)


def read_switch(pins: Path, size: int) -> dict[str, int]:
    """Return the sums over the ports of a WSS of ``size`` faceplate ports. Raises EbpfError."""
    datapath = Datapath.resume(pins)
    try:
        ports = [datapath.counters(port) for port in range(1, 2 * size + 1)]
    finally:
        datapath.close()
    return {
        **{name: sum(getattr(port, name) for port in ports) for name in OF_SWITCH},
        "packets": sum(port.tx_packets for port in ports),
        "bytes": sum(port.tx_bytes for port in ports),
    }


def read_light(fabric: Fabric, bpf_dir: Path) -> dict[str, Any]:
    """Return the counters of O-NICs by GPU, of WSSs and of switches whose light goes one way, and ``totals``
    of these counters.

    O-NICs with permanent light also have ``lightpaths``. ``misdirected`` of a switch counts what the switch
    sent to O-NICs for which it was not meant. Raises EbpfError.
    """
    onics = {
        gpu: asdict(read_counters(bpf_dir / f"onic-{gpu}", onic.ports))
        for gpu, onic in fabric.onics.items()
    }
    for gpu, onic in fabric.onics.items():
        if onic.standing:
            onics[gpu]["lightpaths"] = read_lightpaths(bpf_dir / f"onic-{gpu}")
    switches = {}
    for switch in fabric.optical_switches.values():
        if switch.wavelengths is not None or not switch.duplex:
            switches[switch.name] = {
                **read_switch(bpf_dir / switch.name, switch.size),
                "misdirected": _misdirected(fabric, switch, onics),
            }
    names = ("misdirected", *OF_SWITCH)
    totals = {name: sum(switch[name] for switch in switches.values()) for name in names}
    return {"onics": onics, "switches": switches, "totals": totals}


def read_lightpaths(pins: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what every lightpath of an O-NIC has carried, and what was sent in all to each of ``peers``.

    ``sent`` and ``received`` list the lightpaths, each with the ``peer``'s address, the ``port`` of this
    O-NIC and the ``wavelength``. Raises EbpfError.
    """
    traffic = read_traffic(pins)
    peers = [
        {"peer": peer, **count._asdict()}
        for peer, count in sorted(traffic.peers.items())
    ]
    return {"peers": peers} | {
        way: [
            {"peer": peer, "port": port, "wavelength": wavelength, **count._asdict()}
            for (peer, port, wavelength), count in sorted(counts.items(), key=_in_order)
        ]
        for way, counts in (
            ("sent", traffic.sent_on),
            ("received", traffic.received_on),
        )
    }


def _in_order(item: tuple[LightpathKey, PathCount]) -> tuple[str, int, int]:
    (peer, port, wavelength), _ = item
    return peer, port, -1 if wavelength is None else wavelength


def _misdirected(
    fabric: Fabric, switch: OpticalSwitch, onics: dict[str, dict[str, Any]]
) -> int:
    packets = 0
    for faceplate in range(1, switch.size + 1):
        end = Port(switch.name, faceplate)
        link = fabric.link_at.get(end)
        if link is not None:
            far = link.other(end)
            # Light that goes on to another WSS is that one's to direct.
            packets += (
                onics[far.node]["misdirected"][far.number] if far.node in onics else 0
            )
    return packets
