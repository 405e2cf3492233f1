"""InfraGraph: what its library makes of our documents, and what comes back of them."""

from __future__ import annotations

import json
from typing import Any

import networkx as nx
import pytest
import yaml
from hypothesis import given, settings

from ringlight.extensions.interchange.draft import Defaults, scenario_text
from ringlight.extensions.interchange.draft import fabric_of as drafted
from ringlight.extensions.interchange.exports import FORMS
from ringlight.extensions.interchange.imports import READERS
from ringlight.extensions.interchange.infragraph_graph import graph_of
from ringlight.extensions.interchange.snapshot import Snapshot
from ringlight.fabric.topology import Fabric
from tests.extensions.interchange.fabrics import TWO_TORS, documents, lit

pytest.importorskip("infragraph")


def exported(light: Snapshot, form: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(FORMS[form].text(light).text)
    return document


def plugged(fabric: Fabric) -> dict[str, object]:
    """What InfraGraph can say of a fabric."""
    gpus = {g.name: (g.server, g.model) for g in fabric.gpus.values()}
    links = {frozenset((x.a, x.b)): (x.rate_bps, x.queue_s) for x in fabric.links}
    optical = {
        s.name: (s.size, s.driver, s.profile, s.loss_db, s.dark_s)
        for s in fabric.optical_switches.values()
    }
    return {
        "gpus": gpus,
        "ports": {s.name: s.ports for s in fabric.packet_switches.values()},
        "optical": optical,
        "links": links,
        "circuits": {frozenset(pair) for pair in fabric.circuits},
    }


def test_the_library_makes_the_graph_as_plugged() -> None:
    graph = graph_of(exported(lit(TWO_TORS), "infragraph"), "test")
    # The figures of the library for this fabric, with both crossbars' edges (one edge for each port).
    assert (len(graph), graph.number_of_edges()) == (39, 45)
    assert graph.edges["g.0.nic.0", "ocs.0.port.0"]["bandwidth"] == "40.0 Gbps"
    assert graph.nodes["ocs.0.port.0"]["cross_connect"] == "ocs.0.port.6"
    assert graph.nodes["g.3.xpu.0"]["name"] == "g3"
    assert graph.nodes["ocs.0.crossbar.0"]["type"] == "optical_circuit_switch"
    assert graph.edges["tor.0.port.4", "tor.1.port.4"]["queue_s"] == "0.01"


def test_as_lit_light_takes_the_way_of_packets() -> None:
    graph = graph_of(exported(lit(TWO_TORS), "infragraph-lit"), "test")
    path = nx.shortest_path(graph, "g.0.nic.0", "g.3.nic.0")
    switches = [node.rpartition(".port.")[0] for node in path[1:-1] if ".port." in node]
    assert switches == [
        "ocs.0",
        "ocs.0",
        "tor.0",
        "tor.0",
        "tor.1",
        "tor.1",
        "ocs.0",
        "ocs.0",
    ]


@pytest.mark.parametrize("form", ["infragraph", "infragraph-lit"])
@settings(deadline=None, max_examples=40)
@given(document=documents())
def test_round_trip(form: str, document: dict[str, Any]) -> None:
    light = lit(document)
    text = FORMS[form].text(light).text
    validate = FORMS[form].validate
    assert validate is not None
    validate(text)
    draft = READERS["infragraph"](text, "test", Defaults())
    assert plugged(drafted(draft)) == plugged(light.fabric)


def test_what_is_not_carried_is_named() -> None:
    fabric = {**TWO_TORS, "paths": "even", "light": {"fibre_db": 0.5}}
    fabric["servers"] = {**TWO_TORS["servers"], "s9": {"gpus": {"g9": "m40"}}}
    written = FORMS["infragraph"].text(lit(fabric))
    assert written.lost == (
        "nodes with nothing plugged in (g9)",
        "power of light (light)",
        "the choice of paths (paths: even)",
    )
    assert written.text.startswith(
        "# not carried: nodes with nothing plugged in (g9)\n"
    )
    about = yaml.safe_load(written.text)["annotations"]["graph"]
    assert about == [{"attribute": "not_carried", "value": "; ".join(written.lost)}]


#: A server of two GPUs and two NICs of one device each, on a switch, as others write documents.
SERVERS = """
name: pod
devices:
- name: cx7
  components: [{name: pcie, choice: custom, count: 1, custom: {type: pcie}}, {name: port, choice: port, count: 1}]
  links: [{name: inside}]
  edges: [{ep1: {component: 'pcie[0]'}, ep2: {component: 'port[0]'}, scheme: one2one, link: inside}]
- name: dgx
  components:
  - {name: gpu, choice: xpu, count: 2}
  - {name: cx7, choice: device, count: 2}
  links: [{name: pcie}]
  edges: [{ep1: {component: 'gpu[0:2]'}, ep2: {component: 'cx7[0:2].pcie[0]'}, scheme: one2one, link: pcie}]
- name: leaf
  components: [{name: asic, choice: switch, count: 1}, {name: port, choice: port, count: 4}]
  links: [{name: internal}]
  edges: [{ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: internal}]
links: [{name: dac, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 50}, latency: {choice: ns, ns: 5}}}]
instances: [{name: DGX_H100, device: dgx, count: 2}, {name: leaf, device: leaf, count: 1}]
edges:
- {ep1: {instance: 'DGX_H100[0:2]', component: 'cx7[0:2].port[0]'}, ep2: {instance: 'leaf[0]', component: 'port[0:4]'}, scheme: one2one, link: dac}
"""  # noqa: E501


def test_servers_with_nics_as_devices() -> None:
    draft = READERS["infragraph"](SERVERS, "test", Defaults())
    fabric = drafted(draft)
    assert {g.name: g.server for g in fabric.gpus.values()} == {
        "g0": "dgx-h100-0", "g1": "dgx-h100-0", "g2": "dgx-h100-1", "g3": "dgx-h100-1",
    }  # fmt: skip
    assert sorted((str(x.a), str(x.b), x.rate_bps) for x in fabric.links) == [
        (f"g{n}:0", f"leaf:{n + 1}", 400e9) for n in range(4)
    ]
    # An instance whose name ends in a digit keeps its number apart from the index.
    assert draft.names.renamed == {
        "dgx-h100-0": "DGX_H100-0",
        "dgx-h100-1": "DGX_H100-1",
    }
    assert draft.dropped == ["latencies of links", "links inside servers"]
    assert draft.defaulted == ["the GPUs' model, gpu"]


def test_the_librarys_own_blueprints_are_imported() -> None:
    from infragraph.blueprints.devices.generic.generic_switch import Switch
    from infragraph.blueprints.devices.generic.server import Server
    from infragraph.blueprints.devices.nvidia.dgx import NvidiaDGX
    from infragraph.blueprints.fabrics.clos_fat_tree_fabric import ClosFatTreeFabric
    from infragraph.blueprints.fabrics.closfabric import ClosFabric
    from infragraph.blueprints.fabrics.dragonfly_fabric import DragonflyFabric
    from infragraph.blueprints.fabrics.single_tier_fabric import SingleTierFabric

    for made, gpus, switches, links in (
        (ClosFatTreeFabric(Switch(port_count=16), NvidiaDGX(), 2, []), 128, 24, 256),
        (ClosFatTreeFabric(Switch(port_count=4), Server(), 3, []), 16, 20, 48),
        (ClosFabric(), 8, 7, 20),
        (DragonflyFabric(Switch(port_count=16), Server(), 4, 2, 2), 72, 36, 162),
        (SingleTierFabric(NvidiaDGX(), 4), 32, 1, 32),
    ):
        text = made.serialize("yaml")
        draft = READERS["infragraph"](text, "test", Defaults())
        fabric = drafted(draft)
        assert len(fabric.gpus) == gpus
        assert len(fabric.packet_switches) == switches
        assert len(fabric.links) == links
        document = yaml.safe_load(scenario_text(draft, "test", "test"))
        assert "jobs" not in document, "every GPU reaches every other"


@pytest.mark.parametrize("choice", ["partial", "full"])
def test_the_librarys_answer_is_imported_like_the_export(choice: str) -> None:
    from infragraph import Annotation, GraphRequest, Infrastructure
    from infragraph.infragraph_service import InfraGraphService

    document = exported(lit(TWO_TORS), "infragraph")
    service = InfraGraphService()
    service.set_graph(
        Infrastructure().deserialize(yaml.dump(document["infrastructure"]))
    )
    service.annotate_graph(Annotation().deserialize(yaml.dump(document["annotations"])))
    request = GraphRequest()
    request.choice = "infragraph"
    request.infragraph.annotations.choice = choice
    draft = READERS["infragraph"](service.get_graph(request), "test", Defaults())
    assert plugged(drafted(draft)) == plugged(lit(TWO_TORS).fabric)


#: Of :data:`SERVERS`: what stands there, what is put in its place, and what is said of it.
CHANGES = [
    ("count: 2}, {name: leaf", "count: 0}, {name: leaf", "instances[0].count: "),
    ("DGX_H100[0:2]", "DGX_H100[0:3]", "edges[0].ep1.instance: DGX_H100[0:3] goes beyond the 2"),
    ("port[0:4]", "port[0:5]", "edges[0].ep2.component: port[0:5] goes beyond the 4"),
    ("port[0:4]", "port[0:3]", "edges[0].scheme: one2one joins 4 ends to 3"),
    ("port[0:4]", "port[4:0]", "edges[0].ep2.component: port[4:0] takes none of 4"),
    ("port[0:4]", "port[0:x]", "edges[0].ep2.component: 'port[0:x]' is no name with a slice"),
    ("port[0:4]", "port[::0]", "edges[0].ep2.component: 'port[::0]' is no slice"),
    ("port[0:4]", "hole[0:4]", "edges[0].ep2.component: there is no component hole"),
    ("cx7[0:2].port[0]", "cx7[0:2]", "edges[0].ep1.component: cx7[0:2] ends at a device"),
    ("one2one, link: dac", "one2one, link: doc", "edges[0].link: there is no link doc"),
    ("one2one, link: dac", "ring, link: dac", "edges[0].scheme: InfraGraph's library has no ring yet"),
    ("one2one, link: dac", "every, link: dac", "edges[0].scheme: "),
    ("scheme: one2one, link: dac", "link: dac", "edges[0].scheme: missing"),
    ("instance: 'leaf[0]'", "instance: 'spine[0]'", "edges[0].ep2.instance: there is no instance spine"),
    (
        "{name: leaf, device: leaf, count: 1}",
        "{name: leaf, device: leaf, count: 1}, {name: x, device: leaf, count: 1}",
        "instances[2]: no edge uses x",
    ),
    ("device: leaf,", "device: spine,", "instances[1].device: there is no device spine"),
    ("{name: leaf, device", "{name: DGX_H100, device", "instances[1].name: there is a DGX_H100 already"),
    ("name: leaf\n", "name: dgx\n", "devices[2].name: there is a dgx already"),
    ("choice: xpu", "choice: tpu", "devices[1].components[0].choice: "),
    ("choice: xpu", "choice: xpu, nic: {}", "devices[1].components[0].nic: the choice is xpu"),
    ("  links: [{name: internal}]\n", "", "devices[2].links: missing"),
    (", custom: {type: pcie}", "", "devices[0].components[0].custom: missing"),
    ("choice: port, count: 1}", "choice: port, counts: 1}", "devices[0].components[1].counts: unknown key"),
    ("name: pod", "name: pod\nprofile: mems", "profile: unknown key"),
    ("'cx7[0:2].pcie[0]'", "'cx7[0:2].pci[0]'", "devices[1].edges[0].ep2.component: there is no component pci"),
    ("one2one, link: pcie", "one2one, link: nvl", "devices[1].edges[0].link: there is no link nvl"),
    (
        "{ep1: {component: 'pcie[0]'}",
        "{ep1: 'pcie.0'",
        "devices[0].edges[0].ep1: pcie.0 is an end as older schemas have it",
    ),
    ("links: [{name: dac", "connections: [a.0.nic.0.eth1.leaf.0.port.0]\nlinks: [{name: dac", "connections: "),
    ("{name: cx7, choice: device", "{name: dgx, choice: device", "devices: dgx is a part of itself"),
    ("device: dgx, count: 2}", "device: dgx, count: 99999}", "instances[0].count: too large: 599994 components"),
    ("choice: xpu, count: 2", "choice: cpu, count: 2", "devices: no component is an xpu"),
    ("gigabytes_per_second: 50", "gigabytes_per_second: -50", "physical.bandwidth.gigabytes_per_second: "),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), CHANGES)
