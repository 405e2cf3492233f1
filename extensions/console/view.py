"""A lab that runs in other processes, as a Mininet object: nodes with a shell, interfaces and links.

Nothing is built here and nothing of the lab is removed: a node is a shell in the namespace where the node's
interfaces are. It is started with the node's first command, and anew when the node has moved, as a GPU does
when a job takes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from mininet.link import Intf
from mininet.link import Link as MininetLink
from mininet.net import Mininet
from mininet.node import Node

from ringlight.fabric.parts import Port
from ringlight.testbed.emulation.attached import Attached, NodePlace
from ringlight.testbed.emulation.onic.tables import HOST_NAME
from ringlight.testbed.lab import NIC, LabError

#: Longest command at a node on another host, seconds.
ELSEWHERE_S = 60.0


class Plug(Intf):  # type: ignore[misc]
    """An interface. ``label``: what people call it: a port of the fabric, or node and interface."""

    label = ""

    def config(self, **_params: Any) -> dict[str, Any]:
        """Return an empty dict: the interface is already configured."""
        return {}

    def __str__(self) -> str:
        return self.label or str(self.name)

    def updateIP(self) -> str | None:
        """Return the IP address, for which Mininet would call ifconfig."""
        ip: str | None = self.ip
        return ip

    def status(self) -> str:
        """Return the state as Mininet's links report it: OK, or what is wrong."""
        return str(self.node.states().get(self.name, "MISSING"))

    def isUp(self, setUp: bool = False) -> bool:
        """Return whether the interface and its far end are up."""
        return self.status() == "OK"


class ViewedWire(MininetLink):  # type: ignore[misc]
    """A cable that is plugged in already."""

    @classmethod
    def makeIntfPair(cls, *_args: Any, **_kwargs: Any) -> None:
        """There is nothing to make."""


