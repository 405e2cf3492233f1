"""Rows that follow from rows: repeats, arms against a baseline, published figures, break-even."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis.compare import break_even_rows, comparison_rows
from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.published import standing_of
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.analysis.rows import (
    Row,
    Standing,
    as_csv,
    as_json,
    from_json,
    where,
)
from ringlight.experiments.analysis.statistics import (
    half_width,
    over_repeats,
    student_t,
)
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.language.spec import BreakEvenSpec, CompareSpec
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import Iteration, Record, WorkerDone
from tests.simulated import analysed, build, experiment, records_of, the, with_workers

ARMS = "arms: {near: {}, far: {jobs.red.ranks: [g0, g3]}}\n"
TIMES = st.lists(st.floats(0.1, 100), min_size=2, max_size=6)


def slower(records: Sequence[Record], run: str, factor: float) -> list[Record]:
    """As if a run's iterations had taken longer by a factor, the time between them as well."""
    return [
        replace(
            record,
            compute_start=record.compute_start * factor,
            compute_end=record.compute_end * factor,
            allreduce_end=record.allreduce_end * factor,
        )
        if isinstance(record, Iteration) and record.run == run
        else record
        for record in records
    ]


# Repeats.


def row(value: float | bool | str, repeat: int, **more: object) -> Row:
    return replace(
        Row("a", "job red", "jct", value, "s", "measured", repeat=repeat), **more
    )


@given(TIMES)
def test_repeats_give_their_mean_and_its_interval(values: list[float]) -> None:
    rows = over_repeats([row(value, number) for number, value in enumerate(values, 1)])
    (whole,) = where(rows, repeat=None)
    assert len(rows) == len(values) + 1
    assert min(values) * (1 - 1e-9) <= whole.value <= max(values) * (1 + 1e-9)
    low, high = stats.t.interval(
        0.95, len(values) - 1, statistics.fmean(values), stats.sem(values) or 1e-300
    )
    assert whole.spread == pytest.approx((high - low) / 2, rel=1e-6, abs=1e-12)


def test_one_run_stands_for_all_and_has_no_interval() -> None:
    assert over_repeats([row(3.0, 1)]) == [replace(row(3.0, 1), repeat=None)]
    assert half_width([3.0]) is None


@pytest.mark.parametrize("freedom", [1, 1.07, 1.5, 2, 3.2, 9, 30.5, 400, 20_000])
def test_the_interval_is_students(freedom: float) -> None:
    assert student_t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_truths_hold_where_all_do_and_words_where_they_agree() -> None:
    found = over_repeats(
        [
            row(True, 1, metric="x"),
            row(False, 2, metric="x"),
            row("SUCCEEDED", 1, metric="y"),
            row("SUCCEEDED", 2, metric="y"),
            row("SUCCEEDED", 1, metric="z"),
            row("FAILED", 2, metric="z"),
        ]
    )
    assert [(r.metric, r.value) for r in where(found, repeat=None)] == [
        ("x", False),
        ("y", "SUCCEEDED"),
    ]


# Comparisons.


def test_an_arm_against_the_baseline() -> None:
    rows = analysed(
        ARMS + "compare: {baseline: near, metrics: [jct, algbw], limit: 1.2}\n"
    ).rows
    near, far = (the(rows, "jct", arm=arm) for arm in ("near", "far"))
    assert the(rows, "jct_ratio", arm="far") == pytest.approx(far / near)
    assert the(rows, "jct_reduction", arm="far") == pytest.approx(
        100 * (near - far) / near
    )
    assert the(rows, "within_limit") is (far / near <= 1.2)
    assert where(rows, metric="algbw_ratio")
    assert not where(rows, metric="algbw_reduction")
    assert not where(rows, metric="jct_ratio", arm="near")


