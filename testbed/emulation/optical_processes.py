"""Emulated optical switches of a lab as processes: their commands, addresses and users."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from ringlight.fabric.optical_drivers import driver_kinds
from ringlight.fabric.parts import OpticalSwitch
from ringlight.testbed import deaths
from ringlight.testbed.emulation.fault_courses import Kept
from ringlight.testbed.emulation.fixed_network import OPTICAL_DPID
from ringlight.testbed.emulation.kept_processes import START_S, KeptProcesses
from ringlight.testbed.emulation.onic.wiring import is_tagged, lasers_of_switch
from ringlight.testbed.emulation.onic_processes import laser_pin
from ringlight.testbed.emulation.optical.far_light import light_plan
from ringlight.testbed.emulation.settings import Settings, TestbedError
from ringlight.testbed.process_start import Process
from ringlight.testbed.supervision import answers

#: Where an optical switch's protocol listens that has not been started before.
_ANY_PORT = "127.0.0.1:0"
#: Who may use an emulated optical switch whose protocol has a login.
USER = "ringlight"


class OpticalProcesses:
    """The emulated optical switches of a lab, each a process. Methods raise TestbedError.

    ``addresses``: ``host:port`` of each management protocol and of the switch's own REST, by optical switch.
    """

    def __init__(self, settings: Settings, processes: KeptProcesses) -> None:
        self._settings, self._processes = settings, processes
        self.addresses: dict[str, dict[str, str]] = {}

    def launch(self) -> None:
        """Start those that are here. Raises OSError."""
        fabric = self._settings.fabric
        light_plan(fabric, self._settings.lab.bpf_dir).write(self._light_file)
        starts = {
            switch.name: partial(self._start, index, switch)
            for index, switch in enumerate(fabric.optical_switches.values())
            if switch.has_datapath and self._settings.share.is_here(switch.name)
        }
        for name in starts:
            self._make_user(name)
        self._processes.keep(
            "optical switch", "optical switch", starts, "optical_switches"
        )

    def _start(self, index: int, switch: OpticalSwitch) -> Process:
        """Start one. Started again it finds its light burning, and listens where it was."""
        settings, fabric = self._settings, self._settings.fabric
        ready = settings.state / f"{switch.name}.ready"
        ready.unlink(missing_ok=True)
        known = self.addresses.get(switch.name, {})
        protocol = protocol_of(switch)
        command = [
            *(sys.executable, "-m", "ringlight.testbed.emulation.optical"),
            *(
                "--name",
                switch.name,
                "--lab",
                settings.lab.id,
                "--size",
                str(switch.size),
            ),
            *(
                "--listen",
                known.get("scpi", _ANY_PORT),
                "--ready",
                str(ready),
                "--profile",
                switch.profile,
            ),
            *("--netns", settings.lab.namespace(switch.name)),
            *("--pins", str(settings.lab.bpf_dir / switch.name)),
            *("--time-dilation", str(settings.emulation.time_dilation)),
            *("--seed", str(settings.seed + index)),
            *("--light", str(self._light_file), "--rest", known.get("rest", _ANY_PORT)),
        ]
        if protocol != "scpi":
            command += ["--serve", f"{protocol}={known.get(protocol, _ANY_PORT)}"]
        if driver_kinds()[switch.driver].login:
            command += ["--users", str(self._user_file(switch.name, "users"))]
        if switch.loss_db is not None:
            command += ["--loss", str(switch.loss_db)]
        if switch.dark_s is not None:
            command += ["--dark", repr(switch.dark_s)]
        if switch.wavelengths is not None:
            command += ["--wavelengths", str(switch.wavelengths)]
            if is_tagged(fabric, switch.name):
                command.append("--tagged")
            else:
                command += ["--lasers", str(laser_pin(settings))]
            for port, laser in lasers_of_switch(fabric, switch.name).items():
                command += ["--laser", f"{port}={laser}"]
        return self._processes.spawn(command, self._log_file(switch.name))

    def _user_file(self, name: str, kind: str) -> Path:
        """File of an optical switch: its own ``users``, or the ``password`` for its driver."""
        return self._settings.state / f"{name}.{kind}"

    def _make_user(self, name: str) -> None:
        """The one user of an optical switch whose protocol has a login; nobody but us may read who."""
        if not driver_kinds()[
            self._settings.fabric.optical_switches[name].driver
        ].login:
            return
        password = secrets.token_hex(16)
        for kind, text in (
            ("users", f"{USER}:{password}\n"),
            ("password", f"{password}\n"),
        ):
            path = self._user_file(name, kind)
            path.unlink(missing_ok=True)
            with open(
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
            ) as file:
                file.write(text)

    @property
    def _light_file(self) -> Path:
        return self._settings.state / "light.json"

    def _log_file(self, name: str) -> Path:
        return self._settings.state / f"{name}.log"

    def await_ready(self) -> None:
        """Wait until every optical switch answers at its management port."""
        deadline = time.monotonic() + START_S
        for name in self._processes.lives("optical_switches"):
            ready = self._settings.state / f"{name}.ready"
            self._processes.await_ready(
                self._processes.by_part["optical_switches"],
                name,
                ready.exists,
                self._log_file(name),
                deadline,
            )
            document = json.loads(ready.read_text())
            self.addresses[name] = {**document["addresses"], "rest": document["rest"]}
            self._identify(name, self.addresses[name]["scpi"], deadline)

    def _identify(self, name: str, address: str, deadline: float) -> None:
        host, _, port = address.rpartition(":")
        try:
            left = max(0.1, deadline - time.monotonic())
            with socket.create_connection(
                (host, int(port)), timeout=left
            ) as connection:
                connection.sendall(b"*IDN?\n")
                if not connection.recv(1024):
                    raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        except OSError as error:
            raise TestbedError(
                f"optical switch {name} at {address}: {error.strerror or error}"
            ) from None

    def _login(self, switch: OpticalSwitch) -> dict[str, Any]:
        """Return what the driver needs to get at an emulated optical switch."""
        kind = driver_kinds()[switch.driver]
        entry: dict[str, Any] = {
            "address": self.addresses[switch.name][protocol_of(switch)]
        }
        if kind.login:
            entry |= {
                "username": USER,
                "password_file": str(self._user_file(switch.name, "password")),
            }
        return entry | dict(kind.emulated)

    def kept(self) -> dict[deaths.ProcessKind, Kept]:
        """Return the supervised processes, if there are any, by what faults call them."""
        kept = self._processes.by_part.get("optical_switches")
        return {} if kept is None else {"optical switch": Kept(kept, self._answers)}

    def _answers(self, name: str) -> bool:
        protocol = protocol_of(self._settings.fabric.optical_switches[name])
        host, _, port = self.addresses[name][protocol].rpartition(":")
        return answers((host, int(port)))

    def inventory(self) -> dict[str, Any]:
        """Return their part of the lab's inventory, with those switches, too, that are no processes of ours."""
        fabric, emulation = self._settings.fabric, self._settings.emulation
        switches = self._processes.lives("optical_switches")
        optical: dict[str, Any] = {}
        for index, switch in enumerate(fabric.optical_switches.values()):
            if not self._settings.share.is_here(switch.name):
                continue
            # A switch that is elsewhere does not know that time passes slower here.
            dilation = 1.0 if switch.is_elsewhere else emulation.time_dilation
            entry: dict[str, Any] = {
                "driver": switch.driver,
                "profile": switch.device.dilated(dilation).declared(),
                **(self._login(switch) if switch.has_datapath else {}),
                **switch.access,
            }
            if switch.has_datapath:
                entry |= {
                    "pid": switches[switch.name].pid,
                    "rest": self.addresses[switch.name]["rest"],
                }
            elif not switch.is_elsewhere:
                entry |= {
                    "dpid": OPTICAL_DPID + index,
                    "bridge": self._settings.lab.bridge(switch.name),
                }
            if switch.wavelengths is not None:
                entry["wavelengths"] = switch.wavelengths
            optical[switch.name] = entry
        return {"optical_switches": optical}


def protocol_of(switch: OpticalSwitch) -> str:
    """Return the protocol that an emulated optical switch serves for its driver."""
    protocol = driver_kinds()[switch.driver].protocol
    assert protocol is not None
    return protocol
