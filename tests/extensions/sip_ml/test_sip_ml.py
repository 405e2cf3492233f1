"""The study of divided models on light and on electrical switches, on a few GPUs: figures and verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.analysis.rows import Row, where
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.report.sections.best_values import search
from ringlight.experiments.report.view import View
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.extensions.models.placement import AUTHORS
from ringlight.extensions.sip_ml.paper import verdict
from tests.simulated import bundled

MODEL = "transformer-big"
RATES = ("4 Tbit/s", "8 Tbit/s")
RATE, WORKLOAD, PIECES = (
    "parameters.bandwidth.value",
    "jobs.train.workload",
    "parameters.pieces.value",
)
COLLECTIVE, RING = "parameters.collective.value", "ring"
#: Not swept over the bandwidth.
OWN_RATE = ("servers", "cap-400", "cap-200")


def small() -> dict[str, Any]:
    """Sixteen GPUs in two servers, one model with a sentence a GPU, two bandwidths, two divisions."""
    text = bundled("sip_ml").read_text(encoding="utf-8").replace("1024", "16")
    found: dict[str, Any] = yaml.safe_load(text)
    for sweep in found["sweep"]:
        over = sweep["over"]
        over[WORKLOAD] = [name for name in over[WORKLOAD] if name.startswith(MODEL)]
        for path, values in over.items():
            if path == PIECES:
                over[path] = [pieces for pieces in values if pieces in (2, 8)]
            elif path not in (WORKLOAD, COLLECTIVE):
                over[path] = list(RATES) if path == RATE else values[-1:]
    found["sweep"] = [sweep for sweep in found["sweep"] if all(sweep["over"].values())]
    return found


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    experiment, backend = (
        parse(yaml.safe_dump(small()), "sip_ml.yaml"),
        SimulationBackend(),
    )
    records = []
    for plan in choose(experiment, backend).plans:
        found, failures = run_alone(backend, plan)
        assert not failures
        records += found
    return analyse(experiment, records, "simulated")


def at(analysis: Analysis, arm: str, metric: str, **point: Any) -> float:
    """In eight pieces at 8 Tbit/s with a ring of gradients, where nothing else is said."""
    swept: dict[str, Any] = {
        RATE: "8 Tbit/s",
        WORKLOAD: MODEL,
        PIECES: 8,
        COLLECTIVE: RING,
        **point,
    }
    if arm in OWN_RATE:
        del swept[RATE]
    if metric.startswith("jct_best") or arm == "sip-ocs-added":
        del swept[PIECES], swept[COLLECTIVE]
    for row in where(analysis.rows, arm=arm, metric=metric):
        if row.label != "published" and row.point == swept:
            assert isinstance(row.value, float)
            return row.value
    raise KeyError(arm, metric)


def words(analysis: Analysis, arm: str, metric: str) -> str:
    """At the words of what was searched, as :func:`at` finds figures."""
    swept = {WORKLOAD: MODEL} | ({} if arm in OWN_RATE else {RATE: "8 Tbit/s"})
    (row,) = (
        row
        for row in where(analysis.rows, arm=arm, metric=metric)
        if row.point == swept
    )
    return str(row.value)


def test_at_equal_bandwidth_nothing_is_faster_than_the_ideal_switch(
    analysis: Analysis,
) -> None:
    for rate in RATES:
        ideal, ocs, ring = (
            at(analysis, arm, "iteration", **{RATE: rate})
            for arm in ("ideal", "sip-ocs", "sip-ring")
        )
        assert ideal < ocs < ring


def test_the_best_division_and_all_reduce_of_each_fabric_are_searched(
    analysis: Analysis,
) -> None:
    tried = [(2, RING), (2, "bidirectional-ring"), (2, "hierarchical-ring-group-4")]
    tried += [(8, RING), (8, "bidirectional-ring")]
    for arm in ("servers", "ideal", "sip-ocs", "sip-ring"):
        times = {
            f"{pieces}, {name}": at(
                analysis, arm, "jct", **{PIECES: pieces, COLLECTIVE: name}
            )
            for pieces, name in tried
        }
        assert at(analysis, arm, "jct_best") == pytest.approx(min(times.values()))
        assert times[words(analysis, arm, "jct_best_at")] == pytest.approx(
            min(times.values())
        )
    assert at(analysis, "sip-ocs", "jct_best_ratio") == pytest.approx(
        at(analysis, "sip-ocs", "jct_best") / at(analysis, "servers", "jct_best")
    )


def test_servers_reduce_inside_and_across_where_that_uses_more_nics(
    analysis: Analysis,
) -> None:
    """In two pieces a server has four GPUs with the same piece, whose ring would leave it by one NIC."""
    ring, both, inside = (
        at(analysis, "servers", "jct", **{PIECES: 2, COLLECTIVE: name})
        for name in (RING, "bidirectional-ring", "hierarchical-ring-group-4")
    )
    assert inside < both < ring
    # A GPU of the ring of wavelengths has half of its bandwidth on either side.
    ring, both = (
        at(analysis, "sip-ring", "jct", **{PIECES: 2, COLLECTIVE: name})
        for name in (RING, "bidirectional-ring")
    )
    assert both < ring
    # Where a pair's rate does not depend on the pair, no all-reduce is faster than a ring.
    times = [
        at(analysis, "ideal", "jct", **{PIECES: 2, COLLECTIVE: name})
        for name in (RING, "bidirectional-ring", "hierarchical-ring-group-4")
    ]
    assert min(times) == times[0]


def test_servers_are_the_baseline_and_caps_are_slower(analysis: Analysis) -> None:
    """In a server a GPU has 2.4 Tbit/s, which caps of every pair take away."""
    servers, cap = at(analysis, "servers", "jct"), at(analysis, "cap-400", "jct")
    assert servers < cap / 2
    assert at(analysis, "cap-400", "jct_ratio") == pytest.approx(cap / servers)
    assert analysis.experiment.spec.compare[0].baseline == "servers"


def test_an_accuracy_takes_so_many_iterations(analysis: Analysis) -> None:
    iterations = AUTHORS[MODEL].iterations
    for arm in ("ideal", "sip-ring", "cap-400"):
        assert at(analysis, arm, "time_to_accuracy") == pytest.approx(
            iterations * at(analysis, arm, "jct"), rel=1e-9
        )


def test_the_added_term_is_of_either_count_of_bytes(analysis: Analysis) -> None:
    alone = at(analysis, "sip-ocs-added", "jct")
    added = {
        name: at(analysis, "sip-ocs-added", f"iteration_added_{name}")
        for name in ("parameters", "theirs")
    }
    # 214,245,376 parameters of 4 bytes over eight GPUs, and 700 MB a GPU; there and back at 8 Tbit/s.
    assert added["parameters"] - alone == pytest.approx(
        2 * 214_245_376 / 2 * 8 / 8e12, rel=1e-6
    )
    assert added["theirs"] - alone == pytest.approx(2 * 700e6 * 8 / 8e12, rel=1e-6)
    assert at(analysis, "sip-ocs", "jct") > alone
    assert not where(analysis.rows, arm="sip-ocs", metric="iteration_added_theirs")


def test_the_published_range_stands_beside_and_is_no_fit(analysis: Analysis) -> None:
    ends = [row for row in analysis.rows if row.label == "published"]
    assert {(row.arm, row.metric) for row in ends} == {
        ("sip-ocs", "jct_best_ratio_from"),
        ("sip-ocs", "jct_best_ratio_to"),
    }
    assert {row.standing for row in ends} == {"range"}
    assert not any(
        parameter.fitted_to
        for parameter in analysis.experiment.spec.parameters.values()
    )
    agrees = {
        row.value for row in analysis.rows if row.metric == "jct_best_ratio_agrees"
    }
    assert agrees <= {True, False}
    assert agrees


def in_eight(analysis: Analysis, arm: str, rate: str) -> float:
    """The time of eight pieces with the better of both rings."""
    names = (RING, "bidirectional-ring")
    return min(
        at(analysis, arm, "jct", **{RATE: rate, COLLECTIVE: name}) for name in names
    )


def findings(analysis: Analysis, rows: list[Row]) -> dict[str, str]:
    return {
        one.text: one.kind for one in verdict(AtBase(analysis.experiment, Table(rows)))
    }


def test_the_verdict_follows_the_rows(analysis: Analysis) -> None:
    found = findings(analysis, list(analysis.rows))
    texts = " ".join(found)
    ours = [in_eight(analysis, "sip-ocs", rate) for rate in RATES]
    times = sorted(in_eight(analysis, "servers", "") / mine for mine in ours)
    assert (
        "Servers of 8 GPUs, both sides in 8 pieces: SiP-OCS is so many times as fast"
        in texts
    )
    assert f"{MODEL} {times[0]:.2f} to {times[1]:.2f}" in texts
    best = sorted(
        1 / at(analysis, "sip-ocs", "jct_best_ratio", **{RATE: rate}) for rate in RATES
    )
    said = (
        "Servers of 8 GPUs, each with its best division and all-reduce: SiP-OCS is so many times as fast, "
        f"over all bandwidths: {MODEL} {best[0]:.2f} to {best[1]:.2f}"
    )
    assert said in texts
    # Half as fast where servers are half: nothing of it is written by hand.
    slower = [
        replace(row, value=2 * row.value)
        if row.arm == "servers" and row.metric == "jct" and isinstance(row.value, float)
        else row
        for row in analysis.rows
    ]
    assert f"{MODEL} {2 * times[0]:.2f} to {2 * times[1]:.2f}" in " ".join(
        findings(analysis, slower)
    )
    # As good as alike is not slower.
    ideal = [row for row in analysis.rows if (row.arm, row.metric) == ("ideal", "jct")]
    ring = [
        replace(row, arm="sip-ring", value=1.0002 * row.value)
        for row in ideal
        if isinstance(row.value, float)
    ]
    others = [row for row in analysis.rows if row.arm != "sip-ring"]
    said = (
        "Ideal electrical switch at equal bandwidth, both sides in 8 pieces: SiP-Ring is 1.00 to 1.00 "
        "times as fast."
    )
    assert findings(analysis, others + ring)[said] == "wins"
    # Without the other arms nothing is said of them.
    some = [row for row in analysis.rows if row.arm in ("sip-ocs", "cap-200")]
    assert not any(
        "SiP-Ring" in text or "Ideal" in text for text in findings(analysis, some)
    )


def test_the_page_says_which_division_won(analysis: Analysis) -> None:
    view = View(
        analysis.experiment,
        analysis.rows,
        analysis.runs,
        {},
        analysis.fidelity,
        "simulated",
    )
    drawn: list[str] = []

    def draw(name: str, caption: str, figure: Callable[..., Figure], *args: Any) -> str:
        drawn.append(name)
        assert figure(*args).axes
        return ""

    page = search(view, draw)
    assert drawn == ["search"]
    won = words(analysis, "servers", "jct_best_at")
    assert page.count(f"({won})</span>") + page.count(f"({won})</td>") >= len(RATES)


def test_who_has_no_piece_of_a_model_has_iterations_too() -> None:
    raw = small() | {
        "sweep": [],
        "published": [],
        "arms": {"sip-ocs": {"fabric": "sip-ocs"}},
    }
    del raw["compare"], raw["search"]
    raw["workloads"][MODEL]["partners"] = 5
    raw["jobs"]["train"]["workload"] = MODEL
    experiment = parse(yaml.safe_dump(raw), "sip_ml.yaml")
    (plan,) = experiment.plans
    workload = plan.jobs[0].workload
    assert workload is not None
    assert min(map(len, workload.programs)) == 0
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    rows = analyse(experiment, records, "simulated").rows
    assert where(rows, metric="jct")
    # There is no verdict on arms that a file lacks.
    assert list(verdict(AtBase(experiment, Table(rows)))) == []
