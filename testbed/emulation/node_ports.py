"""Nodes of a lab and their ports: in which namespace the interface of each port is, and its name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ringlight.fabric.parts import Link, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.bridges import PacketSwitch
from ringlight.testbed.emulation.kernel import namespaces
from ringlight.testbed.emulation.nodes import Cable, DeviceNode, OpenCable, ShellLess
from ringlight.testbed.emulation.onic.wiring import OnicNode
from ringlight.testbed.emulation.share import Share
from ringlight.testbed.lab import NIC, Lab

T = TypeVar("T")


class NodePorts:
    """The nodes of a lab that are here. ``share``: what of the lab is here.

    ``nodes``: by the fabric's name, for a GPU its O-NIC. ``cables``: those that are plugged in with a worker,
    by the port of its NIC. ``lock``: held while cables, and what links do to frames, change.
    """

    def __init__(self, lab: Lab, fabric: Fabric, share: Share) -> None:
        self.lab, self.fabric, self.share = lab, fabric, share
        self.nodes: dict[str, ShellLess] = {}
        self.cables: dict[Port, Cable | OpenCable] = {}
        self.lock = threading.RLock()

    @property
    def onics(self) -> dict[str, OnicNode]:
        """The O-NICs by GPU."""
        return {
            gpu: node for gpu, node in self.nodes.items() if isinstance(node, OnicNode)
        }

    def has_gpu(self, *ports: Port) -> bool:
        """Return whether the cable is plugged in with a worker. The cable of an O-NIC is fixed."""
        gpus = self.fabric.gpus.keys() - self.fabric.onics.keys()
        return any(port.node in gpus for port in ports)

    def interface(self, port: Port) -> str:
        """Return the name of a switch's port in the switch's own namespace."""
        node = self.nodes[port.node]
        return (
            f"p{port.number}"
            if isinstance(node, DeviceNode | OnicNode)
            else self.lab.interface(port.node, port.number)
        )

    def ends_here(self, link: Link) -> list[Port]:
        """Return the ends of a link that are here."""
        return [port for port in (link.a, link.b) if self.share.is_here(port.node)]

    def is_bare(self, port: Port) -> bool:
        """Return whether the port is the NIC of a GPU without an O-NIC, which is plugged in with its
        worker."""
        return port.node in self.fabric.gpus and port.node not in self.fabric.onics

    def redirects(self, port: Port) -> bool:
        """Return whether an eBPF program sends from a port."""
        return not self.is_bare(port) and not isinstance(
            self.nodes[port.node], PacketSwitch
        )

    def place_of(self, port: Port) -> tuple[int | None, str] | None:
        """Return namespace and name of a port's interface; None where nothing is plugged in."""
        here = self.ends_here(self.fabric.link_at[port])
        bare = next((end for end in here if self.is_bare(end)), None)
        if bare is not None and bare not in self.cables:
            return None
        if bare == port:
            return self.cables[port].intf2.node.namespace, NIC
        return self.nodes[port.node].namespace, self.interface(port)

    def inside(self, node: ShellLess, function: Callable[[], T]) -> T:
        """Run ``function`` where the node's interfaces are. Return its value."""
        return (
            function()
            if node.namespace is None
            else namespaces.in_namespace(node.namespace, function)
        )
