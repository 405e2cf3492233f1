"""Checks the fabric part of a scenario file strictly and makes :class:`fabric.topology.Fabric`.

Every error names the key, node or port at fault. pydantic checks shapes and unknown keys; what spans
several entries (a port plugged twice, an end that does not exist) is checked in :func:`build_fabric`.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from ringlight.fabric.keys import (
    Assembly,
    CabledNode,
    WrittenLink,
    fabric_keys,
    link_keys,
    plugged,
)
from ringlight.fabric.light import Modulation, Optics
from ringlight.fabric.link_effects import Effects, acting
from ringlight.fabric.optical_drivers import (
    CLASSES,
    RESERVED,
    driver_kinds,
    driver_of,
    products_of,
)
from ringlight.fabric.parts import OURS, Gpu, Link, OpticalSwitch, PacketSwitch, Port
from ringlight.fabric.table_writers import programs
from ringlight.fabric.topology import (
    Fabric,
    PathChoice,
    circuit_cross_connects,
    is_electrical,
)
from ringlight.fabric.trees import QUEUE_S, Tree, fat_tree, leaf_spine
from ringlight.fabric.values import Duration, Loss, Name, Power, Rate, Strict, under


class ServerSpec(Strict):
    """A server and its GPUs: ``gpus: {g0: tesla-m40}`` gives each GPU's model."""

    gpus: dict[Name, str] = Field(min_length=1)


def _of_switches(value: object) -> object:
    """Return the value, if it is ``ringlight``, ``none``, a program of an extension or ``tcp:HOST:PORT``.

    Raises ValueError for another value.
    """
    known = (OURS, "none", *programs())
    if value in known:
        return value
    if not isinstance(value, str) or not value.startswith("tcp:"):
        words = ", ".join(known)
        raise ValueError(
            f"write {words}, or another controller's address, such as tcp:127.0.0.1:6653"
        )
    address = str(_address(value.removeprefix("tcp:")))
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        # Open vSwitch does not ask for names, and would say nothing.
        raise ValueError(
            f"{value}: write the controller's IP address, not its name"
        ) from None
    return f"tcp:{address}"


#: Who writes a packet switch's tables (:class:`fabric.parts.PacketSwitch`).
SwitchController = Annotated[str, BeforeValidator(_of_switches)]


#: What becomes of the flows that name a moved GPU, at a switch whose tables another controller writes.
MovedFlows = Literal["keep", "delete"]


class PacketSwitchSpec(Strict):
    """``controller``: who writes its tables, ``moved_flows``: what becomes of those that name a moved GPU,
    where it is not as in the rest of the fabric."""

    ports: int = Field(ge=1, le=4096)
    controller: SwitchController | None = None
    moved_flows: MovedFlows | None = None


class LightSpec(Strict):
    """Power that transmitters send and receivers need, and loss of each fibre, for the whole fabric; with a
    ``modulation`` less power has bit errors before it is dark (:func:`fabric.light.bit_errors`)."""

    launch_dbm: Power = Optics.launch_dbm
    sensitivity_dbm: Power = Optics.sensitivity_dbm
    fibre_db: Loss = Optics.fibre_db
    modulation: Modulation | None = None


def _driver(value: object) -> object:
    return driver_of(value) if isinstance(value, str) else value


