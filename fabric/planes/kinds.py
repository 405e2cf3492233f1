"""Kinds of planes, the core's and those of extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from ringlight.fabric.extension import entries


@dataclass(frozen=True)
class PlaneKind:
    """A kind of planes. Values are ``"module:object"``, as those of an extension, empty without one.

    ``carrier``: what simulates jobs on such planes, a subclass of
    :class:`experiments.backends.simulation.carriers.Carrier`. ``planes``: a function of a fabric that returns
    its planes of this kind (:class:`fabric.planes.base.Plane`). ``provider``: what lights them for jobs, a
    subclass of :class:`controller.light.provider.Provider`, which the controller makes of a ``LightContext``.
    """

    carrier: str = ""
    planes: str = ""
    provider: str = ""


#: What carries packets, on whatever is plugged together.
PACKETS = PlaneKind(carrier="experiments.backends.simulation.carriers:Carrier")


@cache
def parts_of_planes(
    part: Literal["carrier", "planes", "provider"],
) -> Mapping[str, Any]:
    """Return what each kind of planes has for a part, by kind. Raises ExtensionError."""
    parts: dict[str, Any] = {}
    for name, (item, value) in entries("planes").items():
        kind: PlaneKind = item.load(value)
        if named := getattr(kind, part):
            parts[name] = item.load(named)
    return parts
