"""Grids beside what else there is: the same tests as of other planes, and what only grids refuse."""

from __future__ import annotations

import pytest

from ringlight.experiments.backends.emulation.requests import (
    job_request,
    peer_timeout_s,
)
from ringlight.fabric.planes.choice import plane_of
from ringlight.testbed.emulation.kernel import shaping
from tests.extensions.oddl.fabrics import grid_fabric
from tests.unit import (
    test_emulation_requests,
    test_planes,
    test_prediction,
    test_ring_of_bits,
    test_simulated_workloads,
    test_simulation_workload,
)
from tests.unit.test_frames import window
from tests.unit.test_language import BESIDE, light, refused

ONE_LINE = "grids: {n: {rows: 1, columns: 4, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}"
SQUARE = "grids: {n: {rows: 2, columns: 2, gpu: t, rate: 4 Gbit/s, wavelengths: 2}}"
SMALL = "m: {rows: 1, columns: 2, gpu: x, rate: 1 Gbit/s}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (light(f"{ONE_LINE[:-1]}, {SMALL}}}"), "fabric.grids: grid n and grid m"),
        (
            light(f"{ONE_LINE}, {BESIDE}", "red: {ranks: [n0, g0]}"),
            "jobs.red.ranks: GPU g0 is",
        ),
        (light(SQUARE), "training.collective: ring of job red on fabric: ranks"),
    ],
)
def test_a_job_that_does_not_fit_its_fabric(text: str, said: str) -> None:
    assert refused("", text).startswith(said)


def test_a_plane_is_where_the_gpus_are() -> None:
    plane = plane_of(grid_fabric(1, 3))
    assert (plane.kind, plane.nodes) == ("grid", ("n0", "n1", "n2"))


@pytest.mark.parametrize("ranks", ["ranks: [a, b, c]", "gpus: 3"])
@pytest.mark.parametrize("collective", ["ring", "recursive-doubling"])
def test_what_stands_beside_a_job_changes_nothing(ranks: str, collective: str) -> None:
    grid = "  grids: {n: {rows: 2, columns: 2, gpu: t, rate: 10 Gbit/s}}\n"
    test_planes.check_beside(grid, ranks, collective)


def test_trainings_on_wires_and_on_light_are_not_simulated_together() -> None:
    test_simulated_workloads.check_not_simulated_beside_wires(
        ONE_LINE, "grid n", "n0, n1, n2, n3"
    )


def test_a_workload_takes_as_long_beside_light_that_it_has_nothing_to_do_with() -> None:
    test_simulated_workloads.check_as_long_beside_light(SQUARE)


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
def test_the_training_loop_takes_what_it_takes_as_a_job(algorithm: str) -> None:
    test_simulation_workload.test_the_training_loop_takes_what_it_takes_as_a_job(
        "oddl_16", algorithm
    )


def test_light_is_waited_for_and_shared_with_nobody() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "x", "rate": "100 Gbit/s", "wavelengths": 2}
    test_prediction.check_light_is_waited_for({"grids": {"n": grid}})


def test_bits_are_refused_on_light_that_is_asked_for_step_by_step() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "gpu", "rate": "1 Gbit/s"}
    test_ring_of_bits.check_refused_on_light({"grids": {"n": grid}}, "n")


def test_a_number_of_gpus_is_asked_of_the_only_grid() -> None:
    text = f"fabric: {{{SQUARE}}}\n"
    test_emulation_requests.check_asked(text, {"plane": "n"})
    plan = test_emulation_requests.plan_of(text + "jobs: {red: {ranks: [n0, n1]}}\n")
    request = job_request(plan, plan.job("red"))
    assert request["ranks"] == ["n0", "n1"]
    assert "plane" not in request


def test_a_worker_waits_for_its_peers_as_long_as_their_light_may_take() -> None:
    """Each of 4 steps waits for two messages of 10 s, and that twice."""
    jobs = "jobs: {red: {ranks: all, training: {collective: halving-doubling}}}\n"
    plan = test_emulation_requests.plan_of(
        f"fabric: {{{SQUARE}}}\n{jobs}control: {{delay: 10 s}}\n"
    )
    assert 175.2 <= peer_timeout_s(plan, plan.jobs[0]) <= 175.4


def test_routes_of_workers_have_a_window_of_half_a_queue_where_light_is_asked_for() -> (
    None
):
    fabric = grid_fabric(2, 2, rate="4 Gbit/s", queue="1 s", wavelengths=4)
    assert window(fabric, 40) == shaping.queue_bytes(4e9 / 40, 1.0) // 2