def _address(value: object) -> object:
    """Return the value, if it is ``host:port``.

    Raises ValueError for another value, without repeating it: it may have a password in it.
    """
    match = (
        re.fullmatch(r"(?:\[[^\]\s@]+\]|[^:\s/@]+):([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if match is None or not 0 < int(match[1]) < 1 << 16:
        raise ValueError("this is not host:port, such as '10.0.0.5:3083'")
    return value


Address = Annotated[str, BeforeValidator(_address)]
#: Where a password is, whatever the controller's working directory. Never the password itself.
PasswordFile = Annotated[str, Field(pattern=r"^/")]
Driver = Annotated[
    str, BeforeValidator(_driver), Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")
]


class OpticalSwitchSpec(Strict):
    """``size`` duplex faceplate ports; ``driver`` speaks to it (:mod:`fabric.optical_drivers`); ``profile``
    is its timing and loss, ``loss_db`` its insertion loss, ``dark`` the dark time of a new cross-connect
    where these are others.

    Without an ``address`` a testbed emulates it. With one it is a real switch, or one that runs elsewhere:
    ``host:port`` of its management, with ``username`` and where the password is. ``options``: what else the
    driver can be told, by the key of an inventory entry.
    """

    size: int = Field(ge=1, le=65536)
    driver: Driver = "scpi"
    profile: str = ""
    loss_db: Loss | None = None
    dark: Duration | None = None
    address: Address | None = None
    username: str | None = Field(default=None, min_length=1)
    password_env: str | None = Field(default=None, min_length=1)
    password_file: PasswordFile | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _has_its_profile(cls, value: Any) -> Any:
        if isinstance(value, dict) and "profile" not in value:
            kind = driver_kinds().get(driver_of(str(value.get("driver", "scpi"))))
            return {**value, "profile": kind.profile if kind is not None else "mems"}
        return value

    @model_validator(mode="after")
    def _can_be_driven(self) -> OpticalSwitchSpec:
        kind = driver_kinds().get(self.driver)
        if kind is None:
            raise ValueError(
                f"driver: {self.driver}; there are {', '.join(driver_kinds())}"
            )
        if kind.is_bridge and self.dark is not None:
            raise ValueError(
                f"dark: a bridge of Open vSwitch (driver: {self.driver}) is never dark"
            )
        if kind.is_bridge and self.loss_db is not None:
            raise ValueError(
                f"loss_db: a bridge of Open vSwitch (driver: {self.driver}) has no light to lose"
            )
        fit = [*products_of(self.driver), *CLASSES]
        if self.profile not in fit:
            raise ValueError(
                f"profile: {self.profile}; the driver {self.driver} goes with {', '.join(fit)}"
            )
        if kind.protocol is None and not kind.is_bridge and self.address is None:
            raise ValueError(
                f"driver: {self.driver} is not emulated: give the address of such a switch"
            )
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> OpticalSwitchSpec:
        kind = driver_kinds()[self.driver]
        if self.address is not None and kind.is_bridge:
            raise ValueError(
                f"address: {self.driver} has none; its switch connects to the controller"
            )
        stated = {
            key: getattr(self, key)
            for key in ("username", "password_env", "password_file")
        }
        for key in (key for key, value in stated.items() if value is not None):
            if self.address is None:
                raise ValueError(
                    f"{key}: goes with an address; an emulated switch has users of its own"
                )
            if not kind.login:
                raise ValueError(f"{key}: the driver {self.driver} has no login")
            if self.username is None:
                raise ValueError(f"{key}: whose? there is no username")
        if self.password_env is not None and self.password_file is not None:
            raise ValueError(
                "password_file: there is a password_env too; keep one of them"
            )
        for key in self.options:
            if key in RESERVED:
                raise ValueError(
                    f"options.{key}: belongs beside options, or in no fabric file at all"
                )
            if key not in kind.options:
                there = (
                    f"; it has {', '.join(sorted(kind.options))}"
                    if kind.options
                    else ""
                )
                raise ValueError(
                    f"options.{key}: the driver {self.driver} has no such option{there}"
                )
            if self.address is None and key not in kind.emulated_options:
                raise ValueError(
                    f"options.{key}: goes with an address; the emulated switch has no use for it"
                )
        return self

    def access(self) -> dict[str, object]:
        """Return the keys and values of an inventory entry that are given here."""
        stated = {
            key: getattr(self, key)
            for key in ("address", "username", "password_env", "password_file")
        }
        return {
            key: value for key, value in stated.items() if value is not None
        } | self.options


class _LinkSpec(Strict):
    """The keys of the core."""

    ends: tuple[str, str]
    rate: Rate
    queue: Duration = 0.02

    @property
    def effects(self) -> Effects:
        """Return what the keys of extensions say that the link does to frames."""
        return {keys.key: keys.effect(self) for keys in link_keys()}


if TYPE_CHECKING:

    class LinkSpec(_LinkSpec):
        """A fibre or cable between two ports, ``ends: [g0, "ocs0:1"]``."""

else:
    LinkSpec = create_model(
        "LinkSpec",
        __base__=(_LinkSpec, *(keys.spec for keys in link_keys())),
        __doc__='A fibre or cable between two ports, ``ends: [g0, "ocs0:1"]``.',
    )


class _TreeSpec(Strict):
    """Common to short forms: ``rate`` of a GPU's link; of a link between switches ``uplink_rate``, or what
    ``oversubscription`` leaves. ``gpu``: the GPUs' model."""

    gpu: str = Field(min_length=1)
    rate: Rate
    uplink_rate: Rate | None = None
    oversubscription: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    queue: Duration = QUEUE_S

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> _TreeSpec:
        if self.uplink_rate is not None and "oversubscription" in self.model_fields_set:
            raise ValueError("give either uplink_rate or oversubscription")
        return self

    def with_uplinks(self, tree: Tree) -> Tree:
        """Return the tree, its links between switches at ``uplink_rate`` if that is given."""
        return tree if self.uplink_rate is None else tree.with_uplinks(self.uplink_rate)


class FatTreeSpec(_TreeSpec):
    """Short for the packet switches, GPUs and links of :func:`fabric.trees.fat_tree`."""

    k: int = Field(ge=2, le=64)
    gpus_per_edge: int | None = Field(default=None, ge=1, le=4096)

    def tree(self) -> Tree:
        """Return the fat tree. Raises ValueError for an odd k."""
        return self.with_uplinks(
            fat_tree(
                self.k,
                self.rate,
                gpus_per_edge=self.gpus_per_edge,
                oversubscription=self.oversubscription,
                queue_s=self.queue,
            )
        )


class LeafSpineSpec(_TreeSpec):
    """Short for the packet switches, GPUs and links of :func:`fabric.trees.leaf_spine`. ``through``: an
    optical switch that the GPUs' fibres pass; ``spare_ports`` more of each leaf's end there. ``core``: an
    optical switch in place of the spines; each leaf has ``cables`` for each of ``spines``."""

    leaves: int = Field(ge=1, le=4096)
    spines: int = Field(ge=1, le=4096)
    gpus_per_leaf: int = Field(ge=1, le=4096)
    cables: int = Field(default=1, ge=1, le=64)
    through: Name | None = None
    spare_ports: int = Field(default=0, ge=0, le=4096)
    core: Name | None = None

    def tree(self) -> Tree:
        if self.core is not None and (self.through is not None or self.leaves < 2):
            raise ValueError(
                "core: light joins several leaves, whose GPUs are plugged into them"
            )
        made = self.with_uplinks(
            leaf_spine(
                self.leaves,
                self.gpus_per_leaf,
                self.rate,
                spines=self.spines,
                cables=self.cables,
                oversubscription=self.oversubscription,
                queue_s=self.queue,
            )
        )
        if self.core is not None:
            return made.lit(self.core)
        return (
            made
            if self.through is None
            else made.through(self.through, self.spare_ports)
        )


class _FabricSpec(Strict):
    """The keys of the core.

    ``servers`` and ``packet_switches`` may be left out if there is a short form, or a key with GPUs of its
    own. ``fat_tree`` and ``leaf_spine`` are short forms: servers, switches and links are added before what is
    written out. ``paths``: how one of several shortest paths is chosen
    (``fabric.paths``).
    ``light``: a path that leaves less power than its receiver's sensitivity carries nothing
    (``fabric.light``).
    ``controller``: who writes the packet switches' tables (:class:`fabric.parts.PacketSwitch`).
    ``moved_flows``: of those that others write, what becomes of flows that name a GPU which has moved.
    """

    servers: dict[Name, ServerSpec] = Field(default_factory=dict)
    controller: SwitchController = OURS
    moved_flows: MovedFlows = "keep"
    packet_switches: dict[Name, PacketSwitchSpec] = Field(default_factory=dict)
    optical_switches: dict[Name, OpticalSwitchSpec] = Field(default_factory=dict)
    fat_tree: FatTreeSpec | None = None
    leaf_spine: LeafSpineSpec | None = None
    paths: PathChoice = "hash"
    light: LightSpec = LightSpec()
    links: tuple[LinkSpec, ...] = ()
    circuits: tuple[tuple[str, str], ...] = ()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> _FabricSpec:
        if (whole := self.whole) is not None:
            if more := self.model_fields_set - {whole, "title"}:
                raise ValueError(
                    f"{min(more)}: {whole} is all of a fabric, and has no such thing"
                )
            return self
        if (
            self.fat_tree
            or self.leaf_spine
            or any(fabric_keys()[name].has_gpus for name in self.held)
        ):
            return self
        for key in ("servers", "packet_switches", "links"):
            # An empty list of links is a fabric with nothing plugged in, which may be meant.
            if key not in self.model_fields_set or (
                key != "links" and not getattr(self, key)
            ):
                keys = [name for name, own in fabric_keys().items() if own.has_gpus]
                there = ", ".join(["fat_tree", "leaf_spine", *keys])
                raise ValueError(
                    f"{key} is missing; only a fabric with one of {there} may do without"
                )
        return self

    @property
    def held(self) -> dict[str, Any]:
        """Return what the keys of extensions hold, without those that hold nothing."""
        held = {name: getattr(self, name) for name in fabric_keys()}
        return {name: value for name, value in held.items() if value}

    @property
    def whole(self) -> str | None:
        """Return the key that is all of the fabric, None if there is none."""
        keys = fabric_keys()
        return next((name for name in self.held if keys[name].whole is not None), None)

    @property
    def trees(self) -> dict[str, Tree]:
        """Return the trees of the short forms, by key. Raises ValueError that begins with the key."""
        return {key: tree for key, (tree, _) in self._trees().items()}

    def _trees(self) -> dict[str, tuple[Tree, str]]:
        """Return the trees of the short forms and the models of their GPUs, by key."""
        shorts = {"fat_tree": self.fat_tree, "leaf_spine": self.leaf_spine}
        made = {
            key: (short.tree, short)
            for key, short in shorts.items()
            if short is not None
        }
        for key, value in self.held.items():
            if (tree := fabric_keys()[key].tree) is not None:
                made[key] = partial(tree, value), value
        trees = {}
        for key, (make, short) in made.items():
            try:
                trees[key] = make(), short.gpu
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        return trees


if TYPE_CHECKING:

    class FabricSpec(_FabricSpec):
        """A fabric as a file describes it."""

else:
    FabricSpec = create_model(
        "FabricSpec",
        __base__=_FabricSpec,
        __doc__="A fabric as a file describes it.",
        **{name: (key.value, None) for name, key in fabric_keys().items()},
    )


def _packet_switch(spec: _FabricSpec, name: str, dpid: int, ports: int) -> PacketSwitch:
    """Return a packet switch. Raises ValueError if its controller does not fit ``moved_flows``."""
    entry = spec.packet_switches.get(name) or PacketSwitchSpec(ports=ports)
    controller = entry.controller or spec.controller
    has_flows = controller not in (OURS, "none")
    if entry.moved_flows == "delete" and not has_flows:
        raise ValueError(
            f"packet_switches.{name}.moved_flows: its controller is {controller}; flows are deleted at"
            f" switches of {' or '.join((*programs(), 'tcp:HOST:PORT'))}"
        )
    forgets = (entry.moved_flows or spec.moved_flows) == "delete" and has_flows
    return PacketSwitch(name, dpid, ports, controller, forgets)


def fabric_of_document(text: str) -> Fabric:
    """Return the fabric that a JSON document describes, plugged together.

    Raises ValueError, one line that begins with the key, if it is about one.
    """
    try:
        spec = FabricSpec.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, message = (
            ".".join(map(str, first["loc"])),
            first["msg"].removeprefix("Value error, "),
        )
        raise ValueError(f"{where}: {message}" if where else message) from None
    return plugged(build_fabric(spec))


def build_fabric(spec: _FabricSpec) -> Fabric:
    """Return the fabric that a checked specification describes.

    GPUs get addresses 10.82.x.y and MACs 02:52:4c:00:xx:yy by their position in the file (those of
    ``servers`` first, then those of extensions' keys, then the trees'). Packet switches get datapath ids 1,
    2, … by their position as well (those of ``packet_switches`` first). Raises ValueError naming what is
    wrong.
    """
    keys = fabric_keys()
    if (whole := spec.whole) is not None:
        make = keys[whole].whole
        assert make is not None
        try:
            return make(spec.held[whole])
        except ValueError as error:
            raise ValueError(under(whole, error)) from None
    assembly = _assembly(spec)
    trees = spec._trees()
    ports = [(name, entry.ports) for name, entry in spec.packet_switches.items()]
    for name, (tree, model) in trees.items():
        assembly.add_gpus(name, tree.numbered(model, len(assembly.gpus)))
        ports += tree.switches.items()
    packet = {
        name: _packet_switch(spec, name, dpid, count)
        for dpid, (name, count) in enumerate(ports, start=1)
    }
    optical = _optical_switches(spec)
    gpus, plugs = assembly.gpus, assembly.plugged.values()
    added = [switch for made in plugs for switch in made.switches]
    servers = dict.fromkeys(gpu.server for gpu in gpus.values())
    names = [
        *servers,
        *gpus,
        *(name for name, _ in ports),
        *optical,
        *(switch.name for switch in added),
    ]
    names += assembly.devices
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"the name {name} is used by two nodes")
    optical |= {switch.name: switch for switch in added}
    onics = {onic.gpu: onic for made in plugs for onic in made.onics}

    # NIC port 1 is there where something is that it may lead to.
    limits = dict.fromkeys(gpus, (0, 1 if assembly.devices else 0))
    limits |= {gpu: (0, onic.ports - 1) for gpu, onic in onics.items()}
    limits |= {s.name: (1, s.ports) for s in packet.values()}
    limits |= {s.name: (1, s.size) for s in optical.values()}
    limits |= {name: (0, device.ports) for name, device in assembly.devices.items()}
    groups = {where: made.links for where, made in assembly.plugged.items()}
    groups |= {name: list(tree.links) for name, (tree, _) in trees.items()}
    _check_groups(groups, limits)
    assembly.links += [
        WrittenLink(f"links[{index}]", link.ends, link.rate, link.queue, link.effects)
        for index, link in enumerate(spec.links)
    ]
    links, cables = _plug_in(assembly, groups, limits, onics)
    for name, value in spec.held.items():
        if (finish_links := keys[name].links) is not None:
            links = finish_links(value, links, partial(_port, limits=limits))
    circuits = tuple(
        (_port(f"circuits[{i}]", a, limits), _port(f"circuits[{i}]", b, limits))
        for i, (a, b) in enumerate(spec.circuits)
    ) or tuple(pair for tree, _ in trees.values() for pair in tree.circuits)
    fabric = Fabric(
        gpus,
        packet,
        optical,
        tuple(links),
        circuits,
        onics,
        assembly.parts,
        spec.paths,
        Optics(**spec.light.model_dump()),
        tuple(cables),
        {name: device.kind for name, device in assembly.devices.items()},
    )
    for name in assembly.parts:
        if (finish := keys[name].finish) is not None:
            fabric = finish(fabric)
    for i, ends in enumerate(circuits):
        for port in ends:
            if not is_electrical(fabric, port):
                raise ValueError(
                    f"circuits[{i}]: {port} is optical; name a GPU or packet-switch port"
                )
    circuit_cross_connects(fabric, circuits)
    return fabric


def _assembly(spec: _FabricSpec) -> Assembly:
    """Return the GPUs of servers, and what the keys of extensions add. Raises ValueError."""
    assembly = Assembly({})
    for server, entry in spec.servers.items():
        for name, model in entry.gpus.items():
            if name in assembly.gpus:
                there = assembly.gpus[name].server
                raise ValueError(
                    f"servers.{server}.gpus.{name}: {there} has that GPU too"
                )
            assembly.gpus[name] = Gpu.numbered(name, server, model, len(assembly.gpus))
    for key, value in spec.held.items():
        if (add := fabric_keys()[key].add) is not None:
            add(value, assembly)
    return assembly


def _optical_switches(spec: _FabricSpec) -> dict[str, OpticalSwitch]:
    return {
        name: OpticalSwitch(
            name,
            entry.size,
            entry.driver,
            entry.profile,
            loss_db=entry.loss_db,
            dark_s=entry.dark,
            access=entry.access(),
        )
        for name, entry in spec.optical_switches.items()
    }


def _check_groups(
    groups: dict[str, list[Link]], limits: dict[str, tuple[int, int]]
) -> None:
    """Raise ValueError for a link of a short form that leads to a port which is not there."""
    for where, group in groups.items():
        for port in (port for link in group for port in (link.a, link.b)):
            low, high = limits.get(port.node, (0, -1))
            if not low <= port.number <= high:
                what = (
                    f"has {high} ports, and takes more"
                    if high > 0
                    else "is no optical switch of the fabric"
                )
                raise ValueError(f"{where}.through: {port.node} {what}")


def _plug_in(
    assembly: Assembly,
    groups: dict[str, list[Link]],
    limits: dict[str, tuple[int, int]],
    onics: Collection[str],
) -> tuple[list[Link], list[Link]]:
    """Return the links of the fabric, those of ``groups`` first, and the cables of devices.

    Raises ValueError for an end that is not there, is taken, or takes no such link.
    """
    devices = assembly.devices
    links = [link for group in groups.values() for link in group]
    cables: list[Link] = []
    used = {
        port: where
        for where, group in groups.items()
        for link in group
        for port in (link.a, link.b)
    }
    for where, texts, rate_bps, queue_s, effects in assembly.links:
        a, b = (_port(f"{where}.ends", text, limits) for text in texts)
        if a == b:
            raise ValueError(f"{where}: both ends are {a}")
        for port in (a, b):
            if port in used:
                raise ValueError(
                    f"{where}: port {port} is already plugged in {used[port]}"
                )
            used[port] = where
        link = Link(a, b, rate_bps, queue_s, acting(effects))
        device = devices.get(a.node) or devices.get(b.node)
        if device is not None:
            cables.append(_cable(where, device, link, assembly))
            continue
        for port in (a, b):
            if (
                port.node in assembly.gpus
                and port.node not in onics
                and port.number > 0
            ):
                kinds = " or ".join(
                    dict.fromkeys(device.kind for device in devices.values())
                )
                raise ValueError(
                    f"{where}: {port} takes only the cable of a device ({kinds})"
                )
        links.append(link)
    return links, cables


def _cable(where: str, device: CabledNode, link: Link, assembly: Assembly) -> Link:
    if link.effects:
        what = f"the cable of a device ({device.kind}), which loses and delays nothing"
        raise ValueError(f"{where}: {link.a} - {link.b} is {what}")
    try:
        return device.cable(link, assembly)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _port(where: str, text: str, limits: dict[str, tuple[int, int]]) -> Port:
    try:
        port = Port.parse(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if port.node not in limits:
        raise ValueError(f"{where}: there is no node {port.node}")
    low, high = limits[port.node]
    if not low <= port.number <= high:
        ports = f"only port {low}" if low == high else f"ports {low} to {high}"
        raise ValueError(f"{where}: {port.node} has {ports}, not {port.number}")
    return port
