"""Address of a switch's management port, from its inventory entry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_ADDRESS = re.compile(r"(\[[^\]\s]+\]|[^:\s\[\]]+)(?::(\d{1,5}))?", re.ASCII)


def read_address(name: str, entry: Mapping[str, Any], usual_port: int = 0) -> tuple[str, int]:
    """Host and TCP port of ``{"address": "host:port"}``; without brackets, which an IPv6 address needs there.

    ``usual_port``: where the address names none; 0: it must. Raises ValueError that names the switch, and
    KeyError without an address.
    """
    match = _ADDRESS.fullmatch(str(entry["address"]))
    if match is None or not 0 < int(match[2] or usual_port) < 1 << 16:
        raise ValueError(f"optical switch {name}: address: {entry['address']!r} is not host:port")
    return match[1].strip("[]"), int(match[2] or usual_port)
