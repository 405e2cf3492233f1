"""The light of a running lab in the formats of others, before and after it has moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringlight.extensions.interchange.slurm_topology import read_conf
from ringlight.testbed.lab import Lab
from tests.forks import ringlight as run
from tests.integration.controller_rig import free_port
from tests.integration.labs import traces

pytestmark = pytest.mark.root


def test_graph_follows_the_light_of_a_lab(tmp_path: Path) -> None:
    rest = f"127.0.0.1:{free_port()}"
    up = run(
        "up", "scenarios/disaggregation.yaml", "--arm", "a-fragmented", "--runtime", "namespace",
        "--rest", rest, "--openflow", f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    said = up.stdout + up.stderr
    named = re.search(r"lab (\w{3,4}) is up", said)
    assert up.returncode == 0, said
    assert named, said
    try:
        before = run("graph", named[1], "-f", "slurm-tree")
        assert before.returncode == 0, before.stderr
        assert "slurm-tree does not carry: rates and ports; optical" in before.stderr
        assert read_conf(before.stdout).nodes.leaves == {
            "tor0": ("g0", "g1", "g2"),
            "tor1": ("g3", "g4", "g5"),
        }
        moved = run(
            "--controller", rest, "circuits", "set", "g0=tor0:1", "g1=tor0:2",
            "g3=tor0:3", "g2=tor1:1", "g4=tor1:2",
        )  # fmt: skip
        assert moved.returncode == 0, moved.stderr
        after = run("graph", named[1], "-f", "slurm-tree")
        assert read_conf(after.stdout).nodes.leaves == {
            "tor0": ("g0", "g1", "g3"),
            "tor1": ("g2", "g4"),
            "dark-g5": ("g5",),
        }
        lit = run("graph", named[1], "-f", "infragraph-lit", "-o", str(tmp_path / "x"))
        assert lit.returncode == 0, lit.stderr
        imported = run("import", str(tmp_path / "x"), "-o", str(tmp_path / "x.yaml"))
        assert imported.returncode == 0, imported.stderr
        assert "the job: 1 GPUs do not reach the others" in imported.stderr
    finally:
        down = run("down", named[1])
    assert down.returncode == 0, down.stderr
    assert traces(Lab(named[1])) == []
