"""The judge of emulated racks: racks from stated hardware, ratios, and what may be claimed of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.runner.progress import Reporter
from ringlight.extensions.bench.measuring import what_of
from ringlight.extensions.judge.contract import OUTSIDE, UNDECIDED, WITHIN, Row
from ringlight.extensions.judge.judges import emulated_racks as judge
from ringlight.extensions.judge.judges.emulated_racks import JUDGE
from ringlight.extensions.judge.judging import all_judges
from ringlight.extensions.judge.page import file_of
from ringlight.extensions.judge.rack_lab import TRAFFIC_BPS, bandwidths, plan_of
from ringlight.extensions.judge.reading import OUTCOMES, STATED, table_reader
from tests.unit.test_cli import one_line, ringlight

H100, H800 = judge.TABLES
ROOT = Path(__file__).resolve().parents[3]
RAILS = str(ROOT / "scenarios/examples/rails.yaml")
BETWEEN = f"largest sizes, over {H100}"


@pytest.fixture(scope="module")
def racks():
    return judge.racks(table_reader(STATED, JUDGE.inputs))


@pytest.fixture(scope="module")
def simulated():
    read = table_reader(STATED, JUDGE.inputs)
    return judge.predict_on(SimulationBackend(), read, Reporter(quiet=True))


def _judged(rows):
    return JUDGE.compare(rows, table_reader(OUTCOMES, JUDGE.outcomes))


def test_a_rack_is_its_stated_hardware_at_rates_that_processors_carry(racks):
    for rack in racks:
        assert rack.algorithm == "channel-rings-4-group-4"
        plan = plan_of(rack)
        assert len(plan.jobs[0].ranks) == 8
        (cluster,) = plan.setting.fabric.parts["gpu_servers"].values()
        assert cluster == rack.cluster
        # No GPU sends more than its NVLink, and no server more than its NICs.
        sent = 8 * cluster.server.gpu.usable_bps / plan.setting.scale.rate
        assert TRAFFIC_BPS / 1.1 < sent < 8 * TRAFFIC_BPS


def test_the_model_decides_before_an_outcome_which_ratios_latency_changes(racks):
    h100, h800 = racks
    for size in h100.sizes:
        assert judge.bytes_share(h100.cluster, size) == pytest.approx(1, abs=0.01)
    shares = [judge.bytes_share(h800.cluster, size) for size in h800.sizes]
    assert shares == sorted(shares)
    assert shares[0] < 0.5


def test_without_latency_rates_follow_from_the_slower_of_nics_and_nvlink(simulated):
    values = {(row.table, row.case): row.value for row in simulated}
    # Four NICs of 24 GB/s against eight NVLinks of 20.6 GB/s.
    assert values[BETWEEN, H800] == pytest.approx(8 * 20.6 / 96, rel=1e-3)
    assert values[H800, "2,097,152 B"] == pytest.approx(1, rel=1e-3)


def test_ratios_that_depend_on_latency_are_no_claim(simulated):
    judgement = _judged(simulated)
    verdicts = {claim.text: claim.verdict for claim in judgement.claims}
    assert verdicts[f"{H100}: worst"] == WITHIN
    assert verdicts[f"{H800}: 6 ratios that depend on latency"] == UNDECIDED
    for line in judgement.comparisons:
        assert (line.reach_percent is None) == ("latency counts" in line.note)
    assert judgement.verdict == UNDECIDED


def test_a_wrong_ratio_is_outside(simulated):
    rows = [
        replace(row, value=row.value * 1.2) if row.table == BETWEEN else row
        for row in simulated
    ]
    assert _judged(rows).verdict == OUTSIDE


def test_slow_links_of_the_emulation_decide_nothing_else(simulated):
    rows = [
        Row(row.table, row.case, 0.8, row.unit) if row.table == "links" else row
        for row in simulated
    ]
    judgement = _judged(rows)
    *others, links = judgement.claims
    assert links.verdict == OUTSIDE
    assert {claim.verdict for claim in others} == {UNDECIDED}


def test_a_backend_that_refuses_is_named_with_the_rack(racks):
    class Refusing(SimulationBackend):
        def refuses(self, plan):
            return "no"

    with pytest.raises(BackendError, match=f"{H100}: no"):
        bandwidths(Refusing(), racks[0], Reporter(quiet=True))


def test_the_page_has_what_the_predictions_need():
    text = (ROOT / "docs" / file_of(JUDGE.name)).read_text()
    assert f"{JUDGE.title}. Source: {JUDGE.source}.\n" in text
    for name, need in JUDGE.needs.items():
        assert f"- {name}: {need}\n" in text


def test_it_runs_by_name_only():
    by_default = {name for name, each in all_judges().items() if each.by_default}
    assert {*all_judges()} - by_default == {JUDGE.name}


@pytest.mark.parametrize("name", ["channel-rings-2", "double-binary-tree-2"])
def test_bench_has_the_collectives_of_servers(name):
    done = ringlight(
        *("bench", RAILS, "--simulate", "--json", "--sizes", "64MiB"),
        *("--algorithm", f"{name}-group-2"),
    )
    assert done.returncode == 0
    (size,) = json.loads(done.stdout)["sizes"]
    # Two NICs of 24 GB/s; a tree of two servers sends each byte once, a ring of four GPUs 3/2 times.
    most = 8 * 48e9 * (1.5 if "tree" in name else 1)
    assert 0.95 * most < size["busbw_bps"] < most


@pytest.mark.parametrize("simulate", [(), ("--simulate",)])
def test_bench_refuses_a_collective_without_steps_in_one_line(simulate):
    done = ringlight("bench", RAILS, "--algorithm", "nccl", *simulate)
    assert done.returncode == 2
    said = one_line(done)
    assert "--algorithm: collective nccl: " in said
    assert "no steps between ranks" in said


@pytest.mark.parametrize("name", ["nccl-ring", "nccl-tree", "nvls", "sharp"])
def test_other_collectives_of_a_plane_have_no_steps(name):
    with pytest.raises(ValueError, match=f"{name}: .* no steps between ranks"):
        what_of("", name).steps(4)


def test_nobody_but_root_is_one_line(tmp_path):
    done = ringlight("judge", JUDGE.name, "--runs", str(tmp_path), root=False)
    assert done.returncode == 1
    assert "root" in one_line(done)
