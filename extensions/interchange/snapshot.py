"""A fabric and the circuits that are lit in it, to be written in a format."""

from __future__ import annotations

from dataclasses import dataclass

from ringlight.fabric.parts import Port
from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class Snapshot:
    """``name``: of the scenario or the lab. ``circuits``: duplex, pairs of electrical ports."""

    name: str
    fabric: Fabric
    circuits: tuple[tuple[Port, Port], ...]


@dataclass(frozen=True)
class Exported:
    """A text in a format, and what of the fabric that cannot say."""

    text: str
    lost: tuple[str, ...] = ()
