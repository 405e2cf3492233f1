"""What moving light costs: the worst of beacons, dark light and standing TCP, each as it was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.experiments.analysis.metrics.regroup import light_window, relit_gpus
from ringlight.experiments.analysis.result import Analysis, analyse, document
from ringlight.experiments.analysis.rows import where
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import Experiment, load
from ringlight.experiments.language.plan import EventPlan, RunPlan, When
from ringlight.experiments.record.events import (
    Iteration,
    Record,
    WorkerDone,
    WorkerReady,
)
from ringlight.experiments.record.runs import Action, Run, runs_of
from ringlight.experiments.report.report import render
from ringlight.experiments.report.view import view_of
from ringlight.experiments.runner.experiment import run_alone
from tests.simulated import the, with_workers
from tests.unit.page import Page, text_of
from tests.unit.test_cli import MINI

EXPERIMENT = load(MINI)
(PLAN,) = [plan for plan in EXPERIMENT.plans if plan.arm == "live"]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Records of a regroup while both jobs train, with undisturbed workers."""
    found = list(with_workers(run_alone(SimulationBackend(), PLAN)[0]))
    return [
        replace(r, stalls=[], max_stall_s=0.0) if isinstance(r, Iteration) else r
        for r in found
    ]


def regroup_of(records: list[Record]) -> Action:
    (run,) = runs_of(records, [PLAN])
    (action,) = run.actions
    return action


def figures(records: list[Record], *metrics: str) -> list[Any]:
    rows = analyse(EXPERIMENT, records, "measured").rows
    return [the(rows, metric, arm="live") for metric in metrics]


SEEN = ("beacon_gap", "wire_dark", "tcp_stall", "blackout")


def test_dark_light_alone_is_what_the_switch_says(records: list[Record]) -> None:
    gap, dark, stall, blackout = figures(records, *SEEN)
    assert (gap, stall) == (0.0, 0.0)
    assert blackout == dark > 0


@pytest.mark.parametrize(
    ("begin", "end", "counted"),
    [
        (-0.1, -0.01, 0.0),  # over before the light went
        (-0.1, 0.09, 0.09),  # begun before: only what lies after it counts
        (0.02, 0.2, 0.18),
        (5.0, 6.0, 0.0),  # begun when all was over
    ],
)
def test_of_a_stall_what_lies_after_the_light_went_counts(
    records: list[Record], begin: float, end: float, counted: float
) -> None:
    dark_from, _ = light_window(regroup_of(records))
    last = max((r for r in records if isinstance(r, Iteration)), key=lambda r: r.i)
    stall = [[dark_from + begin, dark_from + end]]
    changed = [replace(r, stalls=stall) if r is last else r for r in records]  # type: ignore[call-arg]
    _, dark, seen, blackout = figures(changed, *SEEN)
    assert seen == pytest.approx(counted)
    assert blackout == pytest.approx(max(dark, counted))


@pytest.mark.parametrize(
    ("start", "length", "counted"),
    [(0.01, 0.3, 0.3), (9.0, 0.3, 0.0), (-2.0, 1.0, 0.0)],
)
def test_a_silence_counts_while_light_moves(
    records: list[Record], start: float, length: float, counted: float
) -> None:
    dark_from, _ = light_window(regroup_of(records))
    begin = dark_from + start
    gap = {"peer": 1, "t_start": begin, "t_end": begin + length, "lost": 9}
    changed = [
        replace(r, beacon_gaps=[gap])
        if isinstance(r, WorkerDone) and r.rank == 0
        else r
        for r in records
    ]
    (seen,) = figures(changed, "beacon_gap")
    assert seen == pytest.approx(counted)


def test_changed_connections_and_lost_ranks_are_told(records: list[Record]) -> None:
    def unchanged(found: list[Record]) -> Any:
        rows = analyse(EXPERIMENT, found, "measured").rows
        return the(rows, "connections_unchanged", arm="live", subject="job red")

    assert unchanged(records) is True
    other = [{"peer": 1, "local_port": 1, "remote_port": 6}]
    assert not unchanged(
        [
            replace(r, connections=other) if isinstance(r, WorkerDone) else r
            for r in records
        ]
    )
    assert not unchanged(
        [r for r in records if not (isinstance(r, WorkerDone) and r.rank == 1)]
    )
    assert not unchanged(
        [r for r in records if not (isinstance(r, WorkerReady) and r.rank == 1)]
    )


