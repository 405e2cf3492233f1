"""Quantities with units, as people write them in a scenario.

Rates become bits per second, times become seconds, sizes become bytes (all floats or ints in SI base
units). A bare number is refused: a quantity without its unit is a bug.
"""

from __future__ import annotations

import math
import re

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}
_NUMBER = r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*"
_RATE = re.compile(_NUMBER + r"([kKMGT]?)(?:bit/s|bps|b/s)\s*")
_TIME = re.compile(_NUMBER + r"([mµun]?)s\s*")
_SIZE = re.compile(_NUMBER + r"([kKMGT]?)(i?)B\s*")


def _finite(text: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large")
    return value


def parse_rate(text: str) -> float:
    """Return a rate such as ``"40 Gbit/s"`` in bits per second. Raises ValueError with the expected form."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a rate; write a number and a unit, such as '40 Gbit/s'"
        )
    return _finite(text, float(match[1]) * _PREFIX[match[2]])


def parse_time(text: str) -> float:
    """Return a time such as ``"25 ms"`` in seconds. Raises ValueError with the expected form."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a time; write a number and a unit, such as '25 ms'"
        )
    return _finite(text, float(match[1]) * _SMALL[match[2]])


def parse_size(text: str) -> int:
    """Return a size such as ``"553.4 MB"`` or ``"64 MiB"`` in bytes.

    Raises ValueError with the expected form.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a size; write a number and a unit, such as '64 MiB'"
        )
    if match[3]:
        power: int = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}[match[2]]
        return round(_finite(text, float(match[1]) * float(1024**power)))
    return round(_finite(text, float(match[1]) * _PREFIX[match[2]]))


def format_rate(bits_per_second: float) -> str:
    """Return bits per second for people: ``format_rate(3.2e7) == '32 Mbit/s'``."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(bits_per_second) >= factor:
            return f"{bits_per_second / factor:.4g} {prefix}bit/s"
    return f"{bits_per_second:.4g} bit/s"


def format_time(seconds: float) -> str:
    """Return seconds for people: ``format_time(0.025) == '25 ms'``."""
    if seconds == 0 or abs(seconds) >= 1:
        return f"{seconds:.4g} s"
    for factor, prefix in ((1e-3, "m"), (1e-6, "µ")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {prefix}s"
    return f"{seconds / 1e-9:.4g} ns"


def format_size(size: float) -> str:
    """Return bytes for people: ``format_size(1_200_000) == '1.2 MB'``."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(size) >= factor:
            return f"{size / factor:.4g} {prefix}B"
    return f"{size:.4g} B"