class LabNode(Node):  # type: ignore[misc]
    """A node of a lab. ``kind`` as ``inspect`` calls it."""

    def __init__(self, name: str, *, lab: Attached, **params: Any) -> None:
        self.lab = lab
        self.kind = lab.nodes[name]
        self._place: NodePlace | None = None
        self._starting = False
        super().__init__(name, inNamespace=False, **params)

    @classmethod
    def checkSetup(cls) -> None:
        """The launcher has seen to mnexec."""

    def startShell(self, mnopts: str | None = None) -> None:
        """Mininet does so for every node at once; here with the first command."""

    def enter(self) -> None:
        """Have a shell where the node is now. Raises LabError."""
        current = self.lab.place(self.name)
        place = NodePlace(current.namespace, elsewhere=current.elsewhere)
        if self.shell is not None and (
            place != self._place or self.shell.poll() is not None
        ):
            self.terminate()
        if self.shell is None:
            self._place = place
            self._starting = True
            try:
                super().startShell()
            finally:
                self._starting = False

    def _popen(self, cmd: list[str], **params: Any) -> Any:
        assert self._place is not None
        return super()._popen(
            self._place.command(cmd), **{"env": self.lab.environment(), **params}
        )

    def sendCmd(self, *args: Any, **kwargs: Any) -> None:
        """Start a command in the node's shell. Raises LabError."""
        if not self._starting:
            self.enter()
        super().sendCmd(*args, **kwargs)

    def cmd(self, *args: Any, **kwargs: Any) -> str:
        """Run a command in the node's shell. Return what the command printed. Raises LabError.

        If the node is on another host, each command has a shell of its own.
        """
        if (
            not self._starting
            and (there := self.lab.place(self.name)).elsewhere is not None
        ):
            words = " ".join(
                map(
                    str,
                    args[0] if len(args) == 1 and isinstance(args[0], list) else args,
                )
            )
            done = self.lab.run(there, ["sh", "-c", words], timeout_s=ELSEWHERE_S)
            return done.stdout + done.stderr
        if not self._starting:
            self.enter()
        text: str = super().cmd(*args, **kwargs)
        return text

    def popen(self, *args: Any, **kwargs: Any) -> Any:
        """Start a process in the node's network and return it. Raises LabError."""
        self.enter()
        return super().popen(*args, **{"mncmd": [], **kwargs})

    def __repr__(self) -> str:
        """As Mininet's dump, with kernel names."""
        plugs = ",".join(
            plug.name + (f":{plug.IP()}" if plug.IP() else "")
            for plug in self.intfList()
        )
        return f"<{self.kind} {self.name}: {plugs}>"

    def states(self) -> Mapping[str, str]:
        """Return OK or DOWN for every interface in the node's network, by name."""
        try:
            place = self.lab.place(self.name)
        except LabError:
            return {}
        if place.elsewhere is not None:
            return _states_of(
                self.lab.run(place, ["ip", "-j", "link"], timeout_s=10.0).stdout
            )
        if place.namespace is None:
            return _states()
        from ringlight.testbed.emulation.kernel import namespaces

        try:
            descriptor = os.open(place.namespace, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        try:
            return namespaces.in_namespace(descriptor, _states)
        finally:
            os.close(descriptor)


def _states_of(text: str) -> dict[str, str]:
    """The same of what ``ip -j link`` says."""
    links = json.loads(text or "[]")
    return {
        link["ifname"]: "OK" if {"UP", "LOWER_UP"} <= set(link["flags"]) else "DOWN"
        for link in links
    }


def _states() -> dict[str, str]:
    """State of each interface in the calling thread's namespace."""
    # Here, as a prompt comes in half the time without netlink.
    from pyroute2.iproute import IPRoute

    from ringlight.testbed.emulation.kernel import netlink

    with IPRoute() as here:
        states = {
            link.get("ifname"): netlink.state_of(link["flags"])
            for link in here.get_links()
        }
    return {
        str(name): "OK" if state.up and state.carrier else "DOWN"
        for name, state in states.items()
    }


def _at_device(lab: Attached, gpu: str) -> str:
    """The address of a GPU's second NIC."""
    from ringlight.testbed.emulation.device_cables import address_of

    return address_of(lab.fabric, Port(gpu, 1))


class View(Mininet):  # type: ignore[misc]
    """A lab's nodes and links. ``real_bps``: of each link, None for those inside a node."""

    def __init__(self, lab: Attached) -> None:
        # Else it changes settings of the whole machine. It asks its own class, and no subclass.
        Mininet.inited = True
        super().__init__(link=ViewedWire, intf=Plug, controller=None, build=False)
        self.lab = lab
        self.real_bps: dict[Any, float] = {}
        for name, kind in lab.nodes.items():
            node = LabNode(name, lab=lab)
            self.nameToNode[name] = node
            (self.hosts if kind == "gpu" else self.switches).append(node)
        for onic in lab.fabric.onics:
            self._join(
                onic,
                NIC,
                f"{onic}-{NIC}",
                f"onic-{onic}",
                HOST_NAME,
                f"onic-{onic}-{HOST_NAME}",
            )
        for link in (*lab.fabric.links, *lab.fabric.cables):
            (a, of_a, label_a), (b, of_b, label_b) = (
                self._end(port) for port in (link.a, link.b)
            )
            self.real_bps[self._join(a, of_a, label_a, b, of_b, label_b)] = (
                link.rate_bps
            )
        for gpu in lab.fabric.gpus.values():
            if not self[gpu.name].intfs:
                Plug(NIC, self[gpu.name]).label = f"{gpu.name}:0"
            for plug in self[gpu.name].intfList():
                plug.ip = gpu.ip if plug.name == NIC else _at_device(lab, gpu.name)

    def _end(self, port: Port) -> tuple[str, str, str]:
        return self.lab.owner(port), self.lab.interface(port), str(port)

    def _join(
        self, a: str, of_a: str, label_a: str, b: str, of_b: str, label_b: str
    ) -> Any:
        cable = self.addLink(self[a], self[b], intfName1=of_a, intfName2=of_b)
        cable.intf1.label, cable.intf2.label = label_a, label_b
        return cable

    def stop(self) -> None:
        """End the shells; the lab goes on."""
        for node in self.values():
            if node.shell is not None:
                node.terminate()
