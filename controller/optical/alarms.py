"""Alarms that follow from a reading of an optical switch: ports out of use, light that is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ringlight.controller.optical.model import Alarm, Snapshot
from ringlight.fabric.crossconnect import PortState

#: Power under which an ingress that should carry light has none, dBm.
LOSS_OF_SIGNAL_DBM = -30.0


def port_alarms(snapshot: Snapshot) -> Iterator[Alarm]:
    """Yield an alarm for each port that has failed or is disabled."""
    for port, status in sorted(snapshot.ports.items()):
        if status.state is PortState.FAILED:
            yield Alarm("PORT_FAILED", port, f"port {port} has failed")
        elif not status.enabled:
            yield Alarm("PORT_DISABLED", port, f"port {port} is disabled")


def los_alarms(
    snapshot: Snapshot, powers: Mapping[int, float | None]
) -> Iterator[Alarm]:
    """Yield alarms for ingresses of cross-connects that receive no light, and egresses that send none.

    Egresses are checked only if light comes in and the mirrors are set. ``powers``: dBm by port, None or no
    entry for a port without a meter, -inf for no light.
    """
    wires = snapshot.cross_connects
    known = {port: power for port, power in powers.items() if power is not None}
    dark = {port: power for port, power in known.items() if power < LOSS_OF_SIGNAL_DBM}

    def power_text(port: int) -> str:
        return "nothing" if dark[port] == -math.inf else f"{dark[port]:.1f} dBm"

    for port in sorted({xc.ingress for xc in wires} & dark.keys()):
        yield Alarm("LOS", port, f"port {port} receives {power_text(port)}: no light")
    lit_egresses = {
        xc.egress
        for xc in wires
        if xc.ingress not in dark and snapshot.ports[xc.egress].state is PortState.TUNED
    }
    for port in sorted(lit_egresses & dark.keys()):
        yield Alarm(
            "LOS", port, f"port {port} sends {power_text(port)}: too little light"
        )
