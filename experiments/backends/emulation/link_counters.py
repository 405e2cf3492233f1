"""Bytes of links, as the difference between two readings of their counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringlight.fabric.parts import Link

#: By switch and port: bytes received and sent.
PortBytes = Mapping[tuple[str, int], tuple[int, int]]


def carried(link: Link, before: PortBytes, after: PortBytes) -> list[dict[str, Any]]:
    """Return the bytes in each direction of a link with a packet switch at an end, as the switch's port
    counted them.

    Of a link between two switches the sender counts. A switch that was restarted meanwhile is left out.
    """
    sent_bytes: dict[tuple[str, str], int] = {}
    for near in (link.a, link.b):
        key, far = (near.node, near.number), link.other(near)
        if key in before and key in after:
            received, sent = (
                now - then for now, then in zip(after[key], before[key], strict=True)
            )
            if min(received, sent) < 0:
                continue
            sent_bytes[str(near), str(far)] = sent
            sent_bytes.setdefault((str(far), str(near)), received)
    return [
        {"from": a, "to": b, "bytes": count}
        for (a, b), count in sorted(sent_bytes.items())
    ]
