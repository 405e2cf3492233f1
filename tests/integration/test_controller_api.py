"""The controller process against real bridges and the real emulated optical switch, through its REST API."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.doors import phase
from ringlight.experiments.client import Api, ApiError, Unreachable
from ringlight.fabric.parts import Port
from ringlight.fabric.routing import forwarding_rules
from ringlight.fabric.topology import circuit_cross_connects, electrical_graph
from ringlight.testbed.emulation.optical.datapath import Datapath
from ringlight.testbed.process_start import start_process
from ringlight.testbed.rigs.network import run
from tests import forks
from tests.integration.controller_rig import FABRIC, ControllerRig
from tests.integration.labs import Idle

pytestmark = pytest.mark.root

SWAPPED = [["g0", "tor0:1"], ["g2", "tor0:2"], ["g1", "tor1:1"], ["g3", "tor1:2"]]


@pytest.fixture(scope="module")
def shared() -> Iterator[ControllerRig]:
    rig = ControllerRig()
    try:
        rig.start_controller()
        yield rig
    finally:
        rig.close()


@pytest.fixture(scope="module")
def idle(shared: ControllerRig) -> Iterator[Idle]:
    """To the first controller of the rig; the tests that end it come after the one that asks again."""
    with socket.create_connection(("127.0.0.1", shared.rest), timeout=5) as connection:
        yield Idle(connection, "/v1/health")


@pytest.fixture
def rig(shared: ControllerRig, idle: Idle) -> ControllerRig:
    """The rig with its controller up and the fabric's own circuits lit."""
    if shared.controller is None:
        shared.start_controller()
    put_circuits(shared, FABRIC["circuits"])
    return shared


def put_circuits(rig: ControllerRig, circuits: Any, **more: Any) -> dict[str, Any]:
    answer = rig.api.put("/v1/circuits", json={"circuits": circuits, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def rules_wanted(rig: ControllerRig, circuits: Any) -> dict[tuple[str, str], int]:
    """(switch, GPU) to out port, from the fabric's own algorithm."""
    pairs = [(Port.parse(a), Port.parse(b)) for a, b in circuits]
    graph = electrical_graph(rig.fabric, circuit_cross_connects(rig.fabric, pairs))
    names = {gpu.ip: gpu.name for gpu in rig.fabric.gpus.values()}
    return {
        (r.switch, names[r.ip]): r.out_port for r in forwarding_rules(rig.fabric, graph)
    }


def rules_found(rig: ControllerRig) -> dict[tuple[str, str], int]:
    """The same, asked of the switches themselves."""
    found = {}
    for switch in rig.fabric.packet_switches:
        for gpu in rig.fabric.gpus:
            port = rig.out_port(switch, gpu)
            if port is not None:
                found[switch, gpu] = port
    return found


def lit_at(rig: ControllerRig) -> dict[tuple[int, int], int]:
    """When the device made each cross-connect (ns), read from the kernel."""
    maps = Datapath.resume(rig.lab.bpf_dir / "ocs0")
    try:
        return {
            (i, lit.egress): lit.ready_ns
            for (i, _), lit in maps.cross_connects().items()
        }
    finally:
        maps.close()


def test_rules_are_those_of_the_fabric_and_packets_pass(rig: ControllerRig) -> None:
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])
    assert rig.table("tor0")["0"][1] == "drop"
    for source, destination in (("g0", "g1"), ("g0", "g3"), ("g2", "g1")):
        assert rig.ping(source, destination)
    edges = rig.api.get("/v1/topology").json()["edges"]
    assert {(e["from"], e["to"]) for e in edges} >= {
        ("g0", "tor0"),
        ("tor1", "g3"),
        ("tor0", "tor1"),
    }


def attached(rig: ControllerRig) -> dict[str, str]:
    """Return the packet switch that each GPU sends to in the topology."""
    edges = rig.api.get("/v1/topology").json()["edges"]
    return {
        edge["from"]: edge["to"] for edge in edges if edge["from"] in rig.fabric.gpus
    }


