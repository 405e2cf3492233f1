"""Power of light along its path: what is sent, less every loss on the way, is what the receiver gets.

Loss adds up over the fibres and the switches that a lightpath passes. A path that leaves less than the
receiver's sensitivity carries nothing, or with a modulation damages bits before it does. The emulated
switches, the simulator, the planner and the study of a ring's reach all ask here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

#: Which steps of a collective set light: each one, all of its light again, also what is set already; or only
#: those that need light that does not stand.
Reconfigure = Literal["each-step", "changed-only"]

Modulation = Literal["nrz", "pam4"]
#: Bits of PAM4 over decisions: 3/4 (six thresholds next to four levels, two bits each).
_PAM4 = 0.75
#: A codeword of RS(544, 514), of symbols of 10 bits, of which 15 can be wrong.
_SYMBOLS, _SYMBOL_BITS, _CORRECTED = 544, 10, 15
#: Q at the sensitivity.
_Q = {
    "nrz": -NormalDist().inv_cdf(1e-12),
    "pam4": -NormalDist().inv_cdf(2.4e-4 / _PAM4),
}
#: Light is dark where half of the shortest frames, 64 bytes with their check sequence, have a bit error.
_DARK = -math.expm1(math.log(0.5) / (8 * 64))
#: Bytes of a frame that its sender does not count: Ethernet's check sequence.
CHECK_BYTES = 4


@dataclass(frozen=True)
class Optics:
    """``launch_dbm``: power that a transmitter sends; ``sensitivity_dbm``: least power that a receiver can
    read; ``fibre_db``: loss of each fibre with its connectors. ``modulation``: with one, light below the
    sensitivity has bit errors (:func:`bit_errors`) before nothing of it can be read; without, none."""

    launch_dbm: float = 0.0
    sensitivity_dbm: float = -30.0
    fibre_db: float = 0.0
    modulation: Modulation | None = None

    def is_enough(self, power_dbm: float) -> bool:
        """Return whether a power is the sensitivity or more."""
        # A hair less than the sensitivity is rounding, not loss.
        return power_dbm >= self.sensitivity_dbm - 1e-9

    def reads(self, power_dbm: float) -> bool:
        """Return whether a receiver can read light of that power, possibly with errors."""
        return self.is_enough(power_dbm) or bit_errors(self, power_dbm) < _DARK


def bit_errors(optics: Optics, power_dbm: float) -> float:
    """Return the share of bits that a receiver has wrong at a power, after error correction.

    The share is 1 if the receiver reads nothing. Q is proportional to the received power, as noise of a p-i-n
    receiver is thermal, and the error rate is erfc(Q / sqrt 2) / 2 (Agrawal, Fiber-Optic Communication
    Systems, "Receiver Sensitivity"). ``nrz``: the sensitivity is the power at which that is 1e-12, and
    nothing is corrected. ``pam4``: 3/4 of that for Gray-coded levels; the sensitivity is the power at which
    it is 2.4e-4 before correction by RS(544, 514) of 10-bit symbols, as 400GBASE-DR4 has it (IEEE Std 802.3,
    clauses 119 and 124). A codeword that cannot be corrected counts as one error somewhere in it. The few
    errors above the sensitivity are left out.
    """
    if optics.is_enough(power_dbm):
        return 0.0
    if optics.modulation is None:
        return 1.0
    q = _Q[optics.modulation] * 10 ** ((power_dbm - optics.sensitivity_dbm) / 10)
    error_rate = math.erfc(q / math.sqrt(2)) / 2
    if optics.modulation == "pam4":
        wrong = -math.expm1(_SYMBOL_BITS * math.log1p(-_PAM4 * error_rate))
        intact = math.fsum(
            math.comb(_SYMBOLS, k) * wrong**k * (1 - wrong) ** (_SYMBOLS - k)
            for k in range(_CORRECTED + 1)
        )
        error_rate = (
            1.0
            if intact <= 0
            else -math.expm1(math.log(min(1.0, intact)) / (_SYMBOLS * _SYMBOL_BITS))
        )
    return error_rate if error_rate < _DARK else 1.0


def frame_errors(bit_errors: float, frame_bytes: float) -> float:
    """Return the share of frames of so many bytes, with Ethernet's header, that have a bit error.

    ``bit_errors``: share of bits that are wrong. Such a frame is lost, as its check sequence shows the error.
    """
    return -math.expm1(8 * (frame_bytes + CHECK_BYTES) * math.log1p(-bit_errors))


def received_dbm(launch_dbm: float, losses_db: Iterable[float]) -> float:
    """Return the power (dBm) at the end of a path with these losses (dB), sent with ``launch_dbm``."""
    return launch_dbm - math.fsum(losses_db)


def reach(budget_db: float, segment_db: float) -> int:
    """Return the number of segments of ``segment_db`` dB that light passes on ``budget_db`` dB, 0 or more."""
    # A hair more than the budget is rounding, not loss.
    return max(0, math.floor(budget_db / segment_db * (1 + 1e-12)))


#: Where light is in a switch: an ingress and a wavelength, None if the switch passes every colour.
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
    fibres: Fibres,
    wires: Callable[[str], Wires],
    switch: str,
    ingress: int,
    wavelength: int | None,
) -> float | None:
    """Return the power (dBm) of the light that enters an ingress on a wavelength.

    Without a wavelength (None) that is the strongest of all. ``wires``: the cross-connects of a switch by its
    name. Return None if no light enters: a switch before this one feeds nothing into the fibre, or light
    would run in a loop.
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
    powers_dbm = []
    for (ingress, colour), (egress, loss_db) in wires(name).items():
        fits = colour is None or wavelength is None or colour == wavelength
        if egress != fibres.size[name] + number or not fits:
            continue
        incoming = wavelength if colour is None else colour
        power = _arriving(fibres, wires, (name, ingress), incoming, seen | {port})
        if power is not None:
            powers_dbm.append(received_dbm(power, [loss_db, fibres.optics.fibre_db]))
    return max(powers_dbm, default=None)


def dimness(
    fibres: Fibres, wires: Callable[[str], Wires], switch: str
) -> dict[Spot, float]:
    """Return the ingresses of light that leaves a switch too weak for its receiver.

    Each has the share of bits that are wrong there, 1 if the receiver can read none.
    """
    error_rates = {}
    for (ingress, colour), (egress, loss_db) in wires(switch).items():
        if (switch, egress - fibres.size[switch]) in fibres.far:
            continue
        power = arriving_dbm(fibres, wires, switch, ingress, colour)
        if power is None:
            continue
        received = received_dbm(power, [loss_db, fibres.optics.fibre_db])
        if errors := bit_errors(fibres.optics, received):
            error_rates[ingress, colour] = errors
    return error_rates


def most_loss_db(optics: Optics, losses_db: Sequence[float]) -> float:
    """Return the loss of a path through all of these switches, dB: no path of their fabric can lose more."""
    return math.fsum([*losses_db, optics.fibre_db * (len(losses_db) + 1)])
