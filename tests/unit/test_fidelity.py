"""Whether a run can be believed: a sound one is good, and whatever is disturbed shows with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.machine_faults import processors
from ringlight.experiments.analysis.reasons import SENTENCES, Reason
from ringlight.experiments.analysis.result import Analysis, analyse
from ringlight.experiments.language.expand import Experiment
from ringlight.experiments.record.events import (
    Aborted,
    EventLate,
    Iteration,
    JobState,
    Record,
    Reference,
    Repeated,
    RunEnded,
    RunStarted,
    WorkerDone,
    WorkerLost,
)
from ringlight.experiments.record.lab_records import (
    LinkRateDisturbed,
    PortRate,
    ProcessBack,
    ProcessEnded,
    ProcessFrozen,
    ProcessorLoad,
    ProcessThawed,
    SwitchDrifted,
)
from ringlight.experiments.record.light_records import LightCounters, StepSetUps
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.runs import runs_of
from tests.simulated import experiment, late, records_of, with_links, with_workers

ARMS = "arms: {slow: {}, fast: {training.compute: 40 ms}}\ncompare: {baseline: slow}\n"


@pytest.fixture(scope="module")
def two() -> tuple[Experiment, list[Record]]:
    """Two arms as workers would have trained them on links that gave what they should."""
    found = experiment(ARMS)
    return found, with_links(list(with_workers(records_of(found))), 0.993)


def judged(
    two: tuple[Experiment, list[Record]],
    change: Callable[[list[Record]], Sequence[Record]] = list,
    rates: Sequence[PortRate] = (),
) -> dict[str, Any]:
    found, records = two
    return dict(analyse(found, change(records), "measured", rates).fidelity)


def codes(fidelity: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in fidelity["reasons"]}


def beside(
    make: Callable[[RunEnded], Record],
) -> Callable[[list[Record]], list[Record]]:
    """One record more in each run, before its end."""
    return lambda records: [
        found
        for r in records
        for found in ([make(r), r] if isinstance(r, RunEnded) else [r])
    ]


def busy(share: float, others: float = 0.0) -> Callable[[list[Record]], list[Record]]:
    return beside(
        lambda end: ProcessorLoad(t=end.t / 2, run=end.run, busy=share, others=others)
    )


def longer(share: float) -> Callable[[list[Record]], list[Record]]:
    """As if all-reduces had taken longer by a share of themselves; jobs end by as much later."""

    def change(records: list[Record]) -> list[Record]:
        return [
            replace(r, allreduce_end=r.allreduce_end + share * r.all_reduce_s)
            if isinstance(r, Iteration)
            else r
            for r in records
        ]

    return change


def test_what_is_sound_is_good(two: tuple[Experiment, list[Record]]) -> None:
    found = judged(two, busy(0.5))
    assert (found["verdict"], found["reasons"]) == ("good", [])
    assert found["timer"]["max_s"] == 0
    assert [link["ratio"] for link in found["links"]] == [pytest.approx(0.993)]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        (lambda records: with_links(records[1:], 0.94), "doubtful", "link_rate"),
        (lambda records: with_links(records[1:], 1.06), "doubtful", "link_rate"),
        (lambda records: with_links(records[1:], 0.80), "bad", "link_rate"),
        (lambda records: records[1:], "doubtful", "links_not_measured"),
        (lambda records: late(records, 0.03), "doubtful", "timers_late"),
        (lambda records: late(records, 0.08), "bad", "timers_late"),
        (busy(0.90), "doubtful", "processors_busy"),
        (busy(0.99), "bad", "processors_busy"),
    ],
)
def test_the_verdict_can_be_bad(
    two: tuple[Experiment, list[Record]], change: Any, verdict: str, code: str
) -> None:
    found = judged(two, change)
    assert found["verdict"] == verdict
    assert codes(found) == {code}
    assert all(
        reason["text"] and reason["level"] == verdict for reason in found["reasons"]
    )


def test_processors_that_others_fill_are_no_fault_of_the_run(
    two: tuple[Experiment, list[Record]],
) -> None:
    assert judged(two, busy(1.0, others=0.6))["verdict"] == "good"
    found = judged(two, busy(1.0, others=0.02))
    assert found["verdict"] == "bad"
    assert all("98 % busy" in reason["text"] for reason in found["reasons"])


def test_what_the_hypervisor_took_is_said(two: tuple[Experiment, list[Record]]) -> None:
    def loaded(**shares: float | None) -> dict[str, float | None]:
        made = beside(
            lambda end: ProcessorLoad(t=end.t / 2, run=end.run, busy=0.5, **shares)
        )
        (run,) = [
            run for run in runs_of(made(two[1]), two[0].plans) if run.name == "slow"
        ]
        return processors(run)

    assert loaded(stolen=0.3)["p95_stolen"] == 0.3
    assert loaded(stolen=None)["mean_stolen"] is None
    assert loaded(others=0.1)["mean_others"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("kept", "verdict"), [(0.99, "good"), (0.9, "doubtful"), (0.5, "bad")]
)
def test_missing_samples_count(kept: float, verdict: str) -> None:
    found = experiment(
        ARMS.replace("slow: {}", "slow: {training.compute: 2 s}").replace(
            "40 ms", "2 s"
        )
    )
    records = with_links(list(with_workers(records_of(found))), 0.993)
    rates = []
    for run in runs_of(records, found.plans):
        count = round((run.ended - run.released) / 0.1)
        rates += [
            PortRate(
                t=run.released + 0.1 * i, run=run.name, switch="t0", port=1, gpu="g0", peer=None,
                rx_bps=0.0, tx_bps=0.0,
            )
            for i in range(count)
            if int((i + 1) * kept) != int(i * kept)
        ]  # fmt: skip
    assert judged((found, records), rates=rates)["verdict"] == verdict


def dead(kind: str, name: str, *, planned: bool = False, back: bool = True) -> Any:
    """As if a process had died in each run, killed."""

    def change(records: list[Record]) -> list[Record]:
        said = {"kind": kind, "name": name}
        found = beside(
            lambda end: ProcessEnded(
                t=end.t, run=end.run, **said, how="killed by SIGKILL", planned=planned
            )
        )(records)
        again = beside(
            lambda end: ProcessBack(t=end.t, run=end.run, **said, away_s=0.3)
        )
        return list(again(list(found)) if back else found)

    return change


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("optical switch", "ocs0", "optical switch ocs0"),
        ("O-NIC agent", "n1", "O-NIC agent n1"),
        ("meter", "avg0", "meter avg0"),
        ("applications", "applications", "the process of applications"),
        ("controller", "controller", "the controller"),
        ("Open vSwitch", "ovs-vswitchd", "Open vSwitch"),
    ],
)
@pytest.mark.parametrize("back", [True, False])
def test_a_process_that_died_unasked_makes_a_run_doubtful(
    two: tuple[Experiment, list[Record]], kind: str, name: str, words: str, back: bool
) -> None:
    found = judged(two, dead(kind, name, back=back))
    assert found["verdict"] == "doubtful"
    (of_slow,) = found["processes_restarted"]["slow"]
    assert (of_slow["kind"], of_slow["planned"], of_slow["away_s"] is None) == (
        kind,
        False,
        not back,
    )
    assert found["switches_restarted"]["slow"] == (kind == "optical switch")
    then = "was started again" if back else "was not back when the run ended"
    reason = found["reasons"][0]
    assert (reason["code"], reason["kind"], reason["name"]) == (
        "process_restarted" if back else "process_gone",
        kind,
        name,
    )
    assert reason["text"] == f"slow: {words} died (killed by SIGKILL) and {then}"


def test_what_a_run_killed_itself_is_shown_and_is_no_reason(
    two: tuple[Experiment, list[Record]],
) -> None:
    found = judged(two, dead("meter", "avg0", planned=True))
    assert (found["verdict"], found["reasons"]) == ("good", [])
    assert [death["planned"] for death in found["processes_restarted"]["slow"]] == [
        True
    ]


def test_what_earlier_versions_wrote_of_deaths_is_read(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(
        '{"t":1.0,"event":"switch_restarted","run":"a","switch":"ocs0","times":2}\n'
        '{"t":2.0,"event":"controller_restarted","run":"a","reason":"exit code 1"}\n'
    )
    found = read_records(file)
    ended = [(r.kind, r.name, r.planned) for r in found if isinstance(r, ProcessEnded)]
    assert ended == [
        *[("optical switch", "ocs0", False)] * 2,
        ("controller", "controller", False),
    ]
    assert [r.how for r in found if isinstance(r, ProcessEnded)][-1] == "exit code 1"
    assert sum(isinstance(r, ProcessBack) for r in found) == 3


@pytest.mark.parametrize("asked", [True, False])
def test_an_event_that_came_late_says_when_it_was_planned_when_it_came_and_why(
    two: tuple[Experiment, list[Record]], asked: bool
) -> None:
    what = {
        "name": "move",
        "do": "regroup",
        "target": "",
        "planned": "iteration 8 of red",
    }
    when = {
        "came": "in iteration 24",
        "due": 1.0,
        "late_s": 16.0,
        "away_s": 15.5,
        "asked": asked,
    }
    found = judged(
        two, beside(lambda end: EventLate(t=end.t, run=end.run, **what, **when))
    )  # type: ignore[arg-type]
    texts = [reason["text"] for reason in found["reasons"]]
    said = (
        "slow: regroup was planned for iteration 8 of red and came 16.0 s later, in iteration 24: "
        "the controller was away for 15.5 s"
    )
    assert texts[:1] == ([] if asked else [said])


def test_a_job_whose_worker_a_stranger_killed_makes_a_run_doubtful(
    two: tuple[Experiment, list[Record]],
) -> None:
    reason = "rank 1 on GPU g1 was killed by SIGKILL"

    def failed(records: list[Record]) -> list[Record]:
        return [
            replace(r, state="FAILED", reason=reason)
            if isinstance(r, JobState) and r.state == "SUCCEEDED"
            else r
            for r in records
        ]

    found = judged(two, failed)
    assert found["verdict"] == "doubtful"
    said = f"slow: job red failed: {reason}, which no event asked for"
    assert said in [one["text"] for one in found["reasons"]]


def test_a_worker_that_was_lost_unasked_is_a_reason_though_its_job_went_on(
    two: tuple[Experiment, list[Record]],
) -> None:
    lost = beside(
        lambda end: WorkerLost(
            t=end.t,
            run=end.run,
            job="red",
            rank=1,
            gpu="g1",
            reason="killed by SIGKILL",
        )
    )
    found = judged(two, lost)
    said = (
        "slow: rank 1 of red on GPU g1 was lost (killed by SIGKILL), and red continued"
    )
    assert said in [reason["text"] for reason in found["reasons"]]


def test_an_experiment_that_ended_early_is_doubtful_until_it_is_gone_on_with(
    two: tuple[Experiment, list[Record]],
) -> None:
    gone = "the testbed ended (killed by SIGKILL): it left no message"
    aborted = Aborted(t=1e9, reason=gone)
    found = judged(two, lambda records: [*records, aborted])
    assert [reason["text"] for reason in found["reasons"]] == [
        f"the experiment ended early: {gone}"
    ]
    assert codes(judged(two, lambda records: [aborted, *records])) == set()


@pytest.mark.parametrize(
    ("ranks", "held"), [("[g0, g1]", True), ("[g0, g3, g1, g4]", False)]
)
def test_only_a_job_that_has_its_links_alone_is_held_against_the_ideal(
    ranks: str, held: bool
) -> None:
    """The second one's ring crosses the slower link between the switches: NICs are not what counts."""
    found = experiment(f"arms: {{slow: {{jobs.red.ranks: {ranks}}}}}\n")
    records = with_links(list(with_workers(records_of(found))), 0.993)
    assert (
        "all_reduce_over_ideal" in codes(judged((found, records), longer(0.15)))
    ) is held


