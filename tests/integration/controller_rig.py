"""A small fabric of real parts for tests of the controller: four GPUs as namespaces, two packet switches as
Open vSwitch bridges, one emulated optical switch process, and the controller process.

Everything carries the lab's names and is removed in ``close``, which may be called at any point.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from ringlight.fabric.building import build_fabric
from ringlight.fabric.optical_profiles import profiles
from ringlight.fabric.schema import FabricSpec
from ringlight.testbed.emulation.optical.datapath import remove_pins
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import Process, start_process
from ringlight.testbed.rigs.network import run

START_S = 30.0

FABRIC: dict[str, Any] = {
    "servers": {"s0": {"gpus": {f"g{i}": "tesla-m40" for i in range(4)}}},
    "packet_switches": {"tor0": {"ports": 4}, "tor1": {"ports": 4}},
    "optical_switches": {"ocs0": {"size": 10, "profile": "mems"}},
    "links": [
        *({"ends": [f"g{i}", f"ocs0:{i + 1}"], "rate": "10 Gbit/s"} for i in range(4)),
        *(
            {"ends": [f"tor0:{p}", f"ocs0:{4 + p}"], "rate": "10 Gbit/s"}
            for p in (1, 2, 3)
        ),
        *(
            {"ends": [f"tor1:{p}", f"ocs0:{7 + p}"], "rate": "10 Gbit/s"}
            for p in (1, 2, 3)
        ),
        {"ends": ["tor0:4", "tor1:4"], "rate": "1 Gbit/s"},
    ],
    "circuits": [
        ["g0", "tor0:1"],
        ["g1", "tor0:2"],
        ["g2", "tor1:1"],
        ["g3", "tor1:2"],
    ],
}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on.

    The kernel gives none of these to a client, which would have it when the port's user comes.
    """
    while True:
        port = random.randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class ControllerRig:
    """``api``: an HTTP client of the controller's REST API."""

    def __init__(self, profile: str = "mems") -> None:
        self.lab = new_lab()
        self._held = self.lab.hold()
        self.spec = json.loads(json.dumps(FABRIC))
        self.profile = profile
        self.fabric = build_fabric(FabricSpec.model_validate(self.spec))
        self.rest, self.openflow = free_port(), free_port()
        self.state = self.lab.state_dir
        self.controller: Process | None = None
        self.optical: Process | None = None
        self.optical_port = free_port()
        self._namespaces: list[str] = []
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{self.rest}", timeout=20.0, trust_env=False
        )
        try:
            self._build()
            self.start_optical()
            self._write_inventory()
        except BaseException:
            self.close()
            raise

    # Parts

    def _build(self) -> None:
        lab, fabric = self.lab, self.fabric
        optical = lab.namespace("ocs0")
        self._namespaces = [optical, *(lab.namespace(gpu) for gpu in fabric.gpus)]
        run(
            "ip",
            "-batch",
            "-",
            given="\n".join(f"netns add {name}" for name in self._namespaces),
        )
        lines = []
        for link in fabric.links:
            if link.b.node == "ocs0":
                far = f"p{link.b.number} netns {optical}"
            else:
                far = lab.interface(link.b.node, link.b.number)
            if link.a.node in fabric.gpus:
                near = f"eth0 mtu 9000 address {fabric.gpus[link.a.node].mac} netns {lab.namespace(link.a.node)}"
            else:
                near = f"{lab.interface(link.a.node, link.a.number)} mtu 9000"
            lines.append(f"link add {far} mtu 9000 type veth peer name {near}")
        run("ip", "-batch", "-", given="\n".join(lines))
        for gpu in fabric.gpus.values():
            space = lab.namespace(gpu.name)
            run(
                "ip",
                "netns",
                "exec",
                space,
                "sysctl",
                "-qw",
                "net.ipv6.conf.all.disable_ipv6=1",
            )
            run("ip", "netns", "exec", space, "ethtool", "-K", "eth0", "tx", "off")
            run(
                "ip",
                "-n",
                space,
                "-batch",
                "-",
                given=f"link set eth0 up\naddr add {gpu.ip}/16 dev eth0",
            )
        command = []
        for switch in fabric.packet_switches.values():
            bridge = lab.bridge(switch.name)
            command += [
                "--",
                "add-br",
                bridge,
                "--",
                "set",
                "bridge",
                bridge,
                "datapath_type=netdev",
            ]
            command += [
                "fail_mode=secure",
                "protocols=OpenFlow13",
                f"external_ids:ringlight={lab.id}",
            ]
            command += [
                f"other_config:datapath-id={switch.dpid:016x}",
                "other_config:disable-in-band=true",
            ]
            command += [
                "--",
                "set-controller",
                bridge,
                f"tcp:127.0.0.1:{self.openflow}",
            ]
            for port in (p for p in fabric.link_at if p.node == switch.name):
                interface = lab.interface(port.node, port.number)
                run("ip", "link", "set", interface, "up")
                command += ["--", "add-port", bridge, interface]
                command += [
                    "--",
                    "set",
                    "interface",
                    interface,
                    f"ofport_request={port.number}",
                ]
        run("ovs-vsctl", "--timeout=15", *command[1:])
        for name in fabric.packet_switches:
            # Reconnecting is tested; the default's backing off would only cost time.
            run("ovs-vsctl", "set", "controller", lab.bridge(name), "max_backoff=1000")

    def start_optical(self) -> None:
        """The optical switch process; it takes over the light that an earlier one left."""
        ready = self.state / "ocs0.ready"
        ready.unlink(missing_ok=True)
        with (self.state / "ocs0.log").open("ab") as log:
            self.optical = start_process(
                [
                    *(
                        sys.executable,
                        "-m",
                        "ringlight.testbed.emulation.optical",
                        "--name",
                        "ocs0",
                    ),
                    *(
                        "--lab",
                        self.lab.id,
                        "--size",
                        "10",
                        "--listen",
                        f"127.0.0.1:{self.optical_port}",
                    ),
                    *("--profile", self.profile, "--netns", self.lab.namespace("ocs0")),
                    *(
                        "--pins",
                        str(self.lab.bpf_dir / "ocs0"),
                        "--ready",
                        str(ready),
                        "--seed",
                        "1",
                    ),
                ],
                self.lab.environment(),
                log,
            )
        self.wait(ready.exists, "the optical switch is not ready")

    def kill_optical(self) -> None:
        assert self.optical is not None
        self.optical.kill()
        self.optical.wait(10)

    def _write_inventory(self) -> None:
        (self.state / "fabric.json").write_text(json.dumps(self.spec))
        inventory = {
            "lab": self.lab.id,
            "runtime": "namespace",
            "packet_switches": {
                name: {"dpid": s.dpid, "bridge": self.lab.bridge(name)}
                for name, s in self.fabric.packet_switches.items()
            },
            "optical_switches": {
                "ocs0": {
                    "driver": "scpi",
                    "address": f"127.0.0.1:{self.optical_port}",
                    "profile": profiles()[self.profile].declared(),
                }
            },
        }
        (self.state / "inventory.json").write_text(json.dumps(inventory))

    # Controller

    def command(self, *more: str) -> list[str]:
        return [
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
                *more,
            ),
        ]

    def start_controller(self, *more: str) -> None:
        with (self.state / "controller.log").open("ab") as log:
            self.controller = start_process(
                self.command(*more), self.lab.environment(), log
            )

        def healthy() -> bool:
            assert self.controller is not None
            assert self.controller.poll() is None, self.log()[-2000:]
            with contextlib.suppress(httpx.TransportError):
                answer = self.api.get("/v1/health")
                return answer.status_code == 401 or answer.json()["status"] == "ok"
            return False

        self.wait(healthy, "the controller is not healthy")

    def stop_controller(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends the controller; its exit code."""
        assert self.controller is not None
        self.controller.send_signal(number)
        code = self.controller.wait(15)
        self.controller = None
        return code

    def log(self) -> str:
        return (self.state / "controller.log").read_text()

    # Looking

    def wait(self, condition: Any, complaint: str, timeout_s: float = START_S) -> Any:
        """What ``condition`` returns once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{complaint}: {self._tail()}"
            time.sleep(0.05)
        return value

    def _tail(self) -> str:
        logs = [self.state / name for name in ("controller.log", "ocs0.log")]
        return " | ".join(path.read_text()[-1500:] for path in logs if path.exists())

    def ping(self, source: str, destination: str, count: int = 1) -> bool:
        """Whether a GPU's pings are answered."""
        done = subprocess.run(
            [
                *(
                    "ip",
                    "netns",
                    "exec",
                    self.lab.namespace(source),
                    "ping",
                    "-q",
                    "-i",
                    "0.2",
                ),
                *("-c", str(count), "-W", "1", self.fabric.gpus[destination].ip),
            ],
            capture_output=True,
            timeout=30,
            check=False,
        )
        return done.returncode == 0

    def table(self, switch: str) -> dict[str, tuple[float, str]]:
        """The flow table asked of the switch itself: match to (age in seconds, actions)."""
        text = run(
            "ovs-ofctl",
            "-O",
            "OpenFlow13",
            "--no-names",
            "dump-flows",
            self.lab.bridge(switch),
        )
        found = {}
        for age, match, actions in re.findall(
            r"duration=([\d.]+)s.* priority=(\d+\S*) actions=(\S+)", text
        ):
            found[match] = (float(age), actions)
        return found

    def out_port(self, switch: str, gpu: str) -> int | None:
        """The port by which a switch forwards to a GPU, ARP and IPv4 alike; None if it does not."""
        table, ip = self.table(switch), self.fabric.gpus[gpu].ip
        actions = {
            table.get(f"1000,ip,nw_dst={ip}", (0, ""))[1],
            table.get(f"1000,arp,arp_tpa={ip}", (0, ""))[1],
        }
        assert len(actions) == 1, table
        action = actions.pop()
        return int(action.removeprefix("output:")) if action else None

    def close(self) -> None:
        self.api.close()
        for process in (self.controller, self.optical):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(5)
        for switch in self.fabric.packet_switches:
            with contextlib.suppress(RuntimeError):
                run(
                    "ovs-vsctl",
                    "--timeout=15",
                    "--if-exists",
                    "del-br",
                    self.lab.bridge(switch),
                )
        for name in self._namespaces:
            if Path("/run/netns", name).exists():
                with contextlib.suppress(RuntimeError):
                    run("ip", "netns", "del", name)
        for interface in Path("/sys/class/net").glob(f"{self.lab.prefix}*"):
            with contextlib.suppress(RuntimeError):
                run("ip", "link", "del", interface.name)
        remove_pins(self.lab.bpf_dir / "ocs0")
        if self.lab.bpf_dir.exists():
            os.rmdir(self.lab.bpf_dir)
        _remove_tree(self.state)
        self._held.close()


def _remove_tree(directory: Path) -> None:
    if directory.is_dir():
        for path in directory.iterdir():
            if path.is_dir():
                _remove_tree(path)
            else:
                path.unlink()
        directory.rmdir()
