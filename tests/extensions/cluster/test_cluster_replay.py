"""Replays of traces: laws that hold for any of them, closed forms, policies, and light that moves."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest

from ringlight.extensions.cluster.clusters import (
    Cluster,
    LightMoves,
    Placement,
    Policies,
    Queueing,
    Sharing,
)
from ringlight.extensions.cluster.job_traces import (
    JobTrace,
    Sending,
    generated,
    shares_of,
)
from ringlight.extensions.cluster.simulation.making_room import room_for
from ringlight.extensions.cluster.simulation.measures import measured
from ringlight.extensions.cluster.simulation.placing import PLACEMENTS, Free
from ringlight.extensions.cluster.simulation.queueing import QUEUES
from ringlight.extensions.cluster.simulation.rate_loops import LOOPS
from ringlight.extensions.cluster.simulation.rates import SHARING
from ringlight.extensions.cluster.simulation.replay import Replay, replay
from ringlight.extensions.cluster.tiers import cluster_of
from ringlight.fabric.trees import leaf_spine


def tree(leaves: int, each: int, oversubscription: float = 4) -> Cluster:
    return cluster_of(
        leaf_spine(leaves, each, 1e9, oversubscription=oversubscription).fabric()
    )


def ran(
    cluster: Cluster,
    trace: JobTrace,
    policies: Policies,
    share: float = 0.3,
    **more: Any,
) -> Replay:
    return replay(
        cluster, trace, *shares_of(trace, [Sending(None, share)]), policies, **more
    )


def jobs(*rows: tuple[float, int, float]) -> JobTrace:
    """Arrival, GPUs, duration of each."""
    at, gpus, took = zip(*rows, strict=True)
    return JobTrace(
        np.array(at, dtype=float), np.array(gpus), np.array(took, dtype=float)
    )


def busy(seed: int, count: int = 400) -> JobTrace:
    return generated(count, 12, 300, {1: 4, 2: 2, 4: 2, 8: 2, 12: 1, 24: 1}, seed)


def test_every_name_has_its_function() -> None:
    assert tuple(PLACEMENTS) == get_args(Placement)
    assert tuple(QUEUES) == get_args(Queueing)
    assert tuple(SHARING) == tuple(LOOPS)
    # Those that train are replayed turn by turn, which no model of rates does.
    assert get_args(Sharing) == (*SHARING, "on-off")


# What the controller decides is decided GPU by GPU: ``test_cluster_by_gpu``.
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "light", [name for name in get_args(LightMoves) if name != "controller"]
)
@pytest.mark.parametrize(
    "placement",
    [name for name in get_args(Placement) if name not in ("blocks", "controller")],
)
def test_littles_law_and_what_is_done(placement: Placement, light: LightMoves) -> None:
    """All work is done, nobody runs faster than at ideal speed, and no GPU has two jobs at once."""
    cluster = tree(6, 16)
    for queueing, sharing in zip(get_args(Queueing), SHARING, strict=True):
        trace = busy(1)
        policies = Policies(queueing, placement, light, sharing, dark_s=2, every_s=600)
        found = ran(cluster, trace, policies)
        figures = measured(cluster, trace, found, 0.2).figures
        assert (figures["little_gap"] or 0.0) < 1e-9
        took = found.end_s - found.start_s
        assert np.all(took >= trace.duration_s * (1 - 1e-9))
        assert np.all(found.start_s >= trace.arrival_s)
        assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)
        assert found.held[-1] == pytest.approx(float(trace.gpus @ took), rel=1e-9)
        times = np.sort(np.concatenate([found.start_s, found.end_s]))
        running = [(found.start_s <= t) & (t < found.end_s) for t in times.tolist()]
        assert max(int(trace.gpus[one].sum()) for one in running) <= cluster.size


def test_the_same_arguments_give_the_same_replay_and_nothing_beside_it() -> None:
    one, other = (
        ran(tree(6, 16), busy(2), Policies(placement="random"), seed=7)
        for _ in range(2)
    )
    assert one.end_s.tolist() == other.end_s.tolist()
    third = ran(tree(6, 16), busy(2), Policies(placement="random"), seed=8)
    assert one.end_s.tolist() != third.end_s.tolist()


@pytest.mark.parametrize(
    ("servers", "load"), [(1, 0.5), (4, 0.8), (16, 0.8), (64, 0.8)]
)
def test_waits_are_those_of_erlangs_formula(
    servers: int, load: float, long: bool
) -> None:
    """Jobs of one GPU that arrive at random and take exponential times: M/M/c."""
    cluster = Cluster((servers,), (), ())
    waits = []
    seeds, student = (20, 2.093) if long else (10, 2.262)
    for seed in range(seeds):
        trace = generated(
            8_000 if servers < 16 else 5_000, 1 / (load * servers), 1.0, {1: 1.0}, seed
        )
        found = ran(cluster, trace, Policies())
        waits.append(float((found.start_s - trace.arrival_s)[1000:].mean()))
    offered = load * servers
    first = offered**servers / math.factorial(servers) / (1 - load)
    busy_ = first / (
        sum(offered**k / math.factorial(k) for k in range(servers)) + first
    )
    wanted = busy_ / (servers * (1 - load))
    # So many means, Student's t.
    half = student * float(np.std(waits, ddof=1)) / math.sqrt(len(waits))
    assert abs(float(np.mean(waits)) - wanted) <= half


def random_always(share: float, oversubscription: float) -> float:
    """Speed of jobs at random over a full cluster where everybody sends always: all bytes go over uplinks
    that are ``oversubscription`` times too slow."""
    return 1 / (1 - share + share * max(1.0, oversubscription))


@pytest.mark.parametrize(
    ("oversubscription", "goodput"), [(2, 0.769), (4, 0.526), (8, 0.323)]
)
def test_a_full_cluster_at_random_is_as_slow_as_its_uplinks(
    oversubscription: int, goodput: float
) -> None:
    assert random_always(0.3, oversubscription) == pytest.approx(goodput, abs=5e-4)


@pytest.mark.parametrize("oversubscription", [2, 4, 8])
def test_a_saturated_cluster_at_random(oversubscription: int) -> None:
    """Everybody sends always: 1 / ((1 - f) + f O), within 3 %."""
    cluster = tree(32, 64, oversubscription)
    trace = JobTrace(
        np.zeros(480),
        np.full(480, 64),
        np.random.default_rng(1).uniform(900, 1100, 480),
    )
    found = ran(cluster, trace, Policies(placement="random"))
    middle = float(np.nanmax(found.end_s)) / 2
    done, held = (
        float(np.interp(middle, found.steps_s, sums))
        for sums in (found.done, found.held)
    )
    assert done / held == pytest.approx(random_always(0.3, oversubscription), rel=0.03)


def test_rates_hold_between_events_and_change_with_them() -> None:
    """By hand: two jobs of four on two switches of four, the second a while after the first."""
    cluster = tree(2, 4, 2)  # a switch's uplinks carry two GPUs' rates
    trace = jobs((0, 3, 1000), (0, 3, 1000), (0, 2, 70))
    found = ran(cluster, trace, Policies(), 0.5)
    # The third is alone on the uplinks: its one GPU on each switch sends at its full rate.
    assert found.end_s.tolist() == [1000, 1000, 70]
    assert found.switches.tolist() == [1, 1, 2]
    # Two jobs with two GPUs on each switch put 4/3 each on uplinks of 2: both at 3/4 of the rate.
    spread = ran(
        tree(2, 4, 2), jobs((0, 4, 700), (0, 4, 700)), Policies(placement="spread"), 0.5
    )
    slow = 0.5 + 0.5 / 0.75
    assert spread.end_s.tolist() == pytest.approx([700 * slow] * 2)
    # And the longer one alone from when the other is over: 4/3 on 2 is no limit.
    two = ran(
        tree(2, 4, 2), jobs((0, 4, 700), (0, 4, 300)), Policies(placement="spread"), 0.5
    )
    assert two.end_s.tolist() == pytest.approx([300 * slow + 400, 300 * slow])


def test_queueing_policies() -> None:
    cluster = tree(1, 4)
    trace = jobs((0, 3, 100), (1, 4, 50), (2, 1, 90), (3, 1, 200), (4, 2, 10))
    start = {
        name: ran(cluster, trace, Policies(name)).start_s.tolist()
        for name in get_args(Queueing)
    }
    assert start["first-come"] == [0, 100, 150, 150, 150]
    # The third ends before the second can start; the fourth would not, and does not go ahead.
    assert start["backfill"] == [0, 100, 2, 150, 150]
    assert start["shortest-first"] == [0, 110, 160, 160, 100]


def test_a_backfill_knows_how_slow_jobs_are_that_share_links() -> None:
    """The first job of six GPUs puts 8/5 on uplinks of 1: it lasts 130 s, not 100. Who is over in 117 s goes
    ahead of one that wants all GPUs, and delays nobody."""
    trace = jobs((0, 6, 100), (1, 8, 10), (2, 2, 115))
    found = ran(tree(2, 4, 4), trace, Policies("backfill"), 0.5)
    assert found.end_s[0] == pytest.approx(130)
    assert found.start_s.tolist() == pytest.approx([0, 130, 2])


def test_placements() -> None:
    free = Free(tree(4, 8), np.random.default_rng(1))
    free.take({0: 6, 1: 3, 2: 8})
    assert free.counts == [2, 5, 0, 8]
    found = {
        name: place(free, 5)
        for name, place in PLACEMENTS.items()
        if name not in ("random", "controller", "blocks", "slices")
    }
    assert found == {
        "first-fit": {0: 2, 1: 3},
        "pack": {1: 5},
        "best-fit": {1: 5},
        "spread": {3: 4, 1: 1},
        "hilbert": {1: 5},
        "rings-aligned": {1: 5},
    }
    assert PLACEMENTS["pack"](free, 10) == {3: 8, 1: 2}
    assert PLACEMENTS["best-fit"](free, 10) == {3: 8, 0: 2}
    assert PLACEMENTS["rings-aligned"](free, 10) == {3: 8, 0: 2}
    assert PLACEMENTS["hilbert"](free, 10) == {1: 5, 3: 5}
    for wanted in (1, 7, 15):
        drawn = PLACEMENTS["random"](free, wanted)
        assert sum(drawn.values()) == wanted
        assert all(count <= free.counts[leaf] for leaf, count in drawn.items())


def test_best_fit_keeps_the_hole_that_the_next_job_needs() -> None:
    """What is left of a job of ten GPUs takes the hole of two, not two of five: the next job of five is whole
    on a switch, where ``pack`` scatters it over two."""
    # Jobs of 6, 3 and 8 GPUs leave holes of 2, 5 and 0, and one switch is free.
    trace = jobs((0, 6, 1000), (1, 3, 1000), (2, 8, 1000), (10, 10, 100), (11, 5, 100))
    placements: tuple[Placement, ...] = ("pack", "best-fit")
    switches = {}
    for placement in placements:
        switches[placement] = ran(
            tree(4, 8), trace, Policies(placement=placement)
        ).switches.tolist()
    assert switches == {"pack": [1, 1, 1, 2, 2], "best-fit": [1, 1, 1, 2, 1]}


def test_best_fit_stays_in_one_pod() -> None:
    cluster = Cluster(
        (4,) * 6,
        ((0, 1, 2, 3, 4, 5), (0, 0, 0, 1, 1, 1)),
        ((4.0,) * 6, (4.0,) * 2),
        tuple("abcdef"),
    )
    free = Free(cluster, np.random.default_rng(1))
    free.take({0: 1, 1: 3, 2: 1, 3: 4})
    assert free.counts == [3, 1, 3, 0, 4, 4]
    # A pod of seven and one of eight: seven fit the first, where the last GPU is taken from the hole of one.
    assert PLACEMENTS["best-fit"](free, 7) == {0: 3, 2: 3, 1: 1}
    assert PLACEMENTS["best-fit"](free, 5) == {0: 3, 2: 2}
    free.take({0: 1})
    assert PLACEMENTS["pack"](free, 4) == {4: 4}
    assert PLACEMENTS["best-fit"](free, 9) == {4: 4, 5: 4, 1: 1}
    assert PLACEMENTS["pack"](free, 9) == {4: 4, 5: 4, 2: 1}


def test_room_is_made_by_the_fewest_fibres() -> None:
    on = {0: {7: 2, 8: 4}, 1: {9: 5}, 2: {}}
    # Two more GPUs on switch 1 or 0: job 7 goes where it fits, rather than job 9.
    room = room_for(4, [2, 3, 2], [8, 8, 4], [0, 0, 0], on, running=True)
    assert room is not None
    assert (room.placed, room.move, room.fibres) == ({0: 4}, ((7, 0, 2, 2),), 2)
    # Idle fibres alone need ports to spare.
    assert room_for(4, [2, 3, 2], [8, 8, 4], [0, 0, 0], on, running=False) is None
    lent = room_for(4, [2, 3, 2], [8, 8, 4], [0, 1, 0], on, running=False)
    assert lent is not None
    assert (lent.placed, lent.lent, lent.fibres) == ({1: 4}, ((0, 1, 1),), 1)
    assert room_for(8, [2, 3, 2], [8, 8, 4], [0, 0, 0], on, running=True) is None


def test_light_brings_a_scattered_job_together_and_moved_jobs_wait() -> None:
    cluster = tree(2, 4, 4)
    # 1 GPU free on one switch, 2 on the other; the job of three would be on both.
    trace = jobs((0, 2, 500), (0, 3, 500), (1, 1, 500), (2, 2, 100))
    scattered = ran(cluster, trace, Policies(), 0.5)
    assert scattered.switches.tolist() == [1, 1, 1, 1]
    trace = jobs((0, 3, 500), (0, 2, 500), (1, 1, 500), (2, 2, 100))
    plain = ran(cluster, trace, Policies(placement="spread"), 0.5)
    moved = ran(
        cluster, trace, Policies(placement="spread", light="at-arrival", dark_s=5), 0.5
    )
    assert moved.regroupings >= 1
    assert moved.fibres >= 1
    assert moved.end_s[-1] - moved.start_s[-1] <= plain.end_s[-1] - plain.start_s[-1]
    waited = moved.dark_s > 0
    assert np.all(
        (moved.end_s - moved.start_s)[waited] >= trace.duration_s[waited] + 5 - 1e-9
    )


def test_light_that_must_pay_moves_less_and_gains_as_much() -> None:
    cluster, trace = tree(12, 16, 6), busy(5, 1500)
    plain, arrival, pays, ideal = (
        ran(cluster, trace, Policies(light=light, dark_s=20))
        for light in ("none", "at-arrival", "when-it-pays", "ideal")
    )
    mean = [
        float((one.end_s - trace.arrival_s).mean())
        for one in (plain, arrival, pays, ideal)
    ]
    assert mean[3] < mean[1] < mean[0]
    assert mean[2] < mean[0]
    assert 0 < pays.regroupings <= arrival.regroupings


def test_a_load_is_sustained_when_what_could_be_done_is() -> None:
    """A long job that comes late is no backlog; one that waits is."""
    trace = jobs((0, 4, 100), (50, 4, 1000), (100, 1, 1))
    clusters = (tree(2, 4), tree(2, 2))
    roomy, full = (
        measured(one, trace, ran(one, trace, Policies(), 0.0), 0.0).figures
        for one in clusters
    )
    assert roomy["sustained"] == pytest.approx(1.0)
    assert full["sustained"] == pytest.approx(400 / 600)


def test_a_job_that_is_too_large_is_refused_and_censored_jobs_are_counted() -> None:
    with pytest.raises(ValueError, match="a job wants 99 GPUs; the cluster has 8"):
        ran(tree(2, 4), jobs((0, 99, 1)), Policies())
    trace = jobs((0, 4, 100), (10, 4, 1000), (20, 8, 10))
    found = ran(tree(2, 4), trace, Policies(), until_s=500)
    figures = measured(tree(2, 4), trace, found, 0.0).figures
    assert (figures["jobs_counted"], figures["jobs_censored"]) == (1, 2)
    assert (figures["little_gap"] or 0.0) < 1e-9
