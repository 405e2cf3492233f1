"""A rotor fabric: optical switches that step through fixed matchings, whatever there is to send.

After RotorNet (Mellette et al., SIGCOMM 2017). Light goes one way here, so matching k is the shift by k: GPU
i reaches GPU i + k, and the n - 1 matchings of n GPUs light every pair once in a cycle. They are dealt out to
the switches, of which there is one for each of a GPU's ports.

The rates here are those of long transfers. ``simulation/rotor_slots.py`` goes slot by slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect, of_circuits
from ringlight.fabric.parts import Counts


@dataclass(frozen=True)
class Rotor:
    """``gpus`` with ``ports`` ports of ``port_bps`` bits per second, each on a rotor switch.

    A matching stands for ``slot_s`` seconds, of which the first ``dark_s`` carry nothing. There are fewer
    ports than GPUs.
    """

    gpus: int
    ports: int
    port_bps: float
    slot_s: float
    dark_s: float

    @property
    def slots(self) -> int:
        """Slots of a cycle: the most matchings that one switch has."""
        return math.ceil((self.gpus - 1) / self.ports)

    @property
    def cycle_s(self) -> float:
        return self.slots * self.slot_s

    @property
    def cycle_bytes(self) -> float:
        """Return the bytes that a pair can send directly in one cycle."""
        return self.port_bps * (self.slot_s - self.dark_s) / 8

    @property
    def direct_bps(self) -> float:
        """Mean bits per second from each GPU straight to each other.

        The fluid: a transfer of S bytes ends within one cycle of when it would at this rate, so with an error
        of at most x of its time from ``cycle_bytes / x`` bytes on.
        """
        return 8 * self.cycle_bytes / self.cycle_s

    @property
    def indirect_bps(self) -> float:
        """Bits per second that each GPU can send and receive, with any others, over one GPU in between.

        Each pair's bytes go in equal parts over all n - 2 others, and twice such a part straight; every byte
        that is not straight passes two lights. So whatever no GPU sends or receives faster than n / 2 times
        the direct rate fits, and one permutation at that rate fills every light (Keslassy et al., INFOCOM
        2005). When few send, each could have up to twice as much: that is left out.
        """
        return self.gpus / 2 * self.direct_bps


@dataclass(frozen=True)
class Rotors(Interconnect):
    """Round-robin matchings: straight, or over one GPU in between (``indirect``).

    ``model``: ``slots``, only for flows, or ``fluid``, only for jobs; None for both, each with its own.
    """

    kind: ClassVar[str] = "rotor"

    rotor: Rotor
    indirect: bool = False
    model: str | None = None

    @property
    def refuses_jobs(self) -> str | None:
        if self.model == "slots":
            return "model: slots are for flows (jobs.flows); jobs with collectives need fluid"
        return None

    @property
    def gpu_bps(self) -> float:
        return self.rotor.ports * self.rotor.port_bps

    def counts(self, gpus: int) -> Counts:
        return of_circuits(gpus, self.rotor.ports)
