"""Slurm's topology.conf, of the plug-ins topology/tree and topology/block: read and written.

The format: topology.conf(5) of Slurm 22.05 for trees, of 23.11 and newer for blocks. ``slurm_yaml`` is the
file that takes its place in 25.05.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ringlight.extensions.interchange.hostlists import Hostlists, fold

#: Most characters of a switch's name in Slurm.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True)
class NodeTopology:
    """Nodes of a scheduler by what joins them.

    ``leaves``: the nodes of each leaf switch, or of each block, in order. ``parents``: by a switch, the
    switch above it; one without is a top. ``block_sizes``: sizes of blocks, smallest first, where the leaves
    are blocks; empty for a tree.
    """

    leaves: Mapping[str, tuple[str, ...]]
    parents: Mapping[str, str] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = ()

    def children(self) -> dict[str, list[str]]:
        """Return the switches below each switch that is no leaf, those above before those below."""
        below: dict[str, list[str]] = {}
        for child, parent in self.parents.items():
            below.setdefault(parent, []).append(child)
        ordered: dict[str, list[str]] = {}
        waiting = [name for name in below if name not in self.parents]
        while waiting:
            name = waiting.pop(0)
            ordered[name] = below[name]
            waiting += [child for child in below[name] if child in below]
        return ordered


class TopologyFileError(ValueError):
    """A topology file that cannot be used; one line with the file and the line or key."""


def check(topology: NodeTopology) -> None:
    """Raise ValueError naming what Slurm would not take: a switch, a node or a block size."""
    names = dict.fromkeys((*topology.leaves, *topology.parents.values()))
    for name in names:
        if _NAME.fullmatch(name) is None:
            what = f"a switch's name has 1 to {LONGEST_NAME} letters, digits, _ . -"
            raise ValueError(f"{name!r:.80}: {what}")
    switch_of: dict[str, str] = {}
    for leaf, nodes in topology.leaves.items():
        if not nodes:
            raise ValueError(f"{leaf}: it has no nodes")
        for node in nodes:
            if node in switch_of:
                raise ValueError(f"{leaf}: node {node} is on {switch_of[node]}, too")
            switch_of[node] = leaf
    for child, parent in topology.parents.items():
        if parent in topology.leaves:
            raise ValueError(f"{parent}: it has nodes, and the switch {child} below it")
        if child not in names:
            raise ValueError(f"{parent}: there is no switch {child}")
    reached = topology.children()
    for child, parent in topology.parents.items():
        if parent not in reached:
            raise ValueError(f"{parent}: it is above itself, by way of {child}")
    if topology.block_sizes:
        _check_blocks(topology)


def _check_blocks(topology: NodeTopology) -> None:
    base = topology.block_sizes[0]
    sizes = topology.block_sizes
    if base < 1 or list(sizes) != sorted(set(sizes)):
        raise ValueError("BlockSizes: give sizes from 1, each larger than the last")
    for size in sizes:
        times, rest = divmod(size, base)
        if rest or times & (times - 1):
            raise ValueError(f"BlockSizes: {size} is no power of two times {base}")
    if topology.parents:
        raise ValueError(f"{min(topology.parents)}: a block has no switch above it")
    for block, nodes in topology.leaves.items():
        if len(nodes) < base:
            few = f"{len(nodes)} nodes, fewer than the base size {base}"
            raise ValueError(f"{block}: it has {few}")


def block_sizes(topology: NodeTopology) -> tuple[int, ...]:
    """Return sizes for a topology's leaves as blocks: the smallest leaf, and doubled up to the number of leaves.

    As topograph infers them (NVIDIA/topograph, pkg/translate).
    """
    base = min(map(len, topology.leaves.values()), default=1)
    most = max(len(topology.leaves), 1).bit_length()
    return tuple(base << power for power in range(most))


def write_conf(topology: NodeTopology, comments: Iterable[str] = ()) -> str:
    """Return the text of a topology.conf, of blocks if it has block sizes. Raises ValueError as :func:`check`."""
    check(topology)
    key = "BlockName" if topology.block_sizes else "SwitchName"
    lines = [f"# {comment}" for comment in comments]
    lines += (f"{key}={leaf} Nodes={fold(n)}" for leaf, n in topology.leaves.items())
    upper = list(topology.children().items())
    lines += (f"SwitchName={n} Switches={fold(c)}" for n, c in reversed(upper))
    if topology.block_sizes:
        lines.append(f"BlockSizes={','.join(map(str, topology.block_sizes))}")
    return "\n".join(lines) + "\n"


def read_conf(text: str, file: str = "topology.conf") -> NodeTopology:
    """Return the tree or the blocks of a topology.conf; ``LinkSpeed``, which Slurm does not use, is left out.

    Raises TopologyFileError.
    """
    reading = _Reading(file)
    for number, line in _lines(text):
        reading.take(f"{file}: line {number}", line)
    topology = reading.topology()
    try:
        check(topology)
    except ValueError as error:
        name = str(error).partition(":")[0]
        where = reading.places.get(name, file)
        raise TopologyFileError(f"{where}: {error}") from None
    return topology


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with something on them, comments removed and continued lines joined, by number."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        first = first or number
        if content.endswith("\\"):
            pending += content[:-1] + " "
            continue
        if pending + content:
            yield first, pending + content
        pending, first = "", 0
    if pending.strip():
        yield first, pending


#: Keys of topology.conf as written, by lower case.
_KEYS = {
    key.lower(): key
    for key in (
        "SwitchName",
        "Nodes",
        "Switches",
        "LinkSpeed",
        "BlockName",
        "BlockSizes",
    )
}


@dataclass
class _Reading:
    """Lines that were read so far. ``places``: file and line, by a switch or BlockSizes."""

    file: str
    places: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, tuple[str, ...]] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    kinds: Counter[str] = field(default_factory=Counter)
    hostlists: Hostlists = field(default_factory=Hostlists)

    def take(self, where: str, line: str) -> None:
        """Read a line. Raises TopologyFileError."""
        values: dict[str, str] = {}
        for word in line.split():
            written, equals, value = word.partition("=")
            key = _KEYS.get(written.lower())
            if not equals or key is None:
                there = ", ".join(_KEYS.values())
                raise _problem(where, f"{written!r:.60}: unknown key; keys are {there}")
            if key in values:
                raise _problem(where, f"{key}: given twice")
            values[key] = value.strip('"')
        key = next(iter(values))
        if key not in ("SwitchName", "BlockName", "BlockSizes"):
            raise _problem(where, f"{key}: a line begins with SwitchName or BlockName")
        name = values.pop(key)
        self.kinds["tree" if key == "SwitchName" else "block"] += 1
        if len(self.kinds) > 1:
            raise _problem(where, f"{key}: the file has switches and blocks; keep one")
        place = name if key != "BlockSizes" else key
        if place in self.places:
            raise _problem(where, f"{key}: {place} is on {self.places[place]}, too")
        self.places[place] = where
        if key == "BlockSizes":
            self.sizes = _sizes(where, name)
            return
        self._add(where, name, values, key)

    def _add(self, where: str, name: str, values: dict[str, str], key: str) -> None:
        values.pop("LinkSpeed", None)
        allowed = ("Nodes", "Switches") if key == "SwitchName" else ("Nodes",)
        if len(values) != 1 or next(iter(values)) not in allowed:
            raise _problem(where, f"{key}: {name} needs {' or '.join(allowed)}")
        ((kind, text),) = values.items()
        try:
            names = self.hostlists.expand(text)
        except ValueError as error:
            raise _problem(where, f"{kind}: {error}") from None
        if kind == "Nodes":
            self.leaves[name] = tuple(names)
        else:
            self.below[name] = names

    def topology(self) -> NodeTopology:
        """Return the topology of the lines. Raises TopologyFileError."""
        if not self.leaves:
            raise TopologyFileError(f"{self.file}: it has no switch or block of nodes")
        parents: dict[str, str] = {}
        for parent, children in self.below.items():
            for child in children:
                if child not in self.places:
                    missing = f"Switches: there is no switch {child}"
                    raise _problem(self.places[parent], missing)
                if child in parents:
                    other = f"{child} is below {parents[child]}, too"
                    raise _problem(self.places[parent], f"Switches: {other}")
                parents[child] = parent
        if self.kinds["block"] and not self.sizes:
            raise TopologyFileError(f"{self.file}: BlockSizes: missing")
        return NodeTopology(self.leaves, parents, self.sizes)


def _problem(where: str, what: str) -> TopologyFileError:
    return TopologyFileError(f"{where}: {what}")


def _sizes(where: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise _problem(where, f"BlockSizes: {text!r:.60} is no 3,6,12") from None
