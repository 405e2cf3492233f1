"""A torus of GPUs: rings in every dimension, ways in the dimensions' order, each the short way round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ringlight.extensions.sip_ml.wholes.interconnect import Interconnect
from ringlight.fabric.parts import Counts

if TYPE_CHECKING:
    from ringlight.fabric.steps import IntArray


@dataclass(frozen=True)
class Torus:
    """GPUs in a box of ``sides``; neighbours are joined, and the two ends of each line.

    GPUs are numbered with the last dimension running fastest. A GPU has a port forwards and one backwards in
    each dimension; in one of side 2 both would lead to the same neighbour, and it has one. Wrap-arounds
    are circuits of optical switches (as in Jouppi et al., ISCA 2023), all other links are fixed.
    """

    sides: tuple[int, ...]

    @property
    def gpus(self) -> int:
        return math.prod(self.sides)

    @cached_property
    def port(self) -> tuple[tuple[int, int], ...]:
        """Forward and backward port of each dimension."""
        pairs, first = [], 0
        for side in self.sides:
            pairs.append((first, first + (side > 2)))
            first = pairs[-1][1] + 1
        return tuple(pairs)

    @property
    def ports(self) -> int:
        """Ports of each GPU."""
        return self.port[-1][1] + 1

    @property
    def links(self) -> int:
        """Duplex links."""
        return self.gpus * self.ports // 2

    @property
    def switched(self) -> int:
        """Duplex links that are circuits of optical switches, each with two ports of them."""
        # A line of two GPUs has one link, and none round.
        return sum(self.gpus // side for side in self.sides if side > 2)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Increase of a GPU's number with each coordinate."""
        return tuple(math.prod(self.sides[d + 1 :]) for d in range(len(self.sides)))

    def neighbour(self, gpu: int, port: int) -> int:
        """Return the GPU at the other end of a GPU's port."""
        dimension = next(d for d, pair in enumerate(self.port) if port in pair)
        side, stride = self.sides[dimension], self.strides[dimension]
        position = gpu // stride % side
        onwards = 1 if port == self.port[dimension][0] else -1
        return gpu + ((position + onwards) % side - position) * stride


@dataclass(frozen=True)
class TorusOfGpus(Interconnect):
    """GPUs that forward, in a torus; ``hop_s``: seconds that one takes to do so."""

    kind: ClassVar[str] = "torus"

    torus: Torus
    gpu_bps: float
    hop_s: float = 0.0

    @property
    def link_bps(self) -> float:
        return self.gpu_bps / self.torus.ports

    def counts(self, gpus: int) -> Counts:
        """Return the parts: fixed links are copper cables, switched links are fibres.

        Each fibre takes two ports of the one optical switch. Transceivers are only at fibres.
        """
        torus, ports = self.torus, 2 * self.torus.switched
        switches, cables = int(ports > 0), torus.links - torus.switched
        return Counts(
            gpus,
            gpus * torus.ports,
            ports,
            ports,
            optical_switches=switches,
            optical_ports=ports,
            copper_cables=cables,
        )


def ways(
    torus: Torus, sources: IntArray, destinations: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the links of every pair's way: ``offsets`` [pairs + 1], GPUs [links] and ports [links].

    Pair k's links are ``offsets[k]`` to ``offsets[k + 1]`` of the others. Of each link the GPU is that at its
    beginning, and the port is that GPU's. If both ways round are as long, even places of a line go forwards
    and odd ones backwards.
    """
    import numpy as np

    place = sources.copy()
    owners, gpus, ports = [], [], []
    for side, stride, (forwards, backwards) in zip(
        torus.sides, torus.strides, torus.port, strict=True
    ):
        here, there = place // stride % side, destinations // stride % side
        ahead = (there - here) % side
        back = (2 * ahead > side) | ((2 * ahead == side) & (here % 2 == 1))
        length = np.where(back, side - ahead, ahead)
        owner = np.repeat(np.arange(len(place)), length)
        done = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        passed = (here[owner] + np.where(back[owner], -done, done)) % side
        owners.append(owner)
        gpus.append(place[owner] + (passed - here[owner]) * stride)
        ports.append(np.where(back[owner], backwards, forwards))
        place = place + (there - here) * stride
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate(
        ([0], np.cumsum(np.bincount(owner, minlength=len(sources))))
    )
    return (
        offsets.astype(np.int64),
        np.concatenate(gpus)[order],
        np.concatenate(ports)[order],
    )
