"""Bytes that a worker's NICs have carried, as the kernel counts them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_DEVICES = Path("/proc/net/dev")
_RECEIVED, _SENT = 0, 8


def carried() -> dict[str, list[int]]:
    """Return the bytes sent and received so far by each NIC (``eth0``, …), with all headers except Ethernet's
    preamble and checksum.
    """
    counters = {}
    for line in _DEVICES.read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip().startswith("eth"):
            counts = numbers.split()
            counters[name.strip()] = [int(counts[_SENT]), int(counts[_RECEIVED])]
    return counters


def carried_since(before: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return the bytes sent and received by each NIC since :func:`carried` returned ``before``."""
    return {
        name: [after - first for after, first in zip(now, before[name], strict=True)]
        for name, now in carried().items()
    }
