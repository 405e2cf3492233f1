"""Every run is compared with a simulation of the same run, and arms are judged apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.prediction import (
    PHASES,
    Foretold,
    modelled,
    predict_jobs,
)
from ringlight.experiments.analysis.result import Analysis, analyse, document
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.losses import RECOVERY_S
from ringlight.experiments.cli.show import show_result
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.plan import OnLoss, RunPlan
from ringlight.experiments.record.events import (
    ActionBegun,
    GpusGranted,
    Iteration,
    JobRecovered,
    JobState,
    Record,
    RunEnded,
)
from ringlight.experiments.record.lab_records import (
    LinkRate,
    ProcessEnded,
    ProcessorLoad,
)
from ringlight.experiments.report.page import NO_RESULT
from ringlight.experiments.report.report import render
from ringlight.experiments.report.sections import header
from ringlight.experiments.report.view import view_of
from ringlight.experiments.runner import foretold
from ringlight.experiments.runner.experiment import run_alone
from ringlight.experiments.runner.foretold import Foreteller
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.repeats import Repeats
from tests.simulated import (
    TWO_SWITCHES,
    experiment,
    records_of,
    the,
    where,
    with_links,
    with_workers,
)
from tests.unit.page import Page, text_of
from tests.unit.test_cli import MINI

#: Two jobs whose rings cross the link between the switches; the second comes while the first trains.
LATER = """
arms: {base: {}, other: {training.compute: 40 ms}}
compare: {baseline: base}
"""
JOBS = "jobs: {red: {ranks: [g0, g3]}, late: {ranks: [g1, g4], start: {at: 200 ms}}}\n"
CUT = "events: [{name: cut, when: {at: 100 ms}, do: cut, target: 'link g2 t0:3'}]\n"
#: Of the small experiment, whose arm ``live`` moves light while jobs train.
REGROUP = "regroup"
GRAPH = "jobs: {red: {ranks: [g0, g1, g2], workload: {collective: all-reduce, size: 40 MB, iterations: 3}}}\n"


def of(jobs: str, more: str = LATER) -> Experiment:
    return experiment(
        jobs + more, TWO_SWITCHES.replace("jobs: {red: {ranks: [g0, g1]}}\n", "")
    )


def measured(found: Experiment, records: Sequence[Record], **more: Any) -> Analysis:
    """As if a testbed had given what was simulated, on links that gave what they should."""
    disturbed = with_links(list(with_workers(records)), 0.993)
    return analyse(found, disturbed, "measured", **{"foretell": Foreteller(), **more})


def stretched(
    records: Sequence[Record], times: float, arm: str = "base"
) -> list[Record]:
    """As if everything in an arm's runs had taken so many times as long."""

    def longer(record: Record) -> Record:
        if record.run != arm:
            return record
        names = ("t", "at", "compute_start", "compute_end", "allreduce_end")
        there = {
            name: times * vars(record)[name] for name in names if name in vars(record)
        }
        return replace(record, **there)

    return list(map(longer, records))


def longer(records: Sequence[Record], share: float) -> list[Record]:
    """As if every all-reduce had taken longer by a share of itself."""
    return [
        replace(r, allreduce_end=r.allreduce_end + share * r.all_reduce_s)
        if isinstance(r, Iteration)
        else r
        for r in records
    ]


def codes(found: Analysis) -> set[str]:
    return {reason["code"] for reason in found.fidelity["reasons"]}


def test_jobs_that_begin_apart_and_share_a_link_are_as_good_as_their_simulation() -> (
    None
):
    """The models know of nobody beside a job that comes later, and called the perfect run 5 % too slow."""
    found = of(JOBS)
    made = measured(found, records_of(found))
    assert made.fidelity["verdict"] == "good", made.fidelity["reasons"]
    for job in ("red", "late"):
        took = the(made.rows, "jct", arm="base", subject=f"job {job}")
        assert the(
            made.rows, "jct_simulated", arm="base", subject=f"job {job}"
        ) == pytest.approx(took)
        assert the(
            made.rows, "jct_over_simulated", arm="base", subject=f"job {job}"
        ) == pytest.approx(1)
    assert {row.label for row in where(made.rows, metric="jct_simulated")} == {
        "simulated"
    }
    assert not where(made.rows, metric="jct_predicted")


