"""A fabric as a cluster that jobs share: its switches as a tree, and the links that leave each part of it.

Where thousands of jobs share a fabric for months, what matters of it is how many GPUs are on each switch, and
how much can leave a switch, a pod, … Links between the same two parts are taken as one, as packets are spread
over them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from ringlight.fabric.gpu_choice import Key, fewest_parts
from ringlight.fabric.steps import FloatArray


def best_fit_parts(free: Mapping[Key, int], count: int) -> list[tuple[Key, int]]:
    """Return (part, GPUs) as :func:`fewest_parts`, except for the rest of a job on several parts.

    The rest comes from the part that it fills most tightly, not from the one with the most free GPUs: large
    holes stay whole for the next large job. Raises ValueError if there are too few.
    """
    parts = fewest_parts(free, count)
    if len(parts) < 2:
        return parts
    whole = parts[:-1]
    taken = {part for part, _ in whole}
    rest = {part: left for part, left in free.items() if part not in taken}
    return whole + fewest_parts(rest, parts[-1][1])


Queueing = Literal["first-come", "backfill", "shortest-first"]
Placement = Literal[
    "random",
    "first-fit",
    "pack",
    "best-fit",
    "spread",
    "hilbert",
    "rings-aligned",
    "controller",
    "blocks",
    "slices",
]
LightMoves = Literal[
    "none", "at-arrival", "when-it-pays", "at-intervals", "controller", "ideal"
]
Sharing = Literal["always", "interleaved", "duty", "on-off"]
OnFault = Literal["wait", "restart", "spare"]
Pool = Literal["switch", "pod", "cluster"]


@dataclass(frozen=True)
class Policies:
    """Policies that decide when and on which GPUs the jobs of a cluster run, by name.

    ``placement`` and ``light`` may be ``controller``: then its own functions decide, GPU by GPU. ``light``
    moves fibres so that jobs are on few switches; ``ideal`` is the bound for which no link is ever short.
    ``sharing``: when jobs that share links send. ``spare_ports``: a switch's ports without a fibre, as a
    share of its GPUs. ``running``: whether fibres of running jobs may be moved, not only idle fibres.
    ``dark_s``: how long a moved job waits. ``every_s``: time between two moves of light ``at-intervals``.
    """

    queueing: Queueing = "first-come"
    placement: Placement = "pack"
    light: LightMoves = "none"
    sharing: Sharing = "always"
    spare_ports: float = 0.0
    running: bool = True
    dark_s: float = 1.0
    every_s: float = 3600.0


@dataclass(frozen=True)
class FaultPolicies:
    """Treatment of a job whose GPUs fail. ``unit_gpus``: GPUs that fail together, of a server or a larger
    slice.

    ``policy``: the job waits for the repair, restarts elsewhere, or light puts spares from a ``pool`` in the
    place of its GPUs. If there is no spare, the job waits. ``spares``: units that are kept for that, as a
    share of each switch's; else free GPUs serve. A job goes on from its last checkpoint, which it writes
    every ``checkpoint_s`` of work, and needs ``restart_s`` to start again.
    """

    policy: OnFault = "restart"
    pool: Pool = "cluster"
    server_gpus: int = 8
    unit_gpus: int = 8
    spares: float = 0.0
    checkpoint_s: float = 1800.0
    restart_s: float = 300.0


@dataclass(frozen=True)
class Lattice:
    """GPUs in a line, in rows and columns, or in more dimensions, of which jobs have blocks that share
    nothing. ``name``: for messages. ``round_ends``: whether blocks go round the ends. ``needed``: whether a
    job on GPUs that are no block cannot run; else such a job takes them by number alone."""

    name: str
    sides: tuple[int, ...]
    round_ends: bool = True
    needed: bool = True

    def orders(self, gpus: int, shape: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """Return the sides that a job's block may have, the preferred first; [] if no block fits.

        These are the sides of the job's ``shape`` in any order, if the shape has as many dimensions as the
        lattice. Otherwise all sides that make so many GPUs, the squarest first.
        """
        if len(shape) == len(self.sides):
            boxes = list(dict.fromkeys(itertools.permutations(shape)))
        else:
            boxes = sorted(
                _boxes(gpus, len(self.sides)),
                key=lambda box: (max(box) - min(box), box),
            )
        return [
            box
            for box in boxes
            if all(a <= b for a, b in zip(box, self.sides, strict=True))
        ]


def _boxes(cells: int, dimensions: int) -> list[tuple[int, ...]]:
    """Return all boxes of so many cells."""
    if dimensions == 1:
        return [(cells,)]
    sides = [side for side in range(1, cells + 1) if cells % side == 0]
    return [
        (side, *rest)
        for side in sides
        for rest in _boxes(cells // side, dimensions - 1)
    ]


class Slices(Protocol):
    """Units of GPUs of which a job has whole ones: any that are free, as light joins them.

    Units have names; those of a job belong together as a shape, of which ``cubes`` is their number.
    """

    def shape_for(self, gpus: int, sides: Sequence[int] = ()) -> Any:
        """Return the shape of a job of so many GPUs, with the ``sides`` that it requests."""

    def fits(self, shape: Any) -> bool:
        """Return whether enough units are free."""

    def chosen(self, shape: Any) -> tuple[str, ...]:
        """Return free units for a shape that fits."""

    def take(self, name: str, shape: Any, cubes: Sequence[str]) -> None:
        """Give units to a job, by its name."""

    def give(self, name: str) -> None:
        """Take all units from a job."""


@dataclass(frozen=True)
class Cluster:
    """``gpus``: of each leaf, a switch. ``parts``: of each level, the part that each leaf is in; the first
    level's parts are the leaves. ``capacity``: of each level, what can leave each of its parts, and come in,
    as GPUs' rates; above the last level nothing is short. ``names``: of the leaves. ``lattice``: where jobs
    have blocks; then it has one leaf. ``slices``: makes the units of which jobs have whole ones; each is a leaf,
    by its name.
    """

    gpus: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    capacity: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()
    lattice: Lattice | None = None
    slices: Callable[[], Slices] | None = field(default=None, kw_only=True)

    @property
    def size(self) -> int:
        """All GPUs."""
        return sum(self.gpus)

    @cached_property
    def first_link(self) -> tuple[int, ...]:
        """The number of the first link of each level, where links are counted through."""
        return tuple(itertools.accumulate(map(len, self.capacity), initial=0))[:-1]

    @cached_property
    def links(self) -> FloatArray:
        """Capacity of all links, level after level, in units of a GPU's rate."""
        # Here, as processes of a lab know planes and compute nothing with them.
        import numpy as np

        return np.array([rate for level in self.capacity for rate in level])

    def loads(
        self, placed: Mapping[int, int], once_round: bool
    ) -> list[tuple[int, float]]:
        """Return the links that a job's GPUs share, each with the load while the job sends, in GPUs' rates.

        ``placed``: GPUs by leaf. A ``ring`` in the order of switches leaves each part once. Otherwise each
        GPU sends as much to every other: of a part's k GPUs out of n the rate k (n - k) / (n - 1) leaves.
        """
        total = sum(placed.values())
        loads: list[tuple[int, float]] = []
        if len(placed) < 2:
            return loads
        for first, parts in zip(self.first_link, self.parts, strict=True):
            inside: defaultdict[int, int] = defaultdict(int)
            for leaf, count in placed.items():
                inside[parts[leaf]] += count
            if len(inside) == 1:
                break
            for part, count in inside.items():
                loads.append(
                    (
                        first + part,
                        1.0 if once_round else count * (total - count) / (total - 1),
                    )
                )
        return loads

    def ring_loads(self, leaves: Sequence[int]) -> list[tuple[int, float]]:
        """Return the links and loads of a ring through GPUs in order, each of them on one of ``leaves``.

        The load of a link is as many GPUs' rates as the ring has edges out of the part.
        """
        loads: list[tuple[int, float]] = []
        for first, parts in zip(self.first_link, self.parts, strict=True):
            leave = Counter(a for a, _ in _edges([parts[leaf] for leaf in leaves]))
            loads += [(first + part, float(edges)) for part, edges in leave.items()]
        return loads


