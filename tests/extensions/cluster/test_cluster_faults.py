"""Servers that fail under the jobs of a trace, blocks of a torus, and whole slices."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringlight.containers.image import ROOT
from ringlight.experiments.language.expand import parse
from ringlight.extensions.cluster.clusters import (
    Cluster,
    FaultPolicies,
    Lattice,
    LightMoves,
    Policies,
)
from ringlight.extensions.cluster.fault_traces import (
    FaultTrace,
    outages,
    spread_over,
    whole_slices,
)
from ringlight.extensions.cluster.formats.fault_traces import read_fault_trace
from ringlight.extensions.cluster.job_traces import (
    JobTrace,
    Sending,
    generated,
    shares_of,
)
from ringlight.extensions.cluster.records import TraceReplayed
from ringlight.extensions.cluster.simulation.blocks import Blocks
from ringlight.extensions.cluster.simulation.breaking import ClusterFaults, kept_units
from ringlight.extensions.cluster.simulation.measures import measured, sure_slices
from ringlight.extensions.cluster.simulation.replay import Replay, replay
from ringlight.extensions.cluster.tiers import cluster_of
from ringlight.extensions.cluster.trace_runs import trace_run
from ringlight.fabric.trees import leaf_spine

RECORDED = ROOT / "scenarios/traces/infinitehbd_faults.json"
BLOCKS = """
name: blocks
description: RFold's torus.
fabric: {interconnect: {kind: torus, gpus: 512, gpu: g, rate: 100 Gbit/s, sides: [8, 8, 8]}}
jobs: {trace: {file: torus_100_jobs.csv, sends: 0.3, placement: PLACED}}
"""


@pytest.mark.parametrize(
    ("placement", "mean_s", "end_s"),
    [("hilbert", 9236.87, 47_480), ("blocks", 16_666.33, 63_060)],
)
def test_a_torus_as_rfolds_own_program_has_it(
    placement: str, mean_s: float, end_s: float
) -> None:
    """``slurm_hilbert``, where only capacity counts, and ``firstfit`` of shuoshuc/RFold at b981455."""
    text = BLOCKS.replace("PLACED", placement)
    plan = parse(text, str(ROOT / "scenarios/traces/blocks.yaml")).plans[0]
    records = trace_run(plan).compute()
    found = next(record for record in records if isinstance(record, TraceReplayed))
    assert found.figures["completion_mean"] == pytest.approx(mean_s, abs=5e-3)
    assert records[-1].t == end_s
    assert found.figures["jobs_counted"] == 100


def test_blocks_go_round_the_ends_of_a_torus_and_turn() -> None:
    lattice = Lattice("a torus", (4, 4, 2))
    torus = Blocks(lattice)
    torus.free[1:3] = False
    cells = torus.find(lattice.orders(16, (2, 4, 2)))
    assert cells is not None
    assert sorted({int(x) for x in cells[0].ravel()}) == [0, 3]
    assert torus.find(lattice.orders(12, (1, 4, 3))) is None
    turned = torus.find(lattice.orders(8, (2, 1, 4)))
    assert turned is not None
    torus.free[turned] = False
    assert int(torus.free.sum()) == 8


def test_blocks_of_a_grid_and_a_ring() -> None:
    grid = Lattice("a grid", (4, 6), round_ends=False)
    # The squarest first; a prime that is longer than a side has none.
    assert grid.orders(6) == [(2, 3), (3, 2), (1, 6)]
    assert grid.orders(7) == []
    free = Blocks(grid)
    free.free[:, 1:5] = False
    assert free.find(grid.orders(4)) is not None
    assert free.find(grid.orders(6)) is None
    ring = Lattice("a ring", (6,))
    arcs = Blocks(ring)
    arcs.free[1:4] = False
    (found,) = arcs.find(ring.orders(3)) or ()
    assert found.tolist() == [4, 5, 0]
    assert arcs.find(ring.orders(4)) is None


def test_what_was_recorded_of_faults() -> None:
    found = read_fault_trace(RECORDED, 400)
    days = (found.end_s - found.begin_s) / 86_400
    assert len(set(found.server.tolist())) == 231
    assert found.available == pytest.approx(0.977, abs=5e-4)
    assert days.mean() == pytest.approx(5.55, abs=0.01)
    assert np.median(days) == pytest.approx(0.85, abs=0.01)


def test_bad_faults_are_named(tmp_path: Path) -> None:
    for events, said in (
        (
            [{"node_id": "a", "event_time": -1, "event_type": "fault_start"}],
            "event 1, event_time: '-1'",
        ),
        (
            [{"node_id": "a", "event_time": 1, "event_type": "fault"}],
            "event 1, event_type: 'fault' is neither",
        ),
        (
            [{"node_id": "a", "event_time": 1, "event_type": "fault_end"}],
            "a fault ends that never began",
        ),
        ({}, "it is no list of events"),
    ):
        path = tmp_path / "faults.json"
        path.write_text(json.dumps(events))
        with pytest.raises(ValueError) as error:
            read_fault_trace(path, 4)
        assert str(error.value).startswith(f"{path}: ")
        assert said in str(error.value)
    with pytest.raises(ValueError, match="2 servers fail, and there are 1"):
        outages([(0.0, "a", True), (1.0, "b", True)], 1)


def test_outages_of_a_server_are_joined() -> None:
    found = outages(
        [
            (1, "a", True),
            (2, "a", True),
            (3, "a", False),
            (5, "a", False),
            (6, "b", True),
            (9, "a", True),
        ],
        3,
    )
    assert list(zip(found.server.tolist(), found.begin_s.tolist(), found.end_s.tolist(), strict=True)) == [
        (0, 1, 5), (1, 6, 9), (0, 9, 9),
    ]  # fmt: skip


def needed_wholeness(slices: int, wanted: int, confidence: float = 0.95) -> float:
    """The probability of a slice to be whole from which on ``wanted`` of them are, with this confidence."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if sure_slices(slices, middle, confidence) >= wanted:
            high = middle
        else:
            low = middle
    return high


