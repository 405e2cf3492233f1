"""States of a lab's ports: which are held down, and which are not as they should be."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable

from pyroute2.iproute import IPRoute

from ringlight.fabric.parts import Port
from ringlight.testbed.deaths import ProcessKind
from ringlight.testbed.emulation import openvswitch
from ringlight.testbed.emulation.bridges import PacketSwitch
from ringlight.testbed.emulation.kernel import netlink, netns
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.node_ports import NodePorts
from ringlight.testbed.emulation.nodes import OpticalNode

log = logging.getLogger(__name__)

#: Longest wait for the kernel to tell of a carrier that has come or gone, seconds.
CARRIER_S = 2.0


class PortStates:
    """Ports of switches and O-NICs. ``held``: those that faults hold down. ``attached``: those of packet
    switches that lead to a GPU and are finished."""

    def __init__(self, places: NodePorts) -> None:
        self._places = places
        self.held: frozenset[Port] = frozenset()
        self.attached: frozenset[Port] = frozenset()

    def hold_down(self, ports: Collection[Port]) -> None:
        """Hold these ports of switches and O-NICs down, and no others, whatever is plugged in there later.

        A port that is down has no carrier, and neither has what it leads to. Read back. Raises NetworkError.
        Where the other end is elsewhere, this end is held down, too, as the kernel would not tell it.
        """
        ends = [
            port
            for port in self._places.share.open_ends
            if not self._places.is_bare(port)
        ]
        far = {
            port
            for port in ends
            if self._places.fabric.link_at[port].other(port) in ports
        }
        with self._places.lock:
            held = frozenset({*ports, *far})
            changed = sorted(
                port
                for port in self.held ^ held
                if self._places.share.is_here(port.node)
            )
            self.held = held
            for port in changed:
                self.set_state(port)
        deadline = time.monotonic() + CARRIER_S
        for port in changed:
            while (wrong := self._wrong_state(port)) is not None:
                if time.monotonic() > deadline:
                    raise NetworkError(f"{port} {wrong}")
                time.sleep(0.005)

    def set_state(self, port: Port) -> None:
        """Down where it is held; where nothing is plugged in, only note it."""
        node, name, held = (
            self._places.nodes[port.node],
            self._places.interface(port),
            port in self.held,
        )
        group = None
        if isinstance(node, OpticalNode):
            (node.held.add if held else node.held.discard)(name)
            group = node.link_group(name)

        def inside() -> None:
            with IPRoute() as here:
                netlink.set_state(here, name, up=not held, group=group)

        self._places.inside(node, inside)

    def _wrong_state(self, port: Port) -> str | None:
        """Return how a port's state differs from the intended state, None if it does not or if there is no
        interface."""
        name, far = (
            self._places.interface(port),
            self._places.fabric.link_at[port].other(port),
        )

        def inside() -> netlink.LinkState | None:
            with IPRoute() as here:
                return netlink.link_state(here, name)

        state = self._places.inside(self._places.nodes[port.node], inside)
        if state is None:
            return None
        if port in self.held:
            return "is up" if state.up or state.carrier else None
        if not state.up:
            return "is down"
        return None if state.carrier or far in self.held else "has no carrier"

    def await_carriers(self, name: str) -> None:
        """Wait until a packet switch's ports that lead to other switches are up."""
        deadline = time.monotonic() + CARRIER_S
        for port, link in self._places.fabric.link_at.items():
            if port.node != name or self._places.has_gpu(*self._places.ends_here(link)):
                continue
            while (wrong := self._wrong_state(port)) is not None:
                if time.monotonic() > deadline:
                    log.warning("%s %s as its controller is called", port, wrong)
                    return
                time.sleep(0.005)

    def astray(self, links: Iterable[netns.Link]) -> dict[tuple[ProcessKind, str], str]:
        """Return the packet switches' bridges and ports that are not as they should be, with the reason:
        deleted, removed from the bridge, or down though nothing holds the port down.

        ``links``: all interfaces of the machine's own namespace. Raises OSError, ValueError.
        """
        states = {link.name: link for link in links}
        members = openvswitch.members()
        problems: dict[tuple[ProcessKind, str], str] = {}
        bridges = {
            name: str(node)
            for name, node in [*self._places.nodes.items()]
            if isinstance(node, PacketSwitch)
        }
        for name, bridge in bridges.items():
            if bridge not in states or bridge not in members:
                problems["bridge", name] = f"{bridge} was deleted"
        for port, link in self._places.fabric.link_at.items():
            bridge = bridges.get(port.node, "")
            fixed = (
                not self._places.has_gpu(*self._places.ends_here(link))
                or port in self.attached
            )
            if (
                not bridge
                or ("bridge", port.node) in problems
                or not fixed
                or port in self.held
            ):
                continue
            name, far = self._places.interface(port), link.other(port)
            state = states.get(name)
            if state is None:
                problems["port", str(port)] = f"{name}, to {far}, was deleted"
            elif not state.up:
                problems["port", str(port)] = f"{name}, to {far}, was set down"
            elif not state.carrier and far not in self.held:
                problems["port", str(port)] = f"{name} has no carrier, as {far} is down"
            elif name not in members[bridge]:
                problems["port", str(port)] = (
                    f"{name}, to {far}, was removed from {bridge}"
                )
        return problems
