"""Optical switches, one for each management protocol, and the controller, as processes.

They are emulated, with light paths in the kernel and nothing plugged in. Everything carries the lab's names
and is removed in ``close``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.crossconnect import Mode as DriverMode
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.optical.datapath import Datapath, remove_pins
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import Process, start_process
from ringlight.testbed.rigs.changing import converge
from ringlight.testbed.rigs.emulated import forget
from ringlight.testbed.rigs.network import run
from tests.drivers import PROTOCOLS, entry_of
from tests.integration.controller_rig import free_port
from tests.light_model import Pairs, Wish

SIZE = 8
MIN_SWITCHES = 4
START_S = 30.0
USER, PASSWORD = "ann", "l1ght-s3cret"
#: By name, the driver of each switch: all protocols, and at least as many switches as a change is over.
SWITCHES: Mapping[str, str] = {
    f"ocs{n}": driver
    for n, driver in enumerate(
        (*PROTOCOLS, *["scpi"] * (MIN_SWITCHES - len(PROTOCOLS)))
    )
}
#: On each switch two GPUs and two ports of the packet switch, as faceplates 1 to 4.
FABRIC: dict[str, Any] = {
    "servers": {
        "s0": {"gpus": {f"g{i}": "tesla-m40" for i in range(2 * len(SWITCHES))}}
    },
    "packet_switches": {"tor0": {"ports": 2 * len(SWITCHES)}},
    "optical_switches": {
        name: {"size": SIZE, "profile": "ideal", "driver": driver}
        for name, driver in SWITCHES.items()
    },
    "links": [
        {"ends": [end, f"{name}:{port}"], "rate": "10 Gbit/s"}
        for index, name in enumerate(SWITCHES)
        for port, end in enumerate(
            (
                f"g{2 * index}",
                f"g{2 * index + 1}",
                f"tor0:{2 * index + 1}",
                f"tor0:{2 * index + 2}",
            ),
            start=1,
        )
    ],
}


class EmulatedSwitch:
    """One emulated switch's process, and a client of its management protocol that is not the controller's."""

    def __init__(self, rig: LightRig, name: str) -> None:
        self.name, self.protocol = name, SWITCHES[name]
        self._lab, self._users = rig.lab, rig.users
        self._scpi, self._serve, self._rest = free_port(), free_port(), free_port()
        self._pins = rig.lab.bpf_dir / name
        self._ready = rig.lab.state_dir / f"{name}.ready"
        self.log = rig.lab.state_dir / f"{name}.log"
        self.process: Process | None = None
        self._maps: Datapath | None = None
        address = f"127.0.0.1:{self._scpi if self.protocol == 'scpi' else self._serve}"
        self.entry = entry_of(self.protocol, address, USER, rig.password)
        self.entry |= {"profile": profiles()["ideal"].declared()}
        self.rest = httpx.Client(
            base_url=f"http://127.0.0.1:{self._rest}", timeout=20.0, trust_env=False
        )
        self.driver: OpticalSwitchDriver = make_driver(name, self.entry, SIZE)
        self._writing = threading.Lock()

    def start(self) -> None:
        """Start the process; it goes on from the light that an earlier one left."""
        self._ready.unlink(missing_ok=True)
        serve = (
            ()
            if self.protocol == "scpi"
            else ("--serve", f"{self.protocol}=127.0.0.1:{self._serve}")
        )
        users = (
            ("--users", str(self._users)) if driver_kinds()[self.protocol].login else ()
        )
        with self.log.open("ab") as log:
            self.process = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        self.name,
                    ),
                    *(
                        "--lab",
                        self._lab.id,
                        "--size",
                        str(SIZE),
                        "--profile",
                        "ideal",
                        "--seed",
                        "1",
                    ),
                    *("--listen", f"127.0.0.1:{self._scpi}", *serve, *users),
                    *(
                        "--rest",
                        f"127.0.0.1:{self._rest}",
                        "--pins",
                        str(self._pins),
                        "--ready",
                        str(self._ready),
                    ),
                ],
                self._lab.environment(),
                log,
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{self.name} is not ready"
            time.sleep(0.01)
        if self._maps is None:
            self._maps = Datapath.resume(self._pins)

    def write(self, wish: Wish) -> bool:
        """Change it over its own protocol, past the controller; whether it surely came about."""
        cross_connects = [CrossConnect(*pair) for pair in wish.pairs]
        with self._writing:
            try:
                self._opened()
                converge(
                    self.driver,
                    cross_connects,
                    DriverMode(wish.mode),
                    delete=wish.delete,
                    timeout_s=5.0,
                )
            except OpticalError:
                return False
            return True

    def reported(self) -> Pairs:
        """What it says over its own protocol that stands."""
        with self._writing:
            self._opened()
            return frozenset(
                (xc.ingress, xc.egress) for xc in self.driver.snapshot().cross_connects
            )

    def _opened(self) -> None:
        try:
            self.driver.snapshot()
        except OpticalError:
            self.driver.open()

    def circuits(self) -> dict[str, Pairs]:
        """What its own REST says, and what the light paths in the kernel are."""
        assert self._maps is not None
        answer = self.rest.get("/v1/circuits")
        answer.raise_for_status()
        rows = answer.json()
        return {
            "own REST, reported": frozenset(
                (r["ingress"], r["egress"]) for r in rows if r["reported"]
            ),
            "own REST, lit": frozenset(
                (r["ingress"], r["egress"]) for r in rows if r["lit"]
            ),
            "kernel": frozenset(
                (ingress, path.egress)
                for (ingress, _), path in self._maps.cross_connects().items()
            ),
        }

    def close(self) -> None:
        self.rest.close()
        with contextlib.suppress(OpticalError):
            self.driver.close()
        _end(self.process)
        if self._maps is not None:
            self._maps.close()
        remove_pins(self._pins)


class LightRig:
    """``switches`` by name; ``rest``: port of the controller's REST API."""

    def __init__(self) -> None:
        self.lab = new_lab()
        self._held = self.lab.hold()
        self.state = self.lab.state_dir
        self.users, self.password = self.state / "users", self.state / "password"
        self.rest, self.openflow = free_port(), free_port()
        self.controller: Process | None = None
        self.switches: dict[str, EmulatedSwitch] = {}
        self.api = self.client()
        try:
            self.users.write_text(f"{USER}:{PASSWORD}\n")
            self.password.write_text(f"{PASSWORD}\n")
            for name in SWITCHES:
                self.switches[name] = EmulatedSwitch(self, name)
                self.switches[name].start()
            _add_bridge(self, self.lab.bridge("tor0"), 1)
            for switch in self.switches.values():
                switch.wait_ready()
            self._write_files()
            self.start_controller()
        except BaseException:
            self.close()
            raise

    def client(self) -> httpx.Client:
        """A client of the controller for one thread."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.rest}", timeout=90.0, trust_env=False
        )

    def _write_files(self) -> None:
        (self.state / "fabric.json").write_text(json.dumps(FABRIC))
        inventory = {
            "lab": self.lab.id,
            "packet_switches": {"tor0": {"dpid": 1}},
            "optical_switches": {
                name: switch.entry for name, switch in self.switches.items()
            },
        }
        (self.state / "inventory.json").write_text(json.dumps(inventory))

    def start_controller(self) -> None:
        with (self.state / "controller.log").open("ab") as log:
            self.controller = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.controller",
                        "--fabric",
                        str(self.state / "fabric.json"),
                    ),
                    *(
                        "--inventory",
                        str(self.state / "inventory.json"),
                        "--state",
                        str(self.state),
                    ),
                    *(
                        "--rest",
                        f"127.0.0.1:{self.rest}",
                        "--openflow",
                        f"127.0.0.1:{self.openflow}",
                    ),
                ],
                self.lab.environment(),
                log,
            )
        deadline = time.monotonic() + START_S
        while not self._serves():
            assert self.controller.poll() is None, self.log()[-2000:]
            assert time.monotonic() < deadline, "the controller does not answer"
            time.sleep(0.02)

    def _serves(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return bool(self.api.get("/v1/health").json()["packet_switches"]["tor0"])
        return False

    def kill_controller(self) -> None:
        assert self.controller is not None
        self.controller.kill()
        self.controller.wait(10)

    def kill_switch(self, name: str) -> None:
        """Kill an emulated switch's process and start the next, which finds its light."""
        switch = self.switches[name]
        assert switch.process is not None
        switch.process.kill()
        switch.process.wait(10)
        switch.start()
        switch.wait_ready()

    def freeze(self, who: str, seconds: float) -> None:
        """Stop a switch's process, or the controller's, for so long."""
        process = self.controller if who == "controller" else self.switches[who].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return (self.state / "controller.log").read_text(errors="replace")

    def close(self) -> None:
        self.api.close()
        _end(self.controller)
        for switch in self.switches.values():
            switch.close()
        with contextlib.suppress(RuntimeError):
            run(
                "ovs-vsctl",
                "--timeout=15",
                "--if-exists",
                "del-br",
                self.lab.bridge("tor0"),
            )
        if self.lab.bpf_dir.exists():
            os.rmdir(self.lab.bpf_dir)
        for path in sorted(self.state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        forget(self.state)
        self._held.close()


def _add_bridge(rig: LightRig, bridge: str, dpid: int) -> None:
    command = [
        "add-br",
        bridge,
        "--",
        "set",
        "bridge",
        bridge,
        "datapath_type=netdev",
        "fail_mode=secure",
    ]
    command += ["protocols=OpenFlow13", f"external_ids:ringlight={rig.lab.id}"]
    command += [
        f"other_config:datapath-id={dpid:016x}",
        "other_config:disable-in-band=true",
    ]
    command += ["--", "set-controller", bridge, f"tcp:127.0.0.1:{rig.openflow}"]
    run("ovs-vsctl", "--timeout=15", *command)
    run("ovs-vsctl", "set", "controller", bridge, "max_backoff=1000")


def _end(process: Process | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
