"""A lab of which a testbed builds a share: how it answers for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringlight.testbed.emulation.share import Share

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ringlight.testbed.deaths import Deaths
    from ringlight.testbed.devices import Site
    from ringlight.testbed.emulation.agent.http import LabWorkers
    from ringlight.testbed.emulation.agent.workers import Workers
    from ringlight.testbed.emulation.bridges import ControllerAddress
    from ringlight.testbed.emulation.fault_targets import FaultRequest, FaultTarget

#: Functions that begin a fault, and that end it; None if it is over once it has begun.
Piece = tuple["Callable[[], None]", "Callable[[], None] | None"]


class SharedLab(Share):
    """A lab that a testbed builds, by default by itself; a subclass has other testbeds build the rest."""

    def open(
        self,
        site: Site,
        controller: ControllerAddress,
        deaths: Deaths,
        stop: Callable[[], None],
    ) -> ControllerAddress:
        """Begin, before anything of the lab is there. Return where the switches here find the controller.

        ``controller``: where it listens. ``deaths``: where to note what ends elsewhere. ``stop``: has this
        testbed end. Raises RuntimeError.
        """
        return controller

    def workers(self, own: Workers) -> LabWorkers:
        """Return the workers that the server agent is asked for. ``own``: those of this testbed."""
        return own

    def routers(
        self, own: Workers, inventory: Callable[[], Mapping[str, Any]]
    ) -> Sequence[APIRouter]:
        """Return additional routes of the server agent. ``inventory``: returns that of the lab, empty before
        it has one.
        """
        return ()

    def pieces(
        self, target: FaultTarget, request: FaultRequest
    ) -> tuple[bool, Sequence[Piece]]:
        """Return whether a fault concerns this testbed, and what it is elsewhere."""
        return True, ()

    def counters(self) -> Sequence[Mapping[str, list[Mapping[str, Any]]]]:
        """Return what devices elsewhere have counted, by the name of a kind of counters, of each testbed."""
        return ()

    def join(
        self, inventory: dict[str, Any], deadline_s: float, go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Return the inventory of the lab, given what is here, once all of it is up.

        ``deadline_s``: latest time of that, by CLOCK_MONOTONIC. ``go_on``: raises an exception if the lab is
        not wanted any more. Raises RuntimeError.
        """
        return inventory

    def end(self) -> None:
        """Have what is elsewhere end, without waiting for it."""

    def close(self) -> None:
        """Wait for the end of what is elsewhere, and remove what :meth:`open` made, also if it failed."""
