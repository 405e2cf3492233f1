"""The map of wavelengths that an O-NIC is given: the port and wavelength that reach each peer of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringlight.controller.onic.agent_settings import Address
from ringlight.controller.onic.wire import PORTS, parse_address

MAX_WAVELENGTH = 4096


@dataclass(frozen=True)
class PeerEntry:
    """Line of the wavelength map: port and wavelength that reach a GPU, and its agent's address."""

    port: int
    wavelength: int
    agent: Address


@dataclass(frozen=True)
class WavelengthMap:
    job: str
    version: int
    peers: dict[str, PeerEntry]

    def document(self) -> dict[str, Any]:
        peers = {
            ip: {
                "port": entry.port,
                "wavelength": entry.wavelength,
                "agent": f"{entry.agent[0]}:{entry.agent[1]}",
            }
            for ip, entry in self.peers.items()
        }
        return {"job": self.job, "version": self.version, "peers": peers}


def parse_map(document: Mapping[str, Any], ports: int = PORTS) -> WavelengthMap:
    """Return the wavelength map in a document. Raises ValueError naming the key that is wrong."""
    if not isinstance(document, Mapping):
        raise ValueError("the map must be an object")
    job, version, peers = (
        document.get("job"),
        document.get("version"),
        document.get("peers"),
    )
    if not isinstance(job, str) or not job:
        raise ValueError("job must be a name")
    if not whole(version, 0, 1 << 62):
        raise ValueError("version must be a whole number")
    if not isinstance(peers, dict):
        raise ValueError("peers must be an object")
    entries: dict[str, PeerEntry] = {}
    for ip, reach in peers.items():
        if not isinstance(reach, dict):
            raise ValueError(f"peers.{ip} must be an object")
        if not whole(reach.get("port"), 0, ports - 1):
            raise ValueError(f"peers.{ip}.port must be from 0 to {ports - 1}")
        if not whole(reach.get("wavelength"), 0, MAX_WAVELENGTH):
            raise ValueError(
                f"peers.{ip}.wavelength must be from 0 to {MAX_WAVELENGTH}"
            )
        try:
            agent = parse_address(reach.get("agent"))
        except ValueError as error:
            raise ValueError(f"peers.{ip}.agent: {error}") from None
        entries[str(ip)] = PeerEntry(reach["port"], reach["wavelength"], agent)
    if len({reach.agent for reach in entries.values()}) < len(entries):
        raise ValueError("two peers have the same agent")
    assert isinstance(version, int)
    return WavelengthMap(job, version, entries)


def whole(value: object, low: int, high: int) -> bool:
    """Return whether a value of a JSON document is a whole number from ``low`` to ``high``."""
    return (
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    )
