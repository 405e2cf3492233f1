"""Imports of trees and servers: what comes of each file, and what is named as missing or left out."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from typer.testing import CliRunner

from ringlight.experiments.cli.app import add_commands, app
from ringlight.experiments.cli.common import UserError
from ringlight.extensions.interchange.draft import (
    Defaults,
    Draft,
    rate_text,
    scenario_text,
)
from ringlight.extensions.interchange.draft import fabric_of as drafted
from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS, format_of
from ringlight.extensions.interchange.node_trees import fabric_of_tree, tree_of
from ringlight.extensions.interchange.slurm_topology import NodeTopology, read_conf
from ringlight.extensions.interchange.snapshot import Snapshot
from ringlight.fabric.trees import fat_tree, leaf_spine
from ringlight.fabric.units import parse_rate
from tests.extensions.interchange.fabrics import TWO_TORS, lit
from tests.extensions.interchange.test_slurm_topology import KINDS, SPINES
from tests.extensions.interchange.topologies import trees

add_commands()

MODEL = """
switches:
  core:
    labels: {topology.kubernetes.io/region: lab}
    switches: [tor0, tor1, tor2]
blocks:
- switch: tor0
  nodes: ["g[0-2]"]
  annotations: {accelerator.topology.test/domain: nvl0}
- switch: tor1
  nodes: ["g[3-4]", g5]
"""
DUMP = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:0f:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:18:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="0000:05:00.0" count="18" tclass="0x068000"/></gpu></pci>
      <pci busid="0000:19:00.0" class="0x020000"><nic>
        <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic></pci>
    </pci>
    <pci busid="0000:2a:00.0" class="0x030200"><gpu dev="1" sm="90" rank="1" gdr="1"/></pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:9a:00.0" class="0x030200"><gpu dev="2" sm="90" rank="2" gdr="1"/></pci>
    <pci busid="0000:9b:00.0" class="0x020000"><nic>
      <net name="mlx5_1" dev="1" speed="200000" port="1" guid="0x2" maxconn="131072" gdr="1"/></nic></pci>
  </cpu>
</system>
"""
MATRIX = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNODE\tPIX\t0-47\t0\t\tN/A
GPU1\tNV18\t X \tPXB\tSYS\t0-47\t0\t\tN/A
NIC0\tNODE\tPXB\t X \tNODE
NIC1\tPIX\tSYS\tNODE\t X

Legend:
  X    = Self
NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
"""


def read(text: str, defaults: Defaults = Defaults()) -> Draft:
    return READERS[format_of(text, "test")](text, "test", defaults)


def ends(draft: Draft) -> dict[tuple[str, str], float]:
    return {(str(x.a), str(x.b)): x.rate_bps for x in drafted(draft).links}


def test_topographs_model() -> None:
    draft = read(MODEL, Defaults(rate_bps=50e9))
    assert ends(draft) == {
        **{(f"g{n}:0", f"tor0:{n + 1}"): 50e9 for n in range(3)},
        **{(f"g{n}:0", f"tor1:{n - 2}"): 50e9 for n in range(3, 6)},
        ("tor0:4", "core:1"): 150e9,
        ("tor1:4", "core:2"): 150e9,
    }
    assert draft.dropped == [
        "switch tor2, which has no nodes",
        "labels and annotations of blocks (accelerator domains)",
        "labels and annotations of switches",
    ]


def test_topographs_model_with_all_keys_of_a_switch() -> None:
    text = MODEL.replace(
        "  core:\n", "  core:\n    name: core\n    annotations: {a: b}\n"
    )
    spare = text.replace("blocks:", "  tor3: {}\nblocks:")
    assert ends(read(spare)) == ends(read(MODEL))


def test_topographs_graph_of_a_node_without_switches() -> None:
    """As Go writes a list that is not there."""
    text = GRAPH.replace('"network_layers": ["a"]', '"network_layers": null')
    draft = read(text)
    assert len(draft.packet_switches) == 3
    assert "that 1 nodes are on no switch: each has its own here" in draft.dropped


def test_more_gpus_a_node_keep_the_nodes_name_for_the_server() -> None:
    draft = read("SwitchName=leaf Nodes=Node[201-202]", Defaults(gpus=2, gpu="h100"))
    assert draft.servers == {
        "node201": {"gpus": {"g0": "h100", "g1": "h100"}},
        "node202": {"gpus": {"g2": "h100", "g3": "h100"}},
    }
    assert draft.names.renamed == {"node201": "Node201", "node202": "Node202"}


def test_nccls_dump_gives_each_gpu_its_nearest_nic() -> None:
    draft = read(DUMP, Defaults(servers=2))
    # GPU 0 has mlx5_0 beside it, GPU 2 mlx5_1; GPU 1 shares mlx5_0, which is nearer to it.
    one = [200e9, 200e9, 200e9]
    assert list(ends(draft).values()) == one * 2
    assert {g.model for g in drafted(draft).gpus.values()} == {"sm90"}
    assert {g.server for g in drafted(draft).gpus.values()} == {"s0", "s1"}
    assert draft.defaulted == [
        "2 servers on one packet switch, net",
        "NICs of several GPUs, such as mlx5_0, are divided",
    ]
    assert draft.dropped == [
        "links between GPUs of a server (NVLink, PCIe), and NUMA nodes"
    ]


def test_a_dump_of_several_hosts_gives_several_servers() -> None:
    hosts = DUMP.replace('numaid="0"', 'numaid="0" host_hash="0xa"').replace(
        'numaid="1"', 'numaid="1" host_hash="0xb"'
    )
    servers = read(hosts, Defaults(servers=1)).servers
    assert [len(server["gpus"]) for server in servers.values()] == [2, 1]


def test_nvidia_smis_matrix() -> None:
    draft = read(MATRIX, Defaults(rate_bps=400e9, servers=1))
    assert list(ends(draft).values()) == [400e9, 400e9]
    assert draft.defaulted == [
        "1 server on one packet switch, net",
        "NICs without a stated rate have 400 Gbit/s",
        "the GPUs' model, gpu",
    ]


#: In the form of Azure's topology/ndv4-topo.xml (azhpc-images): a file for NCCL, which adds <gpu> and <net>.
FOR_NCCL = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/> <!-- GPU 0 -->
      <pci busid="0101:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0002:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
    <pci busid="0102:00:00.0" class="0x020000" link_speed="16 GT/s" link_width="16"/>
    <pci busid="0103:00:00.0" class="0x020000" link_speed="16 GT/s" link_width="16"/>
  </cpu>
</system>
"""


def test_a_topology_file_for_nccl_has_pci_devices() -> None:
    draft = read(FOR_NCCL, Defaults(rate_bps=200e9, servers=1))
    assert list(ends(draft).values()) == [200e9, 200e9]
    assert draft.defaulted == [
        "1 server on one packet switch, net",
        "NICs without a stated rate have 200 Gbit/s",
        "the GPUs' model, gpu",
    ]
    assert draft.dropped[1:] == ["NICs without a GPU of their own (0103:00:00.0)"]
    with pytest.raises(ValueError, match="it has no <gpu>, nor a <pci> of class 0x03"):
        read(FOR_NCCL.replace("0x0302", "0x0604"))


def test_nics_that_are_nearest_to_one_gpu_each_are_one_link() -> None:
    """As in AWS's topology/p5.48xl-topo.xml (aws-ofi-nccl), with four NICs beside each GPU."""
    nic = '<pci busid="0000:{0}" class="0x020000"><nic><net name="r{0}" speed="100000"/></nic></pci>'
    switches = "".join(
        f'<pci busid="0000:a{n}" class="0x060400"><pci busid="0000:b{n}"><gpu dev="{n}" sm="90"/></pci>'
        + "".join(nic.format(f"{n}{i}") for i in range(4))
        + "</pci>"
        for n in range(2)
    )
    draft = read(f"<system><cpu>{switches}</cpu></system>", Defaults(servers=1))
    assert list(ends(draft).values()) == [400e9, 400e9]
    assert "the NICs of a GPU, such as r00, r01, r02, r03, are one link" in draft.defaulted  # fmt: skip
    # Without one of the eight they are no longer alike, and the first has the GPU to itself.
    fewer = read(
        f"<system><cpu>{switches}</cpu></system>".replace(nic.format("13"), "")
    )
    assert set(ends(fewer).values()) == {100e9}
    assert fewer.dropped[1:] == [
        "NICs without a GPU of their own (r01, r02, r03, r11, r12)"
    ]


