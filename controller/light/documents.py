"""Documents of planes in the REST API: parts common to all planes, and parts of some kinds only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from ringlight.fabric.crossconnect import Emit


@dataclass(frozen=True)
class Lit:
    """Cross-connect that passes light, and the GPUs at its ends, if there are any."""

    ingress: int
    egress: int
    wavelength: int | None
    source: Annotated[str | None, Field(serialization_alias="from")]
    destination: Annotated[str | None, Field(serialization_alias="to")]


class LitPair(NamedTuple):
    """Light from a GPU to a peer.

    ``paths``: number of parallel paths. ``wavelength``: None if there are several, or if the plane does not
    distinguish wavelengths.
    """

    gpu: str
    peer: str
    wavelength: int | None
    paths: int


@dataclass(frozen=True)
class PlaneNode:
    """``ports``: the switches' that its O-NIC is plugged into, the first port first."""

    gpu: str
    ip: str
    job: str | None
    ports: list[str]


@dataclass(frozen=True)
class PlaneSwitch:
    name: str
    reachable: bool
    lit: list[Lit]


@dataclass(frozen=True)
class PlaneOverview:
    """Summary of a plane that has light.

    ``size``: number of nodes. ``free``: number of nodes without a job. ``wavelengths``: number that its
    switches distinguish.
    """

    name: str
    kind: str
    size: int
    free: int
    jobs: list[str]
    wavelengths: int | None
    cross_connects: int


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a duration in seconds; null if there was none."""

    p50_s: float | None
    p99_s: float | None
    max_s: float | None


def quantile(values: list[float], share: float) -> float | None:
    """Return the value that the given share of the values does not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def quantiles(values: list[float]) -> Quantiles:
    return Quantiles(
        quantile(values, 0.5), quantile(values, 0.99), max(values, default=None)
    )


@dataclass(frozen=True)
class PlaneDocument(PlaneOverview):
    """``own``: what only planes of this kind have."""

    nodes: list[PlaneNode]
    switches: list[PlaneSwitch]
    own: Any


def plane_document(own: Any) -> type[PlaneDocument]:
    """Return the document whose ``own`` is of a type."""
    return make_dataclass(
        "PlaneDocument",
        [("own", own)],
        bases=(PlaneDocument,),
        frozen=True,
        namespace={"__doc__": PlaneDocument.__doc__},
    )


@dataclass(frozen=True)
class PlannedLight:
    """Light that a job would get: its GPUs in rank order, and the switches that carry something for it."""

    plane: str
    kind: str
    ranks: list[str]
    switches: list[str]


@dataclass(frozen=True)
class OnicFlows:
    """``lit``: those that have light now, each its ``peer`` and ``port``; ``dropped``: how many of the
    timeline are gone already."""

    ok: bool
    flows: list[dict[str, object]]
    lit: list[dict[str, object]]
    cursor: int
    dropped: int


@dataclass(frozen=True)
class OnicDocument:
    """O-NIC on a plane.

    With an agent: ``control``, its address on the control network, ``reachable``, the reason if not
    (``error``), and its ``status``. Without an agent: its ``transmit`` table, by the peer's IP address.
    """

    gpu: str
    plane: str | None
    control: str | None = None
    reachable: bool | None = None
    error: str | None = None
    status: Mapping[str, object] | None = None
    transmit: Mapping[str, Emit] | None = None
