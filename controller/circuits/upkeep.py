"""Keep each optical switch as it should be, by its policy, and say where one is not."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.announcing import Announcer
from ringlight.controller.circuits.change import marker, pairs_of
from ringlight.controller.circuits.drift import Drift, Mending, Policy, drift, mending
from ringlight.controller.circuits.intent import IntentDatabase, on_disk
from ringlight.controller.circuits.light_writer import LightWriter
from ringlight.controller.circuits.optical_site import OpticalSite
from ringlight.controller.circuits.transaction import standing
from ringlight.controller.optical.model import Snapshot

log = logging.getLogger(__name__)

#: Pause before a switch that did not do what it should is asked again, seconds.
_RETRY_S = 5.0
#: Names in the audit log for changes that no caller made.
RECONCILER, OUTSIDE = "reconciler", "outside"


class Upkeep:
    """Differences between switches and the intent: which were told, and when each is tried again.

    The caller holds off changes meanwhile.
    """

    def __init__(
        self,
        site: OpticalSite,
        intents: IntentDatabase,
        bus: EventBus,
        writer: LightWriter,
        announcer: Announcer,
    ) -> None:
        self._site, self._intents, self._bus = site, intents, bus
        self._writer, self._announcer = writer, announcer
        self._retry_at: dict[str, float] = {}
        #: The difference that was last told of, by switch.
        self._drifts: dict[str, Drift] = {}

    def retry_now(self, name: str) -> None:
        """Try a switch again without waiting."""
        self._retry_at.pop(name, None)

    def judge_anew(self) -> None:
        """Judge differences again that were reported under another policy."""
        self._drifts.clear()
        self._retry_at.clear()

    def after_change(self, name: str, failure: str | None) -> None:
        """Take in what a switch carries after a change of it, which failed there or did not."""
        difference = self.drift(name)
        if failure is not None and (difference or not self._site.view(name).reachable):
            # Ours, and told; a switch that is away is compared when it is back.
            self._drifts[name] = difference
            self._retry_at[name] = time.monotonic() + _RETRY_S
            self._site.complain(name, f"does not carry what it should: {failure}")
        elif not difference:
            self._settle(name)

    def drift(self, name: str) -> Drift:
        """Return the difference between a switch, as last read, and what it should carry; empty if it was
        never read.
        """
        snapshot = self._site.view(name).snapshot
        if snapshot is None:
            return Drift()
        intended = (self._intents.intended() or {}).get(name, frozenset())
        return drift(intended, self._intents.unwanted(name), snapshot)

    def is_as_intended(self, name: str) -> bool:
        """Return whether a switch, as last read, needs no reconciling and its published drift is up to
        date.

        Also true of a switch that is kept for a job or cannot be reached.
        """
        view = self._site.view(name)
        if self._site.holder(name) is not None or not view.reachable:
            return True
        difference = self.drift(name)
        if not difference:
            return (
                name not in self._drifts
                and view.complaint is None
                and not self._intents.unwanted(name)
            )
        if difference != self._drifts.get(name):
            return False
        # Told; what is worth another attempt is tried again after a while.
        acts = self._intents.policy(name) in (Policy.MEND, Policy.REPAIR)
        return not acts or time.monotonic() < self._retry_at.get(name, 0.0)

    def reconcile(
        self,
        name: str,
        policy: Policy,
        *,
        who: str = RECONCILER,
        at_start: bool = False,
        tells: bool = True,
    ) -> None:
        """Apply a policy to a switch's difference, as last read. The caller holds the lock.

        ``tells``: publish a difference as an event; false for light that was never set.
        """
        view = self._site.view(name)
        # A job's light changes all the time; its provider knows what should be lit. Of a switch that cannot
        # be read nothing is known: it is compared when it is back.
        if (
            self._site.holder(name) is not None
            or view.snapshot is None
            or not view.reachable
        ):
            return
        difference = self.drift(name)
        if at_start:
            difference = replace(
                difference,
                foreign=difference.foreign if difference.missing else frozenset(),
            )
        if tells and difference and difference != self._drifts.get(name):
            self._tell(name, difference, policy)
        if not difference:
            self._settle(name)
        elif policy is Policy.ADOPT:
            self._take_as_intent(name, view.snapshot, difference, who)
        elif policy is Policy.ALARM:
            self._site.complain(name, f"is not as it should be: {difference}")
            self._site.remark(name, None)
        else:
            job = mending(difference, view.snapshot, exactly=policy is Policy.REPAIR)
            if job.plan and time.monotonic() >= self._retry_at.get(name, 0.0):
                self._mend(name, job, policy, view.snapshot, who)
            elif not job.plan:
                self._judge(name, job, None)

    def _tell(self, name: str, difference: Drift, policy: Policy) -> None:
        """Say once that a switch differs from what it should be."""
        self._drifts[name] = difference
        self._retry_at.pop(name, None)
        fields = {
            key: [str(xc) for xc in sorted(group)]
            for key, group in vars(difference).items()
            if group
        }
        log.warning("%s: %s", name, difference)
        self._bus.publish(
            "drift", switch=name, policy=policy.value, text=str(difference), **fields
        )
        self._site.meters.drifts.labels(name, policy.value).inc()
        self._intents.try_note(
            OUTSIDE, "drift", name, "seen", policy=policy.value, **fields
        )

    def _settle(self, name: str) -> None:
        """Clear the alarms of a switch that carries what it should and nothing else."""
        if self._drifts.pop(name, None) is not None:
            self._bus.publish("drift_over", switch=name)
        self._retry_at.pop(name, None)
        self._site.complain(name, None)
        self._site.remark(name, None)
        if unwanted := self._intents.unwanted(name):
            with on_disk():
                self._intents.gone(name, unwanted)

    def _take_as_intent(
        self, name: str, now: Snapshot, difference: Drift, who: str
    ) -> None:
        with on_disk():
            with self._intents.writing():
                self._intents.save({name: standing(now) - now.foreign})
                self._intents.note(who, "adopt", name, text=str(difference))
            self._settle(name)

    def _mend(
        self, name: str, job: Mending, policy: Policy, now: Snapshot, who: str
    ) -> None:
        log.info(
            "%s: %d to remove, %d to make",
            name,
            len(job.plan.remove),
            len(job.plan.add),
        )
        timeline: list[Mapping[str, Any]] = []
        began = time.monotonic()
        self._announcer.begin()
        made = self._writer.carry_out({name: job.plan}, {name: now}, marker(timeline))
        problem = made.failed.get(name) or next(iter(made.rules), None)
        outcome = "done" if problem is None else "failed"
        self._announcer.count(outcome, began)
        detail = pairs_of(job.plan)
        self._intents.try_note(
            who,
            policy.value,
            name,
            outcome,
            **detail,
            **({"text": problem} if problem else {}),
        )
        self._announcer.publish(
            {name: job.plan},
            timeline,
            [problem] if problem else [],
            outcome,
            who,
            made.results,
        )
        self._retry_at.pop(name, None)
        self._judge(name, job, made.failed.get(name))

    def _judge(self, name: str, job: Mending, problem: str | None) -> None:
        """Say what is still not as it should be after an attempt to mend a switch."""
        difference = self.drift(name)
        if not difference:
            self._settle(name)
            return
        self._drifts[name] = difference
        if self._retry_at.get(name, 0.0) <= time.monotonic():
            self._retry_at[name] = time.monotonic() + _RETRY_S
        why = problem or next(
            (f"{xc}: {reason}" for xc, reason in sorted(job.cannot.items())), None
        )
        lacking = difference.missing or difference.broken or difference.left
        self._site.complain(
            name,
            f"does not carry what it should: {why or difference}"
            if lacking or problem
            else None,
        )
        self._site.remark(
            name, str(Drift(foreign=difference.foreign)) if difference.foreign else None
        )