#: As drivers before 470 print it, with NICs by name and a driver's older word for SYS.
OLD_MATRIX = """\
        GPU0    GPU1    mlx5_0  mlx5_bond_1     CPU Affinity
GPU0     X      NV1     PIX     SOC     0-23,48-71
GPU1    NV1      X      SOC     PHB     24-47,72-95
mlx5_0  PIX     SOC      X      SOC
mlx5_bond_1     SOC     PHB     SOC      X
"""
#: Of a workstation without NICs of Mellanox, in a transcript with what was printed before and after.
ALONE = """\
+-------------------------+
| 0  NVIDIA RTX 5090      |
+-------------------------+
$ nvidia-smi topo -m
        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     0-63    0               N/A
GPU1    PHB      X      0-63    0               N/A

$ nvidia-smi topo -p2p rw
        GPU0    GPU1
GPU0    X       GNS
GPU1    GNS     X
"""
#: Without its last lines, and without the GPU 0 that this container lacks.
CUT_OFF = """\
        GPU1    GPU2    NIC0    CPU Affinity
GPU1     X      SYS     NODE    0-19
GPU2    SYS      X      PIX     20-39
"""


@pytest.mark.parametrize(
    ("text", "rates", "chosen"),
    [
        (OLD_MATRIX, [4e11, 4e11], []),
        (ALONE, [4e11, 4e11], ["a NIC for each GPU, as no NIC is reported"]),
        (CUT_OFF, [2e11, 2e11], []),
    ],
)
def test_matrices_of_other_machines(
    text: str, rates: list[float], chosen: list[str]
) -> None:
    assert format_of(text, "test") == "nvidia-smi"
    draft = read(text, Defaults(rate_bps=400e9, servers=1))
    assert list(ends(draft).values()) == rates
    assert draft.defaulted[: len(chosen) + 1] == [
        *chosen,
        "1 server on one packet switch, net",
    ]


@pytest.mark.parametrize("escape", ["", "^[", "\ufffd", "\x1b"])
def test_a_matrix_whose_escape_characters_are_lost(escape: str) -> None:
    found = read(MATRIX.replace("\x1b", escape))
    assert found.section() == read(MATRIX).section()


def test_nics_of_a_matrix_have_the_names_of_its_legend() -> None:
    shared = read(CUT_OFF + "NIC Legend:\n\n  NIC0: mlx5_4\n")
    assert "NICs of several GPUs, such as mlx5_4, are divided" in shared.defaulted


def test_a_yaml_gives_the_topology_that_is_asked_for() -> None:
    text = FORMS["slurm-yaml"].text(lit(TWO_TORS)).text
    assert set(read(text).packet_switches) == {"tor0", "tor1", "core"}
    blocks = read(text, Defaults(topology="blocks"))
    assert blocks.dropped == ["sizes of blocks", "topologies lit, none"]
    with pytest.raises(
        ValueError, match="test: topology none: flat, it names no nodes"
    ):
        read(text, Defaults(topology="none"))
    with pytest.raises(
        ValueError, match="test: topology: there is no x; there are lit, "
    ):
        read(text, Defaults(topology="x"))


def test_leaves_below_several_spines_share_their_rate_among_them() -> None:
    draft = read(SPINES, Defaults(rate_bps=100e9))
    between = {e: rate for e, rate in ends(draft).items() if "tux" not in e[0]}
    assert between == {
        ("s0:5", "s4:1"): 200e9,
        ("s1:5", "s4:2"): 200e9,
        ("s0:6", "s5:1"): 200e9,
        ("s1:6", "s5:2"): 200e9,
    }
    assert draft.dropped == ["LinkSpeed, which has no unit"]
    assert (
        "links between switches, all links of a switch to the next level as fast as all GPUs below it"
        in draft.defaulted
    )
    tree = tree_of(drafted(draft), ())
    assert set(tree.parents.values()) == {"s4"}


