"""``/stats`` against what Ryu documents of ``ofctl_rest`` for OpenFlow 1.3, answered by real Open vSwitch.

The shapes here are written down from Ryu's documentation, not from ours.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ringlight.testbed.rigs.network import run
from tests.integration.controller_rig import FABRIC, ControllerRig
from tests.integration.test_controller_api import rules_found, rules_wanted

pytestmark = pytest.mark.root

NUMBER = (int, str)
FLOW = {
    "length": int,
    "table_id": NUMBER,
    "duration_sec": int,
    "duration_nsec": int,
    "priority": int,
    "idle_timeout": int,
    "hard_timeout": int,
    "flags": int,
    "cookie": int,
    "packet_count": int,
    "byte_count": int,
    "match": dict,
    "actions": list,
}
AGGREGATE = {"packet_count": int, "byte_count": int, "flow_count": int}
PORT = dict.fromkeys(
    [
        "rx_packets",
        "tx_packets",
        "rx_bytes",
        "tx_bytes",
        "rx_dropped",
        "tx_dropped",
        "rx_errors",
        "tx_errors",
        "rx_frame_err",
        "rx_over_err",
        "rx_crc_err",
        "collisions",
        "duration_sec",
        "duration_nsec",
    ],
    int,
) | {"port_no": NUMBER}
PORT_DESC = dict.fromkeys(
    [
        "config",
        "state",
        "curr",
        "advertised",
        "supported",
        "peer",
        "curr_speed",
        "max_speed",
    ],
    int,
) | {"port_no": NUMBER, "hw_addr": str, "name": str}
QUEUE = dict.fromkeys(
    [
        "port_no",
        "queue_id",
        "tx_bytes",
        "tx_packets",
        "tx_errors",
        "duration_sec",
        "duration_nsec",
    ],
    int,
)
QUEUE_CONFIG = {
    "port": NUMBER,
    "queues": [{"queue_id": NUMBER, "port": NUMBER, "properties": list}],
}
GROUP = {
    **dict.fromkeys(["length", "ref_count", "packet_count", "byte_count"], int),
    "group_id": NUMBER,
    "duration_sec": int,
    "duration_nsec": int,
    "bucket_stats": [{"packet_count": int, "byte_count": int}],
}
BUCKET = {"weight": int, "watch_port": int, "watch_group": int, "actions": list}
GROUP_DESC = {"type": str, "group_id": NUMBER, "buckets": [BUCKET]}
METER = {
    **dict.fromkeys(["len", "flow_count", "packet_in_count", "byte_in_count"], int),
    "meter_id": NUMBER,
    "duration_sec": int,
    "duration_nsec": int,
    "band_stats": [{"packet_band_count": int, "byte_band_count": int}],
}
METER_CONFIG = {
    "flags": list,
    "meter_id": NUMBER,
    "bands": [{"type": str, "rate": int, "burst_size": int}],
}
#: Path below /stats, documented shape of an entry, and whether there is at least one here.
READS: list[tuple[str, Any, bool]] = [
    (
        "desc/1",
        dict.fromkeys(["mfr_desc", "hw_desc", "sw_desc", "serial_num", "dp_desc"], str),
        True,
    ),
    ("flow/1", [FLOW], True),
    ("flowdesc/1", [FLOW], True),
    ("aggregateflow/1", [AGGREGATE], True),
    (
        "table/1",
        [
            {
                "table_id": NUMBER,
                "active_count": int,
                "lookup_count": int,
                "matched_count": int,
            }
        ],
        True,
    ),
    (
        "tablefeatures/1",
        [
            dict.fromkeys(
                ["metadata_match", "metadata_write", "config", "max_entries"], int
            )
            | {"table_id": NUMBER, "name": str, "properties": list}
        ],
        True,
    ),
    ("port/1", [PORT], True),
    ("port/1/2", [PORT], True),
    ("portdesc/1", [PORT_DESC], True),
    ("portdesc/1/2", [PORT_DESC], True),
    ("queue/1", [QUEUE], False),
    ("queue/1/1", [QUEUE], False),
    ("queue/1/ALL/ALL", [QUEUE], False),
    ("queueconfig/1", [QUEUE_CONFIG], True),
    ("queueconfig/1/1", [QUEUE_CONFIG], True),
    ("group/1", [GROUP], True),
    ("group/1/7", [GROUP], True),
    ("groupdesc/1", [GROUP_DESC], True),
    ("groupdesc/1/7", [GROUP_DESC], True),
    (
        "groupfeatures/1",
        [{"types": list, "capabilities": list, "max_groups": list, "actions": list}],
        True,
    ),
    ("meter/1", [METER], True),
    ("meter/1/7", [METER], True),
    ("meterconfig/1", [METER_CONFIG], True),
    ("meterconfig/1/7", [METER_CONFIG], True),
    (
        "meterfeatures/1",
        [
            {
                "max_meter": int,
                "band_types": list,
                "capabilities": list,
                "max_bands": int,
                "max_color": int,
            },
        ],
        True,
    ),
    ("role/1", [{"role": str, "generation_id": int}], True),
]
OUT = [{"type": "OUTPUT", "port": 2}]


@pytest.fixture(scope="module")
def rig() -> Iterator[ControllerRig]:
    rig = ControllerRig()
    try:
        rig.start_controller()
        yield rig
    finally:
        rig.close()


def get(rig: ControllerRig, path: str) -> Any:
    answer = rig.api.get(f"/stats/{path}")
    assert answer.status_code == 200, (path, answer.text)
    return answer.json()["1"]


def post(rig: ControllerRig, path: str, status: int = 200, **entry: Any) -> str:
    """Sent as ``curl -d`` and Ryu users' scripts do: whatever the type is called."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    body = json.dumps({"dpid": 1, **entry})
    answer = rig.api.post(f"/stats/{path}", content=body, headers=headers)
    assert answer.status_code == status, (path, entry, answer.text)
    if status == 200:
        assert answer.content == b""
        return ""
    detail = answer.json()["detail"]
    assert "\n" not in detail
    return str(detail)


