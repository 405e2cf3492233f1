"""The run that judges itself: a calm testbed is good, and every disturbance is told by its code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.analysis.fidelity import (
    LEVELS,
    SENTENCES,
    SERIES_STEP_S,
    Verdict,
    machines_fault,
)
from experiments.analysis.prediction import expected_s
from experiments.analysis.result import analyse
from experiments.language.expand import Experiment, load
from experiments.record.events import (
    GridLit,
    Iteration,
    JobState,
    LightCounters,
    LinkRate,
    LinkRateDisturbed,
    PortRate,
    ProcessorLoad,
    Record,
    Repeated,
    RunEnded,
    SwitchRestarted,
)
from experiments.record.runs import runs_of
from tests.simulated import bundled, experiment, late, records_of, with_links, with_workers

COMPARED = "arms: {base: {}, other: {training.iterations: 4}}\ncompare: {baseline: base}\n"
Records = Sequence[Record]


def calm() -> tuple[Experiment, list[Record]]:
    found = experiment(COMPARED)
    return found, with_links(list(with_workers(records_of(found))))


def judged(found: Experiment, records: Iterable[Record], rates: Iterable[PortRate] = ()) -> Any:
    own = [r for r in records if not isinstance(r, PortRate)]
    return analyse(found, own, "measured", rates).fidelity


def codes(fidelity: Any) -> dict[str, str]:
    return {reason["code"]: reason["level"] for reason in fidelity["reasons"]}


def longer(records: Records, factor: float, only: str = "base") -> list[Record]:
    """As if all-reduces of an arm had taken longer, one iteration after the other."""
    late_by = {
        (r.run, r.i, r.rank): (factor - 1) * r.all_reduce_s for r in records if isinstance(r, Iteration)
    }

    def moved(r: Record) -> Record:
        if not isinstance(r, Iteration) or r.run != only:
            return r
        before = sum(late_by[r.run, i, r.rank] for i in range(r.i))
        return replace(
            r,
            compute_start=r.compute_start + before,
            compute_end=r.compute_end + before,
            allreduce_end=r.allreduce_end + before + late_by[r.run, r.i, r.rank],
        )

    return [moved(r) for r in records]


def with_load(records: Records, **shares: float) -> list[Record]:
    return [
        said
        for r in records
        for said in (
            [r, ProcessorLoad(t=r.t, run=r.run, **shares)]
            if isinstance(r, Iteration) and r.rank == 0
            else [r]
        )
    ]


def before_end(records: Records, make: Callable[[Record], Record]) -> list[Record]:
    return [said for r in records for said in ([make(r), r] if isinstance(r, RunEnded) else [r])]


def test_a_calm_testbed_is_good() -> None:
    found, records = calm()
    fidelity = judged(found, records)
    assert fidelity["verdict"] == "good"
    assert fidelity["reasons"] == []
    assert fidelity["links"][0]["ratio"] == 1.0


DISTURBED: dict[str, tuple[Callable[[Records], Iterable[Record]], dict[str, str]]] = {
    "a link at 93 %": (
        lambda records: [replace(r, measured_bps=93e4) if isinstance(r, LinkRate) else r for r in records],
        {"link_rate": "doubtful"},
    ),
    "a link at 120 %": (
        lambda records: [replace(r, measured_bps=12e5) if isinstance(r, LinkRate) else r for r in records],
        {"link_rate": "bad"},
    ),
    "no link": (
        lambda records: [r for r in records if not isinstance(r, LinkRate)],
        {"links_not_measured": "doubtful"},
    ),
    "timers a little late": (lambda records: late(records, 0.03), {"timers_late": "doubtful"}),
    "timers very late": (lambda records: late(records, 0.06), {"timers_late": "bad"}),
    "busy processors": (lambda records: with_load(records, busy=0.9), {"processors_busy": "doubtful"}),
    "processors busy for others": (lambda records: with_load(records, busy=0.99, others=0.4), {}),
    "a switch that died": (
        lambda records: before_end(
            records, lambda r: SwitchRestarted(t=r.t, run=r.run, switch="ocs0", times=1)
        ),
        {"switch_restarted": "doubtful"},
    ),
    "an all-reduce 15 % slower": (
        lambda records: longer(records, 1.15),
        {"all_reduce_over_ideal": "doubtful", "baseline_over_model": "bad"},
    ),
    "the same of no baseline": (
        lambda records: longer(records, 1.15, "other"),
        {"all_reduce_over_ideal": "doubtful"},
    ),
    "another job's parameters": (
        lambda records: [
            replace(r, parameters_sha256="x") if getattr(r, "event", "") == "done" and r.rank == 1 else r
            for r in records
        ],
        {"parameters_differ": "bad"},
    ),
    "payload that did not arrive": (
        lambda records: [
            replace(r, bytes_received=1) if getattr(r, "event", "") == "done" else r for r in records
        ],
        {"payload_lost": "bad"},
    ),
}


@pytest.mark.parametrize("what", DISTURBED)
def test_a_disturbance_is_told_by_its_code(what: str) -> None:
    disturb, wanted = DISTURBED[what]
    found, records = calm()
    fidelity = judged(found, disturb(records))
    assert codes(fidelity) == wanted
    worst = max((LEVELS.index(level) for level in wanted.values()), default=None)
    assert fidelity["verdict"] == ("good" if worst is None else LEVELS[worst])
    assert all(reason["text"] and not reason["text"].endswith(".") for reason in fidelity["reasons"])


def test_a_failed_job_is_a_result_and_no_fault_of_the_testbed() -> None:
    found, records = calm()
    failed = [
        replace(r, state="FAILED") if isinstance(r, JobState) and r.state == "SUCCEEDED" else r
        for r in records
    ]
    assert judged(found, [r for r in failed if getattr(r, "event", "") != "done"])["verdict"] == "good"


@given(st.floats(0, 1))
def test_missing_samples_are_counted_where_there_are_any(share: float) -> None:
    found, records = RUNS
    rates = []
    for run in runs_of(records, found.plans):
        count = int((run.ended - run.released) / SERIES_STEP_S)
        for k in range(int(count * share)):
            at = run.released + k * SERIES_STEP_S
            rates.append(
                PortRate(t=at, run=run.name, switch="t0", port=1, gpu=None, peer=None, rx_bps=0, tx_bps=0)
            )
    missing = judged(found, records, rates)["samples_missing"]
    assert bool(missing) == bool(rates)
    assert all(0 <= value <= 1 for value in missing.values())
    assert all(value >= 1 - share - 1e-9 for value in missing.values())


RUNS = calm()


def test_light_astray_is_bad() -> None:
    found = load(bundled("mini_two_jobs"))
    records = list(with_workers(records_of(found)))
    kernel = {"switches": {"n-w0": {"collisions": 0}}, "onics": {}}
    after = {"switches": {"n-w0": {"collisions": 2}}, "onics": {}}
    lit = {"switches": [{"lit": [{"from": "n0", "to": "n1"}]}]}

    def counted(r: Record) -> Record:
        return LightCounters(t=r.t, run=r.run, moment="after", kernel=after, agents={})

    def read(r: Record) -> Record:
        return GridLit(t=r.t, run=r.run, grid=lit)

    def before(r: Record) -> Record:
        return LightCounters(t=r.t, run=r.run, moment="before", kernel=kernel, agents={})

    clean = [r for r in records if getattr(r, "event", "") != "onics"]
    shown = before_end(before_end(before_end(clean, before), counted), read)
    reasons = judged(found, shown)["reasons"]
    astray = {reason["counter"]: reason["count"] for reason in reasons if reason["code"] == "light_astray"}
    assert astray == {"collisions": 2, "wavelengths between jobs": 1}
    assert judged(found, with_links(shown))["verdict"] == "bad"


# Runs that are made once more.


def test_only_what_others_took_is_made_again() -> None:
    found, records = calm()
    slow = late(records, 0.06)

    def faults(shown: Records) -> list[str]:
        run = runs_of(shown, found.plans)[0]
        return [reason.code for reason in machines_fault(run, expected_s(run.plan))]

    assert faults(slow) == []
    assert "timers_late" in faults(with_load(slow, busy=0.9, others=0.2))
    assert faults(with_load(records, busy=0.5, others=0.2)) == []
    # A fault of ours is evidence.
    broken = [replace(r, sha256="y") if getattr(r, "event", "") == "reference" else r for r in slow]
    assert faults(with_load(broken, busy=0.9, others=0.2)) == []


def test_what_was_made_again_is_told_with_both_figures() -> None:
    found, records = calm()
    said = Repeated(
        t=0.0, what="links", name="a-b", reasons=[], first={"x": 1}, second={"x": 2}, counts="second"
    )
    disturbed = LinkRateDisturbed(
        t=0.0, fabric="fabric", link="a-b", direction="to b", set_bps=1e6, measured_bps=5e5
    )
    fidelity = judged(found, [disturbed, said, *records])
    assert fidelity["repeated"][0]["second"] == {"x": 2}
    assert fidelity["verdict"] == "good"


def test_every_reason_has_a_sentence() -> None:
    verdict = Verdict()
    for code in SENTENCES:
        data = dict.fromkeys(("link", "direction", "run", "switch", "job", "counter"), "x") | dict.fromkeys(
            ("ratio", "p99_s", "share", "busy", "over", "bytes", "count"), 1
        )
        verdict.add("bad", code, **data)
    assert len({reason.text for reason in verdict.reasons}) == len(SENTENCES)
