"""Studies: schedules and closed forms of their systems, what is refused, the run folder and its report."""

from __future__ import annotations

import json
import multiprocessing
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments.cli.common import UserError
from experiments.language.text import ScenarioError
from experiments.runner.command import load_checked
from experiments.runner.progress import Reporter
from experiments.study import report as study_report
from experiments.study import runner as study_runner
from experiments.study.points import Costs, Crossover, Point, Run, message_sizes, work
from experiments.study.results import DERIVED_STEPS, Found
from experiments.study.runner import POINTS, finish_study, simulate_study
from experiments.study.spec import Study, is_study, load_study, parse_study, tasks
from experiments.study.systems import (
    CHARGES,
    SYSTEMS,
    WRHT,
    Place,
    compact,
    fitting_group,
    striped,
    stripes,
)
from experiments.study.verdict import verdict, wins_up_to
from fabric import schedules, wdm
from fabric.topology import Reconfigure
from fabric.trees import leaf_spine
from fabric.units import format_size
from fabric.wrht import plan
from testbed.simulation.maxmin import drain
from testbed.simulation.networks import Network, PacketNetwork, RingNetwork
from testbed.simulation.phases import Phases, StepCost, needs_new_light, synchronous
from tests.unit.page import Page, check_alone, text_of
from tests.unit.test_cli import one_line, ringlight
from tests.unit.test_schedules import sums_once

BUNDLED = Path(__file__).parents[2] / "scenarios" / "wrht.yaml"


def small(**changes: Any) -> dict[str, Any]:
    """The bundled study, made small; ``changes`` to what is under ``study``."""
    raw: dict[str, Any] = yaml.safe_load(BUNDLED.read_text(encoding="utf-8"))
    raw["study"] |= {
        "nodes": [64, 128],
        "wavelengths": [2, 8],
        "rates": ["40 Gbit/s"],
        "set_up": ["0 µs", "25 µs"],
        "messages": {"least": "10 kB", "most": "1 GB", "points": 6},
        "base": raw["study"]["base"] | {"nodes": 128, "wavelengths": 8},
        "groups": [3, 9],
        "reach": [4],
        "published": raw["study"]["published"] | {"nodes": [64, 128]},
    }
    raw["study"] |= changes
    return raw


def study_of(raw: dict[str, Any]) -> Study:
    return parse_study(yaml.safe_dump(raw, allow_unicode=True), "s.yaml")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, dict[str, Any]]:
    study = study_of(small())
    folder, result = simulate_study(study, tmp_path_factory.mktemp("runs"), Reporter(), processes=1)
    return study, folder, result


# --- systems --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wavelengths", "nodes"), DERIVED_STEPS)
def test_wrht_has_the_steps_that_were_derived(wavelengths: int, nodes: int) -> None:
    place = Place(nodes, wavelengths, 40e9)
    for system, steps in zip(WRHT, DERIVED_STEPS[wavelengths, nodes], strict=True):
        assert SYSTEMS[system].steps(place).steps == steps
        assert SYSTEMS[system].closed(place).steps == steps


def test_a_representative_receives_seventy_one_gigabytes_of_vgg16() -> None:
    assert plan(1024, 64).buffer_vectors * 553_430_176 == 70_839_062_528


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("nodes", [2, 3, 9, 16, 33, 64, 96])
@pytest.mark.parametrize("wavelengths", [1, 2, 6])
def test_simulation_and_closed_form_agree(system: str, nodes: int, wavelengths: int) -> None:
    electrical = SYSTEMS[system].medium == "electrical"
    if electrical and nodes > 32 and nodes % 32:
        return
    runs = tuple(
        Run(size, set_up_s, charge, Costs(add_bps=rate))
        for size, set_up_s in ((1e4, 25e-6), (1e8, 0.0), (1e8, 25e-6))
        for charge in CHARGES
        for rate in (None, 3e12)
    )
    for factor in (1.0, 3.0) if electrical else (1.0,):
        found = work(Point(system, Place(nodes, wavelengths, 40e9, oversubscription=factor), runs, 2e-6))
        for run in found["runs"]:
            assert run["total_s"] == pytest.approx(run["closed_s"], rel=1e-9), run