def test_repeats_are_compared_in_pairs() -> None:
    found = experiment(ARMS + "repeat: 3\ncompare: {baseline: near, metrics: jct}\n")
    records = slower(records_of(found), "far-r2", 1.1)
    rows = analyse(found, records, "simulated").rows
    ratios = where(rows, metric="jct_ratio")
    assert [r.repeat for r in ratios] == [1, 2, 3, None]
    first, second, third, whole = (r.value for r in ratios)
    assert first == third
    assert second == pytest.approx(1.1 * first, rel=1e-3)
    assert whole == pytest.approx(statistics.fmean((first, second, third)), rel=1e-3)
    assert ratios[-1].spread == pytest.approx(half_width([first, second, third]))


def test_a_baseline_is_taken_where_its_point_is_the_arms() -> None:
    """What the baseline does not sweep holds for all; where it sweeps the same path, the same value."""
    rows = analysed(
        ARMS
        + "sweep:\n"
        + "  - {arms: far, over: {training.iterations: [2, 4], training.gradient: [10 MB, 20 MB]}}\n"
        + "  - {arms: near, over: {training.iterations: [2, 4]}}\n"
        + "compare: {baseline: near, metrics: jct}\n"
    ).rows
    ratios = where(rows, metric="jct_ratio")
    assert len(ratios) == 4
    for ratio in ratios:
        point = {"training.iterations": ratio.point["training.iterations"]}
        base = the(rows, "jct", arm="near", point=point)
        assert ratio.value == pytest.approx(
            the(rows, "jct", arm="far", point=ratio.point) / base
        )


def test_a_second_baseline_does_not_hide_the_first() -> None:
    rows = analysed(
        "arms: {near: {}, far: {jobs.red.ranks: [g0, g3]}, slow: {jobs.red.slower: {1: 2}}}\n"
        "compare: [{baseline: near, arms: far, metrics: jct},"
        " {name: again, baseline: slow, arms: far, metrics: jct}]\n"
    ).rows
    far = the(rows, "jct", arm="far")
    assert the(rows, "jct_ratio", arm="far") == pytest.approx(
        far / the(rows, "jct", arm="near")
    )
    assert the(rows, "jct_ratio.again", arm="far") == pytest.approx(
        far / the(rows, "jct", arm="slow")
    )


@pytest.mark.parametrize(("sha", "equal"), [("abc", True), ("abd", False)])
def test_arms_that_train_the_same_should_end_with_the_same_parameters(
    sha: str, equal: bool
) -> None:
    arms = "arms: {near: {}, far: {jobs.red.ranks: [g0, g3]}, long: {training.iterations: 9}}\n"
    found = experiment(arms + "compare: {baseline: near}\n")
    shown = [
        replace(r, parameters_sha256=sha)
        if isinstance(r, WorkerDone) and r.run == "far"
        else r
        for r in with_workers(records_of(found))
    ]
    rows = analyse(found, shown, "measured").rows
    assert the(rows, "parameters_equal", arm="far") is equal
    assert not where(rows, metric="parameters_equal", arm="long")


def test_how_small_a_slowdown_would_have_been_seen() -> None:
    found = experiment(ARMS + "compare: {baseline: near}\n")
    records = records_of(found)
    shaken = [
        replace(r, allreduce_end=r.allreduce_end + 1e-3 * (r.i % 2))
        if isinstance(r, Iteration)
        else r
        for r in records
    ]
    calm, seen = (
        the(analyse(found, these, "measured").rows, "iteration_told_apart", arm="far")
        for these in (records, shaken)
    )
    assert calm == pytest.approx(0, abs=1e-9)
    assert 1e-3 < seen < 0.1
    assert not where(
        analyse(found, records, "simulated").rows, metric="iteration_told_apart"
    )


@given(TIMES, TIMES)
def test_ratio_and_reduction_say_the_same(
    over: list[float], under: list[float]
) -> None:
    rows = over_repeats(
        [row(v, n, arm="a") for n, v in enumerate(over)]
        + [row(v, n, arm="b") for n, v in enumerate(under)]
    )
    found = list(
        comparison_rows(CompareSpec(baseline="b", metrics=("jct",)), Table(rows))
    )
    assert {r.arm for r in found} == {"a"}
    for ratio in where(found, metric="jct_ratio"):
        (less,) = where(found, metric="jct_reduction", repeat=ratio.repeat)
        assert less.value == pytest.approx(100 * (1 - ratio.value), abs=1e-6)


