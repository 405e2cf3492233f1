"""The checks of the 45 items, by the sections of the list."""

from ringlight.testbed.acceptance.checking import Check
from ringlight.testbed.acceptance.checks import faults, life, reading, safety, timing, writing

CHECKS: tuple[Check, ...] = (
    *reading.CHECKS,
    *writing.CHECKS,
    *safety.CHECKS,
    *faults.CHECKS,
    *timing.CHECKS,
    *life.CHECKS,
)
