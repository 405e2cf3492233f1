"""Checks the fabric part of a scenario file strictly and makes :class:`fabric.topology.Fabric`.

Every error names the key, node or port at fault. pydantic checks shapes and unknown keys; what spans
several entries (a port plugged twice, an end that does not exist) is checked in :func:`build_fabric`.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from ringlight.fabric.impairments import NONE, Impairments
from ringlight.fabric.light import Modulation, Optics
from ringlight.fabric.optical_drivers import CLASSES, RESERVED, driver_kinds, driver_of, products_of
from ringlight.fabric.parts import (
    OURS,
    Gpu,
    Link,
    OpticalSwitch,
    PacketSwitch,
    Plugged,
    Port,
    Wss,
)
from ringlight.fabric.planes.averagers.averager import Averager, AveragerNetwork, Imperfect
from ringlight.fabric.planes.divided.demand_ring import DemandRing
from ringlight.fabric.planes.divided.hop_ring import HopRing, hop_ring_fabric
from ringlight.fabric.planes.divided.planes import ParallelOcs
from ringlight.fabric.planes.grid.grid import make_grid, plugged_grid
from ringlight.fabric.planes.grid.whole_grid import GridOfGpus
from ringlight.fabric.planes.ring.ring import Reconfigure, make_ring, plugged_ring
from ringlight.fabric.planes.ring.whole_ring import WavelengthRing
from ringlight.fabric.planes.wholes.electrical import Ideal, Servers
from ringlight.fabric.planes.wholes.interconnect import Interconnect
from ringlight.fabric.planes.wholes.one_shot import OneShot
from ringlight.fabric.planes.wholes.rotor import Rotor, Rotors
from ringlight.fabric.planes.wholes.torus import Torus, TorusOfGpus
from ringlight.fabric.topology import (
    Fabric,
    PathChoice,
    circuit_cross_connects,
    is_electrical,
)
from ringlight.fabric.trees import QUEUE_S, Tree, fat_tree, leaf_spine
from ringlight.fabric.units import parse_rate, parse_size, parse_time


class Strict(BaseModel):
    """Unknown keys are errors; a checked object does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _quantity(parse: object) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} has no unit; write for example '40 Gbit/s', '25 ms', '1 MB'")
        return parse(value)  # type: ignore[operator]

    return BeforeValidator(check)


Rate = Annotated[float, _quantity(parse_rate), Field(gt=0)]
Duration = Annotated[float, _quantity(parse_time), Field(ge=0)]
Size = Annotated[int, _quantity(parse_size), Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,11}$")]


class ServerSpec(Strict):
    """A server and its GPUs: ``gpus: {g0: tesla-m40}`` gives each GPU's model."""

    gpus: dict[Name, str] = Field(min_length=1)


def _of_switches(value: object) -> object:
    """Return the value, if it is ``ringlight``, ``none``, ``app`` or ``tcp:HOST:PORT``.

    Raises ValueError for another value.
    """
    if value in (OURS, "none", "app"):
        return value
    if not isinstance(value, str) or not value.startswith("tcp:"):
        raise ValueError(
            "write ringlight, none, app, or another controller's address, such as tcp:127.0.0.1:6653"
        )
    address = str(_address(value.removeprefix("tcp:")))
    try:
        ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        # Open vSwitch does not ask for names, and would say nothing.
        raise ValueError(f"{value}: write the controller's IP address, not its name") from None
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


Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Power = Annotated[float, Field(allow_inf_nan=False)]


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
        re.fullmatch(r"(?:\[[^\]\s@]+\]|[^:\s/@]+):([0-9]{1,5})", value) if isinstance(value, str) else None
    )
    if match is None or not 0 < int(match[1]) < 1 << 16:
        raise ValueError("this is not host:port, such as '10.0.0.5:3083'")
    return value