def is_shaped(value: Any, shape: Any) -> bool:
    """Whether a value has exactly these keys, with these types, all the way down."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(
            is_shaped(one, shape[0]) for one in value
        )
    if isinstance(shape, dict):
        return value.keys() == shape.keys() and all(
            is_shaped(value[key], shape[key]) for key in shape
        )
    return isinstance(value, shape) and not isinstance(value, bool)


def test_every_documented_question_is_answered_in_its_shape(rig: ControllerRig) -> None:
    post(rig, "groupentry/add", type="ALL", group_id=7, buckets=[{"actions": OUT}])
    post(
        rig,
        "meterentry/add",
        flags="KBPS",
        meter_id=7,
        bands=[{"type": "DROP", "rate": 1000}],
    )
    assert rig.api.get("/stats/switches").json() == [1, 2]
    for path, shape, some in READS:
        found = get(rig, path)
        assert is_shaped(found, shape), (path, found)
        assert found or not some, path
    assert {port["port_no"] for port in get(rig, "port/1")} == {1, 2, 3, 4, "LOCAL"}
    assert [port["port_no"] for port in get(rig, "portdesc/1/2")] == [2]
    assert len(get(rig, "tablefeatures/1")) == len(get(rig, "table/1")) == 254
    assert {config["port"] for config in get(rig, "queueconfig/1")} == {1, 2, 3, 4}
    for what, body in (
        ("flow", {"match": {"dl_type": 2054}}),
        ("aggregateflow", {"table_id": 0}),
        ("flow", {}),
    ):
        answer = rig.api.post(f"/stats/{what}/1", content=json.dumps(body))
        assert is_shaped(answer.json()["1"], [FLOW if what == "flow" else AGGREGATE])
    assert {
        f["match"]["dl_type"]
        for f in rig.api.post("/stats/flow/1", json={"priority": 1000}).json()["1"]
    }
    post(rig, "groupentry/delete", group_id=7)
    post(rig, "meterentry/delete", meter_id=7)


def test_writes_are_read_back(rig: ControllerRig) -> None:
    flow = {"priority": 5, "match": {"dl_type": 2048, "nw_dst": "10.9.9.9"}}
    for command, port, actions in (
        ("add", 2, ["OUTPUT:2"]),
        ("modify", 1, ["OUTPUT:1"]),
        ("modify_strict", "LOCAL", ["OUTPUT:LOCAL"]),
        ("delete", 1, None),
    ):
        post(
            rig,
            f"flowentry/{command}",
            **flow,
            actions=[{"type": "OUTPUT", "port": port}],
        )
        found = [f for f in get(rig, "flow/1") if f["priority"] == 5]
        assert [(f["match"], f["actions"]) for f in found] == (
            [(flow["match"], actions)] if actions else []
        )

    buckets = [{"weight": 3, "actions": OUT}]
    post(
        rig,
        "groupentry/add",
        group_id=1,
        buckets=[{"actions": [{"type": "OUTPUT", "port": 1}]}],
    )
    assert get(rig, "groupdesc/1/1")[0]["buckets"][0]["actions"] == ["OUTPUT:1"]
    post(rig, "groupentry/modify", type="SELECT", group_id=1, buckets=buckets)
    found = get(rig, "groupdesc/1/1")[0]
    assert (found["type"], found["buckets"][0]["weight"]) == ("SELECT", 3)
    # What was added may be sent back to be deleted.
    post(rig, "groupentry/delete", type="SELECT", group_id=1, buckets=buckets)
    assert get(rig, "groupdesc/1") == []

    band = {"type": "DROP", "rate": 1000, "burst_size": 10}
    post(rig, "meterentry/add", flags=["KBPS", "BURST"], meter_id=1, bands=[band])
    assert get(rig, "meterconfig/1/1") == [
        {"flags": ["KBPS", "BURST"], "meter_id": 1, "bands": [band]}
    ]
    post(
        rig,
        "meterentry/modify",
        flags=["KBPS", "BURST"],
        meter_id=1,
        bands=[band | {"rate": 2000}],
    )
    assert get(rig, "meterconfig/1/1")[0]["bands"][0]["rate"] == 2000
    post(
        rig,
        "flowentry/add",
        priority=7,
        match={"in_port": 3},
        actions=[{"type": "METER", "meter_id": 1}],
    )
    assert [f["actions"] for f in get(rig, "flow/1") if f["priority"] == 7] == [
        ["METER:1"]
    ]
    (sent_back,) = [f for f in get(rig, "flow/1") if f["priority"] == 7]
    post(rig, "flowentry/delete_strict", **{**sent_back, "actions": []})
    assert [f for f in get(rig, "flow/1") if f["priority"] == 7] == []
    post(rig, "meterentry/delete", meter_id=1)
    assert get(rig, "meterconfig/1") == []

    for config in (1, 0):
        post(rig, "portdesc/modify", port_no=3, config=config, mask=1)
        assert get(rig, "portdesc/1/3")[0]["config"] == config
    for role in ("MASTER", "EQUAL"):
        post(rig, "role", role=role)
        assert get(rig, "role/1")[0]["role"] == role

    assert get(rig, "aggregateflow/1")[0]["flow_count"] == 9
    assert rig.api.delete("/stats/flowentry/clear/1").status_code == 200
    # The fabric's own rules are back, with no change of light.
    wanted = rules_wanted(rig, FABRIC["circuits"])
    rig.wait(lambda: rules_found(rig) == wanted, "the rules are not back")


def test_what_cannot_be_is_told_in_one_line(rig: ControllerRig) -> None:
    for path, status, said in (
        ("desc/77", 404, "there is no switch with datapath id 77"),
        ("desc/first", 400, "dpid"),
        ("queuedesc/1", 501, "ask /stats/queueconfig/1"),
        ("queuedesc/1/1/1", 501, "ask /stats/queueconfig/1"),
        ("meterdesc/1/1", 501, "ask /stats/meterconfig/1"),
        ("meter/1/9", 404, "OFPMMFC_UNKNOWN_METER"),
        ("group/1/7800317918", 404, "there is no group_id 7800317918"),
        ("port/1/4294967296", 404, "there is no port 4294967296"),
        ("port/1/3642258728", 404, "OFPBAC_BAD_OUT_PORT"),
        ("queue/1/ALL/9", 404, "OFPQOFC_BAD_QUEUE"),
    ):
        answer = rig.api.get(f"/stats/{path}")
        assert answer.status_code == status, (path, answer.text)
        assert said in answer.json()["detail"]
    for path, status, said, entry in (
        ("flowentry/add", 404, "there is no switch", {"dpid": 77}),
        ("flowentry/add", 400, "match.bogus", {"match": {"bogus": 1}}),
        ("flowentry/add", 400, "action: ", {"action": OUT}),
        ("flowentry/delete", 400, "instructions: ", {"instructions": []}),
        (
            "flowentry/add",
            400,
            "actions.0.prot: ",
            {"actions": [{"type": "OUTPUT", "prot": 2}]},
        ),
        ("groupentry/add", 400, "bucket: ", {"group_id": 70, "bucket": []}),
        (
            "groupentry/add",
            400,
            "buckets.0.action: ",
            {"group_id": 70, "buckets": [{"action": OUT}]},
        ),
        ("meterentry/add", 400, "band: ", {"meter_id": 70, "band": []}),
        (
            "portdesc/modify",
            400,
            "configuration: ",
            {"port_no": 1, "configuration": 1, "mask": 1},
        ),
        ("role", 400, "rule: ", {"rule": "EQUAL"}),
        ("experimenter/1", 400, "experiment: ", {"experiment": 1}),
        ("flow/1", 400, "tableid: ", {"tableid": 3}),
        (
            "flowentry/add",
            400,
            "match.eth_type: 70000 does not fit",
            {"match": {"eth_type": 70_000}},
        ),
        (
            "flowentry/add",
            400,
            "match.eth_dst: 5 cannot be read",
            {"match": {"eth_dst": 5}},
        ),
        (
            "flowentry/add",
            400,
            "OFPBMC_BAD_PREREQ",
            {"match": {"ipv4_dst": "10.0.0.1"}},
        ),
        ("flowentry/add", 400, "actions.0.type", {"actions": [{"type": "TELEPORT"}]}),
        (
            "flowentry/add",
            400,
            "actions.0",
            {"actions": [{"type": "SET_FIELD", "field": "moon"}]},
        ),
        (
            "flowentry/add",
            400,
            "priority: must be between 0 and 65535",
            {"priority": 70_000},
        ),
        ("groupentry/modify", 404, "OFPGMFC_UNKNOWN_GROUP", {"group_id": 70}),
        (
            "meterentry/add",
            400,
            "OFPMMFC_BAD_FLAGS",
            {"meter_id": 2, "bands": [{"type": "DROP"}]},
        ),
        ("portdesc/modify", 404, "no port 77", {"port_no": 77, "config": 1, "mask": 1}),
        ("portdesc/modify", 400, "mask", {"port_no": 1, "config": 2, "mask": 2}),
        ("role", 409, "SLAVE", {"role": "SLAVE"}),
        (
            "experimenter/1",
            400,
            "OFPBRC_BAD_EXPERIMENTER",
            {"experimenter": 1, "data": "data"},
        ),
    ):
        assert said in post(rig, path, status, **entry), (path, entry)
    answer = rig.api.post("/stats/flowentry/add", content=b"not json")
    assert answer.status_code == 400


#: Flows with our own cookie that are none of our rules, of every kind of value that a match may have.
STRANGE: list[dict[str, Any]] = [
    {"match": {"dl_vlan": "0x1000/0x1000"}},
    {"match": {"metadata": "0x12/0xff"}, "table_id": 3},
    {"match": {"eth_dst": "aa:bb:cc:11:22:33/00:00:00:00:ff:ff"}},
    {"match": {"dl_type": 34525, "ipv6_dst": "2001::1/64"}},
    {"match": {"dl_type": 2048, "nw_dst": "10.9.0.0/16"}, "actions": OUT},
    {
        "match": {"dl_type": 2048, "nw_dst": "10.9.0.1"},
        "priority": 1000,
        "actions": OUT + OUT,
    },
    {
        "match": {"dl_type": 2054, "arp_tpa": "10.9.0.1/255.255.0.0", "arp_op": 1},
        "priority": 1000,
    },
    {
        "match": {"tunnel_id": "0x7/0xff"},
        "actions": [{"type": "GOTO_TABLE", "table_id": 4}],
    },
    {
        "match": {"in_port": "LOCAL"},
        "actions": [{"type": "WRITE_ACTIONS", "actions": OUT}],
    },
    {
        "match": {"dl_type": 34887, "mpls_label": 3},
        "actions": [{"type": "POP_MPLS", "ethertype": 2048}],
    },
    {
        "match": {"dl_type": 2048, "nw_proto": 6, "tp_dst": 80},
        "actions": [{"type": "DEC_NW_TTL"}, *OUT],
    },
    {
        "match": {
            "dl_type": 34525,
            "nw_proto": 58,
            "icmpv6_type": 135,
            "ipv6_nd_target": "2001::1",
        }
    },
]


def test_strange_flows_with_our_cookie_are_swept_away(rig: ControllerRig) -> None:
    """Whatever was written this way, exactly the fabric's rules are left, and flows under other cookies."""
    ours = next(f["cookie"] for f in get(rig, "flow/1") if f["priority"] == 1000)
    for number, flow in enumerate(STRANGE):
        post(
            rig, "flowentry/add", **{"priority": 2000 + number, "cookie": ours, **flow}
        )
    foreign = {"match": {"in_port": 4}, "priority": 9, "cookie": 77}
    post(rig, "flowentry/add", **foreign)
    rig.wait(lambda: len(get(rig, "flow/1")) == 10, "they are still there")
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])
    left = get(rig, "flow/1")
    assert [f["cookie"] for f in left if f["cookie"] != ours] == [77]
    assert len(left) == 10, left
    post(
        rig, "flowentry/delete", match={"in_port": 4}, cookie=77, cookie_mask=2**64 - 1
    )
    time.sleep(1.2)
    assert "a round of the reconciler failed" not in rig.log()
    assert rig.api.get("/v1/health").json()["status"] == "ok"


