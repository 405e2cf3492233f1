"""Parts of a fabric: GPUs and their ports, packet switches, optical switches, fibres.

Optical switches are dual-sided, numbered as on the vendors' fronts: a switch of size N has N duplex faceplate
ports 1..N; faceplate port p takes light in at ingress p and gives light out at egress N + p. A cross-connect
(ingress p, egress N + q) carries one direction of light from faceplate p to faceplate q.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from ringlight.fabric import link_effects
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import Profile, profiles


@dataclass(frozen=True, order=True)
class Port:
    """One duplex port of a node; written ``node:number``. A GPU's first NIC port is number 0."""

    node: str
    number: int

    def __str__(self) -> str:
        return f"{self.node}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> Port:
        """Return the port of a text such as ``"tor0:3"``; a bare ``"g0"`` means port 0.

        Raises ValueError for a text that is not a port.
        """
        node, _, number = text.partition(":")
        if (
            not node
            or text.endswith(":")
            or (number and not (number.isascii() and number.isdigit()))
        ):
            raise ValueError(
                f"{text!r} is not a port; write node:number, such as tor0:3"
            )
        return cls(node, int(number or 0))


def canonical(circuits: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """Return the circuits, sorted, with port names written in one way (``g0:0``).

    Raises ValueError for a text that is not a port.
    """
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
        """Return the GPU with the addresses of a fabric's GPU number ``index``, counted from 0."""
        high, low = divmod(index + 1, 250)
        return cls(
            name,
            server,
            model,
            f"10.82.{high}.{low + 1}",
            f"02:52:4c:00:{high:02x}:{low + 1:02x}",
        )


#: Controller that writes a packet switch's tables by default.
OURS = "ringlight"


@dataclass(frozen=True)
class PacketSwitch:
    """An electrical packet switch (aggregation switch) under OpenFlow; ports 1..ports.

    ``controller``: the controller that writes its tables. ``ringlight``: ours. ``none``: none; the switch
    learns and floods as a plain Ethernet switch. Otherwise a program of an extension, by its word, or another
    controller, at ``tcp:HOST:PORT``. ``forgets_moved``: at a switch of another controller, whether its flows
    that name a GPU are deleted when the GPU has moved.
    """

    name: str
    dpid: int
    ports: int
    controller: str = OURS
    forgets_moved: bool = False

    @property
    def is_ours(self) -> bool:
        """Return whether our controller writes its tables."""
        return self.controller == OURS


@dataclass(frozen=True)
class OpticalSwitch:
    """A dual-sided optical switch with ``size`` ingress and ``size`` egress ports.

    ``wavelengths``: channels that it tells apart (a WSS), or None if it passes every colour.
    ``loss_db``: insertion loss of a pass, ``dark_s``: dark time of a new cross-connect, seconds, where these
    are not the profile's. ``access``: what the driver needs to get at it and is said in the fabric file, by
    its keys in an inventory entry; with an ``address`` it is a real switch, or one that runs elsewhere.
    ``duplex``: whether it joins ports by circuits, both ways; else its light goes one way, as a plane's.
    """

    name: str
    size: int
    driver: str
    profile: str
    wavelengths: int | None = None
    loss_db: float | None = None
    dark_s: float | None = None
    access: Mapping[str, object] = field(default_factory=dict, hash=False)
    duplex: bool = True

    @property
    def is_elsewhere(self) -> bool:
        """Return whether no testbed makes the switch, so that none of a testbed's packets pass it."""
        return "address" in self.access

    @property
    def is_bridge(self) -> bool:
        """Return whether the switch is a bridge of Open vSwitch."""
        return driver_kinds()[self.driver].is_bridge

    @property
    def has_datapath(self) -> bool:
        """Return whether a testbed runs the switch as a process with light paths of its own."""
        return not (self.is_elsewhere or self.is_bridge)

    @property
    def device(self) -> Profile:
        """Return the switch's behaviour in time and in light.

        It is the profile, with the switch's own loss and dark time.
        """
        return profiles()[self.profile].losing(self.loss_db).dark_for(self.dark_s)

    @property
    def insertion_loss_db(self) -> float:
        """Loss of a pass to plan with, dB: its own, else the most that its profile allows."""
        profile = profiles()[self.profile]
        most = profile.loss_max_db + profile.repeatability_db
        return most if self.loss_db is None else self.loss_db

    def ingress(self, faceplate: int) -> int:
        """Return the ingress number of a faceplate port (1..size)."""
        return faceplate

    def egress(self, faceplate: int) -> int:
        """Return the egress number of a faceplate port (size+1..2*size)."""
        return self.size + faceplate


@dataclass(frozen=True)
class Link:
    """A fixed duplex fibre or cable between two ports.

    ``rate_bps``: bits per second in each direction, as in the real fabric (not scaled).
    ``queue_s``: depth of the sender's queue in seconds at that rate. ``effects``: what else it does to
    frames.
    """

    a: Port
    b: Port
    rate_bps: float
    queue_s: float
    effects: Effects = field(default_factory=dict, hash=False)

    @property
    def delay_s(self) -> float:
        """Return the seconds that it adds to the way of every frame."""
        return link_effects.delay_s(self.effects)

    @property
    def most_delay_s(self) -> float:
        """Return the most seconds that it adds to the way of a frame."""
        return link_effects.most_delay_s(self.effects)

    def other(self, port: Port) -> Port:
        """Return the far end, seen from ``port``."""
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


class Wss(NamedTuple):
    """Kind of the wavelength-selective switches of a plane; see :class:`OpticalSwitch`."""

    driver: str
    profile: str
    loss_db: float | None = None
    dark_s: float | None = None


class Plugged(NamedTuple):
    """The parts that a plane is plugged together from."""

    gpus: tuple[Gpu, ...]
    switches: list[OpticalSwitch]
    onics: list[Onic]
    links: list[Link]


# Points of a sweep have planes of the same nodes, and to make those of thousands takes longest of all.
@lru_cache(maxsize=16)
def servers_of_one(
    name: str, nodes: tuple[str, ...], model: str, first: int
) -> tuple[Gpu, ...]:
    """Return GPUs ``nodes``, each in a server <name>-s<i> of its own.

    ``first``: how many GPUs the fabric has before them.
    """
    return tuple(
        Gpu.numbered(node, f"{name}-s{i}", model, first + i)
        for i, node in enumerate(nodes)
    )


@dataclass(frozen=True)
class Counts:
    """Parts of a whole fabric of ``gpus`` GPUs, without devices and their ports.

    ``nic_ports`` are the GPUs'. Ports of switches are those in use. A transceiver is the end of a fibre at a
    GPU or a packet switch, whatever the number of its wavelengths; a channel is one wavelength of it. Links
    of electrical fabrics are all counted as fibres with a transceiver at both ends, which is an assumption:
    short ones may be copper. Cables without transceivers are stated apart.
    """

    gpus: int
    nic_ports: int
    transceivers: int = 0
    channels: int = 0
    packet_switches: int = 0
    packet_ports: int = 0
    optical_switches: int = 0
    optical_ports: int = 0
    copper_cables: int = 0

    def per_gpu(self) -> dict[str, float]:
        """Return the counts by name, divided by the number of GPUs."""
        return {
            name: count / self.gpus
            for name, count in asdict(self).items()
            if name != "gpus"
        }
