"""Plain data of an optical switch: its identity and limits, a reading, a plan, an outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ringlight.fabric.crossconnect import (
    CrossConnect,
    CrossConnectState,
    Mode,
    PortState,
)


@dataclass(frozen=True)
class Identity:
    """Identity that the switch reports. ``unknown``: what it does not tell; only a serial may be empty."""

    vendor: str
    model: str
    serial: str = ""
    version: str = "unknown"


@dataclass(frozen=True)
class Bounds:
    """A declared duration in seconds: least, typical, most."""

    least_s: float = 0.0
    typical_s: float = 0.0
    most_s: float = 0.0


@dataclass(frozen=True)
class Timing:
    """Declared timing.

    ``command``: from a write until it takes effect; each cross-connect adds ``per_cross_connect_s`` seconds.
    ``dark``: from there until a new cross-connect passes packets, the far receiver's re-training included.
    ``after_answer_s``: remainder of that time when the switch answers, if it answers once its own part is
    done; None if an answer implies nothing about light. ``settle_s``: seconds after the last write in which a
    displayed cross-connect may still vanish; the switch is read back once more then.
    """

    command: Bounds = Bounds()
    per_cross_connect_s: float = 0.0
    dark: Bounds = Bounds()
    after_answer_s: float | None = None
    settle_s: float = 0.0

    @classmethod
    def from_profile(cls, profile: Mapping[str, Any]) -> Timing:
        """Return the timing in an inventory entry's ``profile`` (its ``…_s`` keys; absent keys are zero)."""

        def seconds(key: str, default: float = 0.0) -> float:
            return float(profile.get(key, default))

        command, per = seconds("command_s"), seconds("command_per_xc_s")
        dark = seconds("dark_s") + seconds("retrain_s")
        least, most = (
            seconds("dark_min_s", dark),
            seconds("dark_max_s", dark + seconds("dark_jitter_s")),
        )
        typical = seconds("dark_typ_s", (least + most) / 2)
        return cls(Bounds(command, command, command), per, Bounds(least, typical, most))

    def lit_after_s(self, count: int) -> float:
        """Return the seconds after which a write of ``count`` cross-connects has certainly given light."""
        return self.command.most_s + count * self.per_cross_connect_s + self.dark.most_s


@dataclass(frozen=True)
class Capabilities:
    """Abilities of an optical switch.

    ``ingress`` and ``egress``: port numbers (a single-sided switch has each port in both). ``reach``:
    egresses of each ingress that cannot reach all of them. ``max_batch``: largest number of cross-connects
    per write. ``max_remove``: the same for a write that removes, if that is smaller (0: equal).
    ``max_replace``: largest whole set that one write can substitute for the present one, 0 if there is no
    such write. ``power``: ports with a power meter. ``wavelengths``: number of channels that the switch
    distinguishes, 0 for none. ``ownership``: the switch records who made a cross-connect. ``light``: the
    switch reports missing light, by meters or otherwise.
    """

    ingress: frozenset[int]
    egress: frozenset[int]
    max_batch: int
    timing: Timing = Timing()
    max_replace: int = 0
    power: frozenset[int] = frozenset()
    port_admin: bool = False
    ownership: bool = False
    wavelengths: int = 0
    reach: Mapping[int, frozenset[int]] = field(default_factory=dict)
    max_remove: int = 0
    light: bool = True

    @classmethod
    def dual_sided(
        cls, size: int, max_batch: int, profile: Mapping[str, Any], **more: Any
    ) -> Capabilities:
        """Return the abilities of a switch with ingress ports 1..size and egress ports size+1..2*size.

        Each port has a power meter, and the timing is the timing of the ``profile``.
        """
        ingress, egress = dual_sided(size)
        timing = Timing.from_profile(profile)
        return cls(ingress, egress, max_batch, timing, power=ingress | egress, **more)

    @cached_property
    def ports(self) -> frozenset[int]:
        return self.ingress | self.egress

    def egresses(self, ingress: int) -> frozenset[int]:
        """Return the egresses to which the ingress can be connected."""
        return self.reach.get(ingress, self.egress) - {ingress}


