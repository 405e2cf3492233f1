"""A recording of few ranks widened to many: what a generated workload of the larger size does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.models.catalogue import model_named
from ringlight.extensions.models.layers import Transformer
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.extensions.models.widening import (
    Grid,
    checked,
    first_difference,
    grid_of,
    grown,
    replicas_of,
    widened,
)
from ringlight.workloads.formats.reading import read_any
from ringlight.workloads.formats.writing import write_any
from ringlight.workloads.graph import Collective, Workload
from ringlight.workloads.graph_writer import Book, Writer
from tests.unit.test_cli import one_line, ringlight

OPTIMISER = ["optimiser"]


def made(
    dp: int,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    *,
    model: str = "gpt2-medium",
    zero: int = 0,
) -> Workload:
    return generate(
        model_named(model), Parallel(dp, tp, pp, ep), Training(1, 2, zero=zero)
    )


@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from([2, 4]),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4]),
)
def test_a_wider_workload_is_the_generated_one(
    tp: int, pp: int, dp: int, zero: int, copies: int
) -> None:
    # Powers of two, as shares of the optimiser are rounded up to whole bytes.
    small, large = made(dp, tp, pp, zero=zero), made(dp * copies, tp, pp, zero=zero)
    sharded = OPTIMISER if zero else []
    assert replicas_of(small) == Grid(pp, dp, 1, tp).axis("dp")
    assert (
        first_difference(
            widened(small, dp * copies, replicas_of(small), sharded), large
        )
        is None
    )


def test_experts_stay_in_their_replica() -> None:
    small, large = (made(dp, ep=2, model="mixtral-8x7b") for dp in (2, 8))
    assert first_difference(widened(small, 8, replicas_of(small)), large) is None


def test_the_first_difference_is_named() -> None:
    small, large = made(2, zero=1), made(8, zero=1)
    assert "(optimiser): bytes " in str(
        first_difference(widened(small, 8, replicas_of(small)), large)
    )
    assert first_difference(small, large) == "2 ranks, and 8"


@pytest.mark.parametrize(
    ("dp", "grid", "said"),
    [
        (3, (2, 2, 1), "3 replicas are no multiple of the 2 of the recording"),
        (
            4,
            (4, 1, 1),
            "rank 0 sends to or hears rank 4 of another replica: check tp, pp, ep",
        ),
        (4, (1, 2, 1), "the group \\[0, 1\\] is of 2 of 4 replicas"),
        (4, (1, 1, 4), "of another replica"),
        (2, (4, 2, 1), "a single replica"),
    ],
)
def test_what_is_no_grid_of_replicas_is_refused(
    dp: int, grid: tuple[int, int, int], said: str
) -> None:
    small, (tp, pp, ep) = made(2, 2, 2), grid
    with pytest.raises(ValueError, match=said):
        widened(small, dp, Grid(pp, small.ranks // (tp * pp * ep), ep, tp).axis("dp"))


def test_a_collective_written_for_its_ranks_is_refused() -> None:
    book = Book()
    writer = Writer(book)
    writer.collective(
        "dp tokens", Collective("all-to-all-v", sizes=((0, 8), (8, 0))), 8, 0
    )
    fixed = book.workload(
        "fixed", [writer.done()], [0, 0], [[book.group([0, 1])]] * 2, [[], []]
    )
    with pytest.raises(
        ValueError, match="dp tokens: its all-to-all-v is written for just"
    ):
        widened(fixed, 4, replicas_of(fixed))
    nameless = replace(fixed, names=("tokens",))
    with pytest.raises(ValueError, match="no operation is called dp or edp"):
        replicas_of(nameless)


def test_a_workload_of_eight_ranks_widened_to_sixty_four(tmp_path: Path) -> None:
    write_any(made(2, 2, 2, zero=1), tmp_path / "small.rlw")
    write_any(made(16, 2, 2, zero=1), tmp_path / "large.rlw")
    command = [
        "widen",
        str(tmp_path / "small.rlw"),
        str(tmp_path / "wide.rlw"),
        "--dp",
        "16",
    ]
    command += ["--against", str(tmp_path / "large.rlw")]
    done = ringlight("workload", *command, "--sharded", "optimiser")
    assert done.returncode == 0, done.stderr
    assert (
        first_difference(
            read_any([tmp_path / "wide.rlw"]), read_any([tmp_path / "large.rlw"])
        )
        is None
    )
    assert "differs: rank 0, operation" in one_line(ringlight("workload", *command))
    assert "no operation is called 'nobody'" in one_line(
        ringlight("workload", *command, "--sharded", "nobody")
    )


# Tensor, expert and pipeline parallelism

#: Heads, blocks and experts that 64 ranks divide.
DENSE = Transformer("dense", "made up", 16, 1024, 64, 64, 4096, 51200, 512, tied=True)
SPARSE = replace(DENSE, name="sparse", layers=4, experts=64, top_k=2)
#: Each layer's gradients are a bucket by themselves: how many there are does not depend on tp.
BY_LAYER = Training(1, 4, bucket_bytes=1, first_bucket_bytes=1)


def of(
    grid: Grid, training: Training = BY_LAYER, model: Transformer = DENSE
) -> Workload:
    return generate(model, Parallel(grid.dp, grid.tp, grid.pp, grid.ep), training)


def deeper(pp: int, recorded: int) -> Transformer:
    """A model whose stages have as many blocks as those of the recorded one."""
    return replace(DENSE, layers=DENSE.layers * pp // recorded)


@pytest.mark.parametrize(
    ("small", "beside", "large"),
    [
        (Grid(tp=8), Grid(tp=4), Grid(tp=64)),
        (Grid(dp=2, tp=4), Grid(dp=2, tp=2), Grid(dp=2, tp=32)),
        (Grid(pp=2, dp=2, tp=2), Grid(pp=2, dp=2, tp=4), Grid(pp=2, dp=2, tp=16)),
        (Grid(dp=4, tp=2), Grid(dp=4, tp=4), Grid(dp=8, tp=8)),
    ],
)
def test_more_tensor_parallel_ranks_divide_the_model_further(
    small: Grid, beside: Grid, large: Grid
) -> None:
    training = replace(BY_LAYER, sequence_parallel=small.dp > 1)
    made_small, made_beside, made_large = (
        of(grid, training) for grid in (small, beside, large)
    )
    assert (grid_of(made_small), grid_of(made_large)) == (small, large)
    wide = grown(made_small, small, large, [made_beside])
    assert first_difference(wide, made_large) is None


@pytest.mark.parametrize(
    ("small", "beside", "large"),
    [
        (Grid(ep=8), Grid(ep=4), Grid(ep=64)),
        (Grid(dp=2, ep=4), Grid(dp=2, ep=2), Grid(dp=2, ep=32)),
        (Grid(ep=4, tp=2), Grid(ep=2, tp=2), Grid(ep=32, tp=2)),
        (Grid(dp=2, ep=4), Grid(dp=2, ep=2), Grid(dp=4, ep=16)),
    ],
)
def test_more_expert_parallel_ranks_divide_the_experts_further(
    small: Grid, beside: Grid, large: Grid
) -> None:
    made_small, made_beside, made_large = (
        of(grid, model=SPARSE) for grid in (small, beside, large)
    )
    assert (grid_of(made_small), grid_of(made_large)) == (small, large)
    wide = grown(made_small, small, large, [made_beside])
    assert first_difference(wide, made_large) is None


@pytest.mark.parametrize(
    ("small", "large", "schedule", "batches"),
    [
        (Grid(pp=8), Grid(pp=64), "1f1b", 4),
        (Grid(pp=4, dp=2), Grid(pp=32, dp=2), "1f1b", 12),
        (Grid(pp=4, dp=2), Grid(pp=16, dp=4), "gpipe", 6),
        (Grid(pp=4, tp=2), Grid(pp=32, tp=2), "1f1b", 1),
        (Grid(pp=4, dp=2), Grid(pp=16, dp=4), "1f1b", 8),
    ],
)
def test_more_stages_are_a_deeper_model(
    small: Grid, large: Grid, schedule: str, batches: int
) -> None:
    training = Training(1, batches, schedule=schedule)
    wide = grown(of(small, training), small, large)
    made_large = of(large, training, deeper(large.pp, small.pp))
    assert first_difference(wide, made_large) is None


def test_what_a_recording_does_not_say_is_named() -> None:
    both = of(Grid(dp=2, tp=2))
    for wanted, besides, said in (
        (
            Grid(dp=2, tp=4),
            [],
            "tp: one recording does not say what its ranks divide among them",
        ),
        (Grid(dp=2, tp=4), [of(Grid(dp=4, tp=4))], "tp: one recording does not say"),
        (Grid(dp=2, tp=3), [], "tp: 3 is no multiple of the 2 of the recording"),
        (Grid(dp=2, tp=4, ep=2), [], "tp and ep at once"),
        (Grid(dp=2, tp=2, pp=2), [], "pp: a recording of 1 stages shows none between"),
    ):
        with pytest.raises(ValueError, match=said):
            grown(both, Grid(dp=2, tp=2), wanted, besides)
    buckets = Training(1, 1, bucket_bytes=8 << 20)
    with pytest.raises(
        ValueError, match=r"tp: rank 0 has .* operations with tp 2, and .* with 4"
    ):
        grown(
            of(Grid(dp=2, tp=2), buckets),
            Grid(dp=2, tp=2),
            Grid(dp=2, tp=8),
            [of(Grid(dp=2, tp=4), buckets)],
        )
    with pytest.raises(ValueError, match="stages 1 and 4 differ"):
        grown(of(Grid(pp=6)), Grid(pp=6), Grid(pp=12))
    interleaved = of(
        Grid(pp=4), Training(1, 4, schedule="interleaved", virtual_stages=2)
    )
    with pytest.raises(ValueError, match="not on the next stage"):
        grown(interleaved, Grid(pp=4), Grid(pp=8))
    with pytest.raises(ValueError, match="comes after one of another pass"):
        grown(
            of(Grid(pp=4, dp=2), replace(BY_LAYER, zero=3)),
            Grid(pp=4, dp=2),
            Grid(pp=8, dp=2),
        )


def test_groups_are_found_or_stated() -> None:
    workload = of(Grid(pp=2, dp=2, tp=2))
    assert grid_of(workload) == Grid(pp=2, dp=2, tp=2)
    with pytest.raises(
        ValueError, match="of tp stands on no grid of pp 1, dp 2, ep 1, tp 4"
    ):
        checked(workload, Grid(dp=2, tp=4))
    nameless = replace(workload, names=tuple(f"x {name}" for name in workload.names))
    with pytest.raises(ValueError, match="state the parallelism of the recording"):
        grid_of(nameless)
    assert checked(nameless, Grid(pp=2, dp=2, tp=2))


def test_recordings_widened_by_the_command(tmp_path: Path) -> None:
    for name, grid in (
        ("small", Grid(dp=4, tp=2)),
        ("beside", Grid(dp=4, tp=4)),
        ("large", Grid(dp=8, tp=8)),
    ):
        write_any(of(grid, model=replace(DENSE, layers=2)), tmp_path / f"{name}.rlw")
    command = [
        "workload",
        "widen",
        str(tmp_path / "small.rlw"),
        str(tmp_path / "wide.rlw"),
        "--tp",
        "8",
    ]
    assert "give one of pp 1, dp 4, ep 1, tp 2 but another tp beside it" in one_line(
        ringlight(*command)
    )
    command += ["--beside", str(tmp_path / "beside.rlw"), "--dp", "8"]
    done = ringlight(*command, "--against", str(tmp_path / "large.rlw"))
    assert done.returncode == 0, done.stderr
    assert (
        first_difference(
            read_any([tmp_path / "wide.rlw"]), read_any([tmp_path / "large.rlw"])
        )
        is None
    )
