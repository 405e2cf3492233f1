"""What a run does to its own lab, beside the controller: faults of the O-NICs' control network.

The controller has no business with these, and neither has a user's job; they are asked of the lab's own
processes, by the inventory that the testbed writes. So are the counters of the light in the kernel.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import httpx

from controller.errors import ControllerError
from controller.grids.onics import OnicEntry, ask
from experiments.backends.emulation.processes import LabProcesses
from experiments.backends.protocol import BackendError
from experiments.language.plan import ControlFaults

#: Deadline of the server agent's answer, seconds.
ANSWER_S = 10.0


def inventory(processes: LabProcesses) -> dict[str, Any]:
    """The inventory as it is now: process ids change when an agent is started again."""
    found: dict[str, Any] = json.loads((processes.state / "inventory.json").read_text(encoding="utf-8"))
    return found


def light_counters(processes: LabProcesses) -> dict[str, Any]:
    """What the O-NICs and WSSs have counted in the kernel since they were made. Raises BackendError."""
    address = inventory(processes)["agent"]
    transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"))
    try:
        with httpx.Client(transport=transport, base_url="http://agent", timeout=ANSWER_S) as client:
            answer = client.get("/v1/onics").raise_for_status()
    except httpx.HTTPError as error:
        raise BackendError(f"the counters of the light cannot be read: {error}") from None
    found: dict[str, Any] = answer.json()
    return found


def emulate_one(processes: LabProcesses, gpu: str, faults: Mapping[str, Any]) -> None:
    """Have one agent delay or lose its control messages from now on; a key not named stays.

    Raises BackendError.
    """
    try:
        found = ask(_entry(processes, gpu), "emulate", **faults)["emulate"]
    except ControllerError as error:
        raise BackendError(f"faults cannot be set: {error}") from None
    wrong = [name for name, value in faults.items() if found.get(name) != value]
    if wrong:
        raise BackendError(
            f"O-NIC agent of {gpu}: {wrong[0]} is {found.get(wrong[0])}, not {faults[wrong[0]]}"
        )


def _entry(processes: LabProcesses, gpu: str) -> OnicEntry:
    place = inventory(processes)["onics"][gpu]
    return OnicEntry(gpu, place["manage"], place["control"], place.get("flow", ""))


class ControlNetwork:
    """The O-NICs' agents of a lab, as they were last told to disturb their messages and to tune their lasers.

    They are told only what differs. Methods raise BackendError.
    """

    def __init__(self, processes: LabProcesses) -> None:
        self._processes = processes
        setting = processes.setting
        self._usual = {
            gpu: {**_settings_of(ControlFaults()), "tuning_s": onic.tuning_s * setting.scale.time}
            for gpu, onic in setting.fabric.onics.items()
            if onic.transmitters == "tunable"
        }
        self._told = dict(self._usual)
        self._left_out: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, faults: ControlFaults, tuning_s: Mapping[str, float]) -> None:
        """For a run. ``tuning_s``: by GPU, emulated seconds, where it is not the fabric's."""
        with self._lock:
            self._left_out.clear()
        self._tell(faults, {gpu: usual["tuning_s"] for gpu, usual in self._usual.items()} | dict(tuning_s))

    def tell(self, faults: ControlFaults) -> None:
        """From now on; lasers are tuned as before."""
        self._tell(faults, {})

    def _tell(self, faults: ControlFaults, tuning_s: Mapping[str, float]) -> None:
        with self._lock:
            for gpu in self._told:
                wanted = {**self._told[gpu], **_settings_of(faults)}
                wanted["tuning_s"] = tuning_s.get(gpu, wanted["tuning_s"])
                if wanted != self._told[gpu] and gpu not in self._left_out:
                    self._emulate(gpu, wanted)
                self._told[gpu] = wanted

    def leave_out(self, gpu: str) -> None:
        """Its agent is being killed: what it is to do waits until it is told again."""
        with self._lock:
            self._left_out.add(gpu)

    def tell_again(self, gpu: str) -> None:
        """An agent that was started anew knows nothing of what it was told."""
        with self._lock:
            self._left_out.discard(gpu)
            if self._told[gpu] != self._usual[gpu]:
                self._emulate(gpu, self._told[gpu])

    def _emulate(self, gpu: str, wanted: Mapping[str, float]) -> None:
        # Seeded apart, or they would lose their messages in step.
        seed = 1 + list(self._told).index(gpu)
        emulate_one(self._processes, gpu, {**wanted, "seed": seed})


def _settings_of(faults: ControlFaults) -> dict[str, float]:
    shares = {"loss": faults.loss, "duplicate": faults.duplicate, "reorder": faults.reorder}
    return {"control_delay_s": faults.delay_s, **shares}
