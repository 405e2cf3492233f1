"""A rig around a switch that is there already: a real one, or anybody's emulated one.

It touches the ports that it is given and no others, and puts back what was on them. What is impossible on a
real switch (spoil its replies, restart it) it lacks.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringlight.controller.optical.base import OpticalSwitchDriver
from ringlight.controller.optical.registry import make_driver
from ringlight.fabric.crossconnect import CrossConnect, Mode, PortState
from ringlight.testbed.rigs.changing import converge
from ringlight.testbed.rigs.network import Host, nobodys_address
from ringlight.testbed.rigs.rig import WRONG_PASSWORD, Rig, lacks

log = logging.getLogger(__name__)

_WRITES = ("_remove", "_add", "_replace", "_write_and_read", "_set_port_enabled")
_ANSWER_S = 30.0


class DeviceError(RuntimeError):
    """The switch cannot be tested as asked; one line."""


def seen_writing(driver: OpticalSwitchDriver, into: list[str]) -> OpticalSwitchDriver:
    """Return the driver, changed so that it notes its writes in ``into`` as it makes them."""
    inside = threading.local()

    def noted(method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*given: Any) -> Any:
            if getattr(inside, "a_write", False):
                return method(*given)
            verb, batch = (
                (given[0], given[1])
                if name == "_write_and_read"
                else (name[1:], given[0])
            )
            text = (
                " ".join(map(str, batch)) if isinstance(batch, Sequence) else str(batch)
            )
            into.append(f"{verb} {text}")
            inside.a_write = True
            try:
                return method(*given)
            finally:
                inside.a_write = False

        return call

    for name in _WRITES:
        setattr(driver, name, noted(getattr(driver, name), name))
    return driver


class DeviceRig(Rig):
    """``entry``: as in a controller's inventory, with ``driver`` and ``address``; ``size``: its duplex
    faceplate ports; ``ports``: those that may be touched, as the switch numbers them (none: all); ``nics``:
    two interfaces of this machine, whose fibres are in the first two faceplates of ``ports``.

    Raises DeviceError, ValueError (the entry), or whatever the driver raises when it is opened.
    """

    out_of_band = False
    addition, removal = r"\Aadd ", r"\Aremove "

    def __init__(
        self,
        entry: Mapping[str, Any],
        size: int,
        ports: Sequence[int] = (),
        *,
        nics: Sequence[str] = (),
        read_only: bool = False,
    ) -> None:
        self._entry, self._size, self.read_only = dict(entry), size, read_only
        self._written: list[str] = []
        self._files = tempfile.TemporaryDirectory(prefix="ringlight-")
        self.hosts = {}
        self._was: set[CrossConnect] | None = None
        self._second = self._make()
        try:
            self.identity = self._second.open(timeout_s=_ANSWER_S)
            self._choose(ports)
            for faceplate, nic in enumerate(nics, start=1):
                self.hosts[faceplate] = Host(None, nic)
        except BaseException:
            self.close()
            raise

    def _choose(self, ports: Sequence[int]) -> None:
        can = self._second.capabilities()
        chosen = set(ports) or set(can.ports)
        if strange := sorted(chosen - can.ports):
            raise DeviceError(f"--ports: the switch has no port {strange[0]}")
        reading = self._second.snapshot(timeout_s=_ANSWER_S)
        failed = sorted(p for p in chosen if reading.ports[p].state is PortState.FAILED)
        self.failed_port = next((p for p in failed if p in can.egress), None)
        usable = chosen - set(failed)
        self.inputs, self.outputs = (
            sorted(usable & can.ingress),
            sorted(usable & can.egress),
        )
        if min(len(self.inputs), len(self.outputs)) < 2:
            raise DeviceError(
                "--ports: at least two ingress and two egress ports are needed"
            )
        here = set(reading.cross_connects)
        ours = {
            xc for xc in here if xc.ingress in self.inputs or xc.egress in self.outputs
        }
        for xc in sorted(ours):
            if not (xc.ingress in self.inputs and xc.egress in self.outputs):
                raise DeviceError(
                    f"--ports: {xc} has one end on a port that may not be touched"
                )
        self.others = frozenset(here - ours)
        if not self.read_only:
            self._was = ours

    def _make(self, **other: Any) -> OpticalSwitchDriver:
        driver = make_driver("target", self._entry | other, self._size)
        if self.others:
            # What replaces everything must not be tried where others' light is.
            driver._capabilities = replace(driver.capabilities(), max_replace=0)
        return driver

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
        self.hosts = {}
        try:
            if self._was is not None:
                was, self._was = self._was, None
                self._put_back(was)
        finally:
            self._second.close()
            self._files.cleanup()

    def _put_back(self, was: set[CrossConnect]) -> None:
        driver = self._make()
        try:
            driver.open(timeout_s=_ANSWER_S)
            self.change(driver, was, Mode.REPLACE, timeout_s=_ANSWER_S)
        finally:
            driver.close()
        if was:
            log.warning("put back: %s", ", ".join(map(str, sorted(was))))

    def driver(self, direct: bool = False) -> OpticalSwitchDriver:
        made = self._make()
        return made if direct else seen_writing(made, self._written)

    def unreachable(self) -> OpticalSwitchDriver:
        if "address" not in self._entry:
            lacks("an address")
        return self._make(address=nobodys_address())

    def locked_out(self) -> OpticalSwitchDriver | None:
        if "username" not in self._entry:
            return None
        path = Path(self._files.name, "wrong")
        with open(
            path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            file.write(f"{WRONG_PASSWORD}\n")
        return self._make(password_file=str(path), password_env=None)

    def truth(self) -> set[CrossConnect]:
        return (
            set(self._second.snapshot(timeout_s=_ANSWER_S).cross_connects) - self.others
        )

    def external_connect(self, cross_connect: CrossConnect) -> None:
        converge(self._second, [cross_connect], timeout_s=_ANSWER_S)

    def wipe(self) -> None:
        converge(self._second, (), delete=self.inputs, timeout_s=_ANSWER_S)

    def writes(self) -> list[str]:
        seen, self._written[:] = list(self._written), []
        return seen
