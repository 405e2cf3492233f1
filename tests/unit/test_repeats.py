"""What is made once more, and what is not: decided by who had the processors, never by the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ringlight.experiments.analysis.result import analyse, document
from ringlight.experiments.backends.emulation.linktest import Attempt, LinkTest, Part
from ringlight.experiments.backends.protocol import BuiltLab
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.client import Api
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import RunPlan
from ringlight.experiments.record.events import (
    JobState,
    Record,
    Reference,
    Repeated,
    RunEnded,
    RunStarted,
)
from ringlight.experiments.record.lab_records import (
    LinkRate,
    LinkRateDisturbed,
    ProcessEnded,
    ProcessorLoad,
    SwitchDrifted,
)
from ringlight.experiments.record.runs import AGAIN, runs_of
from ringlight.experiments.report.page import NO_RESULT
from ringlight.experiments.report.report import render
from ringlight.experiments.report.view import view_of
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.repeats import Repeats
from ringlight.experiments.runner.timeline import Outcome, run_group
from ringlight.testbed import load as machine
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.processes import LabProcesses
from tests.simulated import experiment, late, records_of, with_links, with_workers
from tests.unit.page import Page, text_of

BUNDLED = Path(__file__).parents[2] / "scenarios" / "disaggregation.yaml"
ARMS = "arms:\n  first: {}\n  second: {training.compute: 40 ms}\ncompare: {baseline: first}\n"


def measured(
    records: Sequence[Record], others: float = 0.0, stolen: float = 0.0
) -> list[Record]:
    """As if workers had trained while others had so much of the processors."""
    found = []
    for record in with_workers(records):
        if isinstance(record, RunEnded):
            middle = record.t / 2
            found.append(
                ProcessorLoad(
                    t=middle, run=record.run, busy=0.7, stolen=stolen, others=others
                )
            )
        found.append(record)
    return found


DISTURBED = {"late": 0.2, "others": 0.2}


class Bench:
    """Runs of an experiment, each disturbed as it is told, and what was made once more of them."""

    def __init__(self, more: str = ARMS) -> None:
        self.experiment = experiment(more)
        self.repeats = Repeats(Reporter())
        self.simulated = records_of(self.experiment)
        self.records: list[Record] = []
        self.made: list[str] = []

    def run(
        self, arm: str, then: dict[str, float] | None = None, **how: float
    ) -> Repeated | None:
        """``then``: how the repetition is disturbed."""
        (plan,) = [plan for plan in self.experiment.plans if plan.arm == arm]
        first = self._made(plan.name, plan.name, **how)
        why = self.repeats.why(plan, first)
        if not why:
            return None
        self.made.append(plan.name)
        second = self._made(plan.name, plan.name + AGAIN, **(then or {}))
        said = self.repeats.settled(plan, why, first, second)
        self.records.append(said)
        return said

    def _made(
        self, name: str, called: str, late: float = 0.0, **how: float
    ) -> list[Record]:
        mine = [
            replace(record, run=called)
            for record in self.simulated
            if record.run == name
        ]
        found = measured(late_by(mine, late), **how)
        self.records += found
        return found

    def counted(self) -> list[str]:
        return [run.name for run in runs_of(self.records, self.experiment.plans)]


def late_by(records: Sequence[Record], share: float) -> list[Record]:
    return late(records, share) if share else list(records)


def test_a_disturbed_run_is_made_once_more_and_set_aside() -> None:
    bench = Bench()
    said = bench.run("first", **DISTURBED, then={"others": 0.01})
    assert bench.made == ["first"]
    assert bench.counted() == ["first" + AGAIN]
    assert said is not None
    assert [reason["code"] for reason in said.reasons] == ["timers_late"]
    assert (said.first["taken"], said.second["taken"]) == (0.2, 0.01)


def test_what_the_hypervisor_stole_counts_too() -> None:
    bench = Bench()
    bench.run("first", late=0.2, stolen=0.2)
    assert bench.made == ["first"]


@pytest.mark.parametrize("how", [{"late": 0.2, "others": 0.01}, {"others": 0.3}])
def test_a_run_is_not_made_again_for_less(how: dict[str, float]) -> None:
    """Late, but nobody took anything; taken, but nothing was missed."""
    bench = Bench()
    assert bench.run("first", **how) is None
    assert bench.made == []


def test_a_fault_of_ours_is_evidence() -> None:
    bench = Bench()
    (plan, _) = bench.experiment.plans
    records = [
        replace(record, sha256="other") if isinstance(record, Reference) else record
        for record in bench._made("first", "first", **DISTURBED)
    ]
    assert bench.repeats.why(plan, records) == []


@pytest.mark.parametrize(
    "kind", ["O-NIC agent", "meter", "applications", "controller", "Open vSwitch"]
)
def test_a_run_in_which_a_process_of_ours_died_is_evidence(kind: str) -> None:
    bench = Bench()
    (plan, _) = bench.experiment.plans
    records = bench._made("first", "first", **DISTURBED)
    died = ProcessEnded(
        t=records[-1].t,
        run="first",
        kind=kind,
        name="x",
        how="killed by SIGKILL",
        planned=False,
    )
    assert bench.repeats.why(plan, records)
    assert bench.repeats.why(plan, [*records[:-1], died, records[-1]]) == []


def test_a_run_whose_switches_others_changed_is_evidence() -> None:
    bench = Bench()
    (plan, _) = bench.experiment.plans
    records = bench._made("first", "first", **DISTURBED)
    told = {"run": "first", "switch": "t0", "what": "light", "text": "1->5 is missing"}
    drift = SwitchDrifted(t=records[-1].t, **told, planned=False)
    assert bench.repeats.why(plan, [*records[:-1], drift, records[-1]]) == []


def test_a_run_in_which_something_happens_is_never_made_again() -> None:
    bench = Bench(
        "events: [{when: {job: red, iteration: 2}, do: cut, target: link t0:4 t1:4}]\n"
    )
    assert bench.run("base", **DISTURBED) is None
    assert bench.made == []


def test_a_run_that_took_too_long_is_made_again_only_when_disturbed() -> None:
    for others, again in ((0.2, True), (0.01, False)):
        bench = Bench()
        bench.simulated = [
            replace(record, t=1.3 * record.t)
            if isinstance(record, RunEnded)
            else record
            for record in bench.simulated
        ]
        said = bench.run("first", others=others)
        assert (said is not None) is again
        assert said is None or said.reasons[0]["code"] == "run_over_model"


def test_the_less_disturbed_one_counts_and_no_third_is_made() -> None:
    bench = Bench()
    bench.run("first", **DISTURBED, then={"late": 0.2, "others": 0.4})
    assert bench.counted() == ["first"]
    # The disturbance is there to stay.
    bench.run("second", **DISTURBED)
    assert bench.made == ["first"]


class TakenFrom:
    """A lab whose processors others have in some runs, whose jobs fail in some, and whose workers train."""

    def __init__(
        self, lab: BuiltLab, runs: Sequence[str], failing: Sequence[str] = ()
    ) -> None:
        self._lab, self._runs, self._failing = lab, runs, failing
        self.begun: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lab, name)

    def begin(self, plan: RunPlan) -> None:
        self._plan = plan
        self.begun.append(plan.name)
        self._lab.begin(plan)

    def next(self, until_s: float) -> Sequence[Record]:
        found = late_by(
            self._lab.next(until_s), 0.2 if self._plan.name in self._runs else 0.0
        )
        if self._plan.name not in self._failing:
            return found
        return [
            replace(record, state="FAILED", reason="it died")
            if isinstance(record, JobState) and record.state == "SUCCEEDED"
            else record
            for record in found
        ]

    def end(self) -> Sequence[Record]:
        name, now_s = self._plan.name, self._lab.now_s()
        jobs = {job.name: list(job.ranks) for job in self._plan.jobs}
        started = RunStarted(
            t=0.0, run=name, arm="", point={}, repeat=1, fabric="", jobs=jobs
        )
        others = 0.2 if name in self._runs else 0.0
        load = ProcessorLoad(t=now_s, run=name, busy=0.7, stolen=0.0, others=others)
        return [*self._lab.end(), *[*with_workers([started])][1:], load]


@pytest.mark.parametrize(
    ("disturbed", "made", "counted"),
    [
        ((), ["first", "second"], ["first", "second"]),
        (("first",), ["first", "first" + AGAIN, "second"], ["first" + AGAIN, "second"]),
        (
            ("first", "first" + AGAIN, "second"),
            ["first", "first" + AGAIN, "second"],
            ["first", "second"],
        ),
    ],
)
def test_the_runner_makes_a_disturbed_run_once_more(
    disturbed: tuple[str, ...],
    made: list[str],
    counted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes, lab, written = made_by_the_runner(monkeypatch, disturbed)
    assert [outcome.plan.name for outcome in outcomes] == ["first", "second"]
    assert lab.begun == made
    assert [run.name for run in runs_of(written, experiment(ARMS).plans)] == counted
    assert (
        len([record for record in written if isinstance(record, Repeated)])
        == len(made) - 2
    )


def made_by_the_runner(
    monkeypatch: pytest.MonkeyPatch,
    disturbed: Sequence[str],
    failing: Sequence[str] = (),
) -> tuple[list[Outcome], TakenFrom, list[Record]]:
    backend, plans = SimulationBackend(), experiment(ARMS).plans
    lab = TakenFrom(backend.open(plans[0].setting, print), disturbed, failing)
    monkeypatch.setattr(SimulationBackend, "open", lambda *_: lab)
    written: list[Record] = []
    outcomes = list(
        run_group(backend, plans, written.extend, Reporter(), Repeats(Reporter()))
    )
    return outcomes, lab, written


def test_a_run_that_failed_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, lab, _ = made_by_the_runner(monkeypatch, ["first"], failing=["first"])
    assert lab.begun == ["first", "second"]
    assert outcomes[0].failures == ("first: job red failed: it died",)


def test_what_went_wrong_in_the_second_attempt_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes, _, _ = made_by_the_runner(
        monkeypatch, ["first"], failing=["first" + AGAIN]
    )
    assert outcomes[0].failures == ("first, again: job red failed: it died",)


def page_of(
    bench: Bench, folder: Path, links: float = 0.99
) -> tuple[str, dict[str, Any]]:
    records = with_links(bench.records, links)
    found = analyse(bench.experiment, records, "measured")
    environment = {
        "run": "x",
        "backend": "emulation",
        "label": "measured",
        "runtime": "docker",
    }
    result = document(found, records, environment)
    return render(view_of(found, result, environment), folder), dict(found.fidelity)


def test_the_page_says_what_was_made_again_why_and_both_figures(tmp_path: Path) -> None:
    bench = Bench()
    bench.run("first", **DISTURBED, then={"others": 0.01})
    bench.run("second")
    page, fidelity = page_of(bench, tmp_path)
    (entry,) = fidelity["repeated"]
    assert (entry["what"], entry["name"], entry["counts"]) == (
        "run",
        "first",
        "first" + AGAIN,
    )
    assert fidelity["verdict"] == "good"
    said = text_of(Page(page))
    assert "20 % of the processors taken" in said
    assert "1 % of the processors taken" in said
    assert f"red {entry['first']['completion_s']['red']:.1f} s" in said


def test_a_bad_run_has_no_headline_that_reads_as_a_result(tmp_path: Path) -> None:
    bench = Bench()
    bench.run("first")
    bench.run("second")
    for links, known in ((0.99, True), (0.8, False)):
        page, fidelity = page_of(bench, tmp_path, links)
        headline = page.split("<h1>")[1].split("</h1>")[0]
        assert (headline != NO_RESULT) is known, fidelity["reasons"]


class Since:
    """Stands for what others took since the last look, look by look."""

    def __init__(self, others: list[float]) -> None:
        self._others = others

    def shares(self) -> machine.Shares:
        return machine.Shares(0.5, 0.0, self._others.pop(0) if self._others else 0.0)


def link_test(
    found: list[tuple[float | None, float]], records: list[Record]
) -> LinkTest:
    """A link test whose attempts give one link these shares of its setting, while others took so much."""

    class Canned(LinkTest):
        def _attempt(self, part: Part) -> Attempt:
            ratio, others = found.pop(0)
            rate = {"link": "l", "direction": "g0 to g1", "set_bps": 100.0}
            rates = [] if ratio is None else [{**rate, "measured_bps": 100.0 * ratio}]
            return Attempt(rates, machine.Shares(0.5, 0.0, others))

    setting = load(BUNDLED).plans[0].setting
    processes = LabProcesses({}, "namespace", Addresses())
    return Canned(setting, processes, Api("127.0.0.1:9"), records.append, print)


@pytest.mark.parametrize(
    ("found", "rate"),
    [
        ([(0.93, 0.0), (0.99, 0.0)], 99),
        ([(0.93, 0.0), (0.91, 0.0)], 93),
        # Nothing got through at the second time.
        ([(0.93, 0.0), (None, 0.0)], 93),
    ],
)
def test_a_link_that_missed_its_setting_by_a_time_out_of_tcp_is_filled_twice(
    found: list[tuple[float | None, float]], rate: float
) -> None:
    records: list[Record] = []
    test = link_test(found, records)
    test._settle(Part("NICs", []))
    test.repeat(last=True)
    assert found == []
    (measured,) = [r for r in records if isinstance(r, LinkRate)]
    assert measured.measured_bps == pytest.approx(rate)
    (repeated,) = [r for r in records if isinstance(r, Repeated)]
    assert (repeated.counts, repeated.first["least"]) == ("better", 0.93)


@pytest.mark.parametrize(
    ("found", "rate", "counts"),
    [
        ([(0.99, 0.3)], 99, None),
        ([(0.8, 0.01)], 80, None),
        ([(0.8, 0.3), (0.99, 0.0)], 99, "second"),
        ([(0.9, 0.3), (0.8, 0.4)], 90, "first"),
        # Nothing got through.
        ([(0.9, 0.3), (None, 0.0)], 90, "first"),
    ],
)
@pytest.mark.parametrize("meanwhile", [[0.0], [0.3, 0.0], [0.3, 0.3, 0.3]])
def test_a_disturbed_link_test_is_made_once_more_when_others_have_gone_or_at_the_end(
    found: list[tuple[float | None, float]],
    rate: float,
    counts: str | None,
    meanwhile: list[float],
) -> None:
    records: list[Record] = []
    left = list(found)
    test = link_test(left, records)
    test._settle(Part("NICs", []))
    test._since = cast(machine.ProcessorLoad, Since(list(meanwhile)))
    for others in meanwhile[:2]:
        test.repeat()
        assert len(left) == (counts is not None and others > 0)
    test.repeat(last=True)
    (measured,) = [
        r
        for r in records
        if isinstance(r, LinkRate) and not isinstance(r, LinkRateDisturbed)
    ]
    assert measured.measured_bps == pytest.approx(rate)
    # What was measured is on record at once, should the run not come to its end.
    disturbed = [r.measured_bps for r in records if isinstance(r, LinkRateDisturbed)]
    assert disturbed == (
        [] if counts is None else [pytest.approx(100 * (found[0][0] or 0.0))]
    )
    assert [r.counts for r in records if isinstance(r, Repeated)] == (
        [] if counts is None else [counts]
    )
