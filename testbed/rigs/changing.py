"""A change that is requested until it is made, however often another writer interferes."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import Indeterminate, StaleRevision
from ringlight.controller.optical.model import ApplyResult
from ringlight.fabric.crossconnect import CrossConnect, Mode

#: How often an unknown outcome is followed by another try.
ATTEMPTS = 4


def converge(
    driver: OpticalSwitchDriver,
    target: Iterable[CrossConnect],
    mode: Mode = Mode.UPDATE,
    *,
    delete: Iterable[int] = (),
    owned: Iterable[CrossConnect] | None = None,
    timeout_s: float = 10.0,
    settle: bool = True,
) -> ApplyResult:
    """Read, plan and apply. Return the result.

    All is done again from a new reading if the outcome was unknown or another writer interfered. Raises
    StaleRevision if another writer still interferes after ``timeout_s``, Indeterminate if the outcome stays
    unknown.
    """
    deadline = time.monotonic() + timeout_s
    target, delete = tuple(target), tuple(delete)
    unknown = 0
    while True:
        seen = driver.snapshot(timeout_s=deadline - time.monotonic())
        plan = driver.plan(target, mode, delete=delete, owned=owned, snapshot=seen)
        try:
            return driver.apply(
                plan, timeout_s=deadline - time.monotonic(), settle=settle, seen=seen
            )
        except StaleRevision:
            if time.monotonic() > deadline:
                raise
        except Indeterminate:
            unknown += 1
            if unknown == ATTEMPTS or time.monotonic() > deadline:
                raise
