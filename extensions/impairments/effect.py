"""Impairments of the frames that pass a link, next to its rate: delay, jitter, loss, bit errors, flapping.

The same in both directions, and for each by itself. A frame with a bit error is lost, because its check
sequence shows the error. Loss and errors are independent of what was lost before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ringlight.fabric.light import frame_errors
from ringlight.fabric.link_effects import LinkEffect

#: The key of an event that holds such keys.
KEY = "impairments"


@dataclass(frozen=True)
class Impairments(LinkEffect):
    """``delay_s``: added to the way of every frame; ``jitter_s``: at most so much more or less, evenly
    distributed, in the order of sending. ``loss``: share of frames that are lost. ``bit_errors``: share of
    bits that arrive wrong. ``down_s`` and ``up_s``: nothing passes for the one, then everything for the
    other, and so on. Raises ValueError naming the key.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    bit_errors: float = 0.0
    down_s: float = 0.0
    up_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= 1:
            raise ValueError(f"loss: {self.loss:g}; it is a share from 0 to 1")
        if not 0 <= self.bit_errors < 0.5:
            raise ValueError(
                f"errors: {self.bit_errors:g}; it is a share of bits below 0.5"
            )
        if not 0 <= self.jitter_s <= self.delay_s:
            raise ValueError(
                f"jitter: {self.jitter_s:g} s; it must be at most the delay, {self.delay_s:g} s"
            )
        if (self.down_s > 0) != (self.up_s > 0) or min(self.down_s, self.up_s) < 0:
            raise ValueError("flap: give both down and up, each more than 0")

    @property
    def most_delay_s(self) -> float:
        return self.delay_s + self.jitter_s

    @property
    def varies(self) -> bool:
        """Return whether it flaps."""
        return self.down_s > 0

    @property
    def loses(self) -> bool:
        """Return whether single frames are lost."""
        return self.loss > 0 or self.bit_errors > 0

    def dilated(self, factor: float) -> Self:
        """Return the impairments with all times ``factor`` times as long."""
        return replace(
            self,
            delay_s=self.delay_s * factor,
            jitter_s=self.jitter_s * factor,
            down_s=self.down_s * factor,
            up_s=self.up_s * factor,
        )

    def frame_loss(self, frame_bytes: float) -> float:
        """Return the share of frames of so many bytes that do not arrive while the link is up."""
        return 1 - (1 - self.loss) * (1 - frame_errors(self.bit_errors, frame_bytes))

    def course(self, passage: Any) -> Any:
        """Return the flapping of a simulated link from now on."""
        from ringlight.extensions.impairments.flaps import Flap

        return Flap(passage, self.down_s, self.up_s)