def test_jobs_one_after_another_are_still_held_against_the_model() -> None:
    found = of(JOBS.replace("start: {at: 200 ms}", "start: {after: red}"))
    made = measured(found, records_of(found))
    assert the(
        made.rows, "jct_over_model", arm="base", subject="job late"
    ) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        (0.7, "doubtful"),
        (0.94, "doubtful"),
        (0.97, "good"),
        (1.03, "good"),
        (1.07, "doubtful"),
        (1.3, "bad"),
    ],
)
def test_they_are_held_against_it(times: float, verdict: str) -> None:
    """In both directions: what is faster than its simulation is as little explained by it."""
    found = of(JOBS)
    for arm, other in (("base", "other"), ("other", "base")):
        fidelity = measured(found, stretched(records_of(found), times, arm)).fidelity
        # The other arm has done nothing.
        assert fidelity["arms"] == {arm: verdict, other: "good"}
        assert fidelity["verdict"] == verdict
        assert all(reason["arms"] == [arm] for reason in fidelity["reasons"])


@pytest.mark.parametrize(
    ("times", "verdict"),
    [(0.9, "doubtful"), (1.0, "good"), (1.13, "doubtful"), (1.27, "bad"), (2.6, "bad")],
)
def test_a_workload_is_held_against_its_simulation(times: float, verdict: str) -> None:
    found = of(GRAPH, "")
    made = measured(found, stretched(records_of(found), times))
    assert made.fidelity["verdict"] == verdict
    assert codes(made) == (set() if times == 1 else {"unlike_simulation"})
    assert all(
        "allreduce_s" not in reason["figures"] for reason in made.fidelity["reasons"]
    )
    assert the(made.rows, "jct_over_simulated", subject="job red") == pytest.approx(
        times
    )


@pytest.mark.parametrize("events", [CUT, REGROUP], ids=["cut", "regroup"])
@pytest.mark.parametrize(
    ("times", "verdict"), [(0.8, "doubtful"), (1.02, "good"), (1.3, "doubtful")]
)
def test_what_a_fault_or_a_move_of_light_costs_is_judged(
    events: str, times: float, verdict: str
) -> None:
    """Never as bad: the simulation assumes what that costs."""
    found = of(JOBS, CUT) if events == CUT else load(MINI)
    records = [r for r in records_of(found) if r.run in ("base", "live")]
    made = measured(found, stretched(records, times, records[0].run))
    assert made.fidelity["verdict"] == verdict, made.fidelity["reasons"]
    assert codes(made) == (set() if verdict == "good" else {"unlike_simulation"})


MIXED = """jobs:
  red: {ranks: [g0, g3, g1, g4], training: {collective: halving-doubling}}
  blue: {ranks: [g2, g5], training: {collective: COLLECTIVE}}
"""


def test_jobs_that_share_links_and_are_not_rings_are_held_against_no_model() -> None:
    """Each was judged as if it were alone: "bad", 1.8 times an ideal that nobody has."""
    found = of(
        MIXED.replace("COLLECTIVE", "binary-tree"), "compare: {baseline: base}\n"
    )
    records = records_of(found)
    made = measured(found, records)
    assert made.fidelity["verdict"] == "good", made.fidelity["reasons"]
    assert not where(made.rows, metric="jct_predicted")
    (plan,) = found.plans
    assert not modelled(plan)
    # Who asks whether a run took too long asks the simulation.
    busy = ProcessorLoad(t=0.1, run=plan.name, busy=0.7, others=0.2)
    disturbed = [*with_workers(records)]
    assert not Repeats(Reporter(quiet=True), Foreteller()).why(
        plan, [disturbed[0], busy, *disturbed[1:]]
    )


