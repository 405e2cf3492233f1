"""A capture on a ring of wavelengths in a real lab."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.wrht.ring import WEST
from ringlight.testbed.emulation.optical.datapath import Datapath
from tests.extensions.wrht.integration.test_ring_testbed import (
    CLOCKWISE,
    Rig,
    carried,
    ring,
    ring_spec,
    running,
)

pytestmark = pytest.mark.root


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(ring()) as rig:
        rig.start_workers()
        yield rig


def test_a_capture_has_every_colour_of_a_fibre_and_the_bytes_that_the_switch_counts(
    rig: Rig, tmp_path: Path
) -> None:
    rig.set_up((0, 1, CLOCKWISE, 0), (0, 2, CLOCKWISE, 1), (1, 2, CLOCKWISE, 0))
    switch = rig.fabric.optical_switches[rig.ring.switches[1]]
    with closing(Datapath.resume(rig.lab.bpf_dir / switch.name)) as datapath:

        def counted() -> tuple[int, int]:
            at = datapath.counters(switch.ingress(WEST))
            return at.rx_packets, at.rx_bytes

        described = rig.testbed.settings.state / "fabric.json"
        described.write_text(json.dumps(ring_spec()))
        file, port = tmp_path / "fibre.pcap", f"{switch.name}:{WEST}"
        capture = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "ringlight.experiments.cli.app",
                    "capture",
                    port,
                    "-w",
                    str(file),
                ),
                *("--direction", "in", "--lab", rig.lab.id, "--json"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert capture.stderr is not None
            assert f"capturing at {port} (p{WEST})" in capture.stderr.readline()
            before = counted()
            carried(rig, (0, 1), (0, 2), (1, 2))
            now = counted()
            capture.send_signal(signal.SIGINT)
            said, errors = capture.communicate(timeout=30)
        finally:
            described.unlink()
            if capture.poll() is None:
                capture.kill()
                capture.wait(10)
    assert (capture.returncode, errors) == (0, "")
    found = json.loads(said)
    assert [colour["channel"] for colour in found["by_colour"]] == [0, 1]
    for colour in found["by_colour"]:
        assert colour["bytes"] > 1 << 18
    # What node 1 sends itself goes the other way from its own switch.
    assert (found["packets"], found["bytes"]) == (
        now[0] - before[0],
        now[1] - before[1],
    )
    for line in subprocess.run(
        ["tcpdump", "-e", "-n", "-r", str(file)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines():
        assert "vlan 1," in line or "vlan 2," in line
