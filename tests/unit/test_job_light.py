"""The seam between jobs and light: who is asked, who lights, and what a restart takes over."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import ConflictError, ControllerError, InvalidError, UnavailableError
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.light import Kind, Place
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.workloads import WorkloadFiles
from ringlight.controller.rest.requests import JobRequest
from ringlight.controller.store import Store
from ringlight.fabric.schema import FabricSpec, build_fabric
from ringlight.workloads.graph import Book, Writer
from ringlight.workloads.packed import pack
from tests.unit.test_controller_job import ScriptedAgent
from tests.unit.workloads import put

ONIC = {"gpu": "titan-v", "rate": "100 Gbit/s"}
FABRIC = build_fabric(
    FabricSpec.model_validate(
        {
            "grids": {"n": {"rows": 1, "columns": 4, **ONIC}},
            "rings": {"r": {"nodes": 3, "wavelengths": 1, **ONIC}},
        }
    )
)
NODES = {"grid": FABRIC.grids["n"].nodes, "ring": FABRIC.rings["r"].nodes}


@dataclass(frozen=True)
class Beam:
    place: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ("wss",)


class Lamp:
    """Lights jobs on one place, and notes what it was told. ``refusal``: of every job it plans."""

    whole = False

    def __init__(self, kind: Kind) -> None:
        self.name = {"grid": "n", "ring": "r", "interconnect": "sky"}[kind]
        self.nodes = NODES["grid" if kind == "interconnect" else kind]
        self.refusal: ControllerError | None = None
        self.dark: ControllerError | None = None
        self.problems: list[str] = []
        self.told: list[tuple[str, str]] = []

    def plan(
        self,
        wanted: Sequence[str] | int,
        settings: Mapping[str, Any],
        holders: Mapping[str, str],
        place: str | None = None,
    ) -> Beam | None:
        if self.refusal is not None:
            raise self.refusal
        nodes = self.nodes[:wanted] if isinstance(wanted, int) else tuple(wanted)
        return Beam(self.name, nodes) if set(nodes) <= set(self.nodes) else None

    def check(self, light: Beam) -> None:
        self.told.append(("check", light.place))

    def light(self, job_id: str, light: Beam) -> None:
        if self.dark is not None:
            raise self.dark
        self.told.append(("light", job_id))

    def adopt(self, job_id: str, light: Beam) -> None:
        self.told.append(("adopt", job_id))

    def clear(self, job_id: str, light: Beam) -> list[str]:
        self.told.append(("clear", job_id))
        return [self.problems.pop()] if self.problems else []


class Site:
    def __init__(self, directory: Path, *kinds: Kind) -> None:
        self.directory = directory
        self.agent = ScriptedAgent()
        self.grid, self.ring = Lamp("grid"), Lamp("ring")
        self.lights: dict[Kind, Any] = {"ring": self.ring, "grid": self.grid}
        if kinds:
            self.lights = {kind: Lamp(kind) for kind in kinds}
            for lamp in self.lights.values():
                lamp.whole = True
        self.manager = self.start()

    def start(self) -> JobManager:
        manager = JobManager(
            FABRIC,
            self.agent,  # type: ignore[arg-type]
            Store(self.directory),
            EventBus(),
            dict,
            workloads=WorkloadFiles(self.directory / "workloads"),
            lights=self.lights,
            flow_sockets={gpu: f"/run/{gpu}" for gpu in FABRIC.gpus},
            busy_s=0.005,
            idle_s=0.01,
        )
        manager.start()
        return manager

    def restart(self) -> None:
        self.manager.stop()
        for lamp in (self.grid, self.ring):
            lamp.told.clear()
        self.manager = self.start()

    def wait(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site(tmp_path / "state")
    yield made
    made.manager.stop()


def test_a_job_is_lit_before_its_workers_start_and_cleared_when_they_have_gone(site: Site) -> None:
    document = site.manager.submit("red", list(NODES["grid"]), {}, hold=True)
    assert (document["grid"], document["ring"], document["switches"]) == ("n", None, ["wss"])
    site.wait(lambda: "red-0" in site.agent.alive)
    assert site.grid.told == [("check", "n"), ("light", "red")]
    site.grid.problems = ["wss: away"]
    site.manager.cancel("red")
    site.wait(lambda: site.grid.told[2:] == [("clear", "red")] * 2)
    assert not site.agent.alive
    assert site.ring.told == []


def test_a_job_whose_light_does_not_come_fails_without_workers(site: Site) -> None:
    site.ring.dark = UnavailableError("wss: away")
    site.manager.submit("red", 3, {}, hold=True, place=Place("ring", "r"))
    site.wait(lambda: ("clear", "red") in site.ring.told)
    job = site.manager.job("red")
    assert (job["state"], job["error"]) == ("FAILED", "not started: wss: away")
    assert not site.agent.specs


def test_the_first_that_has_light_is_taken_and_a_refusal_asks_the_next(site: Site) -> None:
    site.ring.refusal = ConflictError("ring r is taken")
    found = site.manager.light_plan(2, {})
    assert found is not None
    assert found[0] == "grid"
    site.grid.refusal = InvalidError("2 nodes do not fit")
    with pytest.raises(ConflictError, match="taken"):
        site.manager.light_plan(2, {})
    site.ring.refusal, site.grid.refusal = site.grid.refusal, ConflictError("grid n is taken")
    with pytest.raises(ConflictError, match="grid n is taken"):
        site.manager.light_plan(2, {})
    site.ring.refusal = None
    assert site.manager.light_plan(2, {}) == ("ring", Beam("r", NODES["ring"][:2]))
    with pytest.raises(ConflictError, match="grid n is taken"):
        site.manager.light_plan(2, {}, Place("grid", "n"))


@pytest.fixture
def sky(tmp_path: Path) -> Any:
    """A manager of jobs on an interconnect, whose light one job has at a time."""
    made = Site(tmp_path / "sky", "interconnect")
    yield made
    made.manager.stop()


def test_where_light_stands_workers_do_not_ask_and_may_execute_graphs(sky: Site) -> None:
    book = Book()
    writer = Writer(book)
    writer.compute("work", seconds=0.1)
    data = pack(book.workload("work", [writer.done()], [0] * 2, [[]] * 2, [[]] * 2))
    digest = hashlib.sha256(data).hexdigest()
    graph = {"workload": "graph", "graph": digest, "iterations": 1}
    with pytest.raises(InvalidError, match=r"^graph: there is no workload"):
        sky.manager.submit("red", ["n0", "n1"], graph, hold=True)
    put(sky.manager.workloads, digest, data)
    assert sky.manager.workloads.traffic(digest).tolist() == [[0, 0], [0, 0]]
    sky.manager.submit("red", ["n0", "n1"], graph, hold=True)
    sky.wait(lambda: "red-1" in sky.agent.alive)
    assert [sky.agent.specs[f"red-{rank}"]["posted"] for rank in (0, 1)] == [True, True]
    assert not any("onic" in spec for spec in sky.agent.specs.values())
    document = sky.manager.job("red")
    assert (document["interconnect"], document["grid"], document["ring"]) == ("sky", None, None)


def test_the_light_of_one_job_waits_until_that_of_the_last_is_cleared(sky: Site) -> None:
    (lamp,) = sky.lights.values()
    sky.manager.submit("red", ["n0", "n1"], {}, hold=True)
    sky.wait(lambda: "red-1" in sky.agent.alive)
    assert all("posted" in spec and "onic" not in spec for spec in sky.agent.specs.values())
    lamp.problems = ["wss: away"] * 1000
    sky.manager.cancel("red")
    sky.manager.submit("blue", ["n2", "n3"], {}, hold=True)
    sky.wait(lambda: ("clear", "red") in lamp.told)
    time.sleep(0.05)
    assert ("light", "blue") not in lamp.told
    lamp.problems = []
    sky.wait(lambda: ("light", "blue") in lamp.told)


def test_a_graph_on_an_interconnect_is_a_request_and_on_a_grid_is_none() -> None:
    body = {"name": "red", "ranks": ["n0"], "workload": "graph", "graph": "0" * 64, "iterations": 1}
    request = JobRequest.model_validate({**body, "interconnect": "sky"})
    assert request.place == Place("interconnect", "sky")
    assert "interconnect" not in request.worker_settings()
    with pytest.raises(ValueError, match="not on a grid"):
        JobRequest.model_validate({**body, "grid": "n"})


def test_a_request_names_one_place_at_most() -> None:
    body = {"name": "red", "gpus": 2, "gradient_bytes": 9640, "compute_s": 0, "iterations": 1}
    assert JobRequest.model_validate({**body, "ring": "r"}).place == Place("ring", "r")
    assert JobRequest.model_validate(body).place is None
    with pytest.raises(ValueError, match="a job is on grid n or on ring r, not on both"):
        JobRequest.model_validate({**body, "grid": "n", "ring": "r"})


def test_a_restart_adopts_what_runs_and_clears_what_had_ended(site: Site) -> None:
    site.manager.submit("red", 4, {}, hold=True, place=Place("grid", "n"))
    site.wait(lambda: "red-3" in site.agent.alive)
    site.wait(lambda: (Store(site.directory).read("jobs") or {})["jobs"][0]["started"])
    site.restart()
    assert site.grid.told == [("adopt", "red")]
    site.grid.problems = ["wss: away"] * 1000
    site.manager.cancel("red")
    site.wait(lambda: ("clear", "red") in site.grid.told)
    site.restart()
    assert ("adopt", "red") not in site.grid.told
    site.grid.problems = []
    site.wait(lambda: site.grid.told and site.grid.told[-1] == ("clear", "red") and not site.grid.problems)


RECORD = {
    "id": "red",
    "name": "red",
    "state": "RUNNING",
    "error": None,
    "hold": False,
    "switches": ["wss"],
    "ranks": [{"rank": i, "gpu": gpu, "state": "started"} for i, gpu in enumerate(NODES["ring"])],
    "spec": {"collective": "wrht"},
    "t_submitted": 1.0,
    "t_released": 2.0,
    "t_ended": None,
    "started": True,
    "clean": False,
}


@pytest.mark.parametrize("places", [{"grid": None, "ring": "r"}, {"grid": "n"}, {}])
def test_jobs_stored_by_earlier_versions_are_read(places: dict[str, str | None]) -> None:
    job = Job.from_record({**RECORD, **places})
    assert job.state is JobState.RUNNING
    named = {kind: name for kind, name in places.items() if name is not None}
    assert ({} if job.place is None else {job.place.kind: job.place.name}) == named
    assert {key: job.record()[key] for key in RECORD if key != "ranks"} | {"ranks": None} == {
        **RECORD,
        "ranks": None,
    }
    none = {"grid": None, "ring": None, "interconnect": None}
    assert {key: job.record()[key] for key in none} == none | places


def test_a_stored_job_whose_place_is_not_there_is_named(site: Site) -> None:
    site.manager.stop()
    Store(site.directory).write("jobs", {"jobs": [{**RECORD, "grid": "m"}]})
    with pytest.raises(InvalidError, match="job red is not one for grid m"):
        site.start()
