"""An averager beside the ring that adds up whole numbers: the same means; and its own exchange of scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import parse_spec
from ringlight.experiments.analysis.metrics import Context, rows_of
from ringlight.experiments.backends.simulation.backend import SimulationBackend
from ringlight.experiments.record.events import WorkerDone
from ringlight.experiments.record.runs import runs_of
from ringlight.experiments.runner.experiment import run_alone
from ringlight.extensions.optinc.averaging import scale_steps
from ringlight.extensions.optinc.unit.averaging import Coding, goal
from ringlight.extensions.optinc.unit.gradients import exact
from ringlight.fabric.whole_numbers.means import mean_by
from ringlight.fabric.whole_numbers.sums import mean
from tests.unit.test_ring_of_bits import FOUR, RANKS, plans_of, scenario
from tests.unit.test_schedules import check_spoilt, check_sums
from tests.unit.test_worker_ring_of_bits import gradients, run


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([8, 16]),
    ranks=st.integers(2, 5),
)
def test_the_ring_has_the_averagers_mean(seed: int, bits: int, ranks: int) -> None:
    vectors = gradients(seed, ranks, 3000)
    held, _ = run(bits, vectors)
    expected = mean_by(exact(Coding(bits, ranks)), vectors, bits) * np.float32(ranks)
    assert {vector.tobytes() for vector in held} == {expected.tobytes()}


@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from([8, 16]),
    ranks=st.integers(1, 16),
)
def test_the_mean_of_a_sum_of_codes_is_the_unit_s(
    seed: int, bits: int, ranks: int
) -> None:
    codes = np.random.default_rng(seed).integers(
        0, 2**bits, (ranks, 200), dtype=np.uint32
    )
    sums = codes.sum(axis=0, dtype=np.uint32)
    assert np.array_equal(mean(sums, bits, ranks), goal(codes, Coding(bits, ranks)))


def test_a_training_ends_as_by_way_of_the_ring() -> None:
    job = {
        "job": "a",
        "rank": 0,
        "world_size": 4,
        "peers": [f"10.82.0.{i + 1}" for i in range(4)],
    }
    job |= {"gradient_bytes": 4 * 4 * 1024 * 3, "iterations": 6, "batch": 16}
    place = {"address": "10.84.0.1:7070", "port": 0, "ports": 4, "bits": 8}
    by_ring = train_in_one_process(parse_spec(job | {"collective": "ring-bits-8"}))
    averaged = train_in_one_process(
        parse_spec(job | {"collective": "optinc", "place": place})
    )
    assert averaged == by_ring | {"unlike": 0.0}


def test_every_scale_is_gathered_exactly_once() -> None:
    check_sums(scale_steps)


@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
def test_an_off_by_one_of_the_scales_is_noticed(ranks: int) -> None:
    check_spoilt("scales", scale_steps(ranks))


@pytest.mark.parametrize(
    ("collective", "sent", "even"),
    [("ring-bits-8", 1.6875, 1.5), ("ring", 1.6875 / 4, None)],
)
def test_what_is_sent_over_payload_is_given_as_the_paper_counts_too(
    collective: str, sent: float, even: float | None
) -> None:
    """Workers send sums of 10 bits and means of 8, and nothing else."""
    (plan,) = plans_of(scenario(FOUR, collective, jobs={"train": {"ranks": RANKS}}))
    records = list(run_alone(SimulationBackend(), plan)[0])
    values = plan.jobs[0].loop.gradient_bytes / 4
    count = round(plan.jobs[0].iterations * values * 0.75 * (10 + 8) / 8)
    wire = {"eth0": [count + 1000, count + 2000]}
    more = {"t": max(record.t for record in records), "run": plan.name, "job": "train"}
    done = [
        WorkerDone(**more, rank=rank, bytes_sent=count - rank, wire_bytes=wire)
        for rank in range(4)
    ]
    (run,) = runs_of([*records, *done], [plan])
    rows = {
        row.metric: row.value
        for row in rows_of(Context(run, "measured"))
        if row.subject == "job train"
    }
    assert rows["sent_over_payload"] == pytest.approx(sent, rel=1e-6)
    assert rows.get("sent_over_payload_even") == (
        None if even is None else pytest.approx(even, rel=1e-6)
    )
    assert rows["wire_over_payload"] == pytest.approx(sent * (count + 2000) / count)
