"""The emulated testbed as a backend: what it measures is real time of real programs, at D and S."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.backends.emulation.lab import EmulatedLab
from experiments.backends.emulation.linktest import LinkTest
from experiments.backends.emulation.processes import Addresses, LabProcesses, check_ready
from experiments.backends.emulation.reference import References
from experiments.backends.emulation.session import Session
from experiments.backends.protocol import CAPABILITIES, BackendError, lacking
from experiments.client import ApiError, Unreachable
from experiments.language.plan import RunPlan, Setting
from experiments.record.environment import describe_setting
from experiments.record.events import Record
from experiments.record.writing import writing
from fabric.topology import canonical

log = logging.getLogger(__name__)


class EmulationBackend:
    """``runtime``: docker or namespace. ``logs``: folder for the processes' output, one in it for each lab,
    else it goes with the lab. ``say`` is told, in one line, what a person should know."""

    name = "emulation"
    label = "measured"
    capabilities = frozenset(CAPABILITIES)

    def __init__(
        self,
        runtime: str = "docker",
        addresses: Addresses | None = None,
        logs: Path | None = None,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self.runtime = runtime
        self._addresses = addresses or Addresses()
        self.logs, self._say = logs, say
        self._references = References()
        self._labs: list[dict[str, Any]] = []

    def refuses(self, plan: RunPlan) -> str | None:
        return lacking(self, plan)

    def check_ready(self) -> None:
        check_ready(self.runtime, self._addresses)

    def prepare(self, settings: Sequence[Setting], logs: Path, say: Callable[[str], None]) -> None:
        self.logs, self._say = logs, say

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> EmulatedLab:
        """Raises BackendError, WriteError, LabError; then nothing is left."""
        processes = LabProcesses(
            setting, self.runtime, self._addresses, self._folder(setting), notice=self._say
        )
        processes.start()
        try:
            self._say(f"lab {processes.lab.id} is up: {_described(setting)} ({self.runtime}); {self._where}")
            session = Session(processes)
            links = LinkTest(setting, session, emit, self._say)
            links.measure(canonical((str(a), str(b)) for a, b in setting.fabric.circuits))
            facts = {**describe_setting(setting), **_of_lab(processes)}
            self._labs.append(facts)

            def closed() -> None:
                facts["controller_restarts"] = processes.restarts

            return EmulatedLab(processes, session, links, self._references, closed)
        except (ApiError, Unreachable) as error:
            processes.stop()
            raise BackendError(str(error)) from None
        except BaseException:
            processes.stop()
            raise

    def facts(self) -> Mapping[str, Any]:
        return {"runtime": self.runtime, "labs": self._labs}

    @property
    def _where(self) -> str:
        return f"REST at http://{self._addresses.rest}/docs"

    def _folder(self, setting: Setting) -> Path | None:
        if self.logs is None:
            return None
        number = sum(lab["fabric"] == setting.name for lab in self._labs) + 1
        folder = self.logs / (setting.name if number == 1 else f"{setting.name}-{number}")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def _described(setting: Setting) -> str:
    fabric = setting.fabric
    parts = (
        (fabric.packet_switches, "packet switches"),
        (fabric.optical_switches, "optical switches"),
        (fabric.gpus, "GPUs"),
        (fabric.onics, "O-NICs"),
    )
    return f"{setting.name}, " + ", ".join(f"{len(found)} {what}" for found, what in parts if found)


def _of_lab(processes: LabProcesses) -> dict[str, Any]:
    """Declared timings of switches and of one O-NIC's agent: all of a fabric are alike."""
    fabric = processes.setting.fabric
    switches = processes.inventory["optical_switches"]
    timings = {}
    agents = [gpu for grid in fabric.grids.values() for gpu in grid.nodes]
    if agents:
        timings = processes.api.get(f"/v1/onics/{agents[0]}")["status"].get("timings", {})
    return {
        "lab": processes.lab.id,
        "optical_profiles": {name: switches[name].get("profile", {}) for name in fabric.optical_switches},
        "onic_timings": timings,
        "controller_restarts": 0,
    }
