"""Commands to an emulated optical switch, its answers, and the effects that its datapath carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

NS = 1_000_000_000


class Admin(Enum):
    """Administrative state of a port."""

    ENABLED = 0
    DISABLED = 1
    FAILED = 2


class Recovery(Enum):
    """Handling of a switch's light when the switch is switched on again, in the words of the Open Compute
    Project's model (cold-boot-recovery)."""

    #: The mirrors stood while the switch was away, and light with them.
    MAINTAIN = "maintain"
    #: What stood is made again: dark until the mirrors have found their paths.
    RESTORE = "restore"
    #: The switch starts without a cross-connect.
    REMOVE = "remove"


class Fault(Enum):
    """Reason for a refused command."""

    RANGE = "no such port, or on the wrong side"
    CONFLICT = "at odds with what is set"
    HARDWARE = "a port has failed"


class DeviceError(Exception):
    """A command was refused and has changed nothing. ``fault`` tells why, the message which port."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Wire(NamedTuple):
    """A cross-connect; ``wavelength`` is a channel of a WSS, None of any other switch."""

    ingress: int
    egress: int
    wavelength: int | None = None

    @property
    def spot(self) -> tuple[int, int | None]:
        """Return the ingress and the wavelength at which the light comes in."""
        return self.ingress, self.wavelength

    def __str__(self) -> str:
        colour = "" if self.wavelength is None else f" on wavelength {self.wavelength}"
        return f"{self.ingress}->{self.egress}{colour}"


#: Ingress and egress, and the wavelength where there are some.
Pairs = tuple[tuple[int, int] | tuple[int, int, int | None], ...]
#: Where light is, at an ingress or an egress: port and wavelength.
Spot = tuple[int, int | None]


class TunedEgress(NamedTuple):
    """Egress of light at an ingress, and when it begins to get through (nanoseconds). ``ghost``: it is shown,
    and there is none."""

    egress: int
    ready_ns: int
    ghost: bool = False


@dataclass(frozen=True)
class Stored:
    """State that a device keeps over a restart."""

    cross_connects: Mapping[Spot, TunedEgress] = field(default_factory=dict)
    admin: Mapping[int, Admin] = field(default_factory=dict)
    labels: Mapping[int, str] = field(default_factory=dict)
    recovery: Recovery = Recovery.MAINTAIN
    notes: Mapping[str, Any] = field(default_factory=dict)


# Commands


@dataclass(frozen=True)
class Rewire:
    """Removes exactly the cross-connects ``remove`` (with ``only`` everything but those of ``add``) and adds
    ``add``, in one; of these, what exists already is left untouched. Refused when one to be removed does not
    exist, or when one to be added has a disabled port, unless ``blocked``: then light waits for the port."""

    add: Pairs = ()
    remove: Pairs = ()
    only: bool = False
    blocked: bool = False


@dataclass(frozen=True)
class Clear:
    """Removes whatever these ports take part in, on every wavelength. ``ingress``: none may be an egress."""

    ports: tuple[int, ...]
    ingress: bool = False


@dataclass(frozen=True)
class SetAdmin:
    """Enables or disables ports; cross-connects stay as they are meant, only the light is blocked."""

    ports: tuple[int, ...]
    enabled: bool


@dataclass(frozen=True)
class SetLabel:
    port: int
    label: str


@dataclass(frozen=True)
class SetRecovery:
    """Effect that sets what the next start does with light."""

    recovery: Recovery


@dataclass(frozen=True)
class Together:
    """Carries out commands in this order, all of them or none."""

    commands: tuple[Rewire | SetAdmin | SetLabel, ...]


Command = Rewire | Clear | SetAdmin | SetLabel | SetRecovery | Together

# Effects, to be carried out in order


class Light(NamedTuple):
    """The ingress feeds the egress, less ``loss_db``; packets pass from ``ready_ns`` on."""

    ingress: int
    egress: int
    ready_ns: int
    wavelength: int | None = None
    loss_db: float = 0.0


class Dark(NamedTuple):
    """The ingress feeds nothing (on that wavelength)."""

    ingress: int
    wavelength: int | None = None


@dataclass(frozen=True)
class Gate:
    """The port is opened or blocked."""

    port: int
    admin: Admin


#: What a port is called, and what the next start does, is for the datapath to remember.
Effect = Light | Dark | Gate | SetLabel | SetRecovery


@dataclass(frozen=True)
class Mishap:
    """Fault of one command.

    ``share``: share of the command's changes that is still carried out, the removals first. With a share
    below 1 the command is refused. ``late_ns``: how much later than usual its light is tuned, nanoseconds.
    ``ghost``: the new cross-connects are shown like any other and have no light.
    """

    share: float = 1.0
    late_ns: int = 0
    ghost: bool = False


@dataclass
class Ticket:
    """A command on its way. When ``done``, either ``error`` is set or its light is tuned at ``tuned_ns``.

    ``made``: the new cross-connects. ``partly``: it was refused when some of it had been done.
    """

    done: bool = False
    error: DeviceError | None = None
    tuned_ns: int = 0
    made: tuple[Wire, ...] = ()
    partly: bool = False
