"""What experiments on grids say: plans, figures, whether a run can be believed, and break-evens."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.compare import break_even_rows
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.spec import BreakEvenSpec
from ringlight.experiments.record.events import Record, RunEnded
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.extensions.oddl.records import GridLit
from tests.simulated import records_of, with_links, with_workers
from tests.unit.test_compare import the
from tests.unit.test_fidelity import judged
from tests.unit.test_metrics import where

DATA = Path(__file__).parent / "data"
TWO_JOBS = DATA / "mini_two_jobs.yaml"


def test_times_of_the_file_are_stretched_and_runs_of_one_lab_share_a_setting() -> None:
    experiment = load(ROOT / "scenarios/oddl_4.yaml")
    plans = {plan.name: plan for plan in experiment.plans}
    killed = plans["controller-killed"]
    assert killed.events[0].back_after_s == 10.0
    assert killed.job("train").iterations == 21
    assert killed.job("train").loop.compute_s == pytest.approx(4 * 0.221)
    assert killed.setting is plans["prototype"].setting is plans["agent-killed"].setting
    assert killed.setting.onic_faults
    assert not plans["oddl"].setting.onic_faults
    assert plans["agent-killed"].control.loss == 0.05
    assert plans["prototype"].tuning_s == dict.fromkeys(
        ("n0", "n1", "n2", "n3"), pytest.approx(42e-9)
    )


def test_every_flow_of_a_grid_is_asked_for_and_lit() -> None:
    found = load(TWO_JOBS)
    rows = analyse(found, records_of(found), "simulated").rows
    for arm in ("alone", "shared"):
        of = {row.metric: row.value for row in where(rows, arm=arm, repeat=None)}
        assert of["flows"] == of["flows_expected"] > 0
        assert of["receiver_overlaps"] == 0
        assert 0 < of["setup_p50"] <= of["setup_p99"] <= of["setup_max"]
        assert of["idle_setup_max"] <= of["setup_max"] <= of["open_max"]
        assert of["control_messages_per_flow"] == pytest.approx(4)
        assert of["jct_predicted_with_setup"] > of["jct_predicted"]


@pytest.fixture(scope="module")
def grid() -> tuple[Experiment, list[Record]]:
    found = load(TWO_JOBS)
    return found, with_links(list(with_workers(records_of(found))), 0.993)


def test_light_from_one_job_to_another_is_no_run_to_believe(
    grid: tuple[Experiment, list[Record]],
) -> None:
    run = next(run for run in runs_of(grid[1], grid[0].plans) if len(run.jobs) == 2)
    one, other = (job.gpus for job in run.jobs.values())
    for to, between in ((one[1], False), (other[1], True)):
        lit = [{"from": one[0], "to": to}, {"from": other[0], "to": other[1]}]
        note = GridLit(t=run.ended, run=run.name, grid={"switches": [{"lit": lit}]})
        found = judged(
            grid,
            lambda records, note=note: [  # type: ignore[misc]
                n
                for r in records
                for n in (
                    [note, r] if isinstance(r, RunEnded) and r.run == run.name else [r]
                )
            ],
        )
        astray = [r for r in found["reasons"] if r["code"] == "light_astray"]
        assert bool(astray) is between


@functools.cache
def on_a_grid() -> Run:
    found = load(DATA / "mini_oddl.yaml")
    return next(
        run for run in runs_of(records_of(found), found.plans) if run.plan.arm == "oddl"
    )


@given(st.floats(1e-3, 1), st.floats(1, 9), st.floats(1.01, 2))
def test_on_a_line_the_break_even_is_where_the_line_says(
    free_s: float, waits: float, tolerance: float
) -> None:
    run = on_a_grid()
    set_ups = [1e-4, 5e-4, 2e-3]
    points = [{"x": number} for number in range(3)]
    runs = [replace(run, plan=replace(run.plan, point=point)) for point in points]
    rows = [Row("ideal", "job train", "exchange", free_s * 1.01, "s", "simulated")]
    for point, waited in zip(points, set_ups, strict=True):
        one = Row("oddl", "fabric oddl", "setup_p50", waited, "s", "simulated", point)
        took = replace(
            one, subject="job train", metric="exchange", value=free_s + waits * waited
        )
        rows += [one, took, replace(took, metric="allreduce_predicted", value=free_s)]
    spec = BreakEvenSpec(arm="oddl", baseline="ideal", tolerance=tolerance)
    made = list(break_even_rows(spec, Table(rows), runs))
    assert the(made, "break_even") == pytest.approx(
        (tolerance - 1) * free_s / waits, rel=1e-6
    )
    assert the(made, "waits") == pytest.approx(waits, rel=1e-6)
    for point, waited in zip(points, set_ups, strict=True):
        assert the(made, "slowdown_by_setup", point=point) == pytest.approx(
            1 + waits * waited / free_s, rel=1e-6
        )