Address = Annotated[str, BeforeValidator(_address)]
#: Where a password is, whatever the controller's working directory. Never the password itself.
PasswordFile = Annotated[str, Field(pattern=r"^/")]
Driver = Annotated[str, BeforeValidator(_driver), Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]


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
            raise ValueError(f"driver: {self.driver}; there are {', '.join(driver_kinds())}")
        if kind.is_bridge and self.dark is not None:
            raise ValueError(f"dark: a bridge of Open vSwitch (driver: {self.driver}) is never dark")
        if kind.is_bridge and self.loss_db is not None:
            raise ValueError(
                f"loss_db: a bridge of Open vSwitch (driver: {self.driver}) has no light to lose"
            )
        fit = [*products_of(self.driver), *CLASSES]
        if self.profile not in fit:
            raise ValueError(f"profile: {self.profile}; the driver {self.driver} goes with {', '.join(fit)}")
        if kind.protocol is None and not kind.is_bridge and self.address is None:
            raise ValueError(f"driver: {self.driver} is not emulated: give the address of such a switch")
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> OpticalSwitchSpec:
        kind = driver_kinds()[self.driver]
        if self.address is not None and kind.is_bridge:
            raise ValueError(f"address: {self.driver} has none; its switch connects to the controller")
        stated = {key: getattr(self, key) for key in ("username", "password_env", "password_file")}
        for key in (key for key, value in stated.items() if value is not None):
            if self.address is None:
                raise ValueError(f"{key}: goes with an address; an emulated switch has users of its own")
            if not kind.login:
                raise ValueError(f"{key}: the driver {self.driver} has no login")
            if self.username is None:
                raise ValueError(f"{key}: whose? there is no username")
        if self.password_env is not None and self.password_file is not None:
            raise ValueError("password_file: there is a password_env too; keep one of them")
        for key in self.options:
            if key in RESERVED:
                raise ValueError(f"options.{key}: belongs beside options, or in no fabric file at all")
            if key not in kind.options:
                there = f"; it has {', '.join(sorted(kind.options))}" if kind.options else ""
                raise ValueError(f"options.{key}: the driver {self.driver} has no such option{there}")
            if self.address is None and key not in kind.emulated_options:
                raise ValueError(
                    f"options.{key}: goes with an address; the emulated switch has no use for it"
                )
        return self

    def access(self) -> dict[str, object]:
        """Return the keys and values of an inventory entry that are given here."""
        stated = {key: getattr(self, key) for key in ("address", "username", "password_env", "password_file")}
        return {key: value for key, value in stated.items() if value is not None} | self.options


def _layers(value: object) -> object:
    """Return ``4-7`` as the first and the last layer."""
    match = re.fullmatch(r"(\d+)-(\d+)", value) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"{value!r} are no layers; write the first and the last, such as '4-6'")
    return int(match[1]), int(match[2])


class ImperfectSpec(Strict):
    """An averager's light that is not ideal: ``phase_bits`` of a phase, ``phase_error`` in radians,
    ``loss_db`` of each interferometer, ``noise`` of detectors and of ``transmitters`` in levels, ``mismatch``
    of transmitters as a part of their light; these are standard deviations, drawn from ``seed``. ``bias`` and
    ``scale``: by which part the constant light, and all light that enters, is too bright."""

    phase_bits: int | None = Field(default=None, ge=1, le=52)
    phase_error: float = Field(default=0.0, ge=0, le=10)
    loss_db: Loss = 0.0
    noise: float = Field(default=0.0, ge=0, le=10)
    transmitters: float = Field(default=0.0, ge=0, le=10)
    mismatch: float = Field(default=0.0, ge=0, le=1)
    bias: float = Field(default=0.0, ge=-1, le=1)
    scale: float = Field(default=0.0, ge=-1, le=1)
    seed: int = Field(default=0, ge=0)


#: Most ports of an averager.
MOST_PORTS = 64


class _UnitSpec(Strict):
    """Common to an averager and the short form of several. ``bits`` of a number. ``network``: what it
    computes; ``approximated``: which of its layers, ``4-6``, in place of the usual ones. ``decimals``: of the
    first level, whether they go on (Eq. 10)."""

    bits: Literal[8, 16]
    network: AveragerNetwork = "exact"
    decimals: bool = True
    approximated: Annotated[tuple[int, int], BeforeValidator(_layers)] | None = None
    imperfect: ImperfectSpec = ImperfectSpec()


class AveragerSpec(_UnitSpec):
    """``ports``: 1, 2, … for NIC port 1 of GPUs, or for port 0 of averagers of the first level."""

    ports: int = Field(ge=2, le=MOST_PORTS)


class FlapSpec(Strict):
    """Nothing passes for ``down``, then everything for ``up``, and so on."""

    down: Annotated[Duration, Field(gt=0)]
    up: Annotated[Duration, Field(gt=0)]


class ImpairmentsSpec(Strict):
    """Impairments of frames on a link (:mod:`fabric.impairments`).

    ``loss``: share of frames; ``errors``: share of bits.
    """

    delay: Duration = 0.0
    jitter: Duration = 0.0
    loss: Annotated[float, Field(ge=0, le=1)] = 0.0
    errors: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    flap: FlapSpec | None = None

    @model_validator(mode="after")
    def _can_be(self) -> ImpairmentsSpec:
        self.impairments()
        return self

    def impairments(self) -> Impairments:
        down_s, up_s = (0.0, 0.0) if self.flap is None else (self.flap.down, self.flap.up)
        return Impairments(self.delay, self.jitter, self.loss, self.errors, down_s, up_s)