def test_a_baseline_is_held_against_the_model(
    two: tuple[Experiment, list[Record]],
) -> None:
    def slower(records: list[Record]) -> list[Record]:
        return [
            replace(r, allreduce_end=r.allreduce_end + (0.05 if r.i == 5 else 0.0))
            if isinstance(r, Iteration)
            else r
            for r in records
        ]

    found = judged(two, slower)
    assert [
        (r["run"], r["level"])
        for r in found["reasons"]
        if r["code"] == "baseline_over_model"
    ] == [("slow", "bad")]


@pytest.mark.parametrize(
    "change", ["a rank", "the reference", "no rank", "no reference"]
)
def test_parameters_that_differ_or_were_not_shown_are_bad(
    two: tuple[Experiment, list[Record]], change: str
) -> None:
    def disturb(record: Record) -> list[Record]:
        rank = isinstance(record, WorkerDone) and record.rank == 1
        if (change == "no rank" and rank) or (
            change == "no reference" and isinstance(record, Reference)
        ):
            return []
        if change == "a rank" and rank:
            return [replace(record, parameters_sha256="other")]  # type: ignore[call-arg]
        if change == "the reference" and isinstance(record, Reference):
            return [replace(record, sha256="other")]
        return [record]

    found = judged(
        two, lambda records: [r for record in records for r in disturb(record)]
    )
    assert found["verdict"] == "bad"
    assert codes(found) == {"parameters_differ"}


