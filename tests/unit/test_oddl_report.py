"""The report of a comparison: self-contained, says what the result says; its trace is what viewers read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.report.page import hero
from fabric.collectives import all_reduce
from scenarios.comparison import Comparison, load
from scenarios.comparison_plots import lit_steps, wavelength_colours
from scenarios.comparison_report import render
from scenarios.comparison_results import build_comparison
from scenarios.perfetto import trace_events
from scenarios.records import read_runs
from scenarios.runfolder import RunFolder, finish
from tests.synthetic_comparison import ENVIRONMENT, Synthesis, synthesize
from tests.unit.page import Page, check_alone, text_of

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def bundled(name: str) -> Comparison:
    found = load(SCENARIOS / f"{name}.yaml")
    assert isinstance(found, Comparison)
    return found


def folder_of(comparison: Comparison, parent: Path) -> tuple[Path, dict[str, Any]]:
    """A run folder written and finished as the runner does it."""
    with RunFolder(parent, comparison) as folder:
        folder.describe(**ENVIRONMENT)
        for event in synthesize(comparison).events:
            folder.copy(event)
    return folder.path, finish(folder.path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return folder_of(bundled("oddl_4"), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    return folder_of(bundled("oddl_sweep"), tmp_path_factory.mktemp("runs"))


def words(folder: Path) -> str:
    return text_of(Page((folder / "report.html").read_text(encoding="utf-8")))


def test_the_pages_stand_alone(
    finished: tuple[Path, dict[str, Any]], swept: tuple[Path, dict[str, Any]]
) -> None:
    for folder, _ in (finished, swept):
        check_alone((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_says_what_the_result_says(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    said = words(folder)
    # Nobody counts samples of a comparison, so none are said to be there.
    assert "idle CPU" in said
    assert "stolen CPU" in said
    assert "samples missing" not in said
    ratio = result["comparison"]["ratios"]["oddl"]
    for figure in (
        f"{ratio['training_time']:.4f}",
        "1.0051",
        "97.3 min",
        "97.8 min",
        "80.2 %",
        f"{result['fabrics']['oddl']['completion_s']:.2f} s",
        "5.00 control messages per flow",
    ):
        assert figure in said
    for heading in (
        "Training time",
        "Is it the same training?",
        "The light on oddl",
        "When things go wrong",
        "Can this be believed?",
        "What cannot be claimed",
        "Parameters and where they come from",
    ):
        assert heading in said
    for claim in ("10.5 ns tuning", "100 Gbit/s", "ImageNet", "80.2 %"):
        assert claim in said.split("What cannot be claimed", 1)[1]
    for label in ("measured", "analytic", "published"):
        assert label in said


def test_the_sweep_says_where_it_stops_paying(swept: tuple[Path, dict[str, Any]]) -> None:
    folder, result = swept
    said = words(folder)
    assert "Where switching per flow stops paying" in said
    for entry in result["sweep"]["break_even"]:
        assert f"{entry['analytic_stands_for_ms']:.3f} ms" in said
    assert (folder / "plots" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_folder_has_what_was_promised(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    assert json.loads((folder / "result.json").read_text()) == result
    for name in (
        "iterations",
        "grid-oddl",
        "flows-oddl",
        "setup-oddl",
        "trouble-agent",
        "trouble-controller",
    ):
        assert (folder / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / "plots" / f"{name}.svg").read_text()


def test_the_trace_is_a_chrome_trace(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    trace = json.loads((folder / "trace.json").read_text())
    events = trace["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X"}
    for event in slices:
        assert event["dur"] >= 0
        assert event["ts"] >= 0
        assert (event["pid"], event["tid"]) in named
    flows = [e for e in slices if e["cat"] == "flow" and e["args"]["run"] == "oddl-1"]
    assert len(flows) == 2 * result["fabrics"]["oddl"]["flows"]["count"]


def test_slices_of_a_thread_do_not_overlap(finished: tuple[Path, dict[str, Any]]) -> None:
    """Viewers draw overlapping slices of one thread wrongly."""
    comparison = bundled("oddl_4")
    events = trace_events(comparison, read_runs(synthesize(comparison).events))
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            span = (event["ts"], event["ts"] + event["dur"])
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 0.01


def test_steps_are_those_of_halving_doubling() -> None:
    comparison = bundled("oddl_16")
    synthesis = Synthesis(comparison)
    synthesis.run("oddl-1", "oddl", changes={"iterations": 3})
    # A later step may be ready, and ask for light, before an earlier one to another peer.
    for flow in synthesis.events:
        if flow["event"] == "flow" and (flow["gpu"], flow["peer"]) == ("n0", "n8"):
            flow["t_request"] -= 0.011
    (run,) = read_runs(synthesis.events)
    index, steps = lit_steps(run, all_reduce("halving-doubling", comparison.world_size))
    assert index == 1
    assert [len(step) for step in steps] == [16] * 8
    ranks = comparison.ranks("oddl")
    begins = [max(flow["t_request"] for flow in step) for step in steps]
    assert begins == sorted(begins)
    for k, step in enumerate((*steps[:4], *reversed(steps[4:]))):
        distance = 1 << (k % 4)
        for flow in step:
            assert ranks.index(flow["gpu"]) ^ distance == ranks.index(flow["peer"])


def test_an_iteration_that_was_not_traced_whole_is_not_drawn() -> None:
    comparison = bundled("oddl_4")
    synthesis = Synthesis(comparison)
    synthesis.run("oddl-1", "oddl", changes={"iterations": 3})
    flows = [event for event in synthesis.events if event["event"] == "flow"]
    synthesis.events.remove(flows[len(flows) // 2])
    (run,) = read_runs(synthesis.events)
    assert lit_steps(run, all_reduce("halving-doubling", comparison.world_size))[0] != 1
    for flow in flows:
        if flow in synthesis.events:
            synthesis.events.remove(flow)
    (run,) = read_runs(synthesis.events)
    assert lit_steps(run, all_reduce("halving-doubling", comparison.world_size)) == (0, [])


def test_what_did_not_run_is_left_out_and_said() -> None:
    comparison = bundled("oddl_4")
    empty = build_comparison(comparison, [], [], ENVIRONMENT)
    said = text_of(Page(render(comparison, empty, ENVIRONMENT, [])))
    assert "This run is not complete." in said
    assert "no link was measured" in said
    assert "When things go wrong" not in said


def test_namespace_runs_say_so() -> None:
    comparison = bundled("oddl_4")
    environment = {**ENVIRONMENT, "runtime": "namespace"}
    result = build_comparison(comparison, synthesize(comparison).events, [], environment)
    said = text_of(Page(render(comparison, result, environment, [])))
    assert "The workers ran in network namespaces, not in containers" in said


def test_every_wavelength_has_a_colour() -> None:
    for count in (2, 4, 32):
        assert len(set(wavelength_colours(count))) == count


def test_no_cards_no_list() -> None:
    assert hero([]) == ""
