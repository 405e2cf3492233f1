"""Compute the wrong answers of an averager's network, its meshes, and the load of its cables (OptINC)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ringlight.extensions.optinc.averager import Averager, Imperfect
from ringlight.extensions.optinc.averaging import Averaging, scales_sent, structure_of
from ringlight.extensions.optinc.unit.designed import designed
from ringlight.extensions.optinc.unit.imperfect import (
    Imperfections,
    OnMeshes,
    as_network,
    on_meshes,
)
from ringlight.extensions.optinc.unit.network import (
    Network,
    Signals,
    Wrong,
    compressed,
    wrong_among,
)
from ringlight.extensions.optinc.unit.structure import CASES, Structure
from ringlight.extensions.optinc.unit.weights import trained
from ringlight.extensions.optinc.unit.wire import FRAME, HEADER_BYTES
from ringlight.fabric.topology import Fabric

#: Inputs up to which all are tried, and how many of more, drawn with this seed.
ALL_INPUTS, SAMPLED_INPUTS, SAMPLE_SEED = 2**19, 2**16, 1


def network_of(averager: Averager) -> Network | None:
    """Return the weights of an averager's network.

    Return None for an averager without a network, or with other layers approximated than the weights are for.
    """
    structure = structure_of(averager)
    if averager.network == "exact" or structure is None:
        return None
    (case,) = (
        name for name, known in CASES.items() if known.coding == structure.coding
    )
    return _weights(averager.network, case) if structure == CASES[case] else None


@lru_cache
def _weights(network: str, case: str) -> Network:
    return trained(case)[0] if network == "trained" else designed(CASES[case])


def errors_of(averager: Averager) -> Wrong | None:
    """Return how many of all combinations of inputs the network answers otherwise than the exact mean.

    Its light is as ``imperfect`` says. Of more than ALL_INPUTS combinations a random sample is taken. Return
    None for an averager without a network. A network whose light is ideal is tried without its unused units,
    which are no part of the answer.
    """
    network = network_of(averager)
    structure = structure_of(averager)
    if network is None or structure is None:
        return None
    return _errors(averager.network, structure, averager.imperfect)


@lru_cache(maxsize=512)
def _errors(name: str, structure: Structure, light: Imperfect) -> Wrong:
    (case,) = (name for name, known in CASES.items() if known == structure)
    network, coding = _weights(name, case), structure.coding
    random = np.random.default_rng(light.seed)
    if light.ideal:
        network = compressed(network)
    else:
        meshes = Imperfections(
            light.phase_bits, light.phase_error, light.loss_db, light.bias
        )
        network = as_network(_meshes(name, case), meshes, random)
    index = np.arange(min(coding.combinations, ALL_INPUTS))
    if coding.combinations > ALL_INPUTS:
        index = np.random.default_rng(SAMPLE_SEED).integers(
            0, coding.combinations, SAMPLED_INPUTS
        )
    signals = Signals(light.noise, light.transmitters, light.mismatch, light.scale)
    return wrong_among(network, coding, index, signals=signals, random=random)


@lru_cache(maxsize=4)
def _meshes(name: str, case: str) -> OnMeshes:
    return on_meshes(_weights(name, case), CASES[case].approximated)


def meshes_of(averager: Averager) -> OnMeshes | None:
    """Return the meshes of an averager's network, with ideal phases; None if it has no network."""
    structure = structure_of(averager)
    if structure is None or network_of(averager) is None:
        return None
    (case,) = (name for name, known in CASES.items() if known == structure)
    return _meshes(averager.network, case)


def trained_meshes(fabric: Fabric) -> Iterator[OnMeshes]:
    """Yield the meshes of each averager whose network has trained weights."""
    for averager in fabric.parts.get("averagers", {}).values():
        if (
            averager.network == "trained"
            and (meshes := meshes_of(averager)) is not None
        ):
            yield meshes


@dataclass(frozen=True)
class Carried:
    """Bytes that pass in an all-reduce, headers of packets left out. ``nic``: up a server's cable, and as
    many down; ``up``, ``down``: the cable between two averagers, None without two levels; ``scales``: sent by
    each server over the packet switches."""

    nic: int
    up: int | None
    down: int | None
    scales: int


def carried(averaging: Averaging, gradient_bytes: int) -> Carried:
    """Return the bytes that the cables carry of a gradient of float32 values.

    These are its codes in frames, and the blocks' scales.
    """
    codes = gradient_bytes // 4
    frames = -(-codes // FRAME)
    hop_bytes = [
        HEADER_BYTES * frames + hop.form.bytes_of(codes) for hop in averaging.hops
    ]
    scales = scales_sent(gradient_bytes, len(averaging.servers))
    if len(hop_bytes) == 2:
        return Carried(hop_bytes[0], None, None, scales)
    return Carried(hop_bytes[0], hop_bytes[1], hop_bytes[2], scales)
