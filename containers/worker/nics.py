"""What a worker's NICs have carried, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

_DEVICES = Path("/proc/net/dev")
_RECEIVED, _SENT = 0, 8


def carried() -> dict[str, list[int]]:
    """Bytes sent and received so far by each NIC (``eth0``, …), with all headers but Ethernet's preamble and
    checksum."""
    found = {}
    for line in _DEVICES.read_text().splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip().startswith("eth"):
            counts = numbers.split()
            found[name.strip()] = [int(counts[_SENT]), int(counts[_RECEIVED])]
    return found
