"""The seam between jobs and light: who is asked, who lights, and what a restart takes over."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.errors import (
    ConflictError,
    ControllerError,
    InvalidError,
    UnavailableError,
)
from ringlight.controller.jobs.job import Job, JobState
from ringlight.controller.jobs.manager import JobManager
from ringlight.controller.jobs.reservation import Reservations
from ringlight.controller.jobs.workload_files import WorkloadFiles
from ringlight.controller.rest.requests import JobRequest
from ringlight.controller.store import Store
from ringlight.fabric.extension import Extension, InstalledExtension
from ringlight.fabric.parts import Gpu
from ringlight.fabric.planes.base import Lighting, Plane
from ringlight.fabric.planes.kinds import PlaneKind, parts_of_planes
from ringlight.fabric.topology import Fabric
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack
from tests.door import door
from tests.unit.test_controller_job import ScriptedAgent
from tests.unit.workloads import put


@dataclass(frozen=True)
class FieldPlane(Plane):
    """A plane that several jobs may share."""

    kind: ClassVar[str] = "field"
    light: ClassVar[Lighting] = "asked"


@dataclass(frozen=True)
class LoopPlane(Plane):
    """A plane that one job has whole."""

    kind: ClassVar[str] = "loop"
    light: ClassVar[Lighting] = "stepped"
    whole: ClassVar[bool] = True


NODES = {"field": ("n0", "n1", "n2", "n3"), "loop": ("r0", "r1", "r2")}
GPUS = [*NODES["field"], *NODES["loop"]]
FABRIC = Fabric(
    {gpu: Gpu.numbered(gpu, gpu, "titan-v", i) for i, gpu in enumerate(GPUS)},
    {},
    {},
    (),
)


def fields(fabric: Fabric) -> list[FieldPlane]:
    return [FieldPlane(fabric, "n", NODES["field"])] if "n0" in fabric.gpus else []


def loops(fabric: Fabric) -> list[LoopPlane]:
    return [LoopPlane(fabric, "r", NODES["loop"])] if "r0" in fabric.gpus else []


HERE = Path(__file__).stem
FIELDS = PlaneKind(planes=f"{HERE}:fields")
LOOPS = PlaneKind(planes=f"{HERE}:loops")
SKIES = PlaneKind(planes=f"{HERE}:skies")
LIGHT = InstalledExtension(
    Extension(
        "light",
        planes={
            "field": f"{HERE}:FIELDS",
            "loop": f"{HERE}:LOOPS",
            "sky": f"{HERE}:SKIES",
        },
    ),
    "tests.unit",
)


@pytest.fixture(autouse=True)
def with_planes() -> Iterator[None]:
    """An extension with planes of three kinds."""
    with door(LIGHT, readers=(parts_of_planes,)):
        yield


@dataclass(frozen=True)
class SkyPlane(Plane):
    """Its light stands, and one job has it at a time."""

    kind: ClassVar[str] = "sky"
    light: ClassVar[Lighting] = "stands"


def skies(fabric: Fabric) -> list[SkyPlane]:
    return [
        SkyPlane(fabric, name, nodes)
        for name, nodes in fabric.parts.get("skies", {}).items()
    ]


FOUR = [Gpu.numbered(f"g{index}", f"s{index}", "titan-v", index) for index in range(4)]
SKY = Fabric(
    {gpu.name: gpu for gpu in FOUR},
    {},
    {},
    (),
    parts={"skies": {"blue": tuple(gpu.name for gpu in FOUR)}},
)


@dataclass(frozen=True)
class Beam:
    place: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...] = ("wss",)


class Lamp:
    """Lights jobs on planes, and notes what it was told. ``refusal``: of every job it plans."""

    def __init__(self, *, alone: bool = False) -> None:
        self.alone = alone
        self.refusal: ControllerError | None = None
        self.dark: ControllerError | None = None
        self.problems: list[str] = []
        self.told: list[tuple[str, str]] = []

    def plan(
        self, plane: Plane, nodes: tuple[str, ...], settings: Mapping[str, Any]
    ) -> Beam:
        if self.refusal is not None:
            raise self.refusal
        return Beam(plane.name, nodes)

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
    def __init__(self, directory: Path, fabric: Fabric = FABRIC) -> None:
        self.directory = directory
        self.fabric = fabric
        self.agent = ScriptedAgent()
        self.field, self.loop, self.sky = Lamp(), Lamp(), Lamp(alone=True)
        self.lights: dict[str, Any] = {
            "loop": self.loop,
            "field": self.field,
            "sky": self.sky,
        }
        self.manager = self.start()

    def start(self) -> JobManager:
        self.store = Store(self.directory)
        manager = JobManager(
            self.fabric,
            self.agent,  # type: ignore[arg-type]
            self.store,
            EventBus(),
            dict,
            workloads=WorkloadFiles(self.directory / "workloads"),
            reservations=Reservations(),
            lights=self.lights,
            flow_sockets={gpu: f"/run/{gpu}" for gpu in self.fabric.gpus},
            busy_s=0.005,
            idle_s=0.01,
        )
        manager.start()
        return manager

    def stop(self) -> None:
        self.manager.stop()
        self.store.close()

    def restart(self) -> None:
        self.stop()
        for lamp in self.lights.values():
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
    made.stop()


def test_a_job_is_lit_before_its_workers_start_and_cleared_when_they_have_gone(
    site: Site,
) -> None:
    document = site.manager.submit("red", list(NODES["field"]), {}, hold=True)
    assert (document["plane"], document["switches"]) == ("n", ["wss"])
    site.wait(lambda: "red-0" in site.agent.alive)
    assert site.field.told == [("check", "n"), ("light", "red")]
    site.field.problems = ["wss: away"]
    site.manager.cancel("red")
    site.wait(lambda: site.field.told[2:] == [("clear", "red")] * 2)
    assert not site.agent.alive
    assert site.loop.told == []


def test_a_job_whose_light_does_not_come_fails_without_workers(site: Site) -> None:
    site.loop.dark = UnavailableError("wss: away")
    site.manager.submit("red", 3, {}, hold=True, plane="r")
    site.wait(lambda: ("clear", "red") in site.loop.told)
    job = site.manager.job("red")
    assert (job["state"], job["error"]) == ("FAILED", "not started: wss: away")
    assert not site.agent.specs


def test_the_first_that_has_light_is_taken_and_a_refusal_asks_the_next(
    site: Site,
) -> None:
    site.loop.refusal = ConflictError("loop r is taken")
    found = site.manager.light_plan(3, {})
    assert found is not None
    assert found[0].name == "n"
    site.field.refusal = InvalidError("3 nodes do not fit")
    with pytest.raises(ConflictError, match="taken"):
        site.manager.light_plan(3, {})
    site.loop.refusal, site.field.refusal = (
        site.field.refusal,
        ConflictError("field n is taken"),
    )
    with pytest.raises(ConflictError, match="field n is taken"):
        site.manager.light_plan(3, {})
    site.loop.refusal = None
    found = site.manager.light_plan(3, {})
    assert found is not None
    assert (found[0].name, found[1]) == ("r", Beam("r", NODES["loop"]))
    with pytest.raises(ConflictError, match="field n is taken"):
        site.manager.light_plan(3, {}, "n")


@pytest.fixture
def sky(tmp_path: Path) -> Any:
    """A manager of jobs on a plane whose light one job has at a time."""
    made = Site(tmp_path / "sky", SKY)
    yield made
    made.stop()


def test_where_light_stands_workers_do_not_ask_and_may_execute_graphs(
    sky: Site,
) -> None:
    book = Book()
    writer = Writer(book)
    writer.compute("work", seconds=0.1)
    data = pack(book.workload("work", [writer.done()], [0] * 2, [[]] * 2, [[]] * 2))
    digest = hashlib.sha256(data).hexdigest()
    graph = {"workload": "graph", "graph": digest, "iterations": 1}
    with pytest.raises(InvalidError, match=r"^graph: there is no workload"):
        sky.manager.submit("red", ["g0", "g1"], graph, hold=True)
    put(sky.manager.workloads, digest, data)
    assert sky.manager.workloads.workload(digest).ranks == 2
    sky.manager.submit("red", ["g0", "g1"], graph, hold=True)
    sky.wait(lambda: "red-1" in sky.agent.alive)
    assert [sky.agent.specs[f"red-{rank}"]["posted"] for rank in (0, 1)] == [True, True]
    assert not any("onic" in spec for spec in sky.agent.specs.values())
    document = sky.manager.job("red")
    assert document["plane"] == "blue"


def test_the_light_of_one_job_waits_until_that_of_the_last_is_cleared(
    sky: Site,
) -> None:
    lamp = sky.sky
    sky.manager.submit("red", ["g0", "g1"], {}, hold=True)
    sky.wait(lambda: "red-1" in sky.agent.alive)
    assert all(
        "posted" in spec and "onic" not in spec for spec in sky.agent.specs.values()
    )
    lamp.problems = ["wss: away"] * 1000
    sky.manager.cancel("red")
    sky.manager.submit("blue", ["g2", "g3"], {}, hold=True)
    sky.wait(lambda: ("clear", "red") in lamp.told)
    time.sleep(0.05)
    assert ("light", "blue") not in lamp.told
    lamp.problems = []
    sky.wait(lambda: ("light", "blue") in lamp.told)


def test_a_graph_needs_light_that_stands(site: Site) -> None:
    book = Book()
    data = pack(
        book.workload("work", [Writer(book).done()] * 2, [0] * 2, [[]] * 2, [[]] * 2)
    )
    digest = hashlib.sha256(data).hexdigest()
    put(site.manager.workloads, digest, data)
    graph = {"workload": "graph", "graph": digest, "iterations": 1}
    with pytest.raises(
        InvalidError,
        match=r"workload graph: it runs on packet switches .* not on field n",
    ):
        site.manager.submit("red", ["n0", "n1"], graph, hold=True)
    guests = {"workload": "shell", "shell": {"deadline_s": 9.0}}
    with pytest.raises(
        InvalidError, match=r"shell: a program that asks nobody .* not on field n"
    ):
        site.manager.submit("red", 4, guests, hold=True, plane="n")


def test_a_request_names_a_plane_by_one_key() -> None:
    body = {
        "name": "red",
        "gpus": 2,
        "gradient_bytes": 9640,
        "compute_s": 0,
        "iterations": 1,
    }
    request = JobRequest.model_validate({**body, "plane": "r"})
    assert request.plane == "r"
    assert "plane" not in request.worker_settings()
    assert JobRequest.model_validate(body).plane is None
    with pytest.raises(ValueError, match="field"):
        JobRequest.model_validate({**body, "field": "n"})


def test_a_restart_adopts_what_runs_and_clears_what_had_ended(site: Site) -> None:
    site.manager.submit("red", 4, {}, hold=True, plane="n")
    site.wait(lambda: "red-3" in site.agent.alive)
    site.wait(lambda: (Store(site.directory).read("jobs") or {})["jobs"][0]["started"])
    site.restart()
    assert site.field.told == [("adopt", "red")]
    site.field.problems = ["wss: away"] * 1000
    site.manager.cancel("red")
    site.wait(lambda: ("clear", "red") in site.field.told)
    site.restart()
    assert ("adopt", "red") not in site.field.told
    site.field.problems = []
    site.wait(
        lambda: (
            site.field.told
            and site.field.told[-1] == ("clear", "red")
            and not site.field.problems
        )
    )


RECORD = {
    "id": "red",
    "name": "red",
    "state": "RUNNING",
    "error": None,
    "hold": False,
    "switches": ["wss"],
    "ranks": [
        {"rank": i, "gpu": gpu, "state": "started"}
        for i, gpu in enumerate(NODES["loop"])
    ],
    "spec": {"collective": "ring"},
    "t_submitted": 1.0,
    "t_released": 2.0,
    "t_ended": None,
    "started": True,
    "clean": False,
}


@pytest.mark.parametrize(
    "places", [{"field": None, "loop": "r"}, {"field": "n"}, {"plane": "n"}, {}]
)
def test_jobs_stored_by_earlier_versions_are_read(
    places: dict[str, str | None],
) -> None:
    job = Job.from_record({**RECORD, **places})
    assert job.state is JobState.RUNNING
    (plane,) = [name for name in places.values() if name is not None] or [None]
    assert job.plane == job.record()["plane"] == plane
    assert {key: job.record()[key] for key in RECORD if key != "ranks"} | {
        "ranks": None
    } == {
        **RECORD,
        "ranks": None,
    }
    assert Job.from_record(job.record()).plane == plane


def test_a_job_stored_by_an_earlier_version_is_adopted_on_its_plane(site: Site) -> None:
    site.stop()
    site.store.write("jobs", {"jobs": [{**RECORD, "field": None, "loop": "r"}]})
    site.store.close()
    site.manager = site.start()
    # The agent knows none of its workers, so it may have been cleared since.
    assert site.loop.told[0] == ("adopt", "red")
    assert site.manager.job("red")["plane"] == "r"


def test_a_stored_job_whose_place_is_not_there_is_named(site: Site) -> None:
    site.stop()
    site.store.write("jobs", {"jobs": [{**RECORD, "field": "m"}]})
    site.store.close()
    manager = site.start()
    assert manager.jobs() == []
    (line,) = manager.set_aside
    assert "there is no plane m" in line