class ImpairedSpec(ImpairmentsSpec):
    """The same of a link that a short form, a grid or a ring makes, by its two ``ends``."""

    ends: tuple[str, str]


class LinkSpec(ImpairmentsSpec):
    """A fibre or cable between two ports, ``ends: [g0, "ocs0:1"]``."""

    ends: tuple[str, str]
    rate: Rate
    queue: Duration = 0.02


class _WssSpec(Strict):
    """Kind of a grid's or ring's wavelength-selective switches; the keys as of optical switches."""

    driver: Literal["scpi"] = "scpi"
    profile: str
    loss_db: Loss | None = None
    dark: Duration | None = None

    def made(self) -> Wss:
        return Wss(self.driver, self.profile, self.loss_db, self.dark)


class WssSpec(_WssSpec):
    profile: Literal["lcos", "ideal"] = "lcos"


class RingWssSpec(_WssSpec):
    """``mrr``: micro-ring resonators, which add and drop one wavelength each."""

    profile: Literal["mrr", "lcos", "ideal"] = "mrr"


class GridSpec(Strict):
    """``rows`` × ``columns`` nodes, each with an O-NIC on its row's WSS and its column's WSS.

    A grid named n has GPUs n0, n1, … row by row, row switches n-r0, … and column switches n-c0, …; each
    node is a server of its own. One row (or one column) is one WSS for all, and one port for each node.
    ``wavelengths``: channels of every WSS (without it, as many as its longer side; with fewer, the light of
    a job is set for its collective). ``tuning``: time a transmitter takes to change its wavelength.
    """

    rows: int = Field(ge=1, le=512)
    columns: int = Field(ge=1, le=512)
    gpu: str = Field(min_length=1)
    rate: Rate
    queue: Duration = 0.02
    wavelengths: int | None = Field(default=None, ge=1, le=512)
    tuning: Duration = 10.5e-9
    wss: WssSpec = WssSpec()

    @model_validator(mode="after")
    def _has_nodes_to_join(self) -> GridSpec:
        if self.rows * self.columns < 2:
            raise ValueError("a grid needs at least 2 nodes")
        return self


class RingSpec(Strict):
    """``nodes`` around a ring of fibres in both directions, each with a small WSS and an O-NIC.

    A ring named r has GPUs r0, r1, … clockwise, each a server r-s0, … of its own, and WSSs r-w0, …
    ``wavelengths``: channels in each direction. ``rate``: that of ONE wavelength. ``reconfigure``: whether
    every step of a collective sets all of its light again, or only what does not stand.
    """

    nodes: int = Field(ge=2, le=4096)
    gpu: str = Field(min_length=1)
    rate: Rate
    queue: Duration = 0.02
    wavelengths: int = Field(default=1, ge=1, le=512)
    wss: RingWssSpec = RingWssSpec()
    reconfigure: Reconfigure = "changed-only"


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
            raise ValueError("core: light joins several leaves, whose GPUs are plugged into them")
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
        return made if self.through is None else made.through(self.through, self.spare_ports)


