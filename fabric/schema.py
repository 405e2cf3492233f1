"""The fabric part of a scenario file: checked strictly, then frozen into :class:`fabric.topology.Fabric`.

Every error names the key, node or port at fault. pydantic checks shapes and unknown keys; what spans
several entries (a port plugged twice, an end that does not exist) is checked in :func:`build_fabric`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fabric.topology import (
    Fabric,
    Gpu,
    Link,
    OpticalSwitch,
    PacketSwitch,
    Port,
    circuit_cross_connects,
    is_electrical,
)
from fabric.units import parse_rate, parse_size, parse_time


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


class PacketSwitchSpec(Strict):
    ports: int = Field(ge=1, le=4096)


class OpticalSwitchSpec(Strict):
    """``size`` duplex faceplate ports; ``driver`` speaks to it; ``profile`` is its emulated timing."""

    size: int = Field(ge=1, le=4096)
    driver: Literal["scpi", "openflow"] = "scpi"
    profile: Literal["mems", "piezo", "ideal"] = "mems"


class LinkSpec(Strict):
    """A fibre or cable between two ports, ``ends: [g0, "ocs0:1"]``."""

    ends: tuple[str, str]
    rate: Rate
    queue: Duration = 0.02


class FabricSpec(Strict):
    servers: dict[Name, ServerSpec] = Field(min_length=1)
    packet_switches: dict[Name, PacketSwitchSpec] = Field(min_length=1)
    optical_switches: dict[Name, OpticalSwitchSpec] = Field(default_factory=dict)
    links: tuple[LinkSpec, ...]
    circuits: tuple[tuple[str, str], ...] = ()


def build_fabric(spec: FabricSpec) -> Fabric:
    """The fabric that a checked specification describes.

    GPUs get addresses 10.82.x.y and MACs 02:52:4c:00:xx:yy by their position in the file, packet
    switches get datapath ids 1, 2, … likewise. Raises ValueError naming what is wrong.
    """
    gpus: dict[str, Gpu] = {}
    for server, entry in spec.servers.items():
        for name, model in entry.gpus.items():
            if name in gpus:
                raise ValueError(f"servers.{server}.gpus.{name}: {gpus[name].server} has that GPU too")
            high, low = divmod(len(gpus) + 1, 250)
            gpus[name] = Gpu(
                name, server, model, f"10.82.{high}.{low + 1}", f"02:52:4c:00:{high:02x}:{low + 1:02x}"
            )
    packet = {
        name: PacketSwitch(name, dpid, entry.ports)
        for dpid, (name, entry) in enumerate(spec.packet_switches.items(), start=1)
    }
    optical = {
        name: OpticalSwitch(name, entry.size, entry.driver, entry.profile)
        for name, entry in spec.optical_switches.items()
    }
    names = [*spec.servers, *gpus, *packet, *optical]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the name {name} is used by two nodes")

    limits = dict.fromkeys(gpus, (0, 0))
    limits |= {s.name: (1, s.ports) for s in packet.values()}
    limits |= {s.name: (1, s.size) for s in optical.values()}
    links: list[Link] = []
    used: dict[Port, int] = {}
    for index, entry_ in enumerate(spec.links):
        where = f"links[{index}]"
        a, b = (_port(f"{where}.ends", text, limits) for text in entry_.ends)
        if a == b:
            raise ValueError(f"{where}: both ends are {a}")
        for port in (a, b):
            if port in used:
                raise ValueError(f"{where}: port {port} is already plugged in links[{used[port]}]")
            used[port] = index
        links.append(Link(a, b, entry_.rate, entry_.queue))
    circuits = tuple(
        (_port(f"circuits[{i}]", a, limits), _port(f"circuits[{i}]", b, limits))
        for i, (a, b) in enumerate(spec.circuits)
    )
    fabric = Fabric(gpus, packet, optical, tuple(links), circuits)
    for i, ends in enumerate(circuits):
        for port in ends:
            if not is_electrical(fabric, port):
                raise ValueError(f"circuits[{i}]: {port} is optical; name a GPU or packet-switch port")
    circuit_cross_connects(fabric, circuits)
    return fabric


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
