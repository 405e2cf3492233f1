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

A driver for another switch writes `_read`, `_remove` and `_add`; everything above is done for it
(:mod:`.planning`, :mod:`.plan_run`, :mod:`.safe_reading`). Optional:
`_open`, `_close`, `_write_and_read`, `_set_port_enabled`, `_power`, `_factory_loss`, `_alarms`. Its class is
made of the switch's name, inventory entry and size, and of the OpenFlow plane (:mod:`.registry`). All times
are seconds of ``time.monotonic()``. Drivers are synchronous and may be used from several threads; one
operation runs on a switch at a time.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ringlight.controller.optical.alarms import los_alarms, port_alarms
from ringlight.controller.optical.deadline import Deadline
from ringlight.controller.optical.errors import (
    Busy,
    Indeterminate,
    NoSuchPort,
    OpticalError,
    ProtocolError,
    ReadBackMismatch,
    Unreachable,
    Unsupported,
)
from ringlight.controller.optical.model import (
    Alarm,
    ApplyResult,
    Capabilities,
    Identity,
    Plan,
    PortStatus,
    Snapshot,
)
from ringlight.controller.optical.plan_run import PlanRun, Verb
from ringlight.controller.optical.planning import (
    check_cross_connect,
    make_plan,
    replaces_at_once,
)
from ringlight.controller.optical.safe_reading import SafeReader
from ringlight.fabric.crossconnect import CrossConnect, Mode

log = logging.getLogger(__name__)


class OpticalSwitchDriver(ABC):
    """Base of every driver; see the top of this file for what it does and what a subclass adds.

    A driver has ``self.name`` and ``self.size``. ``secrets`` are strings that must never appear in a log line
    or an error.
    """

    def __init__(
        self, name: str, capabilities: Capabilities, secrets: Iterable[str] = ()
    ) -> None:
        self.name = name
        #: Ingress ports.
        self.size = len(capabilities.ingress)
        self._capabilities = capabilities
        self._secrets = tuple(s for s in secrets if s)
        self._lock = threading.RLock()
        self._closed = False
        self._reader = SafeReader(capabilities, lambda deadline: self._read(deadline))

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

    def _power(
        self, ports: Sequence[int], deadline: Deadline
    ) -> Mapping[int, float | None]:
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
            return self._reader.reading(deadline)

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
        return replaces_at_once(self._capabilities, plan)

    def apply(
        self,
        plan: Plan,
        *,
        timeout_s: float = 10.0,
        settle: bool = True,
        seen: Snapshot | None = None,
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
            stands = (
                seen is not None
                and self._reader.is_fresh(seen)
                and not self.replaces_at_once(plan)
            )
            run = PlanRun(
                plan,
                seen if seen is not None and stands else self._reader.reading(deadline),
                deadline,
                settle=settle,
                capabilities=self._capabilities,
                reader=self._reader,
                send=self._send,
                send_and_read=self._write_and_read,
            )
            result = run.carry_out()
            if run.refusal is not None:
                log.warning(
                    "%s: refused, yet done: %s",
                    self.name,
                    self.redact(str(run.refusal)),
                )
            return result

    def set_port_enabled(
        self, port: int, enabled: bool, *, timeout_s: float = 5.0
    ) -> PortStatus:
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
            self._reader.note_write()
            try:
                self._set_port_enabled(port, enabled, deadline)
            except (Indeterminate, ProtocolError) as error:
                raise self._reader.unknown(f"port {port}: {error}") from error
            try:
                status = self._reader.reading(deadline).ports[port]
            except OpticalError as error:
                reason = f"port {port}: written, but the read-back failed: {error}"
                raise self._reader.unknown(reason) from error
            if status.enabled is not enabled:
                word = "enabled" if status.enabled else "disabled"
                raise ReadBackMismatch(f"port {port} is still {word}")
            return status

    def power_dbm(
        self, ports: Iterable[int], *, timeout_s: float = 5.0
    ) -> dict[int, float | None]:
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
        return {
            port: None if powers.get(port) == -math.inf else powers.get(port)
            for port in requested
        }

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

    def alarms(
        self, *, snapshot: Snapshot | None = None, timeout_s: float = 5.0
    ) -> tuple[Alarm, ...]:
        """Return the present alarms, read from the switch.

        Alarms of ports and cross-connects are derived from ``snapshot`` (default: read now). Raises
        OpticalError if the read fails.
        """
        deadline = Deadline(timeout_s)
        with self._device(deadline):
            if snapshot is None:
                snapshot = self._reader.reading(deadline)
            return (*port_alarms(snapshot), *self._alarms(snapshot, deadline))

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

    def _send(
        self, verb: Verb, batch: Sequence[CrossConnect], deadline: Deadline
    ) -> None:
        writes = {"remove": self._remove, "add": self._add, "replace": self._replace}
        writes[verb](batch, deadline)
