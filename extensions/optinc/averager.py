"""One averager and its light that is not ideal (OptINC)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ringlight.fabric.parts import Link
from ringlight.fabric.topology import Fabric

#: What an averager computes: the exact mean in whole numbers, or a network with trained or designed weights.
AveragerNetwork = Literal["exact", "trained", "designed"]


@dataclass(frozen=True)
class Imperfect:
    """Imperfections of the light of an averager's network.

    ``phase_bits``: resolution of all phases, None for exact ones. ``phase_error``: radians, the standard
    deviation by which phases are off for good. ``loss_db``: in each interferometer. ``noise`` of detectors,
    ``transmitters``: standard deviations in levels. ``mismatch``: the standard deviation of the part by which
    each transmitter is off for good. ``bias``, ``scale``: by which part the constant light, and all light
    that enters, is too bright. ``seed``: of what is drawn.
    """

    phase_bits: int | None = None
    phase_error: float = 0.0
    loss_db: float = 0.0
    noise: float = 0.0
    transmitters: float = 0.0
    mismatch: float = 0.0
    bias: float = 0.0
    scale: float = 0.0
    seed: int = 0

    @property
    def ideal(self) -> bool:
        return self == Imperfect(seed=self.seed)


@dataclass(frozen=True)
class Averager:
    """A photonic unit that averages ``ports`` signals of ``bits``-bit numbers and answers all (OptINC).

    ``cables``: what is plugged into its ports 1, 2, …, in their order; end ``a`` is NIC port 1 of a GPU, or
    port 0 of an averager of the first level, ``b`` is the port here. No packet and no circuit goes there, so
    they are not among a fabric's links.
    ``decimals``: whether an averager of the first level leaves its decimals on the last symbol (Eq. 10) or
    drops them (Eq. 9); of no meaning without one above. See ``extensions.optinc.averaging``.
    ``approximated``: the first and the last of its network's layers that are made of fewer interferometers,
    None for the usual ones; ``imperfect``: its light. Both are of no meaning to packets and time, see
    ``extensions.optinc.photonics``.
    """

    name: str
    ports: int
    bits: int
    network: AveragerNetwork = "exact"
    decimals: bool = True
    cables: tuple[Link, ...] = ()
    approximated: tuple[int, int] | None = None
    imperfect: Imperfect = Imperfect()


def averagers_in(fabric: Fabric) -> Mapping[str, Averager]:
    """Return the averagers of a fabric by name."""
    averagers: Mapping[str, Averager] = fabric.parts.get("averagers", {})
    return averagers
