"""The key ``gpu_servers`` of a fabric file."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, model_validator

from ringlight.extensions.servers.hardware import (
    GPUS,
    LARGEST_MTU_BYTES,
    NIC_KINDS,
    NVLINKS,
    GpuCluster,
    Nic,
    Server,
)
from ringlight.fabric.keys import Assembly, FabricKey
from ringlight.fabric.parts import Link, Plugged, Port
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import QUEUE_S, Tree
from ringlight.fabric.units import format_rate
from ringlight.fabric.values import Duration, Rate, Strict

KEY, NAME = "gpu_servers", "all"


class NicSpec(Strict):
    """``count`` NICs of each server with the same line ``rate``.

    ``share``: the usable part of it, if not that of its ``kind``. ``mtu``: the payload of a packet, bytes.
    """

    count: int = Field(default=1, ge=1, le=128)
    rate: Rate
    kind: str = "infiniband"
    share: float | None = Field(default=None, gt=0, le=1)
    mtu: int = Field(default=LARGEST_MTU_BYTES, ge=256, le=LARGEST_MTU_BYTES)

    @model_validator(mode="after")
    def _is_known(self) -> NicSpec:
        if self.kind not in NIC_KINDS:
            raise ValueError(f"kind: {self.kind}; there are {', '.join(NIC_KINDS)}")
        if self.share is None and NIC_KINDS[self.kind].share is None:
            raise ValueError(
                f"share: no source states the usable part of {self.kind}; give one"
            )
        return self

    def made(self) -> tuple[Nic, ...]:
        return (Nic(self.rate, self.kind, self.share, self.mtu),) * self.count


class SlowNicSpec(Strict):
    """A fault: NIC ``nic`` of server ``server``, both counted from 0, has a ``share`` of its rate."""

    server: int = Field(ge=0)
    nic: int = Field(ge=0)
    share: float = Field(gt=0, lt=1)


class GpuServersSpec(Strict):
    """``count`` servers of ``gpus`` GPUs on an NVLink switch each. NIC k of each server is on rail k.

    ``gpu``: their model, which decides the usable rate of NVLink. ``nics``: of each server.
    ``slow``: NICs with a fault.
    """

    count: int = Field(ge=1, le=512)
    gpus: int = Field(ge=1, le=72)
    gpu: str
    nics: tuple[NicSpec, ...] = ()
    slow: tuple[SlowNicSpec, ...] = ()
    queue: Duration = QUEUE_S

    @model_validator(mode="after")
    def _is_a_cluster(self) -> GpuServersSpec:
        joined = [name for name, gpu in GPUS.items() if gpu.links]
        if self.gpu in GPUS and self.gpu not in joined:
            raise ValueError(f"gpu: {self.gpu} has no NVLink to a switch")
        if self.gpu not in joined:
            raise ValueError(f"gpu: {self.gpu}; there are {', '.join(joined)}")
        nics = sum(nic.count for nic in self.nics)
        for index, slow in enumerate(self.slow):
            for key, value, most in (
                ("server", slow.server, self.count),
                ("nic", slow.nic, nics),
            ):
                if value >= most:
                    raise ValueError(
                        f"slow[{index}].{key}: {value}; counted from 0, there are {most}"
                    )
        if len({slow.server for slow in self.slow}) < len(self.slow):
            raise ValueError("slow: one NIC of a server at most")
        self.cluster()
        return self

    def cluster(self) -> GpuCluster:
        """Return the hardware. Raises ValueError."""
        nics = tuple(nic for spec in self.nics for nic in spec.made())
        server = Server(GPUS[self.gpu], self.gpus, nics)
        faulty = tuple(
            (slow.server, server.slowed(slow.nic, slow.share)) for slow in self.slow
        )
        return GpuCluster(server, self.count, faulty)


def _tree(spec: GpuServersSpec) -> Tree:
    """Return the GPUs, NVLink switches and rails as packet switches, and links at their usable rates."""
    cluster = spec.cluster()
    gpus, nics = spec.gpus, len(cluster.server.nics)
    nvlink_bps = cluster.server.gpu.usable_bps
    faulty = dict(cluster.faulty)
    inside = [
        Link(
            Port(f"g{server * gpus + gpu}", 0),
            Port(f"nv{server}", gpu + 1),
            nvlink_bps,
            spec.queue,
        )
        for server in range(spec.count)
        for gpu in range(gpus)
    ]
    between = [
        Link(
            Port(f"nv{server}", gpus + rail + 1),
            Port(f"rail{rail}", server + 1),
            nic.usable_bps,
            spec.queue,
        )
        for server in range(spec.count)
        for rail, nic in enumerate(faulty.get(server, cluster.server).nics)
    ]
    switches = {f"nv{server}": gpus + nics for server in range(spec.count)}
    switches |= {f"rail{rail}": spec.count for rail in range(nics)}
    names = tuple(link.a.node for link in inside)
    return Tree(names, switches, (*inside, *between))


def _add(spec: GpuServersSpec, assembly: Assembly) -> None:
    assembly.plug(KEY, NAME, spec.cluster(), Plugged((), [], [], []))


@dataclass(frozen=True)
class ServersDocument:
    """The servers of a fabric as REST tells them. Rates are in bits per second."""

    name: str
    servers: int
    gpus: int
    gpu: str
    nvlink: str
    nics: list[str]


def stated(cluster: GpuCluster) -> ServersDocument:
    """Return the hardware with its usable rates and their sources."""
    server = cluster.server
    nvlink = NVLINKS[server.gpu.generation]
    rates = (
        f"{format_rate(server.gpu.usable_bps)} of {format_rate(server.gpu.line_bps)}"
    )
    nics = [
        f"{format_rate(nic.usable_bps)} of {format_rate(nic.line_bps)} ({_source(nic)})"
        for nic in server.nics
    ]
    return ServersDocument(
        NAME,
        cluster.servers,
        server.gpus,
        server.gpu.name,
        f"{rates} ({nvlink.source})",
        nics,
    )


def _source(nic: Nic) -> str:
    return "as stated" if nic.share is not None else NIC_KINDS[nic.kind].source


def _document(fabric: Fabric) -> list[ServersDocument]:
    return [stated(cluster) for cluster in fabric.parts.get(KEY, {}).values()]


GPU_SERVERS = FabricKey(
    GpuServersSpec | None,
    add=_add,
    tree=_tree,
    documents=list[ServersDocument],
    document=_document,
    columns={"servers": "servers", "GPUs each": "gpus", "NVLink": "nvlink"},
)
