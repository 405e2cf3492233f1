"""A network on its meshes, and what it computes when these are not ideal.

**On meshes.** A full layer W = U Sigma V^T is the mesh of V^T, a column of attenuators Sigma, the mesh of
U. An approximated layer is one mesh U and one column Sigma for each of its squares of side s. Squares one
below the other (more outputs than inputs): the layer's s inputs are divided over the squares' meshes, and
each brings s of the outputs. Squares side by side (more inputs than outputs): each takes s of the inputs,
and their s outputs are added mode by mode. Dividing and adding light of k ways costs a factor of sqrt(k) in
amplitude each; like everything that is larger than 1 in Sigma it takes gain, which is ideal here. An
attenuator is an interferometer, too: theta = 2 arccos(d / largest d of its column).

**Not ideal**, all of it ours, for the paper leaves it to future work: phases of few bits; phases that are
off, for good; loss in every interferometer. Of the loss, gain makes good what an average path of a mesh of
n modes has, n - 1 interferometers; what is left is that paths differ. Wrong phases make amplitudes complex:
the nonlinearity is taken to see the part in phase with the light that comes in, which is the real part of a
layer's matrix. The light of biases may be too bright or too dim. What enters and leaves is in
``network.Signals``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.extensions.optinc.unit import approximation
from ringlight.extensions.optinc.unit.mesh import (
    Mesh,
    decompose,
    disturbed,
    on_grid,
    quantised,
    rebuild,
)
from ringlight.extensions.optinc.unit.network import Network
from ringlight.fabric.steps import FloatArray

#: How far an approximated layer may be from squares Sigma U: part of its largest weight.
SQUARE_WITHIN = 1e-4


@dataclass(frozen=True)
class Imperfections:
    """Imperfections of meshes.

    phase_bits   resolution of all phases, 2 pi / 2^bits; None is exact
    phase_sigma  radians, by which phases are off after that
    loss_db      dB of power in each interferometer
    bias         by which part the constant light of all biases is too bright
    """

    phase_bits: int | None = None
    phase_sigma: float = 0.0
    loss_db: float = 0.0
    bias: float = 0.0


@dataclass(frozen=True, eq=False)
class Squares:
    """An approximated layer of ``shape`` (outputs, inputs): meshes U of its squares, and Sigma's diagonals
    (count, s).
    """

    shape: tuple[int, int]
    meshes: tuple[Mesh, ...]
    scales: FloatArray


@dataclass(frozen=True, eq=False)
class Full:
    """A full layer: the mesh of V^T, Sigma's diagonal (min(outputs, inputs),), the mesh of U."""

    first: Mesh
    scale: FloatArray
    second: Mesh


@dataclass(frozen=True, eq=False)
class OnMeshes:
    """A network's layers on their meshes; biases and type of numbers as the network's."""

    layers: tuple[Squares | Full, ...]
    biases: tuple[NDArray[np.floating[Any]], ...] | None
    dtype: np.dtype[Any]


def on_meshes(network: Network, approximated: Collection[int]) -> OnMeshes:
    """Return the meshes of a network, of which layers ``approximated`` are made of squares Sigma U.

    Layers are numbered from 1. Raises ValueError naming a layer that is not there, or that is not made of
    such squares.
    """
    approximation.check_layers(network, approximated)
    layers: list[Squares | Full] = []
    for number, weight in enumerate(network.weights, 1):
        if number in approximated:
            try:
                layers.append(_squares(weight))
            except ValueError as error:
                raise ValueError(f"layer {number}: {error}") from None
        else:
            left, scale, right = np.linalg.svd(weight.astype(np.float64))
            layers.append(Full(decompose(right), scale, decompose(left)))
    return OnMeshes(tuple(layers), network.biases, network.dtype)


def as_network(
    meshes: OnMeshes,
    imperfections: Imperfections,
    random: np.random.Generator | None = None,
) -> Network:
    """Return the network that imperfect meshes compute. Phase errors are drawn from ``random``.

    Raises ValueError for phase errors without a generator, and for phases of less than one bit.
    """
    if imperfections.phase_sigma and random is None:
        raise ValueError("phase errors need a generator to draw them from")
    weights = tuple(
        _matrix(layer, imperfections, random).astype(meshes.dtype)
        for layer in meshes.layers
    )
    biases = meshes.biases
    if imperfections.bias and biases is not None:
        biases = tuple(
            (bias * (1 + imperfections.bias)).astype(meshes.dtype) for bias in biases
        )
    return Network(weights, biases)


def _squares(weight: NDArray[Any]) -> Squares:
    cut = approximation.squares(weight)
    scales, orthogonal = approximation.factors(cut)
    off = np.abs(scales[..., None] * orthogonal - cut).max()
    if off > SQUARE_WITHIN * np.abs(weight).max():
        raise ValueError(
            f"it is off squares Sigma U by {off:.3g}: approximate it first"
        )
    return Squares(
        weight.shape, tuple(decompose(square) for square in orthogonal), scales
    )


def _matrix(
    layer: Squares | Full,
    imperfections: Imperfections,
    random: np.random.Generator | None,
) -> FloatArray:
    """Return a layer's matrix (outputs, inputs), real part."""
    if isinstance(layer, Full):
        first, second = (
            _rebuilt(mesh, imperfections, random)
            for mesh in (layer.first, layer.second)
        )
        ways = len(layer.scale)
        scale = _attenuated(layer.scale, imperfections, random)
        return (second[:, :ways] * scale @ first[:ways]).real
    cut = [
        _attenuated(scale, imperfections, random)[:, None]
        * _rebuilt(mesh, imperfections, random)
        for mesh, scale in zip(layer.meshes, layer.scales, strict=True)
    ]
    return approximation.joined(np.stack(cut).real, layer.shape)


def _rebuilt(
    mesh: Mesh, imperfections: Imperfections, random: np.random.Generator | None
) -> NDArray[np.complex128]:
    if imperfections.phase_bits is not None:
        mesh = quantised(mesh, imperfections.phase_bits)
    if imperfections.phase_sigma and random is not None:
        mesh = disturbed(mesh, imperfections.phase_sigma, random)
    gain: float = 10.0 ** (imperfections.loss_db * (mesh.modes - 1) / 20)
    return gain * rebuild(mesh, loss_db=imperfections.loss_db)


def _attenuated(
    scale: FloatArray, imperfections: Imperfections, random: np.random.Generator | None
) -> FloatArray:
    """Return Sigma's diagonal. Its column's loss is the same for all, and made good."""
    largest = scale.max()
    if not largest:
        return scale
    theta = 2 * np.arccos(np.clip(scale / largest, 0, 1))
    if imperfections.phase_bits is not None:
        theta = on_grid(theta, imperfections.phase_bits)
    if imperfections.phase_sigma and random is not None:
        theta = theta + imperfections.phase_sigma * random.standard_normal(theta.shape)
    return np.asarray(largest * np.cos(theta / 2))
