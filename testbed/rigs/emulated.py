"""Rigs around the emulated optical switch: its process, and hosts at its ports."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect
from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.optical_profiles import profiles
from ringlight.testbed.emulation.optical.datapath import Datapath, remove_pins
from ringlight.testbed.emulation.optical.lasers import Lasers
from ringlight.testbed.lab import new_lab
from ringlight.testbed.process_start import Process, end_process, start_process
from ringlight.testbed.rigs.network import NamespaceNetwork, nobodys_address
from ringlight.testbed.rigs.proxy import Proxy
from ringlight.testbed.rigs.rig import WRONG_PASSWORD, Recovery, Rig, lacks

SIZE, MAX_SIZE = 8, 1024
#: Faceplates 1..HOSTS have a host; nothing is plugged into the others.
HOSTS = 5
PROFILE = "mems"
#: A rig that is measured: two kept circuits next to 320 others, and only those two have hosts.
MEASURED_SIZE, MEASURED_HOSTS = 324, 2
#: Who may use the switch, by protocols with a login.
USER, PASSWORD = "ann", "s3cr:t"
START_S = 30.0
#: A session that says nothing for so long is ended, seconds. A busy machine holds a client up between two
#: requests, which must not take as long.
IDLE_S = 2.0
#: Within which a process that has let go of its clients is at its end, seconds.
END_S = 1.0
_NICENESS = -15


class ScpiRig(Rig):
    """The emulated optical switch process, its faceplate in a namespace, a proxy before its SCPI port.

    A rig for another of its management protocols is a subclass that has its own ``protocol``, ``profile``,
    ``addition``, ``removal`` and ``proxy_of``; what it leaves out is SCPI's. Whether there is a login is its
    driver's to say (``DriverKind``).
    """

    addition: ClassVar[str] = r"conn\w*:(add|only)"
    removal: ClassVar[str] = r"conn\w*:sub|disc:"
    #: All; the subclasses, whose switch is the same, have one each.
    recoveries: ClassVar[Sequence[Recovery]] = ("MAINTAIN", "RESTORE", "REMOVE")
    #: Whether the dialect tells that a port has failed; the last egress has.
    shows_failed: ClassVar[bool] = True
    profile: str = PROFILE
    wavelengths: ClassVar[int] = 0
    #: What the switch calls the protocol; the driver has the same name.
    protocol: ClassVar[str] = "scpi"
    proxy_of: ClassVar[type[Proxy]] = Proxy

    def __init__(
        self,
        size: int = SIZE,
        profile: str | None = None,
        hosts: int = HOSTS,
        more: Sequence[str] = (),
    ) -> None:
        """``size``: duplex faceplate ports, the last egress of which has failed; ``hosts``: so many of them
        have a host; ``more``: arguments of the switch."""
        self.size, self.profile, self._more = size, profile or self.profile, tuple(more)
        self.inputs, self.outputs = range(1, size + 1), range(size + 1, 2 * size)
        self.failed_port = 2 * size if self.shows_failed else None
        self.hosts = {}
        self._lab = new_lab()
        self._held = self._lab.hold()
        self._network: NamespaceNetwork | None = None
        self._process: Process | None = None
        self._proxy: Proxy | None = None
        self._maps: Datapath | None = None
        self._pins = self._lab.bpf_dir / "ocs0"
        try:
            inside = self._lab.namespace("ocs0")
            ends = [f"p{p} netns {inside}" for p in range(1, hosts + 1)]
            self._network = NamespaceNetwork(self._lab, ends, [inside])
            self.hosts = self._network.hosts
            self._start(inside)
        except BaseException:
            self.close()
            raise

    def _arguments(self) -> list[str]:
        """Return the further arguments of the switch's process."""
        served = (
            []
            if self.protocol == "scpi"
            else ["--serve", f"{self.protocol}=127.0.0.1:0"]
        )
        if not self._login:
            return served
        users = self._lab.state_dir / "users"
        users.write_text(f"{USER}:{PASSWORD}\n")
        (self._lab.state_dir / "password").write_text(f"{PASSWORD}\n")
        (self._lab.state_dir / "wrong").write_text(f"{WRONG_PASSWORD}\n")
        return [*served, "--users", str(users)]

    def _start(self, namespace: str) -> None:
        self._ready = self._lab.state_dir / "ocs0.ready"
        self._launch(
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
                    self._lab.id,
                    "--size",
                    str(self.size),
                    "--listen",
                    "127.0.0.1:0",
                ),
                *(
                    "--profile",
                    self.profile,
                    "--netns",
                    namespace,
                    "--pins",
                    str(self._pins),
                ),
                *(
                    "--failed-port",
                    str(2 * self.size),
                    "--ready",
                    str(self._ready),
                    "--seed",
                    "1",
                ),
                *("--rest", "127.0.0.1:0", "--idle-timeout", str(IDLE_S)),
                *self._arguments(),
                *self._more,
            ]
        )
        host, port = self.address.split(":")
        self._proxy = self.proxy_of((host, int(port)))
        self._maps = Datapath.resume(self._pins)

    def _launch(self, command: list[str]) -> None:
        self._command = command
        log_path = self._lab.state_dir / "ocs0.log"
        with log_path.open("wb") as log:
            self._process = start_process(command, self._lab.environment(), log)
        _favour(self._process.pid)
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"the optical switch did not start: {log_path.read_text()[-500:]}"
                )
            time.sleep(0.01)
        ready = json.loads(self._ready.read_text())
        self.rest: str = ready["rest"]
        self.addresses: dict[str, str] = ready["addresses"]
        self.address = self.addresses[self.protocol]

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if self._process is not None:
            end_process(self._process, 5.0)
        if self._maps is not None:
            self._maps.close()
        if self._network is not None:
            self._network.close()
        remove_pins(self._pins)
        forget(self._lab.bpf_dir, self._lab.state_dir)
        self._held.close()

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None
        return self._proxy

    @property
    def maps(self) -> Datapath:
        assert self._maps is not None
        return self._maps

    def ended(self) -> str:
        if self._process is None:
            return ""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ""
        return f"the emulated switch has ended: {last_words((self._lab.state_dir / 'ocs0.log').read_text())}"

    @property
    def _login(self) -> bool:
        """Return whether clients say who they are."""
        return driver_kinds()[self.protocol].login

    def _make(self, address: str, password: str = "password") -> OpticalSwitchDriver:
        profile = profiles()[self.profile].declared()
        entry: dict[str, Any] = {
            "driver": self.protocol,
            "address": address,
            "profile": profile,
        }
        if self._login:
            entry |= {
                "username": USER,
                "password_file": str(self._lab.state_dir / password),
            }
        if self.wavelengths:
            entry["wavelengths"] = self.wavelengths
        return make_driver(
            "ocs0", {**entry, **driver_kinds()[self.protocol].emulated}, self.size
        )

    def driver(self, direct: bool = False) -> OpticalSwitchDriver:
        return self._make(self.address if direct else f"127.0.0.1:{self.proxy.port}")

    def unreachable(self) -> OpticalSwitchDriver:
        return self._make(nobodys_address())

    def locked_out(self) -> OpticalSwitchDriver | None:
        return self._make(self.address, "wrong") if self._login else None

    def truth(self) -> set[CrossConnect]:
        return {
            CrossConnect(i, circuit.egress, w)
            for (i, w), circuit in self.maps.cross_connects().items()
        }

    def lit_since(self, cross_connect: CrossConnect) -> float:
        """Return the time of the last write of a cross-connect, in monotonic seconds."""
        spot = cross_connect.ingress, cross_connect.wavelength
        return self.maps.cross_connects()[spot].ready_ns / 1e9

    def packets(self, cross_connect: CrossConnect) -> int:
        return self.maps.counters(cross_connect.egress).tx_packets

    def reported_dark_s(self, cross_connect: CrossConnect) -> float:
        dark_s = self.maps.counters(cross_connect.egress).dark_s
        return lacks("a circuit that was dark") if dark_s is None else dark_s

    def _tell(self, command: str) -> None:
        host, port = self.addresses["scpi"].split(":")
        with socket.create_connection((host, int(port)), timeout=5) as other:
            other.sendall(f"{command};*opc?\n".encode())
            assert other.recv(100) == b"1\n"

    def external_connect(self, cross_connect: CrossConnect) -> None:
        colour = (
            ""
            if cross_connect.wavelength is None
            else f",(@{cross_connect.wavelength})"
        )
        self._tell(
            f":oxc:swit:conn:add (@{cross_connect.ingress}),(@{cross_connect.egress}){colour}"
        )

    def wipe(self) -> None:
        self._tell(":oxc:swit:disc:all")

    def writes(self) -> list[str]:
        seen, self.proxy.seen = self.proxy.seen, []
        return seen

    def lose_next_reply(self, effect: bool) -> None:
        self.proxy.lose = effect

    @contextmanager
    def broken_reads(self) -> Iterator[None]:
        self.proxy.garble = True
        try:
            yield
        finally:
            self.proxy.garble = False

    def drop_sessions(self) -> None:
        self.proxy.drop()

    def idle(self) -> None:
        time.sleep(1.3 * IDLE_S)

    @contextmanager
    def fault(
        self, kind: str, *, count: int | None = None, seconds: float | None = None
    ) -> Iterator[None]:
        parameters = {
            "kind": kind,
            "protocol": self.protocol,
            "count": count,
            "seconds": seconds,
        }
        body = {key: value for key, value in parameters.items() if value is not None}
        with httpx.Client(
            base_url=f"http://{self.rest}", trust_env=False, timeout=10
        ) as switch:
            made = switch.post("/v1/faults", json=body)
            if made.status_code == 422:
                lacks(f"{kind}: {made.json()['detail']}")
            number = made.raise_for_status().json()["id"]
            try:
                yield
            finally:
                switch.delete(f"/v1/faults/{number}").raise_for_status()

    def plug(self, faceplate: int, plugged: bool) -> None:
        self.hosts[faceplate].plug(plugged)

    def restart(self, recovery: Recovery) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(5)
        self._ready.unlink()
        own, command = f"{self.protocol}=127.0.0.1:0", list(self._command)
        command[command.index("--listen") + 1] = self.addresses["scpi"]
        command = [
            f"{self.protocol}={self.address}" if word == own else word
            for word in command
        ]
        # The last of several --recovery counts.
        self._launch([*command, "--recovery", recovery.lower()])


