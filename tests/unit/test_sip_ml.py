"""The study of divided models on light and on electrical switches, on a few GPUs: figures and verdict."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ringlight.experiments.analysis.base import AtBase
from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.analysis.rows import Row, where
from ringlight.experiments.analysis.table import Table
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import parse
from ringlight.experiments.papers.sip_ml import verdict
from ringlight.experiments.runner.experiment import choose, one_alone
from ringlight.workloads.placement import AUTHORS
from tests.simulated import bundled

MODEL = "transformer-big"
RATES = ("4 Tbit/s", "8 Tbit/s")
RATE, WORKLOAD = "parameters.bandwidth.value", "jobs.train.workload"


def small() -> dict[str, Any]:
    """Sixteen GPUs, one model with a sentence a GPU, two bandwidths."""
    text = bundled("sip_ml").read_text(encoding="utf-8")
    for much, little in (("1024", "16"), ("dp: 128", "dp: 2")):
        assert much in text
        text = text.replace(much, little)
    found: dict[str, Any] = yaml.safe_load(text)
    for sweep in found["sweep"]:
        over = sweep["over"]
        over[WORKLOAD] = [name for name in over[WORKLOAD] if name.startswith(MODEL)]
        for path, values in over.items():
            if path != WORKLOAD:
                over[path] = list(RATES) if path == RATE else values[-1:]
    return found


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    experiment, backend = parse(yaml.safe_dump(small()), "sip_ml.yaml"), SimulationBackend()
    records = []
    for plan in choose(experiment, backend).plans:
        found, failures = one_alone(backend, plan)
        assert not failures
        records += found
    return analyse(experiment, records, "simulated")


def at(analysis: Analysis, arm: str, metric: str, **point: str) -> float:
    wanted = {RATE: "8 Tbit/s", WORKLOAD: MODEL, **point}
    for row in where(analysis.rows, arm=arm, metric=metric):
        if row.label != "published" and row.point == wanted:
            assert isinstance(row.value, float)
            return row.value
    raise KeyError(arm, metric)


def test_at_equal_bandwidth_nothing_is_faster_than_the_ideal_switch(analysis: Analysis) -> None:
    for rate in RATES:
        ideal, ocs, ring = (
            at(analysis, arm, "iteration", **{RATE: rate}) for arm in ("ideal", "sip-ocs", "sip-ring")
        )
        assert ideal < ocs < ring
        # A ring of gradients alone has all circuits of a GPU.
        one, other = (
            at(analysis, f"{arm}-whole", "iteration", **{RATE: rate}) for arm in ("ideal", "sip-ocs")
        )
        assert one == pytest.approx(other, rel=1e-9)


def test_caps_do_not_depend_on_the_bandwidth(analysis: Analysis) -> None:
    found = {rate: at(analysis, "cap-200", "iteration", **{RATE: rate}) for rate in RATES}
    assert len(set(found.values())) == 1
    assert at(analysis, "cap-200", "iteration_ratio") == found["8 Tbit/s"] / at(
        analysis, "sip-ocs", "iteration"
    )


def test_an_accuracy_takes_so_many_iterations(analysis: Analysis) -> None:
    iterations = AUTHORS[MODEL].iterations
    for arm in ("ideal", "sip-ring", "cap-400-whole"):
        assert at(analysis, arm, "time_to_accuracy") == pytest.approx(
            iterations * at(analysis, arm, "jct"), rel=1e-9
        )


def test_the_added_term_is_of_either_count_of_bytes(analysis: Analysis) -> None:
    alone = at(analysis, "sip-ocs-added", "jct")
    added = {
        name: at(analysis, "sip-ocs-added", f"iteration_added_{name}") for name in ("parameters", "theirs")
    }
    # 214,245,376 parameters of 4 bytes over eight GPUs, and 700 MB a GPU; there and back at 8 Tbit/s.
    assert added["parameters"] - alone == pytest.approx(2 * 214_245_376 / 2 * 8 / 8e12, rel=1e-6)
    assert added["theirs"] - alone == pytest.approx(2 * 700e6 * 8 / 8e12, rel=1e-6)
    assert at(analysis, "sip-ocs", "jct") > alone
    assert not where(analysis.rows, arm="sip-ocs", metric="iteration_added_theirs")


def test_the_published_range_stands_beside_and_is_no_fit(analysis: Analysis) -> None:
    ends = [row for row in analysis.rows if row.label == "published"]
    assert {row.arm for row in ends} == {"cap-200", "cap-400"}
    assert {row.standing for row in ends} == {"range"}
    assert not any(parameter.fitted_to for parameter in analysis.experiment.spec.parameters.values())
    agrees = {row.value for row in analysis.rows if row.metric == "iteration_ratio_agrees"}
    assert agrees <= {True, False}
    assert agrees


def findings(analysis: Analysis, rows: list[Row]) -> dict[str, str]:
    return {one.text: one.kind for one in verdict(AtBase(analysis.experiment, Table(rows)))}


def test_the_verdict_follows_the_rows(analysis: Analysis) -> None:
    found = findings(analysis, list(analysis.rows))
    texts = " ".join(found)
    capped, ours = (
        [at(analysis, arm, "jct", **{RATE: rate}) for rate in RATES] for arm in ("cap-200", "sip-ocs")
    )
    caps = [theirs / mine for theirs, mine in zip(capped, ours, strict=True)]
    assert f"{MODEL} {caps[0]:.2f} to {caps[1]:.2f}" in texts
    alike = "at equal bandwidth, models whole on each GPU: SiP-OCS is 1.00 to 1.00 times as fast."
    assert found[f"Ideal electrical switch {alike}"] == "note"
    assert any("models divided over GPUs" in text and kind == "loses" for text, kind in found.items())
    # Half as fast where a cap is half: nothing of it is written by hand.
    slower = [
        Row(row.arm, row.subject, row.metric, 2 * row.value, row.unit, row.label, row.point)
        if row.arm == "cap-200" and row.metric == "jct" and isinstance(row.value, float)
        else row
        for row in analysis.rows
    ]
    assert f"{MODEL} {2 * caps[0]:.2f} to {2 * caps[1]:.2f}" in " ".join(findings(analysis, slower))
    # As good as alike is not slower.
    ideal = [row for row in analysis.rows if (row.arm, row.metric) == ("ideal", "jct")]
    ring = [
        Row("sip-ring", row.subject, row.metric, 1.0002 * row.value, row.unit, row.label, row.point)
        for row in ideal
        if isinstance(row.value, float)
    ]
    others = [row for row in analysis.rows if row.arm != "sip-ring"]
    said = "Ideal electrical switch at equal bandwidth: SiP-Ring is 1.00 to 1.00 times as fast."
    assert findings(analysis, others + ring)[said] == "wins"
    # Without the other arms nothing is said of them.
    some = [row for row in analysis.rows if row.arm in ("sip-ocs", "cap-200")]
    assert not any("SiP-Ring" in text or "Ideal" in text for text in findings(analysis, some))


def test_who_has_no_piece_of_a_model_has_iterations_too() -> None:
    raw = small() | {"sweep": [], "published": [], "arms": {"sip-ocs": {"fabric": "sip-ocs"}}}
    del raw["compare"]
    raw["workloads"][MODEL]["partners"] = 5
    raw["jobs"]["train"]["workload"] = MODEL
    experiment = parse(yaml.safe_dump(raw), "sip_ml.yaml")
    (plan,) = experiment.plans
    workload = plan.jobs[0].workload
    assert workload is not None
    assert min(map(len, workload.programs)) == 0
    records, failures = one_alone(SimulationBackend(), plan)
    assert not failures
    rows = analyse(experiment, records, "simulated").rows
    assert where(rows, metric="jct")
    # Of arms that a file has not, nothing is said.
    assert list(verdict(AtBase(experiment, Table(rows)))) == []
