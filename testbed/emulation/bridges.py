"""Packet switches of a lab, which are Open vSwitch bridges, and the controller that they connect to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mininet.node import OVSSwitch

from ringlight.fabric.parts import OURS
from ringlight.testbed.emulation.kernel import netlink
from ringlight.testbed.emulation.nodes import Jack, ShellLess
from ringlight.testbed.lab import OVS_LABEL, Lab

#: Longest pause before a bridge tries its controller again, milliseconds.
RECONNECT_MS = 1000


class PacketSwitch(ShellLess, OVSSwitch):  # type: ignore[misc]
    """An Open vSwitch bridge under OpenFlow 1.3 whose port numbers are the fabric's.

    Without a controller it forwards nothing (fail mode secure), unless it is to do without one
    (``controller``: none), and then learns and floods. ``qos``: the record that tells Open vSwitch
    to leave queueing to others; without it the shaping of a port would be removed as the port is added.
    ``forwarded``: a device forwards by its tables, which it reads with OpenFlow 1.5.
    """

    def __init__(
        self,
        name: str,
        *,
        lab: Lab,
        dpid: int,
        qos: str = "@noop",
        controller: str = OURS,
        forwarded: bool = False,
        **params: Any,
    ) -> None:
        # Others' applications may be older than ours.
        protocols = "OpenFlow13" if controller == OURS else "OpenFlow10,OpenFlow13"
        self.lab = lab
        self.controller = controller
        self.qos = qos
        self.commands: list[str] = []
        params.pop("listenPort", None)
        super().__init__(
            name,
            dpid=f"{dpid:x}",
            failMode="standalone" if controller == "none" else "secure",
            datapath="kernel" if has_kernel_datapath() else "user",
            protocols=f"{protocols},OpenFlow15" if forwarded else protocols,
            reconnectms=RECONNECT_MS,
            batch=True,
            **params,
        )

    @classmethod
    def isOldOVS(cls) -> bool:
        return False

    def bridgeOpts(self) -> str:
        return f"{super().bridgeOpts()} external_ids:{OVS_LABEL}={self.lab.id}"

    def intfOpts(self, intf: Jack) -> str:
        options = f"{super().intfOpts(intf)} mtu_request={netlink.MTU_BYTES}"
        return f"{options} -- set Port {intf} qos={self.qos}"

    def add_port_command(self, intf: Jack) -> list[str]:
        """Return the part of an ovs-vsctl command that adds a port."""
        return shlex.split(f"-- add-port {self} {intf}{self.intfOpts(intf)}")

    def take_commands(self) -> list[str]:
        """Return the words of one ovs-vsctl command that does what :meth:`start` has left to be done."""
        words = shlex.split(" ".join(self.commands))
        self.commands.clear()
        return words


@dataclass(frozen=True)
class ControllerAddress:
    """Address of the controller that bridges connect to; it need not listen yet."""

    host: str
    port: int
    name: str = "c0"
    protocol: str = "tcp"

    def IP(self) -> str:
        return self.host

    @classmethod
    def parse(cls, text: str) -> ControllerAddress:
        """Parse ``host:port`` or ``tcp:host:port``. Return the address."""
        host, _, port = text.removeprefix("tcp:").rpartition(":")
        return cls(host, int(port))

    @property
    def target(self) -> str:
        """Address as Open vSwitch writes it."""
        return f"{self.protocol}:{self.host}:{self.port}"


def has_kernel_datapath() -> bool:
    """Return whether Open vSwitch can forward in the kernel. Otherwise it forwards in its own process."""
    return Path("/sys/module/openvswitch").exists()
