"""Impairments of the frames that pass a link, next to its rate: delay, jitter, loss, bit errors, flapping.

The same in both directions, and for each by itself. A frame with a bit error is lost, because its check
sequence shows the error. Loss and errors are independent of what was lost before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Bytes of a frame that its sender does not count: Ethernet's check sequence.
CHECK_BYTES = 4


@dataclass(frozen=True)
class Impairments:
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
            raise ValueError(f"errors: {self.bit_errors:g}; it is a share of bits below 0.5")
        if not 0 <= self.jitter_s <= self.delay_s:
            raise ValueError(f"jitter: {self.jitter_s:g} s; it must be at most the delay, {self.delay_s:g} s")
        if (self.down_s > 0) != (self.up_s > 0) or min(self.down_s, self.up_s) < 0:
            raise ValueError("flap: give both down and up, each more than 0")

    @property
    def flaps(self) -> bool:
        return self.down_s > 0

    @property
    def loses(self) -> bool:
        """Return whether single frames are lost."""
        return self.loss > 0 or self.bit_errors > 0

    def dilated(self, factor: float) -> Impairments:
        """Return the impairments with all times ``factor`` times as long."""
        return replace(
            self,
            delay_s=self.delay_s * factor,
            jitter_s=self.jitter_s * factor,
            down_s=self.down_s * factor,
            up_s=self.up_s * factor,
        )

    def frame_errors(self, frame_bytes: float) -> float:
        """Return the share of frames of so many bytes, with Ethernet's header, that have a bit error."""
        return -math.expm1(8 * (frame_bytes + CHECK_BYTES) * math.log1p(-self.bit_errors))

    def frame_loss(self, frame_bytes: float) -> float:
        """Return the share of frames of so many bytes that do not arrive while the link is up."""
        return 1 - (1 - self.loss) * (1 - self.frame_errors(frame_bytes))


NONE = Impairments()


def reno_bps(loss: float, rtt_s: float, time_out_s: float, payload_bytes: float) -> float:
    """Return the most that one connection of TCP Reno carries, bits of payload per second.

    It is infinite without loss, and 0 if all is lost. ``loss``: share of segments that are lost,
    ``payload_bytes``: of a segment. Source: Padhye, Firoiu, Towsley and Kurose, "Modeling TCP Throughput"
    (SIGCOMM 1998), the approximate form, without the limit by the receiver's window, two segments for each
    acknowledgement.
    """
    if loss <= 0:
        return math.inf
    if loss >= 1:
        return 0.0
    each = 2.0
    halving_s = rtt_s * math.sqrt(2 * each * loss / 3)
    waiting_s = time_out_s * min(1.0, 3 * math.sqrt(3 * each * loss / 8)) * loss * (1 + 32 * loss**2)
    return 8 * payload_bytes / (halving_s + waiting_s)


#: How long Linux holds back the acknowledgement of one segment (TCP_DELACK_MIN; RFC 1122 allows 0.5 s).
DELAYED_ACK_S = 0.04


def resumed_s(down_s: float, time_out_s: float) -> float:
    """Return when TCP goes on over a link that was down for ``down_s`` seconds.

    The result is in seconds from when the link went down. TCP sends one segment again after the time-out,
    then after twice as long each time (RFC 6298, 5.5), and the acknowledgement of the first that arrives is
    delayed.
    """
    again_s = time_out_s
    while again_s < down_s:
        again_s = 2 * again_s + time_out_s
    return again_s + DELAYED_ACK_S
