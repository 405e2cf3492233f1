"""What TCP gives away at full load, and where a simulation takes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringlight.experiments.backends.simulation.collectives import payload_part
from ringlight.experiments.language.expand import load
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.full_load import MEASURED, flows_both_ways, left

FILE = Path(__file__).parents[2] / "scenarios" / "examples" / "all_to_all.yaml"


def flows(collective: str, ranks: int) -> int:
    return flows_both_ways(
        (step.sources, step.destinations) for step in steps_named(collective, ranks)
    )


def test_flows_count_where_both_of_their_links_are_shared_and_full_both_ways() -> None:
    assert flows("ring", 8) == 1
    # Children send, and their parent sends only once it has all.
    assert flows("binary-tree", 8) == 0
    everyone = (
        np.repeat(np.arange(5), 4),
        np.concatenate([np.delete(np.arange(5), i) for i in range(5)]),
    )
    assert flows_both_ways([everyone]) == 4
    # All send to one: its link is shared, theirs are not.
    assert flows_both_ways([(np.array([1, 2, 3, 0]), np.array([0, 0, 0, 1]))]) == 1


def test_shares_are_the_measured_ones_and_between_them_in_between() -> None:
    assert left(0) == 1.0
    for count, share in MEASURED.items():
        assert left(count) == pytest.approx(share)
    assert min(MEASURED[4], MEASURED[8]) < left(6) < max(MEASURED[4], MEASURED[8])
    assert left(1000) == pytest.approx(MEASURED[15])


def test_a_simulation_takes_it_where_it_is_asked_for() -> None:
    for asked, share in (("true", 0.99 * MEASURED[15]), ("false", 0.99)):
        plans = load(FILE, sets=[f"tcp.full_load={asked}"]).plans
        assert payload_part(plans[0], 0.99) == pytest.approx(share)
