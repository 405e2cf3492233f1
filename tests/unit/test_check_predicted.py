"""How long ``check`` says that jobs will take: what they take, at every point; never a time to wait by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.result import analyse, document
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.cli.show import show_check, show_result
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.runner import predicted_points
from ringlight.experiments.runner.check_document import check_document
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.foretold import Foreteller
from tests.simulated import experiment, records_of, the, with_links, with_workers

LATER = "arms: {base: {jobs.late: {ranks: [g3, g4], start: {at: 1 s}}}}\n"
#: Both cross the link between the switches, which they fill when their all-reduces meet.
PHASED = """arms:
  base:
    jobs.red: {ranks: [g0, g3], training: {gradient: 100 MB}}
    jobs.late: {ranks: [g1, g4], start: {at: 100 ms}, training: {gradient: 100 MB, iterations: 2}}
"""
SWEPT = "sweep: {over: {training.compute: [50 ms, 100 ms, 200 ms]}}\n"


def points(found: Experiment, arm: str = "base") -> list[dict[str, Any]]:
    return list(check_document(found)["arms"][arm]["points"])


def test_a_job_that_starts_later_has_its_own_time_and_not_the_deadline_of_all() -> None:
    found = experiment(LATER)
    (point,) = points(found)
    assert point["how"] == "simulated"
    rows = analyse(found, records_of(found), "simulated").rows
    for job in ("red", "late"):
        assert point["jct_s"][job] == the(rows, "jct", subject=f"job {job}")


def test_one_file_has_one_simulated_figure_and_a_range_where_the_phase_of_two_jobs_decides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Checked, simulated and beside a measured run it had three."""
    found = experiment(PHASED)
    records = records_of(found)
    (point,) = points(found)
    least, most = point["phases"]["late"]
    assert most > 1.01 * least
    assert least <= point["jct_s"]["late"] <= most
    (plan,) = found.plans
    ready = replace(
        plan, jobs=tuple(replace(job, start_up_s=0.77) for job in plan.jobs)
    )
    run = [*with_workers(run_alone(SimulationBackend(), ready)[0])]
    simulated = analyse(found, records, "simulated", foretell=Foreteller())
    measured = analyse(found, with_links(run), "measured", foretell=Foreteller())
    assert the(simulated.rows, "jct", subject="job late") == point["jct_s"]["late"]
    for rows in (simulated.rows, measured.rows):
        assert the(rows, "jct_phase_least", subject="job late") == least
        assert the(rows, "jct_phase_most", subject="job late") == most
    # A measured run is compared at its own phase.
    assert the(
        measured.rows, "jct_over_simulated", subject="job late"
    ) == pytest.approx(1)
    show_check(check_document(found))
    said = capsys.readouterr().out
    assert f"{least:.2f} to {most:.2f} s" in said
    assert "when in an iteration of others a later job begins decides" in said
    result = document(
        simulated, records, {"run": "x", "backend": "simulation", "label": "simulated"}
    )
    show_result(result)
    assert f"{least:.2f} to {most:.2f} s" in capsys.readouterr().out


def test_jobs_that_begin_together_have_no_range() -> None:
    cut = "events: [{name: cut, when: {at: 100 ms}, do: cut, target: 'link g2 t0:3'}]\n"
    (point,) = points(experiment(cut))
    assert point["how"] == "simulated"
    assert "phases" not in point


def test_every_point_of_a_sweep_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    document = check_document(experiment(SWEPT))
    found = document["arms"]["base"]["points"]
    assert [point["point"] for point in found] == [
        {"training.compute": f"{c} ms"} for c in (50, 100, 200)
    ]
    least, _, most = (point["jct_s"]["red"] for point in found)
    # Six iterations, each as much longer.
    assert most - least == pytest.approx(6 * 0.15)
    show_check(document)
    assert f"{least:.2f} to {most:.2f} s" in capsys.readouterr().out


def test_points_that_would_take_long_are_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predicted_points, "MOST_SQUARES", 8)
    monkeypatch.setattr(predicted_points, "MOST_EVENTS", 10)
    show_check(check_document(experiment(SWEPT)))
    assert (
        "not predicted: base (1 of 3): so many points would take long"
        in capsys.readouterr().out
    )
    show_check(check_document(experiment(LATER)))
    assert (
        "its simulation takes more than the 10 events that all"
        in capsys.readouterr().out
    )


def test_what_cannot_be_simulated_says_why() -> None:
    kill = "events: [{name: dead, when: {at: 100 ms}, do: kill, target: controller}]\n"
    (point,) = points(experiment(kill))
    assert "cannot kill the controller" in point["why_not"]


def test_of_an_arm_with_a_large_job_one_point_is_read_and_the_others_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = experiment(SWEPT)
    file = tmp_path / "swept.yaml"
    file.write_text(whole.text)
    found = check_document(load(file, most_gpus=1))
    assert (found["runs"], found["unread"]) == (3, {"base": 2})
    assert found["arms"]["base"]["runs"] == 3
    assert len(found["arms"]["base"]["points"]) == 1
    show_check(found)
    written = capsys.readouterr().out
    assert "sound as far as it was read. 3 runs" in written
    assert "base (2 of 3)" in written
    assert check_document(load(file, most_gpus=100))["unread"] == {}


def test_a_short_time_is_not_hidden_by_two_decimals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = experiment(
        "arms: {base: {training.compute: 1 ms, training.iterations: 2}}\n"
    )
    records = records_of(found)
    simulated = analyse(found, records, "simulated")
    jct_s = the(simulated.rows, "jct", subject="job red")
    assert jct_s < 0.1
    about = {"run": "x", "backend": "simulation", "label": "simulated"}
    show_result(document(simulated, records, about))
    assert f" {1e3 * jct_s:.3g} ms " in capsys.readouterr().out
