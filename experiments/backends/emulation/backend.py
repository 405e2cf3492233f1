"""The emulated testbed as a backend: what it measures is real time of real programs, at D and S."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringlight.containers.image import OWN_IMAGE, ImageError, image_present
from ringlight.experiments.backends.emulation.astray import freeze_line
from ringlight.experiments.backends.emulation.lab import EmulatedLab
from ringlight.experiments.backends.emulation.lab_of_setting import (
    cannot_drive,
    processes_of,
)
from ringlight.experiments.backends.emulation.linktest import LinkTest
from ringlight.experiments.backends.emulation.reference import References
from ringlight.experiments.backends.emulation.requests import (
    only_simulated,
    passes_no_packets,
)
from ringlight.experiments.backends.emulation.rest import ending_runs
from ringlight.experiments.backends.protocol import CAPABILITIES, lacking
from ringlight.experiments.client import CALL_TIMEOUT_S, Api
from ringlight.experiments.language.plan import RunPlan, Setting
from ringlight.experiments.record.environment import describe_setting
from ringlight.experiments.record.events import Record
from ringlight.experiments.record.writing import writing
from ringlight.fabric.keys import plugged
from ringlight.fabric.parts import canonical
from ringlight.fabric.topology import Fabric
from ringlight.fabric.values import under
from ringlight.testbed.addresses import Addresses
from ringlight.testbed.devices import optional_kinds
from ringlight.testbed.emulation.buildable import building_problem
from ringlight.testbed.lab_programs import ProgramOptions, waiting, writers
from ringlight.testbed.other_parts import OtherParts
from ringlight.testbed.processes import LabProcesses
from ringlight.testbed.readiness import check_ready

log = logging.getLogger(__name__)


def _cannot_build(setting: Setting) -> str | None:
    """Return why the testbed cannot build a lab of this setting, ``key: reason``; None if it can."""
    problem = (
        building_problem(plugged(setting.fabric), setting.scale.rate)
        or setting.frames.problem
    )
    where = setting.name if setting.name == "fabric" else f"fabrics.{setting.name}"
    return None if problem is None else under(where, problem)


class EmulationBackend:
    """``runtime``: docker or namespace. ``programs``: what runs in every lab that is for it.
    ``devices``: names of extensions' devices that every lab has. ``spread``: a lab's parts elsewhere.

    The output of a lab's processes goes with the lab, where nobody has said where to (``prepare``).
    """

    name = "emulation"
    label = "measured"
    capabilities = frozenset(CAPABILITIES)

    def __init__(
        self,
        runtime: str = "docker",
        addresses: Addresses = Addresses(),
        programs: Sequence[ProgramOptions] = (),
        devices: Sequence[str] = (),
        spread: Callable[[Setting], OtherParts] | None = None,
    ) -> None:
        self.devices, self._spread = tuple(devices), spread
        self.runtime, self._addresses, self._programs = (
            runtime,
            addresses,
            tuple(programs),
        )
        self._logs: Path | None = None
        self._say: Callable[[str], None] = log.info
        self._references = References()
        self._labs: list[dict[str, Any]] = []
        self._images: dict[str, bool] = {}

    def refuses(self, plan: RunPlan) -> str | None:
        fabric = plan.setting.fabric
        return (
            lacking(self, plan)
            or only_simulated(plan)
            or cannot_drive(fabric)
            or passes_no_packets(fabric)
            or _cannot_build(plan.setting)
            or _waits(fabric, self._programs)
            or self._cannot_run(plan)
        )

    def _cannot_run(self, plan: RunPlan) -> str | None:
        """Return what a job's guests need and this machine lacks, ``key: reason``; None if nothing."""
        for job in plan.jobs:
            if job.guest is not None and (why := job.guest.lacks(self)) is not None:
                return under(f"jobs.{job.name}", why)
        return None

    def lacks_image(self, name: str) -> str | None:
        """Return that an image is missing; None if Docker does not answer, which is reported elsewhere."""
        if name not in self._images:
            try:
                self._images[name] = name == OWN_IMAGE or image_present(name)
            except ImageError:
                return None
        return None if self._images[name] else f"Docker has no image {name} here"

    def check_ready(self) -> None:
        with ending_runs():
            check_ready(self.runtime, self._addresses, self._programs)

    def prepare(
        self,
        settings: Sequence[Setting],
        logs: Path | None,
        say: Callable[[str], None],
        earlier: Mapping[str, Any],
    ) -> None:
        self._logs, self._say = logs, say
        self._labs = list(earlier.get("labs", ()))

    def open(self, setting: Setting, emit: Callable[[Record], None]) -> EmulatedLab:
        """Build a lab of the setting and measure its links. Return the lab.

        Raises BackendError and WriteError; then nothing is left of the lab.
        """
        setting = replace(setting, fabric=plugged(setting.fabric))
        spread = None if self._spread is None else self._spread(setting)
        processes = processes_of(
            setting,
            self.runtime,
            self._addresses,
            devices=self.devices,
            bounded=not setting.delays,
            logs=self._folder(setting),
            programs=[
                program
                for program in self._programs
                if program.name in writers(setting.fabric)
            ],
            spread=spread,
            notice=self._say,
            on_freeze=lambda death: self._say(freeze_line(death)),
        )
        with ending_runs(), ExitStack() as undo:
            undo.callback(processes.stop)
            with writing(processes.state):
                processes.start()
            where = f"REST at {self._addresses.url}/docs"
            self._say(
                f"lab {processes.lab.id} is up: {_described(setting)} ({self.runtime}); {where}"
            )
            to = self._addresses
            # At a large D an optical switch takes as long as that says to set hundreds of circuits.
            patience_s = CALL_TIMEOUT_S + processes.lighting_s()
            anywhere = to.tls is not None
            api = undo.enter_context(
                Api(
                    to.url,
                    to.token,
                    cacert=to.cacert,
                    anywhere=anywhere,
                    patience_s=patience_s,
                )
            )
            links = LinkTest(setting, processes, api, emit, self._say)
            links.measure(
                canonical((str(a), str(b)) for a, b in setting.fabric.circuits)
            )
            facts = {**describe_setting(setting), **_of_lab(setting, processes, api)}
            if spread is not None:
                facts["mtu_bytes"] = min(facts["mtu_bytes"], spread.mtu_bytes)
            self._labs.append(facts)
            lab = EmulatedLab(setting, processes, api, links, self._references, facts)
            undo.pop_all()
        return lab

    def facts(self) -> Mapping[str, Any]:
        devices = {name: name in self.devices for name in optional_kinds()}
        facts = {"runtime": self.runtime, **devices, "labs": self._labs}
        with ending_runs():
            return facts | {
                k: v for program in self._programs for k, v in program.facts().items()
            }

    def _folder(self, setting: Setting) -> Path | None:
        if self._logs is None:
            return None
        number = sum(lab["fabric"] == setting.name for lab in self._labs) + 1
        folder = self._logs / (
            setting.name if number == 1 else f"{setting.name}-{number}"
        )
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def _waits(fabric: Fabric, programs: Sequence[ProgramOptions]) -> str | None:
    """Return which switch waits for a program that is not there, ``key: reason``; None if none does."""
    why = waiting(fabric, [program.name for program in programs])
    return None if why is None else f"fabric.{why}"


def _described(setting: Setting) -> str:
    words = {
        "packet_switches": ("packet switch", "packet switches"),
        "optical_switches": ("optical switch", "optical switches"),
        "gpus": ("GPU", "GPUs"),
        "onics": ("O-NIC", "O-NICs"),
    }
    counts = [
        (len(getattr(setting.fabric, kind)), *called) for kind, called in words.items()
    ]
    phrases = (
        f"{count} {singular if count == 1 else many}"
        for count, singular, many in counts
        if count
    )
    return ", ".join([setting.name, *phrases])


def _of_lab(setting: Setting, processes: LabProcesses, api: Api) -> dict[str, Any]:
    """Declared timings of switches and of one O-NIC's agent: all of a fabric are alike."""
    switches = processes.inventory["optical_switches"]
    agents = setting.fabric.agents
    status = api.get(f"/v1/onics/{agents[0]}")["status"] if agents else {}
    return {
        "lab": processes.lab.id,
        "optical_profiles": {
            name: switches[name].get("profile", {}) for name in switches
        },
        "onic_timings": status.get("timings", {}),
        "controller_restarts": 0,
    }
