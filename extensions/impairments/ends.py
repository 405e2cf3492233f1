"""The impaired links of a lab: an end for each of their directions."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ringlight.extensions.impairments.effect import KEY, Impairments
from ringlight.extensions.impairments.end import End, FrameCounts
from ringlight.extensions.impairments.log import COUNTERS
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.parts import Port
from ringlight.testbed.devices import Device, Direction, LinkEffector
from ringlight.testbed.lab import INTERFACE_NAME_MAX, Lab


class ImpairedEnds(Device):
    """Loses, delays and damages the frames of a lab's links, and counts them."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        #: By the port that receives, as all that follows.
        self._ends: dict[Port, End] = {}
        self._counted: dict[Port, FrameCounts] = {}
        self._out: dict[Port, Port] = {}

    @property
    def effector(self) -> LinkEffector:
        return self

    def affect(
        self, effects: Effects, rate_bps: float, directions: Sequence[Direction]
    ) -> None:
        """Impair these directions, or no longer where the effects are others'."""
        impairments = effects.get(KEY)
        if not isinstance(impairments, Impairments):
            self.let_be(direction.into for direction in directions)
            return
        for direction in directions:
            if direction.into not in self._ends:
                self._ends[direction.into] = self._begun(direction)
            self._ends[direction.into].set(impairments, rate_bps)

    def _begun(self, direction: Direction) -> End:
        self._out[direction.into] = direction.out
        # Seeded apart, and the same in every lab.
        seed = zlib.crc32(f"{direction.out} {direction.into}".encode())
        name = f"{self._lab.prefix}{seed:x}"[:INTERFACE_NAME_MAX]
        place = direction.namespace, direction.interface, direction.sends
        end = End(*place, name, seed, self._lab.environment())
        if direction.from_afar:
            # A burst would be lost, or delayed, as one.
            end.keep_single()
        return end

    def let_be(self, ports: Iterable[Port]) -> None:
        for port in ports:
            end = self._ends.pop(port, None)
            if end is not None:
                self._counted[port] = (
                    self._counted.get(port, FrameCounts()) + end.counts()
                )
                end.close()

    def counters(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return the counters of each direction that is or was impaired, with its two ports."""
        counted = dict(self._counted)
        for port, end in self._ends.items():
            counted[port] = counted.get(port, FrameCounts()) + end.counts()
        return {
            COUNTERS: [
                {"from": str(self._out[port]), "to": str(port), **vars(counts)}
                for port, counts in sorted(counted.items())
            ]
        }

    def stop(self) -> None:
        self.let_be([*self._ends])
