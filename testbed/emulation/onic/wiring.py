"""Places and wires O-NICs: a namespace for each, and one control network for all.

An O-NIC's namespace has ``host`` (its GPU's NIC, while a worker holds the GPU), ``p0`` and ``p1`` (fibres to
its row's and its column's WSS) and ``ctl``. The control network is a Linux bridge in a namespace of its own;
control address and MAC of an O-NIC are those of its GPU with one number changed. Its bridge forwards to each
O-NIC what is for its agent and what is for its GPU, by static entries.

Rates are kept at ``p0`` and ``p1``, behind the one interface that the GPU has: so each fibre port has its own
rate, whichever peers it leads to, and acknowledgements, which take the control network, never wait behind
payload. What waits there still counts as the sender's: TCP puts no more than about a millisecond's worth of
a connection into a queue below it, by the socket that the packets belong to, which they keep on this way. So
bytes queue in the sender, and the queue at the port, deeper than what TCP puts there, drops nothing.

An O-NIC with an array of transmitters has one such queue for each wavelength of each port and no agent: which
transmitter leads to a peer is set from outside for as long as a job lasts, and what the light meets on its
way around the ring is up to the WSSs.

Where light stands, nobody asks for it: a peer has any number of lightpaths, which all carry what is sent to
it, and which change while it is on its way. So payload waits before its way is chosen. It leaves by ``qo``,
comes in at the other end of that cable, ``qi``, and goes to the fibre ports, which have no queues. ``qo`` has
a queue for each peer and each number of lightpaths, made once, so that only the table of lightpaths changes.
What finds no light goes round through its queue at the peer's own rate until there is some. Nothing is lost,
TCP does not send again what is still in a queue of its own host, and what went round together comes out at
most a few frames out of order. Measured with one connection at 12.5 to 100 Mbit/s over 1 to 8 lightpaths, ten
dark times of 0.1 s or two of 2 s: nothing sent again, 0.994 to 0.999 of the rate while lit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2.iproute import IPRoute

from ringlight.fabric.parts import Gpu, Port
from ringlight.fabric.topology import Fabric, channels
from ringlight.testbed.emulation.kernel import addressing, namespaces, netlink, shaping
from ringlight.testbed.emulation.kernel.netns import set_ipv6_off
from ringlight.testbed.emulation.kernel.network_errors import NetworkError, failing
from ringlight.testbed.emulation.nodes import ShellLess
from ringlight.testbed.emulation.onic.datapath import OnicDatapath
from ringlight.testbed.emulation.onic.tables import CONTROL, HOST, HOST_NAME, QUEUE
from ringlight.testbed.lab import Lab

#: What the control network is called in an O-NIC's namespace.
CONTROL_NAME = "ctl"
#: The two ends of the cable through which payload waits where light stands.
QUEUE_NAME, QUEUED_NAME = "qo", "qi"
CONTROL_PREFIX = 16
BRIDGE = "bridge"
#: Depth of a fibre port's queue: more than TCP leaves below it, for a few connections at once.
PORT_QUEUE_BYTES = 16 << 20
_GPU_NETWORK, _CONTROL_NETWORK = 82, 83
_NTF_MASTER, _NUD_NOARP = 0x04, 0x40


def control_ip(gpu: Gpu) -> str:
    """Return the address of the O-NIC's agent: 10.83.x.y for the GPU's 10.82.x.y."""
    first, second, *rest = gpu.ip.split(".")
    assert int(second) == _GPU_NETWORK
    return ".".join([first, str(_CONTROL_NETWORK), *rest])


def control_mac(gpu: Gpu) -> str:
    """Return the MAC address of ``ctl``: 02:52:4c:01:x:y for the GPU's 02:52:4c:00:x:y."""
    octets = gpu.mac.split(":")
    assert octets[3] == "00"
    return ":".join([*octets[:3], "01", *octets[4:]])


@dataclass(frozen=True)
class Standing:
    """Light that stands: the peers, by IPv4 address in the order of their queues, the rate of one lightpath
    (bits per second), and how many lightpaths a peer has at most."""

    peers: tuple[str, ...]
    rate_bps: float
    most: int

    @property
    def queues(self) -> dict[str, int]:
        """The class of the first queue of each peer, see :func:`shaping.shape_peers`."""
        return {ip: 1 + number * self.most for number, ip in enumerate(self.peers)}


