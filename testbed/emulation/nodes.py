"""Mininet nodes without a shell, the cables between them, and devices in namespaces of their own.

Mininet starts a shell behind a pseudo-terminal for each node and configures through it. Here no node has
one: settings are made by netlink (:mod:`testbed.emulation.kernel.netlink`) and bridges in one transaction, so
that bring-up does not grow by a handful of processes per node. ``node.cmd`` and ``node.popen`` still work.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Node
from pyroute2.iproute import IPRoute

from ringlight.testbed.emulation.kernel import namespaces, netlink
from ringlight.testbed.emulation.kernel.netns import HELD_GROUP
from ringlight.testbed.lab import Lab


class ShellLess(Node):  # type: ignore[misc]
    """A node without a shell. ``namespace``: descriptor of its network namespace, None for the machine's."""

    namespace: int | None = None
    lab: Lab

    def link_group(self, _interface: str) -> int:
        """Return the kernel's interface group for one of the node's interfaces."""
        return self.lab.link_group

    @classmethod
    def checkSetup(cls) -> None:
        """Mininet looks for ifconfig and starts ovs-vsctl here; neither is needed."""

    def startShell(self, mnopts: str | None = None) -> None:
        """There is none."""

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        """Run one command, without a shell, in the node's namespace. Return what the command printed.

        Mininet's own calls of ifconfig are left out, because netlink does that work.
        """
        words = shlex.split(" ".join(str(word) for word in args))
        if not words or words[0] == "ifconfig":
            return ""

        def run() -> str:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=30,
                check=False,
            )
            return done.stdout

        return (
            run()
            if self.namespace is None
            else namespaces.in_namespace(self.namespace, run)
        )


class Jack(Intf):  # type: ignore[misc]
    """One end of a cable. It is configured by whoever plugs it."""

    def config(self, **_params: Any) -> dict[str, Any]:
        return {}

    def delete(self) -> None:
        self.node.delIntf(self)
        self.link = None


class Cable(Link):  # type: ignore[misc]
    """A veth pair whose ends are born in the nodes' namespaces."""

    @classmethod
    def makeIntfPair(
        cls,
        intfname1: str,
        intfname2: str,
        addr1: str | None = None,
        addr2: str | None = None,
        node1: Any = None,
        node2: Any = None,
        deleteIntfs: bool = True,
    ) -> None:
        with IPRoute() as root:
            netlink.create_veth(
                root,
                intfname1,
                intfname2,
                group=node1.link_group(intfname1),
                namespace=node1.namespace,
                peer_namespace=node2.namespace,
                peer_mac=addr2,
            )


class OpenCable:
    """The end here of a link whose other end is elsewhere; as a cable, which has two."""

    def __init__(self, node: ShellLess, port: int, name: str) -> None:
        self.intf1 = self.intf2 = Jack(
            name, node=node, port=port, moveIntfFn=lambda *_: None
        )

    def delete(self) -> None:
        """Mininet is to forget it."""
        self.intf1.delete()


class DeviceNode(ShellLess):
    """The network namespace of a device that is a process; its port p is the interface ``p<p>`` in it."""

    def __init__(self, name: str, *, lab: Lab, netns: str, **params: Any) -> None:
        self.lab = lab
        self.netns = netns
        self.namespace = namespaces.create_namespace(netns)
        super().__init__(name, **params)

    def terminate(self) -> None:
        """Forget the namespace; it ends when the device's process has."""
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
            namespaces.delete_namespace(self.netns)
        super().terminate()


class IdleHost(DeviceNode):
    """The network namespace on a GPU's NIC while no worker holds the GPU; nothing runs in it by itself."""

    def __init__(self, name: str, *, gpu: str, **params: Any) -> None:
        self.gpu = gpu
        super().__init__(name, **params)


class OpticalNode(DeviceNode):
    """An optical switch. ``held``: interfaces that are to stay down."""

    def __init__(self, name: str, **params: Any) -> None:
        self.held: set[str] = set()
        super().__init__(name, **params)

    def link_group(self, interface: str) -> int:
        return HELD_GROUP if interface in self.held else super().link_group(interface)
