"""Slices over light kept in memory: what becomes of one when light cannot be moved, and after restarts."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.bus import EventBus
from ringlight.controller.circuits.altering import altered
from ringlight.controller.circuits.change import Change, carried_after
from ringlight.controller.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from ringlight.controller.jobs.reservation import Holder
from ringlight.controller.store import Store
from ringlight.extensions.slices.fabric_key import cubes_of
from ringlight.extensions.slices.manager import SliceManager
from ringlight.extensions.slices.resource import SliceDocument
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import circuit_cross_connects

CUBES = {
    "cube": "2x2",
    "count": 4,
    "gpu": "tpu7x",
    "rate": "1 Gbit/s",
    "slices": {"red": {"topology": "2x4"}},
}
FABRIC = build_fabric(FabricSpec.model_validate({"cubes": CUBES}))
PART = cubes_of(FABRIC)
assert PART is not None
WAIT_S = 10.0


class Light:
    """Optical switches that do at once what they are told, unless they refuse."""

    def __init__(self) -> None:
        lit = circuit_cross_connects(FABRIC, FABRIC.circuits)
        self.lit: dict[str, frozenset[CrossConnect]] = dict(lit)
        self.problem: str | None = None
        self.away = False
        self.changes = 0

    def cross_connects(self) -> dict[str, frozenset[CrossConnect]]:
        return dict(self.lit)

    def alter_circuits(self, add: Any, remove: Any, *, who: str) -> Change:
        if self.away:
            raise UnavailableError("optical switch x0 cannot be reached")
        targets = altered(FABRIC, self.lit, add, remove)
        if self.problem is not None:
            return Change({}, problems=(self.problem,), undone=True)
        self.changes += 1
        for name, target in targets.items():
            self.lit[name] = carried_after(self.lit[name], target)
        return Change({}, applied=True)


class Bench:
    """A manager and its surroundings. ``users`` and ``lost``: what jobs would tell of GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.light = folder, Light()
        self.users: dict[str, Holder] = {}
        self.lost: frozenset[str] = frozenset()
        self.start()

    def start(self) -> None:
        self.bus, self.store = EventBus(), Store(self.folder)
        self.events = self.bus.subscribe()
        self.slices = SliceManager(
            FABRIC,
            PART,  # type: ignore[arg-type]
            self.light,  # type: ignore[arg-type]
            self._users,
            lambda: self.lost,
            self.bus,
            self.store,
        )
        self.slices.start()

    def _users(self) -> Mapping[str, Holder]:
        return self.users

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self.slices.stop()
        self.store.close()

    def create(
        self, name: str, topology: str, *cubes: str, **more: Any
    ) -> SliceDocument:
        annotations = more.get("annotations", {})
        wait_s = more.get("wait_s", WAIT_S)
        return self.slices.create(name, annotations, "tpu7x", topology, cubes, wait_s)

    def ready(self, name: str) -> tuple[str, str]:
        condition = self.slices.get(name).status.conditions[0]
        return condition.reason, condition.message

    def wait(self, name: str, reason: str) -> str:
        """Wait until a slice is in a state. Return its message."""
        deadline = time.monotonic() + WAIT_S
        while self.ready(name)[0] != reason:
            assert time.monotonic() < deadline, self.ready(name)
            self.slices._looks.set()
            time.sleep(0.01)
        return self.ready(name)[1]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "state")
    bench.wait("red", "ACTIVE")
    yield bench
    bench.stop()


def reason_of(document: SliceDocument) -> str:
    return document.status.conditions[0].reason


def test_the_slices_of_the_fabric_are_active_and_nothing_is_moved(bench: Bench) -> None:
    assert bench.slices.get("red").spec.partitionIds == ["c0", "c1"]
    assert bench.light.changes == 0
    assert bench.slices.complaint is None


