"""The O-NICs' control units under virtual time."""

from __future__ import annotations

import math

import pytest

from ringlight.controller.onic.protocol import Times
from ringlight.extensions.oddl.control_units import ControlNetwork, OnicPlane
from ringlight.extensions.oddl.network import GridNetwork
from ringlight.extensions.oddl.wavelengths import light_use, wavelength_map, ways_for
from ringlight.fabric.schedules import halving_doubling, ring
from ringlight.testbed.simulation.engine import Engine
from ringlight.testbed.simulation.jobs import Compute, GpuLost, Job
from tests.extensions.oddl.fabrics import grid_fabric
from tests.simulated_jobs import simulate

MIB = 2**20


def oddl(
    side: int, control: ControlNetwork, vector: float = MIB, **options: object
) -> tuple[OnicPlane, float]:
    fabric = grid_fabric(side, side)
    grid = fabric.parts["grids"]["n"]
    engine = Engine()
    plane = OnicPlane(
        engine, fabric, wavelength_map(grid, grid.nodes), control, **options
    )  # type: ignore[arg-type]
    job = Job("a", grid.nodes, halving_doubling(side * side), vector)
    found = simulate(GridNetwork(fabric, grid), [job], gate=plane, engine=engine)["a"]
    assert found.failed is None
    return plane, found.end_s


def test_four_nodes_ask_for_light_as_the_protocol_says() -> None:
    plane, end_s = oddl(2, ControlNetwork(control_s=10e-6, handle_s=0.0))
    # Request, grant, tuning.
    wait = 2 * 10e-6 + 10.5e-9
    assert plane.waits_s == pytest.approx([wait] * 16)
    assert plane.messages == dict.fromkeys(
        ("request", "grant", "release", "released"), 16
    )
    assert end_s == pytest.approx(2 * 3 / 4 * MIB * 8 / 100e9 + 4 * wait)
    assert plane.idle()


@pytest.mark.parametrize("jitter", [0.0, 0.5, 5.0])
def test_no_receiver_is_lit_twice_and_messages_stay_few(jitter: float) -> None:
    for side in (2, 4, 8):
        plane, _ = oddl(side, ControlNetwork(jitter=jitter))
        flows = side * side * 2 * int(math.log2(side * side))
        assert len(plane.waits_s) == flows
        assert plane.overlaps == 0
        assert plane.idle()
        assert plane.counts()["lost"] == plane.counts()["failed"] == 0
        assert 4 * flows <= sum(plane.messages.values()) <= 5.5 * flows


def test_leases_are_renewed_while_a_long_flow_is_lit() -> None:
    times = Times(
        lease_s=0.02, guard_s=0.001, retry_s=0.001, refresh_s=0.005, patience_s=1.0
    )
    plane, end_s = oddl(2, ControlNetwork(), vector=2**30, times=times)
    assert end_s == pytest.approx(2 * 3 / 4 * 2**30 * 8 / 100e9, rel=0.01)
    assert plane.messages["renew"] >= 16
    assert plane.overlaps == 0


@pytest.mark.parametrize(
    ("rows", "columns", "contended"), [(1, 4, True), (4, 1, True), (2, 2, False)]
)
def test_receivers_are_contended_where_light_use_says_so(
    rows: int, columns: int, contended: bool
) -> None:
    fabric = grid_fabric(rows, columns, wavelengths=2)
    grid = fabric.parts["grids"]["n"]
    engine = Engine()
    steps = halving_doubling(4)
    ways = ways_for(grid, grid.nodes, steps)
    plane = OnicPlane(engine, fabric, ways, ControlNetwork(10e-6, 1e-6, jitter=1.0))
    job = Job("a", grid.nodes, steps, MIB, iterations=20)
    found = simulate(GridNetwork(fabric, grid), [job], gate=plane, engine=engine)["a"]
    assert found.failed is None
    assert plane.overlaps == 0
    assert light_use(ways, grid.nodes, steps).collisions_possible is contended
    assert (plane.queued > 0) is contended


def test_a_spare_on_a_grid_needs_light() -> None:
    fabric = grid_fabric(1, 4)
    grid = fabric.parts["grids"]["n"]
    job = Job("a", grid.nodes[:3], ring(3), MIB, Compute(0.1), iterations=3)

    def ends(lit: tuple[str, ...]) -> str | None:
        engine = Engine()
        plane = OnicPlane(engine, fabric, wavelength_map(grid, lit), ControlNetwork())
        lost = GpuLost(0.15, grid.nodes[1], "swap", grid.nodes[3], 0.1)
        found = simulate(
            GridNetwork(fabric, grid), [job], [lost], gate=plane, engine=engine
        )["a"]
        assert plane.overlaps == 0
        assert [loss.iteration for loss in found.losses] == [1]
        return found.failed

    assert ends(grid.nodes) is None
    assert grid.nodes[3] in str(ends(grid.nodes[:3]))


def test_a_negative_time_is_named() -> None:
    with pytest.raises(ValueError, match="jitter is -1"):
        ControlNetwork(jitter=-1)
