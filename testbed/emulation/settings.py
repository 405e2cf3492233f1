"""Settings of a testbed, and the errors of a testbed that cannot be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from ringlight.fabric.topology import Fabric
from ringlight.testbed.emulation.bridges import ControllerAddress
from ringlight.testbed.emulation.scale import Emulation
from ringlight.testbed.emulation.shared_lab import SharedLab
from ringlight.testbed.lab import Lab
from ringlight.testbed.lab_programs import LabProgram

Runtime = Literal["docker", "namespace"]


class TestbedError(RuntimeError):
    """The testbed cannot be built; one line."""


class Stopped(TestbedError):
    """Request to stop while the testbed was being built."""


@dataclass(frozen=True)
class KeptController:
    """Command of a lab's permanent controller. ``rest``: address of its REST API, ``host:port``.

    ``follow``: the controller ends with the testbed, however that ends.
    """

    command: tuple[str, ...]
    rest: str
    log: Path
    follow: bool = False

    @classmethod
    def read(cls, path: Path) -> KeptController:
        """Read a JSON file with these keys and return the settings. Raises OSError, ValueError."""
        return TypeAdapter(cls).validate_json(path.read_bytes())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``rest``."""
        host, _, port = self.rest.rpartition(":")
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Settings:
    """Settings of a testbed. ``command``: the worker's, see :class:`WorkerPlace`; None for the training
    worker.

    ``onic_faults``: the O-NICs' agents can be ordered to delay and lose control messages. ``onic_lease_s``:
    emulated seconds that a grant of light lasts unless it is renewed. ``programs``: of extensions, by
    name.
    ``keeps``: the controller's command, if the testbed starts the controller and keeps it running.
    ``devices``: names of extensions' devices. ``idle_hosts``: every GPU has an idle host from the start.
    ``share``: what of the lab is here.
    """

    lab: Lab
    fabric: Fabric
    state: Path
    runtime: Runtime = "docker"
    emulation: Emulation = field(default_factory=Emulation)
    controller: ControllerAddress = field(
        default_factory=lambda: ControllerAddress("127.0.0.1", 6653)
    )
    programs: Mapping[str, LabProgram] = field(default_factory=dict)
    keeps: KeptController | None = None
    image: str | None = None
    command: tuple[str, ...] | None = None
    seed: int = 0
    onic_faults: bool = False
    onic_lease_s: float = 2.0
    devices: tuple[str, ...] = ()
    idle_hosts: bool = False
    share: SharedLab = field(default_factory=SharedLab)