def test_circuits_that_an_event_sets_move_only_gpus_whose_light_is_another() -> None:
    before = (("g0:0", "tor0:1"), ("g1:0", "tor0:2"), ("g2:0", "tor1:1"))
    event = EventPlan(
        "set", When(at_s=1.0), "circuits", circuits=(("g0", "tor0:1"), ("tor0:2", "g2"))
    )
    action = Action(event, 1.0, 2.0, {}, None)
    run = Run(PLAN, "live", 0.0, 3.0, {}, (action,), before, (), ())
    assert relit_gpus(run, action) == {"g1", "g2"}
    assert relit_gpus(run, replace(action, plan=replace(event, do="regroup"))) == set()


def test_when_others_had_followed_is_the_end_of_the_last_silence_or_stall(
    records: list[Record], tmp_path: Path
) -> None:
    def found(changed: list[Record], experiment: Experiment) -> Analysis:
        return analyse(experiment, changed, "measured")

    assert not where(found(records, EXPERIMENT).rows, metric="followed")
    others = left_to_others(EXPERIMENT)
    assert the(found(records, others).rows, "followed", arm="live") == 0.0
    begin, end = light_window(regroup_of(records))
    gap = {"peer": 1, "t_start": begin + 0.01, "t_end": end + 0.4, "lost": 9}
    changed = [
        replace(r, beacon_gaps=[gap])
        if isinstance(r, WorkerDone) and r.rank == 0
        else r
        for r in records
    ]
    silent = found(changed, others)
    assert the(silent.rows, "followed", arm="live") == pytest.approx(0.4)
    last = max((r for r in changed if isinstance(r, Iteration)), key=lambda r: r.i)
    stall = [[begin + 0.01, end + 0.7], [end + 0.8, end + 0.9]]
    stalled = found(
        [replace(r, stalls=stall) if r is last else r for r in changed], others
    )  # type: ignore[call-arg]
    assert the(stalled.rows, "followed", arm="live") == pytest.approx(0.7)

    page = render(view_of(silent, document(silent, changed, {}), {}, ()), tmp_path)
    said = text_of(Page(page))
    assert "Packet switches of other controllers" in said
    assert "nobody: it learns addresses and floods" in said
    assert "400.0 ms" in said


def left_to_others(experiment: Experiment) -> Experiment:
    """The same, its packet switches left to nobody."""

    def plan_of(plan: RunPlan) -> RunPlan:
        fabric = plan.setting.fabric
        switches = {
            n: replace(s, controller="none") for n, s in fabric.packet_switches.items()
        }
        setting = replace(
            plan.setting, fabric=replace(fabric, packet_switches=switches)
        )
        return replace(plan, setting=setting)

    return replace(experiment, plans=tuple(map(plan_of, experiment.plans)))


#: The same with all-reduces that follow each other, so that one is under way while the light moves.
(BUSY,) = [
    plan
    for plan in load(MINI, sets=["training.compute=1 ms"]).plans
    if plan.arm == "live"
]


def ended_s(*, queue_s: float, rto_min_s: float) -> float:
    """When the last iteration of the simulated run has ended, seconds."""
    setting = BUSY.setting
    links = tuple(replace(link, queue_s=queue_s) for link in setting.fabric.links)
    tcp = setting.tcp.model_copy(update={"rto_min": rto_min_s})
    plan = replace(
        BUSY,
        setting=replace(setting, fabric=replace(setting.fabric, links=links), tcp=tcp),
    )
    return max(
        r.allreduce_end
        for r in run_alone(SimulationBackend(), plan)[0]
        if isinstance(r, Iteration)
    )


def test_transfers_beside_moved_light_wait_for_tcp_and_not_for_a_full_queue() -> None:
    first = ended_s(queue_s=0.05, rto_min_s=0.1)
    assert ended_s(queue_s=0.2, rto_min_s=0.1) == pytest.approx(first)
    assert ended_s(queue_s=0.05, rto_min_s=0.15) == pytest.approx(first + 0.05)
