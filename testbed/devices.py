"""Devices that extensions add to labs: how they are asked for, and what a lab's testbed calls them for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ringlight.fabric.extension import loaders
from ringlight.testbed.lab import Lab

if TYPE_CHECKING:
    from ringlight.fabric.link_effects import Effects
    from ringlight.fabric.parts import Port
    from ringlight.fabric.topology import Fabric


@dataclass(frozen=True)
class Site:
    """Place of a device. ``state``: directory for its files. ``bridges``: the lab's bridges of Open
    vSwitch that our controller drives, with their datapath ids. ``fabric``: what the lab emulates, if it is
    one's. ``rate_bps``: turns the real rate of a link into the emulated rate."""

    lab: Lab
    state: Path
    bridges: Mapping[str, int]
    fabric: Fabric | None = None
    rate_bps: Callable[[float], float] = float


@dataclass(frozen=True)
class Direction:
    """One direction of a link, and the interface of this machine at which its frames can be met.

    ``out`` and ``into``: the ports that send and that receive. ``namespace``: descriptor of the interface's
    network namespace, None for the machine's own. ``sends``: the interface is the sender's, a device of eBPF:
    the kernel passes by XDP what that has sent; else it is the receiver's. ``from_afar``: the sender is on
    another host, so bursts may come as one frame.
    """

    out: Port
    into: Port
    namespace: int | None
    interface: str
    sends: bool = False
    from_afar: bool = False


@dataclass(frozen=True)
class NodeProcess:
    """Process that carries out one node of the fabric, in the namespace of the node.

    ``command``: makes the process's arguments anew for each start. ``log``: file of its output. ``answers``:
    whether it serves its clients. ``entry``: the inventory's, besides ``pid``. ``queue_bytes``: what the
    queues at either end of a cable up to this node hold at least, bytes.
    """

    command: Callable[[], Sequence[str]]
    log: Path
    answers: Callable[[], bool]
    entry: Mapping[str, Any] = field(default_factory=dict)
    queue_bytes: int = 0


@dataclass(frozen=True)
class NodeProcesses:
    """Processes that a lab's testbed starts, awaits, starts again, and kills as a fault.

    ``kind``: what the fabric calls such a node. ``part``: their key in the lab's inventory. ``start_s``: how
    long they may take until they answer, seconds. ``by_node``: by the node's name.
    """

    kind: str
    part: str
    start_s: float
    by_node: Mapping[str, NodeProcess]


class Forwarder(Protocol):
    """Forwards the packets of bridges in place of Open vSwitch, by tables that it reads with OpenFlow 1.5.

    Interfaces are those of the lab's bridges, by name. Methods raise NetworkError, OpenVSwitchError, and
    EbpfError, BuildError and OSError if a program cannot be loaded into the kernel.
    """

    @property
    def bridges(self) -> Collection[str]:
        """Return the names of the bridges whose packets it forwards."""

    def take_up(self, interfaces: Iterable[str]) -> None:
        """Forward what comes in by these interfaces, which have been joined to one of its bridges."""

    def leave(self, interfaces: Iterable[str]) -> None:
        """Send nothing out by these interfaces from now on, and by all others."""

    def open_vswitch_is_back(self) -> None:
        """Attach to another process of Open vSwitch what the one before took with it."""


class LinkEffector(Protocol):
    """Does to the frames of links what the fabric or an event says. Raises as :class:`Forwarder`."""

    def affect(
        self, effects: Effects, rate_bps: float, directions: Sequence[Direction]
    ) -> None:
        """Have frames of these directions of a link meet these effects from now on, in place of earlier ones.

        Times and ``rate_bps``, the link's, are as emulated.
        """

    def let_be(self, ports: Iterable[Port]) -> None:
        """Let what these ports receive meet nothing from now on; their interfaces may be gone."""

    def counters(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return what it has counted since the lab came up, by the name of a kind of counters."""


class Device:
    """A device in one lab: its parts, each None unless the device has that, and its life.

    Methods do nothing unless a device has its own. :meth:`start` and :meth:`stop` raise as
    :class:`Forwarder`.
    """

    @property
    def processes(self) -> NodeProcesses | None:
        """Return the processes that carry out nodes of the fabric."""
        return None

    @property
    def forwarder(self) -> Forwarder | None:
        """Return what forwards packets."""
        return None

    @property
    def effector(self) -> LinkEffector | None:
        """Return what acts on the frames of links."""
        return None

    def start(self) -> None:
        """Begin, as the bridges are there."""

    def worker_keys(
        self, spec: Mapping[str, Any], gpus: Sequence[str], rank: int
    ) -> dict[str, Any]:
        """Return keys that a worker's spec has besides, of this rank of a job on these GPUs.

        Raises ValueError for a job that cannot be.
        """
        return {}

    def inventory(self) -> dict[str, Any]:
        """Return its keys of the lab's inventory, which the controller reads."""
        return {}

    def stop(self) -> None:
        """Remove what :meth:`start` made, also when it was made only in part."""


class DeviceLog(Protocol):
    """Counts what a lab's device does from the making of the log on."""

    def records(self, **where: Any) -> list[Any]:
        """Return the records of a run (``experiments.record.events.Record``). ``where``: time and run of
        them."""


class DeviceKind:
    """Makes a device for each lab that is to have one.

    ``help``: of the option ``--NAME`` that asks for it; empty where no option does, and each lab is asked
    whether it needs one. ``forwards``: its devices have a :class:`Forwarder`, which costs less than Open
    vSwitch. ``modules``: those of its processes that take time to import.
    """

    help: ClassVar[str] = ""
    forwards: ClassVar[bool] = False
    modules: ClassVar[tuple[str, ...]] = ()

    def plan(self, site: Site) -> Device | None:
        """Return a device, not started yet; None where the lab needs none."""
        raise NotImplementedError

    def log(self, inventory: Mapping[str, Any]) -> DeviceLog | None:
        """Return the log of a run, of a lab with this inventory; None if nothing is counted."""
        return None


@cache
def device_kinds() -> dict[str, DeviceKind]:
    """Return the kinds of extensions, by name. Raises ExtensionError."""
    return {name: load() for name, load in loaders("devices").items()}


def optional_kinds() -> dict[str, DeviceKind]:
    """Return the kinds that an option asks for, by name. Raises ExtensionError."""
    return {name: kind for name, kind in device_kinds().items() if kind.help}


def plan_devices(names: Collection[str], site: Site) -> list[Device]:
    """Return the devices of these names that the site needs, then those that no option asks for.

    Raises LookupError naming an unknown one.
    """
    kinds = [device_kinds()[name] for name in names]
    kinds += [kind for kind in device_kinds().values() if not kind.help]
    planned = (kind.plan(site) for kind in kinds)
    return [device for device in planned if device is not None]


def any_forwards(names: Collection[str]) -> bool:
    """Return whether one of these devices forwards packets in place of Open vSwitch."""
    return any(device_kinds()[name].forwards for name in names)
