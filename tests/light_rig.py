"""Nine optical switches, each with another management protocol, and the controller, as processes.

Eight are emulated, with light paths in the kernel and nothing plugged in. One is a bridge of Open vSwitch
under the OpenFlow driver. Everything carries the lab's names and is removed in ``close``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.errors import OpticalError
from ringlight.controller.optical.registry import make_driver
from ringlight.extensions.openflow_patch.driver import OWNER, PRIORITY
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.crossconnect import Mode as DriverMode
from ringlight.fabric.optical_drivers import DRIVERS, PROTOCOLS
from ringlight.fabric.optical_profiles import PROFILES
from ringlight.testbed.acceptance.changing import converge
from ringlight.testbed.acceptance.network import run
from ringlight.testbed.acceptance.rigs.emulated import forget
from ringlight.testbed.emulation.optical.datapath import Datapath, remove_pins
from ringlight.testbed.forkserver import Process, start_process
from ringlight.testbed.lab import new_lab
from tests.integration.controller_rig import free_port
from tests.light_model import Pair, Pairs, Wish

SIZE = 8
START_S = 30.0
USER, PASSWORD = "ann", "l1ght-s3cret"
#: By name, the driver of each switch; all protocols that can be emulated, and OpenFlow.
SWITCHES: Mapping[str, str] = {f"ocs{n}": driver for n, driver in enumerate((*PROTOCOLS, "openflow"))}
BRIDGE = next(name for name, driver in SWITCHES.items() if driver == "openflow")
EMULATED = tuple(name for name in SWITCHES if name != BRIDGE)
_BRIDGE_DPID = 0x100
#: On each switch two GPUs and two ports of the packet switch, as faceplates 1 to 4.
FABRIC: dict[str, Any] = {
    "servers": {"s0": {"gpus": {f"g{i}": "tesla-m40" for i in range(2 * len(SWITCHES))}}},
    "packet_switches": {"tor0": {"ports": 2 * len(SWITCHES)}},
    "optical_switches": {
        name: {"size": SIZE, "profile": "ideal", "driver": driver} for name, driver in SWITCHES.items()
    },
    "links": [
        {"ends": [end, f"{name}:{port}"], "rate": "10 Gbit/s"}
        for index, name in enumerate(SWITCHES)
        for port, end in enumerate(
            (f"g{2 * index}", f"g{2 * index + 1}", f"tor0:{2 * index + 1}", f"tor0:{2 * index + 2}"), start=1
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
        self.entry: dict[str, Any] = {
            "driver": self.protocol,
            "address": f"127.0.0.1:{self._scpi if self.protocol == 'scpi' else self._serve}",
            "profile": PROFILES["ideal"].declared(),
        }
        if self.protocol != "scpi":
            self.entry |= {"username": USER, "password_file": str(rig.password)}
        if "tls" in DRIVERS[self.protocol].options:
            self.entry["tls"] = False
        if self.protocol == "polatis-restconf":
            self.entry["settle_s"] = 0
        self.rest = httpx.Client(base_url=f"http://127.0.0.1:{self._rest}", timeout=20.0, trust_env=False)
        self.driver: OpticalSwitchDriver = make_driver(name, self.entry, SIZE)
        self._writing = threading.Lock()

    def start(self) -> None:
        """Start the process; it goes on from the light that an earlier one left."""
        self._ready.unlink(missing_ok=True)
        serve = () if self.protocol == "scpi" else ("--serve", f"{self.protocol}=127.0.0.1:{self._serve}")
        users = () if self.protocol == "scpi" else ("--users", str(self._users))
        with self.log.open("ab") as log:
            self.process = start_process(
                [
                    *(sys.executable, "-m", "ringlight.testbed.emulation.optical", "--name", self.name),
                    *("--lab", self._lab.id, "--size", str(SIZE), "--profile", "ideal", "--seed", "1"),
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
                    self.driver, cross_connects, DriverMode(wish.mode), delete=wish.delete, timeout_s=5.0
                )
            except OpticalError:
                return False
            return True

    def reported(self) -> Pairs:
        """What it says over its own protocol that stands."""
        with self._writing:
            self._opened()
            return frozenset((xc.ingress, xc.egress) for xc in self.driver.snapshot().cross_connects)

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
            "own REST, reported": frozenset((r["ingress"], r["egress"]) for r in rows if r["reported"]),
            "own REST, lit": frozenset((r["ingress"], r["egress"]) for r in rows if r["lit"]),
            "kernel": frozenset(
                (ingress, path.egress) for (ingress, _), path in self._maps.cross_connects().items()
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


class Bridge:
    """The switch that is a bridge; others write its flows past the controller."""

    def __init__(self, rig: LightRig) -> None:
        self._bridge = rig.lab.bridge(BRIDGE)
        self.entry = {"driver": "openflow", "dpid": _BRIDGE_DPID, "profile": PROFILES["ideal"].declared()}
        _add_bridge(rig, self._bridge, _BRIDGE_DPID)

    def write(self, wish: Wish) -> bool:
        """Change its flows as one who has the controller's cookie; they are then nobody else's."""
        now = self.reported()
        removed = {pair for pair in now if pair[0] in wish.delete or wish.mode == "replace"}
        removed |= {p for p in now for new in wish.pairs if p != new and (p[0] == new[0] or p[1] == new[1])}
        for ingress, _ in sorted(removed - set(wish.pairs)):
            self._ofctl("--strict", "del-flows", f"priority={PRIORITY},in_port={ingress}")
        for ingress, egress in wish.pairs:
            out = "in_port" if egress - SIZE == ingress else f"output:{egress - SIZE}"
            self._ofctl("add-flow", f"cookie={OWNER:#x},priority={PRIORITY},in_port={ingress},actions={out}")
        return True

    def reported(self) -> Pairs:
        return frozenset(self._flows())

    def circuits(self) -> dict[str, Pairs]:
        """There is nothing behind its flows."""
        return {}

    def _flows(self) -> Iterator[Pair]:
        for line in self._ofctl("dump-flows").splitlines():
            if match := re.search(rf"priority={PRIORITY},in_port=(\d+) actions=(\S+)", line):
                ingress, action = int(match[1]), match[2]
                yield (
                    ingress,
                    SIZE + (ingress if action == "IN_PORT" else int(action.removeprefix("output:"))),
                )

    def _ofctl(self, *words: str) -> str:
        verb = [word for word in words if not word.startswith("--")]
        options = [word for word in words if word.startswith("--")]
        return run("ovs-ofctl", "-O", "OpenFlow13", "--no-names", *options, verb[0], self._bridge, *verb[1:])


class LightRig:
    """``switches`` by name; ``rest``: port of the controller's REST API."""

    def __init__(self) -> None:
        self.lab = new_lab()
        self._held = self.lab.hold()
        self.state = self.lab.state_dir
        self.users, self.password = self.state / "users", self.state / "password"
        self.rest, self.openflow = free_port(), free_port()
        self.controller: Process | None = None
        self.emulated: dict[str, EmulatedSwitch] = {}
        self.switches: dict[str, EmulatedSwitch | Bridge] = {}
        self.api = self.client()
        try:
            self.users.write_text(f"{USER}:{PASSWORD}\n")
            self.password.write_text(f"{PASSWORD}\n")
            for name in EMULATED:
                self.emulated[name] = EmulatedSwitch(self, name)
                self.emulated[name].start()
            _add_bridge(self, self.lab.bridge("tor0"), 1)
            self.switches = {**self.emulated, BRIDGE: Bridge(self)}
            for switch in self.emulated.values():
                switch.wait_ready()
            self._write_files()
            self.start_controller()
        except BaseException:
            self.close()
            raise

    def client(self) -> httpx.Client:
        """A client of the controller for one thread."""
        return httpx.Client(base_url=f"http://127.0.0.1:{self.rest}", timeout=90.0, trust_env=False)

    def _write_files(self) -> None:
        (self.state / "fabric.json").write_text(json.dumps(FABRIC))
        inventory = {
            "lab": self.lab.id,
            "packet_switches": {"tor0": {"dpid": 1}},
            "optical_switches": {name: switch.entry for name, switch in self.switches.items()},
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
                    *("--inventory", str(self.state / "inventory.json"), "--state", str(self.state)),
                    *("--rest", f"127.0.0.1:{self.rest}", "--openflow", f"127.0.0.1:{self.openflow}"),
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
        switch = self.emulated[name]
        assert switch.process is not None
        switch.process.kill()
        switch.process.wait(10)
        switch.start()
        switch.wait_ready()

    def freeze(self, who: str, seconds: float) -> None:
        """Stop a switch's process, or the controller's, for so long."""
        process = self.controller if who == "controller" else self.emulated[who].process
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
        for switch in self.emulated.values():
            switch.close()
        for name in ("tor0", BRIDGE):
            with contextlib.suppress(RuntimeError):
                run("ovs-vsctl", "--timeout=15", "--if-exists", "del-br", self.lab.bridge(name))
        if self.lab.bpf_dir.exists():
            os.rmdir(self.lab.bpf_dir)
        for path in sorted(self.state.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        forget(self.state)
        self._held.close()


def _add_bridge(rig: LightRig, bridge: str, dpid: int) -> None:
    command = ["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure"]
    command += ["protocols=OpenFlow13", f"external_ids:ringlight={rig.lab.id}"]
    command += [f"other_config:datapath-id={dpid:016x}", "other_config:disable-in-band=true"]
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
