"""Grids described as a whole, beside those of O-NICs."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringlight.extensions.sip_ml.simulation.zoo import RelayedGridNetwork
from ringlight.extensions.sip_ml.wholes.whole_grid import GridOfGpus
from ringlight.testbed.simulation.maxmin import rates
from tests.extensions.sip_ml.test_zoo_networks import all_pairs, of_fabric, step_of

grid_network = pytest.importorskip("ringlight.extensions.oddl.network")
fabrics = importlib.import_module("tests.extensions.oddl.fabrics")


def test_counts_are_those_of_a_grid_described_as_a_whole() -> None:
    assert of_fabric(fabrics.grid_fabric(2, 3)) == GridOfGpus(2, 3, 1e9, 2).counts(6)


@given(st.data(), st.integers(2, 4), st.integers(2, 5))
@settings(max_examples=40)
def test_on_one_line_the_relaying_grid_is_the_grid(
    data: st.DataObject, rows: int, columns: int
) -> None:
    fabric = fabrics.grid_fabric(rows, columns, rate="400 Gbit/s")
    nodes = fabric.parts["grids"]["n"].nodes
    step = all_pairs(len(nodes))
    a, b = step.sources, step.destinations
    line = np.flatnonzero((a // columns == b // columns) | (a % columns == b % columns))
    chosen = np.array(
        data.draw(st.lists(st.sampled_from(line.tolist()), min_size=1, max_size=20))
    )
    some = step_of(a[chosen], b[chosen])
    known = grid_network.GridNetwork(fabric, fabric.parts["grids"]["n"])
    ours = RelayedGridNetwork(nodes, columns, 400e9)
    assert ours.capacity_bps.sum() == known.capacity_bps.sum()
    expected, routes = known.routes(nodes, some), ours.routes(nodes, some)
    assert rates(routes.offsets, routes.links, ours.capacity_bps) == pytest.approx(
        rates(expected.offsets, expected.links, known.capacity_bps)
    )
