"""Comparisons in virtual time: against closed forms, and the folder, result and report that they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.runner.progress import Reporter
from scenarios.comparison import Comparison, load, parse_comparison, ring_of
from scenarios.results import label_of
from scenarios.ring_plots import lights
from scenarios.simulated import SimulationOptions, payload_share, simulate
from scenarios.simulated_comparison import lit_steps

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHARE = payload_share(9000)


def edited(name: str, **changes: Any) -> Comparison:
    """A bundled comparison with some of its parameters' values changed."""
    path = SCENARIOS / f"{name}.yaml"
    raw = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        raw["parameters"][key]["value"] = value
    return parse_comparison(yaml.safe_dump(raw), str(path))


def simulated(comparison: Comparison, folder: Path) -> tuple[Path, dict[str, Any]]:
    return simulate(comparison, SimulationOptions(folder), Reporter())


@pytest.fixture(scope="module")
def oddl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return simulated(edited("oddl_4", iterations=24), tmp_path_factory.mktemp("oddl"))


@pytest.fixture(scope="module")
def wrht(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return simulated(edited("wrht_9", iterations=2), tmp_path_factory.mktemp("wrht"))


def test_on_a_packet_switch_it_is_the_closed_form(oddl: tuple[Path, dict[str, Any]]) -> None:
    ideal = oddl[1]["fabrics"]["ideal"]
    exchange_s = 2 * 3 / 4 * 255_572 * 8 / 62.5e6 / SHARE
    assert ideal["allreduce_s"] == pytest.approx(exchange_s, rel=1e-6)
    assert ideal["completion_s"] == pytest.approx(24 * (0.884 + exchange_s), rel=1e-6)


def test_on_a_grid_every_flow_waits_for_the_agents(oddl: tuple[Path, dict[str, Any]]) -> None:
    grid, ideal = (oddl[1]["fabrics"][name] for name in ("oddl", "ideal"))
    flows = grid["flows"]
    assert flows["count"] == flows["expected"] == 24 * 4 * 4
    # Two messages follow each other before there is light; and then the laser has to be tuned.
    assert 0.3 < flows["setup_ms"]["p50"] < 0.5
    waits_s = 4 * flows["setup_ms"]["p50"] / 1000
    assert grid["allreduce_s"] - ideal["allreduce_s"] == pytest.approx(waits_s, rel=0.05)
    assert grid["light"]["receiver_overlaps"] == 0
    assert grid["light"]["messages_per_flow"] == pytest.approx(5.0)


def test_two_jobs_on_one_wss_do_not_slow_each_other(tmp_path: Path) -> None:
    folder, result = simulated(edited("oddl_two_jobs", iterations=4), tmp_path)
    shared = result["fabrics"]["shared"]
    assert result["comparison"]["ratios"]["shared"]["iteration"] == pytest.approx(1.0, abs=1e-3)
    assert shared["flows"]["count"] == shared["flows"]["expected"] == 4 * 4 * 8
    assert shared["light"]["receiver_overlaps"] == 0
    assert shared["jobs"]["blue"]["iteration_s"] == pytest.approx(shared["jobs"]["red"]["iteration_s"])
    page = (folder / "report.html").read_text()
    assert "With blue on the same switches, an iteration of red takes as long as alone" in page
    assert "Jobs side by side" in page


def test_a_wrht_all_reduce_is_its_steps_and_set_ups(wrht: tuple[Path, dict[str, Any]]) -> None:
    fabrics = wrht[1]["fabrics"]
    whole_s = 5_111_408 * 8 / 31.25e6 / SHARE
    assert fabrics["wrht"]["steps"] == fabrics["wrht"]["ring"]["set_ups_per_allreduce"] == 4
    # 25 µs, forty times as long.
    assert fabrics["wrht"]["allreduce_s"] == pytest.approx(4 * (whole_s + 0.001), rel=1e-6)
    ring_s = 16 / 9 * whole_s
    assert fabrics["ring"]["ring"]["set_ups_per_allreduce"] == 0
    for name in ("ring", "eps"):
        assert fabrics[name]["allreduce_s"] == pytest.approx(ring_s, rel=1e-6)
    assert fabrics["hring"]["allreduce_s"] == pytest.approx(ring_s + 2 * 0.001, rel=1e-6)
    tree = fabrics["tree"]
    set_ups_s = tree["ring"]["set_ups_per_allreduce"] * 0.001
    assert tree["allreduce_s"] == pytest.approx(8 * whole_s + set_ups_s, rel=1e-6)


def test_nothing_of_it_is_called_measured(
    oddl: tuple[Path, dict[str, Any]], wrht: tuple[Path, dict[str, Any]]
) -> None:
    for folder, result in (oddl, wrht):
        assert result["runtime"] == "simulated"
        assert result["complete"] is True
        assert result["comparison"]["parameters_identical"] is None
        labels = [(entry["path"], entry["label"]) for entry in result["labels"]]
        assert {label_of(path, labels) for path, _ in leaves(result)} <= {
            "simulated", "analytic", "setting", "published",
        }  # fmt: skip
        page = (folder / "report.html").read_text()
        assert "Nothing here was measured" in page
        assert ">measured<" not in page
        assert "simulated" in page


def leaves(value: Any, path: str = "") -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, f"{path}.{index}")]
    inside = path.startswith(("fabrics.", "comparison.", "trouble.", "sweep."))
    return [(path, value)] if inside and isinstance(value, int | float) and value is not True else []


