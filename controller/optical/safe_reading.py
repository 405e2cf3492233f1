"""Read a switch so that the reading can be relied on: possible at all, and not overtaken by a late write."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import Indeterminate, ProtocolError
from ringlight.controller.optical.model import Capabilities, Plan, Snapshot
from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    MatchingError,
    check_matching,
)

#: Age up to which the reading that a plan was made from stands for another before the first write, seconds.
#: Between any reading and the write someone else can come; the read-back tells.
FRESH_S = 0.01


class SafeReader:
    """Readings of one switch. ``read`` asks the switch itself.

    ``written_at``: when the last write began, monotonic seconds.
    """

    def __init__(
        self, capabilities: Capabilities, read: Callable[[Deadline], Snapshot]
    ) -> None:
        self._capabilities, self._read = capabilities, read
        self._labels: dict[CrossConnect, str] = {}
        self._quiet_until = 0.0
        self.written_at = 0.0

    def note_write(self) -> None:
        """Note that a write begins now."""
        self.written_at = time.monotonic()

    def reading(self, deadline: Deadline) -> Snapshot:
        """Return a reading, checked for being possible at all. Raises OpticalError."""
        deadline.sleep_until(self._quiet_until)
        deadline.check()
        return self.checked(self._read(deadline))

    def checked(self, snapshot: Snapshot) -> Snapshot:
        """Return a reading with its time and the known names. Raises ProtocolError if it is impossible."""
        known = self._capabilities.ports
        if snapshot.ports.keys() != known:
            odd = sorted(snapshot.ports.keys() ^ known)
            raise ProtocolError(f"reported other ports than it has: {odd[:8]}")
        try:
            check_matching(
                xc
                for xc, state in snapshot.cross_connects.items()
                if state
                not in (CrossConnectState.PENDING_DELETION, CrossConnectState.INVALID)
            )
        except MatchingError as error:
            raise ProtocolError(f"impossible state: {error}") from None
        for xc in snapshot.cross_connects:
            if xc.ingress not in known or xc.egress not in known:
                raise ProtocolError(f"reported {xc}, which has no such ports")
        labelled = {
            xc
            if (name := xc.name or self._labels.get(xc)) == xc.name
            else replace(xc, name=name): state
            for xc, state in snapshot.cross_connects.items()
        }
        return replace(snapshot, cross_connects=labelled, taken_at=time.monotonic())

    def is_fresh(self, seen: Snapshot) -> bool:
        """Return whether a reading is recent enough to replace another reading before the first write."""
        return (
            time.monotonic() - seen.taken_at <= FRESH_S
            and seen.taken_at > self.written_at
        )

    def unknown(self, reason: str) -> Indeterminate:
        """Return the error for an unknown outcome.

        Until a pending command has taken effect, nothing is read.
        """
        late_s = self._capabilities.timing.lit_after_s(self._capabilities.max_batch)
        self._quiet_until = time.monotonic() + late_s
        return Indeterminate(f"outcome unknown, read before retrying: {reason}")

    def remember_names(self, plan: Plan, after: Snapshot) -> None:
        """Names live here: no switch driven so far stores them."""
        named = {xc: xc.name for xc in (*plan.keep, *plan.add) if xc.name}
        self._labels = {
            xc: name
            for xc, name in (self._labels | named).items()
            if xc in after.cross_connects
        }
