"""A real slurmctld reads the trees that we write, and refuses what we refuse.

Debian 12's Slurm is 22.05, which has topology/tree alone: blocks and topology.yaml cannot be tried with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.hostlists import expand, fold
from ringlight.extensions.interchange.slurm_topology import (
    NodeTopology,
    read_conf,
    write_conf,
)
from tests.extensions.interchange.fabrics import TWO_TORS, lit
from tests.extensions.interchange.topologies import trees
from tests.integration.controller_rig import free_port

SLURMCTLD = shutil.which("slurmctld", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(SLURMCTLD is None, reason="needs Debian's slurmctld"),
]
#: No munge: neither a key nor its daemon is needed to read a topology.
CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
CommunicationParameters=NoCtldInAddrAny
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/slurmd
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
TopologyPlugin=topology/tree
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=1
PartitionName=all Nodes={nodes} Default=YES
"""


@contextmanager
def slurmctld(folder: Path, nodes: list[str]) -> Iterator[Path]:
    """A controller of these nodes, none of which runs, with the topology.conf in ``folder``; yields its log."""
    conf = folder / "slurm.conf"
    values = {"port": free_port(), "folder": folder, "nodes": fold(nodes)}
    conf.write_text(CONF.format(**values))
    log = folder / "slurmctld.log"
    assert SLURMCTLD is not None
    with log.open("w") as file:
        process = subprocess.Popen(
            [SLURMCTLD, "-D", "-i", "-f", str(conf)], stdout=file, stderr=file
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait(10)


def printed(folder: Path, log: Path) -> str:
    """What ``scontrol show topology`` prints, once the controller answers."""
    deadline = time.monotonic() + 30
    while "Running as primary controller" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        ["scontrol", "show", "topology"], env=environment,
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip


def shown(folder: Path, log: Path) -> dict[str, dict[str, str]]:
    """What ``scontrol show topology`` prints, by switch."""
    said = printed(folder, log)
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in said.splitlines()]
    return {line["SwitchName"]: line for line in lines if "SwitchName" in line}


def children_of(shown: dict[str, dict[str, str]]) -> dict[str, str]:
    """The switch above each, as the controller has it."""
    above = {
        name: line["Switches"] for name, line in shown.items() if "Switches" in line
    }
    return {child: name for name, text in above.items() for child in expand(text)}


def read_by_slurm(folder: Path, topology: NodeTopology, text: str) -> None:
    (folder / "topology.conf").write_text(text)
    nodes = [node for leaf in topology.leaves.values() for node in leaf]
    with slurmctld(folder, nodes) as log:
        there = shown(folder, log)
        assert "error: switch" not in log.read_text()
    leaves = {
        name: set(expand(line["Nodes"]))
        for name, line in there.items()
        if line["Level"] == "0"
    }
    assert leaves == {leaf: set(nodes) for leaf, nodes in topology.leaves.items()}
    assert children_of(there) == dict(topology.parents)


def test_the_export_of_a_fabric_is_what_slurm_shows(tmp_path: Path) -> None:
    tors = {"tor0": ("g0", "g1", "g2"), "tor1": ("g3", "g4", "g5")}
    expected = NodeTopology(tors, dict.fromkeys(tors, "core"))
    text = FORMS["slurm-tree"].text(lit(TWO_TORS)).text
    assert text.startswith("# not carried: ")
    read_by_slurm(tmp_path, expected, text)


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(topology=trees())
def test_any_tree_is_what_slurm_shows(tmp_path: Path, topology: NodeTopology) -> None:
    folder = tmp_path / str(time.monotonic_ns())
    folder.mkdir()
    read_by_slurm(folder, topology, write_conf(topology))


def test_slurm_starts_with_spines_and_what_it_shows_is_read(tmp_path: Path) -> None:
    """Spaces, a speed, and two spines above the others."""
    text = (
        "SwitchName = s0 Nodes= g[0-1] LinkSpeed=900\nSwitchName=s1 Nodes=g2\n"
        "SwitchName=s4 Switches=s[0-1]\nSwitchName=s5 Switches=s[0-1]\n"
    )
    (tmp_path / "topology.conf").write_text(text)
    with slurmctld(tmp_path, ["g0", "g1", "g2"]) as log:
        there = read_conf(printed(tmp_path, log)).nodes
    assert there == read_conf(text).nodes


@pytest.mark.parametrize(
    "text",
    [
        "SwitchName=a Nodes=g0\nSwitchName=b Switches=c\n",
        "SwitchName=a Nodes=g0 Switches=b\n",
        "SwitchName=a Node=g0\n",
        "SwitchName=a\n",
    ],
)
def test_slurm_refuses_or_misses_what_we_refuse(text: str, tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(text)
    with slurmctld(tmp_path, ["g0"]) as log:
        deadline = time.monotonic() + 30
        while "Running as primary" not in log.read_text():
            if "fatal" in log.read_text():
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "error" in log.read_text()
