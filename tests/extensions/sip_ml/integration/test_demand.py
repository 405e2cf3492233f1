"""Jobs on interconnects whose light is divided by demand: real switches, O-NICs and workers, driven through
the controller's REST API."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ringlight.workloads.graph import Collective
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.integration.test_controller_jobs import Run

pytestmark = pytest.mark.root

RANKS = ["g0", "g1", "g2", "g3"]
GPUS = {"gpus": 4, "gpu": "a100", "rate": "20 Gbit/s"}
#: Divided so seldom that a decision costs little of it; TCP is patient enough for all that is held.
AGAIN = {"interval": "200 ms", "dark": "50 ms"}
FABRICS: dict[str, dict[str, Any]] = {
    "planes": {"kind": "parallel-ocs", "switches": 2, **GPUS, **AGAIN},
    "ring": {"kind": "demand-ring", "wavelength": "5 Gbit/s", **GPUS, **AGAIN},
}


class DemandRun(Run):
    def plane(self) -> dict[str, Any]:
        (plane,) = self.api.get("/v1/planes").json()
        return dict(self.api.get(f"/v1/planes/{plane['name']}").json())

    def decisions(self) -> list[dict[str, Any]]:
        return list(self.api.get(f"/v1/planes/{self.plane()['name']}/changes").json())


def graph() -> bytes:
    """Everybody sends to everybody in turn: to the next round the ring, in pairs, and all at once."""
    book = Book()
    everybody, pairs = book.group(range(4)), [book.group((0, 2)), book.group((1, 3))]
    writer = Writer(book)
    layer = writer.compute("layer", seconds=0.02)
    writer.collective(
        "gradients",
        Collective("all-reduce", "ring"),
        1_000_000,
        0,
        stream="dp",
        after=[layer],
    )
    writer.collective(
        "tokens",
        Collective("all-to-all", "direct"),
        1_000_000,
        1,
        stream="ep",
        after=[layer],
    )
    writer.send("activations", 500_000, 0, stream="out", after=[layer])
    writer.receive("activations", 500_000, 1, stream="in")
    slots = [[everybody, pairs[rank % 2]] for rank in range(4)]
    peers = [[(rank + 1) % 4, (rank - 1) % 4] for rank in range(4)]
    return pack(book.workload("graph", [writer.done()], [0] * 4, slots, peers))


@pytest.fixture(scope="module", params=FABRICS)
def shared(request: pytest.FixtureRequest) -> Iterator[DemandRun]:
    fabric = {"interconnect": FABRICS[request.param]}
    with closing(DemandRun(fabric, options=["--rto-min", "1"])) as run:
        yield run


@pytest.fixture
def run(shared: DemandRun) -> Iterator[DemandRun]:
    """The run with no job going on."""
    yield shared
    shared.cancel_all()
    shared.wait(lambda: idle(shared), "light was left")


def idle(run: DemandRun) -> bool:
    plane = run.plane()
    if plane["own"]["job"] is not None:
        return False
    names = [switch["name"] for switch in plane["switches"]]
    return not any(
        run.api.get(f"/v1/optical-switches/{name}/cross-connects").json()
        for name in names
    )


def submit(run: DemandRun, name: str, iterations: int) -> str:
    packed = graph()
    digest = hashlib.sha256(packed).hexdigest()
    kind = {"content-type": "application/octet-stream"}
    answer = run.api.put(f"/v1/workloads/{digest}", content=packed, headers=kind)
    assert answer.status_code == 200, answer.text
    wanted = {
        "name": name,
        "ranks": RANKS,
        "workload": "graph",
        "graph": digest,
        "hold": True,
    }
    answer = run.api.post(
        "/v1/jobs", json={**wanted, "iterations": iterations, "peer_timeout_s": 60}
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def check_done(run: DemandRun, job: str, iterations: int) -> None:
    for done in run.events(job, "done"):
        assert done["results_checked"] >= 2 * iterations
    assert len(run.events(job, "iteration")) == 4 * iterations


def check_light(run: DemandRun, before: dict[str, int], decisions: int) -> None:
    """Nothing meets the dark or other light, but a frame that a busy machine held up for longer than the
    guard of a decision."""
    after = run.light_lost()
    assert sum(after.values()) - sum(before.values()) <= decisions


def test_a_graph_is_executed_while_its_light_follows_what_is_left(
    run: DemandRun,
) -> None:
    before = run.light_lost()
    red = submit(run, "red", 6)
    job = run.wait_state(red, "READY")
    plane = run.plane()
    there = plane["own"]
    assert job["plane"] == plane["name"]
    assert plane["jobs"] == [red]
    assert (there["job"], there["mode"], there["trouble"]) == (red, "again", None)
    assert there["lightpaths"].keys() == set(RANKS)
    lit = {
        (a, b, None, count)
        for a, peers in there["lightpaths"].items()
        for b, count in peers.items()
    }
    assert run.lightpaths() == lit
    switch = plane["switches"][0]["name"]
    refused = run.api.put(
        f"/v1/optical-switches/{switch}/cross-connects/1", json={"egress": 6}
    )
    assert refused.status_code in (409, 422)
    run.release(red)
    run.wait_state(red, "SUCCEEDED")
    check_done(run, red, 6)
    decisions = run.decisions()
    assert len([one for one in decisions if one["left_bytes"] > 0]) >= 3
    assert {one["problem"] for one in decisions} == {None}
    assert all(
        one["lightpaths"].keys() <= set(RANKS) and one["lightpaths"]
        for one in decisions
    )
    assert all(one["dark_s"] >= 0.05 for one in decisions)
    check_light(run, before, len(decisions))


def test_a_controller_that_dies_is_taken_over_from_in_the_middle_of_a_job(
    run: DemandRun,
) -> None:
    before = run.light_lost()
    red = submit(run, "red", 8)
    run.wait_state(red, "READY")
    run.release(red)
    run.wait(lambda: len(run.events(red, "iteration")) >= 4, "no iterations")
    # And one in the middle of which it may die.
    first = len(run.decisions()) + 1
    run.kill_controller()
    # It is away for longer than a decision and what follows from it take.
    time.sleep(1.0)
    run.start_controller()
    run.wait_state(red, "SUCCEEDED")
    check_done(run, red, 8)
    decisions = run.decisions()
    assert decisions
    check_light(run, before, first + len(decisions))