@pytest.mark.parametrize("reach", [1, 2, 7])
@pytest.mark.parametrize("group", [None, 3])
def test_they_agree_with_relays_and_small_groups_too(reach: int, group: int | None) -> None:
    runs = tuple(Run(1e7, 25e-6, charge) for charge in CHARGES)
    for system in WRHT:
        for run in work(Point(system, Place(60, 4, 40e9, reach, group), runs))["runs"]:
            assert run["total_s"] == pytest.approx(run["closed_s"], rel=1e-9)


@pytest.mark.parametrize("nodes", [2, 3, 6, 8, 12])
@pytest.mark.parametrize("wavelengths", [1, 2, 4, 6])
def test_striped_schedules_sum_once_and_fit_the_wavelengths(nodes: int, wavelengths: int) -> None:
    group = fitting_group(nodes, wavelengths)
    for steps in (
        schedules.ring(nodes),
        schedules.hierarchical_ring(nodes, group),
        schedules.bidirectional_ring(nodes),
        schedules.bidirectional_hierarchical_ring(nodes, group),
        schedules.binary_tree(nodes),
        SYSTEMS["wrht"].steps(Place(nodes, wavelengths, 40e9)),
    ):
        made = striped(steps, wavelengths)
        assert sums_once(made)
        for number, step in enumerate(made):
            wdm.check_wavelengths(step, nodes, wavelengths, number)


def test_stripes_fill_the_wavelengths_and_divide_them() -> None:
    assert [stripes(64, used) for used in (1, 4, 5, 64)] == [64, 16, 8, 1]
    assert stripes(6, 4) == 1


def test_a_compact_schedule_has_the_same_steps_and_few_objects() -> None:
    made = list(compact(schedules.ring(8)))
    assert len(made) == 14
    assert len({id(step) for step in made}) == 2
    assert [step.op for step in made] == ["reduce"] * 7 + ["replace"] * 7


def test_a_hierarchical_ring_has_groups_that_its_wavelengths_carry() -> None:
    assert fitting_group(1024, 64) == 32
    assert fitting_group(1024, 4) == 4
    assert fitting_group(13, 64) == 1


def test_phases_serve_any_size_and_cost_as_one_simulation_does() -> None:
    fabric, ring = wdm.wdm_ring("n", 12, 4, 40e9)
    network, steps = RingNetwork(fabric, ring), SYSTEMS["hierarchical-ring"].steps(Place(12, 4, 40e9))
    phases = Phases(network, ring.nodes, steps)
    for size in (1e3, 0.0, 1e8):
        for cost in (StepCost(1e-3), StepCost(1e-3, "changed-only"), StepCost(0.0, "each-step", 1e-9)):
            assert (
                phases.time(size, cost).total_s == synchronous(network, ring.nodes, steps, size, cost).total_s
            )
    with pytest.raises(ValueError, match="a vector of -1 bytes"):
        phases.time(-1)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("segment_s", [0.0, 5e-9])
def test_a_point_takes_what_draining_every_step_by_itself_takes(system: str, segment_s: float) -> None:
    place = Place(64, 6, 40e9, leaf=8, oversubscription=3.0)
    chosen, latency_s, set_up_s = SYSTEMS[system], 2e-6, 25e-6
    optical = chosen.medium == "optical"
    light = Costs(20e-9, segment_s, 3e12)
    network: Network
    if optical:
        around, ring = wdm.wdm_ring("n", place.nodes, place.wavelengths, place.rate_bps)
        network = RingNetwork(around, ring, latency_s=light.ends_s, segment_s=segment_s)
        ranks = ring.nodes
    else:
        fabric = leaf_spine(8, 8, place.rate_bps, oversubscription=3.0).fabric()
        network, ranks = PacketNetwork(fabric, latency_s=latency_s), tuple(fabric.gpus)
    steps = chosen.steps(place)

    for charge in CHARGES:
        runs = tuple(Run(size, set_up_s, charge, light) for size in (0.0, 1.0, 1e5, 1e9))
        for run, found in zip(runs, work(Point(system, place, runs, latency_s))["runs"], strict=True):
            total, before = 0.0, None
            for number, step in enumerate(steps):
                routes, bytes_ = network.routes(ranks, step, number), step.count * run.bytes / steps.chunks
                capacity = network.capacity_bps / 8
                total += float(
                    drain(
                        routes.offsets, routes.links, capacity, bytes_, routes.latency_s, compiled=False
                    ).max()
                )
                if step.op == "reduce":
                    total += float(np.bincount(step.destinations, bytes_).max()) * 8 / 3e12
                if optical and (
                    charge == "each-step" or before is None or needs_new_light(step, before, len(ranks))
                ):
                    total += set_up_s
                before = step
            assert found["total_s"] == pytest.approx(total, rel=1e-12)


