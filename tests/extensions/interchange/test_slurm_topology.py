"""topology.conf and topology.yaml: read, written, and what is wrong with them by line and key."""

from __future__ import annotations

import pytest
from hypothesis import given

from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    TopologyFileError,
    block_sizes,
    read_conf,
    write_conf,
)
from ringlight.extensions.interchange.slurm_yaml import (
    NamedTopology,
    read_yaml,
    write_yaml,
)
from tests.extensions.interchange.topologies import blocks, trees

TORS = {"tor0": ("g0", "g1", "g2"), "tor1": ("g3", "g4", "g5")}
TREE = NodeTopology(TORS, {"tor0": "core", "tor1": "core"})
BLOCKS = NodeTopology(TORS, {}, (3, 6))
CONF = """\
# as lit
SwitchName=tor0 Nodes=g[0-2]
SwitchName=tor1 Nodes=g[3-5]
SwitchName=core Switches=tor[0-1]
"""


def test_a_tree() -> None:
    assert write_conf(TREE, ["as lit"]) == CONF
    assert read_conf(CONF) == TREE


def test_keys_in_any_case_comments_and_continued_lines() -> None:
    text = (
        'switchname=tor0 NODES="g[0-2]" LinkSpeed=100 # left\n'
        "SwitchName=tor1 \\\n  nodes=g[3-5]\n\n"
        "SWITCHNAME=core switches=tor0,tor1\n"
    )
    assert read_conf(text) == TREE


def test_blocks() -> None:
    text = "BlockName=tor0 Nodes=g[0-2]\nBlockName=tor1 Nodes=g[3-5]\nBlockSizes=3,6\n"
    assert write_conf(BLOCKS) == text
    assert read_conf(text) == BLOCKS


def test_block_sizes_as_topograph_infers_them() -> None:
    assert block_sizes(NodeTopology(TORS)) == (3, 6)
    four = NodeTopology(
        {f"b{n}": tuple(f"g{n}-{i}" for i in range(4)) for n in range(5)}
    )
    assert block_sizes(four) == (4, 8, 16)


def test_yaml_of_a_tree_blocks_and_a_flat_topology() -> None:
    topologies = [
        NamedTopology("lit", TREE, True),
        NamedTopology("blocks", BLOCKS),
        NamedTopology("none", None),
    ]
    text = write_yaml(topologies)
    assert text.splitlines()[:11] == [
        "- topology: lit",
        "  cluster_default: true",
        "  tree:",
        "    switches:",
        "    - switch: core",
        "      children: tor[0-1]",
        "    - switch: tor0",
        "      nodes: g[0-2]",
        "    - switch: tor1",
        "      nodes: g[3-5]",
        "- topology: blocks",
    ]
    assert read_yaml(text) == topologies


