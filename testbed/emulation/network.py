"""The network of a lab: one Mininet object with its bridges, optical switches, cables and workers.

What is fixed in the fabric (links between switches) is built once. A GPU's cable comes and goes with the
worker that holds the GPU.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from mininet.net import Mininet
from pyroute2.iproute import IPRoute

from ringlight.fabric.frames import IN_PACKET_BYTES, choose_frames
from ringlight.fabric.link_effects import Effects, dilated
from ringlight.fabric.parts import OURS, Link, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.deaths import ProcessKind
from ringlight.testbed.devices import Device, Direction, NodeProcesses
from ringlight.testbed.emulation import device_cables, openvswitch
from ringlight.testbed.emulation.bridges import (
    RECONNECT_MS,
    ControllerAddress,
    PacketSwitch,
    has_kernel_datapath,
)
from ringlight.testbed.emulation.buildable import check_fabric, check_names, check_rates
from ringlight.testbed.emulation.kernel import (
    addressing,
    namespaces,
    netlink,
    netns,
    shaping,
)
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.nodes import (
    Cable,
    DeviceNode,
    IdleHost,
    Jack,
    OpenCable,
    OpticalNode,
    ShellLess,
)
from ringlight.testbed.emulation.onic.tables import HOST, HOST_NAME
from ringlight.testbed.emulation.onic.wiring import (
    ControlNetwork,
    OnicNode,
    array_wavelengths,
    standing_light,
)
from ringlight.testbed.emulation.share import Share
from ringlight.testbed.emulation.windows import LATE_S, WAITING_FRAMES, Windows
from ringlight.testbed.emulation.worker_hosts import WorkerHost, WorkerPlace
from ringlight.testbed.lab import NIC, OVS_LABEL, SECOND_NIC, Lab
from ringlight.testbed.lab_programs import program_kinds, waiting

log = logging.getLogger(__name__)

#: Datapath id of the first Open vSwitch bridge that stands for an optical switch.
OPTICAL_DPID = 0x100
ADDRESS_PREFIX = 16
#: Longest wait for the kernel to tell of a carrier that has come or gone, seconds.
CARRIER_S = 2.0
#: Frames by which one may come late before TCP calls it lost, where light stands: those that went round in
#: the dark together come out in the order in which the light finds them.
REORDERING = 30

T = TypeVar("T")


@dataclass(frozen=True)
class Emulation:
    """Scale of the emulation, and settings of TCP.

    ``time_dilation`` D: emulated seconds per real second. ``payload_scale`` S: real bytes per emulated byte.
    Rates are divided by D·S and times multiplied by D. ``rto_min_s``: emulated seconds, None for the kernel's
    own. ``bounded``: workers have few bytes in flight (:meth:`LabNetwork.windows_to`). Not used if an event
    delays frames, because a window must hold the delayed bytes, too.
    """

    time_dilation: float = 1.0
    payload_scale: float = 1.0
    congestion_control: str = "reno"
    rto_min_s: float | None = 0.02
    bounded: bool = False

    def rate_bps(self, real_bps: float) -> float:
        """Return the emulated bits per second of a link of ``real_bps``."""
        return real_bps / (self.time_dilation * self.payload_scale)

    def seconds(self, real_s: float) -> float:
        return real_s * self.time_dilation


class LabNetwork(Mininet):  # type: ignore[misc]
    """:meth:`build` makes the nodes, :meth:`start` joins them; :meth:`plug` and :meth:`unplug` join workers.

    ``programs``: where switches find the programs that write their tables, by the program's name.
    ``devices``: makes the lab's devices, given the datapath id of each bridge here that our controller
    drives. ``share``: what of the lab is here.

    Methods raise NetworkError or OpenVSwitchError with one line. They may be called from several threads.
    """

    def __init__(
        self,
        lab: Lab,
        fabric: Fabric,
        emulation: Emulation,
        controller: ControllerAddress,
        programs: Mapping[str, ControllerAddress] | None = None,
        devices: Callable[[Mapping[str, int]], list[Device]] = lambda _: [],
        share: Share = Share(),
    ) -> None:
        check_fabric(fabric)
        self._programs = {
            program_kinds()[name].controller: where
            for name, where in (programs or {}).items()
        }
        if (why := waiting(fabric, programs or ())) is not None:
            raise ValueError(why)
        check_names(lab, fabric)
        check_rates(fabric, emulation.time_dilation * emulation.payload_scale)
        # Else it changes settings of the whole machine, for good. It asks its own class, and no subclass.
        Mininet.inited = True
        super().__init__(
            switch=PacketSwitch, link=Cable, intf=Jack, controller=None, build=False
        )
        self.lab = lab
        self.fabric = fabric
        self.emulation = emulation
        self.target = controller
        self._share = share
        ours = [switch for switch in fabric.packet_switches.values() if switch.is_ours]
        self._devices = devices(
            {lab.bridge(s.name): s.dpid for s in ours if self.is_here(s.name)}
        )
        #: Of its devices, that of each that has the part.
        self._forwarders = [
            device.forwarder for device in self._devices if device.forwarder is not None
        ]
        self._effectors = [
            device.effector for device in self._devices if device.effector is not None
        ]
        #: Whether no switch that packets may meet is Open vSwitch alone.
        self._all_forwarded = (
            bool(self._forwarders)
            and all(self._is_forwarded(s.name) for s in ours if self.is_here(s.name))
            and not fabric.foreign_switches
            and all(not switch.is_bridge for switch in fabric.optical_switches.values())
        )
        self._nodes: dict[str, ShellLess] = {}
        self._cables: dict[Port, Cable | OpenCable] = {}
        self._control: ControlNetwork | None = None
        self._qos: str | None = None
        self._held: frozenset[Port] = frozenset()
        #: Ports of packet switches that lead to a GPU and are finished.
        self._attached: frozenset[Port] = frozenset()
        self.frames = choose_frames(
            fabric, emulation.time_dilation, emulation.payload_scale
        )
        if self.frames.problem is not None:
            raise ValueError(self.frames.problem)
        self.frames = replace(
            self.frames, mtu_bytes=min(self.frames.mtu_bytes, share.mtu_bytes)
        )
        self._queue_s = {
            link: self.frames.queue_s(index, emulation.seconds(link.queue_s))
            for index, link in enumerate(fabric.links)
        }
        self._windows = None
        if emulation.bounded and fabric.links and not fabric.onics:
            self._windows = Windows(
                fabric,
                self.frames.mtu_bytes,
                emulation.rate_bps,
                emulation.seconds,
                self._queue_s,
            )
        self._window_bytes = self._most_under_way()
        #: What links do to frames now, with times as emulated.
        self._effects = {
            link: self._own_effects(link) for link in fabric.links if link.effects
        }
        self._lock = threading.RLock()

    # -- the fixed part

    def is_here(self, name: str) -> bool:
        """Return whether a node is on this machine."""
        return self._share.is_here(name)

    def build(self) -> None:
        """Make bridges (not yet known to Open vSwitch), and namespaces of optical switches and O-NICs."""
        for switch in self.fabric.packet_switches.values():
            if self.is_here(switch.name):
                self._add_bridge(switch.name, switch.dpid, switch.controller)
        for index, optical in enumerate(self.fabric.optical_switches.values()):
            if not self.is_here(optical.name):
                continue
            if optical.is_bridge:
                self._add_bridge(optical.name, OPTICAL_DPID + index)
            else:
                node = self.addHost(
                    f"{self.lab.prefix}{optical.name}",
                    cls=OpticalNode,
                    lab=self.lab,
                    netns=self.lab.namespace(optical.name),
                )
                self._nodes[optical.name] = node
        for name in self.fabric.devices:
            self._nodes[name] = self.addHost(
                f"{self.lab.prefix}{name}",
                cls=DeviceNode,
                lab=self.lab,
                netns=self.lab.namespace(name),
            )
        for gpu in self.fabric.onics:
            self._nodes[gpu] = self.addHost(
                f"{self.lab.prefix}onic-{gpu}",
                cls=OnicNode,
                lab=self.lab,
                gpu=self.fabric.gpus[gpu],
                netns=self.lab.namespace(f"onic-{gpu}"),
                pins=self.lab.bpf_dir / f"onic-{gpu}",
            )
        if self.fabric.onics:
            self._control = ControlNetwork(self.lab)
        self.built = True

    def start(self) -> None:
        """Plug the links between switches and hand the bridges to Open vSwitch."""
        if self.switches and not has_kernel_datapath():
            openvswitch.keep_memory()
        ports = [
            port
            for link in self.fabric.links
            if not self._has_gpu(*self._ends_here(link))
            for port in self._connect(link)
        ]
        if self.switches:
            words = ["--id=@noop", "create", "QoS", "type=linux-noop"]
            words.append(f"external_ids:{OVS_LABEL}={self.lab.id}")
            for bridge in self.switches:
                bridge.start([self.target] if bridge.controller == OURS else [])
                words += bridge.take_commands()
            self._qos = openvswitch.vsctl(*words).split()[0]
            for bridge in self.switches:
                bridge.qos = self._qos
        for device in self._devices:
            device.start()
        self._finish(ports)
        self._start_devices()
        self._start_onics()
        for link in [*self._effects]:
            if not self._has_gpu(*self._ends_here(link)):
                self._affect_ends(link)

    def open_vswitch_is_back(self) -> None:
        """Settle what a process of Open vSwitch that was started again does not find in its database."""
        if not has_kernel_datapath():
            openvswitch.keep_memory()
            openvswitch.widen_buffers(self.lab.prefix)
        for forwarder in self._forwarders:
            forwarder.open_vswitch_is_back()

    def _is_forwarded(self, name: str) -> bool:
        """Return whether a device forwards a switch's packets in place of Open vSwitch."""
        bridge = self.lab.bridge(name)
        return any(bridge in forwarder.bridges for forwarder in self._forwarders)

    def of_devices(self) -> dict[str, Any]:
        """Return the keys of the lab's inventory that its devices have."""
        return {
            key: value
            for device in self._devices
            for key, value in device.inventory().items()
        }

    @property
    def onics(self) -> dict[str, OnicNode]:
        """The O-NICs by GPU."""
        return {
            gpu: node for gpu, node in self._nodes.items() if isinstance(node, OnicNode)
        }

    def node_processes(self) -> list[NodeProcesses]:
        """Return the processes of the lab's devices, of each device together."""
        return [
            device.processes for device in self._devices if device.processes is not None
        ]

    def worker_keys(
        self, spec: Mapping[str, Any], gpus: Sequence[str], rank: int
    ) -> dict[str, Any]:
        """Return keys that devices add to a worker's spec. Raises ValueError for a job that cannot be."""
        made: dict[str, Any] = {}
        for device in self._devices:
            made |= device.worker_keys(spec, gpus, rank)
        return made

    def _start_devices(self) -> None:
        """Ready the namespaces of the fabric's devices, and plug in the cables between them."""
        for name in self.fabric.devices:
            self._inside(
                self._nodes[name],
                partial(
                    namespaces.configure_namespace, self.emulation.congestion_control
                ),
            )
        for cable in device_cables.between(self.fabric):
            for end in self._connect(cable):
                self._set_up_cable(
                    cable, end, self._nodes[end.node].namespace, self._interface(end)
                )

    def _set_up_cable(
        self, cable: Link, end: Port, namespace: int | None, name: str
    ) -> None:
        """One end of a cable of a device: its rate and its address."""
        emulation = self.emulation
        least = max(
            (
                group.by_node[cable.b.node].queue_bytes
                for group in self.node_processes()
                if cable.b.node in group.by_node
            ),
            default=0,
        )
        shape = (
            emulation.rate_bps(cable.rate_bps),
            emulation.seconds(cable.queue_s),
            least,
        )
        ip = device_cables.address_of(self.fabric, end)
        assert namespace is not None
        namespaces.in_namespace(
            namespace, partial(device_cables.set_up, name, ip, shape)
        )

    def namespace(self, name: str) -> int:
        """Return the id of the process that holds the namespace of a device that is a process."""
        pid = self._nodes[name].namespace
        assert pid is not None
        return pid

    def _start_onics(self) -> None:
        """Join the O-NICs by the control network and let them send."""
        onics, emulation = self.onics, self.emulation
        if self._control is None:
            return
        self._control.join(list(onics.values()))
        peers: dict[str, set[str]] = {gpu: set() for gpu in onics}
        for switch in self.fabric.optical_switches.values():
            ends = [
                Port(switch.name, faceplate) for faceplate in range(1, switch.size + 1)
            ]
            there = [
                self.fabric.link_at[end].other(end).node
                for end in ends
                if end in self.fabric.link_at
            ]
            for gpu in set(there) & peers.keys():
                peers[gpu] |= set(there) & peers.keys() - {gpu}
        for gpu, node in onics.items():
            links = [
                self.fabric.link_at[Port(gpu, number)]
                for number in range(self.fabric.onics[gpu].ports)
            ]
            node.arm(
                [
                    (emulation.rate_bps(link.rate_bps), emulation.seconds(link.queue_s))
                    for link in links
                ],
                [self.fabric.gpus[peer] for peer in sorted(peers[gpu])],
                array_wavelengths(self.fabric, gpu),
                standing_light(self.fabric, gpu, emulation.rate_bps),
            )

    def _add_bridge(self, name: str, dpid: int, controller: str = OURS) -> None:
        bridge = self.addSwitch(
            self.lab.bridge(name),
            lab=self.lab,
            dpid=dpid,
            controller=controller,
            forwarded=self._is_forwarded(name),
        )
        self._nodes[name] = bridge

    def target_of(self, name: str) -> str | None:
        """Return the controller that a switch's bridge connects to, as Open vSwitch writes it, or None
        without one."""
        bridge = self._nodes[name]
        assert isinstance(bridge, PacketSwitch)
        return next((where.target for where in self._controllers_of(bridge)), None)

    def _controllers_of(self, bridge: PacketSwitch) -> list[ControllerAddress]:
        """Address of the controller that writes a bridge's tables: one, or none."""
        match bridge.controller:
            case "none":
                return []
            case controller if controller == OURS:
                return [self.target]
            case other:
                return [self._programs.get(other) or ControllerAddress.parse(other)]

    def handed_over(self) -> dict[str, tuple[str, str]]:
        """Return the bridge and the controller's address in the fabric of each packet switch here
        that connects to a foreign controller, by switch."""
        return {
            name: (self.lab.bridge(name), self.fabric.packet_switches[name].controller)
            for name in self.fabric.foreign_switches
            if self.is_here(name) and self.target_of(name) is not None
        }

    def hand_over(self) -> None:
        """Have the switches that are left to others look for their controllers.

        Last, when the cables between switches are up: Faucet has a switch tell nothing of its ports between
        its question for them and the end of its set-up, and never learns of one that comes up just then.
        """
        words: list[str] = []
        for name, (bridge, _) in self.handed_over().items():
            self._await_carriers(name)
            words += [
                "--",
                f"--id=@{name}",
                "create",
                "Controller",
                f'target="{self.target_of(name)}"',
            ]
            words += [
                f"max_backoff={RECONNECT_MS}",
                "--",
                "set",
                "Bridge",
                bridge,
                f"controller=@{name}",
            ]
        if words:
            openvswitch.vsctl(*words[1:])

    def _await_carriers(self, name: str) -> None:
        """Wait until a packet switch's ports that lead to other switches are up."""
        deadline = time.monotonic() + CARRIER_S
        for port, link in self.fabric.link_at.items():
            if port.node != name or self._has_gpu(*self._ends_here(link)):
                continue
            while (wrong := self._wrong_state(port)) is not None:
                if time.monotonic() > deadline:
                    log.warning("%s %s as its controller is called", port, wrong)
                    return
                time.sleep(0.005)

    def _has_gpu(self, *ports: Port) -> bool:
        """Return whether the cable is plugged in with a worker. The cable of an O-NIC is fixed."""
        gpus = self.fabric.gpus.keys() - self.fabric.onics.keys()
        return any(port.node in gpus for port in ports)

    def _interface(self, port: Port) -> str:
        """Return the name of a switch's port in the switch's own namespace."""
        node = self._nodes[port.node]
        return (
            f"p{port.number}"
            if isinstance(node, DeviceNode | OnicNode)
            else self.lab.interface(port.node, port.number)
        )

    def _ends_here(self, link: Link) -> list[Port]:
        """Return the ends of a link that are here."""
        return [port for port in (link.a, link.b) if self.is_here(port.node)]

    def _connect(self, link: Link) -> list[Port]:
        """Plug a cable between two switches' ports, or what of it is here. Return its ports here."""
        ports = self._ends_here(link)
        if len(ports) == 1:
            (near,) = ports
            self._open_cable(near, self._nodes[near.node], self._interface(near))
        if len(ports) < 2:
            return ports
        a, b = ports
        self.addLink(
            self._nodes[a.node],
            self._nodes[b.node],
            port1=a.number,
            port2=b.number,
            intfName1=self._interface(a),
            intfName2=self._interface(b),
        )
        return [a, b]

    def _open_cable(
        self, near: Port, node: ShellLess, name: str, mac: str | None = None
    ) -> OpenCable:
        """Make the end here of a link whose other end is elsewhere, as an interface of a node. Return it."""
        with IPRoute() as root:
            group = node.link_group(name)
            self._share.end_link(
                root, near, name, group=group, namespace=node.namespace, mac=mac
            )
        cable = OpenCable(node, near.number, name)
        self.links.append(cable)
        return cable

    def _finish(self, ports: Iterable[Port]) -> None:
        """Bring up, shape and read back the ports that are in this namespace."""
        ports = list(ports)
        here = [
            port for port in ports if isinstance(self._nodes[port.node], PacketSwitch)
        ]
        for port in ports:
            self._end_fibre(port)
        with self._lock, IPRoute() as root:
            for port in here:
                if port not in self._held:
                    netlink.set_up(root, self._interface(port))
            self._shape(here)
        openvswitch.check_ports({self._interface(port): port.number for port in here})
        if here and not has_kernel_datapath():
            openvswitch.widen_buffers(self.lab.prefix)
        for forwarder in self._forwarders:
            forwarded = [
                port for port in here if self.lab.bridge(port.node) in forwarder.bridges
            ]
            forwarder.take_up(map(self._interface, forwarded))

    def _end_fibre(self, port: Port) -> None:
        """Finish the end of a fibre at an optical switch.

        What leads to a switch that is elsewhere has a carrier, though nothing gets through: no process of
        this lab brings its end up. What leaves into a fibre slower than others of its switch is held to that
        rate: whoever sends there would send no faster, and only this end knows where light leads.
        """
        switch, node = (
            self.fabric.optical_switches.get(port.node),
            self._nodes[port.node],
        )
        if switch is None:
            return
        if switch.is_elsewhere:
            with self._lock:
                self._set_state(port)
        elif isinstance(node, OpticalNode) and switch.wavelengths is None:
            link = self.fabric.link_at[port]
            rates = [
                cable.rate_bps
                for near, cable in self.fabric.link_at.items()
                if near.node == port.node
            ]
            if link.rate_bps < max(rates):
                self._inside(node, lambda: self._hold_to(port, link))

    def _hold_to(self, port: Port, link: Link) -> None:
        with IPRoute() as here:
            index = netlink.index_of(self._interface(port))
            shaping.shape(
                here, index, self.emulation.rate_bps(link.rate_bps), self._queue_s[link]
            )

    def _shape(self, ports: Iterable[Port]) -> None:
        """Ports of packet switches."""
        shapes: list[tuple[str, float, float, shaping.By]] = []
        for port in ports:
            link = self.fabric.link_at[port]
            # What leads to a GPU has one destination.
            by: shaping.By = (
                "src" if link.other(port).node in self.fabric.gpus else "pair"
            )
            rate_bps = self.emulation.rate_bps(link.rate_bps)
            shapes.append((self._interface(port), rate_bps, self._queue_s[link], by))
        shaping.shape_shared(shapes, [gpu.ip for gpu in self.fabric.gpus.values()])

    # -- faults

    def hold_down(self, ports: Collection[Port]) -> None:
        """Hold these ports of switches and O-NICs down, and no others, whatever is plugged in there later.

        A port that is down has no carrier, and neither has what it leads to. Read back. Raises NetworkError.
        Where the other end is elsewhere, this end is held down, too, as the kernel would not tell it.
        """
        ends = [port for port in self._share.open_ends if not self._is_bare(port)]
        far = {port for port in ends if self.fabric.link_at[port].other(port) in ports}
        with self._lock:
            held = frozenset({*ports, *far})
            changed = sorted(
                port for port in self._held ^ held if self.is_here(port.node)
            )
            self._held = held
            for port in changed:
                self._set_state(port)
        deadline = time.monotonic() + CARRIER_S
        for port in changed:
            while (wrong := self._wrong_state(port)) is not None:
                if time.monotonic() > deadline:
                    raise NetworkError(f"{port} {wrong}")
                time.sleep(0.005)

    def _set_state(self, port: Port) -> None:
        """Down where it is held; where nothing is plugged in, only note it."""
        node, name, held = (
            self._nodes[port.node],
            self._interface(port),
            port in self._held,
        )
        group = None
        if isinstance(node, OpticalNode):
            (node.held.add if held else node.held.discard)(name)
            group = node.link_group(name)

        def inside() -> None:
            with IPRoute() as here:
                netlink.set_state(here, name, up=not held, group=group)

        self._inside(node, inside)

    def _wrong_state(self, port: Port) -> str | None:
        """Return how a port's state differs from the intended state, None if it does not or if there is no
        interface."""
        name, far = self._interface(port), self.fabric.link_at[port].other(port)

        def inside() -> netlink.LinkState | None:
            with IPRoute() as here:
                return netlink.link_state(here, name)

        state = self._inside(self._nodes[port.node], inside)
        if state is None:
            return None
        if port in self._held:
            return "is up" if state.up or state.carrier else None
        if not state.up:
            return "is down"
        return None if state.carrier or far in self._held else "has no carrier"

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
            for name, node in [*self._nodes.items()]
            if isinstance(node, PacketSwitch)
        }
        for name, bridge in bridges.items():
            if bridge not in states or bridge not in members:
                problems["bridge", name] = f"{bridge} was deleted"
        for port, link in self.fabric.link_at.items():
            bridge = bridges.get(port.node, "")
            fixed = not self._has_gpu(*self._ends_here(link)) or port in self._attached
            if (
                not bridge
                or ("bridge", port.node) in problems
                or not fixed
                or port in self._held
            ):
                continue
            name, far = self._interface(port), link.other(port)
            state = states.get(name)
            if state is None:
                problems["port", str(port)] = f"{name}, to {far}, was deleted"
            elif not state.up:
                problems["port", str(port)] = f"{name}, to {far}, was set down"
            elif not state.carrier and far not in self._held:
                problems["port", str(port)] = f"{name} has no carrier, as {far} is down"
            elif name not in members[bridge]:
                problems["port", str(port)] = (
                    f"{name}, to {far}, was removed from {bridge}"
                )
        return problems

    # -- what links do to frames

    def affect(self, link: Link, effects: Effects) -> None:
        """Have a link do this to frames from now on, times as emulated, whatever is plugged in there later.

        It comes in place of what the fabric says under the same key. Raises NetworkError, BuildError,
        OSError.
        """
        with self._lock:
            now = {**self._own_effects(link), **effects}
            self._effects.pop(link, None)
            if now:
                self._effects[link] = now
            if self._effects:
                self._choose_offloads()
            self._affect_ends(link)
            if not self._effects:
                self._choose_offloads()

    def counters(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return what devices have counted since the lab came up, by the name of a kind of counters."""
        counters: dict[str, list[Mapping[str, Any]]] = {}
        with self._lock:
            for effector in self._effectors:
                for name, counted in effector.counters().items():
                    counters.setdefault(name, []).extend(counted)
        return counters

    def _own_effects(self, link: Link) -> Effects:
        """Return what the fabric says that a link does to frames, with times as emulated."""
        return dilated(link.effects, self.emulation.time_dilation)

    def _leave_to_open_vswitch(self) -> None:
        """Have devices send nothing there: the kernel takes what eBPF has sent past programs at an end."""
        ends = [port for link in self._effects for port in (link.a, link.b)]
        switches = [
            port
            for port in ends
            if isinstance(self._nodes.get(port.node), PacketSwitch)
        ]
        for forwarder in self._forwarders:
            forwarder.leave(map(self._interface, switches))

    def _affect_ends(self, link: Link) -> None:
        """Have devices do what a link does to frames, at the ends that are plugged in."""
        self._leave_to_open_vswitch()
        effects = self._effects.get(link)
        if effects is None:
            self._let_be(self._ends_here(link))
            return
        rate_bps, directions = (
            self.emulation.rate_bps(link.rate_bps),
            [*self._directions(link)],
        )
        for effector in self._effectors:
            effector.affect(effects, rate_bps, directions)

    def _directions(self, link: Link) -> Iterator[Direction]:
        """Yield the directions of a link whose frames can be met here."""
        for port in self._ends_here(link):
            far, from_afar = link.other(port), port in self._share.open_ends
            # What comes from elsewhere is received, whatever sent it.
            sends = not from_afar and self._redirects(far)
            if (place := self._place_of(far if sends else port)) is not None:
                yield Direction(far, port, *place, sends, from_afar)

    def _let_be(self, ports: Sequence[Port]) -> None:
        for effector in self._effectors:
            effector.let_be(ports)

    def _place_of(self, port: Port) -> tuple[int | None, str] | None:
        """Namespace and name of a port's interface; None where nothing is plugged in."""
        onics = self.fabric.onics
        here = self._ends_here(self.fabric.link_at[port])
        bare = next((end for end in here if self._is_bare(end)), None)
        if bare is not None and bare not in self._cables:
            return None
        if bare == port:
            return self._cables[port].intf2.node.namespace, NIC
        node = self._nodes[port.node]
        return (
            node.namespace,
            f"p{port.number}" if port.node in onics else self._interface(port),
        )

    def _redirects(self, port: Port) -> bool:
        """Return whether an eBPF program sends from a port."""
        return not self._is_bare(port) and not isinstance(
            self._nodes[port.node], PacketSwitch
        )

    def _is_bare(self, port: Port) -> bool:
        """Return whether the port is the NIC of a GPU without an O-NIC, which is plugged in with its
        worker."""
        return port.node in self.fabric.gpus and port.node not in self.fabric.onics

    def _choose_offloads(self) -> None:
        """For the hosts that are plugged in, as they would be plugged in now."""
        for near, cable in self._cables.items():
            host = cable.intf2.node
            if near.number == 0 and host.namespace is not None:
                enabled = self._offloads(near.node)
                namespaces.in_namespace(
                    host.namespace, partial(netlink.set_checksum_offload, NIC, enabled)
                )

    def _most_under_way(self) -> int | None:
        """Window that routes of workers give a connection, bytes; None where workers set it or nobody does.

        Light that is asked for carries one connection; there half a queue stays, as 112 kB had TCP wait for
        time-outs (an all-reduce took 3.5 times as long).
        """
        rates = [
            (self.emulation.rate_bps(link.rate_bps), queue_s)
            for link, queue_s in self._queue_s.items()
        ]
        if not (self.emulation.bounded and rates) or self._windows is not None:
            return None
        late = math.ceil(max(rate_bps for rate_bps, _ in rates) / 8 * LATE_S)
        half = min(shaping.queue_bytes(*link) // 2 for link in rates)
        return max(half, late, WAITING_FRAMES * netlink.FRAME_BYTES)

    def _first_segments(self) -> int | None:
        """Segments that a new connection may have under way at once; None for the kernel's own.

        The fabrics that are emulated have no slow start, and windows keep what is under way within queues.
        Over links that delay it shows: an iteration over 128 ms there and back took 150 ms longer at first.
        """
        delayed = any(link.delay_s for link in self.fabric.links)
        if self._windows is None or not delayed:
            return None
        return math.ceil(
            self._windows.most() / (self.frames.mtu_bytes - IN_PACKET_BYTES)
        )

    def windows_to(self, gpu: str, ips: Iterable[str]) -> list[int]:
        """Return the windows of a worker's connections for what comes from GPUs at these addresses, bytes.

        None at all where they are not bounded.

        What is under way beyond what the way itself takes only waits in queues: a binary tree over packet
        switches took 1.14 of its simulated time with half a queue, 1.03 so. A worker keeps to them by itself:
        Linux forgets the window of a route once it has seen a full segment (since 6.10: tcp_measure_rcv_mss
        sets the clamp anew). With 250 kB under way and a queue of 40 kB each rank sent some fifteen segments
        again in an all-reduce.
        """
        if self._windows is None:
            return []
        peers = [self.fabric.gpu_by_ip(ip) for ip in ips]
        return [
            0
            if other is None or other.name == gpu
            else self._windows.between(other.name, gpu)
            for other in peers
        ]

    def _offloads(self, gpu: str) -> bool:
        """Return whether a host may use checksum and segmentation offload.

        False if a link does something to frames, because a burst would be lost or delayed as one frame, or if
        only Open vSwitch reads the host's frames.
        """
        read = (
            gpu not in self.fabric.onics
            and not has_kernel_datapath()
            and not self._all_forwarded
        )
        return not self._effects and not read

    def _inside(self, node: ShellLess, function: Callable[[], T]) -> T:
        """Run ``function`` where the node's interfaces are."""
        return (
            function()
            if node.namespace is None
            else namespaces.in_namespace(node.namespace, function)
        )

    # -- workers

    def add_worker(
        self, cls: type[WorkerHost], place: WorkerPlace, **params: Any
    ) -> WorkerHost:
        """Add a node for a worker, not yet started, and return it."""
        with self._lock:
            name = self.lab.container(place.id)
            host: WorkerHost = self.addHost(
                name, cls=cls, lab=self.lab, place=place, **params
            )
            return host

    def add_idle(self, gpu: str) -> IdleHost:
        """Add a host for a GPU without a worker and return it. Raises NetworkError."""
        with self._lock:
            netns = self.lab.namespace(gpu)
            host: IdleHost = self.addHost(
                netns, cls=IdleHost, lab=self.lab, gpu=gpu, netns=netns
            )
            return host

    def is_plugged(self, gpu: str) -> bool:
        """Return whether the GPU is here and the fabric has a link at its NIC port."""
        return Port(gpu, 0) in self.fabric.link_at and self.is_here(gpu)

    def check_plugged(self, gpu: str) -> None:
        """Raises NetworkError when the fabric has no link at the GPU's NIC port, or the GPU is not here."""
        if not self.is_here(gpu):
            raise NetworkError(f"GPU {gpu} is elsewhere")
        if not self.is_plugged(gpu):
            raise NetworkError(f"GPU {gpu} is not plugged into anything")

    def introduce(
        self, host: WorkerHost, neighbours: Sequence[tuple[str, str]]
    ) -> bool:
        """Give a plugged worker the ``(ip, mac)`` of other hosts. Return whether the worker has got them. A
        worker that ends meanwhile no longer needs them."""

        def inside() -> None:
            addressing.know(netlink.index_of(NIC), neighbours)

        try:
            if (namespace := host.namespace) is not None:
                namespaces.in_namespace(namespace, inside)
        except (NetworkError, OSError) as error:
            log.info("%s is not told of its neighbours: %s", host.name, error)
            return False
        return namespace is not None

    def announce(self, host: WorkerHost | IdleHost) -> bool:
        """Have a plugged host announce its present place to all switches. Return whether the host has done
        so. A host that ends meanwhile has nothing to announce."""
        gpu = self.fabric.gpus[host.gpu]
        switches = self.fabric.packet_switches.values()
        # Our rules pass what is about an address on to it alone: where some switches are ours, only what is
        # sent to each other GPU gets to those that are not.
        mixed = any(switch.is_ours for switch in switches)
        neighbours = [
            (o.ip, o.mac) for o in self.fabric.gpus.values() if mixed and o is not gpu
        ]
        try:
            if (namespace := host.namespace) is None:
                return False
            namespaces.in_namespace(
                namespace, lambda: addressing.announce(NIC, gpu.ip, gpu.mac, neighbours)
            )
        except (NetworkError, OSError, TimeoutError) as error:
            log.info("%s does not announce itself: %s", host.name, error)
            return False
        return True

    def delete_flows_of(self, gpus: Collection[str]) -> None:
        """Delete the flows that name these GPUs at the switches of others of which that is stated. Raises
        OpenVSwitchError."""
        chosen = [self.fabric.gpus[gpu] for gpu in gpus]
        matches = [
            match
            for gpu in chosen
            for match in (f"dl_dst={gpu.mac}", f"dl_src={gpu.mac}")
        ]
        matches += [
            match
            for gpu in chosen
            for match in (f"ip,nw_dst={gpu.ip}", f"ip,nw_src={gpu.ip}")
        ]
        for name, switch in self.fabric.packet_switches.items():
            if switch.forgets_moved and self.is_here(name):
                openvswitch.delete_flows(self.lab.bridge(name), matches)

    def plug(
        self, host: WorkerHost | IdleHost, neighbours: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Give a worker or an idle host its NIC ``eth0``: a cable to where its GPU's port is plugged in.

        Where the GPU has an O-NIC, that is the O-NIC, which keeps the rates of its fibres by itself.
        ``neighbours``: ``(ip, mac)`` of its peers, so that no ARP is needed in the dark. A packet switch
        learns of the port in :meth:`attach`.
        """
        gpu = self.fabric.gpus[host.gpu]
        near = Port(gpu.name, 0)
        self.check_plugged(gpu.name)
        link = self.fabric.link_at[near]
        far = link.other(near)
        onic = self.onics.get(gpu.name)
        if onic is None and near in self._share.open_ends:
            with self._lock:
                self._cables[near] = self._open_cable(near, host, NIC, gpu.mac)
        else:
            node = onic or self._nodes[far.node]
            name, number = (
                (HOST_NAME, HOST) if onic else (self._interface(far), far.number)
            )
            self._clear(node, name)
            with self._lock:
                cable = self.addLink(
                    node,
                    host,
                    port1=number,
                    port2=0,
                    intfName1=name,
                    intfName2=NIC,
                    addr2=gpu.mac,
                )
                self._cables[near] = cable
            if onic:
                onic.plug_host()
            else:
                self._end_fibre(far)
        emulation = self.emulation
        rate, queue_s = emulation.rate_bps(link.rate_bps), self._queue_s[link]
        hosts = [other.ip for other in self.fabric.gpus.values()]
        own_onic = self.fabric.onics.get(gpu.name)
        standing = own_onic is not None and own_onic.standing
        offloads = self._offloads(gpu.name)

        def inside() -> None:
            namespaces.configure_namespace(
                emulation.congestion_control,
                reordering=REORDERING if standing else None,
            )
            with IPRoute() as own:
                netlink.set_up(own, "lo")
                index = netlink.index_of(NIC)
                if not onic:
                    shaping.shape_shared([(NIC, rate, queue_s, "dst")], hosts)
                    segments = (
                        netlink.segments_at(rate)
                        if offloads and self._all_forwarded
                        else 1
                    )
                    netlink.set_burst(own, index, segments)
                if not offloads:
                    netlink.set_checksum_offload(NIC, False)
                if own_onic is not None and own_onic.transmitters == "array":
                    netlink.set_burst(own, index)
                netlink.set_up(own, NIC)
                addressing.address(
                    own,
                    index,
                    gpu.ip,
                    ADDRESS_PREFIX,
                    rto_min_s=emulation.rto_min_s,
                    mtu_bytes=self.frames.mtu_bytes,
                    window_bytes=self._window_bytes,
                    first_segments=self._first_segments(),
                    neighbours=neighbours,
                )

        assert host.namespace is not None
        namespaces.in_namespace(host.namespace, inside)
        for second in device_cables.cables_at(self.fabric, gpu.name):
            self._plug_second(host, second)
        if link in self._effects and not onic:
            with self._lock:
                self._affect_ends(link)

    def _plug_second(self, host: WorkerHost | IdleHost, cable: Link) -> None:
        """A worker's cable to a device, as ``eth1``."""
        node, name = self._nodes[cable.b.node], self._interface(cable.b)
        self._clear(node, name)
        with self._lock:
            self._cables[cable.a] = self.addLink(
                node,
                host,
                port1=cable.b.number,
                port2=1,
                intfName1=name,
                intfName2=SECOND_NIC,
            )
        self._set_up_cable(cable, cable.b, node.namespace, name)
        self._set_up_cable(cable, cable.a, host.namespace, SECOND_NIC)

    def _clear(self, node: ShellLess, name: str) -> None:
        """Remove an interface that a worker which has just died left: the kernel takes its time."""

        def delete() -> None:
            with IPRoute() as here:
                netlink.delete_link(here, name)

        self._inside(node, delete)

    def attach(self, gpus: Iterable[str]) -> None:
        """Make the packet switches take up the ports of plugged GPUs, all in one transaction."""
        words: list[str] = []
        ports: list[Port] = []
        for name in gpus:
            near = Port(name, 0)
            far = self.fabric.link_at[near].other(near)
            node = self._nodes.get(far.node)
            if isinstance(node, PacketSwitch):
                ports.append(far)
                words += node.add_port_command(self._cables[near].intf1)
        if ports:
            openvswitch.vsctl(*words[1:])
            self._finish(ports)
            with self._lock:
                self._attached |= frozenset(ports)

    def unplug(self, hosts: Iterable[WorkerHost | IdleHost]) -> None:
        """Take away the NICs of workers; those that are already gone with their worker too."""
        words: list[str] = []
        gone: list[tuple[ShellLess, str]] = []
        with self._lock:
            for near in [Port(host.gpu, number) for host in hosts for number in (0, 1)]:
                cable = self._cables.pop(near, None)
                if cable is None:
                    continue
                if near in self.fabric.link_at:
                    self._attached -= {self.fabric.link_at[near].other(near)}
                if near.number == 0 and near.node not in self.fabric.onics:
                    link = self.fabric.link_at[near]
                    self._let_be((link.a, link.b))
                node, name = cable.intf1.node, cable.intf1.name
                if isinstance(node, PacketSwitch):
                    words += ["--", "--if-exists", "del-port", str(node), name]
                gone.append((node, name))
                self.delLink(cable)
        if words:
            openvswitch.vsctl(*words[1:])
        for node, name in gone:
            self._clear(node, name)

    def forget(self, host: WorkerHost | IdleHost) -> None:
        """Take a worker or an idle host out of Mininet's lists."""
        with self._lock:
            if host in self.hosts:
                self.hosts.remove(host)
                self.nameToNode.pop(host.name, None)

    # -- the end

    def remove_bridges(self) -> None:
        """Take the bridges away from Open vSwitch. Raises OpenVSwitchError; may be repeated."""
        with self._lock:
            bridges, self.switches[:] = list(self.switches), []
            record, self._qos = self._qos, None
        if record is None:
            if bridges:
                openvswitch.remove_labelled(OVS_LABEL, self.lab.id)
            return
        words = [
            word
            for bridge in bridges
            for word in ("--", "--if-exists", "del-br", str(bridge))
        ]
        wait = openvswitch.waiting()
        openvswitch.vsctl(*wait, *words)
        openvswitch.vsctl(*wait, "--", "--if-exists", "destroy", "QoS", record)

    def stop(self) -> None:
        """Remove everything that :meth:`start` made, also when it was made only in part.

        Every part is tried; the first error is raised at the end.
        """
        errors: list[Exception] = []
        for part in (self._forwarders, self._effectors):
            part.clear()
        while self._devices:
            self._devices.pop().stop()
        try:
            self.remove_bridges()
        except openvswitch.OpenVSwitchError as error:
            errors.append(error)
        ends = [node.terminate for node in self._nodes.values()]
        if self._control is not None:
            ends.append(self._control.close)
        for end in ends:
            try:
                end()
            except NetworkError as error:
                errors.append(error)
        self._control = None
        try:
            netlink.remove_interfaces(self.lab.prefix, self.lab.link_group)
        except NetworkError as error:
            errors.append(error)
        for made in (
            self.hosts,
            self.switches,
            self.links,
            self._nodes,
            self._cables,
            self.nameToNode,
        ):
            made.clear()
        if errors:
            raise errors[0]