def test_moving_gpus_moves_their_rules_and_nothing_else(rig: ControllerRig) -> None:
    before = {switch: rig.table(switch) for switch in ("tor0", "tor1")}
    lit = lit_at(rig)
    assert attached(rig) == {"g0": "tor0", "g1": "tor0", "g2": "tor1", "g3": "tor1"}
    ping = subprocess.Popen(
        [
            *(
                "ip",
                "netns",
                "exec",
                rig.lab.namespace("g0"),
                "ping",
                "-D",
                "-i",
                "0.01",
            ),
            *("-c", "60", "-W", "2", rig.fabric.gpus["g3"].ip),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(0.15)
        change = put_circuits(rig, SWAPPED)
        text, _ = ping.communicate(timeout=30)
    finally:
        ping.kill()
    assert "60 received" in text, (
        f"a circuit and a path that nobody changed lost packets: {text}"
    )
    assert rules_found(rig) == rules_wanted(rig, SWAPPED)
    assert attached(rig) == {"g0": "tor0", "g1": "tor1", "g2": "tor0", "g3": "tor1"}
    assert rig.ping("g0", "g2")
    assert rig.ping("g0", "g1")
    for gpu in ("g0", "g3"):
        flow = f"1000,ip,nw_dst={rig.fabric.gpus[gpu].ip}"
        for switch in ("tor0", "tor1"):
            assert rig.table(switch)[flow][0] > before[switch][flow][0], (
                "an unchanged rule was rewritten"
            )
    after = lit_at(rig)
    assert {xc: t for xc, t in after.items() if xc in lit} == {
        xc: t for xc, t in lit.items() if xc in after
    }
    phases = [entry["phase"] for entry in change["timeline"]]
    assert (
        phases.index("remove_light")
        < phases.index("rules_written")
        < phases.index("light_added")
    )
    times = [entry["t"] for entry in change["timeline"]]
    assert times == sorted(times)


def test_repeating_a_change_writes_nothing(rig: ControllerRig) -> None:
    lit = lit_at(rig)
    change = put_circuits(rig, FABRIC["circuits"])
    plan = change["optical_switches"]["ocs0"]["plan"]
    assert plan["remove"] == plan["add"] == plan["dark_ports"] == []
    assert lit_at(rig) == lit


def test_a_dry_run_plans_and_leaves_all_as_it_is(rig: ControllerRig) -> None:
    lit = lit_at(rig)
    change = put_circuits(rig, SWAPPED, dry_run=True)
    assert change["applied"] is False
    assert len(change["optical_switches"]["ocs0"]["plan"]["add"]) == 4
    assert lit_at(rig) == lit
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])


def test_one_cross_connect_set_and_deleted_with_its_rules(rig: ControllerRig) -> None:
    base = "/v1/optical-switches/ocs0/cross-connects"
    for ingress in (4, 9):
        answer = rig.api.delete(f"{base}/{ingress}")
        assert answer.status_code == 200, answer.text
    assert rig.out_port("tor0", "g3") is None
    assert not rig.ping("g0", "g3")
    # g3's fibre is in faceplate 4; tor0's third port in faceplate 7.
    for ingress, egress in ((4, 17), (7, 14)):
        answer = rig.api.put(
            f"{base}/{ingress}", json={"egress": egress, "name": f"g3-{egress}"}
        )
        assert answer.status_code == 200, answer.text
        (added,) = (r for r in answer.json()["results"] if r["action"] == "add")
        assert added["state"] == "CONNECTED"
    assert rig.out_port("tor0", "g3") == 3
    assert rig.out_port("tor1", "g3") == 4
    assert rig.ping("g0", "g3")
    shown = {
        "ingress": 4,
        "egress": 17,
        "wavelength": None,
        "name": "g3-17",
        "state": "CONNECTED",
    }
    assert shown in rig.api.get(base).json()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"egress": 12, "mode": "safe"}, 409, "busy"),
        ({"egress": 99}, 422, "no port 99"),
        ({"egress": 2}, 422, "ingress"),
        ({"egress": 12, "colour": "red"}, 422, "colour"),
        ({}, 422, "egress"),
    ],
)
def test_what_cannot_be_set_is_refused_in_one_line(
    rig: ControllerRig, body: dict[str, Any], status: int, said: str
) -> None:
    lit = lit_at(rig)
    answer = rig.api.put("/v1/optical-switches/ocs0/cross-connects/1", json=body)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]
    assert lit_at(rig) == lit


