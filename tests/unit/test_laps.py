"""Iterations of a whole job, joined from what single ranks say."""

from __future__ import annotations

from typing import Any

from ringlight.controller.jobs.laps import Lap, Laps


def said(rank: int, i: int, begin: float) -> dict[str, Any]:
    """Rank ``rank`` computes for a second and ``rank`` tenths, then all-reduces for two."""
    compute_end = begin + 1.0 + rank / 10
    return {
        "rank": rank, "i": i, "compute_start": begin, "compute_end": compute_end,
        "allreduce_end": compute_end + 2.0,
    }  # fmt: skip


def test_an_iteration_lasts_from_its_first_rank_to_its_last() -> None:
    laps = Laps("red", 2)
    assert list(laps.of([said(1, 0, 5.0), said(1, 1, 9.0)])) == []
    found = list(laps.of([said(0, 0, 5.5)]))
    assert found == [Lap("red", 0, 5.0, 8.5, found[0].compute_s, found[0].allreduce_s)]
    assert (round(found[0].compute_s, 9), round(found[0].allreduce_s, 9)) == (1.05, 2.0)


def test_what_a_rank_never_ends_is_forgotten() -> None:
    laps = Laps("red", 2)
    assert list(laps.of(said(0, i, float(i)) for i in range(1000))) == []
    assert list(laps.of([said(1, 0, 0.0)])) == []
    assert [lap.i for lap in laps.of([said(1, 999, 999.0)])] == [999]
