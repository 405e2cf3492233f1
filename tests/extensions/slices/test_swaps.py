"""The event that swaps a cube: simulated, refused as the controller would, and checked in a file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.controller.jobs.reservation import JOB, Holder
from ringlight.experiments.backends.emulation.actions import Actions
from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.expand import Experiment, parse
from ringlight.experiments.language.light_events import SimulatedLight
from ringlight.experiments.record.runs import Run, runs_of
from ringlight.extensions.slices.fabric_key import cubes_of
from ringlight.extensions.slices.swaps import SWAP
from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import canonical
from ringlight.fabric.schema import FabricSpec
from tests.simulated import records_of

FILE = ROOT / "scenarios/examples/lost_cube.yaml"
FABRIC = build_fabric(
    FabricSpec.model_validate(
        {
            "cubes": {
                "cube": "2x1",
                "count": 4,
                "gpu": "tpu7x",
                "rate": "1 Gbit/s",
                "slices": {
                    "red": {"topology": "2x2"},
                    "blue": {"topology": "2x1"},
                },
            }
        }
    )
)
LIT = canonical([(str(a), str(b)) for a, b in FABRIC.circuits])


def light(
    *earlier: tuple[str, ...], lost: tuple[str, ...] = (), **jobs: str
) -> SimulatedLight:
    users = {gpu: Holder(JOB, name) for gpu, name in jobs.items()}
    return SimulatedLight(LIT, earlier, users, lost)


def scenario(before: str = "", after: str = "") -> Experiment:
    text = FILE.read_text()
    assert before in text
    return parse(text.replace(before, after) if before else text, str(FILE))


@pytest.fixture(scope="module")
def runs() -> Mapping[str, Run]:
    experiment = scenario()
    runs = runs_of(records_of(experiment), experiment.plans)
    return {run.plan.arm: run for run in runs}


def seconds(run: Run, job: str) -> float:
    end, released = run.jobs[job].end, run.jobs[job].released
    assert end is not None
    assert released is not None
    return end - released


def test_a_job_fails_with_its_cube_and_is_as_fast_on_the_spare_one(
    runs: Mapping[str, Run],
) -> None:
    swapped, whole = runs["swapped"], runs["undisturbed"]
    assert swapped.jobs["red"].state == "FAILED"
    assert swapped.jobs["red"].reason == "GPU g0 (rank 0) was lost"
    assert seconds(swapped, "red-again") == pytest.approx(seconds(whole, "red"))
    assert seconds(swapped, "blue") == pytest.approx(seconds(whole, "blue"))


def test_the_job_is_late_by_its_lost_iterations_and_the_time_to_move_light(
    runs: Mapping[str, Run],
) -> None:
    run = runs["swapped"]
    (swap,) = (action for action in run.actions if action.plan.do == "swap")
    assert swap.ended is not None
    failed = run.jobs["red"].end
    assert failed is not None
    assert swap.begun == failed
    profile = run.plan.setting.fabric.optical_switches["x0"].device
    slow = profile.dilated(run.plan.setting.scale.time)
    # Each of three switches is told to remove circuits and then to add others, of at most four ports.
    dark_s = slow.dark_bounds_s()[1]
    command_s = slow.command_s + 4 * slow.command_per_xc_s
    assert swap.ended - swap.begun == pytest.approx(2 * command_s + dark_s)
    # As in a lab, no switch reports dark times of it.
    assert "results" not in swap.result
    start_up_s = run.plan.job("red-again").start_up_s
    assert start_up_s == pytest.approx(1.792)
    released = swap.ended + start_up_s
    assert run.jobs["red-again"].released == pytest.approx(released)


def test_the_circuits_of_a_swap_are_those_of_a_slice_of_the_new_cubes() -> None:
    after = set(map(frozenset, SWAP.circuits(FABRIC, ("red", "c0", "c3"), light())))
    part = cubes_of(FABRIC)
    assert part is not None
    joined = {
        frozenset(map(str, pair))
        for pair in part.cubes.circuits(part.slices["red"].shape, ("c3", "c1"))
    }
    of_blue = {
        frozenset(map(str, pair))
        for pair in part.cubes.circuits(part.slices["blue"].shape, ("c2",))
    }
    assert after == joined | of_blue


def test_a_second_swap_begins_from_the_first() -> None:
    first = SWAP.circuits(FABRIC, ("red", "c0", "c3"), light())
    now = SimulatedLight(first, [("red", "c0", "c3")], {}, ())
    assert SWAP.circuits(FABRIC, ("red", "c3", "c0"), now) == LIT


@pytest.mark.parametrize(
    ("names", "now", "message"),
    [
        (("red", "c2", "c3"), light(), "slice red has no partition c2"),
        (("red", "c0", "c2"), light(), "partition c2 is used by slice blue"),
        (("red", "c0", "c0"), light(), "partition c0 is used by slice red"),
        (
            ("red", "c0", "c3"),
            light(g1="red"),
            "partition c0: GPU g1 is used by job red",
        ),
        (
            ("red", "c0", "c3"),
            light(g7="green"),
            "partition c3: GPU g7 is used by job green",
        ),
        (("red", "c0", "c3"), light(lost=("g6",)), "partition c3 is out of service"),
        (
            ("red", "c0", "c3"),
            light(("red", "c0", "c3")),
            "slice red has no partition c0",
        ),
    ],
)
def test_a_swap_is_refused_as_by_the_controller(
    names: Any, now: SimulatedLight, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SWAP.circuits(FABRIC, names, now)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("slice green c0 c3", "there is no slice green; there are red, blue"),
        ("slice red c0 c9", "there is no partition c9; they are c0 to c3"),
        ("slice red c0", "'slice red c0' is not slice SLICE CUBE SPARE"),
        ("gpu g0", "swap has no target gpu; it has slice"),
    ],
)
def test_mistakes_in_a_target_are_named(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        scenario("target: slice red c0 c3", f"target: {target}")
    assert "events.swap.target" in str(caught.value)


def test_a_fabric_without_cubes_has_no_swap() -> None:
    with pytest.raises(ValueError, match="the fabric has no cubes"):
        SWAP.check(build_fabric(FabricSpec.model_validate(PLAIN)), ("red", "c0", "c3"))


class Slices:
    """The slice ``red`` of a lab, of one cube. ``late``: a swap moves light, and fails to report it."""

    def __init__(self, *, late: bool = False) -> None:
        self.cube, self.late = "c0", late
        self.swaps: list[tuple[str, str]] = []

    def get(self, _: str) -> dict[str, Any]:
        ready = {"reason": "ACTIVE", "message": ""}
        return {
            "spec": {"partitionIds": [self.cube]},
            "status": {"conditions": [ready]},
        }

    def post(self, _: str, body: Mapping[str, str]) -> dict[str, Any]:
        self.swaps.append((body["partition"], body["spare"]))
        self.cube = body["spare"]
        if self.late:
            self.late = False
            raise ValueError("slice red is not lit after 60 s")
        return self.get("")


def carried_out(api: Slices) -> Actions:
    """Return the events of a lab after an attempt to swap c0 for c3."""
    actions = Actions(None, api, None)  # type: ignore[arg-type]
    with suppress(BackendError):
        actions._move_light(SWAP, ("red", "c0", "c3"))
    return actions


@pytest.mark.parametrize("late", [False, True])
def test_the_next_run_has_the_cubes_of_the_file_also_after_a_failed_swap(
    late: bool,
) -> None:
    api = Slices(late=late)
    actions = carried_out(api)
    assert api.cube == "c3"
    actions.move_back()
    assert api.swaps == [("c0", "c3"), ("c3", "c0")]
    actions.move_back()
    assert len(api.swaps) == 2


def test_a_swap_that_moved_nothing_is_not_undone() -> None:
    api = Slices()
    actions = carried_out(api)
    api.cube = "c0"
    actions.move_back()
    assert api.swaps == [("c0", "c3")]


PLAIN = {
    "leaf_spine": {
        "leaves": 2,
        "spines": 1,
        "gpus_per_leaf": 1,
        "gpu": "gpu",
        "rate": "1 Gbit/s",
    }
}
