"""An optical switch as the controller sees it: its abilities, its state, and safe changes.

How a change is made, whatever the switch:

1. **Read** what stands in the switch now; never a copy remembered from before. A read that fails raises.
2. **Plan**, without touching the switch: check every port of every wanted cross-connect (exists, right
   side, enabled, not broken, wanted once), then find the smallest set to remove and to add. What is
   neither is kept and is not written again.
3. **Lock** the switch and read once more, unless the planner's reading was made a moment ago (`FRESH_S`)
   and is handed over. If it no longer looks as it did to the planner, stop: the plan was made for another
   state. So a plan made before a lost reply cannot be replayed blindly.
4. **Remove, then add**, in batches the switch can take. Every removal precedes every addition, so the
   switch never has to resolve a conflict (some take longer over that, some silently move a circuit).
5. **Wait for light** as long as the switch declares it needs, and **read back** (where it needs none, or
   answers once it is there, in one message with the last write, if the switch can). Only this reading says
   what was achieved, not the switch's acknowledgements.
6. **Report each cross-connect** with its state, the reason where it is not as wanted, and the times
   between which it was dark. An answer lost on the way makes the outcome unknown, and it is reported as
   unknown; the next read waits until a late command can no longer take effect.

A driver for another switch writes `_read`, `_remove` and `_add`; everything above is here. Optional:
`_open`, `_close`, `_write_and_read`, `_set_port_enabled`, `_power`, `_factory_loss`, `_alarms`. Its class is
made of the switch's name, inventory entry and size, and of the OpenFlow plane (:mod:`.registry`). All times
are seconds of ``time.monotonic()``. Drivers are synchronous and may be used from several threads; one
operation runs on a switch at a time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from ringlight.controller.optical.errors import (
    AuthFailed,
    Busy,
    DeadlineExceeded,
    Indeterminate,
    NoSuchPort,
    OpticalError,
    PartialApply,
    PermissionDenied,
    PortBusy,
    PortClash,
    PortDisabled,
    PortFailed,
    ProtocolError,
    ReadBackMismatch,
    Refused,
    Rejected,
    StaleRevision,
    Unreachable,
    Unsupported,
    WrongSide,
)
from ringlight.controller.optical.model import (
    Alarm,
    ApplyResult,
    Capabilities,
    CrossConnectResult,
    Identity,
    Plan,
    PortStatus,
    Snapshot,
)
from ringlight.fabric.crossconnect import (
    BusyError,
    CrossConnect,
    CrossConnectState,
    MatchingError,
    Mode,
    PortState,
    check_matching,
    plan_changes,
)

log = logging.getLogger(__name__)

#: Pause between two readings while a cross-connect is still being aligned, seconds.
POLL_S = 0.02
#: Age up to which the reading that a plan was made from stands for another before the first write, seconds.
#: Between any reading and the write someone else can come; the read-back tells.
FRESH_S = 0.01
#: Power under which an ingress that should carry light has none, dBm.
LOSS_OF_SIGNAL_DBM = -30.0

_BROKEN = (CrossConnectState.FAILED, CrossConnectState.INVALID)
_PENDING = (CrossConnectState.PENDING_CONNECTION, CrossConnectState.PENDING_DELETION)


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


@contextmanager
def after_others(begun: bool = True) -> Iterator[None]:
    """Yield around one of several requests that form one write.

    ``begun``: earlier requests of the write were carried out, so an error before this request is sent does
    not mean that nothing was changed. Raises Indeterminate instead of Unreachable and DeadlineExceeded then.
    """
    try:
        yield
    except (Unreachable, DeadlineExceeded) as error:
        if not begun:
            raise
        raise Indeterminate(f"after other requests of this write: {error}") from error


def _order(cross_connect: CrossConnect) -> tuple[int, int, int]:
    colour = cross_connect.wavelength
    return cross_connect.ingress, cross_connect.egress, -1 if colour is None else colour


def _spots(xc: CrossConnect) -> tuple[tuple[int, int | None], ...]:
    """Return port and wavelength of both ends of a cross-connect."""
    return (xc.ingress, xc.wavelength), (xc.egress, xc.wavelength)


def _touched(changed: Iterable[CrossConnect]) -> int:
    """Return the number of cross-connects that a switch handles in a write: a moved cross-connect counts
    once.
    """
    return len({(xc.ingress, xc.wavelength) for xc in changed})


def check_cross_connect(capabilities: Capabilities, xc: CrossConnect) -> None:
    """Check that the switch could make this cross-connect. Raises NoSuchPort, WrongSide or Unsupported."""
    for port in (xc.ingress, xc.egress):
        if port not in capabilities.ports:
            raise NoSuchPort(port, f"cross-connect {xc}: there is no port {port}")
    if xc.ingress not in capabilities.ingress:
        raise WrongSide(xc.ingress, f"cross-connect {xc}: port {xc.ingress} is an egress")
    if xc.egress not in capabilities.egress:
        raise WrongSide(xc.egress, f"cross-connect {xc}: port {xc.egress} is an ingress")
    if xc.egress not in capabilities.egresses(xc.ingress):
        raise WrongSide(xc.egress, f"cross-connect {xc}: port {xc.ingress} cannot reach port {xc.egress}")
    if xc.wavelength is not None and not 0 <= xc.wavelength < capabilities.wavelengths:
        raise Unsupported(f"cross-connect {xc}: the switch does not tell that wavelength apart")
    if xc.wavelength is None and capabilities.wavelengths:
        raise Unsupported(
            f"cross-connect {xc}: name its wavelength, 0 to {capabilities.wavelengths - 1}, on this switch"
        )


def check_ports_usable(snapshot: Snapshot, cross_connects: Iterable[CrossConnect]) -> None:
    """Check that all ports can carry light. Raises PortDisabled or PortFailed for the first that cannot."""
    for xc in cross_connects:
        for port in (xc.ingress, xc.egress):
            status = snapshot.ports[port]
            if status.state is PortState.FAILED:
                raise PortFailed(port, f"cross-connect {xc}: port {port} has failed")
            if not status.enabled:
                raise PortDisabled(port, f"cross-connect {xc}: port {port} is disabled")


def los_alarms(snapshot: Snapshot, powers: Mapping[int, float | None]) -> Iterator[Alarm]:
    """Yield alarms for ingresses of cross-connects that receive no light, and egresses that send none.

    Egresses are checked only if light comes in and the mirrors are set. ``powers``: dBm by port, None or no
    entry for a port without a meter, -inf for no light.
    """
    wires = snapshot.cross_connects
    known = {port: power for port, power in powers.items() if power is not None}
    dark = {port: power for port, power in known.items() if power < LOSS_OF_SIGNAL_DBM}

    def power_text(port: int) -> str:
        return "nothing" if dark[port] == -math.inf else f"{dark[port]:.1f} dBm"

    for port in sorted({xc.ingress for xc in wires} & dark.keys()):
        yield Alarm("LOS", port, f"port {port} receives {power_text(port)}: no light")
    lit_egresses = {
        xc.egress
        for xc in wires
        if xc.ingress not in dark and snapshot.ports[xc.egress].state is PortState.TUNED
    }
    for port in sorted(lit_egresses & dark.keys()):
        yield Alarm("LOS", port, f"port {port} sends {power_text(port)}: too little light")


def make_plan(
    capabilities: Capabilities,
    snapshot: Snapshot,
    requested: Iterable[CrossConnect],
    mode: Mode,
    delete: Iterable[int] = (),
    owned: Iterable[CrossConnect] | None = None,
    anew: bool = False,
) -> Plan:
    """Return the smallest change from ``snapshot`` to a state in which everything ``requested`` is connected.

    ``delete``: ingresses that must carry nothing. ``owned``: cross-connects that may be removed (default: all
    that the switch does not attribute to others); other cross-connects are removed in REPLACE mode only. A
    requested cross-connect that the switch reports as broken is removed and made again; with ``anew`` every
    requested one. No I/O. Raises a :class:`~controller.optical.errors.Rejected` naming the port.
    """
    requested = tuple(requested)
    for xc in requested:
        check_cross_connect(capabilities, xc)
    try:
        target = check_matching(requested)
    except MatchingError as error:
        raise PortClash(error.port, str(error), error.first, error.second) from None

    present = frozenset(snapshot.cross_connects)
    foreign = snapshot.foreign if owned is None else present - frozenset(owned)
    by_ingress: dict[int, list[CrossConnect]] = {}
    for xc in present:
        by_ingress.setdefault(xc.ingress, []).append(xc)
    deleted: set[CrossConnect] = set()
    absent = []
    for port in sorted(set(delete)):
        if port not in capabilities.ports:
            raise NoSuchPort(port, f"delete: there is no port {port}")
        if port not in capabilities.ingress:
            raise WrongSide(port, f"delete: port {port} is an egress; name the ingress")
        if any(xc.ingress == port for xc in target):
            raise Rejected(f"port {port} is both wanted and to be deleted")
        deleted.update(by_ingress.get(port, ()))
        if port not in by_ingress:
            absent.append(port)

    try:
        changes = plan_changes(present - deleted, target, mode)
    except BusyError as error:
        raise PortBusy(error.port, str(error), error.holder) from None
    again = {xc for xc in changes.keep & target if anew or snapshot.state(xc) in _BROKEN}
    remove = changes.remove | deleted | again
    add = changes.add | again
    check_ports_usable(snapshot, sorted(add, key=_order))
    if mode is not Mode.REPLACE:
        for xc in sorted(remove & foreign, key=_order):
            raise PortBusy(xc.ingress, f"port {xc.ingress} is busy: {xc} belongs to another owner", xc)
    named = {xc: xc for xc in target}
    return Plan(
        base_revision=snapshot.revision,
        mode=mode,
        keep=frozenset(named.get(xc, xc) for xc in changes.keep - again),
        remove=tuple(sorted(remove, key=_order)),
        add=tuple(sorted(add, key=_order)),
        absent=tuple(absent),
        anew=anew,
    )


Verb = Literal["remove", "add", "replace"]
#: A write, what it is given, and the cross-connects that it changes.
_Write = tuple[Verb, Sequence[CrossConnect], Sequence[CrossConnect]]


class OpticalSwitchDriver(ABC):
    """Base of every driver; see the top of this file for what it does and what a subclass adds.

    ``secrets`` are strings that must never appear in a log line or an error.
    """

    def __init__(self, name: str, capabilities: Capabilities, secrets: Iterable[str] = ()) -> None:
        self.name = name
        #: Ingress ports.
        self.size = len(capabilities.ingress)
        self._capabilities = capabilities
        self._secrets = tuple(s for s in secrets if s)
        self._lock = threading.RLock()
        self._closed = False
        self._labels: dict[CrossConnect, str] = {}
        self._quiet_until = 0.0
        #: When the last write began, monotonic seconds.
        self._written_at = 0.0

    # Methods that a driver for one kind of switch implements.

    @abstractmethod
    def _read(self, deadline: Deadline) -> Snapshot:
        """Return everything that the switch reports about its cross-connects and ports.

        Raises Unreachable, DeadlineExceeded, AuthFailed, PermissionDenied, ProtocolError. Never returns less
        than was reported.
        """

    @abstractmethod
    def _remove(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        """Remove exactly these (at most ``max_remove``) and wait for the acknowledgement.

        Raises Unreachable or DeadlineExceeded only if nothing was sent, Refused (or PermissionDenied,
        AuthFailed; StaleRevision if another client was faster) if the switch rejected the write,
        Indeterminate in every other case.
        """

    @abstractmethod
    def _add(self, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        """Make exactly these (at most ``max_batch``), whose ports are free. Raises as `_remove`."""

    def _replace(self, whole: Sequence[CrossConnect], deadline: Deadline) -> None:
        """Make these (at most ``max_replace``) and remove all others in one write, which leaves those that
        stay untouched. Raises as `_remove`."""
        raise Unsupported("there is no write that replaces everything")

    def _write_and_read(
        self, verb: Verb, batch: Sequence[CrossConnect], deadline: Deadline
    ) -> Snapshot | None:
        """Make a write and return the reading afterwards, if one message can request both, else None.

        Raises the errors of `_remove`, and ProtocolError.
        """
        self._send(verb, batch, deadline)
        return None

    def _open(self, deadline: Deadline) -> Identity:
        """Start a session. Return the switch's identity. Raises Unreachable, AuthFailed, ProtocolError."""
        self._read(deadline)
        return Identity("unknown", type(self).__name__)

    def _close(self) -> None:  # noqa: B027 (optional)
        """Give up the session; must not fail."""

    def _set_port_enabled(self, port: int, enabled: bool, deadline: Deadline) -> None:
        """Enable or disable one port. Raises as `_remove`."""
        raise Unsupported("ports cannot be disabled")

    def _power(self, ports: Sequence[int], deadline: Deadline) -> Mapping[int, float | None]:
        """Return the optical power in dBm of ports that have a meter; -inf for no light, None or no entry if
        not reported.
        """
        return {}

    def _factory_loss(
        self, cross_connects: Sequence[CrossConnect], deadline: Deadline
    ) -> Mapping[CrossConnect, float]:
        """Return the insertion loss in dB of paths as measured by the manufacturer; no
        entry if not reported.
        """
        return {}

    def _alarms(self, snapshot: Snapshot, deadline: Deadline) -> Iterable[Alarm]:
        """Return the alarms that do not follow from the ports' states: light that the meters miss."""
        metered = sorted(snapshot.used & self._capabilities.power)
        return los_alarms(snapshot, self._power(metered, deadline)) if metered else ()

    # Methods that the controller calls.

    def open(self, *, timeout_s: float = 5.0) -> Identity:
        """Start a session. Return the switch's identity.

        Raises Unreachable, AuthFailed, ProtocolError, DeadlineExceeded.
        """
        deadline = Deadline(timeout_s)
        with self._device(deadline, reopen=True):
            return self._open(deadline)

    def close(self) -> None:
        """End the session; circuits stay lit. May be called again."""
        got = self._lock.acquire(timeout=5.0)
        if not got:
            log.warning("%s: closed while an operation is still running", self.name)
        try:
            self._closed = True
            self._close()
        finally:
            if got:
                self._lock.release()

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def snapshot(self, *, timeout_s: float = 5.0) -> Snapshot:
        """Return the present state of the switch, read now.

        Raises OpticalError if the read fails; never returns an empty state for a failed read.
        """
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            return self._reading(deadline)

    def plan(
        self,
        requested: Iterable[CrossConnect],
        mode: Mode = Mode.UPDATE,
        *,
        delete: Iterable[int] = (),
        owned: Iterable[CrossConnect] | None = None,
        snapshot: Snapshot | None = None,
        timeout_s: float = 5.0,
        anew: bool = False,
    ) -> Plan:
        """Return a plan from ``snapshot`` (default: read now); see :func:`make_plan`. Writes nothing.

        Raises a :class:`~controller.optical.errors.Rejected` naming the port, OpticalError if the switch
        cannot be read.
        """
        base = snapshot or self.snapshot(timeout_s=timeout_s)
        return make_plan(self._capabilities, base, requested, mode, delete, owned, anew)

    def replaces_at_once(self, plan: Plan) -> bool:
        """Return whether :meth:`apply` removes and adds in one write, so that ports are dark for one dark
        time.

        Only in REPLACE mode: such a write also removes what someone else has made since the plan.
        """
        return (
            plan.mode is Mode.REPLACE
            and not plan.anew
            and bool(plan.remove and plan.add)
            and not set(plan.remove) & set(plan.add)
            and len(plan.keep) + len(plan.add) <= self._capabilities.max_replace
        )

    def apply(
        self, plan: Plan, *, timeout_s: float = 10.0, settle: bool = True, seen: Snapshot | None = None
    ) -> ApplyResult:
        """Carry out a plan. Return the state that the switch shows afterwards.

        ``seen``: the reading of this driver from which the plan was made. The switch is not read again before
        the first write if that reading is younger than `FRESH_S` and this driver has written nothing since,
        except if the plan is one write that would also remove what someone else has made. ``settle=False``
        returns without waiting for light; cross-connects may be PENDING_CONNECTION. Raises StaleRevision,
        PortDisabled, PortFailed, Unreachable, DeadlineExceeded or Refused with nothing changed; PartialApply
        or ReadBackMismatch with the result in it; Indeterminate.
        """
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            before = seen if seen is not None and self._is_fresh(seen, plan) else self._reading(deadline)
            return self._apply(plan, before, deadline, settle)

    def set_port_enabled(self, port: int, enabled: bool, *, timeout_s: float = 5.0) -> PortStatus:
        """Enable or disable a port, keeping its cross-connects. Return the state that the switch shows
        afterwards.

        Raises NoSuchPort and Unsupported. Raises Unreachable, DeadlineExceeded, Refused (PermissionDenied,
        AuthFailed, StaleRevision) with nothing changed; ReadBackMismatch; Indeterminate.
        """
        if port not in self._capabilities.ports:
            raise NoSuchPort(port, f"there is no port {port}")
        if not self._capabilities.port_admin:
            raise Unsupported("ports cannot be enabled or disabled")
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            self._written_at = time.monotonic()
            try:
                self._set_port_enabled(port, enabled, deadline)
            except (Indeterminate, ProtocolError) as error:
                raise self._unknown(f"port {port}: {error}") from error
            try:
                status = self._reading(deadline).ports[port]
            except OpticalError as error:
                raise self._unknown(f"port {port}: written, but the read-back failed: {error}") from error
            if status.enabled is not enabled:
                word = "enabled" if status.enabled else "disabled"
                raise ReadBackMismatch(f"port {port} is still {word}")
            return status

    def power_dbm(self, ports: Iterable[int], *, timeout_s: float = 5.0) -> dict[int, float | None]:
        """Return the optical power in dBm by port; None for a port without a meter or without light to
        measure.

        Raises NoSuchPort.
        """
        requested = tuple(ports)
        for port in requested:
            if port not in self._capabilities.ports:
                raise NoSuchPort(port, f"there is no port {port}")
        metered = [port for port in requested if port in self._capabilities.power]
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            powers = self._power(metered, deadline) if metered else {}
        return {port: None if powers.get(port) == -math.inf else powers.get(port) for port in requested}

    def factory_loss_db(
        self, cross_connects: Iterable[CrossConnect], *, timeout_s: float = 10.0
    ) -> dict[CrossConnect, float | None]:
        """Return the insertion loss in dB of paths, as measured by the manufacturer, connected or not.

        None for a path whose loss the switch does not report. Raises NoSuchPort and WrongSide.
        """
        requested = tuple(cross_connects)
        for xc in requested:
            check_cross_connect(self._capabilities, xc)
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            losses = self._factory_loss(requested, deadline)
        return {xc: losses.get(xc) for xc in requested}

    def alarms(self, *, snapshot: Snapshot | None = None, timeout_s: float = 5.0) -> tuple[Alarm, ...]:
        """Return the present alarms, read from the switch.

        Alarms of ports and cross-connects are derived from ``snapshot`` (default: read now). Raises
        OpticalError if the read fails.
        """
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            if snapshot is None:
                snapshot = self._reading(deadline)
            status_alarms = []
            for port, status in sorted(snapshot.ports.items()):
                if status.state is PortState.FAILED:
                    status_alarms.append(Alarm("PORT_FAILED", port, f"port {port} has failed"))
                elif not status.enabled:
                    status_alarms.append(Alarm("PORT_DISABLED", port, f"port {port} is disabled"))
            return (*status_alarms, *self._alarms(snapshot, deadline))

    def redact(self, text: str) -> str:
        """Return the text with every secret masked."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    # Internals.

    @contextmanager
    def _device(self, deadline: Deadline, reopen: bool = False) -> Iterator[None]:
        """Yield with the switch locked for this thread. Errors that leave contain no secret."""
        if not self._lock.acquire(timeout=max(0.0, deadline.left_s)):
            raise Busy("busy with another request")
        try:
            if reopen:
                self._closed = False
            if self._closed:
                raise Unreachable("the driver is closed")
            yield
        except OpticalError as error:
            error.args = tuple(self.redact(str(arg)) for arg in error.args)
            if isinstance(error, ProtocolError):
                error.raw = self.redact(error.raw)
            raise
        finally:
            self._lock.release()

    def _send(self, verb: Verb, batch: Sequence[CrossConnect], deadline: Deadline) -> None:
        writes = {"remove": self._remove, "add": self._add, "replace": self._replace}
        writes[verb](batch, deadline)

    def _reading(self, deadline: Deadline) -> Snapshot:
        """Return a reading, checked for being possible at all. Raises OpticalError."""
        deadline.sleep_until(self._quiet_until)
        deadline.check()
        return self._checked(self._read(deadline))

    def _checked(self, snapshot: Snapshot) -> Snapshot:
        """Return a reading with its time and the known names. Raises ProtocolError if it is impossible."""
        known = self._capabilities.ports
        if snapshot.ports.keys() != known:
            odd = sorted(snapshot.ports.keys() ^ known)
            raise ProtocolError(f"reported other ports than it has: {odd[:8]}")
        try:
            check_matching(
                xc
                for xc, state in snapshot.cross_connects.items()
                if state not in (CrossConnectState.PENDING_DELETION, CrossConnectState.INVALID)
            )
        except MatchingError as error:
            raise ProtocolError(f"impossible state: {error}") from None
        for xc in snapshot.cross_connects:
            if xc.ingress not in known or xc.egress not in known:
                raise ProtocolError(f"reported {xc}, which has no such ports")
        labelled = {
            xc if (name := xc.name or self._labels.get(xc)) == xc.name else replace(xc, name=name): state
            for xc, state in snapshot.cross_connects.items()
        }
        return replace(snapshot, cross_connects=labelled, taken_at=time.monotonic())

    def _is_fresh(self, seen: Snapshot, plan: Plan) -> bool:
        """Return whether a reading is recent enough to replace another reading before the
        plan's first write.
        """
        age_s = time.monotonic() - seen.taken_at
        return age_s <= FRESH_S and seen.taken_at > self._written_at and not self.replaces_at_once(plan)

    def _apply(self, plan: Plan, before: Snapshot, deadline: Deadline, settle: bool) -> ApplyResult:
        if before.revision != plan.base_revision:
            raise StaleRevision("the switch changed after the plan was made; nothing was written")
        check_ports_usable(before, plan.add)
        batches = self._writes(plan)
        timing = self._capabilities.timing
        needed_s = sum(
            timing.command.typical_s + _touched(changed) * timing.per_cross_connect_s
            for _, _, changed in batches
        )
        if settle and plan:
            needed_s += max(timing.settle_s, timing.dark.typical_s if plan.add else 0.0)
        if deadline.left_s < needed_s:
            raise DeadlineExceeded(
                f"the plan needs about {needed_s:.3f} s, "
                f"of which {max(0.0, deadline.left_s):.3f} s are left; nothing was written"
            )

        lit_before = {spot for xc in before.cross_connects for spot in _spots(xc)}
        dark_at: dict[tuple[int, int | None], float] = {}
        refusal: OpticalError | None = None
        done = 0
        lit_by = before.taken_at
        read_back: Snapshot | None = None
        try:
            for number, (verb, batch, changed) in enumerate(batches, start=1):
                deadline.check()
                lit_by = time.monotonic() + timing.lit_after_s(_touched(changed))
                for xc in changed:
                    for spot in _spots(xc):
                        if spot in lit_before:
                            dark_at.setdefault(spot, time.monotonic())
                self._written_at = time.monotonic()
                answered_s = timing.after_answer_s
                left_s = timing.lit_after_s(_touched(changed)) if answered_s is None else answered_s
                if number < len(batches) or (plan.add and settle and left_s > 0.0):
                    self._send(verb, batch, deadline)
                else:
                    read_back = self._write_and_read(verb, batch, deadline)
                if read_back is None and answered_s is None:
                    # One that answered later than declared may have begun later, too.
                    lit_by = max(lit_by, time.monotonic() + timing.dark.most_s)
                elif read_back is None:
                    lit_by = time.monotonic() + left_s
                done += 1
        except (Refused, PermissionDenied, AuthFailed, StaleRevision) as error:
            if done == 0 and isinstance(error, StaleRevision):
                raise
            refusal = error
        except (Unreachable, DeadlineExceeded) as error:
            if done == 0:
                raise
            raise self._unknown(f"{done} of {len(batches)} writes were made, then: {error}") from error
        except (Indeterminate, ProtocolError) as error:
            raise self._unknown(f"write {done + 1} of {len(batches)}: {error}") from error

        try:
            if refusal is not None:
                # A part may have been done, and gets the time that it needs; the rest is not waited for.
                read_back, lit_by = self._reading(deadline), 0.0
            after = self._settled(plan, deadline, lit_by, settle, read_back) if batches else before
        except OpticalError as error:
            raise self._unknown(f"written, but the read-back failed: {error}") from error
        self._remember_names(plan, after)
        result = ApplyResult(plan, _judge(plan, after, dark_at, refusal, settle), after, done)
        return self._verdict(result, before, refusal)

    def _writes(self, plan: Plan) -> list[_Write]:
        if self.replaces_at_once(plan):
            whole = tuple(sorted(plan.keep | set(plan.add), key=_order))
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

    def _verdict(self, result: ApplyResult, before: Snapshot, refusal: OpticalError | None) -> ApplyResult:
        """Return the result if it is as planned.

        Raises the refusal if nothing was changed, else PartialApply or ReadBackMismatch with the result in
        it.
        """
        if not result.deviations:
            if refusal is not None:
                log.warning("%s: refused, yet done: %s", self.name, self.redact(str(refusal)))
            return result
        if refusal is not None:
            if result.snapshot.revision == before.revision:
                raise refusal
            raise PartialApply(f"partly done: {refusal}", result) from refusal
        first = result.deviations[0]
        more = f" (and {len(result.deviations) - 1} more)" if len(result.deviations) > 1 else ""
        raise ReadBackMismatch(f"{first.ingress}->{first.egress}: {first.reason}{more}", result)

    def _settled(
        self, plan: Plan, deadline: Deadline, lit_by: float, settle: bool, read_back: Snapshot | None
    ) -> Snapshot:
        """Return a reading once everything is as planned, or as late as it could still become so.

        ``read_back``: the first reading, if it came with the last write; else None.
        """
        if read_back is not None:
            snapshot = self._checked(read_back)
        else:
            if plan.add and settle:
                deadline.sleep_until(lit_by)
            snapshot = self._reading(deadline)
        settled_by = self._written_at + self._capabilities.timing.settle_s if settle else 0.0
        comes = set(plan.add)
        goes = [xc for xc in plan.remove if xc not in comes]
        while True:
            pending = any(snapshot.state(xc) in _PENDING for xc in (*plan.add, *plan.remove))
            late = any(xc not in snapshot.cross_connects for xc in plan.add) or any(
                xc in snapshot.cross_connects for xc in goes
            )
            soon = time.monotonic() + POLL_S
            if not (pending and settle) and not (late and soon < lit_by):
                if late or snapshot.taken_at >= settled_by:
                    return snapshot
                soon = settled_by
            try:
                deadline.sleep_until(soon)
                snapshot = self._reading(deadline)
            except DeadlineExceeded:
                # The last reading says what is still missing.
                return snapshot

    def _unknown(self, reason: str) -> Indeterminate:
        """Return the error for an unknown outcome.

        Until a pending command has taken effect, nothing is read.
        """
        late_s = self._capabilities.timing.lit_after_s(self._capabilities.max_batch)
        self._quiet_until = time.monotonic() + late_s
        return Indeterminate(f"outcome unknown, read before retrying: {reason}")

    def _remember_names(self, plan: Plan, after: Snapshot) -> None:
        """Names live here: no switch driven so far stores them."""
        named = {xc: xc.name for xc in (*plan.keep, *plan.add) if xc.name}
        self._labels = {xc: name for xc, name in (self._labels | named).items() if xc in after.cross_connects}


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
        t_dark = min((dark_at[spot] for spot in _spots(xc) if spot in dark_at), default=None)
        t_lit = after.taken_at if is_lit and after.state(xc) is CrossConnectState.CONNECTED else None
        return CrossConnectResult(
            xc.ingress, xc.egress, action, after.state(xc), reason, t_dark, t_lit, xc.name, xc.wavelength
        )

    fine = {CrossConnectState.CONNECTED}
    comes = set(plan.add)
    for xc in sorted(plan.keep, key=_order):
        state = after.state(xc)
        gone = state is CrossConnectState.ABSENT
        results.append(entry(xc, "keep", "vanished while others were changed" if gone else ""))
    for xc in plan.remove:
        if xc in comes:
            continue
        state = after.state(xc)
        gone = state is CrossConnectState.ABSENT or (
            not settled and state is CrossConnectState.PENDING_DELETION
        )
        results.append(entry(xc, "remove", "" if gone else why or "still there after its removal"))
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
            after.cross_connects.keys() - plan.keep - set(plan.add) - set(plan.remove), key=_order
        ):
            results.append(entry(xc, "foreign", "made by someone else meanwhile"))
    for ingress in plan.absent:
        results.append(CrossConnectResult(ingress, None, "remove", CrossConnectState.ABSENT))
    return tuple(results)