@pytest.mark.parametrize(
    ("circuits", "said"),
    [
        ([["g0", "tor0:1"], ["g1", "tor0:1"]], "tor0:1"),
        ([["g0", "tor0:4"]], "no optical switch joins"),
        ([["g0", "tor0:x"]], "circuits[0]"),
    ],
)
def test_impossible_circuits_are_refused(
    rig: ControllerRig, circuits: Any, said: str
) -> None:
    answer = rig.api.put("/v1/circuits", json={"circuits": circuits})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_unknown_names_are_not_found(rig: ControllerRig) -> None:
    for path in (
        "/v1/optical-switches/ocs9/ports",
        "/v1/packet-switches/tor9/flows",
        "/v1/jobs/red",
        "/v1/regroup/regroup-9",
    ):
        answer = rig.api.get(path)
        assert answer.status_code == 404
        assert "there is no" in answer.json()["detail"]


def test_optical_switch_and_packet_switch_documents(rig: ControllerRig) -> None:
    switch = rig.api.get("/v1/optical-switches/ocs0").json()
    assert switch["size"] == 10
    assert switch["identity"]["vendor"]
    assert switch["timing"]["dark"]["most_s"] > 0
    ports = rig.api.get("/v1/optical-switches/ocs0/ports").json()
    assert len(ports) == 20
    assert (
        ports[0] | {"plugged": "g0:0", "side": "ingress", "state": "TUNED"} == ports[0]
    )
    row = rig.api.get("/v1/packet-switches/tor0/ports").json()[0]
    assert (row["port"], row["gpu"], row["up"]) == (1, "g0", True)
    flows = rig.api.get("/v1/packet-switches/tor0/flows").json()
    assert flows[-1]["match"] == {}
    assert {"priority", "match", "out_ports", "packets", "duration_s"} <= flows[
        0
    ].keys()


def test_power_is_measured_and_a_port_can_be_taken_out(rig: ControllerRig) -> None:
    power = {
        p["port"]: p["power_dbm"]
        for p in rig.api.get("/v1/optical-switches/ocs0/power").json()
    }
    assert len(power) == 20
    assert None not in power.values()
    assert max(power.values()) > -10
    path = "/v1/optical-switches/ocs0/ports"
    port = next(
        p["port"] for p in rig.api.get(path).json() if p["cross_connect"] is None
    )
    try:
        answer = rig.api.put(f"{path}/{port}", json={"enabled": False})
        assert (answer.status_code, answer.json()["enabled"]) == (200, False)
        assert not next(p for p in rig.api.get(path).json() if p["port"] == port)[
            "enabled"
        ]
        free = next(
            p["port"]
            for p in rig.api.get(path).json()
            if p["port"] > 10 and not p["cross_connects"]
        )
        refused = rig.api.put(
            f"/v1/optical-switches/ocs0/cross-connects/{port}",
            json={"egress": free, "dry_run": True},
        )
        assert refused.status_code == 422
        assert f"port {port} is disabled" in refused.json()["detail"]
    finally:
        assert rig.api.put(f"{path}/{port}", json={"enabled": True}).json()["enabled"]
    missing = rig.api.put(f"{path}/99", json={"enabled": False})
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        "optical switch ocs0: there is no port 99",
    )


