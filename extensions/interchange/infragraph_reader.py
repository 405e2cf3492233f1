"""A fabric of an InfraGraph document: servers with NICs, packet switches, optical switches and what is lit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from ringlight.extensions.interchange import infragraph_document
from ringlight.extensions.interchange.draft import Defaults, Draft, rate_text
from ringlight.extensions.interchange.infragraph_document import (
    InfraGraphError,
    Infrastructure,
    LinkKind,
)
from ringlight.extensions.interchange.infragraph_graph import graph_of
from ringlight.extensions.interchange.infragraph_writer import CROSSBAR, SELECTIVE
from ringlight.extensions.interchange.servers import nearest_nics


def read_infragraph(document: Any, file: str, defaults: Defaults) -> Draft:
    """Return the fabric of a document. Raises InfraGraphError, and ModuleNotFoundError as :func:`graph_of`."""
    infrastructure, _ = infragraph_document.read(document, file)
    graph = graph_of(document, file)
    reading = _Reading(file, graph, infrastructure, defaults)
    reading.take_nodes()
    reading.take_links()
    reading.take_light()
    draft = reading.draft
    if not draft.servers:
        raise InfraGraphError(f"{file}: devices: no component is an xpu")
    if not draft.packet_switches:
        what = "none is a packet switch, and light alone joins no GPUs here"
        raise InfraGraphError(f"{file}: devices: {what}")
    if not draft.links:
        raise InfraGraphError(f"{file}: edges: no xpu is joined to another instance")
    reading.report()
    return draft


@dataclass
class _Reading:
    """A graph as it becomes a fabric.

    ``parts``: components by instance and index, ``outside``: links to other instances by component.
    ``ends``: by component, its port here. ``sharers``: by a NIC, the GPUs besides its first. ``servers``: our
    names by those in annotations. ``optical``: instances that are optical switches. ``unrated``: whether a
    link has no rate; ``with_inside``: whether a server has several GPUs.
    """

    file: str
    graph: nx.Graph[str]
    infrastructure: Infrastructure
    defaults: Defaults
    draft: Draft = field(default_factory=Draft)
    parts: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    sharers: dict[str, list[str]] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    optical: set[str] = field(default_factory=set)
    outside: dict[str, int] = field(default_factory=dict)
    unrated: bool = False
    with_inside: bool = False

    def take_nodes(self) -> None:
        """Read servers and switches."""
        for node in self.graph:
            self.parts.setdefault(_owner(node), []).append(node)
        for a, b in self._joined():
            for end in (a, b):
                self.outside[end] = self.outside.get(end, 0) + 1
        for owner, parts in self.parts.items():
            types = {self.graph.nodes[part]["type"] for part in parts}
            if "xpu" in types:
                self._add_server(owner, parts)
            elif CROSSBAR in types:
                self._add_optical(owner, parts)
            elif types & {"switch", "port"} and SELECTIVE not in types:
                self._add_packet_switch(owner, parts)
            else:
                what = ", ".join(sorted(types))
                self.draft.dropped.append(
                    f"{owner}, which is no GPU or switch ({what})"
                )

    def _joined(self) -> Iterator[tuple[str, str]]:
        """Yield the edges between instances."""
        for a, b in self.graph.edges:
            if _owner(a) != _owner(b):
                yield a, b

    def _about(self, owner: str) -> dict[str, Any]:
        """Return what annotations say of all of an instance."""
        return dict(self.graph.nodes[self.parts[owner][0]])

    def _name(self, owner: str, prefix: str) -> str:
        instance, _, index = owner.rpartition(".")
        alone = f"{instance}.1" not in self.parts
        between = "-" if instance[-1:].isdigit() else ""
        name = instance if alone else f"{instance}{between}{index}"
        return self.draft.names.take(self._about(owner).get("name", name), prefix)

    def _add_server(self, owner: str, parts: list[str]) -> None:
        inside = self.graph.subgraph(parts)
        xpus = [part for part in parts if self.graph.nodes[part]["type"] == "xpu"]
        nics = [part for part in parts if part in self.outside]
        steps: dict[tuple[str, str], int] = {}
        for xpu in xpus:
            away = nx.single_source_shortest_path_length(inside, xpu)
            steps |= {(xpu, nic): away[nic] for nic in nics if nic in away}
        nic_of = nearest_nics(xpus, nics, steps)
        about = self._about(owner)
        model = about.get("model") or self.defaults.gpu
        if len(xpus) == 1:
            gpus = [self._name(owner, "g")]
            server = self._server(about.get("server", owner))
        else:
            self.with_inside = True
            server = self._name(owner, "s")
            gpus = [self.draft.names.numbered("g") for _ in xpus]
        for xpu, gpu in zip(xpus, gpus, strict=True):
            self.draft.add_gpu(server, gpu, model)
            if xpu not in nic_of:
                self.draft.dropped.append(f"{gpu} is not plugged in: no NIC of {owner}")
            elif nic_of[xpu] in self.ends:
                self.sharers.setdefault(nic_of[xpu], []).append(gpu)
            else:
                self.ends[nic_of[xpu]] = gpu

    def _server(self, foreign: str) -> str:
        if foreign not in self.servers:
            taken = foreign if "." not in foreign else ""
            names = self.draft.names
            self.servers[foreign] = (
                names.take(taken, "s") if taken else names.numbered("s")
            )
        return self.servers[foreign]

    def _ports(self, parts: list[str], name: str) -> int:
        ports = [part for part in parts if self.graph.nodes[part]["type"] == "port"]
        self.ends |= {part: f"{name}:{n}" for n, part in enumerate(ports, 1)}
        return len(ports)

    def _add_packet_switch(self, owner: str, parts: list[str]) -> None:
        name = self._name(owner, "sw")
        self.draft.add_switch(name, self._ports(parts, name))

    def _add_optical(self, owner: str, parts: list[str]) -> None:
        name = self._name(owner, "ocs")
        about = self._about(owner)
        entry: dict[str, Any] = {"size": self._ports(parts, name)}
        entry |= {key: about[key] for key in ("driver", "profile") if key in about}
        for key, ours in (("loss_db", "loss_db"), ("dark_s", "dark")):
            if key in about:
                number = self._number(owner, key, about[key])
                entry[ours] = number if key == ours else f"{number!r} s"
        self.draft.optical_switches[name] = entry
        self.optical.add(owner)

    def _number(self, where: str, key: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= 0):
            what = f"annotations: {where}: {key}: {text!r:.40} is no number from 0"
            raise InfraGraphError(f"{self.file}: {what}")
        return number

    def take_links(self) -> None:
        """Read what joins instances."""
        kinds = {link.name: link for link in self.infrastructure.links}
        used: set[str] = set()
        for a, b in self._joined():
            data = self.graph.edges[a, b]
            texts = [self._free_end(part, used) for part in (a, b)]
            if None in texts:
                self.draft.dropped.append(f"the link {a} - {b}, whose NIC is no GPU's")
                continue
            used |= {a, b}
            ends = [str(text) for text in texts]
            queue = ""
            if "queue_s" in data:
                queue = f"{self._number(data['link'], 'queue_s', data['queue_s'])!r} s"
            self._plug_in(a, b, ends, self._rate_bps(kinds[data["link"]]), queue)

    def _free_end(self, part: str, used: set[str]) -> str | None:
        """Return the port of a component; of a packet switch a new one if it is taken, else None."""
        end = self.ends.get(part)
        if end is not None and part not in used:
            return end
        name = self._switch_of(part)
        return None if name is None else self.draft.next_port(name)

    def _switch_of(self, part: str) -> str | None:
        """Return the packet switch that a component belongs to."""
        near = (self.ends.get(other) for other in self.parts[_owner(part)])
        name = next((end.partition(":")[0] for end in near if end), None)
        return name if name in self.draft.packet_switches else None

    def _plug_in(
        self, a: str, b: str, ends: list[str], rate_bps: float, queue: str
    ) -> None:
        divisor = max(len(self.sharers.get(nic, ())) + 1 for nic in (a, b))
        self.draft.plug(ends[0], ends[1], rate_bps / divisor, queue)
        for nic, far in ((a, b), (b, a)):
            for gpu in self.sharers.get(nic, ()):
                switch = self._switch_of(far)
                if switch is None:
                    self.draft.dropped.append(
                        f"{gpu} is not plugged in: it shares {nic}"
                    )
                    continue
                port = self.draft.next_port(switch)
                self.draft.plug(gpu, port, rate_bps / divisor, queue)

    def _rate_bps(self, kind: LinkKind) -> float:
        """Return the rate of a kind of link, bits per second, that by default if it has none."""
        bandwidth = kind.physical.bandwidth if kind.physical is not None else None
        if bandwidth is not None:
            for number, factor in (
                (bandwidth.gigabits_per_second, 1e9),
                (bandwidth.gigabytes_per_second, 8e9),
            ):
                if number is not None:
                    rate_bps = number * factor
                    whole = float(round(rate_bps))
                    # What was divided by 1e9 need not come back exactly.
                    return (
                        whole
                        if math.isclose(whole, rate_bps, rel_tol=1e-12)
                        else rate_bps
                    )
        self.unrated = True
        return self.defaults.rate_bps

    def take_light(self) -> None:
        """Read the cross-connects of optical switches, as annotations or as edges between their ports."""
        far: dict[str, str] = {}
        for link in self.draft.links:
            a, b = link["ends"]
            far |= {a: b, b: a}
        pairs = dict.fromkeys(self._cross_connects())
        taken: set[str] = set()
        for a, b in pairs:
            if a in taken or b in taken:
                continue
            taken |= {a, b}
            ends = [far.get(self.ends[part], "") for part in (a, b)]
            switches = self.draft.optical_switches
            electrical = all(
                end and end.partition(":")[0] not in switches for end in ends
            )
            if (b, a) in pairs and electrical:
                self.draft.circuits.append(ends)
            else:
                self.draft.dropped.append(f"the cross-connect {a} - {b}, no circuit")

    def _cross_connects(self) -> Iterator[tuple[str, str]]:
        for owner in self.parts:
            if owner not in self.optical:
                continue
            for part in self.parts[owner]:
                if part not in self.ends:
                    continue
                other = self.graph.nodes[part].get("cross_connect")
                if other is not None:
                    if other == part or other not in self.parts[owner]:
                        what = f"cross_connect: {other:.60} is no other port of {owner}"
                        raise InfraGraphError(
                            f"{self.file}: annotations: {part}: {what}"
                        )
                    yield part, other
                for near in self.graph[part]:
                    if near in self.ends and _owner(near) == owner:
                        yield part, near

    def report(self) -> None:
        """Name in the draft what was defaulted and dropped."""
        draft = self.draft
        if self.unrated:
            draft.defaulted.append(
                f"links without a bandwidth have {rate_text(self.defaults.rate_bps)}"
            )
        if not all("model" in self._about(owner) for owner in self.parts):
            models = {m for s in draft.servers.values() for m in s["gpus"].values()}
            if self.defaults.gpu in models:
                draft.defaulted.append(f"the GPUs' model, {self.defaults.gpu}")
        if self.sharers:
            draft.defaulted.append("NICs of several GPUs are divided")
        kinds = self.infrastructure.links
        if any(
            k.physical is not None and k.physical.latency is not None for k in kinds
        ):
            draft.dropped.append("latencies of links")
        if self.with_inside:
            draft.dropped.append("links inside servers")


def _owner(node: str) -> str:
    """Return the instance and index of a component, such as ``tor.0``."""
    return ".".join(node.split(".", 2)[:2])
