"""Claims: GPUs that belong together without a job of ours, such as those of a scheduler's job.

A claim reserves its GPUs, and light brings them to as few packet switches as it can. The GPUs of other claims and
of jobs keep their places; idle GPUs give way. Claims are kept over restarts, until they are released.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import TypedDict

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.change import Change, Target
from ringlight.controller.circuits.generation import LightMovedError
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.regroup import UNKNOWN_BYTES
from ringlight.controller.circuits.regroup_plan import moved_circuits
from ringlight.controller.errors import ConflictError, ControllerError, NotFoundError
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import reserve
from ringlight.controller.store import Store
from ringlight.fabric.cost import RingJob
from ringlight.fabric.crossconnect import Mode
from ringlight.fabric.placement import Regrouping
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_CLAIMS = "claims"
#: Plans that are made for one claim while others keep changing the light.
_MOST_PLANS = 10
#: Events after which a claim may be in another state.
_TELLING = {"gpu", "circuits", "drift", "drift_over", "optical_switch"}

ClaimState = Literal[
    "ACTIVATING", "ACTIVE", "ACTIVE_DEGRADED", "FAILED", "DEACTIVATING"
]


class ClaimDocument(TypedDict):
    """Claim of some GPUs.

    ``state``: ACTIVATING while light moves; ACTIVE; ACTIVE_DEGRADED if a GPU is lost or dark; FAILED;
    DEACTIVATING. ``reason``: why it is degraded or failed. ``undone``: it failed, and the light is as before.
    ``attached``: ports of packet switches by GPU. ``fibres_moved``: for this claim. ``asked_s`` and
    ``active_s``: CLOCK_MONOTONIC seconds, null if it never was active. ``job``: the job whose claim it is.
    """

    name: str
    gpus: list[str]
    collective: str
    state: ClaimState
    reason: str | None
    undone: bool
    fibres_moved: int
    generation: int
    attached: dict[str, list[str]]
    asked_s: float
    active_s: float | None
    job: str | None


class ClaimManager:
    """Owner of the claims of a fabric. One is activated at a time. Any thread may call."""

    def __init__(
        self,
        fabric: Fabric,
        circuits: CircuitManager,
        jobs: JobManager,
        bus: EventBus,
        store: Store,
    ) -> None:
        self._fabric, self._circuits, self._jobs = fabric, circuits, jobs
        self._bus, self._store = bus, store
        self._changed = threading.Condition()
        self._activating = threading.Lock()
        self._claims: dict[str, ClaimDocument] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._looks = threading.Event()
        self._subscription = bus.subscribe(wake=self._looks.set)
        self._watch = threading.Thread(target=self._run, name="claims", daemon=True)

    # Life

    def take_over(self) -> None:
        """Take over the claims of an earlier run; the circuit manager has ended an interrupted change."""
        for claim in (self._store.read(_CLAIMS) or {"claims": []})["claims"]:
            if claim["state"] == "DEACTIVATING":
                continue
            if claim["state"] == "ACTIVATING":
                claim = self._after_a_restart(claim)
            self._claims[claim["name"]] = claim
        self._watch.start()

    def _after_a_restart(self, claim: ClaimDocument) -> ClaimDocument:
        try:
            plan, _ = self._plan(claim, self._circuits.light()[1])
        except ValueError as error:
            return {**claim, "state": "FAILED", "reason": str(error)}
        if plan.moved:
            reason = (
                "the controller ended meanwhile, and the light is not as it was planned"
            )
            return {**claim, "state": "FAILED", "reason": reason}
        return {**claim, "state": "ACTIVE", "active_s": time.monotonic()}

    def stop(self) -> None:
        """Wait for a change under way, and end the watch. The claims stay."""
        with self._changed:
            self._stopping = True
            threads = [*self._threads, self._watch]
        self._subscription.close()
        self._looks.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join(30.0)

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
        with self._jobs.choosing, self._changed:
            if name in self._claims and self._claims[name]["state"] != "FAILED":
                raise ConflictError(f"there is a claim {name}")
            claim: ClaimDocument = {
                "name": name,
                "gpus": list(self._reserved(gpus_or_count)),
                "collective": collective,
                "state": "ACTIVATING",
                "reason": None,
                "undone": False,
                "fibres_moved": 0,
                "generation": self._circuits.generation(),
                "attached": {},
                "asked_s": time.monotonic(),
                "active_s": None,
                "job": None,
            }
            self._keep(claim)
        thread = threading.Thread(
            target=self._activate, args=(name, who), name=f"claim {name}", daemon=True
        )
        with self._changed:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
            self._changed.wait_for(
                lambda: self._claims[name]["state"] != "ACTIVATING", wait_s
            )
        return self.get(name)

    def _reserved(self, gpus_or_count: Sequence[str] | int) -> tuple[str, ...]:
        """Return the GPUs of a claim, which are free. The caller holds the locks."""
        lost, claimed = self._jobs.lost_gpus, self.holders()
        movable = [gpu for gpu in self._fabric.gpus if gpu not in self._fabric.onics]
        if isinstance(gpus_or_count, int):
            movable = [gpu for gpu in movable if gpu not in lost and gpu not in claimed]
        else:
            for gpu in gpus_or_count:
                if gpu in claimed:
                    raise ConflictError(f"GPU {gpu} belongs to claim {claimed[gpu]}")
                if gpu in lost:
                    raise ConflictError(f"GPU {gpu} is lost")
        return reserve(
            movable, self._jobs.holders(), self._jobs.switches(), gpus_or_count
        )

    def release(self, name: str) -> ClaimDocument:
        """Release a claim; light stays as it is. Return the claim. Raises NotFoundError."""
        with self._changed:
            claim = self._found(name)
            leaving: ClaimDocument = {**claim, "state": "DEACTIVATING"}
            self._keep(leaving)
        # A change of light for it comes to its end first.
        with self._activating, self._changed:
            if self._claims.get(name) is leaving:
                del self._claims[name]
                self._save()
                self._publish({**leaving, "gpus": []})
        return leaving

    def get(self, name: str) -> ClaimDocument:
        """Return a claim as it is now. Raises NotFoundError."""
        with self._changed:
            return self._shown(self._found(name))

    def all(self) -> list[ClaimDocument]:
        """Return all claims, those of jobs last."""
        with self._changed:
            own = [self._shown(claim) for claim in self._claims.values()]
        jobs = [job for job in self._jobs.running() if job.plane is None]
        return [*own, *(self._shown(self._of_job(job)) for job in jobs)]

    def _of_job(self, job: Job) -> ClaimDocument:
        """Return the claim that a job on packet switches is, for as long as it has GPUs."""
        lost = [gpu for gpu in job.gpus if gpu in self._jobs.lost_gpus]
        begun = job.state not in (JobState.PENDING, JobState.STARTING)
        active: ClaimState = "ACTIVE_DEGRADED" if lost else "ACTIVE"
        return {
            "name": job.id,
            "gpus": list(job.gpus),
            "collective": str(job.spec.get("collective", "ring")),
            "state": active if begun else "ACTIVATING",
            "reason": "; ".join(f"GPU {gpu} is lost" for gpu in lost) or None,
            "undone": False,
            "fibres_moved": 0,
            "generation": 0,
            "attached": {},
            "asked_s": job.t_submitted,
            "active_s": None,
            "job": job.id,
        }

    def holders(self) -> dict[str, str]:
        """Return the claim of each claimed GPU; jobs' claims are not among them."""
        with self._changed:
            return {
                gpu: claim["name"]
                for claim in self._claims.values()
                if claim["state"] != "FAILED"
                for gpu in claim["gpus"]
            }

    def _found(self, name: str) -> ClaimDocument:
        if name not in self._claims:
            raise NotFoundError(f"there is no claim {name}")
        return self._claims[name]

    def _shown(self, claim: ClaimDocument) -> ClaimDocument:
        """Return a claim with where its GPUs are now."""
        attached: dict[str, list[str]] = {gpu: [] for gpu in claim["gpus"]}
        for port, end in sorted(self._circuits.ends().items()):
            if end is not None and end.node in attached:
                attached[end.node].append(str(port))
        generation = self._circuits.generation()
        return {**claim, "attached": attached, "generation": generation}

    # Light

    def _activate(self, name: str, who: str) -> None:
        with self._activating:
            with self._changed:
                claim = self._claims.get(name)
            if claim is None or claim["state"] != "ACTIVATING":
                return
            reason, undone, fibres = self._together(claim, f"{who}, claim {name}")
            with self._changed:
                # Released meanwhile: the release goes on once this change has ended.
                if self._claims.get(name) is not claim:
                    return
                active: ClaimDocument = {
                    **claim,
                    "state": "ACTIVE" if reason is None else "FAILED",
                    "reason": reason,
                    "undone": undone,
                    "fibres_moved": fibres,
                    "active_s": time.monotonic() if reason is None else None,
                }
                self._keep(active)
        self._looks.set()

    def _together(self, claim: ClaimDocument, who: str) -> tuple[str | None, bool, int]:
        """Move light for a claim. Return why that failed, if the light is as before, and the fibres moved."""
        try:
            for _ in range(_MOST_PLANS):
                generation, before = self._circuits.light()
                plan, after = self._plan(claim, before)
                if not plan.moved:
                    return None, False, 0
                targets = {
                    name: Target(tuple(group), Mode.REPLACE)
                    for name, group in after.items()
                    if group != before[name]
                }
                try:
                    change: Change = self._circuits.change(
                        targets, who=who, expect=generation
                    )
                except LightMovedError:
                    continue
                if change.problems:
                    return change.problems[0], change.undone, 0
                return None, False, len(plan.moved)
        except (ControllerError, ValueError) as error:
            return str(error), True, 0
        except Exception as error:
            log.exception("claim %s", claim["name"])
            return f"internal error: {error}", False, 0
        return f"the light changed {_MOST_PLANS} times while it was planned", True, 0

    def _plan(
        self, claim: ClaimDocument, before: Mapping[str, frozenset[Any]]
    ) -> tuple[Regrouping, Mapping[str, frozenset[Any]]]:
        """Return the moves that bring a claim's GPUs together. Raises ValueError if nothing can."""
        taken = {gpu for gpu, other in self.holders().items() if other != claim["name"]}
        taken |= self._jobs.holders().keys()
        ring = RingJob.all_reduce(
            claim["name"], claim["gpus"], float(UNKNOWN_BYTES), 0.0
        )
        movable: Collection[str] = [
            gpu
            for gpu in self._fabric.gpus
            if gpu not in taken and gpu not in self._fabric.onics
        ]
        return moved_circuits(self._fabric, before, [ring], movable)

    # State

    def _run(self) -> None:
        """Look at the claims whenever the light or a GPU may be otherwise than before."""
        while True:
            self._looks.wait()
            self._looks.clear()
            if self._stopping:
                return
            self._subscription.take()
            with self._changed:
                for claim in list(self._claims.values()):
                    if claim["state"] in ("ACTIVE", "ACTIVE_DEGRADED"):
                        self._judge(claim)

    def _judge(self, claim: ClaimDocument) -> None:
        """Take in whether all GPUs of an active claim are there and have light. The caller holds the lock."""
        lost, attached = self._jobs.lost_gpus, self._shown(claim)["attached"]
        reasons = [
            f"GPU {gpu} {'is lost' if gpu in lost else 'has no light'}"
            for gpu in claim["gpus"]
            if gpu in lost or not attached[gpu]
        ]
        reason = "; ".join(reasons) or None
        if reason != claim["reason"]:
            state: ClaimState = "ACTIVE_DEGRADED" if reason else "ACTIVE"
            self._keep({**claim, "state": state, "reason": reason})

    def _keep(self, claim: ClaimDocument) -> None:
        """Store a claim and tell of it. The caller holds the lock."""
        self._claims[claim["name"]] = claim
        self._save()
        self._publish(claim)
        self._changed.notify_all()

    def _save(self) -> None:
        self._store.write(_CLAIMS, {"claims": list(self._claims.values())})

    def _publish(self, claim: ClaimDocument) -> None:
        fields = ("gpus", "state", "reason", "undone")
        self._bus.publish(
            "claim",
            claim=claim["name"],
            **{key: claim[key] for key in fields},  # type: ignore[literal-required]
        )