# --- crossovers and percentages -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "ring", "fibres", "rate_bps", "megabytes"),
    [
        ("wrht", "ring", 1, 40e9, 127.5), ("wrht-exchange", "ring", 1, 40e9, 254.9),
        ("wrht", "ring", 1, 25e9, 79.7), ("wrht-exchange", "ring", 1, 25e9, 159.3),
        ("wrht", "bidirectional-ring", 2, 40e9, 85.1),
        ("wrht-exchange", "bidirectional-ring", 2, 40e9, 127.6),
    ],
)  # fmt: skip
def test_the_crossover_with_the_rings_is_the_derived_one(
    system: str, ring: str, fibres: int, rate_bps: float, megabytes: float
) -> None:
    found = work(Crossover(system, ring, Place(1024, 64, rate_bps), 25e-6, "each-step"))
    theta = SYSTEMS[system].closed(Place(1024, 64, rate_bps)).steps
    derived = 25e-6 * rate_bps / 8 * (2 * 1023 - theta) / (theta - 2 * 1023 / 1024 / fibres)
    assert found["simulated_bytes"] == pytest.approx(derived, rel=1e-9)
    assert found["analytic_bytes"] == pytest.approx(derived, rel=1e-9)
    assert found["simulated_bytes"] / 1e6 == pytest.approx(megabytes, abs=0.05)


@pytest.mark.parametrize(("charge", "expected"), [("each-step", True), ("changed-only", False)])
def test_all_of_wrhts_lead_over_the_ring_is_set_up(charge: Reconfigure, expected: bool) -> None:
    found = work(Crossover("wrht", "ring", Place(256, 8, 40e9), 25e-6, charge))
    assert (found["simulated_bytes"] is not None) == expected
    assert found["faster"] == (None if expected else "ring")
    assert (wins_up_to(found) == 0) is not expected


def test_a_ring_on_both_fibres_is_faster_than_wrht_at_the_base() -> None:
    place, run = Place(1024, 64, 40e9), Run(102_228_128, 25e-6, "each-step")
    took = {
        system: work(Point(system, place, (run,)))["runs"][0]["total_s"]
        for system in ("wrht", "ring", "bidirectional-ring")
    }
    assert {name: round(1000 * seconds, 1) for name, seconds in took.items()} == {
        "wrht": 81.9, "ring": 92.0, "bidirectional-ring": 71.6,
    }  # fmt: skip


