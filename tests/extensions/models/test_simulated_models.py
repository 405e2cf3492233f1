"""Workloads of models in virtual time: the two ways against each other, and against closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringlight.extensions.models.catalogue import model_named
from ringlight.extensions.models.parallelism import generate
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.testbed.simulation.networks import IdealNetwork
from ringlight.testbed.simulation.workload import simulate_workload
from ringlight.workloads.devices import device_named
from ringlight.workloads.graph import Split
from tests.extensions.models.iteration_time import IdealNetwork as Closed
from tests.extensions.models.iteration_time import iteration_time
from tests.unit.test_simulation_workload import HOWS, RATE, ideal, names


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_both_ways_agree_on_a_generated_workload(schedule: str) -> None:
    """Experts, tensor and pipeline parallelism, with gradients beside them, on 16 GPUs."""
    training = Training(
        micro_batches=4,
        sequence=2048,
        schedule=schedule,
        virtual_stages=2 if schedule == "interleaved" else 1,
    )
    model = replace(model_named("mixtral-8x7b"), layers=4)  # type: ignore[type-var]
    workload = generate(
        model, Parallel(dp=2, tp=2, pp=2, ep=2), training, device_named("a100")
    )
    for network in (
        ideal(16),
        IdealNetwork(names(16), RATE, per_server=2, server_bps=10 * RATE),
    ):
        exact, classes = (
            simulate_workload(network, names(16), workload, fidelity=how)
            for how in HOWS
        )
        assert classes.total_s == pytest.approx(exact.total_s, rel=1e-9)
        assert exact.link_bytes == pytest.approx(classes.link_bytes, rel=1e-9)
        assert set(exact.purposes) == {"tp", "ep", "pp", "dp", "edp"}


def test_gpt3_takes_its_closed_form() -> None:
    """1,024 ranks in servers, so that collectives of different groups are in nobody's way."""
    model, parallel, training = (
        model_named("gpt3-175b"),
        Parallel(dp=8, tp=8, pp=16),
        Training(micro_batches=32),
    )
    workload = generate(model, parallel, training, device_named("a100"))
    wanted = iteration_time(
        model, parallel, training, device_named("a100"), Closed(4 * RATE / 8)
    )  # type: ignore[arg-type]
    network = IdealNetwork(names(1024), 4 * RATE, per_server=8, server_bps=4 * RATE)
    found = simulate_workload(network, names(1024), workload, fidelity="classes")
    assert len(found.end_s[0]) == 16
    assert found.total_s == pytest.approx(wanted.seconds, rel=0.01)


def test_unequal_splits_are_drawn_alike_both_ways() -> None:
    model = replace(model_named("mixtral-8x7b"), layers=2)  # type: ignore[type-var]
    training = Training(micro_batches=2, sequence=2048, split=Split(skew=1.0))
    workload = generate(model, Parallel(ep=8), training, device_named("a100"))
    equal = generate(
        model, Parallel(ep=8), replace(training, split=Split()), device_named("a100")
    )
    exact, classes = (
        simulate_workload(ideal(8), names(8), workload, fidelity=how) for how in HOWS
    )
    assert exact.link_bytes == pytest.approx(classes.link_bytes, rel=1e-9)
    assert classes.total_s == pytest.approx(exact.total_s, rel=0.05)
    assert (
        classes.total_s
        > 1.05
        * simulate_workload(ideal(8), names(8), equal, fidelity="classes").total_s
    )