@pytest.mark.parametrize(
    ("jobs", "known"),
    [
        (MIXED.replace("COLLECTIVE", "ring"), set()),
        (
            MIXED.replace("COLLECTIVE", "ring").replace("halving-doubling", "ring"),
            {"red", "blue"},
        ),
        (
            MIXED.replace("g0, g3, g1, g4", "g0, g1").replace(
                "COLLECTIVE", "binary-tree"
            ),
            {"red", "blue"},
        ),
    ],
    ids=["a ring beside another", "rings", "apart"],
)
def test_what_the_models_know_of_jobs_beside_each_other(
    jobs: str, known: set[str]
) -> None:
    (plan,) = of(jobs, "").plans
    assert (
        predict_jobs(plan, {job.name: job.ranks for job in plan.jobs}).keys() == known
    )
    assert modelled(plan) is bool(known)


def test_an_all_reduce_that_is_far_off_is_named_though_computing_hides_it() -> None:
    found = of("jobs: {red: {ranks: [g0, g3], training: {compute: 2 s}}}\n", "")
    made = measured(found, longer(records_of(found), 0.15))
    (reason,) = (
        one for one in made.fidelity["reasons"] if one["code"] == "unlike_simulation"
    )
    assert (reason["level"], list(reason["figures"])) == ("doubtful", ["allreduce_s"])
    assert reason["figures"]["allreduce_s"]["difference_percent"] == pytest.approx(
        100 * (1 / 1.15 - 1)
    )
    assert "all-reduce" in reason["text"]
    assert "−13.0 %" in reason["text"]


def test_what_is_unlike_its_simulation_has_the_cause_that_is_known() -> None:
    """A regroup that came late leaves slow iterations in place of fast ones."""
    found = load(MINI)
    (plan,) = (plan for plan in found.plans if plan.arm == "live")
    (event,) = plan.events

    def made_of(other: RunPlan) -> Analysis:
        return measured(found, run_alone(SimulationBackend(), other)[0])

    late = replace(
        plan, events=(replace(event, when=replace(event.when, iteration=7)),)
    )
    # Its event is planned for the third iteration, whatever was done.
    made = made_of(late)
    assert {
        reason["cause"].partition(" (")[0] for reason in made.fidelity["reasons"]
    } == {"an event that came late"}
    made = made_of(replace(plan, events=()))
    assert {reason["cause"] for reason in made.fidelity["reasons"]} == {
        f"events that did not happen: {event.name}"
    }


@pytest.mark.parametrize("died", [True, False])
def test_without_a_cause_in_its_figures_it_has_what_the_run_knows_against_itself(
    died: bool,
) -> None:
    found = of(JOBS, "")
    records = longer(records_of(found), 0.5)
    said = {
        "kind": "controller",
        "name": "controller",
        "how": "killed by SIGKILL",
        "planned": False,
    }
    gone = [ProcessEnded(t=records[-1].t, run="base", **said)] if died else []  # type: ignore[arg-type]
    made = measured(found, [*gone, *records])
    reasons = [
        one for one in made.fidelity["reasons"] if one["code"] == "unlike_simulation"
    ]
    assert [reason["job"] for reason in reasons] == ["red", "late"]
    for reason in reasons:
        assert reason["cause"] == (
            "the controller died (killed by SIGKILL) and was not back when the run ended"
            if died
            else None
        )
        assert ("no cause is known" in reason["text"]) is not died


def test_a_link_that_is_the_cause_is_quoted_as_it_stands() -> None:
    found = of("jobs: {red: {ranks: [g0, g3]}}\n", "")
    records = list(with_workers(longer(records_of(found), 0.5)))
    slow = LinkRate(
        t=0.0,
        fabric="fabric",
        link="t0:4-t1:4",
        direction="g0 to g3",
        set_bps=1e8,
        measured_bps=9.3e7,
    )
    made = analyse(found, [slow, *records], "measured", foretell=Foreteller())
    (reason,) = (
        one for one in made.fidelity["reasons"] if one["code"] == "unlike_simulation"
    )
    assert reason["text"].endswith(
        "cause: link t0:4-t1:4 (g0 to g3) gave 93.0 % of its setting"
    )


