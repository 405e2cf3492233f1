"""Loss adds up along a path, and what it leaves decides whether the receiver reads anything."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.light import (
    Fibres,
    Optics,
    Wires,
    arriving_dbm,
    dimness,
    reach,
    received_dbm,
)
from ringlight.fabric.optical_profiles import profiles
from ringlight.fabric.parts import OpticalSwitch, Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric, electrical_graph, path_dbm, trace


def described(**sections: object) -> Fabric:
    return build_fabric(FabricSpec.model_validate(sections))


def chain(
    sensitivity_dbm: float, **light: float
) -> tuple[Fabric, dict[str, list[CrossConnect]]]:
    """g0 - ocs0 - ocs1 - g1, 2 and 3 dB, lit both ways."""
    fabric = described(
        servers={"s0": {"gpus": {"g0": "x", "g1": "x"}}},
        packet_switches={"tor0": {"ports": 1}},
        optical_switches={
            "ocs0": {"size": 2, "loss_db": 2},
            "ocs1": {"size": 2, "loss_db": 3},
        },
        links=[
            {"ends": ["g0", "ocs0:1"], "rate": "1 Gbit/s"},
            {"ends": ["ocs0:2", "ocs1:2"], "rate": "1 Gbit/s"},
            {"ends": ["g1", "ocs1:1"], "rate": "1 Gbit/s"},
        ],
        light={"sensitivity_dbm": sensitivity_dbm, **light},
    )
    both = [CrossConnect(1, 4), CrossConnect(2, 3)]
    return fabric, {"ocs0": both, "ocs1": both}


def test_loss_accumulates_over_switches_and_fibres() -> None:
    fabric, lit = chain(-30, launch_dbm=1, fibre_db=0.5)
    path = trace(fabric, lit, Port("g0", 0))
    assert path[-1] == Port("g1", 0)
    assert path_dbm(fabric, path) == pytest.approx(1 - 2 - 3 - 3 * 0.5)


@pytest.mark.parametrize(("sensitivity_dbm", "joined"), [(-5.0, True), (-4.999, False)])
def test_packets_do_not_see_a_path_that_is_too_weak(
    sensitivity_dbm: float, joined: bool
) -> None:
    graph = electrical_graph(*chain(sensitivity_dbm))
    assert graph.heads("g0") == (["g1"] if joined else [])
    assert graph.heads("g1") == (["g0"] if joined else [])


def test_copper_needs_no_light() -> None:
    fabric = described(
        servers={"s0": {"gpus": {"g0": "x"}}},
        packet_switches={"tor0": {"ports": 1}},
        links=[{"ends": ["g0", "tor0:1"], "rate": "1 Gbit/s"}],
        light={"sensitivity_dbm": 10},
    )
    assert electrical_graph(fabric, {}).heads("g0") == ["tor0"]


def test_a_switch_loses_what_its_profile_says_unless_told_otherwise() -> None:
    switch = OpticalSwitch("w", 2, "scpi", "lcos", wavelengths=2)
    profile = profiles()["lcos"]
    assert switch.insertion_loss_db == profile.loss_max_db + profile.repeatability_db
    exact = profile.losing(2.0)
    assert (exact.loss_min_db, exact.loss_max_db, exact.repeatability_db) == (
        2.0,
        2.0,
        0.0,
    )
    assert replace(switch, loss_db=0.0).insertion_loss_db == 0


@given(
    st.integers(1, 8),
    st.lists(st.floats(0, 5), min_size=8, max_size=8),
    st.floats(0, 2),
    st.floats(-40, 0),
    st.integers(0, 2),
)
def test_the_receiver_gets_what_the_path_leaves(
    length: int,
    losses: list[float],
    fibre_db: float,
    sensitivity_dbm: float,
    colour: int,
) -> None:
    # A chain of switches w0 … ; light enters at port 1 and leaves at port 2, towards the next one's port 1.
    optics = Optics(0.0, sensitivity_dbm, fibre_db)
    names = [f"w{i}" for i in range(length)]
    far = {}
    for a, b in pairwise(names):
        far |= {(a, 2): (b, 1), (b, 1): (a, 2)}
    fibres = Fibres(optics, dict.fromkeys(names, 2), far)
    state: dict[str, Wires] = {
        name: {(1, colour): (4, losses[i])} for i, name in enumerate(names)
    }
    expected = received_dbm(0.0, [*losses[:length], *[fibre_db] * (length + 1)])
    last = names[-1]
    arriving = arriving_dbm(fibres, state.__getitem__, last, 1, colour)
    assert arriving is not None
    assert arriving - losses[length - 1] - fibre_db == pytest.approx(expected)
    assert frozenset(dimness(fibres, state.__getitem__, last)) == (
        frozenset() if optics.reads(expected) else {(1, colour)}
    )
    for name in names[:-1]:
        assert not dimness(fibres, state.__getitem__, name), (
            "only the last one faces a receiver"
        )
    assert arriving_dbm(fibres, state.__getitem__, last, 1, colour + 1) == (
        None if length > 1 else pytest.approx(-fibre_db)
    )
    if length > 1:
        state[names[0]] = {}
        assert arriving_dbm(fibres, state.__getitem__, last, 1, colour) is None


def test_light_in_a_loop_is_no_light() -> None:
    fibres = Fibres(
        Optics(), {"a": 1, "b": 1}, {("a", 1): ("b", 1), ("b", 1): ("a", 1)}
    )
    assert arriving_dbm(fibres, lambda _: {(1, None): (2, 1.0)}, "a", 1, None) is None


@pytest.mark.parametrize(
    ("budget_db", "segment_db", "segments"),
    [(10, 3, 3), (9, 3, 3), (2.9, 3, 0), (25.6, 0.0496, 516)],
)
def test_reach(budget_db: float, segment_db: float, segments: int) -> None:
    assert reach(budget_db, segment_db) == segments
