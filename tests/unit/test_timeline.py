"""The runner over the simulation: what is written in a file happens, in its order, and is on record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import yaml

from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.backends.simulation.lab import SimulatedLab
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.plan import JobPlan, RunPlan, Setting
from ringlight.experiments.language.text import ScenarioError
from ringlight.experiments.record.events import (
    ActionBegun,
    ActionEnded,
    EventLate,
    GpusGranted,
    Iteration,
    JobArrived,
    JobRecovered,
    JobState,
    Record,
    Released,
    RunEnded,
)
from ringlight.experiments.record.lab_records import (
    ProcessBack,
    ProcessEnded,
    ProcessFrozen,
    ProcessThawed,
)
from ringlight.experiments.runner.experiment import choose, run_alone
from ringlight.experiments.runner.progress import Reporter
from ringlight.experiments.runner.timeline import run_group, run_in
from ringlight.testbed.simulation.tcp import DELAYED_ACK_S
from tests.simulated import SIX_GPUS, bundled


def experiment(text: str) -> Experiment:
    return parse(SIX_GPUS + text, "small.yaml")


def records_of(text: str) -> list[Record]:
    found = experiment(text)
    (plan,) = found.plans
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    assert isinstance(records[-1], RunEnded)
    return records


def end_of(records: list[Record], job: str) -> float:
    return max(
        r.allreduce_end for r in records if isinstance(r, Iteration) and r.job == job
    )


def released(records: list[Record], job: str) -> float:
    return next(r.at for r in records if isinstance(r, Released) and job in r.jobs)


@pytest.mark.parametrize("at_s", [0.1, 0.0])
def test_times_count_from_the_common_start_not_from_the_call_for_it(
    monkeypatch: pytest.MonkeyPatch, at_s: float
) -> None:
    """An emulation lets jobs go a moment after it was asked to."""
    usual = SimulatedLab.next

    def later(lab: SimulatedLab, until_s: float) -> list[Record]:
        found = usual(lab, until_s)
        return [
            replace(r, at=r.at + 0.3) if isinstance(r, Released) else r for r in found
        ]

    monkeypatch.setattr(SimulatedLab, "next", later)
    records = records_of(
        f"""
jobs: {{red: {{ranks: [g0, g1]}}, blue: {{ranks: [g2, g3], start: {{at: 50 ms}}}}}}
events: [{{when: {{at: {at_s} s}}, do: cut, target: link tor0:4 tor1:4}}]
"""
    )
    assert [r.t for r in records if isinstance(r, ActionBegun)] == pytest.approx(
        [0.3 + at_s]
    )
    assert [r.t for r in records if isinstance(r, JobArrived)] == pytest.approx(
        [0.0, 0.35]
    )


def test_a_job_arrives_at_its_time_and_after_another() -> None:
    records = records_of(
        """
jobs:
  red: {ranks: [g0, g1]}
  blue: {ranks: [g2, g3], start: {at: 50 ms}}
  green: {ranks: [g4, g5], start: {after: [red, blue], at: 10 ms}}
"""
    )
    assert released(records, "red") == 0.0
    assert released(records, "blue") == pytest.approx(0.05)
    last = max(end_of(records, "red"), end_of(records, "blue"))
    assert released(records, "green") == pytest.approx(last + 0.01)


def test_workers_of_a_later_job_take_their_start_up() -> None:
    later = "{{ranks: [g2, g3], start: {{at: 1 s}}, start_up: {}}}"
    times = [
        released(
            records_of(
                f"\njobs: {{red: {{ranks: [g0, g1]}}, blue: {later.format(start_up)}}}\n"
            ),
            "blue",
        )
        for start_up in ("0 s", "500 ms")
    ]
    assert times == pytest.approx([1.0, 1.5])


def test_a_job_of_the_beginning_has_no_start_up() -> None:
    with pytest.raises(ValueError, match=r"jobs\.red\.start_up: only a job with start"):
        experiment("\njobs: {red: {ranks: [g0, g1], start_up: 1 s}}\n")


def test_jobs_queue_first_come_first_served_for_their_gpus() -> None:
    records = records_of(
        """
