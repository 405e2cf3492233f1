"""A fabric's parts: GPUs with NIC ports, packet switches, optical switches and fixed fibres.

A :class:`Fabric` is what a person plugged together; it never changes while jobs run. What changes is the
set of cross-connects inside the optical switches (``fabric.crossconnect``). :func:`trace` follows light
from one electrical port through fibres and cross-connects to the electrical port where it comes out, and
:func:`electrical_graph` does so for every port: the graph that packets see.

Optical switches are dual-sided, numbered as on the vendors' fronts: a switch of size N has N duplex
faceplate ports 1..N; faceplate port p takes light in at ingress p and gives light out at egress N + p.
A cross-connect (ingress p, egress N + q) carries one direction of light from faceplate p to faceplate q.

A wavelength-selective switch (WSS) is an optical switch with ``wavelengths``: where light goes depends on
its colour, which the sender chooses per flow. So it makes no circuit: :func:`trace` ends at its port, and
packets do not see it. What can be reached over it is in ``fabric.grid`` and ``fabric.wdm``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.interconnect import Interconnect
from ringlight.fabric.light import Optics, received_dbm
from ringlight.fabric.optical_profiles import PROFILES, Profile

if TYPE_CHECKING:
    import networkx as nx

#: How one of several shortest paths is chosen.
PathChoice = Literal["hash", "even"]


@dataclass(frozen=True, order=True)
class Port:
    """One duplex port of a node; written ``node:number``. A GPU's first NIC port is number 0."""

    node: str
    number: int

    def __str__(self) -> str:
        return f"{self.node}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Port:
        """``"tor0:3"``; a bare ``"g0"`` means port 0. Raises ValueError."""
        node, _, number = text.partition(":")
        if not node or text.endswith(":") or (number and not (number.isascii() and number.isdigit())):
            raise ValueError(f"{text!r} is not a port; write node:number, such as tor0:3")
        return cls(node, int(number or 0))


