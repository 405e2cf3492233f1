"""Grids as the simulator sees them."""

from __future__ import annotations

import dataclasses

import pytest

from ringlight.extensions.oddl.network import GridNetwork
from ringlight.extensions.oddl.wavelengths import cross_connects, ways_for
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.parts import Port
from ringlight.fabric.schedules import halving_doubling
from tests.extensions.oddl.fabrics import grid_fabric
from tests.unit.test_fabric_light import described
from tests.unit.test_simulation_networks import one_step


def test_halving_doubling_on_a_grid_shares_nothing() -> None:
    fabric = grid_fabric(4, 8)
    network = GridNetwork(fabric, fabric.parts["grids"]["n"])
    for number, step in enumerate(halving_doubling(32)):
        routes = network.routes(fabric.parts["grids"]["n"].nodes, step, number)
        assert len(set(routes.links.tolist())) == len(routes.links) == 2 * 32
    assert str(network.key(0)) == str(("from", Port("n0", 0)))
    assert network.key(2 * 32 + 1) == ("to", Port("n0", 1))


def test_a_grid_names_what_does_not_fit() -> None:
    fabric = grid_fabric(2, 2)
    grid = fabric.parts["grids"]["n"]
    network = GridNetwork(fabric, grid)
    with pytest.raises(
        ValueError,
        match=r"step 3: ranks 1 and 2 \(n1, n2\) share neither row nor column",
    ):
        network.routes(grid.nodes, one_step([(0, 1), (1, 2)]), 3)
    with pytest.raises(ValueError, match="rank 1: grid n has no node g7"):
        network.routes(("n0", "g7"), one_step([(0, 1)]))
    with pytest.raises(ValueError, match="nothing is plugged into n0:0"):
        GridNetwork(dataclasses.replace(fabric, links=()), grid)


def test_a_grid_whose_light_is_too_weak_is_refused() -> None:
    grid = {
        "rows": 2,
        "columns": 2,
        "gpu": "x",
        "rate": "1 Gbit/s",
        "wss": {"loss_db": 8},
    }
    fabric = described(
        grids={"n": grid}, light={"sensitivity_dbm": -8.5, "fibre_db": 0.5}
    )
    with pytest.raises(ValueError, match=r"WSS n-r0 arrives with -9\.00 dBm"):
        GridNetwork(fabric, fabric.parts["grids"]["n"])
    ranks = fabric.parts["grids"]["n"].nodes
    ways = ways_for(
        fabric.parts["grids"]["n"], ranks, steps_named("halving-doubling", 4)
    )
    with pytest.raises(ValueError, match=r"less than the receivers' -8\.5 dBm"):
        cross_connects(fabric.parts["grids"]["n"], fabric, ways)
