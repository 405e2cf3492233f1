"""``ringlight workload algorithm``."""

from __future__ import annotations

from pathlib import Path

from ringlight.extensions.msccl.writer import msccl_text
from ringlight.fabric.kinds import collective_steps
from tests.workload_command import answer, refused


def test_an_algorithm_is_written_as_a_file_that_runs(tmp_path: Path) -> None:
    out = tmp_path / "bruck.xml"
    made = answer(
        "algorithm",
        "--kind",
        "all-gather",
        "--algorithm",
        "bruck",
        "--ranks",
        "5",
        str(out),
    )
    wanted = collective_steps("all-gather", "bruck", 5)
    assert made == {
        "file": str(out), "kind": "all-gather", "algorithm": wanted.name, "ranks": 5, "steps": wanted.steps,
    }  # fmt: skip
    assert out.read_text() == msccl_text("all-gather", wanted)
    said = refused(
        "algorithm", "--kind", "all-gather", "--algorithm", "brook", str(out)
    )
    assert said.startswith("all-gather has no algorithm 'brook'; there are ")
    assert refused("algorithm", str(tmp_path / "no/ring.xml")).startswith(
        f"{tmp_path}/no/ring.xml: "
    )


def test_an_algorithm_is_no_workload() -> None:
    said = refused("show", "tests/extensions/msccl/data/custom_allreduce.xml")
    assert (
        "this is an algorithm (MSCCL), no workload; run it in a scenario as workload: {coll"
        in said
    )
