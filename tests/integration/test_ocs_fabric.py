"""Fabric files that name a driver, and an address: real labs whose switches are driven by other protocols."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from ringlight.experiments.backends.emulation.backend import EmulationBackend
from ringlight.experiments.backends.emulation.lab_of_setting import processes_of
from ringlight.experiments.language.expand import parse
from ringlight.experiments.record.events import ActionEnded
from ringlight.experiments.record.lab_records import LinkRate
from ringlight.experiments.record.light_records import Circuits
from ringlight.testbed.addresses import Addresses
from tests.drivers import PROTOCOLS
from tests.integration.controller_rig import free_port
from tests.integration.labs import traces
from tests.integration.test_emulation_backend import runs_of
from tests.served import Lines, any_port, serving

pytestmark = pytest.mark.root

#: Four GPUs on two packet switches, through two optical switches under two protocols.
TWO_SWITCHES = """
name: protocols
description: Four GPUs.
scale: {time: 1, payload: 400}
fabric:
  servers: {s0: {gpus: {g0: test, g1: test, g2: test, g3: test}}}
  packet_switches: {tor0: {ports: 5}, tor1: {ports: 5}}
  optical_switches:
    ocs0: {size: 6, driver: FIRST, dark: 10 ms}
    ocs1: {size: 6, driver: SECOND, dark: 10 ms}
  links:
    - {ends: [g0, "ocs0:1"], rate: 40 Gbit/s}
    - {ends: [g2, "ocs0:2"], rate: 20 Gbit/s}
    - {ends: ["tor0:1", "ocs0:3"], rate: 40 Gbit/s}
    - {ends: ["tor0:2", "ocs0:4"], rate: 40 Gbit/s}
    - {ends: ["tor1:1", "ocs0:5"], rate: 40 Gbit/s}
    - {ends: ["tor1:2", "ocs0:6"], rate: 40 Gbit/s}
    - {ends: [g1, "ocs1:1"], rate: 40 Gbit/s}
    - {ends: [g3, "ocs1:2"], rate: 40 Gbit/s}
    - {ends: ["tor0:3", "ocs1:3"], rate: 40 Gbit/s}
    - {ends: ["tor0:4", "ocs1:4"], rate: 40 Gbit/s}
    - {ends: ["tor1:3", "ocs1:5"], rate: 40 Gbit/s}
    - {ends: ["tor1:4", "ocs1:6"], rate: 40 Gbit/s}
    - {ends: ["tor0:5", "tor1:5"], rate: 12.9 Gbit/s}
  circuits: [[g0, "tor0:1"], [g2, "tor1:1"], [g1, "tor0:3"], [g3, "tor1:3"]]
training: {model: resnet50, gradient: 40 MB, compute: 50 ms, batch: 8, iterations: 8}
tcp: {rto_min: 20 ms}
link_test: {duration: 300 ms}
jobs: {red: {ranks: [g0, g2]}, blue: {ranks: [g1, g3]}}
events: [{when: {job: red, iteration: 1}, do: regroup}]
"""


@pytest.mark.parametrize(
    ("first", "second"), list(zip(("scpi", *PROTOCOLS), PROTOCOLS, strict=False))[::2]
)
def test_a_regroup_over_switches_of_two_protocols_moves_packets(
    first: str, second: str
) -> None:
    found, records = runs_of(
        TWO_SWITCHES.replace("FIRST", first).replace("SECOND", second)
    )
    (run,) = found.values()
    # Light into a slower fibre is as slow as that, also from a faster one.
    into = [
        link
        for link in records
        if isinstance(link, LinkRate) and link.direction.endswith(" to g2")
    ]
    assert into
    assert all(link.set_bps == 50e6 and link.measured_bps < 1.4 * 50e6 for link in into)
    assert not run.failures
    (ended,) = run.of(ActionEnded)
    assert (ended.do, ended.error) == ("regroup", None)
    (lit,) = run.of(Circuits)
    assert {tuple(pair) for pair in lit.circuits} != set(run.plan.circuits)
    assert all(
        run.states(job)[-1] == "SUCCEEDED" and run.exact(job) for job in ("red", "blue")
    )


#: One switch, which is elsewhere; its line is all that differs.
ELSEWHERE = """
name: elsewhere
description: Two GPUs.
scale: {time: 1, payload: 400}
fabric:
  servers: {s0: {gpus: {g0: test, g1: test}}}
  packet_switches: {tor0: {ports: 2}}
  optical_switches:
    ocs0: {size: 8, SWITCH}
  links:
    - {ends: [g0, "ocs0:1"], rate: 40 Gbit/s}
    - {ends: [g1, "tor0:2"], rate: 40 Gbit/s}
    - {ends: ["tor0:1", "ocs0:3"], rate: 40 Gbit/s}
  circuits: [[g0, "tor0:1"]]
training: {model: resnet50, gradient: 4 MB, compute: 10 ms, batch: 8, iterations: 2}
jobs: {red: {ranks: [g0, g1]}}
"""


def drive_from_a_lab(switch: str, secret: str) -> None:
    """Light a circuit of a switch that is elsewhere, by a lab, which then goes. ``switch``: its driver and
    what else stands in its line of the fabric file; ``secret``: what no file of the lab may have in it."""
    (plan,) = parse(ELSEWHERE.replace("SWITCH", switch), "elsewhere.yaml").plans
    rest = f"127.0.0.1:{free_port()}"
    addresses = Addresses(rest, f"127.0.0.1:{free_port()}")
    why = EmulationBackend("namespace", addresses).refuses(plan)
    assert why is not None
    assert why.startswith("fabric.optical_switches.ocs0.address: the testbed's packets")
    processes = processes_of(plan.setting, "namespace", addresses)
    try:
        processes.start()
        with httpx.Client(
            base_url=f"http://{rest}", trust_env=False, timeout=30
        ) as api:
            asked = {"circuits": [["g0", "tor0:1"]]}
            answer = api.put("/v1/circuits", json=asked)
            assert answer.status_code == 200, answer.text
            standing = api.get("/v1/optical-switches/ocs0/cross-connects").json()
            assert {(xc["ingress"], xc["egress"]) for xc in standing} == {
                (1, 11),
                (3, 9),
            }
            assert (
                api.get("/v1/optical-switches/ocs0").json()["identity"]["serial"]
                == "ocs"
            )
        files = [
            path
            for path in processes.state.rglob("*")
            if path.is_file() and path.suffix != ".sqlite"
        ]
        assert not [path for path in files if secret.encode() in path.read_bytes()]
    finally:
        processes.stop()
    assert traces(processes.lab) == []


def test_a_lab_drives_a_switch_that_is_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path, "--ports", "8", *any_port("scpi")) as switch:
        host, port = switch.addresses["scpi"]
        drive_from_a_lab(f'driver: scpi, address: "{host}:{port}"', "s3cr:t")
        # The light stays when the lab goes, as that of a real switch does.
        with Lines((host, port)) as telnet:
            assert telnet.ask(":oxc:swit:conn:stat?\n", b"\n") == "(@1,3),(@11,9)\n"
