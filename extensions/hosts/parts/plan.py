"""The parts of a lab that is over several hosts: what each has, and where the others are.

The first host's part has the controller; all of its nodes have one lab id there, and each other part one of
its own. A file with the plan gives each testbed the number of its part.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from ringlight.fabric.frames import LARGEST_MTU_BYTES
from ringlight.fabric.parts import Port

#: The plan's name in the state of a part's lab.
FILE = "part.json"
#: What a part's testbed says is in this file there; of that so many bytes are told, its last.
LOG, LOG_BYTES = "testbed.log", 1 << 20
#: Where light between hosts goes: VXLAN's own port is closed in some data centres.
VXLAN_PORT = 14789
#: Bytes of an IPv4 packet around a frame's payload: Ethernet, VXLAN, UDP, IP.
VXLAN_BYTES = 14 + 8 + 8 + 20
#: VXLAN's numbers have 24 bits.
VXLAN_NUMBERS = 1 << 24
#: Largest IP packets of workers whose fibres may cross: on a network of usual large frames they arrive whole.
MTU_BYTES = LARGEST_MTU_BYTES - VXLAN_BYTES


def log_of_part(host: str) -> str:
    """Return the name of a lab's file with the output of the testbed on another host."""
    return f"testbed-{host}.log"


def tail(path: Path) -> bytes:
    """Return the last LOG_BYTES bytes of a log; nothing if the log is not there."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_BYTES))
            return log.read()
    except OSError:
        return b""


@dataclass(frozen=True)
class Tls:
    """Files of an authority, and of the certificate and key that each process of a lab shows."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True)
class Place:
    """A host of a lab. ``ip``: where the others reach it; ``door``: the TCP port at which its part answers
    them; ``nodes``: what is there."""

    host: str
    ip: str
    door: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Tunnel:
    """A cut fibre, from one of its hosts: its VXLAN number and UDP port, and both hosts' addresses."""

    number: int
    local: str
    remote: str
    udp_port: int


@dataclass(frozen=True)
class CutEnds:
    """A cut fibre: its VXLAN number, and its two ends, as ``node:port``, with the numbers of their places."""

    number: int
    a: str
    b: str
    hosts: tuple[int, int]


@dataclass(frozen=True)
class Parts:
    """``own``: number of the part that reads it, the controller's is 0. ``token``: what the parts of one lab
    tell each other; ``tls``: None if all are on one machine. ``mtu_bytes``: workers' IP packets are no
    longer.
    """

    token: str
    places: tuple[Place, ...]
    fibres: tuple[CutEnds, ...]
    udp_port: int = VXLAN_PORT
    mtu_bytes: int = MTU_BYTES
    tls: Tls | None = None
    own: int = 0

    @cached_property
    def here(self) -> frozenset[str]:
        """Names of the nodes of this part."""
        return frozenset(self.places[self.own].nodes)

    @cached_property
    def place_of(self) -> Mapping[str, int]:
        """Number of each node's place."""
        return {
            name: number
            for number, place in enumerate(self.places)
            for name in place.nodes
        }

    @cached_property
    def tunnels(self) -> Mapping[Port, Tunnel]:
        """The cut fibres of this part, by the end that is here."""
        tunnels = {}
        for fibre in self.fibres:
            for near, end in ((0, fibre.a), (1, fibre.b)):
                if fibre.hosts[near] == self.own:
                    far = self.places[fibre.hosts[1 - near]]
                    ip = self.places[self.own].ip
                    tunnels[Port.parse(end)] = Tunnel(
                        fibre.number, ip, far.ip, self.udp_port
                    )
        return tunnels

    def as_read_by(self, own: int) -> Parts:
        """Return the same plan as part ``own`` reads it."""
        return replace(self, own=own)

    def write(self, path: Path) -> None:
        """Only its owner may read it."""
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            "w",
            encoding="utf-8",
        ) as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Parts:
        """Return the plan in a file. Raises OSError, ValueError."""
        # Here, as most who load this module read no plan.
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_json(path.read_bytes())
