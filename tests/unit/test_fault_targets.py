"""What a fault may be asked of, and the one line that a wrong target gets."""

from __future__ import annotations

from typing import Any

import pytest

from ringlight.fabric.building import build_fabric
from ringlight.fabric.parts import Port
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation import fault_targets
from ringlight.testbed.emulation.fault_targets import (
    FaultTarget,
    TargetError,
    find_target,
    read_request,
)
from tests.unit.fabrics import onic_stars


def fabric_of(**parts: Any) -> Fabric:
    return build_fabric(FabricSpec.model_validate(parts))


FABRIC = fabric_of(
    servers={"s0": {"gpus": {f"g{i}": "test" for i in range(4)}}},
    packet_switches={"tor0": {"ports": 6}, "tor1": {"ports": 6}},
    optical_switches={"ocs0": {"size": 4, "profile": "ideal"}},
    links=[
        {"ends": ["g0", "tor0:1"], "rate": "1 Gbit/s"},
        {"ends": ["g1", "ocs0:1"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:2", "ocs0:2"], "rate": "1 Gbit/s"},
        {"ends": ["tor0:5", "tor1:5"], "rate": "1 Gbit/s"},
    ],
)


def find(fabric: Fabric, do: str, target: Any, **more: Any) -> FaultTarget:
    return find_target(fabric, read_request({"do": do, "target": target, **more}))


@pytest.mark.parametrize(
    ("do", "target", "kind", "text", "ports"),
    [
        (
            "cut",
            ["tor0:5", "tor1:5"],
            "link",
            "link tor0:5 tor1:5",
            {"tor0:5", "tor1:5"},
        ),
        (
            "restore",
            ["tor1:5", "tor0:5"],
            "link",
            "link tor0:5 tor1:5",
            {"tor0:5", "tor1:5"},
        ),
        (
            "cut",
            "link tor0:5 tor1:5",
            "link",
            "link tor0:5 tor1:5",
            {"tor0:5", "tor1:5"},
        ),
        ("cut", ["tor0:1", "g0"], "link", "link g0:0 tor0:1", {"tor0:1"}),
        ("lose", "nic g1", "nic", "nic g1", {"ocs0:1"}),
        ("lose", "gpu g2", "gpu", "gpu g2", set()),
        (
            "kill",
            "switch tor0",
            "packet switch",
            "switch tor0",
            {"tor0:1", "tor0:2", "tor0:5"},
        ),
        ("kill", "switch  ocs0", "optical switch", "switch ocs0", set()),
        ("kill", "worker red 03", "worker", "worker red 3", set()),
    ],
)
def test_a_target_is_found_however_it_is_written(
    do: str, target: Any, kind: str, text: str, ports: set[str]
) -> None:
    found = find(FABRIC, do, target)
    assert (found.kind, found.text) == (kind, text)
    assert {str(port) for port in found.ports} == ports


def test_a_lost_gpu_loses_all_fibres_of_its_o_nic_at_both_ends() -> None:
    fabric = onic_stars(2, ports=2)
    ports = find(fabric, "lose", "gpu n1").ports
    assert ports == {Port("n1", 0), Port("n1", 1), Port("w0", 2), Port("w1", 2)}
    assert find(fabric, "kill", "agent n1").kind == "agent"


NODES = "g0, g1, g2, g3, ocs0, tor0, tor1"


@pytest.mark.parametrize(
    ("do", "target", "status", "said"),
    [
        ("cut", ["g0", "tor1"], 404, "there is no link between g0 and tor1"),
        (
            "cut",
            ["tor0:5", "tor1:6"],
            404,
            "there is no link tor0:5 - tor1:6; tor0:5 leads to tor1:5",
        ),
        (
            "cut",
            ["tor0:6", "tor1:5"],
            404,
            "there is no link tor0:6 - tor1:5; tor1:5 leads to tor0:5",
        ),
        (
            "cut",
            ["tor0:6", "tor1:6"],
            404,
            "there is no link tor0:6 - tor1:6; neither of them is plugged in",
        ),
        ("cut", ["tor9:6", "tor1:6"], 404, f"there is no tor9; there are {NODES}"),
        (
            "cut",
            ["tor0:x", "tor1:6"],
            422,
            "target: 'tor0:x' is not a port; write node:number, such as tor0:3",
        ),
        (
            "cut",
            ["tor0:5"],
            422,
            "target: write words such as 'switch tor0' or 'link tor0:5 tor1:5'",
        ),
        (
            "cut",
            7,
            422,
            "target: write words such as 'switch tor0' or 'link tor0:5 tor1:5'",
        ),
        ("cut", "switch tor0", 422, "do: cut: a switch can be killed and restored"),
        ("kill", ["tor0:5", "tor1:5"], 422, "do: kill: a link takes cut, "),
        ("kill", "switch x", 404, "there is no switch x; there are ocs0, tor0, tor1"),
        ("kill", "agent g9", 404, "there is no GPU g9; there are g0, g1, g2, g3"),
        ("kill", "agent g0", 409, "GPU g0 has no O-NIC"),
        ("kill", "mixer m0", 404, "there is no mixer m0; there are none"),
        ("lose", "mixer m0", 422, "do: lose: mixer m0 can be killed and restored"),
        ("kill", "server agent", 422, "back_after_s: is missing"),
        ("restore", "server agent", 422, "the server agent comes back by itself"),
        ("restore", "worker red 0", 422, "a killed worker does not come back"),
        ("lose", "nic g3", 409, "GPU g3 is not plugged into anything"),
        (
            "lose",
            "the lot",
            422,
            "target: 'the lot' is none of 'link PORT PORT', 'switch NAME', 'agent GPU'",
        ),
        ("melt", "gpu g0", 422, "do: Input should be 'cut', 'kill', 'lose', 'disturb'"),
        (
            "kill",
            "control network",
            422,
            "do: kill: the control network can be disturbed and restored",
        ),
        (
            "restore",
            "control network",
            409,
            "there is no control network: no GPU has an O-NIC",
        ),
    ],
)
def test_a_wrong_target_gets_one_line_that_says_what_there_is(
    do: str, target: Any, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_targets, "device_words", lambda: ("mixer",))
    with pytest.raises(TargetError) as error:
        find(FABRIC, do, target)
    assert error.value.status == status
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"do": "cut"}, "target: write words"),
        ({"target": "gpu g0"}, "do: Field required"),
        (
            {"do": "lose", "target": "gpu g0", "back_after_s": -1},
            "back_after_s: Input should be greater",
        ),
        (
            {"do": "lose", "target": "gpu g0", "back_after_s": "nan"},
            "back_after_s: Input should be",
        ),
        (
            {"do": "restore", "target": "gpu g0", "back_after_s": 1},
            "back_after_s: what is restored is back",
        ),
        (
            {"do": "lose", "target": "gpu g0", "control": {"loss": 0.1}},
            "control: does not go with lose",
        ),
        ({"do": "disturb", "target": "control network"}, "control: is missing"),
        (
            {"do": "disturb", "target": "control network", "control": {"loss": 2}},
            "control: loss must be a share from 0 to 1",
        ),
        (
            {
                "do": "disturb",
                "target": "control network",
                "control": {"tuning_s": {"n0": 61}},
            },
            "control: tuning_s.n0 must be from 0 to 60 seconds",
        ),
        ({"do": "lose", "target": "gpu g0", "after": 1}, "after: Extra inputs"),
        ([], "request: Input should be"),
    ],
)
def test_a_request_that_is_none_names_the_key(body: Any, said: str) -> None:
    with pytest.raises(TargetError) as error:
        read_request(body)
    assert error.value.status == 422
    assert str(error.value).startswith(said)


def test_many_names_are_not_all_told() -> None:
    names = [f"g{i}" for i in range(20)]
    links = [
        {"ends": [name, f"tor0:{i + 1}"], "rate": "1 Gbit/s"}
        for i, name in enumerate(names)
    ]
    fabric = fabric_of(
        servers={"s0": {"gpus": dict.fromkeys(names, "test")}},
        packet_switches={"tor0": {"ports": 20}},
        links=links,
    )
    with pytest.raises(TargetError, match=r"there are g0, g1, .*, g11 and 8 more$"):
        find(fabric, "lose", "gpu x")
