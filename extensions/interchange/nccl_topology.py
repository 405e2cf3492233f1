"""NCCL's topology dump (``NCCL_TOPO_DUMP_FILE``): GPUs and NICs of a server, in XML.

The format: src/graph/xml.cc and topo.cc of NVIDIA/nccl. ``speed`` of a ``net`` is in Mbit/s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

from ringlight.extensions.interchange.servers import ReportedServer
from ringlight.extensions.interchange.slurm_topology import TopologyFileError

#: Tags below which GPUs and NICs are, and most of them one below the other.
_HOLDERS = frozenset({"system", "cpu", "pci", "nic"})
_DEEPEST = 64
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
        raise TopologyFileError(f"{file}: {root.tag}: a dump of NCCL is a <system>")
    hosts: dict[str, _Parts] = {}
    for where, above, element in _devices(root, (), "system", file):
        host = next((e.get("host_hash", "") for e in above if e.tag == "cpu"), "")
        _add(hosts.setdefault(host, _Parts()), f"{file}: {where}", above, element)
    servers = [_server(parts) for parts in hosts.values() if parts.gpus]
    if not servers:
        raise TopologyFileError(f"{file}: system: it has no <gpu>")
    for server in servers:
        if not server.nics:
            raise TopologyFileError(f"{file}: system: it has no <net> beside its <gpu>")
    return servers


class _Builder(TreeBuilder):
    """Builder of a document that defines no entities, which can make a small file a very large one."""

    def doctype(self, name: str, *_: object) -> None:
        raise TopologyFileError(f"<!DOCTYPE {name:.40}>: a dump of NCCL has none")


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
    element: Element, above: tuple[Element, ...], where: str, file: str
) -> Iterator[tuple[str, tuple[Element, ...], Element]]:
    """Yield the path, the elements above, and the element of each GPU and NIC."""
    if len(above) > _DEEPEST:
        raise TopologyFileError(f"{file}: {where}: more than {_DEEPEST} levels deep")
    inside = (*above, element)
    for place, child in enumerate(element):
        path = f"{where}.{child.tag}[{place}]"
        if child.tag in ("gpu", "net"):
            yield path, inside, child
        elif child.tag in _HOLDERS:
            yield from _devices(child, inside, path, file)


def _add(
    parts: _Parts, where: str, above: tuple[Element, ...], element: Element
) -> None:
    key = "dev" if element.tag == "gpu" else "name"
    name = element.get(key)
    if not name:
        raise TopologyFileError(f"{where}.{key}: missing")
    group = parts.gpus if element.tag == "gpu" else parts.nics
    if name in group:
        raise TopologyFileError(
            f"{where}.{key}: there is a {element.tag} {name} already"
        )
    if len(group) == _MOST_DEVICES:
        what = f"the host has more than {_MOST_DEVICES} of them"
        raise TopologyFileError(f"{where}: {what}")
    group[name] = above
    if element.tag == "gpu":
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
