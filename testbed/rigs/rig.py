"""Everything that a test needs of a switch except its driver: ports, hosts, its true state, faults.

A rig makes everything with its lab's names and removes it in ``close``, which may be called at any point. A
capability that a kind of rig does not have raises :class:`Lacks`. Who needs it skips a test, and
reports the capability.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal, NoReturn

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.model import ApplyResult
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.rigs.changing import converge
from ringlight.testbed.rigs.network import Host

#: What a rig's drivers with a wrong password use for one.
WRONG_PASSWORD = "wr0ng"
#: What a start does to cross-connects (Open Compute Project): nothing, make them again, remove them.
Recovery = Literal["MAINTAIN", "RESTORE", "REMOVE"]


class Lacks(Exception):
    """This switch or its rig cannot do what is asked of it; the message names that."""


def lacks(what: str) -> NoReturn:
    raise Lacks(what)


class Rig(ABC):
    """Switch under test.

    Ports are numbered as the switch does. Tests use faceplates 1, 2, …: faceplate p is the fibre pair of
    ``inputs[p - 1]`` and ``outputs[p - 1]``.
    """

    #: Where light enters and leaves, by faceplate.
    inputs: Sequence[int]
    outputs: Sequence[int]
    #: An egress that the switch says has failed; it is in neither of them.
    failed_port: int | None = None
    #: The channel that all light has, on a switch that tells wavelengths apart.
    wavelength: int | None = None
    #: By faceplate; empty where no packet passes: what only packets can show is then skipped.
    hosts: dict[int, Host]
    #: What stands on ports that are not the rig's. It stays.
    others: frozenset[CrossConnect] = frozenset()
    #: Whether nothing may be written.
    read_only: bool = False
    #: Whether ``truth`` comes from elsewhere than a driver's reading.
    out_of_band: bool = True
    #: Whether its protocol is known to tell a circuit whose mirrors still move.
    shows_tuning: ClassVar[bool] = False
    #: What can be made to become of cross-connects when the switch starts again.
    recoveries: ClassVar[Sequence[Recovery]] = ("MAINTAIN",)
    #: What is found in those of the ``writes`` that add, and in those that only remove: regular expressions,
    #: whatever the case of letters.
    addition: ClassVar[str]
    removal: ClassVar[str]

    # What can be said of any.

    @classmethod
    def missing(cls) -> str:
        """Return why no rig can be made on this machine; empty if one can."""
        return ""

    @property
    def plugged(self) -> Collection[int]:
        """Faceplates at which light comes in, as far as is known."""
        return self.hosts.keys()

    @property
    def pairs(self) -> int:
        """Return how many circuits there can be at the same time."""
        return min(len(self.inputs), len(self.outputs))

    def xc(self, ingress: int, faceplate: int) -> CrossConnect:
        """Return the cross-connect from one faceplate to another. Raises Lacks if the rig has too few
        ports.
        """
        if ingress > len(self.inputs) or faceplate > len(self.outputs):
            lacks(f"{max(ingress, faceplate)} pairs of ports (there are {self.pairs})")
        return CrossConnect(
            self.inputs[ingress - 1], self.outputs[faceplate - 1], self.wavelength
        )

    def cycle(self, *faceplates: int) -> set[CrossConnect]:
        """Return the cross-connects from each port to the next, and from the last to the first."""
        after = (*faceplates[1:], faceplates[0])
        return {self.xc(a, b) for a, b in zip(faceplates, after, strict=True)}

    def host(self, faceplate: int) -> Host:
        return self.hosts.get(faceplate) or lacks(
            f"a host at faceplate {faceplate}, to send light from"
        )

    def change(
        self,
        driver: OpticalSwitchDriver,
        target: Iterable[CrossConnect],
        mode: Mode = Mode.UPDATE,
        *,
        delete: Iterable[int] = (),
        timeout_s: float = 10.0,
        settle: bool = True,
    ) -> ApplyResult:
        """Read, plan and apply like :func:`converge`, and return the result. Circuits that are not the rig's
        stay in every mode.
        """
        kept = self.others if mode is Mode.REPLACE else ()
        return converge(
            driver,
            [*target, *kept],
            mode,
            delete=delete,
            timeout_s=timeout_s,
            settle=settle,
        )

    def standing(self, driver: OpticalSwitchDriver) -> set[CrossConnect]:
        """Return the cross-connects of the rig's ports that the driver reads."""
        return set(driver.snapshot().cross_connects) - self.others

    def is_removal(self, write: str) -> bool:
        """Return whether a write that was seen on the wire only removes.

        Raises Lacks if the rig cannot see what a write does.
        """
        if re.search(self.removal, write, re.IGNORECASE):
            return True
        if not re.search(self.addition, write, re.IGNORECASE):
            lacks(
                "writes that show on the wire what they do "
                f"({write[:40]!r} matches neither `addition` nor `removal` of {type(self).__name__})"
            )
        return False

    def ended(self) -> str:
        """Return how the switch has ended by itself, on one line; empty if that is not known."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Remove all that was made, and put back what was there."""

    @abstractmethod
    def driver(self, direct: bool = False) -> OpticalSwitchDriver:
        """Return a new driver, not opened. ``direct``: with nothing of the rig in between."""

    @abstractmethod
    def truth(self) -> set[CrossConnect]:
        """Return the cross-connects of the rig's ports, read without the driver's protocol session."""

    @abstractmethod
    def external_connect(self, cross_connect: CrossConnect) -> None:
        """Make a cross-connect as another writer."""

    @abstractmethod
    def wipe(self) -> None:
        """Remove all cross-connects of the rig's ports as another writer, as in a cold start."""

    @abstractmethod
    def writes(self) -> list[str]:
        """Return the write commands since the last call, as seen on the wire or as the driver made them."""

    # What only some can. A default raises Lacks.

    def unreachable(self) -> OpticalSwitchDriver:
        """Return a driver of a switch that does not exist."""
        lacks("an address without a switch")

    def locked_out(self) -> OpticalSwitchDriver | None:
        """Return a driver with a wrong password; None for a switch without a login."""
        return None

    def lit_since(self, cross_connect: CrossConnect) -> float:
        """Return the time of the last write of a cross-connect, in monotonic seconds."""
        lacks("a switch that tells when a circuit was made")

    def packets(self, cross_connect: CrossConnect) -> int:
        """Return how many packets passed a cross-connect since it was written."""
        lacks("counters of packets in the switch")

    def reported_dark_s(self, cross_connect: CrossConnect) -> float:
        """Return how many seconds a cross-connect was dark when it was made last, as the switch itself
        reports.
        """
        lacks("a switch that tells how long a circuit was dark")

    def lose_next_reply(self, effect: bool) -> None:
        """Lose the reply to the next write. ``effect``: after the switch has carried the write out."""
        lacks("a wire that loses replies")

    def broken_reads(self) -> AbstractContextManager[None]:
        """Return a context in which readings fail."""
        lacks("a wire that spoils readings")

    def drop_sessions(self) -> None:
        """Every session with the switch ends; a new one can be made."""
        lacks("a wire that can be cut")

    def idle(self) -> None:
        """Leave the session idle for longer than the switch allows."""
        lacks("a short time until an idle session is ended")

    def fault(
        self, kind: str, *, count: int | None = None, seconds: float | None = None
    ) -> AbstractContextManager[None]:
        """Return a context in which the switch itself misbehaves towards this rig's drivers.

        ``kind``: a fault of the emulated switch (docs/optical-management.md). ``count``: how often at most.
        """
        lacks("faults that can be injected into the switch")

    def locked_by_another(self) -> AbstractContextManager[None]:
        """Return a context in which another session locks the switch. That fails if the driver has kept a
        lock.
        """
        lacks("sessions that lock each other out")

    def plug(self, faceplate: int, plugged: bool) -> None:
        """Put in or take out a host's fibre."""
        lacks("a fibre that can be unplugged")

    def restart(self, recovery: Recovery) -> None:
        """End the switch's control without warning and start it again, in one of the ``recoveries``."""
        lacks("a switch that may be restarted")


@contextmanager
def opened(rig: Rig) -> Iterator[OpticalSwitchDriver]:
    """Yield an open driver. Nothing is set up on the ports of a rig that may be written."""
    driver = rig.driver()
    try:
        driver.open()
        if not rig.read_only:
            rig.change(driver, (), Mode.REPLACE, settle=False)
        rig.writes()
        yield driver
    finally:
        driver.close()
