"""Control time through each driver: prints one JSON object.

One emulated optical switch (a process of its own, eBPF datapath, no fibres), `ideal` profile, speaks every
management protocol but NETCONF, for which there is Debian's netconfd where it is installed; the drivers take
turns. ``permutation``: from a random permutation of all ports to another, reading, plan, writes and
read-back included, by REPLACE and by UPDATE (which may only remove what is in the way). ``one``: moving one
circuit, likewise. Seconds.

    python benchmarks/optical_drivers.py [--ports N] [--rounds N] [--moves N] [--driver NAME]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import path as import_path
from typing import Any

import_path.insert(0, str(Path(__file__).resolve().parent.parent))

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode
from ringlight.testbed.emulation.optical.datapath import remove_pins
from tests import netconf_server

ROOT = Path(__file__).resolve().parents[1]
EMULATED = ("scpi", "polatis-tl1", "calient-tl1", "polatis-restconf", "calient-rest", "ocp-gnmi")
DRIVERS = (*EMULATED, "polatis-netconf")
PASSWORD = "benchmark"


@contextlib.contextmanager
def optical_switch(ports: int) -> Iterator[dict[str, str]]:
    """A switch of so many ports; ``host:port`` of each of its protocols."""
    name = f"bench-{secrets.token_hex(3)}"
    pins = Path("/sys/fs/bpf") / name
    with tempfile.TemporaryDirectory() as directory:
        ready, users = Path(directory, "ready"), Path(directory, "users")
        users.write_text(f"ann:{PASSWORD}\n")
        serve = [word for one in EMULATED[1:] for word in ("--serve", f"{one}=127.0.0.1:0")]
        command = [
            sys.executable,
            "-m",
            "ringlight.testbed.emulation.optical",
            "--name",
            "ocs0",
            "--profile",
            "ideal",
        ]
        command += ["--size", str(ports), "--listen", "127.0.0.1:0", "--pins", str(pins)]
        command += [*serve, "--users", str(users), "--ready", str(ready)]
        with Path(directory, "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(Path(directory, "log").read_text()[-500:])
                time.sleep(0.01)
            yield json.loads(ready.read_text())["addresses"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)
            remove_pins(pins)


def change(driver: OpticalSwitchDriver, wanted: list[CrossConnect], mode: Mode) -> float:
    """Seconds until all wanted are read back."""
    started = time.perf_counter()
    seen = driver.snapshot(timeout_s=30)
    plan = driver.plan(wanted, mode, snapshot=seen)
    result = driver.apply(plan, timeout_s=30, seen=seen)
    took = time.perf_counter() - started
    if not set(wanted) <= set(result.snapshot.cross_connects):
        raise RuntimeError("not as wanted")
    return took


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 5), "p99": round(p99, 5), "most": round(ordered[-1], 5)}


def measure(driver: OpticalSwitchDriver, ports: int, rounds: int, moves: int, seed: int) -> dict[str, object]:
    dice = random.Random(seed)

    def permutation() -> list[CrossConnect]:
        outs = dice.sample(range(ports + 1, 2 * ports + 1), ports)
        return [CrossConnect(ingress, egress) for ingress, egress in enumerate(outs, start=1)]

    driver.open()
    found: dict[str, object] = {}
    change(driver, permutation(), Mode.REPLACE)
    for mode in (Mode.REPLACE, Mode.UPDATE):
        times = [change(driver, permutation(), mode) for _ in range(rounds)]
        found[f"permutation_{mode.name.lower()}"] = summary(times)
    change(driver, [CrossConnect(1, ports + 1)], Mode.REPLACE)
    wanted = [[CrossConnect(1, ports + 1 + number % 2)] for number in range(1, moves + 1)]
    found["one"] = summary([change(driver, one, Mode.UPDATE) for one in wanted])
    # Otherwise the next driver finds it.
    change(driver, [], Mode.REPLACE)
    driver.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ports", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=5, help="permutations in each mode")
    parser.add_argument("--moves", type=int, default=200, help="of one circuit")
    parser.add_argument("--driver", action="append", choices=DRIVERS, help="only this one; may be repeated")
    chosen = parser.parse_args()
    os.environ["OPTICAL_BENCHMARK"] = PASSWORD
    login = {"username": "ann", "password_env": "OPTICAL_BENCHMARK"}
    more: dict[str, dict[str, Any]] = {kind: dict(login) for kind in EMULATED}
    more["scpi"] = {}
    more["polatis-restconf"]["settle_s"] = 0
    more["ocp-gnmi"]["tls"] = False
    drivers: dict[str, object] = {}

    def turn(kind: str, address: str, entry: Mapping[str, Any]) -> None:
        driver = make_driver("ocs0", {"driver": kind, "address": address, **entry}, chosen.ports)
        drivers[kind] = measure(driver, chosen.ports, chosen.rounds, chosen.moves, len(drivers))

    kinds = chosen.driver or [*DRIVERS]
    with optical_switch(chosen.ports) as addresses:
        for kind in [kind for kind in kinds if kind in EMULATED]:
            turn(kind, addresses[kind], more[kind])
    if "polatis-netconf" in kinds and (why := netconf_server.missing()):
        drivers["polatis-netconf"] = f"not measured: {why}"
    elif "polatis-netconf" in kinds:
        server = netconf_server.NetconfServer(2 * chosen.ports)
        try:
            os.environ["OPTICAL_BENCHMARK"] = netconf_server.PASSWORD
            key = {"username": netconf_server.USER, "host_key": server.host_key}
            turn("polatis-netconf", server.address, login | key)
        finally:
            server.close()
    machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]}
    print(json.dumps({"ports": chosen.ports, "machine": machine, "drivers": drivers}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
