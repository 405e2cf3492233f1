"""The share of a lab that one testbed builds: by default all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringlight.fabric.frames import LARGEST_MTU_BYTES

if TYPE_CHECKING:
    from pyroute2.iproute import IPRoute

    from ringlight.fabric.parts import Port


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

    def end_link(
        self,
        root: IPRoute,
        port: Port,
        name: str,
        *,
        group: int,
        namespace: int | None,
        mac: str | None,
    ) -> None:
        """Make the interface that is the end of a link at one of the open ends. Raises NetworkError.

        ``root``: of the network namespace through which it leads. ``name``, ``group``, ``mac``: of the
        interface. ``namespace``: descriptor of the network namespace that it is made in; None: that of
        ``root``.
        """
        raise NotImplementedError
