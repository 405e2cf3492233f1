"""The fixed part of a lab's network: bridges, optical switches, O-NICs, devices, and the links between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mininet.net import Mininet
from pyroute2.iproute import IPRoute

from ringlight.fabric.frames import choose_frames
from ringlight.fabric.parts import OURS, Link, Port
from ringlight.fabric.topology import Fabric
from ringlight.testbed.devices import Device, NodeProcesses
from ringlight.testbed.emulation import device_cables, openvswitch
from ringlight.testbed.emulation.affected_links import AffectedLinks
from ringlight.testbed.emulation.bridges import (
    ControllerAddress,
    PacketSwitch,
    has_kernel_datapath,
)
from ringlight.testbed.emulation.buildable import check_fabric, check_names, check_rates
from ringlight.testbed.emulation.kernel import namespaces, netlink, shaping
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.node_ports import NodePorts
from ringlight.testbed.emulation.nodes import (
    Cable,
    DeviceNode,
    Jack,
    OpenCable,
    OpticalNode,
    ShellLess,
)
from ringlight.testbed.emulation.onic.wiring import (
    ControlNetwork,
    OnicNode,
    array_wavelengths,
    light_peers,
    standing_light,
)
from ringlight.testbed.emulation.port_states import PortStates
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.share import Share
from ringlight.testbed.emulation.switch_controllers import SwitchControllers
from ringlight.testbed.emulation.under_way import UnderWay
from ringlight.testbed.lab import OVS_LABEL, Lab
from ringlight.testbed.lab_programs import program_kinds, waiting

#: Datapath id of the first Open vSwitch bridge that stands for an optical switch.
OPTICAL_DPID = 0x100


class FixedNetwork(Mininet):  # type: ignore[misc]
    """:meth:`build` makes the nodes, :meth:`start` joins them.

    ``programs``: where switches find the programs that write their tables, by the program's name.
    ``devices``: makes the lab's devices, given the datapath id of each bridge here that our controller
    drives. ``share``: what of the lab is here.

    ``places``, ``states``: of its ports. ``affected``: links that do something to frames. ``under_way``:
    limits of what workers send.

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
        self._share = share
        ours = [switch for switch in fabric.packet_switches.values() if switch.is_ours]
        self._devices = devices(
            {lab.bridge(s.name): s.dpid for s in ours if share.is_here(s.name)}
        )
        #: Of its devices, that of each that has the part.
        self._forwarders = [
            device.forwarder for device in self._devices if device.forwarder is not None
        ]
        effectors = [
            device.effector for device in self._devices if device.effector is not None
        ]
        all_forwarded = (
            bool(self._forwarders)
            and all(self._is_forwarded(s.name) for s in ours if share.is_here(s.name))
            and not fabric.foreign_switches
            and all(not switch.is_bridge for switch in fabric.optical_switches.values())
        )
        self.places = NodePorts(lab, fabric, share)
        self.states = PortStates(self.places)
        self.switch_controllers = SwitchControllers(
            self.places,
            self.states,
            controller,
            {
                word: where
                for name, where in (programs or {}).items()
                if (word := program_kinds()[name].controller) is not None
            },
        )
        self.affected = AffectedLinks(
            self.places, emulation, self._forwarders, effectors, all_forwarded
        )
        self._control: ControlNetwork | None = None
        self._qos: str | None = None
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
        self.under_way = UnderWay(
            fabric, emulation, self.frames.mtu_bytes, self._queue_s
        )

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
                self.places.nodes[optical.name] = node
        for name in self.fabric.devices:
            self.places.nodes[name] = self.addHost(
                f"{self.lab.prefix}{name}",
                cls=DeviceNode,
                lab=self.lab,
                netns=self.lab.namespace(name),
            )
        for gpu in self.fabric.onics:
            self.places.nodes[gpu] = self.addHost(
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
            if not self.places.has_gpu(*self.places.ends_here(link))
            for port in self._connect(link)
        ]
        if self.switches:
            words = ["--id=@noop", "create", "QoS", "type=linux-noop"]
            words.append(f"external_ids:{OVS_LABEL}={self.lab.id}")
            for bridge in self.switches:
                bridge.start(
                    [self.switch_controllers.ours] if bridge.controller == OURS else []
                )
                words += bridge.take_commands()
            self._qos = openvswitch.vsctl(*words).split()[0]
            for bridge in self.switches:
                bridge.qos = self._qos
        for device in self._devices:
            device.start()
        self._finish(ports)
        self._start_devices()
        self._start_onics()
        for link in [*self.affected.by_link]:
            if not self.places.has_gpu(*self.places.ends_here(link)):
                self.affected.affect_ends(link)

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
            self.places.inside(
                self.places.nodes[name],
                partial(
                    namespaces.configure_namespace, self.emulation.congestion_control
                ),
            )
        for cable in device_cables.between(self.fabric):
            for end in self._connect(cable):
                self._set_up_cable(
                    cable,
                    end,
                    self.places.nodes[end.node].namespace,
                    self.places.interface(end),
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
        pid = self.places.nodes[name].namespace
        assert pid is not None
        return pid

    def _start_onics(self) -> None:
        """Join the O-NICs by the control network and let them send."""
        onics, emulation = self.places.onics, self.emulation
        if self._control is None:
            return
        self._control.join(list(onics.values()))
        peers = light_peers(self.fabric)
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
        self.places.nodes[name] = bridge

    def _connect(self, link: Link) -> list[Port]:
        """Plug a cable between two switches' ports, or what of it is here. Return its ports here."""
        ports = self.places.ends_here(link)
        if len(ports) == 1:
            (near,) = ports
            self._open_cable(
                near, self.places.nodes[near.node], self.places.interface(near)
            )
        if len(ports) < 2:
            return ports
        a, b = ports
        self.addLink(
            self.places.nodes[a.node],
            self.places.nodes[b.node],
            port1=a.number,
            port2=b.number,
            intfName1=self.places.interface(a),
            intfName2=self.places.interface(b),
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
            port
            for port in ports
            if isinstance(self.places.nodes[port.node], PacketSwitch)
        ]
        for port in ports:
            self._end_fibre(port)
        with self.places.lock, IPRoute() as root:
            for port in here:
                if port not in self.states.held:
                    netlink.set_up(root, self.places.interface(port))
            self._shape(here)
        openvswitch.check_ports(
            {self.places.interface(port): port.number for port in here}
        )
        if here and not has_kernel_datapath():
            openvswitch.widen_buffers(self.lab.prefix)
        for forwarder in self._forwarders:
            forwarded = [
                port for port in here if self.lab.bridge(port.node) in forwarder.bridges
            ]
            forwarder.take_up(map(self.places.interface, forwarded))

    def _end_fibre(self, port: Port) -> None:
        """Finish the end of a fibre at an optical switch.

        What leads to a switch that is elsewhere has a carrier, though nothing gets through: no process of
        this lab brings its end up. What leaves into a fibre slower than others of its switch is held to that
        rate: whoever sends there would send no faster, and only this end knows where light leads.
        """
        switch, node = (
            self.fabric.optical_switches.get(port.node),
            self.places.nodes[port.node],
        )
        if switch is None:
            return
        if switch.is_elsewhere:
            with self.places.lock:
                self.states.set_state(port)
        elif isinstance(node, OpticalNode) and switch.wavelengths is None:
            link = self.fabric.link_at[port]
            rates = [
                cable.rate_bps
                for near, cable in self.fabric.link_at.items()
                if near.node == port.node
            ]
            if link.rate_bps < max(rates):
                self.places.inside(node, lambda: self._hold_to(port, link))

    def _hold_to(self, port: Port, link: Link) -> None:
        with IPRoute() as here:
            index = netlink.index_of(self.places.interface(port))
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
            shapes.append(
                (self.places.interface(port), rate_bps, self._queue_s[link], by)
            )
        shaping.shape_shared(shapes, [gpu.ip for gpu in self.fabric.gpus.values()])

    def remove_bridges(self) -> None:
        """Take the bridges away from Open vSwitch. Raises OpenVSwitchError; may be repeated."""
        with self.places.lock:
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
        while self._devices:
            self._devices.pop().stop()
        try:
            self.remove_bridges()
        except openvswitch.OpenVSwitchError as error:
            errors.append(error)
        ends = [node.terminate for node in self.places.nodes.values()]
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
            self.places.nodes,
            self.places.cables,
            self.nameToNode,
        ):
            made.clear()
        if errors:
            raise errors[0]
