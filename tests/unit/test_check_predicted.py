"""How long ``check`` says that jobs will take: what they take, at every point; never a time to wait by."""

from __future__ import annotations

from typing import Any

import pytest

from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.cli import predicted
from ringlight.experiments.cli.show import check_document, show_check
from ringlight.experiments.language.expand import Experiment
from tests.simulated import experiment, records_of, the

LATER = "arms: {base: {jobs.late: {ranks: [g3, g4], start: {at: 1 s}}}}\n"
SWEPT = "sweep: {over: {training.compute: [50 ms, 100 ms, 200 ms]}}\n"


def points(found: Experiment, arm: str = "base") -> list[dict[str, Any]]:
    return list(check_document(found)["arms"][arm]["points"])


def test_a_job_that_starts_later_has_its_own_time_and_not_the_deadline_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = experiment(LATER)
    (point,) = points(found)
    assert point["how"] == "simulated"
    show_check(check_document(found))
    assert f"simulated as ready {predicted.START_UP_S} s after it has its GPUs" in capsys.readouterr().out
    # An emulation has its containers to start when the late job has its GPUs.
    started = experiment(LATER.replace("at: 1 s", f"at: {1 + predicted.START_UP_S} s"))
    rows = analyse(started, records_of(started), "simulated").rows
    for job in ("red", "late"):
        assert point["jct_s"][job] == pytest.approx(the(rows, "jct", subject=f"job {job}"))


def test_every_point_of_a_sweep_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    document = check_document(experiment(SWEPT))
    found = document["arms"]["base"]["points"]
    assert [point["point"] for point in found] == [{"training.compute": f"{c} ms"} for c in (50, 100, 200)]
    least, _, most = (point["jct_s"]["red"] for point in found)
    # Six iterations, each as much longer.
    assert most - least == pytest.approx(6 * 0.15)
    show_check(document)
    assert f"{least:.2f} to {most:.2f} s" in capsys.readouterr().out


def test_points_that_would_take_long_are_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predicted, "MOST_SQUARES", 8)
    monkeypatch.setattr(predicted, "MOST_EVENTS", 10)
    show_check(check_document(experiment(SWEPT)))
    assert "not predicted: base (1 of 3): so many points would take long" in capsys.readouterr().out
    show_check(check_document(experiment(LATER)))
    assert "takes more than 10 events" in capsys.readouterr().out


def test_what_cannot_be_simulated_says_why() -> None:
    kill = "events: [{name: dead, when: {at: 100 ms}, do: kill, target: controller}]\n"
    (point,) = points(experiment(kill))
    assert "cannot kill the controller" in point["why_not"]