jobs:
  first: {gpus: 4}
  wide: {gpus: 6, start: {at: 1 ms}}
  small: {gpus: 2, start: {at: 2 ms}}
"""
    )
    assert released(records, "wide") == pytest.approx(end_of(records, "first"))
    # Two GPUs were free all the time, but the one before it waited.
    assert released(records, "small") == pytest.approx(end_of(records, "wide"))
    arrived = {r.job: r.t for r in records if isinstance(r, JobArrived)}
    assert arrived == pytest.approx({"first": 0.0, "wide": 0.001, "small": 0.002})


def test_an_iteration_fires_an_event_and_its_end_another() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g3, g1, g4]}}
events:
  - {name: cut, when: {job: red, iteration: 2}, do: cut, target: link tor0:4 tor1:4}
  - {when: {after: cut}, do: restore, target: link tor0:4 tor1:4}
"""
    )
    begun = [r for r in records if isinstance(r, ActionBegun)]
    assert [r.name for r in begun] == ["cut", "2"]
    second = max(
        r.allreduce_end for r in records if isinstance(r, Iteration) and r.i == 1
    )
    assert begun[0].t == pytest.approx(second)
    assert all(r.error is None for r in records if isinstance(r, ActionEnded))


def test_a_cut_halves_what_crosses_and_a_restored_link_gives_it_back() -> None:
    text = """
jobs: {{red: {{ranks: [g0, g3, g1, g4], training: {{iterations: 12}}}}}}
{}
"""
    whole = records_of(text.format(""))
    cut = records_of(
        text.format(
            """events:
  - {when: {job: red, iteration: 4}, do: cut, target: link tor0:4 tor1:4}
  - {when: {job: red, iteration: 8}, do: restore, target: link tor0:4 tor1:4}
"""
        )
    )

    def exchange(records: list[Record], index: int) -> float:
        return max(
            r.all_reduce_s for r in records if isinstance(r, Iteration) and r.i == index
        )

    usual = exchange(whole, 6)
    assert exchange(cut, 2) == pytest.approx(usual)
    assert exchange(cut, 6) == pytest.approx(2 * usual, rel=0.01)
    assert exchange(cut, 10) == pytest.approx(usual)


def test_a_job_stands_still_while_its_switch_is_dead_and_goes_on() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g3]}}
events: [{when: {at: 30 ms}, do: kill, target: switch tor1, back_after: 500 ms}]
"""
    )
    undisturbed = records_of("jobs: {red: {ranks: [g0, g3]}}")
    late = end_of(records, "red") - end_of(undisturbed, "red")
    # TCP tries again after its time-outs, at most twice as long after the first loss.
    assert 0.5 < late <= 2 * 0.5 + DELAYED_ACK_S


def test_a_lost_gpu_fails_its_job_alone() -> None:
    found = experiment(
        """
jobs: {red: {ranks: [g0, g1], may_fail: true}, blue: {ranks: [g2, g3]}}
events: [{when: {job: red, iteration: 2}, do: lose, target: gpu g1}]
"""
    )
    records, failures = run_alone(SimulationBackend(), found.plans[0])
    assert not failures
    states = {r.job: r for r in records if isinstance(r, JobState)}
    assert states["red"].state == "FAILED"
    assert "g1" in str(states["red"].reason)
    assert states["blue"].state == "SUCCEEDED"


def test_a_spare_takes_a_lost_gpus_place() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g1, g3], recovery: 200 ms}, blue: {ranks: [g2, g4]}}
events: [{when: {job: red, iteration: 3}, do: lose, target: gpu g1, then: swap}]
"""
    )
    (recovered,) = [r for r in records if isinstance(r, JobRecovered)]
    assert recovered.gpus == ["g0", "g5", "g3"]
    assert recovered.iteration == 3
    indices = {
        (r.i, r.rank) for r in records if isinstance(r, Iteration) and r.job == "red"
    }
    assert indices == {(i, rank) for i in range(6) for rank in range(3)}


