"""What a run does to its own lab, beside the controller: faults of the control network, killed agents.

The controller has no business with these, and neither has a user's job; they are asked of the lab's own
processes, by the inventory that the testbed writes. So are the counters of the light in the kernel.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import httpx

from controller.errors import ControllerError
from controller.grids.onics import OnicEntry, ask
from experiments.backends.emulation.processes import LabProcesses, RunError, belongs_to

#: Deadlines in seconds: the server agent's answer, the return of an agent that was killed, one look for it.
ANSWER_S, BACK_S, GLANCE_S = 10.0, 30.0, 0.1
NO_FAULTS = {"control_delay_s": 0.0, "loss": 0.0, "duplicate": 0.0, "reorder": 0.0, "seed": 0}


def inventory(processes: LabProcesses) -> dict[str, Any]:
    """The inventory as it is now: process ids change when an agent is started again."""
    found: dict[str, Any] = json.loads((processes.state / "inventory.json").read_text(encoding="utf-8"))
    return found


def light_counters(processes: LabProcesses) -> dict[str, Any]:
    """What the O-NICs and WSSs have counted in the kernel since they were made. Raises RunError."""
    address = inventory(processes)["agent"]
    transport = httpx.HTTPTransport(uds=address.removeprefix("unix:"))
    try:
        with httpx.Client(transport=transport, base_url="http://agent", timeout=ANSWER_S) as client:
            answer = client.get("/v1/onics").raise_for_status()
    except httpx.HTTPError as error:
        raise RunError(f"the counters of the light cannot be read: {error}") from None
    found: dict[str, Any] = answer.json()
    return found


def emulate(processes: LabProcesses, faults: Mapping[str, Any]) -> None:
    """Have every agent delay or lose its control messages from now on. Raises RunError.

    ``faults``: keys of the agent's ``emulate``; one not named stays. Agents are seeded apart.
    """
    for index, gpu in enumerate(inventory(processes)["onics"]):
        emulate_one(processes, gpu, {**faults, "seed": index + 1})


def emulate_one(processes: LabProcesses, gpu: str, faults: Mapping[str, Any]) -> None:
    """As :func:`emulate`, for one agent."""
    try:
        found = ask(_entry(processes, gpu), "emulate", **faults)["emulate"]
    except ControllerError as error:
        raise RunError(f"faults cannot be set: {error}") from None
    wrong = [name for name, value in faults.items() if found.get(name) != value]
    if wrong:
        raise RunError(f"O-NIC agent of {gpu}: {wrong[0]} is {found.get(wrong[0])}, not {faults[wrong[0]]}")


def kill_agent(processes: LabProcesses, gpu: str) -> int:
    """Kill (SIGKILL) the agent of a GPU's O-NIC; its process id. Raises RunError."""
    pid = int(inventory(processes)["onics"][gpu]["pid"])
    if not belongs_to(processes.lab, pid):
        raise RunError(f"the agent of O-NIC {gpu} (process {pid}) does not run")
    os.kill(pid, signal.SIGKILL)
    return pid


def why_no_other_agent(processes: LabProcesses, gpu: str, pid: int) -> str | None:
    """Why the agent that the testbed starts in place of process ``pid`` does not answer; None once it does.

    It is only glanced at: jobs are watched meanwhile.
    """
    try:
        status = ask(_entry(processes, gpu), "status", timeout_s=GLANCE_S)
    except ControllerError as error:
        return str(error)
    return None if status["pid"] != pid else "the old one still answers"


def _entry(processes: LabProcesses, gpu: str) -> OnicEntry:
    place = inventory(processes)["onics"][gpu]
    return OnicEntry(gpu, place["manage"], place["control"], place.get("flow", ""))
