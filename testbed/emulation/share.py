"""A testbed's share of a lab: by default all of it, where the testbed is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringlight.fabric.frames import LARGEST_MTU_BYTES

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pyroute2.iproute import IPRoute

    from ringlight.fabric.parts import Port
    from ringlight.testbed.deaths import Deaths
    from ringlight.testbed.devices import Site
    from ringlight.testbed.emulation.agent.http import LabWorkers
    from ringlight.testbed.emulation.agent.workers import Workers
    from ringlight.testbed.emulation.fault_targets import FaultRequest, FaultTarget
    from ringlight.testbed.emulation.nodes import ControllerAddress

#: What begins a fault, and what ends it; None if it is over once it has begun.
Piece = tuple["Callable[[], None]", "Callable[[], None] | None"]


class Share:
    """The nodes of a fabric that a testbed builds, and what joins them to the lab's others.

    Nothing is elsewhere unless a subclass says so. ``open_ends``: ports here at the ends of links whose other
    ends are elsewhere. ``mtu_bytes``: IP packets of workers are no longer.
    """

    open_ends: frozenset[Port] = frozenset()
    mtu_bytes: int = LARGEST_MTU_BYTES

    def is_here(self, node: str) -> bool:
        """Return whether this testbed builds a node."""
        return True

    def open(
        self, site: Site, controller: ControllerAddress, deaths: Deaths, stop: Callable[[], None]
    ) -> ControllerAddress:
        """Begin, before anything of the lab is there. Return where the switches here find the controller.

        ``controller``: where it listens. ``deaths``: where to note what ends elsewhere. ``stop``: has this
        testbed end. Raises RuntimeError.
        """
        return controller

    def end_link(
        self, root: IPRoute, port: Port, name: str, *, group: int, namespace: int | None, mac: str | None
    ) -> None:
        """Make the interface that is the end of a link at one of the open ends. Raises NetworkError.

        ``root``: of the network namespace through which it leads. ``name``, ``group``, ``mac``: of the
        interface. ``namespace``: descriptor of the network namespace that it is made in; None: that of
        ``root``.
        """
        raise NotImplementedError

    def workers(self, own: Workers) -> LabWorkers:
        """Return the workers that the server agent is asked for. ``own``: those of this testbed."""
        return own

    def routers(self, own: Workers, inventory: Callable[[], Mapping[str, Any]]) -> Sequence[APIRouter]:
        """Return additional routes of the server agent. ``inventory``: returns that of the lab, empty before
        it has one.
        """
        return ()

    def pieces(self, target: FaultTarget, request: FaultRequest) -> tuple[bool, Sequence[Piece]]:
        """Return whether a fault concerns this testbed, and what it is elsewhere."""
        return True, ()

    def impaired(self) -> list[dict[str, Any]]:
        """Return the counters of impaired links elsewhere."""
        return []

    def join(self, inventory: dict[str, Any], deadline_s: float, go_on: Callable[[], None]) -> dict[str, Any]:
        """Return the inventory of the lab, given what is here, once all of it is up.

        ``deadline_s``: latest time of that, by CLOCK_MONOTONIC. ``go_on``: raises an exception if the lab is
        not wanted any more. Raises RuntimeError.
        """
        return inventory

    def end(self) -> None:
        """Have what is elsewhere end, without waiting for it."""

    def close(self) -> None:
        """Wait for the end of what is elsewhere, and remove what :meth:`open` made, also if it failed."""