def test_a_yaml_whose_rings_are_not_asked_for() -> None:
    assert read(KINDS, Defaults(topology="spines")).dropped == [
        "switch s1, which has no nodes",
        "topologies first, blocks, round, pod",
    ]
    with pytest.raises(ValueError, match="test: topology round: ring, it is not read"):
        read(KINDS, Defaults(topology="round"))
    # As in Slurm, the first of several defaults is the default.
    with pytest.raises(ValueError, match="test: topology first: flat, it names no "):
        read(KINDS)


def ours(draft: Draft, theirs: str) -> str:
    """The name here of a name there."""
    return next((a for a, b in draft.names.renamed.items() if b == theirs), theirs)


def above(tree: NodeTopology, leaf: str) -> list[str]:
    """The switches above a leaf, the nearest first."""
    path = [leaf]
    while path[-1] in tree.parents:
        path.append(tree.parents[path[-1]])
    return path[1:]


@pytest.mark.parametrize("form", ["slurm-tree", "slurm-yaml", "topograph"])
@settings(deadline=None)
@given(tree=trees())
def test_a_tree_comes_back_through_a_fabric(form: str, tree: NodeTopology) -> None:
    draft = fabric_of_tree(tree, Defaults())
    fabric = drafted(draft)
    before = tree_of(fabric, ())
    assert before.leaves == {
        ours(draft, leaf): tuple(ours(draft, node) for node in nodes)
        for leaf, nodes in tree.leaves.items()
    }
    text = FORMS[form].text(Snapshot("test", fabric, ())).text
    after = tree_of(drafted(read(text)), ())
    assert after.leaves == before.leaves
    paths = {leaf: above(before, leaf) for leaf in before.leaves}
    tops = {leaf: path[-1:] for leaf, path in paths.items()}
    # A cable does not say which end is above. Where leaves below one top are at different depths, it may be
    # either, and less stands between.
    if len({(*tops[leaf], len(path)) for leaf, path in paths.items()}) == len(
        {tuple(top) for top in tops.values()}
    ):
        assert after == before
    together = {
        frozenset(x for x in tops if tops[x] == tops[leaf] != []) for leaf in tops
    }
    ends = {leaf: above(after, leaf)[-1:] for leaf in after.leaves}
    assert together == {
        frozenset(x for x in ends if ends[x] == ends[leaf] != []) for leaf in ends
    }


def test_pods_of_a_fat_tree_are_switches_of_a_tree() -> None:
    tree = tree_of(fat_tree(4, 100e9).fabric(), ())
    tops = {name for name in tree.parents.values() if name not in tree.parents}
    assert len(tree.leaves) == 8
    assert len(tops) == 1
    below = tree.children()
    assert [len(below[pod]) for pod in below[tops.pop()]] == [2, 2, 2, 2]


def test_spines_side_by_side_are_one_switch() -> None:
    tree = tree_of(leaf_spine(3, 2, 100e9, spines=2).fabric(), ())
    assert len(tree.leaves) == 3
    assert len(set(tree.parents.values())) == 1


def test_a_dark_gpu_is_a_leaf_of_its_own() -> None:
    fabric = lit({**TWO_TORS, "circuits": TWO_TORS["circuits"][1:]}).fabric
    tree = tree_of(fabric, fabric.circuits)
    assert tree.leaves["dark-g0"] == ("g0",)
    assert "dark-g0" not in tree.parents


def test_the_job_has_the_gpus_that_reach_each_other() -> None:
    draft = read("SwitchName=a Nodes=g[0-2]\nSwitchName=b Nodes=g[3-4]")
    document = yaml.safe_load(scenario_text(draft, "x", "y"))
    assert document["jobs"] == {"train": {"ranks": ["g0", "g1", "g2"]}}
    assert "the job: 2 GPUs do not reach the others" in draft.defaulted


@pytest.mark.parametrize("rate", [12.903e9, 1 / 3 * 1e11, 800e9, 1.5, 123456789.25])
def test_rates_are_read_back(rate: float) -> None:
    assert parse_rate(rate_text(rate)) == rate


