"""What Slurm is told of light and of lost GPUs: documents in, topologies and commands out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.interchange.hostlists import expand
from ringlight.extensions.interchange.node_trees import tree_of
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    check,
    read_conf,
    write_conf,
)
from ringlight.extensions.interchange.slurm_yaml import (
    NamedTopology,
    read_yaml,
    write_yaml,
)
from ringlight.extensions.slurm.following import (
    Attachments,
    Node,
    attachments_of,
    fresh,
    is_same,
    node_commands,
    requeue_commands,
    shown_nodes,
    shown_topology,
    topology_commands,
    topology_of,
)
from ringlight.extensions.slurm.partitions import SlurmError
from ringlight.extensions.slurm.scheduler import Plugin, plugin_of, topology_file
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec

GPUS = [f"g{n}" for n in range(6)]
FABRIC: dict[str, Any] = {
    "gpus": [{"name": gpu} for gpu in GPUS],
    "packet_switches": [{"name": "tor0"}, {"name": "tor1"}, {"name": "tor2"}],
    "links": [
        {"ends": ["g0", "ocs0:1"]},
        {"ends": ["tor0:1", "ocs0:7"]},
        # A cable of copper, and one between the switches.
        {"ends": ["g5", "tor1:3"]},
        {"ends": ["tor0:5", "tor1:5"]},
    ],
}
TREE = Plugin("topology/tree", (22, 5))


def circuits(*ends: tuple[str, str], generation: int = 7) -> dict[str, Any]:
    lit = [{"ends": list(pair), "duplex": True} for pair in ends]
    return {"generation": generation, "circuits": lit}


LIT = circuits(
    ("g0", "tor0:1"),
    ("tor0:2", "g1"),
    ("g2", "tor0:3"),
    ("g3", "tor1:1"),
    ("g4", "tor1:2"),
)


def test_a_leaf_for_each_packet_switch_below_one_switch() -> None:
    tree = topology_of(attachments_of(FABRIC, LIT), GPUS)
    assert write_conf(tree) == (
        "SwitchName=tor0 Nodes=g[0-2]\n"
        "SwitchName=tor1 Nodes=g[3-5]\n"
        "SwitchName=core Switches=tor[0-1]\n"
    )


def test_a_gpu_on_copper_is_attached_and_one_without_light_is_a_leaf_alone() -> None:
    tree = topology_of(
        attachments_of(FABRIC, circuits(("g0", "tor0:1"))), ["g0", "g3", "g5"]
    )
    assert tree.leaves == {"dark-g3": ("g3",), "tor0": ("g0",), "tor1": ("g5",)}
    assert tree.parents == {"tor0": "core", "tor1": "core"}


def test_attachments_of_one_direction_attaches_nothing() -> None:
    one_way = {
        "generation": 1,
        "circuits": [{"ends": ["g0", "tor0:1"], "duplex": False}],
    }
    assert attachments_of(FABRIC, one_way).switch_of == {"g5": "tor1"}


def test_switches_that_do_not_reach_one_another_have_no_common_switch() -> None:
    lit = circuits(("g0", "tor0:1"), ("g1", "tor2:1"))
    tree = topology_of(attachments_of(FABRIC, lit), ["g0", "g1", "g5"])
    assert tree.parents == {"tor0": "core", "tor1": "core"}
    # Light between switches joins them.
    lit = circuits(("g0", "tor0:1"), ("g1", "tor2:1"), ("tor2:2", "tor0:4"))
    tree = topology_of(attachments_of(FABRIC, lit), ["g0", "g1", "g5"])
    assert tree.parents == dict.fromkeys(("tor0", "tor1", "tor2"), "core")


def test_each_island_has_a_top_of_its_own() -> None:
    light = Attachments(
        1, {"a": "s0", "b": "s1", "c": "s2", "d": "s3"}, [{"s0", "s1"}, {"s2", "s3"}]
    )
    assert topology_of(light, "abcd").parents == {
        "s0": "core",
        "s1": "core",
        "s2": "core1",
        "s3": "core1",
    }


def test_nodes_whose_light_follows_slurm_are_on_one_leaf() -> None:
    tree = topology_of(attachments_of(FABRIC, LIT), GPUS[:3], GPUS[3:])
    assert tree.leaves == {"flat": ("g3", "g4", "g5"), "tor0": ("g0", "g1", "g2")}
    assert tree.parents == {}


def test_a_switch_of_the_fabric_may_be_called_core() -> None:
    light = Attachments(1, {"a": "core", "b": "flat"}, [{"core", "flat"}])
    tree = topology_of(light, ["a", "b"], ["c"])
    assert tree.parents == {"core": "core1", "flat": "core1"}
    assert tree.leaves["flat1"] == ("c",)
    assert fresh("x", ["x", "x1"]) == "x2"


@given(
    st.dictionaries(st.sampled_from(GPUS), st.sampled_from(["tor0", "tor1", "tor2"])),
    st.sets(st.sampled_from(GPUS)),
)
def test_every_node_is_on_one_leaf_that_slurm_takes(
    switch_of: dict[str, str], follow: set[str]
) -> None:
    light = Attachments(1, switch_of, [{"tor0", "tor1"}, {"tor2"}])
    lead = [gpu for gpu in GPUS if gpu not in follow]
    tree = topology_of(light, sorted(follow), lead)
    check(tree)
    assert sorted(n for nodes in tree.leaves.values() for n in nodes) == GPUS
    assert is_same(read_conf(write_conf(tree)).nodes, tree)


# --- Slurm's topology

SHOWN = """\
SwitchName=tor0 Level=0 LinkSpeed=1 Nodes=g[0-2]
SwitchName=tor1 Level=0 LinkSpeed=1 Nodes=g[3-5]
SwitchName=core Level=1 LinkSpeed=1 Nodes=g[0-5] Switches=tor[0-1]
"""


def test_slurm_topology_is_read_as_it_was_written() -> None:
    tree = topology_of(attachments_of(FABRIC, LIT), GPUS)
    shown = shown_topology(SHOWN, expand)
    assert is_same(shown, tree)
    assert topology_commands(shown, tree, None) == []
    blocks = "BlockName=tor0 BlockIndex=0 Nodes=g[0-2] BlockSize=3\nAggregatedBlock=tor[0-1] BlockIndex=1\n"
    assert shown_topology(blocks, expand).leaves == {"tor0": ("g0", "g1", "g2")}


def moved() -> NodeTopology:
    return NodeTopology(
        {"tor0": ("g0", "g1", "g3"), "tor1": ("g2", "g4", "g5")},
        {"tor0": "core", "tor1": "core"},
    )


def test_moved_light_is_one_reconfiguration_or_one_command_a_node() -> None:
    shown = shown_topology(SHOWN, expand)
    assert topology_commands(shown, moved(), None) == [("reconfigure",)]
    assert topology_commands(shown, moved(), "default") == [
        ("update", "NodeName=g3", "Topology=default:core:tor0"),
        ("update", "NodeName=g2", "Topology=default:core:tor1"),
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        NodeTopology(
            {"tor0": ("g0", "g1", "g2"), "dark-g3": ("g3",), "tor1": ("g4", "g5")}
        ),
        NodeTopology({"tor0": ("g0", "g1", "g2"), "tor1": ("g4", "g5")}),
        NodeTopology({"tor0": tuple(GPUS[:3]), "tor1": tuple(GPUS[3:])}),
    ],
    ids=["a new leaf", "a node less", "no top"],
)
def test_new_and_removed_switches_need_the_file(wanted: NodeTopology) -> None:
    shown = shown_topology(SHOWN, expand)
    assert topology_commands(shown, wanted, "default") == [("reconfigure",)]


def config(plugin: str) -> str:
    return f"SLURM_CONF              = /etc/slurm/slurm.conf\nTopologyPlugin          = {plugin}\n"


def test_the_plugin_is_that_of_slurm_conf() -> None:
    assert plugin_of("slurm-wlm 22.05.8\n", config("topology/tree")) == TREE
    assert plugin_of("slurm 25.11.0", config("topology/block")).version == (25, 11)
    with pytest.raises(SlurmError, match="TopologyPlugin=topology/none in "):
        plugin_of("slurm-wlm 22.05.8", config("topology/none"))
    with pytest.raises(SlurmError, match="does not print"):
        plugin_of("", config("topology/tree"))


def test_blocks_are_the_leaves_that_have_light(tmp_path: Path) -> None:
    plugin = Plugin("topology/block", (23, 11))
    light = attachments_of(
        FABRIC, circuits(("g0", "tor0:1"), ("g1", "tor0:2"), ("g4", "tor1:2"))
    )
    blocks = plugin.shaped(topology_of(light, ["g0", "g1", "g3", "g4", "g5"]))
    path, text = topology_file(tmp_path, plugin, blocks)
    assert path == tmp_path / "topology.conf"
    assert text.splitlines()[1:] == [
        "BlockName=tor0 Nodes=g[0-1]",
        "BlockName=tor1 Nodes=g[4-5]",
        "BlockSizes=2,4",
    ]


def test_topology_yaml_is_written_where_slurm_reads_it(tmp_path: Path) -> None:
    other = NamedTopology("racks", NodeTopology({"rack": ("g0", "g1")}), True)
    (tmp_path / "topology.yaml").write_text(write_yaml([other]))
    tree = topology_of(attachments_of(FABRIC, LIT), GPUS)
    new = Plugin("topology/tree", (25, 5))
    path, text = topology_file(tmp_path, new, tree)
    assert path.name == "topology.yaml"
    path.write_text(text)
    lit, kept = read_yaml(text)
    assert (lit.name, kept) == ("lit", other)
    assert lit.nodes is not None
    assert is_same(lit.nodes, tree)
    # Written again, it is the same; older versions do not read it.
    assert topology_file(tmp_path, new, tree) == (path, text)
    assert topology_file(tmp_path, TREE, tree)[0].name == "topology.conf"


# --- nodes and jobs

NODES = (
    "NodeName=g0 Arch=x86_64 State=IDLE ThreadsPerCore=1 Partitions=a \n"
    "NodeName=g1 Arch=x86_64 State=MIXED+DRAIN ThreadsPerCore=1 "
    "Reason=ringlight: GPU g1 is lost [root@2026-11-30T18:44:36]\n"
    "NodeName=g2 Arch=x86_64 State=IDLE*+DRAIN Partitions=a Reason=dust [root@2026-11-30T18:44:36] Comment=x\n"
)


def test_nodes_are_read_with_states_and_reasons() -> None:
    nodes = shown_nodes(NODES)
    assert nodes == {
        "g0": Node(frozenset({"IDLE"})),
        "g1": Node(frozenset({"MIXED", "DRAIN"}), "ringlight: GPU g1 is lost"),
        "g2": Node(frozenset({"IDLE", "DRAIN"}), "dust"),
    }
    assert [name for name, node in nodes.items() if node.is_ours] == ["g1"]


def node(*flags: str, reason: str = "") -> Node:
    return Node(frozenset(flags), reason)


OURS = "ringlight: GPU g0 is lost"


@pytest.mark.parametrize(
    ("before", "lost", "state"),
    [
        (node("IDLE"), True, "DRAIN"),
        (node("ALLOCATED"), True, "DRAIN"),
        (node("IDLE", "DRAIN", reason=OURS), True, None),
        (node("IDLE", "DRAIN", reason="dust"), True, None),
        (node("DOWN", reason="dust"), True, None),
        (node("IDLE"), False, None),
        (node("IDLE", "DRAIN", reason=OURS), False, "RESUME"),
        # Somebody else's reason, or ours on a node that is drained no more.
        (node("IDLE", "DRAIN", reason="dust"), False, None),
        (node("DOWN", "NOT_RESPONDING", reason=OURS), False, None),
        # Down for another cause: it is not drained, and stays down.
        (node("DOWN", "DRAIN", reason=OURS), False, "UNDRAIN"),
    ],
)
def test_a_node_is_drained_while_its_gpu_is_lost(
    before: Node, lost: bool, state: str | None
) -> None:
    commands = node_commands({"g0": before}, {"g0"} if lost else ())
    states = [
        word for command in commands for word in command if word.startswith("State")
    ]
    assert states == ([] if state is None else [f"State={state}"])
    assert all(command[:2] == ("update", "NodeName=g0") for command in commands)


def test_a_drain_is_known_again_by_its_reason() -> None:
    (command,) = node_commands({"g1": node("IDLE")}, ["g1"])
    reason = command[-1].removeprefix("Reason=")
    assert node("IDLE", "DRAIN", reason=reason).is_ours


def test_jobs_that_slurm_does_not_requeue_are_asked_for_once() -> None:
    assert requeue_commands(["4", "5"], {"4"}) == [("requeue", "5")]


@given(st.data())
def test_the_export_of_a_fabric_is_what_the_follower_writes(
    data: st.DataObject,
) -> None:
    """Whatever circuits are lit, if leaf switches are joined by links or by one switch called core."""
    with_core = data.draw(st.booleans())
    fabric = build_fabric(FabricSpec.model_validate(_two_tors(with_core)))
    ports = iter([f"tor{t}:{n}" for t in (0, 1) for n in range(1, 4)])
    pairs = [(g, next(ports)) for g in GPUS[:5] if data.draw(st.booleans())]
    documents: dict[str, Any] = {
        "gpus": [{"name": gpu} for gpu in fabric.gpus],
        "packet_switches": [{"name": name} for name in fabric.packet_switches],
        "links": [{"ends": [str(x.a), str(x.b)]} for x in fabric.links],
    }
    written = topology_of(attachments_of(documents, circuits(*pairs)), fabric.gpus)
    lit = [(Port.parse(a), Port.parse(b)) for a, b in pairs]
    assert is_same(tree_of(fabric, lit), written)


def _two_tors(with_core: bool) -> dict[str, Any]:
    """Return a fabric of two leaf switches, of which g0 to g4 reach either by light, and g5 one by cable."""
    switches = {"tor0": {"ports": 5}, "tor1": {"ports": 5}}
    links = [[gpu, f"ocs0:{n}"] for n, gpu in enumerate(GPUS[:5], 1)]
    links += [[f"tor{t}:{n}", f"ocs0:{5 + 3 * t + n}"] for t in (0, 1) for n in (1, 2, 3)]  # fmt: skip
    links.append(["g5", "tor1:4"])
    if with_core:
        switches["core"] = {"ports": 2}
        links += [["tor0:5", "core:1"], ["tor1:5", "core:2"]]
    else:
        links.append(["tor0:5", "tor1:5"])
    return {
        "servers": {f"s{n}": {"gpus": {gpu: "m40"}} for n, gpu in enumerate(GPUS)},
        "packet_switches": switches,
        "optical_switches": {"ocs0": {"size": 12}},
        "links": [{"ends": ends, "rate": "40 Gbit/s"} for ends in links],
    }
