"""The optical switches of a fabric: their drivers, and the last known state of each."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.meters import Meters
from ringlight.controller.circuits.transaction import carrying
from ringlight.controller.errors import (
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
)
from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import (
    Busy,
    Indeterminate,
    NoSuchPort,
    NotAsPlanned,
    OpticalError,
    Refused,
    Unsupported,
)
from ringlight.controller.optical.model import (
    Alarm,
    ApplyResult,
    Identity,
    Plan,
    PortStatus,
    Snapshot,
)
from ringlight.fabric.crossconnect import CrossConnect


@dataclass(frozen=True)
class SwitchView:
    """Known state of one optical switch.

    ``error``: reason for which the switch cannot be reached, None if it can. ``snapshot``: last good reading,
    because circuits stay lit while their switch cannot be reached. ``complaint``: difference between its
    cross-connects and the intended ones. ``remark``: cross-connects that others made on it, if they may stay.
    ``raised``: the alarms that were published as events; the other alarms are of ports that never had light.
    ``power_dbm``: optical power as last measured, by port, without the ports that have no meter.
    """

    reachable: bool = False
    error: str | None = "not reached yet"
    identity: Identity | None = None
    snapshot: Snapshot | None = None
    alarms: tuple[Alarm, ...] = ()
    raised: frozenset[Alarm] = frozenset()
    complaint: str | None = None
    remark: str | None = None
    power_dbm: Mapping[int, float] = field(default_factory=dict)


def _nothing(
    who: str,
    action: str,
    switch: str | None = None,
    outcome: str = "done",
    **detail: Any,
) -> None:
    """Discard a note for the audit log."""


@dataclass
class OpticalSite:
    """Drivers by switch name, and the newest view of each. Safe from any thread.

    ``note``: writes the audit log, like :meth:`controller.circuits.intent.IntentDatabase.note`. ``anew``: the
    lab begins now. A port that has had no light since then raises no alarm; in a lab that was up before, any
    port may have had light. ``first_generation``: number of the light before anything is read.
    ``counted``: switches whose light clients change, which its generation counts (None: all).
    """

    drivers: Mapping[str, OpticalSwitchDriver]
    entries: Mapping[str, Mapping[str, Any]]
    bus: EventBus
    note: Callable[..., None] = _nothing
    meters: Meters = field(default_factory=Meters)
    anew: bool = True
    first_generation: int = 0
    counted: Collection[str] | None = None
    _views: dict[str, SwitchView] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _revision: int = 0
    #: Generation of each switch's cross-connects.
    _generations: dict[str, int] = field(default_factory=dict)
    #: Ports of each switch at which light has come in.
    _shone: dict[str, set[int]] = field(default_factory=dict)
    _holders: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._views = {name: SwitchView() for name in self.drivers}
        self._shone = {name: set() for name in self.drivers}
        self._revision = self.first_generation
        self._generations = dict.fromkeys(self.drivers, self.first_generation)

    def driver(self, name: str) -> OpticalSwitchDriver:
        """Return the driver of an optical switch. Raises NotFoundError."""
        if name not in self.drivers:
            raise NotFoundError(f"there is no optical switch {name}")
        return self.drivers[name]

    # Switches that are one job's alone

    def hold(self, job: str, names: Collection[str]) -> str | None:
        """Reserve these switches for a job.

        Return None, or another job that holds one of them; then nothing is reserved.
        """
        with self._lock:
            other_holders = [
                self._holders[name]
                for name in names
                if self._holders.get(name, job) != job
            ]
            new = [name for name in names if name not in self._holders]
            if not other_holders:
                self._holders |= dict.fromkeys(names, job)
        if new and not other_holders:
            self.note(f"job {job}", "hold", switches=sorted(new))
        return other_holders[0] if other_holders else None

    def release(self, job: str) -> None:
        """Take them back."""
        with self._lock:
            freed = sorted(
                name for name, holder in self._holders.items() if holder == job
            )
            self._holders = {
                name: holder for name, holder in self._holders.items() if holder != job
            }
        if freed:
            self.note(f"job {job}", "release", switches=freed)

    def holder(self, name: str) -> str | None:
        """Return the job that a switch is kept for; None for a switch that no job holds."""
        with self._lock:
            return self._holders.get(name)

    # Views

    def view(self, name: str) -> SwitchView:
        self.driver(name)
        with self._lock:
            return self._views[name]

    def views(self) -> dict[str, SwitchView]:
        with self._lock:
            return dict(self._views)

    @property
    def revision(self) -> int:
        """Grows when any cross-connect of any switch is seen to have changed."""
        with self._lock:
            return self._revision

    def generation(self, name: str | None = None) -> int:
        """Return the number of the present cross-connects of all counted switches, or of one, as last read.

        The number grows when any of these cross-connects is seen to have changed.
        """
        with self._lock:
            return self._generation() if name is None else self._generations[name]

    def _generation(self) -> int:
        counted = self._generations if self.counted is None else self.counted
        numbers = (self._generations[name] for name in counted)
        return max(numbers, default=self.first_generation)

    def cross_connects(self) -> dict[str, frozenset[CrossConnect]]:
        """Return the lit cross-connects of every switch, as last read."""
        return self.light()[1]

    def light(self) -> tuple[int, dict[str, frozenset[CrossConnect]]]:
        """Return the lit cross-connects of every switch, as last read, after their generation."""
        with self._lock:
            return self._generation(), {
                name: carrying(view.snapshot) for name, view in self._views.items()
            }

    def look(
        self, name: str, *, with_alarms: bool = False, timeout_s: float = 5.0
    ) -> Snapshot:
        """Read a switch now, remember the reading and return it.

        Raises NotFoundError; UnavailableError if the switch cannot be read.
        """
        driver = self.driver(name)
        view = self.view(name)
        try:
            identity = view.identity
            if not view.reachable:
                identity = driver.open(timeout_s=timeout_s)
            snapshot = driver.snapshot(timeout_s=timeout_s)
            alarms = (
                driver.alarms(snapshot=snapshot, timeout_s=timeout_s)
                if with_alarms
                else None
            )
        except Busy as error:
            # This says nothing about the switch: the request under way will.
            raise UnavailableError(f"optical switch {name}: {error}") from error
        except OpticalError as error:
            self.meters.failed(name, error)
            self._lost(name, str(error))
            raise UnavailableError(f"optical switch {name}: {error}") from error
        self._seen(name, snapshot, identity, alarms)
        return snapshot

    def look_numbered(self, name: str) -> tuple[int, Snapshot]:
        """Read a switch now. Return the newest reading of it, after the generation of its cross-connects.

        Raises NotFoundError; UnavailableError if the switch cannot be read.
        """
        reading = self.look(name)
        with self._lock:
            return self._generations[name], self._views[name].snapshot or reading

    def apply(
        self, name: str, plan: Plan, *, timeout_s: float, seen: Snapshot | None = None
    ) -> ApplyResult:
        """Apply a plan to a switch and record the outcome in the metrics. Return the result.

        Raises NotFoundError. Raises StaleRevision, PortDisabled, PortFailed, Unreachable, DeadlineExceeded or
        Refused with nothing changed; PartialApply or ReadBackMismatch with the result in it; Indeterminate.
        """
        driver = self.driver(name)
        began = time.monotonic()
        try:
            made = driver.apply(plan, timeout_s=timeout_s, seen=seen)
        except OpticalError as error:
            self.meters.failed(name, error)
            if isinstance(error, NotAsPlanned) and error.result is not None:
                self.meters.applied(
                    name, time.monotonic() - began, error.result.results
                )
            raise
        self.meters.applied(name, time.monotonic() - began, made.results)
        return made

    def power_dbm(self, name: str, timeout_s: float = 5.0) -> dict[int, float | None]:
        """Return the optical power at every port in dBm, measured now; None for a port without a meter.

        Raises NotFoundError, UnavailableError.
        """
        driver = self.driver(name)
        try:
            powers = driver.power_dbm(
                sorted(driver.capabilities().ports), timeout_s=timeout_s
            )
        except OpticalError as error:
            self.meters.failed(name, error)
            raise UnavailableError(f"optical switch {name}: {error}") from error
        measured = {port: dbm for port, dbm in powers.items() if dbm is not None}
        with self._lock:
            self._views[name] = replace(self._views[name], power_dbm=measured)
        return powers

    def set_port_enabled(
        self, name: str, port: int, enabled: bool, *, who: str
    ) -> PortStatus:
        """Enable or disable a port, keeping its cross-connects. Return the port's state as read back.

        Raises NotFoundError, UnsupportedError, ConflictError for a switch that is kept for a job,
        RefusedError, UnavailableError.
        """
        driver = self.driver(name)
        if (holder := self.holder(name)) is not None:
            raise ConflictError(f"optical switch {name} is kept for job {holder}")
        action = "enable" if enabled else "disable"
        try:
            status = driver.set_port_enabled(port, enabled)
        except NoSuchPort as error:
            raise NotFoundError(f"optical switch {name}: {error}") from error
        except Unsupported as error:
            raise UnsupportedError(f"optical switch {name}: {error}") from error
        except OpticalError as error:
            self.meters.failed(name, error)
            if isinstance(error, Indeterminate | NotAsPlanned):
                self.note(who, action, name, "failed", port=port, text=str(error))
            if isinstance(error, NotAsPlanned | Refused):
                raise RefusedError(f"optical switch {name}: {error}") from error
            raise UnavailableError(f"optical switch {name}: {error}") from error
        self.note(who, action, name, port=port)
        # It has been done and read back, whatever this further reading comes to.
        with contextlib.suppress(UnavailableError):
            self.look(name, with_alarms=True)
        return status

    def remember(self, name: str, snapshot: Snapshot) -> None:
        """Take over a reading that a driver made by itself."""
        view = self.view(name)
        self._seen(name, snapshot, view.identity, None)

    def complain(self, name: str, complaint: str | None) -> None:
        """Say why a switch's cross-connects are not what they should be; None when they are."""
        with self._lock:
            before = self._views[name]
            self._views[name] = replace(before, complaint=complaint)
        if complaint != before.complaint:
            if complaint is None:
                self.bus.publish(
                    "optical_alarm_cleared", switch=name, kind="INTENT", port=None
                )
            else:
                self.bus.publish(
                    "optical_alarm",
                    switch=name,
                    kind="INTENT",
                    port=None,
                    text=complaint,
                )

    def remark(self, name: str, remark: str | None) -> None:
        """Set the remark about cross-connects that others made on a switch and that may stay; None for no
        remark.

        A change of the remark is published as an event.
        """
        with self._lock:
            before = self._views[name]
            self._views[name] = replace(before, remark=remark)
        if remark != before.remark:
            if remark is None:
                self.bus.publish(
                    "optical_alarm_cleared", switch=name, kind="FOREIGN", port=None
                )
            else:
                self.bus.publish(
                    "optical_alarm", switch=name, kind="FOREIGN", port=None, text=remark
                )

    def alarms(self, name: str) -> tuple[Alarm, ...]:
        """Return the controller's own alarms about a switch, and the switch's alarms as last read."""
        view = self.view(name)
        ours = []
        if view.error is not None:
            ours.append(Alarm("SWITCH", None, f"cannot be reached: {view.error}"))
        if view.complaint is not None:
            ours.append(Alarm("SWITCH", None, view.complaint))
        if view.remark is not None:
            ours.append(Alarm("SWITCH", None, view.remark))
        return (*ours, *view.alarms)

    def close(self) -> None:
        """End every session; circuits stay lit."""
        for driver in self.drivers.values():
            driver.close()

    def _seen(
        self,
        name: str,
        snapshot: Snapshot,
        identity: Identity | None,
        alarms: tuple[Alarm, ...] | None,
    ) -> None:
        """Store a reading. ``alarms``: None if only the ports were read."""
        with self._lock:
            before = self._views[name]
            if (
                before.snapshot is not None
                and snapshot.taken_at < before.snapshot.taken_at
            ):
                # Read before what is known already was, and come later, from another thread.
                return
            if (
                carrying(before.snapshot) != carrying(snapshot)
                or before.snapshot is None
            ):
                self._revision += 1
                self._generations[name] = self._revision
            raised = before.raised
            if alarms is not None:
                raised = frozenset(alarms) - self._never_lit(name, snapshot, alarms)
            self._views[name] = replace(
                before,
                reachable=True,
                error=None,
                identity=identity,
                snapshot=snapshot,
                alarms=before.alarms if alarms is None else alarms,
                raised=raised,
            )
        if not before.reachable:
            self.bus.publish("optical_switch", switch=name, state="up")
        for alarm in sorted(raised - before.raised, key=_alarm_order):
            self.bus.publish(
                "optical_alarm",
                switch=name,
                kind=alarm.kind,
                port=alarm.port,
                text=alarm.text,
            )
        for alarm in sorted(before.raised - raised, key=_alarm_order):
            self.bus.publish(
                "optical_alarm_cleared", switch=name, kind=alarm.kind, port=alarm.port
            )

    def _never_lit(
        self, name: str, snapshot: Snapshot, alarms: Collection[Alarm]
    ) -> frozenset[Alarm]:
        """Return the alarms of ports that have never received light. Ports with light are remembered."""
        ingresses = {xc.ingress for xc in snapshot.cross_connects}
        dark = {
            alarm for alarm in alarms if alarm.kind == "LOS" and alarm.port in ingresses
        }
        shone = self._shone[name]
        shone |= ingresses - {alarm.port for alarm in dark}
        return frozenset(
            alarm for alarm in dark if self.anew and alarm.port not in shone
        )

    def _lost(self, name: str, error: str) -> None:
        with self._lock:
            before = self._views[name]
            self._views[name] = replace(before, reachable=False, error=error)
        if before.error is None or before.error == SwitchView.error:
            self.bus.publish("optical_switch", switch=name, state="down", text=error)


def _alarm_order(alarm: Alarm) -> tuple[str, int]:
    return alarm.kind, -1 if alarm.port is None else alarm.port
