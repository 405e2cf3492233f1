"""The moment by which an operation on an optical switch must have ended."""

from __future__ import annotations

import time

from ringlight.controller.optical.errors import DeadlineExceeded


class Deadline:
    """A moment by which an operation must have ended."""

    def __init__(self, timeout_s: float) -> None:
        self.at = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds to go; negative when past."""
        return self.at - time.monotonic()

    def check(self) -> float:
        """Return the seconds that are left. Raises DeadlineExceeded if there are none."""
        left = self.left_s
        if left <= 0:
            raise DeadlineExceeded("the deadline has passed")
        return left

    def within(self, limit_s: float) -> Deadline:
        """Return the earlier of this deadline and ``limit_s`` seconds from now."""
        return self if self.left_s < limit_s else Deadline(limit_s)

    def sleep_until(self, when: float) -> None:
        """Sleep to ``when`` (monotonic seconds). Raises DeadlineExceeded if the deadline comes first."""
        if when > self.at:
            raise DeadlineExceeded("the deadline has passed")
        pause = when - time.monotonic()
        if pause > 0:
            time.sleep(pause)