def test_the_report_of_rings_shows_their_light(wrht: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = wrht
    page = (folder / "report.html").read_text()
    assert "WRHT&#x27;s all-reduce of 9 nodes in 4 steps: 2.25 times that of a ring" in page
    for name in ("allreduce", "ring-wrht", "ring-ring", "ring-tree", "ring-hring"):
        assert (folder / "plots" / f"{name}.png").stat().st_size > 0
    assert "ODDL" not in page


def test_the_trace_has_every_change_of_light(wrht: tuple[Path, dict[str, Any]]) -> None:
    events = json.loads((wrht[0] / "trace.json").read_text())["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "process_name"}
    mine = [e for e in events if e["ph"] == "X" and e["args"]["run"] == "wrht-1"]
    changes = [e for e in mine if e["cat"] == "light"]
    assert {named[e["pid"], e["tid"]] for e in changes} == {"wrht: light"}
    assert [e["args"]["step"] for e in changes] == list(range(8))
    assert [e["name"] for e in changes] == 2 * [f"set-up, step {number}" for number in (1, 2, 3, 4)]
    # WRHT's four steps are equally long, and each begins with its set-up.
    exchanges = sorted({(e["ts"], e["dur"]) for e in mine if e["name"] == "all-reduce"})
    begins = [ts + number * dur / 4 for ts, dur in exchanges for number in range(4)]
    assert [e["ts"] for e in changes] == pytest.approx(begins, abs=0.01)
    assert {e["dur"] for e in changes} == {1000.0}


def test_wrht_is_faster_than_rings_where_every_step_sets_its_light_anew(tmp_path: Path) -> None:
    comparison = load(SCENARIOS / "wrht_9_each_step.yaml")
    assert isinstance(comparison, Comparison)
    folder, result = simulated(comparison, tmp_path)
    found = result["fabrics"]
    # Two commands of 10.1 ms at most, 115 ms of darkness and 10 of jitter, at a quarter of the speed of time.
    set_up_s, passing_s = 4 * (2 * 0.010 + 0.0001 + 0.115), found["kept"]["allreduce_s"]
    for name, steps, gradients in (("bring", 16, 8 / 9), ("wrht", 4, 4), ("bhring", 8, 8 / 9)):
        assert found[name]["ring"]["set_ups_per_allreduce"] == steps
        assert found[name]["ring"]["declared_ms"] == pytest.approx(1000 * set_up_s)
        expected = steps * set_up_s + gradients * passing_s * 9 / 8
        assert found[name]["allreduce_s"] == pytest.approx(expected, rel=1e-3)
    assert found["kept"]["ring"]["set_ups_per_allreduce"] == 0
    page = (folder / "report.html").read_text()
    assert "0.31 times that of a bidirectional ring," in page
    assert "times that of a bidirectional ring that keeps its light" in page
    assert "On bring, wrht, bhring every step sets all of its light anew" in page


def test_every_fabric_is_drawn_however_many(tmp_path: Path) -> None:
    raw = yaml.safe_load((SCENARIOS.parent / "tests" / "data" / "mini_wrht.yaml").read_text())
    raw["fabrics"] |= {f"ring{number}": raw["fabrics"]["wrht"] for number in range(5)}
    folder, _ = simulated(parse_comparison(yaml.safe_dump(raw), "many.yaml"), tmp_path)
    drawn = (folder / "plots" / "iterations.svg").read_text()
    assert [name for name in raw["fabrics"] if f">{name}<" not in drawn] == []


def test_a_slower_control_network_slows_the_all_reduce(tmp_path: Path) -> None:
    _, result = simulated(edited("oddl_sweep"), tmp_path)
    points = [p for p in result["sweep"]["points"] if p["real"]["tuning_s"] < 1e-6]
    for size in (25_000_000, 553_430_000):
        mine = sorted((p for p in points if p["real"]["gradient_bytes"] == size), key=lambda p: p["setup_ms"])
        assert [p["real"]["control_delay_s"] for p in mine] == [0.0, 0.0001, 0.0005, 0.002]
        # Two messages, four times as slow as in reality.
        assert mine[-1]["setup_ms"] - mine[0]["setup_ms"] == pytest.approx(2 * 4 * 2.0, rel=0.02)
        for point in mine:
            assert point["slowdown"] == pytest.approx(point["analytic_slowdown"], rel=0.03)


@pytest.mark.parametrize("name", ["wrht", "ring", "tree", "hring"])
def test_the_light_is_that_of_the_plan(name: str) -> None:
    comparison = load(SCENARIOS / "wrht_9.yaml")
    assert isinstance(comparison, Comparison)
    plan = comparison.ring_plan(name)
    assert plan is not None
    ring = ring_of(comparison.settings[name].fabric)
    assert ring is not None
    for step, planned in zip(lit_steps(comparison.steps(name), plan), plan.steps, strict=True):
        assert step.wavelengths is not None
        assert step.clockwise is not None
        assert int(step.wavelengths.max()) < ring.wavelengths
        ends = zip(step.sources.tolist(), step.destinations.tolist(), strict=True)
        assert {(ring.nodes[a], ring.nodes[b]) for a, b in ends} == planned.pairs
    assert [last for _, last, _ in lights(plan)][-1] == len(plan.steps)
