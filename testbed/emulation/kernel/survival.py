"""Shares of frames that bit errors spare, as the eBPF programs have them (survival.h)."""

from __future__ import annotations

import math

#: Of two, of bytes.
POWERS = 17
#: What all of something is there.
ALL = 1 << 31


def survival(bit_errors: float) -> list[int]:
    """Return the share, times 2^31, of blocks of 1, 2, 4, … bytes without a bit error. ``bit_errors``: bit
    error ratio, below 1."""
    return [
        round(ALL * math.exp(8 * 2**k * math.log1p(-bit_errors))) for k in range(POWERS)
    ]
