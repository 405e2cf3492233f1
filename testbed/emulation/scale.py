"""The scale at which a lab emulates its fabric, and settings of TCP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Emulation:
    """Scale of the emulation, and settings of TCP.

    ``time_dilation`` D: emulated seconds per real second. ``payload_scale`` S: real bytes per emulated byte.
    Rates are divided by D·S and times multiplied by D. ``rto_min_s``: emulated seconds, None for the kernel's
    own. ``bounded``: workers have few bytes in flight (:mod:`testbed.emulation.under_way`). Not used if an event
    delays frames, because a window must hold the delayed bytes, too.
    """

    time_dilation: float = 1.0
    payload_scale: float = 1.0
    congestion_control: str = "reno"
    rto_min_s: float | None = 0.02
    bounded: bool = False

    def rate_bps(self, real_bps: float) -> float:
        """Return the emulated bits per second of a link of ``real_bps``."""
        return real_bps / (self.time_dilation * self.payload_scale)

    def seconds(self, real_s: float) -> float:
        return real_s * self.time_dilation
