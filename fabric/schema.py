"""Check the fabric part of a scenario file strictly.

Every error names the key, node or port at fault. pydantic checks shapes and unknown keys; what spans
several entries (a port plugged twice, an end that does not exist) is checked in
:func:`fabric.building.build_fabric`.
"""

from __future__ import annotations

import ipaddress
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model, model_validator

from ringlight.fabric.keys import fabric_keys, link_keys
from ringlight.fabric.light import Modulation, Optics
from ringlight.fabric.link_effects import Effects
from ringlight.fabric.optical_drivers import (
    CLASSES,
    RESERVED,
    driver_kinds,
    driver_of,
    products_of,
)
from ringlight.fabric.parts import OURS
from ringlight.fabric.table_writers import programs
from ringlight.fabric.topology import PathChoice
from ringlight.fabric.trees import QUEUE_S, Tree, fat_tree, leaf_spine
from ringlight.fabric.values import Duration, Loss, Name, Power, Rate, Strict


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
    uplinks: int | None = Field(default=None, ge=1, le=64)

    def tree(self) -> Tree:
        """Return the fat tree. Raises ValueError for an odd k."""
        return self.with_uplinks(
            fat_tree(
                self.k,
                self.rate,
                gpus_per_edge=self.gpus_per_edge,
                uplinks=self.uplinks,
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
            return made.with_optical_core(self.core)
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