def test_a_cancelled_job_frees_its_gpus() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g1], training: {iterations: 1000}}, blue: {ranks: [g1, g2], start: {after: red}}}
events: [{when: {at: 1 s}, do: cancel, target: job red}]
"""
    )
    states = {r.job: r.state for r in records if isinstance(r, JobState)}
    assert states == {"red": "CANCELLED", "blue": "SUCCEEDED"}


@pytest.mark.parametrize(
    "event", ["do: kill, target: worker blue 0", "do: cancel, target: job blue"]
)
def test_a_job_that_does_not_run_is_neither_killed_nor_cancelled(event: str) -> None:
    found = experiment(
        f"""
jobs: {{red: {{ranks: [g0, g1]}}, blue: {{ranks: [g2, g3], start: {{after: red}}}}}}
events: [{{when: {{at: 1 ms}}, {event}}}]
"""
    )
    records, _ = run_alone(SimulationBackend(), found.plans[0])
    assert [r.error for r in records if isinstance(r, ActionEnded)] == [
        "job blue does not run"
    ]


def test_the_display_of_a_run_that_is_broken_off_ends() -> None:
    class Display(Reporter):
        shown = False

        def start_run(self, title: str, iterations: Mapping[str, int]) -> None:
            self.shown = True

        def end_run(self) -> None:
            self.shown = False

    class Broken(SimulatedLab):
        def begin(self, plan: RunPlan) -> None:
            raise BackendError("the lab is gone")

    (plan,) = experiment("jobs: {red: {ranks: [g0, g1]}}").plans
    display = Display()
    with pytest.raises(BackendError, match="the lab is gone"):
        run_in(
            Broken(plan.setting, 1.0, 0.0, lambda _: None),
            plan,
            lambda _: None,
            display,
        )
    assert not display.shown


class Away(SimulatedLab):
    """The controller is away from ``gone_s`` to ``back_s``: it tells of nothing meanwhile, and what it was
    asked then is done when it is back. ``planned``: whether an event had it killed; None: nobody says that it
    was away."""

    gone_s, back_s = 0.7, 2.8
    planned: bool | None = None

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan.setting, 1.0, 0.0, lambda _: None)
        self._run_name, self._kept_back = plan.name, list[Record]()

    def next(self, until_s: float) -> Sequence[Record]:
        found = list(super().next(until_s))
        while found and self.gone_s < self.now_s() < self.back_s:
            self._kept_back.extend(found)
            found = list(super().next(math.inf))
        if self.now_s() < self.back_s or not self._kept_back:
            return found
        held = [
            replace(r, t=self.back_s) if isinstance(r, ActionEnded) else r
            for r in self._kept_back
        ]
        self._kept_back.clear()
        if self.planned is None:
            return [*held, *found]
        told = {"run": self._run_name, "kind": "controller", "name": "controller"}
        ended = ProcessEnded(
            t=self.gone_s, **told, how="killed by SIGKILL", planned=self.planned
        )
        back = ProcessBack(t=self.back_s, **told, away_s=self.back_s - self.gone_s)
        return [ended, *held, back, *found]


def away(
    text: str, planned: bool | None, monkeypatch: pytest.MonkeyPatch
) -> list[Record]:
    """What a run is on record with that :class:`Away` carries out."""
    monkeypatch.setattr(Away, "planned", planned)
    (plan,) = experiment(text).plans
    kept: list[Record] = []
    run_in(Away(plan), plan, kept.extend, Reporter())
    return kept


WAITS = """
jobs: {red: {ranks: [g0, g1], training: {compute: 500 ms, iterations: 6}}}
events: [{name: later, when: {job: red, iteration: 2}, do: cut, target: link tor0:4 tor1:4}]
"""


@pytest.mark.parametrize("planned", [True, False])
def test_an_event_that_waited_for_the_controller_says_when_it_was_due_and_why_it_came_late(
    planned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller tells of no iteration while it is away; it was killed in the second one."""
    kept = away(WAITS, planned, monkeypatch)
    (late,) = [record for record in kept if isinstance(record, EventLate)]
    iterations = [r for r in kept if isinstance(r, Iteration) and r.i == 1]
    assert late.due == max(r.allreduce_end for r in iterations)
    assert late.late_s == pytest.approx(late.t - late.due)
    assert late.away_s == pytest.approx(Away.back_s - late.due)
    assert (late.planned, late.asked) == ("iteration 2 of red", planned)
    assert late.came in ("in iteration 4", "in iteration 5")
    said = capsys.readouterr().err
    words = (
        "died as planned (killed by SIGKILL)"
        if planned
        else "died (killed by SIGKILL), which no event"
    )
    assert f"the controller {words}" in said
    assert "the controller is back after 2.1 s" in said
    assert (
        f"cut link tor0:4 tor1:4 was planned for iteration 2 of red and came {late.late_s:.1f} s later"
        in said
    )


