"""Topologies of schedulers for tests: hypothesis makes them."""

from __future__ import annotations

from hypothesis import strategies as st

from ringlight.extensions.interchange.slurm_topology import NodeTopology, block_sizes

NAMES = st.from_regex(r"[a-z]{1,3}(-[0-9]{1,2})?[0-9]{0,3}", fullmatch=True)


@st.composite
def trees(draw: st.DrawFn) -> NodeTopology:
    """Leaves with nodes, and switches above some of them."""
    nodes = draw(st.lists(NAMES, min_size=1, max_size=12, unique=True))
    count = draw(st.integers(1, len(nodes)))
    leaves = {f"leaf{n}": tuple(nodes[n::count]) for n in range(count)}
    parents: dict[str, str] = {}
    tops = list(leaves)
    for level in range(draw(st.integers(0, 2))):
        above = [
            f"up{level}-{draw(st.integers(0, 1))}" if draw(st.booleans()) else None
            for _ in tops
        ]
        parents |= {t: a for t, a in zip(tops, above, strict=True) if a is not None}
        tops = list(dict.fromkeys(a for a in above if a is not None))
    return NodeTopology(leaves, parents)


@st.composite
def blocks(draw: st.DrawFn) -> NodeTopology:
    leaves = draw(trees()).leaves
    sizes = block_sizes(NodeTopology(leaves))
    return NodeTopology(leaves, {}, sizes[: draw(st.integers(1, len(sizes)))])