def test_a_baseline_that_was_0_once_has_no_ratio_there() -> None:
    values = {("a", 1): 2.0, ("a", 2): 3.0, ("b", 1): 0.0, ("b", 2): 1.0}
    rows = over_repeats([row(value, n, arm=arm) for (arm, n), value in values.items()])
    found = list(
        comparison_rows(CompareSpec(baseline="b", metrics=("jct",)), Table(rows))
    )
    assert [(r.repeat, r.value) for r in where(found, metric="jct_ratio")] == [
        (2, 3.0),
        (None, 5.0),
    ]


# What is published.


def test_published_figures_stand_beside_the_runs_with_what_agreement_is_worth() -> None:
    rows = analysed(
        ARMS
        + "compare: {baseline: near, metrics: [jct, gpu_utilisation]}\n"
        + "paper: {citation: A paper}\n"
        + "parameters: {x: {value: 1, source: derived, why: so, fitted_to: [near.jct]}}\n"
        + "published:\n"
        + "  - {arm: near, metric: jct, value: 2 s}\n"
        + "  - {arm: far, metric: jct, value: 3 s, standing: predicted, why: nothing went in}\n"
        + "  - {arm: far, metric: iteration, value: 1 s}\n"
        + "  - {arm: far, over: near, metric: gpu_utilisation, range: [0.1, 0.99], words: less,\n"
        + "     standing: range, why: seven definitions}\n"
    ).rows
    published = where(rows, label="published")
    assert the(published, "jct", arm="far") == 3
    assert the(published, "jct_ratio", arm="far") == pytest.approx(1.5)
    standings = {(r.arm, r.metric): r.standing for r in rows if r.label == "simulated"}
    assert standings["near", "jct"] == "fitted"
    assert standings["far", "jct"] == "predicted"
    assert standings["far", "jct_ratio"] == "predicted"
    assert standings["far", "iteration"] == "unjudged"
    assert standings["far", "gpu_utilisation_ratio"] == "range"
    assert standings["far", "queueing_delay"] == "free"
    agrees = [r.value for r in rows if r.metric.endswith("_agrees")]
    assert the(rows, "gpu_utilisation_ratio_inside") == pytest.approx(
        sum(agrees) / len(agrees)
    )
    assert 0 < the(rows, "gpu_utilisation_ratio_inside") < 1
    assert the(rows, "gpu_utilisation_ratio_from") == 0.1
    assert the(rows, "gpu_utilisation_ratio_agrees") is True
    assert the(rows, "gpu_utilisation.collective_ratio_agrees") is False


@pytest.mark.parametrize(("figure", "value"), [("80 %", 0.8), ("0.8", 0.8)])
def test_a_published_share_may_be_given_in_per_cent(figure: str, value: float) -> None:
    """The metric's unit is 1, and so is what stands beside it."""
    found = experiment(
        ARMS
        + "paper: {citation: A paper}\n"
        + "published:\n"
        + f"  - {{arm: far, metric: accuracy, value: {figure}}}\n"
        + "  - {arm: near, metric: accuracy, range: [85 %, 0.95]}\n"
        + "  - {arm: near, over: far, metric: jct, range: [20 %, 101 %]}\n"
        + "compare: {baseline: far, metrics: [accuracy, jct]}\n"
    )
    rows = analyse(found, [*with_workers(records_of(found))], "measured").rows
    published = where(rows, label="published", repeat=None)
    assert {r.unit for r in published} == {"1"}
    assert the(published, "accuracy", arm="far") == pytest.approx(value)
    assert the(published, "accuracy_from") == pytest.approx(0.85)
    assert the(rows, "accuracy_agrees", arm="near") is True
    assert the(rows, "jct_ratio_agrees", arm="near") is True


ORDER_OF_WORTH = ("free", "unjudged", "predicted", "range", "identity", "fitted")