def test_an_event_that_came_in_time_and_waited_for_the_controller_is_late_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = "training: {compute: 500 ms, iterations: 8}"
    text = f"""
jobs: {{red: {{ranks: [g0, g1], {long}}}, blue: {{ranks: [g2, g3], {long}}}}}
events: [{{when: {{at: 1 s}}, do: cancel, target: job blue}}]
"""
    (late,) = [
        record
        for record in away(text, False, monkeypatch)
        if isinstance(record, EventLate)
    ]
    assert late.do == "cancel"
    assert late.due == pytest.approx(1.0)
    assert late.late_s == late.away_s == pytest.approx(Away.back_s - 1.0)


def test_an_event_is_late_by_when_it_was_due_whoever_was_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing on record says who was away."""
    (late,) = [
        record
        for record in away(WAITS, None, monkeypatch)
        if isinstance(record, EventLate)
    ]
    assert late.late_s == pytest.approx(late.t - late.due)
    assert late.late_s > 1.0
    assert (late.away_s, late.frozen, late.asked) == (0.0, [], False)
    said = capsys.readouterr().err
    assert f"and came {late.late_s:.1f} s later, {late.came}\n" in said


def test_a_late_event_names_who_stood_still(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frozen(Away):
        def next(self, until_s: float) -> Sequence[Record]:
            found = list(super().next(until_s))
            if found and found[0].t == self.gone_s:
                told = {"run": self._run_name, "kind": "runner", "name": "ringlight"}
                frozen = ProcessFrozen(t=self.gone_s, **told, how="its clock has a gap")
                thawed = ProcessThawed(
                    t=self.back_s, **told, after_s=self.back_s - self.gone_s
                )
                return [
                    frozen,
                    thawed,
                    *(
                        r
                        for r in found
                        if not isinstance(r, ProcessEnded | ProcessBack)
                    ),
                ]
            return found

    monkeypatch.setattr(Away, "planned", False)
    (plan,) = experiment(WAITS).plans
    kept: list[Record] = []
    run_in(Frozen(plan), plan, kept.extend, Reporter())
    (late,) = [record for record in kept if isinstance(record, EventLate)]
    assert (late.away_s, late.frozen, late.asked) == (0.0, ["the runner"], False)
    assert ": the runner stood still" in capsys.readouterr().err


def test_an_event_that_comes_too_late_is_an_error() -> None:
    found = experiment(
        "jobs: {red: {ranks: [g0, g1]}}\nevents: [{when: {at: 1000 s}, do: cancel, target: job red}]"
    )
    _, (failure,) = run_alone(SimulationBackend(), found.plans[0])
    assert "had ended before cancel job red (events.1) was due" in failure


def test_a_switch_that_never_comes_back_leaves_a_job_that_failed() -> None:
    found = experiment(
        "jobs: {red: {ranks: [g0, g3]}}\nevents: [{when: {at: 30 ms}, do: cut, target: link g3 tor1:1}]"
    )
    records, (failure,) = run_alone(SimulationBackend(), found.plans[0])
    assert "stands still" in failure
    assert isinstance(records[-1], RunEnded)
    assert records[-1].t < math.inf


def test_an_arm_that_the_backend_cannot_is_left_out_or_refused() -> None:
    found = experiment(
        """