class OnicNode(ShellLess):
    """The namespace of one O-NIC and its packet side."""

    def __init__(
        self, name: str, *, lab: Lab, gpu: Gpu, netns: str, pins: Path, **params: Any
    ) -> None:
        self.lab = lab
        self.gpu = gpu
        self.netns = netns
        self.namespace = namespaces.create_namespace(netns)
        self.pins = pins
        self.datapath: OnicDatapath | None = None
        super().__init__(name, **params)

    def arm(
        self,
        ports: Sequence[tuple[float, float]],
        agents: Sequence[Gpu],
        wavelengths: int | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Bring up ``ctl`` and the fibre ports, given as (bits per second, seconds of queue).

        ``agents``: GPUs whose O-NICs this one's agent talks to; it needs no ARP for them. ``wavelengths``:
        how many transmitters of that rate each port has at once; None for one tunable laser. ``standing``:
        its payload waits in queues of these peers instead, and the ports send what comes.
        """
        try:
            queues = None if standing is None else standing.queues
            datapath = self.datapath = OnicDatapath(self.pins, self.gpu.mac, queues)
        except OSError as error:
            raise NetworkError(
                f"O-NIC of {self.gpu.name}: {error.strerror or error}"
            ) from None

        def inside() -> None:
            namespaces.configure_namespace()
            with IPRoute() as here:
                netlink.set_up(here, "lo")
                for number, (rate_bps, queue_s) in enumerate(ports):
                    index = netlink.index_of(f"p{number}")
                    if standing is None:
                        _shape(here, index, rate_bps, queue_s, wavelengths)
                    self._plug(datapath, number, netlink.set_up(here, f"p{number}"))
                if standing is not None:
                    netlink.create_veth(here, QUEUE_NAME, QUEUED_NAME)
                    shaping.shape_peers(
                        QUEUE_NAME,
                        standing.rate_bps,
                        len(standing.peers),
                        standing.most,
                    )
                    queue, queued = (
                        netlink.set_up(here, name) for name in (QUEUE_NAME, QUEUED_NAME)
                    )
                    self._plug(datapath, QUEUE, queue, queued)
                index = netlink.set_up(here, CONTROL_NAME)
                self._plug(datapath, CONTROL, index)
                neighbours = [(control_ip(gpu), control_mac(gpu)) for gpu in agents]
                ip = control_ip(self.gpu)
                addressing.address(
                    here,
                    index,
                    ip,
                    CONTROL_PREFIX,
                    rto_min_s=None,
                    neighbours=neighbours,
                )

        assert self.namespace is not None
        namespaces.in_namespace(self.namespace, inside)

    def plug_host(self) -> None:
        """The worker's NIC has been plugged in as ``host``: bring it up and let it send."""
        datapath = self.datapath
        assert datapath is not None

        def inside() -> None:
            with IPRoute() as here:
                # First the program, then the light: nothing may reach the stack of this namespace.
                self._plug(datapath, HOST, netlink.index_of(HOST_NAME))
                netlink.set_up(here, HOST_NAME)

        assert self.namespace is not None
        namespaces.in_namespace(self.namespace, inside)

    def _plug(
        self, datapath: OnicDatapath, port: int, index: int, comes_in: int | None = None
    ) -> None:
        try:
            datapath.plug(port, index, comes_in)
        except OSError as error:
            raise NetworkError(
                f"O-NIC of {self.gpu.name}: {error.strerror or error}"
            ) from None

    def terminate(self) -> None:
        """Forget the namespace; it ends when the agent's process has."""
        if self.datapath is not None:
            self.datapath.close()
            self.datapath = None
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
            namespaces.delete_namespace(self.netns)
        super().terminate()


def _shape(
    here: IPRoute, index: int, rate_bps: float, queue_s: float, wavelengths: int | None
) -> None:
    """A fibre port of one tunable laser, or of so many transmitters at once."""
    if wavelengths is None:
        shaping.shape(
            here, index, rate_bps, queue_s, least_queue_bytes=PORT_QUEUE_BYTES
        )
    else:
        shaping.shape_wavelengths(
            *(here, index, rate_bps, queue_s, wavelengths),
            least_queue_bytes=PORT_QUEUE_BYTES,
        )


class ControlNetwork:
    """The bridge that joins the agents, and the GPUs for what is not payload."""

    def __init__(self, lab: Lab) -> None:
        self._netns = lab.namespace("control")
        self._namespace: int | None = namespaces.create_namespace(self._netns)

    def join(self, onics: Sequence[OnicNode]) -> None:
        """Make the bridge with a port for each O-NIC, whose ``ctl`` it makes too. Raises NetworkError."""
        namespace = self._namespace
        assert namespace is not None
        names = [f"c{index}" for index in range(len(onics))]

        def inside() -> None:
            with IPRoute() as here:
                for key in ("all", "default"):
                    set_ipv6_off(key)
                with failing("control network"):
                    here.link(
                        "add", ifname=BRIDGE, kind="bridge", mtu=netlink.MTU_BYTES
                    )
                bridge = netlink.set_up(here, BRIDGE)
                for name, onic in zip(names, onics, strict=True):
                    netlink.create_veth(
                        here,
                        name,
                        CONTROL_NAME,
                        peer_namespace=onic.namespace,
                        peer_mac=control_mac(onic.gpu),
                    )
                with failing("control network"):
                    index_of = {
                        link.get("ifname"): link["index"] for link in here.get_links()
                    }
                    for name, onic in zip(names, onics, strict=True):
                        port = index_of[name]
                        here.link("set", index=port, master=bridge, state="up")
                        for mac in (onic.gpu.mac, control_mac(onic.gpu)):
                            here.fdb(
                                "add",
                                ifindex=port,
                                lladdr=mac,
                                state=_NUD_NOARP,
                                flags=_NTF_MASTER,
                            )

        namespaces.in_namespace(namespace, inside)

    def close(self) -> None:
        if self._namespace is not None:
            os.close(self._namespace)
            self._namespace = None
            namespaces.delete_namespace(self._netns)


def onic_directory(state: Path, gpu: str) -> Path:
    """Return the directory of the sockets and the map of a GPU's O-NIC agent, under a lab's state
    directory."""
    return state / "onics" / gpu


def array_wavelengths(fabric: Fabric, gpu: str) -> int | None:
    """Return the number of transmitters at each port of a GPU's O-NIC, None if its lasers are tunable or its
    light is permanent."""
    if fabric.onics[gpu].transmitters == "tunable" or fabric.onics[gpu].standing:
        return None
    return channels(fabric, Port(gpu, 0))


def light_peers(fabric: Fabric) -> dict[str, set[str]]:
    """Return the O-NICs that each O-NIC may reach by light, by GPU: those at the same optical switches."""
    peers: dict[str, set[str]] = {gpu: set() for gpu in fabric.onics}
    for switch in fabric.optical_switches.values():
        ends = [Port(switch.name, number) for number in range(1, switch.size + 1)]
        there = {
            fabric.link_at[end].other(end).node for end in ends if end in fabric.link_at
        }
        for gpu in there & peers.keys():
            peers[gpu] |= there & peers.keys() - {gpu}
    return peers


def standing_light(
    fabric: Fabric, gpu: str, rate_bps: Callable[[float], float]
) -> Standing | None:
    """Return the settings of an O-NIC with permanent light, None for other O-NICs. ``rate_bps``: turns a real
    rate into the emulated rate."""
    onic = fabric.onics[gpu]
    if not onic.standing:
        return None
    standing = (
        peer for peer, other in fabric.onics.items() if other.standing and peer != gpu
    )
    peers = tuple(fabric.gpus[peer].ip for peer in standing)
    colours = channels(fabric, Port(gpu, 0)) or 1
    return Standing(
        peers, rate_bps(fabric.link_at[Port(gpu, 0)].rate_bps), onic.ports * colours
    )


def is_tagged(fabric: Fabric, switch: str) -> bool:
    """Return whether the switch is a WSS for arrays of lasers: packets carry their colour themselves."""
    if fabric.optical_switches[switch].wavelengths is None:
        return False
    ends = {
        port.node
        for link in fabric.links
        if switch in (link.a.node, link.b.node)
        for port in (link.a, link.b)
    }
    return any(
        onic.transmitters == "array"
        for gpu, onic in fabric.onics.items()
        if gpu in ends
    )


def laser_ids(fabric: Fabric, gpu: str) -> tuple[int, ...]:
    """Return the numbers of the transmitters of a GPU's O-NIC in the lab's laser map, by port."""
    first = 2 * list(fabric.gpus).index(gpu)
    return tuple(range(first, first + fabric.onics[gpu].ports))


def lasers_of_switch(fabric: Fabric, switch: str) -> dict[int, int]:
    """Return the laser that is plugged into each faceplate port of a WSS, by port."""
    lasers = {}
    for gpu in fabric.agents:
        ids = laser_ids(fabric, gpu)
        for number in range(fabric.onics[gpu].ports):
            far = fabric.link_at[Port(gpu, number)].other(Port(gpu, number))
            if far.node == switch:
                lasers[far.number] = ids[number]
    return lasers
