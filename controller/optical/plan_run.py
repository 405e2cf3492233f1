"""Carry out a plan on an optical switch: remove, add, wait for light, read back, judge each cross-connect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    AuthFailed,
    DeadlineExceeded,
    Indeterminate,
    OpticalError,
    PartialApply,
    PermissionDenied,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    StaleRevision,
    Unreachable,
)
from ringlight.controller.optical.model import (
    ApplyResult,
    Capabilities,
    CrossConnectResult,
    Plan,
    Snapshot,
)
from ringlight.controller.optical.planning import (
    check_ports_usable,
    port_order,
    replaces_at_once,
)
from ringlight.controller.optical.safe_reading import SafeReader
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode

#: Pause between two readings while a cross-connect is still being aligned, seconds.
POLL_S = 0.02

_PENDING = (CrossConnectState.PENDING_CONNECTION, CrossConnectState.PENDING_DELETION)

Verb = Literal["remove", "add", "replace"]
#: A write, what it is given, and the cross-connects that it changes.
_Write = tuple[Verb, Sequence[CrossConnect], Sequence[CrossConnect]]


class PlanRun:
    """A plan that is being carried out. The caller has the switch for itself.

    ``before``: the state from which the plan must have been made. ``settle``: whether to wait for light.
    ``send`` makes a write; ``send_and_read`` also returns the reading afterwards, if one message can request
    both. ``refusal``: the switch's, if it refused a write.
    """

    def __init__(
        self,
        plan: Plan,
        before: Snapshot,
        deadline: Deadline,
        *,
        settle: bool,
        capabilities: Capabilities,
        reader: SafeReader,
        send: Callable[[Verb, Sequence[CrossConnect], Deadline], None],
        send_and_read: Callable[
            [Verb, Sequence[CrossConnect], Deadline], Snapshot | None
        ],
    ) -> None:
        self._plan, self._before, self._deadline, self._settle = (
            plan,
            before,
            deadline,
            settle,
        )
        self._capabilities, self._reader = capabilities, reader
        self._send, self._send_and_read = send, send_and_read
        self.refusal: OpticalError | None = None
        #: When each port and wavelength that had light lost it.
        self._dark_at: dict[tuple[int, int | None], float] = {}
        #: When all that was written has light.
        self._lit_by = before.taken_at
        self._done = 0

    def carry_out(self) -> ApplyResult:
        """Return the state that the switch shows afterwards. Raises as ``OpticalSwitchDriver.apply``."""
        plan, before, deadline = self._plan, self._before, self._deadline
        if before.revision != plan.base_revision:
            raise StaleRevision(
                "the switch changed after the plan was made; nothing was written"
            )
        check_ports_usable(before, plan.add)
        batches = self._writes(plan)
        self._check_time(batches)
        read_back = self._write(batches)
        try:
            if self.refusal is not None:
                # A part may have been done, and gets the time that it needs; the rest is not waited for.
                read_back, self._lit_by = self._reader.reading(deadline), 0.0
            after = self._settled(read_back) if batches else before
        except OpticalError as error:
            raise self._reader.unknown(
                f"written, but the read-back failed: {error}"
            ) from error
        self._reader.remember_names(plan, after)
        results = _judge(plan, after, self._dark_at, self.refusal, self._settle)
        return self._verdict(ApplyResult(plan, results, after, self._done))

    def _check_time(self, batches: Sequence[_Write]) -> None:
        """Check that the deadline leaves time for the plan. Raises DeadlineExceeded."""
        plan, timing = self._plan, self._capabilities.timing
        needed_s = sum(
            timing.command.typical_s + _touched(changed) * timing.per_cross_connect_s
            for _, _, changed in batches
        )
        if self._settle and plan:
            needed_s += max(timing.settle_s, timing.dark.typical_s if plan.add else 0.0)
        if self._deadline.left_s < needed_s:
            raise DeadlineExceeded(
                f"the plan needs about {needed_s:.3f} s, "
                f"of which {max(0.0, self._deadline.left_s):.3f} s are left; nothing was written"
            )

    def _write(self, batches: Sequence[_Write]) -> Snapshot | None:
        """Make the writes. Return the reading after the last one, if it came with it."""
        deadline, timing = self._deadline, self._capabilities.timing
        lit_before = {spot for xc in self._before.cross_connects for spot in _spots(xc)}
        read_back: Snapshot | None = None
        try:
            for number, (verb, batch, changed) in enumerate(batches, start=1):
                deadline.check()
                self._lit_by = time.monotonic() + timing.lit_after_s(_touched(changed))
                for xc in changed:
                    for spot in _spots(xc):
                        if spot in lit_before:
                            self._dark_at.setdefault(spot, time.monotonic())
                self._reader.note_write()
                answered_s = timing.after_answer_s
                left_s = (
                    timing.lit_after_s(_touched(changed))
                    if answered_s is None
                    else answered_s
                )
                if number < len(batches) or (
                    self._plan.add and self._settle and left_s > 0.0
                ):
                    self._send(verb, batch, deadline)
                else:
                    read_back = self._send_and_read(verb, batch, deadline)
                if read_back is None and answered_s is None:
                    # One that answered later than declared may have begun later, too.
                    self._lit_by = max(
                        self._lit_by, time.monotonic() + timing.dark.most_s
                    )
                elif read_back is None:
                    self._lit_by = time.monotonic() + left_s
                self._done += 1
        except (Refused, PermissionDenied, AuthFailed, StaleRevision) as error:
            if self._done == 0 and isinstance(error, StaleRevision):
                raise
            self.refusal = error
        except (Unreachable, DeadlineExceeded) as error:
            if self._done == 0:
                raise
            reason = f"{self._done} of {len(batches)} writes were made, then: {error}"
            raise self._reader.unknown(reason) from error
        except (Indeterminate, ProtocolError) as error:
            raise self._reader.unknown(
                f"write {self._done + 1} of {len(batches)}: {error}"
            ) from error
        return read_back

    def _writes(self, plan: Plan) -> list[_Write]:
        if replaces_at_once(self._capabilities, plan):
            whole = tuple(sorted(plan.keep | set(plan.add), key=port_order))
            return [("replace", whole, (*plan.remove, *plan.add))]
        most = self._capabilities.max_batch
        groups: tuple[tuple[Verb, tuple[CrossConnect, ...], int], ...] = (
            ("remove", plan.remove, self._capabilities.max_remove or most),
            ("add", plan.add, most),
        )
        batches = [
            (verb, group[start : start + size])
            for verb, group, size in groups
            for start in range(0, len(group), size)
        ]
        return [(verb, batch, batch) for verb, batch in batches]

    def _verdict(self, result: ApplyResult) -> ApplyResult:
        """Return the result if it is as planned.

        Raises the refusal if nothing was changed, else PartialApply or ReadBackMismatch with the result in
        it.
        """
        refusal = self.refusal
        if not result.deviations:
            return result
        if refusal is not None:
            if result.snapshot.revision == self._before.revision:
                raise refusal
            raise PartialApply(f"partly done: {refusal}", result) from refusal
        first = result.deviations[0]
        more = (
            f" (and {len(result.deviations) - 1} more)"
            if len(result.deviations) > 1
            else ""
        )
        raise ReadBackMismatch(
            f"{first.ingress}->{first.egress}: {first.reason}{more}", result
        )

    def _settled(self, read_back: Snapshot | None) -> Snapshot:
        """Return a reading once everything is as planned, or as late as it could still become so.

        ``read_back``: the first reading, if it came with the last write; else None.
        """
        plan, deadline, settle = self._plan, self._deadline, self._settle
        if read_back is not None:
            snapshot = self._reader.checked(read_back)
        else:
            if plan.add and settle:
                deadline.sleep_until(self._lit_by)
            snapshot = self._reader.reading(deadline)
        settled_by = (
            self._reader.written_at + self._capabilities.timing.settle_s
            if settle
            else 0.0
        )
        comes = set(plan.add)
        goes = [xc for xc in plan.remove if xc not in comes]
        while True:
            pending = any(
                snapshot.state(xc) in _PENDING for xc in (*plan.add, *plan.remove)
            )
            late = any(xc not in snapshot.cross_connects for xc in plan.add) or any(
                xc in snapshot.cross_connects for xc in goes
            )
            soon = time.monotonic() + POLL_S
            if not (pending and settle) and not (late and soon < self._lit_by):
                if late or snapshot.taken_at >= settled_by:
                    return snapshot
                soon = settled_by
            try:
                deadline.sleep_until(soon)
                snapshot = self._reader.reading(deadline)
            except DeadlineExceeded:
                # The last reading says what is still missing.
                return snapshot


def _spots(xc: CrossConnect) -> tuple[tuple[int, int | None], ...]:
    """Return port and wavelength of both ends of a cross-connect."""
    return (xc.ingress, xc.wavelength), (xc.egress, xc.wavelength)


def _touched(changed: Iterable[CrossConnect]) -> int:
    """Return the number of cross-connects that a switch handles in a write: a moved cross-connect counts
    once.
    """
    return len({(xc.ingress, xc.wavelength) for xc in changed})


def _judge(
    plan: Plan,
    after: Snapshot,
    dark_at: Mapping[tuple[int, int | None], float],
    refusal: OpticalError | None,
    settled: bool,
) -> tuple[CrossConnectResult, ...]:
    """Return the result of each cross-connect of the plan, compared with a reading."""
    why = str(refusal) if refusal is not None else ""
    results = []

    def entry(
        xc: CrossConnect,
        action: Literal["keep", "remove", "add", "foreign"],
        reason: str,
        is_lit: bool = False,
    ) -> CrossConnectResult:
        t_dark = min(
            (dark_at[spot] for spot in _spots(xc) if spot in dark_at), default=None
        )
        t_lit = (
            after.taken_at
            if is_lit and after.state(xc) is CrossConnectState.CONNECTED
            else None
        )
        return CrossConnectResult(
            xc.ingress,
            xc.egress,
            action,
            after.state(xc),
            reason,
            t_dark,
            t_lit,
            xc.name,
            xc.wavelength,
        )

    fine = {CrossConnectState.CONNECTED}
    comes = set(plan.add)
    for xc in sorted(plan.keep, key=port_order):
        state = after.state(xc)
        gone = state is CrossConnectState.ABSENT
        results.append(
            entry(xc, "keep", "vanished while others were changed" if gone else "")
        )
    for xc in plan.remove:
        if xc in comes:
            continue
        state = after.state(xc)
        gone = state is CrossConnectState.ABSENT or (
            not settled and state is CrossConnectState.PENDING_DELETION
        )
        results.append(
            entry(xc, "remove", "" if gone else why or "still there after its removal")
        )
    if not settled:
        fine.add(CrossConnectState.PENDING_CONNECTION)
    for xc in plan.add:
        state = after.state(xc)
        reason = ""
        if state in _PENDING and state not in fine:
            reason = "no light by the deadline"
        elif state not in fine:
            reason = why or f"{state} after it was made"
        results.append(entry(xc, "add", reason, is_lit=True))
    if plan.mode is Mode.REPLACE:
        for xc in sorted(
            after.cross_connects.keys() - plan.keep - set(plan.add) - set(plan.remove),
            key=port_order,
        ):
            results.append(entry(xc, "foreign", "made by someone else meanwhile"))
    for ingress in plan.absent:
        results.append(
            CrossConnectResult(ingress, None, "remove", CrossConnectState.ABSENT)
        )
    return tuple(results)
