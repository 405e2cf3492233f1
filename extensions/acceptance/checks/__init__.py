"""The checks of the 45 items, by the sections of the list."""

from ringlight.extensions.acceptance.checking import Check
from ringlight.extensions.acceptance.checks import (
    life,
    misbehaviour,
    reading,
    safety,
    timing,
    writing,
)

CHECKS: tuple[Check, ...] = (
    *reading.CHECKS,
    *writing.CHECKS,
    *safety.CHECKS,
    *misbehaviour.CHECKS,
    *timing.CHECKS,
    *life.CHECKS,
)
