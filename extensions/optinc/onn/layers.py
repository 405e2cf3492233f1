"""Layers whose matrix is cut into squares Sigma U: U orthogonal, Sigma diagonal (OptINC, section III).

How a matrix is cut is ``unit.approximation``'s. :class:`Exact` has the form at every step, because
U is made by Cayley's map, which is ours; :class:`Retracted` nears it after every step, for half of the
time; :class:`Projected` is the paper's: any matrix, now and then replaced by its Sigma_a U_a.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ringlight.extensions.optinc.unit.approximation import approximated, joined
from ringlight.extensions.optinc.unit.structure import Structure


class OnnLayer(nn.Module):  # type: ignore[misc]
    """W x + b with a matrix of any form, drawn as squares Sigma U. ``biased``: whether there is a b."""

    def __init__(
        self, outputs: int, inputs: int, biased: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.side = min(outputs, inputs)
        count = max(outputs, inputs) // self.side
        if count * self.side != max(outputs, inputs):
            raise ValueError(
                f"a matrix of {outputs} x {inputs} cannot be cut into squares"
            )
        self.shape = outputs, inputs
        # He's initialisation: rows of the whole matrix have norm sqrt(2).
        self.gain = math.sqrt(2.0 if outputs > inputs else 2.0 / count)
        drawn = torch.randn(
            count, self.side, self.side, generator=generator, dtype=torch.float64
        )
        self.start: Tensor = torch.linalg.qr(drawn)[0]
        self.bias = (
            nn.Parameter(torch.rand(outputs, generator=generator) - 0.5)
            if biased
            else None
        )
        self.make()

    def make(self) -> None:
        """The parameters, from ``start`` and ``gain``."""
        matrix: Tensor = joined(self.start * self.gain, self.shape)
        self.weight = nn.Parameter(matrix.float())

    def matrix(self) -> Tensor:
        """Return W as it is trained, (outputs, inputs), float32."""
        return self.weight

    def scale(self, factor: float) -> None:
        """Multiply the matrix."""
        self.weight.data.mul_(factor)

    def project(self) -> None:
        """Bring W to its form, where it can have left it."""

    def final(self) -> Tensor:
        """Return W of the trained layer, in its form, float64."""
        return self.weight.detach().double()

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.linear(values, self.matrix(), self.bias)


class Projected(OnnLayer):
    """W of any form, of which :meth:`project` makes squares Sigma U."""

    def project(self) -> None:
        self.weight.data = torch.from_numpy(approximated(self.weight.detach().numpy()))

    def final(self) -> Tensor:
        return torch.from_numpy(approximated(self.weight.detach().double().numpy()))


class Retracted(OnnLayer):
    """Squares Sigma U with Sigma and U trained apart: U is any matrix, which :meth:`project` brings towards
    the next orthogonal one by a step of Newton and Schulz, U (3 - U^T U) / 2; the end is that one.
    """

    def make(self) -> None:
        self.turned = nn.Parameter(self.start.float())
        self.factors = nn.Parameter(torch.full((*self.start.shape[:2], 1), self.gain))

    def matrix(self) -> Tensor:
        return joined(self.factors * self.turned, self.shape)

    def scale(self, factor: float) -> None:
        self.factors.data.mul_(factor)

    def project(self) -> None:
        now = self.turned.data
        self.turned.data = torch.baddbmm(
            now, torch.bmm(now, now.mT), now, beta=1.5, alpha=-0.5
        )

    def final(self) -> Tensor:
        left, _, right = torch.linalg.svd(self.turned.detach().double())
        return joined(self.factors.detach().double() * (left @ right), self.shape)


class Exact(OnnLayer):
    """Squares Sigma U with U = (1 + K)^-1 (1 - K) U_0, K antisymmetric: always orthogonal.

    U_0 is the drawn ``start``: Cayley's map alone does not reach eigenvalues of -1.
    """

    def make(self) -> None:
        self.turn = nn.Parameter(torch.zeros(self.start.shape))
        self.factors = nn.Parameter(torch.full((*self.start.shape[:2], 1), self.gain))
        self._start = self.start.float()

    def _made(self, turn: Tensor, factors: Tensor, start: Tensor) -> Tensor:
        antisymmetric = turn - turn.mT
        identity = torch.eye(self.side, dtype=turn.dtype)
        orthogonal = (
            torch.linalg.solve(identity + antisymmetric, identity - antisymmetric)
            @ start
        )
        return joined(factors * orthogonal, self.shape)

    def matrix(self) -> Tensor:
        return self._made(self.turn, self.factors, self._start)

    def scale(self, factor: float) -> None:
        self.factors.data.mul_(factor)

    def final(self) -> Tensor:
        return self._made(
            self.turn.detach().double(), self.factors.detach().double(), self.start
        )


def layers_of(
    structure: Structure, form: type[OnnLayer], biased: str, generator: torch.Generator
) -> list[OnnLayer]:
    """Return the layers of a structure: ``form`` for layers that it approximates, else any matrix.

    ``biased``: which layers have a bias, ``all`` or the ``first``.
    """
    return [
        (form if number in structure.approximated else OnnLayer)(
            *shape, biased == "all" or number == 1, generator
        )
        for number, shape in enumerate(structure.shapes, 1)
    ]