@given(trees() | blocks())
def test_round_trips(topology: NodeTopology) -> None:
    assert read_conf(write_conf(topology)) == topology
    named = [NamedTopology("it", topology, True)]
    assert read_yaml(write_yaml(named)) == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "T: it has no switch or block of nodes"),
        ("Nodes=g0", "T: line 1: Nodes: a line begins with SwitchName or BlockName"),
        ("SwitchName=a", "T: line 1: SwitchName: a needs Nodes or Switches"),
        (
            "SwitchName=a Nodes=g0 Switches=b",
            "T: line 1: SwitchName: a needs Nodes or Switches",
        ),
        ("SwitchName=a Node=g0", "T: line 1: 'Node': unknown key"),
        ("SwitchName=a Nodes=g0 Nodes=g1", "T: line 1: Nodes: given twice"),
        ("\nSwitchName=a Nodes=g[0", "T: line 2: Nodes: 'g[0' is no hostlist"),
        (
            "SwitchName=a Nodes=g0\nSwitchName=a Nodes=g1",
            "T: line 2: SwitchName: a is on T: line 1, too",
        ),
        (
            "SwitchName=a Nodes=g0\nSwitchName=b Nodes=g0",
            "T: line 2: b: node g0 is on a, too",
        ),
        (
            "SwitchName=a Nodes=g0\nSwitchName=c Switches=b",
            "T: line 2: Switches: there is no switch b",
        ),
        (
            "SwitchName=a Nodes=g0\nSwitchName=b Switches=a\nSwitchName=c Switches=a",
            "T: line 3: Switches: a is below b, too",
        ),
        (
            "SwitchName=x Nodes=g0\nSwitchName=a Switches=b\nSwitchName=b Switches=a",
            "it is above itself",
        ),
        (f"SwitchName={'a' * 65} Nodes=g0", "a switch's name has 1 to 64"),
        (
            "SwitchName=a Nodes=g0\nBlockName=b Nodes=g1",
            "T: line 2: BlockName: the file has switches and blocks",
        ),
        ("BlockName=a Nodes=g0", "T: BlockSizes: missing"),
        (
            "BlockName=a Nodes=g[0-2]\nBlockSizes=3,x",
            "T: line 2: BlockSizes: '3,x' is no 3,6,12",
        ),
        (
            "BlockName=a Nodes=g[0-2]\nBlockSizes=3,9",
            "T: line 2: BlockSizes: 9 is no power of two times 3",
        ),
        (
            "BlockName=a Nodes=g[0-2]\nBlockSizes=6,3",
            "T: line 2: BlockSizes: give sizes from 1",
        ),
        (
            "BlockName=a Nodes=g[0-2]\nBlockSizes=4",
            "T: line 1: a: it has 3 nodes, fewer than the base size 4",
        ),
        ("RingName=a Nodes=g[0-2]", "T: line 1: 'RingName': unknown key"),
    ],
)
def test_a_broken_conf_is_refused_by_line_and_key(text: str, message: str) -> None:
    with pytest.raises(TopologyFileError) as caught:
        read_conf(text, "T")
    assert message in str(caught.value)
    assert str(caught.value).startswith("T: ")


def _tree_of(switches: str) -> str:
    return f"- topology: t\n  tree:\n    switches: [{switches}]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topology: x", "T: it should be a list of topologies"),
        ("- x", "T: [0]: it should be a mapping"),
        ("- cluster_default: true\n  topology: x\n  flat: true", "T: [0]: topology: it must be the first key"),
        ("- topology: x", "T: [0]: it needs one of tree, block and flat"),
        ("- topology: x\n  flat: false", "T: [0].flat: it should be true"),
        ("- topology: x\n  flat: true\n  tre: 1", "T: [0].tre: unknown key"),
        ("- topology: x\n  ring: {}", "T: [0].ring: rings and tori are not read"),
        ("- topology: x\n  flat: true\n- topology: x\n  flat: true", "T: topology: two are called x"),
        (_tree_of("{switch: a}"), "T: [0].tree.switches[0]: it needs either children or nodes"),
        (_tree_of("{switch: a, nodes: 'g['}"), "T: [0].tree.switches[0].nodes: 'g[' is no hostlist"),
        (_tree_of("{switch: a, nodes: [g0]}"), "T: [0].tree.switches[0].nodes: should be a text"),
        (_tree_of("{switch: a, children: b}"), "T: [0].tree.switches[0].children: there is no switch b"),
        (_tree_of("{switch: a, nodes: g0}, {switch: b, nodes: g0}"), "T: [0]: b: node g0 is on a, too"),
        (
            "- topology: b\n  block: {block_sizes: [2, 3], blocks: [{block: a, nodes: 'g[0-2]'}]}",
            "T: [0]: block_sizes: 3 is no power of two times 2",
        ),
        ("- topology: x\n  topology: y\n  flat: true", "T: line 2: the key 'topology' is also on line 1"),
    ],
)  # fmt: skip
def test_a_broken_yaml_is_refused_by_key(text: str, message: str) -> None:
    with pytest.raises(TopologyFileError) as caught:
        read_yaml(text, "T")
    assert message in str(caught.value)
