"""Words for the state of a port as SCPI has them, and its relatives, and readings made of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ringlight.controller.optical.errors import ProtocolError
from ringlight.controller.optical.model import PortStatus, Snapshot
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, PortState

_ENABLED = ("E", "OPEN", "ENABLED", "PO_ENABLED", "UNSUPPORTED", "")
_DISABLED = ("D", "CLOSED", "DISABLED", "PO_DISABLED")
_FAILED = ("F", "FAILED", "PO_FAILED")


def port_status(word: str, connected: bool) -> PortStatus:
    """Return the state of a port from the switch's word for it; UNKNOWN for an unknown word.

    The meaning of UNSUPPORTED is not documented: such a port is used like an enabled port, and the read-back
    shows whether it works.
    """
    if word in _FAILED:
        return PortStatus(PortState.FAILED)
    if word in _DISABLED:
        return PortStatus(PortState.BLOCKED, enabled=False)
    if word in _ENABLED:
        return PortStatus(PortState.TUNED if connected else PortState.BLOCKED)
    return PortStatus(PortState.UNKNOWN)


def checked_pairs(pairs: Collection[CrossConnect]) -> tuple[CrossConnect, ...]:
    """Return the cross-connects.

    Raises ProtocolError if a port is in two of them: a model may allow that, but a fibre cannot.
    """
    if len({port for xc in pairs for port in (xc.ingress, xc.egress)}) != 2 * len(
        pairs
    ):
        raise ProtocolError("a port is connected twice", str([str(xc) for xc in pairs]))
    return tuple(pairs)


def snapshot(
    name: str, pairs: Collection[CrossConnect], words: Mapping[int, str]
) -> Snapshot:
    """Return a reading made of a switch's cross-connects and its word for each port's state."""
    used = {port for xc in pairs for port in (xc.ingress, xc.egress)}
    ports = {port: port_status(word, port in used) for port, word in words.items()}
    return Snapshot(name, dict.fromkeys(pairs, CrossConnectState.CONNECTED), ports)


def check_size(reported: tuple[int, int], size: int) -> None:
    """Check the size that the switch reports. Raises ProtocolError if it differs from the fabric's."""
    if reported != (size, size):
        raise ProtocolError(
            f"the switch is {reported[0]}x{reported[1]}, the fabric says {size}x{size}"
        )


def check_model(model: str, size: int) -> None:
    """Check the size in a model's name, such as ``N-VST-16x16-LA1-DMHNV-701``.

    A single-sided ``32xCC`` has the ports of a dual-sided 16x16. Raises ProtocolError if the size differs
    from the fabric's.
    """
    match = re.search(r"(\d{1,5})x(\d{1,5}|CC)(?!\w)", model)
    if match is None:
        return
    reported = (
        (int(match[1]), int(match[1]))
        if match[2] == "CC"
        else (int(match[1]), int(match[2]))
    )
    if reported != ((2 * size, 2 * size) if match[2] == "CC" else (size, size)):
        raise ProtocolError(f"the switch is {match[0]}, the fabric says {size}x{size}")