def test_lost_payload_is_no_run_to_believe(
    two: tuple[Experiment, list[Record]],
) -> None:
    found = judged(
        two,
        lambda records: [
            replace(r, bytes_received=92)
            if isinstance(r, WorkerDone) and r.rank == 0
            else r
            for r in records
        ],
    )
    assert found["verdict"] == "bad"
    assert (
        found["reasons"][0]["text"]
        == "slow: 8 bytes of payload were sent and not received"
    )


# --- light --------------------------------------------------------------------------------------


def counters(**counted: int) -> Callable[[list[Record]], list[Record]]:
    """As if the kernel had counted that much in every run, in place of the simulation."""
    onics = {"n0": {"light_tx_bytes": [0], "unrouted": 0}}

    def read(record: Record, moment: str, values: dict[str, int]) -> LightCounters:
        kernel = {"switches": {"s": values}, "onics": onics}
        return LightCounters(
            t=record.t, run=record.run, moment=moment, kernel=kernel, agents={}
        )

    def change(records: list[Record]) -> list[Record]:
        found: list[Record] = []
        for record in records:
            if isinstance(record, RunEnded):
                found.append(read(record, "after", counted))
            found.append(record)
            if isinstance(record, RunStarted):
                found.append(read(record, "before", {}))
        return found

    return change


