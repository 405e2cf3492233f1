"""Seconds of whole iterations of models against closed forms, also on a simulated network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ringlight.extensions.models.catalogue import MODELS
from ringlight.extensions.models.layers import Transformer
from ringlight.extensions.models.parallelism import generate, rank_grid
from ringlight.extensions.models.settings import Parallel, Training
from ringlight.testbed.simulation.networks import IdealNetwork as PortsOnly
from ringlight.testbed.simulation.workload import WorkloadResult, simulate_workload
from ringlight.workloads.devices import DEVICES
from ringlight.workloads.graph import Workload
from tests.extensions.models.closed_forms import communication_bytes
from tests.extensions.models.ideal_network import ideal_run
from tests.extensions.models.iteration_time import IdealNetwork, iteration_time

A100 = DEVICES["a100"]
NO_TIME = IdealNetwork(1e30)


def transformer(name: str) -> Transformer:
    model = MODELS[name]
    assert isinstance(model, Transformer)
    return model


def iteration(
    model: Transformer, parallel: Parallel, training: Training, network: IdealNetwork
) -> float:
    workload = generate(model, parallel, training, A100)
    stages = rank_grid(parallel)[:, 0, 0, 0].tolist()
    return max(map(max, ideal_run(workload, network, stages)))


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "network"),
    [
        ("1f1b", 8, NO_TIME),
        ("1f1b", 32, IdealNetwork(50e9, 2e-6)),
        ("1f1b", 24, IdealNetwork(5e9, 5e-6)),
        ("gpipe", 8, IdealNetwork(12.5e9, 5e-6)),
    ],
)
def test_gpt3s_iteration_is_the_closed_forms(
    schedule: str, micro_batches: int, network: IdealNetwork
) -> None:
    """dp 8, tp 8, pp 16: one rank of each stage stands for those that are alike."""
    model, parallel = transformer("gpt3-175b"), Parallel(dp=8, tp=8, pp=16)
    training = Training(micro_batches=micro_batches, schedule=schedule)
    form = iteration_time(model, parallel, training, A100, network)
    assert iteration(model, parallel, training, network) == pytest.approx(
        form.seconds, rel=1e-3
    )


@pytest.mark.parametrize(
    ("name", "parallel", "training"),
    [
        ("llama3-70b", Parallel(8, 8, 4), Training(micro_batches=8, gradient_bytes=4)),
        ("gpt2-medium", Parallel(8), Training(micro_batches=2)),
        ("gpt2-medium", Parallel(8), Training(micro_batches=2, zero=1, recompute=True)),
        ("llama2-7b", Parallel(4, 2), Training(zero=1, sequence_parallel=True)),
        ("mixtral-8x22b", Parallel(2, 8, 8, 8), Training(micro_batches=16, sequence=4096)),
        (
            "mixtral-8x7b", Parallel(2, 4, 4, 8),
            Training(micro_batches=8, sequence=4096, sequence_parallel=True),
        ),
    ],
)  # fmt: skip
def test_iterations_are_the_closed_forms(
    name: str, parallel: Parallel, training: Training
) -> None:
    model, network = transformer(name), IdealNetwork(12.5e9, 5e-6)
    form = iteration_time(model, parallel, training, A100, network)
    assert iteration(model, parallel, training, network) == pytest.approx(
        form.seconds, rel=5e-3
    )


@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [
        ("1f1b", 1),
        ("gpipe", 1),
        ("interleaved", 1),
        ("interleaved", 2),
        ("interleaved", 4),
    ],
)
def test_the_bubble_of_equal_stages_is_the_papers(schedule: str, virtual: int) -> None:
    """Without the output stages are equal: (p - 1) / (v m) of the useful time."""
    model = replace(transformer("llama2-7b"), vocabulary=0)
    training = Training(micro_batches=8, schedule=schedule, virtual_stages=virtual)
    workload = generate(
        model, Parallel(pp=4), training, replace(A100, memory_bytes_per_s=1e30)
    )
    useful = float(np.nansum(workload.programs[0].seconds))
    total = max(map(max, ideal_run(workload, NO_TIME)))
    assert total / useful - 1 == pytest.approx((4 - 1) / (virtual * 8), rel=1e-9)


def test_what_the_closed_form_does_not_cover_is_refused() -> None:
    for name, training in (("bert-large", Training()), ("llama2-7b", Training(zero=3))):
        with pytest.raises(ValueError, match="the closed form covers decoders"):
            iteration_time(transformer(name), Parallel(2), training, A100, NO_TIME)


def simulated(workload: Workload, rate_bps: float) -> WorkloadResult:
    """Every rank with a port of its own, which all that it does at once shares; ranks alike taken as one."""
    gpus = [f"g{rank}" for rank in range(workload.ranks)]
    return simulate_workload(
        PortsOnly(gpus, rate_bps), gpus, workload, fidelity="classes"
    )


@pytest.mark.parametrize("rate_bps", [1e18, 2.4e12, 4e11])
def test_gpt3s_iteration_is_simulated_within_a_percent(rate_bps: float) -> None:
    """2.4 Tbit/s is what NVLink of an A100 has each way."""
    model, parallel, training = (
        transformer("gpt3-175b"),
        Parallel(8, 8, 16),
        Training(micro_batches=16),
    )
    form = iteration_time(
        model, parallel, training, A100, IdealNetwork(rate_bps / 8, shared=True)
    )
    found = simulated(generate(model, parallel, training, A100), rate_bps)
    assert found.total_s == pytest.approx(form.seconds, rel=0.01)


def test_mixtral_moves_what_the_closed_forms_say_and_takes_as_long() -> None:
    """1,024 ranks, over the ports of a simulated network."""
    model, parallel = transformer("mixtral-8x22b"), Parallel(dp=2, tp=8, pp=8, ep=8)
    training = Training(micro_batches=8, sequence=4096)
    found = simulated(generate(model, parallel, training, A100), 400e9)
    sent = sum(
        size
        for (way, _), size in zip(found.link_keys, found.link_bytes, strict=True)
        if way == "from"
    )
    assert sent == pytest.approx(
        sum(communication_bytes(model, parallel, training).values()), rel=1e-9
    )
    form = iteration_time(
        model, parallel, training, A100, IdealNetwork(50e9, shared=True)
    )
    assert found.total_s == pytest.approx(form.seconds, rel=0.01)
