"""``ringlight ocs serve`` of a switch that SONiC runs on, and a client that is not ours."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.served import WAIT_S, Served, any_port, serving


def test_sonic_by_the_design_document(tmp_path: Path) -> None:
    """Section 9 of the document, with plain HTTP: 2 x 1,024 ports, and the factory loss of a path."""
    config = "/restconf/data/sonic-ocs:sonic-ocs/OCS_CROSS_CONNECT"
    states = "/restconf/data/sonic-ocs-states:sonic-ocs-states"
    options = (
        "--profile",
        "sonic-ocs",
        "--ports",
        "1024",
        "--state",
        f"{tmp_path}",
        *any_port("sonic-ocs"),
    )
    pairs = [(1, 1), (2, 5), (1024, 32)]
    rows = [
        {"cross_connect_id": f"{a}A-{b}B", "a_side": f"{a}A", "b_side": f"{b}B"}
        for a, b in pairs
    ]

    def connected(to: Served) -> httpx.Client:
        return httpx.Client(
            base_url=to.url("sonic-ocs"), trust_env=False, timeout=WAIT_S
        )

    with serving(tmp_path, *options) as switch, connected(switch) as http:
        told = {"sonic-ocs:OCS_CROSS_CONNECT": {"OCS_CROSS_CONNECT_LIST": rows}}
        assert http.patch(config, json=told).status_code == 204
        deadline = time.monotonic() + WAIT_S
        while True:
            (found,) = http.get(f"{states}/OCS_CROSS_CONNECT").json().values()
            sides = {
                one[f"{side}_side_status"]
                for one in found["OCS_CROSS_CONNECT_LIST"]
                for side in "ab"
            }
            if sides == {"tuned"}:
                break
            assert sides == {"tuning"} or time.monotonic() < deadline, sides
        (ports,) = http.get(f"{states}/OCS_PORT").json().values()
        assert len(ports["OCS_PORT_LIST"]) == 2048
        key = "OCS_FACTORY_INSERTION_LOSS/OCS_FACTORY_INSERTION_LOSS_LIST=1024A-32B,228.850,28.00"
        ((loss,),) = http.get(f"{states}/{key}").json().values()
        assert 1.5 < float(loss["loss_dB"]) < 1.9
    with serving(tmp_path, *options) as switch, connected(switch) as http:
        assert http.get(config).json() == told
