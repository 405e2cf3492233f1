"""Plan regroupings, and carry them out while the jobs run."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.circuits.planner import UNKNOWN_BYTES, Planned, Planner
from ringlight.controller.circuits.transaction import LeftoverDocument
from ringlight.controller.errors import ControllerError, InvalidError, NotFoundError
from ringlight.controller.jobs.job import Job, guest_of
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import JOB, Reservations
from ringlight.controller.optical.model import CrossConnectResult
from ringlight.controller.packets.attachment import attachments
from ringlight.controller.store import Store
from ringlight.fabric.cost import RingJob, predict
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.parts import Port
from ringlight.fabric.paths import PacketView
from ringlight.fabric.topology import (
    CrossConnects,
    Fabric,
    port_name,
)

log = logging.getLogger(__name__)

#: The regroupings and plans that are remembered, the oldest forgotten first.
KEPT = 1000
#: Longest wait for other planned light, seconds.
_TURN_S = 20.0
#: Prefix of the names of regroupings, and of their stored documents.
_NAME = "regroup-"


#: A GPU, and the ports that its light leaves (None: it has none) and gets.
Move = TypedDict("Move", {"gpu": str, "from": str | None, "to": str})


class Predicted(TypedDict):
    """Predicted seconds per iteration, as emulated; None if a rank has no light."""

    job: str
    before_s: float | None
    after_s: float | None


class RegroupPair(TypedDict):
    ingress: int
    egress: int
    name: str | None


class RegroupCrossConnects(TypedDict):
    remove: list[RegroupPair]
    add: list[RegroupPair]


class RegroupPlan(TypedDict):
    """``crossing_bytes``: what passes between packet switches in an iteration."""

    moves: list[Move]
    stay_lit: list[list[str]]
    circuits: list[list[str]]
    crossing_bytes_before: float
    crossing_bytes_after: float
    fibres_moved: int
    optimal: bool
    predicted: list[Predicted]
    cross_connects: dict[str, RegroupCrossConnects]


class RegroupDocument(TypedDict):
    """Document of a regrouping.

    ``timeline``: moments ``t`` of the change (monotonic seconds), each with its ``phase``.
    ``unchanged``: reason for which no fibre moves; null if one does.
    ``left_to_others``: controllers of packet switches at which light moves and whose tables are not written
    here, by switch; packets pass again once these controllers have followed.
    """

    id: str
    state: Literal["PLANNED", "APPLYING", "DONE", "FAILED"]
    jobs: list[str]
    dry_run: bool
    plan: RegroupPlan
    timeline: list[Mapping[str, Any]]
    problems: list[str]
    results: dict[str, list[CrossConnectResult]]
    undone: bool
    left: list[LeftoverDocument]
    left_to_others: dict[str, str]
    unchanged: str | None
    error: str | None


class RegroupManager:
    """Plans and applies regroupings. They are kept in the store over restarts.

    ``rate_divisor``: the emulated rate of a link is its real rate divided by this.
    """

    def __init__(
        self,
        fabric: Fabric,
        circuits: CircuitManager,
        planner: Planner,
        jobs: JobManager,
        bus: EventBus,
        store: Store,
        reservations: Reservations,
        *,
        rate_divisor: float = 1.0,
    ) -> None:
        self._fabric = fabric
        self._as_emulated = replace(
            fabric,
            links=tuple(
                replace(link, rate_bps=link.rate_bps / rate_divisor)
                for link in fabric.links
            ),
        )
        self._circuits = circuits
        self._planner = planner
        self._jobs = jobs
        self._reservations = reservations
        self._bus = bus
        self._store = store
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        #: A line for each stored regrouping that cannot be used.
        self.set_aside: list[str] = []
        self._regroups: dict[str, RegroupDocument] = {}
        self._threads: list[threading.Thread] = []

    def take_over(self) -> None:
        """Take over the regroupings of an earlier run. The light of one that was under way is settled."""
        stored = {_number(name): name for name in self._store.names(_NAME)}
        self._numbers = itertools.count(max(stored, default=0) + 1)
        for _, name in sorted(stored.items()):
            try:
                entry = _checked(self._store.read(name))
                if entry["state"] == "APPLYING":
                    entry = self._ended(entry)
                    self._store.write_last(name, _stored(entry))
                    self._publish(entry)
            except (ValueError, KeyError, TypeError) as error:
                log.error("the stored %s cannot be used: %s", name, error)
                self.set_aside.append(
                    f"the stored {name} cannot be used: {error}; it is in {name}.json"
                )
                continue
            self._regroups[name] = entry

    def _ended(self, entry: RegroupDocument) -> RegroupDocument:
        """Return the entry of a regrouping that the end of a controller interrupted, marked DONE or FAILED.

        At the start the circuit manager either completed the regrouping's change or undid it.
        """
        intended = self._circuits.intended()
        done = True
        for name, change in entry["plan"]["cross_connects"].items():
            pairs = {(xc.ingress, xc.egress) for xc in intended.get(name, ())}
            done &= all((xc["ingress"], xc["egress"]) in pairs for xc in change["add"])
            done &= not any(
                (xc["ingress"], xc["egress"]) in pairs for xc in change["remove"]
            )
        error = "the controller ended meanwhile, and the light is not as it was planned"
        return {
            **entry,
            "state": "DONE" if done else "FAILED",
            "error": None if done else error,
            "timeline": [*entry["timeline"], {"t": time.monotonic(), "phase": "ended"}],
        }

    def get(self, regroup_id: str) -> RegroupDocument:
        """Return a copy of a regrouping's document. Raises NotFoundError."""
        with self._lock:
            if regroup_id not in self._regroups:
                raise NotFoundError(f"there is no regroup {regroup_id}")
            return self._regroups[regroup_id].copy()

    def all(self) -> list[RegroupDocument]:
        with self._lock:
            return [entry.copy() for entry in self._regroups.values()]

    def start(
        self, job_ids: Sequence[str] | None, *, dry_run: bool, who: str
    ) -> RegroupDocument:
        """Plan a regrouping of these jobs (None: all that have not ended) and, unless dry, begin it. Return
        its document.

        Jobs that are not named keep their GPUs where they are. Raises NotFoundError, ConflictError,
        InvalidError.
        """
        if dry_run:
            return self._begin(job_ids, dry_run, who)
        self._planner.take_turn(_TURN_S)
        try:
            entry = self._begin(job_ids, dry_run, who)
        except BaseException:
            self._planner.end_turn()
            raise
        if entry["state"] != "APPLYING":
            self._planner.end_turn()
        return entry

    def _begin(
        self, job_ids: Sequence[str] | None, dry_run: bool, who: str
    ) -> RegroupDocument:
        """Plan, and unless dry, have a thread apply the plan, which then ends the turn. Return the document."""
        began = time.monotonic()
        jobs = self._jobs.running(job_ids)
        for job in jobs:
            if job.plane is not None and job_ids is not None:
                raise InvalidError(
                    f"job {job.id} runs on {job.plane}, where nothing is regrouped"
                )
        jobs = [job for job in jobs if job.plane is None]
        other_gpus = {
            gpu for job in self._jobs.running() if job not in jobs for gpu in job.gpus
        }
        holders = self._reservations.holders()
        other_gpus |= {gpu for gpu, holder in holders.items() if holder.kind != JOB}
        try:
            planned = self._planner.plan([ring_job(job) for job in jobs], other_gpus)
        except ValueError as error:
            raise InvalidError(f"regroup: {error}") from error
        entry = self._entry(planned, jobs, dry_run, began)
        # Before anybody knows of it, and before its light moves.
        applies = entry["state"] == "APPLYING"
        (self._store.write if applies else self._store.write_last)(
            entry["id"], _stored(entry)
        )
        with self._lock:
            self._regroups[entry["id"]] = entry
            ended = [
                regrouping["id"]
                for regrouping in self._regroups.values()
                if regrouping["state"] != "APPLYING"
            ]
            for old in ended[: max(0, len(self._regroups) - KEPT)]:
                del self._regroups[old]
                self._store.remove(old)
        self._publish(entry)
        if applies:
            thread = threading.Thread(
                target=self._apply,
                args=(entry["id"], planned, who),
                name=entry["id"],
                daemon=True,
            )
            with self._lock:
                self._threads = [t for t in self._threads if t.is_alive()] + [thread]
                thread.start()
        return entry.copy()

    def _entry(
        self, planned: Planned, jobs: Sequence[Job], dry_run: bool, began: float
    ) -> RegroupDocument:
        """Return the document of a new regrouping."""
        timeline: list[Mapping[str, Any]] = [
            {"t": began, "phase": "requested"},
            {"t": time.monotonic(), "phase": "planned"},
        ]
        unchanged = None
        if not planned.moves.moved:
            unchanged = "no circuit of these jobs would be better elsewhere"
        if not jobs:
            unchanged = "no job runs on packet switches"
        state: Literal["PLANNED", "APPLYING", "DONE"] = (
            "PLANNED" if dry_run else "APPLYING" if planned.moves.moved else "DONE"
        )
        if state == "DONE":
            timeline.append({"t": time.monotonic(), "phase": "ended"})
        return {
            "id": f"{_NAME}{next(self._numbers)}",
            "state": state,
            "jobs": [job.id for job in jobs],
            "dry_run": dry_run,
            "plan": self._document(planned, jobs),
            "timeline": timeline,
            "problems": [],
            "results": {},
            "undone": False,
            "left": [],
            "left_to_others": self._left_to_others(planned.before, planned.after),
            "unchanged": unchanged,
            "error": None,
        }

    def stop(self) -> None:
        """Wait for a regrouping under way: half of one is worse than a late end."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(30.0)

    def _document(self, planned: Planned, jobs: Sequence[Job]) -> RegroupPlan:
        rings = [ring_job(job) for job in jobs]
        plan, before, after = planned.moves, planned.before, planned.after
        fields: Any = {
            **plan.document(),
            "stay_lit": [self._names(pair) for pair in plan.kept],
            "circuits": [self._names(pair) for pair in plan.circuits],
            "predicted": self._predicted(rings, before, after),
            "cross_connects": {
                name: {
                    "remove": [
                        _pair(xc) for xc in sorted(set(before[name]) - set(after[name]))
                    ],
                    "add": [
                        _pair(xc) for xc in sorted(set(after[name]) - set(before[name]))
                    ],
                }
                for name in after
            },
        }
        document: RegroupPlan = fields
        return document

    def _left_to_others(
        self, before: CrossConnects, after: CrossConnects
    ) -> dict[str, str]:
        """Return the controllers of other parties' packet switches on which the light changes, by switch."""
        then, later = (
            attachments(self._fabric, before),
            attachments(self._fabric, after),
        )
        changed = {port.node for port in then if then[port] != later[port]}
        switches = self._fabric.packet_switches
        return {
            name: switches[name].controller
            for name in self._fabric.foreign_switches
            if name in changed
        }

    def _names(self, pair: tuple[Port, Port]) -> list[str]:
        return [port_name(self._fabric, port) for port in pair]

    def _predicted(
        self, rings: Sequence[RingJob], before: CrossConnects, after: CrossConnects
    ) -> list[Predicted]:
        """Return the predicted seconds per iteration of each job, as emulated; None if a
        rank has no light.
        """

        def seconds(light: CrossConnects) -> dict[str, float]:
            try:
                return predict(PacketView(self._as_emulated, light), rings)
            except ValueError as error:
                log.info("no prediction: %s", error)
                return {}

        then, later = seconds(before), seconds(after)
        return [
            {
                "job": ring.name,
                "before_s": then.get(ring.name),
                "after_s": later.get(ring.name),
            }
            for ring in rings
        ]

    def _apply(self, regroup_id: str, planned: Planned, who: str) -> None:
        try:
            outcome = self._outcome(planned, f"{who}, {regroup_id}")
        finally:
            self._planner.end_turn()
        with self._lock:
            entry = self._regroups[regroup_id]
            entry = {
                **entry,
                **outcome,
                "timeline": [
                    *entry["timeline"],
                    *outcome.get("timeline", ()),
                    {"t": time.monotonic(), "phase": "ended"},
                ],
            }
            self._regroups[regroup_id] = entry
        try:
            self._store.write_last(regroup_id, _stored(entry))
        except OSError as failure:
            # The next controller looks at the light.
            log.error("the end of %s is not kept: %s", regroup_id, failure)
        self._publish(entry)

    def _outcome(self, planned: Planned, who: str) -> Any:
        """Move the light as planned. Return the fields of the document that say how it went."""
        try:
            change = self._planner.move(planned, who)
        except ControllerError as failure:
            return {"state": "FAILED", "error": str(failure)}
        except Exception as failure:
            log.exception("%s failed", who)
            return {"state": "FAILED", "error": f"internal error: {failure}"}
        problems = list(change.problems)
        return {
            "state": "FAILED" if problems else "DONE",
            "error": problems[0] if problems else None,
            "problems": problems,
            "results": {name: list(group) for name, group in change.results.items()},
            "undone": change.undone,
            "left": [leftover.document() for leftover in change.left],
            "timeline": change.timeline,
        }

    def _publish(self, entry: RegroupDocument) -> None:
        self._bus.publish(
            "regroup",
            regroup=entry["id"],
            state=entry["state"],
            error=entry["error"],
            fibres_moved=entry["plan"]["fibres_moved"],
            timeline=entry["timeline"],
        )


