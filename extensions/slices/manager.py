"""Slices of a lab: which there are, their light, and their states, kept over restarts.

One thread lights and ends slices, one at a time, and looks whether those that are lit still are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from pydantic import TypeAdapter, ValidationError

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.manager import CircuitManager
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.reservation import Holder
from ringlight.controller.packets.attachment import circuit_pairs
from ringlight.controller.store import Store
from ringlight.extensions.slices.fabric_key import CubesPart
from ringlight.extensions.slices.light import Moves, moves
from ringlight.extensions.slices.pool import Pool, check_idle, used_cubes
from ringlight.extensions.slices.resource import (
    TWISTED,
    SliceDocument,
    SliceGpus,
    SliceRecord,
    now,
)
from ringlight.extensions.slices.shapes import topology_of
from ringlight.fabric.topology import Fabric

log = logging.getLogger(__name__)

_SLICES = "slices"
#: Longest time between two looks at the slices, seconds.
_LOOK_S = 1.0
#: Longest wait for a change under way when the controller ends, seconds.
_STOP_S = 30.0
#: Slices that could not be made and are remembered, the oldest forgotten first.
_FAILED = 100

_STORED = TypeAdapter(SliceRecord)


class SliceManager:
    """Owner of the slices of a fabric of cubes. Any thread may call.

    ``users``: returns the holder of each taken GPU. ``lost``: returns the GPUs that a fault has taken.
    """

    def __init__(
        self,
        fabric: Fabric,
        part: CubesPart,
        circuits: CircuitManager,
        users: Callable[[], Mapping[str, Holder]],
        lost: Callable[[], frozenset[str]],
        bus: EventBus,
        store: Store,
    ) -> None:
        self._fabric, self._part, self._circuits = fabric, part, circuits
        self._users, self._lost = users, lost
        self._bus, self._store = bus, store
        self._changed = threading.Condition()
        self._records: dict[str, SliceRecord] = {}
        #: Stored slices that cannot be used, and a line for each.
        self._aside: list[object] = []
        self.set_aside: list[str] = []
        self._looks = threading.Event()
        self._stopping = False
        self._subscription = bus.subscribe(wake=self._looks.set)
        self._thread = threading.Thread(target=self._run, name=_SLICES, daemon=True)

    # Life

    def start(self) -> None:
        """Take over the slices of an earlier run, on the first start those of the fabric, and begin to look."""
        stored = self._store.read(_SLICES)
        with self._changed:
            if stored is None:
                for record in self._of_fabric():
                    self._records[record.name] = record
            else:
                self._take_over(stored["slices"])
        self._thread.start()

    def _of_fabric(self) -> list[SliceRecord]:
        time_text = now()
        return [
            SliceRecord(
                name,
                topology_of(slice_.shape.sides),
                slice_.cubes,
                time_text,
                time_text,
                annotations={TWISTED: "true"} if slice_.shape.twisted else {},
            )
            for name, slice_ in self._part.slices.items()
        ]

    def _take_over(self, documents: Sequence[object]) -> None:
        for document in documents:
            try:
                record = _STORED.validate_python(document)
                if record.holds:
                    pool = self._pool()
                    shape = pool.shape(record.topology, twisted=record.twisted)
                    pool.out.clear()
                    pool.take(record.name, shape, record.cubes)
            except (ValidationError, ValueError) as error:
                log.error("a stored slice cannot be used: %s: %s", document, error)
                line = str(error).splitlines()[0]
                self.set_aside.append(f"a stored slice cannot be used: {line}")
                self._aside.append(document)
                continue
            self._records[record.name] = record

    def stop(self) -> None:
        """Wait for a change under way, and end the thread. The slices stay lit."""
        with self._changed:
            self._stopping = True
        self._subscription.close()
        self._looks.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # Requests

    def create(
        self,
        name: str,
        annotations: Mapping[str, str],
        model: str,
        topology: str,
        cubes: Sequence[str],
        wait_s: float,
    ) -> SliceDocument:
        """Make a slice, or a record of why there is none. Return it, after at most ``wait_s`` seconds.

        ``cubes``: in the order of their places; the first free ones if there are none. Raises InvalidError for a
        ``model`` that the fabric does not have, ConflictError if there is a slice of this name, UnavailableError if
        it cannot be stored.
        """
        if model != self._part.model:
            raise InvalidError(
                f"spec.type: this fabric has {self._part.model}, not {model}"
            )
        with self._changed:
            known = self._records.get(name)
            if known is not None and known.holds:
                raise ConflictError(f"there is a slice {name}")
            time_text = now()
            record = SliceRecord(
                name,
                topology,
                tuple(cubes),
                time_text,
                time_text,
                annotations=dict(annotations),
            )
            try:
                record = self._with_cubes(record)
            except ValueError as error:
                record = record.became("SliceCreationFailed", str(error))
            self._keep(record)
        self._looks.set()
        return self._document_after(record, wait_s)

    def _with_cubes(self, record: SliceRecord) -> SliceRecord:
        """Return a new slice with its cubes. Raises ValueError if it cannot have them."""
        pool, used = self._pool(), self._used()
        shape = pool.shape(record.topology, twisted=record.twisted)
        if not record.cubes:
            pool.out |= used.keys()
        cubes = record.cubes or pool.chosen(shape)
        pool.take(record.name, shape, cubes)
        check_idle(cubes, used)
        return replace(record, cubes=tuple(cubes))

    def delete(self, name: str, wait_s: float) -> SliceDocument:
        """End a slice: its circuits are removed, and its cubes are free. Return it as it was last.

        Raises NotFoundError; ConflictError while a job or a claim has GPUs of it.
        """
        with self._changed:
            record = self._named(name)
            try:
                check_idle(record.holds, self._used())
            except ValueError as error:
                raise ConflictError(f"slice {name}: {error}") from None
            if record.holds:
                record = record.became("DEACTIVATING")
                self._keep(record)
            else:
                self._drop(record)
        self._looks.set()
        return self._document_after(record, wait_s)

    def swap(
        self, name: str, lost: str, spare: str | None, wait_s: float
    ) -> SliceDocument:
        """Put a spare cube in the place of one, by moving its light alone. Return the slice.

        If the light cannot be moved, the slice keeps the cubes that it had. Raises NotFoundError; InvalidError for
        a cube that there is not; ConflictError if none is free, or a job or a claim has GPUs of either cube.
        """
        with self._changed:
            record = self._named(name)
            if record.status != "True":
                raise ConflictError(f"slice {name} is {record.reason}")
            if unknown := {lost, spare or lost} - set(self._part.cubes.names):
                raise InvalidError(f"there is no partition {min(unknown)}")
            try:
                cubes = self._pool().swapped(
                    name, record.cubes, lost, spare, self._used()
                )
            except ValueError as error:
                raise ConflictError(str(error)) from None
            record = record.became(
                "ACTIVATING", cubes=cubes, before=record.cubes, failed_swap=""
            )
            self._keep(record)
        self._looks.set()
        return self._document_after(record, wait_s)

    def get(self, name: str) -> SliceDocument:
        """Return a slice as it is now. Raises NotFoundError."""
        with self._changed:
            return self._named(name).document(self._part.model)

    def all(self) -> list[SliceDocument]:
        """Return all slices, and those that could not be made."""
        with self._changed:
            return [
                record.document(self._part.model) for record in self._records.values()
            ]

    def gpus(self, name: str) -> SliceGpus:
        """Return the GPUs of a slice. Raises NotFoundError; ConflictError if it has none."""
        with self._changed:
            record = self._named(name)
        if not record.holds:
            raise ConflictError(f"slice {name} is {record.reason}")
        cubes = self._part.cubes
        shape = Pool(cubes).shape(record.topology, twisted=record.twisted)
        return SliceGpus(
            {cube: list(cubes.gpus_of(cube)) for cube in record.cubes},
            list(cubes.ring(shape, record.cubes)),
        )

    @property
    def complaint(self) -> str | None:
        """Return a line about a slice that is not as it should be; None if all are."""
        if self.set_aside:
            return self.set_aside[0]
        with self._changed:
            lines = (
                f"slice {record.name} is {record.reason}: {record.message}"
                for record in self._records.values()
                if record.holds and record.message and record.reason != "ACTIVE"
            )
            return next(lines, None)

    def _named(self, name: str) -> SliceRecord:
        if name not in self._records:
            raise NotFoundError(f"there is no slice {name}")
        return self._records[name]

    def _used(self) -> dict[str, str]:
        """Return the cubes with GPUs of jobs or claims, each with a text that names one of them."""
        return used_cubes(self._part.cubes, self._users())

    def _pool(self) -> Pool:
        """Return who has which cube now. The caller holds the lock."""
        pool = Pool(self._part.cubes)
        for record in self._records.values():
            pool.holders |= dict.fromkeys(record.holds, record.name)
        pool.out = {self._part.cubes.cube_of(gpu) for gpu in self._lost()}
        return pool

    def _document_after(self, record: SliceRecord, wait_s: float) -> SliceDocument:
        """Return a slice once it is no longer as ``record``, at most ``wait_s`` seconds later."""
        with self._changed:
            if record.reason in ("ACTIVATING", "DEACTIVATING"):
                self._changed.wait_for(
                    lambda: self._records.get(record.name) is not record, wait_s
                )
            now_ = self._records.get(record.name, record)
            return now_.document(self._part.model)

    # Light

    def _run(self) -> None:
        while not self._stopping:
            self._subscription.take()
            with self._changed:
                records = list(self._records.values())
            for record in records:
                if self._stopping:
                    return
                try:
                    self._step(record)
                except Exception:
                    # The thread must outlive whatever one slice ran into.
                    log.exception("slice %s", record.name)
            self._looks.wait(_LOOK_S)
            self._looks.clear()

    def _step(self, record: SliceRecord) -> None:
        """Bring one slice a step further: light it, end it, or look at it."""
        if record.reason == "ACTIVATING":
            self._light(record)
        elif record.reason == "DEACTIVATING":
            problem, _ = self._move(record, (), record.holds)
            with self._changed:
                if problem is None:
                    self._drop(record)
                elif problem != record.message:
                    self._keep(replace(record, message=problem))
        elif record.holds:
            seen = record.lit_with(self._trouble(record))
            with self._changed:
                if seen != record and self._is_present(record):
                    self._keep(seen)

    def _light(self, record: SliceRecord) -> None:
        leaving = tuple(cube for cube in record.before if cube not in record.cubes)
        problem, undone = self._move(record, record.cubes, leaving)
        kept = replace(
            record,
            cubes=record.before,
            before=(),
            failed_swap=f"not swapped: {problem}",
        )
        trouble = self._trouble(kept) if problem is not None else ""
        with self._changed:
            if not self._is_present(record):
                # Deleted meanwhile: the next step ends it.
                return
            if problem is None:
                self._keep(record.became("ACTIVE", before=()))
            elif record.before:
                self._keep(kept.lit_with(trouble))
            else:
                state = "the light is as before" if undone else "some light may be left"
                self._keep(record.became("FAILED", f"{problem}; {state}"))

    def _is_present(self, record: SliceRecord) -> bool:
        return self._records.get(record.name) is record

    def _move(
        self, record: SliceRecord, joined: Sequence[str], leaving: Sequence[str]
    ) -> tuple[str | None, bool]:
        """Move light for a slice. Return why that failed, and whether the light is as before."""
        planned = self._moves(record, joined, leaving)
        if not planned:
            return None, True
        try:
            change = self._circuits.alter_circuits(
                planned.add, planned.remove, who=f"slice {record.name}"
            )
        except ControllerError as error:
            return str(error), True
        return (change.problems[0], change.undone) if change.problems else (None, True)

    def _moves(
        self, record: SliceRecord, joined: Sequence[str], leaving: Sequence[str] = ()
    ) -> Moves:
        cubes = self._part.cubes
        shape = Pool(cubes).shape(record.topology, twisted=record.twisted)
        present = circuit_pairs(self._fabric, self._circuits.cross_connects())
        return moves(cubes, present, shape, joined, leaving)

    def _trouble(self, record: SliceRecord) -> str:
        """Return why a slice is degraded; an empty text if it is not."""
        lost = self._lost()
        for cube in record.cubes:
            for gpu in self._part.cubes.gpus_of(cube):
                if gpu in lost:
                    return f"GPU {gpu} of partition {cube} is lost"
        if dark := self._moves(record, record.cubes).add:
            more = f", and {len(dark) - 1} more" if len(dark) > 1 else ""
            return f"the circuit from {dark[0][0]} to {dark[0][1]} is dark{more}"
        return ""

    # Records

    def _keep(self, record: SliceRecord) -> None:
        """Store a slice as it is now, and publish it. The caller holds the lock.

        Raises UnavailableError for a new slice that cannot be stored; then there is none, or the failed one before.
        """
        before = self._records.get(record.name)
        self._records[record.name] = record
        failed = [name for name, known in self._records.items() if not known.holds]
        for name in failed[: max(0, len(failed) - _FAILED)]:
            del self._records[name]
        try:
            self._save()
        except OSError as error:
            if before is None or not before.holds:
                del self._records[record.name]
                if before is not None:
                    self._records[record.name] = before
                raise UnavailableError(
                    f"slice {record.name} cannot be stored: {error}"
                ) from error
            # The next controller looks at the light.
            log.error("slice %s is not stored: %s", record.name, error)
        self._publish(record)

    def _drop(self, record: SliceRecord) -> None:
        """Forget a slice. The caller holds the lock."""
        self._records.pop(record.name, None)
        try:
            self._save()
        except OSError as error:
            log.error("the end of slice %s is not stored: %s", record.name, error)
        self._publish(record, gone=True)

    def _save(self) -> None:
        documents = [asdict(known) for known in self._records.values()]
        self._store.write(_SLICES, {"slices": [*self._aside, *documents]})

    def _publish(self, record: SliceRecord, gone: bool = False) -> None:
        self._bus.publish(
            "slice",
            slice=record.name,
            topology=record.topology,
            partitions=list(record.cubes),
            reason=record.reason,
            message=record.message,
            gone=gone,
        )
        self._changed.notify_all()