def test_a_collision_is_no_run_to_believe(two: tuple[Experiment, list[Record]]) -> None:
    found = judged(two, counters(collisions=3, receiver_overlaps=1))
    assert found["verdict"] == "bad"
    said = [
        reason["text"]
        for reason in found["reasons"]
        if reason["code"] == "light_astray"
    ]
    run = two[0].plans[0].name
    assert f"{run}: 3 collisions" in said
    assert f"{run}: 1 receiver overlaps" in said


def test_dark_drops_are_condemned_on_a_ring_alone(
    two: tuple[Experiment, list[Record]],
) -> None:
    """There a step's light stands before anybody sends; elsewhere TCP sends again what is lost."""
    dark = counters(dark_drops=5)
    assert "light_astray" not in codes(judged(two, dark))
    ring = beside(lambda end: StepSetUps(t=end.t, run=end.run, set_ups=[]))
    found = judged(two, lambda records: dark(ring(records)))
    assert {r["level"] for r in found["reasons"] if r["code"] == "light_astray"} == {
        "doubtful"
    }


def test_a_link_that_was_measured_again_counts_once(
    two: tuple[Experiment, list[Record]],
) -> None:
    first = two[1][0]
    disturbed = LinkRateDisturbed(**{**vars(first), "measured_bps": 1.0})
    found = judged(two, lambda records: [disturbed, *records])
    assert len(found["links"]) == 1
    assert found["verdict"] == "good"


def test_nothing_of_a_simulation_is_judged() -> None:
    found = experiment(ARMS)
    made: Analysis = analyse(found, records_of(found), "simulated")
    assert made.fidelity == {"verdict": "simulated", "reasons": []}


def test_a_job_that_failed_after_an_event_is_a_result_and_no_fault_of_the_testbed() -> (
    None
):
    cut = "events: [{when: {at: 5 ms}, do: cut, target: link t0:4 t1:4}]"
    found = experiment(cut)
    whole = with_links(list(with_workers(records_of(found))), 0.993)
    failed = [
        replace(r, state="FAILED")
        if isinstance(r, JobState) and r.state == "SUCCEEDED"
        else r
        for r in whole
        if not isinstance(r, WorkerDone)
    ]
    assert any(isinstance(r, JobState) and r.state == "FAILED" for r in failed)
    assert dict(analyse(found, failed, "measured", ()).fidelity)["verdict"] == "good"