jobs: {red: {ranks: [g0, g1]}}
arms:
  base: {}
  killed: {events: [{when: {job: red, iteration: 1}, do: kill, target: controller, back_after: 1 s}]}
"""
    )
    chosen = choose(found, SimulationBackend())
    assert [plan.arm for plan in chosen.plans] == ["base"]
    assert chosen.refused == {
        "killed": "events.1.do: the simulation cannot kill the controller"
    }
    with pytest.raises(
        ScenarioError, match=r"arms\.killed\.events\.1\.do: the simulation cannot kill"
    ):
        choose(found, SimulationBackend(), ["killed"])
    with pytest.raises(
        ScenarioError, match="there is no arm nowhere; there are base, killed"
    ):
        choose(found, SimulationBackend(), ["nowhere"])


def test_a_packet_switch_behind_an_optical_one_is_killed_and_comes_back() -> None:
    raw = yaml.safe_load(bundled("mini").read_text())
    del raw["arms"], raw["compare"]
    raw["jobs"] = {"red": {"ranks": ["g0", "g1"]}, "blue": {"ranks": ["g2", "g3"]}}
    raw["events"] = [
        {
            "when": {"at": "30 ms"},
            "do": "kill",
            "target": "switch tor0",
            "back_after": "500 ms",
        }
    ]
    (plan,) = parse(yaml.safe_dump(raw, allow_unicode=True), "behind.yaml").plans
    records, failures = run_alone(SimulationBackend(), plan)
    assert not failures
    # Its own job stands still until TCP tries again; the other's does not notice.
    late = end_of(records, "red") - end_of(records, "blue")
    assert 0.5 < late <= 2 * 0.5 + DELAYED_ACK_S


def test_a_job_after_one_that_failed_is_not_stranded() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g1], may_fail: true}, blue: {ranks: [g2, g3], start: {after: red}}}
events: [{when: {job: red, iteration: 2}, do: lose, target: gpu g1}]
"""
    )
    states = {r.job: r.state for r in records if isinstance(r, JobState)}
    assert states == {"red": "FAILED", "blue": "SUCCEEDED"}


def test_a_job_whose_gpus_never_come_free_is_told() -> None:
    found = experiment(
        """
jobs: {red: {ranks: [g0, g1], may_fail: true}, blue: {ranks: [g1, g2], start: {after: red}}}
events: [{when: {job: red, iteration: 2}, do: lose, target: gpu g1}]
"""
    )
    _, (failure,) = run_alone(SimulationBackend(), found.plans[0])
    assert failure == "base: nothing happens any more; waiting: blue (GPU g1 is lost)"


def test_jobs_of_the_beginning_that_find_no_room_are_told() -> None:
    found = experiment("jobs: {red: {gpus: 4}, blue: {gpus: 4}}\n")
    _, (failure,) = run_alone(SimulationBackend(), found.plans[0])
    assert (
        failure
        == "base: job blue: no room at the start: 4 GPUs are requested; 2 of 6 are free"
    )


def test_a_run_waits_for_the_events_that_were_begun() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g1]}}
events: [{when: {at: 30 ms}, do: kill, target: switch tor1, back_after: 5 s}]
"""
    )
    (back,) = [r for r in records if isinstance(r, ActionEnded)]
    assert back.t == pytest.approx(5.03)
    assert records[-1].t >= back.t > end_of(records, "red")


def test_an_event_starts_a_job_and_jobs_and_events_fire_events() -> None:
    records = records_of(
        """
jobs: {red: {ranks: [g0, g1]}, blue: {ranks: [g2, g3], start: event}}
events:
  - {name: go, when: {ended: red}, do: start, target: job blue}
  - {name: dead, when: {started: blue}, do: kill, target: switch tor0, back_after: 500 ms}
  - {name: cut, when: {after: dead}, do: cut, target: link tor0:4 tor1:4}
