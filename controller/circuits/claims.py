"""Claims: GPUs that belong together without a job of ours, such as those of a scheduler's job.

A claim reserves its GPUs, and light brings them to as few packet switches as it can. The GPUs of other claims and
of jobs keep their places; idle GPUs give way. Claims are kept over restarts, until they are released.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.generation import LightMovedError
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.planner import UNKNOWN_BYTES, Planned, Planner
from ringlight.controller.errors import ConflictError, ControllerError, NotFoundError
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import (
    CLAIM,
    Holder,
    Reservations,
    reserve,
)
from ringlight.controller.packets.attachment import ports_by_node
from ringlight.controller.store import Store
from ringlight.fabric.cost import RingJob
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_CLAIMS = "claims"
#: Plans that are made for one claim while others keep changing the light.
_MOST_PLANS = 10
#: Longest wait for the plans of others, seconds.
_TURN_S = 60.0
#: Longest wait for changes under way when the controller ends, seconds.
_STOP_S = 30.0
#: Failed claims that are remembered, the oldest forgotten first.
_FAILED = 100
#: Longest time between two looks at the claims, seconds: a GPU may have come back while no controller ran.
_LOOK_S = 1.0

ClaimState = Literal[
    "ACTIVATING", "ACTIVE", "ACTIVE_DEGRADED", "FAILED", "DEACTIVATING"
]


@dataclass(frozen=True)
class Claim:
    """Claim of some GPUs, in ring order, by which they are brought together whatever the ``collective``.

    ``state``: ACTIVATING while light moves; ACTIVE; ACTIVE_DEGRADED if a GPU is lost or dark; FAILED;
    DEACTIVATING. ``reason``: why it is degraded or failed. ``undone``: it failed, and the light is as before.
    ``fibres_moved``: for this claim. ``asked_s`` and ``active_s``: CLOCK_MONOTONIC seconds, null if it never
    was active. ``job``: the job whose claim it is.
    """

    name: str
    gpus: tuple[str, ...]
    collective: str
    state: ClaimState
    asked_s: float
    reason: str | None = None
    undone: bool = False
    fibres_moved: int = 0
    active_s: float | None = None
    job: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClaimDocument(Claim):
    """Claim as it is now. ``attached``: ports of packet switches by GPU, of the light's ``generation``."""

    attached: dict[str, list[str]]
    generation: int


_STORED = TypeAdapter(Claim)


