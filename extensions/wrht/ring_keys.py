"""The key ``rings`` of a fabric file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ringlight.extensions.wrht.ring import WdmRing, make_ring, plugged_ring
from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.light import Reconfigure
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import Duration, Name, Rate, Strict, WssSpec


class RingWssSpec(WssSpec):
    """``mrr``: micro-ring resonators, which add and drop one wavelength each."""

    profile: Literal["mrr", "lcos", "ideal"] = "mrr"


class RingSpec(Strict):
    """``nodes`` around a ring of fibres in both directions, each with a small WSS and an O-NIC.

    A ring named r has GPUs r0, r1, … clockwise, each a server r-s0, … of its own, and WSSs r-w0, …
    ``wavelengths``: channels in each direction. ``rate``: that of ONE wavelength. ``reconfigure``: whether
    every step of a collective sets all of its light again, or only what does not stand.
    """

    nodes: int = Field(ge=2, le=4096)
    gpu: str = Field(min_length=1)
    rate: Rate
    queue: Duration = 0.02
    wavelengths: int = Field(default=1, ge=1, le=512)
    wss: RingWssSpec = RingWssSpec()
    reconfigure: Reconfigure = "changed-only"


def _add(specs: Mapping[str, RingSpec], assembly: Assembly) -> None:
    """Plug rings in."""
    for name, spec in specs.items():
        ring = make_ring(name, spec.nodes, spec.wavelengths, spec.reconfigure)
        first = len(assembly.gpus)
        made = plugged_ring(
            ring, spec.gpu, spec.rate, spec.queue, spec.wss.made(), first
        )
        assembly.plug("rings", name, ring, made)


def _document(fabric: Fabric) -> list[WdmRing]:
    return list(fabric.parts.get("rings", {}).values())


RINGS = FabricKey(
    dict[Name, RingSpec], add=_add, documents=list[WdmRing], document=_document
)
