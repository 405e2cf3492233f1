"""Light divided among pairs: every lightpath leads from its sender to its receiver, and disturbs no other."""

from __future__ import annotations

import numpy as np
import pytest

from ringlight.extensions.sip_ml.allocation.circuits import single_shot
from ringlight.extensions.sip_ml.allocation.dividing import divider
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath
from ringlight.fabric.algorithms import steps_named
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import CrossConnect, check_matching
from ringlight.fabric.keys import plugged
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.steps import FloatArray, sent_in_steps
from ringlight.fabric.topology import CrossConnects, Fabric


def fabric(gpus: int, **interconnect: object) -> Fabric:
    keys = {"gpu": "a100", "rate": "200 Gbit/s", "gpus": gpus} | interconnect
    return plugged(build_fabric(FabricSpec.model_validate({"interconnect": keys})))


def planes(gpus: int, switches: int, **more: object) -> Fabric:
    return fabric(gpus, kind="parallel-ocs", switches=switches, **more)


def ring(gpus: int) -> Fabric:
    return fabric(
        gpus, kind="demand-ring", wavelength="25 Gbit/s", interval="5 ms", dark="1 ms"
    )


LOOP = {"interval": "5 ms", "dark": "1 ms"}
FABRICS = {
    "planes": planes(8, 4, **LOOP),
    "many planes": planes(5, 9, **LOOP),
    "one plane": planes(3, 1, **LOOP),
    "ring": ring(8),
    "ring of 2": ring(2),
    "ring of 5": ring(5),
}


def some_demand(rng: np.random.Generator, gpus: int) -> FloatArray:
    matrix = 10 ** rng.uniform(0, 6, (gpus, gpus)) * (
        rng.random((gpus, gpus)) < rng.choice([0.2, 0.5, 1.0])
    )
    np.fill_diagonal(matrix, 0)
    return matrix


def end_of(fabric: Fabric, setting: CrossConnects, source: str, path: Lightpath) -> str:
    """Where light of a lightpath's colour arrives that leaves its port."""
    at = Port(source, path.port)
    while True:
        at = fabric.link_at[at].other(at)
        if at.node in fabric.gpus:
            # Light arrives at the port of the number that it left from.
            assert at.number == path.port
            return at.node
        switch = fabric.optical_switches[at.node]
        (through,) = [
            xc
            for xc in setting[at.node]
            if xc.ingress == switch.ingress(at.number)
            and xc.wavelength in (None, path.wavelength)
        ]
        at = Port(at.node, through.egress - switch.size)


@pytest.mark.parametrize("name", FABRICS)
def test_each_lightpath_leads_to_its_receiver(name: str) -> None:
    made = FABRICS[name]
    names = list(made.gpus)
    dividing = divider(made)
    rng = np.random.default_rng(7)
    for _ in range(35):
        demand = some_demand(rng, len(names))
        division = dividing.division(demand)
        setting = setting_of(made, division.paths)
        assert setting.keys() == set(made.parts["divided"].switches)
        for group in setting.values():
            check_matching(group)
        counts = np.zeros_like(division.counts)
        for (i, j), paths in division.paths.items():
            assert len(set(paths)) == len(paths)
            counts[i, j] = len(paths)
            for path in paths:
                assert end_of(made, setting, names[i], path) == names[j]
        assert (counts == division.counts).all()
        assert (counts == divider(made).counts(demand)).all()
        assert not counts[demand == 0].any()


def test_nobody_sends_and_nothing_is_lit() -> None:
    for made in FABRICS.values():
        division = divider(made).division(np.zeros((len(made.gpus),) * 2))
        assert not division.paths
        assert not any(setting_of(made, division.paths).values())


def test_faceplates_are_those_of_the_fibres() -> None:
    made = planes(4, 2)
    setting = setting_of(made, {(0, 3): (Lightpath(1),)})
    assert setting == {"q0": frozenset(), "q1": frozenset({CrossConnect(1, 4 + 4)})}


def test_circuits_set_once_must_reach_all_partners_and_those_set_again_need_not() -> (
    None
):
    everybody = np.ones((8, 8)) - np.eye(8)
    with pytest.raises(
        ValueError, match="GPU 0 sends to 7 others, and 4 switches join it to at most 4"
    ):
        divider(planes(8, 4)).counts(everybody)
    assert divider(planes(8, 4, **LOOP)).counts(everybody).sum(axis=1).max() == 4
    neighbours = np.roll(np.eye(8), 1, axis=1)
    assert (
        divider(planes(8, 4)).counts(neighbours) == single_shot(neighbours, 4).counts
    ).all()


def test_an_interconnect_is_divided_without_its_ports() -> None:
    whole = build_fabric(
        FabricSpec.model_validate(
            {"interconnect": {"kind": "parallel-ocs", "gpus": 100, "gpu": "a100", "rate": "2 Tbit/s",
                              "switches": 20}}
        )
    )  # fmt: skip
    assert divider(whole).rate_bps == 100e9
    assert divider(whole).counts(np.roll(np.eye(100), 1, axis=1)).sum() == 2000
    assert divider(ring(8)).rate_bps == 25e9


def test_light_that_is_not_divided_is_refused() -> None:
    torus = build_fabric(FabricSpec.model_validate(
        {"interconnect": {"kind": "ideal", "gpus": 4, "gpu": "a100", "rate": "2 Tbit/s"}}))  # fmt: skip
    with pytest.raises(ValueError, match="not divided"):
        divider(torus)
    with pytest.raises(ValueError, match="not divided"):
        setting_of(torus, {})


def test_what_ranks_send_in_a_collective() -> None:
    found = sent_in_steps(steps_named("ring", 4), 400.0)
    assert (found == 600 * np.roll(np.eye(4), 1, axis=1)).all()
