"""Jobs that execute workload texts."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.extensions.layer_text.test_layer_text import DATA
from tests.workload_jobs import FOUR, SIX, loaded, refusal


def with_text(directory: Path) -> Path:
    """A directory with a text in it."""
    shutil.copy(DATA / "astra_sim/MLP_ModelParallel.txt", directory)
    return directory


def test_a_text_gets_from_the_job_what_it_does_not_say(tmp_path: Path) -> None:
    found = loaded(with_text(tmp_path), "{files: MLP_ModelParallel.txt}", SIX)
    assert found.files == ("MLP_ModelParallel.txt",)
    workload = found.plans[0].jobs[0].workload
    assert workload is not None
    assert workload.ranks == 6
    text = (
        (tmp_path / "MLP_ModelParallel.txt")
        .read_text()
        .replace("MODEL", "HYBRID_DATA_MODEL", 1)
    )
    (tmp_path / "hybrid.txt").write_text(text)
    workload = (
        loaded(tmp_path, "{files: hybrid.txt, model_ranks: 3}", SIX)
        .plans[0]
        .jobs[0]
        .workload
    )
    assert workload is not None
    assert [group.tolist() for group in workload.groups] == [[0, 1, 2], [3, 4, 5]]


def test_ranks_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    said = refusal(
        with_text(tmp_path), "{files: MLP_ModelParallel.txt, model_ranks: 3}", FOUR
    )
    assert "do not divide into 1 stages of groups of 3" in said
