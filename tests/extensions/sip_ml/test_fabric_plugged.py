"""An interconnect as ports, fibres and switches, for a lab."""

from __future__ import annotations

import pytest

from ringlight.extensions.sip_ml.divided.planes import Planes
from ringlight.extensions.wrht.ring import WdmRing
from ringlight.fabric.building import build_fabric
from ringlight.fabric.keys import plugged
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import (
    Fabric,
    circuit_cross_connects,
    electrical_graph,
    optical_neighbour,
)


def fabric(**interconnect: object) -> Fabric:
    keys = {"gpu": "a100", "rate": "200 Gbit/s", "gpus": 8} | interconnect
    return build_fabric(FabricSpec.model_validate({"interconnect": keys}))


def ring(**more: object) -> Fabric:
    keys = {"wavelength": "25 Gbit/s", "interval": "5 ms", "dark": "1 ms"} | more
    return fabric(kind="demand-ring", **keys)


def test_planes_have_a_fibre_of_each_gpu_on_each_switch() -> None:
    made = plugged(fabric(kind="parallel-ocs", switches=4))
    assert made.parts["divided"] == Planes(
        "parallel-ocs", tuple(f"g{i}" for i in range(8)), ("q0", "q1", "q2", "q3")
    )
    assert len(made.links) == 8 * 4
    assert {link.rate_bps for link in made.links} == {50e9}
    assert made.link_at[Port("g2", 3)].other(Port("g2", 3)) == Port("q3", 3)
    assert {
        (o.ports, o.transmitters, o.standing, o.tuning_s) for o in made.onics.values()
    } == {(4, "array", True, 0.0)}
    for switch in made.optical_switches.values():
        assert (switch.size, switch.wavelengths, switch.device.dark_s) == (8, None, 0.0)


def test_planes_divided_anew_are_dark_for_the_stated_time() -> None:
    made = plugged(
        fabric(kind="parallel-ocs", switches=2, interval="5 ms", dark="1 ms")
    )
    (device,) = {switch.device for switch in made.optical_switches.values()}
    assert (
        device.dark_s,
        device.dark_jitter_s,
        device.retrain_s,
        device.command_s,
    ) == (1e-3, 0, 0, 0)


def test_a_ring_has_a_small_wss_at_each_gpu_and_all_colours_at_each_port() -> None:
    made = plugged(ring())
    assert made.parts["divided"] == WdmRing(
        "demand-ring",
        tuple(f"g{i}" for i in range(8)),
        tuple(f"w{i}" for i in range(8)),
        4,
    )
    assert "rings" not in made.parts
    assert len(made.links) == 3 * 8
    assert {link.rate_bps for link in made.links} == {25e9}
    assert {
        (s.size, s.wavelengths, s.device.dark_s) for s in made.optical_switches.values()
    } == {(4, 4, 1e-3)}
    assert {(o.ports, o.standing) for o in made.onics.values()} == {(2, True)}


@pytest.mark.parametrize(
    "made", [plugged(fabric(kind="parallel-ocs", switches=4)), plugged(ring())]
)
def test_packets_and_circuits_do_not_see_its_light(made: Fabric) -> None:
    assert made.electrical_ports == ()
    assert electrical_graph(made, {}).edges == ()
    assert circuit_cross_connects(made, []) == {}
    assert optical_neighbour(made, Port("g0", 0)) is None
    with pytest.raises(ValueError, match="no optical switch joins g0:0 and g1:0"):
        circuit_cross_connects(made, [(Port("g0", 0), Port("g1", 0))])


def test_what_stands_beside_is_kept_and_what_is_plugged_stays() -> None:
    whole = ring()
    made = plugged(whole)
    assert made.gpus == whole.gpus
    assert made.parts["interconnect"] == whole.parts["interconnect"]
    assert plugged(made) is made
    ports = build_fabric(FabricSpec.model_validate({"servers": {"s0": {"gpus": {"g0": "a100"}}},
        "packet_switches": {"tor0": {"ports": 2}}, "links": []}))  # fmt: skip
    assert plugged(ports) is ports


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (
            fabric(kind="torus", sides=[2, 4]),
            "interconnect.kind: it is simulated only; parallel-ocs and demand-ring are emulated, too",
        ),
        (fabric(kind="ideal"), "interconnect.kind: it is simulated only"),
        (
            fabric(kind="parallel-ocs", switches=2, gpus=1024),
            "interconnect.gpus: 1024; at most 32 are emulated",
        ),
        (
            fabric(kind="parallel-ocs", switches=40),
            "interconnect.switches: 40; an emulated O-NIC has at most 32 ports",
        ),
        (
            ring(rate="2 Tbit/s"),
            "interconnect.rate: 40 wavelengths in each direction; at most 32 are emulated",
        ),
    ],
)
def test_what_cannot_be_emulated_is_refused_by_its_key(
    whole: Fabric, said: str
) -> None:
    with pytest.raises(ValueError, match="interconnect") as caught:
        plugged(whole)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
