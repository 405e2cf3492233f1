"""Pipeline schedules: every pass once, in an order that works, and as many under way as stated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.models.pipeline import SCHEDULES, Turn, schedule


@given(
    name=st.sampled_from(SCHEDULES), stages=st.integers(1, 8), rows=st.integers(1, 5),
    extra=st.integers(0, 3), chunks=st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_micro_batch_passes_every_chunk_forward_and_backward(
    name: str, stages: int, rows: int, extra: int, chunks: int
) -> None:
    if name == "interleaved":
        extra = 0
    else:
        chunks = 1
    micro_batches = stages * rows + extra
    turns = schedule(name, stages, micro_batches, chunks)
    assert len(turns) == stages
    for stage, mine in enumerate(turns):
        assert sorted(mine) == [
            Turn(forward, chunk, m)
            for forward in (False, True)
            for chunk in range(stage, stages * chunks, stages)
            for m in range(micro_batches)
        ]
    _finish(turns, stages * chunks)


def _finish(turns: list[list[Turn]], chunks: int) -> None:
    """Stages take their turns in order, each when what it needs is there: none waits for ever."""
    done: set[Turn] = set()
    at = [0] * len(turns)
    moved = True
    while moved:
        moved = False
        for stage, mine in enumerate(turns):
            while at[stage] < len(mine) and _needed(mine[at[stage]], chunks) <= done:
                done.add(mine[at[stage]])
                at[stage] += 1
                moved = True
    assert at == [len(mine) for mine in turns]


def _needed(turn: Turn, chunks: int) -> set[Turn]:
    forward, chunk, m = turn
    if forward:
        return {Turn(True, chunk - 1, m)} if chunk else set()
    behind = {Turn(False, chunk + 1, m)} if chunk < chunks - 1 else set()
    return behind | {Turn(True, chunk, m)}


def _under_way(mine: list[Turn]) -> int:
    """Micro-batches whose activations a stage keeps at once, at most."""
    kept, most = 0, 0
    for turn in mine:
        kept += 1 if turn.forward else -1
        most = max(most, kept)
    return most


def test_1f1b_keeps_no_more_than_there_are_stages_behind() -> None:
    """Narayanan et al., section 2.2: p at most, where GPipe keeps all m."""
    assert [_under_way(mine) for mine in schedule("1f1b", 4, 16)] == [4, 3, 2, 1]
    assert [_under_way(mine) for mine in schedule("gpipe", 4, 16)] == [16] * 4
    assert [_under_way(mine) for mine in schedule("interleaved", 4, 16, 2)] == [
        11,
        9,
        7,
        5,
    ]


def test_the_interleaved_order_is_megatrons() -> None:
    """Figure 4 of Narayanan et al.: the first stage of 4, two chunks, 8 micro-batches."""
    mine = schedule("interleaved", 4, 8, 2)[0]
    forward = [(turn.chunk // 4, turn.micro_batch) for turn in mine if turn.forward]
    rows = [
        [(chunk, m) for m in range(start, start + 4)]
        for start in (0, 4)
        for chunk in (0, 1)
    ]
    assert forward == [place for row in rows for place in row]
    backward = [
        (turn.chunk // 4, turn.micro_batch) for turn in mine if not turn.forward
    ]
    assert backward[:5] == [(1, 0), (1, 1), (1, 2), (1, 3), (0, 0)]


def test_what_a_schedule_cannot_do_is_said() -> None:
    with pytest.raises(
        ValueError, match="schedule: no zb; there are gpipe, 1f1b, interleaved"
    ):
        schedule("zb", 2, 2)
    with pytest.raises(
        ValueError, match="virtual_stages: 1f1b has one chunk a stage, not 2"
    ):
        schedule("1f1b", 2, 2, 2)
    with pytest.raises(
        ValueError,
        match="micro_batches: interleaved needs a multiple of 2 stages, not 3",
    ):
        schedule("interleaved", 2, 3, 2)
