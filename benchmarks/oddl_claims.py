"""Compares models with the claims of ODDL's journal paper at 1,024 and 4,096 nodes.

Its abstract (JOCN 16(3):342, 2024) says 1.6 times as fast as a fat tree and 1.7 times as SiP-Ring, VGG19 at
100 Gbit/s a node; neither the oversubscription nor the placement, the collectives, the computing or the
wavelengths of SiP-Ring are stated. Here: one all-reduce of VGG19's gradients in 4 bytes and nothing else,
each over ODDL's with halving and doubling, where every flow waits 10 us for its handshake. ``computing`` is
how long an iteration would have to compute, in times of ODDL's all-reduce, for the claim to be the ratio of
iterations.

Packet fabrics: leaves of sqrt(n) nodes, hashed paths, ranks in order of the leaves or scattered (the median
of five orders; one of 4,096). Oversubscription is of two kinds: ``thin`` has sqrt(n) spines and uplinks of a
part of a node's rate, ``few`` has fewer spines and uplinks of a node's full rate.

SiP-Ring: 2 wavelengths of 25 Gbit/s in each direction, never dark or dark for 20 us before 100 us of light;
all that a fibre can carry is shared, which no decision could better.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import most_memory_mib, tell
from ringlight.extensions.sip_ml.simulation.zoo import (
    RelayedGridNetwork,
    WavelengthRingNetwork,
)
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.topology import Fabric
from ringlight.fabric.trees import leaf_spine
from ringlight.testbed.simulation.networks import IdealNetwork, Network, PacketNetwork
from ringlight.testbed.simulation.phases import Phases

RATE_BPS, HANDSHAKE_S = 100e9, 10e-6
#: Seconds of light and of dark of a ring that is divided by demand.
LIVE_S, DARK_S = 100e-6, 20e-6
FAT_TREE, SIP_RING = 1.6, 1.7
#: Parameters of VGG-19, as torchvision counts them.
VGG19 = 143_667_240
ORDERS = 5


def oddl_claims(nodes: list[int] = [1024, 4096]) -> dict[str, Any]:
    """``nodes``: powers of four."""
    for n in nodes:
        if n < 16 or 4 ** round(math.log(n, 4)) != n:
            raise SystemExit(f"--nodes {n}: it must be a power of four, at least 16")
    found = {}
    for n in nodes:
        tell(f"{n} nodes")
        found[f"{n} nodes"] = {**claims(n), "most_memory_mib": most_memory_mib()}
    return found


PARTS = (oddl_claims,)


def all_reduce_s(
    network: Network, gpus: Sequence[str], collective: str, size: float
) -> float:
    return Phases(network, gpus, steps_named(collective, len(gpus))).time(size).total_s


def computing(ratio: float, claim: float) -> float | None:
    """c with (c + ratio) / (c + 1) = claim; None where no computing makes it so much."""
    return round((ratio - claim) / (claim - 1), 2) if ratio >= claim else None


#: Oversubscription by thin uplinks, and by few of a node's full rate: how many spines a fabric has.
KINDS: dict[str, Callable[[int, int], int]] = {
    "thin": lambda side, by: side,
    "few": lambda side, by: side // by,
}


def packet_fabric(side: int, by: int, kind: str) -> Fabric:
    """``side`` leaves of as many nodes, whose uplinks have together 1/``by`` of what their nodes have."""
    spines = KINDS[kind](side, by)
    return leaf_spine(side, side, RATE_BPS, spines=spines, oversubscription=by).fabric()


def packet_ratios(
    nodes: int, size: float, oddl_s: float
) -> dict[str, dict[str, float | None]]:
    side = math.isqrt(nodes)
    found = {}
    for by, kind in ((1, "thin"), *itertools.product((2, 4, 8, 16), KINDS)):
        if by > side:
            continue
        fabric = packet_fabric(side, by, kind)
        gpus = tuple(fabric.gpus)
        orders = [
            np.random.default_rng(seed).permutation(nodes)
            for seed in range(ORDERS if nodes < 4096 else 1)
        ]
        packets = PacketNetwork(fabric)
        for collective in ("halving-doubling", "ring"):
            in_order = all_reduce_s(packets, gpus, collective, size) / oddl_s
            scattered = statistics.median(
                all_reduce_s(packets, [gpus[k] for k in order], collective, size)
                / oddl_s
                for order in orders
            )
            for name, ratio in (("in order", in_order), ("scattered", scattered)):
                how = f"{by}:1" if by == 1 else f"{by}:1 by {kind} uplinks"
                found[f"leaf-spine {how}, {collective}, ranks {name}"] = entry(
                    ratio, FAT_TREE
                )
    return found


def entry(ratio: float, claim: float) -> dict[str, float | None]:
    return {"over_oddl": round(ratio, 3), "computing": computing(ratio, claim)}


def ring_ratios(
    nodes: int, size: float, oddl_s: float
) -> dict[str, dict[str, float | None]]:
    gpus = tuple(f"g{k}" for k in range(nodes))
    lit = LIVE_S / (LIVE_S + DARK_S)
    found = {}
    for name, share in (("never dark", 1.0), ("dark 20 of 120 us", lit)):
        ring = WavelengthRingNetwork(gpus, RATE_BPS / 2 * share)
        for collective in ("ring", "bidirectional-ring", "halving-doubling"):
            ratio = all_reduce_s(ring, gpus, collective, size) / oddl_s
            found[f"SiP-Ring, {collective}, {name}"] = entry(ratio, SIP_RING)
    return found


def claims(nodes: int) -> dict[str, object]:
    gpus = tuple(f"g{k}" for k in range(nodes))
    size = 4.0 * VGG19
    grid = RelayedGridNetwork(
        gpus, math.isqrt(nodes), RATE_BPS, shared=True, latency_s=HANDSHAKE_S
    )
    oddl_s = all_reduce_s(grid, gpus, "halving-doubling", size)
    ideal_s = all_reduce_s(IdealNetwork(gpus, RATE_BPS), gpus, "halving-doubling", size)
    return {
        "oddl_ms": round(1e3 * oddl_s, 2),
        "ideal": entry(ideal_s / oddl_s, FAT_TREE),
        "fat_tree": packet_ratios(nodes, size, oddl_s),
        "sip_ring": ring_ratios(nodes, size, oddl_s),
    }