@pytest.mark.alone
def test_series_come_at_10_hz_or_better_and_name_the_gpu(rig: ControllerRig) -> None:
    start = time.monotonic()
    assert rig.ping("g0", "g1", count=6)
    rows = [
        r
        for r in rig.api.get("/v1/series", params={"since": start}).json()
        if r["switch"] == "tor0"
    ]
    mine = [r for r in rows if r["gpu"] == "g0"]
    assert {r["port"] for r in mine} == {1}
    span = mine[-1]["t"] - mine[0]["t"]
    assert (len(mine) - 1) / span >= 10
    assert max(r["rx_bps"] for r in mine) > 0
    assert {r["peer"] for r in rows if r["port"] == 4} == {"tor1:4"}
    text = rig.api.get("/metrics").text
    assert 'ringlight_port_received_packets_total{port="1",switch="tor0"}' in text
    assert 'ringlight_cross_connects{switch="ocs0"} 8.0' in text
    assert f'ringlight_flows{{switch="tor0"}} {len(rig.table("tor0"))}.0' in text
    flow = f'match="eth_type=2048,ipv4_dst={rig.fabric.gpus["g1"].ip}",priority="1000",switch="tor0",table="0"'
    (packets,) = (
        x
        for x in text.splitlines()
        if x.startswith(f"ringlight_flow_packets_total{{{flow}}}")
    )
    assert float(packets.split()[-1]) >= 1


def test_events_stream(rig: ControllerRig) -> None:
    with httpx.Client(base_url=rig.api.base_url, timeout=20, trust_env=False) as other:  # noqa: SIM117
        with other.stream("GET", "/v1/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            put_circuits(rig, SWAPPED)
            data = next(
                json.loads(x.removeprefix("data: "))
                for x in lines
                if x.startswith("data: ")
            )
    assert (data["event"], data["added"], data["problems"]) == ("circuits", 4, [])


def test_a_connection_outlives_its_client_s_patience(idle: Idle) -> None:
    """Else a client may send on it as it is closed: httpx keeps an idle connection for 5 s."""
    assert idle.status_after(7.0) == 200


def test_a_lost_flow_table_is_mended_on_reconnect(rig: ControllerRig) -> None:
    bridge = rig.lab.bridge("tor0")
    run("ovs-vsctl", "set-controller", bridge, "tcp:127.0.0.1:1")
    rig.wait(
        lambda: not rig.api.get("/v1/health").json()["packet_switches"]["tor0"],
        "tor0 is still there",
    )
    assert rig.api.get("/v1/health").json()["status"] == "degraded"
    ip = rig.fabric.gpus["g0"].ip
    run("ovs-ofctl", "-O", "OpenFlow13", "del-flows", bridge, f"ip,nw_dst={ip}")
    stray = f"cookie=0x524c000000000001,priority=1000,ip,nw_dst={rig.fabric.gpus['g1'].ip},actions=output:4"
    run("ovs-ofctl", "-O", "OpenFlow13", "add-flow", bridge, stray)
    run("ovs-vsctl", "set-controller", bridge, f"tcp:127.0.0.1:{rig.openflow}")
    rig.wait(
        lambda: rig.api.get("/v1/health").json()["status"] == "ok",
        "tor0 did not come back",
    )

    def mended() -> bool:
        return (
            f"1000,ip,nw_dst={ip}" in rig.table("tor0")
            and rig.table("tor0")[f"1000,ip,nw_dst={rig.fabric.gpus['g1'].ip}"][1]
            == "output:2"
        )

    rig.wait(mended, "the rules were not mended")
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])


