"""Workload texts in ``ringlight workload``."""

from __future__ import annotations

from pathlib import Path

from ringlight.workloads.formats.contract import Options
from ringlight.workloads.formats.reading import read_any
from tests.extensions.layer_text.test_layer_text import DATA
from tests.workload_command import answer, refused


def test_a_text_is_told_what_it_does_not_say() -> None:
    text = str(DATA / "astra_sim/MLP_ModelParallel.txt")
    assert "the text does not say how many ranks there are" in refused("show", text)
    assert answer("show", text, "--ranks", "6")["groups"] == {"6": 1}
    assert answer("show", text, "--ranks", "6", "--model-ranks", "3")["ranks"] == 6


def test_texts_are_recognised_and_packed(tmp_path: Path) -> None:
    assert read_any([DATA / "simai/microAllReduce.txt"]).ranks == 8
    assert (
        read_any([DATA / "astra_sim/MLP_ModelParallel.txt"], Options(ranks=6)).ranks
        == 6
    )
    answer(
        "convert", str(DATA / "simai/microAllReduce.txt"), str(tmp_path / "micro.rlw")
    )
    assert read_any([tmp_path / "micro.rlw"]).ranks == 8
    (tmp_path / "notes.txt").write_text("hello\n")
    said = refused(
        "show", str(DATA / "simai/microAllReduce.txt"), str(tmp_path / "notes.txt")
    )
    assert "is a workload text, which is one file" in said
