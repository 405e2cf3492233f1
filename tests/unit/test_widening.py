"""A recording of few ranks widened to many: what a generated workload of the larger size does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.workloads.formats.chakra.reader import read
from ringlight.workloads.formats.chakra.writer import write
from ringlight.workloads.graph import Book, Collective, Workload, Writer
from ringlight.workloads.models import model_named
from ringlight.workloads.parallelism import generate
from ringlight.workloads.settings import Parallel, Training
from ringlight.workloads.widening import first_difference, found, stated, widened
from tests.unit.test_cli import one_line, ringlight

OPTIMISER = ["optimiser"]


def made(
    dp: int, tp: int = 1, pp: int = 1, ep: int = 1, *, model: str = "gpt2-medium", zero: int = 0
) -> Workload:
    return generate(model_named(model), Parallel(dp, tp, pp, ep), Training(1, 2, zero=zero))


@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 4]),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4]),
)
def test_a_wider_workload_is_the_generated_one(tp: int, pp: int, dp: int, zero: int, copies: int) -> None:
    # Powers of two, as shares of the optimiser are rounded up to whole bytes.
    small, large = made(dp, tp, pp, zero=zero), made(dp * copies, tp, pp, zero=zero)
    sharded = OPTIMISER if zero else []
    assert found(small) == stated(small.ranks, tp, pp, 1)
    assert first_difference(widened(small, dp * copies, found(small), sharded), large) is None


def test_experts_stay_in_their_replica() -> None:
    small, large = (made(dp, ep=2, model="mixtral-8x7b") for dp in (2, 8))
    assert first_difference(widened(small, 8, found(small)), large) is None


def test_the_first_difference_is_named() -> None:
    small, large = made(2, zero=1), made(8, zero=1)
    assert "(optimiser): bytes " in str(first_difference(widened(small, 8, found(small)), large))
    assert first_difference(small, large) == "2 ranks, and 8"


@pytest.mark.parametrize(
    ("dp", "grid", "said"),
    [
        (3, (2, 2, 1), "3 replicas are no multiple of the 2 of the recording"),
        (4, (3, 1, 1), "8 ranks are no multiple of tp 3"),
        (4, (4, 1, 1), "rank 0 sends to or hears rank 4 of another replica: check tp, pp, ep"),
        (4, (1, 2, 1), "the group \\[0, 1\\] is of 2 of 4 replicas"),
        (4, (1, 1, 4), "of another replica"),
        (2, (4, 2, 1), "a single replica"),
    ],
)
def test_what_is_no_grid_of_replicas_is_refused(dp: int, grid: tuple[int, int, int], said: str) -> None:
    small = made(2, 2, 2)
    with pytest.raises(ValueError, match=said):
        widened(small, dp, stated(small.ranks, *grid))


def test_a_collective_written_for_its_ranks_is_refused() -> None:
    book = Book()
    writer = Writer(book)
    writer.collective("dp tokens", Collective("all-to-all-v", sizes=((0, 8), (8, 0))), 8, 0)
    fixed = book.workload("fixed", [writer.done()], [0, 0], [[book.group([0, 1])]] * 2, [[], []])
    with pytest.raises(ValueError, match="dp tokens: its all-to-all-v is written for just"):
        widened(fixed, 4, found(fixed))
    nameless = replace(fixed, names=("tokens",))
    with pytest.raises(ValueError, match="no operation is called dp or edp"):
        found(nameless)


def test_a_trace_of_eight_ranks_widened_to_sixty_four(tmp_path: Path) -> None:
    write(made(2, 2, 2, zero=1), tmp_path / "small")
    write(made(16, 2, 2, zero=1), tmp_path / "large")
    command = ["widen", str(tmp_path / "small.0.et"), str(tmp_path / "wide.et"), "--dp", "16"]
    command += ["--against", str(tmp_path / "large.0.et")]
    done = ringlight("workload", *command, "--sharded", "optimiser")
    assert done.returncode == 0, done.stderr
    assert first_difference(read(tmp_path / "wide.0.et"), read(tmp_path / "large.0.et")) is None
    assert "differs: rank 0, operation" in one_line(ringlight("workload", *command))
    assert "no operation is called 'nobody'" in one_line(
        ringlight("workload", *command, "--sharded", "nobody")
    )