def test_a_slice_is_made_and_ends_and_the_light_is_as_before(bench: Bench) -> None:
    before = bench.light.cross_connects()
    made = bench.create("blue", "2x4", "c3", "c2")
    assert reason_of(made) == "ACTIVE"
    assert made.spec.partitionIds == ["c3", "c2"]
    assert bench.light.cross_connects() != before
    assert reason_of(bench.slices.delete("blue", WAIT_S)) == "DEACTIVATING"
    with pytest.raises(NotFoundError):
        bench.slices.get("blue")
    assert bench.light.cross_connects() == before
    states = [
        (event["slice"], event["reason"], event["gone"])
        for event in bench.events.take()
        if event["event"] == "slice" and event["slice"] == "blue"
    ]
    assert states == [
        ("blue", "ACTIVATING", False),
        ("blue", "ACTIVE", False),
        ("blue", "DEACTIVATING", False),
        ("blue", "DEACTIVATING", True),
    ]


def test_light_that_cannot_be_moved_fails_a_slice_whose_cubes_are_free_then(
    bench: Bench,
) -> None:
    bench.light.problem = "optical switch y0: mirror stuck"
    assert reason_of(bench.create("blue", "2x4", "c2", "c3")) == "FAILED"
    message = "optical switch y0: mirror stuck; the light is as before"
    assert bench.ready("blue") == ("FAILED", message)
    bench.light.problem = None
    assert reason_of(bench.create("blue", "2x2", "c3")) == "ACTIVE"


