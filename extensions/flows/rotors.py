"""Flows over an interconnect of rotors, slot by slot."""

from __future__ import annotations

from collections.abc import Sequence

from ringlight.extensions.flows.flow_file import SizedFlow
from ringlight.extensions.flows.transport import Transport
from ringlight.extensions.sip_ml.simulation.rotor_slots import RotorRun, SlottedRotors
from ringlight.extensions.sip_ml.wholes.rotor import Rotors
from ringlight.fabric.topology import Fabric
from ringlight.testbed.simulation.arrays import FloatArray


def slotted_rotors(fabric: Fabric, transport: Transport) -> SlottedRotors | None:
    """Return the rotors of a fabric of rotors, each GPU a rack; None for packet switches.

    Raises ValueError for another interconnect, and for rotors as a fluid.
    """
    interconnect = fabric.parts.get("interconnect")
    if interconnect is None:
        return None
    if not isinstance(interconnect, Rotors):
        raise ValueError(
            f"fabric.interconnect.kind: {interconnect.kind}; flows pass packet switches or rotors"
        )
    if interconnect.model == "fluid":
        raise ValueError(
            "fabric.interconnect.model: fluid is for long transfers of jobs; flows need slots"
        )
    rotor = interconnect.rotor
    return SlottedRotors(
        racks=rotor.gpus,
        hosts=1,
        switches=rotor.ports,
        port_bps=rotor.port_bps,
        slot_s=rotor.slot_s,
        dark_s=rotor.dark_s,
        packet_bytes=transport.packet_bytes,
        header_bytes=transport.header_bytes,
        delay_s=transport.switch_delay_s,
        indirect=interconnect.indirect,
    )


def rotor_times_s(
    rotors: SlottedRotors, fabric: Fabric, flows: Sequence[SizedFlow]
) -> FloatArray:
    """Return the seconds from the start of each flow until its receiver has all packets."""
    number = {gpu: index for index, gpu in enumerate(fabric.gpus)}
    return RotorRun(
        rotors,
        [number[flow.source] for flow in flows],
        [number[flow.destination] for flow in flows],
        [flow.size_bytes for flow in flows],
        [flow.start_s for flow in flows],
    ).times_s()
