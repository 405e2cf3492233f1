"""What Calient's two protocols, TL1 and REST, have in common: names of ports, state words, powers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ringlight.controller.optical.errors import ProtocolError
from ringlight.fabric.crossconnect import CrossConnectState, PortState

#: Circuits of a bulk write: a whole S320.
MAX_BATCH = 320
#: What circuits are filed under.
GROUP = "SYSTEM"
#: How a port is by the state of its circuit, where that tells.
PORT_STATES = {
    CrossConnectState.CONNECTED: PortState.TUNED,
    CrossConnectState.PENDING_CONNECTION: PortState.TUNING,
}
PORT_NAME = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")
_LEAST_DBM, _MOST_DBM = -200.0, 100.0


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of ports (``1.1.2``, ``1.1.10``, or numbers) in the order of their numbers."""
    return tuple(sorted(names, key=lambda name: [int(part) for part in name.split(".")]))


def circuit_state(admin: str, operation: str, capability: str) -> CrossConnectState:
    """State of a circuit with these words for AS, OS and OC."""
    if capability.upper().startswith("FAIL"):
        return CrossConnectState.FAILED
    if not admin.upper().startswith("IS"):
        # Reserved and not activated: it holds its ports and has no light.
        return CrossConnectState.INVALID
    if operation.upper().startswith("IS"):
        return CrossConnectState.CONNECTED
    return CrossConnectState.PENDING_CONNECTION


def parse_power(text: str) -> float:
    """dBm of ``-1.70``; -inf of ``NONE``, which is no light. Raises ProtocolError."""
    if text.strip().upper() == "NONE":
        return -math.inf
    try:
        power = float(text)
    except ValueError:
        power = math.nan
    if not _LEAST_DBM < power < _MOST_DBM:
        raise ProtocolError("not an optical power", text)
    return power
