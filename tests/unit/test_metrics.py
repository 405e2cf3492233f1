"""Metrics of runs that were simulated, some disturbed as a testbed might be."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.image import ROOT
from ringlight.experiments.analysis import metrics as registry
from ringlight.experiments.analysis.metrics import (
    Context,
    faults,
    metric,
    metrics,
    table,
)
from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.analysis.rows import Label, where
from ringlight.experiments.analysis.statistics import jain
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import Target
from ringlight.experiments.record.events import Iteration, Record, WorkerDone
from tests.simulated import analysed, bundled, experiment, records_of, the, with_workers

GPUS = [f"g{i}" for i in range(6)]


def test_every_metric_says_in_one_line_what_it_is() -> None:
    assert len(metrics()) > 60
    for name, found in metrics().items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z_]+)?", name)
        assert found.help
        assert "\n" not in found.help
        assert not found.help.endswith(".")


@pytest.fixture
def in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file in the metrics' folder."""
    (tmp_path / "extra.py").write_text(
        "from ringlight.experiments.analysis.metrics import metric\n\n\n"
        '@metric("count", of="job")\n'
        "def ranks(_, job):\n"
        '    """Ranks of the job."""\n'
        "    return len(job.gpus)\n"
    )
    monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
    registry.metrics.cache_clear()
    yield
    registry._FOUND.pop("ranks", None)
    registry.metrics.cache_clear()
    sys.modules.pop("ringlight.experiments.analysis.metrics.extra", None)


def test_a_new_metric_is_one_new_file(in_a_new_file: None) -> None:
    assert the(analysed().rows, "ranks", subject="job red") == 2


def test_their_order_does_not_depend_on_what_was_imported_first() -> None:
    """Sections import metrics, and a report may be made by a process that has run nothing."""
    orders = []
    for first in (
        "",
        "from ringlight.experiments.report.sections import sections; sections()\n",
    ):
        code = f"{first}from ringlight.experiments.analysis.metrics import metrics\nprint(*metrics())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        orders.append(done.stdout.split())
    assert orders[0] == orders[1]
    assert "jct" in orders[0]


def test_two_metrics_of_one_name_are_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"metric jct: .*training has one of this name"
    ):
        metric("s", makes={"jct": "Another"})(lambda context: {"jct": 1.0})