def test_commands_write_a_scenario_and_name_what_is_missing(tmp_path: Path) -> None:
    source, out = tmp_path / "topology.conf", tmp_path / "cluster.yaml"
    source.write_text("SwitchName=tor0 Nodes=g[0-1]\n")
    done = CliRunner().invoke(app, ["import", str(source), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        f"ringlight: {out}: written",
        "ringlight: chosen: 1 GPU a node, gpu, at 100 Gbit/s",
        "ringlight: chosen: numbers of ports",
        "ringlight: chosen: the job: one ring all-reduce of 100 MB",
    ]
    again = CliRunner().invoke(app, ["graph", str(out), "-f", "slurm-tree"])
    assert again.exit_code == 0, again.output
    assert read_conf(again.stdout).nodes.leaves == {"tor0": ("g0", "g1")}
    assert again.stderr.startswith(
        "ringlight: slurm-tree does not carry: rates and ports"
    )


def test_a_text_of_no_format_is_refused_with_the_formats(tmp_path: Path) -> None:
    file = tmp_path / "fabric.mmd"
    file.write_text("%% a drawing\nflowchart LR\n")
    with pytest.raises(UserError, match=r"line 1: .*name one by --format: infragraph"):
        CliRunner().invoke(app, ["import", str(file)], catch_exceptions=False)


def test_graph_takes_a_point_of_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "swept.yaml"
    document = {"name": "x", "description": "x", "fabric": TWO_TORS}
    file.write_text(yaml.safe_dump(document))
    for choice, message in (
        (("--point", "nix"), "there is no point nix"),
        (("--set", "nix=1"), "--set nix: unknown key"),
    ):
        done = CliRunner().invoke(
            app, ["graph", str(file), *choice], standalone_mode=False
        )
        assert str(done.exception).startswith(f"{file}: {message}")


ARMS = {
    "name": "x",
    "description": "x",
    "scale": {"time": 1, "payload": 1},
    "fabric": TWO_TORS,
    "training": {"model": "resnet50", "batch": 1, "compute": "1 ms", "iterations": 1},
    "jobs": {"red": {"ranks": ["g0", "g3"]}, "blue": {"ranks": ["g1", "g4"]}},
}
REGROUP = [{"when": "start", "do": "regroup"}]


@pytest.mark.parametrize(
    ("arms", "choice", "notes"),
    [
        (
            {"still": {}, "moved": {"events": REGROUP}},
            (),
            [
                "the arms still, moved share this fabric, with the circuits that each begins with",
                "not applied: events at the start of arm moved (regroup)",
            ],
        ),
        ({"still": {}, "moved": {"events": REGROUP}}, ("--arm", "still"), []),
        (
            {"still": {}, "moved": {"events": REGROUP}},
            ("--arm", "moved"),
            ["not applied: events at the start of arm moved (regroup)"],
        ),
        ({"only": {}}, (), []),
    ],
)
def test_graph_names_the_arms_that_share_a_fabric(
    arms: dict[str, object], choice: tuple[str, ...], notes: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "armed.yaml"
    file.write_text(yaml.safe_dump(ARMS | {"arms": arms}, sort_keys=False))
    done = CliRunner().invoke(app, ["graph", str(file), *choice])
    assert done.exit_code == 0, done.output
    before = done.stderr.splitlines()[:-1]
    assert before == [f"ringlight: {note}" for note in notes]


def test_graph_refuses_arms_of_several_fabrics(tmp_path: Path) -> None:
    file = tmp_path / "armed.yaml"
    lit = TWO_TORS["circuits"]
    dark = {"fabric.circuits": [*lit[:2], *lit[3:]]}
    arms = {"lit": {}, "dark": dark}
    file.write_text(yaml.safe_dump(ARMS | {"arms": arms}, sort_keys=False))
    done = CliRunner().invoke(app, ["graph", str(file)], standalone_mode=False)
    assert str(done.exception) == (
        f"{file}: it has several fabrics; name one by its arm with --arm: lit, dark"
    )
    chosen = CliRunner().invoke(
        app, ["graph", str(file), "--arm", "dark", "-f", "slurm-tree"]
    )
    assert "SwitchName=dark-g2 Nodes=g2" in chosen.stdout


def test_a_folder_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "topology.conf"
    source.write_text("SwitchName=tor0 Nodes=g[0-1]\n")
    missing = tmp_path / "no" / "out.yaml"
    done = CliRunner().invoke(app, ["import", str(source), "-o", str(missing)])
    assert done.exit_code == 1
    assert "No such file or directory" in done.output + str(done.exception)


#: Type checkers want to know what a parametrised text is of.
Change = tuple[str, str, str]
MODEL_CHANGES: list[Change] = [
    (
        "switches: [tor0, tor1, tor2]",
        "switches: tor0",
        "switches.core.switches: should be a list",
    ),
    (
        "    switches: [tor0, tor1, tor2]",
        "    switch: [tor0]",
        "switches.core.switch: unknown key",
    ),
    ("  core:\n", "  tor0:\n  core:\n", "switches.tor0: empty definition"),
    (
        "  core:\n",
        "  core:\n    name: top\n",
        "switches.core.name: top is not the switch's key",
    ),
    (
        "  core:\n",
        "  top: {switches: [tor0]}\n  core:\n",
        "tor0 has two parent switches, top and core",
    ),
    (
        "- switch: tor0\n",
        "- switch: tor9\n",
        "blocks[0].switch: there is no switch tor9",
    ),
    ("g[3-4]", "g[4-3]", "blocks[1].nodes: [4-3]: 4-3 runs backwards"),
    ("g[3-4]", "g[2-4]", "tor1: node g2 is on tor0, too"),
    ('["g[0-2]"]', "[]", "blocks[0].nodes: "),
    ("blocks:", "capacity_blocks:", "capacity_blocks: a model of an older topograph"),
    ('["g[0-2]"]', "g[0-2]", "blocks[0].nodes: should be a list"),
    (
        "switches: [tor0, tor1, tor2]",
        "switches: [core]",
        "blocks[0].switch: there is no switch tor0",
    ),
]
DUMP_CHANGES: list[Change] = [
    ("</system>", "", "line 17: not XML: no element found"),
    ("system", "topology", "topology: hwloc's topology, not NCCL's"),
    ("system", "graphs", "graphs: NCCL's graphs (NCCL_GRAPH_DUMP_FILE), not its topo"),
    ("system", "x", "x: a topology of NCCL is a <system> without DOCTYPE"),
    ('speed="400000"', 'speed="fast"', "net[0].speed: 'fast' is no number of Mbit/s"),
    ('name="mlx5_0" ', "", "nic[0].net[0].name: missing"),
    ('name="mlx5_1"', 'name="mlx5_0"', "net[0].name: there is a net mlx5_0 already"),
    ('dev="2" sm', 'dev="1" sm', "gpu[0].dev: there is a gpu 1 already"),
    ("<gpu ", "<tpu ", "line 5: not XML: mismatched tag"),
    ("<nic>", "<nic><!DOCTYPE x>", "line 6: "),
    (
        "<system",
        '<!DOCTYPE system [<!ENTITY a "aaaaaaaa">]>\n<system',
        "<!DOCTYPE system>: a topology of NCCL is a <system> without DOCTYPE",
    ),
]
MATRIX_CHANGES: list[Change] = [
    ("GPU0\tGPU1", "GPUs\tGPU1", "there is no line of columns, such as GPU0"),
    ("NIC1: mlx5_1", "NIC1: mlx5_0", "NIC Legend: two NICs have one name"),
    ("NIC0\tNIC1\tCPU", "NIC0\tNIC0\tCPU", "line 1: a GPU or NIC has two columns"),
    ("GPU1\tNV18", "CPU1\tNV18", "GPU1: it has a column and no line"),
    (
        "PXB\tSYS",
        "PXB\tFAR",
        "line 3: GPU1, NIC1: 'FAR' is none of PIX, PXB, PHB, NODE, SYS, SOC",
    ),
    ("GPU1\tNV18", "GPU0\tNV18", "line 3: GPU0: given twice"),
    ("NODE\tPIX\t0-47\t0\t\tN/A", "", "line 2: GPU0: 2 cells for 4 columns"),
]
GRAPH = """{"instances": [
  {"id": "g0", "network_layers": ["a", "c"], "labels": {}},
  {"id": "g1", "network_layers": ["a"]}]}"""
GRAPH_CHANGES: list[Change] = [
    ('"id": "g0", ', "", "instances[0].id: missing"),
    ('"labels"', '"label"', "instances[0].label: unknown key"),
    ('["a"]', '["b", "d", "e", "d"]', "d: it is above itself"),
    ('["a"]', '["a", "d"]', "instances[1].network_layers: a is below c, too"),
    ('"g1"', '"g0"', "a: node g0 is on a, too"),
    ('["a"]', '["c"]', "c: it has nodes, and the switch a below it"),
    (
        '"network_layers": ["a"]',
        '"network_layers": "a"',
        "instances[1].network_layers: should be a list",
    ),
]
CASES = [
    *(("topograph-model", MODEL, *change) for change in MODEL_CHANGES),
    *(("topograph-graph", GRAPH, *change) for change in GRAPH_CHANGES),
    *(("nccl", DUMP, *change) for change in DUMP_CHANGES),
    *(("nvidia-smi", MATRIX, *change) for change in MATRIX_CHANGES),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "old", "new", "message"), CASES)
def test_a_broken_file_is_refused_by_key(
    form: str, text: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert old in text
    file = tmp_path / "broken"
    file.write_text(text.replace(old, new))
    out = tmp_path / "out.yaml"
    done = CliRunner().invoke(
        app, ["import", str(file), "-f", form, "-o", str(out)], standalone_mode=False
    )
    said = str(done.exception or done.output)
    assert said.startswith(f"{file}: "), said
    assert message in said
    assert "\n" not in said.strip()
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello: world\n", "test: its format is not known; name one by --format: "),
        ("1\n", "test: its format is not known"),
        ('[{"id": 1}]', "test: its format is not known"),
        ("a: [1\n", "test: line 2: "),
    ],
)
def test_what_is_in_no_format_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        format_of(text, "test")
    assert message in str(caught.value)


