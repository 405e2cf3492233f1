"""Servers, their GPUs and NICs, and the part of each line rate that collectives can use.

A usable rate is an input with its source. Those below come from NCCL: the rates of links that it plans with
(``src/graph/topo.h``) and rates of NICs that its maintainers call normal. Rates are in bits per second and of
one direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

#: Generations of GPUs, in the order of NCCL's tables of constants.
Generation = Literal["volta", "ampere", "hopper", "blackwell"]

#: The version of NCCL whose constants these are.
LIBRARY = "NVIDIA/nccl v2.30.7-1 @5067397c2676"

_GBYTE = 8e9


@dataclass(frozen=True)
class Usable:
    """The usable rate of a kind of link, with its source."""

    line_bps: float
    usable_bps: float
    source: str

    @property
    def share(self) -> float:
        """Return the usable part of the line rate."""
        return self.usable_bps / self.line_bps


def _nvlink(line: float, usable: float, name: str) -> Usable:
    """Return the rates of one NVLink from those in GB/s."""
    source = f"{LIBRARY} src/graph/topo.h {name}"
    return Usable(line * _GBYTE, usable * _GBYTE, source)


#: One NVLink of each generation.
NVLINKS: Mapping[Generation, Usable] = {
    "volta": _nvlink(25, 20.0, "SM70_NVLINK_BW"),
    "ampere": _nvlink(25, 20.0, "SM80_NVLINK_BW"),
    "hopper": _nvlink(25, 20.6, "SM90_NVLINK_BW"),
    "blackwell": _nvlink(50, 40.1, "SM100_NVLINK_BW"),
}


@dataclass(frozen=True)
class NicKind:
    """A kind of NIC.

    ``share``: the part of the line rate that collectives can use with packets of 4096 bytes, None if no source
    states it. ``overhead_bytes``: headers, checksums and gaps of a packet.
    """

    name: str
    share: float | None
    source: str
    overhead_bytes: int = 0


#: Payload of the largest packet of InfiniBand and RoCE, in bytes.
LARGEST_MTU_BYTES = 4096

#: InfiniBand: local and transport headers, two checksums (InfiniBand Architecture Specification, volume 1).
_INFINIBAND_BYTES = 8 + 12 + 4 + 2

#: RoCE v2: Ethernet's preamble, header, checksum and gap; IPv4, UDP, transport header, checksum (Annex A17).
_ROCE_BYTES = 8 + 14 + 4 + 12 + 20 + 8 + 12 + 4


def payload_share(mtu_bytes: int, overhead_bytes: int) -> float:
    """Return the part of a link's time in which packets of this payload carry it."""
    return mtu_bytes / (mtu_bytes + overhead_bytes)


def _roce_share() -> float:
    """Return the stated share of InfiniBand, less what RoCE's longer headers take of it."""
    largest = LARGEST_MTU_BYTES
    infiniband = payload_share(largest, _INFINIBAND_BYTES)
    return 0.96 * payload_share(largest, _ROCE_BYTES) / infiniband


_MAINTAINERS = "NCCL's maintainers: 12, 24 and 48 GB/s of 100, 200 and 400 Gbit/s"

#: Kinds of NICs by name.
NIC_KINDS: Mapping[str, NicKind] = {
    kind.name: kind
    for kind in (
        NicKind(
            "infiniband",
            0.96,
            f"{_MAINTAINERS} (NVIDIA/nccl-tests#119, #290, #267)",
            _INFINIBAND_BYTES,
        ),
        NicKind(
            "roce",
            _roce_share(),
            f"{_MAINTAINERS}; stated of InfiniBand, less RoCE's longer headers",
            _ROCE_BYTES,
        ),
        NicKind("efa", None, "no source states it at 100 Gbit/s"),
    )
}


