"""The network of a lab: one Mininet object with its bridges, optical switches, cables and workers.

What is fixed in the fabric (links between switches) is built once. A GPU's cable comes and goes with the
worker that holds the GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from pyroute2.iproute import IPRoute

from ringlight.fabric.parts import Link, Port
from ringlight.testbed.emulation import device_cables, openvswitch
from ringlight.testbed.emulation.bridges import PacketSwitch
from ringlight.testbed.emulation.fixed_network import FixedNetwork
from ringlight.testbed.emulation.kernel import addressing, namespaces, netlink, shaping
from ringlight.testbed.emulation.kernel.network_errors import NetworkError
from ringlight.testbed.emulation.nodes import IdleHost, ShellLess
from ringlight.testbed.emulation.onic.tables import HOST, HOST_NAME
from ringlight.testbed.emulation.worker_hosts import WorkerHost, WorkerPlace
from ringlight.testbed.lab import NIC, SECOND_NIC

log = logging.getLogger(__name__)

ADDRESS_PREFIX = 16
#: Frames by which one may come late before TCP calls it lost, where light stands: those that went round in
#: the dark together come out in the order in which the light finds them.
REORDERING = 30


class LabNetwork(FixedNetwork):
    """The fixed network, and the workers and idle hosts that are plugged into it.

    Methods raise NetworkError or OpenVSwitchError with one line. They may be called from several threads.
    """

    def add_worker(
        self, cls: type[WorkerHost], place: WorkerPlace, **params: Any
    ) -> WorkerHost:
        """Add a node for a worker, not yet started, and return it."""
        with self.places.lock:
            name = self.lab.container(place.id)
            host: WorkerHost = self.addHost(
                name, cls=cls, lab=self.lab, place=place, **params
            )
            return host

    def add_idle(self, gpu: str) -> IdleHost:
        """Add a host for a GPU without a worker and return it. Raises NetworkError."""
        with self.places.lock:
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
        onic = self.places.onics.get(gpu.name)
        if onic is None and near in self._share.open_ends:
            with self.places.lock:
                self.places.cables[near] = self._open_cable(near, host, NIC, gpu.mac)
        else:
            node = onic or self.places.nodes[far.node]
            name, number = (
                (HOST_NAME, HOST) if onic else (self.places.interface(far), far.number)
            )
            self._clear(node, name)
            with self.places.lock:
                cable = self.addLink(
                    node,
                    host,
                    port1=number,
                    port2=0,
                    intfName1=name,
                    intfName2=NIC,
                    addr2=gpu.mac,
                )
                self.places.cables[near] = cable
            if onic:
                onic.plug_host()
            else:
                self._end_fibre(far)
        emulation = self.emulation
        rate, queue_s = emulation.rate_bps(link.rate_bps), self._queue_s[link]
        hosts = [other.ip for other in self.fabric.gpus.values()]
        own_onic = self.fabric.onics.get(gpu.name)
        standing = own_onic is not None and own_onic.standing
        offloads = self.affected.offloads(gpu.name)

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
                        if offloads and self.affected.all_forwarded
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
                    window_bytes=self.under_way.window_bytes,
                    first_segments=self.under_way.first_segments(),
                    neighbours=neighbours,
                )

        assert host.namespace is not None
        namespaces.in_namespace(host.namespace, inside)
        for second in device_cables.cables_at(self.fabric, gpu.name):
            self._plug_second(host, second)
        if link in self.affected.by_link and not onic:
            with self.places.lock:
                self.affected.affect_ends(link)

    def _plug_second(self, host: WorkerHost | IdleHost, cable: Link) -> None:
        """A worker's cable to a device, as ``eth1``."""
        node, name = self.places.nodes[cable.b.node], self.places.interface(cable.b)
        self._clear(node, name)
        with self.places.lock:
            self.places.cables[cable.a] = self.addLink(
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

        self.places.inside(node, delete)

    def attach(self, gpus: Iterable[str]) -> None:
        """Make the packet switches take up the ports of plugged GPUs, all in one transaction."""
        words: list[str] = []
        ports: list[Port] = []
        for name in gpus:
            near = Port(name, 0)
            far = self.fabric.link_at[near].other(near)
            node = self.places.nodes.get(far.node)
            if isinstance(node, PacketSwitch):
                ports.append(far)
                words += node.add_port_command(self.places.cables[near].intf1)
        if ports:
            openvswitch.vsctl(*words[1:])
            self._finish(ports)
            with self.places.lock:
                self.states.attached |= frozenset(ports)

    def unplug(self, hosts: Iterable[WorkerHost | IdleHost]) -> None:
        """Take away the NICs of workers; those that are already gone with their worker too."""
        words: list[str] = []
        gone: list[tuple[ShellLess, str]] = []
        with self.places.lock:
            for near in [Port(host.gpu, number) for host in hosts for number in (0, 1)]:
                cable = self.places.cables.pop(near, None)
                if cable is None:
                    continue
                if near in self.fabric.link_at:
                    self.states.attached -= {self.fabric.link_at[near].other(near)}
                if near.number == 0 and near.node not in self.fabric.onics:
                    link = self.fabric.link_at[near]
                    self.affected.let_be((link.a, link.b))
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
        with self.places.lock:
            if host in self.hosts:
                self.hosts.remove(host)
                self.nameToNode.pop(host.name, None)
