"""The ports, fibres and optical switches of an interconnect that is described as a whole.

So an emulated lab can be built of it, if its light is divided among the pairs by what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringlight.extensions.sip_ml.divided.demand_ring import DemandRing
from ringlight.extensions.sip_ml.divided.planes import ParallelOcs, Planes
from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.extensions.wrht.ring import WdmRing, plugged_ring
from ringlight.fabric.parts import (
    Link,
    Onic,
    OpticalSwitch,
    Port,
    Wss,
)
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import QUEUE_S

#: GPUs, ports of an O-NIC, and wavelengths in each direction that can be emulated.
MOST_GPUS, MOST_PORTS, MOST_WAVELENGTHS = 32, 32, 32


def plugged_interconnect(fabric: Fabric) -> Fabric:
    """Return a fabric of an interconnect as it is plugged together.

    Its part ``interconnect`` is kept. Raises ValueError, one line that begins with the key, for an
    interconnect that cannot be emulated.
    """
    interconnect: Interconnect = fabric.parts["interconnect"]
    if "divided" in fabric.parts:
        return fabric
    gpus = tuple(fabric.gpus)
    make = _MAKE.get(type(interconnect))
    if make is None:
        there = " and ".join(kind.kind for kind in _MAKE)
        raise ValueError(
            f"interconnect.kind: it is simulated only; {there} are emulated, too"
        )
    if len(gpus) > MOST_GPUS:
        raise ValueError(
            f"interconnect.gpus: {len(gpus)}; at most {MOST_GPUS} are emulated"
        )
    return make(fabric, interconnect, gpus)


def _planes(fabric: Fabric, interconnect: ParallelOcs, gpus: tuple[str, ...]) -> Fabric:
    if interconnect.switches > MOST_PORTS:
        raise ValueError(
            f"interconnect.switches: {interconnect.switches}; "
            f"an emulated O-NIC has at most {MOST_PORTS} ports"
        )
    names = tuple(f"q{number}" for number in range(interconnect.switches))
    links = [
        Link(
            Port(gpu, number),
            Port(switch, faceplate),
            interconnect.circuit_bps,
            QUEUE_S,
        )
        for faceplate, gpu in enumerate(gpus, start=1)
        for number, switch in enumerate(names)
    ]
    # The profile says what a switch does besides being dark: nothing, as in the simulator.
    switches = [
        OpticalSwitch(
            name, len(gpus), "scpi", "ideal", dark_s=interconnect.dark_s, duplex=False
        )
        for name in names
    ]
    return _with(
        fabric,
        switches,
        links,
        interconnect.switches,
        Planes(interconnect.kind, gpus, names),
    )


def _ring(fabric: Fabric, interconnect: DemandRing, gpus: tuple[str, ...]) -> Fabric:
    if interconnect.wavelengths > MOST_WAVELENGTHS:
        raise ValueError(
            f"interconnect.rate: {interconnect.wavelengths} wavelengths in each direction; "
            f"at most {MOST_WAVELENGTHS} are emulated"
        )
    names = tuple(f"w{number}" for number in range(len(gpus)))
    ring = WdmRing(interconnect.kind, gpus, names, interconnect.wavelengths)
    made = plugged_ring(
        ring,
        "",
        interconnect.wavelength_bps,
        QUEUE_S,
        Wss("scpi", "ideal", dark_s=interconnect.dark_s),
    )
    return _with(fabric, made.switches, made.links, 2, ring)


def _with(
    fabric: Fabric,
    switches: Sequence[OpticalSwitch],
    links: Sequence[Link],
    ports: int,
    divided: Planes | WdmRing,
) -> Fabric:
    return replace(
        fabric,
        optical_switches={switch.name: switch for switch in switches},
        links=tuple(links),
        onics={
            gpu: Onic(gpu, ports, 0.0, "array", standing=True) for gpu in divided.nodes
        },
        parts={**fabric.parts, "divided": divided},
    )


#: How each kind is plugged together that can be emulated.
_MAKE: Mapping[type[Interconnect], Callable[[Fabric, Any, tuple[str, ...]], Fabric]] = {
    ParallelOcs: _planes,
    DemandRing: _ring,
}