"""
    )
    begun = {r.name: r.t for r in records if isinstance(r, ActionBegun)}
    assert released(records, "blue") == pytest.approx(end_of(records, "red"))
    assert begun["dead"] == pytest.approx(released(records, "blue"))
    assert begun["cut"] == pytest.approx(begun["dead"] + 0.5)


def test_an_event_at_the_start_is_over_before_the_jobs_begin() -> None:
    records = records_of(
        "jobs: {red: {ranks: [g0, g3]}}\nevents: [{when: start, do: cut, target: link tor0:4 tor1:4}]\n"
    )
    order = [type(r) for r in records if isinstance(r, ActionEnded | Released)]
    assert order == [ActionEnded, Released]


def test_an_event_that_goes_wrong_is_a_failure() -> None:
    found = experiment(
        """
jobs: {red: {ranks: [g0, g1]}, blue: {ranks: [g2, g3], start: {at: 1 s}}}
events: [{when: {at: 10 ms}, do: cancel, target: job blue}]
"""
    )
    _, failures = run_alone(SimulationBackend(), found.plans[0])
    assert failures == ("base: events.1: job blue does not run",)


class InRealTime(SimulationBackend):
    """Its clock is said to go on by itself."""

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> SimulatedLab:
        lab = super().open(setting, emit)
        lab.real_time = True
        return lab


def test_a_run_that_takes_too_long_is_given_up() -> None:
    found = experiment(
        "jobs: {red: {ranks: [g0, g3]}}\nevents: [{when: {at: 30 ms}, do: cut, target: link g3 tor1:1}]"
    )
    _, (failure,) = run_alone(InRealTime(), found.plans[0])
    assert failure == "base: red had not ended after 62 s"


def test_a_lab_is_taken_down_though_nobody_reads_the_progress() -> None:
    """A terminal may be gone, which ends the run, and then its bars cannot be taken off it."""

    class Gone(Reporter):
        def end_run(self) -> None:
            raise BrokenPipeError

    closed = []

    class Watched(SimulatedLab):
        def close(self) -> None:
            closed.append(self)

    class Backend(SimulationBackend):
        def open(
            self, setting: Setting, emit: Callable[[Record], None]
        ) -> SimulatedLab:
            return Watched(setting, 1.0, 0.0, lambda events: None)

    found = experiment("jobs: {red: {ranks: [g0, g1]}}\n")
    with pytest.raises(BrokenPipeError):
        list(run_group(Backend(), found.plans, lambda records: None, Gone(quiet=True)))
    assert len(closed) == 1


class OwnQueue(SimulatedLab):
    """Gives GPUs to whichever waiting job has room."""

    own_queue = True

    def begin(self, plan: RunPlan) -> None:
        super().begin(plan)
        self._waiting: list[JobPlan] = []

    def submit(self, job: JobPlan) -> str | None:
        self._waiting.append(job)
        self._give()
        return None

    def next(self, until_s: float) -> Sequence[Record]:
        records = super().next(until_s)
        self._give()
        return records

    def _give(self) -> None:
        for job in [
            job for job in self._waiting if SimulatedLab.submit(self, job) is None
        ]:
            self._waiting.remove(job)
            self._tell(GpusGranted, job=job.name)


def test_a_lab_with_a_queue_of_its_own_decides_who_is_next() -> None:
    class Backend(SimulationBackend):
        def open(
            self, setting: Setting, emit: Callable[[Record], None]
        ) -> SimulatedLab:
            return OwnQueue(setting, 1.0, 0.0, lambda events: None)

    found = experiment(
        """
jobs:
  first: {gpus: 4, start: {at: 1 ms}}
  wide: {gpus: 5, start: {at: 2 ms}}
  small: {gpus: 2, start: {at: 3 ms}}
"""
    )
    records, failures = run_alone(Backend(), found.plans[0])
    assert not failures
    arrived = [record.job for record in records if isinstance(record, JobArrived)]
    granted = [record.job for record in records if isinstance(record, GpusGranted)]
    assert arrived == ["first", "wide", "small"]
    assert granted == ["first", "small", "wide"]
