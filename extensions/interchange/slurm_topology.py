"""Slurm's topology.conf, of the plug-ins topology/tree and topology/block: read and written.

The format: topology.conf(5) of Slurm 22.05 for trees, of 23.11 and newer for blocks. ``slurm_yaml`` is the
file that takes its place in 25.05.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringlight.extensions.interchange.hostlists import Hostlists, fold

#: Most characters of a switch's name in Slurm.
LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{LONGEST_NAME}}}")


@dataclass(frozen=True)
class NodeTopology:
    """Nodes of a scheduler by what joins them.

    ``leaves``: the nodes of each leaf switch, or of each block, in order. ``parents``: by a switch, the
    switch above it; one without is a top. ``besides``: by a switch, more switches above it, side by side with
    its parent, such as the spines of a leaf-spine fabric. ``block_sizes``: sizes of blocks, smallest first,
    where the leaves are blocks; empty for a tree.
    """

    leaves: Mapping[str, tuple[str, ...]]
    parents: Mapping[str, str] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = ()
    besides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def above(self, switch: str) -> tuple[str, ...]:
        """Return the switches above a switch; none for a top."""
        if switch not in self.parents:
            return ()
        return self.parents[switch], *self.besides.get(switch, ())

    def children(self) -> dict[str, list[str]]:
        """Return the switches below each switch that is no leaf, those above before those below."""
        below: dict[str, list[str]] = {}
        for child in self.parents:
            for parent in self.above(child):
                below.setdefault(parent, []).append(child)
        ordered: dict[str, list[str]] = {}
        missing = {child: len(self.above(child)) for child in self.parents}
        waiting = [name for name in below if name not in self.parents]
        while waiting:
            name = waiting.pop(0)
            ordered[name] = below[name]
            for child in below[name]:
                missing[child] -= 1
                if not missing[child] and child in below:
                    waiting.append(child)
        return ordered

    def upward(self) -> dict[str, list[str]]:
        """Return the switches below each switch that is no leaf, those below before those above."""
        below = self.children()
        depths: dict[str, int] = {}
        for name in below:
            depths[name] = 1 + max((depths[n] for n in self.above(name)), default=0)
        ordered = sorted(below, key=depths.__getitem__, reverse=True)
        return {name: below[name] for name in ordered}


class TopologyFileError(ValueError):
    """A topology file that cannot be used; one line with the file and the line or key."""


def check(topology: NodeTopology, *, empty: bool = False) -> None:
    """Raise ValueError naming what Slurm would not take: a switch, a node or a block size.

    ``empty``: whether a leaf may have no nodes.
    """
    reached = topology.children()
    pairs = [(c, parent) for c in topology.parents for parent in topology.above(c)]
    names = dict.fromkeys((*topology.leaves, *(parent for _, parent in pairs)))
    for name in names:
        if _NAME.fullmatch(name) is None:
            what = f"a switch's name has 1 to {LONGEST_NAME} letters, digits, _ . -"
            raise ValueError(f"{name!r:.80}: {what}")
    switch_of: dict[str, str] = {}
    for leaf, nodes in topology.leaves.items():
        if not nodes and not empty:
            raise ValueError(f"{leaf}: it has no nodes")
        for node in nodes:
            if node in switch_of:
                raise ValueError(f"{leaf}: node {node} is on {switch_of[node]}, too")
            switch_of[node] = leaf
    for child, parent in pairs:
        if parent in topology.leaves:
            raise ValueError(f"{parent}: it has nodes, and the switch {child} below it")
        if child not in names:
            raise ValueError(f"{parent}: there is no switch {child}")
    for child, parent in pairs:
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
    upper = topology.upward().items()
    lines += (f"SwitchName={name} Switches={fold(below)}" for name, below in upper)
    if topology.block_sizes:
        lines.append(f"BlockSizes={','.join(map(str, topology.block_sizes))}")
    return "\n".join(lines) + "\n"


def joined_by(
    leaves: Mapping[str, tuple[str, ...]], above: Mapping[str, Sequence[str]]
) -> NodeTopology:
    """Return the tree of these leaves. ``above``: by a switch, the switches above it, of which there are any."""
    parents = {name: switches[0] for name, switches in above.items()}
    besides = {name: tuple(s[1:]) for name, s in above.items() if len(s) > 1}
    return NodeTopology(leaves, parents, (), besides)


def blocks_of(
    leaves: Mapping[str, tuple[str, ...]], sizes: tuple[int, ...]
) -> NodeTopology:
    """Return blocks of these sizes; without sizes, which Slurm 25.05 permits, of those that are inferred."""
    filled = {name: nodes for name, nodes in leaves.items() if nodes}
    return NodeTopology(leaves, {}, sizes or block_sizes(NodeTopology(filled)))


@dataclass(frozen=True)
class ReadTopology:
    """A topology as read, and lines that name the parts of the file that it lacks."""

    nodes: NodeTopology
    dropped: tuple[str, ...] = ()


def with_nodes(topology: NodeTopology) -> ReadTopology:
    """Return a topology without the switches and blocks below which no node is, which are named.

    Raises ValueError if no node is left.
    """
    leaves = {leaf: nodes for leaf, nodes in topology.leaves.items() if nodes}
    if not leaves:
        raise ValueError("it has no switch or block of nodes")
    kept, waiting = set(leaves), list(leaves)
    while waiting:
        new = set(topology.above(waiting.pop())) - kept
        kept |= new
        waiting += new
    every = dict.fromkeys((*topology.leaves, *topology.parents, *topology.children()))
    above = {n: topology.above(n) for n in topology.parents if n in kept}
    nodes = replace(joined_by(leaves, above), block_sizes=topology.block_sizes)
    kind = "block" if topology.block_sizes else "switch"
    empty = (f"{kind} {n}, which has no nodes" for n in every if n not in kept)
    return ReadTopology(nodes, tuple(empty))


def read_conf(text: str, file: str = "topology.conf") -> ReadTopology:
    """Return the tree or the blocks of a topology.conf, or of ``scontrol show topology``, whose further keys
    are not read.

    Raises TopologyFileError.
    """
    reading = _Reading(file)
    for number, line in _lines(text):
        reading.take(f"{file}: line {number}", line)
    topology = reading.topology()
    try:
        check(topology, empty=True)
    except ValueError as error:
        name = str(error).partition(":")[0]
        where = reading.places.get(name, file)
        raise TopologyFileError(f"{where}: {error}") from None
    try:
        read = with_nodes(topology)
    except ValueError as error:
        raise TopologyFileError(f"{file}: {error}") from None
    return ReadTopology(read.nodes, (*reading.dropped(), *read.dropped))


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
#: Keys that ``scontrol show topology`` adds.
_SHOWN = {
    key.lower(): key for key in ("Level", "BlockIndex", "BlockSize", "AggregatedBlock")
}
#: Keys that begin a line.
_FIRST = ("SwitchName", "BlockName", "BlockSizes", "AggregatedBlock")
#: A key with its value, as Slurm's parser takes them (s_p_parse_line in src/common/parse_config.c).
_ASSIGNMENT = re.compile(r'\s*([\w.]+)\s*=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')


@dataclass
class _Reading:
    """Lines that were read so far. ``places``: file and line, by a switch or BlockSizes. ``below``: by a switch,
    those below it. ``speeds``: whether a link has a speed that is not Slurm's default."""

    file: str
    places: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, tuple[str, ...]] = field(default_factory=dict)
    below: dict[str, list[str]] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    kinds: Counter[str] = field(default_factory=Counter)
    hostlists: Hostlists = field(default_factory=Hostlists)
    speeds: bool = False

    def take(self, where: str, line: str) -> None:
        """Read a line. Raises TopologyFileError."""
        values = _values(where, line)
        key = next(iter(values))
        if key not in _FIRST:
            raise _problem(where, f"{key}: a line begins with SwitchName or BlockName")
        if key == "AggregatedBlock":
            return
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
        self.speeds |= values.get("LinkSpeed", "1") != "1"
        shown = any(values.get(extra) for extra in _SHOWN.values())
        allowed = ("Nodes", "Switches") if key == "SwitchName" else ("Nodes",)
        kinds = [k for k in values if k not in (*_SHOWN.values(), "LinkSpeed")]
        if any(kind not in allowed for kind in kinds):
            raise _problem(where, f"{key}: {name} needs {' or '.join(allowed)}")
        if len(kinds) > 1 and not shown:
            both = "Nodes and Switches exclude each other"
            raise _problem(where, f"{key}: {name}: {both}")
        # Of a switch above others scontrol prints all nodes below it, too.
        kind = "Switches" if "Switches" in kinds else "Nodes"
        try:
            names = self.hostlists.expand(values[kind]) if kind in values else []
        except ValueError as error:
            raise _problem(where, f"{kind}: {error}") from None
        if kind == "Nodes":
            self.leaves[name] = tuple(names)
        else:
            self.below[name] = names

    def topology(self) -> NodeTopology:
        """Return the topology of the lines. Raises TopologyFileError."""
        above: dict[str, list[str]] = {}
        for parent, children in self.below.items():
            for child in children:
                if child not in self.places:
                    missing = f"Switches: there is no switch {child}"
                    raise _problem(self.places[parent], missing)
                if parent in above.setdefault(child, []):
                    raise _problem(self.places[parent], f"Switches: {child} is twice")
                above[child].append(parent)
        if self.kinds["block"]:
            return blocks_of(self.leaves, self.sizes)
        return joined_by(self.leaves, above)

    def dropped(self) -> Iterator[str]:
        """Yield lines that name what a topology does not have."""
        if self.speeds:
            yield "LinkSpeed, which has no unit"


def _values(where: str, line: str) -> dict[str, str]:
    """Return the values of a line by key. Raises TopologyFileError."""
    values: dict[str, str] = {}
    end = 0
    while rest := line[end:].strip():
        match = _ASSIGNMENT.match(line, end)
        written = match[1] if match is not None else rest.split()[0].partition("=")[0]
        key = {**_KEYS, **_SHOWN}.get(written.lower())
        if key is None:
            there = ", ".join(_KEYS.values())
            raise _problem(where, f"{written!r:.60}: unknown key; keys are {there}")
        if match is None:
            raise _problem(where, f"{key}: no value")
        if key in values:
            raise _problem(where, f"{key}: given twice")
        values[key] = match[2] if match[2] is not None else match[3]
        end = match.end()
    return values


def _problem(where: str, what: str) -> TopologyFileError:
    return TopologyFileError(f"{where}: {what}")


def _sizes(where: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise _problem(where, f"BlockSizes: {text!r:.60} is no 3,6,12") from None
