"""topology.conf and topology.yaml: read, written, and what is wrong with them by line and key."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given

from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    ReadTopology,
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
    assert read_conf(CONF) == ReadTopology(TREE)


def test_keys_in_any_case_comments_and_continued_lines() -> None:
    text = (
        'switchname=tor0 NODES="g[0-2]" LinkSpeed=100 # left\n'
        "SwitchName = tor1 \\\n  nodes= g[3-5]\n\n"
        "SWITCHNAME=core switches=tor0,tor1\n"
    )
    assert read_conf(text) == ReadTopology(TREE, ("LinkSpeed, which has no unit",))


def test_hostlists_of_a_large_site() -> None:
    text = "SwitchName=ibsw-a1 Nodes=node[001-064,070],login[1-2],gpu-a[1-2]b[3-4]\n"
    (nodes,) = read_conf(text).nodes.leaves.values()
    assert nodes[:2] + nodes[63:66] == ("node001", "node002", "node064", "node070", "login1")  # fmt: skip
    assert nodes[-4:] == ("gpu-a1b3", "gpu-a1b4", "gpu-a2b3", "gpu-a2b4")


#: As the second example of Slurm's Topology Guide: every spine switch above every leaf switch.
SPINES = """SwitchName=s0 Nodes=tux[0-3]   LinkSpeed=900
SwitchName=s1 Nodes=tux[4-7]   LinkSpeed=900
SwitchName=s4 Switches=s[0-1]  LinkSpeed=1800
SwitchName=s5 Switches=s[0-1]  LinkSpeed=1800
"""


def test_a_leaf_below_several_spines() -> None:
    read = read_conf(SPINES).nodes
    assert read.children() == {"s4": ["s0", "s1"], "s5": ["s0", "s1"]}
    assert read.above("s1") == ("s4", "s5")
    assert read_conf(write_conf(read)).nodes == read
    named = NamedTopology("it", read, True)
    assert read_yaml(write_yaml([named])) == [named]


#: What ``scontrol show topology`` prints (print of src/plugins/topology/tree and block in Slurm 26.11).
SHOWN_TREE = """SwitchName=tor0 Level=0 LinkSpeed=1 Nodes=g[0-2]
SwitchName=tor1 Level=0 LinkSpeed=1 Nodes=g[3-5]
SwitchName=core Level=1 LinkSpeed=1 Nodes=g[0-5] Switches=tor[0-1]
"""
SHOWN_BLOCKS = """BlockName=tor0 BlockIndex=0 Nodes=g[0-2] BlockSize=3
BlockName=tor1 BlockIndex=1 Nodes=g[3-5] BlockSize=3
AggregatedBlock=tor[0-1] BlockIndex=2 Nodes=g[0-5] BlockSize=6
"""


def test_what_scontrol_shows() -> None:
    assert read_conf(SHOWN_TREE) == ReadTopology(TREE)
    assert read_conf(SHOWN_BLOCKS) == ReadTopology(BLOCKS)


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        # topograph writes such blocks as places for nodes to come.
        (
            "BlockName=a Nodes=g[0-2]\nBlockName=b\nBlockSizes=4,8\n",
            "block b, which has no nodes",
        ),
        (
            "SwitchName=a Nodes=g0\nSwitchName=b\nSwitchName=c Switches=a,b\n",
            "switch b, which has no nodes",
        ),
    ],
)
def test_a_switch_or_block_without_nodes_is_left_out(text: str, dropped: str) -> None:
    read = read_conf(text)
    assert list(read.nodes.leaves) == ["a"]
    assert read.dropped == (dropped,)


#: Kinds of topologies as in the example of topology.yaml(5) of Slurm 26.11.
KINDS = """- topology: first
  cluster_default: true
  flat: {alpha_step_rank: true}
- topology: spines
  cluster_default: true
  tree:
    switches:
    - {switch: s0, nodes: 'g[0-1]'}
    - {switch: s1}
    - {switch: s4, children: 's[0-1]'}
    - {switch: s5, children: 's[0-1]'}
- topology: blocks
  block: {blocks: [{block: a, nodes: 'g[0-1]'}, {block: b}]}
- topology: round
  ring: {rings: [{ring: r0, nodes: 'g[0-1]'}]}
- topology: pod
  torus3d: {toruses: [{name: p, dims: {x: 2, y: 1, z: 1}, nodes: 'g[0-1]'}]}
"""


def test_yaml_of_a_tree_whose_nodes_are_to_come() -> None:
    (waiting,) = read_yaml(_tree_of("{switch: a}, {switch: b, children: a}"))
    assert (waiting.nodes, waiting.kind) == (None, "tree")


def test_yaml_of_every_kind() -> None:
    flat, spines, blocks_, ring, torus = read_yaml(KINDS)
    assert (flat.nodes, flat.kind, ring.kind, torus.kind) == (None, "flat", "ring", "torus3d")  # fmt: skip
    assert spines.nodes is not None
    assert spines.nodes.above("s0") == ("s4", "s5")
    assert spines.dropped == ("switch s1, which has no nodes",)
    assert blocks_.nodes == NodeTopology({"a": ("g0", "g1")}, {}, (2,))
    # ringlight slurm follow writes the topologies that are not its own again.
    assert yaml.safe_load(write_yaml(read_yaml(KINDS))) == yaml.safe_load(KINDS)


def test_blocks() -> None:
    text = "BlockName=tor0 Nodes=g[0-2]\nBlockName=tor1 Nodes=g[3-5]\nBlockSizes=3,6\n"
    assert write_conf(BLOCKS) == text
    assert read_conf(text) == ReadTopology(BLOCKS)


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
    assert read_conf(write_conf(topology)) == ReadTopology(topology)
    named = [NamedTopology("it", topology, True)]
    assert read_yaml(write_yaml(named)) == named


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "T: it has no switch or block of nodes"),
        ("Nodes=g0", "T: line 1: Nodes: a line begins with SwitchName or BlockName"),
        ("SwitchName=a", "T: it has no switch or block of nodes"),
        ("SwitchName", "T: line 1: SwitchName: no value"),
        ("SwitchName=a Nodes", "T: line 1: Nodes: no value"),
        ("BlockName=a Switches=b", "T: line 1: BlockName: a needs Nodes"),
        (
            "SwitchName=a Nodes=g0 Switches=b",
            "T: line 1: SwitchName: a: Nodes and Switches exclude each other",
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
            "SwitchName=a Nodes=g0\nSwitchName=b Switches=a,a",
            "T: line 2: Switches: a is twice",
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
        ("- topology: x", "T: [0]: it needs one of tree, block, flat, ring, torus3d"),
        ("- topology: x\n  flat: false", "T: [0].flat: it should be true"),
        ("- topology: x\n  flat: true\n  tre: 1", "T: [0].tre: unknown key"),
        ("- topology: x\n  ring: {}\n  flat: true", "T: [0]: it needs one of tree, "),
        ("- topology: x\n  flat: true\n- topology: x\n  flat: true", "T: topology: two are called x"),
        (_tree_of("{switch: a, nodes: g0, children: b}"), "T: [0].tree.switches[0]: children and nodes exclude"),
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