def test_the_binary_trees_percentage_comes_out_exactly() -> None:
    reductions = [
        100 * (1 - SYSTEMS["wrht"].steps(place).steps / SYSTEMS["binary-tree"].steps(place).steps)
        for place in (Place(n, 64, 40e9) for n in (1024, 2048, 3072, 4096))
    ]
    assert [round(value, 2) for value in reductions] == [80.0, 81.82, 83.33, 83.33]
    assert round(sum(reductions) / 4, 2) == 82.12
    study = load_study(BUNDLED)
    assert study.sweeps.published is not None
    assert study.sweeps.published.nodes == (1024, 2048, 3072, 4096)
    assert study.sweeps.base.wavelengths == 64


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": [129]}, "study.groups[0]: groups of 129 need 64 wavelengths in each direction; the ring"),
        ({"groups": [1]}, "study.groups[0]: groups of 1"),
        ({"reach": [8, 0]}, "study.reach[1]: a reach of 0 segments joins nothing"),
        ({"systems": ["wrht", "ring", "star"]}, "study.systems[2]: there is no system star; there are wrht"),
        ({"systems": ["wrht", "wrht", "ring"]}, "study.systems[1]: wrht is there twice"),
        ({"systems": ["wrht", "binary-tree"]}, "study.systems: ring is missing"),
        ({"nodes": [64]}, "study.base.nodes: it is not among study.nodes"),
        ({"nodes": [1, 128]}, "study.nodes[0]: "),
        ({"wavelengths": [0, 8]}, "study.wavelengths[0]: "),
        ({"set_up": ["1 ms"]}, "study.base.set_up: it is not among study.set_up"),
        ({"rates": ["1 Gbit/s"]}, "study.base.rate: it is not among study.rates"),
        ({"messages": {"least": "2 B", "most": "1 B", "points": 3}}, "study.messages.most: it must be above"),
        ({"gradients": {"x": "1 MB"}}, "study.base.gradient: there is no gradient resnet50; there are x"),
        ({"nodes": [64, 128, 144]}, "study.electrical.leaf: 144 nodes do not fill leaves of 32"),
        ({"sizes": [1]}, "study.sizes: unknown key"),
        ({"rates": ["$speed"]}, "study.rates[0]: there is no parameter speed"),
    ],
)
def test_what_cannot_be_is_one_line_with_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        study_of(small(**changes))
    assert str(caught.value).startswith(f"s.yaml: {said}")
    assert "\n" not in str(caught.value)


def test_a_loss_that_no_light_survives_is_refused() -> None:
    raw = small()
    raw["study"]["loss"]["segment_db"] = [1, 30]
    with pytest.raises(ScenarioError, match=r"study\.loss\.segment_db\[1\]: 30 dB .* a reach of 0"):
        study_of(raw)


def test_a_figure_against_a_system_that_is_not_studied_is_refused() -> None:
    raw = small()
    raw["study"]["systems"].remove("binary-tree")
    with pytest.raises(ScenarioError, match=r"binary-tree is not among study\.systems"):
        study_of(raw)


def test_reach_follows_from_the_losses() -> None:
    loss = load_study(BUNDLED).sweeps.loss
    assert loss is not None
    assert loss.budget_db == pytest.approx(10 + 22.3 - 3 - 2.5 - 0.2 - 1)
    assert [loss.reach(lost) for lost in (0.05, 0.1, 0.5, 1, 3, 30)] == [512, 256, 51, 25, 8, 0]


def test_the_most_loss_of_a_node_is_not_rounded_up() -> None:
    study = load_study(BUNDLED)
    assert study.sweeps.loss is not None
    free = plan(1024, 64)
    most = study.sweeps.loss.budget_db / free.longest_segments
    assert study_report.at_most(most) == "0.0496"
    assert study.sweeps.loss.reach(0.0496) >= free.longest_segments
    assert plan(1024, 64, reach=study.sweeps.loss.reach(0.05)).steps == 6
    assert [plan(1024, 64, reach=reach).steps for reach in (128, 51, 8)] == [14, 44, 178]


def test_run_says_that_a_study_is_only_simulated() -> None:
    with pytest.raises(ScenarioError, match=r"wrht\.yaml: a study is only simulated: ringlight simulate"):
        load_checked(BUNDLED)
    assert is_study(BUNDLED)
    assert not is_study(BUNDLED.with_name("oddl_4.yaml"))


@pytest.mark.parametrize("option", [("--mtu", "9000"), ("--latency", "0 s")])
def test_an_option_that_a_study_does_not_use_is_refused(option: tuple[str, str], tmp_path: Path) -> None:
    done = ringlight("simulate", str(BUNDLED), *option, "--runs", str(tmp_path))
    assert done.returncode == 2
    assert one_line(done) == f"ringlight: {option[0]}: without effect on a study"
    assert not list(tmp_path.iterdir())


# --- the run folder -------------------------------------------------------------------------------


