"""Links that change by themselves in a simulation: the contract for what changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringlight.testbed.simulation.engine import Engine


@dataclass(frozen=True)
class Passage:
    """A link of the fabric, as what changes it has it.

    ``links``: returns the engine's numbers of the links that pass it in the present network, with their
    capacity in bytes per second. ``time_out_s``: after so many seconds a sender into a link that carries
    nothing finds out by a time-out. ``restored``: to be called when such a link carries something again.
    """

    engine: Engine
    links: Callable[[], Sequence[tuple[int, float]]]
    time_out_s: float
    restored: Callable[[], None]


class LinkCourse(Protocol):
    """The changes of one link by itself, from its making on."""

    def wake(self) -> None:
        """Go on: something may happen again, so that it matters how the link is."""

    def settle(self) -> None:
        """Set the link in a network that has changed."""

    def end(self) -> None:
        """End the changes. The link is as its rate says from now on."""
