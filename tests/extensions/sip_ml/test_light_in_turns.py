"""Circuits that are divided again and again: an iteration hangs on the interval, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ringlight.experiments.analysis.result import analyse, document
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import Record
from ringlight.experiments.report.report import render
from ringlight.experiments.report.view import View, view_of
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.extensions.sip_ml.records import LightGiven
from ringlight.extensions.sip_ml.sections.divided import turns
from ringlight.extensions.sip_ml.simulation import interconnects
from ringlight.testbed.simulation.arrays import FloatArray
from tests.simulated import bundled

INTERVAL = "parameters.interval.value"
INTERVALS = ("7.2 ms", "7.4 ms", "7.6 ms")


def simulated(*intervals: str) -> tuple[View, list[Record]]:
    raw: dict[str, Any] = yaml.safe_load(
        bundled("sip_ml_intervals").read_text(encoding="utf-8")
    )
    raw["sweep"]["over"][INTERVAL] = list(intervals)
    experiment, backend = (
        parse(yaml.safe_dump(raw), "intervals.yaml"),
        SimulationBackend(),
    )
    records: list[Record] = []
    for plan in choose(experiment, backend).plans:
        found, failures = run_alone(backend, plan)
        assert not failures
        records += found
    environment = {
        "seed": 0,
        "code": "0123456789abcdef",
        "not_run": {},
        **backend.facts(),
    }
    found = analyse(experiment, records, "simulated")
    return view_of(found, document(found, records, environment), environment), records


def figures(view: View, metric: str) -> list[float]:
    found = [
        view.figures_at("divided", "job train", point).number(metric)
        for point in view.points("divided")
    ]
    return [value for value in found if value is not None]


@pytest.fixture(scope="module")
def resonance() -> tuple[View, list[Record]]:
    return simulated(*INTERVALS)


def test_a_little_more_between_divisions_costs_nearly_half_an_iteration(
    resonance: tuple[View, list[Record]],
) -> None:
    before, at, behind = figures(resonance[0], "jct")
    assert min(before, behind) > 1.35 * at


def test_then_most_divisions_are_for_what_has_just_been_sent(
    resonance: tuple[View, list[Record]],
) -> None:
    view, records = resonance
    made, late = figures(view, "divisions"), figures(view, "divisions_late")
    shares = [few / all_ for few, all_ in zip(late, made, strict=True)]
    assert shares[1] < 0.35
    assert min(shares[0], shares[2]) > 0.6
    (given, *_) = [record for record in records if isinstance(record, LightGiven)]
    # By hand, for the first interval.
    found = 0
    for one, then in zip(given.divisions, given.divisions[1:], strict=False):
        dark = sum(
            size
            for size, count in zip(then["left_bytes"], one["lightpaths"], strict=True)
            if not count
        )
        found += 2 * dark > sum(then["left_bytes"])
    assert found == late[0]
    assert len(given.pairs) == len(given.divisions[0]["left_bytes"])


def test_with_a_circuit_kept_for_each_pair_the_interval_hardly_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That pairs without bytes at the moment get no light is all that there is to it."""
    call = interconnects.LightDivision.__call__

    def kept(self: interconnects.LightDivision, left: FloatArray) -> FloatArray:
        return call(self, np.maximum(left, 1.0))

    monkeypatch.setattr(interconnects.LightDivision, "__call__", kept)
    times = figures(simulated("4 ms", *INTERVALS, "12 ms")[0], "jct")
    assert max(times) < 1.1 * min(times)


def test_the_report_shows_the_two_that_differ_most(
    resonance: tuple[View, list[Record]], tmp_path: Path
) -> None:
    view, _ = resonance
    assert turns(view, lambda *_: "drawn")
    html = render(view, tmp_path)
    assert "Light in turns" in html
    assert (tmp_path / "turns.svg").exists()