def dual_sided(size: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ingress ports 1..size and the egress ports size+1..2*size."""
    return frozenset(range(1, size + 1)), frozenset(range(size + 1, 2 * size + 1))


@dataclass(frozen=True)
class PortStatus:
    """State of a port, and whether it is administratively enabled.

    A port is TUNING while its mirrors move, and BLOCKED without a cross-connect, and where it is disabled,
    which leaves its cross-connect.
    """

    state: PortState
    enabled: bool = True


@dataclass(frozen=True)
class Snapshot:
    """Reading of a switch.

    ``cross_connects``: all that it shows, with their states; PENDING_CONNECTION while mirrors still move.
    ``ports``: every port of the switch, used or not. ``foreign``: cross-connects that the switch attributes
    to another owner. The base class fills in ``taken_at``. Such as, of a switch with two ingresses, where
    1->3 stands and port 4 is disabled::

        Snapshot("ocs0", {CrossConnect(1, 3): CrossConnectState.CONNECTED}, {
            1: PortStatus(PortState.TUNED), 2: PortStatus(PortState.BLOCKED),
            3: PortStatus(PortState.TUNED), 4: PortStatus(PortState.BLOCKED, enabled=False)})
    """

    switch: str
    cross_connects: Mapping[CrossConnect, CrossConnectState]
    ports: Mapping[int, PortStatus]
    foreign: frozenset[CrossConnect] = frozenset()
    taken_at: float = 0.0

    @cached_property
    def revision(self) -> str:
        """Digest of the present cross-connects; equal for two readings with the same cross-connects."""
        order = sorted(
            (xc.ingress, xc.egress, -1 if xc.wavelength is None else xc.wavelength)
            for xc in self.cross_connects
        )
        return hashlib.sha256(repr((self.switch, order)).encode()).hexdigest()[:16]

    @cached_property
    def used(self) -> frozenset[int]:
        """Ports with a cross-connect."""
        return frozenset(
            port for xc in self.cross_connects for port in (xc.ingress, xc.egress)
        )

    def state(self, cross_connect: CrossConnect) -> CrossConnectState:
        return self.cross_connects.get(cross_connect, CrossConnectState.ABSENT)


@dataclass(frozen=True)
class Plan:
    """Change from one state of a switch to another, as data.

    ``absent``: ingresses that were to be deleted and carry nothing. ``anew``: every wanted cross-connect is
    made again, even if present; removals and additions are never one write then.
    """

    base_revision: str
    mode: Mode
    keep: frozenset[CrossConnect]
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    absent: tuple[int, ...] = ()
    anew: bool = False

    @property
    def dark_ports(self) -> frozenset[int]:
        """Ports that lose light while the plan is carried out."""
        return frozenset(
            port for xc in (*self.remove, *self.add) for port in (xc.ingress, xc.egress)
        )

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)


@dataclass(frozen=True)
class CrossConnectResult:
    """Outcome for one cross-connect of a plan.

    ``reason``: empty if the cross-connect is as wanted. ``wavelength``: its channel on a WSS. ``t_dark``:
    time at which its ports lost light (of its wavelength; None: they had none). ``t_lit``: time at which it
    was read back as connected (None: it is not). Times in monotonic seconds.
    """

    ingress: int
    egress: int | None
    action: Literal["keep", "remove", "add", "foreign"]
    state: CrossConnectState
    reason: str = ""
    t_dark: float | None = None
    t_lit: float | None = None
    name: str | None = None
    wavelength: int | None = None


@dataclass(frozen=True)
class ApplyResult:
    """Outcome of a plan: one entry per cross-connect, and the reading that shows it.

    ``writes``: number of batches that the switch acknowledged.
    """

    plan: Plan
    results: tuple[CrossConnectResult, ...]
    snapshot: Snapshot
    writes: int

    @property
    def deviations(self) -> tuple[CrossConnectResult, ...]:
        """Entries that are not as planned."""
        return tuple(r for r in self.results if r.reason)


@dataclass(frozen=True)
class Alarm:
    """Condition that a person should know. ``port`` is None if it concerns the whole switch."""

    kind: Literal["LOS", "PORT_FAILED", "PORT_DISABLED", "SWITCH"]
    port: int | None
    text: str
