"""Assign wavelengths to pairs in a two-dimensional grid of wavelength-selective switches (ODDL).

Every row and every column of the grid is one WSS; a grid of one row (or one column) is one WSS, and its nodes
have one port. With at least as many wavelengths as ports a WSS is a Latin square: position i reaches position
j on wavelength (j - i) mod W. So for each wavelength the switch is a partial matching, and from one position
every other is reached on a wavelength of its own, whatever the others do; wavelength 0 would lead back to the
sender and is not used.

With fewer wavelengths a WSS is set for what the job will send: the pairs that its collective uses, each both
ways, are coloured so that no two of one sender, and no two of one receiver, have the same wavelength. That
takes as many wavelengths as a node has partners on that WSS (König, 1916). So four nodes on one WSS do
halving-doubling on two wavelengths, one for the partner i XOR 1 and one for i XOR 2, and the prototype of Li
et al., OFC 2024, has two; the paper does not say which of them leads to which node.

With row-major ranks on a grid whose sides are powers of two, rank i and rank i XOR 2^k share a row or a
column: every step of halving-doubling is one optical hop (Li et al., OFC 2024, use this layout).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringlight.controller.onic.reach import Reach
from ringlight.extensions.oddl.grid import Grid, lines, sockets
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.light import received_dbm
from ringlight.fabric.steps import Pair, Steps, pairs_of
from ringlight.fabric.topology import Fabric

#: For each node the peers that it reaches in one hop, and how.
Ways = Mapping[str, Mapping[str, Reach]]


def is_latin(grid: Grid) -> bool:
    """Return whether the wavelengths suffice for every node to reach its whole row and column at any time.

    If not, the WSSs are set for the pairs that a job's collective uses.
    """
    return grid.wavelengths >= max(grid.rows, grid.columns)


def colour_pairs(pairs: Iterable[Pair]) -> dict[Pair, int]:
    """Return a colour from 0 for each pair.

    No two pairs of one sender, and no two of one receiver, have the same colour. There are as many colours as
    the most pairs that one node sends or receives. In the order given a pair has the first colour that is
    free at both ends. If there is none, the pairs on an alternating path from its receiver change colours
    (the proof of König's theorem). Time O(pairs * nodes). A pair given twice counts once.
    """
    distinct = tuple(dict.fromkeys(pairs))
    senders, receivers = (Counter(pair[end] for pair in distinct) for end in (0, 1))
    colours = range(max([*senders.values(), *receivers.values()], default=0))
    peer: tuple[dict[tuple[str, int], str], dict[tuple[str, int], str]] = ({}, {})
    for sender, receiver in distinct:
        free = [
            [k for k in colours if (n, k) not in peer[end]]
            for end, n in ((0, sender), (1, receiver))
        ]
        common = next((k for k in free[0] if k in free[1]), None)
        if common is None:
            common, other = free[0][0], free[1][0]
            # The path takes colour ``common`` from the receiver, then ``other``, in turn; it ends, and never
            # at the sender, which has no pair of colour ``common`` to come by.
            path, end, node = [], 1, receiver
            for colour in itertools.cycle((common, other)):
                partner = peer[end].get((node, colour))
                if partner is None:
                    break
                path.append((end, node, partner, colour))
                end, node = 1 - end, partner
            for end, node, partner, colour in path:
                del peer[end][node, colour], peer[1 - end][partner, colour]
            for end, node, partner, colour in path:
                swapped = other if colour == common else common
                peer[end][node, swapped], peer[1 - end][partner, swapped] = (
                    partner,
                    node,
                )
        peer[0][sender, common], peer[1][receiver, common] = receiver, sender
    return {
        (sender, receiver): colour for (sender, colour), receiver in peer[0].items()
    }


def wavelength_map(
    grid: Grid, nodes: Sequence[str], pairs: Collection[Pair] | None = None
) -> dict[str, dict[str, Reach]]:
    """Return the peers that each of a job's nodes reaches in one hop, and how; only pairs inside the job.

    On a grid with fewer wavelengths than a WSS has ports, these are only ``pairs``, each both ways;
    wavelengths are given away in the order of the pairs. Raises ValueError naming a node that the grid does
    not have or that is named twice. On such a grid it also names a pair that shares neither row nor column, a
    sender or receiver outside the job, and a WSS whose wavelengths are too few.
    """
    rows: dict[int, dict[int, str]] = {}
    columns: dict[int, dict[int, str]] = {}
    places = {
        node: divmod(index, grid.columns) for index, node in enumerate(grid.nodes)
    }
    for node in nodes:
        if node not in places:
            raise ValueError(f"grid {grid.name} has no node {node}")
        row, column = places[node]
        if column in rows.setdefault(row, {}):
            raise ValueError(f"node {node} is named twice")
        rows[row][column] = node
        columns.setdefault(column, {})[row] = node
    reaches: dict[str, dict[str, Reach]] = {node: {} for node in nodes}
    if not is_latin(grid):
        return _coloured(grid, places, reaches, pairs)
    by_line = {"row": rows, "column": columns}
    wavelengths = grid.wavelengths
    for port, name in enumerate(lines(grid)):
        ways = [Reach(port, wavelength) for wavelength in range(wavelengths)]
        for line in by_line[name].values():
            for i, a in line.items():
                of_a = reaches[a]
                for j, b in line.items():
                    if i != j:
                        of_a[b] = ways[(j - i) % wavelengths]
    return reaches


def _coloured(
    grid: Grid,
    places: Mapping[str, tuple[int, int]],
    reaches: dict[str, dict[str, Reach]],
    pairs: Collection[Pair] | None,
) -> dict[str, dict[str, Reach]]:
    if pairs is None:
        raise ValueError(
            f"grid {grid.name} has {grid.wavelengths} wavelengths for WSSs of {max(grid.rows, grid.columns)} "
            "ports: its light is set for a collective, and none is given"
        )
    port_of = {name: port for port, name in enumerate(lines(grid))}
    by_switch: dict[tuple[str, int], list[Pair]] = {}
    for a, b in pairs:
        for node in (a, b):
            if node not in reaches:
                raise ValueError(f"node {node} is not one of the job's")
        line = _line(places[a], places[b])
        if line is None:
            raise ValueError(f"{a} and {b} share neither row nor column")
        # Both ways: an agent grants light only to those that its own map has.
        by_switch.setdefault((line, places[a][0 if line == "row" else 1]), []).extend(
            [(a, b), (b, a)]
        )
    for (line, index), mine in by_switch.items():
        coloured = colour_pairs(mine)
        needed = 1 + max(coloured.values())
        if needed > grid.wavelengths:
            raise ValueError(
                f"grid {grid.name}: the job needs {needed} wavelengths in {line} {index}, one for each "
                f"partner of a node; there are {grid.wavelengths}"
            )
        for (a, b), wavelength in coloured.items():
            reaches[a][b] = Reach(port_of[line], wavelength)
    return reaches


def _line(a: tuple[int, int], b: tuple[int, int]) -> str | None:
    """Return ``row`` or ``column``, whichever two places have in common.

    Return None if they have none or are equal.
    """
    if a == b or (a[0] != b[0] and a[1] != b[1]):
        return None
    return "row" if a[0] == b[0] else "column"


def check_power(fabric: Fabric, grid: Grid) -> None:
    """Check that light through one WSS of the grid leaves its receiver enough power.

    Raises ValueError naming the power.
    """
    optics = fabric.optics
    switch = fabric.optical_switches[(*grid.row_switches, *grid.column_switches)[0]]
    power_dbm = received_dbm(
        optics.launch_dbm, [switch.insertion_loss_db, *[optics.fibre_db] * 2]
    )
    if not optics.reads(power_dbm):
        raise ValueError(
            f"grid {grid.name}: light through WSS {switch.name} arrives with {power_dbm:.2f} dBm, less than "
            f"the receivers' {optics.sensitivity_dbm:g} dBm"
        )


def cross_connects(
    grid: Grid, fabric: Fabric, ways: Ways
) -> dict[str, frozenset[CrossConnect]]:
    """Return the cross-connects that a wavelength map needs, by WSS; nothing else is let through.

    Only switches that carry something have an entry. Raises ValueError naming a node that the grid does not
    have, and if :func:`check_power` does.
    """
    check_power(fabric, grid)
    groups: dict[str, set[CrossConnect]] = {}
    faceplates = {node: sockets(grid, node) for node in ways}
    for a, peers in ways.items():
        for b, way in peers.items():
            near, far = faceplates[a][way.port], faceplates[b][way.port]
            switch = fabric.optical_switches[near.node]
            groups.setdefault(near.node, set()).add(
                CrossConnect(
                    switch.ingress(near.number),
                    switch.egress(far.number),
                    way.wavelength,
                )
            )
    return {name: frozenset(group) for name, group in groups.items()}


def choose_nodes(grid: Grid, free: Collection[str], count: int) -> tuple[str, ...]:
    """Return a rectangular sub-grid of ``count`` free nodes, row-major.

    The squarest rectangle is preferred, then the topmost and leftmost. If ``count`` is a power of two both
    sides are. Raises ValueError naming what does not fit.
    """
    if count < 1:
        raise ValueError(f"a job needs at least one node, not {count}")
    free_nodes = frozenset(free)
    usable = [node in free_nodes for node in grid.nodes]
    if sum(usable) < count:
        raise ValueError(
            f"grid {grid.name} has {sum(usable)} free nodes of {len(usable)}, not {count}"
        )
    sides = [
        (height, count // height)
        for height in range(1, grid.rows + 1)
        if count % height == 0 and count // height <= grid.columns
    ]
    if not sides:
        raise ValueError(
            f"{count} nodes do not make a rectangle in grid {grid.name} of {grid.rows} × {grid.columns}"
        )
    for height, width in sorted(sides, key=_preference):
        for top in range(grid.rows - height + 1):
            for left in range(grid.columns - width + 1):
                cells = [
                    (top + row) * grid.columns + left + column
                    for row in range(height)
                    for column in range(width)
                ]
                if all(usable[cell] for cell in cells):
                    return tuple(grid.nodes[cell] for cell in cells)
    shapes = ", ".join(
        f"{height} × {width}" for height, width in sorted(sides, key=_preference)
    )
    raise ValueError(
        f"grid {grid.name}: no rectangle of {count} free nodes ({shapes}) is left"
    )


def _preference(sides: tuple[int, int]) -> tuple[int, int]:
    height, width = sides
    return abs(height - width), height


def ways_for(
    grid: Grid, ranks: Sequence[str], steps: Steps
) -> dict[str, dict[str, Reach]]:
    """Return the wavelength map of a job whose ranks run this collective, every transfer one optical hop.

    Raises ValueError if :func:`wavelength_map` or :func:`check_steps` does.
    """
    ways = wavelength_map(grid, ranks, pairs_of(ranks, steps))
    check_steps(ways, ranks, steps)
    return ways


def check_steps(ways: Ways, ranks: Sequence[str], steps: Steps) -> None:
    """Check that every transfer of a collective is one optical hop between ``ranks`` (node names by rank).

    Raises ValueError naming the ranks that share neither row nor column, or a world size that differs.
    """
    number = {node: rank for rank, node in enumerate(ranks)}
    for a, b in pairs_of(ranks, steps):
        if b not in ways[a]:
            raise ValueError(
                f"ranks {number[a]} and {number[b]} ({a}, {b}) share neither row nor column"
            )


@dataclass(frozen=True)
class LightUse:
    """Use of the lasers and receivers (one of each at an O-NIC port) by one all-reduce, counted without a
    run.

    ``receivers``: receivers to which any node sends; ``contended``: receivers with more than one sender, for
    which two flows may compete; ``senders``: the most of one receiver. ``lasers``: lasers that send;
    ``tuned``: lasers with more than one wavelength; ``retunes``: changes of wavelength from one flow to the
    next, of all lasers together, the change back to the first flow of the next all-reduce included.
    """

    receivers: int
    contended: int
    senders: int
    lasers: int
    tuned: int
    retunes: int

    @property
    def collisions_possible(self) -> bool:
        """Return whether a wrong grant could let two lights meet. If not, 0 collisions prove nothing."""
        return self.contended > 0

    def __add__(self, other: LightUse) -> LightUse:
        """Add the light of two jobs that share no node."""
        return LightUse(
            self.receivers + other.receivers,
            self.contended + other.contended,
            max(self.senders, other.senders),
            self.lasers + other.lasers,
            self.tuned + other.tuned,
            self.retunes + other.retunes,
        )

    def __str__(self) -> str:
        """One sentence for people."""
        retuned = f"{self.tuned} of {self.lasers} lasers change their wavelength"
        retuned += (
            f", together {self.retunes} times in an all-reduce" if self.retunes else ""
        )
        if not self.contended:
            why = "every receiver hears one sender only"
            return f"Collisions are impossible by construction, as {why}; {retuned}."
        return (
            f"{self.contended} of {self.receivers} receivers can be contended, by {self.senders} senders at "
            f"most, so that none collide is the agents' work; {retuned}."
        )


def light_use(ways: Ways, ranks: Sequence[str], steps: Steps) -> LightUse:
    """Return the counts for a collective whose ranks reach each other by ``ways``.

    A receiver that hears one sender only, on the one wavelength which that sender's laser keeps, cannot have
    a collision whatever the agents do: 2 × 2 nodes that do halving-doubling are such a case, four nodes on
    one WSS are none. Raises ValueError if :func:`check_steps` does.
    """
    check_steps(ways, ranks, steps)
    senders: dict[tuple[str, int], set[str]] = {}
    sent: dict[tuple[str, int], list[int]] = {}
    for step in steps:
        for source, destination in zip(
            step.sources.tolist(), step.destinations.tolist(), strict=True
        ):
            a, b = ranks[source], ranks[destination]
            way = ways[a][b]
            senders.setdefault((b, way.port), set()).add(a)
            sent.setdefault((a, way.port), []).append(way.wavelength)
    counts = [len(group) for group in senders.values()]
    changes = [
        sum(x != y for x, y in zip(seen, [*seen[1:], seen[0]], strict=True))
        for seen in sent.values()
    ]
    return LightUse(
        receivers=len(counts),
        contended=sum(count > 1 for count in counts),
        senders=max(counts, default=0),
        lasers=len(sent),
        tuned=sum(len(set(seen)) > 1 for seen in sent.values()),
        retunes=sum(changes),
    )
