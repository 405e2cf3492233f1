"""WRHT: all-reduce along a tree of groups on a ring of wavelengths (Dai et al., Wavelength Reused
Hierarchical Tree).

Nodes in ring order are cut into groups of m neighbours. All members send their whole vector to the node in
the middle of their group, their representative, at once: floor(m/2) come from one side, each on a wavelength
of its own, and the groups lie side by side, so they all use the same wavelengths. Hence m <= 2w + 1. The
representatives form groups of m in turn, until one is left; then the sum goes back the same way. That is
2L steps of the whole vector, L = ceil(log_m n). Where the wavelengths allow, the representatives of the top
level exchange all to all instead, which takes one step less.

The exchange among k representatives uses k^2/8 wavelengths (rounded up; (k^2 - 1)/8 for odd k), which is
the least that the load on the segments permits: see :func:`exchange_lightpaths`. It is off unless asked
for, because each representative then adds the same vectors in another order, and with more than two of them
the last bits of their sums may differ.

A lightpath reaches only so far (insertion loss). What ``reach`` in segments does is a heuristic of ours, not
the paper's: groups are made small enough; if even neighbouring representatives are further apart, groups
are of three and the vector goes from relay to relay, one step for each. Relays have already given their own
vector away, so nothing is lost. Other relays may take fewer steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from ringlight.fabric.steps import Op, Step, Steps, frozen, frozen_bool

Top = Literal["collect", "exchange"]


class Lightpath(NamedTuple):
    """Lightpath between two nodes on a wavelength; ``clockwise`` is towards the next higher number."""

    source: int
    destination: int
    wavelength: int
    clockwise: bool


@dataclass(frozen=True)
class Level:
    """One level of the tree: its groups of nodes, and the lightpaths of each step inwards.

    ``exchange``: the groups' only one exchanges all to all, and nothing has to be sent back.
    """

    groups: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[Lightpath, ...], ...]
    exchange: bool


@dataclass(frozen=True)
class WrhtPlan:
    """WRHT of ``nodes`` nodes on a ring with ``wavelengths`` channels in each direction."""

    nodes: int
    wavelengths: int
    group: int
    levels: tuple[Level, ...]

    @property
    def steps(self) -> int:
        return sum(
            len(level.steps) * (1 if level.exchange else 2) for level in self.levels
        )

    @property
    def buffer_vectors(self) -> int:
        """Most whole vectors that one node receives in one step: what it must hold or add at once."""
        most = 0
        for level in self.levels:
            for step in level.steps:
                into: dict[int, int] = {}
                for path in step:
                    into[path.destination] = into.get(path.destination, 0) + 1
                most = max([most, *into.values()])
        return most

    @property
    def longest_segments(self) -> int:
        """Segments of the longest lightpath: the reach that the schedule needs."""
        return max((_segments(path, self.nodes) for path in self._paths()), default=0)

    def _paths(self) -> Iterator[Lightpath]:
        return (path for level in self.levels for step in level.steps for path in step)


# Points of a sweep that follow each other often have the same tree, of thousands of lightpaths.
@lru_cache(maxsize=8)
def plan(
    nodes: int,
    wavelengths: int,
    group: int | None = None,
    top: Top = "collect",
    reach: int | None = None,
) -> WrhtPlan:
    """Return the tree of groups and their lightpaths.

    ``group``: m, by default as large as the wavelengths allow. ``top="exchange"`` takes the all-to-all step
    as soon as the wavelengths (and the reach) allow it, else collects. ``reach``: segments that a lightpath
    may pass, None without limit. Raises ValueError naming the number that does not fit.
    """
    if nodes < 1:
        raise ValueError(f"WRHT needs at least one rank, not {nodes}")
    if wavelengths < 1:
        raise ValueError(f"WRHT needs at least one wavelength, not {wavelengths}")
    if reach is not None and reach < 1:
        raise ValueError(f"a reach of {reach} segments joins nothing")
    most = 2 * wavelengths + 1
    m = max(2, min(most, nodes)) if group is None else group
    if m < 2:
        raise ValueError(f"groups of {m}: a group has at least 2 nodes")
    if m > most:
        raise ValueError(
            f"groups of {m} need {m // 2} wavelengths in each direction; the ring has {wavelengths}"
        )
    levels = []
    present = list(range(nodes))
    while len(present) > 1:
        if top == "exchange" and exchange_wavelengths(len(present)) <= wavelengths:
            paths = exchange_lightpaths(present)
            if reach is None or all(_segments(path, nodes) <= reach for path in paths):
                levels.append(Level((tuple(present),), (tuple(paths),), True))
                break
        spacing = max(b - a for a, b in itertools.pairwise(present))
        size = m if reach is None else min(m, max(3, 2 * (reach // spacing) + 1))
        level = _collect(present, size, reach)
        levels.append(level)
        present = [members[len(members) // 2] for members in level.groups]
    return WrhtPlan(nodes, wavelengths, m, tuple(levels))


def _collect(present: Sequence[int], size: int, reach: int | None) -> Level:
    groups = [tuple(present[i : i + size]) for i in range(0, len(present), size)]
    ways = []
    for group in groups:
        centre = len(group) // 2
        for index, node in enumerate(group):
            if index != centre:
                ways.append(
                    (_relays(node, group[centre], reach), abs(index - centre) - 1)
                )
    hops = max(len(way) - 1 for way, _ in ways)
    steps: list[list[Lightpath]] = [[] for _ in range(hops)]
    for way, wavelength in ways:
        # All arrive in the last step, so that it alone adds and the others only pass on.
        start = hops - (len(way) - 1)
        for number, (a, b) in enumerate(itertools.pairwise(way), start):
            steps[number].append(Lightpath(a, b, wavelength, a < b))
    return Level(tuple(groups), tuple(tuple(step) for step in steps), False)


def _relays(node: int, centre: int, reach: int | None) -> list[int]:
    """Return the nodes at which the vector stops on its way along the line, both ends included."""
    if reach is None:
        return [node, centre]
    way = range(node, centre, reach if node < centre else -reach)
    return [*way, centre]


def _segments(path: Lightpath, nodes: int) -> int:
    forward = (path.destination - path.source) % nodes
    return forward if path.clockwise else nodes - forward


def exchange_wavelengths(k: int) -> int:
    """Return the wavelengths per direction for all-to-all among k nodes of a ring.

    These are ceil(k^2/8), for odd k (k^2-1)/8.
    """
    return (k * k - 1) // 8 if k % 2 else -(-k * k // 8)


def exchange_lightpaths(nodes: Sequence[int]) -> list[Lightpath]:
    """Return a lightpath from each of ``nodes`` (in ring order) to every other, on the fewest wavelengths.

    By induction: take the first node A, the node B opposite, and the all-to-all among the others. A node x
    between A and B talks to both on one wavelength: A to x to B clockwise, B to x to A counter-clockwise. A
    node y on the other side uses the other half of that wavelength. With an odd number of nodes one side has
    a node less, and its half serves A and B themselves; with an even number A and B take one fibre's whole
    turn on a further wavelength, the clockwise and the other in turn.
    """
    paths: list[Lightpath] = []
    used = 0
    half_free: int | None = None
    # From the innermost pair outwards: the order in which wavelengths are handed out.
    rings = [list(nodes)]
    while len(rings[-1]) > 1:
        inner = rings[-1]
        rings.append([x for i, x in enumerate(inner) if i not in (0, len(inner) // 2)])
    for members in reversed(rings):
        k = len(members)
        if k < 2:
            continue
        a, b = members[0], members[k // 2]
        near, far = members[1 : k // 2], members[k // 2 + 1 :]
        for index in range(max(len(near), len(far))):
            lane = used + index
            for side, start, end in ((near, a, b), (far, b, a)):
                if index < len(side):
                    x = side[index]
                    paths += [
                        Lightpath(start, x, lane, True),
                        Lightpath(x, end, lane, True),
                    ]
                    paths += [
                        Lightpath(end, x, lane, False),
                        Lightpath(x, start, lane, False),
                    ]
        used += max(len(near), len(far))
        if k % 2:
            # ``near`` has one node less than ``far``: its half of the last wavelength is free.
            paths += [Lightpath(a, b, used - 1, True), Lightpath(b, a, used - 1, False)]
        elif half_free is None:
            paths += [Lightpath(a, b, used, True), Lightpath(b, a, used, True)]
            half_free, used = used, used + 1
        else:
            paths += [
                Lightpath(a, b, half_free, False),
                Lightpath(b, a, half_free, False),
            ]
            half_free = None
    return paths


def wrht(
    nodes: int,
    wavelengths: int = 1,
    group: int | None = None,
    top: Top = "collect",
    reach: int | None = None,
) -> Steps:
    """Return WRHT as a schedule; rank i is the ring's node i. The arguments are those of :func:`plan`.

    Raises ValueError naming the number that does not fit.
    """
    tree = plan(nodes, wavelengths, group, top, reach)

    def make() -> Iterator[Step]:
        for level in tree.levels:
            for number, paths in enumerate(level.steps, start=1):
                yield _step(
                    paths, "reduce" if number == len(level.steps) else "replace"
                )
        for level in reversed(tree.levels):
            if not level.exchange:
                for paths in reversed(level.steps):
                    yield _step([_back(path) for path in paths], "replace")

    return Steps("wrht", nodes, 1, tree.steps, make)


def _back(path: Lightpath) -> Lightpath:
    return Lightpath(path.destination, path.source, path.wavelength, not path.clockwise)


def _step(paths: Sequence[Lightpath], op: Op) -> Step:
    return Step(
        frozen([path.source for path in paths]),
        frozen([path.destination for path in paths]),
        frozen([0] * len(paths)),
        frozen([1] * len(paths)),
        op,
        frozen([path.wavelength for path in paths]),
        frozen_bool([path.clockwise for path in paths]),
    )