def test_a_form_of_a_foreign_page_changes_no_flow(rig: ControllerRig) -> None:
    entry = {"dpid": 1, "priority": 6, "match": {"in_port": 1}, "actions": []}

    def written(headers: dict[str, str]) -> tuple[int, bool]:
        # As curl -d and a page's form send it.
        headers = {"content-type": "application/x-www-form-urlencoded", **headers}
        answer = rig.api.post(
            "/stats/flowentry/add", headers=headers, content=json.dumps(entry)
        )
        return answer.status_code, "6,in_port=1" in rig.table("tor0")

    assert written({"origin": "http://evil.example"}) == (403, False)
    assert written({"host": "evil.example"}) == (403, False)
    assert written({}) == (200, True)
    rig.api.post("/stats/flowentry/delete_strict", content=json.dumps(entry))
    assert "6,in_port=1" not in rig.table("tor0")


def test_a_user_s_flow_stays_also_where_others_remove_it(rig: ControllerRig) -> None:
    bridge = rig.lab.bridge("tor0")
    user = {"dpid": 1, "priority": 6, "match": {"in_port": 3}, "actions": []}
    rig.api.post("/stats/flowentry/add", content=json.dumps(user)).raise_for_status()

    def table() -> dict[str, str]:
        return {match: actions for match, (_, actions) in rig.table("tor0").items()}

    def mends() -> int:
        return int(rig.api.get("/v1/health").json()["flow_tables"]["tor0"]["mends"])

    whole = table()
    assert "6,in_port=3" in whole
    for words in (
        ("del-flows", bridge),
        ("mod-flows", bridge, "in_port=3,actions=output:2"),
    ):
        before = mends()
        run("ovs-ofctl", "-O", "OpenFlow13", *words)
        rig.wait(lambda before=before: mends() > before, "nothing was mended")  # type: ignore[misc]
        assert table() == whole, words

    # What ran out by itself is no drift, and a user's flow is still one after a restart.
    short = {
        "dpid": 1,
        "priority": 7,
        "match": {"in_port": 3},
        "actions": [],
        "hard_timeout": 1,
    }
    rig.api.post("/stats/flowentry/add", content=json.dumps(short)).raise_for_status()
    rig.wait(lambda: table() == whole, "it did not run out")
    rig.stop_controller(signal.SIGKILL)
    run(
        "ovs-ofctl",
        "-O",
        "OpenFlow13",
        "add-flow",
        bridge,
        "priority=65000,ip,actions=drop",
    )
    rig.start_controller()
    rig.wait(lambda: table() == whole, "the flow of a stranger is still there")
    rig.api.post(
        "/stats/flowentry/delete_strict", content=json.dumps(user)
    ).raise_for_status()
    assert "6,in_port=3" not in table()
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])


def test_every_call_needs_the_token(rig: ControllerRig) -> None:
    rig.stop_controller()
    token = rig.state / "token"
    token.write_text("correct-horse-battery\n")
    rig.start_controller("--token-file", str(token))
    try:
        assert rig.api.get("/stats/switches").status_code == 401
        good = {"authorization": "Bearer correct-horse-battery"}
        assert rig.api.get("/stats/switches", headers=good).status_code == 200
    finally:
        rig.stop_controller()
        rig.start_controller()
