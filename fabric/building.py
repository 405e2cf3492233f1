"""Make :class:`fabric.topology.Fabric` of the fabric part of a scenario file, and check what spans its entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial

from pydantic import ValidationError

from ringlight.fabric.keys import (
    Assembly,
    CabledNode,
    WrittenLink,
    fabric_keys,
    plugged,
)
from ringlight.fabric.light import Optics
from ringlight.fabric.link_effects import acting
from ringlight.fabric.parts import OURS, Gpu, Link, OpticalSwitch, PacketSwitch, Port
from ringlight.fabric.schema import FabricSpec, PacketSwitchSpec
from ringlight.fabric.table_writers import programs
from ringlight.fabric.topology import Fabric, circuit_cross_connects, is_electrical
from ringlight.fabric.values import under


def _packet_switch(spec: FabricSpec, name: str, dpid: int, ports: int) -> PacketSwitch:
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


def build_fabric(spec: FabricSpec) -> Fabric:
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


def _assembly(spec: FabricSpec) -> Assembly:
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


def _optical_switches(spec: FabricSpec) -> dict[str, OpticalSwitch]:
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
