"""Documents of grids in the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringlight.controller.light.documents import PlannedLight
from ringlight.extensions.oddl.wavelengths import Ways
from ringlight.fabric.crossconnect import CrossConnect


@dataclass(frozen=True)
class GridPart:
    """Nodes are in rows, one after the other."""

    rows: int
    columns: int


@dataclass(frozen=True)
class WiredCrossConnect:
    ingress: int
    egress: int
    wavelength: int | None


@dataclass(frozen=True)
class GridPlanned(PlannedLight):
    """``cross_connects``: by switch; ``maps``: how each node reaches each peer."""

    cross_connects: Mapping[str, list[WiredCrossConnect]]
    maps: Ways


def wired(group: frozenset[CrossConnect]) -> list[WiredCrossConnect]:
    """Return the cross-connects as documents, sorted."""
    return [
        WiredCrossConnect(xc.ingress, xc.egress, xc.wavelength) for xc in sorted(group)
    ]