def test_a_job_that_ends_otherwise_than_in_the_simulation_is_a_reason() -> None:
    found = of(JOBS)
    failed = [
        replace(r, state="FAILED", reason="it lost a peer")
        if isinstance(r, JobState)
        and (r.run, r.job, r.state) == ("base", "late", "SUCCEEDED")
        else r
        for r in records_of(found)
    ]
    made = measured(found, failed)
    assert made.fidelity["arms"] == {"base": "doubtful", "other": "good"}
    (reason,) = (
        one for one in made.fidelity["reasons"] if one["code"] == "ended_otherwise"
    )
    assert reason["text"] == "base: late ended FAILED, in the simulation SUCCEEDED"


@pytest.mark.parametrize(
    ("times", "verdict"), [(0.93, "doubtful"), (1.0, "good"), (1.07, "doubtful")]
)
def test_what_nobody_can_simulate_is_held_against_the_model(
    times: float, verdict: str
) -> None:
    found = of("jobs: {red: {ranks: [g0, g1]}}\n", "")
    records = stretched(records_of(found), times)
    made = measured(
        found, records, foretell=lambda _: Foretold(None, "it is too large")
    )
    assert made.fidelity["verdict"] == verdict
    assert codes(made) == (set() if times == 1 else {"unlike_model"})


def test_the_workers_of_a_later_job_may_take_their_time() -> None:
    """What they took is in the simulation, so that both jobs are beside each other for as long."""
    found = of(JOBS, "")
    (plan,) = found.plans
    slow = replace(plan, jobs=tuple(replace(job, start_up_s=0.3) for job in plan.jobs))
    records = run_alone(SimulationBackend(), slow)[0]
    (granted,) = (
        r.t for r in records if isinstance(r, GpusGranted) and r.job == "late"
    )
    (ready,) = (
        r.t
        for r in records
        if isinstance(r, JobState) and (r.job, r.state) == ("late", "READY")
    )
    assert (granted, ready) == (pytest.approx(0.2), pytest.approx(0.5))
    # A repeat whose workers took no time was foretold before.
    foretell = Foreteller()
    foretell(plan)
    made = measured(found, records, foretell=foretell)
    assert the(made.rows, "queueing_delay", subject="job late") == pytest.approx(
        0, abs=1e-9
    )
    assert the(made.rows, "start_up", subject="job late") == pytest.approx(0.3)
    assert the(made.rows, "jct_over_simulated", subject="job late") == pytest.approx(1)
    assert the(made.rows, "jct_over_simulated", subject="job red") == pytest.approx(1)


@pytest.mark.parametrize("most", ["MOST_EVENTS", "MOST_IN_ALL", "MOST_RANKS"])
def test_a_simulation_that_would_take_long_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, most: str
) -> None:
    monkeypatch.setattr(foretold, most, 1 if most == "MOST_RANKS" else 20)
    found = of(JOBS)
    made = measured(found, records_of(found), foretell=Foreteller(foretold.MOST_IN_ALL))
    assert not where(made.rows, metric="jct_simulated")
    assert made.fidelity["verdict"] == "good"
    assert made.fidelity["not_compared"].keys() == {"base", "other"}
    why = {
        "MOST_RANKS": "more than 1 GPUs",
        "MOST_IN_ALL": "its simulation takes more than the 20 events that all may take",
    }
    assert why.get(most, "more than 20 events") in made.fidelity["not_compared"]["base"]


def test_what_the_simulation_cannot_do_is_said() -> None:
    kill = "events: [{name: dead, when: {at: 100 ms}, do: kill, target: controller}]\n"
    found = of(JOBS)
    killed = of(JOBS, kill)
    records = [record for record in records_of(found) if record.run == "base"]
    made = measured(killed, records)
    assert "cannot kill the controller" in made.fidelity["not_compared"]["base"]


def test_the_same_run_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = Foreteller._foretell

    def counted(self: Foreteller, plan: RunPlan) -> Any:
        asked.append(plan.name)
        return real(self, plan)

    monkeypatch.setattr(Foreteller, "_foretell", counted)
    found = of(JOBS, "repeat: 3\n")
    made = measured(found, records_of(found))
    assert len(where(made.rows, metric="jct_simulated", subject="job red")) > 3
    # And once for each moment at which the later job may begin.
    assert len(asked) == 1 + PHASES


