"""Traffic that is carried past the packet switches, by their flow tables: the contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class CarriedTraffic(Protocol):
    """Counters of the traffic that the switches' own counters lack. Any thread may call.

    Methods raise NotConnectedError if it does not answer.
    """

    def settle(self) -> None:
        """Wait until it acts by all that the switches had confirmed before."""

    def add_to(self, dpid: int, replies: Sequence[Any]) -> None:
        """Add what was carried to a switch's answers about flows, groups, tables or ports."""

    def close(self) -> None:
        """End its connections."""