_ALL = "g[0-65535]"
MANY = {
    "slurm-conf": "".join(f"SwitchName=s{n} Nodes={_ALL}\n" for n in range(300)),
    "slurm-yaml": "- topology: a\n  tree:\n    switches:\n"
    + "".join(f"    - {{switch: s{n}, nodes: '{_ALL}'}}\n" for n in range(300)),
    "topograph-model": f"blocks: [{{nodes: [{', '.join([repr(_ALL)] * 300)}]}}]\n",
    "nvidia-smi": " ".join(f"GPU{n}" for n in range(100_000)) + "\nGPU1 X" * 100_000,
    "nccl": "<system><cpu><nic>{}{}</nic></cpu></system>".format(
        "".join(f'<gpu dev="{n}"/>' for n in range(3000)),
        "".join(f'<net name="n{n}"/>' for n in range(3000)),
    ),
}


@pytest.mark.parametrize("form", MANY)
def test_a_small_file_of_very_many_parts_is_refused_before_they_are_made(
    form: str,
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^test: .*more than \d+ "):
            READERS[form](MANY[form], "test", Defaults())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 200 << 20


def test_very_many_gpus_and_nics_take_little_time() -> None:
    began = time.monotonic()
    draft = read(
        "<system><cpu><nic>{}{}</nic></cpu></system>".format(
            "".join(f'<gpu dev="{n}"/>' for n in range(8)),
            "".join(f'<net name="n{n}"/>' for n in range(1000)),
        ),
        Defaults(servers=1000),
    )
    assert len(draft.servers) == 1000
    # Under a second; minutes if each server of a kind is looked at.
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("text", ["\n" * 300_000, ". \n" * 100_000])
def test_the_format_of_a_long_file_is_known_in_little_time(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="test: "):
        format_of(f"{text}x: 1\n", "test")
    # A second; half an hour if the time grows with the square.
    assert time.monotonic() - began < 20


def test_every_reader_and_form_has_a_name_that_commands_take() -> None:
    import typing

    from ringlight.extensions.interchange import commands

    assert typing.get_args(commands.Written) == tuple(FORMS)
    assert typing.get_args(commands.Readable) == tuple(READERS)
