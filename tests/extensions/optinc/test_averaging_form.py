"""The short form of servers on averagers, and what an averager's light makes of its answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringlight.extensions.optinc.averager import Averager, Imperfect
from ringlight.extensions.optinc.averaging import averaging_of
from ringlight.extensions.optinc.photonics import (
    carried,
    errors_of,
    meshes_of,
    network_of,
)
from ringlight.extensions.optinc.unit.averaging import Coding
from ringlight.extensions.optinc.unit.wire import FRAME, HEADER_BYTES
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.fabric.whole_numbers.blocks import block_count


def fabric_of(**form: Any) -> Fabric:
    given_form = {"servers": 4, "bits": 8, "rate": "100 Gbit/s", **form}
    return build_fabric(FabricSpec.model_validate({"averaging": given_form}))


@given(st.integers(2, 64))
def test_every_server_is_on_the_packet_switch_and_on_the_averager(servers: int) -> None:
    fabric = fabric_of(servers=servers)
    found = averaging_of(fabric, list(fabric.gpus))
    assert found.servers == tuple(f"g{k}" for k in range(servers))
    assert (found.above, len(found.first), found.first[0].ports) == (None, 1, servers)
    assert sorted(link.a.node for link in fabric.links) == sorted(fabric.gpus)


@pytest.mark.parametrize("ports", [2, 4, 8, 16])
def test_two_levels_have_an_averager_above_as_many_as_it_has_ports(ports: int) -> None:
    fabric = fabric_of(servers=ports**2, levels=2, decimals=False)
    found = averaging_of(fabric, list(fabric.gpus))
    assert found.above is not None
    assert [one.ports for one in (*found.first, found.above)] == [ports] * (ports + 1)
    assert found.servers == tuple(fabric.gpus)
    assert not any(one.decimals for one in found.first)
    assert found.above.decimals


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (
            {"servers": 12, "levels": 2},
            "averaging.servers: 12; two levels have a square number of them",
        ),
        ({"servers": 65}, "averaging.servers: 65; an averager has up to 64 ports"),
        (
            {"network": "trained", "servers": 8},
            "averagers.avg0.network: no trained weights",
        ),
        (
            {"approximated": "4-9"},
            "averagers.avg0.approximated: layer 7 of 6 cannot be approximated",
        ),
        ({"approximated": "6-4"}, "are no layers"),
        (
            {"servers": 6, "approximated": "1-2"},
            "no layers are known for 8 bits on 6 ports",
        ),
        (
            {"imperfect": {"noise": 0.1}},
            "averagers.avg0.imperfect: the exact mean has no light",
        ),
        ({"imperfect": {"phase_bits": 0}}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_named(form: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fabric_of(**form)


def test_a_name_of_the_short_form_is_taken() -> None:
    section = {
        "averaging": {"servers": 4, "bits": 8, "rate": "100 Gbit/s"},
        "averagers": {"avg0": {"ports": 4, "bits": 8}},
    }
    with pytest.raises(
        ValueError, match=r"averagers\.avg0: averaging has an averager of this name"
    ):
        build_fabric(FabricSpec.model_validate(section))


@given(st.integers(1, 3 * FRAME), st.sampled_from([4, 16]))
def test_cables_carry_each_code_once_each_way(values: int, servers: int) -> None:
    fabric = fabric_of(servers=servers, levels=2 if servers == 16 else 1)
    found = carried(averaging_of(fabric, list(fabric.gpus)), 4 * values)
    headers = HEADER_BYTES * -(-values // FRAME)
    assert found.nic == values + headers
    # the rank with the largest part of the blocks: the others' parts to them, its own to each of them
    blocks = block_count(values)
    part = -(-blocks // servers)
    assert found.scales == 2 * (blocks - part + (servers - 1) * part)
    if servers == 16:
        # Two bits of decimals for each code.
        assert (found.up, found.down) == (
            values + -(-2 * values // 8) + headers,
            values + headers,
        )


def averager(
    network: str, light: Imperfect = Imperfect(), ports: int = 4, bits: int = 8
) -> Averager:
    return Averager("a", ports, bits, network, imperfect=light)  # type: ignore[arg-type]


@pytest.mark.parametrize("network", ["trained", "designed"])
def test_ideal_light_answers_all_inputs_rightly_and_bad_light_does_not(
    network: str,
) -> None:
    found = errors_of(averager(network))
    assert found is not None
    assert (found.inputs, found.wrong) == (Coding(8, 4).combinations, 0)
    shares = []
    for light in (
        Imperfect(phase_bits=6),
        Imperfect(phase_error=0.03),
        Imperfect(loss_db=1),
        Imperfect(noise=0.5),
    ):
        bad = errors_of(averager(network, light))
        assert bad is not None
        shares.append(bad.wrong / bad.inputs)
    assert min(shares) > 0.3
    # Other phases for another seed, and the same for the same.
    one, other = (
        errors_of(averager(network, Imperfect(phase_error=0.01, seed=seed)))
        for seed in (0, 1)
    )
    assert one != other


def test_an_exact_averager_and_other_layers_have_no_network() -> None:
    assert errors_of(averager("exact")) is None
    assert meshes_of(averager("exact")) is None
    other = Averager("a", 4, 16, "designed", approximated=(3, 6))
    assert network_of(other) is None
    assert errors_of(other) is None


def test_of_many_inputs_a_sample_is_tried() -> None:
    found = errors_of(averager("designed", bits=16))
    assert found is not None
    assert (found.inputs, found.wrong) == (2**16, 0)
