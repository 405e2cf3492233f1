"""InfraGraph's document (schema 3.1.0) with what its library lets pass: unknown keys, links, slices, instances.

``check`` refuses those by key; the library then makes the graph (``infragraph_graph``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from ringlight.experiments.language.text import first_problem
from ringlight.fabric.values import Strict

#: Most components of all instances, and most edges.
MOST_PARTS = 200_000
#: Most steps of the library, some 25 seconds.
MOST_STEPS = 20_000_000
#: Most levels of devices in devices.
DEEPEST = 64
_PLACE = re.compile(r"([\sA-Za-z0-9_()><-]+)(?:\[([0-9:-]*)\])?")


class InfraGraphError(ValueError):
    """A document that cannot be imported; one line with the file and the key."""


class _Nothing(Strict):
    pass


class _Custom(Strict):
    type: str


class Component(Strict):
    """``count`` components of one kind in a device."""

    name: str
    description: str = ""
    count: int = Field(ge=1)
    choice: Literal["custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch"]
    custom: _Custom | None = None
    device: _Nothing | None = None
    cpu: _Nothing | None = None
    xpu: _Nothing | None = None
    nic: _Nothing | None = None
    memory: _Nothing | None = None
    port: _Nothing | None = None
    switch: _Nothing | None = None


class _Bandwidth(Strict):
    choice: Literal[
        "gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second"
    ]
    gigabits_per_second: float | None = Field(default=None, gt=0)
    gigabytes_per_second: float | None = Field(default=None, gt=0)
    gigatransfers_per_second: float | None = Field(default=None, gt=0)


class _Latency(Strict):
    choice: Literal["ms", "us", "ns"]
    ms: float | None = None
    us: float | None = None
    ns: float | None = None


class _Physical(Strict):
    bandwidth: _Bandwidth | None = None
    latency: _Latency | None = None


class LinkKind(Strict):
    """A kind of link, which edges name."""

    name: str
    description: str = ""
    physical: _Physical | None = None


def _mapping(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(
            f"{value:.60} is an end as older schemas have it; schema 3.1 has a mapping"
        )
    return value


class _DeviceEnd(Strict):
    device: str | None = None
    component: str


class _InstanceEnd(Strict):
    instance: str
    component: str


_Scheme = Literal["one2one", "many2many", "ring"]


class DeviceEdge(Strict):
    """Edges between components of a device."""

    ep1: Annotated[_DeviceEnd, BeforeValidator(_mapping)]
    ep2: Annotated[_DeviceEnd, BeforeValidator(_mapping)]
    scheme: _Scheme
    link: str


class InstanceEdge(Strict):
    """Edges between components of instances."""

    ep1: Annotated[_InstanceEnd, BeforeValidator(_mapping)]
    ep2: Annotated[_InstanceEnd, BeforeValidator(_mapping)]
    scheme: _Scheme
    link: str


class InfraDevice(Strict):
    """A kind of device: components, and what joins them."""

    name: str
    description: str = ""
    components: tuple[Component, ...] = Field(min_length=1)
    links: tuple[LinkKind, ...]
    edges: tuple[DeviceEdge, ...]


class Instance(Strict):
    """``count`` devices of one kind."""

    name: str
    description: str = ""
    device: str
    count: int = Field(ge=1)


class Infrastructure(Strict):
    """All of an infrastructure."""

    name: str
    description: str = ""
    devices: tuple[InfraDevice, ...] = Field(min_length=1)
    links: tuple[LinkKind, ...] = ()
    instances: tuple[Instance, ...] = Field(min_length=1)
    edges: tuple[InstanceEdge, ...] = ()


class _Attribute(Strict):
    attribute: str
    value: str


class _NodeNote(Strict):
    name: str
    attributes: tuple[_Attribute, ...]


class _EdgeNote(Strict):
    ep1: str
    ep2: str
    attributes: tuple[_Attribute, ...]


class Annotations(Strict):
    """Attributes of nodes, edges, links and the graph."""

    nodes: tuple[_NodeNote, ...] = ()
    edges: tuple[_EdgeNote, ...] = ()
    links: tuple[_NodeNote, ...] = ()
    graph: tuple[_Attribute, ...] = ()


class _Both(Strict):
    infrastructure: Infrastructure
    annotations: Annotations = Annotations()


def read(document: object, file: str) -> tuple[Infrastructure, Annotations]:
    """Return the checked parts of a document: an infrastructure alone, or with its annotations.

    Raises InfraGraphError.
    """
    both = isinstance(document, dict) and "infrastructure" in document
    whole: Any = document if both else {"infrastructure": document}
    if _older(whole["infrastructure"]):
        what = "connections as text are of an older schema; write edges of schema 3.1"
        raise InfraGraphError(f"{file}: connections: {what}")
    try:
        parts = _Both.model_validate(whole)
    except ValidationError as error:
        problem = first_problem(error, whole, {})
        shown = problem if both else problem.removeprefix("infrastructure.")
        raise InfraGraphError(f"{file}: {shown}") from None
    try:
        check(parts.infrastructure)
    except ValueError as error:
        where = "infrastructure." if both else ""
        raise InfraGraphError(f"{file}: {where}{error}") from None
    return parts.infrastructure, parts.annotations


def _older(infrastructure: object) -> bool:
    if not isinstance(infrastructure, dict):
        return False
    devices = infrastructure.get("devices")
    inner = devices if isinstance(devices, list) else []
    every = [infrastructure, *(device for device in inner if isinstance(device, dict))]
    return any("connections" in part for part in every)


def check(infrastructure: Infrastructure) -> None:
    """Raise ValueError, ``key: what is wrong``, for what the library would let pass or run out of memory on."""
    devices = _by_name("devices", infrastructure.devices)
    instances = _by_name("instances", infrastructure.instances)
    _by_name("links", infrastructure.links)
    for place, device in enumerate(infrastructure.devices):
        _check_device(f"devices[{place}]", device, devices)
    _check_size(infrastructure, devices)
    used = _check_edges(infrastructure, instances, devices)
    for place, instance in enumerate(infrastructure.instances):
        if instance.name not in used and len(instances) > 1:
            raise ValueError(f"instances[{place}]: no edge uses {instance.name}")


def _check_size(
    infrastructure: Infrastructure, devices: Mapping[str, InfraDevice]
) -> None:
    """Raise ValueError for edges inside devices that do not fit, and for more than the library can hold."""
    sizes: dict[str, _Size] = {}
    for device in devices.values():
        _measure(device, devices, sizes, ())
    edges = {
        device.name: _check_device_edges(f"devices[{place}]", device, devices)
        for place, device in enumerate(infrastructure.devices)
    }
    total = steps = 0
    for place, instance in enumerate(infrastructure.instances):
        name = instance.device
        if name not in devices:
            raise ValueError(f"instances[{place}].device: there is no device {name}")
        parts, _ = sizes[name]
        total += instance.count * parts
        # The library adds a device's edges once for each of its components.
        steps += instance.count * parts * edges[name]
        if total > MOST_PARTS or steps > MOST_STEPS:
            what = f"too large: {total} components and {steps} steps"
            raise ValueError(f"instances[{place}].count: {what}")


def _by_name(where: str, entries: Iterable[Any]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for place, entry in enumerate(entries):
        if entry.name in by_name:
            raise ValueError(f"{where}[{place}].name: there is a {entry.name} already")
        by_name[entry.name] = entry
    return by_name


def _check_device(
    where: str, device: InfraDevice, devices: Mapping[str, InfraDevice]
) -> None:
    _by_name(f"{where}.components", device.components)
    _by_name(f"{where}.links", device.links)
    for place, component in enumerate(device.components):
        here = f"{where}.components[{place}]"
        kinds = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
        for kind in kinds:
            if getattr(component, kind) is not None and kind != component.choice:
                raise ValueError(f"{here}.{kind}: the choice is {component.choice}")
        if component.choice == "custom" and component.custom is None:
            raise ValueError(f"{here}.custom: missing")
        if component.choice == "device" and component.name not in devices:
            raise ValueError(f"{here}.name: there is no device {component.name}")


#: Components of a device, with those of devices in it, and levels of devices.
_Size = tuple[int, int]


def _measure(
    device: InfraDevice,
    devices: Mapping[str, InfraDevice],
    sizes: dict[str, _Size],
    above: tuple[str, ...],
) -> _Size:
    """Return the size of a device, and note it in ``sizes``. Raises ValueError."""
    if device.name in above:
        raise ValueError(f"devices: {device.name} is a part of itself")
    too_deep = f"devices: more than {DEEPEST} levels deep"
    if len(above) > DEEPEST:
        raise ValueError(too_deep)
    if device.name not in sizes:
        parts, below = 0, 0
        for component in device.components:
            size: _Size = (1, 0)
            if component.choice == "device":
                inside = devices[component.name]
                size = _measure(inside, devices, sizes, (*above, device.name))
            parts += component.count * size[0]
            below = max(below, size[1])
        if below >= DEEPEST:
            raise ValueError(too_deep)
        sizes[device.name] = parts, below + 1
    return sizes[device.name]


def _check_device_edges(
    where: str, device: InfraDevice, devices: Mapping[str, InfraDevice]
) -> int:
    """Check the edges inside a device; return their number."""
    total = 0
    links = {link.name for link in device.links}
    for place, edge in enumerate(device.edges):
        here = f"{where}.edges[{place}]"
        counts = []
        for key, end in (("ep1", edge.ep1), ("ep2", edge.ep2)):
            path = (
                end.component if end.device is None else f"{end.device}.{end.component}"
            )
            place_of = f"{here}.{key}.component"
            counts.append(_matched(place_of, path, device, devices))
        total += _check_scheme(here, edge, counts, links)
    return total


def _check_edges(
    infrastructure: Infrastructure,
    instances: Mapping[str, Instance],
    devices: Mapping[str, InfraDevice],
) -> set[str]:
    """Check the edges between instances; return the names of the instances that they use."""
    links = {link.name for link in infrastructure.links}
    used: set[str] = set()
    total = 0
    for place, edge in enumerate(infrastructure.edges):
        here = f"edges[{place}]"
        counts = []
        for key, end in (("ep1", edge.ep1), ("ep2", edge.ep2)):
            name, _, _ = end.instance.partition("[")
            if name not in instances:
                missing = f"there is no instance {name}"
                raise ValueError(f"{here}.{key}.instance: {missing}")
            used.add(name)
            instance = instances[name]
            count = _sliced(f"{here}.{key}.instance", end.instance, instance.count)
            device = devices[instance.device]
            place_of = f"{here}.{key}.component"
            counts.append(count * _matched(place_of, end.component, device, devices))
        total += _check_scheme(here, edge, counts, links)
        if total > MOST_PARTS:
            raise ValueError(f"{here}: more than {MOST_PARTS} edges")
    return used


def _check_scheme(
    where: str,
    edge: DeviceEdge | InstanceEdge,
    counts: Sequence[int],
    links: set[str],
) -> int:
    """Return the number of edges of an entry whose ends match so many components. Raises ValueError."""
    if edge.link not in links:
        raise ValueError(f"{where}.link: there is no link {edge.link}")
    if edge.scheme == "ring":
        raise ValueError(f"{where}.scheme: InfraGraph's library has no ring yet")
    longer = edge.ep1 if counts[0] > counts[1] else edge.ep2
    # Without a slice a name stands for as many components as the other end has.
    sliced = "[" in longer.component
    if edge.scheme == "one2one" and counts[0] != counts[1] and sliced:
        ends = f"one2one joins {counts[0]} ends to {counts[1]}"
        raise ValueError(f"{where}.scheme: {ends}")
    made = min(counts) if edge.scheme == "one2one" else math.prod(counts)
    if made > MOST_PARTS:
        raise ValueError(f"{where}: more than {MOST_PARTS} edges")
    return made


def _matched(
    where: str, path: str, device: InfraDevice, devices: Mapping[str, InfraDevice]
) -> int:
    """Return how many components a path such as ``cx5[0:2].port[0]`` matches. Raises ValueError."""
    count, matched = 1, False
    inside: InfraDevice | None = device
    for step in path.split("."):
        name = step.partition("[")[0]
        own = {c.name: c for c in inside.components} if inside is not None else {}
        if name not in own:
            if not matched and name == device.name:
                continue
            raise ValueError(f"{where}: there is no component {name}")
        count *= _sliced(where, step, own[name].count)
        matched = True
        inside = devices.get(name) if own[name].choice == "device" else None
    if inside is not None:
        raise ValueError(f"{where}: {path} ends at a device, not at its component")
    return count


def _sliced(where: str, text: str, count: int) -> int:
    """Return how many of ``count`` a slice takes. Raises ValueError for a slice beyond them, or of none."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{where}: {text!r:.60} is no name with a slice, such as g[0:2]"
        )
    bounds = (match[2] or ":").split(":")
    try:
        numbers = [int(bound) if bound else None for bound in bounds]
    except ValueError:
        raise ValueError(f"{where}: {text!r:.60} is no slice") from None
    if len(numbers) > 3 or (len(numbers) == 3 and numbers[2] == 0):
        raise ValueError(f"{where}: {text!r:.60} is no slice")
    for number in numbers[:2]:
        most = count - 1 if len(numbers) == 1 else count
        if number is not None and not -count <= number <= most:
            raise ValueError(f"{where}: {text} goes beyond the {count} that there are")
    if len(numbers) == 1:
        return 1
    taken = len(range(count)[slice(*numbers)])
    if not taken:
        raise ValueError(f"{where}: {text} takes none of {count}")
    return taken