def test_what_was_made_again_is_told_with_both_figures(
    two: tuple[Experiment, list[Record]],
) -> None:
    said = Repeated(
        t=0.0,
        what="links",
        name="a-b",
        reasons=[],
        first={"x": 1},
        second={"x": 2},
        counts="second",
    )
    assert judged(two, lambda records: [said, *records])["repeated"][0]["second"] == {
        "x": 2
    }


def test_a_process_that_stood_still_is_a_reason(
    two: tuple[Experiment, list[Record]],
) -> None:
    def frozen(records: list[Record]) -> list[Record]:
        at = next(r for r in records if isinstance(r, RunEnded))
        of = {"run": at.run, "kind": "controller", "name": "controller"}
        still = ProcessFrozen(t=at.t - 5.5, how="stopped by a signal", **of)
        return [still, ProcessThawed(t=at.t - 0.5, after_s=5.0, **of), *records]

    found = judged(two, frozen)
    assert (found["verdict"], codes(found)) == ("doubtful", {"process_frozen"})
    (reason,) = found["reasons"]
    assert reason["text"].endswith(
        ": the controller stood still for 5.0 s (stopped by a signal)"
    )
    assert sorted(found["arms"].values()) == ["doubtful", "good"]


def test_a_process_that_stood_still_in_a_link_test_is_a_reason_for_all(
    two: tuple[Experiment, list[Record]],
) -> None:
    of = {"run": "", "kind": "meter", "name": "av0"}
    still = ProcessFrozen(t=0.0, how="stopped by a signal", **of)  # type: ignore[arg-type]
    back = ProcessThawed(t=5.0, after_s=5.0, **of)  # type: ignore[arg-type]
    found = judged(two, lambda records: [still, back, *records])
    assert codes(found) == {"frozen_outside_runs"}
    assert set(found["arms"].values()) == {"doubtful"}


def test_a_deleted_bridge_is_a_reason(two: tuple[Experiment, list[Record]]) -> None:
    text = "rlabcd-tor0 was deleted"
    found = judged(
        two,
        beside(
            lambda end: SwitchDrifted(
                t=end.t - 0.1,
                run=end.run,
                switch="tor0",
                what="bridge",
                text=text,
                planned=False,
            )
        ),
    )
    assert codes(found) == {"switch_drifted"}
    assert "bridge of tor0: rlabcd-tor0 was deleted" in found["reasons"][0]["text"]


def test_a_job_that_failed_by_itself_is_a_reason(
    two: tuple[Experiment, list[Record]],
) -> None:
    """As the job of a meter that stood still: rank 2 lost the meter."""

    def fails(records: list[Record]) -> list[Record]:
        return [
            replace(r, state="FAILED", reason="rank 2: no answer of meter av0 for 4 s")
            if isinstance(r, JobState) and r.state == "SUCCEEDED"
            else r
            for r in records
        ]

    found = judged(two, fails)
    assert found["verdict"] == "doubtful"
    assert codes(found) == {"job_failed"}


def test_a_rank_to_which_nothing_moved_is_a_reason(
    two: tuple[Experiment, list[Record]],
) -> None:
    def stalls(records: list[Record]) -> list[Record]:
        return [
            replace(r, max_stall_s=20.0)
            if isinstance(r, Iteration) and (r.rank, r.i) == (1, 2)
            else r
            for r in records
        ]

    found = judged(two, stalls)
    assert codes(found) == {"worker_stalled"}
    assert found["reasons"][0]["text"].endswith(
        "moved no byte for 20.0 s (iteration 2)"
    )


def test_every_reason_has_a_sentence() -> None:
    words = (
        "link",
        "direction",
        "run",
        "job",
        "counter",
        "process",
        "how",
        "rank",
        "gpu",
        "reason",
        "said",
        "then",
        "state",
        "simulated",
        "iteration",
    )
    data = dict.fromkeys(words, "x") | dict.fromkeys(
        (
            "ratio",
            "p99_s",
            "share",
            "busy",
            "over",
            "bytes",
            "count",
            "measured_s",
            "model_s",
            "for_s",
        ),
        1,
    )
    assert len({Reason(code, "bad", data).text for code in SENTENCES}) == len(SENTENCES)
