"""Which state a job goes on from: the server agent's part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.testbed.emulation.agent.checkpoints import choose_state, remove_directory


def make(directory: Path, names: list[str]) -> None:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_text(name)


@pytest.mark.parametrize(
    ("names", "without", "iteration", "kept"),
    [
        ([], [], 0, None),
        (["rank-0.4.npy", "rank-1.5.npy", "rank-2.5.npy"], [1], 5, "rank-2.5.npy"),
        (["rank-0.4.npy", "rank-1.5.npy"], [1], 4, "rank-0.4.npy"),
        (["rank-0.4.npy", "rank-0.5.npy"], [], 5, "rank-0.5.npy"),
        (["rank-1.5.npy"], [1], 0, None),
        (["rank-0.10.npy", "rank-1.9.npy"], [], 10, "rank-0.10.npy"),
        (["resume.7.npy", "rank-0.6.npy"], [], 7, "resume.7.npy"),
        (["resume.7.npy", "rank-1.9.npy", "rank-12.8.npy"], [1], 8, "rank-12.8.npy"),
        (["resume.7.npy", "rank-0.7.npy"], [], 7, "resume.7.npy"),
        (
            [".rank-0.9.npy", "rank-0.8.npy", "rank--1.10.npy", "x"],
            [],
            8,
            "rank-0.8.npy",
        ),
    ],
)
def test_the_newest_state_of_a_rank_that_is_left(
    tmp_path: Path,
    names: list[str],
    without: list[int],
    iteration: int,
    kept: str | None,
) -> None:
    states = tmp_path / "red.checkpoint"
    make(states, names)
    for _ in range(2):
        assert choose_state(states, without) == iteration
        left = {path.name: path.read_text() for path in states.iterdir()}
        assert left == ({f"resume.{iteration}.npy": kept} if kept else {})


def test_a_job_without_states_begins_anew(tmp_path: Path) -> None:
    assert choose_state(tmp_path / "red.checkpoint", [0]) == 0


@given(
    st.dictionaries(st.integers(0, 5), st.integers(1, 99)), st.sets(st.integers(0, 5))
)
def test_no_state_of_a_lost_rank_is_chosen(
    tmp_path_factory: pytest.TempPathFactory, have: dict[int, int], lost: set[int]
) -> None:
    states = tmp_path_factory.mktemp("states") / "red.checkpoint"
    make(states, [f"rank-{rank}.{iteration}.npy" for rank, iteration in have.items()])
    assert choose_state(states, lost) == max(
        [i for rank, i in have.items() if rank not in lost], default=0
    )


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    states = tmp_path / "red.checkpoint"
    make(states, ["rank-0.3.npy"])
    (states / "rank-1.2.npy").symlink_to(outside / "file")
    (states / "rank-2.1.npy").symlink_to(outside)
    assert choose_state(states, []) == 3
    (states / "away").symlink_to(outside)
    remove_directory(states)
    remove_directory(states)
    assert not states.exists()
    assert (outside / "file").read_text() == "mine"
