"""Records read back as runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import (
    ENDED,
    Iteration,
    JobRecovered,
    Record,
    Repeated,
    RunEnded,
)
from ringlight.experiments.record.lines import line_of, read_records
from ringlight.experiments.record.runs import AGAIN, Run, runs_of
from tests.simulated import experiment, records_of

JOBS = """
arms:
  base: {}
  two: {jobs.blue: {gpus: 3, start: {at: 1 ms}}}
  full: {jobs.red.ranks: all, jobs.late: {gpus: 2, start: {at: 1 ms}}}
"""
LOSS = """
events: [{name: loss, when: {job: red, iteration: 3}, do: lose, target: gpu g1, then: swap}]
arms:
  base: {}
  fails: {jobs.red.may_fail: true, events.loss.then: fail}
"""


def read(more: str) -> tuple[list[Run], list[Record]]:
    found = experiment(more)
    records = records_of(found)
    return runs_of(records, found.plans), records


def test_every_whole_run_is_read_with_its_jobs_in_order() -> None:
    runs, _ = read(JOBS)
    assert [run.plan.arm for run in runs] == ["base", "two", "full"]
    for run in runs:
        for job in run.jobs.values():
            assert job.state in ENDED
            assert [(it.i, it.rank) for it in job.iterations] == [
                (i, rank) for i in range(6) for rank in range(len(job.gpus))
            ]
            assert (
                job.jct_s
                == max(it.allreduce_end for it in job.iterations) - job.released
            )
            assert (
                run.released <= job.arrived <= job.placed <= job.released
                or job.plan.start.at_once
            )
            assert run.released <= job.released < job.end <= run.ended
            # A rank does one thing after the other.
            for rank in range(len(job.gpus)):
                mine = [it for it in job.iterations if it.rank == rank]
                assert all(
                    a.allreduce_end <= b.compute_start + 1e-9 for a, b in pairwise(mine)
                )
    assert len(runs[1].jobs["blue"].gpus) == 3
    assert runs[2].jobs["late"].released >= runs[2].jobs["red"].end


def test_what_the_file_keeps_is_what_was_recorded(tmp_path) -> None:
    found = experiment(JOBS)
    records = records_of(found)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(map(line_of, records)))
    again = runs_of(read_records(path), found.plans)
    for one, other in zip(runs_of(records, found.plans), again, strict=True):
        assert one.records == other.records
        assert [job.iterations for job in one.jobs.values()] == [
            job.iterations for job in other.jobs.values()
        ]


def test_a_run_without_its_end_is_left_out() -> None:
    found = experiment(JOBS)
    records = [
        r for r in records_of(found) if not (isinstance(r, RunEnded) and r.run == "two")
    ]
    assert [run.name for run in runs_of(records, found.plans)] == ["base", "full"]


@pytest.mark.parametrize(
    ("counts", "aside"), [("base" + AGAIN, "base"), ("base", "base" + AGAIN)]
)
def test_of_a_run_made_again_one_counts(counts: str, aside: str) -> None:
    found = experiment()
    records = records_of(found)
    again = [replace(record, run="base" + AGAIN) for record in records]
    said = Repeated(
        t=9.0,
        what="run",
        name="base",
        reasons=[],
        first={},
        second={},
        counts=counts,
        set_aside=aside,
    )
    (run,) = runs_of([*records, *again, said], found.plans)
    assert run.name == counts
    assert run.plan.name == "base"


def test_a_whole_run_without_a_ranks_iterations_is_an_error() -> None:
    found = experiment()
    records = [
        r for r in records_of(found) if not (isinstance(r, Iteration) and r.rank == 1)
    ]
    with pytest.raises(ScenarioError, match="no iteration of rank 1 of job red"):
        runs_of(records, found.plans)


def test_a_lost_gpu_is_on_record_and_a_failed_job_part_of_a_whole_run() -> None:
    (swapped, failed), _ = read(LOSS)
    red = swapped.jobs["red"]
    assert [loss.gpu for loss in red.losses] == ["g1"]
    assert red.last_gpus != red.gpus
    assert len(red.by_index) == 6
    (loss,) = swapped.actions
    assert loss.plan.do == "lose"
    assert loss.error is None
    assert failed.jobs["red"].state == "FAILED"
    assert failed.jobs["red"].jct_s is None
    assert failed.jobs["red"].end is not None


def test_iterations_that_are_done_again_count_once() -> None:
    """A testbed's job may go back to an older state than it had reached."""
    found = experiment()
    records = records_of(found)
    third = [r for r in records if isinstance(r, Iteration) and r.i == 3]
    first, at = third[0], max(it.allreduce_end for it in third) + 1e-6
    back = JobRecovered(
        t=at, run=first.run, job="red", iteration=2, gpus=["g0", "g2"], at=at
    )
    again = [
        replace(r, compute_start=at, compute_end=at, allreduce_end=at + r.i, t=at + r.i)
        for r in records
        if isinstance(r, Iteration) and r.i in (2, 3)
    ]
    (run,) = runs_of([*records, back, *again], found.plans)
    red = run.jobs["red"]
    assert [it.i for it in red.iterations if it.rank == 0] == [0, 1, 2, 3, 4, 5]
    assert {it.i for it in red.redone} == {2, 3}
    assert all(it.allreduce_end > at for it in red.iterations if it.i in (2, 3))
    assert red.last_gpus == ("g0", "g2")