def test_a_slice_whose_light_cannot_be_removed_keeps_its_cubes_until_it_can(
    bench: Bench,
) -> None:
    bench.light.away = True
    bench.slices.delete("red", 0.0)
    deadline = time.monotonic() + WAIT_S
    while not bench.ready("red")[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    reason = ("DEACTIVATING", "optical switch x0 cannot be reached")
    assert bench.ready("red") == reason
    assert bench.slices.complaint is not None
    assert reason_of(bench.create("blue", "2x2", "c0")) == "SliceCreationFailed"
    bench.restart()
    assert bench.ready("red")[0] == "DEACTIVATING"
    bench.light.away = False
    deadline = time.monotonic() + WAIT_S
    while any(s.metadata.name == "red" for s in bench.slices.all()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert reason_of(bench.create("blue", "2x2", "c0")) == "ACTIVE"


def test_a_swap_that_fails_leaves_the_cubes_as_they_were(bench: Bench) -> None:
    before = bench.light.cross_connects()
    bench.light.problem = "optical switch y0: mirror stuck"
    document = bench.slices.swap("red", "c0", "c3", WAIT_S)
    assert document.spec.partitionIds == ["c0", "c1"]
    assert bench.light.cross_connects() == before
    bench.light.problem = None
    document = bench.slices.swap("red", "c0", "c3", WAIT_S)
    assert document.spec.partitionIds == ["c3", "c1"]
    # The cube that left is dark, and free for another slice.
    assert reason_of(bench.create("blue", "2x4", "c0", "c2")) == "ACTIVE"


def test_swaps_that_there_cannot_be_are_refused(bench: Bench) -> None:
    with pytest.raises(ConflictError, match="slice red has no partition c2"):
        bench.slices.swap("red", "c2", None, 0.0)
    with pytest.raises(InvalidError, match="there is no partition c9"):
        bench.slices.swap("red", "c0", "c9", 0.0)
    bench.create("blue", "2x4")
    with pytest.raises(ConflictError, match="no partition is free"):
        bench.slices.swap("red", "c0", None, 0.0)
    with pytest.raises(ConflictError, match="partition c2 is used by slice blue"):
        bench.slices.swap("red", "c0", "c2", 0.0)


def test_a_cube_with_a_lost_gpu_is_out_of_service(bench: Bench) -> None:
    bench.lost = frozenset({"g0", "g9"})
    message = bench.wait("red", "ACTIVE_DEGRADED")
    assert message == "GPU g0 of partition c0 is lost"
    document = bench.create("blue", "2x2", "c2")
    assert reason_of(document) == "SliceCreationFailed"
    assert bench.ready("blue")[1] == "partition c2 is out of service"
    assert bench.slices.swap("red", "c0", None, WAIT_S).spec.partitionIds[0] == "c3"
    assert bench.ready("red") == ("ACTIVE", "")


def test_gpus_in_use_keep_a_slice(bench: Bench) -> None:
    bench.users = {
        "g1": Holder("job", "train"),
        "g8": Holder("claim", "slurm-42"),
    }
    with pytest.raises(ConflictError, match="partition c0: GPU g1 is used by job"):
        bench.slices.delete("red", 0.0)
    with pytest.raises(ConflictError, match="partition c0: GPU g1 is used by job"):
        bench.slices.swap("red", "c0", "c3", 0.0)
    bench.create("blue", "2x2", "c2")
    message = "partition c2: GPU g8 is used by claim slurm-42"
    assert bench.ready("blue") == ("SliceCreationFailed", message)
    # By number, what is in use is passed over.
    assert bench.create("green", "2x2").spec.partitionIds == ["c3"]


def test_a_spare_is_no_cube_in_use(bench: Bench) -> None:
    bench.users = {"g8": Holder("job", "train")}
    message = "partition c2: GPU g8 is used by job train"
    with pytest.raises(ConflictError, match=message):
        bench.slices.swap("red", "c0", "c2", 0.0)
    assert bench.slices.swap("red", "c0", None, WAIT_S).spec.partitionIds[0] == "c3"


def test_the_gpus_of_a_slice_are_read_while_others_are_made(bench: Bench) -> None:
    slices = bench.slices

    class Records(dict[str, Any]):
        def values(self) -> Any:
            assert slices._changed._is_owned()  # type: ignore[attr-defined]
            return super().values()

    slices._records = Records(slices._records)
    assert slices.gpus("red").gpus.keys() == {"c0", "c1"}


def test_slices_outlast_a_restart_with_their_times(bench: Bench) -> None:
    bench.create("blue", "2x4", annotations={"ringlight/twisted": "true", "a": "b"})
    bench.create("bad", "2x2", "c0")
    before, lit = bench.slices.all(), bench.light.cross_connects()
    bench.restart()
    assert bench.slices.all() == before
    assert bench.light.cross_connects() == lit
    assert bench.slices.gpus("blue").gpus.keys() == {"c2", "c3"}
    with pytest.raises(ConflictError, match="bad is SliceCreationFailed"):
        bench.slices.gpus("bad")


def test_an_activation_that_a_restart_cut_short_goes_on(bench: Bench) -> None:
    bench.light.away = True
    bench.stop()
    document = {
        "name": "blue",
        "topology": "2x4",
        "cubes": ["c2", "c3"],
        "created": "2026-01-11T23:45:38Z",
        "since": "2026-01-11T23:45:38Z",
        "reason": "ACTIVATING",
        "message": "",
        "before": [],
        "annotations": {},
    }
    stored = bench.folder
    store = Store(stored)
    store.write("slices", {"slices": [document]})
    store.close()
    bench.light.away = False
    bench.start()
    bench.wait("blue", "ACTIVE")


def test_on_a_full_disk_no_slice_is_made_and_those_that_are_there_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, document: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(bench.store, "write", full)
    with pytest.raises(UnavailableError, match="slice blue cannot be stored"):
        bench.create("blue", "2x2", "c3")
    assert [document.metadata.name for document in bench.slices.all()] == ["red"]
    monkeypatch.undo()
    assert reason_of(bench.create("blue", "2x2", "c0")) == "SliceCreationFailed"
    monkeypatch.setattr(bench.store, "write", full)
    with pytest.raises(UnavailableError, match="slice blue cannot be stored"):
        bench.create("blue", "2x2", "c3")
    assert bench.ready("blue")[0] == "SliceCreationFailed"
    assert reason_of(bench.slices.swap("red", "c0", "c3", WAIT_S)) == "ACTIVE"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"cubes": ["c0", "c9"]}, "there is no partition c9"),
        ({"topology": "3x3"}, "no multiple of 2"),
        ({"reason": "LIT"}, "validation error"),
    ],
)
def test_a_stored_slice_that_cannot_be_used_is_named_and_kept(
    bench: Bench, change: dict[str, Any], line: str
) -> None:
    bench.stop()
    store = Store(bench.folder)
    document = store.read("slices")
    document["slices"][0] |= change
    store.write("slices", document)
    store.close()
    bench.start()
    assert bench.slices.all() == []
    assert line in (bench.slices.complaint or "")
    bench.create("blue", "2x2", "c3")
    assert document["slices"][0] in bench.store.read("slices")["slices"]
