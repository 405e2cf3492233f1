"""Keys of the fabric file beyond servers, packet switches and links: what they hold, and what it adds.

A key is an object :class:`FabricKey`, that of an extension named in ``Extension.fabric``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from ringlight.fabric.extension import loaders
from ringlight.fabric.link_effects import Effects, LinkEffect
from ringlight.fabric.parts import Counts, Gpu, Link, Plugged, Port
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import Tree


class WrittenLink(NamedTuple):
    """A link between two ports: ``where`` a file gives it, and the texts of its ``ends``."""

    where: str
    ends: tuple[str, str]
    rate_bps: float
    queue_s: float
    effects: Effects = MappingProxyType({})


class CabledNode(NamedTuple):
    """A node that takes cables, which neither packets nor circuits pass.

    ``kind``: what messages call it. ``ports``: the number of its last port, from 0. ``cable``: returns a link
    as the device has it; raises ValueError where it cannot be plugged in.
    """

    kind: str
    ports: int
    cable: Callable[[Link, Assembly], Link]


@dataclass
class Assembly:
    """Parts of a fabric file that are plugged together so far.

    ``plugged``: by where it is in the file. ``devices``: by name. ``links``: those still to be plugged in.
    ``parts``: what planes need of each key (:attr:`fabric.topology.Fabric.parts`).
    """

    gpus: dict[str, Gpu]
    plugged: dict[str, Plugged] = field(default_factory=dict)
    devices: dict[str, CabledNode] = field(default_factory=dict)
    links: list[WrittenLink] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)

    def plug(self, key: str, name: str, part: Any, made: Plugged) -> None:
        """Add an entry of a key, with its GPUs, switches and links. Raises ValueError for a GPU that is there
        already."""
        where = f"{key}.{name}"
        self.add_gpus(where, made.gpus)
        self.plugged[where] = made
        self.parts.setdefault(key, {})[name] = part

    def add_gpus(self, where: str, more: tuple[Gpu, ...] | list[Gpu]) -> None:
        """Add GPUs. Raises ValueError for one that is there already."""
        for gpu in more:
            if gpu.name in self.gpus:
                raise ValueError(
                    f"{where}: {self.gpus[gpu.name].server} has GPU {gpu.name} too"
                )
            self.gpus[gpu.name] = gpu


def _as_it_is(part: Any, time: float, rate: float) -> Any:
    return part


@dataclass(frozen=True)
class LinkKeys:
    """Keys of a link that say what it does to frames, and the event that says it anew while jobs run.

    ``spec``: the keys, each of which may be left out, as a pydantic model of which links and events are made.
    ``effect``: returns what they say. ``do``: what the event does, ``key``: its key that holds the same keys.
    ``request``: the effect as a lab's fault service takes it, with limits of its own, for pydantic.
    """

    spec: type[Any]
    effect: Callable[[Any], LinkEffect]
    do: str
    key: str
    request: type[LinkEffect]


#: Returns the port that a text names. Raises ValueError, which says ``where`` that text is, for one that is
#: not there: ``port(where, text)``.
FindPort = Callable[[str, str], Port]


@dataclass(frozen=True)
class FabricKey:
    """A key of the fabric file.

    ``value``: the type of what it holds, for pydantic. A key that is left out, or holds nothing, adds
    nothing. ``add``: adds what it holds to an assembly; ``tree``: returns its packet switches, GPUs (of the
    model ``gpu`` in the value) and links, before those that are written out; ``whole``: makes all of the
    fabric, and no other key may stand beside it. These raise ValueError, in one line that may begin with a
    key. ``devices``: what it
    calls the devices that it holds by name, if that and no GPUs is what it holds.
    ``links``: returns the fabric's links with what it says of them, at the end. ``link_keys``: keys that it
    adds to each link that is written out.

    Of a fabric that has parts of this key: ``finish``: returns it as checked, once all is plugged together;
    ``plugged``: returns it as emulated, with what was described as a whole plugged together port by port;
    ``slowed``: returns the parts with times multiplied and rates divided; ``document``: returns the parts as
    REST tells them, of the type ``documents``; ``columns``: their fields in the command ``fabric``, by
    heading; ``counts``: counts what all of the fabric is built of, if its links do not say it.

    ``per_run``: keys of each entry that a lab sets for each run, and so do not tell labs apart.
    """

    value: Any
    add: Callable[[Any, Assembly], None] | None = None
    tree: Callable[[Any], Tree] | None = None
    whole: Callable[[Any], Fabric] | None = None
    devices: str = ""
    links: Callable[[Any, Sequence[Link], FindPort], list[Link]] | None = None
    link_keys: LinkKeys | None = None
    finish: Callable[[Fabric], Fabric] | None = None
    plugged: Callable[[Fabric], Fabric] | None = None
    slowed: Callable[[Any, float, float], Any] = _as_it_is
    counts: Callable[[Fabric], Counts] | None = None
    documents: Any = None
    document: Callable[[Fabric], list[Any]] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    per_run: tuple[str, ...] = ()

    @property
    def has_gpus(self) -> bool:
        """Return whether it can be what a fabric's GPUs come from."""
        return not self.devices and any((self.add, self.tree, self.whole))


@cache
def fabric_keys() -> Mapping[str, FabricKey]:
    """Return the keys by name, in the order in which what they hold is plugged together.

    Raises ExtensionError if one of an extension cannot be loaded.
    """
    return {name: load() for name, load in loaders("fabric").items()}


@cache
def link_keys() -> tuple[LinkKeys, ...]:
    """Return what extensions say of links. Raises ExtensionError as :func:`fabric_keys`."""
    return tuple(
        key.link_keys for key in fabric_keys().values() if key.link_keys is not None
    )


@cache
def device_words() -> tuple[str, ...]:
    """Return what devices are called that a fabric may have, in one word each."""
    return tuple(key.devices for key in fabric_keys().values() if key.devices)


def plugged(fabric: Fabric) -> Fabric:
    """Return the fabric as it is emulated: the same fabric unless it was described as a whole.

    Raises ValueError, one line that begins with the key, for what cannot be emulated.
    """
    for name in fabric.parts:
        key = fabric_keys().get(name)
        if key is not None and key.plugged is not None:
            fabric = key.plugged(fabric)
    return fabric


def slowed_parts(fabric: Fabric, time: float, rate: float) -> Mapping[str, Any]:
    """Return the parts of a fabric with times multiplied by ``time`` and rates divided by ``rate``."""
    keys = fabric_keys()
    return {
        name: keys[name].slowed(part, time, rate) if name in keys else part
        for name, part in fabric.parts.items()
    }


def with_parts(fabric: Fabric, **parts: Any) -> Fabric:
    """Return the fabric with these parts besides its others."""
    return replace(fabric, parts={**fabric.parts, **parts})
