"""Orthogonal and unitary matrices as rectangular meshes of Mach-Zehnder interferometers, and back.

The rectangle of Clements et al., "Optimal design for universal multiport interferometers" (Optica 3, 2016),
which is also the paper's Fig. 2: n columns for n modes, interferometers of column k on the modes (p, p + 1)
with p = k, k + 2 .. from k mod 2 on, n(n-1)/2 in all. An interferometer is

    T = [[e^(i phi) cos(theta / 2), -sin(theta / 2)],
         [e^(i phi) sin(theta / 2),  cos(theta / 2)]]

with theta, the phase between its arms (driven in opposite directions, so that it adds no phase to both
outputs), and phi, the phase before its upper arm. After the last column each mode has a phase of its own. A
real orthogonal matrix needs 0 <= theta <= pi and phases of 0 and pi else.

Non-ideal meshes (phases of few bits, phases that are off, loss) are *not* in the OptINC paper, which leaves
them to future work.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringlight.fabric.steps import FloatArray

ComplexArray = NDArray[np.complex128]
#: How far from unitary a matrix may be: the largest entry of U U* - 1.
UNITARY_WITHIN = 1e-9


@dataclass(frozen=True, eq=False)
class Mesh:
    """Phases of a mesh for n modes, radians.

    theta   (n, n // 2), of interferometer i of column k, on the modes k mod 2 + 2i and the next; 0 where
    there is none
    phi     as theta
    output  (n,), after the last column
    """

    theta: FloatArray
    phi: FloatArray
    output: FloatArray

    @property
    def modes(self) -> int:
        """n."""
        return len(self.output)


def there(modes: int) -> NDArray[np.bool_]:
    """Return for each place of ``theta`` and ``phi`` whether it has an interferometer: (n, n // 2)."""
    counts = (modes - np.arange(modes) % 2) // 2
    return np.arange(modes // 2) < counts[:, None]


def decompose(unitary: NDArray[Any]) -> Mesh:
    """Return the mesh of a unitary (or real orthogonal) matrix of n x n, n >= 1.

    Raises ValueError for a matrix that is not square, not finite, or not unitary within UNITARY_WITHIN.
    """
    if unitary.ndim != 2 or unitary.shape[0] != unitary.shape[1] or not unitary.size:
        raise ValueError(
            f"a matrix of shape {unitary.shape} has no mesh: it must be square"
        )
    off = np.abs(unitary @ unitary.conj().T - np.eye(len(unitary))).max()
    if not off <= UNITARY_WITHIN:
        raise ValueError(
            f"the matrix is off unitary by {off:.3g}, at most {UNITARY_WITHIN:g} is allowed"
        )
    modes = len(unitary)
    left = np.array(unitary, np.complex128 if np.iscomplexobj(unitary) else np.float64)
    before: list[tuple[int, float, complex]] = []
    after: list[tuple[int, float, complex]] = []
    for diagonal in range(1, modes):
        if diagonal % 2:
            for step in range(diagonal):
                before.append(_from_right(left, modes - 1 - step, diagonal - 1 - step))
        else:
            for step in range(diagonal):
                after.append(_from_left(left, modes - diagonal + step, step))
    outputs = [_unit(left[mode, mode]) for mode in range(modes)]
    # T* D = D' T': what was taken off from the left goes through the diagonal
    turned = []
    for mode, theta, turn in reversed(after):
        turned.append((mode, theta, -outputs[mode] / outputs[mode + 1]))
        outputs[mode] = -turn.conjugate() * outputs[mode + 1]
    return _placed(modes, [*before, *turned], outputs)


def rebuild(mesh: Mesh, *, loss_db: float = 0.0) -> ComplexArray:
    """Return the matrix (n, n) of a mesh: amplitudes out = matrix @ amplitudes in.

    ``loss_db``: what each interferometer takes from the power of both its outputs. A mode that passes a
    column outside of its interferometers loses nothing there.
    """
    modes = mesh.modes
    kept = 10.0 ** (-loss_db / 20)
    cos, sin, turn = (
        kept * np.cos(mesh.theta / 2),
        kept * np.sin(mesh.theta / 2),
        np.exp(1j * mesh.phi),
    )
    parts = np.stack(
        [np.stack([turn * cos, -sin + 0j], -1), np.stack([turn * sin, cos + 0j], -1)],
        -2,
    )
    matrix = np.eye(modes, dtype=np.complex128)
    for column in range(modes):
        first = column % 2
        count = (modes - first) // 2
        pairs = matrix[first : first + 2 * count].reshape(count, 2, modes)
        pairs[:] = parts[column, :count] @ pairs
    matrix *= np.exp(1j * mesh.output)[:, None]
    return matrix


def on_grid(phases: FloatArray, bits: int) -> FloatArray:
    """Return phases at the nearest multiples of 2 pi / 2^bits. Raises ValueError for less than one bit."""
    if bits < 1:
        raise ValueError(f"phases of {bits} bits: at least 1")
    step = 2 * np.pi / 2.0**bits
    return np.rint(phases / step) * step


def quantised(mesh: Mesh, bits: int) -> Mesh:
    """Return a mesh with all of its phases :func:`on_grid`. Raises ValueError for less than one bit."""
    return Mesh(
        on_grid(mesh.theta, bits), on_grid(mesh.phi, bits), on_grid(mesh.output, bits)
    )


def disturbed(mesh: Mesh, sigma: float, random: np.random.Generator) -> Mesh:
    """Return the mesh with every phase off by a Gaussian of ``sigma`` radians of its own."""
    exist = there(mesh.modes)
    theta, phi = (
        phases + sigma * random.standard_normal(exist.shape) * exist
        for phases in (mesh.theta, mesh.phi)
    )
    return Mesh(theta, phi, mesh.output + sigma * random.standard_normal(mesh.modes))


def _from_right(
    left: NDArray[Any], row: int, column: int
) -> tuple[int, float, complex]:
    """Take T off on the right, left := left T*, so that left[row, column] is 0.

    Return (mode, theta, e^(i phi)).
    """
    a, b = complex(left[row, column]), complex(left[row, column + 1])
    length = math.hypot(abs(a), abs(b))
    turn = _unit(a) / _unit(b)
    cos, sin = (abs(b) / length, abs(a) / length) if length else (1.0, 0.0)
    back = _of_type(turn.conjugate(), left)
    both = left[: row + 1, column : column + 2]
    both[:] = both @ np.array([[back * cos, back * sin], [-sin, cos]])
    left[row, column] = 0
    return column, 2 * math.atan2(sin, cos), turn


def _from_left(left: NDArray[Any], row: int, column: int) -> tuple[int, float, complex]:
    """Take T off on the left, left := T left, on the rows row - 1 and row.

    Return (mode, theta, e^(i phi)).
    """
    a, b = complex(left[row - 1, column]), complex(left[row, column])
    length = math.hypot(abs(a), abs(b))
    turn = -_unit(b) / _unit(a)
    cos, sin = (abs(a) / length, abs(b) / length) if length else (1.0, 0.0)
    on = _of_type(turn, left)
    both = left[row - 1 : row + 1, column:]
    both[:] = np.array([[on * cos, -sin], [on * sin, cos]]) @ both
    left[row, column] = 0
    return row - 1, 2 * math.atan2(sin, cos), turn


def _unit(value: complex) -> complex:
    """Return the direction of a number; that of 0 is 1."""
    size = abs(value)
    return value / size if size else 1.0 + 0j


def _of_type(value: complex, matrix: NDArray[Any]) -> complex:
    return value if np.iscomplexobj(matrix) else value.real


def _placed(
    modes: int, order: list[tuple[int, float, complex]], outputs: list[complex]
) -> Mesh:
    """Return the mesh of interferometers in the order in which light passes them.

    Each is in the first column that is free for it.
    """
    theta, phi = np.zeros((2, modes, modes // 2))
    free = [0] * modes
    for mode, angle, turn in order:
        column = max(free[mode], free[mode + 1])
        column += (column - mode) % 2
        theta[column, mode // 2], phi[column, mode // 2] = angle, cmath.phase(turn)
        free[mode] = free[mode + 1] = column + 1
    return Mesh(theta, phi, np.array([cmath.phase(output) for output in outputs]))