class WssRig(ScpiRig):
    """The emulated wavelength-selective switch, with a laser at each faceplate.

    The lasers have one wavelength all the time unless a test tunes one, so that light goes as on a switch
    without wavelengths.
    """

    recoveries = ("RESTORE",)
    wavelength = 2
    wavelengths = SIZE
    profile = "lcos"
    lasers: Lasers

    def _arguments(self) -> list[str]:
        pin = self._lab.bpf_dir / "lasers"
        self.lasers = Lasers.create(pin, self.size)
        for laser in range(self.size):
            self.tune(laser + 1, self.wavelength)
        plugs = [
            word
            for port in range(1, self.size + 1)
            for word in ("--laser", f"{port}={port - 1}")
        ]
        return ["--wavelengths", str(self.wavelengths), "--lasers", str(pin), *plugs]

    def tune(self, faceplate: int, wavelength: int) -> None:
        self.lasers.tune(faceplate - 1, wavelength, time.monotonic_ns())

    def close(self) -> None:
        super().close()
        if hasattr(self, "lasers"):
            self.lasers.close()


def last_words(log: str) -> str:
    """Return the last line of a process's log; at the end of a traceback with the place that it leads to."""
    lines = log.splitlines() or ["it has said nothing"]
    places = [line.strip() for line in lines if line.startswith('  File "')]
    return f"{lines[-1]} ({places[-1]})" if places else lines[-1]


def _favour(pid: int) -> None:
    """Run the switch's control before other programs if that is allowed, since a real one shares its
    processor with none.

    It is in a session of its own, whose niceness counts before the process's (sched(7), autogroup).
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICENESS))


def forget(*directories: Path) -> None:
    """Remove directories of ours, one level deep."""
    for directory in directories:
        if directory.is_dir():
            for path in directory.iterdir():
                path.unlink()
            directory.rmdir()