def canonical(circuits: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Circuits with port names written in one way (``g0:0``), in order. Raises ValueError."""
    return sorted((str(Port.parse(a)), str(Port.parse(b))) for a, b in circuits)


@dataclass(frozen=True)
class Gpu:
    """An emulated GPU with one IP address and one MAC address, whatever its NIC's number of ports."""

    name: str
    server: str
    model: str
    ip: str
    mac: str

    @classmethod
    def numbered(cls, name: str, server: str, model: str, index: int) -> Gpu:
        """GPU with the addresses of a fabric's GPU number ``index``, counted from 0."""
        high, low = divmod(index + 1, 250)
        return cls(name, server, model, f"10.82.{high}.{low + 1}", f"02:52:4c:00:{high:02x}:{low + 1:02x}")


#: Who writes a packet switch's tables where nothing else is said.
OURS = "ringlight"


@dataclass(frozen=True)
class PacketSwitch:
    """An electrical packet switch (aggregation switch) under OpenFlow; ports 1..ports.

    ``controller``: who writes its tables. ``ringlight``: we. ``none``: nobody, it learns and floods as a
    plain Ethernet switch. ``app``: the applications that run beside our controller. Otherwise another
    controller, at ``tcp:HOST:PORT``. ``forgets_moved``: of one of others, whether its flows that name a GPU
    are deleted when the GPU has moved.
    """

    name: str
    dpid: int
    ports: int
    controller: str = OURS
    forgets_moved: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether our controller writes its tables."""
        return self.controller == OURS


@dataclass(frozen=True)
class OpticalSwitch:
    """A dual-sided optical switch with ``size`` ingress and ``size`` egress ports.

    ``wavelengths``: channels that it tells apart (a WSS), or None where it passes every colour alike.
    ``loss_db``: insertion loss of a pass, ``dark_s``: dark time of a new cross-connect, seconds, where these
    are not the profile's. ``access``: what the driver needs to get at it and is said in the fabric file, by
    its keys in an inventory entry; with an ``address`` it is a real switch, or one that runs elsewhere.
    """

    name: str
    size: int
    driver: str
    profile: str
    wavelengths: int | None = None
    loss_db: float | None = None
    dark_s: float | None = None
    access: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def is_elsewhere(self) -> bool:
        """Whether no testbed makes it, so that none of a testbed's packets pass it."""
        return "address" in self.access

    @property
    def has_datapath(self) -> bool:
        """Whether a testbed runs it as a process with light paths of its own; else it is elsewhere, or an
        Open vSwitch patch panel."""
        return self.driver != "openflow" and not self.is_elsewhere

    @property
    def device(self) -> Profile:
        """How it behaves in time and in light: its profile, with what is its own."""
        return PROFILES[self.profile].losing(self.loss_db).dark_for(self.dark_s)

    @property
    def insertion_loss_db(self) -> float:
        """Loss of a pass to plan with, dB: its own, else the most that its profile allows."""
        profile = PROFILES[self.profile]
        most = profile.loss_max_db + profile.repeatability_db
        return most if self.loss_db is None else self.loss_db

    def ingress(self, faceplate: int) -> int:
        """Ingress number of a faceplate port (1..size)."""
        return faceplate

    def egress(self, faceplate: int) -> int:
        """Egress number of a faceplate port (size+1..2*size)."""
        return self.size + faceplate


@dataclass(frozen=True)
class Link:
    """A fixed duplex fibre or cable between two ports.

    ``rate_bps``: bits per second in each direction, as in the real fabric (not scaled).
    ``queue_s``: depth of the sender's queue in seconds at that rate.
    """

    a: Port
    b: Port
    rate_bps: float
    queue_s: float

    def other(self, port: Port) -> Port:
        """The far end, seen from ``port``."""
        return self.b if port == self.a else self.a


@dataclass(frozen=True)
class Onic:
    """The optical NIC of GPU ``gpu``, with ``ports`` fibre ports from 0.

    ``transmitters``: ``tunable`` is one laser for each port, which takes ``tuning_s`` seconds (in the real
    fabric) to change its wavelength; the port's receiver is broadband: it takes any colour, and so one flow
    at a time. ``array`` is a fixed laser and a receiver for every wavelength at each port, all usable at
    once, each at the link's rate. ``standing``: its light stands without being asked for, and a peer has any
    number of lightpaths from it.
    """

    gpu: str
    ports: int
    tuning_s: float
    transmitters: Literal["tunable", "array"] = "tunable"
    standing: bool = False


@dataclass(frozen=True)
class Grid:
    """Nodes in rows and columns, each with one port on its row's WSS and one on its column's.

    ``nodes``: GPU names, row-major. Node (r, c) has port 0 on faceplate c + 1 of ``row_switches[r]`` and
    port 1 on faceplate r + 1 of ``column_switches[c]``. A grid of one row has no column switches, one of one
    column no row switches; its nodes have port 0 only. ``wavelengths``: channels of every WSS.
    """

    name: str
    rows: int
    columns: int
    nodes: tuple[str, ...]
    row_switches: tuple[str, ...]
    column_switches: tuple[str, ...]
    wavelengths: int


#: Which steps of a collective set light: each one, all of its light anew, also what stands already; or only
#: those that need light that does not stand.
Reconfigure = Literal["each-step", "changed-only"]


@dataclass(frozen=True)
class WdmRing:
    """Nodes around a ring with ``wavelengths`` channels in each direction; see ``fabric.wdm``.

    ``nodes``: GPU names in clockwise order; ``switches``: the WSS of each.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    wavelengths: int
    reconfigure: Reconfigure = "changed-only"


@dataclass(frozen=True)
class Planes:
    """GPUs with one fibre on each of several optical circuit switches, whose light goes one way.

    ``nodes``: GPU names; node i is on faceplate i + 1 of every switch, its port q on ``switches[q]``.
    """

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]


#: What an averager computes: the exact mean in whole numbers, or a network with trained or designed weights.
AveragerNetwork = Literal["exact", "trained", "designed"]


@dataclass(frozen=True)
class Imperfect:
    """What is not ideal in the light of an averager's network.

    ``phase_bits``: resolution of all phases, None for exact ones. ``phase_error``: radians, the standard
    deviation by which phases are off for good. ``loss_db``: in each interferometer. ``noise`` of detectors,
    ``transmitters``: standard deviations in levels. ``mismatch``: the standard deviation of the part by
    which each transmitter is off for good. ``bias``, ``scale``: by which part the constant light, and all
    light that enters, is too bright. ``seed``: of what is drawn.
    """

    phase_bits: int | None = None
    phase_error: float = 0.0
    loss_db: float = 0.0
    noise: float = 0.0
    transmitters: float = 0.0
    mismatch: float = 0.0
    bias: float = 0.0
    scale: float = 0.0
    seed: int = 0

    @property
    def ideal(self) -> bool:
        return self == Imperfect(seed=self.seed)


@dataclass(frozen=True)
class Averager:
    """A photonic unit that averages ``ports`` signals of ``bits``-bit numbers and answers all (OptINC).

    ``cables``: what is plugged into its ports 1, 2, …, in their order; end ``a`` is NIC port 1 of a GPU, or
    port 0 of an averager of the first level, ``b`` is the port here. No packet and no circuit goes there, so
    they are not among a fabric's links.
    ``decimals``: whether an averager of the first level leaves its decimals on the last symbol (Eq. 10) or
    drops them (Eq. 9); of no meaning without one above. See ``fabric.averagers``.
    ``approximated``: the first and the last of its network's layers that are made of fewer interferometers,
    None for the usual ones; ``imperfect``: its light. Both are of no meaning to packets and time, see
    ``fabric.photonics``.
    """

    name: str
    ports: int
    bits: int
    network: AveragerNetwork = "exact"
    decimals: bool = True
    cables: tuple[Link, ...] = ()
    approximated: tuple[int, int] | None = None
    imperfect: Imperfect = Imperfect()


@dataclass(frozen=True)
class Fabric:
    """Everything that is plugged together. Names are unique over all kinds of node.

    ``circuits`` are the duplex circuits lit when the fabric is first switched on, each a pair of
    electrical ports. ``onics`` are by GPU, ``grids`` and ``rings`` by name. ``paths``: how one of several
    shortest paths is chosen, see ``fabric.paths``. ``optics``: of its transmitters, receivers and fibres.
    ``interconnect``: what joins the GPUs where nothing is plugged port by port. ``divided``: the
    switches whose light is divided by what the GPUs send (``fabric.plugged``). ``averagers``: by name, with
    cables of their own.
    """

    gpus: Mapping[str, Gpu]
    packet_switches: Mapping[str, PacketSwitch]
    optical_switches: Mapping[str, OpticalSwitch]
    links: tuple[Link, ...]
    circuits: tuple[tuple[Port, Port], ...] = field(default=())
    onics: Mapping[str, Onic] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    rings: Mapping[str, WdmRing] = field(default_factory=dict)
    paths: PathChoice = "hash"
    optics: Optics = field(default_factory=Optics)
    interconnect: Interconnect | None = None
    divided: Planes | WdmRing | None = None
    averagers: Mapping[str, Averager] = field(default_factory=dict)

    @cached_property
    def link_at(self) -> dict[Port, Link]:
        """The link plugged into each port that has one."""
        return {port: link for link in self.links for port in (link.a, link.b)}

    @cached_property
    def electrical_ports(self) -> tuple[Port, ...]:
        """The ports of packet switches and of GPUs without an O-NIC that have a link, in order."""
        return tuple(
            sorted(port for port in self.link_at if port.node not in self.onics and is_electrical(self, port))
        )

    @property
    def cables(self) -> tuple[Link, ...]:
        """Cables that are plugged into averagers."""
        return tuple(cable for averager in self.averagers.values() for cable in averager.cables)

    @cached_property
    def foreign_switches(self) -> tuple[str, ...]:
        """Packet switches whose tables are not ours to write, in order."""
        return tuple(name for name, switch in self.packet_switches.items() if not switch.is_ours)

    def gpu_by_ip(self, ip: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus.values() if gpu.ip == ip), None)


#: Cross-connects of every optical switch, by switch name.
CrossConnects = Mapping[str, Iterable[CrossConnect]]


def trace(fabric: Fabric, cross_connects: CrossConnects, source: Port) -> tuple[Port, ...]:
    """The ports that light sent at ``source`` passes, ending where it stops.

    The first entry is ``source``. The last is a port of a GPU or packet switch when the light arrives
    somewhere, else the optical port where it goes dark or where its colour decides (a WSS). Raises
    ValueError when the light runs in a loop.
    """
    return _trace(fabric, _by_ingress(cross_connects), source)


def _by_ingress(cross_connects: CrossConnects) -> dict[tuple[str, int], CrossConnect]:
    return {(name, xc.ingress): xc for name, group in cross_connects.items() for xc in group}


def _trace(
    fabric: Fabric, by_ingress: Mapping[tuple[str, int], CrossConnect], source: Port
) -> tuple[Port, ...]:
    path = [source]
    seen = {source}
    while (link := fabric.link_at.get(path[-1])) is not None:
        arrived = link.other(path[-1])
        path.append(arrived)
        switch = fabric.optical_switches.get(arrived.node)
        if switch is None or switch.wavelengths is not None:
            return tuple(path)
        xc = by_ingress.get((switch.name, switch.ingress(arrived.number)))
        if xc is None:
            return tuple(path)
        out = Port(switch.name, xc.egress - switch.size)
        if out in seen:
            raise ValueError(f"light from {source} runs in a loop through {out}")
        seen.add(out)
        path.append(out)
    return tuple(path)


def path_dbm(fabric: Fabric, path: Sequence[Port]) -> float:
    """Power of light (dBm) at the end of a path as of :func:`trace`, which passes a switch where two of its
    ports are of one."""
    fibres = [fabric.optics.fibre_db for a, b in pairwise(path) if a.node != b.node]
    passed = [
        fabric.optical_switches[a.node].insertion_loss_db for a, b in pairwise(path) if a.node == b.node
    ]
    return received_dbm(fabric.optics.launch_dbm, [*fibres, *passed])


def is_electrical(fabric: Fabric, port: Port) -> bool:
    """Whether the port belongs to a GPU or a packet switch."""
    return port.node in fabric.gpus or port.node in fabric.packet_switches


def electrical_graph(fabric: Fabric, cross_connects: CrossConnects) -> nx.MultiDiGraph[str]:
    """What packets see: GPUs and packet switches, joined where light or copper arrives.

    Light that is too weak for the receiver joins nothing (:func:`path_dbm`).

    Each edge is one direction of one link, its key the port number at its tail; it carries ``out_port`` and
    ``in_port`` (port numbers at its tail and head), ``rate_bps`` (the slowest link on the way, bits per
    second) and ``path`` (every port passed). Raises ValueError as :func:`trace`.
    """
    # Here, as most processes of a lab never make one, and start in half the time without it.
    import networkx as nx

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from(sorted(fabric.gpus), kind="gpu")
    graph.add_nodes_from(sorted(fabric.packet_switches), kind="packet_switch")
    by_ingress = _by_ingress(cross_connects)
    for port in fabric.electrical_ports:
        path = _trace(fabric, by_ingress, port)
        end = path[-1]
        if end == port or not is_electrical(fabric, end):
            continue
        if len(path) > 2 and not fabric.optics.reads(path_dbm(fabric, path)):
            continue
        graph.add_edge(
            port.node,
            end.node,
            key=port.number,
            out_port=port.number,
            in_port=end.number,
            rate_bps=min(fabric.link_at[p].rate_bps for p in path if p in fabric.link_at),
            path=path,
        )
    return graph


def optical_neighbour(fabric: Fabric, port: Port) -> Port | None:
    """The faceplate port of the optical circuit switch that a port's fibre is plugged into, if any.

    None for an O-NIC, whose light is not of circuits between ports.
    """
    link = fabric.link_at.get(port)
    if link is None or port.node in fabric.onics:
        return None
    other = link.other(port)
    switch = fabric.optical_switches.get(other.node)
    return None if switch is None or switch.wavelengths is not None else other


def circuit_switches(fabric: Fabric) -> list[str]:
    """The optical switches that join ports by circuits: no WSS, and none that is divided by demand."""
    divided = () if fabric.divided is None else fabric.divided.switches
    return [
        switch.name
        for switch in fabric.optical_switches.values()
        if switch.wavelengths is None and switch.name not in divided
    ]


def circuit_cross_connects(
    fabric: Fabric, circuits: Iterable[tuple[Port, Port]]
) -> dict[str, frozenset[CrossConnect]]:
    """The cross-connects that light the given duplex circuits, by optical switch.

    Each circuit is a pair of electrical ports on one common optical circuit switch. Every such switch of
    the fabric has an entry, if only an empty one; a WSS makes no circuits and has none, nor has a switch
    whose light is divided by demand. Raises ValueError naming the ports when a circuit cannot be made or two
    circuits want one port.
    """
    wanted: dict[str, set[CrossConnect]] = {name: set() for name in circuit_switches(fabric)}
    holder: dict[Port, str] = {}
    for a, b in circuits:
        near, far = optical_neighbour(fabric, a), optical_neighbour(fabric, b)
        if near is None or far is None or near.node != far.node:
            raise ValueError(f"no optical switch joins {a} and {b}")
        if a == b:
            raise ValueError(f"circuit {a}-{b}: both ends are one port")
        for port in (a, b):
            if port in holder:
                raise ValueError(f"port {port} is used by circuits {holder[port]} and {a}-{b}")
            holder[port] = f"{a}-{b}"
        switch = fabric.optical_switches[near.node]
        for here, there in ((near, far), (far, near)):
            wanted[switch.name].add(CrossConnect(switch.ingress(here.number), switch.egress(there.number)))
    return {name: frozenset(group) for name, group in wanted.items()}
