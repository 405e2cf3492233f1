"""Streams by which the links of a plane are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkTestStream:
    """One GPU sends to another. ``links``: those that its rate tells of, each with the direction.

    ``rate_bps``: what can be asked of it, real. ``round_trip_s``: delays of links there and back, real.
    """

    source: str
    destination: str
    links: tuple[tuple[str, str], ...]
    rate_bps: float
    round_trip_s: float = 0.0
