"""Power and alarms of an emulated optical switch, as the monitors at its ports read them."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.fabric.crossconnect import PortState
from ringlight.fabric.light import received_dbm
from ringlight.testbed.emulation.optical.commands import Admin
from ringlight.testbed.emulation.optical.device import OpticalDevice


@dataclass(frozen=True)
class Alarm:
    """``kind`` is LOS (loss of signal) or FAILED."""

    port: int
    kind: str
    reason: str


def power_dbm(device: OpticalDevice, port: int, now_ns: int) -> float:
    """Return the power at the port's monitor in dBm: the received power at an ingress, the leaving power
    at an egress.

    Without light that is the profile's ``dark_dbm``, the monitor's floor. A fibre brings light while its
    far end is up. A WSS reads no single wavelength and takes the strongest of those that lead to the
    port. Raises DeviceError for a port that does not exist.
    """
    device.checks.check_port(port)
    read = device.profile.dark_dbm
    if port <= device.size:
        power = device.arriving_dbm(port, None) if device.receives(port) else None
        return read if power is None else max(read, power)
    for wire in device.mirrors.wires_at(port):
        has_light = (
            device.receives(wire.ingress)
            and not device.is_gated(wire)
            and not device.mirrors.is_ghost(wire)
        )
        if has_light and device.mirrors.is_tuned(wire, now_ns):
            power = device.arriving_dbm(wire.ingress, wire.wavelength)
            if power is not None:
                read = max(read, received_dbm(power, [device.mirrors.loss_db(wire)]))
    return read


def alarms_of(device: OpticalDevice, now_ns: int) -> list[Alarm]:
    """Return an alarm for each failed port, ingress port without light, and tuned egress port below the
    power threshold."""
    raised = [
        Alarm(port, "FAILED", "the port has failed")
        for port in range(1, 2 * device.size + 1)
        if device.admin(port) is Admin.FAILED
    ]
    for port in range(1, device.size + 1):
        if not device.is_plugged(port):
            raised.append(Alarm(port, "LOS", "nothing is plugged in"))
        elif power_dbm(device, port, now_ns) < device.profile.los_dbm:
            raised.append(Alarm(port, "LOS", "no light comes in"))
    for egress in sorted({wire.egress for wire in device.cross_connects()}):
        tuned = device.port_state(egress, now_ns) is PortState.TUNED
        power, least = (
            power_dbm(device, egress, now_ns),
            device.least_dbm.get(egress, device.profile.los_dbm),
        )
        if tuned and power < max(least, device.profile.los_dbm):
            feeders = ", ".join(
                str(wire.ingress) for wire in device.mirrors.wires_at(egress)
            )
            weak = "too little" if power >= device.profile.los_dbm else "no"
            raised.append(Alarm(egress, "LOS", f"{weak} light from port {feeders}"))
    return raised