@pytest.mark.parametrize(
    ("disturb", "arms"),
    [
        (lambda records: with_links(records[1:], 0.8), {"base": "bad", "other": "bad"}),
        (
            lambda records: [
                replace(r, lateness_s=0.004)
                if isinstance(r, Iteration) and r.run == "other"
                else r
                for r in records
            ],
            {"base": "good", "other": "bad"},
        ),
    ],
)
def test_one_arms_reason_is_not_the_verdict_of_all(
    disturb: Callable[[list[Record]], list[Record]], arms: dict[str, str]
) -> None:
    found = of(JOBS)
    records = disturb(with_links(list(with_workers(records_of(found))), 0.993))
    fidelity = analyse(found, records, "measured", foretell=Foreteller()).fidelity
    assert fidelity["verdict"] == "bad"
    assert fidelity["arms"] == arms


def test_the_verdicts_of_arms_are_shown_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The arm that is not to be believed is named; what compares the others stands."""
    third = LATER.replace("{base: {}", "{base: {}, third: {training.compute: 30 ms}")
    found = of(JOBS, third)
    environment = {
        "run": "x",
        "backend": "emulation",
        "label": "measured",
        "runtime": "docker",
    }
    for arm, believed in (("other", True), ("base", False)):
        made = measured(found, stretched(records_of(found), 1.3, arm))
        result = document(made, [], environment)
        show_result(result)
        said = capsys.readouterr().out
        assert f"Do not believe the figures of {arm}: " in said
        assert f"Fidelity: bad; bad: {arm}; good: " in said
        page = render(view_of(made, result, environment), tmp_path)
        headline = page.split("<h1>")[1].split("</h1>")[0]
        assert ("2 of 3 arms can be believed" in headline) is not believed
        assert headline.startswith("Third: ") is believed
        assert "Arm by arm" in page
        assert "not to be believed" in page


SIX = (
    "arms: {"
    + ", ".join(f"a{n}: {{training.compute: {50 - 5 * n} ms}}" for n in range(6))
    + "}\n"
)


@pytest.mark.parametrize(
    ("times", "level", "headline", "marked"),
    [
        ({}, "good", "A1: ", 0),
        ({"a1": 0.9, "a3": 0.9}, "doubtful", "A2: ", 2),
        ({"a1": 1.3, "a3": 0.9}, "bad", "A2: ", 2),
        ({"a0": 0.9}, "doubtful", "A1: .*; doubtful", 5),
        ({"a0": 1.3, "a2": 1.3}, "bad", "Two: 4 of 6 arms can be believed", 5),
        ({f"a{n}": 1.3 for n in range(6)}, "bad", NO_RESULT, 5),
    ],
)
def test_the_headline_claims_what_holds_and_cards_say_what_does_not(
    tmp_path: Path, times: dict[str, float], level: str, headline: str, marked: int
) -> None:
    found = of("jobs: {red: {ranks: [g0, g3]}}\n", SIX + "compare: {baseline: a0}\n")
    records: Sequence[Record] = records_of(found)
    for arm, share in times.items():
        records = stretched(records, share, arm)
    made = measured(found, records)
    environment = {
        "run": "x",
        "backend": "emulation",
        "label": "measured",
        "runtime": "docker",
    }
    view = view_of(made, document(made, [], environment), environment)
    assert made.fidelity["verdict"] == level
    page = render(view, tmp_path)
    assert re.fullmatch(f"{headline}.*", page.split("<h1>")[1].split("</h1>")[0])
    cards = list(header._cards(view))
    assert (
        sum(
            "doubtful" in remark or "not to be believed" in remark
            for _, _, remark in cards
        )
        == marked
    )
    some = {arm for arm, verdict in made.fidelity["arms"].items() if verdict == level}
    assert (f"{level}, {len(some)} of 6 arms" in text_of(Page(page))) is (
        0 < len(some) < 6
    )


def test_arms_that_differ_by_less_than_when_jobs_begin_are_not_told_apart(
    tmp_path: Path,
) -> None:
    jobs = JOBS.replace("g3]", "g3], training: {gradient: 100 MB}").replace(
        "start: {at: 200 ms}",
        "start: {at: 100 ms}, training: {gradient: 100 MB, iterations: 2}",
    )
    for compute, apart in (("51 ms", False), ("500 ms", True)):
        arms = f"arms: {{base: {{}}, other: {{training.compute: {compute}}}}}\n"
        found = of(jobs, f"{arms}compare: {{baseline: base, job: late}}\n")
        made = measured(found, records_of(found))
        environment = {
            "run": "x",
            "backend": "emulation",
            "label": "measured",
            "runtime": "docker",
        }
        page = render(
            view_of(made, document(made, [], environment), environment), tmp_path
        )
        assert (
            "not told apart" in page.split("<h1>")[1].split("</h1>")[0]
        ) is not apart
        assert ("more depends on when jobs begin" in text_of(Page(page))) is not apart
        assert ("no further apart in both arms" in text_of(Page(page))) is not apart


def test_what_is_compared_with_nothing_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = of(JOBS)
    made = measured(
        found, records_of(found), foretell=lambda _: Foretold(None, "it is too large")
    )
    environment = {
        "run": "x",
        "backend": "emulation",
        "label": "measured",
        "runtime": "docker",
    }
    result = document(made, [], environment)
    show_result(result)
    assert (
        "Compared with no prediction: base, other: it is too large"
        in capsys.readouterr().out
    )
    assert "it is too large" in render(view_of(made, result, environment), tmp_path)


@pytest.mark.parametrize("then", ["swap", "shrink"])
def test_a_simulated_loss_takes_what_it_took_where_the_file_says_nothing(
    then: OnLoss, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took no time at all: 12.8 s in place of 15.3."""
    loss = (
        "events:\n"
        f"  - {{name: loss, when: {{job: red, iteration: 3}}, do: lose, target: gpu g1, then: {then}}}\n"
    )
    jobs = "jobs: {red: {ranks: [g0, g1, g3]RECOVERY}}\n"
    environment = {"run": "x", "backend": "simulation", "label": "simulated"}
    times = {}
    for given, wanted_s in (
        ("", RECOVERY_S[then]),
        (", recovery: 2 s", 2.0),
        (", recovery: 0 s", 0.0),
    ):
        found = of(jobs.replace("RECOVERY", given), loss)
        records = records_of(found)
        rows = analyse(found, records, "simulated").rows
        (event,), (back,) = (
            [r for r in records if isinstance(r, kind)]
            for kind in (ActionBegun, JobRecovered)
        )
        assert back.at - event.t == pytest.approx(wanted_s)
        assumed = [
            row.value for row in where(rows, metric="recovery_assumed", repeat=None)
        ]
        assert assumed == ([] if given else [wanted_s])
        show_result(
            document(analyse(found, records, "simulated"), records, environment)
        )
        said = f"A job without `recovery` continued {wanted_s:g} s after it lost a GPU: the default"
        assert (said in capsys.readouterr().out) is not bool(given)
        times[given] = the(rows, "jct", subject="job red")
    assert times[""] - times[", recovery: 0 s"] == pytest.approx(RECOVERY_S[then])


def test_a_disturbed_run_of_a_later_job_is_made_once_more_when_it_took_longer() -> None:
    """Beside a time to wait by, no run with a job that comes later ever took long."""
    found = of(JOBS, "")
    (plan,) = found.plans
    records = [
        note
        for record in with_workers(stretched(records_of(found), 1.3))
        for note in (
            [
                ProcessorLoad(t=record.t / 2, run=record.run, busy=0.7, others=0.2),
                record,
            ]
            if isinstance(record, RunEnded)
            else [record]
        )
    ]
    assert not Repeats(Reporter(quiet=True)).why(plan, records)
    (reason,) = Repeats(Reporter(quiet=True), Foreteller()).why(plan, records)
    assert reason.code == "run_over_model"
    assert reason.data["over"] == pytest.approx(1.3, rel=0.02)
