"""Links that delay frames, in tests of what the core makes of that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringlight.fabric.link_effects import LinkEffect
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class Delay(LinkEffect):
    """An effect that adds so many seconds to the way of every frame."""

    delay_s: float = 0.0

    def dilated(self, factor: float) -> Delay:
        return Delay(self.delay_s * factor)


def with_delay(fabric: Fabric, a: str, b: str, delay_s: float) -> Fabric:
    """Return the fabric with a delay of the one link between two nodes or ports."""
    slow = fabric.link_between(a, b)
    links = tuple(
        replace(link, effects={"delay": Delay(delay_s)}) if link is slow else link
        for link in fabric.links
    )
    return replace(fabric, links=links)