def _edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of a ring that lead from one part to another."""
    return [(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True) if a != b]


@dataclass(frozen=True)
class LitCluster(Cluster):
    """A cluster of parts that circuits through an optical switch join, pair by pair, and nothing else.

    ``joined``: the part that each leaf is in; ``ports``: how many circuits may end at each part, any of one
    with any of another; ``circuit``: what one carries, as GPUs' rates; ``lit_circuits``: how many join each
    pair at first, in the order of ``pairs``. A job's parts send each other what their GPUs do, straight.
    """

    joined: tuple[int, ...] = ()
    ports: int = 0
    circuit: float = 1.0
    lit_circuits: tuple[int, ...] = ()

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All pairs of parts."""
        return tuple(itertools.combinations(range(max(self.joined) + 1), 2))

    @cached_property
    def first_pair(self) -> int:
        """The number of the link that the first pair's circuits are together."""
        return sum(map(len, self.capacity))

    @cached_property
    def _number(self) -> dict[tuple[int, int], int]:
        return {
            pair: self.first_pair + number for number, pair in enumerate(self.pairs)
        }

    @cached_property
    def links(self) -> FloatArray:
        """Capacity of all links, the circuits between pairs last, in units of a GPU's rate."""
        import numpy as np

        below = [rate for level in self.capacity for rate in level]
        return np.array(
            [*below, *(count * self.circuit for count in self.lit_circuits)]
        )

    def loads(
        self, placed: Mapping[int, int], once_round: bool
    ) -> list[tuple[int, float]]:
        loads = super().loads(placed, once_round)
        inside: dict[int, int] = {}
        for leaf in sorted(placed):
            inside[self.joined[leaf]] = inside.get(self.joined[leaf], 0) + placed[leaf]
        if len(inside) < 2:
            return loads
        total, parts = sum(placed.values()), list(inside)
        if once_round:
            return loads + self._on_circuits(parts)
        return loads + [
            (self._number[a, b], inside[a] * inside[b] / (total - 1))
            for a, b in itertools.combinations(parts, 2)
        ]

    def ring_loads(self, leaves: Sequence[int]) -> list[tuple[int, float]]:
        return super().ring_loads(leaves) + self._on_circuits(
            [self.joined[leaf] for leaf in leaves]
        )

    def _on_circuits(self, ring: Sequence[int]) -> list[tuple[int, float]]:
        """Return the load that a ring puts on circuits, in GPUs' rates.

        Circuits carry as much each way, so the load is the greater of both ways.
        """
        edges = Counter(_edges(ring))
        pairs = dict.fromkeys((min(edge), max(edge)) for edge in edges)
        return [
            (self._number[a, b], float(max(edges[a, b], edges[b, a]))) for a, b in pairs
        ]
