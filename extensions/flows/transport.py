"""The transport of flows: packets, their window and acknowledgements, and delays of links."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Transport:
    """A sender has at most ``window_packets`` packets that are not acknowledged; nothing is lost.

    ``packet_bytes`` include ``header_bytes``. ``full_packets``: the last packet of a flow of several packets
    is as long as the others. ``acknowledgement_bytes``: length of an acknowledgement, which overtakes
    packets; a flow is complete when the sender has the last one, or if 0 when the receiver has all bytes.
    ``spray``: packets take all shortest paths in turn, not the path of their pair. ``nic_delay_s`` and
    ``switch_delay_s``: seconds of propagation on each link of a GPU, and between switches.
    """

    packet_bytes: int = 1500
    header_bytes: int = 64
    window_packets: int = 30
    full_packets: bool = False
    acknowledgement_bytes: int = 0
    spray: bool = True
    nic_delay_s: float = 0.0
    switch_delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.header_bytes < self.packet_bytes:
            raise ValueError(
                f"a header of {self.header_bytes} bytes in a packet of {self.packet_bytes} bytes"
            )
        if self.window_packets < 1:
            raise ValueError("a window of no packet")

    @property
    def payload_bytes(self) -> int:
        """Return the bytes of a flow that a full packet carries."""
        return self.packet_bytes - self.header_bytes

    def packets(self, size_bytes: int) -> int:
        return math.ceil(size_bytes / self.payload_bytes)

    def last_bytes(self, size_bytes: int) -> int:
        """Return the length in bytes of a flow's last packet, with header."""
        before = (self.packets(size_bytes) - 1) * self.payload_bytes
        if before and self.full_packets:
            return self.packet_bytes
        return size_bytes - before + self.header_bytes

    def wire_bytes(self, size_bytes: int) -> int:
        """Return the bytes of all packets of a flow, with headers."""
        full = (self.packets(size_bytes) - 1) * self.packet_bytes
        return full + self.last_bytes(size_bytes)
