"""The study of OptINC: its figures against formulas of the paper, and its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ringlight.experiments.analysis.metrics import metrics
from ringlight.experiments.analysis.rows import Row, where
from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.papers import Finding
from ringlight.experiments.report.report import render
from ringlight.experiments.report.view import View
from ringlight.experiments.runner.command import view_of_folder
from ringlight.extensions.optinc.closed_forms import verdict
from tests.unit.page import Page, text_of
from tests.unit.test_paper_pages import raw_of, simulated

SERVERS = "fabrics.one.averaging.servers"


def small() -> dict[str, Any]:
    """The study with few points; its published figures all keep theirs."""
    raw = raw_of("scenarios/optinc.yaml")
    for sweep in raw["sweep"]:
        for path, values in sweep["over"].items():
            if path == SERVERS and len(values) > 3:
                sweep["over"][path] = [4, 8, 16]
            elif path == "fabrics.two.averaging.servers":
                sweep["over"][path] = [16]
            elif ".imperfect." in path:
                sweep["over"][path] = values[:1] + values[-1:]
    return raw


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    return view_of_folder(simulated(small(), tmp_path_factory.mktemp("study")))[0]


def numbers(view: View, arm: str, metric: str) -> dict[Any, float]:
    rows: list[Row] = where(view.rows, arm=arm, metric=metric, repeat=None)
    return {
        row.point.get(SERVERS): float(row.value)  # type: ignore[arg-type]
        for row in rows
        if row.label != "published"
    }


def test_a_ring_sends_2_n_minus_1_over_n_and_averagers_once(view: View) -> None:
    ring, ours = (
        numbers(view, arm, "port_sent_over_payload") for arm in ("ring", "optinc")
    )
    scales = numbers(view, "optinc", "port_scales")
    for n in (4, 8, 16):
        assert ring[n] == pytest.approx(2 * (n - 1) / n)
        # 0.06 % for the frames' headers.
        assert ours[n] - scales[n] / 25_557_032 == pytest.approx(1, rel=1e-3)


def test_the_saving_that_computing_was_solved_from_comes_out(view: View) -> None:
    """f / 3 at four servers; at N by the same computing."""
    for saved, model in ((0.25, "resnet"), (0.17, "llama")):
        ours, ring = (
            numbers(view, f"{arm}-{model}", "iteration_ideal")
            for arm in ("optinc", "ring")
        )
        share = numbers(view, f"ring-{model}", "communication_share")[4]
        assert share == pytest.approx(3 * saved, abs=1e-4)
        for n in (4, 8, 16):
            total = (1 - share) + share * (2 * (n - 1) / n) / 1.5
            expected = 1 - ((1 - share) + share / 1.5) / total
            assert 1 - ours[n] / ring[n] == pytest.approx(expected, abs=1e-5)


def test_areas_are_within_the_published_digits(view: View) -> None:
    for arm, within in (("unit-8", 0.1), ("unit-16", 0.2)):
        rows = where(view.rows, arm=arm, metric="unit_area.mean")
        ours = {
            str(row.point): float(row.value) for row in rows if row.label == "analytic"
        }  # type: ignore[arg-type]
        theirs = {
            str(row.point): float(row.value) for row in rows if row.label == "published"
        }  # type: ignore[arg-type]
        assert len(ours) == len(theirs) == (3 if arm == "unit-8" else 5)
        assert all(100 * abs(ours[key] - theirs[key]) <= within for key in theirs)
        assert {row.standing for row in rows} == {"fitted"}


def test_the_verdict_counts_from_the_rows(view: View) -> None:
    found = list(verdict(view.base))
    assert all(isinstance(one, Finding) and one.text for one in found)
    said = "\n".join(one.text for one in found)
    assert "25.0 % of an iteration is saved with 4 servers (fitted" in said
    assert "33.3 % with 8, 36.8 % with 16 servers (not comparable)" in said
    ring, ours = (numbers(view, arm, "allreduce") for arm in ("ring", "optinc"))
    assert f"{ring[4] / ours[4]:.2f} times as long with 4 servers" in said
    assert "phases of at least 24 bits" in said


def test_the_page_shows_averagers_meshes_and_what_is_published(
    view: View, tmp_path: Path
) -> None:
    page = render(view, tmp_path)
    words = text_of(Page(page))
    for heading in (
        "Averagers and their servers",
        "An averager's network",
        "Beside the published figures",
    ):
        assert heading in words
    assert "layer 1: 16 of 4 modes" in words
    assert "0.00014 %" in words
    assert {"averagers-one-level.svg", "averagers-two-levels.svg", "meshes.svg"} <= {
        path.name for path in tmp_path.iterdir()
    }
    # Thousands of interferometers, and still a page that opens at once.
    assert len(page) < 1_500_000


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"metrics": "nothing"}, "sweep[0].metrics: there is no metric nothing"),
        ({"title": None}, "sweep[0].metrics: they are of pictures"),
    ],
)
def test_metrics_of_a_sweep_are_checked(changed: dict[str, Any], said: str) -> None:
    raw = raw_of("scenarios/optinc.yaml")
    raw["sweep"][0] |= changed
    units = {name: found.unit for name, found in metrics().items()}
    with pytest.raises(ScenarioError) as caught:
        parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml", metrics=units)
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["5-6", {"odd": {}}])
def test_a_published_figure_at_a_point_that_nothing_is_at_is_refused(
    value: Any,
) -> None:
    raw = raw_of("scenarios/optinc.yaml")
    (own,) = [k for k, one in enumerate(raw["published"]) if one["value"] == "47.4 %"]
    raw["published"][own]["at"] = {"fabrics.one.averaging.approximated": [value]}
    with pytest.raises(
        ScenarioError,
        match=rf"published\[{own}\]\.at: arm unit-16 is at no point of a sweep",
    ):
        parse(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")
