"""Simulated runs of regrouping scenarios: closed forms, what the run folder holds, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import fabric.cost
from experiments.language.text import ScenarioError
from experiments.runner.progress import Reporter
from fabric.frames import ETHERNET_BYTES, LARGEST_MTU_BYTES
from scenarios.comparison import load, parse
from scenarios.records import read_lines, read_runs
from scenarios.results import label_of
from scenarios.schema import Scenario
from scenarios.simulated import SimulationOptions, payload_share, simulate
from scenarios.simulated_regrouping import idle_within, merged
from testbed.emulation import netlink
from tests.unit.test_cli import BUNDLED, ROOT, one_line, ringlight

SHARE = (9000 - 52) / 9014


def scenario_with(change: dict[str, Any]) -> Scenario:
    """The bundled scenario with some parameters' values changed."""
    raw = yaml.safe_load(BUNDLED.read_text())
    for name, value in change.items():
        raw["parameters"][name]["value"] = value
    checked = parse(yaml.safe_dump(raw, sort_keys=False), "changed.yaml")
    assert isinstance(checked, Scenario)
    return checked


def simulated(checked: Scenario, folder: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    return simulate(checked, SimulationOptions(folder, **options), Reporter())


@pytest.fixture(scope="module")
def bundled() -> Scenario:
    checked = load(BUNDLED)
    assert isinstance(checked, Scenario)
    return checked


@pytest.fixture(scope="module")
def run(bundled: Scenario, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return simulated(bundled, tmp_path_factory.mktemp("runs"))


def test_payload_has_the_share_that_the_emulated_links_leave_it() -> None:
    assert LARGEST_MTU_BYTES == netlink.MTU_BYTES
    assert payload_share(LARGEST_MTU_BYTES) == SHARE
    assert netlink.FRAME_BYTES == LARGEST_MTU_BYTES + ETHERNET_BYTES


def test_regrouped_rings_take_what_the_closed_form_says(
    bundled: Scenario, run: tuple[Path, dict[str, Any]]
) -> None:
    nic_bps = 40e9 / bundled.rate_scale * SHARE
    for case, ranks in (("a", 4), ("b", 3)):
        for job in bundled.spec.cases[case].jobs:
            figures = run[1]["cases"][case]["jobs"][job]["regrouped"]
            n = figures["ranks"]
            exchange_s = 2 * (n - 1) / n * bundled.gradient_bytes * 8 / nic_bps
            assert figures["iteration_s"] == pytest.approx(bundled.compute_s + exchange_s, rel=1e-9)
            total_s = bundled.iterations(n) * (bundled.compute_s + exchange_s)
            assert figures["completion_s"] == pytest.approx(total_s, rel=1e-9)
        assert run[1]["cases"][case]["jobs"]["red"]["regrouped"]["ranks"] == ranks


def test_two_equal_jobs_halve_the_link_between_the_packet_switches(
    bundled: Scenario, run: tuple[Path, dict[str, Any]]
) -> None:
    """Case b: each job sends one edge of its ring over the link each way, and both keep in step."""
    half_bps = 12.903e9 / bundled.rate_scale * SHARE / 2
    step_s = bundled.gradient_bytes / 3 * 8 / half_bps
    for job in ("red", "blue"):
        figures = run[1]["cases"]["b"]["jobs"][job]["fragmented"]
        assert figures["iteration_s"] == pytest.approx(bundled.compute_s + 4 * step_s, rel=1e-9)


def test_a_job_that_computes_leaves_the_link_to_the_other(run: tuple[Path, dict[str, Any]]) -> None:
    """So case a is faster than the model, which has all jobs sending all the time."""
    case = run[1]["cases"]["a"]
    ratio = case["completion_s"]["fragmented"] / case["predicted"]["completion_s"]["fragmented"]
    assert 0.85 < ratio < 1.0


def test_latency_is_added_to_every_step(
    bundled: Scenario, run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    slow = simulated(bundled, tmp_path, latency_s=1e-3)[1]
    for case, steps in (("a", 6), ("b", 4)):
        before, after = (r["cases"][case]["jobs"]["red"]["regrouped"]["iteration_s"] for r in (run[1], slow))
        assert after - before == pytest.approx(steps * 1e-3, rel=1e-6)


def test_the_folder_is_a_run_folder_whose_numbers_are_all_labelled_simulated(
    run: tuple[Path, dict[str, Any]],
) -> None:
    folder, result = run
    assert result["complete"] is True
    assert result["runtime"] == "simulated"
    assert result["fidelity"]["verdict"] == "simulated"
    labels = [(entry["path"], entry["label"]) for entry in result["labels"]]
    assert "measured" not in {label for _, label in labels}
    assert label_of("cases.a.completion_s.fragmented", labels) == "simulated"
    assert label_of("cases.a.predicted.reduction_percent", labels) == "analytic"
    assert json.loads((folder / "result.json").read_text()) == result
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["runtime"] == "simulated"
    page = (folder / "report.html").read_text()
    assert 'class="tag">measured' not in page
    assert "Nothing here was measured" in page
    # Nobody trained, so nothing is claimed of parameters, losses or connections.
    figures = result["cases"]["a"]["jobs"]["red"]["fragmented"]
    for key in ("parameters_identical", "connections_unchanged", "loss_first", "accuracy"):
        assert figures[key] is None


def test_the_light_is_moved_by_the_controllers_planner(run: tuple[Path, dict[str, Any]]) -> None:
    for case, moved in (("a", {"g2", "g3", "g4"}), ("b", {"g2", "g3"})):
        circuits = run[1]["cases"][case]["circuits"]
        before, after = (dict(circuits[p]) for p in ("fragmented", "regrouped"))
        assert {gpu.partition(":")[0] for gpu in before if before[gpu] != after[gpu]} == moved


def test_ports_count_every_byte_that_the_ranks_send(
    bundled: Scenario, run: tuple[Path, dict[str, Any]]
) -> None:
    folder, _ = run
    with (folder / "throughput.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "a-fragmented-1" and row["gpu"]]
    for gpu, n in (("g0", 4), ("g5", 2)):
        bits = sum(float(row["rx_bps"]) * 0.1 for row in rows if row["gpu"] == gpu)
        sent = 2 * (n - 1) / n * bundled.gradient_bytes * bundled.iterations(n)
        assert bits * SHARE / 8 == pytest.approx(sent, rel=1e-9)


def test_a_live_regroup_is_dark_for_the_profiles_time_and_changes_the_pace(
    run: tuple[Path, dict[str, Any]],
) -> None:
    live, cases = run[1]["live"], run[1]["cases"]
    assert live["wire_dark_ms"] == pytest.approx(32.5)
    assert live["beacon_gap_ms"] is None
    assert live["moved"] == ["g2", "g3", "g4"]
    jobs = cases["a"]["jobs"]["red"]
    assert live["iteration_s"]["before"] == pytest.approx(jobs["fragmented"]["iteration_s"], rel=0.01)
    assert live["iteration_s"]["after"] == pytest.approx(jobs["regrouped"]["iteration_s"], rel=0.01)
    assert live["circuits"]["after"] == cases["a"]["circuits"]["regrouped"]


def test_a_live_regroup_begins_when_every_rank_has_done_its_iterations(
    bundled: Scenario, run: tuple[Path, dict[str, Any]]
) -> None:
    live = next(run for run in read_runs(read_lines(run[0] / "events.jsonl")) if run.kind == "live")
    assert bundled.spec.live is not None
    assert live.regroup is not None
    last = bundled.spec.live.after_iterations - 1
    done_s = max(it.end for it in live.jobs["red"].iterations if it.index == last)
    assert live.regroup["regroup"]["timeline"][0]["t"] == pytest.approx(done_s)


def test_what_needs_new_light_stands_still_while_it_is_dark(tmp_path: Path) -> None:
    """With hardly any computation the dark time (46 ms with its command) falls into the all-reduce."""
    result = simulated(scenario_with({"batch": 1, "samples": 72}), tmp_path)[1]
    assert result["live"]["tcp_stall_ms"] == pytest.approx(32.5, abs=0.1)
    assert result["live"]["blackout_ms"] == pytest.approx(32.5, abs=0.1)


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 10)).map(lambda p: (float(p[0]), float(p[0] + p[1]))),
    max_size=12,
)


@given(intervals, st.integers(0, 50), st.integers(1, 20))
def test_what_is_idle_is_what_is_not_busy(spans: list[tuple[float, float]], begin: int, length: int) -> None:
    end = begin + length
    idle = idle_within(merged(spans), begin, end)
    for k in range(begin, end):
        middle = k + 0.5
        assert any(a <= middle <= b for a, b in idle) != any(a <= middle <= b for a, b in spans)
    assert all(begin <= a < b <= end for a, b in idle)


def test_what_has_no_path_is_named(bundled: Scenario, tmp_path: Path) -> None:
    raw = yaml.safe_load(bundled.text)
    raw["fabric"]["links"] = [link for link in raw["fabric"]["links"] if link["ends"] != ["tor0:5", "tor1:5"]]
    cut = parse(yaml.safe_dump(raw, sort_keys=False), "cut.yaml")
    with pytest.raises(ScenarioError, match=r"cut\.yaml: .*red: no path from g0 to g3"):
        simulate(cut, SimulationOptions(tmp_path), Reporter())


def test_the_command_says_that_nothing_was_measured(tmp_path: Path) -> None:
    done = ringlight("simulate", str(ROOT / "tests" / "data" / "mini.yaml"), "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Simulated: no number here was measured" in done.stdout
    assert (next(tmp_path.iterdir()) / "report.html").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--latency", "soon", "--latency"), ("--latency", "-1 ms", "--latency"), ("--mtu", "10", "--mtu")],
)
def test_bad_options_are_named(tmp_path: Path, option: str, value: str, said: str) -> None:
    done = ringlight("simulate", str(BUNDLED), option, value, "--runs", str(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    for scenario in (ROOT / "tests" / "data" / "mini.yaml", ROOT / "scenarios" / "wrht.yaml"):
        done = ringlight("simulate", str(scenario), "--runs", str(tmp_path / "runs"))
        assert done.returncode == 2
        assert (
            one_line(done) == f"ringlight: {tmp_path}/runs: no run folder can be made there: Not a directory"
        )


def test_zero_capacity_is_one_line(tmp_path: Path) -> None:
    raw = yaml.safe_load(BUNDLED.read_text())
    raw["parameters"]["uplink_rate"]["value"] = "0 Gbit/s"
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    done = ringlight("simulate", str(path), "--runs", str(tmp_path))
    assert done.returncode == 2
    assert "bad.yaml" in one_line(done)
    assert "uplink_rate" in one_line(done)


def test_the_all_send_model_bounds_the_time_neither_way(run: tuple[Path, dict[str, Any]]) -> None:
    _, result = run
    contiguous = result["variants"]["contiguous"]
    assert contiguous["predicted"]["completion_s"] > 1.1 * contiguous["completion_s"]
    alone = result["cases"]["a"]
    assert alone["predicted"]["completion_s"]["regrouped"] < alone["completion_s"]["regrouped"]
    said = " ".join((fabric.cost.__doc__ or "").split())
    assert "bounds nothing" in said
    assert "lower bound" not in said
