"""Jobs of containers with averagers: the bits of one process, and faults told with rank and cause."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import image_tag
from ringlight.containers.image_build import ensure_image
from ringlight.containers.worker.reference import train_in_one_process
from ringlight.containers.worker.spec import WorkerSpec
from ringlight.extensions.optinc.averager_place import AveragerPlace
from ringlight.testbed.faults import FaultClient
from tests.extensions.optinc.test_averagers import names, one_level, two_levels
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

TRAIN: dict[str, Any] = {
    "collective": "optinc", "gradient_bytes": 400_000, "compute_s": 0.0, "iterations": 3, "seed": 7,
}  # fmt: skip
#: 2 Mi values, a fifth of a second at 100 Mbit/s, for half a minute and more.
LONG = TRAIN | {"gradient_bytes": 2**23, "iterations": 200, "peer_timeout_s": 4.0}
#: A fault must have been told after this time, seconds: three times what a user is promised.
TOLD_S = 15.0
#: Jobs with these seeds find one rank odd, by its number and what is wrong with it.
ODD = {101: (1, "nan"), 102: (3, "inf"), 103: (2, "block")}
#: Python runs this before the worker. The image is the worker's but for it.
CUSTOM = """
import json, pathlib
spec = json.loads(pathlib.Path("/job/spec.json").read_text())
rank, what = {odd}.get(spec["seed"], (None, ""))
if spec["rank"] == rank and what == "block":
    import functools
    from ringlight.extensions.optinc import reducing as optinc
    optinc.UnitPlace = functools.partial(optinc.UnitPlace, block=512)
elif spec["rank"] == rank:
    from ringlight.containers.worker.model import Replica
    compute = Replica.compute
    def bad(self, iteration):
        loss = compute(self, iteration)
        if iteration == 2:
            self.buffer[4321] = float(what)
        return loss
    Replica.compute = bad
"""


def reference(servers: int, averager: AveragerPlace) -> dict[str, object]:
    peers = ("10.0.0.1",) * servers
    return train_in_one_process(
        WorkerSpec("x", 0, servers, peers, place=asdict(averager), **TRAIN)
    )


def emulated(raw: dict[str, Any]) -> dict[str, Any]:
    """At 100 Mbit/s, with the payload's scale of a ``Run``."""
    for link in raw["links"]:
        link["rate"] = "10 Gbit/s"
    return raw


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fabric", "servers", "decimals"),
    [
        pytest.param(one_level(4, network="trained"), 4, True, id="4"),
        pytest.param(one_level(8), 8, True, id="8"),
        pytest.param(two_levels(), 16, True, id="16 by Eq. 10"),
        pytest.param(two_levels(decimals=False), 16, False, id="16 by Eq. 9"),
    ],
)
def test_ranks_end_with_the_bits_of_one_process(
    fabric: dict[str, Any], servers: int, decimals: bool
) -> None:
    ensure_image(lambda _: None)
    ports = 4 if servers == 16 else servers
    expected = reference(servers, AveragerPlace("", 0, ports, 8, decimals))
    with closing(Run(emulated(fabric), runtime="docker")) as run:
        job = run.submit("train", names(servers), **TRAIN, hold=False)
        run.wait_state(job, "SUCCEEDED")
        done = run.events(job, "done")
    assert [event["parameters_sha256"] for event in done] == [
        expected["parameters_sha256"]
    ] * servers
    # 3 of 100,000 codes: each once up and once down, with headers and acknowledgements.
    carried = [
        count / (3 * 100_000) for event in done for count in event["wire_bytes"]["eth1"]
    ]
    assert 1 < min(carried) <= max(carried) < 1.05
    unlike = expected["unlike"]
    assert isinstance(unlike, float)
    assert unlike == (0 if decimals else pytest.approx(0.28, abs=0.01))


@pytest.fixture(scope="module")
def odd_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ensure_image(lambda _: None)
    where, tag = tmp_path_factory.mktemp("odd"), f"ringlight-odd:{os.getpid()}"
    (where / "sitecustomize.py").write_text(CUSTOM.format(odd=ODD))
    (where / "Dockerfile").write_text(
        f"FROM {image_tag()}\nCOPY sitecustomize.py /opt/ringlight/\n"
    )
    subprocess.run(
        ["docker", "build", "-q", "-t", tag, str(where)],
        check=True,
        capture_output=True,
    )
    yield tag
    subprocess.run(["docker", "rmi", "-f", tag], check=True, capture_output=True)


