"""Clusters whose switches light joins pair by pair: circuits, what jobs put on them, and dividing them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ringlight.experiments.language.expand import parse
from ringlight.experiments.language.text import ScenarioError
from ringlight.extensions.cluster.clusters import FaultPolicies, LitCluster, Policies
from ringlight.extensions.cluster.fault_traces import FaultTrace
from ringlight.extensions.cluster.job_traces import (
    JobTrace,
    Sending,
    generated,
    shares_of,
)
from ringlight.extensions.cluster.plan import trace_of
from ringlight.extensions.cluster.simulation.breaking import ClusterFaults
from ringlight.extensions.cluster.simulation.measures import measured
from ringlight.extensions.cluster.simulation.replay import Replay, replay

TEXT = """
name: lit
description: Switches that light joins.
fabric:
  optical_switches: {ocs0: {size: PORTS, profile: mems}}
  leaf_spine: {leaves: LEAVES, spines: SPINES, gpus_per_leaf: 4, gpu: g, rate: 10 Gbit/s, core: ocs0}
jobs:
  trace:
    generate: {jobs: 200, gap: 20 s, duration: 300 s, sizes: {1: 2, 4: 2, 6: 2, 10: 1}}
    sends: 0.5
    MORE
"""


def cluster(leaves: int, spines: int, more: str = "light: at-arrival") -> LitCluster:
    text = (
        TEXT.replace("LEAVES", str(leaves))
        .replace("SPINES", str(spines))
        .replace("MORE", more)
    )
    plan = trace_of(
        parse(text.replace("PORTS", str(leaves * spines)), "lit.yaml").plans[0]
    )
    assert isinstance(plan.cluster, LitCluster)
    return plan.cluster


def jobs(*rows: tuple[float, int, float]) -> JobTrace:
    at, gpus, took = zip(*rows, strict=True)
    return JobTrace(
        np.array(at, dtype=float), np.array(gpus), np.array(took, dtype=float)
    )


def ran(on: LitCluster, trace: JobTrace, policies: Policies, **more: Any) -> Replay:
    return replay(on, trace, *shares_of(trace, [Sending(None, 0.5)]), policies, **more)


@pytest.mark.parametrize(("leaves", "uplinks"), [(4, 6), (5, 4), (8, 8)])
def test_circuits_are_even_at_first(leaves: int, uplinks: int) -> None:
    found = cluster(leaves, uplinks)
    assert (found.joined, found.ports) == (tuple(range(leaves)), uplinks)
    assert found.circuit == pytest.approx(4 / uplinks)
    assert max(found.lit_circuits) - min(found.lit_circuits) <= 1
    counted = zip(found.pairs, found.lit_circuits, strict=True)
    ends = Counter(end for pair, count in counted for end in pair * count)
    assert max(ends.values()) <= uplinks
    assert found.links.tolist() == pytest.approx(
        [count * 4 / uplinks for count in found.lit_circuits]
    )


def test_what_a_job_puts_on_circuits() -> None:
    found = cluster(4, 3)
    # Two GPUs on each of two switches: each sends a third of its rate to either on the other.
    assert found.loads({0: 2, 2: 2}, False) == [(1, pytest.approx(4 / 3))]
    assert found.loads({0: 1, 1: 1, 3: 2}, True) == [(0, 1.0), (4, 1.0), (2, 1.0)]
    assert found.loads({0: 1, 1: 1}, True) == [(0, 1.0)]
    assert found.loads({3: 4}, False) == []


def test_light_is_divided_by_what_jobs_send() -> None:
    """By hand: two jobs on two switches each, with three circuits at every switch that carry 4/3 each."""
    on = cluster(4, 3)
    trace = jobs((0, 8, 600), (0, 8, 600))
    still, divided = (
        ran(on, trace, Policies(light=light, dark_s=5))
        for light in ("none", "at-arrival")
    )
    # Each job puts 4 x 4 / 7 on its pair: one circuit of 4/3 stays, or all three are lit there.
    slow = 0.5 + 0.5 * (16 / 7) / (4 / 3)
    assert still.end_s.tolist() == pytest.approx([600 * slow] * 2)
    # One circuit of each pair was there before, so that nobody is dark.
    assert divided.end_s.tolist() == pytest.approx([600] * 2)
    assert divided.fibres == 4
    assert divided.dark_s.tolist() == [0, 0]
    # A third job comes whose switches have no circuit then: it waits for it.
    third = ran(
        on,
        jobs((0, 6, 600), (0, 6, 600), (9, 4, 100)),
        Policies(light="at-arrival", dark_s=5),
    )
    assert third.dark_s.tolist() == [0, 0, 5]
    assert third.end_s[2] == pytest.approx(9 + 5 + 100, rel=0.2)


@pytest.mark.parametrize("policy", ["wait", "restart", "spare"])
def test_a_job_that_stood_still_gets_light_again(policy: Any) -> None:
    """A server of its first switch fails; meanwhile another job gets all circuits of its second."""
    trace = jobs((0, 6, 600), (0, 4, 3000), (150, 6, 600))
    outage = FaultTrace(np.array([0]), np.array([100.0]), np.array([200.0]), 4, 1e4)
    faults = ClusterFaults(
        outage, FaultPolicies(policy, "switch", 4, 4, checkpoint_s=10, restart_s=0)
    )
    found = ran(
        cluster(4, 3), trace, Policies(light="at-arrival", dark_s=5), faults=faults
    )
    assert found.hit == 1
    assert np.all(np.isfinite(found.end_s))
    assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)
    if policy != "restart":
        assert found.dark_s.tolist() == [5, 0, 5]


@pytest.mark.parametrize("light", ["none", "at-arrival", "at-intervals", "ideal"])
@pytest.mark.parametrize("sharing", ["always", "interleaved", "duty"])
def test_all_work_is_done(light: Any, sharing: Any) -> None:
    on, trace = cluster(6, 8), generated(400, 10, 300, {1: 2, 4: 2, 6: 2, 10: 1}, 4)
    found = ran(
        on, trace, Policies(light=light, sharing=sharing, dark_s=2, every_s=500)
    )
    assert (measured(on, trace, found, 0.1).figures["little_gap"] or 0.0) < 1e-9
    assert found.done[-1] == pytest.approx(trace.work, rel=1e-9)
    assert np.all(found.end_s - found.start_s >= trace.duration_s * (1 - 1e-9))
    assert (found.fibres > 0) == (light in ("at-arrival", "at-intervals"))


@pytest.mark.parametrize(
    ("spines", "more", "said"),
    [
        (
            2,
            "light: at-arrival",
            "fabric: each of 4 parts has 2 circuits, too few to reach all others",
        ),
        (
            3,
            "light: when-it-pays",
            "jobs.trace.light: when-it-pays: light joins switches here",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    spines: int, more: str, said: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        cluster(4, spines, more)
    assert said in str(error.value)