def test_everything_that_is_planned_is_found(done: tuple[Study, Path, dict[str, Any]]) -> None:
    study, folder, result = done
    assert result["complete"]
    lines = [json.loads(line) for line in (folder / POINTS).read_text(encoding="utf-8").splitlines()]
    assert len(lines) == len(tasks(study))
    assert len(Found(lines).crossovers) == sum(isinstance(task, Crossover) for task in tasks(study))
    agreement = result["agreement"]
    assert agreement["runs_compared"] > 500
    assert agreement["largest_relative_difference"] < 1e-9
    assert agreement["crossovers_largest_relative_difference"] < 1e-9
    for row in result["messages"]:
        assert None not in row["total_s"]
    sizes = message_sizes(1e4, 1e9, 6)
    assert result["messages"][0]["bytes"] == sizes
    assert sizes[0] == 1e4
    assert sizes[-1] == 1e9


def test_the_page_stands_alone_and_says_what_the_result_says(
    done: tuple[Study, Path, dict[str, Any]],
) -> None:
    _, folder, result = done
    html = (folder / "report.html").read_text(encoding="utf-8")
    check_alone(html)
    said = text_of(Page(html))
    for heading in (
        "Verdict", "Who is compared", "Where WRHT stops winning", "Steps and wavelengths of WRHT",
        "Memory at a representative", "How far light has to get", "What the model leaves out",
        "The published percentages", "Can this be believed?", "What cannot be claimed",
    ):  # fmt: skip
        assert heading in said
    for found in result["verdict"]:
        assert found["text"] in said
    for figure in (80.81, 64.36, 82.12, 92.42, 91.31):
        assert f"{figure} %" in said
    assert "measured" not in re.sub(r"labelled measured, .*", "", said)
    assert {path.stem for path in (folder / "plots").glob("*.png")} == {
        "messages", "fastest", "crossovers", "wavelengths", "set-up", "nodes", "reach", "published",
    }  # fmt: skip


def test_the_verdict_follows_the_numbers(done: tuple[Study, Path, dict[str, Any]]) -> None:
    study, _, result = done
    texts = {found["text"]: found["kind"] for found in result["verdict"]}
    pairs = {(p["system"], p["other"], p["charge"]): wins_up_to(p) for p in result["crossovers"]["systems"]}
    assert pairs["wrht", "ring", "changed-only"] == 0
    assert any("All of WRHT's advantage over the ring rests on" in text for text in texts)
    size = pairs["wrht", "ring", "each-step"]
    assert size is not None
    assert any(f"WRHT wins for gradients up to {format_size(size)}" in text for text in texts)
    assert any("WRHT beats a binary tree on one wavelength for every size" in text for text in texts)
    # Nothing is reproduced at 64 and 128 nodes, and it says so.
    assert any("80.81, 64.36, 82.12, 92.42 and 91.31 % are not reproduced" in text for text in texts)
    assert verdict(study, {**result, "published": None}) == [
        found for found in result["verdict"] if found["kind"] != "note"
    ]


def test_only_what_is_about_the_paper_is_a_note(done: tuple[Study, Path, dict[str, Any]]) -> None:
    study, _, result = done
    late = [
        pair | {"simulated_bytes": 1e12} if SYSTEMS[pair["other"]].striped else pair
        for pair in result["crossovers"]["systems"]
    ]
    found = verdict(study, {**result, "crossovers": {**result["crossovers"], "systems": late}})
    assert [entry["kind"] for entry in found if "WRHT wins only up to these sizes" in entry["text"]] == [
        "wins"
    ]


def test_each_electrical_system_gets_its_verdict(done: tuple[Study, Path, dict[str, Any]]) -> None:
    study, _, result = done
    systems = tuple(name for name in study.sweeps.systems if name != "electrical-ring")
    sweeps = study.sweeps.model_copy(update={"systems": systems})
    found = verdict(replace(study, spec=study.spec.model_copy(update={"study": sweeps})), result)
    assert any(entry["text"].startswith("Electrical recursive doubling on a tree") for entry in found)


def test_a_report_can_be_made_again(done: tuple[Study, Path, dict[str, Any]]) -> None:
    _, folder, result = done
    assert finish_study(folder) == json.loads(json.dumps(result))


