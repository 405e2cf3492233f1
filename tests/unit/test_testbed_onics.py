"""O-NICs of the emulated testbed: names, numbers, and the processes that are kept running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ringlight.controller.onic.lease_times import Times
from ringlight.fabric.parts import Gpu, OpticalSwitch, Port
from ringlight.testbed.emulation.buildable import check_fabric, check_names
from ringlight.testbed.emulation.onic.wiring import (
    control_ip,
    control_mac,
    laser_ids,
    lasers_of_switch,
    standing_light,
)
from ringlight.testbed.emulation.optical.__main__ import main as optical_switch
from ringlight.testbed.lab import Lab
from ringlight.testbed.supervision import Supervisor
from tests.unit.fabrics import onic_stars


def test_an_onic_is_on_the_control_network_where_its_gpu_is_on_the_data_network() -> (
    None
):
    gpu = Gpu("n0", "s", "test", "10.82.3.7", "02:52:4c:00:03:07")
    assert (control_ip(gpu), control_mac(gpu)) == ("10.83.3.7", "02:52:4c:01:03:07")


def test_every_laser_is_plugged_into_one_port_of_one_switch() -> None:
    fabric = onic_stars(6, ports=2, beside=(Gpu.numbered("g0", "s", "test", 0),))
    plugged: dict[int, Port] = {}
    for name, switch in fabric.optical_switches.items():
        found = lasers_of_switch(fabric, name)
        assert found.keys() == set(range(1, switch.size + 1))
        for port, laser in found.items():
            assert laser not in plugged
            plugged[laser] = Port(name, port)
    assert laser_ids(fabric, "n0") == (2, 3)
    for gpu in fabric.onics:
        for number, laser in enumerate(laser_ids(fabric, gpu)):
            here = Port(gpu, number)
            assert plugged[laser] == fabric.link_at[here].other(here)


def test_only_an_onic_whose_light_stands_has_settings_of_standing_light() -> None:
    assert standing_light(onic_stars(2), "n0", lambda real: real) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--wavelengths", "2"],
            "--wavelengths and --lasers (or --tagged) go together",
        ),
        (["--tagged"], "--wavelengths and --lasers (or --tagged) go together"),
        (
            ["--wavelengths", "2", "--lasers", "pin", "--tagged"],
            "--tagged: light that tells its colour",
        ),
        (
            ["--wavelengths", "2", "--laser", "1=0", "--tagged"],
            "--tagged: light that tells its colour",
        ),
    ],
)
def test_a_wss_either_knows_the_lasers_or_reads_the_light(
    more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        optical_switch(["--name", "w", "--size", "4", "--pins", "nowhere", *more])
    assert words in capsys.readouterr().err


def test_what_cannot_be_emulated_is_named() -> None:
    with pytest.raises(ValueError, match="WSS w0 has 129 ports; at most 128"):
        check_fabric(onic_stars(129))
    fabric = onic_stars(6)
    taken = {
        **fabric.optical_switches,
        "control": OpticalSwitch("control", 2, "scpi", "mems"),
    }
    with pytest.raises(
        ValueError, match="control is the name of a part of a plane of O-NICs"
    ):
        check_names(Lab("test"), replace(fabric, optical_switches=taken))
    check_names(Lab("test"), fabric)


@pytest.mark.parametrize(
    ("lease_s", "dilation"), [(2.0, 1.0), (0.1, 1.0), (0.5, 40.0), (30.0, 0.5)]
)
def test_times_of_the_agents_fit_each_other(lease_s: float, dilation: float) -> None:
    assert Times.dilated(lease_s, dilation).lease_s == lease_s * dilation


def until(condition: Callable[[], object], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def process(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.DEVNULL
    )


def test_what_dies_is_started_again_later_each_time_and_ended_at_the_end(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    dying = f"import time; open({str(starts)!r}, 'a').write(f'{{time.monotonic()}}\\n')"
    restarted: dict[str, tuple[int, bool]] = {}
    supervisor = Supervisor(
        "device",
        {
            "dies": partial(process, dying),
            "stays": partial(process, "import time; time.sleep(60)"),
        },
        lambda name, pid, asked: restarted.update({name: (pid, asked)}),
        lambda name: f"{name} said nothing",
    )
    try:
        until(lambda: starts.exists() and len(starts.read_text().splitlines()) >= 3)
        times = [float(line) for line in starts.read_text().splitlines()]
        assert times[1] - times[0] >= 0.2
        assert times[2] - times[1] >= 0.4
        stays = supervisor.lives()["stays"]
        assert stays.runs
        assert stays.restarts == 0
        os.kill(stays.pid, signal.SIGKILL)
        until(lambda: supervisor.lives()["stays"].restarts == 1)
        again = supervisor.lives()["stays"]
        assert (stays.ended, again.ended) == (None, "killed by SIGKILL")
        assert again.since > stays.since
        assert supervisor.lives()["dies"].ended == "exit code 0: dies said nothing"
        assert again.runs
        assert again.pid != stays.pid
        until(lambda: restarted.get("stays") == (again.pid, False))
        supervisor.kill("stays")
        until(lambda: not supervisor.lives()["stays"].runs)
        supervisor.let_start("stays")
        until(lambda: restarted["stays"][1])
    finally:
        supervisor.stop()
    assert not Path("/proc", str(again.pid)).exists()
    assert supervisor.lives() == {}


def test_nothing_runs_when_one_cannot_be_started() -> None:
    made: list[subprocess.Popen[bytes]] = []

    def good() -> subprocess.Popen[bytes]:
        made.append(process("import time; time.sleep(60)"))
        return made[0]

    def bad() -> subprocess.Popen[bytes]:
        raise OSError("no such program")

    with pytest.raises(OSError, match="no such program"):
        Supervisor(
            "device", {"good": good, "bad": bad}, lambda _name, _pid, _asked: None
        )
    assert made[0].returncode is not None
