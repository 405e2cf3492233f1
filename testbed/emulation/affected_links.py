"""Links that do something to frames besides their rate: by the fabric, or by an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ringlight.fabric.link_effects import Effects, dilated
from ringlight.fabric.parts import Link, Port
from ringlight.testbed.devices import Direction, Forwarder, LinkEffector
from ringlight.testbed.emulation.bridges import PacketSwitch, has_kernel_datapath
from ringlight.testbed.emulation.kernel import namespaces, netlink
from ringlight.testbed.emulation.node_ports import NodePorts
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.lab import NIC


class AffectedLinks:
    """Has devices do to the frames of links what the fabric and events say.

    ``forwarders``, ``effectors``: of the lab's devices. ``all_forwarded``: whether no switch that packets may
    meet is Open vSwitch alone. ``by_link``: what links do to frames now, with emulated times.
    """

    def __init__(
        self,
        places: NodePorts,
        emulation: Emulation,
        forwarders: Sequence[Forwarder],
        effectors: Sequence[LinkEffector],
        all_forwarded: bool,
    ) -> None:
        self._places, self._emulation = places, emulation
        self._forwarders, self._effectors = forwarders, effectors
        self.all_forwarded = all_forwarded
        self.by_link = {
            link: self._own_effects(link)
            for link in places.fabric.links
            if link.effects
        }

    def affect(self, link: Link, effects: Effects) -> None:
        """Have a link do this to frames from now on, emulated times, whatever is plugged in there later.

        It comes in place of what the fabric says under the same key. Raises NetworkError, BuildError,
        OSError.
        """
        with self._places.lock:
            now = {**self._own_effects(link), **effects}
            self.by_link.pop(link, None)
            if now:
                self.by_link[link] = now
            if self.by_link:
                self._choose_offloads()
            self.affect_ends(link)
            if not self.by_link:
                self._choose_offloads()

    def counters(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return what devices have counted since the lab came up, by the name of a kind of counters."""
        counters: dict[str, list[Mapping[str, Any]]] = {}
        with self._places.lock:
            for effector in self._effectors:
                for name, counted in effector.counters().items():
                    counters.setdefault(name, []).extend(counted)
        return counters

    def _own_effects(self, link: Link) -> Effects:
        """Return what the fabric says that a link does to frames, with emulated times."""
        return dilated(link.effects, self._emulation.time_dilation)

    def _leave_to_open_vswitch(self) -> None:
        """Have devices send nothing there: the kernel takes what eBPF has sent past programs at an end."""
        ends = [port for link in self.by_link for port in (link.a, link.b)]
        switches = [
            port
            for port in ends
            if isinstance(self._places.nodes.get(port.node), PacketSwitch)
        ]
        for forwarder in self._forwarders:
            forwarder.leave(map(self._places.interface, switches))

    def affect_ends(self, link: Link) -> None:
        """Have devices do what a link does to frames, at the ends that are plugged in."""
        self._leave_to_open_vswitch()
        effects = self.by_link.get(link)
        if effects is None:
            self.let_be(self._places.ends_here(link))
            return
        rate_bps, directions = (
            self._emulation.rate_bps(link.rate_bps),
            [*self._directions(link)],
        )
        for effector in self._effectors:
            effector.affect(effects, rate_bps, directions)

    def _directions(self, link: Link) -> Iterator[Direction]:
        """Yield the directions of a link whose frames can be met here."""
        for port in self._places.ends_here(link):
            far, from_afar = link.other(port), port in self._places.share.open_ends
            # What comes from elsewhere is received, whatever sent it.
            sends = not from_afar and self._places.redirects(far)
            if (place := self._places.place_of(far if sends else port)) is not None:
                yield Direction(far, port, *place, sends, from_afar)

    def let_be(self, ports: Sequence[Port]) -> None:
        for effector in self._effectors:
            effector.let_be(ports)

    def offloads(self, gpu: str) -> bool:
        """Return whether a host may use checksum and segmentation offload.

        False if a link does something to frames, because a burst would be lost or delayed as one frame, or if
        only Open vSwitch reads the host's frames.
        """
        read = (
            gpu not in self._places.fabric.onics
            and not has_kernel_datapath()
            and not self.all_forwarded
        )
        return not self.by_link and not read

    def _choose_offloads(self) -> None:
        """For the hosts that are plugged in, as they would be plugged in now."""
        for near, cable in self._places.cables.items():
            host = cable.intf2.node
            if near.number == 0 and host.namespace is not None:
                enabled = self.offloads(near.node)
                namespaces.in_namespace(
                    host.namespace, partial(netlink.set_checksum_offload, NIC, enabled)
                )