def ring_job(job: Job) -> RingJob:
    """Return a job's demand on the fabric in each iteration, in emulated bytes and seconds."""
    gradient, compute_s = (
        job.spec.get("gradient_bytes") or 0,
        job.spec.get("compute_s") or 0.0,
    )
    if guest_of(job.spec) is not None:
        # Nobody can know what its command sends: taken for a ring, so that neighbouring ranks come together.
        gradient = UNKNOWN_BYTES
    return RingJob.all_reduce(job.id, job.gpus, float(gradient), float(compute_s))


def _number(name: str) -> int:
    digits = name.removeprefix(_NAME)
    return int(digits) if digits.isdecimal() else 0


_DOCUMENT = TypeAdapter(RegroupDocument)


def _checked(document: Any) -> RegroupDocument:
    """Return a stored regrouping. Raises ValueError."""
    if isinstance(document, dict):
        # Of a controller that did not know of it.
        document = {"unchanged": None, **document}
    if not isinstance(document, dict) or (
        lacking := RegroupDocument.__required_keys__ - document.keys()
    ):
        raise ValueError(
            f"it lacks {', '.join(sorted(lacking))}"
            if isinstance(document, dict)
            else "no object"
        )
    try:
        return _DOCUMENT.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from None


def _stored(entry: RegroupDocument) -> Any:
    """Return a regrouping as JSON values, which :func:`_checked` reads."""
    return _DOCUMENT.dump_python(entry, mode="json")


def _pair(xc: CrossConnect) -> RegroupPair:
    return {"ingress": xc.ingress, "egress": xc.egress, "name": xc.name}