def test_a_flow_table_that_others_change_is_as_intended_again_and_health_and_events_say_so(
    rig: ControllerRig,
) -> None:
    """Emptied, a rule changed, one added."""
    bridge, ip = rig.lab.bridge("tor0"), rig.fabric.gpus["g0"].ip

    def table() -> dict[str, str]:
        return {match: actions for match, (_, actions) in rig.table("tor0").items()}

    whole = table()
    before = rig.api.get("/v1/health").json()["flow_tables"]["tor0"]
    for number, words in enumerate(
        (
            ("del-flows", bridge),
            ("mod-flows", bridge, f"ip,nw_dst={ip},actions=drop"),
            (
                "mod-flows",
                bridge,
                f"ip,nw_dst={ip},actions=set_field:1->ip_dscp,output:1",
            ),
            ("add-flow", bridge, "priority=65000,ip,actions=drop"),
        ),
        1,
    ):
        with httpx.stream("GET", f"{rig.api.base_url}/v1/events", timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            run("ovs-ofctl", "-O", "OpenFlow13", *words)
            found: list[dict[str, Any]] = []
            deadline = time.monotonic() + 10
            while not found or found[-1]["event"] != "flows_mended":
                assert time.monotonic() < deadline, found
                line = next(lines)
                found += (
                    [json.loads(line.removeprefix("data: "))]
                    if line.startswith("data: ")
                    else []
                )
        (told,) = (e for e in found if e["event"] == "flow_drift")
        mended = found[-1]
        assert (told["switch"], mended["switch"], mended["problem"]) == (
            "tor0",
            "tor0",
            None,
        )
        assert table() == whole, words
        health = rig.api.get("/v1/health").json()
        now = health["flow_tables"]["tor0"]
        assert (health["status"], now["drift"], now["last"]) == (
            "ok",
            None,
            told["text"],
        )
        assert (now["drifts"], now["mends"]) == (
            before["drifts"] + number,
            before["mends"] + number,
        )
    assert rig.ping("g0", "g1")
    assert (
        f'ringlight_flow_mends_total{{switch="tor0"}} {now["mends"]}.0'
        in rig.api.get("/metrics").text
    )

    # Nor does a restart keep what a stranger wrote.
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
    assert rules_found(rig) == rules_wanted(rig, FABRIC["circuits"])


def test_a_restart_after_a_crash_changes_nothing_that_is_right(
    rig: ControllerRig,
) -> None:
    put_circuits(rig, SWAPPED)
    lit = lit_at(rig)
    rig.stop_controller(signal.SIGKILL)
    before = {switch: rig.table(switch) for switch in ("tor0", "tor1")}
    assert rig.ping("g0", "g2"), "light or rules went with the controller"
    rig.start_controller()
    for switch, table in before.items():
        after = rig.table(switch)
        assert after.keys() == table.keys()
        for match, (age, actions) in table.items():
            assert after[match][0] > age, f"{switch}: {match} was rewritten"
            assert after[match][1] == actions
    assert lit_at(rig) == lit


def test_an_optical_switch_that_dies_and_returns(rig: ControllerRig) -> None:
    lit = lit_at(rig)
    rig.kill_optical()

    def health() -> dict[str, Any]:
        return dict(rig.api.get("/v1/health").json())

    rig.wait(lambda: health()["status"] == "degraded", "its death went unnoticed")
    assert "ocs0" in health()["reasons"][0]
    alarms = rig.api.get("/v1/optical-switches/ocs0/alarms").json()
    assert "cannot be reached" in alarms[0]["text"]
    answer = rig.api.put("/v1/circuits", json={"circuits": SWAPPED})
    assert answer.status_code == 503
    assert "ocs0" in answer.json()["detail"]
    assert rig.ping("g0", "g3"), "the light went with the process"
    assert len(rig.api.get("/v1/circuits").json()["circuits"]) == 4
    rig.start_optical()
    rig.wait(lambda: health()["status"] == "ok", "it was not found again")
    assert lit_at(rig) == lit
    put_circuits(rig, SWAPPED)
    assert rig.ping("g0", "g2")


def test_light_lost_while_the_controller_was_away_is_lit_again(
    rig: ControllerRig,
) -> None:
    lit = lit_at(rig)
    table = rig.table("tor0")
    assert rig.stop_controller() == 0
    assert lit_at(rig) == lit, "a clean end left no light"
    assert rig.table("tor0").keys() == table.keys(), "a clean end left no rules"
    host, port = "127.0.0.1", rig.optical_port
    run(
        "bash",
        "-c",
        f"exec 3<>/dev/tcp/{host}/{port}; printf ':oxc:swit:conn:sub (@4),(@19);*opc?\\n' >&3; head -c2 <&3",
    )
    assert (4, 19) not in lit_at(rig)
    rig.start_controller()
    assert (4, 19) in lit_at(rig)
    assert rig.ping("g0", "g3")


def refusal(rig: ControllerRig, *more: str) -> str:
    """The one line that a controller says when it does not start."""
    command = [
        *rig.command(),
        *more,
        "--inventory-timeout",
        "0.2",
        "--log-level",
        "error",
    ]
    done = forks.run(command, rig.lab.environment())
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr.strip()


def test_a_start_that_cannot_be_is_refused_in_one_line(rig: ControllerRig) -> None:
    assert f"OpenFlow port 127.0.0.1:{rig.openflow} is already in use" in refusal(
        rig, "--rest", "127.0.0.1:0"
    )
    assert f"REST port 127.0.0.1:{rig.rest} is already in use" in refusal(rig)
    assert "needs a token" in refusal(rig, "--rest", "0.0.0.0:0")
    assert "--openflow-insecure" in refusal(
        rig, "--rest", "127.0.0.1:0", "--openflow", "0.0.0.0:0"
    )
    token = rig.state / "refused-token"
    token.write_text("correct-horse-battery")
    assert "--rest-insecure" in refusal(
        rig, "--rest", "0.0.0.0:0", "--token-file", str(token)
    )


@pytest.mark.alone
def test_a_flood_takes_neither_health_nor_memory(rig: ControllerRig) -> None:
    """The long form is ``python -m benchmarks doors``, whose limits this holds with the slack that others'
    programs on the machine need."""
    assert rig.controller is not None
    url, pid = f"http://127.0.0.1:{rig.rest}", rig.controller.pid
    found = {kind: phase(kind, url, pid, 2.0) for kind in ("bodies", "slow", "metrics")}
    assert found["bodies"]["answers"].keys() == {"413"}, found
    assert found["slow"]["answers"] == {"slow clients that connected": 400}, found
    assert found["metrics"]["answers"].keys() == {"200"}, found
    assert found["metrics"]["answers"]["200"] >= 1000, found
    for kind in found.values():
        assert kind["health_not_200"] == {}, found
        assert kind["health"]["p99_ms"] <= 1000, found
        assert kind["memory_grew_mb"] <= 100, found


def test_token_is_needed_by_every_call(rig: ControllerRig) -> None:
    rig.stop_controller()
    token = rig.state / "token"
    token.write_text("correct-horse-battery\n")
    rig.start_controller("--token-file", str(token))
    try:
        for path in ("/v1/health", "/docs", "/openapi.json", "/metrics", "/v1/events"):
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "correct-horse-battery"},
            ):
                answer = rig.api.get(path, headers=headers)
                assert answer.status_code == 401
                assert "Authorization" in answer.json()["detail"]
        good = {"authorization": "Bearer correct-horse-battery"}
        assert rig.api.get("/v1/health", headers=good).json()["status"] == "ok"
        assert "correct-horse" not in rig.log()
    finally:
        rig.stop_controller()


