"""Power of light along its path: what is sent, less every loss on the way, is what the receiver gets.

Loss adds up over the fibres and the switches that a lightpath passes. A path that leaves less than the
receiver's sensitivity carries nothing. The emulated switches, the simulator, the planner and the study of a
ring's reach all ask here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Optics:
    """``launch_dbm``: power that a transmitter sends; ``sensitivity_dbm``: least power that a receiver can
    read; ``fibre_db``: loss of each fibre with its connectors."""

    launch_dbm: float = 0.0
    sensitivity_dbm: float = -30.0
    fibre_db: float = 0.0

    def reads(self, power_dbm: float) -> bool:
        """Whether a receiver can read light of that power."""
        # A hair less than the sensitivity is rounding, not loss.
        return power_dbm >= self.sensitivity_dbm - 1e-9


def received_dbm(launch_dbm: float, losses_db: Iterable[float]) -> float:
    """Power at the end of a path with these losses (dB), sent with ``launch_dbm``."""
    return launch_dbm - math.fsum(losses_db)


def reach(budget_db: float, segment_db: float) -> int:
    """Segments of ``segment_db`` dB that light passes on ``budget_db`` dB; 0 when not even one."""
    # A hair more than the budget is rounding, not loss.
    return max(0, math.floor(budget_db / segment_db * (1 + 1e-12)))


#: Where light is in a switch: an ingress and a wavelength, None where the switch passes every colour alike.
Spot = tuple[int, int | None]
#: Cross-connects of one switch with their loss: ingress and wavelength to (egress, dB).
Wires = Mapping[Spot, tuple[int, float]]


@dataclass(frozen=True)
class Fibres:
    """The fibres at optical switches. ``size``: faceplate ports of each switch. ``far``: for each faceplate
    port ``(switch, port)`` that a fibre joins to another switch, that one's; other ports are at transmitters
    and receivers."""

    optics: Optics
    size: Mapping[str, int]
    far: Mapping[tuple[str, int], tuple[str, int]]


def arriving_dbm(
    fibres: Fibres, wires: Callable[[str], Wires], switch: str, ingress: int, wavelength: int | None
) -> float | None:
    """Power of the light that comes in at an ingress on a wavelength (None: the strongest of all).

    ``wires``: the cross-connects of a switch by its name. None where no light comes: a switch before this one
    feeds nothing into the fibre, or light would run in a loop.
    """
    return _arriving(fibres, wires, (switch, ingress), wavelength, frozenset())


def _arriving(
    fibres: Fibres,
    wires: Callable[[str], Wires],
    port: tuple[str, int],
    wavelength: int | None,
    seen: frozenset[tuple[str, int]],
) -> float | None:
    before = fibres.far.get(port)
    if before is None:
        return received_dbm(fibres.optics.launch_dbm, [fibres.optics.fibre_db])
    if port in seen:
        return None
    name, number = before
    found = []
    for (ingress, colour), (egress, loss_db) in wires(name).items():
        fits = colour is None or wavelength is None or colour == wavelength
        if egress != fibres.size[name] + number or not fits:
            continue
        asked = wavelength if colour is None else colour
        power = _arriving(fibres, wires, (name, ingress), asked, seen | {port})
        if power is not None:
            found.append(received_dbm(power, [loss_db, fibres.optics.fibre_db]))
    return max(found, default=None)


def too_dim(fibres: Fibres, wires: Callable[[str], Wires], switch: str) -> frozenset[Spot]:
    """Ingresses of light that leaves a switch too weak for its receiver."""
    found = set()
    for (ingress, colour), (egress, loss_db) in wires(switch).items():
        if (switch, egress - fibres.size[switch]) in fibres.far:
            continue
        power = arriving_dbm(fibres, wires, switch, ingress, colour)
        if power is None:
            continue
        if not fibres.optics.reads(received_dbm(power, [loss_db, fibres.optics.fibre_db])):
            found.add((ingress, colour))
    return frozenset(found)


def most_loss_db(optics: Optics, losses_db: Sequence[float]) -> float:
    """Loss of a path through all of these switches, dB: none of their fabric can lose more."""
    return math.fsum([*losses_db, optics.fibre_db * (len(losses_db) + 1)])