@settings(max_examples=12)
@given(
    st.permutations(GPUS),
    st.integers(2, 4),
    st.sampled_from(["ring", "halving-doubling"]),
)
def test_figures_keep_within_what_the_fabric_gives(
    order: list[str], n: int, collective: str
) -> None:
    red, blue = order[:n], order[n:6]
    rows = analysed(
        f"arms: {{base: {{jobs.red.ranks: [{', '.join(red)}], jobs.blue: {{ranks: [{', '.join(blue)}]}}, "
        f"training.collective: {collective}}}}}\n"
    ).rows
    for job in ("job red", "job blue"):
        of = {row.metric: row.value for row in where(rows, subject=job)}
        assert of["jct"] >= of["iterations"] * 0.05
        assert of["exchange"] >= of["allreduce_ideal"] * (1 - 1e-9)
        assert 0 < of["gpu_utilisation"] <= of["gpu_utilisation.full_rate"] * (1 + 1e-9)
        assert (
            of["gpu_utilisation.moving"]
            <= of["gpu_utilisation.collective"] * (1 + 1e-9)
            <= 1 + 1e-8
        )
        assert of["gpu_utilisation.compute"] == pytest.approx(of["gpu_utilisation"])
        assert of["busbw"] <= 100e6 * (1 + 1e-9) or collective != "ring"
        assert of["slowdown"] >= 1 - 1e-9
        assert 0 <= of["fragmentation"] <= 1
    assert 0.5 <= the(rows, "fairness") <= 1
    assert the(rows, "makespan") == pytest.approx(
        max(row.value for row in where(rows, metric="jct"))
    )


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=9))
def test_fairness_is_1_for_equals_and_at_least_1_over_n(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9
    assert jain([values[0]] * len(values)) == pytest.approx(1)


def test_a_job_that_waits_for_gpus_has_a_queueing_delay() -> None:
    rows = analysed(
        "arms: {full: {jobs.red.ranks: all, jobs.late: {gpus: 2, start: {at: 100 ms}}}}\n"
    ).rows
    red_s = the(rows, "jct", subject="job red")
    assert the(rows, "queueing_delay", subject="job red") == 0
    assert the(rows, "queueing_delay", subject="job late") == pytest.approx(red_s - 0.1)
    assert the(rows, "makespan") == pytest.approx(
        red_s + the(rows, "jct", subject="job late")
    )


# Faults.


def lost(then: str) -> Analysis:
    return analysed(
        "events:\n"
        f"  - {{name: loss, when: {{job: red, iteration: 3}}, do: lose, target: gpu g1, then: {then}}}\n"
        "arms: {base: {jobs.red.may_fail: true, jobs.other: {ranks: [g3, g4]}}}\n"
    )


def test_recovery_is_from_the_fault_to_the_end_of_the_next_iteration() -> None:
    found = lost("swap")
    (run,) = found.runs
    (loss,), red = run.actions, run.jobs["red"]
    fourth_s = max(it.allreduce_end for it in red.by_index[3])
    assert the(found.rows, "recovery", subject="event loss job red") == pytest.approx(
        fourth_s - loss.begun
    )
    assert the(found.rows, "gpus_lost", subject="job red") == 1
    assert the(found.rows, "iteration_before", subject="event loss job red") > 0
    assert not where(found.rows, metric="recovery", subject="event loss job other")
    # The models know of no loss.
    assert not where(found.rows, metric="jct_predicted")


@pytest.mark.parametrize(
    ("fault", "jobs"),
    [
        ("do: cut, target: link g0 t0:1", {"red"}),
        ("do: cut, target: 'link t1:4 t0:4'", {"green"}),
        ("do: kill, target: switch t0, back_after: 100 ms", {"red", "green"}),
        ("do: kill, target: switch t1, back_after: 100 ms", {"blue", "green"}),
    ],
)
def test_only_jobs_recover_that_were_hit(fault: str, jobs: set[str]) -> None:
    back = fault.replace("do: cut", "do: restore") if "cut" in fault else ""
    back = f", {{when: {{at: 220 ms}}, {back}}}" if back else ""
    placed = {"red": "[g0, g1]", "blue": "[g3, g4]", "green": "[g2, g5]"}
    rows = analysed(
        f"events: [{{name: f, when: {{at: 120 ms}}, {fault}}}{back}]\n"
        f"arms: {{base: {{{', '.join(f'jobs.{job}: {{ranks: {gpus}}}' for job, gpus in placed.items())}}}}}\n"
    ).rows
    # All are shown before and after it.
    subjects = {f"event f job {job}" for job in placed}
    assert {row.subject for row in where(rows, metric="iteration_after")} >= subjects
    assert {row.subject for row in where(rows, metric="recovery")} == {
        f"event f job {job}" for job in jobs
    }


def test_a_job_recovers_from_the_loss_of_the_gpu_it_has_then() -> None:
    """A job with a spare in the place of a GPU is hit where the spare is, and no more where that GPU is."""
    rows = analysed(
        """
events:
  - {name: first, when: {job: red, iteration: 2}, do: lose, target: gpu g1, then: swap}
  - {name: second, when: {job: red, iteration: 4}, do: cut, target: link g1 t0:2}
  - {name: third, when: {job: red, iteration: 4}, do: cut, target: link g2 t0:3}
  - {name: back, when: {after: third}, do: restore, target: link g2 t0:3}
arms: {base: {jobs.red.spares: [g2]}}
"""
    ).rows
    assert {row.subject for row in where(rows, metric="recovery")} == {
        f"event {name} job red" for name in ("first", "third")
    }


@pytest.mark.parametrize(
    ("target", "hit"), [("controller", False), ("worker red 1", True)]
)
def test_jobs_do_not_recover_from_the_death_of_a_controller(
    target: str, hit: bool
) -> None:
    (run,) = lost("swap").runs
    (loss,) = run.actions
    kind, *names = target.split()
    other = replace(loss, plan=replace(loss.plan, target=Target(kind, tuple(names))))
    assert faults.hit(Context(run, "measured"), other, run.jobs["red"]) is hit


def test_a_failed_job_has_a_state_and_no_completion_time() -> None:
    rows = lost("fail").rows
    assert the(rows, "state", subject="job red") == "FAILED"
    assert not where(rows, metric="jct", subject="job red")
    assert not where(rows, metric="recovery", subject="event loss job red")
    assert the(rows, "jct", subject="job other") > 0


# What only a testbed can tell.


def measured(more: str = "", **of_rank_0: object) -> Analysis:
    found = experiment(more)
    return analyse(
        found, list(with_workers(records_of(found), **of_rank_0)), "measured"
    )


def test_what_ranks_end_with_becomes_rows() -> None:
    rows = measured().rows
    assert the(rows, "parameters_identical") is True
    assert the(rows, "connections_unchanged") is True
    assert the(rows, "accuracy") == 0.9
    assert the(rows, "payload_sent") == 200
    assert the(rows, "payload_lost") == 0
    assert the(rows, "retransmits") == 2


@pytest.mark.parametrize(
    ("change", "metric", "value"),
    [
        ({"parameters_sha256": "abd"}, "parameters_identical", False),
        ({"connections": []}, "connections_unchanged", False),
        ({"bytes_received": 90}, "payload_lost", 10),
    ],
)
def test_what_is_not_as_it_should_be_is_told(
    change: dict[str, object], metric: str, value: object
) -> None:
    assert the(measured(**change).rows, metric) == value


def test_what_was_not_shown_is_not_claimed() -> None:
    found = experiment()
    records = [
        record
        for record in with_workers(records_of(found))
        if not (isinstance(record, WorkerDone) and record.rank == 1)
    ]
    rows = analyse(found, records, "measured").rows
    assert the(rows, "parameters_identical") is False
    assert the(rows, "connections_unchanged") is False
    assert not where(rows, metric="payload_lost")


@pytest.mark.parametrize("label", ["simulated", "measured"])
def test_a_simulation_claims_no_exactness(label: Label) -> None:
    found = where(analysed(label=label).rows, metric="parameters_identical")
    assert [row.value for row in found] == ([] if label == "simulated" else [False])


# Light that moves under running jobs.


def live(*, gap_s: float = 0.0, stall_s: float = 0.0) -> Analysis:
    """The small live regroup, with a silence of beacons and a stalled all-reduce while light moved."""
    found = load(bundled("mini"))
    records: list[Record] = list(with_workers(records_of(found)))
    (run,) = (
        run
        for run in analyse(found, records, "measured").runs
        if run.plan.arm == "live"
    )
    (action,) = run.actions
    at = action.begun + 0.01

    def disturbed(record: Record) -> Record:
        if isinstance(record, WorkerDone) and record.rank == 0 and gap_s:
            gap = {"t_start": at, "t_end": at + gap_s, "peer": 1, "lost": 9}
            return replace(record, beacon_gaps=[gap], max_beacon_gap_s=gap_s)
        if isinstance(record, Iteration) and record.i == 3 and stall_s:
            return replace(record, stalls=[[at, at + stall_s]], max_stall_s=stall_s)
        return record

    shown = [
        disturbed(record) if record.run == run.name else record for record in records
    ]
    return analyse(found, shown, "measured")


@pytest.mark.parametrize(
    ("gap_s", "stall_s", "worst"),
    [
        (0.0, 0.0, "wire_dark"),
        (0.5, 0.0, "beacon_gap"),
        (0.0, 0.7, "tcp_stall"),
        (0.5, 0.7, "tcp_stall"),
    ],
)
def test_the_blackout_is_the_worst_of_what_is_seen(
    gap_s: float, stall_s: float, worst: str
) -> None:
    rows = where(live(gap_s=gap_s, stall_s=stall_s).rows, arm="live")
    of = {
        name: the(rows, name, subject="event 1")
        for name in ("beacon_gap", "wire_dark", "tcp_stall")
    }
    assert of["beacon_gap"] == pytest.approx(gap_s)
    assert of["tcp_stall"] == pytest.approx(stall_s)
    assert the(rows, "blackout", subject="event 1") == max(of.values()) == of[worst]
    assert 0 < of["wire_dark"] <= the(rows, "dark_declared", subject="event 1")
    assert the(rows, "fibres_moved", subject="event 1") > 0


def test_light_that_moves_before_the_jobs_start_blacks_nothing_out() -> None:
    rows = where(live().rows, arm="regrouped", subject="event 1")
    assert where(rows, metric="reconfiguration")
    assert not where(rows, metric="blackout")
    assert not where(rows, metric="iteration_before")


def test_the_documentation_lists_every_metric() -> None:
    """To bring it up to date, put what ``table()`` gives in place of its first table."""
    assert f"\n{table()}\n" in (ROOT / "docs" / "metrics.md").read_text()


def test_the_table_has_every_metric_by_its_name_or_its_family() -> None:
    text = table()
    for name, entry in registry.metrics().items():
        if entry.file.startswith("ringlight.experiments.analysis.metrics."):
            family, _, kind = name.rpartition(".")
            row = rf"`{family}\.KIND` .*`{kind}`"
            assert f"| `{name}` |" in text or re.search(row, text), name