def test_a_folder_without_points_is_named(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(BUNDLED.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"points\.jsonl: cannot be read: No such file"):
        finish_study(tmp_path)


def test_of_a_study_that_was_cut_short_there_is_a_report(
    done: tuple[Study, Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(done[1], folder)
    points = (folder / POINTS).read_text(encoding="utf-8")
    (folder / POINTS).write_text(points[:-9], encoding="utf-8")
    result = finish_study(folder)
    assert result["complete"] is False
    assert "This study is not complete" in (folder / "report.html").read_text(encoding="utf-8")
    # Nothing is concluded from what was not simulated.
    (folder / POINTS).write_text("", encoding="utf-8")
    assert not [found for found in finish_study(folder)["verdict"] if "WRHT is faster" in found["text"]]
    assert "closed forms agree" not in (folder / "report.html").read_text(encoding="utf-8")
    (folder / "environment.json").write_text('{"run": ', encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"environment\.json: it is not JSON"):
        finish_study(folder)


class Killer(Reporter):
    """Kills whoever computes, once somebody has found something."""

    def say(self, text: str, style: str | None = None) -> None:
        super().say(text, style)
        for child in multiprocessing.active_children():
            child.kill()


def test_a_process_that_is_killed_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"s\.yaml: a process that computed points was killed"):
        simulate_study(study_of(small()), tmp_path, Killer(), processes=2)
    assert not multiprocessing.active_children()
    (folder,) = tmp_path.iterdir()
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["points"] < environment["points_expected"]


def test_a_study_that_takes_too_long_is_given_up_on_one_processor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_runner, "DEADLINE_S", 0.01)
    with pytest.raises(UserError, match=r"s\.yaml: the study took more than 0\.01 s"):
        simulate_study(study_of(small()), tmp_path, Reporter(), processes=1)
    assert not multiprocessing.active_children()


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    raw = small(systems=["wrht", "ring"], nodes=[64], wavelengths=[8], set_up=["25 µs"], groups=[], reach=[])
    raw["study"]["base"]["nodes"] = 64
    del raw["study"]["published"], raw["study"]["loss"], raw["study"]["light"], raw["study"]["addition"]
    study = study_of(raw)

    folder, _ = simulate_study(study, tmp_path, Reporter(), processes=2)
    found = {
        (p["kind"], p["system"], str(p["place"]), str(p.get("charge"))): p
        for p in map(json.loads, (folder / POINTS).read_text(encoding="utf-8").splitlines())
    }
    assert len(found) == len(tasks(study)) == 4
    for task in tasks(study):
        here = json.loads(json.dumps(work(task)))
        there = found[here["kind"], here["system"], str(here["place"]), str(here.get("charge"))]
        assert {**here, "wall_s": 0} == {**there, "wall_s": 0}


# --- the page about it ----------------------------------------------------------------------------

PAGE = BUNDLED.parents[1] / "docs" / "wrht.md"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.4g} MB"


def crossing(study: Study, system: str, other: str, charge: Reconfigure) -> float | None:
    """The gradient at which the straight lines of two closed forms cross; None for one not above 0."""
    base = study.sweeps.base
    one, two = (SYSTEMS[name].closed(study.base) for name in (system, other))
    less = (two.set_ups(charge) - one.set_ups(charge)) * base.set_up
    more = (one.vectors - two.vectors) * 8 / base.rate
    return less / more if less and less / more > 0 else None


@pytest.mark.parametrize("system", load_study(BUNDLED).optical)
def test_the_page_has_the_times_and_crossovers_of_the_study(system: str) -> None:
    study = load_study(BUNDLED)
    base, form = study.sweeps.base, SYSTEMS[system].closed(study.base)
    cells = [f"{form.steps:,}"]
    for model in ("resnet50", "vgg16"):
        times = [
            form.time_s(study.sweeps.gradients[model], base.rate, base.set_up, charge) for charge in CHARGES
        ]
        cells.append(" / ".join(milliseconds(seconds) for seconds in times) + " ms")
    if system in WRHT:
        cells.append("")
    elif system == "binary-tree":
        cells.append("every size")
    else:
        found = [crossing(study, "wrht", system, charge) for charge in CHARGES]
        names = ["never" if size is None else megabytes(size) for size in found]
        cells.append(names[0] if len(set(names)) == 1 else " / ".join(names))
    row = f"| {SYSTEMS[system].title} | {' | '.join(cells)} |".replace("|  |", "| |")
    assert row in PAGE.read_text(encoding="utf-8")