@dataclass(frozen=True)
class Nic:
    """A NIC: its line rate and its kind.

    ``share``: the usable part if it is not that of the kind. ``mtu_bytes``: the payload of a packet.
    """

    line_bps: float
    kind: str = "infiniband"
    share: float | None = None
    mtu_bytes: int = LARGEST_MTU_BYTES

    @property
    def usable_bps(self) -> float:
        """Return the rate that collectives can use. Raises ValueError if no source states it."""
        if self.share is not None:
            return self.share * self.line_bps
        kind = NIC_KINDS[self.kind]
        if kind.share is None:
            raise ValueError(f"a NIC of kind {self.kind} has no stated usable share")
        payload = payload_share(self.mtu_bytes, kind.overhead_bytes)
        largest = payload_share(LARGEST_MTU_BYTES, kind.overhead_bytes)
        return kind.share * payload / largest * self.line_bps


@dataclass(frozen=True)
class GpuModel:
    """A model of GPUs: its generation and number of NVLinks. ``arm``: on Grace, else on x86."""

    name: str
    generation: Generation
    links: int
    arm: bool = False

    @property
    def line_bps(self) -> float:
        """Return the line rate of all its links."""
        return self.links * NVLINKS[self.generation].line_bps

    @property
    def usable_bps(self) -> float:
        """Return the usable rate of all its links."""
        return self.links * NVLINKS[self.generation].usable_bps


#: Models by name, with the links of their data sheets; none: PCIe or C2C only.
GPUS: Mapping[str, GpuModel] = {
    gpu.name: gpu
    for gpu in (
        GpuModel("v100", "volta", 6),
        GpuModel("a100", "ampere", 12),
        GpuModel("h100", "hopper", 18),
        GpuModel("h200", "hopper", 18),
        GpuModel("h20", "hopper", 18),
        GpuModel("h800", "hopper", 8),
        GpuModel("b200", "blackwell", 18),
        GpuModel("gb200", "blackwell", 18, arm=True),
        GpuModel("gb300", "blackwell", 18, arm=True),
        GpuModel("gb10", "blackwell", 0, arm=True),
    )
}


@dataclass(frozen=True)
class Server:
    """GPUs on one NVLink switch with NICs: a server, or a rack such as NVL72. ``gpus``: their number."""

    gpu: GpuModel
    gpus: int
    nics: tuple[Nic, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError("a server needs a GPU")
        if self.gpus > 1 and not self.gpu.links:
            raise ValueError(f"{self.gpu.name} has no NVLink to join {self.gpus} GPUs")

    def slowed(self, nic: int, share: float) -> Server:
        """Return the server with one NIC at a share of its rate: a fault."""
        slow = replace(self.nics[nic], line_bps=share * self.nics[nic].line_bps)
        return replace(self, nics=(*self.nics[:nic], slow, *self.nics[nic + 1 :]))


@dataclass(frozen=True)
class GpuCluster:
    """Equal servers on a network without a bottleneck of its own.

    ``faulty``: servers that differ from ``server`` in the rates of NICs, by their number.
    """

    server: Server
    servers: int = 1
    faulty: tuple[tuple[int, Server], ...] = ()

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ValueError("a cluster needs a server")
        if self.servers > 1 and not self.server.nics:
            raise ValueError("servers without NICs cannot be joined")
        for number, server in self.faulty:
            if not 0 <= number < self.servers:
                raise ValueError(f"there is no server {number}")
            if len(server.nics) != len(self.server.nics):
                raise ValueError(f"server {number} has another number of NICs")

    @property
    def ranks(self) -> int:
        """Return the number of GPUs."""
        return self.servers * self.server.gpus

    @property
    def nic_bps(self) -> tuple[float, ...]:
        """Return the usable rate of each rail: that of the slowest NIC with the same number."""
        rails = [nic.usable_bps for nic in self.server.nics]
        for _, server in self.faulty:
            rails = [
                min(rate, nic.usable_bps)
                for rate, nic in zip(rails, server.nics, strict=True)
            ]
        return tuple(rails)