class AveragingSpec(_UnitSpec):
    """Short for ``servers`` GPUs that are each on one packet switch and on averagers: on one, or with two
    ``levels`` on as many as each has ports, and one more above. ``rate``: of every link and cable."""

    servers: int = Field(ge=2, le=4096)
    levels: Literal[1, 2] = 1
    gpu: str = Field(default="gpu", min_length=1)
    rate: Rate
    queue: Duration = QUEUE_S

    def tree(self) -> Tree:
        """Return the packet switch with the servers' links."""
        return leaf_spine(1, self.servers, self.rate, queue_s=self.queue)

    def written(self) -> tuple[dict[str, AveragerSpec], tuple[LinkSpec, ...]]:
        """Return the averagers and their cables, as they would be written out.

        The servers are in order, and the averager above the others is last. Raises ValueError if the servers
        do not fill two levels, or are too many for the ports of an averager.
        """
        ports = round(self.servers ** (1 / self.levels))
        if ports**self.levels != self.servers:
            raise ValueError(
                f"servers: {self.servers}; two levels have a square number of them, 16 or 64 say"
            )
        if ports > MOST_PORTS:
            raise ValueError(f"servers: {self.servers}; an averager has up to {MOST_PORTS} ports")
        unit = {key: getattr(self, key) for key in _UnitSpec.model_fields}
        made = {"ports": ports, **unit}
        averagers = {f"avg{k}": AveragerSpec.model_construct(**made) for k in range(self.servers // ports)}
        if self.levels > 1:
            # There is none above it that could have its decimals.
            averagers[f"avg{ports}"] = AveragerSpec.model_construct(**{**made, "decimals": True})
        ends = [(f"g{k}:1", f"avg{k // ports}:{k % ports + 1}") for k in range(self.servers)]
        if self.levels > 1:
            ends += [(f"avg{k}:0", f"avg{ports}:{k + 1}") for k in range(ports)]
        cables = (LinkSpec.model_construct(ends=pair, rate=self.rate, queue=self.queue) for pair in ends)
        return averagers, tuple(cables)


#: Wavelengths in each direction of a ring, as simulated; far fewer are emulated.
_MOST_EACH_WAY = 4096


class _InterconnectSpec(Strict):
    """``gpus`` GPUs g0, g1, …, each in a server s0, … of its own unless its kind says otherwise. ``rate``:
    of a GPU in all, each way."""

    gpus: int = Field(ge=2, le=16384)
    gpu: str = Field(min_length=1)
    rate: Rate


class IdealSpec(_InterconnectSpec):
    kind: Literal["ideal"]

    def made(self) -> Interconnect:
        return Ideal(self.rate)


class ServersSpec(_InterconnectSpec):
    """Servers of ``each`` GPUs in a row; a GPU has ``inside`` to the others of its server, and ``rate`` to
    those of other servers."""

    kind: Literal["servers"]
    each: int = Field(ge=2, le=1024)
    inside: Rate

    def made(self) -> Interconnect:
        if self.gpus % self.each:
            raise ValueError(f"each: {self.gpus} GPUs do not fill servers of {self.each}")
        return Servers(self.each, self.inside, self.rate)


class ParallelOcsSpec(_InterconnectSpec):
    """``switches`` optical circuit switches, a port of each GPU on each, set once for the jobs' demand; with
    ``interval`` and ``dark`` again and again for what is still to be sent, each time decided in
    ``decision``; with ``dark`` alone, and perhaps a ``guard``, also for each phase of a job."""

    kind: Literal["parallel-ocs"]
    switches: int = Field(ge=1, le=1024)
    interval: Duration | None = None
    dark: Duration | None = None
    decision: Duration | None = None
    guard: Duration | None = None

    def made(self) -> Interconnect:
        if self.interval is None:
            if self.decision is not None:
                raise ValueError("decision: it goes with interval and dark; without them, light is set once")
            if self.guard is not None and self.dark is None:
                raise ValueError("guard: it goes with dark; without it, light is set once")
            phased = self.dark is not None
            return ParallelOcs(
                self.switches, self.rate, dark_s=self.dark or 0.0, guard_s=self.guard or 0.0, phased=phased
            )
        if self.dark is None:
            raise ValueError("interval: it goes with dark; without both, light is set once")
        if self.guard is not None:
            raise ValueError("guard: it is of light that is set for phases, and goes with no interval")
        _check_interval(self.interval)
        return ParallelOcs(self.switches, self.rate, self.interval, self.dark, self.decision or 0.0)


def _check_interval(interval_s: float) -> None:
    if interval_s <= 0:
        raise ValueError(f"interval: {interval_s:g} s; it must be above 0")


class DemandRingSpec(_InterconnectSpec):
    """``wavelength``: rate of one; ``rate`` over it, half in each direction, is how many there are. Each
    division holds for ``interval``, after ``dark``, and is decided in ``decision``."""

    kind: Literal["demand-ring"]
    wavelength: Rate
    interval: Duration
    dark: Duration
    decision: Duration = 0.0

    def made(self) -> Interconnect:
        each_way = _each_way(self.rate, self.wavelength)
        _check_interval(self.interval)
        return DemandRing(each_way, self.wavelength, self.interval, self.dark, self.decision)


def _each_way(rate_bps: float, wavelength_bps: float) -> int:
    """Return the wavelengths in each of a ring's two directions.

    Raises ValueError if they are no whole number.
    """
    each_way = rate_bps / wavelength_bps / 2
    if abs(each_way - round(each_way)) > 1e-9 * each_way or each_way < 1:
        raise ValueError(
            f"rate: {2 * each_way:g} wavelengths do not divide into two directions of whole numbers"
        )
    if each_way > _MOST_EACH_WAY:
        raise ValueError(f"wavelength: {each_way:g} in each direction; at most {_MOST_EACH_WAY}")
    return round(each_way)


class TorusSpec(_InterconnectSpec):
    """``sides``: GPUs in each dimension; ``hop``: time that a GPU takes to hand on."""

    kind: Literal["torus"]
    sides: tuple[int, ...] = Field(min_length=1, max_length=8)
    hop: Duration = 0.0

    def made(self) -> Interconnect:
        if min(self.sides) < 2:
            raise ValueError(f"sides: {self.sides}; each must be at least 2")
        torus = Torus(self.sides)
        if torus.gpus != self.gpus:
            raise ValueError(f"sides: {self.sides} are {torus.gpus} GPUs, and there are {self.gpus}")
        return TorusOfGpus(torus, self.rate, self.hop)


class OneShotSpec(_InterconnectSpec):
    kind: Literal["one-shot"]
    degree: int = Field(ge=1, le=1024)
    hop: Duration = 0.0

    def made(self) -> Interconnect:
        if self.degree >= self.gpus:
            raise ValueError(f"degree: {self.degree}; {self.gpus} GPUs can have one of 1 to {self.gpus - 1}")
        return OneShot(self.degree, self.rate, self.hop)


class RotorSpec(_InterconnectSpec):
    """``slot``: how long a matching stands, the ``dark`` time at its beginning included."""

    kind: Literal["rotor"]
    ports: int = Field(ge=1, le=1024)
    slot: Duration
    dark: Duration = 0.0
    indirect: bool = False

    def made(self) -> Interconnect:
        if not self.dark < self.slot:
            raise ValueError(f"dark: {self.dark:g} s; it must be below the slot of {self.slot:g} s")
        if self.ports >= self.gpus:
            raise ValueError(f"ports: {self.ports}; {self.gpus} GPUs can have 1 to {self.gpus - 1}")
        return Rotors(
            Rotor(self.gpus, self.ports, self.rate / self.ports, self.slot, self.dark), self.indirect
        )


class GridOfGpusSpec(_InterconnectSpec):
    """``rows`` x ``columns`` GPUs, row by row; ``transceivers``: 1 for row and column, or one for each;
    ``set_up``: of each transfer, on each line that it takes."""

    kind: Literal["grid"]
    rows: int = Field(ge=1, le=4096)
    columns: int = Field(ge=1, le=4096)
    transceivers: Literal[1, 2] = 1
    set_up: Duration = 0.0

    def made(self) -> Interconnect:
        if self.rows * self.columns != self.gpus:
            raise ValueError(
                f"rows: {self.rows} of {self.columns} columns are {self.rows * self.columns} GPUs, "
                f"and there are {self.gpus}"
            )
        return GridOfGpus(self.rows, self.columns, self.rate, self.transceivers, self.set_up)


class WavelengthRingSpec(_InterconnectSpec):
    """``wavelength``: rate of one, of which ``rate`` has half in each direction; ``dark``: of a step whose
    circuits are others than those of the step before."""

    kind: Literal["wavelength-ring"]
    wavelength: Rate
    dark: Duration = 0.0

    def made(self) -> Interconnect:
        return WavelengthRing(_each_way(self.rate, self.wavelength), self.wavelength, self.dark)


class HopRingSpec(Strict):
    """``gpus`` GPUs g0, g1, … in a ring, each in a server s0, … of its own with a transceiver on either side
    that reaches the next ``reach`` servers, one at a time (:mod:`fabric.planes.divided.hop_ring`). ``rate``:
    of both together; ``dark``: how long choosing another path takes."""

    gpus: int = Field(ge=3, le=4096)
    gpu: str = Field(min_length=1)
    rate: Rate
    reach: int = Field(ge=1, le=16)
    dark: Duration = 0.0

    def fabric(self) -> Fabric:
        """Return the ring as it is plugged together.

        Raises ValueError for a reach that is not less than ``gpus``.
        """
        if self.reach >= self.gpus:
            raise ValueError(f"reach: {self.reach}; of {self.gpus} servers it is at most {self.gpus - 1}")
        gpus = [Gpu.numbered(f"g{index}", f"s{index}", self.gpu, index) for index in range(self.gpus)]
        return hop_ring_fabric(HopRing(self.gpus, self.reach, self.rate, self.dark), gpus)


#: How the tags begin by which pydantic tells sections of one key from each other.
KIND_TAG = "kind-"
KINDS = (
    *("ideal", "servers", "parallel-ocs", "demand-ring", "torus", "one-shot", "rotor", "grid"),
    "wavelength-ring",
)


def _kind_tag(value: object) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return f"{KIND_TAG}{kind}" if kind in KINDS else None


InterconnectSpec = Annotated[
    Annotated[IdealSpec, Tag("kind-ideal")]
    | Annotated[ServersSpec, Tag("kind-servers")]
    | Annotated[ParallelOcsSpec, Tag("kind-parallel-ocs")]
    | Annotated[DemandRingSpec, Tag("kind-demand-ring")]
    | Annotated[TorusSpec, Tag("kind-torus")]
    | Annotated[OneShotSpec, Tag("kind-one-shot")]
    | Annotated[RotorSpec, Tag("kind-rotor")]
    | Annotated[GridOfGpusSpec, Tag("kind-grid")]
    | Annotated[WavelengthRingSpec, Tag("kind-wavelength-ring")],
    Discriminator(
        _kind_tag, custom_error_type="kind", custom_error_message=f"its kind is one of {', '.join(KINDS)}"
    ),
]


class FabricSpec(Strict):
    """``servers`` and ``packet_switches`` may be left out if there is a grid, a ring or a short form.

    ``fat_tree``, ``leaf_spine`` and ``averaging`` are short forms: servers, switches, averagers and links are
    added before what is written out. ``paths``: how one of several shortest paths is chosen
    (``fabric.paths``). ``impaired``: what some of their links do to frames.
    ``light``: a path that leaves less power than its receiver's sensitivity carries nothing
    (``fabric.light``).
    ``controller``: who writes the packet switches' tables (:class:`fabric.parts.PacketSwitch`).
    ``moved_flows``: of those that others write, what becomes of flows that name a GPU which has moved.
    ``interconnect`` and ``hop_ring``: all of the fabric, in place of the rest.
    """

    servers: dict[Name, ServerSpec] = Field(default_factory=dict)
    controller: SwitchController = OURS
    moved_flows: MovedFlows = "keep"
    packet_switches: dict[Name, PacketSwitchSpec] = Field(default_factory=dict)
    optical_switches: dict[Name, OpticalSwitchSpec] = Field(default_factory=dict)
    averagers: dict[Name, AveragerSpec] = Field(default_factory=dict)
    grids: dict[Name, GridSpec] = Field(default_factory=dict)
    rings: dict[Name, RingSpec] = Field(default_factory=dict)
    fat_tree: FatTreeSpec | None = None
    leaf_spine: LeafSpineSpec | None = None
    averaging: AveragingSpec | None = None
    interconnect: InterconnectSpec | None = None
    hop_ring: HopRingSpec | None = None
    paths: PathChoice = "hash"
    light: LightSpec = LightSpec()
    links: tuple[LinkSpec, ...] = ()
    impaired: tuple[ImpairedSpec, ...] = ()
    circuits: tuple[tuple[str, str], ...] = ()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> FabricSpec:
        for key in ("interconnect", "hop_ring"):
            if getattr(self, key) is None:
                continue
            if more := self.model_fields_set - {key, "title"}:
                raise ValueError(f"{min(more)}: {key} is all of a fabric, and has no such thing")
            return self
        if not (self.grids or self.rings or self.fat_tree or self.leaf_spine or self.averaging):
            for key in ("servers", "packet_switches", "links"):
                # An empty list of links is a fabric with nothing plugged in, which may be meant.
                if key not in self.model_fields_set or (key != "links" and not getattr(self, key)):
                    raise ValueError(
                        f"{key} is missing; only a fabric with grids, rings or a tree may do without"
                    )
        for key in ("grids", "rings"):
            if (self.averagers or self.averaging) and getattr(self, key):
                raise ValueError(f"averagers: their servers have NICs for packets, and {key} have O-NICs")
        return self

    @property
    def trees(self) -> dict[str, Tree]:
        """Return the trees of the short forms, by key. Raises ValueError that begins with the key."""
        trees = {}
        shorts = {"fat_tree": self.fat_tree, "leaf_spine": self.leaf_spine, "averaging": self.averaging}
        for key, short in shorts.items():
            if short is not None:
                try:
                    trees[key] = short.tree()
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
        return trees


def _packet_switch(spec: FabricSpec, name: str, dpid: int, ports: int) -> PacketSwitch:
    """Return a packet switch. Raises ValueError if its controller does not fit ``moved_flows``."""
    entry = spec.packet_switches.get(name) or PacketSwitchSpec(ports=ports)
    controller = entry.controller or spec.controller
    has_flows = controller not in (OURS, "none")
    if entry.moved_flows == "delete" and not has_flows:
        raise ValueError(
            f"packet_switches.{name}.moved_flows: its controller is {controller}; flows are deleted at"
            " switches of app or tcp:HOST:PORT"
        )
    forgets = (entry.moved_flows or spec.moved_flows) == "delete" and has_flows
    return PacketSwitch(name, dpid, ports, controller, forgets)


def build_fabric(spec: FabricSpec) -> Fabric:
    """Return the fabric that a checked specification describes.

    GPUs get addresses 10.82.x.y and MACs 02:52:4c:00:xx:yy by their position in the file (those of
    ``servers`` first, then the grids', the rings' and the trees'). Packet switches get datapath ids 1, 2, …
    by their position as well (those of ``packet_switches`` first). Raises ValueError naming what is wrong.
    """
    if spec.interconnect is not None:
        return _interconnected(spec.interconnect)
    if spec.hop_ring is not None:
        try:
            return spec.hop_ring.fabric()
        except ValueError as error:
            raise ValueError(under("hop_ring", error)) from None
    averagers, written = _with_short_form(spec)
    gpus: dict[str, Gpu] = {}
    for server, entry in spec.servers.items():
        for name, model in entry.gpus.items():
            if name in gpus:
                raise ValueError(f"servers.{server}.gpus.{name}: {gpus[name].server} has that GPU too")
            gpus[name] = Gpu.numbered(name, server, model, len(gpus))
    grids, rings, plugged = {}, {}, dict[str, Plugged]()
    for name, g in spec.grids.items():
        grids[name] = grid = make_grid(name, g.rows, g.columns, g.wavelengths)
        made = plugged_grid(grid, g.gpu, g.rate, g.queue, g.tuning, g.wss.made(), len(gpus))
        plugged[f"grids.{name}"] = made
        _add(gpus, f"grids.{name}", made.gpus)
    for name, r in spec.rings.items():
        rings[name] = ring = make_ring(name, r.nodes, r.wavelengths, r.reconfigure)
        made = plugged_ring(ring, r.gpu, r.rate, r.queue, r.wss.made(), len(gpus))
        plugged[f"rings.{name}"] = made
        _add(gpus, f"rings.{name}", made.gpus)
    ports = [(name, entry.ports) for name, entry in spec.packet_switches.items()]
    trees = spec.trees
    for name, tree in trees.items():
        _add(gpus, name, tree.numbered(getattr(spec, name).gpu, len(gpus)))
        ports += tree.switches.items()
    packet = {
        name: _packet_switch(spec, name, dpid, count) for dpid, (name, count) in enumerate(ports, start=1)
    }
    optical = {
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
    wss = [switch for made in plugged.values() for switch in made.switches]
    servers = dict.fromkeys(gpu.server for gpu in gpus.values())
    names = [*servers, *gpus, *(name for name, _ in ports), *optical, *(switch.name for switch in wss)]
    names += averagers
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"the name {name} is used by two nodes")
    optical |= {switch.name: switch for switch in wss}

    onics = {onic.gpu: onic for made in plugged.values() for onic in made.onics}
    # NIC port 1 is there where something is that it may lead to.
    limits = dict.fromkeys(gpus, (0, 1 if averagers else 0))
    limits |= {gpu: (0, onic.ports - 1) for gpu, onic in onics.items()}
    limits |= {s.name: (1, s.ports) for s in packet.values()}
    limits |= {s.name: (1, s.size) for s in optical.values()}
    limits |= {name: (0, averager.ports) for name, averager in averagers.items()}
    links: list[Link] = []
    cables: list[Link] = []
    used: dict[Port, str] = {}
    groups = {where: made.links for where, made in plugged.items()}
    groups |= {name: list(tree.links) for name, tree in trees.items()}
    for where, group in groups.items():
        for port in (port for link in group for port in (link.a, link.b)):
            low, high = limits.get(port.node, (0, -1))
            if not low <= port.number <= high:
                what = (
                    f"has {high} ports, and takes more" if high > 0 else "is no optical switch of the fabric"
                )
                raise ValueError(f"{where}.through: {port.node} {what}")
        links += group
        used |= {port: where for link in group for port in (link.a, link.b)}
    for where, entry_ in written:
        a, b = (_port(f"{where}.ends", text, limits) for text in entry_.ends)
        if a == b:
            raise ValueError(f"{where}: both ends are {a}")
        for port in (a, b):
            if port in used:
                raise ValueError(f"{where}: port {port} is already plugged in {used[port]}")
            used[port] = where
        if {a.node, b.node} & averagers.keys():
            if entry_.impairments() != NONE:
                raise ValueError(f"{where}: {a} - {b} is an averager's cable, which loses and delays nothing")
            cables.append(_cable(where, Link(a, b, entry_.rate, entry_.queue), averagers.keys(), gpus))
            continue
        for port in (a, b):
            if port.node in gpus and port.node not in onics and port.number > 0:
                raise ValueError(f"{where}: {port} can only be plugged into an averager")
        links.append(Link(a, b, entry_.rate, entry_.queue, entry_.impairments()))
    links = _impaired(links, spec.impaired, limits)
    circuits = tuple(
        (_port(f"circuits[{i}]", a, limits), _port(f"circuits[{i}]", b, limits))
        for i, (a, b) in enumerate(spec.circuits)
    ) or tuple(pair for tree in trees.values() for pair in tree.circuits)
    fabric = Fabric(
        gpus,
        packet,
        optical,
        tuple(links),
        circuits,
        onics,
        grids,
        rings,
        spec.paths,
        Optics(**spec.light.model_dump()),
        averagers={name: _averager(name, entry, cables) for name, entry in averagers.items()},
    )
    if averagers:
        # Here, as it needs numpy, and few fabrics have any.
        from ringlight.fabric.planes.averagers.averaging import check_averagers

        check_averagers(fabric)
    for i, ends in enumerate(circuits):
        for port in ends:
            if not is_electrical(fabric, port):
                raise ValueError(f"circuits[{i}]: {port} is optical; name a GPU or packet-switch port")
    circuit_cross_connects(fabric, circuits)
    return fabric


def _impaired(
    links: Sequence[Link], entries: Sequence[ImpairedSpec], limits: dict[str, tuple[int, int]]
) -> list[Link]:
    """Return the links with the impairments that are given for some by their ends.

    Raises ValueError for ends that no link joins, or that are named twice.
    """
    if not entries:
        return list(links)
    by_ends: dict[frozenset[Port], Impairments] = {}
    known = {frozenset((link.a, link.b)) for link in links}
    for index, entry in enumerate(entries):
        where = f"impaired[{index}].ends"
        ends = frozenset(_port(where, text, limits) for text in entry.ends)
        if ends not in known:
            raise ValueError(f"{where}: no link joins {' and '.join(entry.ends)}")
        if ends in by_ends:
            raise ValueError(f"{where}: {' and '.join(entry.ends)} are named twice")
        by_ends[ends] = entry.impairments()
    return [
        replace(link, impairments=by_ends.get(frozenset((link.a, link.b)), link.impairments))
        for link in links
    ]


def _cable(where: str, link: Link, averagers: Collection[str], gpus: Collection[str]) -> Link:
    """Return the link as an averager has it. Raises ValueError for what an averager is not plugged into."""
    for cable in (link, replace(link, a=link.b, b=link.a)):
        a, b = cable.a, cable.b
        if b.node in averagers and b.number > 0:
            if a.node in gpus and a.number == 1:
                return cable
            if a.node in averagers and a.node != b.node and a.number == 0:
                return cable
    raise ValueError(
        f"{where}: {link.a} and {link.b}: an averager's ports from 1 take NIC port 1 of a GPU or port 0 of "
        "another averager"
    )


def _averager(name: str, spec: AveragerSpec, cables: Iterable[Link]) -> Averager:
    mine = sorted((cable for cable in cables if cable.b.node == name), key=lambda cable: cable.b)
    imperfect = Imperfect(**spec.imperfect.model_dump())
    return Averager(
        name, spec.ports, spec.bits, spec.network, spec.decimals, tuple(mine), spec.approximated, imperfect
    )


#: How a problem begins that names its key.
_KEYED = re.compile(r"[^\s:.\[\]]+(\.[^\s:.\[\]]+|\[\d+\])*: ")


def under(where: str, problem: object) -> str:
    """Return a problem of the section ``where`` as ``path: sentence``.

    Most problems name a key of the section, others are a sentence about all of it.
    """
    text = str(problem)
    return f"{where}.{text}" if _KEYED.match(text) else f"{where}: {text}"


def _with_short_form(spec: FabricSpec) -> tuple[dict[str, AveragerSpec], list[tuple[str, LinkSpec]]]:
    """Return averagers and links of the file with their places in it, those of ``averaging`` first.

    Raises ValueError if :meth:`AveragingSpec.written` does, and for an averager that is there twice.
    """
    links = [(f"links[{index}]", link) for index, link in enumerate(spec.links)]
    if spec.averaging is None:
        return spec.averagers, links
    try:
        made, cables = spec.averaging.written()
    except ValueError as error:
        raise ValueError(under("averaging", error)) from None
    for name in spec.averagers:
        if name in made:
            raise ValueError(f"averagers.{name}: averaging has an averager of this name")
    return {**made, **spec.averagers}, [*(("averaging", cable) for cable in cables), *links]


def _interconnected(spec: InterconnectSpec) -> Fabric:
    try:
        made = spec.made()
    except ValueError as error:
        raise ValueError(under("interconnect", error)) from None
    gpus = [
        Gpu.numbered(f"g{index}", f"s{index // made.server_size}", spec.gpu, index)
        for index in range(spec.gpus)
    ]
    return Fabric({gpu.name: gpu for gpu in gpus}, {}, {}, (), interconnect=made)


def _add(gpus: dict[str, Gpu], where: str, more: Iterable[Gpu]) -> None:
    for gpu in more:
        if gpu.name in gpus:
            raise ValueError(f"{where}: {gpus[gpu.name].server} has GPU {gpu.name} too")
        gpus[gpu.name] = gpu


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