def test_rest_over_tls_asks_for_a_token_all_the_same(
    rig: ControllerRig, tmp_path: Path
) -> None:
    if rig.controller is not None:
        rig.stop_controller()
    cert, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "token"
    token.write_text("correct-horse-battery")
    words = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    )
    run(
        *words,
        "-subj",
        "/CN=lab.example",
        "-days",
        "2",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    )
    options = (
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
        "--token-file",
        str(token),
    )
    with (tmp_path / "log").open("wb") as log:
        command = rig.command(*options, "--rest", f"0.0.0.0:{rig.rest}")
        process = start_process(command, rig.lab.environment(), log)
        try:
            with Api(
                f"127.0.0.1:{rig.rest}",
                "correct-horse-battery",
                cacert=str(cert),
                anywhere=True,
            ) as api:

                def healthy() -> bool:
                    with contextlib.suppress(Unreachable):
                        return bool(api.get("/v1/health")["status"] == "ok")
                    return False

                rig.wait(healthy, "not healthy over TLS")
            with (
                Api(f"127.0.0.1:{rig.rest}", cacert=str(cert), anywhere=True) as api,
                pytest.raises(ApiError, match="Authorization"),
            ):
                api.get("/v1/health")
            with pytest.raises(httpx.TransportError):
                rig.api.get("/v1/health")
        finally:
            process.terminate()
            assert process.wait(15) == 0
