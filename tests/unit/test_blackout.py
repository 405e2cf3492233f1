"""What moving light costs: the worst of beacons, dark light and standing TCP, each as it was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringlight.experiments.analysis.metrics.regroup import light_window, relit_gpus
from ringlight.experiments.analysis.result import analyse
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.language.expand import load
from ringlight.experiments.language.plan import EventPlan, When
from ringlight.experiments.record.events import Iteration, Record, WorkerDone, WorkerReady
from ringlight.experiments.record.runs import Action, Run, runs_of
from ringlight.experiments.runner.experiment import one_alone
from tests.simulated import the, with_workers
from tests.unit.test_cli import MINI

EXPERIMENT = load(MINI)
(PLAN,) = [plan for plan in EXPERIMENT.plans if plan.arm == "live"]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Of a regroup while both jobs train, with workers that nothing happened to."""
    found = list(with_workers(one_alone(SimulationBackend(), PLAN)[0]))
    return [replace(r, stalls=[], max_stall_s=0.0) if isinstance(r, Iteration) else r for r in found]


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
    ("start", "length", "counted"), [(0.01, 0.3, 0.3), (9.0, 0.3, 0.0), (-2.0, 1.0, 0.0)]
)
def test_a_silence_counts_while_light_moves(
    records: list[Record], start: float, length: float, counted: float
) -> None:
    dark_from, _ = light_window(regroup_of(records))
    begin = dark_from + start
    gap = {"peer": 1, "t_start": begin, "t_end": begin + length, "lost": 9}
    changed = [
        replace(r, beacon_gaps=[gap]) if isinstance(r, WorkerDone) and r.rank == 0 else r for r in records
    ]
    (seen,) = figures(changed, "beacon_gap")
    assert seen == pytest.approx(counted)


def test_changed_connections_and_lost_ranks_are_told(records: list[Record]) -> None:
    def unchanged(found: list[Record]) -> Any:
        rows = analyse(EXPERIMENT, found, "measured").rows
        return the(rows, "connections_unchanged", arm="live", subject="job red")

    assert unchanged(records) is True
    other = [{"peer": 1, "local_port": 1, "remote_port": 6}]
    assert not unchanged([replace(r, connections=other) if isinstance(r, WorkerDone) else r for r in records])
    assert not unchanged([r for r in records if not (isinstance(r, WorkerDone) and r.rank == 1)])
    assert not unchanged([r for r in records if not (isinstance(r, WorkerReady) and r.rank == 1)])


def test_circuits_that_an_event_sets_move_only_gpus_whose_light_is_another() -> None:
    before = (("g0:0", "tor0:1"), ("g1:0", "tor0:2"), ("g2:0", "tor1:1"))
    event = EventPlan("set", When(at_s=1.0), "circuits", circuits=(("g0", "tor0:1"), ("tor0:2", "g2")))
    action = Action(event, 1.0, 2.0, {}, None)
    run = Run(PLAN, "live", 0.0, 3.0, {}, (action,), before, (), ())
    assert relit_gpus(run, action) == {"g1", "g2"}
    assert relit_gpus(run, replace(action, plan=replace(event, do="regroup"))) == set()