def test_cubes_that_are_whole() -> None:
    """130 of 144 cubes with 95 % confidence need 93.5 % a cube; the trace's own 83.6 % give 113."""
    assert needed_wholeness(144, 130) == pytest.approx(0.935, abs=5e-4)
    assert sure_slices(144, 0.836) == 113
    found = read_fault_trace(RECORDED, 400)
    assert sure_slices(50, found.available**8) == 37
    means, least = [], []
    for seed in range(20):
        counts, shares = whole_slices(spread_over(found, 400, seed), 8)
        means.append(float(counts @ shares) / 50)
        least.append(counts[np.searchsorted(np.cumsum(shares), 0.05)])
    # As recorded, faults come together: more cubes are whole in the mean, and far fewer on a bad day.
    assert np.mean(means) == pytest.approx(0.836, abs=2e-3)
    assert found.available**8 == pytest.approx(0.829, abs=5e-4)
    assert np.median(least) == pytest.approx(30, abs=1)


def test_faults_on_a_larger_cluster_keep_their_share() -> None:
    found = read_fault_trace(RECORDED, 400)
    for servers in (40, 400, 2048):
        more = spread_over(found, servers, 1)
        assert more.servers == servers
        assert int(more.server.max()) < servers
        assert more.available == pytest.approx(found.available, abs=0.012)


def _cluster() -> Cluster:
    return cluster_of(leaf_spine(4, 32, 1e9, oversubscription=4).fabric())


def _ran(
    trace: JobTrace,
    faults: FaultTrace,
    policies: FaultPolicies,
    cluster: Cluster | None = None,
) -> Replay:
    shares = shares_of(trace, [Sending(None, 0.3)])
    return replay(
        cluster or _cluster(),
        trace,
        *shares,
        Policies(),
        faults=ClusterFaults(faults, policies),
    )


def _one_fault(begin: float, end: float, server: int = 0) -> FaultTrace:
    return FaultTrace(np.array([server]), np.array([begin]), np.array([end]), 16, 1e6)


def _jobs(*rows: tuple[float, int, float]) -> JobTrace:
    at, gpus, took = (
        np.array(column, dtype=float) for column in zip(*rows, strict=True)
    )
    return JobTrace(at, gpus.astype(int), took)


