"""Hands in real labs over light that stands and is asked of nobody: pings, transfers, the prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.console import capture
from ringlight.extensions.sip_ml.divided.lightpaths import setting_of
from ringlight.extensions.sip_ml.divided.planes import Lightpath
from ringlight.fabric.building import build_fabric
from ringlight.fabric.crossconnect import Mode
from ringlight.fabric.keys import plugged
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation import testbed as emulated
from ringlight.testbed.emulation.onic.tables import read_counters
from ringlight.testbed.emulation.scale import Emulation
from tests.drivers import converge
from tests.forks import ringlight as run
from tests.integration.labs import agent_client, running_testbed

pytestmark = pytest.mark.root

#: Three GPUs below one optical circuit switch, each with an O-NIC whose light stands: 25 Mbit/s as emulated.
STANDING = {
    "interconnect": {
        "kind": "parallel-ocs",
        "gpus": 3,
        "gpu": "a100",
        "rate": "25 Gbit/s",
        "switches": 1,
    }
}


@pytest.fixture(scope="module")
def standing() -> Iterator[emulated.Testbed]:
    """Nobody holds its GPUs, and all is dark."""
    made = plugged(build_fabric(FabricSpec.model_validate(STANDING)))
    with running_testbed(
        made, runtime="namespace", emulation=Emulation(payload_scale=1000)
    ) as lab:
        file = lab.settings.state / "fabric.json"
        file.write_text(json.dumps(STANDING))
        try:
            yield lab
        finally:
            file.unlink()


def shine(
    lab: emulated.Testbed, pairs: Sequence[tuple[int, int]], *, through: bool = True
) -> None:
    """Light from GPU to GPU by number, and no other; without ``through`` the switch stays dark."""
    fabric = lab.settings.fabric
    driver = make_driver(
        "q0",
        lab.inventory["optical_switches"]["q0"],
        fabric.optical_switches["q0"].size,
    )
    paths = {pair: (Lightpath(0),) for pair in pairs}
    driver.open()
    try:
        converge(
            driver, setting_of(fabric, paths if through else {})["q0"], Mode.REPLACE
        )
    finally:
        driver.close()
    gpus = list(fabric.gpus.values())
    tables: dict[str, dict[str, Any]] = {gpu.name: {} for gpu in gpus}
    for a, b in pairs:
        tables[gpus[a].name][gpus[b].ip] = {"lit": True, "paths": [{"port": 0}]}
    with agent_client(lab) as client:
        client.put("/v1/lightpaths", json=tables).raise_for_status()


def light_packets(lab: emulated.Testbed, gpu: str) -> int:
    return sum(
        read_counters(lab.settings.lab.bpf_dir / f"onic-{gpu}", 1).light_tx_packets
    )


def test_pings_and_transfers_take_the_light_that_is_lit_and_name_it(
    standing: emulated.Testbed,
) -> None:
    name = standing.settings.lab.id
    shine(standing, [(0, 1), (1, 2)])
    before = light_packets(standing, "g0")
    done = run("ping", "--lab", name, "-c", "3", "g0", "g1")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(
        re.fullmatch(r"g0 -> g1: [\d.]+ ms over g0:0 into q0:1", line) for line in lines
    )
    assert last == "answers took the control network"
    assert light_packets(standing, "g0") == before + 3

    other = run("ping", "--lab", name, "-c", "1", "--control", "g0", "g1")
    assert re.fullmatch(
        r"g0 -> g1: [\d.]+ ms\nover the control network\n", other.stdout
    ), other.stderr
    assert light_packets(standing, "g0") == before + 3

    sent = run("iperf", "--lab", name, "-t", "0.5", "--json", "g0", "g1")
    assert sent.returncode == 0, sent.stderr
    found = json.loads(sent.stdout)
    assert found["over"] == "g0:0 into q0:1"
    # 25 Mbit/s as emulated; a busy machine does not reach that.
    assert 2e6 < found["received_bps"] < 27e6

    every = run("ping", "--lab", name)
    assert (every.returncode, every.stdout.splitlines()[-1]) == (
        0,
        "*** 2 of 6 took light; 4 took the control network, as no light led there",
    )


def test_without_light_one_line_says_how_to_get_some(
    standing: emulated.Testbed,
) -> None:
    name = standing.settings.lab.id
    shine(standing, [(0, 1)], through=False)
    done = run("ping", "--lab", name, "g0", "g2")
    assert (done.returncode, done.stderr) == (
        1,
        "ringlight: no light leads from g0 to g2 now; a job makes some and keeps it: "
        "ringlight job submit light --ranks g0,g2 --hold\n",
    )
    # The O-NIC sends, and the switch is dark.
    for words in (["ping", "-c", "1", "g0", "g1"], ["iperf", "g0", "g1"]):
        done = run(words[0], "--lab", name, *words[1:])
        assert done.returncode == 1
        said = (
            "g1 acknowledged nothing within 1 s: g0:0 into q0:1 does not lead there now"
        )
        assert done.stderr.splitlines()[-1] == f"ringlight: {said}"


def test_the_prompt_pings_over_light_and_says_when_mininets_ping_did_not(
    standing: emulated.Testbed, tmp_path: Path
) -> None:
    shine(standing, [(0, 1)])
    file = tmp_path / "lines"
    captured = tmp_path / "nic.pcap"
    file.write_text(
        "ping g0 g1 2\nping g1 g0\ng0 ping -c1 g1\nping g0\niperf g1 g0 1\n"
        f"g0 ping -i 0.2 g1 > /dev/null &\ncapture g0 -w {captured} -c 6 -t 30\npingallfull 20\n"
    )
    done = run("shell", standing.settings.lab.id, "--file", str(file))
    pinged, _, every = done.stdout.partition("capture")
    assert len(re.findall(r"g0 -> g1: [\d.]+ ms over g0:0 into q0:1", pinged)) == 2
    assert (
        "*** That took the control network; over the light: ping gpu1 gpu2"
        in done.stdout
    )
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == [
        "line 2",
        "line 4",
        "line 5",
    ]
    assert done.stderr.count("no light leads from g1 to g0 now") == 2
    assert re.search(rf"\*\*\* {captured}: 6 packets, \d+ bytes\n", done.stdout), (
        done.stdout
    )
    assert sum(one.packets for one in capture.read(captured)) == 6
    assert len(re.findall(r"^g\d -> g\d: [\d.]+ ms", every, re.MULTILINE)) == 6
