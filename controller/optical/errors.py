"""Errors between the controller and an optical switch, one class per thing a caller does next.

Every message is one line that names the switch's port or cross-connect; whoever shows it names the switch.
The classes fall into four groups:

- :class:`Rejected`: the request is wrong or does not fit; nothing was sent.
- :class:`Unreachable`, :class:`DeadlineExceeded`, :class:`StaleRevision`: nothing was written; try again.
- :class:`Indeterminate`: something was written and nobody knows what came of it; read before any retry.
- :class:`Refused`, :class:`PartialApply`, :class:`ReadBackMismatch`: written, read back, and not as wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ringlight.controller.optical.model import ApplyResult
from ringlight.fabric.crossconnect import CrossConnect


class OpticalError(Exception):
    """Anything a driver raises."""


class Rejected(OpticalError):
    """The request cannot be carried out as it stands. Nothing was sent to the switch."""


class PortError(Rejected):
    """A request is rejected because of one port. ``port`` is its number."""

    def __init__(self, port: int, message: str) -> None:
        super().__init__(message)
        self.port = port


class NoSuchPort(PortError):
    """The switch has no such port."""


class WrongSide(PortError):
    """An egress given as ingress or an ingress as egress, or two ports the switch cannot join."""


class PortDisabled(PortError):
    """The port is administratively disabled."""


class PortFailed(PortError):
    """The switch reports that the port is broken."""


class PortClash(PortError):
    """Two of the wanted cross-connects want one port."""

    def __init__(
        self, port: int, message: str, first: CrossConnect, second: CrossConnect
    ) -> None:
        super().__init__(port, message)
        self.first = first
        self.second = second


class PortBusy(PortError):
    """The port carries ``holder``, which may not be removed (SAFE mode, or someone else's)."""

    def __init__(self, port: int, message: str, holder: CrossConnect) -> None:
        super().__init__(port, message)
        self.holder = holder


class Unsupported(Rejected):
    """Switch that cannot do what was asked."""


class StaleRevision(OpticalError):
    """The switch changed after the plan was made. Nothing was written; plan again."""


class DeadlineExceeded(OpticalError):
    """Time ran out before anything was written."""


class Busy(DeadlineExceeded):
    """Switch that another operation of this controller used all the time; nothing was asked of it."""


class Unreachable(OpticalError):
    """No session with the switch. Nothing was written."""


class AuthFailed(OpticalError):
    """The switch did not accept the credentials."""


class PermissionDenied(OpticalError):
    """The switch knows the user and does not let them do this."""


class ProtocolError(OpticalError):
    """The switch sent something that its protocol does not allow. ``raw``: the received text, shortened."""

    def __init__(self, message: str, raw: str = "") -> None:
        super().__init__(f"{message}: {raw[:120]!r}" if raw else message)
        self.raw = raw[:400]


class Refused(OpticalError):
    """The switch answered a write with an error of its own, and nothing changed."""


class Indeterminate(OpticalError):
    """A write was sent and its outcome is unknown. Read the switch again before any retry."""


class NotAsPlanned(OpticalError):
    """Written, read back, and different from the plan.

    ``result``: state of each cross-connect now (None if the write was not about cross-connects).
    """

    def __init__(self, message: str, result: ApplyResult | None = None) -> None:
        super().__init__(message)
        self.result = result


class PartialApply(NotAsPlanned):
    """The switch refused a part of the plan; the rest was done."""


class ReadBackMismatch(NotAsPlanned):
    """The switch accepted everything, yet its state differs from the plan."""


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
