"""The best value of a swept path: rows from rows, and what a file may ask for."""

from __future__ import annotations

import pytest

from ringlight.experiments.analysis.rows import Row
from ringlight.experiments.analysis.search import search_rows
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.spec import SearchSpec
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.report.words import meaning

SPEC = SearchSpec(along=("k",))


def row(arm: str, seconds: float | None, **point: object) -> Row:
    return Row(arm, "job red", "jct", seconds, "s", "simulated", point)


def test_the_least_of_each_arm_and_point_is_found_with_where_it_is() -> None:
    rows = [
        *(
            row("a", seconds, k=k, rate="1 Tbit/s")
            for k, seconds in ((1, 5.0), (2, 3.0), (4, 3.0))
        ),
        *(
            row("a", seconds, k=k, rate="2 Tbit/s")
            for k, seconds in ((1, 1.0), (2, None))
        ),
        row("b", 7.0, k="2 Tbit/s"),
        row("b", 9.0),
    ]
    found = {
        (r.arm, str(r.point.get("rate")), r.metric): (r.value, r.unit)
        for r in search_rows(SPEC, rows)
    }
    assert found == {
        ("a", "1 Tbit/s", "jct_best"): (3.0, "s"),
        ("a", "1 Tbit/s", "jct_best_at"): (2, "1"),
        ("a", "2 Tbit/s", "jct_best"): (1.0, "s"),
        ("a", "2 Tbit/s", "jct_best_at"): (1, "1"),
        ("b", "None", "jct_best"): (7.0, "s"),
        ("b", "None", "jct_best_at"): (2e12, "bit/s"),
    }
    assert all("k" not in r.point for r in search_rows(SPEC, rows))


def test_several_paths_are_searched_together() -> None:
    """A figure that is swept over one of them alone is no figure of the search."""
    rows = [
        row("a", 4.0, k=1, by="ring"),
        row("a", 3.0, k=2, by="ring"),
        row("a", 1.0 + 1e-13, k=1, by="tree"),
        row("a", 1.0, k=1, by="star"),
        row("a", 0.5, k=1),
        row("b", 2.0, k=4, by="ring", rate="1 Tbit/s"),
    ]
    found = list(search_rows(SearchSpec(along=("k", "by")), rows))
    assert [(r.arm, r.metric, r.value, r.point) for r in found] == [
        # The first of two that are alike.
        ("a", "jct_best", 1.0 + 1e-13, {}),
        ("a", "jct_best_at", "1, tree", {}),
        ("b", "jct_best", 2.0, {"rate": "1 Tbit/s"}),
        ("b", "jct_best_at", "4, ring", {"rate": "1 Tbit/s"}),
    ]


def test_a_report_says_what_the_best_is_of() -> None:
    assert meaning("jct_best") == f"{meaning('jct')}, the least that was searched"


FILE = """
name: whole
description: Eight GPUs.
parameters: {pieces: {value: 2, source: assumed, why: To be searched.}}
fabric: {leaf_spine: {leaves: 2, spines: 2, gpus_per_leaf: 4, gpu: a100, rate: 400 Gbit/s}}
tcp: {headers: false}
jobs: {red: {ranks: all, workload: {collective: all-reduce, size: 1 MB, iterations: $pieces}}}
sweep: {parameters.pieces.value: [1, 2, 8]}
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "sweep",
            "search: {along: parameters.piece.value}\nsweep",
            "search.along: there is no swept path",
        ),
        (
            "sweep",
            "search: {along: [parameters.pieces.value, k]}\nsweep",
            "there is no swept path k",
        ),
        ("sweep", "search: {along: []}\nsweep", "search.along"),
        (
            "sweep",
            "search: {along: parameters.pieces.value, metric: jc}\nsweep",
            "search.metric: there is no m",
        ),
    ],
)
def test_what_cannot_be_searched_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(FILE.replace(old, new), "whole.yaml", metrics={"jct": "s"})
    assert said in str(caught.value)


def test_a_meaning_has_the_words_of_other_metrics_and_no_marks() -> None:
    words = "longest of beacon gap, dark on the wire and TCP stall"
    assert meaning("blackout") == words