@pytest.mark.parametrize("over", ORDER_OF_WORTH)
@pytest.mark.parametrize("under", ORDER_OF_WORTH)
def test_a_ratio_stands_as_the_figure_that_could_surprise_more(
    over: Standing, under: Standing
) -> None:
    rows = [
        replace(row(3.0, 1), standing=over),
        replace(row(2.0, 1, arm="b"), standing=under),
    ]
    found = comparison_rows(
        CompareSpec(baseline="b", metrics=("jct",)), Table(over_repeats(rows))
    )
    (ratio,) = where(list(found), metric="jct_ratio", repeat=None)
    assert ratio.standing == min(over, under, key=ORDER_OF_WORTH.index)


@pytest.mark.parametrize(
    ("figure", "wrong"),
    [
        ("standing: predicted", "published[0]: standing and why go together"),
        ("why: so", "published[0]: standing and why go together"),
        ("standing: surely, why: so", "published[0].standing"),
        (
            "standing: identity, why: so",
            "published[0].standing: it is fitted, as parameters.x.fitted_to names it",
        ),
    ],
)
def test_a_standing_that_does_not_fit_is_refused(figure: str, wrong: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        experiment(
            ARMS
            + "paper: {citation: A paper}\n"
            + "parameters: {x: {value: 1, source: derived, why: so, fitted_to: [near.jct]}}\n"
            + f"published:\n  - {{arm: near, metric: jct, value: 2 s, {figure}}}\n"
        )
    assert wrong in str(caught.value)


def test_a_figure_of_another_thing_is_free_beside_fitted_ones() -> None:
    spec = experiment(
        ARMS
        + "paper: {citation: A paper}\n"
        + "parameters: {x: {value: 1, source: derived, why: so, fitted_to: [near.jct]}}\n"
        + "published:\n"
        + "  - {arm: near, metric: jct, value: 2 s}\n"
        + "  - {arm: near, metric: jct, value: 3 s, standing: free, why: It is of another lab}\n"
    ).spec
    assert [standing_of(figure, spec) for figure in spec.published] == [
        "fitted",
        "free",
    ]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_published_figure_of_a_bundled_scenario_has_been_judged(
    path: Path,
) -> None:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    fitted = {
        key
        for parameter in raw.get("parameters", {}).values()
        for key in parameter.get("fitted_to", ())
    }
    for figure in raw.get("published", ()):
        assert (
            "standing" in figure or f"{figure['arm']}.{figure['metric']}" in fitted
        ), figure


# Break-even.


def test_set_ups_that_seem_to_cost_nothing_conclude_nothing() -> None:
    row_of = Row("ideal", "job train", "exchange", 1.0, "s", "measured")
    assert not list(
        break_even_rows(
            BreakEvenSpec(arm="light", baseline="ideal"), Table([row_of]), []
        )
    )


# The whole result.


def test_a_point_stands_once_in_a_result() -> None:
    point = {"training.batch": 8}
    made = [
        Row(arm, "run", "jct", 1.0, "s", "simulated", at)
        for arm, at in (("a", point), ("b", {**point}), ("b", {}))
    ]
    found = as_json(made)
    assert found["points"] == {"p0": point, "p1": {}}
    assert [row["point"] for row in found["rows"]] == ["p0", "p0", "p1"]
    assert from_json(found) == made


def test_the_result_says_what_was_not_run_and_what_failed() -> None:
    found = experiment(ARMS)
    records = [r for r in records_of(found) if r.run != "far"]
    told = {
        "run": "r",
        "backend": "simulation",
        "label": "simulated",
        "not_run": {"far": "no light"},
    }
    result = build(found, records, {**told, "arms": ["near"]})
    assert result["complete"] is True
    assert result["not_run"] == [{"arm": "far", "why": "no light"}]
    assert result["fidelity"]["verdict"] == "simulated"
    assert build(found, records, {**told, "arms": ["near", "far"]})["complete"] is False
    rows = from_json(result)
    assert as_csv(rows).count("\n") == len(rows) + 1
    assert {row.metric for row in rows} <= set(metrics())