class ClaimManager:
    """Owner of the claims of a fabric. Any thread may call."""

    def __init__(
        self,
        fabric: Fabric,
        circuits: CircuitManager,
        planner: Planner,
        jobs: JobManager,
        bus: EventBus,
        store: Store,
        reservations: Reservations,
    ) -> None:
        self._fabric, self._circuits, self._jobs = fabric, circuits, jobs
        self._reservations = reservations
        reservations.add(CLAIM, self.holders)
        self._planner, self._bus, self._store = planner, bus, store
        self._changed = threading.Condition()
        self._claims: dict[str, Claim] = {}
        #: A line for each stored claim that cannot be used.
        self.set_aside: list[str] = []
        #: The stored claims themselves, which are kept.
        self._aside: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._looks = threading.Event()
        self._subscription = bus.subscribe(wake=self._looks.set)
        self._watch = threading.Thread(target=self._run, name="claims", daemon=True)

    # Life

    def take_over(self) -> None:
        """Take over the claims of an earlier run; the circuit manager has ended an interrupted change.

        A stored claim that is none of this fabric is set aside.
        """
        for record in (self._store.read(_CLAIMS) or {"claims": []})["claims"]:
            try:
                claim = _STORED.validate_python(record)
                if unknown := set(claim.gpus) - self._fabric.gpus.keys():
                    raise ValueError(f"there is no GPU {min(unknown)}")
            except (ValidationError, ValueError) as error:
                log.error("a stored claim cannot be used: %s: %s", record, error)
                line = str(error).splitlines()[0]
                self.set_aside.append(f"a stored claim cannot be used: {line}")
                self._aside.append(record)
                continue
            self._claims[claim.name] = claim

    def start(self) -> None:
        """End what the end of a controller cut short, now that jobs are known, and begin to watch."""
        with self._changed:
            for claim in list(self._claims.values()):
                if claim.state == "DEACTIVATING":
                    self._drop(claim)
                elif claim.state == "ACTIVATING":
                    self._keep(self._after_a_restart(claim))
        self._watch.start()

    def _after_a_restart(self, claim: Claim) -> Claim:
        try:
            planned = self._plan(claim)
        except ValueError as error:
            return replace(claim, state="FAILED", reason=str(error))
        if planned.moves.moved:
            reason = (
                "the controller ended meanwhile, and the light is not as it was planned"
            )
            return replace(claim, state="FAILED", reason=reason)
        return replace(claim, state="ACTIVE", active_s=time.monotonic())

    def stop(self) -> None:
        """Wait for a change under way, and end the watch. The claims stay."""
        with self._changed:
            self._stopping = True
            threads = [*self._threads, self._watch]
        self._subscription.close()
        self._looks.set()
        deadline = time.monotonic() + _STOP_S
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    # Requests

    def claim(
        self,
        name: str,
        gpus_or_count: Sequence[str] | int,
        *,
        collective: str,
        wait_s: float,
        who: str,
    ) -> ClaimDocument:
        """Reserve GPUs and have light bring them together. Return the claim, after at most ``wait_s`` seconds.

        ``gpus_or_count``: GPUs in ring order, or their number. Raises InvalidError for GPUs that this fabric
        does not have or light does not move; ConflictError if one is lost or taken, or the name is.
        """
        with self._reservations.choosing, self._changed:
            known = self._claims.get(name)
            if known is not None and known.state != "FAILED":
                raise ConflictError(f"there is a claim {name}")
            if any(job.id == name for job in self._jobs.running()):
                raise ConflictError(f"there is a job {name}")
            claim = Claim(
                name,
                self._reserved(gpus_or_count),
                collective,
                "ACTIVATING",
                time.monotonic(),
            )
            self._keep(claim)
            thread = threading.Thread(
                target=self._activate,
                args=(claim, who),
                name=f"claim {name}",
                daemon=True,
            )
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._claims.get(name) is not claim, wait_s)
            # A claim that was released meanwhile is as its release left it.
            return self._shown(
                self._claims.get(name, replace(claim, state="DEACTIVATING"))
            )

    def _reserved(self, gpus_or_count: Sequence[str] | int) -> tuple[str, ...]:
        """Return the GPUs of a claim, which are free. The caller holds the locks."""
        lost = self._jobs.lost_gpus
        gpus = reserve(
            self._fabric.packet_gpus,
            self._reservations.holders(),
            self._jobs.switches(),
            gpus_or_count,
            out=lost,
            place="gpus[{}]",
        )
        if gone := [gpu for gpu in gpus if gpu in lost]:
            raise ConflictError(f"GPU {gone[0]} is lost")
        return gpus

    def release(self, name: str) -> ClaimDocument:
        """Release a claim; light stays as it is. Return the claim. Raises NotFoundError, and ConflictError for
        the claim of a job, which ends with its job.

        If its light moves, the claim is DEACTIVATING, and keeps its GPUs, until the light has moved.
        """
        with self._changed:
            if name not in self._claims:
                if any(job.id == name for job in self._jobs.running()):
                    raise ConflictError(
                        f"claim {name} belongs to a job; cancel the job"
                    )
                raise NotFoundError(f"there is no claim {name}")
            claim = self._claims[name]
            leaving = replace(claim, state="DEACTIVATING")
            if claim.state in ("ACTIVATING", "DEACTIVATING"):
                self._keep(leaving)
            else:
                self._drop(leaving)
            return self._shown(leaving)

    def get(self, name: str) -> ClaimDocument:
        """Return a claim as it is now, of a job or another. Raises NotFoundError."""
        named = [claim for claim in self.all() if claim.name == name]
        if not named:
            raise NotFoundError(f"there is no claim {name}")
        # A job may have the name of a claim that failed.
        return min(named, key=lambda claim: claim.state == "FAILED")

    def all(self) -> list[ClaimDocument]:
        """Return all claims, those of jobs last."""
        with self._changed:
            own = list(self._claims.values())
        jobs = [job for job in self._jobs.running() if job.plane is None]
        return [self._shown(claim) for claim in (*own, *map(self._of_job, jobs))]

    def _of_job(self, job: Job) -> Claim:
        """Return the claim that a job on packet switches is, for as long as it has GPUs."""
        begun = job.state not in (JobState.PENDING, JobState.STARTING)
        reason = self._reason(job.gpus) if begun else None
        active: ClaimState = "ACTIVE" if reason is None else "ACTIVE_DEGRADED"
        return Claim(
            job.id,
            tuple(job.gpus),
            str(job.spec.get("collective", "ring")),
            active if begun else "ACTIVATING",
            job.t_submitted,
            reason=reason,
            active_s=job.t_submitted if begun else None,
            job=job.id,
        )

    def holders(self) -> dict[str, str]:
        """Return the claim of each claimed GPU; jobs' claims are not among them."""
        with self._changed:
            return {
                gpu: claim.name
                for claim in self._claims.values()
                if claim.state != "FAILED"
                for gpu in claim.gpus
            }

    def _shown(self, claim: Claim) -> ClaimDocument:
        """Return a claim with where its GPUs are now."""
        ports = ports_by_node(self._circuits.ends())
        attached = {gpu: ports.get(gpu, []) for gpu in claim.gpus}
        generation = self._circuits.generation()
        return ClaimDocument(**vars(claim), attached=attached, generation=generation)

    # Light

    def _activate(self, claim: Claim, who: str) -> None:
        try:
            with self._planner.turn(_TURN_S):
                with self._changed:
                    goes_on = self._is_current(claim) and not self._stopping
                outcome = None
                if goes_on:
                    outcome = self._together(claim, f"{who}, claim {claim.name}")
                self._settle(claim, outcome)
        except ConflictError as error:
            self._settle(claim, (str(error), True, 0))
        self._looks.set()

    def _is_current(self, claim: Claim) -> bool:
        return self._claims.get(claim.name) is claim

    def _settle(
        self, claim: Claim, outcome: tuple[str | None, bool, int] | None
    ) -> None:
        """End the activation of a claim, or leave it to the next controller.

        ``outcome``: see :meth:`_together`; None if light was not moved.
        """
        with self._changed:
            if not self._is_current(claim):
                # Released meanwhile; another claim may have the name by now.
                now = self._claims.get(claim.name)
                if now is not None and now.asked_s == claim.asked_s:
                    self._drop(now)
                return
            if outcome is None:
                return
            reason, undone, fibres = outcome
            self._keep(
                replace(
                    claim,
                    state="ACTIVE" if reason is None else "FAILED",
                    reason=reason,
                    undone=undone,
                    fibres_moved=fibres,
                    active_s=time.monotonic() if reason is None else None,
                )
            )

    def _together(self, claim: Claim, who: str) -> tuple[str | None, bool, int]:
        """Move light for a claim. Return why that failed, if the light is as before, and the fibres moved."""
        try:
            for _ in range(_MOST_PLANS):
                planned = self._plan(claim)
                if not planned.moves.moved:
                    return None, False, 0
                try:
                    change = self._planner.move(planned, who)
                except LightMovedError:
                    continue
                if change.problems:
                    return change.problems[0], change.undone, 0
                return None, False, len(planned.moves.moved)
        except (ControllerError, ValueError) as error:
            return str(error), True, 0
        except Exception as error:
            log.exception("claim %s", claim.name)
            return f"internal error: {error}", False, 0
        return f"the light changed {_MOST_PLANS} times while it was planned", True, 0

    def _plan(self, claim: Claim) -> Planned:
        """Return the plan that brings a claim's GPUs together. Raises ValueError if nothing can."""
        own = Holder(CLAIM, claim.name)
        holders = self._reservations.holders()
        taken = {gpu for gpu, holder in holders.items() if holder != own}
        ring = RingJob.all_reduce(claim.name, claim.gpus, float(UNKNOWN_BYTES), 0.0)
        return self._planner.plan([ring], taken)

    # State

    def _run(self) -> None:
        """Look at the claims whenever the light or a GPU may be otherwise than before."""
        while True:
            self._looks.wait(_LOOK_S)
            self._looks.clear()
            if self._stopping:
                return
            self._subscription.take()
            try:
                with self._changed:
                    for claim in list(self._claims.values()):
                        if claim.state in ("ACTIVE", "ACTIVE_DEGRADED"):
                            self._judge(claim)
            except Exception:
                # The watch must outlive whatever one look ran into.
                log.exception("a look at the claims failed")

    def _judge(self, claim: Claim) -> None:
        """Take in whether all GPUs of an active claim are there and have light. The caller holds the lock."""
        reason = self._reason(claim.gpus)
        if reason != claim.reason:
            state: ClaimState = "ACTIVE_DEGRADED" if reason else "ACTIVE"
            self._keep(replace(claim, state=state, reason=reason))

    def _reason(self, gpus: Sequence[str]) -> str | None:
        """Return why GPUs that belong together are degraded; None if they are not."""
        lost = self._jobs.lost_gpus
        reached = ports_by_node(self._circuits.ends())
        reasons = [
            f"GPU {gpu} {'is lost' if gpu in lost else 'has no light'}"
            for gpu in gpus
            if gpu in lost or gpu not in reached
        ]
        return "; ".join(reasons) or None

    def _keep(self, claim: Claim) -> None:
        """Store a claim and tell of it. The caller holds the lock.

        A claim that is new and cannot be stored is none: then it raises OSError.
        """
        before = self._claims.get(claim.name)
        self._claims[claim.name] = claim
        failed = [
            name for name, known in self._claims.items() if known.state == "FAILED"
        ]
        for name in failed[: max(0, len(failed) - _FAILED)]:
            del self._claims[name]
        try:
            self._save()
        except OSError as error:
            if before is None or before.state == "FAILED":
                del self._claims[claim.name]
                if before is not None:
                    self._claims[claim.name] = before
                raise
            # The next controller looks at the light.
            log.error("claim %s is not stored: %s", claim.name, error)
        self._publish(claim)
        self._changed.notify_all()

    def _drop(self, leaving: Claim) -> None:
        """Remove a claim that has been released, and tell of it. The caller holds the lock."""
        self._claims.pop(leaving.name, None)
        try:
            self._save()
        except OSError as error:
            log.error("the release of claim %s is not stored: %s", leaving.name, error)
        self._publish(replace(leaving, state="DEACTIVATING", gpus=()))
        self._changed.notify_all()

    def _save(self) -> None:
        stored = [asdict(claim) for claim in self._claims.values()]
        self._store.write(_CLAIMS, {"claims": [*self._aside, *stored]})

    def _publish(self, claim: Claim) -> None:
        self._bus.publish(
            "claim",
            claim=claim.name,
            gpus=list(claim.gpus),
            state=claim.state,
            reason=claim.reason,
            undone=claim.undone,
        )
