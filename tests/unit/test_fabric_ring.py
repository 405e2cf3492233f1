"""Rings of wavelengths: as part of a scenario file."""

from __future__ import annotations

from typing import Any

import pytest

from fabric.schema import FabricSpec, build_fabric
from fabric.topology import Fabric, OpticalSwitch, Port, electrical_graph
from fabric.wdm import wdm_ring
from tests.unit.fabrics import six_gpus


def ring_spec(**values: Any) -> dict[str, Any]:
    return {"nodes": 9, "gpu": "p100", "rate": "25 Gbit/s"} | values


def built(raw: dict[str, Any]) -> Fabric:
    return build_fabric(FabricSpec.model_validate(raw))


def test_a_ring_becomes_gpus_switches_and_fibres() -> None:
    fabric = built({"rings": {"r": ring_spec(wavelengths=2)}})
    alone, ring = wdm_ring("r", 9, 2, 25e9, gpu="p100")
    assert fabric == alone
    assert fabric.rings == {"r": ring}
    assert (fabric.gpus["r8"].ip, fabric.gpus["r8"].server) == ("10.82.0.10", "r-s8")
    assert fabric.optical_switches["r-w8"] == OpticalSwitch("r-w8", 4, "scpi", "mrr", 2)
    assert {onic.transmitters for onic in fabric.onics.values()} == {"array"}
    # The ring closes, and its node 0 is west of node 1.
    assert fabric.link_at[Port("r-w8", 2)].other(Port("r-w8", 2)) == Port("r-w0", 1)
    assert fabric.link_at[Port("r-w0", 2)].other(Port("r-w0", 2)) == Port("r-w1", 1)
    assert electrical_graph(fabric, {}).number_of_edges() == 0


def test_a_ring_may_stand_beside_the_rest() -> None:
    grid = {"rows": 2, "columns": 2, "gpu": "titan-v", "rate": "100 Gbit/s"}
    ring = ring_spec(nodes=3, wss={"profile": "ideal"}, queue="5 ms")
    fabric = built(six_gpus() | {"grids": {"n": grid}, "rings": {"r": ring}})
    assert list(fabric.gpus)[-7:] == ["n0", "n1", "n2", "n3", "r0", "r1", "r2"]
    assert len({gpu.ip for gpu in fabric.gpus.values()}) == 13
    assert {fabric.onics[name].transmitters for name in ("n0", "n3")} == {"tunable"}
    assert fabric.optical_switches["r-w2"].profile == "ideal"
    assert fabric.link_at[Port("r2", 1)].queue_s == pytest.approx(5e-3)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"rings": {"r": ring_spec(nodes=1)}}, r"rings\.r\.nodes"),
        ({"rings": {"r": ring_spec(wavelengths=0)}}, r"rings\.r\.wavelengths"),
        ({"rings": {"r": ring_spec(wss={"profile": "mems"})}}, r"rings\.r\.wss\.profile"),
        ({"rings": {"r": ring_spec(tuning="1 ns")}}, r"rings\.r\.tuning"),
        (
            {"rings": {"r": ring_spec(nodes=12), "r1": ring_spec(nodes=2)}},
            r"rings\.r1: r-s10 has GPU r10 too",
        ),
        (
            {"rings": {"r": ring_spec()}, "optical_switches": {"r-w0": {"size": 2}}},
            r"the name r-w0 is used by two nodes",
        ),
        (
            {
                "rings": {"r": ring_spec()},
                "packet_switches": {"tor0": {"ports": 1}},
                "links": [{"ends": ["r0:1", "tor0:1"], "rate": "1 Gbit/s"}],
            },
            r"links\[0\]: port r0:1 is already plugged in rings\.r",
        ),
    ],
)
def test_a_bad_ring_is_named(raw: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        built(raw)
