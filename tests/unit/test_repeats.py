"""What is made once more, and what is not: decided by who had the processors, never by the figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments.backends.emulation.linktest import LinkTest
from experiments.backends.emulation.session import Session
from experiments.report.page import NO_RESULT
from experiments.runner.progress import Reporter
from scenarios.records import read_lines, read_runs
from scenarios.repeats import Repeats
from scenarios.results import build_result
from scenarios.runfolder import RunFolder, finish
from scenarios.schema import Scenario, load_scenario
from testbed.load import ProcessorLoad, Shares
from tests.synthetic import ENVIRONMENT, REGROUPED, Synthesis
from tests.unit.page import Page, text_of

BUNDLED = Path(__file__).parents[2] / "scenarios" / "disaggregation.yaml"
LATE: dict[str, Any] = {"late_s": 0.2}
DISTURBED: dict[str, Any] = {**LATE, "others": 0.2}


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario(BUNDLED)


class Bench:
    """A run folder with synthetic runs in it, each as it is told."""

    def __init__(self, folder: RunFolder, scenario: Scenario) -> None:
        self.folder, self.scenario = folder, scenario
        self.synthesis = Synthesis(scenario)
        self.repeats = Repeats(folder, Reporter(), scenario.compute_s)
        self.made: list[str] = []
        self._copied = 0

    def run(self, name: str, *, placement: str = "fragmented", **how: Any) -> None:
        start = [(str(a), str(b)) for a, b in self.scenario.fabric.circuits]
        circuits = start if placement == "fragmented" else REGROUPED["a"]
        self.synthesis.run(name, self.scenario.spec.cases["a"].jobs, circuits, placement=placement, **how)
        self.copy()

    def copy(self) -> None:
        for event in self.synthesis.events[self._copied :]:
            self.folder.copy(event)
        self._copied = len(self.synthesis.events)
        for sample in self.synthesis.series:
            self.folder.samples(sample["run"], [sample])
        self.synthesis.series.clear()

    def settle(self, name: str, expected_s: float | None = None, **how: Any) -> None:
        def again(another: str) -> list[str]:
            self.made.append(another)
            self.run(another, **how)
            return []

        assert self.repeats.settle(name, expected_s, again) == []

    def runs(self) -> list[str]:
        return [run.name for run in read_runs(read_lines(self.folder.path / "events.jsonl"))]


@contextmanager
def bench_in(parent: Path, scenario: Scenario) -> Iterator[Bench]:
    with RunFolder(parent, scenario) as folder:
        folder.describe(**ENVIRONMENT)
        yield Bench(folder, scenario)


@pytest.fixture
def bench(tmp_path: Path, scenario: Scenario) -> Iterator[Bench]:
    with bench_in(tmp_path, scenario) as made:
        yield made


def test_a_disturbed_run_is_made_once_more_and_set_aside(bench: Bench) -> None:
    bench.run("a-fragmented-1", **DISTURBED)
    bench.settle("a-fragmented-1", others=0.01)
    assert bench.made == ["a-fragmented-1-again"]
    assert bench.runs() == ["a-fragmented-1-again"]


@pytest.mark.parametrize(
    "how",
    [
        {**LATE, "others": 0.01},
        {"others": 0.3},
        {**DISTURBED, "reference": "another"},
    ],
    ids=["late, but nobody took anything", "taken, but nothing was missed", "a fault of ours"],
)
def test_a_run_is_not_made_again_for_less(bench: Bench, how: dict[str, Any]) -> None:
    bench.run("a-fragmented-1", **how)
    bench.settle("a-fragmented-1")
    assert bench.made == []


def test_a_run_that_took_too_long_is_made_again_only_when_disturbed(bench: Bench) -> None:
    for name, others, again in (("a-fragmented-1", 0.2, True), ("a-fragmented-2", 0.01, False)):
        bench.run(name, others=others)
        bench.settle(name, 1.0)
        assert (f"{name}-again" in bench.made) is again


def test_what_the_hypervisor_stole_counts_too(bench: Bench) -> None:
    bench.run("a-fragmented-1", late_s=0.2, stolen=0.2)
    bench.settle("a-fragmented-1")
    assert bench.made == ["a-fragmented-1-again"]


def test_the_less_disturbed_one_counts_and_no_third_is_made(bench: Bench) -> None:
    bench.run("a-fragmented-1", **DISTURBED)
    bench.settle("a-fragmented-1", **{**DISTURBED, "others": 0.4})
    assert bench.runs() == ["a-fragmented-1"]
    # The disturbance is there to stay.
    bench.run("a-regrouped-1", placement="regrouped", **DISTURBED)
    bench.settle("a-regrouped-1", placement="regrouped")
    assert bench.made == ["a-fragmented-1-again"]


def test_the_page_says_what_was_made_again_why_and_both_figures(tmp_path: Path, scenario: Scenario) -> None:
    with bench_in(tmp_path, scenario) as bench:
        bench.synthesis.links()
        bench.run("a-fragmented-1", **DISTURBED)
        bench.settle("a-fragmented-1")
        bench.run("a-regrouped-1", placement="regrouped")
        bench.settle("a-regrouped-1")
    result = finish(bench.folder.path)
    (entry,) = result["fidelity"]["repeated"]
    assert (entry["what"], entry["name"], entry["counts"]) == (
        "run",
        "a-fragmented-1",
        "a-fragmented-1-again",
    )
    assert [reason["code"] for reason in entry["reasons"]] == ["timers_late"]
    assert entry["first"]["taken"] == pytest.approx(0.21)
    assert entry["second"]["taken"] == pytest.approx(0.01)
    assert result["fidelity"]["verdict"] == "good"
    page = text_of(Page((bench.folder.path / "report.html").read_text()))
    assert "Made once more" in page
    assert f"red {entry['first']['completion_s']['red']:.1f} s" in page
    assert "21 % of the processors taken" in page
    assert "1 % of the processors taken" in page


def test_a_bad_run_has_no_headline_that_reads_as_a_result(tmp_path: Path, scenario: Scenario) -> None:
    def headline(links: float) -> str:
        with bench_in(tmp_path, scenario) as bench:
            bench.synthesis.links(ratio=links)
            bench.run("a-fragmented-1")
            bench.run("a-regrouped-1", placement="regrouped")
        finish(bench.folder.path)
        return (bench.folder.path / "report.html").read_text().split("<h1>")[1].split("</h1>")[0]

    assert "times as fast" in headline(0.993)
    assert headline(0.8) == NO_RESULT


class Since:
    """Stands for what others took since the last look, look by look."""

    def __init__(self, others: list[float]) -> None:
        self._others = others

    def shares(self) -> Shares:
        return Shares(0.5, 0.0, self._others.pop(0) if self._others else 0.0)


@pytest.mark.parametrize(
    ("found", "rate", "counts"),
    [
        ([(0.99, 0.3)], 99, None),
        ([(0.8, 0.01)], 80, None),
        ([(0.8, 0.3), (0.99, 0.0)], 99, "second"),
        ([(0.9, 0.3), (0.8, 0.4)], 90, "first"),
    ],
)
@pytest.mark.parametrize("meanwhile", [[0.0], [0.3, 0.0], [0.3, 0.3, 0.3]])
def test_a_disturbed_link_test_is_made_once_more_when_others_have_gone_or_at_the_end(
    tmp_path: Path,
    scenario: Scenario,
    found: list[tuple[float, float]],
    rate: float,
    counts: str | None,
    meanwhile: list[float],
) -> None:
    lab = SimpleNamespace(processes=SimpleNamespace(lab=SimpleNamespace(id="none")))
    with RunFolder(tmp_path, scenario) as folder:
        test = LinkTest(scenario.lab_setting, cast(Session, lab), folder.record, print)
        left = list(found)

        def fill() -> None:
            ratio, others = left.pop(0)
            test._load = Shares(0.5, 0.0, others)
            test._keep("l", "g0 to g1", 100.0 * scenario.rate_scale, 100.0 * ratio)

        test._settle("NICs", fill)
        test._since = cast(ProcessorLoad, Since(list(meanwhile)))
        for others in meanwhile[:2]:
            test.repeat()
            assert len(left) == (counts is not None and others > 0)
        test.repeat(last=True)
    events = read_lines(folder.path / "events.jsonl")
    (measured,) = [event for event in events if event["event"] == "link_rate"]
    assert measured["measured_bps"] == pytest.approx(rate)
    # What was measured is on record at once, should the run not come to its end.
    disturbed = [event["measured_bps"] for event in events if event["event"] == "link_rate_disturbed"]
    assert disturbed == ([] if counts is None else [pytest.approx(100 * found[0][0])])
    assert measured.keys() >= {"stolen", "others"}
    repeats = [event["counts"] for event in events if event["event"] == "repeated"]
    assert repeats == ([] if counts is None else [counts])
    fidelity = build_result(scenario, events, [], ENVIRONMENT)["fidelity"]
    assert json.loads(json.dumps(fidelity["repeated"])) == fidelity["repeated"]
