"""NCCL's topology of a server, in XML: its dump (``NCCL_TOPO_DUMP_FILE``), or a file for it (``NCCL_TOPO_FILE``).

The format: src/graph/xml.cc and topo.cc of NVIDIA/nccl. ``speed`` of a ``net`` is in Mbit/s. Files for NCCL, as
cloud providers publish them for their machines, need not have ``gpu`` and ``net``, which NCCL adds: there the
PCI class tells what a device is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from ringlight.extensions.interchange.servers import ReportedServer
from ringlight.extensions.interchange.slurm_topology import TopologyFileError

#: Tags below which GPUs and NICs are, and most of them one below the other.
_HOLDERS = frozenset({"system", "cpu", "pci", "nic"})
_DEEPEST = 64
#: How the PCI classes of GPUs and of NICs begin (kvDictPciClass in topo.cc).
_GPU_CLASS, _NET_CLASS = "0x03", "0x02"
#: What files that one may take for a topology are, by their first tag.
_OTHERS = {
    "topology": "hwloc's topology, not NCCL's",
    "graphs": "NCCL's graphs (NCCL_GRAPH_DUMP_FILE), not its topology",
}
_UNKNOWN = "a topology of NCCL is a <system> without DOCTYPE"
#: Most GPUs, and most NICs, of a host: each GPU is looked at with each NIC.
_MOST_DEVICES = 1024


@dataclass
class _Parts:
    """GPUs and NICs of one host, each with the elements above it, the system first."""

    gpus: dict[str, tuple[Element, ...]] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    nics: dict[str, tuple[Element, ...]] = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)


def read_dump(text: str, file: str) -> list[ReportedServer]:
    """Return the servers of a dump, which has several if its CPUs have several ``host_hash``.

    Raises TopologyFileError.
    """
    root = _parsed(text, file)
    if root.tag != "system":
        other = _OTHERS.get(root.tag, _UNKNOWN)
        raise TopologyFileError(f"{file}: {root.tag}: {other}")
    hosts: dict[str, _Parts] = {}
    tags = {element.tag for element in root.iter()}
    for where, above, element in _devices(root, (), "system", file, tags):
        host = next((e.get("host_hash", "") for e in above if e.tag == "cpu"), "")
        _add(hosts.setdefault(host, _Parts()), f"{file}: {where}", above, element)
    servers = [_server(parts) for parts in hosts.values() if parts.gpus]
    if not servers:
        raise TopologyFileError(
            f"{file}: system: it has no <gpu>, nor a <pci> of class {_GPU_CLASS}"
        )
    return servers


class _Builder(TreeBuilder):
    """Builder of a document that defines no entities, which can make a small file a very large one."""

    def doctype(self, name: str, *_: object) -> None:
        raise TopologyFileError(f"<!DOCTYPE {name:.40}>: {_OTHERS.get(name, _UNKNOWN)}")


def _parsed(text: str, file: str) -> Element:
    parser = XMLParser(target=_Builder())
    try:
        parser.feed(text)
        root: Element = parser.close()
    except ParseError as error:
        line, _ = error.position
        what = str(error).partition(":")[0]
        raise TopologyFileError(f"{file}: line {line}: not XML: {what}") from None
    except TopologyFileError as error:
        raise TopologyFileError(f"{file}: {error}") from None
    return root


def _devices(
    element: Element,
    above: tuple[Element, ...],
    where: str,
    file: str,
    tags: Collection[str],
) -> Iterator[tuple[str, tuple[Element, ...], Element]]:
    """Yield the path, the elements above, and the element of each GPU and NIC.

    ``tags``: those of the file. GPUs or NICs without a tag in it are its PCI devices of their class.
    """
    if len(above) > _DEEPEST:
        raise TopologyFileError(f"{file}: {where}: more than {_DEEPEST} levels deep")
    inside = (*above, element)
    for place, child in enumerate(element):
        path = f"{where}.{child.tag}[{place}]"
        if child.tag in ("gpu", "net") or _stands_for(child) not in (None, *tags):
            yield path, inside, child
        elif child.tag in _HOLDERS:
            yield from _devices(child, inside, path, file, tags)


def _stands_for(element: Element) -> str | None:
    """Return the tag of what a PCI device is by its class, gpu or net; None if it is neither."""
    kind = element.get("class", "") if element.tag == "pci" else ""
    if kind.startswith(_GPU_CLASS):
        return "gpu"
    return "net" if kind.startswith(_NET_CLASS) else None


#: Attributes with the name of a device, by its tag.
_NAMES = {"gpu": "dev", "net": "name", "pci": "busid"}


def _add(
    parts: _Parts, where: str, above: tuple[Element, ...], element: Element
) -> None:
    key = _NAMES[element.tag]
    name = element.get(key)
    if not name:
        raise TopologyFileError(f"{where}.{key}: missing")
    kind = _stands_for(element) or element.tag
    group = parts.gpus if kind == "gpu" else parts.nics
    if name in group:
        raise TopologyFileError(f"{where}.{key}: there is a {kind} {name} already")
    if len(group) == _MOST_DEVICES:
        what = f"the host has more than {_MOST_DEVICES} of them"
        raise TopologyFileError(f"{where}: {what}")
    group[name] = above
    if kind == "gpu":
        parts.models[name] = f"sm{element.get('sm')}" if element.get("sm") else ""
    else:
        parts.rates[name] = _rate_bps(where, element.get("speed"))


def _rate_bps(where: str, speed: str | None) -> float | None:
    """Return the rate of a NIC, bits per second, None without one; NCCL writes 0 where it knows none."""
    if speed is None or speed == "0":
        return None
    if not (speed.isascii() and speed.isdigit() and len(speed) < 10):
        what = f"{speed!r:.40} is no number of Mbit/s"
        raise TopologyFileError(f"{where}.speed: {what}")
    return int(speed) * 1e6


def _server(parts: _Parts) -> ReportedServer:
    steps = {
        (gpu, nic): _steps(of_gpu, of_nic)
        for gpu, of_gpu in parts.gpus.items()
        for nic, of_nic in parts.nics.items()
    }
    return ReportedServer(parts.models, parts.rates, steps)


def _steps(a: tuple[Element, ...], b: tuple[Element, ...]) -> int:
    """Return the number of elements from one up to the first common to both, and down to the other."""
    common = sum(x is y for x, y in zip(a, b, strict=False))
    return len(a) + len(b) - 2 * common
