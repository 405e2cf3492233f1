"""WRHT on the ring's network."""

from __future__ import annotations

import dataclasses

import pytest

from ringlight.extensions.wrht import wdm
from ringlight.extensions.wrht.network import RingNetwork
from ringlight.extensions.wrht.schedule import wrht
from ringlight.fabric.schedules import ring
from ringlight.fabric.steps import Step, compact, frozen, frozen_bool
from ringlight.testbed.simulation.maxmin import rates
from ringlight.testbed.simulation.phases import StepCost, synchronous


def test_wrht_against_the_formula() -> None:
    fabric, around = wdm.wdm_ring("n", 1024, 64, 40e9)
    network = RingNetwork(fabric, around)
    d, a, b = 102.2e6, 25e-6, 40e9
    for top, theta in (("collect", 4), ("exchange", 3)):
        steps = wrht(1024, 64, top=top)  # type: ignore[arg-type]
        found = synchronous(network, around.nodes, steps, d, StepCost(a))
        assert found.total_s == pytest.approx(theta * (d * 8 / b + a), rel=1e-12)
    on_one = synchronous(
        network, around.nodes, wdm.on_ring(ring(1024), 64), d, StepCost(a)
    )
    assert on_one.total_s == pytest.approx(2 * 1023 * (d / 1024 * 8 / b + a), rel=1e-12)
    striped = synchronous(
        network, around.nodes, wdm.striped(compact(ring(1024)), 64), d, StepCost(a)
    )
    assert striped.total_s == pytest.approx(
        2 * 1023 * (d / 1024 * 8 / (64 * b) + a), rel=1e-12
    )
    # A ring keeps its circuits: where only new ones take time, it pays once.
    kept = synchronous(
        network,
        around.nodes,
        wdm.on_ring(ring(1024), 64),
        d,
        StepCost(a, "changed-only"),
    )
    assert kept.set_up_s == pytest.approx(a)
    assert synchronous(
        network, around.nodes, wrht(1024, 64), d, StepCost(a, "changed-only")
    ).set_up_s == pytest.approx(4 * a)


def test_lightpaths_on_a_ring_pass_their_segments() -> None:
    fabric, around = wdm.wdm_ring("n", 9, 1, 40e9)
    network = RingNetwork(fabric, around, segment_s=5e-9, latency_s=1e-6)
    first = next(iter(wrht(9, 1)))
    routes = network.routes(around.nodes, first)
    assert rates(routes.offsets, routes.links, network.capacity_bps) == pytest.approx(
        [40e9] * 6
    )
    assert routes.latency_s == pytest.approx([1.005e-6] * 6)
    assert network.key(int(routes.links[0])) == ("n0", "n1", 0)
    assert network.key(int(routes.links[1])) == ("n2", "n1", 0)


def test_a_ring_of_wavelengths_names_what_does_not_fit() -> None:
    fabric, around = wdm.wdm_ring("n", 9, 1, 40e9)
    network = RingNetwork(fabric, around)
    with pytest.raises(ValueError, match="ring n: 2 ranks, but it has 9 nodes"):
        network.routes(around.nodes[:2], next(iter(wrht(9, 1))))
    step = Step(
        *(frozen(a) for a in ([0, 1], [2, 2], [0, 0], [1, 1])),
        "reduce",
        frozen([0, 0]),
        frozen_bool([1, 1]),
    )
    with pytest.raises(
        ValueError, match="step 0: segment 1-2 carries wavelength 0 twice"
    ):
        network.routes(around.nodes, step)
    with pytest.raises(ValueError, match="wavelength 3 does not fit; the ring has 1"):
        network.routes(
            around.nodes, dataclasses.replace(step, wavelengths=frozen([0, 3]))
        )
    with pytest.raises(ValueError, match="rank 8: there is no GPU n9"):
        network.routes((*around.nodes[:8], "n9"), step)
    with pytest.raises(ValueError, match="have no wavelengths"):
        network.routes(around.nodes, next(iter(ring(9))))
