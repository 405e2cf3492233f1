"""Networks of the paper's four cases: their interferometers and area (Tables I and II).

A matrix of M x N in full is U Sigma V^T on two meshes: M(M+1)/2 + N(N-1)/2 interferometers, Sigma's column
counted with the first. Approximated, it is cut into squares of side s = min(M, N), each Sigma U on one
mesh: s(s-1)/2 + s for each (section III, "hardware"). Area is counted in interferometers: a ratio is that
of a network with some layers approximated to the same network with none, and P and T, which are full, count
on both sides: that is what gives the paper's figures. P is a matrix of K x NM and T one of NM x M, for M
symbols and N servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from ringlight.extensions.optinc.unit.averaging import Coding


@dataclass(frozen=True)
class Structure:
    """A unit's network: ``sizes`` of its layers from the K inputs to the M outputs, and which layers are
    approximated.

    ``approximated`` numbers layers from 1: layer l is the matrix of sizes[l] x sizes[l - 1].
    Raises ValueError if ends and coding do not fit, or for a layer that is not there.
    """

    coding: Coding
    sizes: tuple[int, ...]
    approximated: frozenset[int]

    def __post_init__(self) -> None:
        ends = (self.coding.inputs, self.coding.symbols)
        if len(self.sizes) < 2 or (self.sizes[0], self.sizes[-1]) != ends:
            raise ValueError(
                f"layers {self.sizes}: the first has {ends[0]} and the last {ends[1]}"
            )
        for layer in sorted(self.approximated):
            if not 1 <= layer < len(self.sizes):
                raise ValueError(
                    f"layer {layer} of {len(self.sizes) - 1} cannot be approximated"
                )

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of each layer's matrix, the first layer first."""
        return tuple((after, before) for before, after in pairwise(self.sizes))


def _case(bits: int, servers: int, sizes: tuple[int, ...], layers: range) -> Structure:
    return Structure(Coding(bits, servers), sizes, frozenset(layers))


#: The cases of Table I, by name.
CASES: Mapping[str, Structure] = MappingProxyType(
    {
        "8bit_4": _case(8, 4, (4, 64, 128, 256, 128, 64, 4), range(1, 7)),
        "8bit_8": _case(8, 8, (4, 64, 128, 256, 512, 256, 128, 64, 4), range(2, 8)),
        "8bit_16": _case(
            8, 16, (4, 64, 128, 256, 512, 1024, 512, 256, 128, 64, 4), range(2, 10)
        ),
        "16bit_4": _case(16, 4, (4, 64, 128, 256, 512, 256, 128, 64, 8), range(4, 7)),
    }
)


def mesh_mzis(side: int) -> int:
    """Return the number of interferometers of the mesh of an orthogonal matrix of ``side`` x ``side``."""
    return side * (side - 1) // 2


def full_mzis(outputs: int, inputs: int) -> int:
    """Return the number of interferometers of U Sigma V^T for a matrix of outputs x inputs."""
    return mesh_mzis(outputs) + outputs + mesh_mzis(inputs)


def approximated_mzis(outputs: int, inputs: int) -> int:
    """Return the number of interferometers of a matrix of outputs x inputs cut into squares Sigma U.

    Raises ValueError when the longer side is not a multiple of the shorter one.
    """
    side, longer = sorted((outputs, inputs))
    if longer % side:
        raise ValueError(
            f"a matrix of {outputs} x {inputs} cannot be cut into squares of {side} x {side}"
        )
    return longer // side * (mesh_mzis(side) + side)


def around_mzis(coding: Coding) -> int:
    """Return the number of interferometers of P and T together."""
    signals = coding.servers * coding.symbols
    return full_mzis(coding.inputs, signals) + full_mzis(signals, coding.symbols)


def mzis(structure: Structure) -> int:
    """Return the number of interferometers of a unit: P, the network with its approximated layers, T."""
    return around_mzis(structure.coding) + sum(
        (approximated_mzis if layer in structure.approximated else full_mzis)(*shape)
        for layer, shape in enumerate(structure.shapes, 1)
    )


def bias_mzis(structure: Structure) -> int:
    """Return the number of interferometers that give a network's biases their light.

    For each layer these are an attenuator for each output, and a tree that divides the constant light over
    the attenuators. The paper has none of them.
    """
    return sum(2 * outputs - 1 for outputs, _ in structure.shapes)


def area_ratio(structure: Structure, *, biases: bool = False) -> float:
    """Return the interferometers of a unit over those of the same unit with no layer approximated.

    With ``biases`` the interferometers for the light of biases count on both sides.
    """
    both = (structure, Structure(structure.coding, structure.sizes, frozenset()))
    ours, whole = (mzis(unit) + (bias_mzis(unit) if biases else 0) for unit in both)
    return ours / whole


def network_mzis(structure: Structure) -> int:
    """Return the number of interferometers of the network alone, with its approximated layers."""
    return mzis(structure) - around_mzis(structure.coding)


def inserted_mzis(structure: Structure) -> int:
    """Return the number of interferometers that a unit of a cascade has in addition.

    They make a square matrix after the first layer and one before the last, both approximated (section III,
    cascade: 64 x 64 each).
    """
    return sum(
        approximated_mzis(side, side)
        for side in (structure.sizes[1], structure.sizes[-2])
    )
