"""Optical switches that belong to one job: their state, and setting all of them at the same time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.errors import UnavailableError
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import OpticalError, StaleRevision
from ringlight.controller.optical.model import Snapshot
from ringlight.fabric.crossconnect import CrossConnect, CrossConnectState, Mode

log = logging.getLogger(__name__)

#: Cross-connects that each switch must carry, by name.
Setting = Mapping[str, frozenset[CrossConnect]]

#: Switches written at the same time.
PARALLEL = 32
#: Longest time for one switch to do what it is told, besides what its profile declares, seconds.
WRITE_S = 10.0


class Lights:
    """Group of optical switches: their last readings, and their changes. For one thread.

    ``patience_s``: longest time in seconds for a switch to carry out a write, beyond the time that its
    profile declares.
    """

    def __init__(
        self, site: OpticalSite, switches: tuple[str, ...], patience_s: float = WRITE_S
    ) -> None:
        self._site = site
        self._patience_s = patience_s
        self._seen: dict[str, Snapshot] = {}
        #: Reason for which a switch failed its last request.
        self._failed: dict[str, str] = {}
        self._recalls: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(
            min(PARALLEL, len(switches)), thread_name_prefix="lights"
        )
        self.switches = switches
        timings = [site.driver(name).capabilities().timing for name in switches]
        #: Declared time from a write to light that stays, seconds; and of that, until the write takes effect.
        self.declared_s = max(
            (max(t.lit_after_s(1), t.settle_s) for t in timings), default=0.0
        )
        self.command_s = max(
            (t.command.most_s + t.per_cross_connect_s for t in timings), default=0.0
        )

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def carries(self, name: str) -> frozenset[CrossConnect]:
        """Return the cross-connects that pass light, as last read; empty if they are unknown."""
        seen = self._seen.get(name)
        if seen is None:
            return frozenset()
        connected = CrossConnectState.CONNECTED
        return frozenset(
            xc for xc, state in seen.cross_connects.items() if state is connected
        )

    def set(
        self,
        setting: Setting,
        *,
        exactly: bool = False,
        anew: bool = False,
        skip_failed: bool = False,
    ) -> tuple[int, list[str]]:
        """Apply a setting. Return the number of switches written, and one line for each failure.

        ``exactly``: also write switches that carry everything needed and more. ``anew``: on every switch,
        first remove the present cross-connects, then make all needed ones again. ``skip_failed``: leave out
        switches that failed before, until :meth:`recall` reaches them.
        """
        failed = dict(self._failed) if skip_failed else {}
        lacking = [
            name
            for name in self.switches
            if name not in failed
            and (
                exactly
                or not setting[name] <= self.carries(name)
                or (anew and (setting[name] or self.carries(name)))
            )
        ]
        problems = self._on_all(
            lacking, lambda name: self._write(name, setting[name], anew)
        )
        return len(lacking), [*failed.values(), *problems]

    def compare(self, setting: Setting, *, skip_failed: bool = False) -> list[str]:
        """Read every switch now. Return one line for each switch that lacks a cross-connect of the setting.

        ``skip_failed``: leave out switches that failed before.
        """

        def look(name: str) -> str | None:
            try:
                self._seen[name] = self._site.look(name, timeout_s=2.0)
            except UnavailableError as error:
                # It may still pass light; only what is read to be wrong is. The next step reads it again.
                self._lose(name, str(error))
                log.warning("%s", error)
                return None
            for xc in sorted(setting[name] - self.carries(name)):
                return f"optical switch {name}: {xc} is gone"
            return None

        failed = self._failed.keys() if skip_failed else ()
        return self._on_all(
            [name for name in self.switches if name not in failed], look
        )

    @property
    def failed(self) -> list[str]:
        """Switches that did not do the last that was asked of them."""
        return list(self._failed)

    def recall(self) -> None:
        """Have the switches that failed asked whether they answer again, while whatever else is done."""

        def ask(name: str) -> None:
            try:
                self._site.look(name, timeout_s=self._patience_s)
            except UnavailableError as error:
                self._failed[name] = str(error)
            else:
                self._failed.pop(name, None)

        for name in self.failed:
            if name not in self._recalls or self._recalls[name].done():
                self._recalls[name] = self._pool.submit(ask, name)

    def put_out(self) -> list[str]:
        """Remove all light, and close.

        Return one line for each failure. The site's cached state is updated.
        """
        try:
            _, problems = self.set(
                {name: frozenset() for name in self.switches}, exactly=True
            )
            for name, snapshot in list(self._seen.items()):
                self._site.remember(name, snapshot)
        finally:
            self.close()
        return problems

    def _on_all(
        self, names: Sequence[str], work: Callable[[str], str | None]
    ) -> list[str]:
        """Run ``work`` for every switch in parallel. Return one line for each failure."""
        # The first in this thread, which would only wait: to wake one less takes less time.
        pending = [self._pool.submit(work, name) for name in names[1:]]
        outcomes = [*map(work, names[:1]), *(other.result() for other in pending)]
        return [outcome for outcome in outcomes if outcome is not None]

    def _lose(self, name: str, why: str) -> str:
        """Forget a switch's state and remember the reason. Return the reason."""
        self._seen.pop(name, None)
        self._failed[name] = why
        return why

    def _write(
        self, name: str, cross_connects: frozenset[CrossConnect], anew: bool
    ) -> str | None:
        """Write one switch.

        Return the reason for a failure; None if the switch carries exactly what is wanted.
        """
        driver = self._site.driver(name)
        timing = driver.capabilities().timing
        # Present cross-connects may have to be removed before the others are made.
        needed_s = (
            2 * timing.lit_after_s(len(cross_connects | self.carries(name)))
            + timing.settle_s
        )
        deadline = Deadline(self._patience_s + needed_s)
        try:
            for last in (False, True):
                seen = self._seen.pop(name, None) or self._site.look(
                    name, timeout_s=deadline.check()
                )
                plan = driver.plan(
                    cross_connects, Mode.REPLACE, snapshot=seen, anew=anew
                )
                try:
                    if plan:
                        seen = self._site.apply(
                            name, plan, timeout_s=deadline.check()
                        ).snapshot
                except StaleRevision:
                    # Somebody else wrote, or the switch has lost its light: read it anew, once.
                    if last:
                        raise
                    continue
                self._seen[name] = seen
                self._failed.pop(name, None)
                break
        except UnavailableError as error:
            return self._lose(name, str(error))
        except OpticalError as error:
            return self._lose(name, f"optical switch {name}: {error}")
        return None