def test_a_broken_document_is_refused_by_key(old: str, new: str, message: str) -> None:
    assert old in SERVERS
    with pytest.raises(ValueError) as caught:
        READERS["infragraph"](SERVERS.replace(old, new), "FILE", Defaults())
    assert str(caught.value).startswith("FILE: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def _nested(depth: int, reach: int) -> str:
    """Return a document in which each device has each of the next ``reach`` devices."""
    devices = [
        {
            "name": f"d{n}",
            "components": [
                {"name": f"d{m}", "choice": "device", "count": 1}
                for m in range(n + 1, min(depth, n + 1 + reach))
            ]
            or [{"name": "x", "choice": "xpu", "count": 1}],
            "links": [],
            "edges": [],
        }
        for n in range(depth)
    ]
    instances = [{"name": "i", "device": "d0", "count": 1}]
    return json.dumps({"name": "pod", "devices": devices, "instances": instances})


def test_a_long_chain_of_devices_is_refused_from_whichever_end_it_is_written() -> None:
    document = json.loads(_nested(2000, 1))
    document["devices"].reverse()
    with pytest.raises(ValueError, match=r"^FILE: devices: more than 64 levels deep"):
        READERS["infragraph"](json.dumps(document), "FILE", Defaults())


@pytest.mark.parametrize(
    ("depth", "reach", "message"),
    [(48, 48, "too large"), (2000, 1, "devices: more than 64 levels deep")],
)
def test_devices_in_devices_are_counted_once_each(
    depth: int, reach: int, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^FILE: .*{message}"):
        READERS["infragraph"](_nested(depth, reach), "FILE", Defaults())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ocs.0.port.6", "ocs.0.port.66", "annotations: ocs.0.port.0: cross_connect: ocs.0.port.66 is no other"),
        ("'0.02'", "soon", "queue_s: 'soon' is no number from 0"),
        ("value: scpi", "value: carrier-pigeon", "fabric.optical_switches.ocs0: driver: carrier-pigeon; there are"),
        ("name: ocs[0]port[3]", "name: osc[0]port[3]", "InfraGraph's library: osc.0.port.3"),
        ("annotations:", "notes:", "notes: unknown key"),
    ],
)  # fmt: skip
def test_a_broken_annotation_is_refused(old: str, new: str, message: str) -> None:
    text = FORMS["infragraph"].text(lit(TWO_TORS)).text
    assert old in text
    with pytest.raises(ValueError) as caught:
        drafted(READERS["infragraph"](text.replace(old, new), "FILE", Defaults()))
    assert message in str(caught.value)