@pytest.fixture(scope="module")
def shared(odd_image: str) -> Iterator[Run]:
    options = ["--image", odd_image]
    with closing(Run(emulated(one_level(4)), runtime="docker", options=options)) as run:
        yield run


@pytest.fixture
def run(shared: Run) -> Iterator[Run]:
    yield shared
    shared.cancel_all()


def going(run: Run, **more: Any) -> str:
    """A job that trains."""
    job = run.submit("train", names(4), **LONG | more, hold=False)
    run.wait(lambda: len(run.events(job, "iteration")) >= 12, "the job does not train")
    return job


def pid_of(run: Run, job: str, rank: int) -> int:
    """Process id of a worker's container."""
    name = run.lab.container(f"{job}-{rank}")
    command = ["docker", "inspect", "-f", "{{.State.Pid}}", name]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )


def failed(run: Run, job: str, since: float) -> str:
    """Why a job has failed."""
    run.wait(
        lambda: run.job(job)["state"] == "FAILED", "the job has not failed", TOLD_S
    )
    assert time.monotonic() - since < TOLD_S
    return str(run.job(job)["error"])


def test_an_averager_that_is_killed_and_comes_back_changes_nothing(run: Run) -> None:
    job = going(run, iterations=20)
    before = json.loads((run.state / "inventory.json").read_text())["averagers"]["avg0"]
    os.kill(before["pid"], signal.SIGKILL)
    run.wait_state(job, "SUCCEEDED", 120)
    after = json.loads((run.state / "inventory.json").read_text())["averagers"]["avg0"]
    assert after["pid"] != before["pid"]
    assert json.loads(Path(after["status"]).read_text())["frames"] > 0
    spec = LONG | {"iterations": 20}
    spec.pop("peer_timeout_s")
    place = AveragerPlace("", 0, 4, 8)
    expected = train_in_one_process(
        WorkerSpec("x", 0, 4, ("10.0.0.1",) * 4, place=asdict(place), **spec)
    )
    hashes = {event["parameters_sha256"] for event in run.events(job, "done")}
    assert hashes == {expected["parameters_sha256"]}
    # What was sent once more is no payload.
    assert all(
        event["bytes_sent"] == event["bytes_received"]
        for event in run.events(job, "done")
    )


def test_an_averager_that_does_not_come_back_fails_the_job(run: Run) -> None:
    job = going(run)
    with FaultClient.of_inventory(run.state / "inventory.json") as faults:
        faults.kill("averager avg0")
        why = failed(run, job, time.monotonic())
        faults.restore("averager avg0")
        run.wait(
            lambda: all(fault.state != "in force" for fault in faults.faults()),
            "it is not back",
        )
    assert "the averager at 10.84.0." in why
    assert "not back in" in why


def test_a_rank_that_hangs_is_named(run: Run) -> None:
    job = going(run)
    os.kill(pid_of(run, job, 2), signal.SIGSTOP)
    why = failed(run, job, time.monotonic())
    assert ": rank 2: silent for" in why


def test_a_rank_that_dies_is_named(run: Run) -> None:
    job = going(run)
    os.kill(pid_of(run, job, 2), signal.SIGKILL)
    assert (
        failed(run, job, time.monotonic()) == "rank 2 on GPU g2 was killed by SIGKILL"
    )


@pytest.mark.parametrize("seed", sorted(ODD))
def test_what_cannot_be_averaged_is_averaged_by_nobody(run: Run, seed: int) -> None:
    rank, what = ODD[seed]
    began = time.monotonic()
    job = run.submit("train", names(4), **LONG | {"seed": seed}, hold=False)
    run.wait(lambda: run.job(job)["state"] == "FAILED", "the job has not failed", 60)
    started = run.events(job, "started")
    assert time.monotonic() - max([began, *(event["t"] for event in started)]) < TOLD_S
    said = (
        f"rank {rank} has blocks of 512 values in frames of 26624, others have blocks of 1024"
        if what == "block"
        else f"rank {rank}: value 4321 is {what}: only finite values can be averaged"
    )
    assert said in str(run.job(job)["error"])
    # Two iterations were right, and nobody has more.
    assert {event["i"] for event in run.events(job, "iteration")} <= {0, 1}
