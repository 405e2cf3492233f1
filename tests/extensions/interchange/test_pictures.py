"""A fabric for other programs: what goes in comes out of each form."""

from __future__ import annotations

import io
import re

import networkx as nx

from ringlight.extensions.interchange.pictures import (
    dot,
    graphml,
    mermaid,
    plugged_graph,
)
from ringlight.fabric.building import build_fabric
from ringlight.fabric.schema import FabricSpec
from ringlight.fabric.topology import Fabric

SPEC = {
    "servers": {
        "s0": {"gpus": {"g0": "test", "g1": "test"}},
        "s1": {"gpus": {"g2": "test"}},
    },
    "packet_switches": {"tor-0": {"ports": 4}},
    "optical_switches": {"ocs0": {"size": 4}},
    "links": [
        {"ends": ["g0", "ocs0:1"], "rate": "40 Gbit/s"},
        {"ends": ["g1", "tor-0:3"], "rate": "10 Gbit/s"},
        {"ends": ["g2", "tor-0:4"], "rate": "10 Gbit/s"},
        {"ends": ["tor-0:1", "ocs0:2"], "rate": "40 Gbit/s"},
        {"ends": ["tor-0:2", "ocs0:3"], "rate": "40 Gbit/s"},
    ],
    "circuits": [["g0", "tor-0:1"]],
}


def fabric() -> Fabric:
    return build_fabric(FabricSpec.model_validate(SPEC))


def test_graphml_is_read_back_with_both_cables_between_two_switches() -> None:
    made = fabric()
    found = nx.read_graphml(io.StringIO(graphml(plugged_graph(made, made.circuits))))
    assert dict(found.nodes(data="kind")) == {
        "g0": "gpu",
        "g1": "gpu",
        "g2": "gpu",
        "tor-0": "packet switch",
        "ocs0": "optical switch",
    }
    assert found.nodes["g2"] == {"kind": "gpu", "server": "s1", "ip": "10.82.0.4"}
    edges = sorted(
        (data["kind"], data["port"], data["other_port"])
        for *_, data in found.edges(data=True)
    )
    assert edges == [
        ("circuit", "g0:0", "tor-0:1"),
        ("link", "g0:0", "ocs0:1"),
        ("link", "g1:0", "tor-0:3"),
        ("link", "g2:0", "tor-0:4"),
        ("link", "tor-0:1", "ocs0:2"),
        ("link", "tor-0:2", "ocs0:3"),
    ]
    assert {data.get("rate_bps") for *_, data in found.edges(data=True)} == {
        40e9,
        10e9,
        None,
    }


def test_dot_names_the_port_at_the_end_where_it_is() -> None:
    made = fabric()
    lines = dot(plugged_graph(made, made.circuits)).splitlines()
    assert lines[0] == "graph fabric {"
    assert lines[-1] == "}"
    assert (
        '  "g0" -- "ocs0" [taillabel="0", headlabel="1", label="40 Gbit/s"];' in lines
    )
    assert (
        '  "g0" -- "tor-0" [taillabel="0", headlabel="1", label="circuit", style=dashed];'
        in lines
    )
    assert (
        '  "tor-0" -- "ocs0" [taillabel="2", headlabel="3", label="40 Gbit/s"];'
        in lines
    )
    assert '  "ocs0" [shape=hexagon];' in lines


def test_mermaid_has_gpus_in_their_servers_and_circuits_dotted() -> None:
    made = fabric()
    text = mermaid(plugged_graph(made, made.circuits))
    ids = {name: number for number, name in re.findall(r'(n\d+)\W+"([^"]+)"', text)}
    assert text.startswith("flowchart LR\n")
    assert (
        f'  subgraph s0["s0"]\n    {ids["g0"]}(["g0"])\n    {ids["g1"]}(["g1"])\n  end\n'
        in text
    )
    assert f'{ids["g0"]} ---|"g0:0 – ocs0:1, 40 Gbit/s"| {ids["ocs0"]}\n' in text
    assert f'{ids["g0"]} -.-|"g0:0 – tor-0:1"| {ids["tor-0"]}\n' in text
    assert text.count("---") == 5
