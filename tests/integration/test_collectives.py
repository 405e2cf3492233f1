"""Every collective in real containers over a packet switch gives the bits that one process gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ringlight.containers.image_build import ensure_image
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import WorkerSpec
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

#: Jobs that run at the same time, with their numbers of ranks.
PAIRS = [
    {"ring": 5, "halving-doubling": 6},
    {"recursive-doubling": 5, "hierarchical-ring": 6},
    {"binary-tree": 5, "bidirectional-ring": 6},
    {"coprime-rings-3": 5, "bidirectional-hierarchical-ring": 6},
    {"coprime-rings": 5},
]
GPUS = [f"g{i}" for i in range(11)]
STAR: dict[str, Any] = {
    "servers": {"s0": {"gpus": dict.fromkeys(GPUS, "p100")}},
    "packet_switches": {"tor0": {"ports": len(GPUS)}},
    "links": [
        {"ends": [gpu, f"tor0:{port}"], "rate": "10 Gbit/s"}
        for port, gpu in enumerate(GPUS, start=1)
    ],
}
TRAIN = {"gradient_bytes": 96400, "compute_s": 0.0, "iterations": 3, "seed": 7}


@pytest.fixture(scope="module")
def shared() -> Iterator[Run]:
    ensure_image(lambda _: None)
    with closing(Run(STAR, runtime="docker")) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    """The run with no job going on."""
    yield shared
    shared.cancel_all()


def in_one_process(name: str, size: int) -> object:
    """The hash of the parameters that one process ends with; numpy and BLAS are the host's."""
    spec = WorkerSpec("x", 0, size, ("10.0.0.1",) * size, collective=name, **TRAIN)
    return train_in_one_process(spec)["parameters_sha256"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_containers_get_the_bits_that_one_process_gets(
    run: Run, pair: dict[str, int]
) -> None:
    check_bits(run, pair)


def check_bits(run: Run, pair: dict[str, int]) -> None:
    """Check what jobs of these collectives, which run at the same time, end with."""
    free, jobs = list(GPUS), {}
    for name, size in pair.items():
        ranks, free = free[:size], free[size:]
        jobs[name] = run.submit(f"ranks{size}", ranks, **TRAIN, collective=name)
    for job in jobs.values():
        run.wait_state(job, "READY")
    run.release(*jobs.values())
    for name, job in jobs.items():
        run.wait_state(job, "SUCCEEDED")
        found = [event["parameters_sha256"] for event in run.events(job, "done")]
        assert found == [in_one_process(name, pair[name])] * pair[name]


def test_containers_lend_their_memory(run: Run) -> None:
    """What lends is no system call that Docker refuses."""
    worker = TRAIN | {"gradient_bytes": 6_000_000}
    job = run.submit("lends", GPUS[:3], **worker, collective="ring", hold=False)
    run.wait_state(job, "SUCCEEDED")
    done = run.events(job, "done")
    assert len(done) == 3
    assert all(event["bytes_lent"] == event["bytes_sent"] > 0 for event in done)
