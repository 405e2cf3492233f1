"""Counters of the light of grids and rings, read from the pinned maps of its O-NICs and WSSs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fabric.topology import Fabric, OpticalSwitch, Port
from testbed.emulation.onic.tables import Counters, open_map, read_counters
from testbed.emulation.optical.datapath import Datapath

#: What a WSS counts, summed over its ports. The first two stay 0 in every correct run.
OF_SWITCH = (
    "collisions",
    "receiver_overlaps",
    "dark_drops",
    "unset_drops",
    "blocked_drops",
    "unplugged_drops",
    "dim_drops",
)


def read_onic(pins: Path) -> Counters:
    """Counters of the O-NIC pinned in ``pins``. Raises EbpfError."""
    table = open_map(pins, "counters")
    try:
        return read_counters(table)
    finally:
        table.close()


def read_switch(pins: Path, size: int) -> dict[str, int]:
    """Sums over the ports of a WSS of ``size`` faceplate ports. Raises EbpfError."""
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
    """Counters of every O-NIC (by GPU) and WSS, and ``totals`` over the WSSs.

    ``misdirected`` of a WSS is what it brought to O-NICs for which it was not meant. Raises EbpfError.
    """
    onics = {gpu: asdict(read_onic(bpf_dir / f"onic-{gpu}")) for gpu in fabric.onics}
    switches = {}
    for switch in fabric.optical_switches.values():
        if switch.wavelengths is not None:
            switches[switch.name] = {
                **read_switch(bpf_dir / switch.name, switch.size),
                "misdirected": _misdirected(fabric, switch, onics),
            }
    names = ("misdirected", *OF_SWITCH)
    totals = {name: sum(switch[name] for switch in switches.values()) for name in names}
    return {"onics": onics, "switches": switches, "totals": totals}


def _misdirected(fabric: Fabric, switch: OpticalSwitch, onics: dict[str, dict[str, Any]]) -> int:
    found = 0
    for faceplate in range(1, switch.size + 1):
        end = Port(switch.name, faceplate)
        link = fabric.link_at.get(end)
        if link is not None:
            far = link.other(end)
            # Light that goes on to another WSS is that one's to direct.
            found += onics[far.node]["misdirected"][far.number] if far.node in onics else 0
    return found