def test_a_job_whose_server_fails() -> None:
    """It had done 1,000 s, and wrote a checkpoint every 300; to start again takes 50."""
    trace, fault = _jobs((0, 32, 2000)), _one_fault(1000, 5000)
    how: dict[str, Any] = {"checkpoint_s": 300, "restart_s": 50}
    waits = _ran(trace, fault, FaultPolicies("wait", **how))
    # From 900 on once more, when the server is back.
    assert waits.end_s.tolist() == [5000 + 50 + 1100]
    assert waits.stalled[-1] == 32 * 4000
    restarts = _ran(trace, fault, FaultPolicies("restart", **how))
    assert restarts.end_s.tolist() == [1000 + 50 + 1100]
    swapped = _ran(trace, fault, FaultPolicies("spare", **how))
    assert swapped.end_s.tolist() == [1000 + 50 + 1100]
    assert (swapped.swapped, swapped.hit) == (8, 1)
    # It stays on its switch: light brings the spare there.
    assert swapped.switches.tolist() == [1]
    # There is no spare on its own switch.
    own = _ran(trace, fault, FaultPolicies("spare", "switch", **how))
    assert own.end_s.tolist() == waits.end_s.tolist()
    # But there is one where one was kept for that, though the cluster is full.
    full = _jobs((0, 24, 2000), (0, 24, 2000), (0, 24, 2000), (0, 24, 2000))
    kept = _ran(
        full,
        _one_fault(1000, 5000, 1),
        FaultPolicies("spare", "switch", spares=0.25, **how),
    )
    assert kept.end_s.max() == 1000 + 50 + 1100
    assert kept.swapped == 8


@pytest.mark.parametrize(
    ("policy", "end_s"), [("restart", 1020 + 50 + 1100), ("wait", 1160 + 50 + 1100)]
)
def test_a_job_that_is_hit_again_while_it_restarts(policy: Any, end_s: float) -> None:
    """It had done 1,000 s, the last checkpoint is of 900; to restart for a while is no work to lose."""
    servers = [0, 4] if policy == "restart" else [0, 0]
    begins, ends = (
        ([1000, 1020], [5000, 5000])
        if policy == "restart"
        else ([1000, 1120], [1100, 1160])
    )
    twice = FaultTrace(
        np.array(servers),
        np.array(begins, dtype=float),
        np.array(ends, dtype=float),
        16,
        1e6,
    )
    trace = _jobs((0, 32, 2000))
    found = _ran(trace, twice, FaultPolicies(policy, checkpoint_s=300, restart_s=50))
    assert found.hit == 2
    assert found.end_s.tolist() == [end_s]
    assert found.done[-1] == pytest.approx(32 * 2000)


def test_what_is_repaired_is_a_spare_again() -> None:
    """Before the job that waits for a server gets it."""
    how: dict[str, Any] = {"checkpoint_s": 300, "restart_s": 50}
    full = _jobs(*[(0.0, 24, 4000.0)] * 4, (10, 8, 100))
    faults = FaultTrace(
        np.array([1, 2]),
        np.array([1000.0, 2000.0]),
        np.array([1500.0, 9000.0]),
        16,
        1e6,
    )
    found = _ran(full, faults, FaultPolicies("spare", "switch", spares=0.25, **how))
    assert found.swapped == 16
    assert found.start_s[4] == 4000
    # Twice 50 s to start again, and the work since the checkpoints of 900 s and of 1,800 s.
    assert found.end_s.max() == pytest.approx(4000 + 50 + 100 + 50 + 50)
    assert found.stalled[-1] == 0


def test_a_share_of_less_than_a_unit_keeps_one_for_several_switches() -> None:
    quarter = FaultPolicies("spare", spares=0.25, unit_gpus=32)
    assert kept_units([32] * 8, quarter) == [0, 32, 0, 0, 0, 32, 0, 0]
    assert kept_units([32] * 4, FaultPolicies("spare", spares=0.25)) == [8] * 4
    assert kept_units([32] * 4, FaultPolicies("spare")) == [0] * 4


def test_an_outage_of_no_length_does_nothing() -> None:
    trace = _jobs((0, 32, 2000))
    none = FaultTrace(
        np.array([0, 0]), np.array([500.0, 700.0]), np.array([500.0, 700.0]), 16, 1e6
    )
    assert _ran(trace, none, FaultPolicies("restart")).end_s.tolist() == [2000]


def test_a_slice_fails_whole() -> None:
    # The third server of the slice that the job of eight is not on itself.
    fault = _one_fault(1000, 3000, 2)
    trace = _jobs((0, 8, 2000))
    assert _ran(trace, fault, FaultPolicies("wait", unit_gpus=8)).hit == 0
    assert _ran(trace, fault, FaultPolicies("wait", unit_gpus=32)).hit == 1


@pytest.mark.parametrize("policy", ["wait", "restart", "spare"])
def test_all_work_is_done_in_spite_of_faults(policy: Any) -> None:
    trace = generated(300, 60, 1500, {1: 2, 4: 2, 8: 2, 20: 1, 48: 1}, 3)
    faults = spread_over(read_fault_trace(RECORDED, 400), 16, 3)
    # As if a day were an hour: hundreds of faults in five hours.
    quick = FaultTrace(
        faults.server, faults.begin_s / 600, faults.end_s / 600, 16, faults.span_s / 600
    )
    for spares in (0.0, 0.25):
        found = _ran(
            trace,
            quick,
            FaultPolicies(policy, spares=spares, checkpoint_s=600, restart_s=20),
        )
        figures = measured(_cluster(), trace, found, 0.1).figures
        assert (figures["little_gap"] or 0.0) < 1e-9
        assert found.hit > 10
        assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)
        assert np.all(np.isfinite(found.end_s))
        assert np.all(found.end_s - found.start_s >= trace.duration_s * (1 - 1e-9))


@pytest.mark.parametrize("light", ["when-it-pays", "at-intervals"])
def test_who_has_a_spare_of_another_switch_makes_no_room_by_its_light(
    light: LightMoves,
) -> None:
    trace = generated(300, 60, 1500, {1: 2, 4: 2, 8: 2, 20: 1, 48: 1}, 3)
    recorded = spread_over(read_fault_trace(RECORDED, 400), 16, 3)
    quick = FaultTrace(
        recorded.server,
        recorded.begin_s / 600,
        recorded.end_s / 600,
        16,
        recorded.span_s / 600,
    )
    faults = ClusterFaults(
        quick, FaultPolicies("spare", spares=0.25, checkpoint_s=600, restart_s=20)
    )
    how = Policies("backfill", "random", light, every_s=600)
    found = replay(
        _cluster(),
        trace,
        *shares_of(trace, [Sending(None, 0.3)]),
        how,
        3,
        faults=faults,
    )
    assert found.swapped > 0
    assert found.regroupings > 0
    assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)


def test_faults_of_blocks_are_refused() -> None:
    torus = Cluster((8,), (), (), lattice=Lattice("a torus", (2, 4)))
    trace = JobTrace(np.zeros(1), np.array([2]), np.array([5.0]), ((1, 2),))
    faults = ClusterFaults(_one_fault(1, 2), FaultPolicies("wait"))
    with pytest.raises(
        ValueError, match="faults: which GPUs of a block fail is not known"
    ):
        replay(
            torus,
            trace,
            *shares_of(trace, [Sending(None, 0.0)]),
            Policies(placement="blocks"),
            faults=faults,
        )


def test_nobody_runs_on_a_server_that_is_down() -> None:
    from ringlight.extensions.cluster.simulation.failing import Units

    units = Units(_cluster(), 8)
    rng = np.random.default_rng(5)
    free, down = dict.fromkeys(range(4), 32), set()
    jobs: list[int] = []
    for step in range(600):
        unit = units.all[int(rng.integers(len(units.all)))]
        if rng.random() < 0.2 and unit not in down:
            idle, hit = units.fail(unit)
            free[unit[0]] -= idle
            down.add(unit)
            for job in hit:
                for leaf, back in units.give(job).items():
                    free[leaf] += back
                jobs.remove(job)
        elif down and rng.random() < 0.2:
            unit = down.pop()
            free[unit[0]] += units.mend(unit)
        elif jobs and rng.random() < 0.4:
            for leaf, back in units.give(jobs.pop(0)).items():
                free[leaf] += back
        elif sum(free.values()) >= (wanted := int(rng.integers(1, 20))):
            placed: dict[int, int] = defaultdict(int)
            for leaf in free:
                placed[leaf] = min(free[leaf], wanted - sum(placed.values()))
                free[leaf] -= placed[leaf]
            units.take(step, {leaf: n for leaf, n in placed.items() if n})
            jobs.append(step)
        held = sum(n for job in jobs for n in units.jobs[job].values())
        assert sum(free.values()) + held + 8 * len(down) == 128
        assert not any(units.broken(job) for job in jobs)


def test_half_a_character_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(r'["\ud83d"]')
    with pytest.raises(ValueError, match=r"x\.json"):
        read_fault_trace(path, 4)
